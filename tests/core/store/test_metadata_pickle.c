/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata as pickles. What the systems themselves wrote is read, written again and compared as a
 * graph of objects; random metadata comes back as it was.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "model/box.h"
#include "pickle_util.h"
#include "rng.h"
#include "save/metadata.h"
#include "store/metadata_pickle.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena = ARENA_INIT((size_t)1 << 30);

static void teardown(void)
{
	arena_release(&arena);
}

/* ---- from a pickle to struct ckpt_metadata ---- */

static const struct pk_value *attr(const struct pk_value *v, const char *name)
{
	const struct pk_value *x = pk_attr(v, name);

	ck_assert_msg(x != NULL, "no attribute '%s'", name);
	return x;
}

static const uint64_t *numbers(const struct pk_value *v, uint8_t *ret_n)
{
	uint64_t buf[CKPT_MAX_DIMS];
	size_t n;

	REQUIRE(pk_numbers(v, buf, CKPT_MAX_DIMS, &n));
	*ret_n = (uint8_t)n;
	return arena_dup(&arena, buf, n * sizeof(*buf));
}

static const char *text_of(const struct pk_value *v, uint32_t *ret_len)
{
	if (v->type == PK_OBJECT) /* PosixPath('...'), of the parts */
		v = &v->n->v[PK_ARGS].n->v[0];
	if (v->type == PK_NONE)
		return NULL;
	REQUIRE(v->type == PK_STR);
	if (ret_len)
		*ret_len = v->s->len;
	return arena_dup(&arena, v->s->data, v->s->len);
}

static struct ckpt_tensor_props props_of(const struct pk_value *v)
{
	struct ckpt_tensor_props p = { 0 };
	const struct pk_value *s = &v->n->v[PK_STATE], *f = s->n->v;

	if (s->type == PK_DICT) {
		const char *t = text_of(attr(v, "dtype"), NULL);

		p.dtype = (uint8_t)ckpt_dtype_by_name(t + 6, strlen(t) - 6); /* "torch." */
		p.requires_grad = attr(v, "requires_grad")->i;
		return p;
	}
	REQUIRE(s->type == PK_TUPLE && pk_len(s) == 5);
	p.dtype = (uint8_t)ckpt_dtype_by_name(f[0].g->name->data, f[0].g->name->len);
	p.requires_grad = f[2].i;
	p.memory_format = (uint8_t)f[3].n->v[PK_ARGS].n->v[0].i;
	p.pin_memory = f[4].i;
	return p;
}

static void read_tensor(const struct pk_value *v, struct ckpt_tensor_meta *t)
{
	const struct pk_value *list = attr(v, "chunks");
	struct ckpt_chunk_meta *chunks = arena_array(&arena, pk_len(list), sizeof(*chunks));
	uint8_t n;

	t->props = props_of(attr(v, "properties"));
	t->size = numbers(attr(v, "size"), &t->n_dims);
	for (size_t i = 0; i < pk_len(list); i++) {
		chunks[i].off = numbers(attr(&list->n->v[i], "offsets"), &n);
		REQUIRE(n == t->n_dims);
		chunks[i].len = numbers(attr(&list->n->v[i], "sizes"), &n);
		REQUIRE(n == t->n_dims);
	}
	t->chunks = chunks;
	t->n_chunks = pk_len(list);
}

static void read_state(const struct pk_value *d, struct ckpt_metadata *md)
{
	md->n_entries = pk_len(d);
	md->entries = arena_array(&arena, md->n_entries, sizeof(*md->entries));
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct pk_value *v = &d->n->v[2 * i + 1];
		struct ckpt_meta_entry *t = &md->entries[i];

		t->fqn = text_of(v - 1, &t->fqn_len);
		t->is_tensor = pk_attr(v, "chunks") != NULL;
		if (t->is_tensor)
			read_tensor(v, &t->tensor);
	}
}

static void read_paths(const struct pk_value *d, struct ckpt_metadata *md)
{
	struct ckpt_fqn_path *paths = arena_array(&arena, pk_len(d), sizeof(*paths));

	if (d->type == PK_NONE)
		return;
	REQUIRE(d->type == PK_DICT);
	md->paths = paths;
	md->n_paths = pk_len(d);
	for (size_t i = 0; i < md->n_paths; i++) {
		const struct pk_value *v = &d->n->v[2 * i + 1];
		struct ckpt_path_step *s = arena_array(&arena, pk_len(v), sizeof(*s));

		paths[i].fqn = text_of(v - 1, &paths[i].fqn_len);
		paths[i].steps = s;
		paths[i].n_steps = (uint32_t)pk_len(v);
		for (size_t k = 0; k < pk_len(v); k++)
			if (v->n->v[k].type == PK_INT)
				s[k].position = (uint64_t)v->n->v[k].i;
			else
				s[k].key = text_of(&v->n->v[k], &s[k].key_len);
	}
}

