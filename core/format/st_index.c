/* SPDX-License-Identifier: Apache-2.0 */
#include "format/st_index.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "base/text.h"
#include "format/format.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limit on an index: the one that safetensors has for headers. */
#define MAX_INDEX ((size_t)100000000)

static int by_tensor(const void *ap, const void *bp)
{
	const struct st_index_entry *a = ap, *b = bp;

	return strcmp(a->tensor, b->tensor);
}

static int by_string(const void *ap, const void *bp)
{
	return strcmp(*(const char *const *)ap, *(const char *const *)bp);
}

static int read_entries(struct st_index *x, struct jval map, struct ckpt_err *e)
{
	struct jiter i = jiter(map);
	size_t n = jval_size(map);

	if (!jval_is(map, J_OBJECT) || !n)
		return err_set(e, ERR_CORRUPT, "no weight_map that names a tensor");
	if (n > ST_INDEX_MAX)
		return err_set(e, EFBIG, "weight_map: %zu tensors, more than %zu", n, ST_INDEX_MAX);
	x->entries = calloc(n, sizeof(*x->entries));
	x->files = calloc(n, sizeof(*x->files));
	if (!x->entries || !x->files)
		return err_nomem(e);
	while (jiter_next(&i)) {
		const char *file = jval_str(i.v);

		if (!file)
			return err_set(e, ERR_CORRUPT, "weight_map: '%.200s': not a file name",
				       i.key);
		if (io_check_relative(file, strlen(file), e))
			return err_wrap(e, "weight_map: '%.100s'", i.key);
		x->files[x->n_entries] = file;
		x->entries[x->n_entries++] =
			(struct st_index_entry){ .tensor = i.key, .file = file };
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

int st_index_parse(char *text, size_t len, struct st_index *ret, struct ckpt_err *e)
{
	struct st_index x = { 0 };
	struct jdoc d = { 0 };
	struct ckpt_err why;
	int rc;

	if (jdoc_parse(&d, text, len, 0, &why))
		return err_set(e, why.code, "%s%s, in line %zu",
			       why.code == ERR_CORRUPT ? "not JSON: " : "", why.msg, d.line);
	rc = read_entries(&x, jval_get(jdoc_root(&d), "weight_map"), e);
	jdoc_release(&d);
	if (rc) {
		st_index_release(&x);
		return rc;
	}
	sort(&x);
	x.text = text;
	*ret = x;
	return 0;
}

void st_index_release(struct st_index *x)
{
	free(x->entries);
	free(x->files);
	free(x->text);
	*x = (struct st_index){ 0 };
}

int st_index_read(struct place *place, const char *name, struct st_index *ret,
		  struct place_seen *seen, struct digest *ret_hash, struct ckpt_err *e)
{
	struct small_file file CLEANUP(small_file_release) = { 0 };
	int rc = small_file_read(place, name, MAX_INDEX, &file, e);

	if (rc)
		return rc;
	if (ret_hash)
		*ret_hash = digest_of(XXH3_128bits(file.bytes, file.len));
	*seen = file.seen;
	rc = st_index_parse(file.bytes, file.len, ret, e);
	if (rc)
		return err_wrap(e, "read '%s'", name);
	file.bytes = NULL; /* the index owns them now */
	return 0;
}

struct st_index_entry *st_index_find(const struct st_index *x, const char *tensor)
{
	const struct st_index_entry key = { .tensor = tensor };

	return bsearch(&key, x->entries, x->n_entries, sizeof(key), by_tensor);
}

bool st_index_names_file(const struct st_index *x, const char *file)
{
	return x->n_files &&
	       bsearch(&file, x->files, x->n_files, sizeof(*x->files), by_string) != NULL;
}

/* ---- where it differs from the files ---- */

int st_index_add_absent(const struct st_index_entry *x, bool file_is_there,
			struct catalog_writer *w, struct ckpt_err *e)
{
	struct object_item o = { .fqn = x->tensor,
				 .fqn_len = strlen(x->tensor),
				 .path = catalog_path_flat,
				 .loc = { .file = CATALOG_NO_FILE } };

	return format_add_absent(&o, x->file, file_is_there, w, e);
}

void st_index_note(struct st_index_differs *d, const char *tensor, size_t len, const char *file)
{
	if (d->n++)
		return;
	(void)text_show(tensor, len, d->tensor, sizeof(d->tensor));
	(void)text_show(file, strlen(file), d->file, sizeof(d->file));
}

/* "'a' of 'x.safetensors' and 3 more tensors" */
static const char *show(const struct st_index_differs *d, char out[static 200])
{
	int at = snprintf(out, 200, "'%s' of '%s'", d->tensor, d->file);

	if (d->n > 1)
		(void)snprintf(out + at, 200 - (size_t)at, " and %zu more tensor%s", d->n - 1,
			       text_s(d->n - 1));
	return out;
}

int st_index_tell(const char *index_name, const struct st_index_differs *unnamed,
		  const struct st_index_differs *elsewhere, struct catalog_writer *w,
		  struct ckpt_err *e)
{
	char note[FORMAT_NOTE] = "", a[200], b[200];

	if (unnamed->n && elsewhere->n)
		(void)format_note(note, "'%.60s' does not name %s, and places %s in another file",
				  index_name, show(unnamed, a), show(elsewhere, b));
	else if (unnamed->n)
		(void)format_note(note, "'%.60s' does not name %s", index_name, show(unnamed, a));
	else if (elsewhere->n)
		(void)format_note(note, "'%.60s' places %s in another file", index_name,
				  show(elsewhere, b));
	return format_tell(FORMAT_INDEX_DIFFERS, note, w, e);
}
