/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torchsave - shared by the files that read torch.save's format: opening a file, and the walk over
 * the saved value. Private to core/format.
 *
 * Threads: one at a time.
 */
#ifndef TORCH_TORCHSAVE_H
#define TORCH_TORCHSAVE_H

#include "base/blob.h"
#include "base/digest.h"
#include "format/st_index.h"
#include "parse/pickle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct tensor_chunks;
struct torch_tensor;

enum torchsave_kind {
	TORCHSAVE_NONE,
	TORCHSAVE_ZIP,
	TORCHSAVE_LEGACY, /* a stream of pickles, then storages: before torch 1.6 */
	TORCHSAVE_TAR,	  /* of torch's first versions, see torchsave_tar.h */
	TORCHSAVE_SCRIPT, /* a program of torch.jit.save */
};

/* A negative errno if it is a ZIP archive that cannot be read. */
int torchsave_kind(const struct blob *file, enum torchsave_kind *ret, struct ckpt_err *e);

/* A storage's bytes in the file. */
struct torchsave_storage {
	uint64_t at, bytes;
	enum { STORAGE_NONE, STORAGE_MEMBER, STORAGE_FOUND } state;
	uint8_t element; /* bytes; legacy only */
};

struct torchsave {
	const struct blob *file;
	struct pickle *pickle; /* what was saved */
	bool big_endian;
	struct pk_strings *strings;
	struct torchsave_storage *storages; /* by string id of their key */
	size_t n_storages;
	struct torchsave_tar *tar;
	struct digest sums; /* of the CRCs in an archive's directory */
	bool has_sums;	    /* of all members: equal sums mean equal archives */
	uint64_t visits;    /* of values, which reports may still make */
	uint64_t again;	    /* tensors and objects that they may still list again */
	uint64_t text;	    /* bytes that reports may still write of objects */
	bool walked;
	uint32_t (*named)[2]; /* by string id: how many tensors and objects have this name */
	size_t named_cap;
	uint64_t *seen; /* by string id: the last dict looked at that has it as a key */
	size_t seen_cap;
	uint64_t n_dicts;		 /* looked at */
	struct torchsave_shared *shared; /* see torchsave_shared.c; NULL: nothing yet */
};

/* Reads the pickle and locates the storages. Call torchsave_release even if it fails. */
int torchsave_open(struct torchsave *t, const struct blob *file, struct ckpt_err *e);
void torchsave_release(struct torchsave *t);
/* The entry of a key, which may be NULL: too many; the table grows as needed, and moves. */
int torchsave_storage_of(struct torchsave *t, const struct pk_str *key,
			 struct torchsave_storage **ret, struct ckpt_err *e);
/* A pickle somewhere in the file, without persistent ids. */
int torchsave_load(struct torchsave *t, uint64_t at, uint64_t len, struct pickle **ret,
		   struct ckpt_err *e);
/* Where the storage of a tensor begins; fails if the storage is not as large as the pickle says. */
int torchsave_find(struct torchsave *t, const struct torch_tensor *tensor, uint64_t *ret,
		   struct ckpt_err *e);

/* The index that says which tensors belong where, and how the files differ from it. */
struct torchsave_expected {
	const struct st_index *index; /* the entries of what is found are marked */
	struct st_index_differs unnamed, elsewhere;
	/* The file is read once more, for what it has instead of the file that the index names. */
	bool again;
};

/* Reports all tensors and objects to the catalog as parts of data file `name`. expected: or
 * NULL. */
int torchsave_report(struct torchsave *t, const char *name, struct torchsave_expected *expected,
		     struct catalog_writer *w, struct ckpt_err *e);
/* The same for a part of what was saved, under a name of at least one step; steps ends in NULL. */
int torchsave_report_at(struct torchsave *t, const char *name, const struct pk_value *v,
			const char *const steps[], struct catalog_writer *w, struct ckpt_err *e);
/*
 * Scale, zero point and axis of the saved value, if it is a quantised tensor, under its name and a
 * word more. base: where the archive begins in data file `name`.
 */
int torchsave_report_quantiser(struct torchsave *t, const char *name, uint64_t base,
			       const char *fqn, size_t fqn_len, const uint8_t *path,
			       struct catalog_writer *w, struct ckpt_err *e);

/* The name of the class if the saved value is a tensor that is made of others, or NULL; it lives as
 * long as t. */
const char *torchsave_wrapper_class(struct torchsave *t);
/* Is a name in use already? */
typedef bool torchsave_taken_fn(const void *arg, const char *name, size_t len);
/* Called for a tensor that is an attribute, with how it would be reported, which it may change; 1:
 * it is not reported. */
typedef int torchsave_part_fn(void *arg, const char *attribute, size_t len, struct tensor_chunks *c,
			      struct ckpt_err *e);
struct torchsave_wrapped {
	const char *name; /* of the data file */
	uint64_t base;	  /* where the archive begins in it */
	const char *fqn;  /* of the tensor, and its path, see catalog_path.h */
	size_t fqn_len;
	const uint8_t *path;
	torchsave_taken_fn *taken; /* NULL: none is */
	const void *taken_arg;
	/* For a tensor that several archives have parts of: */
	const uint64_t *shape; /* of all of it; NULL: what the archive says */
	size_t n_dims;
	torchsave_part_fn *part; /* may be NULL */
	void *part_arg;
	bool only_parts; /* nothing else is reported */
};
/* Reports a tensor that is made of others: itself, as an object, and these; 1 if it is one. */
int torchsave_report_wrapped(struct torchsave *t, const struct torchsave_wrapped *how,
			     struct catalog_writer *w, struct ckpt_err *e);

#endif
