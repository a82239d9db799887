/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/depot_internal.h"

#include "base/cache_dir.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/io.h"
#include "base/text.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#define DEFAULT_MEMORY ((uint64_t)256 << 20)
/* What 16 readers that wait for WIRE_READ_MAX / 2 bytes each need at the same time. */
#define MIN_MEMORY   ((uint64_t)64 << 20)
#define DEFAULT_SIZE ((uint64_t)64 << 30)

/* ---- the directory ---- */

/* "on-" and what tells this machine from others. */
static void name_machine(char ret[static DIGEST_HEX + 3])
{
	autoclose int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
	struct digest digest = { 0 };
	struct utsname u;
	char id[64];
	int64_t n = fd < 0 ? 0 : io_pread_some(fd, id, sizeof(id), 0);

	if (!uname(&u))
		digest_add(&digest, u.nodename, strlen(u.nodename));
	digest_add(&digest, id, n > 0 ? (size_t)n : 0);
	memcpy(ret, "on-", 3);
	digest_hex(&digest, ret + 3);
}

/* What others could write to is not ours: they could put other bytes there. */
static int open_one(struct depot *d, struct ckpt_err *e)
{
	struct stat st;
	int rc = io_mkdirs(d->path);

	if (rc)
		return err_sys(e, -rc, "cache directory '%s'", d->path);
	d->dir = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->dir < 0 || fstat(d->dir, &st))
		return err_sys(e, errno, "cache directory '%s'", d->path);
	if (st.st_uid != geteuid())
		return err_set(e, EPERM, "cache directory '%s' belongs to another user", d->path);
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return err_set(e, EPERM,
			       "cache directory '%s' can be written to by others: use chmod 700",
			       d->path);
	if (faccessat(d->dir, ".", W_OK | X_OK, AT_EACCESS))
		return err_sys(e, errno, "cache directory '%s'", d->path);
	return 0;
}

static int open_dir(struct depot *d, struct ckpt_err *e)
{
	char machine[DIGEST_HEX + 3], *path;
	int rc = open_one(d, e);

	/* Where other machines see the directory, a word of a map may arrive before the bytes that
	 * it is about, if at all: mappings of a file are one thing on one machine only. */
	if (rc || !io_is_remote(d->dir))
		return rc;
	name_machine(machine);
	path = text_format("%s/%s", d->path, machine);
	if (!path)
		return err_nomem(e);
	(void)close(d->dir);
	d->dir = -1;
	free(d->path);
	d->path = path;
	return open_one(d, e);
}

static void read_boot(struct depot *d)
{
	autoclose int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	int64_t n = fd < 0 ? 0 : io_pread_some(fd, d->boot, sizeof(d->boot) - 1, 0);

	/* Not known: then no block of another process is trusted unchecked. */
	if (n <= 0)
		(void)snprintf(d->boot, sizeof(d->boot), "%llx.%lx",
			       (unsigned long long)clock_wall_ns(), (unsigned long)getpid());
}

static uint64_t default_size(const struct depot *d)
{
	struct statvfs st;

	if (fstatvfs(d->dir, &st))
		return DEFAULT_SIZE;
	return max_u64(min_u64((uint64_t)st.f_bavail * st.f_frsize / 10, DEFAULT_SIZE),
		       DISK_SEGMENT);
}

/* A new descriptor has the lowest free number, so that its number is a count of those in use. The
 * rest is for segments, which can be closed, for objects that are being opened, and for
 * connections. */
static int find_scarce(void)
{
	enum { ENOUGH = 256 };
	struct rlimit lim;
	uint64_t rest;

	if (getrlimit(RLIMIT_NOFILE, &lim))
		lim.rlim_cur = 1024;
	rest = max_u64(lim.rlim_cur / 4, min_u64(lim.rlim_cur / 2, ENOUGH));
	return (int)min_u64(lim.rlim_cur - rest, INT_MAX);
}

int depot_new(const struct depot_options *o, depot_drop_fn *drop, void *arg, struct depot **ret,
	      struct ckpt_err *e)
{
	bool given = o->dir && *o->dir, none = given && !strcmp(o->dir, "none");
	struct depot *d = calloc(1, sizeof(*d));

	if (!d)
		return err_nomem(e);
	d->dir = -1;
	d->drop = drop;
	d->arg = arg;
	d->memory = max_u64(o->memory ? o->memory : DEFAULT_MEMORY, MIN_MEMORY);
	d->written = UINT64_MAX;
	d->scarce = find_scarce();
	read_boot(d);
	if (!none) {
		d->path = given ? strdup(o->dir) : cache_dir("objects", &d->note);
		if (!d->path && given) {
			free(d);
			return err_nomem(e);
		}
		if (d->path && open_dir(d, &d->note)) {
			if (d->dir >= 0)
				(void)close(d->dir);
			d->dir = -1;
		}
	}
	d->size = o->size || d->dir < 0 ? o->size : default_size(d);
	*ret = d;
	return 0;
}

void depot_free(struct depot *d)
{
	if (!d)
		return;
	evict_end(d);
	if (d->dir >= 0)
		(void)close(d->dir);
	free(d->path);
	free(d);
}

const char *depot_note(const struct depot *d)
{
	return d->note.msg;
}

uint64_t depot_size(const struct depot *d)
{
	return d->dir < 0 ? 0 : d->size;
}

/* ---- objects ---- */

int depot_prepare(struct depot *d, const char *address, const char *path,
		  const struct place_seen *seen, struct object **ret, struct ckpt_err *e)
{
	struct object *o;
	int rc = -ENOTSUP;

	if (seen->size > WIRE_SIZE_MAX)
		return err_set(e, EFBIG, "'%s' has %llu bytes, more than can be read", path,
			       (unsigned long long)seen->size);
	o = calloc(1, sizeof(*o));
	if (!o)
		return err_nomem(e);
	o->depot = d;
	if (d->dir >= 0)
		rc = disk_room(d, address, path, seen, &o->room, &o->why);
	if (rc == -EMFILE || rc == -ENFILE)
		*e = o->why;
	else if (rc)
		rc = memory_room(d, seen->size, &o->room, e);
	if (!rc && o->room->map_fd >= d->scarce) {
		room_leave(o->room);
		rc = err_sys(e, EMFILE, "open '%s' in ckptfs-fetch", path);
	}
	if (rc) {
		free(o);
		return rc;
	}
	*ret = o;
	return 0;
}

void depot_adopt(struct object *o)
{
	struct depot *d = o->depot;

	if (o->why.code && !*d->note.msg)
		d->note = o->why;
	LIST_PUSH(&d->objects, o);
}

bool depot_spare(struct depot *d)
{
	return segments_close_idle(d);
}

int object_leave_disk(struct object *o, struct ckpt_err *e)
{
	struct store_room *r;

	if (o->room->in_memory)
		return 0;
	if (memory_room(o->depot, o->room->view.size, &r, e))
		return -e->code;
	room_leave(o->room);
	o->room = r;
	if (!*o->depot->note.msg)
		(void)err_set(&o->depot->note, ENOSPC,
			      "cache directory '%s' cannot be written to: going on in memory",
			      o->depot->path);
	return 0;
}

void object_close(struct object *o)
{
	if (!o)
		return;
	blocks_forget(o);
	LIST_REMOVE(&o->depot->objects, o);
	room_leave(o->room);
	free(o);
}

const struct map_view *object_view(const struct object *o)
{
	return &o->room->view;
}

int object_take_map(struct object *o)
{
	int fd = o->room->map_reader;

	o->room->map_reader = -1;
	return fd;
}

bool object_in_memory(const struct object *o)
{
	return o->room->in_memory;
}
