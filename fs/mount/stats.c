/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/stats.h"

#include "mount/journal.h"
#include "mount/mounts.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/json_out.h"
#include "base/list.h"
#include <ckptfs/ckpt_mount.h>

#include <fuse_lowlevel.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	MAX_ERRNO = 133, /* the last errno of Linux; 0 counts larger and unnamed ones */
	/* Of latencies: [0, 1), [1, 2), [2, 4), ... us; all from 2^(BUCKETS-2) us (8 s) on are in
	   the last. */
	BUCKETS = 25,
	LOG_SHOWN = 10,	     /* lines */
	MAX_TEXT = 16 << 20, /* bytes: a few thousand, plus the options */
};

/* Cells of the counters. */
enum {
	AT_REQUESTS,
	AT_BYTES = AT_REQUESTS + N_STATS_REQUESTS,
	AT_OPEN_FILES, /* correct modulo 2^64, even if closed on another CPU */
	AT_PASSED,
	AT_LATENCY,
	AT_ERRORS = AT_LATENCY + BUCKETS,
	N_CELLS = AT_ERRORS + MAX_ERRNO + 1
};

struct stats {
	struct stats_about about;
	uint64_t start_ns;
	struct counters *counters;
	atomic_bool passthrough, uring;
	pthread_mutex_t lock;
	struct fuse_conn_info conn; /* this and below under the lock */
	LIST(struct stats_reader) readers;
};

struct stats_reader {
	struct stats *stats;
	enum stats_file which;
	LIST_LINK(struct stats_reader) link; /* under the lock of stats */
	pthread_mutex_t lock;		     /* never held together with that of stats */
	struct buf text;
};

struct stats *stats_new(const struct stats_about *about)
{
	struct stats *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->about = *about;
	s->start_ns = clock_ns();
	s->counters = counters_new(N_CELLS);
	(void)pthread_mutex_init(&s->lock, NULL);
	if (!s->counters) {
		stats_free(s);
		return NULL;
	}
	return s;
}

void stats_free(struct stats *s)
{
	if (!s)
		return;
	while (s->readers.first)
		stats_close(s->readers.first);
	counters_free(s->counters);
	(void)pthread_mutex_destroy(&s->lock);
	free(s);
}

void stats_count(struct stats *s, enum stats_request kind)
{
	counters_add(s->counters, AT_REQUESTS + kind, 1);
}

void stats_served(struct stats *s, size_t bytes)
{
	counters_add(s->counters, AT_BYTES, bytes);
}

/* What Linux answers calls on files with. strerrorname_np() is not everywhere: glibc 2.32. */
static const char *const error_names[MAX_ERRNO + 1] = {
#define ERROR(code) [code] = #code
	ERROR(EPERM),	     ERROR(ENOENT),	ERROR(EINTR),	     ERROR(EIO),
	ERROR(ENXIO),	     ERROR(E2BIG),	ERROR(EBADF),	     ERROR(EAGAIN),
	ERROR(ENOMEM),	     ERROR(EACCES),	ERROR(EFAULT),	     ERROR(EBUSY),
	ERROR(EEXIST),	     ERROR(EXDEV),	ERROR(ENODEV),	     ERROR(ENOTDIR),
	ERROR(EISDIR),	     ERROR(EINVAL),	ERROR(ENFILE),	     ERROR(EMFILE),
	ERROR(ENOTTY),	     ERROR(ETXTBSY),	ERROR(EFBIG),	     ERROR(ENOSPC),
	ERROR(ESPIPE),	     ERROR(EROFS),	ERROR(EMLINK),	     ERROR(EPIPE),
	ERROR(ERANGE),	     ERROR(EDEADLK),	ERROR(ENAMETOOLONG), ERROR(ENOLCK),
	ERROR(ENOSYS),	     ERROR(ENOTEMPTY),	ERROR(ELOOP),	     ERROR(ENODATA),
	ERROR(ENONET),	     ERROR(ENOLINK),	ERROR(ECOMM),	     ERROR(EPROTO),
	ERROR(EBADMSG),	     ERROR(EOVERFLOW),	ERROR(EILSEQ),	     ERROR(EUSERS),
	ERROR(EOPNOTSUPP),   ERROR(EADDRINUSE), ERROR(ENETUNREACH),  ERROR(ECONNABORTED),
	ERROR(ECONNRESET),   ERROR(ENOBUFS),	ERROR(ENOTCONN),     ERROR(ETIMEDOUT),
	ERROR(ECONNREFUSED), ERROR(EHOSTDOWN),	ERROR(EHOSTUNREACH), ERROR(ESTALE),
	ERROR(EUCLEAN),	     ERROR(EREMOTEIO),	ERROR(EDQUOT),	     ERROR(ENOMEDIUM),
	ERROR(ECANCELED),    ERROR(ENOKEY),	ERROR(EKEYEXPIRED),  ERROR(EKEYREVOKED),
	ERROR(EKEYREJECTED), ERROR(EHWPOISON),
#undef ERROR
};

