/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of real files a file of the tree is made of, and counters of their use. */
#include <ckptfs/ckpt_mount.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/index.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "source/place.h"
#include "tensor/vtensor.h"
#include "tree/view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void engine_counters(struct tree *tree, struct ckpt_counters *ret)
{
	struct engine *eng = engine_of(tree);
	uint64_t files[FILES_COUNTS] = { 0 }, fetch[FETCH_COUNTS];
	struct blockcache_counts blocks;

	files_add_counts(eng->files, files);
	if (eng->assets.files)
		files_add_counts(eng->assets.files, files);
	fetch_counts(eng->fetch, fetch);
	blockcache_counts(fetch_blocks(eng->fetch), &blocks);
	*ret = (struct ckpt_counters){ .source_reads = files[FILES_READS],
				       .source_bytes = files[FILES_BYTES],
				       .mapped_bytes = files[FILES_MAPPED],
				       .faults = files[FILES_FAULTS],
				       .copies = fetch[FETCH_COPIES],
				       .copied_bytes = fetch[FETCH_COPIED],
				       .quantised_bytes = fetch[FETCH_QUANTISED],
				       .gguf_block_bytes = view_gguf_blocks(eng->view),
				       .cache_hits = blocks.hits,
				       .cache_misses = blocks.misses,
				       .cache_evictions = blocks.evictions,
				       .cache_bytes = blocks.bytes,
				       .cache_max_bytes = blockcache_max(fetch_blocks(eng->fetch)),
				       .decoded_bytes = blocks.decoded };
	others_count(eng, ret);
}

void ckpt_counters_add(struct ckpt_counters *to, struct ckpt *c)
{
	struct ckpt_counters n;

	ckpt_counters(c, &n);
	to->source_reads += n.source_reads;
	to->source_bytes += n.source_bytes;
	to->mapped_bytes += n.mapped_bytes;
	to->faults += n.faults;
	to->copies += n.copies;
	to->copied_bytes += n.copied_bytes;
	to->cache_hits += n.cache_hits;
	to->cache_misses += n.cache_misses;
	to->cache_evictions += n.cache_evictions;
	to->cache_bytes += n.cache_bytes;
	to->cache_max_bytes += n.cache_max_bytes;
	to->decoded_bytes += n.decoded_bytes;
	to->quantised_bytes += n.quantised_bytes;
	to->gguf_block_bytes += n.gguf_block_bytes;
}

struct teller {
	struct engine *eng;
	int (*each)(void *arg, const struct ckpt_source *s);
	void *arg;
	struct ckpt_err *e;
};

/* path: relative to dir. */
static int tell(const struct teller *t, const char *dir, const char *path, uint64_t off,
		uint64_t len)
{
	autofree char *whole = NULL;

	whole = text_format("%s/%s", dir, path);
	if (!whole)
		return err_set(t->e, ENOMEM, "out of memory");
	return t->each(t->arg, &(struct ckpt_source){ whole, off, len });
}

static int tell_asset(const struct teller *t, size_t i, uint64_t off, uint64_t len)
{
	if (t->eng->assets.origin[i] == ASSET_MADE)
		return 0;
	return t->each(t->arg, &(struct ckpt_source){ t->eng->assets.v[i].path, off, len });
}

static int tell_span(void *arg, uint32_t file, uint64_t off, uint64_t len)
{
	const struct teller *t = arg;
	const struct stored_file *s = &catalog_sources(t->eng->catalog, NULL)[file];
	const char *path = s->path, *outer;
	uint64_t at;

	if (s->bytes) /* in the index, which is not part of the checkpoint */
		return 0;
	outer = place_within(t->eng->c->place, path, &at);
	return outer ? t->each(t->arg, &(struct ckpt_source){ outer, at + off, len })
		     : tell(t, t->eng->c->dir, path, off, len);
}

