/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "read/fetch.h"
#include "view/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ckpt_file {
	struct ckpt *c;
	struct otensor *tensor; /* what its SEG_TENSOR segment reads, or NULL */
	struct vfile v;
};

/* ---- names ---- */

int ckpt_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret)
{
	ckpt_node n = view_lookup(c->view, dir, name);

	if (!n)
		return 1;
	*ret = n;
	return 0;
}

int ckpt_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct err *e)
{
	ckpt_node at = CKPT_ROOT;
	const char *p = path;

	while (*p) {
		size_t n = strcspn(p, "/");
		char name[CKPT_NAME_MAX + 1];

		if (n > CKPT_NAME_MAX)
			return err_set(e, ENOENT, "'%s': there is no such file in the tree", path);
		memcpy(name, p, n);
		name[n] = 0;
		if (n && strcmp(name, ".") != 0 && ckpt_lookup(c, at, name, &at))
			return err_set(e, ENOENT, "'%s': there is no such file in the tree", path);
		p += n + (p[n] == '/');
	}
	*ret = at;
	return 0;
}

int ckpt_fqn_node(struct ckpt *c, const char *fqn, size_t len, ckpt_node *ret)
{
	int64_t tensor = view_find(c->view, false, fqn, len);
	int64_t object = tensor < 0 ? view_find(c->view, true, fqn, len) : -1;

	if (tensor < 0 && object < 0)
		return 1;
	*ret = tensor >= 0 ? view_file(&face_tensors, (size_t)tensor)
			   : view_file(&face_objects, (size_t)object);
	return 0;
}

ckpt_node ckpt_parent(struct ckpt *c, ckpt_node node)
{
	return view_parent(c->view, node);
}

int ckpt_entry(struct ckpt *c, ckpt_node dir, uint64_t pos, char name[static CKPT_NAME_MAX + 1],
	       ckpt_node *ret)
{
	ckpt_node n = view_entry(c->view, dir, pos, name);

	if (!n)
		return 1;
	*ret = n;
	return 0;
}

/* ---- attributes ---- */

/* Decoded size of an object; what cannot be decoded has size 0 and fails when opened. */
static int size_of_object(struct ckpt *c, size_t i, uint64_t *ret, struct err *e)
{
	uint64_t size = c->object_size[i];
	size_t n;
	int rc;

	if (size == VIEW_SIZE_UNKNOWN) {
		rc = object_size(c->fetch, &catalog_objects(c->catalog, &n)[i].loc, &size, e);
		if (rc)
			return rc;
		c->object_size[i] = size;
	}
	*ret = size;
	return 0;
}

/* What the file consists of, with its size known. */
static int describe(struct ckpt *c, const struct view_node *n, struct vfile *ret, struct err *e)
{
	if (n->kind == VIEW_INFO) {
		ret->size = c->info_len;
		ret->n = 1;
		ret->seg[0] =
			(struct segment){ .kind = SEG_BYTES, .len = c->info_len, .bytes = c->info };
		return 0;
	}
	n->face->describe(c->catalog, n->index, ret);
	if (ret->size == VIEW_SIZE_UNKNOWN) {
		int rc = size_of_object(c, n->index, &ret->size, e);

		if (rc)
			return rc;
		ret->seg[0].len = ret->size;
	}
	return 0;
}

int ckpt_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct err *e)
{
	struct view_node n = view_resolve(c->view, node);
	struct err ignored;
	struct vfile v;

	if (n.kind == VIEW_NONE)
		return err_set(e, ENOENT, "inode %llu: there is no such file",
			       (unsigned long long)node);
	*ret = (struct ckpt_stat){ .node = node, .mtime_ns = c->mtime_ns };
	ret->is_dir = n.kind == VIEW_ROOT || n.kind == VIEW_FACE || n.kind == VIEW_CONTROL;
	if (ret->is_dir)
		ret->size = view_entries(c->view, node);
	else if (!describe(c, &n, &v, &ignored))
		ret->size = v.size;
	return 0;
}

static const char *const xattr_names[] = {
	"user.ckptfs.fqn",    "user.ckptfs.dtype", "user.ckptfs.shape",
	"user.ckptfs.chunks", "user.ckptfs.files",
};

int64_t ckpt_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
		   struct err *e)
{
	struct view_node n = view_resolve(c->view, node);
	struct buf b = BUF_INIT(1 << 20);
	autofree void *release = NULL;
	struct ckpt_tensor t;
	uint64_t files;
	size_t which, k;

	for (which = 0; which < ARRAY_LEN(xattr_names); which++)
		if (!strcmp(name, xattr_names[which]))
			break;
	if (which == ARRAY_LEN(xattr_names) || n.kind != VIEW_FILE || (n.face->of_objects && which))
		return err_set(e, ENODATA, "no attribute '%s'", name);
	if (n.face->of_objects) {
		const struct catalog_object *o = &catalog_objects(c->catalog, &k)[n.index];

		if (cap) /* whoever asks for the length has no buffer */
			memcpy(buf, o->fqn, min_u64(cap, o->fqn_len));
		return o->fqn_len;
	}
	{
		const struct catalog_tensor *ct = &catalog_tensors(c->catalog, &k)[n.index];
		int64_t i = ckpt_tensor_find(c, ct->fqn, ct->fqn_len);

		if (i < 0)
			return err_set(e, ENODATA, "no attribute '%s'", name);
		ckpt_tensor(c, (uint64_t)i, &t);
		if (which == 4) {
			int rc = ckpt_tensor_files(c, (uint64_t)i, &files, e);

			if (rc)
				return rc;
		}
	}
	switch (which) {
	case 0:
		buf_add(&b, t.fqn, t.fqn_len);
		break;
	case 1:
		buf_str(&b, t.dtype);
		break;
	case 2:
		buf_json_u64s(&b, t.shape, t.n_dims);
		break;
	case 3:
		buf_u64(&b, t.chunks);
		break;
	default:
		buf_u64(&b, files);
	}
	release = b.data;
	if (b.err)
		return err_set(e, b.err, "attribute '%s'", name);
	if (cap && b.len)
		memcpy(buf, b.data, min_u64(cap, b.len));
	return (int64_t)b.len;
}

