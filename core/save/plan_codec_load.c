/* SPDX-License-Identifier: Apache-2.0 */
/* Load plans as bytes. */
#include "base/err.h"
#include "save/plan_bytes.h"
#include "save/plan_codec.h"

enum {
	L_TENSOR = 1 << 0,
	L_SAME_NAME = 1 << 1,
	L_ONE_NAME = 1 << 2, /* it is loaded into the name that it has in the checkpoint */
	L_DEST_HINT = 1 << 3,
	L_STORAGE_HINT = 1 << 4,
	L_DEST_OFFSET = 1 << 5,
	L_STORAGE_OFFSET = 1 << 6,
	L_SAME_DIMS = 1 << 7,
	L_DEST_AT = 8, /* vectors */
	L_STORAGE_AT = L_DEST_AT + V_BITS,
	L_DEST_OFF_AT = L_STORAGE_AT + V_BITS,
	L_STORAGE_OFF_AT = L_DEST_OFF_AT + V_BITS,
	L_LEN_AT = L_STORAGE_OFF_AT + V_BITS,
	L_BYTES = 3,
};

struct read_state {
	struct pb_text name;
	size_t n_dims;
	struct pb_vec dest, storage, dest_off, storage_off, len;
};

static uint32_t read_word(const struct ckpt_read_item *i, const struct read_state *s)
{
	const struct ckpt_meta_index *d = &i->dest, *g = &i->storage;
	uint32_t v = i->type == CKPT_READ_TENSOR ? L_TENSOR : 0;
	size_t n = i->n_dims;

	v |= pb_same_text(pb_name_of(d), s->name) && s->name.s ? L_SAME_NAME : 0;
	v |= pb_same_text(pb_name_of(d), pb_name_of(g)) ? L_ONE_NAME : 0;
	v |= d->hint != CKPT_META_NO_HINT ? L_DEST_HINT : 0;
	v |= g->hint != CKPT_META_NO_HINT ? L_STORAGE_HINT : 0;
	v |= n == s->n_dims ? L_SAME_DIMS : 0;
	if (d->has_offset)
		v |= L_DEST_OFFSET | pb_vec_mode(d->offset, n, s->dest, NULL) << L_DEST_AT;
	if (g->has_offset)
		v |= L_STORAGE_OFFSET |
		     pb_vec_mode(g->offset, n, s->storage, d->has_offset ? d->offset : NULL)
			     << L_STORAGE_AT;
	v |= pb_vec_mode(i->dest_off, n, s->dest_off, NULL) << L_DEST_OFF_AT;
	v |= pb_vec_mode(i->storage_off, n, s->storage_off, i->dest_off) << L_STORAGE_OFF_AT;
	return v | pb_vec_mode(i->len, n, s->len, NULL) << L_LEN_AT;
}

static void put_read_item(struct buf *b, const struct ckpt_read_item *i, struct read_state *s)
{
	const struct ckpt_meta_index *d = &i->dest, *g = &i->storage;
	uint32_t word = read_word(i, s);
	size_t n = i->n_dims;

	pb_put_word(b, word, L_BYTES);
	if (!(word & L_SAME_NAME))
		pb_put_text(b, pb_name_of(d), s->name);
	if (!(word & L_ONE_NAME))
		pb_put_text(b, pb_name_of(g), pb_name_of(d));
	if (word & L_DEST_HINT)
		pb_put(b, (uint64_t)d->hint);
	if (word & L_STORAGE_HINT)
		pb_put(b, (uint64_t)g->hint);
	if (!(word & L_SAME_DIMS))
		pb_put_word(b, (uint32_t)n, 1);
	s->name = pb_name_of(d);
	s->n_dims = n;
	if (word & L_DEST_OFFSET)
		pb_put_vec(b, word >> L_DEST_AT, d->offset, n, &s->dest);
	if (word & L_STORAGE_OFFSET)
		pb_put_vec(b, word >> L_STORAGE_AT, g->offset, n, &s->storage);
	pb_put_vec(b, word >> L_DEST_OFF_AT, i->dest_off, n, &s->dest_off);
	pb_put_vec(b, word >> L_STORAGE_OFF_AT, i->storage_off, n, &s->storage_off);
	pb_put_vec(b, word >> L_LEN_AT, i->len, n, &s->len);
}

