/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_base - shared by the storage writers of this library: the directory that all ranks fill,
 * the list of results, and writing items to safetensors files. Private to core/store.
 *
 * Threads: one at a time for each writer.
 */
#ifndef STORE_WRITER_BASE_H
#define STORE_WRITER_BASE_H

#include "base/arena.h"
#include "save/metadata.h"
#include "source/place.h"
#include "store/outfile.h"
#include "tensor/tensor_info.h"
#include <ckptfs/ckpt_storage.h>

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;
struct ckpt_save_planner;
struct st_note;
struct staging;

struct writer_base {
	const char *const *over; /* see staging_check */
	struct staging_how how;	 /* see writer_place */
	struct place_options place;
	struct outfile_opts out;
	struct ckpt_storage_ranks ranks;
	char *id;
	struct staging *staging;
	struct arena arena; /* everything that lives until the next reset */
	struct ckpt_write_result *results;
	size_t n_results;
};

/*
 * Makes a writer of `size` bytes whose first member is a struct writer_base; the rest is zeroed.
 * Returns self (NULL: ENOMEM). out may be NULL.
 */
void *writer_new(size_t size, bool overwrite, const struct outfile_opts *out,
		 const struct ckpt_storage_writer_ops *ops, struct ckpt_storage_writer *ret,
		 struct ckpt_err *e);

/* Functions for struct ckpt_storage_writer_ops, used directly or called by others. */
int writer_validate(void *self, const char *id, struct ckpt_err *e);
int writer_reset(void *self, const char *id, struct ckpt_err *e);
/* The coordinator creates the directory here; other ranks join when they write their first file. */
int writer_set_up(void *self, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e);
void writer_free(void *self);

/* Call before the first file: opens the directory and makes room for n results. */
int writer_begin_data(struct writer_base *b, size_t n, struct ckpt_err *e);
void writer_add_result(struct writer_base *b, const struct ckpt_write_item *item,
		       const struct ckpt_storage_info *info);
/* Everything is on disk; ranks other than the coordinator close the directory. */
int writer_end_data(struct writer_base *b, struct ckpt_write_results *ret, struct ckpt_err *e);
/* Copies all ranks' results into the metadata, rank by rank. */
int writer_join_results(struct writer_base *b, const struct ckpt_write_results *all, size_t n,
			struct ckpt_metadata *md, struct ckpt_err *e);
/* The coordinator, when everything is written: the directory becomes the checkpoint. */
int writer_commit(struct writer_base *b, struct ckpt_err *e);

/* Memory from the arena, or NULL with ENOMEM set. */
void *writer_array(struct writer_base *b, size_t n, size_t size, struct ckpt_err *e);
char *writer_printf(struct writer_base *b, struct ckpt_err *e, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* An item's bytes; there must be as many as its chunk has. Close it with ckpt_data_close. */
int writer_get_source(const struct ckpt_write_item *item, struct ckpt_save_planner *p,
		      struct ckpt_data *ret, struct ckpt_err *e);
/* Appends an item's bytes to the file; there must be as many as its chunk has. */
int writer_put_source(struct outfile *f, const struct ckpt_write_item *item,
		      struct ckpt_save_planner *p, struct ckpt_err *e);

/* Items for a safetensors file: m[i] has the name of items[i] there, and its box. */
struct st_items {
	const struct tensor_info *m;
	const struct ckpt_write_item *const *items;
	size_t n;
	const struct st_note *notes;
	size_t n_notes;
};
/* m for an item under its own name; ERR_UNSUPPORTED if safetensors cannot hold it. */
int st_item_member(const struct ckpt_write_item *item, struct tensor_info *ret, struct ckpt_err *e);
int writer_put_tensors(struct writer_base *b, const char *file, const struct st_items *t,
		       struct ckpt_save_planner *p, struct ckpt_err *e);

#endif
