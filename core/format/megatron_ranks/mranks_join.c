/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins the ranks' slices and writes tensors to the catalog.
 *
 *	NAME			with the numbers that layers and experts have in the model
 *	mp_rank_TT_PPP/NAME	a rank's tensor if it is not known how it is joined
 *	mp_rank_TT_PPP/modelN/NAME
 *				the same of virtual stage N, if an earlier one has the name, too
 *
 * The first projection of a gated MLP is [gate; up] in each tensor-parallel rank, so the halves are
 * joined one after the other. Whether there is a gate follows from the shapes: then it has twice as
 * many rows as the second projection has columns.
 *
 * Rows of the fused query, key and value belong to (head, one of the three, dimension) since
 * checkpoint_version 2. Version 0 has (one of the three, head, dimension) in each rank, version 1
 * (head, dimension, one of the three); they are shown in the order of version 2, as Megatron loads
 * them (fix_query_key_value_ordering). That needs the number of heads.
 *
 * Mamba's in_proj and conv1d have sections, z, x, B, C, dt and x, B, C, each of which is split
 * (sharded_state_dict in megatron/core/ssm/mamba_mixer.py). Their sizes follow from the shapes of
 * the mixer's tensors; those of other mixers do not add up in the same way.
 *
 * The experts that GroupedMLP has in one tensor, weight1 [hidden, experts * ffn], are in memory,
 * and are shown, as [experts, hidden, ffn] (forward() in megatron/core/transformer/moe/experts.py).
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/text.h"
#include "format/megatron_ranks/mranks.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "model/box.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 1 << 16 };

struct reporter {
	struct mr *d;
	uint32_t *by_name; /* 1 + number of the first part, by the id of its name */
	uint32_t n_names;
	struct raw_chunks chunks;
	const struct pk_str *name;
	const struct mr_part **slices;	/* of the current tensor, by tensor-parallel rank */
	const struct mr_part **of_rank; /* the same, NULL for a rank without one */
	uint32_t n_slices;
	int rc; /* of a search that failed */
	struct ckpt_err *e;
};

/* Indices [from, from + len * step) of a slice are [to, to + len) of the tensor, along dim. */
struct segment {
	size_t dim;
	uint64_t from, step, len, to;
};

/* ---- finding ---- */

static const struct mr_part *part_of(struct reporter *r, const char *name)
{
	const struct pk_str *s = pk_intern(r->d->names, name, strlen(name));

	if (!s)
		r->rc = err_set(r->e, errno, "the names of all tensors take too much memory");
	return s && s->id < r->n_names && r->by_name[s->id] ? &r->d->parts[r->by_name[s->id] - 1]
							    : NULL;
}

/* The tensor whose name is this one's with `by` in place of everything from `from` on. */
static const struct mr_part *beside(struct reporter *r, const char *from, const char *by)
{
	char name[MR_MAX_FQN + 64];

	(void)snprintf(name, sizeof(name), "%.*s%s", (int)(from - r->name->data), r->name->data,
		       by);
	return part_of(r, name);
}

/* ---- chunks ---- */

/* Adds a segment of a slice that is seen with these sizes and strides. */
static int put(struct reporter *r, const struct mr_part *p, size_t n_dims, const uint64_t *size,
	       const struct raw_layout *layout, const uint64_t *at, const struct segment *s)
{
	uint64_t off[CKPT_MAX_DIMS] = { 0 }, len[CKPT_MAX_DIMS] = { 0 };
	struct raw_layout l = *layout;
	struct raw_chunk c = { .dtype = p->view->dtype,
			       .n_dims = n_dims,
			       .off = off,
			       .len = len,
			       .layout = &l,
			       .file = p->file->number,
			       .offset = p->view->at };

	for (size_t i = 0; i < n_dims; i++) {
		off[i] = at ? at[i] : 0;
		len[i] = size[i];
	}
	if (s) {
		off[s->dim] = s->to;
		len[s->dim] = s->len;
		c.offset += s->from * l.stride[s->dim] * dtype_info(c.dtype)->size;
		l.stride[s->dim] *= s->step;
	}
	for (size_t i = 0; i < n_dims; i++)
		if (!len[i])
			return 0;
	return raw_chunks_add(&r->chunks, &c, r->d->w, &r->d->chunks, r->e);
}

static int put_part(struct reporter *r, const struct mr_part *p, const struct segment *s)
{
	return put(r, p, p->view->n_dims, p->view->size, &p->view->layout, NULL, s);
}

