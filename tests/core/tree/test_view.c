/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "file/npy.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "rng.h"
#include "suites.h"
#include "tree/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FQN(s)	s, sizeof(s) - 1
#define LONG50	"0123456789.123456789.123456789.123456789.123456789"
#define LONG250 LONG50 LONG50 LONG50 LONG50 LONG50

static const struct {
	const char *fqn;
	size_t n;
	bool object;
	const char *name; /* without suffix; NULL: cut */
} entries[] = {
	/* in natural order */
	{ FQN(""), false, "%" },
	{ FQN("."), false, "%2E" },
	{ FQN(".."), false, "%2E%2E" },
	{ FQN(LONG250 "aa"), false, LONG250 "aa" }, /* too long with ".npy" */
	{ FQN(LONG250 "aaaaa"), false, LONG250 "aaaaa" },
	{ FQN(LONG250 "aaaaaa"), false, NULL }, /* 256 bytes */
	{ FQN("A"), false, "A" },
	{ FQN("a"), false, "a" },
	{ FQN("a\0b"), false, "a%00b" },
	{ FQN("a%2Fb"), false, "a%252Fb" },
	{ FQN("a.b"), false, "a.b" },
	{ FQN("a.b.2"), false, "a.b.2" },
	{ FQN("a.b.10"), false, "a.b.10" },
	{ FQN("a.b.npy"), false, "a.b.npy" },
	{ FQN("a/b"), false, "a%2Fb" },
	{ FQN("a"), true, "a" },
	{ FQN("rng/shard_0"), true, "rng%2Fshard_0" },
};

static struct catalog *make_catalog(void)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct chunk_loc loc = { .length = 1000 };
	const uint64_t shape[] = { 2, 3 }, box[] = { 0, 0, 2, 3 };
	struct tensor_chunks t = { .dtype = CKPT_DTYPE_F32,
				   .n_dims = 2,
				   .shape = shape,
				   .count = 1,
				   .boxes = box,
				   .locs = &loc };
	uint32_t id;

	REQUIRE(!catalog_writer_new(NULL, "dcp", "/", &w, &e));
	REQUIRE(!catalog_add_source(w, "f", 1, &id, &e));
	REQUIRE(!catalog_add_encoding(w, "dcp", &id, &e));
	REQUIRE(!catalog_add_encoding(w, "dcp+stream.zstd/1", &id, &e));
	for (size_t i = ARRAY_LEN(entries); i-- > 0;) {
		t.fqn = entries[i].fqn;
		t.fqn_len = entries[i].n;
		loc.encoding = i == ARRAY_LEN(entries) - 1;
		if (entries[i].object)
			REQUIRE(!catalog_add_object(w,
						    &(struct object_item){ .fqn = t.fqn,
									   .fqn_len = t.fqn_len,
									   .loc = loc },
						    &e));
		else
			REQUIRE(!catalog_add_tensor(w, &t, &e));
	}
	REQUIRE(!catalog_writer_finish(w, &c, &e));
	catalog_writer_free(w);
	return c;
}

static uint64_t must_lookup(const struct view *v, uint64_t dir, const char *name)
{
	uint64_t n = view_lookup(v, dir, name);

	REQUIRE(n);
	return n;
}

