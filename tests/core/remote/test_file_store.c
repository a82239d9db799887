/* SPDX-License-Identifier: Apache-2.0 */
/* Files read through a descriptor of their directory: the bytes of the version that was seen, or an
 * error. */
#include "blob_util.h"
#include "fault.h"
#include "remote_util.h"
#include "rng.h"
#include "suites.h"

#include "base/checked.h"
#include "base/cleanup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIZE = 3000000 };

static uint8_t bytes[SIZE];
static char path[4096];
static int dir;
static struct net *net;
static struct store *store;
static struct place_seen seen;

static int open_store(int fd, struct store **ret, struct ckpt_err *e)
{
	return store_open(net, "file:///somewhere/else", &(struct store_options){ .dir = fd }, ret,
			  e);
}

static void setup(void)
{
	struct rng rng = rng_new();
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (uint8_t)rng_u64(&rng);
	dir = new_dir(path);
	put_file(dir, "a", bytes, SIZE);
	ck_assert_msg(!net_new(NULL, &net, &e), "%s", e.msg);
	ck_assert_msg(!open_store(dir, &store, &e), "%s", e.msg);
	ck_assert_msg(store_look(store, "a", &seen, &e) == 1, "%s", e.msg);
	ck_assert_uint_eq(seen.size, SIZE);
}

static void teardown(void)
{
	store_free(store);
	net_free(net);
	(void)close(dir);
}

/* A process that may not read a directory must not get it read by the fetcher. Under Landlock, it
 * can only send descriptors like these. */
START_TEST(only_a_directory_that_was_opened_for_reading_is_read)
{
	int fds[] = { -1, open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) };
	struct store *other;
	struct ckpt_err e;

	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		e = (struct ckpt_err){ 0 };
		ck_assert_int_eq(open_store(fds[i], &other, &e), -EACCES);
		ck_assert(strstr(e.msg, "opened for reading"));
	}
	(void)close(fds[1]);
}
END_TEST

/* What is kept is kept under the directory's own address, whatever address is given. */
START_TEST(the_address_is_that_of_the_descriptor)
{
	char real[4096 + sizeof("file://")], at[4096];

	ck_assert(realpath(path, at));
	(void)snprintf(real, sizeof(real), "file://%s", at);
	ck_assert_str_eq(store_address(store), real);
}
END_TEST

START_TEST(ranges_are_right_and_counted)
{
	struct rng rng = rng_new();
	struct reader r[40];
	uint64_t off[ARRAY_LEN(r)], len[ARRAY_LEN(r)], sum = 0;
	struct net_pace pace;

	for (size_t i = 0; i < ARRAY_LEN(r); i++) {
		off[i] = rng_below(&rng, SIZE);
		len[i] = 1 + rng_below(&rng, SIZE - off[i]);
		sum += len[i];
		reader_start(&r[i], store, "a", &seen, off[i], len[i], i % 2);
	}
	for (size_t i = 0; i < ARRAY_LEN(r); i++) {
		ck_assert_msg(!reader_wait(&r[i]), "%s", r[i].e.msg);
		ck_assert_uint_eq(r[i].n, len[i]);
		ck_assert_mem_eq(r[i].p, bytes + off[i], len[i]);
		reader_release(&r[i]);
	}
	net_pace(net, &pace);
	ck_assert_uint_eq(pace.bytes, sum);
}
END_TEST

START_TEST(a_sink_that_has_had_enough_ends_its_get)
{
	struct reader r;

	reader_start(&r, store, "a", &seen, 0, SIZE, true);
	get_cancel(net, r.get); /* does nothing */
	r.cap = 0;		/* this may be too late; then the read is complete */
	ck_assert(reader_wait(&r) == -ECANCELED || (!r.rc && r.n == SIZE));
	reader_release(&r);
}
END_TEST

static int other_bytes(void)
{
	bytes[SIZE / 2] ^= 1;
	put_file(dir, "a", bytes, SIZE);
	return -ESTALE;
}

static int shorter(void)
{
	ck_assert_int_eq(truncate("a", SIZE / 2), 0);
	return -ESTALE;
}

static int removed(void)
{
	ck_assert_int_eq(unlink("a"), 0);
	return -ESTALE;
}

static int linked(void)
{
	ck_assert_int_eq(link("a", "b"), 0); /* another ctime, but the same bytes */
	return 0;
}

static int led_away(void)
{
	ck_assert_int_eq(rename("a", "../a.file_store"), 0);
	ck_assert_int_eq(symlink("../a.file_store", "a"), 0);
	return -EBADMSG;
}

static int (*const changes[])(void) = { other_bytes, shorter, removed, linked, led_away };

START_LOOP_TEST(bytes_are_those_of_the_version_that_was_seen, ARRAY_LEN(changes))
{
	struct reader r;
	int wanted;

	ck_assert_int_eq(fchdir(dir), 0);
	(void)usleep(20000); /* file times are that coarse */
	wanted = changes[_i]();
	ck_assert_int_eq(read_range(&r, store, "a", &seen, 10, SIZE - 10), wanted);
	ck_assert(!wanted || !r.n);
	if (!wanted)
		ck_assert_mem_eq(r.p, bytes + 10, SIZE - 10);
	reader_release(&r);
	(void)unlink("../a.file_store");
}
END_TEST

static int note(void *arg, const char *name, const struct place_seen *s, struct ckpt_err *e)
{
	(void)e;
	(void)snprintf(arg, 64, "%s %d %llu", name, s->kind, (unsigned long long)s->size);
	return 0;
}

