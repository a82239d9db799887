/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of a checkpoint: its names and attributes. */
#include <ckptfs/ckpt.h>

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "index/catalog_query.h"
#include "model/dtype.h"
#include "read/fetch.h"
#include "tensor/vtensor.h"
#include "tree/view.h"

#include <string.h>

/* ---- names ---- */

static int engine_lookup(struct tree *t, ckpt_node dir, const char *name, ckpt_node *ret)
{
	ckpt_node n = view_lookup(engine_of(t)->view, dir, name);

	if (!n)
		return 1;
	*ret = n;
	return 0;
}

int ckpt_fqn_node(struct ckpt *c, const char *fqn, size_t len, ckpt_node *ret)
{
	int64_t tensor = ckpt_tensor_find(c, fqn, len);
	int64_t object = tensor < 0 ? ckpt_object_find(c, fqn, len) : -1;

	if (tensor < 0 && object < 0)
		return 1;
	*ret = tensor >= 0 ? view_tensor_node((size_t)tensor) : view_object_node((size_t)object);
	return 0;
}

ckpt_node ckpt_tensor_node(const struct ckpt *c, uint64_t i)
{
	return i < c->totals.tensors ? view_tensor_node(i) : 0;
}

ckpt_node ckpt_object_node(const struct ckpt *c, uint64_t i)
{
	return i < c->totals.objects ? view_object_node(i) : 0;
}

static ckpt_node engine_parent(struct tree *t, ckpt_node node)
{
	return view_parent(engine_of(t)->view, node);
}

static int engine_name(struct tree *t, ckpt_node node, char name[static CKPT_NAME_MAX + 1])
{
	return !view_name(engine_of(t)->view, node, name);
}

static int engine_next(struct tree *t, ckpt_node dir, uint64_t *pos,
		       char name[static CKPT_NAME_MAX + 1], ckpt_node *ret)
{
	ckpt_node n = view_entry(engine_of(t)->view, dir, *pos, name);

	if (!n)
		return 1;
	*ret = n;
	++*pos;
	return 0;
}

/* ---- attributes ---- */

int ckpt_object_size(struct engine *eng, size_t i, uint64_t *ret, struct ckpt_err *e)
{
	uint64_t size = eng->object_size[i], known = CKPT_SIZE_UNKNOWN;
	int rc;

	if (size >= CKPT_SIZE_FAILED) {
		rc = object_size(eng->fetch, &catalog_objects(eng->catalog, NULL)[i], &size, e);
		if (rc && rc != -ENOMEM)
			eng->object_size[i] = CKPT_SIZE_FAILED;
		if (rc)
			return rc;
		if (!atomic_compare_exchange_strong(&eng->object_size[i], &known, size) &&
		    known == CKPT_SIZE_FAILED) /* readers were given size 0 */
			return err_set(e, EIO, "it could not be read when its size was requested");
	}
	*ret = size;
	return 0;
}

int ckpt_no_node(ckpt_node node, struct ckpt_err *e)
{
	return err_set(e, ENOENT, "inode %llu: there is no such file", (unsigned long long)node);
}

static int engine_type(struct tree *t, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	enum view_kind kind = view_kind(engine_of(t)->view, node);

	if (kind == VIEW_NONE)
		return ckpt_no_node(node, e);
	*ret = (struct ckpt_stat){ .node = node,
				   .is_dir = kind == VIEW_DIR,
				   .is_link = kind == VIEW_LINK };
	return 0;
}

static int engine_stat(struct tree *t, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	struct engine *eng = engine_of(t);
	char target[CKPT_NAME_MAX + 1];
	struct ckpt_err why;
	int64_t asset;
	int rc = engine_type(t, node, ret, e);

	if (rc)
		return rc;
	ret->mtime_ns = eng->mtime_ns;
	if (ret->is_dir) {
		ret->size = view_entries(eng->view, node);
		ret->partial = view_is_partial(eng->view, node);
	} else if (ret->is_link) {
		view_target(eng->view, node, target);
		ret->size = strlen(target);
	} else {
		asset = view_asset(eng->view, node);
		if (asset >= 0)
			ret->mtime_ns = eng->assets.v[asset].mtime_ns;
		rc = view_size(eng->view, node, &ret->size, &why);
		if (rc == -ENOMEM)
			return err_set(e, ENOMEM, "%s", why.msg);
		/* Data that cannot be decoded has size 0 and fails when opened. */
		if (rc)
			ret->size = 0;
	}
	return 0;
}

