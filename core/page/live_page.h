/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live_page - the page in the tree, .ckptfs/view/index.html, and the data that it loads, data.js: a
 * script that calls ckptfsData with an object, whose members are the sections of a report.
 *
 * Both depend on nothing but the checkpoint and its options, or the run, whose data is the list of
 * its checkpoints.
 *
 * Threads: any.
 */
#ifndef PAGE_LIVE_PAGE_H
#define PAGE_LIVE_PAGE_H

#include <stdbool.h>
#include <stddef.h>

struct ckpt;
struct ckpt_err;

/* path: for the title. The caller frees *ret. */
int live_page(const char *path, char **ret, size_t *ret_len, struct ckpt_err *e);
/* options: see ckpt_opts_words. in_run: .ckptfs/view/data.js of the run is three directories up
 * from the checkpoint's. */
int live_data(struct ckpt *c, const char *path, const char *const *options, bool in_run, char **ret,
	      size_t *ret_len, struct ckpt_err *e);

#endif
