/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/name.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { MARK_LEN = 18 }; /* "%~" and 16 digits */

uint64_t name_hash(const char *fqn, size_t len)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)fqn[i]) * 0x100000001b3u;
	return h;
}

static bool plain(unsigned char c)
{
	return c >= 0x20 && c != 0x7f && c != '/' && c != '%';
}

static char hex(unsigned v)
{
	return "0123456789ABCDEF"[v & 15];
}

size_t name_encode(const char *fqn, size_t len, const char *suffix, char out[static NAME_CAP],
		   bool *ret_cut)
{
	size_t n_suffix = strlen(suffix), room = NAME_CAP - 1 - n_suffix;
	size_t at = 0, fit = 0; /* fit: length of whole characters that leave room for the mark */
	const char *s = fqn, *end = fqn + len;
	bool dots = len && len <= 2 && fqn[0] == '.' && fqn[len - 1] == '.', cut = false;

	if (!len)
		out[at++] = '%';
	while (s < end) {
		const char *from = s;
		char one[4];
		size_t n = 0;

		if (plain((unsigned char)*s) && !dots) {
			(void)text_next(&s, end);
			n = (size_t)(s - from);
			memcpy(one, from, n);
		} else {
			unsigned char c = (unsigned char)*s++;

			one[n++] = '%';
			one[n++] = hex(c >> 4);
			one[n++] = hex(c);
		}
		if (at + n > room) {
			cut = true;
			break;
		}
		memcpy(out + at, one, n);
		at += n;
		if (at + MARK_LEN <= room)
			fit = at;
	}
	if (cut)
		at = fit + (size_t)snprintf(out + fit, MARK_LEN + 1, "%%~%016llx",
					    (unsigned long long)name_hash(fqn, len));
	memcpy(out + at, suffix, n_suffix + 1);
	if (ret_cut)
		*ret_cut = cut;
	return at + n_suffix;
}

bool name_fits(const char *fqn, size_t len, size_t n_suffix)
{
	size_t n = len;

	if (len > NAME_CAP - 1)
		return false;
	if (len <= (NAME_CAP - 8) / 3) /* fits even if every byte is escaped */
		return n_suffix < 8;
	for (size_t i = 0; i < len; i++)
		n += plain((unsigned char)fqn[i]) ? 0 : 2;
	return n + n_suffix <= NAME_CAP - 1; /* "", "." and ".." become longer, but fit */
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool name_decode(const char *name, size_t len, char *out, size_t *ret_len)
{
	size_t n = 0;

	if (len == 1 && name[0] == '%') {
		*ret_len = 0;
		return true;
	}
	for (size_t i = 0; i < len; i++) {
		if (name[i] != '%') {
			out[n++] = name[i];
			continue;
		}
		if (len - i < 3 || digit(name[i + 1]) < 0 || digit(name[i + 2]) < 0)
			return false;
		out[n++] = (char)(digit(name[i + 1]) << 4 | digit(name[i + 2]));
		i += 2;
	}
	*ret_len = n;
	return true;
}

bool name_is_cut(const char *name, size_t len, uint64_t *ret_hash)
{
	uint64_t h = 0;

	if (len < MARK_LEN || memcmp(name + len - MARK_LEN, "%~", 2) != 0)
		return false;
	for (size_t i = len - 16; i < len; i++) {
		int d = name[i] >= 'a' && name[i] <= 'f'   ? name[i] - 'a' + 10
			: name[i] >= '0' && name[i] <= '9' ? name[i] - '0'
							   : -1;

		if (d < 0)
			return false;
		h = h << 4 | (uint64_t)d;
	}
	*ret_hash = h;
	return true;
}
