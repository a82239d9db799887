/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/tar.h"

#include "base/checked.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>

/* A header's fields: where they begin, and their bytes. */
enum {
	NAME_AT = 0,
	NAME_SIZE = 100,
	SIZE_AT = 124,
	SIZE_SIZE = 12,
	SUM_AT = 148,
	SUM_SIZE = 8,
	TYPE_AT = 156,
	MAGIC_AT = 257,
	PREFIX_AT = 345,
	PREFIX_SIZE = 155,
};
enum { MAX_MEMBERS = 1 << 20, MAX_RECORDS = 1 << 16 /* bytes of a pax header */ };

/* What extended headers say of the next member. */
struct next {
	char name[TAR_MAX_NAME + 1];
	bool named, sized, sparse;
	uint64_t size;
};

/* ---- numbers ---- */

/* Octal digits; or, as GNU tar writes what does not fit, 0x80 and a big-endian number. */
static bool read_number(const uint8_t *p, size_t n, uint64_t *ret)
{
	size_t i = 0;

	*ret = 0;
	if (p[0] & 0x80) {
		for (i = 0; i < n; i++) {
			if (*ret >> 55)
				return false;
			*ret = *ret << 8 | (i ? p[i] : p[i] & 0x7fU);
		}
		return true;
	}
	while (i < n && p[i] == ' ')
		i++;
	for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
		*ret = *ret << 3 | (p[i] - '0'); /* at most 12 digits */
	return i == n || !p[i] || p[i] == ' ';
}

/* The sum of the header's bytes, with its own field as spaces. */
static bool sum_is_right(const uint8_t h[static TAR_BLOCK])
{
	uint64_t want, sum = 0;

	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += i >= SUM_AT && i < SUM_AT + SUM_SIZE ? ' ' : h[i];
	return read_number(h + SUM_AT, SUM_SIZE, &want) && want == sum;
}

static bool is_zero(const uint8_t h[static TAR_BLOCK])
{
	for (size_t i = 0; i < TAR_BLOCK; i++)
		if (h[i])
			return false;
	return true;
}

bool tar_magic(const void *p, size_t len)
{
	return len >= TAR_BLOCK && !memcmp((const uint8_t *)p + MAGIC_AT, "ustar", 5) &&
	       sum_is_right(p);
}

/* ---- extended headers ---- */

static int read_all(const struct blob *b, uint64_t at, void *buf, size_t n, struct ckpt_err *e)
{
	int64_t got = b->read(b->arg, at, buf, n, e);

	if (got < 0)
		return (int)got;
	return got == (int64_t)n ? 0
				 : err_set(e, ERR_CORRUPT, "the archive ends at byte %llu",
					   (unsigned long long)at + (uint64_t)got);
}

/* One record of a pax header, "LEN KEY=VALUE\n", without its length. */
static bool read_record(struct next *x, const char *s, size_t n)
{
	const char *eq = memchr(s, '=', n);
	size_t key = eq ? (size_t)(eq - s) : 0, len = eq ? n - key - 1 : 0;

	if (key > 11 && !memcmp(s, "GNU.sparse.", 11))
		x->sparse = true;
	if ((key == 4 && !memcmp(s, "path", 4)) ||
	    (key == 15 && !memcmp(s, "GNU.sparse.name", 15))) {
		if (len > TAR_MAX_NAME)
			return false;
		memcpy(x->name, eq + 1, len);
		x->name[len] = 0;
		x->named = len > 0; /* empty: the header's counts */
	} else if (key == 4 && !memcmp(s, "size", 4)) {
		x->size = 0;
		for (size_t i = 0; i < len; i++) {
			if (eq[1 + i] < '0' || eq[1 + i] > '9' || x->size >> 58)
				return false;
			x->size = 10 * x->size + (uint64_t)(eq[1 + i] - '0');
		}
		x->sized = len > 0;
	}
	return true;
}

static bool read_records(struct next *x, const char *s, size_t n)
{
	while (n && *s) {
		size_t len = 0, digits = 0;

		while (digits < n && digits < 6 && s[digits] >= '0' && s[digits] <= '9')
			len = 10 * len + (size_t)(s[digits++] - '0');
		if (!digits || digits == n || s[digits] != ' ' || len > n || len < digits + 2 ||
		    s[len - 1] != '\n' || !read_record(x, s + digits + 1, len - digits - 2))
			return false;
		s += len;
		n -= len;
	}
	return true;
}

