/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree under every option: hf/, safetensors/, pt/ and ranks/, of a checkpoint made for the
 * purpose and of random ones, compared with what follows from the options.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "fault.h"
#include "file/hf_index.h"
#include "file/npy.h"
#include "file/pt_write.h"
#include "file/st_write.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "layout_util.h"
#include "model/box.h"
#include "parse/safetensors.h"
#include "rng.h"
#include "suites.h"
#include "tensor/rename.h"
#include "tensor/vtensor.h"
#include "tree/view.h"
#include "vfile_util.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 40, DIMS = 3 };

static const char why_lost[] = "its file is missing";

/* ---- checkpoints ---- */

struct stored {
	const char *fqn; /* one with "lost" in it cannot be read */
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t shape[DIMS];
};

static const struct stored sample[] = {
	{ "model.embed.weight", CKPT_DTYPE_F32, 2, { 10, 4 } },
	{ "model.layers.0.w", CKPT_DTYPE_BF16, 2, { 6, 8 } },
	{ "model.layers.2.w", CKPT_DTYPE_BF16, 2, { 6, 8 } },
	{ "model.layers.10.w", CKPT_DTYPE_BF16, 2, { 6, 8 } },
	{ "model.layers.0.b", CKPT_DTYPE_F16, 1, { 7 } },
	{ "model._orig_mod.head.weight", CKPT_DTYPE_F64, 2, { 3, 5 } },
	{ "model.scalar", CKPT_DTYPE_F32, 0, { 0 } },
	{ "model.empty", CKPT_DTYPE_F32, 2, { 0, 4 } },
	{ "model.ids", CKPT_DTYPE_I64, 1, { 5 } },
	{ "model.mask", CKPT_DTYPE_BOOL, 1, { 9 } },
	{ "model.c128", CKPT_DTYPE_C128, 1, { 2 } },
	{ "model.c64", CKPT_DTYPE_C64, 2, { 2, 2 } },
	{ "model.q", CKPT_DTYPE_QI8, 1, { 4 } },
	{ "model.f4", CKPT_DTYPE_F4_E2M1FN_X2, 2, { 3, 4 } },
	{ "model.lost", CKPT_DTYPE_F32, 1, { 4 } },
	{ "optim.exp_avg.embed.weight", CKPT_DTYPE_F32, 2, { 10, 4 } },
	{ "optim.step", CKPT_DTYPE_I64, 0, { 0 } },
};

static struct catalog *make_catalog(const struct stored *t, size_t n)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct chunk_loc loc = { .length = 1000 };
	static const char *const objects[] = { "extra", "model.rng" };

	REQUIRE(!catalog_writer_new(NULL, "dcp", "/", &w, &e));
	REQUIRE(!catalog_add_source(w, "f", 1, &loc.file, &e));
	REQUIRE(!catalog_add_encoding(w, "dcp", &loc.encoding, &e));
	for (size_t i = 0; i < n; i++) {
		uint64_t box[2 * DIMS] = { 0 };
		uint8_t path[2 * CATALOG_PATH_NUMBER];
		size_t top = strcspn(t[i].fqn, ".");
		struct tensor_chunks in = { .fqn = t[i].fqn,
					    .fqn_len = strlen(t[i].fqn),
					    .path = t[i].fqn[top] ? path : catalog_path_flat,
					    .dtype = t[i].dtype,
					    .n_dims = t[i].n_dims,
					    .shape = t[i].shape,
					    .count = 1,
					    .boxes = box,
					    .locs = &loc };

		memcpy(box + t[i].n_dims, t[i].shape, t[i].n_dims * sizeof(*box));
		(void)catalog_path_put_step(path + catalog_path_put_head(path, 2, false), top,
					    false);
		if (catalog_add_tensor(w, &in, &e))
			ck_abort_msg("%s", e.msg);
	}
	for (size_t i = 0; i < ARRAY_LEN(objects); i++)
		REQUIRE(!catalog_add_object(w,
					    &(struct object_item){ .fqn = objects[i],
								   .fqn_len = strlen(objects[i]),
								   .loc = loc },
					    &e));
	REQUIRE(!catalog_writer_finish(w, &c, &e));
	catalog_writer_free(w);
	return c;
}

/* ---- options ---- */

static const char mesh[] = "mesh dp=2 tp=3\n"
			   "*layers.*.w tp:0 dp:1\n"
			   "*embed.weight tp:0\n"
			   "*head.weight dp:0 tp:0\n" /* 3 rows over 6 ranks: some have none */
			   "* replicate\n";

#define SPLIT \
	"{\"mesh_shape\": [2], \"tensor_map\": [0, -1], \"rank_list\": [3, 7], \"alias_name\": " \
	"[\"tp\"]}"
static const char lists[] = "{\"3\": {\"layers.0.w\": " SPLIT ", \"scalar\": {}, \"q\": {}},"
			    " \"7\": {\"layers.0.w\": " SPLIT ", \"embed.weight\": {},"
			    " \"lost\": {}, \"elsewhere\": {}}}";
static const char holds_nothing[] = "{\"0\": {}, \"1\": {\"elsewhere\": {}}}";

static const struct view_asset assets[] = {
	{ "1_Pooling.json", "/a/1_Pooling.json", 30, 7 },
	{ "config.json", "/a/config.json", 1000, 8 },
	{ "merges.txt", "/a/merges.txt", 0, 9 },
	{ "model-rank-1.json", "/a/model-rank-1.json", 5, 10 },
	{ "tokenizer.json", "/a/tokenizer.json", 77, 11 },
};

struct set {
	const char *rename, *weights, *layout;
	enum ckpt_dtype dtype;
	uint64_t shard_size; /* 0: all in one */
	bool assets;
};

