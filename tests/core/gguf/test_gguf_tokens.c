/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tokenizer.json and its companions become in a GGUF, part by part. tests/torch/gguf.sh
 * compares what llama.cpp makes of the result with the library tokenizers.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_tokens.h"
#include "gguf_util.h"
#include "suites.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { VOCAB = 20, VOCAB_BYTES = 300 };

/* In all texts, ' stands for ". */
struct row {
	const char *members; /* of tokenizer.json, beside its model; NULL: that of bytes */
	const char *model;   /* its other members, beside type, vocabulary and merges */
	const char *vocab;   /* tokens, by number from 0, with bars between them */
	const char *merges;  /* NULL: none */
	const char *config;  /* tokenizer_config.json; NULL: there is none */
	const char *want;    /* what is in the keys, with bars between; after "!": the error */
	enum arch_kind kind;
	const char *ids; /* config.json; NULL: {} */
	const char *jinja, *template_config;
};

#define BYTES	      "'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false}"
#define ADD(id)	      "{'id': " #id ", 'content': '"
#define ADDED(list)   BYTES ", 'added_tokens': [" list "]"
#define PROCESS(p)    BYTES ", 'post_processor': " p
#define TEMPLATE(s)   PROCESS("{'type': 'TemplateProcessing', 'single': [" s "]}")
#define TEXT	      "{'Sequence': {'id': 'A'}}"
#define SPECIAL(name) "{'SpecialToken': {'id': '" name "'}}"
#define NORMAL(n)     BYTES ", 'normalizer': " n
#define STEPS(s)      "'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [" s "]}"
#define SPLIT(regex, how) \
	"{'type': 'Split', 'pattern': {'Regex': '" regex "'}, 'behavior': '" how "'}"
#define LEVEL	   "{'type': 'ByteLevel', 'add_prefix_space': false}"
#define DIGITS	   "{'type': 'Digits', 'individual_digits': true}"
#define UNKNOWN(x) "!tokenizer.json: " x " is not supported"
#define BAD_NUMBER "!tokenizer.json: an added token's number is invalid"
#define OTHER_ENDS UNKNOWN("a post-processor that adds tokens other than bos_token and eos_token")
#define CHATS	   "<|endoftext|>|<|user|>|<|observation|>|[gMASK]|<x>"
#define SPACE	   "\xe2\x96\x81"
#define BAR	   "\xef\xbd\x9c"
#define META(more) "'pre_tokenizer': {'type': 'Metaspace', 'replacement': '" SPACE "'" more "}"
#define PREPEND	   "{'type': 'Prepend', 'prepend': '" SPACE "'}"
#define REPLACE	   "{'type': 'Replace', 'pattern': {'String': ' '}, 'content': '" SPACE "'}"
#define NORMALS(s) "'normalizer': {'type': 'Sequence', 'normalizers': [" s "]}"
#define FALLBACK   "'byte_fallback': true"
#define LLAMA_SPLIT(r, n) \
	SPLIT("(?i:\x01s|\x01t|\x01re|\x01ve|\x01m|\x01ll|\x01" \
	      "d)|[^" r n "\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| " \
	      "?[^\\\\s\\\\p{L}\\\\p{N}]+[" r n "]*|\\\\s*[" r n "]+|\\\\s+(?!\\\\S)|\\\\s+", \
	      "Isolated")
#define NO_REGEX "{'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}"

