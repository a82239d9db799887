/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/cleanup.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>

static int index_run(const struct options *o)
{
	const struct cmd_how how = {
		CMD_WORDS("allow_missing", o->rebuild ? "rebuild_index" : NULL), NULL
	};
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct ckpt_totals t;
	struct ckpt_err e = { 0 };

	if (cmd_open(o->args[0], o, &how, &c, &e))
		return cmd_fail(&e);
	ckpt_totals(c, &t);
	if (o->print)
		(void)printf("%s\n", t.index);
	else
		(void)printf("%s: %s, %" PRIu64 " tensor%s, %" PRIu64 " chunk%s\n", t.index,
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
	.words = WORDS_STORE | WORDS_QUIET | WORDS_INDEX,
	.min_args = 1,
	.max_args = 1,
	.checkpoints = 1,
	.run = index_run,
};
