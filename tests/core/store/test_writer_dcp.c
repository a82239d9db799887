/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole saves of random state dicts on several ranks, which this program opens and reads back;
 * which file has what, and what failures leave.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "dir_util.h"
#include "fault.h"
#include "file/pt_write.h"
#include "model/box.h"
#include "opts_util.h"
#include "rng.h"
#include "store/dcp_file.h"
#include "store/megatron_form.h"
#include "store/staging.h"
#include "store/torch_item.h"
#include "store/writer_dcp.h"
#include "suites.h"
#include <ckptfs/ckpt.h>
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_storage.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_RANKS = 5, MAX_ENTRIES = 30, MAX_NAMES = 200 };

static struct arena arena;

static void setup(void)
{
	arena = (struct arena)ARENA_INIT((size_t)1 << 30);
	dir_setup();
}

static void teardown(void)
{
	(void)close(dir_fd);
	arena_release(&arena);
}

/* ---- what is saved ---- */

/* A whole entry; of a tensor, each rank has some rows. */
struct whole {
	const char *fqn;
	bool is_tensor;
	struct ckpt_tensor_props props;
	uint64_t shape[3], bytes;
	size_t n_dims;
	uint8_t *data;
};

struct scene {
	struct whole v[MAX_ENTRIES];
	size_t n, ranks;
	struct ckpt_state_entry entries[MAX_RANKS][MAX_ENTRIES];
	struct ckpt_state_dict dicts[MAX_RANKS];
};

static uint64_t *numbers(size_t n)
{
	return arena_array(&arena, n + 1, sizeof(uint64_t));
}

static enum ckpt_dtype random_dtype(struct rng *r)
{
	enum ckpt_dtype t;

	do
		t = (enum ckpt_dtype)(1 + rng_below(r, CKPT_DTYPE_COUNT - 1));
	while (!pt_holds(t));
	return t;
}

static void random_whole(struct rng *r, struct whole *w, size_t number)
{
	static const char *const tails[] = { "", "weight", "\xc3\xa9", "/x", "..", "\xed\xb2\x80" };
	char name[64];

	(void)snprintf(name, sizeof(name), "e%zu.%s", number, tails[rng_below(r, 6)]);
	*w = (struct whole){ .fqn = arena_dup(&arena, name, strlen(name)),
			     .is_tensor = rng_chance(r, 80),
			     .n_dims = rng_below(r, 4) };
	w->props.dtype = (uint8_t)random_dtype(r);
	w->bytes = dtype_info(w->props.dtype)->size;
	for (size_t d = 0; d < w->n_dims; d++) {
		w->shape[d] = rng_chance(r, 5) ? 0 : 1 + rng_below(r, d ? 40 : 300);
		w->bytes *= w->shape[d];
	}
	if (!w->is_tensor)
		w->bytes = rng_below(r, 5000);
	w->data = arena_alloc(&arena, w->bytes);
	random_bytes(r, w->data, w->bytes);
}

/* What a rank has of a tensor: all of it, or its rows, which may be none. */
static const struct ckpt_local_tensor *local_of(const struct whole *w, size_t rank, size_t ranks,
						bool split)
{
	struct ckpt_local_tensor *t = arena_array(&arena, 1, sizeof(*t));
	struct ckpt_shard *s = arena_array(&arena, 1, sizeof(*s));
	uint64_t *off = numbers(w->n_dims), *len = numbers(w->n_dims), *shape = numbers(w->n_dims);
	uint64_t rows, first, row = 0;

	memcpy(shape, w->shape, w->n_dims * sizeof(*shape));
	memcpy(len, shape, w->n_dims * sizeof(*len));
	if (split) {
		rows = (shape[0] + ranks - 1) / ranks;
		first = min_u64(shape[0], rank * rows);
		off[0] = first;
		len[0] = min_u64(rows, shape[0] - first);
		row = shape[0] ? w->bytes / shape[0] : 0;
	}
	*s = (struct ckpt_shard){ off, len, w->data + off[0] * row };
	*t = (struct ckpt_local_tensor){ .kind = split ? CKPT_LOCAL_BOX : CKPT_LOCAL_WHOLE,
					 .n_dims = (uint8_t)w->n_dims,
					 .props = w->props,
					 .shape = shape,
					 .shards = s,
					 .n_shards = 1 };
	return t;
}

