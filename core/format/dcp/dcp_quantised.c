/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a quantised tensor has its dtype, but neither scales nor zero points: these are
 * in its item, an archive of torch.save. So such items are opened for the index, and what is found
 * in them is shown beside the tensor. For a tensor that is made of others, the metadata describes
 * only what it stands for: what is in its item is shown instead. And if several ranks have saved a
 * tensor of their own, only the items tell whether these are copies.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "format/torch/torch_file.h"
#include "index/catalog_build.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

enum {
	LOOK = 2048, /* what each look counts for, in bytes */
	LOOK_READS =
		66 * 1024, /* and what it may read for that: the end of a ZIP, with its comment */
};

struct item {
	struct blob file;
	uint64_t at, read;
};

static int64_t read_item(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	struct item *x = arg;
	uint64_t at;

	x->read += len;
	return ckd_add(&at, x->at, off) ? 0 : x->file.read(x->file.arg, at, buf, len, e);
}

/* Does the checkpoint, a struct dcp_records, have a tensor or object of this name? */
static bool is_taken(const void *arg, const char *name, size_t len)
{
	const struct dcp_records *r = arg;
	const struct pk_str *s = pk_find(r->strings, name, len);

	return s && dcp_records_entry(r, s->id) != DCP_NO_TENSOR;
}

/* 1: the checkpoint has a tensor whose name is the item's followed by `word`. */
static int is_taken_beside(const struct dcp_records *r, const struct dcp_inside *q,
			   const char *word, struct ckpt_err *e)
{
	autofree char *name = malloc(q->fqn_len + strlen(word) + 1);

	if (!name)
		return err_nomem(e);
	memcpy(name, q->fqn, q->fqn_len);
	memcpy(name + q->fqn_len, word, strlen(word));
	return is_taken(r, name, q->fqn_len + strlen(word));
}

/* 1: the item's file, opened. 0: there is none, or nothing is left for looking. */
static int open_file(struct dcp_looks *l, const struct dcp_inside *q, struct catalog_writer *w,
		     struct source **ret, struct ckpt_err *e)
{
	struct place_seen seen;
	struct ckpt_err why;
	int rc;

	if (!l->left)
		return 0;
	rc = place_look(l->place, q->path, &seen, &why);
	if (!rc) /* reading the tensor reports it; the file may arrive later */
		return catalog_add_metadata(w, q->path, NULL, NULL, e);
	rc = place_file(l->place, q->path, ret, &why);
	if (rc) /* so is this; but a shortage now must not change what is listed */
		return err_if_external(rc, &why, e);
	return range_ok(q->loc->offset, q->loc->length, source_blob(*ret).size);
}

/* Notes that the index depends on the file; not if the file has changed meanwhile. */
static int keep_file(const struct dcp_inside *q, struct source *file, struct catalog_writer *w,
		     struct ckpt_err *e)
{
	return source_is_same(file) ? catalog_add_metadata(w, q->path, &file->seen, NULL, e) : 0;
}

int dcp_look_inside(struct dcp_looks *l, const struct dcp_inside *q, dcp_look_fn *look, void *arg,
		    struct catalog_writer *w, struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	struct torchsave t = { 0 };
	struct item item = { .at = q->loc->offset };
	struct blob blob = { read_item, &item, q->loc->length };
	struct ckpt_err why;
	uint32_t plain;
	int kept, rc = catalog_add_encoding(w, "dcp", &plain, e);

	if (rc || q->loc->encoding != plain)
		return rc;
	rc = open_file(l, q, w, &file, e);
	if (rc <= 0)
		return rc;
	item.file = source_blob(file);
	rc = torchsave_open(&t, &blob, &why);
	l->left -= min_u64(l->left, LOOK + item.read - min_u64(item.read, LOOK_READS));
	if (rc) {
		torchsave_release(&t);
		return err_if_external(rc, &why, e);
	}
	rc = look(arg, q, &t, file, e);
	torchsave_release(&t);
	if (rc < 0)
		return rc;
	kept = keep_file(q, file, w, e);
	return kept ? kept : rc;
}

