/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_json - HyperParallel's *.layout files.
 *
 *	{ "0": { "model.w": { "mesh_shape": [2, 4], "tensor_map": [[1, 0], -1],
 *			      "rank_list": [0, 1, 2, 3, 4, 5, 6, 7], "alias_name": ["dp", "tp"],
 *			      "interleaved_parallel": false, "uneven_shard_mesh_dims": [0],
 *			      "type": "torch.float32", "full_shape": [10, 3] }, ... }, ... }
 *
 * mesh_shape is also called device_matrix. tensor_map has one entry for each dimension of the
 * tensor: -1, or the mesh axes that split it, the first one outermost, counted from the right. A
 * rank's position in the mesh is its position in rank_list. alias_name, interleaved_parallel and
 * type are ignored. null is the same as absent, or as [] for uneven_shard_mesh_dims.
 *
 * How a split handles remainders depends on the version that wrote the file. Versions without
 * uneven_shard_mesh_dims require the parts to divide the dimension: CKPT_SPLIT_EVEN. Those that
 * write it, even if empty, split by one axis after another: CKPT_SPLIT_CEIL for the axes it lists
 * (counted from the left), CKPT_SPLIT_BALANCED for others. If there are no remainders, the three
 * agree.
 *
 * The file is a table of up to millions of small objects, each with a rank_list that may be long,
 * so this code walks the table and parses one object at a time.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "base/vec.h"
#include "layout/layout_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct walk {
	struct layout *l;
	struct ckpt_err *e;
	const char *name;
	char *text;
	size_t len, at;
	uint32_t rank;
	const char *param;
	struct jdoc value; /* the last that was parsed */
};

/* Values of one parameter: a list of all ranks, and a few more. */
#define MAX_VALUES ((size_t)CKPT_MESH_MAX_RANKS + 4096)

/* ---- objects ---- */

static int bad_json(const struct walk *w, size_t at, const char *what)
{
	return err_set(w->e, EINVAL, "%.150s: byte %zu: %s", w->name, at, what);
}

/* The next non-blank byte, 0 at the end. */
static char peek(struct walk *w)
{
	while (w->at < w->len && (w->text[w->at] == ' ' || w->text[w->at] == '\n' ||
				  w->text[w->at] == '\t' || w->text[w->at] == '\r'))
		w->at++;
	return w->at < w->len ? w->text[w->at] : 0;
}

static int next_value(struct walk *w, struct jval *ret)
{
	struct ckpt_err why;

	if (jdoc_parse(&w->value, w->text + w->at, w->len - w->at, JDOC_ANY | JDOC_PREFIX, &why)) {
		if (why.code == ENOMEM)
			return err_nomem(w->e);
		return bad_json(w, w->at + w->value.at, why.msg);
	}
	w->at += w->value.at;
	*ret = jdoc_root(&w->value);
	return 0;
}

/*
 * Reads the key of an object's next member, setting *first at the object's start, and stops at the
 * value. 1, 0 at the object's end, or an error.
 */
static int next_key(struct walk *w, bool *first, const char **ret)
{
	char c = peek(w);
	struct jval key;
	int rc;

	if (*first && c != '{')
		return bad_json(w, w->at, "'{' expected");
	if (!*first && c != ',' && c != '}')
		return bad_json(w, w->at, "',' or '}' expected");
	w->at++;
	if (c == '}')
		return 0;
	c = peek(w);
	if (*first && c == '}') {
		w->at++;
		return 0;
	}
	*first = false;
	if (c != '"')
		return bad_json(w, w->at, "a string expected");
	rc = next_value(w, &key);
	if (rc)
		return rc;
	*ret = jval_str(key); /* it stays in the text */
	if (peek(w) != ':')
		return bad_json(w, w->at, "':' expected");
	w->at++;
	(void)peek(w);
	return 1;
}

/* ---- a parameter ---- */