static int tell_tensor(struct teller *t, uint64_t id)
{
	struct tensor_reader *r = NULL;
	struct vtensor *v = NULL;
	int rc = view_vtensor(t->eng->view, id, &v, t->e);

	if (!rc)
		rc = tensor_open(t->eng->fetch, v, &r, t->e);
	if (!rc)
		rc = tensor_spans(t->eng->fetch, r, tell_span, t, t->e);
	tensor_close(t->eng->fetch, r);
	return rc;
}

static int tell_object(struct teller *t, size_t number)
{
	const struct catalog_object *o = &catalog_objects(t->eng->catalog, NULL)[number];

	return o->text || o->fault ? 0 : tell_span(t, o->loc.file, o->loc.offset, o->loc.length);
}

static int tell_file(struct teller *t, ckpt_node node)
{
	struct vfile v CLEANUP(vfile_release) = VFILE_INIT;
	const char *fqn;
	bool object;
	size_t len;
	uint64_t id;
	int rc;

	/* The JSON text is made from the same bytes. */
	if (view_single(t->eng->view, node, &object, &id) && object)
		return tell_object(t, view_object(t->eng->view, id, &fqn, &len));
	rc = view_describe(t->eng->view, node, &v, t->e);
	for (size_t i = 0; !rc && i < v.n; i++) {
		const struct segment *s = &v.seg[i];

		if (s->kind == SEG_TENSOR)
			rc = tell_tensor(t, s->id);
		else if (s->kind == SEG_FILE)
			rc = tell_asset(t, s->id, s->from, s->len);
	}
	return rc;
}

static int tell_all(struct teller *t)
{
	size_t n;
	int rc = 0;

	(void)catalog_sources(t->eng->catalog, &n);
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = tell_span(t, i, 0, files_size(t->eng->files, i));
	return rc;
}

int engine_sources(struct tree *tree, ckpt_node node,
		   int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		   struct ckpt_err *e)
{
	struct teller t = { engine_of(tree), each, arg, e };
	enum view_kind kind = view_kind(t.eng->view, node);

	if (node == CKPT_ROOT)
		return tell_all(&t);
	if (kind == VIEW_NONE)
		return ckpt_no_node(node, e);
	return kind == VIEW_FILE ? tell_file(&t, node) : 0;
}

static int bring(struct files *f, uint32_t i, uint64_t off, uint64_t len, struct ckpt_err *e)
{
	enum { BLOCK = 1 << 20 };
	uint64_t n = min_u64(len, BLOCK);
	autofree char *buf = malloc((size_t)n + 1);
	int rc = buf ? 0 : err_nomem(e);

	if (!rc && len > BLOCK)
		(void)files_want(f, i, off, len);
	for (uint64_t at = 0; !rc && at < len; at += n) {
		n = min_u64(len - at, BLOCK);
		rc = files_read(f, i, buf, (size_t)n, off + at, e);
	}
	return rc;
}

int ckpt_source_bring(struct ckpt *c, const char *path, uint64_t off, uint64_t len,
		      struct ckpt_err *e)
{
	struct engine *eng = ckpt_engine(c, e);
	size_t dir = strlen(c->dir), n;

	if (!eng)
		return -EISDIR;
	for (size_t i = 0; i < eng->assets.n; i++)
		if (!strcmp(path, eng->assets.v[i].path))
			return bring(eng->assets.files, (uint32_t)i, off, len, e);
	(void)catalog_sources(eng->catalog, &n);
	/* Callers go through the files in order, so that the next one is found at once. */
	for (size_t k = 0, first = eng->brought; k < n; k++) {
		uint32_t i = (uint32_t)((first + k) % n);
		const char *name = files_path(eng->files, i), *outer;
		uint64_t at = 0;

		outer = place_within(c->place, name, &at);
		if (outer ? !strcmp(path, outer) && off >= at &&
				    range_ok(off - at, len, files_size(eng->files, i))
			  : !strncmp(path, c->dir, dir) && path[dir] == '/' &&
				    !strcmp(path + dir + 1, name)) {
			eng->brought = i;
			return bring(eng->files, i, off - at, len, e);
		}
	}
	return err_set(e, ENOENT, "'%s' is not a data file of '%s'", path, c->root);
}

