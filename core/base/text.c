/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include "base/checked.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

uint32_t text_next(const char **sp, const char *end)
{
	const uint8_t *s = (const uint8_t *)*sp;
	size_t left = (size_t)(end - *sp);
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t c = s[0];
	size_t n;

	*sp += 1;
	if (c < 0x80)
		return c;
	n = c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc0 && c < 0xe0 ? 2 : 0;
	if (!n || n > left)
		return 0xfffd;
	c &= 0x7fu >> n;
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0xfffd;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff)
		return 0xfffd;
	*sp += n - 1;
	return c;
}

bool text_is_utf8(const char *s, size_t n)
{
	const char *end = s + n;

	while (s < end) {
		const char *before = s;

		/* U+FFFD itself is three bytes long, so one byte forward means "not UTF-8". */
		if (text_next(&s, end) == 0xfffd && s == before + 1)
			return false;
	}
	return true;
}

char *text_put(char *to, uint32_t c)
{
	if (c < 0x80) {
		*to++ = (char)c;
		return to;
	}
	if (c < 0x800) {
		*to++ = (char)(uint8_t)(0xc0 | c >> 6);
	} else {
		if (c < 0x10000) {
			*to++ = (char)(uint8_t)(0xe0 | c >> 12);
		} else {
			*to++ = (char)(uint8_t)(0xf0 | c >> 18);
			*to++ = (char)(uint8_t)(0x80 | (c >> 12 & 0x3f));
		}
		*to++ = (char)(uint8_t)(0x80 | (c >> 6 & 0x3f));
	}
	*to++ = (char)(uint8_t)(0x80 | (c & 0x3f));
	return to;
}

static bool digit(char c)
{
	return c >= '0' && c <= '9';
}

int text_natural_cmp(const char *a, size_t an, const char *b, size_t bn)
{
	size_t i = 0, j = 0;
	int zeros = 0; /* the first difference in leading zeros decides between equals */

	while (i < an && j < bn) {
		if (digit(a[i]) && digit(b[j])) {
			size_t i0 = i, j0 = j, ie, je;
			int c;

			while (i < an && a[i] == '0')
				i++;
			while (j < bn && b[j] == '0')
				j++;
			for (ie = i; ie < an && digit(a[ie]); ie++)
				;
			for (je = j; je < bn && digit(b[je]); je++)
				;
			if (ie - i != je - j)
				return ie - i < je - j ? -1 : 1;
			c = memcmp(a + i, b + j, ie - i);
			if (c)
				return c;
			if (!zeros && ie - i0 != je - j0)
				zeros = ie - i0 < je - j0 ? -1 : 1;
			i = ie;
			j = je;
		} else {
			if (a[i] != b[j])
				return (unsigned char)a[i] < (unsigned char)b[j] ? -1 : 1;
			i++;
			j++;
		}
	}
	if (an - i != bn - j)
		return an - i < bn - j ? -1 : 1;
	return zeros;
}

const char *text_size(uint64_t bytes, char out[static 16])
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double v = (double)bytes;
	size_t i = 0;

	while (v >= 1024 && i + 1 < ARRAY_LEN(unit)) {
		v /= 1024;
		i++;
	}
	(void)snprintf(out, 16, i && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[i]);
	return out;
}

char *text_format(const char *fmt, ...)
{
	va_list ap;
	char *r;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	r = n < 0 ? NULL : malloc((size_t)n + 1);
	if (!r)
		return NULL;
	va_start(ap, fmt);
	(void)vsnprintf(r, (size_t)n + 1, fmt, ap);
	va_end(ap);
	return r;
}

const char *text_digits(uint64_t n, char out[static 32])
{
	size_t at = 31, digits = 0;

	out[at] = 0;
	do {
		if (digits && digits % 3 == 0)
			out[--at] = ',';
		out[--at] = (char)('0' + n % 10);
		n /= 10;
		digits++;
	} while (n);
	return memmove(out, out + at, 32 - at);
}

const char *text_count(uint64_t n, char out[static 16])
{
	static const char unit[] = "MBT";
	double v = (double)n / 1e6;
	char digits[32];
	size_t i = 0;

	if (n < 1000000) {
		(void)snprintf(out, 16, "%s", text_digits(n, digits));
		return out;
	}
	/* A value that would be rounded to 1000 is shown as 1.00 of the next unit. */
	for (; v >= 999.5 && unit[i + 1]; i++)
		v /= 1000;
	(void)snprintf(out, 16, "%.*f %c", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v, unit[i]);
	return out;
}

size_t text_unfit(const char *s, const char *end)
{
	const char *next = s;
	uint32_t c = text_next(&next, end);
	size_t n = (size_t)(next - s);

	if (c < 0x20 || (c >= 0x7f && c <= 0x9f) || (c == 0xfffd && n == 1) ||
	    (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069))
		return n;
	return 0;
}

void text_make_fit(char *s)
{
	const char *end = s + strlen(s);

	while (s < end) {
		const char *next = s;
		size_t unfit = text_unfit(s, end);

		(void)text_next(&next, end);
		memset(s, '?', unfit);
		s += next - s;
	}
}

