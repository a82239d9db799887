/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	save plan      'S' unchanged n-items item... n-paths path... storage
 *	load plan      'L' n-items item...             (plan_codec_load.c)
 *	write results  'R' n-results result...         (plan_codec_results.c)
 *
 * plan_bytes.h says how numbers and names are written.
 */
#include "save/plan_codec.h"
#include "base/checked.h"
#include "base/err.h"
#include "save/plan_bytes.h"

/* ---- write items ---- */

enum {
	W_TYPE = 3, /* mask */
	W_SAME_NAME = 1 << 2,
	W_HINT = 1 << 3,
	W_OFFSET = 1 << 4,
	W_SAME_PROPS = 1 << 5,
	W_SAME_DIMS = 1 << 6,
	W_INDEX_AT = 7, /* vectors, by their place in the word */
	W_OFF_AT = W_INDEX_AT + V_BITS,
	W_LEN_AT = W_OFF_AT + V_BITS,
	W_SIZE_AT = W_LEN_AT + V_BITS,
	W_BYTES = 2,
};

/* What the item before was like, on both sides. */
struct write_state {
	struct pb_text name;
	struct ckpt_tensor_props props;
	size_t n_dims;
	struct pb_vec index, off, len, size;
};

static uint32_t write_word(const struct ckpt_write_item *w, const struct write_state *s)
{
	const struct ckpt_meta_index *x = &w->index;
	bool is_tensor = w->type != CKPT_WRITE_BYTE_IO;
	uint32_t v = w->type;

	v |= pb_same_text(pb_name_of(x), s->name) && s->name.s ? W_SAME_NAME : 0;
	v |= x->hint != CKPT_META_NO_HINT ? W_HINT : 0;
	v |= x->n_dims == s->n_dims ? W_SAME_DIMS : 0;
	if (x->has_offset)
		v |= W_OFFSET |
		     pb_vec_mode(x->offset, x->n_dims, s->index, is_tensor ? w->chunk.off : NULL)
			     << W_INDEX_AT;
	if (!is_tensor)
		return v;
	v |= tensor_props_equal(&w->props, &s->props) ? W_SAME_PROPS : 0;
	v |= pb_vec_mode(w->chunk.off, x->n_dims, s->off, NULL) << W_OFF_AT;
	v |= pb_vec_mode(w->chunk.len, x->n_dims, s->len, w->size) << W_LEN_AT;
	return v | pb_vec_mode(w->size, x->n_dims, s->size, NULL) << W_SIZE_AT;
}

static void put_props(struct buf *b, struct ckpt_tensor_props p)
{
	pb_put_word(b,
		    p.dtype | (uint32_t)p.memory_format << 8 | (p.requires_grad ? 1u << 16 : 0) |
			    (p.pin_memory ? 1u << 17 : 0),
		    3);
}

static void put_write_item(struct buf *b, const struct ckpt_write_item *w, struct write_state *s)
{
	const struct ckpt_meta_index *x = &w->index;
	uint32_t word = write_word(w, s);

	pb_put_word(b, word, W_BYTES);
	if (!(word & W_SAME_NAME))
		pb_put_text(b, pb_name_of(x), s->name);
	if (word & W_HINT)
		pb_put(b, (uint64_t)x->hint);
	if (!(word & W_SAME_DIMS))
		pb_put_word(b, x->n_dims, 1);
	s->name = pb_name_of(x);
	s->n_dims = x->n_dims;
	if (w->type != CKPT_WRITE_BYTE_IO) {
		if (!(word & W_SAME_PROPS))
			put_props(b, w->props);
		s->props = w->props;
		pb_put_vec(b, word >> W_SIZE_AT, w->size, x->n_dims, &s->size);
		pb_put_vec(b, word >> W_LEN_AT, w->chunk.len, x->n_dims, &s->len);
		pb_put_vec(b, word >> W_OFF_AT, w->chunk.off, x->n_dims, &s->off);
	}
	if (word & W_OFFSET)
		pb_put_vec(b, word >> W_INDEX_AT, x->offset, x->n_dims, &s->index);
}

static struct ckpt_tensor_props get_props(struct pb_reader *r)
{
	uint32_t v = pb_get_word(r, 3);
	struct ckpt_tensor_props p = { .dtype = (uint8_t)v,
				       .memory_format = (uint8_t)(v >> 8),
				       .requires_grad = v >> 16 & 1,
				       .pin_memory = v >> 17 & 1 };

	if (p.dtype == CKPT_DTYPE_NONE || p.dtype >= CKPT_DTYPE_COUNT ||
	    p.memory_format > CKPT_MEMORY_PRESERVE || v >> 18)
		pb_refuse(r, "properties that no tensor has");
	return p;
}

