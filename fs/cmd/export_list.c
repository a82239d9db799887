/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/export_list.h"
#include "base/search.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct maker {
	struct ckpt *c;
	struct export_list *l;
	XXH3_state_t *hash;
	ckpt_node info; /* node of .ckptfs/info.json, or CKPT_ROOT */
};

CLEANUP_POINTER(cleanup_hash, XXH3_state_t, XXH3_freeState)

uint64_t export_units_of(uint64_t size)
{
	return size ? (size - 1) / EXPORT_UNIT + 1 : 1;
}

static int hash_info(struct maker *m, struct ckpt_err *e)
{
	autofree char *text = NULL;
	size_t len;
	int rc = ckpt_info_json(m->c, &text, &len, e);

	if (!rc)
		(void)XXH3_128bits_update(m->hash, text, len);
	return rc;
}

static int add_file(struct maker *m, uint32_t dir, uint64_t pos, ckpt_node node, uint64_t size,
		    struct ckpt_err *e)
{
	struct export_list *l = m->l;
	uint64_t units = export_units_of(size);
	struct export_file *f;

	if (node == m->info && hash_info(m, e))
		return -e->code;
	if (!VEC_ROOM(l->files, l->cap_files, l->n_files + 1))
		return err_sys(e, ENOMEM, "list of files");
	if (units > UINT32_MAX || ckd_add(&l->bytes, l->bytes, size))
		return err_set(e, EFBIG, "list of files: more than 2^64 bytes in all");
	f = &l->files[l->n_files++];
	f->size = size;
	f->pos = pos;
	f->first = l->units;
	f->dir = dir;
	atomic_init(&f->left, (uint32_t)units);
	l->units += units;
	return 0;
}

/* Adds a directory or, with a target, a link. */
static int add_dir(struct maker *m, const char *path, ckpt_node node, const char *target,
		   struct ckpt_err *e)
{
	struct export_list *l = m->l;
	struct export_dir *d;

	if (l->n_dirs == EXPORT_TOP - 1)
		return err_set(e, EFBIG, "list of files: too many directories");
	if (!VEC_ROOM(l->dirs, l->cap_dirs, l->n_dirs + 1))
		return err_sys(e, ENOMEM, "list of files");
	d = &l->dirs[l->n_dirs++];
	*d = (struct export_dir){ .node = node,
				  .path = strdup(path),
				  .target = target ? strdup(target) : NULL };
	return d->path && (d->target || !target) ? 0 : err_sys(e, ENOMEM, "list of files");
}

static int add_entry(struct maker *m, uint32_t dir, uint64_t pos, const char *name, ckpt_node node,
		     struct ckpt_err *e)
{
	const char *parent = m->l->dirs[dir].path;
	struct {
		uint64_t dir, size, is_dir, is_link;
	} seen = { .dir = dir };
	char target[CKPT_NAME_MAX + 1];
	autofree char *path = NULL;
	struct ckpt_stat st;

	if (ckpt_stat(m->c, node, &st, e))
		return -e->code;
	seen.size = st.is_dir ? 0 : st.size;
	seen.is_dir = st.is_dir;
	seen.is_link = st.is_link;
	(void)XXH3_128bits_update(m->hash, &seen, sizeof(seen));
	(void)XXH3_128bits_update(m->hash, name, strlen(name) + 1);
	if (!st.is_dir && !st.is_link)
		return add_file(m, dir, pos, node, st.size, e);
	path = text_format("%s%s%s", parent, *parent ? "/" : "", name);
	if (!path)
		return err_sys(e, ENOMEM, "list of files");
	if (st.is_link && ckpt_readlink(m->c, node, target, e) < 0)
		return -e->code;
	return add_dir(m, path, node, st.is_link ? target : NULL, e);
}

/* The list of directories is also the queue of directories that are yet to be read. */
static int add_tree(struct maker *m, ckpt_node top, struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	ckpt_node node;
	int rc = add_dir(m, "", top, NULL, e);

	for (uint32_t d = 0; !rc && d < m->l->n_dirs; d++)
		for (uint64_t pos = 0; !rc && !m->l->dirs[d].target &&
				       !ckpt_entry(m->c, m->l->dirs[d].node, pos, name, &node);
		     pos++)
			rc = add_entry(m, d, pos, name, node, e);
	return rc;
}

int export_list_make(struct ckpt *c, const struct ckpt_stat *top, struct export_list *ret,
		     struct ckpt_err *e)
{
	XXH3_state_t *hash CLEANUP(cleanup_hash) = XXH3_createState();
	struct maker m = { .c = c, .l = ret, .hash = hash, .info = CKPT_ROOT };
	struct digest digest;
	int rc;

	*ret = (struct export_list){ .node = top->node };
	if (!hash)
		return err_sys(e, ENOMEM, "list of files");
	if (!ckpt_lookup(c, CKPT_ROOT, ".ckptfs", &m.info) &&
	    ckpt_lookup(c, m.info, "info.json", &m.info))
		m.info = CKPT_ROOT;
	(void)XXH3_128bits_reset(hash);
	(void)XXH3_128bits_update(hash, &top->size, sizeof(top->size));
	rc = top->is_dir ? add_tree(&m, top->node, e)
			 : add_file(&m, EXPORT_TOP, 0, top->node, top->size, e);
	if (rc)
		return rc;
	digest = digest_of(XXH3_128bits_digest(hash));
	digest_hex(&digest, ret->hash);
	return 0;
}

void export_list_release(struct export_list *l)
{
	for (size_t i = 0; i < l->n_dirs; i++) {
		free(l->dirs[i].path);
		free(l->dirs[i].target);
	}
	free(l->dirs);
	free(l->files);
}

size_t export_list_find(const struct export_list *l, uint64_t unit)
{
	size_t behind = PARTITION_POINT(i, l->n_files, l->files[i].first <= unit);

	return behind ? behind - 1 : 0;
}

uint64_t export_list_unit(const struct export_list *l, size_t i, uint64_t unit, uint64_t *ret_off)
{
	const struct export_file *f = &l->files[i];

	*ret_off = (unit - f->first) * EXPORT_UNIT;
	return min_u64(EXPORT_UNIT, f->size - *ret_off);
}
