/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leaves of a tree, as _METADATA lists them:
 *
 *	{"tree_metadata": {"('params', 'w')": {
 *		"key_metadata": [{"key": "params", "key_type": 2}, {"key": "w", "key_type": 2}],
 *		"value_metadata": {"value_type": "jax.Array", "skip_deserialize": false}}, ...},
 *	 "store_array_data_equal_to_fill_value": true, ...}
 *
 * key_type 1 is a position in a list. The name of a leaf's array is its keys joined with '.'.
 * Strings are in _strings.json, at the JSON pointer "/" + that name.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/orbax/orbax.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "index/catalog_query.h"
#include "source/place.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define MAX_JSON   ((size_t)256 << 20) /* bytes of _METADATA */
#define MAX_LEAVES ((size_t)512 << 20) /* bytes of memory for all leaves */

/* ---- names ---- */

int orbax_name_add(struct orbax_name *n, const char *s, size_t len, bool is_position,
		   struct ckpt_err *e)
{
	uint64_t ignored;

	if (n->n == ORBAX_MAX_STEPS)
		return err_set(e, EFBIG, "'%s...' is nested more than %d deep",
			       FQN_TEXT(n->fqn.data, n->fqn.len), ORBAX_MAX_STEPS);
	buf_str(&n->fqn, n->n ? "." : "");
	buf_add(&n->fqn, s, len);
	if (n->fqn.err)
		return n->fqn.err == ENOMEM
			       ? err_nomem(e)
			       : err_set(e, EFBIG, "a name has more than %d bytes", ORBAX_MAX_FQN);
	n->len[n->n] = (uint32_t)len;
	n->is_position[n->n++] = is_position && catalog_path_position(s, len, &ignored);
	return 0;
}

void orbax_name_cut(struct orbax_name *n, size_t steps)
{
	size_t len = 0;

	for (size_t i = 0; i < steps; i++)
		len += n->len[i] + (i > 0);
	n->n = steps;
	n->fqn.len = len;
}

void orbax_name_release(struct orbax_name *n)
{
	buf_release(&n->fqn);
}

const uint8_t *orbax_name_path(const struct orbax_name *n, struct arena *a, struct ckpt_err *e)
{
	uint8_t *p = arena_alloc(a, (n->n + 1) * CATALOG_PATH_NUMBER);
	size_t at;

	if (!p) {
		(void)err_set(e, errno,
			      errno == EFBIG ? "it has too many leaves" : "out of memory");
		return NULL;
	}
	if (!n->n)
		return memcpy(p, catalog_path_flat, sizeof(catalog_path_flat));
	at = catalog_path_put_head(p, n->n, n->is_position[n->n - 1]);
	for (size_t i = 0; i + 1 < n->n; i++)
		at += catalog_path_put_step(p + at, n->len[i], n->is_position[i]);
	return p;
}

/* ---- reading ---- */

static enum orbax_kind kind_of(const char *type)
{
	static const struct {
		const char *type;
		enum orbax_kind kind;
	} known[] = {
		{ "jax.Array", ORBAX_ARRAY },  { "np.ndarray", ORBAX_ARRAY },
		{ "scalar", ORBAX_ARRAY },     { "string", ORBAX_STRING },
		{ "None", ORBAX_EMPTY },       { "Dict", ORBAX_EMPTY },
		{ "List", ORBAX_EMPTY },       { "Tuple", ORBAX_EMPTY },
		{ "NamedTuple", ORBAX_EMPTY },
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (!strcmp(type, known[i].type))
			return known[i].kind;
	return ORBAX_CUSTOM;
}

static int bad(struct ckpt_err *e, const char *leaf, const char *what)
{
	return err_set(e, ERR_CORRUPT, "leaf '%.100s': %s", leaf, what);
}

int orbax_tree_add(struct orbax_tree *t, const struct orbax_leaf *about,
		   const struct orbax_name *name, const struct orbax_name *prefix,
		   struct ckpt_err *e)
{
	size_t own = prefix->fqn.len + (prefix->n > 0);
	struct orbax_leaf l = *about;

