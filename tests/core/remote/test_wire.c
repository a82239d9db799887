/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "blob_util.h"
#include "remote/wire.h"
#include "suites.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static int pair[2], control;

static void setup(void)
{
	REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
}

static struct wire_msg *receive(int *ret)
{
	struct wire_msg *m = malloc(sizeof(*m));

	REQUIRE(m);
	*ret = wire_receive(pair[1], m);
	return m;
}

START_TEST(what_is_sent_is_received_with_its_descriptor)
{
	struct wire_head h = { .kind = WIRE_LOOK, .id = 7, .n = { 1, 2, 3, 4, 5 } };
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), rc;

	ck_assert_int_eq(wire_send(pair[0], &h, "a\0bc", 5, fd), 0);
	autofree struct wire_msg *m = receive(&rc);

	ck_assert_int_eq(rc, 1);
	ck_assert_uint_eq(m->head.kind, WIRE_LOOK);
	ck_assert_uint_eq(m->head.n[4], 5);
	ck_assert_str_eq(wire_string(m, 0), "a");
	ck_assert_str_eq(wire_string(m, 1), "bc");
	ck_assert_str_eq(wire_string(m, 2), "");
	ck_assert_str_eq(wire_string(m, 99), "");
	ck_assert_int_ge(m->fd, 0);
	ck_assert(fcntl(m->fd, F_GETFD) & FD_CLOEXEC);
	(void)close(m->fd);
}
END_TEST

START_TEST(what_is_no_message_is_refused)
{
	static const struct {
		uint32_t kind, text;
		size_t len;
	} bad[] = { { 0, 0, sizeof(struct wire_head) },
		    { WIRE_KINDS, 0, sizeof(struct wire_head) },
		    { WIRE_PING, 1, sizeof(struct wire_head) },
		    { WIRE_PING, 0, sizeof(struct wire_head) + 1 },
		    { WIRE_PING, 0, sizeof(struct wire_head) - 1 },
		    { WIRE_PING, UINT32_MAX, sizeof(struct wire_head) },
		    { WIRE_PING, 0, 1 } };
	char room[sizeof(struct wire_head) + 1] = { 0 };
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct wire_head h = { .kind = bad[i].kind, .text = bad[i].text };

		memcpy(room, &h, sizeof(h));
		REQUIRE(send(pair[0], room, bad[i].len, 0) == (ssize_t)bad[i].len);
		autofree struct wire_msg *m = receive(&rc);

		ck_assert_int_eq(rc, -EPROTO);
	}
	(void)close(pair[0]);
	autofree struct wire_msg *m = receive(&rc);

	ck_assert_int_eq(rc, 0);
}
END_TEST

START_TEST(identities_keep_their_bounds)
{
	struct place_seen seen = { .kind = PLACE_FILE, .size = 9, .mtime_ns = 8, .id.len = 63 },
			  got;
	struct wire_head h = { 0 };

	memset(seen.id.v, 3, sizeof(seen.id.v));
	wire_put_seen(&h, &seen);
	ck_assert(wire_get_seen(&h, &got));
	ck_assert(place_id_equal(&seen.id, &got.id) && got.size == 9 && got.mtime_ns == 8);
	h.seen.id_len = 64;
	ck_assert(!wire_get_seen(&h, &got));
	h.seen.id_len = 0;
	h.seen.kind = 200;
	ck_assert(!wire_get_seen(&h, &got));
	h.seen.kind = 0;
	h.seen.size = WIRE_SIZE_MAX + 1;
	ck_assert(!wire_get_seen(&h, &got));
}
END_TEST

START_TEST(maps_hold_every_block)
{
	static const uint64_t sizes[] = {
		0, 1, WIRE_BLOCK, WIRE_BLOCK + 1, 999999999, WIRE_SIZE_MAX
	};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct map_view v;
		uint64_t segment = sizes[i] > 1000000000 ? (uint64_t)1 << 40 : 8 << 20, sum = 0;
		char *base = NULL;

		ck_assert(map_layout(sizes[i], segment, &v));
		ck_assert_uint_eq(v.n_blocks, (sizes[i] + WIRE_BLOCK - 1) / WIRE_BLOCK);
		for (uint64_t k = 0; k < v.n_segments; k++)
			sum += map_segment_size(&v, k);
		ck_assert_uint_eq(sum, sizes[i]);
		ck_assert_uint_eq((uint64_t)((char *)map_block(base, &v, v.n_blocks) - base),
				  v.bytes);
		ck_assert((uintptr_t)map_block(base, &v, 0) >=
			  (uintptr_t)map_generation(base, v.n_segments));
	}
	struct map_view v;

	ck_assert(!map_layout(WIRE_SIZE_MAX + 1, 8 << 20, &v));
	ck_assert(!map_layout(1, 0, &v));
	ck_assert(!map_layout(1, WIRE_BLOCK + 1, &v));
	ck_assert(!map_layout(WIRE_SIZE_MAX, WIRE_BLOCK / 2, &v));
}
END_TEST

