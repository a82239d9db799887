/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports tensors as chunks.
 *
 * A range of a flattened tensor is a few boxes of it, each of which is one run of the file; if a
 * slice of tensor parallelism maps to several segments of the whole, those are boxes of a box.
 *
 *	NAME                        a weight
 *	optimizer.state.NAME.KEY    its master (KEY fp32), moments and step
 *	mp_rank_MM/NAME             for NAME, if it is unknown how slices are joined, or if stages
 *	                            that are not of DeepSpeed's pipeline have other tensors of that name
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/search.h"
#include "base/text.h"
#include "format/deepspeed/deepspeed.h"
#include "format/raw_chunks.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char state_prefix[] = "optimizer.state.";
static const char master_key[] = "fp32";

enum { MAX_FQN = 1 << 20 };

struct reporter {
	struct ds *d;
	struct pk_strings *seen; /* FQNs already in the catalog */
	struct buf fqn;
	struct raw_chunks chunks;
	uint64_t n_chunks; /* of all tensors */
	/* The tensor being reported. */
	const struct ds_tensor *t;	   /* a slice, or the whole tensor */
	const struct ds_joined *joined;	   /* or NULL */
	const struct ds_segment *segments; /* of the slice */
	const struct ds_piece *piece;	   /* that contains the run */
	uint64_t first;			   /* the piece's element that the run begins with */
	struct ckpt_err *e;
};

/* ---- chunks ---- */

static int put_chunk(struct reporter *r, const uint64_t *off, const uint64_t *len,
		     const uint64_t *stride, uint64_t offset)
{
	size_t n = r->t->n_dims;
	struct raw_layout l = { .swap = r->piece->swap,
				.neg = r->piece->neg,
				.conj = r->piece->conj };
	struct raw_chunk x = { .dtype = r->t->dtype,
			       .n_dims = n,
			       .off = off,
			       .len = len,
			       .layout = &l,
			       .file = r->piece->file,
			       .offset = offset };

	memcpy(l.stride, stride, n * sizeof(*stride));
	return raw_chunks_add(&r->chunks, &x, r->d->w, &r->n_chunks, r->e);
}

/* Adds a box of the slice, whose first element is at `offset`. */
static int put_box(struct reporter *r, const uint64_t *off, const uint64_t *len,
		   const uint64_t *stride, uint64_t offset)
{
	const struct ds_joined *j = r->joined;
	uint64_t size = dtype_info(r->t->dtype)->size;
	uint64_t at[CKPT_MAX_DIMS], part[CKPT_MAX_DIMS];
	int rc = 0;

	if (!j || !r->t->n_dims)
		return put_chunk(r, off, len, stride, offset);
	memcpy(at, off, r->t->n_dims * sizeof(*at));
	memcpy(part, len, r->t->n_dims * sizeof(*part));
	for (size_t i = 0; !rc && i < j->per_slice; i++) {
		const struct ds_segment *s = &r->segments[i];
		uint64_t from = max_u64(off[j->dim], s->from);
		uint64_t to = min_u64(off[j->dim] + len[j->dim], s->from + s->len);

		if (from >= to)
			continue;
		at[j->dim] = s->to + (from - s->from);
		part[j->dim] = to - from;
		rc = put_chunk(r, at, part, stride,
			       offset + (from - off[j->dim]) * stride[j->dim] * size);
	}
	return rc;
}

/* Adds a box from box_of_range; its elements are contiguous. */
static int put_run_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	struct reporter *r = arg;
	uint64_t stride[CKPT_MAX_DIMS], step = 1;

	for (size_t d = r->t->n_dims; d-- > 0; step *= len[d])
		stride[d] = step;
	return put_box(r, off, len, stride,
		       r->piece->offset + (r->first + pos) * dtype_info(r->t->dtype)->size);
}

/*
 * Adds elements [first, first + count) of the tensor, which are those of a piece starting at
 * `from`.
 */
static int put_run(struct reporter *r, uint64_t first, uint64_t count, const struct ds_piece *piece,
		   uint64_t from)
{
	r->piece = piece;
	r->first = from;
	if (!range_ok(from, count, piece->numel))
		return err_set(r->e, ERR_CORRUPT, "a rank's flat tensor is too short");
	return box_of_range(r->t->n_dims, r->t->shape, first, count, put_run_box, r);
}

static int put_parts(struct reporter *r)
{
	const struct ds_tensor *t = r->t;
	const struct ds_column *c = t->column;
	uint64_t each = t->numel / c->n + (t->numel % c->n != 0);
	int rc = 0;

	for (uint32_t i = 0; !rc && each && i < c->n && i * each < t->numel; i++)
		rc = put_run(r, i * each, min_u64(each, t->numel - i * each), &c->piece[i], t->at);
	return rc;
}

