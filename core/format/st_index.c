/* SPDX-License-Identifier: Apache-2.0 */
#include "format/st_index.h"

#include "base/err.h"
#include "base/io.h"
#include "parse/json_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static int by_tensor(const void *ap, const void *bp)
{
	const struct st_index_entry *a = ap, *b = bp;

	return strcmp(a->tensor, b->tensor);
}

static int by_string(const void *ap, const void *bp)
{
	return strcmp(*(const char *const *)ap, *(const char *const *)bp);
}

static int read_entries(struct st_index *x, const json_t *map, struct ckpt_err *e)
{
	const char *tensor;
	json_t *v;

	json_object_foreach ((json_t *)(uintptr_t)map, tensor, v) {
		const char *file = json_string_value(v);

		if (!file)
			return err_set(e, ERR_CORRUPT, "weight_map: '%.200s': not a file name",
				       tensor);
		if (io_check_relative(file, strlen(file), e))
			return err_wrap(e, "weight_map: '%.100s'", tensor);
		x->files[x->n_entries] = file;
		x->entries[x->n_entries++] = (struct st_index_entry){ tensor, file };
	}
	return 0;
}

static void sort(struct st_index *x)
{
	qsort(x->entries, x->n_entries, sizeof(*x->entries), by_tensor);
	qsort(x->files, x->n_entries, sizeof(*x->files), by_string);
	for (size_t i = 0; i < x->n_entries; i++)
		if (!i || strcmp(x->files[x->n_files - 1], x->files[i]) != 0)
			x->files[x->n_files++] = x->files[i];
}

int st_index_parse(const char *text, size_t len, struct st_index *ret, struct ckpt_err *e)
{
	struct st_index x = { 0 };
	const json_t *map;
	json_error_t why;
	json_t *root = json_text_load(text, len, JSON_REJECT_DUPLICATES, &why);
	int rc;

	if (!root)
		return err_set(e, json_text_code(&why, ERR_CORRUPT), "not JSON: %s, in line %d",
			       why.text, why.line);
	x.json = root;
	map = json_object_get(root, "weight_map");
	if (!json_object_size(map)) {
		rc = err_set(e, ERR_CORRUPT, "no weight_map that names a tensor");
	} else {
		x.entries = calloc(json_object_size(map), sizeof(*x.entries));
		x.files = calloc(json_object_size(map), sizeof(*x.files));
		rc = x.entries && x.files ? read_entries(&x, map, e)
					  : err_set(e, ENOMEM, "out of memory");
	}
	if (rc) {
		st_index_release(&x);
		return rc;
	}
	sort(&x);
	*ret = x;
	return 0;
}

void st_index_release(struct st_index *x)
{
	json_decref(x->json);
	free(x->entries);
	free(x->files);
	*x = (struct st_index){ 0 };
}

bool st_index_names_file(const struct st_index *x, const char *file)
{
	return x->n_files &&
	       bsearch(&file, x->files, x->n_files, sizeof(*x->files), by_string) != NULL;
}
