/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt - an opened checkpoint and the tree of virtual files over it. What fs/ and other programs
 * use; the mount, the commands and this interface are one engine. Installed as <ckptfs/ckpt.h>,
 * with the library libckpt; ckpt(3) is its manual.
 *
 *	struct ckpt_opts opts = {0};
 *	struct ckpt *c;
 *	struct ckpt_file *f;
 *	struct ckpt_err e = {0};
 *	if (ckpt_open("run/step-100", &opts, &c, &e) ||
 *	    ckpt_file_open_path(c, "tensors/lm_head.weight", &f, &e))
 *		errx(2, "%s", e.msg);
 *	n = ckpt_file_read(f, buf, sizeof(buf), 0, &e);
 *
 * Functions return 0 or a negative errno with one sentence in *e, unless they say otherwise.
 *
 * Threads: open and close from one; everything else from any number at once.
 */
#ifndef API_CKPT_H
#define API_CKPT_H

#include "base/ckpt_base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

CKPT_BEGIN

struct ckpt;
struct ckpt_file;

/* Of the library that is there, which need not be that of this header: "0.5.0". */
CKPT_API const char *ckpt_version(void);

struct ckpt_opts {
	const char *index;    /* where the chunk index is kept: a path, ":memory:", or NULL for the
	                         default (beside the checkpoint if one is there, else the cache) */
	bool runs;	      /* a directory of checkpoints is fine as well, see below */
	bool rebuild_index;   /* even when a fresh one is there */
	bool allow_missing;   /* open although tensors have holes or data files are missing; such a
	                         tensor is listed and cannot be opened */
	bool allow_holes;     /* the holes alone, for those who report them */
	uint64_t cache_bytes; /* bound on decoded blocks in memory; 0: 256 MiB */
	uint64_t map_bytes;   /* bound on chunk maps in memory; 0: 8 MiB */
	bool map_files; /* take what is in the page cache from there: faster, and SIGBUS, which a
	                   data file that becomes shorter may mean, is then handled here; one that
	                   has another cause goes to the handler that was there before */
	const char *const *include; /* globs of FQNs that exist, NULL-terminated; NULL: all */
	const char *const *exclude; /* globs of FQNs that do not */
	const char *rename;	    /* file of renaming rules, one s/REGEX/REPLACEMENT/ per line */
	const char *weights;	    /* prefix of the FQNs that are the model; NULL: see ckptfs(1) */
	const char *dtype;  /* "bf16", "fp16", "fp32": what floating-point tensors are cast to */
	const char *assets; /* directory of config.json, tokenizer, ... for hf/ */
	const char *layout; /* layout file of ranks/ */
	const char *recipe; /* name or file of what the model is made by; NULL: it is the weights */
	const char
		*gguf_dtype; /* "f32", "f16", "bf16", "q8_0": what gguf/ has; NULL: the model's */
	/* How the model has its experts: "fused", "split", "stored"; NULL: stored, but split in hf/
	 * as save_pretrained does it. */
	const char *experts;
	uint64_t shard_size; /* bytes of tensors in a file of hf/; 0: 5 GB. Not 0: of gguf/, too */
	/* One sentence about something odd, while opening; may be NULL. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
	/* Called while the index is built, with bytes done of bytes to do; may be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
};

/* Strings are borrowed until ckpt_close; of a run, warn is called until then, from any thread. */
CKPT_API int ckpt_open(const char *path, const struct ckpt_opts *opts, struct ckpt **ret,
		       struct ckpt_err *e);
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
CKPT_API void ckpt_totals(const struct ckpt *c, struct ckpt_totals *ret);

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
/* Tensor 0 <= i < totals.tensors, in natural order of the FQNs. */
CKPT_API void ckpt_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret);
/* The model, of which hf/, pt/ and ranks/ are made: its tensors under the names they have there. */
CKPT_API uint64_t ckpt_model_tensors(const struct ckpt *c);
CKPT_API void ckpt_model_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret);
/* Index of the tensor of that name, or -1. */
CKPT_API int64_t ckpt_tensor_find(const struct ckpt *c, const char *fqn, size_t len);
CKPT_API int64_t ckpt_model_find(const struct ckpt *c, const char *name, size_t len);
/*
 * With opts.layout: the box of tensor i of the model that a rank holds, as ranks/ shows it; n_dims
 * numbers each. False: nothing of it, or there is no such rank, or they have its experts in one
 * tensor where hf/ splits them (opts.experts settles that).
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
CKPT_API int ckpt_slice_read(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
			     struct ckpt_err *e);
CKPT_API int ckpt_model_slice_read(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
				   struct ckpt_err *e);

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
CKPT_API void ckpt_object(const struct ckpt *c, uint64_t i, struct ckpt_object *ret);
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
CKPT_API size_t ckpt_tensor_path(const struct ckpt *c, uint64_t i, struct ckpt_step *ret,
				 size_t cap);
CKPT_API size_t ckpt_object_path(const struct ckpt *c, uint64_t i, struct ckpt_step *ret,
				 size_t cap);

/*
 * A run is a directory that is no checkpoint and has sub-directories that are. Its tree has one
 * directory for each complete checkpoint, with that one's tree, and a link `latest`. They are
 * opened when somebody enters them; they come and go, and what was saved again under the same name
 * has other nodes. A run has no tensors, objects or model of its own.
 */