static void share(struct scene *s, size_t i, bool split)
{
	const struct whole *w = &s->v[i];

	for (size_t k = 0; k < s->ranks; k++) {
		struct ckpt_state_entry *e = &s->entries[k][s->dicts[k].count++];

		*e = (struct ckpt_state_entry){ .fqn = w->fqn,
						.fqn_len = (uint32_t)strlen(w->fqn) };
		if (w->is_tensor)
			e->tensor = local_of(w, k, s->ranks, split && w->n_dims);
		else
			e->bytes = (struct ckpt_data){ .data = w->data, .len = w->bytes };
	}
}

static struct scene *scene_empty(size_t ranks)
{
	struct scene *s = arena_array(&arena, 1, sizeof(*s));

	s->ranks = ranks;
	for (size_t k = 0; k < ranks; k++)
		s->dicts[k].entries = s->entries[k];
	return s;
}

static struct scene *scene_random(struct rng *r)
{
	struct scene *s = scene_empty(1 + rng_below(r, MAX_RANKS));

	s->n = rng_below(r, MAX_ENTRIES);
	for (size_t i = 0; i < s->n; i++) {
		random_whole(r, &s->v[i], i);
		share(s, i, rng_chance(r, 60));
	}
	return s;
}

/* One tensor of so many bytes, on one rank. */
static struct scene *scene_of(uint64_t bytes)
{
	struct scene *s = scene_empty(1);
	struct rng r = rng_new();

	s->n = 1;
	s->v[0] = (struct whole){ .fqn = "layer.weight",
				  .is_tensor = true,
				  .props = { .dtype = CKPT_DTYPE_U8 },
				  .n_dims = 1,
				  .shape = { bytes },
				  .bytes = bytes,
				  .data = arena_alloc(&arena, bytes) };
	random_bytes(&r, s->v[0].data, bytes);
	share(s, 0, false);
	return s;
}

/* ---- planners whose data is read ---- */

/* Wraps a planner: its sources have to be read, in pieces that are checked. */
struct reading {
	struct ckpt_save_planner inner;
	atomic_int open; /* sources that nobody has closed */
	bool read;	 /* otherwise sources are passed on as they are */
	int fail;	 /* -errno that reads give, or 0 */
	bool nothing;	 /* sources have a length, but neither data nor read */
};

struct reader {
	struct reading *owner;
	struct ckpt_data s;
	size_t element;
};

static int read_piece(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	const struct reader *x = arg;

	REQUIRE(range_ok(off, n, x->s.len) && n && off % x->element == 0 && n % x->element == 0);
	if (x->owner->fail && off)
		return err_set(e, -x->owner->fail, "no more of it");
	memcpy(to, (const uint8_t *)x->s.data + off, n);
	return 0;
}

static void close_reader(void *arg)
{
	struct reader *x = arg;

	atomic_fetch_sub(&x->owner->open, 1);
	free(x);
}

static int get_data(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
		    struct ckpt_err *e)
{
	struct reading *p = self;
	struct reader *x;
	struct ckpt_data s = { 0 };
	int rc = ckpt_save_planner_get_data(&p->inner, item, &s, e);

	if (rc || !p->read) {
		*ret = s;
		if (p->nothing)
			ret->data = NULL;
		return rc;
	}
	x = malloc(sizeof(*x));
	if (!x)
		return err_set(e, ENOMEM, "out of memory");
	*x = (struct reader){
		p, s, item->type == CKPT_WRITE_BYTE_IO ? 1 : dtype_info(item->props.dtype)->size
	};
	atomic_fetch_add(&p->open, 1);
	*ret = (struct ckpt_data){
		.len = s.len, .read = read_piece, .close = close_reader, .arg = x
	};
	return 0;
}

static const struct ckpt_save_planner_ops reading_ops = { .get_data = get_data };

/* ---- saving ---- */

