/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint under every option, read through hf/, pt/, safetensors/ and ranks/ and compared with
 * the tensors' bytes, cast and cut element by element.
 */
#include "api/ckpt.h"
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/cast.h"
#include "dcp_util.h"
#include "parse/safetensors.h"
#include "parse/zip.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The checkpoint lies in a directory of its own, to have a parent. */
static char top[4096], dir[4200];
static int top_fd = -1, dir_fd = -1;

static void setup(void)
{
	top_fd = new_dir(top);
	(void)snprintf(dir, sizeof(dir), "%s/ckpt", top);
	REQUIRE(!mkdirat(top_fd, "ckpt", 0700));
	dir_fd = openat(top_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(dir_fd >= 0);
}

static void teardown(void)
{
	(void)close(dir_fd);
	(void)close(top_fd);
}

/* ---- the checkpoint ---- */

/* In natural order of their names; `name` is the model's, NULL: it is not part of it. */
static const struct sample {
	const char *key, *rest, *name;
	enum dtype dtype;
	size_t n;
	uint64_t shape[3];
	unsigned layers; /* of compression */
} samples[] = {
	{ "model", "embed.weight", "embed.weight", DTYPE_F32, 2, { 10, 4 }, 0 },
	{ "model", "_orig_mod.head.weight", "head.weight", DTYPE_F64, 2, { 3, 5 }, 0 },
	{ "model", "ids", "ids", DTYPE_I64, 1, { 5 }, 0 },
	{ "model", "layers.0.b", "layers.0.b", DTYPE_F16, 1, { 7 }, 1 },
	{ "model", "layers.0.w", "layers.0.w", DTYPE_BF16, 2, { 6, 8 }, 0 },
	{ "model", "layers.2.w", "layers.2.w", DTYPE_BF16, 2, { 6, 8 }, 2 },
	{ "model", "layers.10.w", "layers.10.w", DTYPE_BF16, 3, { 2, 3, 5 }, 0 },
	{ "model", "mask", "mask", DTYPE_BOOL, 1, { 9 }, 0 },
	{ "model", "pair", "pair", DTYPE_C128, 1, { 3 }, 0 },
	{ "model", "scalar", "scalar", DTYPE_F32, 0, { 0 }, 0 },
	{ "optim", "exp_avg.embed.weight", NULL, DTYPE_F32, 2, { 10, 4 }, 0 },
};
enum { N_SAMPLES = ARRAY_LEN(samples) };

static struct scene scenes[N_SAMPLES];

static size_t sample_fqn(const struct sample *s, char out[static 100])
{
	return (size_t)snprintf(out, 100, "%s.%s", s->key, s->rest);
}

/* The model first, in files 0 and 1, the optimizer in file 2. */
static void put_samples(void)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (size_t i = 0; i < N_SAMPLES; i++) {
		const struct sample *s = &samples[i];
		struct scene_opts o = { .element = dtype_info(s->dtype)->size,
					.tiling = TILE_CUTS,
					.strides = ROWS_PERMUTED };
		char fqn[100];
		size_t len = sample_fqn(s, fqn);

		do { /* every chunk has a file of its own, and there are four */
			scene_release(&scenes[i]);
			scene_make_shape(&scenes[i], &c, &o, s->n, s->shape);
		} while (scenes[i].count > 2);
		dcp_path(&d, fqn, len, 2, (const char *const[]){ s->key, s->rest });
		dcp_scene_as(&d, fqn, len, &scenes[i], s->dtype, s->name ? 0 : 2, s->layers);
	}
	dcp_path(&d, "step", 4, 1, (const char *const[]){ "step" });
	dcp_bytes(&d, "step", 4, "seven", 5, 2, 0);
	dcp_end(&d, ".metadata");
}

static void release_samples(void)
{
	for (size_t i = 0; i < N_SAMPLES; i++) {
		scene_release(&scenes[i]);
		scenes[i] = (struct scene){ 0 };
	}
}

static int try_open(const struct ckpt_opts *o, struct ckpt **ret, struct err *e)
{
	struct ckpt_opts in_memory = *o;

	in_memory.index = ":memory:";
	*ret = NULL;
	*e = (struct err){ 0 };
	return ckpt_open(dir, &in_memory, ret, e);
}

