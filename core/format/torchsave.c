/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save: *.pt, *.pth, *.bin, *.ckpt, known by what is in them. One of them, or a
 * directory of transformers:
 *
 *	DIR/pytorch_model.bin                all of the model, or
 *	DIR/pytorch_model.bin.index.json     {"weight_map": {FQN: name of a file}}, and the files
 *
 * The ZIP directory and the pickles are read, not the storages: what a scan costs depends on the
 * number of tensors, not on their size. The files are data, so they are not hashed.
 */
#include "format/torchsave.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_build.h"
#include "format/format.h"
#include "parse/json_text.h"

#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

static const char whole_name[] = "pytorch_model.bin";
static const char index_name[] = "pytorch_model.bin.index.json";

enum { MAX_INDEX = 256 << 20, MAX_SHARDS = 100000 };

struct data_file {
	int fd;
	const char *name;
};

static int64_t read_file(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct data_file *f = arg;
	int64_t n = io_pread_some(f->fd, buf, len, off);

	return n < 0 ? err_sys(e, (int)-n, "read") : n;
}

/* ---- the index of a directory ---- */

static int read_text(int dirfd, struct buf *ret, struct stat *st, struct ckpt_err *e)
{
	autoclose int fd = io_open_beneath(dirfd, index_name, st, e);
	char *to;
	int rc;

	if (fd < 0)
		return fd;
	to = st->st_size <= MAX_INDEX ? buf_room(ret, (size_t)st->st_size) : NULL;
	if (!to)
		return err_set(e, EFBIG, "'%s' has %lld bytes", index_name, (long long)st->st_size);
	rc = io_pread(fd, to, (size_t)st->st_size, 0);
	if (rc)
		return err_sys(e, -rc, "read '%s'", index_name);
	ret->len = (size_t)st->st_size;
	return 0;
}

/* *ret: the weight_map, whose values are names of files. With a writer: what it was read from. */
static int read_index(int dirfd, struct catalog_writer *w, json_t **ret, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(MAX_INDEX);
	json_t *j CLEANUP(json_decrefp) = NULL, *map, *file;
	struct stat st;
	json_error_t why;
	XXH128_hash_t h;
	const char *fqn;
	int rc = read_text(dirfd, &text, &st, e);

	if (rc)
		return rc;
	j = json_text_load(text.data, text.len, 0, &why);
	if (!j)
		return err_set(e, json_text_code(&why, ERR_CORRUPT), "'%s': %.100s in line %d",
			       index_name, why.text, why.line);
	map = json_object_get(j, "weight_map");
	if (!json_object_size(map))
		return err_set(e, ERR_CORRUPT, "'%s' has no weight_map", index_name);
	json_object_foreach (map, fqn, file)
		if (!json_is_string(file))
			return err_set(e, ERR_CORRUPT, "'%s': '%.100s' has no file", index_name,
				       fqn);
	h = XXH3_128bits(text.data, text.len);
	if (w)
		rc = catalog_add_metadata(w, index_name, &st,
					  (const uint64_t[2]){ h.low64, h.high64 }, e);
	if (!rc)
		*ret = json_incref(map);
	return rc;
}

/* The index, then the files that it names, once each. */
static int list_shards(int dirfd, struct name_list *files, struct ckpt_err *e)
{
	json_t *map CLEANUP(json_decrefp) = NULL, *seen CLEANUP(json_decrefp) = json_object(),
		    *file;
	const char *fqn;
	int rc = seen ? read_index(dirfd, NULL, &map, e) : err_set(e, ENOMEM, "out of memory");

	json_object_foreach (map, fqn, file) {
		const char *name = json_string_value(file);

		if (rc || json_object_get(seen, name))
			continue;
		if (files->n == MAX_SHARDS)
			return err_set(e, EFBIG, "'%s' names more than %d files", index_name,
				       MAX_SHARDS);
		if (json_object_set_new(seen, name, json_true()))
			rc = err_set(e, ENOMEM, "out of memory");
		if (!rc)
			rc = name_list_add(files, name, e);
	}
	name_list_sort(files);
	return rc ? rc : name_list_add(files, index_name, e);
}

/* ---- probe ---- */

static int probe_file(int dirfd, const char *name, struct ckpt_err *e)
{
	enum torchsave_kind kind;
	struct stat st = { 0 };
	autoclose int fd = io_open_beneath(dirfd, name, &st, e);
	struct data_file f = { fd, name };
	const struct blob b = { read_file, &f, (uint64_t)st.st_size };
	int rc;

	if (fd < 0)
		return fd;
	rc = torchsave_kind(&b, &kind, e);
	return rc ? err_wrap(e, "'%.100s'", name) : kind != TORCHSAVE_NONE;
}

static int probe(int dirfd, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct stat st;
	int rc;

	rc = file ? 0 : io_look(dirfd, index_name, &st, e);
	if (rc > 0 && list_shards(dirfd, files, e))
		return -e->code;
	if (rc)
		return rc;
	rc = file ? 1 : io_look(dirfd, whole_name, &st, e);
	if (rc <= 0)
		return rc;
	file = file ? file : whole_name;
	rc = probe_file(dirfd, file, e);
	if (rc == 1 && name_list_add(files, file, e))
		return -e->code;
	return rc;
}

/* ---- scan ---- */

static int scan_file(int dirfd, const char *name, json_t *expected, struct catalog_writer *w,
		     struct ckpt_err *e)
{
	struct stat before = { 0 }, after;
	autoclose int fd = io_open_beneath(dirfd, name, &before, e);
	struct data_file f = { fd, name };
	const struct blob b = { read_file, &f, (uint64_t)before.st_size };
	struct torchsave t = { 0 };
	int rc;

	if (fd < 0)
		return expected && fd == -ENOENT
			       ? err_set(e, ENOENT, "'%.100s', which '%s' names, is missing", name,
					 index_name)
			       : fd;
	rc = torchsave_open(&t, &b, e);
	if (!rc)
		rc = torchsave_report(&t, name, expected, w, e);
	torchsave_release(&t);
	if (rc)
		return err_wrap(e, "read '%.100s'", name);
	if (fstat(fd, &after) || after.st_size != before.st_size ||
	    io_mtime_ns(&after) != io_mtime_ns(&before))
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	return catalog_add_metadata(w, name, &before, NULL, e);
}

static int scan(int dirfd, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	json_t *expected CLEANUP(json_decrefp) = NULL, *file;
	bool indexed = files->n && !strcmp(files->v[files->n - 1], index_name);
	const char *fqn;
	int rc = indexed ? read_index(dirfd, w, &expected, e) : 0;

	for (size_t i = 0; !rc && i < files->n - indexed; i++) {
		rc = scan_file(dirfd, files->v[i], expected, w, e);
		if (opts->progress)
			opts->progress(opts->progress_arg, i + 1, files->n);
	}
	if (rc)
		return rc;
	json_object_foreach (expected, fqn, file)
		return err_set(e, ERR_CORRUPT, "'%.100s' has no tensor '%.100s', which '%s' names",
			       json_string_value(file), fqn, index_name);
	return 0;
}

const struct format format_torchsave = { .name = "torch.save", .probe = probe, .scan = scan };
