/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_json - the value of an object as JSON text (parse/pickle_json.h) followed by a newline.
 *
 * Bytes that are neither an archive of torch.save nor a pickle are themselves a value. A value
 * whose text is impossible or too long is shown as {"__class__": CLASS, "__error__": WHY}, so that
 * there is always a text.
 *
 * Nothing is executed. Threads: pure.
 */
#ifndef STORE_OBJECT_JSON_H
#define STORE_OBJECT_JSON_H

#include "store/object_form.h"

#include <stdint.h>

/* Limits: bytes of an object; of memory for its pickle; of its text without the newline. */
enum {
	OBJECT_JSON_MAX = 64 << 20,
	OBJECT_JSON_MEMORY = 128 << 20,
	OBJECT_JSON_TEXT = 8 << 20,
	OBJECT_JSON_ROOM = OBJECT_JSON_TEXT + (4 << 10), /* the room that ret always needs */
};

/* Appends the text. Fails with ENOMEM. */
int object_json(enum object_form form, const void *data, size_t len, struct buf *ret,
		struct ckpt_err *e);
/* Appends the text shown for an object of more than OBJECT_JSON_MAX bytes. */
void object_json_too_long(uint64_t len, struct buf *ret);

#endif
