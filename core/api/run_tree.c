/* SPDX-License-Identifier: Apache-2.0 */
#include "api/run_tree.h"

#include "api/ckpt_internal.h"
#include "api/run.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "view/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- nodes ---- */

/* The run's own. LINK + slot: `latest`, leading to that slot's checkpoint. */
#define CONTROL ((ckpt_node)2)
#define INFO	((ckpt_node)3)
#define LINK	((ckpt_node)1 << 16)

static const char control_name[] = ".ckptfs", info_name[] = "info.json", link_name[] = "latest";

/* Positions in the root: CONTROL, the link, slot 1, slot 2, ... */
enum { POS_CONTROL, POS_LINK, POS_SLOTS };

_Static_assert(VIEW_NODE_BITS == 48 && RUN_MAX_SLOT < 1u << 16, "a node has 64 bits");

static ckpt_node node_of(unsigned slot, ckpt_node local)
{
	return (ckpt_node)slot << VIEW_NODE_BITS | local;
}

static unsigned slot_of(ckpt_node node)
{
	return (unsigned)(node >> VIEW_NODE_BITS);
}

static ckpt_node local_of(ckpt_node node)
{
	return node & (((ckpt_node)1 << VIEW_NODE_BITS) - 1);
}

/* Slot that the link leads to, or 0: it is none. */
static unsigned target_of(ckpt_node node)
{
	return node >= LINK && node <= LINK + RUN_MAX_SLOT ? (unsigned)(node - LINK) : 0;
}

static int no_such_node(ckpt_node node, struct ckpt_err *e)
{
	return err_set(e, ENOENT, "inode %llu: there is no such file", (unsigned long long)node);
}

static int is_gone(struct ckpt_err *e)
{
	return err_set(e, ESTALE, "the checkpoint is gone");
}

/* ---- names ---- */

static int root_lookup(struct ckpt *c, const char *name, ckpt_node *ret)
{
	unsigned slot;
	int rc;

	if (!strcmp(name, control_name)) {
		*ret = CONTROL;
		return 0;
	}
	rc = run_find(c->run, name, &slot);
	if (!rc)
		*ret = node_of(slot, CKPT_ROOT);
	if (rc <= 0 || strcmp(name, link_name) != 0 || run_latest(c->run, &slot))
		return rc;
	*ret = LINK + slot;
	return 0;
}

int run_tree_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret)
{
	unsigned slot = slot_of(dir);
	struct run_child *k;
	struct ckpt_err ignored;
	int rc;

	if (dir == CKPT_ROOT)
		return root_lookup(c, name, ret);
	if (dir == CONTROL && !strcmp(name, info_name)) {
		*ret = INFO;
		return 0;
	}
	if (!slot)
		return 1;
	rc = run_use(c->run, slot, &k, &ignored);
	if (rc)
		return rc;
	rc = ckpt_lookup(k->ckpt, local_of(dir), name, ret);
	run_done(c->run, k);
	if (!rc)
		*ret = node_of(slot, *ret);
	return rc;
}

/* `rest` is what follows the first name in the path. */
static int walk_on(struct ckpt *c, ckpt_node at, const char *rest, ckpt_node *ret,
		   struct ckpt_err *e)
{
	struct run_child *k;
	int rc;

	rest += strspn(rest, "/");
	if (target_of(at))
		at = node_of(target_of(at), CKPT_ROOT);
	*ret = at;
	if (!*rest)
		return 0;
	if (!slot_of(at))
		return run_tree_lookup(c, at, rest, ret) ? -ENOENT : 0;
	rc = run_use(c->run, slot_of(at), &k, e);
	if (rc)
		return rc;
	rc = ckpt_walk(k->ckpt, rest, ret, e);
	run_done(c->run, k);
	*ret = node_of(slot_of(at), *ret);
	return rc;
}

/* The first name of a path, "" if it has none or ENAMETOOLONG; and what follows it. */
static int first_name(const char *path, char name[static CKPT_NAME_MAX + 1], const char **rest)
{
	size_t n;

	do {
		path += strspn(path, "/");
		n = strcspn(path, "/");
		*rest = path + n;
	} while (n == 1 && *path == '.' && (path = *rest));
	if (n > CKPT_NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, path, n);
	name[n] = 0;
	return 0;
}

int run_tree_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	ckpt_node at = CKPT_ROOT, found = CKPT_ROOT;
	const char *rest;
	int rc = first_name(path, name, &rest);

	if (!rc && *name) {
		rc = root_lookup(c, name, &at);
		if (!rc)
			rc = walk_on(c, at, rest, &found, e);
		else if (rc < 0)
			return err_sys(e, -rc, "look for '%s'", path);
		else if (run_incomplete(c->run, name, e))
			return -ENOENT;
		else
			rc = -ENOENT;
	}
	if (rc == -ENOENT || rc == -ENAMETOOLONG)
		return err_set(e, ENOENT, "'%s': there is no such file in the tree of the run",
			       path);
	if (!rc)
		*ret = found;
	return rc;
}

