/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "dir_util.h"
#include "fault.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "index/catalog_query.h"
#include "index/catalog_schema.h"
#include "model/box.h"
#include "path_util.h"
#include "rng.h"
#include "suites.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char path[4200];

static void setup(void)
{
	dir_setup();
	(void)snprintf(path, sizeof(path), "%s/index.sqlite", dir);
}

/* ---- a sample of everything ---- */

struct sample {
	const char *fqn;
	size_t fqn_len;
	enum ckpt_dtype dtype;
	size_t n;
	uint64_t shape[3];
	uint32_t count;
	const uint64_t *boxes;
};

#define FQN(s) s, sizeof(s) - 1
#define LONG50 "0123456789.123456789.123456789.123456789.123456789"
#define LIST(...) \
	(const uint64_t[]) \
	{ \
		__VA_ARGS__ \
	}

/* In natural order. */
static const struct sample samples[] = {
	{ FQN(""), CKPT_DTYPE_U8, 1, { 2 }, 1, LIST(0, 2) },
	{ FQN(LONG50 LONG50 LONG50 LONG50 LONG50 LONG50), CKPT_DTYPE_F64, 1, { 1 }, 1, LIST(0, 1) },
	{ FQN("a"),
	  CKPT_DTYPE_F32,
	  2,
	  { 4, 6 },
	  4,
	  LIST(0, 0, 2, 3, 0, 3, 2, 3, 2, 0, 2, 3, 2, 3, 2, 3) },
	{ FQN("a\0b"), CKPT_DTYPE_C128, 0, { 0 }, 1, LIST(0) },
	{ FQN("a.b"), CKPT_DTYPE_F16, 1, { 7 }, 3, LIST(0, 3, 3, 1, 4, 3) },
	{ FQN("a/../b\n"),
	  CKPT_DTYPE_BF16,
	  2,
	  { 3, 3 },
	  5,
	  LIST(2, 1, 1, 2, 0, 0, 1, 2, 1, 1, 1, 1, 1, 0, 2, 1, 0, 2, 2, 1) }, /* no grid */
	{ FQN("empty"), CKPT_DTYPE_I64, 3, { 2, 0, 5 }, 0, NULL },
	{ FQN("hole"), CKPT_DTYPE_I8, 1, { 100 }, 2, LIST(0, 50, 60, 40) },
	{ FQN("layers.2"), CKPT_DTYPE_F8_E4M3FN, 1, { 1 }, 1, LIST(0, 1) },
	{ FQN("layers.10"), CKPT_DTYPE_BOOL, 1, { 1 }, 1, LIST(0, 1) },
	{ FQN("overlap"), CKPT_DTYPE_I16, 1, { 10 }, 2, LIST(4, 6, 0, 5) },
	{ FQN("surrogate \xed\xb2\x80 and \xf0\x9f\x98\x80"),
	  CKPT_DTYPE_U64,
	  1,
	  { 3 },
	  3,
	  LIST(2, 1, 0, 1, 1, 1) },
};
enum { N_SAMPLES = ARRAY_LEN(samples) };

/* The path of a nested name: two steps. Only the long name is that of a flat state dict. */
static const uint8_t *path_of(const struct sample *s, uint8_t room[2 * CATALOG_PATH_NUMBER])
{
	const char *dot = memchr(s->fqn, '.', s->fqn_len);

	if (s->fqn_len == 300)
		return catalog_path_flat;
	if (!dot)
		return NULL;
	(void)catalog_path_put_step(room + catalog_path_put_head(room, 2, false),
				    (size_t)(dot - s->fqn), false);
	return room;
}

static int add_sample(struct catalog_writer *w, const struct sample *s, struct ckpt_err *e)
{
	static const char *const files[] = { "__0_0.distcp", "sub/__1_0.distcp", "__2_0.distcp" };
	static const char *const encodings[] = { "dcp", "dcp+stream.zstd/1" };
	static const uint64_t before[] = { 24 };
	uint8_t room[2 * CATALOG_PATH_NUMBER];
	struct chunk_loc locs[8];
	struct tensor_chunks t = { .fqn = s->fqn,
				   .fqn_len = s->fqn_len,
				   .path = path_of(s, room),
				   .dtype = s->dtype,
				   .n_dims = s->n,
				   .shape = s->shape,
				   .n_before = 1, /* right for (4, 6), and wrong for the others */
				   .before = before,
				   .count = s->count,
				   .boxes = s->boxes,
				   .locs = locs };
	int rc = 0;

	for (uint32_t i = 0; !rc && i < s->count; i++) {
		const char *file = files[i % 3];

		locs[i] = (struct chunk_loc){ .offset = 1000 * (uint64_t)i + s->fqn_len,
					      .length = 700 + i };
		rc = catalog_add_source(w, file, strlen(file), &locs[i].file, e);
		if (!rc)
			rc = catalog_add_encoding(w, encodings[i % 2], &locs[i].encoding, e);
	}
	return rc ? rc : catalog_add_tensor(w, &t, e);
}

static int add_objects(struct catalog_writer *w, struct ckpt_err *e)
{
	struct object_item step = { FQN("step"), catalog_path_flat,
				    .loc = { .offset = 5, .length = 1261 } };
	struct object_item a = { FQN("a"), .path = NULL }; /* a tensor may have the same name */
	static const uint8_t lost_path[] = { 4, 8 };	   /* lost|it */
	struct object_item lost = { FQN("lost.it"), lost_path, .loc = { .file = CATALOG_NO_FILE } };
	struct object_item text = { FQN("text"), catalog_path_flat,
				    .loc = { .file = CATALOG_NO_FILE, .offset = 7 },
				    .text = "a\0b\n", .text_len = 4 };
	struct object_item refused = { FQN("refused"), .loc = { .file = CATALOG_NO_FILE },
				       .fault = "it is of another world" };
	int rc = catalog_add_source(w, "__0_0.distcp", 12, &step.loc.file, e);

	if (!rc)
		rc = catalog_add_encoding(w, "dcp", &step.loc.encoding, e);
	if (!rc)
		rc = catalog_add_object(w, &step, e);
	a.loc = step.loc;
	a.loc.length = INT64_MAX - 5;
	if (!rc)
		rc = catalog_add_object(w, &a, e);
	if (!rc)
		rc = catalog_add_object(w, &text, e);
	if (!rc)
		rc = catalog_add_object(w, &refused, e);
	text.fqn = "nothing";
	text.fqn_len = 7;
	text.text_len = 0;
	if (!rc)
		rc = catalog_add_object(w, &text, e);
	return rc ? rc : catalog_add_object(w, &lost, e);
}

/* where NULL: in memory. Tensors in an order of their own. */
static int build(const char *where, struct catalog **ret, struct ckpt_err *e)
{
	const struct place_seen seen = { .size = 4711, .id = { 3, { 1, 0, 255 } } };
	const struct digest hash = { 0x0123456789abcdef, 0xfedcba9876543210 };
	struct catalog_writer *w = NULL;
	struct chunk_loc loc;
	int rc = catalog_writer_new(where, "dcp", "/some/where", &w, e);

	for (size_t i = 0; !rc && i < N_SAMPLES; i++)
		rc = add_sample(w, &samples[(i * 5 + 3) % N_SAMPLES], e);
	if (!rc)
		rc = add_objects(w, e);
	if (!rc)
		rc = catalog_add_inline(w, "kept in it", 10, &loc, e);
	if (!rc)
		rc = catalog_add_metadata(w, "__1.metadata", &seen, &hash, e);
	if (!rc)
		rc = catalog_add_metadata(w, "__0.metadata", &seen, &hash, e);
	if (!rc)
		rc = catalog_writer_finish(w, ret, e);
	catalog_writer_free(w);
	return rc;
}

/* ---- everything that can be read, as text ---- */

static void show_u64s(struct buf *b, const uint64_t *v, size_t n)
{
	buf_json_u64s(b, v, n);
	buf_str(b, " ");
}

static int show_map(struct buf *b, struct catalog *c, const struct catalog_tensor *t,
		    struct ckpt_err *e)
{
	autofree struct chunkmap *m = NULL;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	int rc = catalog_load_map(c, t, &m, e);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < m->count; i++) {
		const struct chunk_loc *l = &m->locs[i];

		chunkmap_box(m, i, off, len);
		buf_str(b, "  ");
		show_u64s(b, off, t->n_dims);
		show_u64s(b, len, t->n_dims);
		show_u64s(b, (const uint64_t[]){ l->file, l->offset, l->length, l->encoding }, 4);
		buf_str(b, "\n");
	}
	return 0;
}

