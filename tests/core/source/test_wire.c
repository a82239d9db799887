/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "blob_util.h"
#include "source/wire.h"
#include "suites.h"
#include "wire_util.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
		    { WIRE_PING, 0, 1 },
		    { WIRE_PING, 1, sizeof(struct wire_head) + 2 } };
	char room[sizeof(struct wire_head) + 2] = { 0 };
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

START_TEST(a_message_that_is_too_long_is_neither_sent_nor_taken)
{
	static char much[sizeof(struct wire_head) + WIRE_TEXT_MAX + 1];
	struct wire_head h = { .kind = WIRE_PING, .text = WIRE_TEXT_MAX + 1 };
	int fds[2], rc;

	ck_assert_int_eq(wire_send(pair[0], &h, much, WIRE_TEXT_MAX + 1, -1), -EMSGSIZE);
	ck_assert_int_eq(wire_send(pair[0], &h, much, WIRE_TEXT_MAX, -1), 0);
	autofree struct wire_msg *m = receive(&rc);

	ck_assert_int_eq(rc, 1);
	ck_assert_uint_eq(m->head.text, WIRE_TEXT_MAX);
	memcpy(much, &(struct wire_head){ .kind = WIRE_PING, .text = WIRE_TEXT_MAX + 1 },
	       sizeof(h));
	REQUIRE(send(pair[0], much, sizeof(much), 0) == (ssize_t)sizeof(much));
	autofree struct wire_msg *n = receive(&rc);

	ck_assert(n && rc == -EPROTO);
	/* If there is no other side, or no socket. */
	(void)close(pair[1]);
	ck_assert_int_eq(wire_send(pair[0], &h, NULL, 0, -1), -EPIPE);
	REQUIRE(!pipe2(fds, O_CLOEXEC));
	ck_assert_int_eq(wire_send(fds[1], &h, NULL, 0, -1), -ENOTSOCK);
	ck_assert_int_eq(wire_receive(fds[0], m), -ENOTSOCK);
}
END_TEST

/* A descriptor that comes with something other than a message is closed. */
START_TEST(a_descriptor_is_taken_only_with_a_message)
{
	struct wire_head h = { .kind = WIRE_KINDS };
	struct rlimit lim, before;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), next, rc;

	next = dup(fd);
	(void)close(next);
	ck_assert_int_eq(wire_send(pair[0], &h, NULL, 0, fd), 0);
	autofree struct wire_msg *m = receive(&rc);

	ck_assert_int_eq(rc, -EPROTO);
	ck_assert_int_eq(m->fd, -1);
	ck_assert_int_eq(dup(fd), next);
	/* There is no room for the descriptor; the rest of the message arrives. */
	h = (struct wire_head){ .kind = WIRE_PING };
	ck_assert_int_eq(wire_send(pair[0], &h, "a", 2, fd), 0);
	REQUIRE(!getrlimit(RLIMIT_NOFILE, &before));
	lim = before;
	lim.rlim_cur = (rlim_t)next + 1;
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &lim));
	rc = wire_receive(pair[1], m);
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &before)); /* sanitizers need some at exit */
	ck_assert_int_eq(rc, -EMFILE);
	ck_assert_int_eq(m->fd, -EMFILE);
	ck_assert_str_eq(m->text, "a");
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
	h.seen.size = WIRE_SIZE_MAX;
	ck_assert(wire_get_seen(&h, &got));
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
	ck_assert(!map_layout(1, WIRE_SIZE_MAX + WIRE_BLOCK, &v));
}
END_TEST

/* ---- a client that has lost its mind ---- */

/* The new fetcher's socket takes the place of the one from the process that started it. */
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
	pair[1] = pair[0]; /* receive() reads from this side */
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
		if (h.kind == WIRE_SEAL && i < 2000)
			h.n[1] = 0; /* otherwise little else would be answered from then on */
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

static struct wire_head ask(const struct wire_head *h, const void *text, size_t len, int fd,
			    char ret_text[static 512])
{
	return wire_ask(pair[0], h, text, len, fd, ret_text);
}

START_TEST(the_counts_are_for_reading)
{
	struct wire_head hello = { .kind = WIRE_HELLO, .id = 1, .n = { WIRE_VERSION } };
	int rc;

	start_fetcher();
	REQUIRE(!wire_send(pair[0], &hello, "none", 5, -1));
	autofree struct wire_msg *m = receive(&rc);

	ck_assert_int_eq(rc, 1);
	REQUIRE(m->fd >= 0);
	ck_assert_int_lt(pwrite(m->fd, "x", 1, 0), 0);
	ck_assert_ptr_eq(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0), MAP_FAILED);
	void *p = mmap(NULL, 1, PROT_READ, MAP_SHARED, m->fd, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_lt(mprotect(p, 1, PROT_READ | PROT_WRITE), 0);
	(void)close(m->fd);
}
END_TEST

