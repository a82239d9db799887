/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures, compared with those that AWS has published: the test suite of Signature Version 4
 * (service "service") and the examples in the S3 reference, "Authenticating Requests". */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "remote/sign.h"
#include "suites.h"

#include <string.h>

#define SUITE_DATE "20150830T123600Z"
#define S3_DATE	   "20130524T000000Z"
#define S3_HOST	   "examplebucket.s3.amazonaws.com"
#define S3_EMPTY_AT \
	{ "x-amz-content-sha256", SIGN_EMPTY }, \
	{ \
		"x-amz-date", S3_DATE \
	}

static const struct sign_key suite_key = { "AKIDEXAMPLE",
					   "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1",
					   "service" };
static const struct sign_key s3_key = { "AKIAIOSFODNN7EXAMPLE",
					"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1",
					"s3" };

static const struct {
	const struct sign_key *key;
	time_t at;
	const char *method, *path, *query;
	struct sign_field fields[6];
	size_t n;
	const char *payload, *signature;
} vectors[] = {
	/* get-vanilla */
	{ &suite_key,
	  1440938160,
	  "GET",
	  "/",
	  "",
	  { { "host", "example.amazonaws.com" }, { "x-amz-date", SUITE_DATE } },
	  2,
	  SIGN_EMPTY,
	  "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" },
	/* get-vanilla-query-order-key-case */
	{ &suite_key,
	  1440938160,
	  "GET",
	  "/",
	  "Param1=value1&Param2=value2",
	  { { "host", "example.amazonaws.com" }, { "x-amz-date", SUITE_DATE } },
	  2,
	  SIGN_EMPTY,
	  "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500" },
	/* post-vanilla */
	{ &suite_key,
	  1440938160,
	  "POST",
	  "/",
	  "",
	  { { "host", "example.amazonaws.com" }, { "x-amz-date", SUITE_DATE } },
	  2,
	  SIGN_EMPTY,
	  "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b" },
	/* get-unreserved */
	{ &suite_key,
	  1440938160,
	  "GET",
	  "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
	  "",
	  { { "host", "example.amazonaws.com" }, { "x-amz-date", SUITE_DATE } },
	  2,
	  SIGN_EMPTY,
	  "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f" },
	/* S3: GET Object, of a range */
	{ &s3_key,
	  1369353600,
	  "GET",
	  "/test.txt",
	  "",
	  { { "host", S3_HOST }, { "range", "bytes=0-9" }, S3_EMPTY_AT },
	  4,
	  SIGN_EMPTY,
	  "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41" },
	/* S3: GET Bucket Lifecycle */
	{ &s3_key,
	  1369353600,
	  "GET",
	  "/",
	  "lifecycle=",
	  { { "host", S3_HOST }, S3_EMPTY_AT },
	  3,
	  SIGN_EMPTY,
	  "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
	/* S3: GET Bucket (List Objects) */
	{ &s3_key,
	  1369353600,
	  "GET",
	  "/",
	  "max-keys=2&prefix=J",
	  { { "host", S3_HOST }, S3_EMPTY_AT },
	  3,
	  SIGN_EMPTY,
	  "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
	/* S3: PUT Object */
	{ &s3_key,
	  1369353600,
	  "PUT",
	  "/test%24file.text",
	  "",
	  { { "date", "Fri, 24 May 2013 00:00:00 GMT" },
	    { "host", S3_HOST },
	    { "x-amz-content-sha256",
	      "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072" },
	    { "x-amz-date", S3_DATE },
	    { "x-amz-storage-class", "REDUCED_REDUNDANCY" } },
	  5,
	  "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
	  "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd" },
};

START_LOOP_TEST(signatures_are_those_that_were_published, ARRAY_LEN(vectors))
{
	struct buf b = BUF_INIT(4096);
	const char *signature;

	sign_request(&(struct sign_request){ vectors[_i].method, vectors[_i].path,
					     vectors[_i].query, vectors[_i].fields, vectors[_i].n,
					     vectors[_i].payload },
		     vectors[_i].key, vectors[_i].at, &b);
	ck_assert_int_eq(b.err, 0);
	signature = strstr(b.data, "Signature=");
	ck_assert_ptr_nonnull(signature);
	ck_assert_str_eq(signature + strlen("Signature="), vectors[_i].signature);
	buf_release(&b);
}
END_TEST

START_TEST(the_field_names_key_scope_and_signed_fields)
{
	struct buf b = BUF_INIT(4096);

	sign_request(&(struct sign_request){ vectors[4].method, vectors[4].path, vectors[4].query,
					     vectors[4].fields, vectors[4].n, vectors[4].payload },
		     &s3_key, vectors[4].at, &b);
	ck_assert_str_eq(b.data,
			 "AWS4-HMAC-SHA256 "
			 "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
			 "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
			 "Signature="
			 "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
	buf_release(&b);
}
END_TEST

START_TEST(what_is_too_long_to_sign_is_an_error_and_not_another_signature)
{
	struct buf b = BUF_INIT(1 << 20);
	char *path = malloc(200 << 10);

	memset(path, 'a', (200 << 10) - 1);
	path[0] = '/';
	path[(200 << 10) - 1] = 0;
	sign_request(&(struct sign_request){ "GET", path, "", vectors[0].fields, vectors[0].n,
					     SIGN_EMPTY },
		     &s3_key, vectors[0].at, &b);
	ck_assert_int_eq(b.err, EFBIG);
	buf_release(&b);
	free(path);
}
END_TEST

SUITE(sign)
