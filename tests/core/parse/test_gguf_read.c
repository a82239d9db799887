/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "gguf_made.h"
#include "parse/gguf.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 3 << 20 };

static int read_bytes(const struct buf *b, bool size_known, struct gguf_head **ret,
		      struct ckpt_err *e)
{
	struct blob blob;
	struct mem m;
	int rc;

	REQUIRE(!b->err);
	mem_init(&m, b->data, b->len);
	blob = mem_blob(&m, size_known);
	rc = gguf_read(&blob, ret, e);
	mem_release(&m);
	return rc;
}

static const uint64_t vector[] = { 256 }, matrix[] = { 256, 3 }, stack[] = { 64, 2, 3, 4 };

/* Values of all types. */
static void put_keys(struct buf *b)
{
	made_text(b, "general.architecture", "llama");
	made_key(b, "u8", GGUF_U8);
	made_number(b, 200, 1);
	made_key(b, "i8", GGUF_I8);
	made_number(b, 0xff, 1);
	made_u16(b, "u16", 65535);
	made_key(b, "i16", GGUF_I16);
	made_number(b, 0x8000, 2);
	made_u32(b, "u32", 4000000000u);
	made_key(b, "i32", GGUF_I32);
	made_number(b, 7, 4);
	made_key(b, "f32", GGUF_F32);
	made_number(b, 0x3f800000, 4);
	made_key(b, "bool", GGUF_BOOL);
	made_number(b, 1, 1);
	made_key(b, "u64", GGUF_U64);
	made_number(b, UINT64_MAX, 8);
	made_key(b, "i64", GGUF_I64);
	made_number(b, UINT64_MAX, 8);
	made_key(b, "f64", GGUF_F64);
	made_number(b, 0, 8);
	made_key(b, "texts", GGUF_ARRAY);
	made_number(b, GGUF_STR, 4);
	made_number(b, 2, 8);
	made_str(b, "");
	made_str(b, "caf\xc3\xa9");
	made_key(b, "nested", GGUF_ARRAY);
	made_number(b, GGUF_ARRAY, 4);
	made_number(b, 2, 8);
	for (unsigned i = 0; i < 2; i++) {
		made_number(b, GGUF_U8, 4);
		made_number(b, i, 8);
		made_number(b, 9, i);
	}
}

enum { N_KEYS = 14 };

static void put_tensors(struct buf *b)
{
	made_tensor(b, "a", 1, vector, GGML_F32, 0);
	made_tensor(b, "b", 2, matrix, GGML_Q4_K, 1024);
	made_tensor(b, "none", 1, &(uint64_t){ 0 }, GGML_Q6_K, 1472);
	made_tensor(b, "one", 0, NULL, GGML_I16, 1472);
	made_tensor(b, "d", 4, stack, GGML_Q8_0, 2048);
}

START_LOOP_TEST(keys_and_tensors_are_read, 4)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);
	struct gguf_head *h = NULL;
	struct ckpt_err e = { 0 };
	uint64_t n;

	made_head(&b, _i / 2 ? 2 : 3, 5, N_KEYS);
	put_keys(&b);
	put_tensors(&b);
	ck_assert_msg(!read_bytes(&b, _i % 2, &h, &e), "%s", e.msg);
	ck_assert_uint_eq(h->n_keys, N_KEYS);
	ck_assert_uint_eq(h->n_items, 5);
	ck_assert_uint_eq(h->alignment, 32);
	ck_assert_uint_eq(h->data, (b.len + 31) / 32 * 32);
	ck_assert_uint_eq(gguf_end(h), h->data + 2048 + 1536 / 32 * 34);
	REQUIRE(bytes_are(h->items[1].name, h->items[1].len, "b"));
	ck_assert_uint_eq(h->items[1].bytes, 3 * 144);
	ck_assert_uint_eq(h->items[1].shape[0], 3);
	ck_assert_uint_eq(h->items[2].bytes, 0);
	ck_assert_uint_eq(h->items[3].bytes, 2);
	ck_assert_uint_eq(h->items[4].shape[0], 4);
	ck_assert_uint_eq(h->items[4].shape[3], 64);
	REQUIRE(gguf_number(gguf_find(h, "u8"), &n) && n == 200);
	REQUIRE(gguf_number(gguf_find(h, "u64"), &n) && n == UINT64_MAX);
	REQUIRE(gguf_number(gguf_find(h, "i32"), &n) && n == 7);
	REQUIRE(!gguf_number(gguf_find(h, "i8"), &n) && !gguf_number(gguf_find(h, "f32"), &n));
	REQUIRE(!gguf_number(gguf_find(h, "texts"), &n) && !gguf_number(NULL, &n));
	REQUIRE(!gguf_number(gguf_find(h, "bool"), &n) && !gguf_find(h, "x"));
	gguf_free(h);
}
END_TEST

