/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/sign.h"

#include "base/buf.h"

#include <nettle/base16.h>
#include <nettle/hmac.h>
#include <stdint.h>
#include <string.h>

void sign_date(time_t now, char ret[static 17])
{
	struct tm t = { 0 };

	(void)gmtime_r(&now, &t);
	if (!strftime(ret, 17, "%Y%m%dT%H%M%SZ", &t))
		ret[0] = 0;
}

static void hex(const uint8_t *p, size_t n, char *ret)
{
	base16_encode_update(ret, n, p);
	ret[BASE16_ENCODE_LENGTH(n)] = 0;
}

void sign_hash(const void *p, size_t n, char ret[static 65])
{
	struct sha256_ctx c;
	uint8_t digest[SHA256_DIGEST_SIZE];

	sha256_init(&c);
	sha256_update(&c, n, p);
	sha256_digest(&c, sizeof(digest), digest);
	hex(digest, sizeof(digest), ret);
}

/* key and ret may be the same. */
static void hmac(const void *key, size_t key_len, const char *text, uint8_t *ret)
{
	struct hmac_sha256_ctx c;

	hmac_sha256_set_key(&c, key_len, key);
	hmac_sha256_update(&c, strlen(text), (const uint8_t *)text);
	hmac_sha256_digest(&c, SHA256_DIGEST_SIZE, ret);
	explicit_bzero(&c, sizeof(c));
}

static void add_names(const struct sign_request *r, struct buf *b)
{
	for (size_t i = 0; i < r->n_fields; i++)
		buf_printf(b, "%s%s", i ? ";" : "", r->fields[i].name);
}

void sign_request(const struct sign_request *r, const struct sign_key *key, time_t now,
		  struct buf *ret)
{
	struct buf b = BUF_INIT(128 << 10);
	int failed;
	char date[17], day[9], hash[65], signature[65];
	uint8_t k[SHA256_DIGEST_SIZE];

	sign_date(now, date);
	memcpy(day, date, 8);
	day[8] = 0;

	buf_printf(&b, "%s\n%s\n%s\n", r->method, r->path, r->query);
	for (size_t i = 0; i < r->n_fields; i++)
		buf_printf(&b, "%s:%s\n", r->fields[i].name, r->fields[i].value);
	buf_str(&b, "\n");
	add_names(r, &b);
	buf_printf(&b, "\n%s", r->payload);
	sign_hash(b.data, b.len, hash);
	if (b.data) /* a session's token is in it */
		explicit_bzero(b.data, b.len);
	failed = b.err;
	buf_restart(&b);
	buf_printf(&b, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", date, day, key->region,
		   key->service, hash);

	/* "AWS4" and the secret are the first key. */
	{
		struct buf first = BUF_INIT(64 << 10);

		buf_str(&first, "AWS4");
		buf_str(&first, key->secret);
		hmac(first.data, first.len, day, k);
		if (first.err && !b.err)
			b.err = first.err;
		if (first.data)
			explicit_bzero(first.data, first.len);
		buf_release(&first);
	}
	hmac(k, sizeof(k), key->region, k);
	hmac(k, sizeof(k), key->service, k);
	hmac(k, sizeof(k), "aws4_request", k);
	hmac(k, sizeof(k), b.data ? b.data : "", k);
	hex(k, sizeof(k), signature);

	if ((failed || b.err) && !ret->err)
		ret->err = failed ? failed : b.err;
	buf_printf(ret, "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request,SignedHeaders=",
		   key->access, day, key->region, key->service);
	add_names(r, ret);
	buf_printf(ret, ",Signature=%s", signature);
	explicit_bzero(k, sizeof(k));
	buf_release(&b);
}
