/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_file - where `report` and `diff --report` put a page.
 *
 * Threads: one.
 */
#ifndef FS_CMD_PAGE_FILE_H
#define FS_CMD_PAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;

/* "-": standard output. Otherwise also prints the size on standard error, unless quiet. */
int page_file_write(const char *path, const char *page, size_t len, bool quiet, struct ckpt_err *e);

#endif
