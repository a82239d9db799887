/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of JAX: Orbax (of any version since 0.1), T5X, and files of flax.serialization.
 *
 *	DIR/_CHECKPOINT_METADATA, ITEM/...    a step; or the files of an item are in DIR itself
 *	ITEM/manifest.ocdbt, ITEM/d/HEX       the arrays: an OCDBT store (see orbax_store.h)
 *	ITEM/ocdbt.process_N/...              what each process wrote, to which the store refers
 *	ITEM/NAME/.zarray, ITEM/NAME/0.0      or a directory for each array
 *	ITEM/_METADATA, ITEM/_strings.json    the tree of leaves, and those that are strings
 *	ITEM/checkpoint                       msgpack, of old versions: small leaves
 *
 * The store or the directories say which arrays there are, and _METADATA, which may be missing, how
 * their names are made of keys. Nothing else is needed: what the other files say is for the program
 * that restores the checkpoint (_sharding, array_metadatas/).
 *
 * Sources: google/orbax, checkpoint/orbax/checkpoint/_src; google/flax, flax/serialization.py.
 */
#include "format/orbax/orbax.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/orbax/orbax_store.h"
#include "format/small_file.h"
#include "format/zarr/zarr_array.h"
#include "format/zarr/zarr_dir.h"
#include "index/catalog_build.h"
#include "parse/pickle_strings.h"
#include "parse/zarr_metadata.h"
#include "source/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAMES ((size_t)256 << 20) /* bytes of the names of an item's arrays */

/* ---- recognising ---- */

/* Names that files of flax.serialization have. */
static bool is_flax_name(const char *file)
{
	return text_glob("{*.msgpack,checkpoint,*checkpoint_[0-9]*}", file, strlen(file));
}

static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct orbax_found f CLEANUP(orbax_found_release) = { 0 };
	struct ckpt_err why;
	int rc;

	if (file) {
		rc = is_flax_name(file) ? orbax_is_msgpack(place, file, &why) : 0;
		if (rc <= 0)
			return err_if_external(rc, &why, e);
		rc = name_list_add(files, file, e);
		return rc ? rc : 1;
	}
	rc = orbax_find(place, &f, e);
	if (rc > 0) {
		name_list_release(files);
		*files = f.files;
		f.files = (struct name_list){ 0 };
		name_list_sort(files);
	}
	return rc;
}

/* ---- arrays ---- */

struct scanning {
	struct place *place;
	const struct scan_opts *opts;
	struct catalog_writer *w;
	uint64_t total;	  /* chunks */
	uint64_t done, n; /* arrays, of all items */
};

struct item {
	struct scanning *s;
	const struct orbax_item *about;
	struct zarr_store *store;
	struct orbax_name prefix; /* a step or none */
	struct orbax_tree tree;
	struct pk_strings *arrays; /* names of those reported, if there is msgpack, too */
};

/* An array that has chunks, and no metadata. A tree or msgpack lists all arrays itself. */
static int add_lost(struct item *x, const char *name, size_t len, struct ckpt_err *e)
{
	struct buf fqn CLEANUP(buf_release) = BUF_INIT(2 * ORBAX_MAX_FQN);
	struct object_item o = { .loc.file = CATALOG_NO_FILE,
				 .fault =
					 "its .zarray or zarr.json is missing, but it has chunks" };

	if (x->tree.n || x->about->has_msgpack)
		return 0;
	buf_add(&fqn, x->prefix.fqn.data, x->prefix.fqn.len);
	buf_str(&fqn, x->prefix.n ? "." : "");
	buf_add(&fqn, name, len);
	if (fqn.err)
		return err_nomem(e);
	o.fqn = fqn.data;
	o.fqn_len = fqn.len;
	return catalog_add_object(x->s->w, &o, e);
}

/* The array NAME of NAME/.zarray or NAME/zarr.json. */
static int add_array(void *arg, const char *key, size_t key_len, const struct zarr_value *v,
		     struct ckpt_err *e)
{
	struct item *x = arg;
	const char *slash = memrchr(key, '/', key_len);
	size_t len = slash ? (size_t)(slash - key) : 0;
	struct buf fqn CLEANUP(buf_release) = BUF_INIT(2 * ORBAX_MAX_FQN);
	struct orbax_leaf *leaf = orbax_tree_find(&x->tree, key, len);
	struct zarr_array a;
	int rc = v ? zarr_read(x->store, key, key_len, v, &a, e) : add_lost(x, key, len, e);

	if (!v)
		return rc;
	x->s->done++;
	if (x->s->opts->progress && x->s->n)
		x->s->opts->progress(x->s->opts->progress_arg, min_u64(x->s->done, x->s->n),
				     x->s->n);
	if (rc <= 0)
		return rc;
	if (leaf)
		leaf->found = true;
	if (x->arrays && !pk_intern(x->arrays, key, len))
		return err_set(e, errno, "the names of all arrays take too much memory");
	buf_add(&fqn, x->prefix.fqn.data, x->prefix.fqn.len);
	buf_str(&fqn, x->prefix.n ? "." : "");
	buf_add(&fqn, key, len);
	if (fqn.err)
		return err_nomem(e);
	return zarr_add_array(x->store,
			      &(struct zarr_name){ .name = key,
						   .name_len = len,
						   .fqn = fqn.data,
						   .fqn_len = fqn.len,
						   .path = leaf ? leaf->path : NULL },
			      &a, x->tree.absent_is_damage, x->s->w, &x->s->total, e);
}

