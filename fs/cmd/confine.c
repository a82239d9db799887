/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/confine.h"

#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/sandbox.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Does it have an address in it? */
static bool is_remote(const char *word)
{
	return strstr(word, "://");
}

bool confine_is_remote(const struct command *c, const struct options *o)
{
	for (size_t i = 0; i < o->n_args && i < c->checkpoints; i++)
		if (is_remote(o->args[i]))
			return true;
	for (size_t i = 0; o->open && o->open[i]; i++)
		if (is_remote(o->open[i]))
			return true;
	return false;
}

/* A file that is made, or replaced by another of its name; or a device. */
static void allow_file(struct sandbox *s, const char *path)
{
	const char *slash = strrchr(path, '/');
	autofree char *dir = slash ? strndup(path, (size_t)(slash + 1 - path)) : strdup(".");

	if (dir)
		sandbox_allow_write(s, dir);
	sandbox_allow_write_file(s, path);
}

/* The same, or a link to one, such as /dev/stdout. */
static void allow_output(struct sandbox *s, const char *path)
{
	autofree char *real = realpath(path, NULL);

	allow_file(s, real ? real : path);
}

/* An index beside the checkpoint is brought up to date there, if nobody else can write there: see
 * index.c. */
static void allow_beside(struct sandbox *s, const char *ckpt)
{
	autofree char *index = text_format("%s/.ckptfs-index.sqlite", ckpt);
	struct stat dir, file;

	if (index && !lstat(index, &file) && S_ISREG(file.st_mode) && !stat(ckpt, &dir) &&
	    dir.st_uid == geteuid() && file.st_uid == geteuid() &&
	    !(dir.st_mode & (S_IWGRP | S_IWOTH)))
		sandbox_allow_write(s, ckpt);
}

/* Of the checkpoints that are named: "run/step-1", or, in a command that only reads, "run step-1". */
static void allow_each_beside(struct sandbox *s, const struct command *c, const struct options *o)
{
	for (size_t i = 0; i < o->n_args && i < c->checkpoints; i++)
		allow_beside(s, o->args[i]);
	for (size_t i = c->checkpoints; c->words & WORDS_READER && i < o->n_args; i++) {
		autofree char *in_run = text_format("%s/%s", o->args[0], o->args[i]);

		if (in_run)
			allow_beside(s, in_run);
	}
}

/* The page that the command writes; NULL: none. */
static const char *page_of(const struct command *c, const struct options *o)
{
	const char *page = c->words & WORDS_REPORT && !o->output ? CMD_REPORT_FILE : o->output;

	return page && strcmp(page, "-") != 0 ? page : NULL;
}

static void draw_limits(struct sandbox *s, const struct command *c, const struct options *o)
{
	const char *index = options_get(o, "index"), *page = page_of(c, o);
	bool in_memory = index && !strcmp(index, ":memory:");
	autofree char *cache = in_memory ? NULL : ckpt_index_dir();

	sandbox_prepare_reader(s);
	if (cache) /* also of checkpoints that options name, if there is an option for the index */
		sandbox_allow_write(s, cache);
	if (index && !in_memory)
		allow_file(s, index);
	if (!index)
		allow_each_beside(s, c, o);
	if (page)
		allow_output(s, page);
	if (o->resume)
		allow_output(s, o->resume);
}

int confine(const struct command *c, const struct options *o, struct ckpt_err *e)
{
	struct sandbox s CLEANUP(sandbox_release) = SANDBOX_NONE;

	if (confine_is_remote(c, o))
		return 1;
	draw_limits(&s, c, o);
	return sandbox_enter_reader(&s, e);
}

int confine_reader(const struct command *c, const struct options *o, struct ckpt_err *e)
{
	enum sandbox_mode mode;
	struct ckpt_err missing;
	int rc;

	if (sandbox_parse(o->sandbox, &mode, e))
		return -e->code;
	if (mode == SANDBOX_OFF)
		return 0;
	rc = confine(c, o, &missing);
	if (rc > 0)
		(void)err_set(&missing, ENOTSUP,
			      "there is none for what is read from an address, because that needs "
			      "the network");
	return rc && mode == SANDBOX_ON
		       ? err_set(e, missing.code, "option 'sandbox': %s", missing.msg)
		       : 0;
}
