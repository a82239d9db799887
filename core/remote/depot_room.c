/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/depot_internal.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/io.h"
#include "base/json_out.h"
#include "base/text.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum {
	MEMORY_SEGMENT = 8 << 20,
	DISK_SEGMENTS = 64, /* of a large object at most: each is a descriptor in many processes */
	MEMORY_SEGMENTS = 1 << 16,
	LOCK_MS = 2000, /* for a lock that others hold for a moment, unless they are stopped */
};

#define LOCK_INIT (LOCK_USE + 1) /* while the map is made */

/* Bytes of a map that may always be had at once: that of an object of 4 GiB. */
#define SMALL_MAP ((uint64_t)1 << 20)

/* ---- locks ---- */

int map_lock(int fd, short type, off_t at, off_t n)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = n };
	int rc;

	do
		rc = fcntl(fd, F_OFD_SETLK, &l);
	while (rc && errno == EINTR);
	return !rc ? 0 : errno == EACCES ? -EAGAIN : -errno;
}

/* The same, but waits for another, which may be stopped: not for ever. */
static int wait_for_lock(int fd, short type, off_t at)
{
	const struct timespec pause = { .tv_nsec = 2 * CLOCK_MS };
	uint64_t until = clock_ns() + LOCK_MS * CLOCK_MS;
	int rc;

	while ((rc = map_lock(fd, type, at, 1)) == -EAGAIN && clock_ns() < until)
		(void)nanosleep(&pause, NULL);
	return rc;
}

/* ---- rooms ---- */

static struct segment *segments_new(uint64_t n)
{
	struct segment *v = calloc((size_t)n + 1, sizeof(*v));

	for (uint64_t i = 0; v && i < n; i++)
		v[i].fd = v[i].reader = -1;
	return v;
}

void segment_close(struct segment *s)
{
	if (s->fd >= 0)
		(void)close(s->fd);
	if (s->reader >= 0)
		(void)close(s->reader);
	s->fd = s->reader = -1;
	s->generation = 0;
	s->bytes = 0;
}

void room_leave(struct store_room *r)
{
	if (!r || --r->users)
		return;
	for (uint64_t i = 0; r->v && i < r->view.n_segments; i++)
		segment_close(&r->v[i]);
	if (r->map)
		(void)munmap(r->map, (size_t)r->view.bytes);
	if (r->map_fd >= 0)
		(void)close(r->map_fd);
	if (r->map_reader >= 0)
		(void)close(r->map_reader);
	if (r->dir >= 0)
		(void)close(r->dir);
	free(r->v);
	free(r);
}

CLEANUP_POINTER(room_leavep, struct store_room, room_leave)

static struct store_room *room_new(uint64_t size, uint64_t segment)
{
	struct store_room *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->users = 1;
	r->dir = r->map_fd = r->map_reader = -1;
	r->v = map_layout(size, segment, &r->view) ? segments_new(r->view.n_segments) : NULL;
	if (r->v)
		return r;
	room_leave(r);
	return NULL;
}

static int map_room(struct store_room *r, struct ckpt_err *e)
{
	void *p =
		mmap(NULL, (size_t)r->view.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->map_fd, 0);

	if (p == MAP_FAILED)
		return err_sys(e, errno, "map of %llu bytes", (unsigned long long)r->view.bytes);
	r->map = p;
	return 0;
}

static void write_head(const struct depot *d, struct store_room *r)
{
	struct map_head h = { .magic = "ckptmap",
			      .version = MAP_VERSION,
			      .block = WIRE_BLOCK,
			      .size = r->view.size,
			      .segment = r->view.segment };

	memcpy(h.boot, d->boot, sizeof(h.boot));
	for (uint64_t i = 0; i < r->view.n_segments; i++)
		*map_generation(r->map, i) = 1;
	memcpy(r->map, &h, sizeof(h));
}

