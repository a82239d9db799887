/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault - allocations and system calls that fail on command, and what memory is in use.
 *
 *	FAULT_LOOP(FAULT_ALLOC) {             // first call fails, then second, ...
 *		rc = thing_new(&t);
 *		fault_off();
 *		...                           // rc is a clean error, or it went without
 *	}                                     // ends with the round in which nothing failed
 *
 * The linker's --wrap replaces the calls defined in fault.c, see WRAP in the Makefile;
 * fault_sqlite() installs them in that library. A failing call does nothing, except that close()
 * closes. No disk is ever synced, because that would take most of the tests' time.
 *
 * Threads: counting from any; fault_on, fault_off from one.
 */
#ifndef TESTS_FAULT_H
#define TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

enum fault_kind {
	FAULT_ALLOC = 1,    /* NULL, ENOMEM; also contexts of zstd and xxHash */
	FAULT_READ = 2,	    /* -1, EIO */
	FAULT_WRITE = 4,    /* -1, ENOSPC; also making files larger, and making directories */
	FAULT_SYNC = 8,	    /* -1, EIO */
	FAULT_OPEN = 16,    /* -1, EMFILE; every call that gives a descriptor */
	FAULT_STAT = 32,    /* -1, EIO; every call that asks what is there, and readdir */
	FAULT_NAME = 64,    /* -1, EIO; renaming and unlinking */
	FAULT_CLOSE = 128,  /* -1, EIO, and the descriptor is closed */
	FAULT_MAP = 256,    /* MAP_FAILED, ENOMEM; mincore */
	FAULT_THREAD = 512, /* EAGAIN */
	FAULT_SQL = 1024,   /* SQLITE_IOERR; a connection: SQLITE_NOMEM */
	FAULT_ANY = 2047,   /* whichever comes */
};

/* From now on call number `from` (1: the next) and the `count - 1` calls behind it fail. 0: none.
 */
void fault_on(enum fault_kind kind, uint64_t from, uint64_t count);
/* Stop. Returns the calls counted since fault_on. */
uint64_t fault_off(void);
/* Did a call fail since fault_on? */
bool fault_hit(void);
/* Instead of failing, those calls first run `act`, which does what others might do at that moment,
 * and then work. Calls inside it do not count. NULL: they fail again. */
void fault_act(void (*act)(void *arg), void *arg);
/* The last call that failed, such as "openat"; "" if none did. */
const char *fault_name(void);

/* For FAULT_LOOP: arms round `n`; false when the round before met no fault. */
bool fault_round(enum fault_kind kind, uint64_t n, uint64_t count);
/* The call to fail after call n: the next one; in a long run that MOST_CASES bounds, after the
 * first 64 one of the next three; in a short run (rng.h), one of the next n / 8. */
uint64_t fault_next(uint64_t n);
/* For what takes long: the same, but short unless everything is to run, without MOST_CASES. */
uint64_t fault_some(uint64_t n);
#define FAULT_LOOP_BY(next, kind, count) \
	for (uint64_t fault_n = 1; fault_round(kind, fault_n, count); fault_n = next(fault_n))
#define FAULT_LOOP(kind)	     FAULT_LOOP_BY(fault_next, kind, 1)
#define FAULT_LOOP_SOME(kind, count) FAULT_LOOP_BY(fault_some, kind, count)
/* The same, but all calls from there on fail. */
#define FAULT_LOOP_REST(kind) FAULT_LOOP_BY(fault_next, kind, UINT64_MAX)

/* Since the process began: calls of pread and the bytes that they gave; calls of fsync. */
uint64_t fault_reads(void);
uint64_t fault_read_bytes(void);
uint64_t fault_syncs(void);

/* Bytes allocated now, and the most since fault_peak_reset. */
int64_t fault_live(void);
int64_t fault_peak(void);
void fault_peak_reset(void);

/* From now on directories cannot be exchanged (renameat2: EINVAL), as on NFS. */
void fault_no_exchange(void);
/* The same, and a directory that is in the way of a rename is EPERM, as through sshfs. */
void fault_sftp_renames(void);

/* Before the library's first use in this process. */
void fault_sqlite(void);

#endif
