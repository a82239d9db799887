/* SPDX-License-Identifier: Apache-2.0 */
#include "page/picture.h"

#include "page/png.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/values.h"
#include "model/dtype.h"
#include "model/tile.h"
#include <ckptfs/ckpt.h>

#include <endian.h>
#include <math.h>
#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows of cells whose samples are in memory at a time. */
enum { STRIP = 32 };

struct spans {
	uint64_t slice;
	struct tile_span rows, cols;
};

static void spans_of(const struct picture *h, struct spans *ret)
{
	struct tile_matrix m = { 0 };

	(void)tile_matrix(h->n_dims, h->shape, &m); /* it has: there is a tile */
	ret->slice = h->tile->slice;
	tile_span(m.rows, h->tile->level, h->tile->row, &ret->rows);
	tile_span(m.cols, h->tile->level, h->tile->col, &ret->cols);
}

/* ---- values ---- */

/* Reads samples [first, first + n) of the rows, all columns. */
static int read_rows(struct ckpt *c, const struct picture *h, const struct spans *s, uint64_t first,
		     uint64_t n, void *to, struct ckpt_err *e)
{
	uint64_t start[CKPT_MAX_DIMS], stop[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS];
	uint64_t rest = s->slice;

	for (size_t d = h->n_dims; d-- > 0;) {
		const struct tile_span *span = d + 1 == h->n_dims ? &s->cols : &s->rows;

		if (d + 2 >= h->n_dims) {
			uint64_t from = span == &s->rows ? first : 0;
			uint64_t count = span == &s->rows ? n : span->samples;

			step[d] = span->step;
			start[d] = span->first + from * span->step;
			stop[d] = start[d] + (count - 1) * span->step + 1;
		} else {
			step[d] = 1;
			start[d] = rest % h->shape[d];
			stop[d] = start[d] + 1;
			rest /= h->shape[d];
		}
	}
	return ckpt_slice_read(c, h->tensor,
			       &(struct ckpt_slice){ .start = start, .stop = stop, .step = step },
			       to, e);
}

/* A cell shows the largest of its samples so far. */
static void show(double *cell, double v)
{
	if (isnan(*cell) || fabs(v) <= fabs(*cell))
		return;
	*cell = v; /* also NaN, which compares false */
}

static void show_samples(const struct picture *h, const struct spans *s, uint64_t first, uint64_t n,
			 const double *v, double *cells)
{
	size_t parts = values_numbers(h->dtype);

	for (uint64_t r = 0; r < n; r++)
		for (uint64_t k = 0; k < s->cols.samples; k++, v += parts)
			show(&cells[(first + r) / s->rows.each * s->cols.cells + k / s->cols.each],
			     parts == 2 ? hypot(v[0], v[1]) : v[0]);
}

static int read_cells(struct ckpt *c, const struct picture *h, const struct spans *s, double *cells,
		      struct ckpt_err *e)
{
	uint64_t most = min_u64(s->rows.samples, (uint64_t)STRIP * s->rows.each);
	size_t n = (size_t)(most * s->cols.samples), parts = values_numbers(h->dtype);
	autofree void *bytes = malloc(n * dtype_info(h->dtype)->size);
	autofree double *v = malloc(2 * n * parts * sizeof(*v)); /* and the rests */

	if (!bytes || !v)
		return err_nomem(e);
	for (uint64_t first = 0; first < s->rows.samples; first += most) {
		uint64_t now = min_u64(most, s->rows.samples - first);
		int rc = read_rows(c, h, s, first, now, bytes, e);

		if (rc)
			return rc;
		(void)values_decode(h->dtype, bytes, (size_t)(now * s->cols.samples) * parts, v,
				    v + n * parts);
		show_samples(h, s, first, now, v, cells);
	}
	return 0;
}

/* ---- pictures ---- */

uint8_t picture_colour(double v, int exponent)
{
	double part = ldexp(v, -exponent);

	if (isnan(v))
		return PICTURE_NAN;
	part = part < -1 ? -1 : part > 1 ? 1 : part;
	return (uint8_t)lrint(PICTURE_MIDDLE + part * PICTURE_MIDDLE);
}

