/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints read through planners, by ranks that hold boxes of tensors. What they get is compared
 * with the same boxes cut out of the tensors' files.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "ckpt/ckpt_reader.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fixture_util.h"
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_storage.h>

#include <fcntl.h>
#include <unistd.h>

enum { MAX_SHARDS = 4, GUARD = 16 };

/* ---- a rank's state dict ---- */

struct held {
	struct ckpt_shard shards[MAX_SHARDS];
	uint64_t off[MAX_SHARDS][CKPT_MAX_DIMS], len[MAX_SHARDS][CKPT_MAX_DIMS];
	struct ckpt_local_tensor t;
	uint8_t *whole; /* the tensor as the file has it */
	enum ckpt_dtype from;
};

struct rank {
	struct ckpt *c;
	struct held *held; /* by tensor */
	struct ckpt_state_entry *entries;
	struct ckpt_state_dict dict;
	uint64_t tensors, objects, objects_taken;
};

static uint8_t *read_node(struct ckpt *c, ckpt_node node, uint64_t *ret)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!ckpt_file_open(c, node, &f, &e), "%s", e.msg);
	*ret = ckpt_file_size(f);
	return fixture_read(f);
}

/* Slabs along one dimension, with or without gaps. */
static size_t random_slabs(struct rng *r, struct held *h, const struct ckpt_tensor *t)
{
	size_t n = 1 + rng_below(r, MAX_SHARDS), d = rng_below(r, t->n_dims);
	uint64_t at = 0;

	for (size_t i = 0; i < n; i++) {
		random_box(r, t->n_dims, t->shape, h->off[i], h->len[i]);
		h->off[i][d] = at + rng_below(r, t->shape[d] - at + 1);
		h->len[i][d] = rng_below(r, t->shape[d] - h->off[i][d] + 1);
		at = h->off[i][d] + h->len[i][d];
	}
	return n;
}

static size_t random_shards(struct rng *r, struct held *h, const struct ckpt_tensor *t)
{
	h->t.kind = (uint8_t)rng_below(r, 3);
	if (h->t.kind == CKPT_LOCAL_SHARDS && t->n_dims)
		return random_slabs(r, h, t);
	if (h->t.kind == CKPT_LOCAL_BOX) {
		random_box(r, t->n_dims, t->shape, h->off[0], h->len[0]);
		return 1;
	}
	if (t->n_dims)
		memcpy(h->len[0], t->shape, t->n_dims * sizeof(uint64_t));
	return 1;
}

static void hold_tensor(struct rank *k, uint64_t i, const struct ckpt_tensor *t, struct rng *r)
{
	static const enum ckpt_dtype others[] = { CKPT_DTYPE_F32, CKPT_DTYPE_BF16, CKPT_DTYPE_F16 };
	struct held *h = &k->held[i];
	enum ckpt_dtype to;
	uint64_t bytes;

	h->from = to = ckpt_dtype_by_name(t->dtype, strlen(t->dtype));
	if (rng_chance(r, 30))
		to = others[rng_below(r, ARRAY_LEN(others))];
	if (!cast_possible(h->from, to))
		to = h->from;
	h->whole = read_node(k->c, ckpt_tensor_node(k->c, i), &bytes);
	h->t.n_shards = random_shards(r, h, t);
	for (size_t s = 0; s < h->t.n_shards; s++) {
		uint64_t volume = 0;
		uint8_t *p;

		REQUIRE(box_volume(t->n_dims, h->len[s], &volume));
		p = malloc(volume * dtype_info(to)->size + GUARD);
		REQUIRE(p);
		memset(p, 0xa5, volume * dtype_info(to)->size + GUARD);
		h->shards[s] = (struct ckpt_shard){ h->off[s], h->len[s], p };
	}
	h->t.n_dims = (uint8_t)t->n_dims;
	h->t.shape = t->shape;
	h->t.props.dtype = (uint8_t)to;
	h->t.shards = h->shards;
	k->entries[k->dict.count++] = (struct ckpt_state_entry){ .fqn = t->fqn,
								 .fqn_len = (uint32_t)t->fqn_len,
								 .tensor = &h->t };
}

