/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "fault.h"
#include "memory_place.h"
#include "opts_util.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include "tree_util.h"
#include <ckptfs/ckpt_mount.h>

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TEXT = 48, PART = 16 };

/* ---- saving ---- */

/* The bytes of a save of that name and number: three chunks, each of which contains the number. */
static void text_of(const char *name, unsigned number, char out[static TEXT + 1])
{
	(void)snprintf(out, TEXT + 1, "%-8.8s%08u%016u%016u", name, number, number, number);
}

static void put_tensor(struct dcp *d, const char *fqn, const char *text)
{
	uint64_t shape = TEXT, boxes[2 * TEXT / PART];
	char path[32];

	for (uint64_t i = 0; i < TEXT / PART; i++) {
		boxes[2 * i] = i * PART;
		boxes[2 * i + 1] = PART;
	}
	dcp_tensor(d, fqn, strlen(fqn), "uint8", 1, &shape, TEXT / PART, boxes);
	for (unsigned i = 0; i < TEXT / PART; i++) {
		struct saved t = { .dtype = CKPT_DTYPE_U8,
				   .n_dims = 1,
				   .size = (const int64_t[]){ PART },
				   .storage = text + i * PART,
				   .storage_bytes = PART };
		struct buf b = BUF_INIT(0);
		struct chunk_loc l;

		(void)saved_item(&b, &t);
		l = dcp_item(d, i, b.data, b.len, 0);
		(void)snprintf(path, sizeof(path), "%s%u.distcp", d->prefix, l.file);
		dcp_stored(d, fqn, strlen(fqn), 1, &boxes[2 * (size_t)i], path, (int64_t)l.offset,
			   (int64_t)l.length, 0);
		buf_release(&b);
	}
}

static int sub_dir(const char *path)
{
	int fd;

	(void)mkdirat(dir_fd, path, 0777);
	fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	return fd;
}

/* Data first; .metadata comes last and appears at once, as when torch saves. */
static void save_part(const char *path, const char *name, unsigned number, bool finish)
{
	autoclose int fd = sub_dir(path);
	char text[TEXT + 1];
	struct dcp d;

	text_of(name, number, text);
	(void)unlinkat(fd, ".metadata", 0);
	dcp_begin(&d, fd);
	put_tensor(&d, "model.w", text);
	dcp_bytes(&d, "step", 4, text, TEXT, 3, 0);
	dcp_end(&d, ".metadata.tmp");
	if (finish)
		REQUIRE(!renameat(fd, ".metadata.tmp", fd, ".metadata"));
}

static void save(const char *name, unsigned number)
{
	save_part(name, name, number, true);
}

static void erase(const char *name)
{
	static const char *const files[] = { ".metadata",     ".metadata.tmp",
					     "__0_0.distcp",  "__0_1.distcp",
					     "__0_2.distcp",  "__0_3.distcp",
					     ".ckptfs-index", "odd" };
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (size_t i = 0; fd >= 0 && i < ARRAY_LEN(files); i++)
		(void)unlinkat(fd, files[i], 0);
	if (fd >= 0)
		(void)close(fd);
	(void)unlinkat(dir_fd, name, AT_REMOVEDIR);
}

/* File times only change with the kernel's tick. */
static void next_tick(void)
{
	(void)nanosleep(&(struct timespec){ .tv_nsec = 12 * 1000 * 1000 }, NULL);
}

/* ---- looking ---- */

static int open_code(const struct ckpt_opts *o, struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt_opts with = *o;

	with.index = with.index ? with.index : ":memory:";
	*e = (struct ckpt_err){ 0 };
	*ret = NULL;
	return open_typed(dir, &with, ret, e);
}

static struct ckpt *open_run(const struct ckpt_opts *o)
{
	struct ckpt_opts with = *o;
	struct ckpt *c;
	struct ckpt_err e;

	with.runs = true;
	if (open_code(&with, &c, &e))
		ck_abort_msg("%s", e.msg);
	REQUIRE(ckpt_is_run(c));
	return c;
}

static const struct ckpt_opts plain = { 0 };

static void refresh(struct ckpt *c)
{
	struct ckpt_err e = { 0 };

	REQUIRE(!run_refresh(c->run, true, &e));
}

static void expect_file(struct ckpt *c, const char *path, const char *want)
{
	autofree char *got = tree_text(c, path);

	expect_at(dir, got, want);
}

static void expect_save(struct ckpt *c, const char *path, const char *name, unsigned number)
{
	char full[300], text[TEXT + 1];

	text_of(name, number, text);
	(void)snprintf(full, sizeof(full), "%s/tensors/model.w", path);
	expect_file(c, full, text);
	(void)snprintf(full, sizeof(full), "%s/objects/step", path);
	expect_file(c, full, text);
}

static void expect_msg(int rc, const struct ckpt_err *e, int code, const char *want)
{
	ck_assert_int_eq(rc, -code);
	ck_assert_int_eq(e->code, code);
	expect_at(dir, e->msg, want);
}

/* The root's names in the order of a listing, with a space behind each. */
static char *names_of(struct ckpt *c)
{
	struct buf b = BUF_INIT(1 << 20);
	char name[CKPT_NAME_MAX + 1], again[CKPT_NAME_MAX + 1];
	uint64_t pos = 0;
	ckpt_node node, found;

	while (!ckpt_next(c, CKPT_ROOT, &pos, name, &node)) {
		buf_str(&b, name);
		buf_str(&b, " ");
		REQUIRE(!ckpt_lookup(c, CKPT_ROOT, name, &found) && found == node);
		REQUIRE(ckpt_parent(c, node) == CKPT_ROOT);
		REQUIRE(!ckpt_name(c, node, again) && !strcmp(again, name));
		REQUIRE(!ckpt_entry(c, CKPT_ROOT, pos - 1, name, &found) && found == node);
	}
	return b.data;
}

static void expect_names(struct ckpt *c, const char *want)
{
	autofree char *got = NULL;

	refresh(c);
	got = names_of(c);
	ck_assert_str_eq(got, want);
}

static ckpt_node node_of(struct ckpt *c, const char *path)
{
	struct ckpt_err e = { 0 };
	ckpt_node n = 0;

	if (ckpt_walk(c, path, &n, &e))
		ck_abort_msg("%s", e.msg);
	return n;
}

static void expect_name(struct ckpt *c, const char *path, const char *want)
{
	char name[CKPT_NAME_MAX + 1];

	ck_assert_int_eq(ckpt_name(c, node_of(c, path), name), 0);
	ck_assert_str_eq(name, want);
}

static int stat_code(struct ckpt *c, ckpt_node n)
{
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };

	return ckpt_stat(c, n, &st, &e);
}

static void expect_latest(struct ckpt *c, const char *want)
{
	char target[CKPT_NAME_MAX + 1];
	struct ckpt_err e = { 0 };
	ckpt_node n;

	refresh(c);
	if (!want) {
		ck_assert_int_eq(ckpt_lookup(c, CKPT_ROOT, "latest", &n), 1);
		return;
	}
	ck_assert_int_eq(ckpt_lookup(c, CKPT_ROOT, "latest", &n), 0);
	ck_assert_int_eq(ckpt_readlink(c, n, target, &e), (int64_t)strlen(want));
	ck_assert_str_eq(target, want);
}

/* ---- what a run is ---- */

START_TEST(a_run_is_refused_where_a_checkpoint_is_meant)
{
	struct ckpt *c;
	struct ckpt_err e;

	save_part("step-3", "step-3", 3, false);
	expect_msg(open_code(&plain, &c, &e), &e, ENOENT,
		   "checkpoint '@': it is a run without a complete checkpoint");
	save("step-9", 9);
	expect_msg(open_code(&plain, &c, &e), &e, EISDIR,
		   "checkpoint '@': it is a run with 1 checkpoint; name one, as in '@/step-9'");
	save("step-10", 10);
	save("best", 1);
	expect_msg(open_code(&plain, &c, &e), &e, EISDIR,
		   "checkpoint '@': it is a run with 3 checkpoints; name one, as in '@/step-10'");
	ck_assert_ptr_null(c);
}
END_TEST

START_TEST(a_checkpoint_with_sub_directories_is_no_run)
{
	struct ckpt_opts o = { .runs = true };
	struct ckpt *c;
	struct ckpt_err e;

	save("step-1", 1);
	save(".", 7);
	ck_assert_int_eq(open_code(&o, &c, &e), 0);
	ck_assert(!ckpt_is_run(c));
	expect_save(c, ".", ".", 7);
	ckpt_close(c);
}
END_TEST

START_TEST(directories_without_checkpoints_are_no_run)
{
	struct ckpt_opts o = { .runs = true };
	struct ckpt *c;
	struct ckpt_err e;

	(void)close(sub_dir("logs"));
	(void)close(sub_dir("logs/events"));
	save(".hidden", 1);
	save("real", 1);
	REQUIRE(!symlinkat("../other", dir_fd, "link"));
	REQUIRE(!renameat(dir_fd, "real", dir_fd, "logs/real"));
	ck_assert_int_eq(open_code(&o, &c, &e), -ENOENT);
	ck_assert_ptr_nonnull(
		strstr(e.msg, "': not a checkpoint: found '.hidden', 'link', 'logs'; "));
}
END_TEST

