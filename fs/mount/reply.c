/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/reply.h"

#include "mount/ops.h"
#include "mount/stats.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* One slot per file, by its number; a collision only costs an extra line. */
enum { SLOTS = 1 << 8, PATH_DEPTH = 8 };

struct failures {
	struct ckpt *ckpt;
	pthread_mutex_t lock;
	struct slot {
		ckpt_node node;
		uint64_t last_ns;
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

/* May a line about this file be logged now? Then *kept_back is the number of suppressed ones. */
static bool may_log(struct failures *f, ckpt_node node, uint64_t *kept_back)
{
	/* The high bits of a node identify the directory, the low bits the file in it. */
	struct slot *s = &f->slots[node * UINT64_C(0x9e3779b97f4a7c15) >> 56];
	uint64_t now = clock_ns();
	SCOPED_LOCK(&f->lock);

	if (s->node == node && now - s->last_ns < REPLY_LOG_SECONDS * CLOCK_SECOND) {
		s->kept_back++;
		return false;
	}
	*kept_back = s->node == node ? s->kept_back : 0;
	*s = (struct slot){ .node = node, .last_ns = now };
	return true;
}

/* "/tensors/NAME" of a node. */
static void path_of(struct ckpt *c, ckpt_node node, char *ret, size_t cap)
{
	char tail[PATH_DEPTH * (CKPT_NAME_MAX + 1)];
	char name[CKPT_NAME_MAX + 1];
	size_t at = sizeof(tail) - 1;

	tail[at] = 0;
	for (int depth = 0; node != CKPT_ROOT && depth < PATH_DEPTH - 1; depth++) {
		size_t n;

		if (ckpt_name(c, node, name))
			break;
		n = strlen(name);
		memcpy(tail + at - n, name, n);
		at -= n;
		tail[--at] = '/';
		node = ckpt_parent(c, node);
	}
	(void)text_show(tail + at, sizeof(tail) - 1 - at, ret, cap);
}

void reply_log(struct failures *f, const struct failure *what, const struct ckpt_err *e)
{
	char path[512], range[64] = "", more[64] = "";
	uint64_t kept_back;

	if (!may_log(f, what->node, &kept_back)) {
		log_again(what->node);
		return;
	}
	if (what->unnamed)
		(void)snprintf(path, sizeof(path), "inode %" PRIu64, (uint64_t)what->node);
	else
		path_of(f->ckpt, what->node, path, sizeof(path));
	if (what->len)
		(void)snprintf(range, sizeof(range), " [%" PRIu64 ", %" PRIu64 ")", what->off,
			       what->off + what->len);
	if (kept_back)
		(void)snprintf(more, sizeof(more), " (and %" PRIu64 " more since the last line)",
			       kept_back);
	log_msg_of(LOG_LEVEL_ERROR, what->node, "%s '%s'%s: %s%s", what->doing, *path ? path : "/",
		   range, e->msg, more);
}

void reply_error(fuse_req_t req, int code)
{
	stats_error(fs_stats(req), code);
	(void)fuse_reply_err(req, code);
}

/* Is the code a valid answer to a question about names? */
static bool is_answer(int code)
{
	switch (code) {
	case ENOENT:
	case ENODATA:
	case ENOTDIR:
	case EISDIR:
	case ENAMETOOLONG:
	case ERANGE:
	case ENOMEM:
	case ESTALE:
		return true;
	default:
		return false;
	}
}

void reply_name_error(fuse_req_t req, int rc)
{
	reply_error(req, is_answer(-rc) ? -rc : EIO);
}

void reply_name_failure(fuse_req_t req, struct failures *f, const struct failure *what,
			const struct ckpt_err *e)
{
	if (is_answer(e->code))
		reply_error(req, e->code);
	else
		reply_failure(req, f, what, e);
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
