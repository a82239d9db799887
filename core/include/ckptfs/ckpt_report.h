/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_report - an HTML page that shows what is in a checkpoint or a run: its tensors as a tree and
 * as a map of bytes, where their chunks are, and, on request, statistics of their values.
 *
 *	struct ckpt_report r = { .path = "run/step-1000" };
 *	if (ckpt_report(c, &r, &page, &len, &e))
 *		errx(2, "%s", e.msg);
 *
 * The page is one file that needs no network. Names in it may be any bytes: they are data, never
 * markup.
 *
 * ckpt_diff_report makes such a page that compares two checkpoints: what one of them lacks, which
 * tensors changed, by how much, and where.
 *
 * Threads: call it from any thread; callbacks run on the calling thread.
 */
#ifndef CKPTFS_CKPT_REPORT_H
#define CKPTFS_CKPT_REPORT_H

#include "ckpt.h"
#include "ckpt_diff.h"

CKPT_BEGIN

struct ckpt_report {
	const char *path;    /* of the checkpoint, for the title and for commands on the page */
	const char *program; /* named as the maker of the page: "ckptfs 0.5.1"; NULL: the library */
	const char *const *options; /* with which c was opened, for commands on the page; or NULL */
	bool stat;		    /* read all values; for a run, those of every checkpoint */
	unsigned jobs;		    /* for reading values, as in struct ckpt_values_scan */
	/*
	 * Opens a checkpoint of the run; the callee closes it with ckpt_close. NULL: open with the
	 * options.
	 */
	int (*open)(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e);
	/* Bytes of values; starts again at 0 for each checkpoint. May be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void (*warn)(void *arg, const char *what); /* values that cannot be read; may be NULL */
	void *arg;
};

/*
 * The caller frees *ret with free(). A tensor or a checkpoint of a run that cannot be opened is
 * shown with the reason. EFBIG: the page would exceed 2 GiB.
 */
CKPT_API int ckpt_report_sized(struct ckpt *c, const struct ckpt_report *r, size_t size, char **ret,
			       size_t *ret_len, struct ckpt_err *e);
static inline int ckpt_report(struct ckpt *c, const struct ckpt_report *r, char **ret,
			      size_t *ret_len, struct ckpt_err *e)
{
	return ckpt_report_sized(c, r, sizeof(*r), ret, ret_len, e);
}

/* The first members are those of struct ckpt_report, the others of struct ckpt_diff. */
struct ckpt_diff_report {
	const char *path_a, *path_b;
	const char *program;
	const char *const *options; /* with which both were opened */
	const char *const *globs;
	bool model;
	unsigned jobs;
	int (*each)(void *arg, const struct ckpt_diff_item *item); /* may be NULL */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
	/* Results: */
	uint64_t names, counts[CKPT_DIFF_RESULTS];
};

/* Compares all elements, as ckpt_diff does with `values`. The caller frees *ret with free(). */
CKPT_API int ckpt_diff_report_sized(struct ckpt *a, struct ckpt *b, struct ckpt_diff_report *r,
				    size_t size, char **ret, size_t *ret_len, struct ckpt_err *e);
static inline int ckpt_diff_report(struct ckpt *a, struct ckpt *b, struct ckpt_diff_report *r,
				   char **ret, size_t *ret_len, struct ckpt_err *e)
{
	return ckpt_diff_report_sized(a, b, r, sizeof(*r), ret, ret_len, e);
}

CKPT_END

#endif
