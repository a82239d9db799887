/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint under every option, read through hf/, pt/, safetensors/ and ranks/ and compared with
 * the tensors' bytes, cast and cut element by element.
 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/cast.h"
#include "dcp_util.h"
#include "fault.h"
#include "opts_util.h"
#include "parse/safetensors.h"
#include "parse/zip.h"
#include "rng.h"
#include "scene_util.h"
#include "st_util.h"
#include "suites.h"
#include "tree_util.h"
#include <ckptfs/ckpt_mount.h>

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

/* In natural order of their names. `name` is the name in the model; NULL: it is not part of the
 * model. */
static const struct sample {
	const char *key, *rest, *name;
	enum ckpt_dtype dtype;
	size_t n;
	uint64_t shape[3];
	unsigned layers; /* of compression */
} samples[] = {
	{ "model", "embed.weight", "embed.weight", CKPT_DTYPE_F32, 2, { 10, 4 }, 0 },
	{ "model", "_orig_mod.head.weight", "head.weight", CKPT_DTYPE_F64, 2, { 3, 5 }, 0 },
	{ "model", "ids", "ids", CKPT_DTYPE_I64, 1, { 5 }, 0 },
	{ "model", "layers.0.b", "layers.0.b", CKPT_DTYPE_F16, 1, { 7 }, 1 },
	{ "model", "layers.0.w", "layers.0.w", CKPT_DTYPE_BF16, 2, { 6, 8 }, 0 },
	{ "model", "layers.2.w", "layers.2.w", CKPT_DTYPE_BF16, 2, { 6, 8 }, 2 },
	{ "model", "layers.10.w", "layers.10.w", CKPT_DTYPE_BF16, 3, { 2, 3, 5 }, 0 },
	{ "model", "mask", "mask", CKPT_DTYPE_BOOL, 1, { 9 }, 0 },
	{ "model", "pair", "pair", CKPT_DTYPE_C128, 1, { 3 }, 0 },
	{ "model", "scalar", "scalar", CKPT_DTYPE_F32, 0, { 0 }, 0 },
	{ "optim", "exp_avg.embed.weight", NULL, CKPT_DTYPE_F32, 2, { 10, 4 }, 0 },
};
enum { N_SAMPLES = ARRAY_LEN(samples), SPLIT_SAMPLE = 4 /* in two chunks for sure */ };

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

		do { /* a file for all first chunks and one for all second ones, and some are there */
			scene_release(&scenes[i]);
			scene_make_shape(&scenes[i], &c, &o, s->n, s->shape);
		} while (scenes[i].count > 2 || (i == SPLIT_SAMPLE && scenes[i].count < 2));
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

static int try_open(const struct ckpt_opts *o, struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt_opts in_memory = *o;

	in_memory.index = ":memory:";
	*ret = NULL;
	*e = (struct ckpt_err){ 0 };
	return open_typed(dir, &in_memory, ret, e);
}

static struct ckpt *open_with(const struct ckpt_opts *o)
{
	struct ckpt *c;
	struct ckpt_err e;

	if (try_open(o, &c, &e))
		ck_abort_msg("%s", e.msg);
	return c;
}

/* ---- what the files should hold ---- */

/* A tensor as it should be shown. */
struct want {
	const char *name;
	enum ckpt_dtype dtype;
	size_t n, bytes;
	uint64_t shape[3];
	uint8_t *p;
};

static struct want want_whole(size_t i, enum ckpt_dtype to)
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
	autofree uint8_t *file = tree_bytes(c, path, &bytes);
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };
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
	autofree uint8_t *p = tree_bytes(c, path, &n), *q = tree_bytes(c, npy, &n_npy);

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

static int check_record(void *arg, const struct zip_member *m, struct ckpt_err *e)
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

/* Records are in natural order of the names, and so is w. */
static void check_pt(struct ckpt *c, const struct want *w, size_t n)
{
	size_t bytes;
	autofree uint8_t *file = tree_bytes(c, "pt/model.pt", &bytes);
	struct ckpt_err e = { 0 };
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

/* The files of hf/ that the index names: each tensor must be in the file that the index gives for
 * it. */
static void check_shards(struct ckpt *c, const struct want *w, size_t n)
{
	size_t bytes;
	autofree uint8_t *text = tree_bytes(c, "hf/model.safetensors.index.json", &bytes);
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

static void check_model(struct ckpt *c, enum ckpt_dtype to, bool sharded, bool ranks)
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
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };
		autofree uint8_t *got = malloc(w[i].bytes + 1);

		ckpt_model_tensor(c, i, &t);
		REQUIRE(!strcmp(t.fqn, w[i].name) && t.bytes == w[i].bytes && !t.fault);
		REQUIRE(!strcmp(t.dtype, dtype_info(w[i].dtype)->name));
		REQUIRE(got && !ckpt_model_open(c, i, &f, &e) && ckpt_file_size(f) == w[i].bytes);
		REQUIRE(ckpt_file_read(f, got, w[i].bytes + 1, 0, &e) == (int64_t)w[i].bytes);
		REQUIRE(!memcmp(got, w[i].p, w[i].bytes));
		ckpt_file_close(f);
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
	enum ckpt_dtype dtype;
	bool ranks;
} combinations[] = {
	{ { .shard_size = 0 }, CKPT_DTYPE_NONE, false },
	{ { .shard_size = 100 }, CKPT_DTYPE_NONE, true },
	{ { .shard_size = 1, .maps = 1 }, CKPT_DTYPE_NONE, false },
	{ { .weights = "model" }, CKPT_DTYPE_NONE, true },
	{ { .dtype = "bf16" }, CKPT_DTYPE_BF16, true },
	{ { .dtype = "fp16", .shard_size = 50, .cache = 1 }, CKPT_DTYPE_F16, true },
	{ { .dtype = "fp32", .weights = "model.", .maps = 1 }, CKPT_DTYPE_F32, true },
};

