/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warm command: brings what a path shows into the page cache.
 *
 * It reads the parts of source files that the path consists of, file by file and front to back,
 * however the view cuts and orders them; in a mount, it also reads the view's own pages, which are
 * made of those. If the kernel caches no pages of a file, or if a whole mount is requested (whose
 * directories show the same bytes many times), it reads only the sources.
 *
 * Of a checkpoint in an object store it brings the parts into the cache of what was fetched, which
 * all processes of the user share.
 *
 * It finds these parts by opening the checkpoint again with the options that the mount reports. If
 * it cannot, because the checkpoint belongs to another user, it reads everything through the mount.
 */
#include "cmd/cmd.h"
#include "cmd/options.h"
#include "cmd/warm.h"
#include "mount/live.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	DEFAULT_JOBS = 4,
	STORE_JOBS = 16,    /* more of them wait, and none for a disk */
	SMALL = 128 * 1024, /* bytes; files up to this size are always read */
};

/* A checkpoint, and the mount that shows it. */
struct place {
	struct ckpt *ckpt; /* NULL: it cannot be opened */
	char *root;	   /* where it is mounted; NULL: it is not mounted */
	struct jdoc stats; /* what the mount reports; this and the next are borrowed by ckpt */
	struct options options;
};

struct job {
	bool opened; /* a checkpoint that is not mounted */
	bool stored; /* one in an object store */
	bool part;   /* include and exclude leave some of the place out */
	const struct options *o;
	struct place place;
	struct warm source, view;
	bool whole;	     /* the sources are those of entire checkpoints */
	struct ckpt_err err; /* the first part that could not be read */
};

/* ---- files of a mount ---- */

/* Is it worth reading a file so that its own pages are cached? Not if the kernel caches none of
 * them, which is determined by reading a little. */
static bool is_kept(const char *path, uint64_t size)
{
	autoclose int fd =
		size > SMALL ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
	char byte;

	return fd < 0 || pread(fd, &byte, 1, 0) != 1 || io_is_cached(fd, 0, 1) != 0;
}

static int add_found(struct job *j, const FTSENT *f, struct ckpt_err *e)
{
	struct warm_part part = { .path = f->fts_path };

	if (f->fts_info == FTS_DNR || f->fts_info == FTS_ERR || f->fts_info == FTS_NS)
		return err_sys(e, f->fts_errno, "'%s'", f->fts_path);
	part.len = f->fts_info == FTS_F ? (uint64_t)f->fts_statp->st_size : 0;
	return warm_add(&j->view, &part, e);
}

/* Adds all files below a path whose sources are unknown. */
static int add_through(struct job *j, char *path, struct ckpt_err *e)
{
	char *const paths[] = { path, NULL };
	FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	int rc = tree ? 0 : err_sys(e, errno, "'%s'", path);
	FTSENT *f;

	while (!rc && (errno = 0, f = fts_read(tree)))
		rc = add_found(j, f, e);
	if (!rc && errno)
		rc = err_sys(e, errno, "'%s'", path);
	if (tree)
		(void)fts_close(tree);
	return rc;
}

/* ---- parts of source files, and the files made of them ---- */

static void note(struct job *j, const struct ckpt_err *e)
{
	if (!j->err.code)
		j->err = *e;
}

struct adder {
	struct job *job;
	struct ckpt_err *e;
};

static int add_source(void *arg, const struct ckpt_source *s)
{
	const struct adder *a = arg;

	return warm_add(&a->job->source, &(struct warm_part){ s->path, s->off, s->len, NULL, 0 },
			a->e);
}

static int add_node(struct job *j, ckpt_node node, const char *path, struct ckpt_err *e);

/* The directories that show everything in a checkpoint once. */
static const char *const all_of_it[] = { "tensors", "objects" };

static bool is_of_all(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(all_of_it); i++)
		if (!strcmp(name, all_of_it[i]))
			return true;
	return false;
}

/* once: only those that show everything once. */
static int add_entries(struct job *j, ckpt_node dir, const char *path, bool once,
		       struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	ckpt_node node;
	int rc = ckpt_enter(j->place.ckpt, dir, e);

	for (uint64_t pos = 0; !rc && !ckpt_next(j->place.ckpt, dir, &pos, name, &node);) {
		autofree char *below = NULL;

		/* .ckptfs/ is about the mount. */
		if (once ? !is_of_all(name) : dir == CKPT_ROOT && !strcmp(name, ".ckptfs"))
			continue;
		below = path ? text_format("%s/%s", path, name) : NULL;
		if (path && !below)
			return err_sys(e, ENOMEM, "'%s'", path);
		rc = add_node(j, node, below, e);
	}
	return rc;
}

