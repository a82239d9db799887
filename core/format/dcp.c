/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch Distributed Checkpoint (torch.distributed.checkpoint), torch 1.13 to 2.14.
 *
 *	CKPT/.metadata           one pickle: which chunks exist, which bytes hold each
 *	CKPT/__{rank}_{n}.distcp items packed end to end; the names carry no meaning
 *	CKPT/__{rank}.metadata   instead of .metadata: rank-local saves (use_collectives=False)
 *
 * .metadata is written last and renamed into place, so without it a save was interrupted
 * (torch/distributed/checkpoint/filesystem.py, _FileSystemWriter.finish).
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_build.h"
#include "format/dcp_records.h"
#include "format/format.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* N of "__N.metadata", or -1. */
static long rank_of(const char *name)
{
	char *end;
	long r;

	if (strncmp(name, "__", 2) != 0 || name[2] < '0' || name[2] > '9')
		return -1;
	errno = 0;
	r = strtol(name + 2, &end, 10);
	return !errno && r < INT32_MAX && !strcmp(end, ".metadata") ? r : -1;
}

static void close_dirp(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

static int probe(int dirfd, const char *file, struct name_list *files, struct err *e)
{
	CLEANUP(close_dirp) DIR *dir = NULL;
	bool interrupted = false;
	const struct dirent *d;
	int fd;

	if (file) /* it takes a directory */
		return 0;
	if (!faccessat(dirfd, ".metadata", F_OK, 0)) {
		int rc = name_list_add(files, ".metadata", e);

		return rc ? rc : 1;
	}
	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !(dir = fdopendir(fd))) {
		int code = errno;

		if (fd >= 0)
			(void)close(fd);
		return err_sys(e, code, "list the directory");
	}
	while ((d = readdir(dir))) {
		size_t n = strlen(d->d_name);

		if (rank_of(d->d_name) >= 0) {
			int rc = name_list_add(files, d->d_name, e);

			if (rc)
				return rc;
		}
		interrupted |= !strcmp(d->d_name, ".metadata.tmp") ||
			       (n > 7 && !strcmp(d->d_name + n - 7, ".distcp"));
	}
	name_list_sort(files);
	if (files->n)
		return 1;
	if (interrupted)
		return err_set(e, ENOENT,
			       ".metadata is missing although data files are there: the save was "
			       "interrupted");
	return 0;
}

struct metadata_file {
	int fd;
	const char *name;
	XXH3_state_t *hash;
	uint64_t hashed; /* bytes; the second pass must not count twice */
	uint64_t size, before, total;
	const struct scan_opts *opts;
};

static int64_t read_file(void *arg, uint64_t off, void *buf, size_t cap, struct err *e)
{
	struct metadata_file *f = arg;
	int64_t n = io_pread_some(f->fd, buf, cap, off);

	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", f->name);
	if (off == f->hashed) {
		(void)XXH3_128bits_update(f->hash, buf, (size_t)n);
		f->hashed += (uint64_t)n;
	}
	if (f->opts->progress) /* two passes: the first is a third of the work */
		f->opts->progress(
			f->opts->progress_arg,
			f->before + (f->hashed < f->size ? off / 3 : f->size / 3 + off * 2 / 3),
			f->total);
	return n;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       io_mtime_ns(a) == io_mtime_ns(b);
}

static int scan_file(int dirfd, const char *name, struct dcp_records *r, struct metadata_file *f,
		     struct catalog_writer *w, struct err *e)
{
	struct pickle_input in = { .read = read_file, .arg = f };
	struct stat before, after;
	autoclose int fd = io_open_beneath(dirfd, name, &before, e);
	long rank = rank_of(name);
	XXH128_hash_t h;
	char rest[4096];
	int64_t n;
	int rc;

	if (fd < 0)
		return fd;
	if (!before.st_size)
		return err_set(e, ERR_CORRUPT, "'%s' is empty", name);
	f->fd = fd;
	f->name = name;
	f->hashed = 0;
	f->size = (uint64_t)before.st_size;
	(void)XXH3_128bits_reset(f->hash);
	rc = dcp_read_metadata(r, rank < 0 ? 0 : (uint32_t)rank, &in, w, e);
	if (rc)
		return err_wrap(e, "read '%s'", name);
	do { /* what lies behind the pickle belongs to the fingerprint all the same */
		n = read_file(f, f->hashed, rest, sizeof(rest), e);
		if (n < 0)
			return (int)n;
	} while (n);
	if (fstat(fd, &after) || !same_file(&before, &after))
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	f->before += f->size;
	h = XXH3_128bits_digest(f->hash);
	return catalog_add_metadata(w, name, &before, (const uint64_t[2]){ h.low64, h.high64 }, e);
}

static int scan(int dirfd, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct err *e)
{
	struct metadata_file f = { .opts = opts, .hash = XXH3_createState() };
	struct dcp_records r;
	int rc = dcp_records_init(&r, e);

	if (!rc && !f.hash)
		rc = err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; !rc && i < files->n; i++) {
		struct stat st;

		if (!fstatat(dirfd, files->v[i], &st, 0))
			f.total += (uint64_t)st.st_size;
	}
	for (size_t i = 0; !rc && i < files->n; i++)
		rc = scan_file(dirfd, files->v[i], &r, &f, w, e);
	if (!rc)
		rc = dcp_join(&r, files->n > 1 || rank_of(files->v[0]) >= 0, w, e);
	dcp_records_release(&r);
	XXH3_freeState(f.hash);
	return rc;
}

const struct format format_dcp = { .name = "dcp", .probe = probe, .scan = scan };
