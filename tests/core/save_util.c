/* SPDX-License-Identifier: Apache-2.0 */
#include "save_util.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "model/dtype.h"
#include "opts_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static struct arena arena = ARENA_INIT((size_t)1 << 32);

static void *take(size_t n, size_t size)
{
	void *p = arena_array(&arena, n, size);

	REQUIRE(p);
	return p;
}

/* ---- what the ranks hold ---- */

/* The elements of a box of a tensor, one behind the other. */
static void *cut(const struct saved_entry *x, const uint64_t *off, const uint64_t *len)
{
	size_t element = dtype_info(x->dtype)->size, at = 0;
	uint64_t v[SAVED_DIMS] = { 0 }, volume = 1;
	uint8_t *p;

	for (size_t d = 0; d < x->n_dims; d++)
		volume *= len[d];
	p = take(volume + 1, element);
	while (volume--) {
		uint64_t from = 0;

		for (size_t d = 0; d < x->n_dims; d++)
			from = from * x->shape[d] + off[d] + v[d];
		memcpy(p + at, x->data + from * element, element);
		at += element;
		for (size_t d = x->n_dims; d-- > 0; v[d] = 0)
			if (++v[d] < len[d])
				break;
	}
	return p;
}

/* Adds a shard to x->of[rank]: [off, off + len) of dimension dim. */
static void add_shard(struct saved_entry *x, size_t rank, size_t dim, uint64_t off, uint64_t len)
{
	struct ckpt_local_tensor *t = &x->of[rank];
	struct ckpt_shard *s = (struct ckpt_shard *)(uintptr_t)t->shards;
	uint64_t *box = take(2 * SAVED_DIMS, sizeof(*box));

	if (!s)
		t->shards = s = take(16, sizeof(*s));
	REQUIRE(t->n_shards < 16);
	memcpy(box + SAVED_DIMS, x->shape, sizeof(x->shape));
	if (x->n_dims) {
		box[dim] = off;
		box[SAVED_DIMS + dim] = len;
	}
	s[t->n_shards++] =
		(struct ckpt_shard){ box, box + SAVED_DIMS, cut(x, box, box + SAVED_DIMS) };
}

static void hold(struct rng *r, struct saved *s, struct saved_entry *x, enum saved_kind kind)
{
	size_t dim = x->n_dims ? rng_below(r, x->n_dims) : 0, one = rng_below(r, s->ranks);
	uint64_t whole = x->n_dims ? x->shape[dim] : 1;
	uint64_t each = (whole + s->ranks - 1) / s->ranks;

	for (size_t rank = 0; rank < s->ranks; rank++) {
		struct ckpt_local_tensor *t = &x->of[rank];
		uint64_t from = rank * each < whole ? rank * each : whole;
		uint64_t to = from + each < whole ? from + each : whole;

		*t = (struct ckpt_local_tensor){ .kind = kind == SAVED_MESH   ? CKPT_LOCAL_BOX
							 : kind == SAVED_ROWS ? CKPT_LOCAL_SHARDS
									      : CKPT_LOCAL_WHOLE,
						 .n_dims = x->n_dims,
						 .props = { .dtype = x->dtype },
						 .shape = x->shape };
		if (kind == SAVED_WHOLE || (kind == SAVED_ONE && rank == one))
			add_shard(x, rank, dim, 0, whole);
		else if (kind == SAVED_MESH)
			add_shard(x, rank, dim, from, to - from);
		for (uint64_t k = rank; kind == SAVED_ROWS && k < whole; k += s->ranks)
			add_shard(x, rank, dim, k, 1);
	}
}

void saved_add(struct rng *r, struct saved *s, const char *fqn, const char *path,
	       enum saved_kind kind, uint8_t dtype, size_t n_dims, const uint64_t *shape)
{
	struct saved_entry *x = &s->entries[s->n++];
	uint64_t volume = 1;

