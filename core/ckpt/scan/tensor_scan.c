/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/scan/tensor_scan.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/scan/pipeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A tensor in progress; the user's state follows. */
struct item {
	struct pipeline_item item;
	uint64_t at; /* its number */
	struct tensor_info t;
	bool read;
	uint64_t elements, step, charged; /* step: elements per block; charged: bytes */
	const char *path;		  /* of a chunk that makes up the item, or NULL */
	uint64_t box[2][CKPT_MAX_DIMS];	  /* its offset and size */
	struct ckpt_err why;
	max_align_t state[];
};

/* The result of a block; the user's result follows. */
struct result {
	struct ckpt_err why; /* code is set if reading failed */
	max_align_t own[];
};

/* A worker thread; the user's part follows. */
struct worker {
	uint8_t *buf;
	struct ckpt_file *file; /* of the item with that serial number, if open */
	uint64_t serial;
	max_align_t own[];
};

struct chunk {
	const char *path;
	size_t box; /* index of its first number in .boxes */
};

struct scan {
	struct tensor_scan *s;
	/* by_chunk: the chunks of tensor number .at, and the next one. */
	struct tensor_info t;
	uint64_t at, chunk, *boxes;
	struct chunk *chunks;
	size_t n_chunks, cap_chunks, n_boxes, cap_boxes;
	uint64_t failed;  /* 1 + the number of the tensor that failed last */
	uint64_t n, next; /* numbers of tensors */
	uint64_t known;	  /* number of coming tensors that are not to be read */
	uint64_t glob_steps;
	uint64_t done;
};

static int tensor_at(const struct tensor_scan *s, uint64_t i, struct tensor_info *ret)
{
	struct ckpt_err e;

	return s->model ? ckpt_model_at(s->c, i, ret, &e) : ckpt_tensor_at(s->c, i, ret, &e);
}

/* ---- workers ---- */

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	const struct tensor_scan *s = ((struct scan *)arg)->s;
	struct worker *w = worker;

	w->buf = malloc(TENSOR_SCAN_BLOCK);
	if (!w->buf)
		return err_nomem(e);
	return s->setup ? s->setup(s->arg, w->own, e) : 0;
}

static void teardown(void *arg, void *worker)
{
	const struct tensor_scan *s = ((struct scan *)arg)->s;
	struct worker *w = worker;

	ckpt_file_close(w->file);
	if (s->teardown)
		s->teardown(s->arg, w->own);
	free(w->buf);
}

static int open_item(const struct tensor_scan *s, struct worker *w, const struct item *i,
		     struct ckpt_err *e)
{
	if (w->file && w->serial == i->item.serial)
		return 0;
	ckpt_file_close(w->file);
	w->file = NULL;
	w->serial = i->item.serial;
	if (i->path)
		return ckpt_box_open(s->c, i->at, i->box[0], i->box[1], &w->file, e);
	return s->model ? ckpt_model_open(s->c, i->at, &w->file, e)
			: ckpt_file_open(s->c, ckpt_tensor_node(s->c, i->at), &w->file, e);
}

static int read_block(const struct tensor_scan *s, struct worker *w, const struct item *i,
		      uint64_t from, struct result *ret)
{
	size_t size = dtype_info(i->t.dtype)->size;
	uint64_t n = min_u64(i->elements - from, i->step);
	int64_t got = ckpt_file_read(w->file, w->buf, (size_t)(n * size), from * size, &ret->why);

	if (got < 0)
		return (int)got;
	if ((uint64_t)got != n * size)
		return err_set(&ret->why, EIO, "it ends at %ju of %ju bytes",
			       (uintmax_t)(from * size + (uint64_t)got), (uintmax_t)i->t.bytes);
	s->block(s->arg, w->own, &i->t, w->buf, (size_t)n, from, ret->own);
	return 0;
}

static void work(void *arg, void *worker, void *item, uint64_t block, void *result)
{
	const struct tensor_scan *s = ((struct scan *)arg)->s;
	struct result *r = result;
	struct worker *w = worker;
	struct item *i = item;
	uint64_t from = block * i->step;
	int rc = open_item(s, w, i, &r->why);

	do {
		if (!rc)
			rc = read_block(s, w, i, from, r);
		from += i->step;
	} while (!rc && s->in_order && from < i->elements);
	if (rc)
		pipeline_stop(&i->item, block);
}

/* ---- the calling thread ---- */

/* The next selected tensor. */
static bool next_tensor(struct scan *r, uint64_t *ret_at, struct tensor_info *ret)
{
	do {
		if (r->next == r->n)
			return false;
		*ret_at = r->next++;
	} while (tensor_at(r->s, *ret_at, ret) ||
		 !text_glob_any(r->s->globs, ret->fqn, ret->fqn_len, &r->glob_steps));
	r->s->tensors++;
	return true;
}

static int add_chunk(void *arg, const struct ckpt_chunk *chunk)
{
	struct scan *r = arg;
	size_t n = r->t.n_dims;

	if (!VEC_ROOM(r->chunks, r->cap_chunks, r->n_chunks + 1) ||
	    !VEC_ROOM(r->boxes, r->cap_boxes, r->n_boxes + 2 * n))
		return -ENOMEM;
	r->chunks[r->n_chunks++] = (struct chunk){ chunk->path, r->n_boxes };
	if (n) {
		memcpy(r->boxes + r->n_boxes, chunk->off, n * sizeof(*chunk->off));
		memcpy(r->boxes + r->n_boxes + n, chunk->len, n * sizeof(*chunk->len));
	}
	r->n_boxes += 2 * n;
	return 0;
}

