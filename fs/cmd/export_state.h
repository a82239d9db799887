/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_state - what of an export is on disk, in a file that outlives the process.
 *
 * The file: 512 bytes of text, padded with zeros, that say which export it is, then one byte for
 * each unit, 1 once the unit's bytes are on disk. Those bytes only ever change from 0 to 1 while
 * the export runs, so no torn or lost write can claim a unit that is not there; one that is lost
 * costs a unit. The file is locked (flock) as long as the export runs.
 *
 * Threads: export_state_record from any; the rest from one.
 */
#ifndef FS_CMD_EXPORT_STATE_H
#define FS_CMD_EXPORT_STATE_H

#include <ckptfs/ckpt.h>

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* Everything that has to be the same for bytes of two runs to belong together, and the program. */
struct export_identity {
	struct ckpt_origin origin;
	const char *files;   /* export_list.hash */
	const char *request; /* PATH and options, any content */
	size_t request_len;
};

struct export_state {
	int fd;
	uint8_t *done; /* one for each unit: as of the last load or save */
	uint64_t units;
};

/* Open or create `name` in dirfd and lock it. -EBUSY: another process has it locked. */
int export_state_open(int dirfd, const char *name, struct export_state *ret, struct ckpt_err *e);
/*
 * Is it this export that the file tells of? 0: yes; 1: it was begun by the same command and is made
 * from something else by now, which the sentence *e names; or an error that names `partial`: it is
 * no export, or one of another path or other options.
 */
int export_state_match(const struct export_state *s, const struct export_identity *id,
		       const char *partial, struct ckpt_err *e);
/* All units undone. */
int export_state_init(struct export_state *s, uint64_t units, struct ckpt_err *e);
/* Read which units are done. The file is that of this export. */
int export_state_load(struct export_state *s, const char *partial, struct ckpt_err *e);
/* Write it whole and wait until it is on disk. */
int export_state_save(struct export_state *s, const struct export_identity *id, struct ckpt_err *e);
/* Note a unit whose bytes are on disk. 0 or -errno. */
int export_state_record(const struct export_state *s, uint64_t unit);
void export_state_close(struct export_state *s); /* the lock goes with it */

#endif
