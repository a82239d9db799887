/* SPDX-License-Identifier: Apache-2.0 */
/*
 * creds - the credentials of AWS and compatible services.
 *
 * Found in this order, by the first that is set up: the environment (AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), unless a profile is named; the profile in
 * ~/.aws/credentials and ~/.aws/config (keys, credential_process, a web identity); a web identity
 * (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, by STS); the container's
 * (AWS_CONTAINER_CREDENTIALS_*); the instance's (IMDSv2). Those that expire are renewed before
 * that, on a thread of their own.
 *
 * Secrets are wiped, and never part of a sentence.
 *
 * Private to core/remote.
 *
 * Threads: any, except that _open waits for the network and so is not called on its thread.
 */
#ifndef REMOTE_CREDS_H
#define REMOTE_CREDS_H

#include <stdbool.h>

struct ckpt_err;
struct creds;
struct net;

struct creds_key {
	char *access, *secret, *token; /* token may be NULL; all are with anonymous access */
};
void creds_key_release(struct creds_key *k); /* wipes it */

/* profile: NULL: AWS_PROFILE, or default. Errors: EACCES: there are none; EINVAL: what is set up
 * cannot be used. */
int creds_open(struct net *n, const char *profile, bool anonymous, struct creds **ret,
	       struct ckpt_err *e);
void creds_free(struct creds *c); /* NULL is fine */

/* A copy of the current ones. -EAGAIN, without a sentence: they are being renewed. */
int creds_get(struct creds *c, struct creds_key *ret, struct ckpt_err *e);
/* A server says that this key (the public part) has expired, or is not known. True: it is being
 * renewed, or has been; false: it cannot be. */
bool creds_refused(struct creds *c, const char *access);

/* Have they just been renewed, so that a request may have been signed with older ones? */
bool creds_are_new(struct creds *c);

/* Of the profile; borrowed; NULL: it has none. */
const char *creds_region(const struct creds *c);
const char *creds_endpoint(const struct creds *c);

#endif
