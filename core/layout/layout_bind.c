/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_bind - applies a layout to the tensors of a checkpoint.
 */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "layout/layout_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *show_shape(size_t n, const uint64_t *shape, char *out, size_t cap)
{
	struct buf b = BUF_INIT(4096);

	buf_json_u64s(&b, shape, n);
	(void)snprintf(out, cap, "%s", b.data && !b.err ? b.data : "?");
	buf_release(&b);
	return out;
}

static const char *describe(const struct layout_tensor *t, char *out, size_t cap)
{
	char fqn[128], shape[90];

	(void)snprintf(out, cap, "'%s' of shape %s",
		       text_show(t->fqn, t->fqn_len, fqn, sizeof(fqn)),
		       show_shape(t->n_dims, t->shape, shape, sizeof(shape)));
	return out;
}

static int bind_shapes(struct layout *l, const struct layout_tensor *t, size_t n,
		       struct ckpt_err *e)
{
	size_t total = 0;

	for (size_t i = 0; i < n; i++)
		total += t[i].n_dims;
	l->of_tensor = calloc(n + 1, sizeof(*l->of_tensor));
	l->shape_at = calloc(n + 1, sizeof(*l->shape_at));
	l->shapes = calloc(total + 1, sizeof(*l->shapes));
	l->unused = calloc((l->is_text ? l->n_rules : pk_strings_count(l->params)) + 1,
			   sizeof(*l->unused));
	if (!l->of_tensor || !l->shape_at || !l->shapes || !l->unused)
		return err_nomem(e);
	for (size_t i = 0, at = 0; i < n; i++) {
		for (size_t d = 0; d < t[i].n_dims; d++)
			l->shapes[at++] = t[i].shape[d];
		l->shape_at[i + 1] = at;
	}
	return 0;
}

/*
 * The rules in two heaps: plain names, each with the first rule for it, and globs. So a layout with
 * a line for each tensor takes no longer to bind than to read.
 */
struct rules {
	const struct layout *l;
	struct pk_strings *names;
	uint32_t *of_name, *globs;
	size_t n_globs;
	uint64_t steps; /* left, of TEXT_GLOB_STEPS */
};

static void rules_release(struct rules *r)
{
	pk_strings_free(r->names);
	free(r->of_name);
	free(r->globs);
}

/* The name that a glob without wildcards stands for: its length, else SIZE_MAX. */
static size_t plain_name(const char *glob, char *ret)
{
	size_t n = 0;

	for (const char *p = glob; *p; p++) {
		if (strchr("*?[", *p))
			return SIZE_MAX;
		if (*p == '\\' && p[1])
			p++;
		ret[n++] = *p;
	}
	return n;
}

static int sort_rules(struct rules *r, struct ckpt_err *e)
{
	const struct layout *l = r->l;

	r->names = pk_strings_new(LAYOUT_MAX_INTERNED);
	r->of_name = calloc(l->n_rules + 1, sizeof(*r->of_name));
	r->globs = calloc(l->n_rules + 1, sizeof(*r->globs));
	if (!r->names || !r->of_name || !r->globs)
		return err_nomem(e);
	for (uint32_t i = 0; i < l->n_rules; i++) {
		const char *glob = l->rules[i].glob;
		autofree char *name = malloc(strlen(glob) + 1);
		size_t len = name ? plain_name(glob, name) : 0, before = pk_strings_count(r->names);
		uint32_t number;

		if (!name)
			return err_nomem(e);
		if (len == SIZE_MAX) {
			r->globs[r->n_globs++] = i;
			continue;
		}
		if (layout_intern(r->names, name, len, &number, e))
			return layout_in_file(-e->code, e, l->name);
		if (number == before)
			r->of_name[number] = i;
	}
	return 0;
}

/* The first rule that matches, or n_rules. */
static size_t find_rule(struct rules *r, const char *fqn, size_t len)
{
	uint32_t name = layout_find(r->names, fqn, len);
	size_t first = name == LAYOUT_NONE ? r->l->n_rules : r->of_name[name];
	uint64_t pairs = 0;

	for (size_t i = 1; i < len; i++)
		pairs |= layout_pair(fqn[i - 1], fqn[i]);
	for (size_t i = 0; i < r->n_globs && r->globs[i] < first && r->steps; i++) {
		const struct layout_rule *rule = &r->l->rules[r->globs[i]];

		r->steps--;
		if (!(rule->pairs & ~pairs) && text_glob_within(rule->glob, fqn, len, &r->steps))
			return r->globs[i];
	}
	return first;
}

static int check_rule(const struct layout *l, const struct layout_rule *r,
		      const struct layout_tensor *t, struct ckpt_err *e)
{
	const struct ckpt_sharding s = layout_sharding(layout_packed(l, r->spec));
	char what[300];

	for (size_t i = 0; i < s.n; i++) {
		if (placement_dim(&s.placements[i], t->n_dims) < t->n_dims)
			continue;
		return err_set(e, EINVAL, "%.100s:%u: %s has no dimension %d to split", l->name,
			       r->line, describe(t, what, sizeof(what)), s.placements[i].dim);
	}
	return 0;
}

