/* SPDX-License-Identifier: Apache-2.0 */
#include "format/part_names.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

bool part_parse(const char *name, const char *suffix, struct part *ret)
{
	static const char of[] = "-of-";
	size_t len = strlen(name), end = strlen(suffix), at;
	const char *s;

	if (len < end || strcmp(name + len - end, suffix) != 0)
		return false;
	end = len - end;
	while (end && is_digit(name[end - 1]))
		end--;
	if (end < strlen(of))
		return false;
	end -= strlen(of);
	for (at = end; at && is_digit(name[at - 1]);)
		at--;
	if (!at || name[at - 1] != '-')
		return false;
	*ret = (struct part){ .name = name, .stem = at - 1, .width = end - at };
	s = name + at;
	return text_take_number(&s, 9, &ret->number) && text_take(&s, of) &&
	       text_take_number(&s, 9, &ret->count) && !strcmp(s, suffix) &&
	       ret->number <= ret->count;
}

static int stem_cmp(const struct part *a, const struct part *b)
{
	int c = memcmp(a->name, b->name, min_u64(a->stem, b->stem));

	return c ? c : (a->stem > b->stem) - (a->stem < b->stem);
}

bool part_is_beside(const struct part *a, const struct part *b)
{
	return !stem_cmp(a, b);
}

/* The last place at which a word and a number follow each other. */
static bool find_rank(const char *name, const char *word, struct part_rank *ret)
{
	bool found = false;
	uint32_t number;

	for (const char *at = name; (at = strstr(at, word));) {
		const char *s;

		at += strlen(word);
		at += *at && strchr("-_.", *at) ? 1 : 0;
		s = at;
		if (!text_take_number(&s, 9, &number) || is_digit(*s))
			continue;
		*ret = (struct part_rank){ (size_t)(at - name), (size_t)(s - at), number };
		found = true;
	}
	return found;
}

bool part_rank_parse(const char *name, struct part_rank *ret)
{
	return find_rank(name, "rank", ret) ||
	       (!strncmp(name, "consolidated.", 13) && find_rank(name, "consolidated", ret));
}

bool part_is_of_ranks(const char *a, const char *b)
{
	struct part_rank x, y;

	return part_rank_parse(a, &x) && part_rank_parse(b, &y) && x.number != y.number &&
	       !(x.number && y.number) && x.at == y.at && !memcmp(a, b, x.at) &&
	       !strcmp(a + x.at + x.digits, b + y.at + y.digits);
}

static int by_part(const void *ap, const void *bp)
{
	const struct part *a = ap, *b = bp;
	int c = stem_cmp(a, b);

	c = c ? c : (a->count > b->count) - (a->count < b->count);
	return c ? c : (a->number > b->number) - (a->number < b->number);
}

/* Part k of the model that p belongs to is missing. */
static int refuse_gap(const struct part *p, uint32_t k, struct ckpt_err *e)
{
	return err_set(e, ENOENT,
		       "'%.*s-%0*u%.100s' is missing: the model is in %u files; add the file, or "
		       "name one of the others instead of the directory to read that alone",
		       (int)min_u64(p->stem, 100), p->name, (int)p->width, k,
		       p->name + p->stem + 1 + p->width, p->count);
}

int parts_check(struct part *v, size_t n, struct ckpt_err *e)
{
	size_t to;

	if (n)
		qsort(v, n, sizeof(*v), by_part);
	for (size_t i = 1; i < n; i++)
		if (v[i].count != v[i - 1].count && part_is_beside(&v[i - 1], &v[i]))
			return err_set(e, ENOTUNIQ,
				       "'%.100s' and '%.100s' are of two saves: move the files of "
				       "one of them out of the directory",
				       v[i - 1].name, v[i].name);
	for (size_t i = 0; i < n; i = to) {
		uint32_t next = v[i].number ? 1 : 0, end = v[i].count + next;

		for (to = i; to < n && v[to].count == v[i].count && part_is_beside(&v[i], &v[to]);
		     to++) {
			if (v[to].number > next)
				return refuse_gap(&v[i], next, e);
			next = v[to].number + 1;
		}
		if (next < end)
			return refuse_gap(&v[i], next, e);
	}
	return 0;
}
