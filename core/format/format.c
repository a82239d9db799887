/* SPDX-License-Identifier: Apache-2.0 */
#include "format/format.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const struct format *const formats[] = { &format_dcp };

int name_list_add(struct name_list *l, const char *name, struct err *e)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 8;
		char **v = realloc(l->v, cap * sizeof(*v));

		if (!v)
			return err_set(e, ENOMEM, "out of memory");
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n] = strdup(name);
	if (!l->v[l->n])
		return err_set(e, ENOMEM, "out of memory");
	l->n++;
	return 0;
}

static int by_name(const void *ap, const void *bp)
{
	const char *a = *(char *const *)ap, *b = *(char *const *)bp;

	return text_natural_cmp(a, strlen(a), b, strlen(b));
}

void name_list_sort(struct name_list *l)
{
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_name);
}

void name_list_release(struct name_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct name_list){ 0 };
}

int format_detect(int dirfd, const struct format **ret, struct name_list *files, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		int rc = formats[i]->probe(dirfd, files, e);

		if (rc < 0)
			return rc;
		if (rc) {
			*ret = formats[i];
			return 0;
		}
		name_list_release(files);
	}
	return err_set(e, ENOENT, "not a checkpoint: neither .metadata nor __N.metadata is there");
}
