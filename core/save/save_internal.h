/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_internal - how names and lists of numbers are written in messages. Private to core/save.
 *
 * Threads: pure.
 */
#ifndef SAVE_SAVE_INTERNAL_H
#define SAVE_SAVE_INTERNAL_H

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

/* An FQN for a message; lives as long as the block it is written in. */
#define FQN_TEXT(s, n) text_show(s, n, (char[128]){ 0 }, 128)

/*
 * n numbers as Python shows them: "torch.Size([2, 3])" with SIZE_TEXT, "(2, 3)" and "(2,)" with
 * TUPLE_TEXT; cut with "..." where they are too many for a message.
 */
#define SIZE_TEXT(v, n)	 dims_text(v, n, 'S', (char[128]){ 0 }, 128)
#define TUPLE_TEXT(v, n) dims_text(v, n, 'T', (char[128]){ 0 }, 128)
const char *dims_text(const uint64_t *v, size_t n, char style, char *out, size_t cap);

#endif
