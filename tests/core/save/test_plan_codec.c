/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random plans are encoded and decoded, and must stay the same. Bytes that are cut off or changed
 * are refused, or are a plan that can be used.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/err.h"
#include "codec_util.h"
#include "fault.h"
#include "rng.h"
#include "save/plan_codec.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>
#include <zstd.h>

enum { ROUNDS = 400, MAX_ITEMS = 30 };

/* Memory for the inputs, and for what is decoded. */
static struct arena in = ARENA_INIT(1 << 26), out = ARENA_INIT(1 << 26);

static void *room(size_t count, size_t size)
{
	void *p = arena_array(&in, count, size);

	REQUIRE(p);
	return p;
}

/* ---- random values: mostly like the one before, as in plans of models ---- */

static const char *random_text(struct rng *r, uint32_t *ret_len)
{
	static const char *const parts[] = {
		"model", ".", "layers", "0", "weight", "", "\xff", "a"
	};
	struct buf b = BUF_INIT(1 << 16);
	size_t n = rng_below(r, 6);
	const char *s;

	for (size_t i = 0; i < n; i++)
		buf_str(&b, parts[rng_below(r, 8)]);
	for (size_t i = 0; rng_chance(r, 3) && i < 300; i++)
		buf_str(&b, "long");
	if (rng_chance(r, 5))
		buf_add(&b, "\0x", 2);
	REQUIRE(!b.err);
	*ret_len = (uint32_t)b.len;
	s = arena_dup(&in, b.data ? b.data : "", b.len);
	REQUIRE(s);
	buf_release(&b);
	return s;
}

static const char *random_c_text(struct rng *r)
{
	uint32_t len;

	return random_text(r, &len);
}

static uint64_t random_number(struct rng *r)
{
	return rng_u64(r) >> (rng_chance(r, 10) ? 0 : 40 + rng_below(r, 24));
}

static const uint64_t *random_dims(struct rng *r, size_t n)
{
	uint64_t *v = room(n, sizeof(*v));

	for (size_t d = 0; d < n && !rng_chance(r, 30); d++)
		v[d] = random_number(r);
	return v;
}

static int32_t random_hint(struct rng *r)
{
	return rng_chance(r, 50) ? CKPT_META_NO_HINT : (int32_t)(random_number(r) & INT32_MAX);
}

static size_t random_n_dims(struct rng *r)
{
	return rng_chance(r, 2) ? CKPT_MAX_DIMS : rng_below(r, 5);
}

static struct ckpt_meta_index random_index(struct rng *r, const struct ckpt_meta_index *before,
					   size_t n)
{
	struct ckpt_meta_index x = { .hint = random_hint(r),
				     .has_offset = !n || rng_chance(r, 90) };

	if (before && rng_chance(r, 50)) {
		x.fqn = before->fqn;
		x.fqn_len = before->fqn_len;
	} else {
		x.fqn = random_text(r, &x.fqn_len);
	}
	x.n_dims = x.has_offset ? (uint8_t)n : 0;
	if (!x.has_offset)
		return x;
	x.offset = before && before->has_offset && before->n_dims == n && rng_chance(r, 50)
			   ? before->offset
			   : random_dims(r, n);
	return x;
}

static void random_chunk(struct rng *r, struct ckpt_write_item *w,
			 const struct ckpt_write_item *before)
{
	size_t n = w->index.n_dims;
	bool like = before && before->type != CKPT_WRITE_BYTE_IO && before->index.n_dims == n &&
		    rng_chance(r, 70);

	w->props = (struct ckpt_tensor_props){
		.dtype = (uint8_t)(1 + rng_below(r, CKPT_DTYPE_COUNT - 1)),
		.memory_format = (uint8_t)rng_below(r, 3),
		.requires_grad = rng_chance(r, 50),
		.pin_memory = rng_chance(r, 50)
	};
	if (like)
		w->props = before->props;
	w->size = like ? before->size : random_dims(r, n);
	w->chunk.len = rng_chance(r, 30)	   ? w->size
		       : like && rng_chance(r, 50) ? before->chunk.len
						   : random_dims(r, n);
	w->chunk.off =
		w->index.has_offset && rng_chance(r, 80) ? w->index.offset : random_dims(r, n);
}

