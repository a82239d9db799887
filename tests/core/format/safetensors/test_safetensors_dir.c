/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "dir_util.h"
#include "fault.h"
#include "format/format.h"
#include "index/catalog_query.h"
#include "memory_place.h"
#include "opts_util.h"
#include "scan_util.h"
#include "source/place.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void setup(void)
{
	dir_setup();
	REQUIRE(!mkdirat(dir_fd, "sub", 0755));
}

/* ---- files ---- */

/* A header and n bytes 0, 1, 2 ... behind it; or a JSON file. */
static void put(const char *name, const char *header, size_t n)
{
	struct buf b = BUF_INIT(1 << 20);
	uint8_t length[8];

	if (!strstr(name, ".json")) {
		(void)put_le(length, strlen(header), sizeof(length));
		buf_add(&b, length, sizeof(length));
	}
	buf_str(&b, header);
	for (size_t i = 0; i < n; i++)
		buf_add(&b, &(uint8_t){ (uint8_t)i }, 1);
	REQUIRE(!b.err);
	put_file(dir_fd, name, b.data, b.len);
	buf_release(&b);
}

#define T(name, dtype, shape, range) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}"
#define META(key, value) "\"__metadata__\":{\"" key "\":\"" value "\"}"
#define SHARDING(text)	 META("DCP_SHARDING_INFO", text)
/* The entry of one tensor in it. */
#define AT(name, offsets) "\\\"" name "\\\":{\\\"saved_offsets\\\":" offsets "}"
#define MAP(entries)	  "{\"metadata\":{},\"weight_map\":{" entries "}}"
#define IN(name, file)	  "\"" name "\":\"" file ".safetensors\""
#define INDEX		  "model.safetensors.index.json"

#define A      "{" T("a", "U8", "[2,3]", "[0,6]") "," T("a2", "BF16", "[]", "[6,8]") "}"
#define B      "{" T("b", "I64", "[1]", "[0,8]") "," META("format", "pt") "}     "
#define SHOW_A "a uint8 [2,3] complete: [0,0]+[2,3]@a:0+6; a2 bfloat16 [] complete: []+[]@a:6+2; "
#define SHOW_B "b int64 [1] complete: [0]+[1]@b:0+8; "

struct file {
	const char *name, *text;
	size_t data;
};

enum { MAX_FILES = 5 };

static void put_files(const struct file *f)
{
	for (size_t i = 0; i < MAX_FILES && f[i].name; i++)
		put(f[i].name, f[i].text, f[i].data);
}

static int scan(const char *file, struct catalog **ret, struct ckpt_err *e)
{
	return scan_file(dir_fd, file, &(struct scan_opts){ 0 }, ret, e);
}

/* Where a file's data begins. */
static uint64_t data_of(const char *path)
{
	autoclose int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	uint8_t length[8];

	REQUIRE(fd >= 0 && !io_pread(fd, length, sizeof(length), 0));
	return 8 + load_le64(length);
}

static const char *stem(const char *path, char out[static 64])
{
	(void)snprintf(out, 64, "%.*s", (int)strcspn(path, "."), path);
	return out;
}

/* "w float16 [4] complete: [0]+[2]@a:0+4 [2]+[2]@b:0+4; x object: why; ", positions in the data */
static char *show(struct catalog *c)
{
	static const char *const state[] = { "complete", "incomplete", "overlapping" };
	struct buf b = BUF_INIT(1 << 20);
	size_t n, n_objects, k;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	const struct catalog_object *o = catalog_objects(c, &n_objects);
	const struct stored_file *s = catalog_sources(c, &k);
	const char *const *enc = catalog_encodings(c, &k);
	char file[64];

	buf_str(&b, "");
	for (size_t i = 0; i < n; i++) {
		autofree struct chunkmap *m = NULL;
		struct ckpt_err e = { 0 };

		REQUIRE(!catalog_load_map(c, &t[i], &m, &e));
		REQUIRE(t[i].top == t[i].fqn_len);
		buf_printf(&b, "%s %s ", t[i].fqn, dtype_info(t[i].dtype)->name);
		buf_json_u64s(&b, t[i].shape, t[i].n_dims);
		buf_printf(&b, " %s:", state[t[i].state]);
		for (uint32_t x = 0; x < m->count; x++) {
			const struct chunk_loc *l = &m->locs[x];
			uint64_t off[64], len[64];

			REQUIRE(!strcmp(enc[l->encoding], "raw"));
			chunkmap_box(m, x, off, len);
			buf_str(&b, " ");
			buf_json_u64s(&b, off, t[i].n_dims);
			buf_str(&b, "+");
			buf_json_u64s(&b, len, t[i].n_dims);
			buf_printf(&b, "@%s:%llu+%llu", stem(s[l->file].path, file),
				   (unsigned long long)(l->offset - data_of(s[l->file].path)),
				   (unsigned long long)l->length);
		}
		buf_str(&b, "; ");
	}
	for (size_t i = 0; i < n_objects; i++)
		buf_printf(&b, "%s object: %s; ", o[i].fqn,
			   o[i].fault  ? o[i].fault
			   : o[i].text ? o[i].text
				       : "readable");
	REQUIRE(!b.err);
	return b.data;
}

/* ---- what is read ---- */

