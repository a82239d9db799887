/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of tokenizer a tokenizer.json is, and how it splits text. */
#include "base/checked.h"
#include "base/err.h"
#include "gguf/gguf_tokens_internal.h"

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

static bool is_type(struct jval v, const char *type)
{
	return jval_is_str(jval_get(v, "type"), type);
}

static bool is_blank(struct jval v)
{
	return jval_is_null(v) || jval_is_str(v, "");
}

static bool flag(struct jval v, const char *key, bool otherwise)
{
	struct jval f = jval_get(v, key);

	return jval_is_bool(f) ? jval_is(f, J_TRUE) : otherwise;
}

/* Step i of what may be a sequence of steps, under the key `list`, or one step itself; no value:
 * there are no more. */
static struct jval step_of(struct jval v, const char *list, size_t i)
{
	if (!jval_is_null(v) && is_type(v, "Sequence"))
		return jval_at(jval_get(v, list), i);
	if (i)
		return (struct jval){ 0 };
	return jval_given(v);
}

/* ---- bytes as characters ---- */

static int split_by(struct tokens *t, struct jval split, struct ckpt_err *e)
{
	const char *expression = jval_str(jval_get(jval_get(split, "pattern"), "Regex"));
	bool ignore = flag(t->model, "ignore_merges", false);

	if (!is_type(split, "Split") || !expression ||
	    !jval_is_str(jval_get(split, "behavior"), "Isolated") || flag(split, "invert", false))
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
	struct jval pre = jval_get(jdoc_root(&t->root), "pre_tokenizer");
	struct jval first = step_of(pre, "pretokenizers", 0);
	struct jval second = step_of(pre, "pretokenizers", 1);
	struct jval bytes = second.d ? second : first;
	struct jval normal = jval_get(jdoc_root(&t->root), "normalizer");

	if (step_of(normal, "normalizers", 0).d) {
		t->nfc = is_type(step_of(normal, "normalizers", 0), "NFC") &&
			 !step_of(normal, "normalizers", 1).d;
		if (!t->nfc)
			return tokens_unknown(e, "the normalizer");
	}
	if (!is_type(bytes, "ByteLevel") || flag(bytes, "add_prefix_space", true) ||
	    step_of(pre, "pretokenizers", 2).d ||
	    flag(bytes, "use_regex", true) == (second.d != NULL))
		return tokens_unknown(e, "the pre-tokenizer");
	if (second.d)
		return split_by(t, first, e);
	if (flag(t->model, "ignore_merges", false))
		return tokens_unknown(e, "'ignore_merges' with this pre-tokenizer");
	t->pre = "gpt-2";
	return 0;
}

/* ---- like SentencePiece ---- */

static bool is_space_step(struct jval v)
{
	return is_type(v, "Replace") && jval_is_str(jval_get(v, "content"), SPACE) &&
	       jval_is_str(jval_get(jval_get(v, "pattern"), "String"), " ");
}

/* Metaspace as older and newer files have it; it must not split. */
static int read_metaspace(struct tokens *t, struct jval m, struct ckpt_err *e)
{
	struct jval scheme = jval_get(m, "prepend_scheme");

	if (!is_type(m, "Metaspace") || !jval_is_str(jval_get(m, "replacement"), SPACE) ||
	    flag(m, "split", true))
		return tokens_unknown(e, "the pre-tokenizer");
	t->space_first =
		scheme.d ? !jval_is_str(scheme, "never") : flag(m, "add_prefix_space", true);
	return 0;
}

/* Gemma's: it would split at blanks, of which the normalizer leaves none. */
static bool splits_nothing(struct jval pre)
{
	return is_blank(pre) || (is_type(pre, "Split") && !flag(pre, "invert", false) &&
				 jval_is_str(jval_get(jval_get(pre, "pattern"), "String"), " "));
}

static int split_pieces(struct tokens *t, struct ckpt_err *e)
{
	struct jval pre = jval_get(jdoc_root(&t->root), "pre_tokenizer");
	struct jval normal = jval_get(jdoc_root(&t->root), "normalizer");
	struct jval first = step_of(normal, "normalizers", 0);
	struct jval second = step_of(normal, "normalizers", 1);

	t->pre = "default";
	if (flag(t->model, "ignore_merges", false))
		return tokens_unknown(e, "'ignore_merges' with 'byte_fallback'");
	if (!first.d)
		return read_metaspace(t, pre, e);
	t->space_first =
		is_type(first, "Prepend") && jval_is_str(jval_get(first, "prepend"), SPACE);
	if (!splits_nothing(pre) || step_of(normal, "normalizers", 2).d ||
	    !is_space_step(t->space_first ? second : first) || (!t->space_first && second.d))
		return tokens_unknown(e, "the normalizer");
	return 0;
}

int tokens_split(struct tokens *t, struct ckpt_err *e)
{
	struct jval m = t->model, type = jval_get(m, "type");
	double dropout;

	if (type.d ? !jval_is_str(type, "BPE") : !t->merges.d)
		return tokens_unknown(e, "a model other than BPE");
	if (!is_blank(jval_get(m, "continuing_subword_prefix")) ||
	    !is_blank(jval_get(m, "end_of_word_suffix")))
		return tokens_unknown(e, "markers inside or at the end of words");
	if (jval_number(jval_get(m, "dropout"), &dropout) && dropout != 0)
		return tokens_unknown(e, "'dropout'");
	t->spm = flag(m, "byte_fallback", false);
	return t->spm ? split_pieces(t, e) : split_bytes(t, e);
}
