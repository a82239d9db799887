/* SPDX-License-Identifier: Apache-2.0 */
#include "api/integrity.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "format/small_file.h"

#include <fcntl.h>
#include <limits.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char list_name[] = "integrity.json";
#define MAX_LIST ((size_t)64 << 20) /* bytes of integrity.json */

static void path_of(const struct integrity *in, const char *name, char out[static PATH_MAX])
{
	(void)snprintf(out, PATH_MAX, "%s%s", in->dir, name); /* cut, it is no file's name */
}

static int take_files(const json_t *j, struct integrity *ret, struct ckpt_err *e)
{
	const char *algorithm = json_string_value(json_object_get(j, "algorithm"));
	json_t *files = json_object_get(j, "files");

	if (!algorithm)
		return err_set(e, ERR_CORRUPT, "'%s' names no algorithm", list_name);
	if (strcmp(algorithm, "sha256") != 0)
		return err_set(e, ERR_UNSUPPORTED, "'%s': algorithm '%.60s' is not known",
			       list_name, algorithm);
	if (!json_is_object(files))
		return err_set(e, ERR_CORRUPT, "'%s' has no list of files", list_name);
	ret->files = json_incref(files);
	return 0;
}

int integrity_open(int dirfd, const char *dir, struct integrity *ret, struct ckpt_err *e)
{
	char path[PATH_MAX];
	struct stat st;
	const char *name;
	json_t *hash, *j;
	int rc;

	*ret = (struct integrity){ .dirfd = dirfd, .dir = dir };
	path_of(ret, list_name, path);
	if (fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT)
		return 0;
	j = small_file_json(dirfd, path, MAX_LIST, e);
	if (!j)
		return -e->code;
	rc = take_files(j, ret, e);
	json_decref(j);
	json_object_foreach (ret->files, name, hash) {
		path_of(ret, name, path);
		if (!fstatat(dirfd, path, &st, 0) && S_ISREG(st.st_mode))
			ret->bytes += (uint64_t)st.st_size;
	}
	return rc;
}

void integrity_close(struct integrity *in)
{
	json_decref(in->files);
	in->files = NULL;
}

int integrity_verify(const struct integrity *in, const char *name, const json_t *hash,
		     const struct integrity_work *work, struct ckpt_err *e)
{
	const char *want = json_string_value(hash);
	char path[PATH_MAX], hex[BASE16_ENCODE_LENGTH(SHA256_DIGEST_SIZE) + 1] = "";
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;
	struct stat st;
	autoclose int fd = -1;
	uint64_t at = 0;
	int64_t n;

	if (!want)
		return err_set(e, ERR_CORRUPT, "'%s': the hash of '%.100s' is no string", list_name,
			       name);
	path_of(in, name, path);
	fd = io_open_beneath(in->dirfd, path, &st, e);
	if (fd < 0)
		return err_wrap(e, "'%s'", list_name);
	sha256_init(&sha);
	while ((n = io_pread_some(fd, work->buf, work->cap, at)) > 0) {
		sha256_update(&sha, (size_t)n, work->buf);
		at += (uint64_t)n;
		work->progress(work->arg, (uint64_t)n);
	}
	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", path);
	sha256_digest(&sha, sizeof(digest), digest);
	base16_encode_update(hex, sizeof(digest), digest);
	if (strcasecmp(hex, want) != 0)
		return err_set(e, ERR_CORRUPT, "'%s' has SHA-256 %s, '%s' says %.64s", path, hex,
			       list_name, want);
	return 0;
}
