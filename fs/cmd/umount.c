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
#include "base/text.h"

#include <errno.h>
#include <string.h>

static int unmount_address(const char *address, struct ckpt_err *e)
{
	struct mount_found found;
	char shown[200];
	int rc = mounts_find_source(address, &found, e);

	if (rc > 0)
		return err_set(e, EINVAL, "umount: '%s': nothing is mounted from this address",
			       text_show_address(address, shown, sizeof(shown)));
	return rc ? err_wrap(e, "umount") : mounts_remove(&found, 0, e);
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
	if (rc || strcmp(found.type, MOUNTS_TYPE) != 0)
		return err_set(e, EINVAL, "umount: '%s': not a mount of ckptfs", path);
	return mounts_remove(&found, 0, e);
}

static int umount_run(const struct options *o)
{
	struct ckpt_err e = { 0 };

	const char *what = o->args[0];

	return (text_is_address(what) ? unmount_address : unmount)(what, &e) ? cmd_fail(&e)
									     : STATUS_DONE;
}

const struct command command_umount = {
	.name = "umount",
	.usage = "MNT|ADDRESS",
	.complete = "m",
	.summary = "Unmount",
	.examples = "  $ ckptfs umount mnt\n",
	.min_args = 1,
	.max_args = 1,
	.run = umount_run,
};
