/* SPDX-License-Identifier: Apache-2.0 */
#include "st_util.h"

#include "base/buf.h"
#include "blob_util.h"
#include "model/dtype.h"
#include "rng.h"
#include "suites.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads "2x4" or "-"; returns the number of elements. */
static uint64_t put_shape(struct buf *b, const char *shape)
{
	uint64_t n = 1;

	buf_str(b, "[");
	for (const char *s = *shape == '-' ? "" : shape; *s;) {
		char *end;
		uint64_t len = strtoull(s, &end, 10);

		buf_printf(b, "%s%llu", s == shape ? "" : ",", (unsigned long long)len);
		n *= len;
		s = *end == 'x' ? end + 1 : "";
	}
	buf_str(b, "]");
	return n;
}

enum { MAX_DATA = 1 << 22 };

void st_put(int dirfd, const char *file, struct rng *r, const char *tensors)
{
	struct buf b = BUF_INIT(1 << 26);
	char *copy = strdup(tensors), *at = copy, *one;
	uint64_t data = 0, header;
	uint8_t *bytes = calloc(1, MAX_DATA);

	REQUIRE(copy && bytes);
	buf_add(&b, "\0\0\0\0\0\0\0\0{", 9);
	while ((one = strsep(&at, ";"))) {
		char name[200], dtype[20], shape[300];
		const char *text;
		uint64_t n;

		if (sscanf(one, " %199s %19s %299s", name, dtype, shape) != 3)
			continue;
		buf_printf(&b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":", b.len > 9 ? "," : "", name,
			   dtype);
		text = strchr(shape, '=');
		n = put_shape(&b, shape) * dtype_info(dtype_by_safetensors(dtype))->size;
		buf_printf(&b, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)data,
			   (unsigned long long)(data + n));
		REQUIRE(data + n <= MAX_DATA);
		random_bytes(r, bytes + data, n);
		if (text)
			memcpy(bytes + data, text + 1, strlen(text + 1));
		data += n;
	}
	buf_str(&b, "}");
	REQUIRE(!b.err);
	header = htole64(b.len - 8);
	memcpy(b.data, &header, sizeof(header));
	buf_add(&b, bytes, data);
	REQUIRE(!b.err);
	put_file(dirfd, file, b.data, b.len);
	free(bytes);
	free(copy);
	buf_release(&b);
}
