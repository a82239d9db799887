/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-core's dist_checkpointing up to core_v0.15, sharded backend zarr:
 *
 *	DIR/metadata.json       {"sharded_backend": "zarr", "sharded_backend_version": 1, ...}
 *	DIR/common.pt           torch.save of all that is not sharded
 *	DIR/KEY/.zarray         Zarr v2 array metadata: shape, chunks, dtype, order
 *	DIR/KEY/1.0.2           chunk (1, 0, 2), only elements. At the edges of the array
 *	                        chunks are as large as elsewhere and reach over it; a scalar's is "0".
 *	                        One that is not there has never been written
 *	DIR/KEY/shard_O_S.pt    instead: an object's part O of S, its unique key KEY/shard_O_S
 *
 * Zarr has no name for bfloat16, Megatron's is "bfloat16". Specification:
 * https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html
 *
 * The index depends on metadata.json, which a save writes last, and on the directories of the
 * tensors, all by their times: metadata.json has the same contents in every checkpoint, and a
 * directory's time changes when a file in it is created, replaced or removed.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "format/megatron/megatron.h"
#include "format/raw_chunks.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "source/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_JSON ((size_t)1 << 20) /* bytes of .zarray */

struct array {
	const char *key;
	enum ckpt_dtype dtype;
	bool swap, fortran;
	char separator; /* between the numbers of a chunk's name */
	size_t n;
	uint64_t shape[CKPT_MAX_DIMS], chunk[CKPT_MAX_DIMS];
};

/* ---- directories ---- */

static int add_name(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)kind;
	return *name == '.' ? 0 : name_list_add(arg, name, e);
}

/* The names in a directory, "DIR/" or "" for the checkpoint itself, in natural order, without
 * hidden ones. */
static int list_dir(struct place *place, const char *path, struct name_list *ret,
		    struct ckpt_err *e)
{
	char name[PATH_MAX];
	int rc;

	(void)snprintf(name, sizeof(name), "%.*s", (int)(strlen(path) - (*path != 0)), path);
	rc = place_list(place, *name ? name : ".", add_name, ret, e);
	name_list_sort(ret);
	return rc;
}

/* ---- .zarray ---- */

static int bad(struct ckpt_err *e, const struct array *a, const char *what)
{
	return err_set(e, ERR_CORRUPT, "'%.200s/.zarray': %s", a->key, what);
}

/* "<f4", "|b1" or one of torch's names: "bfloat16". */
static enum ckpt_dtype parse_dtype(const char *name, bool *ret_swap)
{
	*ret_swap = *name == '>';
	if (!*name || !strchr("<>|", *name))
		return ckpt_dtype_by_name(name, strlen(name));
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++) {
		const char *npy = dtype_info(t)->npy;

		if (npy[1] != 'V' && !strcmp(npy + 1, name + 1))
			return t;
	}
	return CKPT_DTYPE_NONE;
}

static int parse_array(struct jval j, struct array *a, struct ckpt_err *e)
{
	const char *dtype = jval_str(jval_get(j, "dtype"));
	const char *order = jval_str(jval_get(j, "order"));
	const char *separator = jval_str(jval_get(j, "dimension_separator"));
	int64_t format;
	size_t n;

	if (!jval_int(jval_get(j, "zarr_format"), &format) || format != 2)
		return bad(e, a, "its zarr_format is not 2");
	if (!jval_u64s(jval_get(j, "shape"), a->shape, CKPT_MAX_DIMS, &a->n))
		return bad(e, a, "its shape is not a list of at most 64 numbers");
	if (!jval_u64s(jval_get(j, "chunks"), a->chunk, CKPT_MAX_DIMS, &n) || n != a->n)
		return bad(e, a, "its chunks are not a list of as many numbers as its shape");
	for (size_t d = 0; d < n; d++)
		if (!a->chunk[d])
			return bad(e, a, "its chunks have no elements");
	if (!dtype)
		return bad(e, a, "its dtype is not a string");
	a->dtype = parse_dtype(dtype, &a->swap);
	if (a->dtype == CKPT_DTYPE_NONE)
		return err_set(e, ERR_UNSUPPORTED, "'%.200s/.zarray': dtype '%.60s' is not known",
			       a->key, dtype);
	if (!jval_is_null(jval_get(j, "compressor")) || !jval_is_null(jval_get(j, "filters")))
		return err_set(e, ERR_UNSUPPORTED,
			       "'%.200s/.zarray': compressed or filtered chunks are not read",
			       a->key);
	if (!order || (strcmp(order, "C") != 0 && strcmp(order, "F") != 0))
		return bad(e, a, "its order is neither C nor F");
	a->fortran = *order == 'F';
	if (separator && strcmp(separator, ".") != 0 && strcmp(separator, "/") != 0)
		return bad(e, a, "its dimension_separator is neither '.' nor '/'");
	a->separator = separator ? *separator : '.';
	return 0;
}

