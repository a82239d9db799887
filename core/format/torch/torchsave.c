/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save: *.pt, *.pth, *.bin, *.ckpt, recognised by their contents. One of them, or a
 * directory of transformers:
 *
 *	DIR/pytorch_model.bin                all of the model, or
 *	DIR/model_weights.ckpt               the same, of NeMo 1, or
 *	DIR/pytorch_model.bin.index.json     {"weight_map": {FQN: name of a file}}, and the files; or,
 *	DIR/pytorch_model-00001-of-00003.bin without an index, all of them
 *
 * The ZIP directory and the pickles are read, not the storages: the cost of a scan depends on the
 * number of tensors, not on their size. The files are data, so they are not hashed.
 */
#include "format/torch/torchsave.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "format/format.h"
#include "format/neighbours.h"
#include "format/part_names.h"
#include "format/st_index.h"
#include "index/catalog_build.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

static const char *const whole_names[] = { "pytorch_model.bin", "model_weights.ckpt" };
static const char index_name[] = "pytorch_model.bin.index.json";

enum { MAX_SHARDS = 100000 };

/* Lists the index and the files that it names and that are there. */
static int list_shards(struct place *place, struct name_list *files, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct place_seen seen;
	int rc = st_index_read(place, index_name, &x, &seen, NULL, e);

	if (!rc && x.n_files > MAX_SHARDS)
		rc = err_set(e, EFBIG, "'%s' names more than %d files", index_name, MAX_SHARDS);
	for (size_t i = 0; !rc && i < x.n_files; i++) {
		rc = place_look(place, x.files[i], &seen, e);
		if (rc > 0)
			rc = name_list_add(files, x.files[i], e);
	}
	if (!rc && !files->n)
		rc = err_set(e, ENOENT, "'%.100s', which '%s' names, is missing%s", x.files[0],
			     index_name, x.n_files > 1 ? ", and so are all others" : "");
	name_list_sort(files);
	return rc ? rc : name_list_add(files, index_name, e);
}

/* Without an index, only names tell whether a download has stopped. */
static bool is_part(const char *name, struct part *ret)
{
	static const char stem[] = "pytorch_model-";

	return part_parse(name, ".bin", ret) && !strncmp(name, stem, strlen(stem)) &&
	       ret->stem == strlen(stem) - 1;
}

static int add_part(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct name_list *files = arg;
	struct part p;

	(void)kind;
	if (!is_part(name, &p))
		return 0;
	return files->n < MAX_SHARDS ? name_list_add(files, name, e)
				     : err_set(e, EFBIG, "more than %d parts", MAX_SHARDS);
}

static int list_parts(struct place *place, struct name_list *files, struct ckpt_err *e)
{
	int rc = place_list(place, ".", add_part, files, e);
	autofree struct part *v = NULL;

	if (rc || !files->n)
		return rc;
	v = calloc(files->n, sizeof(*v));
	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < files->n; i++)
		(void)is_part(files->v[i], &v[i]);
	rc = parts_check(v, files->n, e);
	name_list_sort(files);
	return rc ? rc : 1;
}

/* ---- probe ---- */

static int probe_file(struct place *place, const char *name, struct ckpt_err *e)
{
	enum torchsave_kind kind;
	struct source *file CLEANUP(source_freep) = NULL;
	struct blob b;
	int rc = place_file(place, name, &file, e);

	if (rc)
		return rc;
	b = source_blob(file);
	rc = torchsave_kind(&b, &kind, e);
	return rc ? err_wrap(e, "'%.100s'", name) : kind != TORCHSAVE_NONE;
}

/*
 * Does the index count, beside a model in one file? Not if all that it names is missing: a model
 * that was saved in parts, and is saved again in one file; transformers removes the parts and
 * leaves their index, which it does not read.
 */
static int index_counts(struct place *place, const char *whole, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct place_seen seen;
	int rc = st_index_read(place, index_name, &x, &seen, NULL, e), there = 0;

	if (!rc && st_index_names_file(&x, whole))
		return 1;
	for (size_t i = 0; !rc && !there && i < x.n_files && i < MAX_SHARDS; i++)
		there = place_look(place, x.files[i], &seen, e);
	if (rc || there <= 0)
		return rc ? rc : there;
	return err_set(
		e, ENOTUNIQ,
		"'%s' and '%s', which does not name it, are two models: name '%s' instead of "
		"the directory, or remove one of them",
		whole, index_name, whole);
}

