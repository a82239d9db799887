/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

static _Atomic int max_level = LOG_LEVEL_WARN;
static _Atomic int packets = -1;
static _Atomic bool silent; /* nothing goes to stderr */
static struct {
	_Atomic(log_keep_fn *) fn;
	void *arg;
} kept;

void log_set_level(enum log_level level)
{
	max_level = (int)level;
}

void log_use_packets(int fd, bool instead)
{
	packets = fd;
	silent = instead;
}

void log_keep(log_keep_fn *keep, void *arg)
{
	if (keep)
		kept.arg = arg;
	kept.fn = keep;
}

static void __attribute__((format(printf, 3, 0)))
log_list(enum log_level level, uint64_t id, const char *fmt, va_list ap)
{
	char text[LOG_PACKET_MAX], packet[LOG_PACKET_MAX];
	log_keep_fn *keep = kept.fn;

	if ((int)level > max_level || vsnprintf(text, sizeof(text), fmt, ap) < 0)
		return;
	packet[0] = (char)level;
	(void)text_show(text, strlen(text), packet + 1, sizeof(packet) - 1);
	if (keep)
		keep(kept.arg, level, id, packet + 1);
	if (!silent)
		(void)fprintf(stderr, "ckptfs: %s\n", packet + 1);
	if (packets >= 0 && write(packets, packet, 1 + strlen(packet + 1)) < 0)
		return;
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_list(level, 0, fmt, ap);
	va_end(ap);
}

void log_msg_of(enum log_level level, uint64_t id, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_list(level, id, fmt, ap);
	va_end(ap);
}

void log_again(uint64_t id)
{
	log_keep_fn *keep = kept.fn;

	if (keep)
		keep(kept.arg, LOG_LEVEL_ERROR, id, NULL);
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
