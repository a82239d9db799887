/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/index.h"
#include "ckpt/run.h"
#include "ckpt/run_tree.h"
#include "gguf/gguf_write.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "source/files.h"
#include "source/place.h"
#include "tensor/rename.h"
#include "tree/view.h"

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
	int rc = place_open(path, &c->place, &c->root, &c->file, e);

	if (rc)
		return rc;
	c->dir = strdup(c->root);
	if (!c->dir)
		return err_set(e, ENOMEM, "out of memory");
	if (c->file)
		c->dir[c->file - c->root > 1 ? c->file - c->root - 1 : 1] = 0;
	return 0;
}

/* What the metadata files are, and the newest one's time. */
static int look_at_metadata(struct engine *eng, struct digest *ret, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc = 0;

	*ret = (struct digest){ 0 };
	eng->mtime_ns = 0;
	for (size_t i = 0; !rc && i < eng->metadata.n; i++) {
		rc = place_find(eng->c->place, eng->metadata.v[i], &seen, e);
		if (!rc) {
			eng->mtime_ns = max_u64(eng->mtime_ns, seen.mtime_ns);
			digest_add(ret, seen.id.v, seen.id.len);
		}
	}
	return rc;
}

/* What was indexed is what the data files were looked at beside; of safetensors, the same file. */
static int check_metadata(struct engine *eng, const struct digest *before, struct ckpt_err *e)
{
	struct digest now;

	if (look_at_metadata(eng, &now, e))
		return -e->code;
	return memcmp(before, &now, sizeof(now)) ? err_set(e, EAGAIN,
							   "it was written to while it was opened: "
							   "open it again when that is "
							   "over")
						 : 0;
}

/* Another catalog of the same contents, in place of one that turned out to be damaged. */
static int renew_catalog(void *arg, struct catalog **ret, struct ckpt_err *e)
{
	struct engine *eng = arg;
	struct index_request rq = { .place = eng->c->place,
				    .root = eng->c->root,
				    .is_file = eng->c->file,
				    .format = eng->format,
				    .files = &eng->metadata,
				    .where = eng->index_asked ? eng->index : NULL,
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
	if (strcmp(catalog_seal(*ret), catalog_seal(eng->catalog)) != 0) {
		catalog_close(*ret);
		*ret = NULL;
		return err_set(
			e, ESTALE,
			"the chunk index '%.80s' is damaged, and a new one of the checkpoint "
			"differs from it: open the checkpoint again, or remove the index if "
			"that does not help",
			eng->index);
	}
	return 0;
}

/* Chunk map of tensor i, out of *renewed (the caller's to close) if the index is damaged. */
static int load_map(struct engine *eng, struct catalog **renewed, size_t i, struct chunkmap **ret,
		    struct ckpt_err *e)
{
	struct ckpt_err why;
	size_t n;
	int rc;

	if (!*renewed) {
		rc = catalog_load_map(eng->catalog, &catalog_tensors(eng->catalog, &n)[i], ret,
				      &why);
		if (rc == -ERR_CORRUPT)
			rc = renew_catalog(eng, renewed, &why);
		if (rc)
			*e = why;
		if (rc || !*renewed)
			return rc;
	}
	return catalog_load_map(*renewed, &catalog_tensors(*renewed, &n)[i], ret, e);
}

/* Fill in which tensors and objects the unreadable files take with them. */
static int find_victims(struct engine *eng, struct ckpt_err *e)
{
	size_t n_tensors, n_objects;
	const struct catalog_object *o = catalog_objects(eng->catalog, &n_objects);
	struct catalog *renewed = NULL;
	int rc = 0;

	(void)catalog_tensors(eng->catalog, &n_tensors);
	eng->tensor_bad = calloc(n_tensors + 1, sizeof(*eng->tensor_bad));
	eng->object_bad = calloc(n_objects + 1, sizeof(*eng->object_bad));
	if (!eng->tensor_bad || !eng->object_bad)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; !rc && i < n_tensors; i++) {
		autofree struct chunkmap *m = NULL;

		rc = load_map(eng, &renewed, i, &m, e);
		for (uint32_t k = 0; !rc && k < m->count && !eng->tensor_bad[i]; k++)
			if (eng->file_fault[m->locs[k].file])
				eng->tensor_bad[i] = m->locs[k].file + 1;
	}
	catalog_close(renewed);
	for (size_t i = 0; i < n_objects; i++)
		if (!o[i].fault && !o[i].text && eng->file_fault[o[i].loc.file])
			eng->object_bad[i] = o[i].loc.file + 1;
	return rc;
}