static struct ckpt_fqn_path random_path(struct rng *r, const struct ckpt_save_plan *p)
{
	struct ckpt_fqn_path path = { .n_steps = (uint32_t)rng_below(r, 4) };
	struct ckpt_path_step *steps = room(path.n_steps, sizeof(*steps));

	path.steps = steps;
	if (p->n_items && rng_chance(r, 70)) {
		const struct ckpt_meta_index *x = &p->items[rng_below(r, p->n_items)].index;

		path.fqn = x->fqn;
		path.fqn_len = x->fqn_len;
	} else {
		path.fqn = random_text(r, &path.fqn_len);
	}
	for (size_t k = 0; k < path.n_steps; k++) {
		if (rng_chance(r, 30)) {
			steps[k].position = random_number(r);
		} else if (rng_chance(r, 50)) {
			size_t at = rng_below(r, path.fqn_len + 1);

			steps[k].key = path.fqn + at;
			steps[k].key_len = (uint32_t)rng_below(r, path.fqn_len - at + 1);
		} else {
			steps[k].key = random_text(r, &steps[k].key_len);
		}
	}
	return path;
}

static struct ckpt_save_plan random_save_plan(struct rng *r)
{
	struct ckpt_save_plan p = { .n_items = rng_below(r, MAX_ITEMS),
				    .n_paths = rng_below(r, MAX_ITEMS),
				    .unchanged = rng_chance(r, 20) };
	struct ckpt_write_item *items = room(p.n_items, sizeof(*items));
	struct ckpt_fqn_path *paths = room(p.n_paths, sizeof(*paths));
	uint32_t len;

	p.items = items;
	p.paths = paths;
	for (size_t i = 0; i < p.n_items; i++) {
		const struct ckpt_write_item *before = i ? &items[i - 1] : NULL;
		size_t n = before && rng_chance(r, 70) ? before->index.n_dims : random_n_dims(r);

		items[i].type = (uint8_t)rng_below(r, 3);
		items[i].index = random_index(r, before ? &before->index : NULL, n);
		if (items[i].type != CKPT_WRITE_BYTE_IO)
			random_chunk(r, &items[i], before);
	}
	for (size_t i = 0; i < p.n_paths; i++)
		paths[i] = random_path(r, &p);
	p.storage = random_text(r, &len);
	p.storage_len = len;
	if (!len)
		p.storage = NULL;
	return p;
}

static struct ckpt_load_plan random_load_plan(struct rng *r)
{
	struct ckpt_load_plan p = { .n_items = rng_below(r, MAX_ITEMS) };
	struct ckpt_read_item *items = room(p.n_items, sizeof(*items));

	p.items = items;
	for (size_t i = 0; i < p.n_items; i++) {
		const struct ckpt_read_item *before = i ? &items[i - 1] : NULL;
		size_t n = before && rng_chance(r, 70) ? before->n_dims : random_n_dims(r);
		struct ckpt_read_item *x = &items[i];

		x->type = (uint8_t)rng_below(r, 2);
		x->n_dims = (uint8_t)n;
		x->dest = random_index(r, before ? &before->dest : NULL, n);
		x->storage = random_index(r, &x->dest, n);
		x->dest_off = random_dims(r, n);
		x->storage_off = rng_chance(r, 50) ? x->dest_off : random_dims(r, n);
		x->len = before && before->n_dims == n ? before->len : random_dims(r, n);
	}
	return p;
}

static const struct ckpt_write_result *random_results(struct rng *r, size_t *ret_n)
{
	size_t n = *ret_n = rng_below(r, MAX_ITEMS);
	struct ckpt_write_result *v = room(n, sizeof(*v));

	for (size_t i = 0; i < n; i++) {
		struct ckpt_storage_info *s = &v[i].info;
		const struct ckpt_write_result *before = i ? &v[i - 1] : NULL;

		v[i].index = random_index(r, before ? &before->index : NULL, random_n_dims(r));
		s->path = before && rng_chance(r, 70) ? before->info.path : random_c_text(r);
		s->offset = before && rng_chance(r, 70) ? before->info.offset + before->info.length
							: random_number(r);
		s->length = random_number(r);
		if (rng_chance(r, 50)) {
			s->tensor_key = v[i].index.fqn;
			s->tensor_key_len = v[i].index.fqn_len;
		} else if (rng_chance(r, 50)) {
			s->tensor_key = random_text(r, &s->tensor_key_len);
		}
		if (rng_chance(r, 50))
			s->transform = rng_chance(r, 50) ? "stream.zstd/1" : random_c_text(r);
	}
	return v;
}

