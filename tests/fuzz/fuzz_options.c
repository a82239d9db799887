/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any words as options, one a line, for a run of two small checkpoints, which is opened, listed and
 * read. The first line is the address: step-1, step-2, or "." for the run. Words that could lead
 * out of the directory are left out.
 *
 * Fuzzes: ckpt/open/ckpt_options ckpt/computed/average ckpt/open/address ckpt/computed/computed
 * read/derived/weighted_sum read/derived
 */
#include "st_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_WORDS = 12 };

static const char tensors[] = "model.embed.weight F32 5x4\nmodel.0.w BF16 4x6\nmodel.1.w BF16 4x6\n"
			      "n I64 3\nb BOOL 2\n";

/* False for words that lead to files elsewhere, to programs or to addresses. */
static bool stays_here(const char *word)
{
	return !strchr(word, '/') && !strstr(word, "..") && !strchr(word, '~') &&
	       strncmp(word, "index=", 6) != 0 && strncmp(word, "cache", 5) != 0;
}

static void walk(struct ckpt *c, ckpt_node dir, unsigned depth, unsigned *left)
{
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_stat st;
	ckpt_node n;

	for (uint64_t pos = 0; *left && depth < 6 && !ckpt_entry(c, dir, pos, name, &n); pos++) {
		struct ckpt_err e = { 0 };

		--*left;
		if (!ckpt_stat(c, n, &st, &e) && st.is_dir)
			walk(c, n, depth + 1, left);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const files[] = { "step-1/model.safetensors",
					     "step-2/model.safetensors" };
	const char *words[MAX_WORDS + 2] = { "index=:memory:" };
	char *text = malloc(size + 1), *rest = text, *line, *address = NULL;
	const uint8_t *const from = (const uint8_t *)tensors;
	unsigned n = 1, left = 200;
	int here;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	require(text);
	if (size)
		memcpy(text, data, size);
	text[size] = 0;
	scratch_make();
	here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	require(here >= 0 && !chdir(scratch));
	for (unsigned i = 0; i < ARRAY_LEN(files); i++)
		(void)st_put_lines(from, from + sizeof(tensors) - 1, files[i]);
	while ((line = strsep(&rest, "\n")) && n <= MAX_WORDS) {
		if (!stays_here(line))
			continue;
		if (address)
			words[n++] = line;
		else
			address = line;
	}
	if (address && !ckpt_open(address, words, NULL, &c, &e)) {
		walk(c, CKPT_ROOT, 0, &left);
		read_tensors(c);
	} else {
		require(!address || (e.code && e.msg[0]));
	}
	ckpt_close(c);
	require(!fchdir(here) && !close(here));
	scratch_empty();
	free(text);
	return 0;
}
