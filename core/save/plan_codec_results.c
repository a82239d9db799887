/* SPDX-License-Identifier: Apache-2.0 */
/* Write results as bytes. */
#include "base/err.h"
#include "save/plan_bytes.h"
#include "save/plan_codec.h"

enum {
	R_SAME_NAME = 1 << 0,
	R_HINT = 1 << 1,
	R_OFFSET = 1 << 2,
	R_SAME_DIMS = 1 << 3,
	R_SAME_PATH = 1 << 4,
	R_FOLLOWS = 1 << 5, /* it begins where the one before ends */
	R_KEY = 1 << 6,
	R_KEY_IS_NAME = 1 << 7,
	R_TRANSFORM = 1 << 8,
	R_SAME_TRANSFORM = 1 << 9,
	R_INDEX_AT = 10, /* vector */
	R_BYTES = 2,
};

struct result_state {
	struct pb_text name, path, key, transform;
	size_t n_dims;
	struct pb_vec index;
	uint64_t end;
};

static uint32_t result_word(const struct ckpt_write_result *w, const struct result_state *s)
{
	const struct ckpt_meta_index *x = &w->index;
	const struct ckpt_storage_info *i = &w->info;
	struct pb_text key = { i->tensor_key, i->tensor_key_len };
	uint32_t v = 0;

	v |= pb_same_text(pb_name_of(x), s->name) && s->name.s ? R_SAME_NAME : 0;
	v |= x->hint != CKPT_META_NO_HINT ? R_HINT : 0;
	v |= x->n_dims == s->n_dims ? R_SAME_DIMS : 0;
	v |= s->path.s && pb_same_text(pb_c_text(i->path), s->path) ? R_SAME_PATH : 0;
	v |= i->offset == s->end ? R_FOLLOWS : 0;
	if (i->tensor_key)
		v |= R_KEY | (pb_same_text(key, pb_name_of(x)) ? R_KEY_IS_NAME : 0);
	if (i->transform)
		v |= R_TRANSFORM |
		     (s->transform.s && pb_same_text(pb_c_text(i->transform), s->transform)
			      ? R_SAME_TRANSFORM
			      : 0);
	if (x->has_offset)
		v |= R_OFFSET | pb_vec_mode(x->offset, x->n_dims, s->index, NULL) << R_INDEX_AT;
	return v;
}

static void put_info(struct buf *b, uint32_t word, const struct ckpt_storage_info *i,
		     struct result_state *s)
{
	struct pb_text key = { i->tensor_key, i->tensor_key_len };

	if (!(word & R_SAME_PATH))
		pb_put_text(b, pb_c_text(i->path), s->path);
	if (!(word & R_FOLLOWS))
		pb_put(b, i->offset);
	pb_put(b, i->length);
	if ((word & R_KEY) && !(word & R_KEY_IS_NAME))
		pb_put_text(b, key, s->key);
	if ((word & R_TRANSFORM) && !(word & R_SAME_TRANSFORM))
		pb_put_text(b, pb_c_text(i->transform), s->transform);
	s->path = pb_c_text(i->path);
	s->end = i->offset + i->length;
	if (word & R_KEY)
		s->key = key;
	if (word & R_TRANSFORM)
		s->transform = pb_c_text(i->transform);
}

static void put_result(struct buf *b, const struct ckpt_write_result *w, struct result_state *s)
{
	const struct ckpt_meta_index *x = &w->index;
	uint32_t word = result_word(w, s);

	pb_put_word(b, word, R_BYTES);
	if (!(word & R_SAME_NAME))
		pb_put_text(b, pb_name_of(x), s->name);
	if (word & R_HINT)
		pb_put(b, (uint64_t)x->hint);
	if (!(word & R_SAME_DIMS))
		pb_put_word(b, x->n_dims, 1);
	s->name = pb_name_of(x);
	s->n_dims = x->n_dims;
	if (word & R_OFFSET)
		pb_put_vec(b, word >> R_INDEX_AT, x->offset, x->n_dims, &s->index);
	put_info(b, word, &w->info, s);
}

int write_results_encode(const struct ckpt_write_result *v, size_t n, struct buf *b,
			 struct ckpt_err *e)
{
	struct result_state s = { 0 };

	pb_put_word(b, 'R', 1);
	pb_put(b, n);
	for (size_t i = 0; i < n; i++) {
		if (!pb_index_fits(&v[i].index, v[i].index.n_dims) || !v[i].info.path)
			return err_set(e, EINVAL,
				       "write result %zu: its index is none, or it has no path", i);
		put_result(b, &v[i], &s);
	}
	return pb_encoded(b, e);
}

static void get_info(struct pb_reader *r, uint32_t word, struct ckpt_storage_info *i,
		     struct result_state *s)
{
	if (!(word & R_SAME_PATH))
		s->path = pb_get_c_text(r, s->path);
	else if (!s->path.s)
		pb_refuse(r, "a path like that of nothing");
	i->path = s->path.s;
	i->offset = word & R_FOLLOWS ? s->end : cursor_varint(&r->c);
	i->length = cursor_varint(&r->c);
	s->end = i->offset + i->length; /* may wrap, on both sides */
	if (word & R_KEY) {
		s->key = word & R_KEY_IS_NAME ? s->name : pb_get_text(r, s->key);
		i->tensor_key = s->key.s;
		i->tensor_key_len = (uint32_t)s->key.len;
	}
	if (!(word & R_TRANSFORM))
		return;
	if (!(word & R_SAME_TRANSFORM))
		s->transform = pb_get_c_text(r, s->transform);
	else if (!s->transform.s)
		pb_refuse(r, "a transform like that of nothing");
	i->transform = s->transform.s;
}

static void get_result(struct pb_reader *r, struct ckpt_write_result *w, struct result_state *s)
{
	uint32_t word = pb_get_word(r, R_BYTES);
	struct ckpt_meta_index *x = &w->index;

	if (word >> (R_INDEX_AT + V_BITS))
		pb_refuse(r, "flags that are none");
	if (!(word & R_SAME_NAME))
		s->name = pb_get_text(r, s->name);
	else if (!s->name.s)
		pb_refuse(r, "a name like that of nothing");
	x->fqn = s->name.s;
	x->fqn_len = (uint32_t)s->name.len;
	x->hint = pb_get_hint(r, word & R_HINT);
	s->n_dims = pb_get_n_dims(r, word & R_SAME_DIMS, s->n_dims);
	x->n_dims = (uint8_t)s->n_dims;
	x->has_offset = word & R_OFFSET;
	if (x->has_offset)
		x->offset = pb_get_vec(r, word >> R_INDEX_AT, s->n_dims, &s->index, NULL);
	if (!pb_index_fits(x, s->n_dims))
		pb_refuse(r, "dimensions without an offset");
	get_info(r, word, &w->info, s);
}

int write_results_decode(const void *data, size_t len, struct arena *a,
			 const struct ckpt_write_result **ret, size_t *ret_n, struct ckpt_err *e)
{
	struct pb_reader r = pb_reader_of(data, len, a, 'R');
	struct result_state s = { 0 };
	size_t n = pb_get_count(&r, R_BYTES + 1);
	struct ckpt_write_result *v = pb_room(&r, n, sizeof(*v));
	int rc;

	for (size_t i = 0; v && i < n; i++) {
		get_result(&r, &v[i], &s);
		if (r.c.bad)
			return pb_refused(&r, "write result", i, e);
	}
	rc = pb_ended(&r, "write results: after", n, e);
	if (rc)
		return rc;
	*ret = v;
	*ret_n = n;
	return 0;
}
