/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors, as Hugging Face libraries and torch's HuggingFaceStorageWriter leave them:
 *
 *	x.safetensors                one file, which may also be given by itself
 *	x.safetensors y.safetensors  several, whose tensors add up; of x-00001-of-00003.safetensors
 *				     there have to be all three
 *	x.safetensors.index.json     says which file holds which tensor; others are not read
 *	shard-N-x.safetensors        pieces of tensors, see st_pieces.h
 *
 * Only headers are read: every tensor is a run of elements in its file. An index may also be given
 * by itself; that is how to choose if a directory has several and none has the usual name.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "format/format.h"
#include "format/neighbours.h"
#include "format/part_names.h"
#include "format/safetensors/st_pieces.h"
#include "format/small_file.h"
#include "format/st_index.h"
#include "index/catalog_build.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

static const char suffix[] = ".safetensors", index_infix[] = ".safetensors.index.";
static const char usual_index[] = "model.safetensors.index.json",
		  usual_file[] = "model.safetensors";

enum { MAX_LOOKED = 100000 }; /* files that an index names and no listing shows */

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);

	return n > k && !strcmp(s + n - k, end);
}

static bool is_tensors(const char *name)
{
	return *name != '.' && !strchr(name, '/') && ends_with(name, suffix);
}

/* "model.safetensors.index.json", and diffusers' "model.safetensors.index.fp16.json". */
static bool is_index(const char *name)
{
	return *name != '.' && strstr(name, index_infix) && ends_with(name, ".json");
}

/* ---- the index ---- */

/* The index of a directory that has these, or NULL. */
static int choose_index(const struct name_list *indexes, const char **ret, struct ckpt_err *e)
{
	*ret = indexes->n ? indexes->v[0] : NULL;
	for (size_t i = 0; i < indexes->n; i++)
		if (!strcmp(indexes->v[i], usual_index)) {
			*ret = indexes->v[i];
			return 0;
		}
	if (indexes->n > 1)
		return err_set(e, ENOTUNIQ,
			       "'%.100s' and '%.100s' are two models: name one of them instead of "
			       "the directory",
			       indexes->v[0], indexes->v[1]);
	return 0;
}

/* The file with the whole model of which the index describes another version, or NULL. */
static const char *whole_beside(const char *index, const struct name_list *files)
{
	size_t stem = (size_t)(strstr(index, index_infix) - index) + sizeof(suffix) - 1;

	for (size_t i = 0; i < files->n; i++)
		if (strlen(files->v[i]) == stem && !strncmp(files->v[i], index, stem))
			return files->v[i];
	return NULL;
}

static int refuse_two(const char *index, const struct st_index *x, const struct name_list *files,
		      struct ckpt_err *e)
{
	const char *whole = whole_beside(index, files);

	if (!whole || st_index_names_file(x, whole))
		return 0;
	return err_set(e, ENOTUNIQ,
		       "'%.100s' and '%.100s', which does not name it, are two models: name one of "
		       "them instead of the directory",
		       whole, index);
}

/*
 * A model that was saved in parts, and is saved again in one file: transformers removes the parts
 * and leaves their index, which it does not read. So an index that names only missing files is
 * ignored.
 */
static int forget_leftover(struct place *place, const struct name_list *files, const char **index,
			   struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct place_seen seen;
	int rc;

	if (!whole_beside(*index, files))
		return 0;
	rc = st_index_read(place, *index, &x, &seen, NULL, e);
	if (!rc && x.n_files > MAX_LOOKED)
		return 0;
	for (size_t i = 0; !rc && i < x.n_files; i++)
		rc = place_look(place, x.files[i], &seen, e);
	if (rc)
		return rc < 0 ? rc : 0;
	*index = NULL;
	return 0;
}

/* ---- shards without an index ---- */

/* Not HuggingFaceStorageWriter's "shard-00001-X-00002-of-00003.safetensors": a rank writes only
 * those that it has something for. */
static bool is_part(const char *name, struct part *ret)
{
	const char *s = name;
	uint32_t rank;

	if (text_take(&s, "shard-") && text_take_number(&s, 9, &rank) && *s == '-')
		return false;
	return part_parse(name, suffix, ret);
}