/* Hands the tensor over. before: what its name is prefixed with. */
static int finish(struct reporter *r, const char *before, enum ckpt_dtype dtype, size_t n_dims,
		  const uint64_t *shape)
{
	struct buf fqn = BUF_INIT(MR_MAX_FQN + 64);
	struct tensor_chunks c = { .path = catalog_path_flat,
				   .dtype = dtype,
				   .n_dims = n_dims,
				   .shape = shape,
				   .count = (uint32_t)r->chunks.n,
				   .boxes = r->chunks.boxes,
				   .locs = r->chunks.locs };
	uint64_t none = 0;
	struct chunk_loc nowhere = { 0 };
	int rc;

	if (!c.boxes)
		c.boxes = &none;
	if (!c.locs)
		c.locs = &nowhere;
	buf_str(&fqn, before);
	buf_add(&fqn, r->name->data, r->name->len);
	c.fqn = fqn.data;
	c.fqn_len = fqn.len;
	rc = fqn.err ? err_nomem(r->e) : catalog_add_tensor(r->d->w, &c, r->e);
	buf_release(&fqn);
	r->chunks.n = 0;
	return rc;
}

static int report_whole(struct reporter *r, const struct mr_part *p, const char *before)
{
	int rc = put_part(r, p, NULL);

	return rc ? rc : finish(r, before, p->view->dtype, p->view->n_dims, p->view->size);
}

/*
 * Reports each rank's by itself: v are n of the tensor's parts. Nobody expects to see Transformer
 * Engine's _extra_state, which belongs to a rank, joined.
 */
static int report_apart(struct reporter *r, const struct mr_part *v, size_t n, const char *why)
{
	int rc = 0;

	if (!bytes_end(r->name->data, r->name->len, "_extra_state"))
		(void)format_note(
			r->d->not_shown,
			"how the ranks' slices of '%.120s' are joined: %s, so they are shown "
			"as %.*s/NAME",
			r->name->data, why, (int)v->file->dir_len, v->file->path);
	for (size_t i = 0; !rc && i < n; i++) {
		char before[64];
		int len = snprintf(before, sizeof(before), "%.*s/", (int)v[i].file->dir_len,
				   v[i].file->path);

		if (v[i].v != v->v)
			(void)snprintf(before + len, sizeof(before) - (size_t)len, "model%u/",
				       v[i].v);
		rc = report_whole(r, &v[i], before);
	}
	return rc;
}

/* ---- joining ---- */

/* The slices along a dimension; each has n sections of these sizes, which are joined one by one. */
static int report_sections(struct reporter *r, size_t dim, size_t n, const uint64_t *sizes)
{
	const struct torch_view *first = r->slices[0]->view;
	uint64_t shape[CKPT_MAX_DIMS], all, from = 0;
	int rc = 0;

	if (ckd_mul(&all, first->size[dim], (uint64_t)r->n_slices) || all >> 62)
		return err_set(r->e, ERR_CORRUPT, "its sizes are more than 2^62");
	memcpy(shape, first->size, sizeof(shape));
	shape[dim] = all;
	for (size_t i = 0; i < n; from += sizes[i++])
		for (uint32_t t = 0; !rc && t < r->n_slices; t++) {
			const struct segment s = { .dim = dim,
						   .from = from,
						   .step = 1,
						   .len = sizes[i],
						   .to = from * r->n_slices + t * sizes[i] };

			rc = put_part(r, r->slices[t], &s);
		}
	return rc ? rc : finish(r, "", first->dtype, first->n_dims, shape);
}

/* One or two sections. 1: the shape does not allow it. */
static int report_split(struct reporter *r, size_t dim, uint64_t n)
{
	const struct torch_view *first = r->slices[0]->view;
	uint64_t each = dim < first->n_dims ? first->size[dim] / n : 0;
	const uint64_t sizes[] = { each, each };

	if (dim >= first->n_dims || first->size[dim] % n)
		return 1;
	return report_sections(r, dim, (size_t)n, sizes);
}

/* Rows stored in the order of version 0 or 1, with `kinds` of query, key and value. 1:
 * impossible. */
