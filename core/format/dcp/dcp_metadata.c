/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the metadata pickle to records. The object graph (torch/distributed/checkpoint/metadata.py):
 *
 *	Metadata
 *	  state_dict_metadata : {fqn: TensorStorageMetadata | BytesStorageMetadata}
 *	  storage_data        : {MetadataIndex: _StorageInfo}
 *	  planner_data        : {fqn: (key, ...)}, or whatever a planner likes
 *	  mcore_data          : {fqn: {"nd_reformulated_orig_global_shape": (...)}}, Megatron's
 *	TensorStorageMetadata   properties (dtype first), size, chunks: [ChunkStorageMetadata]
 *	ChunkStorageMetadata    offsets, sizes
 *	MetadataIndex           fqn, offset (absent for bytes items); index is a hint, not a key
 *	_StorageInfo            relative_path, offset, length, transform_descriptors (may be absent)
 *
 * Attributes are looked up by name, classes by their last name: modules moved between torch 1.13
 * and 2.3. Everything else in the pickle is skipped.
 *
 * HyperParallel (hyper_parallel.core.checkpoint, later .distributed_checkpoint) has the same
 * classes but that StorageInfo has no underscore, dtypes are text ("torch.bfloat16", MindSpore's
 * "BFloat16"), and
 *
 *	Metadata       version: "1.0", "2.0"; absent in the oldest
 *	StorageInfo    tensor_key (may be absent, or None): the name in the container, else the FQN;
 *	               length is -1 for tensors
 *	MetadataIndex  offset () for bytes items too; index takes part in the key or not
 */
#include "base/vec.h"
#include "format/dcp/dcp_records.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "index/catalog_build.h"
#include "model/box.h"
#include "model/dtype.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PICKLE  ((size_t)1 << 30) /* live memory; real files need about 1 MiB */
#define MAX_STRINGS ((size_t)1 << 30) /* FQNs and file names */
#define MAX_DTYPE   64		      /* bytes of its name */

enum dcp_class {
	CLASS_OTHER,
	CLASS_METADATA,
	CLASS_TENSOR,
	CLASS_BYTES,
	CLASS_CHUNK,
	CLASS_INDEX,
	CLASS_STORAGE,
	CLASS_PROPERTIES,
	CLASS_ANCIENT,
};

struct reader {
	struct dcp_records *r;
	struct catalog_writer *w;
	uint32_t rank;
	uint32_t plain; /* number of the encoding without transforms */
};

static bool is_hyperparallel(const struct reader *rd)
{
	return rd->r->dialect == DCP_HYPERPARALLEL;
}

/* ---- records ---- */

int dcp_records_init(struct dcp_records *r, struct ckpt_err *e)
{
	*r = (struct dcp_records){ .strings = pk_strings_new(MAX_STRINGS) };
	return r->strings ? 0 : err_nomem(e);
}

void dcp_records_release(struct dcp_records *r)
{
	pk_strings_free(r->strings);
	free(r->entries);
	free(r->by_fqn);
	free(r->chunks.data);
	free(r->storage.data);
	free(r->planned.data);
	free(r->paths.data);
	free(r->shapes.data);
	*r = (struct dcp_records){ 0 };
}

uint32_t dcp_records_entry(const struct dcp_records *r, uint32_t fqn)
{
	return fqn < r->cap_by_fqn ? r->by_fqn[fqn] : DCP_NO_TENSOR;
}

uint8_t *byte_store_room(struct byte_store *s, size_t n, struct ckpt_err *e)
{
	if (s->cap - s->len <= n) { /* also if n is 0: NULL means out of memory */
		size_t cap = s->cap + s->cap / 2 + n + 4096;
		uint8_t *p;

		if (s->len + n > DCP_MAX_STORE) {
			(void)err_set(e, EFBIG, "its numbers take more than %zu MiB of memory",
				      DCP_MAX_STORE >> 20);
			return NULL;
		}
		p = realloc(s->data, cap);
		if (!p) {
			(void)err_nomem(e);
			return NULL;
		}
		s->data = p;
		s->cap = cap;
	}
	return s->data + s->len;
}

