/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd - the definition of a subcommand, and code that all of them share.
 *
 * Exit status: 0 done; 1 the answer is "no"; 2 trouble, with one line "ckptfs: what: found". stdout
 * is data, stderr is messages.
 *
 * Threads: one.
 */
#ifndef FS_CMD_CMD_H
#define FS_CMD_CMD_H

#include "base/cleanup.h"

#include <ckptfs/ckpt.h>

#include <stdbool.h>
#include <stddef.h>

/* For struct cmd_how. */
#define CMD_WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* Those about object stores. */
#define CMD_STORE \
	"endpoint=", "region=", "profile=", "anonymous", \
		"cache_dir=", "cache_size=", "retry=", "cache="

struct ckpt_err;
struct options;

enum { STATUS_DONE = 0, STATUS_NO = 1, STATUS_TROUBLE = 2 };

struct command {
	const char *name;
	const char *usage;    /* "CKPT [GLOB...]" */
	const char *summary;  /* one line */
	const char *examples; /* lines for --help, each "  $ ckptfs ..." */
	const char *details;  /* more lines for --help, or NULL */
	const char *complete; /* kinds of arguments, see complete.h; the last one may repeat */
	unsigned words;	      /* groups of options.h; WORDS_ANY is implied */
	size_t min_args, max_args;
	size_t checkpoints;		     /* number of leading arguments that are checkpoints */
	bool writes;			     /* its last argument */
	int (*run)(const struct options *o); /* returns an exit status */
};

extern const struct command command_mount, command_umount, command_ls, command_info, command_cat,
	command_check, command_diff, command_export, command_head, command_index, command_report,
	command_reshard, command_stat, command_stats, command_sum, command_warm;

#define CMD_REPORT_FILE "report.html" /* what report writes, unless an option says where */

/* Command i, in the order of help; NULL after the last. */
const struct command *command_at(size_t i);

/* "ckptfs: <msg>" on stderr; returns STATUS_TROUBLE. */
int cmd_fail(const struct ckpt_err *e);
/* "ckptfs: warning: <what>" on stderr, with control bytes of hostile names as %XX. */
void cmd_warn(const char *what);
/* Writes to stdout; cmd_finish reports a failure. */
void cmd_write(const char *s, size_t n);
/* Flushes stdout: a failed write is reported and turns `status` into STATUS_TROUBLE. */
int cmd_finish(int status);

/* How a command opens a checkpoint: options for ckpt_open in addition to the user's,
 * NULL-terminated, or NULL; and where warnings go (NULL: stderr). */
struct cmd_how {
	const char *const *words;
	void (*warn)(void *arg, const char *what);
};
/* `more`, and those of the user's words that begin like one of `names`: an array that the caller
 * frees; NULL: out of memory. */
const char **cmd_pick(const struct options *o, const char *const *names, const char *const *more);
/* Calls ckpt_open, with a progress bar while an index is built. */
int cmd_open(const char *path, const struct options *o, const struct cmd_how *how,
	     struct ckpt **ret, struct ckpt_err *e);

/* -ENOENT if include and exclude, one of which may be misspelt, leave nothing. 0 for a run. */
int cmd_refuse_nothing(const struct ckpt *c, const struct options *o, struct ckpt_err *e);

/*
 * -ENOENT with a sentence, such as "ls: nothing matches 'x'", if nothing is left because of globs,
 * or of include and exclude; it begins with `none`, "ls: nothing". 0: there was nothing without
 * them.
 */
int cmd_none_left(const struct ckpt *c, const struct options *o, const char *const *globs,
		  const char *none, struct ckpt_err *e);

/*
 * -EIO with a sentence if the globs, or no globs, match what cannot be opened and has no data here:
 * a tensor of a file that is missing, or of an unknown kind. It is listed as an object, so commands
 * for tensors do not see it.
 */
int cmd_absent(const struct ckpt *c, const char *const *globs, const char *command,
	       struct ckpt_err *e);

