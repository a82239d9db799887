/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uploads to a store in memory that does what its script says. Each call may fail before it has an
 * effect, or after it, when only the answer is lost. Whatever happens, all of the objects become
 * visible, or none.
 */
#include "fault.h"
#include "remote/upload.h"
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <nettle/base16.h>
#include <nettle/md5.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 16, PARTS = 4, BYTES = 64 };

struct thing { /* an object, or an upload */
	bool there;
	char path[64], id[16], etag[64], token[UPLOAD_TOKEN], part[PARTS + 1][BYTES + 1];
	char bytes[PARTS * BYTES + 1];
};

static struct {
	pthread_mutex_t lock;
	struct thing objects[MAX], uploads[MAX];
	unsigned calls, ids;
	unsigned fails; /* number of the call at which `how` begins, from 1; 0: none */
	/* For each call: '.' works, 'b' fails before its effect, 'a' fails after it, 'r' as if it
	 * were made again after it (a put or complete); the last one stands for all that follow. */
	const char *how;
	bool no_tokens, other_etags; /* it keeps no tokens; its ETags are no MD5s */
	size_t rivals; /* somebody else makes so many of our objects just before us, of our size */
	bool is_slow;  /* a begin or put that fails before its effect has that effect later */
	char log[4096];
} store = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Returns 0; 1: fail now; 2: fail after the effect; 3: be made again after it. */
static int call(const char *what, const char *path)
{
	size_t n = strlen(store.log), at;

	store.calls++;
	(void)snprintf(store.log + n, sizeof(store.log) - n, "%s %s\n", what, path);
	if (!store.fails || store.calls < store.fails)
		return 0;
	at = min_u64(store.calls - store.fails, strlen(store.how) - 1);
	return store.how[at] == '.' ? 0 : store.how[at] == 'b' ? 1 : store.how[at] == 'a' ? 2 : 3;
}

static int broken(struct ckpt_err *e)
{
	return err_set(e, EIO, "a call fails");
}

static struct thing *find(struct thing *v, const char *path, const char *id)
{
	for (size_t i = 0; i < MAX; i++)
		if (v[i].there && !strcmp(v[i].path, path) && (!id || !strcmp(v[i].id, id)))
			return &v[i];
	return NULL;
}

static struct thing *make(struct thing *v, const char *path)
{
	for (size_t i = 0; i < MAX; i++)
		if (!v[i].there) {
			v[i] = (struct thing){ .there = true };
			(void)snprintf(v[i].path, sizeof(v[i].path), "%s", path);
			return &v[i];
		}
	ck_abort_msg("too many");
	return NULL;
}

static void hex(const uint8_t *md5, char *ret)
{
	base16_encode_update(ret, MD5_DIGEST_SIZE, md5);
	ret[32] = 0;
}

/* Instead of Check's assertions, which allocate: allocations may be made to fail. */
static void must(bool ok)
{
	if (!ok)
		abort();
}

static void keep_token(struct thing *x, const char *token)
{
	(void)snprintf(x->token, sizeof(x->token), "%s", store.no_tokens ? "" : token);
}

static void set_etag(struct thing *x, const char *md5)
{
	(void)snprintf(x->etag, sizeof(x->etag), "%s%.40s", store.other_etags ? "other-" : "", md5);
}

static void be_rival(const char *path, size_t size)
{
	struct thing *x;

	if (!store.rivals || find(store.objects, path, NULL))
		return;
	store.rivals--;
	x = make(store.objects, path);
	memset(x->bytes, 'R', size);
	set_etag(x, "00000000000000000000000000000000");
}

static int do_put(void *s, const char *path, const struct upload_bytes *b, const char *token,
		  bool only_new, struct upload_result *ret, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("put", path);
	struct thing *x;

	(void)s;
	be_rival(path, b->len);
	x = find(store.objects, path, NULL);
	*ret = (struct upload_result){ .lost = how == 2 || (how && store.is_slow) };
	if (how == 1)
		return broken(e);
	if (x && only_new)
		return err_set(e, EEXIST, "there is one");
	if (!x)
		x = make(store.objects, path);
	must(!b->read(b->arg, 0, x->bytes, b->len));
	x->bytes[b->len] = 0;
	hex(b->md5, ret->etag);
	set_etag(x, ret->etag);
	keep_token(x, token);
	if (how == 3) { /* the second request of this call */
		ret->repeated = true;
		return err_set(e, EEXIST, "there is one");
	}
	return how ? broken(e) : 0;
}

