/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of objects over connections that fail. Whatever a server does, the right bytes arrive, or
 * an error with a reason. */
#include "fault.h"
#include "remote_util.h"
#include "rng.h"
#include "suites.h"

#include "base/checked.h"
#include "base/clock.h"
#include "remote/store_internal.h"

#include <curl/curl.h>
#include <zlib.h>

enum { SIZE = 300000 };

static uint8_t object[SIZE];
static struct net *net;
static struct store *store;
static struct place_seen seen;

#define ETAG	"ETag: \"v1\"\r\n"
#define ANOTHER "ETag: \"v2\"\r\n"

/* Set by each test: what happens to GET number n (from 1). */
static serve_fn *_Atomic on_get; /* read by the server's threads */
static _Atomic unsigned gets;

static bool serve(struct served *r)
{
	if (!strcmp(r->method, "HEAD"))
		return answer(r, 200, ETAG, object, SIZE);
	r->number = atomic_fetch_add(&gets, 1) + 1;
	/* atomic_load, because gcc would use a plain load to call an _Atomic pointer. */
	return atomic_load(&on_get)(r);
}

static void start(const struct net_options *o)
{
	struct rng rng = rng_new();
	struct ckpt_err e = { 0 };
	char address[64];

	for (size_t i = 0; i < SIZE; i++)
		object[i] = (uint8_t)rng_u64(&rng);
	(void)snprintf(address, sizeof(address), "http://127.0.0.1:%u/dir/", server_start(serve));
	ck_assert_msg(!net_new(o, &net, &e), "%s", e.msg);
	ck_assert_msg(!store_open(net, address, NULL, &store, &e), "%s", e.msg);
	ck_assert_msg(store_look(store, "a b", &seen, &e) == 1, "%s", e.msg);
	ck_assert_int_eq(seen.kind, PLACE_FILE);
	ck_assert_uint_eq(seen.size, SIZE);
}

static void stop(void)
{
	store_free(store);
	net_free(net);
}

/* ---- what is cured by trying again ---- */

static bool good(struct served *r)
{
	return answer_object(r, ETAG, object, SIZE);
}

/* Sends only the first `bytes` of the answer that was asked for. */
static bool partly(const struct served *r, size_t bytes)
{
	char head[512];
	int n = snprintf(head, sizeof(head),
			 "HTTP/1.1 206 x\r\n" ETAG
			 "Content-Length: %zu\r\nContent-Range: bytes %zu-%zu/%d\r\n\r\n",
			 (size_t)(r->last - r->first + 1), (size_t)r->first, (size_t)r->last, SIZE);

	send_all(r->fd, head, (size_t)n);
	send_all(r->fd, object + r->first, bytes);
	return false;
}

static bool closed_at_once(struct served *r)
{
	return r->number < 3 ? false : good(r);
}

