/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_without - cuts members out of a JSON text whose other bytes stay as they are.
 *
 *	len = json_without(text, len, "quantization_config");
 *
 * Threads: pure.
 */
#ifndef BASE_JSON_WITHOUT_H
#define BASE_JSON_WITHOUT_H

#include <stddef.h>

/*
 * Cuts the members `key` out of all objects of a JSON text that has been parsed before (json.h: a
 * text that has not may be read beyond its end); text[len] is 0, before and after. A key with
 * escape sequences is another key. Takes one pass, whatever the number of members. Returns the new
 * length.
 */
size_t json_without(char *text, size_t len, const char *key);

#endif
