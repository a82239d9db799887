/* SPDX-License-Identifier: Apache-2.0 */
/*
 * url - percent-encoding (RFC 3986), and the parts of an address.
 *
 * Private to core/remote.
 *
 * Threads: pure.
 */
#ifndef REMOTE_URL_H
#define REMOTE_URL_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct ckpt_err;

/* Adds s with everything encoded but A-Z a-z 0-9 - . _ ~ and, if `slashes`, '/'. This is also how
 * SigV4 wants it. */
void url_encode(struct buf *b, const char *s, size_t n, bool slashes);
/* Adds s with %XX decoded, and '+' as a blank if `plus`; other bytes as they are. */
void url_decode(struct buf *b, const char *s, size_t n, bool plus);

/* SCHEME://HOST[:PORT]/PATH, http or https. */
struct url {
	bool secure;
	char *host; /* lower case, with the port unless it is the scheme's own */
	char *path; /* encoded as it was given; "" or begins with '/' */
};

/* Errors: EINVAL with a sentence: another scheme, a user or password in it, a query. */
int url_parse(const char *s, struct url *ret, struct ckpt_err *e);
void url_release(struct url *u);

#endif
