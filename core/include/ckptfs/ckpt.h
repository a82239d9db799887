/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt - an opened checkpoint and the tree of virtual files that shows it. The mount, the commands
 * and this interface share one engine. Installed as <ckptfs/ckpt.h> with the library libckpt; the
 * manual is ckpt(3). Functions that only a file server needs are in <ckptfs/ckpt_mount.h>.
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
 * Unless stated otherwise, functions return 0, or a negative errno with one sentence in *e. Tensor
 * and object numbers and nodes need not be valid: unless documented otherwise, functions return
 * -EINVAL for an invalid number and -ENOENT for an invalid node.
 *
 * Sizes and offsets are in bytes, shapes and boxes in elements, times in nanoseconds since the
 * epoch. Pointers passed to a callback are valid during the call; other strings and arrays that
 * functions return are borrowed until ckpt_close, unless stated otherwise.
 *
 * The library changes no process-wide state, except that map_files and addresses (s3://, file://,
 * ...) install a SIGBUS handler, which stays; signals with another cause go to the previously
 * installed handler. An address also starts a process, ckptfs-fetch, which is no child of this one
 * once the function returns, and a thread, which has all signals blocked. Both end with the last
 * checkpoint that uses them.
 *
 * Data files stay open, up to what RLIMIT_NOFILE allows; for a checkpoint that has a file per item,
 * consider raising the soft limit before ckpt_open.
 *
 * Structures only ever grow at the end, so a program works with every libckpt of the soname it was
 * linked with: each function passes the size of the program's structure to its _sized counterpart.
 * A member that only the library knows counts as 0; one that only the program knows is 0 in
 * results, and is an error (ENOTSUP) if it is set in arguments. So is a value of an enumeration
 * that only the program knows (EINVAL).
 *
 * Threads: open and close from one thread; all other functions may be called from any number of
 * threads at once.
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

/* Version of the loaded library, which may be newer than this header: "0.5.1". */
CKPT_API const char *ckpt_version(void);

/*
 * Options are strings, "dtype=bf16" or, for those without a value, "allow_missing"; the array ends
 * with NULL. ckptfs-mount(1) describes the options of the commands; these are for programs only:
 *
 *	runs		also accept a directory of checkpoints, see ckpt_is_run
 *	rebuild_index	build the chunk index even if a current one exists
 *	need_index	fail with ENODATA unless a current one exists, also of checkpoints that
 *			options name: for programs that let another process, with fewer rights,
 *			parse the files of strangers. In a run it applies to none of its checkpoints.
 *	backwards	run recipe= backwards: the model is what the recipe would make the
 *			weights from
 *	allow_holes	open although tensors have holes, for programs that report them;
 *			allow_missing would also accept missing data files
 *	map_files	read pages that are in the page cache in place: faster. Installs a
 *			SIGBUS handler, because truncating a mapped data file raises SIGBUS;
 *			signals with another cause go to the previously installed handler
 *	maps=SIZE	upper bound on memory for chunk maps
 *
 * If an option is repeated, the last one counts; include and exclude accumulate.
 */
enum ckpt_option_form {
	CKPT_OPTION_FLAG, /* without a value */
	CKPT_OPTION_TEXT,
	CKPT_OPTION_FILE, /* file or directory to read, or a name built into the library */
	CKPT_OPTION_LIST, /* may be given several times */
	CKPT_OPTION_SIZE, /* bytes: "512", "64KiB", "5GB" */
};
struct ckpt_option {
	const char *name;
	enum ckpt_option_form form;
	const char *value; /* name of the value in help texts; NULL: takes no value */
	const char *help;  /* half a line */
	bool tree;	   /* affects the names or bytes of the tree */
	bool program;	   /* only for programs, not on command lines */
};
/* Option i of this library; NULL past the last. */
CKPT_API const struct ckpt_option *ckpt_option(size_t i);

struct ckpt_hooks {
	/*
	 * Reports an anomaly in one sentence. For a run it may be called from any thread until
	 * ckpt_close. May be NULL.
	 */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
	/*
	 * Called while the index is built, with the bytes done and the bytes in total; may be NULL.
	 */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
};

