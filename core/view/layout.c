/* SPDX-License-Identifier: Apache-2.0 */
#include "view/layout.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "view/layout_internal.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int layout_no_memory(struct err *e)
{
	return err_set(e, ENOMEM, "out of memory");
}

int layout_grow(void *array, size_t n, size_t *cap, size_t size)
{
	void **a = array;
	size_t more = *cap + *cap / 2 + 16;
	void *p;

	if (n < *cap)
		return 0;
	p = reallocarray(*a, more, size);
	if (!p)
		return -ENOMEM;
	*a = p;
	*cap = more;
	return 0;
}

bool layout_number(const char *s, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	if (!*s)
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return false;
		v = min_u64(v * 10 + (uint64_t)(*s - '0'), max + 1);
	}
	*ret = v;
	return true;
}

/* ---- pools ---- */

static int pool_compare(const void *ap, const void *bp)
{
	const struct pool_item *a = ap, *b = bp;

	if (a->len != b->len)
		return a->len < b->len ? -1 : 1;
	return memcmp(a->bytes, b->bytes, a->len);
}

uint32_t pool_find(const struct pool *p, const void *bytes, size_t len)
{
	const struct pool_item key = { .bytes = bytes, .len = len };
	struct pool_item *const *at = tfind(&key, &p->tree, pool_compare);

	return at ? (*at)->number : LAYOUT_NONE;
}

int pool_add(struct pool *p, const void *bytes, size_t len, uint32_t *ret)
{
	uint32_t number = pool_find(p, bytes, len);
	struct pool_item *item;

	if (number == LAYOUT_NONE) {
		if (layout_grow(&p->items, p->n, &p->cap, sizeof(struct pool_item *)))
			return -ENOMEM;
		item = malloc(sizeof(*item) + len + 1);
		if (!item)
			return -ENOMEM;
		memcpy(item->data, bytes, len);
		((char *)item->data)[len] = 0;
		*item = (struct pool_item){ item->data, len, (uint32_t)p->n };
		if (!tsearch(item, &p->tree, pool_compare)) {
			free(item);
			return -ENOMEM;
		}
		number = item->number;
		p->items[p->n++] = item;
	}
	*ret = number;
	return 0;
}

static void leave(void *item)
{
	(void)item;
}

void pool_release(struct pool *p)
{
	tdestroy(p->tree, leave);
	for (size_t i = 0; i < p->n; i++)
		free(p->items[i]);
	free(p->items);
}

/* ---- specs ---- */

/* In the pool: this, n_axes numbers of the mesh, n_dims of the shape if it is declared, placements. */
struct packed_spec {
	uint8_t n_axes, n, n_dims;
	bool has_shape, has_map;
	uint8_t unused[3];
	uint64_t numbers[];
};

int layout_add_spec(struct layout *l, const struct layout_spec *s, uint32_t *ret, struct err *e)
{
	uint64_t room[1 + MESH_MAX_AXES + MAX_DIMS + MESH_MAX_AXES] = { 0 };
	struct packed_spec *p = (struct packed_spec *)room;
	size_t n_shape = s->has_shape ? s->n_dims : 0;
	uint8_t *at = (uint8_t *)p->numbers;

	*p = (struct packed_spec){ s->n_axes, s->n, s->n_dims, s->has_shape, s->has_map, { 0 } };
	at = mempcpy(at, s->mesh, s->n_axes * sizeof(*s->mesh));
	at = mempcpy(at, s->shape, n_shape * sizeof(*s->shape));
	at = mempcpy(at, s->placements, s->n * sizeof(*s->placements));
	if (pool_add(&l->specs, room, (size_t)(at - (uint8_t *)room), ret))
		return layout_no_memory(e);
	return 0;
}

static const struct packed_spec *spec_of(const struct layout *l, uint32_t number)
{
	return l->specs.items[number]->bytes;
}

static struct sharding sharding_of(const struct packed_spec *p)
{
	size_t n_shape = p->has_shape ? p->n_dims : 0;

	return (struct sharding){ p->numbers,
				  (const struct placement *)(p->numbers + p->n_axes + n_shape),
				  p->n_axes, p->n };
}

/* ---- making one ---- */

struct layout *layout_new(const char *name)
{
	struct layout *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->name = strdup(name);
	if (!l->name) {
		free(l);
		return NULL;
	}
	return l;
}

static void unbind(struct layout *l)
{
	free(l->of_tensor);
	free(l->shapes);
	free(l->shape_at);
	free(l->unused);
	l->of_tensor = NULL;
	l->shapes = NULL;
	l->shape_at = NULL;
	l->unused = NULL;
	l->n_unused = 0;
}

void layout_free(struct layout *l)
{
	if (!l)
		return;
	unbind(l);
	pool_release(&l->specs);
	pool_release(&l->files);
	pool_release(&l->params);
	free(l->text);
	free(l->rules);
	free(l->ranks);
	free(l->entries);
	free(l->name);
	free(l);
}

static void layout_freep(struct layout **l)
{
	layout_free(*l);
}