START_TEST(the_tree_is_the_same_from_every_side)
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	char name[NAME_CAP], again[NAME_CAP];
	uint64_t nodes[200];
	size_t n = 0;

	ck_assert_int_eq(view_new(c, &(struct view_opts){ 0 }, &v, &e), 0);
	nodes[n++] = VIEW_ROOT_NODE;
	for (size_t at = 0; at < n; at++) { /* every directory, every entry */
		uint64_t dir = nodes[at], count = view_entries(v, dir);

		ck_assert_int_ne(view_kind(v, dir), VIEW_NONE);
		ck_assert_int_eq(count != 0, view_kind(v, dir) == VIEW_DIR);
		for (uint64_t pos = 0; pos < count; pos++) {
			uint64_t node = view_entry(v, dir, pos, name);

			ck_assert_uint_ne(node, 0);
			ck_assert_uint_eq(view_lookup(v, dir, name), node);
			ck_assert_uint_eq(view_parent(v, node), dir);
			ck_assert(view_name(v, node, again));
			ck_assert_str_eq(again, name);
			for (size_t k = 0; k < n; k++)
				ck_assert_uint_ne(nodes[k], node);
			nodes[n++] = node;
		}
		ck_assert_uint_eq(view_entry(v, dir, count, name), 0);
		ck_assert_uint_eq(view_entry(v, dir, UINT64_MAX, name), 0);
	}
	ck_assert_uint_eq(n, 1 + 7 + 2 * 15 + 2 * 2 + 1 + (15 + 1) + 1 + 1);
	ck_assert_uint_eq(view_parent(v, VIEW_ROOT_NODE), VIEW_ROOT_NODE);
	ck_assert(!view_name(v, VIEW_ROOT_NODE, again));
	ck_assert(!view_name(v, nodes[n - 1] + 0x10000, again));
	view_free(v);
	catalog_close(c);
}
END_TEST

START_TEST(entries_come_in_natural_order_with_readable_names)
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	static const char *const dirs[] = { "tensors", "npy", "objects" };

	ck_assert_int_eq(view_new(c, &(struct view_opts){ 0 }, &v, &e), 0);
	for (size_t d = 0; d < 3; d++) {
		uint64_t dir = must_lookup(v, VIEW_ROOT_NODE, dirs[d]), pos = 0;
		const char *suffix = d == 1 ? ".npy" : "";

		for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
			char name[NAME_CAP], want[400];
			bool fits =
				entries[i].name && strlen(entries[i].name) + strlen(suffix) <= 255;

			if (entries[i].object != (d == 2))
				continue;
			ck_assert_uint_ne(view_entry(v, dir, pos++, name), 0);
			(void)snprintf(want, sizeof(want), "%s%s",
				       entries[i].name ? entries[i].name : "", suffix);
			if (fits)
				ck_assert_str_eq(name, want);
			else
				ck_assert_ptr_nonnull(strstr(name, "%~"));
		}
		ck_assert_uint_eq(d == 2 ? 2 * pos : pos, view_entries(v, dir));
	}
	view_free(v);
	catalog_close(c);
}
END_TEST

static const struct {
	const char *dir, *name;
} strangers[] = {
	{ NULL, "" },
	{ NULL, "tensor" },
	{ NULL, "tensors/" },
	{ NULL, "info.json" },
	{ ".ckptfs", "" },
	{ ".ckptfs", "Info.json" },
	{ "tensors", "" },
	{ "tensors", "." },
	{ "tensors", ".." },
	{ "tensors", "%41" }, /* "A" */
	{ "tensors", "%61" },
	{ "tensors", "a%2fb" }, /* lower case */
	{ "tensors", "a%2" },
	{ "tensors", "a%" },
	{ "tensors", "a.npy" },
	{ "tensors", "b" },
	{ "tensors", "a.b.02" }, /* sorts like 2, but is another string */
	{ "tensors", "%2E%2E%2E" },
	{ "tensors", "%00" },
	{ "tensors", LONG250 "aaaaaa" },
	{ "tensors", LONG250 "%~0123456789abcdef" },
	{ "tensors", "%~0123456789abcdef" },
	{ "npy", "a" },
	{ "npy", ".npy" },
	{ "npy", "a.NPY" },
	{ "npy", "%41.npy" },
	{ "npy", LONG250 "a.npy" },
	{ "objects", "step" },
	{ "objects", "a.b" },
};

START_LOOP_TEST(every_file_has_one_name_only, ARRAY_LEN(strangers))
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	uint64_t dir;

	ck_assert_int_eq(view_new(c, &(struct view_opts){ 0 }, &v, &e), 0);
	dir = strangers[_i].dir ? must_lookup(v, VIEW_ROOT_NODE, strangers[_i].dir)
				: VIEW_ROOT_NODE;
	ck_assert_uint_eq(view_lookup(v, dir, strangers[_i].name), 0);
	view_free(v);
	catalog_close(c);
}
END_TEST

