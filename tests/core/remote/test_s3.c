/* SPDX-License-Identifier: Apache-2.0 */
/* S3: requests as they are sent, listings of any form, redirects to other regions. */
#include "dir_util.h"
#include "fault.h"
#include "remote_util.h"
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "remote/s3_internal.h"

#include <curl/curl.h>
#include <unistd.h>

static struct net *net;
static struct store *store;
static serve_fn *on_request;

static bool serve(struct served *r)
{
	return on_request(r);
}

/* The replies of the script, again and again. */
static bool serve_in_turn(struct served *r)
{
	if (atomic_load(&script.served) == script.n)
		atomic_store(&script.served, 0);
	return serve_script(r);
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
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 2500 }, &net, &e), 0);
	ck_assert_msg(!store_open(net, address, &(struct store_options){ .endpoint = endpoint },
				  &store, &e),
		      "%s", e.msg);
}

static void stop(void)
{
	store_free(store);
	net_free(net);
}

static bool forbidden_by_test(struct served *r)
{
	ck_abort_msg("nothing was to be asked: %s %s", r->method, r->target);
	return false;
}

/* What a listing shows: "d NAME\n" or "f NAME SIZE\n". */
static int note(void *arg, const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	if (seen->kind == PLACE_DIR)
		buf_printf(arg, "d %s\n", name);
	else
		buf_printf(arg, "f %s %llu\n", name, (unsigned long long)seen->size);
	return ((struct buf *)arg)->err ? err_nomem(e) : 0;
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

/* If there were a Content-Type, Ceph would not check the signature. */
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

START_TEST(an_empty_bucket_is_an_empty_directory)
{
	static const struct reply reply = { 200, NULL, LIST("") };
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	script_set(&reply, 1);
	start(serve_script, "s3://b");
	ck_assert_msg(!store_list(store, ".", note, &b, &e), "%s", e.msg);
	ck_assert_uint_eq(b.len, 0);
	ck_assert_int_eq(store_list(store, "a", note, &b, &e), -ENOENT);
	ck_assert_str_eq(e.msg, "'s3://b/a': no object has a key that begins like this");
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

/* The listing begins again each time, so that its bytes are no progress. */
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

/* The level is listed first, then the object is looked for; at the top it is the other way
 * round. */
static const struct {
	const char *address, *path;
	struct reply replies[3];
	int rc;
	enum place_kind kind;
	const char *says; /* or the requests */
} looks[] = {
	{ "s3://b", ".", { { 200, NULL, LIST("") } }, 1, PLACE_DIR, "GET /b?" },
	{ "s3://b/x", ".", { { 200, NULL, LIST(FILE_("x/a")) } }, 1, PLACE_DIR, "GET /b?" },
	{ "s3://b/x",
	  ".",
	  { { 200, NULL, LIST("") }, { 200, "ETag: \"e\"\r\n", "123" } },
	  1,
	  PLACE_FILE,
	  "HEAD /b/x\n" },
	{ "s3://b/x", ".", { { 200, NULL, LIST("") }, { 404, NULL, NULL } }, 0, PLACE_FILE, "" },
	{ "s3://b/x", ".", { { 403, NULL, NULL } }, -EACCES, PLACE_FILE, "answered 403" },
	{ "s3://b/x", "k", { { 403, NULL, NULL } }, -EACCES, PLACE_FILE, "answered 403" },
	{ "s3://b/x", "k", { { 409, NULL, NULL } }, -EIO, PLACE_FILE, "answered 409" },
	{ "s3://b/x", "k", { { 412, NULL, NULL } }, -EIO, PLACE_FILE, "answered 412" },
	{ "s3://b/x",
	  "k",
	  { { 404, NULL, NULL }, { 404, NULL, "<Error><Code>NoSuchBucket</Code></Error>" } },
	  -ENOENT,
	  PLACE_FILE,
	  "NoSuchBucket" },
	{ "s3://b/x",
	  "k",
	  { { 0, NULL, "HTTP/1.1 200 x\r\nETag: \"e\"\r\nConnection: close\r\n\r\n" } },
	  -EIO,
	  PLACE_FILE,
	  "does not say how large it is" },
	{ "s3://b/x",
	  "k",
	  { { 200, "ETag: W/\"e\"\r\n", "123" } },
	  -ENOTSUP,
	  PLACE_FILE,
	  "neither a strong ETag nor Last-Modified" },
};

START_LOOP_TEST(what_is_there_is_found_out_in_one_or_two_requests, ARRAY_LEN(looks))
{
	struct place_seen seen = { 0 };
	struct ckpt_err e = { 0 };
	size_t n = 1;

	while (n < 3 && looks[_i].replies[n].status)
		n++;
	script_set(looks[_i].replies, n);
	start(serve_script, looks[_i].address);
	ck_assert_msg(store_look(store, looks[_i].path, &seen, &e) == looks[_i].rc, "%s", e.msg);
	if (looks[_i].rc == 1)
		ck_assert_int_eq(seen.kind, looks[_i].kind);
	ck_assert_msg(strstr(looks[_i].rc < 0 ? e.msg : script.log, looks[_i].says) != NULL, "%s%s",
		      e.msg, script.log);
	stop();
}
END_TEST

/* What the server sends may be arbitrarily large. */
static const struct {
	const char *before, *after; /* around 6,000 slashes */
	const char *says;	    /* NULL: it is listed */
} large_lists[] = {
	{ "<Contents><Key>run/s/", "</Key><ETag>e</ETag><Size>1</Size></Contents>",
	  "a key of more than 4 KiB" },
	{ "<Contents><Key>run/s/a</Key><Size>1</Size><ETag>", "</ETag></Contents>",
	  "without its size or ETag" },
	{ "<IsTruncated>true</IsTruncated><NextContinuationToken>", "</NextContinuationToken>",
	  "a page's token is too long" },
	{ "<CommonPrefixes><Prefix>run/s/", "/</Prefix></CommonPrefixes>",
	  "a key of more than 4 KiB" },
	{ FILE_("run/s/a") "<Owner><Name>", "</Name></Owner>", NULL },
};

START_LOOP_TEST(what_is_too_long_in_a_listing_is_refused, ARRAY_LEN(large_lists))
{
	/* The server may still be sending it when the test ends. */
	static struct buf xml;
	static struct reply reply;
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	int rc;

	xml = (struct buf)BUF_INIT(1 << 20);
	reply = (struct reply){ 200, NULL, NULL };
	buf_printf(&xml, "<ListBucketResult>%s", large_lists[_i].before);
	for (int i = 0; i < 6000; i++)
		buf_str(&xml, "/");
	buf_printf(&xml, "%s</ListBucketResult>", large_lists[_i].after);
	reply.body = xml.data;
	script_set(&reply, 1);
	start(serve_script, "s3://b/run");
	rc = store_list(store, "s", note, &b, &e);
	ck_assert_int_eq(rc, large_lists[_i].says ? -EIO : 0);
	if (rc)
		ck_assert_msg(strstr(e.msg, large_lists[_i].says) != NULL, "%s", e.msg);
	else
		ck_assert_str_eq(b.data, "f a 5\n");
	stop();
	buf_release(&b);
}
END_TEST

START_TEST(prefixes_without_an_end_or_a_name_are_no_harm)
{
	static const struct reply reply = { 200, NULL,
					    LIST("<Name>b</Name><KeyCount>3</KeyCount>" DIR_(
						    "run/s/") DIR_("run/s/d") FILE_("run/s/a%2Fb")
							 DIR_("run/s/e/")) };
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	script_set(&reply, 1);
	start(serve_script, "s3://b/run");
	ck_assert_int_eq(store_list(store, "s", note, &b, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "'a/b' below a common prefix") != NULL, "%s", e.msg);
	ck_assert_str_eq(b.data, "d d\n");
	buf_release(&b);
	stop();
}
END_TEST

START_TEST(a_name_that_is_too_long_to_ask_for_is_refused)
{
	struct buf name = BUF_INIT(1 << 20), b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	for (int i = 0; i < 100; i++) {
		for (int k = 0; k < 100; k++)
			buf_str(&name, "\xc3\xa4");
		buf_str(&name, "/");
	}
	buf_str(&name, "x");
	start(forbidden_by_test, "s3://b/run");
	ck_assert_int_eq(store_list(store, name.data, note, &b, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "the name is too long") != NULL, "%s", e.msg);
	ck_assert_uint_eq(b.len, 0);
	buf_release(&name);
	buf_release(&b);
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

/* ---- verdicts on answers, without a server ---- */

/* A store at AWS, which is never asked. */
static void open_at(const char *address, const struct store_options *o)
{
	struct ckpt_err e = { 0 };

	if (!net)
		ck_assert_int_eq(net_new(NULL, &net, &e), 0);
	ck_assert_msg(!store_open(net, address, o, &store, &e), "%s", e.msg);
}

static void with_keys(void)
{
	(void)setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
	(void)setenv("AWS_SECRET_ACCESS_KEY", "verysecret", 1);
	(void)setenv("AWS_CONFIG_FILE", "/nowhere", 1);
	(void)setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere", 1);
	(void)unsetenv("AWS_SESSION_TOKEN");
	(void)unsetenv("AWS_PROFILE");
	(void)unsetenv("AWS_REGION");
	(void)unsetenv("AWS_DEFAULT_REGION");
	(void)unsetenv("AWS_ENDPOINT_URL");
	(void)unsetenv("AWS_ENDPOINT_URL_S3");
}

/* The address of the request for a path. *ret_signed: is it signed, and does the signature's scope
 * contain `scope`? */
static const char *url_of(const char *path, const char *scope, bool *ret_signed)
{
	static const struct object_request plain = { .range = "bytes=0-9" };
	static char url[8192];
	struct http_message m = { .url = BUF_INIT(8192) };
	struct ckpt_err e = { 0 };

	*ret_signed = false;
	ck_assert_msg(!store->ops->make(store, path, &plain, &m, &e), "%s", e.msg);
	for (const struct curl_slist *l = m.fields; l; l = l->next)
		if (!strncmp(l->data, "Authorization: ", 15)) {
			*ret_signed = true;
			ck_assert_msg(strstr(l->data, scope) != NULL, "%s", l->data);
		}
	(void)snprintf(url, sizeof(url), "%s", m.url.data);
	curl_slist_free_all(m.fields);
	buf_release(&m.url);
	return url;
}

#define CODE(code) "<Error><Code>" code "</Code><Message>m</Message></Error>"
#define HERE	   "https://b.s3.us-east-1.amazonaws.com/x"

static const struct {
	unsigned status;
	const char *fields, *error, *url;
	enum http_verdict verdict;
	int code;		 /* of HTTP_FAIL and HTTP_AGAIN */
	const char *says, *then; /* then: the address of the next request */
} verdicts[] = {
	{ 404, "", "", HERE, HTTP_TAKE, 0, "", NULL },
	{ 404, "", CODE("NoSuchKey"), HERE, HTTP_TAKE, 0, "", NULL },
	{ 404, "", CODE("NoSuchBucket"), HERE, HTTP_FAIL, ENOENT, "404 (NoSuchBucket: m)", NULL },
	{ 412, "", "", HERE, HTTP_TAKE, 0, "", NULL },
	{ 416, "", "", HERE, HTTP_TAKE, 0, "", NULL },
	{ 400, "", CODE("Odd"), HERE, HTTP_FAIL, EIO, "answered 400 (Odd: m)", NULL },
	{ 401, "", "", HERE, HTTP_FAIL, EACCES, "answered 401", NULL },
	{ 403, "", CODE("AccessDenied"), HERE, HTTP_FAIL, EACCES, "403 (AccessDenied: m)", NULL },
	{ 403, "", CODE("ExpiredToken"), HERE, HTTP_FAIL, EACCES, "403 (ExpiredToken: m)", NULL },
	{ 400, "", CODE("InvalidToken"), HERE, HTTP_FAIL, EIO, "400 (InvalidToken: m)", NULL },
	{ 400, "", CODE("TokenRefreshRequired"), HERE, HTTP_FAIL, EIO, "TokenRefresh", NULL },
	{ 403, "", CODE("RequestTimeTooSkewed"), HERE, HTTP_FAIL, EACCES, "the clock", NULL },
	{ 409, "", "<not xml", HERE, HTTP_FAIL, EIO, "the server answered 409", NULL },
	{ 500, "", "", HERE, HTTP_AGAIN, EIO, "the server answered 500", NULL },
	{ 503, "", CODE("SlowDown"), HERE, HTTP_AGAIN, EIO, "503 (SlowDown: m)", NULL },
	{ 400, "", CODE("SlowDown"), HERE, HTTP_AGAIN, EIO, "400 (SlowDown: m)", NULL },
	{ 400, "", CODE("RequestTimeout"), HERE, HTTP_AGAIN, EIO, "(RequestTimeout: m)", NULL },
	{ 302, "", "", HERE, HTTP_FAIL, EIO, "at another endpoint or in another region", NULL },
	{ 301, "", "", HERE, HTTP_FAIL, EIO, "the server answered 301", NULL },
	/* Other regions, and names that are not those of a region. */
	{ 301, "x-amz-bucket-region: eu-1\r\n", "", HERE, HTTP_NOW, 0, "",
	  "https://b.s3.eu-1.amazonaws.com/x" },
	{ 400, "", "<Error><Code>C</Code><Region>cn-1</Region></Error>", HERE, HTTP_NOW, 0, "",
	  "https://b.s3.cn-1.amazonaws.com.cn/x" },
	{ 301, "x-amz-bucket-region: us-east-1\r\n", "", HERE, HTTP_FAIL, EIO, "301", NULL },
	{ 301, "x-amz-bucket-region: us-east-1\r\n", "", "https://b.s3.old.amazonaws.com/x",
	  HTTP_NOW, 0, "", HERE },
	{ 301, "x-amz-bucket-region: a.evil.com/\r\n", "", HERE, HTTP_FAIL, EIO, "301", HERE },
	{ 301, "x-amz-bucket-region: \r\n", "", HERE, HTTP_FAIL, EIO, "301", HERE },
	{ 301, "x-amz-bucket-region: aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd\r\n", "", HERE,
	  HTTP_FAIL, EIO, "301", HERE },
	{ 301, "x-amz-bucket-region: aaaaaaaaaabbbbbbbbbbccccccccccddddddddd\r\n", "", HERE,
	  HTTP_NOW, 0, "", "https://b.s3.aaaaaaaaaabbbbbbbbbbccccccccccddddddddd.amazonaws.com/x" },
	/* A bucket that was made a moment ago. */
	{ 307, "Location: https://b.s3-eu-1.amazonaws.com/x?q=1\r\n", "", HERE, HTTP_NOW, 0, "",
	  "https://b.s3-eu-1.amazonaws.com/x" },
	{ 307, "Location: https://b.s3.evil.com/x\r\n", "", HERE, HTTP_FAIL, EIO, "307", HERE },
	{ 307, "Location: https://bb.s3.amazonaws.com/x\r\n", "", HERE, HTTP_FAIL, EIO, "307",
	  HERE },
	{ 307, "Location: https://a.s3.amazonaws.com/x\r\n", "", HERE, HTTP_FAIL, EIO, "307",
	  HERE },
	{ 307, "Location: http://b.s3.amazonaws.com/x\r\n", "", HERE, HTTP_FAIL, EIO, "307", HERE },
	{ 307, "", "", HERE, HTTP_FAIL, EIO, "307", HERE },
};

START_LOOP_TEST(answers_that_are_no_success_are_told_apart, ARRAY_LEN(verdicts))
{
	struct ckpt_err e = { 0 };
	struct http_answer a;
	struct buf b;
	bool is_signed;

	with_keys();
	open_at("s3://b", NULL);
	a = answer_of(verdicts[_i].status, verdicts[_i].fields, verdicts[_i].error,
		      verdicts[_i].url, &b);
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), verdicts[_i].verdict);
	ck_assert_int_eq(e.code, verdicts[_i].code);
	ck_assert_msg(strstr(e.msg, verdicts[_i].says) != NULL, "%s", e.msg);
	if (verdicts[_i].then)
		ck_assert_str_eq(url_of("x", "/s3/aws4_request", &is_signed), verdicts[_i].then);
	/* Once the redirect has been followed, it is an error if it comes again. */
	if (verdicts[_i].verdict == HTTP_NOW) {
		a.url = verdicts[_i].then;
		ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_FAIL);
	}
	buf_release(&b);
	stop();
}
END_TEST

