/* SPDX-License-Identifier: Apache-2.0 */
#include "format/safetensors/st_pieces.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/part_names.h"
#include "format/st_index.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "model/box.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes for the descriptions of the tensors of all files: a few million tensors. */
#define MAX_PIECES ((size_t)256 << 20)

static const char sharding_key[] = "DCP_SHARDING_INFO";

struct st_piece {
	const char *file, *fqn;
	char *fault;		 /* why it cannot be read, or NULL */
	uint64_t offset, length; /* bytes, in the file */
	enum ckpt_dtype dtype;
	size_t n_dims;
	bool placed;	/* the file gives its position in the tensor */
	uint64_t box[]; /* offsets and lengths, followed by the FQN */
};

/* ---- one file ---- */

bool st_is_sharded(const struct st_header *h)
{
	return st_metadata(h, sharding_key) != NULL;
}

/* The positions of the pieces of one file. */
struct placing {
	struct jdoc doc;
	uint32_t *of; /* by tensor of the file: its value in doc; NULL: whole tensors */
};

static void placing_release(struct placing *p)
{
	jdoc_release(&p->doc);
	free(p->of);
}

/* The offsets of tensor number i, which has n_dims dimensions. */
static int read_offsets(const struct placing *p, const struct st_tensor *t, size_t i, uint64_t *ret,
			struct ckpt_err *e)
{
	struct jval entry = { &p->doc, p->of[i] };
	size_t n;

	if (!entry.i)
		return err_set(e, ERR_CORRUPT, "%s does not name '%.200s'", sharding_key, t->name);
	if (!jval_u64s(jval_get(entry, "saved_offsets"), ret, t->n_dims, &n) || n != t->n_dims)
		return err_set(e, ERR_CORRUPT,
			       "%s: '%.200s': its saved_offsets are not a list of %zu numbers",
			       sharding_key, t->name, t->n_dims);
	return 0;
}

static int read_sharding(const struct st_header *h, struct placing *p, struct ckpt_err *e)
{
	const char *text = st_metadata(h, sharding_key);
	struct jiter i;

	if (!text)
		return 0;
	if (jdoc_parse_copy(&p->doc, text, strlen(text), 0, e))
		return err_wrap(e, "%s is not JSON", sharding_key);
	if (!jval_is(jdoc_root(&p->doc), J_OBJECT))
		return err_set(e, ERR_CORRUPT, "%s is not a JSON object", sharding_key);
	p->of = calloc(st_count(h) + 1, sizeof(*p->of));
	if (!p->of)
		return err_nomem(e);
	for (i = jiter(jdoc_root(&p->doc)); jiter_next(&i);) {
		const struct st_tensor *t = st_find(h, i.key, i.key_len);

		if (!t)
			return err_set(e, ERR_CORRUPT,
				       "%s names '%.200s', which the file does not hold",
				       sharding_key, i.key);
		p->of[t - st_tensor(h, 0)] = i.v.i;
	}
	return 0;
}

/*
 * Sizes in elements of the dtype used here. The format counts 4-bit values singly and torch in
 * pairs, also in saved_offsets (torch/distributed/checkpoint/hf_storage.py).
 */
static int read_sizes(const struct st_tensor *t, struct st_piece *p, uint64_t *len)
{
	uint64_t *last = t->n_dims ? &len[t->n_dims - 1] : NULL;

	if (t->n_dims)
		memcpy(len, t->shape, t->n_dims * sizeof(*len));
	if (t->dtype == CKPT_DTYPE_NONE) {
		p->fault =
			text_format("a tensor of dtype '%.40s', which is not known", t->dtype_name);
		return p->fault ? 1 : -1;
	}
	if (t->dtype != CKPT_DTYPE_F4_E2M1FN_X2)
		return 0;
	if (*last % 2) { /* has dimensions: the header check refuses a lone half byte */
		p->fault = text_format(
			"a tensor of dtype '%s' whose rows of %llu values end within a byte",
			t->dtype_name, (unsigned long long)*last);
		return p->fault ? 1 : -1;
	}
	*last /= 2;
	return 0;
}

static void piece_free(struct st_piece *p)
{
	if (p)
		free(p->fault);
	free(p);
}

