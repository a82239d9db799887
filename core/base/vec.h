/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vec - growing arrays.
 *
 * The owner of an array keeps its pointer, the number of its members and, as a size_t, its
 * capacity:
 *
 *	struct rule *v = NULL;
 *	size_t n = 0, cap = 0;
 *
 *	if (!VEC_ROOM(v, cap, n + 1))
 *		return err_nomem(e);
 *	v[n++] = rule;
 *	free(v);
 *
 * The capacity at least doubles when it grows. If memory runs out the array is unchanged.
 *
 * Threads: no shared state.
 */
#ifndef BASE_VEC_H
#define BASE_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ensures room in v for `need` members, growing it if necessary; false: out of memory. */
#define VEC_ROOM(v, cap, need) VEC_ROOM_WITHIN(v, cap, need, SIZE_MAX)
/* The same, but never grows beyond `max` members. */
#define VEC_ROOM_WITHIN(v, cap, need, max) \
	((need) <= (cap) || vec_grow(&(v), &(cap), need, max, sizeof(*(v))))

/* The same as VEC_ROOM, and new members are zeroed: for an array whose index is a number that comes
 * from elsewhere. */
#define VEC_ROOM_ZEROED(v, cap, need) \
	((need) <= (cap) || vec_grow_zeroed(&(v), &(cap), need, sizeof(*(v))))

/* Implementation of the macros; array is the address of the pointer. */
bool vec_grow(void *array, size_t *cap, size_t need, size_t max, size_t size);
bool vec_grow_zeroed(void *array, size_t *cap, size_t need, size_t size);

#endif