/* Returns 0, or the first error of a chunk map. */
static int show(struct buf *b, struct catalog *c, struct ckpt_err *e)
{
	size_t n;
	const struct stored_file *s = catalog_sources(c, &n);
	const char *const *encodings;
	const struct catalog_tensor *t;
	const struct catalog_object *o;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		buf_printf(b, "source %s %llu ", s[i].path, (unsigned long long)s[i].min_size);
		if (s[i].bytes)
			buf_json_str(b, (const char *)s[i].bytes, (size_t)s[i].min_size);
		buf_str(b, "\n");
	}
	encodings = catalog_encodings(c, &n);
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "encoding %s\n", encodings[i]);
	buf_printf(b, "seal %s\n", catalog_seal(c));
	t = catalog_tensors(c, &n);
	for (size_t i = 0; !rc && i < n; i++) {
		buf_str(b, "tensor ");
		buf_json_str(b, t[i].fqn, t[i].fqn_len);
		buf_str(b, " ");
		show_path(b, t[i].path, t[i].fqn, t[i].fqn_len);
		buf_printf(b, " %s %u %llu %s ", dtype_info(t[i].dtype)->name, t[i].state,
			   (unsigned long long)t[i].bytes, t[i].fault ? t[i].fault : "-");
		show_u64s(b, t[i].shape, t[i].n_dims);
		buf_str(b, "\n");
		rc = show_map(b, c, &t[i], e);
	}
	o = catalog_objects(c, &n);
	for (size_t i = 0; i < n; i++) {
		buf_str(b, "object ");
		buf_json_str(b, o[i].fqn, o[i].fqn_len);
		buf_str(b, " ");
		show_path(b, o[i].path, o[i].fqn, o[i].fqn_len);
		buf_printf(b, " %s ", o[i].fault ? o[i].fault : "-");
		show_u64s(b,
			  (const uint64_t[]){ o[i].loc.file, o[i].loc.offset, o[i].loc.length,
					      o[i].loc.encoding },
			  4);
		if (o[i].text)
			buf_json_str(b, o[i].text, o[i].text_len);
		buf_str(b, "\n");
	}
	return rc ? rc : b->err ? err_set(e, b->err, "the test's own buffer") : 0;
}

static char *build_and_show(const char *where)
{
	struct catalog *c = NULL;
	struct buf b = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };

	ck_assert_msg(build(where, &c, &e) == 0, "%s", e.msg);
	ck_assert_int_eq(show(&b, c, &e), 0);
	ck_assert_int_eq(e.code, 0);
	catalog_close(c);
	return b.data;
}

/* Opens the file at path. Returns its content as text, or NULL and an error. */
static char *open_and_show(struct ckpt_err *e)
{
	struct catalog *c = NULL;
	struct buf b = BUF_INIT(1 << 20);
	int rc = catalog_open(path, &c, e);

	if (rc) {
		REQUIRE(!c && rc < 0 && e->code == -rc && e->msg[0]);
		return NULL;
	}
	rc = show(&b, c, e);
	catalog_close(c);
	if (!rc)
		return b.data;
	REQUIRE(rc < 0 && e->code == -rc && e->msg[0]);
	buf_release(&b);
	return NULL;
}

/* ---- what was written is read ---- */

START_LOOP_TEST(what_goes_in_comes_out, 2)
{
	static const uint64_t surrogate_order[] = { 1, 2, 0 }; /* the chunks of cells 0, 1 and 2 */
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;
	const struct catalog_tensor *t;
	const struct catalog_object *o;
	const struct catalog_metadata *md;

	ck_assert_msg(build(_i ? path : NULL, &c, &e) == 0, "%s", e.msg);
	t = catalog_tensors(c, &n);
	ck_assert_uint_eq(n, N_SAMPLES);
	for (size_t i = 0; i < n; i++) {
		const struct sample *s = &samples[i];
		uint8_t room[2 * CATALOG_PATH_NUMBER];
		const uint8_t *p = path_of(s, room);
		struct chunkmap *m = NULL;
		bool flat;

		ck_assert_uint_eq(t[i].fqn_len, s->fqn_len);
		ck_assert(!memcmp(t[i].fqn, s->fqn, s->fqn_len + 1));
		ck_assert(catalog_path_equal(t[i].path, p ? p : catalog_path_unknown));
		ck_assert_uint_eq(t[i].dtype, s->dtype);
		ck_assert_uint_eq(t[i].n_dims, s->n);
		ck_assert(!memcmp(t[i].shape, s->shape, s->n * sizeof(uint64_t)));
		flat = s->n == 2 && s->shape[0] * s->shape[1] == 24;
		ck_assert_uint_eq(t[i].n_logical, flat);
		ck_assert(!flat || t[i].logical[0] == 24);
		ck_assert_uint_eq(t[i].chunks, s->count);
		ck_assert_uint_eq(t[i].state, !strcmp(s->fqn, "hole")	   ? TENSOR_INCOMPLETE
					      : !strcmp(s->fqn, "overlap") ? TENSOR_OVERLAPPING
									   : TENSOR_COMPLETE);
		ck_assert_int_eq(t[i].fault != NULL, t[i].state != TENSOR_COMPLETE);
		ck_assert_int_eq(catalog_load_map(c, &t[i], &m, &e), 0);
		ck_assert_uint_eq(m->count, s->count);
		for (uint32_t k = 0; k < m->count; k++) {
			uint64_t off[3], len[3];
			uint32_t from =
				s->dtype == CKPT_DTYPE_U64 ? (uint32_t)surrogate_order[k] : k;
			const uint64_t *b = s->boxes + from * 2 * s->n;

			chunkmap_box(m, k, off, len);
			ck_assert(box_equal(s->n, off, len, b, b + s->n));
			ck_assert_uint_eq(m->locs[k].offset, 1000u * from + s->fqn_len);
			ck_assert_uint_eq(m->locs[k].length, 700 + from);
		}
		free(m);
	}
	o = catalog_objects(c, &n);
	ck_assert_uint_eq(n, 6);
	ck_assert_str_eq(o[0].fqn, "a");
	ck_assert_ptr_null(o[0].text);
	ck_assert(catalog_path_equal(o[0].path, catalog_path_unknown));
	ck_assert_uint_eq(o[0].top, 0);
	ck_assert_uint_eq(o[0].loc.length, INT64_MAX - 5);
	ck_assert_str_eq(o[1].fqn, "lost.it");
	ck_assert_uint_eq(o[1].top, 4);
	ck_assert_str_eq(o[1].fault, "it is listed but stored nowhere");
	ck_assert_str_eq(o[2].fqn, "nothing");
	ck_assert(o[2].text && !o[2].text_len && !o[2].fault);
	ck_assert_str_eq(o[3].fqn, "refused");
	ck_assert_str_eq(o[3].fault, "it is of another world");
	ck_assert_ptr_null(o[3].text);
	ck_assert_str_eq(o[4].fqn, "step");
	ck_assert_uint_eq(o[4].top, 4);
	ck_assert_ptr_null(o[4].fault);
	ck_assert_uint_eq(o[4].loc.offset, 5);
	ck_assert_str_eq(o[5].fqn, "text");
	ck_assert_ptr_null(o[5].fault);
	ck_assert_uint_eq(o[5].text_len, 4);
	ck_assert(!memcmp(o[5].text, "a\0b\n", 5)); /* a NUL follows */
	ck_assert_uint_eq(o[5].loc.offset, 0);
	md = catalog_metadata(c, &n);
	ck_assert_uint_eq(n, 2);
	ck_assert_str_eq(md[0].name, "__0.metadata");
	ck_assert_str_eq(md[1].name, "__1.metadata");
	ck_assert_uint_eq(md[1].size, 4711);
	ck_assert_str_eq(md[1].id, "0100ff");
	ck_assert_str_eq(md[1].hash, "fedcba98765432100123456789abcdef");
	ck_assert_int_eq(e.code, 0);
	catalog_close(c);
}
END_TEST

START_TEST(sources_know_how_long_they_must_be)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;
	const struct stored_file *s;

	ck_assert_int_eq(build(NULL, &c, &e), 0);
	s = catalog_sources(c, &n);
	ck_assert_uint_eq(n, 4);
	for (size_t i = 0; i < n; i++) {
		ck_assert(!s[i].bytes == (strcmp(s[i].path, CATALOG_INLINE_PATH) != 0));
		if (s[i].bytes)
			ck_assert_uint_eq(s[i].min_size, 10);
		else if (!strcmp(s[i].path, "__0_0.distcp"))
			ck_assert_uint_eq(s[i].min_size, INT64_MAX);
		else if (!strcmp(s[i].path, "sub/__1_0.distcp"))
			ck_assert_uint_eq(s[i].min_size,
					  4000 + 7 + 704); /* chunk 4 of the pinwheel */
		else
			ck_assert_uint_eq(s[i].min_size, 2000 + 22 + 702);
	}
	catalog_close(c);
}
END_TEST

/* A chunk in the index, an empty one, and one in a file whose name is what messages call
 * the index. */
