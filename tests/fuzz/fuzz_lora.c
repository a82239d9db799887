/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora= and overlay= of a checkpoint. The input's first line is adapter_config.json, or a manifest
 * of prime-rl. Lines with the adapter's tensors follow, then an empty line and lines with the
 * tensors into which it is merged (st_lines.h); these are also laid over themselves. Whatever can
 * be opened is read.
 *
 * Fuzzes: ckpt/computed/lora ckpt/computed/overlay read/derived/low_rank read/derived/patch
 * read/derived/replace
 */
#include "mutate.h"
#include "st_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_json, NULL)

static void see(const char *dir, const char *option)
{
	char base[80], word[160];
	const char *words[] = { word, "index=:memory:", NULL };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	(void)snprintf(base, sizeof(base), "%s/base", scratch);
	(void)snprintf(word, sizeof(word), "%s=%s/%s", option, scratch, dir);
	if (!ckpt_open(base, words, NULL, &c, &e))
		read_tensors(c);
	else
		require(e.code && e.msg[0]);
	ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *eol = size ? memchr(data, '\n', size) : NULL, *end = data + size, *p;
	size_t first = eol ? (size_t)(eol - data) : size;

	scratch_make();
	scratch_put("adapter/adapter_config.json", data, first);
	if (memmem(data, first, "prime-rl", 8))
		scratch_put("other/sparse_update_manifest.json", data, first);
	p = st_put_lines(eol ? eol + 1 : end, end, "adapter/adapter_model.safetensors");
	(void)st_put_lines(p, end, "base/model.safetensors");
	(void)st_put_lines(eol ? eol + 1 : end, end, "other/model.safetensors");
	see("adapter:0.5", "lora");
	see("base", "overlay");
	see("other", "overlay");
	scratch_empty();
	return 0;
}
