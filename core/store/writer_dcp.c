/* SPDX-License-Identifier: Apache-2.0 */
#include "store/writer_dcp.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/crew.h"
#include "base/err.h"
#include "base/text.h"
#include "store/dcp_file.h"
#include "store/megatron_form.h"
#include "store/metadata_pickle.h"
#include "store/staging.h"
#include "store/writer_base.h"
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_storage.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { DEFAULT_BUFFER = 4 * 1024 * 1024, MAX_PREFIX = 64 };

struct writer {
	struct writer_base base; /* must be first, for writer_new */
	struct writer_dcp_opts opts;
};

/* ---- before the data ---- */

static int prepare_local_plan(void *self, const struct ckpt_save_plan *plan,
			      struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	(void)self;
	(void)e;
	*ret = *plan;
	return 0;
}

/* torch's _StoragePrefix: the prefix of a rank's file names. */
static int prepare_global_plan(void *self, struct ckpt_save_plan *parts, size_t n,
			       struct ckpt_err *e)
{
	struct writer *w = self;

	for (size_t i = 0; i < n; i++) {
		char *prefix = arena_alloc(&w->base.arena, MAX_PREFIX);

		if (!prefix)
			return err_nomem(e);
		parts[i].storage_len = (size_t)snprintf(prefix, MAX_PREFIX, "__%zu_", i);
		parts[i].storage = prefix;
	}
	return 0;
}

/* ---- distributing items over files ---- */

/* A file, written by one thread. */
struct job {
	const char *name;
	const struct ckpt_write_item **items; /* n of them, in the order of the file */
	struct ckpt_write_result *results;
	size_t n;
};

struct jobs {
	const struct ckpt_save_plan *plan;
	struct job *v;
	size_t n;
};

static int check_prefix(const struct ckpt_save_plan *plan, struct ckpt_err *e)
{
	if (plan->storage && plan->storage_len && plan->storage_len < MAX_PREFIX &&
	    !memchr(plan->storage, '/', plan->storage_len) &&
	    !memchr(plan->storage, 0, plan->storage_len))
		return 0;
	return err_set(e, EINVAL, "the plan does not say how its files are named");
}

static int make_jobs(struct writer *w, const struct ckpt_save_plan *plan, size_t n,
		     struct jobs *ret, struct ckpt_err *e)
{
	*ret = (struct jobs){ .plan = plan,
			      .v = arena_array(&w->base.arena, n, sizeof(*ret->v)),
			      .n = n };
	for (size_t i = 0; ret->v && i < n; i++) {
		size_t room = plan->storage_len + 32;
		char *name = arena_alloc(&w->base.arena, room);

		if (!name)
			return err_set(e, ENOMEM, "%zu files: out of memory", n);
		(void)snprintf(name, room, "%.*s%zu.distcp", (int)plan->storage_len,
			       (const char *)plan->storage, i);
		ret->v[i].name = name;
	}
	return ret->v ? 0 : err_set(e, ENOMEM, "%zu files: out of memory", n);
}

struct weighed {
	const struct ckpt_write_item *item;
	uint64_t bytes;
	uint32_t file;
};

static int heaviest_first(const void *ap, const void *bp)
{
	const struct weighed *a = ap, *b = bp;

	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	return a->item > b->item ? 1 : -1; /* in plan order: all are in one array */
}

static uint32_t lightest(const uint64_t *load, size_t n)
{
	size_t r = 0;

	for (size_t i = 1; i < n; i++)
		if (load[i] < load[r])
			r = i;
	return (uint32_t)r;
}

/*
 * Puts the items in the order in which they are written, and assigns each a file. Bytes come first,
 * in turn; then tensors, the heaviest first, to the file with the least so far, weighed by the
 * whole tensor's size. With a single file they stay in plan order.
 */
static int share_out(const struct ckpt_save_plan *plan, struct weighed *v, size_t n_files,
		     struct ckpt_err *e)
{
	autofree uint64_t *load = calloc(n_files, sizeof(*load));
	size_t n = 0, bytes;

