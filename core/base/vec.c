/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

bool vec_grow(void *array, size_t *cap, size_t need, size_t max, size_t size)
{
	enum { FEW = 8 };
	size_t want;
	void *old, *v;

	if (need > max)
		return false;
	if (ckd_mul(&want, *cap, 2))
		want = max;
	want = min_u64(max_u64(max_u64(want, FEW), need), max);
	memcpy(&old, array, sizeof(old));
	v = reallocarray(old, want, size);
	if (!v)
		return false;
	memcpy(array, &v, sizeof(v));
	*cap = want;
	return true;
}

bool vec_grow_zeroed(void *array, size_t *cap, size_t need, size_t size)
{
	size_t before = *cap;
	char *v;

	if (!vec_grow(array, cap, need, SIZE_MAX, size))
		return false;
	memcpy(&v, array, sizeof(v));
	memset(v + before * size, 0, (*cap - before) * size);
	return true;
}
