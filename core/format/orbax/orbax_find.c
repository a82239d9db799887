/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where arrays are in a directory, by the names in it:
 *
 *	DIR/manifest.ocdbt          an item: an OCDBT store
 *	DIR/_METADATA, DIR/checkpoint, DIR/NAME/.zarray, DIR/NAME/zarr.json
 *	                            an item without one: a directory for each array
 *	DIR/ITEM/...                a step, of one item or several, whatever their names
 *	DIR/300/..., DIR/ckpt_300/  a run: not a checkpoint itself
 *	DIR/NAME.msgpack, DIR/checkpoint_300
 *	                            a file that flax.serialization wrote
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/orbax/orbax.h"
#include "format/orbax/orbax_store.h"
#include "parse/msgpack.h"
#include "source/source.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_ITEMS = 1000,     /* subdirectories that are looked into */
	MAX_ARRAY_DIRS = 256, /* subdirectories of each in which arrays are looked for */
	MAX_DEPTH = 8,	      /* levels of these if there is _METADATA, else one */
};

/* ---- the names in a directory ---- */

struct look {
	struct place *place;
	const char *top; /* "DIR/" or "" */
	bool manifest, tree, checkpoint, zarr, step, process, strings, flax_index;
	uint64_t numbered;     /* the highest manifest.NUMBER */
	char unfinished[64];   /* an item that is being written */
	struct name_list dirs; /* subdirectories */
	struct name_list flax; /* files that may be Flax's */
};

static void look_release(struct look *l)
{
	name_list_release(&l->dirs);
	name_list_release(&l->flax);
}

static int join(char ret[static PATH_MAX], const char *top, const char *name, struct ckpt_err *e)
{
	return snprintf(ret, PATH_MAX, "%s%s", top, name) < PATH_MAX
		       ? 0
		       : err_set(e, ENAMETOOLONG, "'%.100s...' is too long a name", ret);
}

static int note(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct look *l = arg;
	const struct {
		const char *name;
		bool *flag;
	} marks[] = {
		{ "manifest.ocdbt", &l->manifest }, { "_METADATA", &l->tree },
		{ "checkpoint", &l->checkpoint },   { ".zarray", &l->zarr },
		{ "zarr.json", &l->zarr },	    { ".zgroup", &l->zarr },
		{ ".zmetadata", &l->zarr },	    { "_CHECKPOINT_METADATA", &l->step },
		{ "orbax.checkpoint", &l->step },   { "commit_success.txt", &l->step },
		{ "_strings.json", &l->strings },   { ORBAX_FLAX_INDEX, &l->flax_index },
	};
	uint64_t n;

	for (size_t i = 0; i < ARRAY_LEN(marks); i++)
		if (!strcmp(name, marks[i].name))
			*marks[i].flag = true;
	if (orbax_store_numbered(name, &n) && n > l->numbered)
		l->numbered = n;
	if (!strncmp(name, "ocdbt.process_", 14))
		l->process = true;
	if (kind == PLACE_UNKNOWN || kind == PLACE_LINK) {
		char path[PATH_MAX];
		struct place_seen seen;
		struct ckpt_err why = { 0 };
		int rc = join(path, l->top, name, &why);

		if (!rc)
			rc = place_look(l->place, path, &seen, &why);
		if (err_if_external(rc, &why, e))
			return rc;
		if (rc > 0)
			kind = seen.kind;
	}
	if (kind == PLACE_DIR && format_is_unfinished(name))
		(void)snprintf(l->unfinished, sizeof(l->unfinished), "%.60s", name);
	else if (kind == PLACE_DIR && *name != '.')
		return name_list_add(&l->dirs, name, e);
	if (kind == PLACE_FILE && text_glob("{*.msgpack,checkpoint_[0-9]*}", name, strlen(name)))
		return name_list_add(&l->flax, name, e);
	return 0;
}

static int look_at(struct place *place, const char *top, struct look *ret, struct ckpt_err *e)
{
	size_t n = strlen(top);
	char dir[PATH_MAX];
	int rc;

	*ret = (struct look){ .place = place, .top = top };
	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(n ? n - 1 : 1), n ? top : ".");
	rc = place_list(place, dir, note, ret, e);
	name_list_sort(&ret->dirs);
	name_list_sort(&ret->flax);
	return rc;
}

