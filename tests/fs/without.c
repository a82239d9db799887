/* SPDX-License-Identifier: Apache-2.0 */
/*
 * without - run a program as if the kernel lacked some system calls.
 *
 *	without CALL[,CALL]... PROGRAM [ARGUMENT]...
 *
 * The calls fail with ENOSYS, in the program and in all that it starts. A call is a name, or
 * NUMBER+, which stands for this and all later ones. From 424 (Linux 5.1) on, numbers are the same
 * on all architectures and have been given out in turn: 441+ is what Linux 5.10 lacks. `seccomp`
 * includes prctl(PR_SET_SECCOMP), with EINVAL, as in a kernel that was built without it.
 */
#include <errno.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LAST_NUMBER = 600 };

static _Noreturn void die(const char *what)
{
	(void)fprintf(stderr, "without: %s\n", what);
	exit(125);
}

static void deny(scmp_filter_ctx f, int number)
{
	if (number < 0 || seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), number, 0))
		die("seccomp_rule_add");
}

static void deny_named(scmp_filter_ctx f, const char *name)
{
	char *end;
	long number = strtol(name, &end, 10);

	if (end != name && !strcmp(end, "+")) {
		while (number <= LAST_NUMBER)
			deny(f, (int)number++);
		return;
	}
	deny(f, seccomp_syscall_resolve_name(name));
	if (!strcmp(name, "seccomp") &&
	    seccomp_rule_add(f, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(prctl), 1,
			     SCMP_A0(SCMP_CMP_EQ, PR_SET_SECCOMP, 0)))
		die("seccomp_rule_add");
}

int main(int argc, char **argv)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
	char *at;

	if (argc < 3)
		die("usage: without CALL[,CALL]... PROGRAM [ARGUMENT]...");
	if (!f)
		die("seccomp_init");
	for (char *name = strtok_r(argv[1], ",", &at); name; name = strtok_r(NULL, ",", &at))
		deny_named(f, name);
	/* Root can load a filter and still run setuid programs, such as fusermount3. */
	(void)seccomp_attr_set(f, SCMP_FLTATR_CTL_NNP, geteuid() != 0);
	if (seccomp_load(f))
		die("seccomp_load");
	seccomp_release(f);
	(void)execvp(argv[2], argv + 2);
	die(argv[2]);
}
