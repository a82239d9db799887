/* SPDX-License-Identifier: Apache-2.0 */
/* The two arguments: is the second one a directory on which the first one can be mounted? */
#include "mount/mount_internal.h"

#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/live.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

bool mount_lies_in(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !strncmp(dir, path, n) && (!path[n] || path[n] == '/' || n == 1);
}

static bool opens(const char *path)
{
	struct ckpt_err ignored;
	struct ckpt *c = NULL;

	(void)ckpt_open(path, CMD_WORDS("runs", "allow_missing", "index=:memory:"), NULL, &c,
			&ignored);
	ckpt_close(c);
	return c;
}

bool mount_explain_swapped(const struct mount *m, struct ckpt_err *e)
{
	const char *source = m->opts->args[0], *target = m->opts->args[1];

	if (!opens(target) || opens(m->source))
		return false;
	(void)err_set(e, EINVAL,
		      "'%s' is a checkpoint and '%s' is not: the checkpoint comes first, as in "
		      "'ckptfs mount %s %s'",
		      target, source, target, source);
	return true;
}

/* "/dev/fd/N": libfuse serves what the caller has mounted with this descriptor, as mount.fuse3(8)
 * does with drop_privileges, and programs that mount for containers. 1: target has another form. */
static int resolve_given(struct mount *m, const char *target, struct ckpt_err *e)
{
	unsigned fd;
	int end = 0;
	struct stat st;

	/* NOLINTNEXTLINE(cert-err34-c): nine digits fit */
	if (sscanf(target, "/dev/fd/%9u%n", &fd, &end) != 1 || target[end])
		return 1;
	if (fstat((int)fd, &st))
		return err_sys(e, errno, "mount point '%s'", target);
	if (fd <= STDERR_FILENO || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(10, 229))
		return err_set(e, EINVAL,
			       "mount point '%s': not an open descriptor of /dev/fuse with the "
			       "number 3 or above",
			       target);
	m->target = strdup(target);
	m->given = true;
	return m->target ? 0 : err_sys(e, ENOMEM, "mount");
}

/* A second mount would hide the first, and each would have to be unmounted. */
static int refuse_live(const struct mount *m, struct ckpt_err *e)
{
	struct jdoc stats CLEANUP(jdoc_release) = { 0 };
	struct mount_found found;
	struct ckpt_err ignored;
	const char *what;
	int rc = mounts_find(m->target, &found, e);

	if (rc < 0)
		return rc;
	if (rc || strncmp(found.type, "fuse", 4) != 0 || live_load(m->target, &stats, &ignored))
		return 0;
	what = jval_str(jval_get(jdoc_root(&stats), "checkpoint"));
	return err_set(e, EBUSY,
		       "mount point '%s': '%.100s' is mounted there already; 'ckptfs umount %s' "
		       "unmounts it",
		       m->target, what ? what : "a checkpoint", m->target);
}

struct hiding {
	const struct mount *m;
	const char *option; /* which names the path; NULL: the checkpoint */
	struct ckpt_err *e;
};

/* Does it lie in the mount point, or is it a link to something there? A file may still have to be
 * created in its directory. */
static int try_hiding(void *arg, const char *path)
{
	const struct hiding *h = arg;
	const char *dir = h->m->target, *given = h->m->opts->args[1], *files = text_file_path(path);
	autofree char *real = NULL, *parent = NULL;
	char *slash;

	if (!files && text_is_address(path))
		return 0;
	path = files ? files : path;
	real = realpath(path, NULL);
	parent = strdup(path);
	slash = parent ? strrchr(parent, '/') : NULL;
	if (!real && slash) { /* without one it may be a word, such as "none" */
		slash[slash == parent] = 0;
		real = realpath(parent, NULL);
	}
	/* The path itself, too, leads there if it goes through a link in the mount point. */
	if (!(real && mount_lies_in(real, dir)) && !(*path == '/' && mount_lies_in(path, dir)))
		return 0;
	return h->option ? err_set(h->e, EINVAL,
				   "mount point '%s': a mount there would hide '%.200s', which "
				   "option '%s' names",
				   given, path, h->option)
			 : err_set(h->e, EINVAL,
				   "mount point '%s': a mount there would hide '%.200s', which the "
				   "checkpoint needs",
				   given, path);
}

/* "PATH", "DIR:SCALE" */
static int try_value(struct hiding *h, const char *value)
{
	autofree char *path = strdup(value);
	char *colon = path ? strrchr(path, ':') : NULL;

	if (colon && !strchr(colon, '/') && access(path, F_OK))
		*colon = 0;
	return path ? try_hiding(h, path) : err_sys(h->e, ENOMEM, "options");
}

/* The names of average= may be relative to a run; what they stand for is known later. */
static bool names_files(const struct ckpt_option *x)
{
	static const char *const others[] = { "overlay", "lora", "index", "cache_dir" };

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (!strcmp(x->name, others[i]))
			return true;
	return x->form == CKPT_OPTION_FILE;
}

/* What the options name, of which a run opens some only when one of its checkpoints is read. */
static int refuse_hiding_options(const struct mount *m, struct ckpt_err *e)
{
	struct hiding h = { m, NULL, e };
	const struct ckpt_option *x;
	int rc = 0;

	for (size_t i = 0; !rc && (x = ckpt_option(i)); i++) {
		const char *const *word = names_files(x) ? m->opts->open : NULL;
		size_t n = strlen(x->name);

		h.option = x->name;
		for (; !rc && word && *word; word++)
			if (!strncmp(*word, x->name, n) && (*word)[n] == '=')
				rc = try_value(&h, *word + n + 1);
	}
	return rc;
}

int mount_refuse_hiding(const struct mount *m, struct ckpt_err *e)
{
	struct hiding h = { m, NULL, e };
	int rc = try_hiding(&h, m->source);

	if (!rc && ckpt_beyond(m->ckpt))
		rc = try_hiding(&h, ckpt_beyond(m->ckpt));
	return rc ? rc : ckpt_others(m->ckpt, try_hiding, &h);
}

int mount_resolve(struct mount *m, struct ckpt_err *e)
{
	const char *target = m->opts->args[1];
	struct stat st;
	struct statvfs fs;
	int rc;

	if (ckpt_address(m->opts->args[0], &m->source, e))
		return -e->code;
	rc = resolve_given(m, target, e);
	if (rc <= 0)
		return rc;
	if (statvfs(target, &fs) || stat(target, &st)) { /* stat alone may come from the cache */
		if (mounts_is_dead(errno))
			return err_set(e, ENOTCONN,
				       "mount point '%s': a dead mount is there; 'ckptfs umount "
				       "%s' removes it",
				       target, target);
		return err_sys(e, errno, "mount point '%s'", target);
	}
	if (!S_ISDIR(st.st_mode)) {
		rc = err_set(e, ENOTDIR, "mount point '%s': not a directory", target);
		return mount_explain_swapped(m, e) ? -e->code : rc;
	}
	m->target = realpath(target, NULL);
	m->target_fd =
		m->target ? open(m->target, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (m->target_fd < 0)
		return err_sys(e, errno, "mount point '%s'", target);
	if (mount_lies_in(m->source, m->target))
		return err_set(e, EINVAL,
			       "mount point '%s': a mount there would hide the checkpoint", target);
	return refuse_live(m, e) || refuse_hiding_options(m, e) ? -e->code : 0;
}
