/* SPDX-License-Identifier: Apache-2.0 */
#include "store/writer_base.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "file/st_write.h"
#include "store/staging.h"
#include "store/writer_place.h"
#include <ckptfs/ckpt_plan.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ARENA_CEILING ((size_t)16 << 30) /* bytes: results of 100 million items */

/* ---- the directory ---- */

void *writer_new(size_t size, bool overwrite, const struct outfile_opts *out,
		 const struct ckpt_storage_writer_ops *ops, struct ckpt_storage_writer *ret,
		 struct ckpt_err *e)
{
	struct writer_base *b = calloc(1, size);

	if (!b) {
		(void)err_nomem(e);
		return NULL;
	}
	*b = (struct writer_base){ .over = overwrite ? staging_alone : NULL,
				   .arena = ARENA_INIT(ARENA_CEILING) };
	if (out)
		b->out = *out;
	*ret = (struct ckpt_storage_writer){ .ops = ops, .self = b };
	return b;
}

static void release(struct writer_base *b)
{
	staging_end(b->staging);
	b->staging = NULL;
	free(b->id);
	b->id = NULL;
	arena_release(&b->arena);
	b->results = NULL;
	b->n_results = 0;
}

static void free_place(struct place_options *o)
{
	free((void *)(uintptr_t)o->endpoint);
	free((void *)(uintptr_t)o->region);
	free((void *)(uintptr_t)o->profile);
	free((void *)(uintptr_t)o->cache_dir);
	*o = (struct place_options){ 0 };
}

/* Afterwards *s is a copy or NULL, so that all may be freed. */
static void copy_string(const char **s, bool *ok)
{
	if (*s && !(*s = strdup(*s)))
		*ok = false;
}

int writer_place(struct ckpt_storage_writer *w, const struct staging_how *how, struct ckpt_err *e)
{
	struct writer_base *b = w->self;
	struct place_options o = *how->place;
	bool ok = true;

	copy_string(&o.endpoint, &ok);
	copy_string(&o.region, &ok);
	copy_string(&o.profile, &ok);
	copy_string(&o.cache_dir, &ok);
	if (!ok) {
		free_place(&o);
		return err_nomem(e);
	}
	free_place(&b->place);
	b->place = o;
	b->how = *how;
	b->how.place = &b->place;
	return 0;
}

void writer_free(void *self)
{
	struct writer_base *b = self;

	release(b);
	free_place(&b->place);
	free(b);
}

int writer_validate(void *self, const char *id, struct ckpt_err *e)
{
	const struct writer_base *b = self;

	return staging_check(id, b->over, &b->how, e);
}

int writer_reset(void *self, const char *id, struct ckpt_err *e)
{
	struct writer_base *b = self;

	release(b);
	b->id = strdup(id);
	return b->id ? 0 : err_nomem(e);
}

int writer_set_up(void *self, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	struct writer_base *b = self;

	b->ranks = *ranks;
	return ranks->rank ? 0 : staging_begin(b->id, b->over, &b->how, &b->staging, e);
}

int writer_begin_data(struct writer_base *b, size_t n, struct ckpt_err *e)
{
	b->results = writer_array(b, n, sizeof(*b->results), e);
	if (!b->results)
		return -ENOMEM;
	return b->staging || !n ? 0 : staging_join(b->id, &b->staging, e);
}

void writer_add_result(struct writer_base *b, const struct ckpt_write_item *item,
		       const struct ckpt_storage_info *info)
{
	b->results[b->n_results++] = (struct ckpt_write_result){ item->index, *info };
}

int writer_end_data(struct writer_base *b, struct ckpt_write_results *ret, struct ckpt_err *e)
{
	int rc = b->staging ? staging_sync(b->staging, e) : 0;

	/* A process may have a thousand ranks, and descriptors are scarce. */
	if (b->ranks.rank) {
		staging_end(b->staging);
		b->staging = NULL;
	}
	if (!rc)
		*ret = (struct ckpt_write_results){ b->results, b->n_results };
	return rc;
}

int writer_join_results(struct writer_base *b, const struct ckpt_write_results *all, size_t n,
			struct ckpt_metadata *md, struct ckpt_err *e)
{
	struct ckpt_write_result *v;
	size_t count = 0;

	for (size_t r = 0; r < n; r++)
		count += all[r].n;
	v = writer_array(b, count, sizeof(*v), e);
	if (!v)
		return -ENOMEM;
	md->stored = v;
	md->n_stored = count;
	for (size_t r = 0; r < n; v += all[r++].n)
		if (all[r].n)
			memcpy(v, all[r].v, all[r].n * sizeof(*v));
	return 0;
}

