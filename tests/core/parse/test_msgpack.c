/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/msgpack.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "suites.h"

#include <inttypes.h>
#include <string.h>

static struct buf out = BUF_INIT(1 << 20);
static struct ckpt_err err;

static void teardown(void)
{
	buf_release(&out);
}

static void show(const struct msgpack *v)
{
	switch (v->kind) {
	case MSGPACK_NIL:
		buf_str(&out, "nil");
		break;
	case MSGPACK_BOOL:
		buf_str(&out, v->integer ? "true" : "false");
		break;
	case MSGPACK_INT:
		buf_printf(&out, "%" PRId64, v->integer);
		break;
	case MSGPACK_UINT:
		buf_printf(&out, "%" PRIu64 "u", (uint64_t)v->integer);
		break;
	case MSGPACK_REAL:
		buf_printf(&out, "%g", v->real);
		break;
	case MSGPACK_COMPLEX:
		buf_printf(&out, "(%g%+gj)", v->real, v->imag);
		break;
	case MSGPACK_TEXT:
		buf_printf(&out, "'%s'", v->text);
		break;
	case MSGPACK_BYTES:
		buf_printf(&out, "bytes@%" PRIu64 "+%" PRIu64, v->at, v->len);
		break;
	case MSGPACK_LIST:
	case MSGPACK_MAP:
		buf_str(&out, v->kind == MSGPACK_MAP ? "{" : "[");
		for (const struct msgpack *m = v->first; m; m = m->next) {
			buf_str(&out, m == v->first ? "" : ", ");
			buf_add(&out, m->key ? m->key : "", m->key_len);
			buf_str(&out, m->key ? ": " : "");
			show(m);
		}
		buf_str(&out, v->kind == MSGPACK_MAP ? "}" : "]");
		break;
	case MSGPACK_ARRAY:
		buf_printf(&out, "%s", v->array->dtype);
		buf_json_u64s(&out, v->array->shape, v->array->n_dims);
		buf_printf(&out, "@%" PRIu64 "+%" PRIu64, v->array->at, v->array->len);
		break;
	case MSGPACK_OTHER:
		buf_str(&out, "other");
	}
}

static int parse(const void *p, size_t n)
{
	struct arena a CLEANUP(arena_release) = ARENA_INIT(1 << 20);
	struct msgpack *root;
	struct mem m;
	struct blob b;
	int rc;

	mem_init(&m, p, n);
	b = mem_blob(&m, true);
	rc = msgpack_read(&b, &a, &root, &err);
	buf_restart(&out);
	buf_str(&out, "");
	if (!rc)
		show(root);
	mem_release(&m);
	return rc;
}

/* Without the NUL that ends a literal, which would be one byte too many. */
#define PARSE(text) parse(text, sizeof(text) - 1)
#define EXPECT(text, want) \
	ck_assert_msg(!PARSE(text) && !strcmp(out.data, want), "%s%s", out.data, err.msg)
#define REFUSE(text, code_, want) \
	ck_assert_msg(PARSE(text) == -(code_) && strstr(err.msg, want), "%s%s", out.data, err.msg)

/* Appends an extension with a body of n < 256 bytes. */
static size_t put_ext(uint8_t *to, int code, const char *body, size_t n)
{
	to[0] = 0xc7;
	to[1] = (uint8_t)n;
	to[2] = (uint8_t)code;
	memcpy(to + 3, body, n);
	return n + 3;
}

static int parse_ext(int code, const char *body, size_t n)
{
	uint8_t b[300];

	return parse(b, put_ext(b, code, body, n));
}

#define PARSE_EXT(code, body) parse_ext(code, body, sizeof(body) - 1)
#define EXPECT_EXT(code, body, want) \
	ck_assert_msg(!PARSE_EXT(code, body) && !strcmp(out.data, want), "%s%s", out.data, err.msg)
#define REFUSE_EXT(code, body, want) \
	ck_assert_msg(PARSE_EXT(code, body) == -ERR_CORRUPT && strstr(err.msg, want), "%s%s", \
		      out.data, err.msg)