static int do_begin(void *s, const char *path, const char *token, struct upload_begun *ret,
		    const atomic_bool *cancel, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("begin", path);
	struct thing *x;

	(void)s;
	(void)cancel;
	*ret = (struct upload_begun){ .lost = how == 2 || (how && store.is_slow) };
	if (how == 1)
		return broken(e);
	x = make(store.uploads, path);
	(void)snprintf(x->id, sizeof(x->id), "u%u", ++store.ids);
	keep_token(x, token);
	if (how)
		return broken(e);
	ret->id = strdup(x->id);
	if (!ret->id) {
		x->there = false;
		return err_nomem(e);
	}
	return 0;
}

static int do_part(void *s, const char *path, const char *id, unsigned number,
		   const struct upload_bytes *b, char etag[static UPLOAD_ETAG], struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("part", path);
	struct thing *x = find(store.uploads, path, id);

	(void)s;
	if (how == 1)
		return broken(e);
	if (!x)
		return err_set(e, ENOENT, "no such upload");
	must(number <= PARTS);
	must(!b->read(b->arg, 0, x->part[number], b->len));
	x->part[number][b->len] = 0;
	hex(b->md5, etag);
	return how ? broken(e) : 0;
}

static int do_complete(void *s, const char *path, const char *id, const struct upload_done *parts,
		       size_t n, bool only_new, struct upload_result *ret, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("complete", path);
	struct thing *u = find(store.uploads, path, id), *x;
	uint8_t all[MD5_DIGEST_SIZE];
	struct md5_ctx c;
	size_t size = 0;
	char one[33];

	(void)s;
	for (size_t i = 0; i < n; i++)
		size += parts[i].len;
	be_rival(path, size);
	x = find(store.objects, path, NULL);
	*ret = (struct upload_result){ .lost = how == 2 || (how && store.is_slow) };
	if (how == 1)
		return broken(e);
	if (!u)
		return err_set(e, ENOENT, "no such upload");
	if (x && only_new)
		return err_set(e, EEXIST, "there is one");
	if (!x)
		x = make(store.objects, path);
	x->bytes[0] = 0;
	md5_init(&c);
	for (size_t i = 0; i < n; i++) {
		must(parts[i].etag);
		md5_update(&c, MD5_DIGEST_SIZE, parts[i].md5);
		(void)strncat(x->bytes, u->part[i + 1], BYTES);
	}
	md5_digest(&c, sizeof(all), all);
	hex(all, one);
	(void)snprintf(ret->etag, UPLOAD_ETAG, "%s-%zu", one, n);
	set_etag(x, ret->etag);
	(void)snprintf(x->token, sizeof(x->token), "%s", u->token);
	u->there = false;
	if (how == 3) {
		ret->repeated = true;
		return err_set(e, EEXIST, "there is one");
	}
	return how ? broken(e) : 0;
}

static int do_abort(void *s, const char *path, const char *id, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("abort", path);
	struct thing *x = find(store.uploads, path, id);

	(void)s;
	if (how == 1)
		return broken(e);
	if (x)
		x->there = false;
	return how ? broken(e) : 0;
}

static int do_sweep(void *s, const char *path, const char *keep, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("sweep", path), n = 0;

	(void)s;
	if (how == 1)
		return broken(e);
	for (size_t i = 0; i < MAX; i++)
		if (store.uploads[i].there && !strcmp(store.uploads[i].path, path) &&
		    (!keep || strcmp(store.uploads[i].id, keep) != 0)) {
			store.uploads[i].there = false;
			n++;
		}
	return how ? broken(e) : n;
}

static int do_look(void *s, const char *path, struct upload_seen *ret, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("look", path);
	const struct thing *x = find(store.objects, path, NULL);

	(void)s;
	if (how)
		return broken(e);
	if (!x)
		return 0;
	*ret = (struct upload_seen){ .size = strlen(x->bytes) };
	(void)snprintf(ret->etag, UPLOAD_ETAG, "%s", x->etag);
	(void)snprintf(ret->token, UPLOAD_TOKEN, "%s", x->token);
	return 1;
}

