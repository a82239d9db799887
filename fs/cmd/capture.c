/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/capture.h"

#include "base/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void capture_start(struct capture *c)
{
	(void)fflush(stderr);
	c->saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	c->file = memfd_create("stderr", MFD_CLOEXEC);
	if (c->file >= 0)
		(void)dup2(c->file, STDERR_FILENO);
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

	(void)fflush(stderr);
	n = c->file >= 0 ? io_pread_some(c->file, text, sizeof(text) - 1, 0) : 0;
	text[n > 0 ? n : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	(void)snprintf(line, cap, "%s", after_prefix(text));
	if (c->saved >= 0) {
		(void)dup2(c->saved, STDERR_FILENO);
		(void)close(c->saved);
	}
	if (c->file >= 0)
		(void)close(c->file);
}