START_LOOP_TEST(chunks_may_be_in_the_index, 2)
{
	const uint64_t shape[] = { 3 }, boxes[] = { 0, 1, 1, 1, 2, 1 };
	struct chunk_loc locs[3] = { 0 }, end;
	const struct tensor_chunks t = { .fqn = "a",
					 .fqn_len = 1,
					 .dtype = CKPT_DTYPE_U8,
					 .n_dims = 1,
					 .shape = shape,
					 .count = 3,
					 .boxes = boxes,
					 .locs = locs };
	autofree struct chunkmap *m = NULL;
	struct catalog_writer *w = NULL;
	const struct stored_file *s;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(catalog_writer_new(_i ? path : NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(catalog_add_inline(w, "A", 1, &locs[0], &e), 0);
	ck_assert_int_eq(catalog_add_inline(w, NULL, 0, &locs[1], &e), 0);
	ck_assert_int_eq(catalog_add_source(w, CATALOG_INLINE_PATH, strlen(CATALOG_INLINE_PATH),
					    &locs[2].file, &e),
			 0);
	ck_assert_int_eq(catalog_add_inline(w, "z\0", 2, &end, &e), 0);
	ck_assert_int_eq(catalog_add_encoding(w, "raw", &locs[0].encoding, &e), 0);
	ck_assert_int_eq(catalog_add_tensor(w, &t, &e), 0);
	ck_assert_int_eq(catalog_writer_finish(w, &c, &e), 0);
	catalog_writer_free(w);
	s = catalog_sources(c, &n);
	ck_assert_uint_eq(n, 2);
	ck_assert_str_eq(s[0].path, s[1].path);
	ck_assert_uint_eq(s[0].min_size, 3);
	ck_assert_mem_eq(s[0].bytes, "Az\0", 3);
	ck_assert_ptr_null(s[1].bytes);
	ck_assert_int_eq(catalog_load_map(c, catalog_tensors(c, NULL), &m, &e), 0);
	ck_assert_uint_eq(m->locs[0].file, 0);
	ck_assert_uint_eq(m->locs[1].offset, 1);
	ck_assert_uint_eq(m->locs[2].file, 1);
	ck_assert_uint_eq(end.offset, 1);
	ck_assert_uint_eq(end.length, 2);
	catalog_close(c);
}
END_TEST

/* Anybody can have written these: they come from a checkpoint, or from an index beside one. */
START_TEST(faults_and_encodings_do_nothing_to_a_terminal)
{
	const struct object_item o = { .fqn = "o", .fqn_len = 1, .fault = "a\033[31m\xc2\x9b b" };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	uint32_t id;

	ck_assert_int_eq(catalog_writer_new(path, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(catalog_add_encoding(w, "z\033[m", &id, &e), 0);
	ck_assert_int_eq(catalog_add_object(w, &o, &e), 0);
	ck_assert_int_eq(catalog_writer_finish(w, &c, &e), 0);
	catalog_writer_free(w);
	ck_assert_str_eq(catalog_objects(c, NULL)->fault, "a?[31m?? b");
	ck_assert_str_eq(*catalog_encodings(c, NULL), "z?[m");
	catalog_close(c);
}
END_TEST

START_TEST(every_name_is_found_and_no_other)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n, n_objects;
	const struct catalog_tensor *t;
	const struct catalog_object *o;

	ck_assert_int_eq(build(NULL, &c, &e), 0);
	t = catalog_tensors(c, &n);
	o = catalog_objects(c, &n_objects);
	ck_assert_uint_gt(n_objects, 1);
	for (size_t i = 0; i < n; i++) {
		ck_assert_int_eq(catalog_find_tensor(c, t[i].fqn, t[i].fqn_len), (int64_t)i);
		ck_assert_int_lt(catalog_find_tensor(c, t[i].fqn, t[i].fqn_len + (size_t)1), 0);
	}
	for (size_t i = 0; i < n_objects; i++)
		ck_assert_int_eq(catalog_find_object(c, o[i].fqn, o[i].fqn_len), (int64_t)i);
	ck_assert_int_lt(catalog_find_tensor(c, "zzz", 3), 0);
	catalog_close(c);
}
END_TEST

START_TEST(more_bytes_than_an_index_may_have_are_refused)
{
	autofree char *half = calloc(1, CATALOG_MAX_INLINE / 2);
	struct catalog_writer *w = NULL;
	struct chunk_loc loc;
	struct ckpt_err e = { 0 };

	ck_assert_ptr_nonnull(half);
	ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(catalog_add_inline(w, half, CATALOG_MAX_INLINE / 2, &loc, &e), 0);
	ck_assert_int_eq(catalog_add_inline(w, half, CATALOG_MAX_INLINE / 2 - 1, &loc, &e), 0);
	ck_assert_int_eq(catalog_add_inline(w, half, 2, &loc, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "small chunks in the metadata are more than 256 MiB");
	catalog_writer_free(w);
}
END_TEST

START_TEST(equal_checkpoints_have_equal_seals)
{
	autofree char *a = build_and_show(path), *b = build_and_show(NULL),
		      *c = build_and_show(path);

	ck_assert_str_eq(a, b);
	ck_assert_str_eq(a, c);
}
END_TEST

START_TEST(nothing_at_all_is_an_index_too)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n = 1;

	ck_assert_int_eq(catalog_writer_new(path, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(catalog_writer_finish(w, &c, &e), 0);
	catalog_writer_free(w);
	(void)catalog_tensors(c, &n);
	ck_assert_uint_eq(n, 0);
	(void)catalog_metadata(c, &n);
	ck_assert_uint_eq(n, 0);
	catalog_close(c);
}
END_TEST

/* The rows are for people who use sqlite3; the view takes the chunk maps apart. */
START_TEST(people_can_read_the_tables)
{
	static const char want[] = "[0,0] [2,3] __0_0.distcp 1 700 dcp\n"
				   "[0,3] [2,3] sub/__1_0.distcp 1001 701 dcp+stream.zstd/1\n"
				   "[2,0] [2,3] __2_0.distcp 2001 702 dcp\n"
				   "[2,3] [2,3] __0_0.distcp 3001 703 dcp+stream.zstd/1\n"
				   "a float32 [4,6] [24] 96 4 [2,2] complete\n"
				   "a.b [\"a\",\"b\"]\n"
				   "lost.it [\"lost\",\"it\"]\n"
				   "refused (null)\n"
				   "text 4\n"
				   "0 -1 1\n"
				   "0 -1 1\n";
	static const char *const sql[] = {
		("SELECT offsets, sizes, path, offset, length, encoding FROM chunk WHERE fqn='a' "
		 "ORDER BY chunk"),
		"SELECT fqn, dtype, shape, logical, bytes, chunks, grid, state FROM tensor WHERE "
		"fqn='a'",
		"SELECT fqn, path FROM tensor WHERE fqn='a.b'",
		"SELECT fqn, path FROM object WHERE fault IS NOT NULL",
		"SELECT fqn, length(CAST(text AS BLOB)) FROM object WHERE text <> ''",
		"SELECT min(id), max(id) - count(*), count(*) > 1 FROM tensor",
		"SELECT min(id), max(id) - count(*), count(*) > 1 FROM object",
	};
	struct buf b = BUF_INIT(10000);
	sqlite3 *db;

	free(build_and_show(path));
	ck_assert_int_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
	for (size_t i = 0; i < ARRAY_LEN(sql); i++) {
		sqlite3_stmt *s;

		ck_assert_int_eq(sqlite3_prepare_v2(db, sql[i], -1, &s, NULL), SQLITE_OK);
		while (sqlite3_step(s) == SQLITE_ROW)
			for (int k = 0; k < sqlite3_column_count(s); k++)
				buf_printf(&b, "%s%c", (const char *)sqlite3_column_text(s, k),
					   k + 1 < sqlite3_column_count(s) ? ' ' : '\n');
		(void)sqlite3_finalize(s);
	}
	(void)sqlite3_close(db);
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
}
END_TEST

static int lowest_free_descriptor(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	REQUIRE(fd >= 0 && !close(fd));
	return fd;
}

START_TEST(nothing_stays_open)
{
	int before = lowest_free_descriptor();
	struct ckpt_err e = { 0 };

	free(build_and_show(path));
	free(open_and_show(&e));
	ck_assert_int_eq(lowest_free_descriptor(), before);
}
END_TEST

/* Returns c if something is wrong, else NULL. */
static void *load_all(void *arg)
{
	struct catalog *c = arg;
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);

	for (size_t i = 0; i < 50 * n; i++) {
		autofree struct chunkmap *m = NULL;
		struct ckpt_err e = { 0 };

		if (catalog_load_map(c, &t[i % n], &m, &e) || m->count != t[i % n].chunks)
			return arg;
	}
	return NULL;
}

START_TEST(threads_may_load_maps_at_once)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	pthread_t threads[8];

	ck_assert_int_eq(build(path, &c, &e), 0);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, load_all, c), 0);
	for (int i = 0; i < 8; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	catalog_close(c);
}
END_TEST

/* ---- what cannot be written ---- */

START_TEST(impossible_names_are_refused)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct sample s = { FQN("a\xff"), CKPT_DTYPE_U8, 0, { 0 }, 1, LIST(0) };
	struct object_item o = { s.fqn, s.fqn_len, .loc = { .file = CATALOG_NO_FILE } };
	uint32_t id = 42;

	ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(add_sample(w, &s, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "FQN 'a?' is not UTF-8");
	ck_assert_int_eq(catalog_add_object(w, &o, &e), -EBADMSG);
	ck_assert_int_eq(catalog_add_source(w, "../x", 4, &id, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "file name '../x' refused: an element of it is empty, '.' or '..'");
	ck_assert_int_eq(catalog_add_source(w, "/etc/passwd", 11, &id, &e), -EBADMSG);
	ck_assert_int_eq(catalog_add_source(w, "a\0b", 3, &id, &e), -EBADMSG);
	ck_assert_uint_eq(id, 42);
	s.fqn = "twice";
	s.fqn_len = 5;
	ck_assert_int_eq(add_sample(w, &s, &e), 0);
	ck_assert_int_eq(add_sample(w, &s, &e), 0);
	ck_assert_int_eq(catalog_writer_finish(w, &c, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "two tensors are called 'twice'");
	ck_assert_ptr_null(c);
	catalog_writer_free(w);
}
END_TEST

START_TEST(a_chunk_out_of_bounds_is_refused_with_all_numbers)
{
	struct catalog_writer *w = NULL;
	struct ckpt_err e = { 0 };
	struct sample s = { FQN("model.w"), CKPT_DTYPE_U8, 2, { 4, 4 }, 1, LIST(2, 0, 3, 4) };

	ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(add_sample(w, &s, &e), -EBADMSG);
	ck_assert_str_eq(
		e.msg,
		"tensor 'model.w': chunk at [2,0] of size [3,4] lies outside its shape [4,4]");
	catalog_writer_free(w);
}
END_TEST

START_TEST(tensors_of_more_than_2_to_the_63_bytes_together_are_refused)
{
	struct catalog_writer *w = NULL;
	struct ckpt_err e = { 0 };
	struct sample s = { FQN("a"), CKPT_DTYPE_U8, 1, { INT64_MAX }, 1, LIST(0, INT64_MAX) };

	ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(add_sample(w, &s, &e), 0);
	s.fqn = "b";
	ck_assert_int_eq(add_sample(w, &s, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "the tensors' sizes add up to more than 2^63 bytes");
	catalog_writer_free(w);
}
END_TEST

static unsigned count_entries(void)
{
	DIR *d = opendir(dir);
	unsigned n = 0;

	REQUIRE(d);
	for (const struct dirent *x; (x = readdir(d));)
		n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
	(void)closedir(d);
	return n;
}

START_TEST(only_a_finished_index_is_left)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct stat before, after;

	ck_assert_int_eq(catalog_writer_new(path, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(add_sample(w, &samples[0], &e), 0);
	catalog_writer_free(w); /* given up */
	ck_assert_uint_eq(count_entries(), 0);

	put_file(dir_fd, "index.sqlite.tmp", "of a killed builder", 19);
	put_file(dir_fd, "index.sqlite", "an old one", 10);
	ck_assert_int_eq(fstatat(dir_fd, "index.sqlite", &before, 0), 0);
	ck_assert_int_eq(build(path, &c, &e), 0);
	catalog_close(c);
	ck_assert_uint_eq(count_entries(), 1);
	ck_assert_int_eq(fstatat(dir_fd, "index.sqlite", &after, 0), 0);
	ck_assert_uint_ne(before.st_ino, after.st_ino);
}
END_TEST

START_TEST(where_nothing_can_be_written_it_says_so)
{
	char nowhere[4300];
	struct catalog_writer *w = NULL;
	struct ckpt_err e = { 0 };

	(void)snprintf(nowhere, sizeof(nowhere), "%s/missing/index.sqlite", dir);
	ck_assert_int_lt(catalog_writer_new(nowhere, "dcp", "/", &w, &e), 0);
	ck_assert_int_ne(e.code, 0);
	ck_assert_ptr_null(w);
}
END_TEST

/* ---- damage ---- */

/* Is this byte worth flipping? Most of a small index is zeros between rows. */
static bool near_content(const uint8_t *p, size_t n, size_t at)
{
	return p[at] || (at && p[at - 1]) || (at + 1 < n && p[at + 1]);
}

/* TEST_ALL_BITS=1 flips every one; takes minutes. */
START_LONG_TEST(no_flipped_bit_gives_other_contents)
{
	autofree char *want = build_and_show(path);
	const char *all = getenv("TEST_ALL_BITS");
	struct rng r = rng_new();
	size_t n;
	autofree uint8_t *file = get_file(dir_fd, "index.sqlite", &n);
	autoclose int fd = openat(dir_fd, "index.sqlite", O_RDWR | O_CLOEXEC);
	const unsigned some = CHECK_FULL() ? 700 : 60; /* flips among the bytes of rows */
	unsigned errors = 0, flips = 0;
	size_t content = 0;

	for (size_t at = 0; at < n; at++)
		content += near_content(file, n, at);
	for (size_t at = 0; at < n; at++) {
		/* Every bit of the header, some of the bytes that hold rows, a few of the zeros. */
		uint64_t often = all || at < 100	     ? 1
				 : near_content(file, n, at) ? 1 + content / some
							     : 500;

		for (unsigned bit = 0; bit < 8; bit++) {
			uint8_t changed = (uint8_t)(file[at] ^ 1u << bit);
			struct ckpt_err e = { 0 };
			char *got;

			if (rng_below(&r, often))
				continue;
			REQUIRE(pwrite(fd, &changed, 1, (off_t)at) == 1);
			got = open_and_show(&e);
			if (got && strcmp(got, want) != 0)
				ck_abort_msg("bit %u of byte %zu gives:\n%s", bit, at, got);
			errors += !got;
			flips++;
			free(got);
		}
		REQUIRE(pwrite(fd, file + at, 1, (off_t)at) == 1);
	}
	ck_assert_uint_gt(flips, 4 * some);
	ck_assert_uint_gt(errors, flips / 20);
	free(open_and_show(&(struct ckpt_err){ 0 }));
}
END_TEST

START_LONG_TEST(no_overwritten_stretch_gives_other_contents)
{
	autofree char *want = build_and_show(path);
	struct rng r = rng_new();
	size_t n;
	autofree uint8_t *file = get_file(dir_fd, "index.sqlite", &n);
	unsigned errors = 0;

	for (int i = 0; i < 300; i++) {
		autofree uint8_t *copy = malloc(n);
		size_t len = 1 + rng_below(&r, rng_chance(&r, 50) ? 20 : 5000),
		       at = rng_below(&r, n - len);
		struct ckpt_err e = { 0 };
		char *got;

		REQUIRE(copy);
		while (!near_content(file, n, at))
			at = rng_below(&r, n - len);
		memcpy(copy, file, n);
		if (rng_chance(&r, 50))
			random_bytes(&r, copy + at, len);
		else
			memcpy(copy + at, file + rng_below(&r, n - len), len);
		put_file(dir_fd, "index.sqlite", copy, n);
		got = open_and_show(&e);
		REQUIRE(!got || !strcmp(got, want));
		errors += !got;
		free(got);
	}
	ck_assert_uint_gt(errors, 30);
}
END_TEST

END_TEST

START_TEST(a_cut_index_is_refused_or_lacks_nothing)
{
	autofree char *want = build_and_show(path);
	struct rng r = rng_new();
	size_t n;
	autofree uint8_t *file = get_file(dir_fd, "index.sqlite", &n);

	for (int i = 0; i < 300; i += rng_long() ? 1 : 4) {
		size_t len = i < 120   ? (size_t)i
			     : i < 150 ? n - (size_t)(i - 119)
				       : rng_below(&r, n);
		struct ckpt_err e = { 0 };
		char *got;

		put_file(dir_fd, "index.sqlite", file, len);
		got = open_and_show(&e);
		/* Perhaps only pages that are never read are missing. */
		ck_assert(got ? len > n / 2 && !strcmp(got, want) : e.code == EBADMSG);
		free(got);
	}
}
END_TEST

START_TEST(what_is_no_index_is_refused)
{
	struct rng r = rng_new();
	uint8_t random[40000];
	struct ckpt_err e = { 0 };

	ck_assert_ptr_null(open_and_show(&e)); /* nothing there */
	for (int fifo = 0; fifo < 2; fifo++) {
		REQUIRE(!(fifo ? mkfifoat(dir_fd, "index.sqlite", 0600)
			       : mkdirat(dir_fd, "index.sqlite", 0700)));
		ck_assert_ptr_null(open_and_show(&e));
		ck_assert_int_eq(e.code, EBADMSG);
		REQUIRE(!unlinkat(dir_fd, "index.sqlite", fifo ? 0 : AT_REMOVEDIR));
	}
	put_file(dir_fd, "index.sqlite", "", 0);
	ck_assert_ptr_null(open_and_show(&e));
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, "this is not a chunk index");
	for (int i = 0; i < 50; i++) {
		random_bytes(&r, random, sizeof(random));
		if (i % 2)
			memcpy(random, "SQLite format 3", 16);
		put_file(dir_fd, "index.sqlite", random, 1 + rng_below(&r, sizeof(random) - 1));
		ck_assert_ptr_null(open_and_show(&e));
		ck_assert_int_eq(e.code, EBADMSG);
	}
	ck_assert_int_eq(unlinkat(dir_fd, "index.sqlite", 0), 0);
	ck_assert_int_eq(mkdirat(dir_fd, "index.sqlite", 0700), 0);
	ck_assert_ptr_null(open_and_show(&e));
}
END_TEST

static const struct {
	const char *sql;
	const char *msg;
} changes[] = {
	{ "PRAGMA application_id=1", "this is not a chunk index" },
	{ "PRAGMA user_version=1", "it is a chunk index of another version" },
	{ "PRAGMA user_version=3", "it is a chunk index of another version" },
	{ "PRAGMA user_version=0", "it is a chunk index of another version" },
	{ "CREATE TABLE more(x)", "the chunk index has other tables" },
	{ "CREATE VIEW more AS SELECT 1", "the chunk index has other tables" },
	{ "CREATE INDEX more ON tensor(dtype)", "the chunk index has other tables" },
	{ "CREATE TRIGGER more AFTER INSERT ON tensor BEGIN SELECT 1; END",
	  "the chunk index has other tables" },
	{ "DROP VIEW chunk", "the chunk index has other tables" },
	{ "DROP VIEW chunk; CREATE VIEW chunk AS SELECT load_extension('x')",
	  "the chunk index has other tables" },
	{ "DROP TABLE directory", "the chunk index has other tables" },
	{ "DROP TABLE chunkmap; CREATE TABLE chunkmap(id INTEGER PRIMARY KEY, chunks TEXT)",
	  "the chunk index has other tables" },
	{ "DELETE FROM checkpoint", "chunk index is damaged: it has no seal" },
	{ "UPDATE checkpoint SET seal=seal || ' '", "chunk index is damaged: it has no seal" },
	{ "UPDATE directory SET data=17", "chunk index is damaged: it has no directory" },
	{ "DELETE FROM directory WHERE id=2",
	  "chunk index is damaged: it has no list of metadata files" },
	{ "DELETE FROM directory", "chunk index is damaged: it has no directory" },
	{ "UPDATE directory SET data=x''",
	  "chunk index is damaged: its seal does not match its directory" },
	{ "UPDATE directory SET data=x'' WHERE id=2",
	  "chunk index is damaged: its list of metadata files does not match its hash" },
	{ "DELETE FROM directory WHERE id=3", "chunk index is damaged: it lacks its chunks" },
	{ "UPDATE directory SET data=data || 'x' WHERE id=3",
	  "chunk index is damaged: it lacks its chunks" },
	{ "UPDATE directory SET data=x'00' WHERE id=3",
	  "chunk index is damaged: its chunks do not match their hash" },
	{ "UPDATE directory SET data=upper(data) WHERE id=3",
	  "chunk index is damaged: its chunks do not match their hash" },
	{ "UPDATE directory SET data='text'",
	  "chunk index is damaged: its seal does not match its directory" },
	{ "UPDATE checkpoint SET seal='x'",
	  "chunk index is damaged: its seal does not match its directory" },
	{ "UPDATE checkpoint SET seal=upper(seal)",
	  "chunk index is damaged: its seal does not match its directory" },
	{ "DELETE FROM chunkmap", "chunk index is damaged: no chunk map" },
	{ "UPDATE chunkmap SET chunks='[]'",
	  "chunk index is damaged: chunk map of another length" },
	{ "UPDATE chunkmap SET chunks=x'00'",
	  "chunk index is damaged: chunk map of another length" },
	{ "UPDATE chunkmap SET chunks=' ' || substr(chunks, 2)",
	  "chunk index is damaged: chunk map does not match its hash" },
	{ "PRAGMA journal_mode=WAL", "chunk index is damaged: its header" },
	{ "PRAGMA auto_vacuum=INCREMENTAL; VACUUM", "chunk index is damaged: its header" },
	{ "PRAGMA page_size=4096; VACUUM", "chunk index is damaged: its header" },
	{ "UPDATE chunkmap SET id=id+1000", "chunk index is damaged: no chunk map" },
};

START_LOOP_TEST(changes_to_the_tables_are_noticed, ARRAY_LEN(changes))
{
	struct ckpt_err e = { 0 };
	sqlite3 *db;

	free(build_and_show(path));
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	(void)sqlite3_exec(db, "PRAGMA synchronous=OFF", NULL, NULL, NULL);
	ck_assert_msg(!sqlite3_exec(db, changes[_i].sql, NULL, NULL, NULL), "%s",
		      sqlite3_errmsg(db));
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	ck_assert_ptr_null(open_and_show(&e));
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, changes[_i].msg);
}
END_TEST

START_TEST(somebody_elses_database_is_refused)
{
	struct ckpt_err e = { 0 };
	sqlite3 *db;

	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "CREATE TABLE moz_places(url)", NULL, NULL, NULL),
			 SQLITE_OK);
	ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
	ck_assert_ptr_null(open_and_show(&e));
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, "this is not a chunk index");
}
END_TEST

/* ---- indexes that are sealed, and lie ---- */

struct forged {
	const char *map; /* text; "": none */
	uint64_t dtype;	 /* 0: uint8 */
	uint64_t n_dims; /* + 1 */
	uint64_t shape0; /* 0: 4 */
	uint64_t shape1; /* 0: 1, as all others */
	uint64_t bytes;	 /* 0: 4 */
	uint64_t chunks; /* 0: 1 */
	uint64_t total;	 /* chunks of all tensors; 0: those of this one */
	uint64_t map_bytes, map_id;
	const char *map_is; /* the row's text, if it is not the one that the directory describes */
	uint64_t state;
	uint64_t tensors, objects, sources, encodings; /* counts + 1 */
	const char *fqn, *source;		       /* NULL: "w", "file" */
	uint64_t min_size;			       /* 0: 1000 */
	bool in_index, twice_in_index;		       /* the source */
	const char *kept;			       /* bytes in the index; NULL: none */
	bool twice;				       /* the tensor */
	const char *other;  /* or another tensor, with a map of the same form */
	uint64_t object[4]; /* file, offset, length, encoding */
	uint64_t path, object_path[2];
	bool object_fault, object_text;
	uint64_t n_logical, logical; /* dimensions; each of them */
	size_t cut;		     /* bytes of the directory left out at its end */
	bool more;		     /* a byte behind it */
	const char *metadata;	     /* the list's bytes; NULL: a count of 0 */
	size_t n_metadata;
	uint64_t metadata_hash; /* a change to it */
};

static void put_num(struct buf *b, uint64_t v)
{
	uint8_t bytes[10];

	buf_add(b, bytes, put_varint(bytes, v));
}

static void put_str(struct buf *b, const char *s)
{
	put_num(b, s ? strlen(s) + 1 : 0);
	if (s)
		buf_add(b, s, strlen(s) + 1);
}

static void put_forged_tensor(struct buf *b, const struct forged *f)
{
	uint64_t n_dims = f->n_dims ? f->n_dims - 1 : 1;
	size_t len = strlen(f->map);

	put_str(b, f->fqn ? f->fqn : "w");
	put_num(b, f->path);
	put_num(b, f->dtype ? f->dtype : CKPT_DTYPE_U8);
	put_num(b, n_dims);
	for (uint64_t d = 0; d < n_dims && d < 100; d++)
		put_num(b, !d ? f->shape0 ? f->shape0 : 4 : d == 1 && f->shape1 ? f->shape1 : 1);
	put_num(b, f->bytes ? f->bytes : 4);
	put_num(b, f->chunks ? f->chunks : 1);
	put_num(b, f->state);
	put_str(b, NULL);
	put_num(b, f->map_id);
	put_num(b, f->map_bytes ? f->map_bytes : len);
	put_num(b, catalog_hash(f->map, len));
	put_num(b, f->n_logical);
	for (uint64_t d = 0; d < f->n_logical && d < 100; d++)
		put_num(b, f->logical);
}

static void put_forged(struct buf *b, const struct forged *f)
{
	put_str(b, "dcp");
	put_num(b,
		f->total ? f->total : (f->chunks ? f->chunks : 1) * (f->twice || f->other ? 2 : 1));
	put_num(b, f->sources ? f->sources - 1 : 1);
	for (int i = 0; i < 1 + f->twice_in_index; i++) {
		put_str(b, f->in_index ? "" : f->source ? f->source : "file");
		put_num(b, f->min_size ? f->min_size : 1000);
		if (f->in_index)
			put_num(b, f->kept ? catalog_hash(f->kept, strlen(f->kept)) : 0);
	}
	put_num(b, f->encodings ? f->encodings - 1 : 1);
	put_str(b, "dcp");
	put_num(b, f->tensors ? f->tensors - 1 : f->twice || f->other ? 2 : 1);
	put_forged_tensor(b, f);
	if (f->twice)
		put_forged_tensor(b, f);
	if (f->other) {
		struct forged other = *f;

		other.fqn = f->other;
		other.map_id++;
		put_forged_tensor(b, &other);
	}
	put_num(b, f->objects ? f->objects - 1 : 1);
	put_str(b, "step");
	put_num(b, f->object_path[0]);
	if (f->object_path[0] > 3)
		put_num(b, f->object_path[1]);
	for (int i = 0; i < 4; i++)
		put_num(b, f->object[i]);
	put_str(b, f->object_fault ? "it is lost" : NULL);
	put_str(b, f->object_text ? "text" : NULL);
	b->len -= f->cut;
	if (f->more)
		buf_add(b, "", 1);
	REQUIRE(!b->err);
}
static void put_row(sqlite3 *db, const char *sql, int id, const void *p, size_t n, bool text)
{
	sqlite3_stmt *s;

	REQUIRE(!sqlite3_prepare_v2(db, sql, -1, &s, NULL));
	(void)sqlite3_bind_int(s, 1, id);
	if (text)
		(void)sqlite3_bind_text(s, 2, p, (int)n, SQLITE_STATIC);
	else
		(void)sqlite3_bind_blob(s, 2, p, (int)n, SQLITE_STATIC);
	REQUIRE(sqlite3_step(s) == SQLITE_DONE);
	(void)sqlite3_finalize(s);
}

/* Writes an index in which every hash is right, whatever it contains. */
static void forge_bytes(const struct forged *f, const struct buf *d)
{
	const char *map = f->map_is ? f->map_is : f->map;
	struct buf list CLEANUP(buf_release) = BUF_INIT(1 << 20);
	sqlite3 *db;
	const struct digest seal = digest_of(XXH3_128bits(d->data, d->len));
	char hex[DIGEST_HEX], sql[200];
	uint8_t hash[8];

	digest_hex(&seal, hex);
	buf_add(&list, f->metadata ? f->metadata : "", f->metadata ? f->n_metadata : 1);
	(void)put_le(hash, catalog_hash(list.data, list.len) ^ f->metadata_hash, 8);
	buf_add(&list, hash, 8);
	REQUIRE(!list.err);
	(void)unlink(path);
	REQUIRE(!sqlite3_open(path, &db));
	(void)snprintf(sql, sizeof(sql), "PRAGMA page_size=%d; PRAGMA synchronous=OFF; BEGIN",
		       CATALOG_PAGE);
	REQUIRE(!sqlite3_exec(db, sql, NULL, NULL, NULL));
	for (size_t i = 0; catalog_schema[i]; i++)
		REQUIRE(!sqlite3_exec(db, catalog_schema[i], NULL, NULL, NULL));
	(void)snprintf(sql, sizeof(sql), "PRAGMA application_id=%d; PRAGMA user_version=%d",
		       CATALOG_APPLICATION_ID, CATALOG_VERSION);
	REQUIRE(!sqlite3_exec(db, sql, NULL, NULL, NULL));
	put_row(db, "INSERT INTO directory VALUES(?,?)", CATALOG_DIRECTORY_ROW, d->data, d->len,
		false);
	put_row(db, "INSERT INTO directory VALUES(?,?)", CATALOG_METADATA_ROW, list.data, list.len,
		false);
	if (f->kept)
		put_row(db, "INSERT INTO directory VALUES(?,?)", CATALOG_INLINE_ROW, f->kept,
			strlen(f->kept), false);
	for (int i = 0; i < (f->other ? 2 : 1); i++)
		put_row(db, "INSERT INTO chunkmap VALUES(?,?)", i, map, strlen(map), true);
	(void)snprintf(sql, sizeof(sql),
		       "INSERT INTO checkpoint VALUES('dcp','/','x',1,1,1,4,'%s'); COMMIT", hex);
	REQUIRE(!sqlite3_exec(db, sql, NULL, NULL, NULL));
	(void)sqlite3_close(db);
}

static void forge(const struct forged *f)
{
	struct buf d CLEANUP(buf_release) = BUF_INIT(1 << 20);

	put_forged(&d, f);
	forge_bytes(f, &d);
}

#define WHOLE	"[[[0],[4],0,0,704,0]]"
#define SCALARS "[[[],[],0,0,1,0],\n[[],[],0,0,1,0],\n[[],[],0,0,1,0]]"

START_TEST(a_forged_index_that_says_nothing_odd_is_read)
{
	struct ckpt_err e = { 0 };
	char *got;

	forge(&(struct forged){ .map = WHOLE, .path = 2, .object_path = { 2 } });
	got = open_and_show(&e);
	ck_assert_msg(got, "%s", e.msg);
	free(got);
}
END_TEST

static const struct {
	struct forged f;
	const char *msg; /* NULL: any */
} forgeries[] = {
	{ { .map = WHOLE, .dtype = CKPT_DTYPE_COUNT }, "its directory" },
	{ { .map = WHOLE, .dtype = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .dtype = CKPT_DTYPE_F32 }, "its directory" }, /* 16 bytes, not 4 */
	{ { .map = WHOLE, .bytes = 5 }, "its directory" },
	{ { .map = WHOLE, .bytes = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .shape0 = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .n_dims = 1 + 65 }, "its directory" },
	{ { .map = WHOLE, .n_dims = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .tensors = 1 + 2 }, "its directory" },
	{ { .map = WHOLE, .tensors = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .objects = 1 + 2 }, "its directory" },
	{ { .map = WHOLE, .objects = (uint64_t)1 << 60 }, "its directory" },
	{ { .map = WHOLE, .sources = 1 + 2 }, "its directory" },
	{ { .map = WHOLE, .sources = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .cut = 1 }, "its directory" },
	{ { .map = WHOLE, .cut = 8 }, "its directory" },
	{ { .map = WHOLE, .more = true }, "its directory" },
	{ { .map = WHOLE, .object = { 1, 0, 0, 0 } }, "its directory" },
	{ { .map = WHOLE, .object = { 0, 0, 0, 1 } }, "its directory" },
	{ { .map = WHOLE, .object = { UINT32_MAX, 0, 0, 0 } }, "its directory" },
	{ { .map = WHOLE, .path = 1 }, "its directory" }, /* no step, but one is a position */
	{ { .map = WHOLE, .path = 3 }, "its directory" }, /* "w" is no position */
	{ { .map = WHOLE, .path = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .path = (uint64_t)1 << 32 }, "its directory" },
	{ { .map = WHOLE, .n_dims = 3, .n_logical = 2, .logical = 2 }, "its directory" },
	{ { .map = WHOLE, .n_dims = 3, .n_logical = 1, .logical = 5 }, "its directory" },
	{ { .map = WHOLE, .n_logical = UINT64_MAX, .logical = 4 }, "its directory" },
	/* "step" has no dot at which to cut it */
	{ { .map = WHOLE, .object_path = { 4, 2 } }, "its directory" },
	{ { .map = WHOLE, .object_path = { 4, 8 } }, "its directory" },
	{ { .map = WHOLE, .object_path = { 4, 10 } }, "its directory" },
	{ { .map = WHOLE, .object_path = { 4, UINT64_MAX } }, "its directory" },
	{ { .map = WHOLE, .object_path = { 12 } }, "its directory" },
	{ { .map = "" }, "its directory" },
	{ { .map = "no numbers in here" }, "chunk map" },
	{ { .map = "[[[0],[5],0,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[1],[4],0,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[18446744073709551615],[2],0,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[0],[4],1,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[0],[4],4294967296,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,704,1]]" }, "chunk map" },
	{ { .map = "[[[0],[4],0,9223372036854775808,704,0]]" }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,9223372036854775808,0]]" }, "chunk map" },
	{ { .map = "[[[0],[3],0,0,704,0]]" }, "chunk map with a hole" },
	{ { .map = "[[[0],[3],0,0,704,0]]", .state = TENSOR_OVERLAPPING },
	  "chunk map with a hole" },
	{ { .map = "[[[0],[0],0,0,704,0]]" }, "chunk map with a hole" },
	{ { .map = "[[[0],[2],0,0,704,0],\n[[0],[2],0,0,704,0]]", .chunks = 2 },
	  "chunk map with a hole" },
	{ { .map = "[[[0],[4],0,297,704,0]]" }, "chunk map" }, /* beyond min_size */
	{ { .map = "[[[0],[4],0,0,704,0]] " }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,704,0],\n[[0],[4],0,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,704,0,0]]" }, "chunk map" },
	{ { .map = "[[[0,0],[4,1],0,0,704,0]]" }, "chunk map" },
	{ { .map = "[[[0],[],0,0,704,0]4]" }, "chunk map" },
	{ { .map = "[[[],[4],0,0,704,0]0]" }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,704,]]  " }, "chunk map" },
	{ { .map = "[[[0],[18446744073709551620],0,0,704,0]]" }, "chunk map" }, /* 2^64 + 4 */
	{ { .map = "[[[0],[4],0,0,704,0],[[0],[4],0,0,704,0]]", .chunks = 2 }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,704,-0]]" }, "chunk map" },
	/* more chunks than the map has room for; and 2^32 - 1 of them, whose boxes take no
	 * memory */
	{ { .map = WHOLE, .chunks = 2 }, "its directory" },
	{ { .map = WHOLE, .chunks = 1000000 }, "its directory" },
	{ { .map = WHOLE, .chunks = UINT32_MAX }, "its directory" },
	{ { .map = SCALARS, .n_dims = 1, .bytes = 1, .chunks = UINT32_MAX }, "its directory" },
	{ { .map = SCALARS, .n_dims = 1, .bytes = 1, .chunks = UINT32_MAX + (uint64_t)4 },
	  "its directory" },
	{ { .map = SCALARS, .n_dims = 1, .bytes = 1, .chunks = UINT32_MAX, .map_bytes = 900 << 20 },
	  "its directory" },
	{ { .map = WHOLE, .chunks = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .total = 2 }, "its directory" },
	{ { .map = WHOLE, .total = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .map_bytes = 900 << 20 }, "its directory" }, /* the file is shorter */
	{ { .map = WHOLE, .map_bytes = UINT32_MAX + (uint64_t)sizeof(WHOLE) }, "its directory" },
	{ { .map = WHOLE, .map_bytes = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .map_bytes = sizeof(WHOLE) }, "chunk map of another length" },
	{ { .map = WHOLE, .map_is = WHOLE " " }, "chunk map of another length" },
	{ { .map = WHOLE, .map_is = "[[[0],[4],0,1,704,0]]" },
	  "chunk map does not match its hash" },
	{ { .map = WHOLE, .map_id = 1 }, "no chunk map" },
	{ { .map = WHOLE, .map_id = INT64_MAX }, "no chunk map" },
	{ { .map = WHOLE, .map_id = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .state = 3 }, "its directory" },
	{ { .map = WHOLE, .state = 256 }, "its directory" },
	{ { .map = WHOLE, .dtype = 256 + CKPT_DTYPE_U8 }, "its directory" },
	{ { .map = WHOLE, .encodings = 1 + 2 }, "its directory" },
	{ { .map = WHOLE, .encodings = UINT64_MAX }, "its directory" },
	{ { .map = WHOLE, .object = { 0, 1000, 1, 0 } }, "its directory" },
	{ { .map = WHOLE, .object = { 0, UINT64_MAX, 1, 0 } }, "its directory" },
	{ { .map = WHOLE, .object = { (uint64_t)1 << 32, 0, 0, 0 } }, "its directory" },
	{ { .map = WHOLE, .object = { 0, 0, 0, (uint64_t)1 << 32 } }, "its directory" },
	{ { .map = WHOLE, .fqn = "\xff" }, "its directory" },
	{ { .map = WHOLE, .twice = true }, "its directory" },
	{ { .map = WHOLE, .source = "../file" }, "its directory" },
	{ { .map = WHOLE, .source = "/file" }, "its directory" },
	{ { .map = WHOLE, .source = "" }, "its directory" },
	{ { .map = WHOLE, .in_index = true }, "it lacks its chunks" },
	{ { .map = WHOLE, .in_index = true, .kept = "too few" },
	  "its chunks do not match their hash" },
	{ { .map = WHOLE, .in_index = true, .kept = "too many", .min_size = 7 },
	  "it lacks its chunks" },
	{ { .map = WHOLE, .in_index = true, .kept = "x", .min_size = UINT64_MAX },
	  "its directory" },
	{ { .map = WHOLE, .in_index = true, .kept = "x", .min_size = 1 }, "chunk map" },
	{ { .map = "[[[0],[4],0,0,1,0]]",
	    .in_index = true,
	    .twice_in_index = true,
	    .sources = 1 + 2,
	    .kept = "x",
	    .min_size = 1 },
	  "its directory" },
	{ { .map = WHOLE, .metadata = "", .n_metadata = 0 }, "its list of metadata files" },
	{ { .map = WHOLE, .metadata = "\1", .n_metadata = 1 }, "its list of metadata files" },
	{ { .map = WHOLE, .metadata = "\0\0", .n_metadata = 2 }, "its list of metadata files" },
	{ { .map = WHOLE, .metadata = "\xff\xff\xff\xff\x0f", .n_metadata = 5 },
	  "its list of metadata files" },
	{ { .map = WHOLE, .metadata = "\1\2m\0\1\2i\0\2x", .n_metadata = 11 },
	  "its list of metadata files" }, /* a hash is never so short */
	{ { .map = WHOLE, .metadata = "\1\3m\0\0\1\2i\0\1", .n_metadata = 11 },
	  "its list of metadata files" },
	{ { .map = WHOLE, .metadata = "\2\2b\0\1\2i\0\1\0\2a\0\1\2i\0\1\0", .n_metadata = 19 },
	  "its list of metadata files" },
	{ { .map = WHOLE, .metadata = "\2\2a\0\1\2i\0\1\0\2a\0\1\2i\0\1\0", .n_metadata = 19 },
	  "its list of metadata files" },
	{ { .map = WHOLE, .metadata_hash = 1 },
	  "its list of metadata files does not match its hash" },
};