/* ---- equality ---- */

static bool same_texts(const char *a, const char *b)
{
	return !a == !b && (!a || !strcmp(a, b));
}

static bool same_indices(const struct ckpt_meta_index *a, const struct ckpt_meta_index *b)
{
	return meta_index_equal(a, b) && a->hint == b->hint;
}

static bool same_vecs(const uint64_t *a, const uint64_t *b, size_t n)
{
	return !n || !memcmp(a, b, n * sizeof(*a));
}

static bool same_save_plans(const struct ckpt_save_plan *a, const struct ckpt_save_plan *b)
{
	return save_plan_equal(a, b) && a->storage_len == b->storage_len &&
	       !a->storage == !b->storage &&
	       (!a->storage || !memcmp(a->storage, b->storage, a->storage_len));
}

static bool same_load_plans(const struct ckpt_load_plan *a, const struct ckpt_load_plan *b)
{
	bool same = a->n_items == b->n_items;

	for (size_t i = 0; same && i < a->n_items; i++) {
		const struct ckpt_read_item *x = &a->items[i], *y = &b->items[i];

		same = x->type == y->type && x->n_dims == y->n_dims &&
		       same_indices(&x->dest, &y->dest) && same_indices(&x->storage, &y->storage) &&
		       same_vecs(x->dest_off, y->dest_off, x->n_dims) &&
		       same_vecs(x->storage_off, y->storage_off, x->n_dims) &&
		       same_vecs(x->len, y->len, x->n_dims);
	}
	return same;
}

static bool same_results(const struct ckpt_write_result *a, const struct ckpt_write_result *b,
			 size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct ckpt_storage_info *x = &a[i].info, *y = &b[i].info;

		if (!same_indices(&a[i].index, &b[i].index) || !same_texts(x->path, y->path) ||
		    x->offset != y->offset || x->length != y->length ||
		    !same_texts(x->transform, y->transform) || !x->tensor_key != !y->tensor_key ||
		    x->tensor_key_len != y->tensor_key_len ||
		    (x->tensor_key_len && memcmp(x->tensor_key, y->tensor_key, x->tensor_key_len)))
			return false;
	}
	return true;
}

/* ---- the properties ---- */

enum kind { SAVE, LOAD, RESULTS, N_KINDS };

static void encode_random(struct rng *r, enum kind kind, struct buf *b, bool compare)
{
	struct ckpt_save_plan sp = { 0 }, sq;
	struct ckpt_load_plan lp = { 0 }, lq;
	const struct ckpt_write_result *v = NULL, *u;
	struct ckpt_err e = { 0 };
	size_t n = 0, m;

	switch (kind) {
	case SAVE:
		sp = random_save_plan(r);
		REQUIRE(!save_plan_encode(&sp, b, &e));
		if (compare)
			REQUIRE(!save_plan_decode(b->data, b->len, &out, &sq, &e) &&
				same_save_plans(&sp, &sq));
		break;
	case LOAD:
		lp = random_load_plan(r);
		REQUIRE(!load_plan_encode(&lp, b, &e));
		if (compare)
			REQUIRE(!load_plan_decode(b->data, b->len, &out, &lq, &e) &&
				same_load_plans(&lp, &lq));
		break;
	default:
		v = random_results(r, &n);
		REQUIRE(!write_results_encode(v, n, b, &e));
		if (compare)
			REQUIRE(!write_results_decode(b->data, b->len, &out, &u, &m, &e) &&
				m == n && same_results(v, u, n));
	}
}

/* Returns 0 if the bytes are a value that can be used. They are copied so that sanitizers see reads
 * beyond their end. */
