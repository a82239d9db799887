/* SPDX-License-Identifier: Apache-2.0 */
/* What reshard refuses, what it leaves out, and what it says about that. test_faults.c and the
 * tests on mounts compare its results. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "dir_util.h"
#include "gguf_text.h"
#include "opts_util.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>
#include <ckptfs/ckpt_reshard.h>
#include <ckptfs/ckpt_save.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HALF \
	"{\"mesh_shape\": [2], \"tensor_map\": [0, -1], \"rank_list\": [0, 1], \"alias_name\": " \
	"[\"tp\"]}"
#define LISTS(a, b) "{\"0\": {" a "}, \"1\": {" b "}}"

static const struct row {
	const char *layout; /* text; NULL: none */
	uint64_t ranks;
	enum ckpt_format format;
	int comm; /* processes, 0: threads */
	const char *dest;
	int code;
	const char *want; /* of the error, or of the warnings; "": there is none */
	bool gguf;	  /* the source is one */
} rows[] = {
	{ NULL, 0, CKPT_DCP, 0, "dest", 0, "", false },
	{ NULL, 3, CKPT_DCP, 0, "dest", 0, "", false },
	{ "mesh tp=2\na tp:0\n* replicate\n", 0, CKPT_DCP, 0, "dest", 0, "", false },
	{ "mesh tp=2\na tp:0\n* replicate\n", 2, CKPT_DCP, 0, "dest", 0, "", false },
	{ "mesh tp=2\na tp:0\n* replicate\n", 3, CKPT_DCP, 0, "dest", EINVAL,
	  "is for 2 ranks, not 3", false },
	{ "mesh tp=2\na tp:0\n* replicate\n", 0, CKPT_ZARR, 0, "dest", EINVAL,
	  "zarr arrays are written as a whole, without a layout", false },
	{ LISTS("\"a\": " HALF ", \"b\": {}, \"c\": {}", "\"a\": " HALF ""), 0, CKPT_DCP, 0, "dest",
	  0, "", false },
	{ LISTS("\"a\": {}, \"b\": {}, \"c\": {}", "\"d\": {}"), 0, CKPT_DCP, 0, "dest", 0,
	  "no tensor 'd' in the checkpoint", false },
	{ LISTS("\"a\": {}, \"c\": {}", ""), 0, CKPT_DCP, 0, "dest", EINVAL,
	  "no rank has torch.Size([3]) of 'b' at torch.Size([0])", false },
	{ LISTS("\"a\": " HALF ", \"b\": {}, \"c\": {}", ""), 0, CKPT_DCP, 0, "dest", EINVAL,
	  "no rank has torch.Size([2, 3]) of 'a' at torch.Size([2, 0])", false },
	{ LISTS("\"a\": {}, \"b\": {}", "\"b\": {}"), 0, CKPT_DCP, 0, "dest", 0, "", false },
	{ "{\"0\": {\"a\": {}, \"b\": {}, \"c\": {}}, \"2\": {\"a\": {}}}", 0, CKPT_DCP, 0, "dest",
	  EINVAL, "there is no rank 1 of 0 to 2", false },
	{ "mesh tp=\n", 0, CKPT_DCP, 0, "dest", EINVAL, "layout", false },
	{ NULL, 1000000000, CKPT_DCP, 0, "dest", EINVAL, "1000000000 ranks are too many: at most",
	  false },
	{ NULL, 0, CKPT_DCP, 1, "dest", 0, "", false },
	{ NULL, 1, CKPT_DCP, 1, "dest", 0, "", false },
	{ NULL, 2, CKPT_DCP, 1, "dest", EINVAL,
	  "2 ranks cannot be written by 1 processes: start one process for each rank", false },
	{ NULL, 0, CKPT_DCP, 2, "s3://b/dest", ENOTSUP,
	  "ranks that are processes of their own cannot write to an object store together", false },
	{ NULL, 0, CKPT_SAFETENSORS, 0, "dest", 0,
	  "2 objects are left out: safetensors files hold only tensors", true },
	{ NULL, 0, CKPT_ZARR, 0, "dest", 0, "2 objects are left out: zarr arrays hold only tensors",
	  true },
	{ NULL, 0, CKPT_MEGATRON, 0, "dest", 0,
	  "'a/b' is left out: names of Megatron-core's objects have no '/'", true },
};

