/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt - an opened checkpoint and the tree of virtual files over it. The mount, the commands and this
 * interface are one engine. Installed as <ckptfs/ckpt.h>, with the library libckpt; ckpt(3) is its
 * manual. What only a server of files needs is in <ckptfs/ckpt_mount.h>.
 *
 *	const char *const opts[] = { "dtype=bf16", NULL };
 *	struct ckpt *c;
 *	struct ckpt_file *f;
 *	struct ckpt_err e = {0};
 *	if (ckpt_open("run/step-100", opts, NULL, &c, &e) ||
 *	    ckpt_file_open_path(c, "tensors/lm_head.weight", &f, &e))
 *		errx(2, "%s", e.msg);
 *	n = ckpt_file_read(f, buf, sizeof(buf), 0, &e);
 *
 * Functions return 0 or a negative errno with one sentence in *e, unless they say otherwise. Numbers
 * of tensors and objects and nodes may be any: what is said of one that is not there is an answer,
 * too, -EINVAL (numbers), -ENOENT (nodes) or as the function says.
 *
 * Nothing of the process is changed unless it is asked for (map_files takes SIGBUS). Data files stay
 * open, as many as RLIMIT_NOFILE has room for; where a checkpoint has a file for every item, a program may
 * want to raise its soft limit before ckpt_open.
 *
 * Structures grow at their ends alone, and a program runs with every libckpt of the soname that it was
 * linked with: the functions with _sized in their names, which those without it call, are told how long
 * the program's structure is. It has the members that both know; others are 0 in what is told, and are an
 * error (ENOTSUP) in what is asked for.
 *
 * Threads: open and close from one; everything else from any number at once.
 */
#ifndef CKPTFS_CKPT_H
#define CKPTFS_CKPT_H

#include "ckpt_base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CKPT_BEGIN

struct ckpt;
struct ckpt_file;

/* Of the library that is there, which need not be that of this header: "0.5.1". */
CKPT_API const char *ckpt_version(void);

/*
 * Options are words, "dtype=bf16" or, of those without a value, "allow_missing"; the last word NULL.
 * Those of the commands are described in ckptfs(1); some are for programs alone:
 *
 *	runs		a directory of checkpoints is fine as well, see below
 *	rebuild_index	build the chunk index even when a fresh one is there
 *	allow_holes	open although tensors have holes, for who reports them; allow_missing would
 *			let missing data files pass as well
 *	map_files	take what is in the page cache from there: faster, and SIGBUS, which a data
 *			file that becomes shorter may mean, is then handled here; one that has another
 *			cause goes to the handler that was there before
 *	maps=SIZE	bound on chunk maps in memory
 *
 * An option that comes again replaces what it was; include and exclude add to it.
 */
enum ckpt_option_form {
	CKPT_OPTION_FLAG, /* without a value */
	CKPT_OPTION_TEXT,
	CKPT_OPTION_FILE, /* a file or directory that is read, unless it is a name that the library has */
	CKPT_OPTION_LIST, /* may come several times */
	CKPT_OPTION_SIZE, /* bytes: "512", "64KiB", "5GB" */
};
struct ckpt_option {
	const char *name;
	enum ckpt_option_form form;
	const char *value; /* what a help text calls it; NULL: there is none */
	const char *help;  /* half a line */
	bool tree;	   /* decides which names and bytes the tree has */
	bool program;	   /* for programs alone */
};
/* Option i of this library; NULL behind the last. */
CKPT_API const struct ckpt_option *ckpt_option(size_t i);

