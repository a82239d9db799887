/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a chunk index from a file that must not be lost. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "index/catalog_build.h"
#include "index/catalog_schema.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The size of SQLite's header, and where in it the application's number is, which is written last
 * (sqlite.org/fileformat2.html, 1.3). */
enum { HEADER = 100, AT_APPLICATION = 68 };

static bool is_an_index(const uint8_t head[static HEADER], bool finished)
{
	static const uint8_t zero[HEADER], id[] = CATALOG_APPLICATION_BYTES;
	bool named = !memcmp(head, CATALOG_MAGIC, sizeof(CATALOG_MAGIC));

	if (named && !memcmp(head + AT_APPLICATION, id, sizeof(id)))
		return true;
	return !finished && (!memcmp(head, zero, HEADER) ||
			     (named && !memcmp(head + AT_APPLICATION, zero, sizeof(id))));
}

/* finished: what a killed builder has left does not count as an index. */
static int check(const char *path, bool finished, struct ckpt_err *e)
{
	uint8_t head[HEADER] = { 0 };
	autoclose int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	ssize_t n = 0;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
		n = pread(fd, head, HEADER, 0);
		if (n < 0)
			return err_sys(e, errno, "read '%s'", path);
		if (!st.st_size || (n == HEADER && is_an_index(head, finished)))
			return 0;
	} else if (fd < 0 && errno != ELOOP && errno != ENXIO) {
		return err_sys(e, errno, "open '%s'", path);
	}
	return err_set(
		e, EEXIST,
		"'%s' is there, and is not a chunk index: name another file for the index, or "
		"remove it",
		path);
}

int catalog_check_replaceable(const char *path, struct ckpt_err *e)
{
	autofree char *tmp = NULL;
	int rc = check(path, true, e);

	if (rc)
		return rc;
	tmp = text_format("%s" CATALOG_UNFINISHED, path);
	return tmp ? check(tmp, false, e) : err_nomem(e);
}
