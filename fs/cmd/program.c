/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/program.h"

#include "cmd/cmd.h"
#include "cmd/complete.h"
#include "cmd/confine.h"
#include "cmd/helper.h"
#include "cmd/options.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <fuse_lowlevel.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const struct command *const commands[] = {
	&command_mount,	  &command_umount, &command_ls,	    &command_info,
	&command_cat,	  &command_export, &command_check,  &command_diff,
	&command_reshard, &command_index,  &command_report, &command_stat,
	&command_head,	  &command_stats,  &command_sum,    &command_warm,
};

const struct command *command_at(size_t i)
{
	return i < ARRAY_LEN(commands) ? commands[i] : NULL;
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (!strcmp(commands[i]->name, name))
			return commands[i];
	return NULL;
}

static int bad_usage(struct ckpt_err *e, const char *about)
{
	(void)fprintf(stderr, "ckptfs: %s (try 'ckptfs help%s%s')\n", e->msg, about ? " " : "",
		      about ? about : "");
	return STATUS_TROUBLE;
}

static int print_version(void)
{
	(void)printf("ckptfs %s (libfuse %s)\n", CKPTFS_VERSION, fuse_pkgversion());
	return cmd_finish(STATUS_DONE);
}

static int print_overview(void)
{
	(void)printf("usage: ckptfs COMMAND [OPTIONS] ...\n\n"
		     "Shows every tensor of a sharded checkpoint as a read-only file.\n\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		const struct command *c = commands[i];
		char call[64];

		(void)snprintf(call, sizeof(call), "%s %s", c->name, c->usage);
		(void)printf("  %-28s %s\n", call, c->summary);
	}
	(void)printf("  %-28s %s\n\n", "help [COMMAND]",
		     "Print this text, or a command's options; 'help recipes' lists recipes");
	(void)printf("A CKPT is a directory or a file: a checkpoint of PyTorch DCP, Megatron, "
		     "HyperParallel,\n"
		     "DeepSpeed, FSDP, JAX (Orbax, T5X, Flax), safetensors, torch.save or GGUF; a "
		     "directory of\n"
		     "checkpoints; or an address of one of these: s3://, gs://, https://, hf://, "
		     "file://.\n"
		     "The manual is ckptfs(1).\n");
	return cmd_finish(STATUS_DONE);
}

static int print_help(const struct command *c)
{
	(void)printf("usage: ckptfs %s [OPTIONS] %s\n\n%s:\n\n%s\n", c->name, c->usage, c->summary,
		     c->examples);
	if (c->details)
		(void)printf("%s\n", c->details);
	options_help(stdout, c->words | WORDS_ANY);
	(void)printf("\nThe manual is ckptfs-%s(1).\n", c->name);
	return cmd_finish(STATUS_DONE);
}

/* Prints all recipes, or the text of one. */
static int print_recipes(const char *name)
{
	const char *recipe, *summary, *text;
	struct ckpt_err e = { 0 };

	if (!name)
		(void)printf(
			"What recipe= takes, besides a file; 'ckptfs help recipes NAME' prints "
			"one. Each has been tested\nwith transformers, which loads what the recipe "
			"makes of these models and computes the same as before.\n\n");
	for (size_t i = 0; (recipe = ckpt_recipe(i, &summary, &text)); i++) {
		if (!name)
			(void)printf("  %-22s  %s\n", recipe, summary);
		if (!name || strcmp(name, recipe) != 0)
			continue;
		if (*text)
			cmd_write(text, strlen(text));
		else
			(void)printf("%s is %s.\n", name, summary);
		return cmd_finish(STATUS_DONE);
	}
	if (!name)
		return cmd_finish(STATUS_DONE);
	(void)err_set(&e, EINVAL, "unknown recipe '%s'", name);
	return bad_usage(&e, "recipes");
}

static int unknown_word(const char *what, const char *word, const char *const *known, size_t n)
{
	struct ckpt_err e = { 0 };
	size_t at = ckpt_nearest(word, strlen(word), known, n);

	if (at < n)
		(void)err_set(&e, EINVAL, "unknown %s '%s': did you mean '%s'?", what, word,
			      known[at]);
	else
		(void)err_set(&e, EINVAL, "unknown %s '%s'", what, word);
	return bad_usage(&e, NULL);
}