START_LOOP_TEST(every_face_shows_the_tensors_bytes, ARRAY_LEN(combinations))
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

START_LOOP_TEST(every_range_of_a_consolidated_file_is_right, 4)
{
	static const char *const files[] = { "hf/model.safetensors", "pt/model.pt",
					     "ranks/00004/model.safetensors",
					     "safetensors/model.safetensors" };
	struct rng r = rng_new();
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	char layout[4300];
	struct ckpt *c;
	size_t n;

	put_samples();
	(void)snprintf(layout, sizeof(layout), "%s/layout", top);
	put_file(top_fd, "layout", mesh, sizeof(mesh) - 1);
	c = open_with(&(struct ckpt_opts){ .layout = layout, .dtype = "bf16", .maps = 1 });
	autofree uint8_t *whole = tree_bytes(c, files[_i], &n), *part = malloc(n + 10);

	REQUIRE(part && !ckpt_file_open_path(c, files[_i], &f, &e));
	for (unsigned i = 0; i < rng_rounds(2000, 500); i++) {
		/* mostly where the tensors are: behind a header of 4096 bytes, or of a few
		 * hundred */
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
	struct ckpt_err e = { 0 };
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
	w = want_whole(5, CKPT_DTYPE_NONE);
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

/* Stored with the sign to be flipped, for which an element has to be read whole. */
static void put_odd(const void *values, size_t n)
{
	const int64_t size[] = { (int64_t)n };
	struct saved t = { .dtype = CKPT_DTYPE_F32,
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
	enum ckpt_dtype to;
} targets[] = { { "bf16", CKPT_DTYPE_BF16 },
		{ "fp16", CKPT_DTYPE_F16 },
		{ "fp32", CKPT_DTYPE_F32 } };

/* Compares reads of every offset and length of a file with a cast of the whole. */
static void check_ranges(struct ckpt *c, const char *path, const uint8_t *want, size_t n)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
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

START_LOOP_TEST(casts_are_the_same_whatever_the_range, ARRAY_LEN(targets))
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

START_LOOP_TEST(odd_elements_are_resolved_before_they_are_cast, ARRAY_LEN(targets))
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
	cast_run(CKPT_DTYPE_F32, targets[_i].to, negated, want, 20);
	check_ranges(c, "tensors/odd", want, 20 * dtype_info(targets[_i].to)->size);
	ckpt_close(c);
}
END_TEST

/* More elements than are cast at once, stored column by column. */
START_TEST(large_tensors_are_cast_piece_by_piece)
{
	enum { ROWS = 1000, COLUMNS = 300, N = ROWS * COLUMNS };
	const uint64_t shape[] = { ROWS, COLUMNS };
	const struct scene_opts o = { .element = 4, .tiling = TILE_GRID, .strides = ROWS_PERMUTED };
	struct rng r = rng_new();
	struct choose ch = choose_rng(&r);
	autofree uint8_t *want = malloc(N * 2), *got = malloc(N * 2 + 1);
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
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
	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_BF16, s.want, want, N);
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

/* ---- options that are wrong ---- */

static void put_text(const char *name, const char *text)
{
	put_file(top_fd, name, text, strlen(text));
}

/* A value that begins with '@' is the name of a file in `top`. */
static const struct {
	const char *rename, *weights, *dtype, *layout, *assets;
	int code;
	const char *msg; /* its end, with @ for top */
} wrong[] = {
	{ .rename = "@none",
	  .code = ENOENT,
	  .msg = "option 'rename': read '@/none': No such file or directory" },
	{ .rename = "@", .code = EISDIR, .msg = "option 'rename': read '@/': Is a directory" },
	{ .rename = "@bad",
	  .code = EINVAL,
	  .msg = "option 'rename': '@/bad' line 2: Invalid regular expression" },
	{ .rename = "@twins",
	  .code = EEXIST,
	  .msg = "'model.layers.0.w' and 'model.layers.2.w' would both be called 'model.layer.w'" },
	{ .rename = "@nothing",
	  .code = EINVAL,
	  .msg = "'@/nothing' line 1: 'model.ids' becomes nothing" },
	{ .weights = "mode",
	  .code = EINVAL,
	  .msg = "option 'weights': no tensor's name begins with 'mode.'" },
	{ .weights = "step",
	  .code = EINVAL,
	  .msg = "option 'weights': no tensor's name begins with 'step.'" },
	{ .dtype = "int8",
	  .code = EINVAL,
	  .msg = "option 'dtype': 'int8' is not one of bf16, fp16, fp32" },
	{ .dtype = "", .code = EINVAL, .msg = "option 'dtype': '' is not one of bf16, fp16, fp32" },
	{ .dtype = "BF16",
	  .code = EINVAL,
	  .msg = "option 'dtype': 'BF16' is not one of bf16, fp16, fp32" },
	{ .layout = "@none",
	  .code = ENOENT,
	  .msg = "option 'layout': open layout '@/none': No such file or directory" },
	{ .layout = "@bad",
	  .code = EINVAL,
	  .msg = "option 'layout': @/bad:2: a rule before the mesh line" },
	{ .layout = "@deep",
	  .code = EINVAL,
	  .msg = "@/deep:2: 'layers.0.w' of shape [6,8] has no dimension 2 to split" },
	{ .layout = "@other.layout",
	  .code = EINVAL,
	  .msg = ": rank 0: 'ids' of shape [5]: full_shape is [6]" },
	{ .assets = "@none",
	  .code = ENOENT,
	  .msg = "assets directory '@/none': No such file or directory" },
	{ .assets = "@bad", .code = ENOTDIR, .msg = "assets directory '@/bad': Not a directory" },
};

static const char *in_top(const char *value, char out[static 4300])
{
	if (!value || *value != '@')
		return value;
	(void)snprintf(out, 4300, "%s/%s", top, value + 1);
	return out;
}

START_LOOP_TEST(wrong_options_are_named, ARRAY_LEN(wrong))
{
	struct ckpt_opts o = { .weights = wrong[_i].weights, .dtype = wrong[_i].dtype };
	char rename[4300], layout[4300], assets[4300];
	struct buf want = BUF_INIT(20000);
	struct ckpt *c;
	struct ckpt_err e;

	put_samples();
	put_text("bad", "# what is it?\ns/[/x/\n");
	put_text("twins", "s/layers\\.[0-9]+/layer/\n");
	put_text("nothing", "s/.*ids//\n");
	put_text("deep", "mesh tp=2\n*.w tp:2\n");
	put_text("other.layout", "{\"0\": {\"ids\": {\"full_shape\": [6]}}}");
	o.rename = in_top(wrong[_i].rename, rename);
	o.layout = in_top(wrong[_i].layout, layout);
	o.assets = in_top(wrong[_i].assets, assets);
	ck_assert_int_eq(try_open(&o, &c, &e), -wrong[_i].code);
	ck_assert_ptr_null(c);
	for (const char *m = wrong[_i].msg; *m; m++) {
		if (*m == '@')
			buf_str(&want, top);
		else
			buf_add(&want, m, 1);
	}
	if (strlen(e.msg) < want.len || strcmp(e.msg + strlen(e.msg) - want.len, want.data) != 0)
		ck_abort_msg("%s", e.msg);
	ck_assert(!strncmp(e.msg, "checkpoint '", 12));
	buf_release(&want);
	release_samples();
}
END_TEST

/* ---- warnings ---- */

static void add_warning(void *arg, const char *what)
{
	struct buf *b = arg;
	size_t n = strlen(top) + 1;

	buf_printf(b, "%s; ", strncmp(what, top, n - 1) ? what : what + n);
}

START_TEST(rules_that_nothing_needs_are_told)
{
	struct buf said = BUF_INIT(10000);
	struct ckpt_opts o = { .warn = add_warning, .warn_arg = &said };
	char rename[4300], layout[4300];

	put_samples();
	put_text("rules", "s/ids/ids2/\ns/nobody/x/\ns/never/y/\n");
	put_text("layout", "mesh tp=1\nids2 tp:0\nids tp:0\n*.weights tp:0\n");
	put_text("json.layout", "{\"0\": {\"ids2\": {}, \"absent\": {}}}");
	o.rename = in_top("@rules", rename);
	o.layout = in_top("@layout", layout);
	ckpt_close(open_with(&o));
	ck_assert_str_eq(said.data, "rules:2: 's/nobody/x/' matches no FQN; "
				    "rules:3: 's/never/y/' matches no FQN; "
				    "layout:3: no tensor for 'ids'; "
				    "layout:4: no tensor for '*.weights'; ");
	said.len = 0;
	o.rename = NULL;
	o.layout = in_top("@json.layout", layout);
	ckpt_close(open_with(&o));
	ck_assert_str_eq(said.data, "json.layout: no tensor 'ids2' in the checkpoint; "
				    "json.layout: no tensor 'absent' in the checkpoint; ");
	o.warn = NULL; /* nobody listens */
	ckpt_close(open_with(&o));
	buf_release(&said);
	release_samples();
}
END_TEST

/* ---- assets ---- */

static void put_link(int fd, const char *target, const char *name)
{
	REQUIRE(!symlinkat(target, fd, name));
}

/* Entries of a directory of the tree. */
static void list(struct ckpt *c, const char *path, char out[static 1000])
{
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_err e = { 0 };
	ckpt_node at = 0, n;

	*out = 0;
	REQUIRE(!ckpt_walk(c, path, &at, &e));
	for (uint64_t i = 0; !ckpt_entry(c, at, i, name, &n); i++)
		(void)snprintf(out + strlen(out), 1000 - strlen(out), "%s ", name);
}

static void expect_text(struct ckpt *c, const char *path, const char *want)
{
	size_t n;
	autofree uint8_t *got = tree_bytes(c, path, &n);

	ck_assert_str_eq((const char *)got, want);
}

START_TEST(a_directory_of_assets_is_shown_without_weights)
{
	struct ckpt_opts o = { 0 };
	char assets[4300], layout[4300], got[1000];
	struct ckpt_err e = { 0 };
	struct ckpt_stat st;
	struct ckpt *c;
	ckpt_node n = 0;
	autoclose int fd = -1;

	put_samples();
	REQUIRE(!mkdirat(top_fd, "assets", 0700) && !mkdirat(top_fd, "assets/sub", 0700));
	fd = openat(top_fd, "assets", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_text("blob", "from the cache");
	REQUIRE(!utimensat(top_fd, "blob", (const struct timespec[]){ { 5, 6 }, { 7, 8 } }, 0));
	put_file(fd, "config.json", "{}", 2);
	put_file(fd, "vocab.txt", "", 0);
	put_file(fd, "modeling_new.py", "pass", 4);
	put_file(fd, ".gitattributes", "x", 1);
	put_file(fd, "model.safetensors", "x", 1);
	put_file(fd, "pytorch_model-00001-of-00002.bin", "x", 1);
	put_file(fd, "model.safetensors.index.json", "x", 1);
	put_file(fd, "consolidated.00.pth", "x", 1);
	put_link(fd, "../blob", "tokenizer.json"); /* as in the cache of Hugging Face */
	put_link(fd, "missing", "broken.json");
	REQUIRE(!mkfifoat(fd, "pipe.json", 0600));
	o.assets = in_top("@assets", assets);
	put_text("layout", mesh);
	o.layout = in_top("@layout", layout);
	c = open_with(&o);
	list(c, "hf", got);
	ck_assert_str_eq(got, "config.json model.safetensors modeling_new.py tokenizer.json "
			      "vocab.txt ");
	for (int i = 0; i < 2; i++) {
		expect_text(c, i ? "ranks/config.json" : "hf/config.json", "{}");
		expect_text(c, i ? "ranks/tokenizer.json" : "hf/tokenizer.json", "from the cache");
		expect_text(c, i ? "ranks/vocab.txt" : "hf/vocab.txt", "");
		REQUIRE(!ckpt_walk(c, i ? "ranks/tokenizer.json" : "hf/tokenizer.json", &n, &e));
		REQUIRE(!ckpt_stat(c, n, &st, &e));
		ck_assert_uint_eq(st.mtime_ns, 7000000008);
	}
	ckpt_close(c);
	release_samples();
}
END_TEST

/* Without assets=, no link may lead out of the checkpoint, or out of its parent. */
START_TEST(usual_assets_are_found_beside_the_checkpoint)
{
	char got[1000];
	struct ckpt *c;

	put_samples();
	put_file(dir_fd, "config.json", "own", 3);
	put_text("config.json", "parent's");
	put_text("generation_config.json", "generation");
	put_text("notes.txt", "not usual");
	put_file(dir_fd, "secret", "inside", 6);
	put_link(dir_fd, "secret", "tokenizer.json");
	put_link(dir_fd, "/etc/passwd", "tokenizer_config.json");
	put_link(dir_fd, "../notes.txt", "vocab.txt"); /* out of the checkpoint */
	put_link(top_fd, "/etc/passwd", "merges.txt");
	put_link(top_fd, "ckpt/secret", "vocab.json"); /* leads into the parent, and stays there */
	c = open_with(&(struct ckpt_opts){ 0 });
	list(c, "hf", got);
	ck_assert_str_eq(got, "config.json generation_config.json model.safetensors tokenizer.json "
			      "vocab.json ");
	expect_text(c, "hf/config.json", "own");
	expect_text(c, "hf/generation_config.json", "generation");
	expect_text(c, "hf/tokenizer.json", "inside");
	ckpt_close(c);
	release_samples();
}
END_TEST

START_TEST(an_asset_that_changes_is_an_error)
{
	struct ckpt_file *f = NULL, *again = NULL;
	struct ckpt_err e = { 0 };
	char buf[20];
	struct ckpt *c;

	put_samples();
	put_text("config.json", "as it was");
	put_text("vocab.txt", "words");
	c = open_with(&(struct ckpt_opts){ 0 });
	REQUIRE(!ckpt_file_open_path(c, "hf/config.json", &f, &e));
	REQUIRE(ckpt_file_read(f, buf, sizeof(buf), 0, &e) == 9);
	put_text("config.json", "as it is");
	REQUIRE(!unlinkat(top_fd, "vocab.txt", 0));
	ck_assert_int_eq(ckpt_file_read(f, buf, sizeof(buf), 0, &e), -EIO);
	ck_assert_int_eq(ckpt_file_open_path(c, "hf/config.json", &again, &e), -EIO);
	ck_assert_ptr_null(again);
	ckpt_file_close(f);
	expect_text(c, "hf/vocab.txt", "words"); /* still open, and nobody wrote to it */
	ckpt_close(c);
	release_samples();
}
END_TEST

/* Two names whose files are exchanged, as anyone with write access to the directory can do. */
struct exchange {
	int fd;
	const char *a, *b;
};

static void exchange(void *arg)
{
	const struct exchange *x = arg;

	REQUIRE(!renameat2(x->fd, x->a, x->fd, x->b, RENAME_EXCHANGE));
}

/*
 * Somebody who can write there exchanges the file with a link that leads out, before each of the
 * calls that open the checkpoint and read the file, in turn. The secret has the file's size and
 * time.
 */
START_LOOP_TEST(a_link_that_comes_while_an_asset_is_looked_for_is_never_followed, 2)
{
	static const char inside[] = "inside", secret[] = "SECRET";
	const struct timespec then[2] = { { 5, 0 }, { 5, 0 } };
	char other[4096], link[4200];
	int other_fd = new_dir(other), fd = _i ? top_fd : dir_fd;
	struct exchange x = { fd, "config.json", "link" };
	unsigned rounds = 0, read = 0;

	put_samples();
	put_file(fd, "config.json", inside, 6);
	put_file(other_fd, "secret", secret, 6);
	REQUIRE(!utimensat(fd, "config.json", then, 0) && !utimensat(other_fd, "secret", then, 0));
	(void)snprintf(link, sizeof(link), "%s..%s/secret", _i ? "" : "../", strrchr(other, '/'));
	put_link(fd, link, "link");
	fault_act(exchange, &x);
	FAULT_LOOP(FAULT_OPEN | FAULT_STAT | FAULT_READ)
	{
		struct ckpt_opts o = { .index = ":memory:" };
		struct ckpt_file *f = NULL;
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };
		char got[7] = "";

		if (!open_typed(dir, &o, &c, &e) &&
		    !ckpt_file_open_path(c, "hf/config.json", &f, &e) &&
		    ckpt_file_read(f, got, 6, 0, &e) == 6) {
			read++;
			if (strcmp(got, inside) != 0)
				ck_abort_msg("call %ju, %s: '%s'", (uintmax_t)fault_n, fault_name(),
					     got);
		}
		ckpt_file_close(f);
		ckpt_close(c);
		(void)fault_off();
		if (fault_hit())
			exchange(&x);
		rounds++;
	}
	fault_act(NULL, NULL);
	ck_assert_uint_gt(rounds, 20);
	ck_assert_uint_gt(read, 0); /* an exchange also changes the file's ctime */
	(void)close(other_fd);
	release_samples();
}
END_TEST

/* Owners and modes of the checkpoint's directory, of its parent, and of config.json there; the
 * process is root's. 0: left as it is. */
struct who {
	uid_t uid;
	gid_t gid;
	mode_t mode;
};
static const struct {
	struct who ckpt, parent, file;
	bool link, twice;
	const char *refused; /* why it is not used, as info says; NULL: it is used */
} parents[] = {
	{ { 0, 0, 0755 }, { 0, 0, 0755 }, { 0, 0, 0644 }, false, false, NULL },
	{ { 7, 7, 0755 }, { 7, 7, 0755 }, { 7, 7, 0644 }, false, false, NULL },
	{ { 7, 7, 0755 }, { 0, 0, 0755 }, { 7, 7, 0644 }, true, false, NULL },
	{ { 7, 7, 0755 }, { 0, 0, 0755 }, { 0, 0, 0644 }, false, true, NULL },
	{ { 0, 0, 0755 },
	  { 7, 7, 0755 },
	  { 0, 0, 0644 },
	  false,
	  false,
	  "its directory belongs to user 7, the checkpoint does not" },
	{ { 0, 0, 0755 },
	  { 0, 0, 0755 },
	  { 7, 7, 0644 },
	  false,
	  false,
	  "it belongs to user 7, the checkpoint does not" },
	/* groups and all */
	{ { 0, 0, 0755 },
	  { 0, 7, 0775 },
	  { 0, 0, 0644 },
	  false,
	  false,
	  "its directory can be written to by users (mode 0775) who cannot write to the "
	  "checkpoint" },
	{ { 0, 7, 0775 }, { 0, 7, 0775 }, { 0, 7, 0664 }, false, false, NULL },
	{ { 0, 7, 02775 }, { 0, 7, 02775 }, { 0, 7, 0664 }, true, true, NULL },
	{ { 0, 7, 0775 },
	  { 0, 8, 0775 },
	  { 0, 7, 0664 },
	  false,
	  false,
	  "its directory can be written to by users (mode 0775) who cannot write to the "
	  "checkpoint" },
	{ { 0, 7, 0775 },
	  { 0, 7, 0775 },
	  { 0, 8, 0664 },
	  false,
	  false,
	  "it can be written to by users (mode 0664) who cannot write to the checkpoint" },
	{ { 0, 7, 0755 },
	  { 0, 7, 0755 },
	  { 0, 7, 0664 },
	  false,
	  false,
	  "it can be written to by users (mode 0664) who cannot write to the checkpoint" },
	{ { 0, 0, 0775 },
	  { 0, 0, 0777 },
	  { 0, 0, 0644 },
	  false,
	  false,
	  "its directory can be written to by users (mode 0777) who cannot write to the "
	  "checkpoint" },
	{ { 0, 0, 0755 },
	  { 0, 0, 0755 },
	  { 0, 0, 0646 },
	  false,
	  false,
	  "it can be written to by users (mode 0646) who cannot write to the checkpoint" },
	{ { 0, 0, 0777 }, { 0, 8, 0777 }, { 0, 8, 0666 }, true, true, NULL },
	/* as /tmp */
	{ { 0, 0, 0755 }, { 0, 0, 01777 }, { 0, 0, 0644 }, false, false, NULL },
	{ { 7, 7, 0755 }, { 0, 0, 01777 }, { 7, 7, 0600 }, false, false, NULL },
	{ { 7, 7, 0755 },
	  { 0, 0, 01777 },
	  { 8, 8, 0600 },
	  false,
	  false,
	  "it belongs to user 8, the checkpoint does not" },
	{ { 0, 0, 0755 },
	  { 0, 0, 01777 },
	  { 0, 0, 0600 },
	  true,
	  false,
	  "it is a link, in a directory that others can write to" },
	{ { 0, 0, 0755 },
	  { 0, 0, 01777 },
	  { 0, 0, 0600 },
	  false,
	  true,
	  "it has 2 hard links, in a directory that others can write to" },
};

static void make_whose(int fd, const char *name, const struct who *w)
{
	REQUIRE(!fchownat(fd, name, w->uid, w->gid, 0) && !fchmodat(fd, name, w->mode, 0));
}

static void note_warning(void *arg, const char *what)
{
	buf_printf(arg, "%s; ", what);
}

START_LOOP_TEST(a_file_of_the_parent_is_used_where_it_is_as_trusted_as_the_checkpoint,
		ARRAY_LEN(parents))
{
	struct buf said = BUF_INIT(10000);
	struct ckpt_opts o = { .warn = note_warning, .warn_arg = &said };
	char want[5000], got[1000];
	struct ckpt_asset a;
	struct ckpt *c;

	if (geteuid()) /* owners are root's to give */
		return;
	put_samples();
	put_text("real.json", "{}");
	if (parents[_i].link)
		put_link(top_fd, "real.json", "config.json");
	else
		REQUIRE(!renameat(top_fd, "real.json", top_fd, "config.json"));
	if (parents[_i].twice)
		REQUIRE(!linkat(top_fd, parents[_i].link ? "real.json" : "config.json", top_fd,
				"more", 0));
	make_whose(top_fd, "config.json", &parents[_i].file);
	make_whose(top_fd, "ckpt", &parents[_i].ckpt);
	make_whose(top_fd, ".", &parents[_i].parent);
	c = open_with(&o);
	list(c, "hf", got);
	if (parents[_i].refused) {
		ck_assert_str_eq(got, "model.safetensors ");
		ck_assert(!ckpt_asset(c, 0, &a));
		(void)snprintf(want, sizeof(want),
			       "'%s/config.json' is not used: %s; assets= can name its directory",
			       top, parents[_i].refused);
		ck_assert_str_eq(ckpt_asset_refused(c, 0), want);
		ck_assert(said.len == strlen(want) + 2 && !memcmp(said.data, want, said.len - 2));
	} else {
		ck_assert_str_eq(got, "config.json model.safetensors ");
		ck_assert(ckpt_asset(c, 0, &a) && !ckpt_asset(c, 1, &a));
		(void)snprintf(want, sizeof(want), "%s/config.json", top);
		ck_assert_str_eq(a.name, "config.json");
		ck_assert_str_eq(a.path, want);
		ck_assert_str_eq(a.from, "parent");
		ck_assert_uint_eq(said.len, 0);
		expect_text(c, "hf/config.json", "{}");
	}
	ck_assert_ptr_null(ckpt_asset_refused(c, !!parents[_i].refused));
	ckpt_close(c);
	buf_release(&said);
	release_samples();
}
END_TEST

/* ---- links and attributes ---- */

START_TEST(links_lead_to_the_files_of_ranks)
{
	static const struct {
		const char *path, *to; /* NULL: nowhere */
	} rows[] = {
		{ "ranks/model-rank-4-part-0.safetensors", "ranks/00004/model.safetensors" },
		{ "/ranks//model-rank-4-part-0.safetensors/", "ranks/00004/model.safetensors" },
		{ "ranks/model-rank-4-part-0.safetensors/x", NULL },
		{ "ranks/model-rank-4-part-0.safetensors/.", NULL },
		{ "ranks/model-rank-6-part-0.safetensors", NULL },
	};
	char layout[4300], target[CKPT_NAME_MAX + 1];
	struct ckpt_file *f = NULL;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	ckpt_node n = 0, want = 0, ranks = 0;
	struct ckpt *c;

	put_samples();
	put_text("layout", mesh);
	c = open_with(&(struct ckpt_opts){ .layout = in_top("@layout", layout) });
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(ckpt_walk(c, rows[i].path, &n, &e), rows[i].to ? 0 : -ENOENT);
		if (!rows[i].to)
			continue;
		ck_assert_int_eq(ckpt_walk(c, rows[i].to, &want, &e), 0);
		ck_assert_uint_eq(n, want);
	}
	REQUIRE(!ckpt_walk(c, "ranks", &ranks, &e));
	REQUIRE(!ckpt_lookup(c, ranks, "model-rank-4-part-0.safetensors",
			     &n)); /* the link itself */
	REQUIRE(!ckpt_type(c, n, &st, &e) && st.is_link && !st.is_dir && st.node == n);
	ck_assert_int_eq(ckpt_readlink(c, n, target, &e), 23);
	ck_assert_str_eq(target, "00004/model.safetensors");
	REQUIRE(!ckpt_stat(c, n, &st, &e) && st.is_link && st.size == 23 && st.mtime_ns);
	ck_assert_int_eq(ckpt_file_open(c, n, &f, &e), -ELOOP);
	ck_assert_int_eq(ckpt_readlink(c, ranks, target, &e), -EINVAL);
	ck_assert_int_eq(ckpt_readlink(c, want, target, &e), -EINVAL);
	ck_assert_int_eq(ckpt_type(c, 5, &st, &e), -ENOENT);
	REQUIRE(!ckpt_type(c, ranks, &st, &e) && st.is_dir && !st.is_link);
	REQUIRE(!ckpt_type(c, want, &st, &e) && !st.is_dir && !st.is_link);
	ckpt_close(c);
	release_samples();
}
END_TEST

START_TEST(attributes_of_a_ranks_file_are_those_of_its_part)
{
	static const struct {
		const char *path, *name, *value;
	} rows[] = {
		{ "ranks/00001/tensors/embed.weight", "fqn", "embed.weight" },
		{ "ranks/00001/tensors/embed.weight", "dtype", "float16" },
		{ "ranks/00001/tensors/embed.weight", "shape", "[4,4]" },
		{ "ranks/00002/npy/embed.weight.npy", "shape", "[2,4]" },
		{ "ranks/00005/tensors/layers.10.w", "shape", "[0,1,5]" },
		{ "ranks/00005/tensors/ids", "dtype", "int64" },
		{ "tensors/model.embed.weight", "shape", "[10,4]" },
		{ "tensors/model.embed.weight", "dtype", "float16" },
		{ "hf/model.safetensors", "fqn", NULL },
		{ "ranks/00001/model.safetensors", "fqn", NULL },
		{ "ranks", "fqn", NULL },
	};
	struct ckpt_err e = { 0 };
	char layout[4300];
	struct ckpt *c;

	put_samples();
	put_text("layout", mesh);
	c = open_with(&(struct ckpt_opts){ .layout = in_top("@layout", layout), .dtype = "fp16" });
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char name[50], value[100] = "";
		ckpt_node n = 0;
		int64_t got;

		(void)snprintf(name, sizeof(name), "user.ckptfs.%s", rows[i].name);
		REQUIRE(!ckpt_walk(c, rows[i].path, &n, &e));
		got = ckpt_xattr(c, n, name, value, sizeof(value) - 1, &e);
		ck_assert_int_eq(got, rows[i].value ? (int64_t)strlen(rows[i].value) : -ENODATA);
		ck_assert_str_eq(value, rows[i].value ? rows[i].value : "");
		ck_assert_int_eq(ckpt_xattr_names(c, n, NULL, 0) > 0, rows[i].value != NULL);
	}
	ckpt_close(c);
	release_samples();
}
END_TEST