static int bad(const struct walk *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int bad(const struct walk *w, const char *fmt, ...)
{
	char param[130], what[120];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return err_set(w->e, EINVAL, "%.100s: rank %u: '%s': %s", w->name, w->rank,
		       text_show(w->param, strlen(w->param), param, sizeof(param)), what);
}

static struct jval get(struct jval v, const char *key)
{
	return jval_given(jval_get(v, key));
}

static bool get_int(struct jval v, int64_t least, int64_t most, int64_t *ret)
{
	return jval_int(v, ret) && *ret >= least && *ret <= most;
}

/* At most 64 non-negative numbers. */
static int get_list(const struct walk *w, struct jval v, const char *key, uint64_t ret[static 64],
		    uint8_t *ret_n)
{
	struct jiter i = jiter(v);
	int64_t x;
	uint8_t n = 0;

	if (!jval_is(v, J_ARRAY) || jval_size(v) > 64)
		return bad(w, "%s is not a list of at most 64 numbers", key);
	for (; jiter_next(&i); ret[n++] = (uint64_t)x)
		if (!get_int(i.v, 0, INT64_MAX, &x))
			return bad(w, "%s[%u] is not a valid number", key, n);
	*ret_n = n;
	return 0;
}
_Static_assert(CKPT_MESH_MAX_AXES == 64 && CKPT_MAX_DIMS == 64, "get_list's bound");

/* The mesh, which has two possible names. */
static int read_mesh(const struct walk *w, struct jval v, struct layout_spec *s,
		     uint64_t *ret_ranks)
{
	static const char *const names[] = { "mesh_shape", "device_matrix" };
	uint64_t other[64];
	uint8_t n;
	int found = -1, rc = 0;

	for (int i = 0; i < 2 && !rc; i++) {
		struct jval mesh = get(v, names[i]);

		if (!mesh.d)
			continue;
		rc = get_list(w, mesh, names[i], other, &n);
		if (!rc && found >= 0 && (n != s->n_axes || memcmp(s->mesh, other, n * 8) != 0))
			rc = bad(w, "mesh_shape and device_matrix differ");
		if (rc)
			return rc;
		memcpy(s->mesh, other, n * sizeof(*other));
		s->n_axes = n;
		found = i;
	}
	if (found < 0)
		return bad(w, "neither mesh_shape nor device_matrix");
	if (!mesh_size(s->n_axes, s->mesh, ret_ranks))
		rc = bad(w, "its mesh has no ranks, or more than %u", CKPT_MESH_MAX_RANKS);
	return rc;
}

/* Which axes, from the left, are split as torch does; *ret_even if the file does not say. */
static int read_uneven(const struct walk *w, struct jval v, const struct layout_spec *s,
		       uint64_t *ret_ceil, bool *ret_even)
{
	static const char key[] = "uneven_shard_mesh_dims";
	struct jval list = jval_get(v, key);
	uint64_t axes[64];
	uint8_t n = 0;
	int rc = 0;

	*ret_even = !list.d;
	*ret_ceil = 0;
	if (!jval_is_null(list))
		rc = get_list(w, list, key, axes, &n);
	for (size_t i = 0; i < n && !rc; i++) {
		if (axes[i] >= s->n_axes)
			return bad(w, "%s[%zu]: no axis %llu in a mesh of %u", key, i,
				   (unsigned long long)axes[i], s->n_axes);
		*ret_ceil |= (uint64_t)1 << axes[i];
	}
	return rc;
}

static int add_axis(const struct walk *w, struct jval m, size_t d, struct layout_spec *s)
{
	int64_t from_right;
	uint8_t axis;

	if (!get_int(m, -1, s->n_axes - 1, &from_right))
		return bad(w, "tensor_map[%zu] does not name axes of a mesh of %u", d, s->n_axes);
	if (from_right < 0)
		return 0;
	axis = (uint8_t)(s->n_axes - 1 - from_right);
	for (size_t i = 0; i < s->n; i++)
		if (s->placements[i].axis == axis)
			return bad(w, "tensor_map uses axis %d twice", (int)from_right);
	s->placements[s->n++] = (struct ckpt_placement){ .axis = axis, .dim = (int8_t)d };
	return 0;
}

static int read_map(const struct walk *w, struct jval v, struct layout_spec *s)
{
	struct jval map = get(v, "tensor_map");
	uint64_t ceil;
	size_t d = 0;
	bool even;
	int rc = 0;

	if (!jval_is(map, J_ARRAY) || jval_size(map) > CKPT_MAX_DIMS)
		return bad(w, "tensor_map is not a list of at most %d entries", CKPT_MAX_DIMS);
	s->n_dims = (uint8_t)jval_size(map);
	s->has_map = true;
	for (struct jiter i = jiter(map); !rc && jiter_next(&i); d++) {
		struct jiter axes = jiter(i.v);

		if (!jval_is(i.v, J_ARRAY))
			rc = add_axis(w, i.v, d, s);
		else
			while (!rc && jiter_next(&axes))
				rc = add_axis(w, axes.v, d, s);
	}
	if (!rc)
		rc = read_uneven(w, v, s, &ceil, &even);
	for (size_t i = 0; i < s->n && !rc; i++) {
		struct ckpt_placement *p = &s->placements[i];

		p->how = even		       ? CKPT_SPLIT_EVEN
			 : ceil >> p->axis & 1 ? CKPT_SPLIT_CEIL
					       : CKPT_SPLIT_BALANCED;
	}
	return rc;
}

/* Only this rank's position matters; errors in other ranks' lists are found when those are read. */
static int read_rank_list(const struct walk *w, struct jval v, uint64_t ranks, uint32_t *ret_pos)
{
	struct jval list = get(v, "rank_list");
	struct jiter i = jiter(list);
	uint64_t n = 0, times = 0;
	int64_t rank;

	if (!jval_is(list, J_ARRAY))
		return bad(w, "rank_list is not a list");
	for (; jiter_next(&i); n++) {
		if (!get_int(i.v, 0, CKPT_MESH_MAX_RANKS - 1, &rank))
			return bad(w, "rank_list[%llu] is not a number below %u",
				   (unsigned long long)n, CKPT_MESH_MAX_RANKS);
		if (rank == w->rank && !times++)
			*ret_pos = (uint32_t)n;
	}
	if (n != ranks)
		return bad(w, "rank_list has %llu ranks, the mesh %llu", (unsigned long long)n,
			   (unsigned long long)ranks);
	if (times != 1)
		return bad(w, "the rank is %s in rank_list", times ? "twice" : "not");
	return 0;
}

static int read_shape(const struct walk *w, struct jval v, struct layout_spec *s)
{
	struct jval shape = get(v, "full_shape");
	uint8_t n = 0;
	int rc;

	if (!shape.d)
		return 0;
	rc = get_list(w, shape, "full_shape", s->shape, &n);
	if (rc)
		return rc;
	if (s->has_map && n != s->n_dims)
		return bad(w, "tensor_map has %u entries, full_shape %u", s->n_dims, n);
	s->n_dims = n;
	s->has_shape = true;
	return 0;
}

static int check_others(const struct walk *w, struct jval v)
{
	struct jval alias = get(v, "alias_name"), interleaved = get(v, "interleaved_parallel");
	struct jval type = get(v, "type");
	struct jiter i = jiter(alias);

	if (alias.d && !jval_is(alias, J_ARRAY))
		return bad(w, "alias_name is not a list");
	for (size_t n = 0; jiter_next(&i); n++)
		if (!jval_is(i.v, J_STRING))
			return bad(w, "alias_name[%zu] is not a string", n);
	if (interleaved.d && !jval_is_bool(interleaved))
		return bad(w, "interleaved_parallel is neither true nor false");
	if (type.d && !jval_is(type, J_STRING))
		return bad(w, "type is not a string");
	return 0;
}

static int add_param(struct walk *w, struct jval v)
{
	struct layout *l = w->l;
	struct layout_entry x = { 0 };
	struct layout_spec s = { 0 };
	uint64_t ranks = 0;
	int rc = check_others(w, v);

	if (!rc && (get(v, "mesh_shape").d || get(v, "device_matrix").d || get(v, "tensor_map").d ||
		    get(v, "rank_list").d)) {
		rc = read_mesh(w, v, &s, &ranks);
		if (!rc)
			rc = read_map(w, v, &s);
		if (!rc)
			rc = read_rank_list(w, v, ranks, &x.pos);
	}
	if (!rc)
		rc = read_shape(w, v, &s);
	if (!rc)
		rc = layout_in_file(layout_add_spec(l, &s, &x.spec, w->e), w->e, w->name);
	if (!rc && l->n_entries == LAYOUT_MAX_ENTRIES)
		rc = err_set(w->e, EFBIG, "%.150s: more than %zu parameters of all ranks", w->name,
			     LAYOUT_MAX_ENTRIES);
	if (!rc)
		rc = layout_in_file(
			layout_intern(l->params, w->param, strlen(w->param), &x.param, w->e), w->e,
			w->name);
	if (rc)
		return rc;
	if (!VEC_ROOM(l->entries, l->entries_cap, l->n_entries + 1))
		return err_nomem(w->e);
	l->entries[l->n_entries++] = x;
	return 0;
}

/* ---- a rank ---- */

static int next_param(struct walk *w, bool *first)
{
	struct jval v;
	int rc = next_key(w, first, &w->param);

	if (rc <= 0)
		return rc;
	if (peek(w) != '{')
		return bad(w, "not an object");
	rc = next_value(w, &v);
	if (!rc)
		rc = add_param(w, v);
	return rc ? rc : 1;
}

static int by_param(const void *ap, const void *bp)
{
	const struct layout_entry *a = ap, *b = bp;

	return a->param < b->param ? -1 : a->param > b->param;
}

static int read_rank(struct walk *w, uint32_t file, const char *key)
{
	struct layout *l = w->l;
	struct layout_rank r = { .file = file, .first = (uint32_t)l->n_entries };
	uint64_t number;
	bool first = true;
	char tmp[40];
	int rc;

	if (!layout_number(key, CKPT_MESH_MAX_RANKS, &number) || number >= CKPT_MESH_MAX_RANKS ||
	    (*key == '0' && key[1]))
		return err_set(w->e, EINVAL, "%.150s: '%s' is not a rank, a number below %u",
			       w->name, text_show(key, strlen(key), tmp, sizeof(tmp)),
			       CKPT_MESH_MAX_RANKS);
	w->rank = r.number = (uint32_t)number;
	while ((rc = next_param(w, &first)) > 0)
		;
	if (rc)
		return rc;
	r.n = (uint32_t)l->n_entries - r.first;
	if (r.n)
		qsort(l->entries + r.first, r.n, sizeof(*l->entries), by_param);
	for (uint32_t i = r.first + 1; i < r.first + r.n; i++) {
		if (l->entries[i].param != l->entries[i - 1].param)
			continue;
		w->param = pk_string(l->params, l->entries[i].param)->data;
		return bad(w, "listed twice");
	}
	if (l->n_ranks == CKPT_MESH_MAX_RANKS)
		return err_set(w->e, EFBIG, "%.150s: more than %u ranks", w->name,
			       CKPT_MESH_MAX_RANKS);
	if (!VEC_ROOM(l->ranks, l->ranks_cap, l->n_ranks + 1))
		return err_nomem(w->e);
	l->ranks[l->n_ranks++] = r;
	return 0;
}

int layout_add_json(struct layout *l, char *text, size_t len, const char *file, struct ckpt_err *e)
{
	struct walk w = {
		.l = l, .e = e, .name = file, .text = text, .len = len, .value.max = MAX_VALUES
	};
	bool first = true;
	const char *key;
	uint32_t number;
	int rc = layout_in_file(layout_intern(l->files, file, strlen(file), &number, e), e, file);

	while (!rc && (rc = next_key(&w, &first, &key)) > 0)
		rc = read_rank(&w, number, key);
	if (!rc && (peek(&w) || w.at < w.len))
		rc = bad_json(&w, w.at, "data after the end");
	jdoc_release(&w.value);
	return rc;
}