/* The current file's entry of an FQN (that of `rank`): the newest, or none. */
static uint32_t entry_of_rank(const struct dcp_records *r, uint32_t fqn, uint32_t rank)
{
	uint32_t i = dcp_records_entry(r, fqn);

	return i != DCP_NO_TENSOR && r->entries[i].rank == rank ? i : DCP_NO_TENSOR;
}

static int entry_add(struct dcp_records *r, const struct dcp_entry *entry, struct ckpt_err *e)
{
	uint32_t i;

	if (entry->fqn >= r->cap_by_fqn) {
		uint32_t cap = entry->fqn + entry->fqn / 2 + 1024;
		uint32_t *p = realloc(r->by_fqn, cap * sizeof(*p));

		if (!p)
			return err_nomem(e);
		memset(p + r->cap_by_fqn, 0xff, (cap - r->cap_by_fqn) * sizeof(*p));
		r->by_fqn = p;
		r->cap_by_fqn = cap;
	}
	if (!VEC_ROOM(r->entries, r->cap_entries, r->n_entries + (size_t)1))
		return err_nomem(e);
	/* A later duplicate in a dict replaces the earlier one; another rank's entry joins the
	 * chain. */
	i = entry_of_rank(r, entry->fqn, entry->rank);
	if (i != DCP_NO_TENSOR) {
		uint32_t next = r->entries[i].next;

		r->entries[i] = *entry;
		r->entries[i].next = next;
		return 0;
	}
	r->entries[r->n_entries] = *entry;
	r->entries[r->n_entries].next = r->by_fqn[entry->fqn];
	r->by_fqn[entry->fqn] = r->n_entries++;
	return 0;
}

/* ---- values ---- */

static const char *show(const struct pk_str *s)
{
	return s->data; /* err_set replaces control bytes */
}

static int wrong(struct ckpt_err *e, const struct pk_str *fqn, const char *what)
{
	return err_set(e, ERR_CORRUPT, "'%.200s': %s", show(fqn), what);
}

/* Sizes, offsets, lengths: integers in [0, 2^63). */
static bool number(const struct pk_value *v, uint64_t *ret)
{
	if (!v || v->type != PK_INT || v->i < 0)
		return false;
	*ret = (uint64_t)v->i;
	return true;
}

static int class_of(const struct pk_value *v)
{
	return v->type == PK_OBJECT && v->n->own[PK_CALLEE].type == PK_GLOBAL
		       ? v->n->own[PK_CALLEE].g->cls
		       : CLASS_OTHER;
}

static int classify(void *arg, const char *module, const char *name)
{
	static const struct {
		const char *name;
		enum dcp_class cls;
	} known[] = {
		{ "TensorStorageMetadata", CLASS_TENSOR },
		{ "BytesStorageMetadata", CLASS_BYTES },
		{ "ChunkStorageMetadata", CLASS_CHUNK },
		{ "MetadataIndex", CLASS_INDEX },
		{ "_StorageInfo", CLASS_STORAGE },
		{ "TensorProperties", CLASS_PROPERTIES },
		{ "ShardedTensorStorageMetadata", CLASS_ANCIENT },
	};
	const struct reader *rd = arg;
	size_t n = strlen(name);

	if (is_hyperparallel(rd) && !strcmp(name, "StorageInfo"))
		return CLASS_STORAGE;
	if (is_hyperparallel(rd) || !strncmp(module, "torch.distributed.", 18))
		for (size_t i = 0; i < ARRAY_LEN(known); i++)
			if (!strcmp(name, known[i].name))
				return known[i].cls;
	/* Metadata itself, and subclasses elsewhere: Megatron's MCoreMetadata. */
	return n >= 8 && !strcmp(name + n - 8, "Metadata") ? CLASS_METADATA : CLASS_OTHER;
}

