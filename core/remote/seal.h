/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal - what ckptfs-fetch still does for a process that has given up its rights.
 *
 * A mount's daemon is confined before it reads what others have written. Whoever takes it over has
 * its end of the sockets, and could have addresses opened that nobody named: say, of a server that
 * would then be sent the token of a hub. So the daemon tells us, while it can still be trusted,
 * what it may ask for later (WIRE_SEAL), and then closes the seal. From then on
 *
 *	- places are opened only where it was told that they would be: in the same bucket, on the same
 *	  server, in the same repository, with the same options;
 *	- of this machine's files (file://) only those are read or looked at that lie beneath a
 *	  directory that it has named, or, where it has named a file, that one and what it had opened
 *	  beside it. That a directory has been opened for reading proves nothing: Landlock may keep
 *	  from the daemon what is in a directory that it has open;
 *	- nothing is written;
 *	- a fetcher that is started again gets no other cache directory, and no other size of it:
 *	  a smaller one would have it remove what others have cached.
 *
 * The process that starts fetchers keeps the seal, and each fetcher inherits it.
 *
 * Private to core/remote.
 *
 * Threads: one at a time; seal_allows_files from any.
 */
#ifndef REMOTE_SEAL_H
#define REMOTE_SEAL_H

#include "source/wire.h"

#include <stdatomic.h>
#include <sys/types.h>

struct seal {
	struct seal_entry {
		bool anonymous;
		size_t len;
		char *text; /* as of WIRE_OPEN, with wire_authority() in place of the address */
	} * v;
	size_t n, cap;
	struct seal_dir {
		dev_t dev;
		ino_t ino;
		char *names; /* each followed by a NUL, then an empty one; none: all beneath it */
	} * dirs;
	size_t n_dirs, cap_dirs;
	/* Of the closed seal: what WIRE_HELLO may say. */
	char *cache_dir;
	uint64_t sizes[3];  /* cache_size, bytes of memory, retry_ms */
	atomic_bool closed; /* nothing else changes once it is */
};

/* Takes a WIRE_SEAL; nothing once it is closed. Out of memory: what it would allow is refused
 * later. */
void seal_take(struct seal *s, const struct wire_msg *m);
/* May a message be answered? Of WIRE_HELLO, WIRE_OPEN and WIRE_BEGIN; all others may. */
bool seal_allows(const struct seal *s, const struct wire_msg *m);
/* Of file://, which seal_allows does not look at, and of a directory that is open: may it be a
 * place, may it be listed, may its file `path` be read or looked at? It may block. */
enum seal_use { SEAL_OPEN, SEAL_LIST, SEAL_READ };
bool seal_allows_files(const struct seal *s, int dir, enum seal_use use, const char *path);

#endif
