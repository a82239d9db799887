/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/upload.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/crew.h"
#include "base/err.h"
#include "base/vec.h"

#include <nettle/base16.h>
#include <nettle/md5.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum state {
	FRESH,
	BEGINNING, /* a thread is at it */
	OPEN,	   /* a multipart upload with an id */
	HELD,	   /* in memory */
	UNKNOWN,   /* the answer of its commit was lost; it may be there, or appear later */
	VISIBLE,
	GONE, /* aborted or removed */
};

/* All but path and number are under the lock until the commit or undo, which have no company. */
struct object {
	char *path;
	enum state state;
	char *id;
	bool doubtful; /* there may be uploads of it whose ids were lost */
	unsigned lost; /* requests that may still begin one */
	bool comes_last;
	bool late; /* if UNKNOWN, and it is not there: a request may still make it visible */
	struct upload_done *parts; /* by number; etag NULL: not there */
	size_t n_parts;		   /* room in parts */
	size_t most, last;	   /* the highest number so far; the last one, 0: not known yet */
	uint8_t *held;		   /* HELD: parts[0].len bytes */
};

struct names {
	char **v;
	size_t n, cap;
};

struct uploads {
	const struct upload_ops *ops;
	void *store;
	struct uploads_options o;
	char token[33]; /* of all of its objects */
	atomic_bool stopped;
	bool committed, removed_old;
	bool kept; /* what is visible stays: the commit point may be, too */
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct object **v; /* by number; NULL: none */
	size_t n;
	size_t held;   /* bytes */
	unsigned busy; /* calls of uploads_part */
	struct names names[UPLOADS_NAMES];
};

static void hex(const uint8_t v[static 16], char ret[static 33])
{
	base16_encode_update(ret, 16, v);
	ret[32] = 0;
}

int uploads_new(const struct upload_ops *ops, void *store, const struct uploads_options *o,
		struct uploads **ret, struct ckpt_err *e)
{
	struct uploads *u = calloc(1, sizeof(*u));
	uint8_t random[16];

	if (!u)
		return err_nomem(e);
	*u = (struct uploads){ .ops = ops, .store = store, .o = *o };
	u->o.held = o->held ? o->held : UPLOAD_HELD;
	if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
		free(u);
		return err_sys(e, errno, "get a random number");
	}
	hex(random, u->token);
	(void)pthread_mutex_init(&u->lock, NULL);
	(void)pthread_cond_init(&u->change, NULL);
	*ret = u;
	return 0;
}

static void object_free(struct object *x)
{
	if (!x)
		return;
	for (size_t i = 0; i < x->n_parts; i++)
		free(x->parts[i].etag);
	free(x->parts);
	free(x->held);
	free(x->id);
	free(x->path);
	free(x);
}

void uploads_free(struct uploads *u)
{
	if (!u)
		return;
	for (size_t i = 0; i < u->n; i++)
		object_free(u->v[i]);
	free(u->v);
	for (size_t k = 0; k < UPLOADS_NAMES; k++) {
		for (size_t i = 0; i < u->names[k].n; i++)
			free(u->names[k].v[i]);
		free(u->names[k].v);
	}
	(void)pthread_cond_destroy(&u->change);
	(void)pthread_mutex_destroy(&u->lock);
	free(u);
}

int uploads_name(struct uploads *u, enum uploads_names which, const char *path, struct ckpt_err *e)
{
	struct names *l = &u->names[which];
	char *copy = strdup(path);
	bool ok;

	{
		SCOPED_LOCK(&u->lock);
		ok = copy && VEC_ROOM_WITHIN(l->v, l->cap, l->n + 1, UPLOAD_FILES);
		if (ok)
			l->v[l->n++] = copy;
	}
	if (!ok)
		free(copy);
	return ok ? 0 : err_nomem(e);
}

/* ---- parts ---- */

