/* SPDX-License-Identifier: Apache-2.0 */
#include "store/object_json.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "parse/pickle.h"
#include "parse/pickle_json.h"
#include "parse/pickle_ops.h"
#include "store/torch_item.h"

static const struct pk_value unknown = { .type = PK_OPAQUE };

/* Appends the text, or the reason why there is none. */
static int add_value(const struct pk_value *v, struct buf *ret, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(OBJECT_JSON_TEXT);
	struct ckpt_err why = { 0 };
	int rc = pickle_json(v, &text, &why);

	if (rc == -ENOMEM)
		return err_set(e, ENOMEM, "%s", why.msg);
	if (rc)
		pickle_json_error(v, why.msg, ret);
	else
		buf_add(ret, text.data, text.len);
	return 0;
}

CLEANUP_POINTER(free_strings, struct pk_strings, pk_strings_free)

/* Appends bytes that are not a pickle. */
static int add_bytes(const void *data, size_t len, struct buf *ret, struct ckpt_err *e)
{
	struct pk_strings *strings CLEANUP(free_strings) = pk_strings_new(2 * len + (64 << 10));
	struct pk_value v = { .type = PK_BYTES };

	v.s = strings ? pk_intern(strings, data, len) : NULL;
	return v.s ? add_value(&v, ret, e) : err_nomem(e);
}

static int add_pickle(const struct pickle_input *in, bool archived, struct buf *ret,
		      struct ckpt_err *e)
{
	const struct pickle_opts opts = { .max_bytes = OBJECT_JSON_MEMORY, .keep_long = true };
	struct ckpt_err why = { 0 };
	struct pk_value v = unknown;
	struct pickle *p = NULL;
	int rc = pickle_load(in, &opts, &p, &why);
	bool whole = !rc && pickle_end(p) == in->mem_len;

	if (!rc)
		v = pickle_root(p);
	if (rc == -ENOMEM)
		rc = err_set(e, ENOMEM, "%s", why.msg);
	else if (!archived && (rc ? why.code != EFBIG : !whole))
		rc = add_bytes(in->mem, in->mem_len, ret, e);
	else if (!rc)
		rc = add_value(&v, ret, e);
	else {
		pickle_json_error(&v, why.msg, ret);
		rc = 0;
	}
	pickle_free(p);
	return rc;
}

int object_json(enum object_form form, const void *data, size_t len, struct buf *ret,
		struct ckpt_err *e)
{
	struct pickle_input in = { .mem = data, .mem_len = len };
	int rc;

	if (form == OBJECT_JSON) {
		buf_add(ret, data, len);
		return ret->err ? err_set(e, ret->err, "out of memory") : 0;
	}
	rc = torch_item_pickle(data, len, &in.mem, &in.mem_len, e);
	if (rc < 0)
		return rc;
	if (rc || (len && *(const unsigned char *)data == OP_PROTO))
		rc = add_pickle(&in, rc, ret, e);
	else
		rc = add_bytes(data, len, ret, e);
	buf_str(ret, "\n");
	return !rc && ret->err ? err_set(e, ret->err, "out of memory") : rc;
}

void object_json_too_long(uint64_t len, struct buf *ret)
{
	struct ckpt_err why;

	(void)err_set(&why, EFBIG, "it has %llu bytes, and is shown up to %d",
		      (unsigned long long)len, OBJECT_JSON_MAX);
	pickle_json_error(&unknown, why.msg, ret);
	buf_str(ret, "\n");
}
