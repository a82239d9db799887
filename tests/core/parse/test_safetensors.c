/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "parse/safetensors.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* u64 length, json, `data` zero bytes */
static int read_header(const char *json, size_t json_n, uint64_t claimed, size_t data,
		       bool size_known, struct st_header **ret, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(1 << 20);
	struct mem m;
	struct blob blob;
	int rc;

	for (size_t i = 0; i < 8; i++) {
		uint8_t byte = (uint8_t)(claimed >> (8 * i));

		buf_add(&b, &byte, 1);
	}
	buf_add(&b, json, json_n);
	while (data--)
		buf_add(&b, "", 1);
	mem_init(&m, b.data, b.len);
	buf_release(&b);
	blob = mem_blob(&m, size_known);
	rc = st_read(&blob, ret, e);
	mem_release(&m);
	return rc;
}

#define T(name, dtype, shape, range) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}"

START_LOOP_TEST(tensors_are_found_by_name, 2)
{
	static const char json[] =
		"{\"__metadata__\":{\"format\":\"pt\"}," T("b", "BF16", "[2,3]", "[8,20]") "," T(
			"a", "F64", "[]",
			"[0,8]") "," T("", "U8", "[0]",
				       "[20,20]") "," T("f4", "F4", "[2,4]",
							"[20,24]") "," T("caf\xc3\xa9", "BOOL",
									 "[1]", "[24,25]") "}   ";
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };
	const struct st_tensor *t;

	ck_assert_int_eq(read_header(json, sizeof(json) - 1, sizeof(json) - 1, 25, _i, &h, &e), 0);
	ck_assert_int_eq(e.code, 0);
	ck_assert_uint_eq(st_data(h), 8 + sizeof(json) - 1);
	t = st_find(h, "b", 1);
	ck_assert_ptr_nonnull(t);
	ck_assert_int_eq(t->dtype, CKPT_DTYPE_BF16);
	ck_assert_uint_eq(t->n_dims, 2);
	ck_assert_uint_eq(t->shape[0], 2);
	ck_assert_uint_eq(t->shape[1], 3);
	ck_assert_uint_eq(t->begin, 8);
	ck_assert_uint_eq(t->end, 20);
	t = st_find(h, "a", 1);
	ck_assert_uint_eq(t->n_dims, 0);
	ck_assert_uint_eq(t->end, 8);
	ck_assert_ptr_nonnull(st_find(h, "", 0));
	ck_assert_uint_eq(st_find(h, "f4", 2)->end, 24);
	ck_assert_ptr_nonnull(st_find(h, "caf\xc3\xa9", 5));
	ck_assert_ptr_null(st_find(h, "c", 1));
	ck_assert_ptr_null(st_find(h, "__metadata__", 12));
	ck_assert_ptr_null(st_find(h, "a\0b", 3));
	ck_assert_uint_eq(st_end(h), 8 + sizeof(json) - 1 + 25);
	ck_assert_uint_eq(st_count(h), 5);
	for (size_t i = 0; i < 5; i++) {
		static const char *const names[] = { "", "a", "b", "caf\xc3\xa9", "f4" };

		ck_assert_str_eq(st_tensor(h, i)->name, names[i]);
		ck_assert_ptr_eq(st_tensor(h, i), st_find(h, names[i], strlen(names[i])));
	}
	ck_assert_str_eq(st_metadata(h, "format"), "pt");
	ck_assert_ptr_null(st_metadata(h, "a"));
	st_free(h);
}
END_TEST

START_TEST(every_dtype_of_the_format_is_known)
{
	for (enum ckpt_dtype d = CKPT_DTYPE_NONE + 1; d < CKPT_DTYPE_COUNT; d++) {
		const struct dtype_info *i = dtype_info(d);
		char json[200];
		struct st_header *h;
		struct ckpt_err e = { 0 };
		int n;

		if (!i->safetensors)
			continue;
		n = snprintf(json, sizeof(json), "{" T("t", "%s", "[6]", "[0,%d]") "}",
			     i->safetensors, d == CKPT_DTYPE_F4_E2M1FN_X2 ? 3 : 6 * i->size);
		ck_assert_int_eq(
			read_header(json, (size_t)n, (size_t)n, 6u * i->size, true, &h, &e), 0);
		ck_assert_int_eq(st_find(h, "t", 1)->dtype, d);
		st_free(h);
	}
}
END_TEST

