/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of the tree that equal a real file, byte for byte: assets, a chunk in a file of its own, a
 * safetensors file that was written as hf/ would show it.
 *
 * For nearly all other files the size alone rules this out, so the test is cheap: the first tensor
 * determines the only candidate.
 *
 * And tensors that a program can map.
 */
#include <ckptfs/ckpt_mount.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "tree/view.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 << 10 }; /* bytes compared at once */

/* The candidate file; files is NULL until a segment determines it. */
struct backing {
	struct files *files;
	uint32_t number;
};

/*
 * 0: this is the candidate, or becomes it because its size is that of the whole file; 1: it is not.
 */
static int agree(struct backing *b, struct files *files, uint32_t number, uint64_t size)
{
	if (!b->files && files_size(files, number) == size)
		*b = (struct backing){ files, number };
	return b->files != files || b->number != number;
}

static int find_tensor(struct ckpt_file *f, const struct segment *s, struct backing *b,
		       struct ckpt_err *e)
{
	struct tensor_reader *r = f->reader;
	struct vtensor *v;
	uint64_t off = 0;
	uint32_t number;
	int rc = 0;

	if (!r) {
		rc = view_vtensor(f->engine->view, s->id, &v, e);
		if (!rc)
			rc = tensor_open(f->engine->fetch, v, &r, e);
	}
	if (!rc)
		rc = tensor_in_place(r, &number, &off, e);
	if (!rc)
		rc = off != s->off || agree(b, f->engine->files, number, f->v.size);
	if (r != f->reader)
		tensor_close(f->engine->fetch, r);
	return rc;
}

/* All segments from files must come from the candidate, at the same offsets. */
static int find(struct ckpt_file *f, struct backing *b, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < f->v.n; i++) {
		const struct segment *s = &f->v.seg[i];

		if (s->kind == SEG_TENSOR)
			rc = find_tensor(f, s, b, e);
		else if (s->kind == SEG_FILE)
			rc = s->from != s->off ||
			     agree(b, f->engine->assets.files, (uint32_t)s->id, f->v.size);
		else if (s->kind == SEG_OBJECT) /* small and rarely read: not worth checking */
			rc = 1;
	}
	return rc || b->files ? rc : 1;
}

/* Segments generated here, such as headers, must have the same bytes in the file. */
static int compare_literals(struct ckpt_file *f, const struct backing *b, struct ckpt_err *e)
{
	autofree char *want = malloc(WINDOW), *found = malloc(WINDOW);
	int rc = want && found ? 0 : err_nomem(e);

	for (size_t i = 0; !rc && i < f->v.n; i++) {
		const struct segment *s = &f->v.seg[i];
		size_t n;

		if (s->kind != SEG_BYTES && s->kind != SEG_LENT && s->kind != SEG_ZERO)
			continue;
		for (uint64_t at = 0; !rc && at < s->len; at += n) {
			n = (size_t)min_u64(WINDOW, s->len - at);
			rc = files_read(b->files, b->number, found, n, s->off + at, e);
			if (!rc && ckpt_file_read(f, want, n, s->off + at, e) < 0)
				rc = -e->code;
			if (!rc)
				rc = memcmp(want, found, n) != 0;
		}
	}
	return rc;
}

int ckpt_file_backing(struct ckpt_file *f, int *ret_fd, struct ckpt_err *e)
{
	struct backing b = { 0 };
	int rc = f->child ? 1 : find(f, &b, e);

	if (!rc)
		rc = compare_literals(f, &b, e);
	if (rc)
		return rc;
	rc = files_open(b.files, b.number, e);
	if (rc < 0)
		return rc == -ENOTSUP ? 1 : rc;
	f->backing = b.files;
	f->backing_number = b.number;
	*ret_fd = rc;
	return 0;
}

bool ckpt_file_written(const struct ckpt_file *f, struct ckpt_err *why)
{
	if (!f->backing || !files_written(f->backing, f->backing_number))
		return false;
	(void)err_set(why, EIO, "'%s' was written to while it was open",
		      files_path(f->backing, f->backing_number));
	return true;
}

static int tensor_backing(struct engine *eng, const struct tensor_info *t, int *ret_fd,
			  uint64_t *ret_off, struct ckpt_err *e)
{
	struct ckpt_file *f;
	uint64_t start[CKPT_MAX_DIMS] = { 0 };
	uint64_t off;
	uint32_t number;
	int rc = ckpt_steps_open(eng, t, start, NULL, t->shape, &f, e);

	if (rc)
		return rc;
	rc = tensor_in_place(f->reader, &number, &off, e);
	ckpt_file_close(f);
	if (rc)
		return rc;
	rc = files_open(eng->files, number, e);
	if (rc < 0)
		return rc == -ENOTSUP ? 1 : rc;
	*ret_fd = rc;
	*ret_off = off;
	return 0;
}

int ckpt_tensor_backing(struct ckpt *c, uint64_t i, int *ret_fd, uint64_t *ret_off,
			struct ckpt_err *e)
{
	struct tensor_info t;
	int rc = ckpt_tensor_at(c, i, &t, e);

	return rc ? rc : tensor_backing(c->engine, &t, ret_fd, ret_off, e);
}

int ckpt_model_backing(struct ckpt *c, uint64_t i, int *ret_fd, uint64_t *ret_off,
		       struct ckpt_err *e)
{
	struct tensor_info t;
	int rc = ckpt_model_at(c, i, &t, e);

	return rc ? rc : tensor_backing(c->engine, &t, ret_fd, ret_off, e);
}