/* ---- a client that has given up its rights ---- */

/* It ends the fetcher, and asks the next one. */
START_TEST(the_next_fetcher_is_sealed_as_well)
{
	static const char allowed[] = "s3://b\0\0\0", other[] = "s3://c\0\0\0";
	struct wire_head seal = { .kind = WIRE_SEAL },
			 last = { .kind = WIRE_SEAL, .n = { 0, 1, 1 << 30 } },
			 end_it = { .kind = WIRE_END_IT };
	const struct wire_head hello = { .kind = WIRE_HELLO, .n = { WIRE_VERSION, 1 << 30 } },
			       smaller = { .kind = WIRE_HELLO, .n = { WIRE_VERSION, 1 } },
			       open_place = { .kind = WIRE_OPEN };
	char text[512], path[4300];

	start_fetcher();
	for (const char *bucket = "bc"; *bucket; bucket++) {
		(void)snprintf(path, sizeof(path), "%s/%c", getenv("DIR_STORE"), *bucket);
		REQUIRE(!mkdir(path, 0700));
	}
	REQUIRE(!wire_send(control, &seal, allowed, sizeof(allowed), -1));
	REQUIRE(!wire_send(control, &last, "none", 5, -1));
	REQUIRE(!wire_send(control, &end_it, NULL, 0, -1));
	(void)close(pair[0]);
	pair[0] = pair[1] = control;
	next_fetcher();
	ck_assert_uint_eq(wire_ask(pair[0], &hello, "/tmp/elsewhere", 15, -1, text).n[0], EPERM);
	ck_assert_uint_eq(wire_ask(pair[0], &smaller, "none", 5, -1, text).n[0], EPERM);
	ck_assert_uint_eq(wire_ask(pair[0], &hello, "none", 5, -1, text).n[0], 0);
	ck_assert_uint_eq(wire_ask(pair[0], &open_place, other, sizeof(other), -1, text).n[0],
			  EPERM);
	ck_assert_uint_eq(wire_ask(pair[0], &open_place, allowed, sizeof(allowed), -1, text).n[0],
			  0);
	(void)close(pair[0]);
}
END_TEST

/* A descriptor of a directory is not enough: Landlock allows one of where only a file may be
 * read. */
START_TEST(files_are_read_only_where_the_seal_says)
{
	static const char address[] = "file:///x\0\0\0", names[] = "model\0manifest";
	static const struct {
		unsigned dir;
		uint32_t kind;
		const char *path;
		bool allowed;
	} asked[] = {
		{ 0, WIRE_FILE, "model", true },    { 0, WIRE_FILE, "manifest", true },
		{ 0, WIRE_FILE, "mode", false },    { 0, WIRE_FILE, "secret", false },
		{ 0, WIRE_FILE, "d/model", false }, { 0, WIRE_LIST, ".", false },
		{ 0, WIRE_LIST, "d", false },	    { 1, WIRE_FILE, "secret", true },
		{ 0, WIRE_LOOK, "model", true },    { 0, WIRE_LOOK, ".", true },
		{ 0, WIRE_LOOK, "secret", false },  { 0, WIRE_LOOK, "d", false },
		{ 0, WIRE_LOOK, "d/model", false }, { 1, WIRE_LOOK, "d", true },
		{ 1, WIRE_LOOK, "secret", true },   { 1, WIRE_FILE, "d/model", true },
		{ 1, WIRE_LIST, ".", true }, /* with two answers */
	};
	const struct wire_head hello = { .kind = WIRE_HELLO, .n = { WIRE_VERSION } },
			       open_place = { .kind = WIRE_OPEN };
	struct wire_head h, last = { .kind = WIRE_SEAL, .n = { 0, 1 } };
	uint64_t places[3];
	char text[512], path[4096];
	struct stat st;
	int dirs[3];

	start_fetcher();
	for (unsigned i = 0; i < ARRAY_LEN(dirs); i++) {
		dirs[i] = new_dir(path);
		REQUIRE(dirs[i] >= 0 && !mkdirat(dirs[i], "d", 0700) && !fstat(dirs[i], &st));
		h = (struct wire_head){ .kind = WIRE_SEAL, .n = { 0, 2, st.st_dev, st.st_ino } };
		if (i < 2)
			REQUIRE(!wire_send(pair[0], &h, names, i ? 0 : sizeof(names), -1));
	}
	ck_assert_uint_eq(ask(&hello, "none", 5, -1, text).n[0], 0);
	/* One is open before; what is not in the seal cannot be opened afterwards. */
	for (unsigned i = 0; i < ARRAY_LEN(dirs); i++) {
		if (i == 1)
			REQUIRE(!wire_send(pair[0], &last, "none", 5, -1));
		h = ask(&open_place, address, sizeof(address), dirs[i], text);
		ck_assert_msg(h.n[0] == (i < 2 ? 0 : EACCES), "%u: %s", i, text);
		places[i] = h.n[1];
	}
	/* What is beneath one that was named with all its files is allowed, too. */
	for (unsigned i = 0; i < ARRAY_LEN(dirs); i++) {
		int below = openat(dirs[i], "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		REQUIRE(below >= 0);
		h = ask(&open_place, address, sizeof(address), below, text);
		ck_assert_msg(h.n[0] == (i == 1 ? 0 : EACCES), "%u: %s", i, text);
		(void)close(below);
	}
	for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
		h = (struct wire_head){ .kind = asked[i].kind,
					.n = { places[asked[i].dir] },
					.seen = { .size = 9, .kind = PLACE_FILE, .id_len = 16 } };
		h = ask(&h, asked[i].path, strlen(asked[i].path) + 1, -1, text);
		ck_assert_msg((h.n[0] != EACCES) == asked[i].allowed, "%zu: %d %s", i, (int)h.n[0],
			      text);
	}
}
END_TEST

