/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	Metadata        state_dict_metadata  {fqn: TensorStorageMetadata | BytesStorageMetadata}
 *	                planner_data         {fqn: (key or position, ...)}
 *	                storage_data         {MetadataIndex: _StorageInfo}
 *	                storage_meta         StorageMeta; torch's only
 *	                version
 *	                mcore_data           {fqn: {}}, of tensors, or of a flattened one
 *	                                     {"nd_reformulated_orig_global_shape": (...)};
 *	                                     Megatron's only
 *
 * Objects are written as the pickler writes objects without __reduce__: class, NEWOBJ, and BUILD
 * with the dict of their attributes. Repeated classes and names are written once; the numbers in
 * torch.Size and the like are not, being smaller than a reference.
 */
#include "store/metadata_pickle.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "model/dtype.h"
#include "parse/pickle_write.h"
#include "save/metadata.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define TORCH "torch.distributed.checkpoint."
#define HYPER "hyper_parallel.core.distributed_checkpoint."

struct graph {
	struct pickle_writer w;
	struct ckpt_err *e;
	bool hyper; /* HyperParallel's, else torch's */
	bool mcore; /* torch's as Megatron-core writes it */
	const char *metadata_module, *storage_module, *storage_class;
	/* Memo numbers + 1 of call results that all tensors share; 0 before the first. */
	uint32_t layout, formats[CKPT_MEMORY_PRESERVE + 1];
};

/* ---- Python ---- */

static void put_text(struct graph *g, const char *s)
{
	pw_str(&g->w, s, strlen(s));
}

static void put_text_or_none(struct graph *g, const char *s)
{
	if (s)
		put_text(g, s);
	else
		pw_op(&g->w, OP_NONE);
}

/* Begins an object that has no attributes yet. */
static void put_object(struct graph *g, const char *module, const char *name)
{
	pw_global(&g->w, module, name);
	pw_op(&g->w, OP_EMPTY_TUPLE);
	pw_op(&g->w, OP_NEWOBJ);
}

static void begin_attrs(struct graph *g)
{
	pw_op(&g->w, OP_EMPTY_DICT);
	pw_op(&g->w, OP_MARK);
}

static void end_attrs(struct graph *g)
{
	pw_op(&g->w, OP_SETITEMS);
	pw_op(&g->w, OP_BUILD);
}

/* torch.Size(v); HyperParallel uses plain tuples. */
static void put_size(struct graph *g, const uint64_t *v, size_t n)
{
	if (!g->hyper)
		pw_global(&g->w, "torch", "Size");
	pw_tuple_of(&g->w, v, n);
	if (!g->hyper) {
		pw_op(&g->w, OP_TUPLE1);
		pw_op(&g->w, OP_REDUCE);
	}
}

/* Names appear in the user interfaces of other programs, and Python cannot read one that is not
 * UTF-8. */
static int check_name(struct graph *g, const char *what, const char *s, size_t n)
{
	char shown[100];

	if (text_is_utf8(s, n))
		return 0;
	return err_set(g->e, ERR_UNSUPPORTED, "%s '%s' is not in UTF-8, which a pickle needs", what,
		       text_show(s, n, shown, sizeof(shown)));
}

/* ---- state_dict_metadata ---- */

static void put_layout(struct graph *g)
{
	if (g->layout) {
		pw_get(&g->w, g->layout - 1);
		return;
	}
	pw_global(&g->w, "torch.serialization", "_get_layout");
	put_text(g, "torch.strided");
	pw_op(&g->w, OP_TUPLE1);
	pw_op(&g->w, OP_REDUCE);
	g->layout = pw_memo(&g->w) + 1;
}

static void put_format(struct graph *g, uint8_t format)
{
	if (g->formats[format]) {
		pw_get(&g->w, g->formats[format] - 1);
		return;
	}
	pw_global(&g->w, g->metadata_module, "_MEM_FORMAT_ENCODING");
	pw_uint(&g->w, format);
	pw_op(&g->w, OP_TUPLE1);
	pw_op(&g->w, OP_REDUCE);
	g->formats[format] = pw_memo(&g->w) + 1;
}