static struct ckpt *open_with(const struct ckpt_opts *o)
{
	struct ckpt *c;
	struct err e;

	if (try_open(o, &c, &e))
		ck_abort_msg("%s", e.msg);
	return c;
}

/* A whole file; the caller frees. */
static uint8_t *read_file(struct ckpt *c, const char *path, size_t *ret_n)
{
	struct ckpt_file *f = NULL;
	struct err e = { 0 };
	struct ckpt_stat st;
	ckpt_node n = 0;
	uint8_t *p;

	if (ckpt_file_open_path(c, path, &f, &e))
		ck_abort_msg("%s", e.msg);
	*ret_n = ckpt_file_size(f);
	REQUIRE(!ckpt_walk(c, path, &n, &e) && !ckpt_stat(c, n, &st, &e) && st.size == *ret_n);
	p = calloc(1, *ret_n + 1);
	REQUIRE(p);
	if (ckpt_file_read(f, p, *ret_n, 0, &e) != (int64_t)*ret_n)
		ck_abort_msg("%s", e.msg);
	ckpt_file_close(f);
	return p;
}

/* ---- what the files should hold ---- */

/* A tensor as it should be shown. */
struct want {
	const char *name;
	enum dtype dtype;
	size_t n, bytes;
	uint64_t shape[3];
	uint8_t *p;
};

static struct want want_whole(size_t i, enum dtype to)
{
	const struct sample *s = &samples[i];
	bool cast = to && cast_possible(s->dtype, to);
	struct want w = { .name = s->name, .dtype = cast ? to : s->dtype, .n = s->n };
	size_t elements = scenes[i].bytes / scenes[i].element;

	memcpy(w.shape, s->shape, sizeof(w.shape));
	w.bytes = elements * dtype_info(w.dtype)->size;
	w.p = calloc(1, w.bytes + 1);
	REQUIRE(w.p);
	if (cast)
		cast_run(s->dtype, to, scenes[i].want, w.p, elements);
	else
		memcpy(w.p, scenes[i].want, w.bytes);
	return w;
}

/* The box (off, len) of w, element by element. */
static struct want want_part(const struct want *w, const uint64_t *off, const uint64_t *len)
{
	size_t size = dtype_info(w->dtype)->size, at = 0;
	struct want part = *w;
	uint64_t idx[3] = { 0 };

	part.bytes = size;
	for (size_t d = 0; d < w->n; d++)
		part.bytes *= part.shape[d] = len[d];
	part.p = calloc(1, part.bytes + 1);
	REQUIRE(part.p);
	if (!part.bytes)
		return part;
	do {
		uint64_t from = 0;

		for (size_t d = 0; d < w->n; d++)
			from = from * w->shape[d] + off[d] + idx[d];
		memcpy(part.p + at, w->p + from * size, size);
		at += size;
	} while (next_index(w->n, len, idx));
	REQUIRE(at == part.bytes);
	return part;
}

/* Part i of `parts` of n, as torch.chunk cuts. */
static void chunk(uint64_t n, uint64_t parts, uint64_t i, uint64_t *ret_off, uint64_t *ret_len)
{
	uint64_t step = (n + parts - 1) / parts;

	*ret_off = min_u64(i * step, n);
	*ret_len = min_u64(step, n - *ret_off);
}

static const char mesh[] = "mesh dp=2 tp=3\n"
			   "*layers.*.w tp:0 dp:1\n"
			   "*.weight tp:0\n";

/* What rank dp * 3 + tp holds, by that layout. */
static struct want want_shard(const struct want *w, uint64_t rank)
{
	uint64_t off[3] = { 0 }, len[3];
	bool weight = strstr(w->name, ".weight");

	memcpy(len, w->shape, sizeof(len));
	if (weight || strstr(w->name, ".w"))
		chunk(w->shape[0], 3, rank % 3, &off[0], &len[0]);
	if (!weight && strstr(w->name, ".w"))
		chunk(w->shape[1], 2, rank / 3, &off[1], &len[1]);
	return want_part(w, off, len);
}

/* ---- comparing ---- */