static bool reset(struct served *r)
{
	const struct linger l = { 1, 0 };

	if (r->number > 2)
		return good(r);
	(void)setsockopt(r->fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	return partly(r, 10);
}

static bool cut_short(struct served *r)
{
	uint64_t n = r->last - r->first + 1;

	return n > SIZE / 16 ? partly(r, n / 2) : good(r);
}

static bool busy(struct served *r)
{
	return r->number < 3 ? answer(r, 503, "", "<Error><Code>SlowDown</Code></Error>", 36)
			     : good(r);
}

static bool throttled(struct served *r)
{
	return r->number < 3 ? answer(r, 429, "", "", 0) : good(r);
}

static bool broken_gateway(struct served *r)
{
	return r->number < 3 ? answer(r, 502, "", "<html>", 6) : good(r);
}

static bool half_a_head(struct served *r)
{
	if (r->number > 2)
		return good(r);
	send_all(r->fd, "HTTP/1.1 206 x\r\nETag: \"v1\"\r\nContent-Ran", 39);
	return false;
}

/* A body without a length, whose connection ends too early. */
static bool without_a_length(struct served *r)
{
	size_t part = (size_t)(r->last + 1 - r->first) / 2;
	char head[512];
	int n;

	if (r->number > 2)
		return good(r);
	n = snprintf(head, sizeof(head),
		     "HTTP/1.1 206 x\r\n" ETAG "Content-Range: bytes %zu-%zu/%d\r\n\r\n",
		     (size_t)r->first, (size_t)r->last, SIZE);
	send_all(r->fd, head, (size_t)n);
	send_all(r->fd, object + r->first, part < 100 ? part : 100);
	return false;
}

/* These need no cure. */
static bool without_a_total(struct served *r)
{
	char fields[256];

	(void)snprintf(fields, sizeof(fields), ETAG "Content-Range: bytes %zu-%zu/*\r\n",
		       (size_t)r->first, (size_t)r->last);
	return answer(r, 206, fields, object + r->first, r->last - r->first + 1);
}

static bool not_encoded(struct served *r)
{
	return answer_object(r, ETAG "Content-Encoding: identity\r\n", object, SIZE);
}

static serve_fn *const cured[] = { good,	closed_at_once, reset,
				   cut_short,	busy,		throttled,
				   half_a_head, broken_gateway, without_a_length,
				   not_encoded, without_a_total };

START_LOOP_TEST(what_fails_for_a_moment_is_tried_again, ARRAY_LEN(cured))
{
	struct rng rng = rng_new();
	struct net_pace pace;

	on_get = cured[_i];
	start(&(struct net_options){ .retry_ms = 20000 });
	for (int k = 0; k < 4; k++) {
		uint64_t off = rng_below(&rng, SIZE), len = 1 + rng_below(&rng, SIZE - off);
		struct reader r;

		atomic_store(&gets, 0);
		ck_assert_msg(!read_range(&r, store, "a b", &seen, off, len), "%s", r.e.msg);
		ck_assert_uint_eq(r.n, len);
		ck_assert_mem_eq(r.p, object + off, len);
		reader_release(&r);
	}
	net_pace(net, &pace);
	ck_assert(pace.retries > 0 || cured[_i] == good || cured[_i] == cut_short ||
		  cured[_i] == not_encoded || cured[_i] == without_a_total);
	ck_assert_uint_ge(pace.requests, 4);
	stop();
}
END_TEST

static _Atomic uint64_t first_seen[8];

static bool cut_and_note(struct served *r)
{
	if (r->number <= 8)
		atomic_store(&first_seen[r->number - 1], r->first);
	return r->number == 1 ? partly(r, 5000) : good(r);
}

START_TEST(what_came_is_kept_and_only_the_rest_asked_for)
{
	struct reader r;

	on_get = cut_and_note;
	start(NULL);
	ck_assert_msg(!read_range(&r, store, "a b", &seen, 1000, 100000), "%s", r.e.msg);
	ck_assert_mem_eq(r.p, object + 1000, 100000);
	ck_assert_uint_eq(atomic_load(&gets), 2);
	ck_assert_uint_eq(atomic_load(&first_seen[0]), 1000);
	ck_assert_uint_eq(atomic_load(&first_seen[1]), 6000);
	reader_release(&r);
	stop();
}
END_TEST

/* The body is in chunks, behind which are more fields (RFC 9112, 7.1.2). */
static bool with_trailers(struct served *r)
{
	size_t n = r->last - r->first + 1;
	char head[512];
	int len = snprintf(head, sizeof(head),
			   "HTTP/1.1 206 x\r\n" ETAG "Content-Range: bytes %zu-%zu/%d\r\n"
			   "Transfer-Encoding: chunked\r\nTrailer: Server-Timing\r\n\r\n%zx\r\n",
			   (size_t)r->first, (size_t)r->last, SIZE, n);

	send_all(r->fd, head, (size_t)len);
	send_all(r->fd, object + r->first, n);
	send_all(r->fd, "\r\n0\r\nServer-Timing: a;dur=1\r\n\r\n", 31);
	return true;
}

START_TEST(fields_behind_a_body_are_no_other_head)
{
	struct reader r;

	on_get = with_trailers;
	start(&(struct net_options){ .retry_ms = 500 });
	ck_assert_msg(!read_range(&r, store, "a b", &seen, 5, 100000), "%s", r.e.msg);
	ck_assert_uint_eq(r.n, 100000);
	ck_assert_mem_eq(r.p, object + 5, 100000);
	ck_assert_uint_eq(atomic_load(&gets), 1);
	reader_release(&r);
	stop();
}
END_TEST

/* ---- what is not ---- */

static bool another_version(struct served *r)
{
	return answer_object(r, ANOTHER, object, SIZE);
}

static bool another_in_the_middle(struct served *r)
{
	return r->number == 1 ? partly(r, 100) : another_version(r);
}

static bool no_etag(struct served *r)
{
	return answer_object(r, "", object, SIZE);
}

static bool precondition(struct served *r)
{
	return answer(r, 412, "", "", 0);
}

static bool removed(struct served *r)
{
	return answer(r, 404, "", "", 0);
}

static bool refused(struct served *r)
{
	return answer(r, 403, "", "secret things", 13);
}

static bool whole(struct served *r)
{
	return answer(r, 200, ETAG, object, SIZE);
}

static bool another_range(struct served *r)
{
	r->first++;
	r->last++;
	return good(r);
}

static bool another_size(struct served *r)
{
	return answer_object(r, ETAG, object, SIZE - 1);
}

static bool range_without_end(struct served *r)
{
	return answer(r, 206, ETAG "Content-Range: bytes 10-99999999999999999999999/5\r\n", object,
		      r->last - r->first + 1);
}

static bool no_range(struct served *r)
{
	return answer(r, 206, ETAG, object + r->first, r->last - r->first + 1);
}

static bool two_ranges(struct served *r)
{
	return answer_object(r, ETAG "Content-Range: bytes 0-1/2\r\n", object, SIZE);
}

static bool encoded(struct served *r)
{
	return answer_object(r, ETAG "Content-Encoding: gzip\r\n", object, SIZE);
}

static bool encoded_twice(struct served *r)
{
	return answer_object(r, ETAG "Content-Encoding: gzip\r\nContent-Encoding: br\r\n", object,
			     SIZE);
}

/* The right bytes, if they are decompressed. */
static bool packed(struct served *r)
{
	size_t n = r->last - r->first + 1;
	uint8_t out[4096];
	z_stream z = { .next_in = object + r->first,
		       .avail_in = (unsigned)n,
		       .next_out = out,
		       .avail_out = sizeof(out) };
	char head[512];
	int len = snprintf(head, sizeof(head),
			   "HTTP/1.1 206 x\r\n" ETAG "Content-Range: bytes %zu-%zu/%d\r\n"
			   "Transfer-Encoding: gzip\r\nConnection: close\r\n\r\n",
			   (size_t)r->first, (size_t)r->last, SIZE);

	REQUIRE(deflateInit2(&z, 1, Z_DEFLATED, 31, 8, 0) == Z_OK);
	REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
	send_all(r->fd, head, (size_t)len);
	send_all(r->fd, out, z.total_out);
	(void)deflateEnd(&z);
	return false;
}

/* As radosgw does with its SQLite store: the right head and the wrong body. */
static bool more_than_it_says(struct served *r)
{
	char head[512];
	int n = snprintf(head, sizeof(head),
			 "HTTP/1.1 206 x\r\n" ETAG "Transfer-Encoding: chunked\r\n"
			 "Content-Range: bytes %zu-%zu/%d\r\n\r\n10000\r\n",
			 (size_t)r->first, (size_t)r->last, SIZE);

	send_all(r->fd, head, (size_t)n);
	send_all(r->fd, object, 0x10000);
	send_all(r->fd, "\r\n0\r\n\r\n", 7);
	return true;
}

static bool endless_fields(struct served *r)
{
	send_all(r->fd, "HTTP/1.1 206 x\r\n", 16);
	for (int i = 0; i < 5000; i++)
		send_all(r->fd, "X-Much: 0123456789012345678901234567890123456789\r\n", 50);
	(void)partly(r, 10);
	return false;
}

static bool endless_error(struct served *r)
{
	send_all(r->fd, "HTTP/1.1 400 x\r\nContent-Length: 1000000000\r\n\r\n", 46);
	for (int i = 0; i < 100; i++)
		send_all(r->fd, object, SIZE);
	return false;
}

static bool in_a_circle(struct served *r)
{
	return answer(r, 302, "Location: /elsewhere\r\n", "", 0);
}

static bool to_a_file(struct served *r)
{
	return answer(r, 302, "Location: file:///etc/passwd\r\n", "", 0);
}

static bool to_nowhere(struct served *r)
{
	return answer(r, 302, "", "", 0);
}

static bool gone(struct served *r)
{
	return answer(r, 410, "", "", 0);
}

static bool shorter(struct served *r)
{
	return answer(r, 416, "", "", 0);
}

static bool another_length(struct served *r)
{
	char fields[256];

	(void)snprintf(fields, sizeof(fields), ETAG "Content-Range: bytes %zu-%zu/%d\r\n",
		       (size_t)r->first, (size_t)r->last, SIZE);
	return answer(r, 206, fields, object + r->first, r->last - r->first);
}

static bool longer_range(struct served *r)
{
	r->last++;
	return good(r);
}

static bool odd_status(struct served *r)
{
	return answer(r, 409, "", "", 0);
}

static bool part_as_whole(struct served *r)
{
	return answer(r, 200, ETAG, object + r->first, r->last - r->first + 1);
}

static bool no_content(struct served *r)
{
	return answer(r, 204, ETAG, "", 0);
}

static const struct {
	serve_fn *serve;
	int rc;
	const char *says;
} hopeless[] = {
	{ gone, -ESTALE, "was removed after it was opened" },
	{ shorter, -ESTALE, "it is shorter than when it was opened" },
	{ another_length, -EIO, "answered with 999 bytes in place of 1000" },
	{ longer_range, -EIO, "with bytes 2000-3000 in place of 2000-2999" },
	{ odd_status, -EIO, "the server answered 409" },
	{ part_as_whole, -EIO, "does not support ranges" },
	{ no_content, -EIO, "answered 204 to a request for a range" },
	{ another_version, -ESTALE, "was changed after it was opened" },
	{ another_in_the_middle, -ESTALE, "was changed after it was opened" },
	{ no_etag, -ESTALE, "was changed" },
	{ precondition, -ESTALE, "was changed after it was opened" },
	{ removed, -ESTALE, "was removed after it was opened" },
	{ refused, -EACCES, "the server answered 403" },
	{ whole, -EIO, "does not support ranges" },
	{ another_range, -EIO, "in place of" },
	{ another_size, -ESTALE, "was changed: it has 299999 bytes" },
	{ range_without_end, -EIO, "Content-Range" },
	{ no_range, -EIO, "without a valid Content-Range" },
	{ two_ranges, -EIO, "without a valid Content-Range" },
	{ encoded, -EIO, "Content-Encoding gzip" },
	{ encoded_twice, -EIO, "several fields Content-Encoding" },
	{ packed, -EIO, "Transfer-Encoding gzip" },
	{ more_than_it_says, -EIO, "more than the 1000 bytes" },
	{ endless_fields, -EIO, "header fields" },
	{ endless_error, -EIO, "the server answered 400" },
	{ in_a_circle, -EIO, "redirects without end" },
	{ to_a_file, -EIO, "which is refused" },
	{ to_nowhere, -EIO, "does not say where" },
};

START_LOOP_TEST(what_is_wrong_is_an_error_at_once, ARRAY_LEN(hopeless))
{
	struct reader r;

	on_get = hopeless[_i].serve;
	start(NULL);
	ck_assert_int_eq(read_range(&r, store, "a b", &seen, 2000, 1000), hopeless[_i].rc);
	ck_assert_msg(strstr(r.e.msg, hopeless[_i].says) != NULL, "%s", r.e.msg);
	ck_assert_msg(strstr(r.e.msg, "/dir/a b'") != NULL, "%s", r.e.msg);
	ck_assert_ptr_null(strstr(r.e.msg, "secret"));
	/* Bytes that were passed on before the error was noticed are right, unless the server lies
	 * about what it sends. */
	if (hopeless[_i].serve != more_than_it_says)
		ck_assert(!r.n || !memcmp(r.p, object + 2000, r.n));
	reader_release(&r);
	stop();
}
END_TEST

/* ---- time ---- */

static bool silent(struct served *r)
{
	char c;

	while (recv(r->fd, &c, 1, 0) > 0)
		;
	return false;
}

static bool silent_in_the_middle(struct served *r)
{
	(void)partly(r, 500);
	return silent(r);
}

static serve_fn *const mute[] = { silent, silent_in_the_middle };

START_LOOP_TEST(a_server_that_says_nothing_ends_by_time, ARRAY_LEN(mute))
{
	struct reader r;
	uint64_t before;

	on_get = mute[_i];
	start(&(struct net_options){ .stall_ms = 100, .retry_ms = 400 });
	before = clock_ns();
	/* As long as each answer brings some bytes, it goes on. */
	ck_assert_int_eq(read_range(&r, store, "a b", &seen, 0, 1200), _i ? 0 : -ETIMEDOUT);
	if (!_i)
		ck_assert_msg(strstr(r.e.msg, "no byte came") != NULL, "%s", r.e.msg);
	else
		ck_assert_mem_eq(r.p, object, 1200);
	ck_assert_uint_lt(clock_ns() - before, 3 * CLOCK_SECOND);
	reader_release(&r);
	stop();
}
END_TEST

static bool always_busy(struct served *r)
{
	return answer(r, 503, "", "", 0);
}

START_TEST(retries_end_and_say_how_many_there_were)
{
	struct reader r;
	struct net_pace pace;

	on_get = always_busy;
	start(&(struct net_options){ .retry_ms = 300 });
	ck_assert_int_eq(read_range(&r, store, "a b", &seen, 0, 1000), -EIO);
	ck_assert_msg(strstr(r.e.msg, "the server answered 503; tried ") != NULL, "%s", r.e.msg);
	net_pace(net, &pace);
	ck_assert_uint_gt(pace.retries, 0);
	ck_assert_uint_lt(pace.at_once, 8); /* halved */
	reader_release(&r);
	stop();
}
END_TEST

static bool first_is_silent(struct served *r)
{
	return r->number == 1 ? silent(r) : good(r);
}

START_TEST(who_waits_is_helped_by_a_second_request)
{
	struct reader r;
	struct net_pace pace;
	uint64_t before;

	on_get = first_is_silent;
	start(NULL);
	before = clock_ns();
	ck_assert_msg(!read_range(&r, store, "a b", &seen, 7, 100000), "%s", r.e.msg);
	ck_assert_mem_eq(r.p, object + 7, 100000);
	ck_assert_uint_ge(clock_ns() - before, CLOCK_SECOND); /* and not 10 s */
	ck_assert_uint_lt(clock_ns() - before, 8 * CLOCK_SECOND);
	net_pace(net, &pace);
	ck_assert_uint_eq(pace.hedges, 1);
	reader_release(&r);
	stop();
}
END_TEST

enum { BATCH = 1000, BATCHES = 10 };

/* The second answer goes on only when what it has sent has arrived, so the network's thread has had
 * its turn in between: long enough for a third request to be sent and answered. */
static bool second_takes_its_time(struct served *r)
{
	struct net_pace pace = { 0 };

	if (r->number != 2)
		return first_is_silent(r);
	(void)partly(r, BATCH);
	for (size_t at = BATCH; at < BATCH * BATCHES; at += BATCH) {
		for (net_pace(net, &pace); pace.bytes < at; net_pace(net, &pace))
			(void)usleep(1000);
		send_all(r->fd, object + r->first + at, BATCH);
	}
	return false;
}

START_TEST(a_second_request_that_wins_is_the_only_one)
{
	struct reader r;
	struct net_pace pace;

	on_get = second_takes_its_time;
	start(NULL);
	ck_assert_msg(!read_range(&r, store, "a b", &seen, 7, BATCH * BATCHES), "%s", r.e.msg);
	ck_assert_uint_eq(r.n, BATCH * BATCHES);
	ck_assert_mem_eq(r.p, object + 7, BATCH * BATCHES);
	ck_assert_uint_eq(atomic_load(&gets), 2);
	net_pace(net, &pace);
	ck_assert_uint_eq(pace.requests, 3); /* with that of start() */
	ck_assert_uint_eq(pace.hedges, 1);
	reader_release(&r);
	stop();
}
END_TEST

/* The second request is sent after a second, before the first one is given up. */
START_TEST(second_requests_do_not_put_off_the_end)
{
	struct reader r;
	struct net_pace pace;

	on_get = silent;
	start(&(struct net_options){ .stall_ms = 1500, .retry_ms = 1500 });
	ck_assert_int_eq(read_range(&r, store, "a b", &seen, 7, 1000), -ETIMEDOUT);
	ck_assert_msg(strstr(r.e.msg, "/dir/a b': no byte came for ") != NULL, "%s", r.e.msg);
	net_pace(net, &pace);
	ck_assert_uint_eq(pace.hedges, 1);
	ck_assert_uint_eq(atomic_load(&gets), 2);
	reader_release(&r);
	stop();
}
END_TEST

START_TEST(a_get_can_be_cancelled_also_when_it_is_over)
{
	struct reader r[20];

	on_get = silent;
	start(NULL);
	for (size_t i = 0; i < ARRAY_LEN(r); i++)
		reader_start(&r[i], store, "a b", &seen, i * 100, 100, i % 2);
	for (size_t i = 0; i < ARRAY_LEN(r); i++)
		get_cancel(net, r[i].get);
	for (size_t i = 0; i < ARRAY_LEN(r); i++)
		ck_assert_int_eq(reader_wait(&r[i]), -ECANCELED);
	on_get = good;
	for (size_t i = 0; i < ARRAY_LEN(r); i++) {
		get_cancel(net, r[i].get);
		reader_release(&r[i]);
	}
	ck_assert_int_eq(read_range(&r[0], store, "a b", &seen, 0, SIZE), 0);
	ck_assert_mem_eq(r[0].p, object, SIZE);
	reader_release(&r[0]);
	stop();
}
END_TEST

START_TEST(a_sink_that_has_had_enough_ends_its_get)
{
	struct reader r;

	on_get = good;
	start(NULL);
	reader_start(&r, store, "a b", &seen, 0, SIZE, true);
	r.cap = 0; /* this may be too late; then the read is complete */
	ck_assert(reader_wait(&r) == -ECANCELED || (!r.rc && r.n == SIZE));
	reader_release(&r);
	stop();
}
END_TEST

START_TEST(the_end_of_the_network_cancels_what_is_left)
{
	struct reader r[5];

	on_get = silent;
	start(NULL);
	for (size_t i = 0; i < ARRAY_LEN(r); i++)
		reader_start(&r[i], store, "a b", &seen, i * 100, 100, false);
	net_free(net);
	for (size_t i = 0; i < ARRAY_LEN(r); i++) {
		ck_assert_int_eq(reader_wait(&r[i]), -ECANCELED);
		reader_release(&r[i]);
	}
	store_free(store);
}
END_TEST

START_TEST(nobody_listens_is_said_soon)
{
	struct ckpt_err e = { 0 };
	struct place_seen s;
	uint64_t before = clock_ns();

	ck_assert_int_eq(net_new(NULL, &net, &e), 0);
	ck_assert_int_eq(store_open(net, "http://127.0.0.1:1/x", NULL, &store, &e), 0);
	ck_assert_int_lt(store_look(store, "a", &s, &e), 0);
	ck_assert_msg(strstr(e.msg, "'http://127.0.0.1:1/x/a': ") == e.msg, "%s", e.msg);
	ck_assert_uint_lt(clock_ns() - before, 20 * CLOCK_SECOND);
	stop();
}
END_TEST

START_TEST(many_at_once_are_all_right)
{
	enum { N = 200 };
	static struct reader r[N];
	struct rng rng = rng_new();
	uint64_t off[N], len[N];
	struct net_pace pace;

	on_get = good;
	start(NULL);
	for (size_t i = 0; i < N; i++) {
		off[i] = rng_below(&rng, SIZE);
		len[i] = 1 + rng_below(&rng, SIZE - off[i]);
		reader_start(&r[i], store, "a b", &seen, off[i], len[i], i % 5 == 0);
	}
	for (size_t i = 0; i < N; i++) {
		ck_assert_msg(!reader_wait(&r[i]), "%s", r[i].e.msg);
		REQUIRE(r[i].n == len[i] && !memcmp(r[i].p, object + off[i], len[i]));
		reader_release(&r[i]);
	}
	net_pace(net, &pace);
	ck_assert_uint_ge(pace.requests, N);
	ck_assert_uint_gt(pace.at_once, 8);
	ck_assert_uint_gt(pace.latency_us, 0);
	stop();
}
END_TEST

/* ---- what cannot be asked for ---- */

START_TEST(bytes_outside_the_object_are_not_asked_for)
{
	static const struct {
		const char *path;
		uint64_t off, len;
		int id_len; /* length of the version's id; -1: of the one that was seen */
		const char *says;
	} bad[] = {
		{ "a b", 0, 0, -1, "'a b': bytes 0 to 0 of 300000" },
		{ "a b", 0, SIZE + 1, -1, "'a b': bytes 0 to 300001 of 300000" },
		{ "a b", SIZE, 1, -1, "'a b': bytes 300000 to 300001 of 300000" },
		{ "a b", UINT64_MAX, 2, -1, "of 300000" },
		{ "a b", 0, 10, 1, "'a b': bytes 0 to 10 of 300000" },
		{ "a b", 0, 10, 0, "'a b': bytes 0 to 10 of 300000" },
		{ "../x", 0, 10, -1, "the name '../x' is not supported" },
		{ "", 0, 10, -1, "the name '' is not supported" },
	};
	const struct get_sink sink = { NULL, reader_bytes, reader_done };
	struct ckpt_err e = { 0 };
	struct get *get = NULL;

	on_get = good;
	start(NULL);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct place_seen s = seen;

		if (bad[i].id_len >= 0)
			s.id.len = (uint8_t)bad[i].id_len;
		ck_assert_int_eq(store_get(store, bad[i].path, &s, bad[i].off, bad[i].len, true,
					   &sink, &get, &e),
				 -EINVAL);
		ck_assert_msg(strstr(e.msg, bad[i].says) != NULL, "%s", e.msg);
	}
	ck_assert_uint_eq(atomic_load(&gets), 0);
	ck_assert_int_eq(store_list(store, ".", NULL, NULL, &e), -ENOTSUP);
	ck_assert_ptr_null(store_uploads(store));
	stop();
}
END_TEST