void stats_error(struct stats *s, int code)
{
	bool named = code > 0 && code <= MAX_ERRNO && error_names[code];

	counters_add(s->counters, AT_ERRORS + (named ? (size_t)code : 0), 1);
}

/* The number of binary digits of the time in microseconds. */
static size_t bucket_of(uint64_t ns)
{
	uint64_t us = ns / 1000;

	return us ? (size_t)min_u64(64 - (unsigned)__builtin_clzll(us), BUCKETS - 1) : 0;
}

void stats_read_done(struct stats *s, uint64_t start)
{
	counters_add(s->counters, AT_LATENCY + bucket_of(clock_ns() - start), 1);
}

void stats_open_files(struct stats *s, int by)
{
	counters_add(s->counters, AT_OPEN_FILES, (uint64_t)by);
}

void stats_passed(struct stats *s)
{
	counters_add(s->counters, AT_PASSED, 1);
}

void stats_set_passthrough(struct stats *s, bool on)
{
	s->passthrough = on;
}

void stats_set_uring(struct stats *s, bool on)
{
	s->uring = on;
}

void stats_negotiated(struct stats *s, const struct fuse_conn_info *conn)
{
	SCOPED_LOCK(&s->lock);

	s->conn = *conn;
}

/* ---- the text ---- */

/* Writes an option as on a command line; one without a value ends with its "=". */
static void put_option(struct json_out *j, const char *word)
{
	struct buf arg CLEANUP(buf_release) = BUF_INIT(MAX_TEXT);
	size_t name = strcspn(word, "="), len = strlen(word);

	buf_str(&arg, "--");
	buf_add(&arg, word, len == name + 1 ? name : len);
	json_str_n(j, NULL, arg.data, arg.len);
	if (arg.err)
		j->to->err = arg.err;
}

/* Writes what is needed to open the same tree again. */
static void put_about(struct json_out *j, const struct stats_about *a)
{
	struct ckpt_totals t;

	ckpt_totals(a->ckpt, &t);
	json_str(j, "version", CKPTFS_VERSION);
	json_str(j, "checkpoint", a->source);
	json_str(j, "identity", t.identity);
	json_str(j, "index", t.index);
	json_str(j, "directory", a->directory);
	json_open_line(j, "options", '[');
	for (size_t at = 0; at < a->options_len; at += strlen(a->options + at) + 1)
		put_option(j, a->options + at);
	json_close(j);
}

static void put_requests(struct json_out *j, const uint64_t *n)
{
	static const char *const names[] = {
#define STATS_NAME(name) #name,
		STATS_REQUESTS(STATS_NAME)
#undef STATS_NAME
	};

	json_open(j, "requests", '{');
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		json_u64(j, names[i], n[AT_REQUESTS + i]);
	json_close(j);
}

static void put_errors(struct json_out *j, const uint64_t *n)
{
	json_open(j, "errors", '{');
	for (int i = 0; i <= MAX_ERRNO; i++)
		if (n[AT_ERRORS + i])
			json_u64(j, i ? error_names[i] : "other", n[AT_ERRORS + i]);
	json_close(j);
}

static void put_latency(struct json_out *j, const uint64_t *n)
{
	json_open(j, "read_latency", '[');
	for (size_t i = 0; i < BUCKETS; i++) {
		json_open_line(j, NULL, '{');
		if (i < BUCKETS - 1)
			json_u64(j, "below_us", (uint64_t)1 << i);
		else
			json_str(j, "below_us", NULL);
		json_u64(j, "reads", n[AT_LATENCY + i]);
		json_close(j);
	}
	json_close(j);
}

