/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that a fetcher has open, and that one that comes after it opens again. */
#include "source/remote_internal.h"

#include "base/buf.h"
#include "base/err.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { TEXT_MAX = 8192 };

struct rplace {
	_Atomic unsigned users;
	struct link *via;
	int dir;		       /* of file://; -1: none */
	bool limited;		       /* see rplace_limit */
	struct buf names;	       /* if limited, under the lock: each followed by a NUL */
	LIST_LINK(struct rplace) link; /* of files.all, if it has a dir */
	bool anonymous;
	char *text; /* of WIRE_OPEN: the canonical address, so that a revision remains the same commit */
	char *origin;
	size_t len;
	pthread_mutex_t lock;
	uint64_t number, epoch; /* under the lock */
};

/* All places of file://. */
static struct {
	pthread_mutex_t lock;
	LIST(struct rplace) all;
} files = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Appends a string with its NUL. */
static bool add_string(char text[static TEXT_MAX], size_t *len, const char *s)
{
	size_t n = s ? strlen(s) + 1 : 1;

	if (n > TEXT_MAX - *len)
		return false;
	memcpy(text + *len, s ? s : "", n);
	*len += n;
	return true;
}

/* The strings of the answer. */
static int take_names(const struct call *c, char **ret_root, char **ret_origin, struct ckpt_err *e)
{
	size_t n = c->text ? strlen(c->text) + 1 : 0;

	*ret_root = n > 1 ? strdup(c->text) : NULL;
	*ret_origin = strdup(n && n < c->len ? c->text + n : "");
	return *ret_root && *ret_origin ? 0 : err_nomem(e);
}

/* Sends WIRE_OPEN; ret_root: NULL, or for the canonical address, and ret_origin for the
 * endpoint. */
static int ask_open(struct link *l, const struct rplace *p, const char *text, size_t len,
		    uint64_t *ret_number, uint64_t *ret_epoch, char **ret_root, char **ret_origin,
		    struct ckpt_err *e)
{
	struct call c = { .head = { .kind = WIRE_OPEN, .n = { p->anonymous } } };
	int rc;

	do
		rc = link_call_with(l, &c, text, len, p->dir, e);
	while (rc && link_again(&c));
	*ret_number = c.head.n[1];
	*ret_epoch = c.epoch;
	if (!rc && p->dir < 0)
		link_may_open(p->anonymous, text, len);
	if (!rc && ret_root)
		rc = take_names(&c, ret_root, ret_origin, e);
	call_release(&c);
	return rc;
}

static void close_number(struct rplace *p, uint64_t number, uint64_t epoch)
{
	struct wire_head h = { .kind = WIRE_CLOSE, .n = { number } };

	link_tell(p->via, epoch, &h);
}

static void rplace_free(struct rplace *p)
{
	if (p->dir >= 0)
		(void)close(p->dir);
	buf_release(&p->names);
	free(p->text);
	free(p->origin);
	free(p);
}

int rplace_open(struct link *l, const char *address, int dir, const struct place_options *o,
		struct rplace **ret, char **ret_root, struct ckpt_err *e)
{
	const char *const more[] = { o->endpoint, o->region, o->profile };
	struct rplace *p = calloc(1, sizeof(*p));
	autofree char *root = NULL;
	char text[TEXT_MAX];
	int rc = 0;

