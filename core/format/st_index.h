/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_index - the index of a model in several files (model.safetensors.index.json,
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

struct catalog_writer;
struct ckpt_err;
struct digest;
struct place;
struct place_seen;

/* Limit on the tensors that an index may name: about ten times as many as the largest models
 * have. */
#define ST_INDEX_MAX ((size_t)4 << 20)

struct st_index_entry {
	const char *tensor, *file; /* file: a path relative to the index's directory */
	/* Set by the caller that searches for the tensors: it is there; or it is in this file
	 * instead, or in several. */
	bool found, in_several;
	const char *instead;
};

struct st_index {
	char *text;			/* owns the strings */
	struct st_index_entry *entries; /* by tensor */
	size_t n_entries;
	const char **files; /* sorted, without duplicates */
	size_t n_files;
};

/* text must have room for a NUL at its end; on success *ret owns it. On failure *ret is empty. */
int st_index_parse(char *text, size_t len, struct st_index *ret, struct ckpt_err *e);
/* Reads the index with that name. *seen identifies the file, and ret_hash (if not NULL) is its
 * XXH3-128, for catalog_add_metadata. */
int st_index_read(struct place *place, const char *name, struct st_index *ret,
		  struct place_seen *seen, struct digest *ret_hash, struct ckpt_err *e);
void st_index_release(struct st_index *x);
struct st_index_entry *st_index_find(const struct st_index *x, const char *tensor);
bool st_index_names_file(const struct st_index *x, const char *file);

/* Lists a tensor that no file holds as one that cannot be read. file_is_there: the index is wrong
 * about it. */
int st_index_add_absent(const struct st_index_entry *x, bool file_is_there,
			struct catalog_writer *w, struct ckpt_err *e);

/*
 * Tensors that are shown although the index does not name them, or places them in another file:
 * Hugging Face's libraries load all that the files hold. How many, and the first.
 */
struct st_index_differs {
	size_t n;
	char tensor[60], file[48]; /* as messages show them */
};
void st_index_note(struct st_index_differs *d, const char *tensor, size_t len, const char *file);
/* Adds the object FORMAT_INDEX_DIFFERS if there are any. */
int st_index_tell(const char *index_name, const struct st_index_differs *unnamed,
		  const struct st_index_differs *elsewhere, struct catalog_writer *w,
		  struct ckpt_err *e);

#endif
