/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/ls.h"

#include "cmd/cmd.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_LEVELS = 64, /* deeper levels form one long name */
	MAX_KINDS = 8,	 /* neighbours that a layer is compared with */
	MAX_SPANS = 6,	 /* number ranges shown in braces */
	MAX_DIGITS = 18, /* of a number that is folded */
};

/* Equal members of a level: items [lo, hi), and the numbers of the members folded into them. */
struct child {
	size_t lo, hi, end; /* end: of its component in the names */
	bool is_leaf;
	uint64_t *numbers; /* n_numbers, ascending; empty if the label is not a number */
	size_t n_numbers, cap;
	uint64_t bytes;
};

struct children {
	struct child *v;
	size_t n, cap;
};

struct line {
	const char *label; /* in a form fit for a terminal */
	size_t level;
	const struct ls_item *leaf; /* NULL: there are levels below */
	uint64_t bytes, elements, tensors, objects;
};

struct ls_tree {
	struct ls_item *items;
	const struct ls_look *look;
	struct line *lines;
	size_t n_lines, cap_lines;
	struct arena a;
};

static void release(struct ls_tree *t)
{
	free(t->lines);
	arena_release(&t->a);
}

static void release_children(struct children *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->v[i].numbers);
	free(c->v);
}

/* The end of the component that begins at `from`: a dot with text on both sides. */
static size_t component_end(const struct ls_item *i, size_t from)
{
	for (size_t at = from + 1; at + 1 < i->fqn_len; at++)
		if (i->fqn[at] == '.')
			return at;
	return i->fqn_len;
}

/* Natural order, component by component, so that names with a common component are together. */
static int by_components(const void *ap, const void *bp)
{
	const struct ls_item *a = ap, *b = bp;
	size_t at = 0, bt = 0;

	while (at < a->fqn_len && bt < b->fqn_len) {
		size_t ae = component_end(a, at), be = component_end(b, bt);
		int c = text_natural_cmp(a->fqn + at, ae - at, b->fqn + bt, be - bt);

		if (c)
			return c;
		at = ae + 1;
		bt = be + 1;
	}
	if (at < a->fqn_len || bt < b->fqn_len)
		return at < a->fqn_len ? 1 : -1;
	return a->is_object - b->is_object;
}

/* The number that a component is, as programs write numbers. */
static bool is_number(const char *s, size_t n, uint64_t *ret)
{
	if (!n || n > MAX_DIGITS || (n > 1 && *s == '0'))
		return false;
	for (*ret = 0; n; s++, n--) {
		if (*s < '0' || *s > '9')
			return false;
		*ret = *ret * 10 + (uint64_t)(*s - '0');
	}
	return true;
}

static bool same_item(const struct ls_item *a, size_t a_from, const struct ls_item *b,
		      size_t b_from)
{
	return a->fqn_len - a_from == b->fqn_len - b_from && a->is_object == b->is_object &&
	       !memcmp(a->fqn + a_from, b->fqn + b_from, a->fqn_len - a_from) &&
	       !strcmp(a->dtype, b->dtype) && a->n_dims == b->n_dims &&
	       !memcmp(a->n_dims ? a->shape : &(uint64_t){ 0 },
		       b->n_dims ? b->shape : &(uint64_t){ 0 }, a->n_dims * sizeof(*a->shape)) &&
	       !a->fault == !b->fault;
}

/* Both are in the same order, so that corresponding items have the same position. */
static bool same_child(const struct ls_tree *t, const struct child *a, const struct child *b)
{
	if (a->is_leaf != b->is_leaf || a->hi - a->lo != b->hi - b->lo)
		return false;
	for (size_t i = 0; i < a->hi - a->lo; i++)
		if (!same_item(&t->items[a->lo + i], a->end, &t->items[b->lo + i], b->end))
			return false;
	return true;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return ckd_add(&a, a, b) ? UINT64_MAX : a;
}

/* b becomes a part of a, whose items then stand for both. */
static int fold(struct ls_tree *t, struct child *a, const struct child *b, uint64_t number)
{
	if (!VEC_ROOM(a->numbers, a->cap, a->n_numbers + 1))
		return -ENOMEM;
	a->numbers[a->n_numbers++] = number;
	for (size_t i = 0; b && i < a->hi - a->lo; i++) {
		struct ls_item *to = &t->items[a->lo + i], *from = &t->items[b->lo + i];

		to->bytes = sum(to->bytes, from->bytes);
		to->elements = sum(to->elements, from->elements);
		to->copies += from->copies;
		from->bytes = from->elements = from->copies = 0; /* it is still below the parent */
	}
	return 0;
}

