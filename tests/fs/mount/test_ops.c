/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE requests, answered without a kernel, including some that no kernel sends. The requests are
 * the structures of <linux/fuse.h>. The answers are taken from libfuse just before it would write
 * them to /dev/fuse.
 */
#include "base/checked.h"
#include "base/err.h"
#include "data_util.h"
#include "fault.h"
#include "fs/program_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include "mount/loop.h"
#include "mount/ops.h"
#include "mount/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* In earlier versions a session must be a mount. */
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 13)
enum { CAN_TEST = 1 };
#else
enum { CAN_TEST = 0 };
#endif

enum { ROOM = 1 << 20, UID = 1234, GID = 5678 };

static struct ckpt *ckpt;
static struct stats *stats;
static struct fs *fs;
static struct fuse_session *session;
static int opened; /* calls of first_open */

static struct {
	bool given;
	int error; /* an errno, 0 */
	size_t n;
	union {
		char bytes[ROOM];
		struct fuse_init_out init;
		struct fuse_entry_out entry;
		struct fuse_attr_out attr;
		struct fuse_open_out open;
		struct fuse_getxattr_out xattr;
		struct fuse_statfs_out statfs;
	};
} answer;

static uint64_t unique;
/* In INIT. */
static uint32_t offered = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_DO_READDIRPLUS |
			  FUSE_READDIRPLUS_AUTO | FUSE_SPLICE_READ;

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 13)
static ssize_t take_answer(int fd, struct iovec *iov, int count, void *userdata)
{
	struct fuse_out_header head;
	size_t n = 0;

	(void)fd;
	(void)userdata;
	REQUIRE(!answer.given && count > 0 && iov[0].iov_len == sizeof(head));
	memcpy(&head, iov[0].iov_base, sizeof(head));
	for (int i = 1; i < count; n += iov[i++].iov_len) {
		REQUIRE(n + iov[i].iov_len <= ROOM);
		memcpy(answer.bytes + n, iov[i].iov_base, iov[i].iov_len);
	}
	REQUIRE(head.unique == unique && head.len == n + sizeof(head));
	answer.given = true;
	answer.error = -head.error;
	answer.n = n;
	return (ssize_t)head.len;
}

static ssize_t no_request(int fd, void *buf, size_t len, void *userdata)
{
	(void)fd;
	(void)buf;
	(void)len;
	(void)userdata;
	return 0;
}

static void listen(void)
{
	static const struct fuse_custom_io io = { .writev = take_answer, .read = no_request };

	REQUIRE(!fuse_session_custom_io(session, &io, open("/dev/null", O_RDWR | O_CLOEXEC)));
}
#else
static void listen(void)
{
}
#endif

/* Returns the errno in the answer; -1: there is no answer. */
static int ask_with(uint32_t opcode, ckpt_node node, const void *arg, size_t len, const char *name)
{
	static char buf[FUSE_MIN_READ_BUFFER];
	size_t named = name ? strlen(name) + 1 : 0;
	struct fuse_in_header head = { .len = (uint32_t)(sizeof(head) + len + named),
				       .opcode = opcode,
				       .unique = ++unique,
				       .nodeid = node };

	REQUIRE(head.len <= sizeof(buf));
	memcpy(buf, &head, sizeof(head));
	if (len)
		memcpy(buf + sizeof(head), arg, len);
	if (named)
		memcpy(buf + sizeof(head) + len, name, named);
	answer.given = false;
	answer.error = 0;
	fuse_session_process_buf(session, &(struct fuse_buf){ .size = head.len, .mem = buf });
	return answer.given ? answer.error : -1;
}

static int ask(uint32_t opcode, ckpt_node node)
{
	return ask_with(opcode, node, NULL, 0, NULL);
}

static int ask_init(uint32_t flags)
{
	const struct fuse_init_in in = {
		.major = 7, .minor = 31, .max_readahead = 1 << 17, .flags = flags
	};

	return ask_with(FUSE_INIT, 0, &in, sizeof(in), NULL);
}

