/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HyperParallel checkpoints (hyper_parallel.core.checkpoint, March 2026; later
 * hyper_parallel.core.distributed_checkpoint), for PyTorch and for MindSpore.
 *
 *	CKPT/.metadata              one pickle, as DCP's (dcp_metadata.c); written last, in place
 *	CKPT/.rank{N}_metadata      instead: rank-local saves, first generation; {N}.metadata later;
 *	                            .metadata_rank{N} according to its comments
 *	CKPT/_rank{N}_.safetensors  a rank's tensors by name (hyperparallel_file.c)
 *	CKPT/{fqn}_rank{N}.bytes    one object, first generation
 *	CKPT/_rank{N}_.bytes        a rank's objects end to end, later
 *
 * The metadata says which file has a chunk, and under which name; only the file says where its
 * bytes are. So these files are opened when the index is built, and the index depends on them.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "format/format.h"
#include "format/hyperparallel/hyperparallel_resolve.h"
#include "index/catalog_build.h"
#include "parse/pickle.h"
#include "source/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char global_name[] = ".metadata";

/* ---- names ---- */

static bool ends_with(const char *name, const char *tail)
{
	size_t n = strlen(name), m = strlen(tail);

	return n >= m && !strcmp(name + n - m, tail);
}

/* N of HEAD N TAIL, or -1. */
static long number_in(const char *name, const char *head, const char *tail)
{
	size_t n = strlen(head);
	char *end;
	long r;

	if (strncmp(name, head, n) != 0 || name[n] < '0' || name[n] > '9')
		return -1;
	errno = 0;
	r = strtol(name + n, &end, 10);
	return !errno && r < INT32_MAX && !strcmp(end, tail) ? r : -1;
}

/* The rank whose metadata file has that name, or -1. */
static long rank_of(const char *name)
{
	long r = number_in(name, ".rank", "_metadata");

	if (r < 0)
		r = number_in(name, "", ".metadata");
	return r < 0 ? number_in(name, ".metadata_rank", "") : r;
}

/* ---- probe ---- */

/* Is "hyper_parallel" one of the components of the module name? The package may be inside
 * another. */
static bool is_our_module(const char *module, size_t len)
{
	static const char ours[] = "hyper_parallel";

	while (len) {
		const char *dot = memchr(module, '.', len);
		size_t n = dot ? (size_t)(dot - module) : len;

		if (n == sizeof(ours) - 1 && !memcmp(module, ours, n))
			return true;
		module += dot ? n + 1 : n;
		len -= dot ? n + 1 : n;
	}
	return false;
}

/*
 * Other libraries' metadata have such names, too: that of PyTorch's DCP, and N.metadata of
 * PaddlePaddle's. The class of the object in the file decides; if it does not tell, `unknown` does.
 */
static int is_our_metadata(struct place *place, const char *name, bool unknown, struct ckpt_err *e)
{
	uint8_t head[1024];
	struct source *file CLEANUP(source_freep) = NULL;
	struct ckpt_err why;
	const char *module;
	int64_t n;
	size_t len;
	int rc = place_file(place, name, &file, &why);

	if (rc) {
		rc = err_if_external(rc, &why, e);
		return rc ? rc : unknown;
	}
	n = source_read(file, head, sizeof(head), 0, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", name);
	module = pickle_first_module(head, (size_t)n, &len);
	return module ? is_our_module(module, len) : unknown;
}

/* Is the first of the ranks' metadata files HyperParallel's? */
static int is_our_rank(struct place *place, const struct name_list *files, struct ckpt_err *e)
{
	for (size_t i = 0; i < files->n; i++)
		if (rank_of(files->v[i]) >= 0)
			return is_our_metadata(place, files->v[i], true, e);
	return 0;
}

struct listing {
	struct place *place;
	struct name_list *files;
	bool global; /* there is a .metadata, and it is HyperParallel's */
	bool metadata, container;
};

static int add_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct listing *s = arg;
	bool metadata = s->global ? !strcmp(name, global_name) : rank_of(name) >= 0;
	struct place_seen seen;
	int rc;

	(void)kind;
	/* Files of objects matter only if several ranks may have the same object. */
	if (!metadata && !ends_with(name, ".safetensors") &&
	    (s->global || !ends_with(name, ".bytes")))
		return 0;
	rc = place_look(s->place, name, &seen, e);
	if (rc <= 0 || seen.kind != PLACE_FILE)
		return rc < 0 ? rc : 0;
	s->metadata |= metadata;
	s->container |= number_in(name, "_rank", "_.safetensors") >= 0;
	return name_list_add(s->files, name, e);
}