static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc, indexed = file ? 0 : place_look(place, index_name, &seen, e);

	if (indexed < 0)
		return indexed;
	for (size_t i = 0; !file && i < ARRAY_LEN(whole_names); i++) {
		rc = place_look(place, whole_names[i], &seen, e);
		if (rc < 0)
			return rc;
		file = rc ? whole_names[i] : NULL;
	}
	if (indexed && file)
		indexed = index_counts(place, file, e);
	if (indexed < 0)
		return indexed;
	if (indexed) {
		rc = list_shards(place, files, e);
		return rc ? rc : 1;
	}
	if (!file)
		return list_parts(place, files, e);
	rc = probe_file(place, file, e);
	if (rc == 1 && name_list_add(files, file, e))
		return -e->code;
	return rc;
}

/* ---- scan ---- */

static int scan_file(struct place *place, const char *name, struct torchsave_expected *expected,
		     struct catalog_writer *w, struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	struct torchsave t = { 0 };
	struct blob b;
	int rc = place_file(place, name, &file, e);

	if (rc)
		return rc;
	b = source_blob(file);
	rc = neighbour_explain(file, name, torchsave_open(&t, &b, e), e);
	if (!rc)
		rc = torchsave_report(&t, name, expected, w, e);
	torchsave_release(&t);
	if (rc)
		return err_wrap(e, "read '%.100s'", name);
	if (!source_is_same(file))
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	return catalog_add_metadata(w, name, &file->seen, NULL, e);
}

static int read_index(struct place *place, struct st_index *ret, struct catalog_writer *w,
		      struct ckpt_err *e)
{
	struct place_seen seen;
	struct digest hash;
	int rc = st_index_read(place, index_name, ret, &seen, &hash, e);

	return rc ? rc : catalog_add_metadata(w, index_name, &seen, &hash, e);
}

/* Reports what the index places in another file than the one that has it. */
static int scan_again(struct place *place, struct torchsave_expected *x, struct catalog_writer *w,
		      struct ckpt_err *e)
{
	int rc = 0;

	x->again = true;
	for (size_t i = 0; !rc && i < x->index->n_entries; i++) {
		const struct st_index_entry *t = &x->index->entries[i];

		if (!t->found && t->in_several)
			rc = err_set(e, ERR_CORRUPT,
				     "'%.80s' has no tensor '%s', which '%s' names, but several "
				     "other files have it: correct the index",
				     t->file, FQN_TEXT(t->tensor, strlen(t->tensor)), index_name);
		else if (!t->found && t->instead)
			rc = scan_file(place, t->instead, x, w, e);
		if (!rc && t->instead && !t->found)
			rc = err_set(e, EAGAIN, "'%s' changed while it was read", t->instead);
	}
	return rc;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct torchsave_expected expected = { .index = &x };
	bool indexed = files->n && !strcmp(files->v[files->n - 1], index_name);
	const struct name_list data = { files->v, files->n - indexed, 0 };
	int rc = indexed ? read_index(place, &x, w, e) : 0;

	for (size_t i = 0; !rc && i < data.n; i++) {
		rc = scan_file(place, data.v[i], indexed ? &expected : NULL, w, e);
		if (opts->progress)
			opts->progress(opts->progress_arg, i + 1, files->n);
	}
	if (rc || !indexed)
		return rc;
	rc = scan_again(place, &expected, w, e);
	for (size_t i = 0; !rc && i < x.n_entries; i++)
		if (!x.entries[i].found)
			rc = st_index_add_absent(&x.entries[i],
						 name_list_has(&data, x.entries[i].file), w, e);
	return rc ? rc : st_index_tell(index_name, &expected.unnamed, &expected.elsewhere, w, e);
}

const struct format format_torchsave = { .name = "torch.save", .probe = probe, .scan = scan };
