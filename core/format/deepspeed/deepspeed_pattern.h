/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_pattern - the part of Python's regular expressions that names of parameters are matched
 * with. They come from a checkpoint, so that matching takes time in proportion to pattern and name,
 * whatever they are. Private to core/format/deepspeed.
 *
 * Known: . [a-z] [^a-z] \d \w \s and their opposites, escaped punctuation, groups, |, * + ? {m,n}, and
 * ^ and $ at the ends.
 *
 * Threads: one at a time.
 */
#ifndef DEEPSPEED_DEEPSPEED_PATTERN_H
#define DEEPSPEED_DEEPSPEED_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ds_pattern;

/* ERR_UNSUPPORTED: it is more than that. */
int ds_pattern_new(const char *text, struct ds_pattern **ret, struct ckpt_err *e);
void ds_pattern_free(struct ds_pattern *p); /* NULL is fine */

/* As Python's re.match: does it match a beginning of the text? *work is what may still be done, and 0
 * when that was not enough: the answer means nothing then. */
#define DS_PATTERN_WORK ((uint64_t)1 << 31)
bool ds_pattern_match(struct ds_pattern *p, const char *s, size_t len, uint64_t *work);

#endif
