/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of the Hugging Face Hub and compatible servers. The interface:
 * huggingface.co/docs/hub/api, and huggingface_hub (src/huggingface_hub/file_download.py,
 * hf_api.py).
 *
 * A revision is resolved to its commit when the store is opened, and everything is asked for by
 * that commit, so that it cannot change. Large files are redirected to signed addresses of another
 * host. That one never gets the token, nor a condition, since its ETags are its own: the answer of
 * the hub that redirects names the file's (X-Linked-Etag, the SHA-256 of a large file).
 */
#include "remote/moved.h"
#include "remote/store_internal.h"
#include "remote/url.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "base/text.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
	PAGE_MAX = 32 << 20, /* bytes of JSON */
	PAGES_MAX = 4000,    /* of up to 1000 names */
	NAMES_MAX = 4 << 20,
	COMMIT_LEN = 40,
};

struct hf {
	struct store base;
	char *endpoint; /* "https://huggingface.co" */
	char *repo;	/* "ORG/NAME" */
	char *path;	/* in the repository; "" */
	char *token;	/* NULL: none */
	char commit[COMMIT_LEN + 1];
	struct moved_table moved;
};

static struct hf *hf_of(struct store *s)
{
	return (struct hf *)s;
}

/* ---- requests ---- */

static void add_token(const struct hf *h, struct http_message *m)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(8192);

	/* Only to the hub itself. */
	if (!h->token || !m->url.data || !bytes_begin(m->url.data, m->url.len, h->endpoint) ||
	    m->url.data[strlen(h->endpoint)] != '/')
		return;
	buf_printf(&b, "Bearer %s", h->token);
	if (b.err)
		m->url.err = b.err;
	else
		http_add_field(m, "Authorization", b.data);
	if (b.data)
		explicit_bzero(b.data, b.len);
}

/* The path in the repository of a path below the address; the caller frees it. */
static char *path_of(const struct hf *h, const char *path)
{
	if (!strcmp(path, "."))
		path = "";
	return text_format("%s%s%s", h->path, *h->path && *path ? "/" : "", path);
}

static void add_own(const struct hf *h, const char *in, struct buf *url)
{
	buf_printf(url, "%s/%s/resolve/%s/", h->endpoint, h->repo, h->commit);
	url_encode(url, in, strlen(in), true);
}

static int hf_make(struct store *base, const char *path, const struct object_request *o,
		   struct http_message *m, struct ckpt_err *e)
{
	struct hf *h = hf_of(base);
	autofree char *in = path_of(h, path);

	if (!in)
		return err_nomem(e);
	m->method = o->method;
	if (!moved_find(&h->moved, path, &m->url, &m->reach, NULL))
		add_own(h, in, &m->url);
	add_token(h, m);
	if (o->range)
		http_add_field(m, "Range", o->range);
	return 0;
}

/* ---- answers ---- */

