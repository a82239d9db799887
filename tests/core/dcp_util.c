/* SPDX-License-Identifier: Apache-2.0 */
#include "dcp_util.h"

#include "archive_util.h"
#include "base/cleanup.h"
#include "blob_util.h"
#include "parse/pickle_lex.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char module[] = "torch.distributed.checkpoint.metadata";

static void put_text(struct emit *m, const char *s, size_t n)
{
	uint8_t len[4] = { (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24) };

	emit_op(m, OP_BINUNICODE);
	emit_bytes(m, len, 4);
	emit_bytes(m, s, n);
}

void dcp_begin(struct dcp *d, int dirfd)
{
	*d = (struct dcp){ .dirfd = dirfd,
			   .prefix = "__0_",
			   .state = EMIT_INIT(4, false),
			   .storage = EMIT_INIT(4, false),
			   .planner = EMIT_INIT(4, false),
			   .more = EMIT_INIT(4, false) };
	for (size_t i = 0; i < DCP_FILES; i++)
		d->files[i] = (struct buf)BUF_INIT((size_t)1 << 30);
}

static const char *file_name(const struct dcp *d, unsigned file, char out[static 64])
{
	(void)snprintf(out, 64, "%s%u.distcp", d->prefix, file);
	return out;
}

static void put_pairs(struct emit *m, const char *name, const struct emit *pairs)
{
	emit_str(m, name);
	emit_op(m, OP_EMPTY_DICT);
	emit_op(m, OP_MARK);
	emit_bytes(m, pairs->b.data, pairs->b.len);
	emit_op(m, OP_SETITEMS);
}

static void put_planner(struct emit *m, const struct dcp *d)
{
	if (d->planner_is == PLANNER_PAIRS) {
		put_pairs(m, "planner_data", &d->planner);
	} else if (d->planner_is == PLANNER_VALUE) {
		emit_str(m, "planner_data");
		emit_bytes(m, d->planner.b.data, d->planner.b.len);
	}
}

void dcp_end(struct dcp *d, const char *metadata)
{
	struct emit m = EMIT_INIT(4, false);

	for (unsigned i = 0; i < DCP_FILES; i++) {
		char name[64];

		if (d->used[i])
			put_file(d->dirfd, file_name(d, i, name), d->files[i].data,
				 d->files[i].len);
		REQUIRE(!d->files[i].err);
		buf_release(&d->files[i]);
	}
	emit_proto(&m);
	emit_object(&m, module, "Metadata");
	emit_attrs(&m);
	if (d->planner_first)
		put_planner(&m, d);
	put_pairs(&m, "state_dict_metadata", &d->state);
	if (!d->planner_first)
		put_planner(&m, d);
	put_pairs(&m, "storage_data", &d->storage);
	emit_bytes(&m, d->more.b.data, d->more.b.len);
	emit_attrs_end(&m);
	emit_op(&m, OP_STOP);
	REQUIRE(!m.b.err && !d->state.b.err && !d->storage.b.err && !d->planner.b.err &&
		!d->more.b.err);
	put_file(d->dirfd, metadata, m.b.data, m.b.len);
	buf_release(&m.b);
	buf_release(&d->state.b);
	buf_release(&d->storage.b);
	buf_release(&d->planner.b);
	buf_release(&d->more.b);
}

struct chunk_loc dcp_item(struct dcp *d, unsigned file, const void *p, size_t n, unsigned layers)
{
	struct buf *b = &d->files[file % DCP_FILES];
	struct chunk_loc l = { .offset = b->len, .file = file % DCP_FILES };
	autofree uint8_t *packed = NULL;

	for (unsigned i = 0; i < layers; i++) {
		uint8_t *next = zstd_pack(p, n, 0, &n);

		free(packed);
		p = packed = next;
	}
	buf_add(b, p, n);
	l.length = n;
	d->used[file % DCP_FILES] = true;
	return l;
}

void dcp_tensor(struct dcp *d, const char *fqn, size_t len, const char *dtype, size_t n_dims,
		const uint64_t *shape, uint32_t count, const uint64_t *boxes)
{
	struct emit *m = &d->state;

	put_text(m, fqn, len);
	emit_object(m, module, "TensorStorageMetadata");
	emit_attrs(m);
	emit_str(m, "properties");
	emit_object(m, module, "TensorProperties");
	emit_op(m, OP_MARK);
	emit_global(m, "torch", dtype);
	emit_op(m, OP_NEWFALSE);
	emit_op(m, OP_TUPLE);
	emit_op(m, OP_BUILD);
	emit_str(m, "size");
	emit_size(m, n_dims, shape);
	emit_str(m, "chunks");
	emit_op(m, OP_EMPTY_LIST);
	emit_op(m, OP_MARK);
	for (uint32_t i = 0; i < count; i++) {
		emit_object(m, module, "ChunkStorageMetadata");
		emit_attrs(m);
		emit_str(m, "offsets");
		emit_size(m, n_dims, boxes + i * 2 * n_dims);
		emit_str(m, "sizes");
		emit_size(m, n_dims, boxes + i * 2 * n_dims + n_dims);
		emit_attrs_end(m);
	}
	emit_op(m, OP_APPENDS);
	emit_attrs_end(m);
}

