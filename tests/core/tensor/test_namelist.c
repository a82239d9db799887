/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"
#include "tensor/namelist.h"

#include <stdlib.h>
#include <string.h>

#define LONG250 \
	"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234" \
	"5678901234567890123456789012345678901234567890123456789012345678901234567890123456789" \
	"01234567890123456789012345678901234567890123456789012345678901234567890123456789"

/* The names in the checkpoint: NULL-terminated strings. */
static void stored(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	*ret = ((const char *const *)arg)[index];
	*ret_len = strlen(*ret);
}

static void add(struct namelist *t, const char *s, uint32_t index)
{
	struct ckpt_err e = { 0 };

	REQUIRE(!namelist_add(t, s, strlen(s), index, &e));
}

START_TEST(names_come_in_natural_order_with_their_numbers)
{
	static const char *const in[] = { "layers.10", "b", "layers.2", "", "a/b", "layers.1" };
	static const uint32_t want[] = { 3, 4, 1, 5, 2, 0 };
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	for (uint32_t i = 0; i < ARRAY_LEN(in); i++)
		add(&t, in[i], i);
	ck_assert_int_eq(namelist_finish(&t, stored, in, &e), 0);
	ck_assert_uint_eq(t.n, ARRAY_LEN(in));
	for (size_t i = 0; i < t.n; i++) {
		ck_assert_uint_eq(t.v[i].index, want[i]);
		ck_assert_str_eq(t.v[i].fqn, in[want[i]]);
		ck_assert_int_eq(namelist_find(&t, t.v[i].fqn, t.v[i].len), (int64_t)i);
	}
	ck_assert_int_eq(namelist_find(&t, "layers.3", 8), -1);
	ck_assert_int_eq(namelist_find(&t, "layers.2", 7), -1);
	namelist_release(&t);
	ck_assert_ptr_null(t.v);
}
END_TEST

START_TEST(an_empty_list_finds_nothing)
{
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(namelist_finish(&t, stored, NULL, &e), 0);
	ck_assert_int_eq(namelist_find(&t, "", 0), -1);
	ck_assert_int_eq(namelist_lookup(&t, "%", ""), -1);
	ck_assert_int_eq(namelist_lookup(&t, "x%~0123456789abcdef", ""), -1);
	namelist_release(&t);
}
END_TEST

START_TEST(two_of_one_name_are_refused_with_what_is_stored)
{
	static const char *const in[] = { "model.w", "b", "ema.w" };
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	add(&t, "w", 0);
	add(&t, "b", 1);
	add(&t, "w", 2);
	ck_assert_int_eq(namelist_finish(&t, stored, in, &e), -EEXIST);
	ck_assert_int_eq(e.code, EEXIST);
	ck_assert(!strcmp(e.msg, "'model.w' and 'ema.w' would both be called 'w'") ||
		  !strcmp(e.msg, "'ema.w' and 'model.w' would both be called 'w'"));
	namelist_release(&t);
}
END_TEST

/* FNV-1a does not resist deliberate collisions. These pairs are well known. */
START_LOOP_TEST(long_names_with_one_hash_are_refused, 3)
{
	static const char *const pairs[][2] = {
		{ "8yn0iYCKYHlIj4-BwPqk" LONG250, "GReLUrM4wMqfg9yzV3KQ" LONG250 },
		{ "7mohtcOFVz" LONG250, "c1E51sSEyx" LONG250 },
		{ "7mohtcOFVz", "c1E51sSEyx" }, /* short ones have names of their own */
	};
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };
	int rc;

	add(&t, pairs[_i][0], 0);
	add(&t, LONG250 "another long one", 2);
	add(&t, pairs[_i][1], 1);
	rc = namelist_finish(&t, stored, pairs[_i], &e);
	ck_assert_int_eq(rc, _i == 2 ? 0 : -ENOTSUP);
	if (rc) {
		ck_assert_ptr_eq(strstr(e.msg, "two FQNs have the same file name: '"), e.msg);
		ck_assert_ptr_nonnull(strstr(e.msg, _i ? "7mohtcOFVz" : "8yn0iYCKYHlIj4-BwPqk"));
		ck_assert_ptr_nonnull(strstr(e.msg, _i ? "c1E51sSEyx" : "GReLUrM4wMqfg9yzV3KQ"));
	}
	namelist_release(&t);
}
END_TEST

