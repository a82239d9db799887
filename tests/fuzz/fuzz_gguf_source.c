/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GGUF file as a checkpoint: opened, listed, and all of it read as stored and as weights. The
 * input is the file.
 *
 * Fuzzes: format/gguf/ ckpt/model/gguf_model ckpt/model/gguf_recipe gguf/gguf_rope
 * ckpt/computed/dequantise_gguf ckpt/computed/dequantise_flat parse/gguf
 */
#include "mutate.h"
#include "st_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_gguf, NULL)

static void see(const char *option)
{
	const char *words[] = { "index=:memory:", option, NULL };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	if (!ckpt_open(scratch, words, NULL, &c, &e))
		read_tensors(c);
	else
		require(e.code && e.msg[0]);
	ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	scratch_make();
	scratch_put("model.gguf", data, size);
	see(NULL);
	see("dequantize=bf16");
	scratch_empty();
	return 0;
}
