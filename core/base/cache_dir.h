/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_dir - where the user's caches are, if nobody says otherwise.
 *
 * Each kind has a directory of its own, so that a confined daemon that may make chunk indexes
 * cannot touch what others have fetched.
 *
 * Threads: no shared state, except the environment.
 */
#ifndef BASE_CACHE_DIR_H
#define BASE_CACHE_DIR_H

struct ckpt_err;

/*
 * $XDG_CACHE_HOME/ckptfs/NAME, or below $HOME/.cache, with links resolved; it is made if it does
 * not exist. The caller frees it. NULL, and *e says why: neither variable has an absolute path;
 * $HOME does not exist; the cache cannot be written to; it belongs to another user, or others can
 * write to it or put another directory in its place.
 */
char *cache_dir(const char *name, struct ckpt_err *e);

#endif