/* opts and hooks may be NULL; size is that of *hooks. */
CKPT_API int ckpt_open_sized(const char *path, const char *const opts[],
			     const struct ckpt_hooks *hooks, size_t size, struct ckpt **ret,
			     struct ckpt_err *e);
static inline int ckpt_open(const char *path, const char *const opts[],
			    const struct ckpt_hooks *hooks, struct ckpt **ret, struct ckpt_err *e)
{
	return ckpt_open_sized(path, opts, hooks, sizeof(*hooks), ret, e);
}
CKPT_API void ckpt_close(struct ckpt *c); /* NULL is fine; all files must be closed */

/* Built-in recipe i: returns its name and sets a one-line summary and its text; NULL past the
 * last. A name with an empty text stands for the recipe that config.json's model_type requires. */
CKPT_API const char *ckpt_recipe(size_t i, const char **ret_summary, const char **ret_text);

/* ---- contents ---- */

struct ckpt_totals {
	const char *format; /* "dcp" */
	const char *index;  /* path of the chunk index, or ":memory:" */
	bool index_built;   /* true if this open built it */
	uint64_t tensors, objects, chunks, files;
	uint64_t tensor_bytes; /* sum over all tensors, as the tree shows them */
	uint64_t stored_bytes; /* sum of the data files' sizes */
	uint64_t incomplete;   /* tensors and objects that cannot be opened */
	uint64_t mtime_ns;     /* modification time of the newest metadata file */
	/* The model; has_model is false if its tensors would not have unique names. */
	bool has_model;
	uint64_t model_tensors, model_bytes;
	/* this prefix of model_prefix_len bytes is removed from its names: "model." */
	const char *model_prefix;
	size_t model_prefix_len;
	const char *identity; /* changes with the contents or time of the metadata and with the size
                                 or time of any data file */
	/* number of ranks that wrote data files, according to the file names; 0: unknown */
	uint64_t ranks;
	/* Sentences on what it has and is not shown, and on files that are missing, without which
	 * something is not shown; NULL: nothing, or include and exclude leave out the objects
	 * not_shown and missing. */
	const char *not_shown, *missing;
};
/* For a run: format "run", empty strings, all other members 0. */
CKPT_API void ckpt_totals_sized(const struct ckpt *c, struct ckpt_totals *ret, size_t size);
static inline void ckpt_totals(const struct ckpt *c, struct ckpt_totals *ret)
{
	ckpt_totals_sized(c, ret, sizeof(*ret));
}

struct ckpt_tensor {
	const char *fqn; /* fqn_len bytes, may contain any byte, NUL-terminated; borrowed */
	size_t fqn_len;
	const char *dtype; /* torch's name, after a cast: "bfloat16" */
	size_t element;	   /* bytes per element */
	size_t n_dims;
	const uint64_t *shape; /* n_dims, elements */
	/* For a tensor that is stored flattened: its original shape, as in logical/. */
	size_t n_logical;	 /* 0: not flattened */
	const uint64_t *logical; /* n_logical, elements */
	uint64_t bytes;		 /* of the whole tensor */
	uint64_t chunks;
	uint64_t files; /* distinct source files; set only by ckpt_tensor_files, else 0; the index
			 * is not counted */
	const char *fault; /* why it cannot be opened, or NULL */
};
/*
 * Tensor 0 <= i < totals.tensors, in natural order of the FQNs. For any other i: empty strings, a
 * fault that reports the invalid number, all other members 0.
 */
CKPT_API void ckpt_tensor_sized(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret,
				size_t size);
static inline void ckpt_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	ckpt_tensor_sized(c, i, ret, sizeof(*ret));
}
/*
 * The model that hf/, pt/ and ranks/ are made from: the number of its tensors, under the names used
 * there.
 */
CKPT_API uint64_t ckpt_model_tensors(const struct ckpt *c);
CKPT_API void ckpt_model_tensor_sized(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret,
				      size_t size);