/* ---- a client that has lost its mind ---- */

/* Its socket takes the place of that of the process that starts it. */
static void next_fetcher(void)
{
	int rc;
	autofree struct wire_msg *m = receive(&rc);

	ck_assert_int_eq(rc, 1);
	ck_assert_uint_eq(m->head.kind, WIRE_FETCHER);
	REQUIRE(m->fd >= 0);
	control = pair[0];
	pair[0] = pair[1] = m->fd;
}

static void start_fetcher(void)
{
	char self[4096], path[4200], dir[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int status;
	pid_t pid;

	REQUIRE(n > 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	(void)snprintf(path, sizeof(path), "%s/dir-fetch", self);
	(void)close(new_dir(dir));
	REQUIRE(!setenv("DIR_STORE", dir, 1));
	pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		if (pair[1] != WIRE_FD)
			(void)dup2(pair[1], WIRE_FD);
		else
			(void)fcntl(WIRE_FD, F_SETFD, 0);
		(void)execl(path, "dir-fetch", (char *)NULL);
		_exit(127);
	}
	(void)close(pair[1]);
	pair[1] = pair[0]; /* receive() is of this side */
	REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
	next_fetcher();
}

static void drain(void)
{
	struct pollfd p = { .fd = pair[0], .events = POLLIN };

	while (poll(&p, 1, 0) > 0) {
		int rc;
		autofree struct wire_msg *m = receive(&rc);

		ck_assert_int_eq(rc, 1);
		if (m->fd >= 0)
			(void)close(m->fd);
	}
}

START_LOOP_TEST(a_fetcher_survives_whatever_it_is_told, 6)
{
	static const char *const texts[] = {
		"", ".", "a/b", "../x", "s3://b/", "x", "/etc/passwd"
	};
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct wire_head hello = { .kind = WIRE_HELLO, .id = 1, .n = { WIRE_VERSION } };
	int rc;

	start_fetcher();
	ck_assert_int_eq(wire_send(pair[0], &hello, "none", 5, -1), 0);
	for (unsigned i = 0; i < 3000; i++) {
		struct wire_head h = { .kind = 1 + (uint32_t)rng_below(&r, WIRE_KINDS - 1),
				       .id = (uint32_t)rng_below(&r, 9) };
		const char *text = texts[rng_below(&r, ARRAY_LEN(texts))];

		for (unsigned k = 0; k < WIRE_NUMBERS; k++)
			h.n[k] = rng_u64(&r) >> (rng_below(&r, 2) ? 62 : rng_below(&r, 64));
		h.seen.size = rng_u64(&r) >> (20 + rng_below(&r, 40));
		h.seen.kind = (uint8_t)rng_below(&r, 7);
		h.seen.id_len = (uint8_t)rng_below(&r, 70);
		drain();
		ck_assert_int_eq(wire_send(pair[0], &h, text, strlen(text) + rng_below(&r, 2), -1),
				 0);
	}
	struct wire_head ping = { .kind = WIRE_PING, .id = 4711 };

	ck_assert_int_eq(wire_send(pair[0], &ping, NULL, 0, -1), 0);
	for (;;) {
		autofree struct wire_msg *m = receive(&rc);

		ck_assert_int_eq(rc, 1);
		if (m->fd >= 0)
			(void)close(m->fd);
		if (m->head.id == 4711)
			break;
	}
}
END_TEST

/* One that does not answer is ended, and another one comes. */
START_TEST(a_fetcher_is_ended_when_that_is_asked_for)
{
	struct wire_head end = { .kind = WIRE_END_IT },
			 hello = { .kind = WIRE_HELLO, .id = 1, .n = { WIRE_VERSION } };
	int rc;

	start_fetcher();
	for (unsigned i = 0; i < 3; i++) {
		autofree struct wire_msg *gone = NULL, *m = NULL;

		ck_assert_int_eq(wire_send(control, &end, NULL, 0, -1), 0);
		gone = receive(&rc);
		ck_assert_int_eq(rc, 0);
		(void)close(pair[0]);
		pair[0] = pair[1] = control;
		next_fetcher();
		ck_assert_int_eq(wire_send(pair[0], &hello, "none", 5, -1), 0);
		m = receive(&rc);
		ck_assert_int_eq(rc, 1);
		ck_assert_uint_eq(m->head.n[0], 0);
	}
}
END_TEST

SUITE(wire, .setup = setup, .seconds = 30)
