/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include "base/io.h"
#include "disk.h"
#include "rng.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <regex.h>
#include <seccomp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

static _Atomic uint64_t calls, first, last, reads, read_bytes, syncs;
static _Atomic int64_t live, peak;
static atomic_int armed;
static atomic_bool hit, no_exchange, sftp_renames;
static const char *_Atomic failed = "";
static void (*act)(void *arg);
static void *act_arg;

/* ---- arming ---- */

void fault_on(enum fault_kind kind, uint64_t from, uint64_t count)
{
	calls = 0;
	hit = false;
	failed = "";
	first = from;
	last = count > UINT64_MAX - from ? UINT64_MAX : from + count - 1;
	armed = (int)kind;
}

uint64_t fault_off(void)
{
	armed = 0;
	return calls;
}

bool fault_hit(void)
{
	return hit;
}

const char *fault_name(void)
{
	return failed;
}

bool fault_round(enum fault_kind kind, uint64_t n, uint64_t count)
{
	(void)fault_off();
	if (n > 1 && !hit)
		return false;
	fault_on(kind, n, count);
	return true;
}

static uint64_t next_call(uint64_t n, bool all)
{
	static struct rng r;

	if (all && !rng_most())
		return n + 1;
	if (!r.state)
		r = rng_new();
	return n + 1 + rng_below(&r, !all ? n / 8 + 1 : n < 64 ? 1 : 3);
}

uint64_t fault_next(uint64_t n)
{
	return next_call(n, rng_long());
}

uint64_t fault_some(uint64_t n)
{
	return next_call(n, rng_full() && !rng_most());
}

void fault_act(void (*fn)(void *arg), void *arg)
{
	act = fn;
	act_arg = arg;
}

static bool fails(enum fault_kind kind, const char *name)
{
	int before = armed;
	uint64_t n;

	if (!(armed & (int)kind))
		return false;
	n = ++calls;
	if (!first || n < first || n > last)
		return false;
	failed = name;
	hit = true;
	if (!act)
		return true;
	armed = 0;
	act(act_arg);
	armed = before;
	return false;
}

static bool fails_with(enum fault_kind kind, int code, const char *name)
{
	if (!fails(kind, name))
		return false;
	errno = code;
	return true;
}

/* ---- memory ---- */

/* What the linker's --wrap calls the real functions and ours.
 * NOLINTBEGIN(bugprone-reserved-identifier) */
#define FAILING_CALLS(X) \
	X(FAULT_ALLOC, ENOMEM, ZSTD_DCtx *, NULL, ZSTD_createDCtx, (void), ()) \
	X(FAULT_ALLOC, ENOMEM, ZSTD_CCtx *, NULL, ZSTD_createCCtx, (void), ()) \
	X(FAULT_ALLOC, ENOMEM, int, Z_MEM_ERROR, inflateInit2_, \
	  (z_streamp z, int bits, const char *version, int size), (z, bits, version, size)) \
	X(FAULT_ALLOC, ENOMEM, XXH3_state_t *, NULL, XXH3_createState, (void), ()) \
	X(FAULT_READ, EIO, ssize_t, -1, read, (int fd, void *p, size_t n), (fd, p, n)) \
	X(FAULT_READ, EIO, ssize_t, -1, __read_chk, (int fd, void *p, size_t n, size_t cap), \
	  (fd, p, n, cap)) \
	X(FAULT_READ, EIO, ssize_t, -1, getline, (char **line, size_t *cap, FILE *f), \
	  (line, cap, f)) \
	/* what compilers turn getline() into when they optimize */ \
	X(FAULT_READ, EIO, ssize_t, -1, __getdelim, (char **line, size_t *cap, int end, FILE *f), \
	  (line, cap, end, f)) \
	X(FAULT_WRITE, EIO, int, -1, futimens, (int fd, const struct timespec t[2]), (fd, t)) \
	X(FAULT_OPEN, EMFILE, int, -1, __open_2, (const char *path, int flags), (path, flags)) \
	X(FAULT_OPEN, EMFILE, FILE *, NULL, fopen, (const char *path, const char *mode), \
	  (path, mode)) \
	X(FAULT_OPEN, EMFILE, DIR *, NULL, opendir, (const char *path), (path)) \
	X(FAULT_OPEN, ENOMEM, DIR *, NULL, fdopendir, (int fd), (fd)) \
	X(FAULT_OPEN, EMFILE, int, -1, memfd_create, (const char *name, unsigned flags), \
	  (name, flags)) \
	X(FAULT_STAT, EIO, struct dirent *, NULL, readdir, (DIR * d), (d)) \
	X(FAULT_STAT, EIO, int, -1, stat, (const char *path, struct stat *st), (path, st)) \
	X(FAULT_STAT, EIO, int, -1, lstat, (const char *path, struct stat *st), (path, st)) \
	X(FAULT_STAT, EIO, int, -1, fstat, (int fd, struct stat *st), (fd, st)) \
	X(FAULT_STAT, EIO, int, -1, fstatat, \
	  (int fd, const char *path, struct stat *st, int flags), (fd, path, st, flags)) \
	X(FAULT_STAT, EIO, int, -1, statx, \
	  (int fd, const char *path, int flags, unsigned mask, struct statx *st), \
	  (fd, path, flags, mask, st)) \
	X(FAULT_STAT, EIO, int, -1, statfs, (const char *path, struct statfs *st), (path, st)) \
	X(FAULT_STAT, EIO, int, -1, fstatvfs, (int fd, struct statvfs *st), (fd, st)) \
	X(FAULT_STAT, EIO, int, -1, access, (const char *path, int mode), (path, mode)) \
	X(FAULT_STAT, EIO, int, -1, faccessat, (int fd, const char *path, int mode, int flags), \
	  (fd, path, mode, flags)) \
	X(FAULT_STAT, EIO, ssize_t, -1, readlinkat, \
	  (int fd, const char *path, char *out, size_t n), (fd, path, out, n)) \
	X(FAULT_STAT, ENOLCK, int, -1, flock, (int fd, int how), (fd, how)) \
	X(FAULT_MAP, ENOMEM, void *, MAP_FAILED, mmap, \
	  (void *p, size_t n, int prot, int flags, int fd, off_t off), \
	  (p, n, prot, flags, fd, off)) \
	X(FAULT_MAP, EAGAIN, int, -1, mincore, (void *p, size_t n, unsigned char *out), (p, n, out))

