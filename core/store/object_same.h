/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_same - do two stored objects have the same value, whatever their form?
 *
 * Nothing is executed: the values that pickles describe are compared, see parse/pickle_same.h;
 * objects shown as JSON are compared as text.
 *
 * Threads: pure.
 */
#ifndef STORE_OBJECT_SAME_H
#define STORE_OBJECT_SAME_H

#include "store/object_form.h"

/* Bytes of an object; memory for each of the two pickles. */
enum { OBJECT_SAME_MAX = 16 << 20, OBJECT_SAME_MEMORY = 64 << 20 };

struct object_bytes {
	enum object_form form;
	const void *data;
	size_t len;
};

/* 1; 0; -ENOTSUP: they cannot be compared, and *e says why; -ENOMEM. */
int object_same(const struct object_bytes *a, const struct object_bytes *b, struct ckpt_err *e);

#endif
