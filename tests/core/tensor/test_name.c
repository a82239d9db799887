/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/text.h"
#include "rng.h"
#include "suites.h"
#include "tensor/name.h"

#include <stdlib.h>
#include <string.h>

static const struct {
	const char *fqn;
	size_t n;
	const char *name;
} rows[] = {
	{ "model.layers.0.w", 16, "model.layers.0.w" },
	{ "", 0, "%" },
	{ ".", 1, "%2E" },
	{ "..", 2, "%2E%2E" },
	{ "...", 3, "..." },
	{ ".a", 2, ".a" },
	{ "%", 1, "%25" },
	{ "%2E", 3, "%252E" },
	{ "a/b", 3, "a%2Fb" },
	{ "/", 1, "%2F" },
	{ "a\0b", 3, "a%00b" },
	{ "a\nb", 3, "a%0Ab" },
	{ "\x7f\x1f", 2, "%7F%1F" },
	{ "sp ace~\"'\\:", 11, "sp ace~\"'\\:" },
	{ "caf\xc3\xa9", 5, "caf\xc3\xa9" },
	{ "\xed\xb2\x80", 3, "\xed\xb2\x80" }, /* a lone surrogate */
	{ "\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80" },
	{ "\xff\x80", 2, "\xff\x80" },
};

START_LOOP_TEST(names_are_readable_and_canonical, ARRAY_LEN(rows))
{
	char name[NAME_CAP], back[NAME_CAP];
	bool cut = true;
	size_t n;

	ck_assert_uint_eq(name_encode(rows[_i].fqn, rows[_i].n, ".npy", name, &cut),
			  strlen(rows[_i].name) + 4);
	ck_assert(!cut);
	ck_assert_str_eq(name + strlen(rows[_i].name), ".npy");
	ck_assert_uint_eq(name_encode(rows[_i].fqn, rows[_i].n, "", name, NULL),
			  strlen(rows[_i].name));
	ck_assert_str_eq(name, rows[_i].name);
	ck_assert(name_decode(name, strlen(name), back, &n));
	ck_assert_uint_eq(n, rows[_i].n);
	ck_assert_mem_eq(back, rows[_i].fqn, n);
}
END_TEST

static const char *const no_names[] = {
	"%2", "a%", "a%2", "%zz", "%2e", "%~0123456789abcdef", "%%"
};

START_LOOP_TEST(what_is_no_name_is_not_decoded, ARRAY_LEN(no_names))
{
	char out[NAME_CAP];
	size_t n = 42;

	ck_assert(!name_decode(no_names[_i], strlen(no_names[_i]), out, &n));
	ck_assert_uint_eq(n, 42);
}
END_TEST