/* Calls that change what is on disk, and how disk.c is told when they have. */
#define CHANGING_CALLS(X) \
	X(FAULT_WRITE, ENOSPC, ssize_t, pwrite, (int fd, const void *p, size_t n, off_t off), \
	  (fd, p, n, off), disk_wrote(fd, p, done, off)) \
	X(FAULT_WRITE, ENOSPC, ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n), \
	  disk_wrote(fd, p, done, -1)) \
	X(FAULT_WRITE, ENOSPC, int, ftruncate, (int fd, off_t n), (fd, n), disk_resized(fd)) \
	X(FAULT_WRITE, ENOSPC, int, fallocate, (int fd, int mode, off_t off, off_t n), \
	  (fd, mode, off, n), disk_resized(fd)) \
	X(FAULT_WRITE, ENOSPC, int, mkdir, (const char *path, mode_t mode), (path, mode), \
	  disk_made(AT_FDCWD, path)) \
	X(FAULT_WRITE, ENOSPC, int, mkdirat, (int fd, const char *path, mode_t mode), \
	  (fd, path, mode), disk_made(fd, path)) \
	X(FAULT_WRITE, ENOSPC, int, symlinkat, (const char *to, int fd, const char *path), \
	  (to, fd, path), disk_made(fd, path)) \
	X(FAULT_NAME, EIO, int, rename, (const char *from, const char *to), (from, to), \
	  disk_renamed(AT_FDCWD, from, AT_FDCWD, to, false)) \
	X(FAULT_NAME, EIO, int, unlink, (const char *path), (path), disk_removed(AT_FDCWD, path)) \
	X(FAULT_NAME, EIO, int, unlinkat, (int fd, const char *path, int flags), \
	  (fd, path, flags), disk_removed(fd, path))

