/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/address.h"
#include "ckpt/run/run.h"
#include "ckpt/run/run_tree.h"
#include "index/catalog_query.h"
#include "source/place.h"
#include "tree/view.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ckpt *new_ckpt(struct ckpt_err *e)
{
	struct ckpt *c = calloc(1, sizeof(*c));
	struct engine *eng = calloc(1, sizeof(*eng));

	if (!c || !eng) {
		free(c);
		free(eng);
		(void)err_nomem(e);
		return NULL;
	}
	(void)sem_init(&eng->json_turn, 0, 1);
	c->engine = eng;
	c->tree = ckpt_tree(eng);
	eng->c = c;
	return c;
}

/* An address where nothing was found, as *e says, may be a name in a run. */
static int open_in_run(struct ckpt *c, const char *path, const struct ckpt_opts *o,
		       const struct place_options *how, struct ckpt_err *e)
{
	autofree char *address = NULL;
	struct ckpt_err why;
	int rc = address_in_run(path, o, &address, &why);

	if (!rc)
		rc = place_open(address, how, &c->place, &c->root, &c->file, &why);
	if (rc < 0)
		*e = why;
	return rc > 0 ? -e->code : rc;
}

typedef void value_fn(void *arg, const char *value);

/* The values of options that may name files, one or several. */
static void each_value(struct ckpt_opts o, value_fn *fn, void *arg)
{
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++) {
		const void *at = ckpt_opts_at(&o, x);
		const char *const *list = NULL;

		if (x->tree && x->form == CKPT_OPTION_LIST)
			list = *(const char *const *const *)at;
		for (; list && *list; list++)
			fn(arg, *list);
		if (x->tree && (x->form == CKPT_OPTION_FILE || x->form == CKPT_OPTION_TEXT) &&
		    *(const char *const *)at)
			fn(arg, *(const char *const *)at);
	}
}

static void look_for_address(void *arg, const char *value)
{
	if (strstr(value, "://"))
		*(bool *)arg = true;
}

/* Does an option name something at an address, perhaps among paths? */
static bool names_address(const struct ckpt_opts *o)
{
	bool found = false;

	each_value(*o, look_for_address, &found);
	return found;
}

static void expect_addresses(void *arg, const char *value)
{
	for (const char *p = value; (p = strstr(p, "://")); p += 3) {
		char address[4096];
		const char *from = p;

		while (from > value && isalnum((unsigned char)from[-1]))
			from--;
		(void)snprintf(address, sizeof(address), "%.*s", (int)strcspn(from, ",;"), from);
		place_expect(address, arg);
		if (text_file_path(from)) /* its path may have these characters */
			place_expect(from, arg);
	}
}

/* Everything works without a cache, only slowly. */
static void warn_of_cache(struct ckpt *c, const struct ckpt_opts *o)
{
	struct place_network n;
	bool is_remote = place_network(c->place, &n);

	if (o->warn && is_remote && *n.note)
		o->warn(o->warn_arg, n.note);
	else if (o->warn && o->cache_dir && strcmp(o->cache_dir, "none") != 0 && !is_remote &&
		 !names_address(o))
		o->warn(o->warn_arg,
			"cache_dir= has no effect on a path: to cache its bytes, open file://PATH");
}

/* o: NULL for a run, in which nothing else is looked for. */
static int open_root(struct ckpt *c, const char *path, const struct ckpt_opts *o,
		     const struct place_options *how, struct ckpt_err *e)
{
	autofree char *address = NULL;
	int rc = address_resolve(path, o, &address, e);

	if (!rc)
		rc = place_open(address, how, &c->place, &c->root, &c->file, e);
	if (rc == -ENOENT && o && place_is_remote(path))
		rc = open_in_run(c, path, o, how, e);
	if (rc)
		return rc;
	if (!c->file && format_is_unfinished(strrchr(c->root, '/') + 1))
		return err_set(e, ENOENT,
			       "its name is that of an Orbax save that has not finished: wait "
			       "until it has its final name, or use another step");
	c->dir = strdup(c->root);
	if (!c->dir)
		return err_nomem(e);
	if (c->file)
		c->dir[c->file - c->root > 1 ? c->file - c->root - 1 : 1] = 0;
	return 0;
}