/* ---- what cannot be read ---- */

static int open_path_code(struct ckpt *c, const char *path, struct ckpt_err *e)
{
	struct ckpt_file *f = NULL;
	int rc;

	*e = (struct ckpt_err){ 0 };
	rc = ckpt_file_open_path(c, path, &f, e);
	REQUIRE(!rc == (f != NULL));
	ckpt_file_close(f);
	return rc;
}

/* An item that contradicts the metadata is found when a file that needs it is opened. */
START_TEST(a_damaged_item_fails_the_opens_that_need_it)
{
	static const struct {
		const char *path;
		bool fails;
	} rows[] = {
		{ "tensors/model.ids", true },
		{ "npy/model.ids.npy", true },
		{ "hf/model-00002-of-00002.safetensors", true },
		{ "hf/model-00001-of-00002.safetensors", false },
		{ "hf/model.safetensors.index.json", false },
		{ "pt/model.pt", true },
		{ "safetensors/model.safetensors", true },
		{ "ranks/00003/model.safetensors", true },
		{ "ranks/00003/tensors/ids", true },
		{ "ranks/00003/tensors/embed.weight", false },
		{ "ranks/00007/model.safetensors", false },
	};
	const int64_t size[] = { 4 };
	struct saved t = { .dtype = CKPT_DTYPE_F32,
			   .n_dims = 1,
			   .size = size,
			   .storage = "0123456789abcde",
			   .storage_bytes = 16 };
	static const char *const fqns[] = { "model.embed.weight", "model.ids" };
	char layout[4300];
	struct ckpt *c;
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (size_t i = 0; i < 2; i++) {
		struct buf b = BUF_INIT(0);
		struct chunk_loc l;

		(void)saved_item(&b, &t);
		if (i)
			memset(b.data, 0x77, b.len);
		l = dcp_item(&d, 0, b.data, b.len, 0);
		dcp_tensor(&d, fqns[i], strlen(fqns[i]), "float32", 1, (const uint64_t[]){ 4 }, 1,
			   (const uint64_t[]){ 0, 4 });
		dcp_stored(&d, fqns[i], strlen(fqns[i]), 1, (const uint64_t[]){ 0 }, "__0_0.distcp",
			   (int64_t)l.offset, (int64_t)l.length, 0);
		buf_release(&b);
	}
	dcp_end(&d, ".metadata");
	put_text("layout", "{\"3\": {\"embed.weight\": {}, \"ids\": {}}, "
			   "\"7\": {\"embed.weight\": {}}}");
	c = open_with(&(struct ckpt_opts){ .layout = in_top("@layout", layout), .shard_size = 16 });
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ckpt_err e;
		int rc = open_path_code(c, rows[i].path, &e);

		ck_assert_msg(rc == (rows[i].fails ? -EBADMSG : 0), "%s: %d %s", rows[i].path, rc,
			      e.msg);
		if (rows[i].fails)
			ck_assert_msg(strstr(e.msg, "tensor 'model.ids', item at "), "%s", e.msg);
	}
	ckpt_close(c);
}
END_TEST

