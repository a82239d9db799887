/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/open/integrity.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "format/small_file.h"
#include "source/source.h"

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
	/* a truncated path cannot name a file */
	(void)snprintf(out, PATH_MAX, "%s%s", in->dir, name);
}

static int take_files(struct jdoc *d, struct ckpt_err *e)
{
	const char *algorithm = jval_str(jval_get(jdoc_root(d), "algorithm"));
	struct jval files = jval_get(jdoc_root(d), "files");

	if (!algorithm)
		return err_set(e, ERR_CORRUPT, "'%s' names no algorithm", list_name);
	if (strcmp(algorithm, "sha256") != 0)
		return err_set(e, ERR_UNSUPPORTED, "'%s': algorithm '%.60s' is not known",
			       list_name, algorithm);
	if (!jval_is(files, J_OBJECT))
		return err_set(e, ERR_CORRUPT, "'%s' has no list of files", list_name);
	jdoc_keep(d, files);
	return 0;
}

int integrity_open(struct place *place, const char *dir, struct integrity *ret, struct ckpt_err *e)
{
	char path[PATH_MAX];
	struct place_seen seen;
	struct ckpt_err ignored;
	int rc;

	*ret = (struct integrity){ .place = place, .dir = dir };
	path_of(ret, list_name, path);
	if (!place_look_at(place, path, &seen, &ignored))
		return 0;
	rc = small_file_json(place, path, MAX_LIST, &ret->files, e);
	if (!rc)
		rc = take_files(&ret->files, e);
	if (rc) {
		integrity_close(ret);
		return rc;
	}
	for (struct jiter i = jiter(jdoc_root(&ret->files)); jiter_next(&i);) {
		path_of(ret, i.key, path);
		if (place_look(place, path, &seen, &ignored) > 0 && seen.kind == PLACE_FILE)
			ret->bytes += seen.size;
	}
	return 0;
}

void integrity_close(struct integrity *in)
{
	jdoc_release(&in->files);
}

int integrity_verify(const struct integrity *in, const char *name, struct jval hash,
		     const struct integrity_work *work, struct ckpt_err *e)
{
	const char *want = jval_str(hash);
	char path[PATH_MAX], hex[BASE16_ENCODE_LENGTH(SHA256_DIGEST_SIZE) + 1] = "";
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;
	struct source *file CLEANUP(source_freep) = NULL;
	uint64_t at = 0;
	int64_t n;

	if (!want)
		return err_set(e, ERR_CORRUPT, "'%s': the hash of '%.100s' is not a string",
			       list_name, name);
	path_of(in, name, path);
	if (place_file(in->place, path, &file, e))
		return err_wrap(e, "'%s'", list_name);
	sha256_init(&sha);
	while ((n = source_read(file, work->buf, work->cap, at, e)) > 0) {
		sha256_update(&sha, (size_t)n, work->buf);
		at += (uint64_t)n;
		work->progress(work->arg, (uint64_t)n);
	}
	if (n < 0)
		return err_wrap(e, "read '%s'", path);
	sha256_digest(&sha, sizeof(digest), digest);
	base16_encode_update(hex, sizeof(digest), digest);
	if (strcasecmp(hex, want) != 0)
		return err_set(e, ERR_CORRUPT, "'%s' has SHA-256 %s, '%s' says %.64s", path, hex,
			       list_name, want);
	return 0;
}