static struct ckpt_meta_index index_of(const struct pk_value *v, bool hyper)
{
	struct ckpt_meta_index x = { .hint = CKPT_META_NO_HINT };
	const struct pk_value *off = pk_attr(v, "offset"), *hint = attr(v, "index");

	x.fqn = text_of(attr(v, "fqn"), &x.fqn_len);
	x.has_offset = off != NULL;
	if (off)
		x.offset = numbers(off, &x.n_dims);
	if (hyper && hint->type == PK_NONE)
		x.has_offset = false;
	if (hint->type == PK_INT)
		x.hint = (int32_t)hint->i;
	return x;
}

static struct ckpt_storage_info info_of(const struct pk_value *v)
{
	const struct pk_value *key = pk_attr(v, "tensor_key");
	const struct pk_value *transforms = pk_attr(v, "transform_descriptors");
	struct ckpt_storage_info s = { .path = text_of(attr(v, "relative_path"), NULL),
				       .offset = (uint64_t)attr(v, "offset")->i,
				       .length = (uint64_t)attr(v, "length")->i };

	if (key)
		s.tensor_key = text_of(key, &s.tensor_key_len);
	if (transforms) {
		REQUIRE(pk_len(transforms) == 1);
		s.transform = text_of(&transforms->n->v[0], NULL);
	}
	return s;
}

static void read_stored(const struct pk_value *d, bool hyper, struct ckpt_metadata *md)
{
	struct ckpt_write_result *r = arena_array(&arena, pk_len(d), sizeof(*r));

	md->stored = r;
	md->n_stored = pk_len(d);
	for (size_t i = 0; i < md->n_stored; i++) {
		r[i].index = index_of(&d->n->v[2 * i], hyper);
		r[i].info = info_of(&d->n->v[2 * i + 1]);
	}
}

static struct ckpt_metadata read_metadata(const struct pk_value *root, bool hyper)
{
	const struct pk_value *meta = pk_attr(root, "storage_meta");
	struct ckpt_metadata md = { .version = text_of(attr(root, "version"), NULL) };

	read_state(attr(root, "state_dict_metadata"), &md);
	read_paths(attr(root, "planner_data"), &md);
	read_stored(attr(root, "storage_data"), hyper, &md);
	if (meta) {
		md.storage.checkpoint_id = text_of(attr(meta, "checkpoint_id"), NULL);
		md.storage.save_id = text_of(attr(meta, "save_id"), NULL);
	}
	return md;
}

/* ---- helpers ---- */

static struct pickle *load(const void *p, size_t n)
{
	struct pickle_opts opts = { .max_bytes = (size_t)1 << 30 };
	struct pickle *ret;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(p, n, 0, &opts, &ret, &e), "%s", e.msg);
	ck_assert_uint_eq(pickle_end(ret), n);
	return ret;
}

static struct buf write_md(const struct ckpt_metadata *md, bool hyper)
{
	struct buf b = BUF_INIT((size_t)1 << 30);
	struct ckpt_err e = { 0 };
	int rc =
		hyper ? metadata_pickle_hyperparallel(md, &b, &e) : metadata_pickle_dcp(md, &b, &e);

	ck_assert_msg(!rc, "%s", e.msg);
	return b;
}

/* Must be {}, or have the shape of a tensor that was flattened. */
static void check_mcore_data(const struct pk_value *v, const struct ckpt_tensor_meta *t)
{
	const struct pk_value *key = v->n->v, *dims = key + 1;

	ck_assert_int_eq(v->type, PK_DICT);
	ck_assert_uint_eq(v->n->len, t->n_logical ? 1 : 0);
	if (!t->n_logical)
		return;
	ck_assert_str_eq(key->s->data, "nd_reformulated_orig_global_shape");
	ck_assert_int_eq(dims->type, PK_TUPLE);
	ck_assert_uint_eq(dims->n->len, t->n_logical);
	for (size_t d = 0; d < t->n_logical; d++)
		ck_assert_uint_eq((uint64_t)dims->n->v[d].i, t->logical[d]);
}