START_TEST(another_region_ends_a_temporary_host)
{
	struct ckpt_err e = { 0 };
	struct http_answer a;
	struct buf b;
	bool is_signed;

	with_keys();
	open_at("s3://b", NULL);
	a = answer_of(307, "Location: https://b.s3-eu-1.amazonaws.com/x\r\n", "", HERE, &b);
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_NOW);
	buf_release(&b);
	a = answer_of(307, "Location: https://b.s3-eu-2.amazonaws.com/x\r\n", "", HERE, &b);
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_NOW);
	buf_release(&b);
	ck_assert_str_eq(url_of("x", "/us-east-1/", &is_signed),
			 "https://b.s3-eu-2.amazonaws.com/x");
	a = answer_of(301, "x-amz-bucket-region: us-east-1\r\n", "", "https://elsewhere/", &b);
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_FAIL);
	buf_release(&b);
	a = answer_of(301, "x-amz-bucket-region: eu-3\r\n", "", HERE, &b);
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_NOW);
	buf_release(&b);
	ck_assert_str_eq(url_of("x", "/eu-3/", &is_signed), "https://b.s3.eu-3.amazonaws.com/x");
	stop();
}
END_TEST

/* The keys come from a command; the server says that they have expired. */
START_TEST(expired_keys_are_renewed_and_requests_wait_for_that)
{
	struct http_message m = { .url = BUF_INIT(8192) };
	static const struct object_request plain;
	uint64_t end = clock_ns() + 10 * CLOCK_SECOND;
	struct ckpt_err e = { 0 };
	struct http_answer a;
	struct buf b;
	char path[4200];
	FILE *f;

	dir_setup();
	with_keys();
	(void)unsetenv("AWS_ACCESS_KEY_ID");
	(void)snprintf(path, sizeof(path), "%s/config", dir);
	(void)setenv("AWS_CONFIG_FILE", path, 1);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	(void)fputs("[default]\ncredential_process = echo '{\"AccessKeyId\":\"A\","
		    "\"SecretAccessKey\":\"S\"}'\n",
		    f);
	(void)fclose(f);
	open_at("s3://b", NULL);
	a = answer_of(403, "", CODE("ExpiredToken"), HERE, &b);
	/* The first request has the keys renewed; the second waits for that. */
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_NOW);
	for (;;) {
		int rc = store->ops->make(store, "x", &plain, &m, &e);

		curl_slist_free_all(m.fields);
		m.fields = NULL;
		buf_restart(&m.url);
		ck_assert(!rc || rc == -EAGAIN);
		if (!rc)
			break;
		ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_NOW);
		ck_assert_uint_lt(clock_ns(), end);
		(void)usleep(1000);
	}
	/* This request was signed with the old keys. */
	ck_assert_int_eq(store->ops->judge(store, "x", &a, &e), HTTP_AGAIN);
	ck_assert_msg(strstr(e.msg, "403 (ExpiredToken: m)") != NULL, "%s", e.msg);
	buf_release(&b);
	buf_release(&m.url);
	stop();
	dir_teardown();
}
END_TEST

