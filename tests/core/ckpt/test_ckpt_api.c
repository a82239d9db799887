/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls every function of ckpt.h, ckpt_mount.h and ckpt_report.h on a checkpoint and on a run, with
 * numbers and nodes that exist and that do not: each gives an answer, or an error with a sentence,
 * as the header says. The headers themselves are searched for functions, so that one without a row
 * here is noticed.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "opts_util.h"
#include "rng.h"
#include "suites.h"
#include <ckptfs/ckpt_mount.h>
#include <ckptfs/ckpt_report.h>
#include <ckptfs/ckpt_save.h>
#include <ckptfs/ckpt_sum.h>
#include <ckptfs/ckpt_upload.h>
#include <ckptfs/ckpt_values.h>

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_NODES = 4096, MAX_DEPTH = 8 };

/* A checkpoint or a run, on which the functions are called. */
struct side {
	struct ckpt *c;
	bool is_run;
	struct ckpt_totals totals;
	size_t n_nodes, n_files;
	ckpt_node nodes[MAX_NODES]; /* all of the tree, and many that do not exist */
	ckpt_node files[MAX_NODES]; /* those that can be opened */
	struct ckpt_file *open[MAX_NODES];
};

static struct side sides[2];

static const uint64_t numbers[] = {
	0,
	1,
	2,
	3,
	4,
	1000,
	UINT32_MAX,
	(uint64_t)UINT32_MAX + 1,
	UINT64_MAX / 2,
	UINT64_MAX / 2 + 1,
	UINT64_MAX,
};

/* Success, or an allowed error with a sentence. */
static void well(int64_t rc, const struct ckpt_err *e, int allowed)
{
	if (rc >= 0)
		return;
	if (rc != -allowed || e->code != allowed || !e->msg[0])
		ck_abort_msg("%lld (%d allowed): %s", (long long)rc, allowed, e->msg);
}

/* ---- what there is ---- */

static void call_version(struct side *s)
{
	(void)s;
	ck_assert_str_eq(ckpt_version(), CKPTFS_VERSION);
}

static void call_option(struct side *s)
{
	size_t n = 0;

	(void)s;
	for (const struct ckpt_option *x; (x = ckpt_option(n)); n++)
		ck_assert(*x->name && *x->help && !x->value == (x->form == CKPT_OPTION_FLAG));
	ck_assert_uint_gt(n, 15);
	ck_assert_ptr_null(ckpt_option(SIZE_MAX));
}

/* By setup and teardown; here without anything. */
static void call_open(struct side *s)
{
	const struct ckpt_opts opts = { .index = ":memory:" };
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	int rc = open_typed(s->is_run ? dir : "/nothing", &opts, &c, &e);

	ck_assert_int_eq(rc, s->is_run ? -EISDIR : -ENOENT);
	ck_assert(e.msg[0]);
}

static void call_close(struct side *s)
{
	(void)s;
	ckpt_close(NULL);
}

static void call_recipe(struct side *s)
{
	size_t n = 0;

	(void)s;
	for (const char *summary, *text; ckpt_recipe(n, &summary, &text); n++)
		ck_assert(summary && text);
	ck_assert_uint_gt(n, 0);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		const char *summary, *text;

		ck_assert(!ckpt_recipe(numbers[i], &summary, &text) == (numbers[i] >= n));
	}
}

static void call_totals(struct side *s)
{
	struct ckpt_totals t;

	ckpt_totals(s->c, &t);
	ck_assert(t.format && t.index && t.identity && (s->is_run || t.model_prefix));
	ck_assert_uint_eq(t.ranks, !s->is_run);
	ck_assert_uint_eq(t.tensors, s->is_run ? 0 : 3);
	ck_assert_uint_eq(t.objects, s->is_run ? 0 : 1);
	ck_assert_uint_eq(t.model_tensors, s->is_run ? 0 : 2);
	ck_assert_str_eq(t.format, s->is_run ? "run" : "dcp");
}

static void look_at(const struct ckpt_tensor *t, bool is_there)
{
	ck_assert(t->fqn && t->dtype);
	ck_assert_uint_eq(t->fqn_len, strlen(t->fqn));
	ck_assert(is_there == (t->fqn_len > 0) && is_there == !t->fault);
	ck_assert(!t->n_dims || t->shape);
	if (!is_there)
		ck_assert_str_eq(t->fault, "no tensor has this number");
}

static void call_tensor(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_tensor t;

		ckpt_tensor(s->c, numbers[i], &t);
		look_at(&t, numbers[i] < s->totals.tensors);
	}
}

static void call_model_tensors(struct side *s)
{
	ck_assert_uint_eq(ckpt_model_tensors(s->c), s->totals.model_tensors);
}

static void call_model_tensor(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_tensor t;

		ckpt_model_tensor(s->c, numbers[i], &t);
		look_at(&t, numbers[i] < s->totals.model_tensors);
	}
}

static void call_parameters(struct side *s)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < s->totals.model_tensors; i++) {
		struct ckpt_tensor t;

		ckpt_model_tensor(s->c, i, &t);
		n += t.bytes / t.element;
	}
	ck_assert_uint_eq(ckpt_parameters(s->c), n);
	ck_assert(!n == s->is_run);
}

static void call_family(struct side *s)
{
	static const char family[] = "lla%1B (OfNobody)";
	char buf[CKPT_FAMILY_MAX] = "x";

	ck_assert_uint_eq(ckpt_family(s->c, buf, 0), s->is_run ? 0 : strlen(family));
	ck_assert_str_eq(buf, "x");
	ck_assert_uint_eq(ckpt_family(s->c, buf, 4), s->is_run ? 0 : strlen(family));
	ck_assert_str_eq(buf, s->is_run ? "" : "lla");
	(void)ckpt_family(s->c, buf, sizeof(buf));
	ck_assert_str_eq(buf, s->is_run ? "" : family);
}

