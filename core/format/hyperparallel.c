/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HyperParallel checkpoints (hyper_parallel.core.checkpoint, March 2026; later
 * hyper_parallel.core.distributed_checkpoint), for PyTorch and for MindSpore.
 *
 *	CKPT/.metadata              one pickle, as DCP's (dcp_metadata.c); written last, in place
 *	CKPT/.rank{N}_metadata      instead: rank-local saves, first generation; {N}.metadata later;
 *	                            .metadata_rank{N} is what its comments say
 *	CKPT/_rank{N}_.safetensors  a rank's tensors by name (hyperparallel_file.c)
 *	CKPT/{fqn}_rank{N}.bytes    one object, first generation
 *	CKPT/_rank{N}_.bytes        a rank's objects end to end, later
 *
 * The metadata says which file has a chunk, and under which name; where its bytes are only the file
 * knows. So these are opened when the index is built, and part of what it is made from.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "catalog/catalog_build.h"
#include "format/dcp_records.h"
#include "format/format.h"
#include "format/hyperparallel_resolve.h"
#include "format/metafile.h"
#include "parse/pickle.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static const char global_name[] = ".metadata";

/* ---- names ---- */

static bool ends_with(const char *name, const char *tail)
{
	size_t n = strlen(name), m = strlen(tail);

	return n >= m && !strcmp(name + n - m, tail);
}

/* N of HEAD N TAIL, or -1. */
static long number_in(const char *name, const char *head, const char *tail)
{
	size_t n = strlen(head);
	char *end;
	long r;

	if (strncmp(name, head, n) != 0 || name[n] < '0' || name[n] > '9')
		return -1;
	errno = 0;
	r = strtol(name + n, &end, 10);
	return !errno && r < INT32_MAX && !strcmp(end, tail) ? r : -1;
}

/* The rank whose metadata a file of that name is, or -1. */
static long rank_of(const char *name)
{
	long r = number_in(name, ".rank", "_metadata");

	if (r < 0)
		r = number_in(name, "", ".metadata");
	return r < 0 ? number_in(name, ".metadata_rank", "") : r;
}

/* ---- probe ---- */

static void close_dirp(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

/* Is "hyper_parallel" one of the module's names? The package may be inside another. */
static bool is_our_module(const char *module, size_t len)
{
	static const char ours[] = "hyper_parallel";

	while (len) {
		const char *dot = memchr(module, '.', len);
		size_t n = dot ? (size_t)(dot - module) : len;

		if (n == sizeof(ours) - 1 && !memcmp(module, ours, n))
			return true;
		module += dot ? n + 1 : n;
		len -= dot ? n + 1 : n;
	}
	return false;
}

/* PyTorch's DCP has a file of that name too: the class of what is in it tells. */
static int is_our_metadata(int dirfd, struct ckpt_err *e)
{
	uint8_t head[1024];
	struct stat st;
	struct ckpt_err ignored;
	autoclose int fd = io_open_beneath(dirfd, global_name, &st, &ignored);
	const char *module;
	int64_t n;
	size_t len;

	if (fd < 0)
		return 0;
	n = io_pread_some(fd, head, sizeof(head), 0);
	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", global_name);
	module = pickle_first_module(head, (size_t)n, &len);
	return module && is_our_module(module, len);
}

struct seen {
	bool global; /* there is a .metadata, and it is ours */
	bool metadata, container;
};

static int add_file(int dirfd, const char *name, struct seen *s, struct name_list *files,
		    struct ckpt_err *e)
{
	bool metadata = s->global ? !strcmp(name, global_name) : rank_of(name) >= 0;
	struct stat st;
	int rc;

	/* Objects' bytes are looked into only where several ranks may have the same. */
	if (!metadata && !ends_with(name, ".safetensors") &&
	    (s->global || !ends_with(name, ".bytes")))
		return 0;
	rc = io_look(dirfd, name, &st, e);
	if (rc <= 0 || !S_ISREG(st.st_mode))
		return rc < 0 ? rc : 0;
	s->metadata |= metadata;
	s->container |= number_in(name, "_rank", "_.safetensors") >= 0;
	return name_list_add(files, name, e);
}

static int probe(int dirfd, const char *file, struct name_list *files, struct ckpt_err *e)
{
	CLEANUP(close_dirp) DIR *dir = NULL;
	struct seen s = { 0 };
	const struct dirent *d;
	struct stat st;
	int fd, rc;

	if (file) /* it takes a directory */
		return 0;
	rc = io_look(dirfd, global_name, &st, e);
	s.global = rc > 0;
	if (s.global)
		rc = is_our_metadata(dirfd, e);
	if (rc < 0 || (s.global && !rc))
		return rc;
	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !(dir = fdopendir(fd))) {
		int code = errno;

		if (fd >= 0)
			(void)close(fd);
		return err_sys(e, code, "list the directory");
	}
	while ((rc = io_next_entry(dir, &d, e)) > 0)
		if (add_file(dirfd, d->d_name, &s, files, e))
			return -e->code;
	if (rc)
		return rc;
	name_list_sort(files);
	if (!s.metadata && s.container)
		return err_set(e, ENOENT,
			       ".metadata is missing although _rankN_.safetensors files are there: "
			       "the save was interrupted");
	return s.metadata;
}