static int no_part(struct ckpt_err *e, const char *path, unsigned number)
{
	return err_set(e, EINVAL, "'%s': impossible part %u", path, number);
}

/* Under the lock. */
static int object_get(struct uploads *u, uint64_t file, const char *path, struct object **ret,
		      struct ckpt_err *e)
{
	struct object *x;

	if (file >= UPLOAD_FILES || !VEC_ROOM_ZEROED(u->v, u->n, (size_t)file + 1))
		return err_nomem(e);
	x = u->v[file];
	if (!x) {
		x = calloc(1, sizeof(*x));
		if (x && !(x->path = strdup(path))) {
			free(x);
			x = NULL;
		}
		if (!x)
			return err_nomem(e);
		u->v[file] = x;
	}
	if (strcmp(x->path, path) != 0)
		return err_set(e, EINVAL, "'%s' and '%s' have one number", x->path, path);
	*ret = x;
	return 0;
}

/* Makes a place for the part: it is in work from now on. Under the lock. */
static int part_claim(struct object *x, unsigned number, bool last, const struct upload_bytes *b,
		      struct ckpt_err *e)
{
	if (!number || number > UPLOAD_PARTS || (x->last && (last || number > x->last)) ||
	    (last && number < x->most) || x->state >= HELD)
		return no_part(e, x->path, number);
	if (number > x->n_parts) {
		size_t cap = x->n_parts;

		if (!VEC_ROOM_ZEROED(x->parts, cap, number))
			return err_nomem(e);
		x->n_parts = cap;
	}
	if (x->parts[number - 1].etag)
		return no_part(e, x->path, number);
	if (last)
		x->last = number;
	x->most = max_u64(x->most, number);
	x->parts[number - 1].len = b->len;
	memcpy(x->parts[number - 1].md5, b->md5, sizeof(b->md5));
	return 0;
}

/* A small object, if there is room for it: 1. Under the lock. */
static int hold(struct uploads *u, struct object *x, const struct upload_bytes *b)
{
	if (x->state != FRESH || b->len > u->o.held - u->held)
		return 0;
	x->held = malloc((size_t)b->len + 1);
	if (!x->held)
		return 0;
	u->held += (size_t)b->len;
	x->state = HELD;
	return 1;
}

/* Begins the object's upload, unless it has begun, or waits for the thread that does. */
static int open_upload(struct uploads *u, struct object *x, struct ckpt_err *e)
{
	struct upload_begun begun = { 0 };
	bool mine = false;
	int rc;

	{
		SCOPED_LOCK(&u->lock);
		while (x->state == BEGINNING)
			(void)pthread_cond_wait(&u->change, &u->lock);
		if (x->state == FRESH) {
			x->state = BEGINNING;
			mine = true;
		}
	}
	if (!mine)
		return 0;
	rc = u->ops->begin(u->store, x->path, u->token, &begun, &u->stopped, e);
	SCOPED_LOCK(&u->lock);
	x->id = begun.id;
	x->doubtful |= begun.doubtful || rc;
	x->lost += begun.lost;
	x->state = rc ? FRESH : OPEN;
	(void)pthread_cond_broadcast(&u->change);
	return rc;
}

static int copy_bytes(const struct upload_bytes *b, uint8_t *to, struct ckpt_err *e)
{
	int rc = b->len ? b->read(b->arg, 0, to, (size_t)b->len) : 0;

	return rc ? err_sys(e, -rc, "read the data to upload") : 0;
}

static int send_part(struct uploads *u, struct object *x, unsigned number, bool last,
		     const struct upload_bytes *b, struct ckpt_err *e)
{
	struct upload_bytes mine = *b;
	char etag[UPLOAD_ETAG] = "";
	char *copy;
	bool held = false;
	int rc;

	if (number == 1 && last) {
		SCOPED_LOCK(&u->lock);
		held = hold(u, x, b);
	}
	if (held) {
		rc = copy_bytes(b, x->held, e);
	} else {
		mine.cancel = &u->stopped;
		rc = open_upload(u, x, e);
		if (!rc)
			rc = u->ops->part(u->store, x->path, x->id, number, &mine, etag, e);
	}
	copy = rc ? NULL : strdup(etag);
	if (!rc && !copy)
		rc = err_nomem(e);
	SCOPED_LOCK(&u->lock);
	x->parts[number - 1].etag = copy;
	return rc;
}

