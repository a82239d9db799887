/* SPDX-License-Identifier: Apache-2.0 */
#include "source/writing.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/list.h"
#include "base/text.h"
#include "source/remote_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
	SENDERS = 8,	  /* calls at a time, and so requests to the store */
	STEP = 1000,	  /* parts of one size */
	STEPS = 6,	  /* doublings */
	PARTS = 10000,	  /* of a file */
	LOOK_MS = 100,	  /* how often stop() is asked */
	PIECE = 1 << 20,  /* bytes read at a time */
	NAMES = 32 << 10, /* bytes of names in one message */
};

/* A call that a sender makes: a part, or the commit. */
struct item {
	struct wire_head head;
	char *path;
	int fd;
	LIST_LINK(struct item) link;
};

struct writing {
	struct place *place;
	struct rplace *there; /* of the place */
	struct link *link;    /* its */
	char *address;
	uint64_t session, epoch; /* if that fetcher dies, the session cannot go on */
	bool begun;
	bool in_commit; /* we have stopped waiting for it */
	bool (*stop)(void *arg);
	void *stop_arg;
	_Atomic uint32_t files;
	char names[3][NAMES];
	size_t names_len[3];

	pthread_mutex_t lock;
	pthread_cond_t change;	       /* on CLOCK_MONOTONIC */
	LIST(struct item) queue;       /* the oldest is the last */
	uint64_t pending;	       /* bytes in the queue and on their way */
	unsigned items, senders, idle; /* items: in the queue and on their way */
	unsigned users;		       /* senders, and the owner */
	bool closed;
	struct ckpt_err why; /* of the first call that failed */
};

struct writing_file {
	struct writing *w;
	char *path;
	uint32_t number;
	unsigned part; /* that is being filled, from 1 */
	int fd;	       /* of it; -1: nothing of it is there */
	uint64_t len;
};

/* ---- opening ---- */

static void writing_free(struct writing *w)
{
	place_free(w->place);
	free(w->address);
	(void)pthread_cond_destroy(&w->change);
	(void)pthread_mutex_destroy(&w->lock);
	free(w);
}

int writing_open(const char *address, const struct place_options *o, struct writing **ret,
		 struct ckpt_err *e)
{
	struct writing *w;
	char shown[200];
	int rc;

	if (text_file_path(address))
		return err_set(e, ENOTSUP,
			       "'%s': file:// is for reading: write to the directory's path",
			       address);
	if (strncmp(address, "s3://", 5) != 0 && strncmp(address, "gs://", 5) != 0)
		return err_set(e, ENOTSUP,
			       "'%s': ckptfs writes to s3:// and gs:// only: write to a directory "
			       "and upload it",
			       text_show_address(address, shown, sizeof(shown)));
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_nomem(e);
	(void)pthread_mutex_init(&w->lock, NULL);
	clock_cond_init(&w->change);
	w->users = 1;
	rc = remote_open_new(address, o, &w->place, &w->there, &w->address, e);
	if (rc) {
		writing_free(w);
		return rc;
	}
	w->link = rplace_link(w->there);
	*ret = w;
	return 0;
}

struct place *writing_place(struct writing *w)
{
	return w->place;
}

const char *writing_address(const struct writing *w)
{
	return w->address;
}

void writing_stop(struct writing *w, bool (*stop)(void *arg), void *stop_arg)
{
	w->stop = stop;
	w->stop_arg = stop_arg;
}

int writing_begin(struct writing *w, bool only_new, struct ckpt_err *e)
{
	struct call c = { .head = { .kind = WIRE_BEGIN, .n = { 0, only_new } } };
	int rc = rplace_call(w->there, &c, NULL, 0, e);

	w->session = c.head.n[1];
	w->epoch = c.epoch;
	w->begun = !rc;
	call_release(&c);
	return rc;
}

/* ---- senders ---- */

static void item_free(struct item *x)
{
	if (!x)
		return;
	if (x->fd >= 0)
		(void)close(x->fd);
	free(x->path);
	free(x);
}

static void put(struct writing *w)
{
	bool last;

	{
		SCOPED_LOCK(&w->lock);
		last = !--w->users;
	}
	if (last)
		writing_free(w);
}

/* The next thing to send; NULL: none, and none will come. */
static struct item *take(struct writing *w)
{
	SCOPED_LOCK(&w->lock);
	struct item *x;

	w->idle++;
	while (!w->queue.last && !w->closed)
		(void)pthread_cond_wait(&w->change, &w->lock);
	w->idle--;
	x = w->queue.last;
	if (x)
		LIST_REMOVE(&w->queue, x);
	return x;
}

