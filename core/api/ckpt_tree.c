/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "api/run.h"
#include "api/run_tree.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "model/dtype.h"
#include "read/fetch.h"
#include "read/files.h"
#include "read/parts.h"
#include "view/view.h"
#include "view/vtensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

int ckpt_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret)
{
	ckpt_node n;

	if (c->run)
		return run_tree_lookup(c, dir, name, ret);
	n = view_lookup(c->view, dir, name);
	if (!n)
		return 1;
	*ret = n;
	return 0;
}

static int no_such_file(struct ckpt_err *e, const char *path)
{
	return err_set(e, ENOENT, "'%s': there is no such file in the tree", path);
}

int ckpt_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct ckpt_err *e)
{
	char rest[CKPT_NAME_MAX + 1] = "";
	ckpt_node at = CKPT_ROOT;
	const char *p = path;

	if (c->run)
		return run_tree_walk(c, path, ret, e);
	while (*p) {
		size_t n = strcspn(p, "/");
		char name[CKPT_NAME_MAX + 1];

		if (n > CKPT_NAME_MAX)
			return no_such_file(e, path);
		memcpy(name, p, n);
		name[n] = 0;
		p += n + (p[n] == '/');
		if (!n || !strcmp(name, "."))
			continue;
		if (ckpt_lookup(c, at, name, &at))
			return no_such_file(e, path);
		if (view_kind(c->view, at) == VIEW_LINK) { /* to a file: nothing comes after it */
			if (*p)
				return no_such_file(e, path);
			view_target(c->view, at, rest);
			at = view_parent(c->view, at);
			p = rest;
		}
	}
	*ret = at;
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
	(void)c;
	return view_tensor_node(i);
}

ckpt_node ckpt_object_node(const struct ckpt *c, uint64_t i)
{
	(void)c;
	return view_object_node(i);
}

ckpt_node ckpt_parent(struct ckpt *c, ckpt_node node)
{
	return c->run ? run_tree_parent(c, node) : view_parent(c->view, node);
}

int ckpt_enter(struct ckpt *c, ckpt_node dir, struct ckpt_err *e)
{
	return c->run ? run_tree_enter(c, dir, e) : 0;
}

int ckpt_entry(struct ckpt *c, ckpt_node dir, uint64_t pos, char name[static CKPT_NAME_MAX + 1],
	       ckpt_node *ret)
{
	uint64_t next = pos;

	return ckpt_next(c, dir, &next, name, ret) || next != pos + 1;
}

int ckpt_next(struct ckpt *c, ckpt_node dir, uint64_t *pos, char name[static CKPT_NAME_MAX + 1],
	      ckpt_node *ret)
{
	ckpt_node n;

	if (c->run)
		return run_tree_next(c, dir, pos, name, ret);
	n = view_entry(c->view, dir, *pos, name);
	if (!n)
		return 1;
	*ret = n;
	++*pos;
	return 0;
}

/* ---- attributes ---- */

int ckpt_object_size(struct ckpt *c, size_t i, uint64_t *ret, struct ckpt_err *e)
{
	uint64_t size = c->object_size[i], known = CKPT_SIZE_UNKNOWN;
	size_t n;
	int rc;

	if (size >= CKPT_SIZE_FAILED) {
		rc = object_size(c->fetch, &catalog_objects(c->catalog, &n)[i], &size, e);
		if (rc && rc != -ENOMEM)
			c->object_size[i] = CKPT_SIZE_FAILED;
		if (rc)
			return rc;
		if (!atomic_compare_exchange_strong(&c->object_size[i], &known, size) &&
		    known == CKPT_SIZE_FAILED) /* whoever was told 0 would take it for empty */
			return err_set(e, EIO, "it could not be read when its size was asked for");
	}
	*ret = size;
	return 0;
}

int ckpt_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	enum view_kind kind;

	if (c->run)
		return run_tree_type(c, node, ret, e);
	kind = view_kind(c->view, node);
	if (kind == VIEW_NONE)
		return err_set(e, ENOENT, "inode %llu: there is no such file",
			       (unsigned long long)node);
	*ret = (struct ckpt_stat){ .node = node,
				   .is_dir = kind == VIEW_DIR,
				   .is_link = kind == VIEW_LINK };
	return 0;
}