static int report_old_rows(struct reporter *r, uint64_t kinds)
{
	const struct torch_view *first = r->slices[0]->view;
	uint64_t shape[CKPT_MAX_DIMS], rows = first->n_dims ? first->size[0] : 0, heads, each;
	bool apart = r->d->version_times_10 < 10; /* version 0 */
	int rc = 0;

	if (r->d->heads == UINT64_MAX || r->d->heads % r->d->tp ||
	    r->d->heads / r->d->tp > MAX_HEADS || !rows || rows % (r->d->heads / r->d->tp * kinds))
		return 1;
	heads = r->d->heads / r->d->tp;
	each = rows / (heads * kinds);
	memcpy(shape, first->size, sizeof(shape));
	if (ckd_mul(&shape[0], rows, (uint64_t)r->n_slices) || shape[0] >> 62)
		return err_set(r->e, ERR_CORRUPT, "its sizes are more than 2^62");
	for (uint64_t i = 0; !rc && i < r->n_slices * heads * kinds; i++) {
		uint64_t t = i / (heads * kinds), h = i / kinds % heads, k = i % kinds;
		const struct segment s = {
			.from = apart ? (k * heads + h) * each : h * each * kinds + k,
			.step = apart ? 1 : kinds,
			.len = each,
			.to = i * each,
		};

		rc = put_part(r, r->slices[t], &s);
	}
	return rc ? rc : finish(r, "", first->dtype, first->n_dims, shape);
}

/* The second projection of the same MLP, in any rank: NULL if there is none. */
static const struct mr_part *second_of(struct reporter *r)
{
	static const char *const words[][2] = { { "linear_fc1.", "linear_fc2.weight" },
						{ "dense_h_to_4h.", "dense_4h_to_h.weight" },
						{ "fc1_", "fc2_weight" } };
	const char *name = r->name->data;

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		const char *at = strstr(name, words[i][0]), *next;
		char by[64];

		if (!at)
			continue;
		while ((next = strstr(at + 1, words[i][0])))
			at = next;
		next = at + strlen(words[i][0]); /* "weight", or "weight3" of an expert */
		next += strcspn(next, "0123456789");
		(void)snprintf(by, sizeof(by), "%s%.10s", words[i][1], next);
		return beside(r, at, by);
	}
	return NULL;
}

static int report_gated(struct reporter *r)
{
	const struct torch_view *first = r->slices[0]->view;
	const struct mr_part *second = second_of(r);
	uint64_t columns = second && second->view->n_dims == 2 ? second->view->size[1] : 0;

	if (!columns || !first->n_dims ||
	    (first->size[0] != columns && (first->size[0] != 2 * columns || columns >> 61)))
		return 1;
	return report_split(r, 0, first->size[0] == columns ? 1 : 2);
}

/* The size of a dimension of another tensor of the same mixer; 0: there is none. */
static uint64_t mixer_size(struct reporter *r, const char *name, size_t dim)
{
	static const char word[] = ".mixer.";
	const char *at = strstr(r->name->data, word);
	const struct mr_part *p = at ? beside(r, at + strlen(word), name) : NULL;

	return p && dim < p->view->n_dims && !(p->view->size[dim] >> 60) ? p->view->size[dim] : 0;
}

/* The sections z, x, B, C and dt of Mamba 2. 1: it is another mixer, or the shapes do not fit. */
static int report_mamba(struct reporter *r)
{
	uint64_t inner = mixer_size(r, "out_proj.weight", 1), heads = mixer_size(r, "A_log", 0);
	uint64_t in = mixer_size(r, "in_proj.weight", 0);
	uint64_t conv = mixer_size(r, "conv1d.weight", 0);
	const struct torch_view *first = r->slices[0]->view;

	if (!conv) /* another version's name */
		conv = mixer_size(r, "conv1d_weight", 0);
	if (!inner || !heads || conv < inner || (conv - inner) % 2 || in != inner + conv + heads ||
	    !first->n_dims)
		return 1;
	const uint64_t group = (conv - inner) / 2;
	const uint64_t sizes[] = { inner, inner, group, group, heads };

	if (first->size[0] == in)
		return report_sections(r, 0, 5, sizes);
	return first->size[0] == conv ? report_sections(r, 0, 3, sizes + 1) : 1;
}

static bool same_shape(const struct mr_part *a, const struct mr_part *b)
{
	const struct torch_view *x = a->view, *y = b->view;

	return x->dtype == y->dtype && x->n_dims == y->n_dims &&
	       dims_equal(x->n_dims, x->size, y->size);
}

/* ---- experts in one tensor ---- */

/* The sizes of a slice of GroupedMLP's: experts, rows, columns. False: not known. */
static bool grouped_sizes(const struct reporter *r, const struct mr_part *p, uint64_t experts,
			  bool second, uint64_t size[3])
{
	const struct torch_view *v = p->view;
	uint64_t split = v->n_dims == 2 ? v->size[second ? 0 : 1] : 0;

	if (!experts || experts % r->d->ep || !split || split % (experts / r->d->ep) ||
	    v->layout.strided)
		return false;
	size[0] = experts / r->d->ep;
	size[1] = second ? split / size[0] : v->size[0];
	size[2] = second ? v->size[1] : split / size[0];
	return true;
}