static int look_up(ckpt_node at, const char *name)
{
	return ask_with(FUSE_LOOKUP, at, NULL, 0, name);
}

/* The node of a path, which has to be there. */
static ckpt_node node_of(const char *path)
{
	ckpt_node at = CKPT_ROOT;
	char name[300];

	while (*path) {
		size_t n = strcspn(path, "/");

		(void)snprintf(name, sizeof(name), "%.*s", (int)n, path);
		REQUIRE(!look_up(at, name) && answer.entry.nodeid);
		at = answer.entry.nodeid;
		path += n + (path[n] == '/');
	}
	return at;
}

static int get_attr(ckpt_node node)
{
	return ask_with(FUSE_GETATTR, node, &(struct fuse_getattr_in){ 0 },
			sizeof(struct fuse_getattr_in), NULL);
}

static int open_as(uint32_t opcode, ckpt_node node, uint32_t flags)
{
	return ask_with(opcode, node, &(struct fuse_open_in){ .flags = flags },
			sizeof(struct fuse_open_in), NULL);
}

static int read_as(uint32_t opcode, ckpt_node node, uint64_t fh, uint64_t off, uint32_t size)
{
	const struct fuse_read_in in = { .fh = fh, .offset = off, .size = size };

	return ask_with(opcode, node, &in, sizeof(in), NULL);
}

static int release(uint32_t opcode, ckpt_node node, uint64_t fh)
{
	return ask_with(opcode, node, &(struct fuse_release_in){ .fh = fh },
			sizeof(struct fuse_release_in), NULL);
}

static int get_xattr(ckpt_node node, const char *name, uint32_t size)
{
	return ask_with(name ? FUSE_GETXATTR : FUSE_LISTXATTR, node,
			&(struct fuse_getxattr_in){ .size = size }, sizeof(struct fuse_getxattr_in),
			name);
}

static void note_open(void *arg)
{
	REQUIRE(arg == &opened);
	opened++;
}

static void begin(const char *path, enum fs_io io)
{
	static const char *const words[] = { "runs", "index=:memory:", NULL };
	struct ckpt_err e = { 0 };
	struct stats_about about = { .source = path, .options = "", .directory = "/" };
	struct fs_config config = {
		.io = io, .uid = UID, .gid = GID, .first_open = note_open, .arg = &opened
	};
	char *argv[] = { (char[]){ "ckptfs" }, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);

	ck_assert_msg(!ckpt_open(path, words, NULL, &ckpt, &e), "%s", e.msg);
	about.ckpt = config.ckpt = ckpt;
	stats = config.stats = stats_new(&about);
	fs = fs_new(&config);
	session = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
	fuse_opt_free_args(&args);
	REQUIRE(stats && fs && session);
	listen();
	fs_begin(fs);
	REQUIRE(!ask_init(offered));
}

static void end(void)
{
	fuse_session_destroy(session);
	fs_free(fs);
	stats_free(stats);
	ckpt_close(ckpt);
}

static void begin_plain(enum fs_io io)
{
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/plain/ckpt", data_dir());
	begin(path, io);
}

/* ---- */

START_TEST(init_agrees_on_what_is_offered)
{
	if (!CAN_TEST)
		return;
	begin_plain(FS_IO_CACHED);
	ck_assert_uint_eq(answer.init.major, 7);
	ck_assert_uint_eq(answer.init.max_background, LOOP_MAX_HUNG);
	ck_assert_uint_eq(answer.init.congestion_threshold, LOOP_MAX_HUNG / 4 * 3);
	ck_assert_uint_eq(answer.init.flags &
				  (FUSE_ASYNC_READ | FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO |
				   FUSE_SPLICE_READ | FUSE_EXPORT_SUPPORT |
				   FUSE_EXPLICIT_INVAL_DATA | FUSE_CACHE_SYMLINKS),
			  FUSE_ASYNC_READ | FUSE_DO_READDIRPLUS);
	end();
	offered = FUSE_EXPORT_SUPPORT | FUSE_EXPLICIT_INVAL_DATA | FUSE_CACHE_SYMLINKS;
	begin_plain(FS_IO_AUTO);
	ck_assert_uint_eq(answer.init.flags & (FUSE_ASYNC_READ | FUSE_EXPORT_SUPPORT |
					       FUSE_EXPLICIT_INVAL_DATA | FUSE_CACHE_SYMLINKS),
			  FUSE_EXPORT_SUPPORT | FUSE_EXPLICIT_INVAL_DATA | FUSE_CACHE_SYMLINKS);
	end();
}
END_TEST

