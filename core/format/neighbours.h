/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neighbours - what lies where a checkpoint was expected: other programs' checkpoints, unfinished
 * saves, archives. Only asked once no format has recognised anything.
 *
 * Only names and the first bytes of a file are looked at, and only a bounded number of them.
 *
 * Private to core/format.
 *
 * Threads: pure apart from the file system.
 */
#ifndef FORMAT_NEIGHBOURS_H
#define FORMAT_NEIGHBOURS_H

struct ckpt_err;
struct place;
struct source;

/* Is a directory, or a file in it, something that is known? A negative errno, with a sentence that
 * says what it is and what to do; or 0. */
int neighbour_of(struct place *place, const char *file, struct ckpt_err *e);
/* Is the file one of those that make up a checkpoint in its directory? -ENOENT, with a sentence
 * that leads to the checkpoint; or 0. */
int neighbour_checkpoint(struct place *place, const char *file, struct ckpt_err *e);
/* A file could not be read as what it is named like, with result rc: if it is only what a failed
 * download leaves, *e says so instead. Returns rc. */
int neighbour_explain(struct source *s, const char *name, int rc, struct ckpt_err *e);

#endif