/* The other tensors can be read. */
START_TEST(of_an_unknown_dtype_only_the_bytes_are_known)
{
	static const char json[] =
		"{" T("a", "F99", "[7]", "[0,3]") "," T("b", "U8", "[2]", "[3,5]") "}";
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(read_header(json, sizeof(json) - 1, sizeof(json) - 1, 5, true, &h, &e), 0);
	ck_assert_int_eq(st_tensor(h, 0)->dtype, CKPT_DTYPE_NONE);
	ck_assert_str_eq(st_tensor(h, 0)->dtype_name, "F99");
	ck_assert_uint_eq(st_tensor(h, 0)->end, 3);
	ck_assert_int_eq(st_tensor(h, 1)->dtype, CKPT_DTYPE_U8);
	ck_assert_str_eq(st_tensor(h, 1)->dtype_name, "U8");
	ck_assert_ptr_null(st_metadata(h, "format"));
	st_free(h);
}
END_TEST

START_LOOP_TEST(a_file_may_hold_nothing, 3)
{
	static const char *const json[] = { "{}", "{\"__metadata__\":{}}",
					    "{\"__metadata__\":null}" };
	struct st_header *h;
	struct ckpt_err e = { 0 };
	size_t len = strlen(json[_i]);

	ck_assert_msg(!read_header(json[_i], len, len, 0, true, &h, &e), "%s", e.msg);
	ck_assert_uint_eq(st_count(h), 0);
	ck_assert_ptr_null(st_find(h, "", 0));
	ck_assert_ptr_null(st_metadata(h, "format"));
	st_free(h);
}
END_TEST

#define NUMBERS_65 \
	"[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1," \
	"1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"

