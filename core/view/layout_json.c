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
 * tensor: -1, or the mesh axes that split it, the first one outermost, counted from the right. The
 * rank's place in the mesh is its place in rank_list. alias_name, interleaved_parallel and type
 * change nothing. null is as good as absent, or as [] for uneven_shard_mesh_dims.
 *
 * How a split treats what does not divide depends on who wrote the file. The generations without
 * uneven_shard_mesh_dims demand that the parts of a dimension divide it: CKPT_SPLIT_EVEN. Those
 * that write it, be it empty, split by one axis after another: CKPT_SPLIT_CEIL for the axes it
 * lists (these counted from the left), CKPT_SPLIT_BALANCED for others. Where all divides, the three
 * agree.
 *
 * The file is a table of up to millions of small objects, each with a rank_list that may be long,
 * so the objects are walked and those lists read here; the JSON library sees the other values.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "parse/json_text.h"
#include "view/layout_internal.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct walk {
	struct layout *l;
	struct ckpt_err *e;
	const char *name, *text;
	size_t len, at;
	uint32_t rank;
	const char *param;
	struct {
		bool given;
		uint64_t n, times; /* its length, how often the rank is in it */
		uint32_t pos;	   /* and where */
	} list;			   /* the parameter's rank_list */
};

/* ---- objects ---- */

static int bad_json(const struct walk *w, size_t at, const char *what)
{
	return err_set(w->e, EINVAL, "%.150s: byte %zu: %s", w->name, at, what);
}

/* The next byte that is no blank, 0 at the end. */
static char peek(struct walk *w)
{
	while (w->at < w->len && (w->text[w->at] == ' ' || w->text[w->at] == '\n' ||
				  w->text[w->at] == '\t' || w->text[w->at] == '\r'))
		w->at++;
	return w->at < w->len ? w->text[w->at] : 0;
}

static int next_value(struct walk *w, json_t **ret)
{
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY;
	json_error_t why;
	json_t *j;

	j = json_text_load(w->text + w->at, w->len - w->at, flags, &why);
	if (!j && json_text_code(&why, 0))
		return layout_no_memory(w->e);
	if (!j)
		return bad_json(w, w->at + (size_t)why.position, why.text);
	w->at += (size_t)why.position;
	*ret = j;
	return 0;
}

/*
 * The key of an object's next member, *first when the object begins; then w stands at the value. 1,
 * 0 at the object's end, or an error.
 */
static int next_key(struct walk *w, bool *first, json_t **ret)
{
	char c = peek(w);
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
	rc = next_value(w, ret);
	if (rc)
		return rc;
	if (peek(w) != ':') {
		json_decref(*ret);
		*ret = NULL;
		return bad_json(w, w->at, "':' expected");
	}
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

static json_t *get(const json_t *v, const char *key)
{
	json_t *r = json_object_get(v, key);

	return json_is_null(r) ? NULL : r;
}

static bool get_int(const json_t *v, int64_t least, int64_t most, int64_t *ret)
{
	if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > most)
		return false;
	*ret = json_integer_value(v);
	return true;
}

/* At most 64 numbers, none negative. */
static int get_list(const struct walk *w, const json_t *v, const char *key, uint64_t ret[static 64],
		    uint8_t *ret_n)
{
	size_t n = json_array_size(v);

	if (!json_is_array(v) || n > 64)
		return bad(w, "%s is not a list of at most 64 numbers", key);
	for (size_t i = 0; i < n; i++) {
		int64_t x;

		if (!get_int(json_array_get(v, i), 0, INT64_MAX, &x))
			return bad(w, "%s[%zu] is not a number that it may hold", key, i);
		ret[i] = (uint64_t)x;
	}
	*ret_n = (uint8_t)n;
	return 0;
}
_Static_assert(CKPT_MESH_MAX_AXES == 64 && CKPT_MAX_DIMS == 64, "get_list's bound");

static int read_mesh(const struct walk *w, const json_t *v, struct layout_spec *s,
		     uint64_t *ret_ranks)
{
	const json_t *a = get(v, "mesh_shape"), *b = get(v, "device_matrix");
	int rc;

	if (a && b && !json_equal(a, b))
		return bad(w, "mesh_shape and device_matrix differ");
	if (!a && !b)
		return bad(w, "neither mesh_shape nor device_matrix");
	rc = get_list(w, a ? a : b, a ? "mesh_shape" : "device_matrix", s->mesh, &s->n_axes);
	if (!rc && !mesh_size(s->n_axes, s->mesh, ret_ranks))
		rc = bad(w, "its mesh has no ranks, or more than %u", CKPT_MESH_MAX_RANKS);
	return rc;
}