static void warn(void *arg, const char *what)
{
	struct buf *b = arg;

	buf_printf(b, "%s\n", what);
}

static int run(const struct row *x, struct ckpt_reshard *r, struct ckpt_err *e)
{
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt_comm comm = ckpt_comm_self();
	static const struct ckpt_save_opts save;
	char source[4200], dest[4300], layout[4200];
	struct ckpt *c = NULL;
	int rc;

	comm.size = (size_t)x->comm;
	(void)snprintf(source, sizeof(source), "%s/source", dir);
	(void)snprintf(dest, sizeof(dest), "%s%s%s", strchr(x->dest, ':') ? "" : dir,
		       strchr(x->dest, ':') ? "" : "/", x->dest);
	(void)snprintf(layout, sizeof(layout), "%s/layout", dir);
	r->format = x->format;
	r->ranks = x->ranks;
	r->layout = x->layout ? layout : NULL;
	r->comm = x->comm ? &comm : NULL;
	r->save = &save;
	ck_assert_msg(!open_typed(source, &o, &c, e), "%s", e->msg);
	rc = ckpt_reshard(c, dest, r, e);
	ckpt_close(c);
	return rc;
}

static void put_source(const struct row *x)
{
	struct rng r = rng_new();

	REQUIRE(!mkdirat(dir_fd, "source", 0700));
	if (x->gguf)
		gguf_put(dir_fd, "source/m.gguf", "x", "a/b 1", "", "w F32 4x3");
	else
		st_put(dir_fd, "source/model.safetensors", &r, "a F32 4x3; b F32 3; c F32 0x2");
	if (x->layout)
		put_file(dir_fd, "layout", x->layout, strlen(x->layout));
}