START_TEST(names_in_what_is_no_directory_are_nothing)
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	uint64_t file;
	static const uint64_t none[] = { 0,
					 5,
					 6,
					 1021,
					 1024,
					 (uint64_t)1 << 35,
					 ((uint64_t)1 << 36) + 15,
					 ((uint64_t)4 << 36),
					 UINT64_MAX,
					 (uint64_t)1 << 63 };

	ck_assert_int_eq(view_new(c, &(struct view_opts){ 0 }, &v, &e), 0);
	file = must_lookup(v, must_lookup(v, VIEW_ROOT_NODE, "tensors"), "a");
	ck_assert_uint_eq(view_lookup(v, file, "a"), 0);
	ck_assert_uint_eq(view_entries(v, file), 0);
	for (size_t i = 0; i < ARRAY_LEN(none); i++) {
		char name[NAME_CAP];

		ck_assert_int_eq(view_kind(v, none[i]), VIEW_NONE);
		ck_assert_uint_eq(view_lookup(v, none[i], "a"), 0);
		ck_assert_uint_eq(view_entries(v, none[i]), 0);
		ck_assert_uint_eq(view_entry(v, none[i], 0, name), 0);
	}
	view_free(v);
	catalog_close(c);
}
END_TEST

static const struct {
	const char *include[3], *exclude[3];
	const char *shown; /* names in tensors/ and, behind the bar, in objects/ */
} filters[] = {
	{ { "a.b*", NULL }, { NULL }, "a.b a.b.2 a.b.10 a.b.npy | " },
	{ { "a.b.*", "A", NULL }, { "*.npy", NULL }, "A a.b.2 a.b.10 | " },
	{ { "a", NULL }, { NULL }, "a | a a.json " },
	{ { NULL }, { "*", NULL }, " | " },
	{ { "nothing", NULL }, { NULL }, " | " },
	{ { "rng*", "a/b", NULL }, { NULL }, "a%2Fb | rng%2Fshard_0 rng%2Fshard_0.json " },
	{ { "[aA]", NULL }, { "a", NULL }, "A | " },
};

START_LOOP_TEST(include_and_exclude_choose_what_exists, ARRAY_LEN(filters))
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	struct view_opts o = { .include = filters[_i].include[0] ? filters[_i].include : NULL,
			       .exclude = filters[_i].exclude };
	char got[400] = "";
	static const char *const dirs[] = { "tensors", "objects" };

	ck_assert_int_eq(view_new(c, &o, &v, &e), 0);
	for (size_t d = 0; d < 2; d++) {
		uint64_t dir = must_lookup(v, VIEW_ROOT_NODE, dirs[d]);
		char name[NAME_CAP];

		ck_assert_uint_eq(d ? 2 * view_objects(v) : view_tensors(v), view_entries(v, dir));
		for (uint64_t pos = 0; view_entry(v, dir, pos, name); pos++) {
			(void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s ", name);
			if (!d || pos < view_objects(v))
				ck_assert_uint_eq(view_lookup(v, dir, name),
						  d ? view_object_node(pos)
						    : view_tensor_node(pos));
		}
		if (!d)
			(void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s| ",
				       *got ? "" : " ");
	}
	ck_assert_str_eq(got, filters[_i].shown);
	/* A tensor that is left out is not found by its name either. */
	if (!strstr(filters[_i].shown, "a.b ")) {
		ck_assert_uint_eq(view_lookup(v, must_lookup(v, VIEW_ROOT_NODE, "tensors"), "a.b"),
				  0);
		ck_assert_uint_eq(view_lookup(v, must_lookup(v, VIEW_ROOT_NODE, "npy"), "a.b.npy"),
				  0);
		ck_assert_int_eq(view_find_tensor(v, "a.b", 3), -1);
	}
	view_free(v);
	catalog_close(c);
}
END_TEST

static int thousand(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)number;
	(void)e;
	*ret = 1000;
	return 0;
}