static const struct {
	struct file files[MAX_FILES];
	const char *want;
	const char *file; /* given instead of the directory */
} good[] = {
	{ { { "a.safetensors", A, 8 } }, SHOW_A, NULL },
	{ { { "a.safetensors", A, 8 }, { "b.safetensors", B, 8 } }, SHOW_A SHOW_B, NULL },
	{ { { "a.safetensors", A, 8 }, { "b.safetensors", B, 8 } }, SHOW_B, "b.safetensors" },
	{ { { "b", B, 8 } }, SHOW_B, "b" }, /* known by its content */
	{ { { "a.safetensors", A, 8 }, { "sub/b.safetensors", B, 8 }, { "b.safetensor", B, 8 } },
	  SHOW_A,
	  NULL },
	{ { { "a.safetensors", "{}", 0 } }, "", NULL },
	/* The same name in two files is no conflict if only one of them is read. */
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", A, 8 },
	    { INDEX, MAP(IN("a2", "a") "," IN("a", "a")), 0 } },
	  SHOW_A,
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { "sub/b.safetensors", B, 8 },
	    { "x.safetensors.index.fp16.json",
	      MAP(IN("a", "a") "," IN("b", "sub/b") "," IN("a2", "a")), 0 } },
	  "a uint8 [2,3] complete: [0,0]+[2,3]@a:0+6; a2 bfloat16 [] complete: []+[]@a:6+2; "
	  "b int64 [1] complete: [0]+[1]@sub/b:0+8; ",
	  NULL },
	/* If both files are read, the index says which tensor counts: a tied weight may be in two
	 * files. */
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", A, 8 },
	    { INDEX, MAP(IN("a2", "b") "," IN("a", "a")), 0 } },
	  "a uint8 [2,3] complete: [0,0]+[2,3]@a:0+6; a2 bfloat16 [] complete: []+[]@b:6+2; ",
	  NULL },
	/* Of several indexes, the usual one is used, or the one that is asked for. */
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { "a.safetensors.index.json", MAP(IN("a", "a") "," IN("a2", "a")), 0 },
	    { INDEX, MAP(IN("b", "b")), 0 } },
	  SHOW_B,
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { "a.safetensors.index.json", MAP(IN("a", "a") "," IN("a2", "a")), 0 },
	    { INDEX, MAP(IN("b", "b")), 0 } },
	  SHOW_A,
	  "a.safetensors.index.json" },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { "a.safetensors.index.json", MAP(IN("b", "b")), 0 } },
	  SHOW_B,
	  "a.safetensors.index.json" },
	/* A file that is missing and a dtype that nobody knows affect only their own tensors. */
	{ { { "a.safetensors", A, 8 },
	    { INDEX, MAP(IN("a", "a") "," IN("a2", "a") "," IN("b", "sub/b") "," IN("c", "b")),
	      0 } },
	  SHOW_A "b object: a tensor of 'sub/b.safetensors', which is missing; "
		 "c object: a tensor of 'b.safetensors', which is missing; ",
	  NULL },
	{ { { "a.safetensors",
	      "{" T("a", "F6_E2M3", "[4]", "[0,3]") "," T("w", "U8", "[2]", "[3,5]") "}", 5 } },
	  "w uint8 [2] complete: [0]+[2]@a:3+2; "
	  "a object: a tensor of dtype 'F6_E2M3', which is not known; ",
	  NULL },
	/* 4-bit values are counted one by one in the file, and in pairs here. */
	{ { { "a.safetensors",
	      "{" T("a", "F4", "[3,2]", "[0,3]") "," T("b", "F4", "[2,3]", "[3,6]") "}", 6 } },
	  "a float4_e2m1fn_x2 [3,1] complete: [0,0]+[3,1]@a:0+3; "
	  "b object: a tensor of dtype 'F4' whose rows of 3 values end within a byte; ",
	  NULL },
	/* The files count, as in Hugging Face's libraries, if their index is wrong. */
	{ { { "a.safetensors", A, 8 }, { INDEX, MAP(IN("a", "a")), 0 } },
	  SHOW_A "index_differs object: \"'" INDEX "' does not name 'a2' of 'a.safetensors'\"\n; ",
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { INDEX, MAP(IN("a", "a") "," IN("a2", "a") "," IN("a3", "a")), 0 } },
	  SHOW_A "a3 object: the index places it in 'a.safetensors', which lacks it; ",
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { INDEX, MAP(IN("a", "a") "," IN("a2", "b") "," IN("b", "b")), 0 } },
	  SHOW_A SHOW_B "index_differs object: \"'" INDEX
			"' places 'a2' of 'a.safetensors' in another file\"\n; ",
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { INDEX, MAP(IN("a", "a") "," IN("a2", "b")), 0 } }, /* and b is missing */
	  SHOW_A "index_differs object: \"'" INDEX
		 "' places 'a2' of 'a.safetensors' in another file\"\n; ",
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { INDEX, MAP(IN("a", "b") "," IN("c", "a")), 0 } },
	  SHOW_A SHOW_B "c object: the index places it in 'a.safetensors', which lacks it; "
			"index_differs object: \"'" INDEX
			"' does not name 'a2' of 'a.safetensors' and 1 more tensor, and places 'a' "
			"of 'a.safetensors' in another file\"\n; ",
	  NULL },
	/* Pieces. */
	{ { { "a.safetensors",
	      "{" T("w", "F16", "[2,2]", "[0,8]") "," T("s", "F32", "[]", "[8,12]") "," SHARDING(
		      "{" AT("w", "[1,0]") "," AT("s", "[]") "}") "}",
	      12 },
	    { "b.safetensors",
	      "{" T("w", "F16", "[1,2]", "[0,4]") "," SHARDING("{" AT("w", "[0,0]") "}") "}", 4 } },
	  "s float32 [] complete: []+[]@a:8+4; "
	  "w float16 [3,2] complete: [0,0]+[1,2]@b:0+4 [1,0]+[2,2]@a:0+8; ",
	  NULL },
	{ { { "a.safetensors",
	      "{" T("w", "F4", "[2,4]", "[0,4]") "," SHARDING("{" AT("w", "[0,2]") "}") "}", 4 },
	    { "b.safetensors",
	      "{" T("w", "F4", "[2,4]", "[0,4]") "," SHARDING("{" AT("w", "[0,0]") "}") "}", 4 } },
	  "w float4_e2m1fn_x2 [2,4] complete: [0,0]+[2,2]@b:0+4 [0,2]+[2,2]@a:0+4; ",
	  NULL },
	/* Empty pieces may be anywhere, one for each rank that has nothing. */
	{ { { "a.safetensors",
	      "{" T("w", "U8", "[0]", "[0,0]") "," SHARDING("{" AT("w", "[2]") "}") "}", 0 },
	    { "b.safetensors",
	      "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[0]") "}") "}", 2 },
	    { "c.safetensors",
	      "{" T("w", "U8", "[0]", "[0,0]") "," SHARDING("{" AT("w", "[2]") "}") "}", 0 } },
	  "w uint8 [2] complete: [0]+[2]@b:0+2; ",
	  NULL },
	/* A piece that is lost leaves a hole, unless it is the last one. */
	{ { { "a.safetensors",
	      "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[2]") "}") "}", 2 } },
	  "w uint8 [4] incomplete: [2]+[2]@a:0+2; ",
	  NULL },
	{ { { "a.safetensors",
	      "{" T("w", "U8", "[0]", "[0,0]") "," SHARDING("{" AT("w", "[2]") "}") "}", 0 } },
	  "w uint8 [2] incomplete:; ",
	  NULL },
	/* An index names one file for each tensor; pieces in files that it does not name count as
	 * well. */
	{ { { "a.safetensors",
	      "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[0]") "}") "}", 2 },
	    { "b.safetensors",
	      "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[2]") "}") "}", 2 },
	    { "c.safetensors", "{" T("w", "U8", "[2]", "[0,2]") "}", 2 }, /* not a piece */
	    { INDEX, MAP(IN("w", "a")), 0 } },
	  "w uint8 [4] complete: [0]+[2]@a:0+2 [2]+[2]@b:0+2; ",
	  NULL },
	/* Whole tensors of the same writer. */
	{ { { "a.safetensors",
	      "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[0]") "}") "}", 2 },
	    { INDEX, MAP(IN("w", "a")), 0 } },
	  "w uint8 [2] complete: [0]+[2]@a:0+2; ",
	  NULL },
	/* Two pieces of an unknown dtype are one tensor. */
	{ { { "a.safetensors",
	      "{" T("w", "X", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[0]") "}") "}", 2 },
	    { "b.safetensors",
	      "{" T("w", "X", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[2]") "}") "}", 2 } },
	  "w object: a tensor of dtype 'X', which is not known; ",
	  NULL },
	/* Shards of two models, each complete; of ranks, which have none of some. */
	{ { { "a-00001-of-00002.safetensors", A, 8 },
	    { "a-00002-of-00002.safetensors", B, 8 },
	    { "a-b-00001-of-00001.safetensors", "{}", 0 },
	    { "b-of-00003.safetensors", "{}", 0 },
	    { "3-of-3.safetensors", "{}", 0 } },
	  "a uint8 [2,3] complete: [0,0]+[2,3]@a-00001-of-00002:0+6; "
	  "a2 bfloat16 [] complete: []+[]@a-00001-of-00002:6+2; "
	  "b int64 [1] complete: [0]+[1]@a-00002-of-00002:0+8; ",
	  NULL },
	{ { { "shard-00001-a-00003-of-00003.safetensors", A, 8 },
	    { "shard-00003-a-00002-of-00003.safetensors", B, 8 } },
	  "a uint8 [2,3] complete: [0,0]+[2,3]@shard-00001-a-00003-of-00003:0+6; "
	  "a2 bfloat16 [] complete: []+[]@shard-00001-a-00003-of-00003:6+2; "
	  "b int64 [1] complete: [0]+[1]@shard-00003-a-00002-of-00003:0+8; ",
	  NULL },
	/* numbered from 0 */
	{ { { "a-0-of-2.safetensors", B, 8 }, { "a-1-of-2.safetensors", "{}", 0 } },
	  "b int64 [1] complete: [0]+[1]@a-0-of-2:0+8; ",
	  NULL },
	/* one of them alone, or those that an index names */
	{ { { "a-00002-of-00002.safetensors", B, 8 } },
	  "b int64 [1] complete: [0]+[1]@a-00002-of-00002:0+8; ",
	  "a-00002-of-00002.safetensors" },
	{ { { "a-00002-of-00002.safetensors", B, 8 },
	    { "a-00002-of-00003.safetensors", A, 8 },
	    { INDEX, MAP(IN("b", "a-00002-of-00002")), 0 } },
	  "b int64 [1] complete: [0]+[1]@a-00002-of-00002:0+8; ",
	  NULL },
	/* A file that was cut short; other code compares its length, and reports it. */
	{ { { "a.safetensors", A, 7 } }, SHOW_A, NULL },
};