/* ---- files of a web server: looking ---- */

#define FIRST "Content-Range: bytes 0-0/50\r\n"
#define NO_LENGTH \
	{ \
		0, NULL, "HTTP/1.1 200 x\r\nETag: \"e\"\r\nConnection: close\r\n\r\n" \
	}

static const struct {
	const char *address, *path; /* address: behind the server's name */
	struct reply replies[2];
	int rc;
	enum place_kind kind;
	uint64_t size;
	const char *says; /* or the requests */
} looks[] = {
	{ "/d", "a", { { 200, ETAG, "12345" } }, 1, PLACE_FILE, 5, "HEAD /d/a\n" },
	{ "/d//", "a", { { 200, ETAG, "12345" } }, 1, PLACE_FILE, 5, "HEAD /d/a\n" },
	{ "", "a", { { 200, ETAG, "12345" } }, 1, PLACE_FILE, 5, "HEAD /a\n" },
	{ "/d", "a b", { { 404, NULL, NULL } }, 0, PLACE_FILE, 0, "HEAD /d/a%20b\n" },
	{ "/d", "a", { { 410, NULL, NULL } }, 0, PLACE_FILE, 0, "HEAD /d/a\n" },
	/* HEAD is refused, or says too little. */
	{ "/d",
	  "a",
	  { { 403, NULL, NULL }, { 206, ETAG FIRST, "1" } },
	  1,
	  PLACE_FILE,
	  50,
	  "HEAD /d/a\nGET /d/a\n" },
	{ "/d", "a", { { 405, NULL, NULL }, { 206, ETAG FIRST, "1" } }, 1, PLACE_FILE, 50, "" },
	{ "/d", "a", { NO_LENGTH, { 206, ETAG FIRST, "1" } }, 1, PLACE_FILE, 50, "" },
	{ "/d", "a", { { 403, NULL, NULL }, { 404, NULL, NULL } }, 0, PLACE_FILE, 0, "" },
	{ "/d", "a", { { 403, NULL, NULL } }, -EACCES, PLACE_FILE, 0, "answered 403" },
	{ "/d", "a", { { 401, NULL, NULL } }, -EACCES, PLACE_FILE, 0, "answered 401" },
	{ "/d",
	  "a",
	  { { 405, NULL, NULL }, { 200, ETAG, "1" } },
	  -ENOTSUP,
	  PLACE_FILE,
	  0,
	  "does not support ranges (it answered 200)" },
	{ "/d", "a", { { 405, NULL, NULL }, { 206, ETAG, "1" } }, -ENOTSUP, PLACE_FILE, 0, "206" },
	{ "/d",
	  "a",
	  { { 405, NULL, NULL }, { 206, ETAG "Content-Range: bytes 0-0/*\r\n", "1" } },
	  -ENOTSUP,
	  PLACE_FILE,
	  0,
	  "does not support ranges" },
	{ "/d",
	  "a",
	  { { 405, NULL, NULL }, { 206, ETAG "Content-Range: bytes 1-1/5\r\n", "1" } },
	  -ENOTSUP,
	  PLACE_FILE,
	  0,
	  "does not support ranges" },
	{ "/d",
	  "a",
	  { { 405, NULL, NULL }, { 206, FIRST, "1" } },
	  -ENOTSUP,
	  PLACE_FILE,
	  0,
	  "neither a strong ETag nor Last-Modified" },
	{ "/d", "a", { { 200, "ETag: W/\"a\"\r\n", "1" } }, -ENOTSUP, PLACE_FILE, 0, "neither" },
	{ "/d",
	  "a",
	  { { 200, "Last-Modified: Fri, 24 May 2013 00:00:00 GMT\r\n", "12" } },
	  1,
	  PLACE_FILE,
	  2,
	  "" },
	/* Redirects. */
	{ "/d",
	  "a",
	  { { 302, "Location: /x/\r\n", NULL }, { 200, ETAG, "123" } },
	  1,
	  PLACE_DIR,
	  0,
	  "HEAD /d/a\nHEAD /x/\n" },
	{ "/d",
	  "a",
	  { { 302, "Location: /x/?q=/\r\n", NULL }, { 200, ETAG, "1" } },
	  1,
	  PLACE_DIR,
	  0,
	  "HEAD /x/?q=/\n" },
	{ "/d",
	  "a",
	  { { 301, "Location: /x\r\n", NULL }, { 200, ETAG, "123" } },
	  1,
	  PLACE_FILE,
	  3,
	  "" },
	{ "/d",
	  "a",
	  { { 303, "Location: x?q=/\r\n", NULL }, { 200, ETAG, "1" } },
	  1,
	  PLACE_FILE,
	  1,
	  "HEAD /d/x?q=/\n" },
	{ "/d",
	  "a",
	  { { 307, "Location: /x\r\n", NULL }, { 404, NULL, NULL } },
	  0,
	  PLACE_FILE,
	  0,
	  "" },
	{ "/d", "a", { { 308, NULL, NULL } }, -EIO, PLACE_FILE, 0, "does not say where to" },
	/* The address itself: a web server cannot be asked whether it is a directory. */
	{ "/d/", ".", { { 404, NULL, NULL } }, 1, PLACE_DIR, 0, "" },
	{ "/d", ".", { { 404, NULL, NULL } }, 1, PLACE_DIR, 0, "HEAD /d\n" },
	{ "/d", ".", { { 403, NULL, NULL } }, 1, PLACE_DIR, 0, "HEAD /d\nGET /d\n" },
	{ "/d", ".", { { 405, NULL, NULL } }, 1, PLACE_DIR, 0, "" },
	{ "/d", ".", { { 200, ETAG, "12345" } }, 1, PLACE_FILE, 5, "" },
	{ "/d", ".", { NO_LENGTH, { 200, ETAG, "1" } }, -ENOTSUP, PLACE_FILE, 0, "answered 200" },
};