/* Another description of the same file, which cannot write to it. */
static int reopen(int fd)
{
	char path[40];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

int memory_file(uint64_t size, int *ret_fd, int *ret_reader)
{
	int fd = memfd_create("ckptfs", MFD_CLOEXEC);

	*ret_fd = fd;
	*ret_reader = -1;
	if (fd < 0 || ftruncate(fd, (off_t)size))
		return -errno;
	*ret_reader = reopen(fd);
	return *ret_reader < 0 ? -errno : 0;
}

int memory_room(struct depot *d, uint64_t size, struct store_room **ret, struct ckpt_err *e)
{
	uint64_t segment = MEMORY_SEGMENT;
	struct store_room *r CLEANUP(room_leavep) = NULL;
	int rc;

	while (size / segment >= MEMORY_SEGMENTS)
		segment *= 2;
	r = room_new(size, segment);
	if (!r)
		return err_nomem(e);
	r->in_memory = true;
	rc = memory_file(r->view.bytes, &r->map_fd, &r->map_reader);
	if (rc)
		return err_sys(e, -rc, "memory for a map");
	if (map_room(r, e))
		return -e->code;
	write_head(d, r);
	*ret = steal_ptr(&r);
	return 0;
}

/* ---- rooms on disk ---- */

/* Takes room on the disk for a part of the map: a page that is written to, and for which there is
 * none, would be a SIGBUS. */
static int reserve(const struct store_room *r, uint64_t at, uint64_t n)
{
	return -posix_fallocate(r->map_fd, (off_t)at, (off_t)n);
}

static uint64_t at_block(const struct map_view *v, uint64_t block)
{
	return v->bytes - (v->n_blocks - block) * sizeof(struct map_block);
}

/* posix_fallocate may write zeros where another process has just written a word. Where fallocate
 * does not exist, size_map has taken room for the whole map. */
int map_reserve(const struct store_room *r, uint64_t block, uint64_t n)
{
	off_t at = (off_t)at_block(&r->view, block);

	if (!fallocate(r->map_fd, 0, at, (off_t)(n * sizeof(struct map_block))))
		return 0;
	return errno == EOPNOTSUPP ? 0 : -errno;
}

/*
 * Must the whole map have room at once? On a tmpfs, of which an overlay may be made, even reading a
 * hole of a mapped file takes room; elsewhere parts may be impossible to reserve.
 */
static bool has_no_holes(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) || st.f_type == TMPFS_MAGIC || io_is_stacked(fd) ||
	       (fallocate(fd, 0, 0, 1) && errno == EOPNOTSUPP);
}

/* A new map. What an object claims to have costs nothing: only what is fetched of it does. */
static int size_map(const struct depot *d, struct store_room *r, struct ckpt_err *e)
{
	bool whole = has_no_holes(r->map_fd);
	int rc;

	if (whole && r->view.bytes > max_u64(d->size / 16, SMALL_MAP))
		return err_set(e, ENOSPC, "map of %llu bytes: too large for the cache",
			       (unsigned long long)r->view.bytes);
	rc = reserve(r, 0, whole ? r->view.bytes : at_block(&r->view, 0));
	if (!rc && ftruncate(r->map_fd, (off_t)r->view.bytes))
		rc = -errno;
	return rc ? err_sys(e, -rc, "map") : 0;
}

static bool is_head(const struct store_room *r)
{
	struct map_head h;

	memcpy(&h, r->map, sizeof(h));
	return !memcmp(h.magic, "ckptmap", sizeof(h.magic)) && h.version == MAP_VERSION &&
	       h.block == WIRE_BLOCK && h.size == r->view.size && h.segment == r->view.segment;
}

/* Blocks of another boot are to be checked. Under LOCK_INIT. */
static void doubt(const struct depot *d, struct store_room *r)
{
	struct map_head *h = r->map;

	if (!memcmp(h->boot, d->boot, sizeof(h->boot)))
		return;
	for (uint64_t i = 0; i < r->view.n_blocks; i++) {
		struct map_block *b = map_block(r->map, &r->view, i);
		uint32_t word = b->word;

		if ((word & 3) == MAP_THERE)
			b->word = (word & ~3u) | MAP_UNCHECKED;
	}
	for (uint64_t i = 0; i < r->view.n_segments; i++)
		if (!*map_generation(r->map, i))
			*map_generation(r->map, i) = 1;
	memcpy(h->boot, d->boot, sizeof(h->boot));
}