static const struct row rows[] = {
	/* Added tokens: special ones, and those that look like it. */
	{
		.members = ADDED(ADD(0) "<pad>'}, " ADD(1) "<mask>'}, " ADD(2) "<2mass>'}, " ADD(3) "[@BOS@]'}, " ADD(
			4) "<|x|>'}, " ADD(5) "<|x'}, " ADD(6) "<" BAR "x" BAR
							       ">'}, " ADD(7) "<" BAR "x'}, " ADD(8) "<unused1>'}, " ADD(
								       9) "<unused'}, " ADD(10) "pl"
												"ai"
												"n'"
												", "
												"'s"
												"pe"
												"ci"
												"al"
												"':"
												" t"
												"ru"
												"e}"
												","
												" " ADD(11) "x|>'}"),
		.vocab = "<pad>",
		.want = "token_type=[3,3,3,3,3,4,3,4,3,4,3,4,5,5" },
	/* A token that both files name is special if either says so. */
	{ .members = ADDED(ADD(1) "p', 'special': true}, " ADD(2) "q'}, " ADD(3) "r'}"),
	  .vocab = "a",
	  .config = "{'added_tokens_decoder': {'1': {'content': 'p'}, '2': {'content': 'q', "
		    "'special': true}, '3': {'content': 'r'}, '4': {'content': 's'}}}",
	  .want = "token_type=[1,3,3,4,4,5|tokens=[a,p,q,r,s,[PAD5]" },
	{ .vocab = "a",
	  .config = "{'added_tokens_decoder': {'': {'content': 'p'}}}",
	  .want = BAD_NUMBER },
	{ .vocab = "a",
	  .config = "{'added_tokens_decoder': {' 1': {'content': 'p'}}}",
	  .want = BAD_NUMBER },
	{ .vocab = "a",
	  .config = "{'added_tokens_decoder': {'x': {'content': 'p'}}}",
	  .want = BAD_NUMBER },
	{ .vocab = "a",
	  .config = "{'added_tokens_decoder': {'99999999999999999999': {'content': 'p'}}}",
	  .want = BAD_NUMBER },
	{ .vocab = "a",
	  .config = "{'added_tokens_decoder': {'1': {'content': 1}}}",
	  .want = "!tokenizer.json: an added token has no 'content'" },
	{ .vocab = "a",
	  .config = "{'added_tokens_decoder': [{'content': 'p'}]}",
	  .want = "tokens=[a,[PAD1]" },
	{ .members = ADDED(ADD(20) "p'}"),
	  .vocab = "a",
	  .config = "{'added_tokens_decoder': {'x': {'content': 'p'}}}",
	  .want = "!tokenizer.json: the number of a token is not below 20" },
	/* Marks of blanks in them are blanks, which none may be like another. */
	{ .members = ADDED(ADD(1) SPACE "b'}, " ADD(2) SPACE "a'}, " ADD(3) "a" SPACE "'}, " ADD(
		  4) "a" SPACE "a'}, " ADD(5) "aa" SPACE "'}"),
	  .vocab = "a",
	  .want = "tokens=[a, b, a,a ,a a,aa ,[PAD6]" },

	/* Merges. */
	{ .vocab = "x| |y|x |x y",
	  .merges = "['x', ' '], ['x ', 'y']",
	  .want = "merges=[x \xc4\xa0,x\xc4\xa0 y]" },
	{ .members = ADDED(ADD(3) "c'}, " ADD(4) "ac'}"),
	  .vocab = "a|b|ab",
	  .merges = "'a b', 'a c'",
	  .want = "!tokenizer.json: merge 1 involves text that is not a token" },
	{ .vocab = "a", .merges = "}", .want = "!tokenizer.json: no 'vocab' or no 'merges'" },

	/* Parts of words. */
	{ .model = "'continuing_subword_prefix': '', 'end_of_word_suffix': null, 'dropout': 0.0",
	  .vocab = "a",
	  .want = "pre='gpt-2'" },
	{ .model = "'continuing_subword_prefix': '##'",
	  .vocab = "a",
	  .want = UNKNOWN("markers inside or at the end of words") },
	{ .model = "'end_of_word_suffix': '</w>'",
	  .vocab = "a",
	  .want = UNKNOWN("markers inside or at the end of words") },
	{ .model = "'dropout': 0.1", .vocab = "a", .want = UNKNOWN("'dropout'") },
	{ .model = "'dropout': null", .vocab = "a", .want = "pre='gpt-2'" },

	/* Normalizers, of bytes. */
	{ .members = NORMAL("{'type': 'NFC'}"), .vocab = "a", .want = "normalizer.nfc=true" },
	{ .members = NORMAL("{'type': 'Sequence', 'normalizers': [{'type': 'NFC'}]}"),
	  .vocab = "a",
	  .want = "normalizer.nfc=true" },
	{ .members =
		  NORMAL("{'type': 'Sequence', 'normalizers': [{'type': 'NFC'}, {'type': 'NFC'}]}"),
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMAL("{'type': 'Sequence', 'normalizers': []}"),
	  .vocab = "a",
	  .want = "pre='gpt-2'" },
	{ .members = NORMAL("null"), .vocab = "a", .want = "pre='gpt-2'" },

	/* Ways to split. */
	{ .members = STEPS(LLAMA_SPLIT("\\r", "\\n") ", " NO_REGEX),
	  .vocab = "a",
	  .want = "pre='smaug-bpe'" },
	{ .members = STEPS(LLAMA_SPLIT("\\n", "\\n") ", " NO_REGEX),
	  .vocab = "a",
	  .want = "!tokenizer.json: llama.cpp is not known to split text by '(?i:" },
	{ .members = STEPS(SPLIT("\\n", "Isolated") ", " LEVEL),
	  .vocab = "a",
	  .want = "!tokenizer.json: llama.cpp is not known to split text by '?'" },
	{ .members = STEPS(SPLIT("\\\\p{N", "Isolated") ", " LEVEL),
	  .vocab = "a",
	  .want = "!tokenizer.json: llama.cpp is not known to split text by '\\p{N'" },
	{ .members = STEPS(SPLIT("\\\\p{N}+", "Isolated") ", " LEVEL),
	  .vocab = "a",
	  .want = "!tokenizer.json: llama.cpp is not known to split text by '\\p{N}+'" },
	{ .members = STEPS(SPLIT("\\\\p{N}", "MergedWithNext") ", " LEVEL),
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = STEPS("{'type': 'Punctuation'}, " LEVEL),
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = STEPS(DIGITS ", " DIGITS ", " DIGITS ", " LEVEL ", " LEVEL),
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = "'pre_tokenizer': " NO_REGEX,
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = STEPS(LEVEL), .vocab = "a", .want = "pre='gpt-2'" },

	/* SentencePiece's. */
	{ .members = META(", 'split': false"),
	  .model = FALLBACK,
	  .vocab = "<0xab>|<0xag>|<0xga>|<1xAB>|<0xAB]|<0x1>|<0x:1>",
	  .want = "model='llama'|add_space_prefix=true|,6,6,1,1,1,1,1,1,5" },
	{ .members = META(", 'split': false, 'add_prefix_space': false"),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = "add_space_prefix=false" },
	{ .members = META(", 'split': false, 'prepend_scheme': 'first'"),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = "add_space_prefix=true" },
	{ .members = META(", 'split': false, 'prepend_scheme': 'never'"),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = "add_space_prefix=false" },
	{ .members = META(""),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = "'pre_tokenizer': {'type': 'Metaspace', 'replacement': '_', 'split': false}",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = "'pre_tokenizer': " LEVEL,
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the pre-tokenizer") },
	{ .members = NORMALS(PREPEND ", " REPLACE),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = "add_space_prefix=true|pre='default'" },
	{ .members = NORMALS(
		  REPLACE) ", 'pre_tokenizer': {'type': 'Split', 'pattern': {'String': ' '}}",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = "add_space_prefix=false" },
	{ .members = NORMALS(REPLACE) ", 'pre_tokenizer': ''",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = "add_space_prefix=false" },
	{ .members = NORMALS(
		  REPLACE) ", 'pre_tokenizer': {'type': 'Split', 'pattern': {'String': '_'}}",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS(
		  REPLACE) ", 'pre_tokenizer': {'type': 'Split', 'invert': true, 'pattern': "
			   "{'String': ' '}}",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS(REPLACE) ", 'pre_tokenizer': " LEVEL,
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS("{'type': 'Prepend', 'prepend': '_'}, " REPLACE),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS(REPLACE ", " REPLACE),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS(PREPEND ", " REPLACE ", " REPLACE),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS(PREPEND),
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members =
		  "'normalizer': {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '_'}",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members =
		  "'normalizer': {'type': 'Replace', 'pattern': {'Regex': ' '}, 'content': '" SPACE
		  "'}",
	  .model = FALLBACK,
	  .vocab = "a",
	  .want = UNKNOWN("the normalizer") },
	{ .members = NORMALS(REPLACE),
	  .model = FALLBACK ", 'ignore_merges': true",
	  .vocab = "a",
	  .want = UNKNOWN("'ignore_merges' with 'byte_fallback'") },

	/* Special tokens. */
	{ .vocab = "a|b|c|<s>",
	  .config = "{'bos_token': 'b', 'eos_token': {'content': 'c'}, 'unk_token': null}",
	  .want = "bos_token_id=1|eos_token_id=2|token_type=[1,3,3,1" },
	{ .vocab = "a|b",
	  .ids = "{'eos_token_id': [2, 3], 'bos_token_id': null, 'text_config': "
		 "{'bos_token_id': 1, 'eos_token_id': 2, 'pad_token_id': 3}}",
	  .want = "bos_token_id=1|-eos_token_id=|padding_token_id=3" },
	{ .vocab = "a|b",
	  .ids = "{'bos_token_id': 1, 'eos_token_id': 20, 'pad_token_id': -1, 'sep_token_id': 'x'}",
	  .want = "bos_token_id=1|-eos_token_id=|-padding_token_id=|-seperator_token_id=" },
	{ .members = NORMALS(REPLACE),
	  .model = FALLBACK,
	  .vocab = "<unk>",
	  .config = "{'unk_token': '<unk>'}",
	  .want = "unknown_token_id=256|,6,6,2,5" },
	{ .members = PROCESS(LEVEL),
	  .vocab = "a",
	  .config = "{'add_bos_token': true, 'bos_token': 'a'}",
	  .want = "add_bos_token=false|bos_token_id=0" },
	{ .members = PROCESS("null"),
	  .vocab = "a",
	  .config = "{'add_bos_token': true, 'bos_token': 'a'}",
	  .want = "add_bos_token=true|add_eos_token=false" },
	{ .vocab = "a",
	  .config = "{'add_bos_token': true}",
	  .want = "!tokenizer.json: texts begin or end with a token that does not exist" },
	{ .vocab = "a",
	  .config = "{'add_eos_token': true, 'eos_token': 'a'}",
	  .want = "add_eos_token=true" },
	{ .members = PROCESS("{'single': []}"),
	  .vocab = "a",
	  .want = UNKNOWN("the post-processor") },
	{ .members = TEMPLATE(TEXT),
	  .vocab = "a",
	  .want = "add_bos_token=false|add_eos_token=false" },
	{ .members = TEMPLATE(SPECIAL("a") ", " TEXT),
	  .vocab = "a|b",
	  .want = "add_bos_token=true|add_eos_token=false|bos_token_id=0" },
	{ .members = TEMPLATE(TEXT ", " SPECIAL("b")),
	  .vocab = "a|b",
	  .want = "add_bos_token=false|add_eos_token=true|eos_token_id=1" },
	{ .members = TEMPLATE(SPECIAL("a") ", " TEXT ", " SPECIAL("b")),
	  .vocab = "a|b",
	  .config = "{'bos_token': 'a', 'eos_token': 'b'}",
	  .want = "add_bos_token=true|add_eos_token=true" },
	{ .members = TEMPLATE(SPECIAL("a") ", " TEXT),
	  .vocab = "a|b",
	  .config = "{'bos_token': 'b'}",
	  .want = OTHER_ENDS },
	{ .members = TEMPLATE(SPECIAL("z") ", " TEXT ", " SPECIAL("b")),
	  .vocab = "a|b",
	  .want = OTHER_ENDS },
	{ .members = TEMPLATE("{'SpecialToken': {'id': 0}}, " TEXT),
	  .vocab = "a|b",
	  .want = OTHER_ENDS },
	{ .members = TEMPLATE(SPECIAL("a") ", " SPECIAL("b") ", " TEXT),
	  .vocab = "a|b",
	  .want = UNKNOWN("the post-processor") },
	{ .members = TEMPLATE(SPECIAL("a") ", " SPECIAL("b")),
	  .vocab = "a|b",
	  .want = UNKNOWN("the post-processor") },
	{ .members = TEMPLATE(TEXT ", " SPECIAL("a") ", " SPECIAL("b")),
	  .vocab = "a|b",
	  .want = UNKNOWN("the post-processor") },
	{ .members = TEMPLATE(SPECIAL("a") ", " SPECIAL("b") ", " SPECIAL("a") ", " TEXT),
	  .vocab = "a|b",
	  .want = UNKNOWN("the post-processor") },
	{ .members = PROCESS("{'type': 'Sequence', 'processors': [" LEVEL
			     ", {'type': 'TemplateProcessing', "
			     "'single': [" SPECIAL("a") ", " TEXT "]}]}"),
	  .vocab = "a",
	  .want = "add_bos_token=true" },
	{ .members = PROCESS("{'type': 'Sequence', 'processors': [{'type': 'Bert'}, " LEVEL "]}"),
	  .vocab = "a",
	  .want = UNKNOWN("the post-processor") },

	/* Turns of a chat: GLM's tokens are recognised by them. */
	{ .vocab = CHATS, .want = "-bos_token_id=|-eot_token_id=|-eom_token_id=" },
	{ .vocab = CHATS,
	  .kind = KIND_GLM4,
	  .want = "bos_token_id=0|eos_token_id=0|unknown_token_id=0|eot_token_id=1|-eom_token_"
		  "id=" },
	{ .vocab = CHATS,
	  .kind = KIND_GLM4_MOE,
	  .want = "bos_token_id=3|-eos_token_id=|unknown_token_id=0|eot_token_id=1|eom_token_id="
		  "2" },
	{ .vocab = CHATS,
	  .kind = KIND_GLM4,
	  .config = "{'bos_token': '<x>', 'eos_token': '<x>', 'unk_token': '<x>'}",
	  .want = "bos_token_id=4|eos_token_id=4|unknown_token_id=4" },
	{ .vocab = "a",
	  .kind = KIND_GLM4_MOE,
	  .want = "-bos_token_id=|-eot_token_id=|-eom_token_id=" },

	/* Chat templates. */
	{ .vocab = "a", .jinja = "J", .want = "chat_template='J'" },
	{ .vocab = "a",
	  .jinja = "J",
	  .config = "{'chat_template': 'C'}",
	  .want = "chat_template='C'" },
	{ .vocab = "a", .template_config = "{'chat_template': 'D'}", .want = "chat_template='D'" },
	{ .vocab = "a", .template_config = "{'chat_template': 1}", .want = "-chat_template" },
	{ .vocab = "a", .template_config = "{", .want = "!chat_template.json" },
	{ .vocab = "a",
	  .config = "{'chat_template': [{'name': 'A[9{z:G', 'template': 'x'}, {'name': '', "
		    "'template': 'y'}, "
		    "{'name': 'n', 'template': 1}, {'template': 'z'}, {'name': 'n', 'template': "
		    "'N'}]}",
	  .want = "chat_template.A_9_z_G='x'|chat_template.n='N'|-='y'|-='z'" },
	{ .vocab = "a", .config = "{", .want = "!tokenizer_config.json" },
};

/* ---- what is put in, and what comes out ---- */

/* " for ', and ' for a byte 1. */
static void add_json(struct buf *b, const char *s)
{
	for (; s && *s; s++)
		buf_add(b, *s == '\'' ? "\"" : *s == 1 ? "'" : s, 1);
}

static void put_vocab(struct buf *b, const char *vocab, bool bytes)
{
	unsigned id = 0;

	for (unsigned i = 0; bytes && i < 256; i++, id++)
		buf_printf(b, "\"<0x%02X>\": %u, ", i, id);
	for (const char *p = vocab, *end; p; p = *end ? end + 1 : NULL, id++) {
		end = p + strcspn(p, "|");
		if (!strncmp(p, "<|", 2)) /* the token itself contains bars */
			end = strchr(p, '>') + 1;
		buf_printf(b, "%s\"%.*s\": %u", p == vocab ? "" : ", ", (int)(end - p), p, id);
	}
}

static void put_value(struct buf *b, struct cursor *c, uint32_t type)
{
	uint64_t n;
	uint32_t item;
	float f;

	switch (type) {
	case GGUF_STR:
		n = cursor_le64(c);
		buf_add(b, cursor_take(c, n), n);
		return;
	case GGUF_BOOL:
		buf_str(b, *cursor_take(c, 1) ? "true" : "false");
		return;
	case GGUF_F32:
		item = cursor_le32(c);
		memcpy(&f, &item, sizeof(f));
		buf_printf(b, "%g", (double)f);
		return;
	case GGUF_ARRAY:
		item = cursor_le32(c);
		n = cursor_le64(c);
		for (uint64_t i = 0; i < n; i++) {
			buf_str(b, i ? "," : "[");
			put_value(b, c, item);
		}
		buf_str(b, "]");
		return;
	default:
		buf_u64(b, cursor_le32(c));
	}
}

/* Each key and its value, on a line of its own. */
static char *shown(const struct gguf_keys *k)
{
	struct cursor c = cursor_of(k->text.data, k->text.len);
	struct buf b = BUF_INIT(1 << 20);

	REQUIRE(gguf_keys_fine(k));
	for (uint64_t i = 0; i < k->n; i++) {
		uint64_t n = cursor_le64(&c);
		uint32_t type;

		buf_add(&b, cursor_take(&c, n), n);
		type = cursor_le32(&c);
		buf_str(&b, type == GGUF_STR ? "='" : "=");
		put_value(&b, &c, type);
		buf_str(&b, type == GGUF_STR ? "'\n" : "\n");
	}
	REQUIRE(!b.err && !c.bad);
	return (char *)b.data;
}

static int put_row(const struct row *x, struct gguf_keys *k, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct buf config CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct buf ids CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct buf chat CLEANUP(buf_release) = BUF_INIT(1 << 20);
	bool bytes = x->model && strstr(x->model, "byte_fallback");
	struct gguf_config c = { .a = { .kind = x->kind ? x->kind : KIND_LLAMA,
					.vocab = bytes ? VOCAB_BYTES : VOCAB },
				 .arch = "llama" };
	struct gguf_token_files f = { 0 };
	int rc;

	buf_str(&b, "{");
	add_json(&b, x->members ? x->members : BYTES);
	add_json(&b, ", 'model': {'type': 'BPE', ");
	add_json(&b, x->model);
	add_json(&b, x->model ? ", 'vocab': {" : "'vocab': {");
	put_vocab(&b, x->vocab, bytes);
	if (x->merges && *x->merges == '}') {
		add_json(&b, "}, 'merges': {}}}");
	} else {
		add_json(&b, "}, 'merges': [");
		add_json(&b, x->merges);
		add_json(&b, "]}}");
	}
	add_json(&config, x->config);
	add_json(&ids, x->ids ? x->ids : "{}");
	add_json(&chat, x->template_config);
	REQUIRE(!b.err && !config.err && !ids.err && !chat.err);
	REQUIRE(!gguf_json("config.json", ids.data, ids.len, &c.json, e));
	c.text = jval_get(jdoc_root(&c.json), "text_config");
	f.tokenizer = b.data;
	f.tokenizer_len = b.len;
	f.config = (struct gguf_file){ config.data, config.len };
	f.template_config = (struct gguf_file){ chat.data, chat.len };
	f.template = (struct gguf_file){ x->jinja, x->jinja ? strlen(x->jinja) : 0 };
	rc = gguf_tokens_put(&f, &c, k, e);
	gguf_config_release(&c);
	return rc;
}

/* A text that begins with a minus must not be there. */
static void must_have(const char *keys, const char *texts)
{
	char *copy = strdup(texts), *at = copy, *one;

	REQUIRE(copy);
	while ((one = strsep(&at, "|")))
		ck_assert_msg((strstr(keys, one + (*one == '-')) != NULL) == (*one != '-'),
			      "'%s' in %s", one, keys);
	free(copy);
}

START_LOOP_TEST(parts_of_a_tokenizer_become_keys, ARRAY_LEN(rows))
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };
	int rc = put_row(&rows[_i], &k, &e);

	if (*rows[_i].want == '!') {
		ck_assert_int_lt(rc, 0);
		ck_assert_msg(strstr(e.msg, rows[_i].want + 1) == e.msg, "%s", e.msg);
	} else {
		ck_assert_msg(!rc, "%s", e.msg);
		autofree char *have = shown(&k);
		must_have(have, rows[_i].want);
	}
	buf_release(&k.text);
}
END_TEST

