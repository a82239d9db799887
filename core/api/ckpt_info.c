/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "api/run_tree.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "view/view.h"

#include <string.h>

enum { MAX_INFO = 64 << 20, MAX_LISTED = 1000 };

static void put_fault(struct buf *b, bool *first, const char *kind, const char *fqn, size_t len,
		      const char *fault)
{
	buf_str(b, *first ? "\n    {\"" : ",\n    {\"");
	buf_str(b, kind);
	buf_str(b, "\": ");
	buf_json_str(b, fqn, len);
	buf_str(b, ", \"fault\": ");
	buf_json_str(b, fault, strlen(fault));
	buf_str(b, "}");
	*first = false;
}

static void put_faults(struct buf *b, const struct ckpt *c)
{
	bool first = true;
	uint64_t listed = 0;

	for (uint64_t i = 0; i < c->totals.tensors && c->totals.incomplete && listed < MAX_LISTED;
	     i++) {
		struct ckpt_tensor t;

		ckpt_tensor(c, i, &t);
		if (t.fault) {
			put_fault(b, &first, "tensor", t.fqn, t.fqn_len, t.fault);
			listed++;
		}
	}
	for (uint64_t i = 0; i < c->totals.objects && c->totals.incomplete && listed < MAX_LISTED;
	     i++) {
		struct ckpt_object o;

		ckpt_object(c, i, &o);
		if (o.fault) {
			put_fault(b, &first, "object", o.fqn, o.fqn_len, o.fault);
			listed++;
		}
	}
	if (!first)
		buf_str(b, "\n  ");
}

/* What hf/, pt/ and ranks/ are made of. */
static void put_model(struct buf *b, const struct ckpt *c)
{
	struct view_about a;
	uint64_t listed = 0;

	view_about(c->view, &a);
	if (!a.has_model) {
		buf_str(b, ",\n  \"model\": null");
		return;
	}
	buf_str(b, ",\n  \"model\": {\n    \"prefix\": ");
	buf_json_str(b, a.prefix, a.prefix_len);
	buf_printf(b,
		   ",\n    \"tensors\": %llu,\n    \"bytes\": %llu,\n    \"hf_files\": %llu,\n"
		   "    \"ranks\": %llu,\n    \"left_out\": [",
		   (unsigned long long)a.model_tensors, (unsigned long long)a.model_bytes,
		   (unsigned long long)a.shards, (unsigned long long)a.ranks);
	for (size_t i = 0; i < a.model_tensors && listed < a.left_out && listed < MAX_LISTED; i++) {
		struct view_tensor t;
		struct ckpt_err why;

		if (!view_left_out(c->view, i, &why))
			continue;
		view_model_tensor(c->view, i, &t);
		buf_str(b, listed++ ? ",\n      {\"tensor\": " : "\n      {\"tensor\": ");
		buf_json_str(b, t.fqn, t.fqn_len);
		buf_str(b, ", \"why\": ");
		buf_json_str(b, why.msg, strlen(why.msg));
		buf_str(b, "}");
	}
	buf_str(b, listed ? "\n    ]\n  }" : "]\n  }");
}

/* One line: what gguf/ is, or why it is not there. */
static void put_gguf(struct buf *b, const struct ckpt *c)
{
	struct view_gguf g;

	view_gguf(c->view, &g);
	buf_str(b, ",\n  \"gguf\": {");
	if (g.missing) {
		buf_str(b, "\"missing\": ");
		buf_json_str(b, g.missing, strlen(g.missing));
	} else {
		buf_printf(b,
			   "\"architecture\": \"%s\", \"dtype\": \"%s\", \"tensors\": %llu, "
			   "\"files\": %llu",
			   g.arch, g.dtype, (unsigned long long)g.tensors,
			   (unsigned long long)g.files);
	}
	buf_str(b, "}");
}

int ckpt_info_json(struct ckpt *c, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	const struct ckpt_totals *t = &c->totals;
	struct buf b = BUF_INIT(MAX_INFO);

	if (c->run)
		return run_info_json(c, ret, ret_len, e);
	buf_str(&b, "{\n  \"program\": \"ckptfs " CKPTFS_VERSION "\",\n  \"checkpoint\": ");
	buf_json_str(&b, c->root, strlen(c->root));
	buf_str(&b, ",\n  \"format\": ");
	buf_json_str(&b, t->format, strlen(t->format));
	buf_str(&b, ",\n  \"index\": ");
	buf_json_str(&b, t->index, strlen(t->index));
	buf_printf(&b,
		   ",\n  \"tensors\": %llu,\n  \"objects\": %llu,\n  \"chunks\": %llu,\n  "
		   "\"files\": %llu,\n"
		   "  \"tensor_bytes\": %llu,\n  \"stored_bytes\": %llu,\n  \"complete\": %s,\n"
		   "  \"incomplete\": %llu,\n  \"faults\": [",
		   (unsigned long long)t->tensors, (unsigned long long)t->objects,
		   (unsigned long long)t->chunks, (unsigned long long)t->files,
		   (unsigned long long)t->tensor_bytes, (unsigned long long)t->stored_bytes,
		   t->incomplete ? "false" : "true", (unsigned long long)t->incomplete);
	put_faults(&b, c);
	buf_str(&b, "]");
	put_model(&b, c);
	put_gguf(&b, c);
	buf_str(&b, "\n}\n");
	if (b.err) {
		int code = b.err;

		buf_release(&b);
		return err_set(e, code, "write info.json");
	}
	*ret = b.data;
	*ret_len = b.len;
	return 0;
}
