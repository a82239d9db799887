/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "dir_util.h"
#include "disk.h"
#include "fault.h"
#include "store/staging.h"
#include "suites.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char dest[4200];

static void setup(void)
{
	dir_setup();
	(void)snprintf(dest, sizeof(dest), "%s/ckpt", dir);
}

/* ---- a small save ---- */

static const char *const parts[] = { "__0_0.distcp", "__1_0.distcp", ".metadata" };
enum { PARTS = 3, PART_SIZE = 3000 };

static int write_part(struct staging *s, const char *name, const uint8_t *p, struct ckpt_err *e)
{
	CLEANUP(staging_drop) struct staging_file f = STAGING_FILE_INIT;
	int rc = staging_open(s, name, &f, e);

	if (!rc)
		rc = staging_write(&f, p, PART_SIZE, e);
	return rc ? rc : staging_finish(&f, e);
}

static int fill(struct staging *s, uint8_t tag, struct ckpt_err *e)
{
	uint8_t p[PART_SIZE];
	int rc = 0;

	memset(p, tag, sizeof(p));
	for (unsigned i = 0; i + 1 < PARTS && !rc; i++)
		rc = write_part(s, parts[i], p, e);
	if (!rc)
		rc = staging_sync(s, e);
	return rc ? rc : staging_put(s, parts[PARTS - 1], p, sizeof(p), e);
}

/* Three files full of `tag`. */
static int save(uint8_t tag, bool overwrite, struct ckpt_err *e)
{
	struct staging *s = NULL;
	int rc = staging_begin(dest, overwrite ? staging_alone : NULL, NULL, &s, e);

	if (!rc)
		rc = fill(s, tag, e);
	if (!rc)
		rc = staging_commit(s, e);
	staging_end(s);
	return rc;
}

static void must_save(uint8_t tag, bool overwrite)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!save(tag, overwrite, &e), "%s", e.msg);
}

static unsigned entries(const char *name)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fdopendir(fd);
	unsigned n = 0;

	REQUIRE(d);
	while (readdir(d)) /* NOLINT(concurrency-mt-unsafe) */
		n++;
	(void)closedir(d);
	return n - 2;
}

static bool there(const char *name)
{
	struct stat st;

	return !fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW);
}

/* The tag of the checkpoint at `name`, which must be complete and alone; 0: there is none. */
static uint8_t tag_at(const char *name)
{
	uint8_t tag = 0;

	if (!there(name))
		return 0;
	for (unsigned i = 0; i < PARTS; i++) {
		char path[64];
		autofree uint8_t *p = NULL;
		size_t n;

		(void)snprintf(path, sizeof(path), "%s/%s", name, parts[i]);
		p = get_file(dir_fd, path, &n);
		REQUIRE(n == PART_SIZE);
		tag = i ? tag : p[0];
		for (size_t k = 0; k < n; k++)
			REQUIRE(p[k] == tag);
	}
	REQUIRE(entries(name) == PARTS);
	return tag;
}

static void only_dest_is_there(void)
{
	REQUIRE(entries(".") == 1 && there("ckpt"));
}

