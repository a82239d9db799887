/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_util - what the pickle suites share: reading in small pieces, values as text, and an
 * emitter that writes pickles the way CPython's pickler does.
 */
#ifndef TESTS_PICKLE_UTIL_H
#define TESTS_PICKLE_UTIL_H

#include "base/buf.h"
#include "base/err.h"
#include "parse/pickle.h"

/* A read callback (arg: a struct feed) that gives at most `step` bytes at a time. */
struct feed {
	const uint8_t *bytes;
	size_t n, step;
};
int64_t feed_read(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e);

/*
 * Calls pickle_load with `step` bytes at a time through the read callback, or with memory if step
 * is 0. The bytes are first copied to an allocation of exactly their size, for AddressSanitizer.
 */
int load_bytes(const void *bytes, size_t n, size_t step, const struct pickle_opts *opts,
	       struct pickle **ret, struct ckpt_err *e);

/*
 * Prints a value much as Python would: (1, 'a', b'x', {None: [True, 1.5]}). A global is mod.name;
 * an object is mod.name(args), with its state after a '!' and its items after a '+'. A long integer
 * is in hex, a persistent id is &id, a record is <hex>. "?" stands for what was not kept, "..." for
 * what is more than 40 levels deep.
 */
void print_value(struct buf *b, const struct pk_value *v);

struct emit {
	struct buf b;
	int protocol;
	bool memoize; /* as the pickler does, for everything but numbers */
	uint32_t n_puts;
};

#define EMIT_INIT(proto, memo) \
	{ \
		.b = BUF_INIT((size_t)1 << 30), .protocol = (proto), .memoize = (memo) \
	}

void emit_proto(struct emit *m);
void emit_op(struct emit *m, uint8_t op);
void emit_ops(struct emit *m, uint8_t op, size_t times);
void emit_int(struct emit *m, int64_t v);		  /* the shortest form */
void emit_bytes(struct emit *m, const void *p, size_t n); /* raw */
void emit_put(struct emit *m);
void emit_get(struct emit *m, uint32_t id);
void emit_str(struct emit *m, const char *s);
void emit_global(struct emit *m, const char *module, const char *name);
/* module.name() without a state: GLOBAL EMPTY_TUPLE NEWOBJ */
void emit_object(struct emit *m, const char *module, const char *name);
/* Begin and end of an object's dict of attributes: EMPTY_DICT MARK ... SETITEMS BUILD */
void emit_attrs(struct emit *m);
void emit_attrs_end(struct emit *m);
void emit_size(struct emit *m, size_t n, const uint64_t *v); /* torch.Size */

/*
 * A .metadata with `tensors` tensors t0, t1, ... of `chunks` chunks each, and all three dicts, in
 * the batches of 1000 pairs that a pickler writes.
 */
void emit_metadata(struct emit *m, unsigned tensors, unsigned chunks);

/* Hooks like those of a .metadata reader; arg: a struct dcp_count. */
enum { CLS_METADATA = 1, CLS_TENSOR, CLS_BYTES, CLS_CHUNK, CLS_INDEX, CLS_STORAGE, CLS_PROPERTIES };
struct dcp_count {
	size_t tensors, stored, planned, chunks, shared;
};
extern const struct pickle_hooks dcp_hooks;

#endif
