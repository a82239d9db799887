/* SPDX-License-Identifier: Apache-2.0 */
/* The files of .ckptfs/view that show values, for every fixture: each cell is compared with the
 * elements. */
#include "page/picture.h"

#include "base/checked.h"
#include "codec/values.h"
#include "fixture_util.h"
#include "model/tile.h"
#include "page/png.h"
#include <ckptfs/ckpt_mount.h>

#include <libdeflate.h>
#include <math.h>
#include <nettle/base64.h>

static ckpt_node page_dir(struct ckpt *c)
{
	struct ckpt_err e = { 0 };
	ckpt_node node;

	ck_assert_msg(!ckpt_walk(c, ".ckptfs/view", &node, &e), "%s", e.msg);
	return node;
}

/* All bytes of a file of the directory; its size is what was said before. */
static uint8_t *read_named(struct ckpt *c, const char *name, size_t *ret_len)
{
	char called[CKPT_NAME_MAX + 1];
	struct ckpt_err e = { 0 };
	struct ckpt_file *f;
	struct ckpt_stat st;
	ckpt_node node;

	ck_assert_msg(!ckpt_lookup(c, page_dir(c), name, &node), "%s", name);
	ck_assert(!ckpt_name(c, node, called));
	ck_assert_str_eq(called, name);
	ck_assert(ckpt_parent(c, node) == page_dir(c));
	ck_assert(!ckpt_stat(c, node, &st, &e) && !st.is_dir && !st.is_link);
	ck_assert_msg(!ckpt_file_open(c, node, &f, &e), "%s: %s", name, e.msg);
	ck_assert_uint_eq(ckpt_file_size(f), st.size);
	*ret_len = st.size;
	return fixture_read(f);
}

/* ---- what a cell must be ---- */

struct matrix {
	const struct ckpt_tensor *t;
	uint64_t rows, cols, slices;
	double *v; /* all elements */
};

static double element(const struct matrix *m, uint64_t slice, uint64_t row, uint64_t col)
{
	return m->v[(slice * m->rows + row) * m->cols + col];
}

static double cell_of(const struct matrix *m, const struct tile *t, uint64_t r, uint64_t c)
{
	uint64_t side = (uint64_t)1 << t->level, step = side > 4 ? side / 4 : 1;
	double found = 0;

	r = (t->row * TILE_SIDE + r) * side;
	c = (t->col * TILE_SIDE + c) * side;
	for (uint64_t i = r; i < min_u64(m->rows, r + side); i += step)
		for (uint64_t k = c; k < min_u64(m->cols, c + side); k += step) {
			double v = element(m, t->slice, i, k);

			if (isnan(v))
				return NAN;
			found = fabs(v) > fabs(found) ? v : found;
		}
	return found;
}

static void read_elements(struct ckpt *c, uint64_t i, enum ckpt_dtype dtype, struct matrix *m)
{
	size_t n = m->t->bytes / m->t->element, parts = values_numbers(dtype);
	autofree uint8_t *bytes = malloc(m->t->bytes + 1);
	autofree double *v = calloc(2 * n * parts + 1, sizeof(*v));
	struct ckpt_err e = { 0 };

	m->v = calloc(n + 1, sizeof(*m->v));
	REQUIRE(bytes && v && m->v);
	ck_assert_msg(!ckpt_slice_read(c, i, &(struct ckpt_slice){ 0 }, bytes, &e), "%s", e.msg);
	(void)values_decode(dtype, bytes, n * parts, v, v + n * parts);
	for (size_t k = 0; k < n; k++)
		m->v[k] = parts == 2 ? hypot(v[2 * k], v[2 * k + 1]) : v[k];
}

/* ---- the files ---- */

static void check_values(struct ckpt *c, uint64_t i, const struct matrix *m, const struct tile *t,
			 unsigned w, unsigned h)
{
	char name[128], head[192];
	struct base64_decode_ctx decode;
	size_t len, n = (size_t)w * h * sizeof(double);
	autofree uint8_t *text = NULL;
	autofree double *cells = malloc(n + 8);

	(void)snprintf(name, sizeof(name), "t%llu.s%llu.l%u.r%llu.c%llu.js", (unsigned long long)i,
		       (unsigned long long)t->slice, t->level, (unsigned long long)t->row,
		       (unsigned long long)t->col);
	(void)snprintf(head, sizeof(head), "ckptfsTile(\"%s\",%u,%u,\"", name, w, h);
	text = read_named(c, name, &len);
	REQUIRE(cells && len > strlen(head) + 4);
	ck_assert_msg(!memcmp(text, head, strlen(head)), "%.100s", text);
	ck_assert(!memcmp(text + len - 4, "\");\n", 4));
	base64_decode_init(&decode);
	REQUIRE(base64_decode_update(&decode, &n, (uint8_t *)cells, len - strlen(head) - 4,
				     (const char *)text + strlen(head)) &&
		base64_decode_final(&decode));
	ck_assert_uint_eq(n, (size_t)w * h * sizeof(double));
	for (unsigned r = 0; r < h; r++)
		for (unsigned k = 0; k < w; k++) {
			double want = cell_of(m, t, r, k), got = cells[(size_t)r * w + k];

			if (isnan(want) ? !isnan(got) : fabs(want) != fabs(got))
				ck_abort_msg("%s: [%u, %u] is %g, not %g", name, r, k, got, want);
		}
}

