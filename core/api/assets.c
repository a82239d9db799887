/* SPDX-License-Identifier: Apache-2.0 */
#include "api/assets.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "read/files.h"
#include "view/view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ASSETS 10000

/* What transformers and tokenizers write beside weights. */
static const char *const usual[] = {
	"added_tokens.json",
	"chat_template.jinja",
	"chat_template.json",
	"config.json",
	"generation_config.json",
	"merges.txt",
	"preprocessor_config.json",
	"processor_config.json",
	"special_tokens_map.json",
	"spiece.model",
	"tokenizer.json",
	"tokenizer.model",
	"tokenizer_config.json",
	"vocab.json",
	"vocab.txt",
};

/* Other weights beside ours would be taken for ours. */
static const char *const weights[] = { "*.safetensors", "*.safetensors.index.json",
				       "*.bin",		"*.bin.index.json",
				       "*.pt",		"*.pth",
				       "*.gguf",	"*.h5",
				       "*.msgpack",	"*.ckpt",
				       "*.onnx" };

static bool is_weights(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(weights); i++)
		if (text_glob(weights[i], name, strlen(name)))
			return true;
	return false;
}

/* A copy that lives as long as the assets, or NULL. */
static const char *own(struct assets *a, const char *s)
{
	char **grown = realloc(a->owned, (a->n_owned + 1) * sizeof(*grown));
	char *copy = grown ? strdup(s) : NULL;

	if (grown)
		a->owned = grown;
	if (copy)
		a->owned[a->n_owned++] = copy;
	return copy;
}

static int add(struct assets *a, const char *path, const char *name, const struct stat *st,
	       struct ckpt_err *e)
{
	struct view_asset *v = realloc(a->v, (a->n + 1) * sizeof(*v));

	if (!v)
		return err_set(e, ENOMEM, "out of memory");
	a->v = v;
	v += a->n;
	*v = (struct view_asset){ .name = own(a, name),
				  .path = own(a, path),
				  .size = (uint64_t)st->st_size,
				  .mtime_ns = io_mtime_ns(st) };
	if (!v->name || !v->path)
		return err_set(e, ENOMEM, "out of memory");
	a->n++;
	return 0;
}

/* Not the file's own fault, so that it would be there the next time. */
static bool is_passing(int code)
{
	return code == EIO || code == ENOMEM;
}

/* dir/name, if it is a regular file; `inside`: and if it lies in dir with all links followed. */
static int consider(struct assets *a, const char *dir, const char *name, bool inside,
		    struct ckpt_err *e)
{
	autofree char *joined = NULL, *path = NULL;
	size_t n = strlen(dir);
	struct stat st;

	if (asprintf(&joined, "%s/%s", dir, name) < 0) {
		joined = NULL;
		return err_set(e, ENOMEM, "out of memory");
	}
	path = realpath(joined, NULL);
	if (!path || stat(path, &st))
		return is_passing(errno) ? err_sys(e, errno, "look for '%s'", joined) : 0;
	if (!S_ISREG(st.st_mode))
		return 0;
	if (inside && (strncmp(path, dir, n) != 0 || path[n] != '/'))
		return 0;
	return add(a, path, name, &st, e);
}

static bool has(const struct assets *a, const char *name)
{
	for (size_t i = 0; i < a->n; i++)
		if (!strcmp(a->v[i].name, name))
			return true;
	return false;
}

static int find_usual(struct assets *a, const char *checkpoint, struct ckpt_err *e)
{
	autofree char *parent = strdup(checkpoint);
	char *slash;
	int rc = 0;

	if (!parent)
		return err_set(e, ENOMEM, "out of memory");
	slash = strrchr(parent, '/'); /* the path is absolute */
	slash[slash == parent] = 0;
	for (size_t i = 0; !rc && i < ARRAY_LEN(usual); i++) {
		rc = consider(a, checkpoint, usual[i], true, e);
		if (!rc && !has(a, usual[i]) && slash != parent)
			rc = consider(a, parent, usual[i], true, e);
	}
	return rc;
}

static void close_dirp(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

static int find_all(struct assets *a, const char *dir, struct ckpt_err *e)
{
	autofree char *path = realpath(dir, NULL);
	DIR *d CLEANUP(close_dirp) = path ? opendir(path) : NULL;
	const struct dirent *entry;
	int rc = 0;

	if (!d)
		return err_sys(e, errno, "assets directory '%s'", dir);
	while (!rc && (errno = 0, entry = readdir(d))) {
		if (is_weights(entry->d_name) || entry->d_name[0] == '.' ||
		    strlen(entry->d_name) >= NAME_CAP)
			continue;
		if (a->n == MAX_ASSETS)
			return err_set(e, EFBIG, "assets directory '%s' has more than %d files",
				       dir, MAX_ASSETS);
		rc = consider(a, path, entry->d_name, false, e);
	}
	if (!rc && errno)
		rc = err_sys(e, errno, "list the assets directory '%s'", dir);
	return rc;
}

static int by_name(const void *ap, const void *bp)
{
	const struct view_asset *a = ap, *b = bp;

	return text_natural_cmp(a->name, strlen(a->name), b->name, strlen(b->name));
}

static int open_files(struct assets *a, struct ckpt_err *e)
{
	a->paths = calloc(a->n + 1, sizeof(*a->paths));
	a->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (!a->paths)
		return err_set(e, ENOMEM, "out of memory");
	if (a->root < 0)
		return err_sys(e, errno, "open '/'");
	for (size_t i = 0; i < a->n; i++)
		a->paths[i] = (struct catalog_source){ a->v[i].path + 1, a->v[i].size };
	return files_new(a->root, a->paths, a->n, &a->files, e);
}

int assets_find(const char *dir, const char *checkpoint, struct assets *ret, struct ckpt_err *e)
{
	int rc;

	*ret = (struct assets){ .root = -1 };
	rc = dir ? find_all(ret, dir, e) : find_usual(ret, checkpoint, e);
	if (rc || !ret->n)
		return rc;
	qsort(ret->v, ret->n, sizeof(*ret->v), by_name);
	return open_files(ret, e);
}

void assets_release(struct assets *a)
{
	files_free(a->files);
	for (size_t i = 0; i < a->n_owned; i++)
		free(a->owned[i]);
	free(a->owned);
	free(a->v);
	free(a->paths);
	if (a->root >= 0)
		(void)close(a->root);
	*a = (struct assets){ .root = -1 };
}

int assets_read(const struct assets *a, size_t i, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e)
{
	return files_read(a->files, (uint32_t)i, buf, len, off, e);
}