START_LOOP_TEST(tensors_are_where_the_headers_say, ARRAY_LEN(good))
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	autofree char *got = NULL;

	put_files(good[_i].files);
	ck_assert_msg(!scan(good[_i].file, &c, &e), "%s", e.msg);
	ck_assert_int_eq(e.code, 0);
	got = show(c);
	ck_assert_str_eq(got, good[_i].want);
	catalog_close(c);
}
END_TEST

/* ---- what is refused ---- */

#define PIECE_A(text) \
	{ \
		"a.safetensors", "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING(text) "}", 2 \
	}
#define PIECE_B(dtype, shape, range, text) \
	{ \
		"b.safetensors", "{" T("w", dtype, shape, range) "," SHARDING(text) "}", 4 \
	}

static const struct {
	struct file files[MAX_FILES];
	int code;
	const char *msg;
	const char *file; /* given instead of the directory */
} bad[] = {
	{ { { "a.safetensors", "{\"a\":7}", 0 } },
	  EBADMSG,
	  "read 'a.safetensors': safetensors header: 'a': no dtype",
	  NULL },
	{ { { "a.safetensors", A, 9 } },
	  EBADMSG,
	  "read 'a.safetensors': 1 bytes after the last tensor",
	  NULL },
	{ { { "a.safetensors", "{}", 1 } },
	  EBADMSG,
	  "read 'a.safetensors': 1 bytes after the last tensor",
	  NULL },
	{ { { "a.safetensors",
	      "{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[0,1]") "}", 1 } },
	  EBADMSG,
	  "read 'a.safetensors': safetensors header is not a JSON object: duplicate object key "
	  "near "
	  "'\"a\"'",
	  NULL },
	{ { { "a.safetensors", "", 8 } }, /* eight zeros, and more bytes */
	  EBADMSG,
	  "read 'a.safetensors': no safetensors header: its length would be 0",
	  "a.safetensors" },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", "{" T("a", "U8", "[1]", "[0,1]") "}", 1 } },
	  EBADMSG,
	  "tensor 'a' is in both 'a.safetensors' and 'b.safetensors': name one of them "
	  "instead of the directory",
	  NULL },
	/* Pieces. */
	{ { PIECE_A("{") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO is not JSON: string or '}' expected near end of "
	  "file",
	  NULL },
	{ { PIECE_A("") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO is not JSON: '[' or '{' expected near end of "
	  "file",
	  NULL },
	{ { PIECE_A("{" AT("w", "[0]") "," AT("w", "[0]") "}") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO is not JSON: duplicate object key near '\"w\"'",
	  NULL },
	{ { PIECE_A("[]") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO is not a JSON object",
	  NULL },
	{ { PIECE_A("{}") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO does not name 'w'",
	  NULL },
	{ { PIECE_A("{" AT("w", "[0]") "," AT("v", "[0]") "}") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO names 'v', which the file does not hold",
	  NULL },
#define NO_NUMBERS(text) \
	{ \
		{ PIECE_A("{" text "}") }, EBADMSG, \
			"read 'a.safetensors': DCP_SHARDING_INFO: 'w': its saved_offsets are not " \
			"a list of 1 " \
			"numbers", \
			NULL \
	}
	NO_NUMBERS(AT("w", "[]")),
	NO_NUMBERS(AT("w", "[0,0]")),
	NO_NUMBERS(AT("w", "0")),
	NO_NUMBERS(AT("w", "[-1]")),
	NO_NUMBERS(AT("w", "[0.0]")),
	NO_NUMBERS(AT("w", "[null]")),
	NO_NUMBERS("\\\"w\\\":[0]"),
	NO_NUMBERS("\\\"w\\\":{}"),
	NO_NUMBERS("\\\"w\\\":null"),
	{ { PIECE_A("{" AT("w", "[9223372036854775806]") "}") },
	  EBADMSG,
	  "read 'a.safetensors': DCP_SHARDING_INFO: 'w': an offset of 9223372036854775806",
	  NULL },
	{ { PIECE_A("{" AT("w", "[9223372036854775805]") "}"),
	    PIECE_B("U8", "[2,2]", "[0,4]", "{" AT("w", "[0,0]") "}") },
	  EBADMSG,
	  "tensor 'w' has 1 dimensions in 'a.safetensors' and 2 in 'b.safetensors'",
	  NULL },
	{ { PIECE_A("{" AT("w", "[0]") "}"),
	    PIECE_B("I8", "[4]", "[0,4]", "{" AT("w", "[2]") "}") },
	  EBADMSG,
	  "tensor 'w' has uint8 in 'a.safetensors' and int8 in 'b.safetensors'",
	  NULL },
	{ { PIECE_A("{" AT("w", "[0]") "}"),
	    PIECE_B("X8", "[4]", "[0,4]", "{" AT("w", "[2]") "}") },
	  EBADMSG,
	  "tensor 'w' has uint8 in 'a.safetensors' and a dtype that is not known in "
	  "'b.safetensors'",
	  NULL },
	{ { PIECE_A("{" AT("w", "[0]") "}"),
	    { "b.safetensors", "{" T("w", "U8", "[2]", "[0,2]") "}", 2 } },
	  EBADMSG,
	  "tensor 'w' is in both 'a.safetensors' and 'b.safetensors': name one of them "
	  "instead of the directory",
	  NULL },
	{ { PIECE_A("{" AT("w", "[0]") "}"),
	    PIECE_B("U8", "[4]", "[0,4]", "{" AT("w", "[1]") "}") },
	  EBADMSG,
	  "tensor 'w': its pieces in 'a.safetensors' and 'b.safetensors' overlap",
	  NULL },
	{ { { "0.safetensors",
	      "{" T("w", "U8", "[0]", "[0,0]") "," SHARDING("{" AT("w", "[2]") "}") "}", 0 },
	    PIECE_A("{" AT("w", "[0]") "}"),
	    { "c.safetensors",
	      "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[0]") "}") "}", 2 } },
	  EBADMSG,
	  "tensor 'w': its pieces in 'a.safetensors' and 'c.safetensors' overlap",
	  NULL },
	{ { { "a.safetensors",
	      "{" T("s", "U8", "[]", "[0,1]") "," SHARDING("{" AT("s", "[]") "}") "}", 1 },
	    { "b.safetensors",
	      "{" T("s", "U8", "[]", "[0,1]") "," SHARDING("{" AT("s", "[]") "}") "}", 1 } },
	  EBADMSG,
	  "tensor 's': its pieces in 'a.safetensors' and 'b.safetensors' overlap",
	  NULL },
	{ { PIECE_A("{" AT("w", "[9223372036854775805]") "}"),
	    { "b.safetensors",
	      "{" T("w", "U8", "[0,4]",
		    "[0,0]") "," SHARDING("{" AT("w", "[0,9223372036854775803]") "}") "}",
	      0 } },
	  EBADMSG,
	  "tensor 'w' has 1 dimensions in 'a.safetensors' and 2 in 'b.safetensors'",
	  NULL },
	{ { { "a.safetensors",
	      "{" T("w", "U8", "[1,1]",
		    "[0,1]") "," SHARDING("{" AT("w", "[4294967295,4294967295]") "}") "}",
	      1 } },
	  EBADMSG,
	  "tensor 'w' is larger than 2^63 bytes",
	  NULL },
/* Shards without an index. */
#define NO_SHARD(name, n) \
	"'" name "' is missing: the model is in " n " files; add the file, or name one of the " \
	"others instead of the directory to read that alone"
	{ { { "a-00001-of-00003.safetensors", A, 8 }, { "a-00003-of-00003.safetensors", B, 8 } },
	  ENOENT,
	  NO_SHARD("a-00002-of-00003.safetensors", "3"),
	  NULL },
	{ { { "a-00002-of-00002.safetensors", A, 8 }, { "b-00001-of-00001.safetensors", B, 8 } },
	  ENOENT,
	  NO_SHARD("a-00001-of-00002.safetensors", "2"),
	  NULL },
	{ { { "a-00001-of-00002.safetensors", A, 8 }, { "a.safetensors", B, 8 } },
	  ENOENT,
	  NO_SHARD("a-00002-of-00002.safetensors", "2"),
	  NULL },
	{ { { "a-0-of-2.safetensors", A, 8 } },
	  ENOENT,
	  NO_SHARD("a-1-of-2.safetensors", "2"),
	  NULL },
	{ { { "a-00001-of-00002.safetensors", A, 8 },
	    { "a-00002-of-00002.safetensors", B, 8 },
	    { "a-00003-of-00003.safetensors", "{}", 0 } },
	  ENOTUNIQ,
	  "'a-00002-of-00002.safetensors' and 'a-00003-of-00003.safetensors' are of two saves: "
	  "move "
	  "the files of one of them out of the directory",
	  NULL },
	/* Indexes. */
	{ { { INDEX, "{", 0 } },
	  EBADMSG,
	  "read '" INDEX "': not JSON: string or '}' expected near end of file, in line 1",
	  NULL },
	{ { { INDEX, "", 0 } },
	  EBADMSG,
	  "read '" INDEX "': not JSON: '[' or '{' expected near end of file, in line 1",
	  NULL },
	{ { { INDEX, "[]", 0 } },
	  EBADMSG,
	  "read '" INDEX "': no weight_map that names a tensor",
	  NULL },
	{ { { INDEX, "{\"weight_map\":[\"a\"]}", 0 } },
	  EBADMSG,
	  "read '" INDEX "': no weight_map that names a tensor",
	  NULL },
	{ { { INDEX, MAP(""), 0 } },
	  EBADMSG,
	  "read '" INDEX "': no weight_map that names a tensor",
	  NULL },
	{ { { INDEX, MAP("\"a\":7"), 0 } },
	  EBADMSG,
	  "read '" INDEX "': weight_map: 'a': not a file name",
	  NULL },
	{ { { INDEX, MAP(IN("a", "../a")), 0 } },
	  EBADMSG,
	  "read '" INDEX "': weight_map: 'a': file name '../a.safetensors' refused: an element of "
	  "it is empty, '.' or '..'",
	  NULL },
	{ { { INDEX, MAP(IN("a", "/a")), 0 } },
	  EBADMSG,
	  "read '" INDEX "': weight_map: 'a': file name '/a.safetensors' refused: absolute path",
	  NULL },
	{ { { INDEX, MAP(IN("a", "a") "," IN("a", "b")), 0 } },
	  EBADMSG,
	  "read '" INDEX "': not JSON: duplicate object key near '\"a\"', in line 1",
	  NULL },
	{ { { INDEX, MAP("\"a\":\"sub/" INDEX "\""), 0 } },
	  EBADMSG,
	  "'" INDEX "' names 'sub/" INDEX "', which is an index itself, as a file of tensors",
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", A, 8 },
	    { "c.safetensors", "{}", 0 },
	    { INDEX, MAP(IN("a", "a") "," IN("a2", "c") "," IN("b", "b")), 0 } },
	  EBADMSG,
	  "tensor 'a2' is in both 'a.safetensors' and 'b.safetensors': name one of them instead "
	  "of the directory",
	  NULL },
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", A, 8 },
	    { INDEX, MAP(IN("a", "a") "," IN("b", "b")), 0 } },
	  EBADMSG,
	  "tensor 'a2' is in both 'a.safetensors' and 'b.safetensors': name one of them instead "
	  "of the directory",
	  NULL },
	/* What ranks have written. */
	{ { { "model-rank-0-part-0.safetensors", A, 8 },
	    { "model-rank-1-part-0.safetensors", A, 8 } },
	  EBADMSG,
	  "tensor 'a' is in both 'model-rank-0-part-0.safetensors' and "
	  "'model-rank-1-part-0.safetensors', the files of two ranks, whose slices ckptfs does not "
	  "join: name the model from which they were made",
	  NULL },
	{ { { "rank0.safetensors", A, 8 }, { "rank10.safetensors", A, 8 } },
	  EBADMSG,
	  "tensor 'a' is in both 'rank0.safetensors' and 'rank10.safetensors', the files of two "
	  "ranks, whose slices ckptfs does not join: name the model from which they were made",
	  NULL },
	{ { { "lora-rank-8.safetensors", A, 8 }, { "lora-rank-16.safetensors", A, 8 } },
	  EBADMSG,
	  "tensor 'a' is in both 'lora-rank-8.safetensors' and 'lora-rank-16.safetensors': name "
	  "one "
	  "of them instead of the directory",
	  NULL },
	{ { { "model.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { INDEX, MAP(IN("b", "b")), 0 } },
	  ENOTUNIQ,
	  "'model.safetensors' and '" INDEX
	  "', which does not name it, are two models: name one of them instead of the directory",
	  NULL },
	{ { { "a.safetensors.index.json", MAP(IN("a", "a")), 0 },
	    { "a.fp16.safetensors.index.json", MAP(IN("b", "b")), 0 } },
	  ENOTUNIQ,
	  "'a.fp16.safetensors.index.json' and 'a.safetensors.index.json' are two models: name one "
	  "of them instead of the directory",
	  NULL },
};

START_LOOP_TEST(what_contradicts_itself_is_refused, ARRAY_LEN(bad))
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	put_files(bad[_i].files);
	ck_assert_int_eq(scan(bad[_i].file, &c, &e), -bad[_i].code);
	ck_assert_str_eq(e.msg, bad[_i].msg);
	ck_assert_int_eq(e.code, bad[_i].code);
	ck_assert_ptr_null(c);
}
END_TEST

static const struct {
	struct file files[MAX_FILES];
	const char *ask, *want;
} unlisted[] = {
	{ { { "a.safetensors", A, 8 },
	    { "b.safetensors", B, 8 },
	    { INDEX, MAP(IN("a", "a") "," IN("a2", "a") "," IN("b", "b")), 0 } },
	  NULL,
	  SHOW_A SHOW_B },
	{ { { "a.safetensors", A, 8 },
	    { "x.safetensors.index.json", MAP(IN("a", "a") "," IN("a2", "a") "," IN("c", "c")),
	      0 } },
	  "x.safetensors.index.json",
	  SHOW_A "c object: a tensor of 'c.safetensors', which is missing; " },
	{ { { "model.safetensors", B, 8 } }, NULL, "b int64 [1] complete: [0]+[1]@model:0+8; " },
	{ { { "model.safetensors", B, 8 }, { INDEX, MAP(IN("b", "model")), 0 } },
	  NULL,
	  "b int64 [1] complete: [0]+[1]@model:0+8; " },
	/* The index is left over. */
	{ { { "model.safetensors", B, 8 }, { INDEX, MAP(IN("a", "a")), 0 } },
	  NULL,
	  "b int64 [1] complete: [0]+[1]@model:0+8; " },
};

START_LOOP_TEST(a_place_without_listings_is_asked_for_names, ARRAY_LEN(unlisted))
{
	struct place *p CLEANUP(place_freep) = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	autofree char *got = NULL;

	put_files(unlisted[_i].files);
	p = memory_place(dir_fd);
	memory_place_unlisted(p);
	ck_assert_msg(!scan_place(p, unlisted[_i].ask, &(struct scan_opts){ 0 }, &c, &e), "%s",
		      e.msg);
	got = show(c);
	catalog_close(c);
	ck_assert_str_eq(got, unlisted[_i].want);
}
END_TEST

START_TEST(what_no_listing_shows_is_asked_for_within_limits)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(8 << 20);
	struct place *p CLEANUP(place_freep) = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	buf_str(&b, "{\"weight_map\":{\"t\":\"t.safetensors\"");
	for (unsigned i = 0; i < 100000; i++)
		buf_printf(&b, ",\"t%u\":\"%u.safetensors\"", i, i);
	buf_str(&b, "}}");
	ck_assert_int_eq(b.err, 0);
	put_file(dir_fd, INDEX, b.data, b.len);
	p = memory_place(dir_fd);
	memory_place_unlisted(p);
	ck_assert_int_eq(scan_place(p, NULL, &(struct scan_opts){ 0 }, &c, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "'" INDEX "' names more than 100000 files");
}
END_TEST

START_TEST(an_index_has_a_limit)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	autoclose int fd = -1;

	put(INDEX, "{", 0);
	fd = openat(dir_fd, INDEX, O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, ((off_t)256 << 20) + 1), 0);
	ck_assert_int_eq(scan(NULL, &c, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "'" INDEX "' has more than 100000000 bytes");
}
END_TEST

