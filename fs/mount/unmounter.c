/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/unmounter.h"

#include "mount/child.h"
#include "mount/mounts.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static ssize_t read_some(void *buf, size_t n)
{
	ssize_t got;

	do
		got = read(STDIN_FILENO, buf, n);
	while (got < 0 && errno == EINTR);
	return got;
}

/* A single write of less than PIPE_BUF arrives whole. */
static void unmount_when_asked(void *arg)
{
	const bool *auto_unmount = arg;
	struct mount_found found;
	struct ckpt_err e;
	char c;

	if (read_some(&found, sizeof(found)) != sizeof(found) ||
	    (read_some(&c, 1) != 1 && !*auto_unmount))
		_exit(0);
	_exit(mounts_remove(&found, MNT_DETACH, &e) ? 1 : 0);
}

int unmounter_start(struct unmounter *u, bool auto_unmount, struct ckpt_err *e)
{
	autoclose int theirs = -1;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return err_sys(e, errno, "pipe");
	theirs = ends[0];
	if (child_start("ckptfs-umount", theirs, -1, unmount_when_asked, &auto_unmount, &u->pid,
			e)) {
		(void)close(ends[1]);
		return -e->code;
	}
	u->fd = ends[1];
	return 0;
}

int unmounter_bind(struct unmounter *u, const struct mount_found *found, struct ckpt_err *e)
{
	int rc = io_write(u->fd, found, sizeof(*found));

	return rc ? err_sys(e, -rc, "pipe to ckptfs-umount") : 0;
}

static int wait_for(struct unmounter *u)
{
	int status = 0;

	(void)close(steal_fd(&u->fd));
	while (waitpid(u->pid, &status, 0) < 0 && errno == EINTR)
		;
	return status ? -EIO : 0;
}

int unmounter_ask(struct unmounter *u)
{
	int rc = io_write(u->fd, "", 1);

	return wait_for(u) || rc ? -EIO : 0;
}

void unmounter_release(struct unmounter *u)
{
	if (u->fd >= 0)
		(void)wait_for(u);
}
