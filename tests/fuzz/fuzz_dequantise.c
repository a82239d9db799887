/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize= of a checkpoint: the input's first line is config.json, each other one a tensor, "NAME
 * DTYPE AxB" or "NAME DTYPE AxB=TEXT" with bytes that it begins with. Whatever is found is read.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "model/box.h"
#include "model/dtype.h"
#include "scratch.h"
#include <ckptfs/ckpt.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TENSORS = 24, MAX_LINE = 400, MAX_DATA = 1 << 20 };

static uint8_t bytes[MAX_DATA];

struct writing {
	struct buf header;
	uint64_t data;
	unsigned n;
};

/* False: not a tensor; the rest of the lines still is. */
static bool put_tensor(struct writing *w, const char *line)
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
		bytes[w->data + i] = (uint8_t)((w->data + i) * 0x9e3779b1u >> 13);
	if (*at == '=')
		memcpy(bytes + w->data, at + 1, min_u64(strlen(at + 1), bytes_));
	w->data += bytes_;
	w->n++;
	return true;
}

static void put_file(struct writing *w)
{
	uint64_t n;

	buf_str(&w->header, w->n ? "}" : "{}");
	buf_add(&w->header, bytes, w->data);
	require(!w->header.err);
	n = w->header.len - 8 - w->data;
	memcpy(w->header.data, &n, 8);
	scratch_put("model.safetensors", (const uint8_t *)w->header.data, w->header.len);
}

static void read_tensors(struct ckpt *c)
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const words[] = { "dequantize=bf16", "index=:memory:", NULL };
	struct writing w = { .header = BUF_INIT(2 * MAX_DATA) };
	const uint8_t *eol = size ? memchr(data, '\n', size) : NULL;
	size_t first = eol ? (size_t)(eol - data) : size;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	scratch_make();
	scratch_put("config.json", data, first);
	buf_add(&w.header, "\0\0\0\0\0\0\0\0", 8);
	for (unsigned lines = 0; eol && lines < MAX_TENSORS; lines++) {
		const uint8_t *from = eol + 1;
		size_t left = (size_t)(data + size - from);
		char line[MAX_LINE];

		eol = left ? memchr(from, '\n', left) : NULL;
		if (eol)
			left = (size_t)(eol - from);
		(void)snprintf(line, sizeof(line), "%.*s", (int)min_u64(left, MAX_LINE),
			       (const char *)from);
		(void)put_tensor(&w, line);
	}
	put_file(&w);
	if (!ckpt_open(scratch, words, NULL, &c, &e))
		read_tensors(c);
	else
		require(e.code && e.msg[0]);
	ckpt_close(c);
	buf_release(&w.header);
	scratch_empty();
	return 0;
}