START_LOOP_TEST(a_sealed_index_that_lies_is_refused, ARRAY_LEN(forgeries))
{
	struct ckpt_err e = { 0 };
	char want[100];

	(void)snprintf(want, sizeof(want), "chunk index is damaged: %s", forgeries[_i].msg);
	forge(&forgeries[_i].f);
	ck_assert_ptr_null(open_and_show(&e));
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, want);
}
END_TEST

/*
 * Rows beside columns: all boxes of a half have to be compared with each other. For one tensor,
 * that takes more than half of the work that is allowed for all tensors together.
 */
START_LONG_TEST(tensors_of_an_index_share_the_work_of_proving_that_they_are_whole)
{
	enum { SIDE = 12000 };
	struct buf map CLEANUP(buf_release) = BUF_INIT(4 << 20);
	const struct catalog_tensor *t;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	if (!rng_turn(0, 4)) /* half a second */
		return;
	ck_assert_uint_gt((uint64_t)SIDE * (SIDE - 1), BOXES_MAX_WORK / 2);
	for (unsigned i = 0; i < 2 * SIDE; i++)
		buf_printf(&map, "%s[[%u,%u],[%u,%u],0,0,704,0]", i ? ",\n" : "[", i < SIDE ? 0 : i,
			   i < SIDE ? i : 0, i < SIDE ? SIDE : 1, i < SIDE ? 1 : SIDE);
	buf_str(&map, "]");
	REQUIRE(!map.err);
	forge(&(struct forged){ .map = map.data,
				.n_dims = 2 + 1,
				.shape0 = 2 * SIDE,
				.shape1 = SIDE,
				.bytes = (uint64_t)2 * SIDE * SIDE,
				.chunks = 2 * SIDE,
				.fqn = "v",
				.other = "w" });
	ck_assert_msg(!catalog_open(path, &c, &e), "%s", e.msg);
	t = catalog_tensors(c, &n);
	ck_assert_uint_eq(n, 2);
	for (int i = 0; i < 3; i++) { /* what has been proved costs nothing */
		autofree struct chunkmap *m = NULL;

		ck_assert_msg(!catalog_load_map(c, &t[0], &m, &e), "%s", e.msg);
	}
	for (int i = 0; i < 3; i++) {
		struct chunkmap *m = NULL;

		ck_assert_int_eq(catalog_load_map(c, &t[1], &m, &e), -ERR_CORRUPT);
		ck_assert_str_eq(e.msg, "chunk index is damaged: chunk map with a hole, or too "
					"irregular for one of ours");
	}
	catalog_close(c);
}
END_TEST

