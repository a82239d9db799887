/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/run/run_tree.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "page/live_page.h"
#include "tree/view.h"

#include <string.h>

/* ---- nodes ---- */

/* The run's own nodes. LINK + slot: `latest`, pointing to that slot's checkpoint. */
#define CONTROL ((ckpt_node)2)
#define INFO	((ckpt_node)3)
#define PAGES	((ckpt_node)16) /* the directory view; then its files, by enum view_page */
#define LINK	((ckpt_node)1 << 16)

static const char control_name[] = ".ckptfs", info_name[] = "info.json", link_name[] = "latest",
		  pages_name[] = "view";
static const char *const page_names[] = {
	[VIEW_PAGE] = "index.html", [VIEW_PAGE_DATA] = "data.js"
};

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

/* The slot that a link node points to; 0: it is not a link. */
static unsigned target_of(ckpt_node node)
{
	return node >= LINK && node <= LINK + RUN_MAX_SLOT ? (unsigned)(node - LINK) : 0;
}

/* A file of PAGES. */
static bool is_page(ckpt_node node)
{
	return node > PAGES && node <= PAGES + ARRAY_LEN(page_names);
}

static const char *page_name(ckpt_node node)
{
	return page_names[node - PAGES - 1];
}

/* Is it one of the run's own nodes, or a checkpoint's root? */
static bool is_own(ckpt_node node)
{
	return !slot_of(node) || local_of(node) == CKPT_ROOT;
}

static int is_gone(struct ckpt_err *e)
{
	return err_set(e, ESTALE, "the checkpoint is gone");
}

/* A checkpoint that is held in use during an operation on one of its nodes. */
struct visit {
	struct ckpt_run *run;
	struct run_child *child; /* NULL: none */
};

static int visit(struct tree *t, ckpt_node node, struct visit *ret, struct ckpt_err *e)
{
	ret->run = run_of(t);
	return run_use(ret->run, slot_of(node), &ret->child, e);
}

static void leave(struct visit *v)
{
	if (v->child)
		run_done(v->run, v->child);
}

/* ---- names ---- */

static int root_lookup(struct ckpt_run *r, const char *name, ckpt_node *ret)
{
	unsigned slot;
	int rc;

	if (!strcmp(name, control_name)) {
		*ret = CONTROL;
		return 0;
	}
	rc = run_find(r, name, &slot);
	if (!rc)
		*ret = node_of(slot, CKPT_ROOT);
	if (rc <= 0 || strcmp(name, link_name) != 0 || run_latest(r, &slot))
		return rc;
	*ret = LINK + slot;
	return 0;
}

static int find_page(const char *name, ckpt_node *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(page_names); i++)
		if (!strcmp(name, page_names[i])) {
			*ret = PAGES + 1 + i;
			return 0;
		}
	return 1;
}

static int run_tree_lookup(struct tree *t, ckpt_node dir, const char *name, ckpt_node *ret)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_err ignored;
	int rc;

	if (dir == CKPT_ROOT)
		return root_lookup(run_of(t), name, ret);
	if (dir == CONTROL && !strcmp(name, info_name)) {
		*ret = INFO;
		return 0;
	}
	/* It is not listed, as in a checkpoint's tree. */
	if (dir == CONTROL && !strcmp(name, pages_name)) {
		*ret = PAGES;
		return 0;
	}
	if (dir == PAGES)
		return find_page(name, ret);
	if (!slot_of(dir))
		return 1;
	rc = visit(t, dir, &v, &ignored);
	if (!rc)
		rc = ckpt_lookup(v.child->ckpt, local_of(dir), name, ret);
	if (!rc)
		*ret = node_of(slot_of(dir), *ret);
	return rc;
}

/* The first component of a path, "" if there is none, or ENAMETOOLONG; and the rest of the path. */
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

static int run_tree_absent(struct tree *t, ckpt_node dir, const char *name, const char *path,
			   struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_err ignored;
	struct tree *of;

	if (dir == CKPT_ROOT)
		return run_incomplete(run_of(t), name, e) ? -ENOENT : 0;
	if (!slot_of(dir) || visit(t, dir, &v, &ignored))
		return 0;
	of = v.child->ckpt->tree;
	return of->ops->absent ? of->ops->absent(of, local_of(dir), name, path, e) : 0;
}

