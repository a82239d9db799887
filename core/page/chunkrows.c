/* SPDX-License-Identifier: Apache-2.0 */
#include "page/chunkrows.h"

#include "page/name_column.h"
#include "page/page.h"

#include "base/err.h"
#include "base/vec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_CHUNKS = 1 << 16, /* maximum for a tensor that is drawn */
	/* The limit on what sections for chunks may add to the page. */
	FIXED_BYTES = 10 << 10,
	BYTES_PER_TENSOR = 60,
};

/* How a cut is written: the whole tensor; pieces in each dimension, every combination of which is a
 * chunk; or arbitrary boxes. Decoded by data.js. */
enum { CUT_UNKNOWN, CUT_WHOLE, CUT_GRID, CUT_BOXES };

static size_t row_size(const struct chunkrows *r)
{
	return 2 * r->n_dims + 1;
}

static int take_chunk(void *arg, const struct ckpt_chunk *k)
{
	struct chunkrows *r = arg;
	size_t size = row_size(r);
	int64_t path;
	uint64_t *row;

	if (r->n_chunks >= MAX_CHUNKS) {
		r->too_many = true;
		return 1;
	}
	path = dict_number(&r->paths, k->path, strlen(k->path));
	if (path < 0 || !VEC_ROOM(r->numbers, r->cap, (r->n_chunks + 1) * size))
		return -ENOMEM;
	row = r->numbers + r->n_chunks++ * size;
	for (size_t d = 0; d < r->n_dims; d++) {
		row[d] = k->off[d];
		row[r->n_dims + d] = k->len[d];
	}
	row[2 * r->n_dims] = (uint64_t)path;
	return 0;
}

