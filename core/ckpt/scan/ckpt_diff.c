/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff: two sorted lists of names are merged into pairs and each pair is split into blocks. Blocks
 * go through a pipeline, so that results arrive in natural order and sums do not depend on which
 * thread was faster.
 */
#include <ckptfs/ckpt_diff.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/scan/diff_gguf.h"
#include "ckpt/scan/diff_pairs.h"
#include "ckpt/scan/pipeline.h"
#include "codec/blocks.h"
#include "codec/blocks_decode.h"
#include "codec/delta.h"
#include "codec/heat.h"
#include "codec/tally.h"
#include "codec/values.h"
#include "store/object_same.h"

#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CKPT_DIFF_MAX_JOBS == PIPELINE_MAX_JOBS, "one bound");
_Static_assert(CKPT_DIFF_MAX_HEAT == HEAT_MAX_SIDE, "one bound");
_Static_assert((int)DIFF_BLOCK <= (int)TALLY_MAX_BLOCK, "a block of the smallest elements");

/* ---- workers ---- */

/* A pair being compared. */
struct pair {
	struct pipeline_item item;
	struct diff_pair of;

	/* Used only by the calling thread. */
	uint64_t charged; /* bytes */
	bool differs;
	struct delta delta;
	struct ckpt_diff_values result;
	struct ckpt_err why, untold;

	bool has_norm, has_heat;
	struct heat heat; /* if has_heat */
};

/* The result of comparing one block of a pair; an object is a single block. */
struct slot {
	bool differs;
	uint64_t first; /* if it differs: number of the tensor's element */
	struct delta delta;
	struct ckpt_err why; /* code is set if reading failed */
	bool why_b;
	struct ckpt_err untold; /* code is set if the values of two objects cannot be compared */
	struct tally tally;	/* of A, if has_norm */
	/* Only as far as has_heat needs them; not there, and not zeroed, unless heat is wanted. */
	float cells[HEAT_MAX_CELLS];
};

struct run {
	struct ckpt_diff *d;
	struct diff_side sides[2];
	uint64_t glob_steps;
	sem_t room;	      /* allows one worker at a time to hold two whole objects in memory */
	uint64_t done, total; /* bytes */

	/* Of the pair whose blocks are being merged: */
	struct tally tally;
	struct ckpt_diff_heat heat;
	float cells[HEAT_MAX_CELLS];
};

struct worker {
	struct run *run;
	const struct pair *pair; /* the pair it is working on */
	struct diff_buffers bufs;
	uint8_t *blocks[2]; /* of a GGUF: what A's elements are encoded to, and what B has */
	struct ckpt_file *files[2]; /* of the pair with that serial number, if open */
	uint64_t serial;
};

static void worker_close(struct worker *w)
{
	for (size_t i = 0; i < 2; i++) {
		ckpt_file_close(w->files[i]);
		w->files[i] = NULL;
	}
}

static int worker_open(struct worker *w, struct slot *s)
{
	const struct pair *p = w->pair;

	if (w->files[1] && w->serial == p->item.serial)
		return 0;
	worker_close(w);
	w->serial = p->item.serial;
	for (size_t i = 0; i < 2; i++) {
		int rc = diff_open(&w->run->sides[i], p->of.is_object, p->of.at[i], &w->files[i],
				   &s->why);

		s->why_b = i;
		if (rc)
			return rc;
	}
	return 0;
}

/* Reads n elements of both sides, starting at number `from`. */
static int worker_read(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	for (size_t i = 0; i < 2; i++) {
		uint64_t size = dtype_info(w->pair->of.types[i])->size;
		int64_t got = ckpt_file_read(w->files[i], w->bufs.bytes[i], (size_t)(n * size),
					     from * size, &s->why);

		s->why_b = i;
		if (got >= 0 && (uint64_t)got != n * size)
			return err_set(&s->why, EIO, "it ends at %ju of %ju bytes",
				       (uintmax_t)(from * size + (uint64_t)got),
				       (uintmax_t)((from + n) * size));
		if (got < 0)
			return (int)got;
	}
	return 0;
}

/* Index of the first byte that differs; there must be one. */
static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
	size_t at = 0;

	while (n > 1) {
		size_t half = n / 2;

		if (memcmp(a + at, b + at, half) != 0) {
			n = half;
		} else {
			at += half;
			n -= half;
		}
	}
	return at;
}