START_LOOP_TEST(a_web_server_is_asked_in_the_way_that_it_answers, ARRAY_LEN(looks))
{
	bool two = looks[_i].replies[1].status;
	struct ckpt_err e = { 0 };
	struct place_seen s = { 0 };
	char address[64];
	int rc;

	script_set(looks[_i].replies, two ? 2 : 1);
	(void)snprintf(address, sizeof(address), "http://127.0.0.1:%u%s",
		       server_start(serve_script), looks[_i].address);
	ck_assert_msg(!net_new(&(struct net_options){ .retry_ms = 300 }, &net, &e), "%s", e.msg);
	ck_assert_msg(!store_open(net, address, NULL, &store, &e), "%s", e.msg);
	rc = store_look(store, looks[_i].path, &s, &e);
	ck_assert_msg(rc == looks[_i].rc, "%d: %s\n%s", rc, e.msg, script.log);
	if (rc == 1) {
		ck_assert_int_eq(s.kind, looks[_i].kind);
		ck_assert_uint_eq(s.size, looks[_i].size);
	}
	ck_assert_msg(strstr(rc < 0 ? e.msg : script.log, looks[_i].says) != NULL, "%s\n%s", e.msg,
		      script.log);
	stop();
}
END_TEST

START_TEST(where_nobody_answers_there_is_no_directory)
{
	struct ckpt_err e = { 0 };
	struct place_seen s;

	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 100 }, &net, &e), 0);
	ck_assert_int_eq(store_open(net, "http://127.0.0.1:1/x", NULL, &store, &e), 0);
	ck_assert_int_eq(store_look(store, ".", &s, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "'http://127.0.0.1:1/x': ") == e.msg, "%s", e.msg);
	stop();
}
END_TEST

