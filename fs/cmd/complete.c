/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/complete.h"

#include "cmd/cmd.h"
#include "cmd/confine.h"
#include "cmd/options.h"
#include "mount/mounts.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum {
	MAX_OFFERED = 2000,
	/* Limit for the whole run: building a missing index may take too long. */
	CPU_SECONDS = 3,
	SECONDS = 20,
};

struct line {
	char *const *words; /* after the program's name */
	size_t n;	    /* the last is `word` */
	const char *word;
	const struct command *command;
	size_t offered;
};

/* Offers a whole word: front (the part already typed), name, end. */
static void offer(struct line *l, const char *front, size_t front_len, const char *name, size_t len,
		  const char *end)
{
	const char *start = l->word + front_len;

	if (l->offered >= MAX_OFFERED || strlen(l->word) < front_len || len < strlen(start) ||
	    memcmp(name, start, strlen(start)) != 0)
		return;
	for (const char *s = name; s < name + len; (void)text_next(&s, name + len))
		if (text_unfit(s, name + len))
			return;
	(void)printf("%.*s%.*s%s\n", (int)front_len, front, (int)len, name, end);
	l->offered++;
}

static void offer_word(struct line *l, size_t front_len, const char *name, const char *end)
{
	offer(l, l->word, front_len, name, strlen(name), end);
}

/* Asks the shell for its own files; the first front_len bytes of the word are not part of the
 * path. */
static void ask(const char *what, const struct line *l, size_t front_len)
{
	(void)printf(":%s %.*s\n", what, (int)front_len, l->word);
}

/* ---- options ---- */

static void offer_recipes(struct line *l, size_t front_len)
{
	const char *name, *summary, *text;

	for (size_t i = 0; (name = ckpt_recipe(i, &summary, &text)); i++)
		offer_word(l, front_len, name, "");
}

/* The word's value begins at front_len. */
static void offer_value(struct line *l, const struct option_word *w, size_t front_len)
{
	const char *of = w->value;

	if (!strcmp(of, "FILE") || !strcmp(of, "PATH") || !strcmp(w->name, "recipe"))
		ask("files", l, front_len);
	else if (!strcmp(of, "DIR") || !strncmp(of, "DIR[", 4))
		ask("dirs", l, front_len);
	if (!strcmp(w->name, "recipe"))
		offer_recipes(l, front_len);
	if (!strcmp(w->name, "index"))
		offer_word(l, front_len, ":memory:", "");
	for (const char *at = of; strchr(of, '|') && *at; at += strspn(at, "|")) {
		size_t len = strcspn(at, "|");

		offer(l, l->word, front_len, at, len, "");
		at += len;
	}
}

/* Compares like options_parse: a dash equals an underscore. */
static bool find_option(const struct line *l, const char *s, size_t len, struct option_word *ret)
{
	for (size_t i = 0; options_word(l->command->words | WORDS_ANY, i, ret); i++) {
		size_t k = 0;

		while (k < len && ret->name[k] == (s[k] == '-' ? '_' : s[k]))
			k++;
		if (k == len && !ret->name[len])
			return true;
	}
	return false;
}

/* Offers option names, or the value of one, after front_len bytes: "--" or, in the list of -o, the
 * preceding words. */
static void offer_options(struct line *l, size_t front_len, bool list)
{
	const char *start = l->word + front_len;
	size_t len = strcspn(start, "=");
	/* Shells drop what does not begin like the word. */
	char between = start[strcspn(start, "-_")], name[OPTIONS_NAME_MAX + 1];
	struct option_word w;

	if (!between)
		between = list ? '_' : '-';
	if (start[len]) {
		if (find_option(l, start, len, &w) && w.value && (!list || w.in_list))
			offer_value(l, &w, front_len + len + 1);
		return;
	}
	for (size_t i = 0; options_word(l->command->words | WORDS_ANY, i, &w); i++)
		if (!list || w.in_list)
			offer_word(l, front_len, options_spell(w.name, between, name),
				   w.value && !w.may_omit ? "=" : "");
}

static void offer_list(struct line *l)
{
	const char *comma = NULL;

	for (const char *s = l->word; *s; s++) {
		if (*s == '\\' && s[1])
			s++;
		else if (*s == ',')
			comma = s;
	}
	offer_options(l, comma ? (size_t)(comma + 1 - l->word) : 0, true);
}

/* ---- arguments ---- */

static void be_silent(void *arg, const char *what)
{
	(void)arg;
	(void)what;
}