/* Megatron-core's metadata also has a dict for every tensor. */
static void check_megatron(const struct ckpt_metadata *md)
{
	struct buf b = BUF_INIT((size_t)1 << 30);
	struct ckpt_err e = { 0 };
	struct pk_value root;
	const struct pk_value *data, *v;
	struct pickle *p;
	size_t n = 0;

	ck_assert_msg(!metadata_pickle_megatron(md, &b, &e), "%s", e.msg);
	p = load(b.data, b.len);
	root = pickle_root(p);
	data = attr(&root, "mcore_data");
	ck_assert_int_eq(data->type, PK_DICT);
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct ckpt_meta_entry *t = &md->entries[i];

		v = t->is_tensor ? data->n->v + 2 * n++ : NULL;
		if (!v)
			continue;
		ck_assert_uint_eq(v->s->len, t->fqn_len);
		ck_assert_mem_eq(v->s->data, t->fqn, t->fqn_len);
		check_mcore_data(&v[1], &t->tensor);
	}
	ck_assert_uint_eq(data->n->len, n);
	pickle_free(p);
	buf_release(&b);
}

/* The graph as text; for a path object, the text that it was made from. */
static struct buf print(const struct pk_value *v)
{
	static const char path[] = "pathlib.PosixPath('";
	struct buf b = BUF_INIT((size_t)1 << 28);
	char *s, *end;

	print_value(&b, v);
	REQUIRE(!b.err);
	s = strstr(b.data, path);
	if (s) {
		end = strstr(s, "')");
		memmove(end + 1, end + 2, strlen(end + 1));
		memmove(s, s + strlen(path) - 1, strlen(s + strlen(path) - 1) + 1);
	}
	return b;
}

/* ---- what the systems wrote ---- */

static const struct {
	const char *name;
	bool hyper;
} cases[] = {
	{ "plain", false },	      { "dtypes", false },	  { "shapes", false },
	{ "bytes_items", false },     { "many_items", false },	  { "weird_fqns", false },
	{ "mp4_dtensor", false },     { "mp4_zstd", false },	  { "mp4_mesh2d", false },
	{ "mp4_fsdp2_adamw", false }, { "file_per_item", false }, { "mp4_checkpointable", false },
	{ "hp_c_collective", true },
};

START_LOOP_TEST(the_graph_is_that_of_the_system, ARRAY_LEN(cases))
{
	const char *data = getenv("TEST_DATA");
	char path[4096];
	struct pickle *theirs, *ours;
	struct pk_value a, b;
	struct buf want, got, bytes;
	struct ckpt_metadata md;
	autoclose int dir = -1;
	size_t n;
	uint8_t *p;

	(void)snprintf(path, sizeof(path), "%s/%s/ckpt", data && *data ? data : "tests/data",
		       cases[_i].name);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(dir, 0);
	p = get_file(dir, ".metadata", &n);
	theirs = load(p, n);
	free(p);
	a = pickle_root(theirs);
	md = read_metadata(&a, cases[_i].hyper);
	ck_assert(md.n_entries && md.n_stored && md.n_paths);
	bytes = write_md(&md, cases[_i].hyper);
	ours = load(bytes.data, bytes.len);
	b = pickle_root(ours);
	want = print(&a);
	got = print(&b);
	ck_assert_str_eq(got.data, want.data);
	ck_assert_uint_lt(bytes.len, n); /* less is said twice */
	buf_release(&want);
	buf_release(&got);
	buf_release(&bytes);
	pickle_free(theirs);
	pickle_free(ours);
}
END_TEST

/* ---- random ---- */

static uint64_t random_number(struct rng *r)
{
	return rng_u64(r) >> (1 + rng_below(r, 63));
}

static const uint64_t *random_numbers(struct rng *r, size_t n)
{
	uint64_t *v = arena_array(&arena, n, sizeof(*v));

	for (size_t i = 0; i < n; i++)
		v[i] = random_number(r);
	return v;
}

/* A unique name: a number, and bytes of all kinds that are UTF-8. */
static const char *random_name(struct rng *r, size_t number, uint32_t *ret_len)
{
	static const char *const tails[] = { "weight", "",	   ".",		  "/x",
					     "\n",     "\xc3\xa9", "\xed\xb2\x80" };
	struct buf b = BUF_INIT(1 << 16);
	const char *s;

	buf_printf(&b, "%zu", number);
	for (size_t i = rng_below(r, 4); i--;)
		buf_str(&b, tails[rng_below(r, ARRAY_LEN(tails))]);
	if (rng_chance(r, 5))
		buf_printf(&b, "%300zu", number);
	buf_add(&b, "\0", rng_chance(r, 5));
	s = arena_dup(&arena, b.data, b.len);
	*ret_len = (uint32_t)b.len;
	buf_release(&b);
	return s;
}