static int refuse_step(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e)
{
	++*(size_t *)arg;
	(void)ret;
	return err_set(e, EIO, "no '%s' today", checkpoint);
}

static void call_report(struct side *s)
{
	struct ckpt_report r = { .path = "a<b>", .stat = true, .jobs = 1 };
	struct ckpt_err e = { 0 };
	size_t len = 0, asked = 0;
	char *page = NULL;

	ck_assert_msg(!ckpt_report(s->c, &r, &page, &len, &e), "%s", e.msg);
	ck_assert_uint_eq(len, strlen(page));
	ck_assert(strstr(page, "<title>a&#60;b&#62; - ckptfs report</title>"));
	ck_assert(strstr(page, "id=\"data-values\"")); /* a run's latest */
	free(page);
	page = NULL;
	r.open = refuse_step;
	r.arg = &asked;
	ck_assert_int_eq(ckpt_report(s->c, &r, &page, &len, &e), s->is_run ? -EIO : 0);
	ck_assert_uint_eq(asked, s->is_run ? 3 : 0); /* each checkpoint, and the latest */
	free(page);
	r.path = NULL;
	ck_assert_int_eq(ckpt_report(s->c, &r, &page, &len, &e), -EINVAL);
}

static void call_diff_report(struct side *s)
{
	struct ckpt_diff_report r = { .path_a = "a<b>", .path_b = "b", .jobs = 1 };
	struct ckpt_err e = { 0 };
	size_t len = 0;
	char *page = NULL;
	int rc = ckpt_diff_report(s->c, s->c, &r, &page, &len, &e);

	ck_assert_int_eq(rc, s->is_run ? -EISDIR : 0);
	if (rc)
		return;
	ck_assert_uint_eq(len, strlen(page));
	ck_assert(strstr(page, "<title>a&#60;b&#62; \xE2\x86\x92 b - ckptfs report</title>"));
	ck_assert(strstr(page, "id=\"data-diff\""));
	ck_assert(r.names && r.counts[CKPT_DIFF_EQUAL] == r.names);
	free(page);
	r.path_b = NULL;
	ck_assert_int_eq(ckpt_diff_report(s->c, s->c, &r, &page, &len, &e), -EINVAL);
}

static void call_tensor_find(struct side *s)
{
	ck_assert_int_eq(ckpt_tensor_find(s->c, "model.w", 7), s->is_run ? -1 : 1);
	ck_assert_int_eq(ckpt_tensor_find(s->c, "nothing", 7), -1);
	ck_assert_int_eq(ckpt_tensor_find(s->c, "", 0), -1);
}

static void call_model_find(struct side *s)
{
	ck_assert_int_eq(ckpt_model_find(s->c, "w", 1), s->is_run ? -1 : 1);
	ck_assert_int_eq(ckpt_model_find(s->c, "model.w", 7), -1);
}

static void call_model_stored(struct side *s)
{
	ck_assert_int_eq(ckpt_model_stored(s->c, "w", 1),
			 s->is_run ? -1 : ckpt_tensor_find(s->c, "model.w", 7));
	ck_assert_int_eq(ckpt_model_stored(s->c, "model.w", 7), -1);
}

static void call_similar(struct side *s)
{
	char buf[64] = "x";

	ck_assert_uint_eq(ckpt_similar(s->c, "modle.w", 7, buf, 0), 0);
	ck_assert_str_eq(buf, "x");
	ck_assert_uint_eq(ckpt_similar(s->c, "xmodel.w", 8, buf, sizeof(buf)), strlen(buf));
	ck_assert(s->is_run ? !*buf : strstr(buf, "'model.w'") != NULL);
	ck_assert_uint_eq(ckpt_similar(s->c, "xmodel.w", 8, buf, 3), 0); /* it does not fit */
	ck_assert_str_eq(buf, "");
}

static void call_nearest(struct side *s)
{
	static const char *const names[] = { "mount", "dequantize", "umount" };

	(void)s;
	ck_assert_uint_eq(ckpt_nearest("dequantise=x", 10, names, 3), 1);
	ck_assert_uint_eq(ckpt_nearest("mout", 4, names, 3), 0);
	ck_assert_uint_eq(ckpt_nearest("frob", 4, names, 3), 3);
	ck_assert_uint_eq(ckpt_nearest("mount", 5, names, 0), 0);
}

static void call_object_find(struct side *s)
{
	ck_assert_int_eq(ckpt_object_find(s->c, "step", 4), s->is_run ? -1 : 0);
	ck_assert_int_eq(ckpt_object_find(s->c, "model.w", 7), -1);
}

static void call_rank_box(struct side *s)
{
	uint64_t off[64], len[64];

	for (size_t r = 0; r < ARRAY_LEN(numbers); r++)
		for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
			ck_assert_int_eq(ckpt_rank_box(s->c, numbers[r], numbers[i], off, len),
					 !s->is_run && numbers[r] < 2 &&
						 numbers[i] < s->totals.model_tensors);
}

static void check_error(const struct side *s, uint64_t i, uint64_t n, int rc,
			const struct ckpt_err *e)
{
	if (i < n) {
		ck_assert_int_eq(rc, 0);
		return;
	}
	ck_assert_int_eq(rc, -EINVAL);
	ck_assert_int_eq(e->code, EINVAL);
	if (s->is_run)
		ck_assert_str_eq(e->msg, "it is a run, which has no tensors of its own");
	else
		ck_assert_ptr_nonnull(strstr(e->msg, " does not exist: "));
}

static void call_tensor_files(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_err e = { 0 };
		uint64_t n;

		check_error(s, numbers[i], s->totals.tensors,
			    ckpt_tensor_files(s->c, numbers[i], &n, &e), &e);
	}
}

typedef int slice_fn(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
		     struct ckpt_err *e);

static void slices(struct side *s, slice_fn *read, uint64_t n)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		const struct ckpt_slice all = { 0 };
		struct ckpt_err e = { 0 };
		uint8_t to[4096];

		check_error(s, numbers[i], n, read(s->c, numbers[i], &all, to, &e), &e);
	}
}