struct how {
	struct writer_dcp_opts opts;
	bool read, nothing;
	int fail;
};

static int save_rank(struct ckpt_storage_writer *w, const struct ckpt_save_plan *plan,
		     struct ckpt_save_planner *planner, const struct how *how,
		     struct ckpt_write_results *ret, struct ckpt_err *e)
{
	struct reading p = {
		.inner = *planner, .read = how->read, .fail = how->fail, .nothing = how->nothing
	};
	struct ckpt_save_planner outer = { .ops = &reading_ops, .self = &p, .step = planner->step };
	int rc = ckpt_storage_writer_write_data(w, plan, &outer, ret, e);

	REQUIRE(atomic_load(&p.open) == 0);
	return rc;
}

/* All ranks take each step, one after the other. */
static int save(const char *dest, const struct scene *s, const struct how *how, struct ckpt_err *e)
{
	struct ckpt_storage_writer w[MAX_RANKS] = { 0 };
	struct ckpt_save_planner p[MAX_RANKS] = { 0 };
	struct ckpt_save_plan plans[MAX_RANKS] = { 0 }, parts[MAX_RANKS], plan;
	struct ckpt_write_results results[MAX_RANKS] = { 0 };
	struct ckpt_metadata md;
	size_t n = s->ranks;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		struct ckpt_storage_ranks ranks = { i, n };
		struct ckpt_save_planning opt = { .rank = i, .is_coordinator = !i };

		rc = writer_dcp_new(&how->opts, &w[i], e);
		if (!rc)
			rc = ckpt_storage_writer_reset(&w[i], dest, e);
		if (!rc)
			rc = ckpt_storage_writer_set_up(&w[i], &ranks, e);
		if (!rc)
			rc = ckpt_save_planner_new(CKPT_PLANNER_DCP, &p[i], e);
		if (!rc)
			rc = ckpt_save_planner_configure(&p[i], &s->dicts[i], &opt, e);
		if (!rc)
			rc = ckpt_save_planner_local_plan(&p[i], &plans[i], e);
		if (!rc)
			rc = ckpt_storage_writer_prepare_local_plan(&w[i], &plans[i], &plans[i], e);
	}
	if (!rc)
		rc = ckpt_save_planner_global_plan(&p[0], plans, n, parts, &md, e);
	if (!rc)
		rc = ckpt_storage_writer_prepare_global_plan(&w[0], parts, n, e);
	for (size_t i = 0; i < n && !rc; i++) {
		rc = ckpt_save_planner_finish(&p[i], &parts[i], &plan, e);
		if (!rc)
			rc = save_rank(&w[i], &plan, &p[i], how, &results[i], e);
	}
	if (!rc)
		rc = ckpt_storage_writer_finish(&w[0], &md, results, n, e);
	for (size_t i = n; i-- > 0;) {
		ckpt_storage_writer_free(&w[i]);
		ckpt_save_planner_free(&p[i]);
	}
	return rc;
}

static const char *path_of(const char *name)
{
	static char path[8][4200];
	static int next;

	next = (next + 1) % 8;
	(void)snprintf(path[next], sizeof(path[0]), "%s/%s", dir, name);
	return path[next];
}

static void must_save(const char *name, const struct scene *s, const struct how *how)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!save(path_of(name), s, how, &e), "%s", e.msg);
}

/* ---- looking at it ---- */

static void no_fault(void *arg, const struct ckpt_fault *f)
{
	(void)arg;
	ck_abort_msg("%s", f->what);
}

static void same_bytes(struct ckpt *c, ckpt_node node, const struct whole *w)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	autofree uint8_t *p = malloc(w->bytes + 1);

	ck_assert_msg(!ckpt_file_open(c, node, &f, &e), "%s", e.msg);
	REQUIRE(p && ckpt_file_size(f) == w->bytes);
	REQUIRE(ckpt_file_read(f, p, w->bytes + 1, 0, &e) == (int64_t)w->bytes);
	REQUIRE(!memcmp(p, w->data, w->bytes));
	ckpt_file_close(f);
}

