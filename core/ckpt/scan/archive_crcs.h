/* SPDX-License-Identifier: Apache-2.0 */
/*
 * archive_crcs - the CRCs of a file of torch.save that is a ZIP archive.
 *
 *	rc = archive_crcs_open(&a, &blob, &e);          // 1: it is no archive
 *	for (size_t i = 0; i < a.n; i++)
 *		rc = archive_crcs_verify(&a.v[i], &blob, &reader, &e);
 *	m = archive_crcs_at(&a, off);                   // the member that this byte is in
 *	archive_crcs_close(&a);
 *
 * Members may not overlap, so that verifying all of them reads no byte twice. What is kept is
 * bounded by the size of the archive's directory.
 *
 * Private to core/ckpt/scan. Threads: one at a time.
 */
#ifndef CKPT_ARCHIVE_CRCS_H
#define CKPT_ARCHIVE_CRCS_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blob;
struct ckpt_err;

struct crc_reader {
	uint8_t *buf;
	size_t cap;
	void (*progress)(void *arg, uint64_t bytes); /* called with the number of bytes read */
	void *arg;
};

/* The CRC-32 of bytes [at, at+size). */
int crc_read(const struct blob *b, uint64_t at, uint64_t size, const struct crc_reader *r,
	     uint32_t *ret, struct ckpt_err *e);
/*
 * Compares the CRC of a record's bytes with that in the directory: ERR_CORRUPT. A CRC of 0 is not
 * compared: torch writes it for "not recorded" (set_crc32_options, skip_data).
 */
int crc_compare(const char *name, size_t len, uint32_t found, uint32_t recorded,
		struct ckpt_err *e);

struct crc_member {
	const char *name;  /* the first bytes of it */
	uint64_t header;   /* where it begins in the archive */
	uint64_t data;	   /* where its bytes begin; 0 until they have been read */
	uint64_t size;	   /* bytes */
	uint32_t crc;	   /* as recorded */
	uint32_t found;	   /* of the bytes that were read */
	bool packed;	   /* compressed: it cannot be verified, and contains no elements */
	bool is_storage;   /* it contains elements */
	bool wanted, told; /* the caller's; false at first */
};

struct archive_crcs {
	struct crc_member *v; /* in the order of the file */
	size_t n, cap;
	struct arena names;
};

/* b's size must be known. Call archive_crcs_close in any case. */
int archive_crcs_open(struct archive_crcs *a, const struct blob *b, struct ckpt_err *e);
void archive_crcs_close(struct archive_crcs *a);
/* The last member that begins before `off`, or NULL. */
struct crc_member *archive_crcs_at(const struct archive_crcs *a, uint64_t off);
/* Reads a member. ERR_CORRUPT with m->data set: it is not what was written. */
int archive_crcs_verify(struct crc_member *m, const struct blob *b, const struct crc_reader *r,
			struct ckpt_err *e);
/* crc_compare for a member that has been read. */
int archive_crcs_compare(const struct crc_member *m, struct ckpt_err *e);
/* Has the member been read, and are bytes [off, off+len) of the file part of it? */
bool archive_crcs_covers(const struct crc_member *m, uint64_t off, uint64_t len);

#endif