struct ckpt_hooks {
	/* One sentence about something odd; of a run until ckpt_close, from any thread. May be NULL. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
	/* Called while the index is built, with bytes done of bytes to do; may be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
};

/* NULL for opts and hooks is fine; size: of *hooks. */
CKPT_API int ckpt_open_sized(const char *path, const char *const opts[],
			     const struct ckpt_hooks *hooks, size_t size, struct ckpt **ret,
			     struct ckpt_err *e);
static inline int ckpt_open(const char *path, const char *const opts[],
			    const struct ckpt_hooks *hooks, struct ckpt **ret, struct ckpt_err *e)
{
	return ckpt_open_sized(path, opts, hooks, sizeof(*hooks), ret, e);
}
CKPT_API void ckpt_close(struct ckpt *c); /* NULL is fine; all files must be closed */

/* The recipes that come with the program, by number: name, one line, text; NULL behind the last. */
CKPT_API const char *ckpt_recipe(size_t i, const char **ret_summary, const char **ret_text);

/* ---- what it holds ---- */

struct ckpt_totals {
	const char *format; /* "dcp" */
	const char *index;  /* path of the chunk index, or ":memory:" */
	bool index_built;   /* it was built by this open */
	uint64_t tensors, objects, chunks, files;
	uint64_t tensor_bytes; /* sum over all tensors, as shown */
	uint64_t stored_bytes; /* sum of the data files' sizes */
	uint64_t incomplete;   /* tensors and objects that cannot be opened */
	uint64_t mtime_ns;     /* the checkpoint's: that of its newest metadata file */
	/* The model; has_model is false where its tensors would not have names of their own. */
	bool has_model;
	uint64_t model_tensors, model_bytes;
	const char *model_prefix; /* model_prefix_len bytes that its names do without: "model." */
	size_t model_prefix_len;
	const char *identity; /* text that changes with the metadata's contents or time and with any
	                          data file's size or time */
};
/* Of a run: the format "run", empty strings, all else 0. */
CKPT_API void ckpt_totals_sized(const struct ckpt *c, struct ckpt_totals *ret, size_t size);
static inline void ckpt_totals(const struct ckpt *c, struct ckpt_totals *ret)
{
	ckpt_totals_sized(c, ret, sizeof(*ret));
}

struct ckpt_tensor {
	const char *fqn; /* fqn_len bytes, any content, followed by a NUL; borrowed */
	size_t fqn_len;
	const char *dtype; /* torch's name: "bfloat16"; after a cast */
	size_t element;	   /* bytes of one */
	size_t n_dims;
	const uint64_t *shape; /* n_dims, elements */
	/* Of a tensor that is stored flattened: its own shape, which logical/ has it in. */
	size_t n_logical;	 /* 0: the one above is */
	const uint64_t *logical; /* n_logical, elements */
	uint64_t bytes;		 /* of the whole tensor */
	uint64_t chunks;
	uint64_t files;	   /* distinct source files; counted only by ckpt_tensor_files, else 0 */
	const char *fault; /* why it cannot be opened, or NULL */
};
/* Tensor 0 <= i < totals.tensors, in natural order of the FQNs. Where there is none: empty strings,
 * a fault that says so, all else 0. */
CKPT_API void ckpt_tensor_sized(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret,
				size_t size);
static inline void ckpt_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	ckpt_tensor_sized(c, i, ret, sizeof(*ret));
}
/* The model, of which hf/, pt/ and ranks/ are made: its tensors under the names they have there. */
CKPT_API uint64_t ckpt_model_tensors(const struct ckpt *c);
CKPT_API void ckpt_model_tensor_sized(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret,
				      size_t size);
static inline void ckpt_model_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	ckpt_model_tensor_sized(c, i, ret, sizeof(*ret));
}
/* Index of the tensor of that name, or -1. */
CKPT_API int64_t ckpt_tensor_find(const struct ckpt *c, const char *fqn, size_t len);
CKPT_API int64_t ckpt_model_find(const struct ckpt *c, const char *name, size_t len);
/* Names of tensors and objects, also as the model calls them, that are like one that is not there, in
 * a bounded time: "'a', 'b' or 'c'" or "", as far as cap reaches; its length. */
CKPT_API size_t ckpt_similar(const struct ckpt *c, const char *name, size_t len, char *buf,
			     size_t cap);
/* Index of the stored tensor that the model shows, whole, under that name; -1: there is none. */
CKPT_API int64_t ckpt_model_stored(const struct ckpt *c, const char *name, size_t len);
/*
 * With the option layout: the box of tensor i of the model that a rank holds, as ranks/ shows it; n_dims
 * numbers each. False: nothing of it, or there is no such rank, or they have its experts in one
 * tensor where hf/ splits them (the option experts settles that).
 */