/* Shells pass "~/..." on as it was typed. */
static char *expand_home(const char *path)
{
	const char *home = getenv("HOME");

	if (strncmp(path, "~/", 2) != 0 || !home)
		return strdup(path);
	return text_format("%s%s", home, path + 1);
}

static struct ckpt *open_quietly(const char *path, bool runs)
{
	const char *const words[] = { "allow_missing", runs ? "runs" : NULL, NULL };
	const struct ckpt_hooks hooks = { .warn = be_silent };
	autofree char *expanded = expand_home(path);
	struct ckpt_err ignored;
	struct ckpt *c;

	return !expanded || ckpt_open(expanded, words, &hooks, &c, &ignored) ? NULL : c;
}

static void offer_fqns(struct line *l, const char *path)
{
	struct ckpt *c CLEANUP(cmd_closep) = open_quietly(path, false);
	struct ckpt_totals n;

	if (!c)
		return;
	ckpt_totals(c, &n);
	for (uint64_t i = 0; i < n.tensors; i++) {
		struct ckpt_tensor t;

		ckpt_tensor(c, i, &t);
		offer(l, "", 0, t.fqn, t.fqn_len, "");
	}
	for (uint64_t i = 0; i < n.objects; i++) {
		struct ckpt_object o;

		ckpt_object(c, i, &o);
		offer(l, "", 0, o.fqn, o.fqn_len, "");
	}
}

static void offer_paths(struct line *l, const char *path)
{
	struct ckpt *c CLEANUP(cmd_closep) = open_quietly(path, true);
	const char *slash = strrchr(l->word, '/');
	size_t front_len = slash ? (size_t)(slash + 1 - l->word) : 0;
	autofree char *dir = strndup(l->word, front_len);
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_err ignored;
	ckpt_node parent, node;
	uint64_t at = 0;

	if (!c || !dir || ckpt_walk(c, dir, &parent, &ignored) || ckpt_enter(c, parent, &ignored))
		return;
	while (!ckpt_next(c, parent, &at, name, &node)) {
		struct ckpt_stat st = { 0 };

		if (*name == '.' && l->word[front_len] != '.')
			continue;
		(void)ckpt_type(c, node, &st, &ignored);
		offer_word(l, front_len, name, st.is_dir || st.is_link ? "/" : "");
	}
}

static void offer_mounts(struct line *l)
{
	FILE *f = fopen("/proc/self/mounts", "re");
	autofree char *text = NULL;
	size_t cap = 0;

	while (f && getline(&text, &cap, f) > 0) {
		char *save = NULL, *path;

		(void)strtok_r(text, " ", &save);
		path = strtok_r(NULL, " ", &save);
		if (!path || strncmp(save, MOUNTS_TYPE " ", strlen(MOUNTS_TYPE " ")) != 0)
			continue;
		mounts_decode(path);
		offer_word(l, 0, path, "");
	}
	if (f)
		(void)fclose(f);
}

static int offer_entry(void *arg, const struct ckpt_run_entry *x)
{
	offer_word(arg, 0, x->name, "");
	if (x->latest)
		offer_word(arg, 0, "latest", "");
	return 0;
}

/* The checkpoints of a run; false if the path is not one. */
static bool offer_checkpoints(struct line *l, const char *path)
{
	struct ckpt *c CLEANUP(cmd_closep) = open_quietly(path, true);
	struct ckpt_err ignored;

	if (!c || !ckpt_is_run(c))
		return false;
	(void)ckpt_run_each(c, offer_entry, l, &ignored);
	return true;
}

/* The path of the checkpoint that "RUN NAME" stands for (cmd_join_runs), or NULL. */
static char *join_run(const char *run, const char *name)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	char *path = NULL;
	struct stat st;

	path = text_format("%s/%s", run, name);
	if (!path)
		return NULL;
	autofree char *expanded = expand_home(path);
	if (*name && !strchr(name, '/') && expanded &&
	    (!strcmp(name, "latest") || (!stat(expanded, &st) && S_ISDIR(st.st_mode))))
		c = open_quietly(run, true);
	if (c && ckpt_is_run(c))
		return path;
	free(path);
	return NULL;
}

/* Finds words that are neither options nor their values: the first two, and how many come before
 * the last word. */