static const struct set sets[] = {
	{ .shard_size = 0 },
	{ .shard_size = 96 },
	{ .shard_size = 1, .assets = true },
	{ .assets = true },
	{ .layout = mesh },
	{ .layout = mesh, .assets = true, .shard_size = 200 },
	{ .layout = lists },
	{ .layout = lists, .assets = true, .dtype = CKPT_DTYPE_BF16 },
	{ .layout = holds_nothing, .assets = true },
	{ .layout = "mesh one=1\n" },
	{ .dtype = CKPT_DTYPE_BF16 },
	{ .dtype = CKPT_DTYPE_F16, .weights = "model" },
	{ .dtype = CKPT_DTYPE_F32, .shard_size = 150 },
	{ .weights = "model." },
	{ .weights = "", .layout = mesh },
	{ .weights = "optim", .layout = mesh },
	{ .rename = "s/^model\\.//\ns/layers\\.([0-9]+)/blocks.\\1/\n" },
	{ .rename = "s/^model/net/", .weights = "net", .layout = mesh },
	{ .rename = "s/w$/weight/",
	  .weights = "model",
	  .layout = mesh,
	  .dtype = CKPT_DTYPE_F32,
	  .shard_size = 300,
	  .assets = true },
};

/* A view with all that it borrows, and a layout of our own to compare with. */
struct world {
	struct catalog *c;
	struct view_opts o;
	struct view *v;
	struct layout *layout;
	unsigned warnings;
	char warning[sizeof(((struct ckpt_err *)0)->msg)];
};

static const char *fault_of(void *arg, bool object, size_t number)
{
	const struct world *w = arg;
	size_t n;

	return !object && strstr(catalog_tensors(w->c, &n)[number].fqn, "lost") ? why_lost : NULL;
}

static int size_of(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	*ret = 1000 + number;
	return 0;
}

static int json_of(void *arg, size_t number, struct buf *ret, struct ckpt_err *e)
{
	(void)arg;
	buf_printf(ret, "%zu\n", 1000 + number);
	return ret->err ? err_set(e, ret->err, "out of memory") : 0;
}

static int json_size_of(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)number;
	(void)e;
	*ret = 5;
	return 0;
}

static void note_warning(void *arg, const char *what)
{
	struct world *w = arg;

	w->warnings++;
	(void)snprintf(w->warning, sizeof(w->warning), "%s", what);
}

/* Everything but the view. */
static void world_begin(struct world *w, const struct stored *t, size_t n, const struct set *s)
{
	struct ckpt_err e = { 0 };

	*w = (struct world){ .c = make_catalog(t, n) };
	w->o = (struct view_opts){ .weights = s->weights,
				   .dtype = s->dtype,
				   .shard_size = s->shard_size ? s->shard_size : 5000000000,
				   .assets = assets,
				   .n_assets = s->assets ? ARRAY_LEN(assets) : 0,
				   .fault = fault_of,
				   .object_size = size_of,
				   .object_json = json_of,
				   .object_json_size = json_size_of,
				   .arg = w,
				   .warn = note_warning,
				   .warn_arg = w };
	if (s->rename)
		ck_assert_msg(!rename_parse(s->rename, strlen(s->rename), "R", &w->o.rename, &e),
			      "%s", e.msg);
	if (s->layout)
		ck_assert_msg(!parse_copy(s->layout, strlen(s->layout), "L", &w->o.layout, &e),
			      "%s", e.msg);
}

static void bind_own_layout(struct world *w, const char *text)
{
	struct layout_tensor t[MAX_TENSORS];
	struct ckpt_err e = { 0 };
	size_t n;

	REQUIRE(!parse_copy(text, strlen(text), "L", &w->layout, &e));
	for (size_t i = 0; i < view_model(w->v); i++) {
		const struct catalog_tensor *from;
		struct tensor_info m;

		view_model_tensor(w->v, i, &m);
		from = &catalog_tensors(w->c, &n)[m.sources[0]];
		t[i] = (struct layout_tensor){ m.fqn, m.fqn_len, from->n_dims, from->shape };
	}
	REQUIRE(!layout_bind(w->layout, t, view_model(w->v), &e));
}

/* What info.json holds. */
static int tell(void *arg, const char **ret, size_t *ret_len, struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	*ret = "{}\n";
	*ret_len = 3;
	return 0;
}

static void world_make(struct world *w, const struct stored *t, size_t n, const struct set *s)
{
	struct ckpt_err e = { 0 };

	world_begin(w, t, n, s);
	w->o.info = tell;
	ck_assert_msg(!view_new(w->c, &w->o, &w->v, &e), "%s", e.msg);
	if (s->layout)
		bind_own_layout(w, s->layout);
}

static void world_release(struct world *w)
{
	view_free(w->v);
	rename_free(w->o.rename);
	layout_free(w->o.layout);
	layout_free(w->layout);
	catalog_close(w->c);
}

static uint64_t must_lookup(const struct view *v, uint64_t dir, const char *name)
{
	uint64_t n = view_lookup(v, dir, name);

	ck_assert_msg(n, "'%s' is not there", name);
	return n;
}

static uint64_t must_walk(const struct view *v, const char *dir, const char *name)
{
	return must_lookup(v, must_lookup(v, VIEW_ROOT_NODE, dir), name);
}

/* ---- the tree from every side ---- */

static void check_file(const struct world *w, uint64_t node)
{
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };
	uint64_t size = 0, at = 0;

	if (view_describe(w->v, node, &f, &e))
		ck_abort_msg("%s", e.msg);
	for (size_t i = 0; i < f.n; i++) {
		struct vtensor *t = NULL;

		REQUIRE(f.seg[i].off == at && f.seg[i].len);
		at += f.seg[i].len;
		if (f.seg[i].kind == SEG_FILE) {
			REQUIRE(f.n == 1 && f.seg[i].id < w->o.n_assets && !f.seg[i].from);
			REQUIRE(f.size == w->o.assets[f.seg[i].id].size);
			REQUIRE(view_asset(w->v, node) == (int64_t)f.seg[i].id);
		}
		if (f.seg[i].kind == SEG_TENSOR) {
			REQUIRE(!view_vtensor(w->v, f.seg[i].id, &t, &e));
			REQUIRE(t->bytes == f.seg[i].len);
			free(t);
		}
	}
	REQUIRE(at == f.size);
	for (int again = 0; again < 2; again++) /* some sizes are remembered */
		REQUIRE(!view_size(w->v, node, &size, &e) && size == f.size);
	vfile_release(&f);
}

