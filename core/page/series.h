/* SPDX-License-Identifier: Apache-2.0 */
/*
 * series - how the stored tensors of a checkpoint changed in the course of its run.
 *
 *	struct series s = { 0 };
 *	series_read(&s, run, latest, &o, &e);
 *	series_write(&s, &page, room, &e);
 *	series_release(&s);
 *
 * Threads: one at a time.
 */
#ifndef PAGE_SERIES_H
#define PAGE_SERIES_H

#include <ckptfs/ckpt_report.h>

enum { SERIES_RMS, SERIES_MAX, SERIES_RELATIVE, SERIES_SHARE, SERIES_NUMBERS };

/* A tensor in a checkpoint. */
struct series_point {
	float numbers[SERIES_NUMBERS]; /* NaN: unknown */
	uint64_t nan;		       /* elements */
};

struct series {
	char **names; /* of the checkpoints */
	size_t n_names, cap_names;
	struct series_point *points; /* of a tensor, n_names in a row */
	size_t n_points, cap_points;
	size_t *first; /* of each tensor of the latest checkpoint: 1 + its first point; 0: none */
	uint64_t tensors;
};

/*
 * The tensors of `latest` in the run's complete checkpoints, n of them; reads all elements. Nothing
 * if there is one checkpoint only, or if it is more than ckpt_series can have.
 */
int series_read(struct series *s, struct ckpt *run, size_t n, struct ckpt *latest,
		const struct ckpt_report *o, struct ckpt_err *e);
/* Writes a section of at most `room` bytes: if there is too much, with every k-th checkpoint. */
struct page;
int series_write(const struct series *s, struct page *p, size_t room, struct ckpt_err *e);
void series_release(struct series *s);

#endif