/* Adds a file whose sources are those from number `first` on; it is read when the first of them
 * is. */
static int add_view(struct job *j, ckpt_node node, const char *path, size_t first,
		    struct ckpt_err *e)
{
	const struct warm_part *at = first < j->source.n ? &j->source.v[first] : NULL;
	struct warm_part part = { .path = path };
	struct ckpt_stat st;
	int rc = ckpt_stat(j->place.ckpt, node, &st, e);

	if (rc || !is_kept(path, st.size))
		return rc;
	part.len = st.size;
	part.after = at ? at->path : NULL;
	part.after_off = at ? at->off : 0;
	return warm_add(&j->view, &part, e);
}

static int find_source(void *arg, const struct ckpt_source *s)
{
	(void)s;
	*(bool *)arg = true;
	return 1; /* one is enough */
}

static bool leaves_out(const struct options *o)
{
	return options_get(o, "include") || options_get(o, "exclude");
}

/* The sources of the root of a checkpoint are all of them, even of what is left out. */
static int add_part(struct job *j, ckpt_node dir, const char *path, struct ckpt_err *e)
{
	bool root = false;
	int rc = ckpt_sources(j->place.ckpt, dir, find_source, &root, e);

	return rc < 0 ? rc : add_entries(j, dir, root ? NULL : path, root, e);
}

/* path: where it is mounted, or NULL. Links are skipped: their targets are in the tree anyway. */
static int add_node(struct job *j, ckpt_node node, const char *path, struct ckpt_err *e)
{
	struct adder a = { j, e };
	size_t before = j->source.n;
	struct ckpt_stat st;
	int rc = ckpt_type(j->place.ckpt, node, &st, e);

	if (rc || st.is_link)
		return rc;
	if (st.is_dir && j->part)
		return add_part(j, node, path, e);
	rc = ckpt_sources(j->place.ckpt, node, add_source, &a, e);
	if (rc && rc != -ENOMEM && !st.is_dir) { /* the other files can still be read */
		note(j, e);
		return 0;
	}
	if (rc)
		return rc;
	if (!st.is_dir)
		return path ? add_view(j, node, path, before, e) : 0;
	/* The root of a checkpoint has all its sources. */
	return j->source.n == before ? add_entries(j, node, path, false, e) : 0;
}

/* ---- a mount ---- */

static void leave(struct place *p)
{
	ckpt_close(p->ckpt);
	options_release(&p->options);
	jdoc_release(&p->stats);
	free(p->root);
	*p = (struct place){ 0 };
}

static const char *text_of(const struct place *p, const char *key)
{
	const char *s = jval_str(jval_get(jdoc_root(&p->stats), key));

	return s ? s : "";
}

static int parse_options(struct place *p, struct ckpt_err *e)
{
	struct jiter list = jiter(jval_get(jdoc_root(&p->stats), "options"));

	for (size_t i = 0; jiter_next(&list); i++) {
		const char *s = jval_str(list.v);

		if (!s || options_parse_word(&p->options, WORDS_OPEN, s, e))
			return err_set(e, EINVAL, "option number %zu of the mount", i);
	}
	return 0;
}

static void say_nothing(void *arg, const char *what)
{
	(void)arg;
	(void)what;
}

static int open_there(struct place *p, struct ckpt_err *e)
{
	const struct cmd_how how = { CMD_WORDS("runs", "allow_missing"), say_nothing };
	struct ckpt_totals t;

	if (parse_options(p, e))
		return -e->code;
	if (*text_of(p, "index") && options_put(&p->options, "index", text_of(p, "index"), e))
		return -e->code;
	p->options.quiet = true;
	if (cmd_open(text_of(p, "checkpoint"), &p->options, &how, &p->ckpt, e))
		return -e->code;
	ckpt_totals(p->ckpt, &t);
	if (!strcmp(t.identity, text_of(p, "identity")))
		return 0;
	ckpt_close(p->ckpt);
	p->ckpt = NULL;
	return err_set(e, ESTALE, "the checkpoint is not what was mounted");
}

