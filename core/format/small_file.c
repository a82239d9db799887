/* SPDX-License-Identifier: Apache-2.0 */
#include "format/small_file.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "index/catalog_build.h"
#include "source/source.h"

#include <xxhash.h>

int small_file_json(struct place *place, const char *name, size_t max, struct jdoc *ret,
		    struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	autofree char *text = NULL;
	struct jdoc d = { 0 };
	struct ckpt_err why;
	size_t size;
	int64_t n;
	int rc = place_file(place, name, &file, e);

	if (rc)
		return rc;
	if (file->seen.size > max)
		return err_set(e, EFBIG, "'%s' has more than %zu bytes", name, max);
	size = (size_t)file->seen.size;
	text = malloc(size + 1);
	if (!text)
		return err_nomem(e);
	n = source_read(file, text, size + 1, 0, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", name);
	if ((size_t)n > size)
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	if (jdoc_parse(&d, text, (size_t)n, 0, &why))
		return err_set(e, why.code, "'%s', line %zu: %s", name, d.line, why.msg);
	d.owned = steal_ptr(&text);
	*ret = d;
	return 0;
}

int small_file_fingerprint(struct place *place, const char *name, struct catalog_writer *w,
			   uint64_t *ret_size, struct ckpt_err *e)
{
	enum { PIECE = 1 << 16 };
	struct source *file CLEANUP(source_freep) = NULL;
	autofree uint8_t *buf = NULL;
	XXH3_state_t *s;
	XXH128_hash_t h;
	uint64_t at = 0;
	int64_t n;
	int rc = place_file(place, name, &file, e);

	if (rc)
		return rc;
	buf = malloc(PIECE);
	s = XXH3_createState();
	if (!buf || !s) {
		XXH3_freeState(s);
		return err_nomem(e);
	}
	(void)XXH3_128bits_reset(s);
	while ((n = source_read(file, buf, PIECE, at, e)) > 0) {
		(void)XXH3_128bits_update(s, buf, (size_t)n);
		at += (uint64_t)n;
	}
	h = XXH3_128bits_digest(s);
	XXH3_freeState(s);
	if (n < 0)
		return err_wrap(e, "read '%s'", name);
	if (at != file->seen.size)
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	if (ret_size)
		*ret_size = at;
	return catalog_add_metadata(w, name, &file->seen, (const uint64_t[2]){ h.low64, h.high64 },
				    e);
}
