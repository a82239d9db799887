/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/layout.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "layout/layout_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making one ---- */

struct layout *layout_new(const char *name)
{
	struct layout *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->name = strdup(name);
	l->specs = pk_strings_new(LAYOUT_MAX_INTERNED);
	l->files = pk_strings_new(LAYOUT_MAX_INTERNED);
	l->params = pk_strings_new(LAYOUT_MAX_INTERNED);
	if (!l->name || !l->specs || !l->files || !l->params) {
		layout_free(l);
		return NULL;
	}
	return l;
}

void layout_unbind(struct layout *l)
{
	free(l->of_tensor);
	free(l->tensor_of);
	free(l->shapes);
	free(l->shape_at);
	free(l->unused);
	l->of_tensor = NULL;
	l->tensor_of = NULL;
	l->shapes = NULL;
	l->shape_at = NULL;
	l->unused = NULL;
	l->n_unused = 0;
}

void layout_free(struct layout *l)
{
	if (!l)
		return;
	layout_unbind(l);
	pk_strings_free(l->specs);
	pk_strings_free(l->files);
	pk_strings_free(l->params);
	free(l->text);
	free(l->rules);
	free(l->ranks);
	free(l->entries);
	free(l->name);
	free(l);
}

CLEANUP_POINTER(layout_freep, struct layout, layout_free)

static bool is_json(const char *text, size_t len)
{
	size_t i = 0;

	while (i < len && strchr(" \t\r\n", text[i]) && text[i])
		i++;
	return i < len && text[i] == '{';
}

int layout_parse(char *text, size_t len, const char *name, struct layout **ret, struct ckpt_err *e)
{
	CLEANUP(layout_freep) struct layout *l = layout_new(name);
	int rc;

	if (!l)
		return err_nomem(e);
	if (len > LAYOUT_MAX_FILE)
		return err_set(e, EFBIG, "%s: a layout of more than %zu MiB", name,
			       LAYOUT_MAX_FILE >> 20);
	digest_add(&l->digest, text, len);
	rc = is_json(text, len) ? layout_add_json(l, text, len, name, e)
				: layout_add_text(l, text, len, e);
	if (!rc)
		rc = layout_done(l, e);
	if (rc)
		return rc;
	*ret = steal_ptr(&l);
	return 0;
}

const struct digest *layout_digest(const struct layout *l)
{
	return &l->digest;
}

const char *layout_file(const struct layout *l, const struct layout_rank *r)
{
	return pk_string(l->files, r->file)->data;
}

static int by_number(const void *ap, const void *bp)
{
	const struct layout_rank *a = ap, *b = bp;

	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return a->first < b->first ? -1 : a->first > b->first;
}

int layout_done(struct layout *l, struct ckpt_err *e)
{
	if (l->is_text)
		return 0;
	if (!l->n_ranks)
		return err_set(e, EINVAL, "%s: no rank is listed", l->name);
	qsort(l->ranks, l->n_ranks, sizeof(*l->ranks), by_number);
	for (size_t i = 1; i < l->n_ranks; i++) {
		const struct layout_rank *a = &l->ranks[i - 1], *b = &l->ranks[i];

		if (a->number == b->number && a->file == b->file)
			return err_set(e, EINVAL, "%s: rank %u is listed twice", layout_file(l, a),
				       a->number);
		if (a->number == b->number)
			return err_set(e, EINVAL, "rank %u is listed in '%.150s' and in '%.150s'",
				       a->number, layout_file(l, a), layout_file(l, b));
	}
	return 0;
}

/* ---- asking ---- */

size_t layout_ranks(const struct layout *l)
{
	return l->is_text ? (size_t)l->mesh_ranks : l->n_ranks;
}

uint64_t layout_rank(const struct layout *l, size_t i)
{
	return l->is_text ? i : l->ranks[i].number;
}

static int by_param(const void *ap, const void *bp)
{
	const struct layout_entry *a = ap, *b = bp;

	return a->param < b->param ? -1 : a->param > b->param;
}

bool layout_box(const struct layout *l, size_t i, size_t t, uint64_t *ret_off, uint64_t *ret_len)
{
	size_t n_dims = l->shape_at[t + 1] - l->shape_at[t];
	const uint64_t *shape = l->shapes + l->shape_at[t];
	struct ckpt_sharding s = { 0 }; /* whole */
	uint32_t of = l->of_tensor[t];
	uint64_t pos = i;

	if (!l->is_text) {
		const struct layout_rank *r = &l->ranks[i];
		const struct layout_entry key = { .param = of }, *x;

		x = r->n ? bsearch(&key, l->entries + r->first, r->n, sizeof(key), by_param) : NULL;
		if (!x)
			return false;
		pos = x->pos;
		s = layout_sharding(layout_packed(l, x->spec));
	} else if (of != LAYOUT_NONE) {
		s = layout_sharding(layout_packed(l, l->rules[of].spec));
	}
	return shard_box(&s, pos, n_dims, shape, ret_off, ret_len);
}

static int by_value(const void *ap, const void *bp)
{
	uint32_t a = *(const uint32_t *)ap, b = *(const uint32_t *)bp;

	return a < b ? -1 : a > b;
}

size_t layout_held(const struct layout *l, size_t i, uint32_t *ret)
{
	const struct layout_rank *r = &l->ranks[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	size_t n = 0;

	for (uint32_t k = r->first; k < r->first + r->n; k++) {
		uint32_t t = l->tensor_of[l->entries[k].param];

		if (t != LAYOUT_NONE && layout_box(l, i, t, off, len))
			ret[n++] = t;
	}
	if (n)
		qsort(ret, n, sizeof(*ret), by_value);
	return n;
}

bool layout_unused(const struct layout *l, size_t i, char *out, size_t cap)
{
	char what[160];

	if (i >= l->n_unused)
		return false;
	if (l->is_text) {
		const struct layout_rule *r = &l->rules[l->unused[i]];

		(void)snprintf(out, cap, "%s:%u: no tensor for '%s'", l->name, r->line,
			       text_show(r->glob, strlen(r->glob), what, sizeof(what)));
	} else {
		const struct pk_str *p = pk_string(l->params, l->unused[i]);

		(void)snprintf(out, cap, "%s: no tensor '%s' in the checkpoint", l->name,
			       text_show(p->data, p->len, what, sizeof(what)));
	}
	return true;
}

bool layout_holds_all(const struct layout *l)
{
	return l->is_text;
}
