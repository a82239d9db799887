/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "dir_util.h"
#include "source/lease.h"
#include "suites.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static void setup(void)
{
	dir_setup();
	put_file(dir_fd, "f", "0123456789", 10);
	put_file(dir_fd, "g", "0123456789", 10);
}

static int open_file(const char *name)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);

	REQUIRE(fd >= 0);
	return fd;
}

static void wait_a_moment(void)
{
	(void)usleep(1000);
}

/* Waits until the watcher has finished what it was doing with all leases. */
static void pass_watcher(struct leases *s)
{
	struct lease none = { 0 };

	lease_drop(s, &none);
}

static atomic_bool opened;

static void *open_for_writing(void *arg)
{
	autoclose int fd = openat(dir_fd, "f", O_WRONLY | O_CLOEXEC);

	opened = true;
	return fd < 0 ? arg : NULL;
}

/* _i: how many users there are. */
START_LOOP_TEST(a_writer_waits_for_the_last_user, 4)
{
	autoclose int fd = open_file("f");
	struct leases *s = leases_new();
	struct lease l = { 0 };
	pthread_t writer;
	void *failed;

	ck_assert_ptr_nonnull(s);
	lease_take(s, &l, fd);
	ck_assert(l.held && l.taken);
	for (int i = 0; i < _i; i++)
		ck_assert(lease_begin(&l));
	opened = false;
	ck_assert(!pthread_create(&writer, NULL, open_for_writing, &l));
	while (l.held) /* until the watcher has seen the writer */
		wait_a_moment();
	for (int i = 0; i < _i; i++) {
		for (int k = 0; k < 20; k++)
			pass_watcher(s);
		ck_assert(l.taken && !opened);
		ck_assert(!lease_begin(&l)); /* nobody new */
		lease_end(&l);
	}
	(void)pthread_join(writer, &failed);
	ck_assert_ptr_null(failed);
	pass_watcher(s);
	ck_assert(!l.taken && l.tried);
	lease_drop(s, &l);
	leases_free(s);
}
END_TEST

/* One that is used for longer than the watcher keeps idle ones. */
START_TEST(one_in_use_is_not_given_back_for_being_idle)
{
	autoclose int fd = open_file("f"), other_fd = open_file("g");
	struct leases *s = leases_new();
	struct lease l = { 0 }, other = { 0 };

	ck_assert_ptr_nonnull(s);
	lease_take(s, &l, fd);
	ck_assert(lease_begin(&l));
	while (l.used) /* the first look */
		wait_a_moment();
	/* Another lease, an idle one, goes at the watcher's second look; the watcher looked at l,
	 * too. */
	lease_take(s, &other, other_fd);
	while (other.tried)
		wait_a_moment();
	pass_watcher(s);
	ck_assert(!other.taken && !other.held);
	ck_assert(l.taken && l.held);
	ck_assert_int_eq(fcntl(fd, F_GETLEASE), F_RDLCK);
	lease_end(&l);
	while (l.tried) /* now it goes, too, and may be had again */
		wait_a_moment();
	pass_watcher(s);
	ck_assert_int_eq(fcntl(fd, F_GETLEASE), F_UNLCK);
	lease_take(s, &l, fd);
	ck_assert(lease_begin(&l));
	lease_end(&l);
	lease_drop(s, &l);
	leases_free(s);
}
END_TEST

START_TEST(none_is_had_while_somebody_writes)
{
	autoclose int fd = open_file("f"), writer = openat(dir_fd, "f", O_WRONLY | O_CLOEXEC);
	struct leases *s = leases_new();
	struct lease l = { 0 };

	ck_assert(s && writer >= 0);
	lease_take(s, &l, fd);
	ck_assert(l.tried && !l.held && !lease_begin(&l));
	lease_drop(s, &l);
	leases_free(s);
	leases_free(NULL);
}
END_TEST

SUITE(lease, .setup = setup, .teardown = dir_teardown, .seconds = 40)
