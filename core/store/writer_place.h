/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_place - how a storage writer of this library reaches a destination in an object store.
 *
 * Threads: as the writer.
 */
#ifndef STORE_WRITER_PLACE_H
#define STORE_WRITER_PLACE_H

#include "store/staging.h"
#include <ckptfs/ckpt_storage.h>

/* Before the writer's first use. how->place must be set; its strings are copied. ENOMEM. */
int writer_place(struct ckpt_storage_writer *w, const struct staging_how *how, struct ckpt_err *e);

#endif
