/* SPDX-License-Identifier: Apache-2.0 */
/* The hub: a revision becomes a commit, and large files come from another host, which must never
 * see the token. */
#include "dir_util.h"
#include "fault.h"
#include "remote_util.h"
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "remote/store_internal.h"

#include <curl/curl.h>
#include <sys/stat.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHA    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define ANSWER "{\"sha\":\"" COMMIT "\",\"siblings\":[]}"
#define ODD    "{\"sha\":\"../../x\"}"
#define GIT    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static const uint8_t weights[] = "the weights of a large model, which the other host has";
static const uint8_t config[] = "{\"a\": 1}";

static struct net *net;
static struct store *store;
static unsigned port;
static _Atomic unsigned resolved, at_cdn;
static const char *linked = SHA; /* the large file's hash, given with the redirect */
static const char *next_page;
static _Atomic bool expired;

static bool hub(struct served *r)
{
	const char *token = request_field(r, "Authorization");
	char fields[1024], body[1024];

	if (!strncmp(r->target, "/cdn/", 5)) {
		/* This is the same server under another name, localhost. */
		atomic_fetch_add(&at_cdn, 1);
		REQUIRE(!token);
		if (atomic_load(&expired))
			return answer(r, 403, "", "", 0);
		return answer_object(r, "ETag: \"of the other host\"\r\n", weights,
				     sizeof(weights));
	}
	/* Not with Check's assertions: these allocate, and allocations may be made to fail. */
	REQUIRE(token && !strcmp(token, "Bearer hf_secret"));
	if (!strcmp(r->target, "/api/models/org/name.x/revision/main") ||
	    !strcmp(r->target, "/api/models/org/name.x/revision/refs%2Fpr%2F1"))
		return answer(r, 200, "", ANSWER, sizeof(ANSWER) - 1);
	if (!strcmp(r->target, "/api/models/org/name.x/revision/odd"))
		return answer(r, 200, "", ODD, sizeof(ODD) - 1);
	if (!strcmp(r->target, "/api/models/org/name.x/tree/" COMMIT)) {
		int n = snprintf(
			body, sizeof(body),
			"[{\"type\":\"file\",\"oid\":\"%s\",\"size\":8,\"path\":\"config.json\"},"
			"{\"type\":\"directory\",\"oid\":\"%s\",\"size\":0,\"path\":\"sub\"}]",
			GIT, GIT);

		(void)snprintf(fields, sizeof(fields),
			       "Link: <http://%s:%u/api/page2>; rel=\"next\"\r\n", next_page, port);
		return answer(r, 200, fields, body, (size_t)n);
	}
	if (!strcmp(r->target, "/api/page2")) {
		int n = snprintf(body, sizeof(body),
				 "[{\"type\":\"file\",\"oid\":\"%s\",\"size\":%zu,\"path\":\"m."
				 "safetensors\","
				 "\"lfs\":{\"oid\":\"%s\",\"size\":%zu,\"pointerSize\":134}}]",
				 GIT, sizeof(weights), SHA, sizeof(weights));

		return answer(r, 200, "", body, (size_t)n);
	}
	if (!strcmp(r->target, "/api/models/org/name.x/tree/" COMMIT "/sub"))
		return answer(r, 200, "", "[]", 2);
	if (!strcmp(r->target, "/org/name.x/resolve/" COMMIT "/m.safetensors")) {
		atomic_fetch_add(&resolved, 1);
		atomic_store(&expired, false);
		(void)snprintf(fields, sizeof(fields),
			       "Location: http://localhost:%u/cdn/m?X-Amz-Signature=abc\r\n"
			       "X-Repo-Commit: " COMMIT "\r\nX-Linked-Size: %zu\r\n"
			       "X-Linked-Etag: \"%s\"\r\nETag: \"redirect\"\r\n",
			       port, sizeof(weights), linked);
		return answer(r, 302, fields, "", 0);
	}
	if (!strcmp(r->target, "/org/name.x/resolve/" COMMIT "/config.json"))
		return answer(r, 307,
			      "Location: /api/resolve-cache/c?x=1\r\nX-Repo-Commit: " COMMIT "\r\n",
			      "", 0);
	if (!strcmp(r->target, "/api/resolve-cache/c?x=1"))
		return answer_object(r, "X-Repo-Commit: " COMMIT "\r\nETag: W/\"" GIT "\"\r\n",
				     config, sizeof(config) - 1);
	return answer(r, 404, "", "", 0);
}

static int open_it(const char *address, struct ckpt_err *e)
{
	char endpoint[64];

	next_page = "127.0.0.1";
	(void)setenv("HF_TOKEN", "hf_secret", 1);
	port = server_start(hub);
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u/", port);
	(void)setenv("HF_ENDPOINT", endpoint, 1);
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 500 }, &net, e), 0);
	return store_open(net, address, NULL, &store, e);
}