static int bind_rules(struct layout *l, const struct layout_tensor *t, size_t n, struct ckpt_err *e)
{
	autofree bool *used = calloc(l->n_rules + 1, sizeof(*used));
	struct rules rules CLEANUP(rules_release) = { .l = l, .steps = TEXT_GLOB_STEPS };
	int rc = used ? sort_rules(&rules, e) : err_nomem(e);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		size_t r = find_rule(&rules, t[i].fqn, t[i].fqn_len);

		if (text_glob_check(rules.steps, l->name, e))
			return -e->code;
		l->of_tensor[i] = r < l->n_rules ? (uint32_t)r : LAYOUT_NONE;
		if (r == l->n_rules)
			continue;
		used[r] = true;
		rc = check_rule(l, &l->rules[r], &t[i], e);
		if (rc)
			return rc;
	}
	for (size_t r = 0; r < l->n_rules; r++) /* "*" covers the rest, if any */
		if (!used[r] && strcmp(l->rules[r].glob, "*") != 0)
			l->unused[l->n_unused++] = (uint32_t)r;
	return 0;
}

/* The first dimension that an even split does not divide; parts is the product of all its
 * splits. */
static size_t find_uneven(const struct ckpt_sharding *s, const struct layout_tensor *t,
			  uint64_t *ret_parts)
{
	for (size_t d = 0; d < t->n_dims; d++) {
		*ret_parts = 1;
		for (size_t i = 0; i < s->n; i++)
			if (placement_dim(&s->placements[i], t->n_dims) == d)
				*ret_parts *= s->mesh[s->placements[i].axis];
		if (t->shape[d] % *ret_parts)
			return d;
	}
	return 0;
}

static bool has_shape(const struct layout_tensor *t, size_t n_dims, const uint64_t *shape)
{
	for (size_t d = 0; d < n_dims && d < t->n_dims; d++)
		if (t->shape[d] != shape[d])
			return false;
	return n_dims == t->n_dims;
}

static int check_entry(const struct layout *l, const struct layout_rank *r,
		       const struct layout_entry *entry, const struct layout_tensor *t,
		       struct ckpt_err *e)
{
	const struct layout_packed *p = layout_packed(l, entry->spec);
	const struct ckpt_sharding s = layout_sharding(p);
	const uint64_t *declared = p->numbers + p->n_axes;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], parts = 1;
	char shape[90], why[150], what[300];
	const char *file;
	size_t d;

	if (p->has_shape && !has_shape(t, p->n_dims, declared)) {
		(void)snprintf(why, sizeof(why), "full_shape is %s",
			       show_shape(p->n_dims, declared, shape, sizeof(shape)));
	} else if (p->has_map && p->n_dims != t->n_dims) {
		(void)snprintf(why, sizeof(why), "tensor_map has %u entries", p->n_dims);
	} else if (!shard_box(&s, entry->pos, t->n_dims, t->shape, off, len)) {
		d = find_uneven(&s, t, &parts);
		(void)snprintf(why, sizeof(why),
			       "dimension %zu cannot be divided into %llu equal parts", d,
			       (unsigned long long)parts);
	} else {
		return 0;
	}
	file = layout_file(l, r);
	if (strlen(file) > 60) /* the end identifies it */
		file += strlen(file) - 60;
	return err_set(e, EINVAL, "%s: rank %u: %s: %s", file, r->number,
		       describe(t, what, sizeof(what)), why);
}

/* Checks each spec of each tensor once: ranks mostly have the same. */
static int check_ranks(const struct layout *l, const struct layout_tensor *t,
		       const uint32_t *tensor_of, struct ckpt_err *e)
{
	autofree uint32_t *seen = malloc((pk_strings_count(l->params) + 1) * sizeof(*seen));

	if (!seen)
		return err_nomem(e);
	memset(seen, 0xff, (pk_strings_count(l->params) + 1) * sizeof(*seen)); /* LAYOUT_NONE */
	for (size_t i = 0; i < l->n_ranks; i++) {
		const struct layout_rank *r = &l->ranks[i];

		for (uint32_t k = r->first; k < r->first + r->n; k++) {
			const struct layout_entry *x = &l->entries[k];
			uint32_t at = tensor_of[x->param];
			int rc;

			if (at == LAYOUT_NONE || seen[x->param] == x->spec)
				continue;
			seen[x->param] = x->spec;
			rc = check_entry(l, r, x, &t[at], e);
			if (rc)
				return rc;
		}
	}
	return 0;
}

static int bind_params(struct layout *l, const struct layout_tensor *t, size_t n,
		       struct ckpt_err *e)
{
	uint32_t *tensor_of = l->tensor_of =
		malloc((pk_strings_count(l->params) + 1) * sizeof(*tensor_of));

	if (!tensor_of)
		return err_nomem(e);
	memset(tensor_of, 0xff,
	       (pk_strings_count(l->params) + 1) * sizeof(*tensor_of)); /* LAYOUT_NONE */
	for (size_t i = 0; i < n; i++) {
		l->of_tensor[i] = layout_find(l->params, t[i].fqn, t[i].fqn_len);
		if (l->of_tensor[i] != LAYOUT_NONE)
			tensor_of[l->of_tensor[i]] = (uint32_t)i;
	}
	for (size_t p = 0; p < pk_strings_count(l->params); p++)
		if (tensor_of[p] == LAYOUT_NONE)
			l->unused[l->n_unused++] = (uint32_t)p;
	return check_ranks(l, t, tensor_of, e);
}

int layout_bind(struct layout *l, const struct layout_tensor *t, size_t n, struct ckpt_err *e)
{
	int rc;

	layout_unbind(l);
	rc = bind_shapes(l, t, n, e);
	if (!rc)
		rc = l->is_text ? bind_rules(l, t, n, e) : bind_params(l, t, n, e);
	if (rc)
		layout_unbind(l);
	return rc;
}
