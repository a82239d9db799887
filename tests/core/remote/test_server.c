/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server of ckptfs-fetch on a thread of this process, with stores of its own. What happens if
 * memory or descriptors are short at a certain moment? Everything else is in test_wire.c and
 * source/test_remote.c.
 */
#include "remote/server_internal.h"

#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "remote/depot.h"
#include "remote/server.h"
#include "remote/store.h"
#include "remote_util.h"
#include "suites.h"
#include "wire_util.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

static int sock, dir;
static char path[4096], text[512];

static void *serve(void *arg)
{
	int mine = (int)(intptr_t)arg;

	(void)server_run(mine, NULL);
	(void)close(mine); /* so that a test does not wait for answers */
	return NULL;
}

static struct wire_head ask(const struct wire_head *h, const char *strings, int fd)
{
	return wire_ask(sock, h, strings, strlen(strings) + 1, fd, text);
}

static struct wire_head ask_for(enum wire_kind kind, uint64_t number)
{
	return ask(&(struct wire_head){ .kind = kind, .n = { number } }, "", -1);
}

static void tell(enum wire_kind kind, uint64_t number)
{
	struct wire_head h = { .kind = kind, .n = { number } };

	ck_assert_int_eq(wire_send(sock, &h, NULL, 0, -1), 0);
}

/* Opens the directory, or an address; returns the number of the place. */
static uint64_t open_place(const char *address)
{
	struct wire_head h = ask(&(struct wire_head){ .kind = WIRE_OPEN },
				 address ? address : "file:///x", address ? -1 : dir);

	ck_assert_msg(!h.n[0], "%s", text);
	return h.n[1];
}

static void start_server(unsigned retry_ms)
{
	const struct wire_head hello = { .kind = WIRE_HELLO,
					 .n = { WIRE_VERSION, 0, 0, retry_ms } };
	int pair[2];
	pthread_t t;

	REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	sock = pair[0];
	dir = new_dir(path);
	REQUIRE(!pthread_create(&t, NULL, serve, (void *)(intptr_t)pair[1]));
	(void)pthread_detach(t);
	ck_assert_uint_eq(ask(&hello, "none", -1).n[0], 0);
}

/* A session that did not begin does not use its place: once that is closed, it is free for the
 * next. */
START_TEST(a_session_that_does_not_begin_uses_no_place)
{
	start_server(0);
	ck_assert_uint_eq(open_place(NULL), 0);
	for (unsigned i = 1; i <= 6; i++) { /* the allocations of a job */
		struct wire_head answer;

		fault_on(FAULT_ALLOC, i, 1);
		answer = ask_for(WIRE_BEGIN, 0);
		ck_assert(fault_hit());
		(void)fault_off();
		ck_assert_msg(answer.n[0] == ENOMEM, "%u %s: %s", i, fault_name(), text);
	}
	tell(WIRE_CLOSE, 0);
	ck_assert_uint_eq(open_place(NULL), 0);
}
END_TEST

/* There is no number left for a descriptor that comes with a message. */
START_TEST(a_descriptor_for_which_there_is_no_room_is_refused)
{
	struct rlimit before, full;
	struct wire_head answer;
	int next;

	start_server(0);
	(void)ask_for(WIRE_PING, 0); /* it has answered, so earlier descriptors are closed */
	REQUIRE(!getrlimit(RLIMIT_NOFILE, &before));
	next = dup(sock);
	REQUIRE(next >= 0 && !close(next));
	full = (struct rlimit){ (rlim_t)next, before.rlim_max };
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &full));
	answer = ask(&(struct wire_head){ .kind = WIRE_OPEN }, "file:///x", dir);
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &before));
	ck_assert_uint_eq(answer.n[0], EMFILE);
	ck_assert_str_eq(text, "ckptfs-fetch has no descriptor left");
	ck_assert_uint_eq(open_place(NULL), 0);
}
END_TEST

/* ---- stores that lie ---- */

