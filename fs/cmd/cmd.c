/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"

#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/progress.h"
#include "base/term.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Why the first failed write to stdout failed: a later fflush may not fail again. */
static int write_error;

void cmd_write(const char *s, size_t n)
{
	if (fwrite(s, 1, n, stdout) != n && !write_error)
		write_error = errno;
}

static void flush(void)
{
	if (fflush(stdout) && !write_error)
		write_error = errno;
}

int cmd_fail(const struct ckpt_err *e)
{
	flush();
	(void)fprintf(stderr, "ckptfs: %s\n", e->msg);
	return STATUS_TROUBLE;
}

int cmd_finish(int status)
{
	struct ckpt_err e = { 0 };
	int rc;

	flush();
	rc = write_error;
	write_error = 0;
	if (!rc && !ferror(stdout))
		return status;
	(void)err_sys(&e, rc ? rc : EIO, "write to standard output");
	return cmd_fail(&e);
}

void cmd_warn(const char *what)
{
	char fit[1200];

	(void)fprintf(stderr, "ckptfs: warning: %s\n",
		      text_show(what, strlen(what), fit, sizeof(fit)));
}

static void show_warning(void *arg, const char *what)
{
	(void)arg;
	cmd_warn(what);
}

/* The user's options and the command's, in an array that the caller frees; NULL: out of memory. */
static const char **all_words(const struct options *o, const struct cmd_how *how)
{
	const char *const *const lists[] = { o->open, how->words };
	const char **all;
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		for (size_t k = 0; lists[i] && lists[i][k]; k++)
			n++;
	all = calloc(n + 1, sizeof(*all));
	n = 0;
	for (size_t i = 0; all && i < ARRAY_LEN(lists); i++)
		for (size_t k = 0; lists[i] && lists[i][k]; k++)
			all[n++] = lists[i][k];
	return all;
}

/* The words that say where a checkpoint is, of those that the user gave. */
static const char **words_of_place(const struct options *o)
{
	static const char *const names[] = { "endpoint=",  "region=",	  "profile=", "anonymous",
					     "cache_dir=", "cache_size=", "retry=" };
	size_t n = 0;
	const char **words;

	while (o->open && o->open[n])
		n++;
	words = calloc(n + 2, sizeof(*words));
	n = 0;
	if (words)
		words[n++] = "runs";
	for (size_t i = 0; words && o->open && o->open[i]; i++)
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			if (!strncmp(o->open[i], names[k], strlen(names[k])))
				words[n++] = o->open[i];
	return words;
}

/* In a run a name is that of one of its checkpoints, and otherwise a path. */
static bool names_one(struct ckpt *run, const char *name, size_t len)
{
	autofree char *copy = strndup(name, len);
	ckpt_node node;

	if (!copy)
		return false;
	return run ? !ckpt_lookup(run, CKPT_ROOT, copy, &node) : !access(copy, F_OK);
}

/* A checkpoint whose name is that of a flag would be missing in the list, and the result be
 * wrong. */
static int refuse_unclear(struct ckpt *run, const char *path, const struct options *o,
			  struct ckpt_err *e)
{
	autofree const char **words = o->unclear ? words_of_place(o) : NULL;
	const struct ckpt_hooks quiet = { 0 };
	struct ckpt *opened = NULL;
	struct ckpt_err ignored;
	int rc = 0;

	if (!o->unclear)
		return 0;
	if (!words)
		return err_sys(e, ENOMEM, "options");
	if (!run && !ckpt_open(path, words, &quiet, &opened, &ignored) && ckpt_is_run(opened))
		run = opened;
	for (size_t i = 0; !rc && o->unclear[i]; i++) {
		const char *name = o->unclear[i], *colon = strrchr(name, ':');

		if (names_one(run, name, strlen(name)) ||
		    (colon && names_one(run, name, (size_t)(colon - name))))
			rc = err_set(e, EINVAL,
				     "option '%s': '%.100s' is also an option and would not be in "
				     "the list; if it is meant as a name, write the comma before "
				     "it as '\\,', and otherwise put it before '%s='",
				     o->unclear_in, name, o->unclear_in);
	}
	ckpt_close(opened);
	return rc;
}

