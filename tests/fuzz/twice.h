/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twice - opens what is in the scratch directory as a checkpoint, lists and reads it, twice: the
 * second time in other pieces. What can be read must be the same both times, and every chunk must
 * lie in its file and in its tensor.
 */
#ifndef TESTS_FUZZ_TWICE_H
#define TESTS_FUZZ_TWICE_H

#include "base/err.h"
#include <ckptfs/ckpt.h>

#include "scratch.h"

enum { MAX_TENSORS = 100, MAX_READ = 1 << 16 };

static inline void check_error(int rc, const struct ckpt_err *e)
{
	require(rc < 0 && e->code == -rc && *e->msg);
}

struct chunks {
	const struct ckpt_tensor *t;
	struct stat st;
};

/* A chunk must lie in its tensor, and in its file. */
static inline int check_chunk(void *arg, const struct ckpt_chunk *x)
{
	struct chunks *c = arg;
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s", scratch, x->path);
	require(!stat(path, &c->st) && x->offset <= (uint64_t)c->st.st_size &&
		x->length <= (uint64_t)c->st.st_size - x->offset);
	for (size_t d = 0; d < c->t->n_dims; d++)
		require(x->off[d] <= c->t->shape[d] && x->len[d] <= c->t->shape[d] - x->off[d]);
	return 0;
}

static inline void add(uint64_t *hash, const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		*hash = (*hash ^ ((const uint8_t *)p)[i]) * 1099511628211u;
}

static inline void see_tensor(struct ckpt *c, uint64_t i, size_t piece, uint64_t *hash)
{
	struct ckpt_tensor t;
	struct chunks x = { .t = &t };
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	uint8_t buf[4096];
	uint64_t size, at = 0, sum = *hash;
	int64_t got = 0;
	int rc;

	ckpt_tensor(c, i, &t);
	add(&sum, t.fqn, t.fqn_len);
	rc = ckpt_tensor_chunks(c, i, check_chunk, &x, &e);
	if (rc)
		check_error(rc, &e);
	rc = ckpt_file_open(c, ckpt_tensor_node(c, i), &f, &e);
	if (rc) {
		check_error(rc, &e);
		add(hash, &e.code, sizeof(e.code));
		return;
	}
	size = t.bytes < MAX_READ ? t.bytes : MAX_READ;
	for (; at < size && got >= 0; at += (uint64_t)got) {
		got = ckpt_file_read(f, buf, size - at < piece ? size - at : piece, at, &e);
		require(got);
		if (got < 0)
			break;
		add(&sum, buf, (size_t)got);
	}
	if (got < 0)
		check_error((int)got, &e);
	else
		*hash = sum;
	add(hash, &at, got < 0 ? 0 : sizeof(at)); /* the place of a failure depends on the pieces */
	ckpt_file_close(f);
}

static inline uint64_t see(size_t piece)
{
	static const char *const options[] = { "index=:memory:", NULL };
	uint64_t hash = 14695981039346656037u;
	struct ckpt_totals n;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	int rc = ckpt_open(scratch, options, NULL, &c, &e);

	if (rc) {
		check_error(rc, &e);
		add(&hash, e.msg, strlen(e.msg));
		return hash;
	}
	ckpt_totals(c, &n);
	for (uint64_t i = 0; i < n.tensors && i < MAX_TENSORS; i++)
		see_tensor(c, i, piece, &hash);
	ckpt_close(c);
	return hash;
}

static inline void look_twice(void)
{
	require(see(4096) == see(3));
}

#endif
