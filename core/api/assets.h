/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assets - real files that hf/ and ranks/ show beside the weights: config.json, tokenizer, ...
 *
 * Given a directory: its regular files without weights (links are followed: who names the
 * directory trusts it, and the Hugging Face cache consists of links). Given none: those of a fixed
 * list that lie in the checkpoint's directory or its parent, which nothing may lead out of.
 * Private to core/api.
 *
 * Threads: find and release from one, read from any.
 */
#ifndef API_ASSETS_H
#define API_ASSETS_H

#include <stddef.h>
#include <stdint.h>

struct catalog_source;
struct ckpt_err;
struct files;
struct view_asset;

struct assets {
	struct view_asset *v; /* in natural order of their names */
	size_t n;
	struct catalog_source *paths; /* relative to / */
	char **owned;		      /* what the above point to */
	size_t n_owned;
	struct files *files;
	int root;
};

/* dir: -o assets=, or NULL; checkpoint: its absolute path. */
int assets_find(const char *dir, const char *checkpoint, struct assets *ret, struct ckpt_err *e);
void assets_release(struct assets *a);
int assets_read(const struct assets *a, size_t i, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e);

#endif