static void rank_init(struct rank *k, struct ckpt *c, struct rng *r)
{
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	*k = (struct rank){ .c = c, .tensors = t.tensors };
	k->held = calloc(t.tensors + 1, sizeof(*k->held));
	k->entries = calloc(t.tensors + t.objects + 1, sizeof(*k->entries));
	REQUIRE(k->held && k->entries);
	k->dict.entries = k->entries;
	for (uint64_t i = 0; i < t.tensors; i++) {
		struct ckpt_tensor x;

		ckpt_tensor(c, i, &x);
		if (!x.fault)
			hold_tensor(k, i, &x, r);
	}
	for (uint64_t i = 0; i < t.objects; i++) {
		struct ckpt_object o;

		ckpt_object(c, i, &o);
		if (o.fault || ckpt_tensor_find(c, o.fqn, o.fqn_len) >= 0)
			continue;
		k->objects++;
		k->entries[k->dict.count++] =
			(struct ckpt_state_entry){ .fqn = o.fqn, .fqn_len = (uint32_t)o.fqn_len };
	}
}

static void rank_release(struct rank *k)
{
	for (uint64_t i = 0; i < k->tensors; i++) {
		for (size_t s = 0; s < k->held[i].t.n_shards; s++)
			free(k->held[i].shards[s].data);
		free(k->held[i].whole);
	}
	free(k->held);
	free(k->entries);
}

static void check_rank(const struct rank *k)
{
	REQUIRE(k->objects_taken == k->objects);
	for (uint64_t i = 0; i < k->tensors; i++) {
		const struct held *h = &k->held[i];
		size_t size = dtype_info(h->from)->size, n = h->t.n_dims;
		enum ckpt_dtype to = h->t.props.dtype;

		for (size_t s = 0; s < h->t.n_shards; s++) {
			uint64_t bytes, count;
			autofree uint8_t *want = cut_box(h->whole, size, n, h->t.shape, h->off[s],
							 h->len[s], &bytes);
			autofree uint8_t *cast = malloc(bytes / size * dtype_info(to)->size + 1);
			const uint8_t *got = h->shards[s].data;

			REQUIRE(cast);
			count = bytes / size;
			if (to != h->from)
				cast_run(h->from, to, want, cast, count);
			REQUIRE(!memcmp(got, to == h->from ? want : cast,
					count * dtype_info(to)->size));
			got += count * dtype_info(to)->size;
			for (int g = 0; g < GUARD; g++)
				REQUIRE(got[g] == 0xa5);
		}
	}
}

static int take_object(void *arg, const struct ckpt_state_entry *entry, const void *data,
		       size_t len, struct ckpt_err *e)
{
	struct rank *k = arg;
	int64_t i = ckpt_object_find(k->c, entry->fqn, entry->fqn_len);
	uint64_t n;
	autofree uint8_t *want = read_node(k->c, ckpt_object_node(k->c, (uint64_t)i), &n);

	(void)e;
	REQUIRE(n == len && !memcmp(want, data, n));
	k->objects_taken++;
	return 0;
}

/* ---- loading ---- */

static int load(struct ckpt_storage_reader *s, const char *id, const struct ckpt_state_dict *dict,
		void *arg, struct ckpt_err *e)
{
	const struct ckpt_load_planning opt = { .take_bytes = take_object, .arg = arg };
	const struct ckpt_storage_ranks alone = { .rank = 0, .size = 1 };
	struct ckpt_load_planner p = { 0 };
	struct ckpt_load_plan mine, plan;
	const struct ckpt_metadata *md = NULL;
	int rc = ckpt_load_planner_new(CKPT_PLANNER_DCP, &p, e);

	if (!rc)
		rc = ckpt_storage_reader_reset(s, id, e);
	if (!rc)
		rc = ckpt_storage_reader_read_metadata(s, &md, e);
	if (!rc)
		rc = ckpt_storage_reader_set_up(s, md, &alone, e);
	if (!rc)
		rc = ckpt_load_planner_configure(&p, dict, md, &opt, e);
	if (!rc)
		rc = ckpt_load_planner_local_plan(&p, &mine, e);
	if (!rc)
		rc = ckpt_storage_reader_prepare_local_plan(s, &mine, &mine, e);
	if (!rc)
		rc = ckpt_load_planner_global_plan(&p, &mine, 1, &plan, e);
	if (!rc)
		rc = ckpt_storage_reader_prepare_global_plan(s, &plan, 1, e);
	if (!rc)
		rc = ckpt_load_planner_finish(&p, &plan, &plan, e);
	if (!rc)
		rc = ckpt_storage_reader_read_data(s, &plan, &p, e);
	ckpt_load_planner_free(&p);
	return rc;
}