static void check_link(const struct view *v, uint64_t node)
{
	char target[NAME_CAP], *slash;
	uint64_t dir;

	view_target(v, node, target);
	slash = strchr(target, '/');
	REQUIRE(slash);
	*slash = 0;
	dir = view_lookup(v, view_parent(v, node), target);
	REQUIRE(view_kind(v, dir) == VIEW_DIR);
	REQUIRE(view_kind(v, view_lookup(v, dir, slash + 1)) == VIEW_FILE);
}

static void check_leaf(const struct view *v, uint64_t node)
{
	char name[NAME_CAP];

	REQUIRE(view_entries(v, node) == 0 && !view_entry(v, node, 0, name));
	REQUIRE(!view_lookup(v, node, "tensors") && !view_lookup(v, node, "00000"));
}

static void check_nothing(const struct view *v, uint64_t node)
{
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };
	bool object;
	uint64_t id;

	check_leaf(v, node);
	REQUIRE(!view_single(v, node, &object, &id) && view_asset(v, node) == -1);
	REQUIRE(view_describe(v, node, &f, &e) == -EISDIR);
}

static int by_node(const void *ap, const void *bp)
{
	uint64_t a = *(const uint64_t *)ap, b = *(const uint64_t *)bp;

	return a < b ? -1 : a > b;
}

/* All nodes, sorted; the caller frees. */
static uint64_t *walk(const struct world *w, size_t *ret_n)
{
	enum { CAP = 20000 };
	uint64_t *nodes = malloc(CAP * sizeof(*nodes));
	const struct view *v = w->v;
	char name[NAME_CAP], again[NAME_CAP];
	size_t n = 0;

	REQUIRE(nodes);
	nodes[n++] = VIEW_ROOT_NODE;
	for (size_t at = 0; at < n; at++) {
		uint64_t dir = nodes[at], count = view_entries(v, dir);

		if (view_kind(v, dir) == VIEW_FILE)
			check_file(w, dir);
		if (view_kind(v, dir) == VIEW_LINK)
			check_link(v, dir);
		if (view_kind(v, dir) != VIEW_DIR) {
			REQUIRE(view_kind(v, dir) != VIEW_NONE);
			check_leaf(v, dir);
		}
		for (uint64_t pos = 0; pos < count; pos++) {
			uint64_t node = view_entry(v, dir, pos, name);

			REQUIRE(node && view_parent(v, node) == dir);
			REQUIRE(view_name(v, node, again) && !strcmp(again, name));
			if (view_lookup(v, dir, name) != node)
				ck_abort_msg("'%s' is listed and not found", name);
			REQUIRE(n < CAP);
			nodes[n++] = node;
		}
		REQUIRE(!view_entry(v, dir, count, name) && !view_entry(v, dir, UINT64_MAX, name));
	}
	qsort(nodes, n, sizeof(*nodes), by_node);
	for (size_t i = 1; i < n; i++)
		REQUIRE(nodes[i - 1] < nodes[i]);
	*ret_n = n;
	return nodes;
}

static void check_strangers(const struct view *v, const uint64_t *nodes, size_t n, struct rng *r)
{
	for (int i = 0; i < 1500; i++) {
		uint64_t x = rng_u64(r);

		if (i % 4) /* near one that exists */
			x = nodes[rng_below(r, n)] ^ (uint64_t)1 << rng_below(r, 64);
		if (i % 4 == 2)
			x += rng_below(r, 7) - 3;
		if (bsearch(&x, nodes, n, sizeof(x), by_node))
			continue;
		REQUIRE(view_kind(v, x) == VIEW_NONE);
		check_nothing(v, x);
	}
}

static void check_tree(const struct world *w, struct rng *r)
{
	size_t n;
	uint64_t *nodes = walk(w, &n);

	check_strangers(w->v, nodes, n, r);
	free(nodes);
}

/* ---- what should be in consolidated files ---- */

static enum ckpt_dtype shown(const struct world *w, enum ckpt_dtype t)
{
	return w->o.dtype && (t == CKPT_DTYPE_F64 || t == CKPT_DTYPE_F32 || t == CKPT_DTYPE_F16 ||
			      t == CKPT_DTYPE_BF16)
		       ? w->o.dtype
		       : t;
}

/* safetensors cannot hold lone surrogates, which torch accepts in names. */
static bool in_safetensors(const struct tensor_info *m)
{
	return st_holds(m->dtype) && !strstr(m->fqn, "\xed\xa0\x80");
}

static bool in_pt(const struct tensor_info *m)
{
	return pt_holds(m->dtype);
}

/* Tensors of the model (or of the tree) that can be read and that the format `takes`, whole. */
static size_t expect(const struct world *w, bool model, bool (*takes)(const struct tensor_info *m),
		     struct tensor_info *ret)
{
	size_t n = 0, k;

	for (size_t i = 0; i < (model ? view_model(w->v) : view_tensors(w->v)); i++) {
		const struct catalog_tensor *from;
		struct tensor_info t;

		if (model)
			view_model_tensor(w->v, i, &t);
		else
			view_tensor(w->v, i, &t);
		from = &catalog_tensors(w->c, &k)[t.sources[0]];
		REQUIRE(!t.fqn[t.fqn_len] && strlen(t.fqn) == t.fqn_len);
		REQUIRE(t.dtype == shown(w, from->dtype));
		ret[n] = member_of(t.fqn, t.dtype, from->n_dims, from->shape, t.id);
		REQUIRE(t.bytes == ret[n].bytes);
		n += takes(&ret[n]) && !strstr(from->fqn, "lost");
	}
	return n;
}

static size_t count_entries(const struct buf *file)
{
	uint64_t len = 0;
	json_error_t why;
	json_t *j;
	size_t n;

	for (int i = 7; i >= 0; i--)
		len = len << 8 | (uint8_t)file->data[i];
	j = json_loadb(file->data + 8, len, JSON_REJECT_DUPLICATES, &why);
	ck_assert_msg(j != NULL, "%s", why.text);
	n = json_object_size(j) - 1; /* __metadata__ */
	json_decref(j);
	return n;
}

