/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address - what the path of a checkpoint means, and what to say where it means nothing.
 *
 * Private to core/ckpt.
 *
 * Threads: any.
 */
#ifndef CKPT_ADDRESS_H
#define CKPT_ADDRESS_H

struct ckpt_err;

/* *e has why a path cannot be opened: adds to it what else was probably meant. */
void address_explain(const char *path, struct ckpt_err *e);
/* *e has why what is there is no checkpoint: adds what its name says. */
void address_explain_name(const char *root, struct ckpt_err *e);

#endif
