/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_found.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "index/catalog_internal.h"
#include "index/catalog_query.h"
#include "index/catalog_schema.h"
#include "source/files.h"

#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FOUND ((size_t)64 << 20) /* bytes of all records, both in memory and in the file */

enum { HEAD = 24, PAGES_AT = 28 /* in a SQLite file: its page count, 4 bytes, highest first */ };
static const char magic[8] = { 'c', 'k', 'p', 't', 'f', 'n', 'd', '1' };

struct record {
	const uint8_t *p; /* NULL: none */
	size_t len;
};

struct catalog_found {
	const struct files *files;
	const char *seal;
	size_t n_tensors, n_sources;
	int fd;	     /* to write to the index; -1: no */
	uint64_t at; /* where SQLite's pages end */
	char *loaded;

	pthread_mutex_t lock; /* everything below */
	struct record *records;
	struct arena added;
	size_t n_new; /* since records were last written */
};

/* ---- records read from the index ---- */

static bool is_same_file(const struct files *files, uint32_t i, const uint8_t *id, size_t len)
{
	struct place_id now;

	files_id(files, i, &now);
	return bytes_equal(now.v, now.len, id, len);
}

/* False: it belongs to another checkpoint, or is damaged. */
static bool parse(struct catalog_found *f, size_t len)
{
	const size_t seal_len = strlen(f->seal);
	struct cursor d = cursor_of(f->loaded, len);
	const uint8_t *seal = cursor_take(&d, seal_len);
	size_t n, next = 0;

	if (!seal || memcmp(seal, f->seal, seal_len) != 0 || cursor_varint(&d) != f->n_sources)
		return false;
	for (uint32_t i = 0; i < f->n_sources; i++) {
		size_t id_len = (size_t)cursor_varint_to(&d, sizeof(((struct place_id *)0)->v));
		const uint8_t *id = cursor_take(&d, id_len);

		if (!id || !is_same_file(f->files, i, id, id_len))
			return false;
	}
	n = (size_t)cursor_varint_to(&d, f->n_tensors);
	for (size_t k = 0; k < n && !d.bad; k++) {
		size_t i = (size_t)cursor_varint_to(&d, f->n_tensors - 1);
		size_t record_len = (size_t)cursor_varint_to(&d, MAX_FOUND);
		const uint8_t *record = cursor_take(&d, record_len);

		if (!record || i < next)
			return false;
		f->records[i] = (struct record){ record, record_len };
		next = i + 1;
	}
	return !d.bad && d.p == d.end;
}

static bool load(struct catalog_found *f, int fd)
{
	uint8_t head[HEAD], pages[4];
	uint32_t n;
	uint64_t len;

	if (io_pread_some(fd, pages, sizeof(pages), PAGES_AT) != (int64_t)sizeof(pages))
		return false;
	memcpy(&n, pages, sizeof(n));
	f->at = (uint64_t)be32toh(n) * CATALOG_PAGE;
	if (io_pread_some(fd, head, sizeof(head), f->at) != HEAD ||
	    memcmp(head, magic, sizeof(magic)) != 0)
		return false;
	len = load_le64(head + 8);
	if (len > MAX_FOUND)
		return false;
	f->loaded = malloc(len + 1);
	return f->loaded &&
	       io_pread_some(fd, f->loaded, (size_t)len, f->at + HEAD) == (int64_t)len &&
	       catalog_hash(f->loaded, (size_t)len) == load_le64(head + 16) &&
	       parse(f, (size_t)len);
}

static int open_to_write(const char *path, int fd)
{
	autoclose int w = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st, index;

	if (w < 0 || fstat(w, &st) || fstat(fd, &index) || st.st_ino != index.st_ino ||
	    st.st_dev != index.st_dev || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
	    st.st_nlink != 1)
		return -1;
	return steal_fd(&w);
}

int catalog_found_new(const struct catalog *c, const char *path, const struct files *files,
		      struct catalog_found **ret, struct ckpt_err *e)
{
	struct catalog_found *f = calloc(1, sizeof(*f));
	int fd = catalog_fd(c);