/* The file must be a safetensors file of exactly these tensors. */
static void check_safetensors(const struct view *v, uint64_t node, const struct tensor_info *m,
			      size_t n)
{
	struct vfile f = VFILE_INIT;
	struct st_header *h = NULL;
	struct ckpt_err e = { 0 };
	struct blob blob;
	struct buf all;

	REQUIRE(!view_describe(v, node, &f, &e));
	all = vfile_all(&f);
	blob = vfile_blob(&f);
	if (st_read(&blob, &h, &e))
		ck_abort_msg("%s", e.msg);
	REQUIRE(count_entries(&all) == n && st_data(h) % 4096 == 0);
	for (size_t i = 0; i < n; i++) {
		const struct st_tensor *t = st_find(h, m[i].fqn, m[i].fqn_len);

		REQUIRE(t && t->dtype == m[i].dtype && t->n_dims == m[i].n_dims);
		for (size_t d = 0; d < t->n_dims; d++)
			REQUIRE(t->shape[d] == m[i].shape[d]
						       << (t->dtype == CKPT_DTYPE_F4_E2M1FN_X2 &&
							   d + 1 == t->n_dims));
		REQUIRE(t->end - t->begin == m[i].bytes);
		for (uint64_t k = 0; k < m[i].bytes; k++)
			REQUIRE((uint8_t)all.data[st_data(h) + t->begin + k] ==
				fake_byte(m[i].id, k));
	}
	st_free(h);
	buf_release(&all);
	vfile_release(&f);
}

/* ---- hf/ ---- */

static void check_hf_names(const struct world *w, uint64_t hf, uint32_t count)
{
	char name[NAME_CAP], last[NAME_CAP] = "", file[HF_NAME_CAP];

	REQUIRE(view_entries(w->v, hf) == count + (count > 1) + w->o.n_assets);
	for (uint64_t pos = 0; view_entry(w->v, hf, pos, name); pos++) {
		REQUIRE(!pos || text_natural_cmp(last, strlen(last), name, strlen(name)) < 0);
		memcpy(last, name, sizeof(last));
	}
	for (uint32_t i = 0; i < count; i++) {
		hf_file_name(i, count, file);
		REQUIRE(view_asset(w->v, must_lookup(w->v, hf, file)) == -1);
	}
	for (size_t i = 0; i < w->o.n_assets; i++)
		REQUIRE(view_asset(w->v, must_lookup(w->v, hf, w->o.assets[i].name)) == (int64_t)i);
	REQUIRE(!!view_lookup(w->v, hf, HF_INDEX_NAME) == (count > 1));
}

static void check_hf_index(const struct world *w, uint64_t hf, const struct tensor_info *m,
			   size_t n, const uint32_t *shard, uint32_t count)
{
	struct buf want = BUF_INIT(1 << 20), got;
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	REQUIRE(!hf_index(m, n, shard, count, &want, &e));
	REQUIRE(!view_describe(w->v, must_lookup(w->v, hf, HF_INDEX_NAME), &f, &e));
	got = vfile_all(&f);
	REQUIRE(got.len == want.len && !memcmp(got.data, want.data, got.len));
	buf_release(&got);
	buf_release(&want);
	vfile_release(&f);
}

static void check_hf(const struct world *w)
{
	struct tensor_info m[MAX_TENSORS], in[MAX_TENSORS];
	size_t n = expect(w, true, in_safetensors, m), seen = 0;
	uint64_t hf = must_lookup(w->v, VIEW_ROOT_NODE, "hf");
	uint32_t shard[MAX_TENSORS], count = hf_split(m, n, w->o.shard_size, shard);
	struct view_about about;

	count = count ? count : 1;
	view_about(w->v, &about);
	REQUIRE(about.shards == count);
	check_hf_names(w, hf, count);
	for (uint32_t s = 0; s < count; s++) {
		char file[HF_NAME_CAP];
		uint64_t bytes = 0;
		size_t k = 0;

		for (size_t i = 0; i < n; i++)
			if (shard[i] == s) {
				in[k++] = m[i];
				bytes += m[i].bytes;
			}
		REQUIRE(bytes <= w->o.shard_size || k == 1);
		seen += k;
		hf_file_name(s, count, file);
		check_safetensors(w->v, must_lookup(w->v, hf, file), in, k);
	}
	REQUIRE(seen == n);
	if (count > 1)
		check_hf_index(w, hf, m, n, shard, count);
}

/* ---- safetensors/ and pt/ ---- */

static void check_consolidated(const struct world *w)
{
	struct tensor_info m[MAX_TENSORS];
	struct vfile want = VFILE_INIT, got = VFILE_INIT;
	struct ckpt_err e = { 0 };
	struct buf a, b;
	size_t n = expect(w, w->o.weights != NULL, in_safetensors, m);

	check_safetensors(w->v, must_walk(w->v, "safetensors", "model.safetensors"), m, n);
	n = expect(w, true, in_pt, m);
	REQUIRE(!pt_layout(m, n, &want, &e));
	REQUIRE(!view_describe(w->v, must_walk(w->v, "pt", "model.pt"), &got, &e));
	a = vfile_all(&want);
	b = vfile_all(&got);
	REQUIRE(a.len == b.len && !memcmp(a.data, b.data, a.len));
	buf_release(&a);
	buf_release(&b);
	vfile_release(&want);
	vfile_release(&got);
}

