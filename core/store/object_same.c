/* SPDX-License-Identifier: Apache-2.0 */
#include "store/object_same.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "parse/pickle.h"
#include "parse/pickle_json.h"
#include "parse/pickle_ops.h"
#include "parse/pickle_same.h"
#include "store/torch_item.h"

#include <string.h>

/* An object's value; for JSON only the text. */
struct value {
	struct pk_value v;
	struct pickle *pickle;
	struct pk_strings *strings;
};

static void release(struct value *x)
{
	pickle_free(x->pickle);
	pk_strings_free(x->strings);
}

/* Is b the result of converting a to b's form? 1, 0, or -ENOMEM. */
static int is_converted(const struct object_bytes *a, const struct object_bytes *b,
			struct ckpt_err *e)
{
	struct buf made CLEANUP(buf_release) = BUF_INIT((size_t)2 * OBJECT_SAME_MAX);
	struct ckpt_err why = { 0 };

	if (a->form == b->form || b->form == OBJECT_JSON)
		return 0;
	if (object_convert(a->form, b->form, a->data, a->len, &made, &why)) {
		if (why.code == ENOMEM)
			*e = why;
		return why.code == ENOMEM ? -ENOMEM : 0;
	}
	return bytes_equal(made.data, made.len, b->data, b->len);
}

/* Bytes that are not a pickle are a bytes value, as in HyperParallel. */
static int take_bytes(const void *data, size_t len, struct value *ret, struct ckpt_err *e)
{
	ret->strings = pk_strings_new((size_t)2 * OBJECT_SAME_MAX);
	ret->v = (struct pk_value){ .type = PK_BYTES };
	ret->v.s = ret->strings ? pk_intern(ret->strings, data, len) : NULL;
	return ret->v.s ? 0 : err_nomem(e);
}

static int note_id(void *arg, const struct pk_value *id, struct ckpt_err *e)
{
	bool *found = arg;

	(void)id;
	(void)e;
	*found = true;
	return 0;
}

static int take_value(const struct object_bytes *x, struct value *ret, struct ckpt_err *e)
{
	bool has_ids = false; /* of storages: the pickle is not self-contained */
	const struct pickle_opts opts = { .persid = note_id,
					  .arg = &has_ids,
					  .max_bytes = OBJECT_SAME_MEMORY,
					  .keep_long = true };
	struct pickle_input in = { .mem = x->data, .mem_len = x->len };
	struct ckpt_err why = { 0 };
	int archive = torch_item_unwrap(x->data, x->len, &in.mem, &in.mem_len, e), rc;

	if (!archive && torch_item_is(x->data, x->len, e) > 0)
		return err_set(e, ERR_UNSUPPORTED, "tensors in objects are not compared");
	if (archive < 0)
		return archive;
	if (!in.mem_len || *(const uint8_t *)in.mem != OP_PROTO)
		return take_bytes(x->data, x->len, ret, e);
	rc = pickle_load(&in, &opts, &ret->pickle, &why);
	if (rc == -ENOMEM)
		return err_nomem(e);
	if (rc == -EFBIG)
		return err_set(e, ERR_UNSUPPORTED, "their values need too much memory");
	if (!rc && has_ids && archive)
		return err_set(e, ERR_UNSUPPORTED, "tensors in objects are not compared");
	if (rc || has_ids || pickle_end(ret->pickle) != in.mem_len)
		return take_bytes(x->data, x->len, ret, e);
	ret->v = pickle_root(ret->pickle);
	return 0;
}

/* Equal texts of pickle_json are equal values, unless something is missing in them. */
static int same_if_whole(const struct object_bytes *json, struct ckpt_err *e)
{
	return pickle_json_lacks(json->data, json->len)
		       ? err_set(e, ERR_UNSUPPORTED, "a part of it has no text form")
		       : 1;
}

/* Compares JSON text of this program with the text of another object. */
static int same_text(const struct object_bytes *json, const struct pk_value *v, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT((size_t)4 * OBJECT_SAME_MAX);
	int rc = pickle_json(v, &text, e);

	buf_str(&text, "\n");
	if (rc == -ENOMEM || (!rc && text.err == ENOMEM))
		return err_nomem(e);
	if (rc || text.err)
		return err_set(e, ERR_UNSUPPORTED, "it has no text");
	if (!bytes_equal(text.data, text.len, json->data, json->len))
		return 0;
	return same_if_whole(json, e);
}

static int same_values(const struct object_bytes *a, const struct object_bytes *b,
		       struct ckpt_err *e)
{
	struct value x CLEANUP(release) = { 0 }, y CLEANUP(release) = { 0 };
	bool a_text = a->form == OBJECT_JSON, b_text = b->form == OBJECT_JSON;
	const char *why = "";
	int rc = a_text ? 0 : take_value(a, &x, e);

	if (!rc && !b_text)
		rc = take_value(b, &y, e);
	if (rc || (a_text && b_text))
		return rc;
	if (a_text || b_text)
		return a_text ? same_text(a, &y.v, e) : same_text(b, &x.v, e);
	switch (pk_compare(&x.v, &y.v, &why)) {
	case PK_SAME:
		return 1;
	case PK_DIFFERENT:
		return 0;
	default:
		return err_set(e, ERR_UNSUPPORTED, "%s", why);
	}
}

int object_same(const struct object_bytes *a, const struct object_bytes *b, struct ckpt_err *e)
{
	int rc;

	if (a->form == b->form && bytes_equal(a->data, a->len, b->data, b->len))
		return a->form == OBJECT_JSON ? same_if_whole(a, e) : 1;
	rc = is_converted(a, b, e);
	if (!rc)
		rc = is_converted(b, a, e);
	return rc ? rc : same_values(a, b, e);
}
