/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place - a directory on some kind of storage, and its contents.
 *
 *	rc = place_open("/data/ckpt", NULL, &p, &root, &file, &e);
 *	rc = place_look(p, "config.json", &seen, &e);     // 1, 0: it is not there, or < 0
 *	rc = place_file(p, "config.json", &source, &e);   // to be read, see source.h
 *	place_free(p);
 *
 * Paths are relative to the directory, and nothing outside it is opened or listed, whatever links
 * there are, except the blobs of a snapshot in a Hugging Face cache (see hub.h). A new kind of
 * storage needs a file with a struct place_ops, and place_open to know its addresses.
 *
 * Threads: any; open and free from one.
 */
#ifndef SOURCE_PLACE_H
#define SOURCE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ckpt_err;
struct place;
struct place_network;
struct source;

enum place_kind { PLACE_UNKNOWN, PLACE_FILE, PLACE_DIR, PLACE_LINK, PLACE_OTHER };

/* Identifies a version of a file, and a version of a directory's list of names, as far as the
 * storage can. Only the storage knows what the bytes mean. */
struct place_id {
	uint8_t len, v[63];
};

static inline bool place_id_equal(const struct place_id *a, const struct place_id *b)
{
	return a->len == b->len && !memcmp(a->v, b->v, a->len);
}

#define PLACE_ID_HEX 127 /* digits and the NUL */
void place_id_hex(const struct place_id *id, char ret[static PLACE_ID_HEX]);

/* How a file has changed, judged by its old and new identities. */
enum place_change {
	PLACE_SAME,
	PLACE_RENAMED, /* only its names changed; the new identity now applies */
	PLACE_TOUCHED, /* same size and time, but something else has changed */
	PLACE_WRITTEN,
	PLACE_ANOTHER, /* another file is in its place */
};

/* What exists under a name. */
struct place_seen {
	enum place_kind kind;
	uint64_t size, mtime_ns;
	struct place_id id;
};

/* A file that was written longer ago cannot change again without another time: no file system's
 * clock is coarser. */
#define PLACE_SETTLED_NS (2 * CLOCK_SECOND)
/* Will a later change of the file show? Where times are whole seconds, not if it comes in the same
 * second, by a clock that may be a little ahead. */
bool place_is_settled(const struct place_seen *seen);

/* How a file or directory was created. */
struct place_made {
	uint64_t born_ns; /* when it was created; 0: not known */
	bool filled;	  /* a file whose bytes have all been written, without holes */
};

/* A data file that the checkpoint's metadata refers to, or bytes in place of one. */
struct stored_file {
	const char *path;
	uint64_t min_size;    /* end of the last chunk or object in it, in bytes */
	const uint8_t *bytes; /* min_size of them, in memory; path is only a name; NULL: a file */
};

/* name is borrowed; kind may be unknown. A non-zero return value stops the listing and is
 * returned. */
typedef int place_entry_fn(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e);

/* See the functions below. */
struct place_ops {
	int (*look)(struct place *p, const char *path, bool follow, struct place_seen *ret,
		    struct ckpt_err *e);
	int (*list)(struct place *p, const char *dir, place_entry_fn *each, void *arg,
		    struct ckpt_err *e);
	int (*sub)(struct place *p, const char *name, struct place **ret, struct ckpt_err *e);
	int (*file)(struct place *p, const char *path, struct source **ret, struct ckpt_err *e);
	void (*free)(struct place *p);
	/* These may be NULL. */
	int64_t (*link)(struct place *p, const char *name, char *buf, size_t cap);
	int (*fd)(const struct place *p);
	int64_t (*tip)(struct place *p, char *buf, size_t cap);
	const char *(*beyond)(const struct place *p);
	const char *(*within)(struct place *p, const char *path, uint64_t *ret_off);
	bool (*made)(struct place *p, const char *path, struct place_made *ret);
	enum place_change (*compare)(const struct place_id *before, const struct place_id *now);
	void (*leave_ctime)(struct place_id *id);
	void (*network)(struct place *p, struct place_network *ret);
	const char *(*origin)(const struct place *p);
};

/* What a place on another machine costs; all since its connection was made. */
struct place_network {
	uint64_t requests, bytes, retries, hedges;
	uint64_t restarts; /* of a fetcher that has died */
	/* As measured; 0: not known yet. */
	uint64_t latency_us, connection_bps, total_bps;
	uint64_t window;       /* bytes that may be on their way */
	uint64_t hits, misses; /* reads of what was here, and of what had to be fetched */
	uint64_t kept;	       /* bytes that a disk keeps of it at most; 0: none */
	char note[512];	       /* why nothing is kept although it should be; "": it is */
};

struct place {
	const struct place_ops *ops;
	unsigned at_once; /* number of requests worth having in flight at a time */
	uint64_t keeps;	  /* bytes that were requested ahead and are kept; 0: enough */
};

/* For places on other machines. All zero: the defaults. The strings are borrowed until the process
 * ends or place_open has returned, whichever is first. */
