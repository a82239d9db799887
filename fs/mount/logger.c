/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/logger.h"

#include "mount/child.h"
#include "mount/journal.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct way {
	const char *mount; /* to syslog, which many mounts may share; or NULL */
	bool to_file;
};

/* If a full disk has cut a line short, the next call ends that line first. */
static void add_line(int file, const char *text, size_t n, bool *cut)
{
	char line[JOURNAL_TIME_MAX + LOG_PACKET_MAX + 4], time[JOURNAL_TIME_MAX];
	int len;

	journal_time(time);
	len = snprintf(line, sizeof(line), "%s%s %.*s\n", *cut ? "\n" : "", time, (int)n, text);
	if (len > 0)
		*cut = write(file, line, (size_t)len) != len;
}

/* The daemon writes nothing that a terminal would act on, and no second line, as long as it is
 * itself. */
static size_t make_fit(char *packet, size_t n)
{
	char text[LOG_PACKET_MAX];

	(void)text_show(packet + 1, n - 1, text, sizeof(text));
	n = strlen(text);
	memcpy(packet + 1, text, n);
	return n + 1;
}

static void to_syslog(const char *mount, const char *packet, size_t n)
{
	char named[LOG_PACKET_MAX + 1], shown[256];
	int len;

	named[0] = packet[0];
	len = snprintf(named + 1, LOG_PACKET_MAX, "%s: %.*s",
		       text_show(mount, strlen(mount), shown, sizeof(shown)), (int)n - 1,
		       packet + 1);
	log_packet(named, 1 + (size_t)(len < LOG_PACKET_MAX ? len : LOG_PACKET_MAX - 1));
}

static void pass_on(void *arg)
{
	char packet[LOG_PACKET_MAX + 1], ident[32];
	const struct way *way = arg;
	bool cut = false;
	ssize_t n;

	(void)snprintf(ident, sizeof(ident), "ckptfs[%d]", (int)getppid());
	(void)signal(SIGXFSZ, SIG_IGN);
	if (way->mount)
		log_use_syslog(ident);
	do {
		n = read(STDIN_FILENO, packet, LOG_PACKET_MAX);
		if (n > 0)
			n = (ssize_t)make_fit(packet, (size_t)n);
		if (n > 0 && way->to_file)
			add_line(STDOUT_FILENO, packet + 1, (size_t)n - 1, &cut);
		if (n > 0 && way->mount)
			to_syslog(way->mount, packet, (size_t)n);
	} while (n > 0 || (n < 0 && errno == EINTR));
}

int logger_open(const char *path, int *ret, struct ckpt_err *e)
{
	autoclose int fd =
		open(path,
		     O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
		     0600);
	struct stat st;

	if (fd < 0 && errno == ELOOP)
		return err_set(e, ELOOP,
			       "option 'log': '%s' is a symbolic link: name the file itself", path);
	if (fd < 0 || fstat(fd, &st))
		return err_sys(e, errno, "option 'log': '%s'", path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, EINVAL, "option 'log': '%s' is not a regular file", path);
	if (st.st_uid != geteuid() || st.st_nlink != 1)
		return err_set(e, EPERM, "option 'log': '%s' %s: name a new file", path,
			       st.st_nlink != 1 ? "has several names" : "belongs to another user");
	/* Avoids the standard descriptors, which a daemon redirects. */
	*ret = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	return *ret < 0 ? err_sys(e, errno, "option 'log': '%s'", path) : 0;
}

int logger_start(const char *mount, int file, struct ckpt_err *e)
{
	struct way way = { mount, file >= 0 };
	autoclose int theirs = -1;
	int ends[2], rc;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return err_sys(e, errno, "socketpair");
	theirs = ends[1];
	rc = fcntl(ends[0], F_SETFL, O_NONBLOCK) ? err_sys(e, errno, "O_NONBLOCK") : 0;
	if (!rc)
		rc = child_start("ckptfs-log", theirs, file, pass_on, &way, &pid, e);
	if (rc)
		(void)close(ends[0]);
	else
		log_use_packets(ends[0], mount != NULL);
	return rc;
}