static bool is_redirect(unsigned status)
{
	return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* What the hub says about a file: its redirect, or its own answer. */
static const char *etag_of(const struct http_answer *a)
{
	const char *linked = http_field(a, "X-Linked-Etag");

	if (!linked)
		linked = http_field(a, "ETag");
	/* The commit makes sure of the bytes: a weak one identifies them just as well. */
	return linked && !strncmp(linked, "W/", 2) ? linked + 2 : linked;
}

static int check_commit(const struct hf *h, const struct http_answer *a, struct ckpt_err *e)
{
	const char *commit = http_field(a, "X-Repo-Commit");

	if (!commit || !strcmp(commit, h->commit))
		return 0;
	return err_set(e, ESTALE, "the server answered for commit %.40s in place of %s", commit,
		       h->commit);
}

/* Was it refused at the address to which the hub redirected, because that has expired? */
static bool has_expired(struct hf *h, const char *path, const struct http_answer *a)
{
	struct buf own CLEANUP(buf_release) = BUF_INIT(64 << 10);
	autofree char *in = path_of(h, path);

	if (!in)
		return false;
	add_own(h, in, &own);
	return !own.err && moved_expired(&h->moved, path, a->url, own.data);
}

static enum http_verdict hf_judge(struct store *base, const char *path, const struct http_answer *a,
				  struct ckpt_err *e)
{
	struct hf *h = hf_of(base);
	autofree char *to = NULL;

	if (is_redirect(a->status)) {
		struct buf etag CLEANUP(buf_release) = BUF_INIT(1024);
		struct buf url CLEANUP(buf_release) = BUF_INIT(64 << 10);
		enum http_reach reach;

		if (check_commit(h, a, e) || http_location(a, &to, &reach, e))
			return HTTP_FAIL;
		/* A second redirect is of the same file, and says no more about it. */
		if (http_field(a, "X-Linked-Etag"))
			buf_str(&etag, http_field(a, "X-Linked-Etag"));
		else
			(void)moved_find(&h->moved, path, &url, NULL, &etag);
		moved_set(&h->moved, path, to, reach, etag.err ? NULL : etag.data);
		return HTTP_NOW;
	}
	if ((a->status == 400 || a->status == 401 || a->status == 403 || a->status == 410) &&
	    has_expired(h, path, a)) {
		err_set(e, EACCES, "the server answered %u where the hub had redirected to",
			a->status);
		return HTTP_AGAIN;
	}
	if (a->status == 401 || a->status == 403) {
		err_set(e, EACCES, "the server answered %u: %s", a->status,
			h->token ? "the token does not give access to it"
				 : "it is private, gated or missing, and there is no token "
				   "(HF_TOKEN)");
		return HTTP_FAIL;
	}
	return HTTP_TAKE;
}

static int hf_check(struct store *base, const char *path, const struct place_seen *seen,
		    const struct http_answer *a, struct ckpt_err *e)
{
	struct hf *h = hf_of(base);
	struct buf url CLEANUP(buf_release) = BUF_INIT(64 << 10);
	struct buf etag CLEANUP(buf_release) = BUF_INIT(1024);
	int rc = check_commit(h, a, e);

	if (rc)
		return rc;
	(void)moved_find(&h->moved, path, &url, NULL, &etag);
	if (url.err || etag.err)
		return err_nomem(e);
	/* Redirected within the hub, or not at all: the answer has the file's own ETag. */
	if (!object_is_same(&seen->id, etag.len ? etag.data : etag_of(a), NULL))
		return err_set(e, ESTALE, "was changed after it was opened");
	return 0;
}

/* ---- questions, answered in JSON or by header fields ---- */

struct hf_question {
	struct hf *h;
	const char *method, *url;
	unsigned status;
	/* Of a file: */
	const char *path;
	struct place_seen seen;
	char *redirect; /* within the hub */
	/* Of a page: */
	char *next;
};

static int ask_make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	const struct hf_question *q = arg;

	(void)from;
	(void)e;
	m->method = q->method;
	buf_str(&m->url, q->redirect ? q->redirect : q->url);
	add_token(q->h, m);
	return 0;
}

/* Link: <URL>; rel="next" */
static int take_next(struct hf_question *q, const struct http_answer *a, struct ckpt_err *e)
{
	const char *link = http_field(a, "Link");
	const char *end = link && *link == '<' ? strchr(link, '>') : NULL;

	if (!end || !strstr(end, "rel=\"next\""))
		return 0;
	free(q->next);
	q->next = strndup(link + 1, (size_t)(end - link - 1));
	if (!q->next)
		return err_nomem(e);
	/* The token goes there. */
	if (!bytes_begin(q->next, strlen(q->next), q->h->endpoint) ||
	    !bytes_begin(q->next + strlen(q->h->endpoint), strlen(q->next) - strlen(q->h->endpoint),
			 "/api/"))
		return err_set(e, EIO,
			       "the next page of the listing is on another server, refused");
	return 0;
}

static int see_file(struct hf_question *q, const struct http_answer *a, struct ckpt_err *e)
{
	struct place_seen seen = { .kind = PLACE_FILE };
	bool linked = http_field(a, "X-Linked-Etag");

	if (check_commit(q->h, a, e))
		return -ESTALE;
	if (!http_number(a, linked ? "X-Linked-Size" : "Content-Length", &seen.size))
		return err_set(e, EIO, "the server does not say how large it is");
	if (!object_identify(etag_of(a), NULL, &seen.id))
		return err_set(e, EIO, "the server answered without an ETag");
	q->seen = seen;
	return 0;
}

