/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stats command. The table shows whatever the mount reports, so that a mount of another version
 * can be examined, too: a name that ends in "bytes" is a size.
 */
#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/live.h"
#include "mount/mounts.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NAME_WIDTH = 24, NUMBER_WIDTH = 14, BAR = 40, MAX_OUTPUT = 64 << 20 };

static void put_name(struct buf *b, const char *name, size_t indent)
{
	char spaced[NAME_WIDTH + 1];
	size_t n = min_u64(strlen(name), NAME_WIDTH);

	for (size_t i = 0; i < n; i++)
		spaced[i] = name[i] == '_' ? ' ' : name[i];
	spaced[n] = 0;
	buf_printf(b, "%*s%-*s ", (int)indent, "", (int)(NAME_WIDTH - indent), spaced);
}

/* A heading; `empty`: no rows follow. */
static void put_heading(struct buf *b, const char *name, bool empty)
{
	buf_str(b, "\n");
	put_name(b, name, 0);
	if (!empty) /* no trailing blanks */
		b->len -= NAME_WIDTH + 1 - min_u64(strlen(name), NAME_WIDTH);
	buf_str(b, empty ? "none\n" : "\n");
}

/* A run has no identity and no index. */
static void put_string(struct buf *b, const char *s)
{
	cmd_add_fqn(b, *s ? s : "none", *s ? strlen(s) : strlen("none"));
	buf_str(b, "\n");
}

static void put_number(struct buf *b, const char *name, uint64_t n)
{
	size_t len = strlen(name), suffix = strlen("bytes");
	char size[16];

	buf_printf(b, "%*llu", NUMBER_WIDTH, (unsigned long long)n);
	if (len >= suffix && !strcmp(name + len - suffix, "bytes") && n >= 1024)
		buf_printf(b, "  %s", text_size(n, size));
	buf_str(b, "\n");
}

static void put_row(struct buf *b, const char *name, struct jval value, size_t indent)
{
	int64_t n;
	double x;

	put_name(b, name, indent);
	if (jval_is(value, J_STRING))
		put_string(b, jval_str(value));
	else if (jval_int(value, &n))
		put_number(b, name, (uint64_t)n);
	else if (jval_number(value, &x))
		buf_printf(b, "%*.3f\n", NUMBER_WIDTH, x);
	else if (jval_is_bool(value))
		buf_printf(b, "%*s\n", NUMBER_WIDTH, jval_is(value, J_TRUE) ? "yes" : "no");
	else
		buf_str(b, "\n");
}

static void put_object(struct buf *b, const char *name, struct jval object)
{
	put_heading(b, name, !jval_size(object));
	for (struct jiter i = jiter(object); jiter_next(&i);)
		put_row(b, i.key, i.v, 2);
}

static uint64_t number_of(struct jval object, const char *key)
{
	int64_t n;

	return jval_int(jval_get(object, key), &n) ? (uint64_t)n : 0;
}

/* Rows from the first to the last that is not 0, each with a bar. */
static void put_latency(struct buf *b, const char *name, struct jval rows)
{
	size_t n = jval_size(rows), first = n, last = 0, at = 0;
	uint64_t most = 1;

	for (struct jiter i = jiter(rows); jiter_next(&i); at++) {
		uint64_t reads = number_of(i.v, "reads");

		most = max_u64(most, reads);
		first = reads && first == n ? at : first;
		last = reads ? at : last;
	}
	put_heading(b, name, first == n);
	at = 0;
	for (struct jiter i = jiter(rows); jiter_next(&i); at++) {
		uint64_t below = number_of(i.v, "below_us"), reads = number_of(i.v, "reads");
		char label[40];

		if (at < first || at > last)
			continue;
		if (below)
			(void)snprintf(label, sizeof(label), "below %llu us",
				       (unsigned long long)below);
		else
			(void)snprintf(label, sizeof(label), "above");
		put_name(b, label, 2);
		buf_printf(b, "%*llu  %.*s\n", NUMBER_WIDTH, (unsigned long long)reads,
			   (int)((double)reads / (double)most * BAR),
			   "########################################");
	}
}