/*
 * Switches c to its subdirectory `name`. Takes over `place`, which is that directory, in any case.
 */
static int go_into(struct ckpt *c, const char *name, struct place *place, struct ckpt_err *e)
{
	char *dir, *root;

	root = text_format("%s/%s", c->root, name);
	dir = root ? strdup(root) : NULL;
	if (!dir) {
		free(root);
		place_free(place);
		return err_nomem(e);
	}
	free(c->dir);
	free(c->root);
	place_free(c->place);
	c->dir = dir;
	c->root = root;
	c->place = place;
	return 0;
}

/* A repository in the cache of the Hugging Face Hub is treated as the run of its snapshots. */
static int enter_versions(struct ckpt *c, struct ckpt_err *e)
{
	autofree char *path = NULL, *root = NULL;
	struct place *place = NULL;
	struct place_seen seen;
	struct ckpt_err ignored;
	const char *file;

	path = text_format("%s/snapshots", c->root);
	if (!path)
		return err_nomem(e);
	if (place_look_at(c->place, "snapshots", &seen, &ignored) <= 0 || seen.kind != PLACE_DIR ||
	    place_open(path, NULL, &place, &root, &file, &ignored))
		return 0;
	if (place_tip(place, NULL, 0) >= 0)
		return go_into(c, "snapshots", place, e);
	place_free(place);
	return 0;
}

/* Returns 1 if a known subdirectory is a checkpoint; runs treat their directories the same way. */
static int enter_inner(struct ckpt *c, struct ckpt_err *e)
{
	struct ckpt_err why;
	const char *name;

	for (size_t i = 0; (name = run_inner_dir(i)); i++) {
		struct place *place = NULL;
		int rc = place_sub(c->place, name, &place, &why);

		if (!rc)
			rc = format_probe(place, NULL, &c->engine->format, &c->engine->metadata,
					  &why);
		if (rc > 0)
			return go_into(c, name, place, e) ? -e->code : 1;
		name_list_release(&c->engine->metadata);
		place_free(place);
		if (err_if_external(rc, &why, e))
			return rc;
	}
	return 0;
}

/* ---- runs ---- */

int ckpt_open_run(const char *path, const struct ckpt_opts *given, struct ckpt **ret,
		  struct ckpt_err *e)
{
	const struct place_options how = ckpt_opts_place(given);
	/* What decides if a checkpoint can be opened, except allow_missing: which one is meant must
	 * not depend on the command, and many set it. */
	const struct ckpt_opts o = { .include = given->include,
				     .exclude = given->exclude,
				     .index = given->index ? ":memory:" : NULL };
	struct ckpt *c = new_ckpt(e);
	int rc = c ? open_root(c, path, NULL, &how, e) : -ENOMEM;

	if (!rc)
		rc = c->file ? 1
			     : format_probe(c->place, NULL, &c->engine->format,
					    &c->engine->metadata, e);
	if (rc == -ENOTUNIQ && c->engine->format == &format_gguf)
		rc = 0; /* as in open_any */
	if (rc > 0 && !c->file && c->engine->format->names_one &&
	    format_is_below(&c->engine->metadata))
		rc = 0;
	if (!rc)
		rc = enter_versions(c, e);
	if (!rc)
		rc = run_new(c->place, c->root, &o, &c->run, e);
	if (rc)
		ckpt_close(c);
	else
		*ret = c;
	return rc;
}

static int refuse_run(struct ckpt_run *r, struct ckpt_err *e)
{
	struct run_about one = { 0 };
	unsigned slot;

	if (run_newest(r, &slot))
		slot = 1;
	if (run_next(r, &slot, &one))
		return err_set(e, ENOENT, "it is a run without a complete checkpoint");
	return err_set(e, EISDIR, "it is a run with %zu checkpoint%s; name one, as in '%s/%s'",
		       r->n_complete, text_s(r->n_complete), r->root, one.name);
}