static void check_tensor(struct ckpt *c, const struct whole *w)
{
	int64_t i = ckpt_tensor_find(c, w->fqn, strlen(w->fqn));
	struct ckpt_tensor t;

	REQUIRE(i >= 0);
	ckpt_tensor(c, (uint64_t)i, &t);
	ck_assert_str_eq(t.dtype, dtype_info(w->props.dtype)->name);
	REQUIRE(t.n_dims == w->n_dims && !t.fault);
	REQUIRE(!memcmp(t.shape, w->shape, w->n_dims * sizeof(*t.shape)));
	same_bytes(c, ckpt_tensor_node(c, (uint64_t)i), w);
}

/* Everything is there, and nothing else is. */
static void check_saved(const char *name, const struct scene *s)
{
	const struct ckpt_opts opts = { .index = ":memory:" };
	struct ckpt_check k = { .data = true, .fault = no_fault };
	struct ckpt_totals totals;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_typed(path_of(name), &opts, &c, &e), "%s", e.msg);
	ckpt_totals(c, &totals);
	ck_assert_str_eq(totals.format, "dcp");
	ck_assert_uint_eq(totals.tensors + totals.objects, s->n);
	for (size_t i = 0; i < s->n; i++) {
		const struct whole *w = &s->v[i];
		int64_t o = ckpt_object_find(c, w->fqn, strlen(w->fqn));

		if (w->is_tensor)
			check_tensor(c, w);
		else
			same_bytes(c, ckpt_object_node(c, (uint64_t)o), w);
	}
	ck_assert_msg(!ckpt_check(c, &k, &e), "%s", e.msg);
	ck_assert_uint_eq(k.faults, 0);
	ckpt_close(c);
}

/* "a b c": the names in a directory, sorted. */
static char *names_in(const char *name)
{
	struct buf b = BUF_INIT(1 << 20);
	struct dirent **v;
	int n = scandir(path_of(name), &v, NULL, alphasort);

	ck_assert_int_ge(n, 0);
	buf_str(&b, "");
	for (int i = 0; i < n; i++) {
		if (strcmp(v[i]->d_name, ".") != 0 && strcmp(v[i]->d_name, "..") != 0)
			buf_printf(&b, "%s%s", b.len ? " " : "", v[i]->d_name);
		free(v[i]);
	}
	free(v);
	return b.data;
}