	l.len = name->n > prefix->n ? name->fqn.len - own : 0;
	l.name = arena_dup(&t->arena, l.len ? name->fqn.data + own : "", l.len);
	l.type = arena_dup(&t->arena, l.type, strlen(l.type));
	l.path = orbax_name_path(name, &t->arena, e);
	if (!l.path)
		return -e->code;
	if (!l.name || !l.type || !VEC_ROOM(t->v, t->cap, t->n + 1))
		return err_set(e, errno == EFBIG ? EFBIG : ENOMEM, "too many leaves for memory");
	t->v[t->n++] = l;
	return 0;
}

static int by_name(const void *ap, const void *bp)
{
	const struct orbax_leaf *a = ap, *b = bp;

	return bytes_compare(a->name, a->len, b->name, b->len);
}

void orbax_tree_sort(struct orbax_tree *t)
{
	if (t->n)
		qsort(t->v, t->n, sizeof(*t->v), by_name);
}

static int add_leaf(struct orbax_tree *t, const char *repr, struct jval v,
		    const struct orbax_name *prefix, struct orbax_name *name, struct ckpt_err *e)
{
	struct jiter keys = jiter(jval_get(v, "key_metadata"));
	struct jval about = jval_get(v, "value_metadata");
	const char *type = jval_str(jval_get(about, "value_type"));
	struct orbax_leaf l = { .type = type ? type : "" };

	if (!jval_is(jval_get(v, "key_metadata"), J_ARRAY))
		return bad(e, repr, "it has no key_metadata");
	orbax_name_cut(name, prefix->n);
	while (jiter_next(&keys)) {
		struct jval key = jval_get(keys.v, "key");
		int64_t key_type = 0;

		(void)jval_int(jval_get(keys.v, "key_type"), &key_type);
		if (!jval_str(key))
			return bad(e, repr, "a key is not a string");
		if (orbax_name_add(name, jval_str(key), jval_len(key), key_type == 1, e))
			return -e->code;
	}
	/* Before value_type there was only skip_deserialize, with the value in msgpack. */
	l.kind = type ? kind_of(type) : ORBAX_ARRAY;
	return orbax_tree_add(t, &l, name, prefix, e);
}

int orbax_tree_read(struct place *place, const struct orbax_item *item,
		    const struct orbax_name *prefix, struct orbax_tree *ret, struct ckpt_err *e)
{
	CLEANUP(orbax_name_release) struct orbax_name name = ORBAX_NAME_INIT;
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	struct jiter i;
	char path[PATH_MAX];
	int rc = 0;

	ret->arena = (struct arena)ARENA_INIT(MAX_LEAVES);
	if (!item->has_tree)
		return 0;
	(void)snprintf(path, sizeof(path), "%s_METADATA", item->top);
	rc = small_file_json(place, path, MAX_JSON, &d, e);
	if (!rc && prefix->n)
		rc = orbax_name_add(&name, prefix->fqn.data, prefix->fqn.len, false, e);
	if (rc)
		return rc;
	ret->absent_is_damage =
		jval_is(jval_get(jdoc_root(&d), "store_array_data_equal_to_fill_value"), J_TRUE);
	i = jiter(jval_get(jdoc_root(&d), "tree_metadata"));
	while (!rc && jiter_next(&i))
		rc = add_leaf(ret, i.key, i.v, prefix, &name, e);
	if (rc)
		return err_wrap(e, "'%s'", path);
	orbax_tree_sort(ret);
	return 0;
}

void orbax_tree_release(struct orbax_tree *t)
{
	arena_release(&t->arena);
	free(t->v);
	*t = (struct orbax_tree){ 0 };
}

struct orbax_leaf *orbax_tree_find(struct orbax_tree *t, const char *name, size_t len)
{
	size_t i =
		PARTITION_POINT(k, t->n, bytes_compare(t->v[k].name, t->v[k].len, name, len) < 0);

