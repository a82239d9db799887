/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/open/address.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/nearest.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "source/place.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

__attribute__((format(printf, 2, 3))) static void append(struct ckpt_err *e, const char *text, ...)
{
	size_t n = strlen(e->msg);
	va_list ap;

	va_start(ap, text);
	(void)vsnprintf(e->msg + n, sizeof(e->msg) - n, text, ap);
	va_end(ap);
	text_make_fit(e->msg + n); /* it may quote a hostile name */
}

/* Does the path look like "ORG/NAME", a repository of the Hugging Face Hub? */
static bool is_repository(const char *path)
{
	static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
				  "-.";
	static const char files[] = "*.{safetensors,bin,pt,pth,gguf,json,nemo,msgpack}";
	size_t org = strspn(path, fit), name = path[org] == '/' ? strspn(path + org + 1, fit) : 0;

	return org && name && !path[org + 1 + name] && *path != '.' && path[org + 1] != '.' &&
	       !text_glob(files, path, org + 1 + name);
}

/* Where the Hub's own programs cache repositories: huggingface_hub/constants.py. */
static char *cached(const char *repository)
{
	/* NOLINTBEGIN(concurrency-mt-unsafe): nothing here sets variables */
	const char *hub = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
	/* NOLINTEND(concurrency-mt-unsafe) */
	const char *base = hub ? hub : hf ? hf : home;
	int org = (int)strcspn(repository, "/");
	struct stat st;
	char *path;

	if (!base)
		return NULL;
	path = text_format("%s%s/models--%.*s--%s", base,
			   hub	? ""
			   : hf ? "/hub"
				: "/.cache/huggingface/hub",
			   org, repository, repository + org + 1);
	if (path && !stat(path, &st) && S_ISDIR(st.st_mode))
		return path;
	free(path);
	return NULL;
}

static bool is_there(const char *path, size_t len)
{
	autofree char *copy = strndup(path, len < PATH_MAX ? len : PATH_MAX);
	struct stat st;

	return copy && !stat(copy, &st);
}

/* *e reports why a path cannot be opened: adds what was probably meant. */
static void explain(const char *path, struct ckpt_err *e)
{
	autofree char *cache = NULL;

	if (e->code != ENOENT)
		return;
	if (text_glob("{s3,gs,hf,http,https}:*", path, strlen(path)) && !strstr(path, "://")) {
		/* pathlib.Path turns "s3://bucket" into "s3:/bucket" */
		const char *colon = strchr(path, ':');

		append(e, "; an address has two slashes: '%.*s//%s'", (int)(colon + 1 - path), path,
		       colon + 1 + strspn(colon + 1, "/"));
	} else if (strstr(path, "://")) {
		append(e, "; the addresses that ckptfs knows begin with s3://, gs://, https://, "
			  "http://, hf:// or file://");
	} else if (is_repository(path) && !is_there(path, strcspn(path, "/"))) {
		cache = cached(path);
		if (cache)
			append(e,
			       "; the repository of that name is in the Hugging Face cache: open "
			       "'%s'",
			       cache);
		else
			append(e, "; a repository of the Hugging Face Hub is 'hf://%s'", path);
	}
}

void address_explain_name(const char *root, struct ckpt_err *e)
{
	static const struct {
		const char *glob, *says;
	} names[] = {
		{ "*.orbax-checkpoint-tmp*", "an Orbax save that has not finished" },
		{ "*.{partial,partial.old}", "a save or export of ckptfs that has not finished" },
		{ "*.{tmp,incomplete,part}", "something that has not been completely written" },
	};
	const char *slash = strrchr(root, '/'), *base = slash ? slash + 1 : root;

	if (e->code != ENOENT && e->code != ERR_UNSUPPORTED)
		return;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (text_glob(names[i].glob, base, strlen(base))) {
			append(e, "; its name is that of %s", names[i].says);
			return;
		}
}

/* ---- runs ---- */

/*
 * The last component of a path, without trailing slashes, and the length of the directory part
 * before it; NULL: the path has no name of its own, like "." and "/".
 */