static int64_t engine_readlink(struct tree *t, ckpt_node node, char out[static CKPT_NAME_MAX + 1],
			       struct ckpt_err *e)
{
	const struct engine *eng = engine_of(t);
	enum view_kind kind = view_kind(eng->view, node);

	if (kind == VIEW_NONE)
		return ckpt_no_node(node, e);
	if (kind != VIEW_LINK)
		return err_set(e, EINVAL, "not a symbolic link");
	view_target(eng->view, node, out);
	return (int64_t)strlen(out);
}

static const char *const xattr_names[] = {
	"user.ckptfs.fqn",    "user.ckptfs.dtype", "user.ckptfs.shape",
	"user.ckptfs.chunks", "user.ckptfs.files",
};

enum { XATTR_FQN, XATTR_DTYPE, XATTR_SHAPE, XATTR_CHUNKS, XATTR_FILES, XATTR_NONE };

static int xattr_number(const char *name)
{
	int i = 0;

	while (i < XATTR_NONE && strcmp(name, xattr_names[i]) != 0)
		i++;
	return i;
}

/* For a file in tensors/, npy/ or logical/, including those of ranks. */
static int put_tensor_xattr(struct engine *eng, uint64_t id, int which, struct buf *b,
			    struct ckpt_err *e)
{
	struct tensor_info t;
	autofree struct vtensor *v = NULL;
	uint64_t files;
	int rc;

	view_single_tensor(eng->view, id, &t);
	switch (which) {
	case XATTR_FQN:
		buf_add(b, t.fqn, t.fqn_len);
		return 0;
	case XATTR_DTYPE:
		buf_str(b, dtype_info(t.dtype)->name);
		return 0;
	case XATTR_SHAPE:
		rc = view_vtensor(eng->view, t.id, &v, e);
		if (!rc)
			buf_json_u64s(b, v->shown, v->n_shown);
		return rc;
	case XATTR_CHUNKS:
		buf_u64(b, ckpt_chunks_of(eng, &t));
		return 0;
	default:
		rc = ckpt_files_of(eng, &t, &files, e);
		if (!rc)
			buf_u64(b, files);
		return rc;
	}
}

static int64_t engine_xattr(struct tree *t, ckpt_node node, const char *name, char *buf, size_t cap,
			    struct ckpt_err *e)
{
	struct engine *eng = engine_of(t);
	struct buf b = BUF_INIT(1 << 20);
	autofree void *release = NULL;
	int which = xattr_number(name), rc = 0;
	bool object;
	uint64_t id;

	if (which == XATTR_NONE || !view_single(eng->view, node, &object, &id) ||
	    (object && which != XATTR_FQN))
		return err_set(e, ENODATA, "no attribute '%s'", name);
	if (object) {
		const char *fqn;
		size_t len;

		(void)view_object(eng->view, id, &fqn, &len);
		buf_add(&b, fqn, len);
	} else {
		rc = put_tensor_xattr(eng, id, which, &b, e);
	}
	release = b.data;
	if (rc)
		return rc;
	if (buf_check(&b, e, "attribute '%s' is too large", name))
		return -e->code;
	if (cap && b.len) /* a caller that only queries the length has no buffer */
		memcpy(buf, b.data, min_u64(cap, b.len));
	return (int64_t)b.len;
}

static int64_t engine_xattr_names(struct tree *t, ckpt_node node, char *buf, size_t cap)
{
	size_t count = 0, at = 0;
	bool object;
	uint64_t id;

	if (view_single(engine_of(t)->view, node, &object, &id))
		count = object ? 1 : ARRAY_LEN(xattr_names);
	for (size_t i = 0; i < count; i++) {
		size_t len = strlen(xattr_names[i]) + 1;

		if (at < cap)
			memcpy(buf + at, xattr_names[i], min_u64(len, cap - at));
		at += len;
	}
	return (int64_t)at;
}

static const struct tree_ops engine_ops = {
	.lookup = engine_lookup,
	.absent = engine_absent,
	.parent = engine_parent,
	.name = engine_name,
	.next = engine_next,
	.type = engine_type,
	.stat = engine_stat,
	.readlink = engine_readlink,
	.xattr = engine_xattr,
	.xattr_names = engine_xattr_names,
	.file_open = ckpt_engine_open,
	.sources = engine_sources,
	.counters = engine_counters,
	.info_json = engine_info,
};

struct tree *ckpt_tree(struct engine *eng)
{
	eng->tree.ops = &engine_ops;
	return &eng->tree;
}