/* TensorProperties.__getstate__ gives a tuple. */
static void put_torch_properties(struct graph *g, const struct ckpt_tensor_props *p)
{
	put_object(g, g->metadata_module, "TensorProperties");
	pw_tuple_begin(&g->w, 5);
	pw_global(&g->w, "torch", dtype_info(p->dtype)->name);
	put_layout(g);
	pw_bool(&g->w, p->requires_grad);
	put_format(g, p->memory_format);
	pw_bool(&g->w, p->pin_memory);
	pw_tuple_end(&g->w, 5);
	pw_op(&g->w, OP_BUILD);
}

static void put_hyper_properties(struct graph *g, const struct ckpt_tensor_props *p)
{
	char dtype[64];

	(void)snprintf(dtype, sizeof(dtype), "torch.%s", dtype_info(p->dtype)->name);
	put_object(g, g->metadata_module, "TensorProperties");
	begin_attrs(g);
	put_text(g, "dtype");
	put_text(g, dtype);
	put_text(g, "requires_grad");
	pw_bool(&g->w, p->requires_grad);
	put_text(g, "memory_format");
	pw_op(&g->w, OP_NONE);
	end_attrs(g);
}

static void put_chunk(struct graph *g, const struct ckpt_chunk_meta *c, size_t n_dims)
{
	put_object(g, g->metadata_module, "ChunkStorageMetadata");
	begin_attrs(g);
	put_text(g, "offsets");
	put_size(g, c->off, n_dims);
	put_text(g, "sizes");
	put_size(g, c->len, n_dims);
	end_attrs(g);
}

static void put_tensor(struct graph *g, const struct ckpt_tensor_meta *t)
{
	put_object(g, g->metadata_module, "TensorStorageMetadata");
	begin_attrs(g);
	put_text(g, "properties");
	if (g->hyper)
		put_hyper_properties(g, &t->props);
	else
		put_torch_properties(g, &t->props);
	put_text(g, "size");
	put_size(g, t->size, t->n_dims);
	put_text(g, "chunks");
	pw_op(&g->w, OP_EMPTY_LIST);
	for (size_t i = 0; i < t->n_chunks; i++) {
		pw_batch(&g->w, OP_APPENDS, i);
		put_chunk(g, &t->chunks[i], t->n_dims);
	}
	pw_batches_end(&g->w, OP_APPENDS, t->n_chunks);
	end_attrs(g);
}

static int put_state(struct graph *g, const struct ckpt_metadata *md)
{
	put_text(g, "state_dict_metadata");
	pw_op(&g->w, OP_EMPTY_DICT);
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct ckpt_meta_entry *t = &md->entries[i];
		int rc = check_name(g, "the name", t->fqn, t->fqn_len);

		if (rc)
			return rc;
		pw_batch(&g->w, OP_SETITEMS, i);
		pw_str(&g->w, t->fqn, t->fqn_len);
		if (t->is_tensor)
			put_tensor(g, &t->tensor);
		else
			put_object(g, g->metadata_module, "BytesStorageMetadata");
	}
	pw_batches_end(&g->w, OP_SETITEMS, md->n_entries);
	return 0;
}

/* ---- planner_data ---- */

static int put_path(struct graph *g, const struct ckpt_fqn_path *p)
{
	pw_str(&g->w, p->fqn, p->fqn_len);
	pw_tuple_begin(&g->w, p->n_steps);
	for (size_t i = 0; i < p->n_steps; i++) {
		const struct ckpt_path_step *s = &p->steps[i];
		int rc = s->key ? check_name(g, "the key", s->key, s->key_len) : 0;

		if (rc)
			return rc;
		if (s->key)
			pw_str(&g->w, s->key, s->key_len);
		else
			pw_uint(&g->w, s->position);
	}
	pw_tuple_end(&g->w, p->n_steps);
	return 0;
}