/* ---- addresses ---- */

static const struct {
	const char *address, *endpoint, *region, *url;
	const char *scope; /* of the signature; NULL: anonymous */
	const char *is, *origin;
} addresses[] = {
	{ "s3://b/k/", NULL, "eu-1", "https://b.s3.eu-1.amazonaws.com/k/a", "/eu-1/s3/", "s3://b/k",
	  "" },
	{ "S3://b", NULL, "cn-x", "https://b.s3.cn-x.amazonaws.com.cn/a", "/cn-x/s3/", "s3://b",
	  "" },
	{ "s3://d.b/k", NULL, NULL, "https://s3.us-east-1.amazonaws.com/d.b/k/a", "/us-east-1/s3/",
	  "s3://d.b/k", "" },
	{ "s3://Upper", NULL, NULL, "https://s3.us-east-1.amazonaws.com/Upper/a", "/us-east-1/s3/",
	  "s3://Upper", "" },
	{ "s3://aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg/k", NULL, NULL,
	  "https://aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg.s3.us-east-1"
	  ".amazonaws.com/k/a",
	  "/us-east-1/", "s3://aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg/k",
	  "" },
	{ "s3://aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg/k", NULL, NULL,
	  "https://s3.us-east-1.amazonaws.com/"
	  "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg/k/a",
	  "/us-east-1/", "s3://aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg/k",
	  "" },
	{ "gs://b/k", NULL, NULL, "https://storage.googleapis.com/b/k/a", "/auto/s3/", "gs://b/k",
	  "https://storage.googleapis.com" },
	{ "GS://b", "http://h", "r", "http://h/b/a", "/r/s3/", "gs://b", "http://h" },
	{ "s3://b/k", "http://B.h:90/", NULL, "http://b.h:90/k/a", "/us-east-1/", "s3://b/k",
	  "http://b.h:90" },
	{ "s3://b/k", "http://bb.h", NULL, "http://bb.h/b/k/a", "/us-east-1/", "s3://b/k",
	  "http://bb.h" },
	{ "s3://b", "https://h/base//", NULL, "https://h/base/b/a", "/us-east-1/", "s3://b",
	  "https://h/base" },
	{ "s3://b", NULL, NULL, "https://b.s3.us-east-1.amazonaws.com/a", NULL, "s3://b", "" },
};

