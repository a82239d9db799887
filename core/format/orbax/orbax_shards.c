/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Flax model that Hugging Face's transformers saved in several files:
 *
 *	flax_model-00001-of-00003.msgpack     each has some of the leaves
 *	flax_model.msgpack.index.json         {"weight_map": {"KEY/KEY": "FILE", ...}}
 *
 * The index names the files; others are not read. A leaf that is not in its file is listed with
 * that as its fault. Without an index, names tell how many files there are.
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/format.h"
#include "format/orbax/orbax.h"
#include "format/part_names.h"
#include "format/st_index.h"
#include "index/catalog_build.h"
#include "source/place.h"

#include <stdlib.h>
#include <string.h>

static const char stem[] = "flax_model";

static bool part_of(const char *name, struct part *ret)
{
	return part_parse(name, ".msgpack", ret) && ret->stem == strlen(stem) &&
	       !memcmp(name, stem, strlen(stem));
}

bool orbax_is_shard(const char *name)
{
	struct part p;

	return part_of(name, &p);
}

static int find_indexed(struct place *place, struct orbax_found *f, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct place_seen seen;
	int rc = st_index_read(place, ORBAX_FLAX_INDEX, &x, &seen, NULL, e);

	for (size_t i = 0; !rc && i < x.n_files; i++) {
		rc = place_look(place, x.files[i], &seen, e);
		if (rc > 0)
			rc = name_list_add(&f->msgpack, x.files[i], e);
	}
	if (!rc && !f->msgpack.n)
		return err_set(e, ENOENT,
			       "'%.100s', which '" ORBAX_FLAX_INDEX "' names, is missing, and so "
			       "are all others: add the files, or name one of those that are there "
			       "instead of the directory",
			       x.files[0]);
	f->has_index = !rc;
	return rc ? rc : name_list_add(&f->files, ORBAX_FLAX_INDEX, e);
}

int orbax_find_shards(struct place *place, const struct name_list *names, bool has_index,
		      struct orbax_found *f, struct ckpt_err *e)
{
	struct name_list parts CLEANUP(name_list_release) = { 0 };
	int rc = 0;

	for (size_t i = 0; !rc && i < names->n; i++)
		if (orbax_is_shard(names->v[i]))
			rc = name_list_add(&parts, names->v[i], e);
	if (rc || !parts.n)
		return rc;
	if (has_index)
		return find_indexed(place, f, e);
	f->msgpack = parts;
	parts = (struct name_list){ 0 };
	return 0;
}

int orbax_check_shards(const struct orbax_found *f, struct ckpt_err *e)
{
	autofree struct part *v = calloc(f->msgpack.n + 1, sizeof(*v));
	size_t n = 0;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; !f->has_index && i < f->msgpack.n; i++)
		n += part_of(f->msgpack.v[i], &v[n]);
	return parts_check(v, n, e);
}

/* ---- what is missing ---- */

/* The index joins keys with '/'. */
static int name_of(const char *key, struct orbax_name *n, struct ckpt_err *e)
{
	int rc = 0;

	orbax_name_cut(n, 0);
	for (const char *at = key; !rc && at;) {
		const char *slash = strchr(at, '/');

		rc = orbax_name_add(n, at, slash ? (size_t)(slash - at) : strlen(at), false, e);
		at = slash ? slash + 1 : NULL;
	}
	return rc;
}

int orbax_read_index(struct place *place, struct orbax_tree *ret, struct ckpt_err *e)
{
	struct orbax_name n CLEANUP(orbax_name_release) = ORBAX_NAME_INIT, none = { 0 };
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct place_seen seen;
	int rc = st_index_read(place, ORBAX_FLAX_INDEX, &x, &seen, NULL, e);

	for (size_t i = 0; !rc && i < x.n_entries; i++) {
		const char *name = x.entries[i].tensor;
		struct orbax_leaf l = { .type = x.entries[i].file };

		if (name_of(name, &n, e))
			return err_wrap(e, "'" ORBAX_FLAX_INDEX "': '%s'",
					FQN_TEXT(name, strlen(name)));
		rc = orbax_tree_add(ret, &l, &n, &none, e);
	}
	orbax_tree_sort(ret);
	return rc;
}

static int by_string(const void *ap, const void *bp)
{
	return strcmp(*(const char *const *)ap, *(const char *const *)bp);
}

/* The same key can be written in several ways. */
static bool is_again(const struct orbax_leaf *v, size_t i)
{
	return i && bytes_equal(v[i - 1].name, v[i - 1].len, v[i].name, v[i].len);
}

static int add_absent(const struct orbax_leaf *l, const struct name_list *files,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	bool is_there = bsearch(&l->type, files->v, files->n, sizeof(*files->v), by_string);
	struct object_item o = {
		.fqn = l->name, .fqn_len = l->len, .path = l->path, .loc.file = CATALOG_NO_FILE
	};

	return format_add_absent(&o, l->type, is_there, w, e);
}

int orbax_tell_absent(const struct orbax_tree *t, const struct name_list *files,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < t->n; i++)
		if (!t->v[i].found && !is_again(t->v, i))
			rc = add_absent(&t->v[i], files, w, e);
	return rc;
}