static void stop(void)
{
	store_free(store);
	net_free(net);
}

START_TEST(a_revision_is_resolved_once)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_it("hf://org/name.x", &e), "%s", e.msg);
	ck_assert_str_eq(store_address(store), "hf://org/name.x@" COMMIT);
	stop();
	ck_assert_msg(!open_it("hf://org/name.x@refs/pr/1/sub/", &e), "%s", e.msg);
	ck_assert_str_eq(store_address(store), "hf://org/name.x@" COMMIT "/sub");
	stop();
	ck_assert_int_eq(open_it("hf://org/name.x@none", &e), -ENOENT);
	ck_assert_ptr_nonnull(strstr(e.msg, "no such repository or revision"));
	net_free(net);
	ck_assert_int_eq(open_it("hf://org/name.x@odd", &e), -EIO);
	ck_assert_ptr_nonnull(strstr(e.msg, "has no commit"));
	net_free(net);
}
END_TEST

static int note(void *arg, const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	char id[PLACE_ID_HEX];

	(void)e;

	place_id_hex(&seen->id, id);
	buf_printf(arg, "%d %s %llu %s\n", (int)seen->kind, name, (unsigned long long)seen->size,
		   id);
	return 0;
}

START_TEST(a_listing_says_the_same_as_a_look)
{
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(4096), looked = BUF_INIT(4096);
	static const char *const names[] = { "config.json", "sub", "m.safetensors" };
	struct place_seen seen;

	ck_assert_msg(!open_it("hf://org/name.x", &e), "%s", e.msg);
	ck_assert_msg(!store_list(store, ".", note, &b, &e), "%s", e.msg);
	ck_assert_ptr_nonnull(strstr(b.data, "1 config.json 8 45626262"));
	/* If an ETag has more than 62 bytes, its hash is shown. */
	ck_assert_ptr_nonnull(strstr(b.data, "\n2 sub 0 \n1 m.safetensors 55 48"));
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		ck_assert_msg(store_look(store, names[i], &seen, &e) == 1, "%s", e.msg);
		(void)note(&looked, names[i], &seen, &e);
	}
	ck_assert_str_eq(looked.data, b.data);
	ck_assert_int_eq(store_look(store, "none", &seen, &e), 0);
	buf_release(&b);
	buf_release(&looked);
	stop();
}
END_TEST

START_TEST(large_files_come_from_another_host_which_never_sees_the_token)
{
	struct ckpt_err e = { 0 };
	struct place_seen seen;
	struct reader r;

	ck_assert_msg(!open_it("hf://org/name.x@" COMMIT, &e), "%s", e.msg);
	ck_assert_msg(store_look(store, "m.safetensors", &seen, &e) == 1, "%s", e.msg);
	for (uint64_t off = 0; off < 50; off += 7) {
		ck_assert_msg(!read_range(&r, store, "m.safetensors", &seen, off, 5), "%s",
			      r.e.msg);
		ck_assert_mem_eq(r.p, weights + off, 5);
		reader_release(&r);
	}
	ck_assert_uint_eq(atomic_load(&resolved), 2); /* once by the look, once for all ranges */
	ck_assert_uint_eq(atomic_load(&at_cdn), 8);
	ck_assert_msg(store_look(store, "config.json", &seen, &e) == 1, "%s", e.msg);
	ck_assert_msg(!read_range(&r, store, "config.json", &seen, 1, 3), "%s", r.e.msg);
	ck_assert_mem_eq(r.p, "\"a\"", 3);
	reader_release(&r);
	stop();
}
END_TEST

START_TEST(an_address_that_is_refused_at_once_is_an_error)
{
	struct ckpt_err e = { 0 };
	struct place_seen seen;
	struct reader r;

	ck_assert_msg(!open_it("hf://org/name.x@" COMMIT, &e), "%s", e.msg);
	ck_assert_int_eq(store_look(store, "m.safetensors", &seen, &e), 1);
	ck_assert_int_eq(read_range(&r, store, "m.safetensors", &seen, 0, 5), 0);
	reader_release(&r);
	atomic_store(&expired, true);
	ck_assert_int_eq(read_range(&r, store, "m.safetensors", &seen, 0, 5), -EACCES);
	ck_assert_ptr_null(strstr(r.e.msg, "Signature"));
	ck_assert_ptr_null(strstr(r.e.msg, "hf_secret"));
	reader_release(&r);
	stop();
}
END_TEST

START_TEST(another_file_behind_the_redirect_is_refused)
{
	struct ckpt_err e = { 0 };
	struct place_seen seen;
	struct reader r;

	ck_assert_msg(!open_it("hf://org/name.x@" COMMIT, &e), "%s", e.msg);
	ck_assert_int_eq(store_look(store, "m.safetensors", &seen, &e), 1);
	linked = GIT;
	ck_assert_int_eq(read_range(&r, store, "m.safetensors", &seen, 0, 5), -ESTALE);
	ck_assert_uint_eq(r.n, 0);
	reader_release(&r);
	stop();
}
END_TEST