	if (!load)
		return err_set(e, ENOMEM, "%zu files: out of memory", n_files);
	for (size_t i = 0; i < plan->n_items; i++)
		if (plan->items[i].type == CKPT_WRITE_BYTE_IO) {
			v[n] = (struct weighed){ &plan->items[i], 0, (uint32_t)(n % n_files) };
			n++;
		}
	bytes = n;
	for (size_t i = 0; i < plan->n_items; i++) {
		int rc;

		if (plan->items[i].type == CKPT_WRITE_BYTE_IO)
			continue;
		v[n].item = &plan->items[i];
		rc = write_item_tensor_bytes(v[n].item, &v[n].bytes, e);
		if (rc)
			return rc;
		n++;
	}
	if (n_files > 1)
		qsort(v + bytes, n - bytes, sizeof(*v), heaviest_first);
	for (size_t i = bytes; i < n; i++) {
		v[i].file = lightest(load, n_files);
		load[v[i].file] += v[i].bytes;
	}
	return 0;
}

/* The lists of all jobs are parts of one array, and so are their results. */
static void fill_jobs(struct jobs *jobs, const struct weighed *v,
		      const struct ckpt_write_item **items, struct ckpt_write_result *results)
{
	size_t at = 0;

	for (size_t i = 0; i < jobs->plan->n_items; i++)
		jobs->v[v[i].file].n++;
	for (size_t i = 0; i < jobs->n; i++) {
		jobs->v[i].items = items + at;
		jobs->v[i].results = results + at;
		at += jobs->v[i].n;
		jobs->v[i].n = 0;
	}
	for (size_t i = 0; i < jobs->plan->n_items; i++) {
		struct job *j = &jobs->v[v[i].file];

		j->items[j->n++] = v[i].item;
	}
}

static int plan_files(struct writer *w, const struct ckpt_save_plan *plan, struct jobs *ret,
		      struct ckpt_err *e)
{
	size_t n = plan->n_items, n_files = w->opts.file_per_item ? n : w->opts.threads;
	autofree struct weighed *v = calloc(n + 1, sizeof(*v));
	const struct ckpt_write_item **items =
		arena_array(&w->base.arena, n, sizeof(struct ckpt_write_item *));
	int rc;

	if (!v || !items)
		return err_set(e, ENOMEM, "plan of %zu items: out of memory", n);
	rc = make_jobs(w, plan, n_files, ret, e);
	if (!rc && !w->opts.file_per_item)
		rc = share_out(plan, v, n_files, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < n && w->opts.file_per_item; i++)
		v[i] = (struct weighed){ &plan->items[i], 0, (uint32_t)i };
	fill_jobs(ret, v, items, w->base.results);
	w->base.n_results = n;
	return 0;
}

/* ---- writing ---- */

struct work {
	struct writer *w;
	const struct jobs *jobs;
	struct ckpt_save_planner *planner;
	atomic_size_t next; /* the next job to take */
	atomic_bool stop;
	pthread_mutex_t lock;
	int rc;		    /* the first error */
	struct ckpt_err *e; /* its message */
};

static int write_item(struct work *k, struct dcp_file *f, const struct ckpt_write_item *item,
		      struct ckpt_write_result *ret, struct ckpt_err *e)
{
	struct ckpt_data s = { 0 };
	char shown[128];
	int rc = ckpt_save_planner_get_data(k->planner, item, &s, e);

	*ret = (struct ckpt_write_result){ .index = item->index };
	if (!rc)
		rc = dcp_file_add(f, item, &s, &ret->info.offset, &ret->info.length, e);
	ckpt_data_close(&s);
	if (rc)
		return err_wrap(
			e, "'%s'",
			text_show(item->index.fqn, item->index.fqn_len, shown, sizeof(shown)));
	return 0;
}

CLEANUP_POINTER(close_file, struct dcp_file, dcp_file_free)

static int write_file(struct work *k, const struct job *j, struct ckpt_err *e)
{
	const struct writer_dcp_opts *o = &k->w->opts;
	const struct dcp_file_opts opts = { o->zstd_level, o->buffer, o->progress, o->arg };
	CLEANUP(close_file) struct dcp_file *f = NULL;
	struct staging_file to = STAGING_FILE_INIT;
	int rc = staging_open(k->w->base.staging, j->name, &to, e);

	if (!rc)
		rc = dcp_file_new(&to, &opts, &f, e);
	for (size_t i = 0; i < j->n && !rc; i++) {
		if (atomic_load_explicit(&k->stop, memory_order_relaxed))
			return 0; /* another job has failed */
		rc = write_item(k, f, j->items[i], &j->results[i], e);
		j->results[i].info.path = j->name;
		j->results[i].info.transform = o->zstd_level ? DCP_TRANSFORM_ZSTD : NULL;
	}
	if (!rc)
		rc = dcp_file_finish(f, e);
	return rc ? staging_blame(k->w->base.staging, j->name, e) : 0;
}