/* 1: it is not a run. */
static int open_shown_run(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct view_opts ignored;
	int rc = enter_versions(c, e);

	if (!rc)
		rc = run_new(c->place, c->root, o, &c->run, e);
	if (rc)
		return rc;
	if (!o->runs)
		return refuse_run(c->run, e);
	if (o->index && strcmp(o->index, ":memory:") != 0)
		return err_set(e, EINVAL,
			       "option 'index': each checkpoint of a run has an index of its own, "
			       "so only ':memory:' can be given");
	c->tree = run_tree(c->run);
	c->totals.format = "run";
	c->totals.index = c->totals.identity = c->totals.model_prefix = "";
	/* Report invalid options now; they apply to the run's checkpoints. */
	rc = engine_read_options(c->engine, o, &ignored, e);
	if (!rc && o->assets)
		rc = engine_find_assets(c->engine, o, e);
	if (!rc) { /* a step, and what options name, is opened later, perhaps after place_rest */
		struct place_options how = ckpt_opts_place(o);

		each_value(*o, expect_addresses, &how);
	}
	engine_free(c->engine);
	c->engine = NULL;
	return rc;
}

static int open_any(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e);

/* Weights are used as they are. That their sum is not 1 may be wanted, and may be a mistake. */
static void warn_of_weights(const struct average_plan *p, const struct ckpt_opts *o)
{
	double sum = 0;
	char what[200];

	for (size_t i = 0; i < p->n; i++)
		sum += p->v[i].weight;
	if (!o->warn || fabs(sum - 1) < 1e-6)
		return;
	(void)snprintf(what, sizeof(what),
		       "option 'average': the weights add up to %.6g, not to 1, so the tensors are "
		       "that many times as large as an average",
		       sum);
	o->warn(o->warn_arg, what);
}

/* The base of the average is opened, as a checkpoint. 1: it is not a run. */
static int open_average(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	const struct place_options how = ckpt_opts_place(o);
	struct ckpt_opts one = *o;
	autofree char *base = NULL, *run = NULL;
	int rc = enter_versions(c, e);
	size_t len;

	if (!rc)
		rc = average_of_run(c->place, c->root, o, &c->engine->average, &base, e);
	if (rc)
		return rc;
	warn_of_weights(&c->engine->average, o);
	name_list_release(&c->engine->metadata);
	free(c->dir);
	place_free(c->place);
	run = c->root;
	c->dir = c->root = NULL;
	c->place = NULL;
	c->file = NULL;
	one.runs = false;
	rc = open_root(c, base, &one, &how, e);
	if (rc)
		return err_wrap(e, "option 'average'");
	len = strlen(run);
	c->elsewhere = strncmp(c->root, run, len) != 0 || c->root[len] != '/';
	rc = open_any(c, &one, e);
	/* The messages of later faults name the option or the file. */
	return rc && (c->engine->refused_parts || !c->engine->catalog)
		       ? err_wrap(e, "'%s'", c->root)
		       : rc;
}

static int open_run(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	return o->average && !c->engine->average.n ? open_average(c, o, e)
						   : open_shown_run(c, o, e);
}

/* ---- opening ---- */

static int detect(struct ckpt *c, struct ckpt_err *e)
{
	int rc = format_detect(c->place, c->file, &c->engine->format, &c->engine->metadata, e);

	if (rc < 0)
		address_explain_name(c->root, e);
	return rc;
}

/*
 * A directory whose metadata names one of several checkpoints is opened as a run, if runs are
 * allowed.
 */
static int open_several(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct run_about about = { 0 };
	unsigned slot = 1, n = 0;
	int rc = run_new(c->place, c->root, o, &c->run, e);

	for (; !rc && n < 2 && !run_next(c->run, &slot, &about); slot++)
		n++;
	run_free(c->run);
	c->run = NULL;
	return rc ? rc : n > 1 ? open_run(c, o, e) : 1;
}

/* Several GGUF files beside the checkpoints of a run have been made from them. */
static int open_beside(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	const struct ckpt_err two = *e;
	int rc;

	name_list_release(&c->engine->metadata);
	rc = open_run(c, o, e);
	if (rc <= 0)
		return rc;
	*e = two;
	return -two.code;
}