static enum http_verdict ask_judge(void *arg, uint64_t from, const struct http_answer *a,
				   struct ckpt_err *e)
{
	struct hf_question *q = arg;

	(void)from;
	q->status = a->status;
	if (q->path && is_redirect(a->status) && !http_field(a, "X-Linked-Etag")) {
		autofree char *to = NULL;
		enum http_reach same;
		size_t n = strlen(q->h->endpoint);

		/* Within the hub, as for small files and renamed repositories. */
		if (http_location(a, &to, &same, e))
			return HTTP_FAIL;
		if (bytes_begin(to, strlen(to), q->h->endpoint) && to[n] == '/') {
			free(q->redirect);
			q->redirect = steal_ptr(&to);
			return HTTP_NOW;
		}
		err_set(e, EIO, "the server redirects and does not say to which version");
		return HTTP_FAIL;
	}
	if (q->path && (a->status / 100 == 2 || is_redirect(a->status)))
		return see_file(q, a, e) ? HTTP_FAIL : HTTP_TAKE;
	if (a->status == 200)
		return take_next(q, a, e) ? HTTP_FAIL : HTTP_TAKE;
	if (a->status == 404)
		return HTTP_TAKE;
	if (a->status == 401 || a->status == 403)
		return hf_judge(&q->h->base, q->path ? q->path : ".", a, e);
	if (is_redirect(a->status)) {
		err_set(e, EIO, "the server redirects (%u): has the repository been renamed?",
			a->status);
		return HTTP_FAIL;
	}
	return store_refuse(a, NULL, NULL, e);
}

static int ask(struct hf_question *q, const char *name, struct buf *body, struct ckpt_err *e)
{
	static const struct http_ops ops = { .make = ask_make, .judge = ask_judge };

	return http_exchange(q->h->base.net, &ops, q,
			     &(struct http_how){ .what = name,
						 .len = UINT64_MAX,
						 .urgent = true,
						 .answered = &q->h->base.answered },
			     body, e);
}

/* The values point into the body. */
static int parse(struct jdoc *d, struct buf *body, struct ckpt_err *e)
{
	if (!body->len)
		return err_set(e, EIO, "the server's answer is empty");
	if (jdoc_parse(d, body->data, body->len, JDOC_DUPLICATES | JDOC_BIG, e))
		return e->code == ENOMEM ? -ENOMEM
					 : err_set(e, EIO, "the server's answer is not JSON");
	return 0;
}

/* ---- listing ---- */

/* The "oid" of a large file is its SHA-256, of others the git hash: as when it is resolved. */
static int take_entry(struct hf *h, const char *dir, struct jval v, store_entry_fn *each, void *arg,
		      bool *ret_stop, struct ckpt_err *e)
{
	struct place_seen seen = { .kind = PLACE_FILE };
	const char *path = jval_str(jval_get(v, "path")), *name;
	struct jval type = jval_get(v, "type"), lfs = jval_given(jval_get(v, "lfs"));
	struct jval of = jval_is(lfs, J_OBJECT) ? lfs : v;
	size_t n = strlen(dir);
	int rc;

	if (!path || strncmp(path, dir, n) != 0 || (n && path[n] != '/') ||
	    strchr(path + n + (n > 0), '/'))
		return err_set(e, EIO, "the listing has '%.100s', which is not in '%.100s'",
			       path ? path : "", dir);
	name = path + n + (n > 0);
	if (!store_shows(name, strlen(name)))
		return 0;
	if (jval_is_str(type, "directory"))
		seen.kind = PLACE_DIR;
	else if (!jval_is_str(type, "file"))
		return 0;
	else if (!jval_u64(jval_get(of, "size"), &seen.size) ||
		 !object_identify(jval_str(jval_get(of, "oid")), NULL, &seen.id))
		return err_set(e, EIO, "the listing has '%.100s' without its size or oid", path);
	(void)h;
	rc = each(arg, name, &seen, e);
	*ret_stop = rc;
	return rc;
}

