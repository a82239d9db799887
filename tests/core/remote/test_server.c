/* SPDX-License-Identifier: Apache-2.0 */
/* The server of ckptfs-fetch on a thread of this process, with stores of its own: what happens when
 * memory or descriptors are short at a certain moment. What else it does is in test_wire.c and
 * source/test_remote.c. */
#include "remote/server.h"

#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "suites.h"
#include "wire_util.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

static int sock, dir;
static char path[4096], text[512];

static void *serve(void *arg)
{
	int mine = (int)(intptr_t)arg;

	(void)server_run(mine);
	(void)close(mine); /* so that a test does not wait for its answers */
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

/* Opens the directory, or an address; the number of the place. */
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

/* A place that is closed is free for the next if nobody uses it any more. */
START_TEST(a_session_that_does_not_begin_uses_no_place)
{
	start_server(0);
	ck_assert_uint_eq(open_place(NULL), 0);
	for (unsigned i = 1; i <= 6; i++) { /* what a job consists of */
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

SUITE(server, .seconds = 60)
