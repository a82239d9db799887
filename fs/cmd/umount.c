/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The umount command. It refuses mounts of other programs: as root it would otherwise be a
 * umount(8) without checks.
 */
#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/mounts.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <string.h>

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
	return mounts_remove(&found, 0, e);
}

static int umount_run(const struct options *o)
{
	struct ckpt_err e = { 0 };

	return unmount(o->args[0], &e) ? cmd_fail(&e) : STATUS_DONE;
}

const struct command command_umount = {
	.name = "umount",
	.usage = "MNT",
	.complete = "m",
	.summary = "Unmount",
	.examples = "  $ ckptfs umount mnt\n",
	.min_args = 1,
	.max_args = 1,
	.run = umount_run,
};
