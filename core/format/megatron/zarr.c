/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-core's dist_checkpointing up to core_v0.15, sharded backend zarr:
 *
 *	DIR/metadata.json       {"sharded_backend": "zarr", "sharded_backend_version": 1, ...}
 *	DIR/common.pt           torch.save of all that is not sharded
 *	DIR/KEY/.zarray         Zarr v2 array metadata: shape, chunks, dtype, order
 *	DIR/KEY/1.0.2           chunk (1, 0, 2). One that is not there has never been written
 *	DIR/KEY/shard_O_S.pt    instead: an object's part O of S, its unique key KEY/shard_O_S
 *
 * Zarr has no name for bfloat16, Megatron's is "bfloat16". Specification:
 * https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html
 *
 * The index depends on metadata.json, which a save writes last, and on the directories of the
 * tensors, all by their times: metadata.json has the same contents in every checkpoint, and a
 * directory's time changes when a file in it is created, replaced or removed.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/megatron/megatron.h"
#include "format/zarr/zarr_array.h"
#include "format/zarr/zarr_dir.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "parse/zarr_metadata.h"
#include "source/place.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PART_DIMS = 8 };

struct scan {
	struct catalog_writer *w;
	uint64_t chunks; /* so far */
	char missing[FORMAT_NOTE];
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

/* ---- tensors ---- */

/* dir: "DIR/KEY/"; path: of its .zarray; key points to KEY */
static int add_tensor(struct place *place, const char *dir, const char *path, const char *key,
		      struct scan *s, struct ckpt_err *e)
{
	struct zarr_name name = {
		.name = "", .fqn = key, .fqn_len = strlen(key), .path = catalog_path_flat
	};
	struct zarr_value v = { .file = path };
	struct zarr_array a;
	struct zarr_dir d;
	struct place_seen seen;
	int rc = place_find(place, path, &seen, e);

