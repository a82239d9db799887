/* SPDX-License-Identifier: Apache-2.0 */
#include "format/raw.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char prefix[] = "raw", strides[] = ":strides=";
static const char swapped[] = ":be", negative[] = ":neg", conjugate[] = ":conj";

void raw_name(const struct raw_layout *l, struct buf *ret)
{
	buf_str(ret, prefix);
	for (size_t d = 0; l->strided && d < l->n_dims; d++) {
		buf_str(ret, d ? "," : strides);
		buf_u64(ret, l->stride[d]);
	}
	buf_str(ret, l->swap ? swapped : "");
	buf_str(ret, l->neg ? negative : "");
	buf_str(ret, l->conj ? conjugate : "");
}

static bool take_strides(const char **s, struct raw_layout *l)
{
	do {
		char *end;

		if (l->n_dims == CKPT_MAX_DIMS || **s < '0' || **s > '9')
			return false;
		errno = 0;
		l->stride[l->n_dims++] = strtoull(*s, &end, 10);
		if (errno)
			return false;
		*s = end;
	} while (text_take(s, ","));
	return true;
}

bool raw_take(const char **name, struct raw_layout *ret)
{
	*ret = (struct raw_layout){ 0 };
	if (!text_take(name, prefix))
		return false;
	ret->strided = text_take(name, strides);
	if (ret->strided && !take_strides(name, ret))
		return false;
	ret->swap = text_take(name, swapped);
	ret->neg = text_take(name, negative);
	ret->conj = text_take(name, conjugate);
	return !**name || **name == '+';
}

bool raw_extent(const struct raw_layout *l, enum ckpt_dtype dtype, size_t n_dims,
		const uint64_t *len, uint64_t *ret)
{
	uint64_t size = dtype_info(dtype)->size, volume, last = 0;

	if (!box_volume(n_dims, len, &volume) || (l->strided && l->n_dims != n_dims))
		return false;
	if (!l->strided || !volume)
		return !ckd_mul(ret, volume, size) && *ret <= INT64_MAX;
	for (size_t d = 0; d < n_dims; d++) {
		uint64_t step;

		if (ckd_mul(&step, len[d] - 1, l->stride[d]) || ckd_add(&last, last, step))
			return false;
	}
	return !ckd_add(&last, last, 1) && !ckd_mul(ret, last, size) && *ret <= INT64_MAX;
}

int raw_open(const struct raw_layout *l, const struct item_want *want, uint64_t length,
	     struct payload *ret, struct ckpt_err *e)
{
	uint64_t size = dtype_info(want->dtype)->size, step = size, end;

	if (!raw_extent(l, want->dtype, want->n_dims, want->len, &end) || end > length)
		return err_set(e, ERR_CORRUPT, "its elements do not fit the item's %llu bytes",
			       (unsigned long long)length);
	ret->data = 0;
	ret->end = end;
	ret->swap = l->swap;
	ret->neg = l->neg;
	ret->conj = l->conj;
	for (size_t d = want->n_dims; d-- > 0;) {
		/* The stride of a dimension with one element is irrelevant. */
		ret->stride[d] = !l->strided ? step : want->len[d] > 1 ? l->stride[d] * size : 0;
		step *= want->len[d];
	}
	return 0;
}