CKPT_API bool ckpt_rank_box(const struct ckpt *c, uint64_t rank, uint64_t i, uint64_t *ret_off,
			    uint64_t *ret_len);
CKPT_API int ckpt_tensor_files(struct ckpt *c, uint64_t i, uint64_t *ret, struct ckpt_err *e);

/*
 * Elements of a tensor, in memory of the caller's. Arrays have n_dims numbers each, and may be
 * NULL; { 0 } is all of the tensor, in row-major order.
 *
 *	// every second row, of them columns 16 to 31, in a matrix of rows of 100
 *	float rows[n][100];
 *	struct ckpt_slice s = { .start = (uint64_t[]){ 0, 16 },
 *				.stop = (uint64_t[]){ 2 * n, 32 },
 *				.step = (uint64_t[]){ 2, 1 },
 *				.stride = (int64_t[]){ sizeof(rows[0]), sizeof(float) } };
 *	rc = ckpt_slice_read(c, i, &s, rows, &e);
 */
struct ckpt_slice {
	/* Of each dimension start, start + step, ... below stop, which is not above the shape;
	 * NULL: 0, the shape, 1. */
	const uint64_t *start, *stop, *step;
	/* Bytes from one of these to the next in memory, of each dimension, also negative ones:
	 * `to` is where the first element goes. NULL: row-major without gaps. */
	const int64_t *stride;
};
/*
 * Only what is asked for is read. EINVAL where it is not inside the tensor. What is in memory after
 * a failure is not defined.
 */
CKPT_API int ckpt_slice_read_sized(struct ckpt *c, uint64_t i, const struct ckpt_slice *s,
				   size_t size, void *to, struct ckpt_err *e);
static inline int ckpt_slice_read(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
				  struct ckpt_err *e)
{
	return ckpt_slice_read_sized(c, i, s, sizeof(*s), to, e);
}
CKPT_API int ckpt_model_slice_read_sized(struct ckpt *c, uint64_t i, const struct ckpt_slice *s,
					 size_t size, void *to, struct ckpt_err *e);
static inline int ckpt_model_slice_read(struct ckpt *c, uint64_t i, const struct ckpt_slice *s,
					void *to, struct ckpt_err *e)
{
	return ckpt_model_slice_read_sized(c, i, s, sizeof(*s), to, e);
}

struct ckpt_chunk {
	const uint64_t *off, *len; /* n_dims each: the box, in elements */
	const char *path;	   /* data file, relative to the checkpoint */
	uint64_t offset, length;   /* its item's bytes there, as stored */
	const char *encoding;	   /* how the item is written: "dcp", "dcp+stream.zstd/1" */
};
/* Every chunk of tensor i; a non-zero return of `each` stops and is returned. */
CKPT_API int ckpt_tensor_chunks(struct ckpt *c, uint64_t i,
				int (*each)(void *arg, const struct ckpt_chunk *chunk), void *arg,
				struct ckpt_err *e);

struct ckpt_object {
	const char *fqn;
	size_t fqn_len;
	const char *path; /* of a data file; "": it is in the index, as the encoding "text" says */
	uint64_t offset, length; /* as stored */
	const char *encoding;
	const char *fault;
};
/* Where there is none, as ckpt_tensor. */
CKPT_API void ckpt_object_sized(const struct ckpt *c, uint64_t i, struct ckpt_object *ret,
				size_t size);
static inline void ckpt_object(const struct ckpt *c, uint64_t i, struct ckpt_object *ret)
{
	ckpt_object_sized(c, i, ret, sizeof(*ret));
}
CKPT_API int64_t ckpt_object_find(const struct ckpt *c, const char *fqn, size_t len);

/* Where it was in the nested state dict: a key, or a position in a list, on the way to it. */
struct ckpt_step {
	const char *text; /* len bytes of the FQN, which is all steps joined with '.'; borrowed */
	size_t len;
	bool is_position;
	uint64_t position;
};
/* How many steps lead to tensor i, to object i; 0: the checkpoint does not say. Where cap is enough
 * for all they are in ret. What has been renamed is at the top, under its new name. */
