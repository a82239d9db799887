/* SPDX-License-Identifier: Apache-2.0 */
#include "store/object_form.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/err.h"
#include "parse/json_text.h"
#include "parse/pickle.h"
#include "parse/pickle_write.h"
#include "store/torch_item.h"

#include <jansson.h>
#include <string.h>

#define MAX_LOOK ((size_t)256 << 20) /* bytes of memory to look at a pickle with */
enum { MAX_DEPTH = 100 };	     /* of JSON: what this program writes is no deeper */

/* ---- pickles ---- */

/* Storages are named by persistent ids: with one the pickle does not stand alone. */
static int refuse_id(void *arg, const struct pk_value *id, struct ckpt_err *e)
{
	(void)arg;
	(void)id;
	return err_set(e, ERR_UNSUPPORTED, "persistent id");
}

/* Is this one whole pickle that needs nothing else? 1, 0, or -ENOMEM. */
static int is_pickle(const uint8_t *p, size_t len, struct ckpt_err *e)
{
	const struct pickle_input in = { .mem = p, .mem_len = len };
	const struct pickle_opts opts = { .persid = refuse_id,
					  .max_bytes = MAX_LOOK,
					  .drop_unknown = true };
	struct pickle *k;
	struct ckpt_err why;
	bool whole;

	if (len < 3 || p[0] != 0x80 || p[len - 1] != OP_STOP)
		return 0;
	if (pickle_load(&in, &opts, &k, &why)) {
		if (why.code == ENOMEM)
			*e = why;
		return why.code == ENOMEM ? -ENOMEM : 0;
	}
	whole = pickle_end(k) == len;
	pickle_free(k);
	return whole;
}

static void add_bytes_pickle(const void *data, size_t len, struct buf *b)
{
	uint8_t head[11] = { OP_PROTO, 4, OP_BINBYTES8 };

	(void)put_le(head + 3, len, 8);
	buf_add(b, head, sizeof(head));
	buf_add(b, data, len);
	buf_add(b, (const char[]){ OP_STOP }, 1);
}

/* ---- JSON ---- */

static bool write_value(struct pickle_writer *w, const json_t *v, int depth);

static bool write_list(struct pickle_writer *w, const json_t *v, int depth)
{
	size_t n = json_array_size(v);
	bool ok = true;

	pw_op(w, OP_EMPTY_LIST);
	for (size_t i = 0; ok && i < n; i++) {
		pw_batch(w, OP_APPENDS, i);
		ok = write_value(w, json_array_get(v, i), depth);
	}
	pw_batches_end(w, OP_APPENDS, n);
	return ok;
}

static bool write_dict(struct pickle_writer *w, const json_t *v, int depth)
{
	json_t *dict = json_incref((json_t *)(uintptr_t)v), *value;
	const char *key;
	size_t n = 0;
	bool ok = true;

	pw_op(w, OP_EMPTY_DICT);
	json_object_foreach (dict, key, value) {
		pw_batch(w, OP_SETITEMS, n++);
		pw_str(w, key, strlen(key));
		ok = ok && write_value(w, value, depth);
	}
	pw_batches_end(w, OP_SETITEMS, n);
	json_decref(dict);
	return ok;
}

static void write_real(struct pickle_writer *w, double v)
{
	uint8_t big[9] = { OP_BINFLOAT };
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	bits = htobe64(bits);
	memcpy(big + 1, &bits, sizeof(bits));
	buf_add(w->out, big, sizeof(big));
}

static bool write_value(struct pickle_writer *w, const json_t *v, int depth)
{
	if (depth > MAX_DEPTH)
		return false;
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return write_dict(w, v, depth + 1);
	case JSON_ARRAY:
		return write_list(w, v, depth + 1);
	case JSON_STRING:
		pw_str(w, json_string_value(v), json_string_length(v));
		return true;
	case JSON_INTEGER:
		pw_int(w, json_integer_value(v));
		return true;
	case JSON_REAL:
		write_real(w, json_real_value(v));
		return true;
	case JSON_NULL:
		pw_op(w, OP_NONE);
		return true;
	default:
		pw_bool(w, json_is_true(v));
		return true;
	}
}

