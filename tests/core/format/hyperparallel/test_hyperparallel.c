/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "format/format.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "rng.h"
#include "scan_util.h"
#include "source/place.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- metadata, written without HyperParallel ---- */

#define PACKAGE "hyper_parallel.core.distributed_checkpoint"

/* An empty version or storage_value stands for the right one. Values are pickled bytes. */
struct hp {
	struct emit state, storage, planner;
	const char *version, *storage_value;
	bool planned;
};

static void hp_begin(struct hp *h)
{
	*h = (struct hp){ .state = EMIT_INIT(4, false),
			  .storage = EMIT_INIT(4, false),
			  .planner = EMIT_INIT(4, false) };
}

static void pairs(struct emit *m, const char *name, struct emit *of)
{
	emit_str(m, name);
	emit_op(m, OP_EMPTY_DICT);
	emit_op(m, OP_MARK);
	emit_bytes(m, of->b.data, of->b.len);
	emit_op(m, OP_SETITEMS);
}

static void hp_end(struct hp *h, const char *name)
{
	struct emit m = EMIT_INIT(4, false);

	emit_proto(&m);
	emit_object(&m, PACKAGE ".metadata", "Metadata");
	emit_attrs(&m);
	pairs(&m, "state_dict_metadata", &h->state);
	emit_str(&m, "planner_data");
	emit_op(&m, OP_NONE);
	if (h->planned)
		pairs(&m, "planner_data", &h->planner);
	if (h->storage_value) {
		emit_str(&m, "storage_data");
		emit_bytes(&m, h->storage_value, strlen(h->storage_value));
	} else {
		pairs(&m, "storage_data", &h->storage);
	}
	if (h->version) {
		emit_str(&m, "version");
		emit_bytes(&m, h->version, strlen(h->version));
	}
	emit_attrs_end(&m);
	emit_op(&m, OP_STOP);
	REQUIRE(!m.b.err && !h->state.b.err && !h->storage.b.err);
	put_file(dir_fd, name, m.b.data, m.b.len);
	buf_release(&m.b);
	buf_release(&h->state.b);
	buf_release(&h->storage.b);
	buf_release(&h->planner.b);
}

static void numbers(struct emit *m, size_t n, const uint64_t *v)
{
	emit_op(m, OP_MARK);
	for (size_t i = 0; i < n; i++)
		emit_int(m, (int64_t)v[i]);
	emit_op(m, OP_TUPLE);
}

/* boxes: count rows of offsets and sizes */
static void hp_tensor(struct hp *h, const char *fqn, const char *dtype, size_t n,
		      const uint64_t *shape, uint32_t count, const uint64_t *boxes)
{
	struct emit *m = &h->state;

	emit_str(m, fqn);
	emit_object(m, PACKAGE ".metadata", "TensorStorageMetadata");
	emit_attrs(m);
	emit_str(m, "properties");
	emit_object(m, PACKAGE ".metadata", "TensorProperties");
	emit_attrs(m);
	emit_str(m, "dtype");
	emit_str(m, dtype);
	emit_attrs_end(m);
	emit_str(m, "size");
	emit_size(m, n, shape);
	emit_str(m, "chunks");
	emit_op(m, OP_EMPTY_LIST);
	emit_op(m, OP_MARK);
	for (uint32_t i = 0; i < count; i++) {
		emit_object(m, PACKAGE ".metadata", "ChunkStorageMetadata");
		emit_attrs(m);
		emit_str(m, "offsets");
		numbers(m, n, boxes + i * 2 * n);
		emit_str(m, "sizes");
		emit_size(m, n, boxes + i * 2 * n + n);
		emit_attrs_end(m);
	}
	emit_op(m, OP_APPENDS);
	emit_attrs_end(m);
}

static void hp_object(struct hp *h, const char *fqn)
{
	emit_str(&h->state, fqn);
	emit_object(&h->state, PACKAGE ".metadata", "BytesStorageMetadata");
}

/* key: in the container; NULL: there is no such attribute; "": it is None. */
static void hp_stored(struct hp *h, const char *fqn, size_t n, const uint64_t *off,
		      const char *path, int64_t offset, int64_t length, const char *key)
{
	struct emit *m = &h->storage;

	emit_object(m, PACKAGE ".metadata", "MetadataIndex");
	emit_attrs(m);
	emit_str(m, "fqn");
	emit_str(m, fqn);
	emit_str(m, "offset");
	numbers(m, n, off);
	emit_attrs_end(m);
	emit_object(m, PACKAGE ".storage", "StorageInfo");
	emit_attrs(m);
	emit_str(m, "relative_path");
	emit_str(m, path);
	emit_str(m, "offset");
	emit_int(m, offset);
	emit_str(m, "length");
	emit_int(m, length);
	if (key) {
		emit_str(m, "tensor_key");
		if (*key)
			emit_str(m, key);
		else
			emit_op(m, OP_NONE);
	}
	emit_attrs_end(m);
}