START_TEST(a_file_has_one_name)
{
	static const char *const in[] = { "A", "a/b", "", "%41" };
	static const struct {
		const char *file, *suffix, *fqn;
	} files[] = {
		{ "A.npy", ".npy", "A" },
		{ "A", "", "A" },
		{ "a%2Fb.npy", ".npy", "a/b" },
		{ "%.npy", ".npy", "" },
		{ "%2541", "", "%41" },
		{ "%41", "", NULL },
		{ "a%2fb", "", NULL },
		{ "a/b", "", NULL },
		{ "A", ".npy", NULL },
		{ "A.npy", "", NULL },
		{ "", "", NULL },
		{ ".npy", ".npy", NULL },
		{ LONG250 LONG250, "", NULL },
		{ "A%~0123456789abcdef", "", NULL },
	};
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	for (uint32_t i = 0; i < ARRAY_LEN(in); i++)
		add(&t, in[i], i);
	REQUIRE(!namelist_finish(&t, stored, in, &e));
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		int64_t pos = namelist_lookup(&t, files[i].file, files[i].suffix);

		if (files[i].fqn)
			ck_assert_str_eq(pos < 0 ? "nothing" : t.v[pos].fqn, files[i].fqn);
		else
			ck_assert_msg(pos == -1, "'%s'", files[i].file);
	}
	namelist_release(&t);
}
END_TEST

/* ---- any names ---- */

enum { RANDOM_NAMES = 2000, RANDOM_LEN = 400 };

static size_t random_fqn(struct rng *r, char *out)
{
	static const char bytes[] = { 'a', 'b', '.', '.', '0', '1',  '9',	 '/',
				      '%', '~', 0,   ' ', 'F', 0x7f, (char)0xc3, (char)0xa9 };
	size_t n = rng_chance(r, 50) ? rng_below(r, 12) : 60 + rng_below(r, RANDOM_LEN - 60);

	for (size_t i = 0; i < n; i++)
		out[i] = bytes[rng_below(r, n < 60 ? sizeof(bytes) : 7)];
	if (n > 60 && rng_chance(r, 50))
		out[rng_below(r, n)] = bytes[rng_below(r, sizeof(bytes))];
	return n;
}

static void fill(struct namelist *t, struct rng *r)
{
	char fqn[RANDOM_LEN];
	struct ckpt_err e = { 0 };

	for (uint32_t i = 0; i < RANDOM_NAMES; i++) {
		size_t n = random_fqn(r, fqn);
		const char *copy;
		bool there = false;

		for (size_t k = 0; k < t->n && !there; k++)
			there = t->v[k].len == n && !memcmp(t->v[k].fqn, fqn, n);
		if (there)
			continue;
		copy = namelist_copy(t, fqn, n);
		REQUIRE(copy && copy != fqn);
		REQUIRE(!namelist_add(t, copy, n, i, &e));
	}
}

