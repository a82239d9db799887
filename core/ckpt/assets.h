/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assets - real files that hf/ and ranks/ show beside the weights: config.json, tokenizer, ...
 *
 * Given a directory: its regular files without weights (links are followed: whoever names the
 * directory trusts it, and the Hugging Face cache consists of links). Given none: those of a fixed
 * list that lie in the checkpoint's directory, or else in its parent, which nothing may lead out of.
 * Those are opened once, beneath the directory, and what was opened is what is read, whatever comes
 * to have their names.
 *
 * A file of the parent directory is used only if no user could have written it who could not write
 * to the checkpoint. It and the parent belong to root, to the user of this process, or to the owner
 * of the checkpoint's directory; neither can be written to by a group, or by all, that cannot write
 * to the checkpoint's directory. In a sticky directory such as /tmp, to which others can write, it
 * has to be a file with one name, and no link.
 *
 * Private to core/ckpt.
 *
 * Threads: find and release from one, read from any.
 */
#ifndef CKPT_ASSETS_H
#define CKPT_ASSETS_H

#include <stddef.h>
#include <stdint.h>

struct stored_file;
struct ckpt_err;
struct files;
struct place;
struct view_asset;

enum asset_from { ASSET_OF_CHECKPOINT, ASSET_OF_PARENT, ASSET_GIVEN };

struct assets {
	struct view_asset *v;	 /* in natural order of their names */
	enum asset_from *origin; /* of each */
	size_t n;
	const char *refused[3]; /* sentences about what was there and is not used */
	size_t n_refused;
	struct stored_file *paths; /* relative to / */
	char **owned;		   /* what the above point to */
	size_t n_owned;
	struct files *files;
	struct place *root; /* / */
};

struct assets_ask {
	const char *given;			   /* -o assets=, or NULL */
	struct place *place;			   /* the checkpoint's directory, and */
	const char *path;			   /* its absolute path, for messages */
	void (*warn)(void *arg, const char *what); /* about what is not used; may be NULL */
	void *warn_arg;
};

/* *ret is to be released whatever happens. */
int assets_find(const struct assets_ask *ask, struct assets *ret, struct ckpt_err *e);
void assets_release(struct assets *a);
int assets_read(const struct assets *a, size_t i, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e);
/* The contents of the one of that name, followed by a NUL, for the caller to free; its number, or -1
 * and no text where there is none. EFBIG: it has more than max bytes. */
int assets_text(const struct assets *a, const char *name, uint64_t max, char **ret, size_t *ret_len,
		int64_t *ret_number, struct ckpt_err *e);
/* "checkpoint", "parent", "assets" */
const char *asset_from_text(enum asset_from from);

#endif
