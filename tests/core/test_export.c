/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An export that is cut short goes on later, and may find that something has changed meanwhile. The
 * result must be what an export that was never cut short makes, byte for byte.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "blob_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include "cmd/export.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[4096];
static int dir_fd = -1, ckpt_fd = -1;

static void setup(void)
{
	dir_fd = new_dir(dir);
	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	ckpt_fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(ckpt_fd >= 0);
}

static void teardown(void)
{
	(void)close(ckpt_fd);
	(void)close(dir_fd);
}

/* ---- what is exported ---- */

/* Numbers that are written into the files. */
struct state {
	unsigned data, shape, config, recipe, layout, rename;
};

enum { ROWS = 16 };

static void make_data(const struct state *s, struct buf *b)
{
	unsigned columns = s->shape % 2 ? 48 : 40, w = ROWS * columns;
	char header[400];
	uint64_t len;

	(void)snprintf(header, sizeof(header),
		       "{\"w\":{\"dtype\":\"U8\",\"shape\":[%d,%u],\"data_offsets\":[0,%u]},"
		       "\"v\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[%u,%u]},"
		       "\"z\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%u,%u]}}",
		       ROWS, columns, w, w, w + 8, w + 8, w + 12);
	len = htole64(strlen(header));
	b->len = 0;
	buf_add(b, (const char *)&len, sizeof(len));
	buf_str(b, header);
	for (unsigned i = 0; i < w + 12; i++)
		buf_add(b, &(char){ (char)(i / columns * 7 + s->data * 31 + i) }, 1);
	REQUIRE(!b->err);
}

__attribute__((format(printf, 2, 3))) static void put_text(const char *name, const char *fmt, ...)
{
	char text[200];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	put_file(dir_fd, name, text, strlen(text));
}

/* All files but the data; their sizes never change. */
static void put_texts(const struct state *s)
{
	put_text("ckpt/config.json", "{\"model_type\":\"x\",\"first\":%u}", s->config % 9);
	put_text("recipe",
		 "param k = config.first\nout%u = w [k..k+8 of 16, any]\nkept = v [any]\n",
		 s->recipe % 10);
	put_text("layout", "mesh tp=2\nw tp:%u\n* replicate\n", s->layout % 2);
	put_text("rename", "s/^z$/z%u/\n", s->rename % 10);
}

static void put_data(const struct state *s)
{
	struct buf b = BUF_INIT(10000);

	make_data(s, &b);
	put_file(ckpt_fd, "model.safetensors", b.data, b.len);
	buf_release(&b);
}

static void put_all(const struct state *s)
{
	put_texts(s);
	put_data(s);
}

/* Another file of the same name, size and time. */
static void replace_data(const struct state *s)
{
	struct buf b = BUF_INIT(10000);
	struct stat st;

	make_data(s, &b);
	REQUIRE(!fstatat(ckpt_fd, "model.safetensors", &st, 0));
	put_file(dir_fd, "new", b.data, b.len);
	REQUIRE(!utimensat(dir_fd, "new", (struct timespec[]){ st.st_atim, st.st_mtim }, 0));
	REQUIRE(!renameat(dir_fd, "new", ckpt_fd, "model.safetensors"));
	buf_release(&b);
}

/* Overwrites the file with other bytes of the same time. The clock of files may stand still for
 * some milliseconds, during which nobody could tell; this waits until it goes on. */
static void overwrite_data(const struct state *s)
{
	struct stat before, st;

	REQUIRE(!fstatat(ckpt_fd, "model.safetensors", &before, 0));
	do {
		put_data(s);
		REQUIRE(!utimensat(ckpt_fd, "model.safetensors",
				   (struct timespec[]){ before.st_atim, before.st_mtim }, 0));
		REQUIRE(!fstatat(ckpt_fd, "model.safetensors", &st, 0));
	} while (io_ctime_ns(&st) == io_ctime_ns(&before));
	REQUIRE(st.st_ino == before.st_ino && io_mtime_ns(&st) == io_mtime_ns(&before));
}

static void reshape(const struct state *s)
{
	put_data(s);
}

