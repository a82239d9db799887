/* SPDX-License-Identifier: Apache-2.0 */
#include "source/place.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "source/archive.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool place_is_settled(const struct place_seen *seen)
{
	uint64_t now = clock_wall_ns(), then = seen->mtime_ns;

	return then % CLOCK_SECOND || max_u64(now, then) - min_u64(now, then) >= PLACE_SETTLED_NS;
}

bool place_is_remote(const char *address)
{
	return text_is_address(address);
}

int place_open(const char *address, const struct place_options *o, struct place **ret,
	       char **ret_root, const char **ret_file, struct ckpt_err *e)
{
	static const struct place_options none;
	struct place *place, *archive;
	const char *file;
	char *root;
	int rc;

	if (place_is_remote(address))
		rc = remote_open(address, o ? o : &none, &place, &root, &file, e);
	else
		rc = local_open(address, o ? o : &none, &place, &root, &file, e);
	if (rc)
		return rc;
	rc = file && archive_is_name(file) ? archive_open(place, root, file, &archive, e) : 1;
	if (rc < 0) {
		place_free(place);
		free(root);
		return rc;
	}
	*ret = rc ? place : archive;
	*ret_root = root;
	*ret_file = rc ? file : NULL; /* an archive is like a directory */
	return 0;
}

void place_free(struct place *p)
{
	if (p)
		p->ops->free(p);
}

void place_id_hex(const struct place_id *id, char ret[static PLACE_ID_HEX])
{
	*ret = 0;
	for (size_t i = 0; i < id->len; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", id->v[i]);
}

int place_look(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	return p->ops->look(p, path, true, ret, e);
}

int place_look_at(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	return p->ops->look(p, path, false, ret, e);
}

int place_find(struct place *p, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	int rc = place_look(p, path, ret, e);

	return rc > 0 ? 0 : rc < 0 ? rc : err_sys(e, ENOENT, "look for '%s'", path);
}

int place_list(struct place *p, const char *dir, place_entry_fn *each, void *arg,
	       struct ckpt_err *e)
{
	return p->ops->list(p, dir, each, arg, e);
}

int place_sub(struct place *p, const char *name, struct place **ret, struct ckpt_err *e)
{
	return p->ops->sub(p, name, ret, e);
}

int place_file(struct place *p, const char *path, struct source **ret, struct ckpt_err *e)
{
	return p->ops->file(p, path, ret, e);
}

int64_t place_link(struct place *p, const char *name, char *buf, size_t cap)
{
	return p->ops->link ? p->ops->link(p, name, buf, cap) : -1;
}

int64_t place_tip(struct place *p, char *buf, size_t cap)
{
	return p->ops->tip ? p->ops->tip(p, buf, cap) : -ENOTSUP;
}

const char *place_beyond(const struct place *p)
{
	return p->ops->beyond ? p->ops->beyond(p) : NULL;
}

const char *place_within(struct place *p, const char *path, uint64_t *ret_off)
{
	return p->ops->within ? p->ops->within(p, path, ret_off) : NULL;
}

bool place_made(struct place *p, const char *path, struct place_made *ret)
{
	return p->ops->made && p->ops->made(p, path, ret);
}

enum place_change place_compare(const struct place *p, const struct place_id *before,
				const struct place_id *now)
{
	if (place_id_equal(before, now))
		return PLACE_SAME;
	return p->ops->compare ? p->ops->compare(before, now) : PLACE_ANOTHER;
}

void place_leave_ctime(const struct place *p, struct place_id *id)
{
	if (p->ops->leave_ctime)
		p->ops->leave_ctime(id);
}

const char *place_origin(const struct place *p)
{
	return p->ops->origin ? p->ops->origin(p) : NULL;
}

bool place_network(struct place *p, struct place_network *ret)
{
	if (!p->ops->network)
		return false;
	p->ops->network(p, ret);
	return true;
}

int place_fd(const struct place *p)
{
	return p->ops->fd ? p->ops->fd(p) : -1;
}