START_LOOP_TEST(buckets_are_asked_for_where_they_are, ARRAY_LEN(addresses))
{
	bool is_signed;

	with_keys();
	open_at(addresses[_i].address,
		&(struct store_options){ .endpoint = addresses[_i].endpoint,
					 .region = addresses[_i].region,
					 .anonymous = !addresses[_i].scope });
	ck_assert_str_eq(url_of("a", addresses[_i].scope ? addresses[_i].scope : "", &is_signed),
			 addresses[_i].url);
	ck_assert_int_eq(is_signed, addresses[_i].scope != NULL);
	ck_assert_str_eq(store_address(store), addresses[_i].is);
	ck_assert_str_eq(store_origin(store), addresses[_i].origin);
	stop();
}
END_TEST

/* Each place is only looked at if those before it say nothing. */
START_TEST(endpoint_and_region_come_from_options_environment_and_profile)
{
	char path[4200];
	bool is_signed;
	FILE *f;

	dir_setup();
	with_keys();
	(void)snprintf(path, sizeof(path), "%s/config", dir);
	(void)setenv("AWS_CONFIG_FILE", path, 1);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	(void)fputs("[default]\nendpoint_url = http://h4\nregion = r4\n", f);
	(void)fclose(f);
	open_at("s3://b", NULL);
	ck_assert_str_eq(url_of("a", "/r4/", &is_signed), "http://h4/b/a");
	store_free(store);
	(void)setenv("AWS_ENDPOINT_URL", "http://h3", 1);
	(void)setenv("AWS_DEFAULT_REGION", "r3", 1);
	open_at("s3://b", NULL);
	ck_assert_str_eq(url_of("a", "/r3/", &is_signed), "http://h3/b/a");
	store_free(store);
	(void)setenv("AWS_ENDPOINT_URL_S3", "http://h2", 1);
	(void)setenv("AWS_REGION", "r2", 1);
	open_at("s3://b", NULL);
	ck_assert_str_eq(url_of("a", "/r2/", &is_signed), "http://h2/b/a");
	store_free(store);
	(void)setenv("AWS_ENDPOINT_URL_S3", "", 1);
	(void)setenv("AWS_REGION", "", 1);
	open_at("s3://b", NULL);
	ck_assert_str_eq(url_of("a", "/r3/", &is_signed), "http://h3/b/a");
	store_free(store);
	open_at("s3://b",
		&(struct store_options){ .endpoint = "http://h1", .region = "r1", .dir = -1 });
	ck_assert_str_eq(url_of("a", "/r1/", &is_signed), "http://h1/b/a");
	stop();
	dir_teardown();
}
END_TEST

static const struct {
	const char *address, *endpoint, *region, *says;
} bad_options[] = {
	{ "s3://b", NULL, "", "'' is not the name of a region" },
	{ "s3://b", NULL, "eu 1", "'eu 1' is not the name of a region" },
	{ "s3://b", NULL, "a.evil.com/", "is not the name of a region" },
	{ "s3://b", NULL, "aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd", "is not the name of a" },
	{ "s3://b", "", NULL, "endpoint: " },
	{ "s3://b", "nonsense:", NULL, "endpoint: " },
	{ "s3://b", "ftp://h", NULL, "endpoint: " },
	{ "s3://b", "http://me:secret@h", NULL, "endpoint: a user or password" },
	{ "s3://b", "http://h/?q", NULL, "endpoint: " },
};

START_LOOP_TEST(endpoints_and_regions_that_are_none_are_refused, ARRAY_LEN(bad_options))
{
	struct ckpt_err e = { 0 };

	with_keys();
	ck_assert_int_eq(net_new(NULL, &net, &e), 0);
	ck_assert_int_eq(store_open(net, bad_options[_i].address,
				    &(struct store_options){ .endpoint = bad_options[_i].endpoint,
							     .region = bad_options[_i].region },
				    &store, &e),
			 -EINVAL);
	ck_assert_msg(strstr(e.msg, bad_options[_i].says) != NULL, "%s", e.msg);
	ck_assert_ptr_null(strstr(e.msg, "secret"));
	net_free(net);
}
END_TEST

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

/* ---- writing ---- */

#define MD5	    "5d41402abc4b2a76b9719d911017c592" /* of "hello" */
#define RIGHT	    "ETag: \"" MD5 "\"\r\n"
#define WRONG	    "ETag: \"00000000000000000000000000000000\"\r\n"
#define STARTED(id) "<InitiateMultipartUploadResult>" id "</InitiateMultipartUploadResult>"
#define DONE \
	"<CompleteMultipartUploadResult><ETag>&quot;x-1&quot;</ETag>" \
	"</CompleteMultipartUploadResult>"
#define LONG "0123456789012345678901234567890123456789012345678901234567890123456789"

enum what { PUT, PUT_NEW, PUT_BROKEN, BEGIN, PART, COMPLETE, COMPLETE_NEW, LOOK, REMOVE, ABORT };

