/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "api/index.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "read/files.h"
#include "view/view.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CACHE ((uint64_t)256 << 20)
#define DEFAULT_MAPS  ((uint64_t)8 << 20)

/* ---- opening ---- */

static int open_root(struct ckpt *c, const char *path, struct err *e)
{
	struct stat st;

	c->root = realpath(path, NULL);
	if (!c->root)
		return err_sys(e, errno, "open '%s'", path);
	if (!stat(c->root, &st) && !S_ISDIR(st.st_mode))
		return err_set(e, ENOTDIR, "open '%s': a checkpoint is a directory", path);
	c->dirfd = open(c->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->dirfd < 0)
		return err_sys(e, errno, "open '%s'", path);
	return 0;
}

static void newest_metadata(struct ckpt *c)
{
	struct stat st;

	for (size_t i = 0; i < c->metadata.n; i++)
		if (!fstatat(c->dirfd, c->metadata.v[i], &st, 0) && io_mtime_ns(&st) > c->mtime_ns)
			c->mtime_ns = io_mtime_ns(&st);
}

/* Another catalog of the same contents, in place of one that turned out to be damaged. */
static int renew_catalog(void *arg, struct catalog **ret, struct err *e)
{
	struct ckpt *c = arg;
	struct index_request rq = { .dirfd = c->dirfd,
				    .root = c->root,
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
		    struct err *e)
{
	struct err why;
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
static int find_victims(struct ckpt *c, struct err *e)
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
		if (!o[i].fault && c->file_fault[o[i].loc.file])
			c->object_bad[i] = o[i].loc.file + 1;
	return rc;
}

static int check_files(struct ckpt *c, bool allow, struct err *e)
{
	size_t n, bad = 0, first = 0;
	const struct catalog_source *s = catalog_sources(c->catalog, &n);
	struct err why;

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

static void count(struct ckpt *c)
{
	size_t n_shown, n;
	const uint32_t *shown = view_tensors(c->view, &n_shown);
	const struct catalog_tensor *t = catalog_tensors(c->catalog, &n);
	struct ckpt_totals *s = &c->totals;

	s->format = c->format->name;
	s->index = c->index;
	s->index_built = c->index_built;
	s->mtime_ns = c->mtime_ns;
	s->tensors = n_shown;
	for (size_t i = 0; i < n_shown; i++) {
		s->tensor_bytes += t[shown[i]].bytes;
		s->chunks += t[shown[i]].chunks;
		s->incomplete += ckpt_tensor_fault(c, shown[i]) != NULL;
	}
	shown = view_objects(c->view, &n_shown);
	s->objects = n_shown;
	for (size_t i = 0; i < n_shown; i++)
		s->incomplete += ckpt_object_fault(c, shown[i]) != NULL;
	(void)catalog_sources(c->catalog, &n);
	s->files = n;
	s->stored_bytes = files_total(c->files);
}

/* Without allow_missing nothing that is shown may be incomplete. */
static int refuse_holes(const struct ckpt *c, struct err *e)
{
	size_t n_shown, n;
	const uint32_t *shown = view_tensors(c->view, &n_shown);
	const struct catalog_tensor *t = catalog_tensors(c->catalog, &n);
	char fqn[120], more[64] = "";

	if (!c->totals.incomplete)
		return 0;
	if (c->totals.incomplete > 1)
		(void)snprintf(more, sizeof(more), " (and %llu more are incomplete)",
			       (unsigned long long)c->totals.incomplete - 1);
	for (size_t i = 0; i < n_shown; i++) {
		const char *fault = ckpt_tensor_fault(c, shown[i]);

		if (fault)
			return err_set(
				e, ERR_CORRUPT, "tensor '%s': %s%s",
				text_show(t[shown[i]].fqn, t[shown[i]].fqn_len, fqn, sizeof(fqn)),
				fault, more);
	}
	shown = view_objects(c->view, &n_shown);
	for (size_t i = 0; i < n_shown; i++) {
		const char *fault = ckpt_object_fault(c, shown[i]);

		if (fault)
			return err_set(e, ERR_CORRUPT, "object '%s': %s%s",
				       catalog_objects(c->catalog, &n)[shown[i]].fqn, fault, more);
	}
	return 0;
}

static int open_parts(struct ckpt *c, const struct ckpt_opts *o, struct err *e)
{
	struct index_request rq = { .dirfd = c->dirfd,
				    .root = c->root,
				    .where = o->index,
				    .rebuild = o->rebuild_index,
				    .scan = { o->progress, o->progress_arg } };
	struct view_opts view = { o->include, o->exclude };
	struct fetch_opts fetch = { .cache_bytes = o->cache_bytes ? o->cache_bytes : DEFAULT_CACHE,
				    .map_bytes = o->map_bytes ? o->map_bytes : DEFAULT_MAPS,
				    .renew = renew_catalog,
				    .renew_arg = c };
	const struct catalog_source *sources;
	size_t n_sources, n_objects;
	int rc = format_detect(c->dirfd, &c->format, &c->metadata, e);

	if (rc)
		return rc;
	rq.format = c->format;
	rq.files = &c->metadata;
	rc = index_open(&rq, &c->catalog, &c->index, &c->index_built, e);
	if (rc)
		return rc;
	newest_metadata(c);
	sources = catalog_sources(c->catalog, &n_sources);
	rc = files_new(c->dirfd, sources, n_sources, &c->files, e);
	if (!rc)
		rc = check_files(c, o->allow_missing, e);
	if (!rc)
		rc = view_new(c->catalog, &view, &c->view, e);
	if (!rc)
		rc = fetch_new(c->catalog, c->files, &fetch, &c->fetch, e);
	if (rc)
		return rc;
	(void)catalog_objects(c->catalog, &n_objects);
	c->object_size = malloc((n_objects + 1) * sizeof(*c->object_size));
	if (!c->object_size)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n_objects; i++)
		atomic_init(&c->object_size[i], VIEW_SIZE_UNKNOWN);
	count(c);
	if (!o->allow_missing && !o->allow_holes)
		rc = refuse_holes(c, e);
	return rc ? rc : ckpt_info_json(c, &c->info, &c->info_len, e);
}

int ckpt_open(const char *path, const struct ckpt_opts *opts, struct ckpt **ret, struct err *e)
{
	struct ckpt *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return err_set(e, ENOMEM, "out of memory");
	c->dirfd = -1;
	rc = open_root(c, path, e);
	if (!rc) {
		rc = open_parts(c, opts, e);
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

void ckpt_close(struct ckpt *c)
{
	size_t n = 0;

	if (!c)
		return;
	if (c->catalog)
		(void)catalog_sources(c->catalog, &n);
	for (size_t i = 0; c->file_fault && i < n; i++)
		free(c->file_fault[i]);
	free(c->file_fault);
	free(c->tensor_bad);
	free(c->object_bad);
	free(c->object_size);
	free(c->info);
	fetch_free(c->fetch);
	view_free(c->view);
	files_free(c->files);
	catalog_close(c->catalog);
	name_list_release(&c->metadata);
	free(c->index);
	if (c->dirfd >= 0)
		(void)close(c->dirfd);
	free(c->root);
	free(c);
}

/* ---- what it holds ---- */

void ckpt_totals(const struct ckpt *c, struct ckpt_totals *ret)
{
	*ret = c->totals;
}

static size_t tensor_number(const struct ckpt *c, uint64_t i)
{
	size_t n;

	return view_tensors(c->view, &n)[i];
}

void ckpt_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	size_t n, number = tensor_number(c, i);
	const struct catalog_tensor *t = &catalog_tensors(c->catalog, &n)[number];

	*ret = (struct ckpt_tensor){ .fqn = t->fqn,
				     .fqn_len = t->fqn_len,
				     .dtype = dtype_info(t->dtype)->name,
				     .n_dims = t->n_dims,
				     .shape = t->shape,
				     .bytes = t->bytes,
				     .chunks = t->chunks,
				     .fault = ckpt_tensor_fault(c, number) };
}

/* Position among the shown numbers, or -1. */
static int64_t position(const uint32_t *shown, size_t n, int64_t number)
{
	size_t lo = 0, hi = n;

	if (number < 0)
		return -1;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (shown[mid] < (uint32_t)number)
			lo = mid + 1;
		else
			hi = mid;
	}
	return (int64_t)lo;
}

int64_t ckpt_tensor_find(const struct ckpt *c, const char *fqn, size_t len)
{
	size_t n;
	const uint32_t *shown = view_tensors(c->view, &n);

	return position(shown, n, view_find(c->view, false, fqn, len));
}

int64_t ckpt_object_find(const struct ckpt *c, const char *fqn, size_t len)
{
	size_t n;
	const uint32_t *shown = view_objects(c->view, &n);

	return position(shown, n, view_find(c->view, true, fqn, len));
}

static int by_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int ckpt_tensor_files(struct ckpt *c, uint64_t i, uint64_t *ret, struct err *e)
{
	const struct chunkmap *m;
	struct otensor *t;
	autofree uint32_t *files = NULL;
	int rc = otensor_map(c->fetch, tensor_number(c, i), &t, &m, e);

	if (rc)
		return rc;
	files = malloc((m->count + 1u) * sizeof(*files));
	for (uint32_t k = 0; files && k < m->count; k++)
		files[k] = m->locs[k].file;
	if (files) {
		uint64_t n = m->count > 0;

		qsort(files, m->count, sizeof(*files), by_u32);
		for (uint32_t k = 1; k < m->count; k++)
			n += files[k] != files[k - 1];
		*ret = n;
	}
	otensor_close(c->fetch, t);
	return files ? 0 : err_set(e, ENOMEM, "out of memory");
}

int ckpt_tensor_chunks(struct ckpt *c, uint64_t i,
		       int (*each)(void *arg, const struct ckpt_chunk *chunk), void *arg,
		       struct err *e)
{
	uint64_t off[64] = { 0 }, len[64] = { 0 };
	size_t n;
	const struct catalog_source *s = catalog_sources(c->catalog, &n);
	const char *const *encodings = catalog_encodings(c->catalog, &n);
	const struct chunkmap *m;
	struct otensor *t;
	int rc = otensor_map(c->fetch, tensor_number(c, i), &t, &m, e);

	if (rc)
		return rc;
	for (uint32_t k = 0; !rc && k < m->count; k++) {
		const struct chunk_loc *l = &m->locs[k];
		struct ckpt_chunk chunk = { .off = off,
					    .len = len,
					    .path = s[l->file].path,
					    .offset = l->offset,
					    .length = l->length,
					    .encoding = encodings[l->encoding] };

		chunkmap_box(m, k, off, len);
		rc = each(arg, &chunk);
	}
	otensor_close(c->fetch, t);
	return rc;
}

void ckpt_object(const struct ckpt *c, uint64_t i, struct ckpt_object *ret)
{
	size_t n;
	uint32_t number = view_objects(c->view, &n)[i];
	const struct catalog_object *o = &catalog_objects(c->catalog, &n)[number];

	*ret = (struct ckpt_object){ .fqn = o->fqn,
				     .fqn_len = o->fqn_len,
				     .fault = ckpt_object_fault(c, number),
				     .path = "",
				     .encoding = "" };
	if (!o->fault) {
		ret->path = catalog_sources(c->catalog, &n)[o->loc.file].path;
		ret->encoding = catalog_encodings(c->catalog, &n)[o->loc.encoding];
		ret->offset = o->loc.offset;
		ret->length = o->loc.length;
	}
}