CKPT_API bool ckpt_is_run(const struct ckpt *c);
struct ckpt_run_entry {
	const char *name;
	bool complete, latest;
	uint64_t mtime_ns;
	const char *fault; /* why it is incomplete, or could not be opened when it was tried */
};
/* Of a run: what is there now, in natural order; a non-zero return of `each` stops and is
 * returned. */
CKPT_API int ckpt_run_each(struct ckpt *c,
			   int (*each)(void *arg, const struct ckpt_run_entry *entry), void *arg,
			   struct ckpt_err *e);
/* Of a run: the checkpoint that a path of its tree leads into, as ckpt_open takes it (the caller's,
 * free() it), and the rest of the path. */
CKPT_API int ckpt_run_pick(struct ckpt *c, const char *path, char **ret, const char **ret_rest,
			   struct ckpt_err *e);

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
/* The file in tensors/ or objects/ of tensor i, of object i. */
CKPT_API ckpt_node ckpt_tensor_node(const struct ckpt *c, uint64_t i);
CKPT_API ckpt_node ckpt_object_node(const struct ckpt *c, uint64_t i);
CKPT_API int ckpt_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e);
/* As ckpt_stat without size and time, which for a file that is put together take longer. */
CKPT_API int ckpt_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e);
/* Target of a link, relative to its directory, with a NUL: its length, or a negative errno. */
CKPT_API int64_t ckpt_readlink(struct ckpt *c, ckpt_node node,
			       char out[CKPT_ROOM(CKPT_NAME_MAX + 1)], struct ckpt_err *e);
CKPT_API ckpt_node ckpt_parent(struct ckpt *c, ckpt_node node);
/* Can what lies in a directory be shown? Of a run: look for what has come and gone, open the
 * checkpoint. */
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
/* One tensor and nothing else, whose elements need no decoding: reading it twice costs no more than
 * having it in memory twice. */
CKPT_API bool ckpt_file_is_plain(const struct ckpt_file *f);
/* For a thread that has answered with what it read and has nothing else to do: decode what whoever
 * reads the file in order is about to ask for. Costs nothing where nothing is to be decoded. */
CKPT_API void ckpt_file_ahead(struct ckpt_file *f);
/* A data file of its checkpoint has been found changed: what somebody has kept of any file of it is
 * not to be believed. */
CKPT_API bool ckpt_file_is_stale(const struct ckpt_file *f);
/* Bytes [off, off+len) as far as the file reaches: the count, complete, or a negative errno. */
CKPT_API int64_t ckpt_file_read(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
				struct ckpt_err *e);