static uint8_t *file_in(const char *name, const char *file, size_t *ret_n)
{
	autoclose int fd = open(path_of(name), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	return get_file(fd, file, ret_n);
}

static void same_files(const char *a, const char *b)
{
	autofree char *na = names_in(a), *nb = names_in(b);
	char *rest = na;

	ck_assert_str_eq(na, nb);
	for (char *name; (name = strsep(&rest, " "));) {
		size_t an, bn;
		autofree uint8_t *pa = file_in(a, name, &an), *pb = file_in(b, name, &bn);

		ck_assert_msg(an == bn && !memcmp(pa, pb, an), "%s differs", name);
	}
}

/* ---- whole saves ---- */

static struct how random_how(struct rng *r)
{
	static const int levels[] = { 0, 0, 1, 3, -5 };

	return (struct how){ .opts = { .file_per_item = rng_chance(r, 30),
				       .zstd_level = levels[rng_below(r, 5)],
				       .threads = (unsigned)rng_below(r, 5),
				       .buffer = rng_chance(r, 50) ? 0 : 128 * 1024 },
			     .read = rng_chance(r, 50) };
}

START_LONG_TEST(whatever_is_saved_is_read)
{
	struct rng r = rng_new();

	for (int round = 0; round < 25; round++) {
		struct scene *s = scene_random(&r);
		struct how how = random_how(&r);
		char name[32];

		(void)snprintf(name, sizeof(name), "round%d", round);
		must_save(name, s, &how);
		check_saved(name, s);
		arena_release(&arena);
	}
}
END_TEST

static void count_bytes(void *arg, uint64_t n)
{
	atomic_fetch_add((atomic_uint_fast64_t *)arg, n);
}

/* The files do not depend on the kind of source or on the buffer, and progress adds up to
 * the data. */
START_LOOP_TEST(the_same_again_gives_the_same_files, 2)
{
	static const size_t buffers[] = { 0, 128 * 1024, 1000003 };
	struct rng r = rng_new();
	struct scene *s = scene_random(&r), *large = scene_of(3000001);
	atomic_uint_fast64_t done = 0;
	struct how how = { .opts = { .zstd_level = _i, .threads = 2 } };
	char name[32];

	s->v[s->n] = large->v[0];
	share(s, s->n++, true);
	must_save("first", s, &how);
	check_saved("first", s);
	how.opts.progress = count_bytes;
	how.opts.arg = &done;
	for (size_t i = 0; i < 2 * ARRAY_LEN(buffers); i++) {
		how.opts.buffer = buffers[i / 2];
		how.read = i % 2;
		(void)snprintf(name, sizeof(name), "again%zu", i);
		must_save(name, s, &how);
		same_files("first", name);
	}
	ck_assert_uint_ge(done, 6 * large->v[0].bytes);
}
END_TEST

/* ---- Megatron-core ---- */

/* Adds an entry to every rank's dict: bytes that spell its name. */
static void add_bytes(struct scene *s, const char *fqn)
{
	struct whole *w = &s->v[s->n];

	*w = (struct whole){ .fqn = fqn, .bytes = strlen(fqn) };
	w->data = arena_dup(&arena, fqn, w->bytes);
	share(s, s->n++, false);
}

static struct buf file_at(const char *name)
{
	struct buf b = BUF_INIT(1 << 20);
	struct ckpt_err e;

	ck_assert_msg(!io_read_file(path_of(name), &b, &e), "%s", e.msg);
	return b;
}

/* Whatever else is saved, common.pt is a file, not an item. */
START_LOOP_TEST(for_megatron_there_are_two_files_more, 4)
{
	static const char *const common[] = { NULL, "common.pt", "common_state/shard_0_1",
					      "rng_state/shard_0.1_2.2" };
	struct how how = { .opts = { .megatron = true, .threads = 2 } };
	struct scene *s = scene_of(1000);
	struct buf b, made = BUF_INIT(1 << 16);
	struct ckpt_totals t;
	struct ckpt_err e;
	struct ckpt *c;

	if (common[_i])
		add_bytes(s, common[_i]);
	must_save("x", s, &how);
	b = file_at("x/metadata.json");
	ck_assert_ptr_nonnull(strstr(b.data, "\"sharded_backend\": \"torch_dist\""));
	buf_release(&b);
	ck_assert_int_eq(megatron_put_common(&made, &e), 0);
	if (_i == 2) {
		ck_assert_int_eq(access(path_of("x/common.pt"), F_OK), -1);
	} else {
		b = file_at("x/common.pt");
		if (_i == 1) {
			made.len = 0;
			buf_str(&made, common[_i]);
		}
		ck_assert_uint_eq(b.len, made.len);
		ck_assert_mem_eq(b.data, made.data, b.len);
		buf_release(&b);
	}
	buf_release(&made);
	ck_assert_msg(!ckpt_open(path_of("x"), NULL, NULL, &c, &e), "%s", e.msg);
	ckpt_totals(c, &t);
	ck_assert_str_eq(t.format, "megatron");
	ck_assert_uint_eq(t.tensors, 1);
	ck_assert_uint_eq(t.objects, _i < 3 ? 1 : 2);
	ckpt_close(c);
}
END_TEST

START_TEST(bytes_of_another_name_are_refused_for_megatron)
{
	struct how how = { .opts = { .megatron = true } };
	struct scene *s = scene_of(1000);
	struct ckpt_err e = { 0 };

	add_bytes(s, "lr_scheduler.last_epoch");
	ck_assert_int_eq(save(path_of("x"), s, &how, &e), -EINVAL);
	ck_assert_str_eq(e.msg,
			 "'lr_scheduler.last_epoch': Megatron-core's objects are called "
			 "NAME/shard_OFFSET_SHAPE, such as 'lr_scheduler.last_epoch/shard_0_1'");
}
END_TEST

START_TEST(a_planner_without_data_is_refused)
{
	struct how how = { .nothing = true };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(save(path_of("x"), scene_of(1000), &how, &e), -EINVAL);
	ck_assert(strstr(e.msg, "': no data"));
	ck_assert_int_eq(access(path_of("x"), F_OK), -1);
}
END_TEST

START_TEST(progress_comes_to_the_bytes_of_data)
{
	atomic_uint_fast64_t done = 0;
	struct how how = { .opts = { .zstd_level = 1, .progress = count_bytes, .arg = &done } };

	must_save("ckpt", scene_of(1000000), &how);
	ck_assert_uint_eq(done, 1000000);
}
END_TEST

START_LOOP_TEST(memory_follows_the_buffer_not_the_tensor, 2)
{
	struct scene *s = scene_of(24 << 20);
	struct how how = { .opts = { .buffer = 256 * 1024, .zstd_level = _i }, .read = true };
	int64_t before;

	fault_peak_reset();
	before = fault_live();
	must_save("ckpt", s, &how);
	ck_assert_int_lt(fault_peak() - before, 1 << 20); /* zstd has memory of its own */
}
END_TEST

/* ---- which files ---- */

static void add_entry(struct scene *s, const char *fqn, uint64_t bytes, bool is_tensor)
{
	struct whole *w = &s->v[s->n];

	*w = (struct whole){ .fqn = fqn,
			     .is_tensor = is_tensor,
			     .props = { .dtype = CKPT_DTYPE_U8 },
			     .n_dims = 1,
			     .shape = { bytes },
			     .bytes = bytes,
			     .data = arena_array(&arena, bytes + 1, 1) };
	share(s, s->n++, false);
}

struct finding {
	char path[64];
	uint64_t offset;
};

static int note_chunk(void *arg, const struct ckpt_chunk *chunk)
{
	struct finding *f = arg;

	(void)snprintf(f->path, sizeof(f->path), "%s", chunk->path);
	f->offset = chunk->offset;
	return 0;
}

/* "fqn@file:offset ..." for all entries, in the scene's order. */
static char *places(const char *name, const struct scene *s)
{
	const struct ckpt_opts opts = { .index = ":memory:" };
	struct buf b = BUF_INIT(1 << 16);
	struct finding f = { 0 };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_typed(path_of(name), &opts, &c, &e), "%s", e.msg);
	for (size_t i = 0; i < s->n; i++) {
		const char *fqn = s->v[i].fqn;
		int64_t t = ckpt_tensor_find(c, fqn, strlen(fqn));
		struct ckpt_object o;

		if (t >= 0) {
			ck_assert(!ckpt_tensor_chunks(c, (uint64_t)t, note_chunk, &f, &e));
		} else {
			t = ckpt_object_find(c, fqn, strlen(fqn));
			REQUIRE(t >= 0);
			ckpt_object(c, (uint64_t)t, &o);
			(void)snprintf(f.path, sizeof(f.path), "%s", o.path);
			f.offset = o.offset;
		}
		buf_printf(&b, "%s%s@%s:%llu", i ? " " : "", fqn, f.path,
			   (unsigned long long)f.offset);
	}
	ckpt_close(c);
	return b.data;
}