const char **cmd_pick(const struct options *o, const char *const *names, const char *const *more)
{
	size_t n = 1, k = 0;
	const char **words;

	for (size_t i = 0; more[i]; i++)
		n++;
	for (size_t i = 0; o->open && o->open[i]; i++)
		n++;
	words = calloc(n, sizeof(*words));
	for (size_t i = 0; words && more[i]; i++)
		words[k++] = more[i];
	for (size_t i = 0; words && o->open && o->open[i]; i++)
		for (size_t j = 0; names[j]; j++)
			if (!strncmp(o->open[i], names[j], strlen(names[j]))) {
				words[k++] = o->open[i];
				break;
			}
	return words;
}

/* run: NULL, or the run that path leads into. */
static int open_it(struct ckpt *run, const char *path, const struct options *o,
		   const struct cmd_how *how, struct ckpt **ret, const char **ret_rest,
		   struct ckpt_err *e)
{
	autofree const char **words = all_words(o, how);
	struct progress p;
	const struct ckpt_hooks hooks = { .warn = how->warn ? how->warn : show_warning,
					  .progress = progress_report,
					  .progress_arg = &p };
	int rc;

	if (!words)
		return err_sys(e, ENOMEM, "options");
	if (refuse_unclear(run, path, o, e))
		return -e->code;
	progress_start(&p, "index", 0, !o->quiet);
	rc = run ? ckpt_run_open(run, path, words, &hooks, ret, ret_rest, e)
		 : ckpt_open(path, words, &hooks, ret, e);
	progress_end(&p);
	return rc;
}

int cmd_open(const char *path, const struct options *o, const struct cmd_how *how,
	     struct ckpt **ret, struct ckpt_err *e)
{
	return open_it(NULL, path, o, how, ret, NULL, e);
}

/* The words that leave something out; NULL: none. */
static const char *leaves_out(const struct options *o)
{
	const char *exclude = options_get(o, "exclude") ? "exclude" : NULL;

	if (!options_get(o, "include"))
		return exclude;
	return exclude ? "include and exclude" : "include";
}

int cmd_refuse_nothing(const struct ckpt *c, const struct options *o, struct ckpt_err *e)
{
	const char *words = leaves_out(o);
	struct ckpt_totals t;

	if (ckpt_is_run(c) || !words)
		return 0;
	ckpt_totals(c, &t);
	if (t.tensors || t.objects)
		return 0;
	return err_set(e, ENOENT, "%s leave%s nothing of the checkpoint", words,
		       strchr(words, ' ') ? "" : "s");
}

int cmd_none_left(const struct ckpt *c, const struct options *o, const char *const *globs,
		  const char *none, struct ckpt_err *e)
{
	const char *words = leaves_out(o);
	char meant[CMD_MEANT];

	if (*globs)
		return err_set(e, ENOENT, "%s matches '%s'%s", none, *globs,
			       globs[1] ? " or another glob" : cmd_meant(c, *globs, meant));
	if (words)
		return err_set(e, ENOENT, "%s is left by %s", none, words);
	return 0;
}

int cmd_absent(const struct ckpt *c, const char *const *globs, const char *command,
	       struct ckpt_err *e)
{
	struct buf first CLEANUP(buf_release) = BUF_INIT(2048);
	uint64_t glob_steps = TEXT_GLOB_STEPS, n = 0;
	const char *why = NULL;
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	for (uint64_t i = 0; i < t.objects; i++) {
		struct ckpt_object x;

		ckpt_object(c, i, &x);
		if (!x.fault || *x.path || !text_glob_any(globs, x.fqn, x.fqn_len, &glob_steps))
			continue;
		if (!n++) {
			cmd_add_fqn(&first, x.fqn, x.fqn_len);
			buf_add(&first, "", 1);
			why = x.fault;
		}
	}
	if (!n)
		return 0;
	if (n == 1)
		return err_set(e, EIO, "%s: '%.200s' cannot be opened: %s", command,
			       first.err ? "?" : first.data, why);
	return err_set(e, EIO, "%s: '%.200s' and %" PRIu64 " more cannot be opened: %s", command,
		       first.err ? "?" : first.data, n - 1, why);
}