/* Each value must end where the next begins. */
START_TEST(arrays_are_taken_apart)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);
	struct gguf_head *h = NULL;
	struct ckpt_err e = { 0 };
	struct gguf_value v;
	enum gguf_type of;
	const uint8_t *p;
	uint64_t n;

	made_head(&b, 3, 0, N_KEYS);
	put_keys(&b);
	REQUIRE(!read_bytes(&b, true, &h, &e));
	gguf_open_array(gguf_find(h, "texts"), &of, &n, &p);
	REQUIRE(of == GGUF_STR && n == 2);
	v = gguf_take(&p, of);
	ck_assert_uint_eq(v.len, 0);
	v = gguf_take(&p, of);
	REQUIRE(bytes_are(v.p, v.len, "caf\xc3\xa9"));
	gguf_open_array(gguf_find(h, "nested"), &of, &n, &p);
	REQUIRE(of == GGUF_ARRAY && n == 2);
	v = gguf_take(&p, of);
	ck_assert_uint_eq(v.len, 12);
	v = gguf_take(&p, of);
	ck_assert_uint_eq(v.len, 13);
	gguf_open_array(&v, &of, &n, &p);
	REQUIRE(of == GGUF_U8 && n == 1 && *p == 9);
	gguf_free(h);
}
END_TEST

/* A head of several megabytes is read in steps. */
START_TEST(a_long_head_is_read)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);
	struct gguf_head *h = NULL;
	struct ckpt_err e = { 0 };

	made_head(&b, 3, 1, 1);
	made_key(&b, "tokens", GGUF_ARRAY);
	made_number(&b, GGUF_STR, 4);
	made_number(&b, 200000, 8);
	for (int i = 0; i < 200000; i++)
		made_str(&b, "tok");
	made_tensor(&b, "a", 1, vector, GGML_F16, 0);
	ck_assert_msg(!read_bytes(&b, true, &h, &e), "%s", e.msg);
	ck_assert_uint_eq(h->keys[0].value.len, 12 + 200000 * 11);
	gguf_free(h);
}
END_TEST

/* ---- what is refused ---- */

struct making {
	uint32_t version;
	uint64_t tensors, keys;
	void (*put)(struct buf *b);
	int code;
	const char *msg;
};

#define PUT(name, ...) \
	static void name(struct buf *b) \
	{ \
		__VA_ARGS__; \
	}

static void put_array(struct buf *b, uint32_t type, uint64_t n)
{
	made_key(b, "k", GGUF_ARRAY);
	made_number(b, type, 4);
	made_number(b, n, 8);
}