static void fail(struct work *k, int rc, const struct ckpt_err *e)
{
	SCOPED_LOCK(&k->lock);

	atomic_store_explicit(&k->stop, true, memory_order_relaxed);
	if (!k->rc) {
		k->rc = rc;
		*k->e = *e;
	}
}

static void *take_jobs(void *arg)
{
	struct work *k = arg;
	struct ckpt_err e = { 0 };
	size_t i;

	while (!atomic_load_explicit(&k->stop, memory_order_relaxed) &&
	       (i = atomic_fetch_add(&k->next, 1)) < k->jobs->n) {
		int rc = write_file(k, &k->jobs->v[i], &e);

		if (rc)
			fail(k, rc, &e);
	}
	return NULL;
}

static int write_files(struct writer *w, const struct jobs *jobs, struct ckpt_save_planner *planner,
		       struct ckpt_err *e)
{
	struct work k = {
		.w = w, .jobs = jobs, .planner = planner, .lock = PTHREAD_MUTEX_INITIALIZER, .e = e
	};

	crew_run(min_u64(w->opts.threads, jobs->n), take_jobs, &k);
	(void)pthread_mutex_destroy(&k.lock);
	return k.rc;
}

/* ---- Megatron-core's own ---- */

static bool is_common(const char *fqn, size_t len)
{
	return bytes_are(fqn, len, MEGATRON_COMMON_NAME);
}

static int check_name(const struct ckpt_write_item *item, struct ckpt_err *e)
{
	const struct ckpt_meta_index *x = &item->index;
	char shown[128];

	if (item->type != CKPT_WRITE_BYTE_IO || megatron_is_part(x->fqn, x->fqn_len))
		return 0;
	return err_set(e, EINVAL,
		       "'%s': Megatron-core's objects are called NAME/shard_OFFSET_SHAPE, such as "
		       "'%.80s%s'",
		       text_show(x->fqn, x->fqn_len, shown, sizeof(shown)), shown,
		       MEGATRON_WHOLE_PART);
}

static int write_common(struct writer *w, const struct ckpt_write_item *item,
			struct ckpt_save_planner *planner, struct ckpt_err *e)
{
	const struct outfile_opts opts = { w->opts.buffer, w->opts.progress, w->opts.arg };
	CLEANUP(outfile_release) struct outfile f = OUTFILE_INIT;
	struct ckpt_data s = { 0 };
	int rc = ckpt_save_planner_get_data(planner, item, &s, e);

	if (!rc)
		rc = outfile_open(&f, w->base.staging, MEGATRON_COMMON_NAME, &opts, e);
	if (!rc)
		rc = outfile_source(&f, &s, e);
	if (!rc)
		rc = outfile_finish(&f, e);
	ckpt_data_close(&s);
	return rc;
}

/* common.pt becomes a file of its own; *ret are the other items. */
static int take_common(struct writer *w, const struct ckpt_save_plan *plan,
		       struct ckpt_save_planner *planner, struct ckpt_save_plan *ret,
		       struct ckpt_err *e)
{
	struct ckpt_write_item *rest = writer_array(&w->base, plan->n_items, sizeof(*rest), e);
	int rc = rest ? 0 : -ENOMEM;

	*ret = *plan;
	ret->items = rest;
	ret->n_items = 0;
	for (size_t i = 0; !rc && i < plan->n_items; i++) {
		const struct ckpt_write_item *item = &plan->items[i];

		if (item->type == CKPT_WRITE_BYTE_IO &&
		    is_common(item->index.fqn, item->index.fqn_len)) {
			rc = write_common(w, item, planner, e);
			continue;
		}
		rc = check_name(item, e);
		rest[ret->n_items++] = *item;
	}
	return rc;
}

