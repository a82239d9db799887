/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include "mounts.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"

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
	MAX_ERRNO = 133, /* the last of Linux; 0 counts those beyond */
	/* Of latencies: [0, 1), [1, 2), [2, 4), ... us; all from 2^(BUCKETS-2) us (8 s) on are in
	   the last. */
	BUCKETS = 25,
	MAX_TEXT = 16 << 20, /* bytes: a few thousand, and the options that there are */
};

/* Cells of the counters. */
enum {
	AT_REQUESTS,
	AT_BYTES = AT_REQUESTS + N_STATS_REQUESTS,
	AT_OPEN_FILES, /* modulo 2^64 it is one even where it is closed on another CPU */
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
	struct stats_reader *first;
};

struct stats_reader {
	struct stats *stats;
	struct stats_reader *prev, *next; /* under the lock of stats */
	pthread_mutex_t lock;		  /* never held together with that */
	struct buf text;
};

uint64_t stats_clock(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct stats *stats_new(const struct stats_about *about)
{
	struct stats *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->about = *about;
	s->start_ns = stats_clock();
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
	while (s->first)
		stats_close(s->first);
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

void stats_error(struct stats *s, int code)
{
	counters_add(s->counters, AT_ERRORS + (code > 0 && code <= MAX_ERRNO ? (size_t)code : 0),
		     1);
}

/* The number of binary digits of the time in microseconds. */
static size_t bucket_of(uint64_t ns)
{
	uint64_t us = ns / 1000;

	return us ? (size_t)min_u64(64 - (unsigned)__builtin_clzll(us), BUCKETS - 1) : 0;
}

void stats_read_done(struct stats *s, uint64_t start)
{
	counters_add(s->counters, AT_LATENCY + bucket_of(stats_clock() - start), 1);
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

static void put_str(struct buf *b, const char *name, const char *value)
{
	buf_printf(b, "\"%s\": ", name);
	buf_json_str(b, value, strlen(value));
}

/* As it stands on a command line; one without a value ends with its "=". */
static void put_option(struct buf *b, const char *word, const char *comma)
{
	struct buf arg CLEANUP(buf_release) = BUF_INIT(MAX_TEXT);
	size_t name = strcspn(word, "="), len = strlen(word);

	buf_str(&arg, "--");
	buf_add(&arg, word, len == name + 1 ? name : len);
	buf_str(b, comma);
	buf_json_str(b, arg.data, arg.len);
	if (arg.err)
		b->err = arg.err;
}

/* What it takes to open the same tree again. */
static void put_about(struct buf *b, const struct stats_about *a)
{
	struct ckpt_totals t;

	ckpt_totals(a->ckpt, &t);
	put_str(b, "version", CKPTFS_VERSION);
	buf_str(b, ",\n  ");
	put_str(b, "checkpoint", a->source);
	buf_str(b, ",\n  ");
	put_str(b, "identity", t.identity);
	buf_str(b, ",\n  ");
	put_str(b, "index", t.index);
	buf_str(b, ",\n  ");
	put_str(b, "directory", a->directory);
	buf_str(b, ",\n  \"options\": [");
	for (size_t at = 0; at < a->options_len; at += strlen(a->options + at) + 1)
		put_option(b, a->options + at, at ? ", " : "");
	buf_str(b, "]");
}

static void put_requests(struct buf *b, const uint64_t *n)
{
	static const char *const names[] = {
#define STATS_NAME(name) #name,
		STATS_REQUESTS(STATS_NAME)
#undef STATS_NAME
	};

	buf_str(b, ",\n  \"requests\": {");
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		buf_printf(b, "%s\n    \"%s\": %" PRIu64, i ? "," : "", names[i],
			   n[AT_REQUESTS + i]);
	buf_str(b, "\n  }");
}

static void put_errors(struct buf *b, const uint64_t *n)
{
	const char *comma = "";

	buf_str(b, ",\n  \"errors\": {");
	for (int i = 0; i <= MAX_ERRNO; i++) {
		const char *name = i ? strerrorname_np(i) : NULL;

		if (!n[AT_ERRORS + i])
			continue;
		buf_printf(b, "%s\n    \"%s\": %" PRIu64, comma, name ? name : "other",
			   n[AT_ERRORS + i]);
		comma = ",";
	}
	buf_str(b, *comma ? "\n  }" : "}");
}

static void put_latency(struct buf *b, const uint64_t *n)
{
	buf_str(b, ",\n  \"read_latency\": [");
	for (size_t i = 0; i < BUCKETS; i++) {
		buf_str(b, i ? ",\n    " : "\n    ");
		if (i < BUCKETS - 1)
			buf_printf(b, "{\"below_us\": %" PRIu64, (uint64_t)1 << i);
		else
			buf_str(b, "{\"below_us\": null");
		buf_printf(b, ", \"reads\": %" PRIu64 "}", n[AT_LATENCY + i]);
	}
	buf_str(b, "\n  ]");
}

static void put_engine(struct buf *b, struct ckpt *ckpt)
{
	struct ckpt_counters c;

	ckpt_counters(ckpt, &c);
	buf_printf(b,
		   ",\n  \"source\": {\n    \"reads\": %" PRIu64 ",\n    \"bytes\": %" PRIu64
		   ",\n    \"mapped_bytes\": %" PRIu64 ",\n    \"faults\": %" PRIu64 "\n  }",
		   c.source_reads, c.source_bytes, c.mapped_bytes, c.faults);
	buf_printf(b,
		   ",\n  \"copies\": {\n    \"moves\": %" PRIu64 ",\n    \"bytes\": %" PRIu64
		   "\n  }",
		   c.copies, c.copied_bytes);
	buf_printf(b,
		   ",\n  \"block_cache\": {\n    \"hits\": %" PRIu64 ",\n    \"misses\": %" PRIu64
		   ",\n    \"evictions\": %" PRIu64 ",\n    \"bytes\": %" PRIu64
		   ",\n    \"max_bytes\": %" PRIu64 ",\n    \"decoded_bytes\": %" PRIu64 "\n  }",
		   c.cache_hits, c.cache_misses, c.cache_evictions, c.cache_bytes,
		   c.cache_max_bytes, c.decoded_bytes);
}

/* The number that follows `key` in a small file of /proc or /sys; 0 where there is none. */
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

static void put_flag(struct buf *b, const char *name, bool on)
{
	buf_printf(b, ",\n    \"%s\": %s", name, on ? "true" : "false");
}

static void put_negotiated(struct buf *b, struct stats *s)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), max_pages;
	struct fuse_conn_info c;
	char bdi[MOUNTS_BDI_MAX];

	{
		SCOPED_LOCK(&s->lock);
		c = s->conn;
	}
	max_pages = (c.max_write + page - 1) / page; /* as libfuse tells the kernel */
	mounts_bdi(s->about.mount, bdi);
	buf_printf(b, ",\n  \"negotiated\": {\n    \"protocol\": \"%u.%u\"", c.proto_major,
		   c.proto_minor);
	buf_printf(b, ",\n    \"max_pages\": %" PRIu64 ",\n    \"max_write\": %u", max_pages,
		   c.max_write);
	buf_printf(b, ",\n    \"max_read\": %" PRIu64 ",\n    \"max_readahead\": %u",
		   c.max_read ? min_u64(c.max_read, max_pages * page) : max_pages * page,
		   c.max_readahead);
	buf_printf(b, ",\n    \"read_ahead_kb\": %" PRIu64, number_in(bdi, ""));
	buf_printf(b, ",\n    \"max_background\": %u,\n    \"congestion_threshold\": %u",
		   c.max_background, c.congestion_threshold);
	put_flag(b, "async_read", c.want & FUSE_CAP_ASYNC_READ);
	put_flag(b, "async_dio", c.want & FUSE_CAP_ASYNC_DIO);
	put_flag(b, "readdirplus", c.want & FUSE_CAP_READDIRPLUS);
	put_flag(b, "parallel_dirops", c.want & FUSE_CAP_PARALLEL_DIROPS);
	put_flag(b, "splice_read", c.want & FUSE_CAP_SPLICE_READ);
	put_flag(b, "splice_write", c.want & FUSE_CAP_SPLICE_WRITE);
	put_flag(b, "splice_move", c.want & FUSE_CAP_SPLICE_MOVE);
	put_flag(b, "passthrough", s->passthrough);
	put_flag(b, "io_uring", s->uring);
	buf_str(b, "\n  }");
}

static void put_process(struct buf *b, const struct stats *s)
{
	static const char status[] = "/proc/self/status";

	buf_printf(b,
		   ",\n  \"threads\": {\n    \"workers_max\": %u,\n    \"running\": %" PRIu64
		   "\n  }",
		   s->about.threads, number_in(status, "\nThreads:"));
	buf_printf(b,
		   ",\n  \"memory\": {\n    \"rss_bytes\": %" PRIu64
		   ",\n    \"anonymous_bytes\": %" PRIu64 ",\n    \"file_bytes\": %" PRIu64
		   "\n  }\n}\n",
		   number_in(status, "\nVmRSS:") << 10, number_in(status, "\nRssAnon:") << 10,
		   number_in(status, "\nRssFile:") << 10);
}

static void put_text(struct buf *b, struct stats *s)
{
	uint64_t n[N_CELLS], up = stats_clock() - s->start_ns;

	counters_read(s->counters, n);
	buf_str(b, "{\n  ");
	put_about(b, &s->about);
	buf_printf(b, ",\n  \"uptime_seconds\": %" PRIu64 ".%03u", up / 1000000000,
		   (unsigned)(up / 1000000 % 1000));
	buf_printf(b,
		   ",\n  \"open_files\": %" PRIu64 ",\n  \"passthrough_opens\": %" PRIu64
		   ",\n  \"served_bytes\": %" PRIu64,
		   n[AT_OPEN_FILES], n[AT_PASSED], n[AT_BYTES]);
	put_requests(b, n);
	put_errors(b, n);
	put_latency(b, n);
	put_engine(b, s->about.ckpt);
	put_negotiated(b, s);
	put_process(b, s);
}

/* ---- the file ---- */

struct stats_reader *stats_open(struct stats *s)
{
	struct stats_reader *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->stats = s;
	r->text = (struct buf)BUF_INIT(MAX_TEXT);
	put_text(&r->text, s); /* for who does not begin at the beginning */
	if (r->text.err) {
		buf_release(&r->text);
		free(r);
		return NULL;
	}
	(void)pthread_mutex_init(&r->lock, NULL);
	SCOPED_LOCK(&s->lock);
	r->next = s->first;
	if (r->next)
		r->next->prev = r;
	s->first = r;
	return r;
}

void stats_close(struct stats_reader *r)
{
	{
		SCOPED_LOCK(&r->stats->lock);
		if (r->next)
			r->next->prev = r->prev;
		*(r->prev ? &r->prev->next : &r->stats->first) = r->next;
	}
	(void)pthread_mutex_destroy(&r->lock);
	buf_release(&r->text);
	free(r);
}

int stats_read(struct stats_reader *r, uint64_t off, size_t len, char **ret, size_t *ret_len)
{
	struct buf fresh CLEANUP(buf_release) = BUF_INIT(MAX_TEXT), old;

	if (!off) /* before the lock: it takes others */
		put_text(&fresh, r->stats);
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
	memcpy(*ret, r->text.data + (*ret_len ? off : 0), *ret_len);
	return 0;
}
