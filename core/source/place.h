/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place - a directory somewhere, and what is in it.
 *
 *	rc = place_open("/data/ckpt", &p, &root, &file, &e);
 *	rc = place_look(p, "config.json", &seen, &e);     // 1, 0: it is not there, or < 0
 *	rc = place_file(p, "config.json", &source, &e);   // to be read, see source.h
 *	place_free(p);
 *
 * Paths are relative to it, and nothing that is opened or listed lies outside of it, whatever links
 * there are, but for the blobs of a snapshot in a Hugging Face cache (see hub.h). A new kind of storage is a file with a struct place_ops, and a line in place.c.
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
struct source;

enum place_kind { PLACE_UNKNOWN, PLACE_FILE, PLACE_DIR, PLACE_LINK, PLACE_OTHER };

/*
 * Tells a file from any other that was or will be there, and a directory from what it is once a name
 * in it comes or goes, as far as the storage can. Only the storage knows what the bytes mean.
 */
struct place_id {
	uint8_t len, v[63];
};

static inline bool place_id_equal(const struct place_id *a, const struct place_id *b)
{
	return a->len == b->len && !memcmp(a->v, b->v, a->len);
}

#define PLACE_ID_HEX 127 /* digits and the NUL */
void place_id_hex(const struct place_id *id, char ret[static PLACE_ID_HEX]);

/* How a file is that has another identity than it had. */
enum place_change {
	PLACE_SAME,
	PLACE_RENAMED, /* what was done to it, if anything, was to its names: it has the new one now */
	PLACE_TOUCHED, /* its size and time are as they were, but something has been done to it */
	PLACE_WRITTEN,
	PLACE_ANOTHER, /* is there in its place */
};

/* What is there under a name. */
struct place_seen {
	enum place_kind kind;
	uint64_t size, mtime_ns;
	struct place_id id;
};

/* How a file or directory came to be. */
struct place_made {
	uint64_t born_ns; /* when it was created; 0: not known */
	bool filled;	  /* a file whose bytes have all been written: no part of it was left out */
};

/* A file that others say is there. */
struct stored_file {
	const char *path;
	uint64_t min_size; /* bytes that the chunks and objects in it reach up to */
};

/* name is borrowed; kind may be unknown. A return other than 0 stops and is returned. */
typedef int place_entry_fn(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e);

/* As the functions below. */
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
	bool (*made)(struct place *p, const char *path, struct place_made *ret);
	enum place_change (*compare)(const struct place_id *before, const struct place_id *now);
	void (*leave_ctime)(struct place_id *id);
};

struct place {
	const struct place_ops *ops;
	unsigned at_once; /* requests that may be on their way at a time with profit */
};

/*
 * The place of an address: a path, as yet. *ret_root is the address in the one form that it has, the
 * caller's to free. *ret_file is NULL; or the address is of a file, the place is what that is in, and
 * this its name, the end of *ret_root.
 */
int place_open(const char *address, struct place **ret, char **ret_root, const char **ret_file,
	       struct ckpt_err *e);
void place_free(struct place *p); /* NULL is fine */

/* Is there something of that name, with links followed? 1 and what it is, 0 where it is not, or a
 * negative errno with a sentence: what cannot be seen is not absent. "." is the place itself. */
int place_look(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e);
/* The same of a link itself. */
int place_look_at(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e);
/* As place_look, where it is an error that it is not there. */
int place_find(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e);

/* The names in a directory, "." for the place itself, in no order. */
int place_list(struct place *p, const char *dir, place_entry_fn *each, void *arg,
	       struct ckpt_err *e);

/* The directory of that name in it; a link is none. */
int place_sub(struct place *p, const char *name, struct place **ret, struct ckpt_err *e);

/* A file, opened: *ret is the caller's to free, and may outlive the place. EREMOTE: what is there is
 * the pointer that Git LFS leaves where it has not fetched a file. */
int place_file(struct place *p, const char *path, struct source **ret, struct ckpt_err *e);

/* What the link of that name says, as far as cap bytes reach: how many they are; negative: there is
 * no such link. */
int64_t place_link(struct place *p, const char *name, char *buf, size_t cap);

/* Where the storage itself keeps several versions of something in directories of the place: as far as
 * cap bytes reach, what it calls the newest, and how many bytes that is, which may be none.
 * -ENOTSUP: it does not. */
int64_t place_tip(struct place *p, char *buf, size_t cap);
/* The path of what may be opened besides what is in the directory; NULL: nothing. */
const char *place_beyond(const struct place *p);

/* False: the storage does not tell. "." is the place itself. */
bool place_made(struct place *p, const char *path, struct place_made *ret);

/* Two identities that the place gave. */
enum place_change place_compare(const struct place *p, const struct place_id *before,
				const struct place_id *now);
/* Make of an identity one that says nothing of when something was done to the file that has left its
 * bytes as they are, as its mode; where the storage has such a time. */
void place_leave_ctime(const struct place *p, struct place_id *id);

/* The directory's descriptor, borrowed, where it is one of this machine; else -1. */
int place_fd(const struct place *p);

/* ---- kinds of places ---- */

/* local.c; dirfd is taken over if it goes well. */
int local_open(const char *address, struct place **ret, char **ret_root, const char **ret_file,
	       struct ckpt_err *e);
int local_place(int dirfd, struct place **ret, struct ckpt_err *e);
/* The regular file that somebody has opened; fd is taken over if it goes well. */
int local_source(int fd, struct source **ret, struct ckpt_err *e);

#endif
