/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/page_file.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file gets its name only when it is complete. */
static int replace_file(const char *path, const char *page, size_t len, struct ckpt_err *e)
{
	autofree char *temporary = NULL;
	mode_t mask = umask(0);
	autoclose int fd = -1;
	int rc;

	(void)umask(mask);
	if (asprintf(&temporary, "%s.XXXXXX", path) < 0) {
		temporary = NULL;
		return err_nomem(e);
	}
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "write '%s'", path);
	rc = io_write(fd, page, len);
	if (!rc && (fchmod(fd, 0666 & ~mask) || rename(temporary, path)))
		rc = -errno;
	if (!rc)
		return 0;
	(void)unlink(temporary);
	return err_sys(e, -rc, "write '%s'", path);
}

static int write_to(const char *path, const char *page, size_t len, struct ckpt_err *e)
{
	struct stat st;

	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		return err_set(e, EISDIR, "write '%s': a directory; name a file", path);
	if (!stat(path, &st) && !S_ISREG(st.st_mode)) { /* /dev/stdout */
		FILE *f = fopen(path, "we");
		bool done = f && fwrite(page, 1, len, f) == len;

		return (f && !fclose(f) && done) ? 0 : err_sys(e, errno, "write '%s'", path);
	}
	return replace_file(path, page, len, e);
}

int page_file_write(const char *path, const char *page, size_t len, bool quiet, struct ckpt_err *e)
{
	char size[16];
	int rc;

	if (!strcmp(path, "-")) {
		if (isatty(STDOUT_FILENO))
			return err_set(e, EINVAL,
				       "a page is not for a terminal; name a file instead of '-'");
		(void)fwrite(page, 1, len, stdout);
		return 0;
	}
	rc = write_to(path, page, len, e);
	if (!rc && !quiet)
		(void)fprintf(stderr, "%s: %s\n", path, text_size(len, size));
	return rc;
}