struct change {
	const char *what;
	size_t at; /* in struct state */
	void (*make)(const struct state *s);
	const char *why; /* the reason why x.partial is not continued */
};
static const struct change changes[] = {
	{ "config.json", offsetof(struct state, config), put_texts,
	  "was begun with another config.json, tokenizer or other asset" },
	{ "the recipe", offsetof(struct state, recipe), put_texts,
	  "was begun with a recipe of other contents" },
	{ "the layout", offsetof(struct state, layout), put_texts,
	  "was begun with a layout of other contents" },
	{ "the renaming rules", offsetof(struct state, rename), put_texts,
	  "was begun with renaming rules of other contents" },
	{ "data, replaced", offsetof(struct state, data), replace_data,
	  "was begun with other data: a data file has changed or been replaced" },
	{ "the metadata", offsetof(struct state, shape), reshape,
	  "was begun with other metadata: the checkpoint has been saved again, or is another one" },
	{ "data, overwritten", offsetof(struct state, data), overwrite_data,
	  "was begun with other data: a data file has changed or been replaced" },
};

static void change(const struct change *c, struct state *s)
{
	*(unsigned *)((char *)s + c->at) += 1;
	c->make(s);
}

/* ---- exporting ---- */

struct how {
	const char *path; /* of the tree */
	bool recipe, rename, layout;
	size_t threads;
};

static struct buf said;

static void note(void *arg, const char *what)
{
	(void)arg;
	buf_printf(&said, "%s\n", what);
}

static int export(const struct how *h, const char *name, struct ckpt_err *e)
{
	char path[4300], dest[4300], recipe[4300], layout[4300], rename[4300];
	struct ckpt_opts o = { .index = ":memory:",
			       .recipe = h->recipe ? recipe : NULL,
			       .layout = h->layout ? layout : NULL,
			       .rename = h->rename ? rename : NULL };
	struct export_job x = { .dest = dest,
				.request = (const char *)h,
				.request_len = sizeof(*h),
				.threads = h->threads,
				.quiet = false,
				.say = note };
	ckpt_node n = CKPT_ROOT;
	int rc;

	(void)snprintf(path, sizeof(path), "%s/ckpt", dir);
	(void)snprintf(dest, sizeof(dest), "%s/%s", dir, name);
	(void)snprintf(recipe, sizeof(recipe), "%s/recipe", dir);
	(void)snprintf(layout, sizeof(layout), "%s/layout", dir);
	(void)snprintf(rename, sizeof(rename), "%s/rename", dir);
	rc = open_typed(path, &o, &x.c, e);
	if (!rc)
		rc = ckpt_walk(x.c, h->path, &n, e);
	if (!rc)
		rc = ckpt_stat(x.c, n, &x.what, e);
	if (!rc)
		rc = export_run(&x, e);
	ckpt_close(x.c);
	return rc;
}

enum { KILLED = 9 };
static const enum fault_kind kinds = FAULT_WRITE | FAULT_SYNC | FAULT_NAME | FAULT_READ;

static void die(void *arg)
{
	(void)arg;
	_exit(KILLED);
}

/* How many calls an export makes that is not cut short; the last few give x its name. */
static uint64_t count_calls(const struct how *h)
{
	struct ckpt_err e;
	uint64_t n;

	fault_on(kinds, 0, 0);
	ck_assert_msg(!export(h, "x", &e), "%s", e.msg);
	n = fault_off();
	REQUIRE(!io_remove(dir_fd, "x", &e));
	return n;
}