const char *text_show(const char *s, size_t n, char *out, size_t cap)
{
	const char *end = s + n, *next = s; /* end of the character that s is in */
	bool unfit = false;
	size_t o = 0;

	for (; s < end; s++) {
		if (o + 7 > cap) {
			memcpy(out + o, "...", 3);
			o += 3;
			break;
		}
		if (s == next) {
			unfit = text_unfit(s, end) != 0;
			(void)text_next(&next, end);
		}
		if (unfit)
			o += (size_t)snprintf(out + o, 4, "%%%02X", (unsigned char)*s);
		else
			out[o++] = *s;
	}
	out[o] = 0;
	return out;
}

bool text_take(const char **s, const char *word)
{
	size_t n = strlen(word);
	bool there = !strncmp(*s, word, n);

	*s += there ? n : 0;
	return there;
}

bool text_take_number(const char **s, int most_digits, uint32_t *ret)
{
	uint32_t v = 0;
	int digits = 0;

	for (; **s >= '0' && **s <= '9'; (*s)++, digits++) {
		if (digits == most_digits)
			return false;
		v = v * 10 + (uint32_t)(**s - '0');
	}
	*ret = v;
	return digits > 0;
}

bool text_parse_size(const char *s, uint64_t *ret)
{
	static const char letters[] = "KMGTP";
	const char *at;
	char *end;
	uint64_t v, unit = 1;

	if (!digit(*s))
		return false;
	errno = 0;
	v = strtoull(s, &end, 10);
	if (errno)
		return false;
	if (*end && (at = strchr(letters, toupper((unsigned char)*end)))) {
		uint64_t base = 1024;

		end++;
		if (!strcasecmp(end, "B"))
			base = 1000;
		else if (*end && strcasecmp(end, "iB") != 0)
			return false;
		for (const char *l = letters; l <= at; l++)
			unit *= base;
	} else if (*end && strcasecmp(end, "B") != 0) {
		return false;
	}
	if (ckd_mul(&v, v, unit))
		return false;
	*ret = v;
	return true;
}

const char *text_dims(const uint64_t *v, size_t n, char style, char *out, size_t cap)
{
	const char *open = style == 'S' ? "torch.Size([" : "(", *close = style == 'S' ? "])" : ")";
	size_t o = (size_t)snprintf(out, cap, "%s", open);

	for (size_t i = 0; i < n; i++) {
		if (o + 32 > cap) {
			o += (size_t)snprintf(out + o, cap - o, "...");
			break;
		}
		o += (size_t)snprintf(out + o, cap - o, "%s%" PRIu64, i ? ", " : "", v[i]);
	}
	(void)snprintf(out + o, cap - o, "%s%s", style == 'T' && n == 1 ? "," : "", close);
	return out;
}

bool text_is_address(const char *s)
{
	static const char *const schemes[] = { "s3://",	  "gs://", "https://",
					       "http://", "hf://", FILE_SCHEME };

	for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
		if (!strncmp(s, schemes[i], strlen(schemes[i])))
			return true;
	return false;
}

const char *text_file_path(const char *s)
{
	size_t n = strlen(FILE_SCHEME);

	return strncmp(s, FILE_SCHEME, n) ? NULL : s + n;
}

/* What is behind "SCHEME://"; NULL: it is not an address. */
static const char *behind_scheme(const char *s)
{
	size_t n = strcspn(s, ":/?#@");

	return n && !strncmp(s + n, "://", 3) ? s + n + 3 : NULL;
}

/* The end of the user and password in what is behind a scheme; NULL: there are none. A password may
 * have a '/' that should have been encoded: then what follows the ':' is not a port. */
static const char *behind_user(const char *s)
{
	const char *end = s + strcspn(s, "/?#"), *at = memrchr(s, '@', (size_t)(end - s)), *colon;

	if (at)
		return at + 1;
	colon = memchr(s, ':', (size_t)(end - s));
	if (!colon || strspn(colon + 1, "0123456789") == (size_t)(end - colon - 1))
		return NULL;
	at = *s == '[' ? NULL : strrchr(s, '@');
	return at ? at + 1 : NULL;
}

bool text_has_user(const char *s)
{
	const char *p = behind_scheme(s);

	return p && behind_user(p);
}

const char *text_show_address(const char *s, char *buf, size_t cap)
{
	const char *p = behind_scheme(s), *host = p ? behind_user(p) : NULL;
	bool keys = !strncmp(s, "s3://", 5) || !strncmp(s, "gs://", 5) || !strncmp(s, "hf://", 5) ||
		    text_file_path(s);
	size_t n = p ? (size_t)(p - s) : 0;

	host = host ? host : s + n;
	(void)snprintf(buf, cap, "%.*s%.*s", (int)n, s,
		       (int)(p && !keys ? strcspn(host, "?#") : strlen(host)), host);
	return buf;
}

size_t text_parent(const char *path)
{
	size_t n = strlen(path);

	while (n && path[n - 1] == '/')
		n--;
	while (n && path[n - 1] != '/')
		n--;
	return n;
}
