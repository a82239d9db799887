/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_internal - what reading (s3.c) and writing (s3_upload.c) share.
 *
 * Private to core/remote.
 *
 * Threads: any.
 */
#ifndef REMOTE_S3_INTERNAL_H
#define REMOTE_S3_INTERNAL_H

#include "remote/store_internal.h"
#include "remote/upload.h"

#include <pthread.h>
#include <time.h>

enum { REGION_BYTES = 40 };

/* In which the token of upload.h is sent, and comes back. */
#define S3_TOKEN "x-amz-meta-ckptfs"

struct s3 {
	struct store base;
	struct creds *creds;
	char *bucket, *key; /* key: "" or without a '/' at its end */
	char *host;	    /* of the endpoint; NULL: AWS's, by region */
	char *path;	    /* of the endpoint, encoded, "" or "/..." */
	bool secure, by_host;
	time_t opened;
	_Atomic bool unconditional; /* the server refuses If-None-Match */
	pthread_mutex_t lock;
	char region[REGION_BYTES]; /* may be corrected by the server */
	char *moved;		   /* host named by a temporary redirect of AWS; NULL */
};

static inline struct s3 *s3_of(struct store *s)
{
	return (struct s3 *)s;
}

/* key is the whole key, or NULL for the bucket itself; query as sign_request wants it. */
int s3_request(struct s3 *s, const char *key, const char *query, const struct object_request *o,
	       struct http_message *m, struct ckpt_err *e);
/* The key of a path below the address, and `end` unless it is empty; the caller frees it. */
char *s3_key(const struct s3 *s, const char *path, const char *end);

struct s3_error {
	char code[64], message[200], region[REGION_BYTES];
};

/* For xml_parse, of the body of an error: fills in a struct s3_error. */
int s3_on_error(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e);

extern const struct upload_ops s3_uploads;

#endif
