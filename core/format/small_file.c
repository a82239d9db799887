/* SPDX-License-Identifier: Apache-2.0 */
#include "format/small_file.h"

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/json.h"
#include "index/catalog_build.h"
#include "source/source.h"

static int changed(const char *name, struct ckpt_err *e)
{
	return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?", name);
}

int small_file_read(struct place *place, const char *name, size_t max, struct small_file *ret,
		    struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	autofree char *bytes = NULL;
	size_t size;
	int64_t n;
	int rc = place_file(place, name, &file, e);

	if (rc)
		return rc;
	if (file->seen.size > max)
		return err_set(e, EFBIG, "'%s' has more than %zu bytes", name, max);
	size = (size_t)file->seen.size;
	bytes = malloc(size + 1);
	if (!bytes)
		return err_nomem(e);
	n = source_read(file, bytes, size + 1, 0, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", name);
	if ((size_t)n != size)
		return changed(name, e);
	*ret = (struct small_file){ steal_ptr(&bytes), size, file->seen };
	return 0;
}

int small_file_json(struct place *place, const char *name, size_t max, struct jdoc *ret,
		    struct ckpt_err *e)
{
	struct small_file file CLEANUP(small_file_release) = { 0 };
	struct jdoc d = { 0 };
	struct ckpt_err why;
	int rc = small_file_read(place, name, max, &file, e);

	if (rc)
		return rc;
	if (jdoc_parse(&d, file.bytes, file.len, 0, &why))
		return err_set(e, why.code, "'%s', line %zu: %s", name, d.line, why.msg);
	d.owned = steal_ptr(&file.bytes);
	*ret = d;
	return 0;
}

int64_t small_file_begin(struct place *place, const char *name, void *head, size_t cap,
			 struct place_seen *ret_seen, struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	struct ckpt_err why = { 0 };
	int64_t n = place_file(place, name, &file, &why);

	if (!n) {
		*ret_seen = file->seen;
		n = source_read(file, head, cap, 0, &why);
		if (n < 0)
			(void)err_wrap(&why, "read '%s'", name);
	}
	return n < 0 ? err_if_external((int)n, &why, e) : n;
}

int small_file_hash(struct place *place, const char *name, struct digest *ret,
		    struct place_seen *ret_seen, struct ckpt_err *e)
{
	enum { PIECE = 1 << 20 };
	struct source *file CLEANUP(source_freep) = NULL;
	autofree uint8_t *buf = NULL;
	XXH3_state_t *s;
	uint64_t at = 0;
	int64_t n;
	int rc = place_file(place, name, &file, e);

	if (rc)
		return rc;
	buf = malloc(PIECE);
	s = XXH3_createState();
	if (!buf || !s) {
		(void)XXH3_freeState(s);
		return err_nomem(e);
	}
	(void)XXH3_128bits_reset(s);
	while ((n = source_read(file, buf, PIECE, at, e)) > 0) {
		(void)XXH3_128bits_update(s, buf, (size_t)n);
		at += (uint64_t)n;
	}
	*ret = digest_of(XXH3_128bits_digest(s));
	(void)XXH3_freeState(s);
	if (n < 0)
		return err_wrap(e, "read '%s'", name);
	if (at != file->seen.size)
		return changed(name, e);
	*ret_seen = file->seen;
	return 0;
}

int small_file_fingerprint(struct place *place, const char *name, struct catalog_writer *w,
			   uint64_t *ret_size, struct ckpt_err *e)
{
	struct place_seen seen;
	struct digest hash;
	int rc = small_file_hash(place, name, &hash, &seen, e);

	if (rc)
		return rc;
	if (ret_size)
		*ret_size = seen.size;
	return catalog_add_metadata(w, name, &seen, &hash, e);
}
