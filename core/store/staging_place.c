/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destination of a checkpoint: finding the directory, deciding whether it may be replaced, and
 * removing it.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "store/megatron_form.h"
#include "store/staging_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which directory ---- */

/* "a/b/" and "a/b/." are a/b. */
static size_t without_tail(const char *s)
{
	size_t n = strlen(s);

	for (;;) {
		if (n > 1 && s[n - 1] == '/')
			n--;
		else if (n > 2 && s[n - 1] == '.' && s[n - 2] == '/')
			n -= 2;
		else
			return n;
	}
}

/* The absolute path of a directory that does not exist yet, but whose parent does. */
static int resolve_new(const char *dest, char ret[static PATH_MAX], struct ckpt_err *e)
{
	autofree char *path = strndup(dest, without_tail(dest)), *parent = NULL;
	char *slash = path ? strrchr(path, '/') : NULL;
	const char *name = slash ? slash + 1 : path;
	struct stat st;

	if (!path)
		return err_nomem(e);
	if (!*name || !strcmp(name, ".."))
		return err_set(e, EINVAL, "'%s' does not name a directory that can be made", dest);
	if (!lstat(path, &st))
		return err_set(e, ENOENT, "'%s' is a link that leads nowhere", path);
	if (slash)
		*slash = 0;
	parent = realpath(!slash ? "." : slash == path ? "/" : path, NULL);
	if (!parent)
		return err_sys(e, errno, "directory of '%s'", dest);
	if (snprintf(ret, PATH_MAX, "%s/%s", strcmp(parent, "/") ? parent : "", name) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", dest);
	return 0;
}

static int resolve(const char *dest, char ret[static PATH_MAX], struct ckpt_err *e)
{
	autofree char *real = realpath(dest, NULL);

	if (!real)
		return errno == ENOENT ? resolve_new(dest, ret, e)
				       : err_sys(e, errno, "'%s'", dest);
	if (!strcmp(real, "/"))
		return err_set(e, EBUSY, "'/' cannot be replaced by a checkpoint");
	(void)snprintf(ret, PATH_MAX, "%s", real);
	return 0;
}

static int name_beside(const struct site *p, const char *suffix, char out[static NAME_MAX + 1],
		       struct ckpt_err *e)
{
	if (snprintf(out, NAME_MAX + 1, "%s%s", p->name, suffix) > NAME_MAX)
		return err_set(e, ENAMETOOLONG,
			       "'%s': the name is too long for '%s' to be appended", p->path,
			       suffix);
	return 0;
}

int site_open(const char *dest, struct site *ret, struct ckpt_err *e)
{
	char *slash;
	int rc = resolve(dest, ret->path, e);

	if (rc)
		return rc;
	slash = strrchr(ret->path, '/');
	rc = snprintf(ret->name, sizeof(ret->name), "%s", slash + 1) > NAME_MAX
		     ? err_sys(e, ENAMETOOLONG, "'%s'", dest)
		     : name_beside(ret, ".partial", ret->partial, e);
	if (!rc)
		rc = name_beside(ret, ".partial.lock", ret->lock, e);
	if (!rc)
		rc = name_beside(ret, ".partial.old", ret->old, e);
	if (rc)
		return rc;
	*slash = 0;
	ret->parent =
		open(slash == ret->path ? "/" : ret->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*slash = '/';
	return ret->parent < 0 ? err_sys(e, errno, "open the directory of '%s'", dest) : 0;
}

void site_close(struct site *p)
{
	if (p->parent >= 0)
		(void)close(p->parent);
	p->parent = -1;
}

/* ---- may it be replaced ---- */

/*
 * Files that writers of checkpoints, including this program, leave in a directory: all of them
 * concern the tensors and objects that the new checkpoint replaces. Files that people add, such as
 * tokenizers, configurations and notes, are not in the list; replacing the directory would lose
 * them.
 */
enum site_part site_part_of(const char *name)
{
	static const struct {
		const char *pattern;
		enum site_part of;
	} parts[] = {
		{ ".metadata", SITE_SHARED },
		{ ".metadata.tmp", SITE_SHARED },
		{ ".ckptfs-index.sqlite*", SITE_SHARED },
		{ "__[0-9]*_[0-9]*.distcp", SITE_DCP },
		{ "__[0-9]*.metadata", SITE_DCP }, /* one for each rank */
		{ "__[0-9]*.metadata.tmp", SITE_DCP },
		{ "_rank[0-9]*_.safetensors", SITE_HYPERPARALLEL },
		{ "_rank[0-9]*_.bytes", SITE_HYPERPARALLEL },
		{ "*_rank[0-9]*.bytes", SITE_HYPERPARALLEL },
		{ ".rank[0-9]*_metadata", SITE_HYPERPARALLEL },
		{ "[0-9]*.metadata", SITE_HYPERPARALLEL },
		{ "model.safetensors", SITE_SAFETENSORS },
		{ "model-[0-9]*-of-[0-9]*.safetensors", SITE_SAFETENSORS },
		{ "model.safetensors.index.json", SITE_SAFETENSORS },
		/* torch's distributed form of it */
		{ "shard-[0-9]*-model-[0-9]*-of-[0-9]*.safetensors", SITE_SAFETENSORS },
		{ "zarr.json", SITE_ZARR }, /* beside directories of arrays */
	};

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (text_glob(parts[i].pattern, name, strlen(name)))
			return parts[i].of;
	return SITE_NOTHING;
}

int site_see(struct site_seen *seen, const char *path, const char *name, enum site_part of,
	     struct ckpt_err *e)
{
	bool later = strcmp(name, seen->name) > 0;

	if (of <= SITE_SHARED || of == seen->of)
		return of != SITE_NOTHING;
	if (seen->of != SITE_NOTHING)
		return err_set(
			e, ENOTEMPTY,
			"'%s' holds '%s' and '%s', which belong to two checkpoints, and one would "
			"be lost: move that elsewhere",
			path, later ? seen->name : name, later ? name : seen->name);
	seen->of = of;
	(void)snprintf(seen->name, sizeof(seen->name), "%s", name);
	return 1;
}

/* Others who write zarr may have chunks in directories of c/. */
bool site_is_array_chunk(const char *name)
{
	return *name == 'c' && !name[strspn(name, "c.0123456789")];
}

/* Has the directory only what this program writes for a zarr array? If `whole`, all of it. */
static bool is_array(int dir, const char *name, bool whole)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(dir, name, O_NOFOLLOW);
	const struct dirent *entry;
	struct ckpt_err ignored;
	bool metadata = false, others = !d;
	struct stat st;
	int rc = 0;

	while (!others && (rc = io_next_entry(d, &entry, &ignored)) > 0) {
		const char *s = entry->d_name;

		if (!strcmp(s, "zarr.json"))
			metadata = true;
		else
			others = !site_is_array_chunk(s) ||
				 fstatat(dirfd(d), s, &st, AT_SYMLINK_NOFOLLOW) ||
				 S_ISDIR(st.st_mode);
	}
	return !others && !rc && (metadata || !whole); /* what was not listed may be anything */
}

/* Does it say, as Megatron-core's does, how tensors are stored? Others give files this name,
 * too. */
bool site_is_megatron_text(const char *text, size_t len)
{
	static const char key[] = "\"sharded_backend\"";

	return memmem(text, len, key, strlen(key));
}

bool site_is_megatron_name(const char *name)
{
	return !strcmp(name, MEGATRON_JSON_NAME) || !strcmp(name, MEGATRON_COMMON_NAME);
}

static bool is_metadata_json(int dir)
{
	autoclose int fd =
		openat(dir, MEGATRON_JSON_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char text[SITE_MEGATRON_TEXT];
	struct stat st;
	int64_t n;

	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode))
		return false;
	n = io_pread_some(fd, text, sizeof(text), 0);
	return n > 0 && site_is_megatron_text(text, (size_t)n);
}