START_TEST(the_token_follows_no_page_to_another_server)
{
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(4096);

	ck_assert_msg(!open_it("hf://org/name.x", &e), "%s", e.msg);
	next_page = "localhost";
	ck_assert_int_eq(store_list(store, ".", note, &b, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "on another server") != NULL, "%s", e.msg);
	buf_release(&b);
	stop();
}
END_TEST

/* ---- answers, one by one ---- */

#define AT "hf://org/name.x@" COMMIT

/* A store whose server follows the script. */
static void open_script(const struct reply *v, size_t n, const char *address)
{
	struct ckpt_err e = { 0 };
	char endpoint[64];

	script_set(v, n);
	(void)setenv("HF_TOKEN", "hf_secret", 1);
	port = server_start(serve_script);
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", port);
	(void)setenv("HF_ENDPOINT", endpoint, 1);
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 300 }, &net, &e), 0);
	ck_assert_msg(!store_open(net, address, NULL, &store, &e), "%s", e.msg);
}

#define FILE_OF(name) "{\"type\":\"file\",\"oid\":\"" GIT "\",\"size\":8,\"path\":\"" name "\"}"

static const struct {
	struct reply replies[2];
	int rc;
	const char *says; /* or what is listed */
} lists[] = {
	{ { { 200, NULL, "[" FILE_OF("sub/a") "]" } }, 0, "1 a 8" },
	{ { { 200, NULL, "" } }, -EIO, "the server's answer is empty" },
	{ { { 200, NULL, "<html>" } }, -EIO, "the server's answer is not JSON" },
	{ { { 200, NULL, "{}" } }, -EIO, "answer is not a list" },
	{ { { 200, NULL, "[3]" } }, -EIO, "has '', which is not in 'sub'" },
	{ { { 200, NULL, "[{\"type\":\"file\",\"path\":3}]" } }, -EIO, "which is not in 'sub'" },
	{ { { 200, NULL, "[" FILE_OF("a") "]" } }, -EIO, "has 'a', which is not in 'sub'" },
	{ { { 200, NULL, "[" FILE_OF("sub") "]" } }, -EIO, "has 'sub', which is not in 'sub'" },
	{ { { 200, NULL, "[" FILE_OF("subway/a") "]" } }, -EIO, "which is not in 'sub'" },
	{ { { 200, NULL, "[" FILE_OF("sub/a/b") "]" } }, -EIO, "which is not in 'sub'" },
	/* Names that nobody could use, and an entry that is neither a file nor a directory. */
	{ { { 200, NULL,
	      "[" FILE_OF("sub/") "," FILE_OF("sub/..") ",{\"type\":\"link\",\"path\":\"sub/l\"},"
							"{\"path\":\"sub/l\"}," FILE_OF(
								"sub/b") "]" } },
	  0,
	  "1 b 8" },
	{ { { 200, NULL, "[{\"type\":\"file\",\"path\":\"sub/a\",\"oid\":\"x\"}]" } },
	  -EIO,
	  "'sub/a' without its size or oid" },
	{ { { 200, NULL, "[{\"type\":\"file\",\"path\":\"sub/a\",\"size\":-1,\"oid\":\"x\"}]" } },
	  -EIO,
	  "'sub/a' without its size or oid" },
	{ { { 200, NULL, "[{\"type\":\"file\",\"path\":\"sub/a\",\"size\":1}]" } },
	  -EIO,
	  "'sub/a' without its size or oid" },
	{ { { 200, NULL, "[{\"type\":\"file\",\"path\":\"sub/a\",\"size\":1,\"oid\":\"\"}]" } },
	  -EIO,
	  "'sub/a' without its size or oid" },
	{ { { 200, NULL,
	      "[{\"type\":\"file\",\"path\":\"sub/"
	      "a\",\"size\":1,\"oid\":\"x\",\"lfs\":{\"size\":2}}]" } },
	  -EIO,
	  "'sub/a' without its size or oid" },
	{ { { 200, NULL,
	      "[{\"type\":\"file\",\"path\":\"sub/a\",\"size\":1,\"oid\":\"x\",\"lfs\":null}]" } },
	  0,
	  "1 a 1" },
	/* Listings in pages; {} stands for the server. */
	{ { { 200, "Link: <{}/api/2>; rel=\"next\"\r\n", "[" FILE_OF("sub/a") "]" },
	    { 200, NULL, "[" FILE_OF("sub/b") "]" } },
	  0,
	  "1 b 8" },
	{ { { 200, "Link: <{}/api/2>; rel=\"prev\"\r\n", "[" FILE_OF("sub/a") "]" } }, 0, "1 a 8" },
	{ { { 200, "Link: {}/api/2; rel=\"next\"\r\n", "[" FILE_OF("sub/a") "]" } }, 0, "1 a 8" },
	{ { { 200, "Link: <{}/api/2; rel=\"next\"\r\n", "[" FILE_OF("sub/a") "]" } }, 0, "1 a 8" },
	{ { { 200, "Link: <{}/api/2>; rel=\"next\"\r\n", "[]" }, { 404, NULL, NULL } },
	  -EIO,
	  "a page of it is missing" },
	{ { { 200, "Link: <{}/api/2>; rel=\"next\"\r\n", "[]" } }, -EIO, "a page leads to itself" },
	{ { { 200, "Link: <{}/other/2>; rel=\"next\"\r\n", "[]" } }, -EIO, "on another server" },
	{ { { 200, "Link: <{}.evil.com/api/2>; rel=\"next\"\r\n", "[]" } },
	  -EIO,
	  "on another server" },
	{ { { 200, "Link: <>; rel=\"next\"\r\n", "[]" } }, -EIO, "on another server" },
	{ { { 404, NULL, NULL } }, -ENOENT, "there is no such directory" },
	{ { { 401, NULL, NULL } }, -EACCES, "401: the token does not give access" },
	{ { { 403, NULL, NULL } }, -EACCES, "403: the token does not give access" },
	{ { { 301, "Location: /x\r\n", NULL } }, -EIO, "has the repository been renamed?" },
	{ { { 308, "Location: /x\r\n", NULL } }, -EIO, "has the repository been renamed?" },
	{ { { 409, NULL, NULL } }, -EIO, "the server answered 409" },
	{ { { 500, NULL, NULL } }, -EIO, "the server answered 500; tried" },
};