START_TEST(options_that_cannot_be_are_refused_at_once)
{
	static const struct {
		struct ckpt_opts o;
		int code;
		const char *msg;
	} cases[] = {
		{ { .index = "/tmp/x" },
		  EINVAL,
		  "checkpoint '@': option 'index': each checkpoint of a run has an index of its "
		  "own, so only ':memory:' can be given" },
		{ { .dtype = "int8" },
		  EINVAL,
		  "checkpoint '@': option 'dtype': 'int8' is not one of bf16, fp16, fp32" },
		{ { .rename = "/nowhere/rules" },
		  ENOENT,
		  "checkpoint '@': option 'rename': '/nowhere/rules': No such file or directory" },
		{ { .recipe = "megatron-lama" },
		  ENOENT,
		  "checkpoint '@': option 'recipe': 'megatron-lama' is neither a file nor a recipe "
		  "that 'ckptfs help recipes' lists; did you mean 'megatron-llama'?" },
		{ { .layout = "/dev/null" },
		  EINVAL,
		  "checkpoint '@': option 'layout': layout '/dev/null': " },
	};
	struct ckpt *c;
	struct ckpt_err e;

	save("step-1", 1);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ckpt_opts o = cases[i].o;

		o.runs = true;
		ck_assert_int_eq(open_code(&o, &c, &e) < 0, 1);
		if (cases[i].o.layout) /* the rest is the layout reader's message */
			ck_assert_ptr_nonnull(strstr(e.msg, "option 'layout'"));
		else
			expect_msg(-e.code, &e, cases[i].code, cases[i].msg);
	}
}
END_TEST

/* ---- the tree ---- */

START_TEST(each_complete_checkpoint_is_a_directory)
{
	struct ckpt *c;

	save("step-10", 10);
	save("step-9", 9);
	save_part("step-11", "step-11", 11, false);
	save("release", 0);
	(void)close(sub_dir("logs"));
	c = open_run(&plain);
	expect_names(c, ".ckptfs latest release step-9 step-10 ");
	expect_save(c, "step-9", "step-9", 9);
	expect_save(c, "/./step-10/", "step-10", 10);
	expect_save(c, "latest", "step-10", 10);
	expect_file(c, "step-11/tensors/model.w",
		    "error 2: checkpoint 'step-11' is not complete: .metadata is missing although "
		    "data files are there: the save was interrupted");
	expect_file(c, "step-12/tensors/model.w",
		    "error 2: 'step-12/tensors/model.w': there is no such file in the tree; did "
		    "you mean 'step-10'?");
	expect_file(c, "step-9/tensors/x",
		    "error 2: 'step-9/tensors/x': there is no such file in the tree");
	expect_file(c, "step-9", "error 21: 'step-9': it is a directory");
	expect_file(c, "", "error 21: '': it is a directory");
	expect_file(c, ".ckptfs", "error 21: '.ckptfs': it is a directory");
	ckpt_close(c);
}
END_TEST

START_TEST(known_directories_in_a_sub_directory_are_found)
{
	struct ckpt *c;

	(void)close(sub_dir("nemo-1"));
	save_part("nemo-1/weights", "nemo-1", 1, true);
	(void)close(sub_dir("nemo-2"));
	save_part("nemo-2/weights", "nemo-2", 2, false);
	(void)close(sub_dir("nemo-3"));
	save_part("nemo-3/other", "nemo-3", 3, true);
	(void)close(sub_dir("nemo-4"));
	save_part("nemo-4/pytorch_model_fsdp_0", "nemo-4", 4, true);
	(void)close(sub_dir("step5"));
	save_part("step5/model_and_optim", "step5", 5, true);
	c = open_run(&plain);
	expect_names(c, ".ckptfs latest nemo-1 nemo-4 step5 ");
	expect_save(c, "nemo-1", "nemo-1", 1);
	expect_save(c, "nemo-4", "nemo-4", 4);
	expect_save(c, "latest", "step5", 5);
	ckpt_close(c);
}
END_TEST

/* Opens a path in the run, and checks which checkpoint that is. */
static void expect_address(const char *name, const char *want)
{
	struct ckpt_opts o = { .index = ":memory:" };
	char path[4200];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	(void)open_typed(path, &o, &c, &e);
	expect_at(dir, c ? c->root : e.msg, want);
	ckpt_close(c);
}

START_TEST(a_checkpoint_of_a_run_is_opened_by_its_path)
{
	save("step-9", 9);
	save("step-10", 10);
	save_part("step-11", "step-11", 11, false);
	expect_address("step-9", "@/step-9");
	expect_address("latest", "@/step-10");
	expect_address("latest/", "@/step-10");
	expect_address("step-1", "open '@/step-1': there is no such file or "
				 "checkpoint; did you mean 'step-9' or 'step-10'?");
	expect_address("step-10/x", "open '@/step-10/x': No such file or directory");
	/* A file that names the newest step, as some savers write it. */
	put_file(dir_fd, "latest", "step-9", 6);
	expect_address("latest", "@/step-9");
	put_file(dir_fd, "latest", "../x", 4);
	expect_address("latest", "@/step-10");
	erase("step-9");
	erase("step-10");
	expect_address("latest", "checkpoint '@/latest': not a checkpoint: 'latest' is not a "
				 "file of safetensors, torch.save, GGUF, Flax or NeMo");
	(void)close(sub_dir("nemo-1"));
	save_part("nemo-1/weights", "nemo-1", 1, true);
	expect_address("nemo-1", "@/nemo-1/weights");
}
END_TEST

START_TEST(links_are_not_followed)
{
	char outside[4096], path[4200];
	autoclose int fd = new_dir(outside);
	struct ckpt *c;

	save("step-1", 1);
	(void)snprintf(path, sizeof(path), "%s/step-2", outside);
	REQUIRE(!renameat(dir_fd, "step-1", fd, "step-2"));
	save("step-1", 1);
	REQUIRE(!symlinkat(path, dir_fd, "step-2"));
	REQUIRE(!symlinkat("step-1", dir_fd, "step-3"));
	(void)close(sub_dir("step-4"));
	(void)snprintf(path, sizeof(path), "%s/step-2", outside);
	REQUIRE(!symlinkat(path, dir_fd, "step-4/weights"));
	c = open_run(&plain);
	expect_names(c, ".ckptfs latest step-1 ");
	/* Nor is a link that takes the place of a checkpoint that was there. */
	erase("step-1");
	REQUIRE(!symlinkat(path, dir_fd, "step-1"));
	expect_names(c, ".ckptfs ");
	ckpt_close(c);
}
END_TEST

START_TEST(latest_is_what_the_tracker_says_or_the_highest_number)
{
	struct ckpt *c;

	save("best", 1);
	c = open_run(&plain);
	expect_latest(c, NULL);
	save("iter_0000020", 20);
	save("iter_0000100", 100);
	save("release", 0);
	save("global_step9", 9);
	expect_latest(c, "iter_0000100");
	put_file(dir_fd, "latest_checkpointed_iteration.txt", "20", 2);
	expect_latest(c, "iter_0000020");
	put_file(dir_fd, "latest_checkpointed_iteration.txt", "release\n", 8);
	expect_latest(c, "release");
	put_file(dir_fd, "latest_checkpointed_iteration.txt", "30\n", 3);
	expect_latest(c, "iter_0000100");
	put_file(dir_fd, "latest_checkpointed_iteration.txt", "best\n", 5);
	expect_latest(c, "iter_0000100");
	put_file(dir_fd, "latest", "global_step9\n", 13);
	expect_latest(c, "global_step9");
	put_file(dir_fd, "latest", "../outside", 10);
	expect_latest(c, "iter_0000100");
	REQUIRE(!unlinkat(dir_fd, "latest", 0) && !symlinkat("best", dir_fd, "latest"));
	expect_latest(c, "best");
	REQUIRE(!unlinkat(dir_fd, "latest", 0));
	save_part("latest", "latest", 5, true);
	refresh(c);
	expect_save(c, "latest", "latest", 5);
	ckpt_close(c);
}
END_TEST

START_TEST(a_link_keeps_its_target_and_its_node)
{
	struct ckpt *c;
	ckpt_node before, after;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	char target[CKPT_NAME_MAX + 1];

	save("step-1", 1);
	c = open_run(&plain);
	REQUIRE(!ckpt_lookup(c, CKPT_ROOT, "latest", &before));
	save("step-2", 2);
	refresh(c);
	REQUIRE(!ckpt_lookup(c, CKPT_ROOT, "latest", &after));
	ck_assert_uint_ne(before, after);
	ck_assert_int_eq(ckpt_readlink(c, before, target, &e), 6);
	ck_assert_str_eq(target, "step-1");
	REQUIRE(!ckpt_stat(c, after, &st, &e) && st.is_link && st.changes && st.size == 6);
	erase("step-1");
	refresh(c);
	ck_assert_int_eq(ckpt_readlink(c, before, target, &e), -ESTALE);
	ckpt_close(c);
}
END_TEST