static int two(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)number;
	(void)e;
	*ret = 2;
	return 0;
}

static int seven(void *arg, size_t number, struct buf *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)number;
	(void)e;
	buf_str(ret, "7\n");
	return 0;
}

START_TEST(files_consist_of_contiguous_segments)
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	static const char *const dirs[] = { "tensors", "npy", "objects" };

	ck_assert_int_eq(view_new(c,
				  &(struct view_opts){ .object_size = thousand,
						       .object_json = seven,
						       .object_json_size = two },
				  &v, &e),
			 0);
	for (size_t d = 0; d < 3; d++) {
		uint64_t dir = must_lookup(v, VIEW_ROOT_NODE, dirs[d]);
		char name[NAME_CAP];

		for (uint64_t pos = 0; view_entry(v, dir, pos, name); pos++) {
			struct vfile f = VFILE_INIT;
			uint64_t at = 0, size;

			ck_assert_int_eq(view_describe(v, view_lookup(v, dir, name), &f, &e), 0);
			for (size_t i = 0; i < f.n; i++) {
				ck_assert_uint_eq(f.seg[i].off, at);
				ck_assert_uint_eq(f.seg[i].from, 0);
				at += f.seg[i].len;
			}
			ck_assert_uint_eq(at, f.size);
			ck_assert_int_eq(view_size(v, view_lookup(v, dir, name), &size, &e), 0);
			ck_assert_uint_eq(at, size);
			if (d == 0)
				ck_assert_uint_eq(f.size, 24);
			if (d == 1) {
				char head[NPY_MAX_HEADER];
				size_t len = npy_header(CKPT_DTYPE_F32, 2,
							(const uint64_t[]){ 2, 3 }, head);

				ck_assert_uint_eq(f.size, len + 24);
				ck_assert_uint_eq(f.seg[0].len, len);
				ck_assert_mem_eq(f.text.data, head, len);
			}
			if (d == 2)
				ck_assert_uint_eq(f.size, strstr(name, ".json") ? 2 : 1000);
			vfile_release(&f);
		}
	}
	view_free(v);
	catalog_close(c);
}
END_TEST

/* An object keeps its name; another object's value that would be called the same gives way. */
START_TEST(a_value_gives_way_to_an_object_of_its_name)
{
	static const char *const names[] = { LONG250 "aaaaa", LONG250 "aaaaa.json", "a",
					     "a.json",	      "a.json.json",	    "b" };
	static const char *const values[] = { NULL, NULL, "a.json.json.json", "b.json" };
	struct view_opts o = { .object_size = thousand, .object_json = seven };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	struct chunk_loc loc = { 0 };
	char name[NAME_CAP], again[NAME_CAP];
	uint64_t dir, pos = 0;

	REQUIRE(!catalog_writer_new(NULL, "dcp", "/", &w, &e));
	REQUIRE(!catalog_add_source(w, "f", 1, &loc.file, &e));
	REQUIRE(!catalog_add_encoding(w, "dcp", &loc.encoding, &e));
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		REQUIRE(!catalog_add_object(w,
					    &(struct object_item){ .fqn = names[i],
								   .fqn_len = strlen(names[i]),
								   .loc = loc },
					    &e));
	REQUIRE(!catalog_writer_finish(w, &c, &e));
	catalog_writer_free(w);
	ck_assert_int_eq(view_new(c, &o, &v, &e), 0);
	dir = must_lookup(v, VIEW_ROOT_NODE, "objects");
	ck_assert_uint_eq(view_entries(v, dir), ARRAY_LEN(names) + ARRAY_LEN(values));
	for (; view_entry(v, dir, pos, name); pos++) {
		uint64_t node = must_lookup(v, dir, name), id = 0;
		const char *want =
			pos < ARRAY_LEN(names) ? names[pos] : values[pos - ARRAY_LEN(names)];
		bool object = false;

		if (want && strlen(want) < NAME_CAP)
			ck_assert_str_eq(name, want);
		ck_assert_int_eq(view_kind(v, node), VIEW_FILE);
		ck_assert(view_name(v, node, again));
		ck_assert_str_eq(again, name);
		ck_assert(view_single(v, node, &object, &id) && object);
		if (pos < ARRAY_LEN(names))
			ck_assert_uint_eq(id, pos);
		else if (want)
			ck_assert_int_eq(strncmp(want, names[id], strlen(names[id])), 0);
	}
	ck_assert_uint_eq(pos, ARRAY_LEN(names) + ARRAY_LEN(values));
	/* Values that are not listed have no node either. */
	for (size_t i = 0, n = 0; i < ARRAY_LEN(names); i++) {
		uint64_t node = view_object_node(ARRAY_LEN(names) + i);

		n += view_kind(v, node) == VIEW_FILE;
		ck_assert_int_eq(view_kind(v, node), i == 2 || i == 3 ? VIEW_NONE : VIEW_FILE);
		ck_assert_uint_le(n, ARRAY_LEN(values));
	}
	view_free(v);
	catalog_close(c);
}
END_TEST

