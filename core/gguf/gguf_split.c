/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of tokenizer a tokenizer.json is, and how it splits text. */
#include "base/checked.h"
#include "base/err.h"
#include "gguf/gguf_tokens_internal.h"

#define SPACE "\xe2\x96\x81" /* U+2581, what SentencePiece writes for a blank */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS	     "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SPACES	     "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define REST	     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define REST_SLASH   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES
#define UPPER	     "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER	     "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Words of upper case, then lower case; `end` follows each. */
#define CASED(end) \
	"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
	"*" end "|"
#define DIGIT "\\p{N}"

enum { MAX_STEPS = 3 };

/*
 * llama.cpp's ways to split and their names, by the steps that precede the bytes in tokenizer.json:
 * expressions to split at, one after another. llama.cpp has rewritten some for its own engine, and
 * has the original as a comment.
 */
static const struct {
	const char *steps[MAX_STEPS];
	bool ignore_merges; /* what llama.cpp does for that name */
	bool regex;	    /* ByteLevel splits too, as GPT-2 does */
	bool complete;	    /* matches of the expression leave no gaps */
	const char *pre;
} known[] = {
	{ { CONTRACTIONS "|" WORDS "\\p{N}{1,3}" REST }, true, false, true, "llama-bpe" },
	{ { CONTRACTIONS "|" WORDS "\\p{N}{1,3}" REST }, false, false, true, "smaug-bpe" },
	{ { CONTRACTIONS "|" WORDS DIGIT REST }, false, false, true, "qwen2" },
	{ { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|" DIGIT
			 "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES },
	  false,
	  false,
	  true,
	  "qwen35" },
	{ { CASED(CONTRACTIONS "?") "\\p{N}{1,3}" REST_SLASH }, false, false, true, "gpt-4o" },
	{ { CASED("") DIGIT REST_SLASH }, true, false, true, "tekken" },
	{ { "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
	    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
	    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES },
	  false,
	  false,
	  false,
	  "deepseek-v3" },
	{ { DIGIT }, false, true, false, "smollm" },
	{ { NULL }, false, true, false, "gpt-2" },
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

/* An expression may have line ends as they are, or escaped. */
static bool is_expression(const char *s, const char *have)
{
	for (; *s && *have; s++, have++) {
		if (*s == '\r' || *s == '\n') {
			if (*have != '\\' || have[1] != (*s == '\r' ? 'r' : 'n'))
				return false;
			have++;
		} else if (*s != *have) {
			return false;
		}
	}
	return !*s && !*have;
}

/* What a step splits at, keeping everything; NULL: it does something else. *gaps: it drops what
 * does not match. */
static const char *expression_of(struct jval step, bool *gaps)
{
	struct jval behavior = jval_get(step, "behavior");
	bool invert = flag(step, "invert", false);

	if (is_type(step, "Digits") && flag(step, "individual_digits", false))
		return DIGIT;
	*gaps |= invert;
	return is_type(step, "Split") && jval_is_str(behavior, invert ? "Removed" : "Isolated")
		       ? jval_str(jval_get(jval_get(step, "pattern"), "Regex"))
		       : NULL;
}

/* The row of known[] with these steps, preferably one that ignores likewise; ARRAY_LEN: none. */
static size_t way_of(const char *const *steps, size_t n, bool regex, bool gaps, bool ignore)
{
	size_t found = ARRAY_LEN(known);

	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		bool same = known[i].regex == regex && (known[i].complete || !gaps);

		for (size_t k = 0; same && k < MAX_STEPS; k++) {
			const char *have = known[i].steps[k];

			same = k < n ? have && is_expression(steps[k], have) : !have;
		}
		if (same && (found == ARRAY_LEN(known) || known[i].ignore_merges == ignore))
			found = i;
	}
	return found;
}

static int split_by(struct tokens *t, const char *const *steps, size_t n, bool regex, bool gaps,
		    struct ckpt_err *e)
{
	bool ignore = flag(t->model, "ignore_merges", false);
	size_t i = way_of(steps, n, regex, gaps, ignore);

	if (i == ARRAY_LEN(known))
		return n ? err_set(e, ERR_UNSUPPORTED,
				   "tokenizer.json: llama.cpp is not known to split text by "
				   "'%.100s'%s",
				   steps[0], n > 1 ? " and more" : "")
			 : tokens_unknown(e, "the pre-tokenizer");
	t->pre = known[i].pre;
	t->prove_whole = ignore != known[i].ignore_merges;
	return 0;
}

static int split_bytes(struct tokens *t, struct ckpt_err *e)
{
	struct jval pre = jval_get(jdoc_root(&t->root), "pre_tokenizer"), bytes;
	struct jval normal = jval_get(jdoc_root(&t->root), "normalizer");
	const char *steps[MAX_STEPS] = { NULL };
	bool gaps = false;
	size_t n = 0;

	if (step_of(normal, "normalizers", 0).d) {
		t->nfc = is_type(step_of(normal, "normalizers", 0), "NFC") &&
			 !step_of(normal, "normalizers", 1).d;
		if (!t->nfc)
			return tokens_unknown(e, "the normalizer");
	}
	while (step_of(pre, "pretokenizers", n + 1).d && n < MAX_STEPS) {
		steps[n] = expression_of(step_of(pre, "pretokenizers", n), &gaps);
		if (!steps[n++])
			return tokens_unknown(e, "the pre-tokenizer");
	}
	bytes = step_of(pre, "pretokenizers", n);
	if (!is_type(bytes, "ByteLevel") || flag(bytes, "add_prefix_space", true) ||
	    step_of(pre, "pretokenizers", n + 1).d)
		return tokens_unknown(e, "the pre-tokenizer");
	return split_by(t, steps, n, flag(bytes, "use_regex", true), gaps, e);
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

/* Gemma's splits at blanks, but the normalizer has left none. */
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
