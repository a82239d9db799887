/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/export_far.h"

#include "cmd/export_list.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/crew.h"
#include "base/err.h"
#include "base/progress.h"
#include "base/text.h"
#include <ckptfs/ckpt_upload.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct run {
	const struct export_job *job;
	struct export_list list;
	struct ckpt_upload *upload;
	struct progress progress;
	_Atomic uint64_t read;
	pthread_mutex_t lock;
	size_t file;	   /* the file that the next part belongs to */
	unsigned part;	   /* from 1 */
	struct ckpt_err e; /* the first one */
};

struct worker {
	struct run *x;
	size_t file; /* that src is open on; SIZE_MAX: none */
	struct ckpt_file *src;
};

/* The path of file i below DEST, which the caller frees, and its node in the tree. */
static int path_of(const struct run *x, size_t i, char **ret, ckpt_node *ret_node,
		   struct ckpt_err *e)
{
	const struct export_file *f = &x->list.files[i];
	const char *dir = f->dir == EXPORT_TOP ? "" : x->list.dirs[f->dir].path;
	char name[CKPT_NAME_MAX + 1] = "";

	*ret_node = x->list.node;
	if (f->dir != EXPORT_TOP &&
	    ckpt_entry(x->job->c, x->list.dirs[f->dir].node, f->pos, name, ret_node))
		return err_set(e, ENOENT, "the tree has changed");
	*ret = text_format("%s%s%s", dir, *dir ? "/" : "", name);
	if (!*ret)
		return err_sys(e, ENOMEM, "name of a file");
	return 0;
}

/* Reads [off, off + n) of the open file. */
static int read_file(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	struct worker *w = arg;
	struct run *x = w->x;
	char *at = to;

	while (n) {
		int64_t k = ckpt_file_read(w->src, at, n, off, e);

		if (!k)
			k = err_set(e, EIO, "ends at byte %llu", (unsigned long long)off);
		if (k < 0)
			return (int)k;
		at += k;
		off += (uint64_t)k;
		n -= (size_t)k;
		progress_set(&x->progress, atomic_fetch_add(&x->read, (uint64_t)k) + (uint64_t)k);
	}
	return 0;
}

static int use_file(struct worker *w, size_t i, ckpt_node node, struct ckpt_err *e)
{
	int rc;

	if (w->file == i)
		return 0;
	ckpt_file_close(w->src);
	w->src = NULL;
	w->file = SIZE_MAX;
	rc = ckpt_file_open(w->x->job->c, node, &w->src, e);
	if (rc)
		return rc;
	if (ckpt_file_size(w->src) != w->x->list.files[i].size)
		return err_set(e, EIO, "its size has changed");
	w->file = i;
	return 0;
}

static int copy_part(struct worker *w, size_t i, unsigned part, struct ckpt_err *e)
{
	autofree char *path = NULL;
	ckpt_node node;
	int rc = path_of(w->x, i, &path, &node, e);

	if (!rc)
		rc = use_file(w, i, node, e);
	if (!rc)
		rc = ckpt_upload_part(w->x->upload, (uint32_t)i, path, w->x->list.files[i].size,
				      part, read_file, w, e);
	return rc ? err_wrap(e, "'%s'", path && *path ? path : w->x->job->dest) : 0;
}

/* The next part; false: there is none, or a worker has failed. */
static bool next_part(struct run *x, size_t *ret_file, unsigned *ret_part)
{
	SCOPED_LOCK(&x->lock);
	uint64_t size, each;

	if (x->e.code || x->file == x->list.n_files)
		return false;
	size = x->list.files[x->file].size;
	each = ckpt_upload_part_size(size);
	*ret_file = x->file;
	*ret_part = x->part++;
	if (*ret_part * each >= size) {
		x->file++;
		x->part = 1;
	}
	return true;
}

static void *work(void *arg)
{
	struct worker w = { .x = arg, .file = SIZE_MAX };
	struct ckpt_err e = { 0 };
	unsigned part;
	size_t file;

	while (!e.code && next_part(w.x, &file, &part))
		(void)copy_part(&w, file, part, &e);
	ckpt_file_close(w.src);
	if (e.code) {
		SCOPED_LOCK(&w.x->lock);
		if (!w.x->e.code)
			w.x->e = e;
	}
	return NULL;
}

static int copy_all(struct run *x, struct ckpt_err *e)
{
	progress_start(&x->progress, "export", x->list.bytes, !x->job->quiet);
	crew_run(x->job->threads, work, x);
	progress_end(&x->progress);
	if (x->e.code)
		*e = x->e;
	return x->e.code ? -e->code : 0;
}

/* The file by which readers find a checkpoint. */
static bool leads_to_it(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	return !strcmp(name, ".metadata") || !strcmp(name, "zarr.json") ||
	       text_glob("*.index.json", name, strlen(name));
}

/* Names the files that come last; without any, the first does. */
static int name_last(const struct run *x, struct ckpt_err *e)
{
	bool any = false;
	int rc = 0;

	for (size_t i = 0; !rc && i <= x->list.n_files; i++) {
		autofree char *path = NULL;
		bool end = i == x->list.n_files;
		ckpt_node node;

		if (end && (any || !i))
			break;
		rc = path_of(x, end ? 0 : i, &path, &node, e);
		if (rc || (!end && !leads_to_it(path)))
			continue;
		any = true;
		rc = ckpt_upload_last(x->upload, path, e);
	}
	return rc;
}

static void count_links(const struct run *x)
{
	char what[128];
	size_t n = 0;

	for (size_t i = 0; i < x->list.n_dirs; i++)
		n += x->list.dirs[i].target != NULL;
	if (!n || !x->job->say)
		return;
	(void)snprintf(what, sizeof(what), "%zu link%s left out: an object store has none", n,
		       n == 1 ? " is" : "s are");
	x->job->say(x->job->say_arg, what);
}

static void release(struct run *x)
{
	export_list_release(&x->list);
	(void)pthread_mutex_destroy(&x->lock);
}

int export_far(const struct export_job *job, const char *const opts[], struct ckpt_err *e)
{
	struct run x CLEANUP(release) = { .job = job, .part = 1 };
	char left[900];
	int rc;

	(void)pthread_mutex_init(&x.lock, NULL);
	rc = export_list_make(job->c, &job->what, &x.list, e);
	if (!rc)
		rc = ckpt_upload_begin(job->dest, !job->what.is_dir, opts, &x.upload, e);
	if (rc)
		return rc;
	count_links(&x);
	if (job->begun)
		job->begun();
	rc = copy_all(&x, e);
	if (!rc)
		rc = name_last(&x, e);
	if (!rc)
		rc = ckpt_upload_commit(x.upload, e);
	ckpt_upload_end(x.upload, left, sizeof(left));
	if (*left && rc && job->say)
		job->say(job->say_arg, left);
	return rc ? err_wrap(e, "'%s'", job->dest) : 0;
}
