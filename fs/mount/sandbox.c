/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/sandbox.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

int sandbox_parse(const char *word, enum sandbox_mode *ret, struct ckpt_err *e)
{
	static const char *const words[] = {
		[SANDBOX_AUTO] = "auto",
		[SANDBOX_ON] = "on",
		[SANDBOX_OFF] = "off",
	};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (!word || !strcmp(word, words[i])) {
			*ret = SANITIZED && i == SANDBOX_AUTO ? SANDBOX_OFF : (enum sandbox_mode)i;
			if (SANITIZED && i == SANDBOX_ON)
				return err_set(
					e, ENOTSUP,
					"option 'sandbox': a build with sanitizers has no sandbox");
			return 0;
		}
	return err_set(e, EINVAL, "option 'sandbox': '%s' is not one of auto, on, off", word);
}

/* ---- Landlock: Documentation/userspace-api/landlock.rst ---- */

/* All its numbers: Linux 5.10 has no header for them, and that of 6.1 lacks the later ones. */
enum {
	LANDLOCK_CREATE = 444,
	LANDLOCK_ADD = 445,
	LANDLOCK_RESTRICT = 446,
	ASK_VERSION = 1 << 0, /* flag of LANDLOCK_CREATE */
	PATH_BENEATH = 1,     /* kind of rule */
	FS_WRITE_FILE = 1 << 1,
	FS_READ_FILE = 1 << 2,
	FS_READ_DIR = 1 << 3,
	FS_REMOVE_DIR = 1 << 4,
	FS_REMOVE_FILE = 1 << 5,
	FS_MAKE_DIR = 1 << 7,
	FS_MAKE_REG = 1 << 8,
	FS_MAKE_SYM = 1 << 12,
	FS_VERSION_1 = (1 << 13) - 1,
	FS_REFER = 1 << 13,	     /* version 2 */
	FS_TRUNCATE = 1 << 14,	     /* version 3 */
	FS_IOCTL_DEV = 1 << 15,	     /* version 5 */
	NET_ALL = 1 << 0 | 1 << 1,   /* version 4: bind, connect */
	SCOPE_ALL = 1 << 0 | 1 << 1, /* version 6: abstract sockets, signals */
};

struct beneath {
	uint64_t access;
	int32_t parent;
} __attribute__((packed));

struct ruleset { /* older kernels require zeros in new fields */
	uint64_t fs, net, scoped;
};

#define FS_READ	 ((uint64_t)(FS_READ_FILE | FS_READ_DIR))
#define FS_WRITE ((uint64_t)(FS_WRITE_FILE | FS_TRUNCATE))
#define FS_MAKE	 (FS_READ | FS_WRITE | (uint64_t)FS_MAKE_REG | (uint64_t)FS_REMOVE_FILE)
/* The rights that apply to a file that is not a directory. */
#define FS_OF_FILE (FS_WRITE | (uint64_t)FS_READ_FILE | FS_IOCTL_DEV)

/* All rights that this kernel can deny. */
static uint64_t all_access(long version)
{
	uint64_t all = FS_VERSION_1;

	if (version >= 2)
		all |= FS_REFER;
	if (version >= 3)
		all |= FS_TRUNCATE;
	if (version >= 5)
		all |= FS_IOCTL_DEV;
	return all;
}

static void prepare(struct sandbox *s, uint64_t kept)
{
	long version = syscall(LANDLOCK_CREATE, NULL, 0, ASK_VERSION);
	struct ruleset all = { .fs = all_access(version) & ~kept,
			       .net = version >= 4 ? NET_ALL : 0,
			       .scoped = version >= 6 ? SCOPE_ALL : 0 };

	*s = (struct sandbox){ .rules = -1, .version = version, .denied = all.fs };
	if (version < 1)
		return;
	s->rules = (int)syscall(LANDLOCK_CREATE, &all, sizeof(all), 0);
}

void sandbox_prepare(struct sandbox *s)
{
	prepare(s, 0);
}

void sandbox_prepare_command(struct sandbox *s)
{
	prepare(s, FS_READ);
}

void sandbox_release(struct sandbox *s)
{
	if (s->rules >= 0)
		(void)close(steal_fd(&s->rules));
}

static void allow_opened(struct sandbox *s, int fd, uint64_t access)
{
	struct beneath rule = { .parent = fd };
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return;
	if (!S_ISDIR(st.st_mode))
		access &= FS_OF_FILE;
	rule.access = access & s->denied;
	(void)syscall(LANDLOCK_ADD, s->rules, PATH_BENEATH, &rule, 0);
}

static void allow(struct sandbox *s, const char *path, uint64_t access)
{
	autoclose int fd = s->rules < 0 ? -1 : open(path, O_PATH | O_CLOEXEC);

	allow_opened(s, fd, access);
}

void sandbox_allow_checkpoint(struct sandbox *s, const char *path)
{
	const struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };
	autoclose int fd =
		s->rules < 0 ? -1 : (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

	/* A container may have Landlock and forbid this: openat2 is no older than Landlock. */
	if (s->rules >= 0 && fd < 0 && (errno == ENOSYS || errno == EPERM))
		fd = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
	allow_opened(s, fd, FS_READ);
}

