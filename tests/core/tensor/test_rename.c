/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"
#include "tensor/namelist.h"
#include "tensor/regex_start.h"
#include "tensor/rename.h"

#include <errno.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rename *parse(const char *rules)
{
	struct rename *r = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!rename_parse(rules, strlen(rules), "rules", &r, &e), "%s: %s", rules, e.msg);
	return r;
}

#define NAME(s) s, sizeof(s) - 1

static const struct {
	const char *rules;
	const char *from;
	size_t n_from;
	const char *to;
	size_t n_to;
} rows[] = {
	{ "s/^model\\.//", NAME("model.a.w"), NAME("a.w") },
	{ "s/^model\\.//", NAME("amodel.w"), NAME("amodel.w") },
	{ "s/a/b/", NAME("aaa"), NAME("baa") },
	{ "s/a/b/g", NAME("aaa"), NAME("bbb") },
	{ "s/A/b/I", NAME("cab"), NAME("cbb") },
	{ "s/A/b/gI", NAME("aAa"), NAME("bbb") },
	{ "s/A/b/Ig", NAME("aAa"), NAME("bbb") },
	{ "", NAME("as.it.is"), NAME("as.it.is") },
	{ "# nothing\n\n  \t\n", NAME("w"), NAME("w") },
	/* One after the other. */
	{ "s/a/b/\ns/b/c/g\n", NAME("ab"), NAME("cc") },
	{ "s/a/b/\r\ns/b$/c/\r\n# x\r\n\r\n", NAME("a"), NAME("c") },
	{ " \ts/a/b/g \t# why", NAME("aa"), NAME("bb") },
	{ "s/a/b/# why", NAME("aa"), NAME("ba") },
	/* Replacements. */
	{ "s/^(.*)\\.([qkv])\\./\\1.self_attn.\\2_proj./", NAME("l.0.q.w"),
	  NAME("l.0.self_attn.q_proj.w") },
	{ "s/b/[&\\&&]/", NAME("abc"), NAME("a[b&b]c") },
	{ "s/b/\\\\\\//", NAME("abc"), NAME("a\\/c") },
	{ "s/b/\\.\\-/", NAME("abc"), NAME("a.-c") },
	{ "s/(a)|(b)/<\\1\\2>/g", NAME("ab"), NAME("<a><b>") },
	{ "s/(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)/\\9\\8\\10/", NAME("abcdefghij"), NAME("iha0") },
	{ "s/b//", NAME("abc"), NAME("ac") },
	/* Delimiters. */
	{ "s|/|.|g", NAME("a/b/c"), NAME("a.b.c") },
	{ "s,a\\,b,x\\,y,", NAME("a,b"), NAME("x,y") },
	{ "s|a\\|b|x|", NAME("aa|b"), NAME("ax") }, /* itself, not "or" */
	{ "s.a\\.b.x.g", NAME("aXb a.b"), NAME("aXb x") },
	{ "s(a\\(b(x(", NAME("a(b"), NAME("x") },
	{ "sxaxbx", NAME("a"), NAME("b") },
	{ "swa\\wbwcw", NAME("awb"), NAME("c") },
	{ "s1a1\\11", NAME("a"), NAME("1") },
	{ "s&a&\\&&", NAME("a"), NAME("&") },
	{ "s#a#b#", NAME("a"), NAME("b") },
	{ "s a b ", NAME("a"), NAME("b") },
	{ "s/[/]/./", NAME("a/b"), NAME("a.b") },
	{ "s/[^\\/]/x/g", NAME("a/\\"), NAME("x/x") },
	{ "s/[]/]/x/g", NAME("a]b/c"), NAME("axbxc") },
	{ "s/[^]/]/x/g", NAME("a]b/"), NAME("x]x/") },
	{ "s/[[:digit:]/]/x/g", NAME("a1/:"), NAME("axx:") },
	{ "s/[[=a=][.-.]]/x/g", NAME("ab-"), NAME("xbx") },
	/* An empty match counts, too. */
	{ "s/x*/-/g", NAME("abc"), NAME("-a-b-c-") },
	{ "s/a*/x/g", NAME("baaac"), NAME("xbxcx") },
	{ "s/b*$/X/g", NAME("ab"), NAME("aX") },
	{ "s/$/.weight/", NAME("a"), NAME("a.weight") },
	{ "s/^/model./g", NAME("a"), NAME("model.a") },
	{ "s/^/x/", NAME(""), NAME("x") },
	{ "s/^a|b/x/g", NAME("aabb"), NAME("xaxx") },
	{ "s/\\b/|/g", NAME("foo.bar"), NAME("|foo|.|bar|") },
	{ "s/\\<./_/g", NAME("foo.bar"), NAME("_oo._ar") },
	{ "s/()a/[\\1]/g", NAME("aa"), NAME("[][]") },
	/* Names of any bytes. */
	{ "s/b/x/g", NAME("a\0b\0b"), NAME("a\0x\0x") },
	{ "s/^[^x]+$/all/", NAME("a\0b"), NAME("all") },
	{ "s/a$/x/", NAME("a\0a"), NAME("a\0x") },
	{ "s/(.)$/\\1\\1/", NAME("a\n"), NAME("a\n\n") },
	{ "s/^b/x/", NAME("a\nb"), NAME("a\nb") },
	{ "s/\xc3\xa9/e/", NAME("caf\xc3\xa9"), NAME("cafe") },
	{ "s/[\x80-\xff]/?/g", NAME("caf\xc3\xa9"), NAME("caf??") },
	{ "s/a/b/", NAME(""), NAME("") },
};