static void check_picture(struct ckpt *c, uint64_t i, const struct matrix *m, const struct tile *t,
			  unsigned w, unsigned h, int exponent)
{
	struct libdeflate_decompressor *z = libdeflate_alloc_decompressor();
	size_t len, got, n = (size_t)h * (w + 1);
	autofree uint8_t *raw = malloc(n);
	autofree uint8_t *png = NULL;
	char name[128];

	(void)snprintf(name, sizeof(name), "t%llu.s%llu.l%u.r%llu.c%llu.e%d.png",
		       (unsigned long long)i, (unsigned long long)t->slice, t->level,
		       (unsigned long long)t->row, (unsigned long long)t->col, exponent);
	png = read_named(c, name, &len);
	ck_assert_uint_eq(len, png_size(w, h));
	/* signature, IHDR and PLTE have a fixed size; IDAT ends before its check sum and IEND */
	REQUIRE(z && raw && len > 8 + 25 + 780 + 8 + 16);
	ck_assert_int_eq(libdeflate_zlib_decompress(z, png + 8 + 25 + 780 + 8,
						    len - (8 + 25 + 780 + 8) - 16, raw, n, &got),
			 LIBDEFLATE_SUCCESS);
	libdeflate_free_decompressor(z);
	ck_assert_uint_eq(got, n);
	for (unsigned r = 0; r < h; r++)
		for (unsigned k = 0; k <= w; k++) {
			double v = k ? cell_of(m, t, r, k - 1) : 0;
			uint8_t want = !k ? 0 : picture_colour(v, exponent),
				is = raw[r * (w + 1) + k];

			/* it is not specified which of two elements of equal magnitude is shown */
			if (is != want && is != picture_colour(-v, exponent))
				ck_abort_msg("%s: [%u, %u] is %u, not %u", name, r, k, is, want);
		}
}

static void check_tensor(struct ckpt *c, uint64_t i, struct rng *r)
{
	struct tile_matrix shape;
	struct ckpt_tensor t;
	struct matrix m = { .t = &t };
	enum ckpt_dtype dtype;
	ckpt_node node;
	uint64_t n;

	ckpt_tensor(c, i, &t);
	dtype = ckpt_dtype_by_name(t.dtype, strlen(t.dtype));
	if (t.fault)
		return;
	if (!values_known(dtype) || !tile_matrix(t.n_dims, t.shape, &shape)) {
		char name[64];

		(void)snprintf(name, sizeof(name), "t%llu.s0.l0.r0.c0.js", (unsigned long long)i);
		ck_assert_msg(ckpt_lookup(c, page_dir(c), name, &node) == 1, "%s", t.fqn);
		return;
	}
	REQUIRE(tile_count(&shape, &n));
	m.rows = shape.rows;
	m.cols = shape.cols;
	m.slices = shape.slices;
	read_elements(c, i, dtype, &m);
	for (unsigned k = 0; k < 2; k++) {
		struct tile_span rows, cols;
		struct tile at;

		tile_at(&shape, k ? n - 1 : rng_below(r, n), &at);
		tile_span(m.rows, at.level, at.row, &rows);
		tile_span(m.cols, at.level, at.col, &cols);
		check_values(c, i, &m, &at, cols.cells, rows.cells);
		check_picture(c, i, &m, &at, cols.cells, rows.cells,
			      TILE_MIN_EXP + (int)rng_below(r, TILE_MAX_EXP - TILE_MIN_EXP + 1));
	}
	free(m.v);
}

START_LOOP_TEST(cells_are_those_of_the_elements, fixture_count())
{
	const struct ckpt_opts opts = { .runs = false };
	struct rng r = rng_new();
	char path[4400];
	struct ckpt *c = fixture_open(_i, &opts, path);
	struct ckpt_totals t;

	if (!c)
		return;
	ckpt_totals(c, &t);
	for (uint64_t i = 0; i < t.tensors; i++)
		if (t.tensors < 40 || rng_chance(&r, 10))
			check_tensor(c, i, &r);
	ckpt_close(c);
}
END_TEST

