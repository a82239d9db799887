/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ocdbt - the manifest and the nodes of TensorStore's key-value store, in which Orbax keeps arrays.
 *
 *	ocdbt_unwrap(p, n, OCDBT_NODE, &body, e);      // checks the CRC, decompresses
 *	ocdbt_node_open(&body, "", 0, &node, e);
 *	while ((rc = ocdbt_node_next(node, &entry, e)) > 0)
 *		...
 *	ocdbt_node_free(node);
 *	ocdbt_body_release(&body);
 *
 * A store is a directory: "manifest.ocdbt" says where the root of the newest version is, and each
 * entry of an interior node where a child is; leaves have the values, or where they are. Nodes
 * store columns: one field of all entries, then the next field. Source:
 * tensorstore/kvstore/ocdbt/format, and its documentation, "OCDBT format".
 *
 * All counts are checked against the bytes that are left, so memory is bounded by the length of a
 * body, which is at most OCDBT_MAX_BODY, and paths by OCDBT_MAX_PATHS.
 *
 * Threads: pure.
 */
#ifndef PARSE_OCDBT_H
#define PARSE_OCDBT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct ckpt_err;
struct ocdbt_node;

enum {
	OCDBT_MAX_KEY = 65535,	       /* bytes; also of a path */
	OCDBT_MAX_INLINE = 1 << 20,    /* bytes of a value in a node */
	OCDBT_MAX_ENTRIES = 1 << 20,   /* of a node */
	OCDBT_MAX_BODY = 256 << 20,    /* bytes of a node, decompressed; Orbax: 100 MB */
	OCDBT_MAX_PATHS = 128 << 20,   /* bytes of the paths of a node, as they are in memory */
	OCDBT_MAX_MANIFEST = 64 << 20, /* bytes: 65536 versions have at most 4 MiB */
};

enum ocdbt_kind { OCDBT_MANIFEST, OCDBT_NODE };

/* What is in the envelope: some of its bytes, or what they decompress to. */
struct ocdbt_body {
	const uint8_t *bytes;
	size_t len;
	void *owned;
};

int ocdbt_unwrap(const uint8_t *p, size_t n, enum ocdbt_kind kind, struct ocdbt_body *ret,
		 struct ckpt_err *e);
void ocdbt_body_release(struct ocdbt_body *b);

/*
 * A data file. The path is relative to the store, and does not lead out of it. Nodes in this file
 * have paths that are relative to its first `base` bytes.
 */
struct ocdbt_file {
	const char *path; /* ends in a NUL, and has no other */
	uint32_t len, base;
	const void *tag; /* the caller's; NULL at first */
};

struct ocdbt_range {
	struct ocdbt_file *file;
	uint64_t offset, length;
};

struct ocdbt_manifest {
	uint8_t uuid[16];
	bool numbered; /* the versions are in manifest.GENERATION (hexadecimal), and not here */
	/* The newest version: */
	uint64_t generation;
	bool is_empty; /* it has no root */
	uint8_t height;
	struct ocdbt_range root;
};

/* Borrows the paths from the arena. */
int ocdbt_manifest_read(const struct ocdbt_body *b, struct arena *a, struct ocdbt_manifest *ret,
			struct ckpt_err *e);

/* The body is borrowed. base: the first ocdbt_file.base bytes of the path of the node's file. */
int ocdbt_node_open(const struct ocdbt_body *b, const char *base, size_t base_len,
		    struct ocdbt_node **ret, struct ckpt_err *e);
void ocdbt_node_free(struct ocdbt_node *node);		  /* NULL is fine */
uint8_t ocdbt_node_height(const struct ocdbt_node *node); /* 0: a leaf */
size_t ocdbt_node_memory(const struct ocdbt_node *node);  /* bytes, without the body */

/*
 * The next entry, in the order of keys; 1, 0 at the end, or an error. Keys are relative to the
 * node: those of a child continue the first `common` bytes of its own. All is valid until the next
 * call.
 */
struct ocdbt_entry {
	const uint8_t *key;
	size_t key_len;
	size_t common;	       /* interior nodes */
	const uint8_t *bytes;  /* an inline value; NULL: see .at */
	struct ocdbt_range at; /* of a value or child; for an inline value only .length */
};
int ocdbt_node_next(struct ocdbt_node *node, struct ocdbt_entry *ret, struct ckpt_err *e);

#endif
