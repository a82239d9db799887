/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd.h"

#include "options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/progress.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int cmd_fail(const struct ckpt_err *e)
{
	(void)fflush(stdout);
	(void)fprintf(stderr, "ckptfs: %s\n", e->msg);
	return STATUS_TROUBLE;
}

int cmd_finish(int status)
{
	struct ckpt_err e = { 0 };
	int rc = fflush(stdout) ? errno : 0;

	if (!rc && !ferror(stdout))
		return status;
	/* An earlier write may have failed, and its errno is long gone. */
	(void)err_sys(&e, rc ? rc : EIO, "write to standard output");
	return cmd_fail(&e);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct progress *p = arg;

	p->total = total;
	progress_set(p, done);
}

static void show_warning(void *arg, const char *what)
{
	(void)arg;
	(void)fprintf(stderr, "ckptfs: warning: %s\n", what);
}

int cmd_open(const char *path, const struct options *o, struct ckpt_opts k, struct ckpt **ret,
	     struct ckpt_err *e)
{
	struct progress p;
	int rc;

	k.index = o->index;
	k.include = o->include;
	k.exclude = o->exclude;
	k.allow_missing |= o->allow_missing;
	k.rename = o->rename;
	k.weights = o->weights;
	k.dtype = o->dtype;
	k.assets = o->assets;
	k.layout = o->layout;
	k.recipe = o->recipe;
	k.experts = o->experts;
	k.gguf_dtype = o->gguf_dtype;
	k.shard_size = o->shard_size;
	k.cache_bytes = o->cache;
	if (!k.warn)
		k.warn = show_warning;
	k.progress = show_progress;
	k.progress_arg = &p;
	progress_start(&p, "index", 0, !o->quiet);
	rc = ckpt_open(path, &k, ret, e);
	progress_end(&p);
	return rc;
}

int cmd_find(struct ckpt *c, const char *path, bool is_fqn, struct ckpt_stat *ret,
	     struct ckpt_err *e)
{
	ckpt_node node;
	int rc;

	if (!is_fqn)
		rc = ckpt_walk(c, path, &node, e);
	else if (ckpt_fqn_node(c, path, strlen(path), &node))
		rc = err_set(e, ENOENT, "'%s': no tensor or object of that name", path);
	else
		rc = 0;
	return rc ? rc : ckpt_stat(c, node, ret, e);
}

void cmd_add_fqn(struct buf *b, const char *fqn, size_t len)
{
	/* Worst case of text_show: three bytes for one, and room for its "...". */
	size_t cap = len * 3 + 8;
	char *at = buf_room(b, cap);

	if (!at)
		return;
	(void)text_show(fqn, len, at, cap);
	while (*at++)
		b->len++;
}

int cmd_print(struct buf *b)
{
	struct ckpt_err e = { 0 };

	if (b->err) {
		(void)err_sys(&e, b->err, "print");
		return cmd_fail(&e);
	}
	if (b->len)
		(void)fwrite(b->data, 1, b->len, stdout);
	b->len = 0;
	return 0;
}
