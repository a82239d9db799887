/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and reads the files of a tree, and gathers their bytes for replies. */
#include <ckptfs/ckpt_mount.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "ckpt/run/run_tree.h"
#include "index/catalog_query.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "source/parts.h"
#include "source/place.h"
#include "tensor/vtensor.h"
#include "tree/view.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

enum { SHOWN = 120 }; /* bytes of a name in a message, as in tensor_read.c and fetch.c */

static int refuse(const char *kind, const char *fqn, size_t len, const char *fault,
		  struct ckpt_err *e)
{
	char shown[SHOWN];

	return fault ? err_set(e, EIO, "%s '%s' cannot be read: %s", kind,
			       text_show(fqn, len, shown, sizeof(shown)), fault)
		     : 0;
}

int ckpt_readable(const struct engine *eng, const struct tensor_info *t, struct ckpt_err *e)
{
	return refuse("tensor", t->fqn, t->fqn_len, ckpt_fault_of(eng, t), e);
}

int ckpt_object_readable(const struct engine *eng, const char *fqn, size_t len, size_t number,
			 struct ckpt_err *e)
{
	return refuse("object", fqn, len, ckpt_object_fault(eng, number), e);
}

void ckpt_drop_name(const char *fqn, size_t len, struct ckpt_err *e)
{
	static const char *const before[] = { "tensor '", "'" };
	static const char *const behind[] = { "' cannot be read: ", "', ", "': " };
	char shown[SHOWN];
	size_t n = strlen(text_show(fqn, len, shown, SHOWN));

	for (size_t i = 0; i < ARRAY_LEN(before); i++)
		for (size_t k = 0; k < ARRAY_LEN(behind); k++) {
			size_t from = strlen(before[i]), to = from + n + strlen(behind[k]);

			if (strncmp(e->msg, before[i], from) != 0 ||
			    strncmp(e->msg + from, shown, n) != 0 ||
			    strncmp(e->msg + from + n, behind[k], to - from - n) != 0)
				continue;
			memmove(e->msg, e->msg + to, strlen(e->msg + to) + 1);
			return;
		}
}

static int check_openable(const struct engine *eng, ckpt_node node, struct ckpt_err *e)
{
	struct tensor_info t;
	const char *fqn;
	size_t len, number;
	bool object;
	uint64_t id;

	if (!view_single(eng->view, node, &object, &id))
		return 0; /* consolidated files omit unreadable tensors */
	if (object) {
		number = view_object(eng->view, id, &fqn, &len);
		return ckpt_object_readable(eng, fqn, len, number, e);
	}
	view_single_tensor(eng->view, id, &t);
	return ckpt_readable(eng, &t, e);
}

static int open_tensor(struct engine *eng, uint64_t id, struct tensor_reader **ret,
		       struct ckpt_err *e)
{
	struct vtensor *v;
	int rc = view_vtensor(eng->view, id, &v, e);

	return rc ? rc : tensor_open(eng->fetch, v, ret, e);
}

struct tensor_segments {
	const struct ckpt_file *f;
	uint32_t *v; /* segment numbers */
};

static int make_tensor(void *arg, size_t i, struct vtensor **ret, struct ckpt_err *e)
{
	const struct tensor_segments *s = arg;

	return view_vtensor(s->f->engine->view, s->f->v.seg[s->v[i]].id, ret, e);
}

/* Can the last byte of the asset still be read, as when it was found? */
static int check_asset(struct ckpt_file *f, const struct segment *s, struct ckpt_err *e)
{
	uint8_t last;

	return assets_read(&f->engine->assets, s->id, &last, 1, s->from + s->len - 1, e);
}

/* Checks everything that later reads will need. */
static int open_segments(struct ckpt_file *f, struct ckpt_err *e)
{
	autofree uint32_t *v = malloc((f->v.n + 1) * sizeof(*v));
	struct tensor_segments s = { f, v };
	size_t n = 0;
	int rc = 0;

	if (!v)
		return err_nomem(e);
	for (uint32_t i = 0; !rc && i < f->v.n; i++) {
		if (f->v.seg[i].kind == SEG_TENSOR)
			v[n++] = i;
		else if (f->v.seg[i].kind == SEG_FILE)
			rc = check_asset(f, &f->v.seg[i], e);
	}
	if (rc)
		return rc;
	if (n == 1)
		return open_tensor(f->engine, f->v.seg[v[0]].id, &f->reader, e);
	return n ? fetch_look(f->engine->fetch, n, make_tensor, &s, e) : 0;
}

struct ckpt_file *ckpt_file_new(struct engine *eng, struct ckpt_err *e)
{
	struct ckpt_file *f = calloc(1, sizeof(*f));

	if (!f) {
		(void)err_nomem(e);
		return NULL;
	}
	f->engine = eng;
	f->v = (struct vfile)VFILE_INIT;
	return f;
}

int ckpt_file_opened(struct ckpt_file *f, int rc, struct ckpt_file **ret)
{
	if (rc)
		ckpt_file_close(f);
	else
		*ret = f;
	return rc;
}

int ckpt_engine_open(struct tree *t, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct engine *eng = engine_of(t);
	enum view_kind kind = view_kind(eng->view, node);
	struct ckpt_file *f;
	int rc;

	if (kind == VIEW_NONE)
		return ckpt_no_node(node, e);
	if (kind != VIEW_FILE)
		return kind == VIEW_DIR ? err_set(e, EISDIR, "it is a directory")
					: err_set(e, ELOOP, "it is a link");
	rc = check_openable(eng, node, e);
	if (rc)
		return rc;
	f = ckpt_file_new(eng, e);
	if (!f)
		return -ENOMEM;
	rc = view_describe(eng->view, node, &f->v, e);
	if (!rc)
		rc = open_segments(f, e);
	return ckpt_file_opened(f, rc, ret);
}