int ckpt_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	char target[CKPT_NAME_MAX + 1];
	struct ckpt_err why;
	int64_t asset;
	int rc;

	if (c->run)
		return run_tree_stat(c, node, ret, e);
	rc = ckpt_type(c, node, ret, e);
	if (rc)
		return rc;
	ret->mtime_ns = c->mtime_ns;
	if (ret->is_dir) {
		ret->size = view_entries(c->view, node);
		ret->partial = view_is_partial(c->view, node);
	} else if (ret->is_link) {
		view_target(c->view, node, target);
		ret->size = strlen(target);
	} else {
		asset = view_asset(c->view, node);
		if (asset >= 0)
			ret->mtime_ns = c->assets.v[asset].mtime_ns;
		rc = view_size(c->view, node, &ret->size, &why);
		if (rc == -ENOMEM)
			return err_set(e, ENOMEM, "%s", why.msg);
		/* What cannot be decoded has size 0 and fails when opened. */
		if (rc)
			ret->size = 0;
	}
	return 0;
}

int64_t ckpt_readlink(struct ckpt *c, ckpt_node node, char out[static CKPT_NAME_MAX + 1],
		      struct ckpt_err *e)
{
	if (c->run)
		return run_tree_readlink(c, node, out, e);
	if (view_kind(c->view, node) != VIEW_LINK)
		return err_set(e, EINVAL, "it is no link");
	view_target(c->view, node, out);
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

/* Of a file in tensors/, npy/ or logical/, also a rank's. */
static int put_tensor_xattr(struct ckpt *c, uint64_t id, int which, struct buf *b,
			    struct ckpt_err *e)
{
	struct view_tensor t;
	autofree struct vtensor *v = NULL;
	uint64_t files;
	int rc;

	view_single_tensor(c->view, id, &t);
	switch (which) {
	case XATTR_FQN:
		buf_add(b, t.fqn, t.fqn_len);
		return 0;
	case XATTR_DTYPE:
		buf_str(b, dtype_info(t.dtype)->name);
		return 0;
	case XATTR_SHAPE:
		rc = view_vtensor(c->view, t.id, &v, e);
		if (!rc)
			buf_json_u64s(b, v->shown, v->n_shown);
		return rc;
	case XATTR_CHUNKS:
		buf_u64(b, ckpt_chunks_of(c, &t));
		return 0;
	default:
		rc = ckpt_files_of(c, &t, &files, e);
		if (!rc)
			buf_u64(b, files);
		return rc;
	}
}

int64_t ckpt_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
		   struct ckpt_err *e)
{
	struct buf b = BUF_INIT(1 << 20);
	autofree void *release = NULL;
	int which = xattr_number(name), rc = 0;
	bool object;
	uint64_t id;

	if (c->run)
		return run_tree_xattr(c, node, name, buf, cap, e);
	if (which == XATTR_NONE || !view_single(c->view, node, &object, &id) ||
	    (object && which != XATTR_FQN))
		return err_set(e, ENODATA, "no attribute '%s'", name);
	if (object) {
		const char *fqn;
		size_t len;

		(void)view_object(c->view, id, &fqn, &len);
		buf_add(&b, fqn, len);
	} else {
		rc = put_tensor_xattr(c, id, which, &b, e);
	}
	release = b.data;
	if (rc)
		return rc;
	if (b.err)
		return err_set(e, b.err, "attribute '%s'", name);
	if (cap && b.len) /* whoever asks for the length has no buffer */
		memcpy(buf, b.data, min_u64(cap, b.len));
	return (int64_t)b.len;
}

int64_t ckpt_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap)
{
	size_t count = 0, at = 0;
	bool object;
	uint64_t id;

	if (c->run)
		return run_tree_xattr_names(c, node, buf, cap);
	if (view_single(c->view, node, &object, &id))
		count = object ? 1 : ARRAY_LEN(xattr_names);
	for (size_t i = 0; i < count; i++) {
		size_t len = strlen(xattr_names[i]) + 1;

		if (at < cap)
			memcpy(buf + at, xattr_names[i], min_u64(len, cap - at));
		at += len;
	}
	return (int64_t)at;
}

/* ---- files ---- */

static int refuse(const char *kind, const char *fqn, size_t len, const char *fault,
		  struct ckpt_err *e)
{
	char shown[120];

	return fault ? err_set(e, EIO, "%s '%s' cannot be read: %s", kind,
			       text_show(fqn, len, shown, sizeof(shown)), fault)
		     : 0;
}

int ckpt_readable(const struct ckpt *c, const struct view_tensor *t, struct ckpt_err *e)
{
	return refuse("tensor", t->fqn, t->fqn_len, ckpt_fault_of(c, t), e);
}