/* ---- containers ---- */

#define FILE0 "_rank0_.safetensors"
#define FILE1 "_rank1_.safetensors"

/* A header of `len` bytes and `data` zeros. */
static void put_safetensors(const char *name, const char *header, size_t data)
{
	struct buf b = BUF_INIT(1 << 20);
	uint64_t len = strlen(header);

	for (int i = 0; i < 8; i++)
		buf_add(&b, &(uint8_t){ (uint8_t)(len >> (8 * i)) }, 1);
	buf_str(&b, header);
	while (data--)
		buf_add(&b, "", 1);
	REQUIRE(!b.err);
	put_file(dir_fd, name, b.data, b.len);
	buf_release(&b);
}

/* One member of an archive of {"w": tensor, 5: None}; returns where its storage begins. */
static uint64_t put_archive(const char *name, const struct saved *t, const char *root)
{
	struct emit m = EMIT_INIT(2, false);
	struct archive a = { 0 };
	uint64_t at = 0;

	emit_proto(&m);
	if (root) {
		emit_bytes(&m, root, strlen(root));
	} else {
		emit_op(&m, OP_EMPTY_DICT);
		emit_op(&m, OP_MARK);
		emit_int(&m, 5);
		emit_op(&m, OP_NONE);
		emit_str(&m, "w");
		emit_op(&m, OP_NONE); /* only the last value of a key counts */
		emit_str(&m, "w");
		emit_saved(&m, t);
		emit_op(&m, OP_SETITEMS);
	}
	emit_op(&m, OP_STOP);
	archive_add(&a, "data.pkl", m.b.data, m.b.len);
	if (t)
		archive_add(&a, "byteorder", t->big ? "big" : "little", t->big ? 3 : 6);
	if (t && t->storage) {
		archive_add(&a, "data/0", t->storage, t->storage_bytes);
		at = a.members[a.n - 1].data;
	}
	archive_end(&a);
	put_file(dir_fd, name, a.b.data, a.b.len);
	archive_release(&a);
	buf_release(&m.b);
	return at;
}

/* ---- looking at it ---- */

static int scan(struct catalog **ret, struct ckpt_err *e)
{
	return scan_dir(dir_fd, &(struct scan_opts){ 0 }, ret, e);
}

static void expect(const char *want)
{
	scan_expect(dir_fd, want);
}

static void expect_refused(int code, const char *msg)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(scan(&c, &e), -code);
	ck_assert_str_eq(e.msg, msg);
	ck_assert_ptr_null(c);
}

#define U(...) \
	(const uint64_t[]) \
	{ \
		__VA_ARGS__ \
	}

/* ---- which files ---- */

static const struct {
	const char *files; /* to create, separated by spaces; .metadata with a module in it */
	const char *module;
	const char *format; /* or NULL */
	const char *found;  /* the files, or the message */
} directories[] = {
	{ ".metadata", "hyper_parallel.core.checkpoint.metadata", "hyperparallel", ".metadata " },
	{ ".metadata", "vendor.hyper_parallel.metadata", "hyperparallel", ".metadata " },
	{ ".metadata", "hyper_parallel", "hyperparallel", ".metadata " },
	{ ".metadata", "torch.distributed.checkpoint.metadata", "dcp", ".metadata " },
	{ ".metadata", "hyper_parallelism.metadata", "dcp", ".metadata " },
	{ ".metadata", "", "dcp", ".metadata " },
	{ ".metadata 0.metadata " FILE0, "torch.x", "dcp", ".metadata " },
	{ ".metadata x.bytes 1.metadata a.layout b.safetensors " FILE0, "hyper_parallel.x",
	  "hyperparallel", ".metadata _rank0_.safetensors b.safetensors " },
	{ "0.metadata", NULL, "hyperparallel", "0.metadata " },
	{ "0.metadata 1.metadata", "hyper_parallel.x", "hyperparallel", "0.metadata 1.metadata " },
	{ "0.metadata", "torch.x", NULL, "not a checkpoint: found '0.metadata'; " },
	{ "0.metadata 1.metadata a.safetensors", "torch.x", "safetensors", "a.safetensors " },
	{ ".rank10_metadata .rank9_metadata a.bytes " FILE1, NULL, "hyperparallel",
	  ".rank9_metadata .rank10_metadata _rank1_.safetensors a.bytes " },
	{ ".metadata_rank7", NULL, "hyperparallel", ".metadata_rank7 " },
	{ "__0.metadata", NULL, "dcp", "__0.metadata " },
	{ ".rank_metadata .rank-1_metadata .metadata_rank 1metadata 99999999999.metadata", NULL,
	  NULL,
	  "not a checkpoint: found '.metadata_rank', '.rank-1_metadata', '.rank_metadata', ...; " },
	{ FILE0, NULL, NULL,
	  ".metadata is missing although _rankN_.safetensors files are there: the save was "
	  "interrupted" },
	{ "model.safetensors", NULL, "safetensors", "model.safetensors " },
};