/* ---- chunks ---- */

/* Dimensions, offsets and sizes of a ChunkStorageMetadata as varints. */
static bool encode_chunk(const struct pk_value *obj, uint8_t *out, size_t *ret_len)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	size_t n, m, at = 0;

	if (!pk_numbers(pk_attr(obj, "offsets"), off, CKPT_MAX_DIMS, &n) ||
	    !pk_numbers(pk_attr(obj, "sizes"), len, CKPT_MAX_DIMS, &m) || n != m)
		return false;
	at += put_varint(out + at, n);
	for (size_t i = 0; i < n; i++)
		at += put_varint(out + at, off[i]);
	for (size_t i = 0; i < n; i++)
		at += put_varint(out + at, len[i]);
	*ret_len = at;
	return true;
}

/* A chunk is complete: keep its numbers and drop the object, its dict and its tuples. */
static int built(void *arg, struct pickle *p, struct pk_value *obj, struct ckpt_err *e)
{
	uint8_t bytes[(2 * CKPT_MAX_DIMS + 1) * 10];
	size_t len;
	int rc;

	(void)arg;
	if (class_of(obj) != CLASS_CHUNK || !encode_chunk(obj, bytes, &len))
		return 0; /* a malformed one is reported once its tensor is known */
	rc = pickle_to_record(p, obj, bytes, len, e);
	return rc < 0 ? rc : 0;
}

static int store_chunk(struct reader *rd, const struct pk_str *fqn, const struct pk_value *v,
		       size_t n_dims, struct ckpt_err *e)
{
	uint8_t bytes[(2 * CKPT_MAX_DIMS + 1) * 10];
	const uint8_t *p = bytes;
	struct byte_store *s = &rd->r->chunks;
	size_t len;
	uint8_t *to;

	if (v->type == PK_RECORD) {
		p = pickle_record(v);
		len = v->n->len;
	} else if (class_of(v) != CLASS_CHUNK || !encode_chunk(v, bytes, &len)) {
		return wrong(e, fqn, "a chunk's offsets and sizes are not lists of numbers");
	}
	if (p[0] != n_dims) /* below 128, so the first varint is one byte */
		return err_set(e, ERR_CORRUPT, "'%.200s': %zu dimensions, but a chunk has %d",
			       show(fqn), n_dims, p[0]);
	to = byte_store_room(s, len, e);
	if (!to)
		return -e->code;
	memcpy(to, p + 1, len - 1);
	s->len += len - 1;
	return 0;
}

/* ---- entries ---- */

/* "torch.bfloat16", "BFloat16": MindSpore's names have no underscores and vary in case. */
static enum ckpt_dtype dtype_of_text(const struct pk_str *s)
{
	const char *dot, *from;

	if (s->len > MAX_DTYPE || strlen(s->data) != s->len)
		return CKPT_DTYPE_NONE;
	dot = strrchr(s->data, '.');
	from = dot ? dot + 1 : s->data;
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++) {
		const char *p = from, *q = dtype_info(t)->name;

		while (*p && *q && (*p == *q || (*p >= 'A' && *p <= 'Z' && *p + 'a' - 'A' == *q))) {
			p++;
			q++;
			q += *q == '_' && *p != '_';
		}
		if (!*p && !*q)
			return t;
	}
	return CKPT_DTYPE_NONE;
}

/* The state of TensorProperties is a tuple with the dtype first (torch >= 2.0), or a dict. */
static enum ckpt_dtype dtype_of(const struct reader *rd, const struct pk_value *properties,
				const struct pk_str **ret_name)
{
	const struct pk_value *v = pk_attr(properties, "dtype"), *state;

	if (!v && properties && properties->type == PK_OBJECT) {
		state = &properties->n->own[PK_STATE];
		if (state->type == PK_TUPLE && pk_len(state))
			v = &state->n->own[0];
	}
	if (v && v->type == PK_STR && is_hyperparallel(rd)) {
		*ret_name = v->s;
		return dtype_of_text(v->s);
	}
	if (!v || v->type != PK_GLOBAL)
		return CKPT_DTYPE_NONE;
	*ret_name = v->g->name;
	return ckpt_dtype_by_name(v->g->name->data, v->g->name->len);
}