/* The pages of a directory. each: NULL: only whether it is there. */
static int list(struct hf *h, const char *dir, store_entry_fn *each, void *arg, bool *ret_found,
		struct ckpt_err *e)
{
	struct hf_question q = { .h = h };
	autofree char *in = path_of(h, dir), *name = store_name(&h->base, dir);
	struct buf url CLEANUP(buf_release) = BUF_INIT(64 << 10);
	struct buf body CLEANUP(buf_release) = BUF_INIT(PAGE_MAX);
	bool found = false, stop = false;
	uint64_t names = 0;
	int rc = 0;

	if (!in || !name)
		return err_nomem(e);
	buf_printf(&url, "%s/api/models/%s/tree/%s%s", h->endpoint, h->repo, h->commit,
		   *in ? "/" : "");
	url_encode(&url, in, strlen(in), true);
	for (unsigned page = 0; !rc && !stop; page++) {
		struct jdoc d = { 0 };

		if (url.err || page == PAGES_MAX) {
			rc = url.err ? err_nomem(e)
				     : err_set(e, EFBIG, "'%s': a listing of more than %d pages",
					       name, PAGES_MAX);
			break;
		}
		q.url = url.data;
		buf_restart(&body);
		rc = ask(&q, name, &body, e);
		if (!rc && page && q.status == 404)
			rc = err_set(e, EIO, "list '%s': a page of it is missing", name);
		if (rc || q.status == 404)
			break;
		found = true;
		if (!each)
			break;
		rc = parse(&d, &body, e);
		if (!rc && !jval_is(jdoc_root(&d), J_ARRAY))
			rc = err_set(e, EIO, "the server's answer is not a list");
		if (!rc && (names += jval_size(jdoc_root(&d))) > NAMES_MAX)
			rc = err_set(e, EFBIG, "more than %d names are not supported", NAMES_MAX);
		if (!rc)
			for (struct jiter i = jiter(jdoc_root(&d)); !rc && jiter_next(&i);)
				rc = take_entry(h, in, i.v, each, arg, &stop, e);
		jdoc_release(&d);
		if (rc) {
			if (!stop)
				(void)err_wrap(e, "list '%s'", name);
			break;
		}
		if (!q.next)
			break;
		if (!strcmp(q.next, url.data)) {
			rc = err_set(e, EIO, "list '%s': a page leads to itself", name);
			break;
		}
		buf_restart(&url);
		buf_str(&url, q.next);
		free(q.next);
		q.next = NULL;
	}
	free(q.next);
	if (!rc)
		*ret_found = found;
	return rc;
}

static int hf_list(struct store *base, const char *dir, store_entry_fn *each, void *arg,
		   struct ckpt_err *e)
{
	bool found = false;
	int rc = list(hf_of(base), dir, each, arg, &found, e);
	autofree char *name = NULL;

	if (rc || found)
		return rc;
	name = store_name(base, dir);
	return name ? err_set(e, ENOENT, "'%s': there is no such directory", name) : err_nomem(e);
}

static int look_file(struct hf *h, const char *path, struct place_seen *ret, bool *ret_found,
		     struct ckpt_err *e)
{
	struct buf url CLEANUP(buf_release) = BUF_INIT(64 << 10);
	struct buf none CLEANUP(buf_release) = BUF_INIT(64 << 10);
	autofree char *in = path_of(h, path), *name = store_name(&h->base, path);
	struct hf_question q = { .h = h, .method = "HEAD", .path = path };
	int rc;

	if (!in || !name)
		return err_nomem(e);
	buf_printf(&url, "%s/%s/resolve/%s/", h->endpoint, h->repo, h->commit);
	url_encode(&url, in, strlen(in), true);
	if (url.err)
		return err_nomem(e);
	q.url = url.data;
	rc = ask(&q, name, &none, e);
	free(q.redirect);
	if (rc)
		return rc;
	*ret_found = q.status != 404;
	if (*ret_found)
		*ret = q.seen;
	return 0;
}

