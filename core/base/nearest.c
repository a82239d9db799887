/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"

#include "base/checked.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum {
	MAX_BYTES = 256, /* in which two names may differ */
	MAX_CHANGES = 8,
	MIN_CONTAINED = 3, /* minimum length of a name to be searched for inside others */
	FAR_CHANGED = 1,   /* .far: 0 if one is a suffix; else the number of changes */
	FAR_CONTAINS = FAR_CHANGED + MAX_CHANGES + 1, /* then the number of bytes around it */
};

static bool is_end_of(const char *end, size_t n, const char *name, size_t len)
{
	return n && n < len && (name[len - n - 1] == '.' || name[len - n - 1] == '/') &&
	       !memcmp(name + len - n, end, n);
}

static int lower(char c)
{
	return tolower((unsigned char)c);
}

/* Edit distance in bytes, if it is at most max. Two neighbours that changed places are one
 * change. */
static unsigned changes(const char *a, size_t n, const char *b, size_t m, unsigned max,
			uint64_t *steps)
{
	unsigned row[MAX_BYTES + 1], earlier[MAX_BYTES + 1], least; /* earlier: of the row above */

	while (n && m && lower(*a) == lower(*b))
		a++, b++, n--, m--;
	while (n && m && lower(a[n - 1]) == lower(b[m - 1]))
		n--, m--;
	if (m > MAX_BYTES || n > MAX_BYTES)
		return max + 1;
	for (size_t j = 0; j <= m; j++)
		row[j] = earlier[j] = (unsigned)j;
	/* Computes each row only near the diagonal: elsewhere the distance exceeds max. */
	for (size_t i = 1; i <= n; i++) {
		size_t from = i > max ? i - max : 1, to = min_u64(m, i + max);
		unsigned before = row[from - 1];
		/* two rows above, at j - 1 and j - 2 */
		unsigned left = earlier[from - 1], left2 = earlier[from > 1 ? from - 2 : 0];

		earlier[from - 1] = before;
		least = row[from - 1] = from == 1 ? (unsigned)i : max + 1;
		for (size_t j = from; j <= to; j++) {
			unsigned above = row[j],
				 best = before + (lower(a[i - 1]) != lower(b[j - 1]));

			best = (unsigned)min_u64(best, above + 1);
			if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
			    lower(a[i - 2]) == lower(b[j - 1]))
				best = (unsigned)min_u64(best, left2 + 1);
			left2 = left;
			left = earlier[j];
			earlier[j] = above;
			row[j] = (unsigned)min_u64(best, row[j - 1] + 1);
			least = (unsigned)min_u64(least, row[j]);
			before = above;
		}
		*steps -= min_u64(*steps, to - from + 2);
		if (least > max)
			return max + 1;
	}
	return row[m];
}

static bool how_far(struct nearest *n, const char *name, size_t len, uint64_t *ret)
{
	uint64_t unequal = len > n->len ? len - n->len : n->len - len;
	unsigned max = n->len < MIN_CONTAINED ? 0
		       : n->len < 4	      ? 1
					      : (unsigned)min_u64(n->len / 4, MAX_CHANGES),
		 c;

	*ret = 0;
	if (is_end_of(n->want, n->len, name, len) || is_end_of(name, len, n->want, n->len))
		return true;
	if (max && unequal <= max) {
		c = changes(n->want, n->len, name, len, max, &n->steps);
		*ret = FAR_CHANGED + c;
		if (c <= max)
			return true;
	}
	*ret = FAR_CONTAINS + unequal;
	return n->len >= MIN_CONTAINED && memmem(name, len, n->want, n->len);
}

void nearest_try(struct nearest *n, const char *name, size_t len, uint64_t id)
{
	uint64_t far;
	size_t at;

	n->steps -= min_u64(n->steps, len + 1);
	if (!n->steps || !how_far(n, name, len, &far))
		return;
	at = n->n;
	while (at && n->best[at - 1].far > far)
		at--;
	if (at == NEAREST_MAX)
		return;
	if (n->n < NEAREST_MAX)
		n->n++;
	memmove(n->best + at + 1, n->best + at, (n->n - at - 1) * sizeof(*n->best));
	n->best[at].id = id;
	n->best[at].far = far;
}