int writer_commit(struct writer_base *b, struct ckpt_err *e)
{
	int rc = staging_commit(b->staging, e);

	if (!rc) {
		staging_end(b->staging);
		b->staging = NULL;
	}
	return rc;
}

/* ---- memory ---- */

void *writer_array(struct writer_base *b, size_t n, size_t size, struct ckpt_err *e)
{
	void *p = arena_array(&b->arena, n, size);

	if (!p)
		(void)err_nomem(e);
	return p;
}

char *writer_printf(struct writer_base *b, struct ckpt_err *e, const char *fmt, ...)
{
	char text[128];
	va_list ap;
	char *p;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	p = arena_dup(&b->arena, text, strlen(text));
	if (!p)
		(void)err_nomem(e);
	return p;
}

/* ---- items ---- */

static int wrap_fqn(const struct ckpt_write_item *item, struct ckpt_err *e)
{
	char shown[128];

	return err_wrap(e, "'%s'",
			text_show(item->index.fqn, item->index.fqn_len, shown, sizeof(shown)));
}

int writer_get_source(const struct ckpt_write_item *item, struct ckpt_save_planner *p,
		      struct ckpt_data *ret, struct ckpt_err *e)
{
	struct ckpt_data src = { 0 };
	uint64_t want = 0;
	int rc = item->type == CKPT_WRITE_BYTE_IO ? 0 : write_item_chunk_bytes(item, &want, e);

	if (!rc)
		rc = ckpt_save_planner_get_data(p, item, &src, e);
	if (rc)
		return rc;
	if (item->type != CKPT_WRITE_BYTE_IO && src.len != want) {
		uint64_t len = src.len;

		ckpt_data_close(&src);
		return err_set(e, EINVAL, "a chunk of %llu bytes, but its data has %llu",
			       (unsigned long long)want, (unsigned long long)len);
	}
	*ret = src;
	return 0;
}

int st_item_member(const struct ckpt_write_item *item, struct tensor_info *ret, struct ckpt_err *e)
{
	struct tensor_info m = {
		.fqn = item->index.fqn,
		.fqn_len = item->index.fqn_len,
		.shape = item->chunk.len,
		.dtype = item->props.dtype,
		.n_dims = item->index.n_dims,
	};
	int rc;

	if (item->type == CKPT_WRITE_BYTE_IO) {
		(void)err_set(e, ERR_UNSUPPORTED, "an object, but safetensors holds only tensors");
		return wrap_fqn(item, e);
	}
	rc = st_check(&m, e);
	if (rc)
		return rc;
	/* The format allows it, but hardly any JSON reader does, including this program's. */
	if (m.fqn_len && memchr(m.fqn, 0, m.fqn_len)) {
		(void)err_set(e, ERR_UNSUPPORTED, "a name with a NUL byte in it");
		return wrap_fqn(item, e);
	}
	rc = write_item_chunk_bytes(item, &m.bytes, e);
	if (rc)
		return wrap_fqn(item, e);
	*ret = m;
	return 0;
}

int writer_put_source(struct outfile *f, const struct ckpt_write_item *item,
		      struct ckpt_save_planner *p, struct ckpt_err *e)
{
	CLEANUP(ckpt_data_close) struct ckpt_data src = { 0 };
	int rc = writer_get_source(item, p, &src, e);

	if (!rc)
		rc = outfile_source(f, &src, e);
	return rc ? wrap_fqn(item, e) : 0;
}

int writer_put_tensors(struct writer_base *b, const char *file, const struct st_items *t,
		       struct ckpt_save_planner *p, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf header = BUF_INIT(ST_HEADER_CAP);
	CLEANUP(outfile_release) struct outfile f = OUTFILE_INIT;
	autofree size_t *order = calloc(t->n + 1, sizeof(*order));
	int rc;

	if (!order)
		return err_nomem(e);
	st_order(t->m, t->n, order);
	if (st_header(t->m, order, t->n, t->notes, t->n_notes, &header, e))
		return err_wrap(e, "'%s'", file);
	rc = outfile_open(&f, b->staging, file, &b->out, e);
	if (!rc)
		rc = outfile_write(&f, header.data, header.len, e);
	for (size_t i = 0; i < t->n && !rc; i++)
		rc = writer_put_source(&f, t->items[order[i]], p, e);
	return rc ? rc : outfile_finish(&f, e);
}
