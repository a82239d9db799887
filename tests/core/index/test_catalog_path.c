/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "index/catalog_path.h"
#include "path_util.h"
#include "rng.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>

enum { MAX_STEPS = 8, MAX_FQN = 200 };

/* A path before its steps were joined to a name. */
struct nested {
	struct {
		char text[24];
		bool is_position;
	} steps[MAX_STEPS];
	size_t n;
	char fqn[MAX_FQN];
	size_t fqn_len;
	uint8_t bytes[MAX_STEPS * CATALOG_PATH_NUMBER];
	size_t len;
};

/* Keys with dots in them, empty ones, ones that look like numbers. */
static void random_key(struct rng *r, char text[24])
{
	static const char letters[] = "ab.0.7";
	size_t n = rng_below(r, 6);

	for (size_t i = 0; i < n; i++)
		text[i] = letters[rng_below(r, sizeof(letters) - 1)];
	text[n] = 0;
}

static void random_nested(struct rng *r, struct nested *x)
{
	x->n = 1 + rng_below(r, MAX_STEPS);
	x->fqn_len = 0;
	for (size_t i = 0; i < x->n; i++) {
		uint64_t number = rng_u64(r) >> rng_below(r, 64);

		x->steps[i].is_position = rng_chance(r, 40);
		if (x->steps[i].is_position)
			(void)snprintf(x->steps[i].text, 24, "%llu", (unsigned long long)number);
		else
			random_key(r, x->steps[i].text);
		x->fqn_len += (size_t)snprintf(x->fqn + x->fqn_len, MAX_FQN - x->fqn_len, "%s%s",
					       i ? "." : "", x->steps[i].text);
	}
	REQUIRE(x->fqn_len < MAX_FQN);
	x->len = catalog_path_put_head(x->bytes, x->n, x->steps[x->n - 1].is_position);
	for (size_t i = 0; i + 1 < x->n; i++)
		x->len += catalog_path_put_step(x->bytes + x->len, strlen(x->steps[i].text),
						x->steps[i].is_position);
}

START_TEST(the_steps_that_went_in_come_out)
{
	struct rng r = rng_new();

	for (int round = 0; round < 20000; round++) {
		struct catalog_steps steps;
		struct catalog_step got;
		struct nested x;
		struct cursor d;

		random_nested(&r, &x);
		d = cursor_of(x.bytes, x.len);
		REQUIRE(catalog_path_read(&d, x.fqn, (uint32_t)x.fqn_len) == x.bytes);
		REQUIRE(!d.bad && d.p == d.end);
		REQUIRE(catalog_path_size(x.bytes) == x.len);
		REQUIRE(catalog_path_steps(x.bytes) == x.n);
		REQUIRE(catalog_path_top(x.bytes, (uint32_t)x.fqn_len) == strlen(x.steps[0].text));
		steps = catalog_path_begin(x.bytes, x.fqn, (uint32_t)x.fqn_len);
		for (size_t i = 0; i < x.n; i++) {
			char number[24];

			REQUIRE(catalog_path_next(&steps, &got));
			REQUIRE(got.len == strlen(x.steps[i].text));
			REQUIRE(!memcmp(got.text, x.steps[i].text, got.len));
			REQUIRE(got.is_position == x.steps[i].is_position);
			(void)snprintf(number, sizeof(number), "%llu",
				       (unsigned long long)got.position);
			REQUIRE(!got.is_position || !strcmp(number, x.steps[i].text));
		}
		REQUIRE(!catalog_path_next(&steps, &got));
	}
}
END_TEST

/* Any path that is accepted gives the name again when it is joined. */
START_TEST(bytes_that_are_no_path_of_the_name_are_refused)
{
	struct rng r = rng_new();
	unsigned read = 0;

	for (int round = 0; round < 50000; round++) {
		struct catalog_steps steps;
		struct catalog_step got;
		size_t at = 0;
		struct nested x;
		struct cursor d;
		const uint8_t *path;

		random_nested(&r, &x);
		for (uint64_t n = 1 + rng_below(&r, 3); n; n--)
			x.bytes[rng_below(&r, x.len)] = (uint8_t)(rng_u64(&r) & 0x9f);
		d = cursor_of(x.bytes, x.len);
		path = catalog_path_read(&d, x.fqn, (uint32_t)x.fqn_len);
		if (d.bad || !catalog_path_steps(path))
			continue;
		read++;
		steps = catalog_path_begin(path, x.fqn, (uint32_t)x.fqn_len);
		for (uint32_t i = 0; catalog_path_next(&steps, &got); i++) {
			REQUIRE(!i || x.fqn[at++] == '.');
			REQUIRE(got.text == x.fqn + at);
			at += got.len;
		}
		REQUIRE(at == x.fqn_len);
	}
	REQUIRE(read > 100);
}
END_TEST

static const struct {
	const char *text;
	bool is;
} positions[] = {
	{ "0", true },	  { "7", true },	 { "18446744073709551615", true },
	{ "", false },	  { "07", false },	 { "18446744073709551616", false },
	{ "-1", false },  { "+1", false },	 { "1 ", false },
	{ "1.0", false }, { "\xd9\xa1", false }, { "99999999999999999999", false },
};

START_LOOP_TEST(a_position_is_written_in_one_way, sizeof(positions) / sizeof(*positions))
{
	uint64_t v;

	ck_assert(catalog_path_position(positions[_i].text, strlen(positions[_i].text), &v) ==
		  positions[_i].is);
}
END_TEST

START_TEST(the_last_step_can_be_made_a_key)
{
	uint8_t path[] = { 5, 2 }; /* a|#0 */
	struct buf b = BUF_INIT(100);

	show_path(&b, path, "a.0", 3);
	catalog_path_end_in_key(path);
	buf_str(&b, " ");
	show_path(&b, path, "a.0@rank1", 9);
	ck_assert_str_eq(b.data, "a|#0 a|0@rank1");
	buf_release(&b);
}
END_TEST

SUITE(catalog_path)