CKPT_API size_t ckpt_tensor_path_sized(const struct ckpt *c, uint64_t i, struct ckpt_step *ret,
				       size_t size, size_t cap);
static inline size_t ckpt_tensor_path(const struct ckpt *c, uint64_t i, struct ckpt_step *ret,
				      size_t cap)
{
	return ckpt_tensor_path_sized(c, i, ret, sizeof(*ret), cap);
}
CKPT_API size_t ckpt_object_path_sized(const struct ckpt *c, uint64_t i, struct ckpt_step *ret,
				       size_t size, size_t cap);
static inline size_t ckpt_object_path(const struct ckpt *c, uint64_t i, struct ckpt_step *ret,
				      size_t cap)
{
	return ckpt_object_path_sized(c, i, ret, sizeof(*ret), cap);
}

/*
 * A run is a directory that is no checkpoint and has sub-directories that are. Its tree has one
 * directory for each complete checkpoint, with that one's tree, and a link `latest`. They are
 * opened when somebody enters them; they come and go, and what was saved again under the same name
 * has other nodes.
 *
 * A run has no tensors, objects, model or assets of its own: their counts are 0, nothing is found
 * (-1, 1, false), and functions that take a number of one answer as wherever there is none.
 * ckpt_check is -EISDIR. The tree, its files and what is known of them (below) are there as of a
 * checkpoint, except where something else is said. Open one of the checkpoints for the rest.
 */
CKPT_API bool ckpt_is_run(const struct ckpt *c);
struct ckpt_run_entry {
	const char *name;
	bool complete, latest;
	uint64_t mtime_ns;
	const char *fault; /* why it is incomplete, or could not be opened when it was tried */
};
/* Of a run: open each checkpoint once, however long that takes, so that `complete`, below and in
 * info.json, is true of those alone whose files hold all that they should. Of one that was never
 * opened it says no more than that its save has ended. Of a checkpoint: -EINVAL. */
CKPT_API int ckpt_run_look(struct ckpt *c, struct ckpt_err *e);
/* Of a run: what is there now, in natural order; a non-zero return of `each` stops and is
 * returned. Of a checkpoint: -EINVAL. */
CKPT_API int ckpt_run_each(struct ckpt *c,
			   int (*each)(void *arg, const struct ckpt_run_entry *entry), void *arg,
			   struct ckpt_err *e);
/* Of a run: open the checkpoint that a path of its tree leads into, by itself, as ckpt_open opens it
 * by its path; it may outlive the run. *ret_rest: where the rest of the path begins. No link in
 * place of the checkpoint's directory is followed. Of a checkpoint: -EINVAL. */
CKPT_API int ckpt_run_open_sized(struct ckpt *c, const char *path, const char *const opts[],
				 const struct ckpt_hooks *hooks, size_t size, struct ckpt **ret,
				 const char **ret_rest, struct ckpt_err *e);
static inline int ckpt_run_open(struct ckpt *c, const char *path, const char *const opts[],
				const struct ckpt_hooks *hooks, struct ckpt **ret,
				const char **ret_rest, struct ckpt_err *e)
{
	return ckpt_run_open_sized(c, path, opts, hooks, sizeof(*hooks), ret, ret_rest, e);
}

/* info.json as it appears in the tree; *ret is the caller's, free() it. */
CKPT_API int ckpt_info_json(struct ckpt *c, char **ret, size_t *ret_len, struct ckpt_err *e);

/* ---- the tree ---- */

typedef uint64_t ckpt_node; /* an inode number: the same at every mount of the same checkpoint; in
                               a run for as long as it is open, and then never another file's */
#define CKPT_ROOT     ((ckpt_node)1)
#define CKPT_NAME_MAX 255