/* ---- what is too long ---- */

static const struct {
	size_t len; /* of each of two tokens, and of one made of both */
	const char *members, *model, *want;
	bool merge;
} lengths[] = {
	{ 256, NORMALS(REPLACE), FALLBACK, NULL, false },
	{ 257, NORMALS(REPLACE), FALLBACK, "llama.cpp would not build 'aaaa", false },
	{ 257, NULL, "'ignore_merges': true", "llama.cpp would not build 'aaaa", false },
	{ 257, NULL, NULL, NULL, false },
	{ 2048, NULL, NULL, NULL, true },
	{ 2049, NULL, NULL, "merge 0 is not a pair of tokens", true },
};

START_LOOP_TEST(tokens_may_be_only_so_long, ARRAY_LEN(lengths))
{
	size_t n = lengths[_i].len;
	autofree char *a = calloc(1, n + 1), *b = calloc(1, n + 1), *vocab = malloc(4 * n + 3),
		      *merges = malloc(2 * n + 20);
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };
	struct row x = { .members = lengths[_i].members,
			 .model = lengths[_i].model,
			 .vocab = vocab };
	int rc;

	REQUIRE(a && b && vocab && merges);
	memset(a, 'a', n);
	memset(b, 'b', n);
	(void)snprintf(vocab, 4 * n + 3, "%s%s|%s|%s", a, b, a, b);
	(void)snprintf(merges, 2 * n + 20, "'%s %s'", a, b);
	if (lengths[_i].merge)
		x.merges = merges;
	rc = put_row(&x, &k, &e);
	ck_assert_int_eq(rc < 0, lengths[_i].want != NULL);
	if (rc)
		ck_assert_msg(strstr(e.msg, lengths[_i].want) != NULL, "%s", e.msg);
	buf_release(&k.text);
}
END_TEST

START_TEST(a_vocabulary_may_be_only_so_large)
{
	static const char text[] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", "
				   "\"add_prefix_space\": false}, \"model\": {\"type\": \"BPE\", "
				   "\"vocab\": {\"a\": 0}, \"merges\": []}}";
	struct gguf_config c = { .a = { .kind = KIND_LLAMA, .vocab = GGUF_MAX_TOKENS + 1 },
				 .arch = "llama" };
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	autofree char *copy = strdup(text);
	struct gguf_token_files f = { .tokenizer = copy, .tokenizer_len = sizeof(text) - 1 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(gguf_tokens_put(&f, &c, &k, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "config.json: a vocabulary of more than 1048576 tokens");
	buf_release(&k.text);
}
END_TEST

SUITE(gguf_tokens)