/* c's component begins at `from`. */
static int add_child(struct ls_tree *t, struct children *to, const struct child *c, size_t from)
{
	uint64_t number;
	bool numbered = is_number(t->items[c->lo].fqn + from, c->end - from, &number);

	for (size_t i = to->n; numbered && i && i + MAX_KINDS > to->n; i--)
		if (to->v[i - 1].n_numbers && same_child(t, &to->v[i - 1], c))
			return fold(t, &to->v[i - 1], c, number);
	if (!VEC_ROOM(to->v, to->cap, to->n + 1))
		return -ENOMEM;
	to->v[to->n++] = *c;
	return numbered ? fold(t, &to->v[to->n - 1], NULL, number) : 0;
}

/* Splits items [lo, hi) by their component at `from`; deep: no further levels. */
static int split(struct ls_tree *t, size_t lo, size_t hi, size_t from, bool deep,
		 struct children *ret)
{
	int rc = 0;

	for (size_t i = lo; !rc && i < hi;) {
		const struct ls_item *first = &t->items[i];
		struct child c = { .lo = i++ };

		c.end = deep ? first->fqn_len : component_end(first, from);
		c.is_leaf = c.end == first->fqn_len;
		while (!c.is_leaf && i < hi && component_end(&t->items[i], from) == c.end &&
		       !memcmp(t->items[i].fqn + from, first->fqn + from, c.end - from))
			i++;
		c.hi = i;
		rc = add_child(t, ret, &c, from);
	}
	for (size_t k = 0; k < ret->n; k++)
		for (size_t i = ret->v[k].lo; i < ret->v[k].hi; i++)
			ret->v[k].bytes = sum(ret->v[k].bytes, t->items[i].bytes);
	return rc;
}

static int by_size(const void *ap, const void *bp)
{
	const struct child *a = ap, *b = bp;

	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	return a->lo < b->lo ? -1 : 1;
}

/* "{0..2,4..6}", "{3..47..4}" */
static void add_numbers(struct buf *b, const uint64_t *v, size_t n)
{
	const char *comma = "";

	if (n == 1) {
		buf_u64(b, *v);
		return;
	}
	buf_str(b, "{");
	for (size_t i = 0, spans = 0; i < n; spans++) {
		uint64_t step = i + 1 < n ? v[i + 1] - v[i] : 0;
		size_t last = i;

		if (spans == MAX_SPANS) {
			buf_str(b, ",...");
			break;
		}
		while (last + 1 < n && v[last + 1] - v[last] == step)
			last++;
		if (last - i < 2) /* two numbers are not a series */
			last = i;
		buf_printf(b, "%s%" PRIu64, comma, v[i]);
		if (last > i)
			buf_printf(b, "..%" PRIu64, v[last]);
		if (last > i && step != 1)
			buf_printf(b, "..%" PRIu64, step);
		comma = ",";
		i = last + 1;
	}
	buf_str(b, "}");
}

static int add_line(struct ls_tree *t, const struct child *c, size_t level, const struct buf *label)
{
	const char *text = arena_dup(&t->a, label->data, label->len);
	struct line *l;

	if (label->err || !text || !VEC_ROOM(t->lines, t->cap_lines, t->n_lines + 1))
		return -ENOMEM;
	l = &t->lines[t->n_lines++];
	*l = (struct line){ .label = text,
			    .level = level,
			    .leaf = c->is_leaf ? &t->items[c->lo] : NULL };
	for (size_t i = c->lo; i < c->hi; i++) {
		const struct ls_item *x = &t->items[i];

		l->bytes = sum(l->bytes, x->bytes);
		l->elements = sum(l->elements, x->elements);
		*(x->is_object ? &l->objects : &l->tensors) += x->copies;
	}
	return 0;
}

static int build_level(struct ls_tree *t, const struct children *of, size_t from, size_t levels,
		       size_t level);

/* Builds the line of a child, which includes only children below it, and the lines of its other
 * descendants. */
static int build_child(struct ls_tree *t, const struct child *c, size_t from, size_t levels,
		       size_t level)
{
	struct children below CLEANUP(release_children) = { 0 };
	struct buf label CLEANUP(buf_release) = BUF_INIT(SIZE_MAX);
	struct child at = *c; /* its numbers are c's */
	uint64_t copies = 1;  /* no more than there are items */
	int rc;

	for (;; levels++) {
		if (at.n_numbers)
			add_numbers(&label, at.numbers, at.n_numbers);
		else
			cmd_add_fqn(&label, t->items[at.lo].fqn + from, at.end - from);
		if (at.n_numbers)
			copies *= at.n_numbers;
		if (at.is_leaf)
			break;
		release_children(&below);
		below = (struct children){ 0 };
		rc = split(t, at.lo, at.hi, at.end + 1, levels >= MAX_LEVELS, &below);
		if (rc)
			return rc;
		if (below.n > 1)
			break;
		from = at.end + 1;
		at = below.v[0];
		buf_str(&label, ".");
	}
	if (copies > 1)
		buf_printf(&label, " x%" PRIu64, copies);
	rc = add_line(t, &at, level, &label);
	if (rc || at.is_leaf || (t->look->depth && level + 1 >= t->look->depth))
		return rc;
	return build_level(t, &below, at.end + 1, levels + 1, level + 1);
}