static void call_slice_read(struct side *s)
{
	slices(s, ckpt_slice_read, s->totals.tensors);
}

static void call_model_slice_read(struct side *s)
{
	slices(s, ckpt_model_slice_read, s->totals.model_tensors);
}

static int count_chunk(void *arg, const struct ckpt_chunk *chunk)
{
	ck_assert(chunk->path && chunk->encoding);
	++*(unsigned *)arg;
	return 0;
}

static void call_tensor_chunks(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_err e = { 0 };
		unsigned n = 0;

		check_error(s, numbers[i], s->totals.tensors,
			    ckpt_tensor_chunks(s->c, numbers[i], count_chunk, &n, &e), &e);
		ck_assert_uint_eq(n > 0, numbers[i] < s->totals.tensors);
	}
}

static void call_object(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_object o;

		ckpt_object(s->c, numbers[i], &o);
		ck_assert(o.fqn && o.path && o.encoding);
		if (numbers[i] < s->totals.objects)
			ck_assert(!o.fault && o.fqn_len);
		else
			ck_assert_str_eq(o.fault, "there is no object with that number");
	}
}

static void call_object_json(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_err e = { 0 };
		char *text = NULL;
		size_t len = 0;
		int rc = ckpt_object_json(s->c, numbers[i], &text, &len, &e);

		ck_assert_int_eq(rc, numbers[i] < s->totals.objects ? 0 : -EINVAL);
		if (rc)
			ck_assert_ptr_nonnull(strstr(e.msg, s->is_run ? "no objects of its own"
								      : " does not exist: "));
		else
			ck_assert(len == strlen(text) && text[len - 1] == '\n');
		free(text);
	}
}

static void call_tensor_path(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_step steps[8];
		size_t n = ckpt_tensor_path(s->c, numbers[i], steps, 8);

		ck_assert(!n || numbers[i] < s->totals.tensors);
	}
}

static void call_object_path(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_step steps[8];
		size_t n = ckpt_object_path(s->c, numbers[i], steps, 8);

		ck_assert(!n || numbers[i] < s->totals.objects);
	}
}

/* ---- runs ---- */

static void call_is_run(struct side *s)
{
	ck_assert_int_eq(ckpt_is_run(s->c), s->is_run);
}

static int count_entry(void *arg, const struct ckpt_run_entry *entry)
{
	ck_assert(entry->name && entry->complete);
	++*(unsigned *)arg;
	return 0;
}

static void call_run_each(struct side *s)
{
	struct ckpt_err e = { 0 };
	unsigned n = 0;

	ck_assert_int_eq(ckpt_run_each(s->c, count_entry, &n, &e), s->is_run ? 0 : -EINVAL);
	ck_assert_uint_eq(n, s->is_run ? 2 : 0);
	ck_assert_str_eq(e.msg, s->is_run ? "" : "it is a checkpoint, not a run");
}

static void call_run_look(struct side *s)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_run_look(s->c, NULL, NULL, &e), s->is_run ? 0 : -EINVAL);
	ck_assert_str_eq(e.msg, s->is_run ? "" : "it is a checkpoint, not a run");
}

static void call_run_open(struct side *s)
{
	static const char *const paths[] = {
		"step-1/tensors/x", "latest", "", "/", "nothing/x", "."
	};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct ckpt_opts o = { .index = ":memory:" };
		struct ckpt *one = NULL;
		struct ckpt_err e = { 0 };
		const char *rest;
		int rc = ckpt_run_open(s->c, paths[i], words_of(&o), NULL, &one, &rest, &e);

		if (s->is_run && i < 2) {
			ck_assert_int_eq(rc, 0);
			ckpt_close(one);
			ck_assert_str_eq(rest, i ? "" : "tensors/x");
			continue;
		}
		ck_assert_int_eq(rc, s->is_run ? -ENOENT : -EINVAL);
		ck_assert(e.msg[0]);
	}
}

static void call_info_json(struct side *s)
{
	autofree char *text = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(ckpt_info_json(s->c, &text, &n, &e), 0);
	ck_assert_uint_eq(strnlen(text, n), n);
}

static int count_verdict(void *arg, const struct ckpt_verdict *v)
{
	size_t *n = arg;

	ck_assert(*v->face && *v->text);
	return ++*n == 3 ? 7 : 0;
}

static void call_verdicts(struct side *s)
{
	struct ckpt_err e = { 0 };
	size_t n = 0;
	int rc = ckpt_verdicts(s->c, false, count_verdict, &n, &e);

	ck_assert_int_eq(rc, s->is_run ? -EISDIR : 7);
	ck_assert_uint_eq(n, s->is_run ? 0 : 3);
	ck_assert_int_eq(!e.msg[0], !s->is_run);
}

/* ---- the tree ---- */

static void call_lookup(struct side *s)
{
	static const char *const names[] = { "",	".",	     "..",     "tensors",
					     "model.w", "info.json", "step-1", "latest" };

	for (size_t i = 0; i < s->n_nodes; i++)
		for (size_t k = 0; k < ARRAY_LEN(names); k++) {
			ckpt_node found;
			int rc = ckpt_lookup(s->c, s->nodes[i], names[k], &found);

			REQUIRE(rc == 0 || rc == 1 || rc == -ESTALE);
		}
}

static void call_walk(struct side *s)
{
	static const char *const paths[] = { "",
					     "/",
					     ".",
					     "..",
					     "nothing/x",
					     "tensors",
					     "step-1/x/y",
					     "latest/tensors",
					     ".ckptfs/info.json",
					     "latest/.ckptfs/info.json/x" };

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct ckpt_err e = { 0 };
		ckpt_node found = 0;
		int rc = ckpt_walk(s->c, paths[i], &found, &e);

		well(rc, &e, ENOENT);
		ck_assert(rc || found);
	}
}

