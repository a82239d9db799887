/* SPDX-License-Identifier: Apache-2.0 */
#include "store/object_form.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "parse/pickle.h"
#include "parse/pickle_write.h"
#include "store/torch_item.h"

#include <math.h>
#include <string.h>

#define MAX_LOOK ((size_t)256 << 20) /* bytes of memory for examining a pickle */
enum { MAX_DEPTH = 100 };	     /* of JSON, as this program writes it */

/* ---- pickles ---- */

/* Storages are named by persistent ids: a pickle that has one is not self-contained. */
static int refuse_id(void *arg, const struct pk_value *id, struct ckpt_err *e)
{
	(void)arg;
	(void)id;
	return err_set(e, ERR_UNSUPPORTED, "persistent id");
}

/* Is this one whole, self-contained pickle? 1, 0, or -ENOMEM. */
static int is_pickle(const uint8_t *p, size_t len, struct ckpt_err *e)
{
	const struct pickle_input in = { .mem = p, .mem_len = len };
	const struct pickle_opts opts = {
		.persid = refuse_id, .max_bytes = MAX_LOOK, .keep_long = true, .drop_unknown = true
	};
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

static bool write_value(struct pickle_writer *w, struct jval v, int depth);

static bool write_list(struct pickle_writer *w, struct jval v, int depth)
{
	struct jiter i = jiter(v);
	size_t n = 0;
	bool ok = true;

	pw_op(w, OP_EMPTY_LIST);
	while (ok && jiter_next(&i)) {
		pw_batch(w, OP_APPENDS, n++);
		ok = write_value(w, i.v, depth);
	}
	pw_batches_end(w, OP_APPENDS, n);
	return ok;
}

static bool write_dict(struct pickle_writer *w, struct jval v, int depth)
{
	struct jiter i = jiter(v);
	size_t n = 0;
	bool ok = true;

	pw_op(w, OP_EMPTY_DICT);
	while (ok && jiter_next(&i)) {
		pw_batch(w, OP_SETITEMS, n++);
		pw_str(w, i.key, i.key_len);
		ok = write_value(w, i.v, depth);
	}
	pw_batches_end(w, OP_SETITEMS, n);
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

/* A number that JSON cannot express, in pickle_json's form. */
static bool is_real(struct jval v, double *ret)
{
	static const struct {
		const char *text;
		double value;
	} reals[] = { { "nan", NAN }, { "inf", INFINITY }, { "-inf", -INFINITY } };

	for (size_t i = 0; i < ARRAY_LEN(reals); i++)
		if (jval_is_str(jval_get(v, "__class__"), "builtins.float") &&
		    jval_is_str(jval_get(v, "value"), reals[i].text)) {
			*ret = reals[i].value;
			return true;
		}
	return false;
}

static bool write_value(struct pickle_writer *w, struct jval v, int depth)
{
	const char *digits;
	size_t len = 0;
	int64_t n = 0;
	double x = 0;

	if (depth > MAX_DEPTH)
		return false;
	switch (jval_type(v)) {
	case J_OBJECT:
		if (is_real(v, &x)) {
			write_real(w, x);
			return true;
		}
		return write_dict(w, v, depth + 1);
	case J_ARRAY:
		return write_list(w, v, depth + 1);
	case J_STRING:
		pw_str(w, jval_str(v), jval_len(v));
		return true;
	case J_INT:
		(void)jval_int(v, &n);
		pw_int(w, n);
		return true;
	case J_BIG_INT:
		digits = jval_digits(v, &len);
		return pw_digits(w, digits, len);
	case J_REAL:
		(void)jval_number(v, &x);
		write_real(w, x);
		return true;
	case J_NULL:
		pw_op(w, OP_NONE);
		return true;
	default:
		pw_bool(w, jval_is(v, J_TRUE));
		return true;
	}
}

/* Writes the value, or the text itself if it is not JSON. */
static int json_to_pickle(const char *text, size_t len, struct buf *b, struct ckpt_err *e)
{
	const unsigned flags = JDOC_ANY | JDOC_DUPLICATES | JDOC_PICKLED;
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	struct pickle_writer w;
	struct ckpt_err why;
	bool is_json = !jdoc_parse_copy(&d, text, len, flags, &why);
	int rc;

	if (!is_json && why.code != ERR_CORRUPT)
		return err_set(e, why.code, "%s", why.msg);
	pw_begin(&w, b, 2, false);
	if (!is_json)
		pw_str(&w, text, len && text[len - 1] == '\n' ? len - 1 : len);
	else if (!write_value(&w, jdoc_root(&d), 0)) {
		b->len = 0;
		(void)pw_end(&w);
		return err_set(e, ERR_UNSUPPORTED,
			       "an object nests deeper than %d levels, or has a number of more "
			       "than 255 bytes",
			       MAX_DEPTH);
	}
	rc = pw_end(&w);
	return rc ? err_sys(e, -rc, "object of %zu bytes", len) : 0;
}

/* ---- forms ---- */

/* The pickle in an archive, if the pickle is self-contained. */
static int plain_pickle(const void *data, size_t len, const void **ret, size_t *ret_n,
			struct ckpt_err *e)
{
	int rc = torch_item_unwrap(data, len, ret, ret_n, e);

	return rc > 0 ? is_pickle(*ret, *ret_n, e) : rc;
}

/* Is this an archive that holds more than a pickle? It is kept as it is. */
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

/* A pickle of a list of the value of a pickle, or of the bytes if they are something else. */
static int list_pickle(const struct buf *value, struct buf *ret, struct ckpt_err *e)
{
	static const char open_list[] = { OP_EMPTY_LIST }, close_list[] = { OP_APPEND, OP_STOP };
	struct buf bytes = BUF_INIT(ret->max);
	const struct buf *v = value;
	int rc = is_pickle((const uint8_t *)value->data, value->len, e);

	if (rc < 0)
		return rc;
	if (!rc) {
		add_bytes_pickle(value->data, value->len, &bytes);
		v = &bytes;
	}
	if (bytes.err) {
		rc = err_sys(e, bytes.err, "object of %zu bytes", value->len);
	} else {
		/* The list is begun after PROTO and its operand, and ended in place of STOP. */
		buf_add(ret, v->data, 2);
		buf_add(ret, open_list, sizeof(open_list));
		buf_add(ret, (const char *)v->data + 2, v->len - 3);
		buf_add(ret, close_list, sizeof(close_list));
		rc = 0;
	}
	buf_release(&bytes);
	return rc;
}

static int to_listed(enum object_form from, const void *data, size_t len, struct buf *ret,
		     struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf value = BUF_INIT(ret->max);
	CLEANUP(buf_release) struct buf list = BUF_INIT(ret->max);
	int rc = to_pickle(from, data, len, &value, e);

	if (!rc && !value.err)
		rc = list_pickle(&value, &list, e);
	if (!rc && (value.err || list.err))
		rc = err_sys(e, value.err ? value.err : list.err, "object of %zu bytes", len);
	return rc ? rc : torch_item_wrap(list.data, list.len, ret, e);
}

int object_convert(enum object_form from, enum object_form to, const void *data, size_t len,
		   struct buf *ret, struct ckpt_err *e)
{
	int rc = 0;

	if (from == to)
		buf_add(ret, data, len);
	else if (to == OBJECT_TORCH)
		rc = to_torch(from, data, len, ret, e);
	else if (to == OBJECT_LISTED)
		rc = to_listed(from, data, len, ret, e);
	else
		rc = to_pickle(from, data, len, ret, e);
	return !rc && ret->err ? err_sys(e, ret->err, "object of %zu bytes", len) : rc;
}
