/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub - the cache of the Hugging Face Hub, where a model's files are links:
 *
 *	models--ORG--NAME/blobs/HASH                       the bytes
 *	models--ORG--NAME/refs/main                        the name of a snapshot
 *	models--ORG--NAME/snapshots/REVISION/config.json   -> ../../blobs/HASH
 *
 * (huggingface_hub, file_download.py.) A directory is treated as a snapshot, or part of one, if all
 * of these hold:
 *  - it is snapshots/REVISION, or lies in one, according to its path and to the directories
 *    themselves;
 *  - the directory that contains snapshots/ also contains blobs/, neither of them is a link, and it
 *    is named models--*, datasets--* or spaces--*, or contains refs/;
 *  - snapshots/ and blobs/ belong to root, to the user of this process, or to the owner of the
 *    snapshot or of the directory that contains them, and none of the three is writable by a group,
 *    or by all, unless these can also write to the snapshot.
 *
 * Links in it are followed if their target is exactly ../../blobs/NAME, with one more ../ for each
 * directory in between. They are not resolved: NAME is opened in blobs/, beneath the directory that
 * was checked, and must be a regular file.
 *
 * Private to core/source.
 *
 * Threads: hub_find, hub_sub and hub_release from one, everything else from any.
 */
#ifndef SOURCE_HUB_H
#define SOURCE_HUB_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct ckpt_err;

struct hub {
	int repo;	 /* the directory that contains blobs/ and snapshots/; -1: not a snapshot */
	unsigned depth;	 /* levels of the directory below repo; 1 for snapshots/ */
	const char *why; /* why its links are not followed; NULL: they are followed */
	char *path;	 /* what may be opened besides the directory */
};

#define HUB_NONE ((struct hub){ .repo = -1 })

/* For a directory with this absolute path. HUB_NONE if it is not a snapshot, or that cannot be
 * determined. */
int hub_find(int dirfd, const char *path, struct hub *ret, struct ckpt_err *e);
/* For a directory inside a snapshot. */
int hub_sub(const struct hub *h, int dirfd, struct hub *ret, struct ckpt_err *e);
void hub_release(struct hub *h);

/* Opens the target of a link in the directory, if it is in blobs/, like io_open_beneath. -ENOTSUP,
 * without a sentence: it is not such a link. */
int hub_open(const struct hub *h, int dirfd, const char *path, struct stat *st, struct ckpt_err *e);
/* The name of the newest snapshot: reads up to cap bytes of refs/main and returns their number. */
int64_t hub_tip(const struct hub *h, char *buf, size_t cap);

#endif
