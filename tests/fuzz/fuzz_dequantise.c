/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize= of a checkpoint. The input's first line is config.json, each other line a tensor:
 * "NAME DTYPE AxB", or "NAME DTYPE AxB=TEXT", where TEXT is what its bytes begin with. Or the input
 * is an archive of torch.save, with tensor subclasses. Whatever is found is read.
 *
 * Fuzzes: ckpt/computed/dequantise read/derived/dequant read/derived codec/blocks_decode
 */
#include "mutate.h"
#include "st_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t parts_of_either(const uint8_t *p, size_t n, struct part *v)
{
	return n && *p == 'P' ? parts_of_zip(p, n, v) : parts_of_json(p, n, v);
}
CUSTOM_MUTATOR(parts_of_either, mend_zip)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const words[] = { "dequantize=bf16", "index=:memory:", NULL };
	const uint8_t *eol = size ? memchr(data, '\n', size) : NULL;
	size_t first = eol ? (size_t)(eol - data) : size;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char path[sizeof(scratch) + 8];

	scratch_make();
	(void)snprintf(path, sizeof(path), "%s", scratch);
	if (size && *data == 'P') {
		scratch_put("f.pt", data, size);
		(void)snprintf(path, sizeof(path), "%s/f.pt", scratch);
	} else {
		scratch_put("config.json", data, first);
		(void)st_put_lines(eol ? eol + 1 : data + size, data + size, "model.safetensors");
	}
	if (!ckpt_open(path, words, NULL, &c, &e))
		read_tensors(c);
	else
		require(e.code && e.msg[0]);
	ckpt_close(c);
	scratch_empty();
	return 0;
}
