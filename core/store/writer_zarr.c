/* SPDX-License-Identifier: Apache-2.0 */
#include "store/writer_zarr.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json_out.h"
#include "base/text.h"
#include "model/dtype.h"
#include "parse/zarr_metadata.h"
#include "store/staging.h"
#include "store/writer_base.h"
#include <ckptfs/ckpt_plan.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_CHUNK ((uint64_t)256 << 20)

struct zarr_writer {
	struct writer_base b; /* must be first, for writer_new */
	uint64_t chunk_size;
};

/* ---- what can be written ---- */

static int lacks(const struct ckpt_write_item *item, struct ckpt_err *e, const char *what)
{
	return err_set(e, ERR_UNSUPPORTED, "'%s': %s",
		       FQN_TEXT(item->index.fqn, item->index.fqn_len), what);
}

/* The directory would be taken for a file that makes it a checkpoint of another format. */
static bool is_of_another_format(const char *s, size_t n)
{
	static const char *const ends[] = { ".safetensors", ".gguf", ".metadata", "metadata.json" };

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (bytes_end(s, n, ends[i]))
			return true;
	return false;
}

static int check_name(const struct ckpt_write_item *item, struct ckpt_err *e)
{
	const char *s = item->index.fqn;
	size_t n = item->index.fqn_len;
	struct ckpt_err why;

	if (n > NAME_MAX || memchr(s, '/', n) || io_check_relative(s, n, &why))
		return lacks(item, e,
			     "cannot be the name of a directory, which an array needs: rename it");
	if (*s == '.' || is_of_another_format(s, n))
		return lacks(item, e,
			     "as a directory, it would not be taken for an array: rename it");
	if ((n > 1 && !memcmp(s, "__", 2)) || (n == 9 && !memcmp(s, "zarr.json", 9)))
		return lacks(item, e, "a name that zarr reserves: rename it");
	if (!text_is_utf8(s, n))
		return lacks(item, e, "zarr requires names in UTF-8: rename it");
	return 0;
}

static int check_item(const struct ckpt_write_item *item, struct ckpt_err *e)
{
	char what[100];

	if (item->type == CKPT_WRITE_BYTE_IO)
		return lacks(item, e, "an object, but zarr holds only arrays");
	for (size_t d = 0; d < item->index.n_dims; d++)
		if (item->chunk.off[d] || item->chunk.len[d] != item->size[d])
			return lacks(item, e,
				     "a part of a tensor, but arrays are written as a whole");
	if (!zarr_has(item->props.dtype)) {
		(void)snprintf(what, sizeof(what), "zarr has no type %s",
			       dtype_info(item->props.dtype)->name);
		return lacks(item, e, what);
	}
	return check_name(item, e);
}

static int prepare_local_plan(void *self, const struct ckpt_save_plan *plan,
			      struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	int rc = 0;

	(void)self;
	for (size_t i = 0; i < plan->n_items && !rc; i++)
		rc = check_item(&plan->items[i], e);
	if (!rc)
		*ret = *plan;
	return rc;
}

/* ---- an array ---- */

struct array {
	const struct ckpt_write_item *item;
	char dir[NAME_MAX + 1];
	uint64_t rows; /* of a chunk, along the first dimension */
	uint64_t row;  /* bytes; 0: the array is empty */
	uint64_t len;  /* bytes of all */
};

static int measure(const struct zarr_writer *w, const struct ckpt_write_item *item,
		   struct array *ret, struct ckpt_err *e)
{
	*ret = (struct array){ .item = item };
	(void)snprintf(ret->dir, sizeof(ret->dir), "%.*s", (int)item->index.fqn_len,
		       item->index.fqn);
	if (write_item_chunk_bytes(item, &ret->len, e))
		return -e->code;
	ret->row = item->index.n_dims && ret->len ? ret->len / item->size[0] : ret->len;
	ret->rows = !item->index.n_dims ? 1
		    : !ret->len		? 1
				: min_u64(max_u64(w->chunk_size / ret->row, 1), item->size[0]);
	return 0;
}