/* Masters have other names than the weights whose place they take. */
START_TEST(the_prefix_is_that_of_the_weights_with_masters_too)
{
	struct ckpt_opts o = { .index = ":memory:", .weights = "model", .master = "yes" };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	struct ckpt_totals t;

	st_put(dir_fd, "model.safetensors", &r,
	       "model.a BF16 4; optimizer.state.model.a.fp32 F32 4");
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	ckpt_totals(c, &t);
	ck_assert_uint_eq(t.model_tensors, 1);
	ck_assert_uint_eq(t.model_bytes, 16);
	ck_assert_uint_eq(t.model_prefix_len, 6);
	ck_assert(!memcmp(t.model_prefix, "model.", 6));
	ckpt_close(c);
}
END_TEST

START_TEST(what_is_missing_is_left_out_of_what_is_put_together)
{
	struct ckpt_opts o = { .allow_missing = true, .shard_size = 300 };
	struct want w[N_SAMPLES];
	char layout[4300];
	struct ckpt *c;
	struct ckpt_err e;
	size_t n = 0, bytes, left_out = 0;
	json_t *j;

	put_samples();
	put_text("layout", mesh);
	o.layout = in_top("@layout", layout);
	REQUIRE(!unlinkat(dir_fd, "__0_1.distcp", 0)); /* second chunks */
	c = open_with(&o);
	for (size_t i = 0; i < N_SAMPLES; i++) {
		char path[110] = "tensors/";
		bool lost = samples[i].name && scenes[i].count > 1;

		(void)sample_fqn(&samples[i], path + 8);
		ck_assert_int_eq(open_path_code(c, path, &e), lost ? -EIO : 0);
		if (!samples[i].name)
			continue;
		(void)snprintf(path, sizeof(path), "ranks/00000/tensors/%s", samples[i].name);
		ck_assert_int_eq(open_path_code(c, path, &e), lost ? -EIO : 0);
		left_out += lost || !dtype_info(samples[i].dtype)->safetensors;
		if (!lost)
			w[n++] = want_whole(i, CKPT_DTYPE_NONE);
	}
	check_pt(c, w, n);
	check_safetensors(c, "safetensors/model.safetensors", NULL, 0);
	autofree uint8_t *info = tree_bytes(c, ".ckptfs/info.json", &bytes);
	j = json_loads((const char *)info, JSON_REJECT_DUPLICATES, NULL);
	REQUIRE(j);
	ck_assert_uint_eq(json_array_size(json_object_get(json_object_get(j, "model"), "left_out")),
			  left_out);
	ck_assert_str_eq(json_string_value(json_object_get(json_object_get(j, "model"), "prefix")),
			 "model.");
	json_decref(j);
	for (uint64_t rank = 0; rank < 6; rank++) {
		struct want shards[N_SAMPLES];
		char path[100];

		for (size_t i = 0; i < n; i++)
			shards[i] = want_shard(&w[i], rank);
		(void)snprintf(path, sizeof(path), "ranks/%05d/model.safetensors", (int)rank);
		check_safetensors(c, path, shards, n);
		for (size_t i = 0; i < n; i++)
			free(shards[i].p);
	}
	for (size_t i = 0; i < n; i++)
		free(w[i].p);
	ckpt_close(c);
	release_samples();
}
END_TEST