static char *split(const char *path, size_t *ret_dir)
{
	size_t end = strlen(path), start;
	char *name;

	while (end && path[end - 1] == '/')
		end--;
	for (start = end; start && path[start - 1] != '/';)
		start--;
	name = strndup(path + start, end - start);
	if (!name || (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)) {
		*ret_dir = start;
		return name;
	}
	free(name);
	return NULL;
}

/* The path of the checkpoint that a name in the run refers to. */
static int meant(struct ckpt *run, const char *path, const char *name, bool may_open, char **ret,
		 struct ckpt_err *e)
{
	struct nearest near = NEAREST_INIT(name, strlen(name));
	struct run_about about;
	unsigned slot;

	if (!strcmp(name, "latest")) {
		int rc = may_open ? run_latest(run->run, &slot) : run_newest(run->run, &slot);

		if (rc || run_about(run->run, slot, &about))
			return err_set(
				e, ENOENT,
				"open '%s': the run's latest checkpoint cannot be determined: no "
				"file names it, and no name ends in a number",
				path);
		*ret = text_format("%s/%s", run->root, about.name);
		return *ret ? 0 : err_nomem(e);
	}
	(void)err_set(e, ENOENT, "open '%s': there is no such file or checkpoint", path);
	for (slot = 1; !run_next(run->run, &slot, &about); slot++)
		nearest_try(&near, about.name, strlen(about.name), slot);
	for (size_t i = 0; i < near.n; i++)
		if (!run_about(run->run, (unsigned)near.best[i].id, &about))
			append(e, "%s'%s'%s",
			       !i		? "; did you mean "
			       : i + 1 < near.n ? ", "
						: " or ",
			       FQN_TEXT(about.name, strlen(about.name)),
			       i + 1 == near.n ? "?" : "");
	return -ENOENT;
}

int address_in_run(const char *path, const struct ckpt_opts *o, char **ret, struct ckpt_err *e)
{
	size_t n_dir;
	autofree char *name = split(path, &n_dir);
	autofree char *dir = name ? n_dir ? strndup(path, n_dir) : strdup(".") : NULL;
	const struct ckpt_opts none = { 0 };
	struct ckpt_err ignored;
	struct ckpt *run;
	int rc;

	if (!dir ||
	    !(place_is_remote(dir) ? dir[strcspn(dir, ":") + 3] : is_there(dir, SIZE_MAX)) ||
	    ckpt_open_run(dir, o ? o : &none, &run, &ignored))
		return 1;
	rc = meant(run, path, name, o, ret, e);
	ckpt_close(run);
	return rc;
}

/* Some savers leave a file with this name; it is not a checkpoint. */
static bool is_latest(const char *path)
{
	size_t n_dir;
	autofree char *name = split(path, &n_dir);
	struct stat st;

	return name && !strcmp(name, "latest") && !stat(path, &st) && S_ISREG(st.st_mode);
}

int address_resolve(const char *path, const struct ckpt_opts *o, char **ret, struct ckpt_err *e)
{
	char shown[200];
	int rc, code;

	*ret = NULL;
	if (place_is_remote(path)) {
		*ret = strdup(path);
		return *ret ? 0 : err_nomem(e);
	}
	if (is_latest(path) && !address_in_run(path, o, ret, e))
		return 0;
	*ret = local_real_name(path);
	if (*ret)
		return 0;
	code = errno;
	rc = code == ENOENT ? address_in_run(path, o, ret, e) : 1;
	if (rc <= 0)
		return rc;
	rc = strstr(path, "://")
		     ? err_sys(e, code, "open '%s'", text_show_address(path, shown, sizeof(shown)))
		     : err_sys(e, code, "open '%s'", path);
	explain(path, e);
	return rc;
}

/* The options are not known, and they decide if a checkpoint can be opened. */
int ckpt_address(const char *path, char **ret, struct ckpt_err *e)
{
	return address_resolve(path, NULL, ret, e);
}
