/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat_series - `ckptfs stat` of a run: how tensors change from checkpoint to checkpoint.
 *
 * Threads: one.
 */
#ifndef FS_CMD_STAT_SERIES_H
#define FS_CMD_STAT_SERIES_H

struct ckpt;
struct options;

/* An exit status. */
int stat_series(struct ckpt *run, const struct options *o);

#endif
