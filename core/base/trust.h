/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust - may what lies outside of a checkpoint's directory be taken for a part of it? Where nobody has
 * a say in it who has none in the checkpoint.
 *
 * Threads: no shared state.
 */
#ifndef BASE_TRUST_H
#define BASE_TRUST_H

#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Who, besides the owner, can write to a file or directory: a set of groups, which has no members
 * that the checkpoint's directory has not.
 */
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

#endif
