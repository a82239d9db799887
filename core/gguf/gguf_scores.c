/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns merges into scores, and proves that both join alike.
 *
 * Of all neighbours that are a pair of its merges, BPE joins the pair that comes first in their
 * list. Of all neighbours whose text is a token, llama.cpp's tokenizer joins those whose token has
 * the highest score. What joins a span into a token happens inside of it, so the last pair is the
 * same as for that text alone. Hence both go the same way if, for every token, the last pair that
 * llama.cpp joins is one of the merges, and between that merge and the token's first there are only
 * others that make the same token. The vocabularies that SentencePiece made are like that.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "gguf/gguf_tokens_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NEVER	  UINT32_MAX
#define MAX_CHARS 512 /* of a token */
#define MAX_WORK \
	((uint64_t)1 << 30) /* bytes and symbols looked at: no real vocabulary needs a tenth */

struct merge {
	uint32_t left, right, rank;
};

struct scoring {
	struct tokens *t;
	struct merge *merges; /* by left, right */
	uint32_t *makes;      /* by rank: the token */
	uint32_t *first;      /* by token: rank of the first merge that makes it, or NEVER */
	size_t n;
	uint64_t work;
	struct ckpt_err *e;
};

static void scoring_release(struct scoring *s)
{
	free(s->merges);
	free(s->makes);
	free(s->first);
}

/* In the vocabulary; NEVER: it is no token. */
static uint32_t find(const struct tokens *t, const char *s, size_t len)
{
	int64_t i = token_find(t, s, len);

	return i >= 0 && t->v[i].in_vocab ? (uint32_t)i : NEVER;
}

static int compare(const void *ap, const void *bp)
{
	const struct merge *a = ap, *b = bp;

	if (a->left != b->left)
		return a->left < b->left ? -1 : 1;
	return a->right < b->right ? -1 : a->right > b->right;
}

bool merge_texts(struct jval merge, struct merge_texts *ret)
{
	struct jval half[] = { jval_at(merge, 0), jval_at(merge, 1) };
	const char *s = jval_str(merge), *blank = s ? strchr(s, ' ') : NULL;

	for (int i = 0; i < 2; i++) {
		ret->s[i] = jval_str(half[i]);
		ret->len[i] = jval_len(half[i]);
	}
	if (blank)
		*ret = (struct merge_texts){ { s, blank + 1 },
					     { (size_t)(blank - s),
					       jval_len(merge) - (size_t)(blank + 1 - s) } };
	return (blank ? !strchr(blank + 1, ' ') : jval_size(merge) == 2) && ret->len[0] &&
	       ret->len[1];
}

static int bad_merge(const struct scoring *s, size_t i, const char *what)
{
	return err_set(s->e, EINVAL, "tokenizer.json: merge %zu %s", i, what);
}

static int read_merge(struct scoring *s, struct jval v, size_t i)
{
	struct merge *m = &s->merges[i];
	struct merge_texts t;
	char both[8 * MAX_CHARS];
	uint32_t made;

	if (!merge_texts(v, &t) || t.len[0] + t.len[1] > sizeof(both))
		return bad_merge(s, i, "is not a pair of tokens");
	memcpy(both, t.s[0], t.len[0]);
	memcpy(both + t.len[0], t.s[1], t.len[1]);
	*m = (struct merge){ find(s->t, t.s[0], t.len[0]), find(s->t, t.s[1], t.len[1]),
			     (uint32_t)i };
	made = find(s->t, both, t.len[0] + t.len[1]);
	if (m->left == NEVER || m->right == NEVER || made == NEVER)
		return bad_merge(s, i, "involves text that is not a token");
	s->makes[i] = made;
	if (s->first[made] == NEVER)
		s->first[made] = (uint32_t)i;
	return 0;
}

static int read_merges(struct scoring *s)
{
	struct jiter it = jiter(s->t->merges);
	int rc = 0;

	s->n = jval_size(s->t->merges);
	s->merges = calloc(s->n + 1, sizeof(*s->merges));
	s->makes = calloc(s->n + 1, sizeof(*s->makes));
	s->first = malloc((s->t->n + 1) * sizeof(*s->first));
	if (!s->merges || !s->makes || !s->first)
		return err_nomem(s->e);
	memset(s->first, 0xff, s->t->n * sizeof(*s->first));
	for (size_t i = 0; !rc && jiter_next(&it); i++)
		rc = read_merge(s, it.v, i);
	qsort(s->merges, s->n, sizeof(*s->merges), compare);
	for (size_t i = 1; !rc && i < s->n; i++) /* tokenizers use the last, we the first */
		if (!compare(&s->merges[i - 1], &s->merges[i]))
			rc = bad_merge(s, max_u64(s->merges[i - 1].rank, s->merges[i].rank),
				       "appears a second time");
	return rc;
}

/* ---- joining as llama.cpp does ---- */

struct symbol {
	const char *s;
	size_t len;
	uint32_t id;	/* NEVER: no token */
	uint32_t joint; /* with the next one; NEVER: no token */
};