int load_plan_encode(const struct ckpt_load_plan *p, struct buf *b, struct ckpt_err *e)
{
	struct read_state s = { 0 };

	pb_put_word(b, 'L', 1);
	pb_put(b, p->n_items);
	for (size_t i = 0; i < p->n_items; i++) {
		const struct ckpt_read_item *x = &p->items[i];

		if (!pb_index_fits(&x->dest, x->n_dims) || !pb_index_fits(&x->storage, x->n_dims))
			return err_set(e, EINVAL, "plan: item %zu: an index of it is none", i);
		put_read_item(b, x, &s);
	}
	return pb_encoded(b, e);
}

static void get_names(struct pb_reader *r, uint32_t word, struct ckpt_read_item *i,
		      struct read_state *s)
{
	struct pb_text stored;

	if (!(word & L_SAME_NAME))
		s->name = pb_get_text(r, s->name);
	else if (!s->name.s)
		pb_refuse(r, "a name like that of nothing");
	stored = word & L_ONE_NAME ? s->name : pb_get_text(r, s->name);
	i->dest.fqn = s->name.s;
	i->dest.fqn_len = (uint32_t)s->name.len;
	i->storage.fqn = stored.s;
	i->storage.fqn_len = (uint32_t)stored.len;
	i->dest.hint = pb_get_hint(r, word & L_DEST_HINT);
	i->storage.hint = pb_get_hint(r, word & L_STORAGE_HINT);
}

static void get_read_item(struct pb_reader *r, struct ckpt_read_item *i, struct read_state *s)
{
	uint32_t word = pb_get_word(r, L_BYTES);
	size_t n;

	if (word >> (L_LEN_AT + V_BITS))
		pb_refuse(r, "flags that are none");
	i->type = word & L_TENSOR ? CKPT_READ_TENSOR : CKPT_READ_BYTE_IO;
	get_names(r, word, i, s);
	s->n_dims = n = pb_get_n_dims(r, word & L_SAME_DIMS, s->n_dims);
	i->n_dims = (uint8_t)n;
	i->dest.has_offset = word & L_DEST_OFFSET;
	i->storage.has_offset = word & L_STORAGE_OFFSET;
	if (i->dest.has_offset) {
		i->dest.n_dims = (uint8_t)n;
		i->dest.offset = pb_get_vec(r, word >> L_DEST_AT, n, &s->dest, NULL);
	}
	if (i->storage.has_offset) {
		i->storage.n_dims = (uint8_t)n;
		i->storage.offset =
			pb_get_vec(r, word >> L_STORAGE_AT, n, &s->storage, i->dest.offset);
	}
	i->dest_off = pb_get_vec(r, word >> L_DEST_OFF_AT, n, &s->dest_off, NULL);
	i->storage_off = pb_get_vec(r, word >> L_STORAGE_OFF_AT, n, &s->storage_off, i->dest_off);
	i->len = pb_get_vec(r, word >> L_LEN_AT, n, &s->len, NULL);
}

int load_plan_decode(const void *data, size_t len, struct arena *a, struct ckpt_load_plan *ret,
		     struct ckpt_err *e)
{
	struct pb_reader r = pb_reader_of(data, len, a, 'L');
	struct read_state s = { 0 };
	size_t n = pb_get_count(&r, L_BYTES);
	struct ckpt_read_item *items = pb_room(&r, n, sizeof(*items));
	int rc;

	for (size_t i = 0; items && i < n; i++) {
		get_read_item(&r, &items[i], &s);
		if (r.c.bad)
			return pb_refused(&r, "plan: item", i, e);
	}
	rc = pb_ended(&r, "plan: after item", n, e);
	if (!rc)
		*ret = (struct ckpt_load_plan){ items, n };
	return rc;
}
