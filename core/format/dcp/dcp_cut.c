/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor that is made of others, of which each rank has saved a part: FSDP2 cuts the states of
 * torchao's optimizers, of which 8 bits are kept for each element. The metadata says which box of
 * the tensor an item has. From that follows which part of its own tensors: codes have the same
 * shape, or are a line; scales are a line, one for each block of elements in the order of rows; and
 * the table of values is the same in all items. (torchao/optim/subclass_8bit.py, _4bit.py, _fp8.py;
 * before, prototype/low_bit_optim/.)
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "format/torch/torchsave.h"
#include "index/catalog_build.h"
#include "model/box.h"
#include "source/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 3, MAX_SAME = 4096 /* bytes */ };

enum how { LIKE_IT, A_LINE, THE_SAME };

static const struct cut_class {
	const char *name;
	size_t n;
	struct {
		const char *attribute;
		enum how how;
	} parts[MAX_PARTS];
} classes[] = {
	{ "OptimState8bit",
	  3,
	  { { "codes", LIKE_IT }, { "scale", A_LINE }, { "qmap", THE_SAME } } },
	{ "OptimState4bit", 3, { { "codes", A_LINE }, { "scale", A_LINE }, { "qmap", THE_SAME } } },
	{ "OptimStateFp8", 2, { { "codes", LIKE_IT }, { "scale", A_LINE } } },
};

/* One of the tensors it is made of. */
struct part {
	uint32_t n; /* items it was found in */
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS], per; /* elements of the tensor for each of a line */
	uint64_t *boxes;
	struct chunk_loc *locs;
	uint8_t same[MAX_SAME];
};

struct cut {
	struct dcp_looks *looks;
	struct catalog_writer *w;
	const struct dcp_cut *of;
	const struct cut_class *class;
	dcp_look_fn *look;
	struct source *file;	 /* of the present item */
	uint32_t k, n;		 /* its chunk; items so far, with it */
	uint64_t before, volume; /* elements in rows above it, and in it */
	char name[64];		 /* of the first item's class */
	const char *why;	 /* it cannot be put together */
	struct part parts[MAX_PARTS];
};

static void cut_release(struct cut *x)
{
	for (size_t i = 0; i < MAX_PARTS; i++) {
		free(x->parts[i].boxes);
		free(x->parts[i].locs);
	}
}

static const uint64_t *box_of(const struct cut *x)
{
	const struct tensor_chunks *t = x->of->t;

	return t->boxes + (size_t)x->k * 2 * t->n_dims;
}

/* ---- the first look: what the items have ---- */

/* Are the chunk's elements in one piece of the tensor's, in the order of rows? Sets where. */
static bool in_rows(struct cut *x)
{
	const struct tensor_chunks *t = x->of->t;
	const uint64_t *off = box_of(x), *len = off + t->n_dims;
	uint64_t row;

	if (!t->n_dims || !box_volume(t->n_dims - 1, t->shape + 1, &row) ||
	    !range_ok(off[0], len[0], t->shape[0]))
		return false;
	for (size_t d = 1; d < t->n_dims; d++)
		if (off[d] || len[d] != t->shape[d])
			return false;
	return !ckd_mul(&x->before, off[0], row);
}

/* If the part has the shape of its chunk: the shape of the whole, and the box of it that the item
 * has. */
static bool place_like(const struct cut *x, struct part *p, const uint64_t *shape, uint64_t *box)
{
	const struct tensor_chunks *t = x->of->t;
	const uint64_t *from = box_of(x);
	size_t bytes = t->n_dims * sizeof(*box);

	if (!dims_equal(t->n_dims, shape, from + t->n_dims))
		return false;
	memcpy(box, from, 2 * bytes);
	memcpy(p->shape, t->shape, bytes);
	return true;
}

/* The same for a line, each of whose elements stands for the same number of the tensor's
 * elements. */
