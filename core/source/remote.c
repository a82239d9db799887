/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses as places. A directory is listed once, and what is looked for in it is answered from
 * the listing, for FRESH_S seconds: opening a checkpoint asks for one listing and no object. Where
 * a store has no listings (https), each name is asked for, and the answer kept as long.
 */
#include "source/remote_internal.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum {
	FRESH_S = 5,
	AT_ONCE = 64,	  /* see place.h */
	MAX_DIRS = 65536, /* listings and single answers that are kept */
	MAX_FILES = 4096, /* open objects that are kept although no source uses them */
};

struct entry {
	char *name;
	struct place_seen seen;
};

/* A listing, or (single) the answer about one path. */
struct dir {
	unsigned users; /* under the tree's lock */
	char *path;
	bool single;
	uint64_t until_ns;
	struct entry *v; /* sorted */
	size_t n;
	struct place_id id;
	char *names; /* of all entries */
};

struct kept {
	uint64_t hash; /* of its path: there may be thousands to compare with */
	struct rfile *file;
};

/* What the places of an address share. */
struct remote_tree {
	_Atomic unsigned users;
	struct rplace *there;
	uint64_t keeps; /* as in struct place */
	bool singly;	/* nothing is listed to look for a name: the address is of a file */
	atomic_bool no_list;
	pthread_mutex_t lock; /* of dirs */
	struct dir **dirs;
	size_t n_dirs, cap_dirs;
	/* Under the lock of trees. */
	LIST_LINK(struct remote_tree) link;
	struct kept *files;
	size_t n_files, cap_files;
};

/* All of them, because those that share a fetcher share its descriptors. */
static struct {
	pthread_mutex_t lock;
	LIST(struct remote_tree) all;
} trees = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct remote_place {
	struct place place;
	struct remote_tree *tree;
	char *prefix; /* "", or ends in a slash */
};

static struct remote_place *place_of(struct place *p)
{
	return (struct remote_place *)(void *)p;
}

/* ---- listings ---- */

static void dir_free(struct dir *d)
{
	if (!d)
		return;
	free(d->names);
	free(d->path);
	free(d->v);
	free(d);
}

static void dir_put(struct remote_tree *t, struct dir *d)
{
	bool last;

	{
		SCOPED_LOCK(&t->lock);
		last = !--d->users;
	}
	if (last)
		dir_free(d);
}

static struct dir *dir_new(const char *path, bool single)
{
	struct dir *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->users = 1;
	d->single = single;
	d->until_ns = clock_ns() + FRESH_S * CLOCK_SECOND;
	d->path = strdup(path);
	if (d->path)
		return d;
	free(d);
	return NULL;
}

/* A fresh listing or answer; NULL: none. The caller puts it back. */
static struct dir *find_dir(struct remote_tree *t, const char *path, bool single)
{
	uint64_t now = clock_ns();
	SCOPED_LOCK(&t->lock);

	for (size_t i = 0; i < t->n_dirs; i++) {
		struct dir *d = t->dirs[i];

		if (d->single != single || strcmp(d->path, path) != 0)
			continue;
		if (now >= d->until_ns)
			return NULL;
		d->users++;
		return d;
	}
	return NULL;
}

/* Drops what is too old to be of use. Under the lock. */
static void drop_old(struct remote_tree *t, uint64_t now)
{
	size_t kept = 0;

	for (size_t i = 0; i < t->n_dirs; i++) {
		struct dir *d = t->dirs[i];

		if (now < d->until_ns)
			t->dirs[kept++] = d;
		else if (!--d->users)
			dir_free(d);
	}
	t->n_dirs = kept;
}