static void check_in_safetensors(const struct st_header *h, const uint8_t *file,
				 const struct want *w)
{
	const struct st_tensor *t = st_find(h, w->name, strlen(w->name));

	if (!dtype_info(w->dtype)->safetensors) {
		REQUIRE(!t);
		return;
	}
	if (!t)
		ck_abort_msg("'%s' is missing", w->name);
	REQUIRE(t->dtype == w->dtype && t->n_dims == w->n && t->end - t->begin == w->bytes);
	for (size_t d = 0; d < w->n; d++)
		REQUIRE(t->shape[d] == w->shape[d]);
	REQUIRE(!memcmp(file + st_data(h) + t->begin, w->p, w->bytes));
}

static void check_safetensors(struct ckpt *c, const char *path, const struct want *w, size_t n)
{
	size_t bytes;
	autofree uint8_t *file = read_file(c, path, &bytes);
	struct st_header *h = NULL;
	struct err e = { 0 };
	struct blob blob;
	struct mem m;

	mem_init(&m, file, bytes);
	blob = mem_blob(&m, true);
	if (st_read(&blob, &h, &e))
		ck_abort_msg("%s: %s", path, e.msg);
	for (size_t i = 0; i < n; i++)
		check_in_safetensors(h, file, &w[i]);
	st_free(h);
	mem_release(&m);
}

/* dir/NAME and dir/NAME.npy, for which dir is "tensors" or "ranks/00000/tensors". */
static void check_single(struct ckpt *c, const char *in, const char *name, const struct want *w)
{
	char path[300], npy[300];
	size_t n, n_npy;

	(void)snprintf(path, sizeof(path), "%stensors/%s", in, name);
	(void)snprintf(npy, sizeof(npy), "%snpy/%s.npy", in, name);
	autofree uint8_t *p = read_file(c, path, &n), *q = read_file(c, npy, &n_npy);

	if (n != w->bytes || memcmp(p, w->p, n) != 0)
		ck_abort_msg("%s holds other bytes", path);
	REQUIRE(n_npy > n && !memcmp(q + n_npy - n, w->p, n));
}

struct records {
	const struct blob *blob;
	const uint8_t *file;
	const struct want *w;
	size_t n, seen;
};

static int check_record(void *arg, const struct zip_member *m, struct err *e)
{
	struct records *r = arg;
	unsigned i;
	char name[40] = "";
	uint64_t data = 0;

	memcpy(name, m->name, min_u64(m->name_len, sizeof(name) - 1));
	if (sscanf(name, "model/data/%u", &i) != 1)
		return 0;
	REQUIRE(i < r->n && m->size == r->w[i].bytes);
	REQUIRE(!zip_member_data(r->blob, m, &data, e));
	REQUIRE(!memcmp(r->file + data, r->w[i].p, m->size));
	r->seen++;
	return 0;
}

/* Its records are in natural order of the names, which is that of w. */
static void check_pt(struct ckpt *c, const struct want *w, size_t n)
{
	size_t bytes;
	autofree uint8_t *file = read_file(c, "pt/model.pt", &bytes);
	struct err e = { 0 };
	struct mem m;
	struct blob blob;
	struct records r = { &blob, file, w, n, 0 };

	mem_init(&m, file, bytes);
	blob = mem_blob(&m, true);
	if (zip_each(&blob, check_record, &r, &e))
		ck_abort_msg("%s", e.msg);
	REQUIRE(r.seen == n);
	mem_release(&m);
}

/* The files of hf/ that the index names, each tensor in the one it names. */
static void check_shards(struct ckpt *c, const struct want *w, size_t n)
{
	size_t bytes;
	autofree uint8_t *text = read_file(c, "hf/model.safetensors.index.json", &bytes);
	json_t *j = json_loads((const char *)text, JSON_REJECT_DUPLICATES, NULL), *map;
	size_t listed = 0;

	REQUIRE(j);
	map = json_object_get(j, "weight_map");
	for (size_t i = 0; i < n; i++) {
		const char *file = json_string_value(json_object_get(map, w[i].name));
		char path[100];

		REQUIRE(!!file == !!dtype_info(w[i].dtype)->safetensors);
		if (!file)
			continue;
		(void)snprintf(path, sizeof(path), "hf/%s", file);
		check_safetensors(c, path, &w[i], 1);
		listed++;
	}
	REQUIRE(listed == json_object_size(map));
	json_decref(j);
}

