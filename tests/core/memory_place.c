/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_place.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "source/source.h"
#include "suites.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct node {
	char *path;    /* "." is the first */
	uint8_t *data; /* NULL: a directory */
	struct place_seen seen;
};

/* Shared by a place, its sub-directories and its sources. */
struct tree {
	atomic_uint users;
	struct node *v;
	size_t n;
	_Atomic uint64_t calls, fail, count;
	int code;
	unsigned delay;
	bool unlisted;
	/* What has been announced and not yet read; counted from the first
	 * memory_place_traffic on. */
	pthread_mutex_t lock;
	bool counts;
	struct memory_traffic traffic;
	struct announced {
		const struct node *node;
		uint64_t off, end;
	} * announced;
	size_t n_announced;
};

struct memory {
	struct place place;
	struct tree *tree;
	char *prefix; /* "", "weights/" */
};

struct memory_file {
	struct source source;
	struct tree *tree;
	const struct node *node;
};

static struct tree *tree_of(struct place *p)
{
	return ((struct memory *)(void *)p)->tree;
}

static void leave(struct tree *t)
{
	if (--t->users)
		return;
	for (size_t i = 0; i < t->n; i++) {
		free(t->v[i].path);
		free(t->v[i].data);
	}
	free(t->v);
	free(t->announced);
	(void)pthread_mutex_destroy(&t->lock);
	free(t);
}

/* 0, or the errno with which this call is to fail. */
static int call(struct tree *t)
{
	uint64_t n = ++t->calls;

	if (t->delay)
		(void)usleep(t->delay);
	return t->fail && n >= t->fail && n - t->fail < t->count ? t->code : 0;
}

static const struct node *find(const struct memory *m, const char *path)
{
	autofree char *whole = NULL;

	REQUIRE(asprintf(&whole, "%s%s", m->prefix, strcmp(path, ".") != 0 ? path : "") >= 0);
	if (*whole && whole[strlen(whole) - 1] == '/')
		whole[strlen(whole) - 1] = 0;
	for (size_t i = 0; i < m->tree->n; i++)
		if (!strcmp(m->tree->v[i].path, *whole ? whole : "."))
			return &m->tree->v[i];
	return NULL;
}

static int look(struct place *p, const char *path, bool follow, struct place_seen *ret,
		struct ckpt_err *e)
{
	const struct node *n = find((struct memory *)(void *)p, path);
	int code = call(tree_of(p));

	(void)follow;
	if (code)
		return err_sys(e, code, "look for '%s'", path);
	if (n && !n->data && tree_of(p)->unlisted && strcmp(n->path, ".") != 0)
		n = NULL;
	if (n)
		*ret = n->seen;
	return n != NULL;
}

static int list(struct place *p, const char *dir, place_entry_fn *each, void *arg,
		struct ckpt_err *e)
{
	const struct node *n = find((struct memory *)(void *)p, dir);
	int code = call(tree_of(p)), rc = 0;
	size_t len;

	if (!code && tree_of(p)->unlisted)
		return 0;
	if (code || !n || n->data)
		return err_sys(e, code ? code : n ? ENOTDIR : ENOENT, "open '%s'", dir);
	len = strcmp(n->path, ".") != 0 ? strlen(n->path) + 1 : 0;
	for (size_t i = 1; !rc && i < tree_of(p)->n; i++) {
		const struct node *x = &tree_of(p)->v[i];

		if (len && (strncmp(x->path, n->path, len - 1) != 0 || x->path[len - 1] != '/'))
			continue;
		if (!strchr(x->path + len, '/'))
			rc = each(arg, x->path + len, x->seen.kind, e);
	}
	return rc;
}

static const struct place_ops place_ops;

static struct place *new_place(struct tree *t, const char *prefix)
{
	struct memory *m = malloc(sizeof(*m));

	REQUIRE(m);
	*m = (struct memory){ { &place_ops, 16, 0 }, t, strdup(prefix) };
	REQUIRE(m->prefix);
	t->users++;
	return &m->place;
}

static int sub(struct place *p, const char *name, struct place **ret, struct ckpt_err *e)
{
	const struct node *n = find((struct memory *)(void *)p, name);
	int code = call(tree_of(p));
	autofree char *prefix = NULL;

	if (code || !n || n->data)
		return err_sys(e, code ? code : n ? ENOTDIR : ENOENT, "open '%s'", name);
	REQUIRE(asprintf(&prefix, "%s/", n->path) >= 0);
	*ret = new_place(tree_of(p), prefix);
	return 0;
}

/* Takes [off, end) off what is announced. */
static void count_read(const struct memory_file *f, uint64_t off, uint64_t end)
{
	struct tree *t = f->tree;
	uint64_t left = end - off;
	SCOPED_LOCK(&t->lock);

	if (!t->counts)
		return;
	for (size_t i = 0; i < t->n_announced; i++) {
		struct announced *a = &t->announced[i], rest = *a;
		uint64_t from = a->off > off ? a->off : off, to = a->end < end ? a->end : end;

		if (a->node != f->node || from >= to)
			continue;
		left -= to - from;
		a->end = from;
		rest.off = to;
		if (a->off == a->end)
			*a = rest;
		else if (rest.off < rest.end) { /* read from the middle: the part before it stays */
			t->announced = reallocarray(t->announced, t->n_announced + 1, sizeof(rest));
			REQUIRE(t->announced);
			t->announced[t->n_announced++] = rest;
		}
		if (t->announced[i].off == t->announced[i].end)
			t->announced[i--] = t->announced[--t->n_announced];
	}
	t->traffic.reads++;
	t->traffic.late += left > 0;
}

