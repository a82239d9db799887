/* SPDX-License-Identifier: Apache-2.0 */
/*
 * others - checkpoints that an engine opens besides its own, because tensors are computed from
 * theirs: of an average, an adapter, an overlay. Each is found, indexed and watched for change like
 * any checkpoint.
 *
 * Private to core/ckpt.
 *
 * Threads: opened before the engine is used, then any.
 */
#ifndef CKPT_OTHERS_H
#define CKPT_OTHERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt;
struct ckpt_counters;
struct ckpt_err;
struct ckpt_opts;
struct digest;
struct engine;
struct fetch;

enum { OTHERS_MAX = 256 /* of a checkpoint; each has open files and memory of its own */ };

struct others {
	struct ckpt **v;
	size_t n, cap;
};

/*
 * Opens the checkpoint at a path with those options of o that reach stored tensors: without
 * renaming, casts and other checkpoints. The engine owns it. share: it gets one of so many parts of
 * the cache.
 */
int others_open(struct engine *eng, const char *path, const struct ckpt_opts *o, size_t share,
		struct engine **ret, struct ckpt_err *e);
void others_close(struct others *o);

/* The engine of a derived_input.fetch: eng itself for NULL. */
const struct engine *others_of(const struct engine *eng, const struct fetch *f);
/* Has a file of any of them changed? */
bool others_changed(const struct engine *eng);
/* Adds what identifies them, and what they count. */
void others_digest(const struct engine *eng, struct digest *d);
void others_count(const struct engine *eng, struct ckpt_counters *to);
/* The latest modification time of their metadata; 0: there are none. */
uint64_t others_mtime(const struct engine *eng);

#endif
