/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/address.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((format(printf, 2, 3))) static void append(struct ckpt_err *e, const char *text, ...)
{
	size_t n = strlen(e->msg);
	va_list ap;

	va_start(ap, text);
	(void)vsnprintf(e->msg + n, sizeof(e->msg) - n, text, ap);
	va_end(ap);
}

/* "ORG/NAME", as repositories of the Hugging Face Hub are called. */
static bool is_repository(const char *path)
{
	static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
				  "-.";
	size_t org = strspn(path, fit), name = path[org] == '/' ? strspn(path + org + 1, fit) : 0;

	return org && name && !path[org + 1 + name] && *path != '.' && path[org + 1] != '.';
}

/* Where the Hub's own programs keep repositories: huggingface_hub/constants.py. */
static char *cached(const char *repository)
{
	/* NOLINTBEGIN(concurrency-mt-unsafe): nothing here sets variables */
	const char *hub = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
	/* NOLINTEND(concurrency-mt-unsafe) */
	const char *base = hub ? hub : hf ? hf : home;
	int org = (int)strcspn(repository, "/");
	struct stat st;
	char *path;

	if (!base || asprintf(&path, "%s%s/models--%.*s--%s", base,
			      hub  ? ""
			      : hf ? "/hub"
				   : "/.cache/huggingface/hub",
			      org, repository, repository + org + 1) < 0)
		return NULL;
	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		return path;
	free(path);
	return NULL;
}

static bool is_there(const char *path, size_t len)
{
	autofree char *copy = strndup(path, len);
	struct stat st;

	return copy && !stat(copy, &st);
}

void address_explain(const char *path, struct ckpt_err *e)
{
	autofree char *cache = NULL;

	if (e->code != ENOENT)
		return;
	if (strstr(path, "://")) {
		append(e, "; ckptfs opens paths of this machine, and no addresses");
	} else if (is_repository(path) && !is_there(path, strcspn(path, "/"))) {
		cache = cached(path);
		if (cache)
			append(e,
			       "; the repository of that name is in the Hugging Face cache: open "
			       "'%s'",
			       cache);
		else
			append(e,
			       "; ckptfs downloads nothing: for a repository of the Hugging Face "
			       "Hub, "
			       "open the directory that 'hf download %s' prints",
			       path);
	}
}

void address_explain_name(const char *root, struct ckpt_err *e)
{
	static const struct {
		const char *glob, *says;
	} names[] = {
		{ "*.orbax-checkpoint-tmp*", "an Orbax save that has not finished" },
		{ "*.{partial,partial.old}", "a save or export of ckptfs that has not finished" },
		{ "*.{tmp,incomplete,part}", "something that has not been written to its end" },
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

int ckpt_address(const char *path, char **ret, struct ckpt_err *e)
{
	int rc;

	*ret = realpath(path, NULL);
	if (*ret)
		return 0;
	rc = err_sys(e, errno, "open '%s'", path);
	address_explain(path, e);
	return rc;
}