START_TEST(an_object_says_why_it_cannot_be_read)
{
	struct object_item o = { FQN("o"), .path = catalog_path_flat,
				 .loc = { .file = 7, .offset = 8 }, .fault = "it is too heavy" };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(catalog_add_object(w, &o, &e), 0);
	ck_assert_msg(!catalog_writer_finish(w, &c, &e), "%s", e.msg);
	ck_assert_str_eq(catalog_objects(c, &n)[0].fault, "it is too heavy");
	ck_assert_uint_eq(catalog_objects(c, &n)[0].loc.offset, 0);
	ck_assert_uint_eq(n, 1);
	catalog_close(c);
	catalog_writer_free(w);
}
END_TEST

/* A data file is too large to be hashed. */
START_TEST(a_metadata_file_need_not_be_hashed)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
	ck_assert_int_eq(catalog_add_metadata(w, "m", &(struct place_seen){ .size = 5 }, NULL, &e),
			 0);
	ck_assert_msg(!catalog_writer_finish(w, &c, &e), "%s", e.msg);
	ck_assert_str_eq(catalog_metadata(c, &n)[0].hash, "");
	ck_assert_uint_eq(catalog_metadata(c, &n)[0].size, 5);
	catalog_close(c);
	catalog_writer_free(w);
}
END_TEST