static int put_planner_data(struct graph *g, const struct ckpt_metadata *md)
{
	put_text(g, "planner_data");
	if (g->hyper && !md->paths) {
		pw_op(&g->w, OP_NONE);
		return 0;
	}
	pw_op(&g->w, OP_EMPTY_DICT);
	for (size_t i = 0; i < md->n_paths; i++) {
		int rc = check_name(g, "the name", md->paths[i].fqn, md->paths[i].fqn_len);

		pw_batch(&g->w, OP_SETITEMS, i);
		if (!rc)
			rc = put_path(g, &md->paths[i]);
		if (rc)
			return rc;
	}
	pw_batches_end(&g->w, OP_SETITEMS, md->n_paths);
	return 0;
}

/* ---- storage_data ---- */

static void put_hint(struct graph *g, const struct ckpt_meta_index *x)
{
	put_text(g, "index");
	if (x->hint == CKPT_META_NO_HINT)
		pw_op(&g->w, OP_NONE);
	else
		pw_int(&g->w, x->hint);
}

/* For bytes: torch leaves the offset out, HyperParallel writes an empty one. */
static void put_index(struct graph *g, const struct ckpt_meta_index *x)
{
	put_object(g, g->metadata_module, "MetadataIndex");
	begin_attrs(g);
	put_text(g, "fqn");
	pw_str(&g->w, x->fqn, x->fqn_len);
	if (!g->hyper)
		put_hint(g, x);
	if (g->hyper || x->has_offset) {
		put_text(g, "offset");
		put_size(g, x->offset, x->has_offset ? x->n_dims : 0);
	}
	if (g->hyper)
		put_hint(g, x);
	end_attrs(g);
}

static void put_transform(struct graph *g, const char *transform)
{
	if (!transform)
		return;
	put_text(g, "transform_descriptors");
	pw_op(&g->w, OP_EMPTY_LIST);
	put_text(g, transform);
	pw_op(&g->w, OP_APPEND);
}

/* For a tensor in a container with names only the container has the position: length -1. */
static void put_info(struct graph *g, const struct ckpt_storage_info *s)
{
	put_object(g, g->storage_module, g->storage_class);
	begin_attrs(g);
	put_text(g, "relative_path");
	put_text(g, s->path);
	put_text(g, "offset");
	pw_uint(&g->w, s->offset);
	put_text(g, "length");
	if (g->hyper && s->tensor_key)
		pw_int(&g->w, -1);
	else
		pw_uint(&g->w, s->length);
	if (!g->hyper) {
		put_transform(g, s->transform);
	} else {
		put_text(g, "tensor_key");
		if (s->tensor_key)
			pw_str(&g->w, s->tensor_key, s->tensor_key_len);
		else
			pw_op(&g->w, OP_NONE);
	}
	end_attrs(g);
}

static void put_storage_data(struct graph *g, const struct ckpt_metadata *md)
{
	put_text(g, "storage_data");
	pw_op(&g->w, OP_EMPTY_DICT);
	for (size_t i = 0; i < md->n_stored; i++) {
		pw_batch(&g->w, OP_SETITEMS, i);
		put_index(g, &md->stored[i].index);
		put_info(g, &md->stored[i].info);
	}
	pw_batches_end(&g->w, OP_SETITEMS, md->n_stored);
}

/* ---- storage_meta ---- */

/* In the form of a uuid4, which torch uses, with the version bits set. */
static void name_of(const void *p, size_t n, char ret[37])
{
	XXH128_hash_t h = XXH3_128bits(p, n);
	uint64_t high = (h.high64 & ~(uint64_t)0xf000) | 0x4000;
	uint64_t low = (h.low64 & ~((uint64_t)3 << 62)) | (uint64_t)1 << 63;

	(void)snprintf(ret, 37, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32),
		       (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xffff),
		       (unsigned)(low >> 48), (unsigned long long)(low & 0xffffffffffff));
}