	if (!p)
		return err_nomem(e);
	p->dir = dir < 0 ? -1 : fcntl(dir, F_DUPFD_CLOEXEC, 0);
	if (dir >= 0 && p->dir < 0)
		rc = err_sys(e, errno, "open '%s'", address);
	p->anonymous = o->anonymous;
	p->names = (struct buf)BUF_INIT(WIRE_TEXT_MAX);
	for (int canonical = 0; !rc && canonical < 2; canonical++) {
		bool fits;

		p->len = 0;
		fits = add_string(text, &p->len, canonical ? root : address);
		for (size_t i = 0; i < ARRAY_LEN(more); i++)
			fits = fits && add_string(text, &p->len, more[i]);
		if (!fits)
			rc = err_set(e, ENAMETOOLONG, "its name, or an option, is too long");
		else if (!canonical)
			rc = ask_open(l, p, text, p->len, &p->number, &p->epoch, &root, &p->origin,
				      e);
	}
	p->text = rc ? NULL : malloc(p->len);
	if (!rc && !p->text)
		rc = err_nomem(e);
	if (rc) {
		rplace_free(p);
		return rc;
	}
	memcpy(p->text, text, p->len);
	if (p->dir < 0) /* the canonical address, by a later fetcher */
		link_may_open(p->anonymous, text, p->len);
	(void)pthread_mutex_init(&p->lock, NULL);
	p->users = 1;
	p->via = l;
	link_hold(l);
	if (p->dir >= 0) {
		SCOPED_LOCK(&files.lock);
		LIST_PUSH(&files.all, p);
	}
	*ret = p;
	*ret_root = steal_ptr(&root);
	return 0;
}

void rplace_expect(const char *address, const struct place_options *o)
{
	const char *const all[] = { address, o->endpoint, o->region, o->profile };
	char text[TEXT_MAX];
	size_t len = 0;

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (!add_string(text, &len, all[i]))
			return; /* opening it would be an error, too */
	link_may_open(o->anonymous, text, len);
}

void rplace_limit(struct rplace *p, const char *name)
{
	p->limited = true;
	rplace_note(p, name);
}

void rplace_note(struct rplace *p, const char *path)
{
	SCOPED_LOCK(&p->lock);

	if (p->limited)
		buf_add(&p->names, path, strlen(path) + 1);
}

void rplace_rest(void)
{
	SCOPED_LOCK(&files.lock);

	LIST_EACH (p, &files.all) {
		struct stat st;

		if (!fstat(p->dir, &st) && (p->names.len || !p->limited))
			link_may_read(&st, p->names.data, p->names.len);
	}
}

void rplace_hold(struct rplace *p)
{
	p->users++;
}

void rplace_put(struct rplace *p)
{
	if (--p->users)
		return;
	if (p->dir >= 0) {
		SCOPED_LOCK(&files.lock);
		LIST_REMOVE(&files.all, p);
	}
	close_number(p, p->number, p->epoch);
	link_put(p->via);
	(void)pthread_mutex_destroy(&p->lock);
	rplace_free(p);
}

struct link *rplace_link(const struct rplace *p)
{
	return p->via;
}

const char *rplace_origin(const struct rplace *p)
{
	return p->origin;
}

uint64_t rplace_number(struct rplace *p, uint64_t *ret_epoch)
{
	SCOPED_LOCK(&p->lock);

	*ret_epoch = p->epoch;
	return p->number;
}

/* The same, after it was opened again if necessary. */
static int get_number(struct rplace *p, uint64_t *ret, uint64_t *ret_epoch, struct ckpt_err *e)
{
	uint64_t number, epoch, other, other_epoch;

	*ret = rplace_number(p, ret_epoch);
	if (*ret_epoch == link_epoch(p->via))
		return 0;
	if (ask_open(p->via, p, p->text, p->len, &number, &epoch, NULL, NULL, e))
		return -e->code;
	{
		/* If two threads come here at the same time, one opens it in vain. */
		SCOPED_LOCK(&p->lock);
		bool newer = epoch > p->epoch;

		other = newer ? p->number : number;
		other_epoch = newer ? p->epoch : epoch;
		if (newer) {
			p->number = number;
			p->epoch = epoch;
		}
		*ret = p->number;
		*ret_epoch = p->epoch;
	}
	close_number(p, other, other_epoch);
	return 0;
}

int rplace_call(struct rplace *p, struct call *c, const void *text, size_t len, struct ckpt_err *e)
{
	int rc;

	do {
		rc = get_number(p, &c->head.n[0], &c->epoch, e);
		if (!rc)
			rc = link_call(p->via, c, text, len, e);
	} while (rc && link_again(c));
	return rc;
}