#define REFUSED(call, code_, fmt, ...) \
	do { \
		char want[16384]; \
		struct ckpt_err e = { 0 }; \
		(void)snprintf(want, sizeof(want), fmt, ##__VA_ARGS__); \
		ck_assert_int_eq(call, -(code_)); \
		ck_assert_str_eq(e.msg, want); \
	} while (0)

/* ---- where ---- */

START_TEST(a_new_place_and_an_empty_directory_are_filled)
{
	must_save('a', false);
	ck_assert_int_eq(tag_at("ckpt"), 'a');
	only_dest_is_there();
	(void)snprintf(dest, sizeof(dest), "%s/empty", dir);
	REQUIRE(!mkdirat(dir_fd, "empty", 0755));
	must_save('b', false);
	ck_assert_int_eq(tag_at("empty"), 'b');
}
END_TEST

START_TEST(an_old_checkpoint_is_replaced_when_asked_for)
{
	must_save('a', false);
	REFUSED(save('b', false, &e), EEXIST,
		"'%s' already exists and is not empty: use the option overwrite to replace it",
		dest);
	ck_assert_int_eq(tag_at("ckpt"), 'a');
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
	only_dest_is_there();
}
END_TEST

START_TEST(without_an_exchange_two_renames_do)
{
	must_save('a', false);
	fault_no_exchange();
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
	only_dest_is_there();
}
END_TEST

START_TEST(where_errors_have_no_names_two_renames_do)
{
	must_save('a', false);
	fault_sftp_renames();
	REFUSED(save('b', false, &e), EEXIST,
		"'%s' already exists and is not empty: use the option overwrite to replace it",
		dest);
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
	only_dest_is_there();
}
END_TEST

/* Anybody may call a file metadata.json; only the contents show that it is Megatron-core's. */
START_TEST(what_megatron_has_beside_a_dcp_is_part_of_it)
{
	static const char json[] = "{\"sharded_backend\": \"torch_dist\"}";
	struct ckpt_err why;
	int fd;

	must_save('a', false);
	fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(fd, "common.pt", "x", 1);
	REFUSED(staging_check(dest, staging_alone, NULL, &e), ENOTEMPTY,
		"'%s' holds 'common.pt', which is not part of a checkpoint and would be lost",
		dest);
	put_file(fd, "metadata.json", json, sizeof(json) - 1);
	ck_assert_int_eq(staging_check(dest, staging_alone, NULL, &why), 0);
	REQUIRE(!unlinkat(fd, "common.pt", 0));
	put_file(fd, "metadata.json", "{}", 2);
	REFUSED(save('b', true, &e), ENOTEMPTY,
		"'%s' holds 'metadata.json', which is not part of a checkpoint and would be lost",
		dest);
	REQUIRE(!unlinkat(fd, "metadata.json", 0) && !mkdirat(fd, "metadata.json", 0755));
	REFUSED(save('b', true, &e), ENOTEMPTY,
		"'%s' holds 'metadata.json', which is not part of a checkpoint and would be lost",
		dest);
	REQUIRE(!unlinkat(fd, "metadata.json", AT_REMOVEDIR));
	(void)close(fd);
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
}
END_TEST

START_TEST(an_array_as_it_is_written_here_is_part_of_a_checkpoint)
{
	static const char *const others[] = { "w/notes", "w/c.txt", "w/zarr.json.old" };
	struct ckpt_err why;
	int fd;

	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(fd, "zarr.json", "x", 1);
	REQUIRE(!mkdirat(fd, "w", 0755));
	put_file(fd, "w/c.0.0", "x", 1);
	REFUSED(staging_check(dest, staging_alone, NULL, &e), ENOTEMPTY,
		"'%s' holds 'w', which is not part of a checkpoint and would be lost", dest);
	put_file(fd, "w/zarr.json", "x", 1);
	ck_assert_int_eq(staging_check(dest, staging_alone, NULL, &why), 0);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		put_file(fd, others[i], "x", 1);
		REFUSED(save('b', true, &e), ENOTEMPTY,
			"'%s' holds 'w', which is not part of a checkpoint and would be lost",
			dest);
		REQUIRE(!unlinkat(fd, others[i], 0));
	}
	/* Chunks of another program, which the save would not remove. */
	REQUIRE(!mkdirat(fd, "w/c", 0755));
	REFUSED(save('b', true, &e), ENOTEMPTY,
		"'%s' holds 'w', which is not part of a checkpoint and would be lost", dest);
	REQUIRE(!unlinkat(fd, "w/c", AT_REMOVEDIR));
	put_file(fd, "__0_0.distcp", "x", 1);
	ck_assert_int_eq(save('b', true, &why), -ENOTEMPTY);
	ck_assert_msg(strstr(why.msg, "belong to two checkpoints"), "%s", why.msg);
	REQUIRE(!unlinkat(fd, "__0_0.distcp", 0));
	(void)close(fd);
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
	only_dest_is_there();
}
END_TEST

/* In whatever order the directory is listed, some of these names come after zarr.json. */
START_LOOP_TEST(an_array_that_cannot_be_listed_may_hold_more, 8)
{
	char other[16];
	int fd;

	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	(void)snprintf(other, sizeof(other), "w/%c", 'd' + _i);
	fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(!mkdirat(fd, "w", 0755));
	put_file(fd, other, "x", 1);
	put_file(fd, "w/zarr.json", "x", 1);
	FAULT_LOOP(FAULT_STAT | FAULT_OPEN)
	{
		struct ckpt_err why = { 0 };
		int rc = staging_check(dest, staging_alone, NULL, &why);

		(void)fault_off();
		ck_assert_msg(rc < 0, "%s failed", fault_name());
	}
	(void)close(fd);
}
END_TEST