int uploads_part(struct uploads *u, uint64_t file, const char *path, unsigned number, bool last,
		 const struct upload_bytes *b, struct ckpt_err *e)
{
	struct object *x = NULL;
	int rc;

	{
		SCOPED_LOCK(&u->lock);
		rc = u->stopped ? err_set(e, ECANCELED, "stopped")
				: object_get(u, file, path, &x, e);
		if (!rc)
			rc = part_claim(x, number, last, b, e);
		if (rc)
			return rc;
		u->busy++;
	}
	rc = send_part(u, x, number, last, b, e);
	if (rc && u->stopped)
		rc = err_set(e, ECANCELED, "stopped");
	SCOPED_LOCK(&u->lock);
	u->busy--;
	(void)pthread_cond_broadcast(&u->change);
	return rc;
}

/* ---- several at a time ---- */

struct crew {
	struct uploads *u;
	int (*each)(struct uploads *u, struct object *x, struct ckpt_err *e);
	struct object **v;
	size_t n;
	bool goes_on;	   /* after an error */
	uint64_t until_ns; /* when to stop, once one has failed */
	pthread_mutex_t lock;
	size_t next, failed;
	struct ckpt_err why; /* of the first that failed */
};

static void *crew_work(void *arg)
{
	struct crew *c = arg;

	for (;;) {
		struct ckpt_err e = { 0 };
		struct object *x = NULL;

		{
			SCOPED_LOCK(&c->lock);
			if (c->goes_on && c->failed && clock_ns() > c->until_ns) {
				c->failed += c->n - c->next;
				c->next = c->n;
			}
			if (c->next < c->n && (c->goes_on || !c->failed))
				x = c->v[c->next++];
		}
		if (!x)
			return NULL;
		if (!c->each(c->u, x, &e))
			continue;
		SCOPED_LOCK(&c->lock);
		if (!c->failed++)
			c->why = e;
	}
}

/* Calls each() for all of them; the number that failed, and why the first did. */
static size_t for_all(struct crew *c, struct ckpt_err *e)
{
	(void)pthread_mutex_init(&c->lock, NULL);
	crew_run(min_u64(UPLOAD_AT_ONCE, c->n), crew_work, c);
	(void)pthread_mutex_destroy(&c->lock);
	if (c->failed)
		*e = c->why;
	return c->failed;
}

/* ---- the commit ---- */

static uint64_t size_of(const struct object *x)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < x->last; i++)
		sum += x->parts[i].len;
	return sum;
}

/*
 * The ETag of an object that is made of these parts: that of the MD5 of its bytes, or of the MD5s
 * of its parts and their number. False: the store's ETags are something else (it encrypts, or is
 * not like AWS's).
 */
static bool expected_etag(const struct object *x, char ret[static 64])
{
	struct md5_ctx c;
	uint8_t all[MD5_DIGEST_SIZE];
	char one[2 * MD5_DIGEST_SIZE + 1];

	if (x->held) {
		hex(x->parts[0].md5, ret);
		return true;
	}
	md5_init(&c);
	for (size_t i = 0; i < x->last; i++) {
		hex(x->parts[i].md5, one);
		if (strcmp(one, x->parts[i].etag) != 0)
			return false;
		md5_update(&c, MD5_DIGEST_SIZE, x->parts[i].md5);
	}
	md5_digest(&c, sizeof(all), all);
	hex(all, one);
	(void)snprintf(ret, 64, "%s-%zu", one, x->last);
	return true;
}

