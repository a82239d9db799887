/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching chunks with storage entries: the key is (rank file, FQN, offset).
 *
 * With one metadata file per rank, each lists its own chunks of the global tensor. An FQN whose
 * dtype and shape agree in all of them is one tensor, the union of their chunks. Three kinds stay
 * apart as FQN@rankN: tensors that do not agree, objects that several ranks have and that are not
 * known to be equal, and tensors that each rank has saved whole with other values, since with
 * use_collectives=False each rank saves, and loads, its own. The path is the one shared by all
 * ranks that record one, or that of the rank itself.
 *
 * If the items' own dtypes and sizes are known already (`sized`), they must equal those of the
 * chunks.
 */
#include "format/dcp/dcp_records.h"
#include "format/dcp/dcp_stored.h"
#include "format/format.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/vec.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "model/box.h"
#include "model/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct join {
	const struct dcp_records *r;
	const struct dcp_join_opts *o;
	struct catalog_writer *w;
	struct dcp_storage stored;

	/* Scratch for one FQN. */
	uint32_t *entries; /* the FQN's entries, by rank */
	size_t n_entries, cap_entries;
	uint64_t *boxes;
	struct chunk_loc *locs;
	size_t cap_boxes, cap_locs;

	/* Tensors made of others. */
	bool found;
	unsigned in_vain;	     /* items that were opened last and are what they seem to be */
	char not_shown[FORMAT_NOTE]; /* a sentence on those that are not, and why; or empty */
	uint32_t present;	     /* the entry that stands for the FQN */
	bool can_wait;		     /* it may be looked at later, and is then added to: */
	uint32_t *later;
	size_t n_later, cap_later;
};

enum {
	/* What an archive of torch.save has besides elements, at most: its pickle and the ZIP's
	 * headers. */
	ARCHIVE_BYTES = 2048,
	SMALL_BYTES = 16384, /* of which codes may take a quarter and a larger pickle the rest */
	MAX_IN_VAIN = 16,
	MAX_LATER = 10000, /* items opened because they are small */
};

struct named {
	const char *fqn;
	size_t len;
	const uint8_t *path;
};

/* The path that the entries of j->entries agree on; some may not record one. */
static const uint8_t *shared_path(const struct join *j)
{
	const uint8_t *path = catalog_path_unknown;

	for (size_t i = 0; i < j->n_entries; i++) {
		const uint8_t *one = dcp_entry_path(j->r, &j->r->entries[j->entries[i]]);

		if (!catalog_path_steps(one) || one == path)
			continue;
		if (catalog_path_steps(path) && !catalog_path_equal(one, path))
			return catalog_path_unknown;
		path = one;
	}
	return path;
}

static int not_the_chunk(const struct join *j, const struct dcp_stored *s, const char *fqn,
			 enum ckpt_dtype dtype, const uint64_t *len, struct ckpt_err *e)
{
	struct buf text[3] = { BUF_INIT(CKPT_MAX_DIMS * 24), BUF_INIT(CKPT_MAX_DIMS * 24),
			       BUF_INIT(CKPT_MAX_DIMS * 24) };
	const uint64_t *const numbers[] = { s->off, len, s->size };
	const char *path = pk_string(j->r->strings, s->path)->data;
	bool full = false;
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(text); i++) {
		buf_json_u64s(&text[i], numbers[i], s->n_dims);
		full |= text[i].err;
	}
	rc = full ? err_nomem(e)
		  : err_set(e, ERR_CORRUPT,
			    "'%.100s': the metadata says that its chunk at %.50s is %s %.50s, in "
			    "'%.60s' it is %s %.50s",
			    fqn, text[0].data, dtype_info(dtype)->name, text[1].data, path,
			    dtype_info(s->dtype)->name, text[2].data);
	for (size_t i = 0; i < ARRAY_LEN(text); i++)
		buf_release(&text[i]);
	return rc;
}

/* Where the rank's chunk `box` is stored; `hint`, if any, is the corresponding entry. */
static int locate(struct join *j, const struct tensor_chunks *t, const uint64_t *box, uint32_t rank,
		  const struct dcp_stored *hint, struct chunk_loc *ret, struct ckpt_err *e)
{
	struct dcp_stored key = { .rank = rank, .n_dims = (uint8_t)t->n_dims, .off = box };
	const uint64_t *len = box + t->n_dims;
	const struct dcp_stored *s = hint;
	uint64_t volume;

	*ret = (struct chunk_loc){ .file = CATALOG_NO_FILE };
	if (!j->r->sized) {
		s = hint ? hint : dcp_storage_find(&j->stored, &key);
		if (s)
			*ret = s->loc;
		return 0;
	}
	if (!box_volume(t->n_dims, len, &volume) || !volume)
		return 0; /* the catalog reports what is too large, and drops what is empty */
	if (!s || !s->dtype || !dcp_stored_is(s, t->dtype, len))
		s = dcp_storage_find_sized(&j->stored, &key, t->dtype, len);
	if (!s)
		return 0;
	if (!dcp_stored_is(s, t->dtype, len))
		return not_the_chunk(j, s, t->fqn, t->dtype, len, e);
	*ret = s->loc;
	/* The layout in a missing file is unknown. If it is too large, the catalog reports that. */
	if (!s->dtype)
		ret->length = volume * dtype_info(t->dtype)->size;
	return 0;
}

