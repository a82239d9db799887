/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sign - AWS Signature Version 4, in header fields.
 *
 * Source: docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html. The
 * path is signed as it is sent, encoded once, as S3 wants it.
 *
 * Private to core/remote.
 *
 * Threads: pure.
 */
#ifndef REMOTE_SIGN_H
#define REMOTE_SIGN_H

#include <stddef.h>
#include <time.h>

struct buf;

/* SHA-256 of nothing: the payload of a GET. */
#define SIGN_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
/* In place of a payload's: over TLS, whose integrity is enough. */
#define SIGN_UNSIGNED "UNSIGNED-PAYLOAD"

struct sign_field {
	const char *name, *value; /* name in lower case; value without blanks around it */
};

struct sign_request {
	const char *method;
	const char *path;  /* encoded; begins with '/' */
	const char *query; /* encoded, sorted, each with '='; "" */
	const struct sign_field
		*fields; /* what is signed, sorted by name, with host and x-amz-date */
	size_t n_fields;
	const char *payload; /* SHA-256 in hex, or UNSIGNED-PAYLOAD */
};

struct sign_key {
	const char *access, *secret, *region, *service;
};

/* "20130524T000000Z" into ret[17]. */
void sign_date(time_t now, char ret[static 17]);
/* SHA-256 in hex into ret[65]. */
void sign_hash(const void *p, size_t n, char ret[static 65]);
/* Adds the value of the field Authorization. */
void sign_request(const struct sign_request *r, const struct sign_key *key, time_t now,
		  struct buf *ret);

#endif
