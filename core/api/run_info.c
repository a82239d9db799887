/* SPDX-License-Identifier: Apache-2.0 */
/* What is told about a run. */
#include "api/ckpt_internal.h"
#include "api/run.h"
#include "api/run_tree.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INFO = 256 << 20 };

/* A copy of the table. */
struct listing {
	struct ckpt_run_entry *v;
	size_t n;
};

static void listing_release(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free((void *)(uintptr_t)l->v[i].name);
		free((void *)(uintptr_t)l->v[i].fault);
	}
	free(l->v);
}

static int by_name(const void *ap, const void *bp)
{
	const struct ckpt_run_entry *a = ap, *b = bp;

	return text_natural_cmp(a->name, strlen(a->name), b->name, strlen(b->name));
}

static int copy_table(struct ckpt_run *r, unsigned latest, struct listing *ret)
{
	SCOPED_LOCK(&r->lock);

	ret->v = calloc(r->n_names + 1, sizeof(*ret->v));
	if (!ret->v)
		return -ENOMEM;
	for (size_t i = 0; i < r->n_names; i++) {
		const struct run_child *k = r->names[i];
		struct ckpt_run_entry *x = &ret->v[ret->n++];

		*x = (struct ckpt_run_entry){ .name = strdup(k->name),
					      .complete = k->complete,
					      .latest = latest && k->slot == latest,
					      .mtime_ns = k->mtime_ns,
					      .fault = k->why ? strdup(k->why) : NULL };
		if (!x->name || (k->why && !x->fault))
			return -ENOMEM;
	}
	qsort(ret->v, ret->n, sizeof(*ret->v), by_name);
	return 0;
}

static int list(struct ckpt_run *r, struct listing *ret, struct ckpt_err *e)
{
	unsigned latest;

	if (run_latest(r, &latest))
		latest = 0;
	return copy_table(r, latest, ret) ? err_set(e, ENOMEM, "out of memory") : 0;
}

bool ckpt_is_run(const struct ckpt *c)
{
	return c->run;
}

int ckpt_run_each(struct ckpt *c, int (*each)(void *arg, const struct ckpt_run_entry *entry),
		  void *arg, struct ckpt_err *e)
{
	struct listing l CLEANUP(listing_release) = { 0 };
	int rc = run_refresh(c->run, false, e);

	if (!rc)
		rc = list(c->run, &l, e);
	for (size_t i = 0; !rc && i < l.n; i++)
		rc = each(arg, &l.v[i]);
	return rc;
}

static void put_entry(struct buf *b, const struct ckpt_run_entry *x)
{
	buf_str(b, "{\"name\": ");
	buf_json_str(b, x->name, strlen(x->name));
	buf_printf(b, ", \"complete\": %s, \"mtime_ns\": %llu, \"fault\": ",
		   x->complete ? "true" : "false", (unsigned long long)x->mtime_ns);
	if (x->fault)
		buf_json_str(b, x->fault, strlen(x->fault));
	else
		buf_str(b, "null");
	buf_str(b, "}");
}

int run_info_json(struct ckpt *c, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_INFO);
	struct listing l CLEANUP(listing_release) = { 0 };
	size_t complete = 0;
	int rc = list(c->run, &l, e);

	if (rc)
		return rc;
	buf_str(&b, "{\n  \"program\": \"ckptfs " CKPTFS_VERSION "\",\n  \"run\": ");
	buf_json_str(&b, c->root, strlen(c->root));
	buf_str(&b, ",\n  \"checkpoints\": [");
	for (size_t i = 0; i < l.n; i++) {
		buf_str(&b, i ? ",\n    " : "\n    ");
		put_entry(&b, &l.v[i]);
		complete += l.v[i].complete;
	}
	buf_printf(&b, "%s],\n  \"complete\": %zu,\n  \"incomplete\": %zu,\n  \"latest\": ",
		   l.n ? "\n  " : "", complete, l.n - complete);
	for (size_t i = 0; i <= l.n; i++)
		if (i == l.n) {
			buf_str(&b, "null");
		} else if (l.v[i].latest) {
			buf_json_str(&b, l.v[i].name, strlen(l.v[i].name));
			break;
		}
	buf_str(&b, "\n}\n");
	if (b.err)
		return err_set(e, b.err, "write info.json");
	*ret_len = b.len;
	*ret = steal_ptr(&b.data);
	return 0;
}
