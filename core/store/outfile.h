/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outfile - a data file of a checkpoint being written: bytes and sources, one after another,
 * through one buffer; it is on disk when finished.
 *
 *	struct outfile f = OUTFILE_INIT;
 *	outfile_open(&f, staging, "__0_0.distcp", &opts, &e);
 *	outfile_write(&f, header, n, &e);
 *	outfile_source(&f, &source, &e);
 *	outfile_finish(&f, &e);
 *	outfile_release(&f);                 // always
 *
 * Errors name the file. Private to core/store. Threads: one at a time for each.
 */
#ifndef STORE_OUTFILE_H
#define STORE_OUTFILE_H

#include "store/staging.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_data;

struct outfile_opts {
	size_t buffer; /* bytes per file being written; 0: 4 MiB */
	/* `bytes` more of tensors and objects have been written; called from any thread; may be
	 * NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

struct outfile {
	struct staging_file to;
	const struct staging *staging; /* borrowed, as is the name */
	const char *name;
	uint64_t size; /* bytes so far */
	const struct outfile_opts *opts;
	char *buf;
	size_t cap;
};

#define OUTFILE_INIT \
	{ \
		.to = STAGING_FILE_INIT \
	}

int outfile_open(struct outfile *f, struct staging *s, const char *name,
		 const struct outfile_opts *opts, struct ckpt_err *e);
int outfile_write(struct outfile *f, const void *p, size_t n, struct ckpt_err *e);
/* Appends the whole source. */
int outfile_source(struct outfile *f, const struct ckpt_data *src, struct ckpt_err *e);
int outfile_finish(struct outfile *f, struct ckpt_err *e);
void outfile_release(struct outfile *f);

#endif