/* ---- threads ---- */

enum { N_THREADS = 6 };

struct crowd {
	struct ckpt *c;
	struct ckpt_file *f;
	const uint8_t *whole;
	size_t n;
	atomic_uint turn;
	atomic_bool bad;
};

/* Some threads read the file that all have open, others open it themselves. */
static void *read_at_random(void *arg)
{
	struct crowd *w = arg;
	struct rng r = { ++w->turn };
	autofree uint8_t *part = malloc(w->n);
	bool own = r.state % 2;

	for (int i = 0; i < 150 && part; i++) {
		uint64_t off = w->n - 1 - rng_below(&r, i % 4 ? 900 : w->n);
		uint64_t len = 1 + rng_below(&r, w->n - off);
		struct ckpt_file *f = w->f;
		struct ckpt_stat st;
		struct ckpt_err e = { 0 };
		ckpt_node node = 0;

		if (own && ckpt_file_open_path(w->c, "hf/model.safetensors", &f, &e))
			w->bad = true;
		else
			w->bad = w->bad || ckpt_file_read(f, part, len, off, &e) != (int64_t)len ||
				 memcmp(part, w->whole + off, len) != 0 ||
				 ckpt_walk(w->c, "hf/model.safetensors", &node, &e) ||
				 ckpt_stat(w->c, node, &st, &e) || st.size != w->n;
		if (f && own)
			ckpt_file_close(f);
	}
	return NULL;
}

/* Chunk maps are dropped between reads, and so are blocks if there is no room for them. */
START_LOOP_TEST(threads_read_one_file_at_once, 2)
{
	struct crowd w = { 0 };
	pthread_t threads[N_THREADS];
	struct ckpt_err e = { 0 };
	autofree uint8_t *whole = NULL;
	struct ckpt *first;

	put_samples();
	first = open_with(&(struct ckpt_opts){ .dtype = "bf16" });
	w.whole = whole = tree_bytes(first, "hf/model.safetensors", &w.n);
	ckpt_close(first);
	w.c = open_with(&(struct ckpt_opts){ .dtype = "bf16", .maps = 1, .cache = _i ? 0 : 1 });
	REQUIRE(!ckpt_file_open_path(w.c, "hf/model.safetensors", &w.f, &e));
	for (int i = 0; i < N_THREADS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, read_at_random, &w));
	for (int i = 0; i < N_THREADS; i++)
		(void)pthread_join(threads[i], NULL);
	ck_assert(!w.bad);
	ckpt_file_close(w.f);
	ckpt_close(w.c);
	release_samples();
}
END_TEST

SUITE(ckpt_model, .setup = setup, .teardown = teardown, .seconds = 60)
