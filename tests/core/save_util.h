/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_util - state dicts of several ranks, with random tensors. Planners and writers that are
 * stepped by hand save them, and ckpt_open reads them back.
 *
 * Nothing is freed before the process ends: each test is a process. Errors fail the test, except
 * those that saved_save returns.
 */
#ifndef TESTS_SAVE_UTIL_H
#define TESTS_SAVE_UTIL_H

#include "rng.h"
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_storage.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

enum { SAVED_RANKS = 8, SAVED_ENTRIES = 16, SAVED_DIMS = 3 };

struct saved_entry {
	const char *fqn, *path; /* path: in the tree, such as "tensors/a%2Fb" */
	bool is_tensor;
	uint8_t dtype, n_dims;
	uint64_t shape[SAVED_DIMS];
	uint8_t *data; /* all of it */
	size_t len;
	struct ckpt_local_tensor
		of[SAVED_RANKS]; /* kind, shards; CKPT_LOCAL_WHOLE without any: not there */
};

struct saved {
	size_t ranks, n;
	struct saved_entry entries[SAVED_ENTRIES];
	struct ckpt_state_dict dict[SAVED_RANKS];
};

enum saved_kind {
	SAVED_WHOLE, /* every rank has all of it */
	SAVED_ONE,   /* only one rank has it, and the others do not know it */
	SAVED_MESH,  /* cut along a dimension, some parts may be empty */
	SAVED_ROWS,  /* rows dealt out as shards */
	SAVED_OBJECT,
};

/* An entry with random contents. Names have to stay. */
void saved_add(struct rng *r, struct saved *s, const char *fqn, const char *path,
	       enum saved_kind kind, uint8_t dtype, size_t n_dims, const uint64_t *shape);
/* Ranks and entries of all kinds; tensors of any dtype that safetensors has. */
void saved_random(struct rng *r, struct saved *s, bool whole, bool objects);
/* Makes the dicts, once all entries are there. */
void saved_dicts(struct saved *s);

struct saved_opts {
	enum ckpt_planner_system system;
	bool piecewise; /* tensors are read through source.read */
	bool caching;	/* keep planners and cache plans */
	bool stop;	/* after all data is written, so that nothing is finished */
};
/* Saves with all ranks, one step after the other; w[r] is rank r's writer. */
int saved_save(const struct saved *s, const char *dest, struct ckpt_storage_writer *w,
	       const struct saved_opts *o, struct ckpt_err *e);
/* Checks every byte of every entry, and that there is nothing else. */
void saved_check(const struct saved *s, const char *dest);

/* Bytes and names of all files of a directory as one number. */
uint64_t dir_digest(const char *path);

#endif