START_TEST(nodes_tell_checkpoints_apart)
{
	static const char *const paths[] = { "",
					     "/tensors",
					     "/tensors/model.w",
					     "/hf",
					     "/hf/model.safetensors",
					     "/.ckptfs/info.json" };
	static const uint64_t none[] = { 0, 4, 1024, ((uint64_t)1 << 16) + 70000,
					 (uint64_t)1 << 47 };
	struct ckpt *c;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_file *f = NULL;
	ckpt_node n;

	save("step-1", 1);
	save("step-2", 2);
	c = open_run(&plain);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		char one[100], two[100];

		(void)snprintf(one, sizeof(one), "step-1%s", paths[i]);
		(void)snprintf(two, sizeof(two), "step-2%s", paths[i]);
		ck_assert_uint_ne(node_of(c, one), node_of(c, two));
		REQUIRE(!ckpt_stat(c, node_of(c, one), &st, &e) && st.node == node_of(c, one));
		ck_assert_int_eq(st.changes, !*paths[i]);
		REQUIRE(!ckpt_type(c, node_of(c, two), &st, &e) && st.node == node_of(c, two));
	}
	ck_assert_uint_eq(ckpt_parent(c, node_of(c, "step-1/hf")), node_of(c, "step-1"));
	ck_assert_uint_eq(ckpt_parent(c, node_of(c, ".ckptfs/info.json")), node_of(c, ".ckptfs"));
	expect_name(c, "step-1/hf", "hf");
	expect_name(c, ".ckptfs/info.json", "info.json");
	ck_assert_int_eq(ckpt_name(c, CKPT_ROOT, name), 1);
	ck_assert_int_eq(ckpt_xattr(c, node_of(c, "step-2/tensors/model.w"), "user.ckptfs.fqn",
				    name, 10, &e),
			 7);
	ck_assert_mem_eq(name, "model.w", 7);
	ck_assert_int_eq(ckpt_xattr_names(c, node_of(c, "step-2/objects/step"), NULL, 0), 16);
	ck_assert_int_eq(ckpt_xattr(c, node_of(c, "step-2"), "user.ckptfs.fqn", name, 10, &e),
			 -ENODATA);
	for (size_t i = 0; i < ARRAY_LEN(none); i++) {
		ck_assert_int_eq(ckpt_stat(c, none[i], &st, &e), -ENOENT);
		ck_assert_int_eq(ckpt_file_open(c, none[i], &f, &e), -ENOENT);
		ck_assert_int_eq(ckpt_lookup(c, none[i], "x", &n), 1);
		ck_assert_int_eq(ckpt_entry(c, none[i], 0, name, &n), 1);
	}
	ck_assert_int_eq(ckpt_stat(c, (uint64_t)9 << 48 | 1, &st, &e), -ESTALE);
	ck_assert_int_eq(ckpt_stat(c, UINT64_MAX, &st, &e), -ESTALE);
	ck_assert_int_eq(ckpt_lookup(c, (uint64_t)9 << 48 | 1, "x", &n), -ESTALE);
	ckpt_close(c);
}
END_TEST

START_TEST(info_json_lists_the_checkpoints)
{
	autofree char *text = NULL, *shown = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_stat st;
	struct ckpt *c;
	json_t *j, *list;
	size_t len;

	save("step-2", 2);
	save("step-10", 10);
	save_part("step-11", "step-11", 11, false);
	c = open_run(&plain);
	REQUIRE(!ckpt_info_json(c, &text, &len, &e));
	j = json_loadb(text, len, 0, NULL);
	ck_assert_ptr_nonnull(j);
	ck_assert_str_eq(json_string_value(json_object_get(j, "run")), dir);
	ck_assert_str_eq(json_string_value(json_object_get(j, "latest")), "step-10");
	ck_assert_int_eq(json_integer_value(json_object_get(j, "complete")), 2);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "incomplete")), 1);
	list = json_object_get(j, "checkpoints");
	ck_assert_uint_eq(json_array_size(list), 3);
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "name")),
			 "step-2");
	ck_assert(json_is_null(json_object_get(json_array_get(list, 1), "fault")));
	ck_assert(json_is_false(json_object_get(json_array_get(list, 2), "complete")));
	ck_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 2), "fault")),
			 ".metadata is missing although data files are there: the save was "
			 "interrupted");
	json_decref(j);
	shown = tree_text(c, ".ckptfs/info.json");
	ck_assert_str_eq(shown, text);
	REQUIRE(!ckpt_stat(c, node_of(c, ".ckptfs/info.json"), &st, &e));
	ck_assert_uint_eq(st.size, len);
	ckpt_close(c);
}
END_TEST

static void expect_opened(struct ckpt *run, const char *path, const char *want,
			  const char *want_rest)
{
	struct ckpt_opts o = plain;
	struct ckpt_err e = { 0 };
	struct ckpt *one = NULL;
	struct ckpt_totals t;
	const char *rest;

	ck_assert_msg(!ckpt_run_open(run, path, words_of(&o), NULL, &one, &rest, &e), "%s", e.msg);
	ck_assert_int_eq(e.code, 0);
	ck_assert_str_eq(rest, want_rest);
	ckpt_totals(one, &t);
	ck_assert_str_eq(t.format, "dcp");
	ck_assert(!ckpt_is_run(one));
	expect_at(dir, one->root, want);
	ckpt_close(one);
}

START_TEST(a_path_into_a_run_opens_a_checkpoint)
{
	struct ckpt_err e = { 0 };
	struct ckpt *c, *none = NULL;
	const char *rest;

	save("step-2", 2);
	(void)close(sub_dir("nemo-1"));
	save_part("nemo-1/weights", "nemo-1", 1, true);
	save_part("step-3", "step-3", 3, false);
	c = open_run(&plain);
	expect_opened(c, "latest//hf/x", "@/step-2", "hf/x");
	expect_opened(c, "./nemo-1", "@/nemo-1/weights", "");
	expect_msg(ckpt_run_open(c, ".", words_of(&plain), NULL, &none, &rest, &e), &e, ENOENT,
		   "'.': it is a run; the path has to begin with one of its checkpoints, "
		   "as in 'latest/hf'");
	expect_msg(ckpt_run_open(c, "step-3/hf", words_of(&plain), NULL, &none, &rest, &e), &e,
		   ENOENT,
		   "checkpoint 'step-3' is not complete: .metadata is missing although data files "
		   "are there: the save was interrupted");
	ckpt_close(c);
}
END_TEST

/* What cannot be regrouped for hf/ is shown as it is stored. */
START_TEST(what_was_tried_in_vain_is_no_error)
{
	static const char config[] = "{\"model_type\": \"qwen3_moe\"}";
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c, *one = NULL;
	const char *rest;

	save("step-2", 2);
	(void)close(sub_dir("step-1"));
	st_put(dir_fd, "step-1/model.safetensors", &r, "l.0.mlp.experts.gate_up_proj F32 1x5x2");
	put_file(dir_fd, "step-1/config.json", config, strlen(config));
	c = open_run(&plain);
	ck_assert_msg(!ckpt_run_open(c, "step-1", words_of(&plain), NULL, &one, &rest, &e), "%s",
		      e.msg);
	ck_assert_msg(!e.code && !*e.msg, "%d: %s", e.code, e.msg);
	ckpt_close(one);
	ckpt_close(c);
}
END_TEST

/* The same whether or not the run has been looked at in between. */
START_LOOP_TEST(a_link_in_place_of_a_checkpoint_is_not_followed, 2)
{
	static const char *const paths[] = { "latest", "step-2" };
	struct ckpt_err e = { 0 };
	struct ckpt *c, *one = NULL;
	const char *rest;

	save("step-2", 2);
	save(".elsewhere", 3);
	c = open_run(&plain);
	expect_opened(c, paths[_i], "@/step-2", "");
	REQUIRE(!renameat(dir_fd, "step-2", dir_fd, ".gone"));
	REQUIRE(!symlinkat(".elsewhere", dir_fd, "step-2"));
	ck_assert_int_lt(ckpt_run_open(c, paths[_i], words_of(&plain), NULL, &one, &rest, &e), 0);
	ck_assert_ptr_null(one);
	ck_assert(e.code == ESTALE || e.code == ENOENT);
	ckpt_close(c);
	REQUIRE(!unlinkat(dir_fd, "step-2", 0));
}
END_TEST

/* ---- change ---- */