/* Opens the checkpoint as the mount has opened it; relative paths start from the directory in which
 * the mount was started. */
static int open_again(struct place *p, struct ckpt_err *e)
{
	autoclose int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int rc;

	if (here < 0 || chdir(text_of(p, "directory")))
		return err_sys(e, errno, "chdir to '%s'", text_of(p, "directory"));
	rc = open_there(p, e);
	if (fchdir(here))
		return err_sys(e, errno, "chdir back");
	return rc;
}

/* Enters the mount at root; takes ownership of root. 1: it is not a mount of this program. */
static int enter(struct job *j, char *root, struct ckpt_err *e)
{
	struct place *p = &j->place;
	struct ckpt_err why = { 0 };
	int rc;

	if (p->root && !strcmp(p->root, root)) {
		free(root);
		return 0;
	}
	leave(p);
	p->root = root;
	rc = live_load(root, &p->stats, e);
	if (rc)
		return rc == -ENOENT || rc == -ENOTDIR ? 1 : rc;
	if (open_again(p, &why))
		(void)fprintf(stderr, "ckptfs: warning: warm: read through the mount alone: %s\n",
			      why.msg);
	return 0;
}

/* Adds everything in a checkpoint once, without knowing its sources. */
static int add_all_through(struct job *j, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(all_of_it); i++) {
		autofree char *dir = NULL;

		dir = text_format("%s/%s", j->place.root, all_of_it[i]);
		if (!dir)
			return err_sys(e, ENOMEM, "'%s'", j->place.root);
		rc = add_through(j, dir, e);
	}
	return rc;
}

/* path is absolute and in the mount. */
static int add_mounted(struct job *j, char *path, struct ckpt_err *e)
{
	const char *inside = path + strlen(j->place.root);
	ckpt_node node;

	if (!j->place.ckpt)
		return *inside ? add_through(j, path, e) : add_all_through(j, e);
	if (ckpt_walk(j->place.ckpt, inside, &node, e))
		return -e->code;
	j->part = leaves_out(&j->place.options);
	return add_node(j, node, path, e);
}

/* ---- a checkpoint that is not mounted ---- */

/* Splits CKPT[/PATH] into the part that exists and the rest. */
static void split(char *path, const char **ret_rest)
{
	static const char none[] = "";
	struct stat st;
	char *cut = NULL;

	*ret_rest = none;
	while (stat(path, &st) && (errno == ENOENT || errno == ENOTDIR)) {
		char *slash = strrchr(path, '/');

		if (cut)
			*cut = '/';
		if (!slash || slash == path) {
			*ret_rest = none;
			return;
		}
		*slash = 0;
		cut = slash;
		*ret_rest = slash + 1;
	}
}

static int add_unmounted(struct job *j, const char *path, const char *rest, struct ckpt_err *e)
{
	const struct cmd_how how = { CMD_WORDS("runs", "allow_missing"), NULL };
	ckpt_node node;

	j->opened = true;
	j->part = leaves_out(j->o);
	leave(&j->place);
	if (cmd_open(path, j->o, &how, &j->place.ckpt, e) ||
	    cmd_refuse_nothing(j->place.ckpt, j->o, e) || ckpt_walk(j->place.ckpt, rest, &node, e))
		return -e->code;
	return add_node(j, node, NULL, e);
}

static void print_part(const struct warm *w, const char *what)
{
	char size[16];

	(void)printf("%s of %zu %s%s", text_size(w->bytes, size), w->files, what, text_s(w->files));
}

static void print_speed(uint64_t read, uint64_t ns, const char *how)
{
	double seconds = (double)ns / 1e9;
	char size[16], rate[16];

	(void)printf(": %s %s in %.2f s", text_size(read, size), how, seconds);
	if (read && ns)
		(void)printf(" (%s/s)", text_size((uint64_t)((double)read / seconds), rate));
}

/* ---- a checkpoint in an object store ---- */

/* How much of an address leads to the checkpoint is known only when it has been opened. */
static int open_address(struct job *j, char *address, const char **ret_rest, struct ckpt_err *e)
{
	static const char none[] = "";
	const struct cmd_how how = { CMD_WORDS("allow_missing"), NULL };
	char *start = strstr(address, "://") + 3, *cut = NULL;
	struct ckpt_err why;
	int rc;

	*ret_rest = none;
	while ((rc = cmd_open(address, j->o, &how, &j->place.ckpt, cut ? &why : e)) == -ENOENT ||
	       rc == -ENOTSUP || rc == -ENOTDIR) {
		char *slash = strrchr(start, '/');

		if (cut)
			*cut = '/';
		if (!slash || slash == start)
			break;
		*slash = 0;
		cut = slash;
		*ret_rest = slash + 1;
	}
	return rc ? -e->code : 0;
}