/* Without an index only names tell that a download stopped, or that shards of an earlier save are
 * left: then tensors would be missing, or old, unnoticed. */
static int check_parts(const struct name_list *files, struct ckpt_err *e)
{
	autofree struct part *v = calloc(files->n + 1, sizeof(*v));
	size_t n = 0;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < files->n; i++)
		n += is_part(files->v[i], &v[n]);
	return parts_check(v, n, e);
}

/* ---- recognising ---- */

/* Does the file begin like one? 1, 0 or an error. */
static int is_safetensors(struct place *place, const char *file, struct ckpt_err *e)
{
	uint8_t head[64];
	struct place_seen seen;
	int64_t n = small_file_begin(place, file, head, sizeof(head), &seen, e);
	uint64_t len;

	if (n < 10)
		return n < 0 ? (int)n : 0;
	len = load_le64(head);
	if (len > ST_MAX_HEADER || !range_ok(8, len, seen.size))
		return 0;
	for (int64_t i = 8; i < n; i++)
		if (!head[i] || !strchr(" \t\r\n", head[i]))
			return head[i] == '{';
	return 0;
}

struct listing {
	struct name_list *files, *indexes;
	bool any; /* something was listed */
};

static int add_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct listing *l = arg;

	(void)kind;
	l->any = true;
	return is_tensors(name) ? name_list_add(l->files, name, e)
	       : is_index(name) ? name_list_add(l->indexes, name, e)
				: 0;
}

/* A web server lists nothing. What a directory of one model has is asked for by name. */
static int add_usual(struct place *place, const struct listing *l, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc = place_look(place, usual_file, &seen, e);

	if (rc > 0)
		rc = name_list_add(l->files, usual_file, e);
	if (!rc)
		rc = place_look(place, usual_index, &seen, e);
	return rc > 0 ? name_list_add(l->indexes, usual_index, e) : rc;
}

static bool has_name(const struct name_list *l, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(l->v[i], name))
			return true;
	return false;
}

/* Adds the index, and the files it names that the directory listing does not include; all of them
 * if nothing was listed. */
static int add_index(struct place *place, const char *index, bool asked_for, bool listed,
		     struct name_list *files, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	size_t before = files->n; /* one at most, unless they were listed */
	struct place_seen seen;
	int rc = st_index_read(place, index, &x, &seen, NULL, e);

	if (!rc && !asked_for)
		rc = refuse_two(index, &x, files, e);
	if (!rc && !listed && x.n_files > MAX_LOOKED)
		rc = err_set(e, EFBIG, "'%.100s' names more than %d files", index, MAX_LOOKED);
	for (size_t i = 0; !rc && i < x.n_files; i++) {
		if (is_index(x.files[i]))
			rc = err_set(e, ERR_CORRUPT,
				     "'%.100s' names '%.100s', which is an index itself, as a file "
				     "of tensors",
				     index, x.files[i]);
		else if (!is_tensors(x.files[i]) ||
			 (!listed && !has_name(files, before, x.files[i])))
			rc = place_look(place, x.files[i], &seen, e);
		if (rc > 0)
			rc = name_list_add(files, x.files[i], e);
	}
	return rc ? rc : name_list_add(files, index, e);
}

/*
 * The key of the chunk index: the file, or all files of the directory, whether they turn out to be
 * read or not, and the index.
 */
static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	CLEANUP(name_list_release) struct name_list indexes = { 0 };
	struct listing l = { files, &indexes, false };
	const char *index = file;
	int rc;

	if (file && !is_index(file)) {
		rc = is_tensors(file) ? 1 : is_safetensors(place, file, e);
		if (rc <= 0)
			return rc;
		rc = name_list_add(files, file, e);
		return rc ? rc : 1;
	}
	rc = place_list(place, ".", add_file, &l, e);
	if (!rc && !l.any && !file)
		rc = add_usual(place, &l, e);
	name_list_sort(&indexes);
	if (!rc && !file)
		rc = choose_index(&indexes, &index, e);
	if (!rc && !file && index)
		rc = forget_leftover(place, files, &index, e);
	if (!rc && index)
		rc = add_index(place, index, file != NULL, l.any, files, e);
	else if (!rc)
		rc = check_parts(files, e);
	name_list_sort(files);
	return rc ? rc : files->n > 0;
}