static void check_about(const struct world *w)
{
	struct tensor_info m[MAX_TENSORS];
	struct view_about about;
	uint64_t bytes = 0, left_out = 0;
	size_t n = view_model(w->v), k;

	for (size_t i = 0; i < n; i++) {
		struct ckpt_err why = { 0 };
		struct tensor_info t;
		const struct catalog_tensor *from;
		struct tensor_info one;
		bool lost;

		view_model_tensor(w->v, i, &t);
		from = &catalog_tensors(w->c, &k)[t.sources[0]];
		lost = strstr(from->fqn, "lost");
		one = member_of(t.fqn, t.dtype, 0, NULL, 0);
		bytes += t.bytes;
		left_out += lost || !in_safetensors(&one);
		REQUIRE(view_left_out(w->v, i, &why) == (lost || !in_safetensors(&one)));
		if (lost)
			REQUIRE(!strcmp(why.msg, why_lost) && why.code == EIO);
		else if (!in_safetensors(&one))
			REQUIRE(strstr(why.msg,
				       st_holds(t.dtype) ? "UTF-8" : dtype_info(t.dtype)->name) &&
				why.code == ENOTSUP);
		else
			REQUIRE(!why.code);
	}
	view_about(w->v, &about);
	REQUIRE(about.has_model && about.model_tensors == n && about.model_bytes == bytes);
	REQUIRE(about.left_out == left_out && n - left_out == expect(w, true, in_safetensors, m));
	REQUIRE(about.ranks == (w->layout ? layout_ranks(w->layout) : 0));
	for (size_t i = 0; i < n; i++) {
		struct tensor_info t, tree;

		size_t at = 0;

		view_model_tensor(w->v, i, &t);
		while (view_tensor(w->v, at, &tree), tree.sources[0] != t.sources[0])
			at++;
		REQUIRE(t.n_sources == 1 && about.prefix_len <= tree.fqn_len);
		REQUIRE(!memcmp(tree.fqn, about.prefix, about.prefix_len));
		REQUIRE(strstr(tree.fqn, "_orig_mod.") ||
			!strcmp(tree.fqn + about.prefix_len, t.fqn));
	}
}

/* ---- ranks/ ---- */

/* What file `name` of a rank's tensors/ or npy/ shows must be the box (off, len) of m. */
static uint64_t check_shard(const struct world *w, uint64_t dir, const struct tensor_info *m,
			    const uint64_t *off, const uint64_t *len, const char *suffix)
{
	char name[NAME_CAP], head[NPY_MAX_HEADER];
	struct tensor_info part = member_of(m->fqn, m->dtype, m->n_dims, len, 0);
	struct vfile f = VFILE_INIT;
	struct vtensor *t = NULL;
	struct ckpt_err e = { 0 };
	struct tensor_info single;
	bool object = true;
	uint64_t node, id;
	size_t n;

	(void)name_encode(m->fqn, m->fqn_len, suffix, name, NULL);
	node = must_lookup(w->v, dir, name);
	REQUIRE(view_single(w->v, node, &object, &id) && !object);
	view_single_tensor(w->v, id, &single);
	REQUIRE(single.fqn_len == m->fqn_len && !memcmp(single.fqn, m->fqn, m->fqn_len));
	REQUIRE(single.dtype == m->dtype && single.bytes == part.bytes);
	REQUIRE(!view_vtensor(w->v, single.id, &t, &e));
	REQUIRE(t->dtype == m->dtype && t->n_dims == m->n_dims && t->bytes == part.bytes);
	REQUIRE(t->stored == catalog_tensors(w->c, &n)[single.sources[0]].dtype);
	REQUIRE(t->n_pieces == (part.bytes ? 1 : 0));
	for (size_t d = 0; d < m->n_dims; d++) {
		REQUIRE(t->shape[d] == len[d]);
		REQUIRE(!t->n_pieces || t->pieces[0].base[d] == off[d]);
	}
	REQUIRE(!t->n_pieces || t->pieces[0].source == single.sources[0]);
	free(t);
	REQUIRE(!view_describe(w->v, node, &f, &e));
	n = *suffix ? npy_header(m->dtype, m->n_dims, len, head) : 0;
	REQUIRE(f.size == n + part.bytes && (!n || !memcmp(f.text.data, head, n)));
	vfile_release(&f);
	return single.id;
}

static void check_rank(const struct world *w, size_t r, uint64_t dir)
{
	struct tensor_info all[MAX_TENSORS], held[MAX_TENSORS];
	uint64_t len[MAX_TENSORS][DIMS], off[DIMS];
	uint64_t tensors = must_lookup(w->v, dir, "tensors"), npy = must_lookup(w->v, dir, "npy");
	size_t n = view_model(w->v), n_held = 0, n_files = 0;

	for (size_t i = 0, k; i < n; i++) {
		struct tensor_info t;
		const struct catalog_tensor *from;
		char name[NAME_CAP];

		view_model_tensor(w->v, i, &t);
		from = &catalog_tensors(w->c, &k)[t.sources[0]];
		all[i] = member_of(t.fqn, shown(w, from->dtype), from->n_dims, from->shape, 0);
		if (!layout_box(w->layout, r, i, off, len[i])) {
			(void)name_encode(t.fqn, t.fqn_len, "", name, NULL);
			REQUIRE(!view_lookup(w->v, tensors, name));
			continue;
		}
		n_files++;
		held[n_held] = member_of(t.fqn, all[i].dtype, from->n_dims, len[i], 0);
		held[n_held].id = check_shard(w, tensors, &all[i], off, len[i], "");
		REQUIRE(check_shard(w, npy, &all[i], off, len[i], ".npy") == held[n_held].id);
		n_held += in_safetensors(&all[i]) && !strstr(from->fqn, "lost");
	}
	REQUIRE(view_entries(w->v, tensors) == n_files && view_entries(w->v, npy) == n_files);
	check_safetensors(w->v, must_lookup(w->v, dir, "model.safetensors"), held, n_held);
}

static void check_ranks(const struct world *w)
{
	uint64_t ranks = view_lookup(w->v, VIEW_ROOT_NODE, "ranks");
	size_t n = w->layout ? layout_ranks(w->layout) : 0;
	char name[NAME_CAP], want[NAME_CAP];

	REQUIRE(!!ranks == !!w->layout);
	REQUIRE(view_entries(w->v, ranks) == (n ? 2 * n + w->o.n_assets : 0));
	for (size_t r = 0; r < n; r++) {
		unsigned long long number = layout_rank(w->layout, r);

		(void)snprintf(name, sizeof(name), "%05llu", number);
		check_rank(w, r, must_lookup(w->v, ranks, name));
		(void)snprintf(want, sizeof(want), "%05llu/model.safetensors", number);
		(void)snprintf(name, sizeof(name), "model-rank-%llu-part-0.safetensors", number);
		view_target(w->v, must_lookup(w->v, ranks, name), name);
		REQUIRE(!strcmp(name, want));
	}
	for (size_t i = 0; n && i < w->o.n_assets; i++)
		REQUIRE(view_asset(w->v, must_lookup(w->v, ranks, w->o.assets[i].name)) ==
			(int64_t)i);
}