static bool place_line(struct cut *x, struct part *p, const uint64_t *shape, uint64_t *box)
{
	const struct tensor_chunks *t = x->of->t;
	uint64_t per, all;

	if (!shape[0] || !in_rows(x) || x->volume % shape[0] ||
	    !box_volume(t->n_dims, t->shape, &all))
		return false;
	per = x->volume / shape[0];
	p->per = p->n ? p->per : per;
	if (p->per != per || x->before % per || all % per)
		return false;
	box[0] = x->before / per;
	box[1] = shape[0];
	p->shape[0] = all / per;
	return true;
}

/* 1 if these are other bytes than those of the first item. */
static int compare_same(struct cut *x, struct part *p, const struct chunk_loc *loc,
			struct ckpt_err *e)
{
	uint8_t bytes[MAX_SAME], *to = p->n ? bytes : p->same;
	int64_t got;

	if (loc->length > MAX_SAME || loc->length != p->locs->length ||
	    loc->encoding != p->locs->encoding)
		return 1;
	got = source_read(x->file, to, loc->length, loc->offset, e);
	if (got < 0)
		return (int)got;
	return (uint64_t)got < loc->length || memcmp(to, p->same, loc->length) != 0;
}

/* The first item decides on dtype and dimensions. */
static int begin_part(const struct cut *x, struct part *p, enum how how,
		      const struct tensor_chunks *c, struct ckpt_err *e)
{
	size_t count = how == THE_SAME ? 1 : x->of->t->count;

	p->dtype = c->dtype;
	p->n_dims = c->n_dims;
	p->boxes = calloc(count * 2 * c->n_dims + 1, sizeof(*p->boxes));
	p->locs = calloc(count, sizeof(*p->locs));
	if (!p->boxes || !p->locs)
		return err_nomem(e);
	p->locs[0] = *c->locs;
	if (how == THE_SAME) {
		memcpy(p->shape, c->shape, c->n_dims * sizeof(*p->shape));
		memcpy(p->boxes + c->n_dims, c->shape, c->n_dims * sizeof(*p->shape));
	}
	return 0;
}

/* 1 if the part is not what the class has. */
static int add_part(struct cut *x, struct part *p, enum how how, const struct tensor_chunks *c,
		    struct ckpt_err *e)
{
	size_t n = c->n_dims;
	uint64_t *box;
	int rc = 0;

	if (how != THE_SAME && n != (how == LIKE_IT ? x->of->t->n_dims : 1))
		return 1;
	if (!p->n)
		rc = begin_part(x, p, how, c, e);
	if (rc)
		return rc;
	if (p->dtype != c->dtype || p->n_dims != n)
		return 1;
	if (how == THE_SAME) {
		rc = dims_equal(n, c->shape, p->shape) ? compare_same(x, p, c->locs, e) : 1;
	} else {
		box = p->boxes + (size_t)p->n * 2 * n;
		p->locs[p->n] = *c->locs;
		rc = how == LIKE_IT ? !place_like(x, p, c->shape, box)
				    : !place_line(x, p, c->shape, box);
	}
	p->n += !rc;
	return rc;
}

static struct part *part_of(struct cut *x, const char *attribute, size_t len, enum how *ret)
{
	for (size_t i = 0; i < x->class->n; i++) {
		const char *name = x->class->parts[i].attribute;

		if (strlen(name) != len || memcmp(name, attribute, len) != 0)
			continue;
		*ret = x->class->parts[i].how;
		return &x->parts[i];
	}
	return NULL;
}

static int collect(void *arg, const char *attribute, size_t len, struct tensor_chunks *c,
		   struct ckpt_err *e)
{
	struct cut *x = arg;
	enum how how;
	struct part *p = part_of(x, attribute, len, &how);
	int rc = p && p->n + 1 == x->n ? add_part(x, p, how, c, e) : 1;

	if (rc > 0)
		x->why = "the tensors in them do not fit together";
	return rc < 0 ? rc : 1;
}

