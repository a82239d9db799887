/* SPDX-License-Identifier: Apache-2.0 */
#include "file/npy.h"

#include <stdio.h>
#include <string.h>

size_t npy_header(enum ckpt_dtype dtype, size_t n_dims, const uint64_t *shape,
		  char out[static NPY_MAX_HEADER])
{
	static const char magic[] = "\x93NUMPY\x01"; /* with its NUL: version 1.0 */
	size_t n = 10, total;

	n += (size_t)snprintf(out + n, NPY_MAX_HEADER - n,
			      "{'descr': '%s', 'fortran_order': False, 'shape': (",
			      dtype_info(dtype)->npy);
	for (size_t i = 0; i < n_dims; i++)
		n += (size_t)snprintf(out + n, NPY_MAX_HEADER - n,
				      i + 1 < n_dims || n_dims == 1 ? "%llu," : "%llu",
				      (unsigned long long)shape[i]);
	n += (size_t)snprintf(out + n, NPY_MAX_HEADER - n, "), }");
	total = (n + 1 + 63) / 64 * 64;
	memset(out + n, ' ', total - n);
	out[total - 1] = '\n';
	memcpy(out, magic, sizeof(magic));
	out[8] = (char)((total - 10) & 0xff);
	out[9] = (char)((total - 10) >> 8);
	return total;
}