int orbax_is_msgpack(struct place *place, const char *file, struct ckpt_err *e)
{
	struct source *s CLEANUP(source_freep) = NULL;
	uint8_t head[8];
	int64_t n = place_file(place, file, &s, e);

	if (!n) {
		n = source_read(s, head, sizeof(head), 0, e);
		if (n < 0)
			return err_wrap(e, "read '%s'", file);
	}
	return n < 0 ? (int)n : n > 0 && msgpack_begins(head, (size_t)n);
}

/* ---- items ---- */

/* "300", "00000300", "checkpoint_300": the name of a step in a run. */
static bool is_step_name(const char *name)
{
	size_t n = strlen(name), digits = 0;

	while (digits < n && isdigit((unsigned char)name[n - 1 - digits]))
		digits++;
	return digits && (digits == n || name[n - 1 - digits] == '_');
}

/* Returns 1 or 0, as the three below do. */
static int is_array(struct place *place, const char *top, const char *dir, struct ckpt_err *e)
{
	static const char *const names[] = { ".zarray", "zarr.json" };
	char path[PATH_MAX];
	struct place_seen seen;
	struct ckpt_err why = { 0 };

	for (size_t k = 0; k < ARRAY_LEN(names); k++) {
		int rc;

		if (snprintf(path, sizeof(path), "%s%s/%s", top, dir, names[k]) >= PATH_MAX)
			continue;
		rc = place_look(place, path, &seen, &why);
		if (rc > 0 || err_if_external(rc, &why, e))
			return rc;
	}
	return 0;
}

/* Is there a step? Then this is a run, in which an array may belong to something else. */
static int has_steps(const struct look *l, struct ckpt_err *e)
{
	for (size_t i = 0; i < l->dirs.n && i < MAX_ARRAY_DIRS; i++) {
		int rc = 1;

		if (is_step_name(l->dirs.v[i]))
			rc = is_array(l->place, l->top, l->dirs.v[i], e);
		if (rc <= 0)
			return rc < 0 ? rc : 1;
	}
	return 0;
}

/*
 * Are there arrays below DIR/ or ""? A name with slashes is a directory in a directory. What cannot
 * be listed for a reason of its own does not count: what is found is read with all its errors.
 */
static int has_arrays(struct place *place, const char *top, const struct name_list *dirs,
		      unsigned depth, unsigned *left, struct ckpt_err *e)
{
	char path[PATH_MAX];
	int rc = 0;

	for (size_t i = 0; !rc && i < dirs->n && *left; i++, --*left)
		rc = is_array(place, top, dirs->v[i], e);
	for (size_t i = 0; !rc && depth && i < dirs->n && *left; i++) {
		struct look l CLEANUP(look_release) = { 0 };
		struct ckpt_err why = { 0 };

		if (snprintf(path, sizeof(path), "%s%s/", top, dirs->v[i]) >= PATH_MAX)
			continue;
		rc = look_at(place, path, &l, &why);
		rc = rc ? err_if_external(rc, &why, e)
			: has_arrays(place, path, &l.dirs, depth - 1, left, e);
	}
	return rc;
}

static int is_data_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)arg;
	(void)kind;
	(void)e;
	return strlen(name) == 32 && strspn(name, "0123456789abcdef") == 32;
}

/* Are there data files of a store? Then it has lost its manifest, or is not finished. */
static int has_data(const struct look *l, struct ckpt_err *e)
{
	bool there = false;
	char path[PATH_MAX];
	struct ckpt_err why = { 0 };
	int rc;

	for (size_t i = 0; i < l->dirs.n; i++)
		there |= !strcmp(l->dirs.v[i], "d");
	if (l->manifest || !there || join(path, l->top, "d", &why))
		return 0;
	rc = place_list(l->place, path, is_data_file, NULL, &why);
	return rc < 0 ? err_if_external(rc, &why, e) : rc;
}

