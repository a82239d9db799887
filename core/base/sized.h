/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sized - structures of a program that was compiled with another version's headers.
 *
 * They only grow at the end, and each call passes the size of the program's structure: an older
 * program gets the members it knows, a newer one finds 0 in members unknown here. A newer program
 * that sets such a member gets an error.
 *
 * Threads: no state.
 */
#ifndef BASE_SIZED_H
#define BASE_SIZED_H

#include "base/checked.h"
#include "base/err.h"

#include <stddef.h>
#include <string.h>

static inline void sized_copy(void *to, size_t to_size, const void *from, size_t from_size)
{
	memcpy(to, from, min_u64(to_size, from_size));
	if (to_size > from_size)
		memset((char *)to + from_size, 0, to_size - from_size);
}

/* Copies the program's structure into ours; name: the structure's name, for the message. */
static inline int sized_take(void *to, size_t to_size, const void *from, size_t from_size,
			     const char *name, struct ckpt_err *e)
{
	for (size_t i = to_size; i < from_size; i++)
		if (((const char *)from)[i])
			return err_set(e, ERR_UNSUPPORTED,
				       "struct %s has members that libckpt %s does not know", name,
				       CKPTFS_VERSION);
	sized_copy(to, to_size, from, from_size);
	return 0;
}

/* Copies our value into the program's structure `to` of `size` bytes. */
#define SIZED_GIVE(to, size, ours) sized_copy(to, size, &(ours), sizeof(ours))
/* Copies the program's structure into our variable. */
#define SIZED_TAKE(ours, from, size, name, e) sized_take(&(ours), sizeof(ours), from, size, name, e)

#endif