static inline void ckpt_model_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	ckpt_model_tensor_sized(c, i, ret, sizeof(*ret));
}
/* Elements of the model's tensors; 0 if there is no model. */
CKPT_API uint64_t ckpt_parameters(const struct ckpt *c);
/*
 * The family of the model that config.json, as hf/ shows it, names: "llama (LlamaForCausalLM)", in
 * printable form. Writes it, truncated to cap bytes; returns its length, 0 if there is no such file
 * or name.
 */
#define CKPT_FAMILY_MAX 256
CKPT_API size_t ckpt_family(struct ckpt *c, char *buf, size_t cap);
/* Number of the stored tensor, or of the model's tensor, with that name, or -1. */
CKPT_API int64_t ckpt_tensor_find(const struct ckpt *c, const char *fqn, size_t len);
CKPT_API int64_t ckpt_model_find(const struct ckpt *c, const char *name, size_t len);
/*
 * Suggestions for a name that does not exist: similar names of tensors and objects, stored ones and
 * those of the model; in a run, its checkpoints. Found in bounded time. Writes "'a', 'b' or 'c'",
 * or
 * "" if there are none, truncated to cap bytes; returns the length.
 */
CKPT_API size_t ckpt_similar(const struct ckpt *c, const char *name, size_t len, char *buf,
			     size_t cap);
/* Index of that one of n names which is most similar to this one, or n if none is similar. For
 * suggestions. */
CKPT_API size_t ckpt_nearest(const char *name, size_t len, const char *const names[], size_t n);
/* Index of the stored tensor that the model shows, unsplit, under that name, or -1. */
CKPT_API int64_t ckpt_model_stored(const struct ckpt *c, const char *name, size_t len);
/*
 * With the option layout: the box of model tensor i that a rank holds, as ranks/ shows it. ret_off
 * and ret_len have n_dims numbers each. False: the rank holds nothing of it, there is no such rank,
 * or the layout keeps experts in one tensor where hf/ splits them (set the option experts).
 */
CKPT_API bool ckpt_rank_box(const struct ckpt *c, uint64_t rank, uint64_t i, uint64_t *ret_off,
			    uint64_t *ret_len);
/* Counts the data files that hold chunks of tensor i, each once, into *ret. Reads the chunk index,
 * so it is not part of ckpt_tensor. */
CKPT_API int ckpt_tensor_files(struct ckpt *c, uint64_t i, uint64_t *ret, struct ckpt_err *e);

/*
 * Selects elements of a tensor to be copied into the caller's memory. Arrays have n_dims numbers
 * each and may be NULL; { 0 } is the whole tensor, in row-major order.
 *
 *	// columns 16 to 31 of every second row, into a matrix with rows of 100
 *	float rows[n][100];
 *	struct ckpt_slice s = { .start = (uint64_t[]){ 0, 16 },
 *				.stop = (uint64_t[]){ 2 * n, 32 },
 *				.step = (uint64_t[]){ 2, 1 },
 *				.stride = (int64_t[]){ sizeof(rows[0]), sizeof(float) } };
 *	rc = ckpt_slice_read(c, i, &s, rows, &e);
 */
struct ckpt_slice {
	/* Per dimension: start, start + step, ... below stop, which must not exceed the shape.
	 * NULL: 0, the shape, 1. */
	const uint64_t *start, *stop, *step;
	/* Per dimension: bytes in memory from one selected element to the next; may be negative.
	 * `to` is the address of the first element. NULL: row-major without gaps. */
	const int64_t *stride;
};
/*
 * Reads only the bytes it needs. EINVAL if the slice is not inside the tensor. After a failure the
 * contents of the memory are undefined.
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

/*
 * Is the tensor, as it is shown, one run of bytes in one real file? If so, returns 0: *ret_fd,
 * owned by the caller, is that file, open for reading and unchanged since the checkpoint was
 * opened, and *ret_off is the offset at which the tensor begins in it, for mmap(2). Reads and
 * mappings see the file's current contents, which nothing checks. 1: no.
 */