static struct ckpt_storage_reader new_reader(const struct ckpt_opts *opts)
{
	struct ckpt_storage_reader s;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!ckpt_reader_new(words_of(opts), &s, &e), "%s", e.msg);
	return s;
}

/* ---- every fixture ---- */

static const struct ckpt_opts options[] = { { .runs = false }, { .dtype = "bf16" } };

START_TEST(every_rank_gets_what_it_holds)
{
	struct ckpt_opts opts = options[_i % ARRAY_LEN(options)];
	struct ckpt_storage_reader s;
	struct rng r = rng_new();
	char path[4400];
	struct ckpt *c;

	c = fixture_open(_i / (int)ARRAY_LEN(options), &opts, path);
	if (!c)
		return;
	opts.index = ":memory:";
	opts.allow_missing = true;
	s = new_reader(&opts);
	for (int rank = 0; rank < 4; rank++) {
		struct ckpt_err e = { 0 };
		struct rank k;

		rank_init(&k, c, &r);
		ck_assert_msg(!load(&s, path, &k.dict, &k, &e), "%s", e.msg);
		check_rank(&k);
		rank_release(&k);
	}
	ckpt_storage_reader_free(&s);
	ckpt_close(c);
}
END_TEST

static void check_entry(struct ckpt *c, uint64_t i, const struct ckpt_meta_entry *m)
{
	struct arena a = ARENA_INIT(1 << 20);
	struct ckpt_fqn_path path;
	struct ckpt_meta_entry x;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	uint64_t volume = 0, chunks = 0, one;

	ckpt_tensor(c, i, &t);
	REQUIRE(m->fqn_len == t.fqn_len && !memcmp(m->fqn, t.fqn, t.fqn_len) && m->is_tensor);
	REQUIRE(!strcmp(dtype_info(m->tensor.props.dtype)->name, t.dtype));
	REQUIRE(m->tensor.n_dims == t.n_dims &&
		(!t.n_dims || !memcmp(m->tensor.size, t.shape, t.n_dims * sizeof(uint64_t))));
	REQUIRE(m->tensor.n_chunks == (t.fault ? 1 : t.chunks));
	for (size_t k = 0; k < m->tensor.n_chunks; k++) {
		REQUIRE(box_volume(t.n_dims, m->tensor.chunks[k].len, &one));
		chunks += one;
	}
	REQUIRE(box_volume(t.n_dims, t.shape, &volume) && chunks >= volume);
	REQUIRE(!ckpt_reader_tensor(c, i, &a, &x, &path, &e));
	REQUIRE(x.fqn_len == m->fqn_len && !memcmp(x.fqn, m->fqn, m->fqn_len));
	REQUIRE(x.tensor.n_chunks == m->tensor.n_chunks);
	arena_release(&a);
}