/* Which axes, from the left, are cut as torch does; *ret_even when the file does not say. */
static int read_uneven(const struct walk *w, const json_t *v, const struct layout_spec *s,
		       uint64_t *ret_ceil, bool *ret_even)
{
	static const char key[] = "uneven_shard_mesh_dims";
	const json_t *list = json_object_get(v, key);
	uint64_t axes[64];
	uint8_t n = 0;
	int rc = 0;

	*ret_even = !list;
	*ret_ceil = 0;
	if (list && !json_is_null(list))
		rc = get_list(w, list, key, axes, &n);
	for (size_t i = 0; i < n && !rc; i++) {
		if (axes[i] >= s->n_axes)
			return bad(w, "%s[%zu]: no axis %llu in a mesh of %u", key, i,
				   (unsigned long long)axes[i], s->n_axes);
		*ret_ceil |= (uint64_t)1 << axes[i];
	}
	return rc;
}

static int add_axis(const struct walk *w, const json_t *m, size_t d, struct layout_spec *s)
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

static int read_map(const struct walk *w, const json_t *v, struct layout_spec *s)
{
	const json_t *map = get(v, "tensor_map"), *m;
	uint64_t ceil;
	size_t d, i;
	bool even;
	int rc = 0;

	if (!json_is_array(map) || json_array_size(map) > CKPT_MAX_DIMS)
		return bad(w, "tensor_map is not a list of at most %d entries", CKPT_MAX_DIMS);
	s->n_dims = (uint8_t)json_array_size(map);
	s->has_map = true;
	for (d = 0; d < s->n_dims && !rc; d++) {
		m = json_array_get(map, d);
		if (!json_is_array(m))
			rc = add_axis(w, m, d, s);
		for (i = 0; i < json_array_size(m) && !rc; i++)
			rc = add_axis(w, json_array_get(m, i), d, s);
	}
	if (!rc)
		rc = read_uneven(w, v, s, &ceil, &even);
	for (i = 0; i < s->n && !rc; i++) {
		struct ckpt_placement *p = &s->placements[i];

		p->how = even		       ? CKPT_SPLIT_EVEN
			 : ceil >> p->axis & 1 ? CKPT_SPLIT_CEIL
					       : CKPT_SPLIT_BALANCED;
	}
	return rc;
}

/* Only this rank's place matters; the lists of the others find what is wrong with theirs. */
static int check_rank_list(const struct walk *w, uint64_t ranks)
{
	if (!w->list.given)
		return bad(w, "rank_list is not a list");
	if (w->list.n != ranks)
		return bad(w, "rank_list has %llu ranks, the mesh %llu",
			   (unsigned long long)w->list.n, (unsigned long long)ranks);
	if (w->list.times != 1)
		return bad(w, "the rank is %s in rank_list", w->list.times ? "twice" : "not");
	return 0;
}

