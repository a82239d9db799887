/* SPDX-License-Identifier: Apache-2.0 */
/* Options as words: what they become, and what is said about wrong ones. */
#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "ckpt/open/ckpt_options.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static struct arena memory = ARENA_INIT(1 << 20);

static int parse(const char *const words[], struct ckpt_opts *ret, struct ckpt_err *e)
{
	*e = (struct ckpt_err){ 0 };
	return ckpt_opts_parse(words, NULL, 0, &memory, ret, e);
}

static void setup(void)
{
	memory = (struct arena)ARENA_INIT(1 << 20);
}

static void teardown(void)
{
	arena_release(&memory);
}

/* "NAME", or "NAME=VALUE" with a value of the right form. */
static void right_word(const struct ckpt_option *x, char out[static 100])
{
	(void)snprintf(out, 100, "%s%s", x->name,
		       x->form == CKPT_OPTION_FLAG   ? ""
		       : x->form == CKPT_OPTION_SIZE ? "=3K"
						     : "=a=b");
}

static int count_options(void)
{
	int n = 0;

	while (ckpt_option((size_t)n))
		n++;
	return n;
}

START_LOOP_TEST(each_row_sets_its_field_and_no_other, count_options())
{
	static const struct ckpt_opts none;
	const struct ckpt_option *x = ckpt_option((size_t)_i);
	struct ckpt_opts o, without;
	struct ckpt_err e;
	char word[100];
	void *at;

	right_word(x, word);
	ck_assert_int_eq(parse(WORDS(word), &o, &e), 0);
	memset(word, 'x', sizeof(word)); /* the options must not point to it any more */
	at = ckpt_opts_at(&o, x);
	without = o;
	switch (x->form) {
	case CKPT_OPTION_FLAG:
		REQUIRE(*(bool *)at);
		*(bool *)ckpt_opts_at(&without, x) = false;
		break;
	case CKPT_OPTION_SIZE:
		ck_assert_uint_eq(*(uint64_t *)at, 3072);
		*(uint64_t *)ckpt_opts_at(&without, x) = 0;
		break;
	case CKPT_OPTION_LIST:
		ck_assert_str_eq((*(const char *const **)at)[0], "a=b");
		ck_assert_ptr_null((*(const char *const **)at)[1]);
		*(const char ***)ckpt_opts_at(&without, x) = NULL;
		break;
	default:
		ck_assert_str_eq(*(const char **)at, "a=b");
		*(const char **)ckpt_opts_at(&without, x) = NULL;
	}
	REQUIRE(!memcmp(&without, &none, sizeof(none)));
}
END_TEST

START_TEST(no_words_ask_for_nothing)
{
	static const struct ckpt_opts none;
	struct ckpt_opts o;
	struct ckpt_err e;

	ck_assert_int_eq(parse(NULL, &o, &e), 0);
	REQUIRE(!memcmp(&o, &none, sizeof(o)));
	ck_assert_int_eq(parse(WORDS(NULL), &o, &e), 0);
	REQUIRE(!memcmp(&o, &none, sizeof(o)));
}
END_TEST

START_TEST(the_last_word_counts_and_lists_grow)
{
	struct ckpt_opts o;
	struct ckpt_err e;

	ck_assert_int_eq(parse(WORDS("dtype=bf16", "include=a", "maps=1", "weights=", "include=b",
				     "dtype=fp32", "maps=2"),
			       &o, &e),
			 0);
	ck_assert_str_eq(o.dtype, "fp32");
	ck_assert_str_eq(o.weights, "");
	ck_assert_uint_eq(o.maps, 2);
	ck_assert_str_eq(o.include[0], "a");
	ck_assert_str_eq(o.include[1], "b");
	ck_assert_ptr_null(o.include[2]);
	ck_assert_ptr_null(o.exclude);
}
END_TEST

static const struct {
	const char *word, *msg;
} wrong[] = {
	{ "frob", "unknown option 'frob'" },
	{ "frob=1", "unknown option 'frob'" },
	{ "dequantise=bf16", "unknown option 'dequantise': did you mean 'dequantize'?" },
	{ "", "unknown option ''" },
	{ "=bf16", "unknown option ''" },
	{ "dtyp=bf16", "unknown option 'dtyp': did you mean 'dtype'?" },
	{ "dtypes=bf16", "unknown option 'dtypes': did you mean 'dtype'?" },
	{ "Dtype=bf16", "unknown option 'Dtype': did you mean 'dtype'?" },
	{ "dtype", "option 'dtype' needs a value" },
	{ "include", "option 'include' needs a value" },
	{ "cache", "option 'cache' needs a value" },
	{ "runs=", "option 'runs' takes no value" },
	{ "runs=1", "option 'runs' takes no value" },
	{ "cache=", "option 'cache': '' is not a size" },
	{ "retry=x", "option 'retry': 'x' is not a number of seconds" },
	{ "cache=1Q", "option 'cache': '1Q' is not a size" },
	{ "cache=-1", "option 'cache': '-1' is not a size" },
	{ "cache=99999999999G", "option 'cache': '99999999999G' is not a size" },
	{ "maps=0", "option 'maps': must be at least 1" },
};

START_LOOP_TEST(a_wrong_word_is_named, (int)ARRAY_LEN(wrong))
{
	struct ckpt_opts o;
	struct ckpt_err e;
	struct ckpt *c = NULL;

	ck_assert_int_eq(parse(WORDS("runs", wrong[_i].word), &o, &e), -EINVAL);
	ck_assert_str_eq(e.msg, wrong[_i].msg);
	/* The error comes before the checkpoint is looked for. */
	ck_assert_int_eq(ckpt_open("/nowhere", WORDS(wrong[_i].word), NULL, &c, &e), -EINVAL);
	ck_assert_str_eq(e.msg, wrong[_i].msg);
	ck_assert_ptr_null(c);
}
END_TEST

START_TEST(memory_has_a_bound)
{
	static char word[3 << 20] = "rename=";
	struct ckpt_opts o;
	struct ckpt_err e;

	memset(word + 7, 'x', sizeof(word) - 8);
	ck_assert_int_eq(parse(WORDS(word), &o, &e), -ENOMEM);
	ck_assert_str_eq(e.msg, "out of memory");
}
END_TEST

START_TEST(a_choice_is_one_of_its_words)
{
	static const struct ckpt_choice of[] = { { "one", 1, false },
						 { "two", 2, false },
						 { "eins", 1, true } };
	struct ckpt_err e;
	int n = 7;

	ck_assert_int_eq(ckpt_opts_choose("n", NULL, of, 3, &n, &e), 0);
	ck_assert_int_eq(n, 7);
	ck_assert_int_eq(ckpt_opts_choose("n", "eins", of, 3, &n, &e), 0);
	ck_assert_int_eq(n, 1);
	ck_assert_int_eq(ckpt_opts_choose("n", "tw", of, 3, &n, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "option 'n': 'tw' is not one of one, two");
	ck_assert_int_eq(n, 1);
}
END_TEST

SUITE(ckpt_options, .setup = setup, .teardown = teardown)