static bool is_json(const char *text, size_t len)
{
	size_t i = 0;

	while (i < len && strchr(" \t\r\n", text[i]) && text[i])
		i++;
	return i < len && text[i] == '{';
}

int layout_parse(const char *text, size_t len, const char *name, struct layout **ret, struct err *e)
{
	CLEANUP(layout_freep) struct layout *l = layout_new(name);
	int rc;

	if (!l)
		return layout_no_memory(e);
	if (len > LAYOUT_MAX_FILE)
		return err_set(e, EFBIG, "%s: a layout of more than %zu MiB", name,
			       LAYOUT_MAX_FILE >> 20);
	rc = is_json(text, len) ? layout_add_json(l, text, len, name, e)
				: layout_add_text(l, text, len, e);
	if (!rc)
		rc = layout_done(l, e);
	if (rc)
		return rc;
	*ret = steal_ptr(&l);
	return 0;
}

static const char *file_of(const struct layout *l, const struct layout_rank *r)
{
	return l->files.items[r->file]->bytes;
}

static int by_number(const void *ap, const void *bp)
{
	const struct layout_rank *a = ap, *b = bp;

	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return a->first < b->first ? -1 : a->first > b->first;
}

int layout_done(struct layout *l, struct err *e)
{
	if (l->is_text)
		return 0;
	if (!l->n_ranks)
		return err_set(e, EINVAL, "%s: no rank is listed", l->name);
	qsort(l->ranks, l->n_ranks, sizeof(*l->ranks), by_number);
	for (size_t i = 1; i < l->n_ranks; i++) {
		const struct layout_rank *a = &l->ranks[i - 1], *b = &l->ranks[i];

		if (a->number == b->number && a->file == b->file)
			return err_set(e, EINVAL, "%s: rank %u is listed twice", file_of(l, a),
				       a->number);
		if (a->number == b->number)
			return err_set(e, EINVAL, "rank %u is listed in '%.150s' and in '%.150s'",
				       a->number, file_of(l, a), file_of(l, b));
	}
	return 0;
}

/* ---- binding ---- */

/* "'FQN' has shape [..]" for messages. */
static void describe(const struct layout_tensor *t, char *out, size_t cap)
{
	struct buf shape = BUF_INIT(4096);
	char fqn[128];

	buf_json_u64s(&shape, t->shape, t->n_dims);
	(void)snprintf(out, cap, "'%s' has shape %.120s",
		       text_show(t->fqn, t->fqn_len, fqn, sizeof(fqn)),
		       shape.data && !shape.err ? shape.data : "?");
	buf_release(&shape);
}

static int bind_shapes(struct layout *l, const struct layout_tensor *t, size_t n, struct err *e)
{
	size_t total = 0;

	for (size_t i = 0; i < n; i++)
		total += t[i].n_dims;
	l->of_tensor = calloc(n + 1, sizeof(*l->of_tensor));
	l->shape_at = calloc(n + 1, sizeof(*l->shape_at));
	l->shapes = calloc(total + 1, sizeof(*l->shapes));
	l->unused = calloc((l->is_text ? l->n_rules : l->params.n) + 1, sizeof(*l->unused));
	if (!l->of_tensor || !l->shape_at || !l->shapes || !l->unused)
		return layout_no_memory(e);
	for (size_t i = 0, at = 0; i < n; i++) {
		for (size_t d = 0; d < t[i].n_dims; d++)
			l->shapes[at++] = t[i].shape[d];
		l->shape_at[i + 1] = at;
	}
	return 0;
}

static bool rule_matches(const struct layout_rule *r, const char *fqn, size_t len)
{
	size_t glob_len;

	/* Most rules that do not match differ in their last letters. */
	if (len < r->tail || len < r->head || memcmp(r->glob, fqn, r->head) != 0)
		return false;
	if (r->tail) {
		glob_len = strlen(r->glob);
		if (memcmp(r->glob + glob_len - r->tail, fqn + len - r->tail, r->tail) != 0)
			return false;
	}
	return text_glob(r->glob, fqn, len);
}

static int check_rule(const struct layout *l, const struct layout_rule *r,
		      const struct layout_tensor *t, struct err *e)
{
	const struct sharding s = sharding_of(spec_of(l, r->spec));
	char what[300];

	for (size_t i = 0; i < s.n; i++) {
		if (placement_dim(&s.placements[i], t->n_dims) < t->n_dims)
			continue;
		describe(t, what, sizeof(what));
		return err_set(e, EINVAL, "%.100s:%u: %s and no dimension %d to split", l->name,
			       r->line, what, s.placements[i].dim);
	}
	return 0;
}

static int bind_rules(struct layout *l, const struct layout_tensor *t, size_t n, struct err *e)
{
	autofree bool *used = calloc(l->n_rules + 1, sizeof(*used));

	if (!used)
		return layout_no_memory(e);
	for (size_t i = 0; i < n; i++) {
		size_t r = 0;
		int rc;

		while (r < l->n_rules && !rule_matches(&l->rules[r], t[i].fqn, t[i].fqn_len))
			r++;
		l->of_tensor[i] = r < l->n_rules ? (uint32_t)r : LAYOUT_NONE;
		if (r == l->n_rules)
			continue;
		used[r] = true;
		rc = check_rule(l, &l->rules[r], &t[i], e);
		if (rc)
			return rc;
	}
	for (size_t r = 0; r < l->n_rules; r++) /* "*" is there for what may be left */
		if (!used[r] && strcmp(l->rules[r].glob, "*") != 0)
			l->unused[l->n_unused++] = (uint32_t)r;
	return 0;
}