/* From blue over white to red; NaN is black. */
static void make_palette(uint8_t ret[static 3 * 256])
{
	static const struct {
		double at;
		uint8_t rgb[3];
	} stops[] = { { -1, { 16, 52, 112 } },	   { -0.5, { 56, 130, 190 } },
		      { -0.2, { 160, 203, 226 } }, { 0, { 248, 248, 246 } },
		      { 0.2, { 247, 190, 160 } },  { 0.5, { 214, 90, 72 } },
		      { 1, { 118, 8, 34 } } };

	memset(ret, 0, 3 * 256);
	for (unsigned i = 0; i < PICTURE_NAN; i++) {
		double x = ((double)i - PICTURE_MIDDLE) / PICTURE_MIDDLE, part;
		size_t k = 0;

		while (k + 2 < ARRAY_LEN(stops) && x > stops[k + 1].at)
			k++;
		part = (x - stops[k].at) / (stops[k + 1].at - stops[k].at);
		for (size_t j = 0; j < 3; j++)
			ret[3 * i + j] = (uint8_t)lrint(stops[k].rgb[j] * (1 - part) +
							stops[k + 1].rgb[j] * part);
	}
}

static int add_picture(const struct picture *h, const struct spans *s, const double *cells,
		       struct buf *ret)
{
	unsigned w = s->cols.cells, high = s->rows.cells;
	autofree uint8_t *pixels = malloc((size_t)w * high);
	uint8_t palette[3 * 256];

	if (!pixels)
		return -ENOMEM;
	for (size_t i = 0; i < (size_t)w * high; i++)
		pixels[i] = picture_colour(cells[i], h->form->exponent);
	make_palette(palette);
	png_write(ret, w, high, pixels, palette);
	return 0;
}

/* ---- files ---- */

/* The script up to the text; returns its length. */
enum { SCRIPT_HEAD = CKPT_NAME_MAX + 64 };
static size_t begin_script(const struct picture *h, const struct spans *s,
			   char to[static SCRIPT_HEAD])
{
	return (size_t)snprintf(to, SCRIPT_HEAD, "ckptfsTile(\"%s\",%u,%u,\"", h->name,
				s->cols.cells, s->rows.cells);
}

static const char end_script[] = "\");\n";

uint64_t picture_size(const struct picture *h)
{
	char head[SCRIPT_HEAD];
	struct spans s;

	spans_of(h, &s);
	if (h->form->picture)
		return png_size(s.cols.cells, s.rows.cells);
	return begin_script(h, &s, head) +
	       BASE64_ENCODE_RAW_LENGTH((uint64_t)s.cols.cells * s.rows.cells * sizeof(double)) +
	       strlen(end_script);
}

static void to_little_endian(double *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t bits;

		memcpy(&bits, &v[i], sizeof(bits));
		bits = htole64(bits);
		memcpy(&v[i], &bits, sizeof(bits));
	}
}

static void add_script(const struct picture *h, const struct spans *s, double *cells,
		       struct buf *ret)
{
	size_t size = (size_t)s->cols.cells * s->rows.cells * sizeof(*cells), n;
	char head[SCRIPT_HEAD], *at;

	buf_add(ret, head, begin_script(h, s, head));
	n = BASE64_ENCODE_RAW_LENGTH(size);
	at = buf_room(ret, n);
	if (!at)
		return;
	to_little_endian(cells, size / sizeof(*cells));
	base64_encode_raw(at, size, (const uint8_t *)cells);
	ret->len += n;
	buf_str(ret, end_script);
}

int picture_make(struct ckpt *c, const struct picture *h, struct buf *ret, struct ckpt_err *e)
{
	autofree double *cells = NULL;
	struct spans s;
	int rc;

	spans_of(h, &s);
	cells = calloc((size_t)s.cols.cells * s.rows.cells, sizeof(*cells));
	if (!cells)
		return err_nomem(e);
	rc = read_cells(c, h, &s, cells, e);
	if (rc)
		return rc;
	if (!h->form->picture)
		add_script(h, &s, cells, ret);
	else if (add_picture(h, &s, cells, ret))
		return err_nomem(e);
	return ret->err ? err_sys(e, ret->err, "%s", h->name) : 0;
}