/* The shape before flattening that one of the entries [from, to) records: its dimensions, or 0. */
static size_t shape_before(const struct join *j, size_t from, size_t to, uint64_t *ret)
{
	for (size_t i = from; i < to; i++) {
		size_t at = j->r->entries[j->entries[i]].shape_at, n;
		const uint8_t *p;

		if (!at)
			continue;
		p = j->r->shapes.data + at;
		n = (size_t)get_varint(&p);
		for (size_t d = 0; d < n; d++)
			ret[d] = get_varint(&p);
		return n;
	}
	return 0;
}

/* Calls `each` for the item whose chunk is at `off`, if the rank has saved it. q->loc: NULL, or the
 * chunk's own. */
static int at_item(struct join *j, struct dcp_inside *q, size_t n_dims, const uint64_t *off,
		   uint32_t rank, dcp_inside_fn *each, void *arg, struct ckpt_err *e)
{
	struct dcp_stored key = { .rank = rank, .n_dims = (uint8_t)n_dims, .off = off };
	const struct dcp_stored *s = dcp_storage_find(&j->stored, &key);
	autofree char *path = s ? dcp_storage_path(&j->stored, s->path) : NULL;

	if (!path)
		return s ? err_nomem(e) : 0;
	q->path = path;
	q->loc = q->loc ? q->loc : &s->loc;
	return each(arg, q, e);
}

static int at_chunk(struct join *j, const struct tensor_chunks *t, uint32_t k, uint32_t rank,
		    dcp_inside_fn *each, void *arg, struct ckpt_err *e)
{
	struct dcp_inside q = { t->fqn, t->fqn_len, t->path, NULL, t->locs + k };

	return at_item(j, &q, t->n_dims, t->boxes + (size_t)k * 2 * t->n_dims, rank, each, arg, e);
}

static int look_at_quantised(void *arg, const struct dcp_inside *q, struct ckpt_err *e)
{
	const struct join *j = arg;

	return j->o->quantised(j->o->arg, j->r, q, e);
}

static int look_at_wrapped(void *arg, const struct dcp_inside *q, struct ckpt_err *e)
{
	const struct join *j = arg;

	return j->o->wrapped(j->o->arg, j->r, q, e);
}

struct cut_in_join {
	struct dcp_cut of;
	struct join *j;
	const uint32_t *ranks;
};

static int at_cut(const struct dcp_cut *of, uint32_t k, dcp_inside_fn *each, void *arg,
		  struct ckpt_err *e)
{
	const struct cut_in_join *x = of->join;

	return at_chunk(x->j, of->t, k, x->ranks[k], each, arg, e);
}

static int look_at_cut(struct join *j, const struct tensor_chunks *t, const uint32_t *ranks,
		       struct ckpt_err *e)
{
	struct cut_in_join x = { { j->r, t, at_cut, &x }, j, ranks };

	return j->o->cut(j->o->arg, &x.of, j->not_shown, e);
}

/* Quantisers are in the items; those of several chunks may differ. */
static bool is_quantised(const struct tensor_chunks *t)
{
	return t->count == 1 && t->dtype >= CKPT_DTYPE_QI8 && t->dtype <= CKPT_DTYPE_QU2X4;
}

/*
 * Tensors that are made of others, such as torchao's, look like any other tensor in the metadata:
 * of the elements that they stand for, in one chunk or many. Their items have other sizes. Those of
 * small tensors tell nothing: they are opened if there is such a tensor elsewhere. Where many large
 * ones have other sizes for another reason, such as a storage of more elements, no more are opened.
 */
enum size { AS_IT_SEEMS, OTHER, SMALL };

static enum size size_of(const struct tensor_chunks *t)
{
	uint64_t bytes;

