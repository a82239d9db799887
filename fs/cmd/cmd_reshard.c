/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/progress.h"
#include "base/text.h"
#include <ckptfs/ckpt_reshard.h>

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const formats[] = {
	[CKPT_DCP] = "dcp",
	[CKPT_HYPERPARALLEL] = "hyperparallel",
	[CKPT_SAFETENSORS] = "safetensors",
	[CKPT_MEGATRON] = "megatron",
	[CKPT_ZARR] = "zarr",
};

/* Invalid words were refused when the options were parsed. */
static enum ckpt_format format_of(const struct options *o)
{
	size_t i = ARRAY_LEN(formats) - 1;

	while (i && (!o->format || strcmp(o->format, formats[i]) != 0))
		i--;
	return (enum ckpt_format)i;
}

/* Megatron-core's checkpoints are DCPs, but its reader does not ask for torch's extensions. */
static int only_dcp(const char *word, bool given, bool megatron_too, const struct ckpt_reshard *r,
		    struct ckpt_err *e)
{
	if (!given || r->format == CKPT_DCP || (megatron_too && r->format == CKPT_MEGATRON))
		return 0;
	return err_set(e, EINVAL, "option '%s' is for --format=dcp%s", word,
		       megatron_too ? " and megatron" : "");
}

/* Refuses options for opening that have no effect on what is written. */
static int check_open_options(const struct options *o, const struct ckpt_reshard *r,
			      struct ckpt_err *e)
{
	bool beside = r->model && r->format == CKPT_SAFETENSORS;

	if (options_get(o, "shard_size") && r->format != CKPT_SAFETENSORS && r->format != CKPT_ZARR)
		return err_set(e, EINVAL,
			       "option 'shard_size' is for --format=safetensors and --format=zarr");
	if (options_get(o, "experts") && !r->model)
		return err_set(e, EINVAL, "option 'experts' is for --model");
	if (options_get(o, "assets") && !beside && !options_get(o, "recipe"))
		return err_set(e, EINVAL,
			       "option 'assets' is for --model with --format=safetensors, and for "
			       "--recipe");
	return 0;
}

/* The options without the layout, which is not that of a tree; in an array that the caller
 * frees. */
static const char **open_words(const struct options *o, bool backwards)
{
	size_t n = 0, k = 0;
	const char **words;

	while (o->open && o->open[n])
		n++;
	words = calloc(n + 2, sizeof(*words));
	for (size_t i = 0; words && i < n; i++)
		if (strncmp(o->open[i], "layout=", strlen("layout=")) != 0)
			words[k++] = o->open[i];
	if (words && backwards)
		words[k] = "backwards";
	return words;
}

static int read_options(const struct options *o, struct ckpt_reshard *r,
			struct ckpt_save_opts *save, struct ckpt_err *e)
{
	const char *size = options_get(o, "shard_size");
	int rc;

	r->format = format_of(o);
	rc = only_dcp("zstd", o->zstd, false, r, e);
	if (!rc)
		rc = only_dcp("threads", o->threads, true, r, e);
	if (!rc)
		rc = only_dcp("file_per_item", o->file_per_item, true, r, e);
	if (rc)
		return rc;
	if (o->zstd > 22)
		return err_set(e, EINVAL, "option 'zstd': levels are 1 to 22");
	if (o->threads > 256)
		return cmd_too_many("threads", o->threads, 256, e);
	if (o->jobs > 256)
		return cmd_too_many("jobs", o->jobs, 256, e);
	r->ranks = o->ranks;
	r->layout = options_get(o, "layout");
	r->model = o->model || options_get(o, "weights") || options_get(o, "recipe");
	r->jobs = (unsigned)o->jobs;
	if (check_open_options(o, r, e))
		return -e->code;
	*save = (struct ckpt_save_opts){ .open = o->open,
					 .overwrite = o->overwrite,
					 .zstd = (int)o->zstd,
					 .file_per_item = o->file_per_item,
					 .threads = (unsigned)o->threads,
					 .save_to_lowest_rank = o->save_to_lowest_rank };
	if (size)
		(void)text_parse_size(size, &save->shard_size); /* already checked */
	return 0;
}

static void show_warning(void *arg, const char *what)
{
	progress_hide(arg);
	cmd_warn(what);
}

/* ---- being stopped ---- */

static atomic_int stop; /* the number of the signal */

static bool is_stopped(void *arg)
{
	(void)arg;
	return atomic_load(&stop);
}

static void on_signal(int number)
{
	atomic_store(&stop, number);
}

/* After the first signal, the program removes what it has written and ends; the next one kills
 * it. */
static void catch_signals(void)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction old,
		catch = { .sa_handler = on_signal, .sa_flags = SA_RESTART | SA_RESETHAND };

	(void)sigemptyset(&catch.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		if (!sigaction(numbers[i], NULL, &old) && old.sa_handler == SIG_DFL)
			(void)sigaction(numbers[i], &catch, NULL);
}