static const struct {
	enum what what;
	struct reply replies[8];
	int rc;
	const char *says;  /* of an error */
	const char *gives; /* ETag or id */
	const char *log;   /* NULL: not compared */
} writes[] = {
	{ PUT, { { 200, RIGHT, NULL } }, 0, "", MD5, "PUT /b/k\n" },
	{ PUT, { { 200, WRONG, NULL }, { 200, RIGHT, NULL } }, 0, "", MD5, "PUT /b/k\nPUT /b/k\n" },
	{ PUT, { { 200, WRONG, NULL } }, -EIO, "the server has stored other bytes", "", NULL },
	{ PUT,
	  { { 200, WRONG "x-amz-server-side-encryption: aws:kms\r\n", NULL } },
	  0,
	  "",
	  "00000000000000000000000000000000",
	  "PUT /b/k\n" },
	{ PUT,
	  { { 200, WRONG "x-amz-server-side-encryption-customer-algorithm: AES256\r\n", NULL } },
	  0,
	  "",
	  "00000000000000000000000000000000",
	  "PUT /b/k\n" },
	{ PUT,
	  { { 200, WRONG "x-amz-server-side-encryption: AES256\r\n", NULL } },
	  -EIO,
	  "stored other bytes",
	  "",
	  NULL },
	{ PUT, { { 200, "ETag: \"ab-1\"\r\n", NULL } }, 0, "", "ab-1", NULL },
	{ PUT,
	  { { 200, "ETag: 0000000000000000000000000000000G\r\n", NULL } },
	  0,
	  "",
	  "0000000000000000000000000000000G",
	  NULL },
	{ PUT,
	  { { 200, NULL, NULL } },
	  -EIO,
	  "did not return an ETag for what it stored",
	  "",
	  NULL },
	{ PUT,
	  { { 200, "ETag: \"\"\r\n", NULL } },
	  -EIO,
	  "did not return an ETag for what it stored",
	  "",
	  NULL },
	{ PUT,
	  { { 200, "ETag: " LONG LONG LONG LONG "\r\n", NULL } },
	  -EIO,
	  "an invalid ETag",
	  "",
	  "PUT /b/k\n" },
	{ PUT, { { 400, NULL, CODE("BadDigest") }, { 200, RIGHT, NULL } }, 0, "", MD5, NULL },
	{ PUT,
	  { { 400, NULL, CODE("XAmzContentSHA256Mismatch") }, { 200, RIGHT, NULL } },
	  0,
	  "",
	  MD5,
	  NULL },
	{ PUT, { { 400, NULL, CODE("MalformedXML") }, { 200, RIGHT, NULL } }, 0, "", MD5, NULL },
	{ PUT,
	  { { 409, NULL, CODE("OperationAborted") }, { 200, RIGHT, NULL } },
	  0,
	  "",
	  MD5,
	  NULL },
	{ PUT,
	  { { 409, NULL, CODE("ConditionalRequestConflict") }, { 200, RIGHT, NULL } },
	  0,
	  "",
	  MD5,
	  NULL },
	{ PUT, { { 409, NULL, CODE("BadDigest") } }, -EIO, "409 (BadDigest: m)", "", "PUT /b/k\n" },
	{ PUT,
	  { { 400, NULL, CODE("EntityTooLarge") } },
	  -EIO,
	  "400 (EntityTooLarge",
	  "",
	  "PUT /b/k\n" },
	{ PUT, { { 403, NULL, NULL } }, -EACCES, "answered 403", "", "PUT /b/k\n" },
	{ PUT, { { 501, NULL, NULL } }, -EIO, "answered 501", "", "PUT /b/k\n" },
	{ PUT_NEW,
	  { { 412, NULL, CODE("PreconditionFailed") } },
	  -EEXIST,
	  "412 (Precondition",
	  "",
	  "PUT /b/k\n" },
	{ PUT_NEW,
	  { { 501, NULL, NULL }, { 200, RIGHT, NULL } },
	  0,
	  "",
	  MD5,
	  "PUT /b/k\nPUT /b/k\n" },
	{ PUT_NEW, { { 501, NULL, NULL } }, -EIO, "answered 501", "", "PUT /b/k\nPUT /b/k\n" },
	{ PUT_BROKEN, { { 200, RIGHT, NULL } }, -ENODATA, "read the data to upload", "", "" },
	{ BEGIN,
	  { { 200, NULL, STARTED("<UploadId>u 1</UploadId>") } },
	  0,
	  "",
	  "u 1",
	  "POST /b/k?uploads=\n" },
	{ BEGIN,
	  { { 200, NULL, STARTED("<UploadId>a</UploadId><UploadId>b</UploadId>") } },
	  0,
	  "",
	  "a",
	  NULL },
	{ BEGIN,
	  { { 500, NULL, NULL }, { 200, NULL, STARTED("<UploadId>a</UploadId>") } },
	  0,
	  "",
	  "a",
	  "POST /b/k?uploads=\nPOST /b/k?uploads=\n" },
	{ BEGIN,
	  { { 200, NULL, STARTED("<UploadId/>") } },
	  -EIO,
	  "returned no ID for it",
	  "",
	  NULL },
	{ BEGIN,
	  { { 200, NULL, "<x><UploadId>u</UploadId></x>" } },
	  -EIO,
	  "returned no ID for it",
	  "",
	  NULL },
	{ BEGIN, { { 200, NULL, "" } }, -EIO, "not the XML", "", NULL },
	{ BEGIN, { { 404, NULL, CODE("NoSuchBucket") } }, -ENOENT, "NoSuchBucket", "", NULL },
	{ PART, { { 200, RIGHT, NULL } }, 0, "", MD5, "PUT /b/k?partNumber=7&uploadId=u%261\n" },
	{ PART, { { 404, NULL, CODE("NoSuchUpload") } }, -ENOENT, "NoSuchUpload", "", NULL },
	{ COMPLETE, { { 200, NULL, DONE } }, 0, "", "x-1", "POST /b/k?uploadId=u%261\n" },
	{ COMPLETE, { { 200, NULL, " \r\n\t" DONE } }, 0, "", "x-1", NULL },
	{ COMPLETE, { { 200, NULL, "<CompleteMultipartUploadResult/>" } }, 0, "", "", NULL },
	{ COMPLETE,
	  { { 200, NULL,
	      "<CompleteMultipartUploadResult><ETag>" LONG LONG LONG LONG
	      "</ETag></CompleteMultipartUploadResult>" } },
	  0,
	  "",
	  "",
	  NULL },
	{ COMPLETE,
	  { { 200, NULL, "<x/>" } },
	  -EIO,
	  "the end of an upload makes no sense",
	  "",
	  NULL },
	{ COMPLETE, { { 200, NULL, "" } }, -EIO, "not the XML", "", NULL },
	{ COMPLETE,
	  { { 200, NULL, CODE("InternalError") }, { 200, NULL, DONE } },
	  0,
	  "",
	  "x-1",
	  "POST /b/k?uploadId=u%261\nPOST /b/k?uploadId=u%261\n" },
	{ COMPLETE, { { 200, NULL, CODE("SlowDown") }, { 200, NULL, DONE } }, 0, "", "x-1", NULL },
	{ COMPLETE,
	  { { 200, NULL, CODE("ServiceUnavailable") }, { 200, NULL, DONE } },
	  0,
	  "",
	  "x-1",
	  NULL },
	{ COMPLETE,
	  { { 200, NULL, CODE("NoSuchUpload") } },
	  -ENOENT,
	  "answered 200, and then NoSuchUpload: m",
	  "",
	  "POST /b/k?uploadId=u%261\n" },
	{ COMPLETE_NEW,
	  { { 200, NULL, CODE("PreconditionFailed") } },
	  -EEXIST,
	  "answered 200, and then PreconditionFailed: m",
	  "",
	  NULL },
	{ COMPLETE_NEW, { { 412, NULL, NULL } }, -EEXIST, "answered 412", "", NULL },
	{ COMPLETE,
	  { { 200, NULL, CODE("InvalidPart") } },
	  -EIO,
	  "and then InvalidPart: m",
	  "",
	  NULL },
	{ LOOK, { { 200, RIGHT, "12345" } }, 1, "", MD5, "HEAD /b/k\n" },
	{ LOOK,
	  { { 200, RIGHT "x-amz-server-side-encryption: aws:kms\r\n", "12345" } },
	  1,
	  "",
	  "",
	  NULL },
	{ LOOK, { { 200, NULL, "12345" } }, 1, "", "", NULL },
	{ LOOK, { { 404, NULL, NULL } }, 0, "", "", NULL },
	{ LOOK, { { 403, NULL, NULL } }, -EACCES, "answered 403", "", NULL },
	{ LOOK, { { 404, NULL, NULL } }, 0, "", "", NULL },
	{ REMOVE, { { 204, NULL, NULL } }, 0, "", "", "DELETE /b/k\n" },
	{ REMOVE, { { 404, NULL, NULL } }, 0, "", "", NULL },
	{ REMOVE, { { 403, NULL, NULL } }, -EACCES, "answered 403", "", NULL },
	{ ABORT, { { 404, NULL, NULL } }, 0, "", "", "DELETE /b/k?uploadId=u%261\n" },
	{ ABORT,
	  { { 204, NULL, NULL }, { 404, NULL, NULL } },
	  0,
	  "",
	  "",
	  "DELETE /b/k?uploadId=u%261\nGET /b/k?max-parts=1&uploadId=u%261\n" },
	/* A part came late. */
	{ ABORT,
	  { { 204, NULL, NULL }, { 200, NULL, "<x/>" }, { 204, NULL, NULL }, { 404, NULL, NULL } },
	  0,
	  "",
	  "",
	  NULL },
	{ ABORT, { { 204, NULL, NULL }, { 200, NULL, "<x/>" } }, -EIO, NULL, "", NULL },
	{ ABORT, { { 403, NULL, NULL } }, -EACCES, "answered 403", "", NULL },
	{ ABORT, { { 204, NULL, NULL }, { 403, NULL, NULL } }, -EACCES, "answered 403", "", NULL },
};