static void put_engine(struct json_out *j, struct ckpt *ckpt)
{
	struct ckpt_counters c;
	struct ckpt_network n;

	ckpt_counters(ckpt, &c);
	json_open(j, "source", '{');
	json_u64(j, "reads", c.source_reads);
	json_u64(j, "bytes", c.source_bytes);
	json_u64(j, "mapped_bytes", c.mapped_bytes);
	json_u64(j, "faults", c.faults);
	json_close(j);
	if (ckpt_network(ckpt, &n)) {
		json_open(j, "network", '{');
		json_u64(j, "requests", n.requests);
		json_u64(j, "bytes", n.bytes);
		json_u64(j, "retries", n.retries);
		json_u64(j, "hedges", n.hedges);
		json_u64(j, "restarts", n.restarts);
		json_u64(j, "latency_us", n.latency_us);
		json_u64(j, "connection_bytes_per_second", n.connection_bps);
		json_u64(j, "bytes_per_second", n.total_bps);
		json_u64(j, "window_bytes", n.window_bytes);
		json_u64(j, "cache_hits", n.cache_hits);
		json_u64(j, "cache_misses", n.cache_misses);
		json_u64(j, "cache_size", n.cache_size);
		json_str(j, "cache_note", *n.cache_note ? n.cache_note : NULL);
		json_close(j);
	}
	json_open(j, "copies", '{');
	json_u64(j, "moves", c.copies);
	json_u64(j, "bytes", c.copied_bytes);
	json_u64(j, "quantised_bytes", c.quantised_bytes);
	json_u64(j, "gguf_block_bytes", c.gguf_block_bytes);
	json_close(j);
	json_open(j, "block_cache", '{');
	json_u64(j, "hits", c.cache_hits);
	json_u64(j, "misses", c.cache_misses);
	json_u64(j, "evictions", c.cache_evictions);
	json_u64(j, "bytes", c.cache_bytes);
	json_u64(j, "max_bytes", c.cache_max_bytes);
	json_u64(j, "decoded_bytes", c.decoded_bytes);
	json_close(j);
}

/* The number that follows `key` in a small file of /proc or /sys; 0 if there is none. */
static uint64_t number_in(const char *path, const char *key)
{
	char text[4096];
	FILE *f = fopen(path, "re");
	const char *at;
	size_t n;

	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	(void)fclose(f);
	text[n] = 0;
	at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void put_negotiated(struct json_out *j, struct stats *s)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), max_pages;
	struct fuse_conn_info c;
	char bdi[MOUNTS_BDI_MAX];

	{
		SCOPED_LOCK(&s->lock);
		c = s->conn;
	}
	max_pages = (c.max_write + page - 1) / page; /* as libfuse reports it to the kernel */
	mounts_bdi(s->about.mount, bdi);
	json_open(j, "negotiated", '{');
	json_raw(j, "protocol", "\"%u.%u\"", c.proto_major, c.proto_minor);
	json_u64(j, "max_pages", max_pages);
	json_u64(j, "max_write", c.max_write);
	json_u64(j, "max_read",
		 c.max_read ? min_u64(c.max_read, max_pages * page) : max_pages * page);
	json_u64(j, "max_readahead", c.max_readahead);
	json_u64(j, "read_ahead_kb", number_in(bdi, ""));
	json_u64(j, "max_background", c.max_background);
	json_u64(j, "congestion_threshold", c.congestion_threshold);
	json_bool(j, "async_read", c.want & FUSE_CAP_ASYNC_READ);
	json_bool(j, "async_dio", c.want & FUSE_CAP_ASYNC_DIO);
	json_bool(j, "readdirplus", c.want & FUSE_CAP_READDIRPLUS);
	json_bool(j, "parallel_dirops", c.want & FUSE_CAP_PARALLEL_DIROPS);
	json_bool(j, "splice_read", c.want & FUSE_CAP_SPLICE_READ);
	json_bool(j, "splice_write", c.want & FUSE_CAP_SPLICE_WRITE);
	json_bool(j, "splice_move", c.want & FUSE_CAP_SPLICE_MOVE);
	json_bool(j, "passthrough", s->passthrough);
	json_bool(j, "io_uring", s->uring);
	json_close(j);
}

