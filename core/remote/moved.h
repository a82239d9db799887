/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moved - where servers have redirected requests for a store's files to, so that they need not be
 * asked again for each range.
 *
 * Private to core/remote.
 *
 * Threads: any; init and release from one.
 */
#ifndef REMOTE_MOVED_H
#define REMOTE_MOVED_H

#include "base/list.h"
#include "remote/http.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

struct moved {
	LIST_LINK(struct moved) link;
	char *path, *url, *etag; /* url: "": it has expired */
	enum http_reach reach;
	uint64_t since_ns;
};

struct moved_table {
	pthread_mutex_t lock;
	LIST(struct moved) all;
	size_t n;
};

void moved_init(struct moved_table *t);
void moved_release(struct moved_table *t);
/* Notes it; url NULL: forgets it. etag may be NULL. Out of memory: forgets it. */
void moved_set(struct moved_table *t, const char *path, const char *url, enum http_reach reach,
	       const char *etag);
/* Adds the address, with *ret_reach unless that is NULL, and the ETag if `etag` is not NULL; false:
 * the file has not been moved, or the address has expired (the ETag is added even so). */
bool moved_find(struct moved_table *t, const char *path, struct buf *url,
		enum http_reach *ret_reach, struct buf *etag);
/*
 * A request to `url` was refused. Returns true if the address came from a redirect and has expired,
 * so that another request may succeed: the address is forgotten unless a newer one has been noted
 * since, and its ETag is kept for answers that are still to come. Returns false if `url` is `own`,
 * the file's original address, or was refused at once and so has never been valid.
 */
bool moved_expired(struct moved_table *t, const char *path, const char *url, const char *own);
/* Does the address end in '/', by which servers say that it is a directory? */
bool moved_is_directory(struct moved_table *t, const char *path);

#endif