/*
 * As ckpt_file_read without copying long runs that lie in the page cache or were decoded: the bytes
 * are where iov says, in buf, in decoded blocks and, with map_files, in mapped data files, until
 * ckpt_parts_release, which is due after every success. Give iov to writev(2) or the like and touch
 * nothing of it: pages may have gone for reasons of their own (an I/O error), when that call fails
 * with EFAULT and this process would die.
 *
 * They are the checkpoint's bytes until the release: whoever wants to change one of the files waits
 * for it (fcntl(2), F_SETLEASE), so release soon. Where that cannot be arranged the bytes are
 * copied.
 */
struct ckpt_parts;					 /* belongs to one thread at a time */
CKPT_API struct ckpt_parts *ckpt_parts_new(void);	 /* NULL: out of memory */
CKPT_API void ckpt_parts_free(struct ckpt_parts *parts); /* NULL is fine */
CKPT_API int64_t ckpt_file_gather(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
				  struct ckpt_parts *parts, const struct iovec **ret_iov,
				  int *ret_n, struct ckpt_err *e);
CKPT_API void ckpt_parts_release(struct ckpt_parts *parts);

/*
 * Are the bytes of the file those of one real file, all of them in their places and no others? Then
 * 0 and that one, unchanged since the checkpoint was opened, is open for reading at *ret_fd, which
 * is the caller's; 1: no. Whoever reads from there reads what it holds by then. Not of a run, whose
 * files change.
 */
CKPT_API int ckpt_file_backing(struct ckpt_file *f, int *ret_fd, struct ckpt_err *e);
/* Has the file that this found been written to since? Then its name is in *why. */
CKPT_API bool ckpt_file_written(const struct ckpt_file *f, struct ckpt_err *why);

/*
 * Extended attribute of a file of tensors/, npy/ or logical/: user.ckptfs.fqn .dtype .shape .chunks
 * .files. Returns the value's length (written as far as cap reaches), -ENODATA if there is none.
 */
CKPT_API int64_t ckpt_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
			    struct ckpt_err *e);
/* NUL-separated names, as listxattr(2) gives them. */
CKPT_API int64_t ckpt_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap);

/* ---- what it has done ---- */

/* Since it was opened; of a run, all of its checkpoints, also those that have been closed. */
struct ckpt_counters {
	uint64_t source_reads, source_bytes; /* of data files and assets; as stored */
	uint64_t mapped_bytes;	       /* of data files, which were in memory and needed no read */
	uint64_t faults;	       /* such reads that failed: gone, changed, an I/O error */
	uint64_t copies, copied_bytes; /* moves of elements into answers, and what they moved */
	/* The cache of decoded blocks: gets that found theirs, gets that had to decode or read it,
	 * blocks let go, what it holds now and may hold. */
	uint64_t cache_hits, cache_misses, cache_evictions, cache_bytes, cache_max_bytes;
	uint64_t decoded_bytes; /* of compressed items; what was decoded twice counts twice */
};
/* Waits for nobody. */
CKPT_API void ckpt_counters(struct ckpt *c, struct ckpt_counters *ret);

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

/* The real files that hf/ shows as they are, whole, which may lie outside of the checkpoint; of a
 * run none. */
CKPT_API int ckpt_assets(struct ckpt *c, int (*each)(void *arg, const struct ckpt_source *s),
			 void *arg, struct ckpt_err *e);
/* Where chunk indexes are kept unless options say otherwise, made if need be: the caller's, free()
 * it. NULL: there is no such place. */
CKPT_API char *ckpt_index_dir(void);

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
/* Coverage, files, items. 0 also when faults were found. Open with allow_missing. */
CKPT_API int ckpt_check(struct ckpt *c, struct ckpt_check *k, struct ckpt_err *e);

CKPT_END

#endif
