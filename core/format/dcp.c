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
#include "format/dcp_records.h"
#include "format/format.h"
#include "format/metafile.h"
#include "parse/pickle.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* N of "__N.metadata", whatever directory it is in, or -1. */
static long rank_of(const char *name)
{
	const char *slash = strrchr(name, '/');
	char *end;
	long r;

	name = slash ? slash + 1 : name;
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

static int probe(int dirfd, const char *file, struct name_list *files, struct ckpt_err *e)
{
	CLEANUP(close_dirp) DIR *dir = NULL;
	bool interrupted = false;
	const struct dirent *d;
	struct stat st;
	int fd, rc;

	if (file) /* it takes a directory */
		return 0;
	rc = io_look(dirfd, ".metadata", &st, e);
	if (rc > 0 && name_list_add(files, ".metadata", e))
		return -e->code;
	if (rc)
		return rc;
	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !(dir = fdopendir(fd))) {
		int code = errno;

		if (fd >= 0)
			(void)close(fd);
		return err_sys(e, code, "list the directory");
	}
	while ((rc = io_next_entry(dir, &d, e)) > 0) {
		size_t n = strlen(d->d_name);

		if (rank_of(d->d_name) >= 0 && name_list_add(files, d->d_name, e))
			return -e->code;
		interrupted |= !strcmp(d->d_name, ".metadata.tmp") ||
			       (n > 7 && !strcmp(d->d_name + n - 7, ".distcp"));
	}
	if (rc)
		return rc;
	name_list_sort(files);
	if (files->n)
		return 1;
	if (interrupted)
		return err_set(e, ENOENT,
			       ".metadata is missing although data files are there: the save was "
			       "interrupted");
	return 0;
}

struct reading {
	struct dcp_records *r;
	struct catalog_writer *w;
	uint32_t rank;
};

static int parse(void *arg, const struct pickle_input *in, struct ckpt_err *e)
{
	struct reading *x = arg;

	return dcp_read_metadata(x->r, x->rank, in, x->w, e);
}

int dcp_scan(int dirfd, char *const *names, size_t n, const struct scan_opts *opts,
	     struct catalog_writer *w, struct ckpt_err *e)
{
	const char *slash = strrchr(names[0], '/');
	const struct dcp_join_opts join = { .many = n > 1 || rank_of(names[0]) >= 0,
					    .dir = names[0],
					    .dir_len = slash ? (size_t)(slash + 1 - names[0]) : 0 };
	struct metafiles m = { 0 };
	struct dcp_records r;
	int rc = dcp_records_init(&r, e);

	if (!rc)
		rc = metafiles_init(&m, dirfd, opts, e);
	for (size_t i = 0; !rc && i < n; i++)
		metafiles_expect(&m, names[i]);
	for (size_t i = 0; !rc && i < n; i++) {
		long rank = rank_of(names[i]);
		struct reading x = { &r, w, rank < 0 ? 0 : (uint32_t)rank };

		rc = metafiles_read(&m, names[i], parse, &x, w, e);
	}
	if (!rc)
		rc = dcp_join(&r, &join, w, e);
	metafiles_release(&m);
	dcp_records_release(&r);
	return rc;
}

static int scan(int dirfd, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	return dcp_scan(dirfd, files->v, files->n, opts, w, e);
}

const struct format format_dcp = { .name = "dcp", .probe = probe, .scan = scan };
