/* SPDX-License-Identifier: Apache-2.0 */
/* S3: requests as they are sent, listings of any form, redirects to other regions. */
#include "remote_util.h"
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "remote/upload.h"

static struct net *net;
static struct store *store;
static serve_fn *on_request;

static bool serve(struct served *r)
{
	return on_request(r);
}

static void start(serve_fn *f, const char *address)
{
	struct ckpt_err e = { 0 };
	char endpoint[64];

	on_request = f;
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", server_start(serve));
	(void)setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
	(void)setenv("AWS_SECRET_ACCESS_KEY", "verysecret", 1);
	(void)setenv("AWS_SESSION_TOKEN", "sessiontoken", 1);
	(void)unsetenv("AWS_REGION");
	(void)unsetenv("AWS_DEFAULT_REGION");
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 300 }, &net, &e), 0);
	ck_assert_msg(!store_open(net, address, &(struct store_options){ .endpoint = endpoint },
				  &store, &e),
		      "%s", e.msg);
}

static void stop(void)
{
	store_free(store);
	net_free(net);
}

/* What a listing showed: "d NAME\n" or "f NAME SIZE\n". */
static int note(void *arg, const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	(void)e;
	if (seen->kind == PLACE_DIR)
		buf_printf(arg, "d %s\n", name);
	else
		buf_printf(arg, "f %s %llu\n", name, (unsigned long long)seen->size);
	return 0;
}

/* ---- requests ---- */

static char target[4200], authorization[8192];

static bool note_request(struct served *r)
{
	(void)snprintf(target, sizeof(target), "%s %s", r->method, r->target);
	(void)snprintf(authorization, sizeof(authorization), "%s",
		       request_field(r, "Authorization"));
	ck_assert_str_eq(request_field(r, "x-amz-security-token"), "sessiontoken");
	ck_assert_ptr_null(strstr(r->head, "verysecret"));
	return answer(r, 200, "ETag: \"1\"\r\nLast-Modified: Fri, 24 May 2013 00:00:00 GMT\r\n",
		      "abc", 3);
}