static int read_shape(const struct walk *w, const json_t *v, struct layout_spec *s)
{
	const json_t *shape = get(v, "full_shape");
	uint8_t n = 0;
	int rc;

	if (!shape)
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

static int check_others(const struct walk *w, const json_t *v)
{
	const json_t *alias = get(v, "alias_name"), *interleaved = get(v, "interleaved_parallel");
	const json_t *type = get(v, "type");

	if (alias && !json_is_array(alias))
		return bad(w, "alias_name is not a list");
	for (size_t i = 0; i < json_array_size(alias); i++)
		if (!json_is_string(json_array_get(alias, i)))
			return bad(w, "alias_name[%zu] is not a string", i);
	if (interleaved && !json_is_boolean(interleaved))
		return bad(w, "interleaved_parallel is neither true nor false");
	if (type && !json_is_string(type))
		return bad(w, "type is not a string");
	return 0;
}

static int add_param(struct walk *w, const json_t *v)
{
	struct layout *l = w->l;
	struct layout_entry x = { .pos = w->list.pos };
	struct layout_spec s = { 0 };
	uint64_t ranks = 0;
	int rc = check_others(w, v);

	if (!rc && (get(v, "mesh_shape") || get(v, "device_matrix") || get(v, "tensor_map") ||
		    get(v, "rank_list"))) {
		rc = read_mesh(w, v, &s, &ranks);
		if (!rc)
			rc = read_map(w, v, &s);
		if (!rc)
			rc = check_rank_list(w, ranks);
	}
	if (!rc)
		rc = read_shape(w, v, &s);
	if (!rc)
		rc = layout_add_spec(l, &s, &x.spec, w->e);
	if (rc)
		return rc;
	if (l->n_entries == LAYOUT_MAX_ENTRIES)
		return err_set(w->e, EFBIG, "%.150s: more than %zu parameters of all ranks",
			       w->name, LAYOUT_MAX_ENTRIES);
	if (intern_add(&l->params, w->param, strlen(w->param), &x.param) ||
	    layout_grow(&l->entries, l->n_entries, &l->entries_cap, sizeof(x)))
		return layout_no_memory(w->e);
	l->entries[l->n_entries++] = x;
	return 0;
}

/* Decimal numbers without anything else; w stands at the '['. */
static int read_rank_list(struct walk *w)
{
	uint64_t n = 0;
	char c;

	do {
		uint64_t rank = 0;
		size_t start;

		w->at++;
		c = peek(w);
		if (c == ']' && !n)
			break;
		for (start = w->at; c >= '0' && c <= '9' && rank < CKPT_MESH_MAX_RANKS;) {
			rank = rank * 10 + (uint64_t)(c - '0');
			c = ++w->at < w->len ? w->text[w->at] : 0;
		}
		if (w->at == start || (w->text[start] == '0' && w->at > start + 1) ||
		    rank >= CKPT_MESH_MAX_RANKS || ((c = peek(w)) != ',' && c != ']'))
			return bad(w, "rank_list[%llu] is not a number below %u",
				   (unsigned long long)n, CKPT_MESH_MAX_RANKS);
		if (rank == w->rank && !w->list.times++)
			w->list.pos = (uint32_t)n;
		n++;
	} while (c != ']' && n <= CKPT_MESH_MAX_RANKS);
	if (n > CKPT_MESH_MAX_RANKS)
		return bad(w, "rank_list has more than %u ranks", CKPT_MESH_MAX_RANKS);
	w->at++;
	w->list.n = n;
	w->list.given = true;
	return 0;
}

/* The next member of a parameter's object into v: 1, 0 at its end, or an error. */
static int next_member(struct walk *w, bool *first, json_t *v)
{
	CLEANUP(json_decrefp) json_t *key = NULL;
	json_t *value = NULL;
	const char *name;
	int rc = next_key(w, first, &key);

	if (rc <= 0)
		return rc;
	name = json_string_value(key);
	if (json_object_get(v, name))
		return bad(w, "'%.40s' is given twice", name);
	if (!strcmp(name, "rank_list") && peek(w) == '[') {
		rc = read_rank_list(w);
		value = json_true();
	} else {
		rc = next_value(w, &value);
	}
	if (rc)
		return rc;
	return json_object_set_new(v, name, value) ? layout_no_memory(w->e) : 1;
}

static int read_param(struct walk *w)
{
	CLEANUP(json_decrefp) json_t *v = NULL;
	bool first = true;
	int rc;

	if (peek(w) != '{')
		return bad(w, "not an object");
	v = json_object();
	if (!v)
		return layout_no_memory(w->e);
	memset(&w->list, 0, sizeof(w->list));
	while ((rc = next_member(w, &first, v)) > 0)
		;
	return rc ? rc : add_param(w, v);
}

/* ---- a rank ---- */

static int next_param(struct walk *w, bool *first)
{
	CLEANUP(json_decrefp) json_t *key = NULL;
	int rc = next_key(w, first, &key);

	if (rc <= 0)
		return rc;
	w->param = json_string_value(key);
	rc = read_param(w);
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
		w->param = l->params.items[l->entries[i].param]->bytes;
		return bad(w, "listed twice");
	}
	if (l->n_ranks == CKPT_MESH_MAX_RANKS)
		return err_set(w->e, EFBIG, "%.150s: more than %u ranks", w->name,
			       CKPT_MESH_MAX_RANKS);
	if (layout_grow(&l->ranks, l->n_ranks, &l->ranks_cap, sizeof(r)))
		return layout_no_memory(w->e);
	l->ranks[l->n_ranks++] = r;
	return 0;
}

int layout_add_json(struct layout *l, const char *text, size_t len, const char *file,
		    struct ckpt_err *e)
{
	struct walk w = { .l = l, .e = e, .name = file, .text = text, .len = len };
	bool first = true;
	uint32_t number;
	int rc;

	if (intern_add(&l->files, file, strlen(file), &number))
		return layout_no_memory(e);
	for (;;) {
		CLEANUP(json_decrefp) json_t *key = NULL;

		rc = next_key(&w, &first, &key);
		if (rc <= 0)
			break;
		rc = read_rank(&w, number, json_string_value(key));
		if (rc)
			return rc;
	}
	if (!rc && (peek(&w) || w.at < w.len))
		rc = bad_json(&w, w.at, "something behind the end");
	return rc;
}