START_TEST(checkpoints_come_and_go)
{
	struct ckpt *c;
	ckpt_node dir_node, file;

	save("step-1", 1);
	c = open_run(&plain);
	expect_names(c, ".ckptfs latest step-1 ");
	save_part("step-2", "step-2", 2, false);
	expect_names(c, ".ckptfs latest step-1 ");
	next_tick();
	save("step-2", 2);
	expect_names(c, ".ckptfs latest step-1 step-2 ");
	expect_save(c, "step-2", "step-2", 2);
	dir_node = node_of(c, "step-1");
	file = node_of(c, "step-1/tensors/model.w");
	ck_assert_int_eq(stat_code(c, file), 0);
	erase("step-1");
	expect_names(c, ".ckptfs latest step-2 ");
	ck_assert_int_eq(stat_code(c, dir_node), -ESTALE);
	ck_assert_int_eq(stat_code(c, file), -ESTALE);
	REQUIRE(!renameat(dir_fd, "step-2", dir_fd, "step-3"));
	expect_names(c, ".ckptfs latest step-3 ");
	expect_save(c, "step-3", "step-2", 2);
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(what_is_saved_again_is_another_checkpoint, 2)
{
	struct ckpt *c;
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	ckpt_node before, after;
	char got[TEXT + 1] = "", text[TEXT + 1];

	save("step-1", 1);
	c = open_run(&plain);
	before = node_of(c, "step-1/tensors/model.w");
	REQUIRE(!ckpt_file_open(c, before, &f, &e));
	next_tick();
	if (_i)
		erase("step-1");
	save("step-1", 2);
	expect_save(c, "step-1", "step-1", 2);
	after = node_of(c, "step-1/tensors/model.w");
	ck_assert_uint_ne(before, after);
	ck_assert_int_eq(stat_code(c, before), 0); /* somebody has it open */
	if (_i) {				   /* its files live on as long as they are open */
		text_of("step-1", 1, text);
		ck_assert_int_eq(ckpt_file_read(f, got, TEXT, 0, &e), TEXT);
		ck_assert_str_eq(got, text);
	} else {
		ck_assert_int_lt(ckpt_file_read(f, got, TEXT, 0, &e), 0);
		ck_assert_ptr_nonnull(strstr(e.msg, "checkpoint 'step-1', which is gone: "));
	}
	ckpt_file_close(f);
	ck_assert_int_eq(stat_code(c, before), -ESTALE);
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(one_that_was_replaced_before_it_was_entered_is_gone, 2)
{
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	ckpt_node n;

	save("step-1", 1);
	c = open_run(&plain);
	n = node_of(c, "step-1");
	next_tick();
	erase("step-1");
	if (_i)
		save("step-1", 2);
	ck_assert_int_eq(ckpt_enter(c, n, &e), -ESTALE);
	if (_i)
		expect_save(c, "step-1", "step-1", 2);
	ckpt_close(c);
}
END_TEST

START_TEST(a_checkpoint_that_cannot_be_opened_says_why)
{
	static const char why[] = "checkpoint '@/step-2': data file '__0_1.distcp' is missing";
	autofree char *text = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	ckpt_node n;
	size_t len;
	int fd;

	save("step-1", 1);
	save("step-2", 2);
	fd = sub_dir("step-2");
	REQUIRE(!unlinkat(fd, "__0_1.distcp", 0));
	(void)close(fd);
	c = open_run(&plain);
	expect_names(c, ".ckptfs latest step-1 step-2 ");
	n = node_of(c, "step-2");
	ck_assert_int_eq(stat_code(c, n), 0);
	for (int i = 0; i < 2; i++)
		expect_msg(ckpt_enter(c, n, &e), &e, ERR_CORRUPT, why);
	ck_assert_int_eq(ckpt_lookup(c, n, "tensors", &n), -ERR_CORRUPT);
	REQUIRE(!ckpt_info_json(c, &text, &len, &e));
	ck_assert_ptr_nonnull(strstr(text, "data file '__0_1.distcp' is missing"));
	expect_save(c, "step-1", "step-1", 1);
	ckpt_close(c);
}
END_TEST

START_TEST(those_that_nobody_uses_are_closed)
{
	enum { N = 40, HELD = 5 };
	struct ckpt_file *held[HELD];
	ckpt_node nodes[N];
	char path[100], text[TEXT + 1], got[TEXT];
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	size_t open = 0;

	for (unsigned i = 0; i < N; i++) {
		(void)snprintf(path, sizeof(path), "step-%u", i);
		save(path, i);
	}
	c = open_run(&plain);
	for (unsigned i = 1; i < c->run->n_slots; i++)
		ck_assert_ptr_null(c->run->slots[i]->ckpt);
	for (unsigned i = 0; i < N; i++) {
		(void)snprintf(path, sizeof(path), "step-%u/tensors/model.w", i);
		nodes[i] = node_of(c, path);
		if (i < HELD)
			REQUIRE(!ckpt_file_open(c, nodes[i], &held[i], &e));
	}
	for (unsigned i = 1; i < c->run->n_slots; i++)
		open += c->run->slots[i]->ckpt != NULL;
	ck_assert_uint_eq(open, HELD + 16);
	ck_assert_uint_eq(c->run->n_idle, 16);
	for (unsigned i = 0; i < N; i++) { /* opened again, they are the same */
		(void)snprintf(path, sizeof(path), "step-%u", i);
		expect_save(c, path, path, i);
		(void)snprintf(path, sizeof(path), "step-%u/tensors/model.w", i);
		ck_assert_uint_eq(node_of(c, path), nodes[i]);
	}
	for (unsigned i = 0; i < HELD; i++) {
		(void)snprintf(path, sizeof(path), "step-%u", i);
		text_of(path, i, text);
		ck_assert_int_eq(ckpt_file_read(held[i], got, TEXT, 0, &e), TEXT);
		ck_assert_mem_eq(got, text, TEXT);
		ckpt_file_close(held[i]);
	}
	ckpt_close(c);
}
END_TEST

static int truncateat(const char *path, off_t length)
{
	autoclose int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -1 : ftruncate(fd, length);
}

static void set_mtime(const char *path, time_t sec)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = sec } };

	REQUIRE(!utimensat(dir_fd, path, times, 0));
}

/* Until 0.5.1, reading failed as long as the checkpoint was open, even if nobody used it. */
START_TEST(one_whose_files_have_changed_is_opened_again)
{
	static const char data[] = "step-1/__0_1.distcp", path[] = "step-1/tensors/model.w";
	const struct ckpt_opts o = { .ignore_ctime = true };
	char text[TEXT + 1], got[TEXT];
	struct ckpt_err e = { 0 };
	struct ckpt_file *f, *g;
	struct ckpt *c;
	ckpt_node node;

	save("step-1", 1);
	set_mtime(data, 1000);
	c = open_run(&o);
	node = node_of(c, path);
	REQUIRE(!ckpt_file_open(c, node, &f, &e));
	set_mtime(data, 2000);
	ck_assert_int_eq(ckpt_file_read(f, got, TEXT, 0, &e), -EIO);
	set_mtime(data, 1000);
	ck_assert_int_eq(ckpt_file_open(c, node, &g, &e), 0); /* it is in use */
	ckpt_file_close(g);
	ckpt_file_close(f);
	expect_save(c, "step-1", "step-1", 1); /* the file is as it was */
	ck_assert_uint_eq(node_of(c, path), node);

	REQUIRE(!ckpt_file_open(c, node, &f, &e));
	set_mtime(data, 2000);
	ck_assert_int_eq(ckpt_file_read(f, got, TEXT, 0, &e), -EIO);
	ckpt_file_close(f);
	ck_assert_int_eq(ckpt_file_open(c, node, &f, &e), -ESTALE); /* the file is another */
	expect_save(c, "step-1", "step-1", 1);
	ck_assert_uint_ne(node_of(c, path), node);
	ck_assert_int_eq(stat_code(c, node), -ESTALE);

	node = node_of(c, path);
	REQUIRE(!ckpt_file_open(c, node, &f, &e));
	REQUIRE(!truncateat(data, 10));
	ck_assert_int_eq(ckpt_file_read(f, got, TEXT, 0, &e), -EIO);
	ckpt_file_close(f);
	/* It cannot be opened again, but the other files can be read. */
	for (int i = 0; i < 2; i++) {
		autofree char *error = tree_text(c, path);

		ck_assert_mem_eq(error, "error 5: ", strlen("error 5: "));
		text_of("step-1", 1, text);
		expect_file(c, "step-1/objects/step", text);
	}
	ckpt_close(c);
}
END_TEST

/* How many descriptors of files of this kind the process has. */
static size_t files_open_now(const char *kind)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *d;
	char target[PATH_MAX];
	size_t n = 0;

	REQUIRE(fds);
	while ((d = readdir(fds))) {
		ssize_t len = readlinkat(dirfd(fds), d->d_name, target, sizeof(target) - 1);

		if (len < 0)
			continue;
		target[len] = '\0';
		n += strstr(target, kind) != NULL;
	}
	REQUIRE(!closedir(fds));
	return n;
}

static size_t data_files_open(void)
{
	return files_open_now(".distcp");
}

START_TEST(data_files_that_nobody_uses_are_let_go)
{
	char text[TEXT + 1], got[TEXT];
	struct ckpt_err e = { 0 };
	struct ckpt_file *held;
	struct ckpt *c;
	size_t of_one;

	save("step-1", 1);
	save("step-2", 2);
	c = open_run(&plain);
	ck_assert(!ckpt_let_go(c, 0)); /* none has been used */
	expect_save(c, "step-1", "step-1", 1);
	of_one = data_files_open();
	ck_assert_uint_gt(of_one, 0);
	REQUIRE(!ckpt_file_open(c, node_of(c, "step-2/tensors/model.w"), &held, &e));
	ck_assert_int_eq(ckpt_file_read(held, got, TEXT, 0, &e), TEXT);
	ck_assert_uint_gt(data_files_open(), of_one);

	ck_assert(ckpt_let_go(c, 3600 * 1000)); /* later */
	ck_assert_uint_gt(data_files_open(), of_one);
	ck_assert(!ckpt_let_go(c, 0)); /* only checkpoints that nobody uses */
	ck_assert_uint_gt(data_files_open(), 0);
	erase("step-1");
	text_of("step-2", 2, text);
	ck_assert_int_eq(ckpt_file_read(held, got, TEXT, 0, &e), TEXT);
	ck_assert_mem_eq(got, text, TEXT);
	ckpt_file_close(held);
	ck_assert(!ckpt_let_go(c, 0));
	ck_assert_uint_eq(data_files_open(), 0);

	expect_save(c, "step-2", "step-2", 2); /* opened again */
	ck_assert(!ckpt_let_go(c, 0));
	ck_assert_uint_eq(data_files_open(), 0);
	ckpt_close(c);
}
END_TEST

