/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of tokenizer a tokenizer.json is, and how it splits text. */
#include "base/checked.h"
#include "base/err.h"
#include "view/gguf_tokens_internal.h"

#include <string.h>

#define SPACE "\xe2\x96\x81" /* U+2581, what SentencePiece writes for a blank */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define WORDS	     "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST	     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* llama.cpp has these rewritten for its own engine, with the original as a comment. */
static const struct {
	const char *expression;
	bool ignore_merges; /* its own habit for that name */
	const char *pre;
} known[] = {
	{ CONTRACTIONS WORDS "\\p{N}{1,3}" REST, true, "llama-bpe" },
	{ CONTRACTIONS WORDS "\\p{N}{1,3}" REST, false, "smaug-bpe" },
	{ CONTRACTIONS WORDS "\\p{N}" REST, false, "qwen2" },
};

static bool is_type(const json_t *v, const char *type)
{
	const char *s = json_string_value(json_object_get(v, "type"));

	return s && !strcmp(s, type);
}

static bool is_text(const json_t *v, const char *want)
{
	const char *s = json_string_value(v);

	return s && !strcmp(s, want);
}

static bool is_blank(const json_t *v)
{
	return !v || json_is_null(v) || is_text(v, "");
}

static bool flag(const json_t *v, const char *key, bool otherwise)
{
	const json_t *f = json_object_get(v, key);

	return json_is_boolean(f) ? json_is_true(f) : otherwise;
}

/* Step i of what may be a sequence of steps, under the key `list`, or one step itself; NULL: there
 * are no more. */
static const json_t *step_of(const json_t *v, const char *list, size_t i)
{
	if (!v || json_is_null(v))
		return NULL;
	if (is_type(v, "Sequence"))
		return json_array_get(json_object_get(v, list), i);
	return i ? NULL : v;
}

/* ---- bytes as characters ---- */

static int split_by(struct tokens *t, const json_t *split, struct ckpt_err *e)
{
	const char *expression =
		json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
	bool ignore = flag(t->model, "ignore_merges", false);

	if (!is_type(split, "Split") || !expression ||
	    !is_text(json_object_get(split, "behavior"), "Isolated") ||
	    flag(split, "invert", false))
		return tokens_unknown(e, "the pre-tokenizer");
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (!strcmp(expression, known[i].expression) && ignore == known[i].ignore_merges) {
			t->pre = known[i].pre;
			return 0;
		}
	return err_set(e, ERR_UNSUPPORTED,
		       "tokenizer.json: llama.cpp is not known to split text by '%.100s'%s",
		       expression, ignore ? " and ignore merges" : "");
}

static int split_bytes(struct tokens *t, struct ckpt_err *e)
{
	const json_t *pre = json_object_get(t->root, "pre_tokenizer");
	const json_t *first = step_of(pre, "pretokenizers", 0);
	const json_t *second = step_of(pre, "pretokenizers", 1);
	const json_t *bytes = second ? second : first;
	const json_t *normal = json_object_get(t->root, "normalizer");

	if (step_of(normal, "normalizers", 0)) {
		t->nfc = is_type(step_of(normal, "normalizers", 0), "NFC") &&
			 !step_of(normal, "normalizers", 1);
		if (!t->nfc)
			return tokens_unknown(e, "the normalizer");
	}
	if (!is_type(bytes, "ByteLevel") || flag(bytes, "add_prefix_space", true) ||
	    step_of(pre, "pretokenizers", 2) || flag(bytes, "use_regex", true) != !second)
		return tokens_unknown(e, "the pre-tokenizer");
	if (second)
		return split_by(t, first, e);
	if (flag(t->model, "ignore_merges", false))
		return tokens_unknown(e, "'ignore_merges' with this pre-tokenizer");
	t->pre = "gpt-2";
	return 0;
}

/* ---- like SentencePiece ---- */

static bool is_space_step(const json_t *v)
{
	return is_type(v, "Replace") && is_text(json_object_get(v, "content"), SPACE) &&
	       is_text(json_object_get(json_object_get(v, "pattern"), "String"), " ");
}

/* Metaspace as older and newer files have it; it must not split. */
static int read_metaspace(struct tokens *t, const json_t *m, struct ckpt_err *e)
{
	const json_t *scheme = json_object_get(m, "prepend_scheme");

	if (!is_type(m, "Metaspace") || !is_text(json_object_get(m, "replacement"), SPACE) ||
	    flag(m, "split", true))
		return tokens_unknown(e, "the pre-tokenizer");
	t->space_first = scheme ? !is_text(scheme, "never") : flag(m, "add_prefix_space", true);
	return 0;
}

static int split_pieces(struct tokens *t, struct ckpt_err *e)
{
	const json_t *pre = json_object_get(t->root, "pre_tokenizer");
	const json_t *normal = json_object_get(t->root, "normalizer");
	const json_t *first = step_of(normal, "normalizers", 0);
	const json_t *second = step_of(normal, "normalizers", 1);

	t->pre = "default";
	if (flag(t->model, "ignore_merges", false))
		return tokens_unknown(e, "'ignore_merges' with 'byte_fallback'");
	if (!first)
		return read_metaspace(t, pre, e);
	t->space_first =
		is_type(first, "Prepend") && is_text(json_object_get(first, "prepend"), SPACE);
	if (!is_blank(pre) || step_of(normal, "normalizers", 2) ||
	    !is_space_step(t->space_first ? second : first) || (!t->space_first && second))
		return tokens_unknown(e, "the normalizer");
	return 0;
}

int tokens_split(struct tokens *t, struct ckpt_err *e)
{
	const json_t *m = t->model, *type = json_object_get(m, "type");

	if (type ? !is_text(type, "BPE") : !t->merges)
		return tokens_unknown(e, "a model other than BPE");
	if (!is_blank(json_object_get(m, "continuing_subword_prefix")) ||
	    !is_blank(json_object_get(m, "end_of_word_suffix")))
		return tokens_unknown(e, "marks inside or at the end of words");
	if (json_number_value(json_object_get(m, "dropout")) != 0)
		return tokens_unknown(e, "'dropout'");
	t->spm = flag(m, "byte_fallback", false);
	return t->spm ? split_pieces(t, e) : split_bytes(t, e);
}