CKPT_API int ckpt_tensor_backing(struct ckpt *c, uint64_t i, int *ret_fd, uint64_t *ret_off,
				 struct ckpt_err *e);
CKPT_API int ckpt_model_backing(struct ckpt *c, uint64_t i, int *ret_fd, uint64_t *ret_off,
				struct ckpt_err *e);

struct ckpt_chunk {
	const uint64_t *off, *len; /* n_dims each: the chunk's box, in elements */
	/* data file, relative to the checkpoint; or "(in the index)"; "": it is computed from other
	 * tensors, and the encoding is "computed" */
	const char *path;
	uint64_t offset, length; /* its item's bytes in that file, as stored */
	const char *encoding;
};
/* Calls `each` for every chunk of tensor i; a non-zero return stops and is returned. */
CKPT_API int ckpt_tensor_chunks(struct ckpt *c, uint64_t i,
				int (*each)(void *arg, const struct ckpt_chunk *chunk), void *arg,
				struct ckpt_err *e);

struct ckpt_object {
	const char *fqn;
	size_t fqn_len;
	const char
		*path; /* of its data file; "": stored in the index, and the encoding is "text" */
	uint64_t offset, length; /* as stored */
	const char *encoding;
	const char *fault;
};
/* For an invalid i: as ckpt_tensor. */
CKPT_API void ckpt_object_sized(const struct ckpt *c, uint64_t i, struct ckpt_object *ret,
				size_t size);
static inline void ckpt_object(const struct ckpt *c, uint64_t i, struct ckpt_object *ret)
{
	ckpt_object_sized(c, i, ret, sizeof(*ret));
}
CKPT_API int64_t ckpt_object_find(const struct ckpt *c, const char *fqn, size_t len);

/*
 * The value of object i as JSON text, as objects/NAME.json shows it; ckptfs-formats(5) describes
 * the form. No pickle is executed. A value that cannot be shown is replaced by its class and the
 * reason. *ret is the caller's, free() it.
 */
CKPT_API int ckpt_object_json(struct ckpt *c, uint64_t i, char **ret, size_t *ret_len,
			      struct ckpt_err *e);

/* One step of the path to an entry in the nested state dict: a key, or a position in a list. */
struct ckpt_step {
	const char *text; /* len bytes of the FQN, which is all steps joined with '.'; borrowed */
	size_t len;
	bool is_position;
	uint64_t position;
};
/*
 * The number of steps that lead to tensor i or object i; 0: the checkpoint does not record them.
 * ret is filled in only if cap is large enough for all of them. A renamed entry has one step: its
 * new name.
 */
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
 * A run is a directory that is not a checkpoint itself but has subdirectories that are. Its tree
 * has one directory per complete checkpoint, with that checkpoint's tree, and a link `latest`.
 * Checkpoints are opened when they are first entered and may come and go; one that is saved again
 * under the same name gets new nodes.
 *
 * A run has no tensors, objects, model or assets of its own: the counts are 0, searches find
 * nothing (-1, 1 or false), and functions that take a number answer as for an invalid one.
 * ckpt_check returns -EISDIR. The functions on the tree, its files and their sources (below) work
 * as for a checkpoint unless stated otherwise. For the rest, open one of its checkpoints.
 */
CKPT_API bool ckpt_is_run(const struct ckpt *c);
struct ckpt_run_entry {
	const char *name;
	bool complete, latest;
	uint64_t mtime_ns;
	/* Why it is incomplete, or could not be opened when that was tried; or, of a complete one,
	 * what is missing or not shown (see struct ckpt_totals). */
	const char *fault;
};
/*
 * For a run: open each checkpoint once, however long that takes, so that `complete` (here and in
 * info.json) is true only if the data files hold everything they should. For a checkpoint that was
 * never opened, `complete` only means that its save has ended. progress, which may be NULL, is
 * called after each checkpoint with the number opened so far and the total. For a checkpoint:
 * -EINVAL.
 */