/* Exports in a process that ends just before its `at`th call. Returns whether it finished. */
static bool cut_short(const struct how *h, uint64_t at)
{
	pid_t child = fork();
	struct ckpt_err e;
	int status;

	REQUIRE(child >= 0);
	if (!child) {
		fault_act(die, NULL);
		fault_on(kinds, at, 1);
		if (export(h, "x", &e)) {
			(void)fprintf(stderr, "%s\n", e.msg);
			_exit(1);
		}
		_exit(0);
	}
	REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
	ck_assert_msg(WEXITSTATUS(status) == KILLED || !WEXITSTATUS(status), "status %d",
		      WEXITSTATUS(status));
	/* If it was killed after x had got its name, it has left the state behind. */
	if (!faccessat(dir_fd, "x", F_OK, 0))
		(void)unlinkat(dir_fd, "x.partial.state", 0);
	return !faccessat(dir_fd, "x", F_OK, 0);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Names, kinds and bytes of all files. */
static void look(const char *name, struct buf *ret)
{
	char path[4300], target[300];
	struct ckpt_err e;
	const FTSENT *f;
	FTS *all;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	all = fts_open((char *const[]){ path, NULL }, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
	ret->len = 0;
	REQUIRE(all);
	while ((f = fts_read(all))) {
		ssize_t n =
			f->fts_info == FTS_SL ? readlink(f->fts_path, target, sizeof(target)) : 0;

		buf_printf(ret, "%s %d\n", f->fts_path + strlen(path), f->fts_info);
		REQUIRE(n >= 0 && f->fts_info != FTS_ERR && f->fts_info != FTS_DNR);
		buf_add(ret, target, (size_t)n);
		if (f->fts_info == FTS_F)
			REQUIRE(!io_read_file(f->fts_path, ret, &e));
	}
	(void)fts_close(all);
	REQUIRE(!ret->err);
}

/* x must be what an export makes that is never cut short. */
static void compare(const struct how *h, const char *what)
{
	struct buf want = BUF_INIT(1 << 22), got = BUF_INIT(1 << 22);
	struct ckpt_err e;

	ck_assert_msg(!export(h, "fresh", &e), "%s: %s", what, e.msg);
	look("x", &got);
	look("fresh", &want);
	if (got.len != want.len || memcmp(got.data, want.data, want.len) != 0)
		ck_abort_msg("%s: other names or bytes than those of a fresh export", what);
	REQUIRE(faccessat(dir_fd, "x.partial", F_OK, 0) &&
		faccessat(dir_fd, "x.partial.state", F_OK, 0));
	REQUIRE(!io_remove(dir_fd, "x", &e) && !io_remove(dir_fd, "fresh", &e));
	buf_release(&want);
	buf_release(&got);
}

/* ---- tests ---- */

/* Each input that decides about bytes changes after all units but the last have been written. */
START_FEW_TEST(what_was_made_from_something_else_is_written_again_and_said, ARRAY_LEN(changes), 2)
{
	const struct change *c = &changes[_i];
	struct how h = { ".", true, true, true, 1 };
	struct state s = { 0 };
	struct ckpt_err e;
	uint64_t calls;
	char want[300];

	said = (struct buf)BUF_INIT(10000);
	put_all(&s);
	calls = count_calls(&h);
	REQUIRE(!cut_short(&h, calls - 8));
	change(c, &s);
	ck_assert_msg(!export(&h, "x", &e), "%s", e.msg);
	(void)snprintf(want, sizeof(want), "starting over: 'x.partial' %s\n", c->why);
	buf_add(&said, "", 1);
	ck_assert_str_eq(said.data, want);
	compare(&h, c->what);
	buf_release(&said);
}
END_TEST

START_TEST(what_was_made_from_the_same_is_gone_on_with)
{
	struct how h = { ".", true, true, true, 2 };
	struct state s = { 0 };
	struct ckpt_err e;
	uint64_t calls;

	said = (struct buf)BUF_INIT(10000);
	put_all(&s);
	calls = count_calls(&h);
	REQUIRE(!cut_short(&h, calls - 8));
	put_texts(&s); /* touched, but not changed */
	ck_assert_msg(!export(&h, "x", &e), "%s", e.msg);
	buf_add(&said, "", 1);
	ck_assert_ptr_eq(strstr(said.data, "resuming: "), said.data);
	ck_assert_ptr_null(strstr(said.data, "resuming: 0"));
	compare(&h, "nothing");
	buf_release(&said);
}
END_TEST

/* Exports that are cut short one to four times, at random calls, with random changes in between. */
START_LONG_TEST(interrupted_and_changed_at_random_it_is_as_a_fresh_one)
{
	static const char *const paths[] = { "hf", "tensors", "pt/model.pt", ".", "ranks" };
	uint64_t calls[ARRAY_LEN(paths)];
	struct rng r = rng_new();
	const unsigned cuts_wanted = CHECK_FULL() ? 200 : 50;
	unsigned finished = 0, killed = 0, changed = 0, resumed = 0, over = 0;

	said = (struct buf)BUF_INIT(100000);
	put_all(&(struct state){ 0 });
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		calls[i] = count_calls(&(struct how){ paths[i], true, true, true, 1 });
	/* Until each kind of result has occurred. */
	for (unsigned i = 0; killed < cuts_wanted || !finished || !resumed || !over; i++) {
		struct rng own = { rng_u64(&r) };
		struct how h = { .recipe = rng_chance(&own, 60),
				 .rename = rng_chance(&own, 50),
				 .layout = rng_chance(&own, 60),
				 .threads = 1 + rng_below(&own, 3) };
		unsigned cuts = 1 + (unsigned)rng_below(&own, 4);
		struct state s = { .data = (unsigned)rng_below(&own, 200),
				   .config = (unsigned)rng_below(&own, 9) };
		size_t path = rng_below(&own, ARRAY_LEN(paths) - !h.layout);
		char what[300];
		struct ckpt_err e;
		bool done = false;

		h.path = paths[path];
		(void)snprintf(what, sizeof(what), "case %u, %s:", i, h.path);
		put_all(&s);
		for (unsigned k = 0; k < cuts && !done; k++) {
			done = cut_short(&h, 1 + rng_below(&own, calls[path]));
			finished += done;
			killed += !done;
			for (int n = (int)rng_below(&own, 3); n > 0 && !done; n--) {
				const struct change *c =
					&changes[rng_below(&own, ARRAY_LEN(changes))];

				change(c, &s);
				changed++;
				(void)snprintf(what + strlen(what), sizeof(what) - strlen(what),
					       " %s,", c->what);
			}
		}
		said.len = 0;
		if (!done)
			ck_assert_msg(!export(&h, "x", &e), "%s %s", what, e.msg);
		buf_add(&said, "", 1);
		resumed += strstr(said.data, "resuming: ") != NULL;
		over += strstr(said.data, "starting over: ") != NULL;
		compare(&h, what);
	}
	printf("export: %u finished, %u killed, %u changes, %u resumed, %u begun again.\n",
	       finished, killed, changed, resumed, over);
	(void)fflush(stdout);
	ck_assert_uint_gt(changed, 0);
	buf_release(&said);
}
END_TEST

/* What is exported changes just before a call. */
struct meanwhile {
	const struct change *c;
	struct state s;
};

static void make_change(void *arg)
{
	struct meanwhile *m = arg;

	change(m->c, &m->s);
}

/* Waits until the clock of files goes on: what is written from now on gets another time. */
static void settle(void)
{
	struct stat before, st;

	REQUIRE(!fstatat(ckpt_fd, "config.json", &before, 0));
	do {
		put_text("clock", "x");
		REQUIRE(!fstatat(dir_fd, "clock", &st, 0));
	} while (io_mtime_ns(&st) <= io_mtime_ns(&before));
}

static bool same(const struct buf *a, const struct buf *b)
{
	return a->len == b->len && !memcmp(a->data, b->data, b->len);
}

START_FEW_TEST(what_changes_while_it_runs_is_all_there_or_not_at_all_or_a_failure,
	       ARRAY_LEN(changes), 2)
{
	static const struct how h = { "hf", true, true, false, 1 };
	struct meanwhile m = { &changes[_i], { 0 } };
	struct buf was = BUF_INIT(1 << 22), is = BUF_INIT(1 << 22), got = BUF_INIT(1 << 22);
	unsigned old = 0, new = 0;
	struct rng r = rng_new();
	struct ckpt_err e;

	put_all(&m.s);
	REQUIRE(!export(&h, "x", &e));
	look("x", &was);
	REQUIRE(!io_remove(dir_fd, "x", &e));
	settle();
	make_change(&m);
	REQUIRE(!export(&h, "x", &e));
	look("x", &is);
	REQUIRE(!io_remove(dir_fd, "x", &e));
	/* Until the change comes after the last call. */
	for (uint64_t n = 1; !old || n < 5; n += 1 + rng_below(&r, CHECK_FULL() ? 6 : 20)) {
		int rc;

		m.s = (struct state){ 0 };
		put_all(&m.s);
		settle();
		fault_act(make_change, &m);
		fault_on(kinds | FAULT_OPEN | FAULT_STAT, n, 1);
		rc = export(&h, "x", &e);
		(void)fault_off();
		fault_act(NULL, NULL);
		if (rc) {
			REQUIRE(faccessat(dir_fd, "x", F_OK, 0));
			/* The same export again has all that is there now. */
			ck_assert_msg(!export(&h, "x", &e), "call %ju: %s", (uintmax_t)n, e.msg);
			look("x", &got);
			ck_assert_msg(same(&got, &is), "call %ju: goes on with old bytes",
				      (uintmax_t)n);
		} else {
			look("x", &got);
			ck_assert_msg(same(&got, &is) || same(&got, &was), "call %ju: of both",
				      (uintmax_t)n);
			old += same(&got, &was);
			new += same(&got, &is);
		}
		REQUIRE(!io_remove(dir_fd, "x", &e));
	}
	ck_assert_uint_gt(new, 0);
	buf_release(&was);
	buf_release(&is);
	buf_release(&got);
}
END_TEST

SUITE(export, .setup = setup, .teardown = teardown, .seconds = 900)
