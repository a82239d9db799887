/* SPDX-License-Identifier: Apache-2.0 */
/* The hub: revisions become commits, large files come from another host, which never sees the
 * token. */
#include "remote_util.h"
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"

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
static const char *linked = SHA; /* what the hub says of the large file when it redirects */
static const char *next_page;
static _Atomic bool expired;

static bool hub(struct served *r)
{
	const char *token = request_field(r, "Authorization");
	char fields[1024], body[1024];

	if (!strncmp(r->target, "/cdn/", 5)) {
		/* The same server under another name: localhost. */
		atomic_fetch_add(&at_cdn, 1);
		ck_assert_ptr_null(token);
		if (atomic_load(&expired))
			return answer(r, 403, "", "", 0);
		return answer_object(r, "ETag: \"of the other host\"\r\n", weights,
				     sizeof(weights));
	}
	ck_assert_ptr_nonnull(token);
	ck_assert_str_eq(token, "Bearer hf_secret");
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
	/* An ETag of more than 62 bytes is hashed. */
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
	ck_assert_uint_eq(atomic_load(&resolved), 2); /* by look, and for all ranges */
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

static const char *const bad[] = {
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

SUITE(hf, .seconds = 20)
