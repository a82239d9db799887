/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_options - the table of options: parses the strings that ckpt_open accepts.
 *
 * To add an option, add a row here and the code that uses its field. The commands, their help, -o,
 * shell completion and Python get the rows from ckpt_option(); a test compares them with the
 * manuals.
 *
 * Private to core/ckpt.
 *
 * Threads: any.
 */
#ifndef CKPT_CKPT_OPTIONS_H
#define CKPT_CKPT_OPTIONS_H

#include <ckptfs/ckpt.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct place_options;

#define CKPT_MAX_WORDS ((size_t)64 << 20) /* total bytes of option strings */

/*
 * X(form, name, who, value, help): see struct ckpt_option. `who` is the audience: TREE and HOW are
 * also options of the commands, and TREE affects names or bytes; PROGRAM is for programs only.
 */
#define CKPT_OPTIONS(X) \
	X(LIST, include, TREE, "GLOB", "show only FQNs that match; repeatable") \
	X(LIST, exclude, TREE, "GLOB", "hide FQNs that match; repeatable") \
	X(FILE, rename, TREE, "FILE", "rules that rename FQNs, one s/REGEX/REPLACEMENT/ per line") \
	X(TEXT, weights, TREE, "PREFIX", \
	  "tensors below PREFIX are the model, from which hf/, pt/, gguf/ are made") \
	X(TEXT, master, TREE, "yes|no", "yes: the model has fp32 masters in place of weights") \
	X(TEXT, dtype, TREE, "bf16|fp16|fp32", "cast 16- to 64-bit floats to bf16, fp16 or fp32") \
	X(TEXT, dequantize, TREE, "bf16|fp16|fp32", \
	  "show quantised weights as the bf16, fp16 or fp32 they stand for") \
	X(TEXT, average, TREE, "NAME:WEIGHT,...", \
	  "show weighted averages of these checkpoints; or last:8") \
	X(LIST, overlay, TREE, "PATH", \
	  "show tensors of PATH in place of their namesakes; repeatable") \
	X(LIST, lora, TREE, "DIR[:SCALE]", "merge this LoRA adapter of PEFT; repeatable") \
	X(FILE, assets, TREE, "DIR", "show the files of DIR (config.json, ...) in hf/ and ranks/") \
	X(SIZE, shard_size, TREE, "SIZE", \
	  "maximum tensor bytes per file in hf/ (default 5GB) and gguf/") \
	X(FILE, layout, TREE, "FILE", "show in ranks/ what each rank of a mesh holds") \
	X(FILE, recipe, TREE, "NAME", "make the model by a recipe; see 'ckptfs help recipes'") \
	X(TEXT, experts, TREE, "fused|split|stored", \
	  "show the experts of a layer fused, split, or as they are stored") \
	X(TEXT, gguf_dtype, TREE, \
	  "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q4_k_s|q4_k_m|q5_k_s|q5_k_m|q6_k|mxfp4", \
	  "type of matrices in gguf/, as in llama-quantize (default: the model's)") \
	X(TEXT, quantize, TREE, "fp8_dynamic|fp8_block", \
	  "quantise linear layers in hf/, for vLLM and SGLang") \
	X(TEXT, index, HOW, "PATH", "where to keep the chunk index; with :memory: not on disk") \
	X(FLAG, allow_missing, TREE, NULL, \
	  "accept incomplete tensors; opening one is an I/O error") \
	X(FLAG, strict, HOW, NULL, "refuse a model that does not match its config.json") \
	X(FLAG, ignore_ctime, HOW, NULL, \
	  "treat a file as unchanged if only its ctime changed (chmod)") \
	X(TEXT, endpoint, HOW, "URL", "address of the store, for s3:// and hf://") \
	X(TEXT, region, HOW, "NAME", "region of the bucket of an s3:// address") \
	X(TEXT, profile, HOW, "NAME", "profile in ~/.aws with the credentials for s3://") \
	X(FLAG, anonymous, HOW, NULL, "send no credentials to a store") \
	X(TEXT, cache_dir, HOW, "DIR", \
	  "where to cache what is fetched from a store; none: in memory only") \
	X(SIZE, cache_size, HOW, "SIZE", \
	  "maximum size of that cache (default a tenth of the free disk)") \
	X(SIZE, retry, HOW, "SECONDS", "how long to retry a request to a store (default 60)") \
	X(SIZE, cache, HOW, "SIZE", "maximum memory for decoded blocks (default 256MiB)") \
	X(SIZE, maps, PROGRAM, "SIZE", "bound on chunk maps in memory (8MiB)") \
	X(FLAG, map_files, PROGRAM, NULL, \
	  "take what is in the page cache from there, and handle SIGBUS") \
	X(FLAG, runs, PROGRAM, NULL, "a directory of checkpoints is fine as well") \
	X(FLAG, rebuild_index, PROGRAM, NULL, "build the chunk index even when it is fresh") \
	X(FLAG, need_index, PROGRAM, NULL, "fail (ENODATA) if there is no fresh chunk index") \
	X(FLAG, allow_holes, PROGRAM, NULL, "accept tensors with holes, though no missing files") \
	X(FLAG, backwards, PROGRAM, NULL, "the model is what recipe= would make the weights from")