static int do_remove(void *s, const char *path, struct ckpt_err *e)
{
	SCOPED_LOCK(&store.lock);
	int how = call("remove", path);
	struct thing *x = find(store.objects, path, NULL);

	(void)s;
	if (how == 1)
		return broken(e);
	if (x)
		x->there = false;
	return how ? broken(e) : 0;
}

static const struct upload_ops ops = { .put = do_put,
				       .begin = do_begin,
				       .part = do_part,
				       .complete = do_complete,
				       .abort = do_abort,
				       .sweep = do_sweep,
				       .look = do_look,
				       .remove = do_remove };

/* ---- a session ---- */

static void reset(void)
{
	memset(store.objects, 0, sizeof(store.objects));
	memset(store.uploads, 0, sizeof(store.uploads));
	store.calls = store.fails = store.ids = 0;
	store.log[0] = 0;
	store.is_slow = store.no_tokens = store.other_etags = false;
	store.rivals = 0;
}

static int read_text(void *arg, uint64_t off, void *buf, size_t n)
{
	memcpy(buf, (const char *)arg + off, n);
	return 0;
}

static int give(struct uploads *u, uint64_t file, const char *path, unsigned number, bool last,
		const char *text, struct ckpt_err *e)
{
	struct upload_bytes b = { .len = strlen(text),
				  .read = read_text,
				  .arg = (void *)(uintptr_t)text };
	struct md5_ctx c;

	md5_init(&c);
	md5_update(&c, strlen(text), (const uint8_t *)text);
	md5_digest(&c, sizeof(b.md5), b.md5);
	return uploads_part(u, file, path, number, last, &b, e);
}

static struct uploads *begin(bool only_new, size_t held)
{
	const struct uploads_options o = { .only_new = only_new, .held = held };
	struct ckpt_err e = { 0 };
	struct uploads *u = NULL;

	ck_assert_int_eq(uploads_new(&ops, NULL, &o, &u, &e), 0);
	return u;
}

/* a: two parts, the second first; b: a small object, which is held; c: a small one for which there
 * is no room; .metadata comes last. */
static int write_all(struct uploads *u, struct ckpt_err *e)
{
	int rc = give(u, 0, "a", 2, true, "world", e);

	if (!rc)
		rc = give(u, 0, "a", 1, false, "hello ", e);
	if (!rc)
		rc = give(u, 1, "b", 1, true, "bb", e);
	if (!rc)
		rc = give(u, 2, "c", 1, true, "ccccc", e);
	if (!rc)
		rc = give(u, 3, ".metadata", 1, true, "m", e);
	if (!rc)
		rc = uploads_name(u, UPLOADS_COMES_LAST, ".metadata", e);
	return rc ? rc : uploads_commit(u, e);
}

static bool has(const char *path, const char *bytes)
{
	const struct thing *x = find(store.objects, path, NULL);

	return x && !strcmp(x->bytes, bytes);
}

static size_t count(const struct thing *v)
{
	size_t n = 0;

	for (size_t i = 0; i < MAX; i++)
		n += v[i].there;
	return n;
}

static void check_all_there(void)
{
	ck_assert(has("a", "hello world") && has("b", "bb") && has("c", "ccccc") &&
		  has(".metadata", "m"));
	ck_assert_uint_eq(count(store.objects), 4);
}

