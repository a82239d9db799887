/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The archive's headers are read once, when it is opened. A member's identity is that of the
 * archive and the member's position in it; so if the archive is written to or replaced, all its
 * members have changed.
 */
#include "source/archive.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "parse/tar.h"
#include "source/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAMES ((size_t)256 << 20) /* bytes of all members' names */

struct member {
	const char *path;
	uint64_t at, size;
	bool dir;
};

/* What the places of an archive and of directories in it share. */
struct archive {
	unsigned users;
	struct place *outer;
	char *address;
	const char *file; /* its name: the end of the address */
	struct arena names;
	struct place_id id; /* of the archive when its headers were read */
	struct member *v;   /* sorted; a directory is followed by what is in it */
	size_t n, cap;
};

struct tar_place {
	struct place place;
	struct archive *a;
	char *prefix; /* "", or ends in a slash */
};

struct tar_source {
	struct source source;
	struct source *inner;
	uint64_t at;
};

static struct tar_place *place_of(struct place *p)
{
	return (struct tar_place *)(void *)p;
}

static struct tar_source *source_of(struct source *s)
{
	return (struct tar_source *)(void *)s;
}

/* ---- members ---- */

/* Slashes come before all other bytes. */
static int compare_paths(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	if (*a == '/' || *b == '/')
		return !*a ? -1 : !*b ? 1 : *a == '/' ? -1 : 1;
	return (*a != 0 || *b != 0) * ((unsigned char)*a < (unsigned char)*b ? -1 : 1);
}

static int by_path(const void *ap, const void *bp)
{
	const struct member *a = ap, *b = bp;
	int c = compare_paths(a->path, b->path);

	return c ? c : (a->at > b->at) - (a->at < b->at);
}

static int add_member(void *arg, const struct tar_member *m, struct ckpt_err *e)
{
	struct archive *a = arg;
	const char *s = m->name;
	size_t n = m->name_len;
	int rc;

	while (n >= 2 && s[0] == '.' && s[1] == '/') {
		s += 2;
		n -= 2;
		while (n && *s == '/') {
			s++;
			n--;
		}
	}
	while (n && s[n - 1] == '/')
		n--;
	if (m->kind == TAR_OTHER || !n || (n == 1 && *s == '.')) /* links, devices; "./" */
		return 0;
	rc = io_check_relative(s, n, e);
	if (rc)
		return err_wrap(e, "a member of the archive");
	if (!VEC_ROOM(a->v, a->cap, a->n + 1))
		return err_nomem(e);
	a->v[a->n] =
		(struct member){ arena_dup(&a->names, s, n), m->at, m->size, m->kind == TAR_DIR };
	if (!a->v[a->n].path)
		return err_set(e, errno, "the archive's names take too much memory");
	a->n++;
	return 0;
}

/* Of members with the same name, the last one counts, as when an archive is unpacked. */
static void sort_members(struct archive *a)
{
	size_t n = 0;

	if (a->n)
		qsort(a->v, a->n, sizeof(*a->v), by_path);
	for (size_t i = 0; i < a->n; i++)
		if (i + 1 == a->n || strcmp(a->v[i].path, a->v[i + 1].path) != 0)
			a->v[n++] = a->v[i];
	a->n = n;
}

/* The first member that does not come before the path. */
static size_t find_path(const struct archive *a, const char *path)
{
	return PARTITION_POINT(i, a->n, compare_paths(a->v[i].path, path) < 0);
}

/* Is the member in the directory? Its name in it; NULL: no. */
static const char *name_in(const struct member *m, const char *dir)
{
	size_t n = strlen(dir);

	if (!n)
		return m->path;
	return !strncmp(m->path, dir, n) && m->path[n] == '/' ? m->path + n + 1 : NULL;
}

/* ---- places ---- */

/* The path in the archive: "." and "a/b" in the place of "x/" are "x" and "x/a/b". */
static char *full_path(const struct tar_place *t, const char *path)
{
	char *r = text_format("%s%s", t->prefix, strcmp(path, ".") ? path : "");
	size_t n;

	if (!r)
		return NULL;
	n = strlen(r);
	if (n && r[n - 1] == '/')
		r[n - 1] = 0;
	return r;
}

static void see_member(const struct member *m, const struct place_seen *archive,
		       struct place_seen *ret)
{
	*ret = *archive;
	ret->kind = m && !m->dir ? PLACE_FILE : PLACE_DIR;
	ret->size = m ? m->size : archive->size;
	if (m && ret->id.len + sizeof(m->at) <= sizeof(ret->id.v)) {
		memcpy(ret->id.v + ret->id.len, &m->at, sizeof(m->at));
		ret->id.len += sizeof(m->at);
	}
}

/* 1: it is there; *ret_member is NULL for a directory without an entry of its own. */
static int find(const struct tar_place *t, const char *path, const struct member **ret_member,
		struct ckpt_err *e)
{
	autofree char *whole = full_path(t, path);
	const struct archive *a = t->a;
	size_t i;