START_TEST(every_file_name_leads_back)
{
	static const char *const suffixes[] = { "", ".npy", ".x" };
	struct rng r = rng_new();
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };
	size_t cuts = 0;

	fill(&t, &r);
	REQUIRE(!namelist_finish(&t, stored, NULL, &e));
	for (size_t i = 0; i < t.n; i++) {
		REQUIRE(!i || text_natural_cmp(t.v[i - 1].fqn, t.v[i - 1].len, t.v[i].fqn,
					       t.v[i].len) < 0);
		REQUIRE(namelist_find(&t, t.v[i].fqn, t.v[i].len) == (int64_t)i);
		for (size_t s = 0; s < ARRAY_LEN(suffixes); s++) {
			char file[NAME_CAP];
			uint64_t hash;
			size_t n = namelist_file(&t, i, suffixes[s], file);

			REQUIRE(n == strlen(file));
			REQUIRE(namelist_lookup(&t, file, suffixes[s]) == (int64_t)i);
			cuts += name_is_cut(file, n - strlen(suffixes[s]), &hash);
		}
	}
	ck_assert_uint_gt(cuts, 100);
	namelist_release(&t);
}
END_TEST

START_TEST(a_lookup_finds_what_comparing_every_name_finds)
{
	struct rng r = rng_new();
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };
	const int rounds = CHECK_FULL() ? 3000 : 100;
	size_t hits = 0;

	fill(&t, &r);
	REQUIRE(!namelist_finish(&t, stored, NULL, &e));
	for (int i = 0; i < rounds; i++) {
		const char *suffix = i % 2 ? ".npy" : "";
		char file[NAME_CAP], other[NAME_CAP];
		size_t n = namelist_file(&t, rng_below(&r, t.n), suffix, file);
		int64_t want = -1;

		if (rng_chance(&r, 80))
			file[rng_below(&r, n)] = "0a%F.~"[rng_below(&r, 6)];
		for (size_t k = 0; k < t.n && want < 0; k++) {
			(void)namelist_file(&t, k, suffix, other);
			if (!strcmp(file, other))
				want = (int64_t)k;
		}
		REQUIRE(namelist_lookup(&t, file, suffix) == want);
		hits += want >= 0;
	}
	ck_assert_uint_gt(hits, (size_t)rounds / 10);
	ck_assert_uint_lt(hits, (size_t)rounds * 9 / 10);
	namelist_release(&t);
}
END_TEST

START_TEST(copies_of_any_size_live_as_long_as_the_list)
{
	static char big[200000];
	const char *copies[64];
	struct namelist t = { 0 };

	memset(big, 'x', sizeof(big));
	for (size_t i = 0; i < ARRAY_LEN(copies); i++) {
		big[0] = (char)i;
		copies[i] = namelist_copy(&t, big, i % 3 ? 1 + i : sizeof(big) - i);
		ck_assert_ptr_nonnull(copies[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(copies); i++) {
		big[0] = (char)i;
		ck_assert(!memcmp(copies[i], big, i % 3 ? 1 + i : sizeof(big) - i));
		ck_assert_int_eq(copies[i][i % 3 ? 1 + i : sizeof(big) - i], 0);
	}
	ck_assert_ptr_nonnull(namelist_copy(&t, NULL, 0));
	namelist_release(&t);
}
END_TEST

START_TEST(a_name_too_long_for_its_number_is_refused)
{
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(namelist_add(&t, "", (size_t)UINT32_MAX + 1, 0, &e), -ENOTSUP);
	ck_assert_uint_eq(t.n, 0);
	namelist_release(&t);
}
END_TEST

START_TEST(no_memory_is_an_error)
{
	int64_t before = fault_live();

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct namelist t = { 0 };
		struct ckpt_err e = { 0 };
		int rc = 0;

		for (uint32_t i = 0; i < 100 && !rc; i++) {
			char s[400];
			const char *copy;

			memset(s, 'a' + (int)(i % 26), sizeof(s));
			copy = namelist_copy(&t, s, 1 + i * 3);
			rc = copy ? namelist_add(&t, copy, 1 + i * 3, i, &e)
				  : err_set(&e, ENOMEM, "no copy");
		}
		if (!rc)
			rc = namelist_finish(&t, stored, NULL, &e);
		namelist_release(&t);
		fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		ck_assert_int_eq(fault_live(), before);
	}
}
END_TEST

SUITE(namelist, .seconds = 60)