int run_is_none(struct ckpt_err *e)
{
	return err_set(e, EINVAL, "it is a checkpoint, not a run");
}

int ckpt_run_open_sized(struct ckpt *c, const char *path, const char *const opts[],
			const struct ckpt_hooks *hooks, size_t size, struct ckpt **ret,
			const char **ret_rest, struct ckpt_err *e)
{
	struct arena words CLEANUP(arena_release) = ARENA_INIT(CKPT_MAX_WORDS);
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_opts o;
	const char *rest;
	unsigned slot = 0;
	ckpt_node node = CKPT_ROOT;
	struct ckpt_err why = { 0 };
	int rc;

	if (!c->run)
		return run_is_none(e);
	if (!first_name(path, name, &rest) && *name) {
		if (!root_lookup(c->run, name, &node))
			slot = target_of(node) ? target_of(node) : slot_of(node);
		else if (run_incomplete(c->run, name, e))
			return -ENOENT;
	}
	if (!slot)
		return err_set(
			e, ENOENT,
			"'%s': it is a run; the path has to begin with one of its checkpoints, as "
			"in 'latest/hf'",
			path);
	rc = ckpt_opts_parse(opts, hooks, size, &words, &o, &why);
	/* It was opened to find out if it can be, so its warnings were issued. */
	if (target_of(node) && run_was_open(c->run, slot) && o.warn == c->run->opts.warn)
		o.warn = NULL;
	if (!rc)
		rc = run_open(c->run, slot, &o, ret, &why);
	if (rc) {
		*e = why;
		return rc;
	}
	ckpt_keep_words(*ret, &words);
	*ret_rest = rest + strspn(rest, "/");
	return 0;
}

static ckpt_node run_tree_parent(struct tree *t, ckpt_node node)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_err ignored;

	if (node == INFO || node == PAGES)
		return CONTROL;
	if (is_page(node))
		return PAGES;
	if (is_own(node) || visit(t, node, &v, &ignored))
		return CKPT_ROOT;
	return node_of(slot_of(node), ckpt_parent(v.child->ckpt, local_of(node)));
}

/* For the run's own nodes and a checkpoint's root. */
static int own_name(struct ckpt_run *r, ckpt_node node, char name[static CKPT_NAME_MAX + 1])
{
	const char *own = node == CONTROL   ? control_name
			  : node == INFO    ? info_name
			  : node == PAGES   ? pages_name
			  : is_page(node)   ? page_name(node)
			  : target_of(node) ? link_name
					    : NULL;
	struct run_about about;

	if (!slot_of(node) && !own)
		return 1;
	if (slot_of(node) && run_about(r, slot_of(node), &about))
		return -ESTALE;
	(void)stpcpy(name, own ? own : about.name);
	return 0;
}

static int run_tree_name(struct tree *t, ckpt_node node, char name[static CKPT_NAME_MAX + 1])
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_err ignored;
	int rc;

	if (is_own(node))
		return own_name(run_of(t), node, name);
	rc = visit(t, node, &v, &ignored);
	return rc ? rc : ckpt_name(v.child->ckpt, local_of(node), name);
}

static int run_tree_enter(struct tree *t, ckpt_node dir, struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };

	if (dir == CKPT_ROOT)
		return run_refresh(run_of(t), false, e);
	return slot_of(dir) ? visit(t, dir, &v, e) : 0;
}

static int root_next(struct ckpt_run *r, uint64_t *pos, char name[static CKPT_NAME_MAX + 1],
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
	if (*pos == POS_LINK && ++*pos && !root_lookup(r, link_name, ret) && target_of(*ret)) {
		(void)stpcpy(name, link_name);
		return 0;
	}
	if (*pos > POS_SLOTS + RUN_MAX_SLOT)
		return 1;
	slot = (unsigned)(*pos - POS_SLOTS) + 1;
	if (run_next(r, &slot, &about))
		return 1;
	(void)stpcpy(name, about.name);
	*ret = node_of(slot, CKPT_ROOT);
	*pos = slot + POS_SLOTS;
	return 0;
}