	REQUIRE(s->n <= SAVED_ENTRIES);
	*x = (struct saved_entry){ .fqn = fqn, .path = path, .is_tensor = kind != SAVED_OBJECT };
	if (kind == SAVED_OBJECT) {
		x->len = rng_below(r, 40000);
	} else {
		x->dtype = dtype;
		x->n_dims = (uint8_t)n_dims;
		if (n_dims)
			memcpy(x->shape, shape, n_dims * sizeof(*shape));
		for (size_t d = 0; d < n_dims; d++)
			volume *= shape[d];
		x->len = volume * dtype_info(dtype)->size;
	}
	x->data = take(x->len + 1, 1);
	random_bytes(r, x->data, x->len);
	if (dtype == CKPT_DTYPE_BOOL)
		for (size_t i = 0; i < x->len; i++)
			x->data[i] &= 1;
	if (x->is_tensor)
		hold(r, s, x, kind);
}

void saved_random(struct rng *r, struct saved *s, bool whole, bool objects)
{
	static const char *const names[][2] = {
		{ "w.10", "w.10" },
		{ "w.9", "w.9" },
		{ "a", "a" },
		{ "a.__dcp_chunk_0", "a.__dcp_chunk_0" },
		{ "a/b", "a%2Fb" },
		{ "caf\xc3\xa9 \"x\"", "caf\xc3\xa9 \"x\"" },
		{ "layers.0.mlp.weight", "layers.0.mlp.weight" },
		{ "layers.1.mlp.weight", "layers.1.mlp.weight" },
		{ "a.__dcp_chunk_0_", "a.__dcp_chunk_0_" },
		{ "x", "x" },
	};
	size_t n = 2 + rng_below(r, ARRAY_LEN(names) - 1);

	*s = (struct saved){ .ranks = 1 + rng_below(r, SAVED_RANKS) };
	for (size_t i = 0; i < n; i++) {
		uint64_t shape[SAVED_DIMS];
		size_t n_dims = rng_below(r, SAVED_DIMS + 1);
		enum saved_kind kind = (enum saved_kind)rng_below(r, whole ? 2 : 4);
		uint8_t dtype;
		char *path = take(64, 1);

		if (objects && rng_chance(r, 20))
			kind = SAVED_OBJECT;
		(void)snprintf(path, 64, "%s/%s", kind == SAVED_OBJECT ? "objects" : "tensors",
			       names[i][1]);
		for (size_t d = 0; d < n_dims; d++)
			shape[d] = rng_chance(r, 4) ? 0 : 1 + rng_below(r, 12);
		for (size_t d = 0; d < n_dims && kind == SAVED_ROWS; d++)
			if (!shape[d]) /* without rows, no rank would know of the tensor */
				kind = SAVED_MESH;
		if (kind == SAVED_ROWS && !n_dims)
			kind = SAVED_WHOLE;
		do
			dtype = (uint8_t)(1 + rng_below(r, CKPT_DTYPE_COUNT - 1));
		while (!dtype_info(dtype)->safetensors || dtype_info(dtype)->size > 8 ||
		       dtype == CKPT_DTYPE_F4_E2M1FN_X2);
		saved_add(r, s, names[i][0], path, kind, dtype, n_dims, shape);
	}
	saved_dicts(s);
}

void saved_dicts(struct saved *s)
{
	for (size_t rank = 0; rank < s->ranks; rank++) {
		struct ckpt_state_entry *v = take(s->n + 1, sizeof(*v));
		size_t n = 0;

		for (size_t i = 0; i < s->n; i++) {
			struct saved_entry *x = &s->entries[i];
			const struct ckpt_local_tensor *t = &x->of[rank];

			if (x->is_tensor && t->kind == CKPT_LOCAL_WHOLE && !t->n_shards)
				continue;
			v[n] = (struct ckpt_state_entry){ .fqn = x->fqn,
							  .fqn_len = (uint32_t)strlen(x->fqn) };
			if (x->is_tensor)
				v[n].tensor = t;
			else
				v[n].bytes = (struct ckpt_data){ .data = x->data, .len = x->len };
			n++;
		}
		s->dict[rank] = (struct ckpt_state_dict){ v, n };
	}
}