void sandbox_allow_read(struct sandbox *s, const char *path)
{
	allow(s, path, FS_READ);
}

void sandbox_allow_list(struct sandbox *s, const char *dir)
{
	allow(s, dir, FS_READ_DIR);
}

void sandbox_allow_write(struct sandbox *s, const char *dir)
{
	allow(s, dir, FS_MAKE);
}

void sandbox_allow_make(struct sandbox *s, const char *dir)
{
	allow(s, dir, FS_MAKE | FS_REMOVE_DIR | FS_MAKE_DIR | FS_MAKE_SYM);
}

void sandbox_allow_write_file(struct sandbox *s, const char *path)
{
	allow(s, path, FS_READ | FS_WRITE | FS_IOCTL_DEV);
}

/* Allows what the C library, SQLite, libfuse, libnuma (used by libfuse with io_uring) and
 * stats.json read. */
void sandbox_allow_system(struct sandbox *s)
{
	static const char *const read[] = {
		"/dev/urandom",
		"/proc/self",
		"/proc/sys/vm/overcommit_memory",
		"/sys/devices/system/cpu",
		"/sys/devices/system/node",
		"/sys/devices/virtual/bdi",
	};

	for (size_t i = 0; i < ARRAY_LEN(read); i++)
		sandbox_allow_read(s, read[i]);
}

static int restrict_paths(struct sandbox *s, struct ckpt_err *e)
{
	if (s->version < 1)
		return err_set(e, ENOTSUP, "this kernel has no Landlock");
	if (s->rules < 0 || syscall(LANDLOCK_RESTRICT, s->rules, 0))
		return err_sys(e, errno, "Landlock");
	return 0;
}

/* ---- capabilities: capabilities(7) ---- */

static uint64_t bit(unsigned capability)
{
	return (uint64_t)1 << capability;
}

static int drop_capabilities(uint64_t keep, struct ckpt_err *e)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct v[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &head, v))
		return err_sys(e, errno, "capget");
	/* Programs that we start have no capabilities. Only root can, and needs to, ensure this. */
	for (unsigned c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
		(void)prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
	(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (size_t i = 0; i < ARRAY_LEN(v); i++, keep >>= 32) {
		v[i].permitted &= (uint32_t)keep;
		v[i].effective &= (uint32_t)keep;
		v[i].inheritable = 0;
	}
	if (syscall(SYS_capset, &head, v))
		return err_sys(e, errno, "capset");
	return 0;
}

/* ---- all of it ---- */

/*
 * Each thread has its own rights: threads that are already running would keep theirs. One that has
 * been joined may still be counted for a moment, because the kernel wakes the waiter before the
 * thread is gone.
 */
static int find_threads(struct ckpt_err *e)
{
	const struct timespec pause = { .tv_nsec = CLOCK_MS };
	uint64_t start = clock_ns();
	struct stat st;

	for (;;) {
		if (stat("/proc/self/task", &st))
			return err_sys(e, errno, "'/proc/self/task'");
		if (st.st_nlink <= 3) /* two, plus one for each thread */
			return 0;
		if (clock_ns() - start > 5 * CLOCK_SECOND)
			return err_set(e, EBUSY, "other threads are running already");
		(void)nanosleep(&pause, NULL);
	}
}

int sandbox_enter(struct sandbox *s, bool backing, struct ckpt_err *e)
{
	uint64_t keep = bit(CAP_DAC_READ_SEARCH) | bit(CAP_FOWNER) | bit(CAP_LEASE) |
			(backing ? bit(CAP_SYS_ADMIN) : 0);
	struct ckpt_err later;
	sigset_t io;
	int rc;

	(void)sigemptyset(&io);
	(void)sigaddset(&io, SIGIO);
	(void)pthread_sigmask(SIG_BLOCK, &io, NULL);
	/* libfuse ends its threads with pthread_cancel, which would load this library later. */
	(void)dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_GLOBAL);
	rc = find_threads(e);
	if (drop_capabilities(keep, rc ? &later : e) && !rc)
		rc = -e->code;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return err_sys(e, errno, "no_new_privs"); /* the other two require it */
	sandbox_allow_system(s);
	if (restrict_paths(s, rc ? &later : e) && !rc)
		rc = -e->code;
	return rc;
}

int sandbox_enter_command(struct sandbox *s, unsigned needs, struct ckpt_err *e)
{
	uint64_t keep =
		bit(CAP_DAC_READ_SEARCH) | bit(CAP_DAC_OVERRIDE) | bit(CAP_FOWNER) | bit(CAP_LEASE);
	struct ckpt_err later;
	int rc = drop_capabilities(keep, e);

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return err_sys(e, errno, "no_new_privs");
	if (restrict_paths(s, rc ? &later : e) && !rc)
		rc = -e->code;
	if (s->version >= 3)
		needs |= SANDBOX_TRUNCATES;
	if (sandbox_filter_command(needs, rc ? &later : e) && !rc)
		rc = -e->code;
	return rc;
}
