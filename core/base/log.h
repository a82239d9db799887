/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log - messages of a running mount: to stderr, or, once detached, to a process that logs them.
 *
 * core/ returns errors and logs nothing above LOG_LEVEL_DEBUG; fs/ logs each failure once. Threads:
 * any; log_use_* and log_packet one at a time.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level); /* default LOG_LEVEL_WARN */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

enum { LOG_PACKET_MAX = 1024 };
/* From now on, send each message, its level and text, in one write(2) to fd. One that cannot be
 * written is lost. */
void log_use_packets(int fd);
/* For the receiving process: log to syslog under this name, which must stay valid. */
void log_use_syslog(const char *ident);
void log_packet(const char *packet, size_t n); /* at most LOG_PACKET_MAX */

#endif
