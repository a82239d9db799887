/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs the flat tensors with names: which elements belong to which parameter.
 *
 * A parameter of an expert is stored by the ranks of its expert-parallel group alone, under a name
 * that counts the experts of one rank.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "format/deepspeed/deepspeed_states.h"

#include <stdlib.h>
#include <string.h>

/*
 * Before 0.5.4 one dict had the parameters of all groups; the groups' sizes tell how many belong to
 * each.
 */
static int divide(struct ds_rank *x, const uint64_t *totals, struct ckpt_err *e)
{
	const struct ds_group all = x->groups[0];
	uint64_t slack = x->zero3 ? 0 : 2 * (uint64_t)x->world - 1;
	struct ds_group *v = arena_array(&x->d->arena, x->n_flat + 1, sizeof(*v));
	size_t at = 0;

	if (!v)
		return err_nomem(e);
	for (size_t g = 0; g < x->n_flat; g++) {
		uint64_t sum = 0;

		v[g].params = all.params + at;
		for (; at < all.n; at++, v[g].n++) {
			uint64_t numel = all.params[at].numel;
			uint64_t size =
				x->zero3 ? numel / x->world + (numel % x->world != 0) : numel;

			if (sum + size > totals[g])
				break;
			/* It may belong to the next group, with this one ending in padding. */
			if (g + 1 < x->n_flat && size && totals[g] - sum <= slack) {
				(void)ds_refuse(x->d,
						"it is not clear to which group '%.100s' "
						"belongs",
						all.params[at].name->data);
				return 1;
			}
			sum += size;
		}
	}
	x->groups = v;
	x->n_groups = x->n_flat;
	x->undivided = false;
	if (at == all.n)
		return 0;
	(void)ds_refuse(x->d, "param_shapes has more elements than the optimizer states");
	return 1;
}

/* How many elements of a piece it takes, with the padding behind it. */
static uint64_t size_of(const struct ds_rank *x, const struct ds_param *p)
{
	return x->zero3 ? p->numel / x->world + (p->numel % x->world != 0) : p->numel + p->pad;
}

static uint64_t total_of(const struct ds_rank *x, const struct ds_group *g)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < g->n; i++)
		sum += size_of(x, &g->params[i]);
	return sum;
}

/*
 * The column made of the pieces of these ranks, in this order. NULL: it does not hold parameters.
 */
static int make_column(struct ds_rank *x, const struct ds_flat_group *g, const struct ds_making *m,
		       const uint32_t *members, uint32_t n, const uint64_t *start,
		       struct ds_column **ret, struct ckpt_err *e)
{
	struct ds_column *c = arena_array(&x->d->arena, 1, sizeof(*c));
	struct ds_piece *v = arena_array(&x->d->arena, n + 1ul, sizeof(*v));
	uint64_t most = 0;

	*ret = NULL;
	if (!c || !v)
		return err_nomem(e);
	for (uint32_t i = 0; i < n; i++)
		most = max_u64(most, g->columns[0].piece[members[i]].numel);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t lean = g->columns[0].piece[members[i]].numel;

		v[i] = m->piece[members[i]];
		/* Only masters are stored without padding; a rank may have only padding. */
		if (v[i].numel < lean || (x->zero3 && v[i].numel != lean && m->have[members[i]]) ||
		    v[i].numel > most + 2 * (uint64_t)x->world)
			return 0;
	}
	*c = (struct ds_column){ .key = m->key,
				 .dtype = m->dtype,
				 .by_parameter = x->zero3,
				 .n = n,
				 .piece = v,
				 .start = start };
	*ret = c;
	return 0;
}

/* "A.deepspeed_experts.3.up" is expert 3 of its rank: "A.deepspeed_experts.7.up" among all. */
struct expert {
	size_t at, len; /* of the number, in the name */
	uint64_t number;
	uint32_t module; /* number of the prefix */
	uint64_t each;	 /* how many experts of its module a rank has */
};
static int expert_name(struct ds_rank *x, const struct pk_str *name, const struct expert *v,
		       uint32_t e_rank, const struct pk_str **ret, struct ckpt_err *e);