static void random_tensor(struct rng *r, struct ckpt_tensor_meta *t, bool hyper)
{
	size_t n = rng_chance(r, 5) ? 64 : rng_below(r, 5);
	size_t n_chunks = rng_chance(r, 5) ? 2000 : rng_below(r, 4);
	struct ckpt_chunk_meta *c = arena_array(&arena, n_chunks, sizeof(*c));

	t->props.dtype = (uint8_t)(1 + rng_below(r, CKPT_DTYPE_COUNT - 1));
	t->props.requires_grad = rng_chance(r, 30);
	t->props.pin_memory = !hyper && rng_chance(r, 30);
	t->props.memory_format = hyper ? 0 : (uint8_t)rng_below(r, 3);
	t->n_dims = (uint8_t)n;
	t->size = random_numbers(r, n);
	t->chunks = c;
	t->n_chunks = n_chunks;
	t->n_logical = rng_chance(r, 30) ? (uint8_t)(1 + rng_below(r, 5)) : 0;
	t->logical = random_numbers(r, t->n_logical);
	for (size_t i = 0; i < n_chunks; i++) {
		c[i].off = random_numbers(r, n);
		c[i].len = random_numbers(r, n);
	}
}

static void random_paths(struct rng *r, struct ckpt_metadata *md)
{
	struct ckpt_fqn_path *paths = arena_array(&arena, md->n_entries, sizeof(*paths));

	md->paths = paths;
	md->n_paths = md->n_entries;
	for (size_t i = 0; i < md->n_paths; i++) {
		size_t n = rng_below(r, 6);
		struct ckpt_path_step *s = arena_array(&arena, n, sizeof(*s));

		paths[i] = (struct ckpt_fqn_path){ .fqn = md->entries[i].fqn,
						   .fqn_len = md->entries[i].fqn_len,
						   .steps = s,
						   .n_steps = (uint32_t)n };
		for (size_t k = 0; k < n; k++)
			if (rng_chance(r, 50))
				s[k].position = random_number(r);
			else
				s[k].key = random_name(r, rng_below(r, 3), &s[k].key_len);
	}
}

static void random_stored(struct rng *r, struct ckpt_metadata *md, bool hyper)
{
	struct ckpt_write_result *v = arena_array(&arena, md->n_entries, sizeof(*v));

	md->stored = v;
	md->n_stored = md->n_entries;
	for (size_t i = 0; i < md->n_stored; i++) {
		const struct ckpt_meta_entry *t = &md->entries[i];
		size_t n = t->is_tensor ? t->tensor.n_dims : 0;

		v[i].index =
			(struct ckpt_meta_index){ .fqn = t->fqn,
						  .fqn_len = t->fqn_len,
						  .has_offset = t->is_tensor,
						  .n_dims = (uint8_t)n,
						  .offset = random_numbers(r, n),
						  .hint = t->is_tensor ? (int32_t)rng_below(r, 300)
								       : CKPT_META_NO_HINT };
		v[i].info.path = i % 2 ? "__0_0.distcp" : "__1_0.distcp";
		v[i].info.offset = random_number(r);
		v[i].info.length = random_number(r);
		if (!hyper && rng_chance(r, 30))
			v[i].info.transform = "stream.zstd/1";
		if (hyper && t->is_tensor) {
			v[i].info.tensor_key = t->fqn;
			v[i].info.tensor_key_len = t->fqn_len;
			v[i].info.length = UINT64_MAX; /* read back as -1 */
		}
	}
}

static struct ckpt_metadata random_metadata(struct rng *r, bool hyper)
{
	struct ckpt_metadata md = { .version = hyper ? "2.0" : "1.0.0" };

