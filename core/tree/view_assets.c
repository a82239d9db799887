/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the assets that the view itself needs. */
#include "base/err.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void asset_text_release(struct asset_text *t)
{
	free(t->s);
}

int view_read_asset(const struct view *v, const char *name, uint64_t max, struct asset_text *ret,
		    struct ckpt_err *e)
{
	uint64_t size;
	size_t i = 0;
	int rc;

	while (i < v->o.n_assets && strcmp(v->o.assets[i].name, name) != 0)
		i++;
	if (i == v->o.n_assets || !v->o.read_asset)
		return 0;
	size = v->o.assets[i].size;
	if (size > max)
		return err_set(e, EFBIG, "%s has %llu bytes", name, (unsigned long long)size);
	ret->s = malloc(size + 1);
	if (!ret->s)
		return err_nomem(e);
	ret->len = size;
	rc = size ? v->o.read_asset(v->o.arg, i, ret->s, size, 0, e) : 0;
	ret->s[size] = 0;
	return rc ? err_wrap(e, "%s", name) : 0;
}