/* A mount would be a run whose checkpoints are hf and safetensors. */
static int refuse_tree(const struct ckpt *c, struct ckpt_err *e)
{
	struct place_seen seen;

	if (place_fd(c->place) < 0 || place_look(c->place, ".ckptfs/info.json", &seen, e) <= 0)
		return 0;
	return err_set(e, EISDIR,
		       "it is a mount of ckptfs, or a copy of one: name the checkpoint itself, or "
		       "a directory in it such as hf/");
}

static int open_any(struct ckpt *c, const struct ckpt_opts *o, struct ckpt_err *e)
{
	int rc = format_probe(c->place, c->file, &c->engine->format, &c->engine->metadata, e);

	if (rc == -ENOTUNIQ && !c->file && c->engine->format == &format_gguf)
		return open_beside(c, o, e);
	if (rc > 0 && (o->runs || (o->average && !c->engine->average.n)) && !c->file &&
	    c->engine->format->names_one && format_is_below(&c->engine->metadata)) {
		rc = open_several(c, o, e);
		if (rc <= 0)
			return rc;
	}
	if (!rc && !c->file)
		rc = refuse_tree(c, e);
	if (!rc && !c->file)
		rc = enter_inner(c, e);
	if (!rc && !c->file) {
		rc = open_run(c, o, e);
		if (rc <= 0)
			return rc;
		rc = 0;
	}
	if (!rc) /* detect reports what was looked for, unless it has appeared meanwhile */
		rc = detect(c, e);
	if (rc >= 0)
		rc = engine_open(c->engine, o, e);
	if (rc && c->engine->refused_parts && !o->allow_missing) {
		struct ckpt_err why = *e;

		rc = err_set(e, why.code, "%s; with the option allow_missing, the rest can be read",
			     why.msg);
	}
	return rc;
}

const char *ckpt_beyond(const struct ckpt *c)
{
	return place_beyond(c->place);
}

/* A file that was named may be one of several: an index, or a part. They are opened when they are
 * read. */
static int tell_files(const struct ckpt *c, int (*each)(void *arg, const char *path), void *arg)
{
	const struct stored_file *s;
	size_t n = 0;
	int rc = 0;

	s = c->file ? catalog_sources(c->engine->catalog, &n) : NULL;
	for (size_t i = 0; !rc && i < n; i++) {
		autofree char *path = NULL;

		if (s[i].bytes)
			continue;
		path = text_format("%s/%s", c->dir, s[i].path);
		if (!path)
			return -ENOMEM;
		if (strcmp(path, c->root) != 0)
			rc = each(arg, path);
	}
	return rc;
}

int ckpt_others(const struct ckpt *c, int (*each)(void *arg, const char *path), void *arg)
{
	int rc = c->engine && c->elsewhere ? each(arg, c->root) : 0;

	if (!rc && c->engine)
		rc = tell_files(c, each, arg);
	for (size_t i = 0; !rc && c->engine && i < c->engine->others.n; i++) {
		const struct ckpt *one = c->engine->others.v[i];

		rc = each(arg, one->root);
		if (!rc)
			rc = tell_files(one, each, arg);
		if (!rc && ckpt_beyond(one))
			rc = each(arg, ckpt_beyond(one));
	}
	return rc;
}

static int expect_file(void *arg, const char *path)
{
	place_expect(path, arg);
	return 0;
}

/* A checkpoint of file:// may need others of its run. */
static void expect_beside(const char *address, const struct place_options *how)
{
	const char *path = text_file_path(address);
	size_t n = path ? text_parent(path) : 0;
	autofree char *dir = NULL;

	dir = n > 1 ? text_format("%.*s", (int)(path + n - address), address) : NULL;
	if (dir) /* else it is refused later */
		place_expect(dir, how);
}

int ckpt_expect(const char *path, const char *const opts[], struct ckpt_err *e)
{
	struct arena words CLEANUP(arena_release) = ARENA_INIT(CKPT_MAX_WORDS);
	struct ckpt_opts o;
	int rc = ckpt_opts_parse(opts, NULL, 0, &words, &o, e);
	struct place_options how = ckpt_opts_place(&o);

	if (rc || (!place_is_remote(path) && !names_address(&o)))
		return rc;
	place_expect(path, &how);
	expect_beside(path, &how);
	each_value(o, expect_addresses, &how);
	return 1;
}

void ckpt_rest(void)
{
	place_rest();
}