START_TEST(names_are_looked_up)
{
	char longest[300];
	ckpt_node tensors;

	if (!CAN_TEST)
		return;
	begin_plain(FS_IO_CACHED);
	tensors = node_of("tensors");
	ck_assert_uint_eq(answer.entry.attr.mode, S_IFDIR | 0555);
	ck_assert_uint_eq(answer.entry.entry_valid, 86400);
	ck_assert_uint_eq(answer.entry.attr_valid, 86400);
	ck_assert_int_eq(look_up(tensors, "."), 0);
	ck_assert_uint_eq(answer.entry.nodeid, tensors);
	ck_assert_int_eq(look_up(tensors, ".."), 0);
	ck_assert_uint_eq(answer.entry.nodeid, CKPT_ROOT);
	ck_assert_int_eq(look_up(CKPT_ROOT, ".."), 0);
	ck_assert_uint_eq(answer.entry.nodeid, CKPT_ROOT);
	ck_assert_int_eq(look_up(tensors, "none"), 0); /* the kernel may remember that */
	ck_assert_uint_eq(answer.entry.nodeid, 0);
	ck_assert_uint_eq(answer.entry.entry_valid, 86400);
	ck_assert_int_eq(look_up(node_of("tensors/step"), "x"), 0);
	ck_assert_uint_eq(answer.entry.nodeid, 0);
	memset(longest, 'x', sizeof(longest));
	longest[CKPT_NAME_MAX] = 0;
	ck_assert_int_eq(look_up(tensors, longest), 0);
	longest[CKPT_NAME_MAX] = 'x';
	longest[CKPT_NAME_MAX + 1] = 0;
	ck_assert_int_eq(look_up(tensors, longest), ENAMETOOLONG);
	end();
}
END_TEST

START_TEST(nodes_have_attributes)
{
	if (!CAN_TEST)
		return;
	begin_plain(FS_IO_CACHED);
	ck_assert_int_eq(get_attr(CKPT_ROOT), 0);
	ck_assert_uint_eq(answer.attr.attr.ino, CKPT_ROOT);
	ck_assert_uint_eq(answer.attr.attr.mode, S_IFDIR | 0555);
	ck_assert_uint_gt(answer.attr.attr.nlink, 4);
	ck_assert_int_eq(get_attr(node_of("tensors/model.tok.weight")), 0);
	ck_assert_uint_eq(answer.attr.attr.mode, S_IFREG | 0444);
	ck_assert_uint_eq(answer.attr.attr.size, 140);
	ck_assert_uint_eq(answer.attr.attr.blocks, 1);
	ck_assert_uint_eq(answer.attr.attr.nlink, 1);
	ck_assert_uint_eq(answer.attr.attr.uid, UID);
	ck_assert_uint_eq(answer.attr.attr.gid, GID);
	ck_assert_uint_gt(answer.attr.attr.mtime, 0);
	ck_assert_uint_eq(answer.attr.attr.ctime, answer.attr.attr.mtime);
	ck_assert_int_gt(get_attr(0x7fffffffff), 0);
	ck_assert_int_eq(ask(FUSE_STATFS, CKPT_ROOT), 0);
	ck_assert_uint_eq(answer.statfs.st.files, 10);
	ck_assert_uint_eq(answer.statfs.st.blocks, 1);
	ck_assert_uint_eq(answer.statfs.st.namelen, CKPT_NAME_MAX);
	end();
}
END_TEST

/* Every part of a file, including parts that begin or end beyond its end, with the page cache and
 * without. */