START_TEST(what_is_no_checkpoint_would_be_lost_and_is_named)
{
	static const char *const fine[] = { ".ckptfs-index.sqlite-wal", "__3.metadata",
					    "__3.metadata.tmp", "__10_2.distcp" };
	static const char *const lost[] = { "config.json",
					    "tokenizer.model",
					    "model.safetensors.txt",
					    "common.pt",
					    "metadata.json",
					    "x.distcp",
					    ".metadata2",
					    "..." };
	int fd;

	must_save('a', false);
	fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++)
		put_file(fd, fine[i], "x", 1);
	for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
		put_file(fd, lost[i], "x", 1);
		REFUSED(staging_check(dest, staging_alone, NULL, &e), ENOTEMPTY,
			"'%s' holds '%s', which is not part of a checkpoint and would be lost",
			dest, lost[i]);
		REFUSED(save('b', true, &e), ENOTEMPTY,
			"'%s' holds '%s', which is not part of a checkpoint and would be lost",
			dest, lost[i]);
		REQUIRE(!unlinkat(fd, lost[i], 0));
	}
	REQUIRE(!mkdirat(fd, "_rank1_.bytes", 0755));
	REFUSED(staging_check(dest, staging_alone, NULL, &e), ENOTEMPTY,
		"'%s' holds '_rank1_.bytes', which is not part of a checkpoint and would be lost",
		dest);
	REQUIRE(!unlinkat(fd, "_rank1_.bytes", AT_REMOVEDIR));
	(void)close(fd);
	only_dest_is_there();
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
}
END_TEST

static const char *const families[][7] = {
	{ "__10_2.distcp", "__3.metadata", "__3.metadata.tmp" },
	{ "_rank12_.safetensors", "_rank0_.bytes", "opt_rank0.bytes", ".rank3_metadata",
	  "7.metadata" },
	{ "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
	  "shard-00001-model-00001-of-00001.safetensors" },
	{ "zarr.json" },
};

/* Readers use only one of them, so nobody would miss the other until it is needed. */
START_LOOP_TEST(of_two_checkpoints_none_is_replaced, (int)ARRAY_LEN(families))
{
	struct ckpt_err e = { 0 };
	int fd;

	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(fd, ".metadata", "x", 1);
	put_file(fd, ".ckptfs-index.sqlite", "x", 1);
	for (size_t i = 0; families[_i][i]; i++)
		put_file(fd, families[_i][i], "x", 1);
	ck_assert_msg(!staging_check(dest, staging_alone, NULL, &e), "%s", e.msg);
	for (int k = 0; k < (int)ARRAY_LEN(families); k++)
		for (size_t i = 0; k != _i && families[k][i]; i++) {
			const char *name = families[k][i];

			put_file(fd, name, "x", 1);
			ck_assert_int_eq(staging_check(dest, staging_alone, NULL, &e), -ENOTEMPTY);
			ck_assert_msg(strstr(e.msg, name) &&
					      strstr(e.msg, "belong to two checkpoints"),
				      "%s", e.msg);
			ck_assert_int_eq(save('b', true, &e), -ENOTEMPTY);
			REQUIRE(!unlinkat(fd, name, 0));
		}
	(void)close(fd);
	must_save('b', true);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
}
END_TEST

START_TEST(what_the_new_checkpoint_has_as_well_is_replaced)
{
	static const char *const over[] = { "config.json", "tokenizer.json", NULL };
	struct staging *s = NULL;
	struct ckpt_err ok = { 0 };
	int fd;

	must_save('a', false);
	fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(fd, "config.json", "x", 1);
	REFUSED(staging_check(dest, staging_alone, NULL, &e), ENOTEMPTY,
		"'%s' holds 'config.json', which is not part of a checkpoint and would be lost",
		dest);
	put_file(fd, "tokenizer.json", "x", 1);
	ck_assert_int_eq(staging_check(dest, over, NULL, &ok), 0);
	REFUSED(staging_check(dest, NULL, NULL, &e), EEXIST,
		"'%s' already exists and is not empty: use the option overwrite to replace it",
		dest);
	REQUIRE(!staging_begin(dest, over, NULL, &s, &ok) && !fill(s, 'b', &ok));
	put_file(fd, "notes", "x", 1);
	REFUSED(staging_commit(s, &e), ENOTEMPTY,
		"'%s' holds 'notes', which is not part of a checkpoint and would be lost", dest);
	REQUIRE(!unlinkat(fd, "notes", 0));
	staging_end(s);
	s = NULL;
	REQUIRE(!staging_begin(dest, over, NULL, &s, &ok) && !fill(s, 'b', &ok) &&
		!staging_commit(s, &ok));
	staging_end(s);
	(void)close(fd);
	ck_assert_int_eq(tag_at("ckpt"), 'b');
	REQUIRE(!there("ckpt/config.json")); /* the new save does not write it */
	only_dest_is_there();
}
END_TEST

START_TEST(what_comes_to_the_place_while_saving_is_not_lost)
{
	struct staging *s = NULL;
	struct ckpt_err ok = { 0 };

	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &ok) && !fill(s, 'b', &ok));
	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	put_file(dir_fd, "ckpt/notes", "x", 1);
	REFUSED(staging_commit(s, &e), ENOTEMPTY,
		"'%s' holds 'notes', which is not part of a checkpoint and would be lost", dest);
	staging_end(s);
	only_dest_is_there();
	REQUIRE(there("ckpt/notes"));
}
END_TEST