/* Small items have 1577 bytes, as with torch; the next multiple of 64 is 1600. */
static const struct {
	struct writer_dcp_opts opts;
	const char *places, *names;
} layouts[] = {
	{ { .threads = 1 },
	  "a@__0_0.distcp:128 x@__0_0.distcp:0 b@__0_0.distcp:1728 y@__0_0.distcp:64 "
	  "c@__0_0.distcp:3328 d@__0_0.distcp:4928",
	  ".metadata __0_0.distcp __1_0.distcp" },
	/* The heaviest first: c and d (in their order), b, a. */
	{ { .threads = 2 },
	  "a@__0_1.distcp:1664 x@__0_0.distcp:0 b@__0_0.distcp:1664 y@__0_1.distcp:0 "
	  "c@__0_0.distcp:64 d@__0_1.distcp:64",
	  ".metadata __0_0.distcp __0_1.distcp __1_0.distcp __1_1.distcp" },
	{ { .file_per_item = true, .threads = 3 },
	  "a@__0_0.distcp:0 x@__0_1.distcp:0 b@__0_2.distcp:0 y@__0_3.distcp:0 "
	  "c@__0_4.distcp:0 d@__0_5.distcp:0",
	  ".metadata __0_0.distcp __0_1.distcp __0_2.distcp __0_3.distcp __0_4.distcp "
	  "__0_5.distcp" },
};

