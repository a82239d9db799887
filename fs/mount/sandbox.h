/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sandbox - what the daemon of a mount gives up before it reads for others.
 *
 * What a checkpoint holds comes from anywhere. Should one of our parsers be taken over by it, these
 * bound what it can do, each one by itself:
 *
 *	no_new_privs	no program that is started has more rights than we: no setuid.
 *	capabilities	of root's only those stay that reading needs: CAP_DAC_READ_SEARCH (files of
 *			others), CAP_LEASE and CAP_FOWNER (their pages in the cache, read/lease.h and
 *			cachestat(2)), and CAP_SYS_ADMIN where the kernel is to read files by itself.
 *	Landlock	opens nothing but the checkpoint and what the options name, for reading, and
 *			writes nothing but chunk indexes (Linux 5.13 and later, as far as the kernel's
 *			version goes).
 *	seccomp		system calls are those of a file server: no programs, no sockets, no mounts, no
 *			code in writable memory, no other processes, no namespaces. Any other call kills
 *			the daemon; readers get ENOTCONN. Of io_uring only waiting for and answering
 *			requests is left, and only where requests come that way (negotiate.h).
 *
 * A process that is to be dumped and debugged stays so: its user may read the checkpoint as well.
 *
 *	sandbox_prepare(&s);
 *	sandbox_allow_read(&s, "/run/step-1000");
 *	sandbox_enter(&s, false, &e);
 *	...answer INIT, for which libfuse may set up io_uring with threads of its own...
 *	sandbox_filter_calls(uring, &e);
 *	...start threads, serve...
 *	sandbox_release(&s);
 *
 * It is for ever, and threads inherit it: it is entered while there is only one. Builds with
 * sanitizers have none, for those start programs and look into other processes. Messages and
 * unmounting are left to other processes (logger.h, unmounter.h).
 *
 * Threads: one at a time.
 */
#ifndef FS_MOUNT_SANDBOX_H
#define FS_MOUNT_SANDBOX_H

#include <stdbool.h>

struct ckpt_err;

enum sandbox_mode {
	SANDBOX_AUTO, /* what kernel and build have */
	SANDBOX_ON,   /* all of it, or no mount */
	SANDBOX_OFF,
};
/* NULL: auto. A build with sanitizers makes off of it. */
int sandbox_parse(const char *word, enum sandbox_mode *ret, struct ckpt_err *e);

struct sandbox {
	int rules;    /* of Landlock; -1: this kernel has none */
	long version; /* of Landlock */
};

#define SANDBOX_NONE ((struct sandbox){ .rules = -1 })

void sandbox_prepare(struct sandbox *s);
void sandbox_release(struct sandbox *s);

/* A file, or a directory with all that is below it now and later. What does not exist is skipped. */
void sandbox_allow_read(struct sandbox *s, const char *path);
/* A directory in which files are made, replaced and removed. */
void sandbox_allow_write(struct sandbox *s, const char *dir);
/* A file that is there and is written to; or a device. */
void sandbox_allow_write_file(struct sandbox *s, const char *path);

/*
 * All but the filter of system calls. `backing`: CAP_SYS_ADMIN stays, for PASSTHROUGH_OPEN, the only
 * thing that the filter leaves of it. SIGIO is blocked from then on (read/lease.h). Fails where a
 * part is missing, with the rest in place: a sentence for a warning, or for giving up. ENOTSUP: this
 * kernel has no such thing.
 */
int sandbox_enter(struct sandbox *s, bool backing, struct ckpt_err *e);

/* The filter, for all threads that run. `uring`: requests come over io_uring, all of whose queues
 * exist and are restricted: they may be waited for. Fails as sandbox_enter does. */
int sandbox_filter_calls(bool uring, struct ckpt_err *e);

#endif