CKPT_API int ckpt_run_look(struct ckpt *c,
			   void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
			   struct ckpt_err *e);
/* For a run: list what exists now, in natural order; a non-zero return of `each` stops and is
 * returned. For a checkpoint: -EINVAL. */
CKPT_API int ckpt_run_each(struct ckpt *c,
			   int (*each)(void *arg, const struct ckpt_run_entry *entry), void *arg,
			   struct ckpt_err *e);
/*
 * For a run: open the checkpoint that a path of the run's tree leads into as ckpt_open would; it is
 * independent of the run and may outlive it. *ret_rest points to the rest of the path. A symbolic
 * link in place of the checkpoint's directory is not followed. For a checkpoint: -EINVAL.
 */
CKPT_API int ckpt_run_open_sized(struct ckpt *c, const char *path, const char *const opts[],
				 const struct ckpt_hooks *hooks, size_t size, struct ckpt **ret,
				 const char **ret_rest, struct ckpt_err *e);
static inline int ckpt_run_open(struct ckpt *c, const char *path, const char *const opts[],
				const struct ckpt_hooks *hooks, struct ckpt **ret,
				const char **ret_rest, struct ckpt_err *e)
{
	return ckpt_run_open_sized(c, path, opts, hooks, sizeof(*hooks), ret, ret_rest, e);
}

/*
 * Can a loader use what a face (hf/, gguf/, ...) shows? For hf/: do its tensors match, by name and
 * shape, those that the model of config.json has? NO: loading fails, or leaves random weights.
 * UNCHECKED: this library does not know what the model needs. ABSENT: there is no such face; the
 * text gives the reason.
 */
enum ckpt_serves { CKPT_SERVES_YES, CKPT_SERVES_NO, CKPT_SERVES_UNCHECKED, CKPT_SERVES_ABSENT };
struct ckpt_verdict {
	const char *face; /* "hf", "gguf", "pt", "safetensors" */
	enum ckpt_serves serves;
	const char *text; /* "complete for LlamaForCausalLM (config.json from assets)" */
};
/*
 * Calls `each` for every such face. now: skip what takes long, which is a gguf/ that has not been
 * looked up yet, because that reads the tokenizer. A non-zero return of `each` stops and is
 * returned. For a run: -EISDIR.
 */
CKPT_API int ckpt_verdicts(struct ckpt *c, bool now,
			   int (*each)(void *arg, const struct ckpt_verdict *verdict), void *arg,
			   struct ckpt_err *e);

/* info.json as it appears in the tree; the caller frees *ret with free(). */
CKPT_API int ckpt_info_json(struct ckpt *c, char **ret, size_t *ret_len, struct ckpt_err *e);

/* ---- the tree ---- */

typedef uint64_t ckpt_node; /* an inode number: the same at every mount of the same checkpoint; in a
                               run it is valid while the run is open, and never reused for another
                               file */
#define CKPT_ROOT     ((ckpt_node)1)
#define CKPT_NAME_MAX 255

struct ckpt_stat {
	ckpt_node node;
	bool is_dir, is_link;
	bool changes; /* in a run: its contents, or a directory's entries, may change or vanish */
	/* directory: more entries exist, which only listing it reveals; size does not count them */
	bool partial;
	uint64_t size; /* bytes; directory: number of entries; link: length of its target */
	uint64_t mtime_ns;
};
/* 1: no such name; -ESTALE: the checkpoint is gone; for another negative errno ckpt_enter gives the
 * reason. */
CKPT_API int ckpt_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret);
/* Resolves "tensors/NAME", relative to the root, as in the mount; links are followed. On -ENOENT
 * the message names the path. */
CKPT_API int ckpt_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct ckpt_err *e);
/* The file of the tensor with that name in tensors/, else of the object with that name in objects/.
 * 1: neither. */
CKPT_API int ckpt_fqn_node(struct ckpt *c, const char *fqn, size_t len, ckpt_node *ret);
/* The file of tensor i in tensors/, of object i in objects/; 0, which is never a node: none. */
CKPT_API ckpt_node ckpt_tensor_node(const struct ckpt *c, uint64_t i);
CKPT_API ckpt_node ckpt_object_node(const struct ckpt *c, uint64_t i);
CKPT_API int ckpt_stat_sized(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, size_t size,
			     struct ckpt_err *e);
