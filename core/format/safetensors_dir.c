/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors, as Hugging Face libraries and torch's HuggingFaceStorageWriter leave them:
 *
 *	x.safetensors                one file, which may also be given by itself
 *	x.safetensors y.safetensors  several, whose tensors add up
 *	x.safetensors.index.json     says which file holds which tensor; others are not read
 *	shard-N-x.safetensors        pieces of tensors, see st_pieces.h
 *
 * Only headers are read: every tensor is a run of elements in its file. An index may also be given
 * by itself; where a directory has several, and none has the usual name, that is how to choose.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_build.h"
#include "format/format.h"
#include "format/st_index.h"
#include "format/st_pieces.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define MAX_INDEX ((uint64_t)256 << 20) /* bytes of an index: some million tensors */

static const char suffix[] = ".safetensors", index_infix[] = ".safetensors.index.";
static const char usual_index[] = "model.safetensors.index.json";

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

/* *ret_hash (if not NULL): XXH3-128, for catalog_add_metadata. */
static int read_index(int dirfd, const char *name, struct st_index *ret, struct stat *st,
		      uint64_t ret_hash[2], struct ckpt_err *e)
{
	autoclose int fd = io_open_beneath(dirfd, name, st, e);
	autofree char *text = NULL;
	XXH128_hash_t h;
	size_t n;
	int rc;

	if (fd < 0)
		return fd;
	if ((uint64_t)st->st_size > MAX_INDEX)
		return err_set(e, EFBIG, "'%s' has %llu bytes, more than an index can have", name,
			       (unsigned long long)st->st_size);
	n = (size_t)st->st_size;
	text = malloc(n + 1);
	if (!text)
		return err_set(e, ENOMEM, "out of memory");
	rc = io_pread(fd, text, n, 0);
	if (rc)
		return err_sys(e, -rc, "read '%s'", name);
	if (ret_hash) {
		h = XXH3_128bits(text, n);
		ret_hash[0] = h.low64;
		ret_hash[1] = h.high64;
	}
	rc = st_index_parse(text, n, ret, e);
	return rc ? err_wrap(e, "read '%s'", name) : 0;
}

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
			       "'%.100s' and '%.100s' are two models: give one of them instead of "
			       "the directory",
			       indexes->v[0], indexes->v[1]);
	return 0;
}

/* Is there a file that has the whole model beside the index of another version of it? */
static int refuse_two(const char *index, const struct st_index *x, const struct name_list *files,
		      struct ckpt_err *e)
{
	size_t stem = (size_t)(strstr(index, index_infix) - index) + sizeof(suffix) - 1;

	for (size_t i = 0; i < files->n; i++)
		if (strlen(files->v[i]) == stem && !strncmp(files->v[i], index, stem) &&
		    !st_index_names_file(x, files->v[i]))
			return err_set(e, ENOTUNIQ,
				       "'%.100s' and '%.100s', which does not name it, are two "
				       "models: give one of them instead of the directory",
				       files->v[i], index);
	return 0;
}

/* ---- recognising ---- */

/* Does the file begin like one? Not an error when it cannot be read: other formats may. */
static bool is_safetensors(int dirfd, const char *file)
{
	uint8_t head[64];
	struct stat st;
	struct ckpt_err ignored;
	autoclose int fd = io_open_beneath(dirfd, file, &st, &ignored);
	int64_t n = fd < 0 ? -1 : io_pread_some(fd, head, sizeof(head), 0);
	uint64_t len;

	if (n < 10)
		return false;
	len = load_le64(head);
	if (len > ST_MAX_HEADER || !range_ok(8, len, (uint64_t)st.st_size))
		return false;
	for (int64_t i = 8; i < n; i++)
		if (!head[i] || !strchr(" \t\r\n", head[i]))
			return head[i] == '{';
	return false;
}

static void close_dirp(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

static int list(int dirfd, struct name_list *files, struct name_list *indexes, struct ckpt_err *e)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
	CLEANUP(close_dirp) DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *d;

	if (!dir) {
		int code = errno;

		if (fd >= 0)
			(void)close(fd);
		return err_sys(e, code, "list the directory");
	}
	while (!rc && (rc = io_next_entry(dir, &d, e)) > 0)
		rc = is_tensors(d->d_name) ? name_list_add(files, d->d_name, e)
		     : is_index(d->d_name) ? name_list_add(indexes, d->d_name, e)
					   : 0;
	name_list_sort(indexes);
	return rc;
}

/* The index, and the files that it names elsewhere than where all are listed. */
static int add_index(int dirfd, const char *index, bool asked_for, struct name_list *files,
		     struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct stat st;
	int rc = read_index(dirfd, index, &x, &st, NULL, e);

	if (!rc && !asked_for)
		rc = refuse_two(index, &x, files, e);
	for (size_t i = 0; !rc && i < x.n_files; i++) {
		if (is_index(x.files[i]))
			rc = err_set(e, ERR_CORRUPT, "'%.100s' names '%.100s' as a file of tensors",
				     index, x.files[i]);
		else if (!is_tensors(x.files[i]))
			rc = io_look(dirfd, x.files[i], &st, e);
		if (rc > 0)
			rc = name_list_add(files, x.files[i], e);
	}
	return rc ? rc : name_list_add(files, index, e);
}

