/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt.h>

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "ckpt/ckpt_internal.h"
#include "model/dtype.h"
#include "tree/view.h"

enum { MAX_INFO = 64 << 20, MAX_LISTED = 1000 };

static void put_fault(struct json_out *j, const char *kind, const char *fqn, size_t len,
		      const char *fault)
{
	json_open_line(j, NULL, '{');
	json_str_n(j, kind, fqn, len);
	json_str(j, "fault", fault);
	json_close(j);
}

static void put_faults(struct json_out *j, const struct ckpt *c)
{
	uint64_t left = c->totals.incomplete ? MAX_LISTED : 0;

	json_open(j, "faults", '[');
	for (uint64_t i = 0; i < c->totals.tensors && left; i++) {
		struct ckpt_tensor t;

		ckpt_tensor(c, i, &t);
		if (t.fault) {
			put_fault(j, "tensor", t.fqn, t.fqn_len, t.fault);
			left--;
		}
	}
	for (uint64_t i = 0; i < c->totals.objects && left; i++) {
		struct ckpt_object o;

		ckpt_object(c, i, &o);
		if (o.fault) {
			put_fault(j, "object", o.fqn, o.fqn_len, o.fault);
			left--;
		}
	}
	json_close(j);
}

/* The model's elements, in all and of each dtype. */
static void put_parameters(struct json_out *j, const struct ckpt *c, size_t n_tensors)
{
	uint64_t of[CKPT_DTYPE_COUNT] = { 0 };

	json_u64(j, "parameters", ckpt_parameters(c));
	for (size_t i = 0; i < n_tensors; i++) {
		struct tensor_info t;
		size_t size;

		view_model_tensor(c->engine->view, i, &t);
		size = dtype_info(t.dtype)->size;
		if (size && ckd_add(&of[t.dtype], of[t.dtype], t.bytes / size))
			of[t.dtype] = UINT64_MAX;
	}
	json_open_line(j, "dtypes", '{');
	for (size_t i = 0; i < CKPT_DTYPE_COUNT; i++)
		if (of[i])
			json_u64(j, dtype_info((enum ckpt_dtype)i)->name, of[i]);
	json_close(j);
}

/* The model that hf/, pt/ and ranks/ are made from. */
static void put_model(struct json_out *j, const struct ckpt *c)
{
	struct view_about a;
	uint64_t listed = 0;

	view_about(c->engine->view, &a);
	if (!a.has_model) {
		json_str(j, "model", NULL);
		return;
	}
	json_open(j, "model", '{');
	json_str_n(j, "prefix", a.prefix, a.prefix_len);
	json_u64(j, "tensors", a.model_tensors);
	json_u64(j, "bytes", a.model_bytes);
	put_parameters(j, c, a.model_tensors);
	json_u64(j, "hf_files", a.shards);
	json_u64(j, "ranks", a.ranks);
	json_open(j, "left_out", '[');
	for (size_t i = 0; i < a.model_tensors && listed < a.left_out && listed < MAX_LISTED; i++) {
		struct tensor_info t;
		struct ckpt_err why;

		if (!view_left_out(c->engine->view, i, &why))
			continue;
		view_model_tensor(c->engine->view, i, &t);
		json_open_line(j, NULL, '{');
		json_str_n(j, "tensor", t.fqn, t.fqn_len);
		ckpt_drop_name(t.fqn, t.fqn_len, &why);
		json_str(j, "why", why.msg);
		json_close(j);
		listed++;
	}
	json_close(j);
	json_close(j);
}

/* The files that hf/ and ranks/ show beside the weights, and where they were found. */
static void put_assets(struct json_out *j, const struct ckpt *c)
{
	const char *refused;
	struct ckpt_asset a;

	json_open(j, "assets", '[');
	for (uint64_t i = 0; ckpt_asset(c, i, &a); i++) {
		json_open_line(j, NULL, '{');
		json_str(j, "name", a.name);
		json_str(j, "from", a.from);
		json_str(j, "path", a.path);
		json_close(j);
	}
	json_close(j);
	json_open_line(j, "assets_refused", '[');
	for (uint64_t i = 0; (refused = ckpt_asset_refused(c, i)); i++)
		json_str(j, NULL, refused);
	json_close(j);
}

/* One line: what gguf/ is, or why it does not exist. */
static void put_gguf(struct json_out *j, const struct ckpt *c)
{
	struct view_gguf g;

	view_gguf(c->engine->view, &g);
	json_open_line(j, "gguf", '{');
	if (g.missing) {
		json_str(j, "missing", g.missing);
	} else {
		json_str(j, "architecture", g.arch);
		json_str(j, "dtype", g.dtype);
		json_u64(j, "tensors", g.tensors);
		json_u64(j, "files", g.files);
	}
	json_close(j);
}

static int put_verdict(void *arg, const struct ckpt_verdict *v)
{
	static const char *const words[] = {
		[CKPT_SERVES_YES] = "yes",
		[CKPT_SERVES_NO] = "no",
		[CKPT_SERVES_UNCHECKED] = "not checked",
		[CKPT_SERVES_ABSENT] = "absent",
	};
	struct json_out *j = arg;

	json_open_line(j, NULL, '{');
	json_str(j, "face", v->face);
	json_str(j, "serves", words[v->serves]);
	json_str(j, "verdict", v->text);
	json_close(j);
	return 0;
}

/* One line for each loadable face. */
static int put_verdicts(struct json_out *j, struct ckpt *c, struct ckpt_err *e)
{
	int rc;

	json_open(j, "verdicts", '[');
	rc = ckpt_verdicts(c, false, put_verdict, j, e);
	json_close(j);
	return rc;
}

int engine_info(struct tree *tree, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct ckpt *c = engine_of(tree)->c;
	const struct ckpt_totals *t = &c->totals;
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_INFO);
	struct json_out j = { .to = &b };
	char family[CKPT_FAMILY_MAX];

	json_open(&j, NULL, '{');
	json_str(&j, "program", "ckptfs " CKPTFS_VERSION);
	json_str(&j, "checkpoint", c->root);
	json_str(&j, "format", t->format);
	json_str(&j, "index", t->index);
	json_u64(&j, "tensors", t->tensors);
	json_u64(&j, "objects", t->objects);
	json_u64(&j, "chunks", t->chunks);
	json_u64(&j, "files", t->files);
	json_u64(&j, "ranks", t->ranks);
	json_u64(&j, "tensor_bytes", t->tensor_bytes);
	json_u64(&j, "stored_bytes", t->stored_bytes);
	json_bool(&j, "complete", !t->incomplete && !t->missing);
	json_u64(&j, "incomplete", t->incomplete);
	json_str(&j, "missing", t->missing);
	json_str(&j, "not_shown", t->not_shown);
	put_faults(&j, c);
	put_model(&j, c);
	json_str(&j, "family", ckpt_family(c, family, sizeof(family)) ? family : NULL);
	put_assets(&j, c);
	if (put_verdicts(&j, c, e))
		return -e->code;
	put_gguf(&j, c);
	json_close(&j);
	if (buf_check(&b, e, "info.json is too large"))
		return -e->code;
	*ret_len = b.len;
	*ret = steal_ptr(&b.data);
	return 0;
}
