/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores out of merges, and the proof that they do.
 *
 * BPE joins, of all neighbours that are a pair of its merges, the pair that comes first among
 * them. llama.cpp's tokenizer joins, of all neighbours whose text is a token, those whose token has
 * the highest score. What joins a span into a token happens inside of it, so the last pair is the
 * same as for that text alone. Hence: when for every token the last pair that llama.cpp joins is
 * one of the merges, and between that merge and the token's first there are only others that make
 * the same token, both go the same way. The vocabularies that SentencePiece made are like that.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "view/gguf_tokens_internal.h"

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
	const json_t *id = json_object_getn(t->vocab, s, len);

	return id ? (uint32_t)json_integer_value(id) : NEVER; /* read_vocab has seen it */
}

static int compare(const void *ap, const void *bp)
{
	const struct merge *a = ap, *b = bp;

	if (a->left != b->left)
		return a->left < b->left ? -1 : 1;
	return a->right < b->right ? -1 : a->right > b->right;
}

/* The two texts of a merge, in either form. */
static bool read_pair(const json_t *m, const char **left, size_t *left_len, const char **right,
		      size_t *right_len)
{
	const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
	const char *blank;

	if (json_is_string(m)) {
		*left = json_string_value(m);
		blank = strchr(*left, ' ');
		if (!blank)
			return false;
		*left_len = (size_t)(blank - *left);
		*right = blank + 1;
		*right_len = json_string_length(m) - *left_len - 1;
		return true;
	}
	if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b))
		return false;
	*left = json_string_value(a);
	*left_len = json_string_length(a);
	*right = json_string_value(b);
	*right_len = json_string_length(b);
	return true;
}

static int read_merge(struct scoring *s, size_t i)
{
	const char *left, *right;
	size_t left_len, right_len;
	struct merge *m = &s->merges[i];
	char both[8 * MAX_CHARS];
	uint32_t made;

	if (!read_pair(json_array_get(s->t->merges, i), &left, &left_len, &right, &right_len) ||
	    left_len + right_len > sizeof(both))
		return tokens_wrong(s->e, "a merge is no pair of tokens");
	memcpy(both, left, left_len);
	memcpy(both + left_len, right, right_len);
	*m = (struct merge){ find(s->t, left, left_len), find(s->t, right, right_len),
			     (uint32_t)i };
	made = find(s->t, both, left_len + right_len);
	if (m->left == NEVER || m->right == NEVER || made == NEVER)
		return tokens_wrong(s->e, "a merge is of or makes what is no token");
	s->makes[i] = made;
	if (s->first[made] == NEVER)
		s->first[made] = (uint32_t)i;
	return 0;
}

static int read_merges(struct scoring *s)
{
	int rc = 0;

	s->n = json_array_size(s->t->merges);
	if (s->n >= NEVER)
		return tokens_wrong(s->e, "too many merges");
	s->merges = calloc(s->n + 1, sizeof(*s->merges));
	s->makes = calloc(s->n + 1, sizeof(*s->makes));
	s->first = malloc((s->t->n + 1) * sizeof(*s->first));
	if (!s->merges || !s->makes || !s->first)
		return err_set(s->e, ENOMEM, "out of memory");
	memset(s->first, 0xff, s->t->n * sizeof(*s->first));
	for (size_t i = 0; !rc && i < s->n; i++)
		rc = read_merge(s, i);
	qsort(s->merges, s->n, sizeof(*s->merges), compare);
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

	if (!m || m->rank < s->first[token])
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
		       "tokenizer.json: llama.cpp would not come to '%s' by the merges, so it is "
		       "not known to make the same tokens",
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
		return tokens_wrong(s->e, "tokens that are too long");
	if (!rc && n == 1 && left != NEVER && !is_merge(s, token, left, right))
		rc = doubt(s, t);
	return rc;
}

int tokens_score(struct tokens *t, struct ckpt_err *e)
{
	CLEANUP(scoring_release) struct scoring s = { .t = t, .e = e };
	int rc = read_merges(&s);

	for (uint32_t i = 0; !rc && i < t->n; i++) {
		uint32_t rank = s.first[i] == NEVER ? (uint32_t)s.n : s.first[i];

		t->v[i].score = -(float)rank;
		if (t->v[i].s && t->v[i].type == TOKEN_NORMAL)
			rc = prove(&s, i);
	}
	return rc;
}