	md.n_entries = rng_chance(r, 10) ? 1000 + rng_below(r, 1500) : rng_below(r, 20);
	md.entries = arena_array(&arena, md.n_entries, sizeof(*md.entries));
	for (size_t i = 0; i < md.n_entries; i++) {
		md.entries[i].fqn = random_name(r, i, &md.entries[i].fqn_len);
		md.entries[i].is_tensor = rng_chance(r, 80);
		if (md.entries[i].is_tensor)
			random_tensor(r, &md.entries[i].tensor, hyper);
	}
	random_paths(r, &md);
	random_stored(r, &md, hyper);
	if (!hyper) {
		md.storage.save_id = "id";
		md.storage.checkpoint_id = rng_chance(r, 50) ? "/run/step-1" : NULL;
	}
	return md;
}

/* ---- the same? ---- */

static bool same_text(const char *a, size_t an, const char *b, size_t bn)
{
	return !a == !b && (!a || (an == bn && !memcmp(a, b, an)));
}

static bool same_string(const char *a, const char *b)
{
	return !a == !b && (!a || !strcmp(a, b));
}

static bool same_numbers(const uint64_t *a, const uint64_t *b, size_t n)
{
	return !memcmp(a, b, n * sizeof(*a));
}

static void same_tensor(const struct ckpt_tensor_meta *a, const struct ckpt_tensor_meta *b)
{
	REQUIRE(tensor_props_equal(&a->props, &b->props) && a->n_dims == b->n_dims);
	REQUIRE(same_numbers(a->size, b->size, a->n_dims) && a->n_chunks == b->n_chunks);
	for (size_t i = 0; i < a->n_chunks; i++) {
		REQUIRE(same_numbers(a->chunks[i].off, b->chunks[i].off, a->n_dims));
		REQUIRE(same_numbers(a->chunks[i].len, b->chunks[i].len, a->n_dims));
	}
}

static void same_path(const struct ckpt_fqn_path *a, const struct ckpt_fqn_path *b)
{
	REQUIRE(same_text(a->fqn, a->fqn_len, b->fqn, b->fqn_len) && a->n_steps == b->n_steps);
	for (size_t i = 0; i < a->n_steps; i++) {
		const struct ckpt_path_step *s = &a->steps[i], *t = &b->steps[i];

		REQUIRE(same_text(s->key, s->key_len, t->key, t->key_len));
		REQUIRE(s->key || s->position == t->position);
	}
}

static void same_result(const struct ckpt_write_result *a, const struct ckpt_write_result *b)
{
	REQUIRE(meta_index_equal(&a->index, &b->index) && a->index.hint == b->index.hint);
	REQUIRE(a->info.offset == b->info.offset && a->info.length == b->info.length);
	REQUIRE(same_string(a->info.path, b->info.path));
	REQUIRE(same_string(a->info.transform, b->info.transform));
	REQUIRE(same_text(a->info.tensor_key, a->info.tensor_key_len, b->info.tensor_key,
			  b->info.tensor_key_len));
}

static void same_metadata(const struct ckpt_metadata *a, const struct ckpt_metadata *b)
{
	REQUIRE(a->n_entries == b->n_entries && a->n_paths == b->n_paths &&
		a->n_stored == b->n_stored);
	for (size_t i = 0; i < a->n_entries; i++) {
		const struct ckpt_meta_entry *s = &a->entries[i], *t = &b->entries[i];

		REQUIRE(same_text(s->fqn, s->fqn_len, t->fqn, t->fqn_len));
		REQUIRE(s->is_tensor == t->is_tensor);
		if (s->is_tensor)
			same_tensor(&s->tensor, &t->tensor);
	}
	for (size_t i = 0; i < a->n_paths; i++)
		same_path(&a->paths[i], &b->paths[i]);
	for (size_t i = 0; i < a->n_stored; i++)
		same_result(&a->stored[i], &b->stored[i]);
	REQUIRE(same_string(a->version, b->version));
	REQUIRE(same_string(a->storage.save_id, b->storage.save_id));
	REQUIRE(same_string(a->storage.checkpoint_id, b->storage.checkpoint_id));
}

START_LONG_TEST(what_is_written_comes_back)
{
	struct rng r = rng_new();

	for (int round = 0; round < (CHECK_FULL() ? 60 : 6); round++) {
		bool hyper = rng_chance(&r, 40);
		struct ckpt_metadata md = random_metadata(&r, hyper), back;
		struct buf b = write_md(&md, hyper), again = write_md(&md, hyper);
		struct pickle *p = load(b.data, b.len);
		struct pk_value v = pickle_root(p);

		if (!hyper)
			check_megatron(&md);
		back = read_metadata(&v, hyper);
		same_metadata(&md, &back);
		REQUIRE(b.len == again.len && !memcmp(b.data, again.data, b.len));
		pickle_free(p);
		buf_release(&b);
		buf_release(&again);
		arena_release(&arena);
	}
}
END_TEST