/* Calls with a function of their own below. */
#define OTHER_CALLS(X) \
	X(void *, malloc, (size_t n)) \
	X(void *, calloc, (size_t n, size_t size)) \
	X(void *, realloc, (void *p, size_t n)) \
	X(void *, reallocarray, (void *p, size_t n, size_t size)) \
	X(void, free, (void *p)) \
	X(char *, strdup, (const char *s)) \
	X(char *, strndup, (const char *s, size_t n)) \
	X(int, posix_memalign, (void **ret, size_t align, size_t n)) \
	X(char *, realpath, (const char *path, char *out)) \
	X(char *, getcwd, (char *out, size_t n)) \
	X(ssize_t, pread, (int fd, void *buf, size_t len, off_t off)) \
	X(int, renameat, (int fd, const char *from, int to_fd, const char *to)) \
	X(int, renameat2, (int fd, const char *from, int to_fd, const char *to, unsigned flags)) \
	X(int, fsync, (int fd)) \
	X(int, close, (int fd)) \
	X(int, open, (const char *path, int flags, ...)) \
	X(int, openat, (int dirfd, const char *path, int flags, ...)) \
	X(int, fcntl, (int fd, int cmd, ...)) \
	X(long, syscall, (long number, ...)) \
	X(int, pthread_create, \
	  (pthread_t * ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)) \
	X(int, regcomp, (regex_t * ret, const char *text, int flags)) \
	X(int, sqlite3_open_v2, (const char *path, sqlite3 **ret, int flags, const char *vfs)) \
	X(int, sqlite3_prepare_v2, \
	  (sqlite3 * db, const char *sql, int n, sqlite3_stmt **ret, const char **tail)) \
	X(int, sqlite3_exec, \
	  (sqlite3 * db, const char *sql, int (*each)(void *, int, char **, char **), void *arg, \
	   char **msg)) \
	X(int, sqlite3_blob_open, \
	  (sqlite3 * db, const char *name, const char *table, const char *column, \
	   sqlite3_int64 row, int flags, sqlite3_blob **ret)) \
	X(int, sqlite3_blob_reopen, (sqlite3_blob * b, sqlite3_int64 row)) \
	X(int, sqlite3_blob_read, (sqlite3_blob * b, void *to, int n, int at)) \
	X(int, sqlite3_step, (sqlite3_stmt * s)) \
	X(int, sqlite3_close, (sqlite3 * db)) \
	X(int, sqlite3_errcode, (sqlite3 * db)) \
	X(int, sqlite3_extended_errcode, (sqlite3 * db)) \
	X(const char *, sqlite3_errmsg, (sqlite3 * db))

#define DECLARE_FAILING(kind, code, type, bad, name, params, args)   DECLARE(type, name, params)
#define DECLARE_CHANGING(kind, code, type, name, params, args, tell) DECLARE(type, name, params)
#define DECLARE(type, name, params) \
	type __real_##name params; \
	/* Not hidden: the linker makes libcurl's calls of zlib calls of these. */ \
	type __wrap_##name params __attribute__((visibility("default")));
