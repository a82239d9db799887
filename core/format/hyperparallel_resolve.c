/* SPDX-License-Identifier: Apache-2.0 */
#include "format/hyperparallel_resolve.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "catalog/catalog_build.h"
#include "format/dcp_records.h"
#include "format/format.h"
#include "format/hyperparallel_file.h"

#include <stdlib.h>
#include <string.h>

/* A storage entry, decoded as far as it is looked at. */
struct stored {
	uint64_t fqn, rank, path, key, offset, length, dims;
	const uint8_t *offsets, *end; /* dims - 1 varints */
};

/* One that waits for its container. */
struct todo {
	uint64_t at;	 /* in the records' storage */
	uint64_t number; /* of the entry, in listing order */
	uint32_t path;	 /* string id */
};

struct resolver {
	const struct hp_directory *d;
	struct dcp_records *r;
	struct catalog_writer *w;
	struct todo *todo; /* by path */
	size_t n_todo;
	uint64_t *found_at; /* by number: where in `found` */
	struct byte_store found;
	struct byte_store out;
	uint32_t plain; /* number of the encoding "raw" */
};

static struct stored decode(const uint8_t *p)
{
	struct stored s;

	s.fqn = get_varint(&p);
	s.rank = get_varint(&p);
	s.path = get_varint(&p);
	s.key = get_varint(&p);
	s.offset = get_varint(&p);
	s.length = get_varint(&p);
	s.dims = get_varint(&p);
	s.offsets = p;
	skip_varints(&p, s.dims ? s.dims - 1 : 0);
	s.end = p;
	return s;
}

/* ---- what to look up ---- */