/* Is it what Megatron-core, or this program for it, puts beside the files of torch DCP? */
static bool is_megatron_file(int dir, const char *name)
{
	return site_is_megatron_name(name) && is_metadata_json(dir);
}

int site_refuse_existing(const char *path, struct ckpt_err *e)
{
	return err_set(
		e, EEXIST,
		"'%s' already exists and is not empty: use the option overwrite to replace it",
		path);
}

int site_refuse_loss(const char *path, const char *name, struct ckpt_err *e)
{
	return err_set(e, ENOTEMPTY,
		       "'%s' holds '%s', which is not part of a checkpoint and would be lost", path,
		       name);
}

static int check_entry(const struct site *p, int dir, const char *name, const char *const *over,
		       struct site_seen *seen, struct ckpt_err *e)
{
	enum site_part of = site_part_of(name);
	bool replaced;
	struct stat st;
	int rc;

	if (!over)
		return site_refuse_existing(p->path, e);
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return err_sys(e, errno, "stat '%s/%s'", p->path, name);
	if (S_ISDIR(st.st_mode))
		of = is_array(dir, name, true) ? SITE_ZARR : SITE_NOTHING;
	else if (is_megatron_file(dir, name))
		of = SITE_SHARED;
	rc = site_see(seen, p->path, name, of, e);
	if (rc < 0)
		return rc;
	replaced = rc;
	for (const char *const *other = over; !replaced && !S_ISDIR(st.st_mode) && *other; other++)
		replaced = !strcmp(*other, name);
	return replaced ? 0 : site_refuse_loss(p->path, name, e);
}