/* A as float32, and B as it is stored; elements are numbered from `from`. */
static int worker_read_blocks(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	const struct ggml_info *t = w->pair->of.blocks;
	const uint64_t off[] = { from * sizeof(float), from / t->elements * t->bytes };
	const uint64_t len[] = { n * sizeof(float), n / t->elements * t->bytes };

	for (size_t i = 0; i < 2; i++) {
		int64_t got = ckpt_file_read(w->files[i], i ? w->blocks[1] : w->bufs.bytes[0],
					     (size_t)len[i], off[i], &s->why);

		s->why_b = i;
		if (got >= 0 && (uint64_t)got != len[i])
			return err_set(&s->why, EIO, "it ends at byte %ju",
				       (uintmax_t)(off[i] + (uint64_t)got));
		if (got < 0)
			return (int)got;
	}
	return 0;
}

static void compare_values(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	const struct pair *p = w->pair;

	if (p->has_heat)
		delta_add_heat(&s->delta, p->of.types[0], w->bufs.bytes[0], p->of.types[1],
			       w->bufs.bytes[1], (size_t)n, &p->heat, s->cells, from);
	else if (p->of.values)
		delta_add(&s->delta, p->of.types[0], w->bufs.bytes[0], p->of.types[1],
			  w->bufs.bytes[1], (size_t)n);
	if (p->has_norm)
		tally_add(&s->tally, w->bufs.tally, p->of.types[0], w->bufs.bytes[0], (size_t)n,
			  from);
}

static void compare_blocks(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	const struct diff_pair *p = &w->pair->of;
	const struct ggml_info *t = p->blocks;
	const struct block_type *encoder = block_type((enum ggml_type)t->type);
	size_t count = (size_t)(n / t->elements), bytes = count * t->bytes;

	if (p->same_type && !s->differs) {
		encoder->encode(w->bufs.bytes[0], w->blocks[0], count);
		if (memcmp(w->blocks[0], w->blocks[1], bytes) != 0) {
			s->differs = true;
			s->first = from + first_difference(w->blocks[0], w->blocks[1], bytes) /
						  t->bytes * t->elements;
		}
	}
	if (p->values) {
		block_decoder((enum ggml_type)t->type)(w->blocks[1],
						       (float *)(void *)w->bufs.bytes[1], count);
		compare_values(w, s, from, n);
	}
}

static void compare(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	const struct pair *p = w->pair;
	size_t size = dtype_info(p->of.types[0])->size;

	compare_values(w, s, from, n);
	if (p->of.same_type && !s->differs &&
	    memcmp(w->bufs.bytes[0], w->bufs.bytes[1], (size_t)n * size) != 0) {
		s->differs = true;
		s->first = from +
			   first_difference(w->bufs.bytes[0], w->bufs.bytes[1], (size_t)n * size) /
				   size;
	}
}

/* The bytes of two objects differ: compare their values. */
static int compare_whole(struct worker *w, struct slot *s, uint64_t *sizes)
{
	autofree uint8_t *both = NULL;
	struct object_bytes x[2];

	if (sizes[0] > OBJECT_SAME_MAX || sizes[1] > OBJECT_SAME_MAX)
		return err_set(&s->untold, ERR_UNSUPPORTED,
			       "more than %d MiB are compared by bytes", OBJECT_SAME_MAX >> 20);
	both = malloc(sizes[0] + sizes[1] + 1);
	if (!both)
		return err_set(&s->why, ENOMEM, "out of memory");
	for (size_t i = 0; i < 2; i++) {
		struct ckpt *c = w->run->sides[i].ckpt;
		uint8_t *at = both + (i ? sizes[0] : 0);
		int64_t got = ckpt_file_read(w->files[i], at, sizes[i], 0, &s->why);
		struct ckpt_object o;

		s->why_b = i;
		if (got < 0)
			return (int)got;
		ckpt_object(c, w->pair->of.at[i], &o);
		x[i] = (struct object_bytes){ ckpt_object_form(c->engine, &o), at, (size_t)got };
	}
	return object_same(&x[0], &x[1], &s->untold);
}

/* The sizes of objects only become known here. */
static void compare_objects(struct worker *w, struct slot *s)
{
	uint64_t sizes[] = { ckpt_file_size(w->files[0]), ckpt_file_size(w->files[1]) };
	uint64_t common = min_u64(sizes[0], sizes[1]);

	for (uint64_t at = 0; at < common && !s->differs; at += DIFF_BLOCK) {
		uint64_t n = min_u64(common - at, DIFF_BLOCK);

		if (worker_read(w, s, at, n))
			return;
		compare(w, s, at, n);
	}
	if (!s->differs && sizes[0] != sizes[1]) {
		s->differs = true;
		s->first = common;
	}
	if (s->differs) {
		while (sem_wait(&w->run->room))
			;
		s->differs = compare_whole(w, s, sizes) != 1;
		(void)sem_post(&w->run->room);
	}
	if (s->untold.code == ENOMEM)
		s->why = s->untold;
}

