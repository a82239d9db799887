/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/capture.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int capture_start(struct capture *c, struct ckpt_err *e)
{
	autoclose int file = memfd_create("stderr", MFD_CLOEXEC);
	autoclose int saved = -1;

	*c = (struct capture){ .saved = -1, .file = -1 };
	if (file < 0 && errno == ENOSYS)
		return 0;
	saved = file < 0 ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	if (saved < 0 || fflush(stderr) || dup2(file, STDERR_FILENO) < 0)
		return err_sys(e, errno, "redirect standard error");
	c->saved = steal_fd(&saved);
	c->file = steal_fd(&file);
	return 0;
}

static const char *after_prefix(const char *s)
{
	static const char *const prefixes[] = { "fusermount3: ", "fusermount: ", "fuse: " };

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(s, prefixes[i], strlen(prefixes[i])))
			return s + strlen(prefixes[i]);
	return s;
}

void capture_stop(struct capture *c, char *line, size_t cap)
{
	char text[512];
	int64_t n;

	*line = 0;
	if (c->file < 0)
		return;
	(void)fflush(stderr);
	n = io_pread_some(c->file, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	(void)snprintf(line, cap, "%s", after_prefix(text));
	(void)dup2(c->saved, STDERR_FILENO);
	(void)close(c->saved);
	(void)close(c->file);
}