static int check_openable(struct ckpt *c, ckpt_node node, struct ckpt_err *e)
{
	const char *fault, *fqn;
	struct view_tensor t;
	bool object;
	uint64_t id;
	size_t len;

	if (!view_single(c->view, node, &object, &id))
		return 0; /* what is consolidated leaves out what cannot be read */
	if (object) {
		fault = ckpt_object_fault(c, view_object(c->view, id, &fqn, &len));
		return refuse("object", fqn, len, fault, e);
	}
	view_single_tensor(c->view, id, &t);
	return ckpt_readable(c, &t, e);
}

static int open_tensor(struct ckpt *c, uint64_t id, struct vreader **ret, struct ckpt_err *e)
{
	struct vtensor *v;
	int rc = view_vtensor(c->view, id, &v, e);

	return rc ? rc : vreader_open(c->fetch, v, ret, e);
}

struct tensor_segments {
	const struct ckpt_file *f;
	uint32_t *v; /* numbers of the segments */
};

static int make_tensor(void *arg, size_t i, struct vtensor **ret, struct ckpt_err *e)
{
	const struct tensor_segments *s = arg;

	return view_vtensor(s->f->c->view, s->f->v.seg[s->v[i]].id, ret, e);
}

/* An asset is there as long as it was: its last byte can be read. */
static int check_asset(struct ckpt_file *f, const struct segment *s, struct ckpt_err *e)
{
	uint8_t last;

	return assets_read(&f->c->assets, s->id, &last, 1, s->from + s->len - 1, e);
}

/* Everything that reads will need is looked at now. */
static int open_segments(struct ckpt_file *f, struct ckpt_err *e)
{
	autofree uint32_t *v = malloc((f->v.n + 1) * sizeof(*v));
	struct tensor_segments s = { f, v };
	size_t n = 0;
	int rc = 0;

	if (!v)
		return err_set(e, ENOMEM, "out of memory");
	for (uint32_t i = 0; !rc && i < f->v.n; i++) {
		if (f->v.seg[i].kind == SEG_TENSOR)
			v[n++] = i;
		else if (f->v.seg[i].kind == SEG_FILE)
			rc = check_asset(f, &f->v.seg[i], e);
	}
	if (rc)
		return rc;
	if (n == 1)
		return open_tensor(f->c, f->v.seg[v[0]].id, &f->reader, e);
	return n ? fetch_look(f->c->fetch, n, make_tensor, &s, e) : 0;
}

struct ckpt_file *ckpt_file_new(struct ckpt *c, struct ckpt_err *e)
{
	struct ckpt_file *f = calloc(1, sizeof(*f));

	if (!f) {
		(void)err_set(e, ENOMEM, "out of memory");
		return NULL;
	}
	f->c = c;
	f->v = (struct vfile)VFILE_INIT;
	return f;
}

int ckpt_file_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e)
{
	enum view_kind kind;
	struct ckpt_file *f;
	int rc;

	if (c->run)
		return run_tree_open(c, node, ret, e);
	kind = view_kind(c->view, node);
	if (kind == VIEW_NONE)
		return err_set(e, ENOENT, "inode %llu: there is no such file",
			       (unsigned long long)node);
	if (kind != VIEW_FILE)
		return kind == VIEW_DIR ? err_set(e, EISDIR, "it is a directory")
					: err_set(e, ELOOP, "it is a link");
	rc = check_openable(c, node, e);
	if (rc)
		return rc;
	f = ckpt_file_new(c, e);
	if (!f)
		return -ENOMEM;
	rc = view_describe(c->view, node, &f->v, e);
	if (!rc)
		rc = open_segments(f, e);
	if (rc) {
		ckpt_file_close(f);
		return rc;
	}
	*ret = f;
	return 0;
}

int ckpt_model_open(struct ckpt *c, uint64_t i, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct ckpt_file *f;
	struct view_tensor t;
	int rc;

	view_model_tensor(c->view, i, &t);
	rc = ckpt_readable(c, &t, e);
	if (rc)
		return rc;
	f = ckpt_file_new(c, e);
	if (!f)
		return -ENOMEM;
	vfile_tensor(&f->v, t.id, t.bytes);
	rc = vfile_done(&f->v, e);
	if (!rc)
		rc = open_segments(f, e);
	if (rc) {
		ckpt_file_close(f);
		return rc;
	}
	*ret = f;
	return 0;
}