/* Calls ckpt_run_look, with a progress bar. */
int cmd_run_look(struct ckpt *run, const struct options *o, struct ckpt_err *e);

/*
 * If there are more arguments than the command needs, and one of the checkpoint arguments is a run
 * and the next one the name of a checkpoint in it, or `latest`, the two become one path. A negative
 * errno: out of memory.
 */
int cmd_join_runs(const struct command *c, struct options *o, struct ckpt_err *e);

/* cmd_fail for the first argument, which cmd_open has refused. If it is a run, and the next
 * argument may be the name of a checkpoint that it lacks, says that. */
int cmd_fail_open(const struct options *o, struct ckpt_err *e);

/* Opens the checkpoint of a run that a path leads into; *ret_rest is the rest of the path. */
int cmd_open_in_run(struct ckpt *run, const char *path, const struct options *o,
		    const struct cmd_how *how, struct ckpt **ret, const char **ret_rest,
		    struct ckpt_err *e);

/* -EINVAL, in the words of the library: "300 jobs are too many: at most 256 are possible". */
int cmd_too_many(const char *what, uint64_t n, unsigned max, struct ckpt_err *e);

enum { CMD_MEANT = 256 };
/* "; did you mean 'a' or 'b'?" for a name that does not exist, or "". */
const char *cmd_meant(const struct ckpt *c, const char *name, char out[CKPT_ROOM(CMD_MEANT)]);
/* Numbers; one of them is -1. */
struct cmd_named {
	int64_t tensor, object;
};
/* What is stored under a name, or has it in the model. The name may also be given as listings show
 * it, with "%0A" for a line feed. Messages begin with the name. */
int cmd_look_up(const struct ckpt *c, const char *name, struct cmd_named *ret, struct ckpt_err *e);

/* Finds what a PATH argument names: a file or a directory; with is_fqn, the raw FQN of a tensor or
 * object, or the model's name of a tensor. */
int cmd_find(struct ckpt *c, const char *path, bool is_fqn, struct ckpt_stat *ret,
	     struct ckpt_err *e);

/* Is it a list that `ckptfs sum` printed? */
bool cmd_is_sums(const char *path);
/* Compares the first argument with such a list, prints the result, and returns the exit status. */
int cmd_check_sums(const struct options *o, const char *list, const char *const *globs);

CLEANUP_POINTER(cmd_closep, struct ckpt, ckpt_close)

/* The sequence that turns a style on, on a terminal that shows colors; STYLE_PLAIN turns it off. ""
 * elsewhere. */
enum cmd_style { STYLE_PLAIN, STYLE_STRONG, STYLE_GOOD, STYLE_BAD };
const char *cmd_style(bool color, enum cmd_style style);
/* Should standard output have colors? As --color says, else if it is a terminal that shows them. */
bool cmd_color(const struct options *o);

struct buf;
/* An FQN, or another name, as a terminal can show it, with control bytes as %XX. */
void cmd_add_fqn(struct buf *b, const char *fqn, size_t len);
/* How many columns text of cmd_add_fqn takes on a terminal, where Chinese characters are two
 * wide. */
size_t cmd_columns(const char *s, size_t len);
/* Blanks behind the text that b has since `start`, to fill that many columns. */
void cmd_pad(struct buf *b, size_t start, size_t columns);
/* A blank and the number, in 13 columns, or '-' if it is not known. */
void cmd_add_number(struct buf *b, bool known, double v);
/* Adds a CSV field in the form of RFC 4180: in quotes, with quotes inside doubled. */
void cmd_add_csv(struct buf *b, const char *s, size_t len);
/* A comma, and the number if it is known. */
void cmd_add_csv_number(struct buf *b, bool known, double v);
/* Writes the contents of b to stdout and empties it. Returns STATUS_TROUBLE if b failed, else 0. */
int cmd_print(struct buf *b);

#endif
