/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_util - inputs of recipes for tests: stored tensors that have only names and shapes, and
 * facts from a list.
 */
#ifndef TESTS_RECIPE_UTIL_H
#define TESTS_RECIPE_UTIL_H

#include "base/err.h"
#include "model/dtype.h"
#include "recipe/recipe.h"

#include <stdio.h>
#include <string.h>

enum { STORE_CAP = 4096, STORE_DIMS = 4 };

struct stored {
	char name[160];
	size_t n_dims;
	uint64_t shape[STORE_DIMS];
};

struct fact {
	enum recipe_from from;
	const char *key;
	uint64_t value;
};

struct store {
	struct namelist names; /* after store_finish */
	struct recipe_source sources[STORE_CAP];
	struct stored tensors[STORE_CAP]; /* by their number in the catalog */
	uint32_t n;
	const struct fact *facts; /* the last one has no key */
	struct recipe_facts of;
	char warning[600];
};

static inline void store_add(struct store *s, const char *name, size_t n_dims,
			     const uint64_t *shape)
{
	struct stored *t = &s->tensors[s->n++];

	(void)snprintf(t->name, sizeof(t->name), "%s", name);
	t->n_dims = n_dims;
	for (size_t i = 0; i < n_dims; i++)
		t->shape[i] = shape[i];
}

static inline void store_name(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct store *s = arg;

	*ret = s->tensors[index].name;
	*ret_len = strlen(*ret);
}

static inline int store_number(void *arg, enum recipe_from from, const char *key, uint64_t *ret,
			       struct ckpt_err *e)
{
	const struct store *s = arg;

	for (const struct fact *f = s->facts; f && f->key; f++)
		if (f->from == from && !strcmp(f->key, key)) {
			*ret = f->value;
			return f->value == UINT64_MAX ? err_set(e, EINVAL, "'%s' is odd", key) : 0;
		}
	return 1;
}

/* Texts are facts whose key is "KEY=TEXT". */
static inline const char *store_text(void *arg, enum recipe_from from, const char *key)
{
	const struct store *s = arg;
	size_t n = strlen(key);

	for (const struct fact *f = s->facts; f && f->key; f++)
		if (f->from == from && !strncmp(f->key, key, n) && f->key[n] == '=')
			return f->key + n + 1;
	return NULL;
}

static inline void store_warn(void *arg, const char *what)
{
	struct store *s = arg;

	(void)snprintf(s->warning, sizeof(s->warning), "%s", what);
}

/* Returns 0, or an error of namelist. */
static inline int store_finish(struct store *s, struct ckpt_err *e)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < s->n; i++) {
		const struct stored *t = &s->tensors[i];

		s->sources[i] = (struct recipe_source){ t->shape, i, CKPT_DTYPE_BF16,
							CKPT_DTYPE_BF16, (uint8_t)t->n_dims };
		rc = namelist_add(&s->names, t->name, strlen(t->name), i, e);
	}
	s->of = (struct recipe_facts){ { true, false }, store_number, store_text, s };
	return rc ? rc : namelist_finish(&s->names, store_name, s, e);
}

static inline int store_apply(struct store *s, const struct recipe *r, struct recipe_out *ret,
			      struct ckpt_err *e)
{
	struct recipe_in in = { &s->names, s->sources, &s->of, store_warn, s, NULL };

	s->warning[0] = 0;
	return recipe_apply(r, &in, ret, e);
}

#endif