START_TEST(nothing_is_visible_before_the_commit)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	u = begin(true, 4);
	ck_assert_int_eq(give(u, 0, "a", 1, false, "hello ", &e), 0);
	ck_assert_int_eq(give(u, 1, "b", 1, true, "bb", &e), 0);
	ck_assert_uint_eq(count(store.objects), 0);
	ck_assert_int_eq(uploads_commit(u, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'a' is not complete");
	ck_assert_uint_eq(count(store.objects), 0);
	uploads_undo(u, &left);
	ck_assert_uint_eq(left.len, 0);
	ck_assert_uint_eq(count(store.uploads), 0);
	ck_assert_int_eq(give(u, 0, "a", 2, true, "x", &e), -ECANCELED);
	uploads_free(u);
}
END_TEST

START_TEST(the_commit_point_comes_last_and_what_was_there_goes_first)
{
	struct ckpt_err e = { 0 };
	struct uploads *u;
	const char *log;

	reset();
	(void)make(store.objects, ".metadata");
	(void)make(store.objects, "old");
	u = begin(false, 4);
	ck_assert_int_eq(uploads_name(u, UPLOADS_REMOVED_FIRST, ".metadata", &e), 0);
	ck_assert_int_eq(uploads_name(u, UPLOADS_REMOVED, "old", &e), 0);
	ck_assert_msg(!write_all(u, &e), "%s", e.msg);
	uploads_free(u);
	check_all_there();
	log = strstr(store.log, "remove .metadata\n");
	ck_assert_ptr_nonnull(log);
	for (size_t i = 0; i < 3; i++) {
		static const char *const steps[] = { "complete a\n", "put b\n", "complete c\n" };

		ck_assert(strstr(store.log, steps[i]) > log);
		ck_assert(strstr(store.log, "remove old\n") > strstr(store.log, steps[i]));
	}
	ck_assert_ptr_nonnull(strstr(store.log, "remove old\nput .metadata\n"));
}
END_TEST

START_TEST(parts_that_are_not_possible_are_refused)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	u = begin(true, 1);
	ck_assert_int_eq(give(u, 0, "a", 2, true, "b", &e), 0);
	ck_assert_int_eq(give(u, 0, "a", 3, false, "c", &e), -EINVAL);
	ck_assert_int_eq(give(u, 0, "a", 2, false, "c", &e), -EINVAL);
	ck_assert_int_eq(give(u, 0, "a", 1, true, "c", &e), -EINVAL);
	ck_assert_int_eq(give(u, 0, "b", 1, false, "c", &e), -EINVAL);
	ck_assert_int_eq(give(u, 0, "a", 0, false, "c", &e), -EINVAL);
	ck_assert_int_eq(give(u, 0, "a", UPLOAD_PARTS + 1, false, "c", &e), -EINVAL);
	ck_assert_int_eq(give(u, UPLOAD_FILES, "z", 1, true, "c", &e), -ENOMEM);
	ck_assert_int_eq(give(u, 0, "a", 1, false, "a", &e), 0);
	ck_assert_int_eq(uploads_commit(u, &e), 0);
	ck_assert(has("a", "ab"));
	uploads_undo(u, &left); /* nothing to do after a commit */
	ck_assert(has("a", "ab"));
	uploads_free(u);
}
END_TEST

START_TEST(what_somebody_else_has_made_stays)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	(void)snprintf(make(store.objects, "b")->bytes, BYTES, "his");
	u = begin(true, 4);
	ck_assert_int_eq(write_all(u, &e), -EEXIST);
	ck_assert_str_eq(e.msg, "'b' has meanwhile been created by somebody else");
	uploads_undo(u, &left);
	ck_assert(has("b", "his"));
	ck_assert_uint_eq(count(store.objects), 1);
	ck_assert_uint_eq(count(store.uploads), 0);
	uploads_free(u);
}
END_TEST

/* Others may make objects of our size, or of our bytes, and the store's ETags may tell nothing of
 * either. What is lost against them is no success, and is not removed. _i: bit 0: ETags of another
 * kind; bit 1: no tokens; bit 2: small objects are
 * uploads, too. */
START_LOOP_TEST(what_is_lost_to_a_rival_of_the_same_size_stays, 8)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	store.other_etags = _i & 1;
	store.no_tokens = _i & 2;
	store.rivals = 4;
	u = begin(true, _i & 4 ? 1 : 1000);
	ck_assert_int_eq(write_all(u, &e), -EEXIST);
	ck_assert_msg(strstr(e.msg, "' has meanwhile been created by somebody else"), "%s", e.msg);
	uploads_undo(u, &left);
	ck_assert_ptr_null(strstr(store.log, "remove"));
	ck_assert_uint_eq(left.len, 0);
	ck_assert_uint_eq(count(store.uploads), 0);
	ck_assert_uint_eq(count(store.objects), 4 - store.rivals);
	for (size_t i = 0; i < MAX; i++)
		ck_assert(!store.objects[i].there || store.objects[i].bytes[0] == 'R');
	uploads_free(u);
}
END_TEST

