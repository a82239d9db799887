/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts members out of a text; jansson does the same, and the results are compared. */
#include "base/json_without.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/json.h"
#include "rng.h"
#include "suites.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *text, *want;
} samples[] = {
	{ "{}", "{}" },
	{ "7", "7" },
	{ "{\"k\":1}", "{}" },
	{ "{\"k\":1,\"a\":2}", "{\"a\":2}" },
	{ "{\"a\":2,\"k\":1}", "{\"a\":2}" },
	{ "{\"a\":2,\"k\":1,\"b\":3}", "{\"a\":2,\"b\":3}" },
	{ "{\"a\":\"k\",\"b\":[\"k\"]}", "{\"a\":\"k\",\"b\":[\"k\"]}" },
	{ "{\"k\":{\"k\":\"}\",\"x\":[\"]\",\"\\\"\"]}, \"a\":1}", "{ \"a\":1}" },
	{ "{\"kk\":1,\"\\k\":2}", "{\"kk\":1,\"\\k\":2}" },
	{ "{\"a\":{\"k\":1},\"b\":[{\"k\":2},{\"c\":0,\"k\":\"\\\\\"}]}",
	  "{\"a\":{},\"b\":[{},{\"c\":0}]}" },
	{ "{\n  \"a\": 1,\n  \"k\" : {\n    \"x\": 2\n  }\n}\n", "{\n  \"a\": 1\n}\n" },
	{ "{\n  \"k\": 1\n}", "{\n}" },
};

START_LOOP_TEST(the_rest_stays_byte_for_byte, ARRAY_LEN(samples))
{
	char *text = strdup(samples[_i].text);

	REQUIRE(text);
	ck_assert_uint_eq(json_without(text, strlen(text), "k"), strlen(samples[_i].want));
	ck_assert_str_eq(text, samples[_i].want);
	free(text);
}
END_TEST

static void blank(struct rng *r, struct buf *b)
{
	buf_printf(b, "%.*s", (int)rng_below(r, 3),
		   (const char *[]){ "  ", "\n\t", "\r\n" }[rng_below(r, 3)]);
}

/* Keys are unique, as jdoc_parse demands; one in three objects has the key. */
static void put_value(struct rng *r, struct buf *b, unsigned depth)
{
	static const char *const scalars[] = { "1",	   "-2.5e3", "true",
					       "null",	   "\"k\"",  "\"\\\"k\\\":[{\"",
					       "\"\\\\\"", "[]",     "{}" };
	uint64_t n = rng_below(r, 5), key = rng_below(r, 3 * (n + 1));
	bool object = rng_chance(r, 60);

	if (!depth || rng_chance(r, 30)) {
		buf_str(b, scalars[rng_below(r, ARRAY_LEN(scalars))]);
		return;
	}
	buf_str(b, object ? "{" : "[");
	for (uint64_t i = 0; i < n; i++) {
		buf_str(b, i ? "," : "");
		blank(r, b);
		if (object) {
			if (i == key)
				buf_str(b, "\"k\"");
			else
				buf_printf(b, "\"%c%s\"", (int)('a' + i),
					   rng_chance(r, 20) ? "\\\"k" : "");
			blank(r, b);
			buf_str(b, ":");
			blank(r, b);
		}
		put_value(r, b, depth - 1);
		blank(r, b);
	}
	buf_str(b, object ? "}" : "]");
}

static void cut(json_t *v)
{
	const char *key;
	json_t *child;
	size_t i;

	(void)json_object_del(v, "k");
	json_object_foreach (v, key, child)
		cut(child);
	json_array_foreach(v, i, child) cut(child);
}

START_TEST(any_text_has_no_such_member_after_it)
{
	struct rng r = rng_new();
	unsigned with = 0;

	for (unsigned i = 0; i < rng_rounds(20000, 3000); i++) {
		struct buf b = BUF_INIT(1 << 20);
		json_t *want, *have;
		size_t n;

		put_value(&r, &b, 6);
		buf_add(&b, "", 1);
		REQUIRE(!b.err);
		want = json_loads((char *)b.data, JSON_DECODE_ANY, NULL);
		REQUIRE(want);
		with += strstr((char *)b.data, "\"k\"") != NULL;
		cut(want);
		n = json_without((char *)b.data, b.len - 1, "k");
		REQUIRE(n == strlen((char *)b.data));
		have = json_loads((char *)b.data, JSON_DECODE_ANY, NULL);
		ck_assert_msg(have && json_equal(have, want), "%s", (char *)b.data);
		json_decref(have);
		json_decref(want);
		buf_release(&b);
	}
	ck_assert_uint_gt(with, 100);
}
END_TEST

SUITE(json_without, .seconds = 30)