/* Everything but common.pt in *md; and the files beside .metadata. */
static int finish_megatron(struct writer *w, struct ckpt_metadata *md, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf common = BUF_INIT(1 << 16);
	struct ckpt_meta_entry *rest = writer_array(&w->base, md->n_entries, sizeof(*rest), e);
	size_t n = 0;
	bool has = false;
	int rc = 0;

	if (!rest)
		return -ENOMEM;
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct ckpt_meta_entry *t = &md->entries[i];
		bool file = !t->is_tensor && is_common(t->fqn, t->fqn_len);

		has |= file || bytes_are(t->fqn, t->fqn_len, MEGATRON_COMMON_PART);
		if (!file)
			rest[n++] = *t;
	}
	md->entries = rest;
	md->n_entries = n;
	if (!has)
		rc = megatron_put_common(&common, e);
	if (!rc && !has)
		rc = staging_put(w->base.staging, MEGATRON_COMMON_NAME, common.data, common.len, e);
	return rc ? rc
		  : staging_put(w->base.staging, MEGATRON_JSON_NAME, megatron_json,
				strlen(megatron_json), e);
}

/* ---- all of a rank ---- */

static int write_data(void *self, const struct ckpt_save_plan *plan,
		      struct ckpt_save_planner *planner, struct ckpt_write_results *ret,
		      struct ckpt_err *e)
{
	struct writer *w = self;
	struct ckpt_save_plan rest;
	struct jobs jobs;
	int rc = check_prefix(plan, e);

	if (!rc) /* a rank without items creates its files, too */
		rc = writer_begin_data(&w->base, plan->n_items + 1, e);
	if (!rc && w->opts.megatron) {
		rc = take_common(w, plan, planner, &rest, e);
		plan = &rest;
	}
	if (!rc)
		rc = plan_files(w, plan, &jobs, e);
	if (!rc)
		rc = write_files(w, &jobs, planner, e);
	return rc ? rc : writer_end_data(&w->base, ret, e);
}

/* ---- .metadata ---- */

static int finish(void *self, const struct ckpt_metadata *md, const struct ckpt_write_results *all,
		  size_t n, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf pickle = BUF_INIT(SIZE_MAX / 2);
	struct writer *w = self;
	struct ckpt_metadata whole = *md;
	int rc = writer_join_results(&w->base, all, n, &whole, e);

	whole.version = "1.0.0";
	if (!rc && w->opts.megatron)
		rc = finish_megatron(w, &whole, e);
	if (!rc)
		rc = w->opts.megatron ? metadata_pickle_megatron(&whole, &pickle, e)
				      : metadata_pickle_dcp(&whole, &pickle, e);
	if (!rc)
		rc = staging_put(w->base.staging, ".metadata", pickle.data, pickle.len, e);
	return rc ? rc : writer_commit(&w->base, e);
}

/* ---- birth and death ---- */

static int check_options(const struct writer_dcp_opts *o, struct ckpt_err *e)
{
	if (o->threads > WRITER_DCP_MAX_THREADS)
		return err_set(e, EINVAL, "%u threads are too many: at most %d are possible",
			       o->threads, WRITER_DCP_MAX_THREADS);
	if (o->zstd_level < ZSTD_minCLevel() || o->zstd_level > ZSTD_maxCLevel())
		return err_set(e, EINVAL, "there is no zstd level %d: the highest is %d",
			       o->zstd_level, ZSTD_maxCLevel());
	if (o->buffer && o->buffer < DCP_FILE_MIN_BUFFER)
		return err_set(e, EINVAL, "a buffer of %zu bytes, it needs %d", o->buffer,
			       DCP_FILE_MIN_BUFFER);
	return 0;
}

int writer_dcp_new(const struct writer_dcp_opts *opts, struct ckpt_storage_writer *ret,
		   struct ckpt_err *e)
{
	static const struct ckpt_storage_writer_ops ops = {
		.validate_checkpoint_id = writer_validate,
		.reset = writer_reset,
		.set_up = writer_set_up,
		.prepare_local_plan = prepare_local_plan,
		.prepare_global_plan = prepare_global_plan,
		.write_data = write_data,
		.finish = finish,
		.free = writer_free,
	};
	int rc = check_options(opts, e);
	struct writer *w = rc ? NULL : writer_new(sizeof(*w), opts->overwrite, NULL, &ops, ret, e);

	if (!w)
		return rc ? rc : -ENOMEM;
	w->opts = *opts;
	w->opts.threads = opts->threads ? opts->threads : 1;
	w->opts.buffer = opts->buffer ? opts->buffer : DEFAULT_BUFFER;
	return 0;
}