CLEANUP_POINTER(piece_freep, struct st_piece, piece_free)

static int add_tensor(struct st_pieces *all, const char *file, const struct st_header *h, size_t i,
		      const struct placing *where, struct ckpt_err *e)
{
	const struct st_tensor *t = st_tensor(h, i);
	size_t n = t->n_dims, name_size = strlen(t->name) + 1;
	size_t size = sizeof(struct st_piece) + 2 * n * sizeof(uint64_t) + name_size;
	CLEANUP(piece_freep) struct st_piece *p = NULL;
	int rc;

	if (size > MAX_PIECES - all->bytes)
		return err_set(e, EFBIG,
			       "the names and shapes of all tensors take more than %zu MiB",
			       MAX_PIECES >> 20);
	p = calloc(1, size);
	if (!p)
		return err_nomem(e);
	all->bytes += size;
	p->file = file;
	p->fqn = memcpy(p->box + 2 * n, t->name, name_size);
	p->offset = st_data(h) + t->begin;
	p->length = t->end - t->begin;
	p->dtype = t->dtype;
	p->n_dims = n;
	p->placed = where->of != NULL;
	if (read_sizes(t, p, p->box + n) < 0)
		return err_nomem(e);
	rc = where->of ? read_offsets(where, t, i, p->box, e) : 0;
	if (rc)
		return rc;
	for (size_t d = 0; d < n; d++) {
		uint64_t end;

		if (ckd_add(&end, p->box[d], p->box[n + d]) || end > INT64_MAX)
			return err_set(e, ERR_CORRUPT, "%s: '%.200s': an offset of %llu",
				       sharding_key, t->name, (unsigned long long)p->box[d]);
	}
	if (!VEC_ROOM(all->v, all->cap, all->n + 1))
		return err_nomem(e);
	all->v[all->n++] = steal_ptr(&p);
	return 0;
}

int st_pieces_add(struct st_pieces *p, const char *file, const struct st_header *h,
		  struct ckpt_err *e)
{
	CLEANUP(placing_release) struct placing where = { 0 };
	int rc = name_list_add(&p->files, file, e);

	if (!rc)
		rc = read_sharding(h, &where, e);
	for (size_t i = 0; !rc && i < st_count(h); i++)
		rc = add_tensor(p, p->files.v[p->files.n - 1], h, i, &where, e);
	return rc;
}

void st_pieces_release(struct st_pieces *p)
{
	for (size_t i = 0; i < p->n; i++)
		piece_free(p->v[i]);
	free(p->v);
	name_list_release(&p->files);
	*p = (struct st_pieces){ 0 };
}

/* ---- all of them ---- */

struct join {
	struct st_pieces *pieces;
	const struct st_index *index; /* or NULL */
	struct st_index_differs unnamed, elsewhere;
	struct catalog_writer *w;
	uint32_t encoding;
	uint64_t *boxes; /* of the current tensor, and where they are stored */
	struct chunk_loc *locs;
	size_t cap_boxes, cap_locs;
	uint64_t cover_work; /* left for all tensors */
};

static int by_fqn(const void *ap, const void *bp)
{
	const struct st_piece *a = *(const struct st_piece *const *)ap;
	const struct st_piece *b = *(const struct st_piece *const *)bp;
	int c = strcmp(a->fqn, b->fqn);

	return c ? c : text_natural_cmp(a->file, strlen(a->file), b->file, strlen(b->file));
}

/* FQN and file names are untrusted and may be long; the sentence has to fit. */
static const char *show(const char *s, char out[static 120])
{
	return text_show(s, strlen(s), out, 120);
}

static const char *dtype_of(const struct st_piece *p)
{
	return p->dtype == CKPT_DTYPE_NONE ? "a dtype that is not known"
					   : dtype_info(p->dtype)->name;
}