static void read_asset(struct ckpt *c, const char *path, const char *want)
{
	struct ckpt_err e = { 0 };
	struct ckpt_file *f;
	char got[100];

	REQUIRE(!ckpt_file_open(c, node_of(c, path), &f, &e));
	ck_assert_int_eq(ckpt_file_read(f, got, strlen(want), 0, &e), (int)strlen(want));
	ck_assert_mem_eq(got, want, strlen(want));
	ckpt_file_close(f);
}

/* On NFS their directory could not be removed otherwise. */
START_TEST(assets_that_nobody_uses_are_let_go)
{
	static const char text[] = "{\"model_type\": \"llama\"}", words[] = "{\"a\": 0}";
	struct ckpt_err e = { 0 };
	struct ckpt_file *f;
	struct ckpt *c;
	int fd, inner;

	save("step-1", 1);
	fd = sub_dir("step-1");
	put_file(fd, "config.json", text, strlen(text));
	inner = sub_dir("step-1/huggingface");
	put_file(inner, "vocab.json", words, strlen(words));
	c = open_run(&plain);
	for (unsigned i = 0; i < 2; i++) {
		read_asset(c, "step-1/hf/config.json", text);
		read_asset(c, "step-1/hf/vocab.json", words);
		ck_assert_uint_gt(files_open_now("/config.json") + files_open_now("/vocab.json"),
				  0);
		ck_assert(!ckpt_let_go(c, 0));
		ck_assert_uint_eq(files_open_now("/config.json"), 0);
		ck_assert_uint_eq(files_open_now("/vocab.json"), 0);
	}
	/* Another file is never read in its place. */
	put_file(fd, "new", "x", 1);
	REQUIRE(!renameat(fd, "new", fd, "config.json"));
	ck_assert_int_eq(ckpt_file_open(c, node_of(c, "step-1/hf/config.json"), &f, &e), -EIO);
	ck_assert_ptr_nonnull(strstr(e.msg, "config.json' was changed after the checkpoint was"));
	read_asset(c, "step-1/hf/vocab.json", words);
	ckpt_close(c);
	REQUIRE(!unlinkat(inner, "vocab.json", 0));
	REQUIRE(!unlinkat(fd, "huggingface", AT_REMOVEDIR));
	REQUIRE(!unlinkat(fd, "config.json", 0));
	(void)close(inner);
	(void)close(fd);
}
END_TEST

/* An index beside the data is open as long as the checkpoint is. */
START_TEST(an_index_in_the_checkpoint_is_let_go)
{
	static const char name[] = "step-1/.ckptfs-index.sqlite";
	const struct ckpt_opts runs = { .runs = true };
	struct ckpt *c, *one;
	struct ckpt_err e = { 0 };
	struct ckpt_file *held;
	char path[PATH_MAX], index[PATH_MAX];

	save("step-1", 1);
	REQUIRE(snprintf(path, sizeof(path), "%s/step-1", dir) < PATH_MAX &&
		snprintf(index, sizeof(index), "%s/%s", dir, name) < PATH_MAX);
	REQUIRE(!open_typed(path, &(struct ckpt_opts){ .index = index }, &one, &e));
	ckpt_close(one);
	REQUIRE(!open_typed(dir, &runs, &c, &e));
	expect_save(c, "step-1", "step-1", 1);
	ck_assert_uint_gt(files_open_now(name), 0);
	ck_assert(!ckpt_let_go(c, 0));
	ck_assert_uint_eq(files_open_now(name), 0);
	expect_save(c, "step-1", "step-1", 1); /* opened again */
	REQUIRE(!ckpt_file_open(c, node_of(c, "step-1/tensors/model.w"), &held, &e));
	ck_assert(!ckpt_let_go(c, 0));
	ck_assert_uint_gt(files_open_now(name), 0); /* used */
	ckpt_file_close(held);
	ck_assert(!ckpt_let_go(c, 0));
	ck_assert_uint_eq(files_open_now(name), 0);
	ckpt_close(c);
	REQUIRE(!unlinkat(dir_fd, name, 0));
}
END_TEST

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
	uint64_t *before = arg;

	ck_assert_uint_eq(done, ++*before);
	ck_assert_uint_eq(total, 3);
}

START_TEST(looking_at_all_tells_how_far_it_is)
{
	uint64_t done = 0;
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	save("step-1", 1);
	save("step-2", 2);
	save("step-3", 3);
	(void)close(sub_dir("logs"));
	c = open_run(&plain);
	REQUIRE(!ckpt_run_look(c, note_progress, &done, &e));
	ck_assert_uint_eq(done, 3);
	REQUIRE(!ckpt_run_look(c, NULL, NULL, &e));
	ckpt_close(c);
}
END_TEST

static void set_age(int fd, const char *name, time_t seconds)
{
	struct timespec t[2] = { { time(NULL) - seconds, 0 }, { time(NULL) - seconds, 0 } };

	REQUIRE(!utimensat(fd, name, t, 0));
}

#define NEWER \
	"its data is newer than its metadata, and was written less than 20 seconds ago, perhaps " \
	"by a save that is not finished: try again in 20 seconds, or copy with the files' times " \
	"(cp -a)"
#define UNSETTLED(name) "checkpoint '@/" name "': " NEWER

/* The fault of the first one. */
static int expect_newer(void *arg, const struct ckpt_run_entry *entry)
{
	(void)arg;
	ck_assert_str_eq(entry->name, "step-1");
	ck_assert_str_eq(entry->fault, NEWER);
	return 1;
}

START_TEST(a_save_over_an_old_checkpoint_is_not_taken_for_one)
{
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	int fd;

	for (int i = 1; i <= 2; i++) {
		fd = sub_dir(i == 1 ? "step-1" : "step-2");
		save(i == 1 ? "step-1" : "step-2", 1);
		set_age(fd, ".metadata", 100);
		set_age(fd, "__0_0.distcp", 100);
		set_age(fd, "__0_1.distcp", i == 1 ? 100 : 90); /* a copy */
		set_age(fd, "__0_2.distcp", 100);
		if (i == 2)
			set_age(fd, "__0_3.distcp", 101);
		(void)close(fd);
	}
	c = open_run(&plain);
	expect_msg(ckpt_enter(c, node_of(c, "step-1"), &e), &e, EAGAIN, UNSETTLED("step-1"));
	ck_assert_int_eq(ckpt_run_each(c, expect_newer, NULL, &e), 1);
	expect_save(c, "step-2", "step-2", 1);
	save("step-1", 2);
	expect_save(c, "step-1", "step-1", 2);
	ckpt_close(c);
}
END_TEST

static uint64_t born_ns(int fd, const char *name)
{
	struct statx sx;

	REQUIRE(!statx(fd, name, 0, STATX_BTIME, &sx));
	return sx.stx_mask & STATX_BTIME
		       ? (uint64_t)sx.stx_btime.tv_sec * CLOCK_SECOND + sx.stx_btime.tv_nsec
		       : 0;
}

static void copy_file(int from, int to, const char *name)
{
	autoclose int in = openat(from, name, O_RDONLY | O_CLOEXEC);
	char text[4096];
	ssize_t n = read(in, text, sizeof(text));

	REQUIRE(n > 0 && n < (ssize_t)sizeof(text));
	put_file(to, name, text, (size_t)n);
}

/* Copies step-1 without its times; the metadata comes first, or in the middle. Returns whether
 * birth times will show that. After a copy that was interrupted for long they do not. */
static bool copy_to_step_2(bool metadata_first)
{
	static const char *const files[] = { "__0_0.distcp", ".metadata", "__0_1.distcp",
					     "__0_2.distcp", "__0_3.distcp" };
	autoclose int from = sub_dir("step-1");
	autoclose int to = -1;
	bool shows;

	erase("step-2");
	to = sub_dir("step-2");
	if (metadata_first)
		copy_file(from, to, ".metadata");
	next_tick();
	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		if (!metadata_first || i != 1)
			copy_file(from, to, files[i]);
	set_age(to, ".metadata", 1);
	shows = run_is_copy(born_ns(to, "."), born_ns(to, ".metadata"),
			    born_ns(to, "__0_0.distcp"));
	return metadata_first ? shows || !born_ns(to, ".") : !shows;
}

START_LOOP_TEST(a_copy_is_usable_once_it_is_there, 3)
{
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	bool known;
	int fd;

	save("step-1", 1);
	while (!copy_to_step_2(_i != 1))
		;
	fd = sub_dir("step-2");
	known = born_ns(fd, ".");
	if (_i == 2) { /* a part has not arrived, or consists of zeros */
		int data = openat(fd, "__0_3.distcp", O_WRONLY | O_CLOEXEC);

		REQUIRE(data >= 0 && !ftruncate(data, 1 << 20));
		(void)close(data);
	}
	(void)close(fd);
	c = open_run(&plain);
	if (_i || !known)
		expect_msg(ckpt_enter(c, node_of(c, "step-2"), &e), &e, EAGAIN,
			   UNSETTLED("step-2"));
	else
		ck_assert_int_eq(ckpt_enter(c, node_of(c, "step-2"), &e), 0);
	ckpt_close(c);
}
END_TEST

