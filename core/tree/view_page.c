/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .ckptfs/view: a page that shows the checkpoint, and what it loads while somebody uses it.
 *
 *	index.html                     the page
 *	data.js                        names, shapes, chunks: all that is known without data files
 *	t7.s0.l2.r1.c3.js              tensor 7, matrix 0, level 2: the values of the tile in row 1
 *	                               and column 3 (model/tile.h)
 *	t7.s0.l2.r1.c3.e-4.png         a picture of them, in which colours end at +-2^-4
 *
 * Like .ckptfs/stats.json, none of this is listed beside the checkpoint's files: programs that copy
 * the tree want the checkpoint. The directory itself lists the page; the tiles of a large
 * checkpoint would be millions of names. Names hold numbers of tensors, never their names.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/search.h"
#include "codec/values.h"
#include "index/catalog_query.h"
#include "model/tile.h"
#include "tree/view_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const texts[] = { [VIEW_PAGE] = "index.html", [VIEW_PAGE_DATA] = "data.js" };

/*
 * A node's number (rank and index together) is: the directory, a text, or from FIRST on a file of a
 * tile: FORMS of them for each tile of each tensor.
 */
#define FIRST ((uint64_t)1 << 24)
#define LAST  (((uint64_t)1 << 44) - 1)
enum { FORMS = 512, VALUES = 0, EXPONENT_0 = 1 };
#define MAX_TILES ((LAST - FIRST) / FORMS)

static uint64_t number_of(struct spot p)
{
	return (uint64_t)p.rank << 24 | p.index;
}

static struct spot spot_of(uint64_t number)
{
	return (struct spot){ FACE_VIEW, (uint32_t)(number >> 24), (uint32_t)number & SPOT_DIR };
}

struct file {
	size_t tensor;
	struct tile tile;
	struct tile_form form;
};

/* The tensor's tiles; false: it has none. */
static bool matrix_of(const struct tensor_info *t, struct tile_matrix *ret)
{
	return values_known(t->dtype) && tile_matrix(t->n_dims, t->shape, ret);
}

/* Numbers the tiles of all tensors; tensors for which there are no numbers left have none. */
int view_page_init(struct view *v, struct ckpt_err *e)
{
	uint64_t all = 0;

	v->tiles_at = calloc(v->tensors.n + 1, sizeof(*v->tiles_at));
	if (!v->tiles_at)
		return err_nomem(e);
	for (size_t i = 0; i < v->tensors.n; i++) {
		struct tile_matrix m;
		struct tensor_info t;
		uint64_t n;

		view_tensor(v, i, &t);
		if (matrix_of(&t, &m) && tile_count(&m, &n) && n <= MAX_TILES - all)
			all += n;
		v->tiles_at[i + 1] = all;
	}
	return 0;
}

/* False: it is not a tile's file. */
static bool file_of(const struct view *v, struct spot p, struct file *ret)
{
	uint64_t n = number_of(p), tile;
	unsigned form;
	struct tile_matrix m;
	struct tensor_info t;
	size_t i;

	if (n < FIRST)
		return false;
	tile = (n - FIRST) / FORMS;
	form = (unsigned)((n - FIRST) % FORMS);
	if (tile >= v->tiles_at[v->tensors.n] || form > EXPONENT_0 + TILE_MAX_EXP - TILE_MIN_EXP)
		return false;
	i = PARTITION_POINT(k, v->tensors.n, v->tiles_at[k + 1] <= tile);
	view_tensor(v, i, &t);
	(void)matrix_of(&t, &m); /* it has: there is a tile */
	ret->tensor = i;
	tile_at(&m, tile - v->tiles_at[i], &ret->tile);
	ret->form.picture = form != VALUES;
	ret->form.exponent = form == VALUES ? 0 : (int)form - EXPONENT_0 + TILE_MIN_EXP;
	return true;
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	struct file f;

	if (!v->o.page)
		return VIEW_NONE;
	if (!p.rank)
		return p.index == SPOT_DIR	    ? VIEW_DIR
		       : p.index < ARRAY_LEN(texts) ? VIEW_FILE
						    : VIEW_NONE;
	return file_of(v, p, &f) ? VIEW_FILE : VIEW_NONE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	(void)v;
	(void)p;
	return ARRAY_LEN(texts);
}

