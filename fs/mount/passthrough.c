/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/passthrough.h"

#include "mount/handle.h"
#include "mount/ops.h"
#include "mount/stats.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include <ckptfs/ckpt_mount.h>

#include <linux/capability.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * From linux/fuse.h of Linux 6.9, which is newer than that of Debian 12. libfuse has functions for
 * it since 3.17; with these few lines any version will do.
 */
enum { OPEN_NOFLUSH = 1 << 5, OPEN_PASSTHROUGH = 1 << 7 }; /* KEEP_CACHE is refused with it */

struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};

struct open_out {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id;
};

_Static_assert(sizeof(struct backing_map) == _IOC_SIZE(PASSTHROUGH_OPEN), "struct backing_map");

/* An open node. */
struct opened {
	struct opened *next;
	ckpt_node node;
	uint64_t count;
	int backing;	  /* or 0 */
	struct handle *h; /* the first opener's */
};

void passthrough_init(struct passthrough *p, struct stats *stats)
{
	p->stats = stats;
	(void)pthread_mutex_init(&p->lock, NULL);
	memset(p->buckets, 0, sizeof(p->buckets));
	p->fd = -1;
	p->refused = false;
	atomic_flag_clear(&p->told);
}

void passthrough_release(struct passthrough *p)
{
	for (size_t i = 0; i < PASSTHROUGH_BUCKETS; i++)
		while (p->buckets[i]) {
			struct opened *o = p->buckets[i];

			p->buckets[i] = o->next;
			free(o);
		}
	(void)pthread_mutex_destroy(&p->lock);
}

bool is_sys_admin(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	return !syscall(SYS_capget, &head, data) &&
	       data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN);
}

/* ---- backing files ---- */

/* Why a file is read normally: worth one line in the log. */
static void tell(struct passthrough *p, const char *what)
{
	if (!atomic_flag_test_and_set(&p->told))
		log_msg(LOG_LEVEL_DEBUG, "no kernel passthrough: %s", what);
}

/* The number by which the kernel knows the file behind f, or 0. */
static int open_backing(struct passthrough *p, struct ckpt_file *f)
{
	struct backing_map map = { 0 };
	struct ckpt_err e = { 0 };
	autoclose int fd = -1;
	int rc, id, why;

	if (p->refused)
		return 0;
	rc = ckpt_file_backing(f, &fd, &e);
	if (rc) {
		if (rc < 0)
			tell(p, e.msg);
		return 0;
	}
	/* An open with O_DIRECT opens the real file with it. */
	if (fcntl(fd, F_SETFL, O_DIRECT) || fcntl(fd, F_SETFL, 0)) {
		tell(p, "the source has no O_DIRECT");
		return 0;
	}
	map.fd = fd;
	id = ioctl(p->fd, PASSTHROUGH_OPEN, &map);
	if (id > 0)
		return id;
	why = id ? errno : EINVAL;
	if (why == EPERM) { /* for example in a user namespace */
		p->refused = true;
		stats_set_passthrough(p->stats, false);
	}
	tell(p, strerror(why)); /* NOLINT(concurrency-mt-unsafe) */
	return 0;
}

static void close_backing(struct passthrough *p, int id)
{
	if (id)
		(void)ioctl(p->fd, PASSTHROUGH_CLOSE, &(uint32_t){ (uint32_t)id });
}

/* ---- open nodes ---- */

/* The link to the node, or where it would be. */
static struct opened **place_of(struct passthrough *p, ckpt_node node)
{
	struct opened **at = &p->buckets[node % PASSTHROUGH_BUCKETS];

	while (*at && (*at)->node != node)
		at = &(*at)->next;
	return at;
}

/* h opens the node, too: returns the first opener's handle, got, and how it was opened; NULL: this
 * is the first. Under the lock. */
static struct handle *join(struct passthrough *p, struct handle *h, ckpt_node node,
			   int *ret_backing)
{
	struct opened *o = *place_of(p, node);

	if (!o)
		return NULL;
	o->count++;
	h->begun = true;
	*ret_backing = o->backing;
	return handle_get(o->h);
}

/* The first opener has checked the real file; it may have been written to since. */
static int as_first(struct handles *hs, struct handle *first, int backing, struct ckpt_err *e)
{
	int rc = backing && ckpt_file_written(first->file, e) ? -EIO : backing;

	handle_put(hs, first);
	return rc;
}

int passthrough_begin(struct passthrough *p, struct handles *hs, struct handle *h, ckpt_node node,
		      struct ckpt_err *e)
{
	struct handle *first;
	struct opened *o;
	int backing;

	{
		SCOPED_LOCK(&p->lock);
		first = join(p, h, node, &backing);
	}
	if (first)
		return as_first(hs, first, backing, e);
	o = calloc(1, sizeof(*o));
	if (!o)
		return err_sys(e, ENOMEM, "open");
	*o = (struct opened){ .node = node, .count = 1, .backing = open_backing(p, h->file) };
	{
		SCOPED_LOCK(&p->lock);
		first = join(p, h, node, &backing);
		if (!first) {
			o->h = handle_get(h);
			h->begun = true;
			*place_of(p, node) = o;
			return o->backing;
		}
	}
	close_backing(p, o->backing); /* another thread was quicker */
	free(o);
	return as_first(hs, first, backing, e);
}

struct handle *passthrough_end(struct passthrough *p, ckpt_node node)
{
	struct handle *first;
	struct opened *o;

	{
		struct opened **at;
		SCOPED_LOCK(&p->lock);

		at = place_of(p, node);
		o = *at;
		if (--o->count)
			return NULL;
		*at = o->next;
	}
	close_backing(p, o->backing);
	first = o->h;
	free(o);
	return first;
}

int passthrough_reply(fuse_req_t req, const struct handle *h, int backing)
{
	const struct open_out out = { .fh = (uintptr_t)h,
				      .open_flags = OPEN_NOFLUSH | OPEN_PASSTHROUGH,
				      .backing_id = backing };

	stats_passed(fs_stats(req));
	return fuse_reply_buf(req, (const char *)&out, sizeof(out));
}