START_TEST(a_listing_says_the_same_as_a_look)
{
	struct ckpt_err e = { 0 };
	char line[64] = "", wanted[64];
	struct place_seen s;

	(void)snprintf(wanted, sizeof(wanted), "a %d %d", PLACE_FILE, SIZE);
	ck_assert_int_eq(symlinkat("nowhere", dir, "broken"), 0);
	ck_assert_int_eq(mkfifoat(dir, "fifo", 0600), 0);
	ck_assert_int_eq(store_list(store, ".", note, line, &e), 0);
	ck_assert_str_eq(line, wanted);
	ck_assert_int_eq(store_list(store, "none", note, line, &e), 0);
	ck_assert_int_eq(store_look(store, "none", &s, &e), 0);
	ck_assert_int_eq(store_look(store, "fifo", &s, &e), 0);
	ck_assert_int_eq(store_look(store, "../x", &s, &e), -EINVAL);
}
END_TEST

static int add_name(void *arg, const char *name, const struct place_seen *s, struct ckpt_err *e)
{
	(void)s;
	buf_printf(arg, "%s\n", name);
	return ((struct buf *)arg)->err ? err_nomem(e) : 0;
}

START_TEST(names_that_lead_nowhere_are_not_listed)
{
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	struct place_seen s;

	REQUIRE(!symlinkat("nowhere", dir, "broken") && !mkdirat(dir, "empty", 0700));
	ck_assert_msg(!store_list(store, ".", add_name, &b, &e), "%s", e.msg);
	ck_assert_ptr_null(strstr(b.data, "broken"));
	ck_assert_ptr_nonnull(strstr(b.data, "empty"));
	buf_restart(&b);
	ck_assert_msg(!store_list(store, "empty", add_name, &b, &e), "%s", e.msg);
	ck_assert_uint_eq(b.len, 0);
	/* As in other stores, no name begins like this. */
	ck_assert_int_eq(store_list(store, "none", add_name, &b, &e), 0);
	ck_assert_int_eq(store_list(store, "a", add_name, &b, &e), 0);
	ck_assert_int_eq(store_look(store, "none", &s, &e), 0);
	ck_assert_int_eq(store_look(store, "a/b", &s, &e), 0);
	buf_release(&b);
}
END_TEST

/* A link that cannot be followed hides no other name, nor is it hidden. */
START_TEST(a_link_that_may_not_be_followed_spoils_no_listing)
{
	char target[300], line[64] = "", wanted[64];
	struct buf b CLEANUP(buf_release) = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	struct place_seen s;

	memset(target, 'x', sizeof(target) - 1);
	target[sizeof(target) - 1] = 0;
	REQUIRE(!symlinkat(target, dir, "z"));
	ck_assert_msg(!store_list(store, ".", add_name, &b, &e), "%s", e.msg);
	ck_assert_int_eq(e.code, 0);
	ck_assert(b.len == 4 && strstr(b.data, "a\n") && strstr(b.data, "z\n"));
	REQUIRE(!unlinkat(dir, "a", 0));
	ck_assert_msg(!store_list(store, ".", note, line, &e), "%s", e.msg);
	(void)snprintf(wanted, sizeof(wanted), "z %d 0", PLACE_OTHER);
	ck_assert_str_eq(line, wanted);
	ck_assert_int_eq(store_look(store, "z", &s, &e), -ENAMETOOLONG);
}
END_TEST

static int do_everything(struct ckpt_err *e)
{
	struct place_seen now = { 0 };
	struct store *s = NULL;
	struct buf b = BUF_INIT(4096);
	struct net *n = NULL;
	struct reader r;
	int rc = net_new(NULL, &n, e);

	if (!rc)
		rc = store_open(n, "file:///somewhere/else", &(struct store_options){ .dir = dir },
				&s, e);
	if (!rc)
		rc = store_list(s, ".", add_name, &b, e);
	if (!rc && strcmp(b.data, "a\n") != 0)
		rc = err_set(e, EILSEQ, "another listing");
	if (!rc && (rc = store_look(s, "a", &now, e)) == 1)
		rc = now.size == SIZE ? 0 : err_set(e, EILSEQ, "another size");
	if (!rc) {
		rc = read_range_of(&r, s, "a", &now, 3, 4000, e);
		if (!rc && (r.n != 4000 || memcmp(r.p, bytes + 3, 4000) != 0))
			rc = err_set(e, EILSEQ, "other bytes");
	}
	buf_release(&b);
	store_free(s);
	net_free(n);
	return rc;
}

static const int fault_kinds[] = { FAULT_ALLOC, FAULT_OPEN, FAULT_READ, FAULT_STAT, FAULT_THREAD };

START_LOOP_TEST(whatever_fails_is_a_clean_error_and_leaves_nothing, ARRAY_LEN(fault_kinds))
{
	struct ckpt_err e = { 0 };
	unsigned failed = 0;

	ck_assert_msg(!do_everything(&e), "%s", e.msg);
	FAULT_LOOP(fault_kinds[_i])
	{
		int64_t live = fault_live();
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = do_everything(&e);
		fault_off();
		failed += rc != 0;
		ck_assert_msg(!rc || (rc == -e.code && *e.msg && rc != -EILSEQ), "%d: %s, %s", rc,
			      e.msg, fault_name());
		ck_assert_msg(fault_live() == live, "%s leaves %lld bytes: %s", fault_name(),
			      (long long)(fault_live() - live), e.msg);
	}
	ck_assert_uint_gt(failed, 0);
}
END_TEST

SUITE(file_store, .setup = setup, .teardown = teardown)