START_TEST(places_that_cannot_be)
{
	char path[8400], name[260] = { 0 };

	REFUSED(staging_check("", NULL, NULL, &e), EINVAL,
		"'' does not name a directory that can be made");
	REFUSED(staging_check("/", staging_alone, NULL, &e), EBUSY,
		"'/' cannot be replaced by a checkpoint");
	REFUSED(staging_check("//./", staging_alone, NULL, &e), EBUSY,
		"'/' cannot be replaced by a checkpoint");
	REFUSED(staging_check("/proc", staging_alone, NULL, &e), EBUSY,
		"'/proc' is a mount point, which cannot be replaced: name a directory in it");
	(void)snprintf(path, sizeof(path), "%s/no/ckpt", dir);
	REFUSED(staging_check(path, NULL, NULL, &e), ENOENT,
		"directory of '%s': No such file or directory", path);
	(void)snprintf(path, sizeof(path), "%s/no/..", dir);
	REFUSED(staging_check(path, NULL, NULL, &e), EINVAL,
		"'%s' does not name a directory that can be made", path);
	put_file(dir_fd, "file", "x", 1);
	(void)snprintf(path, sizeof(path), "%s/file", dir);
	REFUSED(staging_check(path, staging_alone, NULL, &e), ENOTDIR,
		"'%s' already exists and is not a directory", path);
	REQUIRE(!symlinkat("nowhere", dir_fd, "dangling"));
	(void)snprintf(path, sizeof(path), "%s/dangling", dir);
	REFUSED(staging_check(path, staging_alone, NULL, &e), ENOENT,
		"'%s' is a link that leads nowhere", path);
	memset(name, 'n', 243);
	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	REFUSED(staging_check(path, staging_alone, NULL, &e), ENAMETOOLONG,
		"'%s': the name is too long for '.partial.lock' to be appended", path);
	ck_assert_uint_eq(entries("."), 2);
}
END_TEST

START_TEST(other_words_for_a_place)
{
	REQUIRE(!mkdirat(dir_fd, "real", 0755) && !symlinkat("real", dir_fd, "ckpt"));
	must_save('a', false); /* through the link */
	must_save('b', true);
	ck_assert_int_eq(tag_at("real"), 'b');
	REQUIRE(entries(".") == 2 && readlinkat(dir_fd, "ckpt", (char[8]){ 0 }, 8) == 4);
	(void)snprintf(dest, sizeof(dest), "%s/new/./", dir);
	must_save('c', false);
	ck_assert_int_eq(tag_at("new"), 'c');
	(void)snprintf(dest, sizeof(dest), "%s/new//", dir);
	must_save('d', true);
	ck_assert_int_eq(tag_at("new"), 'd');
	REQUIRE(!fchdir(dir_fd));
	(void)snprintf(dest, sizeof(dest), "new");
	must_save('e', true);
	REQUIRE(!chdir("new"));
	(void)snprintf(dest, sizeof(dest), ".");
	must_save('f', true);
	ck_assert_int_eq(tag_at("new"), 'f');
	REQUIRE(!chdir("/"));
}
END_TEST

START_TEST(permissions_are_those_of_the_umask)
{
	struct stat st;

	(void)umask(027);
	must_save('a', false);
	REQUIRE(!fstatat(dir_fd, "ckpt", &st, 0));
	ck_assert_uint_eq(st.st_mode & 07777, 0750);
	for (unsigned i = 0; i < PARTS; i++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "ckpt/%s", parts[i]);
		REQUIRE(!fstatat(dir_fd, path, &st, 0));
		ck_assert_uint_eq(st.st_mode & 07777, 0640);
	}
}
END_TEST

/* ---- files ---- */

START_TEST(names_are_single_elements)
{
	static const char *const names[] = { "", ".", "..", "/a", "../a", "a/", "a/b/c", "a/.." };
	struct staging *s = NULL;
	struct staging_file f = STAGING_FILE_INIT;
	struct ckpt_err ok = { 0 };

	REQUIRE(!staging_begin(dest, NULL, NULL, &s, &ok));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		REFUSED(staging_open(s, names[i], &f, &e), EINVAL,
			"'%s' is not a valid name for a file of a checkpoint", names[i]);
		REFUSED(staging_put(s, names[i], "x", 1, &e), EINVAL,
			"'%s' is not a valid name for a file of a checkpoint", names[i]);
	}
	REQUIRE(!staging_put(s, "a", "x", 1, &ok));
	REFUSED(staging_open(s, "a", &f, &e), EEXIST, "make 'a': File exists");
	ck_assert_int_eq(f.fd, -1);
	staging_end(s);
	ck_assert_uint_eq(entries("."), 0);
}
END_TEST