static int refuse_bad_files(const struct engine *eng, struct ckpt_err *e)
{
	size_t n, bad = 0, first = 0;

	(void)catalog_sources(eng->catalog, &n);
	for (size_t i = n; i-- > 0;)
		if (eng->file_fault[i]) {
			bad++;
			first = i;
		}
	return bad ? err_set(e, ERR_CORRUPT, "%s%s", eng->file_fault[first],
			     bad > 1 ? " (and more files like it)" : "")
		   : 0;
}

static int check_files(struct engine *eng, bool allow, struct ckpt_err *e)
{
	size_t n;
	bool bad = false;
	const struct stored_file *s = catalog_sources(eng->catalog, &n);
	struct ckpt_err why;

	eng->file_fault = calloc(n + 1, sizeof(*eng->file_fault));
	if (!eng->file_fault)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		if (!s[i].min_size ||
		    !files_fault(eng->files, (uint32_t)i, &why)) /* nothing is in it */
			continue;
		bad = true;
		eng->file_fault[i] = strdup(why.msg);
		if (!eng->file_fault[i])
			return err_set(e, ENOMEM, "out of memory");
	}
	if (bad && allow)
		return find_victims(eng, e);
	return refuse_bad_files(eng, e);
}

const char *ckpt_tensor_fault(const struct engine *eng, size_t i)
{
	size_t n;
	const struct catalog_tensor *t = &catalog_tensors(eng->catalog, &n)[i];

	if (t->state == TENSOR_INCOMPLETE)
		return t->fault ? t->fault : "it is incomplete";
	return eng->tensor_bad && eng->tensor_bad[i] ? eng->file_fault[eng->tensor_bad[i] - 1]
						     : NULL;
}

const char *ckpt_object_fault(const struct engine *eng, size_t i)
{
	size_t n;
	const struct catalog_object *o = &catalog_objects(eng->catalog, &n)[i];

	if (o->fault)
		return o->fault;
	return eng->object_bad && eng->object_bad[i] ? eng->file_fault[eng->object_bad[i] - 1]
						     : NULL;
}

static void identify(struct engine *eng)
{
	(void)snprintf(eng->identity, sizeof(eng->identity), "%s-%016llx-%016llx",
		       catalog_seal(eng->catalog), (unsigned long long)eng->mtime_ns,
		       (unsigned long long)files_hash(eng->files));
}

static void count(struct engine *eng)
{
	size_t n, n_tensors = view_tensors(eng->view), n_objects = view_objects(eng->view), len;
	struct ckpt_totals *s = &eng->c->totals;
	struct tensor_info shown;
	struct view_about about;
	const char *fqn;

	s->format = eng->format->name;
	s->index = eng->index;
	s->index_built = eng->index_built;
	s->mtime_ns = eng->mtime_ns;
	s->identity = eng->identity;
	s->tensors = n_tensors;
	for (size_t i = 0; i < n_tensors; i++) {
		view_tensor(eng->view, i, &shown);
		s->tensor_bytes += shown.bytes;
		s->chunks += ckpt_chunks_of(eng, &shown);
		s->incomplete += ckpt_fault_of(eng, &shown) != NULL;
	}
	s->objects = n_objects;
	for (size_t i = 0; i < n_objects; i++)
		s->incomplete +=
			ckpt_object_fault(eng, view_object(eng->view, i, &fqn, &len)) != NULL;
	(void)catalog_sources(eng->catalog, &n);
	s->files = n;
	s->stored_bytes = files_total(eng->files);
	view_about(eng->view, &about);
	s->has_model = about.has_model;
	s->model_tensors = about.model_tensors;
	s->model_bytes = about.model_bytes;
	s->model_prefix = about.prefix;
	s->model_prefix_len = about.prefix_len;
}

/* Without allow_missing nothing that is shown may be incomplete. */
static int refuse_holes(const struct engine *eng, struct ckpt_err *e)
{
	char show[120], more[64] = "";
	struct tensor_info t;
	const char *fqn, *fault;
	size_t len;

	if (!eng->c->totals.incomplete)
		return 0;
	if (eng->c->totals.incomplete > 1)
		(void)snprintf(more, sizeof(more), " (and %llu more are incomplete)",
			       (unsigned long long)eng->c->totals.incomplete - 1);
	for (size_t i = 0; i < view_tensors(eng->view); i++) {
		view_tensor(eng->view, i, &t);
		fault = ckpt_fault_of(eng, &t);
		if (fault)
			return err_set(e, ERR_CORRUPT, "tensor '%s': %s%s",
				       text_show(t.fqn, t.fqn_len, show, sizeof(show)), fault,
				       more);
	}
	for (size_t i = 0; i < view_objects(eng->view); i++) {
		fault = ckpt_object_fault(eng, view_object(eng->view, i, &fqn, &len));
		if (fault)
			return err_set(e, ERR_CORRUPT, "object '%s': %s%s",
				       text_show(fqn, len, show, sizeof(show)), fault, more);
	}
	return 0;
}

