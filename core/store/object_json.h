/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_json - what an object's bytes stand for, as JSON text (parse/pickle_json.h) and a newline.
 *
 * Bytes that are neither an archive of torch.save nor a pickle are themselves a value. What has no
 * text, or a longer one than anybody reads, is {"__class__": CLASS, "__error__": WHY}: there is
 * always something to show.
 *
 * Nothing is executed. Threads: pure.
 */
#ifndef STORE_OBJECT_JSON_H
#define STORE_OBJECT_JSON_H

#include "store/object_form.h"

#include <stdint.h>

/* Bytes of an object; of memory for its pickle; of its text without the newline. */
enum {
	OBJECT_JSON_MAX = 64 << 20,
	OBJECT_JSON_MEMORY = 128 << 20,
	OBJECT_JSON_TEXT = 8 << 20,
	OBJECT_JSON_ROOM = OBJECT_JSON_TEXT + (4 << 10), /* that ret needs in all cases */
};

/* Append the text. ENOMEM. */
int object_json(enum object_form form, const void *data, size_t len, struct buf *ret,
		struct ckpt_err *e);
/* Append what is said instead of an object of more than OBJECT_JSON_MAX bytes. */
void object_json_too_long(uint64_t len, struct buf *ret);

#endif
