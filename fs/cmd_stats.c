/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stats command. The table is made of whatever the mount says, so that a mount of another
 * version can be looked at as well: a name that ends in "bytes" is a size.
 */
#include "cmd.h"
#include "live.h"
#include "mounts.h"
#include "options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NAME_WIDTH = 24, NUMBER_WIDTH = 14, BAR = 40, MAX_OUTPUT = 64 << 20 };

static void cleanup_json(json_t **j)
{
	json_decref(*j);
}

static void put_name(struct buf *b, const char *name, size_t indent)
{
	char spaced[NAME_WIDTH + 1];
	size_t n = min_u64(strlen(name), NAME_WIDTH);

	for (size_t i = 0; i < n; i++)
		spaced[i] = name[i] == '_' ? ' ' : name[i];
	spaced[n] = 0;
	buf_printf(b, "%*s%-*s ", (int)indent, "", (int)(NAME_WIDTH - indent), spaced);
}

/* Of rows that follow, or of none. */
static void put_heading(struct buf *b, const char *name, bool empty)
{
	buf_str(b, "\n");
	put_name(b, name, 0);
	if (!empty) /* no blanks at the end */
		b->len -= NAME_WIDTH + 1 - min_u64(strlen(name), NAME_WIDTH);
	buf_str(b, empty ? "none\n" : "\n");
}

static void put_string(struct buf *b, const char *s)
{
	cmd_add_fqn(b, s, strlen(s));
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

static void put_row(struct buf *b, const char *name, json_t *value, size_t indent)
{
	put_name(b, name, indent);
	if (json_is_string(value))
		put_string(b, json_string_value(value));
	else if (json_is_integer(value))
		put_number(b, name, (uint64_t)json_integer_value(value));
	else if (json_is_real(value))
		buf_printf(b, "%*.3f\n", NUMBER_WIDTH, json_real_value(value));
	else if (json_is_boolean(value))
		buf_printf(b, "%*s\n", NUMBER_WIDTH, json_is_true(value) ? "yes" : "no");
	else
		buf_str(b, "\n");
}

static void put_object(struct buf *b, const char *name, json_t *object)
{
	put_heading(b, name, !json_object_size(object));
	for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it))
		put_row(b, json_object_iter_key(it), json_object_iter_value(it), 2);
}

static uint64_t number_of(json_t *object, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* Rows from the first to the last that has any, with a bar each. */
static void put_latency(struct buf *b, const char *name, json_t *rows)
{
	size_t n = json_array_size(rows), first = n, last = 0;
	uint64_t most = 1;

	for (size_t i = 0; i < n; i++) {
		uint64_t reads = number_of(json_array_get(rows, i), "reads");

		most = max_u64(most, reads);
		first = reads && first == n ? i : first;
		last = reads ? i : last;
	}
	put_heading(b, name, first == n);
	for (size_t i = first; first < n && i <= last; i++) {
		json_t *row = json_array_get(rows, i);
		uint64_t below = number_of(row, "below_us"), reads = number_of(row, "reads");
		char label[40];

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

static void put_list(struct buf *b, const char *name, json_t *list)
{
	put_name(b, name, 0);
	if (!json_array_size(list))
		buf_str(b, "none");
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *value = json_array_get(list, i);

		buf_str(b, i ? " " : "");
		if (json_is_string(value))
			cmd_add_fqn(b, json_string_value(value), json_string_length(value));
	}
	buf_str(b, "\n");
}

static int print_table(json_t *stats)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_OUTPUT);
	int rc;

	for (void *it = json_object_iter(stats); it; it = json_object_iter_next(stats, it)) {
		const char *key = json_object_iter_key(it);
		json_t *value = json_object_iter_value(it);

		if (json_is_object(value))
			put_object(&b, key, value);
		else if (json_is_array(value) && json_is_object(json_array_get(value, 0)))
			put_latency(&b, key, value);
		else if (json_is_array(value))
			put_list(&b, key, value);
		else
			put_row(&b, key, value, 0);
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

/* Only then is it asked: another file system may have a file of that name. */
static int check_mount(const char *path, const char *root, struct ckpt_err *e)
{
	struct mount_found found;
	int rc = mounts_find(root, &found, e);

	if (rc < 0)
		return rc;
	return rc || strncmp(found.type, "fuse.", strlen("fuse.")) != 0
		       ? err_set(e, EINVAL, "'%s': not a mount of ckptfs", path)
		       : 0;
}

static int stats_run(const struct options *o)
{
	struct ckpt_err e = { 0 };
	autofree char *root = mounts_resolve(o->args[0], &e);
	json_t *stats CLEANUP(cleanup_json) = NULL;
	int rc = root ? check_mount(o->args[0], root, &e) : -e.code;

	if (!rc && o->json)
		rc = print_json(root, &e);
	else if (!rc)
		rc = live_load(root, &stats, &e);
	if (rc == -ENOENT && root)
		rc = err_set(&e, EINVAL, "'%s': not a mount of ckptfs", o->args[0]);
	if (rc < 0) {
		(void)err_wrap(&e, "stats");
		return cmd_fail(&e);
	}
	return stats ? print_table(stats) : rc;
}

const struct command command_stats = {
	.name = "stats",
	.usage = "MNT",
	.summary = "Tell what a mount has served",
	.details =
		"Requests, bytes, latencies, errors, caches, memory, and what kernel and daemon "
		"have\n"
		"agreed on; since it was mounted. --json prints MNT/.ckptfs/stats.json as it is.\n",
	.words = WORDS_JSON,
	.min_args = 1,
	.max_args = 1,
	.run = stats_run,
};