static int read_hello(void *arg, uint64_t off, void *buf, size_t n)
{
	memcpy(buf, (const char *)arg + off, n);
	return 0;
}

static int read_broken(void *arg, uint64_t off, void *buf, size_t n)
{
	(void)arg;
	(void)off;
	(void)buf;
	(void)n;
	return -ENODATA;
}

static struct upload_bytes hello = { .len = 5,
				     .read = read_hello,
				     .arg = (void *)(uintptr_t) "hello",
				     .md5 = { 0x5d, 0x41, 0x40, 0x2a, 0xbc, 0x4b, 0x2a, 0x76, 0xb9,
					      0x71, 0x9d, 0x91, 0x10, 0x17, 0xc5, 0x92 } };

static struct upload_result result; /* of the last put or complete */

/* `gives` gets the ETag, or the id. */
static int write_something(enum what what, char gives[static UPLOAD_ETAG],
			   struct upload_begun *begun, struct ckpt_err *e)
{
	const struct upload_ops *ops = store_uploads(store);
	char one[] = "a&b", two[] = "c<d";
	const struct upload_done parts[] = { { .len = 5, .etag = one }, { .len = 5, .etag = two } };
	struct upload_seen seen = { 0 };
	int rc;

	gives[0] = 0;
	result = (struct upload_result){ 0 };
	switch (what) {
	case PUT:
	case PUT_NEW:
	case PUT_BROKEN:
		hello.read = what == PUT_BROKEN ? read_broken : read_hello;
		rc = ops->put(store, "k", &hello, "token", what == PUT_NEW, &result, e);
		memcpy(gives, result.etag, UPLOAD_ETAG);
		break;
	case BEGIN:
		rc = ops->begin(store, "k", "token", begun, NULL, e);
		(void)snprintf(gives, UPLOAD_ETAG, "%s", begun->id ? begun->id : "");
		free(begun->id);
		break;
	case PART:
		rc = ops->part(store, "k", "u&1", 7, &hello, gives, e);
		break;
	case COMPLETE:
	case COMPLETE_NEW:
		rc = ops->complete(store, "k", "u&1", parts, 2, what == COMPLETE_NEW, &result, e);
		memcpy(gives, result.etag, UPLOAD_ETAG);
		break;
	case LOOK:
		rc = ops->look(store, "k", &seen, e);
		memcpy(gives, seen.etag, UPLOAD_ETAG);
		if (rc == 1)
			ck_assert_uint_eq(seen.size, 5);
		break;
	case REMOVE:
		rc = ops->remove(store, "k", e);
		break;
	default:
		rc = ops->abort(store, "k", "u&1", e);
	}
	return rc;
}

START_LOOP_TEST(each_answer_to_what_writes_has_a_meaning, ARRAY_LEN(writes))
{
	char gives[UPLOAD_ETAG];
	struct ckpt_err e = { 0 };
	struct upload_begun begun = { 0 };
	size_t n = 1;
	int rc;

	while (n < 8 && writes[_i].replies[n].status)
		n++;
	/* What is repeated is the last pair. */
	script_set(writes[_i].replies, n);
	start(writes[_i].says ? serve_script : serve_in_turn, "s3://b");
	rc = write_something(writes[_i].what, gives, &begun, &e);
	ck_assert_msg(rc == writes[_i].rc, "%d: %s\n%s", rc, e.msg, script.log);
	if (rc >= 0)
		ck_assert_str_eq(gives, writes[_i].gives);
	else
		ck_assert_msg(strstr(e.msg, writes[_i].says ? writes[_i].says
							    : "keeps an upload that was aborted"),
			      "%s", e.msg);
	if (writes[_i].log)
		ck_assert_str_eq(script.log, writes[_i].log);
	ck_assert_int_eq(begun.doubtful, writes[_i].what == BEGIN && n > 1);
	if (writes[_i].what == PUT && !rc)
		ck_assert_str_eq(script.body, "hello");
	if (writes[_i].what == COMPLETE)
		ck_assert_ptr_nonnull(strstr(script.body,
					     "<PartNumber>1</PartNumber><ETag>a&amp;b</"
					     "ETag></Part><Part><PartNumber>2</"
					     "PartNumber><ETag>c&lt;d</ETag>"));
	ck_assert_int_eq(strstr(script.head, "If-None-Match: *") != NULL,
			 (writes[_i].what == PUT_NEW && n == 1 && rc == -EEXIST) ||
				 writes[_i].what == COMPLETE_NEW);
	stop();
}
END_TEST

static atomic_bool cancelled;

static bool serve_late(struct served *r)
{
	atomic_store(&cancelled, true);
	(void)usleep(1100000); /* requests of which nothing remains are cancelled within a second */
	return serve_script(r);
}