/* A request that is repeated finds what the one before has made. */
static const struct {
	unsigned fails; /* 6: the end of an upload, 7: a put; see write_all */
	const char *how;
	bool no_tokens, other_etags;
	const char *says, *left; /* NULL: it is a success */
} repeats[] = {
	{ 6, "r.", false, false, NULL, NULL },
	{ 7, "r.", false, false, NULL, NULL },
	{ 6, "r.", false, true, NULL, NULL },
	{ 7, "r.", false, true, NULL, NULL },
	{ 6, "a.", false, true, NULL, NULL },
	{ 7, "a.", false, true, NULL, NULL },
	/* The bytes are ours, and perhaps only they. */
	{ 9, "r.", true, false,
	  "'.metadata' is there, and may or may not have been written by this save",
	  "the checkpoint may be complete and visible: '.metadata' could not be removed (it may "
	  "have "
	  "become visible), so the other files were kept" },
	{ 9, "r.", true, true,
	  "'.metadata' is there, and may or may not have been written by this save",
	  "the checkpoint may be complete and visible: '.metadata' could not be removed (it may "
	  "have "
	  "become visible), so the other files were kept" },
	{ 9, "a.", true, true, "a call fails",
	  "the checkpoint may be complete and visible: '.metadata' could not be removed (it may "
	  "have "
	  "become visible), so the other files were kept" },
};

START_LOOP_TEST(what_a_repeated_request_finds_is_ours_by_its_token, ARRAY_LEN(repeats))
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;
	int rc;

	reset();
	store.fails = repeats[_i].fails;
	store.how = repeats[_i].how;
	store.no_tokens = repeats[_i].no_tokens;
	store.other_etags = repeats[_i].other_etags;
	u = begin(true, 4);
	rc = write_all(u, &e);
	uploads_undo(u, &left);
	ck_assert_msg(!rc == !repeats[_i].says, "%s", e.msg);
	ck_assert_str_eq(e.msg, repeats[_i].says ? repeats[_i].says : "");
	ck_assert_str_eq(left.data ? left.data : "", repeats[_i].left ? repeats[_i].left : "");
	check_all_there();
	ck_assert_ptr_null(strstr(store.log, "remove"));
	uploads_free(u);
}
END_TEST

/* _i: the call that fails, and whether it has had its effect. */
START_LOOP_TEST(a_call_that_fails_leaves_all_or_nothing, 40)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;
	int rc;

	reset();
	store.fails = (unsigned)_i / 2 + 1;
	store.how = _i % 2 ? "a." : "b.";
	u = begin(true, 4);
	rc = write_all(u, &e);
	uploads_undo(u, &left);
	if (rc) {
		ck_assert_str_eq(e.msg, "a call fails");
		ck_assert_uint_eq(count(store.objects), 0);
	} else
		check_all_there();
	/* What could not be undone is reported. */
	if (!left.len)
		ck_assert_uint_eq(count(store.uploads), 0);
	else
		ck_assert_ptr_nonnull(strstr(left.data, "1 upload could not be removed (a call"));
	uploads_free(u);
}
END_TEST

START_LOOP_TEST(a_store_that_fails_from_some_call_on_shows_no_checkpoint, 40)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;
	int rc;

	reset();
	store.fails = (unsigned)_i / 2 + 1;
	store.how = _i % 2 ? "a" : "b";
	u = begin(true, 4);
	rc = write_all(u, &e);
	uploads_undo(u, &left);
	if (!rc || find(store.objects, ".metadata", NULL))
		check_all_there();
	if (rc && (count(store.objects) || count(store.uploads)))
		ck_assert_ptr_nonnull(strstr(left.data ? left.data : "", "could not be removed"));
	uploads_free(u);
}
END_TEST

/* What happens to the request that makes the commit point visible, and to those that follow: a
 * look, and the undo's look and removal. */