START_TEST(links_out_of_the_checkpoint_are_refused)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(symlinkat("../x", dir_fd, "a.safetensors"), 0);
	ck_assert_int_eq(scan(NULL, &c, &e), -EBADMSG);
	ck_assert_str_eq(
		e.msg,
		has_openat2() ? "open 'a.safetensors': refused, a link leads out of the checkpoint"
			      : "open 'a.safetensors': refused, a link is in the path, and without "
				"openat2 (Linux 5.6) links are not followed");
}
END_TEST

/* ---- which files ---- */

#define AN_INDEX MAP(IN("a", "a") "," IN("b", "sub/b") "," IN("c", "sub/c"))

static const struct {
	struct file files[MAX_FILES];
	const char *file, *found; /* found: or NULL, when it is not safetensors */
} probes[] = {
	{ { { "a.safetensors", A, 8 }, { "b", B, 8 } }, NULL, "a.safetensors " },
	{ { { "b10.safetensors", A, 8 }, { "b9.safetensors", A, 8 }, { ".b.safetensors", A, 8 } },
	  NULL,
	  "b9.safetensors b10.safetensors " },
	{ { { "a.safetensors", A, 8 },
	    { "x.safetensors", A, 8 },
	    { "sub/b.safetensors", B, 8 },
	    { INDEX, AN_INDEX, 0 } },
	  NULL,
	  "a.safetensors model.safetensors.index.json sub/b.safetensors x.safetensors " },
	{ { { "a.safetensors", A, 8 }, { INDEX, AN_INDEX, 0 } },
	  "a.safetensors",
	  "a.safetensors " },
	{ { { INDEX, AN_INDEX, 0 } }, INDEX, "model.safetensors.index.json " },
	/* saved in parts and then again in one file; transformers keeps the index */
	{ { { "model.safetensors", A, 8 }, { INDEX, AN_INDEX, 0 } }, NULL, "model.safetensors " },
	{ { { "model.safetensors", A, 8 }, { INDEX, MAP(IN("a", "model") "," IN("b", "b")), 0 } },
	  NULL,
	  "model.safetensors model.safetensors.index.json " },
	{ { { "b", B, 8 } }, NULL, NULL },
	{ { { "b", " \n\t\r{}", 0 } }, "b", "b " },
	{ { { "b", "  ", 0 } }, "b", NULL },
	{ { { "b", "", 0 } }, "b", NULL },
	{ { { "b", "[]", 0 } }, "b", NULL },
	{ { { "b", "x{}", 0 } }, "b", NULL },
	{ { { "b.json", "{}{}{}{}{}{}", 0 } }, "b.json", NULL },
	{ { { "b.safetensors", "", 0 } }, "b.safetensors", "b.safetensors " },
};

