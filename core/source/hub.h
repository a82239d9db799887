/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub - the cache of the Hugging Face Hub, where a model's files are links:
 *
 *	models--ORG--NAME/blobs/HASH                       the bytes
 *	models--ORG--NAME/refs/main                        the name of a snapshot
 *	models--ORG--NAME/snapshots/REVISION/config.json   -> ../../blobs/HASH
 *
 * (huggingface_hub, file_download.py.) A directory is taken for a snapshot, or a part of one, where
 * all of this holds:
 *  - it is snapshots/REVISION, or lies in one, by its path and by the directories themselves;
 *  - the directory that has snapshots/ has blobs/, neither of them a link, and is called models--*,
 *    datasets--* or spaces--*, or has refs/;
 *  - snapshots/ and blobs/ belong to root, to the user of this process, or to the owner of the
 *    snapshot or of the directory that has them, and none of the three can be written to by a group,
 *    or by all, that cannot write to the snapshot.
 *
 * Of the links in it those are followed that say exactly ../../blobs/NAME, with a ../ more for each
 * directory in between. They are not resolved: NAME is opened in blobs/, beneath the directory that
 * was looked at, and has to be a regular file.
 *
 * Private to core/source.
 *
 * Threads: find, sub and release from one, everything else from any.
 */
#ifndef SOURCE_HUB_H
#define SOURCE_HUB_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct ckpt_err;

struct hub {
	int repo;	 /* the directory that has blobs/ and snapshots/; -1: all this is none */
	unsigned depth;	 /* of the directory itself below that one; of snapshots/ it is 1 */
	const char *why; /* its links are not followed because of this; NULL: they are */
	char *path;	 /* of what may be opened besides the directory */
};

#define HUB_NONE ((struct hub){ .repo = -1 })

/* Of a directory with this absolute path. Where it is none, or that cannot be seen, HUB_NONE. */
int hub_find(int dirfd, const char *path, struct hub *ret, struct ckpt_err *e);
/* Of a directory in it. */
int hub_sub(const struct hub *h, int dirfd, struct hub *ret, struct ckpt_err *e);
void hub_release(struct hub *h);

/* What a link in the directory leads to, if it is one into blobs/: its descriptor, as
 * io_open_beneath. -ENOTSUP, without a sentence: it is no such link. */
int hub_open(const struct hub *h, int dirfd, const char *path, struct stat *st, struct ckpt_err *e);
/* Which of the snapshots is the newest: the bytes of refs/main, up to cap, and how many they are. */
int64_t hub_tip(const struct hub *h, char *buf, size_t cap);

#endif