/* A file that is written again within the same second may look unchanged. */
START_TEST(what_may_still_change_unseen_is_not_settled)
{
	const uint64_t now = clock_wall_ns();
	const struct {
		uint64_t mtime_ns;
		bool settled;
	} cases[] = {
		{ now / CLOCK_SECOND * CLOCK_SECOND, false },
		{ (now / CLOCK_SECOND + 1) * CLOCK_SECOND, false }, /* another machine's clock */
		{ (now / CLOCK_SECOND + 1000) * CLOCK_SECOND, true },
		{ now / CLOCK_SECOND * CLOCK_SECOND + 1, true },
		{ (now / CLOCK_SECOND - 10) * CLOCK_SECOND, true },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct place_seen seen = { .mtime_ns = cases[i].mtime_ns,
						 .id = { .len = 1, .v = { 0xab } } };
		struct catalog_writer *w = NULL;
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		size_t n;

		ck_assert_int_eq(catalog_writer_new(NULL, "dcp", "/", &w, &e), 0);
		ck_assert_int_eq(catalog_add_metadata(w, "m", &seen, NULL, &e), 0);
		ck_assert_msg(!catalog_writer_finish(w, &c, &e), "%s", e.msg);
		ck_assert_str_eq(catalog_metadata(c, &n)[0].id, "ab");
		ck_assert_int_eq(catalog_metadata(c, &n)[0].settled, cases[i].settled);
		catalog_close(c);
		catalog_writer_free(w);
	}
}
END_TEST