START_TEST(a_copy_is_known_by_when_its_files_were_created)
{
	const uint64_t s = CLOCK_SECOND, t = 1000 * s;

	ck_assert(run_is_copy(t, t, t + 1));
	ck_assert(run_is_copy(t, t + s, t + 2 * s));
	ck_assert(!run_is_copy(0, t, t + 1));
	ck_assert(!run_is_copy(0, 0, 0));
	ck_assert(!run_is_copy(t, t - 1, t + 1));	  /* moved here */
	ck_assert(!run_is_copy(t, t + 2, t + 2));	  /* it is not known which came first */
	ck_assert(!run_is_copy(t, t + 2, t + 1));	  /* a save: the data first */
	ck_assert(!run_is_copy(t, t + s + 1, t + s + 2)); /* the metadata of a save */
	ck_assert(!run_is_copy(t, t, t + s + 1)); /* data that took the place of other data */
	ck_assert(!run_is_copy(t, t, 0));
}
END_TEST

static void count_warning(void *arg, const char *what)
{
	ck_assert_ptr_nonnull(strstr(what, "no inode numbers left"));
	++*(int *)arg;
}

START_TEST(when_numbers_run_out_what_is_known_stays)
{
	int warnings = 0;
	struct ckpt *c;
	struct run_child **slots;

	save("step-1", 1);
	c = open_run(&(struct ckpt_opts){ .warn = count_warning, .warn_arg = &warnings });
	slots = realloc(c->run->slots, (RUN_MAX_SLOT + 1) * sizeof(*slots));
	REQUIRE(slots);
	memset(slots + c->run->n_slots, 0, (RUN_MAX_SLOT - c->run->n_slots) * sizeof(*slots));
	c->run->slots = slots;
	c->run->cap_slots = RUN_MAX_SLOT + 1;
	c->run->n_slots = RUN_MAX_SLOT;
	save("step-2", 2);
	expect_save(c, "step-2", "step-2", 2);
	ck_assert_uint_eq(node_of(c, "step-2") >> 48, RUN_MAX_SLOT);
	ck_assert_int_eq(warnings, 0);
	save("step-3", 3);
	save("step-4", 4);
	expect_names(c, ".ckptfs latest step-1 step-2 ");
	ck_assert_int_eq(warnings, 1);
	expect_latest(c, "step-2");
	expect_save(c, "step-1", "step-1", 1);
	ckpt_close(c);
}
END_TEST

/* Closes all that are idle, as entering other checkpoints would. */
static void enter_others(struct ckpt *c)
{
	char path[100];
	struct ckpt_err e = { 0 };

	for (unsigned i = 100; i < 117; i++) {
		(void)snprintf(path, sizeof(path), "step-%u", i);
		REQUIRE(!ckpt_enter(c, node_of(c, path), &e));
	}
}

START_FEW_TEST(opened_again_with_other_data_or_options_it_is_another_one, 3, 1)
{
	static const char *const rules[] = { "s/w/v/\n", "s/w/u/\n" };
	char path[4200], text[TEXT + 1];
	struct ckpt *c;
	ckpt_node n;
	int fd;

	for (unsigned i = 100; i < 117; i++) {
		(void)snprintf(path, sizeof(path), "step-%u", i);
		save(path, i);
	}
	save("step-1", 1);
	put_file(dir_fd, "rules", rules[0], strlen(rules[0]));
	(void)snprintf(path, sizeof(path), "%s/rules", dir);
	c = open_run(&(struct ckpt_opts){ .rename = path });
	text_of("step-1", 1, text);
	expect_file(c, "step-1/tensors/model.v", text);
	n = node_of(c, "step-1/tensors/model.v");
	enter_others(c);
	ck_assert_int_eq(stat_code(c, n), 0);
	enter_others(c);
	next_tick();
	if (_i == 0) {
		put_file(dir_fd, "rules", rules[1], strlen(rules[1]));
	} else if (_i == 1) {
		put_file(dir_fd, "config.json", "{}", 2);
	} else {
		fd = sub_dir("step-1");
		put_file(fd, "__0_3.distcp", text, TEXT);
		set_age(fd, "__0_3.distcp", 3600);
		(void)close(fd);
	}
	ck_assert_int_eq(stat_code(c, n), -ESTALE);
	expect_file(c, _i ? "step-1/tensors/model.v" : "step-1/tensors/model.u", text);
	ck_assert_uint_ne(node_of(c, _i ? "step-1/tensors/model.v" : "step-1/tensors/model.u"), n);
	ckpt_close(c);
}
END_TEST

START_TEST(options_mean_the_same_wherever_the_process_goes)
{
	autofree char *cwd = getcwd(NULL, 0);
	char text[TEXT + 1];
	struct ckpt *c;

	save("step-1", 1);
	put_file(dir_fd, "rules", "s/w/v/\n", 7);
	REQUIRE(cwd && !chdir(dir));
	c = open_run(&(struct ckpt_opts){ .rename = "rules" });
	REQUIRE(!chdir("/"));
	text_of("step-1", 1, text);
	expect_file(c, "step-1/tensors/model.v", text);
	ckpt_close(c);
	REQUIRE(!chdir(cwd));
}
END_TEST

/* Opens the run and reads two files, up to the first failure. */
static int use(const char *newest, char out[static 2 * TEXT + 1], struct ckpt_err *e)
{
	const char *const paths[] = { "step-1/tensors/model.w", newest };
	struct ckpt_opts o = { .runs = true, .index = ":memory:" };
	struct ckpt *c = NULL;
	int64_t n = open_typed(dir, &o, &c, e);

	for (size_t i = 0; n >= 0 && i < ARRAY_LEN(paths); i++) {
		struct ckpt_file *f = NULL;

		n = ckpt_file_open_path(c, paths[i], &f, e);
		if (!n)
			n = ckpt_file_read(f, out + i * TEXT, TEXT, 0, e);
		ckpt_file_close(f);
	}
	ckpt_close(c);
	return n < 0 ? (int)n : 0;
}

START_LOOP_TEST(what_fails_once_gives_no_wrong_bytes, 2)
{
	char want[2 * TEXT + 1] = "", older[2 * TEXT + 1] = "", got[2 * TEXT + 1] = "";
	const char *newest = "latest/objects/step";
	struct ckpt_err e = { 0 };
	unsigned failed = 0;

	fault_sqlite();
	save("step-1", 1);
	save("step-2", 2);
	save_part("step-3", "step-3", 3, false);
	ck_assert_int_eq(use(newest, want, &e), 0);
	ck_assert_int_eq(use("step-1/objects/step", older, &e), 0);
	ck_assert_int_eq((int)strlen(want), 2 * TEXT);
	FAULT_LOOP_SOME(_i ? FAULT_READ : FAULT_ALLOC, 1)
	{
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = use(newest, got, &e);
		(void)fault_off();
		if (rc)
			REQUIRE(rc < 0 && e.code == -rc && e.msg[0]);
		else /* what cannot be read is not complete, and so not the latest */
			REQUIRE(!strcmp(got, want) || (_i && !strcmp(got, older)));
		failed += rc != 0;
	}
	ck_assert_uint_gt(failed, _i ? 0 : 20);
}
END_TEST

/* When the disk fails, that says nothing about a checkpoint. One that was complete stays so; one
 * that was never seen is reported as unreadable, not as a save that was interrupted. */
START_TEST(what_cannot_be_listed_is_not_called_incomplete)
{
	unsigned untold = 0, lost = 0;
	struct ckpt *known;

	save("step-1", 1);
	save("step-2", 2);
	known = open_run(&plain);
	FAULT_LOOP(FAULT_STAT)
	{
		autofree char *text = NULL, *names = NULL;
		struct ckpt_opts o = { .runs = true, .index = ":memory:" };
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		size_t len;
		int rc = open_typed(dir, &o, &c, &e);

		(void)fault_off();
		REQUIRE(!rc == !*e.msg);
		if (!rc) {
			REQUIRE(!ckpt_info_json(c, &text, &len, &e));
			if (strstr(text, "\"fault\": \"")) {
				REQUIRE(strstr(text, "\"fault\": \"cannot be read: ") &&
					strstr(text, ": Input/output error\""));
				untold++;
			}
		}
		ckpt_close(c);
	}
	ck_assert_uint_gt(untold, 0);
	FAULT_LOOP(FAULT_STAT)
	{
		autofree char *names = NULL;
		struct ckpt_err e = { 0 };
		int rc;

		(void)fault_off();
		next_tick();
		(void)close(sub_dir("step-2/x")); /* so that the run looks at it */
		REQUIRE(!unlinkat(dir_fd, "step-2/x", AT_REMOVEDIR));
		fault_on(FAULT_STAT, fault_n, 1);
		rc = run_refresh(known->run, true, &e);
		(void)fault_off();
		names = names_of(known);
		REQUIRE(!strcmp(names, ".ckptfs latest step-1 step-2 "));
		lost += rc != 0;
	}
	ck_assert_uint_gt(lost, 0);
	ckpt_close(known);
}
END_TEST

