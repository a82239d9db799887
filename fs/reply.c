/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include "ops.h"
#include "stats.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A slot per file, by its number; two files in one slot only cost a line more. */
enum { SLOTS = 256, PATH_DEPTH = 8 };

struct failures {
	struct ckpt *ckpt;
	pthread_mutex_t lock;
	struct slot {
		ckpt_node node;
		time_t last; /* monotonic seconds */
		uint64_t kept_back;
	} slots[SLOTS];
};

struct failures *failures_new(struct ckpt *c)
{
	struct failures *f = calloc(1, sizeof(*f));

	if (f) {
		f->ckpt = c;
		(void)pthread_mutex_init(&f->lock, NULL);
	}
	return f;
}

void failures_free(struct failures *f)
{
	if (f)
		(void)pthread_mutex_destroy(&f->lock);
	free(f);
}

/* Is it time for a line about this file? Then *kept_back counts those that had none. */
static bool may_log(struct failures *f, ckpt_node node, uint64_t *kept_back)
{
	struct slot *s = &f->slots[node % SLOTS];
	struct timespec now;
	SCOPED_LOCK(&f->lock);

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	if (s->node == node && now.tv_sec - s->last < REPLY_LOG_SECONDS) {
		s->kept_back++;
		return false;
	}
	*kept_back = s->node == node ? s->kept_back : 0;
	*s = (struct slot){ .node = node, .last = now.tv_sec };
	return true;
}

void reply_log(struct failures *f, const struct failure *what, const struct ckpt_err *e)
{
	char path[512], range[64] = "", more[64] = "";
	uint64_t kept_back;

	if (!may_log(f, what->node, &kept_back))
		return;
	if (what->unnamed)
		(void)snprintf(path, sizeof(path), "inode %" PRIu64, (uint64_t)what->node);
	else
		reply_path(f->ckpt, what->node, path, sizeof(path));
	if (what->len)
		(void)snprintf(range, sizeof(range), " [%" PRIu64 ", %" PRIu64 ")", what->off,
			       what->off + what->len);
	if (kept_back)
		(void)snprintf(more, sizeof(more), " (and %" PRIu64 " more since the last line)",
			       kept_back);
	log_msg(LOG_LEVEL_ERROR, "%s '%s'%s: %s%s", what->doing, path, range, e->msg, more);
}

void reply_error(fuse_req_t req, int code)
{
	stats_error(fs_stats(req), code);
	(void)fuse_reply_err(req, code);
}

void reply_name_error(fuse_req_t req, int rc)
{
	switch (rc) {
	case -ENOENT:
	case -ENODATA:
	case -ENOTDIR:
	case -EISDIR:
	case -ENAMETOOLONG:
	case -ERANGE:
	case -ENOMEM:
	case -ESTALE:
		reply_error(req, -rc);
		break;
	default:
		reply_error(req, EIO);
	}
}

void reply_failure(fuse_req_t req, struct failures *f, const struct failure *what,
		   const struct ckpt_err *e)
{
	reply_log(f, what, e);
	switch (e->code) {
	case EISDIR:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
		reply_error(req, e->code);
		break;
	default: /* a missing *data* file must not look like a missing tensor */
		reply_error(req, EIO);
	}
}

static bool name_in(struct ckpt *c, ckpt_node dir, ckpt_node node, char name[CKPT_NAME_MAX + 1])
{
	ckpt_node at;

	for (uint64_t pos = 0; !ckpt_next(c, dir, &pos, name, &at);)
		if (at == node)
			return true;
	return false;
}

void reply_path(struct ckpt *c, ckpt_node node, char *ret, size_t cap)
{
	char tail[PATH_DEPTH * (CKPT_NAME_MAX + 1)];
	char name[CKPT_NAME_MAX + 1];
	size_t at = sizeof(tail) - 1;

	tail[at] = 0;
	for (int depth = 0; node != CKPT_ROOT && depth < PATH_DEPTH - 1; depth++) {
		ckpt_node dir = ckpt_parent(c, node);
		size_t n;

		if (!name_in(c, dir, node, name))
			break;
		n = strlen(name);
		memcpy(tail + at - n, name, n);
		at -= n;
		tail[--at] = '/';
		node = dir;
	}
	(void)text_show(tail + at, sizeof(tail) - 1 - at, ret, cap);
}