START_FEW_TEST(bytes_are_read, 3, 3)
{
	static const uint32_t not_for_reading[] = { O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC };
	uint64_t fh, size = 140;
	char want[140];
	ckpt_node node;
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };

	if (!CAN_TEST)
		return;
	begin_plain(_i == 0 ? FS_IO_CACHED : _i == 1 ? FS_IO_DIRECT : FS_IO_AUTO);
	node = node_of("tensors/model.tok.weight");
	REQUIRE(!ckpt_file_open(ckpt, node, &f, &e) && ckpt_file_read(f, want, size, 0, &e) == 140);
	ckpt_file_close(f);
	for (size_t i = 0; i < ARRAY_LEN(not_for_reading); i++)
		ck_assert_int_eq(open_as(FUSE_OPEN, node, not_for_reading[i]), EROFS);
	ck_assert_int_eq(opened, 0);
	ck_assert_int_eq(open_as(FUSE_OPEN, node_of("tensors"), O_RDONLY), EISDIR);
	ck_assert_int_gt(open_as(FUSE_OPEN, 0x7fffffffff, O_RDONLY), 0);
	ck_assert_int_eq(open_as(FUSE_OPEN, node, O_RDONLY), 0);
	ck_assert_int_eq(opened, 1);
	fh = answer.open.fh;
	ck_assert_uint_eq(answer.open.open_flags & (FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO),
			  _i == 1 ? FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO : FOPEN_KEEP_CACHE);
	for (uint64_t off = 0; off < size + 8; off += 7)
		for (uint32_t n = 0; n < 200; n += 13) {
			uint64_t end = min_u64(size, off + n), len = off < end ? end - off : 0;

			REQUIRE(!read_as(FUSE_READ, node, fh, off, n));
			REQUIRE(answer.n == len &&
				!memcmp(answer.bytes, want + min_u64(off, size), len));
		}
	ck_assert_int_eq(release(FUSE_RELEASE, node, fh), 0);
	ck_assert_int_eq(open_as(FUSE_OPEN, node, O_RDONLY), 0);
	ck_assert_int_eq(opened, 1);
	end(); /* with an open file */
}
END_TEST

struct listed {
	unsigned n, dirs;
	uint64_t next, nodes, hash;
};

static void note(struct listed *l, const struct fuse_dirent *d, const char *name)
{
	REQUIRE(d->namelen && d->off == l->next + 1);
	l->next = d->off;
	l->n++;
	l->dirs += d->type == S_IFDIR >> 12;
	l->nodes += d->ino;
	for (uint32_t i = 0; i < d->namelen; i++)
		l->hash = l->hash * 31 + (unsigned char)name[i];
}

/* Reads a whole directory, in answers of that size. */
static struct listed listed(uint32_t opcode, ckpt_node dir_node, uint32_t size)
{
	struct listed l = { 0 };
	size_t head = opcode == FUSE_READDIR ? 0 : sizeof(struct fuse_entry_out);

	for (;;) {
		REQUIRE(!read_as(opcode, dir_node, 0, l.next, size));
		if (!answer.n)
			return l;
		for (size_t at = 0; at < answer.n;) {
			struct fuse_dirent d;

			if (head) { /* the kernel holds no reference to "." and ".." */
				struct fuse_entry_out x;

				memcpy(&x, answer.bytes + at, sizeof(x));
				REQUIRE((x.nodeid == 0) == (l.next < 2));
			}
			memcpy(&d, answer.bytes + at + head, sizeof(d));
			note(&l, &d, answer.bytes + at + head + offsetof(struct fuse_dirent, name));
			at += FUSE_DIRENT_ALIGN(head + offsetof(struct fuse_dirent, name) +
						d.namelen);
		}
	}
}

