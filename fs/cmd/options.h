/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options - the words of -o and of --word=value, in one table for all commands.
 *
 *	struct options o = {0};
 *	if (options_parse(&o, WORDS_OPEN | WORDS_LS, 0, argc, argv, &e)) ...
 *	o.args[0], o.n_args        // the remaining arguments: CKPT, GLOB, ...
 *	options_release(&o);
 *
 * Forms: --word, --word=value, --word value (if the value may not be omitted), -x (letters may be
 * joined: -lq), -o a,b=c. A dash inside a word equals an underscore. In the list of -o a comma that
 * belongs to a value is written "\," and a backslash before it "\\"; any other backslash stands for
 * itself, so that globs look the same everywhere. "--" ends the options.
 *
 * Threads: one at a time.
 */
#ifndef FS_CMD_OPTIONS_H
#define FS_CMD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct buf;
struct ckpt_err;
struct ckpt_option;

/* Groups of words, combined with |; a command takes the groups that it names. */
enum {
	WORDS_ANY = 1 << 0, /* help */
	WORDS_QUIET = 1 << 1,
	WORDS_MOUNT = 1 << 2, /* what to mount, and how */
	WORDS_JSON = 1 << 3,
	WORDS_LS = 1 << 4,
	WORDS_CAT = 1 << 5,
	WORDS_CHECK = 1 << 6,
	WORDS_INDEX = 1 << 7,
	WORDS_DIFF = 1 << 8,
	WORDS_EXPORT = 1 << 9,
	WORDS_RESHARD = 1 << 10,
	WORDS_COLOR = 1 << 11,
	/* The library's options (see ckpt.h) by their effect. An option without a group is in all
	 * of them. */
	WORDS_STORE = 1 << 12,	  /* how a checkpoint is opened: index, endpoint, ... */
	WORDS_NAMES = 1 << 13,	  /* which tensors there are: include, exclude, rename */
	WORDS_DTYPE = 1 << 14,	  /* and their dtypes */
	WORDS_MODEL = 1 << 15,	  /* which form the model: weights, recipe, assets, experts */
	WORDS_FILES = 1 << 16,	  /* how its files are cut: shard_size, layout */
	WORDS_QUANTISE = 1 << 17, /* gguf_dtype, quantize */
	WORDS_MISSING = 1 << 18,  /* allow_missing, unless the command always does that */
	WORDS_CACHE = 1 << 19,	  /* cache */
	WORDS_TENSORS = WORDS_STORE | WORDS_NAMES | WORDS_DTYPE,
	WORDS_TREE = WORDS_TENSORS | WORDS_MODEL | WORDS_FILES | WORDS_QUANTISE,
	WORDS_OPEN = WORDS_TREE | WORDS_MISSING | WORDS_CACHE,
	WORDS_STAT = 1 << 20,
	WORDS_SUM = 1 << 21,
	WORDS_HEAD = 1 << 22,
	WORDS_WARM = 1 << 23,
	WORDS_REPORT = 1 << 25,
	WORDS_CONFINED = 1 << 26, /* sandbox, of a command that gives up rights */
};

struct options {
	bool help, quiet;

	const char **open; /* words for ckpt_open, NULL-terminated; NULL: there are none */
	/* Words in the list of this option that were taken for flags but may be names; cmd_open
	 * knows. */
	const char **unclear, *unclear_in;

	uint64_t threads; /* 0: not given */
	const char *io, *sandbox, *log;
	bool io_uring;
	bool allow_other, allow_root, auto_unmount, nosuid, nodev, noexec;
	const char *fsname, *subtype, *context;
	bool has_uid, has_gid;
	uint64_t uid, gid;
	bool foreground, debug, verbose;
	bool helper; /* called by mount(8) */

	const char *color, *sort;
	bool human, tree;
	uint64_t depth; /* 0: not given */

	bool json, long_list, fqn, data, rebuild, print, values, model;
	uint64_t jobs; /* 0: not given */
	const char *by, *check;
	const char *plot, *resume;
	uint64_t hist; /* bins; 0: not given */
	bool csv, xxh, bits, stat;
	/* Globs, NULL-terminated; NULL: not given. */
	const char **allow_nan, **allow_inf, **allow_zero, **allow_constant;
	double max_abs; /* 0: not given */
	const char *output;

	const char *format;
	uint64_t ranks, zstd; /* 0: not given */
	bool overwrite, file_per_item, save_to_lowest_rank;

	const char **args; /* not options, in order, NULL-terminated; NULL when there are none */
	size_t n_args;
	char **owned; /* storage that the strings above may point into */
	size_t n_owned;
};

/* Ignores unknown words of -o, as a mount helper does with -s. */
#define OPTIONS_SLOPPY 1u

/* Fails with EINVAL and a sentence that names the word; *o must be released in either case. */
int options_parse(struct options *o, unsigned groups, unsigned flags, int argc, char *const *argv,
		  struct ckpt_err *e);
/* Parses only the list of one -o. */
int options_parse_list(struct options *o, unsigned groups, unsigned flags, const char *list,
		       struct ckpt_err *e);
/* Parses one word of a command line, "--word" or "--word=value", which is borrowed. */
int options_parse_word(struct options *o, unsigned groups, const char *s, struct ckpt_err *e);
/* Replaces argument i, or that and the next, with a copy of path. */
int options_set_arg(struct options *o, size_t i, const char *path, bool two, struct ckpt_err *e);
/* Appends to .args. */
int options_add_arg(struct options *o, const char *arg, struct ckpt_err *e);
void options_release(struct options *o);

/* The value of the last ckpt_open option with this name, "" for a flag; NULL: it was not given. */
const char *options_get(const struct options *o, const char *name);
/* Appends an option for ckpt_open; value is NULL for a flag. Nothing is checked. */
int options_put(struct options *o, const char *name, const char *value, struct ckpt_err *e);
/*
 * Appends the given options that determine the names and bytes in the tree, as "word=value\0" in a
 * fixed order: for the same checkpoint, the same text means the same tree. `instead`, unless it is
 * NULL, returns what to write in place of a value.
 */
typedef const char *options_value_fn(const struct ckpt_option *x, const char *value);
void options_add_shape(const struct options *o, options_value_fn *instead, struct buf *b);

/* Word i of these groups; false after the last. */
struct option_word {
	const char *name;  /* with underscores */
	const char *value; /* NULL: it takes none; "a|b": one of these; else its kind: "FILE" */
	bool may_omit;	   /* the value */
	bool in_list;	   /* -o takes it, too */
};
bool options_word(unsigned groups, size_t i, struct option_word *ret);

/* A name as it is shown: with dashes after "--", with underscores in the list of -o. Returns
 * ret. */
enum { OPTIONS_NAME_MAX = 31 };
const char *options_spell(const char *name, char between, char ret[OPTIONS_NAME_MAX + 1]);

/* The words of these groups with one line each, and which of them -o takes, as --help shows
 * them. */
void options_help(FILE *to, unsigned groups);

#endif