static void call_fqn_node(struct side *s)
{
	ckpt_node n;

	ck_assert_int_eq(ckpt_fqn_node(s->c, "model.w", 7, &n), s->is_run);
	ck_assert_int_eq(ckpt_fqn_node(s->c, "step", 4, &n), s->is_run);
	ck_assert_int_eq(ckpt_fqn_node(s->c, "nothing", 7, &n), 1);
}

static void check_node(struct side *s, ckpt_node node, bool is_there)
{
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(node != 0, is_there);
	ck_assert_int_eq(ckpt_stat(s->c, node, &st, &e), is_there ? 0 : -ENOENT);
}

static void call_tensor_node(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		check_node(s, ckpt_tensor_node(s->c, numbers[i]), numbers[i] < s->totals.tensors);
}

static void call_object_node(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		check_node(s, ckpt_object_node(s->c, numbers[i]), numbers[i] < s->totals.objects);
}

/* -ENOENT: there is no such node; -ESTALE: its checkpoint has gone from the run. */
static void well_of_node(int64_t rc, const struct ckpt_err *e)
{
	REQUIRE(rc >= 0 || ((rc == -ENOENT || rc == -ESTALE) && e->msg[0] && e->code == -rc));
}

static void call_stat(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		struct ckpt_stat st, type;
		struct ckpt_err e = { 0 };
		int rc = ckpt_stat(s->c, s->nodes[i], &st, &e);

		well_of_node(rc, &e);
		REQUIRE(ckpt_type(s->c, s->nodes[i], &type, &e) == rc);
		REQUIRE(rc || (st.node == s->nodes[i] && type.node == st.node &&
			       type.is_dir == st.is_dir && type.is_link == st.is_link));
	}
}

static void call_type(struct side *s)
{
	call_stat(s);
}

/* An error of that code, or one that says that there is no such node. */
static void refused_or_there(int64_t rc, const struct ckpt_err *e, int code, bool is_there)
{
	REQUIRE((rc >= 0) <= is_there);
	REQUIRE(rc >= 0 || ((rc == -code || rc == -ENOENT || rc == -ESTALE) && e->msg[0]));
}

static void call_readlink(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		char out[CKPT_NAME_MAX + 1];
		struct ckpt_err e = { 0 };
		struct ckpt_stat st = { 0 };
		int there = ckpt_stat(s->c, s->nodes[i], &st, &e);
		int64_t rc = ckpt_readlink(s->c, s->nodes[i], out, &e);

		refused_or_there(rc, &e, EINVAL, !there && st.is_link);
		REQUIRE((rc == -ENOENT) == (there == -ENOENT));
		REQUIRE(rc < 0 || strlen(out) == (size_t)rc);
	}
}

static void call_parent(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		struct ckpt_stat st;
		struct ckpt_err e = { 0 };

		REQUIRE(!ckpt_stat(s->c, ckpt_parent(s->c, s->nodes[i]), &st, &e));
		REQUIRE(st.is_dir);
	}
	ck_assert_uint_eq(ckpt_parent(s->c, CKPT_ROOT), CKPT_ROOT);
}

static void call_enter(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		struct ckpt_err e = { 0 };
		int rc = ckpt_enter(s->c, s->nodes[i], &e);

		well_of_node(rc, &e);
		REQUIRE(s->is_run || !rc);
	}
}

static void call_entry(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++)
		for (size_t k = 0; k < ARRAY_LEN(numbers); k++) {
			char name[CKPT_NAME_MAX + 1];
			ckpt_node found;
			int rc = ckpt_entry(s->c, s->nodes[i], numbers[k], name, &found);

			REQUIRE(rc == 0 || rc == 1 || rc == -ESTALE);
		}
}

static void call_next(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++)
		for (size_t k = 0; k < ARRAY_LEN(numbers); k++) {
			uint64_t pos = numbers[k];
			char name[CKPT_NAME_MAX + 1];
			ckpt_node found;
			int rc = ckpt_next(s->c, s->nodes[i], &pos, name, &found);

			REQUIRE(rc == 0 || rc == 1 || rc == -ESTALE);
			REQUIRE(rc || pos > numbers[k]);
		}
}

/* ---- files ---- */

static void call_file_open(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };
		struct ckpt_stat st = { 0 };
		bool file = !ckpt_stat(s->c, s->nodes[i], &st, &e) && !st.is_link && !st.is_dir;
		int rc = ckpt_file_open(s->c, s->nodes[i], &f, &e);

		REQUIRE(file == !rc);
		REQUIRE(!rc || (e.msg[0] &&
				(rc == -ENOENT || rc == -ESTALE || rc == -EISDIR || rc == -ELOOP)));
		ckpt_file_close(f);
	}
}

static void call_file_close(struct side *s)
{
	(void)s;
	ckpt_file_close(NULL);
}

static void call_file_open_path(struct side *s)
{
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_file_open_path(s->c, ".ckptfs/info.json", &f, &e), 0);
	ckpt_file_close(f);
	ck_assert_int_eq(ckpt_file_open_path(s->c, "nothing", &f, &e), -ENOENT);
	ck_assert_int_eq(ckpt_file_open_path(s->c, "", &f, &e), -EISDIR);
}

static void call_model_open(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };

		check_error(s, numbers[i], s->totals.model_tensors,
			    ckpt_model_open(s->c, numbers[i], &f, &e), &e);
		ckpt_file_close(f);
	}
}

typedef int box_fn(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
		   struct ckpt_file **ret, struct ckpt_err *e);

static void boxes(struct side *s, box_fn *open, uint64_t n)
{
	static const uint64_t off[64], one[64] = { 1, 1, 1 }, far[64] = { UINT64_MAX, 9, 9 };

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };

		check_error(s, numbers[i], n, open(s->c, numbers[i], off, one, &f, &e), &e);
		ckpt_file_close(f);
		ck_assert_int_eq(open(s->c, numbers[i], far, one, &f, &e), -EINVAL);
	}
}

static void call_box_open(struct side *s)
{
	boxes(s, ckpt_box_open, s->totals.tensors);
}