	if (!f)
		return err_nomem(e);
	(void)pthread_mutex_init(&f->lock, NULL);
	f->files = files;
	f->seal = catalog_seal(c);
	f->fd = -1;
	f->added = (struct arena)ARENA_INIT(MAX_FOUND);
	f->n_tensors = catalog_rows(c);
	(void)catalog_sources(c, &f->n_sources);
	f->records = calloc(f->n_tensors + 1, sizeof(*f->records));
	if (!f->records) {
		catalog_found_free(f);
		return err_nomem(e);
	}
	if (fd >= 0 && !load(f, fd))
		memset(f->records, 0, (f->n_tensors + 1) * sizeof(*f->records));
	if (fd >= 0 && path)
		f->fd = open_to_write(path, fd);
	*ret = f;
	return 0;
}

void catalog_found_free(struct catalog_found *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		(void)close(f->fd);
	(void)pthread_mutex_destroy(&f->lock);
	arena_release(&f->added);
	free(f->loaded);
	free(f->records);
	free(f);
}

/* ---- records ---- */

const uint8_t *catalog_found_get(struct catalog_found *f, size_t i, size_t *ret_len)
{
	SCOPED_LOCK(&f->lock);

	*ret_len = f->records[i].len;
	return f->records[i].p;
}

void catalog_found_add(struct catalog_found *f, size_t i, const void *record, size_t len)
{
	SCOPED_LOCK(&f->lock);
	uint8_t *copy = arena_dup(&f->added, record, len);

	if (!copy)
		return;
	f->records[i] = (struct record){ copy, len };
	f->n_new++;
}

/* ---- writing records ---- */

/* False: a file was written too recently. */
static bool put_ids(const struct catalog_found *f, struct buf *b)
{
	uint64_t now = clock_wall_ns();

	buf_varint(b, f->n_sources);
	for (uint32_t i = 0; i < f->n_sources; i++) {
		uint64_t written = files_mtime_ns(f->files, i);
		struct place_id id;

		if (written > now || now - written < PLACE_SETTLED_NS)
			return false;
		files_id(f->files, i, &id);
		buf_varint(b, id.len);
		buf_add(b, id.v, id.len);
	}
	return true;
}

static void put_records(const struct catalog_found *f, struct buf *b)
{
	size_t n = 0;

	for (size_t i = 0; i < f->n_tensors; i++)
		n += f->records[i].p != NULL;
	buf_varint(b, n);
	for (size_t i = 0; i < f->n_tensors; i++) {
		const struct record *r = &f->records[i];

		if (!r->p)
			continue;
		buf_varint(b, i);
		buf_varint(b, r->len);
		buf_add(b, r->p, r->len);
	}
}

void catalog_found_keep(struct catalog_found *f)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(HEAD + MAX_FOUND);
	uint8_t head[HEAD] = { 0 };

	if (f->fd < 0 || !f->at)
		return;
	buf_add(&b, head, sizeof(head));
	buf_add(&b, f->seal, strlen(f->seal));
	if (!put_ids(f, &b))
		return;
	{
		SCOPED_LOCK(&f->lock);
		if (!f->n_new)
			return;
		f->n_new = 0;
		put_records(f, &b);
	}
	/* Another writer has the same records. */
	if (b.err || flock(f->fd, LOCK_EX | LOCK_NB))
		return;
	memcpy(head, magic, sizeof(magic));
	(void)put_le(head + 8, b.len - HEAD, 8);
	(void)put_le(head + 16, catalog_hash(b.data + HEAD, b.len - HEAD), 8);
	memcpy(b.data, head, sizeof(head));
	/* A torn write does not match its hash. */
	if (!ftruncate(f->fd, (off_t)f->at))
		(void)io_pwrite(f->fd, b.data, b.len, f->at);
	(void)flock(f->fd, LOCK_UN);
}