/* File names are numbers, each written in only one way; no other name exists. */
START_LOOP_TEST(other_names_are_no_files, fixture_count())
{
	static const char *const names[] = {
		"",
		".js",
		"t",
		"t0",
		"t0.js",
		"index.htm",
		"index.html ",
		"INDEX.HTML",
		"data.json",
		"t0.s0.l0.r0.c0",
		"t0.s0.l0.r0.c0.",
		"t0.s0.l0.r0.c0.js ",
		"t0.s0.l0.r0.c0.png",
		"t0.s0.l0.r0.c0.e.png",
		"t0.s0.l0.r0.c0.e-.png",
		"t0.s0.l0.r0.c0.e-0.png",
		"t0.s0.l0.r0.c0.e+1.png",
		"t0.s0.l0.r0.c0.e01.png",
		"t0.s0.l0.r0.c0.e1.js",
		"t0.s0.l0.r0.c0.e129.png",
		"t0.s0.l0.r0.c0.e-150.png",
		"t0.s0.l0.r0.c0.e18446744073709551615.png",
		"t00.s0.l0.r0.c0.js",
		"t0.s00.l0.r0.c0.js",
		"t-0.s0.l0.r0.c0.js",
		"t0.s0.l0.r0.c-1.js",
		"t0.s0.l64.r0.c0.js",
		"t0.s0.l4294967296.r0.c0.js",
		"t0.s0.l65536.r0.c0.js",
		"t18446744073709551616.s0.l0.r0.c0.js",
		"t18446744073709551615.s0.l0.r0.c0.js",
		"t0.s18446744073709551615.l0.r0.c0.js",
		"t0.s0.l0.r18446744073709551615.c0.js",
		"t0.s0.l0.r0.c18446744073709551615.js",
		"t0.s0.l0.r0.c99999999999999999999999999999999999999999.js",
		"t 0.s0.l0.r0.c0.js",
		"t0.s0.l0.r0.c0.e1.png/../x",
		"../info.json",
		"stats.json",
	};
	const struct ckpt_opts opts = { .runs = false };
	char path[4400], long_name[CKPT_NAME_MAX + 1];
	struct ckpt *c = fixture_open(_i, &opts, path);
	ckpt_node node;

	if (!c)
		return;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		ck_assert_msg(ckpt_lookup(c, page_dir(c), names[i], &node) == 1, "%s", names[i]);
	memset(long_name, '9', CKPT_NAME_MAX);
	long_name[0] = 't';
	long_name[CKPT_NAME_MAX] = 0;
	ck_assert_int_eq(ckpt_lookup(c, page_dir(c), long_name, &node), 1);
	ckpt_close(c);
}
END_TEST

/* The page can be opened but is not listed, so that a copy of the tree is a copy of the
 * checkpoint. */
START_TEST(the_page_is_not_listed)
{
	const struct ckpt_opts opts = { .runs = false };
	char path[4400], name[CKPT_NAME_MAX + 1];
	struct ckpt_err e = { 0 };
	struct ckpt_stat st;
	struct ckpt *c = NULL;
	ckpt_node control, node;
	uint64_t pos = 0;

	for (int i = 0; i < fixture_count() && !c; i++)
		c = fixture_open(i, &opts, path);
	REQUIRE(c);
	ck_assert(!ckpt_walk(c, ".ckptfs", &control, &e));
	while (!ckpt_next(c, control, &pos, name, &node))
		ck_assert_str_eq(name, "info.json");
	ck_assert_uint_eq(pos, 1);
	ck_assert(ckpt_parent(c, page_dir(c)) == control);
	ck_assert(!ckpt_name(c, page_dir(c), name));
	ck_assert_str_eq(name, "view");
	ck_assert(!ckpt_stat(c, page_dir(c), &st, &e) && st.is_dir && st.size == 2);
	pos = 0;
	ck_assert(!ckpt_next(c, page_dir(c), &pos, name, &node));
	ck_assert_str_eq(name, "index.html");
	ck_assert(!ckpt_next(c, page_dir(c), &pos, name, &node));
	ck_assert_str_eq(name, "data.js");
	ck_assert_int_eq(ckpt_next(c, page_dir(c), &pos, name, &node), 1);
	ckpt_close(c);
}
END_TEST

SUITE(picture, .seconds = 120)