static int decode(enum kind kind, const void *data, size_t len, struct ckpt_err *e)
{
	char *copy = malloc(len + !len);
	const struct ckpt_write_result *v;
	struct ckpt_save_plan sp;
	struct ckpt_load_plan lp;
	size_t n;
	int rc;

	REQUIRE(copy);
	if (len)
		memcpy(copy, data, len);
	rc = kind == SAVE   ? save_plan_decode(copy, len, &out, &sp, e)
	     : kind == LOAD ? load_plan_decode(copy, len, &out, &lp, e)
			    : write_results_decode(copy, len, &out, &v, &n, e);
	free(copy);
	if (!rc)
		REQUIRE(kind == SAVE   ? save_plan_ok(&sp)
			: kind == LOAD ? load_plan_ok(&lp)
				       : results_ok(v, n));
	else
		REQUIRE((rc == -ERR_CORRUPT || rc == -ENOMEM) && e->code == -rc && e->msg[0]);
	arena_release(&out);
	return rc;
}

/* The bytes without their frame. */
static struct buf flat_of(const struct buf *b)
{
	struct buf flat = BUF_INIT(1 << 26);
	unsigned long long size;

	if (b->len < 4 || load_le32(b->data) != ZSTD_MAGICNUMBER) {
		buf_add(&flat, b->data, b->len);
		return flat;
	}
	size = ZSTD_getFrameContentSize(b->data, b->len);
	REQUIRE(size < flat.max && buf_room(&flat, size));
	flat.len = ZSTD_decompress(flat.data, size, b->data, b->len);
	REQUIRE(flat.len == size);
	return flat;
}

START_LOOP_TEST(what_is_decoded_is_what_was_encoded, N_KINDS)
{
	struct rng r = rng_new();

	for (int round = 0; round < (int)rng_rounds(ROUNDS, ROUNDS / 4); round++) {
		struct buf b = BUF_INIT(1 << 26);

		encode_random(&r, (enum kind)_i, &b, true);
		buf_release(&b);
		arena_release(&in);
		arena_release(&out);
	}
}
END_TEST

static void cut(enum kind kind, struct buf *b)
{
	struct ckpt_err e = { 0 };

	for (size_t n = 0; n<b->len; n += b->len> 4000 ? 7 : 1)
		REQUIRE(decode(kind, b->data, n, &e) == -ERR_CORRUPT);
	buf_add(b, "x", 1);
	REQUIRE(decode(kind, b->data, b->len, &e) == -ERR_CORRUPT);
}

START_LOOP_TEST(cut_bytes_are_refused, N_KINDS)
{
	struct rng r = rng_new();

	for (int round = 0; round < 20; round++) {
		struct buf b = BUF_INIT(1 << 26), flat;

		encode_random(&r, (enum kind)_i, &b, false);
		flat = flat_of(&b);
		cut((enum kind)_i, &b);
		cut((enum kind)_i, &flat);
		buf_release(&b);
		buf_release(&flat);
		arena_release(&in);
	}
}
END_TEST

START_LOOP_TEST(changed_bytes_are_refused_or_another_plan, N_KINDS)
{
	struct rng r = rng_new();
	size_t refused = 0, taken = 0;

	for (int round = 0; round < (int)rng_rounds(ROUNDS, ROUNDS / 4); round++) {
		struct buf b = BUF_INIT(1 << 26), flat;
		struct buf *x = rng_chance(&r, 30) ? &b : &flat;

		encode_random(&r, (enum kind)_i, &b, false);
		flat = flat_of(&b);
		for (int i = 0; i < 30; i++) {
			struct ckpt_err e = { 0 };
			size_t at = rng_below(&r, x->len);
			char old = x->data[at];

			x->data[at] = (char)(rng_chance(&r, 50)
						     ? rng_u64(&r)
						     : (uint64_t)(old ^ 1 << rng_below(&r, 8)));
			*(decode((enum kind)_i, x->data, x->len, &e) ? &refused : &taken) += 1;
			if (rng_chance(&r, 70))
				x->data[at] = old;
		}
		buf_release(&b);
		buf_release(&flat);
		arena_release(&in);
	}
	ck_assert(refused && taken);
}
END_TEST

/* ---- what is refused, and why ---- */