/* The first dimension that an even split does not divide; parts is what all splits of it make. */
static size_t find_uneven(const struct sharding *s, const struct layout_tensor *t,
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

static int check_entry(const struct layout *l, const struct layout_rank *r,
		       const struct layout_entry *entry, const struct layout_tensor *t,
		       struct err *e)
{
	const struct packed_spec *p = spec_of(l, entry->spec);
	const struct sharding s = sharding_of(p);
	uint64_t off[MAX_DIMS], len[MAX_DIMS], parts;
	char what[300];
	size_t d;

	if (p->has_shape &&
	    (p->n_dims != t->n_dims || !box_equal(p->n_dims, p->numbers + p->n_axes, t->shape,
						  t->shape, p->numbers + p->n_axes))) {
		struct buf declared = BUF_INIT(4096);

		describe(t, what, sizeof(what));
		buf_json_u64s(&declared, p->numbers + p->n_axes, p->n_dims);
		(void)err_set(e, EINVAL, "%.60s: rank %u: %s, full_shape says %.90s", file_of(l, r),
			      r->number, what,
			      declared.data && !declared.err ? declared.data : "?");
		buf_release(&declared);
		return -EINVAL;
	}
	if (p->has_map && p->n_dims != t->n_dims) {
		describe(t, what, sizeof(what));
		return err_set(e, EINVAL, "%.60s: rank %u: %s, its tensor_map has %u entries",
			       file_of(l, r), r->number, what, p->n_dims);
	}
	if (shard_box(&s, entry->pos, t->n_dims, t->shape, off, len))
		return 0;
	d = find_uneven(&s, t, &parts);
	describe(t, what, sizeof(what));
	return err_set(e, EINVAL, "%.60s: rank %u: %s, %llu parts do not divide dimension %zu",
		       file_of(l, r), r->number, what, (unsigned long long)parts, d);
}

/* Every spec of every tensor once: ranks mostly say the same. */
static int check_ranks(const struct layout *l, const struct layout_tensor *t,
		       const uint32_t *tensor_of, struct err *e)
{
	autofree uint32_t *seen = malloc((l->params.n + 1) * sizeof(*seen));

	if (!seen)
		return layout_no_memory(e);
	memset(seen, 0xff, (l->params.n + 1) * sizeof(*seen)); /* LAYOUT_NONE */
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

static int bind_params(struct layout *l, const struct layout_tensor *t, size_t n, struct err *e)
{
	autofree uint32_t *tensor_of = malloc((l->params.n + 1) * sizeof(*tensor_of));

	if (!tensor_of)
		return layout_no_memory(e);
	memset(tensor_of, 0xff, (l->params.n + 1) * sizeof(*tensor_of)); /* LAYOUT_NONE */
	for (size_t i = 0; i < n; i++) {
		l->of_tensor[i] = pool_find(&l->params, t[i].fqn, t[i].fqn_len);
		if (l->of_tensor[i] != LAYOUT_NONE)
			tensor_of[l->of_tensor[i]] = (uint32_t)i;
	}
	for (size_t p = 0; p < l->params.n; p++)
		if (tensor_of[p] == LAYOUT_NONE)
			l->unused[l->n_unused++] = (uint32_t)p;
	return check_ranks(l, t, tensor_of, e);
}

int layout_bind(struct layout *l, const struct layout_tensor *t, size_t n, struct err *e)
{
	int rc;

	unbind(l);
	rc = bind_shapes(l, t, n, e);
	if (!rc)
		rc = l->is_text ? bind_rules(l, t, n, e) : bind_params(l, t, n, e);
	if (rc)
		unbind(l);
	return rc;
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
		const struct pool_item *p = l->params.items[l->unused[i]];

		(void)snprintf(out, cap, "%s: no tensor '%s' in the checkpoint", l->name,
			       text_show(p->bytes, p->len, what, sizeof(what)));
	}
	return true;
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
	struct sharding s = { 0 }; /* whole */
	uint32_t of = l->of_tensor[t];
	uint64_t pos = i;

	if (!l->is_text) {
		const struct layout_rank *r = &l->ranks[i];
		const struct layout_entry key = { .param = of }, *x;

		x = r->n ? bsearch(&key, l->entries + r->first, r->n, sizeof(key), by_param) : NULL;
		if (!x)
			return false;
		pos = x->pos;
		s = sharding_of(spec_of(l, x->spec));
	} else if (of != LAYOUT_NONE) {
		s = sharding_of(spec_of(l, l->rules[of].spec));
	}
	return shard_box(&s, pos, n_dims, shape, ret_off, ret_len);
}