static int by_offset(const void *a, const void *b, void *arg)
{
	const struct chunkrows *r = arg;
	const uint64_t *x = a, *y = b;

	for (size_t i = 0; i < row_size(r); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

/* The number of pieces in dimension d if the rows, in order of their offsets, form a grid. */
static size_t pieces(const struct chunkrows *r, size_t d, size_t stride)
{
	size_t size = row_size(r), n = 1;

	while (n * stride < r->n_chunks &&
	       r->numbers[n * stride * size + d] > r->numbers[(n - 1) * stride * size + d])
		n++;
	return n;
}

/* Appends the grid; false: the chunks do not form one, and the contents of line are undefined. */
static bool add_grid(struct chunkrows *r)
{
	size_t count[64], stride = 1, size = row_size(r);

	if (!r->n_dims || r->n_dims > sizeof(count) / sizeof(*count))
		return false;
	/* The last dimension varies fastest. */
	for (size_t d = r->n_dims; d-- > 0;) {
		count[d] = pieces(r, d, stride);
		stride *= count[d];
		if (stride > r->n_chunks)
			return false;
	}
	if (stride != r->n_chunks)
		return false;
	for (size_t i = 0; i < r->n_chunks; i++) {
		size_t rest = i, below = 1;

		for (size_t d = r->n_dims; d-- > 0; below *= count[d], rest /= count[d]) {
			const uint64_t *row = r->numbers + i * size;
			size_t k = rest % count[d];
			const uint64_t *like = r->numbers + k * below * size;
			const uint64_t *left = k ? like - below * size : NULL;
			uint64_t start = left ? left[d] + left[r->n_dims + d] : 0;

			if (row[d] != start || like[d] != start ||
			    row[r->n_dims + d] != like[r->n_dims + d])
				return false;
		}
	}
	page_add_uint(&r->line, CUT_GRID);
	page_add_uint(&r->line, r->n_dims);
	stride = 1;
	for (size_t d = r->n_dims; d-- > 0; stride *= count[d]) {
		page_add_uint(&r->line, count[d]);
		for (size_t k = 0; k < count[d]; k++)
			page_add_uint(&r->line, r->numbers[k * stride * size + r->n_dims + d]);
	}
	return true;
}

static bool is_whole(const struct chunkrows *r, const struct ckpt_tensor *t)
{
	if (r->n_chunks != 1)
		return false;
	for (size_t d = 0; d < r->n_dims; d++)
		if (r->numbers[d] || r->numbers[r->n_dims + d] != t->shape[d])
			return false;
	return true;
}

static void add_cut(struct chunkrows *r, const struct ckpt_tensor *t)
{
	if (is_whole(r, t)) {
		page_add_uint(&r->line, CUT_WHOLE);
		return;
	}
	if (add_grid(r))
		return;
	r->line.len = 0;
	page_add_uint(&r->line, CUT_BOXES);
	page_add_uint(&r->line, r->n_dims);
	page_add_uint(&r->line, r->n_chunks);
	for (size_t i = 0; i < r->n_chunks; i++)
		for (size_t d = 0; d < 2 * r->n_dims; d++)
			page_add_uint(&r->line, r->numbers[i * row_size(r) + d]);
}

static int64_t number_of_line(struct chunkrows *r, struct dict *d)
{
	int64_t n = r->line.err ? -ENOMEM : dict_number(d, r->line.data, r->line.len);

	r->line.len = 0;
	return n;
}

static int read_one(struct chunkrows *r, struct ckpt *c, uint64_t i, struct ckpt_err *e)
{
	struct ckpt_err damage = { 0 };
	struct ckpt_tensor t;
	int64_t cut, files, before = 0;
	int rc;

	ckpt_tensor(c, i, &t);
	r->n_chunks = 0;
	r->n_dims = t.n_dims;
	r->too_many = false;
	if (t.chunks > MAX_CHUNKS)
		return 0;
	rc = ckpt_tensor_chunks(c, i, take_chunk, r, &damage);
	if (rc == -ENOMEM)
		return err_nomem(e);
	/* Damage is reported as the tensor's own fault. */
	if (rc || !r->n_chunks)
		return 0;
	qsort_r(r->numbers, r->n_chunks, row_size(r) * sizeof(*r->numbers), by_offset, r);
	add_cut(r, &t);
	cut = number_of_line(r, &r->cuts);
	page_add_uint(&r->line, r->n_chunks);
	for (size_t k = 0; k < r->n_chunks; k++) {
		int64_t file = (int64_t)r->numbers[k * row_size(r) + 2 * r->n_dims];

		page_add_int(&r->line, file - before);
		before = file;
	}
	files = number_of_line(r, &r->files);
	if (cut < 0 || files < 0)
		return err_nomem(e);
	r->rows[i] = (struct chunkrow){ (uint32_t)cut, (uint32_t)files };
	return 0;
}

int chunkrows_read(struct chunkrows *r, struct ckpt *c, uint64_t n, struct ckpt_err *e)
{
	int rc = 0;

	r->n = n;
	r->rows = calloc(n + 1, sizeof(*r->rows));
	page_add_uint(&r->line, CUT_UNKNOWN);
	if (!r->rows || number_of_line(r, &r->cuts) || dict_number(&r->files, "", 0))
		return err_nomem(e);
	for (uint64_t i = 0; !rc && i < n; i++)
		rc = read_one(r, c, i, e);
	return rc;
}

/* The number of entries that fit into a section of this many bytes. */
static size_t entries_within(const struct dict *d, size_t bytes)
{
	size_t n = 0;

	while (n < d->n && d->ends[n] <= bytes)
		n++;
	return n;
}

static void add_entries(struct buf *b, const struct dict *d, size_t n)
{
	page_add_uint(b, n);
	if (n)
		buf_add(b, d->bytes.data ? d->bytes.data : "", d->ends[n - 1]);
}

static void add_rows(struct buf *b, const struct chunkrows *r, size_t cuts, size_t files)
{
	for (size_t i = 0; i < r->n; i++)
		page_add_uint(b, r->rows[i].cut < cuts ? r->rows[i].cut : 0);
	for (size_t i = 0; i < r->n; i++)
		page_add_uint(b, r->rows[i].files < files ? r->rows[i].files : 0);
}

static void add_paths(struct buf *b, const struct dict *d)
{
	struct name_column names = { .to = b };

	page_add_uint(b, d->n);
	for (size_t i = 0; i < d->n; i++) {
		size_t len;
		const char *s = dict_string(d, i, &len);

		name_column_add(&names, s, len);
	}
}

int chunkrows_write(struct chunkrows *r, struct page *p, struct ckpt_err *e)
{
	size_t most =
		r->cuts.bytes.len > r->files.bytes.len ? r->cuts.bytes.len : r->files.bytes.len;
	struct buf b = BUF_INIT(p->out.max), paths = BUF_INIT(p->out.max);
	int rc;

	add_paths(&paths, &r->paths);
	rc = page_section(p, "paths", &paths, e);
	buf_release(&paths);
	/* A training job has few cuts, so this usually takes one iteration. */
	for (; !rc; most /= 2) {
		size_t cuts = entries_within(&r->cuts, most),
		       files = entries_within(&r->files, most);

		buf_restart(&b);
		add_entries(&b, &r->cuts, cuts);
		add_entries(&b, &r->files, files);
		add_rows(&b, r, cuts, files);
		if (!most || b.err == ENOMEM ||
		    (!b.err && page_section_size(&b) <= FIXED_BYTES + r->n * BYTES_PER_TENSOR))
			break;
	}
	if (!rc)
		rc = page_section(p, "chunks", &b, e);
	buf_release(&b);
	return rc;
}

void chunkrows_release(struct chunkrows *r)
{
	dict_release(&r->paths);
	dict_release(&r->cuts);
	dict_release(&r->files);
	free(r->rows);
	free(r->numbers);
	buf_release(&r->line);
}
