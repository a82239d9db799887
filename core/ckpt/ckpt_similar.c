/* SPDX-License-Identifier: Apache-2.0 */
/* Suggests names similar to one that does not exist. */
#include <ckptfs/ckpt.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/nearest.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "tree/view.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 512 }; /* bytes of a name; longer ones are not suggested */

/* Names in printable form. */
struct names {
	size_t n;
	char v[NEAREST_MAX][SHOWN];
};

/* Tensors, objects and the model's tensor names, in one numbering. */
static bool name_at(const struct ckpt *c, uint64_t i, const char **ret, size_t *ret_len)
{
	const struct ckpt_totals *t = &c->totals;
	struct tensor_info v;

	if (i < t->tensors) {
		view_tensor(c->engine->view, i, &v);
	} else if (i - t->tensors < t->objects) {
		(void)view_object(c->engine->view, i - t->tensors, ret, ret_len);
		return true;
	} else if (t->has_model && i - t->tensors - t->objects < t->model_tensors) {
		view_model_tensor(c->engine->view, i - t->tensors - t->objects, &v);
	} else {
		return false;
	}
	*ret = v.fqn;
	*ret_len = v.fqn_len;
	return true;
}

/* "'a', 'b' or 'c'", as many as fit. */
static size_t say(const struct names *names, char *buf, size_t cap)
{
	size_t len = 0, next;

	buf[0] = 0;
	for (size_t i = 0; i < names->n; i++, len = next) {
		next = len + strlen(names->v[i]) + (i ? strlen(" or ''") : strlen("''"));
		if (next >= cap)
			break;
		(void)snprintf(buf + len, cap - len, "%s'%s'",
			       !i		  ? ""
			       : i + 1 < names->n ? ", "
						  : " or ",
			       names->v[i]);
		next = strlen(buf);
	}
	return len;
}

/* Skips names that are present already or too long. */
static void add(struct names *names, const char *s, size_t len)
{
	if (len * 3 + 8 > SHOWN)
		return;
	(void)text_show(s, len, names->v[names->n], SHOWN);
	for (size_t i = 0; i < names->n; i++)
		if (!strcmp(names->v[i], names->v[names->n]))
			return;
	names->n++;
}

/* Names in a directory, as paths that begin with the n_dir bytes at path. */
static size_t similar_entries(const struct ckpt *c, ckpt_node dir, const char *path, size_t n_dir,
			      const char *name, size_t name_len, char *buf, size_t cap)
{
	struct nearest near = NEAREST_INIT(name, name_len);
	char entry[CKPT_NAME_MAX + 1], whole[SHOWN];
	struct names names = { 0 };
	uint64_t pos;
	ckpt_node node;
	int len;

	for (pos = 0; near.steps && !c->tree->ops->next(c->tree, dir, &pos, entry, &node);)
		nearest_try(&near, entry, strlen(entry), pos - 1);
	for (size_t i = 0; i < near.n; i++) {
		pos = near.best[i].id;
		if (c->tree->ops->next(c->tree, dir, &pos, entry, &node))
			continue;
		len = snprintf(whole, sizeof(whole), "%.*s%s", (int)n_dir, path, entry);
		if (len < (int)sizeof(whole))
			add(&names, whole, (size_t)len);
	}
	return say(&names, buf, cap);
}

size_t ckpt_similar(const struct ckpt *c, const char *name, size_t len, char *buf, size_t cap)
{
	struct nearest near = NEAREST_INIT(name, len);
	struct names names = { 0 };
	const char *s;
	size_t s_len;

	if (!cap)
		return 0;
	if (c->run)
		return similar_entries(c, CKPT_ROOT, "", 0, name, len, buf, cap);
	for (uint64_t i = 0; name_at(c, i, &s, &s_len); i++)
		if (!bytes_equal(s, s_len, name, len))
			nearest_try(&near, s, s_len, i);
	for (size_t i = 0; i < near.n; i++)
		if (name_at(c, near.best[i].id, &s, &s_len))
			add(&names, s, s_len);
	return say(&names, buf, cap);
}

/* Finds the path for an FQN that was given instead of one. */
static size_t path_of_fqn(struct ckpt *c, const char *fqn, char *buf, size_t cap)
{
	char dir[CKPT_NAME_MAX + 1], entry[CKPT_NAME_MAX + 1];
	struct names names = { .n = 1 };
	ckpt_node node;

	if (ckpt_fqn_node(c, fqn, strlen(fqn), &node) || ckpt_name(c, node, entry) ||
	    ckpt_name(c, ckpt_parent(c, node), dir))
		return 0;
	if (snprintf(names.v[0], SHOWN, "%s/%s", dir, entry) >= SHOWN)
		return 0;
	return say(&names, buf, cap);
}

void ckpt_propose_path(struct ckpt *c, ckpt_node dir, const char *path, size_t n_dir,
		       const char *name, struct ckpt_err *e)
{
	static const char ask[] = "; did you mean ";
	size_t used = strlen(e->msg), at = used + strlen(ask), room, n = 0;

	if (at + sizeof("?") >= sizeof(e->msg))
		return;
	room = sizeof(e->msg) - at - strlen("?");
	if (dir == CKPT_ROOT && c->engine)
		n = path_of_fqn(c, path, e->msg + at, room);
	if (!n)
		n = similar_entries(c, dir, path, n_dir, name, strlen(name), e->msg + at, room);
	if (n) {
		memcpy(e->msg + used, ask, strlen(ask));
		memcpy(e->msg + at + n, "?", sizeof("?"));
	}
}

size_t ckpt_nearest(const char *name, size_t len, const char *const names[], size_t n)
{
	struct nearest near = NEAREST_INIT(name, len);

	for (size_t i = 0; i < n; i++)
		nearest_try(&near, names[i], strlen(names[i]), i);
	return near.n ? (size_t)near.best[0].id : n;
}