/* NULL for a run. */
static const struct assets *assets_of(const struct ckpt *c)
{
	static const struct assets none = { 0 };

	return c->engine ? &c->engine->assets : &none;
}

int ckpt_assets(struct ckpt *c, int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		struct ckpt_err *e)
{
	const struct assets *assets = assets_of(c);
	struct teller t = { c->engine, each, arg, e };
	int rc = 0;

	for (size_t i = 0; !rc && i < assets->n; i++)
		rc = tell_asset(&t, i, 0, assets->v[i].size);
	return rc;
}

bool ckpt_asset_sized(const struct ckpt *c, uint64_t i, struct ckpt_asset *ret, size_t size)
{
	const struct assets *assets = assets_of(c);
	struct ckpt_asset told;

	if (i >= assets->n)
		return false;
	told = (struct ckpt_asset){ assets->v[i].name, assets->v[i].path,
				    asset_from_text(assets->origin[i]) };
	SIZED_GIVE(ret, size, told);
	return true;
}

const char *ckpt_asset_refused(const struct ckpt *c, uint64_t i)
{
	const struct assets *assets = assets_of(c);

	return i < assets->n_refused ? assets->refused[i] : NULL;
}

/* Covers names and contents. */
static int digest_assets(struct engine *eng, struct digest *d, struct ckpt_err *e)
{
	enum { BLOCK = 1 << 20 };
	autofree char *buf = malloc(BLOCK);
	int rc = buf ? 0 : err_nomem(e);

	for (size_t i = 0; !rc && i < eng->assets.n_all; i++) {
		const struct view_asset *a = &eng->assets.v[i];

		digest_add(d, a->name, strlen(a->name));
		digest_add(d, &a->size, sizeof(a->size));
		for (uint64_t at = 0, n; !rc && at < a->size; at += n) {
			n = min_u64(a->size - at, BLOCK);
			rc = assets_read(&eng->assets, i, buf, (size_t)n, at, e);
			if (!rc)
				digest_add(d, buf, (size_t)n);
		}
	}
	return rc;
}

int ckpt_origin_sized(struct ckpt *c, struct ckpt_origin *ret, size_t size, struct ckpt_err *e)
{
	struct ckpt_origin told = { 0 };
	struct digest metadata = { 0 }, data = { 0 }, assets = { 0 };
	const struct digest none = { 0 };
	struct engine *eng = ckpt_engine(c, e);
	int rc;

	if (!eng)
		return -EISDIR;
	digest_add(&metadata, catalog_seal(eng->catalog), strlen(catalog_seal(eng->catalog)));
	digest_add(&metadata, &eng->mtime_ns, sizeof(eng->mtime_ns));
	files_digest(eng->files, &data);
	if (eng->others.n || eng->average.n) {
		average_digest(&eng->average, &data);
		digest_add(&data, &eng->merging, sizeof(eng->merging));
		others_digest(eng, &data);
	}
	rc = digest_assets(eng, &assets, e);
	digest_hex(&metadata, told.metadata);
	digest_hex(&data, told.data);
	digest_hex(&assets, told.assets);
	digest_hex(&eng->recipe.digest, told.recipe);
	digest_hex(eng->layout ? layout_digest(eng->layout) : &none, told.layout);
	digest_hex(&eng->renaming, told.rename);
	if (!rc)
		SIZED_GIVE(ret, size, told);
	return rc;
}

const char *ckpt_index_why(const struct ckpt *c)
{
	return c->engine && !strcmp(c->engine->index, ":memory:") ? c->engine->index_why : NULL;
}

char *ckpt_index_dir(void)
{
	return index_cache_dir();
}
