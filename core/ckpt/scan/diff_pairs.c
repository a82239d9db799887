/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/scan/diff_pairs.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/blocks.h"
#include "codec/blocks_decode.h"
#include "codec/delta.h"
#include "codec/tally.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

/* ---- sides: the lists that are compared ---- */

/* One name of a side. */
struct entry {
	bool is_object;
	const char *fqn, *fault;
	size_t fqn_len;
	const struct ggml_info *blocks;
	uint64_t at; /* its number among the tensors, or objects, of the side */
	struct ckpt_diff_side side;
};

int diff_buffers_make(struct diff_buffers *b, size_t size, struct ckpt_err *e)
{
	b->bytes[0] = malloc(2 * size);
	b->tally = tally_work_new();
	if (!b->bytes[0] || !b->tally)
		return err_nomem(e);
	b->bytes[1] = b->bytes[0] + size;
	return 0;
}

void diff_buffers_free(struct diff_buffers *b)
{
	tally_work_free(b->tally);
	free(b->bytes[0]);
}

struct diff_side diff_side_of(struct ckpt *c, const struct ckpt_diff *d)
{
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	if (d->model)
		return (struct diff_side){ .ckpt = c,
					   .model = true,
					   .n_tensors = ckpt_model_tensors(c) };
	return (struct diff_side){ .ckpt = c, .n_tensors = t.tensors, .n_objects = t.objects };
}

struct diff_side diff_side_of_gguf(const struct diff_gguf *g, size_t side)
{
	struct diff_gguf_side s = diff_gguf_side(g, side);

	return (struct diff_side){ .ckpt = s.ckpt, .gguf = s, .n_tensors = s.n };
}

static void entry_of_tensor(const struct ckpt_tensor *t, struct entry *ret)
{
	*ret = (struct entry){ .fqn = t->fqn, .fqn_len = t->fqn_len, .fault = t->fault };
	ret->side = (struct ckpt_diff_side){ t->dtype, t->n_dims, t->shape, t->bytes };
}

static void entry_of_gguf(const struct diff_gguf_tensor *t, struct entry *ret)
{
	*ret = (struct entry){ .fqn = t->name, .fqn_len = t->len, .blocks = t->blocks };
	ret->side = (struct ckpt_diff_side){ t->dtype, t->n_dims, t->shape, t->bytes };
}

static void entry_of_object(const struct ckpt_object *o, struct entry *ret)
{
	*ret = (struct entry){ .is_object = true,
			       .fqn = o->fqn,
			       .fqn_len = o->fqn_len,
			       .fault = o->fault,
			       .side.bytes = o->length };
}

/* The next name, without consuming it; false after the last. */
static bool side_peek(const struct diff_side *s, struct entry *ret)
{
	bool tensor = s->tensor < s->n_tensors, object = s->object < s->n_objects;
	struct ckpt_tensor t;
	struct ckpt_object o;

	if (s->gguf.t) {
		if (tensor) {
			entry_of_gguf(&s->gguf.t[s->tensor], ret);
			ret->at = s->tensor;
		}
		return tensor;
	}
	if (tensor && s->model)
		ckpt_model_tensor(s->ckpt, s->tensor, &t);
	else if (tensor)
		ckpt_tensor(s->ckpt, s->tensor, &t);
	if (object)
		ckpt_object(s->ckpt, s->object, &o);
	if (tensor && object)
		tensor = text_natural_cmp(t.fqn, t.fqn_len, o.fqn, o.fqn_len) <= 0;
	if (tensor) {
		entry_of_tensor(&t, ret);
		ret->at = s->tensor;
	} else if (object) {
		entry_of_object(&o, ret);
		ret->at = s->object;
	}
	return tensor || object;
}

static void side_step(struct diff_side *s, const struct entry *peeked)
{
	if (peeked->is_object)
		s->object++;
	else
		s->tensor++;
}

int diff_open(const struct diff_side *s, bool is_object, uint64_t at, struct ckpt_file **ret,
	      struct ckpt_err *e)
{
	if (s->gguf.t)
		return diff_gguf_open(&s->gguf, at, ret, e);
	if (s->model)
		return ckpt_model_open(s->ckpt, at, ret, e);
	return ckpt_file_open(
		s->ckpt, is_object ? ckpt_object_node(s->ckpt, at) : ckpt_tensor_node(s->ckpt, at),
		ret, e);
}

/* ---- pairs ---- */

static bool same_shape(const struct ckpt_diff_side *a, const struct ckpt_diff_side *b)
{
	return a->n_dims == b->n_dims && dims_equal(a->n_dims, a->shape, b->shape);
}

