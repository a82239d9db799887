/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suites - the list of Check suites, and what a file of tests is made of. A new suite is one line
 * here and a file, tests/core/FOLDER/test_NAME.c:
 *
 *	START_TEST(an_empty_list_has_no_first)
 *	{
 *		ck_assert_ptr_null(first(&empty));
 *	}
 *	END_TEST
 *
 *	START_LOOP_TEST(every_size_fits, ARRAY_LEN(sizes)) // once for each _i below that
 *	{
 *		...
 *	}
 *	END_TEST
 *
 *	START_FEW_TEST(every_large_size_fits, ARRAY_LEN(large), 2) // a loop that is short in a short run
 *	START_LONG_TEST(a_million_fit) // a quarter of a second or more: in one short run out of four
 *
 * A short run (see rng.h) takes only part of a loop: as many iterations as given, or LOOP_FEW, each
 * drawn from another stretch of the loop. TEST_SEED decides which.
 *
 *	SUITE(NAME, .setup = setup, .teardown = teardown, .seconds = 60) // before and after each test
 *
 * Each test runs in a process of its own. Suites whose tests need different things before and after
 * them define NAME_suite themselves, with the functions of Check.
 */
#ifndef TESTS_SUITES_H
#define TESTS_SUITES_H

#include "rng.h"

#include <check.h>
#include <stdlib.h>

/* ---- tests, which are noted where they are defined ---- */

enum {
	LOOP_FEW = 12,
	LONG_ONE_IN = 4, /* of a suite's long tests */
	TEST_LONG = 0,	 /* instead of a number of iterations */
};

struct test_row {
	const TTest *test;
	int (*times)(void);
	int few;	       /* iterations in a short run, or TEST_LONG */
	struct test_row *next; /* further down in the file */
};

struct suite_setting {
	void (*setup)(void), (*teardown)(void);
	double seconds; /* before a test counts as hanging; 0: Check's own 4 */
};

__attribute__((unused)) static struct test_row *test_rows; /* of this file */

static inline void test_note(struct test_row **list, struct test_row *row)
{
	while (*list && (*list)->test->line < row->test->line)
		list = &(*list)->next;
	row->next = *list;
	*list = row;
}

/* Adds a test of n iterations, of which a short run takes `few`, each from another part of the
 * loop. */
void test_add(TCase *t, const TTest *test, int n, int few);
Suite *suite_make(const char *name, const struct test_row *rows, struct suite_setting how);

