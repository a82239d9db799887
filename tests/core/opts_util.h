/* SPDX-License-Identifier: Apache-2.0 */
/* opts_util - options as a structure, converted to the strings that the library takes. */
#ifndef TESTS_OPTS_UTIL_H
#define TESTS_OPTS_UTIL_H

#include "ckpt/open/ckpt_options.h"
#include <ckptfs/ckpt.h>

/* Valid until this thread's next call. It allocates nothing, as faults are injected around it. */
const char *const *words_of(const struct ckpt_opts *o);

static inline struct ckpt_hooks hooks_of(const struct ckpt_opts *o)
{
	return (struct ckpt_hooks){ o->warn, o->warn_arg, o->progress, o->progress_arg };
}

static inline int open_typed(const char *path, const struct ckpt_opts *o, struct ckpt **ret,
			     struct ckpt_err *e)
{
	struct ckpt_hooks hooks = hooks_of(o);

	return ckpt_open(path, words_of(o), &hooks, ret, e);
}

#endif