START_LOOP_TEST(a_checkpoint_is_known_by_its_files, ARRAY_LEN(probes))
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	const struct format *f = NULL;
	struct name_list l = { 0 };
	char found[300] = "";
	struct ckpt_err e = { 0 };
	int rc;

	put_files(probes[_i].files);
	rc = format_detect(place, probes[_i].file, &f, &l, &e);
	ck_assert_int_eq(rc, probes[_i].found ? 0 : -ENOENT);
	for (size_t i = 0; i < l.n; i++)
		(void)snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s ", l.v[i]);
	ck_assert_str_eq(found, probes[_i].found ? probes[_i].found : "");
	if (!rc)
		ck_assert_str_eq(f->name, "safetensors");
	name_list_release(&l);
}
END_TEST

START_TEST(dcp_comes_first)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	const struct format *f = NULL;
	struct name_list l = { 0 };
	struct ckpt_err e = { 0 };

	put("a.safetensors", A, 8);
	put_file(dir_fd, ".metadata", "", 0);
	ck_assert_int_eq(format_detect(place, NULL, &f, &l, &e), 0);
	ck_assert_str_eq(f->name, "dcp");
	name_list_release(&l);
}
END_TEST

/* ---- as a whole ---- */

static void open_ok(const struct ckpt_opts *o, struct ckpt **ret, struct ckpt_totals *totals)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_typed(dir, o, ret, &e), "%s", e.msg);
	ckpt_totals(*ret, totals);
	ck_assert_str_eq(totals->format, "safetensors");
}

