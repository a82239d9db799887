/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_text - a GGUF described by a text.
 *
 *	gguf_put(dir_fd, "m.gguf", "llama", "general.architecture \"llama\"; .block_count 1",
 *		 ".block_count 2; .attention.scale 0.5", "token_embd.weight F32 16x8");
 */
#ifndef TESTS_GGUF_TEXT_H
#define TESTS_GGUF_TEXT_H

/*
 * A key is a name and a value: "TEXT", true, false, [LIST of numbers, or of true and false], or a
 * number. A number is a float32 if it has a point or an exponent, else a uint32. A name that begins
 * with a dot gets arch in front. changes: keys that replace those of the same name, or are added;
 * the value "-" removes a key. A tensor is its name, F32, F16 or Q8_0, and its shape, outermost
 * first; its bytes are zeros.
 */
void gguf_put(int dirfd, const char *file, const char *arch, const char *keys, const char *changes,
	      const char *tensors);

#endif
