/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logger - passes messages of a daemon to syslog, and to the file of -o log, through a separate
 * process, ckptfs-log.
 *
 * A daemon in its sandbox has no sockets, and could not reconnect after a restart of syslogd. So a
 * child is started first; it receives each message as one packet, logs it under the daemon's
 * process number, and ends when the daemon does. The daemon never waits for it: messages that it
 * cannot accept, for example because syslogd has stopped or the disk of the file hangs, are lost.
 *
 * Threads: see child.h.
 */
#ifndef FS_MOUNT_LOGGER_H
#define FS_MOUNT_LOGGER_H

#include <stdbool.h>

struct ckpt_err;

/*
 * Opens the file that messages are appended to: a regular file of this user with a single name, or
 * a new one with mode 0600. A symbolic link is refused: another user of its directory could have
 * put it there.
 */
int logger_open(const char *path, int *ret, struct ckpt_err *e);
/* From now on log_msg writes to this process, which logs to syslog, with the mount's name, instead
 * of stderr, and to the file; NULL, -1: none. */
int logger_start(const char *mount, int file, struct ckpt_err *e);

#endif