/* ---- storage that fails or hangs ---- */

enum { MANY = 12 };

static struct ckpt_run *run_in_memory(struct place **ret)
{
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt_err e = { 0 };
	struct ckpt_run *r;
	char name[16];

	for (unsigned i = 0; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "step-%u", i);
		save(name, i);
	}
	*ret = memory_place(dir_fd);
	if (run_new(*ret, "memory", &o, &r, &e))
		ck_abort_msg("%s", e.msg);
	ck_assert_uint_eq(r->n_complete, MANY);
	return r;
}

/* In a store each name costs as long as requests are tried again. Until 0.5.1, a search went on to
 * the next name, twice for each. */
START_LOOP_TEST(storage_that_fails_is_not_asked_about_each_name, 2)
{
	static const struct {
		int code;
		unsigned delay_us;
	} how[] = { { ETIMEDOUT, 0 }, { EIO, 1000000 } };
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt_err e = { 0 };
	struct ckpt_run *r, *other;
	struct place *place;
	unsigned slot = 0;

	r = run_in_memory(&place);
	memory_place_fail(place, 2, UINT64_MAX, how[_i].code); /* it is listed, nothing else */
	memory_place_delay(place, how[_i].delay_us);
	ck_assert_int_eq(run_refresh(r, true, &e), -how[_i].code);
	ck_assert_ptr_nonnull(strstr(e.msg, "'memory'"));
	ck_assert_uint_eq(memory_place_calls(place), 2);
	ck_assert_uint_eq(r->n_complete, MANY);

	/* for a while it is left alone */
	ck_assert_int_eq(run_find(r, "step-3", &slot), 0);
	ck_assert_uint_ne(slot, 0);
	ck_assert_int_eq(run_find(r, "new", &slot), -how[_i].code);
	ck_assert_int_eq(run_refresh(r, false, &e), 0);
	ck_assert_uint_eq(memory_place_calls(place), 2);

	/* then a known name costs one request; what is known is still listed */
	r->blind_until_ns = r->next_scan_ns = 0;
	ck_assert_int_eq(run_find(r, "step-3", &slot), 0);
	ck_assert_uint_eq(memory_place_calls(place), 3);
	r->blind_until_ns = r->next_scan_ns = 0;
	memory_place_fail(place, 2, UINT64_MAX, how[_i].code);
	ck_assert_int_eq(run_refresh(r, false, &e), 0);
	ck_assert_uint_eq(memory_place_calls(place), 2);
	ck_assert_uint_eq(r->n_complete, MANY);

	/* who opens the run is told */
	memory_place_fail(place, 2, UINT64_MAX, how[_i].code);
	ck_assert_int_eq(run_new(place, "memory", &o, &other, &e), -how[_i].code);

	memory_place_fail(place, 0, 0, 0);
	memory_place_delay(place, 0);
	r->blind_until_ns = 0;
	ck_assert_int_eq(run_refresh(r, true, &e), 0);
	ck_assert_int_eq(run_find(r, "new", &slot), 1);
	ck_assert_uint_eq(r->n_complete, MANY);
	run_free(r);
	place_free(place);
}
END_TEST

struct hang {
	struct ckpt_run *run;
	atomic_bool reached, over;
};

static void hang(void *arg)
{
	struct hang *h = arg;

	h->reached = true;
	while (!h->over)
		next_tick();
}

static void *search(void *arg)
{
	struct hang *h = arg;
	struct ckpt_err e = { 0 };

	REQUIRE(!run_refresh(h->run, true, &e));
	return NULL;
}

START_TEST(known_names_do_not_wait_for_a_search)
{
	struct hang h = { 0 };
	struct ckpt_err e = { 0 };
	pthread_t thread;
	struct ckpt *c;
	ckpt_node before, n;

	save("step-1", 1);
	save_part("step-2", "step-2", 2, false);
	c = open_run(&plain);
	h.run = c->run;
	before = node_of(c, "step-1");
	fault_on(FAULT_STAT, 1, 1);
	fault_act(hang, &h);
	REQUIRE(!pthread_create(&thread, NULL, search, &h));
	while (!h.reached)
		next_tick();
	ck_assert_int_eq(ckpt_lookup(c, CKPT_ROOT, "step-1", &n), 0);
	ck_assert_uint_eq(n, before);
	ck_assert_int_eq(ckpt_lookup(c, CKPT_ROOT, "step-2", &n), 1);
	c->run->next_scan_ns = 0; /* it would search now */
	ck_assert_int_eq(ckpt_enter(c, CKPT_ROOT, &e), 0);
	expect_save(c, "step-1", "step-1", 1);
	h.over = true;
	REQUIRE(!pthread_join(thread, NULL));
	(void)fault_off();
	fault_act(NULL, NULL);
	ckpt_close(c);
}
END_TEST

/* ---- while a checkpoint is copied into the run ---- */

/* Takes a data file away (".distcp.XXXX", as rsync calls it while it is copied), or puts it back.
 */
static void hide_data(const char *name, bool hide)
{
	static const char *const as[] = { "__0_1.distcp", ".__0_1.distcp.Xq3" };
	int fd = sub_dir(name);

	REQUIRE(!renameat(fd, as[!hide], fd, as[hide]));
	(void)close(fd);
}

static void save_without_data(const char *name, unsigned number)
{
	save(name, number);
	hide_data(name, true);
}

static struct run_child *child_of(struct ckpt *c, const char *name)
{
	unsigned slot = 0;

	REQUIRE(!run_find(c->run, name, &slot));
	return c->run->slots[slot];
}

/* Until 0.5.1, everything below `latest` was EIO while a newer checkpoint was copied. */
START_TEST(latest_stays_where_it_can_be_opened)
{
	struct run_child *k;
	struct ckpt *c;

	save("step-1", 1);
	c = open_run(&plain);
	expect_latest(c, "step-1");
	ck_assert_ptr_null(child_of(c, "step-1")->ckpt); /* there is no other */
	save_without_data("step-2", 2);
	expect_latest(c, "step-1");
	expect_save(c, "latest", "step-1", 1);

	/* asking again does not open it again */
	k = child_of(c, "step-2");
	ck_assert_ptr_nonnull(k->why);
	k->retry_ns = UINT64_MAX;
	expect_latest(c, "step-1");
	ck_assert(k->retry_ns == UINT64_MAX);
	k->retry_ns = 0;
	expect_latest(c, "step-1");
	ck_assert(k->retry_ns > 0);

	/* nor does what the saver says count before it is there */
	put_file(dir_fd, "latest", "step-3", 6);
	save_without_data("step-3", 3);
	expect_latest(c, "step-1");
	hide_data("step-2", false);
	k->retry_ns = 0;
	expect_latest(c, "step-2");
	expect_save(c, "latest", "step-2", 2);
	hide_data("step-3", false);
	child_of(c, "step-3")->retry_ns = 0;
	expect_latest(c, "step-3");
	expect_save(c, "latest", "step-3", 3);
	put_file(dir_fd, "latest", "step-1", 6);
	expect_latest(c, "step-1");
	ckpt_close(c);
}
END_TEST

/* A copy can be used soon after it has ended; but if opening takes long, it is not tried all the
 * time. */
START_TEST(what_cannot_be_opened_is_tried_again_soon)
{
	const uint64_t second = CLOCK_SECOND;
	struct run_child *k;
	uint64_t start, end;
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	save_without_data("step-1", 1);
	c = open_run(&plain);
	k = child_of(c, "step-1");
	start = clock_ns();
	ck_assert_int_eq(ckpt_enter(c, node_of(c, "step-1"), &e), -ERR_CORRUPT);
	end = clock_ns();
	ck_assert(k->retry_ns >= start + second);
	ck_assert(k->retry_ns <= end + max_u64(second, 10 * (end - start)));
	ck_assert(k->retry_ns <= end + 5 * second);
	hide_data("step-1", false);
	while (clock_ns() < k->retry_ns)
		next_tick();
	expect_save(c, "step-1", "step-1", 1);
	ckpt_close(c);
}
END_TEST

/* As commands resolve it, and if nothing can be opened. */
START_TEST(latest_in_a_path_is_what_can_be_opened)
{
	struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	char path[4200];
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	save_without_data("step-1", 1);
	save_without_data("step-2", 2);
	expect_address("latest", "checkpoint '@/latest': data file '__0_1.distcp' is missing; with "
				 "the option allow_missing, the rest can be read");
	c = open_run(&plain);
	expect_latest(c, "step-2");
	ckpt_close(c);
	hide_data("step-1", false);
	expect_address("latest", "@/step-1");
	(void)snprintf(path, sizeof(path), "%s/latest", dir);
	REQUIRE(!open_typed(path, &o, &c, &e));
	expect_at(dir, c->root, "@/step-1"); /* commands add that option by themselves */
	ckpt_close(c);
	c = open_run(&o);
	expect_latest(c, "step-1");
	expect_save(c, "latest", "step-1", 1);
	hide_data("step-2", false);
	child_of(c, "step-2")->retry_ns = UINT64_MAX;
	expect_latest(c, "step-1"); /* it is not opened each time */
	child_of(c, "step-2")->retry_ns = 0;
	expect_latest(c, "step-2");
	expect_save(c, "latest", "step-2", 2);
	ckpt_close(c);
}
END_TEST

