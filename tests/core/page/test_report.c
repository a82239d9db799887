/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of report and of diff --report, as text: they show whatever is odd in a checkpoint, and
 * without memory there is an error. tests/fs/test_report.sh tests what a browser makes of them.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "data_util.h"
#include "dir_util.h"
#include "fault.h"
#include "opts_util.h"
#include "page/dict.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>
#include <ckptfs/ckpt_report.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TENSORS \
	"model.a.weight F32 4x3; model.b F16 7; c I64 3; d BOOL 5; e BF16 0x4; optim.exp_avg.a " \
	"F32 4x3; " \
	"<&>x F64 2; f F8_E4M3 4"

enum kind { ONE, FIXTURE, RUN, KINDS };

static char path[KINDS][4300];

static void setup(void)
{
	struct rng r = rng_new();
	char config[] = "{\"model_type\":\"llama\"}";

	dir_setup();
	fault_sqlite();
	(void)snprintf(path[ONE], sizeof(path[0]), "%s/one", dir);
	(void)snprintf(path[RUN], sizeof(path[0]), "%s/run", dir);
	(void)snprintf(path[FIXTURE], sizeof(path[0]), "%s/mp4_fsdp2_adamw/ckpt", data_dir());
	REQUIRE(!mkdirat(dir_fd, "one", 0700) && !mkdirat(dir_fd, "run", 0700));
	st_put(dir_fd, "one/model.safetensors", &r, TENSORS);
	put_file(dir_fd, "one/config.json", config, sizeof(config) - 1);
	for (unsigned i = 1; i < 4; i++) {
		char name[100];

		(void)snprintf(name, sizeof(name), "run/step-%u", i);
		REQUIRE(!mkdirat(dir_fd, name, 0700));
		(void)strcat(name, "/model.safetensors");
		/* The last checkpoint has a tensor that the others lack, and lacks one that they
		 * have. */
		st_put(dir_fd, name, &r, i < 3 ? "a F32 4x3; b F16 7" : "a F32 4x3; z F16 7");
	}
	REQUIRE(!mkdirat(dir_fd, "run/step-4", 0700));
	put_file(dir_fd, "run/step-4/__0_0.distcp", "", 0); /* without metadata */
}