int ckpt_run_pick(struct ckpt *c, const char *path, char **ret, const char **ret_rest,
		  struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	struct run_about about;
	unsigned slot = 0;
	ckpt_node node;

	if (!first_name(path, name, ret_rest) && *name) {
		if (!root_lookup(c, name, &node))
			slot = target_of(node) ? target_of(node) : slot_of(node);
		else if (run_incomplete(c->run, name, e))
			return -ENOENT;
	}
	if (!slot || run_about(c->run, slot, &about))
		return err_set(
			e, ENOENT,
			"'%s': it is a run; the path has to begin with one of its checkpoints",
			path);
	if (asprintf(ret, "%s/%s%s%s", c->root, about.name, about.inner ? "/" : "",
		     about.inner ? about.inner : "") < 0) {
		*ret = NULL;
		return err_set(e, ENOMEM, "out of memory");
	}
	*ret_rest += strspn(*ret_rest, "/");
	return 0;
}

ckpt_node run_tree_parent(struct ckpt *c, ckpt_node node)
{
	struct run_child *k;
	struct ckpt_err ignored;
	ckpt_node up;

	if (node == INFO)
		return CONTROL;
	if (!slot_of(node) || local_of(node) == CKPT_ROOT ||
	    run_use(c->run, slot_of(node), &k, &ignored))
		return CKPT_ROOT;
	up = node_of(slot_of(node), ckpt_parent(k->ckpt, local_of(node)));
	run_done(c->run, k);
	return up;
}

int run_tree_enter(struct ckpt *c, ckpt_node dir, struct ckpt_err *e)
{
	struct run_child *k;
	int rc;

	if (dir == CKPT_ROOT)
		return run_refresh(c->run, false, e);
	if (!slot_of(dir))
		return 0;
	rc = run_use(c->run, slot_of(dir), &k, e);
	if (!rc)
		run_done(c->run, k);
	return rc;
}

static int root_next(struct ckpt *c, uint64_t *pos, char name[static CKPT_NAME_MAX + 1],
		     ckpt_node *ret)
{
	struct run_about about;
	unsigned slot;

	if (*pos == POS_CONTROL) {
		(void)stpcpy(name, control_name);
		*ret = CONTROL;
		++*pos;
		return 0;
	}
	if (*pos == POS_LINK && ++*pos && !root_lookup(c, link_name, ret) && target_of(*ret)) {
		(void)stpcpy(name, link_name);
		return 0;
	}
	if (*pos > POS_SLOTS + RUN_MAX_SLOT)
		return 1;
	slot = (unsigned)(*pos - POS_SLOTS) + 1;
	if (run_next(c->run, &slot, &about))
		return 1;
	(void)stpcpy(name, about.name);
	*ret = node_of(slot, CKPT_ROOT);
	*pos = slot + POS_SLOTS;
	return 0;
}

int run_tree_next(struct ckpt *c, ckpt_node dir, uint64_t *pos, char name[static CKPT_NAME_MAX + 1],
		  ckpt_node *ret)
{
	struct run_child *k;
	struct ckpt_err ignored;
	int rc;

	if (dir == CKPT_ROOT)
		return root_next(c, pos, name, ret);
	if (dir == CONTROL && !*pos) {
		(void)stpcpy(name, info_name);
		*ret = INFO;
		++*pos;
		return 0;
	}
	if (!slot_of(dir))
		return 1;
	rc = run_use(c->run, slot_of(dir), &k, &ignored);
	if (rc)
		return rc;
	rc = ckpt_next(k->ckpt, local_of(dir), pos, name, ret);
	run_done(c->run, k);
	if (!rc)
		*ret = node_of(slot_of(dir), *ret);
	return rc;
}

/* ---- attributes ---- */

/* Of the run's own nodes and of a checkpoint's root, which need no checkpoint to be open. */
static int own_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	struct run_about about;
	struct stat st;

	*ret = (struct ckpt_stat){ .node = node, .changes = true };
	if (slot_of(node)) {
		if (run_about(c->run, slot_of(node), &about))
			return is_gone(e);
		ret->is_dir = true;
		ret->mtime_ns = about.mtime_ns;
		return 0;
	}
	ret->is_link = target_of(node);
	ret->is_dir = node == CKPT_ROOT || node == CONTROL;
	if (!ret->is_link && !ret->is_dir && node != INFO)
		return no_such_node(node, e);
	if (!fstat(c->dirfd, &st))
		ret->mtime_ns = io_mtime_ns(&st);
	return 0;
}

static bool is_own(ckpt_node node)
{
	return !slot_of(node) || local_of(node) == CKPT_ROOT;
}