	return i < t->n && bytes_equal(t->v[i].name, t->v[i].len, name, len) ? &t->v[i] : NULL;
}

/* ---- what is not an array ---- */

/* The members of all objects of _strings.json, by object and key: there are as many as leaves. */
struct strings {
	struct jdoc d;
	struct member {
		uint32_t of, i;
	} * v;
	size_t n, cap;
};

static void strings_release(struct strings *s)
{
	jdoc_release(&s->d);
	free(s->v);
}

static int compare_member(const struct strings *s, const struct member *m, uint32_t of,
			  const char *key, size_t len)
{
	size_t n;
	const char *own = jval_key((struct jval){ &s->d, m->i }, &n);

	return m->of != of ? (m->of > of) - (m->of < of) : bytes_compare(own, n, key, len);
}

static int by_key(const void *ap, const void *bp, void *arg)
{
	const struct member *a = ap, *b = bp;
	const struct strings *s = arg;
	size_t len;
	const char *key = jval_key((struct jval){ &s->d, b->i }, &len);

	return compare_member(s, a, b->of, key, len);
}

static int sort_strings(struct strings *s, struct ckpt_err *e)
{
	struct jval object = jdoc_root(&s->d);

	for (size_t at = 0;; object.i = s->v[at++].i) {
		struct jiter i = jiter(object);

		while (i.keyed && jiter_next(&i)) {
			if (!VEC_ROOM(s->v, s->cap, s->n + 1))
				return err_nomem(e);
			s->v[s->n++] = (struct member){ object.i, i.v.i };
		}
		if (at == s->n)
			break;
	}
	if (s->n)
		qsort_r(s->v, s->n, sizeof(*s->v), by_key, s);
	return 0;
}

static struct jval find_string(const struct strings *s, struct jval object, const char *key,
			       size_t len)
{
	size_t i = PARTITION_POINT(k, s->n, compare_member(s, &s->v[k], object.i, key, len) < 0);

	if (i == s->n || compare_member(s, &s->v[i], object.i, key, len) != 0)
		return (struct jval){ 0 };
	return (struct jval){ &s->d, s->v[i].i };
}

/* The value at "/" + name: a slash in the name nests, and ~0 and ~1 stand for ~ and /. */
static struct jval at_pointer(const struct strings *s, const char *name, size_t len)
{
	struct jval v = jdoc_root(&s->d);
	const char *end = name + len;
	char key[1024];

	while (name <= end && jval_is(v, J_OBJECT)) {
		size_t n = 0;

		for (; name < end && *name != '/' && n + 1 < sizeof(key); name++) {
			bool escape = *name == '~' && end - name > 1 &&
				      (name[1] == '0' || name[1] == '1');

			key[n++] = !escape ? *name : name[1] == '0' ? '~' : '/';
			name += escape;
		}
		if (n + 1 == sizeof(key))
			return (struct jval){ 0 };
		v = find_string(s, v, key, n);
		name++;
	}
	return name > end ? v : (struct jval){ 0 };
}

static int report_leaf(const struct orbax_leaf *l, const struct orbax_name *prefix,
		       const struct strings *strings, struct catalog_writer *w, struct ckpt_err *e)
{
	struct jval s = at_pointer(strings, l->name, l->len);
	struct buf fqn CLEANUP(buf_release) = BUF_INIT(2 * ORBAX_MAX_FQN);
	struct buf text CLEANUP(buf_release) = BUF_INIT(CATALOG_MAX_TEXT);
	struct object_item o = { .path = l->path, .loc = { .file = CATALOG_NO_FILE } };
	char why[160];

	buf_add(&fqn, prefix->fqn.data, prefix->fqn.len);
	buf_str(&fqn, prefix->n ? "." : "");
	buf_add(&fqn, l->name, l->len);
	if (l->kind == ORBAX_STRING && jval_str(s)) {
		buf_json_str(&text, jval_str(s), jval_len(s));
		buf_str(&text, "\n");
		o.text = text.data;
		o.text_len = text.len;
	} else if (l->kind == ORBAX_CUSTOM) {
		(void)snprintf(why, sizeof(why), CATALOG_UNSUPPORTED "a leaf of type '%.100s'",
			       l->type);
		o.fault = why;
	} else {
		o.fault = l->kind == ORBAX_STRING
				  ? "_METADATA lists it as a string, but _strings.json lacks it"
				  : "_METADATA lists it, but there is no such array";
	}
	if (fqn.err || text.err)
		return err_nomem(e);
	o.fqn = fqn.data;
	o.fqn_len = fqn.len;
	return catalog_add_object(w, &o, e);
}

int orbax_tree_report(struct orbax_tree *t, struct place *place, const struct orbax_item *item,
		      const struct orbax_name *prefix, struct catalog_writer *w, struct ckpt_err *e)
{
	CLEANUP(strings_release) struct strings strings = { 0 };
	struct place_seen seen;
	char path[PATH_MAX];
	int rc;

	(void)snprintf(path, sizeof(path), "%s_strings.json", item->top);
	rc = place_look(place, path, &seen, e);
	if (rc > 0)
		rc = small_file_json(place, path, MAX_JSON, &strings.d, e);
	if (!rc)
		rc = sort_strings(&strings, e);
	for (size_t i = 0; !rc && i < t->n; i++)
		if (!t->v[i].found && t->v[i].kind != ORBAX_EMPTY &&
		    (!i || by_name(&t->v[i - 1], &t->v[i]) != 0))
			rc = report_leaf(&t->v[i], prefix, &strings, w, e);
	return rc;
}