static void check_ranks(struct ckpt *c, const struct want *w, size_t n)
{
	for (uint64_t rank = 0; rank < 6; rank++) {
		struct want shards[N_SAMPLES];
		char path[100], in[50];

		(void)snprintf(in, sizeof(in), "ranks/%05d/", (int)rank);
		for (size_t i = 0; i < n; i++) {
			shards[i] = want_shard(&w[i], rank);
			check_single(c, in, w[i].name, &shards[i]);
		}
		(void)snprintf(path, sizeof(path), "%smodel.safetensors", in);
		check_safetensors(c, path, shards, n);
		(void)snprintf(path, sizeof(path), "ranks/model-rank-%d-part-0.safetensors",
			       (int)rank);
		check_safetensors(c, path, shards, n);
		for (size_t i = 0; i < n; i++)
			free(shards[i].p);
	}
}

static void check_model(struct ckpt *c, enum dtype to, bool sharded, bool ranks)
{
	struct want w[N_SAMPLES];
	size_t n = 0;

	for (size_t i = 0; i < N_SAMPLES; i++) {
		struct want one = want_whole(i, to);
		char fqn[100];

		(void)sample_fqn(&samples[i], fqn);
		check_single(c, "", fqn, &one);
		if (samples[i].name)
			w[n++] = one;
		else
			free(one.p);
	}
	REQUIRE(ckpt_model_tensors(c) == n);
	for (size_t i = 0; i < n; i++) {
		struct ckpt_tensor t;
		struct ckpt_stat st;
		struct err e = { 0 };
		char path[110] = "tensors/";
		ckpt_node node = 0;

		ckpt_model_tensor(c, i, &t);
		REQUIRE(!strcmp(t.fqn, w[i].name) && t.bytes == w[i].bytes && !t.fault);
		REQUIRE(!strcmp(t.dtype, dtype_info(w[i].dtype)->name));
		(void)sample_fqn(&samples[i], path + 8);
		REQUIRE(!ckpt_walk(c, path, &node, &e) && ckpt_model_node(c, i) == node);
		REQUIRE(!ckpt_stat(c, node, &st, &e) && st.size == w[i].bytes);
	}
	if (sharded)
		check_shards(c, w, n);
	else
		check_safetensors(c, "hf/model.safetensors", w, n);
	check_pt(c, w, n);
	if (ranks)
		check_ranks(c, w, n);
	for (size_t i = 0; i < n; i++)
		free(w[i].p);
}

static const struct {
	struct ckpt_opts o;
	enum dtype dtype;
	bool ranks;
} combinations[] = {
	{ { .shard_size = 0 }, DTYPE_NONE, false },
	{ { .shard_size = 100 }, DTYPE_NONE, true },
	{ { .shard_size = 1, .map_bytes = 1 }, DTYPE_NONE, false },
	{ { .weights = "model" }, DTYPE_NONE, true },
	{ { .dtype = "bf16" }, DTYPE_BF16, true },
	{ { .dtype = "fp16", .shard_size = 50, .cache_bytes = 1 }, DTYPE_F16, true },
	{ { .dtype = "fp32", .weights = "model.", .map_bytes = 1 }, DTYPE_F32, true },
};

START_TEST(every_face_shows_the_tensors_bytes)
{
	struct ckpt_opts o = combinations[_i].o;
	char layout[4300];
	struct ckpt *c;

	put_samples();
	(void)snprintf(layout, sizeof(layout), "%s/layout", top);
	put_file(top_fd, "layout", mesh, sizeof(mesh) - 1);
	o.layout = combinations[_i].ranks ? layout : NULL;
	c = open_with(&o);
	check_model(c, combinations[_i].dtype, o.shard_size, combinations[_i].ranks);
	ckpt_close(c);
	release_samples();
}
END_TEST