static int check_entries(const struct site *p, const char *const *over, struct ckpt_err *e)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(p->parent, p->name, O_NOFOLLOW);
	const struct dirent *entry;
	struct site_seen seen = { .of = SITE_NOTHING };
	int rc = 0, more = 0;

	if (!d)
		return err_sys(e, errno, "list '%s'", p->path);
	while (!rc && (more = io_next_entry(d, &entry, e)) > 0)
		rc = check_entry(p, dirfd(d), entry->d_name, over, &seen, e);
	if (!rc && more)
		return err_sys(e, -more, "list '%s'", p->path);
	/* Replacing the directory requires removing its contents. */
	if (!rc && over && faccessat(dirfd(d), ".", W_OK | X_OK, AT_EACCESS))
		return err_sys(e, errno, "'%s' cannot be replaced", p->path);
	return rc;
}

int site_check(const struct site *p, const char *const *over, struct ckpt_err *e)
{
	struct statx sx = { 0 };
	bool is_there = !statx(p->parent, p->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &sx);

	if (!is_there && errno != ENOENT)
		return err_sys(e, errno, "stat '%s'", p->path);
	if (is_there && !S_ISDIR(sx.stx_mode))
		return err_set(e, ENOTDIR, "'%s' already exists and is not a directory", p->path);
	if (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT)
		return err_set(e, EBUSY,
			       "'%s' is a mount point, which cannot be replaced: "
			       "name a directory in it",
			       p->path);
	if (faccessat(p->parent, ".", W_OK | X_OK, AT_EACCESS))
		return err_sys(e, errno, "'%s' cannot be made: its directory", p->path);
	return is_there ? check_entries(p, over, e) : 0;
}

bool site_has(const struct site *p, const char *name)
{
	struct stat st;

	return !fstatat(p->parent, name, &st, AT_SYMLINK_NOFOLLOW) || errno != ENOENT;
}

/* ---- removing ---- */

static bool may_remove(int dir, const char *name)
{
	return is_array(dir, name, false);
}

int site_remove(const struct site *p, const char *name, struct ckpt_err *e)
{
	return io_remove_if(p->parent, name, may_remove, e);
}
