/* SPDX-License-Identifier: Apache-2.0 */
#include "model/box.h"

#include "base/checked.h"

bool box_intersect(size_t n, const uint64_t *a_off, const uint64_t *a_len, const uint64_t *b_off,
		   const uint64_t *b_len, uint64_t *ret_off, uint64_t *ret_len)
{
	for (size_t d = 0; d < n; d++) {
		uint64_t start = max_u64(a_off[d], b_off[d]);
		uint64_t end = min_u64(a_off[d] + a_len[d], b_off[d] + b_len[d]);

		if (start >= end)
			return false;
		ret_off[d] = start;
		ret_len[d] = end - start;
	}
	return true;
}

bool box_volume(size_t n, const uint64_t *len, uint64_t *ret)
{
	uint64_t v = 1;
	bool empty = false;

	/* An empty dimension makes the product zero even if the others overflow. */
	for (size_t d = 0; d < n; d++)
		empty |= !len[d];
	for (size_t d = 0; d < n && !empty; d++)
		if (ckd_mul(&v, v, len[d]) || v > INT64_MAX)
			return false;
	*ret = empty ? 0 : v;
	return true;
}

bool box_inside(size_t n, const uint64_t *off, const uint64_t *len, const uint64_t *shape)
{
	for (size_t d = 0; d < n; d++)
		if (!range_ok(off[d], len[d], shape[d]))
			return false;
	return true;
}

int box_compare_off(size_t n, const uint64_t *a, const uint64_t *b)
{
	for (size_t d = 0; d < n; d++)
		if (a[d] != b[d])
			return a[d] < b[d] ? -1 : 1;
	return 0;
}

int box_of_range(size_t n, const uint64_t *shape, uint64_t first, uint64_t count, box_emit_fn *emit,
		 void *arg)
{
	uint64_t stride[CKPT_MAX_DIMS + 1], idx[CKPT_MAX_DIMS + 1], len[CKPT_MAX_DIMS + 1], pos = 0,
											    s = 1;

	if (!count)
		return 0;
	if (!n)
		return emit(arg, (const uint64_t[1]){ 0 }, (const uint64_t[1]){ 0 }, 0);
	for (size_t d = n; d-- > 0; s *= shape[d])
		stride[d] = s;
	for (size_t d = 0; d < n; d++) {
		idx[d] = first / stride[d];
		first %= stride[d];
	}
	while (pos < count) {
		/* The outermost dimension that can advance in whole steps from here. */
		size_t d = n - 1;
		uint64_t k;
		int rc;

		while (d && !idx[d] && stride[d - 1] <= count - pos)
			d--;
		k = min_u64(shape[d] - idx[d], (count - pos) / stride[d]);
		for (size_t j = 0; j < n; j++)
			len[j] = j < d ? 1 : j == d ? k : shape[j];
		rc = emit(arg, idx, len, pos);
		if (rc)
			return rc;
		pos += k * stride[d];
		idx[d] += k;
		while (d && idx[d] == shape[d]) {
			idx[d--] = 0;
			idx[d]++;
		}
	}
	return 0;
}

bool boxes_grid(size_t n, const uint64_t *shape, const uint64_t *boxes, size_t count,
		uint64_t *ret_counts, uint64_t *ret_starts)
{
	uint64_t idx[CKPT_MAX_DIMS] = { 0 };
	size_t cells = 1, at = 0;

	if (!count || !n)
		return count == 1; /* without dimensions: a single cell */
	/*
	 * The boxes are sorted, so along dimension d, at the start of all others, the cells are
	 * those boxes that share the first box's other offsets; they lie product(counts[d+1..])
	 * apart. Count from the innermost dimension outwards; the sizes say where the next must
	 * start.
	 */
	for (size_t d = n; d-- > 0;) {
		uint64_t next = 0;
		size_t k = 0;

		for (size_t b = 0; next < shape[d]; b += cells, k++) {
			if (b >= count || boxes[b * 2 * n + d] != next)
				return false;
			next += boxes[b * 2 * n + n + d];
		}
		ret_counts[d] = k;
		if (!k || ckd_mul(&cells, cells, k) || cells > count) /* k is 0: no elements */
			return false;
	}
	if (cells != count)
		return false;
	for (size_t d = 0, step = count; d < n; d++) {
		step /= ret_counts[d];
		for (size_t k = 0; k < ret_counts[d]; k++)
			ret_starts[at++] = boxes[k * step * 2 * n + d];
	}
	/* Every box must be its cell. */
	for (size_t b = 0; b < count; b++) {
		const uint64_t *off = boxes + b * 2 * n, *len = off + n, *starts = ret_starts;

		for (size_t d = 0; d < n; d++) {
			uint64_t i = idx[d];
			uint64_t end = i + 1 < ret_counts[d] ? starts[i + 1] : shape[d];

			if (off[d] != starts[i] || off[d] + len[d] != end)
				return false;
			starts += ret_counts[d];
		}
		for (size_t d = n; d-- > 0;) {
			if (++idx[d] < ret_counts[d])
				break;
			idx[d] = 0;
		}
	}
	return true;
}