static int hf_look(struct store *base, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	struct hf *h = hf_of(base);
	bool found = false, at_top = !strcmp(path, ".");
	int rc = 0;

	if (!at_top || *h->path)
		rc = look_file(h, path, ret, &found, e);
	if (rc || found)
		return rc ? rc : 1;
	rc = list(h, path, NULL, NULL, &found, e);
	if (!rc && found)
		*ret = (struct place_seen){ .kind = PLACE_DIR };
	return rc ? rc : found;
}

/* ---- opening ---- */

static const char *env(const char *name)
{
	const char *v = getenv(name);

	return v && *v ? v : NULL;
}

/* The token of the environment, or of the file where huggingface_hub keeps it; NULL: there is
 * none. */
static int find_token(char **ret, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(256 << 10); /* io_read_file wants room */
	autofree char *path = NULL;
	const char *token = env("HF_TOKEN");
	struct ckpt_err ignored = { 0 };
	const char *from;
	size_t n;

	if (!token)
		token = env("HUGGING_FACE_HUB_TOKEN");
	if (token)
		buf_str(&b, token);
	else {
		const char *const files[][2] = { { env("HF_TOKEN_PATH"), "" },
						 { env("HF_HOME"), "/token" },
						 { env("XDG_CACHE_HOME"), "/huggingface/token" },
						 { env("HOME"), "/.cache/huggingface/token" } };
		size_t i = 0;

		while (i < ARRAY_LEN(files) && !files[i][0])
			i++;
		if (i < ARRAY_LEN(files)) {
			path = text_format("%s%s", files[i][0], files[i][1]);
			if (!path)
				return err_nomem(e);
		}
		if (path)
			(void)io_read_file(path, &b, &ignored);
	}
	/* Without it, private repositories would seem not to exist. */
	if (b.err == ENOMEM || ignored.code == ENOMEM)
		return err_nomem(e);
	from = b.data ? b.data : "";
	from += strspn(from, " \t\r\n");
	n = strcspn(from, " \t\r\n");
	if (n && !(*ret = strndup(from, n)))
		return err_nomem(e);
	if (b.data)
		explicit_bzero(b.data, b.len);
	return 0;
}

static bool is_name(const char *s, size_t n)
{
	return n && n <= 96 && *s != '.' && *s != '-' &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") >= n;
}

static bool is_commit(const char *s)
{
	return s && strlen(s) == COMMIT_LEN && strspn(s, "0123456789abcdef") == COMMIT_LEN;
}

/* Splits ORG/NAME[@REVISION][/PATH]; *ret_revision: the caller frees it. A revision ends at a '/',
 * unless it is refs/KIND/NAME; in others '/' is written %2F. */
static int take_address(struct hf *h, const char *address, char **ret_revision, struct ckpt_err *e)
{
	const char *org = address + strlen("hf://"), *name, *end, *at, *path;
	struct buf b CLEANUP(buf_release) = BUF_INIT(512);
	size_t n = strcspn(org, "/"), len;

	name = org[n] ? org + n + 1 : org + n;
	end = name + strcspn(name, "/@");
	if (!is_name(org, n) || !is_name(name, (size_t)(end - name)))
		return err_set(e, EINVAL, "'%s' is not hf://ORG/NAME", address);
	h->repo = strndup(org, (size_t)(end - org));
	if (*end == '@') {
		at = end + 1;
		end = at + strcspn(at, "/");
		if (!strncmp(at, "refs/", 5) && end[1])
			for (int i = 0; i < 2 && *end; i++)
				end += 1 + strcspn(end + 1, "/");
		url_decode(&b, at, (size_t)(end - at), false);
	} else
		buf_str(&b, "main");
	if (b.err || !b.len || strlen(b.data) != b.len)
		return b.err == ENOMEM ? err_nomem(e)
				       : err_set(e, EINVAL, "'%s': not a revision", address);
	path = end + strspn(end, "/");
	len = strlen(path);
	while (len && path[len - 1] == '/')
		len--;
	h->path = strndup(path, len);
	if (!h->repo || !h->path)
		return err_nomem(e);
	for (const char *p = h->path; *p;) {
		size_t k = strcspn(p, "/");

		if (!store_shows(p, k))
			return err_set(e, EINVAL, "'%s': '%.*s' is not a name", address, (int)k, p);
		p += k + (p[k] == '/');
	}
	*ret_revision = steal_ptr(&b.data);
	return 0;
}