struct place_options {
	const char *endpoint, *region, *profile; /* see remote/store.h */
	bool anonymous;				 /* sign nothing, send no token */
	const char *cache_dir; /* of the bytes that were fetched; "none": only in memory */
	uint64_t cache_size;   /* bytes there; 0: depends on the disk */
	uint64_t memory;       /* bytes without such a directory, at least 64 MiB; 0: 256 MiB */
	uint64_t retry_s;      /* for how long a request is tried again; 0: 60 */
};

/* Is it an address of another machine, not a path? */
bool place_is_remote(const char *address);

/*
 * Opens the place at an address: a path, or s3://, gs://, https://, http://, hf://. o may be NULL.
 * *ret_root is the canonical form of the address, which the caller frees. If the address is of a
 * file, the place is its directory and *ret_file is its name, the end of *ret_root; otherwise
 * *ret_file is NULL, also for an archive that is opened like a directory: NAME.nemo, a tar file.
 */
int place_open(const char *address, const struct place_options *o, struct place **ret,
	       char **ret_root, const char **ret_file, struct ckpt_err *e);
void place_free(struct place *p); /* NULL is fine */

/* Ends the threads that wait for other machines, while no other function is called. The next call
 * that needs one starts it. After that, only servers, buckets and repositories of which something
 * was opened or expected before can be opened, with the same options. */
void place_rest(void);
/* The address may be opened after place_rest. Does nothing if it is a path. */
void place_expect(const char *address, const struct place_options *o);

/*
 * Does the name exist, with links followed? 1 and what it is, 0 if it does not exist, or a negative
 * errno with a sentence: something that cannot be examined is not absent. "." is the place itself.
 */
int place_look(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e);
/* The same without following a link. */
int place_look_at(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e);
/* Like place_look, but it is an error if the name does not exist. */
int place_find(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e);

/* Lists the names in a directory, in no particular order; "." is the place itself. */
int place_list(struct place *p, const char *dir, place_entry_fn *each, void *arg,
	       struct ckpt_err *e);

/* Opens the subdirectory of that name; links are not accepted. */
int place_sub(struct place *p, const char *name, struct place **ret, struct ckpt_err *e);

/* Opens a file: the caller frees *ret, which may outlive the place. EREMOTE: the file is a pointer
 * that Git LFS left in place of a file it has not fetched. */
int place_file(struct place *p, const char *path, struct source **ret, struct ckpt_err *e);

/* Reads the target of a link, up to cap bytes, and returns their number; negative: there is no such
 * link. */
int64_t place_link(struct place *p, const char *name, char *buf, size_t cap);

/* If the storage itself keeps several versions in directories of the place: the name of the newest,
 * up to cap bytes, and its length, which may be 0. -ENOTSUP: it does not keep versions. */
int64_t place_tip(struct place *p, char *buf, size_t cap);
/* The path of what may be opened besides what is in the directory; NULL: nothing. */
const char *place_beyond(const struct place *p);

/* If the bytes of a file are part of another file: its absolute path, and where they begin in it.
 * NULL: they are not. */
const char *place_within(struct place *p, const char *path, uint64_t *ret_off);

/* False: the storage does not provide this. "." is the place itself. */
bool place_made(struct place *p, const char *path, struct place_made *ret);

/* Compares two identities that the place has returned. */
enum place_change place_compare(const struct place *p, const struct place_id *before,
				const struct place_id *now);
/* Removes from an identity the time of changes that leave the bytes as they are, such as a change
 * of mode, if the storage has such a time. */
void place_leave_ctime(const struct place *p, struct place_id *id);

/* False: the place is on this machine. Never blocks. */
bool place_network(struct place *p, struct place_network *ret);

/* The endpoint, under which an address may have other things than elsewhere: "" if the address
 * tells all. NULL: the place is on this machine. */
const char *place_origin(const struct place *p);

/* The directory's descriptor, borrowed, if the directory is on this machine; else -1. */
int place_fd(const struct place *p);

/* ---- kinds of places ---- */

/* local.c; takes ownership of dirfd on success. */
int local_open(const char *address, const struct place_options *o, struct place **ret,
	       char **ret_root, const char **ret_file, struct ckpt_err *e);
int local_place(int dirfd, struct place **ret, struct ckpt_err *e);
/*
 * The path under which local_open opens something: like realpath, but if it is a file, links are
 * followed only as far as a directory with the files that belong to it, such as config.json. If
 * none has any, the name that was given counts, and only its directory is resolved. NULL: see
 * errno.
 */
char *local_real_name(const char *path);
enum place_change local_compare(const struct place_id *before, const struct place_id *now);
void local_leave_ctime(struct place_id *id);
/* A regular file that the caller has opened; takes ownership of fd on success. */
int local_source(int fd, struct source **ret, struct ckpt_err *e);

/* remote.c: objects under an address, through ckptfs-fetch, which it starts. */
int remote_open(const char *address, const struct place_options *o, struct place **ret,
		char **ret_root, const char **ret_file, struct ckpt_err *e);

#endif