static void compare_tensors(struct worker *w, struct slot *s, uint64_t block)
{
	const struct diff_pair *p = &w->pair->of;
	uint64_t from = block * p->step, n = min_u64(p->elements - from, p->step);

	if (p->blocks) {
		if (!worker_read_blocks(w, s, from, n))
			compare_blocks(w, s, from, n);
		return;
	}
	if (!worker_read(w, s, from, n))
		compare(w, s, from, n);
}

static void work(void *arg, void *worker, void *item, uint64_t block, void *result)
{
	struct worker *w = worker;
	struct pair *p = item;
	struct slot *s = result;

	w->run = arg;
	w->pair = p;
	s->tally = (struct tally)TALLY_INIT;
	if (p->has_heat)
		memset(s->cells, 0, heat_cells(&p->heat) * sizeof(*s->cells));
	if (!worker_open(w, s)) {
		if (p->of.is_object)
			compare_objects(w, s);
		else
			compare_tensors(w, s, block);
	}
	/* The lowest block with a finding decides, so that every run reports the same one. */
	if (s->why.code || (s->differs && !p->of.values))
		pipeline_stop(&p->item, block);
}

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	struct worker *w = worker;

	(void)arg;
	/* A block of ggml's has at most 292 bytes for 256 elements, which as float32 are a
	 * DIFF_BLOCK. */
	w->blocks[0] = malloc(DIFF_BLOCK);
	if (!w->blocks[0])
		return err_nomem(e);
	w->blocks[1] = w->blocks[0] + DIFF_BLOCK / 2;
	return diff_buffers_make(&w->bufs, DIFF_BLOCK, e);
}

static void teardown(void *arg, void *worker)
{
	struct worker *w = worker;

	(void)arg;
	worker_close(w);
	diff_buffers_free(&w->bufs);
	free(w->blocks[0]);
}

/* ---- the calling thread ---- */

static void add_values(struct run *r, struct pair *p)
{
	const struct delta *d = &p->delta;
	struct ckpt_values values = { 0 };

	p->result = (struct ckpt_diff_values){
		.elements = d->elements,
		.changed = d->changed,
		.numeric = delta_numeric(p->of.types[0], p->of.types[1]),
		.nan_a = d->nan_a,
		.nan_b = d->nan_b,
		.infinite = d->infinite,
		.finite = d->finite,
		.max_abs = d->max,
		.mean_abs = d->finite ? d->sum / (double)d->finite : 0,
		.l2 = delta_norm(d),
	};
	if (p->has_norm) {
		tally_values(&r->tally, &values);
		p->result.norm_a = values.norm;
	}
	if (p->has_heat && d->changed) {
		r->heat = (struct ckpt_diff_heat){ (size_t)p->heat.rows.parts,
						   (size_t)p->heat.columns.parts, r->cells };
		p->result.heat = &r->heat;
	}
	p->of.item.values = &p->result;
}

static void charge(struct run *r, struct pair *p, uint64_t bytes)
{
	p->charged += bytes;
	r->done += bytes;
	if (r->d->progress)
		r->d->progress(r->d->arg, r->done, r->total);
}

static void clear(struct run *r)
{
	r->tally = (struct tally)TALLY_INIT;
	if (r->d->heat)
		memset(r->cells, 0, sizeof(r->cells));
}

static int finish(void *arg, void *item)
{
	struct run *r = arg;
	struct pair *p = item;
	struct ckpt_diff_item *i = &p->of.item;
	int rc;

	if (p->why.code) {
		i->result = CKPT_DIFF_FAILED;
		i->fault = p->why.msg;
	} else {
		if (p->differs)
			i->result = CKPT_DIFF_BYTES;
		if (p->untold.code)
			i->fault = p->untold.msg;
		if (p->of.read && p->of.values)
			add_values(r, p);
	}
	r->d->names++;
	r->d->counts[i->result]++;
	charge(r, p, p->of.cost - p->charged);
	rc = r->d->each(r->d->arg, i);
	clear(r);
	return rc;
}

