/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "api/index.h"
#include "api/run.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "read/files.h"
#include "view/gguf_write.h"
#include "view/layout.h"
#include "view/rename.h"
#include "view/view.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CACHE ((uint64_t)256 << 20)
#define DEFAULT_MAPS  ((uint64_t)8 << 20)
#define MAPPED_FILES  ((uint64_t)4 << 30)    /* 8 MiB of page tables */
#define DEFAULT_SHARD ((uint64_t)5000000000) /* as save_pretrained's "5GB" */
#define MAX_RULES     ((size_t)4 << 20)	     /* bytes of a file of renaming rules */

/* ---- its parts ---- */

static int open_root(struct ckpt *c, const char *path, struct ckpt_err *e)
{
	struct stat st;

	c->root = realpath(path, NULL);
	if (!c->root)
		return err_sys(e, errno, "open '%s'", path);
	if (stat(c->root, &st))
		return err_sys(e, errno, "open '%s'", path);
	if (S_ISREG(st.st_mode))
		c->file = strrchr(c->root, '/') + 1;
	else if (!S_ISDIR(st.st_mode))
		return err_set(e, ENOTDIR, "open '%s': a checkpoint is a directory or a file",
			       path);
	c->dir = strdup(c->root);
	if (!c->dir)
		return err_set(e, ENOMEM, "out of memory");
	if (c->file)
		c->dir[c->file - c->root > 1 ? c->file - c->root - 1 : 1] = 0;
	c->dirfd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->dirfd < 0)
		return err_sys(e, errno, "open '%s'", c->dir);
	return 0;
}

static int newest_metadata(struct ckpt *c, struct ckpt_err *e)
{
	struct stat st;

	for (size_t i = 0; i < c->metadata.n; i++) {
		if (fstatat(c->dirfd, c->metadata.v[i], &st, 0))
			return err_sys(e, errno, "stat '%s'", c->metadata.v[i]);
		if (io_mtime_ns(&st) > c->mtime_ns)
			c->mtime_ns = io_mtime_ns(&st);
	}
	return 0;
}

/* Another catalog of the same contents, in place of one that turned out to be damaged. */
static int renew_catalog(void *arg, struct catalog **ret, struct ckpt_err *e)
{
	struct ckpt *c = arg;
	struct index_request rq = { .dirfd = c->dirfd,
				    .root = c->root,
				    .is_file = c->file,
				    .format = c->format,
				    .files = &c->metadata,
				    .where = c->index,
				    .rebuild = true };
	autofree char *path = NULL;
	bool built;
	int rc = index_open(&rq, ret, &path, &built, e);

	if (rc) { /* it may lie where nothing can be written by now */
		rq.where = ":memory:";
		rc = index_open(&rq, ret, &path, &built, e);
	}
	if (rc)
		return rc;
	if (strcmp(catalog_seal(*ret), catalog_seal(c->catalog)) != 0) {
		catalog_close(*ret);
		*ret = NULL;
		return err_set(e, ESTALE,
			       "the chunk index is damaged, and the checkpoint has changed since");
	}
	return 0;
}

/* Chunk map of tensor i, out of *renewed (the caller's to close) if the index is damaged. */
static int load_map(struct ckpt *c, struct catalog **renewed, size_t i, struct chunkmap **ret,
		    struct ckpt_err *e)
{
	struct ckpt_err why;
	size_t n;
	int rc;

	if (!*renewed) {
		rc = catalog_load_map(c->catalog, &catalog_tensors(c->catalog, &n)[i], ret, &why);
		if (rc == -ERR_CORRUPT)
			rc = renew_catalog(c, renewed, &why);
		if (rc)
			*e = why;
		if (rc || !*renewed)
			return rc;
	}
	return catalog_load_map(*renewed, &catalog_tensors(*renewed, &n)[i], ret, e);
}

/* Fill in which tensors and objects the unreadable files take with them. */
static int find_victims(struct ckpt *c, struct ckpt_err *e)
{
	size_t n_tensors, n_objects;
	const struct catalog_object *o = catalog_objects(c->catalog, &n_objects);
	struct catalog *renewed = NULL;
	int rc = 0;

	(void)catalog_tensors(c->catalog, &n_tensors);
	c->tensor_bad = calloc(n_tensors + 1, sizeof(*c->tensor_bad));
	c->object_bad = calloc(n_objects + 1, sizeof(*c->object_bad));
	if (!c->tensor_bad || !c->object_bad)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; !rc && i < n_tensors; i++) {
		autofree struct chunkmap *m = NULL;

		rc = load_map(c, &renewed, i, &m, e);
		for (uint32_t k = 0; !rc && k < m->count && !c->tensor_bad[i]; k++)
			if (c->file_fault[m->locs[k].file])
				c->tensor_bad[i] = m->locs[k].file + 1;
	}
	catalog_close(renewed);
	for (size_t i = 0; i < n_objects; i++)
		if (!o[i].fault && !o[i].text && c->file_fault[o[i].loc.file])
			c->object_bad[i] = o[i].loc.file + 1;
	return rc;
}

