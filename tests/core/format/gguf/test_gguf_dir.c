/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "format/format.h"
#include "gguf_made.h"
#include "index/catalog_query.h"
#include "scan_util.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const uint64_t vector[] = { 8 }, matrix[] = { 64, 2 };

/* A file of one model; it has a tensor w<number> of 32 bytes at 0, and q<number> of 2 * 68. */
static void put_model(const char *name, unsigned number, uint16_t no, uint16_t count,
		      uint32_t total)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);
	char tensor[24];

	made_head(&b, 3, 2, count ? 4 : 2);
	made_text(&b, "general.name", "n");
	if (count) {
		made_u16(&b, "split.no", no);
		made_u16(&b, "split.count", count);
		made_key(&b, "split.tensors.count", GGUF_I32);
		made_number(&b, total, 4);
	} else {
		made_key(&b, "numbers", GGUF_ARRAY);
		made_number(&b, GGUF_F32, 4);
		made_number(&b, 3, 8);
		made_number(&b, 0x3dcccccd, 4);
		made_number(&b, 0x7fc00000, 4);
		made_number(&b, 0xff7fffff, 4);
	}
	(void)snprintf(tensor, sizeof(tensor), "w%u", number);
	made_tensor(&b, tensor, 1, vector, GGML_F32, 0);
	(void)snprintf(tensor, sizeof(tensor), "q%u", number);
	made_tensor(&b, tensor, 2, matrix, GGML_Q8_0, 32);
	made_padding(&b, 32);
	for (size_t i = 0; i < 32 + 136; i++)
		made_number(&b, i, 1);
	REQUIRE(!b.err);
	put_file(dir_fd, name, b.data, b.len);
}

static int scan(struct catalog **ret, struct ckpt_err *e)
{
	return scan_dir(dir_fd, &(struct scan_opts){ 0 }, ret, e);
}

static void expect(const char *want)
{
	scan_expect(dir_fd, want);
}

static void expect_refused(int code, const char *want)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(scan(&c, &e), -code);
	ck_assert_msg(strstr(e.msg, want), "%s", e.msg);
}

/* The text of an object. */
static void expect_text(const char *name, const char *want)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	const struct catalog_object *o;
	size_t n, i = 0;

	REQUIRE(!scan(&c, &e));
	o = catalog_objects(c, &n);
	while (i < n && strcmp(o[i].fqn, name) != 0)
		i++;
	REQUIRE(i < n && o[i].text);
	ck_assert_str_eq(o[i].text, want);
	catalog_close(c);
}

START_TEST(tensors_are_where_the_head_says)
{
	put_model("m.gguf", 1, 0, 0, 0);
	expect("q1 uint8 [2,68] complete: [0,0]+[2,68]@m.gguf:224+136,raw; "
	       "w1 float32 [8] complete: [0]+[8]@m.gguf:192+32,raw; "
	       "general.name object: 4 bytes; gguf.tensor_types object: 34 bytes; "
	       "numbers object: 28 bytes; ");
	expect_text("gguf.tensor_types", "{\n  \"w1\": \"F32\",\n  \"q1\": \"Q8_0\"\n}\n");
	expect_text("numbers", "[0.1, null, -3.4028235e+38]\n");
	expect_text("general.name", "\"n\"\n");
}
END_TEST

START_TEST(a_file_without_tensors_is_fine)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);

	made_head(&b, 2, 0, 0);
	put_file(dir_fd, "m.gguf", b.data, b.len);
	expect("gguf.tensor_types object: 3 bytes; ");
}
END_TEST

