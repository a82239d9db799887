/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip - the subset of the ZIP format that torch.save writes: stored members, zip64, data
 * descriptors.
 *
 * Two ways to read it: forwards from the archive's start, which is cheap and works without access
 * to the end (inside a compressed stream); or by the central directory, as torch does. Sources:
 * PKWARE APPNOTE 6.3; torch's caffe2/serialize/inline_container.cc (miniz) for which of it occurs.
 *
 * Threads: pure apart from the blob.
 */
#ifndef PARSE_ZIP_H
#define PARSE_ZIP_H

#include "base/blob.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZIP_MAX_NAME 4096 /* bytes; longer ones are refused */

enum {
	ZIP_SIG_LOCAL = 0x04034b50,
	ZIP_SIG_CENTRAL = 0x02014b50,
	ZIP_SIG_DESCRIPTOR = 0x08074b50,
	ZIP_SIG_END = 0x06054b50,
	ZIP_SIG_END64 = 0x06064b50,
	ZIP_SIG_LOCATOR64 = 0x07064b50,
	ZIP_TAG_ZIP64 = 1, /* of an extra field */
	/* Sizes in bytes, without names and extra fields. */
	ZIP_LOCAL_SIZE = 30,
	ZIP_CENTRAL_SIZE = 46,
	ZIP_END_SIZE = 22,
	ZIP_END64_SIZE = 56,
	ZIP_LOCATOR64_SIZE = 20,
	ZIP_ENDS_SIZE = ZIP_END64_SIZE + ZIP_LOCATOR64_SIZE + ZIP_END_SIZE,
};

struct zip_local {
	const char *name; /* name_len bytes inside the caller's buffer */
	size_t name_len;
	uint64_t data; /* offset of the member's bytes from the start of the header */
	uint64_t size; /* stored bytes; 0 and meaningless if .streamed */
	bool streamed; /* size and CRC follow the data */
};

/* Does it begin like a ZIP archive? */
bool zip_magic(const void *p, size_t len);

/* Local header at p. -ENODATA: more bytes are needed; ERR_CORRUPT or ERR_UNSUPPORTED with *e. */
int zip_read_local(const void *p, size_t len, struct zip_local *ret, struct ckpt_err *e);

/* Length of the data descriptor at p that follows `size` bytes of data, or 0 if there is none. */
size_t zip_descriptor(const void *p, size_t len, uint64_t size);

struct zip_member {
	const char *name; /* name_len bytes, borrowed */
	size_t name_len;
	uint64_t header; /* offset of its local header in the archive */
	uint64_t size;	 /* bytes, stored */
	uint32_t crc;	 /* CRC-32; torch may write 0 for "not recorded" */
	bool packed;	 /* compressed or encrypted; only from zip_list() */
};

/*
 * Calls `each` for every member of the central directory, in its order; a non-zero return stops and
 * is returned. The blob's size must be known. A packed member is an error.
 */
int zip_each(const struct blob *b,
	     int (*each)(void *arg, const struct zip_member *m, struct ckpt_err *e), void *arg,
	     struct ckpt_err *e);
/* The same including packed members: for their names. */
int zip_list(const struct blob *b,
	     int (*each)(void *arg, const struct zip_member *m, struct ckpt_err *e), void *arg,
	     struct ckpt_err *e);
/* Bytes of the central directory. */
int zip_directory_size(const struct blob *b, uint64_t *ret, struct ckpt_err *e);
/* Where a member's bytes begin; checks that they are inside the archive. */
int zip_member_data(const struct blob *b, const struct zip_member *m, uint64_t *ret,
		    struct ckpt_err *e);

/*
 * What an archive ends with: the records behind its directory, always including those of zip64, as
 * torch does. The directory has n members and `size` bytes at offset `at`.
 */
void zip_put_ends(uint8_t out[static ZIP_ENDS_SIZE], uint16_t made_by, uint16_t needed, uint64_t n,
		  uint64_t at, uint64_t size);

#endif