PUT(nothing, (void)b)
PUT(unknown_value, made_key(b, "k", 13))
PUT(unknown_member, put_array(b, 77, 0))
PUT(many_strings, put_array(b, GGUF_STR, UINT64_MAX))
PUT(many_numbers, put_array(b, GGUF_U64, UINT64_MAX / 8 + 1))
PUT(long_string, made_key(b, "k", GGUF_STR); made_number(b, UINT64_MAX, 8))
PUT(no_name, made_u32(b, "", 1))
PUT(not_text, made_u32(b, "a\xff", 1))
PUT(same_keys, made_u32(b, "a", 1); made_u32(b, "b", 1); made_u32(b, "a", 1))
PUT(odd_alignment, made_u32(b, "general.alignment", 48))
PUT(no_alignment, made_u32(b, "general.alignment", 0))
PUT(text_alignment, made_text(b, "general.alignment", "32"))
PUT(unknown_type, made_tensor(b, "w", 1, vector, 99, 0))
PUT(removed_type, made_tensor(b, "w", 1, vector, 4, 0))
PUT(five_dims, made_tensor(b, "w", 5, (const uint64_t[]){ 1, 1, 1, 1, 1 }, GGML_F32, 0))
PUT(part_of_block, made_tensor(b, "w", 1, &(uint64_t){ 48 }, GGML_Q8_0, 0))
PUT(no_row, made_tensor(b, "w", 0, NULL, GGML_Q8_0, 0))
PUT(huge, made_tensor(b, "w", 2, (const uint64_t[]){ 1ull << 32, 1ull << 32 }, GGML_F32, 0))
PUT(too_far, made_tensor(b, "w", 1, vector, GGML_F32, INT64_MAX & ~31ull))
PUT(not_aligned, made_tensor(b, "w", 1, vector, GGML_F32, 16))
PUT(overlap, made_tensor(b, "v", 1, vector, GGML_F32, 1024);
    made_tensor(b, "w", 1, vector, GGML_F32, 992 - 992 % 32 + 32 - 32);
    made_tensor(b, "x", 1, vector, GGML_Q8_0, 0))
PUT(same_tensors, made_tensor(b, "w", 1, vector, GGML_F32, 0);
    made_tensor(b, "w", 1, vector, GGML_F32, 1024))

static void deep(struct buf *b)
{
	put_array(b, GGUF_ARRAY, 1);
	for (int i = 0; i < 9; i++) {
		made_number(b, GGUF_ARRAY, 4);
		made_number(b, 1, 8);
	}
}

static const struct making refused[] = {
	{ 1, 0, 0, nothing, ENOTSUP, "it is a GGUF of version 1, but only versions 2 and 3" },
	{ 4, 0, 0, nothing, ENOTSUP, "it is a GGUF of version 4" },
	{ 0x03000000, 0, 0, nothing, ENOTSUP, "it is a GGUF of big-endian numbers" },
	{ 3, 1, 0, nothing, EBADMSG, "GGUF header: it goes beyond the end of the file" },
	{ 3, 0, 1, nothing, EBADMSG, "GGUF header: it goes beyond the end of the file" },
	{ 3, 0, UINT64_MAX, nothing, EFBIG, "keys and 0 tensors, but at most 65536" },
	{ 3, UINT64_MAX, 0, nothing, EFBIG, "0 keys and 18446744073709551615 tensors" },
	{ 3, 0, 1, unknown_value, EBADMSG, "'k': there is no type 13 of values" },
	{ 3, 0, 1, unknown_member, EBADMSG, "'k': there is no type 77 of values" },
	{ 3, 0, 1, many_strings, EBADMSG, "it goes beyond the end of the file" },
	{ 3, 0, 1, many_numbers, EBADMSG, "it goes beyond the end of the file" },
	{ 3, 0, 1, long_string, EBADMSG, "it goes beyond the end of the file" },
	{ 3, 0, 1, deep, EBADMSG, "'k': it has arrays in arrays in arrays" },
	{ 3, 0, 1, no_name, EBADMSG, "the name of a key has 0 bytes" },
	{ 3, 0, 1, not_text, EBADMSG, "the name of a key, 'a%FF', is not text" },
	{ 3, 0, 3, same_keys, EBADMSG, "two keys are named 'a'" },
	{ 3, 0, 1, odd_alignment, EBADMSG, "general.alignment is not a power of two" },
	{ 3, 0, 1, no_alignment, EBADMSG, "general.alignment is not a power of two" },
	{ 3, 0, 1, text_alignment, EBADMSG, "general.alignment is not a power of two" },
	{ 3, 1, 0, unknown_type, ENOTSUP, "'w' is of ggml's type 99, which is not supported" },
	{ 3, 1, 0, removed_type, ENOTSUP, "'w' is of ggml's type 4, which is not supported" },
	{ 3, 1, 0, five_dims, EBADMSG, "'w' has 5 dimensions" },
	{ 3, 1, 0, part_of_block, EBADMSG, "rows of 48 elements, but blocks of Q8_0 have 32" },
	{ 3, 1, 0, no_row, EBADMSG, "rows of 1 elements, but blocks of Q8_0 have 32" },
	{ 3, 1, 0, huge, EBADMSG, "'w': its shape is too large" },
	{ 3, 1, 0, too_far, EBADMSG, "'w': it ends beyond any file" },
	{ 3, 1, 0, not_aligned, EBADMSG, "begins at 16, which is not a multiple of general.align" },
	{ 3, 3, 0, overlap, EBADMSG, "'v': it overlaps the tensor before it" },
	{ 3, 2, 0, same_tensors, EBADMSG, "two tensors are named 'w'" },
};