	if (!t->count || is_quantised(t) || t->locs->file == CATALOG_NO_FILE ||
	    !box_volume(t->n_dims, t->boxes + t->n_dims, &bytes) ||
	    ckd_mul(&bytes, bytes, dtype_info(t->dtype)->size))
		return AS_IT_SEEMS;
	if (t->locs->length < bytes || t->locs->length - bytes > ARCHIVE_BYTES)
		return OTHER;
	return bytes <= SMALL_BYTES ? SMALL : AS_IT_SEEMS;
}

/* 1 if the tensor has been reported, or is to be looked at later. */
static int join_wrapped(struct join *j, const struct tensor_chunks *t, const uint32_t *ranks,
			struct ckpt_err *e)
{
	enum size size = size_of(t);
	int rc;

	if (size == AS_IT_SEEMS || (size == OTHER && j->in_vain == MAX_IN_VAIN) ||
	    (size == SMALL && !j->can_wait && (!j->found || j->n_later > MAX_LATER)))
		return 0;
	if (size == SMALL && j->can_wait) {
		if (!VEC_ROOM(j->later, j->cap_later, j->n_later + 1))
			return err_nomem(e);
		j->later[j->n_later++] = j->present;
		return 1;
	}
	rc = t->count == 1 ? at_chunk(j, t, 0, *ranks, look_at_wrapped, j, e)
			   : look_at_cut(j, t, ranks, e);
	j->found |= rc > 0;
	if (size == OTHER)
		j->in_vain = rc ? 0 : j->in_vain + 1;
	return rc;
}

/* Makes one tensor of the entries [from, to) of j->entries, which agree in dtype and shape. */
static int join_tensor(struct join *j, const struct named *name, size_t from, size_t to,
		       struct ckpt_err *e)
{
	const struct dcp_entry *head = &j->r->entries[j->entries[from]];
	struct tensor_chunks t = { .fqn = name->fqn,
				   .fqn_len = name->len,
				   .path = name->path,
				   .dtype = head->dtype,
				   .n_dims = head->n_dims };
	size_t n = head->n_dims, count = 0, k = 0;
	autofree uint32_t *ranks = NULL;
	uint64_t shape[CKPT_MAX_DIMS], before[CKPT_MAX_DIMS];
	bool step, sorted;
	int rc = 0;

	for (size_t i = from; i < to; i++)
		count += j->r->entries[j->entries[i]].count;
	if (2 * n * count > DCP_MAX_NUMBERS)
		return err_set(e, EFBIG, "'%s' has too many chunks, %zu", name->fqn, count);
	ranks = malloc((count + 1) * sizeof(*ranks));
	if (!ranks || !VEC_ROOM(j->boxes, j->cap_boxes, 2 * n * count + 1) ||
	    !VEC_ROOM(j->locs, j->cap_locs, count + 1))
		return err_nomem(e);
	for (size_t i = from; i < to; i++) {
		const struct dcp_entry *entry = &j->r->entries[j->entries[i]];
		const uint8_t *p = j->r->chunks.data + entry->at;

		for (size_t d = 0; d < n; d++)
			shape[d] = get_varint(&p);
		for (uint32_t c = 0; c < entry->count; c++, k++) {
			ranks[k] = entry->rank;
			for (size_t d = 0; d < 2 * n; d++)
				j->boxes[k * 2 * n + d] = get_varint(&p);
		}
	}
	sorted = j->stored.sorted;
	step = dcp_storage_in_step(&j->stored, j->boxes, ranks, n, count);
	for (k = 0; !rc && k < count; k++)
		rc = locate(j, &t, j->boxes + k * 2 * n, ranks[k],
			    step && j->stored.sorted == sorted ? &j->stored.v[k] : NULL,
			    &j->locs[k], e);
	if (rc)
		return rc;
	t.shape = shape;
	t.n_before = shape_before(j, from, to, before);
	t.before = before;
	t.count = (uint32_t)count;
	t.boxes = j->boxes;
	t.locs = j->locs;
	t.apart = to - from > 1;
	if (j->o->wrapped)
		rc = join_wrapped(j, &t, ranks, e);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = catalog_add_tensor(j->w, &t, e);
	return rc || !j->o->quantised || !is_quantised(&t)
		       ? rc
		       : at_chunk(j, &t, 0, *ranks, look_at_quantised, j, e);
}

static const struct dcp_stored *object_of(struct join *j, size_t at)
{
	struct dcp_stored key = { .rank = j->r->entries[j->entries[at]].rank, .is_bytes = true };

	return dcp_storage_find(&j->stored, &key);
}

static int join_object(struct join *j, const struct named *name, size_t at, struct ckpt_err *e)
{
	const struct dcp_stored *s = object_of(j, at);
	struct object_item o = { .fqn = name->fqn,
				 .fqn_len = name->len,
				 .path = name->path,
				 .loc = { .file = CATALOG_NO_FILE } };

	if (s)
		o.loc = s->loc;
	return catalog_add_object(j->w, &o, e);
}