static void check_world(const struct world *w, struct rng *r)
{
	check_tree(w, r);
	check_about(w);
	check_hf(w);
	check_consolidated(w);
	check_ranks(w);
}

START_LOOP_TEST(the_tree_is_what_follows_from_the_options, ARRAY_LEN(sets))
{
	struct rng r = rng_new();
	struct world w;

	world_make(&w, sample, ARRAY_LEN(sample), &sets[_i]);
	check_world(&w, &r);
	ck_assert_uint_eq(w.warnings, 0);
	world_release(&w);
}
END_TEST

/* ---- random ones ---- */

struct random_world {
	struct stored t[MAX_TENSORS];
	size_t n;
	char names[MAX_TENSORS][400], layout[4000];
	struct set set;
};

static void random_name(struct rng *r, size_t i, char out[static 400])
{
	static const char *const heads[] = { "model.", "model._orig_mod.", "optim.", "", "x/" };
	static const char *const parts[] = { "layers.",	 "%",	  "\n", "\"",
					     "\xc3\xa9", "lost.", "\\", "\xed\xa0\x80",
					     " ",	 "7.",	  ".",	"__metadata__" };
	size_t at = (size_t)snprintf(out, 400, "%s", heads[rng_below(r, ARRAY_LEN(heads))]);

	for (uint64_t k = rng_below(r, 4); k; k--)
		at += (size_t)snprintf(out + at, 400 - at, "%s",
				       parts[rng_below(r, ARRAY_LEN(parts))]);
	if (rng_chance(r, 10)) /* too long for a file name */
		at += (size_t)snprintf(out + at, 400 - at, "%0*d", 240 + (int)rng_below(r, 30), 0);
	(void)snprintf(out + at, 400 - at, "_%zu", i);
}

/* Rules for tensors that have dimensions; the others can only be replicated. */
static void random_layout(struct rng *r, struct random_world *w)
{
	size_t at = (size_t)snprintf(w->layout, sizeof(w->layout), "mesh a=%u b=%u\n",
				     1 + (unsigned)rng_below(r, 3), 1 + (unsigned)rng_below(r, 3));

	for (size_t i = 0; i < w->n; i++) {
		unsigned d = (unsigned)w->t[i].n_dims;

		if (d && rng_chance(r, 70))
			at += (size_t)snprintf(w->layout + at, sizeof(w->layout) - at,
					       "*_%zu a:%u b:-%u\n", i, (unsigned)rng_below(r, d),
					       1 + (unsigned)rng_below(r, d));
	}
}

static void random_make(struct random_world *w, struct rng *r)
{
	static const enum ckpt_dtype dtypes[] = { CKPT_DTYPE_NONE, CKPT_DTYPE_NONE, CKPT_DTYPE_BF16,
						  CKPT_DTYPE_F16, CKPT_DTYPE_F32 };

	*w = (struct random_world){ .n = rng_below(r, MAX_TENSORS / 2) };
	for (size_t i = 0; i < w->n; i++) {
		random_name(r, i, w->names[i]);
		w->t[i] = (struct stored){ .fqn = w->names[i], .n_dims = rng_below(r, DIMS + 1) };
		for (size_t d = 0; d < w->t[i].n_dims; d++)
			w->t[i].shape[d] = rng_below(r, 6);
		do {
			w->t[i].dtype = CKPT_DTYPE_NONE + 1 +
					(enum ckpt_dtype)rng_below(r, CKPT_DTYPE_COUNT - 1);
		} while (w->t[i].dtype == CKPT_DTYPE_F4_E2M1FN_X2 && !w->t[i].n_dims);
		if (rng_chance(r, 50))
			w->t[i].dtype = CKPT_DTYPE_F64 + (enum ckpt_dtype)rng_below(r, 4);
	}
	w->set.dtype = dtypes[rng_below(r, ARRAY_LEN(dtypes))];
	w->set.shard_size = rng_chance(r, 70) ? 1 + rng_below(r, 500) : 0;
	w->set.assets = rng_chance(r, 30);
	w->set.weights = rng_chance(r, 20) ? "" : NULL;
	random_layout(r, w);
	if (rng_chance(r, 70))
		w->set.layout = w->layout;
}

START_TEST(random_trees_are_what_follows_from_the_options)
{
	struct rng r = rng_new();
	struct random_world rw;
	struct world w;

	for (int i = 0; i < 40; i++) {
		random_make(&rw, &r);
		world_make(&w, rw.t, rw.n, &rw.set);
		check_world(&w, &r);
		world_release(&w);
	}
}
END_TEST

/* ---- by example ---- */

static void list(const struct view *v, uint64_t dir, char *out, size_t cap)
{
	char name[NAME_CAP];
	size_t at = 0;

	*out = 0;
	for (uint64_t pos = 0; view_entry(v, dir, pos, name); pos++)
		at += (size_t)snprintf(out + at, cap - at, "%s ", name);
	REQUIRE(at < cap);
}