static void open_bad(const char *want)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char msg[5000];

	ck_assert_int_eq(open_typed(dir, &(struct ckpt_opts){ .index = ":memory:" }, &c, &e),
			 -EBADMSG);
	(void)snprintf(msg, sizeof(msg), "checkpoint '%s': %s", dir, want);
	ck_assert_str_eq(e.msg, msg);
}

static void expect_bytes(struct ckpt *c, const char *path, const char *want, size_t n)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	char got[64];

	ck_assert_msg(!ckpt_file_open_path(c, path, &f, &e), "%s", e.msg);
	ck_assert_int_eq(ckpt_file_read(f, got, sizeof(got), 0, &e), (int64_t)n);
	ck_assert_mem_eq(got, want, n);
	ckpt_file_close(f);
}

START_TEST(pieces_are_read_as_one)
{
	struct ckpt_totals t;
	struct ckpt *c = NULL;

	put("a.safetensors",
	    "{" T("w", "U8", "[2,1]", "[0,2]") "," SHARDING("{" AT("w", "[0,2]") "}") "}", 2);
	put("b.safetensors",
	    "{" T("w", "U8", "[2,2]", "[0,4]") "," SHARDING("{" AT("w", "[0,0]") "}") "}", 4);
	open_ok(&(struct ckpt_opts){ .index = ":memory:" }, &c, &t);
	expect_bytes(c, "tensors/w", "\0\1\0\2\3\1", 6);
	ckpt_close(c);
}
END_TEST