static void put_bytes_codec(struct json_out *j, enum ckpt_dtype t)
{
	json_open(j, "codecs", '[');
	json_open_line(j, NULL, '{');
	json_str(j, "name", "bytes");
	if (dtype_info(t)->size > 1) {
		json_open_line(j, "configuration", '{');
		json_str(j, "endian", "little");
		json_close(j);
	}
	json_close(j);
	json_close(j);
}

static void put_metadata(const struct array *a, struct buf *to)
{
	const struct ckpt_write_item *item = a->item;
	const struct dtype_info *t = dtype_info(item->props.dtype);
	size_t n = item->index.n_dims;
	uint64_t chunk[CKPT_MAX_DIMS];
	struct json_out j = { .to = to };

	for (size_t d = 0; d < n; d++) /* an empty array has no chunks, whatever their shape */
		chunk[d] = !a->len ? 1 : d ? item->size[d] : a->rows;
	json_open(&j, NULL, '{');
	json_u64(&j, "zarr_format", 3);
	json_str(&j, "node_type", "array");
	json_u64s(&j, "shape", item->size, n);
	json_str(&j, "data_type", t->name);
	json_open_line(&j, "chunk_grid", '{');
	json_str(&j, "name", "regular");
	json_open_line(&j, "configuration", '{');
	json_u64s(&j, "chunk_shape", chunk, n);
	json_close(&j);
	json_close(&j);
	json_open_line(&j, "chunk_key_encoding", '{');
	json_str(&j, "name", "default");
	json_open_line(&j, "configuration", '{');
	json_str(&j, "separator", ".");
	json_close(&j);
	json_close(&j);
	json_raw(&j, "fill_value", "%s",
		 item->props.dtype == CKPT_DTYPE_BOOL	      ? "false"
		 : t->is_integer			      ? "0"
		 : item->props.dtype == CKPT_DTYPE_F8_E8M0FNU ? "1.0" /* it has no zero */
		 : t->size > t->unit			      ? "[0.0, 0.0]"
							      : "0.0");
	put_bytes_codec(&j, item->props.dtype);
	json_open_line(&j, "attributes", '{');
	json_close(&j);
	json_close(&j);
	buf_str(to, "\n");
}

/* Part of a source. */
struct slice {
	const struct ckpt_data *of;
	uint64_t off;
};

static int read_slice(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	const struct slice *s = arg;

	return s->of->read(s->of->arg, s->off + off, to, n, e);
}

static int put_zeros(struct outfile *f, uint64_t n, struct ckpt_err *e)
{
	static const char zeros[1 << 16];
	int rc = 0;

	for (; n && !rc; n -= min_u64(n, sizeof(zeros)))
		rc = outfile_write(f, zeros, (size_t)min_u64(n, sizeof(zeros)), e);
	return rc;
}

static int put_chunk(struct zarr_writer *w, const struct array *a, const struct ckpt_data *all,
		     uint64_t number, struct ckpt_err *e)
{
	CLEANUP(outfile_release) struct outfile f = OUTFILE_INIT;
	uint64_t size = a->rows * a->row;
	struct slice s = { all, number * size };
	struct ckpt_data part = { .data = all->data ? (const char *)all->data + s.off : NULL,
				  .len = min_u64(size, a->len - s.off),
				  .read = read_slice,
				  .arg = &s };
	char name[PATH_MAX];
	size_t at = (size_t)snprintf(name, sizeof(name), "%s/c", a->dir);
	int rc;

	for (size_t d = 0; d < a->item->index.n_dims; d++)
		at += (size_t)snprintf(name + at, sizeof(name) - at, ".%llu",
				       d ? 0 : (unsigned long long)number);
	rc = outfile_open(&f, w->b.staging, name, &w->b.out, e);
	if (!rc)
		rc = outfile_source(&f, &part, e);
	if (!rc)
		rc = put_zeros(&f, size - part.len, e);
	return rc ? rc : outfile_finish(&f, e);
}

