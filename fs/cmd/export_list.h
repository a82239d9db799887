/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_list - the directories and files that an export creates, and their division into units.
 *
 * A unit is EXPORT_UNIT bytes of one file, the last one of a file fewer; an empty file is one empty
 * unit. Units are numbered through all files. File names are not kept: the tree provides them
 * again.
 *
 * Threads: immutable once made, except .left of the files.
 */
#ifndef FS_CMD_EXPORT_LIST_H
#define FS_CMD_EXPORT_LIST_H

#include <ckptfs/ckpt.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT_UNIT ((uint64_t)8 << 20) /* bytes */
#define EXPORT_TOP  UINT32_MAX		/* in place of a directory: a single file is exported */

struct ckpt_err;

struct export_dir {
	ckpt_node node;
	char *path;   /* relative to the exported directory; "" for that itself */
	char *target; /* of a symbolic link, which is listed with the directories; else NULL */
};

struct export_file {
	uint64_t size;
	uint64_t pos;	       /* entry number in its directory */
	uint64_t first;	       /* number of its first unit */
	uint32_t dir;	       /* index, or EXPORT_TOP */
	_Atomic uint32_t left; /* units that are not written yet */
};

struct export_list {
	ckpt_node node;
	struct export_dir *dirs; /* parents before their contents */
	size_t n_dirs, cap_dirs;
	struct export_file *files;
	size_t n_files, cap_files;
	uint64_t bytes, units;
	char hash[33]; /* of all names and sizes, and of .ckptfs/info.json, which contains paths */
};

int export_list_make(struct ckpt *c, const struct ckpt_stat *top, struct export_list *ret,
		     struct ckpt_err *e);
void export_list_release(struct export_list *l);

/* Which file a unit < .units belongs to. */
size_t export_list_find(const struct export_list *l, uint64_t unit);
/* Bytes [*ret_off, *ret_off + length) of file i are its unit; returns the length. */
uint64_t export_list_unit(const struct export_list *l, size_t i, uint64_t unit, uint64_t *ret_off);
/* How many units a file of that size has. */
uint64_t export_units_of(uint64_t size);

#endif