static int tensor_entry(struct reader *rd, const struct pk_str *fqn, const struct pk_value *v,
			struct ckpt_err *e)
{
	const struct pk_value *chunks = pk_attr(v, "chunks");
	struct dcp_entry entry = { .at = rd->r->chunks.len, .fqn = fqn->id, .rank = rd->rank };
	const struct pk_str *name = NULL;
	uint64_t shape[CKPT_MAX_DIMS];
	size_t n;
	uint8_t *to;

	if (!pk_numbers(pk_attr(v, "size"), shape, CKPT_MAX_DIMS, &n))
		return wrong(e, fqn, "its size is not a list of at most 64 numbers");
	if (!chunks || chunks->type != PK_LIST)
		return wrong(e, fqn, "its chunks are not a list");
	entry.dtype = (uint8_t)dtype_of(rd, pk_attr(v, "properties"), &name);
	if (entry.dtype == CKPT_DTYPE_NONE)
		return err_set(e, ERR_UNSUPPORTED, "'%.200s': dtype '%.60s' is not known",
			       show(fqn), name ? name->data : "?");
	entry.n_dims = (uint8_t)n;
	if (pk_len(chunks) > DCP_MAX_CHUNKS - rd->r->n_chunks)
		return err_set(e, EFBIG, "there are more than %u chunks, up to those of '%.200s'",
			       DCP_MAX_CHUNKS, show(fqn));
	entry.count = (uint32_t)pk_len(chunks);
	rd->r->n_chunks += entry.count;
	to = byte_store_room(&rd->r->chunks, n * 10, e);
	if (!to)
		return -e->code;
	for (size_t i = 0; i < n; i++)
		rd->r->chunks.len += put_varint(rd->r->chunks.data + rd->r->chunks.len, shape[i]);
	for (uint32_t i = 0; i < entry.count; i++) {
		int rc = store_chunk(rd, fqn, &chunks->n->v[i], n, e);

		if (rc)
			return rc;
	}
	return entry_add(rd->r, &entry, e);
}

static int state_item(struct reader *rd, const struct pk_value *key, const struct pk_value *value,
		      struct ckpt_err *e)
{
	struct dcp_entry bytes = { .rank = rd->rank };

	if (key->type != PK_STR)
		return err_set(e, ERR_CORRUPT,
			       "state_dict_metadata has a key that is not a string");
	if (!is_hyperparallel(rd) &&
	    (class_of(value) == CLASS_ANCIENT || pk_attr(value, "storage_key"))) {
		rd->r->ancient = true;
		return err_set(e, ERR_UNSUPPORTED,
			       "'%.200s' was written by torch 1.12, in another format",
			       show(key->s));
	}
	switch (class_of(value)) {
	case CLASS_TENSOR:
		return tensor_entry(rd, key->s, value, e);
	case CLASS_BYTES:
		bytes.fqn = key->s->id;
		return entry_add(rd->r, &bytes, e);
	default:
		return wrong(e, key->s, "neither a tensor nor a bytes item");
	}
}

/* ---- storage ---- */

/*
 * The encoding's name in the index: how items are written ("dcp": a torch.save archive, or a
 * safetensors blob), then the transforms to undo, in reading order.
 */