FAILING_CALLS(DECLARE_FAILING)
CHANGING_CALLS(DECLARE_CHANGING)
OTHER_CALLS(DECLARE)
int __real_seccomp_load(scmp_filter_ctx f);
int __wrap_seccomp_load(scmp_filter_ctx f);
scmp_filter_ctx __real_seccomp_init(uint32_t action);
scmp_filter_ctx __wrap_seccomp_init(uint32_t action);
int __wrap_seccomp_rule_add(scmp_filter_ctx f, uint32_t action, int call, unsigned n, ...);
int __wrap_asprintf(char **ret, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void *counted(void *p)
{
	int64_t size = (int64_t)malloc_usable_size(p), most = peak;
	int64_t now = atomic_fetch_add(&live, size) + size;

	while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
		;
	return p;
}

static void *no_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

void *__wrap_malloc(size_t n)
{
	return fails(FAULT_ALLOC, "malloc") ? no_memory() : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails(FAULT_ALLOC, "calloc") ? no_memory() : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
	size_t before = p ? malloc_usable_size(p) : 0;
	void *q;

	if (fails(FAULT_ALLOC, "realloc"))
		return no_memory();
	q = __real_realloc(p, n);
	if (q || !n)
		live -= (int64_t)before;
	return counted(q);
}

void __wrap_free(void *p)
{
	live -= (int64_t)malloc_usable_size(p);
	__real_free(p);
}

char *__wrap_strdup(const char *s)
{
	return fails(FAULT_ALLOC, "strdup") ? no_memory() : counted(__real_strdup(s));
}

char *__wrap_strndup(const char *s, size_t n)
{
	return fails(FAULT_ALLOC, "strndup") ? no_memory() : counted(__real_strndup(s, n));
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	return __builtin_mul_overflow(n, size, &bytes) ? no_memory() : __wrap_realloc(p, bytes);
}

int __wrap_posix_memalign(void **ret, size_t align, size_t n)
{
	int rc;

	if (fails(FAULT_ALLOC, "posix_memalign"))
		return ENOMEM;
	rc = __real_posix_memalign(ret, align, n);
	if (!rc)
		(void)counted(*ret);
	return rc;
}

scmp_filter_ctx __wrap_seccomp_init(uint32_t action)
{
	return fails(FAULT_ALLOC, "seccomp_init") ? no_memory() : __real_seccomp_init(action);
}

int __wrap_seccomp_rule_add(scmp_filter_ctx f, uint32_t action, int call, unsigned n, ...)
{
	struct scmp_arg_cmp args[6];
	va_list ap;

	if (fails(FAULT_ALLOC, "seccomp_rule_add"))
		return -ENOMEM;
	va_start(ap, n);
	for (unsigned i = 0; i < n && i < sizeof(args) / sizeof(args[0]); i++)
		args[i] = va_arg(ap, struct scmp_arg_cmp);
	va_end(ap);
	return seccomp_rule_add_array(f, action, call, n, args);
}

int __wrap_seccomp_load(scmp_filter_ctx f)
{
	return fails(FAULT_ALLOC, "seccomp_load") ? -ENOMEM : __real_seccomp_load(f);
}

char *__wrap_realpath(const char *path, char *out)
{
	char *p;

	if (fails_with(FAULT_STAT, EIO, "realpath"))
		return NULL;
	p = __real_realpath(path, out);
	return p && !out ? counted(p) : p;
}

char *__wrap_getcwd(char *out, size_t n)
{
	char *p;

	if (fails_with(FAULT_STAT, EIO, "getcwd"))
		return NULL;
	p = __real_getcwd(out, n);
	return p && !out ? counted(p) : p;
}

static int print_new(char **ret, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static int print_new(char **ret, const char *fmt, va_list ap)
{
	int n;

	if (fails_with(FAULT_ALLOC, ENOMEM, "asprintf")) {
		*ret = NULL;
		return -1;
	}
	n = vasprintf(ret, fmt, ap);
	if (n >= 0)
		(void)counted(*ret);
	return n;
}

int __wrap_asprintf(char **ret, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = print_new(ret, fmt, ap);
	va_end(ap);
	return n;
}

int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...)
{
	va_list ap;
	int n;

	(void)flag;
	va_start(ap, fmt);
	n = print_new(ret, fmt, ap);
	va_end(ap);
	return n;
}

/* ---- reading and writing ---- */

ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t off)
{
	ssize_t n;

	reads++;
	if (fails_with(FAULT_READ, EIO, "pread"))
		return -1;
	n = __real_pread(fd, buf, len, off);
	if (n > 0)
		read_bytes += (uint64_t)n;
	return n;
}

/* Makes a call that returns -1 if it changes nothing; others wait until disk.c knows of it. */
#define CHANGE(type, call, tell) \
	do { \
		bool told = disk_begin(); \
		type done = (call); \
		int code = errno; \
\
		if (told && done != -1) \
			tell; \
		if (told) \
			disk_end(); \
		errno = code; \
		return done; \
	} while (0)

