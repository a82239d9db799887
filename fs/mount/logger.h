/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logger - messages of a daemon reach syslog through a process of their own, ckptfs-log.
 *
 * A daemon in its sandbox has no sockets, and could not connect again after syslogd has been
 * restarted. So a child is started before; it gets each message as one packet, has it logged under
 * the daemon's number, and ends when the daemon does. The daemon never waits for it: what it cannot
 * take, because syslogd has stopped, say, is lost.
 *
 * Threads: as child.h.
 */
#ifndef FS_MOUNT_LOGGER_H
#define FS_MOUNT_LOGGER_H

struct ckpt_err;

/* From now on log_msg writes to it. */
int logger_start(struct ckpt_err *e);

#endif