static const struct {
	const char *how, *why; /* why something is left; NULL: nothing is */
	bool visible, is_slow;
} points[] = {
	{ "aa.", NULL, false, false },			       /* it was visible, and is removed */
	{ "bb.", NULL, false, false },			       /* it was not */
	{ "a", "it may have become visible", true, false },    /* never known */
	{ "aab.", "it may have become visible", true, false }, /* although removing it would work */
	{ "aa.b.", "a call fails", true, false },	       /* visible, and cannot be removed */
	{ "b", "it may have become visible", false, false },   /* not visible, but nobody knows */
	{ "b.", NULL, false, false },			       /* refused */
	{ "b.", "the store may still make it visible", false, true }, /* not there yet */
	{ "bb.", "the store may still make it visible", false, true },
};

START_LOOP_TEST(while_the_commit_point_may_be_visible_the_rest_stays, ARRAY_LEN(points))
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;
	char wanted[256];

	reset();
	store.fails = 9;
	store.how = points[_i].how;
	store.is_slow = points[_i].is_slow;
	u = begin(true, 4);
	ck_assert_int_eq(write_all(u, &e), -EIO);
	ck_assert_ptr_nonnull(strstr(store.log, "put .metadata\nlook .metadata\n"));
	uploads_undo(u, &left);
	ck_assert_uint_eq(count(store.uploads), 0);
	if (points[_i].why) {
		ck_assert_uint_eq(count(store.objects), points[_i].visible ? 4 : 3);
		(void)snprintf(
			wanted, sizeof(wanted),
			"the checkpoint may be complete and visible: '.metadata' could not be "
			"removed (%s), so the other files were kept",
			points[_i].why);
		ck_assert_str_eq(left.data, wanted);
		ck_assert_ptr_null(strstr(store.log, "remove a"));
	} else {
		ck_assert_uint_eq(count(store.objects), 0);
		ck_assert_uint_eq(left.len, 0);
	}
	/* Before all others. */
	if (points[_i].how[0] == 'a' && !points[_i].why)
		ck_assert_ptr_nonnull(strstr(store.log, "look .metadata\nlook .metadata\n"
							"remove .metadata\nremove "));
	uploads_free(u);
}
END_TEST

/* ---- what is asked for in the wrong order, and what cannot be undone ---- */

