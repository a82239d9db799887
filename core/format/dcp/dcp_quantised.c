/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a quantised tensor has its dtype, but neither scales nor zero points: these are in
 * its item, an archive of torch.save. So such items are opened for the index, and what is found in
 * them is shown beside the tensor.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "format/torch/torchsave.h"
#include "index/catalog_build.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

struct item {
	struct blob file;
	uint64_t at;
};

static int64_t read_item(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	struct item *x = arg;
	uint64_t at;

	return ckd_add(&at, x->at, off) ? 0 : x->file.read(x->file.arg, at, buf, len, e);
}

/* Has the checkpoint a tensor or object of this name already? */
static bool is_taken(const struct dcp_records *r, const struct dcp_quantised *q, const char *word)
{
	autofree char *name = malloc(q->fqn_len + strlen(word) + 1);
	const struct pk_str *s;

	if (!name)
		return true;
	memcpy(name, q->fqn, q->fqn_len);
	memcpy(name + q->fqn_len, word, strlen(word));
	s = pk_intern(r->strings, name, q->fqn_len + strlen(word));
	return !s || dcp_records_entry(r, s->id) != DCP_NO_TENSOR;
}

int dcp_report_quantiser(struct place *place, const struct dcp_records *r,
			 const struct dcp_quantised *q, struct catalog_writer *w,
			 struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	struct torchsave t = { 0 };
	struct item item = { .at = q->loc->offset };
	struct blob blob = { read_item, &item, q->loc->length };
	struct place_seen seen;
	struct ckpt_err why;
	uint32_t plain;
	int rc = catalog_add_encoding(w, "dcp", &plain, e);

	if (rc || q->loc->encoding != plain || is_taken(r, q, ".scale") ||
	    is_taken(r, q, ".zero_point") || is_taken(r, q, ".axis"))
		return rc;
	rc = place_look(place, q->path, &seen, &why);
	if (!rc) /* reading the tensor reports it; the quantiser may arrive later */
		return catalog_add_metadata(w, q->path, NULL, NULL, e);
	rc = place_file(place, q->path, &file, &why);
	if (!rc) {
		item.file = source_blob(file);
		if (!range_ok(item.at, blob.size, item.file.size))
			return 0; /* reading the tensor reports it */
		rc = torchsave_open(&t, &blob, &why);
	}
	if (!rc)
		rc = torchsave_report_quantiser(&t, q->path, item.at, q->fqn, q->fqn_len,
						q->fqn_path, w, &why);
	torchsave_release(&t);
	if (!rc && source_is_same(file)) /* the index has its quantiser's numbers */
		return catalog_add_metadata(w, q->path, &file->seen, NULL, e);
	if (rc != -ENOMEM)
		return 0; /* a damaged item is reported when it is read */
	*e = why;
	return rc;
}
