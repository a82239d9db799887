/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address - resolves the path of a checkpoint, and explains why it cannot be opened.
 *
 * Private to core/ckpt.
 *
 * Threads: any.
 */
#ifndef CKPT_ADDRESS_H
#define CKPT_ADDRESS_H

struct ckpt_err;
struct ckpt_opts;

/* Like ckpt_address, for a checkpoint to be opened with these options. NULL: for a directory in
 * which no checkpoint is opened to find out if it can be. */
int address_resolve(const char *path, const struct ckpt_opts *o, char **ret, struct ckpt_err *e);

/*
 * Resolves a name in a run, such as `latest`, that is not there itself: the address of the
 * checkpoint, freed by the caller. 1: it is not in a run. o: as above.
 */
int address_in_run(const char *path, const struct ckpt_opts *o, char **ret, struct ckpt_err *e);

/* *e reports that the path is not a checkpoint: adds what its name suggests. */
void address_explain_name(const char *root, struct ckpt_err *e);

#endif