static inline int ckpt_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret,
			    struct ckpt_err *e)
{
	return ckpt_stat_sized(c, node, ret, sizeof(*ret), e);
}
/* As ckpt_stat without size and time, which take longer for files composed of many tensors. */
CKPT_API int ckpt_type_sized(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, size_t size,
			     struct ckpt_err *e);
static inline int ckpt_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret,
			    struct ckpt_err *e)
{
	return ckpt_type_sized(c, node, ret, sizeof(*ret), e);
}
/* Writes a link's target, relative to its directory, NUL-terminated; returns its length or a
 * negative errno. */
CKPT_API int64_t ckpt_readlink(struct ckpt *c, ckpt_node node,
			       char out[CKPT_ROOM(CKPT_NAME_MAX + 1)], struct ckpt_err *e);
/* Checks that a directory can be listed. For a run: looks for checkpoints that have appeared or
 * vanished, and opens the one that `dir` belongs to. For a checkpoint: always 0. */
CKPT_API int ckpt_enter(struct ckpt *c, ckpt_node dir, struct ckpt_err *e);
/* Entry number `pos` (from 0) of a directory, without "." and "..". 1: no such entry. The numbering
 * of a run's root has gaps. */
CKPT_API int ckpt_entry(struct ckpt *c, ckpt_node dir, uint64_t pos,
			char name[CKPT_ROOM(CKPT_NAME_MAX + 1)], ckpt_node *ret);

/* The first entry at or after *pos; *pos becomes the position after it. 1: no more. */
CKPT_API int ckpt_next(struct ckpt *c, ckpt_node dir, uint64_t *pos,
		       char name[CKPT_ROOM(CKPT_NAME_MAX + 1)], ckpt_node *ret);

/*
 * Opening checks what reading will need: that the source files exist and are long enough, and that
 * each item is what the index describes. So faults surface here rather than as SIGBUS in a mapped
 * page. The caller closes *ret with ckpt_file_close.
 */
CKPT_API int ckpt_file_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret,
			    struct ckpt_err *e);
/* Opens the bytes of model tensor i, whether or not the tree has a file for it. */
CKPT_API int ckpt_model_open(struct ckpt *c, uint64_t i, struct ckpt_file **ret,
			     struct ckpt_err *e);
/*
 * Opens a box of tensor i of the tree, or of the model: its elements in row-major order, as the
 * tensor is shown. off and len have n_dims numbers. EINVAL if the box is not inside the tensor.
 * This takes a microsecond or two while the tensor is already open, as a box or as a whole;
 * otherwise its chunks may have to be looked up again.
 */
CKPT_API int ckpt_box_open(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
			   struct ckpt_file **ret, struct ckpt_err *e);
CKPT_API int ckpt_model_box_open(struct ckpt *c, uint64_t i, const uint64_t *off,
				 const uint64_t *len, struct ckpt_file **ret, struct ckpt_err *e);
/* ckpt_walk and ckpt_file_open; messages name the path. */
CKPT_API int ckpt_file_open_path(struct ckpt *c, const char *path, struct ckpt_file **ret,
				 struct ckpt_err *e);
CKPT_API void ckpt_file_close(struct ckpt_file *f); /* NULL is fine */
CKPT_API uint64_t ckpt_file_size(const struct ckpt_file *f);
/* Reads bytes [off, off+len), up to the end of the file. Returns the count, never a partial one, or
 * a negative errno. */
CKPT_API int64_t ckpt_file_read(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
				struct ckpt_err *e);

/* ---- sources of bytes ---- */

/*
 * Calls `each` for the parts of real files that a file of the tree is made of; for the root, all
 * data files. The order is unspecified, and parts may overlap. The path is absolute. A non-zero
 * return of `each` stops and is returned. A run's own files and its root have none.
 */
