/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assets - real files that hf/ and ranks/ show beside the weights: config.json, tokenizer, ...
 *
 * With assets=: the regular files of a directory, or of an address, except weights. Links are
 * followed: a user who names the directory trusts it, and the Hugging Face cache consists of links.
 * Without assets=: the files of a fixed list that lie in the checkpoint's directory, or else in its
 * parent; links that lead out of that directory are refused. These files are opened beneath the
 * directory. Those of the parent are opened once, so the file that was examined is the one read,
 * even if its name is reused; those of the checkpoint may be closed while they are not in use;
 * opening one again fails if it is another file.
 *
 * A file of the parent directory is used only if every user who could have written it could also
 * write to the checkpoint. The file and the parent must belong to root, to the user of this
 * process, or to the owner of the checkpoint's directory; neither may be writable by a group, or by
 * all users, unless the checkpoint's directory is too. In a sticky directory that others can write
 * to, such as /tmp, the file must have exactly one name and must not be a link.
 *
 * A config.json may also be made here, from a GGUF's keys; then its path is not that of a file.
 *
 * Private to core/ckpt.
 *
 * Threads: find and release from one thread, read from any.
 */
#ifndef CKPT_ASSETS_H
#define CKPT_ASSETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stored_file;
struct ckpt_err;
struct files;
struct place;
struct place_options;
struct view_asset;

#define ASSETS_MAX_CONFIG ((uint64_t)16 << 20) /* bytes of a config.json */

#define ASSETS_GPTQ "quantize_config.json" /* AutoGPTQ's */

enum asset_from { ASSET_OF_CHECKPOINT, ASSET_OF_PARENT, ASSET_GIVEN, ASSET_MADE };

struct assets {
	struct view_asset *v;	 /* in natural order of the names */
	enum asset_from *origin; /* for each asset */
	const char **text;	 /* for each: NULL, or what is shown in place of the file's bytes */
	size_t n;
	size_t n_all;		/* with those that are only read, which come last in the arrays */
	const char *refused[3]; /* sentences about files that exist but are not used */
	size_t n_refused;
	struct stored_file *paths; /* relative to / */
	char **owned;		   /* the strings that the members above point to */
	size_t n_owned, owned_cap;
	struct files *files;
	struct place *root; /* the directory / */
};

struct assets_ask {
	const char *given;   /* -o assets=, or NULL */
	struct place *place; /* the checkpoint's directory */
	const char *path;    /* the absolute path of `place`, for messages */
	const struct place_options
		*how; /* to open `given`, if it is an address; else may be NULL */
	/*
	 * do not show files that say how weights are quantised, because they are not shown so; the
	 * one called ASSETS_GPTQ can still be read
	 */
	bool dequantised;
	/* what is shown as config.json if there is none; NUL-terminated; or NULL */
	const char *config;
	/* reports files that are not used; may be NULL */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
};

/* The caller releases *ret, also after a failure. */
int assets_find(const struct assets_ask *ask, struct assets *ret, struct ckpt_err *e);
void assets_release(struct assets *a);
int assets_read(const struct assets *a, size_t i, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e);
/* Shows this text in place of the bytes of file i. */
int assets_replace(struct assets *a, size_t i, const char *text, struct ckpt_err *e);
/*
 * The contents of the asset with that name, NUL-terminated, freed by the caller; returns its
 * number, or -1 and no text if there is none. EFBIG: it has more than max bytes.
 */
int assets_text(const struct assets *a, const char *name, uint64_t max, char **ret, size_t *ret_len,
		int64_t *ret_number, struct ckpt_err *e);
/* "checkpoint", "parent", "assets", "GGUF" */
const char *asset_from_text(enum asset_from from);

#endif