/* A message of each kind with one item; the table below numbers the words of its records. */
static struct buf one_item(enum kind kind)
{
	static const uint64_t off[] = { 0 }, len[] = { 4 }, size[] = { 8 };
	const struct ckpt_meta_index x = { "w", off, 1, CKPT_META_NO_HINT, 1, true };
	const struct ckpt_write_item w = { .index = x,
					   .chunk = { off, len },
					   .size = size,
					   .props = { .dtype = CKPT_DTYPE_BF16 },
					   .type = CKPT_WRITE_SHARD };
	const struct ckpt_path_step step = { .key = "w", .key_len = 1 };
	const struct ckpt_fqn_path path = { "w", &step, 1, 1 };
	const struct ckpt_save_plan sp = { &w, 1, &path, 1, NULL, 0, false };
	const struct ckpt_read_item i = {
		x, x, off, off, len, CKPT_READ_TENSOR, 1,
	};
	const struct ckpt_load_plan lp = { &i, 1 };
	const struct ckpt_write_result res = { x, { .path = "p", .length = 8 } };
	struct buf b = BUF_INIT(1 << 10), flat;
	struct ckpt_err e = { 0 };

	REQUIRE(!(kind == SAVE	 ? save_plan_encode(&sp, &b, &e)
		  : kind == LOAD ? load_plan_encode(&lp, &b, &e)
				 : write_results_encode(&res, 1, &b, &e)));
	flat = flat_of(&b);
	buf_release(&b);
	return flat;
}

#define NO_INDEX "an index of the wrong number of dimensions"
#define NO_TEXT	 "a text outside the message's texts"
#define NO_NUMS	 "an offset, length or shape outside the message's numbers"
#define NO_FIT	 "more or fewer bytes than its header says"

static const struct {
	enum kind kind;
	int word; /* of the records; if negative, back from the end of the header */
	uint32_t value;
	const char *msg;
} bad[] = {
	{ SAVE, -6, 'L', "plan: bytes of another kind" },
	{ SAVE, -6, 'S' | 2 << 8, "plan: bytes of another kind" },
	{ SAVE, -5, 0xffffffff, "plan: " NO_FIT },
	{ SAVE, -4, 0xffffffff, "plan: " NO_FIT },
	{ SAVE, -3, 0xffffffff, "plan: " NO_FIT },
	{ SAVE, -2, 0xffffffff, "plan: more of them than records" },
	{ SAVE, -2, 0, "plan: path 0: " NO_TEXT },
	{ SAVE, -1, 0xffffffff, "plan: more of them than records" },
	{ SAVE, -1, 0, "plan: more records than its header says" },
	{ SAVE, 0, 3, "plan: item 0: an unknown type" },
	{ SAVE, 0, 1 << 8, "plan: item 0: an unknown type" },
	{ SAVE, 0, 1, "plan: item 0: properties that no tensor has" },
	{ SAVE, 0, 1 | 1 << 8 | 3 << 16, "plan: item 0: properties that no tensor has" },
	{ SAVE, 0, 1 | 1 << 8 | 1 << 26, "plan: item 0: properties that no tensor has" },
	{ SAVE, 1, 2, "plan: item 0: " NO_TEXT },
	{ SAVE, 1, 0xffffffff, "plan: item 0: " NO_TEXT },
	{ SAVE, 2, 0, "plan: item 0: " NO_TEXT },
	{ SAVE, 2, 2, "plan: item 0: " NO_TEXT },
	{ SAVE, 2, 0xffffffff, "plan: item 0: " NO_TEXT },
	{ SAVE, 3, 0x80000000, "plan: item 0: a hint below -1" },
	{ SAVE, 4, 65, "plan: item 0: too many dimensions" },
	{ SAVE, 4, 4, "plan: item 0: " NO_NUMS },
	{ SAVE, 5, 3, "plan: item 0: " NO_NUMS },
	{ SAVE, 6, 0xffffffff, "plan: item 0: " NO_NUMS },
	{ SAVE, 7, 3, "plan: item 0: " NO_NUMS },
	{ SAVE, 8, 3, "plan: item 0: " NO_NUMS },
	{ SAVE, 9, 2, "plan: path 0: " NO_TEXT },
	{ SAVE, 11, 0xffffffff, "plan: path 0: more steps than records" },
	{ SAVE, 11, 2, "plan: its records end too early" },
	{ SAVE, 12, 7, "plan: path 0: " NO_TEXT },
	{ SAVE, 12, 0xffffffff, NULL }, /* a position, which may be any number */
	{ SAVE, 14, 7, "plan: " NO_TEXT },
	{ LOAD, -6, 'S', "plan: bytes of another kind" },
	{ LOAD, -2, 2, "plan: more of them than records" },
	{ LOAD, 0, 2, "plan: item 0: an unknown type" },
	{ LOAD, 1, 65, "plan: item 0: too many dimensions" },
	{ LOAD, 1, 2, "plan: item 0: " NO_INDEX },
	{ LOAD, 4, 0x80000000, "plan: item 0: a hint below -1" },
	{ LOAD, 10, 0, "plan: item 0: " NO_INDEX },
	{ LOAD, 14, 9, "plan: item 0: " NO_NUMS },
	{ RESULTS, -6, 'S', "write results: bytes of another kind" },
	{ RESULTS, -2, 2, "write results: more of them than records" },
	{ RESULTS, 5, 0xffffffff, "write result 0: " NO_TEXT },
	{ RESULTS, 6, 0, "write result 0: " NO_TEXT },
	{ RESULTS, 5, 0, NULL }, /* another text */
	{ RESULTS, 11, 9, "write result 0: " NO_NUMS },
};