int64_t ckpt_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap)
{
	struct view_node n = view_resolve(c->view, node);
	size_t count = n.kind != VIEW_FILE  ? 0
		       : n.face->of_objects ? 1
					    : ARRAY_LEN(xattr_names),
	       at = 0;

	for (size_t i = 0; i < count; i++) {
		size_t len = strlen(xattr_names[i]) + 1;

		if (at < cap)
			memcpy(buf + at, xattr_names[i], min_u64(len, cap - at));
		at += len;
	}
	return (int64_t)at;
}

/* ---- files ---- */

static int check_openable(struct ckpt *c, const struct view_node *n, struct err *e)
{
	const char *fault, *fqn;
	char shown[120];
	size_t k, len;

	if (n->kind == VIEW_INFO)
		return 0;
	if (n->face->of_objects) {
		fault = ckpt_object_fault(c, n->index);
		fqn = catalog_objects(c->catalog, &k)[n->index].fqn;
		len = catalog_objects(c->catalog, &k)[n->index].fqn_len;
	} else {
		fault = ckpt_tensor_fault(c, n->index);
		fqn = catalog_tensors(c->catalog, &k)[n->index].fqn;
		len = catalog_tensors(c->catalog, &k)[n->index].fqn_len;
	}
	return fault ? err_set(e, EIO, "%s '%s' cannot be read: %s",
			       n->face->of_objects ? "object" : "tensor",
			       text_show(fqn, len, shown, sizeof(shown)), fault)
		     : 0;
}

int ckpt_file_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret, struct err *e)
{
	struct view_node n = view_resolve(c->view, node);
	struct ckpt_file *f;
	int rc;

	if (n.kind == VIEW_NONE)
		return err_set(e, ENOENT, "inode %llu: there is no such file",
			       (unsigned long long)node);
	if (n.kind != VIEW_FILE && n.kind != VIEW_INFO)
		return err_set(e, EISDIR, "it is a directory");
	rc = check_openable(c, &n, e);
	if (rc)
		return rc;
	f = calloc(1, sizeof(*f));
	if (!f)
		return err_set(e, ENOMEM, "out of memory");
	f->c = c;
	rc = describe(c, &n, &f->v, e);
	for (size_t i = 0; !rc && i < f->v.n; i++)
		if (f->v.seg[i].kind == SEG_TENSOR)
			rc = otensor_open(c->fetch, f->v.seg[i].index, &f->tensor, e);
	if (rc) {
		free(f);
		return rc;
	}
	*ret = f;
	return 0;
}

int ckpt_file_open_path(struct ckpt *c, const char *path, struct ckpt_file **ret, struct err *e)
{
	ckpt_node node;
	int rc = ckpt_walk(c, path, &node, e);

	if (rc)
		return rc;
	rc = ckpt_file_open(c, node, ret, e);
	return rc ? err_wrap(e, "'%s'", path) : 0;
}

void ckpt_file_close(struct ckpt_file *f)
{
	if (!f)
		return;
	otensor_close(f->c->fetch, f->tensor);
	free(f);
}

uint64_t ckpt_file_size(const struct ckpt_file *f)
{
	return f->v.size;
}

static int read_segment(struct ckpt_file *f, const struct segment *s, void *buf, size_t len,
			uint64_t at, struct err *e)
{
	struct ckpt *c = f->c;
	int64_t got;
	size_t n;

	switch (s->kind) {
	case SEG_BYTES:
		memcpy(buf, s->bytes + at, len);
		return 0;
	case SEG_TENSOR:
		return otensor_read(c->fetch, f->tensor, buf, len, s->from + at, e);
	case SEG_OBJECT:
		got = object_read(c->fetch, &catalog_objects(c->catalog, &n)[s->index].loc, buf,
				  len, s->from + at, e);
		if (got < 0)
			return (int)got;
		return (size_t)got == len ? 0 : err_set(e, EIO, "the object became shorter");
	}
	return err_set(e, EIO, "unknown segment");
}

int64_t ckpt_file_read(struct ckpt_file *f, void *buf, size_t len, uint64_t off, struct err *e)
{
	size_t done = 0;

	len = off < f->v.size ? (size_t)min_u64(len, f->v.size - off) : 0;
	for (size_t i = 0; i < f->v.n && done < len; i++) {
		const struct segment *s = &f->v.seg[i];
		uint64_t at = off + done;
		size_t n;
		int rc;

		if (at >= s->off + s->len)
			continue;
		n = (size_t)min_u64(len - done, s->off + s->len - at);
		rc = read_segment(f, s, (char *)buf + done, n, at - s->off, e);
		if (rc)
			return rc;
		done += n;
	}
	return (int64_t)done;
}