START_TEST(a_signed_address_that_was_replaced_is_asked_for_again)
{
	static const unsigned refusals[] = { 401, 403, 410 };
	struct http_message m = { .url = BUF_INIT(4096) };
	static const struct object_request plain;
	struct ckpt_err e = { 0 };
	struct http_answer a;
	struct buf b;

	ck_assert_int_eq(net_new(NULL, &net, &e), 0);
	ck_assert_int_eq(store_open(net, "http://h/d", NULL, &store, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		a = answer_of(refusals[i], "", "", "http://h/d/a", &b);
		ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_TAKE);
		buf_release(&b);
	}
	a = answer_of(302, "Location: http://o/a?s=1\r\n", "", "http://h/d/a", &b);
	ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_NOW);
	buf_release(&b);
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		a = answer_of(refusals[i], "", "", "http://o/a?s=0", &b);
		ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_AGAIN);
		ck_assert_msg(strstr(e.msg, "where it had redirected to") != NULL, "%s", e.msg);
		/* If it is refused for another reason, nothing has expired. */
		a.url = "http://o/a?s=1";
		ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_TAKE);
		a.url = "http://h/d/a";
		ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_TAKE);
		buf_release(&b);
	}
	ck_assert_int_eq(store->ops->make(store, "a", &plain, &m, &e), 0);
	ck_assert_str_eq(m.url.data, "http://o/a?s=1");
	buf_release(&m.url);
	stop();
}
END_TEST

