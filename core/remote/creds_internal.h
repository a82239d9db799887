/* SPDX-License-Identifier: Apache-2.0 */
/*
 * creds_internal - where credentials come from: creds_find.c chooses, creds_ask.c asks.
 *
 * Threads: one at a time.
 */
#ifndef REMOTE_CREDS_INTERNAL_H
#define REMOTE_CREDS_INTERNAL_H

#include "remote/creds.h"

#include <stddef.h>
#include <time.h>

struct creds_got {
	struct creds_key key;
	time_t expires; /* 0: never */
};

struct creds_source {
	struct net *net;
	/* Gets them, and blocks; NULL: anonymous. Sentences have no secret. */
	int (*get)(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);
	bool can_renew;
	char *region, *endpoint;	   /* of the profile; NULL */
	struct creds_key fixed;		   /* for creds_fixed */
	char *command;			   /* for creds_process */
	char *role, *token_file, *session; /* for creds_web_identity */
	char *url, *bearer, *bearer_file;  /* for creds_container */
};

int creds_find(struct creds_source *s, const char *profile, bool anonymous, struct ckpt_err *e);
void creds_source_release(struct creds_source *s);

int creds_fixed(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);
int creds_process(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);
int creds_web_identity(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);
int creds_container(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);
int creds_instance(struct creds_source *s, struct creds_got *ret, struct ckpt_err *e);

void creds_wipe(char *s); /* and frees it */
int creds_copy(const struct creds_key *from, struct creds_key *ret, struct ckpt_err *e);
const char *creds_env(const char *name); /* NULL also for "" */

#endif