int engine_is_whole(const struct engine *eng, struct ckpt_err *e)
{
	int rc = refuse_bad_files(eng, e);

	return rc ? rc : refuse_holes(eng, e);
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
	const struct engine *eng = arg;

	return assets_read(&eng->assets, i, buf, len, off, e);
}

/* Made at the first read: it describes gguf/, which takes time to prepare. */
static int info(void *arg, const char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct engine *eng = arg;
	struct buf *made = eng->info, *before = NULL;
	int rc;

	if (!made) {
		made = calloc(1, sizeof(*made));
		if (!made)
			return err_set(e, ENOMEM, "out of memory");
		rc = ckpt_info_json(eng->c, &made->data, &made->len, e);
		if (rc) {
			free(made);
			return rc;
		}
		if (!atomic_compare_exchange_strong(&eng->info, &before, made)) {
			buf_release(made);
			free(made);
			made = before;
		}
	}
	*ret = made->data;
	*ret_len = made->len;
	return 0;
}

static int read_rename(struct engine *eng, const char *path, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(MAX_RULES);
	int rc = io_read_file(path, &b, e);

	digest_add(&eng->renaming, b.data, b.len);
	if (!rc)
		rc = rename_parse(b.data, b.len, path, &eng->rename, e);
	buf_release(&b);
	return rc ? err_wrap(e, "option 'rename'") : 0;
}

/* Rules that do nothing are typing errors more often than not. */
static void warn_unused(const struct engine *eng, const struct ckpt_opts *o)
{
	struct rename_rule rule = { 0 };
	char what[384];

	if (!o->warn)
		return;
	while (eng->rename && rename_unmatched(eng->rename, rule.line, &rule)) {
		(void)snprintf(what, sizeof(what), "%.200s:%u: '%.100s' matches no FQN", rule.file,
			       rule.line, rule.text);
		o->warn(o->warn_arg, what);
	}
	for (size_t i = 0; eng->layout && layout_unused(eng->layout, i, what, sizeof(what)); i++)
		o->warn(o->warn_arg, what);
}

static int choose(const struct ckpt_opts *o, struct view_opts *ret, struct ckpt_err *e)
{
	static const struct ckpt_choice dtypes[] = {
		{ "bf16", CKPT_DTYPE_BF16, false },  { "fp16", CKPT_DTYPE_F16, false },
		{ "fp32", CKPT_DTYPE_F32, false },   { "bfloat16", CKPT_DTYPE_BF16, true },
		{ "float16", CKPT_DTYPE_F16, true }, { "float32", CKPT_DTYPE_F32, true },
	};
	static const struct ckpt_choice experts[] = {
		{ "fused", EXPERTS_FUSED, false },
		{ "split", EXPERTS_SPLIT, false },
		{ "stored", EXPERTS_STORED, false },
	};
	static const enum ggml_type types[] = { GGML_F32, GGML_F16, GGML_BF16, GGML_Q8_0 };
	static const struct ckpt_choice gguf[] = {
		{ "f32", 0, false }, { "f16", 1, false }, { "bf16", 2, false }, { "q8_0", 3, false }
	};
	int dtype = 0, type = -1, how = EXPERTS_AUTO;
	int rc = ckpt_opts_choose("dtype", o->dtype, dtypes, ARRAY_LEN(dtypes), &dtype, e);

	if (!rc)
		rc = ckpt_opts_choose("gguf_dtype", o->gguf_dtype, gguf, ARRAY_LEN(gguf), &type, e);
	if (!rc)
		rc = ckpt_opts_choose("experts", o->experts, experts, ARRAY_LEN(experts), &how, e);
	ret->dtype = (enum ckpt_dtype)dtype;
	ret->gguf_type = type < 0 ? NULL : &types[type];
	ret->experts = (enum view_experts)how;
	return rc;
}

