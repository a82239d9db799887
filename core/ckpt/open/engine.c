/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes an engine; engine_faults.c finds its faults, engine_view.c creates its view. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/computed/quantise.h"
#include "ckpt/model/verdict.h"
#include "ckpt/open/index.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "source/place.h"
#include "tensor/rename.h"
#include "tree/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAPPED_FILES ((uint64_t)4 << 30) /* costs 8 MiB of page tables */

/* Digests the metadata files, and finds the newest modification time. */
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

/*
 * The metadata must not have changed between indexing and examining the data files; with
 * safetensors, both are the same file.
 */
static int check_metadata(struct engine *eng, const struct index_request *rq,
			  const struct digest *before, struct ckpt_err *e)
{
	struct digest now;
	bool same;
	size_t n;

	if (look_at_metadata(eng, &now, e))
		return -e->code;
	same = !memcmp(before, &now, sizeof(now));
	(void)catalog_metadata(eng->catalog, &n);
	if (same && n != eng->metadata.n) /* there are others */
		same = index_still_matches(rq, eng->catalog);
	return !same ? err_set(e, EAGAIN,
			       "it was written to while it was opened: "
			       "open it again when that is "
			       "over")
		     : 0;
}

/* Replaces a catalog that turned out to be damaged by another with the same contents. */
static int renew_catalog(void *arg, struct catalog **ret, struct ckpt_err *e)
{
	struct engine *eng = arg;
	struct index_request rq = { .place = eng->c->place,
				    .root = eng->c->root,
				    .is_file = eng->c->file,
				    .format = eng->format,
				    .files = &eng->metadata,
				    .where = eng->index_asked ? eng->index : NULL,
				    .rebuild = true,
				    .needed = eng->index_needed };
	autofree char *path = NULL;
	bool built;
	int rc = index_open(&rq, ret, &path, &built, e);

	if (rc && !rq.needed) { /* its directory may have become read-only */
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

int engine_load_map(struct engine *eng, struct catalog **renewed, size_t i, struct chunkmap **ret,
		    struct ckpt_err *e)
{
	const struct catalog_tensor *t = &catalog_tensors(eng->catalog, NULL)[i];
	struct ckpt_err why;
	int rc;

	if (!*renewed) {
		rc = catalog_load_map(eng->catalog, t, ret, &why);
		if (rc == -ERR_CORRUPT)
			rc = renew_catalog(eng, renewed, &why);
		if (rc)
			*e = why;
		if (rc || !*renewed)
			return rc;
	}
	return catalog_load_map(*renewed, &catalog_tensors(*renewed, NULL)[t->row], ret, e);
}

/* What is computed from other checkpoints changes with them. */
static void identify(struct engine *eng)
{
	uint64_t files = files_hash(eng->files);
	struct digest d = { 0 };

	if (eng->others.n || eng->average.n) {
		digest_add(&d, &files, sizeof(files));
		average_digest(&eng->average, &d);
		digest_add(&d, &eng->merging, sizeof(eng->merging));
		others_digest(eng, &d);
		files = d.low;
	}
	eng->metadata_ns = eng->mtime_ns;
	eng->mtime_ns = max_u64(eng->mtime_ns, others_mtime(eng));
	(void)snprintf(eng->identity, sizeof(eng->identity), "%s-%016llx-%016llx",
		       catalog_seal(eng->catalog), (unsigned long long)eng->mtime_ns,
		       (unsigned long long)files);
}

/* The sentence that the format has left as an object, which the caller frees. NULL: none. */
static char *note_of(const struct engine *eng, const char *object)
{
	int64_t i = catalog_find_object(eng->catalog, object, strlen(object));
	const struct catalog_object *v = i < 0 ? NULL : &catalog_objects(eng->catalog, NULL)[i];
	struct jdoc text CLEANUP(jdoc_release) = { 0 };
	const char *why = NULL;
	struct ckpt_err ignored;

	if (!v || !v->text)
		return NULL;
	if (!jdoc_parse_copy(&text, v->text, v->text_len, JDOC_ANY, &ignored))
		why = jval_str(jdoc_root(&text));
	return why ? strdup(why) : text_format("see objects/%s", object);
}

static int count(struct engine *eng, struct ckpt_err *e)
{
	size_t n, n_tensors = view_tensors(eng->view), n_objects = view_objects(eng->view), len;
	struct ckpt_totals *s = &eng->c->totals;
	const struct stored_file *sources;
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
	for (size_t i = 0; i < n_objects; i++) {
		size_t number = view_object(eng->view, i, &fqn, &len);

		s->incomplete += ckpt_object_fault(eng, number) != NULL;
		if (!eng->not_shown && bytes_are(fqn, len, FORMAT_NOT_SHOWN))
			eng->not_shown = note_of(eng, FORMAT_NOT_SHOWN);
		if (!eng->missing && bytes_are(fqn, len, FORMAT_MISSING))
			eng->missing = note_of(eng, FORMAT_MISSING);
	}
	s->not_shown = eng->not_shown;
	s->missing = eng->missing;
	sources = catalog_sources(eng->catalog, &n);
	for (size_t i = 0; i < n; i++)
		s->files += !sources[i].bytes;
	if (ckpt_ranks_of(sources, n, &s->ranks))
		return err_nomem(e);
	s->stored_bytes = files_total(eng->files);
	view_about(eng->view, &about);
	s->has_model = about.has_model;
	s->model_tensors = about.model_tensors;
	s->model_bytes = about.model_bytes;
	s->model_prefix = about.prefix;
	s->model_prefix_len = about.prefix_len;
	return 0;
}

/* Warns with a sentence that the format has left as an object. */
static void warn_of(const struct engine *eng, const struct ckpt_opts *o, const char *object,
		    const char *about)
{
	autofree char *why = o->warn ? note_of(eng, object) : NULL;
	char what[512];

	if (!why)
		return;
	(void)snprintf(what, sizeof(what), "%s: %s", about, why);
	o->warn(o->warn_arg, what);
}

static void warn(const struct engine *eng, const struct ckpt_opts *o)
{
	bool hf = eng->format == &format_safetensors || eng->format == &format_torchsave;
	char note[FORMAT_NOTE] = "";

	warn_of(eng, o, FORMAT_NOT_SHOWN, "not everything is shown");
	warn_of(eng, o, FORMAT_MISSING, "not everything is there");
	if (hf) /* not a copy, which has no index */
		warn_of(eng, o, FORMAT_INDEX_DIFFERS, "the files count, not their index");
	if (hf && o->warn && eng->c->file && eng->metadata.n == 1)
		format_note_part(eng->c->place, eng->metadata.v[0], note);
	if (*note)
		o->warn(o->warn_arg, note);
}

/* For fetch_read_kept: bytes of tensor `number` of gguf/. */
static int compute_gguf(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
			struct ckpt_err *e)
{
	const struct engine *eng = arg;
	struct tensor_reader *r;
	struct vtensor *v;
	int rc = view_gguf_vtensor(eng->view, number, &v, e);

	if (!rc)
		rc = tensor_open(eng->fetch, v, &r, e);
	if (rc)
		return rc;
	rc = tensor_read(eng->fetch, r, buf, len, off, NULL, e);
	tensor_close(eng->fetch, r);
	return rc;
}

static int refused(struct engine *eng, int rc)
{
	eng->refused_parts = rc == -ERR_CORRUPT;
	return rc;
}

int engine_open(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct index_request rq = { .place = eng->c->place,
				    .root = eng->c->root,
				    .is_file = eng->c->file,
				    .format = eng->format,
				    .files = &eng->metadata,
				    .where = o->index,
				    .rebuild = o->rebuild_index,
				    .needed = o->need_index,
				    .why = &eng->index_why,
				    .scan = { o->progress, o->progress_arg } };
	struct fetch_opts fetch = { .cache_bytes = o->share   ? o->share
						   : o->cache ? o->cache
							      : ENGINE_CACHE,
				    .map_bytes = o->maps ? o->maps : ENGINE_MAPS,
				    .renew = renew_catalog,
				    .renew_arg = eng,
				    .compute = compute_gguf,
				    .compute_arg = eng };
	const struct stored_file *sources;
	size_t n_sources, n_objects;
	struct digest before;
	int rc = look_at_metadata(eng, &before, e);

	eng->index_asked = o->index;
	eng->index_needed = o->need_index;
	if (!rc)
		rc = index_open(&rq, &eng->catalog, &eng->index, &eng->index_built, e);
	if (rc)
		return rc;
	sources = catalog_sources(eng->catalog, &n_sources);
	rc = files_new(eng->c->place, sources, n_sources, &eng->files, e);
	if (!rc && o->ignore_ctime)
		files_ignore_ctime(eng->files);
	if (!rc)
		rc = check_metadata(eng, &rq, &before, e);
	if (!rc && o->map_files)
		rc = files_allow_maps(eng->files, MAPPED_FILES, e);
	if (!rc)
		rc = engine_find_assets(eng, o, e);
	if (!rc)
		rc = engine_derive(eng, o, e);
	if (!rc)
		rc = refused(eng, engine_find_faults(eng, o->allow_missing, e));
	if (index_may_grow(&rq, eng->index))
		fetch.index = eng->index;
	fetch.derived = eng->computed.v;
	fetch.n_derived = eng->computed.n;
	if (!rc)
		rc = fetch_new(eng->catalog, eng->files, &fetch, &eng->fetch, e);
	if (!rc)
		rc = engine_show(eng, o, e);
	if (!rc && o->quantize)
		rc = quantise(eng, o, &fetch, e);
	if (rc)
		return rc;
	eng->index_needed = false;
	warn(eng, o);
	(void)catalog_objects(eng->catalog, &n_objects);
	eng->object_size = malloc((n_objects + 1) * sizeof(*eng->object_size));
	eng->json_size = malloc((n_objects + 1) * sizeof(*eng->json_size));
	if (!eng->object_size || !eng->json_size)
		return err_nomem(e);
	for (size_t i = 0; i < n_objects; i++) {
		atomic_init(&eng->object_size[i], CKPT_SIZE_UNKNOWN);
		atomic_init(&eng->json_size[i], CKPT_SIZE_UNKNOWN);
	}
	identify(eng);
	rc = count(eng, e);
	if (!rc && !o->allow_missing && !o->allow_holes)
		rc = refused(eng, engine_refuse_holes(eng, e));
	if (!rc && o->strict)
		rc = verdict_refuse(eng, e);
	return rc;
}

static void rest(struct engine *eng, size_t fds)
{
	blockcache_clear(fetch_blocks(eng->fetch));
	files_trim(eng->files, fds);
	if (eng->assets.files)
		files_trim(eng->assets.files, fds);
}

void engine_trim(struct engine *eng, size_t fds)
{
	rest(eng, fds);
	for (size_t i = 0; i < eng->others.n; i++)
		rest(eng->others.v[i]->engine, fds);
}

void engine_free(struct engine *eng)
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
	free(eng->json_size);
	(void)sem_destroy(&eng->json_turn);
	if (eng->info)
		buf_release(eng->info);
	free(eng->info);
	for (size_t i = 0; i < ARRAY_LEN(eng->page); i++) {
		if (eng->page[i])
			buf_release(eng->page[i]);
		free(eng->page[i]);
	}
	fetch_free(eng->fetch);
	view_free(eng->view);
	rename_free(eng->rename);
	layout_free(eng->layout);
	model_recipe_release(&eng->recipe);
	assets_release(&eng->assets);
	computed_release(&eng->computed);
	dequantised_release(&eng->dequantised);
	gguf_model_release(&eng->gguf);
	others_close(&eng->others);
	average_release(&eng->average);
	files_free(eng->files);
	catalog_close(eng->catalog);
	name_list_release(&eng->metadata);
	free(eng->index);
	free(eng->index_why);
	free(eng->not_shown);
	free(eng->missing);
	free(eng);
}
