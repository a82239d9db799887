/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log - messages of a running mount: written to stderr or, once detached, sent to a process that
 * logs them. A message may quote a checkpoint: bytes that are unfit for a terminal become %XX.
 *
 * core/ returns errors and logs nothing above LOG_LEVEL_DEBUG; fs/ logs each failure once. Threads:
 * any; log_use_* and log_packet one at a time.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level); /* default LOG_LEVEL_WARN */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, for a message about the thing with this number, which is not 0. */
void log_msg_of(enum log_level level, uint64_t id, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

enum { LOG_PACKET_MAX = 1024 };
/* From now on, sends the level and text of each message to fd in one write(2), `instead` of writing
 * it to stderr or in addition. A message that cannot be written is lost. */
void log_use_packets(int fd, bool instead);

/*
 * Also passes each message to `keep`, with the id it was logged with; NULL ends this. `keep` must
 * not log. text == NULL means that the message of that id has occurred again and is not logged for
 * now.
 */
typedef void log_keep_fn(void *arg, enum log_level level, uint64_t id, const char *text);
void log_keep(log_keep_fn *keep, void *arg);
void log_again(uint64_t id);

/* For the receiving process: log to syslog under this name, which must stay valid. */
void log_use_syslog(const char *ident);
void log_packet(const char *packet, size_t n); /* at most LOG_PACKET_MAX */

#endif
