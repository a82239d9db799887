/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/page_file.h"

#include "cmd/cmd.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Makes a file of exactly this mode, which the sandbox of a command does not let it change later. Its
 * name ends with six letters instead of those in `name`. */
static int make_temporary(char *name, mode_t mode)
{
	enum { TRIES = 100, LETTERS = 6 };
	char *end = name + strlen(name) - LETTERS;
	int fd = -1;

	for (unsigned i = 0; i < TRIES && fd < 0; i++) {
		uint8_t random[LETTERS];
		mode_t mask;

		if (getrandom(random, sizeof(random), 0) != sizeof(random))
			return -1;
		for (size_t k = 0; k < LETTERS; k++)
			end[k] = (char)('a' + random[k] % 26);
		mask = umask(0);
		fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0777);
		(void)umask(mask);
		if (fd < 0 && errno != EEXIST)
			return -1;
	}
	return fd;
}

/* temporary: a template in path's directory. The file gets its name only when it is complete. */
static int replace(char *temporary, const char *path, mode_t mode, const char *page, size_t len)
{
	autoclose int fd = make_temporary(temporary, mode);
	int rc;

	if (fd < 0)
		return -errno;
	rc = io_write(fd, page, len);
	if (!rc && (fsync(fd) || rename(temporary, path)))
		rc = -errno;
	if (rc)
		(void)unlink(temporary);
	return rc;
}

/* old: the file that is replaced, or NULL; its mode stays. */
static int replace_file(const char *path, const struct stat *old, const char *page, size_t len,
			struct ckpt_err *e)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGXFSZ };
	const char *slash = strrchr(path, '/');
	autofree char *temporary = NULL;
	mode_t mask = umask(0);
	sigset_t held, before;
	int rc;

	(void)umask(mask);
	/* path may be as long as a name can be */
	temporary = text_format("%.*s.ckptfs-XXXXXX", slash ? (int)(slash + 1 - path) : 0, path);
	if (!temporary)
		return err_nomem(e);
	/*
	 * Signals that would end the program wait until the temporary file is gone. SIGXFSZ must
	 * not even come later: write fails with EFBIG as well.
	 */
	(void)sigemptyset(&held);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		(void)sigaddset(&held, ends[i]);
	(void)pthread_sigmask(SIG_BLOCK, &held, &before);
	rc = replace(temporary, path, old ? old->st_mode & 0777 : 0666 & ~mask, page, len);
	if (rc == -EFBIG) {
		(void)sigemptyset(&held);
		(void)sigaddset(&held, SIGXFSZ);
		(void)sigtimedwait(&held, NULL, &(struct timespec){ 0 });
	}
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc ? err_sys(e, -rc, "write '%s'", path) : 0;
}

static int write_to(const char *path, const char *page, size_t len, struct ckpt_err *e)
{
	/* Of a link, the target is replaced. */
	autofree char *real = realpath(path, NULL);
	struct stat st;
	bool exists = !stat(path, &st);

	if (exists && S_ISDIR(st.st_mode))
		return err_set(e, EISDIR, "write '%s': a directory; name a file", path);
	if (exists && !S_ISREG(st.st_mode)) { /* /dev/stdout */
		FILE *f = fopen(path, "we");
		bool done = f && fwrite(page, 1, len, f) == len;

		return (f && !fclose(f) && done) ? 0 : err_sys(e, errno, "write '%s'", path);
	}
	return replace_file(real ? real : path, exists ? &st : NULL, page, len, e);
}

int page_file_write(const char *path, const char *page, size_t len, bool quiet, struct ckpt_err *e)
{
	char size[16], shown[4096];
	int rc;

	if (!strcmp(path, "-")) {
		if (isatty(STDOUT_FILENO))
			return err_set(e, EINVAL,
				       "a page is not for a terminal; name a file instead of '-'");
		cmd_write(page, len);
		return 0;
	}
	rc = write_to(path, page, len, e);
	if (!rc && !quiet)
		(void)fprintf(stderr, "%s: %s\n",
			      text_show(path, strlen(path), shown, sizeof(shown)),
			      text_size(len, size));
	return rc;
}
