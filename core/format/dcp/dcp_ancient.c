/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch 1.12 wrote as torch.distributed._shard.checkpoint. Every tensor, shard and object has
 * a torch.save file of its own, and the pickle in .metadata is
 *
 *	Metadata
 *	  state_dict_metadata : {fqn: one of the following}
 *	TensorStorageMetadata	      storage_key, the file's name; size
 *	BytesStorageMetadata	      storage_key, length
 *	ShardedTensorStorageMetadata  tensor_metadata: ShardedTensorMetadata (size, tensor_properties)
 *				      storage_metadata: [ShardStorageMetadata]
 *	ShardStorageMetadata	      shard_metadata: ShardMetadata (shard_offsets, shard_sizes)
 *				      storage_key
 *
 * A tensor's dtype is in its file only, so the files of whole tensors are opened for the index,
 * which therefore depends on all files.
 */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "format/metafile.h"
#include "format/torch/torchsave.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "parse/pickle.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PICKLE ((size_t)1 << 30)
enum { MAX_NAME = 4096 };

struct ancient {
	struct place *place;
	struct catalog_writer *w;
	const char *dir; /* the first dir_len bytes: of the data files */
	size_t dir_len;
	uint32_t plain;
	uint32_t n_chunks; /* of all tensors so far */
	uint64_t *boxes;
	struct chunk_loc *locs;
	struct buf path;
	uint64_t files; /* how often a file may still be named */
};

static int wrong(struct ckpt_err *e, const struct pk_str *fqn)
{
	return err_set(e, ERR_CORRUPT, "'%.200s' is not described as torch 1.12 describes it",
		       fqn->data);
}

static bool is_class(const struct pk_value *v, const char *name)
{
	return v && v->type == PK_OBJECT && pk_is(&v->n->own[PK_CALLEE], NULL, name);
}

/* ShardMetadata has slots: its state is (None, attributes). */
static const struct pk_value *slot(const struct pk_value *v, const char *name)
{
	const struct pk_value *found = pk_attr(v, name), *state;

	if (found || !v || v->type != PK_OBJECT)
		return found;
	state = &v->n->own[PK_STATE];
	return pk_list_len(state) == 2 ? pk_get(&state->n->v[1], name) : NULL;
}

/* The name of the file, in x->path, and its number. 1, or 0 if the file is missing. */
static int find_file(struct ancient *x, const struct pk_str *fqn, const struct pk_value *key,
		     uint32_t *ret, struct place_seen *ret_seen, struct ckpt_err *e)
{
	int rc, found;

	if (!x->files--)
		return err_set(e, ERR_UNSUPPORTED,
			       "what was saved refers to more files than it has bytes");
	if (!key || key->type != PK_STR || strlen(key->s->data) != key->s->len)
		return wrong(e, fqn);
	x->path.len = 0;
	buf_add(&x->path, x->dir, x->dir_len);
	buf_add(&x->path, key->s->data, key->s->len);
	buf_str(&x->path, "");
	if (buf_check(&x->path, e, "'%.200s': a long file name", fqn->data))
		return -e->code;
	rc = catalog_add_source(x->w, x->path.data, x->path.len, ret, e); /* checks the name */
	if (rc)
		return err_wrap(e, "'%.200s'", fqn->data);
	found = rc = place_look(x->place, x->path.data, ret_seen, e);
	if (rc >= 0)
		rc = catalog_add_metadata(x->w, x->path.data, rc ? ret_seen : NULL, NULL, e);
	return rc < 0 ? err_wrap(e, "'%.200s'", fqn->data) : found;
}

/* Lists it with the reason why it cannot be shown. */
static int add_fault(struct ancient *x, const struct pk_str *fqn, const char *fault,
		     struct ckpt_err *e)
{
	const struct object_item o = { .fqn = fqn->data,
				       .fqn_len = fqn->len,
				       .path = catalog_path_flat,
				       .loc = { .file = CATALOG_NO_FILE },
				       .fault = fault };

	return catalog_add_object(x->w, &o, e);
}

static int add_object(struct ancient *x, const struct pk_str *fqn, const struct pk_value *v,
		      struct ckpt_err *e)
{
	struct object_item o = { .fqn = fqn->data,
				 .fqn_len = fqn->len,
				 .path = catalog_path_flat,
				 .loc = { .encoding = x->plain } };
	struct place_seen seen;
	int rc = find_file(x, fqn, pk_attr(v, "storage_key"), &o.loc.file, &seen, e);

	if (rc < 0)
		return rc;
	if (!rc)
		return add_fault(x, fqn, "its file is missing", e);
	o.loc.length = seen.size;
	return catalog_add_object(x->w, &o, e);
}

static int add_tensor(struct ancient *x, const struct pk_str *fqn, const struct pk_value *v,
		      struct ckpt_err *e)
{
	const char *const steps[] = { fqn->data, NULL };
	struct source *file CLEANUP(source_freep) = NULL;
	struct torchsave t = { 0 };
	struct pk_value root;
	struct blob blob;
	struct place_seen seen;
	uint32_t number;
	int rc = find_file(x, fqn, pk_attr(v, "storage_key"), &number, &seen, e);

	if (rc < 0 || strlen(fqn->data) != fqn->len)
		return rc < 0 ? rc : wrong(e, fqn);
	if (!rc)
		return add_fault(x, fqn, "its file is missing", e);
	rc = place_file(x->place, x->path.data, &file, e);
	if (rc)
		return rc;
	blob = source_blob(file);
	rc = torchsave_open(&t, &blob, e);
	if (!rc) {
		root = pickle_root(t.pickle);
		rc = torchsave_report_at(&t, x->path.data, &root, steps, x->w, e);
	}
	torchsave_release(&t);
	if (!rc && (!place_id_equal(&file->seen.id, &seen.id) || !source_is_same(file)))
		rc = err_set(e, EAGAIN, "it changed while it was read; is a save going on?");
	return rc ? err_wrap(e, "read '%.200s'", x->path.data) : 0;
}

