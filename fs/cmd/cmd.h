/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd - what a subcommand is, and what all of them do alike.
 *
 * Exit status: 0 done; 1 the answer is "no"; 2 trouble, with one line "ckptfs: what: found".
 * stdout is data, stderr is messages.
 *
 * Threads: one.
 */
#ifndef FS_CMD_CMD_H
#define FS_CMD_CMD_H

#include <ckptfs/ckpt.h>

#include <stdbool.h>
#include <stddef.h>

/* For struct cmd_how. */
#define CMD_WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

struct ckpt_err;
struct options;

enum { STATUS_DONE = 0, STATUS_NO = 1, STATUS_TROUBLE = 2 };

struct command {
	const char *name;
	const char *usage;    /* "CKPT [GLOB...]" */
	const char *summary;  /* one line */
	const char *examples; /* lines for --help, each "  $ ckptfs ..." */
	const char *details;  /* more lines for --help, or NULL */
	const char *complete; /* what its arguments are, for complete.h; the last one goes on */
	unsigned words;	      /* groups of options.h; WORDS_ANY goes without saying */
	size_t min_args, max_args;
	size_t checkpoints;		     /* arguments that are one, in front of the others */
	int (*run)(const struct options *o); /* returns an exit status */
};

extern const struct command command_mount, command_umount, command_ls, command_info, command_cat,
	command_check, command_diff, command_export, command_head, command_index, command_report,
	command_reshard, command_stat, command_stats, command_sum, command_warm;

/* Command i, in the order of help; NULL behind the last. */
const struct command *command_at(size_t i);

/* "ckptfs: <msg>" on stderr; returns STATUS_TROUBLE. */
int cmd_fail(const struct ckpt_err *e);
/* Flush stdout: a write that did not arrive turns `status` into STATUS_TROUBLE, with its line. */
int cmd_finish(int status);

/* How a command opens: words for ckpt_open besides those that the user gave, NULL-terminated, or NULL;
 * and where warnings go; NULL: stderr. */
struct cmd_how {
	const char *const *words;
	void (*warn)(void *arg, const char *what);
};
/* ckpt_open, and a progress bar while an index is built. */
int cmd_open(const char *path, const struct options *o, const struct cmd_how *how,
	     struct ckpt **ret, struct ckpt_err *e);

/* ckpt_run_look, and a progress bar. */
int cmd_run_look(struct ckpt *run, const struct options *o, struct ckpt_err *e);

/*
 * Where one of the arguments that are checkpoints is a run and the next one the name of a checkpoint in
 * it, or `latest`, and there are more arguments than the command needs: the two become one path. A
 * negative errno: no memory.
 */
int cmd_join_runs(const struct command *c, struct options *o, struct ckpt_err *e);

/* The same for the checkpoint of a run that a path leads into; *ret_rest: the rest of the path. */
int cmd_open_in_run(struct ckpt *run, const char *path, const struct options *o,
		    const struct cmd_how *how, struct ckpt **ret, const char **ret_rest,
		    struct ckpt_err *e);

enum { CMD_MEANT = 256 };
/* "; did you mean 'a' or 'b'?" of a name that is not there, or "". */
const char *cmd_meant(const struct ckpt *c, const char *name, char out[CKPT_ROOM(CMD_MEANT)]);
/* The tensor that is stored under a name, or that the model calls so; -1: there is none, or an object
 * has the name. */
int64_t cmd_find_tensor(const struct ckpt *c, const char *name);

/* Elements of the model's tensors; 0 where there is no model. */
uint64_t cmd_parameters(const struct ckpt *c);

/* What a PATH argument names, a file or a directory; with is_fqn the raw FQN of a tensor or object,
 * or what the model calls a tensor. */
int cmd_find(struct ckpt *c, const char *path, bool is_fqn, struct ckpt_stat *ret,
	     struct ckpt_err *e);

/* Is it a list that `ckptfs sum` printed? */
bool cmd_is_sums(const char *path);
/* The exit status of the first argument's comparison with such a list, which is printed. */
int cmd_check_sums(const struct options *o, const char *list, const char *const *globs);

static inline void cmd_closep(struct ckpt **c)
{
	ckpt_close(*c);
}

/* How text looks on a terminal that shows colors: what turns it on there, STYLE_PLAIN off; else "". */
enum cmd_style { STYLE_PLAIN, STYLE_STRONG, STYLE_GOOD, STYLE_BAD };
const char *cmd_style(bool color, enum cmd_style style);
/* Is standard output to have colors: what --color says, else whether it is a terminal that shows them. */
bool cmd_color(const struct options *o);

struct buf;
/* An FQN as a terminal can show it, with control bytes as %XX. */
void cmd_add_fqn(struct buf *b, const char *fqn, size_t len);
/* Text of a field of CSV, as RFC 4180 has it: in quotes, in which a quote stands twice. */
void cmd_add_csv(struct buf *b, const char *s, size_t len);
/* Write what b holds to stdout and empty it. ENOMEM or EFBIG of b is STATUS_TROUBLE, else 0. */
int cmd_print(struct buf *b);

#endif