static int add_params(struct ds_rank *x, const struct ds_group *g, const struct ds_column *c,
		      const struct pk_str *const *names, struct ckpt_err *e)
{
	uint64_t at = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < g->n; i++) {
		const struct ds_param *p = &g->params[i];
		struct ds_tensor t = { .name = names[i],
				       .key = c->key,
				       .shape = p->shape,
				       .n_dims = p->n_dims,
				       .numel = p->numel,
				       .dtype = c->dtype,
				       .column = c,
				       .at = at,
				       .stage = x->stage,
				       .t = x->t };

		rc = ds_add(x->d, &t, e);
		at += size_of(x, p);
	}
	return rc;
}

static int add_steps(struct ds_rank *x, const struct ds_group *g, const struct ds_flat_group *f,
		     const struct pk_str *const *names, struct ckpt_err *e)
{
	struct ds_tensor t = f->step;
	int rc = 0;

	t.key = ds_name(x->d, "step", 4, e);
	if (!t.key)
		return -e->code;
	for (size_t i = 0; !rc && f->stepped.path && i < g->n; i++) {
		t.name = names[i];
		rc = ds_add(x->d, &t, e);
	}
	return rc;
}

/*
 * Adds a group as stored by the ranks that share it: all of them, if `experts` is NULL, or those of
 * expert-parallel rank e_rank. 1: it is inconsistent, which has been recorded.
 */
static int add_group(struct ds_rank *x, size_t number, const uint32_t *members, uint32_t n,
		     const struct expert *experts, uint32_t e_rank, struct ckpt_err *e)
{
	const struct ds_group *g = &x->groups[number];
	const struct ds_flat_group *f = &x->flat[number];
	const struct ds_making *fp32 = &f->columns[0];
	uint64_t *start = arena_array(&x->d->arena, n + 1ul, sizeof(*start));
	const struct pk_str **names = arena_array(&x->d->arena, g->n + 1, sizeof(*names));
	uint64_t total = total_of(x, g);
	bool fits = true;
	int rc = 0;

	if (!start || !names)
		return err_nomem(e);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t numel = fp32->piece[members[i]].numel;

		if (total && !numel && x->zero3) {
			(void)ds_refuse(x->d,
					"the masters of rank %u are not in its file: they were "
					"offloaded to NVMe",
					members[i]);
			return 1;
		}
		fits &= !x->zero3 || numel == total;
		/* cannot overflow: each is at most 2^62 bytes of a file */
		start[i + 1] = start[i] + numel;
		if (start[i + 1] >> 62)
			fits = false;
	}
	if (!x->zero3)
		fits &= start[n] == total ||
			(start[n] > total && start[n] - total < 2 * (uint64_t)x->world &&
			 ds_is_tail(x, f, members, n, total));
	if (!fits || fp32->mixed) {
		(void)ds_refuse(x->d,
				"group %zu of the optimizer states does not have the elements that "
				"the model states list, %llu: they are from two different saves",
				number, (unsigned long long)total);
		return 1;
	}
	for (size_t i = 0; !rc && i < g->n; i++) {
		names[i] = g->params[i].name;
		if (experts)
			rc = expert_name(x, names[i], &experts[i], e_rank, &names[i], e);
	}
	for (size_t k = 0; !rc && k < f->n; k++) {
		struct ds_column *c;

		rc = make_column(x, f, &f->columns[k], members, n, start, &c, e);
		if (!rc && c)
			rc = add_params(x, g, c, names, e);
		else if (!rc)
			rc = ds_refuse(x->d,
				       "'%.100s' of group %zu of the optimizer states is not as "
				       "long as the masters",
				       f->columns[k].key->data, number);
	}
	return rc ? rc : add_steps(x, g, f, names, e);
}

static bool expert_number(const struct pk_str *name, size_t *ret_at, size_t *ret_len, uint64_t *ret)
{
	static const char word[] = ".deepspeed_moe.experts.deepspeed_experts.";
	const char *s = name->data, *found = NULL;

	while ((s = strstr(s, word))) {
		s += strlen(word);
		found = s;
	}
	*ret = 0;
	*ret_len = 0;
	for (; found && found[*ret_len] >= '0' && found[*ret_len] <= '9' && *ret_len < 9;
	     (*ret_len)++)
		*ret = *ret * 10 + (uint64_t)(found[*ret_len] - '0');
	*ret_at = found ? (size_t)(found - name->data) : 0;
	return *ret_len > 0;
}