static void get_tensor(struct pb_reader *r, uint32_t word, struct ckpt_write_item *w,
		       struct write_state *s)
{
	if (!(word & W_SAME_PROPS))
		s->props = get_props(r);
	else if (s->props.dtype == CKPT_DTYPE_NONE)
		pb_refuse(r, "properties like those of nothing");
	w->props = s->props;
	w->size = pb_get_vec(r, word >> W_SIZE_AT, s->n_dims, &s->size, NULL);
	w->chunk.len = pb_get_vec(r, word >> W_LEN_AT, s->n_dims, &s->len, w->size);
	w->chunk.off = pb_get_vec(r, word >> W_OFF_AT, s->n_dims, &s->off, NULL);
}

static void get_write_item(struct pb_reader *r, struct ckpt_write_item *w, struct write_state *s)
{
	uint32_t word = pb_get_word(r, W_BYTES);
	struct ckpt_meta_index *x = &w->index;

	w->type = word & W_TYPE;
	if (w->type > CKPT_WRITE_SHARD || word >> (W_SIZE_AT + V_BITS))
		pb_refuse(r, "a type that is none");
	if (!(word & W_SAME_NAME))
		s->name = pb_get_text(r, s->name);
	else if (!s->name.s)
		pb_refuse(r, "a name like that of nothing");
	x->fqn = s->name.s;
	x->fqn_len = (uint32_t)s->name.len;
	x->hint = pb_get_hint(r, word & W_HINT);
	s->n_dims = pb_get_n_dims(r, word & W_SAME_DIMS, s->n_dims);
	x->n_dims = (uint8_t)s->n_dims;
	if (w->type != CKPT_WRITE_BYTE_IO)
		get_tensor(r, word, w, s);
	x->has_offset = word & W_OFFSET;
	if (x->has_offset)
		x->offset = pb_get_vec(r, word >> W_INDEX_AT, s->n_dims, &s->index, w->chunk.off);
	if (!pb_index_fits(x, s->n_dims))
		pb_refuse(r, "dimensions without an offset");
}

/* ---- paths ---- */

/*
 * The names of a plan's paths are mostly those of its items, in their order: this steps through
 * the items' names, each once.
 */
struct name_walk {
	const struct ckpt_write_item *items;
	size_t n, at;
};

static struct pb_text walk_name(const struct name_walk *w)
{
	return w->at < w->n ? pb_name_of(&w->items[w->at].index) : (struct pb_text){ 0 };
}

static void walk_on(struct name_walk *w)
{
	struct pb_text t = walk_name(w);

	do
		w->at++;
	while (w->at < w->n && pb_same_text(t, walk_name(w)));
}

enum step_kind { STEP_POSITION, STEP_IN_FQN, STEP_KEY };

static void put_step(struct buf *b, const struct ckpt_path_step *s, struct pb_text fqn)
{
	const char *in = s->key && fqn.s ? memmem(fqn.s, fqn.len, s->key, s->key_len) : NULL;

	pb_put(b, in ? STEP_IN_FQN : s->key ? STEP_KEY : STEP_POSITION);
	if (in)
		pb_put(b, (uint64_t)(in - fqn.s));
	pb_put(b, s->key ? s->key_len : s->position);
	if (s->key && !in)
		buf_add(b, s->key, s->key_len);
}

static void put_paths(struct buf *b, const struct ckpt_save_plan *p)
{
	struct name_walk w = { p->items, p->n_items, 0 };
	struct pb_text last = { 0 };

	pb_put(b, p->n_paths);
	for (size_t i = 0; i < p->n_paths; i++) {
		const struct ckpt_fqn_path *path = &p->paths[i];
		struct pb_text fqn = { path->fqn, path->fqn_len };
		bool walks = w.at < w.n && pb_same_text(fqn, walk_name(&w));

		pb_put(b, (uint64_t)path->n_steps << 1 | walks);
		if (walks)
			walk_on(&w);
		else
			pb_put_text(b, fqn, last);
		last = fqn;
		for (size_t k = 0; k < path->n_steps; k++)
			put_step(b, &path->steps[k], fqn);
	}
}