static void pair_of_tensors(struct diff_pair *p, bool values)
{
	const struct ckpt_diff_side *side[] = { &p->item.a, &p->item.b };
	uint64_t size = 1;

	for (size_t i = 0; i < 2; i++) {
		p->types[i] = ckpt_dtype_by_name(side[i]->dtype, strlen(side[i]->dtype));
		size = max_u64(size, dtype_info(p->types[i])->size);
	}
	p->same_type = p->types[0] == p->types[1];
	p->values = values && (p->same_type || delta_numeric(p->types[0], p->types[1]));
	p->item.result = !same_shape(side[0], side[1]) ? CKPT_DIFF_SHAPE
			 : !p->same_type	       ? CKPT_DIFF_DTYPE
						       : CKPT_DIFF_EQUAL;
	p->read = p->item.result == CKPT_DIFF_EQUAL ||
		  (p->item.result == CKPT_DIFF_DTYPE && p->values);
	p->elements = p->item.a.bytes / max_u64(dtype_info(p->types[0])->size, 1);
	p->step = DIFF_BLOCK / size;
}

/* A's elements are read as float32, and B's as they are stored. */
static void pair_of_blocks(struct diff_pair *p, const struct ggml_info *blocks, bool values)
{
	bool encodes = block_type((enum ggml_type)blocks->type);

	p->blocks = blocks;
	p->types[0] = p->types[1] = CKPT_DTYPE_F32;
	p->same_type = encodes;
	p->values = values && block_decoder((enum ggml_type)blocks->type);
	p->item.result = !same_shape(&p->item.a, &p->item.b) ? CKPT_DIFF_SHAPE
			 : encodes			     ? CKPT_DIFF_EQUAL
							     : CKPT_DIFF_DTYPE;
	if (!encodes)
		p->item.a.dtype = dtype_info(CKPT_DTYPE_F32)->name;
	p->read = p->item.result == CKPT_DIFF_EQUAL ||
		  (p->item.result == CKPT_DIFF_DTYPE && p->values);
	p->elements = p->item.a.bytes / sizeof(float);
	p->step = DIFF_BLOCK / sizeof(float); /* of whole blocks */
}

static void pair_of_both(struct diff_pair *p, const struct entry *a, const struct entry *b,
			 bool values)
{
	p->item.a = a->side;
	p->item.b = b->side;
	p->at[0] = a->at;
	p->at[1] = b->at;
	if (a->is_object != b->is_object) {
		p->item.result = CKPT_DIFF_KIND;
	} else if (a->is_object) {
		p->is_object = p->read = p->same_type = true;
		p->types[0] = p->types[1] = CKPT_DTYPE_U8;
		p->step = DIFF_BLOCK;
	} else if (b->blocks) {
		pair_of_blocks(p, b->blocks, values);
	} else {
		pair_of_tensors(p, values);
	}
	if (p->read && (a->fault || b->fault)) {
		p->item.result = CKPT_DIFF_FAILED;
		p->item.fault = a->fault ? a->fault : b->fault;
		p->item.fault_in_b = !a->fault;
		p->read = false;
	}
	p->cost = p->read ? a->side.bytes + b->side.bytes : 0;
}

bool diff_next(struct diff_side sides[2], const struct ckpt_diff *d, uint64_t *glob_steps,
	       struct diff_pair *ret)
{
	struct entry a, b;

	for (;;) {
		bool in_a = side_peek(&sides[0], &a), in_b = side_peek(&sides[1], &b);
		int order = in_a && in_b ? text_natural_cmp(a.fqn, a.fqn_len, b.fqn, b.fqn_len) : 0;

		if (!in_a && !in_b)
			return false;
		in_a &= order <= 0;
		in_b &= order >= 0;
		if (in_a)
			side_step(&sides[0], &a);
		if (in_b)
			side_step(&sides[1], &b);
		*ret = (struct diff_pair){ .item.fqn = in_a ? a.fqn : b.fqn,
					   .item.fqn_len = in_a ? a.fqn_len : b.fqn_len };
		if (!text_glob_any(d->globs, ret->item.fqn, ret->item.fqn_len, glob_steps))
			continue;
		if (in_a && in_b) {
			pair_of_both(ret, &a, &b, d->values);
		} else {
			ret->item.result = in_a ? CKPT_DIFF_ONLY_A : CKPT_DIFF_ONLY_B;
			*(in_a ? &ret->item.a : &ret->item.b) = in_a ? a.side : b.side;
		}
		return true;
	}
}