static void *sender(void *arg)
{
	struct writing *w = arg;
	struct item *x;

	while ((x = take(w))) {
		struct call c = { .head = x->head, .epoch = w->epoch };
		struct ckpt_err e = { 0 };
		bool skip;
		int rc = 0;

		{
			SCOPED_LOCK(&w->lock);
			skip = w->why.code || w->closed;
		}
		if (!skip) {
			rc = link_call_with(w->link, &c, x->path, strlen(x->path) + 1, x->fd, &e);
			call_release(&c);
		}
		{
			SCOPED_LOCK(&w->lock);
			if (rc && !w->why.code)
				w->why = e;
			if (x->head.kind == WIRE_PART)
				w->pending -= x->head.n[3];
			w->items--;
			(void)pthread_cond_broadcast(&w->change);
		}
		item_free(x);
	}
	{
		SCOPED_LOCK(&w->lock);
		w->senders--;
		(void)pthread_cond_broadcast(&w->change);
	}
	put(w);
	return NULL;
}

/* Under the lock. False: there is no sender at all. */
static bool start_sender(struct writing *w)
{
	pthread_attr_t attr;
	pthread_t t;

	if (w->idle >= w->items || w->senders >= SENDERS)
		return true;
	if (!pthread_attr_init(&attr)) {
		(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		if (!pthread_create(&t, &attr, sender, w)) {
			w->senders++;
			w->users++;
		}
		(void)pthread_attr_destroy(&attr);
	}
	return w->senders > 0;
}

/* Waits for a change, for a moment; an error once it is to stop, or a call has failed. Under the
 * lock. */
static int wait_some(struct writing *w, struct ckpt_err *e)
{
	(void)clock_cond_wait(&w->change, &w->lock, clock_ns() + LOOK_MS * CLOCK_MS);
	if (w->why.code) {
		*e = w->why;
		return -e->code;
	}
	return w->stop && w->stop(w->stop_arg) ? err_set(e, ECANCELED, "stopped") : 0;
}

/* Takes over the item, if it succeeds. */
static int enqueue(struct writing *w, struct item *x, struct ckpt_err *e)
{
	const uint64_t len = x->head.kind == WIRE_PART ? x->head.n[3] : 0;
	SCOPED_LOCK(&w->lock);
	int rc = 0;

	while (!rc && w->pending && w->pending + len > WRITING_BYTES)
		rc = wait_some(w, e);
	if (!rc && w->why.code) {
		*e = w->why;
		rc = -e->code;
	}
	if (rc)
		return rc;
	w->items++;
	if (!start_sender(w)) {
		w->items--;
		return err_set(e, EAGAIN, "start a thread");
	}
	w->pending += len;
	LIST_PUSH(&w->queue, x);
	(void)pthread_cond_broadcast(&w->change);
	return 0;
}

/* ---- parts ---- */

/* Takes over fd in any case. */
static int send_part(struct writing *w, uint32_t file, const char *path, unsigned number, bool last,
		     uint64_t len, int fd, struct ckpt_err *e)
{
	struct item *x = calloc(1, sizeof(*x));
	int rc;

	if (!x) {
		(void)close(fd);
		return err_nomem(e);
	}
	x->fd = fd;
	x->path = strdup(path);
	x->head = (struct wire_head){ .kind = WIRE_PART,
				      .n = { w->session, file, number, len, last } };
	rc = x->path ? enqueue(w, x, e) : err_nomem(e);
	if (rc)
		item_free(x);
	return rc;
}

static int part_fd(int *ret, struct ckpt_err *e)
{
	*ret = memfd_create("ckptfs-part", MFD_CLOEXEC);
	return *ret < 0 ? err_sys(e, errno, "memory for a part") : 0;
}

static uint64_t part_cap(unsigned number)
{
	return WRITING_PART << min_u64((number - 1) / STEP, STEPS);
}

int writing_file(struct writing *w, const char *path, struct writing_file **ret, struct ckpt_err *e)
{
	struct writing_file *f = calloc(1, sizeof(*f));

	if (!f || !(f->path = strdup(path))) {
		free(f);
		return err_nomem(e);
	}
	f->w = w;
	f->fd = -1;
	f->part = 1;
	f->number = writing_number(w);
	*ret = f;
	return 0;
}

/* Sends the part that is being filled. */
static int end_part(struct writing_file *f, bool last, struct ckpt_err *e)
{
	int rc = f->fd < 0 ? part_fd(&f->fd, e) : 0; /* an empty file */

	if (rc)
		return rc;
	if (f->part > PARTS)
		return err_set(e, EFBIG, "write '%s': a file of more than %d parts", f->path,
			       PARTS);
	rc = send_part(f->w, f->number, f->path, f->part, last, f->len, steal_fd(&f->fd), e);
	f->part++;
	f->len = 0;
	return rc;
}

int writing_add(struct writing_file *f, const void *p, size_t n, struct ckpt_err *e)
{
	const char *at = p;
	int rc = 0;

	while (!rc && n) {
		size_t k;

		/* A full part is sent when more comes: else it would be the last. */
		if (f->len == part_cap(f->part))
			rc = end_part(f, false, e);
		if (!rc && f->fd < 0)
			rc = part_fd(&f->fd, e);
		if (rc)
			break;
		k = (size_t)min_u64(n, part_cap(f->part) - f->len);
		rc = io_pwrite(f->fd, at, k, f->len);
		if (rc)
			return err_sys(e, -rc, "memory for a part");
		f->len += k;
		at += k;
		n -= k;
	}
	return rc;
}

int writing_finish(struct writing_file *f, struct ckpt_err *e)
{
	int rc = end_part(f, true, e);

	writing_drop(f);
	return rc;
}

void writing_drop(struct writing_file *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		(void)close(f->fd);
	free(f->path);
	free(f);
}

/* ---- files of known size ---- */

uint64_t writing_part_size(uint64_t size)
{
	uint64_t n = WRITING_PART;

	while (size / n >= PARTS)
		n *= 2;
	return n;
}

uint32_t writing_number(struct writing *w)
{
	return w->files++;
}

int writing_part(struct writing *w, uint32_t file, const char *path, uint64_t size, unsigned number,
		 int (*read)(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e),
		 void *arg, struct ckpt_err *e)
{
	uint64_t each = writing_part_size(size), off = each * (number - 1);
	uint64_t len = min_u64(each, size - off);
	autofree char *buf = malloc(PIECE);
	autoclose int fd = -1;
	int rc;

	if (number != 1 && (!number || off >= size))
		return err_set(e, EINVAL, "'%s': impossible part %u", path, number);
	rc = buf ? part_fd(&fd, e) : err_nomem(e);
	for (uint64_t at = 0, n; !rc && at < len; at += n) {
		n = min_u64(PIECE, len - at);
		rc = read(arg, off + at, buf, (size_t)n, e);
		if (rc)
			return rc;
		rc = io_pwrite(fd, buf, (size_t)n, at);
		if (rc)
			return err_sys(e, -rc, "memory for a part");
	}
	return rc ? rc : send_part(w, file, path, number, off + len == size, len, steal_fd(&fd), e);
}

/* ---- the end ---- */

static int send_names(struct writing *w, enum writing_names which, struct ckpt_err *e)
{
	struct call c = { .head = { .kind = WIRE_NAME, .n = { w->session, which } },
			  .epoch = w->epoch };
	int rc = w->names_len[which]
			 ? link_call(w->link, &c, w->names[which], w->names_len[which], e)
			 : 0;

	w->names_len[which] = 0;
	call_release(&c);
	return rc;
}

int writing_name(struct writing *w, enum writing_names which, const char *path, struct ckpt_err *e)
{
	size_t n = strlen(path) + 1;
	int rc = 0;

	if (n > NAMES)
		return err_sys(e, ENAMETOOLONG, "'%.80s...'", path);
	if (n > NAMES - w->names_len[which])
		rc = send_names(w, which, e);
	if (rc)
		return rc;
	memcpy(w->names[which] + w->names_len[which], path, n);
	w->names_len[which] += n;
	return 0;
}

int writing_flush(struct writing *w, struct ckpt_err *e)
{
	SCOPED_LOCK(&w->lock);
	int rc = 0;

	while (!rc && w->items)
		rc = wait_some(w, e);
	if (!rc && w->why.code) {
		*e = w->why;
		rc = -e->code;
	}
	return rc;
}

int writing_commit(struct writing *w, struct ckpt_err *e)
{
	struct item *x;
	int rc = writing_flush(w, e);

	for (int i = 0; !rc && i < 3; i++)
		rc = send_names(w, (enum writing_names)i, e);
	if (rc)
		return rc;
	x = calloc(1, sizeof(*x));
	if (!x || !(x->path = strdup(""))) {
		free(x);
		return err_nomem(e);
	}
	x->fd = -1;
	x->head = (struct wire_head){ .kind = WIRE_COMMIT, .n = { w->session } };
	rc = enqueue(w, x, e);
	if (rc) {
		item_free(x);
		return rc;
	}
	rc = writing_flush(w, e);
	w->in_commit = rc == -ECANCELED;
	return rc;
}

static void end_session(struct writing *w, bool hasty, char *left, size_t cap)
{
	struct call c = { .head = { .kind = WIRE_END, .n = { w->session, hasty } },
			  .epoch = w->epoch };
	struct ckpt_err e = { 0 };

	if (link_call(w->link, &c, NULL, 0, &e))
		(void)snprintf(left, cap, "uploads may be left: %.180s", e.msg);
	else
		(void)snprintf(left, cap, "%s", c.len ? c.text : "");
	call_release(&c);
}

void writing_close(struct writing *w, char *left, size_t cap)
{
	bool hasty;

	*left = 0;
	if (!w)
		return;
	hasty = w->stop && w->stop(w->stop_arg);
	{
		SCOPED_LOCK(&w->lock);
		w->closed = true;
		(void)pthread_cond_broadcast(&w->change);
	}
	if (w->begun)
		end_session(w, hasty, left, cap);
	if (w->in_commit)
		(void)snprintf(left, cap,
			       "its last step had begun and is being completed: check whether it "
			       "is there");
	if (!hasty) {
		SCOPED_LOCK(&w->lock);
		while (w->senders)
			(void)pthread_cond_wait(&w->change, &w->lock);
	}
	put(w);
}