struct ckpt_stat {
	ckpt_node node;
	bool is_dir, is_link;
	bool changes; /* of a run: it may become another, or vanish; so may a directory's entries */
	bool partial; /* a directory has entries that only listing it finds; size is without them */
	uint64_t size; /* bytes; of a directory: its entries; of a link: of its target's name */
	uint64_t mtime_ns;
};
/* 1: no such name; -ESTALE: the checkpoint is gone; another negative errno: ckpt_enter says why. */
CKPT_API int ckpt_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret);
/* "tensors/NAME", relative to the root, as in the mount; links are followed. -ENOENT names the
 * path. */
CKPT_API int ckpt_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct ckpt_err *e);
/* The file of a tensor in tensors/, or where there is none of that name of an object in objects/.
 * 1: neither. */
CKPT_API int ckpt_fqn_node(struct ckpt *c, const char *fqn, size_t len, ckpt_node *ret);
/* The file in tensors/ or objects/ of tensor i, of object i; 0, which is no node: there is none. */
CKPT_API ckpt_node ckpt_tensor_node(const struct ckpt *c, uint64_t i);
CKPT_API ckpt_node ckpt_object_node(const struct ckpt *c, uint64_t i);
CKPT_API int ckpt_stat_sized(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, size_t size,
			     struct ckpt_err *e);
static inline int ckpt_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret,
			    struct ckpt_err *e)
{
	return ckpt_stat_sized(c, node, ret, sizeof(*ret), e);
}
/* As ckpt_stat without size and time, which for a file that is put together take longer. */
CKPT_API int ckpt_type_sized(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, size_t size,
			     struct ckpt_err *e);
static inline int ckpt_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret,
			    struct ckpt_err *e)
{
	return ckpt_type_sized(c, node, ret, sizeof(*ret), e);
}
/* Target of a link, relative to its directory, with a NUL: its length, or a negative errno. */
CKPT_API int64_t ckpt_readlink(struct ckpt *c, ckpt_node node,
			       char out[CKPT_ROOM(CKPT_NAME_MAX + 1)], struct ckpt_err *e);
/* Can what lies in a directory be shown? Of a run: look for what has come and gone, open the
 * checkpoint. Of a checkpoint: 0, always. */
CKPT_API int ckpt_enter(struct ckpt *c, ckpt_node dir, struct ckpt_err *e);
/* Entry number `pos` (from 0) of a directory, without "." and "..". 1: no such entry. A run's root
 * has gaps. */
CKPT_API int ckpt_entry(struct ckpt *c, ckpt_node dir, uint64_t pos,
			char name[CKPT_ROOM(CKPT_NAME_MAX + 1)], ckpt_node *ret);

/* The first entry that is not before *pos, which becomes the place after it. 1: none. */
CKPT_API int ckpt_next(struct ckpt *c, ckpt_node dir, uint64_t *pos,
		       char name[CKPT_ROOM(CKPT_NAME_MAX + 1)], ckpt_node *ret);

/*
 * Opens check what reads will need: the source files are there and long enough, every item holds
 * what the index says. A failure here is a failure that no mapped page has to report.
 */
CKPT_API int ckpt_file_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret,
			    struct ckpt_err *e);
/* The bytes of tensor i of the model, for which the tree may have no file of its own. */
CKPT_API int ckpt_model_open(struct ckpt *c, uint64_t i, struct ckpt_file **ret,
			     struct ckpt_err *e);
/*
 * A box of tensor i of the tree, or of the model: its elements in row-major order, as the tensor is
 * shown. off and len have n_dims numbers. EINVAL where it is not inside the tensor. This costs no
 * more than a microsecond or two while the tensor is open anyhow, as a box or as a whole; else its
 * chunks may have to be looked for again.
 */
CKPT_API int ckpt_box_open(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
			   struct ckpt_file **ret, struct ckpt_err *e);
CKPT_API int ckpt_model_box_open(struct ckpt *c, uint64_t i, const uint64_t *off,
				 const uint64_t *len, struct ckpt_file **ret, struct ckpt_err *e);
CKPT_API int ckpt_file_open_path(struct ckpt *c, const char *path, struct ckpt_file **ret,
				 struct ckpt_err *e);