START_TEST(the_metadata_is_what_is_shown)
{
	struct ckpt_opts opts = { .dtype = "fp32" };
	char path[4400];
	struct ckpt *c = fixture_open(_i, &opts, path);
	struct ckpt_totals totals;
	struct ckpt_storage_reader s;
	const struct ckpt_metadata *md;
	struct ckpt_step step;
	struct ckpt_err e = { 0 };
	size_t paths = 0;

	if (!c)
		return;
	opts.index = ":memory:";
	opts.allow_missing = true;
	s = new_reader(&opts);
	ckpt_totals(c, &totals);
	REQUIRE(!ckpt_storage_reader_reset(&s, path, &e));
	ck_assert_msg(!ckpt_storage_reader_read_metadata(&s, &md, &e), "%s", e.msg);
	ck_assert_uint_eq(md->n_entries, totals.tensors + totals.objects);
	for (uint64_t i = 0; i < totals.tensors; i++) {
		check_entry(c, i, &md->entries[i]);
		paths += ckpt_tensor_path(c, i, &step, 0) > 0;
	}
	for (uint64_t i = 0; i < totals.objects; i++) {
		REQUIRE(!md->entries[totals.tensors + i].is_tensor);
		paths += ckpt_object_path(c, i, &step, 0) > 0;
	}
	ck_assert_uint_eq(md->n_paths, paths);
	for (size_t i = 0; i < md->n_paths; i++) { /* joined, they are the name */
		const struct ckpt_fqn_path *p = &md->paths[i];
		struct buf b = BUF_INIT(1 << 16);

		for (uint32_t k = 0; k < p->n_steps; k++) {
			buf_str(&b, k ? "." : "");
			if (p->steps[k].key)
				buf_add(&b, p->steps[k].key, p->steps[k].key_len);
			else
				buf_u64(&b, p->steps[k].position);
		}
		REQUIRE(b.len == p->fqn_len && (!b.len || !memcmp(b.data, p->fqn, b.len)));
		buf_release(&b);
	}
	ckpt_storage_reader_free(&s);
	ckpt_close(c);
}
END_TEST

/* ---- one file of ours: {"a": u16 [5, 1200000], "i": i64 [3]} ---- */

enum { ROWS = 5, COLUMNS = 1200000 };

static uint8_t *elements;

static void setup(void)
{
	static const char head[] =
		"{\"a\":{\"dtype\":\"U16\",\"shape\":[5,1200000],\"data_offsets\":[0,12000000]},"
		"\"i\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[12000000,12000024]}}";
	const size_t at = 8 + sizeof(head) - 1, bytes = 2ul * ROWS * COLUMNS + 24;
	uint8_t *file = calloc(1, at + bytes);
	struct rng r = rng_new();

	dir_setup();
	REQUIRE(file);
	file[0] = (uint8_t)(sizeof(head) - 1);
	memcpy(file + 8, head, sizeof(head) - 1);
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t v = rng_u64(&r);

		memcpy(file + at + i, &v, 8);
	}
	put_file(dir_fd, "model.safetensors", file, at + bytes);
	elements = malloc(bytes);
	REQUIRE(elements);
	memcpy(elements, file + at, bytes);
	free(file);
}

static void teardown(void)
{
	free(elements);
	(void)close(dir_fd);
}

static const struct ckpt_opts in_memory = { .index = ":memory:" };

/* A planner whose memory has gaps between all elements, as a caller's own planner may. */
struct gaps {
	uint16_t *at; /* ROWS x COLUMNS, each in 4 bytes */
	unsigned applied;
};

static int gaps_acquire(void *self, const struct ckpt_read_item *item, struct ckpt_tensor_view *ret,
			struct ckpt_err *e)
{
	struct gaps *g = self;

	(void)e;
	*ret = (struct ckpt_tensor_view){ .data = g->at + 2 * (item->dest_off[0] * COLUMNS +
							       item->dest_off[1]),
					  .dtype = CKPT_DTYPE_U16,
					  .n_dims = 2,
					  .len = item->len,
					  .stride = { 4 * COLUMNS, 4 } };
	return 0;
}

static int gaps_apply(void *self, const struct ckpt_read_item *item,
		      const struct ckpt_tensor_view *v, struct ckpt_err *e)
{
	struct gaps *g = self;
	struct ckpt_tensor_view to;

	REQUIRE(!gaps_acquire(self, item, &to, e));
	REQUIRE(v->n_dims == 2 && v->dtype == CKPT_DTYPE_U16);
	REQUIRE(v->len[0] == item->len[0] && v->len[1] == item->len[1]);
	g->applied++;
	for (uint64_t y = 0; y < v->len[0]; y++)
		for (uint64_t x = 0; x < v->len[1]; x++)
			memcpy((char *)to.data + y * to.stride[0] + x * to.stride[1],
			       (const char *)v->data + y * v->stride[0] + x * v->stride[1], 2);
	return 0;
}