#undef START_TEST
#define START_FEW_TEST(name, n, few) \
	static void name##_fn(int _i); \
	static const TTest name##_ttest = { #name, name##_fn, __FILE__, __LINE__ }; \
	__attribute__((unused)) static const TTest *name = &name##_ttest; \
	static int name##_times(void) \
	{ \
		return (int)(n); \
	} \
	__attribute__((constructor)) static void name##_note(void) \
	{ \
		static struct test_row row = { &name##_ttest, name##_times, few, NULL }; \
		test_note(&test_rows, &row); \
	} \
	static void name##_fn(int _i CK_ATTRIBUTE_UNUSED)
#define START_LOOP_TEST(name, n) START_FEW_TEST(name, n, LOOP_FEW)
#define START_LONG_TEST(name)	 START_FEW_TEST(name, 1, TEST_LONG)
#define START_TEST(name)	 START_FEW_TEST(name, 1, 1)

#define SUITE(name, ...) \
	Suite *name##_suite(void) \
	{ \
		return suite_make(#name, test_rows, (struct suite_setting){ __VA_ARGS__ }); \
	}

/* ---- suites ---- */

/* ck_assert for loops: Check writes each ck_assert to a file, which takes time. */
#define REQUIRE(cond) \
	do { \
		if (!(cond)) \
			ck_abort_msg("%s", #cond); \
	} while (0)

/* Should loops that inject faults or draw random input run at full length (`make check-full`)? */
#define CHECK_FULL() rng_full()

#define SUITES(X) \
	X(arch) \
	X(archive) \
	X(archive_crcs) \
	X(arena) \
	X(arith) \
	X(assets) \
	X(average) \
	X(blend) \
	X(blockcache) \
	X(blocks) \
	X(box) \
	X(box_cover) \
	X(buf) \
	X(bytes) \
	X(cast) \
	X(catalog) \
	X(catalog_path) \
	X(checkpointable) \
	X(chunkmap) \
	X(chunkrows) \
	X(ckpt) \
	X(ckpt_api) \
	X(ckpt_backing) \
	X(ckpt_box) \
	X(ckpt_data) \
	X(ckpt_fault) \
	X(ckpt_model) \
	X(ckpt_reader) \
	X(ckpt_options) \
	X(ckpt_recipe) \
	X(ckpt_save) \
	X(ckpt_slice) \
	X(ckpt_sources) \
	X(cleanup) \
	X(codec) \
	X(comm) \
	X(command_faults) \
	X(commands) \
	X(counters) \
	X(creds) \
	X(crc32c) \
	X(dcp) \
	X(dedup) \
	X(dequantise) \
	X(dequantise_wrapped) \
	X(deepspeed) \
	X(delta) \
	X(depot) \
	X(derived) \
	X(diff) \
	X(dtype) \
	X(err) \
	X(experts) \
	X(export) \
	X(faults) \
	X(fetch) \
	X(file_store) \
	X(files) \
	X(fp8) \
	X(fsdp) \
	X(gather) \
	X(gguf) \
	X(gguf_dir) \
	X(gguf_model) \
	X(gguf_read) \
	X(gguf_tokens) \
	X(gguf_tree) \
	X(heat) \
	X(heats) \
	X(helpers) \
	X(hf_index) \
	X(hf) \
	X(hist) \
	X(hp_layout) \
	X(http) \
	X(hub) \
	X(hyperparallel) \
	X(index) \
	X(io) \
	X(item) \
	X(json) \
	X(json_out) \
	X(json_without) \
	X(layout) \
	X(lease) \
	X(lora) \
	X(megatron) \
	X(megatron_args) \
	X(megatron_ranks) \
	X(merge) \
	X(mesh) \
	X(metadata) \
	X(metadata_pickle) \
	X(model_names) \
	X(name) \
	X(mounts) \
	X(msgpack) \
	X(namelist) \
	X(normal) \
	X(nearest) \
	X(net) \
	X(neighbours) \
	X(npy) \
	X(object_form) \
	X(object_json) \
	X(ocdbt) \
	X(ops) \
	X(orbax) \
	X(overlay_sparse) \
	X(pagemap) \
	X(pickle) \
	X(pickle_hooks) \
	X(pickle_hostile) \
	X(pickle_json) \
	X(pickle_mutation) \
	X(pickle_same) \
	X(pickle_write) \
	X(picture) \
	X(place) \
	X(plan) \
	X(plan_codec) \
	X(planner) \
	X(pt_write) \
	X(progress) \
	X(q8_0) \
	X(quantise) \
	X(read_items) \
	X(recipe) \
	X(recipe_invert) \
	X(remote) \
	X(rename) \
	X(report) \
	X(reshard) \
	X(run) \
	X(safetensors) \
	X(safetensors_dir) \
	X(scatter) \
	X(sched) \
	X(sandbox) \
	X(save_run) \
	X(s3) \
	X(seal) \
	X(server) \
	X(shards) \
	X(sign) \
	X(st_write) \
	X(staging) \
	X(storage) \
	X(tally) \
	X(tar) \
	X(text) \
	X(tile) \
	X(torch_item) \
	X(torchsave) \
	X(upload) \
	X(values) \
	X(vec) \
	X(vfile) \
	X(view) \
	X(view_model) \
	X(vtensor) \
	X(vtensor_ops) \
	X(wire) \
	X(writer_dcp) \
	X(writer_hyperparallel) \
	X(writer_safetensors) \
	X(xml) \
	X(zarr) \
	X(zarr_array) \
	X(zarr_metadata) \
	X(zip) \
	X(zstd) \
	X(zstd_frames)

#define SUITE_DECLARE(name) Suite *name##_suite(void);
SUITES(SUITE_DECLARE)

#endif