#define ALLOW "; with the option allow_missing, the rest can be read"

START_TEST(what_cannot_be_read_can_be_left_out)
{
	static const char *const exclude[] = { "b*", NULL };
	struct ckpt_totals t;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_file *f;

	put("a.safetensors", A, 8);
	put(INDEX, MAP(IN("a", "a") "," IN("a2", "a") "," IN("b", "b") "," IN("b2", "b")), 0);
	open_bad("object 'b': a tensor of 'b.safetensors', which is missing (and 1 more is "
		 "incomplete)" ALLOW);
	open_ok(&(struct ckpt_opts){ .index = ":memory:", .exclude = exclude }, &c, &t);
	ck_assert_uint_eq(t.tensors, 2);
	ck_assert_uint_eq(t.objects, 0);
	ckpt_close(c);
	open_ok(&(struct ckpt_opts){ .index = ":memory:", .allow_missing = true }, &c, &t);
	ck_assert_uint_eq(t.incomplete, 2);
	expect_bytes(c, "tensors/a", "\0\1\2\3\4\5", 6);
	ck_assert_int_eq(ckpt_file_open_path(c, "objects/b", &f, &e), -EIO);
	ck_assert_ptr_nonnull(strstr(e.msg, "a tensor of 'b.safetensors', which is missing"));
	ckpt_close(c);
}
END_TEST