static int child_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e,
		      int (*stat_fn)(struct ckpt *, ckpt_node, struct ckpt_stat *,
				     struct ckpt_err *))
{
	struct run_child *k;
	int rc = run_use(c->run, slot_of(node), &k, e);

	if (rc)
		return rc;
	rc = stat_fn(k->ckpt, local_of(node), ret, e);
	run_done(c->run, k);
	ret->node = node;
	return rc;
}

int run_tree_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	return is_own(node) ? own_type(c, node, ret, e) : child_stat(c, node, ret, e, ckpt_type);
}

int run_tree_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	char target[CKPT_NAME_MAX + 1];
	autofree char *info = NULL;
	size_t n = 0;
	int64_t len;
	int rc;

	if (!is_own(node))
		return child_stat(c, node, ret, e, ckpt_stat);
	rc = own_type(c, node, ret, e);
	if (rc)
		return rc;
	if (ret->is_link) {
		len = run_tree_readlink(c, node, target, e);
		rc = len < 0 ? (int)len : 0;
		ret->size = rc ? 0 : (uint64_t)len;
	} else if (node == INFO) {
		rc = run_info_json(c, &info, &n, e);
		ret->size = n;
	}
	return rc;
}

int64_t run_tree_readlink(struct ckpt *c, ckpt_node node, char out[static CKPT_NAME_MAX + 1],
			  struct ckpt_err *e)
{
	struct run_about about;
	struct run_child *k;
	int64_t n;

	if (target_of(node)) {
		if (run_about(c->run, target_of(node), &about))
			return is_gone(e);
		return stpcpy(out, about.name) - out;
	}
	if (is_own(node))
		return err_set(e, EINVAL, "it is no link");
	n = run_use(c->run, slot_of(node), &k, e);
	if (n)
		return n;
	n = ckpt_readlink(k->ckpt, local_of(node), out, e);
	run_done(c->run, k);
	return n;
}

int64_t run_tree_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
		       struct ckpt_err *e)
{
	struct run_child *k;
	int64_t n;

	if (is_own(node))
		return err_set(e, ENODATA, "no attribute '%s'", name);
	n = run_use(c->run, slot_of(node), &k, e);
	if (n)
		return n;
	n = ckpt_xattr(k->ckpt, local_of(node), name, buf, cap, e);
	run_done(c->run, k);
	return n;
}

int64_t run_tree_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap)
{
	struct run_child *k;
	struct ckpt_err ignored;
	int64_t n;

	if (is_own(node))
		return 0;
	n = run_use(c->run, slot_of(node), &k, &ignored);
	if (n)
		return n;
	n = ckpt_xattr_names(k->ckpt, local_of(node), buf, cap);
	run_done(c->run, k);
	return n;
}

/* ---- files ---- */

/* The list as it is now, which the file keeps. */
static int open_info(struct ckpt *c, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct ckpt_file *f = calloc(1, sizeof(*f));
	autofree char *text = NULL;
	size_t len = 0;
	int rc = f ? 0 : err_set(e, ENOMEM, "out of memory");

	if (!rc)
		rc = run_refresh(c->run, false, e);
	if (!rc)
		rc = run_info_json(c, &text, &len, e);
	if (rc) {
		free(f);
		return rc;
	}
	f->c = c;
	f->v = (struct vfile)VFILE_INIT;
	vfile_bytes(&f->v, text, len);
	rc = vfile_done(&f->v, e);
	if (rc)
		ckpt_file_close(f);
	else
		*ret = f;
	return rc;
}

int run_tree_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct ckpt_stat st;
	struct run_child *k;
	int rc;

	if (node == INFO)
		return open_info(c, ret, e);
	if (is_own(node)) {
		rc = own_type(c, node, &st, e);
		return rc	    ? rc
		       : st.is_link ? err_set(e, ELOOP, "it is a link")
				    : err_set(e, EISDIR, "it is a directory");
	}
	rc = run_use(c->run, slot_of(node), &k, e);
	if (rc)
		return rc;
	rc = ckpt_file_open(k->ckpt, local_of(node), ret, e);
	if (rc) {
		run_done(c->run, k);
		return rc;
	}
	(*ret)->run = c->run; /* closing it ends the use */
	(*ret)->child = k;
	return 0;
}

int run_tree_sources(struct ckpt *c, ckpt_node node,
		     int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		     struct ckpt_err *e)
{
	struct run_child *k;
	int rc;

	if (!slot_of(node))
		return 0;
	rc = run_use(c->run, slot_of(node), &k, e);
	if (rc)
		return rc;
	rc = ckpt_sources(k->ckpt, local_of(node), each, arg, e);
	run_done(c->run, k);
	return rc;
}

void run_tree_blame(const struct ckpt_file *f, struct ckpt_err *e)
{
	struct run_about about;

	if (!run_about(f->run, f->child->slot, &about) && about.gone)
		(void)err_wrap(e, "checkpoint '%s', which is gone", about.name);
}