static bool same_tensor(const struct dcp_records *r, const struct dcp_entry *a,
			const struct dcp_entry *b)
{
	const uint8_t *p, *q;

	if (!a->dtype || a->dtype != b->dtype || a->n_dims != b->n_dims)
		return false;
	if (!a->n_dims)
		return true;
	p = r->chunks.data + a->at;
	q = r->chunks.data + b->at;
	for (size_t d = 0; d < a->n_dims; d++)
		if (get_varint(&p) != get_varint(&q))
			return false;
	return true;
}

/* 1 if the entries of all ranks are objects that hold the same bytes. */
static int same_objects(struct join *j, struct ckpt_err *e)
{
	const struct dcp_stored *a = object_of(j, 0);
	int rc = 1;

	if (!j->o->same_object || !a)
		return 0;
	for (size_t i = 0; rc > 0 && i < j->n_entries; i++) {
		const struct dcp_stored *b = object_of(j, i);

		if (j->r->entries[j->entries[i]].dtype || !b || a->loc.length != b->loc.length)
			return 0;
		if (i)
			rc = j->o->same_object(j->o->arg, pk_string(j->r->strings, a->path)->data,
					       a->loc.offset,
					       pk_string(j->r->strings, b->path)->data,
					       b->loc.offset, a->loc.length, e);
	}
	return rc;
}

/*
 * A rank's entry under a name of its own: "@rankN" extends the last key, which then no longer is a
 * list position.
 */
static int join_apart(struct join *j, const struct pk_str *fqn, size_t at, struct ckpt_err *e)
{
	const struct dcp_entry *entry = &j->r->entries[j->entries[at]];
	const uint8_t *from = dcp_entry_path(j->r, entry);
	size_t n = catalog_path_size(from);
	autofree char *text = malloc((size_t)fqn->len + 32);
	autofree uint8_t *path = malloc(n);
	struct named name = { .fqn = text, .len = fqn->len, .path = path };

	if (!text || !path)
		return err_nomem(e);
	memcpy(text, fqn->data, fqn->len);
	name.len += (size_t)snprintf(text + fqn->len, 32, "@rank%u", entry->rank);
	memcpy(path, from, n);
	catalog_path_end_in_key(path);
	return entry->dtype ? join_tensor(j, &name, at, at + 1, e) : join_object(j, &name, at, e);
}

/* Is it all of a tensor that is not empty? */
static bool is_whole(const struct join *j, const struct dcp_entry *entry)
{
	const uint8_t *p = j->r->chunks.data + entry->at;
	uint64_t shape[CKPT_MAX_DIMS], volume;
	bool whole = entry->count == 1;

	for (size_t d = 0; d < entry->n_dims; d++)
		shape[d] = get_varint(&p);
	for (size_t d = 0; whole && d < entry->n_dims; d++)
		whole = !get_varint(&p);
	for (size_t d = 0; whole && d < entry->n_dims; d++)
		whole = get_varint(&p) == shape[d];
	return whole && box_volume(entry->n_dims, shape, &volume) && volume;
}

struct sampling {
	const struct dcp_join_opts *o;
	struct digest digest; /* zero: unknown */
	uint32_t encoding;    /* only digests of one encoding can be compared */
};

static int sample(void *arg, const struct dcp_inside *q, struct ckpt_err *e)
{
	struct sampling *x = arg;

	x->encoding = q->loc->encoding;
	return x->o->sample(x->o->arg, q, &x->digest, e);
}

/*
 * 1: the ranks have copies, or parts, of one tensor, or are not known to have different ones: items
 * that cannot be compared are copies nearly always.
 */
static int same_values(struct join *j, const struct named *name, struct ckpt_err *e)
{
	const uint64_t zero[CKPT_MAX_DIMS] = { 0 };
	const struct digest unknown = { 0 };
	struct sampling known[4]; /* the first of each encoding */
	size_t n_known = 0;

	for (size_t i = 0; i < j->n_entries; i++)
		if (!is_whole(j, &j->r->entries[j->entries[i]]))
			return 1;
	for (size_t i = 0; i < j->n_entries; i++) {
		const struct dcp_entry *entry = &j->r->entries[j->entries[i]];
		struct dcp_inside q = { .fqn = name->fqn,
					.fqn_len = name->len,
					.fqn_path = name->path };
		struct sampling x = { .o = j->o };
		int rc = at_item(j, &q, entry->n_dims, zero, entry->rank, sample, &x, e);
		size_t k = 0;

		if (rc)
			return rc;
		if (!memcmp(&x.digest, &unknown, sizeof(unknown)))
			continue;
		while (k < n_known && known[k].encoding != x.encoding)
			k++;
		if (k < n_known && memcmp(&x.digest, &known[k].digest, sizeof(unknown)) != 0)
			return 0;
		if (k == n_known && k < ARRAY_LEN(known))
			known[n_known++] = x;
	}
	return 1;
}