int cmd_run_look(struct ckpt *run, const struct options *o, struct ckpt_err *e)
{
	struct progress p;
	int rc;

	progress_start(&p, "open", 0, !o->quiet);
	p.unit = "checkpoints";
	rc = ckpt_run_look(run, progress_report, &p, e);
	progress_end(&p);
	return rc;
}

int cmd_open_in_run(struct ckpt *run, const char *path, const struct options *o,
		    const struct cmd_how *how, struct ckpt **ret, const char **ret_rest,
		    struct ckpt_err *e)
{
	return open_it(run, path, o, how, ret, ret_rest, e);
}

int cmd_too_many(const char *what, uint64_t n, unsigned max, struct ckpt_err *e)
{
	return err_set(e, EINVAL, "%" PRIu64 " %s are too many: at most %u are possible", n, what,
		       max);
}

const char *cmd_meant(const struct ckpt *c, const char *name, char out[static CMD_MEANT])
{
	static const char ask[] = "; did you mean ";
	size_t n =
		ckpt_similar(c, name, strlen(name), out + strlen(ask), CMD_MEANT - sizeof(ask) - 1);

	if (!n)
		return "";
	memcpy(out, ask, strlen(ask));
	memcpy(out + strlen(ask) + n, "?", sizeof("?"));
	return out;
}

/* Both a stored name and one of the model may exist: the stored one takes precedence. */
static bool look_up(const struct ckpt *c, const char *name, size_t len, struct cmd_named *ret)
{
	int64_t stored = ckpt_tensor_find(c, name, len), model = ckpt_model_stored(c, name, len);
	struct ckpt_tensor t;

	*ret = (struct cmd_named){ stored, stored < 0 ? ckpt_object_find(c, name, len) : -1 };
	if (stored < 0 && ret->object < 0)
		ret->tensor = model;
	if (stored >= 0 && model >= 0 && model != stored) {
		ckpt_tensor(c, (uint64_t)model, &t);
		(void)fprintf(stderr,
			      "ckptfs: warning: '%s' is the name of a stored tensor, and the "
			      "model's name for '%s'; the stored tensor is used\n",
			      FQN_TEXT(name, len), FQN_TEXT(t.fqn, t.fqn_len));
	}
	return ret->tensor >= 0 || ret->object >= 0;
}

/* Is it the form in which listings show another name? */
static bool look_up_shown(const struct ckpt *c, const char *shown, struct cmd_named *ret)
{
	size_t len = 0, n = strlen(shown), cap = n + 8; /* room for what text_show looks ahead */
	autofree char *name = malloc(n + 1), *again = malloc(cap);

	if (!name || !again)
		return false;
	for (const char *s = shown; *s; s++) {
		unsigned byte = (unsigned char)*s;

		if (*s == '%' && isxdigit((unsigned char)s[1]) && isxdigit((unsigned char)s[2]) &&
		    sscanf(s, "%%%2x", &byte) == 1)
			s += 2;
		name[len++] = (char)byte;
	}
	return !strcmp(text_show(name, len, again, cap), shown) && look_up(c, name, len, ret);
}

int cmd_look_up(const struct ckpt *c, const char *name, struct cmd_named *ret, struct ckpt_err *e)
{
	char meant[CMD_MEANT];
	size_t len = strlen(name);

	if (look_up(c, name, len, ret) || look_up_shown(c, name, ret))
		return 0;
	if (ckpt_model_find(c, name, len) >= 0)
		return err_set(e, ENOENT,
			       "'%.100s' is not stored: hf/ makes it from other tensors; only "
			       "'stat', 'sum' and 'diff' take such names, with --model",
			       name);
	return err_set(e, ENOENT, "'%.100s': no tensor or object of that name%s", name,
		       strpbrk(name, "*?") ? "; 'ckptfs ls' and 'ckptfs stat' take patterns"
					   : cmd_meant(c, name, meant));
}

int cmd_find(struct ckpt *c, const char *path, bool is_fqn, struct ckpt_stat *ret,
	     struct ckpt_err *e)
{
	struct cmd_named named;
	ckpt_node node;
	int rc = is_fqn ? cmd_look_up(c, path, &named, e) : ckpt_walk(c, path, &node, e);