/* What is there after a request without a clear answer. */
enum found {
	FOUND_NONE,
	FOUND_OURS,
	FOUND_BROKEN,  /* ours, but with other bytes */
	FOUND_OTHER,   /* not ours */
	FOUND_UNKNOWN, /* it may be ours or not: do not count it as written, and do not remove it */
};

static enum found find(struct uploads *u, const struct object *x)
{
	struct upload_seen seen = { 0 };
	struct ckpt_err ignored = { 0 };
	char expected[64];
	int rc = u->ops->look(u->store, x->path, &seen, &ignored);
	bool differs;

	if (rc < 0)
		return FOUND_UNKNOWN;
	if (!rc)
		return FOUND_NONE;
	/* ETags of another kind say nothing. */
	differs = seen.size != size_of(x) ||
		  (expected_etag(x, expected) && strlen(seen.etag) == strlen(expected) &&
		   strcmp(seen.etag, expected) != 0);
	if (!strcmp(seen.token, u->token))
		return differs ? FOUND_BROKEN : FOUND_OURS;
	/* Without a token: somebody else's, or the store keeps none. */
	return differs || *seen.token ? FOUND_OTHER : FOUND_UNKNOWN;
}

static int read_held(void *arg, uint64_t off, void *buf, size_t n)
{
	const struct object *x = arg;

	memcpy(buf, x->held + off, n);
	return 0;
}

/* It could not be stored because there is one. */
static int say_there_is_one(const struct object *x, enum found found, struct ckpt_err *e)
{
	if (found == FOUND_BROKEN)
		return err_set(e, EIO, "'%s': the store has stored other bytes", x->path);
	if (x->state == UNKNOWN)
		return err_set(e, EEXIST,
			       "'%s' is there, and may or may not have been written by this save",
			       x->path);
	return err_set(e, EEXIST, "'%s' has meanwhile been created by somebody else", x->path);
}

/* Makes an object visible. */
static int show(struct uploads *u, struct object *x, struct ckpt_err *e)
{
	struct upload_bytes b = { .read = read_held, .arg = x };
	struct upload_result r = { 0 };
	enum found found;
	bool refused;
	int rc;

	if (x->state == HELD) {
		b.len = x->parts[0].len;
		memcpy(b.md5, x->parts[0].md5, sizeof(b.md5));
		rc = u->ops->put(u->store, x->path, &b, u->token, u->o.only_new, &r, e);
	} else
		rc = u->ops->complete(u->store, x->path, x->id, x->parts, x->last, u->o.only_new,
				      &r, e);
	if (!rc) {
		x->state = VISIBLE;
		return 0;
	}
	/* Whatever the last request's error is, one before it may have been carried out. If it was
	 * the only one and was refused, what is there is somebody else's; it is looked at all the
	 * same, because libcurl may have repeated that one without a word. */
	refused = !r.lost && (rc == -EACCES || (rc == -EEXIST && !r.repeated));
	found = find(u, x);
	if (found == FOUND_OURS || found == FOUND_BROKEN)
		x->state = VISIBLE;
	if (found == FOUND_OURS)
		return 0;
	x->late = r.lost;
	if ((found == FOUND_UNKNOWN && !refused) || (found == FOUND_NONE && r.lost))
		x->state = UNKNOWN;
	return rc == -EEXIST ? say_there_is_one(x, found, e) : rc;
}

static int check_whole(const struct uploads *u, struct ckpt_err *e)
{
	for (size_t i = 0; i < u->n; i++) {
		const struct object *x = u->v[i];
		bool whole = x && x->last && (x->state == OPEN || x->state == HELD);

		for (size_t k = 0; whole && k < x->last; k++)
			whole = x->parts[k].etag;
		if (x && !whole)
			return err_set(e, EINVAL, "'%s' is not complete", x->path);
	}
	return 0;
}