static int check_files(struct ckpt *c, bool allow, struct ckpt_err *e)
{
	size_t n, bad = 0, first = 0;
	const struct catalog_source *s = catalog_sources(c->catalog, &n);
	struct ckpt_err why;

	c->file_fault = calloc(n + 1, sizeof(*c->file_fault));
	if (!c->file_fault)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		if (!s[i].min_size ||
		    !files_fault(c->files, (uint32_t)i, &why)) /* nothing is in it */
			continue;
		if (!bad++)
			first = i;
		c->file_fault[i] = strdup(why.msg);
		if (!c->file_fault[i])
			return err_set(e, ENOMEM, "out of memory");
	}
	if (!bad)
		return 0;
	if (!allow)
		return err_set(e, ERR_CORRUPT, "%s%s", c->file_fault[first],
			       bad > 1 ? " (and more files like it)" : "");
	return find_victims(c, e);
}

const char *ckpt_tensor_fault(const struct ckpt *c, size_t i)
{
	size_t n;
	const struct catalog_tensor *t = &catalog_tensors(c->catalog, &n)[i];

	if (t->state == TENSOR_INCOMPLETE)
		return t->fault ? t->fault : "it is incomplete";
	return c->tensor_bad && c->tensor_bad[i] ? c->file_fault[c->tensor_bad[i] - 1] : NULL;
}

const char *ckpt_object_fault(const struct ckpt *c, size_t i)
{
	size_t n;
	const struct catalog_object *o = &catalog_objects(c->catalog, &n)[i];

	if (o->fault)
		return o->fault;
	return c->object_bad && c->object_bad[i] ? c->file_fault[c->object_bad[i] - 1] : NULL;
}

static void identify(struct ckpt *c)
{
	(void)snprintf(c->identity, sizeof(c->identity), "%s-%016llx-%016llx",
		       catalog_seal(c->catalog), (unsigned long long)c->mtime_ns,
		       (unsigned long long)files_hash(c->files));
}

static void count(struct ckpt *c)
{
	size_t n, n_tensors = view_tensors(c->view), n_objects = view_objects(c->view), len;
	struct ckpt_totals *s = &c->totals;
	struct view_tensor shown;
	struct view_about about;
	const char *fqn;

	s->format = c->format->name;
	s->index = c->index;
	s->index_built = c->index_built;
	s->mtime_ns = c->mtime_ns;
	s->identity = c->identity;
	s->tensors = n_tensors;
	for (size_t i = 0; i < n_tensors; i++) {
		view_tensor(c->view, i, &shown);
		s->tensor_bytes += shown.bytes;
		s->chunks += ckpt_chunks_of(c, &shown);
		s->incomplete += ckpt_fault_of(c, &shown) != NULL;
	}
	s->objects = n_objects;
	for (size_t i = 0; i < n_objects; i++)
		s->incomplete += ckpt_object_fault(c, view_object(c->view, i, &fqn, &len)) != NULL;
	(void)catalog_sources(c->catalog, &n);
	s->files = n;
	s->stored_bytes = files_total(c->files);
	view_about(c->view, &about);
	s->has_model = about.has_model;
	s->model_tensors = about.model_tensors;
	s->model_bytes = about.model_bytes;
	s->model_prefix = about.prefix;
	s->model_prefix_len = about.prefix_len;
}

