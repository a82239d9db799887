/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/nearest.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>

/* Which names are near, as their numbers, nearest first: "2 0 ". */
static void expect(const char *want, const char *const *names, size_t n, const char *ids)
{
	struct nearest near = NEAREST_INIT(want, strlen(want));
	char got[64] = "";

	for (size_t i = 0; i < n; i++)
		nearest_try(&near, names[i], strlen(names[i]), i);
	for (size_t i = 0; i < near.n; i++)
		(void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%d ",
			       (int)near.best[i].id);
	ck_assert_msg(!strcmp(got, ids), "'%s': %sinstead of %s", want, got, ids);
}

START_TEST(ends_come_first_then_few_changes_then_what_contains_it)
{
	static const char *const names[] = { "optim.exp_avg",	       "model.layers.0.weight",
					     "model.layers.0.weights", "Model.Layers.0.Weight",
					     "layers.0.weight",	       "nothing.of.the.kind" };

	expect("model.layers.0.wieght", names, ARRAY_LEN(names), "1 3 2 ");
	expect("0.weight", names, ARRAY_LEN(names), "1 4 2 ");
	expect("x.layers.0.weight", names, ARRAY_LEN(names), "4 ");
	expect("exp_avg", names, ARRAY_LEN(names), "0 ");
	expect("weight", names, ARRAY_LEN(names), "1 4 2 ");
	expect("EXP", names, ARRAY_LEN(names), "");
	expect("exp", names, ARRAY_LEN(names), "0 ");
}
END_TEST

START_TEST(a_short_name_is_like_no_other)
{
	static const char *const names[] = { "v", "w", "", "step", "xx" };

	expect("x", names, ARRAY_LEN(names), "");
	expect("", names, ARRAY_LEN(names), "");
	expect("stop", names, ARRAY_LEN(names), "3 ");
	expect("shop", names, ARRAY_LEN(names), "");
}
END_TEST

/* A name in which one byte was changed, added or removed is always found. */
START_TEST(every_change_of_a_byte_is_near)
{
	static const char name[] = "model.layers.10.self_attn.q_proj.weight";
	const char *const names[] = { "lm_head.weight", name };
	char s[64];

	for (size_t i = 0; i < sizeof(name) - 1; i++) {
		memcpy(s, name, sizeof(name)); /* changed */
		s[i] = '#';
		expect(s, names, 2, "1 ");
		memmove(s + i, s + i + 1, sizeof(name) - i - 1); /* taken out */
		expect(s, names, 2, "1 ");
		memcpy(s, name, i); /* put in */
		s[i] = '#';
		memcpy(s + i + 1, name + i, sizeof(name) - i);
		expect(s, names, 2, "1 ");
	}
}
END_TEST

/* What fingers do most often, in names that are too short for two changes. */
START_TEST(neighbours_that_changed_places_are_one_change)
{
	static const char *const names[] = { "mount", "dtype", "json", "ls" };
	static const char name[] = "model.layers.10.w";
	const char *const near[] = { name };
	char s[64];

	expect("moutn", names, ARRAY_LEN(names), "0 ");
	expect("omunt", names, ARRAY_LEN(names), "0 ");
	expect("dytpe", names, ARRAY_LEN(names), "1 ");
	expect("JSNO", names, ARRAY_LEN(names), "2 ");
	expect("sl", names, ARRAY_LEN(names), "");
	expect("tmoun", names, ARRAY_LEN(names), ""); /* not a neighbour */
	/* Four of these are the most that a name of this length may differ in. */
	for (size_t i = 0; i + 8 < sizeof(name); i++) {
		memcpy(s, name, sizeof(name));
		for (size_t k = 0; k < 8; k += 2) {
			s[i + k] = name[i + k + 1];
			s[i + k + 1] = name[i + k];
		}
		expect(s, near, 1, "0 ");
	}
}
END_TEST

/* Long names that differ everywhere, so many of them that comparing all would take minutes. */
START_LONG_TEST(the_work_is_bounded)
{
	static char want[200], other[200];
	struct nearest n = NEAREST_INIT(want, sizeof(want));

	for (size_t i = 0; i < sizeof(want); i++) {
		want[i] = "ab"[i % 2];
		other[i] = "ba"[i % 2];
	}
	for (uint64_t i = 0; i < 3000000; i++)
		nearest_try(&n, other, sizeof(other), i);
	ck_assert_uint_eq(n.steps, 0);
	nearest_try(&n, want, sizeof(want) - 1, 7); /* it is near, but comes too late */
	for (size_t i = 0; i < n.n; i++)
		ck_assert_uint_ne(n.best[i].id, 7);
}
END_TEST

SUITE(nearest, .seconds = 30)