/* If there is no ETag, the time must not have changed. */
static bool by_time(struct served *r)
{
	static const char fields[] = "Last-Modified: Fri, 24 May 2013 00:00:00 GMT\r\n";

	if (!strcmp(r->method, "HEAD"))
		return answer(r, 200, fields, object, SIZE);
	REQUIRE(!request_field(r, "If-Match"));
	REQUIRE(request_field(r, "If-Unmodified-Since"));
	REQUIRE(!strcmp(request_field(r, "If-Unmodified-Since"), "Fri, 24 May 2013 00:00:00 GMT"));
	return atomic_fetch_add(&gets, 1) ? answer_object(r, "Last-Modified: Sat\r\n", object, SIZE)
					  : answer_object(r, fields, object, SIZE);
}

START_TEST(a_time_identifies_what_has_no_etag)
{
	struct ckpt_err e = { 0 };
	char address[64];
	struct reader r;

	(void)snprintf(address, sizeof(address), "http://127.0.0.1:%u/d", server_start(by_time));
	ck_assert_msg(!net_new(NULL, &net, &e), "%s", e.msg);
	ck_assert_msg(!store_open(net, address, NULL, &store, &e), "%s", e.msg);
	ck_assert_msg(store_look(store, "a", &seen, &e) == 1, "%s", e.msg);
	ck_assert_uint_eq(seen.mtime_ns, 1369353600ull * 1000000000);
	ck_assert_msg(!read_range(&r, store, "a", &seen, 5, 10), "%s", r.e.msg);
	ck_assert_mem_eq(r.p, object + 5, 10);
	reader_release(&r);
	ck_assert_int_eq(read_range(&r, store, "a", &seen, 5, 10), -ESTALE);
	reader_release(&r);
	stop();
}
END_TEST

