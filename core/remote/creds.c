/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/creds.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <string.h>

struct creds {
	struct creds_key key;
};

static void wipe(char *s)
{
	if (s)
		explicit_bzero(s, strlen(s));
	free(s);
}

void creds_key_release(struct creds_key *k)
{
	wipe(k->access);
	wipe(k->secret);
	wipe(k->token);
	*k = (struct creds_key){ 0 };
}

static bool copy(char **to, const char *s)
{
	*to = s && *s ? strdup(s) : NULL;
	return *to || !s || !*s;
}

static int copy_key(const struct creds_key *from, struct creds_key *ret, struct ckpt_err *e)
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

static char *env(const char *name)
{
	char *v = getenv(name);

	return v && *v ? v : NULL;
}

int creds_open(struct net *n, const char *profile, bool anonymous, struct creds **ret,
	       struct ckpt_err *e)
{
	const struct creds_key of_env = { env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"),
					  env("AWS_SESSION_TOKEN") };
	struct creds *c = calloc(1, sizeof(*c));
	int rc = 0;

	(void)n;
	(void)profile;
	if (!c)
		return err_nomem(e);
	if (!anonymous && of_env.access && of_env.secret)
		rc = copy_key(&of_env, &c->key, e);
	else if (!anonymous)
		rc = err_set(e, EACCES,
			     "no credentials were found in AWS_ACCESS_KEY_ID and "
			     "AWS_SECRET_ACCESS_KEY; for what is public, use anonymous");
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
	creds_key_release(&c->key);
	free(c);
}

int creds_get(struct creds *c, struct creds_key *ret, struct ckpt_err *e)
{
	return copy_key(&c->key, ret, e);
}

bool creds_refused(struct creds *c, const char *access)
{
	(void)c;
	(void)access;
	return false;
}

const char *creds_region(const struct creds *c)
{
	(void)c;
	return NULL;
}

const char *creds_endpoint(const struct creds *c)
{
	(void)c;
	return NULL;
}
