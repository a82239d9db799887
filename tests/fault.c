/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

static _Atomic uint64_t calls, first, last, reads, read_bytes, syncs;
static _Atomic int64_t live, peak;
static atomic_int armed;
static atomic_bool hit, no_exchange;

/* ---- arming ---- */

void fault_on(enum fault_kind kind, uint64_t from, uint64_t count)
{
	calls = 0;
	hit = false;
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

bool fault_round(enum fault_kind kind, uint64_t n, uint64_t count)
{
	(void)fault_off();
	if (n > 1 && !hit)
		return false;
	fault_on(kind, n, count);
	return true;
}

static bool fails(enum fault_kind kind)
{
	uint64_t n;

	if (armed != (int)kind)
		return false;
	n = ++calls;
	if (!first || n < first || n > last)
		return false;
	hit = true;
	return true;
}

/* ---- memory ---- */

/* What the linker's --wrap calls the real functions and ours. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
char *__real_strdup(const char *s);
ssize_t __real_pread(int fd, void *buf, size_t len, off_t off);
ssize_t __real_pwrite(int fd, const void *buf, size_t len, off_t off);
ssize_t __real_write(int fd, const void *buf, size_t len);
int __real_renameat2(int fd, const char *from, int to_fd, const char *to, unsigned flags);
ZSTD_DCtx *__real_ZSTD_createDCtx(void);
XXH3_state_t *__real_XXH3_createState(void);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
char *__wrap_strdup(const char *s);
int __wrap_asprintf(char **ret, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap___asprintf_chk(char **ret, int flag, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_write(int fd, const void *buf, size_t len);
int __wrap_fsync(int fd);
int __wrap_renameat2(int fd, const char *from, int to_fd, const char *to, unsigned flags);
ZSTD_DCtx *__wrap_ZSTD_createDCtx(void);
XXH3_state_t *__wrap_XXH3_createState(void);

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
	return fails(FAULT_ALLOC) ? no_memory() : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails(FAULT_ALLOC) ? no_memory() : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
	size_t before = p ? malloc_usable_size(p) : 0;
	void *q;

	if (fails(FAULT_ALLOC))
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
	return fails(FAULT_ALLOC) ? no_memory() : counted(__real_strdup(s));
}

static int print_new(char **ret, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static int print_new(char **ret, const char *fmt, va_list ap)
{
	int n;

	if (fails(FAULT_ALLOC)) {
		*ret = NULL;
		errno = ENOMEM;
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

ZSTD_DCtx *__wrap_ZSTD_createDCtx(void)
{
	return fails(FAULT_ALLOC) ? NULL : __real_ZSTD_createDCtx();
}

XXH3_state_t *__wrap_XXH3_createState(void)
{
	return fails(FAULT_ALLOC) ? NULL : __real_XXH3_createState();
}

ssize_t __wrap_pread(int fd, void *buf, size_t len, off_t off)
{
	ssize_t n;

	reads++;
	if (fails(FAULT_READ)) {
		errno = EIO;
		return -1;
	}
	n = __real_pread(fd, buf, len, off);
	if (n > 0)
		read_bytes += (uint64_t)n;
	return n;
}

static bool disk_full(void)
{
	if (!fails(FAULT_WRITE))
		return false;
	errno = ENOSPC;
	return true;
}

ssize_t __wrap_pwrite(int fd, const void *buf, size_t len, off_t off)
{
	return disk_full() ? -1 : __real_pwrite(fd, buf, len, off);
}

ssize_t __wrap_write(int fd, const void *buf, size_t len)
{
	return disk_full() ? -1 : __real_write(fd, buf, len);
}

int __wrap_renameat2(int fd, const char *from, int to_fd, const char *to, unsigned flags)
{
	if (no_exchange) {
		errno = EINVAL;
		return -1;
	}
	return __real_renameat2(fd, from, to_fd, to, flags);
}

int __wrap_fsync(int fd)
{
	(void)fd;
	syncs++;
	if (!fails(FAULT_SYNC))
		return 0;
	errno = EIO;
	return -1;
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
	if (fails(FAULT_READ)) {
		errno = EIO;
		return -1;
	}
	return __real_pread(fd, buf, len, off);
}

void fault_sqlite(void)
{
	static const struct {
		const char *name;
		sqlite3_syscall_ptr call;
	} calls_of[] = {
		{ "pread", (sqlite3_syscall_ptr)sql_pread },
		{ "pread64", (sqlite3_syscall_ptr)sql_pread },
		{ "pwrite", (sqlite3_syscall_ptr)__wrap_pwrite },
		{ "pwrite64", (sqlite3_syscall_ptr)__wrap_pwrite },
		{ "write", (sqlite3_syscall_ptr)__wrap_write },
	};
	static const sqlite3_mem_methods methods = { sql_malloc,  free,	    sql_realloc,  sql_size,
						     sql_roundup, sql_init, sql_shutdown, NULL };
	sqlite3_vfs *vfs;

	(void)sqlite3_shutdown();
	(void)sqlite3_config(SQLITE_CONFIG_MALLOC, &methods);
	(void)sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0); /* else most of it goes by unseen */
	(void)sqlite3_initialize();
	vfs = sqlite3_vfs_find(NULL);
	for (size_t i = 0; vfs && i < sizeof(calls_of) / sizeof(calls_of[0]); i++)
		(void)vfs->xSetSystemCall(vfs, calls_of[i].name, calls_of[i].call);
}

void fault_jansson(void)
{
	json_set_alloc_funcs(malloc, free);
}
