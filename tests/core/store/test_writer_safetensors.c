/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "base/err.h"
#include "fault.h"
#include "model/dtype.h"
#include "store/writer_safetensors.h"
#include "suites.h"
#include "writer_util.h"
#include <ckptfs/ckpt_storage.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIMS(...) ((const uint64_t[]){ __VA_ARGS__ })

static int new_writer(const void *opts, struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	return writer_safetensors_new(opts, ret, e);
}

static int save(const struct writer_safetensors_opts *w_opts, const struct saved_opts *opts,
		const char *where, struct ckpt_err *e)
{
	return save_with(new_writer, w_opts, opts, where, e);
}

/* ---- whole tensors ---- */

START_TEST(random_dicts_read_back)
{
	struct rng r = rng_new();

	for (int round = 0; round < 40; round++) {
		struct writer_safetensors_opts w = { .overwrite = true,
						     .shard_size = rng_chance(&r, 50)
									   ? 1 + rng_below(&r, 3000)
									   : 0,
						     .buffer = rng_chance(&r, 50) ? 1 : 0 };
		struct saved_opts o = { .system = CKPT_PLANNER_DCP, .piecewise = w.buffer };
		struct ckpt_err e = { 0 };

		saved_random(&r, &s, round % 2, false);
		ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
		saved_check(&s, dest);
		/* Written in another way, the bytes are the same. */
		o.piecewise = true;
		w.buffer = 1;
		ck_assert_msg(!save(&w, &o, dest2, &e), "%s", e.msg);
		REQUIRE(dir_digest(dest) == dir_digest(dest2));
	}
}
END_TEST

static void add_layers(struct rng *r, size_t ranks, enum saved_kind kind)
{
	s = (struct saved){ .ranks = ranks };
	saved_add(r, &s, "layers.10", "tensors/layers.10", kind, CKPT_DTYPE_F32, 1, DIMS(10));
	saved_add(r, &s, "layers.2", "tensors/layers.2", kind, CKPT_DTYPE_F32, 1, DIMS(10));
	saved_add(r, &s, "layers.1", "tensors/layers.1", kind, CKPT_DTYPE_F32, 1, DIMS(10));
	saved_dicts(&s);
}

