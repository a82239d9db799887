/* SPDX-License-Identifier: Apache-2.0 */
#include "store/outfile.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include <ckptfs/ckpt_plan.h>

enum {
	DEFAULT_BUFFER = 4 << 20,
	MIN_BUFFER = 4096, /* buffers are multiples of it, so they hold whole elements */
};

int outfile_open(struct outfile *f, struct staging *s, const char *name,
		 const struct outfile_opts *opts, struct ckpt_err *e)
{
	size_t cap = opts->buffer ? opts->buffer : DEFAULT_BUFFER;

	f->staging = s;
	f->name = name;
	f->opts = opts;
	f->cap = cap < MIN_BUFFER ? MIN_BUFFER : cap / MIN_BUFFER * MIN_BUFFER;
	return staging_open(s, name, &f->to, e);
}

int outfile_write(struct outfile *f, const void *p, size_t n, struct ckpt_err *e)
{
	int rc = staging_write(&f->to, p, n, e);

	if (rc)
		return staging_blame(f->staging, f->name, e);
	f->size += n;
	return 0;
}

static int source_piece(struct outfile *f, const struct ckpt_data *src, uint64_t off, size_t n,
			struct ckpt_err *e)
{
	const char *p = src->data ? (const char *)src->data + off : f->buf;
	int rc = src->data ? 0 : src->read(src->arg, off, f->buf, n, e);

	if (!rc)
		rc = outfile_write(f, p, n, e);
	if (!rc && f->opts->progress)
		f->opts->progress(f->opts->arg, n);
	return rc;
}

int outfile_source(struct outfile *f, const struct ckpt_data *src, struct ckpt_err *e)
{
	int rc = 0;

	if (!src->data && src->len && !f->buf) {
		f->buf = malloc(f->cap);
		if (!f->buf)
			return err_set(e, ENOMEM, "write '%s': out of memory", f->name);
	}
	for (uint64_t off = 0; off < src->len && !rc; off += f->cap)
		rc = source_piece(f, src, off, (size_t)min_u64(f->cap, src->len - off), e);
	return rc;
}

int outfile_finish(struct outfile *f, struct ckpt_err *e)
{
	return staging_finish(&f->to, e) ? staging_blame(f->staging, f->name, e) : 0;
}

void outfile_release(struct outfile *f)
{
	staging_drop(&f->to);
	free(f->buf);
	*f = (struct outfile)OUTFILE_INIT;
}
