/* SPDX-License-Identifier: Apache-2.0 */
/* Which files hf/ shows beside the weights: where they are looked for, which are left out, and what
 * is said about those. */
#include "ckpt/open/assets.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "memory_place.h"
#include "source/place.h"
#include "suites.h"
#include "tree/view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POINTER "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"

/* The checkpoint is top/ckpt. */
static char top[4096], ckpt[4200], given[4200];
static int top_fd = -1, ckpt_fd = -1, given_fd = -1;

static int make_dir(const char *name, char path[static 4200])
{
	(void)snprintf(path, 4200, "%s/%s", top, name);
	REQUIRE(!mkdir(path, 0700));
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void setup(void)
{
	char self[4096], fetch[4300];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	top_fd = new_dir(top);
	ckpt_fd = make_dir("ckpt", ckpt);
	given_fd = make_dir("given", given);
	REQUIRE(n > 0 && ckpt_fd >= 0 && given_fd >= 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	(void)snprintf(fetch, sizeof(fetch), "%s/dir-fetch", self);
	REQUIRE(!setenv("CKPTFS_FETCH", fetch, 1) && !setenv("DIR_STORE", top, 1));
}

static void teardown(void)
{
	(void)close(given_fd);
	(void)close(ckpt_fd);
	(void)close(top_fd);
}

/* Files with these names, separated by blanks, that hold their own name; for "NAME*", a pointer to
 * a file that was not fetched. */
static void put_files(int fd, const char *names)
{
	char copy[4000], *at = copy, *one;

	(void)snprintf(copy, sizeof(copy), "%s", names);
	while ((one = strsep(&at, " "))) {
		bool pointer = *one && one[strlen(one) - 1] == '*';

		if (pointer)
			one[strlen(one) - 1] = 0;
		if (*one)
			put_file(fd, one, pointer ? POINTER : one, strlen(pointer ? POINTER : one));
	}
}

struct told {
	char text[600];
	unsigned n;
};

static void warn(void *arg, const char *what)
{
	struct told *t = arg;

	(void)snprintf(t->text, sizeof(t->text), "%s", what);
	t->n++;
}

/* "NAME:FROM NAME:FROM " */
static void show(const struct assets *a, char out[static 1000])
{
	*out = 0;
	for (size_t i = 0; i < a->n; i++)
		(void)snprintf(out + strlen(out), 1000 - strlen(out), "%s%s:%s", i ? " " : "",
			       a->v[i].name, asset_from_text(a->origin[i]));
}

/* ---- what is there, and what comes of it ---- */

static const struct row {
	const char *own, *inner, *parent,
		*of_given; /* files; NULL as of_given: assets= is not said */
	bool dequantised, address;
	const char *config;
	const char *want; /* after "!": an error */
	const char *told; /* NULL: nothing */
} rows[] = {
	{ "config.json other.json", "", "", NULL, false, false, NULL, "config.json:checkpoint",
	  NULL },
	{ "", "", "", NULL, false, false, NULL, "", NULL },
	{ "config.json", "config.json vocab.json", "config.json vocab.txt", NULL, false, false,
	  NULL, "config.json:checkpoint vocab.json:checkpoint vocab.txt:parent", NULL },
	{ "", "", "", NULL, false, false, "{}", "config.json:GGUF", NULL },
	{ "vocab.txt config.json", "", "", NULL, false, false, "{}",
	  "config.json:checkpoint vocab.txt:checkpoint", NULL },
	/* If one is there but cannot be used, no other place is searched for it. */
	{ "config.json*", "config.json", "config.json", NULL, false, false, NULL, "",
	  "/ckpt/config.json' is not used: it is a Git LFS pointer" },
	{ "config.json* vocab.txt* tokenizer.json*", "", "", NULL, false, false, NULL, "",
	  "run 'git lfs pull' (and 2 more beside it)" },
	{ "", "config.json*", "config.json", NULL, false, false, NULL, "",
	  "/ckpt/huggingface/config.json' is not used: it is a Git LFS pointer" },
	{ "", "", "config.json*", NULL, false, false, NULL, "",
	  "run 'git lfs pull'; assets= can name its directory" },
	/* A directory that assets= names. */
	{ "config.json", "", "", "a.json b.safetensors c.bin d.gguf .hidden e.ckpt", false, false,
	  NULL, "a.json:assets", NULL },
	{ "", "", "", "a.json hf_quant_config.json quantize_config.json quant_config.json", false,
	  false, NULL,
	  "a.json:assets hf_quant_config.json:assets quant_config.json:assets "
	  "quantize_config.json:assets",
	  NULL },
	{ "", "", "", "a.json hf_quant_config.json quantize_config.json quant_config.json", true,
	  false, NULL, "a.json:assets", NULL },
	{ "config.json quantize_config.json", "", "", NULL, true, false, NULL,
	  "config.json:checkpoint", NULL },
	{ "config.json quantize_config.json", "", "", NULL, false, false, NULL,
	  "config.json:checkpoint", NULL },
	{ "", "quantize_config.json", "config.json quantize_config.json", NULL, true, false, NULL,
	  "config.json:parent", NULL },
	{ "", "", "quantize_config.json", NULL, true, false, "{}", "config.json:GGUF", NULL },
	{ "quantize_config.json*", "", "", NULL, true, false, NULL, "",
	  "/ckpt/quantize_config.json' is not used: it is a Git LFS pointer" },
	{ "", "", "", "a.json b.json*", false, false, NULL, "a.json:assets",
	  "/given/b.json' is not used: it is a Git LFS pointer" },
	{ "", "", "", "", false, false, "{}", "config.json:GGUF", NULL },
	{ "", "", "", "a.json config.json", false, false, "{}", "a.json:assets config.json:assets",
	  NULL },
	/* One at an address. */
	{ "config.json", "", "", "a.json b.safetensors .hidden vocab.txt", false, true, NULL,
	  "a.json:assets vocab.txt:assets", NULL },
	{ "", "", "", "a.json hf_quant_config.json quant_config.json quantize_config.json", true,
	  true, NULL, "a.json:assets", NULL },
	{ "", "", "", "a.json hf_quant_config.json", false, true, NULL,
	  "a.json:assets hf_quant_config.json:assets", NULL },
	{ "", "", "", "b.safetensors", false, true, "{}", "config.json:GGUF", NULL },
};

static int find(const struct row *x, struct place *place, struct told *told, struct assets *a,
		struct ckpt_err *e)
{
	static const struct place_options how = { .cache_dir = "none" };
	struct assets_ask ask = { .given = !x->of_given ? NULL
					   : x->address ? "s3://given"
							: given,
				  .place = place,
				  .path = ckpt,
				  .how = &how,
				  .dequantised = x->dequantised,
				  .config = x->config,
				  .warn = told ? warn : NULL,
				  .warn_arg = told };

	return assets_find(&ask, a, e);
}

static void put_row(const struct row *x)
{
	char inner[4200];
	int fd = *x->inner ? make_dir("ckpt/huggingface", inner) : -1;

	put_files(ckpt_fd, x->own);
	put_files(fd, x->inner);
	put_files(top_fd, x->parent);
	put_files(given_fd, x->of_given ? x->of_given : "");
	(void)close(fd);
	REQUIRE(!mkdirat(given_fd, "sub.json", 0700));
}

/* AutoGPTQ's configuration can be read where it is not to be shown. */
static void check_hidden(const struct row *x, const struct assets *a)
{
	static const char name[] = "quantize_config.json";
	const char *const in[] = { x->of_given ? x->of_given : x->own, x->of_given ? "" : x->inner,
				   x->of_given ? "" : x->parent };
	autofree char *text = NULL;
	struct ckpt_err e = { 0 };
	bool is_there = false;
	int64_t number;
	size_t len;

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		is_there |= strstr(in[i], name) && !strchr(in[i], '*');
	is_there &= x->dequantised || x->of_given;
	ck_assert_msg(!assets_text(a, name, 100, &text, &len, &number, &e), "%s", e.msg);
	ck_assert_int_eq(text != NULL, is_there);
	ck_assert(!text || (!strcmp(text, name) && (number >= (int64_t)a->n) == x->dequantised));
}

START_LOOP_TEST(files_are_found_beside_the_weights, ARRAY_LEN(rows))
{
	struct place *place CLEANUP(place_freep) = place_of(ckpt_fd);
	const struct row *x = &rows[_i];
	struct told told = { .n = 0 };
	struct ckpt_err e = { 0 };
	char have[1000], text[100] = "";
	struct assets a;

	put_row(x);
	ck_assert_msg(!find(x, place, &told, &a, &e), "%s", e.msg);
	show(&a, have);
	ck_assert_str_eq(have, x->want);
	ck_assert_uint_eq(told.n, x->told != NULL);
	ck_assert_uint_eq(a.n_refused, told.n);
	if (x->told)
		ck_assert_msg(strstr(told.text, x->told) != NULL, "%s", told.text);
	for (size_t i = 0; i < a.n; i++) {
		const char *want = a.origin[i] == ASSET_MADE ? x->config : a.v[i].name;

		memset(text, 0, sizeof(text));
		ck_assert_uint_eq(a.v[i].size, strlen(want));
		ck_assert_msg(!assets_read(&a, i, text, a.v[i].size, 0, &e), "%s", e.msg);
		ck_assert_str_eq(text, want);
	}
	check_hidden(x, &a);
	assets_release(&a);
	/* The same without a caller that wants warnings. */
	ck_assert_msg(!find(x, place, NULL, &a, &e), "%s", e.msg);
	ck_assert_uint_eq(a.n_refused, told.n);
	assets_release(&a);
}
END_TEST

/* ---- what fails ---- */

START_LOOP_TEST(whatever_fails_is_an_error_or_leaves_files_out, ARRAY_LEN(rows))
{
	const struct row *x = &rows[_i];
	struct place *place CLEANUP(place_freep) = NULL;

	if (x->address) /* a process of its own would be counted, too: see the suite remote */
		return;
	place = place_of(ckpt_fd);
	put_row(x);
	FAULT_LOOP(FAULT_ALLOC | FAULT_OPEN | FAULT_STAT | FAULT_READ)
	{
		struct told told = { .n = 0 };
		struct ckpt_err e = { 0 };
		struct assets a;
		char have[1000];
		int rc = find(x, place, &told, &a, &e);

		(void)fault_off();
		ck_assert_int_eq(e.code, -rc);
		ck_assert_int_eq(*e.msg != 0, rc != 0);
		show(&a, have);
		/* If the parent or an inner directory cannot be looked at, it is left out; a file
		 * that cannot be read does not count as a pointer. */
		for (char *at = have, *one; !rc && !x->told && *have && (one = strsep(&at, " "));)
			ck_assert_msg(strstr(x->want, one) != NULL, "%s in %s", one, x->want);
		if (!rc && !fault_hit())
			ck_assert_uint_eq(told.n, x->told != NULL);
		assets_release(&a);
	}
}
END_TEST

static const struct {
	int code;
	const char *want; /* NULL: the file is left out; after "-": the warning */
} failures[] = {
	{ ENOENT, NULL }, { EACCES, "-/ckpt/config.json' is not used: Permission denied" },
	{ EPERM, "" },	  { EIO, "" },
	{ ENOMEM, "" },	  { ETIMEDOUT, "" },
};

/* A store that does not say whether files are there. */
START_LOOP_TEST(an_answer_that_tells_nothing_is_an_error, ARRAY_LEN(failures))
{
	const struct row *x = &rows[0];
	struct place *place CLEANUP(place_freep) = NULL;
	const char *want = failures[_i].want;
	struct told told = { .n = 0 };
	struct ckpt_err e = { 0 };
	char have[1000];
	struct assets a;
	int rc;

	put_files(ckpt_fd, "config.json vocab.txt");
	place = memory_place(ckpt_fd);
	memory_place_fail(place, 4, 1,
			  failures[_i].code); /* config.json is the fourth of the usual ones */
	rc = find(x, place, &told, &a, &e);
	ck_assert_int_eq(rc, !want || *want == '-' ? 0 : -failures[_i].code);
	ck_assert_int_eq(*e.msg != 0, rc != 0);
	if (!rc) {
		show(&a, have);
		ck_assert_str_eq(have, "vocab.txt:checkpoint");
		ck_assert_uint_eq(told.n, want != NULL);
		ck_assert_msg(!want || strstr(told.text, want + 1) != NULL, "%s", told.text);
		ck_assert_msg(!strstr(told.text, "assets="), "%s", told.text);
	}
	assets_release(&a);
}
END_TEST

/* ---- limits, and what is no directory ---- */

static const struct {
	const char *given;
	int code;
	const char *want;
} wrong[] = {
	{ "s3://given/a.json", ENOTDIR, "assets 's3://given/a.json': it is a file" },
	{ "/nothing/there", ENOENT,
	  "assets directory '/nothing/there': No such file or directory" },
	{ "/dev/null", ENOTDIR, "assets directory '/dev/null': Not a directory" },
};

START_LOOP_TEST(what_is_no_directory_is_said, ARRAY_LEN(wrong))
{
	struct place *place CLEANUP(place_freep) = place_of(ckpt_fd);
	static const struct place_options how = { .cache_dir = "none" };
	struct assets_ask ask = {
		.given = wrong[_i].given, .place = place, .path = ckpt, .how = &how
	};
	struct ckpt_err e = { 0 };
	struct assets a;

	put_files(given_fd, "a.json");
	ck_assert_int_eq(assets_find(&ask, &a, &e), -wrong[_i].code);
	ck_assert_msg(strstr(e.msg, wrong[_i].want) == e.msg, "%s", e.msg);
	assets_release(&a);
}
END_TEST

START_LOOP_TEST(a_directory_may_have_only_so_many_files, 2)
{
	struct place *place CLEANUP(place_freep) = place_of(ckpt_fd);
	struct row x = { .of_given = "", .address = _i };
	struct ckpt_err e = { 0 };
	struct assets a;
	char name[24];

	put_file(given_fd, "0", "", 0);
	for (unsigned i = 1; i < 10000; i++) {
		(void)snprintf(name, sizeof(name), "%u", i);
		REQUIRE(!linkat(given_fd, "0", given_fd, name, 0));
	}
	if (!x.address) { /* a store would be asked for each of them */
		ck_assert_msg(!find(&x, place, NULL, &a, &e), "%s", e.msg);
		ck_assert_uint_eq(a.n, 10000);
		assets_release(&a);
	}
	REQUIRE(!linkat(given_fd, "0", given_fd, "10000", 0));
	ck_assert_int_eq(find(&x, place, NULL, &a, &e), -EFBIG);
	ck_assert_msg(strstr(e.msg, "has more than 10000 files") != NULL, "%s", e.msg);
	assets_release(&a);
}
END_TEST

START_TEST(a_text_is_as_long_as_is_asked_for)
{
	struct place *place CLEANUP(place_freep) = place_of(ckpt_fd);
	struct row x = { "vocab.txt", "", "", NULL, false, false, "{ }", "", NULL };
	struct ckpt_err e = { 0 };
	struct assets a;
	char *text, buf[4];
	int64_t number;
	size_t len;

	put_row(&x);
	REQUIRE(!find(&x, place, NULL, &a, &e) && a.n == 2);
	ck_assert_int_eq(assets_text(&a, "config.json", 3, &text, &len, &number, &e), 0);
	ck_assert_str_eq(text, "{ }");
	ck_assert(len == 3 && number == 0);
	free(text);
	ck_assert_int_eq(assets_text(&a, "merges.txt", 3, &text, &len, &number, &e), 0);
	ck_assert(!text && number == -1);
	ck_assert_int_eq(assets_text(&a, "vocab.txt", 8, &text, &len, &number, &e), -EFBIG);
	ck_assert_msg(strstr(e.msg, "/ckpt/vocab.txt' has 9 bytes") != NULL, "%s", e.msg);
	ck_assert_int_eq(assets_read(&a, 0, buf, 2, 2, &e), -EIO);
	ck_assert_int_eq(assets_read(&a, 0, buf, 2, 1, &e), 0);
	ck_assert(!memcmp(buf, " }", 2));
	ck_assert_int_eq(assets_replace(&a, 1, "words", &e), 0);
	ck_assert_int_eq(assets_text(&a, "vocab.txt", 8, &text, &len, &number, &e), 0);
	ck_assert_str_eq(text, "words");
	ck_assert_int_eq(assets_read(&a, 1, buf, 2, 4, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "/ckpt/vocab.txt' has become shorter") != NULL, "%s", e.msg);
	free(text);
	FAULT_LOOP(FAULT_ALLOC)
	{
		int rc = assets_text(&a, "vocab.txt", 8, &text, &len, &number, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		free(text);
	}
	assets_release(&a);
}
END_TEST

SUITE(assets, .setup = setup, .teardown = teardown, .seconds = 30)