START_TEST(names_may_be_as_long_as_a_file_system_allows)
{
	static const char tail[] = "/c.0";
	char name[NAME_MAX + 1 + sizeof(tail)];
	struct staging *s = NULL;
	struct staging_file f = STAGING_FILE_INIT;
	struct ckpt_err ok = { 0 };

	REQUIRE(!staging_begin(dest, NULL, NULL, &s, &ok));
	for (size_t len = NAME_MAX; len <= NAME_MAX + 1; len++) {
		struct ckpt_err e = { 0 };
		bool fits = len == NAME_MAX;

		memset(name, 'a', len);
		name[len] = 0;
		ck_assert_int_eq(staging_dir(s, name, &e), fits ? 0 : -ENAMETOOLONG);
		memcpy(name + len, tail, sizeof(tail));
		ck_assert_int_eq(staging_open(s, name, &f, &e), fits ? 0 : -ENAMETOOLONG);
		staging_drop(&f);
		/* The file is written under the name ".NAME.tmp". */
		name[len - strlen(".") - strlen(".tmp")] = 0;
		ck_assert_int_eq(staging_put(s, name, "x", 1, &e), fits ? 0 : -ENAMETOOLONG);
	}
	staging_end(s);
}
END_TEST

START_TEST(ranks_write_into_one_directory)
{
	struct staging *s[3] = { NULL };
	struct ckpt_err ok = { 0 };

	REFUSED(staging_join(dest, &s[1], &e), ENOENT,
		"open '%s.partial': No such file or directory", dest);
	REQUIRE(!staging_begin(dest, NULL, NULL, &s[0], &ok));
	for (int r = 1; r < 3; r++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "f%d", r);
		REQUIRE(!staging_join(dest, &s[r], &ok) && !staging_put(s[r], name, name, 2, &ok) &&
			!staging_sync(s[r], &ok));
		staging_end(s[r]);
	}
	REQUIRE(!staging_commit(s[0], &ok));
	staging_end(s[0]);
	ck_assert_uint_eq(entries("ckpt"), 2);
	only_dest_is_there();
}
END_TEST

/* Root may write everywhere, and is asked not to. */
static void with_modes(bool on)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct v[2];
	const uint32_t ignoring = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH;

	REQUIRE(!syscall(SYS_capget, &h, v));
	v[0].effective = on ? v[0].effective & ~ignoring : v[0].permitted;
	REQUIRE(!syscall(SYS_capset, &h, v));
}

START_TEST(what_cannot_be_removed_is_not_replaced)
{
	must_save('a', false);
	REQUIRE(!fchmodat(dir_fd, "ckpt", 0555, 0));
	with_modes(true);
	REFUSED(staging_check(dest, staging_alone, NULL, &e), EACCES,
		"'%s' cannot be replaced: Permission denied", dest);
	with_modes(false);
	REQUIRE(!fchmodat(dir_fd, "ckpt", 0755, 0));
	must_save('b', true);
}
END_TEST

/* ---- who ---- */

START_TEST(two_do_not_save_at_once)
{
	struct staging *s = NULL, *t = NULL;
	struct ckpt_err ok = { 0 };

	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &ok));
	REFUSED(staging_begin(dest, staging_alone, NULL, &t, &e), EBUSY,
		"another save to '%s' is under way", dest);
	ck_assert_ptr_null(t);
	REQUIRE(!fill(s, 'a', &ok) && !staging_commit(s, &ok));
	staging_end(s);
	ck_assert_int_eq(tag_at("ckpt"), 'a');
	only_dest_is_there();
}
END_TEST

static int third;

