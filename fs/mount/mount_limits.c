/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sandbox (sandbox.h) allows this mount: to read the checkpoint and what its options name,
 * and what a run may need when one of its checkpoints is opened.
 */
#include "mount/mount_internal.h"

#include "cmd/confine.h"
#include "cmd/options.h"
#include "mount/negotiate.h"
#include "mount/passthrough.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int may_read_source(void *arg, const struct ckpt_source *s)
{
	struct mount *m = arg;

	sandbox_allow_read(&m->rules, s->path);
	return 0;
}

static int may_read_other(void *arg, const char *path)
{
	struct mount *m = arg;

	if (!text_is_address(path))
		sandbox_allow_read(&m->rules, path);
	return 0;
}

/* Allows reading a file, or a directory and the targets of links in it. */
static void may_read_linked(struct mount *m, const char *dir)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(AT_FDCWD, dir, 0);
	const struct dirent *entry;
	struct ckpt_err ignored;

	sandbox_allow_read(&m->rules, dir);
	while (d && io_next_entry(d, &entry, &ignored) > 0) {
		autofree char *path = NULL;

		if (entry->d_name[0] != '.' &&
		    (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN))
			path = text_format("%s/%s", dir, entry->d_name);
		if (path)
			sandbox_allow_read(&m->rules, path);
	}
}

/* A file is opened by way of its directory, in which a file about its contents may be. For file://
 * the directory is opened for reading. */
static void may_enter_parent(struct mount *m, const char *path, bool for_reading)
{
	autofree char *dir = strdup(path), *about = NULL;
	char *slash = dir ? strrchr(dir, '/') : NULL;
	struct stat st;

	if (!dir || stat(path, &st) || S_ISDIR(st.st_mode))
		return;
	if (slash)
		slash[slash == dir] = 0;
	if (for_reading)
		sandbox_allow_list(&m->rules, slash ? dir : ".");
	about = text_format("%s/sparse_update_manifest.json", slash ? dir : ".");
	if (about && !access(about, F_OK))
		sandbox_allow_read(&m->rules, about);
}

/* If the file is a link, it is opened by way of the directory of one of the links on the way, see
 * local_real_name in source/place.h. */
static void may_enter_parents(struct mount *m, const char *path, bool for_reading)
{
	enum { MAX_LINKS = 40 }; /* as in the kernel */
	autofree char *at = strdup(path);

	for (unsigned i = 0; at && i <= MAX_LINKS; i++) {
		const char *slash = strrchr(at, '/');
		char target[PATH_MAX], *next;
		ssize_t n = readlink(at, target, sizeof(target) - 1);

		may_enter_parent(m, at, for_reading);
		if (n <= 0)
			break;
		target[n] = 0;
		next = text_format("%.*s%s", *target == '/' || !slash ? 0 : (int)(slash + 1 - at),
				   at, target);
		free(at);
		at = next;
	}
}

/* "lora=DIR[:SCALE]", "overlay=PATH": what each checkpoint of a run will open. */
static void may_read_merged(struct mount *m, const char *word)
{
	static const char *const names[] = { "lora=", "overlay=" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		autofree char *path = NULL;
		const char *files;
		char *colon;

		if (strncmp(word, names[i], strlen(names[i])) != 0)
			continue;
		word += strlen(names[i]);
		files = text_file_path(word);
		path = strdup(files ? files : word);
		colon = path ? strrchr(path, ':') : NULL;
		if (colon && access(path, F_OK))
			*colon = 0;
		if (path) {
			may_read_linked(m, path);
			may_enter_parents(m, path, files != NULL);
		}
	}
}

/* The checkpoints of a run are opened, and their indexes built, when a reader enters them. */
static void may_open_children(struct mount *m)
{
	autofree char *cache = ckpt_index_dir();
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++) {
		const char *path = options_get(m->opts, x->name);

		if (path && x->form == CKPT_OPTION_FILE) {
			const char *files = text_file_path(path);

			may_read_linked(m, files ? files : path);
		}
	}
	for (size_t i = 0; m->opts->open && m->opts->open[i]; i++)
		may_read_merged(m, m->opts->open[i]);
	if (cache)
		sandbox_allow_write(&m->rules, cache);
}

int mount_draw_limits(struct mount *m, struct ckpt_err *e)
{
	struct stat st;

	sandbox_prepare(&m->rules);
	sandbox_allow_checkpoint(&m->rules, m->source);
	if (!lstat(m->source, &st) && S_ISLNK(st.st_mode)) /* a file, see local_real_name */
		sandbox_allow_read(&m->rules, m->source);
	if (ckpt_beyond(m->ckpt))
		sandbox_allow_checkpoint(&m->rules, ckpt_beyond(m->ckpt));
	(void)ckpt_others(m->ckpt, may_read_other, m);
	if (ckpt_is_run(m->ckpt))
		may_open_children(m);
	/* Assets found without the option are already open. */
	return options_get(m->opts, "assets") ? ckpt_assets(m->ckpt, may_read_source, m, e) : 0;
}

void mount_allow_read_ahead(struct mount *m)
{
	char bdi[MOUNTS_BDI_MAX];

	if (!m->bound)
		return;
	mounts_bdi(&m->found, bdi);
	sandbox_allow_write_file(&m->rules, bdi);
}

static int miss(struct mount *m, const struct ckpt_err *missing, struct ckpt_err *e)
{
	if (m->sandbox == SANDBOX_ON)
		return err_set(e, missing->code, "mount '%s': sandbox: %s", m->target,
			       missing->msg);
	log_msg(LOG_LEVEL_WARN, "mount '%s': a part of the sandbox is missing: %s", m->target,
		missing->msg);
	return 0;
}

int mount_confine(struct mount *m, struct ckpt_err *e)
{
	bool backing = m->io == FS_IO_AUTO && !ckpt_is_run(m->ckpt) && is_sys_admin();
	struct ckpt_err missing;
	int rc = 0;

	ckpt_rest();
	confine_forget_secrets();
	if (sandbox_enter(&m->rules, backing, &missing))
		rc = miss(m, &missing, e);
	if (!rc)
		sandbox_release(&m->rules);
	return rc;
}

static int is_in_store(void *arg, const char *path)
{
	(void)arg;
	return text_is_address(path);
}

/* Is anything of it in an object store: the checkpoint, or what an option names? */
static bool has_fetcher(const struct mount *m)
{
	const struct ckpt_option *x;

	if (text_is_address(m->source) || ckpt_others(m->ckpt, is_in_store, NULL))
		return true;
	for (size_t i = 0; (x = ckpt_option(i)); i++)
		for (size_t k = 0; x->tree && m->opts->open && m->opts->open[k]; k++) {
			const char *word = m->opts->open[k];
			size_t n = strlen(x->name);

			if (!strncmp(word, x->name, n) && word[n] == '=' && strstr(word, "://"))
				return true;
		}
	return false;
}

int mount_filter_calls(struct mount *m, struct ckpt_err *e)
{
	int queues = negotiate_queues(), rc = 0;
	struct ckpt_err missing;

	if (queues < 0) {
		(void)err_set(&missing, -queues, "io_uring is available but was not restricted");
		rc = miss(m, &missing, e);
	}
	if (!rc && sandbox_filter_calls(queues != 0, has_fetcher(m), &missing))
		rc = miss(m, &missing, e);
	return rc;
}