/* Without allow_missing nothing that is shown may be incomplete. */
static int refuse_holes(const struct ckpt *c, struct ckpt_err *e)
{
	char show[120], more[64] = "";
	struct view_tensor t;
	const char *fqn, *fault;
	size_t len;

	if (!c->totals.incomplete)
		return 0;
	if (c->totals.incomplete > 1)
		(void)snprintf(more, sizeof(more), " (and %llu more are incomplete)",
			       (unsigned long long)c->totals.incomplete - 1);
	for (size_t i = 0; i < view_tensors(c->view); i++) {
		view_tensor(c->view, i, &t);
		fault = ckpt_fault_of(c, &t);
		if (fault)
			return err_set(e, ERR_CORRUPT, "tensor '%s': %s%s",
				       text_show(t.fqn, t.fqn_len, show, sizeof(show)), fault,
				       more);
	}
	for (size_t i = 0; i < view_objects(c->view); i++) {
		fault = ckpt_object_fault(c, view_object(c->view, i, &fqn, &len));
		if (fault)
			return err_set(e, ERR_CORRUPT, "object '%s': %s%s",
				       text_show(fqn, len, show, sizeof(show)), fault, more);
	}
	return 0;
}

/* ---- what is shown of it ---- */

static const char *fault_of(void *arg, bool object, size_t number)
{
	return object ? ckpt_object_fault(arg, number) : ckpt_tensor_fault(arg, number);
}

static int size_of_object(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	return ckpt_object_size(arg, number, ret, e);
}

static int read_asset(void *arg, size_t i, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	const struct ckpt *c = arg;

	return assets_read(&c->assets, i, buf, len, off, e);
}

/* It is made for whoever reads it first: it tells of gguf/, which takes its time. */
static int info(void *arg, const char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct ckpt *c = arg;
	struct buf *made = c->info, *before = NULL;
	int rc;

	if (!made) {
		made = calloc(1, sizeof(*made));
		if (!made)
			return err_set(e, ENOMEM, "out of memory");
		rc = ckpt_info_json(c, &made->data, &made->len, e);
		if (rc) {
			free(made);
			return rc;
		}
		if (!atomic_compare_exchange_strong(&c->info, &before, made)) {
			buf_release(made);
			free(made);
			made = before;
		}
	}
	*ret = made->data;
	*ret_len = made->len;
	return 0;
}

static int parse_gguf_dtype(const char *name, const enum ggml_type **ret, struct ckpt_err *e)
{
	static const struct {
		const char *name;
		enum ggml_type type;
	} known[] = { { "f32", GGML_F32 },
		      { "f16", GGML_F16 },
		      { "bf16", GGML_BF16 },
		      { "q8_0", GGML_Q8_0 } };

	*ret = NULL;
	for (size_t i = 0; name && i < ARRAY_LEN(known); i++)
		if (!strcmp(name, known[i].name)) {
			*ret = &known[i].type;
			return 0;
		}
	return name ? err_set(e, EINVAL,
			      "option 'gguf_dtype': '%s' is none of f32, f16, bf16, q8_0", name)
		    : 0;
}

static int parse_experts(const char *name, enum view_experts *ret, struct ckpt_err *e)
{
	static const char *const names[] = {
		[EXPERTS_STORED] = "stored",
		[EXPERTS_FUSED] = "fused",
		[EXPERTS_SPLIT] = "split",
	};

	*ret = EXPERTS_AUTO;
	for (unsigned i = EXPERTS_STORED; name && i < ARRAY_LEN(names); i++)
		if (!strcmp(name, names[i]))
			*ret = (enum view_experts)i;
	return name && *ret == EXPERTS_AUTO
		       ? err_set(e, EINVAL,
				 "option 'experts': '%s' is none of fused, split, stored", name)
		       : 0;
}

static int parse_dtype(const char *name, enum ckpt_dtype *ret, struct ckpt_err *e)
{
	static const struct {
		const char *name;
		enum ckpt_dtype dtype;
	} known[] = {
		{ "bf16", CKPT_DTYPE_BF16 }, { "bfloat16", CKPT_DTYPE_BF16 },
		{ "fp16", CKPT_DTYPE_F16 },  { "float16", CKPT_DTYPE_F16 },
		{ "fp32", CKPT_DTYPE_F32 },  { "float32", CKPT_DTYPE_F32 },
	};

	for (size_t i = 0; name && i < ARRAY_LEN(known); i++)
		if (!strcmp(name, known[i].name)) {
			*ret = known[i].dtype;
			return 0;
		}
	return name ? err_set(e, EINVAL, "option 'dtype': '%s' is none of bf16, fp16, fp32", name)
		    : 0;
}

static int read_rename(struct ckpt *c, const char *path, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(MAX_RULES);
	int rc = io_read_file(path, &b, e);

	if (!rc)
		rc = rename_parse(b.data, b.len, path, &c->rename, e);
	buf_release(&b);
	return rc ? err_wrap(e, "option 'rename'") : 0;
}

