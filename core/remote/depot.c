/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/depot.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json_out.h"
#include "base/list.h"
#include "base/vec.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <xxhash.h>

enum {
	MEMORY_SEGMENT = 8 << 20,
	DISK_SEGMENT = 64 << 20,
	DISK_SEGMENTS = 64, /* of a large object at most: each is a descriptor in many processes */
	TOUCH_SECONDS = 60,
	FREE_PART = 20,	 /* 1/20 of the disk stays free */
	EVICT_PART = 5,	 /* 1/5 of the bound is evicted at a time */
	SCAN_PART = 16,	 /* the directory is looked through after so much of the bound is written */
	MAX_OPENS = 16,	 /* of an object whose directory others remove at the same time */
	LOCK_MS = 2000,	 /* for a lock that others hold for a moment, unless they are stopped */
	STALE_S = 86400, /* an object of which no byte is there is kept for so long */
};

#define DEFAULT_MEMORY ((uint64_t)256 << 20)
/* What 16 readers that wait for WIRE_READ_MAX / 2 bytes each need at the same time. */
#define MIN_MEMORY   ((uint64_t)64 << 20)
#define DEFAULT_SIZE ((uint64_t)64 << 30)
#define MAX_SCAN     ((uint64_t)16 << 30)
/* Bytes of `map` that are locked and not those of a block: no map has so many blocks. */
#define LOCK_USE  ((off_t)1 << 60)
#define LOCK_INIT (LOCK_USE + 1)

struct segment {
	uint32_t generation; /* 0: not open */
	uint32_t holds;
	int fd, reader;
	uint64_t used_ns, touched_ns, bytes; /* bytes: of memory */
};

/* What the blocks of an object are in; after object_leave_disk, holds may still use the first. */
struct store_room {
	unsigned users;
	bool in_memory;
	struct map_view view;
	int dir, map_fd, map_reader; /* dir: -1 in memory */
	void *map;
	struct segment *v;
};

struct object {
	struct depot *depot;
	struct store_room *room;
	struct ckpt_err why; /* it is in memory, or code 0 */
	LIST_LINK(struct object) link;
};

struct hold {
	struct store_room *room;
	struct segment *segment; /* in the room */
	uint32_t generation;
	uint64_t block, n;
	uint64_t at; /* bytes written so far */
	_Atomic uint64_t done;
	XXH3_state_t *hash;
	bool locked;
};

struct depot {
	char *path; /* NULL: memory */
	int dir;
	uint64_t size, memory;
	uint64_t written;   /* since the directory was looked through; UINT64_MAX: never */
	uint64_t in_memory; /* bytes */
	uint64_t now;	    /* counts uses */
	pthread_t tidier;
	bool has_tidier;
	atomic_bool tidying;
	depot_drop_fn *drop;
	void *arg;
	char boot[sizeof(((struct map_head *)NULL)->boot)];
	LIST(struct object) objects;
	struct ckpt_err note;
};

/* ---- the directory ---- */

/* Where the directory is by default; NULL: out of memory, or no home. */
static char *default_dir(void)
{
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char *path;

	if (xdg && *xdg == '/')
		return asprintf(&path, "%s/ckptfs/objects", xdg) < 0 ? NULL : path;
	if (home && *home == '/')
		return asprintf(&path, "%s/.cache/ckptfs/objects", home) < 0 ? NULL : path;
	return NULL;
}

/* Do other machines see this directory? Then a word of a map may arrive before the bytes that it is
 * about, if at all: mappings of a file are one thing on one machine only. */
