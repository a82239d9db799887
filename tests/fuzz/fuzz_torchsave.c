/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a file of torch.save, archive or stream: what is reported must lie inside the file,
 * and the index must give it back.
 *
 * Fuzzes: format/torch/ format/torch_tensor
 */
#include "base/err.h"
#include "bytes.h"
#include "format/torch/torchsave.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "mutate.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The parts of an archive, or those of the pickles in a stream. */
static size_t parts_of_torch(const uint8_t *p, size_t n, struct part *v)
{
	return n && *p == 'P' ? parts_of_zip(p, n, v) : parts_of_pickle(p, n, v);
}
CUSTOM_MUTATOR(parts_of_torch, mend_zip)

static void check(struct catalog *c, size_t size)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);

	for (size_t i = 0; i < n; i++) {
		struct chunkmap *m = NULL;
		struct ckpt_err e = { 0 };

		if (t[i].top && t[i].fqn[t[i].top] && t[i].fqn[t[i].top] != '.')
			abort();
		if (catalog_load_map(c, &t[i], &m, &e) && e.code != ENOMEM)
			abort();
		for (uint32_t k = 0; m && k < m->count; k++)
			if (m->locs[k].offset > size ||
			    m->locs[k].length > size - m->locs[k].offset)
				abort();
		free(m);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = { data, size };
	const struct blob file = { read_bytes, &b, size };
	struct torchsave t = { 0 };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	if (!torchsave_open(&t, &file, &e) &&
	    !catalog_writer_new(NULL, "torch.save", "/", &w, &e) &&
	    !torchsave_report(&t, "f.pt", NULL, w, &e) && !catalog_writer_finish(w, &c, &e))
		check(c, size);
	else if (!e.code || !e.msg[0])
		abort(); /* a failure without a sentence */
	catalog_close(c);
	catalog_writer_free(w);
	torchsave_release(&t);
	return 0;
}