/* ---- a client that asks for what is not possible ---- */

enum with { NOTHING, A_FILE, A_PIPE };

#define SIZED(bytes) .seen = { .size = (bytes), .kind = PLACE_FILE, .id_len = 16 }

/* Place 0 is open and "x" in it is a file of 3 blocks; session 0 has begun. */
static const struct {
	struct wire_head head;
	const char *text;
	enum with with;
	int code; /* of the answer */
	const char *says;
} impossible[] = {
	{ { .kind = WIRE_HELLO, .n = { WIRE_VERSION } },
	  "none",
	  NOTHING,
	  EPROTO,
	  "of another version" },
	{ { .kind = WIRE_HELLO, .n = { WIRE_VERSION + 1 } },
	  "none",
	  NOTHING,
	  EPROTO,
	  "another ver" },
	{ { .kind = WIRE_LOOK, .n = { 1 } },
	  "x",
	  NOTHING,
	  EINVAL,
	  "a place was used that is not open" },
	{ { .kind = WIRE_LOOK, .n = { UINT64_MAX } },
	  "x",
	  NOTHING,
	  EINVAL,
	  "a place was used that is not open" },
	{ { .kind = WIRE_LOOK }, "../x", NOTHING, ERR_CORRUPT, "" },
	{ { .kind = WIRE_LOOK }, "/x", NOTHING, ERR_CORRUPT, "" },
	{ { .kind = WIRE_LIST, .n = { 1 } },
	  ".",
	  NOTHING,
	  EINVAL,
	  "a place was used that is not open" },
	{ { .kind = WIRE_LIST }, "a/../b", NOTHING, ERR_CORRUPT, "" },
	{ { .kind = WIRE_FILE, .n = { 1 }, SIZED(9) },
	  "x",
	  NOTHING,
	  EINVAL,
	  "an impossible file was requested" },
	{ { .kind = WIRE_FILE, .seen = { .id_len = 64 } },
	  "x",
	  NOTHING,
	  EINVAL,
	  "an impossible file was requested" },
	{ { .kind = WIRE_FILE, .seen = { .kind = 9 } },
	  "x",
	  NOTHING,
	  EINVAL,
	  "an impossible file was requested" },
	{ { .kind = WIRE_FILE, SIZED(WIRE_SIZE_MAX + 1) },
	  "x",
	  NOTHING,
	  EINVAL,
	  "an impossible file was requested" },
	{ { .kind = WIRE_FILE, SIZED(9) }, "../x", NOTHING, ERR_CORRUPT, "" },
	{ { .kind = WIRE_READ, .n = { 9, 0, 10 } }, "", NOTHING, EINVAL, "" },
	{ { .kind = WIRE_READ, .n = { 0, 0, WIRE_READ_MAX + 1 } }, "", NOTHING, EINVAL, "" },
	{ { .kind = WIRE_READ, .n = { 0, 3 * WIRE_BLOCK, 1 } }, "", NOTHING, EINVAL, "" },
	{ { .kind = WIRE_READ, .n = { 0, 0, 0 } }, "", NOTHING, EINVAL, "" },
	{ { .kind = WIRE_READ, .n = { 0, UINT64_MAX, 2 } }, "", NOTHING, EINVAL, "" },
	{ { .kind = WIRE_BEGIN, .n = { 1 } },
	  "",
	  NOTHING,
	  EINVAL,
	  "a place was used that is not open" },
	{ { .kind = WIRE_PART, .n = { 1, 0, 1, 5, 1 } },
	  "a",
	  A_FILE,
	  EINVAL,
	  "the session is over" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 1, 5, 1 } },
	  "a",
	  NOTHING,
	  EINVAL,
	  "an impossible part" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 1, 0, 1 } },
	  "a",
	  A_PIPE,
	  EINVAL,
	  "an impossible part" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 1, 11, 1 } },
	  "a",
	  A_FILE,
	  EINVAL,
	  "an impossible part" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 1, WIRE_PART_MAX + 1, 1 } },
	  "a",
	  A_FILE,
	  EINVAL,
	  "an impossible part" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 10001, 5, 1 } },
	  "a",
	  A_FILE,
	  EINVAL,
	  "an impossible part" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 0, 5, 1 } }, "a", A_FILE, EINVAL, "" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 1, 5, 1 } },
	  "a/../b",
	  A_FILE,
	  EINVAL,
	  "an impossible part" },
	{ { .kind = WIRE_PART, .n = { 0, 0, 1, 5, 1 } }, "", A_FILE, EINVAL, "an impossible part" },
	{ { .kind = WIRE_NAME, .n = { 0, 3 } }, "a", NOTHING, EINVAL, "impossible names" },
	{ { .kind = WIRE_NAME, .n = { 0, 0 } }, "../a", NOTHING, ERR_CORRUPT, "" },
	{ { .kind = WIRE_NAME, .n = { 5, 0 } }, "a", NOTHING, EINVAL, "the session is over" },
	{ { .kind = WIRE_COMMIT, .n = { 5 } }, "", NOTHING, EINVAL, "the session is over" },
	{ { .kind = WIRE_END, .n = { 5 } }, "", NOTHING, EINVAL, "the session is over" },
};

