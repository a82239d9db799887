/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_index - the index beside the files of a model in several (model.safetensors.index.json,
 * pytorch_model.bin.index.json): {"metadata": {...}, "weight_map": {"TENSOR": "FILE", ...}}.
 * Private to core/format.
 *
 * Threads: a parsed index is immutable.
 */
#ifndef FORMAT_ST_INDEX_H
#define FORMAT_ST_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct ckpt_err;
struct place;
struct place_seen;

/* Tensors that an index may name: some ten times those of the largest models. */
#define ST_INDEX_MAX ((size_t)4 << 20)

struct st_index_entry {
	const char *tensor, *file; /* file: a path below the index's directory */
	bool found;		   /* set by the caller that looks for them */
};

struct st_index {
	char *text;			/* owns the strings */
	struct st_index_entry *entries; /* by tensor */
	size_t n_entries;
	const char **files; /* by name, each once */
	size_t n_files;
};

/* text has room for a NUL at its end; on success it is taken over. *ret is empty on failure. */
int st_index_parse(char *text, size_t len, struct st_index *ret, struct ckpt_err *e);
/* The file of that name; *seen is it, and ret_hash (if not NULL) its XXH3-128, for
 * catalog_add_metadata. */
int st_index_read(struct place *place, const char *name, struct st_index *ret,
		  struct place_seen *seen, uint64_t ret_hash[2], struct ckpt_err *e);
void st_index_release(struct st_index *x);
struct st_index_entry *st_index_find(const struct st_index *x, const char *tensor);
bool st_index_names_file(const struct st_index *x, const char *file);

#endif