static const struct {
	struct set set;
	const char *dir, *want; /* path; the names in it */
} listings[] = {
	{ { .assets = false }, "", ".ckptfs hf npy objects pt safetensors tensors " },
	{ { .layout = mesh }, "", ".ckptfs hf npy objects pt ranks safetensors tensors " },
	{ { .assets = true },
	  "hf",
	  "1_Pooling.json config.json merges.txt model-rank-1.json model.safetensors "
	  "tokenizer.json " },
	{ { .assets = true, .shard_size = 192 },
	  "hf",
	  "1_Pooling.json config.json merges.txt model-00001-of-00004.safetensors "
	  "model-00002-of-00004.safetensors model-00003-of-00004.safetensors "
	  "model-00004-of-00004.safetensors model-rank-1.json model.safetensors.index.json "
	  "tokenizer.json " },
	{ { .assets = true, .layout = lists },
	  "ranks",
	  "00003 00007 model-rank-3-part-0.safetensors model-rank-7-part-0.safetensors "
	  "1_Pooling.json config.json merges.txt model-rank-1.json tokenizer.json " },
	{ { .layout = lists }, "ranks/00003", "model.safetensors npy tensors " },
	{ { .layout = lists }, "ranks/00003/tensors", "layers.0.w q scalar " },
	{ { .layout = lists }, "ranks/00007/npy", "embed.weight.npy layers.0.w.npy lost.npy " },
	{ { .layout = holds_nothing }, "ranks/00001/tensors", "" },
	{ { .rename = "s/.*layers/L/" },
	  "tensors",
	  "L.0.b L.0.w L.2.w L.10.w model._orig_mod.head.weight model.c64 model.c128 "
	  "model.embed.weight model.empty model.f4 model.ids model.lost model.mask model.q "
	  "model.scalar optim.exp_avg.embed.weight optim.step " },
};

START_LOOP_TEST(directories_list_these, ARRAY_LEN(listings))
{
	struct world w;
	char got[1000], path[100], *save = NULL;
	uint64_t dir = VIEW_ROOT_NODE;

	world_make(&w, sample, ARRAY_LEN(sample), &listings[_i].set);
	(void)snprintf(path, sizeof(path), "%s", listings[_i].dir);
	for (char *p = strtok_r(path, "/", &save); p; p = strtok_r(NULL, "/", &save))
		dir = must_lookup(w.v, dir, p);
	list(w.v, dir, got, sizeof(got));
	ck_assert_str_eq(got, listings[_i].want);
	world_release(&w);
}
END_TEST

START_TEST(names_that_are_nearly_there_are_not_found)
{
	static const char *const strangers[] = { "3",
						 "003",
						 "000003",
						 "00004",
						 "0000x",
						 "00003 ",
						 " 0003",
						 "+0003",
						 "99999999999999999999999",
						 "model-rank-03-part-0.safetensors",
						 "model-rank-3-part-1.safetensors",
						 "model-rank-4-part-0.safetensors",
						 "model-rank-",
						 "1_pooling.json",
						 "model.safetensors",
						 "" };
	struct world w;
	uint64_t ranks;

	world_make(&w, sample, ARRAY_LEN(sample), &(struct set){ .layout = lists, .assets = true });
	ranks = must_lookup(w.v, VIEW_ROOT_NODE, "ranks");
	for (size_t i = 0; i < ARRAY_LEN(strangers); i++)
		if (view_lookup(w.v, ranks, strangers[i]))
			ck_abort_msg("'%s' is there", strangers[i]);
	world_release(&w);
}
END_TEST

START_TEST(a_model_without_tensors_is_a_file_without_tensors)
{
	static const struct stored only_state[] = { { "optim.a", CKPT_DTYPE_F32, 1, { 3 } } };
	struct rng r = rng_new();
	struct set s = { .layout = "mesh tp=2\n" };
	struct world w;

	for (size_t n = 0; n < 2; n++) {
		world_make(&w, only_state, n, &s);
		ck_assert_uint_eq(view_model(w.v), 0);
		check_world(&w, &r);
		world_release(&w);
	}
}
END_TEST

START_LOOP_TEST(floats_are_cast_and_nothing_else, 4)
{
	static const struct {
		enum ckpt_dtype to;
		uint64_t f64, f32, f16, bf16, i64, mask, c64; /* bytes */
	} rows[] = {
		{ CKPT_DTYPE_NONE, 120, 160, 14, 96, 40, 9, 32 },
		{ CKPT_DTYPE_F32, 60, 160, 28, 192, 40, 9, 32 },
		{ CKPT_DTYPE_F16, 30, 80, 14, 96, 40, 9, 32 },
		{ CKPT_DTYPE_BF16, 30, 80, 14, 96, 40, 9, 32 },
	};
	const struct {
		const char *name;
		uint64_t bytes;
	} want[] = {
		{ "model._orig_mod.head.weight", rows[_i].f64 },
		{ "model.embed.weight", rows[_i].f32 },
		{ "optim.exp_avg.embed.weight", rows[_i].f32 },
		{ "model.layers.0.b", rows[_i].f16 },
		{ "model.layers.0.w", rows[_i].bf16 },
		{ "model.ids", rows[_i].i64 },
		{ "model.mask", rows[_i].mask },
		{ "model.c64", rows[_i].c64 },
	};
	struct world w;

	world_make(&w, sample, ARRAY_LEN(sample), &(struct set){ .dtype = rows[_i].to });
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		uint64_t node = must_walk(w.v, "tensors", want[i].name), size = 0;
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(view_size(w.v, node, &size, &e), 0);
		ck_assert_uint_eq(size, want[i].bytes);
	}
	world_release(&w);
}
END_TEST