START_LOOP_TEST(what_is_wrong_is_said, ARRAY_LEN(refused))
{
	const struct making *r = &refused[_i];

	for (int known = 0; known < 2; known++) {
		struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);
		struct gguf_head *h = NULL;
		struct ckpt_err e = { 0 };

		made_head(&b, r->version, r->tensors, r->keys);
		r->put(&b);
		ck_assert_int_eq(read_bytes(&b, known, &h, &e), -r->code);
		ck_assert_msg(strstr(e.msg, r->msg), "'%s'", e.msg);
		REQUIRE(!h && e.code == r->code);
	}
}
END_TEST

START_TEST(it_has_to_begin_like_one)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);
	struct gguf_head *h = NULL;
	struct ckpt_err e = { 0 };

	buf_str(&b, "GGUE\3\1\1\1");
	ck_assert_int_eq(read_bytes(&b, true, &h, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "it does not begin like a GGUF");
}
END_TEST

/* Wherever a head is cut off, that is an error. */
START_TEST(a_part_of_a_head_is_refused)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);
	struct gguf_head *h = NULL;

	made_head(&b, 3, 5, N_KEYS);
	put_keys(&b);
	put_tensors(&b);
	for (size_t n = b.len - 1; n; n--) {
		struct ckpt_err e = { 0 };

		b.len = n;
		ck_assert_int_eq(read_bytes(&b, n % 2, &h, &e), -ERR_CORRUPT);
	}
}
END_TEST

START_TEST(running_out_of_memory_is_an_error)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MOST);

	made_head(&b, 3, 5, N_KEYS);
	put_keys(&b);
	put_tensors(&b);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct gguf_head *h = NULL;
		struct ckpt_err e = { 0 };
		struct mem m;
		struct blob blob;
		int rc;

		(void)fault_off();
		mem_init(&m, b.data, b.len);
		blob = mem_blob(&m, true);
		fault_on(FAULT_ALLOC, fault_n, 1);
		rc = gguf_read(&blob, &h, &e);
		(void)fault_off();
		REQUIRE(!rc == !!h && (!rc || e.code == ENOMEM));
		gguf_free(h);
		mem_release(&m);
	}
}
END_TEST

/* The table of types agrees with ggml's: gguf-py's GGML_QUANT_SIZES. */
START_TEST(types_have_ggmls_sizes)
{
	size_t n = 0;

	for (unsigned i = 0; i < 64; i++) {
		const struct ggml_info *t = ggml_info(i);

		if (!t)
			continue;
		n++;
		ck_assert_uint_eq(t->type, i);
		ck_assert_ptr_eq(ggml_info_named(t->name), t);
		if (t->dtype)
			ck_assert_uint_eq(dtype_info(t->dtype)->size, t->bytes);
	}
	ck_assert_uint_eq(n, 35);
	ck_assert_uint_eq(ggml_info(GGML_Q3_K)->bytes, 110);
	ck_assert_ptr_null(ggml_info_named("Q4_2"));
}
END_TEST

SUITE(gguf_read)
