/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob_util - what the suites of files and items share: directories, files, blobs over memory, zstd
 * frames. An error in here fails the test.
 */
#ifndef TESTS_BLOB_UTIL_H
#define TESTS_BLOB_UTIL_H

#include "base/blob.h"
#include "rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct place;

/* Makes a directory below TMPDIR that is gone after the run. Its path goes to out; returns a
 * descriptor. */
int new_dir(char out[static 4096]);
/* The directory as a place, which the caller frees. */
struct place *place_of(int dirfd);
void place_freep(struct place **p); /* for CLEANUP */
/* The same, if that may fail. */
int try_place(int dirfd, struct place **ret, struct ckpt_err *e);
/* Writes a whole file, replacing one of that name. */
void put_file(int dirfd, const char *name, const void *p, size_t n);
/* Reads a whole file into memory that the caller frees; a NUL follows it. */
uint8_t *get_file(int dirfd, const char *name, size_t *ret_n);
/* Without openat2 (kernels before 5.6, valgrind) no link is followed. */
bool has_openat2(void);
void random_bytes(struct rng *r, void *p, size_t n);

/* A blob over exactly n bytes of its own memory, so that AddressSanitizer sees a read beyond. */
struct mem {
	uint8_t *p;
	size_t n;
	unsigned reads; /* calls so far */
	unsigned fail;	/* number of the call that fails with EIO, from 1; 0: none */
};
void mem_init(struct mem *m, const void *p, size_t n);
void mem_release(struct mem *m);
struct blob mem_blob(struct mem *m, bool size_known);

/* zstd applied n times, for codec/coding.h. */
static inline uint32_t zstd_layers(unsigned n)
{
	return n ? 0x11111111u >> (32 - 4 * n) : 0;
}
/*
 * n bytes as zstd frames of at most `frame` bytes each, without content size, as torch writes
 * them; the caller frees. frame 0: one frame.
 */
uint8_t *zstd_pack(const void *p, size_t n, size_t frame, size_t *ret_n);

#endif