static void get_step(struct pb_reader *r, struct ckpt_path_step *s, struct pb_text fqn)
{
	uint64_t kind = cursor_varint(&r->c), at = 0, v;

	if (kind > STEP_KEY)
		pb_refuse(r, "a step that is none");
	if (kind == STEP_IN_FQN)
		at = cursor_varint(&r->c);
	v = cursor_varint(&r->c);
	if (kind == STEP_POSITION) {
		s->position = v;
		return;
	}
	if (kind == STEP_IN_FQN && !range_ok(at, v, fqn.len))
		pb_refuse(r, "a key outside its name");
	if (v > UINT32_MAX)
		pb_refuse(r, "a key of more bytes than there are");
	if (kind == STEP_KEY) {
		const uint8_t *p = cursor_take(&r->c, v);

		s->key = p ? pb_room(r, v + 1, 1) : NULL;
		if (s->key && v)
			memcpy((char *)(uintptr_t)s->key, p, v);
	}
	if (r->c.bad)
		return;
	if (kind == STEP_IN_FQN)
		s->key = fqn.s + at;
	s->key_len = (uint32_t)v;
}

static void get_path(struct pb_reader *r, struct ckpt_fqn_path *p, struct name_walk *w,
		     struct pb_text *last)
{
	uint64_t v = cursor_varint(&r->c);
	struct ckpt_path_step *steps;

	if (v >> 1 > UINT32_MAX) {
		pb_refuse(r, "too many steps");
		return;
	}
	if (!(v & 1)) {
		*last = pb_get_text(r, *last);
	} else if (w->at < w->n) {
		*last = walk_name(w);
		walk_on(w);
	} else {
		pb_refuse(r, "a name like that of nothing");
	}
	p->fqn = last->s;
	p->fqn_len = (uint32_t)last->len;
	p->n_steps = (uint32_t)(v >> 1);
	if (p->n_steps > pb_left(r) / 2)
		pb_refuse(r, "more steps than bytes");
	p->steps = steps = pb_room(r, p->n_steps, sizeof(*steps));
	for (size_t k = 0; steps && k < p->n_steps && !r->c.bad; k++)
		get_step(r, &steps[k], *last);
}

static int get_paths(struct pb_reader *r, struct ckpt_save_plan *p, struct ckpt_err *e)
{
	struct name_walk w = { p->items, p->n_items, 0 };
	struct ckpt_fqn_path *paths;
	struct pb_text last = { 0 };

	p->n_paths = pb_get_count(r, 1);
	p->paths = paths = pb_room(r, p->n_paths, sizeof(*paths));
	for (size_t i = 0; paths && i < p->n_paths; i++) {
		get_path(r, &paths[i], &w, &last);
		if (r->c.bad)
			return pb_refused(r, "plan: path", i, e);
	}
	return 0;
}

/* ---- save plans ---- */

int save_plan_encode(const struct ckpt_save_plan *p, struct buf *b, struct ckpt_err *e)
{
	struct write_state s = { 0 };

	pb_put_word(b, 'S' | (p->unchanged ? 1u << 8 : 0), 2);
	pb_put(b, p->n_items);
	for (size_t i = 0; i < p->n_items; i++) {
		if (!pb_index_fits(&p->items[i].index, p->items[i].index.n_dims))
			return err_set(e, EINVAL, "plan: item %zu: its index is none", i);
		put_write_item(b, &p->items[i], &s);
	}
	put_paths(b, p);
	pb_put(b, p->storage_len);
	if (p->storage_len)
		buf_add(b, p->storage, p->storage_len);
	return pb_encoded(b, e);
}

static void get_storage(struct pb_reader *r, struct ckpt_save_plan *p)
{
	size_t n = pb_get_count(r, 1);
	const uint8_t *from = cursor_take(&r->c, n);
	void *to = n ? pb_room(r, n, 1) : NULL;

	if (!to || !from)
		return;
	memcpy(to, from, n);
	p->storage = to;
	p->storage_len = n;
}

int save_plan_decode(const void *data, size_t len, struct arena *a, struct ckpt_save_plan *ret,
		     struct ckpt_err *e)
{
	struct pb_reader r = pb_reader_of(data, len, a, 'S');
	uint32_t unchanged = pb_get_word(&r, 1);
	struct write_state s = { 0 };
	struct ckpt_save_plan p = { .unchanged = unchanged };
	struct ckpt_write_item *items;
	int rc;

	if (unchanged > 1)
		pb_refuse(&r, "neither changed nor unchanged");
	p.n_items = pb_get_count(&r, W_BYTES);
	p.items = items = pb_room(&r, p.n_items, sizeof(*items));
	for (size_t i = 0; items && i < p.n_items; i++) {
		get_write_item(&r, &items[i], &s);
		if (r.c.bad)
			return pb_refused(&r, "plan: item", i, e);
	}
	rc = get_paths(&r, &p, e);
	if (rc)
		return rc;
	get_storage(&r, &p);
	rc = pb_ended(&r, "plan: after item", p.n_items, e);
	if (!rc)
		*ret = p;
	return rc;
}