START_TEST(values_of_every_kind)
{
	EXPECT("\x00", "0");
	EXPECT("\x7f", "127");
	EXPECT("\xff", "-1");
	EXPECT("\xe0", "-32");
	EXPECT("\xc0", "nil");
	EXPECT("\xc2", "false");
	EXPECT("\xc3", "true");
	EXPECT("\xcc\xff", "255");
	EXPECT("\xcd\x01\x00", "256");
	EXPECT("\xce\xff\xff\xff\xff", "4294967295");
	EXPECT("\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", "9223372036854775807");
	EXPECT("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615u");
	EXPECT("\xd0\x80", "-128");
	EXPECT("\xd1\x80\x00", "-32768");
	EXPECT("\xd2\xff\xff\xff\xfe", "-2");
	EXPECT("\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "-9223372036854775808");
	EXPECT("\xca\x3f\xc0\x00\x00", "1.5");
	EXPECT("\xcb\xbf\xe0\x00\x00\x00\x00\x00\x00", "-0.5");
	EXPECT("\xa0", "''");
	EXPECT("\xa3"
	       "abc",
	       "'abc'");
	EXPECT("\xd9\x01x", "'x'");
	EXPECT("\xda\x00\x01x", "'x'");
	EXPECT("\xdb\x00\x00\x00\x01x", "'x'");
	EXPECT("\xc4\x01x", "bytes@2+1");
	EXPECT("\xc5\x00\x01x", "bytes@3+1");
	EXPECT("\xc6\x00\x00\x00\x01x", "bytes@5+1");
	EXPECT("\x92\x01\xc0", "[1, nil]");
	EXPECT("\xdc\x00\x01\x01", "[1]");
	EXPECT("\xdd\x00\x00\x00\x01\x01", "[1]");
	EXPECT("\x80", "{}");
	EXPECT("\xde\x00\x01\xa1"
	       "a\x05",
	       "{a: 5}");
	EXPECT("\xdf\x00\x00\x00\x01\xff\x05", "{-1: 5}");
	EXPECT("\xd4\x05x", "other");
	EXPECT("\xc8\x00\x02\x05xy", "other");
	EXPECT("\xc7\x00\x63", "other");
}
END_TEST

START_TEST(extensions_are_arrays_scalars_complex_numbers_and_tuples)
{
	EXPECT_EXT(1, "\x93\x92\x02\x01\xa5int16\xc4\x04\1\2\3\4", "int16[2,1]@15+4");
	EXPECT_EXT(3, "\x93\x90\xa4int8\xc4\x01\1", "int8[]@12+1");
	EXPECT_EXT(2, "\x92\xca\x3f\xc0\x00\x00\xca\xc0\x00\x00\x00", "(1.5-2j)");
	EXPECT_EXT(4, "\x92\x01\x80", "[1, {}]");
	REFUSE_EXT(1, "\x93\x91\x02\xa5int16\xc4\x04\1\2\3\4\xc0",
		   "the extension at byte 3 has 16 bytes, but 15 are used");
	REFUSE_EXT(1, "\x92\x91\x02\xa5int16", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x94\x91\x02\xa5int16\xc4\x00\xc0", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x93\x91\xff\xa5int16\xc4\x00", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x93\x91\x02\xa5int16\xc4\x05\1\2\3\4",
		   "5 bytes are needed at byte 14, but 4");
	REFUSE_EXT(1, "\x05", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x90", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x91\x91\x02", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x93\x02\xa5int16\xc4\x00", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x93\x91\x02\x05\xc4\x00", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x93\x91\x02\xa5int16\xa0", "is not a shape, a dtype and bytes");
	REFUSE_EXT(1, "\x93\x91\xa1x\xa5int16\xc4\x00", "is not a shape, a dtype and bytes");
	REFUSE_EXT(2, "\x05", "is not two numbers");
	REFUSE_EXT(2, "\x90", "is not two numbers");
	REFUSE_EXT(2, "\x91\xca\x3f\xc0\x00\x00", "is not two numbers");
	REFUSE_EXT(2, "\x93\xca\x3f\xc0\x00\x00\xca\x3f\xc0\x00\x00\x01", "is not two numbers");
	REFUSE_EXT(2, "\x92\x01\xca\x3f\xc0\x00\x00", "is not two numbers");
	REFUSE_EXT(2, "\x92\xca\x3f\xc0\x00\x00\x01", "is not two numbers");
	REFUSE_EXT(4, "\x01", "is not a list");
}
END_TEST

START_TEST(what_is_cut_off_or_goes_on_is_refused)
{
	REFUSE("", ERR_CORRUPT, "1 bytes are needed at byte 0, but 0 are left");
	REFUSE("\x01\x02", ERR_CORRUPT, "the value ends at byte 1 of 2");
	REFUSE("\xc1", ERR_CORRUPT, "0xc1");
	REFUSE("\xca\x3f\x80", ERR_CORRUPT, "4 bytes are needed at byte 1, but 2 are left");
	REFUSE("\xcb\x3f", ERR_CORRUPT, "8 bytes are needed at byte 1, but 1 are left");
	REFUSE("\xa3xy", ERR_CORRUPT, "3 bytes are needed at byte 1, but 2 are left");
	REFUSE("\xc6\xff\xff\xff\xffx", ERR_CORRUPT, "4294967295 bytes are needed at byte 5");
	REFUSE("\xdd\xff\xff\xff\xff\x01", ERR_CORRUPT, "4294967295 bytes are needed at byte 5");
	REFUSE("\xdf\xff\xff\xff\xff\x01", ERR_CORRUPT, "4294967295 bytes are needed at byte 5");
	REFUSE("\x81\xc0\x01", ERR_UNSUPPORTED, "neither a text nor a number");
}
END_TEST

START_TEST(depth_and_number_of_values_are_bounded)
{
	enum { MANY = 1 << 16 };
	static uint8_t b[MANY + 5];

	memset(b, 0x91, sizeof(b));
	ck_assert_int_eq(parse(b, sizeof(b)), -EFBIG);
	ck_assert_msg(strstr(err.msg, "nested more than 200 deep") != NULL, "%s", err.msg);
	for (size_t i = 0; i < 250; i++) { /* tuples of tuples */
		size_t len = 4 * (249 - i) + 1;

		memcpy(b + 4 * i, (uint8_t[]){ 0xc8, (uint8_t)(len >> 8), (uint8_t)len, 4 }, 4);
	}
	b[1000] = 0x90;
	ck_assert_int_eq(parse(b, 1001), -EFBIG);
	ck_assert_msg(strstr(err.msg, "nested more than 200 deep") != NULL, "%s", err.msg);
	memset(b, 0xc0, sizeof(b));
	memcpy(b, "\xdd\x00\x01\x00\x00", 5);
	ck_assert_int_eq(parse(b, sizeof(b)), -EFBIG); /* the ceiling of this test */
	ck_assert_msg(strstr(err.msg, "more values than can be kept") != NULL, "%s", err.msg);
}
END_TEST

/* A text larger than the window, and arrays around it. */
START_TEST(long_texts_and_bytes_are_skipped)
{
	static uint8_t b[400000];
	size_t n;

	memcpy(b, "\x94\xdb\x00\x01\x00\x00", 6); /* 65536 bytes */
	n = 6 + 65536;
	memcpy(b + n, "\xc6\x00\x03\x00\x00", 5); /* 196608 */
	n += 5 + 196608;
	memcpy(b + n, "\xda\xff\xff", 3); /* the longest text that is kept */
	memset(b + n + 3, 'x', 65535);
	n += 3 + 65535;
	b[n++] = 5;
	ck_assert_msg(!parse(b, n), "%s", err.msg);
	ck_assert(!strncmp(out.data, "[bytes@6+65536, bytes@65547+196608, 'xxx", 39));
	ck_assert_uint_eq(strspn(strchr(out.data, 'x'), "x"), 65535);
	ck_assert_str_eq(strrchr(out.data, 'x'), "x', 5]");
}
END_TEST

/* Cut off anywhere, or with any one bit flipped. */
START_TEST(whatever_is_damaged_is_an_error_or_another_value)
{
	uint8_t b[200] = "\x84\xa1"
			 "a";
	size_t n = 3;

	n += put_ext(b + n, 1, "\x93\x91\x02\xa5int16\xc4\x04\1\2\3\4", 15);
	memcpy(b + n,
	       "\xa1"
	       "b\x81\xa1"
	       "c",
	       5);
	n += 5;
	n += put_ext(b + n, 4, "\x92\x01\x93\x03\x04\x05", 6);
	memcpy(b + n, "\xa1z", 2);
	n += 2;
	n += put_ext(b + n, 2, "\x92\xca\x3f\xc0\x00\x00\xca\xc0\x00\x00\x00", 11);
	memcpy(b + n, "\x07\xa1x", 3);
	n += 3;
	ck_assert_msg(!parse(b, n), "%s", err.msg);
	ck_assert_str_eq(out.data,
			 "{a: int16[2]@17+4, b: {c: [1, [3, 4, 5]]}, z: (1.5-2j), 7: 'x'}");
	for (size_t i = 0; i < n; i++)
		REQUIRE(parse(b, i) == -ERR_CORRUPT);
	for (size_t bit = 0; bit < 8 * n; bit++) {
		int rc;

		b[bit / 8] ^= (uint8_t)(1 << bit % 8);
		err = (struct ckpt_err){ 0 };
		rc = parse(b, n);
		REQUIRE(rc ? err.code == -rc && *err.msg : !err.code);
		b[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}
END_TEST

START_TEST(members_are_found_by_their_keys)
{
	static const uint8_t b[] = "\x82\xa1"
				   "a\x01\xa1"
				   "b\xa2hi";
	struct arena a CLEANUP(arena_release) = ARENA_INIT(1 << 20);
	struct msgpack *root;
	struct mem m;
	struct blob blob;

	mem_init(&m, b, sizeof(b) - 1);
	blob = mem_blob(&m, true);
	ck_assert(msgpack_begins(b, sizeof(b) - 1));
	ck_assert(!msgpack_begins("\x01", 1));
	ck_assert(!msgpack_begins("\x80\xa1", 2)); /* nothing in it */
	ck_assert(!msgpack_begins("", 0));
	ck_assert(!msgpack_begins("\x81", 1));
	ck_assert(!msgpack_begins("\x81\x05", 2)); /* the key is a number */
	ck_assert(!msgpack_begins("\x81\xc4", 2)); /* bytes */
	ck_assert(msgpack_begins("\x81\xd9", 2));
	ck_assert(msgpack_begins("\xde\0\1\xa1", 4));
	ck_assert(!msgpack_begins("\xde\0\1", 3));
	ck_assert(msgpack_begins("\xdf\0\0\0\1\xbf", 6));
	ck_assert(!msgpack_begins("\xdf\0\0\0\1\x9f", 6));
	ck_assert(!msgpack_is_text(NULL, "hi"));
	ck_assert_ptr_null(msgpack_get(NULL, "c"));
	ck_assert_msg(!msgpack_read(&blob, &a, &root, &err), "%s", err.msg);
	ck_assert_int_eq(msgpack_get(root, "a")->integer, 1);
	ck_assert(msgpack_is_text(msgpack_get(root, "b"), "hi"));
	ck_assert(!msgpack_is_text(msgpack_get(root, "a"), "hi"));
	ck_assert_ptr_null(msgpack_get(root, "c"));
	ck_assert_ptr_null(msgpack_get(msgpack_get(root, "a"), "c"));
	mem_release(&m);
}
END_TEST

SUITE(msgpack, .teardown = teardown, .seconds = 60)