/* Else the server would begin it when everything has been undone. */
START_TEST(an_upload_that_is_being_begun_is_waited_for)
{
	const struct upload_ops *ops;
	struct upload_begun begun = { 0 };
	struct ckpt_err e = { 0 };

	script_set((const struct reply[]){ { 200, NULL, STARTED("<UploadId>u</UploadId>") } }, 1);
	start(serve_late, "s3://b");
	ops = store_uploads(store);
	ck_assert_msg(!ops->begin(store, "k", "token", &begun, &cancelled, &e), "%s", e.msg);
	ck_assert_str_eq(begun.id, "u");
	ck_assert_uint_eq(begun.lost, 0);
	free(begun.id);
	stop();
}
END_TEST

START_TEST(an_upload_whose_id_is_too_long_is_refused)
{
	static struct buf xml; /* these two as in the listing above */
	static struct reply reply;
	char gives[UPLOAD_ETAG];
	struct ckpt_err e = { 0 };
	struct upload_begun begun;

	xml = (struct buf)BUF_INIT(1 << 16);
	reply = (struct reply){ 200, NULL, NULL };
	buf_str(&xml, "<InitiateMultipartUploadResult><UploadId>");
	for (int i = 0; i < 500; i++)
		buf_str(&xml, "0123456789");
	buf_str(&xml, "</UploadId></InitiateMultipartUploadResult>");
	reply.body = xml.data;
	script_set(&reply, 1);
	start(serve_script, "s3://b");
	ck_assert_int_eq(write_something(BEGIN, gives, &begun, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "returned no ID for it") != NULL, "%s", e.msg);
	stop();
}
END_TEST

/* Requests that were answered with an error, or never sent, do not count. */
START_TEST(requests_to_begin_whose_answers_are_lost_are_counted)
{
	static const char id[] = "<InitiateMultipartUploadResult><UploadId>u</UploadId></"
				 "InitiateMultipartUploadResult>";
	const struct reply replies[] = {
		{ 0, NULL, "HTTP/1.1 200 x\r\nContent-Length: 90\r\n\r\n<Initiate" },
		{ 503, NULL, NULL },
		{ 200, NULL, id },
	};
	char gives[UPLOAD_ETAG];
	struct ckpt_err e = { 0 };
	struct upload_begun begun;

	script_set(replies, ARRAY_LEN(replies));
	start(serve_script, "s3://b");
	ck_assert_msg(!write_something(BEGIN, gives, &begun, &e), "%s", e.msg);
	ck_assert_str_eq(gives, "u");
	ck_assert(begun.doubtful);
	ck_assert_uint_eq(begun.lost, 1);
	(void)shutdown(server.fd, SHUT_RDWR); /* nobody listens any more */
	(void)close(server.fd);
	ck_assert_int_eq(write_something(BEGIN, gives, &begun, &e), -EIO);
	ck_assert_uint_eq(begun.lost, 0);
	stop();
}
END_TEST

/* What writes, and what becomes of it. */
static const struct {
	enum what what; /* the token is of PUT and BEGIN */
	struct reply replies[2];
	int rc;
	unsigned lost;
	bool repeated;
} outcomes[] = {
	{ PUT, { { 200, RIGHT, NULL } }, 0, 0, false },
	{ PUT, { { 500, NULL, NULL }, { 200, RIGHT, NULL } }, 0, 0, true },
	{ PUT_NEW, { { 412, NULL, NULL } }, -EEXIST, 0, false },
	{ PUT_NEW, { { 200, WRONG, NULL }, { 412, NULL, NULL } }, -EEXIST, 1, true },
	{ PUT_NEW, { { 0, NULL, "HTTP/1.1 200" }, { 412, NULL, NULL } }, -EEXIST, 1, true },
	{ BEGIN, { { 200, NULL, STARTED("<UploadId>u</UploadId>") } }, 0, 0, false },
	{ COMPLETE_NEW, { { 412, NULL, NULL } }, -EEXIST, 0, false },
	{ COMPLETE_NEW, { { 500, NULL, NULL }, { 412, NULL, NULL } }, -EEXIST, 0, true },
	{ COMPLETE_NEW, { { 0, NULL, "HTTP/1.1 200" }, { 412, NULL, NULL } }, -EEXIST, 1, true },
};

START_LOOP_TEST(what_writes_says_whose_it_is_and_whether_it_was_repeated, ARRAY_LEN(outcomes))
{
	static const char fields[] = ";x-amz-date;x-amz-meta-ckptfs;x-amz-security-token,";
	const enum what what = outcomes[_i].what;
	const bool has_token = what <= PUT_NEW || what == BEGIN;
	char gives[UPLOAD_ETAG];
	struct ckpt_err e = { 0 };
	struct upload_begun begun = { 0 };

	script_set(outcomes[_i].replies, outcomes[_i].replies[1].status ? 2 : 1);
	start(serve_script, "s3://b");
	ck_assert_int_eq(write_something(what, gives, &begun, &e), outcomes[_i].rc);
	ck_assert_uint_eq(result.lost, outcomes[_i].lost);
	ck_assert_int_eq(result.repeated, outcomes[_i].repeated);
	ck_assert_int_eq(strstr(script.head, "\r\nx-amz-meta-ckptfs: token\r\n") != NULL,
			 has_token);
	ck_assert_int_eq(strstr(script.head, fields) != NULL, has_token);
	stop();
}
END_TEST

START_TEST(the_token_of_what_is_there_is_seen)
{
	static const struct reply theirs = { 200, RIGHT "X-Amz-Meta-Ckptfs: theirs\r\n", "hello" };
	static const struct reply nobodys = { 200, RIGHT, "hello" };
	static const struct reply endless = { 200, "x-amz-meta-ckptfs: " LONG LONG "\r\n",
					      "hello" };
	struct upload_seen seen;
	struct ckpt_err e = { 0 };

	script_set(&theirs, 1);
	start(serve_script, "s3://b");
	ck_assert_int_eq(store_uploads(store)->look(store, "k", &seen, &e), 1);
	ck_assert_str_eq(seen.token, "theirs");
	ck_assert_str_eq(seen.etag, MD5);
	ck_assert_uint_eq(seen.size, 5);
	script_set(&nobodys, 1);
	ck_assert_int_eq(store_uploads(store)->look(store, "k", &seen, &e), 1);
	ck_assert_str_eq(seen.token, "");
	script_set(&endless, 1);
	ck_assert_int_eq(store_uploads(store)->look(store, "k", &seen, &e), 1);
	ck_assert_uint_eq(strlen(seen.token), UPLOAD_TOKEN - 1);
	stop();
}
END_TEST

/* ---- uploads whose ids were lost ---- */

#define UPLOAD(key, id, began) \
	"<Upload><Key>" key "</Key><UploadId>" id "</UploadId><Initiated>" began \
	"</Initiated></Upload>"
#define SOON "2200-01-01T00:00:00Z"
#define UPLOADS_OF(...) \
	"<ListMultipartUploadsResult><Bucket>b</Bucket>" __VA_ARGS__ "</" \
	"ListMultipartUploadsResult>"

