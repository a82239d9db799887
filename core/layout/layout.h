/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout - which box of which tensor each rank of a target mesh holds.
 *
 *	struct layout *l;
 *	rc = layout_read("tp4.txt", &l, &e);
 *	rc = layout_bind(l, tensors, n, &e);
 *	for (size_t i = 0; i < layout_ranks(l); i++)
 *		if (layout_box(l, i, tensor, off, len)) ...
 *
 * Text format: one mesh line, then rules. The first rule that matches a tensor's FQN applies; a
 * tensor that no rule matches is whole on every rank, and is replicated along axes that its rule
 * does not name. Matching all tensors may take up to TEXT_GLOB_STEPS of base/text.h; rules without
 * * ? [ cost nothing.
 *
 *	mesh dp=2 tp=4                 # axes in row-major rank order: rank = dp*4 + tp
 *	*.q_proj.weight      tp:0      # axis tp splits dimension 0
 *	*.experts.*.weight   dp:0 tp:0 # several on one dimension nest as written
 *	*.bias               tp:-1     # dimensions may be counted from the end
 *	*                    replicate
 *
 * Splits are torch.chunk's (CKPT_SPLIT_CEIL of <ckptfs/ckpt_tensor.h>). Globs are those of
 * text_glob; a blank in one is written "\ ", a leading '#' "\#", and a glob that is just the word
 * mesh "\mesh". A '#' at the start of a line or after a blank begins a comment.
 *
 * JSON format: HyperParallel's *.layout files: {"RANK": {"FQN": {...}}}. The ranks are those
 * listed, and a rank holds what is listed for it: whole tensors, if none of mesh_shape (or
 * device_matrix), tensor_map and rank_list is given. A directory stands for all its *.layout files.
 *
 * Errors name the file and the line, or the file, the rank and the FQN.
 *
 * Only layout_read does I/O. Threads: immutable after layout_bind.
 */
#ifndef LAYOUT_LAYOUT_H
#define LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct digest;
struct layout;

#define LAYOUT_MAX_FILE ((size_t)256 << 20) /* bytes */

/* Reads a file of either kind (JSON begins with '{') or a directory. */
int layout_read(const char *path, struct layout **ret, struct ckpt_err *e);
/* Parses the contents of a file, which are modified, as is text[len], so there must be room for it.
 * Messages call it `name`. */
int layout_parse(char *text, size_t len, const char *name, struct layout **ret, struct ckpt_err *e);
void layout_free(struct layout *l); /* NULL is fine */
/* Covers the texts read by layout_read or layout_parse, and the file names in a directory. */
const struct digest *layout_digest(const struct layout *l);

struct layout_tensor {
	const char *fqn;
	size_t fqn_len;
	size_t n_dims; /* at most CKPT_MAX_DIMS */
	const uint64_t *shape;
};

/*
 * Finds what the layout says about each of n tensors, which are not kept. Fails on contradictions:
 * a dimension that does not exist, a full_shape other than the tensor's, parts that do not divide.
 * May be called again for other tensors.
 */
int layout_bind(struct layout *l, const struct layout_tensor *tensors, size_t n,
		struct ckpt_err *e);
/*
 * A warning about the i-th thing in the layout that no tensor uses: a rule or a parameter. False if
 * there is no i-th.
 */
bool layout_unused(const struct layout *l, size_t i, char *out, size_t cap);

size_t layout_ranks(const struct layout *l);		/* number of ranks, at least one */
uint64_t layout_rank(const struct layout *l, size_t i); /* the number of the i-th; ascending */

/*
 * The box of tensor t that the i-th rank holds; it may be empty in some dimensions. False if the
 * rank holds no part of it.
 */
bool layout_box(const struct layout *l, size_t i, size_t t, uint64_t *ret_off, uint64_t *ret_len);
/* Does every rank hold a box of every tensor? (True for the text format; JSON lists them.) */
bool layout_holds_all(const struct layout *l);
/* If not: the tensors of which the i-th rank holds a box, ascending. ret has room for all
 * tensors. */
size_t layout_held(const struct layout *l, size_t i, uint32_t *ret);

#endif
