/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saved_util - makes small files of torch.save from a text that shows their contents much as Python
 * would, and checks what a checkpoint of them is shown as.
 *
 *	{'a': [1, (2,)], 'b': N}	dicts, lists, tuples, integers, None
 *	1.5, T, F			a float, True, False
 *	'text', "text", %00ff		texts, in which \0 may be a NUL; bytes in hexadecimal
 *	t2+5(2,3)			a float32 tensor of that shape on storage 2, from element 5 on
 *	h2+5(2,3)			of float16
 *	t0+0(2,3)/(1,2)			with these strides
 *	I[0,1,2,3](2,2)			an int64 tensor of these elements; J: int32
 *	torch.float32			a global
 *	torch.Size((2,3))		what a global is called with; a second call may follow
 *	X!{'a': 1}			X, a state given to it
 *	&X				what has this persistent id
 *	#1=X, #1			X, and later the same object again; in the items and the state of X
 *					it is X itself, if X is a list, a dict or an object
 *	> X				at the beginning: numbers in storages are big-endian
 *	A{'x': 1}			argparse.Namespace(x=1)
 *	E, Z				an object that would do something; DeepSpeed's ZeroStageEnum(2)
 */
#ifndef TESTS_SAVED_UTIL_H
#define TESTS_SAVED_UTIL_H

#include "base/buf.h"

/* The pickle alone, which the caller releases. */
struct buf saved_text_pickle(const char *text);
/* Element i of storage k has the value first + 100 k + i; a storage has 40 elements. */
void saved_put(int dirfd, const char *path, const char *text, unsigned first);

/* want: the tensors, then the objects (without missing, not_shown and those of train_state), then
 * the warning. */
void saved_expect(const char *path, const char *format, const char *want);
/* The same, but want is only the beginning. */
void saved_expect_begin(const char *path, const char *format, const char *want);
/* The same, but want is only the warning, or "". */
void saved_expect_warning(const char *path, const char *format, const char *want);
/* It must not be opened as that format: there is an error, or another format. */
void saved_expect_not(const char *path, const char *format);
/* Opening it must fail with a message that contains `want`. */
void saved_expect_error(const char *path, const char *want);

#endif
