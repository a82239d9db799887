/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "file/npy.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Texts as numpy.lib.format.write_array_header_1_0 writes them. */
static const struct {
	enum ckpt_dtype dtype;
	size_t n;
	uint64_t shape[3];
	const char *text;
} rows[] = {
	{ CKPT_DTYPE_F32,
	  2,
	  { 2, 3 },
	  "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" },
	{ CKPT_DTYPE_F64, 1, { 7 }, "{'descr': '<f8', 'fortran_order': False, 'shape': (7,), }" },
	{ CKPT_DTYPE_I8, 0, { 0 }, "{'descr': '|i1', 'fortran_order': False, 'shape': (), }" },
	{ CKPT_DTYPE_BOOL,
	  3,
	  { 0, 1, 18446744073709551615u },
	  "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 1, 18446744073709551615), }" },
	{ CKPT_DTYPE_BF16, 1, { 5 }, "{'descr': '<V2', 'fortran_order': False, 'shape': (5,), }" },
	{ CKPT_DTYPE_C64, 1, { 5 }, "{'descr': '<c8', 'fortran_order': False, 'shape': (5,), }" },
};

/* Spaces do not matter to Python's literal_eval; they are left out of the comparison. */
static void squeeze(char *s)
{
	char *to = s;

	for (; *s; s++)
		if (*s != ' ')
			*to++ = *s;
	*to = 0;
}

START_LOOP_TEST(headers_say_what_numpy_would, ARRAY_LEN(rows))
{
	char out[NPY_MAX_HEADER], got[NPY_MAX_HEADER], want[NPY_MAX_HEADER];
	size_t n = npy_header(rows[_i].dtype, rows[_i].n, rows[_i].shape, out);

	ck_assert_mem_eq(out, "\x93NUMPY\x01\x00", 8);
	ck_assert_uint_eq((unsigned char)out[8] | (unsigned)(unsigned char)out[9] << 8, n - 10);
	ck_assert_uint_eq(n % 64, 0);
	ck_assert_int_eq(out[n - 1], '\n');
	memcpy(got, out + 10, n - 11);
	got[n - 11] = 0;
	(void)snprintf(want, sizeof(want), "%s", rows[_i].text);
	squeeze(got);
	squeeze(want);
	ck_assert_str_eq(got, want);
}
END_TEST

START_TEST(every_dtype_and_number_of_dimensions_fits)
{
	uint64_t shape[64];

	for (size_t i = 0; i < 64; i++)
		shape[i] = UINT64_MAX;
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++) {
		for (size_t n = 0; n <= 64; n++) {
			char *out = malloc(NPY_MAX_HEADER);
			size_t len = npy_header(t, n, shape, out);

			REQUIRE(len % 64 == 0 && len <= NPY_MAX_HEADER && out[len - 1] == '\n');
			REQUIRE(strstr(out + 10, dtype_info(t)->npy));
			free(out);
		}
	}
}
END_TEST

SUITE(npy)
