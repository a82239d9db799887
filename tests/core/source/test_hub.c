/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "source/place.h"
#include "source/source.h"
#include "suites.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put(const char *name, const char *text)
{
	put_file(dir_fd, name, text, strlen(text));
}

/* What huggingface_hub leaves on disk, and files that nobody should reach through it. */
static void setup(void)
{
	static const char *const dirs[] = { "models--a--b",
					    "models--a--b/blobs",
					    "models--a--b/blobs/deep",
					    "models--a--b/refs",
					    "models--a--b/snapshots",
					    "models--a--b/snapshots/r1",
					    "models--a--b/snapshots/r1/unet" };

	dir_setup();
	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++)
		ck_assert(!mkdirat(dir_fd, dirs[i], 0755));
	put("secret", "secret");
	put("models--a--b/secret", "secret");
	put("models--a--b/blobs/0123", "bytes");
	put("models--a--b/blobs/.hidden", "secret");
	put("models--a--b/blobs/deep/0123", "secret");
	put("models--a--b/refs/main", "r1");
}

static struct place *open_place(const char *name)
{
	autofree char *path = NULL, *root = NULL;
	struct place *p = NULL;
	struct ckpt_err e = { 0 };
	const char *file;

	ck_assert_int_gt(asprintf(&path, "%s/%s", dir, name), 0);
	ck_assert_msg(!place_open(path, NULL, &p, &root, &file, &e), "%s", e.msg);
	return p;
}

static void link_in(const char *where, const char *name, const char *text)
{
	autofree char *path = NULL;

	ck_assert_int_gt(asprintf(&path, "%s/%s", where, name), 0);
	(void)unlinkat(dir_fd, path, 0);
	ck_assert(!symlinkat(text, dir_fd, path));
}

/* Reads the file into out. Returns how many bytes it has, or a negative errno. */
static int64_t got(struct place *p, const char *name, char out[static 16], struct ckpt_err *e)
{
	struct source *s CLEANUP(source_freep) = NULL;
	int rc = place_file(p, name, &s, e);
	int64_t n = rc ? rc : source_read(s, out, 15, 0, e);

	out[n < 0 ? 0 : n] = 0;
	return n;
}

#define SNAPSHOT "models--a--b/snapshots/r1"
#define REFUSED	 "refused, a link leads out of the checkpoint"

static void expect_refused(struct place *p, const char *name, const char *msg)
{
	struct ckpt_err e = { 0 };
	char text[16];

	ck_assert_int_eq(got(p, name, text, &e), -EBADMSG);
	ck_assert_msg(strstr(e.msg, msg), "%s", e.msg);
}

static void expect_bytes(struct place *p, const char *name)
{
	struct ckpt_err e = { 0 };
	char text[16];

	ck_assert_msg(got(p, name, text, &e) == 5, "%s", e.msg);
	ck_assert_str_eq(text, "bytes");
}

START_TEST(links_into_the_blobs_are_followed)
{
	struct place *p CLEANUP(place_freep) = open_place(SNAPSHOT);
	struct place *sub CLEANUP(place_freep) = NULL;
	struct place *alone CLEANUP(place_freep) = open_place(SNAPSHOT "/unet");
	struct ckpt_err e;

	link_in(SNAPSHOT, "a", "../../blobs/0123");
	link_in(SNAPSHOT "/unet", "b", "../../../blobs/0123");
	put(SNAPSHOT "/plain", "bytes");
	link_in(SNAPSHOT, "inner", "unet/../plain");
	expect_bytes(p, "a");
	expect_bytes(p, "unet/b");
	expect_bytes(p, "plain");
	expect_bytes(p, "inner");
	ck_assert(!place_sub(p, "unet", &sub, &e));
	expect_bytes(sub, "b");
	expect_bytes(alone, "b");
	ck_assert(strstr(place_beyond(p), "/models--a--b/blobs"));
	ck_assert_int_eq(place_tip(p, NULL, 0), -ENOTSUP);
}
END_TEST