/* ---- saving ---- */

/* Wraps a planner, and hands out data piece by piece. */
struct pieces {
	struct ckpt_save_planner inner;
};

static struct ckpt_save_planner_ops piece_ops;

static int read_piece(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	const struct ckpt_data *s = arg;

	(void)e;
	REQUIRE(n && n <= 4096 && off <= s->len && n <= s->len - off);
	memcpy(to, (const char *)s->data + off, n);
	return 0;
}

static int pieces_open;

static void close_piece(void *arg)
{
	pieces_open--;
	free(arg);
}

static int get_pieces(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
		      struct ckpt_err *e)
{
	struct pieces *p = self;
	struct ckpt_data *s = malloc(sizeof(*s));
	int rc = p->inner.ops->get_data(p->inner.self, item, s, e);

	if (rc) {
		free(s);
		return rc;
	}
	pieces_open++;
	*ret = (struct ckpt_data){
		.len = s->len, .read = read_piece, .close = close_piece, .arg = s
	};
	return 0;
}

struct rank {
	struct ckpt_save_planner planner;
	struct pieces pieces;
	struct ckpt_save_plan local, part, plan;
	struct ckpt_write_results results;
};

static struct rank ranks[SAVED_RANKS];

static int plan_local(const struct saved *s, size_t r, struct ckpt_storage_writer *w,
		      const char *dest, const struct saved_opts *o, struct ckpt_err *e)
{
	const struct ckpt_save_planning opt = { .rank = r,
						.is_coordinator = r == 0,
						.cache_plans = o->caching };
	const struct ckpt_storage_ranks who = { r, s->ranks };
	struct rank *x = &ranks[r];
	int rc = 0;

	if (!x->planner.ops)
		rc = ckpt_save_planner_new(o->system, &x->planner, e);
	if (!rc)
		rc = ckpt_save_planner_configure(&x->planner, &s->dict[r], &opt, e);
	if (!rc)
		rc = ckpt_storage_writer_reset(w, dest, e);
	if (!rc)
		rc = ckpt_storage_writer_set_up(w, &who, e);
	if (!rc)
		rc = ckpt_save_planner_local_plan(&x->planner, &x->local, e);
	return rc ? rc : ckpt_storage_writer_prepare_local_plan(w, &x->local, &x->local, e);
}

static int write_rank(size_t r, struct ckpt_storage_writer *w, const struct saved_opts *o,
		      struct ckpt_err *e)
{
	struct rank *x = &ranks[r];
	struct ckpt_save_planner p = x->planner;
	int rc = ckpt_save_planner_finish(&x->planner, &x->part, &x->plan, e);

	if (rc)
		return rc;
	p.step = x->planner.step;
	if (o->piecewise) {
		x->pieces.inner = p;
		piece_ops = *p.ops;
		piece_ops.get_data = get_pieces;
		p.ops = &piece_ops;
		p.self = &x->pieces;
	}
	rc = ckpt_storage_writer_write_data(w, &x->plan, &p, &x->results, e);
	REQUIRE(!pieces_open);
	return rc;
}

