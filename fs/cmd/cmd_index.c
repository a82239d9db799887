/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool asked_for_memory(const struct options *o)
{
	for (const char **word = o->open; word && *word; word++)
		if (!strcmp(*word, "index=:memory:"))
			return true;
	return false;
}

static int index_run(const struct options *o)
{
	const struct cmd_how how = {
		CMD_WORDS("allow_missing", o->rebuild ? "rebuild_index" : NULL), NULL
	};
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct ckpt_totals t;
	char shown[4096];
	struct ckpt_err e = { 0 };

	if (cmd_open(o->args[0], o, &how, &c, &e))
		return cmd_fail(&e);
	ckpt_totals(c, &t);
	if (!strcmp(t.index, ":memory:") && !asked_for_memory(o)) {
		const char *why = ckpt_index_why(c);

		(void)err_set(&e, EACCES,
			      "index: it cannot be kept%s%s; name a file with --index=PATH",
			      why ? ": " : "", why ? why : "");
		return cmd_fail(&e);
	}
	if (o->print)
		(void)printf("%s\n", t.index);
	else
		(void)printf("%s: %s, %" PRIu64 " tensor%s, %" PRIu64 " chunk%s\n",
			     text_show(t.index, strlen(t.index), shown, sizeof(shown)),
			     t.index_built ? "built" : "up to date", t.tensors, text_s(t.tensors),
			     t.chunks, text_s(t.chunks));
	return cmd_finish(STATUS_DONE);
}

const struct command command_index = {
	.name = "index",
	.usage = "CKPT",
	.complete = "f",
	.summary = "Build or refresh the chunk index",
	.examples = "  $ ckptfs index run/step-1000\n"
		    "  $ ckptfs index --print run/step-1000\n",
	.words = WORDS_STORE | WORDS_QUIET | WORDS_CONFINED | WORDS_INDEX,
	.min_args = 1,
	.max_args = 1,
	.checkpoints = 1,
	.run = index_run,
};