/* type: 'x' or Solaris' 'X' for the next member, 'L' its name alone. */
static int read_extended(const struct blob *b, char type, uint64_t at, uint64_t size,
			 struct next *x, struct ckpt_err *e)
{
	char text[MAX_RECORDS + 1];
	bool ok = size <= (type == 'L' ? TAR_MAX_NAME : MAX_RECORDS);
	int rc = ok ? read_all(b, at, text, (size_t)size, e) : 0;

	if (rc)
		return rc;
	if (ok && type == 'L') {
		memcpy(x->name, text, (size_t)size);
		x->name[size] = 0;
		x->named = true;
	} else if (ok) {
		text[size] = 0;
		ok = read_records(x, text, (size_t)size);
	}
	return ok ? 0
		  : err_set(e, ERR_CORRUPT, "the archive's extended header at byte %llu is damaged",
			    (unsigned long long)at);
}

/* ---- members ---- */

static void read_name(const uint8_t *h, struct next *x)
{
	bool posix = !memcmp(h + MAGIC_AT, "ustar\0", 6);
	int prefix = posix ? (int)strnlen((const char *)h + PREFIX_AT, PREFIX_SIZE) : 0;

	if (!x->named)
		(void)snprintf(x->name, sizeof(x->name), "%.*s%s%.*s", prefix,
			       (const char *)h + PREFIX_AT, prefix ? "/" : "",
			       (int)strnlen((const char *)h + NAME_AT, NAME_SIZE),
			       (const char *)h + NAME_AT);
}

/* What holds no data, whatever its size says: links, devices, directories, pipes. Python's tarfile
 * does the same; for a directory, POSIX defines the size as a limit on what it may contain. */
static bool is_bare(const uint8_t *h)
{
	size_t n = strnlen((const char *)h + NAME_AT, NAME_SIZE);
	char type = (char)h[TYPE_AT];

	return (type >= '1' && type <= '6') || (!type && n && h[NAME_AT + n - 1] == '/');
}

static int read_member(const struct blob *b, const uint8_t *h, uint64_t at, struct next *x,
		       tar_each_fn *each, void *arg, uint64_t *ret_end, struct ckpt_err *e)
{
	struct tar_member m = { .name = x->name, .at = at + TAR_BLOCK, .kind = TAR_OTHER };
	char type = (char)h[TYPE_AT];
	bool extends = type == 'x' || type == 'X' || type == 'L';
	bool of_others =
		type == 'g' || type == 'K'; /* defaults for all; the target of a long link */
	int rc = 0;

	if (!sum_is_right(h) || !read_number(h + SIZE_AT, SIZE_SIZE, &m.size))
		return err_set(e, ERR_CORRUPT, "the archive's header at byte %llu is damaged",
			       (unsigned long long)at);
	if (x->sized && !extends && !of_others)
		m.size = x->size;
	if (is_bare(h))
		m.size = 0;
	if (type == '0' || !type || type == '7')
		m.kind = TAR_FILE;
	else if (type == '5')
		m.kind = TAR_DIR;
	read_name(h, x);
	m.name_len = strlen(x->name);
	if (m.kind == TAR_FILE && m.name_len && x->name[m.name_len - 1] == '/')
		m.kind = TAR_DIR; /* before there was a type for them */
	if (!range_ok(m.at, m.size, b->size))
		return err_set(e, ERR_CORRUPT,
			       "the archive has %llu bytes, and '%.100s' in it ends at %llu: it is "
			       "not complete",
			       (unsigned long long)b->size, x->name,
			       (unsigned long long)(m.at + m.size));
	*ret_end = m.at + (m.size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
	if (extends)
		return read_extended(b, type, m.at, m.size, x, e);
	if (!of_others && (type == 'S' || x->sparse))
		return err_set(e, ERR_UNSUPPORTED,
			       "'%.100s' is stored as a sparse file: unpack the archive", x->name);
	if (!of_others) {
		rc = each(arg, &m, e);
		*x = (struct next){ .named = false };
	}
	return rc;
}

int tar_each(const struct blob *b, tar_each_fn *each, void *arg, struct ckpt_err *e)
{
	struct next x = { .named = false };
	uint8_t h[TAR_BLOCK];
	uint64_t at = 0;
	int rc = 0;

	for (size_t n = 0; !rc && at < b->size; n++) {
		if (n == MAX_MEMBERS)
			return err_set(e, EFBIG, "the archive has more than %d members",
				       MAX_MEMBERS);
		rc = read_all(b, at, h, sizeof(h), e);
		if (!rc && is_zero(h)) /* the end; what follows is padding */
			return 0;
		if (!rc)
			rc = read_member(b, h, at, &x, each, arg, &at, e);
	}
	return rc;
}
