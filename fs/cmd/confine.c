/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/confine.h"

#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/live.h"
#include "mount/sandbox.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include <ckptfs/ckpt_comm.h>
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * What ckptfs-fetch takes from the environment. It has been started with that, and whoever takes
 * over this process must not find it here.
 */
void confine_forget_secrets(void)
{
	static const char *const names[] = {
		"AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"HF_TOKEN",
		"HUGGING_FACE_HUB_TOKEN",
		/* These may have passwords. */
		"http_proxy",
		"https_proxy",
		"HTTPS_PROXY",
		"all_proxy",
		"ALL_PROXY",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char *value = getenv(names[i]);

		if (!value)
			continue;
		explicit_bzero(value, strlen(value));
		(void)unsetenv(names[i]);
	}
}

/* A file that is made, or replaced by another of its name; or a device. */
static void allow_file(struct sandbox *s, const char *path)
{
	size_t n = text_parent(path);
	autofree char *dir = n ? strndup(path, n) : strdup(".");

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

/* Of the checkpoints that are named: "run/step-1", or, except in `mount`, "run step-1". */
static void allow_each_beside(struct sandbox *s, const struct command *c, const struct options *o)
{
	for (size_t i = 0; i < o->n_args && i < c->checkpoints; i++)
		allow_beside(s, o->args[i]);
	for (size_t i = c->checkpoints; c->words & WORDS_CONFINED && i < o->n_args; i++) {
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

/* The directory that it is in, where it is made under other names first. */
static void allow_parent(struct sandbox *s, const char *path)
{
	size_t n = text_parent(path);
	autofree char *dir = n ? strndup(path, n) : strdup(*path == '/' ? "/" : ".");

	if (dir)
		sandbox_allow_make(s, dir);
}

/* What is written: a file, or a directory with files. */
static void allow_written(struct sandbox *s, const char *path)
{
	autofree char *real = realpath(path, NULL);

	allow_parent(s, path);
	if (real)
		allow_parent(s, real);
}

static size_t n_checkpoints(const struct command *c, const struct options *o)
{
	size_t n = c->words & WORDS_WARM ? o->n_args : c->checkpoints;

	return n < o->n_args ? n : o->n_args;
}

/* May it be a path on this machine? */
static bool is_here(const char *path)
{
	return !strstr(path, "://") || strstr(path, "file://");
}

/* May one of these be, "NAME:WEIGHT,..."? A name without a slash is that of a checkpoint in the
 * run. */
static bool is_any_here(const char *names)
{
	autofree char *copy = strdup(names);
	char *rest = copy, *one;

	while ((one = strsep(&rest, ",")))
		if (strchr(one, '/') && is_here(one))
			return true;
	return !copy;
}

/* Are all checkpoints in object stores? */
static bool is_all_remote(const struct command *c, const struct options *o)
{
	static const char *const paths[] = { "overlay=", "lora=", "assets=" };
	static const char average[] = "average=";

	for (size_t i = 0; i < n_checkpoints(c, o); i++)
		if (is_here(o->args[i]))
			return false;
	for (size_t i = 0; o->open && o->open[i]; i++) {
		for (size_t k = 0; k < ARRAY_LEN(paths); k++)
			if (!strncmp(o->open[i], paths[k], strlen(paths[k])) &&
			    is_here(o->open[i] + strlen(paths[k])))
				return false;
		if (!strncmp(o->open[i], average, strlen(average)) &&
		    is_any_here(o->open[i] + strlen(average)))
			return false;
	}
	return o->n_args > 0;
}

/* Of a command that reads only object stores: whoever owns one must not get files of this machine,
 * as names that are asked for. */
static void allow_reading(struct sandbox *s, const struct options *o)
{
	static const char *const system[] = { "/etc/localtime", "/proc/meminfo",
					      "/usr/share/zoneinfo" };

	sandbox_allow_system(s);
	for (size_t i = 0; i < ARRAY_LEN(system); i++)
		sandbox_allow_read(s, system[i]);
	for (size_t i = 0; i < o->n_args; i++)
		sandbox_allow_read(s, o->args[i]);
	for (size_t i = 0; o->open && o->open[i]; i++) {
		const char *value = strchr(o->open[i], '=');

		if (value)
			sandbox_allow_read(s, value + 1);
	}
	if (o->check)
		sandbox_allow_read(s, o->check);
}

static void draw_limits(struct sandbox *s, const struct command *c, const struct options *o)
{
	const char *index = options_get(o, "index"), *page = page_of(c, o);
	bool in_memory = index && !strcmp(index, ":memory:");
	autofree char *cache = in_memory ? NULL : ckpt_index_dir();

	if (is_all_remote(c, o)) {
		sandbox_prepare(s);
		allow_reading(s, o);
	} else {
		sandbox_prepare_command(s);
	}
	if (cache) /* also of checkpoints that options name, if there is an option for the index */
		sandbox_allow_write(s, cache);
	if (index && !in_memory)
		allow_file(s, index);
	if (!index)
		allow_each_beside(s, c, o);
	if (c->writes && o->n_args)
		allow_written(s, o->args[o->n_args - 1]);
	if (page)
		allow_output(s, page);
	if (o->resume)
		allow_output(s, o->resume);
}

/* What is at addresses may be opened later. 1: there is such a thing; its ckptfs-fetch has been
 * started. */
static int expect_addresses(const struct command *c, const struct options *o, struct ckpt_err *e)
{
	bool any = false;

	for (size_t i = 0; i < n_checkpoints(c, o); i++) {
		int rc = ckpt_expect(o->args[i], o->open, e);

		if (rc < 0)
			return rc;
		any = any || rc;
	}
	if (any) {
		ckpt_rest();
		confine_forget_secrets();
	}
	return any;
}

/* Is one of the paths in a mount, whose checkpoint may be in an object store? */
static bool is_mounted(const struct options *o)
{
	for (size_t i = 0; i < o->n_args; i++)
		if (live_is_fuse(o->args[i]))
			return true;
	return false;
}

static int refuse(const struct command *c, const struct options *o, struct ckpt_err *e)
{
	if (c->writes && o->n_args && text_is_address(o->args[o->n_args - 1]))
		return err_set(e, ENOTSUP,
			       "there is none for writing to an object store, because ckptfs-fetch "
			       "writes nothing for a confined process");
	if (c->words & WORDS_RESHARD && ckpt_comm_mpi_started())
		return err_set(e, ENOTSUP,
			       "there is none under mpirun, because MPI needs the network");
	if (c->words & WORDS_WARM && is_mounted(o))
		return err_set(e, ENOTSUP,
			       "there is none for files of a mount, because its checkpoint may "
			       "have to be opened at an address");
	return 0;
}

int confine(const struct command *c, const struct options *o, struct ckpt_err *e)
{
	struct sandbox s CLEANUP(sandbox_release) = SANDBOX_NONE;
	int fetcher;

	if (refuse(c, o, e))
		return -e->code;
	fetcher = expect_addresses(c, o, e);
	if (fetcher < 0)
		return fetcher;
	draw_limits(&s, c, o);
	return sandbox_enter_command(
		&s, (fetcher ? SANDBOX_FETCHES : 0) | (c->writes ? SANDBOX_WRITES : 0), e);
}

int confine_command(const struct command *c, const struct options *o, struct ckpt_err *e)
{
	enum sandbox_mode mode;
	struct ckpt_err missing;

	if (sandbox_parse(o->sandbox, &mode, e))
		return -e->code;
	if (mode == SANDBOX_OFF || !confine(c, o, &missing) || mode == SANDBOX_AUTO)
		return 0;
	return err_set(e, missing.code, "option 'sandbox': %s", missing.msg);
}