/* One rank's slice, as a box of the tensor of all experts. */
static int put_grouped(struct reporter *r, const struct mr_part *p, const uint64_t size[3],
		       const struct segment *s)
{
	const uint64_t at[3] = { p->file->e * size[0] };
	struct raw_layout l = p->view->layout;

	l.n_dims = 3;
	l.stride[0] = size[1] * size[2];
	l.stride[1] = size[2];
	l.stride[2] = 1;
	return put(r, p, 3, size, &l, at, s);
}

/* 1: it is not known how many experts there are. */
static int report_grouped(struct reporter *r, const struct mr_part *v, size_t n, bool second)
{
	const char *word = strstr(r->name->data, ".experts.");
	const struct mr_part *router = word ? beside(r, word, ".router.weight") : NULL;
	const struct mr_part *other =
		word ? beside(r, word, second ? ".experts.weight1" : ".experts.weight2") : NULL;
	uint64_t experts = router && router->view->n_dims ? router->view->size[0] : 0;
	uint64_t size[3], others[3], shape[3], halves = 1;
	size_t dim = second ? 1 : 2;
	int rc = 0;

	if (!grouped_sizes(r, v, experts, second, size) || !other ||
	    !grouped_sizes(r, other, experts, !second, others) || n != (size_t)r->d->tp * r->d->ep)
		return 1;
	if (!second && size[2] == 2 * others[1])
		halves = 2;
	else if (!second && size[2] != others[1])
		return 1;
	for (size_t i = 1; i < n; i++)
		if (v[i].view->layout.strided || !same_shape(v, &v[i]))
			return 1;
	memcpy(shape, size, sizeof(shape));
	shape[0] = experts;
	if (ckd_mul(&shape[dim], size[dim], (uint64_t)r->d->tp) || shape[dim] >> 62)
		return err_set(r->e, ERR_CORRUPT, "its sizes are more than 2^62");
	for (size_t i = 0; !rc && i < n * halves; i++) {
		const struct mr_part *p = &v[i / halves];
		uint64_t each = size[dim] / halves, h = i % halves;
		const struct segment s = { .dim = dim,
					   .from = h * each,
					   .step = 1,
					   .len = each,
					   .to = (h * r->d->tp + p->file->t) * each };

		rc = put_grouped(r, p, size, &s);
	}
	return rc ? rc : finish(r, "", v->view->dtype, 3, shape);
}

/* ---- tensors ---- */

static bool same_sample(const struct mr_part *a, const struct mr_part *b)
{
	return !memcmp(&a->sample, &b->sample, sizeof(a->sample));
}

static int tell_difference(const struct reporter *r, const struct mr_part *a,
			   const struct mr_part *b)
{
	return format_note(r->d->not_shown,
			   "'%.120s' of other ranks: '%.60s' has other values than '%.60s', whose "
			   "values are shown",
			   r->name->data, b->file->path, a->file->path);
}

static int refuse_shapes(const struct reporter *r, const struct mr_part *a, const struct mr_part *b)
{
	const struct torch_view *x = a->view, *y = b->view;

	if (x->dtype != y->dtype)
		return err_set(r->e, ERR_CORRUPT, "'%.60s' has %s, '%.60s' has %s", a->file->path,
			       dtype_info(x->dtype)->name, b->file->path,
			       dtype_info(y->dtype)->name);
	return err_set(r->e, ERR_CORRUPT,
		       "'%.60s' has %s, '%.60s' has %s: are these files from one save?",
		       a->file->path, SIZE_TEXT(x->size, x->n_dims), b->file->path,
		       SIZE_TEXT(y->size, y->n_dims));
}

static int by_rank(const void *ap, const void *bp)
{
	const struct mr_part *const *a = ap, *const *b = bp;

	return ((*a)->file->t > (*b)->file->t) - ((*a)->file->t < (*b)->file->t);
}

/*
 * One slice for each tensor-parallel rank, into r->slices: that of the first stage where the rank
 * has the tensor. Sets *ret_equal if all are equal, as far as was read. Slices of a known tensor
 * have the same shape, and it is said if copies differ; others may be anything.
 */
static int choose(struct reporter *r, const struct mr_part *v, size_t n, bool known,
		  bool *ret_equal)
{
	while (r->n_slices) /* those of the tensor before */
		r->of_rank[r->slices[--r->n_slices]->file->t] = NULL;
	*ret_equal = true;
	for (size_t i = 0; i < n; i++) {
		const struct mr_part **of = &r->of_rank[v[i].file->t], *before = *of;
		bool same = same_shape(v, &v[i]);

		if (!same && known)
			return refuse_shapes(r, v, &v[i]);
		if (before && known && !same_sample(before, &v[i]))
			(void)tell_difference(r, before, &v[i]);
		if (!before || !known)
			*ret_equal &= same && same_sample(v, &v[i]);
		if (!before)
			r->slices[r->n_slices++] = *of = &v[i];
	}
	qsort(r->slices, r->n_slices, sizeof(struct mr_part *), by_rank);
	return 0;
}

