/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/creds.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "remote/creds_internal.h"

#include <pthread.h>
#include <string.h>

enum {
	EARLY_S = 300, /* renewed this long before they expire */
	AGAIN_S = 20,  /* after a renewal that failed, or was of no use */
	WIPE_MAX = 1 << 20,
};

struct creds {
	struct creds_source source;
	pthread_mutex_t lock;
	struct creds_got got;
	uint64_t asked_ns; /* when the last renewal began; 0: never */
	bool doubted;	   /* a server refused them: not to be used until they are renewed */
	time_t expires;	   /* if doubted: the time of expiry that came with them */
	bool renewing, has_thread;
	pthread_t thread;
	struct ckpt_err why; /* of the last renewal; code 0: it was good */
};

void creds_wipe(char *s)
{
	if (s)
		explicit_bzero(s, strnlen(s, WIPE_MAX));
	free(s);
}

void creds_key_release(struct creds_key *k)
{
	creds_wipe(k->access);
	creds_wipe(k->secret);
	creds_wipe(k->token);
	*k = (struct creds_key){ 0 };
}

static bool copy(char **to, const char *s)
{
	*to = s && *s ? strdup(s) : NULL;
	return *to || !s || !*s;
}

int creds_copy(const struct creds_key *from, struct creds_key *ret, struct ckpt_err *e)
{
	struct creds_key k = { 0 };

	if (!copy(&k.access, from->access) || !copy(&k.secret, from->secret) ||
	    !copy(&k.token, from->token)) {
		creds_key_release(&k);
		return err_nomem(e);
	}
	*ret = k;
	return 0;
}

const char *creds_env(const char *name)
{
	const char *v = getenv(name);

	return v && *v ? v : NULL;
}

/* Asks the source; blocks. */
static int ask(struct creds *c, struct creds_got *ret, struct ckpt_err *e)
{
	return c->source.get(&c->source, ret, e);
}

static void take(struct creds *c, struct creds_got *got)
{
	creds_key_release(&c->got.key);
	c->got = *got;
	*got = (struct creds_got){ 0 };
}

static void *renew(void *arg)
{
	struct creds *c = arg;
	struct creds_got got = { 0 };
	struct ckpt_err e = { 0 };
	int rc = ask(c, &got, &e);

	{
		SCOPED_LOCK(&c->lock);
		if (!rc)
			take(c, &got);
		else if (c->doubted) /* the server may have meant something else */
			c->got.expires = c->expires;
		c->doubted = false;
		c->why = e;
		c->renewing = false;
	}
	creds_key_release(&got.key);
	return NULL;
}

/* Starts a renewal unless one is under way or has just been. Under the lock. */
static void begin_renewal(struct creds *c, uint64_t now)
{
	if (c->renewing || !c->source.can_renew ||
	    (c->asked_ns && now - c->asked_ns < AGAIN_S * CLOCK_SECOND))
		return;
	if (c->has_thread) /* it has ended, except for its return */
		(void)pthread_join(c->thread, NULL);
	c->has_thread = !pthread_create(&c->thread, NULL, renew, c);
	c->renewing = c->has_thread;
	c->asked_ns = now;
}

int creds_open(struct net *n, const char *profile, bool anonymous, struct creds **ret,
	       struct ckpt_err *e)
{
	struct creds *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return err_nomem(e);
	(void)pthread_mutex_init(&c->lock, NULL);
	c->source.net = n;
	rc = creds_find(&c->source, profile, anonymous, e);
	if (!rc && c->source.get)
		rc = ask(c, &c->got, e);
	if (rc) {
		creds_free(c);
		return rc;
	}
	*ret = c;
	return 0;
}

void creds_free(struct creds *c)
{
	if (!c)
		return;
	if (c->has_thread)
		(void)pthread_join(c->thread, NULL);
	creds_key_release(&c->got.key);
	creds_source_release(&c->source);
	(void)pthread_mutex_destroy(&c->lock);
	free(c);
}

int creds_get(struct creds *c, struct creds_key *ret, struct ckpt_err *e)
{
	time_t now = time(NULL);
	SCOPED_LOCK(&c->lock);

	if (c->got.expires && now > c->got.expires - EARLY_S)
		begin_renewal(c, clock_ns());
	if (!c->got.expires || now < c->got.expires)
		return creds_copy(&c->got.key, ret, e);
	if (c->renewing || !c->why.code)
		return -EAGAIN;
	return err_set(e, EACCES, "the credentials have expired, and their renewal failed: %s",
		       c->why.msg);
}

bool creds_refused(struct creds *c, const char *access)
{
	SCOPED_LOCK(&c->lock);

	if (!c->source.can_renew || !c->got.key.access)
		return false;
	if (strcmp(c->got.key.access, access) != 0)
		return true; /* renewed since that request was made */
	if (c->asked_ns && clock_ns() - c->asked_ns < AGAIN_S * CLOCK_SECOND)
		return false;
	begin_renewal(c, clock_ns());
	if (c->renewing && !c->doubted) {
		c->doubted = true;
		c->expires = c->got.expires;
		c->got.expires = 1; /* not to be used until then */
	}
	return c->renewing;
}

bool creds_are_new(struct creds *c)
{
	SCOPED_LOCK(&c->lock);

	return c->asked_ns && !c->renewing && !c->why.code &&
	       clock_ns() - c->asked_ns < AGAIN_S * CLOCK_SECOND;
}

const char *creds_region(const struct creds *c)
{
	return c->source.region;
}

const char *creds_endpoint(const struct creds *c)
{
	return c->source.endpoint;
}
