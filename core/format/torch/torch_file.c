/* SPDX-License-Identifier: Apache-2.0 */
#include "format/torch/torch_file.h"

#include "base/checked.h"
#include "base/digest.h"
#include "base/err.h"
#include "index/catalog_build.h"
#include "model/box.h"
#include "source/source.h"

#include <string.h>

enum { SAMPLE = 4096 /* bytes at each end */ };
enum { SOME_VALUES = 1 << 22, VALUES_PER_BYTE = 64 };
#define MAX_ELEMENTS ((uint64_t)1 << 62)

int torch_file_open(struct torch_file *f, struct place *place, const char *path,
		    struct catalog_writer *w, struct ckpt_err *e)
{
	int rc;

	*f = (struct torch_file){ .path = path };
	rc = place_file(place, path, &f->source, e);
	if (rc)
		return rc;
	f->blob = source_blob(f->source);
	rc = torchsave_open(&f->t, &f->blob, e);
	if (rc)
		return err_wrap(e, "read '%.200s'", path);
	f->root = pickle_root(f->t.pickle);
	f->budget = SOME_VALUES + VALUES_PER_BYTE * pickle_end(f->t.pickle);
	rc = catalog_add_source(w, path, strlen(path), &f->number, e);
	return rc ? rc : catalog_add_metadata(w, path, &f->source->seen, NULL, e);
}

int torch_file_close(struct torch_file *f, int rc, struct ckpt_err *e)
{
	if (!rc && f->source && !source_is_same(f->source))
		rc = err_set(e, EAGAIN, "'%.200s' changed while it was read; is a save going on?",
			     f->path);
	torchsave_release(&f->t);
	source_free(f->source);
	f->source = NULL;
	return rc;
}

int torch_file_spend(struct torch_file *f, uint64_t n, struct ckpt_err *e)
{
	if (n > f->budget)
		return err_set(e, ERR_UNSUPPORTED, "'%.200s' repeats itself without end", f->path);
	f->budget -= n;
	return 0;
}

int torch_file_report(struct torch_file *f, const struct pk_value *v, const char *const steps[],
		      struct catalog_writer *w, struct ckpt_err *e)
{
	int rc = torchsave_report_at(&f->t, f->path, v, steps, w, e);

	return rc ? err_wrap(e, "read '%.200s'", f->path) : 0;
}

int torch_file_view(struct torch_file *f, const struct pk_value *v, struct torch_view *ret,
		    struct ckpt_err *e)
{
	struct torch_tensor t = { 0 };
	uint64_t at = 0, end;
	int rc = torch_tensor_read(v, &t, e);

	if (!rc && t.dtype >= CKPT_DTYPE_QI8 && t.dtype <= CKPT_DTYPE_QU2X4)
		return err_set(e, ERR_UNSUPPORTED, "a quantised tensor");
	if (!rc)
		rc = torch_tensor_reach(&t, &end, e);
	if (rc)
		return rc;
	if (!box_volume(t.n_dims, t.size, &ret->numel) || ret->numel > MAX_ELEMENTS)
		return err_set(e, ERR_CORRUPT, "a tensor of more than 2^62 elements");
	if (ret->numel) /* a placeholder's storage is empty */
		rc = torchsave_find(&f->t, &t, &at, e);
	if (rc)
		return rc;
	ret->dtype = t.dtype;
	ret->n_dims = t.n_dims;
	memcpy(ret->size, t.size, sizeof(ret->size));
	ret->at = ret->numel ? at + t.offset * dtype_info(t.dtype)->size : 0;
	torch_tensor_layout(&t, f->t.big_endian, &ret->layout);
	return 0;
}

int torch_sample_ends(struct source *file, uint64_t off, uint64_t len, struct digest *ret,
		      struct ckpt_err *e)
{
	const uint64_t at[] = { 0, len > SAMPLE ? len - SAMPLE : 0 };
	char buf[SAMPLE];

	for (int i = 0; i < (len > SAMPLE ? 2 : 1); i++) {
		int64_t n = source_read(file, buf, (size_t)min_u64(len, SAMPLE), off + at[i], e);

		if (n < 0)
			return (int)n;
		digest_add(ret, buf, (size_t)n);
	}
	return 0;
}

int torch_file_sample(struct torch_file *f, const struct torch_view *v, struct digest *ret,
		      struct ckpt_err *e)
{
	uint64_t bytes;

	if (!v->numel || !raw_extent(&v->layout, v->dtype, v->n_dims, v->size, &bytes))
		return 0;
	return torch_sample_ends(f->source, v->at, bytes, ret, e);
}