/* The value; or, where the library cannot hold it, the text. */
static int json_to_pickle(const char *text, size_t len, struct buf *b, struct ckpt_err *e)
{
	struct pickle_writer w;
	json_error_t why;
	json_t *v;
	int rc;

	v = json_text_load(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
	if (!v && json_text_code(&why, 0))
		return err_set(e, ENOMEM, "out of memory");
	pw_begin(&w, b, 2, false);
	if (!v)
		pw_str(&w, text, len && text[len - 1] == '\n' ? len - 1 : len);
	else if (!write_value(&w, v, 0)) {
		json_decref(v);
		b->len = 0;
		(void)pw_end(&w);
		return err_set(e, ERR_UNSUPPORTED, "an object nests deeper than %d levels",
			       MAX_DEPTH);
	}
	json_decref(v);
	rc = pw_end(&w);
	return rc ? err_sys(e, -rc, "object of %zu bytes", len) : 0;
}

/* ---- forms ---- */

/* The pickle in an archive, if it needs nothing else in there. */
static int plain_pickle(const void *data, size_t len, const void **ret, size_t *ret_n,
			struct ckpt_err *e)
{
	int rc = torch_item_unwrap(data, len, ret, ret_n, e);

	return rc > 0 ? is_pickle(*ret, *ret_n, e) : rc;
}

/* An archive that holds more than a pickle: it stays what it is. */
static int is_more(const void *data, size_t len, struct ckpt_err *e)
{
	const void *p;
	size_t n;
	int rc = torch_item_is(data, len, e);

	if (rc <= 0)
		return rc;
	rc = plain_pickle(data, len, &p, &n, e);
	return rc < 0 ? rc : !rc;
}

static int to_torch(enum object_form from, const void *data, size_t len, struct buf *ret,
		    struct ckpt_err *e)
{
	struct buf pickle = BUF_INIT(ret->max);
	int rc = from == OBJECT_PICKLE ? is_more(data, len, e) : 0;

	if (rc > 0)
		buf_add(ret, data, len);
	if (rc)
		return rc < 0 ? rc : 0;
	if (from == OBJECT_JSON) {
		rc = json_to_pickle(data, len, &pickle, e);
	} else {
		rc = is_pickle(data, len, e);
		if (!rc)
			add_bytes_pickle(data, len, &pickle);
		rc = rc < 0 ? rc : 0;
	}
	if (!rc && pickle.err)
		rc = err_sys(e, pickle.err, "object of %zu bytes", len);
	if (!rc && pickle.len)
		rc = torch_item_wrap(pickle.data, pickle.len, ret, e);
	else if (!rc)
		rc = torch_item_wrap(data, len, ret, e);
	buf_release(&pickle);
	return rc;
}

static int to_pickle(enum object_form from, const void *data, size_t len, struct buf *ret,
		     struct ckpt_err *e)
{
	const void *pickle = data;
	size_t n = len;
	int rc;

	if (from == OBJECT_JSON)
		return json_to_pickle(data, len, ret, e);
	rc = plain_pickle(data, len, &pickle, &n, e);
	if (rc > 0)
		buf_add(ret, pickle, n);
	else if (!rc)
		buf_add(ret, data, len);
	return rc < 0 ? rc : 0;
}

int object_convert(enum object_form from, enum object_form to, const void *data, size_t len,
		   struct buf *ret, struct ckpt_err *e)
{
	int rc = 0;

	if (from == to)
		buf_add(ret, data, len);
	else if (to == OBJECT_TORCH)
		rc = to_torch(from, data, len, ret, e);
	else
		rc = to_pickle(from, data, len, ret, e);
	return !rc && ret->err ? err_sys(e, ret->err, "object of %zu bytes", len) : rc;
}
