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

/* *e has why what is there is no checkpoint: adds what its name says. */
void address_explain_name(const char *root, struct ckpt_err *e);

#endif
