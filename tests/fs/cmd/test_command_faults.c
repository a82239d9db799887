/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of a command that can fail (allocations, opens, reads, writes, renames, threads) fails
 * once. The command must print what it prints otherwise, or a message about the failure, and leave
 * nothing in memory or open. What the library does in such cases is tested in
 * core/ckpt/test_faults.c.
 */
#include "base/checked.h"
#include "fault.h"
#include "fs/program_util.h"
#include "suites.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct job {
	const char *line;
	const char *made; /* removed before each time */
	bool shrugs;	  /* it copes and says nothing, or what it prints has times in it */
} jobs[] = {
	{ .line = "ls -l @plain -o rename=%/rules" },
	{ .line = "ls -h --sort=size --color=always @many_items nothing layer*" },
	{ .line = "ls --json @dtypes" },
	{ .line = "ls --tree @mp4_fsdp2_adamw" },
	{ .line = "ls --tree --depth=2 --sort=size @layouts" },
	{ .line = "ls -l %/run" },
	{ .line = "ls --json %/run step-1 t*", .shrugs = true },
	{ .line = "info @plain", .shrugs = true },
	{ .line = "info --json @plain", .shrugs = true },
	{ .line = "info %/run" },
	{ .line = "info @plain model.norm" },
	{ .line = "info @plain betas" },
	{ .line = "info --json @plain betas" },
	{ .line = "info --json @plain model.norm" },
	{ .line = "check @truncated_data" },
	{ .line = "check --json --data @hf_dtypes" },
	{ .line = "check --values --max-abs=2 %/run/step-1" },
	{ .line = "cat @plain npy/model.norm.npy" },
	{ .line = "cat --fqn @plain model.norm" },
	{ .line = "stat @dtypes" },
	{ .line = "stat --json --hist @plain" },
	{ .line = "stat --csv @hf_dtypes" },
	{ .line = "stat --by=layer --sort=norm --hist=8 --plot=always @plain" },
	{ .line = "stat --by=rank @layouts" },
	{ .line = "stat --resume=%/resume @plain" },
	{ .line = "stat --json %/run" },
	{ .line = "stat --csv --plot=never %/run" },
	{ .line = "head @plain model.tok.weight[1,:3]" },
	{ .line = "head --json @plain model.tok.weight" },
	{ .line = "sum @plain" },
	{ .line = "sum --xxh @plain model.*" },
	{ .line = "sum --check=%/sums @plain" },
	{ .line = "diff @plain %/sums" },
	{ .line = "diff @plain @plain" },
	{ .line = "diff --json %/run/step-1 %/run/step-2" },
	{ .line = "diff --values %/run/step-1 %/run/step-2" },
	{ .line = "diff --report=%/diff.html --quiet %/run/step-1 %/run/step-2" },
	{ .line = "index --print @plain", .shrugs = true },
	{ .line = "index --rebuild @plain", .shrugs = true },
	{ .line = "report --quiet --output=%/report.html @plain" },
	{ .line = "report --stat --output=- %/run/step-1", .shrugs = true },
	{ .line = "export @plain tensors/model.norm %/one", .made = "one" },
	{ .line = "export @plain npy %/all", .made = "all" },
	{ .line = "reshard @plain %/to --ranks=2 --quiet", .made = "to" },
	{ .line = "warm --quiet @plain", .shrugs = true },
	{ .line = "warm --quiet @mp4_fsdp2_adamw model.norm.weight", .shrugs = true },
	{ .line = "help recipes megatron" },
	{ .line = "help warm" },
	{ .line = "lls @plain" },
	{ .line = "__complete ls @plain mod", .shrugs = true },
	{ .line = "__complete cat @plain npy/model.l", .shrugs = true },
	{ .line = "__complete mount -o rec", .shrugs = true },
	{ .line = "stats %" },
	{ .line = "umount %/nothing" },
	{ .line = "mount -f @plain %/nothing -o ro,threads=3" },
	{ .line = "mount -f @plain %/rules" },
};

static int remove_it(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static void remove_made(const struct job *j)
{
	char path[4300];

	if (!j->made)
		return;
	(void)snprintf(path, sizeof(path), "%s/%s", program_dir(), j->made);
	(void)nftw(path, remove_it, 16, FTW_DEPTH | FTW_PHYS);
	(void)snprintf(path, sizeof(path), "%s/%s.partial", program_dir(), j->made);
	(void)nftw(path, remove_it, 16, FTW_DEPTH | FTW_PHYS);
	(void)snprintf(path, sizeof(path), "%s/%s.partial.state", program_dir(), j->made);
	(void)remove(path);
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	REQUIRE(d);
	while (readdir(d))
		n++;
	(void)closedir(d);
	return n;
}

static bool has_reason(const char *s)
{
	static const char *const reasons[] = {
		"annot allocate memory", "ut of memory",
		"nput/output error",	 "oo many open files",
		"o space left",		 "temporarily un",
		"disk I/O error",	 "o locks available",
		"was changed after", /* it cannot be looked at */
	};

	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (strstr(s, reasons[i]))
			return true;
	return false;
}

static bool our_lines(const char *s)
{
	for (; *s; s = strchr(s, '\n') + 1)
		if (strncmp(s, "ckptfs: ", 8) != 0 || !strchr(s, '\n'))
			return false;
	return true;
}

static void made_ready(void)
{
	struct ran r;

	program_setup();
	program_put("rules", "s/^model\\./m./\n");
	r = program_ran("sum @plain");
	REQUIRE(!r.status);
	program_put("sums", r.out);
	program_release(&r);
	program_model("run/step-1/model.safetensors", 1);
	program_model("run/step-2/model.safetensors", 2);
}

START_FEW_TEST(what_fails_is_said, ARRAY_LEN(jobs), ARRAY_LEN(jobs))
{
	const struct job *j = &jobs[_i];
	struct ran want;
	char **words;
	int n_words, open;

	made_ready();
	remove_made(j);
	want = program_ran(j->line); /* makes what is kept from now on */
	program_release(&want);
	remove_made(j);
	want = program_ran(j->line);
	REQUIRE(our_lines(want.err));
	open = descriptors();
	fault_sqlite();
	words = program_words(j->line, &n_words);
	FAULT_LOOP_SOME(FAULT_ANY, 1)
	{
		struct ran r;
		int64_t live;
		char at[300];

		(void)fault_off();
		remove_made(j);
		live = fault_live();
		r = program_failed_words(n_words, words, FAULT_ANY, fault_n);
		(void)snprintf(at, sizeof(at), "%s: call %llu, %s", j->line,
			       (unsigned long long)fault_n, fault_name());
		ck_assert_msg((r.status == want.status && !strcmp(r.out, want.out)) ||
				      (r.status == 2 && *r.err) || strstr(r.err, "warning: ") ||
				      has_reason(r.out) || j->shrugs,
			      "%s: %d: %.600s%.600s in place of %.600s", at, r.status, r.out, r.err,
			      want.out);
		ck_assert_msg(our_lines(r.err), "%s: %.600s", at, r.err);
		program_release(&r);
		ck_assert_msg(descriptors() == open, "%s: a descriptor is left", at);
		ck_assert_msg(fault_live() <= live, "%s: %lld bytes are left", at,
			      (long long)(fault_live() - live));
	}
	program_free_words(words);
	program_release(&want);
}
END_TEST

SUITE(command_faults, .seconds = 120)
