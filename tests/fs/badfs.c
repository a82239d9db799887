/* SPDX-License-Identifier: Apache-2.0 */
/*
 * badfs - shows a directory, and makes reads of its files fail or hang on command.
 *
 *	badfs DIRECTORY ORDERS MOUNTPOINT [libfuse's options]
 *
 * While the file ORDERS/NAME.eio exists, reads of NAME fail with EIO, and listing the directory
 * while ORDERS/..eio does; while ORDERS/NAME.hang exists, they wait, and ORDERS/NAME.hangs is made
 * when one does. Both affect only what the kernel has not cached yet. While ORDERS/NAME.gone
 * exists, NAME is missing. Afterwards it has another inode number if nobody has it open: as with
 * sshfs, a number is valid only until the kernel forgets the file.
 */
#define FUSE_USE_VERSION 314

#include <fuse.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 4096 }; /* requests that may hang at once */

static int source, orders;

static void *bad_init(struct fuse_conn_info *conn, struct fuse_config *config)
{
	(void)config;
	conn->max_background = conn->congestion_threshold = MANY;
	return NULL;
}

/* "/" or "/name" as a path below `source`. */
static const char *below(const char *path)
{
	return path[1] ? path + 1 : ".";
}

static bool told(const char *path, const char *order)
{
	char name[512];

	(void)snprintf(name, sizeof(name), "%s.%s", below(path), order);
	return !faccessat(orders, name, F_OK, 0);
}

static void tell(const char *path, const char *what)
{
	char name[512];
	int fd;

	(void)snprintf(name, sizeof(name), "%s.%s", below(path), what);
	fd = openat(orders, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		(void)close(fd);
}

static int bad_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	if (told(path, "gone"))
		return -ENOENT;
	return fstatat(source, below(path), st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

static int bad_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t off,
		       struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
	DIR *d = fdopendir(openat(source, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	const struct dirent *e;

	(void)off;
	(void)fi;
	(void)flags;
	if (!d || told(path, "eio")) {
		if (d)
			(void)closedir(d);
		return -EIO;
	}
	while ((e = readdir(d)))
		(void)fill(buf, e->d_name, NULL, 0, 0);
	(void)closedir(d);
	return 0;
}

static int bad_open(const char *path, struct fuse_file_info *fi)
{
	int fd = openat(source, below(path), O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	fi->fh = (uint64_t)fd;
	return 0;
}

static int bad_read(const char *path, char *buf, size_t len, off_t off, struct fuse_file_info *fi)
{
	static const struct timespec moment = { .tv_nsec = 20 * 1000 * 1000 };
	ssize_t n;

	while (told(path, "hang")) {
		tell(path, "hangs");
		(void)nanosleep(&moment, NULL);
	}
	if (told(path, "eio"))
		return -EIO;
	n = pread((int)fi->fh, buf, len, off);
	return n < 0 ? -errno : (int)n;
}

static int bad_release(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	return close((int)fi->fh) ? -errno : 0;
}

static const struct fuse_operations operations = {
	.init = bad_init,
	.getattr = bad_getattr,
	.readdir = bad_readdir,
	.open = bad_open,
	.read = bad_read,
	.release = bad_release,
};

int main(int argc, char **argv)
{
	if (argc < 4) {
		(void)fprintf(stderr, "usage: badfs DIRECTORY ORDERS MOUNTPOINT [options]\n");
		return 2;
	}
	source = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	orders = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (source < 0 || orders < 0) {
		perror(argv[1]);
		return 2;
	}
	argv[2] = argv[0];
	return fuse_main(argc - 2, argv + 2, &operations, NULL);
}