/* ---- reading ---- */

CLEANUP_POINTER(free_header, struct st_header, st_free)

struct scan {
	struct place *place;
	const struct scan_opts *opts;
	uint64_t done, total; /* bytes of the files, for the progress bar */
	struct st_pieces pieces;
	struct catalog_writer *w;
	bool sharded; /* a file declares that it holds pieces */
};

/* pieces_only: skip a file that holds whole tensors. */
static int scan_file(struct scan *s, const char *name, bool pieces_only, struct ckpt_err *e)
{
	CLEANUP(free_header) struct st_header *h = NULL;
	struct source *file CLEANUP(source_freep) = NULL;
	struct blob b;
	int rc = place_file(s->place, name, &file, e);

	if (!rc)
		rc = catalog_add_metadata(s->w, name, &file->seen, NULL, e);
	if (rc)
		return rc;
	b = source_blob(file);
	/* A truncated file is found when its length is compared with where its tensors end; the
	 * tensors before that can then still be read. So the size is not given here. */
	b.size = BLOB_SIZE_UNKNOWN;
	rc = neighbour_explain(file, name, st_read(&b, &h, e), e);
	if (!rc && st_end(h) < file->seen.size)
		rc = err_set(e, ERR_CORRUPT, "%llu bytes after the last tensor",
			     (unsigned long long)(file->seen.size - st_end(h)));
	if (!rc && (!pieces_only || st_is_sharded(h))) {
		s->sharded |= st_is_sharded(h);
		rc = st_pieces_add(&s->pieces, name, h, e);
	}
	s->done += file->seen.size;
	if (s->opts->progress)
		s->opts->progress(s->opts->progress_arg, s->done, s->total);
	return rc ? err_wrap(e, "read '%s'", name) : 0;
}

/* A file that the index does not name. */
static int skip_file(struct scan *s, const char *name, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc = place_find(s->place, name, &seen, e);

	return rc ? rc : catalog_add_metadata(s->w, name, &seen, NULL, e);
}

static void count_files(struct scan *s, const struct name_list *files)
{
	struct place_seen seen;
	struct ckpt_err ignored;

	for (size_t i = 0; i < files->n; i++)
		if (place_look(s->place, files->v[i], &seen, &ignored) > 0)
			s->total += seen.size;
}

static int scan_files(struct scan *s, const struct name_list *files, const char *index,
		      const struct st_index *x, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < files->n; i++)
		if (!index || st_index_names_file(x, files->v[i]))
			rc = scan_file(s, files->v[i], false, e);
	/* An index names one file per tensor, but its pieces may be in more. */
	for (size_t i = 0; !rc && index && i < files->n; i++) {
		if (files->v[i] == index || st_index_names_file(x, files->v[i]))
			continue;
		rc = s->sharded ? scan_file(s, files->v[i], true, e) : skip_file(s, files->v[i], e);
	}
	return rc;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct scan s = { .place = place, .opts = opts, .w = w };
	const char *index = NULL;
	struct place_seen seen;
	struct digest hash;
	int rc = 0;

	count_files(&s, files);
	for (size_t i = 0; i < files->n; i++)
		index = is_index(files->v[i]) ? files->v[i] : index;
	if (index)
		rc = st_index_read(place, index, &x, &seen, &hash, e);
	if (!rc && index)
		rc = catalog_add_metadata(w, index, &seen, &hash, e);
	if (!rc)
		rc = scan_files(&s, files, index, &x, e);
	if (!rc)
		rc = st_pieces_join(&s.pieces, index ? &x : NULL, index, w, e);
	st_pieces_release(&s.pieces);
	return rc;
}

const struct format format_safetensors = { .name = "safetensors", .probe = probe, .scan = scan };
