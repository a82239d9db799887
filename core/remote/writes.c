/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/writes.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/vec.h"
#include "remote/store.h"
#include "remote/upload.h"

#include <nettle/md5.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

enum {
	SESSIONS_MAX = 1024,
	HASTE_MS = 700, /* somebody has pressed Ctrl-C and waits for the answer */
	CLOSE_S = 120,	/* the longest time for undoing what a killed process has left */
};

struct session {
	struct uploads *u;
	uint32_t place;
	unsigned calls; /* being carried out */
	bool ending, over, committing;
	bool unattended; /* the other side is gone: the thread that ends it frees it */
	struct buf left;
	struct writes *writes;
};

struct writes {
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct session **v; /* by number; NULL: free */
	size_t n, cap;
};

struct writes *writes_new(void)
{
	struct writes *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	(void)pthread_mutex_init(&w->lock, NULL);
	clock_cond_init(&w->change);
	return w;
}

static void session_free(struct session *s)
{
	if (!s)
		return;
	uploads_free(s->u);
	buf_release(&s->left);
	free(s);
}

/* ---- beginning ---- */

static int begin(struct writes *w, const struct write_call *c, struct wire_head *answer,
		 struct ckpt_err *e)
{
	const struct uploads_options o = { .only_new = c->head.n[1] != 0 };
	const struct upload_ops *ops = store_uploads(c->store);
	struct session *s;
	size_t i = 0;
	int rc;

	if (!ops)
		return err_set(e, ENOTSUP,
			       "'%s': ckptfs writes to s3:// and gs:// only: write to a directory "
			       "and upload it",
			       store_address(c->store));
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_nomem(e);
	s->writes = w;
	s->place = c->place;
	s->left = (struct buf)BUF_INIT(4096);
	rc = uploads_new(ops, c->store, &o, &s->u, e);
	if (!rc) {
		SCOPED_LOCK(&w->lock);
		while (i < w->n && w->v[i])
			i++;
		if (!VEC_ROOM_WITHIN(w->v, w->cap, i + 1, SESSIONS_MAX))
			rc = err_nomem(e);
		else
			w->v[i] = s;
		if (!rc && i == w->n)
			w->n++;
	}
	if (rc)
		session_free(s);
	else
		answer->n[1] = i;
	return rc;
}

/* The session, for the time of a call. A commit uses what other calls change, so it is alone. */
static int enter(struct writes *w, uint64_t number, bool commits, struct session **ret,
		 struct ckpt_err *e)
{
	SCOPED_LOCK(&w->lock);
	struct session *s = number < w->n ? w->v[number] : NULL;

	if (!s || s->ending)
		return err_set(e, s ? ECANCELED : EINVAL, "the session is over");
	if (s->committing)
		return err_set(e, EBUSY, "the session is being committed");
	if (commits && s->calls)
		return err_set(e, EBUSY, "the session is still in use: wait for its answers");
	s->calls++;
	s->committing = commits;
	*ret = s;
	return 0;
}

static void leave(struct session *s)
{
	SCOPED_LOCK(&s->writes->lock);

	s->calls--;
	s->committing = false; /* if it was, this was the only call */
	(void)pthread_cond_broadcast(&s->writes->change);
}

/* ---- parts ---- */

static int read_fd(void *arg, uint64_t off, void *buf, size_t n)
{
	return io_pread(*(const int *)arg, buf, n, off);
}

static int hash(struct upload_bytes *b, struct ckpt_err *e)
{
	enum { PIECE = 64 << 10 };
	autofree uint8_t *buf = malloc(PIECE);
	struct md5_ctx c;

	if (!buf)
		return err_nomem(e);
	md5_init(&c);
	for (uint64_t off = 0, n; off < b->len; off += n) {
		int rc;

		n = min_u64(PIECE, b->len - off);
		rc = b->read(b->arg, off, buf, (size_t)n);
		if (rc)
			return err_sys(e, -rc, "read the data to upload");
		md5_update(&c, (size_t)n, buf);
	}
	md5_digest(&c, sizeof(b->md5), b->md5);
	return 0;
}

static int part(struct session *s, const struct write_call *c, struct ckpt_err *e)
{
	const uint64_t *n = c->head.n;
	int fd = c->fd, rc;
	struct upload_bytes b = { .len = n[3], .read = read_fd, .arg = &fd };
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || n[3] > WIRE_PART_MAX ||
	    (uint64_t)st.st_size < n[3] || n[2] > UPLOAD_PARTS ||
	    io_check_relative(c->text, strlen(c->text), e))
		return err_set(e, EINVAL, "an impossible part");
	rc = hash(&b, e);
	return rc ? rc : uploads_part(s->u, n[1], c->text, (unsigned)n[2], n[4] != 0, &b, e);
}

