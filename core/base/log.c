/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <syslog.h>

static _Atomic int max_level = LOG_LEVEL_WARN;
static atomic_bool to_syslog;

void log_set_level(enum log_level level)
{
	max_level = (int)level;
}

void log_use_syslog(const char *ident)
{
	openlog(ident, LOG_PID, LOG_DAEMON);
	to_syslog = true;
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	static const int priority[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
	char line[1024];
	va_list ap;

	if ((int)level > max_level)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (to_syslog)
		syslog(priority[level], "%s", line);
	else
		(void)fprintf(stderr, "ckptfs: %s\n", line);
}
