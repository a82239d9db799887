/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/interrupt.h"

#include "base/checked.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const char *last_word;

/* The state on disk always suffices to resume, so it only remains to tell the user. */
static void on_signal(int number)
{
	static const char clear[] = "\r\033[K";
	int saved = errno;

	if (isatty(STDERR_FILENO)) /* end the bar's line */
		(void)!write(STDERR_FILENO, clear, strlen(clear));
	(void)!write(STDERR_FILENO, last_word, strlen(last_word));
	(void)raise(number); /* SA_RESETHAND: the program ends when we return */
	errno = saved;
}

void interrupt_say(const char *line)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction old, catch = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };

	last_word = line;
	(void)sigemptyset(&catch.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		if (!sigaction(numbers[i], NULL, &old) && old.sa_handler == SIG_DFL)
			(void)sigaction(numbers[i], &catch, NULL);
}