static int name(struct session *s, const struct write_call *c, struct ckpt_err *e)
{
	const char *p = c->text, *end = p + c->head.text;
	int rc = 0;

	if (c->head.n[1] >= UPLOADS_NAMES)
		return err_set(e, EINVAL, "impossible names");
	for (; !rc && p < end; p += strlen(p) + 1) {
		rc = io_check_relative(p, strlen(p), e);
		if (!rc)
			rc = uploads_name(s->u, (enum uploads_names)c->head.n[1], p, e);
	}
	return rc;
}

/* ---- ending ---- */

/* When this runs, nothing else uses the session but a thread that waits for its end. */
static void *end_session(void *arg)
{
	struct session *s = arg;
	struct writes *w = s->writes;
	bool unattended;

	uploads_stop(s->u);
	{
		SCOPED_LOCK(&w->lock);
		while (s->calls)
			(void)pthread_cond_wait(&w->change, &w->lock);
	}
	uploads_undo(s->u, &s->left);
	{
		SCOPED_LOCK(&w->lock);
		unattended = s->unattended;
		s->over = true;
		for (size_t i = 0; i < w->n; i++)
			if (w->v[i] == s)
				w->v[i] = NULL;
		(void)pthread_cond_broadcast(&w->change);
	}
	if (unattended)
		session_free(s);
	return NULL;
}

/* On a thread of its own, if there is one. */
static void start_ending(struct session *s)
{
	pthread_t t;

	if (pthread_create(&t, NULL, end_session, s))
		(void)end_session(s);
	else
		(void)pthread_detach(t);
}

static int end(struct writes *w, const struct write_call *c, struct buf *text, uint32_t *ret_left,
	       struct session **ret_late, struct ckpt_err *e)
{
	const uint64_t until = clock_ns() + HASTE_MS * CLOCK_MS;
	struct session *s;
	bool over;

	{
		SCOPED_LOCK(&w->lock);
		s = c->head.n[0] < w->n ? w->v[c->head.n[0]] : NULL;
		if (!s || s->ending)
			return err_set(e, EINVAL, "the session is over");
		s->ending = true;
	}
	start_ending(s);
	{
		SCOPED_LOCK(&w->lock);
		while (!s->over)
			if (!c->head.n[1])
				(void)pthread_cond_wait(&w->change, &w->lock);
			else if (clock_cond_wait(&w->change, &w->lock, until) == ETIMEDOUT)
				break;
		over = s->over;
	}
	if (!over) {
		*ret_late = s;
		buf_str(text, "ckptfs-fetch is still aborting uploads");
		return 0;
	}
	buf_add(text, s->left.data ? s->left.data : "", s->left.len);
	*ret_left = s->place;
	session_free(s);
	return 0;
}

uint32_t writes_wait(struct session *late)
{
	uint32_t place = late->place;

	{
		SCOPED_LOCK(&late->writes->lock);
		while (!late->over)
			(void)pthread_cond_wait(&late->writes->change, &late->writes->lock);
	}
	session_free(late);
	return place;
}

/* Is there a session to wait for? late: only those that commit count. */
static bool is_busy(const struct writes *w, bool late)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->v[i] && (!late || w->v[i]->committing))
			return true;
	return false;
}

void writes_close(struct writes *w)
{
	const uint64_t until = clock_ns() + CLOSE_S * CLOCK_SECOND;
	bool late = false;

	for (size_t i = 0;; i++) {
		struct session *s = NULL;

		{
			SCOPED_LOCK(&w->lock);
			if (i >= w->n)
				break;
			if (w->v[i] && !w->v[i]->ending)
				s = w->v[i];
			if (s)
				s->ending = s->unattended = true;
		}
		if (s)
			start_ending(s);
	}
	SCOPED_LOCK(&w->lock);
	while (is_busy(w, late))
		if (late)
			(void)pthread_cond_wait(&w->change, &w->lock);
		else
			late = clock_cond_wait(&w->change, &w->lock, until) == ETIMEDOUT;
}

int writes_call(struct writes *w, const struct write_call *c, struct wire_head *answer,
		struct buf *text, uint32_t *ret_left, struct session **ret_late, struct ckpt_err *e)
{
	struct session *s = NULL;
	int rc;

	if (c->head.kind == WIRE_BEGIN) {
		rc = begin(w, c, answer, e);
		if (rc)
			*ret_left = c->place;
		return rc;
	}
	if (c->head.kind == WIRE_END)
		return end(w, c, text, ret_left, ret_late, e);
	rc = enter(w, c->head.n[0], c->head.kind == WIRE_COMMIT, &s, e);
	if (rc)
		return rc;
	rc = c->head.kind == WIRE_PART	 ? part(s, c, e)
	     : c->head.kind == WIRE_NAME ? name(s, c, e)
					 : uploads_commit(s->u, e);
	leave(s);
	return rc;
}