START_TEST(memory_with_gaps_is_filled_in_place)
{
	static const struct ckpt_load_planner_ops ops = { .acquire_tensor = gaps_acquire,
							  .apply_tensor = gaps_apply };
	const uint64_t zeros[2] = { 0 }, off[] = { _i, _i * 7 };
	const uint64_t len[] = { ROWS - 2 * _i, COLUMNS - 100 * _i };
	const struct ckpt_meta_index x = {
		.fqn = "a", .fqn_len = 1, .offset = zeros, .n_dims = 2, .has_offset = true
	};
	const struct ckpt_read_item item = { .dest = x,
					     .storage = x,
					     .dest_off = off,
					     .storage_off = off,
					     .len = len,
					     .type = CKPT_READ_TENSOR,
					     .n_dims = 2 };
	const struct ckpt_load_plan plan = { &item, 1 };
	struct ckpt_storage_reader s = new_reader(&in_memory);
	struct gaps g = { .at = calloc(2ul * ROWS * COLUMNS, 2) };
	struct ckpt_load_planner p = { .ops = &ops, .self = &g, .step = CKPT_STEP_FINISHED };
	struct ckpt_err e = { 0 };

	REQUIRE(g.at);
	REQUIRE(!ckpt_storage_reader_reset(&s, dir, &e));
	ck_assert_msg(!s.ops->read_data(s.self, &plan, &p, &e), "%s", e.msg);
	ck_assert_uint_eq(g.applied, 1);
	for (uint64_t i = 0; i < (uint64_t)ROWS * COLUMNS; i++) {
		uint64_t y = i / COLUMNS, c = i % COLUMNS;
		bool inside =
			y >= off[0] && y < off[0] + len[0] && c >= off[1] && c < off[1] + len[1];
		uint16_t want;

		memcpy(&want, elements + 2 * i, 2);
		REQUIRE(g.at[2 * i] == (inside ? want : 0) && !g.at[2 * i + 1]);
	}
	free(g.at);
	ckpt_storage_reader_free(&s);
}
END_TEST

START_TEST(what_is_renamed_is_at_the_top)
{
	char rules[4200], path[4400];
	const struct ckpt_opts opts = { .index = ":memory:", .rename = rules };
	struct ckpt_step s[8];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	int64_t i, k;

	(void)snprintf(rules, sizeof(rules), "%s/rules", dir);
	put_file(dir_fd, "rules", "s/layers\\.1/blocks.1/\n", 22);
	(void)snprintf(path, sizeof(path), "%s/plain/ckpt", data_dir());
	ck_assert_msg(!open_typed(path, &opts, &c, &e), "%s", e.msg);
	i = ckpt_tensor_find(c, "model.layers.0.w", 16);
	k = ckpt_tensor_find(c, "model.blocks.1.w", 16);
	REQUIRE(i >= 0 && k >= 0);
	ck_assert_uint_eq(ckpt_tensor_path(c, (uint64_t)i, s, 3), 4); /* there is no room */
	ck_assert_uint_eq(ckpt_tensor_path(c, (uint64_t)i, s, 8), 4);
	ck_assert(!memcmp(s[1].text, "layers", 6) && s[1].len == 6 && !s[1].is_position);
	ck_assert(s[2].is_position && s[2].position == 0);
	ck_assert_uint_eq(ckpt_tensor_path(c, (uint64_t)k, s, 8), 1);
	ck_assert(!memcmp(s[0].text, "model.blocks.1.w", 16) && s[0].len == 16);
	ckpt_close(c);
}
END_TEST