/* ---- what is not given ---- */

static char *save_id_of(const struct ckpt_metadata *md)
{
	struct buf b = write_md(md, false);
	struct pickle *p = load(b.data, b.len);
	struct pk_value v = pickle_root(p);
	char *s = strdup(attr(attr(&v, "storage_meta"), "save_id")->s->data);

	REQUIRE(s);
	pickle_free(p);
	buf_release(&b);
	return s;
}

START_TEST(a_save_id_follows_from_the_rest)
{
	static const uint64_t one = 1, two = 2;
	struct ckpt_chunk_meta chunk = { &one, &one };
	struct ckpt_meta_entry t = { .fqn = "w",
				     .fqn_len = 1,
				     .is_tensor = true,
				     .tensor = {
					     { .dtype = CKPT_DTYPE_F32 }, 1, &one, &chunk, 1 } };
	struct ckpt_metadata md = { .entries = &t, .n_entries = 1, .version = "1.0.0" };
	autofree char *a = save_id_of(&md), *b = save_id_of(&md), *c;

	t.tensor.size = &two;
	c = save_id_of(&md);
	ck_assert_str_eq(a, b);
	ck_assert_str_ne(a, c);
	ck_assert_uint_eq(strlen(a), 36);
	for (size_t i = 0; i < 36; i++)
		ck_assert(strchr(i == 8 || i == 13 || i == 18 || i == 23 ? "-"
				 : i == 14				 ? "4"
				 : i == 19				 ? "89ab"
									 : "0123456789abcdef",
				 a[i]));
}
END_TEST

START_TEST(without_paths_torch_has_a_dict_and_hyperparallel_none)
{
	struct ckpt_metadata md = { 0 };
	struct pickle *p;
	struct pk_value v;
	struct buf b;

	for (int hyper = 0; hyper < 2; hyper++) {
		b = write_md(&md, hyper);
		p = load(b.data, b.len);
		v = pickle_root(p);
		ck_assert_int_eq(attr(&v, "planner_data")->type, hyper ? PK_NONE : PK_DICT);
		ck_assert_int_eq(attr(&v, "version")->type, PK_NONE);
		ck_assert_int_eq(attr(&v, "state_dict_metadata")->type, PK_DICT);
		pickle_free(p);
		buf_release(&b);
	}
}
END_TEST

START_TEST(names_that_python_cannot_read_are_refused)
{
	struct ckpt_meta_entry t = { .fqn = "a\xff", .fqn_len = 2 };
	struct ckpt_path_step step = { .key = "\x80", .key_len = 1 };
	struct ckpt_fqn_path path = { .fqn = "a", .fqn_len = 1, .steps = &step, .n_steps = 1 };
	struct ckpt_metadata md = { .entries = &t, .n_entries = 1 };
	struct buf b = BUF_INIT(1 << 16);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(metadata_pickle_dcp(&md, &b, &e), -ERR_UNSUPPORTED);
	ck_assert_str_eq(e.msg, "the name 'a%FF' is not in UTF-8, which a pickle needs");
	t.fqn_len = 1;
	md.paths = &path;
	md.n_paths = 1;
	ck_assert_int_eq(metadata_pickle_dcp(&md, &b, &e), -ERR_UNSUPPORTED);
	ck_assert_str_eq(e.msg, "the key '%80' is not in UTF-8, which a pickle needs");
	buf_release(&b);
}
END_TEST

START_LONG_TEST(memory_that_is_refused_is_an_error)
{
	struct rng r = rng_new();
	struct ckpt_metadata md = random_metadata(&r, false);
	struct buf b = BUF_INIT(1 << 28);
	struct ckpt_err e = { 0 };

	md.storage.save_id = NULL;
	FAULT_LOOP(FAULT_ALLOC)
	{
		int rc;

		buf_release(&b);
		e.code = 0;
		rc = metadata_pickle_dcp(&md, &b, &e);
		fault_off();
		REQUIRE(rc == (fault_hit() ? -ENOMEM : 0) && e.code == -rc);
	}
	b.max = b.len - 1;
	buf_release(&b);
	ck_assert_int_eq(metadata_pickle_dcp(&md, &b, &e), -EFBIG);
	buf_release(&b);
}
END_TEST

SUITE(metadata_pickle, .teardown = teardown, .seconds = 30)