/* Everything that options name. */
static int read_options(struct engine *eng, const struct ckpt_opts *o, struct view_opts *ret,
			struct ckpt_err *e)
{
	int rc = choose(o, ret, e);

	if (!rc && o->rename)
		rc = read_rename(eng, o->rename, e);
	if (!rc && o->layout) {
		rc = layout_read(o->layout, &eng->layout, e);
		if (rc)
			rc = err_wrap(e, "option 'layout'");
	}
	return rc;
}

static int find_assets(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	int rc = assets_find(&(struct assets_ask){ .given = o->assets,
						   .place = eng->c->place,
						   .path = eng->c->dir,
						   .warn = o->warn,
						   .warn_arg = o->warn_arg },
			     &eng->assets, e);

	if (!rc && o->ignore_ctime && eng->assets.files)
		files_ignore_ctime(eng->assets.files);
	return rc;
}

static int open_view(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
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
				  .arg = eng,
				  .warn = o->warn,
				  .warn_arg = o->warn_arg };
	int rc = read_options(eng, o, &view, e);

	if (!rc)
		rc = find_assets(eng, o, e);
	if (rc)
		return rc;
	view.rename = eng->rename;
	view.layout = eng->layout;
	view.assets = eng->assets.v;
	view.n_assets = eng->assets.n;
	if (o->recipe) {
		rc = model_recipe_open(eng, o->recipe, &eng->recipe, e);
		if (rc)
			return rc;
		view.recipe = eng->recipe.recipe;
		view.facts = &eng->recipe.facts;
	}
	rc = view_new(eng->catalog, &view, &eng->view, e);
	if (!rc)
		warn_unused(eng, o);
	return rc;
}

/* eng->format and eng->metadata are known. */
static int open_parts(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct index_request rq = { .place = eng->c->place,
				    .root = eng->c->root,
				    .is_file = eng->c->file,
				    .format = eng->format,
				    .files = &eng->metadata,
				    .where = o->index,
				    .rebuild = o->rebuild_index,
				    .scan = { o->progress, o->progress_arg } };
	struct fetch_opts fetch = { .cache_bytes = o->cache ? o->cache : DEFAULT_CACHE,
				    .map_bytes = o->maps ? o->maps : DEFAULT_MAPS,
				    .renew = renew_catalog,
				    .renew_arg = eng };
	const struct stored_file *sources;
	size_t n_sources, n_objects;
	struct digest before;
	int rc = look_at_metadata(eng, &before, e);

	eng->index_asked = o->index;
	if (!rc)
		rc = index_open(&rq, &eng->catalog, &eng->index, &eng->index_built, e);
	if (rc)
		return rc;
	sources = catalog_sources(eng->catalog, &n_sources);
	rc = files_new(eng->c->place, sources, n_sources, &eng->files, e);
	if (!rc && o->ignore_ctime)
		files_ignore_ctime(eng->files);
	if (!rc)
		rc = check_metadata(eng, &before, e);
	if (!rc && o->map_files)
		rc = files_allow_maps(eng->files, MAPPED_FILES, e);
	if (!rc)
		rc = check_files(eng, o->allow_missing, e);
	if (!rc)
		rc = fetch_new(eng->catalog, eng->files, &fetch, &eng->fetch, e);
	if (!rc)
		rc = open_view(eng, o, e);
	if (rc)
		return rc;
	(void)catalog_objects(eng->catalog, &n_objects);
	eng->object_size = malloc((n_objects + 1) * sizeof(*eng->object_size));
	if (!eng->object_size)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n_objects; i++)
		atomic_init(&eng->object_size[i], CKPT_SIZE_UNKNOWN);
	identify(eng);
	count(eng);
	if (!o->allow_missing && !o->allow_holes)
		rc = refuse_holes(eng, e);
	return rc;
}

