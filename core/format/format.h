/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format - the checkpoint formats that can be read, one table entry and one file each.
 *
 * A format recognises a directory, lists the metadata files that describe it (the key of the chunk
 * index), and reports tensors, chunks and objects to the catalog writer. It sees neither SQL nor
 * views. To add one: write its file, add it to the table in format.c.
 *
 * Threads: pure apart from the file system.
 */
#ifndef FORMAT_FORMAT_H
#define FORMAT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct object_item;
struct place;

/* File names relative to the checkpoint, in natural order. */
struct name_list {
	char **v;
	size_t n, cap;
};

struct scan_opts {
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
	void *progress_arg;
};

struct format {
	const char *name;
	bool names_one; /* a directory of several checkpoints says which of them it stands for */
	/* 1 and the metadata files if the directory is such a checkpoint or, if file is not NULL,
	 * that file is one; else 0; < 0 with a sentence if it looks like one but cannot be read. */
	int (*probe)(struct place *place, const char *file, struct name_list *files,
		     struct ckpt_err *e);
	/* Instead of probe: of directories only, and the files may be in any order. */
	int (*probe_dir)(struct place *place, struct name_list *files, struct ckpt_err *e);
	int (*scan)(struct place *place, const struct name_list *files,
		    const struct scan_opts *opts, struct catalog_writer *w, struct ckpt_err *e);
};

/* Like a format's probe; *ret is the format that recognised the checkpoint. */
int format_probe(struct place *place, const char *file, const struct format **ret,
		 struct name_list *files, struct ckpt_err *e);
/* The format of a directory, or of a file in it; if there is none, an error that lists what was
 * looked for. */
int format_detect(struct place *place, const char *file, const struct format **ret,
		  struct name_list *files, struct ckpt_err *e);

/* Refuses a checkpoint of which this file is there, and whose other files can only be found in a
 * listing of its directory: a web server lists nothing. */
int format_refuse_unlisted(const char *name, struct ckpt_err *e);

/* Is a directory of that name, whatever is in it, a save that has not finished? */
bool format_is_unfinished(const char *name);

/* Are a checkpoint's files all in a directory below the one that was looked at? */
bool format_is_below(const struct name_list *files);

int name_list_add(struct name_list *l, const char *name, struct ckpt_err *e);
void name_list_sort(struct name_list *l);
bool name_list_has(const struct name_list *l, const char *name); /* of a sorted list */
void name_list_release(struct name_list *l);

/* Objects of these names are sentences on what in the checkpoint is not shown, on files without
 * which something is not shown, and on what is shown although its index says something else. Whoever
 * opens the checkpoint is told. */
#define FORMAT_NOT_SHOWN     "not_shown"
#define FORMAT_MISSING	     "missing"
#define FORMAT_INDEX_DIFFERS "index_differs"
#define FORMAT_NOTE	     400 /* bytes of the sentence, with its NUL */
/* Keeps the sentence, unless there is one already; returns 0. */
int format_note(char note[static FORMAT_NOTE], const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
bool format_is_note(const char *fqn, size_t len);
/* Adds an object with a fault for a tensor that an index places in a file that lacks it, or that is
 * missing itself. */
int format_add_absent(const struct object_item *tensor, const char *file, bool file_is_there,
		      struct catalog_writer *w, struct ckpt_err *e);
/* Adds that object, unless the note is empty. */
int format_tell(const char *name, const char *note, struct catalog_writer *w, struct ckpt_err *e);

/* Says in the note if a file that was named by itself is, by its name, one of several with a part
 * of the model each. */
void format_note_part(struct place *place, const char *file, char note[static FORMAT_NOTE]);

extern const struct format format_dcp, format_deepspeed, format_fsdp, format_gguf,
	format_hyperparallel, format_megatron, format_megatron_ranks, format_megatron_zarr,
	format_orbax, format_safetensors, format_torchsave;

#endif