static bool is_shared(int dir)
{
	static const uint32_t types[] = {
		0x6969,	    0x517b,	0xff534d42, 0xfe534d42, /* NFS, SMB */
		0x65735546, 0x01021997, 0x5346414f, 0x6b414653, /* FUSE, 9P, AFS */
		0x0bd00bd0, 0x47504653, 0x00c36400, 0x19830326, /* Lustre, GPFS, Ceph, BeeGFS */
		0x7461636f, 0x01161970, 0x20030528,		/* OCFS2, GFS2, OrangeFS */
	};
	struct statfs st;

	if (fstatfs(dir, &st))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if ((uint32_t)st.f_type == types[i])
			return true;
	return false;
}

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

	if (rc || !is_shared(d->dir))
		return rc;
	name_machine(machine);
	if (asprintf(&path, "%s/%s", d->path, machine) < 0)
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
	read_boot(d);
	if (!none) {
		d->path = given ? strdup(o->dir) : default_dir();
		if (!d->path && given) {
			free(d);
			return err_nomem(e);
		}
		if (!d->path)
			(void)err_set(&d->note, ENOENT, "neither XDG_CACHE_HOME nor HOME is set");
		else if (open_dir(d, &d->note)) {
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
	if (d->has_tidier)
		(void)pthread_join(d->tidier, NULL);
	if (d->dir >= 0)
		(void)close(d->dir);
	free(d->path);
	free(d);
}

const char *depot_note(const struct depot *d)
{
	return d->note.msg;
}

/* ---- locks ---- */

/* F_RDLCK, F_WRLCK, F_UNLCK; 0, or -errno: EAGAIN if another has it. */
static int lock_bytes(int fd, short type, off_t at, off_t n)
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

	while ((rc = lock_bytes(fd, type, at, 1)) == -EAGAIN && clock_ns() < until)
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

static void segment_close(struct segment *s)
{
	if (s->fd >= 0)
		(void)close(s->fd);
	if (s->reader >= 0)
		(void)close(s->reader);
	s->fd = s->reader = -1;
	s->generation = 0;
	s->bytes = 0;
}

static void room_leave(struct store_room *r)
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

/* A file in memory. */
static int memory_file(uint64_t size)
{
	int fd = memfd_create("ckptfs", MFD_CLOEXEC), code;

	if (fd >= 0 && ftruncate(fd, (off_t)size)) {
		code = errno;
		(void)close(fd);
		errno = code;
		return -1;
	}
	return fd;
}

static int memory_room(struct depot *d, uint64_t size, struct store_room **ret, struct ckpt_err *e)
{
	struct store_room *r CLEANUP(room_leavep) = room_new(size, MEMORY_SEGMENT);

	if (!r)
		return err_nomem(e);
	r->in_memory = true;
	r->map_fd = memory_file(r->view.bytes);
	r->map_reader = r->map_fd < 0 ? -1 : reopen(r->map_fd);
	if (r->map_reader < 0)
		return err_sys(e, errno, "memory for a map");
	if (map_room(r, e))
		return -e->code;
	write_head(d, r);
	*ret = steal_ptr(&r);
	return 0;
}

/* ---- rooms on disk ---- */

static void segment_name(uint64_t i, uint32_t generation, char ret[static 32])
{
	(void)snprintf(ret, 32, "%04llx-%x", (unsigned long long)i, generation);
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

/* Removes what is in the object's directory, and it. Under the exclusive lock on it, if its map
 * can be read. */
static void remove_object(int dir, const char *name)
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
	/* Room on the disk now: a mapped page for which there is none would be a SIGBUS. */
	if (!st.st_size) {
		rc = posix_fallocate(r->map_fd, 0, (off_t)r->view.bytes);
		if (rc)
			return err_sys(e, rc, "map");
		if (map_room(r, e))
			return -e->code;
		write_head(d, r);
	} else if ((uint64_t)st.st_size != r->view.bytes)
		return -EBADMSG;
	else if (map_room(r, e))
		return -e->code;
	if (!is_head(r))
		return -EBADMSG;
	doubt(d, r);
	(void)lock_bytes(r->map_fd, F_UNLCK, LOCK_INIT, 1);
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
	if (rc == -EBADMSG) { /* torn by a power failure, so no process has it open */
		remove_object(dir, name);
		return -ESTALE;
	}
	if (!rc)
		*ret = steal_ptr(&r);
	return rc;
}

static int disk_room(struct depot *d, const char *address, const char *path,
		     const struct place_seen *seen, struct store_room **ret, struct ckpt_err *e)
{
	struct digest digest = { 0 };
	char hex[DIGEST_HEX], outer[3];
	autoclose int dir = -1;
	struct stat st;
	int rc = -ESTALE;

	digest_add(&digest, address, strlen(address));
	digest_add(&digest, path, strlen(path));
	digest_add(&digest, seen->id.v, seen->id.len);
	digest_add(&digest, &seen->size, sizeof(seen->size));
	digest_hex(&digest, hex);
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

/* ---- objects ---- */

int depot_prepare(struct depot *d, const char *address, const char *path,
		  const struct place_seen *seen, bool again, struct object **ret,
		  struct ckpt_err *e)
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
	if (rc == -EMFILE && !again)
		*e = o->why;
	else if (rc)
		rc = memory_room(d, seen->size, &o->room, e);
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

static void forget_memory(struct object *o)
{
	struct store_room *r = o->room;

	if (!r->in_memory)
		return;
	for (uint64_t i = 0; i < r->view.n_segments; i++) {
		o->depot->in_memory -= min_u64(o->depot->in_memory, r->v[i].bytes);
		r->v[i].bytes = 0;
	}
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
	forget_memory(o);
	LIST_REMOVE(&o->depot->objects, o);
	room_leave(o->room);
	free(o);
}

const struct map_view *object_view(const struct object *o)
{
	return &o->room->view;
}

int object_map(const struct object *o)
{
	return o->room->map_reader;
}

bool object_in_memory(const struct object *o)
{
	return o->room->in_memory;
}

static uint64_t segment_of(const struct store_room *r, uint64_t block)
{
	return block / (r->view.segment / WIRE_BLOCK);
}

static uint32_t generation_of(const struct store_room *r, uint64_t segment)
{
	return *map_generation(r->map, segment) & (UINT32_MAX >> 2);
}

bool object_has(struct object *o, uint64_t block)
{
	struct store_room *r = o->room;

	return map_block(r->map, &r->view, block)->word ==
	       map_word(generation_of(r, segment_of(r, block)), MAP_THERE);
}

/* ---- segments ---- */

/* The file of a generation is not what it was: others remove what was not used for long. True: its
 * blocks are missing from now on. */
static bool lose_segment(struct store_room *r, uint64_t i, uint32_t generation)
{
	uint32_t word = generation | MAP_MADE;

	return atomic_compare_exchange_strong(map_generation(r->map, i), &word, generation + 1);
}

/* -ESTALE: the generation is another by now. */
static int open_segment_file(struct store_room *r, uint64_t i, uint32_t generation,
			     struct segment *s)
{
	uint64_t size = map_segment_size(&r->view, i);
	uint32_t word = *map_generation(r->map, i); /* before the file is looked for */
	bool made = word & MAP_MADE;
	struct stat st;
	char name[32];

	if (r->in_memory) {
		s->fd = memory_file(size);
		s->reader = s->fd < 0 ? -1 : reopen(s->fd);
		return s->reader < 0 ? -errno : 0;
	}
	segment_name(i, generation, name);
	s->fd = openat(r->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (s->fd < 0 && errno == ENOENT) {
		if (made && lose_segment(r, i, generation))
			return -ESTALE;
		s->fd = openat(r->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	}
	if (s->fd < 0 || fstat(s->fd, &st))
		return -errno;
	if (made && (uint64_t)st.st_size < size && lose_segment(r, i, generation))
		return -ESTALE;
	/* Larger, never smaller: it may be mapped. */
	if ((uint64_t)st.st_size < size && ftruncate(s->fd, (off_t)size))
		return -errno;
	s->reader = openat(r->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (s->reader < 0)
		return -errno;
	word = generation;
	(void)atomic_compare_exchange_strong(map_generation(r->map, i), &word,
					     generation | MAP_MADE);
	return 0;
}

/* Closes the files of segments that nothing is written to: they are opened again when they are
 * needed, and the other side has descriptors of its own. False: there was none. */
static bool close_idle(const struct depot *d)
{
	bool any = false;

	LIST_EACH (o, &d->objects)
		for (uint64_t i = 0; !o->room->in_memory && i < o->room->view.n_segments; i++) {
			struct segment *s = &o->room->v[i];

			if (s->fd < 0 || s->holds)
				continue;
			segment_close(s);
			any = true;
		}
	return any;
}

void depot_spare(struct depot *d)
{
	(void)close_idle(d);
}

/*
 * Opens the present generation of a segment. A file that was evicted after its generation had been
 * looked up would be made again here, empty; then its generation is one that no new block gets, and
 * the words of the blocks that it had are true only of those who have the old file: so it is looked
 * up again.
 */
static int segment_open(struct object *o, uint64_t i, struct segment **ret, struct ckpt_err *e)
{
	struct store_room *r = o->room;
	struct segment *s = &r->v[i];
	int rc = 0;

	for (unsigned tries = 0; tries < MAX_OPENS; tries++) {
		uint32_t generation = generation_of(r, i);
		char name[32];

		if (s->generation == generation)
			break;
		if (s->holds)
			return -EAGAIN; /* of the old generation, for a moment longer */
		segment_close(s);
		rc = open_segment_file(r, i, generation, s);
		if (rc) {
			segment_close(s);
			if (rc == -ESTALE || (rc == -EMFILE && close_idle(o->depot)))
				continue;
			return err_sys(e, -rc, "segment %llu", (unsigned long long)i);
		}
		if (generation_of(r, i) == generation) {
			s->generation = generation;
			break;
		}
		segment_name(i, generation, name);
		if (!r->in_memory)
			(void)unlinkat(r->dir, name, 0);
		segment_close(s);
	}
	if (!s->generation)
		return err_set(e, EBUSY, "segment %llu is evicted again and again",
			       (unsigned long long)i);
	s->used_ns = ++o->depot->now;
	*ret = s;
	return 0;
}

int object_segment(struct object *o, uint64_t i, uint32_t *ret_generation, int *ret_fd,
		   struct ckpt_err *e)
{
	struct segment *s;
	int rc = segment_open(o, i, &s, e);

	if (rc)
		return rc;
	*ret_generation = s->generation;
	*ret_fd = s->reader;
	return 0;
}

void object_touch(struct object *o, uint64_t i)
{
	struct segment *s = &o->room->v[i];
	uint64_t now = clock_ns();

	s->used_ns = ++o->depot->now;
	if (o->room->in_memory || s->fd < 0 ||
	    (s->touched_ns && now - s->touched_ns < TOUCH_SECONDS * CLOCK_SECOND))
		return;
	s->touched_ns = now;
	(void)futimens(s->fd, NULL);
}

/* ---- eviction from memory ---- */

/* The segment in memory that was not used for longest; NULL: all are held. Where little of a segment
 * is there, such as the heads of items, it is for a reader who comes there later, and giving it up
 * would make little room: it goes after the others. */
static struct object *oldest(struct depot *d, uint64_t *ret)
{
	struct object *best = NULL;
	uint64_t used = UINT64_MAX;
	bool full = false;

	LIST_EACH (o, &d->objects)
		for (uint64_t i = 0; o->room->in_memory && i < o->room->view.n_segments; i++) {
			const struct segment *s = &o->room->v[i];
			bool is_full = s->bytes >= map_segment_size(&o->room->view, i) / 2;

			if (!s->generation || !s->bytes || s->holds || is_full < full ||
			    (is_full == full && s->used_ns >= used))
				continue;
			used = s->used_ns;
			full = is_full;
			best = o;
			*ret = i;
		}
	return best;
}

/* Makes room for n more bytes. */
static void room_in_memory(struct depot *d, uint64_t n)
{
	uint64_t i = 0, freed = 0;
	struct object *o;

	while (d->in_memory + n > d->memory + freed && (o = oldest(d, &i))) {
		struct segment *s = &o->room->v[i];
		uint32_t generation = s->generation;

		freed += s->bytes;
		(void)atomic_fetch_add(map_generation(o->room->map, i), 1);
		segment_close(s);
		d->drop(d->arg, o, i, generation);
	}
	d->in_memory -= min_u64(d->in_memory, freed);
}

/* ---- eviction from the directory ---- */

struct found {
	char path[96]; /* below the directory: ab/HASH/0000-1; or ab/HASH/map, if that is all */
	uint64_t bytes, used_ns;
};

/* A segment that this process is writing to. */
struct held {
	dev_t dev;
	ino_t ino; /* of the object's directory */
	uint64_t segment;
};

/* One look through the directory, by a thread of its own: of the depot it uses what never changes. */
struct scan {
	const struct depot *depot;
	struct held *held;
	size_t n_held, cap_held;
	struct found *v;
	size_t n, cap;
	uint64_t bytes;
};

static int by_use(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

/* Is it the name of a directory of the cache: n hexadecimal digits? The directory may be one that has
 * other things, too, and those are not ours to remove. */
static bool is_hex(const char *name, size_t n)
{
	return strlen(name) == n && strspn(name, "0123456789abcdef") == n;
}

/* As of segment_name. */
static bool is_segment(const char *name)
{
	size_t n = strspn(name, "0123456789abcdef"), k = 0;

	if (n >= 4 && n <= 8 && name[n] == '-')
		k = strspn(name + n + 1, "0123456789abcdef");
	return k && k <= 8 && !name[n + 1 + k];
}

static void add_found(struct scan *s, const char *outer, const char *object, const char *name,
		      uint64_t bytes, uint64_t used_ns)
{
	struct found f = { .bytes = bytes, .used_ns = used_ns };

	if (snprintf(f.path, sizeof(f.path), "%s/%s/%s", outer, object, name) <
		    (int)sizeof(f.path) &&
	    VEC_ROOM_WITHIN(s->v, s->cap, s->n + 1, (size_t)1 << 22))
		s->v[s->n++] = f;
}

/* Adds the files of an object. Out of memory: what is not found is not evicted this time. */
static void scan_object(int dir, const char *outer, const char *name, struct scan *s)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d CLEANUP(io_close_dir) = fd < 0 ? NULL : fdopendir(fd);
	uint64_t besides = 0, opened_ns = 0;
	const struct dirent *x;
	struct ckpt_err ignored;
	bool empty = true;
	struct stat st;

	if (!d && fd >= 0)
		(void)close(fd);
	while (d && io_next_entry(d, &x, &ignored) > 0) {
		bool map = !strcmp(x->d_name, "map");

		if ((!is_segment(x->d_name) && !map && strcmp(x->d_name, "about.json") != 0) ||
		    fstatat(dirfd(d), x->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		s->bytes += (uint64_t)st.st_blocks * 512;
		if (is_segment(x->d_name)) {
			add_found(s, outer, name, x->d_name, (uint64_t)st.st_blocks * 512,
				  io_mtime_ns(&st));
			empty = false;
			continue;
		}
		besides += (uint64_t)st.st_blocks * 512;
		if (map)
			opened_ns = io_mtime_ns(&st);
	}
	if (empty && opened_ns)
		add_found(s, outer, name, "map", besides, opened_ns);
}

static void scan_all(struct scan *s)
{
	DIR *top CLEANUP(io_close_dir) = io_open_dir(s->depot->dir, ".", 0);
	const struct dirent *x, *y;
	struct ckpt_err ignored;

	while (top && io_next_entry(top, &x, &ignored) > 0) {
		DIR *inner CLEANUP(io_close_dir) =
			is_hex(x->d_name, 2) ? io_open_dir(s->depot->dir, x->d_name, O_NOFOLLOW)
					     : NULL;

		while (inner && io_next_entry(inner, &y, &ignored) > 0)
			if (is_hex(y->d_name, DIGEST_HEX - 1))
				scan_object(dirfd(inner), x->d_name, y->d_name, s);
	}
}

/* Counts up the generation of a segment in its map, if that is still the file's. False: who knows?
 * Then the file must stay: an empty one in its place would be taken for it. */
static bool retire(int dir, const char *name)
{
	autoclose int fd = openat(dir, "map", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	char *end;
	uint64_t i = strtoull(name, &end, 16), at = MAP_HEAD + i * 4;
	uint32_t generation = *end == '-' ? (uint32_t)strtoul(end + 1, NULL, 16) : 0;
	uint32_t made = generation | MAP_MADE, plain = generation;
	_Atomic uint32_t *word;
	struct stat st;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *p;

	if (fd < 0 || fstat(fd, &st))
		return fd < 0 && errno == ENOENT;
	if (i > UINT32_MAX || at + 4 > (uint64_t)st.st_size)
		return true; /* no map: see open_map */
	p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(at / page * page));
	if (p == MAP_FAILED)
		return false;
	word = (_Atomic uint32_t *)(void *)((char *)p + at % page);
	if (!atomic_compare_exchange_strong(word, &made, generation + 1) &&
	    !atomic_compare_exchange_strong(word, &plain, generation + 1) &&
	    plain == (generation | MAP_MADE)) /* made in between */
		(void)atomic_compare_exchange_strong(word, &plain, generation + 1);
	(void)munmap(p, page);
	return true;
}

/* Removes an object of which no segment is left, unless somebody uses it. */
static bool remove_empty(const struct depot *d, const char *object)
{
	char path[128];
	bool gone = false;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/map", object);
	fd = openat(d->dir, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	if (!lock_bytes(fd, F_WRLCK, LOCK_USE, 1)) {
		DIR *dir CLEANUP(io_close_dir) = io_open_dir(d->dir, object, O_NOFOLLOW);
		const struct dirent *x;
		struct ckpt_err ignored;
		bool empty = dir != NULL;

		while (empty && io_next_entry(dir, &x, &ignored) > 0)
			empty = !strchr(x->d_name, '-');
		/* The map goes first: a process that gets its lock then sees that it has no name any more. */
		gone = empty && !unlinkat(d->dir, path, 0);
		if (gone)
			remove_object(d->dir, object);
	}
	(void)close(fd);
	return gone;
}

/* Was this process writing to it? Others would only have to fetch the same again. */
static bool is_held(const struct scan *s, int dir, const char *name)
{
	uint64_t i = strtoull(name, NULL, 16);
	struct stat st;

	if (fstat(dir, &st))
		return false;
	for (size_t k = 0; k < s->n_held; k++)
		if (s->held[k].segment == i && s->held[k].dev == st.st_dev &&
		    s->held[k].ino == st.st_ino)
			return true;
	return false;
}

/* False: it must stay. */
static bool evict(const struct scan *s, const struct found *f)
{
	const struct depot *d = s->depot;
	char object[96];
	const char *name = strrchr(f->path, '/') + 1;
	autoclose int dir = -1;

	(void)snprintf(object, sizeof(object), "%.*s", (int)(name - f->path - 1), f->path);
	if (!is_segment(name))
		return remove_empty(d, object);
	dir = openat(d->dir, object, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0 || is_held(s, dir, name) || !retire(dir, name))
		return false;
	(void)unlinkat(dir, name, 0);
	(void)remove_empty(d, object);
	return true;
}

/* Evicts what was not used for longest if the directory is too large, or the disk too full; and what
 * was only looked at, and not lately. */
static void tidy(struct scan *s)
{
	uint64_t keep = s->depot->size, now = clock_wall_ns();
	struct statvfs st;
	bool full;

	scan_all(s);
	if (!fstatvfs(s->depot->dir, &st)) {
		uint64_t left = (uint64_t)st.f_bavail * st.f_frsize,
			 want = (uint64_t)st.f_blocks * st.f_frsize / FREE_PART;

		if (left < want)
			keep = min_u64(keep, s->bytes - min_u64(s->bytes, want - left));
	}
	full = s->bytes > keep;
	if (full)
		keep -= keep / EVICT_PART;
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), by_use);
	for (size_t i = 0; i < s->n; i++) {
		bool stale = !is_segment(strrchr(s->v[i].path, '/') + 1) &&
			     now > s->v[i].used_ns + STALE_S * CLOCK_SECOND;

		if ((stale || (full && s->bytes > keep)) && evict(s, &s->v[i]))
			s->bytes -= min_u64(s->bytes, s->v[i].bytes);
	}
}

static void scan_free(struct scan *s)
{
	free(s->held);
	free(s->v);
	free(s);
}

static void *tidy_in_back(void *arg)
{
	struct scan *s = arg;
	struct depot *d = (struct depot *)(uintptr_t)s->depot;

	tidy(s);
	scan_free(s);
	d->tidying = false;
	return NULL;
}

/* Out of memory: some may be evicted although they are written to. */
static void note_held(const struct depot *d, struct scan *s)
{
	struct stat st;

	LIST_EACH (o, &d->objects)
		for (uint64_t i = 0; !o->room->in_memory && i < o->room->view.n_segments; i++)
			if (o->room->v[i].holds && !fstat(o->room->dir, &st) &&
			    VEC_ROOM(s->held, s->cap_held, s->n_held + 1))
				s->held[s->n_held++] = (struct held){ st.st_dev, st.st_ino, i };
}

static void start_tidying(struct depot *d)
{
	struct scan *s = calloc(1, sizeof(*s));

	if (!s)
		return; /* the next time */
	d->written = 0;
	s->depot = d;
	note_held(d, s);
	if (d->has_tidier) /* it has ended, all but its return */
		(void)pthread_join(d->tidier, NULL);
	d->tidying = true;
	d->has_tidier = !pthread_create(&d->tidier, NULL, tidy_in_back, s);
	if (!d->has_tidier) {
		scan_free(s);
		d->tidying = false;
	}
}

static void note_written(struct depot *d, uint64_t n)
{
	if (d->written != UINT64_MAX)
		d->written += n;
	if (d->written >= min_u64(d->size / SCAN_PART, MAX_SCAN) && !d->tidying)
		start_tidying(d);
}

/* ---- blocks ---- */

static bool check_block(struct object *o, uint64_t block, uint8_t *buf)
{
	struct store_room *r = o->room;
	struct map_block *b = map_block(r->map, &r->view, block);
	uint64_t size = map_block_size(&r->view, block), i = segment_of(r, block);
	uint32_t word = b->word;
	struct segment *s;
	struct ckpt_err ignored;
	bool right;

	if (word != map_word(generation_of(r, i), MAP_UNCHECKED))
		return false;
	if (segment_open(o, i, &s, &ignored) || word >> 2 != s->generation)
		return false;
	right = !io_pread(s->fd, buf, (size_t)size, block * WIRE_BLOCK - i * r->view.segment) &&
		XXH3_64bits(buf, (size_t)size) == b->hash;
	(void)atomic_compare_exchange_strong(
		&b->word, &word, map_word(s->generation, right ? MAP_THERE : MAP_MISSING));
	return right;
}

uint64_t object_check(struct object *o, uint64_t block, uint64_t end, uint64_t most)
{
	autofree uint8_t *buf = NULL;

	for (; block < end; block++) {
		if ((map_block(o->room->map, &o->room->view, block)->word & 3) != MAP_UNCHECKED)
			continue;
		if (!most--)
			break;
		if (!buf)
			buf = malloc(WIRE_BLOCK);
		if (!buf) /* then they are fetched again */
			return end;
		(void)check_block(o, block, buf);
	}
	return block;
}

int object_hold(struct object *o, uint64_t block, uint64_t n, bool alone, struct hold **ret,
		uint64_t *ret_n, struct ckpt_err *e)
{
	struct store_room *r = o->room;
	uint64_t per = r->view.segment / WIRE_BLOCK, i = segment_of(r, block), bytes;
	struct hold *h;
	struct segment *s;
	int rc;

	n = min_u64(n, min_u64((i + 1) * per, r->view.n_blocks) - block);
	bytes = min_u64(n * WIRE_BLOCK, r->view.size - block * WIRE_BLOCK);
	if (r->in_memory)
		room_in_memory(o->depot, bytes);
	rc = segment_open(o, i, &s, e);
	if (rc)
		return rc;
	h = calloc(1, sizeof(*h));
	if (h)
		h->hash = XXH3_createState();
	if (!h || !h->hash) {
		free(h);
		return err_nomem(e);
	}
	while (!r->in_memory && !alone) {
		rc = lock_bytes(r->map_fd, F_WRLCK, (off_t)block, (off_t)n);
		if (rc == -EAGAIN && n > 1) {
			n /= 2;
			continue;
		}
		h->locked = !rc;
		if (rc == -EAGAIN) {
			XXH3_freeState(h->hash);
			free(h);
			return -EAGAIN;
		}
		break; /* no locks on this file system: then it may be fetched twice */
	}
	if (object_has(o, block)) { /* its holder has just finished */
		if (h->locked)
			(void)lock_bytes(r->map_fd, F_UNLCK, (off_t)block, (off_t)n);
		XXH3_freeState(h->hash);
		free(h);
		return -EALREADY;
	}
	h->room = r;
	r->users++;
	h->segment = s;
	s->holds++;
	h->generation = s->generation;
	h->block = block;
	h->n = n;
	(void)XXH3_64bits_reset(h->hash);
	if (r->in_memory) {
		s->bytes += bytes;
		o->depot->in_memory += bytes;
	} else
		note_written(o->depot, bytes); /* now that it is held */
	*ret = h;
	*ret_n = n;
	return 0;
}

static void store_block(struct hold *h, uint64_t block)
{
	struct map_block *b = map_block(h->room->map, &h->room->view, block);

	b->hash = XXH3_64bits_digest(h->hash);
	atomic_store_explicit(&b->word, map_word(h->generation, MAP_THERE), memory_order_release);
	(void)XXH3_64bits_reset(h->hash);
	h->done++;
}

int hold_write(struct hold *h, const void *p, size_t n)
{
	const struct map_view *v = &h->room->view;
	uint64_t first = h->block * WIRE_BLOCK, base = first / v->segment * v->segment,
		 end = min_u64(first + h->n * WIRE_BLOCK, v->size);
	int rc;

	if (n > end - first - h->at)
		return -EOVERFLOW;
	rc = io_pwrite(h->segment->fd, p, n, first + h->at - base);
	if (rc)
		return rc;
	while (n) {
		uint64_t at = first + h->at, block = at / WIRE_BLOCK,
			 block_end = min_u64((block + 1) * WIRE_BLOCK, v->size);
		size_t part = (size_t)min_u64(n, block_end - at);

		(void)XXH3_64bits_update(h->hash, p, part);
		p = (const char *)p + part;
		n -= part;
		h->at += part;
		if (at + part == block_end)
			store_block(h, block);
	}
	return 0;
}

uint64_t hold_done(const struct hold *h)
{
	return h->done;
}

bool hold_in_memory(const struct hold *h)
{
	return h->room->in_memory;
}

void hold_end(struct hold *h)
{
	if (!h)
		return;
	if (h->locked)
		(void)lock_bytes(h->room->map_fd, F_UNLCK, (off_t)h->block, (off_t)h->n);
	h->segment->holds--;
	room_leave(h->room);
	XXH3_freeState(h->hash);
	free(h);
}
