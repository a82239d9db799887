/* SPDX-License-Identifier: Apache-2.0 */
#include "save/dedup.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/dtype.h"
#include "save/idtable.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- weights ---- */

static bool contains(const char *s, size_t n, const char *word)
{
	size_t len = strlen(word);

	for (size_t i = 0; i + len <= n; i++)
		if (!strncasecmp(s + i, word, len))
			return true;
	return false;
}

unsigned hp_element_weight(enum dedup_rule rule, const char *dtype, size_t len)
{
	static const struct {
		const char *word;
		uint8_t weight;
		bool newer;
	} rows[] = {
		{ "int32", 4, false },	 { "int64", 8, false },	  { "float16", 2, false },
		{ "float32", 4, false }, { "float64", 8, false }, { "int8", 1, true },
		{ "int16", 2, true },	 { "bool", 1, true },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if ((!rows[i].newer || rule == DEDUP_HYPERPARALLEL_B) &&
		    contains(dtype, len, rows[i].word))
			return rows[i].weight;
	return 4;
}

/* The weight of an item when work is distributed. */
static int weight_of(const struct ckpt_write_item *w, enum dedup_rule rule, uint64_t *ret,
		     struct ckpt_err *e)
{
	const char *dtype;
	uint64_t v = 0;
	int rc = 0;

	if (w->type != CKPT_WRITE_BYTE_IO && rule == DEDUP_DCP) {
		rc = write_item_tensor_bytes(w, &v, e);
	} else if (w->type != CKPT_WRITE_BYTE_IO) {
		dtype = dtype_info(w->props.dtype)->name;
		if (!box_volume(w->index.n_dims, w->chunk.len, &v) ||
		    ckd_mul(&v, v, hp_element_weight(rule, dtype, strlen(dtype))))
			rc = err_set(e, EINVAL, "'%s': more than 2^63 - 1 bytes",
				     FQN_TEXT(w->index.fqn, w->index.fqn_len));
	}
	if (!rc)
		*ret = v ? v : 1;
	return rc;
}

/* Saturates: sums of weights need not be exact to be compared, but must not wrap. */
static uint64_t sum(uint64_t a, uint64_t b)
{
	uint64_t v;

	return ckd_add(&v, a, b) ? UINT64_MAX : v;
}

/* ---- duplicates ---- */

struct offer {				    /* an index that plans offer */
	const struct ckpt_write_item *item; /* the last one: torch uses its size */
	uint64_t weight;
	size_t first, count; /* its plans, in offers.plans */
	uint32_t owner, last;
};

struct offers {
	struct idtable ids;
	struct offer *list;
	uint32_t *id_of; /* for each item */
	uint32_t *plans; /* ascending */
	uint32_t *order;
};

static void offers_release(struct offers *o)
{
	idtable_release(&o->ids);
	free(o->list);
	free(o->id_of);
	free(o->plans);
	free(o->order);
}

struct same_item {
	const struct offer *list;
	const struct ckpt_meta_index *index;
};

static bool is_same_item(const void *arg, uint32_t id)
{
	const struct same_item *s = arg;

	return meta_index_equal(&s->list[id].item->index, s->index);
}

/*
 * Whole tensors with the same name are treated as copies, whatever they contain, as in torch.
 * Shards that begin at the same offset but differ in size cannot be copies: dropping one would lose
 * elements.
 */
static int check_copies(const struct ckpt_write_item *a, const struct ckpt_write_item *b,
			struct ckpt_err *e)
{
	size_t n = a->index.n_dims;

	if (a->type == CKPT_WRITE_BYTE_IO || b->type == CKPT_WRITE_BYTE_IO ||
	    (a->type == CKPT_WRITE_TENSOR && b->type == CKPT_WRITE_TENSOR) ||
	    dims_equal(n, a->chunk.len, b->chunk.len))
		return 0;
	return err_set(e, EINVAL, "'%s': the shards at %s are of %s and %s",
		       FQN_TEXT(a->index.fqn, a->index.fqn_len), TUPLE_TEXT(a->index.offset, n),
		       TUPLE_TEXT(a->chunk.len, n), TUPLE_TEXT(b->chunk.len, n));
}

/* Numbers the indexes and counts their plans. */
static int collect(const struct ckpt_save_plan *plans, size_t n, struct offers *o,
		   struct ckpt_err *e)
{
	size_t k = 0;

	for (size_t p = 0; p < n; p++)
		for (size_t i = 0; i < plans[p].n_items; i++) {
			const struct ckpt_write_item *w = &plans[p].items[i];
			struct same_item s = { o->list, &w->index };
			uint64_t hash = meta_index_hash(&w->index);
			uint32_t *id = idtable_find(&o->ids, hash, is_same_item, &s);
			struct offer *f;

			if (*id == IDTABLE_NONE) {
				(void)idtable_add(&o->ids, id, hash);
				o->list[*id] = (struct offer){ .item = w, .last = UINT32_MAX };
			}
			f = &o->list[*id];
			if (check_copies(f->item, w, e))
				return -e->code;
			f->item = w;
			f->count += f->last != p;
			f->last = (uint32_t)p;
			o->id_of[k++] = *id;
		}
	return 0;
}

/* Lists the plans that offer each index. */
static void list_plans(const struct ckpt_save_plan *plans, size_t n, struct offers *o)
{
	size_t at = 0, k = 0;

	for (uint32_t id = 0; id < o->ids.count; id++) {
		o->list[id].first = at;
		at += o->list[id].count;
		o->list[id].count = 0;
		o->list[id].last = UINT32_MAX;
	}
	for (size_t p = 0; p < n; p++)
		for (size_t i = 0; i < plans[p].n_items; i++) {
			struct offer *f = &o->list[o->id_of[k++]];

			if (f->last != p)
				o->plans[f->first + f->count++] = (uint32_t)p;
			f->last = (uint32_t)p;
		}
}

static uint32_t choose(const struct offers *o, const struct offer *f, const uint64_t *load,
		       bool to_lowest)
{
	const uint32_t *plans = o->plans + f->first;
	uint32_t best = plans[0];

	for (size_t i = 1; i < f->count && !to_lowest; i++)
		if (load[plans[i]] < load[best])
			best = plans[i];
	return best;
}

static int larger_first(const void *ap, const void *bp, void *arg)
{
	const struct offer *list = arg;
	uint32_t a = *(const uint32_t *)ap, b = *(const uint32_t *)bp;

	if (list[a].weight != list[b].weight)
		return list[a].weight > list[b].weight ? -1 : 1;
	return a < b ? -1 : a > b;
}

/* Sets the order in which owners are chosen. */
static void set_order(struct offers *o, enum dedup_rule rule, bool to_lowest)
{
	uint32_t n = o->ids.count, at = 0;

	for (int shared = 0; shared < 2; shared++)
		for (uint32_t id = 0; id < n; id++)
			if (rule == DEDUP_DCP ? !shared : (o->list[id].count > 1) == shared)
				o->order[at++] = id;
	at = 0;
	while (rule != DEDUP_DCP && at < n && o->list[o->order[at]].count == 1)
		at++;
	if (rule == DEDUP_HYPERPARALLEL_B && !to_lowest)
		qsort_r(o->order + at, n - at, sizeof(*o->order), larger_first, o->list);
}

static bool offers_init(struct offers *o, size_t total)
{
	*o = (struct offers){ 0 };
	if (!idtable_init(&o->ids, total))
		return false;
	o->list = calloc(total + 1, sizeof(*o->list));
	o->id_of = malloc((total + 1) * sizeof(*o->id_of));
	o->plans = malloc((total + 1) * sizeof(*o->plans));
	o->order = malloc((total + 1) * sizeof(*o->order));
	return o->list && o->id_of && o->plans && o->order;
}

static int choose_owners(struct offers *o, size_t n_plans, enum dedup_rule rule, bool to_lowest,
			 struct ckpt_err *e)
{
	autofree uint64_t *load = calloc(n_plans + 1, sizeof(*load));

	if (!load)
		return err_set(e, ENOMEM, "loads of %zu plans: out of memory", n_plans);
	for (uint32_t id = 0; id < o->ids.count; id++) {
		int rc = weight_of(o->list[id].item, rule, &o->list[id].weight, e);

		if (rc)
			return rc;
	}
	set_order(o, rule, to_lowest);
	for (uint32_t i = 0; i < o->ids.count; i++) {
		struct offer *f = &o->list[o->order[i]];

		f->owner = choose(o, f, load, to_lowest);
		load[f->owner] = sum(load[f->owner], f->weight);
	}
	return 0;
}

static int collect_all(const struct ckpt_save_plan *plans, size_t n, struct offers *o,
		       struct ckpt_err *e)
{
	size_t total = 0;

	for (size_t p = 0; p < n; p++)
		total += plans[p].n_items;
	if (!offers_init(o, total))
		return err_set(e, ENOMEM, "%zu items of %zu plans: out of memory", total, n);
	return collect(plans, n, o, e);
}

int dedup_check(const struct ckpt_save_plan *plans, size_t n, struct ckpt_err *e)
{
	struct offers o CLEANUP(offers_release) = { 0 };

	return collect_all(plans, n, &o, e);
}

int dedup_plans(const struct ckpt_save_plan *plans, size_t n, enum dedup_rule rule,
		bool to_lowest_rank, bool *keep, struct ckpt_err *e)
{
	struct offers o CLEANUP(offers_release) = { 0 };
	size_t k = 0;
	int rc = collect_all(plans, n, &o, e);

	if (rc)
		return rc;
	list_plans(plans, n, &o);
	rc = choose_owners(&o, n, rule, to_lowest_rank, e);
	if (rc)
		return rc;
	for (size_t p = 0; p < n; p++)
		for (size_t i = 0; i < plans[p].n_items; i++, k++)
			keep[k] = o.list[o.id_of[k]].owner == p;
	return 0;
}