static void call_model_box_open(struct side *s)
{
	boxes(s, ckpt_model_box_open, s->totals.model_tensors);
}

static void call_file_size(struct side *s)
{
	for (size_t i = 0; i < s->n_files; i++) {
		struct ckpt_stat st;
		struct ckpt_err e = { 0 };

		REQUIRE(!ckpt_stat(s->c, s->files[i], &st, &e));
		REQUIRE(ckpt_file_size(s->open[i]) == st.size);
	}
}

static void call_file_is_plain(struct side *s)
{
	unsigned plain = 0;

	for (size_t i = 0; i < s->n_files; i++)
		plain += ckpt_file_is_plain(s->open[i]);
	ck_assert_uint_gt(plain, 0);
}

static void call_file_ahead(struct side *s)
{
	for (size_t i = 0; i < s->n_files; i++)
		ckpt_file_ahead(s->open[i]);
}

static void call_let_go(struct side *s)
{
	REQUIRE(!ckpt_let_go(s->c, 0));
}

static void call_file_is_stale(struct side *s)
{
	for (size_t i = 0; i < s->n_files; i++)
		REQUIRE(!ckpt_file_is_stale(s->open[i]));
}

static void call_file_read(struct side *s)
{
	for (size_t i = 0; i < s->n_files; i++)
		for (size_t k = 0; k < ARRAY_LEN(numbers); k++) {
			uint64_t size = ckpt_file_size(s->open[i]), off = numbers[k];
			uint64_t want = off < size ? min_u64(size - off, 100) : 0;
			struct ckpt_err e = { 0 };
			uint8_t buf[100];

			REQUIRE(ckpt_file_read(s->open[i], buf, sizeof(buf), off, &e) ==
				(int64_t)want);
		}
}

static void call_file_gather(struct side *s)
{
	struct ckpt_parts *parts = ckpt_parts_new();

	REQUIRE(parts);
	for (size_t i = 0; i < s->n_files; i++)
		for (size_t k = 0; k < ARRAY_LEN(numbers); k++) {
			uint64_t size = ckpt_file_size(s->open[i]), off = numbers[k];
			uint64_t want = off < size ? min_u64(size - off, 100) : 0;
			const struct iovec *iov;
			struct ckpt_err e = { 0 };
			uint8_t buf[100];
			int n;

			REQUIRE(ckpt_file_gather(s->open[i], buf, sizeof(buf), off, parts, &iov, &n,
						 &e) == (int64_t)want);
			ckpt_parts_release(parts);
		}
	ckpt_parts_free(parts);
	ckpt_parts_free(NULL);
}

static void call_parts_new(struct side *s)
{
	call_file_gather(s);
}

static void call_parts_free(struct side *s)
{
	call_file_gather(s);
}

static void call_parts_release(struct side *s)
{
	call_file_gather(s);
}

static void call_file_backing(struct side *s)
{
	unsigned found = 0;

	for (size_t i = 0; i < s->n_files; i++) {
		struct ckpt_err e = { 0 };
		autoclose int fd = -1;
		int rc = ckpt_file_backing(s->open[i], &fd, &e);

		REQUIRE(rc == 0 || rc == 1);
		REQUIRE((fd >= 0) == !rc);
		REQUIRE(!ckpt_file_written(s->open[i], &e));
		found += !rc;
	}
	ck_assert_uint_eq(found > 0, !s->is_run); /* config.json */
}

typedef int tensor_backing_fn(struct ckpt *c, uint64_t i, int *ret_fd, uint64_t *ret_off,
			      struct ckpt_err *e);

static void tensors_backing(struct side *s, tensor_backing_fn *backing, uint64_t n)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct ckpt_err e = { 0 };
		uint64_t off = 0;
		autoclose int fd = -1;
		int rc = backing(s->c, numbers[i], &fd, &off, &e);

		REQUIRE((fd >= 0) == !rc);
		check_error(s, numbers[i], n, rc > 0 ? 0 : rc, &e);
	}
}

static void call_tensor_backing(struct side *s)
{
	tensors_backing(s, ckpt_tensor_backing, s->totals.tensors);
}

static void call_model_backing(struct side *s)
{
	tensors_backing(s, ckpt_model_backing, s->totals.model_tensors);
}

static void call_file_written(struct side *s)
{
	call_file_backing(s);
}

static void call_xattr(struct side *s)
{
	static const char *const names[] = { "user.ckptfs.fqn",
					     "user.ckptfs.dtype",
					     "user.ckptfs.shape",
					     "user.ckptfs.chunks",
					     "user.ckptfs.files",
					     "user.other",
					     "" };

	for (size_t i = 0; i < s->n_nodes; i++)
		for (size_t k = 0; k < ARRAY_LEN(names); k++) {
			struct ckpt_err e = { 0 };
			char buf[100];
			int64_t n = ckpt_xattr(s->c, s->nodes[i], names[k], NULL, 0, &e);

			REQUIRE(n >= 0 || ((n == -ENODATA || n == -ESTALE) && e.msg[0]));
			REQUIRE(ckpt_xattr(s->c, s->nodes[i], names[k], buf, sizeof(buf), &e) == n);
		}
}

static void call_xattr_names(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		char buf[1000];
		int64_t n = ckpt_xattr_names(s->c, s->nodes[i], NULL, 0);

		REQUIRE(n >= 0 || n == -ESTALE);
		REQUIRE(ckpt_xattr_names(s->c, s->nodes[i], buf, sizeof(buf)) == n);
	}
}

/* ---- the rest ---- */

static void call_counters(struct side *s)
{
	struct ckpt_counters n;

	call_file_read(s);
	ckpt_counters(s->c, &n);
	ck_assert_uint_gt(n.source_bytes, 0);
	ck_assert_uint_eq(n.faults, 0);
}

static void call_network(struct side *s)
{
	struct ckpt_network n;

	ck_assert(!ckpt_network(s->c, &n)); /* it is on this machine */
}