static void put_list(struct buf *b, const char *name, struct jval list)
{
	struct jiter i = jiter(list);

	put_name(b, name, 0);
	if (!jval_size(list))
		buf_str(b, "none");
	for (bool first = true; jiter_next(&i); first = false) {
		buf_str(b, first ? "" : " ");
		if (jval_is(i.v, J_STRING))
			cmd_add_fqn(b, jval_str(i.v), jval_len(i.v));
	}
	buf_str(b, "\n");
}

/* Lines of text. */
static void put_lines(struct buf *b, const char *name, struct jval list)
{
	put_heading(b, name, !jval_size(list));
	for (struct jiter i = jiter(list); jiter_next(&i);)
		if (jval_is(i.v, J_STRING)) {
			buf_str(b, "  ");
			put_string(b, jval_str(i.v));
		}
}

static int print_table(struct jval stats)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_OUTPUT);
	int rc;

	for (struct jiter i = jiter(stats); jiter_next(&i);) {
		if (jval_is(i.v, J_OBJECT))
			put_object(&b, i.key, i.v);
		else if (jval_is(jval_at(i.v, 0), J_OBJECT))
			put_latency(&b, i.key, i.v);
		else if (jval_is(i.v, J_ARRAY) && !strcmp(i.key, "log"))
			put_lines(&b, i.key, i.v);
		else if (jval_is(i.v, J_ARRAY))
			put_list(&b, i.key, i.v);
		else
			put_row(&b, i.key, i.v, 0);
	}
	rc = cmd_print(&b);
	return rc ? rc : cmd_finish(STATUS_DONE);
}

static int print_json(const char *root, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_OUTPUT);
	int rc = live_read(root, &b, e);

	if (rc)
		return rc;
	rc = cmd_print(&b);
	return rc ? rc : cmd_finish(STATUS_DONE);
}

/* Checks this before reading: another file system may have a file of that name. */
static int check_mount(const char *path, const char *root, struct ckpt_err *e)
{
	struct mount_found found;
	int rc = mounts_find(root, &found, e);

	if (rc < 0)
		return rc;
	return rc || strncmp(found.type, "fuse", strlen("fuse")) != 0
		       ? err_set(e, EINVAL, "'%s' is not a mount of ckptfs", path)
		       : 0;
}

static int stats_run(const struct options *o)
{
	struct ckpt_err e = { 0 };
	autofree char *root = mounts_resolve(o->args[0], &e);
	struct jdoc stats CLEANUP(jdoc_release) = { 0 };
	int rc = root ? check_mount(o->args[0], root, &e) : -e.code;

	if (!rc && o->json)
		rc = print_json(root, &e);
	else if (!rc)
		rc = live_load(root, &stats, &e);
	if (rc == -ENOENT && root)
		rc = err_set(&e, EINVAL, "'%s' is not a mount of ckptfs", o->args[0]);
	if (rc < 0) {
		(void)err_wrap(&e, "stats");
		return cmd_fail(&e);
	}
	return stats.n ? print_table(jdoc_root(&stats)) : rc;
}

const struct command command_stats = {
	.name = "stats",
	.usage = "MNT",
	.complete = "m",
	.summary = "Print what a mount has served",
	.examples = "  $ ckptfs stats mnt\n"
		    "  $ ckptfs stats --json mnt\n",
	.details = "Requests, bytes, latencies, errors, caches and memory since the mount began, "
		   "what the kernel\n"
		   "and the daemon have agreed on, and the last ten messages of MNT/.ckptfs/log.\n"
		   "--json prints the content of MNT/.ckptfs/stats.json.\n",
	.words = WORDS_JSON,
	.min_args = 1,
	.max_args = 1,
	.run = stats_run,
};