START_TEST(keys_are_encoded_byte_by_byte)
{
	struct place_seen seen;
	struct ckpt_err e = { 0 };

	start(note_request, "s3://bucket.x/a//b/");
	ck_assert_str_eq(store_address(store), "s3://bucket.x/a//b");
	ck_assert_int_eq(store_look(store, "+=@,;!$'()*%25 ~_-.ä", &seen, &e), 1);
	ck_assert_str_eq(target, "HEAD /bucket.x/a//b/"
				 "%2B%3D%40%2C%3B%21%24%27%28%29%2A%2525%20~_-.%C3%A4");
	ck_assert_uint_eq(seen.size, 3);
	ck_assert_uint_eq(seen.mtime_ns, 1369353600ull * 1000000000);
	ck_assert_ptr_nonnull(strstr(authorization, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"));
	ck_assert_ptr_nonnull(strstr(authorization, "/us-east-1/s3/aws4_request,SignedHeaders=host;"
						    "x-amz-content-sha256;x-amz-date;"
						    "x-amz-security-token,Signature="));
	stop();
}
END_TEST

static bool serve_range(struct served *r)
{
	static const uint8_t bytes[] = "0123456789";

	if (!strcmp(r->method, "HEAD"))
		return answer(r, 200, "ETag: \"1\"\r\n", bytes, 10);
	ck_assert_str_eq(request_field(r, "If-Match"), "\"1\"");
	ck_assert_ptr_nonnull(strstr(request_field(r, "Authorization"),
				     "SignedHeaders=host;if-match;range;x-amz-content-sha256"));
	return answer_object(r, "ETag: \"1\"\r\n", bytes, 10);
}

START_TEST(a_range_is_asked_for_with_the_version_that_was_seen)
{
	struct place_seen seen;
	struct ckpt_err e = { 0 };
	struct reader r;

	start(serve_range, "s3://bucket/");
	ck_assert_int_eq(store_look(store, "k", &seen, &e), 1);
	ck_assert_msg(!read_range(&r, store, "k", &seen, 3, 4), "%s", r.e.msg);
	ck_assert_mem_eq(r.p, "3456", 4);
	reader_release(&r);
	stop();
}
END_TEST

static bool remove_bare(struct served *r)
{
	ck_assert_str_eq(r->method, "DELETE");
	ck_assert_ptr_null(request_field(r, "Content-Type"));
	ck_assert_ptr_null(request_field(r, "Content-Length"));
	return answer(r, 204, "", "", 0);
}

/* With a type, Ceph does not look at the signature. */
START_TEST(what_removes_an_object_has_no_body)
{
	struct ckpt_err e = { 0 };

	start(remove_bare, "s3://bucket/");
	ck_assert_msg(!store_uploads(store)->remove(store, "k", &e), "%s", e.msg);
	stop();
}
END_TEST

/* ---- listings ---- */

#define LIST(...) \
	"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>" __VA_ARGS__ \
	"</ListBucketResult>"
#define FILE_(key) \
	"<Contents><Key>" key "</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>" \
	"<ETag>&quot;e&quot;</ETag><Size>5</Size></Contents>"
#define DIR_(prefix) "<CommonPrefixes><Prefix>" prefix "</Prefix></CommonPrefixes>"
#define MORE(token) \
	"<IsTruncated>true</IsTruncated><NextContinuationToken>" token "</NextContinuationToken>"

static bool list_two_pages(struct served *r)
{
	static const char first[] =
		LIST(MORE("a+/=b") FILE_("run/s/") FILE_("run/s/b%2Bc") DIR_("run/s/d/"));
	static const char second[] = LIST("<IsTruncated>false</IsTruncated>" FILE_(
		"run/s/z+z") FILE_("run/s/.") DIR_("run/s//") DIR_("run/s/../"));
	static const char query[] = "delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000"
				    "&prefix=run%2Fs%2F";
	char want[512];

	(void)snprintf(want, sizeof(want), "/b/?%s", query);
	if (!strcmp(r->target, want) || !strcmp(r->target, want + 0))
		return answer(r, 200, "", first, sizeof(first) - 1);
	(void)snprintf(want, sizeof(want), "/b?%s", query);
	if (!strcmp(r->target, want))
		return answer(r, 200, "", first, sizeof(first) - 1);
	(void)snprintf(want, sizeof(want), "/b?continuation-token=a%%2B%%2F%%3Db&%s", query);
	if (!strcmp(r->target, want))
		return answer(r, 200, "", second, sizeof(second) - 1);
	return answer(r, 400, "", "", 0);
}

START_TEST(a_directory_is_listed_page_by_page)
{
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(4096);

	start(list_two_pages, "s3://b/run");
	ck_assert_msg(!store_list(store, "s", note, &b, &e), "%s", e.msg);
	ck_assert_str_eq(b.data, "f b+c 5\nd d\nf z z 5\n");
	buf_release(&b);
	stop();
}
END_TEST

static const struct {
	const char *xml;
	int rc;
	const char *says;
} bad_lists[] = {
	{ "", -EIO, "not the XML" },
	{ "<html><body>hello</body></html>", -EIO, "answered a listing with <html/body>" },
	{ LIST(FILE_("other/key")), -EIO, "does not begin with" },
	{ LIST(FILE_("run/s/a/b")), -EIO, "below a common prefix" },
	{ LIST("<Contents><Key>run/s/a</Key></Contents>"), -EIO, "without its size or ETag" },
	{ LIST("<Contents><Key>run/s/a</Key><ETag>e</ETag><Size>-1</Size></Contents>"), -EIO,
	  "without its size" },
	{ LIST("<Contents><Key>run/s/a</Key><ETag>e</ETag><Size>99999999999999999999999</Size>"
	       "</Contents>"),
	  -EIO, "without its size" },
	{ LIST("<IsTruncated>true</IsTruncated>"), -EIO, "there is more" },
	{ LIST(MORE("same")), -EIO, "there is more" },
	{ LIST(""), -ENOENT, "no object has a key" },
	{ "<!DOCTYPE x>" LIST(""), -EIO, "document type" },
};
static int which;

static bool list_bad(struct served *r)
{
	return answer(r, 200, "", bad_lists[which].xml, strlen(bad_lists[which].xml));
}

START_LOOP_TEST(a_listing_that_is_wrong_is_an_error, ARRAY_LEN(bad_lists))
{
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(4096);

	which = _i;
	start(list_bad, "s3://b/run");
	ck_assert_int_eq(store_list(store, "s", note, &b, &e), bad_lists[_i].rc);
	ck_assert_msg(strstr(e.msg, bad_lists[_i].says) != NULL, "%s", e.msg);
	ck_assert_msg(strstr(e.msg, "'s3://b/run/s'") != NULL, "%s", e.msg);
	buf_release(&b);
	stop();
}
END_TEST

static bool list_half(struct served *r)
{
	static const char head[] =
		"HTTP/1.1 200 x\r\nContent-Length: 1000\r\n\r\n<ListBucketResult>";

	send_all(r->fd, head, sizeof(head) - 1);
	return false;
}

/* It begins anew each time, so what comes is no progress. */
START_TEST(a_listing_that_is_always_cut_short_is_an_error)
{
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(4096);

	start(list_half, "s3://b/run");
	ck_assert_int_eq(store_list(store, "s", note, &b, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "; tried ") != NULL, "%s", e.msg);
	buf_release(&b);
	stop();
}
END_TEST

static bool list_names(struct served *r)
{
	static const char xml[] = LIST(FILE_("a") FILE_("b"));

	return answer(r, 200, "", xml, sizeof(xml) - 1);
}

static int refuse_second(void *arg, const char *name, const struct place_seen *seen,
			 struct ckpt_err *e)
{
	(void)arg;
	(void)seen;
	(void)e;
	return strcmp(name, "b") == 0 ? 7 : 0;
}

START_TEST(a_value_of_the_function_ends_a_listing_and_is_returned)
{
	struct ckpt_err e = { 0 };

	start(list_names, "s3://b");
	ck_assert_int_eq(store_list(store, ".", refuse_second, NULL, &e), 7);
	stop();
}
END_TEST

/* ---- what is there ---- */

static bool a_tree(struct served *r)
{
	static const char some[] = LIST(FILE_("x/dir/a")), none[] = LIST("");

	if (strstr(r->target, "max-keys=1&prefix=x%2Fdir%2F"))
		return answer(r, 200, "", some, sizeof(some) - 1);
	if (strstr(r->target, "prefix="))
		return answer(r, 200, "", none, sizeof(none) - 1);
	if (!strcmp(r->target, "/b/x/file"))
		return answer(r, 200, "ETag: \"e\"\r\n", "12345", 5);
	return answer(r, 404, "", "", 0);
}

START_TEST(names_are_objects_prefixes_or_nothing)
{
	struct ckpt_err e = { 0 };
	struct place_seen seen;

	start(a_tree, "s3://b/x");
	ck_assert_msg(store_look(store, "file", &seen, &e) == 1, "%s", e.msg);
	ck_assert_int_eq(seen.kind, PLACE_FILE);
	ck_assert_int_eq(store_look(store, "dir", &seen, &e), 1);
	ck_assert_int_eq(seen.kind, PLACE_DIR);
	ck_assert_int_eq(store_look(store, "none", &seen, &e), 0);
	ck_assert_int_eq(store_look(store, "../x", &seen, &e), -EINVAL);
	ck_assert_int_eq(store_look(store, "a//b", &seen, &e), -EINVAL);
	stop();
}
END_TEST

/* ---- errors and redirects ---- */

static bool elsewhere(struct served *r)
{
	if (!strstr(request_field(r, "Authorization"), "/eu-north-1/s3/"))
		return answer(r, 301, "x-amz-bucket-region: eu-north-1\r\n", "", 0);
	return answer(r, 200, "ETag: \"e\"\r\n", "12345", 5);
}

static bool elsewhere_by_xml(struct served *r)
{
	static const char xml[] =
		"<Error><Code>AuthorizationHeaderMalformed</Code><Message>m</Message>"
		"<Region>eu-north-1</Region></Error>";

	if (strstr(r->target, "prefix=") &&
	    !strstr(request_field(r, "Authorization"), "/eu-north-1/s3/"))
		return answer(r, 400, "", xml, sizeof(xml) - 1);
	return list_names(r);
}

START_TEST(a_bucket_in_another_region_is_found)
{
	struct ckpt_err e = { 0 };
	struct place_seen seen;
	struct buf b = BUF_INIT(4096);

	start(elsewhere, "s3://b/x");
	ck_assert_msg(store_look(store, "k", &seen, &e) == 1, "%s", e.msg);
	ck_assert_uint_eq(atomic_load(&server.requests), 2);
	ck_assert_int_eq(store_look(store, "k", &seen, &e), 1);
	ck_assert_uint_eq(atomic_load(&server.requests), 3);
	stop();
	start(elsewhere_by_xml, "s3://b");
	ck_assert_msg(!store_list(store, ".", note, &b, &e), "%s", e.msg);
	ck_assert_str_eq(b.data, "f a 5\nf b 5\n");
	buf_release(&b);
	stop();
}
END_TEST

static bool from_region_to_region(struct served *r)
{
	char to[64];

	(void)snprintf(to, sizeof(to), "x-amz-bucket-region: region-%u\r\n", r->number);
	return answer(r, 301, to, "", 0);
}

static bool forbidden(struct served *r)
{
	static const char xml[] =
		"<Error><Code>InvalidAccessKeyId</Code><Message>It does not exist."
		"</Message><AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId></Error>";

	return answer(r, 403, "", xml, sizeof(xml) - 1);
}

static bool no_bucket(struct served *r)
{
	static const char xml[] = "<Error><Code>NoSuchBucket</Code></Error>";

	return answer(r, 404, "", xml, sizeof(xml) - 1);
}

static bool wrong_clock(struct served *r)
{
	static const char xml[] = "<Error><Code>RequestTimeTooSkewed</Code></Error>";

	return answer(r, 403, "", xml, sizeof(xml) - 1);
}

static bool slow_down(struct served *r)
{
	static const char xml[] = "<Error><Code>SlowDown</Code></Error>";

	return answer(r, 503, "", xml, sizeof(xml) - 1);
}

static const struct {
	serve_fn *serve;
	int rc;
	const char *says;
} errors[] = {
	{ from_region_to_region, -EIO, "redirects without end" },
	{ forbidden, -EACCES, "the server answered 403 (InvalidAccessKeyId: It does not exist.)" },
	{ no_bucket, -ENOENT, "the server answered 404 (NoSuchBucket)" },
	{ wrong_clock, -EACCES, "the clock of this machine is wrong" },
	{ slow_down, -EIO, "the server answered 503 (SlowDown); tried " },
};

START_LOOP_TEST(errors_say_what_the_server_said, ARRAY_LEN(errors))
{
	struct ckpt_err e = { 0 };

	start(errors[_i].serve, "s3://b/x");
	ck_assert_int_eq(store_list(store, ".", note, NULL, &e), errors[_i].rc);
	ck_assert_msg(strstr(e.msg, errors[_i].says) != NULL, "%s", e.msg);
	ck_assert_ptr_null(strstr(e.msg, "secret"));
	ck_assert_ptr_null(strstr(e.msg, "sessiontoken"));
	stop();
}
END_TEST

/* ---- addresses ---- */

static const char *const bad_addresses[] = {
	"s3://",
	"s3:///key",
	"s3://a b/key",
	"s3://b/a/../c",
	"s3://b/./c",
	"ftp://host/x",
	"https://user:secret@host/x",
	"https://host/x?X-Amz-Signature=secret",
	"https://host/x#y",
	"https://",
};

START_LOOP_TEST(addresses_that_are_not_supported_are_refused, ARRAY_LEN(bad_addresses))
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(net_new(NULL, &net, &e), 0);
	ck_assert_int_eq(store_open(net, bad_addresses[_i],
				    &(struct store_options){ .anonymous = true }, &store, &e),
			 -EINVAL);
	ck_assert_str_ne(e.msg, "");
	ck_assert_ptr_null(strstr(e.msg, "secret"));
	net_free(net);
}
END_TEST

SUITE(s3, .seconds = 30)
