/* SPDX-License-Identifier: Apache-2.0 */
#include "format/metafile.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_build.h"
#include "format/format.h"
#include "parse/pickle.h"

#include <sys/stat.h>
#include <xxhash.h>

int metafiles_init(struct metafiles *m, int dirfd, const struct scan_opts *opts, struct ckpt_err *e)
{
	*m = (struct metafiles){ .dirfd = dirfd, .opts = opts, .hash = XXH3_createState() };
	return m->hash ? 0 : err_set(e, ENOMEM, "out of memory");
}

void metafiles_release(struct metafiles *m)
{
	XXH3_freeState(m->hash);
	m->hash = NULL;
}

void metafiles_expect(struct metafiles *m, const char *name)
{
	struct stat st;

	if (!fstatat(m->dirfd, name, &st, 0))
		m->total += (uint64_t)st.st_size;
}

static int64_t read_file(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	struct metafiles *m = arg;
	int64_t n = io_pread_some(m->fd, buf, cap, off);

	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", m->name);
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

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       io_mtime_ns(a) == io_mtime_ns(b);
}

int metafiles_read(struct metafiles *m, const char *name, metafile_parse_fn *parse, void *arg,
		   struct catalog_writer *w, struct ckpt_err *e)
{
	struct pickle_input in = { .read = read_file, .arg = m };
	struct stat before, after;
	autoclose int fd = io_open_beneath(m->dirfd, name, &before, e);
	XXH128_hash_t h;
	char rest[1 << 15];
	int64_t n;
	int rc;

	if (fd < 0)
		return fd;
	if (!before.st_size)
		return err_set(e, ERR_CORRUPT, "'%s' is empty", name);
	m->fd = fd;
	m->name = name;
	m->hashed = 0;
	m->size = (uint64_t)before.st_size;
	(void)XXH3_128bits_reset(m->hash);
	rc = parse(arg, &in, e);
	if (rc)
		return err_wrap(e, "read '%s'", name);
	do { /* what lies behind the pickle belongs to the fingerprint all the same */
		n = read_file(m, m->hashed, rest, sizeof(rest), e);
		if (n < 0)
			return (int)n;
	} while (n);
	if (fstat(fd, &after) || !same_file(&before, &after))
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       name);
	m->before += m->size;
	h = XXH3_128bits_digest(m->hash);
	return catalog_add_metadata(w, name, &before, (const uint64_t[2]){ h.low64, h.high64 }, e);
}
