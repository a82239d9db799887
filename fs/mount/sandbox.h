/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sandbox - the rights that the daemon of a mount gives up before it serves readers, and a command
 * before it opens a checkpoint.
 *
 * The contents of a checkpoint are untrusted. If they take over one of our parsers, each of these
 * limits what it can do:
 *
 *	no_new_privs	no program that is started has more rights than we: no setuid.
 *	capabilities	of root's only those stay that reading needs: CAP_DAC_READ_SEARCH (files of
 *			others), CAP_LEASE and CAP_FOWNER (their pages in the cache, source/lease.h and
 *			cachestat(2)), and CAP_SYS_ADMIN if the kernel is to read files by itself.
 *	Landlock	opens nothing but the checkpoint and what the options name, for reading, and
 *			writes nothing but chunk indexes (Linux 5.13 and later, as far as the kernel's
 *			version supports it).
 *	seccomp		system calls are those of a file server: no programs, no new sockets, no mounts, no
 *			code in writable memory, no other processes, no namespaces. Any other call kills
 *			the daemon; readers get ENOTCONN. Of io_uring only waiting for and answering
 *			requests is left, and only if requests arrive that way (negotiate.h).
 *
 * The process can still be dumped and debugged by its user, who can read the checkpoint anyway.
 *
 *	sandbox_prepare(&s);
 *	sandbox_allow_read(&s, "/run/step-1000");
 *	sandbox_enter(&s, false, &e);
 *	...answer INIT, for which libfuse may set up io_uring with threads of its own...
 *	sandbox_filter_calls(uring, fetcher, &e);
 *	...start threads, serve...
 *	sandbox_release(&s);
 *
 * A command keeps more: it reads all that its user can read, and a call that is not on the list
 * fails (ENOSYS) instead of killing it. Landlock lets it write only where it has to:
 *
 *	sandbox_prepare_command(&s);
 *	sandbox_allow_write(&s, "/root/.cache/ckptfs/index");
 *	sandbox_enter_command(&s, &e);
 *
 * It is permanent, and threads inherit it: it is entered while there is only one. Sanitizer builds
 * have none, because sanitizers start programs and inspect other processes. Logging and unmounting
 * are left to other processes (logger.h, unmounter.h).
 *
 * Threads: one at a time.
 */
#ifndef FS_MOUNT_SANDBOX_H
#define FS_MOUNT_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

struct ckpt_err;

enum sandbox_mode {
	SANDBOX_AUTO, /* whatever kernel and build provide */
	SANDBOX_ON,   /* all of it, or no mount */
	SANDBOX_OFF,
};
/* NULL: auto. In a sanitizer build the result is off. */
int sandbox_parse(const char *word, enum sandbox_mode *ret, struct ckpt_err *e);

struct sandbox {
	int rules;	 /* of Landlock; -1: this kernel has none */
	long version;	 /* of Landlock */
	uint64_t denied; /* rights that nothing has without a rule */
};

#define SANDBOX_NONE ((struct sandbox){ .rules = -1 })

void sandbox_prepare(struct sandbox *s);
/* The same, for a command: all may be read. */
void sandbox_prepare_command(struct sandbox *s);
void sandbox_release(struct sandbox *s);

/* What the C library and the libraries that we use read. */
void sandbox_allow_system(struct sandbox *s);
/* A file, or a directory with everything below it now and later. Skipped if it does not exist. */
void sandbox_allow_read(struct sandbox *s, const char *path);
/* The same by a path whose links have been resolved, among directories of the checkpoint's author,
 * who may have put a link in it since: that is not followed. */
void sandbox_allow_checkpoint(struct sandbox *s, const char *path);
/* A directory that may be opened and listed, with those below it, but none of its files. */
void sandbox_allow_list(struct sandbox *s, const char *dir);
/* A directory in which files are made, replaced and removed. */
void sandbox_allow_write(struct sandbox *s, const char *dir);
/* The same for directories and links as well, in all that is below it. */
void sandbox_allow_make(struct sandbox *s, const char *dir);
/* An existing file that is written to; or a device. */
void sandbox_allow_write_file(struct sandbox *s, const char *path);

/*
 * Enters everything but the system call filter. `backing`: keep CAP_SYS_ADMIN for PASSTHROUGH_OPEN,
 * the only use that the filter permits. SIGIO is blocked from then on (source/lease.h). Fails if a
 * part is not available, with the rest in place: the sentence is for a warning, or for giving up.
 * ENOTSUP: this kernel does not support it.
 */
int sandbox_enter(struct sandbox *s, bool backing, struct ckpt_err *e);

/* Enters the filter, for all running threads. `uring`: requests arrive over io_uring, all of whose
 * queues exist and are restricted: waiting on them is allowed. `fetcher`: another process fetches
 * the data files: messages over sockets that exist are allowed; it is the only one. Fails as
 * sandbox_enter does. */
int sandbox_filter_calls(bool uring, bool fetcher, struct ckpt_err *e);

/* What a command needs besides reading, combined with |. */
enum {
	SANDBOX_FETCHES = 1 << 0,   /* `fetcher` as above */
	SANDBOX_WRITES = 1 << 1,    /* sets times and makes links where it may make files */
	SANDBOX_TRUNCATES = 1 << 2, /* files are opened with O_TRUNC: Landlock says which */
};
/* All of it, for a command. Fails as sandbox_enter does. */
int sandbox_enter_command(struct sandbox *s, unsigned needs, struct ckpt_err *e);
/* The filter of such a command; sandbox_enter_command calls it, with SANDBOX_TRUNCATES if Landlock
 * can say which. */
int sandbox_filter_command(unsigned needs, struct ckpt_err *e);

#endif
