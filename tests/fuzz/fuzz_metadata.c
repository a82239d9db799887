/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a DCP .metadata, which is parsed, joined and indexed in memory; every chunk map is
 * loaded.
 *
 * Fuzzes: format/dcp/ parse/pickle
 */
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "mutate.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_pickle, NULL)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pickle_input in = { .mem = data, .mem_len = size };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	const struct dcp_join_opts join = { .many = true };
	struct dcp_records r;
	struct ckpt_err e = { 0 };

	if (dcp_records_init(&r, &e))
		return 0;
	if (!catalog_writer_new(NULL, "dcp", "/", &w, &e) &&
	    !dcp_read_metadata(&r, 0, &in, w, &e) && !dcp_join(&r, &join, w, &e) &&
	    !catalog_writer_finish(w, &c, &e)) {
		size_t n;
		const struct catalog_tensor *t = catalog_tensors(c, &n);

		for (size_t i = 0; i < n; i++) {
			struct chunkmap *m = NULL;

			/* A top-level key is all of the FQN, or a '.' follows. */
			if (t[i].top && t[i].fqn[t[i].top] && t[i].fqn[t[i].top] != '.')
				abort();
			/* What was written must be readable, unless memory ran out. */
			if (catalog_load_map(c, &t[i], &m, &e) && e.code != ENOMEM)
				abort();
			free(m);
		}
	} else if (!e.code) {
		abort(); /* a failure without a sentence */
	}
	catalog_close(c);
	catalog_writer_free(w);
	dcp_records_release(&r);
	return 0;
}