#define CHANGING(kind, code_, type, name, params, args, tell) \
	type __wrap_##name params \
	{ \
		if (fails_with(kind, code_, #name)) \
			return -1; \
		CHANGE(type, __real_##name args, tell); \
	}
CHANGING_CALLS(CHANGING)

static int rename_here(int fd, const char *from, int to_fd, const char *to)
{
	int rc = __real_renameat(fd, from, to_fd, to);

	if (rc && sftp_renames && (errno == ENOTEMPTY || errno == EEXIST))
		errno = EPERM;
	return rc;
}

int __wrap_renameat(int fd, const char *from, int to_fd, const char *to)
{
	if (fails_with(FAULT_NAME, EIO, "renameat"))
		return -1;
	CHANGE(int, rename_here(fd, from, to_fd, to), disk_renamed(fd, from, to_fd, to, false));
}

int __wrap_renameat2(int fd, const char *from, int to_fd, const char *to, unsigned flags)
{
	if (no_exchange) {
		errno = EINVAL;
		return -1;
	}
	if (fails_with(FAULT_NAME, EIO, "renameat2"))
		return -1;
	CHANGE(int, __real_renameat2(fd, from, to_fd, to, flags),
	       disk_renamed(fd, from, to_fd, to, flags & RENAME_EXCHANGE));
}

int __wrap_fsync(int fd)
{
	syncs++;
	if (fails_with(FAULT_SYNC, EIO, "fsync"))
		return -1;
	CHANGE(int, 0, disk_synced(fd));
}

int __wrap_close(int fd)
{
	int rc = __real_close(fd);

	return fails_with(FAULT_CLOSE, EIO, "close") ? -1 : rc;
}

/* The mode is an argument only if the call may make a file. */
#define OPEN_MODE(last, flags, mode) \
	do { \
		va_list ap; \
\
		va_start(ap, last); \
		mode = (flags) & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0; \
		va_end(ap); \
	} while (0)

int __wrap_open(const char *path, int flags, ...)
{
	mode_t mode;

	OPEN_MODE(flags, flags, mode);
	if (fails_with(FAULT_OPEN, EMFILE, "open"))
		return -1;
	if (!(flags & (O_CREAT | O_TRUNC)))
		return __real_open(path, flags, mode);
	CHANGE(int, __real_open(path, flags, mode), disk_opened(AT_FDCWD, path, flags, done));
}

int __wrap_openat(int dirfd, const char *path, int flags, ...)
{
	mode_t mode;

	OPEN_MODE(flags, flags, mode);
	if (fails_with(FAULT_OPEN, EMFILE, "openat"))
		return -1;
	if (!(flags & (O_CREAT | O_TRUNC)))
		return __real_openat(dirfd, path, flags, mode);
	CHANGE(int, __real_openat(dirfd, path, flags, mode), disk_opened(dirfd, path, flags, done));
}

int __wrap_fcntl(int fd, int cmd, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	return fails_with(FAULT_STAT, EAGAIN, "fcntl") ? -1 : __real_fcntl(fd, cmd, arg);
}

/* openat2 fails as opening does, any other call as asking what is there does. */
long __wrap_syscall(long number, ...)
{
	long a[4];
	va_list ap;

	va_start(ap, number);
	for (size_t i = 0; i < 4; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_openat2 ? fails_with(FAULT_OPEN, EMFILE, "openat2")
				  : fails_with(FAULT_STAT, EIO, "syscall"))
		return -1;
	return __real_syscall(number, a[0], a[1], a[2], a[3]);
}

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	return fails(FAULT_THREAD, "pthread_create") ? EAGAIN
						     : __real_pthread_create(ret, attr, run, arg);
}

int __wrap_regcomp(regex_t *ret, const char *text, int flags)
{
	return fails(FAULT_ALLOC, "regcomp") ? REG_ESPACE : __real_regcomp(ret, text, flags);
}

/* Calls that fail in only one way: with one value and one errno. */
#define FAILING(kind, code, type, bad, name, params, args) \
	type __wrap_##name params \
	{ \
		return fails_with(kind, code, #name) ? (bad) : __real_##name args; \
	}
FAILING_CALLS(FAILING)

/* ---- SQLite ---- */

static _Thread_local int sql_code; /* the error code of the last call, if it was made to fail */

static bool sql_fails(const char *name, int code)
{
	bool it_does = fails(FAULT_SQL, name);

	sql_code = it_does ? code : 0;
	return it_does;
}

int __wrap_sqlite3_open_v2(const char *path, sqlite3 **ret, int flags, const char *vfs)
{
	if (sql_fails("sqlite3_open_v2", SQLITE_NOMEM)) {
		*ret = NULL;
		return SQLITE_NOMEM;
	}
	return __real_sqlite3_open_v2(path, ret, flags, vfs);
}

int __wrap_sqlite3_prepare_v2(sqlite3 *db, const char *sql, int n, sqlite3_stmt **ret,
			      const char **tail)
{
	if (sql_fails("sqlite3_prepare_v2", SQLITE_IOERR)) {
		*ret = NULL;
		return SQLITE_IOERR;
	}
	return __real_sqlite3_prepare_v2(db, sql, n, ret, tail);
}

int __wrap_sqlite3_exec(sqlite3 *db, const char *sql, int (*each)(void *, int, char **, char **),
			void *arg, char **msg)
{
	return sql_fails("sqlite3_exec", SQLITE_IOERR)
		       ? SQLITE_IOERR
		       : __real_sqlite3_exec(db, sql, each, arg, msg);
}

int __wrap_sqlite3_blob_open(sqlite3 *db, const char *name, const char *table, const char *column,
			     sqlite3_int64 row, int flags, sqlite3_blob **ret)
{
	if (sql_fails("sqlite3_blob_open", SQLITE_IOERR)) {
		*ret = NULL;
		return SQLITE_IOERR;
	}
	return __real_sqlite3_blob_open(db, name, table, column, row, flags, ret);
}

int __wrap_sqlite3_blob_reopen(sqlite3_blob *b, sqlite3_int64 row)
{
	return sql_fails("sqlite3_blob_reopen", SQLITE_IOERR) ? SQLITE_IOERR
							      : __real_sqlite3_blob_reopen(b, row);
}

int __wrap_sqlite3_blob_read(sqlite3_blob *b, void *to, int n, int at)
{
	return sql_fails("sqlite3_blob_read", SQLITE_IOERR)
		       ? SQLITE_IOERR
		       : __real_sqlite3_blob_read(b, to, n, at);
}

int __wrap_sqlite3_step(sqlite3_stmt *s)
{
	return sql_fails("sqlite3_step", SQLITE_IOERR) ? SQLITE_IOERR : __real_sqlite3_step(s);
}

int __wrap_sqlite3_close(sqlite3 *db)
{
	int rc = __real_sqlite3_close(db);

	return sql_fails("sqlite3_close", SQLITE_IOERR) ? SQLITE_IOERR : rc;
}

int __wrap_sqlite3_errcode(sqlite3 *db)
{
	return sql_code ? sql_code : __real_sqlite3_errcode(db);
}

int __wrap_sqlite3_extended_errcode(sqlite3 *db)
{
	return sql_code ? sql_code : __real_sqlite3_extended_errcode(db);
}

const char *__wrap_sqlite3_errmsg(sqlite3 *db)
{
	return sql_code ? sqlite3_errstr(sql_code) : __real_sqlite3_errmsg(db);
}
/* NOLINTEND(bugprone-reserved-identifier) */

uint64_t fault_reads(void)
{
	return reads;
}

uint64_t fault_read_bytes(void)
{
	return read_bytes;
}

uint64_t fault_syncs(void)
{
	return syncs;
}

int64_t fault_live(void)
{
	return live;
}

int64_t fault_peak(void)
{
	return peak;
}

void fault_no_exchange(void)
{
	no_exchange = true;
}

void fault_sftp_renames(void)
{
	no_exchange = sftp_renames = true;
}

void fault_peak_reset(void)
{
	peak = (int64_t)live;
}

/* ---- libraries ---- */

static void *sql_malloc(int n)
{
	return malloc((size_t)n);
}

static void *sql_realloc(void *p, int n)
{
	return realloc(p, (size_t)n);
}

static int sql_size(void *p)
{
	return (int)malloc_usable_size(p);
}

static int sql_roundup(int n)
{
	return (n + 7) & ~7;
}

static int sql_init(void *arg)
{
	(void)arg;
	return SQLITE_OK;
}

static void sql_shutdown(void *arg)
{
	(void)arg;
}

static ssize_t sql_pread(int fd, void *buf, size_t len, off_t off)
{
	return fails_with(FAULT_READ, EIO, "pread of SQLite") ? -1
							      : __real_pread(fd, buf, len, off);
}

static int sql_open(const char *path, int flags, int mode)
{
	return __wrap_open(path, flags, mode);
}

void fault_sqlite(void)
{
	static const struct {
		const char *name;
		sqlite3_syscall_ptr call;
	} calls_of[] = {
		{ "pread", (sqlite3_syscall_ptr)sql_pread },
		{ "pread64", (sqlite3_syscall_ptr)sql_pread },
		{ "open", (sqlite3_syscall_ptr)sql_open },
		{ "access", (sqlite3_syscall_ptr)__wrap_access },
		{ "stat", (sqlite3_syscall_ptr)__wrap_stat },
		{ "fstat", (sqlite3_syscall_ptr)__wrap_fstat },
		{ "ftruncate", (sqlite3_syscall_ptr)__wrap_ftruncate },
		{ "unlink", (sqlite3_syscall_ptr)__wrap_unlink },
		{ "pwrite", (sqlite3_syscall_ptr)__wrap_pwrite },
		{ "pwrite64", (sqlite3_syscall_ptr)__wrap_pwrite },
		{ "write", (sqlite3_syscall_ptr)__wrap_write },
	};
	static const sqlite3_mem_methods methods = { sql_malloc,  free,	    sql_realloc,  sql_size,
						     sql_roundup, sql_init, sql_shutdown, NULL };
	sqlite3_vfs *vfs;

	(void)sqlite3_shutdown();
	(void)sqlite3_config(SQLITE_CONFIG_MALLOC, &methods);
	(void)sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0); /* else most calls go unseen */
	(void)sqlite3_initialize();
	vfs = sqlite3_vfs_find(NULL);
	for (size_t i = 0; vfs && i < sizeof(calls_of) / sizeof(calls_of[0]); i++)
		(void)vfs->xSetSystemCall(vfs, calls_of[i].name, calls_of[i].call);
}