/*
 * Finds the experts' numbers in the names, and how many experts a rank has: those numbered 0, 1,
 * ... in the names of one module. 1: a name has none, which has been recorded.
 */
static int find_experts(struct ds_rank *x, const struct ds_group *g, struct expert *v,
			struct pk_strings *modules, struct ckpt_err *e)
{
	autofree uint64_t *each = calloc(g->n + 1, sizeof(*each));

	if (!each || !modules)
		return err_nomem(e);
	for (size_t i = 0; i < g->n; i++) {
		const struct pk_str *name = g->params[i].name, *module;

		if (!expert_number(name, &v[i].at, &v[i].len, &v[i].number)) {
			(void)ds_refuse(
				x->d,
				"'%.100s' is an expert's, and its name does not say which one's",
				name->data);
			return 1;
		}
		module = pk_intern(modules, name->data, v[i].at);
		if (!module)
			return err_nomem(e);
		v[i].module = module->id;
		each[module->id] = max_u64(each[module->id], v[i].number + 1);
	}
	for (size_t i = 0; i < g->n; i++)
		v[i].each = each[v[i].module];
	return 0;
}

static int expert_name(struct ds_rank *x, const struct pk_str *name, const struct expert *v,
		       uint32_t e_rank, const struct pk_str **ret, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT((size_t)1 << 20);

	buf_add(&b, name->data, v->at);
	buf_u64(&b, e_rank * v->each + v->number);
	buf_add(&b, name->data + v->at + v->len, name->len - v->at - v->len);
	if (buf_check(&b, e, "a name of %u bytes", name->len))
		return -e->code;
	*ret = ds_name(x->d, b.data, b.len, e);
	return *ret ? 0 : -e->code;
}

/* 1: it is inconsistent, which has been recorded. */
static int add_shared_group(struct ds_rank *x, size_t g, struct ckpt_err *e)
{
	uint32_t *members = arena_array(&x->d->arena, x->world + 1ul, sizeof(*members));
	uint64_t count = x->counts[g], n = x->world / count;
	autofree struct expert *experts = NULL;
	int rc = 0;

	if (!members)
		return err_nomem(e);
	if (x->world % count) {
		(void)ds_refuse(x->d, "group %zu has %llu of the %u ranks, which is not supported",
				g, (unsigned long long)count, x->world);
		return 1;
	}
	if (n > 1) {
		struct pk_strings *modules = pk_strings_new(DS_MAX_NAMES);

		experts = calloc(x->groups[g].n + 1, sizeof(*experts));
		rc = experts ? find_experts(x, &x->groups[g], experts, modules, e) : err_nomem(e);
		pk_strings_free(modules);
	}
	for (uint32_t i = 0; !rc && i < n; i++) {
		uint32_t k = 0;

		for (uint32_t r = 0; r < x->world; r++)
			if (n == 1 || (x->by_data ? r / count : r % n) == i)
				members[k++] = r;
		rc = add_group(x, g, members, k, experts, i, e);
	}
	return rc;
}

int ds_pair(struct ds_rank *x, struct ckpt_err *e)
{
	int rc = 0;

	if (x->has_shapes && x->undivided) {
		autofree uint64_t *totals = calloc(x->n_flat + 1, sizeof(*totals));

		if (!totals)
			return err_nomem(e);
		for (size_t g = 0; g < x->n_flat; g++)
			for (uint32_t r = 0; r < x->world && (!r || !x->zero3); r++)
				totals[g] += x->flat[g].columns[0].piece[r].numel;
		rc = divide(x, totals, e);
	}
	if (!rc && x->n_groups != x->n_flat) {
		(void)ds_refuse(x->d,
				"the optimizer states have %zu groups, the model states %zu: they "
				"are from two different saves",
				x->n_flat, x->n_groups);
		rc = 1;
	}
	for (size_t g = 0; !rc && g < x->n_flat; g++)
		rc = add_shared_group(x, g, e);
	return rc;
}