struct ckpt_source {
	const char *path;  /* valid during the call */
	uint64_t off, len; /* bytes */
};
CKPT_API int ckpt_sources(struct ckpt *c, ckpt_node node,
			  int (*each)(void *arg, const struct ckpt_source *s), void *arg,
			  struct ckpt_err *e);

/*
 * Reads bytes of a data file, at a path obtained from ckpt_sources, so that reading them again is
 * as fast as memory or the local disk: they are then in the kernel's page cache or, for a
 * checkpoint in an object store, in the cache of fetched data. -ENOENT: it is not a data file.
 */
CKPT_API int ckpt_source_bring(struct ckpt *c, const char *path, uint64_t off, uint64_t len,
			       struct ckpt_err *e);

/*
 * Asset i, in natural order of the names; false past the last. Strings are borrowed until
 * ckpt_close. Without the option assets, a file in the checkpoint's directory takes precedence; one
 * in the parent directory is used only if its owner and mode, and the parent's, make it as
 * trustworthy as the checkpoint, see ckptfs-mount(1). The file is opened once, so the file that was
 * examined is the one read.
 */
struct ckpt_asset {
	const char *name; /* in hf/ and ranks/ */
	const char *path; /* absolute, for messages only: another file may have this name now */
	/* "checkpoint" or "parent": that directory; "assets": that of the option; "GGUF": it was
	 * made from the file's keys, and path is a text in parentheses */
	const char *from;
};
CKPT_API bool ckpt_asset_sized(const struct ckpt *c, uint64_t i, struct ckpt_asset *ret,
			       size_t size);
static inline bool ckpt_asset(const struct ckpt *c, uint64_t i, struct ckpt_asset *ret)
{
	return ckpt_asset_sized(c, i, ret, sizeof(*ret));
}
/* Sentence i about a file that exists but is not used as an asset; NULL past the last. */
CKPT_API const char *ckpt_asset_refused(const struct ckpt *c, uint64_t i);

/*
 * Fingerprints, 32 hexadecimal digits each, of everything that the bytes of the tree are made from.
 * If all of them are equal in two opens with the same options and library version, so are all files
 * except .ckptfs/info.json, which contains paths. They cover: metadata: contents and time; data:
 * sizes, times (including ctime) and, where the file system keeps them, inode numbers of the data
 * files; assets: names and contents, which are read for this; recipe, layout, rename: contents of
 * the files that these options name. For a run: -EISDIR.
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

/* ---- checking ---- */

struct ckpt_fault {
	const char *fqn; /* NULL if the fault concerns a file */
	size_t fqn_len;
	const char *what; /* one sentence */
	bool warning;	  /* odd, but no data is read wrongly because of it */
	const char *rule; /* the rule of ckpt_values_check that it breaks; else NULL */
};
struct ckpt_check {
	bool data; /* also read every item and verify the CRCs stored with it, and the file hashes
                      that a Megatron-core checkpoint has in integrity.json */
	void (*fault)(void *arg, const struct ckpt_fault *f);
	/* Bytes; may be NULL. Called by one thread at a time, but not always by yours. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
	/* Results: faults, not counting warnings; items examined, bytes read, CRCs and file hashes
	 * that matched. */
	uint64_t faults, items, bytes, crcs, hashes;
	/* threads that read data, each a file at a time; at most CKPT_CHECK_MAX_JOBS; 0: one per
	 * CPU, at most 4 */
	unsigned jobs;
};
#define CKPT_CHECK_MAX_JOBS 64

/* Checks coverage, files and items. Returns 0 also if faults were found. Open the checkpoint with
 * allow_missing. For a run: -EISDIR. */
CKPT_API int ckpt_check_sized(struct ckpt *c, struct ckpt_check *k, size_t size,
			      struct ckpt_err *e);
static inline int ckpt_check(struct ckpt *c, struct ckpt_check *k, struct ckpt_err *e)
{
	return ckpt_check_sized(c, k, sizeof(*k), e);
}

CKPT_END

#endif
