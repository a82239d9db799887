/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_form - converts values of a training program between the forms of the checkpoint systems.
 *
 *	OBJECT_TORCH   an archive of torch.save, as in DCP. Other bytes in its place (Megatron-core
 *		       lets callers serialise objects themselves) are passed through.
 *	OBJECT_PICKLE  a pickle; or bytes, which HyperParallel writes as they are
 *	OBJECT_JSON    this program's text for an object of a torch.save file
 *	OBJECT_LISTED  an archive of torch.save of a list of the value alone, as Megatron-core stores
 *		       the parts of objects; only made, from any other form
 *
 * From OBJECT_PICKLE to OBJECT_TORCH a pickle gets an archive around it, and bytes become an
 * archive of a Python bytes object. From OBJECT_TORCH to OBJECT_PICKLE an archive becomes the
 * pickle in it, unless it holds tensors: HyperParallel has no form for those, and gets the archive
 * as bytes, which on the way back are the archive again. JSON becomes the Python value that it
 * describes or, if it holds numbers or strings that the JSON library cannot represent, a string of
 * the text. What has no pickle of its own, such as an archive with tensors, is in an OBJECT_LISTED
 * as bytes.
 *
 * Nothing is executed: pickles are only examined and copied.
 *
 * Threads: pure.
 */
#ifndef STORE_OBJECT_FORM_H
#define STORE_OBJECT_FORM_H

#include <stddef.h>

struct buf;
struct ckpt_err;

enum object_form { OBJECT_TORCH, OBJECT_PICKLE, OBJECT_JSON, OBJECT_LISTED };

/* Appends the len bytes converted to another form. Fails with ret's ENOMEM or EFBIG. */
int object_convert(enum object_form from, enum object_form to, const void *data, size_t len,
		   struct buf *ret, struct ckpt_err *e);

#endif
