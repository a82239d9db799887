/* SPDX-License-Identifier: Apache-2.0 */
#include "format/zarr/zarr_dir.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/format.h"
#include "format/small_file.h"
#include "format/zarr/zarr_lost.h"
#include "index/catalog_build.h"
#include "parse/zarr_metadata.h"
#include "source/place.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
	MAX_DEPTH = 128,
	MAX_DIRS = 1 << 20, /* all lists together; links can make a tree endless */
};

struct walk {
	struct zarr_dir *d;
	zarr_value_fn *fn;
	void *arg;
	char *lost; /* the array that was last told to have no metadata: PATH_MAX bytes */
};

/* ---- directories ---- */

static int add_name(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)kind;
	return name_list_add(arg, name, e);
}

/* The names in a directory, "DIR/" or "", which the index depends on if `keep`. */
static int list(struct zarr_dir *d, const char *path, bool keep, struct name_list *ret,
		struct ckpt_err *e)
{
	size_t n = strlen(path);
	char name[PATH_MAX];
	struct place_seen seen;
	int rc;

	(void)snprintf(name, sizeof(name), "%.*s", (int)(n ? n - 1 : 1), n ? path : ".");
	if (++d->dirs > MAX_DIRS)
		return err_set(e, EFBIG, "more than %d directories, last '%.200s'", MAX_DIRS, name);
	rc = place_find(d->s.place, name, &seen, e);
	if (!rc)
		rc = place_list(d->s.place, name, add_name, ret, e);
	name_list_sort(ret);
	return rc || !keep ? rc : catalog_add_metadata(d->w, name, &seen, NULL, e);
}

static int join(char ret[static PATH_MAX], const char *dir, const char *name, const char *end,
		struct ckpt_err *e)
{
	return snprintf(ret, PATH_MAX, "%s%s%s", dir, name, end) < PATH_MAX
		       ? 0
		       : err_set(e, ENAMETOOLONG, "'%s%.100s...' is too long a name", dir, name);
}

/* Is it a directory, and by way of a link? 1, 0, or an error. What cannot be looked at, such as a
 * link that leads elsewhere, must not be left out silently. */
static int is_dir(struct zarr_dir *d, const char *path, bool *ret_link, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc = place_look_at(d->s.place, path, &seen, e);

	*ret_link = rc > 0 && seen.kind == PLACE_LINK;
	if (*ret_link)
		rc = place_look(d->s.place, path, &seen, e);
	return rc <= 0 ? rc : seen.kind == PLACE_DIR;
}

static int call(const struct walk *k, const char *path, const struct zarr_value *v,
		struct ckpt_err *e)
{
	const char *key = path + strlen(k->d->top);

	return k->fn(k->arg, key, strlen(key), v, e);
}

/* ---- arrays ---- */

static const char *const metadata[] = { "zarr.json", ".zarray" };

static bool is_metadata(const char *name)
{
	return !strcmp(name, metadata[0]) || !strcmp(name, metadata[1]);
}

static bool has_name(const struct name_list *l, const char *name)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->v[i], name))
			return true;
	return false;
}

/* Does it describe an array, not a group? What is invalid is reported when the array is read. */
static bool describes_array(const char *path, const uint8_t *bytes, size_t len)
{
	struct ckpt_err ignored;
	struct zarr_array a;

	return !bytes_end(path, strlen(path), "zarr.json") ||
	       zarr_parse((const char *)bytes, len, true, &a, &ignored) != 0;
}

/* Reads .zarray or zarr.json, which the index depends on. */
static int read_metadata(const struct walk *k, const char *path, bool *ret_array,
			 struct ckpt_err *e)
{
	struct small_file file CLEANUP(small_file_release) = { 0 };
	struct zarr_value v = { 0 };
	struct digest hash;
	int rc = small_file_read(k->d->s.place, path, ZARR_MAX_METADATA, &file, e);

	if (rc)
		return rc;
	hash = digest_of(XXH3_128bits(file.bytes, file.len));
	v.bytes = (const uint8_t *)file.bytes;
	v.length = file.len;
	*ret_array = describes_array(path, v.bytes, file.len);
	rc = catalog_add_metadata(k->d->w, path, &file.seen, &hash, e);
	return rc ? rc : call(k, path, &v, e);
}

/* Names of chunks, and of the directories that have chunks. */
static bool is_chunk(const char *name)
{
	return name[strspn(name, "c/.0123456789")] == 0 && *name != '.';
}

static bool is_group(const struct name_list *l)
{
	return has_name(l, metadata[0]) || has_name(l, ".zgroup");
}

/* A file in a directory without metadata: is it a chunk? The locks of zarr's ProcessSynchronizer in
 * NAME.sync/ are not, nor what is hidden. */