static int unknown_command(const char *name)
{
	const char *names[ARRAY_LEN(commands) + 1];

	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		names[i] = commands[i]->name;
	names[ARRAY_LEN(commands)] = "help";
	return unknown_word("command", name, names, ARRAY_LEN(names));
}

static int unexpected(const char *word)
{
	struct ckpt_err e = { 0 };

	(void)err_set(&e, EINVAL, "unexpected argument '%s'", word);
	return bad_usage(&e, NULL);
}

static bool is_help(const char *word)
{
	return !strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h");
}

static bool is_version(const char *word)
{
	return !strcmp(word, "--version") || !strcmp(word, "-V");
}

static int run_help(int argc, char *const *argv)
{
	bool recipes = argc > 0 && !strcmp(argv[0], "recipes");
	const struct command *c;

	if (argc > 1 + recipes)
		return unexpected(argv[1 + recipes]);
	if (recipes)
		return print_recipes(argv[1]);
	if (!argc || is_help(argv[0]))
		return print_overview();
	c = find_command(argv[0]);
	if (c)
		return print_help(c);
	return argv[0][0] == '-' ? unexpected(argv[0]) : unknown_command(argv[0]);
}

static int run_command(const struct command *c, int argc, char *const *argv, bool once)
{
	struct options o CLEANUP(options_release) = { 0 };
	struct ckpt_err e = { 0 };

	if (options_parse(&o, c->words | WORDS_ANY, 0, argc, argv, &e))
		return bad_usage(&e, c->name);
	/* Alone, -h asks for help even if it has another meaning. */
	if (o.help || (argc == 1 && o.human))
		return print_help(c);
	if (once && c->words & WORDS_CONFINED && confine_command(c, &o, &e))
		return cmd_fail(&e);
	if (cmd_join_runs(c, &o, &e))
		return cmd_fail(&e);
	if (o.n_args < c->min_args)
		(void)err_set(&e, EINVAL, "%s: usage: ckptfs %s %s", c->name, c->name, c->usage);
	else if (o.n_args > c->max_args)
		(void)err_set(&e, EINVAL, "%s: unexpected argument '%s'%s", c->name,
			      o.args[c->max_args],
			      c->words & WORDS_NAMES && strpbrk(o.args[c->max_args], "*?[")
				      ? ": --include takes patterns"
				      : "");
	if (e.code)
		return bad_usage(&e, c->name);
	return c->run(&o);
}

/* mount.fuse3(8) runs "ckptfs CKPT MNT -o ..." for the type fuse.ckptfs. */
static bool is_checkpoint(const char *arg)
{
	struct stat st;

	return arg[0] != '-' && (strchr(arg, '/') || (!stat(arg, &st) && S_ISDIR(st.st_mode)));
}

int program_run(int argc, char *const *argv, bool once)
{
	static const char *const alone[] = { "--version", "--help" };
	const char *self = argc > 0 ? strrchr(argv[0], '/') : NULL;
	const struct command *c;
	struct ckpt_err e = { 0 };

	self = self ? self + 1 : argc > 0 ? argv[0] : "ckptfs";
	if (argc > 1 && is_version(argv[1]))
		return argc > 2 ? unexpected(argv[2]) : print_version();
	if (!strncmp(self, "mount.", strlen("mount.")))
		return helper_main(argc - 1, argv + 1);
	if (argc < 2) {
		(void)err_set(&e, EINVAL, "no command given");
		return bad_usage(&e, NULL);
	}
	if (is_help(argv[1]))
		return run_help(argc - 2, argv + 2);
	if (!strcmp(argv[1], "__complete")) /* for the shells */
		return complete_main(argc - 2, argv + 2, once);
	c = find_command(argv[1]);
	if (c)
		return run_command(c, argc - 2, argv + 2, once);
	if (is_checkpoint(argv[1]))
		return run_command(&command_mount, argc - 1, argv + 1, once);
	return argv[1][0] == '-' ? unknown_word("option", argv[1], alone, ARRAY_LEN(alone))
				 : unknown_command(argv[1]);
}
