/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_same - have two stored objects the same value, whatever form it is in?
 *
 * Nothing is executed: what pickles would build is compared, see parse/pickle_same.h, and of what
 * is shown as JSON, the text.
 *
 * Threads: pure.
 */
#ifndef STORE_OBJECT_SAME_H
#define STORE_OBJECT_SAME_H

#include "store/object_form.h"

/* Bytes of an object, and of memory for each of the two pickles besides. */
enum { OBJECT_SAME_MAX = 16 << 20, OBJECT_SAME_MEMORY = 64 << 20 };

struct object_bytes {
	enum object_form form;
	const void *data;
	size_t len;
};

/* 1; 0; -ENOTSUP: it cannot be told, and *e says why; -ENOMEM. */
int object_same(const struct object_bytes *a, const struct object_bytes *b, struct ckpt_err *e);

#endif