/* Rules that do nothing are typing errors more often than not. */
static void warn_unused(const struct ckpt *c, const struct ckpt_opts *o)
{
	struct rename_rule rule = { 0 };
	char what[384];

	if (!o->warn)
		return;
	while (c->rename && rename_unmatched(c->rename, rule.line, &rule)) {
		(void)snprintf(what, sizeof(what), "%.200s:%u: '%.100s' matches no FQN", rule.file,
			       rule.line, rule.text);
		o->warn(o->warn_arg, what);
	}
	for (size_t i = 0; c->layout && layout_unused(c->layout, i, what, sizeof(what)); i++)
		o->warn(o->warn_arg, what);
}

/* Everything that options name. */
static int read_options(struct ckpt *c, const struct ckpt_opts *o, struct view_opts *ret,
			struct ckpt_err *e)
{
	int rc = parse_dtype(o->dtype, &ret->dtype, e);

	if (!rc)
		rc = parse_gguf_dtype(o->gguf_dtype, &ret->gguf_type, e);
	if (!rc)
		rc = parse_experts(o->experts, &ret->experts, e);
	if (!rc && o->rename)
		rc = read_rename(c, o->rename, e);
	if (!rc && o->layout) {
		rc = layout_read(o->layout, &c->layout, e);
		if (rc)
			rc = err_wrap(e, "option 'layout'");
	}
	return rc ? rc : assets_find(o->assets, c->dir, &c->assets, e);
}

static int open_view(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct view_opts view = { .include = o->include,
				  .exclude = o->exclude,
				  .weights = o->weights,
				  .shard_size = o->shard_size ? o->shard_size : DEFAULT_SHARD,
				  .gguf_size = o->shard_size,
				  .fault = fault_of,
				  .read_asset = read_asset,
				  .info = info,
				  .object_size = size_of_object,
				  .arg = c,
				  .warn = o->warn,
				  .warn_arg = o->warn_arg };
	int rc = read_options(c, o, &view, e);

	if (rc)
		return rc;
	view.rename = c->rename;
	view.layout = c->layout;
	view.assets = c->assets.v;
	view.n_assets = c->assets.n;
	if (o->recipe) {
		rc = model_recipe_open(c, o->recipe, &c->recipe, e);
		if (rc)
			return rc;
		view.recipe = c->recipe.recipe;
		view.facts = &c->recipe.facts;
	}
	rc = view_new(c->catalog, &view, &c->view, e);
	if (!rc)
		warn_unused(c, o);
	return rc;
}

/* c->format and c->metadata are known. */
static int open_parts(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct index_request rq = { .dirfd = c->dirfd,
				    .root = c->root,
				    .is_file = c->file,
				    .format = c->format,
				    .files = &c->metadata,
				    .where = o->index,
				    .rebuild = o->rebuild_index,
				    .scan = { o->progress, o->progress_arg } };
	struct fetch_opts fetch = { .cache_bytes = o->cache_bytes ? o->cache_bytes : DEFAULT_CACHE,
				    .map_bytes = o->map_bytes ? o->map_bytes : DEFAULT_MAPS,
				    .renew = renew_catalog,
				    .renew_arg = c };
	const struct catalog_source *sources;
	size_t n_sources, n_objects;
	int rc = index_open(&rq, &c->catalog, &c->index, &c->index_built, e);

	if (!rc)
		rc = newest_metadata(c, e);
	if (rc)
		return rc;
	sources = catalog_sources(c->catalog, &n_sources);
	rc = files_new(c->dirfd, sources, n_sources, &c->files, e);
	if (!rc && o->map_files)
		rc = files_allow_maps(c->files, MAPPED_FILES, e);
	if (!rc)
		rc = check_files(c, o->allow_missing, e);
	if (!rc)
		rc = fetch_new(c->catalog, c->files, &fetch, &c->fetch, e);
	if (!rc)
		rc = open_view(c, o, e);
	if (rc)
		return rc;
	(void)catalog_objects(c->catalog, &n_objects);
	c->object_size = malloc((n_objects + 1) * sizeof(*c->object_size));
	if (!c->object_size)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n_objects; i++)
		atomic_init(&c->object_size[i], CKPT_SIZE_UNKNOWN);
	identify(c);
	count(c);
	if (!o->allow_missing && !o->allow_holes)
		rc = refuse_holes(c, e);
	return rc;
}

/* ---- runs ---- */

