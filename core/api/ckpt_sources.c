/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of real files a file of the tree is made of, and what has been done with them. */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "api/index.h"
#include "api/run.h"
#include "api/run_tree.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "catalog/catalog_query.h"
#include "read/fetch.h"
#include "read/files.h"
#include "view/view.h"
#include "view/vtensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ckpt_counters(struct ckpt *c, struct ckpt_counters *ret)
{
	uint64_t files[FILES_COUNTS] = { 0 }, fetch[FETCH_COUNTS];
	struct blockcache_counts blocks;

	if (c->run) {
		run_counters(c->run, ret);
		return;
	}
	files_add_counts(c->files, files);
	if (c->assets.files)
		files_add_counts(c->assets.files, files);
	fetch_counts(c->fetch, fetch);
	blockcache_counts(fetch_blocks(c->fetch), &blocks);
	*ret = (struct ckpt_counters){ .source_reads = files[FILES_READS],
				       .source_bytes = files[FILES_BYTES],
				       .mapped_bytes = files[FILES_MAPPED],
				       .faults = files[FILES_FAULTS],
				       .copies = fetch[FETCH_COPIES],
				       .copied_bytes = fetch[FETCH_COPIED],
				       .cache_hits = blocks.hits,
				       .cache_misses = blocks.misses,
				       .cache_evictions = blocks.evictions,
				       .cache_bytes = blocks.bytes,
				       .cache_max_bytes = blockcache_max(fetch_blocks(c->fetch)),
				       .decoded_bytes = blocks.decoded };
}

struct teller {
	struct ckpt *c;
	int (*each)(void *arg, const struct ckpt_source *s);
	void *arg;
	struct ckpt_err *e;
};

/* path: of dir. */
static int tell(const struct teller *t, const char *dir, const char *path, uint64_t off,
		uint64_t len)
{
	autofree char *whole = NULL;

	if (asprintf(&whole, "%s/%s", dir, path) < 0) {
		whole = NULL;
		return err_set(t->e, ENOMEM, "out of memory");
	}
	return t->each(t->arg, &(struct ckpt_source){ whole, off, len });
}

static int tell_span(void *arg, uint32_t file, uint64_t off, uint64_t len)
{
	const struct teller *t = arg;
	size_t n;

	return tell(t, t->c->dir, catalog_sources(t->c->catalog, &n)[file].path, off, len);
}

static int tell_tensor(struct teller *t, uint64_t id)
{
	struct vreader *r = NULL;
	struct vtensor *v = NULL;
	int rc = view_vtensor(t->c->view, id, &v, t->e);

	if (!rc)
		rc = vreader_open(t->c->fetch, v, &r, t->e);
	if (!rc)
		rc = vreader_spans(t->c->fetch, r, tell_span, t, t->e);
	vreader_close(t->c->fetch, r);
	return rc;
}

static int tell_object(struct teller *t, size_t number)
{
	size_t n;
	const struct catalog_object *o = &catalog_objects(t->c->catalog, &n)[number];

	return o->text ? 0 : tell_span(t, o->loc.file, o->loc.offset, o->loc.length);
}

static int tell_file(struct teller *t, ckpt_node node)
{
	struct vfile v CLEANUP(vfile_release) = VFILE_INIT;
	int rc = view_describe(t->c->view, node, &v, t->e);

	for (size_t i = 0; !rc && i < v.n; i++) {
		const struct segment *s = &v.seg[i];

		if (s->kind == SEG_TENSOR)
			rc = tell_tensor(t, s->id);
		else if (s->kind == SEG_OBJECT)
			rc = tell_object(t, s->id);
		else if (s->kind == SEG_FILE)
			rc = tell(t, "", t->c->assets.paths[s->id].path, s->from, s->len);
	}
	return rc;
}

static int tell_all(struct teller *t)
{
	size_t n;
	int rc = 0;

	(void)catalog_sources(t->c->catalog, &n);
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = tell_span(t, i, 0, files_size(t->c->files, i));
	return rc;
}

int ckpt_sources(struct ckpt *c, ckpt_node node,
		 int (*each)(void *arg, const struct ckpt_source *s), void *arg, struct ckpt_err *e)
{
	struct teller t = { c, each, arg, e };

	if (c->run)
		return run_tree_sources(c, node, each, arg, e);
	if (node == CKPT_ROOT)
		return tell_all(&t);
	return view_kind(c->view, node) == VIEW_FILE ? tell_file(&t, node) : 0;
}

int ckpt_assets(struct ckpt *c, int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		struct ckpt_err *e)
{
	struct teller t = { c, each, arg, e };
	int rc = 0;

	for (size_t i = 0; !rc && i < c->assets.n; i++)
		rc = tell(&t, "", c->assets.paths[i].path, 0, c->assets.v[i].size);
	return rc;
}

char *ckpt_index_dir(void)
{
	return index_cache_dir();
}