static bool enormous(struct served *r)
{
	static const char head[] =
		"HTTP/1.1 200 x\r\nETag: \"a\"\r\nContent-Length: 70368744177665\r\n\r\n";
	static const char list[] = "<ListBucketResult><Contents><Key>d/x</Key><Size>70368744177665"
				   "</Size><ETag>a</ETag></Contents></ListBucketResult>";

	if (strcmp(r->method, "HEAD") != 0)
		return answer(r, 200, "", list, strlen(list));
	send_all(r->fd, head, strlen(head));
	return false;
}

/* 64 TiB and one byte: the other side would refuse a message about it. */
START_TEST(what_is_too_large_to_be_read_is_an_error)
{
	static const char says[] = "'x' has 70368744177665 bytes, more than can be read";
	const struct wire_head look = { .kind = WIRE_LOOK }, list = { .kind = WIRE_LIST };
	char endpoint[64];

	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", server_start(enormous));
	REQUIRE(!setenv("AWS_ENDPOINT_URL", endpoint, 1) && !setenv("AWS_ACCESS_KEY_ID", "a", 1) &&
		!setenv("AWS_SECRET_ACCESS_KEY", "b", 1));
	start_server(0);
	ck_assert_uint_eq(open_place("s3://b/d"), 0);
	ck_assert_uint_eq(ask(&look, "x", -1).n[0], EFBIG);
	ck_assert_str_eq(text, says);
	ck_assert_uint_eq(ask(&list, ".", -1).n[0], EFBIG);
	ck_assert_str_eq(text, says);
}
END_TEST

/* ---- what is forgotten ---- */

static _Atomic unsigned asked;

/* Says that an object exists, but sends no byte of it while the other side waits. */
static bool look_only(struct served *r)
{
	char c;

	if (!strcmp(r->method, "HEAD"))
		return answer(r, 200, "ETag: \"a\"\r\n", "", 1 << 20);
	(void)atomic_fetch_add(&asked, 1);
	(void)recv(r->fd, &c, 1, 0);
	return false;
}

/* They end at once, not when the next byte comes, or when the network gives up an hour later. */
START_TEST(requests_for_what_is_forgotten_end)
{
	struct wire_head file = { .kind = WIRE_FILE,
				  .seen = { .size = 1 << 20, .kind = PLACE_FILE, .id_len = 2 } };
	struct wire_head want = { .kind = WIRE_WANT, .n = { 0, 0, 1 << 20 } };
	const struct wire_head look = { .kind = WIRE_LOOK };
	char address[64];

	(void)snprintf(address, sizeof(address), "http://127.0.0.1:%u/d", server_start(look_only));
	start_server(3600 * 1000);
	ck_assert_uint_eq(open_place(address), 0);
	ck_assert_uint_eq(ask(&look, "x", -1).n[1], 1);
	ck_assert_uint_eq(ask(&file, "x", -1).n[0], 0);
	ck_assert_int_eq(wire_send(sock, &want, NULL, 0, -1), 0);
	while (!atomic_load(&asked))
		(void)usleep(1000);
	tell(WIRE_FORGET, 0);
	tell(WIRE_CLOSE, 0);
	for (uint64_t place; (place = open_place(address));) { /* the request still uses place 0 */
		tell(WIRE_CLOSE, place);
		(void)usleep(10000);
	}
}
END_TEST

/* ---- sessions ---- */

/* Begins session 0 in a store that answers like this; returns a file of 10 bytes to send. */
static int start_writing(serve_fn *serve_one)
{
	char endpoint[64];

	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", server_start(serve_one));
	REQUIRE(!setenv("AWS_ENDPOINT_URL", endpoint, 1) && !setenv("AWS_ACCESS_KEY_ID", "a", 1) &&
		!setenv("AWS_SECRET_ACCESS_KEY", "b", 1));
	start_server(0);
	put_file(dir, "part", "0123456789", 10);
	ck_assert_uint_eq(open_place("s3://b/k"), 0);
	ck_assert_uint_eq(ask_for(WIRE_BEGIN, 0).n[0], 0);
	return openat(dir, "part", O_RDONLY | O_CLOEXEC);
}

static _Atomic bool may_end; /* as the test allows */
static const char upload_id[] = "<InitiateMultipartUploadResult><UploadId>u</UploadId></"
				"InitiateMultipartUploadResult>";

