/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_json - the value of a GGUF key as JSON, on one line.
 *
 * Numbers are the shortest ones that are read as the same float32 or float64; NaN and infinities,
 * which JSON does not have, are null. Text that is not UTF-8 has U+FFFD in place of what is not.
 *
 * Private to core/format/gguf. Threads: pure.
 */
#ifndef FORMAT_GGUF_GGUF_JSON_H
#define FORMAT_GGUF_GGUF_JSON_H

struct buf;
struct gguf_value;

/* Appends; errors stay in the buffer. */
void gguf_json_value(const struct gguf_value *v, struct buf *b);

#endif
