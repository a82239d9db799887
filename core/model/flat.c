/* SPDX-License-Identifier: Apache-2.0 */
#include "model/flat.h"

bool flat_fits(size_t n, const uint64_t *shape, const uint64_t *stored)
{
	uint64_t box[FLAT_MAX_DIMS], volume;

	if (n > FLAT_MAX_DIMS || !box_volume(n, shape, &volume) || !volume)
		return false;
	for (size_t d = 0; d < n; d++) {
		if (!stored[d] || shape[d] % stored[d])
			return false;
		box[d] = shape[d] / stored[d];
	}
	return box_volume(n, box, &volume) && volume == stored[n];
}