static void write_about(int dir, const char *address, const char *path,
			const struct place_seen *seen)
{
	struct buf b = BUF_INIT(16 << 10);
	struct json_out j = { .to = &b };
	char id[PLACE_ID_HEX];
	autoclose int fd = openat(dir, "about.json", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	place_id_hex(&seen->id, id);
	json_open(&j, NULL, '{');
	json_str(&j, "address", address);
	json_str(&j, "path", path);
	json_u64(&j, "size", seen->size);
	json_str(&j, "id", id);
	json_close(&j);
	/* For people; nothing reads it. */
	if (fd >= 0 && !b.err)
		(void)io_write(fd, b.data, b.len);
	buf_release(&b);
}

void remove_object(int dir, const char *name)
{
	struct ckpt_err ignored;

	(void)io_remove(dir, name, &ignored);
}

/* Creates or opens the map, and says whether others may use it. -ESTALE: try again. */
static int open_map(const struct depot *d, struct store_room *r, struct ckpt_err *e)
{
	struct stat st;
	int rc;

	r->map_fd = openat(r->dir, "map", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (r->map_fd < 0)
		return errno == ENOENT ? -ESTALE : err_sys(e, errno, "map");
	rc = wait_for_lock(r->map_fd, F_RDLCK, LOCK_USE);
	if (!rc)
		rc = wait_for_lock(r->map_fd, F_WRLCK, LOCK_INIT);
	if (rc == -EAGAIN)
		return err_set(e, EBUSY, "map: another process has had it locked for %d s",
			       LOCK_MS / 1000);
	if (rc || fstat(r->map_fd, &st))
		return err_sys(e, rc ? -rc : errno, "map");
	if (!st.st_nlink)
		return -ESTALE;
	if (!st.st_size) {
		if (size_map(d, r, e) || map_room(r, e))
			return -e->code;
		write_head(d, r);
	} else if ((uint64_t)st.st_size != r->view.bytes)
		return -EBADMSG;
	else if (map_room(r, e))
		return -e->code;
	if (!is_head(r))
		return -EBADMSG;
	doubt(d, r);
	(void)map_lock(r->map_fd, F_UNLCK, LOCK_INIT, 1);
	r->map_reader = openat(r->dir, "map", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	return r->map_reader < 0 ? err_sys(e, errno, "map") : 0;
}

static int disk_room_once(struct depot *d, int dir, const char *name, uint64_t size,
			  struct store_room **ret, struct ckpt_err *e)
{
	uint64_t segment = DISK_SEGMENT;
	struct store_room *r CLEANUP(room_leavep) = NULL;
	int rc;

	while (size / segment >= DISK_SEGMENTS)
		segment *= 2;
	r = room_new(size, segment);
	if (!r)
		return err_nomem(e);
	if (mkdirat(dir, name, 0700) && errno != EEXIST)
		return errno == ENOENT ? -ESTALE : err_sys(e, errno, "make '%s'", name);
	r->dir = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (r->dir < 0)
		return errno == ENOENT ? -ESTALE : err_sys(e, errno, "open '%s'", name);
	rc = open_map(d, r, e);
	if (rc == -EBADMSG) {
		/* Torn by a power failure, so only this process has it open, which on some file
		 * systems would keep it from being removed. */
		room_leave(steal_ptr(&r));
		remove_object(dir, name);
		return -ESTALE;
	}
	if (!rc)
		*ret = steal_ptr(&r);
	return rc;
}

/* Does its identity tell it from what may be there in a moment? An ETag does; times, those of a file
 * or a Last-Modified ('M': see store_internal.h), may not. */
static bool is_sure(const char *address, const struct place_seen *seen)
{
	bool has_etag = !text_file_path(address) && seen->id.v[0] != 'M';

	return has_etag || place_is_settled(seen);
}

/* What may still change unseen gets a directory that nobody opens again.
 *
 * Whoever runs a store chooses paths and versions. The hash must resist deliberate collisions, as
 * that of base/digest.h does not: an object of one store must not get the directory, and so the
 * bytes, of another's. */
static void name_object(const char *address, const char *path, const struct place_seen *seen,
			char ret[static DIGEST_HEX])
{
	uint64_t only_now = is_sure(address, seen) ? 0 : clock_wall_ns();
	const struct {
		const void *p;
		uint64_t n;
	} v[] = { { address, strlen(address) },
		  { path, strlen(path) },
		  { seen->id.v, seen->id.len },
		  { &seen->size, sizeof(seen->size) },
		  { &only_now, sizeof(only_now) } };
	uint8_t hash[(DIGEST_HEX - 1) / 2];
	struct sha256_ctx c;

	sha256_init(&c);
	for (size_t i = 0; i < ARRAY_LEN(v) - (only_now ? 0 : 1); i++) {
		sha256_update(&c, sizeof(v[i].n), (const uint8_t *)&v[i].n);
		sha256_update(&c, v[i].n, v[i].p);
	}
	sha256_digest(&c, sizeof(hash), hash);
	base16_encode_update(ret, sizeof(hash), hash);
	ret[DIGEST_HEX - 1] = 0;
}

int disk_room(struct depot *d, const char *address, const char *path, const struct place_seen *seen,
	      struct store_room **ret, struct ckpt_err *e)
{
	char hex[DIGEST_HEX], outer[3];
	autoclose int dir = -1;
	struct stat st;
	int rc = -ESTALE;

	name_object(address, path, seen, hex);
	(void)snprintf(outer, sizeof(outer), "%.2s", hex);
	if (mkdirat(d->dir, outer, 0700) && errno != EEXIST)
		return err_sys(e, errno, "make '%s/%s'", d->path, outer);
	dir = openat(d->dir, outer, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0 || fstat(dir, &st))
		return err_sys(e, errno, "open '%s/%s'", d->path, outer);
	if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
		return err_set(e, EPERM, "'%s/%s' can be written to by others", d->path, outer);
	for (unsigned tries = 0; rc == -ESTALE && tries < MAX_OPENS; tries++)
		rc = disk_room_once(d, dir, hex, seen->size, ret, e);
	if (rc == -ESTALE)
		return err_set(e, EBUSY, "'%s/%s/%s' is removed again and again", d->path, outer,
			       hex);
	if (rc)
		return err_wrap(e, "'%s/%s/%s'", d->path, outer, hex);
	write_about((*ret)->dir, address, path, seen);
	return 0;
}