/* A file name of Linux: at most 255 bytes, no '/', no NUL, not "." or "..". */
static void check_file_name(const char *name, size_t len)
{
	REQUIRE(len && len <= 255 && strlen(name) == len && !strchr(name, '/'));
	REQUIRE(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
	for (size_t i = 0; i < len; i++)
		REQUIRE((unsigned char)name[i] >= 0x20 && name[i] != 0x7f);
}

static size_t random_fqn(struct rng *r, char *out, size_t cap)
{
	static const char *const pieces[] = { "a",
					      ".",
					      "..",
					      "/",
					      "%",
					      "%2F",
					      "~",
					      "\n",
					      "\x7f",
					      " ",
					      "layers.",
					      "\xc3\xa9",
					      "\xe2\x82\xac",
					      "\xf0\x9f\x98\x80",
					      "\xed\xa0\x80",
					      "\xff",
					      "\x80",
					      "%~",
					      "0123456789abcdef" };
	size_t want = rng_chance(r, 50) ? rng_below(r, 20) : 200 + rng_below(r, 120), n = 0;

	while (n < want) {
		uint64_t k = rng_below(r, ARRAY_LEN(pieces) + 1);
		const char *s = k < ARRAY_LEN(pieces) ? pieces[k] : "\0";
		size_t len = k < ARRAY_LEN(pieces) ? strlen(s) : 1;

		if (n + len > cap)
			break;
		memcpy(out + n, s, len);
		n += len;
	}
	return n;
}

START_TEST(any_string_comes_back_unless_it_was_cut)
{
	struct rng r = rng_new();
	unsigned cuts = 0, whole = 0;

	const unsigned n_names = rng_rounds(100000, 20000);

	for (unsigned i = 0; i < n_names; i++) {
		const char *suffix = i % 2 ? ".npy" : "";
		char fqn[400], name[NAME_CAP], back[NAME_CAP];
		size_t n = random_fqn(&r, fqn, sizeof(fqn)), len, m;
		bool cut;
		uint64_t hash = 0;

		len = name_encode(fqn, n, suffix, name, &cut);
		check_file_name(name, len);
		REQUIRE(name_fits(fqn, n, strlen(suffix)) == !cut);
		REQUIRE(!strcmp(name + len - strlen(suffix), suffix));
		len -= strlen(suffix);
		REQUIRE(name_is_cut(name, len, &hash) == cut);
		if (cut) {
			REQUIRE(hash == name_hash(fqn, n));
			REQUIRE(len + strlen(suffix) > 255 - 4); /* at most a character is lost */
			REQUIRE(!name_decode(name, len, back, &m));
			cuts++;
		} else {
			REQUIRE(name_decode(name, len, back, &m));
			REQUIRE(m == n && !memcmp(back, fqn, n));
			whole++;
		}
	}
	ck_assert_uint_gt(cuts, n_names / 10);
	ck_assert_uint_gt(whole, n_names / 10);
}
END_TEST

/* Characters of one, two, three and four bytes, and an escape of three, around 255 bytes. */
START_LOOP_TEST(long_names_are_cut_between_characters, 6)
{
	static const char *const chars[] = { "x", "\xc3\xa9",	 "\xe2\x82\xac", "\xf0\x9f\x98\x80",
					     "/", "\xed\xa0\x80" };
	const char *c = chars[_i];
	size_t width = *c == '/' ? 3 : strlen(c);

	for (size_t shift = 0; shift < 5; shift++) {
		for (size_t n = 40; n < 300; n++) {
			char fqn[1300] = "", name[NAME_CAP];
			size_t len = 0, total, bare;
			bool cut;

			for (; len < shift; len++)
				fqn[len] = 'a';
			for (size_t i = 0; i < n; i++, len += strlen(c))
				memcpy(fqn + len, c, strlen(c));
			total = name_encode(fqn, len, ".npy", name, &cut);
			REQUIRE(cut == (shift + n * width + 4 > 255));
			REQUIRE(name_fits(fqn, len, 4) == !cut);
			check_file_name(name, total);
			if (!cut)
				continue;
			bare = total - 4 - 18;
			REQUIRE((bare - shift) % width == 0);
			REQUIRE(bare + width + 18 + 4 > 255);
			if (*c != '/')
				REQUIRE(text_is_utf8(name, total) && !memcmp(name, fqn, bare));
		}
	}
}
END_TEST

START_TEST(two_names_are_never_the_same)
{
	static char fqns[3000][300], names[3000][NAME_CAP];
	static size_t lens[3000];
	struct rng r = rng_new();
	size_t n = 0;

	/* All strings of up to two of the bytes that matter, and long strings that differ in one
	 * byte. */
	static const char bytes[] = { 0,   '.', '/',  '%',  '2',	'E',	   'F',
				      '~', 'a', '\n', 0x7f, (char)0xc3, (char)0xa9 };

	lens[n++] = 0;
	for (size_t i = 0; i < sizeof(bytes); i++) {
		fqns[n][0] = bytes[i];
		lens[n++] = 1;
		for (size_t k = 0; k < sizeof(bytes); k++) {
			fqns[n][0] = bytes[i];
			fqns[n][1] = bytes[k];
			lens[n++] = 2;
		}
	}
	while (n < 1500) {
		memset(fqns[n], 'x', 300);
		lens[n] = 250 + rng_below(&r, 50);
		fqns[n][rng_below(&r, lens[n])] = (char)rng_below(&r, 256);
		n++;
	}
	for (size_t i = 0; i < n; i++)
		(void)name_encode(fqns[i], lens[i], "", names[i], NULL);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			REQUIRE(strcmp(names[i], names[k]) != 0 ||
				(lens[i] == lens[k] && !memcmp(fqns[i], fqns[k], lens[i])));
}
END_TEST

START_TEST(the_hash_is_fnv_1a)
{
	ck_assert_uint_eq(name_hash("", 0), 0xcbf29ce484222325u);
	ck_assert_uint_eq(name_hash("a", 1), 0xaf63dc4c8601ec8cu);
	ck_assert_uint_eq(name_hash("foobar", 6), 0x85944171f73967e8u);
}
END_TEST

START_TEST(only_a_mark_at_the_end_is_a_cut)
{
	uint64_t hash = 0;

	ck_assert(name_is_cut("abc%~0123456789abcdef", 21, &hash));
	ck_assert_uint_eq(hash, 0x0123456789abcdefu);
	ck_assert(!name_is_cut("abc%~0123456789ABCDEF", 21, &hash));
	ck_assert(!name_is_cut("abc%~0123456789abcde", 20, &hash));
	ck_assert(!name_is_cut("abc%~0123456789abcdefg", 22, &hash));
	ck_assert(!name_is_cut("", 0, &hash));
}
END_TEST

SUITE(name, .seconds = 30)