START_TEST(directories_are_listed)
{
	struct listed one, plus;
	ckpt_node node;

	if (!CAN_TEST)
		return;
	begin_plain(FS_IO_CACHED);
	node = node_of("tensors");
	ck_assert_int_eq(open_as(FUSE_OPENDIR, node_of("tensors/step"), 0), ENOTDIR);
	ck_assert_int_gt(open_as(FUSE_OPENDIR, 0x7fffffffff, 0), 0);
	ck_assert_int_eq(open_as(FUSE_OPENDIR, node, 0), 0);
	ck_assert_uint_eq(answer.open.open_flags & (FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR),
			  FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR);
	one = listed(FUSE_READDIR, node, 4096);
	ck_assert_uint_eq(one.n, 7);
	ck_assert_uint_eq(one.dirs, 2);
	for (uint32_t size = 40; size < 200; size += 24) {
		struct listed again = listed(FUSE_READDIR, node, size);

		REQUIRE(!memcmp(&again, &one, sizeof(one)));
	}
	plus = listed(FUSE_READDIRPLUS, node, 4096);
	ck_assert_uint_eq(plus.n, one.n);
	ck_assert_uint_eq(plus.hash, one.hash);
	for (uint32_t size = 200; size < 700; size += 100) {
		struct listed again = listed(FUSE_READDIRPLUS, node, size);

		REQUIRE(!memcmp(&again, &plus, sizeof(plus)));
	}
	ck_assert_int_eq(listed(FUSE_READDIR, CKPT_ROOT, 4096).dirs > 5, 1);
	ck_assert_int_eq(release(FUSE_RELEASEDIR, node, 0), 0);
	ck_assert_int_eq(read_as(FUSE_READDIR, node, 0, 1000, 4096), 0); /* behind its end */
	ck_assert_uint_eq(answer.n, 0);
	end();
}
END_TEST

START_TEST(attributes_are_read)
{
	static const char name[] = "user.ckptfs.dtype";
	uint32_t size;
	ckpt_node node;

	if (!CAN_TEST)
		return;
	begin_plain(FS_IO_CACHED);
	node = node_of("tensors/model.norm");
	ck_assert_int_eq(get_xattr(node, NULL, 0), 0);
	size = answer.xattr.size;
	ck_assert_int_eq(get_xattr(node, NULL, size - 1), ERANGE);
	ck_assert_int_eq(get_xattr(node, NULL, size), 0);
	ck_assert_uint_eq(answer.n, size);
	ck_assert_ptr_nonnull(memmem(answer.bytes, answer.n, name, sizeof(name)));
	ck_assert_int_eq(get_xattr(node, name, 0), 0);
	ck_assert_uint_eq(answer.xattr.size, 7);
	ck_assert_int_eq(get_xattr(node, name, 6), ERANGE);
	ck_assert_int_eq(get_xattr(node, name, 7), 0);
	ck_assert_int_eq(memcmp(answer.bytes, "float32", 7), 0);
	ck_assert_int_eq(get_xattr(node, "user.none", 100), ENODATA);
	ck_assert_int_eq(get_xattr(node, "security.selinux", 100), ENOTSUP);
	ck_assert_int_eq(get_xattr(node, "system.posix_acl_access", 0), ENOTSUP);
	ck_assert_int_gt(get_xattr(0x7fffffffff, name, 100), 0);
	end();
}
END_TEST

/* The contents of a run may change, so the kernel remembers them for only a second. */
START_TEST(a_run_is_not_remembered)
{
	char path[4200];
	ckpt_node node;

	if (!CAN_TEST)
		return;
	program_setup();
	program_model("run/step-1/model.safetensors", 1);
	program_model("run/step-2/model.safetensors", 2);
	(void)snprintf(path, sizeof(path), "%s/run", program_dir());
	begin(path, FS_IO_AUTO);
	ck_assert_int_eq(look_up(CKPT_ROOT, "latest"), 0);
	node = answer.entry.nodeid;
	ck_assert_uint_eq(answer.entry.attr.mode, S_IFLNK | 0777);
	ck_assert_uint_eq(answer.entry.entry_valid, 1);
	ck_assert_uint_eq(answer.entry.attr_valid, 1);
	ck_assert_int_eq(ask(FUSE_READLINK, node), 0);
	ck_assert_uint_eq(answer.n, 6);
	ck_assert_int_eq(memcmp(answer.bytes, "step-2", 6), 0);
	ck_assert_int_gt(ask(FUSE_READLINK, CKPT_ROOT), 0);
	ck_assert_int_eq(look_up(CKPT_ROOT, "none"), 0);
	ck_assert_uint_eq(answer.entry.nodeid, 0);
	ck_assert_uint_eq(answer.entry.entry_valid, 1);
	ck_assert_int_eq(open_as(FUSE_OPENDIR, CKPT_ROOT, 0), 0);
	ck_assert_uint_eq(answer.open.open_flags & (FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR), 0);
	ck_assert_uint_eq(listed(FUSE_READDIR, CKPT_ROOT, 4096).n, 2 + 4); /* .ckptfs, too */
	ck_assert_int_eq(open_as(FUSE_OPEN, node_of("step-2/tensors/model.norm"), O_RDONLY), 0);
	end();
}
END_TEST