static size_t count_arguments(const struct line *l, const char *ret_args[2], bool *ret_fqn)
{
	size_t n = 0;
	bool ended = false;

	ret_args[0] = ret_args[1] = NULL;
	for (size_t i = 1; i + 1 < l->n; i++) {
		const char *s = l->words[i];
		struct option_word w;

		if (!ended && s[0] == '-' && s[1]) {
			ended = !strcmp(s, "--");
			*ret_fqn |= !strcmp(s, "--fqn");
			if (!strcmp(s, "-o") ||
			    (s[1] == '-' && !strchr(s, '=') &&
			     find_option(l, s + 2, strlen(s + 2), &w) && w.value && !w.may_omit))
				i++;
			continue;
		}
		if (n < 2)
			ret_args[n] = s;
		n++;
	}
	return n;
}

static void offer_argument(struct line *l)
{
	const char *args[2], *first, *kinds = l->command->complete;
	autofree char *joined = NULL;
	bool fqn = false;
	size_t n = count_arguments(l, args, &fqn);
	char kind;

	if (l->command->checkpoints && n >= 2)
		joined = join_run(args[0], args[1]);
	if (joined)
		n--;
	first = joined ? joined : args[0];
	kind = kinds[min_u64(n, strlen(kinds) - 1)];
	/* A path in the tree of a run begins with the name of a checkpoint, too. */
	if (n == 1 && l->command->checkpoints > (joined ? 1 : 0) && kind != 'p' &&
	    offer_checkpoints(l, args[0]) && l->command->checkpoints == 1)
		return;
	if (n >= l->command->max_args)
		return;
	if (kind == 'f')
		ask("files", l, 0);
	else if (kind == 'd')
		ask("dirs", l, 0);
	else if (kind == 'm')
		offer_mounts(l);
	else if (kind == 'n' || fqn)
		offer_fqns(l, first);
	else
		offer_paths(l, first);
}

/* ---- the whole ---- */

static void offer_commands(struct line *l)
{
	const struct command *c;

	for (size_t i = 0; (c = command_at(i)); i++)
		offer_word(l, 0, c->name, "");
}

static void offer_help(struct line *l)
{
	if (l->n == 2) {
		offer_commands(l);
		offer_word(l, 0, "recipes", "");
	} else if (l->n == 3 && !strcmp(l->words[1], "recipes")) {
		offer_recipes(l, 0);
	}
}

static void offer_of_command(struct line *l)
{
	const char *before = l->words[l->n - 2];
	char name[OPTIONS_NAME_MAX + 1];
	struct option_word w;

	if (l->n > 2 && !strcmp(before, "-o") && l->command->words & WORDS_OPEN)
		offer_list(l);
	else if (l->n > 2 && !strncmp(before, "--", 2) &&
		 find_option(l, before + 2, strlen(before + 2), &w) && w.value && !w.may_omit)
		offer_value(l, &w, 0);
	else if (!strncmp(l->word, "--", 2))
		offer_options(l, 2, false);
	else if (!strcmp(l->word, "-"))
		for (size_t i = 0; options_word(l->command->words | WORDS_ANY, i, &w); i++)
			(void)printf("--%s%s\n", options_spell(w.name, '-', name),
				     w.value && !w.may_omit ? "=" : "");
	else
		offer_argument(l);
}

/* Whoever presses a key may not have meant to open anything. */
static void give_up_rights(int argc, char *const *argv)
{
	const struct options o = { .args = (const char **)(uintptr_t)argv, .n_args = (size_t)argc };
	struct command c = command_ls;
	struct ckpt_err ignored;

	c.checkpoints = o.n_args; /* any of them may be */
	(void)confine_command(&c, &o, &ignored);
}

int complete_main(int argc, char *const *argv, bool once)
{
	struct line l = { .words = argv, .n = (size_t)argc };
	const struct itimerval cpu = { .it_value.tv_sec = CPU_SECONDS };

	(void)setitimer(ITIMER_PROF, &cpu, NULL);
	(void)alarm(SECONDS);
	if (argc < 1)
		return STATUS_DONE;
	if (once)
		give_up_rights(argc, argv);
	l.word = argv[argc - 1];
	if (argc == 1) {
		offer_commands(&l);
		offer_word(&l, 0, "help", "");
		offer_word(&l, 0, "--help", "");
		offer_word(&l, 0, "--version", "");
		return cmd_finish(STATUS_DONE);
	}
	for (size_t i = 0; command_at(i); i++)
		if (!strcmp(command_at(i)->name, argv[0]))
			l.command = command_at(i);
	if (l.command)
		offer_of_command(&l);
	else if (!strcmp(argv[0], "help"))
		offer_help(&l);
	return cmd_finish(STATUS_DONE);
}