/* ---- one that ends late ---- */

/* A store that does not abort an upload before the test allows it. */
static bool slow_to_abort(struct served *r)
{
	char body[64];

	(void)request_body(r, body, sizeof(body));
	if (!strcmp(r->method, "POST"))
		return answer(r, 200, "", upload_id, strlen(upload_id));
	if (!strcmp(r->method, "PUT"))
		return answer(r, 200, "ETag: \"x\"\r\n", "", 0);
	while (!strcmp(r->method, "DELETE") && !atomic_load(&may_end))
		(void)usleep(1000);
	return answer(r, strcmp(r->method, "DELETE") ? 404 : 200, "", "", 0);
}

/* In haste, the answer comes before all uploads are aborted; the place stays in use until
 * they are. */
START_TEST(a_session_that_ends_late_leaves_its_place)
{
	const struct wire_head haste = { .kind = WIRE_END, .n = { 0, 1 } },
			       part = { .kind = WIRE_PART, .n = { 0, 0, 1, 10, 0 } };
	int fd = start_writing(slow_to_abort);

	ck_assert_msg(!ask(&part, "a", fd).n[0], "%s", text);
	ck_assert_uint_eq(ask(&haste, "", -1).n[0], 0);
	ck_assert_str_eq(text, "ckptfs-fetch is still aborting uploads");
	tell(WIRE_CLOSE, 0);
	ck_assert_uint_eq(open_place(NULL), 1);
	atomic_store(&may_end, true);
	for (uint64_t place; (place = open_place(NULL));) {
		tell(WIRE_CLOSE, place);
		(void)usleep(10000);
	}
}
END_TEST

/* ---- one that is being committed ---- */

static _Atomic bool is_asked;

/* A store that does not finish an upload before the test allows it. */
static bool slow_to_put(struct served *r)
{
	char body[64];

	(void)request_body(r, body, sizeof(body));
	if (!strcmp(r->method, "POST"))
		return answer(r, 200, "", upload_id, strlen(upload_id));
	if (strcmp(r->method, "PUT") != 0)
		return answer(r, 404, "", "", 0);
	atomic_store(&is_asked, true);
	while (!atomic_load(&may_end))
		(void)usleep(1000);
	return answer(r, 200, "ETag: \"x\"\r\n", "", 0);
}

/* A commit uses what parts and names change, so nothing else runs in its session. */
START_TEST(nothing_changes_a_session_during_its_commit)
{
	const struct wire_head part = { .kind = WIRE_PART, .n = { 0, 0, 1, 10, 1 } },
			       other = { .kind = WIRE_PART, .n = { 0, 1, 1, 10, 1 } };
	struct wire_head commit = { .kind = WIRE_COMMIT };
	int fd = start_writing(slow_to_put);

	ck_assert_msg(!ask(&part, "a", fd).n[0], "%s", text);
	REQUIRE(!wire_send(sock, &commit, NULL, 0, -1));
	while (!atomic_load(&is_asked))
		(void)usleep(1000);
	ck_assert_uint_eq(ask(&other, "b", fd).n[0], EBUSY);
	ck_assert_str_eq(text, "the session is being committed");
	ck_assert_uint_eq(ask_for(WIRE_NAME, 0).n[0], EBUSY);
	ck_assert_uint_eq(ask_for(WIRE_COMMIT, 0).n[0], EBUSY);
	atomic_store(&may_end, true);
	while (ask_for(WIRE_COMMIT, 0).n[0] == EBUSY)
		(void)usleep(1000);
	ck_assert_str_eq(text, "stopped"); /* it has been committed */
}
END_TEST

/* A commit does not begin before all parts have been stored, either. */
START_TEST(a_session_whose_part_is_being_sent_is_not_committed)
{
	struct wire_head part = { .kind = WIRE_PART, .n = { 0, 0, 1, 10, 0 } };
	int fd = start_writing(slow_to_put);

	REQUIRE(!wire_send(sock, &part, "a", 2, fd));
	while (!atomic_load(&is_asked))
		(void)usleep(1000);
	ck_assert_uint_eq(ask_for(WIRE_COMMIT, 0).n[0], EBUSY);
	ck_assert_str_eq(text, "the session is still in use: wait for its answers");
	atomic_store(&may_end, true);
	while (ask_for(WIRE_COMMIT, 0).n[0] == EBUSY)
		(void)usleep(1000);
	ck_assert_str_eq(text, "'a' is not complete");
}
END_TEST