START_LOOP_TEST(a_checkpoint_is_known_by_its_metadata_files, ARRAY_LEN(directories))
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	autofree char *files = strdup(directories[_i].files);
	const char *module = directories[_i].module, *name = directories[_i].format;
	struct emit m = EMIT_INIT(_i % 2 ? 2 : 4, true);
	struct name_list l = { 0 };
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };
	char found[200] = "", *save;

	emit_proto(&m);
	if (module && *module)
		emit_object(&m, module, "Metadata");
	for (char *s = strtok_r(files, " ", &save); s; s = strtok_r(NULL, " ", &save))
		put_file(dir_fd, s, m.b.data, m.b.len);
	ck_assert_int_eq(format_detect(place, NULL, &f, &l, &e), name ? 0 : -ENOENT);
	for (size_t i = 0; i < l.n; i++)
		(void)snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s ", l.v[i]);
	if (name)
		ck_assert_str_eq(found, directories[_i].found);
	else /* the message goes on with how to recognise the other formats */
		ck_assert_mem_eq(e.msg, directories[_i].found, strlen(directories[_i].found));
	if (name)
		ck_assert_str_eq(f->name, name);
	name_list_release(&l);
	buf_release(&m.b);
}
END_TEST

/* Its metadata files have the same names. */
START_TEST(a_checkpoint_of_paddle_is_named)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	struct emit m = EMIT_INIT(4, true);
	struct name_list l = { 0 };
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };

	emit_proto(&m);
	emit_object(&m, "paddle.distributed.checkpoint.metadata", "Metadata");
	put_file(dir_fd, "0.metadata", m.b.data, m.b.len);
	put_file(dir_fd, "0_0.distcp", "", 0);
	ck_assert_int_eq(format_detect(place, NULL, &f, &l, &e), -ERR_UNSUPPORTED);
	ck_assert_mem_eq(e.msg, "it is a PaddlePaddle checkpoint ('0_0.distcp' is in it)", 55);
	name_list_release(&l);
	buf_release(&m.b);
}
END_TEST

START_TEST(what_is_no_file_is_not_listed)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	struct name_list l = { 0 };
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };

	put_file(dir_fd, "0.metadata", "", 0);
	REQUIRE(!mkdirat(dir_fd, "1.metadata", 0700));
	REQUIRE(!mkdirat(dir_fd, FILE0, 0700));
	REQUIRE(!symlinkat("nowhere", dir_fd, FILE1));
	ck_assert_int_eq(format_detect(place, NULL, &f, &l, &e), 0);
	ck_assert_uint_eq(l.n, 1);
	name_list_release(&l);
	ck_assert_int_eq(format_hyperparallel.probe(place, "0.metadata", &l, &e), 0);
}
END_TEST

/* ---- reading ---- */

