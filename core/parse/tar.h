/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar - the members of an archive that is not compressed: POSIX ustar and pax, and GNU's format.
 *
 * Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar's manual,
 * "Basic Tar Format", for long names and large sizes.
 *
 * Threads: pure apart from the blob.
 */
#ifndef PARSE_TAR_H
#define PARSE_TAR_H

#include "base/blob.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TAR_BLOCK = 512, TAR_MAX_NAME = 4096 };

struct tar_member {
	const char *name; /* name_len bytes and a NUL, borrowed; as stored */
	size_t name_len;
	enum { TAR_FILE, TAR_DIR, TAR_OTHER } kind;
	uint64_t at, size; /* its bytes in the archive */
};

/* Does it begin like a tar archive? */
bool tar_magic(const void *p, size_t len);

/*
 * Calls `each` for every member, in order; a non-zero return stops and is returned. The blob's size
 * must be known; a member that reaches beyond it is ERR_CORRUPT.
 */
typedef int tar_each_fn(void *arg, const struct tar_member *m, struct ckpt_err *e);
int tar_each(const struct blob *b, tar_each_fn *each, void *arg, struct ckpt_err *e);

#endif
