/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log - messages of a running mount: to stderr, or to syslog once detached.
 *
 * core/ returns errors and logs nothing above LOG_LEVEL_DEBUG; fs/ logs each failure once.
 * Threads: any.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level); /* default LOG_LEVEL_WARN */
void log_use_syslog(const char *ident);	  /* ident must live on */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
