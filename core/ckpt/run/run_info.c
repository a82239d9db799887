/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a run as JSON. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "ckpt/run/run_tree.h"

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

/* Without the path that errors of opening it begin with: the name stands beside the sentence. */
static const char *without_path(const struct ckpt_run *r, const char *name, const char *why)
{
	const char *s = why;

	if (!why || !text_take(&s, "checkpoint '") || !text_take(&s, r->root) ||
	    !text_take(&s, "/") || !text_take(&s, name))
		return why;
	s = strstr(s, "': "); /* behind the inner directory, if there is one */
	return s ? s + strlen("': ") : why;
}

static int copy_table(struct ckpt_run *r, unsigned latest, struct listing *ret)
{
	SCOPED_LOCK(&r->lock);

	ret->v = calloc(r->n_names + 1, sizeof(*ret->v));
	if (!ret->v)
		return -ENOMEM;
	for (size_t i = 0; i < r->n_names; i++) {
		const struct run_child *k = r->names[i];
		const char *why = without_path(r, k->name, k->why ? k->why : k->lacks);
		struct ckpt_run_entry *x = &ret->v[ret->n++];

		*x = (struct ckpt_run_entry){ .name = strdup(k->name),
					      .complete = !why || (!k->why && k->is_told),
					      .latest = latest && k->slot == latest,
					      .mtime_ns = k->mtime_ns,
					      .fault = why ? strdup(why) : NULL };
		if (!x->name || (why && !x->fault))
			return -ENOMEM;
	}
	qsort(ret->v, ret->n, sizeof(*ret->v), by_name);
	return 0;
}

static int list(struct ckpt_run *r, bool may_open, struct listing *ret, struct ckpt_err *e)
{
	unsigned latest;

	if (may_open ? run_latest(r, &latest) : run_latest_known(r, &latest))
		latest = 0;
	return copy_table(r, latest, ret) ? err_nomem(e) : 0;
}

bool ckpt_is_run(const struct ckpt *c)
{
	return c->run;
}

int ckpt_run_look(struct ckpt *c, void (*progress)(void *arg, uint64_t done, uint64_t total),
		  void *arg, struct ckpt_err *e)
{
	int rc = c->run ? run_refresh(c->run, false, e) : run_is_none(e);

	return rc ? rc : run_look(c->run, progress, arg, e);
}

int ckpt_run_each(struct ckpt *c, int (*each)(void *arg, const struct ckpt_run_entry *entry),
		  void *arg, struct ckpt_err *e)
{
	struct listing l CLEANUP(listing_release) = { 0 };
	int rc = c->run ? run_refresh(c->run, false, e) : run_is_none(e);

	if (!rc)
		rc = list(c->run, false, &l, e);
	for (size_t i = 0; !rc && i < l.n; i++)
		rc = each(arg, &l.v[i]);
	return rc;
}

static void put_entry(struct json_out *j, const struct ckpt_run_entry *x)
{
	json_open_line(j, NULL, '{');
	json_str(j, "name", x->name);
	json_bool(j, "complete", x->complete);
	json_u64(j, "mtime_ns", x->mtime_ns);
	json_str(j, "fault", x->fault);
	json_close(j);
}

int run_info_json(struct tree *t, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_INFO);
	struct listing l CLEANUP(listing_release) = { 0 };
	struct json_out j = { .to = &b };
	const char *latest = NULL;
	size_t complete = 0;
	struct ckpt_run *r = run_of(t);
	int rc = list(r, true, &l, e);

	if (rc)
		return rc;
	json_open(&j, NULL, '{');
	json_str(&j, "program", "ckptfs " CKPTFS_VERSION);
	json_str(&j, "run", r->root);
	json_open(&j, "checkpoints", '[');
	for (size_t i = 0; i < l.n; i++) {
		put_entry(&j, &l.v[i]);
		complete += l.v[i].complete;
		if (l.v[i].latest)
			latest = l.v[i].name;
	}
	json_close(&j);
	json_u64(&j, "complete", complete);
	json_u64(&j, "incomplete", l.n - complete);
	json_str(&j, "latest", latest);
	json_close(&j);
	if (buf_check(&b, e, "info.json is too large"))
		return -e->code;
	*ret_len = b.len;
	*ret = steal_ptr(&b.data);
	return 0;
}
