/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torchsave_walk - the walk over a saved value, shared by the files that make it up:
 * torchsave_report.c walks, torchsave_parts.c knows what a value is made of, torchsave_shared.c
 * which values lead back to themselves, and torchsave_kinds.c the tensors that are made of others.
 * Private to core/format/torch.
 *
 * Threads: one at a time.
 */
#ifndef TORCH_TORCHSAVE_WALK_H
#define TORCH_TORCHSAVE_WALK_H

#include "base/buf.h"
#include "format/torch/torchsave.h"
#include "index/catalog_path.h"

#include <errno.h>

enum { WALK_MAX_DEPTH = 100 };

struct ckpt_err;
struct torch_call;
struct torch_tensor;

struct walk {
	struct torchsave *t;
	const char *name;		     /* of the file */
	struct torchsave_expected *expected; /* or NULL */
	unsigned within;		     /* tensors that are made of what is being reported */
	struct catalog_writer *w;
	uint32_t source;
	uint64_t base; /* where t->file begins in it */
	struct {
		uint32_t end; /* bytes of the path up to this step */
		bool is_position;
	} steps[WALK_MAX_DEPTH + 1];
	size_t n_steps;
	bool error_named; /* the message has the name already */
	unsigned again;	  /* values around the present one that were listed before */
	const struct torchsave_wrapped *wrapped; /* NULL: it is no walk over one */
	bool off_path; /* the name is not that of a value in the state dict */
	uint8_t cuts[(WALK_MAX_DEPTH + 1) * CATALOG_PATH_NUMBER]; /* the steps, for the catalog */
	struct buf path, text;
};

/* Report under the present name a tensor whose numbers have been read; the text in w->text. */
int walk_dense(struct walk *w, const struct torch_tensor *t, struct ckpt_err *e);
int walk_own_text(struct walk *w, struct ckpt_err *e);

/* Appends a value to w->text, as pickle_json does; EFBIG when all texts together are too large. */
int walk_json(struct walk *w, const struct pk_value *v, struct ckpt_err *e);

bool walk_is_tensor(struct walk *w, const struct pk_value *v);
bool walk_is_storage(struct walk *w, const struct pk_value *v);
bool walk_is_module(const struct pk_value *v);

/* Calls `each` for the values that v is made of. A non-zero return stops and is returned. */
typedef int walk_part_fn(void *arg, const struct pk_value *key, size_t number,
			 const struct pk_value *value, struct ckpt_err *e);
int walk_parts(struct torchsave *t, const struct pk_value *v, walk_part_fn *each, void *arg,
	       struct ckpt_err *e);
/* 1 if there is a tensor in it. */
int walk_has_tensor(struct walk *w, const struct pk_value *v, struct ckpt_err *e);

/* Report a value under the present name and a word more: "w" and "scale" give "w.scale", beside "w"
 * in the state dict. */
int walk_beside(struct walk *w, const char *word, size_t len, const struct pk_value *v,
		unsigned depth, struct ckpt_err *e);
int walk_dense_beside(struct walk *w, uint64_t number, const struct torch_tensor *t,
		      struct ckpt_err *e);

/* A visit of a value that is to be listed. 1: it leads to itself, and is listed already. */
struct walk_visit {
	uint32_t known, low;
	bool pushed; /* it came to the stack with this visit */
	bool again;  /* it has been listed before, because something else refers to it as well */
};
int walk_enter(struct walk *w, const struct pk_value *v, struct walk_visit *ret,
	       struct ckpt_err *e);
/* After walk_enter has returned 0. */
void walk_leave(struct walk *w, const struct walk_visit *visit);
void walk_shared_free(struct torchsave_shared *s);

/* Sets the budget of a file, once. */
void walk_budget(struct torchsave *t);
/* The code of the error that a budget is used up: one value is at fault, and others can be
 * listed. */
enum { WALK_TOO_OFTEN = E2BIG };
/* Counts the visits of n values; fails if there have been too many. */
int walk_charge(struct torchsave *t, uint64_t n, struct ckpt_err *e);
/* The same for a tensor or object that is listed again. */
int walk_charge_again(struct torchsave *t, struct ckpt_err *e);

/* Report the quantiser of a tensor; a tensor, whatever it is made of. 1: it cannot be shown, for
 * the reason in *e. */
int kinds_quantiser(struct walk *w, const struct torch_call *c, unsigned depth, struct ckpt_err *e);
/* Is it a tensor of Transformer Engine's, which torch does not rebuild itself? */
bool kinds_is_engine(const struct pk_value *v);
/* Is it made of other tensors, whatever its class? */
bool kinds_is_wrapper(const struct torch_call *c);
int kinds_report(struct walk *w, const struct torch_call *c, unsigned depth, struct ckpt_err *e);

#endif