/* If there is a fault or a text, nobody looks at the place of the object. */
START_LOOP_TEST(an_object_that_is_in_no_file_points_nowhere, 2)
{
	struct forged f = {
		.map = WHOLE, .object = { 77, 1, 2, 88 }, .object_fault = !_i, .object_text = _i
	};
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	forge(&f);
	if (catalog_open(path, &c, &e)) {
		ck_assert_int_eq(e.code, EBADMSG);
		return;
	}
	ck_assert_uint_eq(catalog_objects(c, &n)[0].loc.file, 0);
	ck_assert_uint_eq(catalog_objects(c, &n)[0].loc.encoding, 0);
	catalog_close(c);
}
END_TEST

/* Boxes without elements, which a builder never writes, do no harm. */
START_LOOP_TEST(empty_boxes_in_a_forged_map_do_no_harm, 4)
{
	static const char *const maps[] = {
		"[[[0],[0],0,0,704,0],\n[[0],[4],0,0,704,0]]",
		"[[[0],[4],0,0,704,0],\n[[4],[0],0,0,704,0]]",
		"[[[0],[2],0,0,704,0],\n[[2],[0],0,0,704,0],\n[[2],[2],0,0,704,0]]",
		"[[[2],[2],0,0,704,0],\n[[1],[0],0,0,704,0],\n[[0],[2],0,0,704,0]]",
	};
	struct forged f = { .map = maps[_i], .chunks = _i < 2 ? 2 : 3 };
	struct ckpt_err e = { 0 };

	forge(&f);
	free(open_and_show(
		&e)); /* any result will do, but no crash; the fuzzer of plans does the rest */
}
END_TEST