static int count_source(void *arg, const struct ckpt_source *s)
{
	ck_assert_int_eq(s->path[0], '/');
	++*(unsigned *)arg;
	return 0;
}

static void call_sources(struct side *s)
{
	unsigned n = 0;

	for (size_t i = 0; i < s->n_nodes; i++) {
		struct ckpt_err e = { 0 };

		struct ckpt_stat st;
		int there = ckpt_stat(s->c, s->nodes[i], &st, &e);
		int rc = ckpt_sources(s->c, s->nodes[i], count_source, &n, &e);

		well_of_node(rc, &e);
		REQUIRE(there != -ENOENT || rc == -ENOENT);
	}
	ck_assert_uint_gt(n, 0);
	n = 0;
	ck_assert_int_eq(ckpt_sources(s->c, CKPT_ROOT, count_source, &n, &(struct ckpt_err){ 0 }),
			 0);
	ck_assert_int_eq(n > 0, !s->is_run);
}

static int bring_source(void *arg, const struct ckpt_source *x)
{
	struct side *s = arg;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!ckpt_source_bring(s->c, x->path, x->off, x->len, &e), "%s", e.msg);
	return 0;
}

static void call_source_bring(struct side *s)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_sources(s->c, CKPT_ROOT, bring_source, s, &e), 0);
	ck_assert_int_eq(ckpt_source_bring(s->c, "/nothing", 0, 1, &e),
			 s->is_run ? -EISDIR : -ENOENT);
	ck_assert(*e.msg);
}

static void call_assets(struct side *s)
{
	struct ckpt_err e = { 0 };
	unsigned n = 0;

	ck_assert_int_eq(ckpt_assets(s->c, count_source, &n, &e), 0);
	ck_assert_uint_eq(n, s->is_run ? 0 : 1);
}

static void call_address(struct side *s)
{
	autofree char *path = NULL, *none = NULL;
	struct ckpt_err e = { 0 };

	(void)s;
	ck_assert_int_eq(ckpt_address(dir, &path, &e), 0);
	ck_assert_int_eq(*path, '/');
	ck_assert_int_eq(ckpt_address("/dev/null/nothing", &none, &e), -ENOTDIR);
	ck_assert_ptr_null(none);
}

static void call_beyond(struct side *s)
{
	ck_assert_ptr_null(ckpt_beyond(s->c));
}

static void call_index_why(struct side *s)
{
	ck_assert_ptr_null(ckpt_index_why(s->c));
}

static int no_other(void *arg, const char *path)
{
	(void)arg;
	ck_abort_msg("%s", path);
	return 1;
}

static void call_others(struct side *s)
{
	ck_assert_int_eq(ckpt_others(s->c, no_other, NULL), 0);
}

static void call_expect(struct side *s)
{
	static const char *const over[] = { "overlay=hf://a/b", NULL }, *const bad[] = { "x",
											 NULL };
	struct ckpt_err e = { 0 };

	(void)s;
	ck_assert_int_eq(ckpt_expect(dir, NULL, &e), 0);
	ck_assert_int_eq(ckpt_expect(dir, over, &e), 1);
	ck_assert_int_eq(ckpt_expect("s3://bucket/run", NULL, &e), 1);
	ck_assert_int_eq(ckpt_expect("file:///", NULL, &e), 1);
	ck_assert_int_eq(ckpt_expect("s3://bucket/run", bad, &e), -EINVAL);
}

/* The threads that it stops are those for checkpoints elsewhere: see test_remote. */
static void call_rest(struct side *s)
{
	(void)s;
	ckpt_rest();
}

static void call_index_dir(struct side *s)
{
	autofree char *path = ckpt_index_dir();

	(void)s;
	ck_assert(!path || *path == '/');
}

static void call_check(struct side *s)
{
	struct ckpt_check k = { .data = true };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_check(s->c, &k, &e), s->is_run ? -EISDIR : 0);
	ck_assert_str_eq(e.msg, s->is_run ? "it is a run" : "");
	ck_assert_uint_eq(k.faults, 0);
}

static void call_name(struct side *s)
{
	for (size_t i = 0; i < s->n_nodes; i++) {
		char name[CKPT_NAME_MAX + 1] = "?";
		int rc = ckpt_name(s->c, s->nodes[i], name);
		ckpt_node found;

		ck_assert(rc <= 1);
		/* A run also has numbers that no lookup gives. */
		if (!rc && !s->is_run)
			ck_assert(
				!ckpt_lookup(s->c, ckpt_parent(s->c, s->nodes[i]), name, &found) &&
				found == s->nodes[i]);
	}
	ck_assert_int_eq(ckpt_name(s->c, CKPT_ROOT, (char[CKPT_NAME_MAX + 1]){ 0 }), 1);
}

static void call_asset(struct side *s)
{
	struct ckpt_asset a;

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		ck_assert(ckpt_asset(s->c, numbers[i], &a) == (!s->is_run && !numbers[i]));
}

static void call_asset_refused(struct side *s)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		ck_assert_ptr_null(ckpt_asset_refused(s->c, numbers[i]));
}

static void call_origin(struct side *s)
{
	struct ckpt_err e = { 0 };
	struct ckpt_origin o = { 0 };

	ck_assert_int_eq(ckpt_origin(s->c, &o, &e), s->is_run ? -EISDIR : 0);
	ck_assert_uint_eq(strlen(o.metadata), s->is_run ? 0 : 32);
	ck_assert(!s->is_run || e.msg[0]);
}

/* ---- all of them ---- */