START_TEST(what_comes_last_must_have_been_written)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	u = begin(true, 4);
	ck_assert_int_eq(give(u, 2, "b", 1, true, "bb", &e), 0); /* numbers may have gaps */
	ck_assert_int_eq(give(u, 2, "c", 2, true, "c", &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'b' and 'c' have one number");
	ck_assert_int_eq(uploads_name(u, UPLOADS_COMES_LAST, "none", &e), 0);
	ck_assert_int_eq(uploads_commit(u, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'none' was not written");
	uploads_undo(u, &left);
	ck_assert_uint_eq(left.len, 0);
	ck_assert_uint_eq(count(store.objects), 0);
	uploads_free(u);
	uploads_free(NULL);
}
END_TEST

START_TEST(after_a_commit_or_a_stop_there_is_no_other)
{
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	u = begin(true, 4);
	ck_assert_msg(!write_all(u, &e), "%s", e.msg);
	ck_assert_int_eq(uploads_commit(u, &e), -ECANCELED);
	uploads_free(u);
	check_all_there();
	reset();
	u = begin(true, 4);
	uploads_stop(u);
	ck_assert_int_eq(write_all(u, &e), -ECANCELED);
	ck_assert_int_eq(uploads_commit(u, &e), -ECANCELED);
	ck_assert_str_eq(e.msg, "stopped");
	ck_assert_str_eq(store.log, "");
	uploads_free(u);
}
END_TEST

/* _i: whether the old object is removed before the others or after them; whether that had its
 * effect. */
START_LOOP_TEST(an_old_object_that_cannot_be_removed_ends_the_commit, 4)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	(void)make(store.objects, "old");
	u = begin(false, 4);
	ck_assert_int_eq(
		uploads_name(u, _i % 2 ? UPLOADS_REMOVED_FIRST : UPLOADS_REMOVED, "old", &e), 0);
	store.how = _i / 2 ? "a." : "b.";
	/* calls: begin a, two parts, begin c, part; then the removal, or complete a, put b,
	 * complete c */
	store.fails = _i % 2 ? 6 : 9;
	ck_assert_int_eq(write_all(u, &e), -EIO);
	ck_assert_str_eq(e.msg, "remove 'old': a call fails");
	uploads_undo(u, &left);
	/* The answer may have been lost. */
	ck_assert_str_eq(left.data, "the checkpoint that was there before is gone");
	ck_assert_uint_eq(count(store.objects), _i / 2 ? 0 : 1);
	ck_assert_uint_eq(count(store.uploads), 0);
	uploads_free(u);
}
END_TEST

START_TEST(of_many_that_are_left_three_are_named)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;
	char path[8];

	reset();
	u = begin(true, 1);
	for (unsigned i = 0; i < 5; i++) {
		(void)snprintf(path, sizeof(path), "f%u", i);
		ck_assert_int_eq(give(u, i, path, 1, false, "xx", &e), 0);
	}
	store.fails = store.calls + 1;
	store.how = "b";
	uploads_undo(u, &left);
	ck_assert_str_eq(left.data,
			 "5 uploads could not be removed (a call fails): 'f0' upload u1, "
			 "'f1' upload u2, 'f2' upload u3, ...");
	uploads_free(u);
}
END_TEST

/* A sweep finds an upload whose answer was lost, but not one that the server begins only later. */
START_TEST(an_upload_that_may_begin_later_is_named)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	u = begin(true, 1);
	store.fails = 1;
	store.how = "a.";
	ck_assert_int_eq(give(u, 0, "begun", 1, false, "xx", &e), -EIO);
	uploads_undo(u, &left);
	ck_assert_uint_eq(left.len, 0);
	ck_assert_uint_eq(count(store.uploads), 0);
	uploads_free(u);

	reset();
	u = begin(true, 1);
	store.fails = 1;
	store.how = "b.";
	store.is_slow = true;
	ck_assert_int_eq(give(u, 0, "later", 1, false, "xx", &e), -EIO);
	uploads_undo(u, &left);
	ck_assert_str_eq(left.data, "the store did not answer 1 request to begin an upload and may "
				    "still carry it out: 'later'");
	uploads_free(u);
}
END_TEST

START_TEST(without_memory_it_says_that_uploads_may_be_left)
{
	struct buf left CLEANUP(buf_release) = BUF_INIT(1024);
	struct ckpt_err e = { 0 };
	struct uploads *u;

	reset();
	u = begin(true, 1);
	ck_assert_int_eq(give(u, 0, "a", 1, false, "xx", &e), 0);
	fault_on(FAULT_ALLOC, 1, 1);
	uploads_undo(u, &left);
	fault_off();
	ck_assert_str_eq(left.data, "uploads may be left: out of memory");
	ck_assert_uint_eq(count(store.uploads), 1);
	uploads_free(u);
}
END_TEST

/* Any allocation may fail, and so may starting any thread. */
static const int fault_kinds[] = { FAULT_ALLOC, FAULT_THREAD };

START_LOOP_TEST(what_fails_here_leaves_all_or_nothing, ARRAY_LEN(fault_kinds))
{
	const struct uploads_options o = { .only_new = true, .held = 4 };

	FAULT_LOOP(fault_kinds[_i])
	{
		struct buf left = BUF_INIT(1024);
		struct ckpt_err e = { 0 };
		struct uploads *u = NULL;
		int64_t live;
		int rc;

		reset();
		live = fault_live();
		rc = uploads_new(&ops, NULL, &o, &u, &e);
		if (!rc) {
			rc = write_all(u, &e);
			uploads_undo(u, &left);
		}
		fault_off();
		if (rc) {
			ck_assert_msg(rc == -e.code && *e.msg, "%s: %d: %s", fault_name(), rc,
				      e.msg);
			ck_assert_uint_eq(count(store.objects), 0);
		} else
			check_all_there();
		if (!left.len)
			ck_assert_uint_eq(count(store.uploads), 0);
		buf_release(&left);
		uploads_free(u);
		ck_assert_msg(fault_live() == live, "%s leaves %lld bytes", fault_name(),
			      (long long)(fault_live() - live));
	}
}
END_TEST

SUITE(upload)