/* Does _METADATA list arrays, wherever they are? What cannot be parsed is of something else. */
static int lists_arrays(const struct look *l, struct ckpt_err *e)
{
	char top[PATH_MAX];
	const struct orbax_item item = { .top = top, .has_tree = true };
	struct orbax_name none CLEANUP(orbax_name_release) = ORBAX_NAME_INIT;
	struct orbax_tree tree = { 0 };
	struct ckpt_err why = { 0 };
	bool found = false;
	int rc;

	(void)snprintf(top, sizeof(top), "%s", l->top);
	rc = orbax_tree_read(l->place, &item, &none, &tree, &why);
	for (size_t i = 0; !rc && i < tree.n; i++)
		found |= tree.v[i].kind == ORBAX_ARRAY;
	orbax_tree_release(&tree);
	return rc ? err_if_external(rc, &why, e) : found;
}

/* Are there arrays in directories of an item that has no store? */
static int find_dirs(const struct look *l, const struct orbax_item *item, bool dirs_count,
		     struct ckpt_err *e)
{
	unsigned left = MAX_ARRAY_DIRS;
	int rc;

	if (item->has_store)
		return 0;
	if (item->has_msgpack || (l->zarr && dirs_count) || (l->tree && !*l->top))
		return 1;
	/* _METADATA alone is not enough in a subdirectory: there must be arrays. */
	if (!l->tree) {
		rc = dirs_count ? has_steps(l, e) : 1;
		if (rc)
			return rc < 0 ? rc : 0;
	}
	rc = has_arrays(l->place, l->top, &l->dirs, l->tree ? MAX_DEPTH : 0, &left, e);
	/* In a step, one whose arrays are lost must not vanish. */
	return rc || !l->tree || !dirs_count ? rc : lists_arrays(l, e);
}

/* Is the directory an item? If so, lists its files and, if arrays are directories, those. */
static int try_item(const struct look *l, bool dirs_count, struct orbax_found *f,
		    struct ckpt_err *e)
{
	char path[PATH_MAX], numbered[32];
	struct orbax_item item = { .has_store = l->manifest, .has_tree = l->tree };
	struct ckpt_err why = { 0 };
	int rc, msgpack = 0;

	if (l->checkpoint && !join(path, l->top, "checkpoint", e))
		msgpack = orbax_is_msgpack(l->place, path, &why);
	if (err_if_external(msgpack, &why, e))
		return msgpack;
	item.has_msgpack = msgpack > 0;
	rc = find_dirs(l, &item, dirs_count, e);
	if (rc < 0)
		return rc;
	item.has_dirs = rc;
	(void)snprintf(numbered, sizeof(numbered), "manifest.%016llx",
		       (unsigned long long)l->numbered);
	const struct {
		bool is_there;
		const char *name;
	} files[] = {
		{ item.has_store, "manifest.ocdbt" }, { item.has_store && l->numbered, numbered },
		{ item.has_tree, "_METADATA" },	      { l->strings, "_strings.json" },
		{ item.has_msgpack, "checkpoint" },
	};

	if (l->process && !l->manifest)
		return err_set(e, ENOENT,
			       "'%smanifest.ocdbt' is missing, but what each process wrote is "
			       "there (ocdbt.process_*): the save has not finished",
			       l->top);
	/* Without _METADATA it is one only in a step. */
	if (l->tree || l->step || (dirs_count && *l->top)) {
		rc = has_data(l, e);
		if (rc)
			return rc < 0 ? rc
				      : err_set(e, ENOENT,
						"'%smanifest.ocdbt' is missing, but data files "
						"that it "
						"describes are there (d/): the save has not "
						"finished, "
						"or the file was lost",
						l->top);
	}
	if (!item.has_store && !item.has_dirs)
		return 0;
	if (msgpack < 0) {
		*e = why;
		return msgpack;
	}
	rc = 0;
	for (size_t i = 0; !rc && i < ARRAY_LEN(files); i++) {
		if (!files[i].is_there)
			continue;
		rc = join(path, l->top, files[i].name, e);
		if (!rc)
			rc = name_list_add(&f->files, path, e);
	}
	for (size_t i = 0; !rc && item.has_dirs && i < l->dirs.n; i++) {
		rc = join(path, l->top, l->dirs.v[i], e);
		if (!rc)
			rc = name_list_add(&f->files, path, e);
	}
	if (rc)
		return rc;
	item.top = strdup(l->top);
	if (!item.top || !VEC_ROOM(f->v, f->cap, f->n + 1)) {
		free(item.top);
		return err_nomem(e);
	}
	f->v[f->n++] = item;
	return 1;
}