START_TEST(what_is_not_implemented_is_refused)
{
	static const uint32_t others[] = { FUSE_MKDIR,	  FUSE_UNLINK, FUSE_WRITE,
					   FUSE_SETXATTR, FUSE_CREATE, FUSE_IOCTL };
	const char zeros[200] = { 0 };

	if (!CAN_TEST)
		return;
	begin_plain(FS_IO_CACHED);
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		ck_assert_int_eq(ask_with(others[i], CKPT_ROOT, zeros, sizeof(zeros), "x"), ENOSYS);
	ck_assert_int_eq(ask_with(FUSE_FORGET, CKPT_ROOT, &(struct fuse_forget_in){ 1 },
				  sizeof(struct fuse_forget_in), NULL),
			 -1);
	end();
}
END_TEST

/* ---- no memory ---- */

enum request { LOOK_UP, ATTR, OPEN, READ, LIST, LIST_PLUS, XATTR, XATTRS, OPEN_DIR, N_REQUESTS };

static int make(enum request r, ckpt_node d, ckpt_node node, uint64_t fh)
{
	switch (r) {
	case LOOK_UP:
		return look_up(d, "model.norm");
	case ATTR:
		return get_attr(node);
	case OPEN:
		return open_as(FUSE_OPEN, node, O_RDONLY);
	case READ:
		return read_as(FUSE_READ, node, fh, 0, 100000);
	case LIST:
		return read_as(FUSE_READDIR, d, 0, 0, 100000);
	case LIST_PLUS:
		return read_as(FUSE_READDIRPLUS, d, 0, 0, 100000);
	case XATTR:
		return get_xattr(node, "user.ckptfs.shape", 100000);
	case XATTRS:
		return get_xattr(node, NULL, 100000);
	default:
		return open_as(FUSE_OPENDIR, d, 0);
	}
}

/* libfuse needs memory, too. Without it a request may not be answered; then the kernel is told
 * nothing. Whatever answer there is must be the right one, or an error. */
START_FEW_TEST(without_memory_it_is_an_error, N_REQUESTS, N_REQUESTS)
{
	unsigned errors = 0;

	if (!CAN_TEST)
		return;
	FAULT_LOOP(FAULT_ANY)
	{
		ckpt_node d, node;
		uint64_t fh;
		int rc;

		(void)fault_off();
		begin_plain(FS_IO_CACHED); /* nothing has been looked up before */
		d = node_of("tensors");
		node = node_of("tensors/model.norm");
		REQUIRE(!open_as(FUSE_OPEN, node, O_RDONLY));
		fh = answer.open.fh;
		fault_on(FAULT_ANY, fault_n, 1);
		rc = make((enum request)_i, d, node, fh);
		(void)fault_off();
		ck_assert_msg(rc == 0 || rc == ENOMEM || rc == EIO || rc == EMFILE, "%s: %d",
			      fault_name(), rc);
		errors += rc > 0;
		rc = make((enum request)_i, d, node, fh);
		ck_assert_int_eq(rc, 0);
		end();
	}
	ck_assert_msg(errors || _i == ATTR || _i == LOOK_UP || _i == OPEN_DIR, "no error");
}
END_TEST

SUITE(ops, .seconds = 60)