void dcp_object(struct dcp *d, const char *fqn, size_t len)
{
	put_text(&d->state, fqn, len);
	emit_object(&d->state, module, "BytesStorageMetadata");
}

void dcp_path(struct dcp *d, const char *fqn, size_t len, size_t n, const char *const *keys)
{
	put_text(&d->planner, fqn, len);
	emit_op(&d->planner, OP_MARK);
	for (size_t i = 0; i < n; i++)
		emit_str(&d->planner, keys[i]);
	emit_op(&d->planner, OP_TUPLE);
}

void dcp_stored(struct dcp *d, const char *fqn, size_t len, size_t n_dims, const uint64_t *off,
		const char *path, int64_t offset, int64_t length, unsigned layers)
{
	struct emit *m = &d->storage;

	emit_object(m, module, "MetadataIndex");
	emit_attrs(m);
	emit_str(m, "fqn");
	put_text(m, fqn, len);
	if (n_dims != DCP_NO_OFFSET) {
		emit_str(m, "offset");
		emit_size(m, n_dims, off);
	}
	emit_attrs_end(m);
	emit_object(m, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	emit_attrs(m);
	emit_str(m, "relative_path");
	put_text(m, path, strlen(path));
	emit_str(m, "offset");
	emit_int(m, offset);
	emit_str(m, "length");
	emit_int(m, length);
	if (layers) {
		emit_str(m, "transform_descriptors");
		emit_op(m, OP_EMPTY_LIST);
		emit_op(m, OP_MARK);
		while (layers--)
			emit_str(m, "stream.zstd/1");
		emit_op(m, OP_APPENDS);
	}
	emit_attrs_end(m);
}

bool dcp_can_hold(const struct scene *s)
{
	for (uint32_t i = 0; i < s->count; i++)
		for (uint32_t k = 0; k < i; k++)
			if (!box_compare_off(s->n, s->boxes + i * 2 * s->n,
					     s->boxes + k * 2 * s->n))
				return false;
	return true;
}

enum ckpt_dtype dcp_dtype(uint32_t element)
{
	return element == 1   ? CKPT_DTYPE_U8
	       : element == 2 ? CKPT_DTYPE_I16
	       : element == 4 ? CKPT_DTYPE_F32
	       : element == 8 ? CKPT_DTYPE_F64
			      : CKPT_DTYPE_C128;
}

void dcp_scene(struct dcp *d, const char *fqn, size_t len, const struct scene *s, unsigned file,
	       unsigned layers)
{
	dcp_scene_as(d, fqn, len, s, dcp_dtype(s->element), file, layers);
}

void dcp_scene_as(struct dcp *d, const char *fqn, size_t len, const struct scene *s,
		  enum ckpt_dtype dtype, unsigned file, unsigned layers)
{
	dcp_tensor(d, fqn, len, dtype_info(dtype)->name, s->n, s->shape, s->count, s->boxes);
	for (uint32_t i = 0; i < s->count; i++) {
		const uint64_t *box = s->boxes + i * 2 * s->n;
		struct buf b = BUF_INIT(0);
		int64_t size[CKPT_MAX_DIMS], stride[CKPT_MAX_DIMS];
		struct saved t = { .how = saved_way(dtype),
				   .dtype = dtype,
				   .n_dims = s->n,
				   .size = size,
				   .stride = stride,
				   .storage = s->items[i] + s->payloads[i].data,
				   .storage_bytes = s->item_len[i] - s->payloads[i].data };
		struct chunk_loc l;
		char path[64];

		for (size_t k = 0; k < s->n; k++) {
			size[k] = (int64_t)box[s->n + k];
			stride[k] = (int64_t)(s->payloads[i].stride[k] / s->element & INT64_MAX);
		}
		(void)saved_item(&b, &t);
		l = dcp_item(d, file + i, b.data, b.len, layers);
		dcp_stored(d, fqn, len, s->n, box, file_name(d, l.file, path), (int64_t)l.offset,
			   (int64_t)l.length, layers);
		buf_release(&b);
	}
}

void dcp_bytes(struct dcp *d, const char *fqn, size_t len, const void *p, size_t n, unsigned file,
	       unsigned layers)
{
	struct chunk_loc l = dcp_item(d, file, p, n, layers);
	char path[64];

	dcp_object(d, fqn, len);
	dcp_stored(d, fqn, len, DCP_NO_OFFSET, NULL, file_name(d, l.file, path), (int64_t)l.offset,
		   (int64_t)l.length, layers);
}
