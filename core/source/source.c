/* SPDX-License-Identifier: Apache-2.0 */
#include "source/source.h"

static int64_t read_blob(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	return source_read(arg, buf, len, off, e);
}

struct blob source_blob(struct source *s)
{
	return (struct blob){ read_blob, s, s->seen.size };
}