START_TEST(what_an_item_is_made_of_lies_beside_it)
{
	const struct ckpt_opts opts = { .index = ":memory:" };
	struct ckpt_step s[8];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char path[4400];
	int64_t i;

	(void)snprintf(path, sizeof(path), "%s/dcp_wrapped/ckpt", data_dir());
	ck_assert_msg(!open_typed(path, &opts, &c, &e), "%s", e.msg);
	i = ckpt_tensor_find(c, "model.int8.qdata", 16);
	REQUIRE(i >= 0);
	ck_assert_uint_eq(ckpt_tensor_path(c, (uint64_t)i, s, 8), 2);
	ck_assert(s[0].len == 5 && !memcmp(s[0].text, "model", 5));
	ck_assert(s[1].len == 10 && !memcmp(s[1].text, "int8.qdata", 10));
	ckpt_close(c);
}
END_TEST

/* ---- what goes wrong ---- */

static const uint64_t three = 3, four = 4, two[] = { 1, 3 }, no_off[2];

/* One entry of a state dict, of zeros. */
static const struct {
	const char *fqn;
	uint64_t rows; /* 0: it has two dimensions */
	enum ckpt_dtype dtype;
	bool bytes;
	int code;
	const char *msg;
} wrong[] = {
	{ "missing", 3, CKPT_DTYPE_I64, false, ENOENT,
	  "Missing key in checkpoint state_dict: missing." },
	{ "i", 4, CKPT_DTYPE_I64, false, EINVAL,
	  "Size mismatch between saved torch.Size([3]) and current: torch.Size([4]) for i" },
	{ "i", 0, CKPT_DTYPE_I64, false, EINVAL,
	  "Size mismatch between saved torch.Size([3]) and current: torch.Size([1, 3]) for i" },
	{ "i", 3, CKPT_DTYPE_F32, false, EINVAL,
	  "load 'i': it is int64 in the checkpoint and float32 in the state dict" },
	{ "i", 3, CKPT_DTYPE_NONE, true, EINVAL,
	  "Invalid checkpoint metadata for i, expected BytesStorageMetadata but found "
	  "TensorStorageMetadata" },
};

START_TEST(what_does_not_fit_is_an_error)
{
	uint64_t memory[4] = { 0 };
	const uint64_t *shape = wrong[_i].rows == 3 ? &three : wrong[_i].rows ? &four : two;
	struct ckpt_shard shard = { no_off, shape, memory };
	struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_WHOLE,
				       .n_dims = wrong[_i].rows ? 1 : 2,
				       .props = { .dtype = (uint8_t)wrong[_i].dtype },
				       .shape = shape,
				       .shards = &shard,
				       .n_shards = 1 };
	struct ckpt_state_entry entry = { .fqn = wrong[_i].fqn,
					  .fqn_len = (uint32_t)strlen(wrong[_i].fqn),
					  .tensor = wrong[_i].bytes ? NULL : &t };
	struct ckpt_state_dict dict = { &entry, 1 };
	struct ckpt_storage_reader s = new_reader(&in_memory);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(load(&s, dir, &dict, NULL, &e), -wrong[_i].code);
	ck_assert_str_eq(e.msg, wrong[_i].msg);
	ckpt_storage_reader_free(&s);
}
END_TEST

static const uint64_t huge = UINT64_MAX, one_off = 1;

#define INDEX(name, dims, at) \
	{ \
		.fqn = name, .fqn_len = sizeof(name) - 1, .n_dims = dims, .offset = at, \
		.has_offset = dims \
	}