START_TEST(every_range_of_a_consolidated_file_is_right)
{
	static const char *const files[] = { "hf/model.safetensors", "pt/model.pt",
					     "ranks/00004/model.safetensors",
					     "safetensors/model.safetensors" };
	struct rng r = rng_new();
	struct ckpt_file *f = NULL;
	struct err e = { 0 };
	char layout[4300];
	struct ckpt *c;
	size_t n;

	put_samples();
	(void)snprintf(layout, sizeof(layout), "%s/layout", top);
	put_file(top_fd, "layout", mesh, sizeof(mesh) - 1);
	c = open_with(&(struct ckpt_opts){ .layout = layout, .dtype = "bf16", .map_bytes = 1 });
	autofree uint8_t *whole = read_file(c, files[_i], &n), *part = malloc(n + 10);

	REQUIRE(part && !ckpt_file_open_path(c, files[_i], &f, &e));
	for (int i = 0; i < 2000; i++) {
		/* mostly where the tensors are: behind a header of 4096 bytes, or of a few hundred */
		uint64_t off = n - min_u64(n, rng_below(&r, i % 4 ? 700 : n + 1));
		uint64_t len = rng_below(&r, n - off + 5), want = min_u64(len, n - off);

		memset(part, 0x55, n + 10);
		REQUIRE(ckpt_file_read(f, part, len, off, &e) == (int64_t)want);
		REQUIRE(!memcmp(part, whole + off, want) && part[want] == 0x55);
	}
	ckpt_file_close(f);
	ckpt_close(c);
	release_samples();
}
END_TEST

/* ---- renaming ---- */