/* While flock is called, the holder finishes, and a third save locks a file of its own. */
static void lock_changes_hands(void *arg)
{
	(void)arg;
	if (strcmp(fault_name(), "flock") != 0)
		return;
	REQUIRE(!unlinkat(dir_fd, "ckpt.partial.lock", 0));
	third = openat(dir_fd, "ckpt.partial.lock", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	REQUIRE(third >= 0 && !flock(third, LOCK_EX | LOCK_NB));
}

START_TEST(a_lock_whose_file_was_replaced_meanwhile_is_none)
{
	third = -1;
	for (uint64_t n = 1; third < 0; n++) {
		struct staging *s = NULL;
		struct ckpt_err e = { 0 };
		int rc;

		REQUIRE(n < 100);
		fault_act(lock_changes_hands, NULL);
		fault_on(FAULT_STAT, n, 1);
		rc = staging_begin(dest, staging_alone, NULL, &s, &e);
		(void)fault_off();
		fault_act(NULL, NULL);
		ck_assert_int_eq(rc, third < 0 ? 0 : -EBUSY);
		staging_end(s);
	}
	(void)close(third);
	REQUIRE(!unlinkat(dir_fd, "ckpt.partial.lock", 0));
	must_save('a', false);
	only_dest_is_there();
}
END_TEST

START_LOOP_TEST(without_locks_a_lock_file_counts_as_a_running_save, 2)
{
	bool asked = false;

	for (uint64_t n = 1; !asked; n++) {
		struct staging *s = NULL;
		struct ckpt_err e = { 0 };
		int rc;

		REQUIRE(n < 100);
		if (_i)
			put_file(dir_fd, "ckpt.partial.lock", "", 0);
		fault_on(FAULT_STAT, n, 1);
		rc = staging_begin(dest, staging_alone, NULL, &s, &e);
		(void)fault_off();
		asked = !strcmp(fault_name(), "flock");
		if (asked && _i) {
			ck_assert_int_eq(rc, -EBUSY);
			ck_assert_msg(strstr(e.msg, "its file system has no locks"), "%s", e.msg);
			REQUIRE(entries(".") == 1 && there("ckpt.partial.lock"));
			REQUIRE(!unlinkat(dir_fd, "ckpt.partial.lock", 0));
		} else if (asked) {
			ck_assert_msg(!rc, "%s", e.msg);
		}
		staging_end(s);
	}
	must_save('a', false);
	only_dest_is_there();
}
END_TEST

static bool came;

/* While mkdirat is called, an NFS server carries out what a killed save had asked for. */
static void partial_comes(void *arg)
{
	(void)arg;
	came = !strcmp(fault_name(), "mkdirat");
	if (came)
		REQUIRE(!mkdirat(dir_fd, "ckpt.partial", 0777));
}

/* The same, but it has something that no save makes. */
static void full_partial_comes(void *arg)
{
	partial_comes(arg);
	if (came)
		REQUIRE(!mkdirat(dir_fd, "ckpt.partial/else", 0777) &&
			!mkdirat(dir_fd, "ckpt.partial/else/where", 0777));
}

static int begin_when_it_comes(void (*act)(void *arg), struct ckpt_err *e)
{
	int rc = 0;

	came = false;
	for (uint64_t n = 1; !came; n++) {
		struct staging *s = NULL;

		REQUIRE(n < 100);
		fault_act(act, NULL);
		fault_on(FAULT_WRITE, n, 1);
		rc = staging_begin(dest, staging_alone, NULL, &s, e);
		(void)fault_off();
		fault_act(NULL, NULL);
		ck_assert_msg(!rc || came, "%s", e->msg);
		staging_end(s);
	}
	return rc;
}

START_TEST(a_directory_that_a_killed_save_makes_late_is_removed)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!begin_when_it_comes(partial_comes, &e), "%s", e.msg);
	must_save('a', false);
	only_dest_is_there();
}
END_TEST

START_TEST(a_late_directory_that_cannot_be_removed_is_an_error)
{
	struct ckpt_err e = { 0 };
	int rc = begin_when_it_comes(full_partial_comes, &e);

	ck_assert_int_eq(rc, -ENOTEMPTY);
	REQUIRE(there("ckpt.partial/else"));
}
END_TEST

START_TEST(what_is_not_ours_stays)
{
	static const char *const names[] = { "ckpt.partial", "ckpt.partial.old",
					     "ckpt.partial.lock" };
	char text[1024];

	memset(text, 'm', sizeof(text));
	for (int i = 0; i < 6; i++) {
		put_file(dir_fd, names[i / 2], text, i % 2 ? sizeof(text) : 4);
		REFUSED(save('a', true, &e), EEXIST,
			"'%s%s' is in the way: it was not made by a save of this program", dest,
			names[i / 2] + strlen("ckpt"));
		ck_assert_uint_eq(entries("."), 1);
		REQUIRE(!unlinkat(dir_fd, names[i / 2], 0));
	}
	/* The save was killed before it wrote anything: the lock file is ours, the other file is
	 * not. */
	put_file(dir_fd, "ckpt.partial.lock", "", 0);
	put_file(dir_fd, "ckpt.partial", "mine", 4);
	REFUSED(save('a', true, &e), EEXIST,
		"'%s.partial' is in the way: it was not made by a save of this program", dest);
	REQUIRE(entries(".") == 1 && there("ckpt.partial"));
}
END_TEST

START_TEST(links_in_what_is_removed_are_not_followed)
{
	struct staging *s = NULL;
	struct ckpt_err e = { 0 };

	REQUIRE(!mkdirat(dir_fd, "precious", 0755));
	put_file(dir_fd, "precious/.metadata", "x", 1);
	must_save('a', false);
	REQUIRE(!symlinkat("../precious", dir_fd, "ckpt/__9_9.distcp"));
	must_save('b', true);
	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &e));
	REQUIRE(!symlinkat("../precious", dir_fd, "ckpt.partial/link"));
	staging_end(s);
	REQUIRE(entries(".") == 2 && there("precious/.metadata"));
	/* DEST.partial itself is a link. */
	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &e));
	REQUIRE(!unlinkat(dir_fd, "ckpt.partial", AT_REMOVEDIR) &&
		!symlinkat("precious", dir_fd, "ckpt.partial"));
	staging_end(s);
	REQUIRE(entries(".") == 2 && there("precious/.metadata"));
}
END_TEST