static int save_all(const struct saved *s, const char *dest, struct ckpt_storage_writer *w,
		    const struct saved_opts *o, struct ckpt_err *e)
{
	struct ckpt_save_plan all[SAVED_RANKS], parts[SAVED_RANKS];
	struct ckpt_write_results results[SAVED_RANKS];
	struct ckpt_metadata md = { 0 };
	int rc = 0;

	for (size_t r = 0; r < s->ranks && !rc; r++) {
		rc = plan_local(s, r, &w[r], dest, o, e);
		all[r] = ranks[r].local;
	}
	if (!rc)
		rc = ckpt_save_planner_global_plan(&ranks[0].planner, all, s->ranks, parts, &md, e);
	if (!rc)
		rc = ckpt_storage_writer_prepare_global_plan(&w[0], parts, s->ranks, e);
	for (size_t r = s->ranks; r-- > 0 && !rc;) { /* this time the coordinator comes last */
		ranks[r].part = parts[r];
		rc = write_rank(r, &w[r], o, e);
		results[r] = ranks[r].results;
	}
	if (rc || o->stop)
		return rc;
	return ckpt_storage_writer_finish(&w[0], &md, results, s->ranks, e);
}

int saved_save(const struct saved *s, const char *dest, struct ckpt_storage_writer *w,
	       const struct saved_opts *o, struct ckpt_err *e)
{
	int rc = save_all(s, dest, w, o, e);

	for (size_t r = 0; r < SAVED_RANKS && !o->caching; r++) {
		ckpt_save_planner_free(&ranks[r].planner);
		ranks[r] = (struct rank){ 0 };
	}
	return rc;
}

/* ---- looking ---- */

static void check_entry(struct ckpt *c, const struct saved_entry *x)
{
	struct ckpt_file *f = NULL;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	uint8_t *p = malloc(x->len + 1);

	REQUIRE(p);
	if (x->is_tensor) {
		int64_t i = ckpt_tensor_find(c, x->fqn, strlen(x->fqn));

		ck_assert_msg(i >= 0, "'%s' is not there", x->fqn);
		ckpt_tensor(c, (uint64_t)i, &t);
		ck_assert_msg(!t.fault, "'%s': %s", x->fqn, t.fault);
		ck_assert_str_eq(t.dtype, dtype_info(x->dtype)->name);
		REQUIRE(t.n_dims == x->n_dims);
		for (size_t d = 0; d < t.n_dims; d++)
			REQUIRE(t.shape[d] == x->shape[d]);
	}
	ck_assert_msg(!ckpt_file_open_path(c, x->path, &f, &e), "%s", e.msg);
	ck_assert_int_eq(ckpt_file_read(f, p, x->len + 1, 0, &e), (int64_t)x->len);
	REQUIRE(!memcmp(p, x->data, x->len));
	ckpt_file_close(f);
	free(p);
}

void saved_check(const struct saved *s, const char *dest)
{
	struct ckpt_opts opts = { .index = ":memory:" };
	struct ckpt_totals totals;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_typed(dest, &opts, &c, &e), "%s", e.msg);
	ckpt_totals(c, &totals);
	ck_assert_uint_eq(totals.tensors + totals.objects, s->n);
	ck_assert_uint_eq(totals.incomplete, 0);
	for (size_t i = 0; i < s->n; i++)
		check_entry(c, &s->entries[i]);
	ckpt_close(c);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

uint64_t dir_digest(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char *names[64];
	struct dirent *x;
	uint64_t h = 0;
	size_t n = 0;
	DIR *d;

	REQUIRE(fd >= 0 && (d = fdopendir(dup(fd))));
	while ((x = readdir(d))) /* NOLINT(concurrency-mt-unsafe) */
		if (x->d_name[0] != '.' || !strcmp(x->d_name, ".metadata")) {
			REQUIRE(n < ARRAY_LEN(names));
			names[n++] = strdup(x->d_name);
		}
	(void)closedir(d);
	qsort(names, n, sizeof(*names), by_name);
	for (size_t i = 0; i < n; i++) {
		size_t len;
		uint8_t *p = get_file(fd, names[i], &len);

		h = XXH3_64bits_withSeed(names[i], strlen(names[i]), h);
		h = XXH3_64bits_withSeed(p, len, h);
		free(p);
		free(names[i]);
	}
	(void)close(fd);
	return h;
}
