/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/peek.h"

#include "base/cleanup.h"
#include "ckpt/ckpt_internal.h"
#include "index/catalog_query.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "tensor/vtensor.h"

/* A weight that needs it is refused or shown as faulty later, as the options ask. */
static bool is_missing(const struct engine *eng, const struct catalog_tensor *t)
{
	autofree struct chunkmap *m = NULL;
	struct ckpt_err ignored;

	if (t->state == TENSOR_INCOMPLETE)
		return true;
	if (catalog_load_map(eng->catalog, t, &m, &ignored))
		return false;
	for (uint32_t k = 0; k < m->count; k++)
		if (files_fault(eng->files, m->locs[k].file, &ignored))
			return true;
	return false;
}

int peek_engine(void *arg, uint32_t i, void *buf, size_t len, struct ckpt_err *e)
{
	static const struct fetch_opts small = { .map_bytes = 1 << 20 };
	struct peeking *p = arg;
	const struct catalog_tensor *t = &catalog_tensors(p->eng->catalog, NULL)[i];
	struct tensor_reader *r = NULL;
	struct vtensor *v;
	int rc = 0;

	if (is_missing(p->eng, t))
		return 1;
	if (!p->fetch)
		rc = fetch_new(p->eng->catalog, p->eng->files, &small, &p->fetch, e);
	if (!rc)
		rc = vtensor_whole(t, i, (enum ckpt_dtype)t->dtype, &v, e);
	if (!rc)
		rc = tensor_open(p->fetch, v, &r, e);
	if (!rc)
		rc = tensor_read(p->fetch, r, buf, len, 0, NULL, e);
	if (p->fetch)
		tensor_close(p->fetch, r);
	return rc;
}