static int report_tensor(struct reporter *r, const struct mr_part *v, size_t n)
{
	const struct mr *d = r->d;
	enum mr_rule rule = mr_rule_of(r->name->data, r->name->len);
	bool expert = mr_is_expert(r->name->data), equal;
	int rc;

	if (rule == MR_GROUPED_1 || rule == MR_GROUPED_2) {
		size_t k = 1;

		while (k < n && v[k].v == v->v && v[k].file->p == v->file->p)
			k++;
		rc = d->expert_tp == UINT64_MAX || d->expert_tp == d->tp
			     ? report_grouped(r, v, k, rule == MR_GROUPED_2)
			     : 1;
		return rc > 0 ? report_apart(r, v, n, "the number of experts is not known") : rc;
	}
	rc = choose(r, v, n, rule != MR_UNKNOWN, &equal);
	if (rc)
		return rc;
	if (rule == MR_EITHER)
		rule = equal ? MR_COPY : MR_COLUMN;
	/* With a tensor parallelism of their own, experts are not split like other tensors. */
	if (expert && d->expert_tp != UINT64_MAX && d->expert_tp != d->tp) {
		if (d->expert_tp != 1 && r->n_slices > 1)
			return report_apart(r, v, n,
					    "experts have another tensor_model_parallel_size");
		while (r->n_slices > 1)
			r->of_rank[r->slices[--r->n_slices]->file->t] = NULL;
	} else if (r->n_slices != d->tp && rule != MR_COPY && rule != MR_UNKNOWN) {
		return report_apart(r, v, n, "some ranks have none");
	}
	switch (rule) {
	case MR_COPY:
		for (uint32_t i = 1; !equal && i < r->n_slices; i++)
			if (!same_sample(v, r->slices[i]))
				(void)tell_difference(r, v, r->slices[i]);
		return report_whole(r, v, "");
	case MR_UNKNOWN:
		return equal ? report_whole(r, v, "")
			     : report_apart(r, v, n, "its name is not one of Megatron's");
	case MR_ROW:
		rc = report_split(r, 1, 1);
		break;
	case MR_GATED:
		rc = r->n_slices == 1 ? report_split(r, 0, 1) : report_gated(r);
		break;
	case MR_MAMBA:
		rc = r->n_slices == 1 ? report_split(r, 0, 1) : report_mamba(r);
		break;
	case MR_QKV:
	case MR_KV:
		rc = d->version_times_10 < 20 ? report_old_rows(r, rule == MR_QKV ? 3 : 2)
					      : report_split(r, 0, 1);
		break;
	default:
		rc = report_split(r, 0, 1);
	}
	return rc > 0 ? report_apart(r, v, n,
				     rule == MR_QKV || rule == MR_KV
					     ? "checkpoint_version is below 2, and the number of "
					       "heads is not known"
					     : "its shape is not that of such a tensor")
		      : rc;
}

int mr_report(struct mr *d, struct ckpt_err *e)
{
	struct reporter r = { .d = d, .e = e, .n_names = pk_strings_count(d->names) };
	int rc = 0;

	r.by_name = calloc(r.n_names + (size_t)1, sizeof(*r.by_name));
	r.slices = calloc(d->tp + (size_t)1, sizeof(struct mr_part *));
	r.of_rank = calloc(d->tp + (size_t)1, sizeof(struct mr_part *));
	if (!r.by_name || !r.slices || !r.of_rank)
		rc = err_nomem(e);
	for (size_t i = d->n_parts; !rc && i-- > 0;)
		r.by_name[d->parts[i].name->id] = (uint32_t)i + 1;
	for (size_t i = 0, n; !rc && i < d->n_parts; i += n) {
		r.name = d->parts[i].name;
		for (n = 1; i + n < d->n_parts && d->parts[i + n].name == r.name;)
			n++;
		rc = report_tensor(&r, &d->parts[i], n);
		rc = r.rc ? r.rc : rc;
		if (rc)
			(void)err_wrap(e, "'%s'", FQN_TEXT(r.name->data, r.name->len));
	}
	free(r.by_name);
	free(r.slices);
	free(r.of_rank);
	raw_chunks_release(&r.chunks);
	return rc;
}
