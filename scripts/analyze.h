/* SPDX-License-Identifier: Apache-2.0 */
/* scripts/analyze.sh includes this in front of every file. An analyser that reads one file at a time cannot
 * know that these functions never return 0, and would follow paths on which a failure counts as success. */
#include "base/err.h"

#define err_set(e, code, ...) (err_set(e, code, __VA_ARGS__), -1)
#define err_sys(e, code, ...) (err_sys(e, code, __VA_ARGS__), -1)
#define err_wrap(e, ...)      (err_wrap(e, __VA_ARGS__), -1)
