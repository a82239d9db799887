/* SPDX-License-Identifier: Apache-2.0 */
#include "handle.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { PATIENCE = 16 }; /* failures at one offset before they are answered late */

void handles_init(struct handles *hs)
{
	hs->first = NULL;
	(void)pthread_mutex_init(&hs->lock, NULL);
}

void handles_release(struct handles *hs)
{
	while (hs->first)
		handle_close(hs, hs->first);
	(void)pthread_mutex_destroy(&hs->lock);
}

static void link_in(struct handles *hs, struct handle *h)
{
	SCOPED_LOCK(&hs->lock);

	h->next = hs->first;
	if (h->next)
		h->next->prev = h;
	hs->first = h;
}

static void link_out(struct handles *hs, struct handle *h)
{
	SCOPED_LOCK(&hs->lock);

	if (h->next)
		h->next->prev = h->prev;
	if (h->prev)
		h->prev->next = h->next;
	else
		hs->first = h->next;
}

int handle_open(struct handles *hs, struct ckpt *c, ckpt_node node, struct handle **ret,
		struct err *e)
{
	autofree struct handle *h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return err_sys(e, ENOMEM, "open");
	rc = ckpt_file_open(c, node, &h->file, e);
	if (rc)
		return rc;
	link_in(hs, h);
	*ret = steal_ptr(&h);
	return 0;
}

void handle_close(struct handles *hs, struct handle *h)
{
	link_out(hs, h);
	ckpt_file_close(h->file);
	free(h);
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
