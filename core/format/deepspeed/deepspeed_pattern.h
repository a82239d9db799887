/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_pattern - the subset of Python's regular expressions that parameter names are matched
 * with. They come from a checkpoint, so matching takes time proportional to the lengths of the
 * pattern and the name, whatever they are, and all work has a budget. Private to
 * core/format/deepspeed.
 *
 * Supported: . [a-z] [^a-z] \d \w \s and their opposites, escaped punctuation, groups, |, * + ?
 * {m,n}, and ^ and $ at the ends.
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

/*
 * A budget for compiling or matching: a function reduces it by its work. 0 afterwards means that it
 * was exceeded, and that the result is meaningless.
 */
#define DS_PATTERN_WORK ((uint64_t)1 << 31)

/* ERR_UNSUPPORTED: the pattern is outside the subset, or exceeds the budget. */
int ds_pattern_new(const char *text, uint64_t *work, struct ds_pattern **ret, struct ckpt_err *e);
void ds_pattern_free(struct ds_pattern *p); /* NULL is fine */

/* Like Python's re.match: does the pattern match a beginning of the text? */
bool ds_pattern_match(struct ds_pattern *p, const char *s, size_t len, uint64_t *work);

#endif