static int put_text(struct zarr_writer *w, const char *name, const struct buf *text,
		    struct ckpt_err *e)
{
	const struct outfile_opts opts = { .buffer = w->b.out.buffer };
	CLEANUP(outfile_release) struct outfile f = OUTFILE_INIT;
	int rc = text->err ? err_nomem(e) : outfile_open(&f, w->b.staging, name, &opts, e);

	if (!rc)
		rc = outfile_write(&f, text->data, text->len, e);
	return rc ? rc : outfile_finish(&f, e);
}

static int put_array(struct zarr_writer *w, const struct array *a,
		     struct ckpt_save_planner *planner, struct ckpt_err *e)
{
	CLEANUP(ckpt_data_close) struct ckpt_data data = { 0 };
	CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 16);
	char name[PATH_MAX];
	uint64_t size = a->rows * a->row;
	int rc = staging_dir(w->b.staging, a->dir, e);

	put_metadata(a, &text);
	(void)snprintf(name, sizeof(name), "%s/zarr.json", a->dir);
	if (!rc)
		rc = put_text(w, name, &text, e);
	if (!rc)
		rc = writer_get_source(a->item, planner, &data, e);
	for (uint64_t i = 0; !rc && a->len && i < (a->len - 1) / size + 1; i++)
		rc = put_chunk(w, a, &data, i, e);
	return rc ? rc : staging_sync_dir(w->b.staging, a->dir, e);
}

static int put_item(struct zarr_writer *w, const struct ckpt_write_item *item,
		    struct ckpt_save_planner *planner, struct ckpt_err *e)
{
	struct ckpt_storage_info info = { 0 };
	struct array a;
	int rc = measure(w, item, &a, e);

	if (!rc)
		rc = put_array(w, &a, planner, e);
	if (!rc) {
		info.path = arena_dup(&w->b.arena, a.dir, strlen(a.dir));
		info.length = a.len;
		rc = info.path ? 0 : err_nomem(e);
	}
	if (rc)
		return err_wrap(e, "'%s'", FQN_TEXT(item->index.fqn, item->index.fqn_len));
	writer_add_result(&w->b, item, &info);
	return 0;
}

static int write_data(void *self, const struct ckpt_save_plan *plan,
		      struct ckpt_save_planner *planner, struct ckpt_write_results *ret,
		      struct ckpt_err *e)
{
	struct zarr_writer *w = self;
	int rc = writer_begin_data(&w->b, plan->n_items, e);

	for (size_t i = 0; i < plan->n_items && !rc; i++)
		rc = put_item(w, &plan->items[i], planner, e);
	return rc ? rc : writer_end_data(&w->b, ret, e);
}

static int finish(void *self, const struct ckpt_metadata *md, const struct ckpt_write_results *all,
		  size_t n, struct ckpt_err *e)
{
	static const char group[] = "{\"zarr_format\": 3, \"node_type\": \"group\", "
				    "\"attributes\": {}}\n";
	struct writer_base *b = self;
	int rc = staging_put(b->staging, "zarr.json", group, strlen(group), e);

	(void)md; /* the arrays are self-contained */
	(void)all;
	(void)n;
	return rc ? rc : writer_commit(b, e);
}

static const struct ckpt_storage_writer_ops ops = {
	.validate_checkpoint_id = writer_validate,
	.reset = writer_reset,
	.set_up = writer_set_up,
	.prepare_local_plan = prepare_local_plan,
	.prepare_global_plan = NULL, /* each array has a directory of its own */
	.write_data = write_data,
	.finish = finish,
	.free = writer_free,
};

int writer_zarr_new(const struct writer_zarr_opts *opts, struct ckpt_storage_writer *ret,
		    struct ckpt_err *e)
{
	const struct outfile_opts out = { opts->buffer, opts->progress, opts->arg };
	struct zarr_writer *w =
		writer_new(sizeof(struct zarr_writer), opts->overwrite, &out, &ops, ret, e);

	if (!w)
		return -ENOMEM;
	w->chunk_size = opts->chunk_size ? opts->chunk_size : DEFAULT_CHUNK;
	return 0;
}
