/* SPDX-License-Identifier: Apache-2.0 */
/* layout_util - layouts out of texts. */
#ifndef TESTS_LAYOUT_UTIL_H
#define TESTS_LAYOUT_UTIL_H

#include "base/err.h"
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

/* Parses a copy of the text, as layout_parse changes it. */
static inline int parse_copy(const char *text, size_t len, const char *name, struct layout **ret,
			     struct ckpt_err *e)
{
	char *copy = malloc(len + 1);
	int rc;

	if (!copy)
		return err_nomem(e);
	memcpy(copy, text, len);
	rc = layout_parse(copy, len, name, ret, e);
	free(copy);
	return rc;
}

#endif