	if (!rc && is_fqn)
		node = named.tensor >= 0 ? ckpt_tensor_node(c, (uint64_t)named.tensor)
					 : ckpt_object_node(c, (uint64_t)named.object);
	return rc ? rc : ckpt_stat(c, node, ret, e);
}

const char *cmd_style(bool color, enum cmd_style style)
{
	static const char *const codes[] = { [STYLE_PLAIN] = "\033[0m",
					     [STYLE_STRONG] = "\033[1m",
					     [STYLE_GOOD] = "\033[32m",
					     [STYLE_BAD] = "\033[31m" };

	return color ? codes[style] : "";
}

bool cmd_color(const struct options *o)
{
	if (!o->color || !strcmp(o->color, "auto"))
		return term_has_color(STDOUT_FILENO);
	return !strcmp(o->color, "always");
}

void cmd_add_fqn(struct buf *b, const char *fqn, size_t len)
{
	/* Worst case of text_show: three bytes for each, and room for its "...". */
	size_t cap = len * 3 + 8;
	char *at = buf_room(b, cap);

	if (!at)
		return;
	(void)text_show(fqn, len, at, cap);
	while (*at++)
		b->len++;
}

/* wcwidth() would need a locale, which the program does not set. */
static size_t width_of(uint32_t c)
{
	static const struct {
		uint32_t first, last;
		size_t width;
	} ranges[] = {
		{ 0x0300, 0x036f, 0 },	 /* combining marks */
		{ 0x200b, 0x200f, 0 },	 /* joiners and marks of direction */
		{ 0x3099, 0x309a, 0 },	 /* voicing marks of kana */
		{ 0xfe00, 0xfe0f, 0 },	 /* variation selectors */
		{ 0x1100, 0x115f, 2 },	 /* Hangul Jamo */
		{ 0x2e80, 0x303e, 2 },	 /* CJK radicals and punctuation */
		{ 0x3041, 0xa4cf, 2 },	 /* kana to Yi */
		{ 0xac00, 0xd7a3, 2 },	 /* Hangul */
		{ 0xf900, 0xfaff, 2 },	 /* CJK compatibility */
		{ 0xfe30, 0xfe6f, 2 },	 /* their forms */
		{ 0xff00, 0xff60, 2 },	 /* full-width letters */
		{ 0xffe0, 0xffe6, 2 },	 /* and signs */
		{ 0x1f300, 0x1f64f, 2 }, /* pictures and faces */
		{ 0x1f900, 0x1f9ff, 2 }, { 0x20000, 0x3fffd, 2 }, /* more of CJK */
	};

	for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
		if (c >= ranges[i].first && c <= ranges[i].last)
			return ranges[i].width;
	return 1;
}

size_t cmd_columns(const char *s, size_t len)
{
	const char *end = s + len;
	size_t n = 0;

	while (s < end)
		n += width_of(text_next(&s, end));
	return n;
}

void cmd_pad(struct buf *b, size_t start, size_t columns)
{
	size_t used = b->len > start ? cmd_columns(b->data + start, b->len - start) : 0;

	buf_printf(b, "%*s", (int)(max_u64(columns, used) - used), "");
}

void cmd_add_csv(struct buf *b, const char *s, size_t len)
{
	buf_str(b, "\"");
	for (size_t i = 0; i < len; i++)
		if (s[i] == '"')
			buf_str(b, "\"\"");
		else
			buf_add(b, s + i, 1);
	buf_str(b, "\"");
}

int cmd_print(struct buf *b)
{
	struct ckpt_err e = { 0 };

	if (b->err) {
		(void)err_sys(&e, b->err, "print");
		return cmd_fail(&e);
	}
	if (b->len)
		cmd_write(b->data, b->len);
	b->len = 0;
	return 0;
}

void cmd_add_number(struct buf *b, bool known, double v)
{
	if (known)
		buf_printf(b, " %12.6g", v);
	else
		buf_printf(b, " %12s", "-");
}

void cmd_add_csv_number(struct buf *b, bool known, double v)
{
	buf_str(b, ",");
	if (known)
		buf_printf(b, "%.17g", v);
}