START_LOOP_TEST(listings_are_taken_only_if_they_make_sense, ARRAY_LEN(lists))
{
	struct reply replies[2] = { lists[_i].replies[0], lists[_i].replies[1] };
	char fields[256];
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	const char *mark;
	int rc;

	open_script(replies, replies[1].status ? 2 : 1, AT);
	mark = replies[0].fields ? strstr(replies[0].fields, "{}") : NULL;
	if (mark) {
		(void)snprintf(fields, sizeof(fields), "%.*shttp://127.0.0.1:%u%s",
			       (int)(mark - replies[0].fields), replies[0].fields, port, mark + 2);
		replies[0].fields = fields;
	}
	rc = store_list(store, "sub", note, &b, &e);
	ck_assert_msg(rc == lists[_i].rc, "%d: %s", rc, e.msg);
	ck_assert_msg(strstr(rc ? e.msg : b.data, lists[_i].says) != NULL, "%s%s", e.msg,
		      b.data ? b.data : "");
	if (rc)
		ck_assert_msg(strstr(e.msg, AT "/sub'") != NULL, "%s", e.msg);
	ck_assert_ptr_null(strstr(e.msg, "hf_secret"));
	buf_release(&b);
	stop();
}
END_TEST

static int refuse_all(void *arg, const char *name, const struct place_seen *seen,
		      struct ckpt_err *e)
{
	(void)arg;
	(void)name;
	(void)seen;
	(void)e;
	return 7;
}

START_TEST(a_value_of_the_function_ends_a_listing_and_is_returned)
{
	static const struct reply reply = { 200, NULL, "[" FILE_OF("a") "," FILE_OF("b") "]" };
	struct ckpt_err e = { 0 };

	open_script(&reply, 1, AT);
	ck_assert_int_eq(store_list(store, ".", refuse_all, NULL, &e), 7);
	ck_assert_str_eq(e.msg, "");
	stop();
}
END_TEST

#define LINKED	"X-Linked-Etag: \"" SHA "\"\r\nX-Linked-Size: 55\r\n"
#define CHANGED "X-Repo-Commit: 1111111111111111111111111111111111111111\r\n"