/* What is fetched and not kept is fetched in vain. */
static int refuse_no_cache(const struct options *o, struct ckpt_err *e)
{
	const char *dir = options_get(o, "cache_dir");

	if (!dir || strcmp(dir, "none") != 0)
		return 0;
	return err_set(
		e, EINVAL,
		"with 'cache_dir=none' nothing that is fetched is kept when the command ends");
}

static void warn_of_cache(const struct job *j, uint64_t bytes)
{
	struct ckpt_network n;
	char want[16], size[16];

	if (ckpt_network(j->place.ckpt, &n) && n.cache_size && bytes > n.cache_size)
		(void)fprintf(
			stderr,
			"ckptfs: warning: warm: there are %s to fetch, but the cache keeps only "
			"%s: some of it will be evicted again (option cache_size)\n",
			text_size(bytes, want), text_size(n.cache_size, size));
}

static void warn_of_loss(const struct job *j)
{
	struct ckpt_network n;

	if (ckpt_network(j->place.ckpt, &n) && *n.cache_note)
		(void)fprintf(
			stderr,
			"ckptfs: warning: warm: not all of it is kept after the command: %s\n",
			n.cache_note);
}

static int add_stored(struct job *j, const char *arg, struct ckpt_err *e)
{
	size_t threads = j->o->jobs ? (size_t)j->o->jobs : STORE_JOBS;
	struct warm all CLEANUP(warm_release) = { 0 }, before = j->source;
	_Atomic uint64_t done = 0;
	autofree char *address = strdup(arg);
	uint64_t start = clock_ns();
	struct progress p;
	const char *rest;
	ckpt_node node;
	int rc;

	if (!address)
		return err_sys(e, ENOMEM, "'%s'", arg);
	j->opened = j->stored = true;
	j->part = leaves_out(j->o);
	leave(&j->place);
	if (refuse_no_cache(j->o, e))
		return -e->code;
	rc = open_address(j, address, &rest, e);
	if (!rc)
		rc = cmd_refuse_nothing(j->place.ckpt, j->o, e);
	if (!rc)
		rc = ckpt_walk(j->place.ckpt, rest, &node, e);
	j->source = all;
	if (!rc)
		rc = add_node(j, node, NULL, e);
	all = j->source;
	j->source = before;
	if (rc)
		return rc;
	warm_sort(&all);
	warn_of_cache(j, all.bytes);
	progress_start(&p, "warm", all.bytes, !j->o->quiet);
	rc = warm_run(&all, &(struct warm_how){ threads, &p, &done, j->place.ckpt }, e);
	progress_end(&p);
	(void)printf("warm: ");
	print_part(&all, "file");
	print_speed(all.read, clock_ns() - start, "here");
	(void)printf("\n");
	warn_of_loss(j);
	return rc;
}

/* ---- all of it ---- */

static int add_arg(struct job *j, const char *arg, struct ckpt_err *e)
{
	autofree char *there = strdup(arg), *path = NULL;
	const char *rest = "";
	char shown[200], *root;
	int rc;

	if (text_is_address(arg))
		return add_stored(j, arg, e);
	if (!there)
		return err_sys(e, ENOMEM, "'%s'", arg);
	split(there, &rest);
	path = realpath(there, NULL);
	if (!path)
		return err_sys(e, errno, "'%s'",
			       strstr(arg, "://") ? text_show_address(arg, shown, sizeof(shown))
						  : arg);
	root = live_is_fuse(path) ? live_root(path) : NULL;
	rc = root ? enter(j, root, e) : 1;
	if (rc < 0)
		return rc;
	if (rc)
		return add_unmounted(j, there, rest, e);
	return *rest ? err_sys(e, ENOENT, "'%s'", arg) : add_mounted(j, path, e);
}

