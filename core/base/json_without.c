/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_without.h"

#include <string.h>

static const char *skip_string(const char *s)
{
	for (s++; *s != '"'; s++)
		s += *s == '\\';
	return s + 1;
}

/* Behind the value at s: at the comma or bracket that ends it, or at the end of the text. */
static const char *skip_value(const char *s, const char *end)
{
	size_t depth = 0;

	while (s < end && (depth || !strchr(",}]", *s))) {
		if (*s == '"') {
			s = skip_string(s);
			continue;
		}
		depth += *s == '{' || *s == '[';
		depth -= *s == '}' || *s == ']';
		s++;
	}
	return s;
}

static const char blanks[] = " \t\r\n";

/* Behind the name of a member `key` that begins at s, at the colon; NULL: there is none. */
static const char *member_at(const char *s, const char *key)
{
	size_t n = strlen(key);
	const char *behind;

	if (*s != '"')
		return NULL;
	behind = skip_string(s);
	if ((size_t)(behind - s) != n + 2 || memcmp(s + 1, key, n) != 0)
		return NULL;
	behind += strspn(behind, blanks);
	return *behind == ':' ? behind : NULL;
}

/* In one pass, because there may be many. */
size_t json_without(char *text, size_t len, const char *key)
{
	const char *s = text, *end = text + len;
	char *to = text;

	while (s < end) {
		const char *colon = member_at(s, key), *next;

		if (!colon) {
			for (next = *s == '"' ? skip_string(s) : s + 1; s < next; s++)
				*to++ = *s;
			continue;
		}
		s = skip_value(colon + 1, end);
		while (to > text && strchr(blanks, to[-1]))
			to--;
		/* The first member goes with the comma behind it, others with the one before. */
		if (to > text && to[-1] == ',')
			to--;
		else if (*s == ',')
			s++;
		/* The line break before a closing bracket stays. */
		while (*s != ',' && s > colon + 1 && strchr(blanks, s[-1]))
			s--;
	}
	*to = 0;
	return (size_t)(to - text);
}
