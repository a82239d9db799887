/* SPDX-License-Identifier: Apache-2.0 */
/* Operations common to all trees, those of checkpoints and of runs, and the walk over paths. */
#include <ckptfs/ckpt_mount.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "source/place.h"
#include "tree/tree.h"

#include <stdio.h>
#include <string.h>

int ckpt_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret)
{
	return c->tree->ops->lookup(c->tree, dir, name, ret);
}

ckpt_node ckpt_parent(struct ckpt *c, ckpt_node node)
{
	return c->tree->ops->parent(c->tree, node);
}

int ckpt_name(struct ckpt *c, ckpt_node node, char name[static CKPT_NAME_MAX + 1])
{
	return c->tree->ops->name(c->tree, node, name);
}

int ckpt_enter(struct ckpt *c, ckpt_node dir, struct ckpt_err *e)
{
	return c->tree->ops->enter ? c->tree->ops->enter(c->tree, dir, e) : 0;
}

int ckpt_next(struct ckpt *c, ckpt_node dir, uint64_t *pos, char name[static CKPT_NAME_MAX + 1],
	      ckpt_node *ret)
{
	return c->tree->ops->next(c->tree, dir, pos, name, ret);
}

int ckpt_entry(struct ckpt *c, ckpt_node dir, uint64_t pos, char name[static CKPT_NAME_MAX + 1],
	       ckpt_node *ret)
{
	uint64_t next = pos;

	return ckpt_next(c, dir, &next, name, ret) || next != pos + 1;
}

int ckpt_type_sized(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, size_t size,
		    struct ckpt_err *e)
{
	struct ckpt_stat st;
	int rc = c->tree->ops->type(c->tree, node, &st, e);

	if (!rc)
		SIZED_GIVE(ret, size, st);
	return rc;
}

int ckpt_stat_sized(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, size_t size,
		    struct ckpt_err *e)
{
	struct ckpt_stat st;
	int rc = c->tree->ops->stat(c->tree, node, &st, e);

	if (!rc)
		SIZED_GIVE(ret, size, st);
	return rc;
}

int64_t ckpt_readlink(struct ckpt *c, ckpt_node node, char out[static CKPT_NAME_MAX + 1],
		      struct ckpt_err *e)
{
	return c->tree->ops->readlink(c->tree, node, out, e);
}

int64_t ckpt_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
		   struct ckpt_err *e)
{
	return c->tree->ops->xattr(c->tree, node, name, buf, cap, e);
}

int64_t ckpt_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap)
{
	return c->tree->ops->xattr_names(c->tree, node, buf, cap);
}

int ckpt_file_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e)
{
	return c->tree->ops->file_open(c->tree, node, ret, e);
}

int ckpt_sources(struct ckpt *c, ckpt_node node,
		 int (*each)(void *arg, const struct ckpt_source *s), void *arg, struct ckpt_err *e)
{
	return c->tree->ops->sources(c->tree, node, each, arg, e);
}

void ckpt_counters_sized(struct ckpt *c, struct ckpt_counters *ret, size_t size)
{
	struct ckpt_counters n;

	c->tree->ops->counters(c->tree, &n);
	SIZED_GIVE(ret, size, n);
}

bool ckpt_network_sized(struct ckpt *c, struct ckpt_network *ret, size_t size)
{
	struct place_network p;
	struct ckpt_network n = { 0 };

	if (!place_network(c->place, &p))
		return false;
	n = (struct ckpt_network){ .requests = p.requests,
				   .bytes = p.bytes,
				   .retries = p.retries,
				   .hedges = p.hedges,
				   .latency_us = p.latency_us,
				   .connection_bps = p.connection_bps,
				   .total_bps = p.total_bps,
				   .window_bytes = p.window,
				   .cache_hits = p.hits,
				   .cache_misses = p.misses,
				   .restarts = p.restarts,
				   .cache_size = p.kept };
	memcpy(n.cache_note, p.note, sizeof(n.cache_note));
	SIZED_GIVE(ret, size, n);
	return true;
}

int ckpt_info_json(struct ckpt *c, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	return c->tree->ops->info_json(c->tree, ret, ret_len, e);
}

/* n_dir: offset of the name in path; SIZE_MAX: it is not in path. */
static int no_such_file(struct ckpt *c, ckpt_node dir, const char *name, const char *path,
			size_t n_dir, struct ckpt_err *e)
{
	size_t n;

	if (c->tree->ops->absent && c->tree->ops->absent(c->tree, dir, name, path, e))
		return -e->code;
	(void)err_set(e, ENOENT, "'%s': there is no such file in the tree", path);
	n = strlen(e->msg);
	if (n_dir != SIZE_MAX)
		ckpt_propose_path(c, dir, path, n_dir, name, e);
	if (dir == CKPT_ROOT && c->run && !e->msg[n])
		(void)snprintf(
			e->msg + n, sizeof(e->msg) - n,
			"; it is a run: the path has to begin with one of its checkpoints, as "
			"in 'latest/hf'");
	return -ENOENT;
}

/* Starts at a directory; links are followed. `whole` is for the message. */
static int walk(struct ckpt *c, ckpt_node at, const char *path, const char *whole, ckpt_node *ret,
		struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1], target[CKPT_NAME_MAX + 1];
	struct ckpt_stat st;
	size_t n;
	int rc = 0;

	for (const char *p = path; !rc && *p; p += n + (p[n] == '/')) {
		n = strcspn(p, "/");
		memcpy(name, p, min_u64(n, CKPT_NAME_MAX));
		name[min_u64(n, CKPT_NAME_MAX)] = 0;
		if (!n || !strcmp(name, "."))
			continue;
		rc = ckpt_enter(c, at, e);
		if (rc)
			return rc;
		rc = n > CKPT_NAME_MAX ? 1 : ckpt_lookup(c, at, name, ret);
		if (rc > 0)
			return no_such_file(c, at, name, whole,
					    path == whole ? (size_t)(p - path) : SIZE_MAX, e);
		if (rc < 0)
			return err_sys(e, -rc, "look for '%s'", whole);
		at = *ret;
		rc = ckpt_type(c, at, &st, e);
		if (rc || !st.is_link)
			continue;
		rc = ckpt_readlink(c, at, target, e) < 0 ? -e->code : 0;
		if (!rc)
			rc = walk(c, ckpt_parent(c, at), target, whole, &at, e);
		if (!rc)
			rc = ckpt_type(c, at, &st, e);
		/* nothing may follow a file's name, not even '.' */
		if (!rc && !st.is_dir && p[n] && p[n + 1])
			return no_such_file(c, at, "", whole, SIZE_MAX, e);
	}
	if (!rc)
		*ret = at;
	return rc;
}

int ckpt_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct ckpt_err *e)
{
	ckpt_node found;
	int rc = walk(c, CKPT_ROOT, path, path, &found, e);

	if (!rc)
		*ret = found;
	return rc;
}