static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct listing s = { .place = place, .files = files };
	struct place_seen seen;
	int rc;

	if (file) /* the format is a directory */
		return 0;
	rc = place_look(place, global_name, &seen, e);
	s.global = rc > 0;
	if (s.global)
		rc = is_our_metadata(place, global_name, false, e);
	if (rc < 0 || (s.global && !rc))
		return rc;
	rc = place_list(place, ".", add_file, &s, e);
	if (rc)
		return rc;
	name_list_sort(files);
	if (s.global && !s.metadata && !files->n) /* not even .metadata */
		return format_refuse_unlisted(global_name, e);
	if (!s.metadata && s.container)
		return err_set(e, ENOENT,
			       ".metadata is missing although _rankN_.safetensors files are there: "
			       "the save was interrupted");
	return s.metadata && !s.global && !s.container ? is_our_rank(place, files, e) : s.metadata;
}

/* ---- scan ---- */

static int by_rank(const void *ap, const void *bp)
{
	const struct dcp_metafile *a = ap, *b = bp;

	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* The metadata files in rank order; `*ret_many` if there is one per rank. Free *ret. */
static int list_metadata(const struct name_list *files, struct dcp_metafile **ret, size_t *ret_n,
			 bool *ret_many, struct ckpt_err *e)
{
	autofree struct dcp_metafile *v = calloc(files->n + 1, sizeof(*v));
	bool global = false;
	size_t n = 0;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < files->n; i++)
		global |= !strcmp(files->v[i], global_name);
	for (size_t i = 0; i < files->n; i++) {
		long rank = rank_of(files->v[i]);

		if (global ? !strcmp(files->v[i], global_name) : rank >= 0)
			v[n++] = (struct dcp_metafile){ files->v[i], global ? 0 : (uint32_t)rank };
	}
	qsort(v, n, sizeof(*v), by_rank);
	for (size_t i = 1; i < n; i++)
		if (v[i].rank == v[i - 1].rank)
			return err_set(e, ERR_CORRUPT,
				       "'%.100s' and '%.100s' are both of rank %u: two saves in "
				       "one directory",
				       v[i - 1].name, v[i].name, v[i].rank);
	*ret_many = !global;
	*ret_n = n;
	*ret = steal_ptr(&v);
	return 0;
}

/* Their contents are not hashed. They are recorded before they are opened, so that a change
 * meanwhile is detected later. */
static int note_data_files(struct place *place, const struct name_list *files, bool many,
			   struct catalog_writer *w, struct ckpt_err *e)
{
	for (size_t i = 0; i < files->n; i++) {
		const char *name = files->v[i];
		struct place_seen seen;
		int rc;

		if (many ? rank_of(name) >= 0 : !strcmp(name, global_name))
			continue;
		rc = place_find(place, name, &seen, e);
		if (!rc)
			rc = catalog_add_metadata(w, name, &seen, NULL, e);
		if (rc)
			return rc;
	}
	return 0;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct hp_directory d = { .place = place, .files = files };
	struct dcp_join_opts join = { .same_object = hp_same_object,
				      .sample = hp_sample,
				      .arg = &d };
	autofree struct dcp_metafile *metadata = NULL;
	struct dcp_records r = { 0 };
	size_t n = 0;
	int rc = list_metadata(files, &metadata, &n, &join.many, e);

	if (!rc)
		rc = catalog_add_encoding(w, "raw", &d.plain, e);
	if (!rc)
		rc = note_data_files(place, files, join.many, w, e);
	if (!rc)
		rc = dcp_records_init(&r, e);
	r.dialect = DCP_HYPERPARALLEL;
	if (!rc)
		rc = dcp_read_metafiles(&r, place, metadata, n, opts, w, e);
	if (!rc)
		rc = hp_resolve(&d, &r, w, e);
	if (!rc)
		rc = dcp_join(&r, &join, w, e);
	dcp_records_release(&r);
	return rc;
}

const struct format format_hyperparallel = { .name = "hyperparallel",
					     .probe = probe,
					     .scan = scan };