static int scan_item(struct item *x, struct ckpt_err *e)
{
	char checkpoint[4200];
	int rc = orbax_tree_read(x->s->place, x->about, &x->prefix, &x->tree, e);

	if (!rc && x->about->has_msgpack) {
		x->arrays = pk_strings_new(MAX_NAMES);
		rc = x->arrays ? 0 : err_nomem(e);
	}
	if (!rc)
		rc = x->store->ops->arrays(x->store, add_array, x, e);
	if (!rc && x->about->has_msgpack) {
		(void)snprintf(checkpoint, sizeof(checkpoint), "%scheckpoint", x->about->top);
		rc = orbax_flax_read(x->s->place, checkpoint, &x->prefix, &x->tree, x->store,
				     x->arrays, x->s->w, &x->s->total, e);
	}
	return rc ? rc : orbax_tree_report(&x->tree, x->s->place, x->about, &x->prefix, x->s->w, e);
}

/* Several items have their names in front of their leaves' names. */
static int scan_items(struct scanning *s, const struct orbax_found *f, struct ckpt_err *e)
{
	autofree struct orbax_store **stores = calloc(f->n + 1, sizeof(*stores));
	size_t with_arrays = 0;
	int rc = stores ? 0 : err_nomem(e);

	for (size_t i = 0; !rc && i < f->n; i++) {
		if (f->v[i].has_store)
			rc = orbax_store_open(s->place, f->v[i].top, s->w, &stores[i], e);
		with_arrays += !rc && (!stores[i] || stores[i]->n_arrays > 0);
		s->n += !rc && stores[i] ? stores[i]->n_arrays : 0;
	}
	for (size_t i = 0; !rc && i < f->n; i++) {
		size_t len = strlen(f->v[i].top);
		struct item x = { .s = s, .about = &f->v[i], .prefix = ORBAX_NAME_INIT };
		struct zarr_dir dir;

		zarr_dir_init(&dir, s->place, f->v[i].top, s->w);
		x.store = stores[i] ? &stores[i]->s : &dir.s;
		if (with_arrays > 1 && len)
			rc = orbax_name_add(&x.prefix, f->v[i].top, len - 1, false, e);
		if (!rc)
			rc = scan_item(&x, e);
		orbax_tree_release(&x.tree);
		orbax_name_release(&x.prefix);
		pk_strings_free(x.arrays);
	}
	for (size_t i = 0; stores && i < f->n; i++)
		orbax_store_free(stores[i]);
	return rc;
}

/* ---- the checkpoint ---- */

static int scan_flax(struct scanning *s, const struct name_list *files, bool has_index,
		     struct ckpt_err *e)
{
	struct orbax_name none CLEANUP(orbax_name_release) = ORBAX_NAME_INIT;
	struct orbax_tree tree = { .arena = ARENA_INIT((size_t)256 << 20) };
	int rc = has_index ? orbax_read_index(s->place, &tree, e) : 0;

	for (size_t i = 0; !rc && i < files->n; i++)
		rc = orbax_flax_read(s->place, files->v[i], &none, &tree, NULL, NULL, s->w,
				     &s->total, e);
	if (!rc && has_index)
		rc = orbax_tell_absent(&tree, files, s->w, e);
	orbax_tree_release(&tree);
	return rc;
}

/* The index depends on small files by their contents, on others and on directories by their
 * times. */
static int note_files(struct scanning *s, const struct name_list *files, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < files->n; i++) {
		const char *slash = strrchr(files->v[i], '/'),
			   *base = slash ? slash + 1 : files->v[i];
		struct place_seen seen;

		rc = place_find(s->place, files->v[i], &seen, e);
		if (!rc && seen.kind == PLACE_FILE && !is_flax_name(base))
			rc = small_file_fingerprint(s->place, files->v[i], s->w, NULL, e);
		else if (!rc)
			rc = catalog_add_metadata(s->w, files->v[i], &seen, NULL, e);
	}
	return rc;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct orbax_found f CLEANUP(orbax_found_release) = { 0 };
	struct scanning s = { .place = place, .opts = opts, .w = w };
	struct place_seen seen;
	int rc = 0;

	/* A file that was named, or a directory that has nothing else. */
	if (files->n == 1 && is_flax_name(files->v[0]) &&
	    place_look(place, files->v[0], &seen, e) > 0 && seen.kind == PLACE_FILE &&
	    strcmp(files->v[0], "checkpoint") != 0)
		return scan_flax(&s, files, false, e);
	rc = orbax_find(place, &f, e);
	if (!rc)
		rc = err_set(e, EAGAIN, "it changed while it was read; is a save going on?");
	if (rc > 0)
		rc = note_files(&s, files, e);
	if (!rc)
		rc = f.n ? scan_items(&s, &f, e) : scan_flax(&s, &f.msgpack, f.has_index, e);
	return rc;
}

const struct format format_orbax = { .name = "orbax", .probe = probe, .scan = scan };