static int encoding_of(struct reader *rd, const struct pk_str *fqn, const struct pk_value *list,
		       uint32_t *ret, struct ckpt_err *e)
{
	char name[512] = "dcp";
	size_t at = 3;

	if (!list || !pk_len(list)) {
		*ret = rd->plain;
		return 0;
	}
	for (size_t i = 0; i < pk_len(list); i++) {
		const struct pk_value *v = &list->n->v[i];

		if (v->type != PK_STR)
			return wrong(e, fqn, "a transform descriptor is not a string");
		if (at + v->s->len + 2 > sizeof(name) || memchr(v->s->data, '+', v->s->len))
			return wrong(e, fqn, "its transform descriptors are too long");
		at += (size_t)snprintf(name + at, sizeof(name) - at, "+%s", v->s->data);
	}
	return catalog_add_encoding(rd->w, name, ret, e);
}

/* The name in the container; the checkpoint's name if none is given. */
static int key_of(const struct pk_str *fqn, const struct pk_value *key, uint32_t *ret,
		  struct ckpt_err *e)
{
	if (key && key->type != PK_NONE && key->type != PK_STR)
		return wrong(e, fqn, "its tensor_key is not a string");
	*ret = key && key->type == PK_STR ? key->s->id : fqn->id;
	return 0;
}

/* The recorded position of an item in its file. */
static bool item_range(const struct reader *rd, const struct pk_value *value, uint64_t *ret_offset,
		       uint64_t *ret_length)
{
	const struct pk_value *length = pk_attr(value, "length");

	if (!number(pk_attr(value, "offset"), ret_offset))
		return false;
	if (is_hyperparallel(rd) && length && length->type == PK_INT && length->i == -1) {
		*ret_length = DCP_NO_LENGTH;
		return true;
	}
	return number(length, ret_length) && *ret_length <= INT64_MAX - *ret_offset;
}

static int storage_item(struct reader *rd, const struct pk_value *key, const struct pk_value *value,
			struct ckpt_err *e)
{
	const struct pk_value *fqn = pk_attr(key, "fqn"), *at = pk_attr(key, "offset");
	const struct pk_value *path = pk_attr(value, "relative_path");
	const struct pk_value *transforms = pk_attr(value, "transform_descriptors");
	uint64_t off[CKPT_MAX_DIMS], offset, length;
	uint32_t encoding = 0;
	size_t n = 0;
	uint8_t *to, *start;
	int rc;

	if (class_of(key) != CLASS_INDEX || class_of(value) != CLASS_STORAGE || !fqn ||
	    fqn->type != PK_STR)
		return err_set(e, ERR_CORRUPT,
			       "storage_data has an entry that is not MetadataIndex: %s",
			       is_hyperparallel(rd) ? "StorageInfo" : "_StorageInfo");
	if (!path || path->type != PK_STR)
		return wrong(e, fqn->s, "its relative_path is not a string");
	if (path->s->len >= PATH_MAX)
		return wrong(e, fqn->s, "its relative_path is too long");
	if (strlen(path->s->data) != path->s->len)
		return wrong(e, fqn->s, "its relative_path has a NUL in it");
	if (!item_range(rd, value, &offset, &length))
		return wrong(e, fqn->s, "its item's offset and length are not numbers below 2^63");
	if (at && at->type == PK_NONE)
		at = NULL;
	if (at && !pk_numbers(at, off, CKPT_MAX_DIMS, &n))
		return wrong(e, fqn->s, "its item's index is not a list of numbers");
	if (transforms && transforms->type != PK_NONE && transforms->type != PK_LIST &&
	    transforms->type != PK_TUPLE)
		return wrong(e, fqn->s, "its transform descriptors are not a list");
	rc = is_hyperparallel(rd) ? key_of(fqn->s, pk_attr(value, "tensor_key"), &encoding, e)
				  : encoding_of(rd, fqn->s, transforms, &encoding, e);
	if (rc)
		return rc;
	start = to = byte_store_room(&rd->r->storage, (7 + n) * 10, e);
	if (!to)
		return -e->code;
	to += put_varint(to, fqn->s->id);
	to += put_varint(to, rd->rank);
	to += put_varint(to, path->s->id);
	to += put_varint(to, encoding);
	to += put_varint(to, offset);
	to += put_varint(to, length);
	/* HyperParallel's objects have an offset without dimensions. */
	to += put_varint(to, at || is_hyperparallel(rd) ? n + 1 : 0);
	for (size_t i = 0; i < n; i++)
		to += put_varint(to, off[i]);
	rd->r->storage.len += (size_t)(to - start);
	rd->r->n_storage++;
	return 0;
}