int ckpt_file_open_path(struct ckpt *c, const char *path, struct ckpt_file **ret,
			struct ckpt_err *e)
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
	if (f->reader)
		vreader_close(f->c->fetch, f->reader);
	vfile_release(&f->v);
	if (f->child)
		run_done(f->run, f->child);
	free(f);
}

uint64_t ckpt_file_size(const struct ckpt_file *f)
{
	return f->v.size;
}

void ckpt_file_ahead(struct ckpt_file *f)
{
	if (f->c->fetch) /* a run has none, and texts of its own */
		blockcache_ahead(fetch_blocks(f->c->fetch));
}

bool ckpt_file_is_plain(const struct ckpt_file *f)
{
	return f->reader && f->v.n == 1 && !vreader_is_encoded(f->reader);
}

bool ckpt_file_is_stale(const struct ckpt_file *f)
{
	return files_changed(f->c->files);
}

static int read_tensor(struct ckpt_file *f, uint64_t id, void *buf, size_t len, uint64_t at,
		       struct parts *parts, struct ckpt_err *e)
{
	struct vreader *r = f->reader;
	int rc = r ? 0 : open_tensor(f->c, id, &r, e);

	if (!rc)
		rc = vreader_read(f->c->fetch, r, buf, len, at, parts, e);
	if (r != f->reader)
		vreader_close(f->c->fetch, r);
	return rc;
}

static int read_object(struct ckpt *c, size_t number, void *buf, size_t len, uint64_t at,
		       struct ckpt_err *e)
{
	size_t n;
	int64_t got =
		object_read(c->fetch, &catalog_objects(c->catalog, &n)[number], buf, len, at, e);

	if (got < 0)
		return (int)got;
	return (size_t)got == len ? 0 : err_set(e, EIO, "the object became shorter");
}

/* Bytes [at, at+len) of one segment. */
static int read_segment(struct ckpt_file *f, const struct segment *s, void *buf, size_t len,
			uint64_t at, struct parts *parts, struct ckpt_err *e)
{
	switch (s->kind) {
	case SEG_BYTES:
		memcpy(buf, f->v.text.data + s->from + at, len);
		return 0;
	case SEG_LENT:
		memcpy(buf, (const char *)s->lent + at, len);
		return 0;
	case SEG_ZERO:
		memset(buf, 0, len);
		return 0;
	case SEG_TENSOR:
		return read_tensor(f, s->id, buf, len, at, parts, e);
	case SEG_OBJECT:
		return read_object(f->c, s->id, buf, len, at, e);
	case SEG_FILE:
		return assets_read(&f->c->assets, s->id, buf, len, s->from + at, e);
	}
	return err_set(e, EIO, "unknown segment");
}

static int64_t read_parts(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
			  struct parts *parts, struct ckpt_err *e)
{
	size_t done = 0;

	len = off < f->v.size ? (size_t)min_u64(len, f->v.size - off) : 0;
	for (size_t i = len ? vfile_find(&f->v, off) : 0; done < len; i++) {
		const struct segment *s = &f->v.seg[i];
		uint64_t at = off + done - s->off;
		size_t n = (size_t)min_u64(len - done, s->len - at);
		int rc = read_segment(f, s, (char *)buf + done, n, at, parts, e);

		if (rc)
			return rc;
		done += n;
	}
	return (int64_t)done;
}

int64_t ckpt_file_read(struct ckpt_file *f, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	int64_t n = read_parts(f, buf, len, off, NULL, e);

	if (n < 0 && f->child)
		run_tree_blame(f, e);
	return n;
}

struct ckpt_parts {
	struct parts p;
};

struct ckpt_parts *ckpt_parts_new(void)
{
	return calloc(1, sizeof(struct ckpt_parts));
}

void ckpt_parts_free(struct ckpt_parts *p)
{
	free(p);
}

int64_t ckpt_file_gather(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
			 struct ckpt_parts *parts, const struct iovec **ret_iov, int *ret_n,
			 struct ckpt_err *e)
{
	int64_t n;
	int rc = 0;

	parts_start(&parts->p, f->c->files, buf, PARTS_MIN_RUN);
	n = read_parts(f, buf, len, off, &parts->p, e);
	if (n >= 0)
		rc = parts_finish(&parts->p, (uint64_t)n, e);
	if (n < 0 || rc) {
		parts_release(&parts->p);
		if (f->child)
			run_tree_blame(f, e);
		return n < 0 ? n : rc;
	}
	*ret_iov = parts->p.iov;
	*ret_n = parts->p.n_iov;
	return n;
}

void ckpt_parts_release(struct ckpt_parts *parts)
{
	parts_release(&parts->p);
}
