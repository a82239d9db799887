/* SPDX-License-Identifier: Apache-2.0 */
/*
 * archive_util - torch.save's archives, as torch writes them, and valid variations.
 *
 *	struct archive a = { .style = { .alignment = 4096 } };
 *	archive_add(&a, "data.pkl", p, n);
 *	archive_end(&a);                 // a.b is the item
 *	archive_release(&a);
 *
 * Threads: one at a time.
 */
#ifndef TESTS_ARCHIVE_UTIL_H
#define TESTS_ARCHIVE_UTIL_H

#include "base/buf.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is torch 2.14's way. */
struct archive_style {
	const char *prefix; /* instead of "archive" */
	uint32_t alignment; /* instead of 64 */
	bool wide;	    /* data descriptors of 24 bytes */
	bool zip64;	    /* sizes and offsets of the directory in zip64 fields */
	bool seekable;	    /* sizes in the local headers, nothing behind the data */
	bool no_crc;
	bool no_end64; /* no zip64 end record and locator */
};

enum { ARCHIVE_MAX = 24 }; /* members */

struct archive {
	struct archive_style style;
	struct buf b;
	struct {
		char name[300];
		uint64_t header, data, size;
		uint32_t crc;
	} members[ARCHIVE_MAX];
	size_t n;
	uint64_t directory; /* where it begins, after archive_end */
};

void archive_add(struct archive *a, const char *name, const void *p, size_t n);
void archive_end(struct archive *a);
void archive_release(struct archive *a);

enum rebuild {
	REBUILD_V2,
	REBUILD_V3,
	REBUILD_OLD,		 /* _rebuild_tensor */
	REBUILD_Q,		 /* _rebuild_qtensor */
	REBUILD_PARAMETER,	 /* _rebuild_parameter around v2 */
	REBUILD_PARAMETER_STATE, /* _rebuild_parameter_with_state around v3 */
	REBUILD_SUBCLASS,	 /* _rebuild_from_type_v2 around v2 */
	REBUILD_WAYS
};

/* A tensor to save. Numbers are signed, so that impossible ones can be written. */
struct saved {
	enum rebuild how;
	enum ckpt_dtype dtype;
	size_t n_dims;
	const int64_t *size;
	const int64_t *stride; /* elements; NULL: row-major */
	int64_t offset;	       /* elements */
	const void *storage;
	size_t storage_bytes;
	bool conj, neg;
	bool big; /* byteorder says so */
	/* What is written instead of the right value: */
	const char *function, *storage_class, *key;
	int64_t claimed;  /* storage count + 1 */
	size_t n_strides; /* + 1 */
	const void *pkl;  /* data.pkl */
	size_t pkl_bytes;
	size_t hooks_bytes; /* length of a string where the hooks are, to make data.pkl long */
	struct archive_style style;
	enum {
		ORDER_NOW, /* as torch 2.14 */
		ORDER_26,  /* without .format_version and .storage_alignment */
		ORDER_20,  /* without byteorder as well */
		ORDER_DATA_FIRST,
		ORDER_REVERSED,
		ORDER_LATE, /* byteorder behind the data */
		ORDER_COUNT
	} order;
};

/* Appends the value that data.pkl holds, or data.pkl itself. */
struct emit;
void emit_saved(struct emit *m, const struct saved *t);
void saved_pickle(struct buf *b, const struct saved *t);
/* Appends the whole item to an empty b; returns where the storage's bytes begin. */
uint64_t saved_item(struct buf *b, const struct saved *t);

/* v2 if the dtype has a storage class, else v3. */
enum rebuild saved_way(enum ckpt_dtype t);

#endif