static int build_level(struct ls_tree *t, const struct children *of, size_t from, size_t levels,
		       size_t level)
{
	int rc = 0;

	if (t->look->by_size && of->n)
		qsort(of->v, of->n, sizeof(*of->v), by_size);
	for (size_t i = 0; !rc && i < of->n; i++)
		rc = build_child(t, &of->v[i], from, levels, level);
	return rc;
}

/* ---- lines ---- */

struct columns {
	int bytes, elements, tensors;
};

static int wider(int width, const struct buf *b)
{
	return b->len > (size_t)width ? (int)min_u64(b->len, 64) : width;
}

static void add_elements(struct buf *b, const struct line *l, bool human)
{
	char short_[16], *billions;

	if (!l->tensors) {
		buf_str(b, "-");
	} else if (human) {
		(void)text_count(l->elements, short_);
		billions = strchr(short_, 'B'); /* which are bytes in the column beside it */
		if (billions)
			*billions = 'G';
		buf_str(b, short_);
	} else {
		buf_u64(b, l->elements);
	}
}

static void add_tensors(struct buf *b, const struct line *l)
{
	if (l->tensors)
		buf_u64(b, l->tensors);
	else
		buf_str(b, "-");
}

static struct columns measure(const struct ls_tree *t, struct buf *b)
{
	struct columns c = { 0 };

	if (t->look->header)
		c = (struct columns){ strlen("BYTES"), strlen("ELEMENTS"), strlen("TENSORS") };
	for (size_t i = 0; i < t->n_lines; i++) {
		b->len = 0;
		ls_add_bytes(b, t->lines[i].bytes, t->look->human);
		c.bytes = wider(c.bytes, b);
		b->len = 0;
		add_elements(b, &t->lines[i], t->look->human);
		c.elements = wider(c.elements, b);
		b->len = 0;
		add_tensors(b, &t->lines[i]);
		c.tensors = wider(c.tensors, b);
	}
	b->len = 0;
	return c;
}

/* Right-aligns the text added since `start` in its column. */
static void to_right(struct buf *b, size_t start, int width)
{
	size_t len = b->len - start, pad = (size_t)width > len ? (size_t)width - len : 0;

	if (!buf_room(b, pad))
		return;
	memmove(b->data + start + pad, b->data + start, len);
	memset(b->data + start, ' ', pad);
	b->len += pad;
	buf_str(b, "  ");
}

static void add_text(struct buf *b, const struct line *l, const struct columns *c,
		     const struct ls_look *look)
{
	size_t start = b->len;

	ls_add_bytes(b, l->bytes, look->human);
	to_right(b, start, c->bytes);
	start = b->len;
	add_elements(b, l, look->human);
	to_right(b, start, c->elements);
	start = b->len;
	add_tensors(b, l);
	to_right(b, start, c->tensors);
	for (size_t i = 0; i < l->level; i++)
		buf_str(b, "  ");
	buf_str(b, l->leaf ? "" : cmd_style(look->color, STYLE_STRONG));
	buf_str(b, l->label);
	buf_str(b, l->leaf ? "" : cmd_style(look->color, STYLE_PLAIN));
	if (l->leaf) {
		buf_printf(b, "  %s", l->leaf->dtype);
		if (!l->leaf->is_object) {
			buf_str(b, " ");
			ls_add_shape(b, l->leaf);
		}
		if (l->leaf->fault)
			buf_printf(b, "  %s(%s)%s", cmd_style(look->color, STYLE_BAD),
				   l->leaf->fault, cmd_style(look->color, STYLE_PLAIN));
	}
	buf_str(b, "\n");
}

static int print_lines(const struct ls_tree *t, struct buf *b)
{
	const struct ls_look *look = t->look;
	struct columns c = measure(t, b);
	int rc = 0;

	if (look->header)
		buf_printf(b, "%s%*s  %*s  %*s  NAME%s\n", cmd_style(look->color, STYLE_STRONG),
			   c.bytes, "BYTES", c.elements, "ELEMENTS", c.tensors, "TENSORS",
			   cmd_style(look->color, STYLE_PLAIN));
	for (size_t i = 0; !rc && i < t->n_lines; i++) {
		add_text(b, &t->lines[i], &c, look);
		rc = cmd_print(b);
	}
	return rc;
}

int ls_tree(struct ls_item *items, size_t n, const struct ls_look *look, struct buf *b)
{
	struct ls_tree t CLEANUP(
		release) = { .items = items, .look = look, .a = ARENA_INIT(SIZE_MAX) };
	struct children top CLEANUP(release_children) = { 0 };
	struct ckpt_err e = { 0 };

	if (n)
		qsort(items, n, sizeof(*items), by_components);
	if (split(&t, 0, n, 0, false, &top) || build_level(&t, &top, 0, 1, 0)) {
		(void)err_nomem(&e);
		return cmd_fail(&e);
	}
	return print_lines(&t, b);
}
