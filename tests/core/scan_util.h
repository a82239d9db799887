/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan_util - scans a directory with its format's reader into a catalog in memory, and prints that.
 */
#ifndef TESTS_SCAN_UTIL_H
#define TESTS_SCAN_UTIL_H

struct catalog;
struct ckpt_err;
struct scan_opts;

/* file: one of its files that is a checkpoint, or NULL. */
int scan_file(int dirfd, const char *file, const struct scan_opts *o, struct catalog **ret,
	      struct ckpt_err *e);
int scan_dir(int dirfd, const struct scan_opts *o, struct catalog **ret, struct ckpt_err *e);
/* Fails the test unless the directory is a checkpoint with this catalog_text. */
void scan_expect(int dirfd, const char *want);

/*
 * Scans the directory again and again, with one bit of the file flipped each time: whatever comes of it
 * is a catalog, or an error with a sentence. How often: see rng_rounds.
 */
typedef int scan_fn(struct catalog **ret, struct ckpt_err *e);
void scan_flipped(int dirfd, const char *name, scan_fn *scan, unsigned many, unsigned few);

/*
 * Scans the directory again and again, without memory for one call each time (SQLite's calls, too),
 * then with one that cannot read or open: it is an error with a sentence, or the catalog is the same.
 */
void scan_failing(int dirfd);

/* "w float32 [4] complete: [0]+[2]@file:0+10,enc ...; o object: file:0+10,enc; "; free it. */
char *catalog_text(struct catalog *c);

#endif
