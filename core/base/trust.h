/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust - may a file outside a checkpoint's directory be treated as part of the checkpoint? Only if
 * anyone able to change that file can also change the checkpoint. And is a file in a directory that
 * others can write to, such as /tmp, one that they cannot have made or changed?
 *
 * Threads: no shared state.
 */
#ifndef BASE_TRUST_H
#define BASE_TRUST_H

#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

/* Can anyone other than the owner write to the file or directory who cannot write to the
 * checkpoint's directory? */
static inline bool trust_others_write(const struct stat *st, const struct stat *checkpoint)
{
	mode_t extra = st->st_mode & ~checkpoint->st_mode;

	if (checkpoint->st_mode & S_IWOTH)
		return false;
	return (extra & S_IWOTH) ||
	       ((st->st_mode & S_IWGRP) && ((extra & S_IWGRP) || st->st_gid != checkpoint->st_gid));
}

static inline bool trust_owner(uid_t owner, const struct stat *checkpoint)
{
	return !owner || owner == geteuid() || owner == checkpoint->st_uid;
}

/* st: of an entry of dir, without following a link. False if a user other than root, us and the
 * directory's owner made the entry or can change it. */
static inline bool trust_entry(const struct stat *st, const struct stat *dir)
{
	struct stat d = *dir;

	if (d.st_mode & S_ISVTX)
		d.st_mode &= ~(mode_t)(S_IWGRP | S_IWOTH);
	return trust_owner(st->st_uid, &d) && !trust_others_write(st, &d);
}

#endif
