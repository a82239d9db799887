/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_state - records which parts of an export are on disk, in a file that outlives the process.
 *
 * The file has 512 bytes of text, padded with zeros, that identify the export, then one byte per
 * unit: 1 once the unit's bytes are on disk. While the export runs these bytes only change from 0
 * to 1, so a torn or lost write cannot claim a unit that is not there; a lost one only costs a
 * unit. The file is locked (flock) while the export runs.
 *
 * Threads: export_state_record from any; the rest from one.
 */
#ifndef FS_CMD_EXPORT_STATE_H
#define FS_CMD_EXPORT_STATE_H

#include <ckptfs/ckpt.h>

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* Everything that must be equal for the bytes of two runs to belong together, and the program. */
struct export_identity {
	struct ckpt_origin origin;
	const char *files;   /* export_list.hash */
	const char *request; /* PATH and options, any content */
	size_t request_len;
};

struct export_state {
	int fd;
	uint8_t *done; /* one per unit: as of the last load or save */
	uint64_t units;
};

/* Refuses an entry that another user made or can change, if there is one: its bytes may be any. */
int export_state_refuse_foreign(int dirfd, const char *name, struct ckpt_err *e);
/* Opens or creates `name` in dirfd and locks it. -EBUSY: another process has locked it. EPERM: it
 * is another user's. */
int export_state_open(int dirfd, const char *name, struct export_state *ret, struct ckpt_err *e);
/*
 * Does the file describe this export? 0: yes; 1: the same command began it, but its source has
 * changed since, as the sentence in *e says; or an error that names `partial`: it is not an export,
 * or one with another path or other options.
 */
int export_state_match(const struct export_state *s, const struct export_identity *id,
		       const char *partial, struct ckpt_err *e);
/* Marks all units as not done. */
int export_state_init(struct export_state *s, uint64_t units, struct ckpt_err *e);
/* Reads which units are done. The file must be that of this export. */
int export_state_load(struct export_state *s, const char *partial, struct ckpt_err *e);
/* Writes the whole file and waits until it is on disk. */
int export_state_save(struct export_state *s, const struct export_identity *id, struct ckpt_err *e);
/* Records a unit whose bytes are on disk. 0 or -errno. */
int export_state_record(const struct export_state *s, uint64_t unit);
void export_state_close(struct export_state *s); /* also releases the lock */

#endif