/* Ends the process as if the signal had not been caught. */
static void die_of(int number)
{
	(void)signal(number, SIG_DFL);
	(void)raise(number);
}

/* ---- the command ---- */

/* Can what was written be loaded as a model? It is what hf/ shows. */
static int show_verdict(void *arg, const struct ckpt_verdict *v)
{
	(void)arg;
	if (!strcmp(v->face, "hf"))
		(void)fprintf(stderr, "ckptfs: reshard: %s/: %s\n", v->face, v->text);
	return 0;
}

/* Only rank 0 shows the bar, the warnings and the final message. */
static int reshard(const struct options *o, struct ckpt_reshard *r, struct ckpt_err *e)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	/* Recipes lead from Megatron's tensors to a model. */
	autofree const char **words =
		open_words(o, r->format == CKPT_MEGATRON && options_get(o, "recipe") != NULL);
	struct options open = *o;
	bool speaks = !r->comm || !r->comm->rank;
	struct progress p;
	char size[16], shown[4096];
	int rc;

	if (!words)
		return err_sys(e, ENOMEM, "reshard");
	open.open = words;
	open.quiet = o->quiet || !speaks;
	rc = cmd_open(o->args[0], &open, &(struct cmd_how){ 0 }, &c, e);
	if (!rc && cmd_refuse_nothing(c, o, e))
		rc = err_wrap(e, "reshard");
	if (r->comm)
		rc = ckpt_comm_agree(r->comm, rc, e);
	if (rc)
		return rc;
	progress_start(&p, "reshard", 0, !open.quiet);
	if (speaks) {
		r->warn = show_warning;
		r->warn_arg = r->progress_arg = &p;
		r->progress = progress_report;
	}
	r->stop = is_stopped;
	catch_signals();
	rc = ckpt_reshard(c, o->args[1], r, e);
	progress_end(&p);
	if (!rc && !open.quiet && r->model && r->format == CKPT_SAFETENSORS && !r->layout)
		rc = ckpt_verdicts(c, true, show_verdict, NULL, e);
	if (rc)
		return err_wrap(e, "reshard");
	if (!open.quiet)
		(void)printf("%s: %ju tensor%s, %ju object%s, %s for %ju rank%s\n",
			     text_show(o->args[1], strlen(o->args[1]), shown, sizeof(shown)),
			     (uintmax_t)r->tensors, text_s(r->tensors), (uintmax_t)r->objects,
			     text_s(r->objects), text_size(r->bytes, size), (uintmax_t)r->ranks,
			     text_s(r->ranks));
	return 0;
}

static int run_reshard(const struct options *o)
{
	struct ckpt_save_opts save;
	struct ckpt_reshard r = { .save = &save };
	struct ckpt_comm comm;
	struct ckpt_err e = { 0 };
	int rc = read_options(o, &r, &save, &e), mpi;
	bool speaks;

	if (rc)
		return cmd_fail(&e);
	/* Otherwise each thread's heap keeps the buffers of what it has written. */
	(void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mpi = ckpt_comm_mpi_start(&comm, &e);
	if (mpi < 0)
		return cmd_fail(&e);
	if (!mpi)
		r.comm = &comm;
	speaks = mpi || !comm.rank;
	rc = reshard(o, &r, &e);
	if (r.comm)
		rc = ckpt_comm_mpi_end(&comm, rc, &e);
	if (rc && atomic_load(&stop))
		die_of(atomic_load(&stop));
	/* All ranks fail with the same sentence, and mpirun kills the others when one has failed:
	 * only rank 0 reports it. */
	if (rc && speaks)
		return cmd_fail(&e);
	return cmd_finish(STATUS_DONE);
}

const struct command command_reshard = {
	.name = "reshard",
	.usage = "SRC DST",
	.complete = "f",
	.summary = "Write a checkpoint again for other ranks or in another format",
	.examples = "  $ ckptfs reshard --ranks=8 run/step-1000 run/step-1000.8\n"
		    "  $ ckptfs reshard --model --format=safetensors run/step-1000 model -o "
		    "assets=hf-config\n",
	.details =
		"DST is written as DST.partial and renamed when all of it is on disk. Without "
		"--layout,\n"
		"tensors are cut along their first dimension. With --model, --weights or --recipe, "
		"only the\n"
		"model is written; as safetensors it comes with config.json and the tokenizer, "
		"from beside SRC\n"
		"or from --assets. Under mpirun, every process is a rank. DST may be an address:\n"
		"s3://BUCKET/KEY, gs://BUCKET/KEY.\n",
	.words = WORDS_TENSORS | WORDS_MODEL | WORDS_FILES | WORDS_MISSING | WORDS_CACHE |
		 WORDS_QUIET | WORDS_CONFINED | WORDS_RESHARD,
	.min_args = 2,
	.max_args = 2,
	.checkpoints = 1,
	.writes = true,
	.run = run_reshard,
};