/* The file and its root, as opened under a name. */
static struct place *open_file(const char *name, char ret[static 64])
{
	autofree char *path = NULL, *root = NULL;
	struct place *p = NULL;
	struct ckpt_err e = { 0 };
	const char *file;

	ck_assert_int_gt(asprintf(&path, "%s/%s", dir, name), 0);
	ck_assert_msg(!place_open(path, NULL, &p, &root, &file, &e), "%s", e.msg);
	ck_assert_ptr_nonnull(file);
	ck_assert(!strncmp(root, dir, strlen(dir)));
	(void)snprintf(ret, 64, "%s", root + strlen(dir) + 1);
	return p;
}

START_TEST(a_file_that_is_named_has_the_files_beside_its_name)
{
	char root[64];

	link_in(SNAPSHOT, "a", "../../blobs/0123");
	put("models--a--b/blobs/4567", "bytes");
	link_in(SNAPSHOT, "config.json", "../../blobs/4567");
	{
		struct place *p CLEANUP(place_freep) = open_file(SNAPSHOT "/a", root);

		ck_assert_str_eq(root, SNAPSHOT "/a");
		expect_bytes(p, "a");
		expect_bytes(p, "config.json");
	}
	/* A link to it has nothing beside it. */
	link_in(".", "far", SNAPSHOT "/a");
	{
		struct place *p CLEANUP(place_freep) = open_file("far", root);

		ck_assert_str_eq(root, SNAPSHOT "/a");
		expect_bytes(p, "config.json");
	}
	put("config.json", "other");
	{
		struct place *p CLEANUP(place_freep) = open_file("far", root);

		ck_assert_str_eq(root, "far");
		expect_bytes(p, "far");
	}
}
END_TEST

START_TEST(only_the_file_that_is_named_may_be_anywhere)
{
	struct place *p CLEANUP(place_freep) = NULL;
	char root[64];

	ck_assert(!mkdirat(dir_fd, "d", 0755));
	put("bytes", "bytes");
	link_in("d", "a", "../bytes");
	link_in("d", "b", "../bytes");
	p = open_file("d/a", root);
	ck_assert_str_eq(root, "d/a");
	expect_bytes(p, "a");
	expect_refused(p, "b", REFUSED);
	/* It is followed when it is opened. */
	put("bytes2", "bytes");
	link_in("d", "a", "../bytes2");
	expect_bytes(p, "a");
	link_in("d", "a", "../d");
	expect_refused(p, "a", "not a regular file");
}
END_TEST

/* What a link in the snapshot says; "@" is the directory with the secret. */
static const char *const attacks[] = {
	"/etc/passwd",
	"@/secret",
	"@/models--a--b/blobs/0123", /* even that */
	"../../../secret",
	"../../secret",
	"../../refs/main",
	"../../blobs",
	"../../blobs/",
	"../../blobs/..",
	"../../blobs/../secret",
	"../../blobs/../../secret",
	"../../blobs/deep/0123",
	"../../blobs/.hidden",
	"../../blobs/./0123",
	"../../blobs//0123",
	"../../blobs/0123/",
	"../../../models--a--b/blobs/0123",
	"../blobs/0123",
	"../../../blobs/0123",
	"./../../blobs/0123",
	"unet/../../../blobs/0123",
	"../../blobsx/0123",
	"/proc/self/cwd/secret",
};

START_LOOP_TEST(other_links_are_refused, (int)(sizeof(attacks) / sizeof(*attacks)))
{
	struct place *p CLEANUP(place_freep) = open_place(SNAPSHOT);
	char text[8192], read[16];
	struct ckpt_err e;

	(void)snprintf(text, sizeof(text), "%s%s", *attacks[_i] == '@' ? dir : "",
		       attacks[_i] + (*attacks[_i] == '@'));
	link_in(SNAPSHOT, "a", text);
	expect_refused(p, "a", "open 'a': " REFUSED);
	link_in(SNAPSHOT "/unet", "a", text);
	if (strcmp(attacks[_i], "../../../blobs/0123") != 0)
		ck_assert_int_lt(got(p, "unet/a", read, &e), 0);
}
END_TEST