/* Keeps a reference of its own, in place of an older listing. Does nothing if memory runs out. */
static void keep_dir(struct remote_tree *t, struct dir *d)
{
	struct dir *before = NULL;
	size_t i = 0;

	{
		SCOPED_LOCK(&t->lock);
		drop_old(t, clock_ns());
		while (i < t->n_dirs &&
		       (t->dirs[i]->single != d->single || strcmp(t->dirs[i]->path, d->path) != 0))
			i++;
		if (i == MAX_DIRS)
			i = 0;
		if (i == t->n_dirs && !VEC_ROOM(t->dirs, t->cap_dirs, i + 1))
			return;
		if (i == t->n_dirs)
			t->n_dirs++;
		else
			before = t->dirs[i];
		d->users++;
		t->dirs[i] = d;
		if (before && --before->users)
			before = NULL;
	}
	dir_free(before);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* Takes the entries out of the text of a listing, which d then owns: their names are kept in it. */
static int parse_entries(struct dir *d, char *text, size_t len, struct ckpt_err *e)
{
	size_t cap = 0, out = 0;

	d->names = text;
	for (size_t at = 0; at < len;) {
		struct wire_entry x;
		struct entry *to;

		if (len - at < sizeof(x))
			return err_set(e, EPROTO, "ckptfs-fetch sent half an entry");
		memcpy(&x, text + at, sizeof(x));
		at += sizeof(x);
		if (x.name > len - at || x.id_len > sizeof(x.id) || x.kind > PLACE_OTHER ||
		    x.size > WIRE_SIZE_MAX)
			return err_set(e, EPROTO, "ckptfs-fetch sent an entry with wrong numbers");
		if (!VEC_ROOM(d->v, cap, d->n + 1))
			return err_nomem(e);
		/* A name and its NUL are shorter than the entry they came in, so they overwrite
		 * only what has been read. */
		memmove(text + out, text + at, x.name);
		text[out + x.name] = 0;
		at += x.name;
		to = &d->v[d->n++];
		*to = (struct entry){ text + out,
				      { .kind = x.kind,
					.size = x.size,
					.mtime_ns = x.mtime_ns,
					.id.len = x.id_len } };
		memcpy(to->seen.id.v, x.id, x.id_len);
		out += (size_t)x.name + 1;
		/* The rules of local names: see io_check_relative. */
		if (strlen(to->name) != x.name || strchr(to->name, '/') ||
		    io_check_relative(to->name, x.name, e))
			d->n--;
	}
	return 0;
}

static void seal(struct dir *d)
{
	struct digest digest = { 0 };
	size_t n = 0;

	if (d->n)
		qsort(d->v, d->n, sizeof(*d->v), by_name);
	for (size_t i = 0; i < d->n; i++)
		if (!n || strcmp(d->v[n - 1].name, d->v[i].name) != 0)
			d->v[n++] = d->v[i];
		else if (d->v[i].seen.kind == PLACE_FILE) /* a key that is also a prefix */
			d->v[n - 1] = d->v[i];
	d->n = n;
	for (size_t i = 0; i < d->n; i++)
		digest_add(&digest, d->v[i].name, strlen(d->v[i].name));
	d->id.len = sizeof(digest);
	memcpy(d->id.v, &digest, sizeof(digest));
}

/* Asks the store. -ENOTSUP: it has no listings. */
static int ask_list(struct remote_tree *t, const char *path, struct dir **ret, struct ckpt_err *e)
{
	struct call c = { .head = { .kind = WIRE_LIST } };
	const char *what = *path ? path : ".";
	int rc = rplace_call(t->there, &c, what, strlen(what) + 1, e);
	struct dir *d = rc ? NULL : dir_new(path, false);

	if (!rc && !d)
		rc = err_nomem(e);
	if (!rc) {
		rc = parse_entries(d, c.text, c.len, e);
		c.text = NULL; /* d has it */
	}
	call_release(&c);
	if (rc) {
		dir_free(d);
		return rc;
	}
	seal(d);
	*ret = d;
	return 0;
}

/* The listing of a directory; the caller puts it back. -ENOTSUP, without a sentence: there are no
 * listings. */
static int get_dir(struct remote_tree *t, const char *path, struct dir **ret, struct ckpt_err *e)
{
	struct ckpt_err why;
	int rc;

	*ret = find_dir(t, path, false);
	if (*ret)
		return 0;
	rc = t->no_list ? -ENOTSUP : ask_list(t, path, ret, &why);
	if (rc == -ENOTSUP)
		t->no_list = true;
	else if (rc)
		*e = why;
	if (rc)
		return rc;
	keep_dir(t, *ret);
	return 0;
}

static const struct entry *find_entry(const struct dir *d, const char *name, size_t len)
{
	size_t i = PARTITION_POINT(k, d->n, strncmp(d->v[k].name, name, len) < 0);

	return i < d->n && !strncmp(d->v[i].name, name, len) && !d->v[i].name[len] ? &d->v[i]
										   : NULL;
}

/* ---- looking ---- */

/* Asks the store about one path; 1, 0 or an error. */
static int look_singly(struct remote_tree *t, const char *path, struct place_seen *ret,
		       struct ckpt_err *e)
{
	struct call c = { .head = { .kind = WIRE_LOOK } };
	const char *what = *path ? path : ".";
	struct dir *d = find_dir(t, path, true);
	int rc;

	if (d) {
		rc = d->n > 0;
		if (rc)
			*ret = d->v[0].seen;
		dir_put(t, d);
		return rc;
	}
	rc = rplace_call(t->there, &c, what, strlen(what) + 1, e);
	if (!rc && c.head.n[1] && !wire_get_seen(&c.head, ret))
		rc = err_set(e, EPROTO, "ckptfs-fetch sent invalid numbers");
	call_release(&c);
	if (rc)
		return rc;
	d = dir_new(path, true);
	if (d && c.head.n[1]) {
		d->v = calloc(1, sizeof(*d->v));
		if (d->v)
			d->v[d->n++] = (struct entry){ NULL, *ret };
	}
	if (d && (d->n || !c.head.n[1]))
		keep_dir(t, d);
	if (d)
		dir_put(t, d);
	return c.head.n[1] != 0;
}

/* Looks in the listings of all directories above, from the address down. */
static int look_listed(struct remote_tree *t, const char *path, struct place_seen *ret,
		       struct ckpt_err *e)
{
	for (size_t at = 0;;) {
		size_t len = strcspn(path + at, "/");
		autofree char *above = strndup(path, at ? at - 1 : 0);
		const struct entry *x;
		struct dir *d;
		struct ckpt_err why;
		int rc = above ? get_dir(t, above, &d, &why) : err_nomem(&why);

		if (rc == -ENOENT)
			return 0;
		if (rc && rc != -ENOTSUP)
			*e = why;
		if (rc)
			return rc;
		if (!path[at]) { /* the address itself */
			*ret = (struct place_seen){ .kind = PLACE_DIR, .id = d->id };
			dir_put(t, d);
			return 1;
		}
		x = find_entry(d, path + at, len);
		if (x)
			*ret = x->seen;
		rc = x != NULL;
		dir_put(t, d);
		if (!rc || !path[at + len])
			return rc;
		if (ret->kind != PLACE_DIR)
			return 0;
		at += len + 1;
	}
}

/* The path from the address on, "" for the address. */
static int whole_path(const struct remote_place *p, const char *path, char **ret,
		      struct ckpt_err *e)
{
	bool here = !strcmp(path, ".");
	size_t n;

	if (!here && io_check_relative(path, strlen(path), e))
		return -e->code;
	*ret = text_format("%s%s", p->prefix, here ? "" : path);
	if (!*ret)
		return err_nomem(e);
	n = strlen(*ret);
	if (here && n)
		(*ret)[n - 1] = 0;
	return 0;
}

static int look(struct place *x, const char *path, bool follow, struct place_seen *ret,
		struct ckpt_err *e)
{
	struct remote_place *p = place_of(x);
	autofree char *whole = NULL;
	struct place_seen seen;
	int rc = whole_path(p, path, &whole, e);

	(void)follow;
	if (rc)
		return err_wrap(e, "look for '%s'", path);
	rc = p->tree->singly || p->tree->no_list ? -ENOTSUP : look_listed(p->tree, whole, &seen, e);
	if (rc == -ENOTSUP)
		rc = look_singly(p->tree, whole, &seen, e);
	if (rc < 0)
		return err_wrap(e, "look for '%s'", path);
	/* In a store without listings only what has been asked for is known. */
	if (!rc && !*whole && p->tree->no_list) {
		seen = (struct place_seen){ .kind = PLACE_DIR };
		rc = 1;
	}
	if (rc)
		*ret = seen;
	return rc;
}

static int list(struct place *x, const char *path, place_entry_fn *each, void *arg,
		struct ckpt_err *e)
{
	struct remote_place *p = place_of(x);
	autofree char *whole = NULL;
	struct dir *d;
	int rc = whole_path(p, path, &whole, e);

	if (rc)
		return rc;
	rc = get_dir(p->tree, whole, &d, e);
	if (rc == -ENOTSUP)
		return 0; /* names can only be asked for */
	if (rc)
		return err_wrap(e, "list '%s'", path);
	for (size_t i = 0; !rc && i < d->n; i++)
		rc = each(arg, d->v[i].name, d->v[i].seen.kind, e);
	dir_put(p->tree, d);
	return rc;
}

/* ---- files ---- */

/* An object that is open already; NULL: none. One that the store has answered is another, or is not
 * there, is dropped: if that version is there again, it has to be opened anew to be read. */
static struct rfile *find_file(struct remote_tree *t, const char *path,
			       const struct place_seen *seen)
{
	uint64_t hash = XXH3_64bits(path, strlen(path));
	struct rfile *found = NULL, *gone = NULL;

	{
		SCOPED_LOCK(&trees.lock);
		for (size_t i = t->n_files; i-- > 0 && !found;) {
			struct rfile *f = t->files[i].file;

			if (t->files[i].hash != hash || !rfile_is(f, path, seen))
				continue;
			if (!rfile_is_gone(f)) {
				found = rfile_hold(f) ? f : NULL;
			} else if (!gone) { /* a second one is dropped next time */
				gone = f;
				memmove(t->files + i, t->files + i + 1,
					(--t->n_files - i) * sizeof(*t->files));
			}
		}
	}
	rfile_put(gone);
	return found;
}

/* Keeps a reference of its own, in place of the oldest if there are many. */
static void keep_file(struct remote_tree *t, const char *path, struct rfile *f)
{
	struct rfile *oldest = NULL;

	{
		SCOPED_LOCK(&trees.lock);
		if (t->n_files == MAX_FILES) {
			oldest = t->files[0].file;
			memmove(t->files, t->files + 1, --t->n_files * sizeof(*t->files));
		}
		if (VEC_ROOM(t->files, t->cap_files, t->n_files + 1) && rfile_hold(f))
			t->files[t->n_files++] =
				(struct kept){ XXH3_64bits(path, strlen(path)), f };
	}
	rfile_put(oldest);
}

/* Closes those that no source uses, of all addresses of that link. False: there are none. */
static bool drop_unused(const struct link *l)
{
	struct rfile **unused = NULL;
	size_t n = 0, cap = 0;

	{
		SCOPED_LOCK(&trees.lock);
		LIST_EACH (t, &trees.all) {
			size_t kept = 0;

			if (rplace_link(t->there) != l)
				continue;
			for (size_t i = 0; i < t->n_files; i++)
				if (rfile_is_unused(t->files[i].file) &&
				    VEC_ROOM(unused, cap, n + 1))
					unused[n++] = t->files[i].file;
				else
					t->files[kept++] = t->files[i];
			t->n_files = kept;
		}
	}
	for (size_t i = 0; i < n; i++)
		rfile_put(unused[i]);
	free(unused);
	return n > 0;
}

/* Opens an object, if descriptors have run out, here or in the fetcher, in place of those that are
 * unused. */
static int open_object(struct remote_tree *t, const char *path, const struct place_seen *seen,
		       struct rfile **ret, struct ckpt_err *e)
{
	struct ckpt_err why;
	int rc = rfile_open(t->there, path, seen, ret, &why);

	if ((rc == -EMFILE || rc == -ENFILE) && drop_unused(rplace_link(t->there)))
		return rfile_open(t->there, path, seen, ret, e);
	if (rc)
		*e = why;
	return rc;
}

static int file(struct place *x, const char *path, struct source **ret, struct ckpt_err *e)
{
	struct remote_place *p = place_of(x);
	struct remote_tree *t = p->tree;
	autofree char *whole = NULL;
	struct place_seen seen;
	struct rfile *f;
	int rc = look(x, path, true, &seen, e);

	if (rc < 0)
		return rc;
	if (!rc)
		return err_sys(e, ENOENT, "open '%s'", path);
	rc = whole_path(p, path, &whole, e);
	if (rc)
		return rc;
	/* A link that could not be followed when it was listed: the store says why. */
	if (seen.kind == PLACE_OTHER && look_singly(t, whole, &seen, e) < 0)
		return err_wrap(e, "open '%s'", path);
	if (seen.kind != PLACE_FILE)
		return err_set(e, ERR_CORRUPT, "open '%s': not a regular file", path);
	f = find_file(t, whole, &seen);
	if (!f) {
		rc = open_object(t, whole, &seen, &f, e);
		if (rc)
			return err_wrap(e, "open '%s'", path);
		keep_file(t, whole, f);
	}
	rc = rfile_source(f, ret, e);
	if (rc)
		rfile_put(f);
	return rc;
}

/* ---- places ---- */

static void tree_put(struct remote_tree *t)
{
	if (--t->users)
		return;
	{
		SCOPED_LOCK(&trees.lock);
		LIST_REMOVE(&trees.all, t);
	}
	for (size_t i = 0; i < t->n_dirs; i++)
		dir_free(t->dirs[i]);
	for (size_t i = 0; i < t->n_files; i++)
		rfile_put(t->files[i].file);
	free(t->dirs);
	free(t->files);
	(void)pthread_mutex_destroy(&t->lock);
	rplace_put(t->there);
	free(t);
}

static void free_place(struct place *x)
{
	struct remote_place *p = place_of(x);

	tree_put(p->tree);
	free(p->prefix);
	free(p);
}

static int new_place(struct remote_tree *t, const char *prefix, struct place **ret,
		     struct ckpt_err *e);

static int sub(struct place *x, const char *name, struct place **ret, struct ckpt_err *e)
{
	struct remote_place *p = place_of(x);
	autofree char *whole = NULL, *prefix = NULL;
	struct place_seen seen;
	int rc = look(x, name, false, &seen, e);

	if (rc < 0)
		return rc;
	if (!rc || seen.kind != PLACE_DIR)
		return err_sys(e, rc ? ENOTDIR : ENOENT, "open '%s'", name);
	rc = whole_path(p, name, &whole, e);
	if (rc)
		return rc;
	prefix = text_format("%s/", whole);
	if (!prefix)
		return err_nomem(e);
	return new_place(p->tree, prefix, ret, e);
}

static void network(struct place *x, struct place_network *ret)
{
	link_network(rplace_link(place_of(x)->tree->there), ret);
}

static const char *origin(const struct place *x)
{
	return rplace_origin(((const struct remote_place *)(const void *)x)->tree->there);
}

static int new_place(struct remote_tree *t, const char *prefix, struct place **ret,
		     struct ckpt_err *e)
{
	static const struct place_ops ops = {
		.look = look,
		.list = list,
		.sub = sub,
		.file = file,
		.free = free_place,
		.network = network,
		.origin = origin,
	};
	struct remote_place *p = calloc(1, sizeof(*p));

	if (!p)
		return err_nomem(e);
	p->prefix = strdup(prefix);
	if (!p->prefix) {
		free(p);
		return err_nomem(e);
	}
	p->place.ops = &ops;
	p->place.at_once = AT_ONCE;
	p->place.keeps = t->keeps;
	p->tree = t;
	t->users++;
	*ret = &p->place;
	return 0;
}

/* Opens an address in the fetcher; *ret_root is its canonical form. dir: of file://, or -1. */
static int open_tree(struct link *l, const char *address, int dir, const struct place_options *o,
		     struct remote_tree **ret, char **ret_root, struct ckpt_err *e)
{
	struct remote_tree *t = calloc(1, sizeof(*t));

	if (!t)
		return err_nomem(e);
	if (rplace_open(l, address, dir, o, &t->there, ret_root, e)) {
		free(t);
		return -e->code;
	}
	(void)pthread_mutex_init(&t->lock, NULL);
	t->users = 1;
	t->keeps = o->cache_size;
	{
		SCOPED_LOCK(&trees.lock);
		LIST_PUSH(&trees.all, t);
	}
	*ret = t;
	return 0;
}

static void cut_slashes(char *s)
{
	size_t n = strlen(s);

	while (n && s[n - 1] == '/' && !(n > 2 && s[n - 2] == '/'))
		s[--n] = 0;
}

/* What is at the address: 1: a directory, 0: a file. */
static int find_kind(struct remote_tree *t, const char *address, struct ckpt_err *e)
{
	bool as_dir = *address && address[strlen(address) - 1] == '/';
	struct place_seen seen;
	struct ckpt_err why;
	struct dir *d;
	int rc = get_dir(t, "", &d, &why);
	bool some = !rc && d->n;

	if (!rc)
		dir_put(t, d);
	if (some)
		return 1;
	if (rc && rc != -ENOTSUP && rc != -ENOENT) {
		*e = why;
		return rc;
	}
	if (rc == -ENOTSUP && as_dir)
		return 1;
	rc = look_singly(t, "", &seen, e);
	if (rc < 0)
		return rc;
	if (rc > 0)
		return seen.kind != PLACE_FILE;
	/* Without listings it may be a directory: then names are found in it. */
	return t->no_list ? 1 : err_set(e, ENOENT, "there is no such directory or object");
}

/* The directory that the file at `root` is in. */
static int enter_parent(struct link *l, const struct place_options *o, const char *root,
			struct remote_tree **t, const char **ret_file, struct ckpt_err *e)
{
	const char *slash = strrchr(root, '/');
	autofree char *dir = NULL, *canonical = NULL;

	if (!slash || slash == root || slash[-1] == '/' || !slash[1])
		return err_set(e, EINVAL, "it is neither a directory nor a file in one");
	dir = strndup(root, (size_t)(slash - root) + 1);
	if (!dir)
		return err_nomem(e);
	tree_put(*t);
	*t = NULL;
	if (open_tree(l, dir, -1, o, t, &canonical, e))
		return -e->code;
	(*t)->singly = true;
	*ret_file = slash + 1;
	return 0;
}

/* Neither a password nor a signed query is passed on: they would be shown in messages, and kept in
 * the index. */
static int refuse_secrets(const char *address, struct ckpt_err *e)
{
	if (text_has_user(address))
		return err_set(e, EINVAL, "a user or password in an address is not supported");
	if (!strncmp(address, "http", 4) && address[strcspn(address, "?#")])
		return err_set(e, EINVAL, "an address with '%c' is not supported",
			       address[strcspn(address, "?#")]);
	return 0;
}

static struct link_key key_of(const struct place_options *o)
{
	return (struct link_key){ .cache_dir = o->cache_dir,
				  .cache_size = o->cache_size,
				  .memory = o->memory,
				  .retry_ms = min_u64(o->retry_s, UINT32_MAX / 1000) * 1000 };
}

/* Adds the address to the message, unless it begins with it. */
static int wrap_open(const char *address, struct ckpt_err *e)
{
	char shown[200], begin[sizeof(shown) + 2];

	(void)snprintf(begin, sizeof(begin), "'%s'",
		       text_show_address(address, shown, sizeof(shown)));
	return strncmp(e->msg, begin, strlen(begin)) ? err_wrap(e, "open %s", begin) : -e->code;
}

int remote_open_new(const char *address, const struct place_options *o, struct place **ret,
		    struct rplace **ret_place, char **ret_root, struct ckpt_err *e)
{
	static const struct place_options none;
	const struct link_key key = key_of(o ? o : &none);
	autofree char *root = NULL;
	struct remote_tree *t = NULL;
	struct link *l;
	int rc = refuse_secrets(address, e);

	if (!rc)
		rc = link_get(&key, &l, e);
	if (rc)
		return wrap_open(address, e);
	rc = open_tree(l, address, -1, o ? o : &none, &t, &root, e);
	if (!rc) {
		cut_slashes(root);
		*ret_place = t->there;
		rc = new_place(t, "", ret, e);
	}
	if (t)
		tree_put(t);
	link_put(l);
	if (rc)
		return wrap_open(address, e);
	*ret_root = steal_ptr(&root);
	return 0;
}

/* file://: this process opens the directory, and the fetcher reads beneath it. */
static int open_files(struct link *l, const char *address, const struct place_options *o,
		      struct remote_tree **ret, char **ret_root, const char **ret_file,
		      struct ckpt_err *e)
{
	const char *path = text_file_path(address), *file = NULL;
	autofree char *root = NULL, *dir = NULL;
	struct place *place = NULL;
	autoclose int fd = -1;
	int rc;

	if (*path != '/')
		return err_set(e, EINVAL,
			       "it has no absolute path: three slashes are needed, as in "
			       "file:///data/run");
	rc = local_open(path, NULL, &place, &root, &file, e);
	if (!rc) {
		fd = openat(place_fd(place), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = fd < 0 ? err_sys(e, errno, "open the directory") : 0;
	}
	if (!rc)
		rc = open_tree(l, address, fd, o, ret, &dir, e);
	place_free(place);
	if (rc)
		return rc;
	(*ret)->singly = file;
	if (file)
		rplace_limit((*ret)->there, file);
	*ret_root = text_format("%s%s%s", dir, file ? "/" : "", file ? file : "");
	if (!*ret_root)
		return err_nomem(e);
	*ret_file = file ? strrchr(*ret_root, '/') + 1 : NULL;
	return 0;
}

static int open_at(const char *address, const struct place_options *o, struct place **ret,
		   char **ret_root, const char **ret_file, struct ckpt_err *e)
{
	const struct link_key key = key_of(o);
	const char *name = NULL;
	autofree char *root = NULL;
	struct remote_tree *t = NULL;
	struct link *l;
	int rc = refuse_secrets(address, e);

	if (!rc)
		rc = link_get(&key, &l, e);
	if (rc)
		return rc;
	if (text_file_path(address))
		rc = open_files(l, address, o, &t, &root, &name, e);
	else
		rc = open_tree(l, address, -1, o, &t, &root, e);
	if (!rc && !text_file_path(address)) {
		cut_slashes(root);
		rc = find_kind(t, address, e);
		rc = rc < 0 ? rc : rc ? 0 : enter_parent(l, o, root, &t, &name, e);
	}
	if (!rc)
		rc = new_place(t, "", ret, e);
	if (t)
		tree_put(t);
	link_put(l);
	if (rc)
		return rc;
	*ret_root = steal_ptr(&root);
	*ret_file = name;
	return 0;
}

int remote_open(const char *address, const struct place_options *o, struct place **ret,
		char **ret_root, const char **ret_file, struct ckpt_err *e)
{
	return open_at(address, o, ret, ret_root, ret_file, e) ? wrap_open(address, e) : 0;
}

/* Is it an index, or one of the parts of a model? Then the others in its directory are read as
 * well. */
static bool is_of_several(const char *name)
{
	static const char index[] = ".index.json";
	size_t n = strlen(name), m = sizeof(index) - 1;

	return (n > m && !strcmp(name + n - m, index)) || strstr(name, "-of-");
}

/* A file is read with what describes it, which lies beside it. */
static void expect_files(const char *address)
{
	static const char beside[] = "sparse_update_manifest.json";
	autofree char *path = strdup(text_file_path(address)), *root = NULL;
	struct buf names CLEANUP(buf_release) = BUF_INIT(WIRE_TEXT_MAX);
	char *end = path ? strrchr(path, ':') : NULL;
	struct stat st;

	if (end && access(path, F_OK)) /* the scale of lora= */
		*end = 0;
	/* What is not there may be a name in a run, or of a file in the tree. */
	while (path && access(path, F_OK) && (end = strrchr(path, '/')) && end > path)
		*end = 0;
	root = path && strcmp(path, "/") != 0 ? local_real_name(path) : NULL;
	if (!root || stat(root, &st))
		return; /* opening it would be an error, too */
	if (!S_ISDIR(st.st_mode)) {
		end = strrchr(root, '/');
		if (!is_of_several(end + 1)) {
			buf_add(&names, end + 1, strlen(end));
			buf_add(&names, beside, sizeof(beside));
		}
		end[end == root] = 0;
		if (names.err || stat(root, &st))
			return;
	}
	link_may_read(&st, names.data, names.len);
}

void place_expect(const char *address, const struct place_options *o)
{
	const struct link_key key = key_of(o);

	if (!place_is_remote(address))
		return;
	link_expect(&key);
	if (text_file_path(address))
		expect_files(address);
	else
		rplace_expect(address, o);
}

void place_rest(void)
{
	rplace_rest();
	link_rest();
}