static const struct {
	const char *address, *path;
	struct reply replies[2];
	int rc;
	enum place_kind kind;
	uint64_t size;
	const char *says; /* or the last request */
} looks[] = {
	{ AT, "a", { { 200, "ETag: \"e\"\r\n", "123" } }, 1, PLACE_FILE, 3, "HEAD /org/name.x/" },
	{ AT, "a", { { 302, LINKED "Location: /x\r\n", NULL } }, 1, PLACE_FILE, 55, "" },
	{ AT,
	  "a",
	  { { 307, "Location: /api/x\r\n", NULL }, { 200, "ETag: \"e\"\r\n", "1234" } },
	  1,
	  PLACE_FILE,
	  4,
	  "HEAD /api/x\n" },
	{ AT,
	  "a",
	  { { 404, NULL, NULL }, { 200, NULL, "[]" } },
	  1,
	  PLACE_DIR,
	  0,
	  "tree/" COMMIT "/a" },
	{ AT, "a", { { 404, NULL, NULL } }, 0, PLACE_FILE, 0, "" },
	{ AT, ".", { { 200, NULL, "not read" } }, 1, PLACE_DIR, 0, "tree/" COMMIT "\n" },
	{ AT "/f", ".", { { 200, "ETag: \"e\"\r\n", "1" } }, 1, PLACE_FILE, 1, COMMIT "/f\n" },
	{ AT "/f", ".", { { 404, NULL, NULL }, { 200, NULL, "[]" } }, 1, PLACE_DIR, 0, "/f\n" },
	{ AT, "a", { { 200, NULL, "123" } }, -EIO, PLACE_FILE, 0, "without an ETag" },
	{ AT,
	  "a",
	  { { 0, NULL, "HTTP/1.1 200 x\r\nETag: \"e\"\r\nConnection: close\r\n\r\n" } },
	  -EIO,
	  PLACE_FILE,
	  0,
	  "does not say how large it is" },
	{ AT,
	  "a",
	  { { 302, "X-Linked-Etag: \"e\"\r\nLocation: /x\r\n", NULL } },
	  -EIO,
	  PLACE_FILE,
	  0,
	  "does not say how large it is" },
	{ AT,
	  "a",
	  { { 302, LINKED CHANGED "Location: /x\r\n", NULL } },
	  -ESTALE,
	  PLACE_FILE,
	  0,
	  "for commit 1111111111111111111111111111111111111111 in place of " COMMIT },
	{ AT,
	  "a",
	  { { 200, "ETag: \"e\"\r\n" CHANGED, "1" } },
	  -ESTALE,
	  PLACE_FILE,
	  0,
	  "in place" },
	{ AT, "a", { { 302, NULL, NULL } }, -EIO, PLACE_FILE, 0, "does not say where to" },
	{ AT,
	  "a",
	  { { 302, "Location: http://other/x\r\n", NULL } },
	  -EIO,
	  PLACE_FILE,
	  0,
	  "does not say to which version" },
	{ AT, "a", { { 302, "Location: /x\r\n", NULL } }, -EIO, PLACE_FILE, 0, "without end" },
	{ AT, "a", { { 401, NULL, NULL } }, -EACCES, PLACE_FILE, 0, "does not give access" },
	{ AT,
	  "a",
	  { { 404, NULL, NULL }, { 403, NULL, NULL } },
	  -EACCES,
	  PLACE_FILE,
	  0,
	  "give access" },
};

START_LOOP_TEST(what_is_there_is_told_by_head_and_listing, ARRAY_LEN(looks))
{
	struct place_seen seen = { 0 };
	struct ckpt_err e = { 0 };
	int rc;

	open_script(looks[_i].replies, looks[_i].replies[1].status ? 2 : 1, looks[_i].address);
	rc = store_look(store, looks[_i].path, &seen, &e);
	ck_assert_msg(rc == looks[_i].rc, "%d: %s\n%s", rc, e.msg, script.log);
	if (rc == 1) {
		ck_assert_int_eq(seen.kind, looks[_i].kind);
		ck_assert_uint_eq(seen.size, looks[_i].size);
	}
	ck_assert_msg(strstr(rc < 0 ? e.msg : script.log, looks[_i].says) != NULL, "%s\n%s", e.msg,
		      script.log);
	stop();
}
END_TEST

/* A store that asks nobody, as the revision is a commit. */
static void open_silent(const char *token, const struct store_options *o)
{
	struct ckpt_err e = { 0 };

	(void)unsetenv("HF_ENDPOINT");
	if (token)
		(void)setenv("HF_TOKEN", token, 1);
	ck_assert_int_eq(net_new(NULL, &net, &e), 0);
	ck_assert_msg(!store_open(net, AT, o, &store, &e), "%s", e.msg);
}

/* Where the next request for "a" goes, and the token that it carries; "": none. */
static const char *request_of(char token[static 256])
{
	static const struct object_request plain = { .range = "bytes=0-9" };
	static char url[8192];
	struct http_message m = { .url = BUF_INIT(8192) };
	struct ckpt_err e = { 0 };

	token[0] = 0;
	ck_assert_msg(!store->ops->make(store, "a", &plain, &m, &e), "%s", e.msg);
	for (const struct curl_slist *l = m.fields; l; l = l->next)
		if (!strncmp(l->data, "Authorization: ", 15))
			(void)snprintf(token, 256, "%s", l->data + 15);
	(void)snprintf(url, sizeof(url), "%s", m.url.err ? strerror(m.url.err) : m.url.data);
	curl_slist_free_all(m.fields);
	buf_release(&m.url);
	return url;
}

#define OWN   "https://huggingface.co/org/name.x/resolve/" COMMIT "/a"
#define THERE "Location: https://cdn.x/a?Signature=s\r\n"