START_TEST(a_directory_that_is_a_link_leads_to_no_blobs)
{
	struct place *p CLEANUP(place_freep) = open_place(SNAPSHOT);

	ck_assert(!mkdirat(dir_fd, "elsewhere", 0755));
	link_in("elsewhere", "a", "../../../blobs/0123");
	link_in(SNAPSHOT, "way", "../../../elsewhere");
	expect_refused(p, "way/a", "open 'way/a': " REFUSED);
}
END_TEST

START_TEST(a_blob_is_a_regular_file_among_the_blobs)
{
	struct place *p CLEANUP(place_freep) = open_place(SNAPSHOT);
	struct ckpt_err e;
	char text[16];

	link_in(SNAPSHOT, "a", "../../blobs/0123");
	link_in("models--a--b/blobs", "0123", "../../secret");
	expect_refused(p, "a", "'a': open 'blobs/0123': " REFUSED);
	link_in("models--a--b/blobs", "0123", "/etc/passwd");
	expect_refused(p, "a", "'a': open 'blobs/0123': " REFUSED);
	ck_assert(!unlinkat(dir_fd, "models--a--b/blobs/0123", 0));
	ck_assert_int_eq(got(p, "a", text, &e), -ENOENT);
	ck_assert(!mkfifoat(dir_fd, "models--a--b/blobs/0123", 0644));
	expect_refused(p, "a", "'a': open 'blobs/0123': not a regular file");
}
END_TEST

/* The directory was looked up when it was opened: what takes its name later is not used. */
START_TEST(blobs_that_become_a_link_lead_nowhere)
{
	struct place *p CLEANUP(place_freep) = open_place(SNAPSHOT);

	ck_assert(!mkdirat(dir_fd, "elsewhere", 0755));
	put("elsewhere/0123", "secret");
	link_in(SNAPSHOT, "a", "../../blobs/0123");
	expect_bytes(p, "a");
	ck_assert(!renameat(dir_fd, "models--a--b/blobs", dir_fd, "models--a--b/old"));
	link_in("models--a--b", "blobs", "../elsewhere");
	expect_refused(p, "a", "'a': open 'blobs/0123': " REFUSED);
	{
		struct place *again CLEANUP(place_freep) = open_place(SNAPSHOT);

		expect_refused(again, "a", "open 'a': " REFUSED);
		ck_assert_ptr_null(place_beyond(again));
	}
}
END_TEST

START_TEST(what_only_looks_like_a_snapshot_is_none)
{
	static const struct {
		const char *from, *to; /* renamed */
		bool is_one;
	} rows[] = {
		{ "models--a--b", "copy", true }, /* it has refs/ */
		{ "copy/refs", "copy/refz", false },
		{ "copy", "models--", false },
		{ "models--", "datasets--x", true },
		{ "datasets--x/snapshots", "datasets--x/snapshot", false },
		{ "datasets--x/snapshot", "datasets--x/snapshots", true },
		{ "datasets--x/blobs", "datasets--x/blob", false },
	};
	autofree char *path = strdup(SNAPSHOT);

	link_in(SNAPSHOT, "a", "../../blobs/0123");
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct place *p CLEANUP(place_freep) = NULL;
		const char *rest = path + strlen(rows[i].from);
		autofree char *now = NULL;

		ck_assert(!renameat(dir_fd, rows[i].from, dir_fd, rows[i].to));
		if (!strncmp(path, rows[i].from, strlen(rows[i].from)) && *rest == '/') {
			ck_assert_int_gt(asprintf(&now, "%s%s", rows[i].to, rest), 0);
			free(path);
			path = steal_ptr(&now);
		}
		p = open_place(path);
		if (rows[i].is_one)
			expect_bytes(p, "a");
		else
			expect_refused(p, "a", "open 'a': " REFUSED);
	}
}
END_TEST