START_TEST(a_lock_file_that_is_a_link_is_not_written_through)
{
	static const char *const targets[] = { "victim", "nothing", "/dev/null" };
	size_t len;

	put_file(dir_fd, "victim", "", 0);
	for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		REQUIRE(!symlinkat(targets[i], dir_fd, "ckpt.partial.lock"));
		REFUSED(save('a', true, &e), ELOOP,
			"make '%s.partial.lock': Too many levels of symbolic links", dest);
		REQUIRE(!unlinkat(dir_fd, "ckpt.partial.lock", 0));
		ck_assert_uint_eq(entries("."), 1);
	}
	free(get_file(dir_fd, "victim", &len));
	ck_assert_uint_eq(len, 0);
}
END_TEST

START_TEST(a_directory_that_came_in_is_not_removed)
{
	struct staging *s = NULL;
	struct ckpt_err ok = { 0 };

	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &ok) &&
		!mkdirat(dir_fd, "ckpt.partial/sub", 0755));
	put_file(dir_fd, "ckpt.partial/sub/notes", "x", 1);
	staging_end(s);
	REQUIRE(there("ckpt.partial/sub") && there("ckpt.partial.lock"));
	REFUSED(save('a', true, &e), ENOTEMPTY,
		"'ckpt.partial': remove 'sub': Directory not empty");
	REQUIRE(!unlinkat(dir_fd, "ckpt.partial/sub/notes", 0));
	must_save('a', true);
	only_dest_is_there();
}
END_TEST

/* ---- what goes wrong ---- */

static void fails_cleanly(enum fault_kind kind, int usual)
{
	FAULT_LOOP(kind)
	{
		struct ckpt_err e = { 0 };
		int rc = save('b', true, &e), code;

		(void)fault_off();
		if (!fault_hit()) {
			REQUIRE(!rc);
			continue;
		}
		code = strcmp(fault_name(), "fdopendir") ? usual : ENOMEM;
		/* Only a failure after the exchange may leave the new checkpoint there. */
		ck_assert_int_eq(rc, -code);
		REQUIRE(e.code == code && e.msg[0]);
		if (tag_at("ckpt") == 'b')
			REQUIRE(strstr(e.msg, "is saved"));
		else
			only_dest_is_there();
		must_save('a', true);
		only_dest_is_there();
	}
	ck_assert_int_eq(tag_at("ckpt"), 'b');
}

START_TEST(a_full_disk_leaves_the_old_one)
{
	must_save('a', false);
	fails_cleanly(FAULT_WRITE, ENOSPC);
}
END_TEST

START_TEST(a_disk_that_does_not_sync_leaves_the_old_one)
{
	must_save('a', false);
	fails_cleanly(FAULT_SYNC, EIO);
}
END_TEST

START_TEST(no_descriptors_leave_the_old_one)
{
	must_save('a', false);
	fails_cleanly(FAULT_OPEN, EMFILE);
}
END_TEST

START_TEST(no_memory_leaves_the_old_one)
{
	must_save('a', false);
	fails_cleanly(FAULT_ALLOC, ENOMEM);
}
END_TEST

/* Calls that manage memory do not count: how many there are depends on what was freed before. */
static bool enters_a_call(pid_t pid)
{
	struct __ptrace_syscall_info x;

	REQUIRE(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(x), &x) > 0);
	if (x.op != PTRACE_SYSCALL_INFO_ENTRY)
		return false;
	switch (x.entry.nr) {
	case SYS_brk:
	case SYS_madvise:
	case SYS_mmap:
	case SYS_mprotect:
	case SYS_munmap:
		return false;
	default:
		return true;
	}
}

/*
 * Kills a save before its n-th system call, from 0. Returns false if it had finished by then. A
 * save changes the disk only through system calls, so these are all the moments that matter.
 */
static bool killed_at(unsigned n, bool exchange)
{
	pid_t pid = fork();
	int status;

	REQUIRE(pid >= 0);
	if (!pid) {
		struct ckpt_err e = { 0 };

		if (!exchange)
			fault_no_exchange();
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP))
			_exit(2);
		_exit(save('b', true, &e) ? 1 : 0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	ck_assert_msg(WIFSTOPPED(status), "no ptrace here");
	REQUIRE(!ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD));
	for (unsigned i = 0; i <= n; i += enters_a_call(pid)) {
		REQUIRE(!ptrace(PTRACE_SYSCALL, pid, NULL, NULL));
		REQUIRE(waitpid(pid, &status, 0) == pid);
		if (WIFEXITED(status)) {
			ck_assert_int_eq(WEXITSTATUS(status), 0);
			return false;
		}
	}
	REQUIRE(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	return true;
}