	zarr_dir_init(&d, place, dir, s->w);
	v.length = seen.size;
	if (!rc)
		rc = zarr_read(&d.s, path, strlen(path), &v, &a, e);
	/* A chunk that is not there has never been written. */
	return rc > 0 ? zarr_add_array(&d.s, &name, &a, true, s->w, &s->chunks, e) : rc;
}

/* ---- directories without .zarray ---- */

/* A tensor that has chunks and no .zarray is listed with what is wrong. */
static int add_lost(const char *key, struct catalog_writer *w, struct ckpt_err *e)
{
	const struct object_item o = { .fqn = key,
				       .fqn_len = strlen(key),
				       .path = catalog_path_flat,
				       .loc.file = CATALOG_NO_FILE,
				       .fault = "its .zarray is missing, but it has chunks" };

	return catalog_add_object(w, &o, e);
}

/* KEY.sync/ is what zarr's ProcessSynchronizer leaves: a lock for each chunk. */
static bool has_chunks(const char *key, const struct name_list *l)
{
	if (text_glob("*.sync", key, strlen(key)))
		return false;
	for (size_t i = 0; i < l->n; i++)
		if (*l->v[i] != '.' && !l->v[i][strspn(l->v[i], ".0123456789")])
			return true;
	return false;
}

/* "1.2": the number of dimensions, or 0. */
static size_t read_numbers(const char **s, uint32_t ret[static MAX_PART_DIMS])
{
	size_t n = 0;

	do {
		char *end;
		unsigned long long v = strtoull(*s, &end, 10);

		if (!isdigit((unsigned char)**s) || n == MAX_PART_DIMS || v >= UINT32_MAX)
			return 0;
		ret[n++] = (uint32_t)v;
		*s = end;
	} while (**s == '.' && isdigit((unsigned char)(*s)[1]) && (*s)++);
	return n;
}

/* Of "shard_0.1_2.2.pt", the number of dimensions of the object, or 0. */
static size_t read_part(const char *name, uint32_t shape[static MAX_PART_DIMS])
{
	uint32_t off[MAX_PART_DIMS];
	size_t n;

	if (!text_take(&name, "shard_"))
		return 0;
	n = read_numbers(&name, off);
	if (!n || !text_take(&name, "_"))
		return 0;
	/* Of the shape, Megatron-core 0.5 and earlier lose the last number, unless it is the only
	 * one. */
	return read_numbers(&name, shape) == n && !strcmp(name, ".pt") ? n : 0;
}

/* Notes the first part that is not there of an object whose other parts' names say how many there
 * are. */
static void look_for_missing(struct scan *s, const char *key, const struct name_list *l)
{
	uint32_t shape[MAX_PART_DIMS] = { 0 }, other[MAX_PART_DIMS] = { 0 };
	uint32_t at[MAX_PART_DIMS] = { 0 };
	size_t n = 0, k = 0;

	for (size_t i = 0; i < l->n; i++) {
		size_t dims = read_part(l->v[i], n ? other : shape);

		if (n && dims && (dims != n || memcmp(shape, other, n * sizeof(*shape)) != 0))
			return; /* of two saves */
		n = dims ? dims : n;
	}
	/* At the latest, one part more than there are files. */
	while (n && k < n) {
		char name[16 * 2 * MAX_PART_DIMS];
		size_t len = (size_t)snprintf(name, sizeof(name), "shard");

		for (size_t i = 0; i < 2 * n; i++)
			len += (size_t)snprintf(name + len, sizeof(name) - len, "%c%u",
						i % n ? '.' : '_', i < n ? at[i] : shape[i - n]);
		(void)snprintf(name + len, sizeof(name) - len, ".pt");
		if (!name_list_has(l, name)) {
			(void)format_note(s->missing,
					  "'%.200s/%s', a part of an object, is missing", key,
					  name);
			return;
		}
		for (k = 0; k < n && ++at[n - 1 - k] >= shape[n - 1 - k]; k++)
			at[n - 1 - k] = 0;
	}
}

/* Adds what is in such a directory: parts of an object; KEY/shard_O_S.pt is listed as
 * KEY/shard_O_S. */
static int add_others(struct place *place, const char *dir, const char *key, struct scan *s,
		      struct ckpt_err *e)
{
	struct name_list l CLEANUP(name_list_release) = { 0 };
	struct catalog_writer *w = s->w;
	int rc = list_dir(place, dir, &l, e);

	if (!rc && has_chunks(key, &l))
		rc = add_lost(key, w, e);
	if (!rc)
		look_for_missing(s, key, &l);
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
	/* Not even metadata.json. */
	if (rc >= 0 && !l.n)
		rc = format_refuse_unlisted(files->v[0], e);
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
static int scan_dir(struct place *place, const char *name, struct scan *s, struct ckpt_err *e)
{
	const char *key = megatron_base(name);
	char dir[PATH_MAX], path[PATH_MAX];
	struct place_seen seen;
	int rc = add_times(place, name, s->w, e);

	if (!rc)
		rc = megatron_path(name, "/", dir, e);
	if (!rc)
		rc = megatron_path(dir, ".zarray", path, e);
	if (!rc)
		rc = place_look(place, path, &seen, e);
	if (rc < 0)
		return rc;
	return rc ? add_tensor(place, dir, path, key, s, e) : add_others(place, dir, key, s, e);
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct scan s = { .w = w };
	int rc = add_times(place, files->v[0], w, e);

	if (!rc)
		rc = megatron_add_common(place, files, w, e);
	for (size_t i = 1; !rc && i < files->n; i++) {
		if (opts->progress)
			opts->progress(opts->progress_arg, i, files->n);
		if (strcmp(megatron_base(files->v[i]), "common.pt") != 0)
			rc = scan_dir(place, files->v[i], &s, e);
	}
	return rc ? rc : format_tell(FORMAT_MISSING, s.missing, w, e);
}

const struct format format_megatron_zarr = { .name = "megatron-zarr",
					     .probe = probe,
					     .scan = scan };
