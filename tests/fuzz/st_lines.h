/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_lines - makes a safetensors file from lines of text, "NAME DTYPE AxB" or "NAME DTYPE
 * AxB=TEXT", where TEXT is what the bytes begin with; and reads all tensors of a checkpoint.
 */
#ifndef TESTS_FUZZ_ST_LINES_H
#define TESTS_FUZZ_ST_LINES_H

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "model/box.h"
#include "model/dtype.h"
#include "scratch.h"
#include <ckptfs/ckpt.h>

enum { ST_LINES = 24, MAX_LINE = 400, MAX_DATA = 1 << 20 };

static uint8_t st_bytes[MAX_DATA];

struct st_writing {
	struct buf header;
	uint64_t data;
	unsigned n;
};

/* Returns false if the line is not a tensor; the other lines still count. */
static inline bool st_put_tensor(struct st_writing *w, const char *line)
{
	char name[MAX_LINE], dtype[MAX_LINE], shape[MAX_LINE];
	uint64_t dims[8], bytes_ = 0;
	size_t n_dims = 0;
	const struct dtype_info *info;
	char *at = shape;

	if (sscanf(line, "%399s %399s %399s", name, dtype, shape) != 3 || strpbrk(name, "\"\\") ||
	    dtype_by_safetensors(dtype) == CKPT_DTYPE_NONE)
		return false;
	info = dtype_info(dtype_by_safetensors(dtype));
	for (; n_dims < ARRAY_LEN(dims) && *at >= '0' && *at <= '9'; at += *at == 'x')
		dims[n_dims++] = strtoull(at, &at, 10);
	if (!box_volume(n_dims, dims, &bytes_) || ckd_mul(&bytes_, bytes_, info->size) ||
	    bytes_ > MAX_DATA - w->data)
		return false;
	buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->n ? "," : "{", name,
		   dtype);
	for (size_t d = 0; d < n_dims; d++)
		buf_printf(&w->header, "%s%llu", d ? "," : "", (unsigned long long)dims[d]);
	buf_printf(&w->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->data,
		   (unsigned long long)(w->data + bytes_));
	for (uint64_t i = 0; i < bytes_; i++)
		st_bytes[w->data + i] = (uint8_t)((w->data + i) * 0x9e3779b1u >> 13);
	if (*at == '=')
		memcpy(st_bytes + w->data, at + 1, min_u64(strlen(at + 1), bytes_));
	w->data += bytes_;
	w->n++;
	return true;
}

static inline void st_put_file(struct st_writing *w, const char *name)
{
	uint64_t n;

	buf_str(&w->header, w->n ? "}" : "{}");
	buf_add(&w->header, st_bytes, w->data);
	require(!w->header.err);
	n = w->header.len - 8 - w->data;
	memcpy(w->header.data, &n, 8);
	scratch_put(name, (const uint8_t *)w->header.data, w->header.len);
}

/* Reads up to an empty line, or ST_LINES lines; returns what follows. */
static inline const uint8_t *st_put_lines(const uint8_t *p, const uint8_t *end, const char *name)
{
	struct st_writing w = { .header = BUF_INIT(2 * MAX_DATA) };

	buf_add(&w.header, "\0\0\0\0\0\0\0\0", 8);
	for (unsigned lines = 0; p < end && lines < ST_LINES; lines++) {
		const uint8_t *eol = memchr(p, '\n', (size_t)(end - p));
		size_t n = (size_t)((eol ? eol : end) - p);
		char line[MAX_LINE];

		(void)snprintf(line, sizeof(line), "%.*s", (int)min_u64(n, MAX_LINE),
			       (const char *)p);
		p = eol ? eol + 1 : end;
		if (!n)
			break;
		(void)st_put_tensor(&w, line);
	}
	st_put_file(&w, name);
	buf_release(&w.header);
	return p;
}

static inline void read_tensors(struct ckpt *c)
{
	static uint8_t out[1 << 18];
	struct ckpt_tensor t;

	for (uint64_t i = 0; ckpt_tensor(c, i, &t), *t.dtype; i++) {
		uint64_t off[CKPT_MAX_DIMS] = { 0 };
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };

		if (!t.fault && !ckpt_box_open(c, i, off, t.shape, &f, &e)) {
			uint64_t all = ckpt_file_size(f);

			if (ckpt_file_read(f, out, min_u64(all, sizeof(out)), 0, &e) < 0)
				require(e.code && e.msg[0]);
			if (all && ckpt_file_read(f, out, 1, all - 1, &e) < 0)
				require(e.code && e.msg[0]);
		}
		ckpt_file_close(f);
	}
}

#endif
