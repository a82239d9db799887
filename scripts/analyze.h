/* SPDX-License-Identifier: Apache-2.0 */
/* For scripts/analyze.sh, in front of every file: an analyser that reads one file at a time cannot
 * know that these never return 0, and takes the way on after a failure for one that can be gone. */
#include "base/err.h"

#define err_set(e, code, ...) (err_set(e, code, __VA_ARGS__), -1)
#define err_sys(e, code, ...) (err_sys(e, code, __VA_ARGS__), -1)
#define err_wrap(e, ...)      (err_wrap(e, __VA_ARGS__), -1)
