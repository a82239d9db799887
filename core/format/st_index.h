/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_index - the index beside the files of a model in several safetensors files
 * (model.safetensors.index.json): {"metadata": {...}, "weight_map": {"TENSOR": "FILE", ...}}.
 * Private to core/format.
 *
 * Threads: a parsed index is immutable.
 */
#ifndef FORMAT_ST_INDEX_H
#define FORMAT_ST_INDEX_H

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;

struct st_index_entry {
	const char *tensor, *file; /* file: a path below the index's directory */
};

struct st_index {
	void *json;			/* owns the strings */
	struct st_index_entry *entries; /* by tensor */
	size_t n_entries;
	const char **files; /* by name, each once */
	size_t n_files;
};

/* *ret is empty on failure. */
int st_index_parse(const char *text, size_t len, struct st_index *ret, struct ckpt_err *e);
void st_index_release(struct st_index *x);
bool st_index_names_file(const struct st_index *x, const char *file);

#endif