static void put_name(const struct file *f, char out[static NAME_CAP])
{
	const struct tile *t = &f->tile;
	int n = snprintf(out, NAME_CAP, "t%zu.s%" PRIu64 ".l%u.r%" PRIu64 ".c%" PRIu64, f->tensor,
			 t->slice, t->level, t->row, t->col);

	if (f->form.picture)
		(void)snprintf(out + n, NAME_CAP - (size_t)n, ".e%d.png", f->form.exponent);
	else
		(void)stpcpy(out + n, ".js");
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	struct file f;

	if (file_of(v, p, &f))
		put_name(&f, out);
	else
		(void)stpcpy(out, texts[p.index]);
}

/* Parses digits. Leading zeros and overflow are found by comparing names. */
static uint64_t take_number(const char **s)
{
	uint64_t n = 0;

	for (; **s >= '0' && **s <= '9'; ++*s)
		if (ckd_mul(&n, n, (uint64_t)10) || ckd_add(&n, n, (uint64_t)(**s - '0')))
			n = UINT64_MAX;
	return n;
}

/* A part of a name: ".l2". */
static bool take(const char **s, const char *key, uint64_t *ret)
{
	size_t len = strlen(key);

	if (strncmp(*s, key, len) != 0)
		return false;
	*s += len;
	*ret = take_number(s);
	return true;
}

static bool parse(const char *s, struct file *ret)
{
	uint64_t tensor, level, e = 0;
	const char *exponent;

	if (!take(&s, "t", &tensor) || !take(&s, ".s", &ret->tile.slice) ||
	    !take(&s, ".l", &level) || !take(&s, ".r", &ret->tile.row) ||
	    !take(&s, ".c", &ret->tile.col) || tensor > SIZE_MAX / 2 || level > UINT16_MAX)
		return false;
	ret->tensor = (size_t)tensor;
	ret->tile.level = (unsigned)level;
	exponent = s;
	ret->form.picture = take(&s, ".e-", &e) || take(&s, ".e", &e);
	if (e > TILE_MAX_EXP - TILE_MIN_EXP)
		return false;
	ret->form.exponent = !strncmp(exponent, ".e-", 3) ? -(int)e : (int)e;
	return true;
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	char canonical[NAME_CAP];
	struct file f = { 0 };
	struct tile_matrix m;
	struct tensor_info t;
	uint64_t n, form;

	for (uint32_t i = 0; i < ARRAY_LEN(texts); i++)
		if (!strcmp(name, texts[i])) {
			*ret = (struct spot){ p.face, 0, i };
			return true;
		}
	if (!parse(name, &f) || f.tensor >= v->tensors.n ||
	    v->tiles_at[f.tensor] == v->tiles_at[f.tensor + 1])
		return false;
	/* Each file has one name. */
	put_name(&f, canonical);
	view_tensor(v, f.tensor, &t);
	if (strcmp(name, canonical) != 0 || !matrix_of(&t, &m) || !tile_number(&m, &f.tile, &n) ||
	    f.form.exponent < TILE_MIN_EXP || f.form.exponent > TILE_MAX_EXP)
		return false;
	form = f.form.picture ? (uint64_t)(f.form.exponent - TILE_MIN_EXP) + EXPONENT_0 : VALUES;
	*ret = spot_of(FIRST + (v->tiles_at[f.tensor] + n) * FORMS + form);
	return true;
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	const char *text = "";
	size_t len = 0;
	struct file f;
	int rc;

	if (file_of(v, p, &f)) {
		struct buf made = BUF_INIT(VFILE_MAX_TEXT);
		char called[NAME_CAP];
		struct tensor_info t;

		put_name(&f, called);
		view_tensor(v, f.tensor, &t);
		rc = v->o.tile(v->o.arg, f.tensor, &t, &f.tile, &f.form, called, &made, e);
		if (!rc)
			vfile_bytes(ret, made.data, made.len);
		buf_release(&made);
		return rc;
	}
	rc = v->o.page(v->o.arg, (enum view_page)p.index, &text, &len, e);
	if (!rc)
		vfile_lent(ret, text, len);
	return rc;
}

bool view_page_size(const struct view *v, struct spot p, uint64_t *ret)
{
	char called[NAME_CAP];
	struct tensor_info t;
	struct file f;

	if (p.face != FACE_VIEW || !file_of(v, p, &f))
		return false;
	put_name(&f, called);
	view_tensor(v, f.tensor, &t);
	*ret = v->o.tile_size(&t, &f.tile, &f.form, called);
	return true;
}

const struct face face_view = { "view", false, kind, entries, NULL, name, lookup, describe };