START_TEST(parts_are_one_model)
{
	put_model("m-00002-of-00002.gguf", 2, 1, 2, 4);
	put_model("m-00001-of-00002.gguf", 1, 0, 2, 4);
	expect("q1 uint8 [2,68] complete: [0,0]+[2,68]@m-00001-of-00002.gguf:256+136,raw; "
	       "q2 uint8 [2,68] complete: [0,0]+[2,68]@m-00002-of-00002.gguf:256+136,raw; "
	       "w1 float32 [8] complete: [0]+[8]@m-00001-of-00002.gguf:224+32,raw; "
	       "w2 float32 [8] complete: [0]+[8]@m-00002-of-00002.gguf:224+32,raw; "
	       "general.name object: 4 bytes; gguf.tensor_types object: 65 bytes; "
	       "split.count object: 2 bytes; split.no object: 2 bytes; "
	       "split.tensors.count object: 2 bytes; ");
}
END_TEST

START_TEST(a_missing_part_is_named)
{
	put_model("m-00001-of-00003.gguf", 1, 0, 3, 4);
	put_model("m-00003-of-00003.gguf", 2, 2, 3, 4);
	expect_refused(ENOENT, "'m-00002-of-00003.gguf' is missing: the model is in 3 files");
}
END_TEST

/* Their numbers have five digits, but no model has ten thousand parts. */
START_TEST(a_number_of_parts_is_bounded)
{
	put_model("m-00001-of-09999.gguf", 1, 0, 9999, 4);
	expect_refused(ENOENT, "'m-00002-of-09999.gguf' is missing: the model is in 9999 files");
	REQUIRE(!renameat(dir_fd, "m-00001-of-09999.gguf", dir_fd, "m-00001-of-10000.gguf"));
	expect_refused(EBADMSG, "whose files must be named X-00001-of-09999.gguf");
}
END_TEST

START_TEST(parts_have_to_be_what_they_are_named)
{
	put_model("m-00001-of-00002.gguf", 1, 1, 2, 4);
	put_model("m-00002-of-00002.gguf", 2, 0, 2, 4);
	expect_refused(EBADMSG, "read 'm-00001-of-00002.gguf': it is part 2 of 2");
	put_model("m-00001-of-00002.gguf", 1, 0, 2, 5);
	put_model("m-00002-of-00002.gguf", 2, 1, 2, 4);
	expect_refused(EBADMSG,
		       "that the model has 5 tensors (split.tensors.count), but its files have 4");
}
END_TEST

START_TEST(a_part_under_another_name_is_refused)
{
	put_model("m.gguf", 1, 0, 3, 4);
	expect_refused(EBADMSG, "it is part 1 of 3 of a model (split.no, split.count), whose files "
				"must be named X-00001-of-00003.gguf");
}
END_TEST

START_TEST(two_models_in_a_directory_are_a_choice)
{
	put_model("m-00001-of-00002.gguf", 1, 0, 2, 4);
	put_model("n-00002-of-00002.gguf", 2, 1, 2, 4);
	expect_refused(ENOTUNIQ, "'m-00001-of-00002.gguf' and 'n-00002-of-00002.gguf' are two "
				 "models: name one of them instead of the directory");
}
END_TEST

/* Files with such names are not parts of a model; each is a model by itself. */
START_TEST(other_names_are_not_of_parts)
{
	static const char *const names[] = {
		"m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "mx00001-of-00002.gguf",
		"m-x0001-of-00002.gguf", "m-00001-xx-00002.gguf", "m-00001-of-x0002.gguf",
		"m-00001-of-10000.gguf", "m-00001-of-0002x.gguf", "-00001-of-00002.gguf",
	};

	put_file(dir_fd, ".gguf", "x", 1);
	put_file(dir_fd, ".m.gguf", "x", 1);
	put_file(dir_fd, "m.bin", "x", 1);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		autofree char *text = NULL;
		char want[60];

		put_model(names[i], 1, 0, 0, 0);
		ck_assert_msg(!scan(&c, &e), "%s: %s", names[i], e.msg);
		text = catalog_text(c);
		(void)snprintf(want, sizeof(want), "@%s:224+136,raw", names[i]);
		ck_assert_msg(strstr(text, want) != NULL, "%s", text);
		catalog_close(c);
		REQUIRE(!unlinkat(dir_fd, names[i], 0));
	}
}
END_TEST