/* ---- scan ---- */

struct ckpt_data {
	const char *name;
	uint32_t rank;
};

static int by_rank(const void *ap, const void *bp)
{
	const struct ckpt_data *a = ap, *b = bp;

	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* The metadata files in rank order; `*ret_many` if they are of ranks. Free *ret. */
static int list_metadata(const struct name_list *files, struct ckpt_data **ret, size_t *ret_n,
			 bool *ret_many, struct ckpt_err *e)
{
	autofree struct ckpt_data *v = calloc(files->n + 1, sizeof(*v));
	bool global = false;
	size_t n = 0;

	if (!v)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < files->n; i++)
		global |= !strcmp(files->v[i], global_name);
	for (size_t i = 0; i < files->n; i++) {
		long rank = rank_of(files->v[i]);

		if (global ? !strcmp(files->v[i], global_name) : rank >= 0)
			v[n++] = (struct ckpt_data){ files->v[i], global ? 0 : (uint32_t)rank };
	}
	qsort(v, n, sizeof(*v), by_rank);
	for (size_t i = 1; i < n; i++)
		if (v[i].rank == v[i - 1].rank)
			return err_set(e, ERR_CORRUPT,
				       "'%.100s' and '%.100s' are both rank %u's: two saves in one "
				       "directory",
				       v[i - 1].name, v[i].name, v[i].rank);
	*ret_many = !global;
	*ret_n = n;
	*ret = steal_ptr(&v);
	return 0;
}

/* Their contents are not hashed. Noted before they are opened: a change meanwhile shows later. */
static int note_data_files(int dirfd, const struct name_list *files, bool many,
			   struct catalog_writer *w, struct ckpt_err *e)
{
	for (size_t i = 0; i < files->n; i++) {
		const char *name = files->v[i];
		struct stat st;
		int rc;

		if (many ? rank_of(name) >= 0 : !strcmp(name, global_name))
			continue;
		if (fstatat(dirfd, name, &st, 0))
			return err_sys(e, errno, "stat '%s'", name);
		rc = catalog_add_metadata(w, name, &st, NULL, e);
		if (rc)
			return rc;
	}
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

static int read_metadata(int dirfd, const struct ckpt_data *v, size_t n,
			 const struct scan_opts *opts, struct dcp_records *r,
			 struct catalog_writer *w, struct ckpt_err *e)
{
	struct metafiles m;
	int rc = metafiles_init(&m, dirfd, opts, e);

	for (size_t i = 0; !rc && i < n; i++)
		metafiles_expect(&m, v[i].name);
	for (size_t i = 0; !rc && i < n; i++) {
		struct reading x = { r, w, v[i].rank };

		rc = metafiles_read(&m, v[i].name, parse, &x, w, e);
	}
	metafiles_release(&m);
	return rc;
}

static int scan(int dirfd, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct hp_directory d = { dirfd, files };
	struct dcp_join_opts join = { .same_object = hp_same_object, .arg = &d };
	autofree struct ckpt_data *metadata = NULL;
	struct dcp_records r = { 0 };
	size_t n = 0;
	int rc = list_metadata(files, &metadata, &n, &join.many, e);

	if (!rc)
		rc = note_data_files(dirfd, files, join.many, w, e);
	if (!rc)
		rc = dcp_records_init(&r, e);
	r.dialect = DCP_HYPERPARALLEL;
	if (!rc)
		rc = read_metadata(dirfd, metadata, n, opts, &r, w, e);
	if (!rc)
		rc = hp_resolve(&d, &r, w, e);
	if (!rc)
		rc = dcp_join(&r, &join, w, e);
	dcp_records_release(&r);
	return rc;
}

const struct format format_hyperparallel = { .name = "hyperparallel",
					     .probe = probe,
					     .scan = scan };
