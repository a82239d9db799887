/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/helper.h"

#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/cleanup.h"
#include "base/err.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct call {
	const char *namespace;
	bool sloppy, fake;
	struct options *o;
};

static int enter_namespace(const char *where, struct ckpt_err *e)
{
	char path[64];
	autoclose int fd = -1;

	if (where[strspn(where, "0123456789")] == 0) {
		(void)snprintf(path, sizeof(path), "/proc/%.20s/ns/mnt", where);
		where = path;
	}
	fd = open(where, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNS))
		return err_sys(e, errno, "enter mount namespace '%s'", where);
	return 0;
}

/* Options come after the two names, but a later -s already holds for an earlier -o. */
static int read_letters(struct call *c, int argc, char *const *argv, struct ckpt_err *e)
{
	static const char letters[] = "+sfnvN:t:o:";
	int opt;

	opterr = 0;
	optind = 0; /* start over */
	while ((opt = getopt(argc, argv, letters)) != -1) {
		if (opt == '?')
			return err_set(e, EINVAL, "unknown option '-%c' or nothing after it",
				       optopt);
		c->sloppy |= opt == 's';
		c->fake |= opt == 'f';
		c->o->verbose |= opt == 'v';
		if (opt == 'N')
			c->namespace = optarg;
	}
	if (optind < argc)
		return err_set(e, EINVAL, "unexpected argument '%s'", argv[optind]);
	optind = 0;
	while ((opt = getopt(argc, argv, letters)) != -1)
		if (opt == 'o' && options_parse_list(c->o, WORDS_OPEN | WORDS_MOUNT,
						     c->sloppy ? OPTIONS_SLOPPY : 0, optarg, e))
			return -e->code;
	return 0;
}

int helper_main(int argc, char *const *argv)
{
	static const char usage[] = "usage: mount.ckptfs CKPT DIR [-sfnv] [-N namespace] "
				    "[-t type] [-o options]";
	struct options o CLEANUP(options_release) = { .helper = true };
	struct call c = { .o = &o };
	struct ckpt_err e = { 0 };

	if (argc == 1 && (!strcmp(argv[0], "-h") || !strcmp(argv[0], "--help"))) {
		(void)puts(usage);
		return cmd_finish(STATUS_DONE);
	}
	if (argc < 2 || argv[0][0] == '-' || argv[1][0] == '-') {
		(void)err_set(&e, EINVAL, "%s", usage);
		return cmd_fail(&e);
	}
	/* getopt skips argv[0], which is the directory here. */
	if (read_letters(&c, argc - 1, argv + 1, &e))
		return cmd_fail(&e);
	if (c.fake) { /* what does not exist cannot be mounted */
		autofree char *path = NULL;

		return ckpt_address(argv[0], &path, &e) ? cmd_fail(&e) : STATUS_DONE;
	}
	if (c.namespace && enter_namespace(c.namespace, &e))
		return cmd_fail(&e);
	if (options_add_arg(&o, argv[0], &e) || options_add_arg(&o, argv[1], &e))
		return cmd_fail(&e);
	return command_mount.run(&o);
}
