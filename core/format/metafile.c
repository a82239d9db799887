/* SPDX-License-Identifier: Apache-2.0 */
#include "format/metafile.h"

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/format.h"
#include "index/catalog_build.h"
#include "parse/pickle.h"
#include "source/source.h"

int metafiles_init(struct metafiles *m, struct place *place, const struct scan_opts *opts,
		   struct ckpt_err *e)
{
	*m = (struct metafiles){ .place = place, .opts = opts, .hash = XXH3_createState() };
	return m->hash ? 0 : err_nomem(e);
}

void metafiles_release(struct metafiles *m)
{
	XXH3_freeState(m->hash);
	m->hash = NULL;
}

void metafiles_expect(struct metafiles *m, const char *name)
{
	struct place_seen seen;
	struct ckpt_err ignored;

	if (place_look(m->place, name, &seen, &ignored) > 0)
		m->total += seen.size;
}

static int64_t read_file(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	struct metafiles *m = arg;
	int64_t n = source_read(m->file, buf, cap, off, e);

	if (n < 0)
		return err_wrap(e, "read '%s'", m->name);
	if (off == m->hashed) {
		(void)XXH3_128bits_update(m->hash, buf, (size_t)n);
		m->hashed += (uint64_t)n;
	}
	if (m->opts->progress) /* two passes: the first is a third of the work */
		m->opts->progress(
			m->opts->progress_arg,
			m->before + (m->hashed < m->size ? off / 3 : m->size / 3 + off * 2 / 3),
			m->total);
	return n;
}

int metafiles_read(struct metafiles *m, const char *name, metafile_parse_fn *parse, void *arg,
		   struct catalog_writer *w, struct ckpt_err *e)
{
	struct pickle_input in = { .read = read_file, .arg = m };
	struct source *file CLEANUP(source_freep) = NULL;
	struct digest hash;
	char rest[1 << 15];
	int64_t n;
	int rc = place_file(m->place, name, &file, e);

	if (rc)
		return rc;
	if (!file->seen.size)
		return err_set(e, ERR_CORRUPT, "'%s' is empty", name);
	m->file = file;
	m->name = name;
	m->hashed = 0;
	m->size = file->seen.size;
	(void)XXH3_128bits_reset(m->hash);
	rc = parse(arg, &in, e);
	if (rc)
		return err_wrap(e, "read '%s'", name);
	do { /* bytes after the pickle are part of the fingerprint too */
		n = read_file(m, m->hashed, rest, sizeof(rest), e);
		if (n < 0)
			return (int)n;
	} while (n);
	if (!source_is_same(file))
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	m->before += m->size;
	hash = digest_of(XXH3_128bits_digest(m->hash));
	return catalog_add_metadata(w, name, &file->seen, &hash, e);
}