static const struct {
	unsigned status;
	const char *fields, *url;
	enum http_verdict verdict;
	int code;
	const char *says, *then, *token;
} verdicts[] = {
	{ 301, THERE, OWN, HTTP_NOW, 0, "", "https://cdn.x/a?Signature=s", "" },
	{ 302, THERE LINKED, OWN, HTTP_NOW, 0, "", "https://cdn.x/a?Signature=s", "" },
	{ 303, THERE, OWN, HTTP_NOW, 0, "", "https://cdn.x/a?Signature=s", "" },
	{ 307, "Location: /b\r\n", OWN, HTTP_NOW, 0, "", "https://huggingface.co/b",
	  "Bearer hf_t" },
	{ 308, "Location: https://huggingface.co.evil.com/b\r\n", OWN, HTTP_NOW, 0, "",
	  "https://huggingface.co.evil.com/b", "" },
	{ 308, "Location: http://cdn.x/a\r\n", OWN, HTTP_FAIL, EIO, "refused", OWN, "Bearer hf_t" },
	{ 302, "", OWN, HTTP_FAIL, EIO, "does not say where to", OWN, "Bearer hf_t" },
	{ 302, THERE CHANGED, OWN, HTTP_FAIL, ESTALE, "in place of", OWN, "Bearer hf_t" },
	{ 404, "", OWN, HTTP_TAKE, 0, "", OWN, "Bearer hf_t" },
	{ 410, "", OWN, HTTP_TAKE, 0, "", OWN, "Bearer hf_t" },
	{ 400, "", OWN, HTTP_TAKE, 0, "", OWN, "Bearer hf_t" },
	{ 500, "", OWN, HTTP_TAKE, 0, "", OWN, "Bearer hf_t" },
	{ 401, "", OWN, HTTP_FAIL, EACCES, "401: the token does not give access", OWN,
	  "Bearer hf_t" },
	{ 403, "", OWN, HTTP_FAIL, EACCES, "403: the token does not give access", OWN,
	  "Bearer hf_t" },
};

START_LOOP_TEST(answers_for_bytes_are_told_apart, ARRAY_LEN(verdicts))
{
	struct ckpt_err e = { 0 };
	struct http_answer a;
	char token[256];
	struct buf b;

	open_silent("hf_t", NULL);
	a = answer_of(verdicts[_i].status, verdicts[_i].fields, "", verdicts[_i].url, &b);
	ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), verdicts[_i].verdict);
	ck_assert_int_eq(e.code, verdicts[_i].code);
	ck_assert_msg(strstr(e.msg, verdicts[_i].says) != NULL, "%s", e.msg);
	ck_assert_str_eq(request_of(token), verdicts[_i].then);
	ck_assert_str_eq(token, verdicts[_i].token);
	buf_release(&b);
	stop();
}
END_TEST

START_TEST(an_address_that_another_request_has_replaced_is_asked_for_again)
{
	static const unsigned gone[] = { 400, 401, 403, 410 };
	struct ckpt_err e = { 0 };
	struct http_answer a;
	char token[256];
	struct buf b;

	open_silent("hf_t", NULL);
	a = answer_of(302, THERE, "", OWN, &b);
	ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_NOW);
	buf_release(&b);
	for (size_t i = 0; i < ARRAY_LEN(gone); i++) {
		a = answer_of(gone[i], "", "", "https://cdn.x/a?Signature=older", &b);
		ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_AGAIN);
		ck_assert_msg(strstr(e.msg, "where the hub had redirected to") != NULL, "%s",
			      e.msg);
		/* The redirect in use is new, so the refusal has another reason. */
		a.url = "https://cdn.x/a?Signature=s";
		ck_assert_int_eq(store->ops->judge(store, "a", &a, &e),
				 gone[i] == 400 || gone[i] == 410 ? HTTP_TAKE : HTTP_FAIL);
		buf_release(&b);
	}
	ck_assert_str_eq(request_of(token), "https://cdn.x/a?Signature=s");
	stop();
}
END_TEST

