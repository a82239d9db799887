/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/live.h"

#include "mount/mounts.h"
#include "mount/watch.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { MAX_TEXT = 16 << 20 }; /* bytes */

int live_read(const char *root, struct buf *ret, struct ckpt_err *e)
{
	autofree char *path = NULL;
	int rc;

	path = text_format("%s/" WATCH_DIR "/" WATCH_FILE, root);
	if (!path)
		return err_sys(e, ENOMEM, "'%s'", root);
	rc = io_read_file(path, ret, e);
	if (rc && mounts_is_dead(-rc))
		return err_set(e, ENOTCONN, "'%s': a dead mount; 'ckptfs umount %s' removes it",
			       root, root);
	return rc;
}

int live_load(const char *root, struct jdoc *ret, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(MAX_TEXT);
	struct ckpt_err why;

	if (live_read(root, &text, e))
		return -e->code;
	if (jdoc_parse_copy(ret, text.data ? text.data : "", text.len, 0, &why))
		return err_set(e, why.code, "'%s/" WATCH_DIR "/" WATCH_FILE "': %s", root, why.msg);
	if (!jval_is(jdoc_root(ret), J_OBJECT))
		return err_set(e, ERR_CORRUPT, "'%s/" WATCH_DIR "/" WATCH_FILE "': no object",
			       root);
	return 0;
}

char *live_root(const char *path)
{
	char *root = strdup(path);
	struct stat here, above;

	if (!root || stat(root, &here))
		goto out;
	for (;;) {
		char *slash = strrchr(root, '/'), last;

		if (!slash || !slash[1])
			return root;
		slash = slash == root ? slash + 1 : slash;
		last = *slash;
		*slash = 0;
		if (stat(root, &above))
			goto out;
		if (above.st_dev != here.st_dev) {
			*slash = last;
			return root;
		}
	}
out:
	free(root);
	return NULL;
}

bool live_is_fuse(const char *path)
{
	autofree char *there = strdup(path);
	struct statfs st;

	while (there && statfs(there, &st)) {
		char *slash = strrchr(there, '/');

		if (!slash || slash == there)
			return false;
		*slash = 0;
	}
	return there && st.f_type == IO_FUSE;
}