static void put_process(struct json_out *j, const struct stats *s)
{
	static const char status[] = "/proc/self/status";

	json_open(j, "threads", '{');
	json_u64(j, "workers_max", s->about.threads);
	json_u64(j, "running", number_in(status, "\nThreads:"));
	json_close(j);
	json_open(j, "memory", '{');
	json_u64(j, "rss_bytes", number_in(status, "\nVmRSS:") << 10);
	json_u64(j, "anonymous_bytes", number_in(status, "\nRssAnon:") << 10);
	json_u64(j, "file_bytes", number_in(status, "\nRssFile:") << 10);
	json_close(j);
}

/* Writes the last messages; the whole log is a separate file. */
static void put_log(struct json_out *j, struct journal *journal)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(MAX_TEXT);
	const char *at, *end;

	journal_text(journal, LOG_SHOWN, &text);
	json_open(j, "log", '[');
	for (at = text.data; at && (end = strchr(at, '\n')); at = end + 1)
		json_str_n(j, NULL, at, (size_t)(end - at));
	json_close(j);
	if (text.err)
		j->to->err = text.err;
}

static void put_stats(struct buf *b, struct stats *s)
{
	uint64_t n[N_CELLS], up = clock_ns() - s->start_ns;
	struct json_out j = { .to = b };

	counters_read(s->counters, n);
	json_open(&j, NULL, '{');
	put_about(&j, &s->about);
	json_raw(&j, "uptime_seconds", "%" PRIu64 ".%03u", up / 1000000000,
		 (unsigned)(up / 1000000 % 1000));
	json_u64(&j, "open_files", n[AT_OPEN_FILES]);
	json_u64(&j, "passthrough_opens", n[AT_PASSED]);
	json_u64(&j, "served_bytes", n[AT_BYTES]);
	put_requests(&j, n);
	put_errors(&j, n);
	put_latency(&j, n);
	put_engine(&j, s->about.ckpt);
	put_negotiated(&j, s);
	put_process(&j, s);
	put_log(&j, s->about.journal);
	json_close(&j);
}

static void put_text(struct buf *b, struct stats *s, enum stats_file which)
{
	if (which == STATS_LOG)
		journal_text(s->about.journal, JOURNAL_LINES, b);
	else
		put_stats(b, s);
}

/* ---- the file ---- */

struct stats_reader *stats_open(struct stats *s, enum stats_file which)
{
	struct stats_reader *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->stats = s;
	r->which = which;
	r->text = (struct buf)BUF_INIT(MAX_TEXT);
	put_text(&r->text, s, which); /* for readers that do not start at the beginning */
	if (r->text.err) {
		buf_release(&r->text);
		free(r);
		return NULL;
	}
	(void)pthread_mutex_init(&r->lock, NULL);
	SCOPED_LOCK(&s->lock);
	LIST_PUSH(&s->readers, r);
	return r;
}

void stats_close(struct stats_reader *r)
{
	{
		SCOPED_LOCK(&r->stats->lock);
		LIST_REMOVE(&r->stats->readers, r);
	}
	(void)pthread_mutex_destroy(&r->lock);
	buf_release(&r->text);
	free(r);
}

int stats_read(struct stats_reader *r, uint64_t off, size_t len, char **ret, size_t *ret_len)
{
	struct buf fresh CLEANUP(buf_release) = BUF_INIT(MAX_TEXT), old;

	if (!off) /* before locking: this takes other locks */
		put_text(&fresh, r->stats, r->which);
	if (fresh.err)
		return -fresh.err;
	SCOPED_LOCK(&r->lock);
	if (!off) {
		old = r->text;
		r->text = fresh;
		fresh = old;
	}
	*ret_len = off < r->text.len ? (size_t)min_u64(len, r->text.len - off) : 0;
	*ret = malloc(*ret_len + 1);
	if (!*ret)
		return -ENOMEM;
	if (*ret_len) /* a log may be empty */
		memcpy(*ret, r->text.data + off, *ret_len);
	return 0;
}