/* start: where the pickle begins in the output. */
static void put_storage_meta(struct graph *g, const struct ckpt_storage_meta *s, size_t start)
{
	const struct buf *out = g->w.out;
	char id[37];

	if (out->err)
		return;
	name_of(out->data + start, out->len - start, id);
	put_text(g, "storage_meta");
	put_object(g, g->metadata_module, "StorageMeta");
	begin_attrs(g);
	put_text(g, "checkpoint_id");
	put_text_or_none(g, s->checkpoint_id);
	put_text(g, "save_id");
	put_text(g, s->save_id ? s->save_id : id);
	put_text(g, "load_id");
	pw_op(&g->w, OP_NONE);
	put_text(g, "modules");
	pw_op(&g->w, OP_EMPTY_LIST);
	end_attrs(g);
}

/* ---- mcore_data ---- */

/* Megatron-core 0.8 to 0.15 loads no flattened tensor without its shape. */
static void put_mcore_data(struct graph *g, const struct ckpt_metadata *md)
{
	size_t n = 0;

	put_text(g, "mcore_data");
	pw_op(&g->w, OP_EMPTY_DICT);
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct ckpt_meta_entry *t = &md->entries[i];

		if (!t->is_tensor)
			continue;
		pw_batch(&g->w, OP_SETITEMS, n++);
		pw_str(&g->w, t->fqn, t->fqn_len);
		pw_op(&g->w, OP_EMPTY_DICT);
		if (!t->tensor.n_logical)
			continue;
		put_text(g, "nd_reformulated_orig_global_shape");
		pw_tuple_of(&g->w, t->tensor.logical, t->tensor.n_logical);
		pw_op(&g->w, OP_SETITEM);
	}
	pw_batches_end(&g->w, OP_SETITEMS, n);
}

/* ---- all of it ---- */

static int put_metadata(struct graph *g, const struct ckpt_metadata *md, struct buf *ret)
{
	size_t start = ret->len;
	int rc, code;

	pw_begin(&g->w, ret, 4, true);
	put_object(g, g->metadata_module, "Metadata");
	begin_attrs(g);
	rc = put_state(g, md);
	if (!rc)
		rc = put_planner_data(g, md);
	if (!rc) {
		put_storage_data(g, md);
		if (!g->hyper)
			put_storage_meta(g, &md->storage, start);
		put_text(g, "version");
		put_text_or_none(g, md->version);
		if (g->mcore)
			put_mcore_data(g, md);
	}
	end_attrs(g);
	code = pw_end(&g->w);
	if (!rc && code)
		rc = err_sys(g->e, -code, "metadata of %zu entries, %zu items", md->n_entries,
			     md->n_stored);
	return rc;
}

static int put_torch(bool mcore, const struct ckpt_metadata *md, struct buf *ret,
		     struct ckpt_err *e)
{
	struct graph g = { .e = e,
			   .mcore = mcore,
			   .metadata_module = TORCH "metadata",
			   .storage_module = TORCH "filesystem",
			   .storage_class = "_StorageInfo" };

	return put_metadata(&g, md, ret);
}

int metadata_pickle_dcp(const struct ckpt_metadata *md, struct buf *ret, struct ckpt_err *e)
{
	return put_torch(false, md, ret, e);
}

int metadata_pickle_megatron(const struct ckpt_metadata *md, struct buf *ret, struct ckpt_err *e)
{
	return put_torch(true, md, ret, e);
}

int metadata_pickle_hyperparallel(const struct ckpt_metadata *md, struct buf *ret,
				  struct ckpt_err *e)
{
	struct graph g = { .e = e,
			   .hyper = true,
			   .metadata_module = HYPER "metadata",
			   .storage_module = HYPER "storage",
			   .storage_class = "StorageInfo" };

	return put_metadata(&g, md, ret);
}