static int put_range(struct reporter *r)
{
	const struct ds_tensor *t = r->t;
	const struct ds_column *c = t->column;
	uint64_t end = t->at + t->numel;
	size_t behind = PARTITION_POINT(i, c->n, c->start[i] <= t->at);
	int rc = 0;

	for (size_t i = behind - (behind > 0); !rc && i < c->n && c->start[i] < end; i++) {
		uint64_t from = max_u64(t->at, c->start[i]), to = min_u64(end, c->start[i + 1]);

		if (from < to)
			rc = put_run(r, from - t->at, to - from, &c->piece[i], from - c->start[i]);
	}
	return rc;
}

static int put_slice(struct reporter *r, const struct ds_tensor *t)
{
	uint64_t zero[CKPT_MAX_DIMS] = { 0 };

	r->t = t;
	if (!t->numel)
		return 0;
	if (t->column)
		return t->column->by_parameter ? put_parts(r) : put_range(r);
	if (!t->stride)
		return put_run(r, 0, t->numel, &t->piece, 0);
	r->piece = &t->piece;
	return put_box(r, zero, t->shape, t->stride, t->piece.offset);
}

/* ---- names ---- */

/* The FQN and its path; 1: the FQN is already in the catalog; -1: an error. */
static int make_fqn(struct reporter *r, const struct pk_str *name, const struct pk_str *key,
		    int64_t mp, uint8_t path[4 * CATALOG_PATH_NUMBER])
{
	uint32_t known = pk_strings_count(r->seen);
	const struct pk_str *s;
	char rank[40] = "";
	size_t at;

	if (mp >= 0)
		(void)snprintf(rank, sizeof(rank), "mp_rank_%02lld/", (long long)mp);
	r->fqn.len = 0;
	buf_str(&r->fqn, key ? state_prefix : "");
	buf_str(&r->fqn, rank);
	buf_add(&r->fqn, name->data, name->len);
	if (key) {
		buf_str(&r->fqn, ".");
		buf_add(&r->fqn, key->data, key->len);
	}
	if (r->fqn.err)
		return buf_check(&r->fqn, r->e, "a name of more than %d bytes", MAX_FQN);
	s = pk_intern(r->seen, r->fqn.data, r->fqn.len);
	if (!s)
		return err_set(r->e, errno, "the names of all tensors take too much memory");
	if (s->id < known)
		return 1;
	at = catalog_path_put_head(path, key ? 4 : 1, false);
	if (key) {
		at += catalog_path_put_step(path + at, strlen("optimizer"), false);
		at += catalog_path_put_step(path + at, strlen("state"), false);
		(void)catalog_path_put_step(path + at, strlen(rank) + name->len, false);
	}
	return 0;
}

/* ---- tensors ---- */

static int add_object(struct reporter *r, const char *text, const uint8_t *path)
{
	const struct object_item o = { .fqn = r->fqn.data,
				       .fqn_len = r->fqn.len,
				       .path = path,
				       .loc = { .file = CATALOG_NO_FILE },
				       .text = text,
				       .text_len = strlen(text) };

	return catalog_add_object(r->d->w, &o, r->e);
}

/* Reports one tensor made of slices; joined NULL: it is slices[0]. */
static int report_one(struct reporter *r, const struct ds_tensor *const *slices,
		      const struct ds_joined *joined, const struct pk_str *name,
		      const struct pk_str *key, int64_t mp)
{
	uint8_t path[5 * CATALOG_PATH_NUMBER];
	const struct ds_tensor *t = slices[0];
	struct tensor_chunks c;
	int rc = make_fqn(r, name, key, mp, path);

	if (rc)
		return rc > 0 ? 0 : rc;
	if (t->text)
		return add_object(r, t->text, path);
	r->chunks.n = 0;
	r->joined = joined;
	for (uint32_t i = 0; !rc && i < (joined ? joined->n_slices : 1); i++) {
		r->segments = joined ? joined->segments + i * joined->per_slice : NULL;
		rc = put_slice(r, slices[i]);
	}
	c = (struct tensor_chunks){ .fqn = r->fqn.data,
				    .fqn_len = r->fqn.len,
				    .path = path,
				    .dtype = t->dtype,
				    .n_dims = t->n_dims,
				    .shape = joined ? joined->shape : t->shape,
				    .count = (uint32_t)r->chunks.n,
				    .boxes = r->chunks.boxes,
				    .locs = r->chunks.locs };
	if (!rc)
		rc = catalog_add_tensor(r->d->w, &c, r->e);
	return rc ? err_wrap(r->e, "'%s'", FQN_TEXT(r->fqn.data, r->fqn.len)) : 0;
}

/* A Universal checkpoint has the slices of a weight, and its master, which is whole. */
static bool has_whole_master(const struct ds *d, const struct ds_tensor *t)
{
	const struct ds_mark *m = ds_mark_of(d, t->name);

	return !t->key && m && m->is_universal;
}