static int refuse_run(struct ckpt_run *r, struct ckpt_err *e)
{
	struct run_about one;
	unsigned slot;

	if (run_latest(r, &slot))
		slot = 1;
	if (run_next(r, &slot, &one))
		return err_set(e, ENOENT, "it is a run without a complete checkpoint");
	return err_set(e, EISDIR, "it is a run with %zu checkpoint%s; name one, as in '%s/%s'",
		       r->n_complete, r->n_complete == 1 ? "" : "s", r->root, one.name);
}

/* 1: it is none. */
static int open_run(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct view_opts ignored;
	int rc = run_new(c->dirfd, c->root, o, &c->run, e);

	if (rc)
		return rc;
	if (!o->runs)
		return refuse_run(c->run, e);
	if (o->index && strcmp(o->index, ":memory:") != 0)
		return err_set(
			e, EINVAL,
			"option 'index': each checkpoint of a run has its own; ':memory:' is "
			"the only one for all");
	c->totals.format = "run";
	c->totals.index = c->totals.identity = c->totals.model_prefix = "";
	return read_options(c, o, &ignored, e); /* what is wrong with them is said now */
}

/* ---- opening ---- */

static struct ckpt *new_ckpt(struct ckpt_err *e)
{
	struct ckpt *c = calloc(1, sizeof(*c));

	if (c)
		c->dirfd = c->assets.root = -1;
	else
		(void)err_set(e, ENOMEM, "out of memory");
	return c;
}

static int open_any(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	int rc = format_probe(c->dirfd, c->file, &c->format, &c->metadata, e);

	if (!rc && !c->file) {
		rc = open_run(c, o, e);
		if (rc <= 0)
			return rc;
		rc = 0;
	}
	if (!rc) /* it says what was looked for, unless that has come meanwhile */
		rc = format_detect(c->dirfd, c->file, &c->format, &c->metadata, e);
	return rc < 0 ? rc : open_parts(c, o, e);
}

const char *ckpt_version(void)
{
	return CKPTFS_VERSION;
}

int ckpt_open(const char *path, const struct ckpt_opts *opts, struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc = c ? open_root(c, path, e) : -ENOMEM;

	if (!rc) {
		rc = open_any(c, opts, e);
		if (rc)
			rc = err_wrap(e, "checkpoint '%s'", path);
	}
	if (rc) {
		ckpt_close(c);
		return rc;
	}
	*ret = c;
	return 0;
}

int ckpt_probe(const char *path, struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc = c ? open_root(c, path, e) : -ENOMEM;

	if (!rc)
		rc = format_detect(c->dirfd, c->file, &c->format, &c->metadata, e);
	if (c && rc)
		rc = err_wrap(e, "checkpoint '%s'", path);
	ckpt_close(c);
	return rc < 0 ? rc : 0;
}

int ckpt_open_dir(int dirfd, const char *root, const struct ckpt_opts *opts, struct ckpt **ret,
		  struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc;

	if (!c) {
		(void)close(dirfd);
		return -ENOMEM;
	}
	c->dirfd = dirfd;
	c->root = strdup(root);
	c->dir = strdup(root);
	rc = c->root && c->dir ? format_detect(dirfd, NULL, &c->format, &c->metadata, e)
			       : err_set(e, ENOMEM, "out of memory");
	if (!rc)
		rc = open_parts(c, opts, e);
	if (rc) {
		ckpt_close(c);
		return rc == -ENOMEM ? rc : err_wrap(e, "checkpoint '%s'", root);
	}
	*ret = c;
	return 0;
}

void ckpt_close(struct ckpt *c)
{
	size_t n = 0;

	if (!c)
		return;
	run_free(c->run);
	if (c->catalog)
		(void)catalog_sources(c->catalog, &n);
	for (size_t i = 0; c->file_fault && i < n; i++)
		free(c->file_fault[i]);
	free(c->file_fault);
	free(c->tensor_bad);
	free(c->object_bad);
	free(c->object_size);
	if (c->info)
		buf_release(c->info);
	free(c->info);
	fetch_free(c->fetch);
	view_free(c->view);
	rename_free(c->rename);
	layout_free(c->layout);
	model_recipe_release(&c->recipe);
	assets_release(&c->assets);
	files_free(c->files);
	catalog_close(c->catalog);
	name_list_release(&c->metadata);
	free(c->index);
	if (c->dirfd >= 0)
		(void)close(c->dirfd);
	free(c->dir);
	free(c->root);
	free(c);
}

/* ---- what it holds ---- */

void ckpt_totals(const struct ckpt *c, struct ckpt_totals *ret)
{
	*ret = c->totals;
}