/* clang-format off */
#define API(X) \
	X(version) X(option) X(open) X(close) X(recipe) X(totals) X(tensor) X(model_tensors) \
	X(model_tensor) X(parameters) X(family) X(tensor_find) X(model_find) X(model_stored) X(similar) X(nearest) X(rank_box) \
	X(tensor_files) X(slice_read) \
	X(model_slice_read) X(tensor_chunks) X(object) X(object_find) X(tensor_path) \
	X(object_path) X(object_json) X(is_run) X(run_each) X(run_look) X(run_open) X(info_json) \
	X(verdicts) X(lookup) X(walk) \
	X(fqn_node) X(tensor_node) X(object_node) X(stat) X(type) X(readlink) X(parent) X(name) \
	X(enter) X(entry) X(next) X(file_open) X(model_open) X(box_open) X(model_box_open) \
	X(file_open_path) X(file_close) X(file_size) X(file_is_plain) X(file_ahead) X(let_go) \
	X(file_is_stale) X(file_read) X(parts_new) X(parts_free) X(file_gather) X(parts_release) \
	X(file_backing) X(tensor_backing) X(model_backing) X(file_written) X(xattr) X(xattr_names) X(counters) X(network) X(sources) X(source_bring) X(assets) \
	X(asset) X(asset_refused) X(origin) X(address) X(beyond) X(others) X(expect) X(rest) X(index_dir) X(index_why) X(check) \
	X(report) X(diff_report)

#define ROW(name) { "ckpt_" #name, call_##name },
static const struct {
	const char *name;
	void (*call)(struct side *s);
} rows[] = { API(ROW) };
/* clang-format on */

/* ---- the two ---- */

static void put_text(int fd, const char *name, const char *text)
{
	put_file(fd, name, text, strlen(text));
}

static void save(const char *name)
{
	static const char *const fqns[] = { "model.v", "model.w", "optim.m" };
	autoclose int fd = -1;
	struct dcp d;

	REQUIRE(!mkdirat(dir_fd, name, 0700));
	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	put_text(fd, "config.json",
		 "{\"model_type\": \"lla\\u001b\", \"architectures\": [\"OfNobody\"]}");
	dcp_begin(&d, fd);
	for (unsigned i = 0; i < ARRAY_LEN(fqns); i++) {
		const struct scene_opts o = { .element = 4, .tiling = TILE_GRID };
		const uint64_t shape[] = { 6, 4 };
		struct rng r = rng_new();
		struct choose choose = choose_rng(&r);
		struct scene s;

		scene_make_shape(&s, &choose, &o, 2, shape);
		dcp_scene(&d, fqns[i], strlen(fqns[i]), &s, i, i == 1);
		scene_release(&s);
	}
	dcp_bytes(&d, "step", 4, "12", 2, 3, 0);
	dcp_end(&d, ".metadata");
}

static void add_node(struct side *s, ckpt_node node)
{
	REQUIRE(s->n_nodes < MAX_NODES);
	s->nodes[s->n_nodes++] = node;
}

static void add_tree(struct side *s, ckpt_node at, unsigned depth)
{
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_err e = { 0 };
	struct ckpt_stat st;
	ckpt_node found;

	REQUIRE(!ckpt_stat(s->c, at, &st, &e));
	add_node(s, at);
	if (!st.is_dir && !st.is_link) {
		REQUIRE(!ckpt_file_open(s->c, at, &s->open[s->n_files], &e));
		s->files[s->n_files++] = at;
	}
	REQUIRE(depth < MAX_DEPTH);
	for (uint64_t pos = 0; st.is_dir && !ckpt_next(s->c, at, &pos, name, &found);)
		add_tree(s, found, depth + 1);
}

/* Nodes of the tree with one or two bits changed, and random ones. */
static void add_strange_nodes(struct side *s)
{
	struct rng r = rng_new();
	size_t n = s->n_nodes;

	add_node(s, 0);
	add_node(s, UINT64_MAX);
	for (unsigned bit = 0; bit < 64; bit++) {
		add_node(s, (uint64_t)1 << bit);
		add_node(s, ((uint64_t)1 << bit) - 1);
		add_node(s, s->nodes[rng_below(&r, n)] ^ (uint64_t)1 << bit);
	}
	for (unsigned i = 0; i < 400; i++) {
		add_node(s, rng_u64(&r));
		add_node(s, s->nodes[rng_below(&r, n)] ^ (uint64_t)1 << rng_below(&r, 64));
		add_node(s, s->nodes[rng_below(&r, n)] ^ (uint64_t)1 << rng_below(&r, 48) ^
				    (uint64_t)1 << rng_below(&r, 48));
	}
}

static void open_side(struct side *s, bool run)
{
	autofree char *path = NULL, *layout = NULL;
	struct ckpt_opts opts = { .index = ":memory:", .runs = run, .map_files = true };
	struct ckpt_err e = { 0 };

	REQUIRE(asprintf(&path, "%s%s", dir, run ? "" : "/step-1") > 0);
	REQUIRE(asprintf(&layout, "%s/.layout", dir) > 0);
	opts.layout = layout;
	*s = (struct side){ .is_run = run };
	if (open_typed(path, &opts, &s->c, &e))
		ck_abort_msg("%s", e.msg);
	ckpt_totals(s->c, &s->totals);
	add_tree(s, CKPT_ROOT, 0);
	add_strange_nodes(s);
}

static void close_side(struct side *s)
{
	for (size_t i = 0; i < s->n_files; i++)
		ckpt_file_close(s->open[i]);
	ckpt_close(s->c);
}

static void setup(void)
{
	dir_setup();
	put_text(dir_fd, ".layout", "mesh dp=2\n* dp:0\n");
	save("step-1");
	save("step-2");
	open_side(&sides[0], false);
	open_side(&sides[1], true);
}

static void teardown(void)
{
	close_side(&sides[0]);
	close_side(&sides[1]);
	(void)close(dir_fd);
}

START_LOOP_TEST(any_function_answers_of_a_checkpoint_and_of_a_run, 2 * ARRAY_LEN(rows))
{
	rows[_i / 2].call(&sides[_i % 2]);
}
END_TEST