/* Asks for the commit of a revision. */
static int resolve(struct hf *h, const char *address, const char *revision, struct ckpt_err *e)
{
	struct buf url CLEANUP(buf_release) = BUF_INIT(8192);
	struct buf body CLEANUP(buf_release) = BUF_INIT(PAGE_MAX);
	struct hf_question q = { .h = h };
	struct jdoc d = { 0 };
	const char *sha;
	int rc;

	if (is_commit(revision)) {
		memcpy(h->commit, revision, COMMIT_LEN + 1);
		return 0;
	}
	buf_printf(&url, "%s/api/models/%s/revision/", h->endpoint, h->repo);
	url_encode(&url, revision, strlen(revision), false);
	if (url.err)
		return err_nomem(e);
	q.url = url.data;
	rc = ask(&q, address, &body, e);
	free(q.next);
	if (rc)
		return rc;
	if (q.status == 404)
		return err_set(
			e, ENOENT, "'%s': there is no such repository or revision%s", address,
			h->token ? "" : ", or it is private and there is no token (HF_TOKEN)");
	rc = parse(&d, &body, e);
	if (rc)
		return err_wrap(e, "'%s': the server's answer", address);
	sha = jval_str(jval_get(jdoc_root(&d), "sha"));
	if (is_commit(sha))
		memcpy(h->commit, sha, COMMIT_LEN + 1);
	else
		rc = err_set(e, EIO, "'%s': the server's answer has no commit", address);
	jdoc_release(&d);
	return rc;
}

static void hf_free(struct store *base)
{
	struct hf *h = hf_of(base);

	if (h->token)
		explicit_bzero(h->token, strlen(h->token));
	moved_release(&h->moved);
	free(base->address);
	free(base->origin);
	free(h->endpoint);
	free(h->repo);
	free(h->path);
	free(h->token);
	free(h);
}

static int take_endpoint(struct hf *h, const char *endpoint, struct ckpt_err *e)
{
	struct url u = { 0 };
	size_t n;
	int rc = url_parse(endpoint, &u, e);

	if (rc)
		return err_wrap(e, "endpoint");
	n = strlen(u.path);
	while (n && u.path[n - 1] == '/')
		n--;
	h->endpoint =
		text_format("%s://%s%.*s", u.secure ? "https" : "http", u.host, (int)n, u.path);
	url_release(&u);
	return h->endpoint ? 0 : err_nomem(e);
}

int hf_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	    struct ckpt_err *e)
{
	static const struct store_ops ops = { .look = hf_look,
					      .list = hf_list,
					      .make = hf_make,
					      .judge = hf_judge,
					      .check = hf_check,
					      .free = hf_free };
	struct hf *h = calloc(1, sizeof(*h));
	const char *endpoint = o->endpoint ? o->endpoint : env("HF_ENDPOINT");
	autofree char *revision = NULL;
	int rc;

	if (!h)
		return err_nomem(e);
	moved_init(&h->moved);
	h->base.ops = &ops;
	h->base.net = n;
	rc = take_address(h, address, &revision, e);
	if (!rc)
		rc = take_endpoint(h, endpoint ? endpoint : "https://huggingface.co", e);
	if (!rc && endpoint && !(h->base.origin = strdup(h->endpoint)))
		rc = err_nomem(e);
	if (!rc && !o->anonymous)
		rc = find_token(&h->token, e);
	if (!rc)
		rc = resolve(h, address, revision, e);
	if (!rc) {
		h->base.address = text_format("hf://%s@%s%s%s", h->repo, h->commit,
					      *h->path ? "/" : "", h->path);
		rc = h->base.address ? 0 : err_nomem(e);
	}
	if (rc) {
		hf_free(&h->base);
		return rc;
	}
	*ret = &h->base;
	return 0;
}
