/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a web server. It cannot list them: names come from the checkpoint's metadata, and each
 * is looked for.
 *
 * Redirects are followed here, and not by libcurl, so that what was found out about where a file
 * is need not be asked again for each range; no request has anything that would have to be kept
 * from another host.
 */
#include "remote/moved.h"
#include "remote/store_internal.h"
#include "remote/url.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct web {
	struct store base;
	char *root;  /* URL without a '/' at its end */
	bool is_dir; /* the address had one */
	struct moved_table moved;
};

static struct web *web_of(struct store *s)
{
	return (struct web *)s;
}

static void add_own(const struct web *w, const char *path, struct buf *url)
{
	buf_str(url, w->root);
	if (strcmp(path, ".") != 0) {
		buf_str(url, "/");
		url_encode(url, path, strlen(path), true);
	}
}

static int web_make(struct store *base, const char *path, const struct object_request *o,
		    struct http_message *m, struct ckpt_err *e)
{
	struct web *w = web_of(base);

	(void)e;
	m->method = o->method;
	if (!moved_find(&w->moved, path, &m->url, &m->reach, NULL))
		add_own(w, path, &m->url);
	object_add_fields(o, m);
	return 0;
}

static enum http_verdict web_judge(struct store *base, const char *path,
				   const struct http_answer *a, struct ckpt_err *e)
{
	struct web *w = web_of(base);
	struct buf own CLEANUP(buf_release) = BUF_INIT(64 << 10);
	autofree char *to = NULL;
	enum http_reach reach;

	switch (a->status) {
	case 301:
	case 302:
	case 303:
	case 307:
	case 308:
		if (http_location(a, &to, &reach, e))
			return HTTP_FAIL;
		moved_set(&w->moved, path, to, reach, NULL);
		return HTTP_NOW;
	case 401:
	case 403:
	case 410:
		/* An address that was valid for a while. */
		add_own(w, path, &own);
		if (own.err || !moved_expired(&w->moved, path, a->url, own.data))
			return HTTP_TAKE;
		err_set(e, EACCES, "the server answered %u where it had redirected to", a->status);
		return HTTP_AGAIN;
	default:
		return HTTP_TAKE;
	}
}

/* ---- looking ---- */

struct looked {
	struct place_seen seen;
	bool no_length;
};

static int on_head(void *arg, const struct http_answer *a, struct ckpt_err *e)
{
	struct looked *l = arg;
	uint64_t size;

	/* Without its length, as of what is made while it is sent, GET may tell. */
	l->no_length = !http_number(a, "Content-Length", &size);
	return l->no_length ? 0 : object_seen(a, size, &l->seen, e);
}

/* The answer to a GET of the first byte. */
static int on_first(void *arg, const struct http_answer *a, struct ckpt_err *e)
{
	struct looked *l = arg;
	uint64_t first, last, total;

	if (a->status != 206 || !http_range(a, &first, &last, &total) || first ||
	    total == UINT64_MAX)
		return err_set(
			e, ERR_UNSUPPORTED,
			"the server does not support ranges (it answered %u), so that all of "
			"the file would have to be downloaded: refused",
			a->status);
	return object_seen(a, total, &l->seen, e);
}

static int web_look(struct store *base, const char *path, struct place_seen *ret,
		    struct ckpt_err *e)
{
	static const struct object_request head = { .method = "HEAD" };
	static const struct object_request first = { .range = "bytes=0-0" };
	struct web *w = web_of(base);
	struct looked l = { 0 };
	struct ckpt_err why = { 0 };
	bool found = false, at_top = !strcmp(path, ".");
	int rc;

	if (at_top && w->is_dir) {
		*ret = (struct place_seen){ .kind = PLACE_DIR };
		return 1;
	}
	rc = store_ask(base, path, &head, on_head, &l, NULL, &found, &why);
	if (!rc && found && moved_is_directory(&w->moved, path)) {
		*ret = (struct place_seen){ .kind = PLACE_DIR };
		return 1;
	}
	/* Some refuse HEAD: addresses that are signed for GET, for example. */
	if (rc == -EACCES || rc == -EIO || (!rc && found && l.no_length)) {
		why = (struct ckpt_err){ 0 };
		rc = store_ask(base, path, &first, on_first, &l, NULL, &found, &why);
	}
	/* There is no way to ask whether a directory is there: the server answered, and what it
	 * says of the address itself means little. */
	if (at_top &&
	    (rc == -EACCES || rc == -EIO ? atomic_load(&base->answered) : !rc && !found)) {
		*ret = (struct place_seen){ .kind = PLACE_DIR };
		return 1;
	}
	if (rc) {
		*e = why;
		return rc;
	}
	if (found)
		*ret = l.seen;
	return found;
}

/* ---- opening ---- */

static void web_free(struct store *base)
{
	struct web *w = web_of(base);

	moved_release(&w->moved);
	free(base->address);
	free(w->root);
	free(w);
}

int web_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	     struct ckpt_err *e)
{
	static const struct store_ops ops = {
		.look = web_look, .make = web_make, .judge = web_judge, .free = web_free
	};
	struct url u = { 0 };
	struct web *w;
	size_t len;
	int rc = url_parse(address, &u, e);

	(void)o;
	if (rc)
		return rc;
	w = calloc(1, sizeof(*w));
	if (!w) {
		url_release(&u);
		return err_nomem(e);
	}
	moved_init(&w->moved);
	w->base.ops = &ops;
	w->base.net = n;
	len = strlen(u.path);
	w->is_dir = len && u.path[len - 1] == '/';
	while (len && u.path[len - 1] == '/')
		len--;
	w->root = text_format("%s://%s%.*s", u.secure ? "https" : "http", u.host, (int)len, u.path);
	url_release(&u);
	w->base.address = w->root ? strdup(w->root) : NULL;
	if (!w->base.address) {
		web_free(&w->base);
		return err_nomem(e);
	}
	*ret = &w->base;
	return 0;
}