static int run_tree_next(struct tree *t, ckpt_node dir, uint64_t *pos,
			 char name[static CKPT_NAME_MAX + 1], ckpt_node *ret)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_err ignored;
	int rc;

	if (dir == CKPT_ROOT)
		return root_next(run_of(t), pos, name, ret);
	if (dir == CONTROL && !*pos) {
		(void)stpcpy(name, info_name);
		*ret = INFO;
		++*pos;
		return 0;
	}
	if (dir == PAGES && *pos < ARRAY_LEN(page_names)) {
		*ret = PAGES + 1 + (*pos)++;
		(void)stpcpy(name, page_name(*ret));
		return 0;
	}
	if (!slot_of(dir))
		return 1;
	rc = visit(t, dir, &v, &ignored);
	if (!rc)
		rc = ckpt_next(v.child->ckpt, local_of(dir), pos, name, ret);
	if (!rc)
		*ret = node_of(slot_of(dir), *ret);
	return rc;
}

/* ---- attributes ---- */

/* For the run's own nodes and a checkpoint's root, which do not require an open checkpoint. */
static int own_type(struct ckpt_run *r, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	struct place_seen seen;
	struct run_about about;
	struct ckpt_err ignored;

	*ret = (struct ckpt_stat){ .node = node, .changes = true };
	if (slot_of(node)) {
		if (run_about(r, slot_of(node), &about))
			return is_gone(e);
		ret->is_dir = true;
		ret->mtime_ns = about.mtime_ns;
		return 0;
	}
	if (target_of(node) && run_about(r, target_of(node), &about))
		return is_gone(e);
	ret->is_link = target_of(node);
	ret->is_dir = node == CKPT_ROOT || node == CONTROL || node == PAGES;
	if (!ret->is_link && !ret->is_dir && node != INFO && !is_page(node))
		return ckpt_no_node(node, e);
	if (place_look(r->place, ".", &seen, &ignored) > 0)
		ret->mtime_ns = seen.mtime_ns;
	return 0;
}

static int run_tree_type(struct tree *t, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	int rc;

	if (is_own(node))
		return own_type(run_of(t), node, ret, e);
	rc = visit(t, node, &v, e);
	if (!rc)
		rc = ckpt_type(v.child->ckpt, local_of(node), ret, e);
	ret->node = node;
	return rc;
}

static int64_t run_tree_readlink(struct tree *t, ckpt_node node, char out[static CKPT_NAME_MAX + 1],
				 struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct run_about about;
	struct ckpt_stat type;
	int rc;

	if (target_of(node)) {
		if (run_about(run_of(t), target_of(node), &about))
			return is_gone(e);
		return stpcpy(out, about.name) - out;
	}
	if (is_own(node)) {
		rc = own_type(run_of(t), node, &type, e);
		return rc ? rc : err_set(e, EINVAL, "not a symbolic link");
	}
	rc = visit(t, node, &v, e);
	return rc ? rc : ckpt_readlink(v.child->ckpt, local_of(node), out, e);
}

/* The contents of INFO or of a page. */
static int own_text(struct tree *t, ckpt_node node, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct ckpt_run *r = run_of(t);
	struct ckpt run = { .tree = t, .run = r }; /* for functions that take any node */
	struct arena words CLEANUP(arena_release) = ARENA_INIT(2 * CKPT_MAX_WORDS);
	struct ckpt_opts o = r->opts;

	if (node == INFO)
		return run_info_json(t, ret, ret_len, e);
	if (node == PAGES + 1 + VIEW_PAGE)
		return live_page(r->root, ret, ret_len, e);
	if (ckpt_opts_words(&o, &words, &run.options, e))
		return -ENOMEM;
	return live_data(&run, r->root, run.options, false, ret, ret_len, e);
}

static int own_stat(struct tree *t, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	char target[CKPT_NAME_MAX + 1];
	autofree char *text = NULL;
	size_t n = 0;
	int64_t len;
	int rc = own_type(run_of(t), node, ret, e);

	if (rc)
		return rc;
	if (ret->is_link) {
		len = run_tree_readlink(t, node, target, e);
		rc = len < 0 ? (int)len : 0;
		ret->size = rc ? 0 : (uint64_t)len;
	} else if (!ret->is_dir) {
		rc = own_text(t, node, &text, &n, e);
		ret->size = n;
	}
	return rc;
}