static int by_path(const void *ap, const void *bp)
{
	const struct todo *a = ap, *b = bp;

	if (a->path != b->path)
		return a->path < b->path ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

static int list_todo(struct resolver *x, struct err *e)
{
	const uint8_t *data = x->r->storage.data, *p = data, *end = p + x->r->storage.len;
	uint64_t number = 0;

	x->todo = malloc((x->r->n_storage + 1) * sizeof(*x->todo));
	x->found_at = calloc(x->r->n_storage + 1, sizeof(*x->found_at));
	if (!x->todo || !x->found_at)
		return err_set(e, ENOMEM, "out of memory");
	for (; p && p < end; number++) {
		struct stored s = decode(p);

		if (s.length == DCP_NO_LENGTH)
			x->todo[x->n_todo++] =
				(struct todo){ (uint64_t)(p - data), number, (uint32_t)s.path };
		p = s.end;
	}
	if (x->n_todo)
		qsort(x->todo, x->n_todo, sizeof(*x->todo), by_path);
	return 0;
}

/* ---- containers ---- */

static int by_name(const void *key, const void *ap)
{
	const char *a = key, *b = *(char *const *)ap;

	return text_natural_cmp(a, strlen(a), b, strlen(b));
}

static bool is_listed(const struct hp_directory *d, const char *name)
{
	return d->files->n &&
	       bsearch(name, d->files->v, d->files->n, sizeof(*d->files->v), by_name);
}

/* Is it the world that lacks something, and not the checkpoint? */
static bool is_ours_to_report(int code)
{
	return code == ENOMEM || code == EMFILE || code == ENFILE || code == EINTR;
}

/* *ret stays NULL where the file is not there, or not to be opened; *fd belongs to it. */
static int open_container(struct resolver *x, const char *path, const char *fqn, int *fd,
			  struct hp_file **ret, struct err *e)
{
	struct err why = { 0 };
	size_t n = strlen(path);
	struct stat st;
	int rc = io_check_relative(path, n, e);

	if (rc)
		return err_wrap(e, "'%.100s'", fqn);
	if (!is_listed(x->d, path)) {
		/* One that appears later has to be noticed, so it must be of a kind that is listed. */
		if (strchr(path, '/') || n < 12 || strcmp(path + n - 12, ".safetensors") != 0)
			return err_set(e, ERR_UNSUPPORTED,
				       "'%.100s': '%.100s' is no .safetensors file beside the "
				       "metadata",
				       fqn, path);
		return 0;
	}
	*fd = io_open_beneath(x->d->dirfd, path, &st, &why);
	if (*fd < 0) {
		if (!is_ours_to_report(why.code))
			return 0; /* whoever opens it next says the same, and what it takes along */
		*e = why;
		return -e->code;
	}
	rc = hp_file_open(*fd, (uint64_t)st.st_size, ret, e);
	return rc ? err_wrap(e, "read '%.100s'", path) : 0;
}

/* offset, length, encoding, dtype, sizes */
static int put_found(struct resolver *x, const struct hp_tensor *t, uint64_t number, struct err *e)
{
	uint32_t encoding = x->plain;
	uint8_t *start, *to;

	if (t->layout.strided || t->layout.swap || t->layout.neg || t->layout.conj) {
		struct buf name = BUF_INIT(4096);
		int rc;

		raw_name(&t->layout, &name);
		rc = name.err ? err_set(e, name.err, "out of memory")
			      : catalog_add_encoding(x->w, name.data, &encoding, e);
		buf_release(&name);
		if (rc)
			return rc;
	}
	start = to = byte_store_room(&x->found, (4 + t->n_dims) * 10, e);
	if (!to)
		return -ENOMEM;
	x->found_at[number] = x->found.len + 1;
	to += put_varint(to, t->offset);
	to += put_varint(to, t->length);
	to += put_varint(to, encoding);
	to += put_varint(to, t->dtype);
	for (size_t d = 0; d < t->n_dims; d++)
		to += put_varint(to, t->shape[d]);
	x->found.len += (size_t)(to - start);
	return 0;
}

static int look_up(struct resolver *x, const struct hp_file *f, const struct todo *t, struct err *e)
{
	const struct stored s = decode(x->r->storage.data + t->at);
	const struct pk_str *key = pk_string(x->r->strings, (uint32_t)s.key);
	const char *fqn = pk_string(x->r->strings, (uint32_t)s.fqn)->data;
	const char *path = pk_string(x->r->strings, t->path)->data;
	struct hp_tensor found;
	int rc = hp_file_find(f, key->data, key->len, &found, e);

	if (rc < 0)
		return err_wrap(e, "'%.80s' in '%.80s'", key->data, path);
	if (!rc)
		return err_set(e, ERR_CORRUPT, "'%.100s': '%.100s' has no tensor '%.100s'", fqn,
			       path, key->data);
	if (found.n_dims != s.dims - 1)
		return err_set(e, ERR_CORRUPT,
			       "'%.100s': %llu dimensions in the metadata, %zu in '%.100s'", fqn,
			       (unsigned long long)s.dims - 1, found.n_dims, path);
	return put_found(x, &found, t->number, e);
}

/* Everything in the container of todo[*i]; *i moves on behind it. */
static int one_container(struct resolver *x, size_t *i, struct err *e)
{
	const struct todo *first = &x->todo[*i];
	const struct stored s = decode(x->r->storage.data + first->at);
	struct hp_file *f = NULL;
	autoclose int fd = -1;
	int rc = open_container(x, pk_string(x->r->strings, first->path)->data,
				pk_string(x->r->strings, (uint32_t)s.fqn)->data, &fd, &f, e);

	for (; !rc && *i < x->n_todo && x->todo[*i].path == first->path; ++*i)
		if (f)
			rc = look_up(x, f, &x->todo[*i], e);
	hp_file_close(f);
	return rc;
}

/* ---- what was found ---- */

static int put_entry(struct resolver *x, const struct stored *s, uint64_t found_at, struct err *e)
{
	const uint8_t *found = found_at ? x->found.data + found_at - 1 : NULL;
	bool tensor = s->length == DCP_NO_LENGTH;
	size_t n = tensor ? s->dims - 1 : 0;
	uint8_t *start, *to;

	start = to = byte_store_room(&x->out, (8 + 2 * n) * 10, e);
	if (!to)
		return -ENOMEM;
	to += put_varint(to, s->fqn);
	to += put_varint(to, s->rank);
	to += put_varint(to, s->path);
	if (found) {
		uint64_t offset = get_varint(&found), length = get_varint(&found);

		to += put_varint(to, get_varint(&found));
		to += put_varint(to, offset);
		to += put_varint(to, length);
	} else {
		to += put_varint(to, x->plain);
		to += put_varint(to, tensor ? 0 : s->offset);
		to += put_varint(to, tensor ? 0 : s->length);
	}
	to += put_varint(to, tensor ? n + 1 : 0);
	if (tensor) {
		memcpy(to, s->offsets, (size_t)(s->end - s->offsets));
		to += s->end - s->offsets;
		to += put_varint(to, found ? get_varint(&found) : DTYPE_NONE);
		for (size_t d = 0; found && d < n; d++)
			to += put_varint(to, get_varint(&found));
	}
	x->out.len += (size_t)(to - start);
	return 0;
}

static int put_entries(struct resolver *x, struct err *e)
{
	const uint8_t *p = x->r->storage.data, *end = p + x->r->storage.len;
	uint64_t number = 0;
	int rc = 0;

	for (; !rc && p && p < end; number++) {
		struct stored s = decode(p);

		rc = put_entry(x, &s, x->found_at[number], e);
		p = s.end;
	}
	return rc;
}

int hp_resolve(const struct hp_directory *d, struct dcp_records *r, struct catalog_writer *w,
	       struct err *e)
{
	struct resolver x = { .d = d, .r = r, .w = w };
	int rc = catalog_add_encoding(w, "raw", &x.plain, e);

	if (!rc)
		rc = list_todo(&x, e);
	for (size_t i = 0; !rc && i < x.n_todo;)
		rc = one_container(&x, &i, e);
	if (!rc)
		rc = put_entries(&x, e);
	if (!rc) {
		free(r->storage.data);
		r->storage = x.out;
		r->sized = true;
	} else {
		free(x.out.data);
	}
	free(x.todo);
	free(x.found_at);
	free(x.found.data);
	return rc;
}

/* ---- objects ---- */

bool hp_same_object(void *arg, const char *a, uint64_t a_off, const char *b, uint64_t b_off,
		    uint64_t length)
{
	enum { STEP = 64 << 10, MOST = 16 << 20 };
	const struct hp_directory *d = arg;
	autofree uint8_t *buf = malloc(2 * (size_t)STEP);
	struct err ignored;
	struct stat st;
	autoclose int fd_a = -1, fd_b = -1;

	/* Of a file that is not listed nobody would notice that it is no longer the same. */
	if (!buf || length > MOST || !is_listed(d, a) || !is_listed(d, b))
		return false;
	fd_a = io_open_beneath(d->dirfd, a, &st, &ignored);
	fd_b = io_open_beneath(d->dirfd, b, &st, &ignored);
	for (uint64_t at = 0; fd_a >= 0 && fd_b >= 0 && at < length; at += STEP) {
		size_t n = length - at < STEP ? (size_t)(length - at) : STEP;

		if (io_pread(fd_a, buf, n, a_off + at) ||
		    io_pread(fd_b, buf + STEP, n, b_off + at) || memcmp(buf, buf + STEP, n) != 0)
			return false;
	}
	return fd_a >= 0 && fd_b >= 0;
}