static void look(struct scoring *s, struct symbol *x, size_t i, size_t n)
{
	x[i].joint = i + 1 < n ? find(s->t, x[i].s, x[i].len + x[i + 1].len) : NEVER;
	s->work += x[i].len + n;
}

/* Those that are joined next; n: none. Tokens that no merge makes come last. */
static size_t best(const struct scoring *s, const struct symbol *x, size_t n)
{
	size_t at = n;

	for (size_t i = 0; i + 1 < n; i++)
		if (x[i].joint != NEVER &&
		    (at == n || s->first[x[i].joint] < s->first[x[at].joint]))
			at = i;
	return at;
}

static bool is_merge(const struct scoring *s, uint32_t token, uint32_t left, uint32_t right)
{
	struct merge key = { left, right, 0 };
	const struct merge *m = bsearch(&key, s->merges, s->n, sizeof(key), compare);

	if (!m)
		return false;
	for (uint32_t r = s->first[token]; r <= m->rank; r++)
		if (s->makes[r] != token)
			return false;
	return true;
}

static int doubt(const struct scoring *s, const struct token *x)
{
	char shown[80];

	return err_set(s->e, ERR_UNSUPPORTED,
		       "tokenizer.json: llama.cpp would not build '%s' from these merges, so its "
		       "tokens may differ",
		       text_show(x->s, x->len, shown, sizeof(shown)));
}

static int split_chars(const struct scoring *s, const struct token *t, struct symbol *x,
		       size_t *ret)
{
	const char *p = t->s, *end = p + t->len;
	size_t n = 0;

	while (p < end) {
		const char *from = p;

		if (n == MAX_CHARS)
			return doubt(s, t);
		(void)text_next(&p, end);
		x[n++] = (struct symbol){ from, (size_t)(p - from),
					  find(s->t, from, (size_t)(p - from)), NEVER };
	}
	*ret = n;
	return 0;
}

static int prove(struct scoring *s, uint32_t token)
{
	const struct token *t = &s->t->v[token];
	uint32_t left = NEVER, right = NEVER;
	struct symbol x[MAX_CHARS];
	size_t n = 0, at;
	int rc = split_chars(s, t, x, &n);

	for (size_t i = 0; i < n; i++)
		look(s, x, i, n);
	while (!rc && (at = best(s, x, n)) < n) {
		left = x[at].id;
		right = x[at + 1].id;
		x[at].id = x[at].joint;
		x[at].len += x[at + 1].len;
		memmove(x + at + 1, x + at + 2, (n - at - 2) * sizeof(*x));
		n--;
		look(s, x, at, n);
		if (at)
			look(s, x, at - 1, n);
	}
	if (!rc && s->work > MAX_WORK)
		return tokens_wrong(s->e, "a token is too long");
	if (!rc && n == 1 && left != NEVER && !is_merge(s, token, left, right))
		rc = doubt(s, t);
	return rc;
}

/* ---- joining by merges ---- */

/* The rank of the merge of x[i] and x[i + 1], NEVER: there is none. */
static uint32_t rank_of(struct scoring *s, const struct symbol *x, size_t i, size_t n)
{
	struct merge key;
	const struct merge *m = NULL;

	s->work += n;
	if (i + 1 < n) {
		key = (struct merge){ x[i].id, x[i + 1].id, 0 };
		m = bsearch(&key, s->merges, s->n, sizeof(key), compare);
	}
	return m ? m->rank : NEVER;
}

/*
 * Where a whole word is a token, one side takes it and the other joins its characters: the results
 * must be equal. x[i].joint is the rank of its merge with the next one.
 */
static int prove_whole(struct scoring *s, uint32_t token)
{
	const struct token *t = &s->t->v[token];
	struct symbol x[MAX_CHARS];
	size_t n = 0;
	int rc = split_chars(s, t, x, &n);

	for (size_t i = 0; i < n; i++)
		x[i].joint = rank_of(s, x, i, n);
	while (!rc && n > 1) {
		size_t at = 0;

		for (size_t i = 1; i < n; i++)
			if (x[i].joint < x[at].joint)
				at = i;
		if (x[at].joint == NEVER)
			return doubt(s, t);
		x[at].id = s->makes[x[at].joint];
		memmove(x + at + 1, x + at + 2, (n - at - 2) * sizeof(*x));
		n--;
		x[at].joint = rank_of(s, x, at, n);
		if (at)
			x[at - 1].joint = rank_of(s, x, at - 1, n);
	}
	return !rc && s->work > MAX_WORK ? tokens_wrong(s->e, "a token is too long") : rc;
}

int tokens_score(struct tokens *t, struct ckpt_err *e)
{
	CLEANUP(scoring_release) struct scoring s = { .t = t, .e = e };
	int rc = read_merges(&s);

	for (uint32_t i = 0; !rc && (t->spm || t->prove_whole) && i < t->n; i++) {
		bool normal = t->v[i].s && t->v[i].type == TOKEN_NORMAL;
		uint32_t rank = s.first[i] == NEVER ? (uint32_t)s.n : s.first[i];

		t->v[i].score = -(float)rank;
		if (normal)
			rc = t->spm ? prove(&s, i) : prove_whole(&s, i);
	}
	return rc;
}