START_TEST(rules_rename_the_tree_and_the_model)
{
	static const char rules[] = "s/^model\\._orig_mod\\./net./\ns/^model\\./net./\n"
				    "s/layers\\.([0-9]+)\\.w/blocks.\\1.weight/\n";
	char path[4300], name[CKPT_NAME_MAX + 1], got[1000] = "";
	struct err e = { 0 };
	struct ckpt *c;
	ckpt_node tensors = 0, n;
	struct want w;

	put_samples();
	put_file(top_fd, "rules", rules, sizeof(rules) - 1);
	(void)snprintf(path, sizeof(path), "%s/rules", top);
	c = open_with(&(struct ckpt_opts){ .rename = path, .weights = "net" });
	REQUIRE(!ckpt_walk(c, "tensors", &tensors, &e));
	for (uint64_t i = 0; !ckpt_entry(c, tensors, i, name, &n); i++)
		(void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s ", name);
	ck_assert_str_eq(got, "net.blocks.0.weight net.blocks.2.weight net.blocks.10.weight "
			      "net.embed.weight net.head.weight net.ids net.layers.0.b net.mask "
			      "net.pair net.scalar optim.exp_avg.embed.weight ");
	w = want_whole(5, DTYPE_NONE);
	w.name = "blocks.2.weight";
	check_single(c, "", "net.blocks.2.weight", &w);
	check_safetensors(c, "hf/model.safetensors", &w, 1);
	check_safetensors(c, "safetensors/model.safetensors", &w, 1);
	free(w.p);
	ckpt_close(c);
	release_samples();
}
END_TEST

/* ---- casts ---- */

/* Stored with the sign to be flipped and big-endian: as a whole element only. */
static void put_odd(const void *values, size_t n)
{
	const int64_t size[] = { (int64_t)n };
	struct saved t = { .dtype = DTYPE_F32,
			   .n_dims = 1,
			   .size = size,
			   .storage = values,
			   .storage_bytes = n * 4,
			   .neg = true,
			   .how = REBUILD_V3 };
	struct buf b = BUF_INIT(0);
	struct chunk_loc l;
	struct dcp d;

	(void)saved_item(&b, &t);
	dcp_begin(&d, dir_fd);
	l = dcp_item(&d, 0, b.data, b.len, 0);
	dcp_tensor(&d, "odd", 3, "float32", 1, (const uint64_t[]){ n }, 1,
		   (const uint64_t[]){ 0, n });
	dcp_stored(&d, "odd", 3, 1, (const uint64_t[]){ 0 }, "__0_0.distcp", (int64_t)l.offset,
		   (int64_t)l.length, 0);
	dcp_end(&d, ".metadata");
	buf_release(&b);
}

static const struct {
	const char *option;
	enum dtype to;
} targets[] = { { "bf16", DTYPE_BF16 }, { "fp16", DTYPE_F16 }, { "fp32", DTYPE_F32 } };

/* Every offset and length of a file against a cast of the whole. */
static void check_ranges(struct ckpt *c, const char *path, const uint8_t *want, size_t n)
{
	struct ckpt_file *f = NULL;
	struct err e = { 0 };
	uint8_t part[400];

	REQUIRE(n < sizeof(part) && !ckpt_file_open_path(c, path, &f, &e));
	REQUIRE(ckpt_file_size(f) == n);
	for (uint64_t off = 0; off <= n; off++)
		for (uint64_t len = 0; len <= n - off; len++) {
			memset(part, 0x55, sizeof(part));
			REQUIRE(ckpt_file_read(f, part, len, off, &e) == (int64_t)len);
			REQUIRE(!memcmp(part, want + off, len) && part[len] == 0x55);
		}
	ckpt_file_close(f);
}

START_TEST(casts_are_the_same_whatever_the_range)
{
	struct ckpt *c;
	char path[110] = "tensors/";

	put_samples();
	c = open_with(&(struct ckpt_opts){ .dtype = targets[_i].option });
	for (size_t i = 0; i < N_SAMPLES; i++) {
		struct want w = want_whole(i, targets[_i].to);

		(void)sample_fqn(&samples[i], path + 8);
		check_ranges(c, path, w.p, w.bytes);
		free(w.p);
	}
	ckpt_close(c);
	release_samples();
}
END_TEST

START_TEST(odd_elements_are_resolved_before_they_are_cast)
{
	float values[20], negated[20];
	uint8_t want[80];
	struct ckpt *c;

	for (int i = 0; i < 20; i++) {
		values[i] = (float)(i + 1) / 3 * (i % 2 ? -1.0f : 1.0f);
		negated[i] = -values[i];
	}
	put_odd(values, 20);
	c = open_with(&(struct ckpt_opts){ .dtype = targets[_i].option });
	cast_run(DTYPE_F32, targets[_i].to, negated, want, 20);
	check_ranges(c, "tensors/odd", want, 20 * dtype_info(targets[_i].to)->size);
	ckpt_close(c);
}
END_TEST

/* More elements than are cast at once, stored a column after another. */
START_TEST(large_tensors_are_cast_piece_by_piece)
{
	enum { ROWS = 1000, COLUMNS = 300, N = ROWS * COLUMNS };
	const uint64_t shape[] = { ROWS, COLUMNS };
	const struct scene_opts o = { .element = 4, .tiling = TILE_GRID, .strides = ROWS_PERMUTED };
	struct rng r = rng_new();
	struct choose ch = choose_rng(&r);
	autofree uint8_t *want = malloc(N * 2), *got = malloc(N * 2 + 1);
	struct ckpt_file *f = NULL;
	struct err e = { 0 };
	struct scene s = { 0 };
	struct ckpt *c;
	struct dcp d;

	do {
		scene_release(&s);
		scene_make_shape(&s, &ch, &o, 2, shape);
	} while (s.count > 4);
	dcp_begin(&d, dir_fd);
	dcp_scene(&d, "w", 1, &s, 0, 0);
	dcp_end(&d, ".metadata");
	REQUIRE(want && got);
	cast_run(DTYPE_F32, DTYPE_BF16, s.want, want, N);
	c = open_with(&(struct ckpt_opts){ .dtype = "bf16" });
	REQUIRE(!ckpt_file_open_path(c, "tensors/w", &f, &e));
	for (int i = 0; i < 12; i++) {
		uint64_t off = i ? rng_below(&r, N) : 0,
			 len = i ? rng_below(&r, N * 2 - off) : N * 2;

		got[len] = 0x55;
		REQUIRE(ckpt_file_read(f, got, len, off, &e) == (int64_t)len);
		REQUIRE(!memcmp(got, want + off, len) && got[len] == 0x55);
	}
	ckpt_file_close(f);
	ckpt_close(c);
	scene_release(&s);
}
END_TEST

Suite *ckpt_model_suite(void)
{
	Suite *s = suite_create("ckpt_model");
	TCase *t = tcase_create("ckpt_model");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, every_face_shows_the_tensors_bytes, 0, ARRAY_LEN(combinations));
	tcase_add_loop_test(t, every_range_of_a_consolidated_file_is_right, 0, 4);
	tcase_add_test(t, rules_rename_the_tree_and_the_model);
	tcase_add_loop_test(t, casts_are_the_same_whatever_the_range, 0, ARRAY_LEN(targets));
	tcase_add_loop_test(t, odd_elements_are_resolved_before_they_are_cast, 0,
			    ARRAY_LEN(targets));
	tcase_add_test(t, large_tensors_are_cast_piece_by_piece);
	suite_add_tcase(s, t);
	return s;
}
