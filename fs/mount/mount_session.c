/* SPDX-License-Identifier: Apache-2.0 */
/* libfuse's session, and the mount that the kernel makes for it. */
#include "mount/mount_internal.h"

#include "cmd/capture.h"
#include "cmd/options.h"
#include "mount/negotiate.h"
#include "mount/passthrough.h"
#include "mount/watch.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"

#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MAX_MOUNTS = 16 << 20 }; /* bytes of the list of all mounts */

static void add_flag(char **list, bool on, const char *word, int *failed)
{
	if (on)
		*failed |= fuse_opt_add_opt(list, word);
}

/* A value may contain commas. */
static void add_value(char **list, const char *word, const char *value, int *failed)
{
	autofree char *both = NULL;

	if (!value)
		return;
	both = text_format("%s=%s", word, value);
	if (!both)
		*failed = -1;
	else
		*failed |= fuse_opt_add_opt_escaped(list, both);
}

int mount_new_session(struct mount *m, struct ckpt_err *e)
{
	const struct options *o = m->opts;
	struct fuse_args args CLEANUP(fuse_opt_free_args) = FUSE_ARGS_INIT(0, NULL);
	autofree char *list = NULL;
	struct fuse_lowlevel_ops ops;
	struct capture c;
	char line[256];
	int failed = 0;

	add_flag(&list, true, "ro", &failed);
	add_value(&list, "fsname", o->fsname ? o->fsname : m->source, &failed);
	add_value(&list, "subtype", o->subtype ? o->subtype : "ckptfs", &failed);
	add_value(&list, "context", o->context, &failed);
	add_flag(&list, o->allow_other, "allow_other", &failed);
	add_flag(&list, o->allow_root, "allow_root", &failed);
	/* The modes never change, so the kernel can check them itself; without this option
	 * access(X_OK) would report that files can be executed. */
	add_flag(&list, true, "default_permissions", &failed);
	add_flag(&list, o->io_uring && negotiate_has_uring(), "io_uring", &failed);
	add_flag(&list, o->nosuid, "nosuid", &failed);
	add_flag(&list, o->nodev, "nodev", &failed);
	add_flag(&list, o->noexec, "noexec", &failed);
	if (failed || fuse_opt_add_arg(&args, "ckptfs") || fuse_opt_add_arg(&args, "-o") ||
	    fuse_opt_add_arg(&args, list) || (o->debug && fuse_opt_add_arg(&args, "-d")))
		return err_sys(e, ENOMEM, "mount options");
	watch_ops(&ops);
	if (capture_start(&c, e))
		return -e->code;
	m->session = fuse_session_new(&args, &ops, sizeof(ops), m->fs);
	capture_stop(&c, line, sizeof(line));
	if (!m->session)
		return err_set(e, EINVAL, "mount '%s': %s", m->target,
			       *line ? line : "libfuse refused");
	return 0;
}

/* Determines which mount is ours, before anything else could mistake another mount for it. */
static int find_mount(struct mount *m, const struct buf *before, struct ckpt_err *e)
{
	int rc = mounts_find_new(m->target, fuse_session_fd(m->session), before, &m->found, e);

	if (rc > 0)
		return err_set(e, ESTALE,
			       "mount '%s': the directory was moved while it was mounted; "
			       "'ckptfs umount' removes what is mounted there now",
			       m->target);
	if (rc)
		return err_wrap(e, "mount '%s' is left behind, and 'ckptfs umount' removes it",
				m->target);
	m->bound = true;
	return unmounter_bind(&m->unmounter, &m->found, e);
}

/* Explains why it was not mounted and, if FUSE is missing, names the commands that work without
 * it. */
static int refused(const struct mount *m, const char *why, struct ckpt_err *e)
{
	autoclose int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	struct stat st;
	bool no_fuse = fd < 0 || fstat(fd, &st) || st.st_rdev != makedev(10, 229) ||
		       strstr(why, "not permitted") ||
		       strstr(why, "No such file"); /* no /dev/fuse, no fusermount3 */

	return err_set(e, EIO, "mount '%s': %s%s", m->target, *why ? why : "refused",
		       no_fuse ? "; without FUSE, 'ckptfs cat', 'ckptfs export' and the Python "
				 "module 'ckptfs' read the same files"
			       : "");
}

/*
 * The path to mount at. Opening the checkpoint may have taken minutes, in which the owner of a
 * directory above the mount point can have put a link in its place. Root must not be led elsewhere,
 * so who may mount mounts by descriptor. For others fusermount3 mounts, which has no such
 * descriptor and checks that the directory is theirs.
 */
static const char *where(const struct mount *m, char by_fd[static 32])
{
	(void)snprintf(by_fd, 32, "/proc/self/fd/%d", m->target_fd);
	return !m->given && is_sys_admin() && !access(by_fd, F_OK) ? by_fd : m->target;
}

int mount_start_session(struct mount *m, struct ckpt_err *e)
{
	struct buf before CLEANUP(buf_release) = BUF_INIT(MAX_MOUNTS);
	struct capture c;
	char line[256], by_fd[32];
	int rc;

	if (mounts_list(&before, e))
		return -e->code;
	if (fuse_set_signal_handlers(m->session))
		return err_set(e, EINVAL, "mount '%s': signal handlers refused", m->target);
	m->signals = true;
	if (capture_start(&c, e))
		return -e->code;
	rc = fuse_session_mount(m->session, where(m, by_fd));
	capture_stop(&c, line, sizeof(line));
	if (m->target_fd >= 0)
		(void)close(m->target_fd);
	m->target_fd = -1;
	if (rc)
		return refused(m, line, e);
	if (!m->given && find_mount(m, &before, e))
		return -e->code;
	if (m->opts->io_uring && negotiate_no_uring())
		log_msg(LOG_LEVEL_WARN, "warning: using /dev/fuse instead of io_uring: %s",
			negotiate_no_uring());
	rc = fs_start(m->fs, m->session);
	if (rc)
		return err_sys(e, -rc, "mount '%s'", m->target);
	return 0;
}
