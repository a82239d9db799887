/* SPDX-License-Identifier: Apache-2.0 */
/*
 * archive - a tar archive as a place: its members are read where they are, without unpacking it.
 *
 * Private to core/source, except what place.h declares. Threads: as of a place.
 */
#ifndef SOURCE_ARCHIVE_H
#define SOURCE_ARCHIVE_H

#include "source/place.h"

/* Is the file an archive that is opened like a directory, by its name? */
bool archive_is_name(const char *file);
/*
 * The members of the archive `file` in the directory `outer`; address is its absolute path. 1: it
 * is no tar archive. Takes over `outer` on success.
 */
int archive_open(struct place *outer, const char *address, const char *file, struct place **ret,
		 struct ckpt_err *e);

#endif
