/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "fault.h"
#include "model/dtype.h"
#include "store/writer_hyperparallel.h"
#include "suites.h"
#include "writer_util.h"
#include <ckptfs/ckpt_storage.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIMS(...) ((const uint64_t[]){ __VA_ARGS__ })

static int new_writer(const void *opts, struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	return writer_hyperparallel_new(opts, ret, e);
}

static int save(const struct writer_hyperparallel_opts *w_opts, const struct saved_opts *opts,
		const char *where, struct ckpt_err *e)
{
	return save_with(new_writer, w_opts, opts, where, e);
}

START_TEST(random_dicts_read_back)
{
	struct rng r = rng_new();

	for (int round = 0; round < 40; round++) {
		struct writer_hyperparallel_opts w = { .overwrite = true,
						       .buffer = rng_chance(&r, 50) };
		struct saved_opts o = { .system = round % 2 ? CKPT_PLANNER_HYPERPARALLEL
							    : CKPT_PLANNER_HYPERPARALLEL_B,
					.piecewise = w.buffer };
		struct ckpt_err e = { 0 };

		saved_random(&r, &s, false, true);
		ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
		saved_check(&s, dest);
		o.piecewise = true;
		w.buffer = 1;
		ck_assert_msg(!save(&w, &o, dest2, &e), "%s", e.msg);
		REQUIRE(dir_digest(dest) == dir_digest(dest2));
	}
}
END_TEST

/* The header of rank 0's container. */
static char *header(void)
{
	size_t n;
	char *p = (char *)get_file(dir_fd, "ckpt/_rank0_.safetensors", &n);
	uint64_t len = load_le64(p);

	REQUIRE(n > 8 && len <= n - 8);
	p[8 + len] = 0;
	memmove(p, p + 8, len + 1);
	return p;
}

START_TEST(chunks_have_names_that_no_tensor_has)
{
	static const char *const keys[] = { "\"a\":",
					    "\"rows.__dcp_chunk_0__\":",
					    "\"rows.__dcp_chunk_1\":",
					    "\"rows.__dcp_chunk_2\":",
					    "\"rows.__dcp_chunk_0\":",
					    "\"rows.__dcp_chunk_0_\":" };
	struct writer_hyperparallel_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_HYPERPARALLEL_B };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	autofree char *text = NULL;

	s = (struct saved){ .ranks = 1 };
	saved_add(&r, &s, "rows", "tensors/rows", SAVED_ROWS, CKPT_DTYPE_BF16, 1, DIMS(3));
	saved_add(&r, &s, "rows.__dcp_chunk_0", "tensors/rows.__dcp_chunk_0", SAVED_WHOLE,
		  CKPT_DTYPE_I8, 1, DIMS(3));
	saved_add(&r, &s, "rows.__dcp_chunk_0_", "tensors/rows.__dcp_chunk_0_", SAVED_WHOLE,
		  CKPT_DTYPE_F64, 0, NULL);
	saved_add(&r, &s, "a", "tensors/a", SAVED_ROWS, CKPT_DTYPE_F32, 1, DIMS(1));
	saved_dicts(&s);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	saved_check(&s, dest);
	text = header();
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		ck_assert_msg(strstr(text, keys[i]), "no %s in %s", keys[i], text);
}
END_TEST

START_TEST(a_rank_writes_only_the_files_it_needs)
{
	struct writer_hyperparallel_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_HYPERPARALLEL_B };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct stat st;

	s = (struct saved){ .ranks = 3 };
	saved_add(&r, &s, "obj", "objects/obj", SAVED_OBJECT, 0, 0, NULL);
	saved_add(&r, &s, "t", "tensors/t", SAVED_WHOLE, CKPT_DTYPE_F16, 2, DIMS(30, 4));
	saved_dicts(&s);
	ck_assert_msg(!save(&w, &o, dest, &e), "%s", e.msg);
	saved_check(&s, dest);
	/* The largest is placed first, then each to the rank that has the least. */
	REQUIRE(there("ckpt/_rank0_.safetensors") && !there("ckpt/_rank0_.bytes"));
	REQUIRE(there("ckpt/_rank1_.bytes") && !there("ckpt/_rank1_.safetensors"));
	REQUIRE(!there("ckpt/_rank2_.safetensors") && !there("ckpt/_rank2_.bytes"));
	REQUIRE(!fstatat(dir_fd, "ckpt/_rank1_.bytes", &st, 0));
	ck_assert_uint_eq((uint64_t)st.st_size, s.entries[0].len);
}
END_TEST

START_TEST(dtypes_that_safetensors_lacks_are_refused)
{
	struct writer_hyperparallel_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_HYPERPARALLEL_B };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	s = (struct saved){ .ranks = 2 };
	saved_add(&r, &s, "z", "tensors/z", SAVED_MESH, CKPT_DTYPE_C128, 1, DIMS(4));
	saved_dicts(&s);
	ck_assert_int_eq(save(&w, &o, dest, &e), -ERR_UNSUPPORTED);
	ck_assert_str_eq(e.msg, "'z': safetensors has no type complex128");
	REQUIRE(!there("ckpt") && !there("ckpt.partial") && !there("ckpt.partial.lock"));
}
END_TEST

static void fails_cleanly(enum fault_kind kind, int code)
{
	struct writer_hyperparallel_opts w = { 0 };
	struct saved_opts o = { .system = CKPT_PLANNER_HYPERPARALLEL_B };
	struct rng r = rng_new();

	s = (struct saved){ .ranks = 2 };
	saved_add(&r, &s, "o", "objects/o", SAVED_OBJECT, 0, 0, NULL);
	saved_add(&r, &s, "rows", "tensors/rows", SAVED_ROWS, CKPT_DTYPE_F16, 2, DIMS(5, 4));
	saved_add(&r, &s, "mesh", "tensors/mesh", SAVED_MESH, CKPT_DTYPE_F16, 2, DIMS(5, 4));
	saved_dicts(&s);
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

START_TEST(without_memory_it_fails_cleanly)
{
	fails_cleanly(FAULT_ALLOC, ENOMEM);
}
END_TEST

START_TEST(on_a_full_disk_it_fails_cleanly)
{
	fails_cleanly(FAULT_WRITE, ENOSPC);
}
END_TEST

START_TEST(on_a_bad_disk_it_fails_cleanly)
{
	fails_cleanly(FAULT_SYNC, EIO);
}
END_TEST

SUITE(writer_hyperparallel, .setup = dest_setup, .teardown = dir_teardown, .seconds = 60)
