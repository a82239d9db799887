/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/progress.h"
#include "base/text.h"

#include <errno.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 };

CLEANUP_POINTER(cleanup_file, struct ckpt_file, ckpt_file_close)

static int find(struct ckpt *c, const char *path, bool is_fqn, struct ckpt_stat *ret,
		struct ckpt_err *e)
{
	if (!*path && !is_fqn)
		return err_set(e, EINVAL, "PATH is empty: name a file of the tree");
	if (cmd_find(c, path, is_fqn, ret, e))
		return -e->code;
	return ret->is_dir ? err_set(e, EISDIR, "'%s' is a directory: name a file in it", path) : 0;
}

/* Can a terminal show it? The first and last characters may be cut by the block's edges. */
static bool is_text(const char *s, size_t n)
{
	enum { CUT = 3 }; /* all but one byte of the longest character */
	const char *start = s, *end = s + n;

	while (s < end) {
		bool at_edge = s - start < CUT || end - s <= CUT;

		if (*s != '\n' && *s != '\t' && *s != '\r' && text_unfit(s, end) &&
		    !(at_edge && (unsigned char)*s >= 0x80))
			return false;
		(void)text_next(&s, end);
	}
	return true;
}

static int copy_out(struct ckpt_file *f, const char *path, char *buf, struct progress *p,
		    uint64_t *done, struct ckpt_err *e)
{
	int64_t n = 0;

	bool to_terminal = isatty(STDOUT_FILENO);

	for (uint64_t off = 0; off < ckpt_file_size(f); off += (uint64_t)n) {
		int rc;

		n = ckpt_file_read(f, buf, BLOCK, off, e);
		if (n < 0)
			return err_wrap(e, "cat: '%s'", path);
		if (!n)
			return err_set(e, EIO, "cat: '%s': ends at %ju of %ju bytes", path,
				       (uintmax_t)off, (uintmax_t)ckpt_file_size(f));
		if (to_terminal && !is_text(buf, (size_t)n))
			return err_set(
				e, EINVAL,
				"cat: '%s': it is binary, and standard output is a terminal: "
				"redirect it to a file ('> FILE') or to a program ('| xxd'); "
				"'ckptfs info' describes a tensor",
				path);
		rc = io_write(STDOUT_FILENO, buf, (size_t)n);
		if (rc)
			return err_sys(e, -rc, "write to standard output");
		*done += (uint64_t)n;
		progress_set(p, *done);
	}
	return 0;
}

static int cat_one(struct ckpt *c, const char *path, const struct options *o, char *buf,
		   struct progress *p, uint64_t *done, struct ckpt_err *e)
{
	struct ckpt_file *f CLEANUP(cleanup_file) = NULL;
	struct ckpt_stat st;

	if (find(c, path, o->fqn, &st, e))
		return err_wrap(e, "cat");
	if (ckpt_file_open(c, st.node, &f, e))
		return err_wrap(e, "cat: '%s'", path);
	return copy_out(f, path, buf, p, done, e);
}

/* Bytes of all paths, for the bar; a path that does not exist is reported later. */
static uint64_t total_bytes(struct ckpt *c, const struct options *o)
{
	uint64_t total = 0;

	for (size_t i = 1; i < o->n_args; i++) {
		struct ckpt_stat st;
		struct ckpt_err e = { 0 };

		if (!find(c, o->args[i], o->fqn, &st, &e))
			total += st.size;
	}
	return total;
}

static int cat_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	static char buf[BLOCK];
	struct ckpt_err e = { 0 };
	struct progress p;
	uint64_t done = 0;
	int rc = 0;

	if (cmd_open(
		    o->args[0], o,
		    &(struct cmd_how){
			    CMD_WORDS("allow_missing", "map_files", o->fqn ? NULL : "runs"), NULL },
		    &c, &e))
		return cmd_fail(&e);
	progress_start(&p, "cat", total_bytes(c, o), !o->quiet && !isatty(STDOUT_FILENO));
	for (size_t i = 1; i < o->n_args && !rc; i++)
		rc = cat_one(c, o->args[i], o, buf, &p, &done, &e);
	progress_end(&p);
	return rc ? cmd_fail(&e) : STATUS_DONE;
}

const struct command command_cat = {
	.name = "cat",
	.usage = "CKPT PATH...",
	.complete = "fp",
	.summary = "Write files of the tree to standard output",
	.examples = "  $ ckptfs cat run/step-1000 npy/lm_head.weight.npy >lm_head.npy\n"
		    "  $ ckptfs cat run/step-1000 hf/model.safetensors -o dtype=bf16 "
		    ">model.safetensors\n",
	.details = "PATH is as in a mount: tensors/NAME, npy/NAME.npy, objects/NAME. Needs no "
		   "mount.\n"
		   "Binary files are not written to a terminal.\n",
	.words = WORDS_TREE | WORDS_CACHE | WORDS_QUIET | WORDS_CONFINED | WORDS_CAT,
	.min_args = 2,
	.max_args = SIZE_MAX,
	.checkpoints = 1,
	.run = cat_run,
};
