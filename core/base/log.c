/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <syslog.h>
#include <unistd.h>

static _Atomic int max_level = LOG_LEVEL_WARN;
static _Atomic int packets = -1;

void log_set_level(enum log_level level)
{
	max_level = (int)level;
}

void log_use_packets(int fd)
{
	packets = fd;
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	char packet[LOG_PACKET_MAX];
	va_list ap;
	int n;

	if ((int)level > max_level)
		return;
	packet[0] = (char)level;
	va_start(ap, fmt);
	n = vsnprintf(packet + 1, sizeof(packet) - 1, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	if (packets < 0)
		(void)fprintf(stderr, "ckptfs: %s\n", packet + 1);
	else if (write(packets, packet,
		       (size_t)n < sizeof(packet) - 1 ? (size_t)n + 1 : sizeof(packet) - 1) < 0)
		return;
}

void log_use_syslog(const char *ident)
{
	openlog(ident, 0, LOG_DAEMON);
}

void log_packet(const char *packet, size_t n)
{
	static const int priority[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
	unsigned level = (unsigned char)packet[0];

	if (n > 0 && level < sizeof(priority) / sizeof(*priority))
		syslog(priority[level], "%.*s", (int)n - 1, packet + 1);
}