int ckpt_model_open(struct ckpt *c, uint64_t i, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct ckpt_file *f;
	struct tensor_info t;
	int rc = ckpt_model_at(c, i, &t, e);

	if (!rc)
		rc = ckpt_readable(c->engine, &t, e);
	if (rc)
		return rc;
	f = ckpt_file_new(c->engine, e);
	if (!f)
		return -ENOMEM;
	vfile_tensor(&f->v, t.id, t.bytes);
	rc = vfile_done(&f->v, e);
	if (!rc)
		rc = open_segments(f, e);
	return ckpt_file_opened(f, rc, ret);
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

/* ---- reading ---- */

void ckpt_file_close(struct ckpt_file *f)
{
	if (!f)
		return;
	if (f->reader)
		tensor_close(f->engine->fetch, f->reader);
	vfile_release(&f->v);
	if (f->child)
		run_done(f->run, f->child);
	free(f);
}

uint64_t ckpt_file_size(const struct ckpt_file *f)
{
	return f->v.size;
}

bool ckpt_let_go(struct ckpt *c, unsigned unused_ms)
{
	return c->run && place_fd(c->place) >= 0 && run_let_go(c->run, unused_ms * CLOCK_MS);
}

void ckpt_file_ahead(struct ckpt_file *f)
{
	if (!f->engine) /* a run's own files are texts and have no engine */
		return;
	f->ahead.wanted = true;
	ahead_announce(f);
	blockcache_ahead(fetch_blocks(f->engine->fetch));
}

bool ckpt_file_is_plain(const struct ckpt_file *f)
{
	return f->reader && f->v.n == 1 && !tensor_is_encoded(f->reader);
}

bool ckpt_file_is_stale(const struct ckpt_file *f)
{
	return f->engine && (files_changed(f->engine->files) || others_changed(f->engine));
}

/*
 * In a file with several tensors, each is opened when it is read. What takes long to compute comes
 * from the block cache if it is read in order: there it is computed in larger parts and ahead of
 * the reader. Any other reader would have to wait for bytes that it does not want.
 */
static int read_one_of_many(struct ckpt_file *f, uint64_t id, void *buf, size_t len, uint64_t at,
			    struct parts *parts, struct ckpt_err *e)
{
	struct fetch *fetch = f->engine->fetch;
	struct tensor_reader *r;
	uint32_t number;
	uint64_t slow;
	int rc = open_tensor(f->engine, id, &r, e);

	if (rc)
		return rc;
	slow = view_is_gguf(id, &number) ? tensor_slow_bytes(r) : 0;
	if (slow)
		f->ahead.slow = true;
	if (slow && ahead_is_in_order(&f->ahead))
		rc = fetch_read_kept(fetch, number, slow, buf, len, at, parts, e);
	else
		rc = tensor_read(fetch, r, buf, len, at, parts, e);
	tensor_close(fetch, r);
	return rc;
}

static int read_object(struct engine *eng, size_t number, void *buf, size_t len, uint64_t at,
		       struct ckpt_err *e)
{
	int64_t got = object_read(eng->fetch, &catalog_objects(eng->catalog, NULL)[number], buf,
				  len, at, e);

	if (got < 0)
		return (int)got;
	return (size_t)got == len ? 0 : err_set(e, EIO, "the object became shorter");
}

static int64_t file_read(struct ckpt_file *f, uint8_t *buf, size_t len, uint64_t off,
			 struct parts *parts, struct ckpt_err *e)
{
	uint64_t left = off < f->v.size ? min_u64(len, f->v.size - off) : 0;
	int64_t done = (int64_t)left;
	int rc = 0;

	ahead_note(f, off, left);
	for (size_t i = left ? vfile_find(&f->v, off) : 0; !rc && left; i++) {
		const struct segment *s = &f->v.seg[i];
		uint64_t at = off - s->off;
		size_t n = (size_t)min_u64(left, s->len - at);

		switch (s->kind) {
		case SEG_BYTES:
			memcpy(buf, f->v.text.data + s->from + at, n);
			break;
		case SEG_LENT:
			memcpy(buf, (const char *)s->lent + at, n);
			break;
		case SEG_ZERO:
			memset(buf, 0, n);
			break;
		case SEG_TENSOR:
			rc = f->reader ? tensor_read(f->engine->fetch, f->reader, buf, n, at, parts,
						     e)
				       : read_one_of_many(f, s->id, buf, n, at, parts, e);
			break;
		case SEG_OBJECT:
			rc = read_object(f->engine, s->id, buf, n, at, e);
			break;
		case SEG_FILE:
			rc = assets_read(&f->engine->assets, s->id, buf, n, s->from + at, e);
			break;
		}
		buf += n;
		off += n;
		left -= n;
	}
	return rc ? rc : done;
}

int64_t ckpt_file_read(struct ckpt_file *f, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	int64_t n = file_read(f, buf, len, off, NULL, e);

	if (n >= 0 && !f->ahead.wanted) /* else the reader need not wait for that */
		ahead_announce(f);
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

	parts_start(&parts->p, f->engine ? f->engine->files : NULL, buf, PARTS_MIN_RUN);
	n = file_read(f, buf, len, off, &parts->p, e);
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
