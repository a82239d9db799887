/* SPDX-License-Identifier: Apache-2.0 */
#include "format/hyperparallel/hyperparallel_resolve.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "format/dcp/dcp_records.h"
#include "format/hyperparallel/hyperparallel_file.h"
#include "format/raw_chunks.h"
#include "index/catalog_build.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

/* A storage entry, decoded as far as needed. */
struct stored {
	uint64_t fqn, rank, path, key, offset, length, dims;
	const uint8_t *offsets, *end; /* dims - 1 varints */
};

/* An entry that waits for its container. */
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
	uint64_t *found_at; /* by number: its position in `found` */
	struct byte_store found;
	struct byte_store out;
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

static int list_todo(struct resolver *x, struct ckpt_err *e)
{
	x->todo = malloc((x->r->n_storage + 1) * sizeof(*x->todo));
	x->found_at = calloc(x->r->n_storage + 1, sizeof(*x->found_at));
	if (!x->todo || !x->found_at)
		return err_nomem(e);
	for (uint64_t at = 0, number = 0; number < x->r->n_storage; number++) {
		const struct stored s = decode(x->r->storage.data + at);

		if (s.length == DCP_NO_LENGTH)
			x->todo[x->n_todo++] = (struct todo){ at, number, (uint32_t)s.path };
		at = (uint64_t)(s.end - x->r->storage.data);
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

/*
 * *ret stays NULL if the file is missing or cannot be opened: opening the tensors that depend on it
 * reports that. A failure that may be temporary is an error.
 */
static int open_listed(const struct hp_directory *d, const char *path, struct source **ret,
		       struct ckpt_err *e)
{
	struct ckpt_err why = { 0 };
	int rc = place_file(d->place, path, ret, &why);

	if (rc != -ENOMEM && rc != -EMFILE && rc != -ENFILE && rc != -EIO)
		return 0;
	*e = why;
	return rc;
}

/* A file that appears later must be noticed, so it must be of a kind that is listed. */
static int check_container(const struct resolver *x, const char *path, const char *fqn,
			   struct ckpt_err *e)
{
	static const char tail[] = ".safetensors";
	size_t n = strlen(path), m = sizeof(tail) - 1;

	if (io_check_relative(path, n, e))
		return err_wrap(e, "'%.100s'", fqn);
	if (!is_listed(x->d, path) &&
	    (strchr(path, '/') || n < m || strcmp(path + n - m, tail) != 0))
		return err_set(e, ERR_UNSUPPORTED,
			       "'%.100s': '%.100s' is not a .safetensors file beside the metadata",
			       fqn, path);
	return 0;
}

/* *ret stays NULL if there is none; *file belongs to it. */
static int open_container(struct resolver *x, const char *path, struct source **file,
			  struct hp_file **ret, struct ckpt_err *e)
{
	int rc = open_listed(x->d, path, file, e);

	if (rc || !*file)
		return rc;
	rc = hp_file_open(*file, ret, e);
	return rc ? err_wrap(e, "read '%.100s'", path) : 0;
}

/* offset, length, encoding, dtype, sizes */
static int put_found(struct resolver *x, const struct hp_tensor *t, uint64_t number,
		     struct ckpt_err *e)
{
	uint32_t encoding = x->d->plain;
	uint8_t *start, *to;

	if (t->layout.strided || t->layout.swap || t->layout.neg || t->layout.conj) {
		int rc = raw_encoding(&t->layout, x->w, &encoding, e);

		if (rc)
			return rc;
	}
	start = to = byte_store_room(&x->found, (4 + t->n_dims) * 10, e);
	if (!to)
		return -e->code;
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

static int look_up(struct resolver *x, const struct hp_file *f, const struct todo *t,
		   struct ckpt_err *e)
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

/* Everything in the container of todo[*i]; advances *i past it. */
static int one_container(struct resolver *x, size_t *i, struct ckpt_err *e)
{
	const struct todo *first = &x->todo[*i];
	const struct stored s = decode(x->r->storage.data + first->at);
	struct hp_file *f = NULL;
	struct source *file CLEANUP(source_freep) = NULL;
	const char *path = pk_string(x->r->strings, first->path)->data;
	int rc = check_container(x, path, pk_string(x->r->strings, (uint32_t)s.fqn)->data, e);

	if (!rc)
		rc = open_container(x, path, &file, &f, e);
	for (; !rc && *i < x->n_todo && x->todo[*i].path == first->path; ++*i)
		if (f)
			rc = look_up(x, f, &x->todo[*i], e);
	hp_file_close(f);
	return rc;
}

/* ---- what was found ---- */

static int put_entry(struct resolver *x, const struct stored *s, uint64_t found_at,
		     struct ckpt_err *e)
{
	const uint8_t *found = found_at ? x->found.data + found_at - 1 : NULL;
	bool tensor = s->length == DCP_NO_LENGTH;
	size_t n = tensor ? s->dims - 1 : 0;
	uint8_t *start, *to;

	start = to = byte_store_room(&x->out, (8 + 2 * n) * 10, e);
	if (!to)
		return -e->code;
	to += put_varint(to, s->fqn);
	to += put_varint(to, s->rank);
	to += put_varint(to, s->path);
	if (found) {
		uint64_t offset = get_varint(&found), length = get_varint(&found);

		to += put_varint(to, get_varint(&found));
		to += put_varint(to, offset);
		to += put_varint(to, length);
	} else {
		to += put_varint(to, x->d->plain);
		to += put_varint(to, tensor ? 0 : s->offset);
		to += put_varint(to, tensor ? 0 : s->length);
	}
	to += put_varint(to, tensor ? n + 1 : 0);
	if (tensor) {
		memcpy(to, s->offsets, (size_t)(s->end - s->offsets));
		to += s->end - s->offsets;
		to += put_varint(to, found ? get_varint(&found) : CKPT_DTYPE_NONE);
		for (size_t d = 0; found && d < n; d++)
			to += put_varint(to, get_varint(&found));
	}
	x->out.len += (size_t)(to - start);
	return 0;
}

static int put_entries(struct resolver *x, struct ckpt_err *e)
{
	const uint8_t *p = x->r->storage.data;
	int rc = 0;

	for (uint64_t number = 0; !rc && number < x->r->n_storage; number++) {
		struct stored s = decode(p);

		rc = put_entry(x, &s, x->found_at[number], e);
		p = s.end;
	}
	return rc;
}

int hp_resolve(const struct hp_directory *d, struct dcp_records *r, struct catalog_writer *w,
	       struct ckpt_err *e)
{
	struct resolver x = { .d = d, .r = r, .w = w };
	int rc = list_todo(&x, e);

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

/* ---- what several ranks have ---- */

/* 1, or 0 if the file is shorter. */
static int read_part(struct source *s, const char *name, void *buf, size_t n, uint64_t at,
		     struct ckpt_err *e)
{
	int64_t got = source_read(s, buf, n, at, e);

	return got < 0 ? err_wrap(e, "read '%s'", name) : (size_t)got == n;
}

int hp_same_object(void *arg, const char *a, uint64_t a_off, const char *b, uint64_t b_off,
		   uint64_t length, struct ckpt_err *e)
{
	enum { STEP = 8 << 10, MOST = 16 << 20 };
	const struct hp_directory *d = arg;
	struct source *file_a CLEANUP(source_freep) = NULL;
	struct source *file_b CLEANUP(source_freep) = NULL;
	uint8_t in_a[STEP], in_b[STEP];
	int rc;

	/* A change to a file that is not listed would go unnoticed. */
	if (length > MOST || !is_listed(d, a) || !is_listed(d, b))
		return 0;
	rc = open_listed(d, a, &file_a, e);
	if (!rc)
		rc = open_listed(d, b, &file_b, e);
	if (rc || !file_a || !file_b)
		return rc;
	for (uint64_t at = 0; at < length; at += STEP) {
		size_t n = (size_t)min_u64(length - at, STEP);

		rc = read_part(file_a, a, in_a, n, a_off + at, e);
		if (rc > 0)
			rc = read_part(file_b, b, in_b, n, b_off + at, e);
		if (rc <= 0)
			return rc;
		if (memcmp(in_a, in_b, n) != 0)
			return 0;
	}
	return 1;
}

int hp_sample(void *arg, const struct dcp_inside *q, struct digest *ret, struct ckpt_err *e)
{
	enum { SAMPLE = 4096 /* bytes at each end */ };
	const struct hp_directory *d = arg;
	const uint64_t len = min_u64(q->loc->length, SAMPLE);
	const uint64_t at[] = { q->loc->offset, q->loc->offset + (q->loc->length - len) };
	struct source *file CLEANUP(source_freep) = NULL;
	uint8_t bytes[SAMPLE];
	struct digest digest = { 0 };
	int rc;

	/* A file that is missing is not listed. Where an encoding is undone, elements may be equal
	 * and bytes not. */
	if (!is_listed(d, q->path) || q->loc->encoding != d->plain)
		return 0;
	rc = open_listed(d, q->path, &file, e);
	if (rc || !file)
		return rc;
	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		rc = read_part(file, q->path, bytes, (size_t)len, at[i], e);
		if (rc <= 0)
			return rc;
		digest_add(&digest, bytes, (size_t)len);
	}
	*ret = digest;
	return 0;
}