/* Can two pieces belong to one tensor? */
static int check_pair(const struct st_piece *a, const struct st_piece *b, struct ckpt_err *e)
{
	char fqn[120];

	if ((!a->placed || !b->placed) && part_is_of_ranks(a->file, b->file))
		return err_set(
			e, ERR_CORRUPT,
			"tensor '%s' is in both '%.80s' and '%.80s', the files of two ranks, "
			"whose slices ckptfs does not join: name the model from which they "
			"were made",
			show(a->fqn, fqn), a->file, b->file);
	if (!a->placed || !b->placed)
		return err_set(e, ERR_CORRUPT,
			       "tensor '%s' is in both '%.100s' and '%.100s': name one of them "
			       "instead of the directory",
			       show(a->fqn, fqn), a->file, b->file);
	if (a->dtype != b->dtype)
		return err_set(e, ERR_CORRUPT, "tensor '%s' has %s in '%.80s' and %s in '%.80s'",
			       show(a->fqn, fqn), dtype_of(a), a->file, dtype_of(b), b->file);
	if (a->n_dims != b->n_dims)
		return err_set(e, ERR_CORRUPT,
			       "tensor '%s' has %zu dimensions in '%.80s' and %zu in '%.80s'",
			       show(a->fqn, fqn), a->n_dims, a->file, b->n_dims, b->file);
	return 0;
}

/* Makes room for the boxes of n pieces; contents are not kept. */
static int reserve(struct join *j, size_t n, size_t numbers, struct ckpt_err *e)
{
	if (n > j->cap_locs || !j->locs) {
		free(j->locs);
		j->locs = calloc(n, sizeof(*j->locs));
		j->cap_locs = j->locs ? n : 0;
	}
	if (numbers > j->cap_boxes || !j->boxes) {
		free(j->boxes);
		j->boxes = calloc(numbers + 1, sizeof(*j->boxes));
		j->cap_boxes = j->boxes ? numbers : 0;
	}
	return j->locs && j->boxes ? 0 : err_nomem(e);
}

static bool is_empty(const struct st_piece *p)
{
	for (size_t d = 0; d < p->n_dims; d++)
		if (!p->box[p->n_dims + d])
			return true;
	return false;
}

/* The file of piece number k, not counting empty pieces. */
static const char *file_of(struct st_piece *const *v, size_t k)
{
	while (is_empty(*v) || k--)
		v++;
	return (*v)->file;
}

/* Each element is saved once. If two files have it, one is left over from an earlier save, and it
 * is unknown which. */
static int check_overlap(struct join *j, const struct tensor_chunks *t, struct st_piece *const *v,
			 struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	char fqn[120];
	size_t pair[2];

	if (t->count < 2 || boxes_cover(t->n_dims, t->shape, t->boxes, t->count, &j->cover_work,
					off, len, pair) != BOXES_OVERLAP)
		return 0;
	return err_set(e, ERR_CORRUPT, "tensor '%s': its pieces in '%.100s' and '%.100s' overlap",
		       show(t->fqn, fqn), file_of(v, pair[0]), file_of(v, pair[1]));
}

/* Makes a tensor of the n pieces v. */
static int join_tensor(struct join *j, struct st_piece *const *v, size_t n, struct ckpt_err *e)
{
	uint64_t shape[CKPT_MAX_DIMS] = { 0 };
	size_t dims = v[0]->n_dims;
	struct tensor_chunks t = { .fqn = v[0]->fqn,
				   .fqn_len = strlen(v[0]->fqn),
				   .path = catalog_path_flat,
				   .dtype = v[0]->dtype,
				   .n_dims = dims,
				   .shape = shape };
	int rc = reserve(j, n, 2 * dims * n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		struct chunk_loc *l = &j->locs[t.count];

		for (size_t d = 0; d < dims; d++)
			shape[d] = max_u64(shape[d], v[i]->box[d] + v[i]->box[dims + d]);
		if (is_empty(v[i]))
			continue;
		*l = (struct chunk_loc){ .offset = v[i]->offset,
					 .length = v[i]->length,
					 .encoding = j->encoding };
		rc = catalog_add_source(j->w, v[i]->file, strlen(v[i]->file), &l->file, e);
		memcpy(j->boxes + 2 * dims * t.count++, v[i]->box, 2 * dims * sizeof(*j->boxes));
	}
	t.boxes = j->boxes;
	t.locs = j->locs;
	if (!rc)
		rc = check_overlap(j, &t, v, e);
	return rc ? rc : catalog_add_tensor(j->w, &t, e);
}