/* All entries of one FQN. */
static int join_fqn(struct join *j, const struct pk_str *fqn, struct ckpt_err *e)
{
	const struct dcp_entry *head = &j->r->entries[j->entries[0]];
	struct named name = { fqn->data, fqn->len, shared_path(j) };
	bool same = true;
	int rc = dcp_storage_load(&j->stored, fqn, e);

	for (size_t i = 1; i < j->n_entries; i++)
		same &= same_tensor(j->r, head, &j->r->entries[j->entries[i]]);
	same &= head->dtype != CKPT_DTYPE_NONE;
	/* When it can no longer wait, its values have been compared already. */
	if (!rc && same && j->n_entries > 1 && j->o->sample && j->can_wait)
		rc = same_values(j, &name, e);
	else if (!rc)
		rc = same;
	if (rc)
		return rc < 0 ? rc : join_tensor(j, &name, 0, j->n_entries, e);
	j->can_wait = false; /* FQN@rankN is reported at once */
	rc = j->n_entries == 1 ? 1 : same_objects(j, e);
	if (rc > 0)
		return join_object(j, &name, 0, e);
	for (size_t i = 0; !rc && j->o->many && i < j->n_entries; i++)
		rc = join_apart(j, fqn, i, e);
	return rc;
}

/* The chain of entries that begins at `head`, by rank. */
static int collect_entries(struct join *j, uint32_t head, struct ckpt_err *e)
{
	size_t n = 0;

	for (uint32_t i = head; i != DCP_NO_TENSOR; i = j->r->entries[i].next)
		n++;
	if (!VEC_ROOM(j->entries, j->cap_entries, n))
		return err_nomem(e);
	j->n_entries = n;
	/* Files are read in rank order and chains begin with the newest. */
	for (uint32_t i = head; i != DCP_NO_TENSOR; i = j->r->entries[i].next)
		j->entries[--n] = i;
	return 0;
}

static int join_entry(struct join *j, uint32_t i, bool can_wait, struct ckpt_err *e)
{
	int rc = collect_entries(j, i, e);

	j->present = i;
	j->can_wait = can_wait;
	return rc ? rc : join_fqn(j, pk_string(j->r->strings, j->r->entries[i].fqn), e);
}

/*
 * FSDP1's LOCAL_STATE_DICT has a flat parameter for each module that was wrapped and, with
 * use_orig_params=True, each rank's pieces of it under the parameters' names. They look like
 * tensors that all ranks have, so DCP saves those of one rank.
 */
static void note_flat(struct join *j, const struct dcp_entry *entry)
{
	const struct pk_str *fqn = pk_string(j->r->strings, entry->fqn);

	if (entry->dtype && bytes_end(fqn->data, fqn->len, "_flat_param"))
		(void)format_note(
			j->not_shown,
			"the parameters that FSDP1 has flattened (LOCAL_STATE_DICT): the "
			"checkpoint records neither their shapes nor where they are; flat "
			"parameters are shown as they are, and anything under a "
			"parameter's own name is only one rank's piece of it; save with "
			"SHARDED_STATE_DICT");
}

int dcp_join(struct dcp_records *r, const struct dcp_join_opts *o, struct catalog_writer *w,
	     struct ckpt_err *e)
{
	struct join j = {
		.r = r,
		.o = o,
		.w = w,
		.stored = { .r = r, .dir = o->dir, .dir_len = o->dir_len, .w = w },
	};
	int rc = dcp_storage_init(&j.stored, e);

	for (uint32_t i = 0; !rc && i < r->n_entries; i++) {
		note_flat(&j, &r->entries[i]);
		if (r->by_fqn[r->entries[i].fqn] == i) /* the newest of a chain represents all */
			rc = join_entry(&j, i, true, e);
	}
	for (size_t i = 0; !rc && i < j.n_later; i++)
		rc = join_entry(&j, j.later[i], false, e);
	if (!rc)
		rc = format_tell(FORMAT_NOT_SHOWN, j.not_shown, w, e);
	free(j.later);
	dcp_storage_release(&j.stored);
	free(j.entries);
	free(j.boxes);
	free(j.locs);
	return rc;
}