/* ---- a daemon that has been taken over ---- */

static struct wire_head ask_open(bool anonymous, const char *strings, size_t len, int fd)
{
	return wire_ask(sock, &(struct wire_head){ .kind = WIRE_OPEN, .n = { anonymous } }, strings,
			len, fd, text);
}

static void seal(bool last, bool anonymous, const char *strings, size_t len)
{
	struct wire_head h = { .kind = WIRE_SEAL, .n = { anonymous, last } };

	ck_assert_int_eq(wire_send(sock, &h, strings, len, -1), 0);
}

#define STRINGS(s) (s), sizeof(s)

static const struct {
	const char *strings;
	size_t len;
	bool anonymous, allowed;
} openings[] = {
	{ STRINGS("http://127.0.0.1:1/a\0\0\0"), .allowed = true },
	{ STRINGS("http://127.0.0.1:1/b/c\0\0\0"), .allowed = true },
	{ STRINGS("http://127.0.0.1:1\0\0\0"), .allowed = true },
	{ STRINGS("HTTP://127.1:1/a\0\0\0"), .allowed = true }, /* the same host */
	{ STRINGS("http://127.1:2/a\0\0\0"), .allowed = false },
	{ STRINGS("http://127.2:1/a\0\0\0"), .allowed = false },
	{ STRINGS("http://127.0.0.1:2/a\0\0\0"), .allowed = false },
	{ STRINGS("http://127.0.0.1:11/a\0\0\0"), .allowed = false },
	{ STRINGS("http://127.0.0.1:/a\0\0\0"), .allowed = false },
	{ STRINGS("https://127.0.0.1:1/a\0\0\0"), .allowed = false },
	{ STRINGS("http://127.0.0.1:1/a\0\0\0"), .anonymous = true },
	{ STRINGS("http://127.0.0.1:1/a\0http://127.0.0.1:2\0\0"), .allowed = false },
	{ STRINGS("http://127.0.0.1:1/a\0\0\0p"), .allowed = false },
	{ STRINGS("http://127.0.0.1:1/a"), .allowed = false },
	{ STRINGS("s3://b/k\0http://127.0.0.1:1\0r\0p"), .anonymous = true, .allowed = true },
	{ STRINGS("s3://b/l\0http://127.0.0.1:1\0r\0p"), .anonymous = true, .allowed = true },
	{ STRINGS("s3://b/k\0http://127.0.0.1:2\0r\0p"), .anonymous = true },
	{ STRINGS("s3://c/k\0http://127.0.0.1:1\0r\0p"), .anonymous = true },
	{ STRINGS("s3://bb\0http://127.0.0.1:1\0r\0p"), .anonymous = true },
	{ STRINGS("gs://b/k\0http://127.0.0.1:1\0r\0p"), .anonymous = true },
	{ STRINGS("hf://org/other\0\0\0"), .allowed = false },
	{ STRINGS("hf://org\0\0\0"), .allowed = false },
	{ STRINGS(""), .allowed = false },
};

START_TEST(once_sealed_it_opens_nothing_of_others_and_writes_nothing)
{
	start_server(1000);
	/* These allow the addresses http://127.0.0.1:1/x, s3://b/k and hf://org/name@main. */
	seal(false, false, STRINGS("http://127.0.0.1:1\0\0\0"));
	seal(false, true, STRINGS("s3://b\0http://127.0.0.1:1\0r\0p"));
	seal(false, false, STRINGS("hf://org/name\0\0\0"));
	ck_assert_uint_eq(open_place(NULL), 0);
	seal(true, false, STRINGS("none"));
	seal(false, false, STRINGS("http://127.0.0.1:2\0\0\0")); /* too late */
	for (size_t i = 0; i < ARRAY_LEN(openings); i++) {
		struct wire_head h =
			ask_open(openings[i].anonymous, openings[i].strings, openings[i].len, -1);

		ck_assert_msg((h.n[0] != EPERM) == openings[i].allowed, "%s: %s",
			      openings[i].strings, text);
	}
	ck_assert_uint_eq(ask_open(false, STRINGS("file:///x"), dir).n[0], EACCES);
	ck_assert_uint_eq(ask_for(WIRE_BEGIN, 0).n[0], EPERM);
	ck_assert_str_eq(text, "it is not among what was named before rights were given up "
			       "('sandbox=off' does without that)");
	ck_assert_uint_eq(ask_for(WIRE_PING, 0).n[0], 0);
}
END_TEST

