/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quick_python - runs Python like `python3 -S -E`, but in a fork of a process that has already
 * started.
 *
 *	quick_python (-c CODE | - | FILE) [ARGUMENT...]
 *	quick_python --context
 *
 * The suites on mounts start Python a thousand times, and an interpreter needs 30 ms for its
 * modules. PYTHON_SERVER names the socket of python_server.py, which gets the arguments, the
 * environment, the working directory and all open files. quick_python ends with the exit status, or
 * the signal, that ended Python; when quick_python is killed, so is Python.
 *
 * The fork has the rights and the limits of the server. If those of quick_python are different, it
 * becomes an interpreter itself, $PYTHON, and it does so without a server, too. `--context` prints
 * them where the server is started; PYTHON_CONTEXT has what it printed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_FILES = 64 };

struct text {
	char *at;
	size_t len;
};

static void add(struct text *t, const void *bytes, size_t len)
{
	t->at = realloc(t->at, t->len + len + 1);
	if (!t->at)
		abort();
	memcpy(t->at + t->len, bytes, len);
	t->len += len;
	t->at[t->len] = 0;
}

__attribute__((format(printf, 2, 3))) static void addf(struct text *t, const char *format, ...)
{
	char line[512];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	add(t, line, strlen(line));
}

static void add_file(struct text *t, const char *path, const char *const *lines)
{
	char line[512];
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		for (size_t i = 0; lines[i]; i++)
			if (!strncmp(line, lines[i], strlen(lines[i])))
				addf(t, "%s ", line);
	}
	if (f)
		(void)fclose(f);
}

/* What a process inherits from its parent, apart from what is sent. */
static char *context(void)
{
	static const char *const spaces[] = { "mnt", "user", "pid", "net", "ipc", "uts", "cgroup" };
	struct text t = { 0 };
	mode_t mask = umask(0);

	(void)umask(mask);
	addf(&t, "umask %o ", (unsigned)mask);
	for (int i = 0; i < (int)RLIMIT_NLIMITS; i++) {
		struct rlimit r = { 0 };

		(void)getrlimit((__rlimit_resource_t)i, &r);
		addf(&t, "%jx/%jx ", (uintmax_t)r.rlim_cur, (uintmax_t)r.rlim_max);
	}
	for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
		char path[64];
		struct stat st = { 0 };

		(void)snprintf(path, sizeof(path), "/proc/self/ns/%s", spaces[i]);
		(void)stat(path, &st);
		addf(&t, "%s %ju ", spaces[i], (uintmax_t)st.st_ino);
	}
	add_file(&t, "/proc/self/status",
		 (const char *const[]){ "Uid:", "Gid:", "Groups:", "SigBlk:", "SigIgn:", "Cap",
					"NoNewPrivs:", "Seccomp:", NULL });
	add_file(&t, "/proc/self/cgroup", (const char *const[]){ "", NULL });
	return t.at;
}

/* Open files, without that of the directory that lists them. */
static int open_files(int *fds)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	if (!d)
		return -1;
	for (const struct dirent *e; (e = readdir(d));) {
		int fd = e->d_name[0] == '.' ? dirfd(d) : atoi(e->d_name);

		if (fd != dirfd(d) && n < MOST_FILES)
			fds[n++] = fd;
	}
	(void)closedir(d);
	return n < MOST_FILES ? n : -1;
}

static int ask(char **words)
{
	const char *path = getenv("PYTHON_SERVER"), *wanted = getenv("PYTHON_CONTEXT");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fds[MOST_FILES + 1], n, cwd, s;
	union {
		char bytes[CMSG_SPACE(sizeof(fds))];
		struct cmsghdr align;
	} control = { 0 };
	struct text t = { 0 };
	struct iovec data;
	struct msghdr m = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes };
	struct cmsghdr *c = &control.align;
	uint32_t head[3] = { 0 };

	if (!path || !*path || strlen(path) >= sizeof(to.sun_path) || !wanted ||
	    strcmp(wanted, context()))
		return -1;
	n = open_files(fds);
	memcpy(to.sun_path, path, strlen(path));
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (n < 0 || s < 0 || cwd < 0 || connect(s, (const struct sockaddr *)&to, sizeof(to)))
		return -1;
	/* length of what follows, number of words, number of files; the files' numbers; words;
	 * environment */
	add(&t, head, sizeof(head));
	add(&t, fds, (size_t)n * sizeof(*fds));
	for (; *words; words++, head[1]++)
		add(&t, *words, strlen(*words) + 1);
	for (char **e = environ; *e; e++)
		add(&t, *e, strlen(*e) + 1);
	head[0] = (uint32_t)(t.len - sizeof(head));
	head[2] = (uint32_t)n;
	memcpy(t.at, head, sizeof(head));
	fds[n] = cwd;
	data = (struct iovec){ t.at, t.len };
	m.msg_controllen = CMSG_SPACE((size_t)(n + 1) * sizeof(*fds));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN((size_t)(n + 1) * sizeof(*fds));
	memcpy(CMSG_DATA(c), fds, (size_t)(n + 1) * sizeof(*fds));
	while (data.iov_len) {
		ssize_t sent = sendmsg(s, &m, MSG_NOSIGNAL);

		if (sent < 0)
			return -1;
		data = (struct iovec){ (char *)data.iov_base + sent, data.iov_len - (size_t)sent };
		m.msg_control = NULL;
		m.msg_controllen = 0;
	}
	for (int i = 0; i < n; i++) /* otherwise an end of a pipe would stay open here */
		if (fds[i] != 2)
			(void)close(fds[i]);
	return s;
}

int main(int argc, char **argv)
{
	const char *python = getenv("PYTHON");
	int s, status;
	char **words;

	if (argc == 2 && !strcmp(argv[1], "--context"))
		return puts(context()) < 0;
	s = argc > 1 && (argv[1][0] != '-' || !argv[1][1] || !strcmp(argv[1], "-c")) ? ask(argv + 1)
										     : -1;
	if (s < 0) {
		words = calloc((size_t)argc + 3, sizeof(*words));
		if (!words || !python)
			abort();
		words[0] = argv[0];
		words[1] = strdup("-S");
		words[2] = strdup("-E");
		memcpy(words + 3, argv + 1, (size_t)argc * sizeof(*words)); /* with its NULL */
		(void)execv(python, words);
		perror(python);
		return 127;
	}
	if (recv(s, &status, sizeof(status), MSG_WAITALL) != sizeof(status)) {
		(void)fprintf(stderr, "quick_python: the server is gone\n");
		return 125;
	}
	if (WIFSIGNALED(status)) {
		(void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
		(void)signal(WTERMSIG(status), SIG_DFL);
		(void)raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