/* Items that none of our planners would make. */
static const struct {
	struct ckpt_read_item item;
	int code;
	const char *msg;
} odd[] = {
	{ { .storage = INDEX("nobody", 1, no_off),
	    .storage_off = no_off,
	    .len = &three,
	    .n_dims = 1,
	    .type = CKPT_READ_TENSOR },
	  ENOENT,
	  "load 'nobody': the checkpoint has no such tensor" },
	{ { .storage = INDEX("i", 1, no_off), .type = CKPT_READ_BYTE_IO },
	  ENOENT,
	  "load 'i': the checkpoint has no such object" },
	{ { .storage = INDEX("i", 0, NULL),
	    .storage_off = no_off,
	    .len = &three,
	    .n_dims = 1,
	    .type = CKPT_READ_TENSOR },
	  EINVAL,
	  "load 'i': the item is for bytes, but this is a tensor" },
	{ { .storage = INDEX("i", 2, no_off),
	    .storage_off = no_off,
	    .len = two,
	    .n_dims = 2,
	    .type = CKPT_READ_TENSOR },
	  EINVAL,
	  "load 'i': an item of 2 dimensions, the tensor has 1" },
	{ { .storage = INDEX("i", 1, &one_off),
	    .storage_off = &huge,
	    .len = &three,
	    .n_dims = 1,
	    .type = CKPT_READ_TENSOR },
	  EINVAL,
	  "load 'i': an item outside the tensor" },
	{ { .storage = INDEX("i", 1, &one_off),
	    .storage_off = no_off,
	    .len = &three,
	    .n_dims = 1,
	    .type = CKPT_READ_TENSOR },
	  EINVAL,
	  "load 'i': tensor 'i': box [3] at [1] is outside [3]" },
	{ { .storage = INDEX("i", 1, no_off),
	    .storage_off = no_off,
	    .len = &huge,
	    .n_dims = 1,
	    .type = CKPT_READ_TENSOR },
	  EINVAL,
	  "load 'i': tensor 'i': box [18446744073709551615] at [0] is outside [3]" },
};

START_TEST(odd_items_are_refused)
{
	const struct ckpt_load_plan plan = { &odd[_i].item, 1 };
	struct ckpt_storage_reader s = new_reader(&in_memory);
	struct ckpt_load_planner p = { 0 };
	struct ckpt_err e = { 0 };

	REQUIRE(!ckpt_storage_reader_reset(&s, dir, &e));
	ck_assert_int_eq(s.ops->read_data(s.self, &plan, &p, &e), -odd[_i].code);
	ck_assert_str_eq(e.msg, odd[_i].msg);
	ckpt_storage_reader_free(&s);
}
END_TEST

static int to_memory(void *self, const struct ckpt_read_item *item, struct ckpt_tensor_view *ret,
		     struct ckpt_err *e)
{
	(void)e;
	*ret = (struct ckpt_tensor_view){ .data = self,
					  .dtype = CKPT_DTYPE_I64,
					  .n_dims = 1,
					  .len = item->len,
					  .stride = { 8 } };
	return 0;
}

static int is_there(void *self, const struct ckpt_read_item *item, const struct ckpt_tensor_view *v,
		    struct ckpt_err *e)
{
	(void)item;
	(void)e;
	REQUIRE(v->data == self);
	return 0;
}

START_TEST(a_file_that_changes_is_an_error)
{
	static const struct ckpt_load_planner_ops ops = { .acquire_tensor = to_memory,
							  .apply_tensor = is_there };
	const struct ckpt_read_item item = { .dest = INDEX("i", 1, no_off),
					     .storage = INDEX("i", 1, no_off),
					     .dest_off = no_off,
					     .storage_off = no_off,
					     .len = &three,
					     .n_dims = 1,
					     .type = CKPT_READ_TENSOR };
	const struct ckpt_load_plan plan = { &item, 1 };
	struct ckpt_storage_reader s = new_reader(&in_memory);
	uint64_t memory[3];
	struct ckpt_load_planner p = { .ops = &ops, .self = memory, .step = CKPT_STEP_FINISHED };
	struct ckpt_err e = { 0 };

	REQUIRE(!ckpt_storage_reader_reset(&s, dir, &e));
	ck_assert_msg(!s.ops->read_data(s.self, &plan, &p, &e), "%s", e.msg);
	ck_assert_mem_eq(memory, elements + 2ul * ROWS * COLUMNS, 24);
	put_file(dir_fd, "model.safetensors", "short", 5);
	ck_assert_int_lt(s.ops->read_data(s.self, &plan, &p, &e), 0);
	ck_assert_msg(strstr(e.msg, "load 'i': ") == e.msg, "%s", e.msg);
	ckpt_storage_reader_free(&s);
}
END_TEST

