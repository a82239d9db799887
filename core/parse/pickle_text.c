/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_text.h"

#include "base/checked.h"
#include "base/text.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

bool pk_text_key(const char *s, size_t n, uint32_t *ret)
{
	uint32_t v = 0;

	if (!n)
		return false;
	for (size_t i = 0; i < n; i++)
		if (s[i] < '0' || s[i] > '9' || ckd_mul(&v, v, 10u) ||
		    ckd_add(&v, v, (uint32_t)(s[i] - '0')))
			return false;
	*ret = v;
	return true;
}

bool pk_text_float(const char *s, size_t n, double *ret)
{
	static const char allowed[] = "0123456789+-.eEinfatyINFATY";
	char text[64], *end;

	if (!n || n >= sizeof(text))
		return false;
	memcpy(text, s, n);
	text[n] = 0;
	if (strlen(text) != n || strspn(text, allowed) != n)
		return false;
	/* Independent of the program's locale; glibc's "C" locale is static. */
	*ret = strtod_l(text, &end, newlocale(LC_ALL_MASK, "C", (locale_t)0));
	return end == text + n;
}

/* v = v * 10 + digit, over n words; a carry makes it longer. */
static size_t push_digits(uint32_t *v, size_t n, uint32_t scale, uint32_t digits)
{
	uint64_t carry = digits;

	for (size_t i = 0; i < n; i++) {
		carry += (uint64_t)v[i] * scale;
		v[i] = (uint32_t)carry;
		carry >>= 32;
	}
	if (carry)
		v[n++] = (uint32_t)carry;
	return n;
}

bool pk_text_long(const char *s, size_t n, uint8_t ret[static PK_TEXT_LONG], size_t *ret_len)
{
	/* 10^620 is less than 2^2080 */
	uint32_t v[2080 / 32] = { 0 };
	uint8_t bytes[sizeof(v) + 1] = { 0 };
	size_t words = 0, len;
	bool minus;

	n -= n && s[n - 1] == 'L';
	minus = n && s[0] == '-';
	if (n == minus || n > PK_TEXT_DIGITS)
		return false;
	for (size_t i = minus; i < n;) {
		uint32_t scale = 1, digits = 0;

		for (; i < n && scale < 1000000000; i++, scale *= 10) {
			if (s[i] < '0' || s[i] > '9')
				return false;
			digits = digits * 10 + (uint32_t)(s[i] - '0');
		}
		words = push_digits(v, words, scale, digits);
	}
	for (size_t i = 0; i < words * 4; i++)
		bytes[i] = (uint8_t)(v[i / 4] >> i % 4 * 8);
	if (minus) {
		unsigned carry = 1;

		for (size_t i = 0; i < sizeof(bytes); i++) {
			carry += (uint8_t)~bytes[i];
			bytes[i] = (uint8_t)carry;
			carry >>= 8;
		}
	}
	/* Drop what only repeats the sign. */
	for (len = words * 4 + 1; len > 1; len--) {
		uint8_t sign = bytes[len - 2] & 0x80 ? 0xff : 0;

		if (bytes[len - 1] != sign)
			break;
	}
	*ret_len = len <= PK_TEXT_LONG ? len : 0;
	memcpy(ret, bytes, *ret_len);
	return true;
}

static int hex_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* count hex digits at s, of which n bytes are there. */
static bool take_hex(const char *s, size_t n, size_t count, uint32_t *ret)
{
	uint32_t v = 0;

	if (n < count)
		return false;
	for (size_t i = 0; i < count; i++) {
		int digit = hex_of(s[i]);

		if (digit < 0)
			return false;
		v = v << 4 | (uint32_t)digit;
	}
	*ret = v;
	return true;
}

static bool is_octal(char c)
{
	return c >= '0' && c <= '7';
}

bool pk_text_string(const char *s, size_t n, char *ret, size_t *ret_len)
{
	static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
	char *to = ret;
	uint32_t v;

	if (n < 2 || s[0] != s[n - 1] || (s[0] != '\'' && s[0] != '"'))
		return false;
	for (size_t i = 1; i < n - 1; i++) {
		const char *known;

		if (s[i] != '\\') {
			*to++ = s[i];
			continue;
		}
		if (++i == n - 1)
			return false;
		known = s[i] ? strchr(names, s[i]) : NULL;
		if (known) {
			*to++ = values[known - names];
		} else if (is_octal(s[i])) {
			v = (uint32_t)(s[i] - '0');
			for (int k = 0; k < 2 && i + 1 < n - 1 && is_octal(s[i + 1]); k++)
				v = v * 8 + (uint32_t)(s[++i] - '0');
			*to++ = (char)(uint8_t)v;
		} else if (s[i] == 'x') {
			if (!take_hex(s + i + 1, n - 2 - i, 2, &v))
				return false;
			*to++ = (char)(uint8_t)v;
			i += 2;
		} else {
			*to++ = '\\';
			*to++ = s[i];
		}
	}
	*ret_len = (size_t)(to - ret);
	return true;
}

bool pk_text_unicode(const char *s, size_t n, char *ret, size_t *ret_len)
{
	char *to = ret;

	for (size_t i = 0; i < n; i++) {
		size_t digits;
		uint32_t c;

		if (s[i] != '\\' || i + 1 == n) {
			to = text_put(to, (uint8_t)s[i]);
			continue;
		}
		i++;
		if (s[i] != 'u' && s[i] != 'U') { /* so "\\u" stays as it is */
			*to++ = '\\';
			to = text_put(to, (uint8_t)s[i]);
			continue;
		}
		digits = s[i] == 'u' ? 4 : 8;
		if (!take_hex(s + i + 1, n - i - 1, digits, &c) || c > 0x10ffff)
			return false;
		to = text_put(to, c);
		i += digits;
	}
	*ret_len = (size_t)(to - ret);
	return true;
}
