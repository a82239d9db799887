/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "file/hf_index.h"
#include "file/st_write.h"
#include "suites.h"
#include "vfile_util.h"

#include <stdlib.h>
#include <string.h>

/* Expected numbers are those of huggingface_hub's split_torch_state_dict_into_shards. */
static const struct {
	uint64_t limit;
	size_t n;
	uint64_t bytes[6];
	uint32_t count, shard[6];
} rows[] = {
	/* the example of its documentation */
	{ 10, 6, { 6, 6, 2, 6, 2, 2 }, 3, { 0, 1, 1, 2, 2, 2 } },
	{ 10, 4, { 5, 5, 5, 5 }, 2, { 0, 0, 1, 1 } },
	{ 10, 1, { 10 }, 1, { 0 } },
	{ 10, 1, { 11 }, 1, { 0 } },
	/* larger than the limit: numbered before the file that is being filled */
	{ 10, 3, { 4, 11, 4 }, 2, { 1, 0, 1 } },
	{ 10, 4, { 4, 11, 4, 4 }, 3, { 1, 0, 1, 2 } },
	{ 10, 5, { 11, 4, 12, 13, 10 }, 5, { 0, 3, 1, 2, 4 } },
	{ 10, 2, { 4, 99 }, 2, { 1, 0 } },
	{ 0, 4, { 0, 1, 0, 1 }, 3, { 2, 0, 2, 1 } },
	{ UINT64_MAX, 3, { UINT64_MAX - 1, 1, 1 }, 2, { 0, 0, 1 } },
	{ 10, 0, { 0 }, 0, { 0 } },
};

START_LOOP_TEST(tensors_go_where_save_pretrained_puts_them, ARRAY_LEN(rows))
{
	struct tensor_info m[6] = { 0 };
	uint32_t shard[6];

	for (size_t i = 0; i < rows[_i].n; i++)
		m[i].bytes = rows[_i].bytes[i];
	ck_assert_uint_eq(hf_split(m, rows[_i].n, rows[_i].limit, shard), rows[_i].count);
	for (size_t i = 0; i < rows[_i].n; i++)
		ck_assert_uint_eq(shard[i], rows[_i].shard[i]);
}
END_TEST

/* By the book: files in the order in which they are put on the list, one tensor after another. */
static uint32_t naive_split(const struct tensor_info *m, size_t n, uint64_t limit, uint32_t *shard)
{
	size_t held[500], n_held = 0;
	uint64_t filled = 0;
	uint32_t count = 0;

	for (size_t i = 0; i <= n; i++) {
		if (i < n && m[i].bytes > limit) {
			shard[i] = count++;
			continue;
		}
		if (n_held && (i == n || filled + m[i].bytes > limit)) {
			for (size_t k = 0; k < n_held; k++)
				shard[held[k]] = count;
			count++;
			n_held = 0;
			filled = 0;
		}
		if (i < n) {
			held[n_held++] = i;
			filled += m[i].bytes;
		}
	}
	return count;
}

START_TEST(any_list_is_split_as_by_hand)
{
	struct rng r = rng_new();

	for (int round = 0; round < 2000; round++) {
		size_t n = rng_below(&r, 500);
		uint64_t limit = rng_below(&r, 200), most = 1 + rng_below(&r, 250);
		struct tensor_info m[500] = { 0 };
		uint32_t got[500], want[500];

		for (size_t i = 0; i < n; i++)
			m[i].bytes = rng_below(&r, most);
		REQUIRE(hf_split(m, n, limit, got) == naive_split(m, n, limit, want));
		REQUIRE(!memcmp(got, want, n * sizeof(*got)));
	}
}
END_TEST

START_TEST(files_are_named_as_usual)
{
	char name[HF_NAME_CAP];

	hf_file_name(0, 1, name);
	ck_assert_str_eq(name, "model.safetensors");
	hf_file_name(0, 2, name);
	ck_assert_str_eq(name, "model-00001-of-00002.safetensors");
	hf_file_name(99999, 123456, name);
	ck_assert_str_eq(name, "model-100000-of-123456.safetensors");
	hf_file_name(UINT32_MAX - 1, UINT32_MAX, name);
	ck_assert_str_eq(name, "model-4294967295-of-4294967295.safetensors");
}
END_TEST

#define DIMS(...) ((const uint64_t[]){ __VA_ARGS__ })

START_TEST(the_index_is_what_save_pretrained_writes)
{
	/* json.dumps(index, indent=2, sort_keys=True) + "\n" */
	static const char want[] = "{\n"
				   "  \"metadata\": {\n"
				   "    \"total_parameters\": 20,\n"
				   "    \"total_size\": 49\n"
				   "  },\n"
				   "  \"weight_map\": {\n"
				   "    \"a\": \"model-00002-of-00002.safetensors\",\n"
				   "    \"a.b\": \"model-00001-of-00002.safetensors\",\n"
				   "    \"layers.10\": \"model-00001-of-00002.safetensors\",\n"
				   "    \"layers.2\": \"model-00001-of-00002.safetensors\",\n"
				   "    \"\\u00e9\\\"\": \"model-00002-of-00002.safetensors\"\n"
				   "  }\n"
				   "}\n";
	const struct tensor_info m[] = {
		member_of("layers.2", CKPT_DTYPE_BF16, 2, DIMS(2, 3), 1),
		member_of("layers.10", CKPT_DTYPE_BF16, 1, DIMS(1), 2),
		member_of("\xc3\xa9\"", CKPT_DTYPE_F32, 1, DIMS(5), 3),
		member_of("a.b", CKPT_DTYPE_F64, 0, NULL, 4),
		member_of("a", CKPT_DTYPE_U8, 1, DIMS(7), 5),
	};
	static const uint32_t shard[] = { 0, 0, 1, 0, 1 };
	struct buf b = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(hf_index(m, 5, shard, 2, &b, &e), 0);
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
}
END_TEST

START_TEST(an_index_has_a_ceiling)
{
	const struct tensor_info m = member_of("name", CKPT_DTYPE_U8, 0, NULL, 1);
	struct buf b = BUF_INIT(100);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(hf_index(&m, 1, (const uint32_t[]){ 0 }, 1, &b, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "the index of 1 tensors is too large");
	buf_release(&b);
}
END_TEST

START_TEST(sums_that_overflow_are_refused)
{
	struct tensor_info m[2] = { member_of("a", CKPT_DTYPE_U8, 0, NULL, 1),
				    member_of("b", CKPT_DTYPE_U8, 0, NULL, 2) };
	struct buf b = BUF_INIT(1000);
	struct ckpt_err e = { 0 };

	m[0].bytes = UINT64_MAX;
	ck_assert_int_eq(hf_index(m, 2, (const uint32_t[]){ 0, 0 }, 1, &b, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "the tensors have more than 2^64 bytes in all");
	buf_release(&b);
}
END_TEST

START_TEST(lack_of_memory_is_a_clean_error)
{
	struct rng r = rng_new();
	struct members l = members_random(&r, 20, st_holds);
	uint32_t shard[20] = { 0 };
	unsigned failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct buf b = BUF_INIT(1 << 20);
		struct ckpt_err e = { 0 };
		int rc = hf_index(l.m, l.n, shard, 2, &b, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		failed += rc != 0;
		buf_release(&b);
	}
	ck_assert_uint_gt(failed, 2);
	members_free(&l);
}
END_TEST

SUITE(hf_index)