static struct object *find_object(const struct uploads *u, const char *path)
{
	for (size_t i = 0; i < u->n; i++)
		if (u->v[i] && !strcmp(u->v[i]->path, path))
			return u->v[i];
	return NULL;
}

static int remove_names(struct uploads *u, enum uploads_names which, struct ckpt_err *e)
{
	const struct names *l = &u->names[which];
	int rc = 0;

	for (size_t i = 0; !rc && i < l->n; i++) {
		rc = u->ops->remove(u->store, l->v[i], e);
		/* After another error it is still there. */
		u->removed_old |= !rc || rc == -EIO || rc == -ETIMEDOUT;
		if (rc)
			(void)err_wrap(e, "remove '%s'", l->v[i]);
	}
	return rc;
}

static int show_others(struct uploads *u, struct ckpt_err *e)
{
	struct crew c = { .u = u, .each = show };
	struct object **v = calloc(u->n + 1, sizeof(*v));
	size_t failed;

	if (!v)
		return err_nomem(e);
	c.v = v;
	for (size_t i = 0; i < u->n; i++)
		if (u->v[i] && !u->v[i]->comes_last)
			v[c.n++] = u->v[i];
	failed = for_all(&c, e);
	free(v);
	return failed ? -e->code : 0;
}

static int sweep(struct uploads *u, struct object *x, struct ckpt_err *e)
{
	int n = u->ops->sweep(u->store, x->path, x->state == OPEN ? x->id : NULL, e);

	if (n < 0)
		return n;
	x->doubtful = false;
	x->lost -= (unsigned)min_u64((unsigned)n, x->lost);
	return 0;
}

int uploads_commit(struct uploads *u, struct ckpt_err *e)
{
	const struct names *last = &u->names[UPLOADS_COMES_LAST];
	struct ckpt_err ignored = { 0 };
	int rc;

	if (u->committed || u->stopped)
		return err_set(e, ECANCELED, "stopped");
	rc = check_whole(u, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < last->n; i++) {
		struct object *x = find_object(u, last->v[i]);

		if (!x)
			return err_set(e, EINVAL, "'%s' was not written", last->v[i]);
		x->comes_last = true;
	}
	rc = remove_names(u, UPLOADS_REMOVED_FIRST, e);
	if (!rc)
		rc = show_others(u, e);
	if (!rc)
		rc = remove_names(u, UPLOADS_REMOVED, e);
	for (size_t i = 0; !rc && i < last->n; i++) {
		struct object *x = find_object(u, last->v[i]);

		rc = x->state == VISIBLE ? 0 : show(u, x, e);
	}
	if (rc)
		return rc;
	u->committed = true;
	for (size_t i = 0; i < u->n; i++)
		if (u->v[i] && u->v[i]->doubtful)
			(void)sweep(u, u->v[i], &ignored);
	return 0;
}

/* ---- undoing ---- */

void uploads_stop(struct uploads *u)
{
	u->stopped = true;
}

static int withdraw(struct uploads *u, struct object *x, struct ckpt_err *e)
{
	enum found found = x->state == UNKNOWN ? find(u, x) : FOUND_NONE;
	int rc = 0;

	if (x->state == VISIBLE || found == FOUND_OURS || found == FOUND_BROKEN)
		rc = u->ops->remove(u->store, x->path, e);
	else if (x->id)
		rc = u->ops->abort(u->store, x->path, x->id, e);
	if (!rc && found == FOUND_UNKNOWN)
		rc = err_set(e, EIO, "it may have become visible");
	else if (!rc && found == FOUND_NONE && x->late)
		rc = err_set(e, EIO, "the store may still make it visible");
	if (!rc && x->state != HELD && x->state != FRESH)
		x->state = GONE;
	return rc;
}

static int undo(struct uploads *u, struct object *x, struct ckpt_err *e)
{
	int rc = x->state == VISIBLE && u->kept ? 0 : withdraw(u, x, e);

	if (x->doubtful && sweep(u, x, e) && !rc)
		rc = -e->code;
	if (rc)
		x->doubtful = true; /* to be named */
	return rc;
}