/* FNV-1a does not resist deliberate collisions. These pairs are well known. */
START_LOOP_TEST(long_names_with_one_hash_are_refused, 3)
{
	static const char *const pairs[][2] = {
		{ "8yn0iYCKYHlIj4-BwPqk" LONG250, "GReLUrM4wMqfg9yzV3KQ" LONG250 },
		{ "7mohtcOFVz" LONG250, "c1E51sSEyx" LONG250 },
		{ "7mohtcOFVz", "c1E51sSEyx" }, /* short names are not hashed */
	};
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	struct chunk_loc loc = { 0 };
	int rc;

	REQUIRE(!catalog_writer_new(NULL, "dcp", "/", &w, &e));
	REQUIRE(!catalog_add_source(w, "f", 1, &loc.file, &e));
	REQUIRE(!catalog_add_encoding(w, "dcp", &loc.encoding, &e));
	for (int i = 0; i < 2; i++)
		REQUIRE(!catalog_add_object(w,
					    &(struct object_item){ .fqn = pairs[_i][i],
								   .fqn_len = strlen(pairs[_i][i]),
								   .loc = loc },
					    &e));
	REQUIRE(!catalog_add_object(
		w, &(struct object_item){ FQN(LONG250 "another long one"), .loc = loc }, &e));
	REQUIRE(!catalog_writer_finish(w, &c, &e));
	catalog_writer_free(w);
	rc = view_new(c, &(struct view_opts){ 0 }, &v, &e);
	if (_i == 2) {
		ck_assert_int_eq(rc, 0);
	} else {
		ck_assert_int_eq(rc, -ENOTSUP);
		ck_assert_ptr_nonnull(strstr(e.msg, "two FQNs have the same file name: '"));
		ck_assert_ptr_null(v);
	}
	view_free(v);
	catalog_close(c);
}
END_TEST

START_TEST(every_tensor_is_found_by_its_fqn)
{
	struct catalog *c = make_catalog();
	struct view *v = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(view_new(c, &(struct view_opts){ 0 }, &v, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
		int64_t at = entries[i].object ? view_find_object(v, entries[i].fqn, entries[i].n)
					       : view_find_tensor(v, entries[i].fqn, entries[i].n);

		ck_assert_int_ge(at, 0);
		if (!entries[i].object)
			ck_assert_uint_eq(catalog_tensors(c, &n)[at].fqn_len, entries[i].n);
	}
	ck_assert_int_eq(view_find_tensor(v, "a.b.1", 5), -1);
	ck_assert_int_eq(view_find_object(v, "a.b", 3), -1);
	ck_assert_int_eq(view_find_tensor(v, "zzz", 3), -1);
	view_free(v);
	catalog_close(c);
}
END_TEST

START_TEST(without_memory_it_says_so)
{
	struct catalog *c = make_catalog();

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct view *v = NULL;
		struct ckpt_err e = { 0 };
		int rc = view_new(c, &(struct view_opts){ 0 }, &v, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		view_free(v);
	}
	catalog_close(c);
}
END_TEST

SUITE(view)
