/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepts "RUN step-1000" in place of "RUN/step-1000".
 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct sought {
	const char *name;
	bool found;
};

static int compare_entry(void *arg, const struct ckpt_run_entry *x)
{
	struct sought *s = arg;

	s->found |= !strcmp(x->name, s->name) || (x->latest && !strcmp(s->name, "latest"));
	return 0;
}

/* Anything a checkpoint lacks is reported when it is opened. NULL: it is not a run. */
static struct ckpt *open_run(const struct options *o, const char *path)
{
	autofree const char **words = cmd_pick(
		o, CMD_WORDS(CMD_STORE), CMD_WORDS("runs", "allow_missing", "index=:memory:"));
	struct ckpt *c = NULL;
	struct ckpt_err ignored;

	if (words && !ckpt_open(path, words, NULL, &c, &ignored) && ckpt_is_run(c))
		return c;
	ckpt_close(c);
	return NULL;
}

static bool has(struct ckpt *run, const char *name)
{
	struct sought s = { name, false };
	struct ckpt_err ignored;

	return !ckpt_run_each(run, compare_entry, &s, &ignored) && s.found;
}

/* Is it a run that has a checkpoint of that name, or any name if that is NULL? */
static bool has_checkpoint(const struct options *o, const char *path, const char *name)
{
	struct ckpt *run CLEANUP(cmd_closep) = open_run(o, path);

	return run && (!name || has(run, name));
}

/* Only the name of a directory entry is worth looking for in a run. */
static bool may_join(const char *run, const char *name, const char *path)
{
	struct stat st;

	if (!*name || strchr(name, '/') || stat(run, &st) || !S_ISDIR(st.st_mode))
		return false;
	return !strcmp(name, "latest") || (!stat(path, &st) && S_ISDIR(st.st_mode));
}

/*
 * Puts the joined path in place of argument i and the next or, if the run is from an earlier
 * argument, of the name alone. With `only`, the name can only be that of a checkpoint, and opening
 * the path will say that the run has none of that name.
 */
static int join(struct options *o, size_t i, const char *run, const char *name, bool both,
		bool only, struct ckpt_err *e)
{
	autofree char *path = NULL;

	path = text_format("%s/%s", run, name);
	if (!path)
		return err_nomem(e);
	if (!(may_join(run, name, path) && has_checkpoint(o, run, name)) &&
	    !(only && *name && !strchr(name, '/') && has_checkpoint(o, run, NULL)))
		return 0;
	return options_set_arg(o, i, path, both, e) ? -ENOMEM : 1;
}

int cmd_join_runs(const struct command *c, struct options *o, struct ckpt_err *e)
{
	const char *before = NULL; /* the run of the previous argument */

	for (size_t i = 0; i < c->checkpoints && i < o->n_args; i++) {
		const char *here = o->args[i];
		struct stat st;
		int rc = 0;

		if (before && stat(here, &st)) /* "diff RUN step-1 step-2" */
			rc = join(o, i, before, here, false, false, e);
		else if (o->n_args > c->min_args && o->args[i + 1])
			rc = join(o, i, here, o->args[i + 1], true, o->n_args > c->max_args, e);
		if (rc < 0)
			return rc;
		before = rc ? here : NULL;
	}
	return 0;
}

int cmd_fail_open(const struct options *o, struct ckpt_err *e)
{
	const char *path = o->args[0], *name = o->args[1], *similar;
	struct ckpt *run CLEANUP(cmd_closep) = NULL;
	struct ckpt_err why = *e;
	char meant[CMD_MEANT];

	if (e->code != EISDIR || !name || !*name || strpbrk(name, "/*?[{\\"))
		return cmd_fail(e);
	run = open_run(o, path);
	if (run && !has(run, name)) {
		similar = cmd_meant(run, name, meant);
		if (*similar)
			(void)err_set(e, EISDIR, "run '%.200s' has no checkpoint '%.100s'%s", path,
				      name, similar);
		else
			(void)err_set(e, EISDIR, "%s; none of them is '%s'", why.msg, name);
	}
	return cmd_fail(e);
}
