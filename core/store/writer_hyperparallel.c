/* SPDX-License-Identifier: Apache-2.0 */
#include "store/writer_hyperparallel.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "store/metadata_pickle.h"
#include "store/staging.h"
#include "store/writer_base.h"
#include <ckptfs/ckpt_plan.h>

#include <stdlib.h>

#define METADATA_CEILING ((size_t)4 << 30) /* bytes */

/* Refuses items that cannot be written before anything is written. */
static int prepare_local_plan(void *self, const struct ckpt_save_plan *plan,
			      struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	struct tensor_info m;
	int rc = 0;

	(void)self;
	for (size_t i = 0; i < plan->n_items && !rc; i++)
		if (plan->items[i].type != CKPT_WRITE_BYTE_IO)
			rc = st_item_member(&plan->items[i], &m, e);
	if (!rc)
		*ret = *plan;
	return rc;
}

/* ---- names in the container ---- */

struct named {
	const struct ckpt_write_item *item;
	size_t at; /* its position in the file's list */
};

static int cmp_name(const void *ap, const void *bp)
{
	const struct ckpt_meta_index *a = &((const struct named *)ap)->item->index;
	const struct ckpt_meta_index *b = &((const struct named *)bp)->item->index;

	return bytes_compare(a->fqn, a->fqn_len, b->fqn, b->fqn_len);
}

static int cmp_named(const void *ap, const void *bp)
{
	const struct named *a = ap, *b = bp;
	int c = cmp_name(a, b);

	return c ? c : (a->at > b->at) - (a->at < b->at);
}

static bool is_tensor_name(const struct named *v, size_t n, const struct buf *name)
{
	struct ckpt_write_item item = {
		.index = { .fqn = name->data, .fqn_len = (uint32_t)name->len },
	};
	struct named key = { .item = &item };

	return bsearch(&key, v, n, sizeof(*v), cmp_name);
}

/* The name of chunk k of a tensor that has several in this file. Only another tensor's own name can
 * collide. */
static int name_chunk(struct writer_base *b, const struct named *all, size_t n,
		      const struct ckpt_write_item *item, size_t k, struct tensor_info *ret,
		      struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf key = BUF_INIT(UINT32_MAX);

	buf_add(&key, item->index.fqn, item->index.fqn_len);
	buf_printf(&key, ".__dcp_chunk_%zu", k);
	while (!key.err && is_tensor_name(all, n, &key))
		buf_str(&key, "_");
	ret->fqn = key.err ? NULL : arena_dup(&b->arena, key.data, key.len);
	ret->fqn_len = key.len;
	return ret->fqn ? 0 : err_nomem(e);
}

static int name_chunks(struct writer_base *b, const struct st_items *t, struct tensor_info *m,
		       struct ckpt_err *e)
{
	autofree struct named *v = calloc(t->n + 1, sizeof(*v));
	size_t end;
	int rc = 0;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < t->n; i++)
		v[i] = (struct named){ t->items[i], i };
	qsort(v, t->n, sizeof(*v), cmp_named);
	for (size_t i = 0; i < t->n && !rc; i = end) {
		for (end = i + 1; end < t->n && !cmp_name(&v[i], &v[end]);)
			end++;
		for (size_t k = 0; k < end - i && end - i > 1 && !rc; k++)
			rc = name_chunk(b, v, t->n, v[i + k].item, k, &m[v[i + k].at], e);
	}
	return rc;
}

/* ---- data ---- */

static int put_containers(struct writer_base *b, const struct ckpt_save_plan *plan, size_t n,
			  struct ckpt_save_planner *p, struct ckpt_err *e)
{
	autofree const struct ckpt_write_item **items = calloc(n, sizeof(*items));
	autofree struct tensor_info *m = calloc(n, sizeof(*m));
	struct st_items t = { .m = m, .items = items };
	char *path = writer_printf(b, e, "_rank%zu_.safetensors", b->ranks.rank);
	int rc = 0;