/* ---- shapes before flattening ---- */

/* Megatron-core 0.8 to 0.15; see model/flat.h. Most tensors have none. */
static int shape_item(struct reader *rd, const struct pk_value *key, const struct pk_value *value,
		      struct ckpt_err *e)
{
	const struct pk_value *v = pk_get(value, "nd_reformulated_orig_global_shape");
	struct byte_store *s = &rd->r->shapes;
	uint64_t shape[CKPT_MAX_DIMS];
	uint8_t *to;
	size_t n;

	if (key->type != PK_STR || !pk_numbers(v, shape, CKPT_MAX_DIMS, &n))
		return 0;
	to = byte_store_room(s, (2 + n) * 10, e);
	if (!to)
		return -e->code;
	to += put_varint(to, key->s->id);
	to += put_varint(to, n);
	for (size_t d = 0; d < n; d++)
		to += put_varint(to, shape[d]);
	s->len = (size_t)(to - s->data);
	return 0;
}

static void apply_shapes(struct reader *rd, size_t from)
{
	struct dcp_records *r = rd->r;
	const uint8_t *p = r->shapes.data, *end;

	if (!p)
		return;
	end = p + r->shapes.len;
	p += from;
	while (p < end) {
		uint32_t i = entry_of_rank(r, (uint32_t)get_varint(&p), rd->rank);

		if (i != DCP_NO_TENSOR)
			r->entries[i].shape_at = (size_t)(p - r->shapes.data);
		for (uint64_t n = get_varint(&p); n; n--)
			(void)get_varint(&p);
	}
}

/* ---- the pickle ---- */

static int planner_item(struct reader *rd, const struct pk_value *key, const struct pk_value *value,
			struct ckpt_err *e)
{
	return dcp_paths_add(rd->r, key, value, e);
}

static int attr_item(void *arg, int root_class, const struct pk_str *attr,
		     const struct pk_value *key, const struct pk_value *value, bool *consumed,
		     struct ckpt_err *e)
{
	struct reader *rd = arg;

	if (root_class != CLASS_METADATA)
		return 0;
	*consumed = true;
	if (!strcmp(attr->data, "state_dict_metadata"))
		return state_item(rd, key, value, e);
	if (!strcmp(attr->data, "storage_data"))
		return storage_item(rd, key, value, e);
	if (!strcmp(attr->data, "planner_data"))
		return planner_item(rd, key, value, e);
	*consumed = false;
	return 0;
}

/* Attributes whose dict was built elsewhere in the pickle, and so did not pass through the hook. */
static int leftovers(struct reader *rd, const struct pk_value *dict,
		     int (*item)(struct reader *, const struct pk_value *, const struct pk_value *,
				 struct ckpt_err *),
		     struct ckpt_err *e)
{
	for (size_t i = 0; i < pk_len(dict); i++) {
		int rc = item(rd, &dict->n->v[2 * i], &dict->n->v[2 * i + 1], e);

		if (rc)
			return rc;
	}
	return 0;
}

/* Refuses versions that HyperParallel's own loader would refuse. */
static int check_version(const struct pk_value *v, struct ckpt_err *e)
{
	if (!v) /* the oldest has no such attribute */
		return 0;
	if (v->type != PK_STR)
		return err_set(e, ERR_CORRUPT, "Metadata's version is not a string");
	if (strcmp(v->s->data, "1.0") != 0 && strcmp(v->s->data, "2.0") != 0)
		return err_set(e, ERR_UNSUPPORTED,
			       "Metadata has version '%.60s'; known versions are 1.0 and 2.0",
			       v->s->data);
	return 0;
}