/* A checkpoint, like a file, has less than 2^63 bytes; a cast may make it larger. */
START_TEST(what_would_be_too_large_for_a_file_is_an_error)
{
	static const struct stored huge[] = { { "a", CKPT_DTYPE_BF16, 1, { (uint64_t)1 << 61 } },
					      { "b", CKPT_DTYPE_BF16, 1, { (uint64_t)1 << 60 } },
					      { "c", CKPT_DTYPE_U8, 1, { 100 } } };
	static const struct {
		enum ckpt_dtype dtype;
		const char *dir, *name;
		bool fails;
	} rows[] = {
		{ CKPT_DTYPE_NONE, "tensors", "a", false },
		{ CKPT_DTYPE_NONE, "hf", "model-00001-of-00003.safetensors", false },
		{ CKPT_DTYPE_NONE, "hf", "model-00003-of-00003.safetensors", false },
		{ CKPT_DTYPE_NONE, "hf", HF_INDEX_NAME, false },
		{ CKPT_DTYPE_NONE, "safetensors", "model.safetensors", false },
		{ CKPT_DTYPE_NONE, "pt", "model.pt", false },
		{ CKPT_DTYPE_F32, "tensors", "a", true },
		{ CKPT_DTYPE_F32, "npy", "a.npy", true },
		{ CKPT_DTYPE_F32, "npy", "b.npy", false },
		{ CKPT_DTYPE_F32, "safetensors", "model.safetensors", true },
		{ CKPT_DTYPE_F32, "pt", "model.pt", true },
		{ CKPT_DTYPE_F32, "tensors", "c", false },
		{ CKPT_DTYPE_F32, "hf", "model-00001-of-00003.safetensors", true },
		{ CKPT_DTYPE_F32, "hf", "model-00003-of-00003.safetensors", false },
	};
	struct world w;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ckpt_err e = { 0 };
		uint64_t node, size;
		int rc;

		world_make(&w, huge, ARRAY_LEN(huge), &(struct set){ .dtype = rows[i].dtype });
		node = must_walk(w.v, rows[i].dir, rows[i].name);
		rc = view_size(w.v, node, &size, &e);
		ck_assert_msg(rc == (rows[i].fails ? -EFBIG : 0), "%s/%s: %d %s", rows[i].dir,
			      rows[i].name, rc, e.msg);
		ck_assert(rc || size);
		world_release(&w);
	}
}
END_TEST

/* ---- names that become one ---- */

static const struct stored twins[] = { { "model.module.w", CKPT_DTYPE_F32, 1, { 2 } },
				       { "model.w", CKPT_DTYPE_F32, 1, { 2 } } };

START_TEST(without_a_model_the_rest_of_the_tree_is_there)
{
	struct rng r = rng_new();
	struct world w;
	struct view_about about;
	char got[100];

	world_make(&w, twins, ARRAY_LEN(twins), &(struct set){ .assets = true });
	ck_assert_uint_eq(w.warnings, 1);
	ck_assert_str_eq(w.warning, "no hf/ and pt/: name the weights with weights= or rename=: "
				    "'model.module.w' and 'model.w' would both be called 'w'");
	list(w.v, VIEW_ROOT_NODE, got, sizeof(got));
	ck_assert_str_eq(got, ".ckptfs npy objects safetensors tensors ");
	check_tree(&w, &r);
	view_about(w.v, &about);
	ck_assert(!about.has_model && !about.model_tensors && !about.shards);
	world_release(&w);
}
END_TEST

static const struct set demands[] = {
	{ .weights = "model" },
	{ .rename = "s/x/y/" },
	{ .layout = "mesh tp=2\n" },
};

START_LOOP_TEST(whoever_asks_for_a_model_is_told_why_there_is_none, ARRAY_LEN(demands))
{
	struct world w;
	struct ckpt_err e = { 0 };

	world_begin(&w, twins, ARRAY_LEN(twins), &demands[_i]);
	ck_assert_int_eq(view_new(w.c, &w.o, &w.v, &e), -EEXIST);
	ck_assert_str_eq(e.msg, "'model.module.w' and 'model.w' would both be called 'w'");
	ck_assert_ptr_null(w.v);
	ck_assert_uint_eq(w.warnings, 0);
	world_release(&w);
}
END_TEST

START_TEST(rules_that_make_two_names_one_are_refused)
{
	struct world w;
	struct ckpt_err e = { 0 };

	world_begin(&w, sample, ARRAY_LEN(sample), &(struct set){ .rename = "s/[0-9]+/N/" });
	ck_assert_int_eq(view_new(w.c, &w.o, &w.v, &e), -EEXIST);
	ck_assert_str_eq(e.msg, "'model.c64' and 'model.c128' would both be called 'model.cN'");
	world_release(&w);
}
END_TEST

START_LOOP_TEST(an_asset_may_not_have_a_ranks_name, 2)
{
	static const struct view_asset taken[] = { { "00007", "/a/00007", 1, 1 } };
	struct world w;
	struct ckpt_err e = { 0 };

	world_begin(&w, sample, ARRAY_LEN(sample), &(struct set){ .layout = _i ? lists : mesh });
	w.o.assets = taken;
	w.o.n_assets = 1;
	ck_assert_int_eq(view_new(w.c, &w.o, &w.v, &e), _i ? -EEXIST : 0);
	if (_i)
		ck_assert_str_eq(e.msg,
				 "ranks/: the file '00007' of assets= has a name that is taken");
	world_release(&w);
}
END_TEST

/* ---- without memory ---- */

START_LOOP_TEST(without_memory_there_is_no_view, ARRAY_LEN(sets))
{
	struct world w;

	world_begin(&w, sample, ARRAY_LEN(sample), &sets[_i]);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_err e = { 0 };
		int rc = view_new(w.c, &w.o, &w.v, &e);

		(void)fault_off();
		REQUIRE(rc == (fault_hit() ? -ENOMEM : 0) && e.code == -rc);
		view_free(w.v);
		w.v = NULL;
	}
	world_release(&w);
}
END_TEST

START_LOOP_TEST(without_memory_no_file_is_described, ARRAY_LEN(sets))
{
	struct set s = sets[_i];
	struct world w;
	size_t n;
	uint64_t *nodes;

	world_make(&w, sample, ARRAY_LEN(sample), &s);
	nodes = walk(&w, &n);
	for (size_t i = 0; i < n; i++) {
		if (view_kind(w.v, nodes[i]) != VIEW_FILE)
			continue;
		FAULT_LOOP(FAULT_ALLOC)
		{
			struct vfile f = VFILE_INIT;
			struct ckpt_err e = { 0 };
			int rc = view_describe(w.v, nodes[i], &f, &e);

			(void)fault_off();
			REQUIRE(rc == (fault_hit() ? -ENOMEM : 0) && e.code == -rc);
			vfile_release(&f);
		}
	}
	free(nodes);
	world_release(&w);
}
END_TEST

SUITE(view_model, .seconds = 60)