/* ---- no memory ---- */

/* Redirects, and a look that takes two requests. */
static bool serve_signed(struct served *r)
{
	if (!strcmp(r->target, "/d/a"))
		return answer(r, 302, "Location: /signed?s=1\r\n", "", 0);
	if (!strcmp(r->method, "HEAD"))
		return answer(r, 403, "", "", 0);
	return answer_object(r, ETAG, object, SIZE);
}

static int do_everything(const char *address, struct ckpt_err *e)
{
	struct reader r;
	int rc;

	net = NULL;
	store = NULL;
	rc = net_new(&(struct net_options){ .retry_ms = 2000 }, &net, e);
	if (!rc)
		rc = store_open(net, address, NULL, &store, e);
	if (!rc && (rc = store_look(store, "a", &seen, e)) == 1)
		rc = seen.size == SIZE ? 0 : err_set(e, EPROTO, "another size");
	if (!rc) {
		rc = read_range_of(&r, store, "a", &seen, 3, 4000, e);
		if (!rc && (r.n != 4000 || memcmp(r.p, object + 3, 4000) != 0))
			rc = err_set(e, EPROTO, "other bytes");
	}
	store_free(store);
	net_free(net);
	return rc;
}

static const int fault_kinds[] = { FAULT_ALLOC, FAULT_THREAD };

START_LOOP_TEST(whatever_fails_is_a_clean_error_and_leaves_nothing, ARRAY_LEN(fault_kinds))
{
	struct ckpt_err e = { 0 };
	char address[64];
	unsigned failed = 0;

	for (size_t i = 0; i < SIZE; i++)
		object[i] = (uint8_t)(i * 7);
	(void)snprintf(address, sizeof(address), "http://127.0.0.1:%u/d",
		       server_start(serve_signed));
	ck_assert_msg(!do_everything(address, &e), "%s", e.msg);
	FAULT_LOOP(fault_kinds[_i])
	{
		int64_t live = fault_live();
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = do_everything(address, &e);
		fault_off();
		failed += rc != 0;
		ck_assert_msg(!rc || (rc == -e.code && *e.msg && rc != -EPROTO), "%d: %s, %s", rc,
			      e.msg, fault_name());
		ck_assert_msg(fault_live() == live, "%s leaves %lld bytes: %s", fault_name(),
			      (long long)(fault_live() - live), e.msg);
	}
	ck_assert_uint_gt(failed, 0);
}
END_TEST

SUITE(net, .seconds = 60)