const char *ckpt_version(void)
{
	return CKPTFS_VERSION;
}

/* For the page in the tree. */
static int keep_options(struct ckpt *c, const struct ckpt_opts *opts, struct ckpt_err *e)
{
	struct ckpt_opts o = *opts;
	autofree char *average = NULL;

	/* With names resolved to paths. */
	if (c->engine && c->engine->average.n) {
		average = average_text(&c->engine->average);
		if (!average)
			return err_nomem(e);
		o.average = average;
	}
	c->said = (struct arena)ARENA_INIT(2 * CKPT_MAX_WORDS);
	return ckpt_opts_words(&o, &c->said, &c->options, e);
}

int ckpt_open_with(const char *path, const struct ckpt_opts *opts, struct ckpt **ret,
		   struct ckpt_err *e)
{
	struct place_options how = ckpt_opts_place(opts);
	struct ckpt *c = new_ckpt(e);
	int rc = c ? open_root(c, path, opts, &how, e) : -ENOMEM;

	if (!rc) {
		if (opts)
			warn_of_cache(c, opts);
		rc = open_any(c, opts, e);
		if (!rc)
			rc = keep_options(c, opts, e);
		/* Out of memory: they are refused later. */
		if (!rc && c->engine && place_is_remote(c->root))
			(void)tell_files(c, expect_file, &how);
		if (rc)
			rc = err_wrap(e, "checkpoint '%s'", path);
	}
	if (rc) {
		ckpt_close(c);
		return rc;
	}
	*ret = c;
	return 0;
}

int ckpt_open_sized(const char *path, const char *const opts[], const struct ckpt_hooks *hooks,
		    size_t size, struct ckpt **ret, struct ckpt_err *e)
{
	struct arena words CLEANUP(arena_release) = ARENA_INIT(CKPT_MAX_WORDS);
	struct ckpt_opts o;
	struct ckpt_err why; /* may have been set by what was tried first, even on success */
	int rc = ckpt_opts_parse(opts, hooks, size, &words, &o, &why);

	if (!rc)
		rc = ckpt_open_with(path, &o, ret, &why);
	if (!rc)
		ckpt_keep_words(*ret, &words);
	else
		*e = why;
	return rc;
}

void ckpt_keep_words(struct ckpt *c, struct arena *words)
{
	c->words = *words;
	*words = (struct arena){ 0 };
}

int ckpt_probe(const char *path, struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc = c ? open_root(c, path, NULL, NULL, e) : -ENOMEM;

	char shown[400];

	if (!rc)
		rc = detect(c, e);
	if (c && rc)
		rc = err_wrap(e, "checkpoint '%s'",
			      place_is_remote(path) ? text_show_address(path, shown, sizeof(shown))
						    : path);
	ckpt_close(c);
	return rc < 0 ? rc : 0;
}

int ckpt_open_place(struct place *place, const char *root, const struct ckpt_opts *opts,
		    struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt *c = new_ckpt(e);
	int rc;

	if (!c) {
		place_free(place);
		return -ENOMEM;
	}
	c->place = place;
	c->root = strdup(root);
	c->dir = strdup(root);
	rc = c->root && c->dir ? detect(c, e) : err_nomem(e);
	if (!rc)
		rc = engine_open(c->engine, opts, e);
	if (!rc)
		rc = keep_options(c, opts, e);
	if (rc) {
		ckpt_close(c);
		return rc == -ENOMEM ? rc : err_wrap(e, "checkpoint '%s'", root);
	}
	*ret = c;
	return 0;
}

void ckpt_close(struct ckpt *c)
{
	if (!c)
		return;
	run_free(c->run);
	engine_free(c->engine);
	place_free(c->place);
	free(c->dir);
	free(c->root);
	arena_release(&c->words);
	arena_release(&c->said);
	free(c);
}

/* ---- contents ---- */

struct engine *ckpt_engine(const struct ckpt *c, struct ckpt_err *e)
{
	if (!c->engine)
		(void)err_set(e, EISDIR, "it is a run");
	return c->engine;
}

void ckpt_totals_sized(const struct ckpt *c, struct ckpt_totals *ret, size_t size)
{
	SIZED_GIVE(ret, size, c->totals);
}