CKPT_API void ckpt_file_close(struct ckpt_file *f);
CKPT_API uint64_t ckpt_file_size(const struct ckpt_file *f);
/* Bytes [off, off+len) as far as the file reaches: the count, complete, or a negative errno. */
CKPT_API int64_t ckpt_file_read(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
				struct ckpt_err *e);

/* ---- where bytes come from ---- */

/*
 * The parts of real files that a file of the tree is made of, or of the root: all data files. In no
 * order; parts may overlap. The path is absolute. A non-zero return of `each` stops and is
 * returned. Of a run's own files and root there are none.
 */
struct ckpt_source {
	const char *path;  /* lent for the call */
	uint64_t off, len; /* bytes */
};
CKPT_API int ckpt_sources(struct ckpt *c, ckpt_node node,
			  int (*each)(void *arg, const struct ckpt_source *s), void *arg,
			  struct ckpt_err *e);

/*
 * Asset i, in natural order of the names; false behind the last. Strings are borrowed until
 * ckpt_close. Without the option assets a file that lies in the checkpoint's directory comes first, and
 * one of its parent is used only where its owner and mode, and the parent's, make it as trustworthy
 * as the checkpoint, see ckptfs(1); it is opened once, and what was looked at is what is read.
 */
struct ckpt_asset {
	const char *name; /* in hf/ and ranks/ */
	const char *path; /* absolute, for messages: it may be another file's by now */
	const char
		*from; /* "checkpoint" or "parent": the directory; "assets": that of the option */
};
CKPT_API bool ckpt_asset_sized(const struct ckpt *c, uint64_t i, struct ckpt_asset *ret,
			       size_t size);
static inline bool ckpt_asset(const struct ckpt *c, uint64_t i, struct ckpt_asset *ret)
{
	return ckpt_asset_sized(c, i, ret, sizeof(*ret));
}
/* Sentence i about a file that was there and is not used as an asset; NULL behind the last. */
CKPT_API const char *ckpt_asset_refused(const struct ckpt *c, uint64_t i);

/*
 * What the bytes of the tree are made from, each as 32 hexadecimal digits: where all of them are
 * equal in two opens with the same options and by the same version, so are all files but
 * .ckptfs/info.json, which has paths in it. Of the metadata: its contents and time; of data files:
 * sizes, times (also ctime, in nanoseconds) and, where they last, inodes; of assets: names and
 * contents, which are read for it; of what options name: contents. EISDIR of a run.
 */
struct ckpt_origin {
	char metadata[33], data[33], assets[33], recipe[33], layout[33], rename[33];
};
CKPT_API int ckpt_origin_sized(struct ckpt *c, struct ckpt_origin *ret, size_t size,
			       struct ckpt_err *e);
static inline int ckpt_origin(struct ckpt *c, struct ckpt_origin *ret, struct ckpt_err *e)
{
	return ckpt_origin_sized(c, ret, sizeof(*ret), e);
}

/* ---- proof ---- */

struct ckpt_fault {
	const char *fqn; /* NULL where the fault is a file's */
	size_t fqn_len;
	const char *what; /* one sentence */
	bool warning;	  /* odd, but nothing is read wrongly because of it */
};
struct ckpt_check {
	bool data; /* also read every item, verify the CRCs it has, and the hashes of files that a
	              Megatron-core checkpoint has in integrity.json */
	void (*fault)(void *arg, const struct ckpt_fault *f);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *arg;
	/* Filled in: faults without warnings; items looked at, bytes read, CRCs and files' hashes
	 * that were right. */
	uint64_t faults, items, bytes, crcs, hashes;
};
/* Coverage, files, items. 0 also when faults were found. Open with allow_missing. Of a run: -EISDIR. */
CKPT_API int ckpt_check_sized(struct ckpt *c, struct ckpt_check *k, size_t size,
			      struct ckpt_err *e);
static inline int ckpt_check(struct ckpt *c, struct ckpt_check *k, struct ckpt_err *e)
{
	return ckpt_check_sized(c, k, sizeof(*k), e);
}

CKPT_END

#endif