START_TEST(what_is_not_possible_is_answered_with_an_error)
{
	const struct wire_head hello = { .kind = WIRE_HELLO, .n = { WIRE_VERSION } },
			       open_place = { .kind = WIRE_OPEN },
			       open_other = { .kind = WIRE_OPEN }, look = { .kind = WIRE_LOOK },
			       begin = { .kind = WIRE_BEGIN }, end = { .kind = WIRE_END };
	static uint8_t bytes[3 * WIRE_BLOCK];
	char text[512], path[4300];
	int pipes[2], file, b;
	struct wire_head h, found;

	start_fetcher();
	(void)snprintf(path, sizeof(path), "%s/b", getenv("DIR_STORE"));
	REQUIRE(!mkdir(path, 0700) && !pipe2(pipes, O_CLOEXEC));
	b = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(b, "x", bytes, sizeof(bytes));
	put_file(b, "part", bytes, 10);
	file = openat(b, "part", O_RDONLY | O_CLOEXEC);
	REQUIRE(file >= 0);
	ck_assert_uint_eq(ask(&hello, "none", 5, -1, text).n[0], 0);
	h = ask(&open_other, "nonsense", 9, -1, text);
	ck_assert_uint_eq(h.n[0], EINVAL);
	h = ask(&open_place, "s3://b", 7, -1, text);
	ck_assert_uint_eq(h.n[0], 0);
	ck_assert_uint_eq(h.n[1], 0);
	ck_assert_str_eq(text, "s3://b");
	found = ask(&look, "x", 2, -1, text);
	ck_assert_uint_eq(found.n[1], 1);
	found.kind = WIRE_FILE;
	found.n[0] = 0;
	h = ask(&found, "x", 2, -1, text);
	ck_assert_msg(!h.n[0], "%s", text);
	ck_assert_uint_eq(h.n[1], 0);
	ck_assert_uint_eq(ask(&begin, "", 0, -1, text).n[0], 0);
	for (size_t i = 0; i < ARRAY_LEN(impossible); i++) {
		int fd = impossible[i].with == A_FILE	? file
			 : impossible[i].with == A_PIPE ? pipes[0]
							: -1;

		h = ask(&impossible[i].head, impossible[i].text, strlen(impossible[i].text) + 1, fd,
			text);
		ck_assert_msg(h.n[0] == (uint64_t)impossible[i].code, "%zu: %d: %s", i, (int)h.n[0],
			      text);
		ck_assert_msg(*text && strstr(text, impossible[i].says), "%zu: %s", i, text);
	}
	/* What is possible still works. */
	h = (struct wire_head){ .kind = WIRE_READ, .n = { 0, WIRE_BLOCK, WIRE_BLOCK } };
	ck_assert_uint_eq(ask(&h, "", 0, -1, text).n[0], 0);
	h = (struct wire_head){ .kind = WIRE_PART, .n = { 0, 0, 1, 10, 1 } };
	ck_assert_uint_eq(ask(&h, "a", 2, file, text).n[0], 0);
	h = ask(&end, "", 0, -1, text);
	ck_assert_uint_eq(h.n[0], 0);
	ck_assert_str_eq(text, "");
	h = ask(&end, "", 0, -1, text);
	ck_assert_uint_eq(h.n[0], EINVAL);
	/* The number of another session, and that of a closed place, can be used again. */
	ck_assert_uint_eq(ask(&begin, "", 0, -1, text).n[1], 0);
	h = (struct wire_head){ .kind = WIRE_END, .n = { 0, 1 } };
	ck_assert_uint_eq(ask(&h, "", 0, -1, text).n[0], 0);
	h = (struct wire_head){ .kind = WIRE_CLOSE };
	ck_assert_int_eq(wire_send(pair[0], &h, NULL, 0, -1), 0);
	h = ask(&look, "x", 2, -1, text);
	ck_assert_uint_eq(h.n[0], EINVAL);
	ck_assert_str_eq(text, "a place was used that is not open");
}
END_TEST