static bool want(struct source *s, uint64_t off, uint64_t len)
{
	const struct memory_file *f = (struct memory_file *)(void *)s;
	struct tree *t = f->tree;
	SCOPED_LOCK(&t->lock);

	if (!t->counts)
		return false;
	t->announced = reallocarray(t->announced, t->n_announced + 1, sizeof(*t->announced));
	REQUIRE(t->announced);
	t->announced[t->n_announced++] = (struct announced){ f->node, off, off + len };
	t->traffic.announced += len;
	if (t->n_announced > t->traffic.outstanding)
		t->traffic.outstanding = t->n_announced;
	return true;
}

static int64_t read_file(struct source *s, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	const struct memory_file *f = (struct memory_file *)(void *)s;
	uint64_t size = f->node->seen.size;
	size_t n = off < size ? (size_t)(len < size - off ? len : size - off) : 0;
	int code = call(f->tree);

	count_read(f, off, off + n);
	if (code)
		return err_sys(e, code, "%zu bytes at %llu", len, (unsigned long long)off);
	memcpy(buf, f->node->data + (n ? off : 0), n);
	return (int64_t)n;
}

static int look_again(struct source *s, struct place_seen *ret)
{
	const struct memory_file *f = (struct memory_file *)(void *)s;

	*ret = f->node->seen;
	return -call(f->tree);
}

static void free_file(struct source *s)
{
	leave(((struct memory_file *)(void *)s)->tree);
	free(s);
}

static int file(struct place *p, const char *path, struct source **ret, struct ckpt_err *e)
{
	static const struct source_ops ops = {
		.read = read_file, .look = look_again, .free = free_file, .want = want
	};
	const struct node *n = find((struct memory *)(void *)p, path);
	int code = call(tree_of(p));
	struct memory_file *f;

	if (code || !n)
		return err_sys(e, code ? code : ENOENT, "open '%s'", path);
	if (!n->data)
		return err_set(e, ERR_CORRUPT, "open '%s': not a regular file", path);
	f = malloc(sizeof(*f));
	REQUIRE(f);
	*f = (struct memory_file){ { .ops = &ops, .seen = n->seen }, tree_of(p), n };
	f->tree->users++;
	*ret = &f->source;
	return 0;
}

static void free_place(struct place *p)
{
	struct memory *m = (struct memory *)(void *)p;

	leave(m->tree);
	free(m->prefix);
	free(m);
}

static const struct place_ops place_ops = {
	.look = look, .list = list, .sub = sub, .file = file, .free = free_place
};

/* ---- filling ---- */

static void add(struct tree *t, int dirfd, const char *path)
{
	struct stat st;
	struct node *x;
	XXH64_hash_t h;
	size_t n = 0;

	if (fstatat(dirfd, path, &st, 0) || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
		return; /* a link that leads nowhere */
	t->v = reallocarray(t->v, t->n + 1, sizeof(*t->v));
	REQUIRE(t->v);
	x = &t->v[t->n++];
	*x = (struct node){ .path = strdup(path) };
	REQUIRE(x->path);
	if (S_ISREG(st.st_mode))
		x->data = get_file(dirfd, path, &n);
	h = XXH3_64bits(x->data ? (const char *)x->data : path, x->data ? n : strlen(path));
	x->seen = (struct place_seen){ .kind = x->data ? PLACE_FILE : PLACE_DIR,
				       .size = n,
				       .mtime_ns = 1,
				       .id.len = sizeof(h) };
	memcpy(x->seen.id.v, &h, sizeof(h));
	if (x->data)
		return;
	DIR *d = fdopendir(openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));

	REQUIRE(d);
	for (const struct dirent *entry; (entry = readdir(d));) {
		autofree char *inner = NULL;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		REQUIRE(asprintf(&inner, "%s%s%s", strcmp(path, ".") != 0 ? path : "",
				 strcmp(path, ".") != 0 ? "/" : "", entry->d_name) >= 0);
		add(t, dirfd, inner);
	}
	(void)closedir(d);
}

struct place *memory_place(int dirfd)
{
	struct tree *t = calloc(1, sizeof(*t));

	REQUIRE(t);
	(void)pthread_mutex_init(&t->lock, NULL);
	add(t, dirfd, ".");
	return new_place(t, "");
}

void memory_place_fail(struct place *p, uint64_t n, uint64_t count, int code)
{
	struct tree *t = tree_of(p);

	t->calls = 0;
	t->fail = n;
	t->count = count;
	t->code = code;
}

uint64_t memory_place_calls(struct place *p)
{
	return tree_of(p)->calls;
}

struct memory_traffic memory_place_traffic(struct place *p)
{
	struct tree *t = tree_of(p);
	SCOPED_LOCK(&t->lock);
	struct memory_traffic r = t->traffic;

	t->counts = true;
	t->traffic = (struct memory_traffic){ .outstanding = t->n_announced };
	return r;
}

void memory_place_unlisted(struct place *p)
{
	tree_of(p)->unlisted = true;
}

void memory_place_delay(struct place *p, unsigned microseconds)
{
	tree_of(p)->delay = microseconds;
}