static int check_root(struct reader *rd, const struct pk_value *root, struct ckpt_err *e)
{
	const struct pk_value *state = pk_attr(root, "state_dict_metadata");
	const struct pk_value *storage = pk_attr(root, "storage_data");

	if (class_of(root) != CLASS_METADATA || !state || state->type != PK_DICT)
		return err_set(e, ERR_CORRUPT, "the pickle holds no checkpoint Metadata");
	if (is_hyperparallel(rd) && storage && storage->type == PK_NONE)
		return err_set(e, ERR_UNSUPPORTED,
			       "Metadata's storage_data is None: an old save that does not say "
			       "which rank's file has what");
	if (!storage && leftovers(rd, state, state_item, e)) /* torch 1.12 had none */
		return -e->code;
	if (!storage || storage->type != PK_DICT)
		return err_set(e, ERR_CORRUPT, "Metadata has no storage_data");
	return is_hyperparallel(rd) ? check_version(pk_attr(root, "version"), e) : 0;
}

static bool has_both(const struct pickle *p)
{
	struct pk_value root = pickle_root(p);

	return pk_attr(&root, "state_dict_metadata") && pk_attr(&root, "storage_data");
}

/*
 * Megatron-core adds what every rank planned to write: as many bytes again as everything else, and
 * the same objects, which would have to be kept until then. It comes last and is not needed. If it
 * does not come last, everything is loaded again; what has been taken from the pickle already is
 * replaced, as by later duplicates in a dict.
 */
static int load(struct reader *rd, const struct pickle_input *in, struct pickle **ret,
		struct ckpt_err *e)
{
	static const struct pickle_hooks hooks = { classify, built, attr_item };
	struct pickle_opts opts = { .hooks = &hooks,
				    .arg = rd,
				    .strings = rd->r->strings,
				    .max_bytes = MAX_PICKLE,
				    .drop_unknown = true,
				    .until = "all_local_plans" };
	int rc;

	rd->r->planned.len = 0;
	rc = pickle_load(in, &opts, ret, e);
	if (rc != -ECANCELED && (rc || has_both(*ret)))
		return rc;
	pickle_free(steal_ptr(ret));
	opts.until = NULL;
	rd->r->planned.len = 0;
	return pickle_load(in, &opts, ret, e);
}

int dcp_read_metadata(struct dcp_records *r, uint32_t rank, const struct pickle_input *in,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	struct reader rd = { .r = r, .w = w, .rank = rank };
	const struct pk_value *planner, *mcore;
	uint32_t first = r->n_entries;
	size_t shapes_from = r->shapes.len;
	struct pickle *p = NULL;
	struct pk_value root;
	int rc = is_hyperparallel(&rd) ? 0 : catalog_add_encoding(w, "dcp", &rd.plain, e);

	if (!rc)
		rc = load(&rd, in, &p, e);
	if (rc)
		return rc;
	root = pickle_root(p);
	rc = check_root(&rd, &root, e);
	if (!rc)
		rc = leftovers(&rd, pk_attr(&root, "state_dict_metadata"), state_item, e);
	if (!rc)
		rc = leftovers(&rd, pk_attr(&root, "storage_data"), storage_item, e);
	planner = pk_attr(&root, "planner_data");
	mcore = pk_attr(&root, "mcore_data");
	if (!rc && planner && planner->type == PK_DICT) {
		rc = leftovers(&rd, planner, planner_item, e);
		if (!rc)
			rc = dcp_paths_apply(r, rank, first, e);
	} else if (!rc && is_hyperparallel(&rd)) {
		dcp_paths_flat(r, first); /* HyperParallel's first generation has no other */
	}
	if (!rc && mcore && mcore->type == PK_DICT) {
		rc = leftovers(&rd, mcore, shape_item, e);
		if (!rc)
			apply_shapes(&rd, shapes_from);
	}
	pickle_free(p);
	return rc;
}