START_LOOP_TEST(rules_do_what_they_say, ARRAY_LEN(rows))
{
	struct rename *r = parse(rows[_i].rules);
	struct buf out = BUF_INIT(1000);
	struct ckpt_err e = { 0 };

	for (int again = 0; again < 2; again++) {
		out.len = 0;
		buf_str(&out, "kept:");
		ck_assert_msg(!rename_apply(r, rows[_i].from, rows[_i].n_from, &out, &e), "%s",
			      e.msg);
		ck_assert_msg(out.len == 5 + rows[_i].n_to && !memcmp(out.data, "kept:", 5) &&
				      !memcmp(out.data + 5, rows[_i].to, rows[_i].n_to),
			      "%s on '%s': '%s'", rows[_i].rules, rows[_i].from, out.data);
	}
	buf_release(&out);
	rename_free(r);
}
END_TEST

static const struct {
	const char *text;
	size_t len;
	const char *says;
} wrong[] = {
	{ NAME("y/a/b/"), "'rules' line 1: not a rule (s/REGEX/REPLACEMENT/)" },
	{ NAME("s"), "'rules' line 1: not a rule (s/REGEX/REPLACEMENT/)" },
	{ NAME("s\\a\\b\\"), "'rules' line 1: not a rule (s/REGEX/REPLACEMENT/)" },
	{ NAME("s\xc3 a"), "'rules' line 1: not a rule (s/REGEX/REPLACEMENT/)" },
	{ NAME("#\n\ns/a/b"), "'rules' line 3: no '/' after the replacement" },
	{ NAME("s/a/b\\"), "'rules' line 1: no '/' after the replacement" },
	{ NAME("s/a/b\\/"), "'rules' line 1: no '/' after the replacement" },
	{ NAME("s,a"), "'rules' line 1: no ',' after the expression" },
	{ NAME("s/a\\"), "'rules' line 1: no '/' after the expression" },
	{ NAME("s/[/"), "'rules' line 1: no '/' after the replacement" },
	{ NAME("s//x/"), "'rules' line 1: the expression is empty" },
	{ NAME("s/a/b/\ns/a/b/x\n"), "'rules' line 2: 'x' after the rule: the flags are g and I" },
	{ NAME("s/a/b/c/"), "'rules' line 1: 'c/' after the rule: the flags are g and I" },
	{ NAME("s/a/b/ g"), "'rules' line 1: 'g' after the rule: the flags are g and I" },
	{ NAME("s/(/x/"), "'rules' line 1: Unmatched ( or \\(" },
	{ NAME("s/[a/x/"), "'rules' line 1: Unmatched [, [^, [:, [., or [=" },
	{ NAME("s/[[:nope:]]/x/"), "'rules' line 1: Invalid character class name" },
	{ NAME("s/[b-a]/x/"), "'rules' line 1: Invalid range end" },
	{ NAME("s/a{2,1}/x/"), "'rules' line 1: Invalid content of \\{\\}" },
	{ NAME("s/(a)/\\2/"),
	  "'rules' line 1: '\\2' in the replacement, but the expression has 1 group" },
	{ NAME("s/a\\d/x/"), "'rules' line 1: '\\d' has no meaning in the expression" },
	{ NAME("s/(a)\\1/x/"), "'rules' line 1: '\\1' has no meaning in the expression" },
	{ NAME("s/a/\\n/"), "'rules' line 1: '\\n' has no meaning in the replacement" },
	{ NAME("s/a/\\0/"), "'rules' line 1: '\\0' has no meaning in the replacement" },
	{ NAME("s/a/\\U&/"), "'rules' line 1: '\\U' has no meaning in the replacement" },
	{ NAME("s/a\0/x/"), "'rules' line 1: a NUL byte" },
	{ NAME("s/a{32767}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/a{99999999999999999999999}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/(a*)*{255}{255}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/a{}/x/"), "'rules' line 1: Invalid content of \\{\\}" },
	{ NAME("s/((|||){15}){2,}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/$(.?)*{20}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/(x|\\b)*{6}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/^(.?)+{12}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/((x?){2,}){9}$/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/(x|\\b){13}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/(a{500}){2}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/((a{10}){10}){10,}/x/"), "'rules' line 1: the expression is too large" },
	{ NAME("s/((((((((((a+)+)+)+)+)+)+)+)+)+)+/x/"),
	  "'rules' line 1: the expression is too large" },
	{ NAME("s/(((((((((((((((((((((((((((((((((a)))))))))))))))))))))))))))))))))/x/"),
	  "'rules' line 1: more than 32 nested groups" },
};