START_TEST(chunks_are_where_the_container_says)
{
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", "torch.float32", 2, U(4, 2), 2, U(0, 0, 2, 2, 2, 0, 2, 2));
	hp_tensor(&h, "n", "Int64", 0, U(0), 1, U(0));
	hp_object(&h, "o");
	hp_stored(&h, "w", 2, U(2, 0), FILE1, 0, -1, "w.__dcp_chunk_0");
	hp_stored(&h, "w", 2, U(0, 0), FILE0, 0, -1, "");
	hp_stored(&h, "n", 0, U(0), FILE1, 0, -1, NULL);
	hp_stored(&h, "o", 0, U(0), "o_rank0.bytes", 3, 7, "");
	hp_end(&h, ".metadata");
	put_safetensors(FILE0,
			"{\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16);
	put_safetensors(FILE1,
			"{\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
			"\"w.__dcp_chunk_0\":{\"dtype\":\"F32\",\"shape\":[2,2],"
			"\"data_offsets\":[8,24]}}",
			24);
	expect("n int64 [] complete: []+[]@_rank1_.safetensors:131+8,raw; "
	       "w float32 [4,2] complete: [0,0]+[2,2]@_rank0_.safetensors:65+16,raw "
	       "[2,0]+[2,2]@_rank1_.safetensors:139+16,raw; "
	       "o object: o_rank0.bytes:3+7,raw; ");
}
END_TEST

static void one_chunk(const char *dtype, const char *key)
{
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", dtype, 2, U(2, 3), 1, U(0, 0, 2, 3));
	hp_stored(&h, "w", 2, U(0, 0), FILE0, 0, -1, key);
	hp_end(&h, ".metadata");
}

static const struct {
	const char *said;
	const char *read;
} dtypes[] = {
	{ "torch.bfloat16", "bfloat16" },
	{ "BFloat16", "bfloat16" },
	{ "mindspore.float16", "float16" },
	{ "UInt8", "uint8" },
	{ "Bool", "bool" },
	{ "Complex64", "complex64" },
	{ "torch.float8_e4m3fn", "float8_e4m3fn" },
	{ "Float8E4M3FN", "float8_e4m3fn" },
	{ "float8e5m2", "float8_e5m2" },
	{ "Float8_E4M3FN", "float8_e4m3fn" },
	{ "unknown", NULL },
	{ "torch.", NULL },
	{ "", NULL },
	{ "torch.float", NULL },
	{ "torch.float322", NULL },
	{ "torch.float_32", NULL },
	{ "torch._float32", NULL },
};

START_LOOP_TEST(dtypes_are_text_of_either_framework, ARRAY_LEN(dtypes))
{
	char want[200];

	one_chunk(dtypes[_i].said, NULL);
	(void)snprintf(want, sizeof(want),
		       dtypes[_i].read ? "w %s [2,3] incomplete:; "
				       : "read '.metadata': 'w': dtype '%s' is not known",
		       dtypes[_i].read ? dtypes[_i].read : dtypes[_i].said);
	if (dtypes[_i].read) {
		struct hp h;

		hp_begin(&h); /* without a chunk, so that no container is opened */
		hp_tensor(&h, "w", dtypes[_i].said, 2, U(2, 3), 0, U(0));
		hp_end(&h, ".metadata");
		expect(want);
	} else {
		expect_refused(ERR_UNSUPPORTED, want);
	}
}
END_TEST

static const int64_t size23[] = { 2, 3 };

START_LOOP_TEST(a_tensor_of_an_archive_may_lie_in_any_way, 4)
{
	static const int64_t across[] = { 1, 2 };
	uint8_t storage[64] = { 0 };
	struct saved t = { .how = REBUILD_V2,
			   .dtype = CKPT_DTYPE_F32,
			   .n_dims = 2,
			   .size = size23,
			   .offset = 3,
			   .storage = storage,
			   .storage_bytes = sizeof(storage) };
	const char *encoding = "raw";
	char want[300];
	uint64_t at;

	if (_i == 1) {
		t.stride = across;
		encoding = "raw:strides=1,2";
	} else if (_i == 2) {
		t.big = true;
		encoding = "raw:be";
	} else if (_i == 3) {
		t.how = REBUILD_PARAMETER;
		t.neg = true;
		encoding = "raw:neg";
	}
	at = put_archive(FILE0, &t, NULL) + 12;
	one_chunk("torch.float32", NULL);
	(void)snprintf(want, sizeof(want),
		       "w float32 [2,3] complete: [0,0]+[2,3]@_rank0_.safetensors:%llu+24,%s; ",
		       (unsigned long long)at, encoding);
	expect(want);
}
END_TEST

static const char w23[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}";

START_LOOP_TEST(without_planner_data_every_name_is_a_key, 2)
{
	struct hp h;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	hp_begin(&h);
	hp_tensor(&h, "a.b", "torch.uint8", 0, U(0), 0, U(0));
	hp_object(&h, "a.c.d");
	h.planned = _i;
	emit_str(&h.planner, "a.b");
	emit_str(&h.planner, "a");
	emit_str(&h.planner, "b");
	emit_op(&h.planner, OP_TUPLE2);
	emit_str(&h.planner, "a.c.d");
	emit_str(&h.planner, "a.c");
	emit_str(&h.planner, "d");
	emit_op(&h.planner, OP_TUPLE2);
	hp_end(&h, ".metadata");
	ck_assert_msg(!scan(&c, &e), "%s", e.msg);
	ck_assert_uint_eq(catalog_tensors(c, &n)[0].top, _i ? 1 : 3);
	ck_assert_uint_eq(catalog_objects(c, &n)[0].top, _i ? 3 : 5);
	catalog_close(c);
}
END_TEST

START_LOOP_TEST(the_known_versions_are_read, 3)
{
	static const char *const versions[] = { NULL,
						"\x8c\3"
						"1.0",
						"\x8c\3"
						"2.0" };
	struct hp h;

	hp_begin(&h);
	hp_object(&h, "o");
	h.version = versions[_i];
	hp_end(&h, ".metadata");
	expect("o object: lost; ");
}
END_TEST

/* An empty chunk and its neighbour have the same key; only the sizes tell which item is whose. */
START_LOOP_TEST(an_empty_chunk_does_not_take_its_neighbours_item, 3)
{
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", "torch.uint8", 1, U(4), 3, U(0, 2, 2, 0, 2, 2));
	/* In the listed order, in another order, or without an item for the empty one. */
	if (_i == 1)
		hp_stored(&h, "w", 1, U(2), FILE0, 0, -1, "b");
	hp_stored(&h, "w", 1, U(0), FILE0, 0, -1, "a");
	if (_i < 2)
		hp_stored(&h, "w", 1, U(2), FILE0, 0, -1, "none");
	if (_i != 1)
		hp_stored(&h, "w", 1, U(2), FILE0, 0, -1, "b");
	hp_end(&h, ".metadata");
	put_safetensors(FILE0,
			"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
			"\"none\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},"
			"\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
			4);
	expect("w uint8 [4] complete: [0]+[2]@_rank0_.safetensors:168+2,raw "
	       "[2]+[2]@_rank0_.safetensors:170+2,raw; ");
}
END_TEST

static void replicas(void)
{
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", "torch.float32", 2, U(2, 3), 2, U(0, 0, 2, 3, 0, 0, 2, 3));
	hp_stored(&h, "w", 2, U(0, 0), FILE0, 0, -1, NULL);
	hp_stored(&h, "w", 2, U(0, 0), FILE1, 0, -1, NULL);
	hp_end(&h, ".metadata");
}

START_LOOP_TEST(of_replicas_one_that_is_there_is_read, 3)
{
	replicas();
	if (_i != 1)
		put_safetensors(FILE0, w23, 24);
	if (_i != 0)
		put_safetensors(FILE1, w23, 24);
	expect(_i == 1 ? "w float32 [2,3] complete: [0,0]+[2,3]@_rank1_.safetensors:65+24,raw; "
		       : "w float32 [2,3] complete: [0,0]+[2,3]@_rank0_.safetensors:65+24,raw; ");
}
END_TEST

START_LOOP_TEST(chunks_of_a_container_that_is_not_there_are_told_by_it, 3)
{
	one_chunk("torch.float32", NULL);
	if (_i == 1)
		REQUIRE(!mkdirat(dir_fd, FILE0, 0700));
	if (_i == 2)
		REQUIRE(!symlinkat("/dev/null", dir_fd, FILE0));
	expect("w float32 [2,3] complete: [0,0]+[2,3]@_rank0_.safetensors:0+24,raw; ");
}
END_TEST

START_TEST(a_tensor_that_is_listed_but_stored_nowhere_is_incomplete)
{
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", "torch.uint8", 1, U(4), 1, U(0, 4));
	hp_object(&h, "o");
	hp_stored(&h, "w", 1, U(0), "a.bytes", 0, 4, NULL); /* an object's item */
	hp_stored(&h, "o", 0, U(0), FILE0, 0, -1, "w");	    /* a tensor's */
	hp_end(&h, ".metadata");
	put_safetensors(FILE0, "{\"w\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1);
	expect("w uint8 [4] incomplete:; o object: lost; ");
}
END_TEST

/* ---- ranks ---- */

/* Half of w, and an object, by one rank. */
static uint64_t object_bytes = 3; /* of put_rank's next */

static void put_rank(const char *name, uint64_t from, const char *dtype, const char *bytes,
		     const char *content)
{
	const char *file = from ? FILE1 : FILE0;
	char header[100];
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", dtype, 1, U(4), 1, U(from, 2));
	hp_stored(&h, "w", 1, U(from), file, 0, -1, NULL);
	hp_object(&h, "o");
	hp_stored(&h, "o", 0, U(0), bytes, 1, object_bytes, NULL);
	object_bytes = 3;
	hp_end(&h, name);
	(void)snprintf(header, sizeof(header),
		       "{\"w\":{\"dtype\":\"%s\",\"shape\":[2],\"data_offsets\":[0,2]}}",
		       strcmp(dtype, "torch.int8") != 0 ? "U8" : "I8");
	put_safetensors(file, header, 2);
	if (content)
		put_file(dir_fd, bytes, content, strlen(content));
}

START_LOOP_TEST(ranks_metadata_of_any_name_is_joined, 4)
{
	static const char *const names[][2] = { { ".rank0_metadata", ".rank1_metadata" },
						{ "0.metadata", "1.metadata" },
						{ ".metadata_rank0", ".metadata_rank1" },
						{ ".rank9_metadata", "10.metadata" } };

	put_rank(names[_i][0], 0, "torch.uint8", "a.bytes", "xsame");
	put_rank(names[_i][1], 2, "UInt8", "b.bytes", "ysame");
	expect("w uint8 [4] complete: [0]+[2]@_rank0_.safetensors:61+2,raw "
	       "[2]+[2]@_rank1_.safetensors:61+2,raw; o object: a.bytes:1+3,raw; ");
}
END_TEST

START_LOOP_TEST(objects_of_ranks_are_one_only_if_they_are_the_same, 5)
{
	/* Other bytes; a file that ends early; a file that is missing; one that the index does not
	 * name; fewer bytes. */
	static const char *const second[][2] = { { "b.bytes", "ysum" },
						 { "b.bytes", "ysa" },
						 { "b.bytes", NULL },
						 { "b", "ysame" },
						 { "b.bytes", "ysame" } };
	uint64_t second_bytes = _i == 4 ? 2 : 3;
	char want[300];

	put_rank("0.metadata", 0, "torch.uint8", "a.bytes", "xsame");
	object_bytes = second_bytes;
	put_rank("1.metadata", 2, "torch.uint8", second[_i][0], second[_i][1]);
	(void)snprintf(want, sizeof(want),
		       "w uint8 [4] complete: [0]+[2]@_rank0_.safetensors:61+2,raw "
		       "[2]+[2]@_rank1_.safetensors:61+2,raw; o@rank0 object: a.bytes:1+3,raw; "
		       "o@rank1 object: %s:1+%d,raw; ",
		       second[_i][0], (int)second_bytes);
	expect(want);
}
END_TEST

/* All of w, by one rank. */
static void put_whole(unsigned rank, const char *data)
{
	static const char header[] =
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
	const char *file = rank ? FILE1 : FILE0;
	uint8_t bytes[8 + sizeof(header) - 1 + 2] = { sizeof(header) - 1 };
	char name[40];
	struct hp h;

	hp_begin(&h);
	hp_tensor(&h, "w", "torch.uint8", 1, U(2), 1, U(0, 2));
	hp_stored(&h, "w", 1, U(0), file, 0, -1, NULL);
	(void)snprintf(name, sizeof(name), "%u.metadata", rank);
	hp_end(&h, name);
	memcpy(bytes + 8, header, sizeof(header) - 1);
	if (data)
		memcpy(bytes + 8 + sizeof(header) - 1, data, 2);
	put_file(dir_fd, file, bytes, data ? sizeof(bytes) : 0);
}

START_TEST(whole_tensors_of_other_values_stay_apart)
{
	put_whole(0, "ab");
	put_whole(1, "ab");
	expect("w uint8 [2] complete: [0]+[2]@_rank0_.safetensors:61+2,raw; ");
	put_whole(1, "ac");
	expect("w@rank0 uint8 [2] complete: [0]+[2]@_rank0_.safetensors:61+2,raw; "
	       "w@rank1 uint8 [2] complete: [0]+[2]@_rank1_.safetensors:61+2,raw; ");
	scan_failing(dir_fd);
	put_whole(1, NULL); /* reading reports the damage */
	REQUIRE(!unlinkat(dir_fd, FILE1, 0));
	expect("w uint8 [2] complete: [0]+[2]@_rank0_.safetensors:61+2,raw; ");
}
END_TEST

START_TEST(a_rank_without_metadata_leaves_a_hole)
{
	put_rank("1.metadata", 2, "torch.uint8", "a.bytes", "xsame");
	expect("w uint8 [4] incomplete: [2]+[2]@_rank1_.safetensors:61+2,raw; "
	       "o object: a.bytes:1+3,raw; ");
}
END_TEST

START_TEST(ranks_that_disagree_stay_apart)
{
	put_rank("0.metadata", 0, "torch.uint8", "a.bytes", "xsame");
	put_rank("1.metadata", 2, "torch.int8", "b.bytes", "ysame");
	expect("w@rank0 uint8 [4] incomplete: [0]+[2]@_rank0_.safetensors:61+2,raw; "
	       "w@rank1 int8 [4] incomplete: [2]+[2]@_rank1_.safetensors:61+2,raw; "
	       "o object: a.bytes:1+3,raw; ");
}
END_TEST

/* ---- refusals ---- */

static void version_3(void)
{
	struct hp h;

	hp_begin(&h);
	h.version = "\x8c\3"
		    "3.0";
	hp_end(&h, ".metadata");
}

static void version_2(void)
{
	struct hp h;

	hp_begin(&h);
	h.version = "K\2";
	hp_end(&h, ".metadata");
}

static void legacy(void)
{
	struct hp h;

	hp_begin(&h);
	h.storage_value = "N";
	hp_end(&h, ".metadata");
}

static void odd_storage(void)
{
	struct hp h;

	hp_begin(&h);
	h.storage_value = "]";
	hp_end(&h, ".metadata");
}

static void odd_entry(void)
{
	struct hp h;

	hp_begin(&h);
	h.storage_value = "}(K\1K\2u";
	hp_end(&h, ".metadata");
}

static void two_saves(void)
{
	put_rank("0.metadata", 0, "torch.uint8", "a.bytes", NULL);
	put_rank(".rank0_metadata", 0, "torch.uint8", "a.bytes", NULL);
}

static void no_such_key(void)
{
	one_chunk("torch.float32", "x");
	put_safetensors(FILE0, w23, 24);
}

static void other_shape(void)
{
	one_chunk("torch.float32", NULL);
	put_safetensors(FILE0,
			"{\"w\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]}}", 24);
}

static void other_dtype(void)
{
	one_chunk("torch.int32", NULL);
	put_safetensors(FILE0, w23, 24);
}

/* Its size was taken for that of the items behind it. */
static void unknown_dtype(void)
{
	one_chunk("torch.float32", NULL);
	put_safetensors(FILE0, "{\"w\":{\"dtype\":\"X9\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
			24);
}

static void other_dimensions(void)
{
	one_chunk("torch.float32", NULL);
	put_safetensors(FILE0, "{\"w\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}",
			24);
}

static void cut_short(void)
{
	one_chunk("torch.float32", NULL);
	put_safetensors(FILE0, w23, 23);
}

static void nothing_known(void)
{
	one_chunk("torch.float32", NULL);
	put_file(dir_fd, FILE0, "nonsense at length", 18);
}

static void stored_at(const char *path, int64_t offset, int64_t length, bool object)
{
	struct hp h;

	hp_begin(&h);
	if (object)
		hp_object(&h, "w");
	else
		hp_tensor(&h, "w", "torch.uint8", 1, U(4), 1, U(0, 4));
	hp_stored(&h, "w", object ? 0 : 1, U(0), path, offset, length, NULL);
	hp_end(&h, ".metadata");
}

static void outside(void)
{
	stored_at("../" FILE0, 0, -1, false);
}

static void in_a_directory(void)
{
	stored_at("a/" FILE0, 0, -1, false);
}

static void other_name(void)
{
	stored_at("_rank0_.distcp", 0, -1, false);
}

static void object_outside(void)
{
	stored_at("/etc/passwd", 0, 1, true);
}

static void length_minus_2(void)
{
	stored_at("a.bytes", 0, -2, true);
}

static void no_data_pkl(void)
{
	struct archive a = { 0 };

	one_chunk("torch.float32", NULL);
	archive_add(&a, "data/0", "", 0);
	archive_end(&a);
	put_file(dir_fd, FILE0, a.b.data, a.b.len);
	archive_release(&a);
}

static void no_dict(void)
{
	one_chunk("torch.float32", NULL);
	(void)put_archive(FILE0, NULL, "K\1");
}

static void no_tensor(void)
{
	one_chunk("torch.float32", "x");
	(void)put_archive(FILE0, NULL, "}\x8c\1xK\1s");
}

static const struct saved f32_23 = {
	.how = REBUILD_V2, .dtype = CKPT_DTYPE_F32, .n_dims = 2, .size = size23, .storage_bytes = 24
};

static void no_storage(void)
{
	one_chunk("torch.float32", NULL);
	(void)put_archive(FILE0, &f32_23, NULL);
}

static void small_storage(void)
{
	struct saved t = f32_23;

	t.storage = "abcdefghijklmnopqrstuvwxyz";
	t.claimed = 1000 + 1;
	one_chunk("torch.float32", NULL);
	(void)put_archive(FILE0, &t, NULL);
}

static void view_outside(void)
{
	struct saved t = f32_23;

	t.storage = "abcdefghijklmnopqrstuvwxyz";
	t.offset = 1;
	one_chunk("torch.float32", NULL);
	(void)put_archive(FILE0, &t, NULL);
}

static const struct {
	void (*make)(void);
	int code;
	const char *msg;
} refusals[] = {
	{ version_3, ERR_UNSUPPORTED,
	  "read '.metadata': Metadata has version '3.0'; known versions are 1.0 and 2.0" },
	{ version_2, ERR_CORRUPT, "read '.metadata': Metadata's version is not a string" },
	{ legacy, ERR_UNSUPPORTED,
	  "read '.metadata': Metadata's storage_data is None: an old save that does not say which "
	  "rank's file has what" },
	{ odd_storage, ERR_CORRUPT, "read '.metadata': Metadata has no storage_data" },
	{ odd_entry, ERR_CORRUPT,
	  "read '.metadata': storage_data has an entry that is not MetadataIndex: StorageInfo" },
	{ two_saves, ERR_CORRUPT,
	  "'.rank0_metadata' and '0.metadata' are both of rank 0: two saves in one directory" },
	{ no_such_key, ERR_CORRUPT, "'w': '_rank0_.safetensors' has no tensor 'x'" },
	{ other_shape, ERR_CORRUPT,
	  "'w': the metadata says that its chunk at [0,0] is float32 [2,3], in "
	  "'_rank0_.safetensors' it is float32 [3,2]" },
	{ other_dtype, ERR_CORRUPT,
	  "'w': the metadata says that its chunk at [0,0] is int32 [2,3], in "
	  "'_rank0_.safetensors' it is float32 [2,3]" },
	{ unknown_dtype, ERR_UNSUPPORTED, "'w' in '_rank0_.safetensors': dtype 'X9' is not known" },
	{ other_dimensions, ERR_CORRUPT,
	  "'w': 2 dimensions in the metadata, 1 in '_rank0_.safetensors'" },
	{ cut_short, ERR_CORRUPT,
	  "read '_rank0_.safetensors': safetensors header: the data has 24 bytes, but the file has "
	  "23" },
	{ nothing_known, ERR_CORRUPT,
	  "read '_rank0_.safetensors': no safetensors header: its length would be "
	  "7310308002159816558" },
	{ outside, ERR_CORRUPT,
	  "'w': file name '../_rank0_.safetensors' refused: an element of it is empty, '.' or "
	  "'..'" },
	{ in_a_directory, ERR_UNSUPPORTED,
	  "'w': 'a/_rank0_.safetensors' is not a .safetensors file beside the metadata" },
	{ other_name, ERR_UNSUPPORTED,
	  "'w': '_rank0_.distcp' is not a .safetensors file beside the metadata" },
	{ object_outside, ERR_CORRUPT, "'w': file name '/etc/passwd' refused: absolute path" },
	{ length_minus_2, ERR_CORRUPT,
	  "read '.metadata': 'w': its item's offset and length are not numbers below 2^63" },
	{ no_data_pkl, ERR_CORRUPT, "read '_rank0_.safetensors': the archive has no data.pkl" },
	{ no_dict, ERR_CORRUPT,
	  "read '_rank0_.safetensors': data.pkl does not hold a dict of tensors" },
	{ no_tensor, ERR_CORRUPT, "'x' in '_rank0_.safetensors': data.pkl does not hold a tensor" },
	{ no_storage, ERR_CORRUPT, "'w' in '_rank0_.safetensors': the archive has no data/0" },
	{ small_storage, ERR_CORRUPT,
	  "'w' in '_rank0_.safetensors': data/0 has 24 bytes, but data.pkl says 4000" },
	{ view_outside, ERR_CORRUPT,
	  "'w' in '_rank0_.safetensors': its view reaches outside its storage of 24 bytes" },
};

START_LOOP_TEST(what_cannot_be_read_is_refused_with_a_sentence, ARRAY_LEN(refusals))
{
	refusals[_i].make();
	expect_refused(refusals[_i].code, refusals[_i].msg);
}
END_TEST

/* ---- damage ---- */

static void some_checkpoint(int which)
{
	static const uint8_t storage[24] = { 1, 2, 3 };
	struct saved t = f32_23;

	t.storage = storage;
	if (which == 0) {
		replicas();
		(void)put_archive(FILE0, &t, NULL);
		put_safetensors(FILE1, w23, 24);
	} else {
		put_rank("0.metadata", 0, "torch.uint8", "a.bytes", "xsame");
		put_rank("1.metadata", 2, "torch.uint8", "b.bytes", "xsame");
	}
}

START_FEW_TEST(flipped_bits_give_an_error_or_a_checkpoint, 2, 1)
{
	some_checkpoint(0);
	scan_flipped(dir_fd, _i ? FILE0 : ".metadata", scan, 600, 100);
}
END_TEST

START_LOOP_TEST(failing_reads_and_allocations_come_through, 2)
{
	some_checkpoint(_i);
	scan_failing(dir_fd);
}
END_TEST

SUITE(hyperparallel, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
