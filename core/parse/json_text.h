/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_text - JSON text as jansson reads it, without what jansson does when memory runs out: it
 * drops bytes of strings and says nothing (2.14: lex_save ignores strbuffer_append_byte).
 *
 * The library's allocator is wrapped once, around whatever was set before.
 *
 * Threads: any.
 */
#ifndef PARSE_JSON_TEXT_H
#define PARSE_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>

/* json_loadb; where memory ran out, NULL and json_error_code(why) json_error_out_of_memory. */
json_t *json_text_load(const char *text, size_t len, size_t flags, json_error_t *why);
/* ENOMEM, or `otherwise` where it was not memory. */
int json_text_code(const json_error_t *why, int otherwise);

#endif
