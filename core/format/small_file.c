/* SPDX-License-Identifier: Apache-2.0 */
#include "format/small_file.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_build.h"
#include "parse/json_text.h"

#include <xxhash.h>

json_t *small_file_json(int dirfd, const char *name, size_t max, struct ckpt_err *e)
{
	struct stat st;
	autoclose int fd = io_open_beneath(dirfd, name, &st, e);
	autofree char *text = NULL;
	json_error_t why;
	json_t *j;
	int64_t n;

	if (fd < 0)
		return NULL;
	text = malloc(max + 1);
	if (!text) {
		(void)err_set(e, ENOMEM, "out of memory");
		return NULL;
	}
	n = io_pread_some(fd, text, max + 1, 0);
	if (n < 0) {
		(void)err_sys(e, (int)-n, "read '%s'", name);
		return NULL;
	}
	if ((size_t)n > max) {
		(void)err_set(e, EFBIG, "'%s' has more than %zu bytes", name, max);
		return NULL;
	}
	j = json_text_load(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
	if (!j)
		(void)err_set(e, json_text_code(&why, ERR_CORRUPT), "'%s', line %d: %s", name,
			      why.line, why.text);
	return j;
}

int small_file_fingerprint(int dirfd, const char *name, struct catalog_writer *w,
			   uint64_t *ret_size, struct ckpt_err *e)
{
	enum { PIECE = 1 << 16 };
	struct stat st;
	autoclose int fd = io_open_beneath(dirfd, name, &st, e);
	autofree uint8_t *buf = NULL;
	XXH3_state_t *s;
	XXH128_hash_t h;
	uint64_t at = 0;
	int64_t n;

	if (fd < 0)
		return fd;
	buf = malloc(PIECE);
	s = XXH3_createState();
	if (!buf || !s) {
		XXH3_freeState(s);
		return err_set(e, ENOMEM, "out of memory");
	}
	(void)XXH3_128bits_reset(s);
	while ((n = io_pread_some(fd, buf, PIECE, at)) > 0) {
		(void)XXH3_128bits_update(s, buf, (size_t)n);
		at += (uint64_t)n;
	}
	h = XXH3_128bits_digest(s);
	XXH3_freeState(s);
	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", name);
	if (at != (uint64_t)st.st_size)
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	if (ret_size)
		*ret_size = at;
	return catalog_add_metadata(w, name, &st, (const uint64_t[2]){ h.low64, h.high64 }, e);
}