static const struct {
	const char *json;
	int code;
	const char *msg;
} bad[] = {
	{ "", EBADMSG, "no safetensors header: its length would be 0" },
	{ "[]", EBADMSG, "safetensors header is not a JSON object: something else" },
	{ "{", EBADMSG,
	  "safetensors header is not a JSON object: string or '}' expected near end of file" },
	{ "nonsense", EBADMSG, "safetensors header is not a JSON object: " },
	{ "{} {}", EBADMSG,
	  "safetensors header is not a JSON object: end of file expected near '{'" },
	{ "{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[0,1]") "}", EBADMSG,
	  "safetensors header is not a JSON object: duplicate object key near '\"a\"'" },
	{ "{\"a\":7}", EBADMSG, "safetensors header: 'a': no dtype" },
	{ "{\"a\":{}}", EBADMSG, "safetensors header: 'a': no dtype" },
	{ "{\"a\":{\"dtype\":7}}", EBADMSG, "safetensors header: 'a': no dtype" },
	{ "{\"__metadata__\":7}", EBADMSG, "safetensors header: '__metadata__': not an object" },
	{ "{\"__metadata__\":{\"k\":7}}", EBADMSG,
	  "safetensors header: '__metadata__': 'k' is not a string" },
	{ "{\"a\":{\"dtype\":\"U8\"}}", EBADMSG,
	  "safetensors header: 'a': its shape is not a list of at most 64 numbers" },
	{ "{" T("a", "U8", "[-1]", "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its shape is not a list of at most 64 numbers" },
	{ "{" T("a", "U8", "[1.0]", "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its shape is not a list of at most 64 numbers" },
	{ "{" T("a", "U8", "7", "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its shape is not a list of at most 64 numbers" },
	{ "{" T("a", "U8", NUMBERS_65, "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its shape is not a list of at most 64 numbers" },
	{ "{" T("a", "U8", "[1]", "[0]") "}", EBADMSG,
	  "safetensors header: 'a': its data_offsets are not two numbers in order" },
	{ "{" T("a", "U8", "[1]", "[0,1,1]") "}", EBADMSG,
	  "safetensors header: 'a': its data_offsets are not two numbers in order" },
	{ "{" T("a", "U8", "[1]", "[2,1]") "}", EBADMSG,
	  "safetensors header: 'a': its data_offsets are not two numbers in order" },
	{ "{" T("a", "U8", "[1]", "[-1,0]") "}", EBADMSG,
	  "safetensors header: 'a': its data_offsets are not two numbers in order" },
	{ "{" T("a", "U8", "[4294967296,4294967296]", "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its shape is too large" },
	{ "{" T("a", "F64", "[9223372036854775807]", "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its shape is too large" },
	{ "{" T("a", "U8", "[9223372036854775808]", "[0,1]") "}", EBADMSG,
	  "safetensors header is not a JSON object: too big integer near '9223372036854775808'" },
	{ "{" T("a", "F4", "[3]", "[0,1]") "}", EBADMSG,
	  "safetensors header: 'a': its 4-bit values do not fill whole bytes" },
	{ "{" T("a", "U16", "[3]", "[0,5]") "}", EBADMSG,
	  "safetensors header: 'a': shape and data_offsets disagree" },
	{ "{" T("a", "F99", "[1]", "[1,2]") "}", EBADMSG,
	  "safetensors header: 'a': a hole or an overlap before its data" },
	{ "{" T("a", "U8", "[1]", "[1,2]") "}", EBADMSG,
	  "safetensors header: 'a': a hole or an overlap before its data" },
	{ "{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[3,7]") "}", EBADMSG,
	  "safetensors header: 'b': a hole or an overlap before its data" },
	{ "{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[5,9]") "}", EBADMSG,
	  "safetensors header: 'b': a hole or an overlap before its data" },
	{ "{" T("a", "U8", "[11]", "[0,11]") "}", EBADMSG,
	  "safetensors header: the data has 11 bytes, but the file has 10" },
	{ "{\"a\\u0000b\":7}", EBADMSG, "safetensors header is not a JSON object: " },
};

START_LOOP_TEST(what_safetensors_refuses_is_refused, ARRAY_LEN(bad))
{
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };
	size_t n = strlen(bad[_i].json);

	ck_assert_int_eq(read_header(bad[_i].json, n, n, 10, true, &h, &e), -bad[_i].code);
	ck_assert_int_eq(e.code, bad[_i].code);
	ck_assert_msg(!strncmp(e.msg, bad[_i].msg, strlen(bad[_i].msg)), "%s", e.msg);
	ck_assert_ptr_null(h);
}
END_TEST

START_LOOP_TEST(lengths_beyond_the_file_are_refused_before_anything_is_allocated, 7)
{
	static const uint64_t claims[] = { 11,	      100000000,  100000001,	 (uint64_t)1 << 40,
					   INT64_MAX, UINT64_MAX, UINT64_MAX - 7 };
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };

	fault_peak_reset();
	ck_assert_int_eq(read_header("{}", 2, claims[_i], 8, true, &h, &e), -EBADMSG);
	ck_assert_msg(strstr(e.msg, "no safetensors header: its length would be") == e.msg, "%s",
		      e.msg);
	ck_assert_int_lt(fault_peak() - fault_live(), 10000);
	ck_assert_int_eq(read_header("{}", 2, claims[_i], 8, false, &h, &e), -EBADMSG);
	ck_assert_ptr_null(h);
}
END_TEST

START_TEST(a_compressed_file_is_called_one)
{
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(read_header("{}", 2, 0x12345678fd2fb528, 8, true, &h, &e), -EBADMSG);
	ck_assert_msg(strstr(e.msg, "compressed with zstd"), "%s", e.msg);
	ck_assert_ptr_null(h);
}
END_TEST

START_TEST(every_beginning_of_a_file_is_refused)
{
	static const char json[] =
		"{" T("a", "F64", "[]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}";
	uint8_t b[8 + sizeof(json) - 1 + 11] = { sizeof(json) - 1 };

	memcpy(b + 8, json, sizeof(json) - 1);
	for (size_t n = 0; n <= sizeof(b); n++) {
		struct st_header *h = NULL;
		struct ckpt_err e = { 0 };
		struct mem m;
		struct blob blob;

		mem_init(&m, b, n);
		blob = mem_blob(&m, true);
		ck_assert_int_eq(st_read(&blob, &h, &e), n < sizeof(b) ? -EBADMSG : 0);
		ck_assert_int_eq(h != NULL, n == sizeof(b));
		st_free(h);
		mem_release(&m);
	}
}
END_TEST

START_TEST(failing_reads_and_allocations_come_through)
{
	static const char json[] =
		"{" T("a", "F64", "[]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}";
	uint8_t b[8 + sizeof(json) - 1 + 11] = { sizeof(json) - 1 };
	unsigned failed = 0;
	struct mem m;
	struct blob blob;

	memcpy(b + 8, json, sizeof(json) - 1);
	mem_init(&m, b, sizeof(b));
	blob = mem_blob(&m, true);
	for (m.fail = 1; m.fail <= 2; m.fail++) {
		struct st_header *h = NULL;
		struct ckpt_err e = { 0 };

		m.reads = 0;
		ck_assert_int_eq(st_read(&blob, &h, &e), -EIO);
		ck_assert_int_eq(e.code, EIO);
	}
	m.fail = 0;
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct st_header *h = NULL;
		struct ckpt_err e = { 0 };
		int rc = st_read(&blob, &h, &e);

		(void)fault_off();
		ck_assert(!rc || (rc == -ENOMEM && fault_hit()));
		ck_assert_int_eq(e.code, -rc);
		ck_assert_int_eq(h != NULL, !rc);
		failed += rc != 0;
		st_free(h);
	}
	ck_assert_uint_ge(failed, 5);
	mem_release(&m);
}
END_TEST

SUITE(safetensors)