	if (!whole)
		return err_nomem(e);
	i = find_path(a, whole);
	*ret_member = NULL;
	if (!*whole)
		return 1;
	if (i < a->n && !strcmp(a->v[i].path, whole)) {
		*ret_member = &a->v[i];
		return 1;
	}
	return i < a->n && name_in(&a->v[i], whole);
}

/* What is known of the members holds only for the archive that was read. */
static int check_same(const struct archive *a, const struct place_seen *now, struct ckpt_err *e)
{
	enum place_change c = place_compare(a->outer, &a->id, &now->id);

	return c < PLACE_WRITTEN
		       ? 0
		       : err_set(e, ESTALE,
				 "'%.100s' has changed since it was opened; open it again",
				 a->file);
}

static int look(struct place *p, const char *path, bool follow, struct place_seen *ret,
		struct ckpt_err *e)
{
	struct tar_place *t = place_of(p);
	const struct member *m;
	struct place_seen archive;
	int rc = find(t, path, &m, e);

	(void)follow; /* links are not read */
	if (rc > 0)
		rc = place_look(t->a->outer, t->a->file, &archive, e);
	if (rc > 0 && check_same(t->a, &archive, e))
		rc = -e->code;
	if (rc > 0)
		see_member(m, &archive, ret);
	return rc;
}

static int list(struct place *p, const char *path, place_entry_fn *each, void *arg,
		struct ckpt_err *e)
{
	struct tar_place *t = place_of(p);
	autofree char *dir = full_path(t, path), *name = NULL;
	const struct archive *a = t->a;
	size_t i = dir ? find_path(a, dir) : 0;
	int rc = 0;

	if (!dir)
		return err_nomem(e);
	if (*dir && (i == a->n || (strcmp(a->v[i].path, dir) != 0 && !name_in(&a->v[i], dir))))
		return err_sys(e, ENOENT, "list '%s'", path);
	if (*dir && !strcmp(a->v[i].path, dir) && !a->v[i++].dir)
		return err_sys(e, ENOTDIR, "list '%s'", path);
	for (; !rc && i < a->n; i++) {
		const char *s = name_in(&a->v[i], dir);
		size_t n = s ? strcspn(s, "/") : 0;
		bool is_dir = s && (s[n] || a->v[i].dir);

		if (!s)
			break;
		if (name && strlen(name) == n && !strncmp(name, s, n))
			continue;
		free(name);
		name = strndup(s, n);
		if (!name)
			return err_nomem(e);
		rc = each(arg, name, is_dir ? PLACE_DIR : PLACE_FILE, e);
	}
	return rc;
}

static int64_t read_member(struct source *s, void *buf, size_t len, uint64_t off,
			   struct ckpt_err *e)
{
	struct tar_source *t = source_of(s);

	if (off >= s->seen.size)
		return 0;
	if (len > s->seen.size - off)
		len = (size_t)(s->seen.size - off);
	return source_read(t->inner, buf, len, t->at + off, e);
}

static int look_again(struct source *s, struct place_seen *ret)
{
	const struct member m = { .at = source_of(s)->at, .size = s->seen.size };
	struct place_seen archive;
	int rc = source_look(source_of(s)->inner, &archive);

	if (!rc)
		see_member(&m, &archive, ret);
	return rc;
}

static void free_member(struct source *s)
{
	source_free(source_of(s)->inner);
	free(s);
}

/* The whole archive can be mapped and lent, so any of its bytes can. */
static void set_lender(struct source *s, struct lender *l)
{
	source_set_lender(source_of(s)->inner, l);
}

static const uint8_t *map_member(struct source *s, uint64_t off, uint64_t len)
{
	return source_map(source_of(s)->inner, source_of(s)->at + off, len);
}

static bool may_map_member(const struct source *s)
{
	return source_may_map(((const struct tar_source *)(const void *)s)->inner);
}

static const uint8_t *lend_member(struct source *s, uint64_t off, uint64_t len)
{
	return source_lend(source_of(s)->inner, source_of(s)->at + off, len);
}

static void give_back(struct source *s)
{
	source_give_back(source_of(s)->inner);
}

static bool want(struct source *s, uint64_t off, uint64_t len)
{
	return source_want(source_of(s)->inner, source_of(s)->at + off, len);
}

static int file(struct place *p, const char *path, struct source **ret, struct ckpt_err *e)
{
	static const struct source_ops ops = { .read = read_member,
					       .look = look_again,
					       .free = free_member,
					       .map = map_member,
					       .may_map = may_map_member,
					       .lend = lend_member,
					       .give_back = give_back,
					       .want = want,
					       .set_lender = set_lender };
	const struct tar_place *t = place_of(p);
	const struct member *m;
	struct tar_source *s;
	int rc = find(t, path, &m, e);

	if (rc < 0)
		return rc;
	if (!rc)
		return err_sys(e, ENOENT, "open '%s'", path);
	if (!m || m->dir)
		return err_sys(e, EISDIR, "open '%s'", path);
	s = calloc(1, sizeof(*s));
	if (!s)
		return err_nomem(e);
	rc = place_file(t->a->outer, t->a->file, &s->inner, e);
	if (!rc)
		rc = check_same(t->a, &s->inner->seen, e);
	if (rc) {
		source_free(s->inner);
		free(s);
		return rc;
	}
	s->source.ops = &ops;
	s->at = m->at;
	see_member(m, &s->inner->seen, &s->source.seen);
	*ret = &s->source;
	return 0;
}