/* The functions that the headers declare: the name before the '(' that follows each CKPT_API. */
START_TEST(all_functions_of_the_headers_are_called)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };
	size_t found = 0;

	if (io_read_file("core/include/ckptfs/ckpt.h", &b, &e) ||
	    io_read_file("core/include/ckptfs/ckpt_mount.h", &b, &e) ||
	    io_read_file("core/include/ckptfs/ckpt_report.h", &b, &e))
		ck_abort_msg("%s", e.msg);
	buf_add(&b, "", 1);
	for (const char *p = b.data; (p = strstr(p, "\nCKPT_API ")); found++) {
		const char *end, *name;
		size_t i = 0;

		p += strlen("\nCKPT_API ");
		name = end = p + strcspn(p, "(");
		while (isalnum((unsigned char)name[-1]) || name[-1] == '_')
			name--;
		if (!strncmp(end - strlen("_sized"), "_sized", strlen("_sized")))
			end -= strlen("_sized");
		while (i < ARRAY_LEN(rows) && (strlen(rows[i].name) != (size_t)(end - name) ||
					       strncmp(rows[i].name, name, (size_t)(end - name))))
			i++;
		if (i == ARRAY_LEN(rows))
			ck_abort_msg("%.*s has no row here", (int)(end - name), name);
	}
	ck_assert_uint_eq(found, ARRAY_LEN(rows));
}
END_TEST

/* A program may know fewer members of a structure than the library, or more. */
START_TEST(structures_of_other_versions_are_filled_as_far_as_both_know)
{
	struct {
		struct ckpt_totals known;
		char more[16];
	} newer;
	struct ckpt *c = sides[0].c;
	struct ckpt_totals t, old;

	memset(&newer, 0x5a, sizeof(newer));
	ckpt_totals_sized(c, &newer.known, sizeof(newer));
	ckpt_totals(c, &t);
	ck_assert_uint_eq(newer.known.tensors, t.tensors);
	ck_assert_str_eq(newer.known.identity, t.identity);
	for (size_t i = 0; i < sizeof(newer.more); i++)
		REQUIRE(!newer.more[i]);
	memset(&old, 0x5a, sizeof(old));
	ckpt_totals_sized(c, &old, offsetof(struct ckpt_totals, chunks));
	ck_assert_uint_eq(old.tensors, t.tensors);
	ck_assert_uint_eq(old.objects, t.objects);
	for (size_t i = offsetof(struct ckpt_totals, chunks); i < sizeof(old); i++)
		REQUIRE(((const char *)&old)[i] == 0x5a);
}
END_TEST

START_TEST(what_a_newer_program_asks_for_is_refused)
{
	struct {
		struct ckpt_slice known;
		uint64_t more;
	} s = { .known = { 0 }, .more = 0 };
	struct ckpt_err e = { 0 };
	struct ckpt *c = sides[0].c;
	struct ckpt_tensor t;
	autofree char *to = NULL;

	ckpt_tensor(c, 0, &t);
	to = malloc(t.bytes);
	REQUIRE(to && t.bytes);
	ck_assert_int_eq(ckpt_slice_read_sized(c, 0, &s.known, sizeof(s), to, &e), 0);
	s.more = 1;
	ck_assert_int_eq(ckpt_slice_read_sized(c, 0, &s.known, sizeof(s), to, &e), -ENOTSUP);
	ck_assert_str_eq(e.msg, "struct ckpt_slice has members that libckpt " CKPTFS_VERSION
				" does not know");
}
END_TEST

static int any_values(void *arg, const struct ckpt_values_item *item)
{
	(void)arg;
	(void)item;
	return 0;
}

static int any_sum(void *arg, const struct ckpt_sum_item *item)
{
	(void)arg;
	(void)item;
	return 0;
}

/* A value that the library does not know must not count as one that it knows. */
START_TEST(values_of_an_enumeration_that_are_not_known_are_refused)
{
	struct ckpt_values_scan scan = { .each = any_values, .by = CKPT_VALUES_RANK + 1 };
	const struct ckpt_text text = { .form = CKPT_TEXT_JSON + 1 };
	struct ckpt_sum sum = { .each = any_sum, .kind = CKPT_SUM_XXH + 1 };
	struct ckpt_storage_writer w = { 0 };
	struct ckpt_save_planner p = { 0 };
	const struct ckpt_save_opts opts = { .format = CKPT_ZARR + 1 };
	struct ckpt *c = sides[0].c;
	struct ckpt_err e = { 0 };
	char *to = NULL;
	size_t len;

	ck_assert_int_eq(ckpt_values_scan(c, &scan, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown kind of group 4");
	ck_assert_int_eq(ckpt_sum(c, &sum, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown kind of hash 2");
	ck_assert_int_eq(ckpt_text(c, 0, &text, &to, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown form of text 3");
	ck_assert_int_eq(ckpt_save_writer(&opts, &w, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown format 5");
	ck_assert_int_eq(ckpt_save_planner(opts.format, &p, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown format 5");
	ck_assert(!to && !w.ops && !p.ops);
}
END_TEST

static void any_fault(void *arg, const struct ckpt_fault *f)
{
	(void)f;
	++*(unsigned *)arg;
}

/* Otherwise a check that is to stop a training run would never do so. */
START_TEST(a_limit_that_nothing_exceeds_is_refused)
{
	static const double limits[] = { -1, -INFINITY, NAN };
	unsigned faults = 0;

	for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
		struct ckpt_values_check k = { .fault = any_fault,
					       .arg = &faults,
					       .max_abs = limits[i] };
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(ckpt_values_check(sides[0].c, &k, &e), -EINVAL);
		ck_assert_ptr_nonnull(strstr(e.msg, ": a limit is a number above 0"));
	}
	ck_assert_uint_eq(faults, 0);
}
END_TEST

START_TEST(an_upload_that_has_not_begun_can_be_ended)
{
	char left[] = "x";

	ckpt_upload_end(NULL, NULL, 0);
	ckpt_upload_end(NULL, left, sizeof(left));
	ck_assert_str_eq(left, "");
}
END_TEST

SUITE(ckpt_api, .setup = setup, .teardown = teardown, .seconds = 60)