/*
 * What the chunk index is keyed by: the file, or all files of the directory, whether they turn out
 * to be read or not, and the index.
 */
static int probe(int dirfd, const char *file, struct name_list *files, struct ckpt_err *e)
{
	CLEANUP(name_list_release) struct name_list indexes = { 0 };
	const char *index = file;
	int rc;

	if (file && !is_index(file)) {
		if (!is_tensors(file) && !is_safetensors(dirfd, file))
			return 0;
		rc = name_list_add(files, file, e);
		return rc ? rc : 1;
	}
	rc = list(dirfd, files, &indexes, e);
	if (!rc && !file)
		rc = choose_index(&indexes, &index, e);
	if (!rc && index)
		rc = add_index(dirfd, index, file != NULL, files, e);
	name_list_sort(files);
	return rc ? rc : files->n > 0;
}

/* ---- reading ---- */

struct data_file {
	int fd;
	const char *name;
};

static int64_t read_data(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct data_file *f = arg;
	int64_t n = io_pread_some(f->fd, buf, len, off);

	return n < 0 ? err_sys(e, (int)-n, "%zu bytes at %llu", len, (unsigned long long)off) : n;
}

static void free_header(struct st_header **h)
{
	st_free(*h);
}

struct scan {
	int dirfd;
	const struct scan_opts *opts;
	uint64_t done, total; /* bytes of the files, for the bar */
	struct st_pieces pieces;
	struct catalog_writer *w;
	bool sharded; /* a file says that it holds pieces */
};

/* pieces_only: a file that holds whole tensors is not wanted. */
static int scan_file(struct scan *s, const char *name, bool pieces_only, struct ckpt_err *e)
{
	CLEANUP(free_header) struct st_header *h = NULL;
	struct stat st;
	autoclose int fd = io_open_beneath(s->dirfd, name, &st, e);
	struct data_file f = { .fd = fd, .name = name };
	/* A file that was cut is found when its length is compared with where its tensors end; those
	 * of the others can be read then. So the size is not told. */
	struct blob b = { .read = read_data, .arg = &f, .size = BLOB_SIZE_UNKNOWN };
	int rc = fd < 0 ? fd : catalog_add_metadata(s->w, name, &st, NULL, e);

	if (rc)
		return rc;
	rc = st_read(&b, &h, e);
	if (!rc && st_end(h) < (uint64_t)st.st_size)
		rc = err_set(e, ERR_CORRUPT, "%llu bytes behind the last tensor",
			     (unsigned long long)((uint64_t)st.st_size - st_end(h)));
	if (!rc && (!pieces_only || st_is_sharded(h))) {
		s->sharded |= st_is_sharded(h);
		rc = st_pieces_add(&s->pieces, name, h, e);
	}
	s->done += (uint64_t)st.st_size;
	if (s->opts->progress)
		s->opts->progress(s->opts->progress_arg, s->done, s->total);
	return rc ? err_wrap(e, "read '%s'", name) : 0;
}

/* A file that the index does not name. */
static int skip_file(struct scan *s, const char *name, struct ckpt_err *e)
{
	struct stat st;

	if (fstatat(s->dirfd, name, &st, 0))
		return err_sys(e, errno, "stat '%s'", name);
	return catalog_add_metadata(s->w, name, &st, NULL, e);
}

static void count_files(struct scan *s, const struct name_list *files)
{
	struct stat st;

	for (size_t i = 0; i < files->n; i++)
		if (!fstatat(s->dirfd, files->v[i], &st, 0))
			s->total += (uint64_t)st.st_size;
}

static int scan_files(struct scan *s, const struct name_list *files, const char *index,
		      const struct st_index *x, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < files->n; i++)
		if (!index || st_index_names_file(x, files->v[i]))
			rc = scan_file(s, files->v[i], false, e);
	/* An index names one file for a tensor, and its pieces may be in more. */
	for (size_t i = 0; !rc && index && i < files->n; i++) {
		if (files->v[i] == index || st_index_names_file(x, files->v[i]))
			continue;
		rc = s->sharded ? scan_file(s, files->v[i], true, e) : skip_file(s, files->v[i], e);
	}
	return rc;
}

static int scan(int dirfd, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	CLEANUP(st_index_release) struct st_index x = { 0 };
	struct scan s = { .dirfd = dirfd, .opts = opts, .w = w };
	const char *index = NULL;
	struct stat st;
	uint64_t hash[2];
	int rc = 0;

	count_files(&s, files);
	for (size_t i = 0; i < files->n; i++)
		index = is_index(files->v[i]) ? files->v[i] : index;
	if (index)
		rc = read_index(dirfd, index, &x, &st, hash, e);
	if (!rc && index)
		rc = catalog_add_metadata(w, index, &st, hash, e);
	if (!rc)
		rc = scan_files(&s, files, index, &x, e);
	if (!rc)
		rc = st_pieces_join(&s.pieces, index ? &x : NULL, index, w, e);
	st_pieces_release(&s.pieces);
	return rc;
}

const struct format format_safetensors = { .name = "safetensors", .probe = probe, .scan = scan };