START_LOOP_TEST(items_are_where_torch_has_them, ARRAY_LEN(layouts))
{
	struct scene *s = scene_empty(1);
	struct how how = { .opts = layouts[_i].opts };
	autofree char *names = NULL, *at = NULL;

	add_entry(s, "a", 1, true);
	add_entry(s, "x", 5, false);
	add_entry(s, "b", 2, true);
	add_entry(s, "y", 6, false);
	add_entry(s, "c", 7, true);
	add_entry(s, "d", 7, true);
	s->ranks = 2; /* the second has nothing */
	s->dicts[1] = (struct ckpt_state_dict){ s->entries[1], 0 };
	must_save("ckpt", s, &how);
	names = names_in("ckpt");
	at = places("ckpt", s);
	ck_assert_str_eq(names, layouts[_i].names);
	ck_assert_str_eq(at, layouts[_i].places);
}
END_TEST

START_TEST(compressed_items_are_small_and_say_so)
{
	struct scene *s = scene_empty(1);
	struct how how = { .opts = { .zstd_level = 3 } };
	size_t n;

	add_entry(s, "zeros", 1 << 20, true);
	must_save("ckpt", s, &how);
	check_saved("ckpt", s);
	free(file_in("ckpt", "__0_0.distcp", &n));
	ck_assert_uint_lt(n, 2000);
}
END_TEST

/* ---- what goes wrong ---- */

START_TEST(what_was_there_stays_until_all_is_well)
{
	struct scene *one = scene_of(1000), *two = scene_of(5000);
	struct how how = { .opts = { .threads = 1 } };
	struct ckpt_err e = { 0 };

	must_save("ckpt", one, &how);
	ck_assert_int_eq(save(path_of("ckpt"), two, &how, &e), -EEXIST);
	how.opts.overwrite = true;
	fault_on(FAULT_SYNC, 3, 1); /* the lock and its directory are synced before */
	ck_assert_int_eq(save(path_of("ckpt"), two, &how, &e), -EIO);
	fault_off();
	ck_assert_ptr_nonnull(
		strstr(e.msg, "/ckpt.partial/__0_0.distcp': sync: Input/output error"));
	check_saved("ckpt", one);
	must_save("ckpt", two, &how);
	check_saved("ckpt", two);
}
END_TEST

START_TEST(a_source_that_fails_is_named)
{
	struct how how = { .opts = { .threads = 3, .buffer = 128 * 1024 },
			   .read = true,
			   .fail = -EREMOTEIO };
	autofree char *names = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(save(path_of("ckpt"), scene_of(1000000), &how, &e), -EREMOTEIO);
	ck_assert_ptr_nonnull(
		strstr(e.msg, "/ckpt.partial/__0_0.distcp': 'layer.weight': no more of it"));
	names = names_in("");
	ck_assert_str_eq(names, "");
}
END_TEST

START_TEST(a_full_disk_is_said_as_it_is)
{
	struct rlimit most = { 300000, 300000 };
	autofree char *names = NULL;
	struct ckpt_err e = { 0 };
	struct how how = { .opts = { .threads = 1 } };

	ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
	ck_assert_int_eq(save(path_of("ckpt"), scene_of(1000000), &how, &e), -EFBIG);
	ck_assert(!strncmp(e.msg, "write '/", strlen("write '/")));
	ck_assert_ptr_nonnull(strstr(e.msg, "/ckpt.partial/__0_0.distcp': 'layer.weight': "));
	ck_assert_ptr_nonnull(strstr(e.msg, " bytes at "));
	ck_assert_ptr_nonnull(strstr(e.msg, ": File too large"));
	names = names_in("");
	ck_assert_str_eq(names, "");
}
END_TEST