START_TEST(a_file_that_was_cut_takes_only_its_own)
{
	struct ckpt_totals t;
	struct ckpt *c = NULL;
	char want[300];

	put("a.safetensors", A, 7);
	put("b.safetensors", B, 8);
	(void)snprintf(want, sizeof(want),
		       "data file 'a.safetensors' has %zu bytes, items in it reach up to %zu" ALLOW,
		       8 + strlen(A) + 7, 8 + strlen(A) + 8);
	open_bad(want);
	open_ok(&(struct ckpt_opts){ .index = ":memory:", .allow_missing = true }, &c, &t);
	ck_assert_uint_eq(t.incomplete, 2);
	expect_bytes(c, "tensors/b", "\0\1\2\3\4\5\6\7", 8);
	ckpt_close(c);
}
END_TEST

static void expect_built(const char *index, bool built, uint64_t tensors)
{
	struct ckpt_totals t;
	struct ckpt *c = NULL;

	open_ok(&(struct ckpt_opts){ .index = index, .allow_missing = true }, &c, &t);
	ck_assert_int_eq(t.index_built, built);
	ck_assert_uint_eq(t.tensors, tensors);
	ckpt_close(c);
}

START_TEST(a_chunk_index_is_renewed_when_files_change)
{
	char index[4200];

	(void)snprintf(index, sizeof(index), "%s/index", dir);
	put("a.safetensors", A, 8);
	expect_built(index, true, 2);
	expect_built(index, false, 2);
	put("b.safetensors", B, 8);
	expect_built(index, true, 3);
	put("b.safetensors", B " ", 8);
	expect_built(index, true, 3);
	put(INDEX, MAP(IN("a", "a") "," IN("a2", "a") "," IN("b", "sub/b")), 0);
	expect_built(index, true, 2); /* b is missing now */
	expect_built(index, false, 2);
	put("sub/b.safetensors", B, 8);
	expect_built(index, true, 3);
	expect_built(index, false, 3);
	put("sub/b.safetensors", B " ", 8);
	expect_built(index, true, 3);
	ck_assert_int_eq(unlinkat(dir_fd, INDEX, 0), 0);
	expect_built(index, true, 3);
}
END_TEST

START_TEST(headers_alone_are_read)
{
	static const char header[] = "{" T("w", "U8", "[5368709120]", "[0,5368709120]") "}";
	uint64_t before, calls;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	autoclose int fd = -1;
	autofree char *got = NULL;

	put("a.safetensors", header, 0);
	fd = openat(dir_fd, "a.safetensors", O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, (off_t)(8 + strlen(header)) + 5368709120), 0);
	before = fault_read_bytes();
	calls = fault_reads();
	ck_assert_msg(!scan(NULL, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(fault_read_bytes() - before, 8 + strlen(header));
	ck_assert_uint_eq(fault_reads() - calls, 2);
	got = show(c);
	ck_assert_str_eq(got, "w uint8 [5368709120] complete: [0]+[5368709120]@a:0+5368709120; ");
	catalog_close(c);
}
END_TEST

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
	uint64_t *last = arg;

	ck_assert_uint_gt(done, last[0]);
	last[0] = done;
	last[1] = total;
}

START_TEST(progress_ends_at_the_total)
{
	uint64_t last[2] = { 0 };
	struct scan_opts o = { note_progress, last };
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	put("a.safetensors", A, 8);
	put("b.safetensors", B, 8);
	ck_assert_int_eq(scan_file(dir_fd, NULL, &o, &c, &e), 0);
	ck_assert_uint_eq(last[0], 8 + strlen(A) + 8 + 8 + strlen(B) + 8);
	ck_assert_uint_eq(last[1], last[0]);
	catalog_close(c);
}
END_TEST

START_TEST(failing_reads_and_allocations_come_through)
{
	put("a.safetensors",
	    "{" T("f", "F4", "[1,1,2]", "[2,3]") "," T("u", "X", "[2]", "[3,5]") "," T(
		    "w", "U8", "[2]",
		    "[0,2]") "," SHARDING("{" AT("w",
						 "[2]") "," AT("u",
							       "[0]") "," AT("f",
									     "[0,0,0]") "}") "}",
	    5);
	put("b.safetensors",
	    "{" T("w", "U8", "[2]", "[0,2]") "," SHARDING("{" AT("w", "[0]") "}") "}", 2);
	put(INDEX, MAP(IN("w", "a") "," IN("u", "a") "," IN("f", "a") "," IN("x", "sub/x")), 0);
	scan_failing(dir_fd);
}
END_TEST

SUITE(safetensors_dir, .setup = setup, .teardown = dir_teardown, .seconds = 60)