static struct ckpt *open_kind(enum kind k)
{
	struct ckpt_opts o = { .index = ":memory:", .runs = true, .weights = k == ONE ? "" : NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	ck_assert_msg(!open_typed(path[k], &o, &c, &e), "%s: %s", path[k], e.msg);
	return c;
}

static void count(void *arg, uint64_t done, uint64_t total)
{
	REQUIRE(done <= total);
	++*(unsigned *)arg;
}

/* Sections that a page has, of the page's own data; see core/page/page.h. */
static void must_be_whole(const char *page, size_t len, bool values)
{
	ck_assert_ptr_null(memchr(page, 0, len));
	ck_assert_ptr_nonnull(strstr(page, "<!"));
	ck_assert_ptr_nonnull(strstr(page, "</html>"));
	ck_assert_int_eq(strstr(page, "data-values") != NULL, values);
}

static const struct {
	enum kind kind;
	bool stat, nameless; /* no path, no program */
} rows[] = {
	{ ONE, false, false },	   { ONE, true, false },     { ONE, true, true },
	{ FIXTURE, false, false }, { FIXTURE, true, false }, { RUN, false, false },
	{ RUN, true, false },
};

START_LOOP_TEST(a_page_is_whole, ARRAY_LEN(rows))
{
	struct ckpt *c = open_kind(rows[_i].kind);
	unsigned calls = 0;
	struct ckpt_report r = { .path = rows[_i].nameless ? NULL : "a",
				 .program = rows[_i].nameless ? NULL : "p",
				 .stat = rows[_i].stat,
				 .jobs = 1,
				 .progress = rows[_i].nameless ? NULL : count,
				 .arg = &calls };
	struct ckpt_err e = { 0 };
	char *page = NULL;
	size_t len = 0;
	int rc = ckpt_report(c, &r, &page, &len, &e);

	if (rows[_i].nameless) {
		ck_assert_int_eq(rc, -EINVAL);
	} else {
		ck_assert_msg(!rc, "%s", e.msg);
		must_be_whole(page, len, rows[_i].stat);
		ck_assert_int_eq(calls > 0, rows[_i].stat);
	}
	free(page);
	ckpt_close(c);
}
END_TEST

/* A run's checkpoints are opened for each page, so failing every call would take too long. The step
 * from one failing call to the next; 0: as fault_some() chooses. */
static uint64_t stride;

static uint64_t next_call(uint64_t n)
{
	return stride ? n + stride : fault_some(n);
}

START_LOOP_TEST(a_page_without_memory_is_an_error, ARRAY_LEN(rows))
{
	struct ckpt *c;
	struct ckpt_report r = { .path = "a", .stat = rows[_i].stat, .jobs = 1 };

	if (rows[_i].kind == RUN)
		stride = rows[_i].stat ? 97 : 23;
	c = open_kind(rows[_i].kind);
	FAULT_LOOP_BY(next_call, FAULT_ALLOC, 1)
	{
		struct ckpt_err e = { 0 };
		char *page = NULL;
		size_t len = 0;
		int rc = ckpt_report(c, &r, &page, &len, &e);

		(void)fault_off();
		ck_assert_msg(e.code == -rc && (!rc || fault_hit()), "%d: %s", rc, e.msg);
		if (!rc)
			must_be_whole(page, len, rows[_i].stat);
		free(page);
	}
	ckpt_close(c);
}
END_TEST

static int each(void *arg, const struct ckpt_diff_item *i)
{
	(void)i;
	++*(unsigned *)arg;
	return 0;
}

START_LOOP_TEST(a_comparison_is_whole, 2)
{
	static const char *const globs[] = { "model.*", NULL };
	struct ckpt *a = open_kind(ONE), *b = open_kind(_i ? FIXTURE : ONE);
	unsigned calls = 0;
	struct ckpt_diff_report r = { .path_a = "A<",
				      .path_b = "B>",
				      .globs = _i ? NULL : globs,
				      .jobs = 1,
				      .each = each,
				      .arg = &calls };
	struct ckpt_err e = { 0 };
	char *page = NULL;
	size_t len = 0;

	ck_assert_msg(!ckpt_diff_report(a, b, &r, &page, &len, &e), "%s", e.msg);
	must_be_whole(page, len, false);
	if (!_i) {
		ck_assert_uint_eq(r.names, 2);
		ck_assert_uint_eq(r.counts[CKPT_DIFF_EQUAL], 2);
		ck_assert_uint_eq(calls, 2);
	} else {
		ck_assert_uint_eq(r.counts[CKPT_DIFF_ONLY_A], 8);
		ck_assert_uint_eq(calls, r.names);
	}
	free(page);
	page = NULL;
	r.path_b = NULL;
	ck_assert_int_eq(ckpt_diff_report(a, b, &r, &page, &len, &e), -EINVAL);
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

START_LOOP_TEST(a_comparison_without_memory_is_an_error, 2)
{
	struct ckpt *a = open_kind(ONE), *b = open_kind(_i ? FIXTURE : ONE);

	FAULT_LOOP_SOME(FAULT_ALLOC | FAULT_READ, 1)
	{
		struct ckpt_diff_report r = { .path_a = "a", .path_b = "b", .jobs = 1 };
		struct ckpt_err e = { 0 };
		char *page = NULL;
		size_t len = 0;
		int rc = ckpt_diff_report(a, b, &r, &page, &len, &e);

		(void)fault_off();
		ck_assert_msg(e.code == -rc && (!rc || fault_hit()), "%d: %s", rc, e.msg);
		if (!rc)
			must_be_whole(page, len, false);
		free(page);
	}
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

/* Each string gets a number of its own; without memory there is no number. */
START_TEST(a_dictionary_numbers_strings)
{
	enum { MANY = 5000 };
	struct dict d = DICT_INIT((size_t)1 << 20);
	char text[20];

	for (unsigned i = 0; i < 2 * MANY; i++) {
		size_t len;

		(void)snprintf(text, sizeof(text), "s%u", i % MANY);
		REQUIRE(dict_number(&d, text, strlen(text)) == i % MANY);
		REQUIRE(!memcmp(dict_string(&d, i % MANY, &len), text, strlen(text)) &&
			len == strlen(text));
	}
	ck_assert_uint_eq(d.n, MANY);
	dict_release(&d);
	FAULT_LOOP(FAULT_ALLOC)
	{
		int64_t n = 0;

		d = (struct dict)DICT_INIT((size_t)1 << 20);
		for (unsigned i = 0; i < MANY && n >= 0; i++) {
			(void)snprintf(text, sizeof(text), "s%u", i);
			n = dict_number(&d, text, strlen(text));
		}
		(void)fault_off();
		ck_assert_int_eq(n, fault_hit() ? -ENOMEM : MANY - 1);
		dict_release(&d);
	}
}
END_TEST

SUITE(report, .setup = setup, .teardown = dir_teardown, .seconds = 60)