START_LOOP_TEST(memory_that_is_refused_is_an_error, 2)
{
	struct rng r = rng_new();
	struct scene *s = scene_random(&r);
	struct how how = { .opts = { .overwrite = true, .zstd_level = _i } };
	struct ckpt_err e;

	FAULT_LOOP(FAULT_ALLOC)
	{
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = save(path_of("ckpt"), s, &how, &e);
		fault_off();
		/* If there is no memory for a list of threads, it goes on alone. */
		ck_assert_msg((!rc || (rc == -ENOMEM && fault_hit())) && e.code == -rc, "%d: %s",
			      rc, e.msg);
	}
	check_saved("ckpt", s);
}
END_TEST

START_TEST(plans_that_do_not_fit_are_refused)
{
	static const uint64_t off, len = 10;
	const struct ckpt_write_item item = { .index = { .fqn = "w",
							 .fqn_len = 1,
							 .offset = &off,
							 .n_dims = 1,
							 .has_offset = true },
					      .chunk = { &off, &len },
					      .size = &len,
					      .props = { .dtype = CKPT_DTYPE_F32 },
					      .type = CKPT_WRITE_SHARD };
	const struct ckpt_data s = { .data = &item, .len = 39 };
	const struct dcp_file_opts opts = { .buffer = DCP_FILE_MIN_BUFFER };
	struct dcp_file *f;
	struct ckpt_err e = { 0 };
	uint64_t at, n;
	struct staging_file to = { .fd = openat(dir_fd, "file", O_WRONLY | O_CREAT | O_CLOEXEC,
						0600) };

	ck_assert_int_eq(dcp_file_new(&to, &opts, &f, &e), 0);
	ck_assert_int_eq(dcp_file_add(f, &item, &s, &at, &n, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "its chunk has 40 bytes, its data 39");
	dcp_file_free(f);
}
END_TEST

START_TEST(a_plan_that_names_no_files_is_refused)
{
	static const char *const words[] = { NULL, "", "../x_", "__0_\0" };
	static const size_t lengths[] = { 0, 0, 5, 5 };
	struct ckpt_storage_writer w = { 0 };
	struct writer_dcp_opts opts = { 0 };
	struct ckpt_storage_ranks ranks = { 0, 1 };
	struct ckpt_save_plan plan = { 0 };
	struct ckpt_save_planner p = { 0 };
	struct ckpt_write_results results;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(writer_dcp_new(&opts, &w, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		ck_assert_int_eq(ckpt_storage_writer_reset(&w, path_of("ckpt"), &e), 0);
		ck_assert_int_eq(ckpt_storage_writer_set_up(&w, &ranks, &e), 0);
		ck_assert_int_eq(ckpt_storage_writer_prepare_local_plan(&w, &plan, &plan, &e), 0);
		ck_assert_int_eq(ckpt_storage_writer_prepare_global_plan(&w, &plan, 1, &e), 0);
		ck_assert_str_eq(plan.storage, "__0_");
		plan.storage = words[i];
		plan.storage_len = lengths[i];
		ck_assert_int_eq(ckpt_storage_writer_write_data(&w, &plan, &p, &results, &e),
				 -EINVAL);
		ck_assert_str_eq(e.msg, "the plan does not say how its files are named");
	}
	ckpt_storage_writer_free(&w);
}
END_TEST

START_LOOP_TEST(impossible_options_are_refused, 3)
{
	static const struct {
		struct writer_dcp_opts opts;
		const char *msg;
	} v[] = { { { .threads = 1025 }, "1025 threads are too many: at most 1024 are possible" },
		  { { .zstd_level = 23 }, "there is no zstd level 23: the highest is 22" },
		  { { .buffer = 1 }, "a buffer of 1 bytes, it needs 131072" } };
	struct ckpt_storage_writer w = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(writer_dcp_new(&v[_i].opts, &w, &e), -EINVAL);
	ck_assert_str_eq(e.msg, v[_i].msg);
	ck_assert_ptr_null(w.ops);
}
END_TEST

SUITE(writer_dcp, .setup = setup, .teardown = teardown, .seconds = 60)