/* The next chunk; or a tensor whose chunks are unknown, and the reason. */
static bool next_chunk(struct scan *r, struct item *i)
{
	const struct chunk *from;
	uint64_t elements = 1;

	while (r->chunk == r->n_chunks) {
		r->chunk = r->n_chunks = r->n_boxes = 0;
		if (!next_tensor(r, &r->at, &r->t))
			return false;
		i->at = r->at;
		i->t = r->t;
		if (ckpt_tensor_chunks(r->s->c, r->at, add_chunk, r, &i->why) == -ENOMEM)
			(void)err_nomem(&i->why);
		if (i->why.code) {
			r->n_chunks = 0;
			return true;
		}
	}
	i->at = r->at;
	i->t = r->t;
	from = &r->chunks[r->chunk++];
	i->path = from->path;
	for (size_t d = 0; d < i->t.n_dims; d++) {
		i->box[0][d] = r->boxes[from->box + d];
		i->box[1][d] = r->boxes[from->box + i->t.n_dims + d];
		elements *= i->box[1][d]; /* cannot overflow: no more than the tensor has */
	}
	i->t.bytes = elements * dtype_info(i->t.dtype)->size;
	return true;
}

static bool next(void *arg, void *item, uint64_t *ret_blocks)
{
	struct scan *r = arg;
	const struct tensor_scan *s = r->s;
	struct item *i = item;
	size_t size;

	if (s->by_chunk ? !next_chunk(r, i) : !next_tensor(r, &i->at, &i->t))
		return false;
	size = dtype_info(i->t.dtype)->size;
	i->read = !s->wanted || s->wanted(&i->t);
	if (r->known) {
		r->known--;
		return true;
	}
	if (!i->read || i->why.code)
		return true;
	i->elements = i->t.bytes / size;
	i->step = min_u64(TENSOR_SCAN_BLOCK / size, s->max ? s->max : UINT64_MAX);
	/* Empty tensors are opened too: they may be unreadable. */
	*ret_blocks = s->in_order || !i->elements ? 1 : (i->elements - 1) / i->step + 1;
	return true;
}

static void charge(struct scan *r, struct item *i, uint64_t bytes)
{
	i->charged += bytes;
	r->done += bytes;
	if (r->s->progress)
		r->s->progress(r->s->progress_arg, min_u64(r->done, r->s->bytes), r->s->bytes);
}

static int merge(void *arg, void *item, const void *result)
{
	const struct result *from = result;
	struct scan *r = arg;
	struct item *i = item;

	if (!i->why.code) {
		i->why = from->why;
		ckpt_drop_name(i->t.fqn, i->t.fqn_len, &i->why);
	}
	if (!i->why.code)
		r->s->merge(r->s->arg, i->state, from->own);
	charge(r, i, min_u64(i->t.bytes - i->charged, TENSOR_SCAN_BLOCK));
	return 0;
}

static int finish(void *arg, void *item)
{
	struct scan *r = arg;
	struct item *i = item;

	charge(r, i, i->t.bytes - i->charged);
	r->s->failed += i->why.code && r->failed != i->at + 1;
	r->failed = i->why.code ? i->at + 1 : r->failed;
	r->s->chunk_path = i->path;
	return r->s->finish(r->s->arg, &i->t, i->read, i->why.code ? i->why.msg : NULL, i->state);
}

int tensor_scan_run(struct tensor_scan *s, struct ckpt_err *e)
{
	struct scan r = { .s = s, .glob_steps = TEXT_GLOB_STEPS };
	const struct pipeline pipeline = { .item_size = sizeof(struct item) + s->state_size,
					   .result_size = sizeof(struct result) + s->result_size,
					   .result_clear = sizeof(struct result) +
							   (s->result_clear ? s->result_clear
									    : s->result_size),
					   .worker_size = sizeof(struct worker) + s->worker_size,
					   .jobs = s->jobs,
					   .arg = &r,
					   .next = next,
					   .merge = merge,
					   .finish = finish,
					   .setup = setup,
					   .teardown = teardown,
					   .work = work };
	struct ckpt_totals totals;
	struct tensor_info t;
	int rc;

	if (ckpt_is_run(s->c))
		return err_set(e, EISDIR, "it is a run");
	ckpt_totals(s->c, &totals);
	r.n = s->model ? ckpt_model_tensors(s->c) : totals.tensors;
	if (s->model && !r.n)
		return err_set(e, ENOENT,
			       "it has no model to look at: name its weights with weights=");
	s->tensors = s->failed = s->bytes = 0;
	for (uint64_t i = 0; i < r.n; i++)
		if (!tensor_at(s, i, &t) &&
		    text_glob_any(s->globs, t.fqn, t.fqn_len, &r.glob_steps)) {
			s->bytes += t.bytes;
			if (s->begin)
				s->list(s->arg, &t);
		}
	rc = text_glob_check(r.glob_steps, s->cmd, e);
	if (rc)
		return rc;
	r.glob_steps = TEXT_GLOB_STEPS;
	rc = s->begin ? s->begin(s->arg, &r.known, e) : 0;
	if (rc)
		return rc;
	rc = pipeline_run(&pipeline, e);
	free(r.chunks);
	free(r.boxes);
	return rc;
}
