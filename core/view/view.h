/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view - the tree of virtual files over a catalog.
 *
 * A face is a directory of the tree: tensors/, npy/, objects/. It shows one file per tensor or
 * object, and says of each what it consists of: an ordered list of segments. To add one: write
 * its file, add it to the table in view.c.
 *
 * Nodes are inode numbers and the same at every mount: the root is 1, directories follow, a file
 * is its face and its tensor's or object's number in the catalog.
 *
 * Threads: immutable after view_new.
 */
#ifndef VIEW_VIEW_H
#define VIEW_VIEW_H

#include "view/name.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct err;
struct view;

/* A run of a virtual file's bytes. */
struct segment {
	enum { SEG_BYTES, SEG_TENSOR, SEG_OBJECT } kind;
	uint64_t off; /* in the file */
	uint64_t len;
	const char *bytes; /* SEG_BYTES: inside the vfile */
	size_t index;	   /* the tensor's or object's number in the catalog */
	uint64_t from;	   /* its first byte there */
};

#define VIEW_MAX_SEGMENTS 4
#define VIEW_MAX_LITERAL  2048

struct vfile {
	uint64_t size; /* VIEW_SIZE_UNKNOWN: ask whoever can decode the object */
	size_t n;
	struct segment seg[VIEW_MAX_SEGMENTS];
	char literal[VIEW_MAX_LITERAL];
};
#define VIEW_SIZE_UNKNOWN UINT64_MAX

struct face {
	const char *dir;    /* "tensors" */
	const char *suffix; /* of every file in it */
	bool of_objects;    /* one file per object instead of per tensor */
	void (*describe)(const struct catalog *c, size_t index, struct vfile *ret);
};
extern const struct face face_tensors, face_npy, face_objects;

struct view_opts {
	const char *const *include; /* globs, NULL-terminated, or NULL for all */
	const char *const *exclude;
};
int view_new(const struct catalog *c, const struct view_opts *opts, struct view **ret,
	     struct err *e);
void view_free(struct view *v); /* NULL is fine */

enum view_kind { VIEW_NONE, VIEW_ROOT, VIEW_FACE, VIEW_CONTROL, VIEW_FILE, VIEW_INFO };
struct view_node {
	enum view_kind kind;
	const struct face *face; /* VIEW_FACE, VIEW_FILE */
	size_t index;		 /* VIEW_FILE: in the catalog */
};
#define VIEW_ROOT_NODE ((uint64_t)1)

/* VIEW_NONE for a number that stands for nothing. */
struct view_node view_resolve(const struct view *v, uint64_t node);
uint64_t view_parent(const struct view *v, uint64_t node);
/* 0 when there is none. */
uint64_t view_lookup(const struct view *v, uint64_t dir, const char *name);
/* Entry number pos of a directory; 0 at the end. */
uint64_t view_entry(const struct view *v, uint64_t dir, uint64_t pos, char name[static NAME_CAP]);
uint64_t view_entries(const struct view *v, uint64_t dir);

/* Numbers in the catalog of the tensors or objects that exist after include and exclude. */
const uint32_t *view_tensors(const struct view *v, size_t *ret_n);
const uint32_t *view_objects(const struct view *v, size_t *ret_n);
/* The node of a catalog number's file in a face, one of those below. */
uint64_t view_file(const struct face *f, size_t index);
/* Catalog number by FQN, or -1. */
int64_t view_find(const struct view *v, bool object, const char *fqn, size_t len);

#endif
