/* SPDX-License-Identifier: Apache-2.0 */
#include "source/guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static struct sigaction before;
static __thread sigjmp_buf *volatile way_out;

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	if (way_out && info->si_code > 0) /* not from kill(2) */
		siglongjmp(*way_out, 1);
	if (before.sa_flags & SA_SIGINFO && before.sa_sigaction) {
		before.sa_sigaction(sig, info, context);
	} else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
		before.sa_handler(sig);
	} else { /* the instruction is retried, or the signal sent again, and kills */
		(void)signal(SIGBUS, SIG_DFL);
		if (info->si_code <= 0)
			(void)raise(SIGBUS);
	}
}

static void install(void)
{
	struct sigaction a = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	(void)sigemptyset(&a.sa_mask);
	(void)sigaction(SIGBUS, &a, &before);
}

void guard_install(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	(void)pthread_once(&once, install);
}

bool guard_run(void (*fn)(void *arg), void *arg)
{
	sigjmp_buf here;
	bool whole = false;

	if (!sigsetjmp(here, 1)) { /* with the mask, because the handler is left by a jump */
		way_out = &here;
		fn(arg);
		whole = true;
	}
	way_out = NULL;
	return whole;
}