/* The items in the subdirectories of a step. */
static int find_items(struct place *place, const struct look *step, struct orbax_found *f,
		      struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < step->dirs.n && i < MAX_ITEMS; i++) {
		struct look l CLEANUP(look_release) = { 0 };
		struct ckpt_err why;
		char top[PATH_MAX];

		if (!step->step && is_step_name(step->dirs.v[i]))
			continue;
		if (snprintf(top, sizeof(top), "%s/", step->dirs.v[i]) >= (int)sizeof(top))
			continue;
		rc = look_at(place, top, &l, &why);
		if (rc < 0 && !step->step && !err_is_external(rc)) {
			rc = 0; /* not ours to open, or a link that leads elsewhere */
			continue;
		}
		if (rc < 0)
			*e = why;
		else if (!l.step) /* with its own marks it is a step in a run */
			rc = try_item(&l, step->step, f, e);
	}
	return rc < 0 ? rc : f->n > 0;
}

/* ---- Flax ---- */

/* The model with Hugging Face's name, in one file or several; or the only file there is. */
static int find_flax(struct place *place, const struct look *l, struct orbax_found *f,
		     struct ckpt_err *e)
{
	static const char whole[] = "flax_model.msgpack";
	struct name_list *to = &f->msgpack;
	struct ckpt_err why;
	int rc = 0;

	for (size_t i = 0; !rc && i < l->flax.n; i++)
		if (!strcmp(l->flax.v[i], whole))
			rc = name_list_add(to, whole, e);
	if (!rc && !to->n)
		rc = orbax_find_shards(place, &l->flax, l->flax_index, f, e);
	if (!rc && !to->n && l->flax.n > 1) {
		rc = orbax_is_msgpack(place, l->flax.v[0], &why);
		if (rc <= 0)
			return err_if_external(rc, &why, e);
		return err_set(
			e, ENOTUNIQ,
			"'%.100s' and '%.100s' are two checkpoints: name one of them instead "
			"of the directory",
			l->flax.v[0], l->flax.v[l->flax.n - 1]);
	}
	if (!rc && !to->n && l->flax.n == 1)
		rc = name_list_add(to, l->flax.v[0], e);
	for (size_t i = 0; !rc && i < to->n; i++) {
		rc = orbax_is_msgpack(place, to->v[i], i ? e : &why);
		if (rc <= 0 && !i) /* whatever it is, another format may be there */
			return err_if_external(rc, &why, e);
		if (!rc)
			return err_set(
				e, ERR_CORRUPT,
				"'%.100s' does not begin like a Flax checkpoint (msgpack), as "
				"'%.100s' does: save or download it again",
				to->v[i], to->v[0]);
		rc = rc < 0 ? rc : 0;
	}
	if (!rc)
		rc = orbax_check_shards(f, e);
	for (size_t i = 0; !rc && i < to->n; i++)
		rc = name_list_add(&f->files, to->v[i], e);
	return rc ? rc : to->n > 0;
}

/* ---- all of it ---- */

static int find(struct place *place, struct look *l, struct orbax_found *f, struct ckpt_err *e)
{
	int rc = look_at(place, "", l, e);

	if (!rc)
		rc = try_item(l, true, f, e);
	if (!rc && l->step && *l->unfinished)
		return err_set(e, ENOENT,
			       "'%s' in it is an item whose save has not finished: use another "
			       "step, or wait until it has its final name",
			       l->unfinished);
	if (!rc)
		rc = find_items(place, l, f, e);
	if (!rc)
		rc = find_flax(place, l, f, e);
	if (!rc && l->step)
		return err_set(e, ENOENT,
			       "it is a step that Orbax saved, but none of its items has arrays");
	return rc;
}

int orbax_find(struct place *place, struct orbax_found *ret, struct ckpt_err *e)
{
	struct look l CLEANUP(look_release) = { 0 };
	int rc;

	*ret = (struct orbax_found){ 0 };
	rc = find(place, &l, ret, e);
	if (rc <= 0)
		orbax_found_release(ret);
	return rc;
}

void orbax_found_release(struct orbax_found *f)
{
	for (size_t i = 0; i < f->n; i++)
		free(f->v[i].top);
	free(f->v);
	name_list_release(&f->files);
	name_list_release(&f->msgpack);
	*f = (struct orbax_found){ 0 };
}