/* That says nothing about a checkpoint. */
START_TEST(latest_stays_if_the_storage_fails)
{
	struct place *place;
	struct ckpt_run *r = run_in_memory(&place);
	struct run_about about;
	struct run_child *k;
	unsigned newest = 0, slot = 0, tried = 0;

	REQUIRE(!run_newest(r, &newest) && !run_about(r, newest, &about));
	ck_assert_str_eq(about.name, "step-11");
	k = r->slots[newest];
	for (uint64_t n = 1; !k->ckpt; n++) {
		free(k->why);
		k->why = NULL;
		r->next_scan_ns = UINT64_MAX;
		r->blind_until_ns = 0;
		memory_place_fail(place, n, UINT64_MAX, EIO);
		for (int i = 0; i < 2; i++) {
			ck_assert_int_eq(run_latest(r, &slot), 0);
			ck_assert_uint_eq(slot, newest);
		}
		tried += k->why && k->why_code == EIO;
	}
	ck_assert_uint_gt(tried, 0);
	for (unsigned i = 1; i < r->n_slots; i++)
		ck_assert(i == newest || (!r->slots[i]->why && !r->slots[i]->ckpt));
	run_free(r);
	place_free(place);
}
END_TEST

static void *use_newest(void *arg)
{
	struct hang *h = arg;
	struct run_child *k;
	struct ckpt_err e = { 0 };
	unsigned slot = 0;

	REQUIRE(!run_newest(h->run, &slot));
	REQUIRE(!run_use(h->run, slot, &k, &e));
	run_done(h->run, k);
	return NULL;
}

START_TEST(latest_does_not_wait_until_another_thread_has_opened_it)
{
	struct hang h = { 0 };
	pthread_t thread;
	struct ckpt *c;

	save("step-1", 1);
	c = open_run(&plain);
	expect_save(c, "step-1", "step-1", 1);
	save("step-2", 2);
	refresh(c);
	h.run = c->run;
	fault_on(FAULT_READ, 1, 1);
	fault_act(hang, &h);
	REQUIRE(!pthread_create(&thread, NULL, use_newest, &h));
	while (!h.reached)
		next_tick();
	expect_latest(c, "step-1");
	h.over = true;
	REQUIRE(!pthread_join(thread, NULL));
	(void)fault_off();
	fault_act(NULL, NULL);
	expect_latest(c, "step-2");
	ckpt_close(c);
}
END_TEST

/* ---- random operations, compared with a list of what there is ---- */

enum { POOL = 5, SEEN = 4000 };

struct model {
	struct ckpt *c;
	struct rng r;
	unsigned numbers;
	struct {
		bool there, complete;
		char saved_as[16];
		unsigned number;
	} v[POOL];
	struct {
		ckpt_node node;
		unsigned number;
	} seen[SEEN];
	size_t n_seen;
};

static void pool_name(size_t i, char out[static 16])
{
	(void)snprintf(out, 16, "step-%zu", i);
}

static void change(struct model *m)
{
	size_t i = rng_below(&m->r, POOL), to = rng_below(&m->r, POOL);
	char name[16], other[16];
	bool finish;

	pool_name(i, name);
	pool_name(to, other);
	switch (rng_below(&m->r, 5)) {
	case 0:
		erase(name);
		m->v[i].there = m->v[i].complete = false;
		break;
	case 1:
		if (!m->v[i].there || m->v[to].there)
			break;
		REQUIRE(!renameat(dir_fd, name, dir_fd, other));
		m->v[to] = m->v[i];
		m->v[i].there = m->v[i].complete = false;
		break;
	case 2:
		erase(name);
		__attribute__((fallthrough));
	default:
		finish = rng_below(&m->r, 4);
		save_part(name, name, ++m->numbers, finish);
		m->v[i].there = true;
		m->v[i].complete = finish;
		m->v[i].number = m->numbers;
		(void)snprintf(m->v[i].saved_as, sizeof(m->v[i].saved_as), "%s", name);
	}
}

/* No node was ever that of another save. */
static void note_node(struct model *m, ckpt_node node, unsigned number)
{
	for (size_t i = 0; i < m->n_seen; i++)
		if (m->seen[i].node == node) {
			REQUIRE(m->seen[i].number == number);
			return;
		}
	REQUIRE(m->n_seen < SEEN);
	m->seen[m->n_seen].node = node;
	m->seen[m->n_seen++].number = number;
}

static void compare(struct model *m)
{
	char name[16], path[64], text[TEXT + 1];
	autofree char *got = NULL;
	unsigned latest = POOL;

	for (unsigned i = 0; i < POOL; i++) {
		pool_name(i, name);
		(void)snprintf(path, sizeof(path), "%s/tensors/model.w", name);
		if (!m->v[i].complete) {
			autofree char *why = tree_text(m->c, path);

			REQUIRE(!strncmp(why, "error 2: ", 9));
			continue;
		}
		latest = i;
		text_of(m->v[i].saved_as, m->v[i].number, text);
		expect_file(m->c, path, text);
		note_node(m, node_of(m->c, path), m->v[i].number);
	}
	refresh(m->c);
	got = names_of(m->c);
	REQUIRE((strstr(got, "latest ") != NULL) == (latest < POOL));
	for (unsigned i = 0; i < POOL; i++) {
		pool_name(i, name);
		REQUIRE((strstr(got, name) != NULL) == m->v[i].complete);
	}
}

START_LONG_TEST(any_change_is_seen)
{
	struct model m = { .r = rng_new() };
	struct ckpt_file *open = NULL;
	char text[TEXT + 1] = "", got[TEXT + 1] = "", path[64];
	struct ckpt_err e = { 0 };

	save("step-0", 0);
	m.v[0].there = m.v[0].complete = true;
	pool_name(0, m.v[0].saved_as);
	m.c = open_run(&plain);
	for (unsigned step = 0; step < rng_rounds(120, 40); step++) {
		size_t i = rng_below(&m.r, POOL);

		if (!open && m.v[i].complete) {
			(void)snprintf(path, sizeof(path), "step-%zu/tensors/model.w", i);
			text_of(m.v[i].saved_as, m.v[i].number, text);
			REQUIRE(!ckpt_file_open_path(m.c, path, &open, &e));
		}
		change(&m);
		compare(&m);
		next_tick();
		if (open && ckpt_file_read(open, got, TEXT, 0, &e) == TEXT)
			ck_assert_str_eq(got, text);
		if (open && !rng_below(&m.r, 3)) {
			ckpt_file_close(open);
			open = NULL;
		}
	}
	if (open)
		ckpt_file_close(open);
	ckpt_close(m.c);
}
END_TEST

/* ---- many threads while checkpoints are saved and deleted ---- */

struct crowd {
	struct ckpt *c;
	atomic_bool stop, bad;
	atomic_uint turn, right;
};

/* The bytes of a save contain its number three times. */
static bool is_a_save(const char *text)
{
	unsigned long a, b, c;
	char rest;

	return strlen(text) == TEXT && !strncmp(text, "step-", 5) &&
	       sscanf(text + 8, "%8lu%16lu%16lu%c", &a, &b, &c, &rest) == 3 && a == b && b == c;
}

static void *read_all(void *arg)
{
	struct crowd *w = arg;
	struct rng r = { ++w->turn };

	while (!w->stop) {
		char path[64], name[CKPT_NAME_MAX + 1];
		autofree char *got = NULL;
		struct ckpt_err e = { 0 };
		uint64_t pos = 0;
		ckpt_node node;

		(void)snprintf(path, sizeof(path), "step-%u/%s", (unsigned)rng_below(&r, POOL),
			       rng_below(&r, 2) ? "tensors/model.w" : "objects/step");
		got = tree_text(w->c, rng_below(&r, 8) ? path : "latest/tensors/model.w");
		if (strncmp(got, "error ", 6) != 0) {
			w->right += is_a_save(got);
			w->bad = w->bad || !is_a_save(got);
		}
		if (!rng_below(&r, 8))
			(void)run_refresh(w->c->run, true, &e);
		while (!rng_below(&r, 2) && !ckpt_next(w->c, CKPT_ROOT, &pos, name, &node)) {
			struct ckpt_stat st;

			(void)ckpt_stat(w->c, node, &st, &e);
			(void)ckpt_enter(w->c, node, &e);
		}
	}
	return NULL;
}

START_LONG_TEST(readers_see_whole_saves_while_they_change)
{
	struct crowd w = { 0 };
	struct rng r = rng_new();
	pthread_t threads[6];
	char name[16];

	save("step-0", 1);
	w.c = open_run(&plain);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		REQUIRE(!pthread_create(&threads[i], NULL, read_all, &w));
	for (unsigned number = 2; number < rng_rounds(120, 50) || (w.right <= 100 && !w.bad);
	     number++) {
		pool_name(rng_below(&r, POOL), name);
		if (rng_below(&r, 2))
			erase(name);
		if (rng_below(&r, 4))
			save(name, number);
		next_tick();
	}
	w.stop = true;
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	ck_assert(!w.bad);
	ck_assert_uint_gt(w.right, 100);
	for (size_t i = 0; i < w.c->run->n_names; i++)
		ck_assert_uint_eq(w.c->run->names[i]->users, 0);
	ckpt_close(w.c);
}
END_TEST

SUITE(run, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