static int merge(void *arg, void *item, const void *result)
{
	const struct slot *s = result;
	struct run *r = arg;
	struct pair *p = item;

	if (!p->why.code && !(p->differs && !p->of.values)) {
		if (s->why.code) {
			p->why = s->why;
			ckpt_drop_name(p->of.item.fqn, p->of.item.fqn_len, &p->why);
			p->of.item.fault_in_b = s->why_b;
		}
		if (s->differs && !p->differs)
			p->of.item.first = s->first;
		p->differs |= s->differs;
		if (s->untold.code)
			p->untold = s->untold;
		delta_merge(&p->delta, &s->delta);
		if (p->has_norm)
			tally_merge(&r->tally, &s->tally);
		if (p->has_heat)
			heat_merge(r->cells, s->cells, heat_cells(&p->heat));
	}
	charge(r, p, min_u64(p->of.cost - p->charged, 2 * DIFF_BLOCK));
	return 0;
}

static bool next(void *arg, void *item, uint64_t *ret_blocks)
{
	struct run *r = arg;
	struct pair *p = item;

	if (!diff_next(r->sides, r->d, &r->glob_steps, &p->of))
		return false;
	if (p->of.read && p->of.values) {
		p->has_norm = r->d->norms && values_known(p->of.types[0]);
		p->has_heat =
			r->d->heat && delta_numeric(p->of.types[0], p->of.types[1]) &&
			values_numbers(p->of.types[0]) == 1 &&
			heat_init(&p->heat, p->of.item.a.shape, p->of.item.a.n_dims, r->d->heat);
	}
	*ret_blocks = p->of.read;
	if (p->of.read && !p->of.is_object && p->of.elements)
		*ret_blocks = (p->of.elements - 1) / p->of.step + 1;
	return true;
}

/* gguf: NULL, or what to compare. */
static int diff(struct ckpt *a, struct ckpt *b, const struct diff_gguf *gguf, struct ckpt_diff *d,
		struct ckpt_err *e)
{
	struct run r = { .d = d, .glob_steps = TEXT_GLOB_STEPS, .tally = TALLY_INIT };
	struct diff_side sides[] = { diff_side_of(a, d), diff_side_of(b, d) };
	const struct pipeline pipeline = { .item_size = sizeof(struct pair),
					   .result_size = d->heat ? sizeof(struct slot)
								  : offsetof(struct slot, cells),
					   .result_clear = offsetof(struct slot, tally),
					   .worker_size = sizeof(struct worker),
					   .jobs = d->jobs,
					   .arg = &r,
					   .next = next,
					   .merge = merge,
					   .finish = finish,
					   .setup = setup,
					   .teardown = teardown,
					   .work = work };
	uint64_t glob_steps = TEXT_GLOB_STEPS;
	struct diff_pair p;
	int rc;

	for (size_t i = 0; gguf && i < 2; i++)
		sides[i] = diff_side_of_gguf(gguf, i);
	if (d->heat > CKPT_DIFF_MAX_HEAT)
		return err_set(e, EINVAL, "heat of %u rows: there can be at most %d", d->heat,
			       CKPT_DIFF_MAX_HEAT);
	for (size_t i = 0; d->model && i < 2; i++)
		if (!sides[i].n_tensors)
			return err_set(e, ENOENT,
				       "%s has no model to compare: name its weights with weights=",
				       i ? "the second checkpoint" : "the first checkpoint");
	d->names = 0;
	memset(d->counts, 0, sizeof(d->counts));
	memcpy(r.sides, sides, sizeof(sides));
	while (diff_next(sides, d, &glob_steps, &p))
		r.total += p.cost;
	rc = text_glob_check(glob_steps, "diff", e);
	if (rc)
		return rc;
	(void)sem_init(&r.room, 0, 1);
	rc = pipeline_run(&pipeline, e);
	(void)sem_destroy(&r.room);
	return rc;
}

int ckpt_diff_sized(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, size_t size,
		    struct ckpt_err *e)
{
	struct diff_gguf *gguf = NULL;
	struct ckpt_diff ours;
	int rc = SIZED_TAKE(ours, d, size, "ckpt_diff", e);

	if (rc)
		return rc;
	if (ckpt_is_run(a) || ckpt_is_run(b))
		return err_set(e, EISDIR, "it is a run");
	if (!ours.model && diff_gguf_is(a, b))
		rc = diff_gguf_new(a, b, &gguf, e);
	if (!rc)
		rc = diff(a, b, gguf, &ours, e);
	diff_gguf_free(gguf);
	SIZED_GIVE(d, size, ours);
	return rc;
}