/* Before anything else it says hello. */
START_TEST(who_does_not_say_hello_is_left)
{
	const struct wire_head ping = { .kind = WIRE_PING, .id = 1 };
	struct wire_head copy = ping;
	int rc;

	start_fetcher();
	ck_assert_int_eq(wire_send(pair[0], &copy, NULL, 0, -1), 0);
	autofree struct wire_msg *m = receive(&rc);

	ck_assert(m && rc == 0);
}
END_TEST

/* If the other side goes, what it has begun is undone. */
START_LOOP_TEST(a_session_that_is_left_behind_is_undone, 2)
{
	const struct wire_head hello = { .kind = WIRE_HELLO, .n = { WIRE_VERSION } },
			       open_place = { .kind = WIRE_OPEN }, begin = { .kind = WIRE_BEGIN };
	struct wire_head part = { .kind = WIRE_PART, .n = { 0, 0, 1, 10, 0 } };
	uint64_t end = clock_ns() + 10 * CLOCK_SECOND;
	static const uint8_t bytes[10];
	char text[512], path[4300], log[4300], line[256];
	bool aborted = false;
	int b, file;

	(void)close(new_dir(path));
	(void)snprintf(log, sizeof(log), "%.4096s/log", path);
	REQUIRE(!setenv("DIR_STORE_LOG", log, 1));
	start_fetcher();
	(void)snprintf(path, sizeof(path), "%s/b", getenv("DIR_STORE"));
	REQUIRE(!mkdir(path, 0700));
	b = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(b, "part", bytes, 10);
	file = openat(b, "part", O_RDONLY | O_CLOEXEC);
	ck_assert_uint_eq(ask(&hello, "none", 5, -1, text).n[0], 0);
	ck_assert_uint_eq(ask(&open_place, "s3://b", 7, -1, text).n[0], 0);
	ck_assert_uint_eq(ask(&begin, "", 0, -1, text).n[0], 0);
	if (_i)
		ck_assert_uint_eq(ask(&begin, "", 0, -1, text).n[1], 1);
	ck_assert_uint_eq(ask(&part, "a", 2, file, text).n[0], 0);
	(void)close(pair[0]);
	(void)close(control);
	while (!aborted) {
		FILE *f = fopen(log, "re");

		REQUIRE(f && clock_ns() < end);
		while (fgets(line, sizeof(line), f))
			aborted |= !strncmp(line, "abort a ", 8);
		(void)fclose(f);
		(void)usleep(1000);
	}
}
END_TEST

/* A fetcher that does not answer is ended, and another one comes. */
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