	if (!path)
		return -ENOMEM;
	if (!items || !m)
		return err_nomem(e);
	for (size_t i = 0; i < plan->n_items && !rc; i++) {
		if (plan->items[i].type == CKPT_WRITE_BYTE_IO)
			continue;
		items[t.n] = &plan->items[i];
		rc = st_item_member(items[t.n], &m[t.n], e);
		t.n++;
	}
	if (!rc)
		rc = name_chunks(b, &t, m, e);
	if (!rc)
		rc = writer_put_tensors(b, path, &t, p, e);
	for (size_t i = 0; i < t.n && !rc; i++)
		writer_add_result(
			b, items[i],
			&(struct ckpt_storage_info){ .path = path,
						     .length = m[i].bytes,
						     .tensor_key = m[i].fqn,
						     .tensor_key_len = (uint32_t)m[i].fqn_len });
	return rc;
}

static int put_object(struct writer_base *b, struct outfile *f, const struct ckpt_write_item *item,
		      struct ckpt_save_planner *p, struct ckpt_err *e)
{
	struct ckpt_storage_info info = { .path = f->name, .offset = f->size };
	int rc = writer_put_source(f, item, p, e);

	if (rc)
		return rc;
	info.length = f->size - info.offset;
	writer_add_result(b, item, &info);
	return 0;
}

static int put_objects(struct writer_base *b, const struct ckpt_save_plan *plan,
		       struct ckpt_save_planner *p, struct ckpt_err *e)
{
	CLEANUP(outfile_release) struct outfile f = OUTFILE_INIT;
	char *path = writer_printf(b, e, "_rank%zu_.bytes", b->ranks.rank);
	int rc = path ? outfile_open(&f, b->staging, path, &b->out, e) : -ENOMEM;

	for (size_t i = 0; i < plan->n_items && !rc; i++)
		if (plan->items[i].type == CKPT_WRITE_BYTE_IO)
			rc = put_object(b, &f, &plan->items[i], p, e);
	return rc ? rc : outfile_finish(&f, e);
}

static int write_data(void *self, const struct ckpt_save_plan *plan,
		      struct ckpt_save_planner *planner, struct ckpt_write_results *ret,
		      struct ckpt_err *e)
{
	struct writer_base *b = self;
	size_t objects = 0;
	int rc = writer_begin_data(b, plan->n_items, e);

	for (size_t i = 0; i < plan->n_items; i++)
		objects += plan->items[i].type == CKPT_WRITE_BYTE_IO;
	if (!rc && objects < plan->n_items)
		rc = put_containers(b, plan, plan->n_items - objects, planner, e);
	if (!rc && objects)
		rc = put_objects(b, plan, planner, e);
	return rc ? rc : writer_end_data(b, ret, e);
}

static int finish(void *self, const struct ckpt_metadata *md, const struct ckpt_write_results *all,
		  size_t n, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf text = BUF_INIT(METADATA_CEILING);
	struct writer_base *b = self;
	struct ckpt_metadata full = *md;
	int rc = writer_join_results(b, all, n, &full, e);

	if (!rc && metadata_pickle_hyperparallel(&full, &text, e))
		rc = err_wrap(e, "'.metadata'");
	if (!rc)
		rc = staging_put(b->staging, ".metadata", text.data, text.len, e);
	return rc ? rc : writer_commit(b, e);
}

static const struct ckpt_storage_writer_ops ops = {
	.validate_checkpoint_id = writer_validate,
	.reset = writer_reset,
	.set_up = writer_set_up,
	.prepare_local_plan = prepare_local_plan,
	.prepare_global_plan = NULL, /* the names of files follow from the rank */
	.write_data = write_data,
	.finish = finish,
	.free = writer_free,
};

int writer_hyperparallel_new(const struct writer_hyperparallel_opts *opts,
			     struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	const struct outfile_opts out = { opts->buffer, opts->progress, opts->arg };

	return writer_new(sizeof(struct writer_base), opts->overwrite, &out, &ops, ret, e)
		       ? 0
		       : -ENOMEM;
}