static int add_unreadable(struct join *j, const char *fqn, const char *fault, struct ckpt_err *e)
{
	struct object_item o = {
		.fqn = fqn, .fqn_len = strlen(fqn), .path = catalog_path_flat, .fault = fault
	};

	return catalog_add_object(j->w, &o, e);
}

/* Notes it if the tensor of n pieces is not where the index says. Offsets are more precise than the
 * one file that it can name. */
static void compare_index(struct join *j, const struct st_index_entry *entry,
			  struct st_piece *const *v, size_t n)
{
	for (size_t i = 0; entry && i < n; i++)
		if (v[i]->placed || !strcmp(v[i]->file, entry->file))
			return;
	st_index_note(entry ? &j->elsewhere : &j->unnamed, v[0]->fqn, strlen(v[0]->fqn),
		      v[0]->file);
}

/* Several files may have a tied tensor whole: then the one in the file that the index names counts.
 * NULL: there is none. */
static struct st_piece *const *named_one(const struct st_index_entry *entry,
					 struct st_piece *const *v, size_t n)
{
	struct st_piece *const *found = NULL;

	for (size_t i = 0; i < n; i++) {
		if (v[i]->placed)
			return NULL;
		if (!strcmp(v[i]->file, entry->file))
			found = &v[i];
	}
	return found;
}

static int join_fqn(struct join *j, const struct st_index_entry *entry, struct st_piece *const *v,
		    size_t n, struct ckpt_err *e)
{
	struct st_piece *const *named = entry && n > 1 ? named_one(entry, v, n) : NULL;
	const char *fault;
	int rc = 0;

	if (named) {
		v = named;
		n = 1;
	}
	fault = v[0]->fault;
	for (size_t i = 1; !rc && i < n; i++) {
		rc = check_pair(v[0], v[i], e);
		fault = fault ? fault : v[i]->fault;
	}
	if (rc)
		return rc;
	if (j->index)
		compare_index(j, entry, v, n);
	return fault ? add_unreadable(j, v[0]->fqn, fault, e) : join_tensor(j, v, n, e);
}

/* A tensor that the index names but no file holds. */
static int add_absent(const struct join *j, const struct st_index_entry *entry, struct ckpt_err *e)
{
	bool is_there = name_list_has(&j->pieces->files, entry->file);

	return st_index_add_absent(entry, is_there, j->w, e);
}

/* Pieces and index entries are both sorted by name: merge them. */
static int join_all(struct join *j, struct ckpt_err *e)
{
	const struct st_index_entry *entries = j->index ? j->index->entries : NULL;
	size_t n_entries = j->index ? j->index->n_entries : 0, k = 0;
	struct st_piece **v = j->pieces->v;
	size_t n = j->pieces->n, at = 0, to;
	int rc = 0;

	for (; !rc && (at < n || k < n_entries); at = to) {
		int c = at == n ? 1 : k == n_entries ? -1 : strcmp(v[at]->fqn, entries[k].tensor);

		to = at;
		while (c <= 0 && to < n && !strcmp(v[to]->fqn, v[at]->fqn))
			to++;
		if (c > 0)
			rc = add_absent(j, &entries[k++], e);
		else
			rc = join_fqn(j, c ? NULL : &entries[k++], v + at, to - at, e);
	}
	return rc;
}

int st_pieces_join(struct st_pieces *p, const struct st_index *index, const char *index_name,
		   struct catalog_writer *w, struct ckpt_err *e)
{
	struct join j = { .pieces = p, .index = index, .w = w, .cover_work = BOXES_MAX_WORK };
	int rc = catalog_add_encoding(w, "raw", &j.encoding, e);

	if (p->n)
		qsort(p->v, p->n, sizeof(*p->v), by_fqn);
	name_list_sort(&p->files); /* for name_list_has */
	if (!rc)
		rc = join_all(&j, e);
	if (!rc && index)
		rc = st_index_tell(index_name, &j.unnamed, &j.elsewhere, w, e);
	free(j.boxes);
	free(j.locs);
	return rc;
}