START_LOOP_TEST(what_is_no_rule_is_refused_with_its_line, ARRAY_LEN(wrong))
{
	struct rename *r = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(rename_parse(wrong[_i].text, wrong[_i].len, "rules", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg, wrong[_i].says);
	ck_assert_ptr_null(r);
}
END_TEST

/* What people write is far below the limits, which count what glibc builds, not the text. */
START_TEST(large_expressions_have_room)
{
	static char line[RENAME_MAX_RULE + 2];
	struct rename *r =
		parse("s/^(([a-z_]+\\.)+)?([0-9]{1,4})\\.(([a-z]+[0-9]*)+_)*(a|b|c)$/\\3/\n"
		      "s/^([0-9]{1,3}\\.){3}[0-9]{1,3}$/x/\n"
		      "s/(a{0}|b{,3}|c{3,}|e{0,0})/x/\n"
		      "s/[[:alpha:]({+*]{200}/x/\n");
	struct ckpt_err e = { 0 };

	rename_free(r);
	memset(line, 'a', sizeof(line));
	memcpy(line, "s/a/", 4);
	line[RENAME_MAX_RULE - 1] = '/';
	ck_assert_int_eq(rename_parse(line, RENAME_MAX_RULE, "rules", &r, &e), 0);
	rename_free(r);
	line[RENAME_MAX_RULE - 1] = 'a';
	line[RENAME_MAX_RULE] = '/';
	ck_assert_int_eq(rename_parse(line, RENAME_MAX_RULE + 1, "rules", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'rules' line 1: longer than 4096 bytes");
}
END_TEST

START_TEST(a_name_does_not_become_nothing_or_endless)
{
	struct rename *r = parse("s/b/b/\n\ns/^a$//\ns/x/&&&&&&&&&&/g\n");
	struct buf out = BUF_INIT(2 * RENAME_MAX_NAME);
	struct ckpt_err e = { 0 };
	static char name[RENAME_MAX_NAME + 1];

	buf_str(&out, "kept");
	ck_assert_int_eq(rename_apply(r, "a", 1, &out, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'rules' line 3: 'a' becomes nothing");
	memset(name, 'x', sizeof(name));
	ck_assert_int_eq(rename_apply(r, name, RENAME_MAX_NAME / 10 + 1, &out, &e), -EINVAL);
	ck_assert_ptr_eq(strstr(e.msg, "'rules' line 4: 'xxxxxx"), e.msg);
	ck_assert_ptr_nonnull(strstr(e.msg, "x...' becomes too long"));
	ck_assert_int_eq(rename_apply(r, name, RENAME_MAX_NAME + 1, &out, &e), -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "has 65537 bytes, renaming takes 65536"));
	ck_assert_uint_eq(out.len, 4);
	/* The failure has no effect on the next name. */
	ck_assert_int_eq(rename_apply(r, name, RENAME_MAX_NAME / 10, &out, &e), 0);
	ck_assert_uint_eq(out.len, 4 + RENAME_MAX_NAME / 10 * 10);
	memset(name, 'y', sizeof(name));
	ck_assert_int_eq(rename_apply(r, name, RENAME_MAX_NAME, &out, &e), 0);
	out.max = out.len;
	ck_assert_int_eq(rename_apply(r, "z", 1, &out, &e), -EFBIG);
	buf_release(&out);
	rename_free(r);
}
END_TEST

START_TEST(rules_that_match_nothing_can_be_named)
{
	struct rename *r = parse("s/a/b/\n# x\n  s/b/c/\r\ns/q/r/ # why\ns/zz/z/g");
	struct rename_rule rule;
	struct buf out = BUF_INIT(100);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(rename_apply(r, "a", 1, &out, &e), 0);
	ck_assert(rename_unmatched(r, 0, &rule));
	ck_assert_uint_eq(rule.line, 4);
	ck_assert_str_eq(rule.text, "s/q/r/ # why");
	ck_assert_str_eq(rule.file, "rules");
	ck_assert(rename_unmatched(r, rule.line, &rule));
	ck_assert_uint_eq(rule.line, 5);
	ck_assert(!rename_unmatched(r, rule.line, &rule));
	ck_assert_int_eq(rename_apply(r, "qzz", 3, &out, &e), 0);
	ck_assert(!rename_unmatched(r, 0, &rule));
	buf_release(&out);
	rename_free(r);
}
END_TEST

/* ---- a list of names ---- */

static const char *const stored_names[] = { "model.b", "x", "model.a", "ema.a" };

static void stored(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	(void)arg;
	*ret = stored_names[index];
	*ret_len = strlen(*ret);
}

static int rename_stored(const char *rules, struct namelist *t, struct ckpt_err *e)
{
	struct rename *r = NULL;
	int rc = rename_parse(rules, strlen(rules), "rules", &r, e);

	for (uint32_t i = 0; i < ARRAY_LEN(stored_names) && !rc; i++)
		rc = namelist_add(t, stored_names[i], strlen(stored_names[i]), i, e);
	if (!rc)
		rc = rename_list(r, t, e);
	rename_free(r); /* the list needs it no longer */
	return rc ? rc : namelist_finish(t, stored, NULL, e);
}

START_TEST(a_list_is_renamed_and_sorted_again)
{
	static const char *const names[] = { "a", "b", "ema.a", "x" };
	static const uint32_t numbers[] = { 2, 0, 3, 1 };
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(rename_stored("s/^model\\.//", &t, &e), 0);
	ck_assert_uint_eq(t.n, ARRAY_LEN(names));
	for (size_t i = 0; i < t.n; i++) {
		ck_assert_uint_eq(t.v[i].index, numbers[i]);
		ck_assert_uint_eq(t.v[i].len, strlen(names[i]));
		ck_assert_mem_eq(t.v[i].fqn, names[i], t.v[i].len);
	}
	namelist_release(&t);
}
END_TEST

START_TEST(names_that_become_one_are_refused)
{
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(rename_stored("s/^[a-z]+\\.//", &t, &e), -EEXIST);
	ck_assert_ptr_nonnull(strstr(e.msg, "'model.a'"));
	ck_assert_ptr_nonnull(strstr(e.msg, "'ema.a'"));
	ck_assert_ptr_nonnull(strstr(e.msg, "would both be called 'a'"));
	namelist_release(&t);
	ck_assert_int_eq(rename_stored("s/x/y/\ns/.*\\.a//", &t, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'rules' line 2: 'model.a' becomes nothing");
	namelist_release(&t);
}
END_TEST

START_TEST(no_memory_is_an_error)
{
	int64_t before;

	/* glibc keeps what it allocates for the first expression. */
	rename_free(parse("s/[a-z](b|c)*/\\1/I"));
	before = fault_live();
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct namelist t = { 0 };
		struct ckpt_err e = { 0 };
		int rc = rename_stored("s/^model\\./m./\ns/(e)(ma)/\\2&\\1/\ns/x/xxxxxxxx/g\n", &t,
				       &e);

		namelist_release(&t);
		fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		ck_assert_int_eq(fault_live(), before);
	}
}
END_TEST

/* ---- sed as the judge ---- */

static const char *pick(struct rng *r, const char *const *from, size_t n)
{
	return from[rng_below(r, n)];
}

/* A rule that means the same to sed and to us, and whose replacement is not empty. */
static void random_rule(struct rng *r, struct buf *out)
{
	static const char *const atoms[] = { "a",     "b",   "\\.", ".",   "[ab]",
					     "[^a.]", "a*",  "b+",  "a?",  "[0-9]{1,2}",
					     "\\b",   "\\B", "\\<", "\\w", "[[:alpha:]_]",
					     "[]x/]", "\\/", "0",   "x|",  "a{2}",
					     "\\>",   "$",   "\xc3" };
	static const char *const groups[] = { "(a|b)", "(b*)", "(a|ab)(c|bcd)?", "(.*)", "(^|b)" };
	static const char *const to[] = { "X", "&", "\\&", "x.y", "\\/", "", "0" };
	static const char *const flags[] = { "", "g", "I", "gI" };
	bool group = rng_chance(r, 60);
	uint64_t n = 1 + rng_below(r, 3);

	buf_str(out, rng_chance(r, 20) ? "s/^" : "s/");
	if (group)
		buf_str(out, pick(r, groups, ARRAY_LEN(groups)));
	while (n--)
		buf_str(out, pick(r, atoms, ARRAY_LEN(atoms)));
	buf_str(out, "/_");
	for (n = rng_below(r, 3); n; n--)
		buf_str(out, pick(r, to, ARRAY_LEN(to)));
	buf_printf(out, "%s/%s\n", group ? "\\1" : "", pick(r, flags, ARRAY_LEN(flags)));
}

static void random_names(struct rng *r, struct buf *out)
{
	static const char letters[] = "aaabbbABcdx.._/012\xc3\xa9 ";

	for (int i = 0; i < 300; i++) {
		for (uint64_t n = rng_below(r, 16); n; n--)
			buf_add(out, &letters[rng_below(r, sizeof(letters) - 1)], 1);
		buf_str(out, "\n");
	}
}

static void write_file(const char *path, const struct buf *b)
{
	FILE *f = fopen(path, "w");

	REQUIRE(f && fwrite(b->data, 1, b->len, f) == b->len && !fclose(f));
}

/* Renames every line of `in`. */
static void rename_lines(const char *rules, const struct buf *in, struct buf *out)
{
	struct rename *r = parse(rules);
	struct ckpt_err e = { 0 };

	for (const char *s = in->data; *s; s = strchr(s, '\n') + 1) {
		ck_assert_msg(!rename_apply(r, s, strcspn(s, "\n"), out, &e), "%s", e.msg);
		buf_str(out, "\n");
	}
	rename_free(r);
}

START_TEST(sed_renames_alike)
{
	struct rng r = rng_new();
	const char *dir = getenv("TMPDIR");
	char command[4000], rules_file[1000], names_file[1000];

	(void)snprintf(rules_file, sizeof(rules_file), "%s/rules", dir);
	(void)snprintf(names_file, sizeof(names_file), "%s/names", dir);
	(void)snprintf(command, sizeof(command), "LC_ALL=C sed -E -f '%s' '%s'", rules_file,
		       names_file);
	for (int i = 0; i < (CHECK_FULL() ? 200 : 20); i++) {
		struct buf rules = BUF_INIT(10000), names = BUF_INIT(10000),
			   got = BUF_INIT(1 << 20);
		static char want[1 << 20];
		size_t n;
		FILE *f;

		for (uint64_t k = 1 + rng_below(&r, 2); k; k--)
			random_rule(&r, &rules);
		random_names(&r, &names);
		write_file(rules_file, &rules);
		write_file(names_file, &names);
		rename_lines(rules.data, &names, &got);
		f = popen(command, "r");
		REQUIRE(f);
		n = fread(want, 1, sizeof(want), f);
		REQUIRE(!pclose(f));
		ck_assert_msg(n == got.len && !memcmp(want, got.data, n), "rules:\n%s", rules.data);
		buf_release(&rules);
		buf_release(&names);
		buf_release(&got);
	}
}
END_TEST

/* ---- where a match begins ---- */

/* Does the expression have an anchor? glibc's regcomp takes minutes for some repetitions of groups
 * that do. */
static bool has_place(const char *re, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strchr("^$", re[i]) || (re[i] == '\\' && strchr("bB<>`'", re[i + 1])))
			return true;
	return false;
}

static size_t random_regex(struct rng *r, unsigned depth, char *out, size_t cap)
{
	static const char *const atoms[] = { "a",	    "b",	"_",	".",   "[ab]",
					     "[^a]",	    "[a-c]",	"\\w",	"\\W", "\\s",
					     "\\b",	    "\\B",	"\\<",	"\\>", "^",
					     "$",	    "\\.",	"[]a]", "\\`", "\\'",
					     "[[:alpha:]]", "[b[.-.]]", "()" };
	static const char *const times[] = { "*",    "+",    "?",   "{2}", "{0,2}",
					     "{1,}", "{,1}", "{0}", "{1}" };
	size_t n = 0;

	for (uint64_t parts = 1 + rng_below(r, 4); parts && n + 40 < cap; parts--) {
		const char *atom = atoms[rng_below(r, ARRAY_LEN(atoms))];
		bool may_repeat = true;

		if (n && rng_chance(r, 15))
			n += (size_t)snprintf(out + n, cap - n, "|");
		if (depth && rng_chance(r, 30)) {
			size_t inner;

			out[n++] = '(';
			inner = random_regex(r, depth - 1, out + n, (cap - n) / 2);
			may_repeat = !has_place(out + n, inner);
			n += inner;
			out[n++] = ')';
		} else {
			n += (size_t)snprintf(out + n, cap - n, "%s", atom);
		}
		if (may_repeat && rng_chance(r, 40))
			n += (size_t)snprintf(out + n, cap - n, "%s",
					      times[rng_below(r, ARRAY_LEN(times))]);
	}
	out[n] = 0;
	return n;
}

/* Is there an anchor inside the expression? Then the start may be one before the match. */
static bool is_odd(const char *re)
{
	size_t n = 0;

	for (const char *p = re; *p; p++)
		n += (*p == '^' && p > re && p[-1] != '[') || (*p == '$' && p[1]) ||
		     (*p == '\\' && p[1] && strchr("bB<>`'", p[1]));
	return n;
}

/* All kinds of things that an automaton consists of. */
static const char *const parts[] = {
	"a|b|(c|d)", "(x+)*y?", "[a-f]{2,4}", "(ab){3}c{2,}", "\\w\\bz{0,2}", "(^q|r$)+",
};

/* The limit is reached in the middle of each of them. */
START_LOOP_TEST(an_expression_is_too_large_wherever_the_limit_is, ARRAY_LEN(parts))
{
	enum { MOST = 4 * RENAME_MAX_REGEX + 20, PLACES = 80 };
	static char text[MOST + 80];
	bool large = false;

	for (size_t i = 2 * (MOST - PLACES); i <= 2 * MOST; i++) {
		struct regex_start *x = NULL;
		struct ckpt_err e = { 0 };
		size_t n = i / 2;
		int rc;

		memset(text, 'a', n);
		(void)snprintf(text + n, sizeof(text) - n, "%s%s", i % 2 ? "()" : "", parts[_i]);
		rc = regex_start_new(text, false, &x, &e);
		REQUIRE(rc == (large || rc ? -EFBIG : 0));
		if (rc)
			ck_assert_str_eq(e.msg, "the expression is too large");
		REQUIRE(i > 2 * (MOST - PLACES) || !rc);
		large = rc;
		regex_start_free(x);
	}
	ck_assert(large);
}
END_TEST

START_LOOP_TEST(an_expression_without_memory_says_so, ARRAY_LEN(parts))
{
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct regex_start *x = NULL;
		struct ckpt_err e = { 0 };
		int rc = regex_start_new(parts[_i], true, &x, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		regex_start_free(x);
	}
}
END_TEST

START_TEST(a_match_begins_where_regexec_says)
{
	struct rng r = rng_new();
	const int rounds = CHECK_FULL() ? 10000 : 1500;
	unsigned some[2] = { 0, 0 };

	for (int round = 0; round < rounds; round++) {
		int cflags = REG_EXTENDED | (rng_chance(&r, 20) ? REG_ICASE : 0);
		char text[400], name[24];
		struct regex_start *x = NULL;
		struct ckpt_err e = { 0 };
		regex_t re;

		(void)random_regex(&r, 3, text, sizeof(text));
		if (regcomp(&re, text, cflags))
			continue;
		ck_assert_msg(!regex_start_new(text, cflags & REG_ICASE, &x, &e), "%s: %s", text,
			      e.msg);
		for (int k = 0; k < 8; k++) {
			size_t len = rng_below(&r, sizeof(name)), from = rng_below(&r, len + 1), at;
			uint64_t steps = 1 << 20;
			regmatch_t m = { (regoff_t)from, (regoff_t)len };
			size_t want = SIZE_MAX;

			for (size_t i = 0; i < len; i++)
				name[i] = "aabbcA_.- \n\0"[rng_below(&r, 12)];
			if (!regexec(&re, name, 1, &m, REG_STARTEND | (from ? REG_NOTBOL : 0)))
				want = (size_t)m.rm_so;
			at = regex_start_find(x, name, from, len, &steps);
			if (at != want && !(is_odd(text) && (at < want)))
				ck_abort_msg("'%s' in '%.*s' from %zu: %zd, not %zd", text,
					     (int)len, name, from, (ssize_t)at, (ssize_t)want);
			some[at == SIZE_MAX]++;
		}
		regfree(&re);
		regex_start_free(x);
	}
	ck_assert_int_gt((int)some[0], rounds / 4);
	ck_assert_int_gt((int)some[1], rounds / 4);
}
END_TEST

/* ---- what it may cost ---- */

static const struct {
	const char *rule;
	size_t rules, names, len;
	bool fits;
	bool slow; /* half a second, or seconds */
} costs[] = {
	/* these took half a minute a name while all starts were tried one by one */
	{ "s/(.*)(.*)(.*)(.*)z/x/\n", 1, 5, 60000, true, false },
	{ "s/[^z]*[^z]*[^z]*z/x/g\n", 1, 5, 60000, true, false },
	{ "s/z*aa*b/x/g\n", 1, 5, 60000, true, false },
	{ "s/((a|b)*a){30}z/x/\n", 1, 5, 60000, true, true },
	{ "s/(.*)(.*)(.*)(.*)a/&/\n", 1, 5, 60000, true, false },
	{ "s/a.*z|b/x/g\n", 2000, 42, 60, true, true },
	{ "s/a.*z|b/x/g\n", 20000, 42, 60, true, true },
	{ "s/(a?){120}/&/g\n", 20, 20, 60000, false, true },
	{ "s/(a|b)*c|(a?){120}$/&/\n", 20, 20, 60000, false, true },
};

START_FEW_TEST(rules_times_names_have_a_bound, ARRAY_LEN(costs), 2)
{
	struct buf text = BUF_INIT(1 << 20), out = BUF_INIT(RENAME_MAX_NAME);
	struct ckpt_err e = { 0 };
	char *name;
	struct rename *r = NULL;
	int rc = 0;

	if (costs[_i].slow && !CHECK_FULL())
		return;
	name = malloc(costs[_i].len);
	REQUIRE(name);
	memset(name, 'a', costs[_i].len);
	for (size_t i = 0; i < costs[_i].rules; i++)
		buf_str(&text, costs[_i].rule);
	ck_assert_msg(!rename_parse(text.data, text.len, "F", &r, &e), "%s", e.msg);
	for (size_t i = 0; i < costs[_i].names && !rc; i++) {
		out.len = 0;
		rc = rename_apply(r, name, costs[_i].len, &out, &e);
	}
	if (costs[_i].fits) {
		ck_assert_msg(!rc, "%s", e.msg);
	} else {
		ck_assert_int_eq(rc, -EFBIG);
		ck_assert_ptr_nonnull(strstr(e.msg,
					     "renaming all names by all rules takes more than "
					     "8589934592 steps: use fewer or simpler rules"));
	}
	rename_free(r);
	buf_release(&text);
	buf_release(&out);
	free(name);
}
END_TEST

START_LONG_TEST(expressions_have_a_bound_together)
{
	struct buf text = BUF_INIT(8 << 20);
	char rule[500];
	struct rename *r = NULL;
	struct ckpt_err e = { 0 };

	memset(rule, 'a', sizeof(rule));
	memcpy(rule, "s/", 2);
	memcpy(rule + sizeof(rule) - 4, "/x/\n", 4);
	for (size_t i = 0; i < 1200; i++)
		buf_add(&text, rule, sizeof(rule));
	ck_assert_int_eq(rename_parse(text.data, text.len, "F", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg,
			 "'F' line 1062: the expressions of all rules together are too large");
	buf_release(&text);
}
END_TEST

SUITE(rename, .seconds = 240)