/* The dtype is the first of a tuple. */
static enum ckpt_dtype dtype_of(const struct pk_value *properties)
{
	const struct pk_value *state =
		properties && properties->type == PK_OBJECT ? &properties->n->own[PK_STATE] : NULL;
	const struct pk_value *v =
		pk_list_len(state) ? &state->n->v[0] : pk_attr(properties, "dtype");

	return v && v->type == PK_GLOBAL ? ckpt_dtype_by_name(v->g->name->data, v->g->name->len)
					 : CKPT_DTYPE_NONE;
}

static int add_sharded(struct ancient *x, const struct pk_str *fqn, const struct pk_value *v,
		       struct ckpt_err *e)
{
	const struct pk_value *whole = pk_attr(v, "tensor_metadata");
	const struct pk_value *shards = pk_attr(v, "storage_metadata");
	uint64_t shape[CKPT_MAX_DIMS], *box;
	struct tensor_chunks t = { .fqn = fqn->data,
				   .fqn_len = fqn->len,
				   .path = catalog_path_flat,
				   .dtype = dtype_of(pk_attr(whole, "tensor_properties")),
				   .shape = shape,
				   .count = (uint32_t)pk_list_len(shards) };
	size_t n;

	if (t.dtype == CKPT_DTYPE_NONE || !shards ||
	    !pk_numbers(pk_attr(whole, "size"), shape, CKPT_MAX_DIMS, &t.n_dims))
		return wrong(e, fqn);
	if (pk_list_len(shards) > DCP_MAX_CHUNKS - x->n_chunks ||
	    2 * t.n_dims * t.count > DCP_MAX_NUMBERS)
		return err_set(e, EFBIG, "there are more than %u chunks, or '%.200s' has too many",
			       DCP_MAX_CHUNKS, fqn->data);
	x->n_chunks += t.count;
	free(x->boxes);
	free(x->locs);
	t.boxes = x->boxes = calloc(2 * t.n_dims * t.count + 1, sizeof(*x->boxes));
	t.locs = x->locs = calloc(t.count + (size_t)1, sizeof(*x->locs));
	if (!x->boxes || !x->locs)
		return err_nomem(e);
	for (uint32_t i = 0; i < t.count; i++) {
		struct place_seen seen;
		const struct pk_value *shard = &shards->n->v[i];
		const struct pk_value *part = pk_attr(shard, "shard_metadata");
		struct chunk_loc *loc = &x->locs[i];
		int rc = find_file(x, fqn, pk_attr(shard, "storage_key"), &loc->file, &seen, e);
		bool there = rc > 0;

		box = x->boxes + 2 * t.n_dims * i;
		if (rc >= 0 &&
		    (!pk_numbers(slot(part, "shard_offsets"), box, t.n_dims, &n) || n != t.n_dims ||
		     !pk_numbers(slot(part, "shard_sizes"), box + n, t.n_dims, &n) ||
		     n != t.n_dims))
			rc = wrong(e, fqn);
		if (rc < 0)
			return rc;
		loc->encoding = x->plain;
		loc->length = seen.size;
		if (!there)
			*loc = (struct chunk_loc){ .file = CATALOG_NO_FILE };
	}
	return catalog_add_tensor(x->w, &t, e);
}

static int parse(void *arg, const struct pickle_input *in, struct ckpt_err *e)
{
	const struct pickle_opts opts = { .max_bytes = MAX_PICKLE };
	struct ancient *x = arg;
	struct pickle *p = NULL;
	const struct pk_value *dict;
	struct pk_value root;
	int rc = pickle_load(in, &opts, &p, e);

	if (rc)
		return rc;
	root = pickle_root(p);
	x->files = pickle_end(p); /* values may be shared, so that few bytes name many */
	dict = pk_attr(&root, "state_dict_metadata");
	for (size_t i = 0; !rc && i < pk_dict_len(dict); i++) {
		const struct pk_value *key = &dict->n->v[2 * i], *v = key + 1;

		if (key->type != PK_STR)
			rc = err_set(e, ERR_CORRUPT,
				     "state_dict_metadata has a key that is not a string");
		else if (is_class(v, "ShardedTensorStorageMetadata"))
			rc = add_sharded(x, key->s, v, e);
		else if (is_class(v, "TensorStorageMetadata"))
			rc = add_tensor(x, key->s, v, e);
		else if (is_class(v, "BytesStorageMetadata"))
			rc = add_object(x, key->s, v, e);
		else
			rc = wrong(e, key->s);
	}
	pickle_free(p);
	return rc;
}

int dcp_scan_ancient(struct place *place, const char *name, size_t dir_len,
		     const struct scan_opts *opts, struct catalog_writer *w, struct ckpt_err *e)
{
	struct ancient x = {
		.place = place, .w = w, .dir = name, .dir_len = dir_len, .path = BUF_INIT(MAX_NAME)
	};
	struct metafiles m;
	int rc = catalog_add_encoding(w, "dcp", &x.plain, e);

	if (rc)
		return rc;
	rc = metafiles_init(&m, place, opts, e);
	if (!rc) {
		metafiles_expect(&m, name);
		rc = metafiles_read(&m, name, parse, &x, w, e);
	}
	metafiles_release(&m);
	free(x.boxes);
	free(x.locs);
	buf_release(&x.path);
	return rc;
}
