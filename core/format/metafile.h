/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metafile - reads the metadata pickles of a checkpoint once: parses and hashes them, reports them
 * to the catalog, and shows progress over all of them. Private to core/format.
 *
 *	metafiles_init(&m, place, opts, e);
 *	metafiles_expect(&m, name);               // each; for the progress
 *	metafiles_read(&m, name, parse, arg, w, e); // each
 *	metafiles_release(&m);
 *
 * Threads: one at a time.
 */
#ifndef FORMAT_METAFILE_H
#define FORMAT_METAFILE_H

#include <stdint.h>

struct XXH3_state_s;
struct catalog_writer;
struct ckpt_err;
struct pickle_input;
struct place;
struct scan_opts;
struct source;

struct metafiles {
	struct place *place;
	const struct scan_opts *opts;
	struct XXH3_state_s *hash;
	uint64_t total, before; /* bytes of all files; bytes of those already read */
	/* The current file: */
	struct source *file;
	const char *name;
	uint64_t size, hashed; /* bytes; the pickle's second pass must not count twice */
};

int metafiles_init(struct metafiles *m, struct place *place, const struct scan_opts *opts,
		   struct ckpt_err *e);
void metafiles_release(struct metafiles *m);
void metafiles_expect(struct metafiles *m, const char *name);

typedef int metafile_parse_fn(void *arg, const struct pickle_input *in, struct ckpt_err *e);
/* Fails as parse does, and if the file is empty or changes meanwhile; errors name it. */
int metafiles_read(struct metafiles *m, const char *name, metafile_parse_fn *parse, void *arg,
		   struct catalog_writer *w, struct ckpt_err *e);

#endif
