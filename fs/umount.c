/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The umount command. It refuses what is not a mount of this program: as root it would otherwise
 * be a umount(8) that asks nothing.
 */
#include "capture.h"
#include "cmd.h"
#include "mounts.h"
#include "options.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <spawn.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static int run_fusermount(char *target, struct ckpt_err *e)
{
	char name[] = "fusermount3", flag[] = "-u", end[] = "--";
	char *argv[] = { name, flag, end, target, NULL };
	struct capture c;
	char line[256];
	int status = 0, rc;
	pid_t pid;

	capture_start(&c);
	rc = posix_spawnp(&pid, name, NULL, NULL, argv, environ);
	if (!rc && waitpid(pid, &status, 0) < 0)
		rc = errno;
	capture_stop(&c, line, sizeof(line));
	if (rc)
		return err_sys(e, rc, "run 'fusermount3'");
	if (status)
		return err_set(e, EIO, "umount '%s': %s", target,
			       *line ? line : "fusermount3 failed");
	return 0;
}

static int unmount(const char *path, struct ckpt_err *e)
{
	autofree char *target = mounts_resolve(path, e);
	struct mount_found found;
	int rc;

	if (!target)
		return err_wrap(e, "umount");
	rc = mounts_find(target, &found, e);
	if (rc < 0)
		return rc;
	if (rc || strcmp(found.type, "fuse.ckptfs") != 0)
		return err_set(e, EINVAL, "umount '%s': not a mount of ckptfs", path);
	if (geteuid() != 0)
		return run_fusermount(target, e);
	if (!umount2(target, UMOUNT_NOFOLLOW))
		return 0;
	if (errno == EBUSY)
		return err_set(e, EBUSY,
			       "umount '%s': in use; 'umount -l' detaches it now and ends the "
			       "daemon when the last file is closed",
			       path);
	return err_sys(e, errno, "umount '%s'", path);
}

static int umount_run(const struct options *o)
{
	struct ckpt_err e = { 0 };

	return unmount(o->args[0], &e) ? cmd_fail(&e) : STATUS_DONE;
}

const struct command command_umount = {
	.name = "umount",
	.usage = "MNT",
	.summary = "Unmount",
	.min_args = 1,
	.max_args = 1,
	.run = umount_run,
};
