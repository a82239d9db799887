/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scan_util - scans a directory with its format's reader into a catalog in memory, and prints that.
 */
#ifndef TESTS_SCAN_UTIL_H
#define TESTS_SCAN_UTIL_H

struct catalog;
struct ckpt_err;
struct place;
struct scan_opts;

/* file: NULL, or one of the directory's files that is a checkpoint by itself. */
int scan_file(int dirfd, const char *file, const struct scan_opts *o, struct catalog **ret,
	      struct ckpt_err *e);
int scan_place(struct place *place, const char *file, const struct scan_opts *o,
	       struct catalog **ret, struct ckpt_err *e);
int scan_dir(int dirfd, const struct scan_opts *o, struct catalog **ret, struct ckpt_err *e);
/* Fails the test unless the directory is a checkpoint with this catalog_text. */
void scan_expect(int dirfd, const char *want);

/*
 * Scans the directory again and again, with one bit of the file flipped each time. The result must
 * be a catalog, or an error with a sentence. How often: see rng_rounds.
 */
typedef int scan_fn(struct catalog **ret, struct ckpt_err *e);
void scan_flipped(int dirfd, const char *name, scan_fn *scan, unsigned many, unsigned few);

/*
 * Scans the directory again and again. First one allocation fails each time (SQLite's, too), later
 * one call that reads or opens. There must be an error with a sentence, or the same catalog.
 */
void scan_failing(int dirfd);

/* "w float32 [4] complete: [0]+[2]@file:0+10,enc ...; o object: file:0+10,enc; "; free it. */
char *catalog_text(struct catalog *c);

#endif
