/* SPDX-License-Identifier: Apache-2.0 */
#include "mounts.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void cleanup_fclose(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

/* Undo the kernel's "\040", in place. */
static void decode(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && strspn(s + 1, "01234567") >= 3) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

/* proc(5): "36 35 98:0 /root /mnt rw,noatime shared:1 - ext3 /dev/root rw" */
int mounts_find(const char *path, struct mount_found *ret, struct ckpt_err *e)
{
	FILE *f CLEANUP(cleanup_fclose) = fopen("/proc/self/mountinfo", "re");
	autofree char *line = NULL;
	size_t cap = 0;
	int found = 1;

	if (!f)
		return err_sys(e, errno, "open '/proc/self/mountinfo'");
	while (getline(&line, &cap, f) > 0) {
		autofree char *where = NULL;
		const char *rest = strstr(line, " - ");
		struct mount_found m;

		/* NOLINTNEXTLINE(cert-err34-c): the kernel's numbers fit */
		if (!rest || sscanf(line, "%*d %*d %u:%u %*s %ms", &m.major, &m.minor, &where) != 3)
			continue;
		decode(where);
		if (strcmp(where, path) != 0 || sscanf(rest, " - %63s", m.type) != 1)
			continue;
		*ret = m; /* later lines lie on top */
		found = 0;
	}
	return found;
}

char *mounts_resolve(const char *path, struct ckpt_err *e)
{
	autofree char *copy = strdup(path);
	autofree char *parent = NULL;
	char *real, *slash;

	real = realpath(path, NULL);
	if (real || !copy || (errno != ENOTCONN && errno != ECONNABORTED)) {
		if (!real)
			(void)err_sys(e, errno, "'%s'", path);
		return real;
	}
	/* A dead mount: its name in its parent will do. */
	for (slash = copy + strlen(copy); slash > copy + 1 && slash[-1] == '/';)
		*--slash = 0;
	slash = strrchr(copy, '/');
	if (slash)
		*slash = 0;
	parent = realpath(!slash ? "." : *copy ? copy : "/", NULL);
	if (!parent || asprintf(&real, "%s/%s", strcmp(parent, "/") ? parent : "",
				slash ? slash + 1 : copy) < 0) {
		(void)err_sys(e, ENOTCONN, "'%s'", path);
		return NULL;
	}
	return real;
}

void mounts_bdi(const struct mount_found *m, char ret[static MOUNTS_BDI_MAX])
{
	(void)snprintf(ret, MOUNTS_BDI_MAX, "/sys/class/bdi/%u:%u/read_ahead_kb", m->major,
		       m->minor);
}

void mounts_read_ahead(const struct mount_found *m)
{
	static const char kib[] = "1024";
	char path[MOUNTS_BDI_MAX];
	autoclose int fd = -1;

	mounts_bdi(m, path);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && write(fd, kib, strlen(kib)) < 0)
		return; /* as good as before */
}