/* Some of its chunks are there, but not all: nothing is read, not even those. */
START_TEST(a_tensor_with_holes_is_not_read)
{
	struct ckpt_opts opts = { .index = ":memory:", .allow_missing = true };
	struct ckpt_storage_reader s = new_reader(&opts);
	const struct ckpt_metadata *md;
	struct ckpt_err e = { 0 };
	char path[4400];
	size_t faults = 0;

	(void)snprintf(path, sizeof(path), "%s/hole/ckpt", data_dir());
	REQUIRE(!ckpt_storage_reader_reset(&s, path, &e));
	REQUIRE(!ckpt_storage_reader_read_metadata(&s, &md, &e));
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct ckpt_meta_entry *m = &md->entries[i];
		const uint64_t zeros[CKPT_MAX_DIMS] = { 0 };
		uint64_t first[CKPT_MAX_DIMS];
		struct ckpt_read_item item = { .storage = { .fqn = m->fqn,
							    .fqn_len = m->fqn_len,
							    .offset = zeros,
							    .n_dims = m->tensor.n_dims,
							    .has_offset = true },
					       .storage_off = zeros,
					       .len = first,
					       .n_dims = m->tensor.n_dims,
					       .type = CKPT_READ_TENSOR };
		const struct ckpt_load_plan plan = { &item, 1 };
		struct ckpt_load_planner p = { 0 };

		for (size_t d = 0; d < m->tensor.n_dims; d++)
			first[d] = 1;
		e.msg[0] = 0;
		if (m->is_tensor && s.ops->read_data(s.self, &plan, &p, &e) == -EIO)
			faults += strstr(e.msg, "cannot be read: ") != NULL;
	}
	ck_assert_uint_ge(faults, 1);
	ckpt_storage_reader_free(&s);
}
END_TEST

START_TEST(a_reader_needs_a_checkpoint)
{
	struct ckpt_storage_reader s = new_reader(&in_memory);
	const struct ckpt_metadata *md;
	struct ckpt_err e = { 0 };
	char nothing[4200];

	(void)snprintf(nothing, sizeof(nothing), "%s/nothing", dir);
	ck_assert_int_eq(ckpt_storage_reader_validate_checkpoint_id(&s, dir, &e), 0);
	ck_assert_int_eq(ckpt_storage_reader_validate_checkpoint_id(&s, nothing, &e), -ENOENT);
	ck_assert_int_eq(ckpt_storage_reader_reset(&s, NULL, &e), -EINVAL);
	ck_assert_int_eq(ckpt_storage_reader_read_metadata(&s, &md, &e), -EPERM);
	ck_assert_int_eq(ckpt_storage_reader_reset(&s, nothing, &e), -ENOENT);
	ck_assert_int_eq(ckpt_storage_reader_reset(&s, dir, &e), 0);
	ck_assert_int_eq(ckpt_storage_reader_read_metadata(&s, &md, &e), 0);
	ck_assert_uint_eq(md->n_entries, 2);
	ck_assert_int_eq(unlinkat(dir_fd, "model.safetensors", 0), 0);
	ck_assert_int_lt(ckpt_storage_reader_validate_checkpoint_id(&s, dir, &e), 0);
	ckpt_storage_reader_free(&s);
}
END_TEST

Suite *ckpt_reader_suite(void)
{
	Suite *s = suite_create("ckpt_reader");
	TCase *t = tcase_create("fixtures"), *own = tcase_create("own");

	tcase_set_timeout(t, 60);
	test_add(t, every_rank_gets_what_it_holds, fixture_count() * (int)ARRAY_LEN(options),
		 LOOP_FEW);
	test_add(t, the_metadata_is_what_is_shown, fixture_count(), LOOP_FEW);
	tcase_add_test(t, a_tensor_with_holes_is_not_read);
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(own, setup, teardown);
	tcase_set_timeout(own, 60);
	tcase_add_loop_test(own, memory_with_gaps_is_filled_in_place, 0, 2);
	tcase_add_test(own, what_is_renamed_is_at_the_top);
	tcase_add_loop_test(own, what_does_not_fit_is_an_error, 0, ARRAY_LEN(wrong));
	tcase_add_loop_test(own, odd_items_are_refused, 0, ARRAY_LEN(odd));
	tcase_add_test(own, a_file_that_changes_is_an_error);
	tcase_add_test(own, a_reader_needs_a_checkpoint);
	suite_add_tcase(s, own);
	return s;
}