START_TEST(parts_of_one_model_have_one_name_and_number)
{
	static const char *const others[] = { "m.gguf", "mm-00001-of-00002.gguf",
					      "n-00001-of-00002.gguf", "m-00001-of-00003.gguf" };

	put_model("m-00001-of-00002.gguf", 1, 0, 2, 4);
	put_model("m-00002-of-00002.gguf", 2, 1, 2, 4);
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		put_model(others[i], 1, 0, 2, 4);
		expect_refused(ENOTUNIQ,
			       "are two models: name one of them instead of the directory");
		REQUIRE(!unlinkat(dir_fd, others[i], 0));
	}
}
END_TEST

/* A file that says that it is part 0 of 0. */
START_TEST(no_parts_are_one)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);

	made_head(&b, 3, 0, 2);
	made_u16(&b, "split.no", 0);
	made_u16(&b, "split.count", 0);
	put_file(dir_fd, "m.gguf", b.data, b.len);
	expect("gguf.tensor_types object: 3 bytes; split.count object: 2 bytes; "
	       "split.no object: 2 bytes; ");
	b.len = 0;
	made_head(&b, 3, 0, 2);
	made_u16(&b, "split.no", 1);
	made_u16(&b, "split.count", 0);
	put_file(dir_fd, "m.gguf", b.data, b.len);
	expect_refused(EBADMSG, "it is part 2 of 0 of a model");
}
END_TEST

START_TEST(keys_of_every_type_are_json)
{
	static const struct {
		uint32_t type, bytes;
		uint64_t v;
		const char *want;
	} keys[] = {
		{ GGUF_U8, 1, 255, "255\n" },
		{ GGUF_I8, 1, 255, "-1\n" },
		{ GGUF_U16, 2, 65535, "65535\n" },
		{ GGUF_I16, 2, 65535, "-1\n" },
		{ GGUF_U32, 4, UINT32_MAX, "4294967295\n" },
		{ GGUF_I32, 4, UINT32_MAX, "-1\n" },
		{ GGUF_U64, 8, UINT64_MAX, "18446744073709551615\n" },
		{ GGUF_I64, 8, UINT64_MAX, "-1\n" },
		{ GGUF_F32, 4, 0x3dcccccd, "0.1\n" },
		{ GGUF_F64, 8, 0x3fb999999999999a, "0.1\n" },
		{ GGUF_F64, 8, 0x3fd5555555555555, "0.3333333333333333\n" },
		{ GGUF_F64, 8, 0x7ff0000000000000, "null\n" },
		{ GGUF_BOOL, 1, 1, "true\n" },
		{ GGUF_BOOL, 1, 0, "false\n" },
	};
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		b.len = 0;
		made_head(&b, 3, 0, 1);
		made_key(&b, "k", keys[i].type);
		made_number(&b, keys[i].v, keys[i].bytes);
		put_file(dir_fd, "m.gguf", b.data, b.len);
		expect_text("k", keys[i].want);
	}
}
END_TEST

START_TEST(the_name_of_the_types_is_taken)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);

	made_head(&b, 3, 0, 1);
	made_u32(&b, "gguf.tensor_types", 1);
	put_file(dir_fd, "m.gguf", b.data, b.len);
	expect_refused(ENOTSUP, "it has a key 'gguf.tensor_types', a name used here");
}
END_TEST

START_TEST(flipped_bits_are_caught_or_harmless)
{
	put_model("m.gguf", 1, 0, 0, 0);
	scan_flipped(dir_fd, "m.gguf", scan, 600, 40);
}
END_TEST

START_TEST(failures_are_errors)
{
	put_model("m-00001-of-00002.gguf", 1, 0, 2, 4);
	put_model("m-00002-of-00002.gguf", 2, 1, 2, 4);
	scan_failing(dir_fd);
}
END_TEST

SUITE(gguf_dir, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