static int tell_lost(const struct walk *k, const char *path, struct ckpt_err *e)
{
	const char *key = path + strlen(k->d->top);
	size_t n = zarr_lost_name(key, strlen(key));
	char name[PATH_MAX], lost[PATH_MAX];
	int rc;

	if (!n || *key == '.' || strstr(key, "/.") || strstr(key, ".sync/"))
		return 0;
	(void)snprintf(name, sizeof(name), "%.*s", (int)n, key);
	if (!strcmp(name, k->lost))
		return 0;
	(void)snprintf(k->lost, PATH_MAX, "%s", name);
	rc = join(lost, k->d->top, name, "/.zarray", e);
	return rc ? rc : call(k, lost, NULL, e);
}

/* dir: "DIR/" or ""; linked: a link led there. */
static int walk_arrays(const struct walk *k, const char *dir, bool linked, int depth,
		       struct ckpt_err *e)
{
	struct name_list l CLEANUP(name_list_release) = { 0 };
	bool is_array = false, group;
	/* The index may itself be written to the checkpoint's directory. A new directory there is
	 * noticed because the format lists all of them. */
	int rc = list(k->d, dir, *dir != 0, &l, e);

	/* An array that has been converted has the metadata of both versions. */
	for (size_t m = 0; !rc && !is_array && m < ARRAY_LEN(metadata); m++) {
		char path[PATH_MAX];

		if (!has_name(&l, metadata[m]))
			continue;
		rc = join(path, dir, metadata[m], "", e);
		if (!rc)
			rc = read_metadata(k, path, &is_array, e);
	}
	group = is_group(&l);
	for (size_t i = 0; !rc && i < l.n; i++) {
		char path[PATH_MAX];
		bool link = false;

		if ((is_array && is_chunk(l.v[i])) || is_metadata(l.v[i]))
			continue;
		rc = join(path, dir, l.v[i], "", e);
		if (!rc)
			rc = is_dir(k->d, path, &link, e);
		if (!rc && !is_array && !group)
			rc = tell_lost(k, path, e);
		if (rc <= 0)
			continue;
		rc = join(path, dir, l.v[i], "/", e);
		if (!rc && linked && link)
			rc = err_set(e, ELOOP,
				     "'%s': a link to a directory in one that is itself "
				     "reached by a link",
				     path);
		if (!rc && depth == MAX_DEPTH)
			rc = err_set(e, ELOOP, "'%.200s...': more than %d directories deep", path,
				     MAX_DEPTH);
		if (!rc)
			rc = walk_arrays(k, path, linked || link, depth + 1, e);
	}
	return rc;
}

static int each_array(struct zarr_store *s, zarr_value_fn *fn, void *arg, struct ckpt_err *e)
{
	char lost[PATH_MAX] = "";
	struct walk k = { (struct zarr_dir *)s, fn, arg, lost };

	return walk_arrays(&k, k.d->top, false, 0, e);
}

/* ---- chunks ---- */

static int walk_chunks(const struct walk *k, const char *dir, int depth, struct ckpt_err *e)
{
	struct name_list l CLEANUP(name_list_release) = { 0 };
	int rc = list(k->d, dir, true, &l, e);

	for (size_t i = 0; !rc && i < l.n; i++) {
		struct place_seen seen;
		char path[PATH_MAX];

		if (!is_chunk(l.v[i]))
			continue;
		rc = join(path, dir, l.v[i], "", e);
		if (!rc)
			rc = place_find(k->d->s.place, path, &seen, e);
		if (!rc && seen.kind != PLACE_DIR) {
			rc = call(k, path,
				  &(struct zarr_value){
					  .file = path, .length = seen.size, .seen = &seen },
				  e);
		} else if (!rc && depth < MAX_DEPTH) {
			rc = join(path, dir, l.v[i], "/", e);
			if (!rc)
				rc = walk_chunks(k, path, depth + 1, e);
		}
	}
	return rc;
}

static int each_chunk(struct zarr_store *s, const char *prefix, size_t len, zarr_value_fn *fn,
		      void *arg, struct ckpt_err *e)
{
	struct walk k = { (struct zarr_dir *)s, fn, arg, NULL };
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s%.*s", k.d->top, (int)len, prefix) >= PATH_MAX)
		return err_set(e, ENAMETOOLONG, "'%.100s...' is too long a name", path);
	return walk_chunks(&k, path, 0, e);
}

static const struct zarr_store_ops ops = { .arrays = each_array, .chunks = each_chunk };

void zarr_dir_init(struct zarr_dir *d, struct place *place, const char *top,
		   struct catalog_writer *w)
{
	*d = (struct zarr_dir){ .s = { &ops, place }, .top = top, .w = w };
}