#define CKPT_OPTION_FIELD_FLAG bool
#define CKPT_OPTION_FIELD_TEXT const char *
#define CKPT_OPTION_FIELD_FILE const char *
#define CKPT_OPTION_FIELD_LIST const char *const * /* NULL-terminated */
#define CKPT_OPTION_FIELD_SIZE uint64_t

/* All zero: no options. */
struct ckpt_opts {
#define CKPT_OPTION_FIELD(form, name, who, value, help) CKPT_OPTION_FIELD_##form name;
	CKPT_OPTIONS(CKPT_OPTION_FIELD)
#undef CKPT_OPTION_FIELD
	/* As in struct ckpt_hooks. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
	uint64_t share; /* this checkpoint's part of cache=, for decoded blocks; 0: all of it */
};

/* Parses the strings that ckpt_open accepts; copies them into the arena. *ret is always set. */
int ckpt_opts_parse(const char *const words[], const struct ckpt_hooks *hooks, size_t hooks_size,
		    struct arena *a, struct ckpt_opts *ret, struct ckpt_err *e);

/*
 * The strings that ckpt_open would have to be given elsewhere, in another directory, for the same
 * names and bytes; NULL-terminated, in the arena. Flags are not among them: commands that read a
 * tensor do what allow_missing does in any case.
 */
int ckpt_opts_words(struct ckpt_opts *o, struct arena *a, const char *const **ret,
		    struct ckpt_err *e);

/*
 * The value of an option that names a file or directory, which exists, with its absolute path: the
 * caller frees it. NULL: it is not such an option or value, or (errno is ENOMEM) there is no
 * memory.
 */
char *ckpt_opts_absolute(const struct ckpt_option *x, const char *value);

/* What place_open needs to know. */
struct place_options ckpt_opts_place(const struct ckpt_opts *o);

/* The field of option x: a CKPT_OPTION_FIELD_... */
void *ckpt_opts_at(struct ckpt_opts *o, const struct ckpt_option *x);

/* One of the words that an option accepts; messages about invalid values do not list aliases. */
struct ckpt_choice {
	const char *word;
	int value;
	bool alias;
};
/* Sets *ret to the value of `word` among n choices; leaves it unchanged if word is NULL. */
int ckpt_opts_choose(const char *name, const char *word, const struct ckpt_choice *of, size_t n,
		     int *ret, struct ckpt_err *e);

/* Sets *ret to the enum ckpt_dtype that the word names: bf16, fp16, fp32 or torch's names. */
int ckpt_opts_dtype(const char *name, const char *word, int *ret, struct ckpt_err *e);

/* opts' strings and hooks are borrowed until ckpt_close. */
int ckpt_open_with(const char *path, const struct ckpt_opts *opts, struct ckpt **ret,
		   struct ckpt_err *e);

#endif
