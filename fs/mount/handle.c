/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/handle.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <stdlib.h>
#include <time.h>

enum { PATIENCE = 16 }; /* failures at one offset before further answers are delayed */

void handles_init(struct handles *hs)
{
	*hs = (struct handles){ 0 };
	(void)pthread_mutex_init(&hs->lock, NULL);
}

static void close_handle(struct handles *hs, struct handle *h)
{
	{
		SCOPED_LOCK(&hs->lock);
		LIST_REMOVE(&hs->all, h);
	}
	ckpt_file_close(h->file);
	free(h);
}

void handles_release(struct handles *hs)
{
	while (hs->all.first)
		close_handle(hs, hs->all.first);
	(void)pthread_mutex_destroy(&hs->lock);
}

int handle_open(struct handles *hs, struct ckpt *c, ckpt_node node, struct handle **ret,
		struct ckpt_err *e)
{
	autofree struct handle *h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return err_sys(e, ENOMEM, "open");
	rc = ckpt_file_open(c, node, &h->file, e);
	if (rc)
		return rc;
	h->users = 1;
	*ret = h;
	SCOPED_LOCK(&hs->lock);
	LIST_PUSH(&hs->all, steal_ptr(&h));
	return 0;
}

struct handle *handle_get(struct handle *h)
{
	(void)atomic_fetch_add(&h->users, 1);
	return h;
}

void handle_put(struct handles *hs, struct handle *h)
{
	if (atomic_fetch_sub(&h->users, 1) == 1)
		close_handle(hs, h);
}

void handle_failed(struct handle *h, uint64_t off)
{
	static const struct timespec pause = { .tv_nsec = 50 * 1000 * 1000 };
	bool again = h->bad_times && h->bad_off == off;

	h->bad_off = off;
	h->bad_times = again ? h->bad_times + 1 : 1;
	if (h->bad_times > PATIENCE)
		(void)nanosleep(&pause, NULL);
}