START_TEST(one_rank_writes_what_save_pretrained_would)
{
	static const char index[] =
		"{\n  \"metadata\": {\n    \"total_parameters\": 30,\n    \"total_size\": 120\n  "
		"},\n"
		"  \"weight_map\": {\n"
		"    \"layers.1\": \"model-00001-of-00002.safetensors\",\n"
		"    \"layers.10\": \"model-00002-of-00002.safetensors\",\n"
		"    \"layers.2\": \"model-00001-of-00002.safetensors\"\n  }\n}\n";
	struct writer_safetensors_opts w = { .shard_size = 80 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	autofree uint8_t *text = NULL;
	size_t n;

	add_layers(&r, 1, SAVED_WHOLE);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	text = get_file(dir_fd, "ckpt/model.safetensors.index.json", &n);
	ck_assert_str_eq((char *)text, index);
	REQUIRE(there("ckpt/model-00001-of-00002.safetensors") &&
		there("ckpt/model-00002-of-00002.safetensors"));
	saved_check(&s, dest);
	w.shard_size = 0;
	ck_assert_msg(!save(&w, &o, dest2, &e), "%s", e.msg);
	REQUIRE(there("ckpt2/model.safetensors") && !there("ckpt2/model.safetensors.index.json"));
	saved_check(&s, dest2);
}
END_TEST

START_TEST(ranks_have_files_of_their_own)
{
	struct writer_safetensors_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	add_layers(&r, 3, SAVED_WHOLE); /* each rank writes one */
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	REQUIRE(there("ckpt/model-00003-of-00003.safetensors") &&
		there("ckpt/model.safetensors.index.json"));
	saved_check(&s, dest);
}
END_TEST

/* ---- parts ---- */

START_TEST(parts_make_the_distributed_form)
{
	static const char header[] =
		"{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"layers.1\\\": "
		"{\\\"saved_offsets\\\": [5]}, \\\"layers.2\\\": {\\\"saved_offsets\\\": [5]}, "
		"\\\"layers.10\\\": {\\\"saved_offsets\\\": [5]}}\",\"DCP_VERSION\":\"1.0\","
		"\"format\":\"pt\"},\"layers.1\":{\"dtype\":\"F32\",\"shape\":[5],"
		"\"data_offsets\":[0,20]}";
	struct writer_safetensors_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	autofree uint8_t *text = NULL;
	size_t n;

	add_layers(&r, 2, SAVED_MESH);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	REQUIRE(there("ckpt/shard-00001-model-00001-of-00001.safetensors"));
	text = get_file(dir_fd, "ckpt/shard-00002-model-00001-of-00001.safetensors", &n);
	REQUIRE(n > 4096 && !strncmp((char *)text + 8, header, strlen(header)));
	REQUIRE(!there("ckpt/model.safetensors.index.json"));
	saved_check(&s, dest);
}
END_TEST

START_TEST(several_parts_of_a_tensor_go_to_several_files)
{
	struct writer_safetensors_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	s = (struct saved){ .ranks = 2 };
	saved_add(&r, &s, "rows", "tensors/rows", SAVED_ROWS, CKPT_DTYPE_BF16, 1, DIMS(5));
	saved_add(&r, &s, "x", "tensors/x", SAVED_WHOLE, CKPT_DTYPE_BF16, 0, NULL);
	saved_dicts(&s);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	REQUIRE(there("ckpt/shard-00001-model-00003-of-00003.safetensors") &&
		there("ckpt/shard-00002-model-00002-of-00003.safetensors") &&
		!there("ckpt/shard-00002-model-00003-of-00003.safetensors"));
	saved_check(&s, dest);
}
END_TEST

START_TEST(a_tensor_that_is_whole_on_one_of_its_ranks_is_whole)
{
	struct writer_safetensors_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	s = (struct saved){ .ranks = 3 };
	saved_add(&r, &s, "short", "tensors/short", SAVED_MESH, CKPT_DTYPE_F16, 1, DIMS(1));
	saved_dicts(&s);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	REQUIRE(there("ckpt/model.safetensors"));
	saved_check(&s, dest);
}
END_TEST

/* ---- refusals ---- */

#define REFUSED(code, text) \
	do { \
		struct writer_safetensors_opts w_ = { 0 }; \
		struct saved_opts o_ = { .system = CKPT_PLANNER_DCP }; \
		struct ckpt_err e_ = { 0 }; \
		saved_dicts(&s); \
		ck_assert_int_eq(save(&w_, &o_, dest, &e_), -(code)); \
		ck_assert_str_eq(e_.msg, text); \
		REQUIRE(!there("ckpt") && !there("ckpt.partial") && !there("ckpt.partial.lock")); \
	} while (0)

START_TEST(what_safetensors_cannot_hold_is_refused)
{
	struct rng r = rng_new();

	s = (struct saved){ .ranks = 2 };
	REFUSED(EINVAL, "there is no tensor to save");
	saved_add(&r, &s, "w", "tensors/w", SAVED_WHOLE, CKPT_DTYPE_F16, 1, DIMS(1));
	saved_add(&r, &s, "opt.step", "objects/opt.step", SAVED_OBJECT, 0, 0, NULL);
	REFUSED(ERR_UNSUPPORTED, "'opt.step': an object, but safetensors holds only tensors");
	s.n = 1;
	saved_add(&r, &s, "z", "tensors/z", SAVED_WHOLE, CKPT_DTYPE_C128, 1, DIMS(1));
	REFUSED(ERR_UNSUPPORTED, "'z': safetensors has no type complex128");
	s.n = 1;
	saved_add(&r, &s, "\xff", "tensors/%FF", SAVED_WHOLE, CKPT_DTYPE_F16, 1, DIMS(1));
	REFUSED(ERR_UNSUPPORTED,
		"'%FF': safetensors requires names in UTF-8, but this name is not in UTF-8");
}
END_TEST

START_TEST(a_chunk_of_two_ranks_is_refused)
{
	struct rng r = rng_new();
	struct writer_safetensors_opts opts = { 0 };
	struct ckpt_storage_writer w = { 0 };
	struct ckpt_save_planner p[2] = { 0 };
	struct ckpt_save_plan parts[2];
	struct ckpt_err e = { 0 };

	add_layers(&r, 2, SAVED_WHOLE);
	REQUIRE(!writer_safetensors_new(&opts, &w, &e) &&
		!ckpt_storage_writer_reset(&w, dest, &e) &&
		!ckpt_storage_writer_set_up(&w, &(struct ckpt_storage_ranks){ 0, 2 }, &e));
	for (size_t i = 0; i < 2; i++) { /* duplicates that no planner has removed */
		const struct ckpt_save_planning o = { .rank = i, .is_coordinator = !i };

		REQUIRE(!ckpt_save_planner_new(CKPT_PLANNER_DCP, &p[i], &e) &&
			!ckpt_save_planner_configure(&p[i], &s.dict[i], &o, &e) &&
			!ckpt_save_planner_local_plan(&p[i], &parts[i], &e));
	}
	REQUIRE(!ckpt_storage_writer_prepare_local_plan(&w, &parts[0], &parts[0], &e));
	ck_assert_int_eq(ckpt_storage_writer_prepare_global_plan(&w, parts, 2, &e), -EINVAL);
	ck_assert_str_eq(e.msg,
			 "'layers.1': one chunk is in the plans twice, and safetensors files "
			 "cannot hold copies");
	ckpt_storage_writer_free(&w);
	for (size_t i = 0; i < 2; i++)
		ckpt_save_planner_free(&p[i]);
}
END_TEST

/* ---- saving again ---- */

START_TEST(plans_that_are_not_sent_again_are_kept)
{
	struct writer_safetensors_opts opts = { .shard_size = 100 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP, .caching = true };
	struct ckpt_storage_writer w[SAVED_RANKS] = { 0 };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	add_layers(&r, 3, SAVED_WHOLE);
	for (size_t i = 0; i < s.ranks; i++)
		REQUIRE(!writer_safetensors_new(&opts, &w[i], &e));
	for (unsigned i = 0; i < 3; i++) {
		char path[4300];

		(void)snprintf(path, sizeof(path), "%s%u", dest, i);
		ck_assert_msg(!saved_save(&s, path, w, &o, &e), "%s", e.msg);
		saved_check(&s, path);
	}
	/* A new writer has not seen the plans, so it cannot know. */
	for (size_t i = 0; i < s.ranks; i++) {
		ckpt_storage_writer_free(&w[i]);
		REQUIRE(!writer_safetensors_new(&opts, &w[i], &e));
	}
	ck_assert_int_eq(saved_save(&s, dest, w, &o, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "the plan of rank 0 is marked unchanged, but none was kept");
	for (size_t i = 0; i < s.ranks; i++)
		ckpt_storage_writer_free(&w[i]);
	REQUIRE(!there("ckpt"));
}
END_TEST

static void count(void *arg, uint64_t bytes)
{
	*(uint64_t *)arg += bytes;
}

START_TEST(progress_counts_the_bytes_of_tensors)
{
	uint64_t written = 0;
	struct writer_safetensors_opts w = { .progress = count, .arg = &written };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	add_layers(&r, 2, SAVED_MESH);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	ck_assert_uint_eq(written, 120);
}
END_TEST

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	REQUIRE(d);
	while (readdir(d)) /* NOLINT(concurrency-mt-unsafe) */
		n++;
	(void)closedir(d);
	return n;
}

static void count_open(void *arg, uint64_t bytes)
{
	unsigned *most = arg, n = open_files();

	(void)bytes;
	*most = n > *most ? n : *most;
}

START_TEST(ranks_hold_files_only_while_they_write)
{
	unsigned before = open_files(), most = 0;
	struct writer_safetensors_opts w = { .progress = count_open, .arg = &most };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	add_layers(&r, 8, SAVED_MESH);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	/* The coordinator has two directories and the lock open, a rank two directories and its
	 * file. */
	ck_assert_uint_le(most, before + 6);
	ck_assert_uint_eq(open_files(), before);
}
END_TEST

START_TEST(a_save_that_stops_leaves_nothing)
{
	struct writer_safetensors_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP, .stop = true };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	add_layers(&r, 2, SAVED_MESH);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	REQUIRE(!there("ckpt") && !there("ckpt.partial") && !there("ckpt.partial.lock"));
}
END_TEST