/* ---- chunks ---- */

/* "1.0.2": a cell of the grid. False: the name of something else. */
static bool parse_cell(const char *name, char separator, size_t n, uint64_t *ret)
{
	for (size_t d = 0; d < n; d++) {
		char *end;

		if (*name < '0' || *name > '9' ||
		    (*name == '0' && name[1] >= '0' && name[1] <= '9'))
			return false;
		errno = 0;
		ret[d] = strtoull(name, &end, 10);
		if (errno || *end != (d + 1 < n ? separator : 0))
			return false;
		name = end + 1;
	}
	return n || !strcmp(name, "0");
}

/* The box of a cell; false: it is outside the array. */
static bool cell_box(const struct array *a, const uint64_t *cell, uint64_t *off, uint64_t *len)
{
	for (size_t d = 0; d < a->n; d++) {
		if (ckd_mul(&off[d], cell[d], a->chunk[d]) || off[d] >= a->shape[d])
			return false;
		len[d] = min_u64(a->chunk[d], a->shape[d] - off[d]);
	}
	return true;
}

/* The layout of all chunks: at the edges of the array they are only partly inside it. */
static int chunk_layout(const struct array *a, struct raw_layout *ret, struct ckpt_err *e)
{
	uint64_t step = 1;

	*ret = (struct raw_layout){ .swap = a->swap };
	for (size_t i = 0; i < a->n; i++) {
		size_t d = a->fortran ? i : a->n - 1 - i;

		ret->stride[d] = step;
		if (ckd_mul(&step, step, a->chunk[d]) || step > INT64_MAX)
			return bad(e, a, "its chunks have more than 2^63 elements");
	}
	return 0;
}

struct chunks {
	const struct array *a;
	struct raw_layout layout;
	struct raw_chunks found;
	uint64_t total;
	struct catalog_writer *w;
};

/* Adds the chunk in DIR/KEY/name, if it is one. */
static int add_chunk(struct chunks *c, const char *path, const uint64_t *cell, struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	struct raw_chunk x = { .dtype = c->a->dtype,
			       .n_dims = c->a->n,
			       .off = off,
			       .len = len,
			       .layout = &c->layout };
	int rc;

	if (!cell_box(c->a, cell, off, len))
		return 0; /* left over from a larger array of that name */
	rc = catalog_add_source(c->w, path, strlen(path), &x.file, e);
	if (rc)
		return rc;
	rc = raw_chunks_add(&c->found, &x, c->w, &c->total, e);
	return rc ? err_wrap(e, "'%.200s/.zarray'", c->a->key) : 0;
}

/*
 * Adds the chunks in a directory of the array; cell[0 .. have) are the numbers in its own name,
 * which has some only if the separator is '/'.
 */
static int add_chunks(struct chunks *c, struct place *place, const char *dir, size_t have,
		      uint64_t *cell, struct ckpt_err *e)
{
	const struct array *a = c->a;
	struct name_list l CLEANUP(name_list_release) = { 0 };
	bool nested = a->separator == '/' && a->n;
	size_t take = nested ? 1 : a->n;
	int rc = list_dir(place, dir, &l, e);

	for (size_t i = 0; !rc && i < l.n; i++) {
		char path[PATH_MAX];

		if (!parse_cell(l.v[i], '.', take, cell + have))
			continue;
		rc = megatron_path(dir, l.v[i], path, e);
		if (!rc && have + take == a->n) {
			rc = add_chunk(c, path, cell, e);
		} else if (!rc && strlen(path) + 2 < sizeof(path)) {
			(void)stpcpy(path + strlen(path), "/");
			rc = add_chunks(c, place, path, have + 1, cell, e);
		}
	}
	return rc;
}

/* dir: "DIR/KEY/"; key points to KEY in it */
static int add_tensor(struct place *place, const char *dir, const char *key,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	struct array a = { .key = key };
	struct chunks c = { .a = &a, .w = w };
	uint64_t cell[CKPT_MAX_DIMS + 1];
	char path[PATH_MAX];
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	int rc = megatron_path(dir, ".zarray", path, e);

	if (!rc)
		rc = small_file_json(place, path, MAX_JSON, &d, e);
	if (!rc)
		rc = parse_array(jdoc_root(&d), &a, e);
	if (!rc)
		rc = chunk_layout(&a, &c.layout, e);
	if (!rc)
		rc = add_chunks(&c, place, dir, 0, cell, e);
	if (!rc)
		rc = catalog_add_tensor(w,
					&(struct tensor_chunks){ .fqn = key,
								 .fqn_len = strlen(key),
								 .path = catalog_path_flat,
								 .dtype = a.dtype,
								 .n_dims = a.n,
								 .shape = a.shape,
								 .count = (uint32_t)c.found.n,
								 .boxes = c.found.boxes,
								 .locs = c.found.locs },
					e);
	raw_chunks_release(&c.found);
	return rc;
}