static void remove_dest(void)
{
	for (unsigned i = 0; i < PARTS; i++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "ckpt/%s", parts[i]);
		REQUIRE(!unlinkat(dir_fd, path, 0));
	}
	REQUIRE(!unlinkat(dir_fd, "ckpt", AT_REMOVEDIR));
}

/* What a kill between two renames leaves, and the lock file of another save that was killed. */
static void leave_between_renames(void)
{
	static uint8_t *lock;
	static size_t len;

	for (unsigned n = 0; !lock; n++) {
		REQUIRE(killed_at(n, false));
		if (there("ckpt.partial") && there("ckpt.partial.lock"))
			lock = get_file(dir_fd, "ckpt.partial.lock", &len);
	}
	must_save('a', true);
	REQUIRE(!renameat(dir_fd, "ckpt", dir_fd, "ckpt.partial.old"));
	REQUIRE(!mkdirat(dir_fd, "ckpt.partial", 0755));
	put_file(dir_fd, "ckpt.partial/.metadata", "b", 1);
	put_file(dir_fd, "ckpt.partial.lock", lock, len);
}

enum before { NOTHING, OLD, OLD_NO_EXCHANGE, MISSING, BEFORE_COUNT };

START_FEW_TEST(a_kill_at_any_moment_leaves_the_old_one_or_the_new_one, BEFORE_COUNT, 1)
{
	unsigned n = 0, old = 0, new = 0, missing = 0;
	bool killed = true;

	for (; killed; n++) {
		struct staging *s = NULL;
		struct ckpt_err e = { 0 };
		uint8_t tag;

		if (_i == MISSING)
			leave_between_renames();
		else if (_i != NOTHING)
			must_save('a', true);
		else if (there("ckpt"))
			remove_dest();
		killed = killed_at(n, _i == NOTHING || _i == OLD);
		tag = tag_at("ckpt");
		REQUIRE(tag == 'a' || tag == 'b' || !tag);
		missing += !tag;
		old += tag == 'a';
		new += tag == 'b';
		/* The next save repairs it, and leaves nothing of this one. */
		REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &e));
		staging_end(s);
		ck_assert_int_eq(tag_at("ckpt"), tag ? tag : _i == NOTHING ? 0 : 'a');
		ck_assert_uint_eq(entries("."), there("ckpt") ? 1 : 0);
	}
	REQUIRE(n > 40 && new > 1);
	REQUIRE(_i == NOTHING ? !old : old > 20);
	/* Only without an exchange is there no checkpoint for a moment. */
	REQUIRE(_i == OLD ? !missing : missing > 0);
}
END_TEST

/* Jobs that save are crashed in test_faults.c; this is the one place with saves that are given up. */
static void crash_while(bool commits)
{
	struct staging *s = NULL;
	struct ckpt_err e = { 0 };
	const char *law;
	size_t n;

	must_save('a', false);
	disk_record(dir);
	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &e) && !fill(s, 'b', &e));
	if (commits)
		REQUIRE(!staging_commit(s, &e));
	staging_end(s);
	n = disk_stop();
	REQUIRE(n > 10);
	law = disk_law("ckpt");
	ck_assert_msg(!law, "%s", law);
	for (size_t i = 0; i <= n; i++)
		for (uint64_t k = 0; k < (CHECK_FULL() ? 40 : 6); k++) {
			uint8_t tag;

			disk_crash(i, k ? DISK_SOME : DISK_NONE, k);
			tag = tag_at("ckpt");
			REQUIRE(tag == 'a' || (commits && tag == 'b'));
			must_save('c', true);
			ck_assert_int_eq(tag_at("ckpt"), 'c');
			only_dest_is_there();
		}
}

START_LONG_TEST(a_save_that_is_given_up_leaves_nothing_in_the_way_of_the_next_after_a_crash)
{
	crash_while(false);
}
END_TEST

START_LONG_TEST(a_save_that_finishes_leaves_nothing_in_the_way_of_the_next_after_a_crash)
{
	crash_while(true);
}
END_TEST

START_TEST(an_empty_directory_is_not_taken_for_the_new_one)
{
	struct staging *s = NULL;
	struct ckpt_err e = { 0 };

	leave_between_renames();
	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	REQUIRE(!staging_begin(dest, staging_alone, NULL, &s, &e));
	staging_end(s);
	ck_assert_int_eq(tag_at("ckpt"), 'a');
	only_dest_is_there();
}
END_TEST

SUITE(staging, .setup = setup, .teardown = dir_teardown, .seconds = 60)