static const struct {
	const char *address;
	size_t len;
} authorities[] = {
	{ "s3://b/k/l", 6 },	      { "s3://b", 6 },		 { "s3://b:0.5", 6 },
	{ "https://host:1/x", 14 },   { "hf://org/name/x", 13 }, { "hf://org/name@main/x", 13 },
	{ "HF://org/name@main", 13 }, { "hf://org", 8 },	 { "hf://org/name:0.5", 13 },
	{ "hf://org/", 9 },	      { "nonsense", 8 },	 { "", 0 },
};

START_LOOP_TEST(an_address_says_whose_it_is, ARRAY_LEN(authorities))
{
	ck_assert_uint_eq(wire_authority(authorities[_i].address), authorities[_i].len);
}
END_TEST

/* ---- a map that cannot be sent ---- */

/* Fetches a whole object. */
static void fill(struct object *o)
{
	const struct map_view *v = object_view(o);
	static const uint8_t zeros[WIRE_BLOCK];
	struct ckpt_err e;

	for (uint64_t b = 0, n; b < v->n_blocks; b++) {
		struct hold *h;

		REQUIRE(!object_hold(o, b, 1, false, &h, &n, &e));
		REQUIRE(!hold_write(h, zeros, (size_t)map_block_size(v, b)));
		hold_end(h);
	}
}

/* The other side keeps the map of the object on disk until it gets that of the object in memory. */
START_TEST(a_map_that_could_not_be_sent_is_sent_before_segments)
{
	const struct place_seen seen = { .kind = PLACE_FILE, .size = 9 << 20, .id.len = 1 };
	static struct server s; /* not freed, as in server_run */
	struct span all = { 0, seen.size / WIRE_BLOCK };
	struct ckpt_err e = { 0 };
	struct store *store;
	struct object *o;
	struct file *f;

	s.messages = messages_new(-1);
	s.jobs = jobs_new();
	s.places = places_new();
	dir = new_dir(path);
	REQUIRE(!depot_new(&(struct depot_options){ .dir = path }, server_drop_segment, &s,
			   &s.depot, &e));
	REQUIRE(!store_open(NULL, "file:///x", &(struct store_options){ .dir = dir }, &store, &e));
	server_place_add(&s, 1, store);
	REQUIRE(!depot_prepare(s.depot, "file:///x", "a", &seen, &o, &e));
	server_file_add(&s, 2, 0, "a", &seen, o);
	f = server_file(&s, 0);
	REQUIRE(f && !object_in_memory(o));
	ck_assert_uint_eq(f->sent_n, 1);

	fault_on(FAULT_ALLOC, 3, 1); /* after those for the map */
	ck_assert(!server_file_leave_disk(&s, f, &e));
	ck_assert(fault_hit());
	(void)fault_off();
	ck_assert(object_in_memory(o));
	ck_assert_uint_eq(object_view(o)->n_segments, 2);
	server_file_unsend(f, all);
	fill(o);

	fault_on(FAULT_ALLOC, 1, 1);
	ck_assert(!server_file_send(&s, f, all, &e));
	(void)fault_off();
	ck_assert_int_ne(e.code, 0);
	e.code = 0;
	ck_assert_msg(server_file_send(&s, f, all, &e), "%s", e.msg);
	ck_assert_uint_eq(f->sent_n, 2); /* it has the new map and both segments */
	ck_assert(f->sent[0] && f->sent[1]);
}
END_TEST

SUITE(server, .seconds = 60)
