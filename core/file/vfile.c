/* SPDX-License-Identifier: Apache-2.0 */
#include "file/vfile.h"

#include "base/err.h"
#include "base/search.h"
#include "base/vec.h"

#include <errno.h>
#include <stdlib.h>

static void append(struct vfile *f, const struct segment *s)
{
	if (f->err || !s->len)
		return;
	if (s->len > INT64_MAX - f->size) {
		f->err = EFBIG;
		return;
	}
	if (!VEC_ROOM(f->seg, f->cap, f->n + 1)) {
		f->err = ENOMEM;
		return;
	}
	f->seg[f->n] = *s;
	f->seg[f->n++].off = f->size;
	f->size += s->len;
}

void vfile_bytes(struct vfile *f, const void *p, size_t n)
{
	struct segment *last = f->n ? &f->seg[f->n - 1] : NULL;
	size_t at = f->text.len;

	if (f->err)
		return;
	buf_add(&f->text, p, n);
	if (n > INT64_MAX - f->size) {
		f->err = EFBIG;
	} else if (f->text.err) {
		f->err = f->text.err;
	} else if (last && last->kind == SEG_BYTES) {
		last->len += n;
		f->size += n;
	} else {
		append(f, &(struct segment){ .kind = SEG_BYTES, .len = n, .from = at });
	}
}

void vfile_lent(struct vfile *f, const void *p, size_t n)
{
	append(f, &(struct segment){ .kind = SEG_LENT, .len = n, .lent = p });
}

void vfile_zero(struct vfile *f, uint64_t n)
{
	append(f, &(struct segment){ .kind = SEG_ZERO, .len = n });
}

void vfile_tensor(struct vfile *f, uint64_t id, uint64_t bytes)
{
	append(f, &(struct segment){ .kind = SEG_TENSOR, .len = bytes, .id = id });
}

void vfile_object(struct vfile *f, uint64_t id, uint64_t bytes)
{
	append(f, &(struct segment){ .kind = SEG_OBJECT, .len = bytes, .id = id });
}

void vfile_file(struct vfile *f, uint64_t id, uint64_t from, uint64_t bytes)
{
	append(f, &(struct segment){ .kind = SEG_FILE, .len = bytes, .from = from, .id = id });
}

int vfile_done(const struct vfile *f, struct ckpt_err *e)
{
	if (f->err == EFBIG)
		return err_set(e, EFBIG, "the file would be too large");
	return f->err ? err_set(e, f->err, "out of memory") : 0;
}

void vfile_release(struct vfile *f)
{
	free(f->seg);
	buf_release(&f->text);
	*f = (struct vfile)VFILE_INIT;
}

size_t vfile_find(const struct vfile *f, uint64_t off)
{
	size_t behind = PARTITION_POINT(i, f->n, f->seg[i].off <= off);

	return behind ? behind - 1 : 0;
}