static int look(void *arg, const struct dcp_inside *q, struct torchsave *t, struct source *file,
		struct ckpt_err *e)
{
	struct cut *x = arg;
	const char *name = torchsave_wrapper_class(t);
	struct torchsave_wrapped how = dcp_wrapped(x->of->r, q);
	int rc;

	if (!name && !x->class)
		return 0; /* it is what it seems */
	if (!x->class)
		(void)snprintf(x->name, sizeof(x->name), "%s", name);
	for (size_t i = 0; !x->class && i < ARRAY_LEN(classes); i++)
		if (!strcmp(name, classes[i].name))
			x->class = &classes[i];
	x->why = !x->class				      ? "ckptfs cannot put them together"
		 : !name || strcmp(name, x->class->name) != 0 ? "other ranks have none"
							      : NULL;
	if (x->why)
		return 0;
	x->file = file;
	how.part = collect;
	how.part_arg = x;
	how.only_parts = true;
	rc = torchsave_report_wrapped(t, &how, x->w, e);
	return rc < 0 ? rc : 0;
}

/* ---- the second: the first item's tensors, and those of all others in them ---- */

static int put_together(void *arg, const char *attribute, size_t len, struct tensor_chunks *c,
			struct ckpt_err *e)
{
	struct cut *x = arg;
	enum how how;
	const struct part *p = part_of(x, attribute, len, &how);

	if (!p || p->dtype != c->dtype) /* the file is another since the first look */
		return err_set(e, ESTALE, "'%.120s': its item has changed", x->of->t->fqn);
	c->n_dims = p->n_dims;
	c->shape = p->shape;
	c->count = how == THE_SAME ? 1 : p->n;
	c->boxes = p->boxes;
	c->locs = p->locs;
	return 0;
}

static int report(void *arg, const struct dcp_inside *q, struct torchsave *t, struct source *file,
		  struct ckpt_err *e)
{
	struct cut *x = arg;
	struct torchsave_wrapped how = dcp_wrapped(x->of->r, q);

	(void)file;
	how.shape = x->of->t->shape;
	how.n_dims = x->of->t->n_dims;
	how.part = put_together;
	how.part_arg = x;
	return torchsave_report_wrapped(t, &how, x->w, e);
}

/* ---- all ---- */

static int open_item(void *arg, const struct dcp_inside *q, struct ckpt_err *e)
{
	struct cut *x = arg;

	return dcp_look_inside(x->looks, q, x->look, x, x->w, e);
}

/* Does each item have all parts? */
static bool is_whole(const struct cut *x)
{
	for (size_t i = 0; x->class && i < x->class->n; i++)
		if (x->parts[i].n != x->n)
			return false;
	return x->class != NULL;
}

int dcp_report_cut(struct dcp_looks *l, const struct dcp_cut *of,
		   char not_shown[static FORMAT_NOTE], struct catalog_writer *w, struct ckpt_err *e)
{
	CLEANUP(cut_release)
	struct cut x = { .looks = l, .w = w, .of = of, .look = look };
	const struct tensor_chunks *t = of->t;
	uint32_t first = 0;
	int rc = 0;

	for (x.k = 0; !rc && !x.why && x.k < t->count; x.k++) {
		if (!box_volume(t->n_dims, box_of(&x) + t->n_dims, &x.volume) || !x.volume)
			continue;
		first = x.n++ ? first : x.k;
		rc = of->at(of, x.k, open_item, &x, e);
		if (!rc && !x.class && !x.why)
			return 0;
	}
	if (!rc && x.why) {
		(void)format_note(not_shown, "'%.120s', which is cut into parts of class %s: %s",
				  t->fqn, x.name, x.why);
		return 1;
	}
	if (rc || !is_whole(&x)) /* reading reports what is missing or damaged */
		return rc;
	x.look = report;
	return of->at(of, first, open_item, &x, e);
}