static const struct {
	const char *xml;
	unsigned status; /* of the abort */
	int rc;		 /* or the number of uploads */
	const char *log, *says;
} sweeps[] = {
	{ UPLOADS_OF(""), 404, 0, "", "" },
	{ UPLOADS_OF(UPLOAD("x/k+1", "u1", SOON) UPLOAD("x/k%2B1", "u2", SOON)
			     UPLOAD("x/k%2B1", "kept", SOON) UPLOAD("x/k%2B12", "u3", SOON)
				     UPLOAD("x/k%2B1", "u4", "2001-01-01T00:00:00Z")
					     UPLOAD("x/k%2B1", "u5", "some day")),
	  404, 2, "DELETE /b/x/k%2B1?uploadId=u2\nDELETE /b/x/k%2B1?uploadId=u5\n", "" },
	{ UPLOADS_OF("<Upload><Key>x/k%2B1</Key></Upload><Upload><UploadId>u</UploadId></Upload>"
		     "<Upload><UploadId>a</UploadId><UploadId>b</UploadId><Key>x/k%2B1</Key>"
		     "</Upload>"),
	  404, 1, "DELETE /b/x/k%2B1?uploadId=b\n", "" },
	{ UPLOADS_OF(UPLOAD("x/k%2B1", "u1", SOON) UPLOAD("x/k%2B1", "u2", SOON)), 403, -EACCES,
	  "DELETE /b/x/k%2B1?uploadId=u1\n", "answered 403" },
	{ "<Other>" UPLOAD("x/k%2B1", "u1", SOON) "</Other>", 404, 0, "", "" },
	{ "nonsense", 404, -EIO, "", "not the XML" },
	{ "", 404, -EIO, "", "not the XML" },
};

START_LOOP_TEST(only_uploads_of_the_key_that_may_be_ours_are_aborted, ARRAY_LEN(sweeps))
{
	const struct reply replies[] = { { 200, NULL, sweeps[_i].xml },
					 { sweeps[_i].status, NULL, NULL } };
	static const char list[] = "GET /b?encoding-type=url&max-uploads=1000&prefix=x%2Fk%2B1"
				   "&uploads=\n";
	struct ckpt_err e = { 0 };

	script_set(replies, 2);
	start(serve_script, "s3://b/x");
	ck_assert_int_eq(store_uploads(store)->sweep(store, "k+1", _i ? "kept" : NULL, &e),
			 sweeps[_i].rc);
	ck_assert_msg(strstr(e.msg, sweeps[_i].says) != NULL, "%s", e.msg);
	ck_assert_msg(!strncmp(script.log, list, sizeof(list) - 1), "%s", script.log);
	ck_assert_str_eq(script.log + sizeof(list) - 1, sweeps[_i].log);
	stop();
}
END_TEST

/* ---- no memory ---- */

static const struct reply two_pages[] = { { 200, NULL, LIST(MORE("a") FILE_("x/a") DIR_("x/d/")) },
					  { 200, NULL, LIST(FILE_("x/b")) } };

/* Answers all requests of a round. */
static bool serve_anything(struct served *r)
{
	static const uint8_t bytes[] = "0123456789";

	if (!strcmp(r->method, "POST"))
		return answer(
			r, 200, "",
			strstr(r->target, "uploads=") ? STARTED("<UploadId>u</UploadId>") : DONE,
			strlen(strstr(r->target, "uploads=") ? STARTED("<UploadId>u</UploadId>")
							     : DONE));
	if (!strcmp(r->method, "PUT")) {
		char body[64];

		(void)request_body(r, body, sizeof(body));
		return answer(r, 200, RIGHT, "", 0);
	}
	if (!strcmp(r->method, "DELETE"))
		return answer(r, 404, "", "", 0);
	if (strstr(r->target, "uploads=")) {
		static const char xml[] = UPLOADS_OF(UPLOAD("x/k", "u", SOON));

		return answer(r, 200, "", xml, sizeof(xml) - 1);
	}
	if (strstr(r->target, "prefix=")) {
		const char *xml = two_pages[strstr(r->target, "continuation-token=") != NULL].body;

		return answer(r, 200, "", xml, strlen(xml));
	}
	return answer_object(r, "ETag: \"1\"\r\nLast-Modified: Fri, 24 May 2013 00:00:00 GMT\r\n",
			     bytes, 10);
}

/* Asks a store for everything that it can do; 0, or the first error. */
static int do_everything(const char *endpoint, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(4096);
	struct place_seen seen = { 0 };
	char gives[UPLOAD_ETAG];
	struct reader r;
	struct upload_begun begun;
	int rc;

	net = NULL;
	store = NULL;
	rc = net_new(&(struct net_options){ .retry_ms = 2000 }, &net, e);
	if (!rc)
		rc = store_open(net, "s3://b/x", &(struct store_options){ .endpoint = endpoint },
				&store, e);
	if (!rc)
		rc = store_list(store, ".", note, &b, e);
	if (!rc && strcmp(b.data, "f a 5\nd d\nf b 5\n") != 0)
		rc = err_set(e, EPROTO, "another listing");
	if (!rc && (rc = store_look(store, "k", &seen, e)) == 1)
		rc = seen.size == 10 ? 0 : err_set(e, EPROTO, "another size");
	for (enum what what = PUT; !rc && what <= ABORT; what++)
		if (what != PUT_BROKEN && what != LOOK)
			rc = write_something(what, gives, &begun, e);
	if (!rc)
		rc = store_uploads(store)->sweep(store, "k", NULL, e);
	if (rc >= 0) {
		rc = read_range_of(&r, store, "k", &seen, 3, 4, e);
		if (!rc && (r.n != 4 || memcmp(r.p, "3456", 4) != 0))
			rc = err_set(e, EPROTO, "other bytes");
	}
	buf_release(&b);
	store_free(store);
	net_free(net);
	return rc;
}

static const int fault_kinds[] = { FAULT_ALLOC, FAULT_THREAD };

START_LOOP_TEST(whatever_fails_is_a_clean_error_and_leaves_nothing, ARRAY_LEN(fault_kinds))
{
	struct ckpt_err e = { 0 };
	char endpoint[64];
	unsigned failed = 0;

	with_keys();
	(void)setenv("AWS_SESSION_TOKEN", "sessiontoken", 1);
	on_request = serve_anything;
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", server_start(serve));
	ck_assert_msg(!do_everything(endpoint, &e), "%s", e.msg);
	FAULT_LOOP(fault_kinds[_i])
	{
		int64_t live = fault_live();
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = do_everything(endpoint, &e);
		fault_off();
		failed += rc != 0;
		ck_assert_msg(!rc || (rc == -e.code && *e.msg && rc != -EPROTO), "%d: %s, %s", rc,
			      e.msg, fault_name());
		ck_assert_msg(fault_live() == live, "%s leaves %lld bytes: %s", fault_name(),
			      (long long)(fault_live() - live), e.msg);
	}
	ck_assert_uint_gt(failed, 0);
}
END_TEST

SUITE(s3, .seconds = 120)