/* The object that makes all the others a checkpoint; NULL: none so far. */
static struct object *commit_point(const struct uploads *u)
{
	const struct names *last = &u->names[UPLOADS_COMES_LAST];

	return last->n ? find_object(u, last->v[last->n - 1]) : NULL;
}

/* Undone before all others, which must stay visible as long as it may be. */
static void undo_point(struct uploads *u, struct object *x, struct crew *c, struct buf *left)
{
	c->v[c->n++] = x;
	c->next = 1;
	c->failed = undo(u, x, &c->why) ? 1 : 0;
	u->kept = x->state == VISIBLE || x->state == UNKNOWN;
	if (!u->kept)
		return;
	buf_printf(left,
		   "the checkpoint may be complete and visible: '%.100s' could not be removed "
		   "(%.120s), so the other files were kept",
		   x->path, c->why.msg);
	c->failed = 0;
	x->doubtful = false; /* it has been named */
}

/* A server that was too slow to answer may begin an upload when all others have been aborted. */
static void name_lost(const struct uploads *u, struct buf *left)
{
	unsigned requests = 0, shown = 0;

	for (size_t i = 0; i < u->n; i++)
		if (u->v[i] && !u->v[i]->doubtful) /* the others have been named */
			requests += u->v[i]->lost;
	if (!requests)
		return;
	buf_printf(left,
		   "%sthe store did not answer %u request%s to begin an upload and may still carry "
		   "%s out:",
		   left->len ? "; " : "", requests, requests == 1 ? "" : "s",
		   requests == 1 ? "it" : "them");
	for (size_t i = 0; i < u->n && shown < 3; i++)
		if (u->v[i] && !u->v[i]->doubtful && u->v[i]->lost)
			buf_printf(left, "%s '%.100s'", shown++ ? "," : "", u->v[i]->path);
}

void uploads_undo(struct uploads *u, struct buf *left)
{
	struct crew c = { .u = u,
			  .each = undo,
			  .goes_on = true,
			  .until_ns = clock_ns() + UPLOAD_UNDO_ALL_MS * CLOCK_MS };
	struct object **v, *point;
	struct ckpt_err e = { 0 };
	size_t failed = 0, shown = 0;

	uploads_stop(u);
	{
		SCOPED_LOCK(&u->lock);
		while (u->busy)
			(void)pthread_cond_wait(&u->change, &u->lock);
	}
	v = u->committed ? NULL : calloc(u->n + 1, sizeof(*v));
	c.v = v;
	point = commit_point(u);
	if (v && point)
		undo_point(u, point, &c, left);
	for (size_t i = 0; v && i < u->n; i++)
		if (u->v[i] && u->v[i] != point)
			v[c.n++] = u->v[i];
	if (v)
		failed = for_all(&c, &e);
	if (!v && !u->committed) /* nothing could be undone, and every object may have begun one */
		buf_str(left, "uploads may be left: out of memory");
	if (failed) {
		if (left->len)
			buf_str(left, "; ");
		buf_printf(left, "%zu upload%s could not be removed (%.120s):", failed,
			   failed == 1 ? "" : "s", e.msg);
		for (size_t i = 0; i < c.n && shown < 3; i++)
			if (v[i]->doubtful && ++shown)
				buf_printf(left, "%s '%.100s'%s%.80s", shown > 1 ? "," : "",
					   v[i]->path, v[i]->id ? " upload " : "",
					   v[i]->id ? v[i]->id : "");
		if (failed > shown)
			buf_str(left, ", ...");
	}
	free(v);
	if (!u->committed)
		name_lost(u, left);
	if (u->removed_old && !u->committed)
		buf_printf(left, "%sthe checkpoint that was there before is gone",
			   left->len ? "; " : "");
}
