/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logger - passes messages of a daemon to syslog through a separate process, ckptfs-log.
 *
 * A daemon in its sandbox has no sockets, and could not reconnect after a restart of syslogd. So a
 * child is started first; it receives each message as one packet, logs it under the daemon's
 * process number, and ends when the daemon does. The daemon never waits for it: messages that it
 * cannot accept, for example because syslogd has stopped, are lost.
 *
 * Threads: as child.h.
 */
#ifndef FS_MOUNT_LOGGER_H
#define FS_MOUNT_LOGGER_H

struct ckpt_err;

/* From now on log_msg writes to this process. */
int logger_start(struct ckpt_err *e);

#endif
