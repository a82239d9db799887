/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_upload.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/open/ckpt_options.h"
#include "source/place.h"
#include "source/writing.h"

#include <stdlib.h>
#include <string.h>

struct ckpt_upload {
	struct writing *w;
	char *name; /* of the single file; NULL: there are several */
};

static int refuse_entry(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)kind;
	return err_set(e, EEXIST, "'%s' exists already: it has '%s'", (const char *)arg, name);
}

/* Nothing is replaced. */
static int refuse_existing(struct ckpt_upload *u, const char *address, struct ckpt_err *e)
{
	struct place *p = writing_place(u->w);
	struct place_seen seen;
	struct ckpt_err why = { 0 };
	int rc;

	if (u->name) {
		rc = place_look(p, u->name, &seen, e);
		return rc > 0 ? err_set(e, EEXIST, "'%s' exists already", address) : rc;
	}
	rc = place_list(p, ".", refuse_entry, (void *)(uintptr_t)address, &why);
	if (rc == -ENOENT) /* no key begins like that */
		return 0;
	if (rc)
		*e = why;
	return rc;
}

/* Splits off the name of a single file. */
static int split(const char *address, bool is_file, char **ret_parent, char **ret_name,
		 struct ckpt_err *e)
{
	autofree char *parent = strdup(address);
	char *from = parent ? strstr(parent, "://") : NULL, *slash, shown[200];

	if (!parent)
		return err_nomem(e);
	slash = from ? strrchr(from + 3, '/') : NULL;
	if (is_file) {
		if (!slash || !slash[1])
			return err_set(e, EINVAL, "'%s' does not name a file: add its name",
				       text_show_address(address, shown, sizeof(shown)));
		*ret_name = strdup(slash + 1);
		if (!*ret_name)
			return err_nomem(e);
		*slash = 0;
	}
	*ret_parent = steal_ptr(&parent);
	return 0;
}

int ckpt_upload_begin(const char *address, bool is_file, const char *const opts[],
		      struct ckpt_upload **ret, struct ckpt_err *e)
{
	struct arena a CLEANUP(arena_release) = ARENA_INIT(2 * CKPT_MAX_WORDS);
	struct ckpt_upload *u = calloc(1, sizeof(*u));
	struct place_options place;
	struct ckpt_opts o = { 0 };
	autofree char *parent = NULL;
	char left[64], shown[200];
	int rc = u ? 0 : err_nomem(e);

	if (!rc && !text_is_address(address))
		rc = err_set(e, EINVAL, "'%s' is not an address",
			     text_show_address(address, shown, sizeof(shown)));
	if (!rc && opts)
		rc = ckpt_opts_parse(opts, NULL, 0, &a, &o, e);
	if (!rc)
		rc = split(address, is_file, &parent, &u->name, e);
	place = ckpt_opts_place(&o);
	if (!rc)
		rc = writing_open(parent, &place, &u->w, e);
	if (!rc)
		rc = writing_begin(u->w, true, e);
	if (!rc)
		rc = refuse_existing(u, address, e);
	if (rc)
		ckpt_upload_end(u, left, sizeof(left));
	else
		*ret = u;
	return rc;
}

uint64_t ckpt_upload_part_size(uint64_t size)
{
	return writing_part_size(size);
}

int ckpt_upload_part(struct ckpt_upload *u, uint32_t file, const char *path, uint64_t size,
		     unsigned number,
		     int (*read)(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e),
		     void *arg, struct ckpt_err *e)
{
	return writing_part(u->w, file, u->name ? u->name : path, size, number, read, arg, e);
}

int ckpt_upload_last(struct ckpt_upload *u, const char *path, struct ckpt_err *e)
{
	return writing_name(u->w, WRITING_LAST, u->name ? u->name : path, e);
}

int ckpt_upload_commit(struct ckpt_upload *u, struct ckpt_err *e)
{
	return writing_commit(u->w, e);
}

void ckpt_upload_end(struct ckpt_upload *u, char *left, size_t cap)
{
	char unwanted[1];

	if (!cap) {
		left = unwanted;
		cap = sizeof(unwanted);
	}
	*left = 0;
	if (!u)
		return;
	writing_close(u->w, left, cap);
	free(u->name);
	free(u);
}