static void free_place(struct place *p)
{
	struct archive *a = place_of(p)->a;

	if (!--a->users) {
		arena_release(&a->names);
		place_free(a->outer);
		free(a->address);
		free(a->v);
		free(a);
	}
	free(place_of(p)->prefix);
	free(p);
}

static int new_place(struct archive *a, char *prefix, struct place **ret, struct ckpt_err *e);

static int sub(struct place *p, const char *name, struct place **ret, struct ckpt_err *e)
{
	const struct tar_place *t = place_of(p);
	const struct member *m;
	char *prefix;
	int rc = find(t, name, &m, e);

	if (rc < 0)
		return rc;
	if (!rc || (m && !m->dir))
		return err_sys(e, rc ? ENOTDIR : ENOENT, "open '%s'", name);
	prefix = text_format("%s%s/", t->prefix, name);
	if (!prefix)
		return err_nomem(e);
	rc = new_place(t->a, prefix, ret, e);
	if (rc)
		free(prefix);
	return rc;
}

static const char *within(struct place *p, const char *path, uint64_t *ret_off)
{
	const struct tar_place *t = place_of(p);
	const struct member *m;
	struct ckpt_err ignored;

	if (find(t, path, &m, &ignored) <= 0 || !m || m->dir)
		return NULL;
	*ret_off = m->at;
	return t->a->address;
}

/* The archive's identity, without the offset that see_member has added. */
static struct place_id outer_id(const struct place_id *id)
{
	struct place_id r = *id;

	r.len = (uint8_t)(r.len >= sizeof(uint64_t) ? r.len - sizeof(uint64_t) : 0);
	return r;
}

/* As for local files, because archives are nowhere else. */
static enum place_change compare(const struct place_id *before, const struct place_id *now)
{
	const struct place_id a = outer_id(before), b = outer_id(now);

	if (before->len != now->len || memcmp(before->v + a.len, now->v + b.len, sizeof(uint64_t)))
		return PLACE_ANOTHER;
	return local_compare(&a, &b);
}

static void leave_ctime(struct place_id *id)
{
	local_leave_ctime(id);
}

static const char *origin(const struct place *p)
{
	return place_origin(((const struct tar_place *)(const void *)p)->a->outer);
}

/* Takes over the prefix on success, and a use of the archive. */
static int new_place(struct archive *a, char *prefix, struct place **ret, struct ckpt_err *e)
{
	static const struct place_ops ops = { .look = look,
					      .list = list,
					      .sub = sub,
					      .file = file,
					      .within = within,
					      .compare = compare,
					      .leave_ctime = leave_ctime,
					      .origin = origin,
					      .free = free_place };
	struct tar_place *t = malloc(sizeof(*t));

	if (!t)
		return err_nomem(e);
	*t = (struct tar_place){ { &ops, a->outer->at_once, a->outer->keeps }, a, prefix };
	a->users++;
	*ret = &t->place;
	return 0;
}

bool archive_is_name(const char *file)
{
	return bytes_end(file, strlen(file), ".nemo");
}

int archive_open(struct place *outer, const char *address, const char *name, struct place **ret,
		 struct ckpt_err *e)
{
	struct source *s CLEANUP(source_freep) = NULL;
	struct archive *a;
	char head[TAR_BLOCK];
	struct blob b;
	int64_t n;
	char *prefix;
	int rc = place_file(outer, name, &s, e);

	if (rc)
		return rc;
	n = source_read(s, head, sizeof(head), 0, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", name);
	if (!tar_magic(head, (size_t)n))
		return 1;
	a = calloc(1, sizeof(*a));
	prefix = strdup("");
	if (a)
		a->address = strdup(address);
	if (!a || !prefix || !a->address) {
		if (a)
			free(a->address);
		free(a);
		free(prefix);
		return err_nomem(e);
	}
	a->file = a->address + strlen(address) - strlen(name);
	a->names = (struct arena)ARENA_INIT(MAX_NAMES);
	a->id = s->seen.id;
	b = source_blob(s);
	rc = tar_each(&b, add_member, a, e);
	if (!rc && !source_is_same(s))
		rc = err_set(e, EAGAIN, "it changed while it was read");
	if (rc)
		(void)err_wrap(e, "read '%.100s'", name);
	sort_members(a);
	a->outer = outer;
	if (!rc)
		rc = new_place(a, prefix, ret, e);
	if (rc) {
		arena_release(&a->names);
		free(a->address);
		free(a->v);
		free(a);
		free(prefix);
	}
	return rc;
}