static void engine_free(struct engine *eng)
{
	size_t n = 0;

	if (!eng)
		return;
	if (eng->catalog)
		(void)catalog_sources(eng->catalog, &n);
	for (size_t i = 0; eng->file_fault && i < n; i++)
		free(eng->file_fault[i]);
	free(eng->file_fault);
	free(eng->tensor_bad);
	free(eng->object_bad);
	free(eng->object_size);
	if (eng->info)
		buf_release(eng->info);
	free(eng->info);
	fetch_free(eng->fetch);
	view_free(eng->view);
	rename_free(eng->rename);
	layout_free(eng->layout);
	model_recipe_release(&eng->recipe);
	assets_release(&eng->assets);
	files_free(eng->files);
	catalog_close(eng->catalog);
	name_list_release(&eng->metadata);
	free(eng->index);
	free(eng);
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
	int rc = run_new(c->place, c->root, o, &c->run, e);

	if (rc)
		return rc;
	if (!o->runs)
		return refuse_run(c->run, e);
	if (o->index && strcmp(o->index, ":memory:") != 0)
		return err_set(
			e, EINVAL,
			"option 'index': each checkpoint of a run has its own; ':memory:' is "
			"the only one for all");
	c->tree = run_tree(c->run);
	c->totals.format = "run";
	c->totals.index = c->totals.identity = c->totals.model_prefix = "";
	/* What is wrong with them is said now; they are those of its checkpoints. */
	rc = read_options(c->engine, o, &ignored, e);
	if (!rc && o->assets)
		rc = find_assets(c->engine, o, e);
	engine_free(c->engine);
	c->engine = NULL;
	return rc;
}

/* ---- opening ---- */

static struct ckpt *new_ckpt(struct ckpt_err *e)
{
	struct ckpt *c = calloc(1, sizeof(*c));
	struct engine *eng = calloc(1, sizeof(*eng));

	if (!c || !eng) {
		free(c);
		free(eng);
		(void)err_set(e, ENOMEM, "out of memory");
		return NULL;
	}
	c->engine = eng;
	c->tree = ckpt_tree(eng);
	eng->c = c;
	return c;
}

static int detect(struct ckpt *c, struct ckpt_err *e)
{
	return format_detect(c->place, c->file, &c->engine->format, &c->engine->metadata, e);
}

static int open_any(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	int rc = format_probe(c->place, c->file, &c->engine->format, &c->engine->metadata, e);

	if (!rc && !c->file) {
		rc = open_run(c, o, e);
		if (rc <= 0)
			return rc;
		rc = 0;
	}
	if (!rc) /* it says what was looked for, unless that has come meanwhile */
		rc = detect(c, e);
	return rc < 0 ? rc : open_parts(c->engine, o, e);
}

const char *ckpt_version(void)
{
	return CKPTFS_VERSION;
}

int ckpt_open_with(const char *path, const struct ckpt_opts *opts, struct ckpt **ret,
		   struct ckpt_err *e)
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

int ckpt_open_sized(const char *path, const char *const opts[], const struct ckpt_hooks *hooks,
		    size_t size, struct ckpt **ret, struct ckpt_err *e)
{
	struct arena words CLEANUP(arena_release) = ARENA_INIT(CKPT_MAX_WORDS);
	struct ckpt_opts o;
	int rc = ckpt_opts_parse(opts, hooks, size, &words, &o, e);

	if (!rc)
		rc = ckpt_open_with(path, &o, ret, e);
	if (!rc)
		ckpt_keep_words(*ret, &words);
	return rc;
}

void ckpt_keep_words(struct ckpt *c, struct arena *words)
{
	c->words = *words;
	*words = (struct arena){ 0 };
}

int ckpt_probe(const char *path, struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc = c ? open_root(c, path, e) : -ENOMEM;

	if (!rc)
		rc = detect(c, e);
	if (c && rc)
		rc = err_wrap(e, "checkpoint '%s'", path);
	ckpt_close(c);
	return rc < 0 ? rc : 0;
}

int ckpt_open_place(struct place *place, const char *root, const struct ckpt_opts *opts,
		    struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc;

	if (!c) {
		place_free(place);
		return -ENOMEM;
	}
	c->place = place;
	c->root = strdup(root);
	c->dir = strdup(root);
	rc = c->root && c->dir ? detect(c, e) : err_set(e, ENOMEM, "out of memory");
	if (!rc)
		rc = open_parts(c->engine, opts, e);
	if (rc) {
		ckpt_close(c);
		return rc == -ENOMEM ? rc : err_wrap(e, "checkpoint '%s'", root);
	}
	*ret = c;
	return 0;
}

void ckpt_close(struct ckpt *c)
{
	if (!c)
		return;
	run_free(c->run);
	engine_free(c->engine);
	place_free(c->place);
	free(c->dir);
	free(c->root);
	arena_release(&c->words);
	free(c);
}

/* ---- what it holds ---- */

struct engine *ckpt_engine(const struct ckpt *c, struct ckpt_err *e)
{
	if (!c->engine)
		(void)err_set(e, EISDIR, "it is a run");
	return c->engine;
}

void ckpt_totals_sized(const struct ckpt *c, struct ckpt_totals *ret, size_t size)
{
	SIZED_GIVE(ret, size, c->totals);
}