static void warn_of_memory(uint64_t bytes)
{
	uint64_t have = warm_memory();
	char want[16], size[16];

	if (have && bytes > have)
		(void)fprintf(stderr,
			      "ckptfs: warning: warm: there are %s to read, but only %s of free "
			      "memory: the kernel will drop some of it\n",
			      text_size(bytes, want), text_size(have, size));
}

static void print_sum(const struct job *j, uint64_t ns)
{
	char size[16];

	(void)printf("warm: ");
	print_part(&j->source, "source file");
	if (j->view.files) {
		(void)printf(", ");
		print_part(&j->view, "file");
		(void)printf(" in the mount");
	}
	print_speed(j->source.read + j->view.read, ns, "read");
	if (j->source.there + j->view.there)
		(void)printf(", %s were already cached",
			     text_size(j->source.there + j->view.there, size));
	(void)printf("\n");
}

struct side {
	struct warm *w;
	const struct warm_how *how;
	struct ckpt_err err;
};

static void *run_side(void *arg)
{
	struct side *s = arg;

	(void)warm_run(s->w, s->how, &s->err);
	return NULL;
}

/*
 * Reads sources and view at the same time and in the same order, so that the device and the CPU are
 * both busy. The sources get ahead, because producing the view takes longer; if they do not, the
 * view reads them.
 */
static void bring_in(struct job *j, size_t threads)
{
	_Atomic uint64_t done = 0;
	struct progress p;
	const struct warm_how how = { threads, &p, &done, NULL };
	struct side source = { .w = &j->source, .how = &how },
		    view = { .w = &j->view, .how = &how };
	uint64_t start = clock_ns();
	pthread_t thread;
	bool apart;

	progress_start(&p, "warm", j->source.bytes + j->view.bytes, !j->o->quiet);
	apart = !pthread_create(&thread, NULL, run_side, &source);
	if (!apart)
		(void)run_side(&source);
	(void)run_side(&view);
	if (apart)
		(void)pthread_join(thread, NULL);
	progress_end(&p);
	if (source.err.code)
		note(j, &source.err);
	if (view.err.code)
		note(j, &view.err);
	print_sum(j, clock_ns() - start);
}

static void job_release(struct job *j)
{
	leave(&j->place);
	warm_release(&j->source);
	warm_release(&j->view);
}

static int warm_main(const struct options *o)
{
	struct job j CLEANUP(job_release) = { .o = o };
	size_t threads = o->jobs ? (size_t)o->jobs : DEFAULT_JOBS;
	struct ckpt_err e = { 0 };
	int rc = 0;

	if (threads > WARM_MAX_THREADS)
		rc = cmd_too_many("jobs", o->jobs, WARM_MAX_THREADS, &e);
	for (size_t i = 0; !rc && i < o->n_args; i++)
		rc = add_arg(&j, o->args[i], &e);
	if (!rc && o->open && !j.opened)
		rc = err_set(&e, EINVAL,
			     "option '%.*s' is for a checkpoint that is not mounted; a mount has "
			     "its own",
			     (int)strcspn(o->open[0], "="), o->open[0]);
	leave(&j.place); /* frees its memory for the page cache */
	if (!rc && !(j.stored && !j.source.n && !j.view.n)) {
		warm_sort(&j.source);
		warm_sort(&j.view);
		warn_of_memory(j.source.bytes + j.view.bytes);
		bring_in(&j, threads);
	}
	if (!rc)
		e = j.err;
	if (e.code) {
		(void)err_wrap(&e, "warm");
		return cmd_fail(&e);
	}
	return cmd_finish(STATUS_DONE);
}

const struct command command_warm = {
	.name = "warm",
	.usage = "PATH...",
	.complete = "f",
	.summary = "Read files of a mount or a checkpoint into the page cache",
	.examples = "  $ ckptfs warm mnt/hf\n"
		    "  $ ckptfs warm run/step-1000/hf\n",
	.details = "PATH is a file or directory of a mount; or CKPT or CKPT/PATH, which need not "
		   "be mounted, and\n"
		   "to which the options apply. CKPT may be an address; see ckptfs-remote(7). "
		   "Reads data files in\n"
		   "the order in which they are stored, then the files of the mount if the kernel "
		   "caches them; of\n"
		   "a whole checkpoint, only the data files.\n",
	.words = WORDS_TREE | WORDS_QUIET | WORDS_CONFINED | WORDS_WARM,
	.min_args = 1,
	.max_args = SIZE_MAX,
	.checkpoints = 1,
	.run = warm_main,
};