START_LONG_TEST(random_directories_never_crash)
{
	struct rng r = rng_new();
	struct buf good = BUF_INIT(10000);
	const struct forged f = { .map = WHOLE };
	unsigned opened = 0;

	put_forged(&good, &f);
	for (int i = 0; i < (CHECK_FULL() ? 1500 : 200); i++) {
		autofree char *d = malloc(good.len), *got = NULL;
		struct ckpt_err e = { 0 };

		REQUIRE(d);
		memcpy(d, good.data, good.len);
		for (uint64_t k = 1 + rng_below(&r, 2); k; k--)
			d[rng_below(&r, good.len)] =
				(char)(rng_chance(&r, 50) ? rng_below(&r, 256) : 0xff);
		forge_bytes(&f, &(struct buf){ .data = d, .len = good.len });
		got = open_and_show(&e);
		opened += got != NULL;
	}
	ck_assert_uint_gt(opened, 10);
	buf_release(&good);
}
END_TEST

/* Mostly the usual number; otherwise one at a limit. 0 stands for "as it should be". */
static uint64_t odd_number(struct rng *r, uint64_t usual)
{
	static const uint64_t odd[] = { 1,
					2,
					3,
					4,
					5,
					64,
					65,
					66,
					255,
					256,
					65536,
					INT32_MAX,
					(uint64_t)INT32_MAX + 1,
					UINT32_MAX - 1,
					UINT32_MAX,
					(uint64_t)UINT32_MAX + 1,
					(uint64_t)UINT32_MAX + 2,
					INT64_MAX,
					(uint64_t)INT64_MAX + 1,
					UINT64_MAX - 1,
					UINT64_MAX };

	return rng_chance(r, 90) ? usual : odd[rng_below(r, ARRAY_LEN(odd))];
}

/* n chunks with that many dimensions; now and then an odd number, or a comma too few or too
 * many. */
static void odd_map(struct rng *r, struct buf *b, uint64_t n, uint64_t dims)
{
	buf_str(b, "[");
	for (uint64_t i = 0; i < n; i++) {
		buf_str(b, i ? ",\n[" : "[");
		for (int list = 0; list < 2; list++) {
			buf_str(b, list ? ",[" : "[");
			for (uint64_t d = 0; d < dims && d < 70; d++)
				buf_printf(b, "%s%llu", d ? "," : "",
					   (unsigned long long)odd_number(r, list ? (d ? 1 : 4 / n)
									     : d  ? 0
										  : i * 4 / n));
			buf_str(b, "]");
		}
		for (int k = 0; k < 4; k++)
			buf_printf(b, ",%llu", (unsigned long long)odd_number(r, k == 2 ? 7 : 0));
		buf_str(b, "]");
	}
	buf_str(b, "]");
	REQUIRE(!b->err);
	for (uint64_t k = rng_chance(r, 90) ? 0 : 1 + rng_below(r, 3); k; k--)
		b->data[rng_below(r, b->len)] = "[],0123456789\n-x "[rng_below(r, 17)];
}

/*
 * All numbers of an index are forged, one at a time or together, with every hash right: this is
 * what gets past the seals. There must be no crash, and a map that is returned must have as many
 * chunks as it says; sanitizers see the rest.
 */
START_LONG_TEST(random_forgeries_never_crash)
{
	struct rng r = rng_new();
	const int rounds = CHECK_FULL() ? 3000 : 300;
	unsigned opened = 0, refused = 0;

	for (int i = 0; i < rounds; i++) {
		struct buf map = BUF_INIT(1 << 20);
		uint64_t dims = rng_below(&r, 3), chunks = 1 + rng_below(&r, dims ? 4 : 1);
		struct forged f = { .dtype = odd_number(&r, 0),
				    .shape0 = odd_number(&r, 0),
				    .bytes = odd_number(&r, dims ? 4 : 1),
				    .chunks = odd_number(&r, chunks),
				    .total = odd_number(&r, 0),
				    .map_bytes = odd_number(&r, 0),
				    .map_id = odd_number(&r, 0),
				    .state = odd_number(&r, 0),
				    .tensors = odd_number(&r, 0),
				    .objects = odd_number(&r, 0),
				    .sources = odd_number(&r, 0),
				    .encodings = odd_number(&r, 0),
				    .min_size = odd_number(&r, 0),
				    .n_dims = odd_number(&r, 1 + dims),
				    .object = { odd_number(&r, 0), odd_number(&r, 0),
						odd_number(&r, 0), odd_number(&r, 0) },
				    .path = odd_number(&r, 0),
				    .n_logical = odd_number(&r, 0),
				    .logical = odd_number(&r, 4) };
		autofree char *got = NULL;
		struct ckpt_err e = { 0 };

		odd_map(&r, &map, chunks, dims);
		f.map = map.data;
		forge(&f);
		got = open_and_show(&e);
		opened += got != NULL;
		refused += !got;
		buf_release(&map);
	}
	ck_assert_int_gt((int)opened, 0);
	ck_assert_int_gt((int)refused, rounds / 3);
}
END_TEST

/* ---- faults ---- */

START_LOOP_TEST(every_allocation_may_fail, 2)
{
	unsigned rounds = 0;

	fault_sqlite();
	FAULT_LOOP_SOME(FAULT_ALLOC, 1)
	{
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		int rc = build(_i ? path : NULL, &c, &e);

		(void)fault_off();
		rounds++;
		REQUIRE(rc || !e.code);
		REQUIRE(!rc || (rc < 0 && e.code == -rc && e.msg[0] && !c));
		/* SQLite can do without some memory; if it cannot, that is the reason given. */
		REQUIRE(!rc || rc == -ENOMEM);
		ck_assert_msg(!rc || strstr(e.msg, "out of memory") != NULL, "%s", e.msg);
		catalog_close(c);
		if (_i) {
			struct stat st;

			REQUIRE(fstatat(dir_fd, "index.sqlite.tmp", &st, 0));
			REQUIRE(rc || !fstatat(dir_fd, "index.sqlite", &st, 0));
			(void)unlinkat(dir_fd, "index.sqlite", 0);
		}
	}
	ck_assert_uint_gt(rounds, 30);
}
END_TEST

START_LOOP_TEST(opening_and_loading_may_fail_anywhere, 2)
{
	autofree char *want = NULL;

	fault_sqlite();
	want = build_and_show(path);
	FAULT_LOOP(_i ? FAULT_READ : FAULT_ALLOC)
	{
		struct ckpt_err e = { 0 };
		char *got = open_and_show(&e);

		(void)fault_off();
		REQUIRE(got ? !strcmp(got, want) : e.code == (_i ? EIO : ENOMEM) || fault_hit());
		free(got);
	}
}
END_TEST

START_LOOP_TEST(a_disk_that_fails_leaves_nothing_behind, 3)
{
	static const enum fault_kind kinds[] = { FAULT_WRITE, FAULT_SYNC, FAULT_NAME };
	unsigned failed = 0;

	fault_sqlite();
	FAULT_LOOP(kinds[_i])
	{
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		struct stat st;
		int rc = build(path, &c, &e);

		(void)fault_off();
		if (fault_hit() && strcmp(fault_name(), "unlink") != 0) {
			const char *named = strstr(e.msg, "'");

			ck_assert_int_eq(rc, _i ? -EIO : -ENOSPC);
			ck_assert_msg(named && bytes_begin(named + 1, strlen(named + 1), path),
				      "%s", e.msg);
			ck_assert_int_ne(fstatat(dir_fd, "index.sqlite", &st, 0), 0);
			failed++;
		}
		ck_assert_int_ne(fstatat(dir_fd, "index.sqlite.tmp", &st, 0), 0);
		catalog_close(c);
		(void)unlinkat(dir_fd, "index.sqlite", 0);
	}
	ck_assert_uint_gt(failed, _i ? 0 : 5);
}
END_TEST

SUITE(catalog, .setup = setup, .teardown = dir_teardown, .seconds = 120)