static int run_tree_stat(struct tree *t, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	int rc;

	if (is_own(node))
		return own_stat(t, node, ret, e);
	rc = visit(t, node, &v, e);
	if (!rc)
		rc = ckpt_stat(v.child->ckpt, local_of(node), ret, e);
	ret->node = node;
	return rc;
}

static int64_t run_tree_xattr(struct tree *t, ckpt_node node, const char *name, char *buf,
			      size_t cap, struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	int rc;

	if (is_own(node))
		return err_set(e, ENODATA, "no attribute '%s'", name);
	rc = visit(t, node, &v, e);
	return rc ? rc : ckpt_xattr(v.child->ckpt, local_of(node), name, buf, cap, e);
}

static int64_t run_tree_xattr_names(struct tree *t, ckpt_node node, char *buf, size_t cap)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_err ignored;
	int rc;

	if (is_own(node))
		return 0;
	rc = visit(t, node, &v, &ignored);
	return rc ? rc : ckpt_xattr_names(v.child->ckpt, local_of(node), buf, cap);
}

/* ---- files ---- */

/* The file keeps the list as of now. */
static int open_text(struct tree *t, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct ckpt_file *f = ckpt_file_new(NULL, e);
	autofree char *text = NULL;
	size_t len = 0;
	int rc = f ? run_refresh(run_of(t), false, e) : -ENOMEM;

	if (!rc)
		rc = own_text(t, node, &text, &len, e);
	if (!rc) {
		vfile_bytes(&f->v, text, len);
		rc = vfile_done(&f->v, e);
	}
	return ckpt_file_opened(f, rc, ret);
}

static int run_tree_open(struct tree *t, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_stat st;
	int rc;

	if (node == INFO || is_page(node))
		return open_text(t, node, ret, e);
	if (is_own(node)) {
		rc = own_type(run_of(t), node, &st, e);
		return rc	    ? rc
		       : st.is_link ? err_set(e, ELOOP, "it is a link")
				    : err_set(e, EISDIR, "it is a directory");
	}
	rc = visit(t, node, &v, e);
	if (!rc)
		rc = ckpt_file_open(v.child->ckpt, local_of(node), ret, e);
	if (rc)
		return rc;
	(*ret)->run = v.run;
	(*ret)->child = steal_ptr(&v.child); /* closing the file ends the use */
	return 0;
}

static int run_tree_sources(struct tree *t, ckpt_node node,
			    int (*each)(void *arg, const struct ckpt_source *s), void *arg,
			    struct ckpt_err *e)
{
	struct visit v CLEANUP(leave) = { 0 };
	struct ckpt_stat type;
	int rc = slot_of(node) ? visit(t, node, &v, e) : own_type(run_of(t), node, &type, e);

	return rc || !v.child ? rc : ckpt_sources(v.child->ckpt, local_of(node), each, arg, e);
}

static void run_tree_counters(struct tree *t, struct ckpt_counters *ret)
{
	run_counters(run_of(t), ret);
}

struct tree *run_tree(struct ckpt_run *r)
{
	static const struct tree_ops ops = {
		.lookup = run_tree_lookup,
		.absent = run_tree_absent,
		.parent = run_tree_parent,
		.name = run_tree_name,
		.enter = run_tree_enter,
		.next = run_tree_next,
		.type = run_tree_type,
		.stat = run_tree_stat,
		.readlink = run_tree_readlink,
		.xattr = run_tree_xattr,
		.xattr_names = run_tree_xattr_names,
		.file_open = run_tree_open,
		.sources = run_tree_sources,
		.counters = run_tree_counters,
		.info_json = run_info_json,
	};

	r->tree.ops = &ops;
	return &r->tree;
}

void run_tree_blame(const struct ckpt_file *f, struct ckpt_err *e)
{
	struct run_about about;

	if (!run_about(f->run, f->child->slot, &about) && about.gone)
		(void)err_wrap(e, "checkpoint '%s', which is gone", about.name);
}