START_LOOP_TEST(what_is_asked_for_is_written_or_refused, ARRAY_LEN(rows))
{
	const struct row *x = &rows[_i];
	struct buf said CLEANUP(buf_release) = BUF_INIT(1 << 16);
	struct ckpt_reshard r = { .warn = warn, .warn_arg = &said };
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char dest[4300];
	int rc;

	put_source(x);
	rc = run(x, &r, &e);
	buf_add(&said, "", 1);
	ck_assert_msg(rc == -x->code, "%d: %s", rc, e.msg);
	if (rc) {
		ck_assert_msg(strstr(e.msg, x->want) != NULL, "%s", e.msg);
		ck_assert_int_ne(faccessat(dir_fd, "dest", F_OK, 0), 0);
		return;
	}
	ck_assert_msg(*x->want ? strstr((char *)said.data, x->want) != NULL : said.len == 1, "%s",
		      (char *)said.data);
	ck_assert_uint_eq(r.tensors, x->gguf ? 1 : 3);
	(void)snprintf(dest, sizeof(dest), "%s/dest", dir);
	ck_assert_msg(!open_typed(dest, &o, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(ckpt_tensor_find(c, x->gguf ? "w" : "b", 1), x->gguf ? 0 : 1);
	ckpt_close(c);
}
END_TEST

/* The same without a caller that wants warnings. */
START_TEST(warnings_may_go_to_nobody)
{
	struct ckpt_reshard r = { .warn = NULL };
	struct ckpt_err e = { 0 };

	put_source(&rows[ARRAY_LEN(rows) - 1]);
	ck_assert_msg(!run(&rows[ARRAY_LEN(rows) - 1], &r, &e), "%s", e.msg);
	ck_assert_uint_eq(r.objects, 1);
}
END_TEST

/* More than a semaphore can have: it would wait for ever. */
START_TEST(any_number_of_jobs_is_possible)
{
	struct ckpt_reshard r = { .jobs = UINT_MAX };
	struct ckpt_err e = { 0 };

	put_source(&rows[1]);
	ck_assert_msg(!run(&rows[1], &r, &e), "%s", e.msg);
	ck_assert_uint_eq(r.tensors, 3);
}
END_TEST

START_TEST(a_run_is_not_written)
{
	struct ckpt_opts o = { .index = ":memory:", .runs = true };
	struct ckpt_reshard r = { .format = CKPT_DCP };
	static const struct ckpt_save_opts save;
	struct rng rng = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char dest[4200];

	REQUIRE(!mkdirat(dir_fd, "step-1", 0700) && !mkdirat(dir_fd, "step-2", 0700));
	st_put(dir_fd, "step-1/model.safetensors", &rng, "a F32 4x3");
	st_put(dir_fd, "step-2/model.safetensors", &rng, "a F32 4x3");
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	(void)snprintf(dest, sizeof(dest), "%s/dest", dir);
	r.save = &save;
	ck_assert_int_eq(ckpt_reshard(c, dest, &r, &e), -EISDIR);
	ck_assert_msg(strstr(e.msg, "it is a run") != NULL, "%s", e.msg);
	ckpt_close(c);
}
END_TEST

START_TEST(a_tensor_and_an_object_of_one_name_are_refused)
{
	static const struct row formats[] = {
		{ .format = CKPT_DCP, .dest = "dest" },
		{ .format = CKPT_HYPERPARALLEL, .dest = "dest" },
		{ .format = CKPT_SAFETENSORS, .dest = "dest" },
	};

	REQUIRE(!mkdirat(dir_fd, "source", 0700));
	gguf_put(dir_fd, "source/m.gguf", "x", "w 1", "", "w F32 4x3");
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		struct ckpt_reshard r = { .warn = NULL };
		struct ckpt_err e = { 0 };
		int rc = run(&formats[i], &r, &e);

		if (formats[i].format == CKPT_SAFETENSORS) {
			ck_assert_msg(!rc, "%s", e.msg);
			continue;
		}
		ck_assert_int_eq(rc, -EINVAL);
		ck_assert_msg(strstr(e.msg, "'w' is the name of a tensor and of an object") != NULL,
			      "%s", e.msg);
	}
}
END_TEST

static bool holds_open(const char *name)
{
	DIR *fds = opendir("/proc/self/fd");
	char target[4200];
	bool found = false;
	struct dirent *d;

	REQUIRE(fds);
	while ((d = readdir(fds))) {
		ssize_t n = readlinkat(dirfd(fds), d->d_name, target, sizeof(target) - 1);

		target[n < 0 ? 0 : n] = 0;
		found |= strstr(target, name) != NULL;
	}
	REQUIRE(!closedir(fds));
	return found;
}

/* On NFS a directory with a file that is open cannot be removed. */
START_TEST(what_is_replaced_by_itself_is_closed_before)
{
	static const char config[] = "{\"model_type\": \"llama\"}";
	static const struct ckpt_save_opts save = { .overwrite = true };
	struct ckpt_reshard r = { .format = CKPT_SAFETENSORS, .model = true, .save = &save };
	struct ckpt_opts o = { .index = ":memory:" };
	struct rng rng = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char source[4200];

	(void)snprintf(source, sizeof(source), "%s/source", dir);
	REQUIRE(!mkdirat(dir_fd, "source", 0700));
	st_put(dir_fd, "source/model.safetensors", &rng, "a F32 4x3; b F32 3");
	put_file(dir_fd, "source/config.json", config, strlen(config));
	ck_assert_msg(!open_typed(source, &o, &c, &e), "%s", e.msg);
	ck_assert_msg(!ckpt_reshard(c, source, &r, &e), "%s", e.msg);
	ck_assert(!holds_open("/model.safetensors"));
	ck_assert(!holds_open("/config.json"));
	ckpt_close(c);
}
END_TEST

SUITE(reshard, .setup = dir_setup, .teardown = dir_teardown, .seconds = 30)