START_TEST(bytes_are_of_the_file_that_the_hub_named)
{
	static const struct {
		const char *fields;
		int rc;
	} answers[] = {
		{ "ETag: \"" SHA "\"\r\n", 0 },
		{ "ETag: W/\"" SHA "\"\r\n", 0 },
		{ "ETag: \"x\"\r\nX-Linked-Etag: \"" SHA "\"\r\n", 0 },
		{ "ETag: \"" GIT "\"\r\n", -ESTALE },
		{ "", -ESTALE },
		{ "ETag: \"" SHA "\"\r\n" CHANGED, -ESTALE },
		{ "ETag: \"" SHA "\"\r\nX-Repo-Commit: " COMMIT "\r\n", 0 },
	};
	struct place_seen large = { .kind = PLACE_FILE };
	struct ckpt_err e = { 0 };
	struct http_answer a;
	struct buf b;

	open_silent("hf_t", NULL);
	ck_assert(object_identify(SHA, NULL, &large.id));
	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		a = answer_of(206, answers[i].fields, "", OWN, &b);
		ck_assert_int_eq(store->ops->check(store, "a", &large, &a, &e), answers[i].rc);
		buf_release(&b);
	}
	/* After a redirect, the identity that came with it counts, not that of the other host; a
	 * second redirect keeps it. */
	a = answer_of(302, THERE LINKED, "", OWN, &b);
	ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_NOW);
	buf_release(&b);
	a = answer_of(302, "Location: https://cdn.x/b\r\n", "", "https://cdn.x/a", &b);
	ck_assert_int_eq(store->ops->judge(store, "a", &a, &e), HTTP_NOW);
	buf_release(&b);
	a = answer_of(206, "ETag: \"of the other host\"\r\n", "", "https://cdn.x/b", &b);
	ck_assert_int_eq(store->ops->check(store, "a", &large, &a, &e), 0);
	ck_assert(object_identify(GIT, NULL, &large.id));
	ck_assert_int_eq(store->ops->check(store, "a", &large, &a, &e), -ESTALE);
	buf_release(&b);
	stop();
}
END_TEST

/* ---- the token ---- */

static void put_token(const char *name, const char *text)
{
	char path[4300];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (char *slash = path + strlen(dir) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		(void)mkdir(path, 0700);
		*slash = '/';
	}
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	(void)fputs(text, f);
	(void)fclose(f);
}

static void set_path(const char *variable, const char *name)
{
	char path[4300];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	(void)setenv(variable, path, 1);
}

static void expect_token(const char *wanted, bool anonymous)
{
	char token[256];

	open_silent(NULL, &(struct store_options){ .anonymous = anonymous });
	ck_assert_str_eq(request_of(token), OWN);
	ck_assert_str_eq(token, wanted);
	stop();
}

START_TEST(the_token_is_where_huggingface_hub_keeps_it)
{
	static const char *const names[] = { "HF_TOKEN",      "HUGGING_FACE_HUB_TOKEN",
					     "HF_TOKEN_PATH", "HF_HOME",
					     "HOME",	      "XDG_CACHE_HOME" };

	dir_setup();
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		(void)unsetenv(names[i]);
	expect_token("", false);
	set_path("HOME", "home");
	expect_token("", false); /* there is no file */
	put_token("home/.cache/huggingface/token", " t1\n");
	expect_token("Bearer t1", false);
	expect_token("", true);
	set_path("XDG_CACHE_HOME", "xdg");
	put_token("xdg/huggingface/token", "t2 more\n");
	expect_token("Bearer t2", false);
	set_path("HF_HOME", "hf");
	put_token("hf/token", "t3");
	expect_token("Bearer t3", false);
	set_path("HF_TOKEN_PATH", "own");
	put_token("own", "\r\n\tt4\r\n");
	expect_token("Bearer t4", false);
	put_token("own", " \n");
	expect_token("", false);
	(void)setenv("HUGGING_FACE_HUB_TOKEN", "t5", 1);
	expect_token("Bearer t5", false);
	(void)setenv("HF_TOKEN", "", 1);
	expect_token("Bearer t5", false);
	(void)setenv("HF_TOKEN", "t6", 1);
	expect_token("Bearer t6", false);
	dir_teardown();
}
END_TEST

START_TEST(a_token_that_is_no_token_is_not_sent)
{
	static char much[10000];
	char token[256];

	memset(much, 't', sizeof(much) - 1);
	open_silent(much, NULL);
	ck_assert_str_eq(request_of(token), strerror(EFBIG));
	ck_assert_str_eq(token, "");
	stop();
	open_silent("a\x7f", NULL);
	ck_assert_str_eq(request_of(token), strerror(EFBIG));
	ck_assert_str_eq(token, "");
	stop();
}
END_TEST

START_TEST(without_a_token_it_says_that_one_may_be_needed)
{
	static const struct reply refused = { 401, NULL, NULL }, none = { 404, NULL, NULL };
	struct ckpt_err e = { 0 };
	char endpoint[64];

	script_set(&refused, 1);
	(void)setenv("HF_TOKEN", "hf_secret", 1);
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u//",
		       server_start(serve_script));
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 300 }, &net, &e), 0);
	ck_assert_int_eq(
		store_open(net, "hf://org/name",
			   &(struct store_options){ .endpoint = endpoint, .anonymous = true },
			   &store, &e),
		-EACCES);
	ck_assert_msg(strstr(e.msg, "gated or missing, and there is no token (HF_TOKEN)") != NULL,
		      "%s", e.msg);
	ck_assert_str_eq(script.log, "GET /api/models/org/name/revision/main\n");
	ck_assert_ptr_null(strstr(script.head, "hf_secret"));
	script_set(&none, 1);
	ck_assert_int_eq(
		store_open(net, "hf://org/name",
			   &(struct store_options){ .endpoint = endpoint, .anonymous = true },
			   &store, &e),
		-ENOENT);
	ck_assert_msg(strstr(e.msg, "or it is private and there is no token") != NULL, "%s", e.msg);
	net_free(net);
}
END_TEST

