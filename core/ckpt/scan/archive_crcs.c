/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/scan/archive_crcs.h"

#include "base/blob.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/search.h"
#include "base/vec.h"
#include "parse/zip.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SHOWN = 80 /* bytes */ };

int crc_read(const struct blob *b, uint64_t at, uint64_t size, const struct crc_reader *r,
	     uint32_t *ret, struct ckpt_err *e)
{
	uint32_t crc = 0;

	for (uint64_t done = 0; done < size;) {
		size_t want = (size_t)min_u64(size - done, r->cap);
		int64_t n = b->read(b->arg, at + done, r->buf, want, e);

		if (n <= 0)
			return n ? (int)n : err_set(e, ERR_CORRUPT, "the archive ends early");
		crc = libdeflate_crc32(crc, r->buf, (size_t)n);
		done += (uint64_t)n;
		if (r->progress)
			r->progress(r->arg, (uint64_t)n);
	}
	*ret = crc;
	return 0;
}

int crc_compare(const char *name, size_t len, uint32_t found, uint32_t recorded, struct ckpt_err *e)
{
	if (!recorded || recorded == found)
		return 0;
	return err_set(e, ERR_CORRUPT,
		       "record '%.*s' has CRC %08x, but %08x is recorded; it has changed since it "
		       "was saved",
		       (int)min_u64(len, NAME_SHOWN), name, found, recorded);
}

/* ---- the directory ---- */

/* torch.save puts storages below "data/", within a directory that is named after the file. */
static bool is_storage(const struct zip_member *m)
{
	const char *slash = memchr(m->name, '/', m->name_len);
	size_t left = slash ? m->name_len - (size_t)(slash + 1 - m->name) : 0;

	return left > 5 && !memcmp(slash + 1, "data/", 5);
}

static int add_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct archive_crcs *a = arg;
	const char *name = arena_dup(&a->names, m->name, (size_t)min_u64(m->name_len, NAME_SHOWN));

	if (!name || !VEC_ROOM(a->v, a->cap, a->n + 1))
		return err_nomem(e);
	a->v[a->n++] = (struct crc_member){
		.name = name,
		.header = m->header,
		.size = m->packed ? 0 : m->size,
		.crc = m->crc,
		.packed = m->packed,
		.is_storage = is_storage(m),
	};
	return 0;
}

static int by_header(const void *ap, const void *bp)
{
	const struct crc_member *a = ap, *b = bp;

	return a->header < b->header ? -1 : a->header > b->header;
}

/* Many members of the same bytes would take any amount of time to read. */
static int refuse_overlaps(const struct archive_crcs *a, struct ckpt_err *e)
{
	for (size_t i = 1; i < a->n; i++) {
		const struct crc_member *m = &a->v[i - 1];
		uint64_t room = a->v[i].header - m->header;

		if (room < ZIP_LOCAL_SIZE || room - ZIP_LOCAL_SIZE < m->size)
			return err_set(e, ERR_CORRUPT,
				       "records '%s' and '%s' overlap, so no CRCs are verified",
				       m->name, a->v[i].name);
	}
	return 0;
}

/* 1: it is. Damage to its beginning does not make it anything else. */
static int is_archive(const struct blob *b, struct ckpt_err *e)
{
	uint8_t head[4] = { 0 }, end[4] = { 0 };
	int64_t n = b->read(b->arg, 0, head, sizeof(head), e);

	if (n >= 0 && b->size >= ZIP_END_SIZE)
		n = b->read(b->arg, b->size - ZIP_END_SIZE, end, sizeof(end), e);
	if (n < 0)
		return (int)n;
	return zip_magic(head, sizeof(head)) || load_le32(end) == ZIP_SIG_END;
}

int archive_crcs_open(struct archive_crcs *a, const struct blob *b, struct ckpt_err *e)
{
	int rc = is_archive(b, e);

	/* More than a directory's names can take, see zip.c. */
	*a = (struct archive_crcs){ .names = ARENA_INIT((size_t)2 << 30) };
	if (rc <= 0)
		return rc ? rc : 1;
	rc = zip_list(b, add_member, a, e);
	if (rc)
		return rc;
	if (a->n)
		qsort(a->v, a->n, sizeof(*a->v), by_header);
	return refuse_overlaps(a, e);
}

void archive_crcs_close(struct archive_crcs *a)
{
	free(a->v);
	arena_release(&a->names);
	*a = (struct archive_crcs){ 0 };
}

struct crc_member *archive_crcs_at(const struct archive_crcs *a, uint64_t off)
{
	size_t i = PARTITION_POINT(k, a->n, a->v[k].header < off);

	return i ? &a->v[i - 1] : NULL;
}

/* ---- members ---- */

int archive_crcs_compare(const struct crc_member *m, struct ckpt_err *e)
{
	return crc_compare(m->name, strlen(m->name), m->found, m->crc, e);
}

int archive_crcs_verify(struct crc_member *m, const struct blob *b, const struct crc_reader *r,
			struct ckpt_err *e)
{
	const struct zip_member of = { .header = m->header, .size = m->size };
	uint64_t data;
	int rc = zip_member_data(b, &of, &data, e);

	if (!rc)
		rc = crc_read(b, data, m->size, r, &m->found, e);
	if (rc)
		return err_wrap(e, "record '%s'", m->name);
	m->data = data;
	return archive_crcs_compare(m, e);
}

bool archive_crcs_covers(const struct crc_member *m, uint64_t off, uint64_t len)
{
	return m->data && off >= m->data && range_ok(off - m->data, len, m->size);
}