static void fails_cleanly(enum fault_kind kind, int code, bool whole)
{
	struct writer_safetensors_opts w = { .shard_size = 80 };
	struct saved_opts o = { .system = CKPT_PLANNER_DCP, .piecewise = false };
	struct rng r = rng_new();

	add_layers(&r, 2, whole ? SAVED_WHOLE : SAVED_ROWS);
	FAULT_LOOP(kind)
	{
		struct ckpt_err e = { 0 };
		int rc = save(&w, &o, dest, &e);

		(void)fault_off();
		if (!fault_hit()) {
			ck_assert_msg(!rc, "%s", e.msg);
			continue;
		}
		ck_assert_msg(rc == -code && e.code == code, "%d: %s", rc, e.msg);
		if (strstr(e.msg, "is saved")) {
			char done[32];

			(void)snprintf(done, sizeof(done), "done%ju", (uintmax_t)fault_n);
			saved_check(&s, dest);
			REQUIRE(!renameat(dir_fd, "ckpt", dir_fd, done));
		}
		REQUIRE(!there("ckpt") && !there("ckpt.partial"));
	}
	saved_check(&s, dest);
}

START_LOOP_TEST(without_memory_it_fails_cleanly, 2)
{
	fails_cleanly(FAULT_ALLOC, ENOMEM, _i);
}
END_TEST

START_LOOP_TEST(on_a_full_disk_it_fails_cleanly, 2)
{
	fails_cleanly(FAULT_WRITE, ENOSPC, _i);
}
END_TEST

START_LOOP_TEST(on_a_bad_disk_it_fails_cleanly, 2)
{
	fails_cleanly(FAULT_SYNC, EIO, _i);
}
END_TEST

SUITE(writer_safetensors, .setup = dest_setup, .teardown = dir_teardown, .seconds = 60)