static const struct {
	const char *body, *says;
} revisions[] = {
	{ "", "the server's answer: the server's answer is empty" },
	{ "nonsense", "the server's answer is not JSON" },
	{ "[]", "the server's answer has no commit" },
	{ "{\"sha\":7}", "the server's answer has no commit" },
	{ "{\"sha\":\"0123456789ABCDEF0123456789abcdef01234567\"}", "has no commit" },
	{ "{\"sha\":\"" COMMIT "0\"}", "has no commit" },
};

START_LOOP_TEST(a_revision_without_a_commit_is_an_error, ARRAY_LEN(revisions))
{
	const struct reply reply = { 200, NULL, revisions[_i].body };
	struct ckpt_err e = { 0 };
	char endpoint[64];

	script_set(&reply, 1);
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u",
		       server_start(serve_script));
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 300 }, &net, &e), 0);
	ck_assert_int_eq(store_open(net, "hf://org/name@a%2Fb",
				    &(struct store_options){ .endpoint = endpoint }, &store, &e),
			 -EIO);
	ck_assert_msg(strstr(e.msg, revisions[_i].says) != NULL, "%s", e.msg);
	ck_assert_msg(!strncmp(e.msg, "'hf://org/name@a%2Fb': ", 23), "%s", e.msg);
	ck_assert_str_eq(script.log, "GET /api/models/org/name/revision/a%2Fb\n");
	net_free(net);
}
END_TEST

/* ---- no memory ---- */

static int do_everything(const char *endpoint, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(4096);
	struct place_seen large = { 0 }, small = { 0 };
	struct reader r;
	int rc;

	net = NULL;
	store = NULL;
	rc = net_new(&(struct net_options){ .retry_ms = 2000 }, &net, e);
	if (!rc)
		rc = store_open(net, "hf://org/name.x",
				&(struct store_options){ .endpoint = endpoint }, &store, e);
	if (!rc)
		rc = store_list(store, ".", note, &b, e);
	if (!rc && b.err)
		rc = err_nomem(e);
	if (!rc && (rc = store_look(store, "m.safetensors", &large, e)) == 1)
		rc = large.size == sizeof(weights) ? 0 : err_set(e, EPROTO, "another size");
	if (!rc && (rc = store_look(store, "config.json", &small, e)) == 1)
		rc = small.size == sizeof(config) - 1 ? 0 : err_set(e, EPROTO, "another size");
	if (!rc && (rc = store_look(store, "sub", &(struct place_seen){ 0 }, e)) == 1)
		rc = 0;
	if (!rc) {
		rc = read_range_of(&r, store, "m.safetensors", &large, 3, 4, e);
		if (!rc && (r.n != 4 || memcmp(r.p, weights + 3, 4) != 0))
			rc = err_set(e, EPROTO, "other bytes");
	}
	if (!rc) {
		rc = read_range_of(&r, store, "config.json", &small, 1, 3, e);
		if (!rc && (r.n != 3 || memcmp(r.p, config + 1, 3) != 0))
			rc = err_set(e, EPROTO, "other bytes");
	}
	buf_release(&b);
	store_free(store);
	net_free(net);
	return rc;
}

START_TEST(without_memory_all_is_a_clean_error)
{
	struct ckpt_err e = { 0 };
	char endpoint[64];
	unsigned failed = 0;

	next_page = "127.0.0.1";
	(void)setenv("HF_TOKEN", "hf_secret", 1);
	port = server_start(hub);
	(void)snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u/", port);
	ck_assert_msg(!do_everything(endpoint, &e), "%s", e.msg);
	FAULT_LOOP(FAULT_ALLOC)
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

static const char *const bad[] = {
	"hf://-org/name",
	"hf://org/-name",
	"hf://org/.name",
	("hf://org/0123456789012345678901234567890123456789012345678901234567890123456789"
	 "012345678901234567890123456"),
	"hf://org/name@refs/pr/1/a//b",
	"hf://org/name@a%00b",
	"hf://org/name/.",
	"hf://",
	"hf://org",
	"hf://org/",
	"hf://org/na me",
	"hf://../x",
	"hf://org/name@",
	"hf://org/name@/x",
	"hf://org/name/a//b",
	"hf://org/name/..",
	"hf://org/name@%00/x",
};

START_LOOP_TEST(addresses_that_are_not_supported_are_refused, ARRAY_LEN(bad))
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(open_it(bad[_i], &e), -EINVAL);
	ck_assert_str_ne(e.msg, "");
	net_free(net);
}
END_TEST

SUITE(hf, .seconds = 120)