START_LOOP_TEST(what_is_wrong_is_said, (int)(sizeof(bad) / sizeof(bad[0])))
{
	struct buf b = one_item(bad[_i].kind);
	struct ckpt_err e = { 0 };
	char *to = b.data + 24 + 4 * bad[_i].word;

	if (bad[_i].word >= 0)
		to += 8 * (size_t)load_le32(b.data + 4);
	(void)put_le((uint8_t *)to, bad[_i].value, 4);
	ck_assert_int_eq(!decode(bad[_i].kind, b.data, b.len, &e), !bad[_i].msg);
	if (bad[_i].msg)
		ck_assert_str_eq(e.msg, bad[_i].msg);
	buf_release(&b);
}
END_TEST

START_TEST(a_path_ends_at_its_nul)
{
	struct buf b = one_item(RESULTS); /* its texts are "w", "p" */
	struct ckpt_err e = { 0 };
	uint8_t *record = (uint8_t *)b.data + 24 + 8 * (size_t)load_le32(b.data + 4);

	(void)put_le(put_le(record + 5 * 4, 0, 4), 3, 4);
	ck_assert_int_eq(decode(RESULTS, b.data, b.len, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "write result 0: a NUL in a path or transform");
	buf_release(&b);
}
END_TEST

START_TEST(a_frame_that_holds_too_much_takes_no_memory)
{
	size_t size = 64 << 20, n;
	struct arena a = ARENA_INIT(1 << 20);
	struct ckpt_save_plan p;
	struct ckpt_err e = { 0 };
	char *zeros = calloc(size, 1), *frame = malloc(ZSTD_compressBound(size));

	ck_assert(zeros && frame);
	n = ZSTD_compress(frame, ZSTD_compressBound(size), zeros, size, 1);
	ck_assert_uint_lt(n, size / 1024);
	ck_assert_int_eq(save_plan_decode(frame, n, &a, &p, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "plan: bytes that are not one zstd frame of a plan");
	ck_assert_uint_eq(a.bytes, 0);
	free(zeros);
	free(frame);
}
END_TEST

START_TEST(a_plan_that_says_one_thing_often_is_sent)
{
	enum { N = 200000 };
	static const uint64_t v[] = { 0, 4 };
	struct ckpt_write_item *items = room(N, sizeof(*items));
	struct ckpt_save_plan p = { .items = items, .n_items = N }, q;
	struct buf b = BUF_INIT(1 << 26);
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < N; i++)
		items[i] = (struct ckpt_write_item){ .index = { "w", v, 1, 0, 1, true },
						     .chunk = { v, v + 1 },
						     .size = v + 1,
						     .props = { .dtype = CKPT_DTYPE_BF16 },
						     .type = CKPT_WRITE_SHARD };
	ck_assert(!save_plan_encode(&p, &b, &e));
	ck_assert(!save_plan_decode(b.data, b.len, &out, &q, &e) && same_save_plans(&p, &q));
	buf_release(&b);
	arena_release(&in);
	arena_release(&out);
}
END_TEST

START_TEST(an_index_without_its_dimensions_is_not_encoded)
{
	static const uint64_t v[100];
	struct ckpt_write_item w = { .index = { "w", v, 1, CKPT_META_NO_HINT, 65, true } };
	struct ckpt_read_item x = { .dest = { "w", v, 1, CKPT_META_NO_HINT, 1, true },
				    .storage = { "w", v, 1, CKPT_META_NO_HINT, 2, true },
				    .dest_off = v,
				    .storage_off = v,
				    .len = v,
				    .n_dims = 1 };
	struct ckpt_write_result res = { .index = { "w", v, 1, -2, 1, true },
					 .info = { .path = "p" } };
	struct ckpt_save_plan sp = { .items = &w, .n_items = 1 };
	struct ckpt_load_plan lp = { &x, 1 };
	struct buf b = BUF_INIT(1 << 10);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(save_plan_encode(&sp, &b, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "plan: item 0: an index of the wrong number of dimensions");
	w.index.n_dims = 1;
	w.index.has_offset = false;
	ck_assert_int_eq(save_plan_encode(&sp, &b, &e), -EINVAL);
	ck_assert_int_eq(load_plan_encode(&lp, &b, &e), -EINVAL);
	ck_assert_int_eq(write_results_encode(&res, 1, &b, &e), -EINVAL);
	res.index.hint = 0;
	res.info.path = NULL;
	ck_assert_int_eq(write_results_encode(&res, 1, &b, &e), -EINVAL);
	buf_release(&b);
}
END_TEST

START_TEST(a_model_of_many_chunks_takes_few_bytes)
{
	enum { LAYERS = 500, RANKS = 8, N = LAYERS * RANKS };
	struct ckpt_write_item *items = room(N, sizeof(*items));
	struct ckpt_save_plan p = { .items = items, .n_items = N };
	struct buf b = BUF_INIT(1 << 26);
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < N; i++) {
		uint64_t *dims = room(6, sizeof(*dims));
		char name[64];

		(void)snprintf(name, sizeof(name), "model.layers.%zu.mlp.weight", i / RANKS);
		memcpy(dims, (uint64_t[]){ i % RANKS * 512, 0, 512, 14336, 4096, 14336 }, 48);
		items[i] = (struct ckpt_write_item){ .index = { arena_dup(&in, name, strlen(name)),
								dims, (uint32_t)strlen(name),
								CKPT_META_NO_HINT, 2, true },
						     .chunk = { dims, dims + 2 },
						     .size = dims + 4,
						     .props = { .dtype = CKPT_DTYPE_BF16 },
						     .type = CKPT_WRITE_SHARD };
	}
	ck_assert(!save_plan_encode(&p, &b, &e));
	ck_assert_uint_lt(b.len, N * 8);
	buf_release(&b);
	arena_release(&in);
}
END_TEST

START_TEST(without_memory_nothing_is_made)
{
	struct rng r = rng_new();
	struct buf b = BUF_INIT(1 << 26);
	struct ckpt_save_plan p = random_save_plan(&r), q;
	struct ckpt_err e = { 0 };

	ck_assert(!save_plan_encode(&p, &b, &e));
	for (size_t max = 0;; max += 997) {
		struct arena small = ARENA_INIT(max);
		int rc = save_plan_decode(b.data, b.len, &small, &q, &e);

		REQUIRE(!rc || rc == -ENOMEM);
		REQUIRE(rc || same_save_plans(&p, &q));
		arena_release(&small);
		if (!rc)
			break;
	}
	for (size_t max = 0; max < b.len; max++) {
		struct buf small = BUF_INIT(max);

		REQUIRE(save_plan_encode(&p, &small, &e) == -EFBIG);
		buf_release(&small);
	}
	buf_release(&b);
	arena_release(&in);
}
END_TEST

SUITE(plan_codec, .seconds = 60)