/* ---- objects ---- */

/* Adds the parts of an object: KEY/shard_O_S.pt is KEY/shard_O_S. */
static int add_objects(struct place *place, const char *dir, const char *key,
		       struct catalog_writer *w, struct ckpt_err *e)
{
	struct name_list l CLEANUP(name_list_release) = { 0 };
	int rc = list_dir(place, dir, &l, e);

	for (size_t i = 0; !rc && i < l.n; i++) {
		size_t n = strlen(l.v[i]);
		char path[PATH_MAX], name[PATH_MAX];
		struct place_seen seen = { 0 };

		if (strncmp(l.v[i], "shard_", 6) != 0 || n < 9 ||
		    strcmp(l.v[i] + n - 3, ".pt") != 0)
			continue;
		rc = megatron_path(dir, l.v[i], path, e);
		if (!rc)
			rc = place_find(place, path, &seen, e);
		l.v[i][n - 3] = 0;
		(void)snprintf(name, sizeof(name), "%s/%s", key, l.v[i]);
		if (!rc)
			rc = megatron_add_object(w, name, path, seen.size, e);
	}
	return rc;
}

/* ---- the checkpoint ---- */

static int stop(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)arg;
	(void)name;
	(void)kind;
	(void)e;
	return 1;
}

/*
 * Is it a directory? 1, 0, or an error. A link may lead to one inside the checkpoint. One that
 * leads elsewhere cannot be shown, and must not be left out silently.
 */
static int is_dir(struct place *place, const char *path, struct ckpt_err *e)
{
	struct place_seen seen;
	struct ckpt_err ignored;
	int rc = place_look_at(place, path, &seen, e);

	if (rc <= 0 || seen.kind != PLACE_LINK)
		return rc <= 0 ? rc : seen.kind == PLACE_DIR;
	if (place_look(place, path, &seen, &ignored) > 0 && seen.kind != PLACE_DIR)
		return 0;
	rc = place_list(place, path, stop, NULL, e);
	return rc < 0 ? rc : 1;
}

/* Lists metadata.json, common.pt, then directories. */
static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct name_list l CLEANUP(name_list_release) = { 0 };
	char dir[MEGATRON_DIR_CAP], path[PATH_MAX];
	int rc = file ? 0 : megatron_find(place, "zarr", dir, e);

	if (rc > 0)
		rc = megatron_list(place, dir, "metadata.json", files, e);
	if (rc <= 0)
		return rc;
	rc = megatron_list(place, dir, "common.pt", files, e);
	if (rc >= 0)
		rc = list_dir(place, dir, &l, e);
	for (size_t i = 0; rc >= 0 && i < l.n; i++) {
		rc = megatron_path(dir, l.v[i], path, e);
		if (!rc)
			rc = is_dir(place, path, e);
		if (rc > 0)
			rc = name_list_add(files, path, e);
	}
	return rc < 0 ? rc : 1;
}

static int add_times(struct place *place, const char *name, struct catalog_writer *w,
		     struct ckpt_err *e)
{
	struct place_seen seen;
	int rc = place_find(place, name, &seen, e);

	return rc ? rc : catalog_add_metadata(w, name, &seen, NULL, e);
}

/* A directory of the checkpoint: a tensor, an object, or something else. */
static int scan_dir(struct place *place, const char *name, struct catalog_writer *w,
		    struct ckpt_err *e)
{
	const char *key = megatron_base(name);
	char dir[PATH_MAX], path[PATH_MAX];
	struct place_seen seen;
	int rc = add_times(place, name, w, e);

	if (!rc)
		rc = megatron_path(name, "/", dir, e);
	if (!rc)
		rc = megatron_path(dir, ".zarray", path, e);
	if (!rc)
		rc = place_look(place, path, &seen, e);
	if (rc < 0)
		return rc;
	return rc ? add_tensor(place, dir, key, w, e) : add_objects(place, dir, key, w, e);
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	int rc = add_times(place, files->v[0], w, e);

	if (!rc)
		rc = megatron_add_common(place, files, w, e);
	for (size_t i = 1; !rc && i < files->n; i++) {
		if (opts->progress)
			opts->progress(opts->progress_arg, i, files->n);
		if (strcmp(megatron_base(files->v[i]), "common.pt") != 0)
			rc = scan_dir(place, files->v[i], w, e);
	}
	return rc;
}

const struct format format_megatron_zarr = { .name = "megatron-zarr",
					     .probe = probe,
					     .scan = scan };
