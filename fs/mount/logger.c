/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/logger.h"

#include "mount/child.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static void pass_on(void *arg)
{
	char packet[LOG_PACKET_MAX], ident[32];
	ssize_t n;

	(void)arg;
	(void)snprintf(ident, sizeof(ident), "ckptfs[%d]", (int)getppid());
	log_use_syslog(ident);
	do {
		n = read(STDIN_FILENO, packet, sizeof(packet));
		if (n > 0)
			log_packet(packet, (size_t)n);
	} while (n > 0 || (n < 0 && errno == EINTR));
}

int logger_start(struct ckpt_err *e)
{
	autoclose int theirs = -1;
	int ends[2], rc;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return err_sys(e, errno, "socketpair");
	theirs = ends[1];
	rc = fcntl(ends[0], F_SETFL, O_NONBLOCK) ? err_sys(e, errno, "O_NONBLOCK") : 0;
	if (!rc)
		rc = child_start("ckptfs-log", theirs, pass_on, NULL, &pid, e);
	if (rc)
		(void)close(ends[0]);
	else
		log_use_packets(ends[0]);
	return rc;
}