/* Reports n tensors with one name and key, sorted by stage and t. */
static int report_group(struct reporter *r, const struct ds_tensor *const *v, size_t n,
			const struct pk_str *name, const struct pk_str *key)
{
	struct ds *d = r->d;
	struct ds_joined joined = { 0 };
	/* In a pipeline it is a tied tensor; without one, stages may use a name for different
	 * ones. */
	bool apart = !d->pipeline && v[n - 1]->stage != v[0]->stage;
	uint32_t slices = 0;
	int rc = 0;

	if ((d->tp == 1 && !apart) || v[0]->t == DS_WHOLE || v[0]->text)
		return report_one(r, v, NULL, name, key, -1);
	while (slices < n && v[slices]->stage == v[0]->stage && v[slices]->t == slices)
		slices++;
	if (slices < d->tp && d->join && d->incomplete[v[0]->stage])
		return 0; /* a slice in place of the tensor */
	if (slices == d->tp && !apart)
		rc = ds_join_find(d, v, slices, &joined, r->e);
	if (rc > 0)
		rc = report_one(r, v, &joined, name, key, -1);
	else if (rc || !has_whole_master(d, v[0]))
		for (size_t i = 0; !rc && i < n && (apart || v[i]->stage == v[0]->stage); i++)
			rc = report_one(
				r, v + i, NULL, name, key,
				v[i]->t == DS_WHOLE ? -1 : (int64_t)v[i]->stage * d->tp + v[i]->t);
	free(joined.segments);
	return rc;
}

/* ---- entry point ---- */

static int by_target(const void *ap, const void *bp)
{
	const struct ds_alias *a = ap, *b = bp;

	return a->of->id != b->of->id ? a->of->id < b->of->id ? -1 : 1
				      : (a->name->id > b->name->id) - (a->name->id < b->name->id);
}

/* Drops duplicates: a frozen parameter's fragment is in `module` as well. */
static size_t drop_equal(const struct ds_tensor **v, size_t n)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++) {
		const struct ds_tensor *before = kept ? v[kept - 1] : NULL;

		if (!before || before->key != v[i]->key || before->name != v[i]->name ||
		    before->stage != v[i]->stage || before->t != v[i]->t)
			v[kept++] = v[i];
	}
	return kept;
}

/* Reports the group under each of its other names. */
static int report_aliases(struct reporter *r, const struct ds_tensor *const *v, size_t n,
			  const struct pk_str *key)
{
	const struct ds *d = r->d;
	size_t i = PARTITION_POINT(k, d->n_aliases, d->aliases[k].of->id < v[0]->name->id);
	int rc = 0;

	for (; !rc && i < d->n_aliases && d->aliases[i].of == v[0]->name; i++)
		rc = report_group(r, v, n, d->aliases[i].name, key);
	return rc;
}

enum pass { PASS_NAMES, PASS_ALIASES, PASS_MASTERS };

static int report_pass(struct reporter *r, const struct ds_tensor **v, size_t n, enum pass pass)
{
	int rc = 0;

	for (size_t i = 0, k; !rc && i < n; i += k) {
		const struct pk_str *key = v[i]->key;

		for (k = 1; i + k < n && v[i + k]->key == key && v[i + k]->name == v[i]->name;)
			k++;
		if (pass == PASS_NAMES)
			rc = report_group(r, v + i, k, v[i]->name, key);
		else if (pass == PASS_ALIASES)
			rc = report_aliases(r, v + i, k, key);
		else if (key && !strcmp(key->data, master_key)) {
			rc = report_group(r, v + i, k, v[i]->name, NULL);
			if (!rc)
				rc = report_aliases(r, v + i, k, NULL);
		}
	}
	return rc;
}

int ds_report(struct ds *d, struct ckpt_err *e)
{
	struct reporter r = {
		.d = d, .seen = pk_strings_new(DS_MAX_NAMES), .fqn = BUF_INIT(MAX_FQN), .e = e
	};
	const struct ds_tensor **v = calloc(d->n_tensors + 1, sizeof(struct ds_tensor *));
	int rc = v && r.seen ? ds_join_prepare(d, e) : err_nomem(e);
	size_t n = 0;

	for (size_t i = 0; !rc && i < d->n_tensors; i++)
		v[i] = &d->tensors[i];
	if (!rc) {
		qsort(v, d->n_tensors, sizeof(struct ds_tensor *), ds_by_name);
		if (d->n_aliases)
			qsort(d->aliases, d->n_aliases, sizeof(*d->aliases), by_target);
		n = drop_equal(v, d->n_tensors);
	}
	/*
	 * A weight without its own data is its master: with ZeRO 3, and in Universal checkpoints.
	 */
	for (int pass = PASS_NAMES; !rc && pass <= PASS_MASTERS; pass++)
		rc = report_pass(&r, v, n, (enum pass)pass);
	free(v);
	raw_chunks_release(&r.chunks);
	buf_release(&r.fqn);
	pk_strings_free(r.seen);
	return rc;
}