struct reporting {
	const struct dcp_records *r;
	struct catalog_writer *w;
};

static int report_quantiser(void *arg, const struct dcp_inside *q, struct torchsave *t,
			    struct source *file, struct ckpt_err *e)
{
	const struct reporting *x = arg;
	struct ckpt_err why;
	int rc = torchsave_report_quantiser(t, q->path, q->loc->offset, q->fqn, q->fqn_len,
					    q->fqn_path, x->w, &why);

	(void)file;
	/* A damaged item is reported when it is read. */
	return err_if_external(rc, &why, e);
}

int dcp_report_quantiser(struct dcp_looks *l, const struct dcp_records *r,
			 const struct dcp_inside *q, struct catalog_writer *w, struct ckpt_err *e)
{
	static const char *const words[] = { ".scale", ".zero_point", ".axis" };
	struct reporting x = { r, w };

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		int rc = is_taken_beside(r, q, words[i], e);

		if (rc)
			return rc < 0 ? rc : 0;
	}
	return dcp_look_inside(l, q, report_quantiser, &x, w, e);
}

struct torchsave_wrapped dcp_wrapped(const struct dcp_records *r, const struct dcp_inside *q)
{
	return (struct torchsave_wrapped){ .name = q->path,
					   .base = q->loc->offset,
					   .fqn = q->fqn,
					   .fqn_len = q->fqn_len,
					   .path = q->fqn_path,
					   .taken = is_taken,
					   .taken_arg = r };
}

static int report_wrapped(void *arg, const struct dcp_inside *q, struct torchsave *t,
			  struct source *file, struct ckpt_err *e)
{
	const struct reporting *x = arg;
	const struct torchsave_wrapped how = dcp_wrapped(x->r, q);

	(void)file;
	return torchsave_report_wrapped(t, &how, x->w, e);
}

int dcp_report_wrapped(struct dcp_looks *l, const struct dcp_records *r, const struct dcp_inside *q,
		       struct catalog_writer *w, struct ckpt_err *e)
{
	struct reporting x = { r, w };

	return dcp_look_inside(l, q, report_wrapped, &x, w, e);
}

static int sample(void *arg, const struct dcp_inside *q, struct torchsave *t, struct source *file,
		  struct ckpt_err *e)
{
	const struct pk_value root = pickle_root(t->pickle);
	struct torch_file f = { .path = q->path, .source = file, .t = *t };
	struct torch_view v;
	struct ckpt_err why;
	int rc = torch_file_view(&f, &root, &v, &why);

	if (rc) /* it is made of others, or damaged, which reading reports */
		return err_if_external(rc, &why, e);
	/* Elements may be equal and bytes not. */
	if (v.layout.strided || v.layout.swap || v.layout.neg || v.layout.conj)
		return 0;
	v.at += q->loc->offset;
	return torch_file_sample(&f, &v, arg, e);
}

/*
 * Compressed items are not decompressed for this: the ranks of one save compress alike, so that
 * copies are stored alike, and other values nearly always have another size or end.
 */
static int sample_stored(struct dcp_looks *l, const struct dcp_inside *q, struct catalog_writer *w,
			 struct digest *ret, struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	struct digest sum = { 0 };
	int rc = open_file(l, q, w, &file, e);

	if (rc <= 0)
		return rc;
	l->left -= min_u64(l->left, LOOK);
	digest_add(&sum, &q->loc->length, sizeof(q->loc->length));
	rc = torch_sample_ends(file, q->loc->offset, q->loc->length, &sum, e);
	if (rc)
		return rc;
	*ret = sum;
	return keep_file(q, file, w, e);
}

int dcp_sample(struct dcp_looks *l, const struct dcp_inside *q, struct catalog_writer *w,
	       struct digest *ret, struct ckpt_err *e)
{
	uint32_t plain;
	int rc = catalog_add_encoding(w, "dcp", &plain, e);

	if (rc)
		return rc;
	return q->loc->encoding == plain ? dcp_look_inside(l, q, sample, ret, w, e)
					 : sample_stored(l, q, w, ret, e);
}