static const struct {
	const char *name;
	int uid; /* -1: as it is */
	mode_t mode;
	const char *why; /* NULL: it is fine */
} rights[] = {
	{ "models--a--b/blobs", 65534, 0755, "its blobs/ or snapshots/ belongs to another user" },
	{ "models--a--b/snapshots", 65534, 0755,
	  "its blobs/ or snapshots/ belongs to another user" },
	{ "models--a--b", 65534, 0755, NULL },
	{ SNAPSHOT, 65534, 0755, NULL },
	{ "models--a--b/blobs", -1, 0777, "it can be written to by users who cannot write to the" },
	{ "models--a--b/blobs", -1, 01777,
	  "it can be written to by users who cannot write to the" },
	{ "models--a--b/blobs", -1, 0775, "it can be written to by users who cannot write to the" },
	{ "models--a--b/snapshots", -1, 0775, "it can be written to by users who cannot write to" },
	{ "models--a--b", -1, 0777, "it can be written to by users who cannot write to the" },
	{ SNAPSHOT, -1, 0775, NULL },
};

START_LOOP_TEST(blobs_that_others_could_have_put_there_are_refused,
		(int)(sizeof(rights) / sizeof(*rights)))
{
	autofree char *msg = NULL;
	struct place *p CLEANUP(place_freep) = NULL;
	struct place *all CLEANUP(place_freep) = NULL;
	struct place *sub CLEANUP(place_freep) = NULL;
	struct ckpt_err e;

	if (geteuid() && rights[_i].uid >= 0)
		return;
	link_in(SNAPSHOT, "a", "../../blobs/0123");
	ck_assert(!fchmodat(dir_fd, rights[_i].name, rights[_i].mode, 0));
	if (rights[_i].uid >= 0)
		ck_assert(!fchownat(dir_fd, rights[_i].name, (uid_t)rights[_i].uid, (gid_t)-1, 0));
	p = open_place(SNAPSHOT);
	all = open_place("models--a--b/snapshots");
	ck_assert(!place_sub(all, "r1", &sub, &e));
	if (!rights[_i].why) {
		expect_bytes(p, "a");
		expect_bytes(sub, "a");
		return;
	}
	ck_assert_int_gt(asprintf(&msg,
				  "open 'a': " REFUSED ", which lies in a Hugging Face cache, but "
				  "%s",
				  rights[_i].why),
			 0);
	expect_refused(p, "a", msg);
	expect_refused(sub, "a", msg);
	ck_assert_ptr_null(place_beyond(p));
}
END_TEST

START_TEST(the_newest_is_what_refs_main_says)
{
	struct place *p CLEANUP(place_freep) = open_place("models--a--b/snapshots");
	struct place *repo CLEANUP(place_freep) = open_place("models--a--b");
	struct place *sub CLEANUP(place_freep) = NULL;
	struct ckpt_err e;
	char text[16];

	link_in(SNAPSHOT, "a", "../../blobs/0123");
	ck_assert_int_eq(place_tip(p, text, sizeof(text)), 2);
	ck_assert_mem_eq(text, "r1", 2);
	ck_assert_int_eq(place_tip(p, text, 1), 1);
	ck_assert_int_eq(place_tip(repo, text, sizeof(text)), -ENOTSUP);
	ck_assert(!place_sub(p, "r1", &sub, &e));
	expect_bytes(sub, "a");
	link_in("models--a--b/refs", "main", "../../secret");
	ck_assert_int_eq(place_tip(p, text, sizeof(text)), 0);
	ck_assert(!unlinkat(dir_fd, "models--a--b/refs/main", 0));
	ck_assert_int_eq(place_tip(p, text, sizeof(text)), 0);
}
END_TEST

SUITE(hub, .setup = setup, .teardown = dir_teardown)
