/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack_util - makes msgpack, with the extensions of flax.serialization, from a text that shows
 * its contents much as Python would:
 *
 *	{'a': [1, -2, 1.5], 5: N}	maps, lists, integers, floats, None
 *	T, F				True, False
 *	'text', b5			a text; 5 bytes, 0, 1, ...
 *	u18446744073709551615		an integer that is not signed
 *	c1.5,2				a complex number
 *	@float32(2,3)			an array of bytes 0, 1, ... with an element for each of the shape
 *	@float32(2,3)20			the same with 20 bytes
 *	x				an extension that nobody knows
 */
#ifndef TESTS_MSGPACK_UTIL_H
#define TESTS_MSGPACK_UTIL_H

#include "base/buf.h"

/* Appends it. */
void msgpack_put(struct buf *b, const char *text);

#endif
