/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/open/assets.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "base/trust.h"
#include "base/vec.h"
#include "format/format.h"
#include "source/files.h"
#include "source/source.h"
#include "tree/view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ASSETS 10000

/* The files that transformers and tokenizers write beside weights. */
static const char *const usual[] = {
	"added_tokens.json",
	"chat_template.jinja",
	"chat_template.json",
	"config.json",
	"generation_config.json",
	"merges.txt",
	"preprocessor_config.json",
	"processor_config.json",
	"special_tokens_map.json",
	"spiece.model",
	"tokenizer.json",
	"tokenizer.model",
	"tokenizer_config.json",
	"vocab.json",
	"vocab.txt",
	ASSETS_GPTQ, /* last: see n_usual */
};

/* AutoGPTQ's configuration is only read, where codes are shown as weights. */
static size_t n_usual(const struct assets_ask *ask)
{
	return ARRAY_LEN(usual) - !ask->dequantised;
}

/* Other weights must not be mistaken for those of the checkpoint. */
static const char *const weights[] = { "*.safetensors", "*.safetensors.index.json",
				       "*.bin",		"*.bin.index.json",
				       "*.pt",		"*.pth",
				       "*.gguf",	"*.h5",
				       "*.msgpack",	"*.ckpt",
				       "*.onnx" };

static bool is_weights(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(weights); i++)
		if (text_glob(weights[i], name, strlen(name)))
			return true;
	return false;
}

/* ModelOpt's, AutoGPTQ's and AutoAWQ's; SGLang and TensorRT-LLM read the first. */
static bool is_of_codes(const char *name)
{
	return !strcmp(name, "hf_quant_config.json") || !strcmp(name, ASSETS_GPTQ) ||
	       !strcmp(name, "quant_config.json");
}

/* Such a file is not shown beside weights that are no codes; one of them is read all the same. */
static bool is_left_out(const struct assets_ask *ask, const char *name)
{
	return ask->dequantised && is_of_codes(name) && strcmp(name, ASSETS_GPTQ) != 0;
}

/* A copy that is freed with the assets, or NULL. */
static const char *own(struct assets *a, const char *s)
{
	char *copy = VEC_ROOM(a->owned, a->owned_cap, a->n_owned + 1) ? strdup(s) : NULL;

	if (copy)
		a->owned[a->n_owned++] = copy;
	return copy;
}

/* ---- search ---- */

struct found {
	const char *name, *path; /* owned by the assets */
	enum asset_from from;
	struct files_seen seen;
	const char *text; /* what was made here; NULL: a file */
	bool hidden;
};

/* Files that exist in a directory but are not used: the first one, the reason, and their number. */
struct refused {
	const char *name;
	char why[160];
	size_t n;
};

struct finder {
	struct assets *a;
	bool dequantised; /* of assets_ask */
	struct found *v;
	size_t n, cap;
	/* The directory being searched. */
	int dirfd;
	const char *dir; /* absolute */
	enum asset_from from;
	struct refused refused;
	struct place *within; /* where files that were closed can be opened again; may be NULL */
	const char *inner;    /* the directory in it that is searched, and '/'; or "" */
};

static void finder_release(struct finder *f)
{
	for (size_t i = 0; i < f->n; i++)
		source_free(f->v[i].seen.source);
	free(f->v);
}

/* Takes over s on success; if it is not to be kept, the file is opened again when it is read. */
static int add(struct finder *f, const char *path, const char *name, struct source *s, bool keep,
	       struct ckpt_err *e)
{
	struct found *v;

	if (!VEC_ROOM(f->v, f->cap, f->n + 1))
		return err_nomem(e);
	v = &f->v[f->n];
	*v = (struct found){ .name = own(f->a, name),
			     .path = own(f->a, path),
			     .from = f->from,
			     .seen = { .seen = s->seen, .source = keep ? s : NULL },
			     .hidden = f->dequantised && is_of_codes(name) };
	if (!v->name || !v->path)
		return err_nomem(e);
	f->n++;
	if (!keep)
		source_free(s);
	return 0;
}

/* The file exists, so the next directory is not searched. */
__attribute__((format(printf, 3, 4))) static int refuse(struct finder *f, const char *name,
							const char *why, ...)
{
	va_list ap;

	if (!f->refused.n++) {
		f->refused.name = name;
		va_start(ap, why);
		(void)vsnprintf(f->refused.why, sizeof(f->refused.why), why, ap);
		va_end(ap);
	}
	return 1;
}

static char *join(const struct finder *f, const char *name)
{
	return text_format("%s/%s", f->dir[1] ? f->dir : "", name);
}

/* One warning about all refused files. */
static int say_refused(struct finder *f, const struct assets_ask *ask, struct ckpt_err *e)
{
	autofree char *path = f->refused.n ? join(f, f->refused.name) : NULL;
	autofree char *text = NULL;
	char more[64] = "";

	if (!f->refused.n)
		return 0;
	if (f->refused.n > 1)
		(void)snprintf(more, sizeof(more), " (and %zu more beside it)", f->refused.n - 1);
	if (path)
		text = text_format("'%s' is not used: %s%s%s", path, f->refused.why, more,
				   f->from == ASSET_OF_PARENT ? "; assets= can name its directory"
							      : "");
	if (!text)
		return err_nomem(e);
	f->a->refused[f->a->n_refused] = own(f->a, text);
	if (!f->a->refused[f->a->n_refused])
		return err_nomem(e);
	f->a->n_refused++;
	if (ask->warn)
		ask->warn(ask->warn_arg, text);
	f->refused.n = 0;
	return 0;
}

/* The file could not be opened. 0: it does not exist; 1: it exists, but is not used. */
static int not_opened(struct finder *f, const char *name, int code, struct ckpt_err *e)
{
	autofree char *path = NULL;

	switch (code) {
	case EACCES:
	case EPERM:
		return refuse(f, name, "%s", strerror(code)); /* NOLINT(concurrency-mt-unsafe) */
	case EREMOTE:
		return refuse(f, name, "it is " IO_IS_POINTER);
	case EIO:
	case ENOMEM:
	case EMFILE:
	case ENFILE: /* not the file's fault: the next open might find it */
		path = join(f, name);
		return err_sys(e, code, "look for '%s'", path ? path : name);
	default:
		return 0;
	}
}

/* Sets *fd to -1 when it takes it over. */
static int add_opened(struct finder *f, const char *path, const char *name, int *fd, bool keep,
		      struct ckpt_err *e)
{
	struct source *s;
	int rc = local_source(*fd, &s, e);

	if (rc)
		return rc;
	(void)steal_fd(fd);
	rc = add(f, path, name, s, keep, e);
	if (rc)
		source_free(s);
	return rc;
}

/* ---- without assets= ---- */

/* The file that was added last may be closed, and opened again. */
static int may_close(struct finder *f, struct ckpt_err *e)
{
	struct found *v = &f->v[f->n - 1];
	autofree char *name = NULL;

	if (!f->within)
		return 0;
	name = text_format("%s%s", f->inner, v->name);
	if (!name)
		return err_nomem(e);
	v->seen.name = own(f->a, name);
	v->seen.within = f->within;
	return v->seen.name ? 0 : err_nomem(e);
}

/* Looks in the checkpoint's own directory. 0: the file does not exist. */
static int look_in_place(struct finder *f, const char *name, struct place *place,
			 struct ckpt_err *e)
{
	autofree char *path = join(f, name);
	struct ckpt_err why;
	struct source *s;
	int rc;

	if (!path)
		return err_nomem(e);
	rc = place_file(place, name, &s, &why);
	if (rc && place_fd(place) < 0 && rc != -ENOENT && rc != -EACCES) { /* who knows? */
		*e = why;
		return rc;
	}
	if (rc)
		return not_opened(f, name, -rc, e);
	rc = add(f, path, name, s, true, e);
	if (rc)
		source_free(s);
	else
		rc = may_close(f, e);
	return rc ? rc : 1;
}

/*
 * 1 if a user who could not have written the file into the checkpoint may have written or chosen it
 * in the parent directory, else 0.
 */
static int doubt_parent(struct finder *f, const char *name, const struct stat *st,
			const struct stat *parent, const struct stat *checkpoint)
{
	if (!trust_owner(parent->st_uid, checkpoint))
		return refuse(f, name, "its directory belongs to user %u, the checkpoint does not",
			      parent->st_uid);
	if (trust_others_write(parent, checkpoint) && !(parent->st_mode & S_ISVTX))
		return refuse(f, name,
			      "its directory can be written to by users (mode %04o) who cannot "
			      "write to the checkpoint",
			      parent->st_mode & 07777);
	if (!trust_owner(st->st_uid, checkpoint))
		return refuse(f, name, "it belongs to user %u, the checkpoint does not",
			      st->st_uid);
	if (trust_others_write(st, checkpoint))
		return refuse(f, name,
			      "it can be written to by users (mode %04o) who cannot write to the "
			      "checkpoint",
			      st->st_mode & 07777);
	/*
	 * In a sticky directory such as /tmp, others can link another user's file under a new name.
	 */
	if (trust_others_write(parent, checkpoint) && st->st_nlink != 1)
		return refuse(f, name,
			      "it has %ju hard links, in a directory that others can write to",
			      (uintmax_t)st->st_nlink);
	return 0;
}

/*
 * Opens the file once, so the file examined here is the one read. Links that stay in the directory
 * are followed if only trusted users can have created them. 0: the file does not exist.
 */
static int look_in_parent(struct finder *f, const char *name, const struct stat *parent,
			  const struct stat *checkpoint, struct ckpt_err *e)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
	bool shared = trust_others_write(parent, checkpoint);
	autofree char *path = join(f, name);
	autoclose int fd = -1;
	struct ckpt_err why;
	struct stat st;
	int rc;

	if (!path)
		return err_nomem(e);
	if (shared) {
		/* Opening a FIFO wakes a process, and opening a device may do anything. */
		if (!fstatat(f->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && !S_ISREG(st.st_mode) &&
		    !S_ISLNK(st.st_mode))
			return 0;
		fd = openat(f->dirfd, name, flags);
		if (fd < 0 && errno == ELOOP)
			return refuse(f, name,
				      "it is a link, in a directory that others can write to");
		rc = fd < 0 ? -errno : fstat(fd, &st) ? -errno : 0;
		if (!rc && !S_ISREG(st.st_mode))
			return 0;
		if (!rc)
			rc = io_is_pointer(fd, &st);
		if (rc > 0)
			rc = -EREMOTE;
	} else {
		fd = io_open_beneath(f->dirfd, name, &st, &why);
		rc = fd < 0 ? fd : 0;
	}
	if (rc)
		return not_opened(f, name, -rc, e);
	if (doubt_parent(f, name, &st, parent, checkpoint))
		return 1;
	return add_opened(f, path, name, &fd, true, e) ? -e->code : 1;
}

/* verl writes the configuration and tokenizer into this directory, beside the ranks' files. */
static int find_inner(struct finder *f, const struct assets_ask *ask, bool *settled,
		      struct ckpt_err *e)
{
	static const char inner[] = "huggingface";
	autofree char *dir = join(f, inner);
	const char *outer = f->dir;
	struct ckpt_err why;
	struct place *place;
	int rc;

	if (!dir)
		return err_nomem(e);
	rc = place_sub(ask->place, inner, &place, &why);
	if (rc)
		return err_if_external(rc, &why, e);
	f->dir = dir;
	f->inner = "huggingface/";
	for (size_t i = 0; rc >= 0 && i < n_usual(ask); i++) {
		rc = settled[i] ? 0 : look_in_place(f, usual[i], place, e);
		settled[i] |= rc > 0;
	}
	if (rc >= 0)
		rc = say_refused(f, ask, e);
	f->dir = outer;
	f->inner = "";
	place_free(place);
	return rc;
}

/* The parent directory; -1: there is none, or it cannot be examined. */
static int open_parent(int dirfd, const struct stat *checkpoint, struct stat *ret)
{
	autoclose int fd = openat(dirfd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, ret) ||
	    (ret->st_dev == checkpoint->st_dev && ret->st_ino == checkpoint->st_ino))
		return -1;
	return steal_fd(&fd);
}

static int find_usual(struct finder *f, const struct assets_ask *ask, struct ckpt_err *e)
{
	autofree char *above = strdup(ask->path);
	bool settled[ARRAY_LEN(usual)] = { false };
	struct stat checkpoint, parent;
	int dirfd = place_fd(ask->place);
	autoclose int up = -1;
	int rc = 0;

	if (!above)
		return err_nomem(e);
	*f = (struct finder){ .a = f->a,
			      .dequantised = ask->dequantised,
			      .dirfd = dirfd,
			      .dir = ask->path,
			      .from = ASSET_OF_CHECKPOINT,
			      .within = dirfd >= 0 ? ask->place : NULL,
			      .inner = "" };
	for (size_t i = 0; rc >= 0 && i < n_usual(ask); i++) {
		rc = look_in_place(f, usual[i], ask->place, e);
		settled[i] = rc > 0;
	}
	if (rc < 0 || say_refused(f, ask, e) || find_inner(f, ask, settled, e))
		return -e->code;
	if (dirfd < 0) /* the checkpoint is not on this machine */
		return 0;
	if (fstat(dirfd, &checkpoint))
		return err_sys(e, errno, "stat '%s'", ask->path);
	up = open_parent(dirfd, &checkpoint, &parent);
	if (up < 0)
		return 0;
	*strrchr(above, '/') = 0; /* the path is absolute */
	f->dirfd = up;
	f->dir = *above ? above : "/";
	f->from = ASSET_OF_PARENT;
	for (size_t i = 0; rc >= 0 && i < n_usual(ask); i++)
		if (!settled[i])
			rc = look_in_parent(f, usual[i], &parent, &checkpoint, e);
	return rc < 0 ? rc : say_refused(f, ask, e);
}

/* ---- with assets= ---- */

/*
 * A user who names a directory trusts the targets of its links. There may be more files than
 * descriptors, so they are not kept open.
 */
static int look_in(struct finder *f, const char *name, struct ckpt_err *e)
{
	autoclose int fd = openat(f->dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	autofree char *joined = join(f, name), *path = NULL;
	struct stat st;
	int rc;

	if (!joined)
		return err_nomem(e);
	if (fd < 0)
		return not_opened(f, name, errno, e);
	path = realpath(joined, NULL); /* if it is another file by then, reading reports that */
	if (!path || fstat(fd, &st))
		return not_opened(f, name, errno, e);
	if (!S_ISREG(st.st_mode))
		return 0;
	rc = io_is_pointer(fd, &st);
	if (rc)
		return not_opened(f, name, rc < 0 ? -rc : EREMOTE, e);
	return add_opened(f, path, name, &fd, false, e);
}

static int find_all(struct finder *f, const struct assets_ask *ask, struct ckpt_err *e)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(AT_FDCWD, ask->given, 0);
	autofree char *path = d ? realpath(ask->given, NULL) : NULL;
	const struct dirent *entry;
	int rc;

	if (!path)
		return err_sys(e, errno, "assets directory '%s'", ask->given);
	*f = (struct finder){ .a = f->a,
			      .dequantised = ask->dequantised,
			      .dirfd = dirfd(d),
			      .dir = path,
			      .from = ASSET_GIVEN };
	while ((rc = io_next_entry(d, &entry, e)) > 0) {
		if (is_weights(entry->d_name) || entry->d_name[0] == '.' ||
		    is_left_out(ask, entry->d_name) ||
		    strlen(entry->d_name) >= NAME_CAP || /* FUSE has names of 1024 bytes */
		    (entry->d_type != DT_REG && entry->d_type != DT_LNK &&
		     entry->d_type != DT_UNKNOWN))
			continue;
		if (f->n == MAX_ASSETS)
			return err_set(e, EFBIG, "assets directory '%s' has more than %d files",
				       ask->given, MAX_ASSETS);
		rc = look_in(f, entry->d_name, e);
		if (rc < 0)
			return rc;
	}
	return rc ? err_wrap(e, "assets directory '%s'", ask->given) : say_refused(f, ask, e);
}

static int add_candidate(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct name_list *names = arg;

	if (is_weights(name) || name[0] == '.' || strlen(name) >= NAME_CAP ||
	    (kind != PLACE_FILE && kind != PLACE_UNKNOWN))
		return 0;
	return names->n == MAX_ASSETS ? -EFBIG : name_list_add(names, name, e);
}

/* A store that lists nothing has at least the usual files. */
static int list_remote(struct place *place, const struct assets_ask *ask, struct name_list *ret,
		       struct ckpt_err *e)
{
	int rc = place_list(place, ".", add_candidate, ret, e);

	if (rc == -EFBIG)
		return err_set(e, EFBIG, "it has more than %d files", MAX_ASSETS);
	for (size_t i = 0, n = ret->n ? 0 : n_usual(ask); !rc && i < n; i++)
		rc = name_list_add(ret, usual[i], e);
	return rc;
}

static int find_remote(struct finder *f, const struct assets_ask *ask, struct ckpt_err *e)
{
	struct name_list names CLEANUP(name_list_release) = { 0 };
	struct place *place = NULL;
	autofree char *root = NULL;
	const char *file;
	int rc = place_open(ask->given, ask->how, &place, &root, &file, e);

	if (rc)
		return err_wrap(e, "assets");
	*f = (struct finder){ .a = f->a,
			      .dequantised = ask->dequantised,
			      .dirfd = -1,
			      .dir = root,
			      .from = ASSET_GIVEN };
	rc = file ? err_set(e, ENOTDIR, "it is a file") : list_remote(place, ask, &names, e);
	for (size_t i = 0; rc >= 0 && i < names.n; i++)
		if (!is_left_out(ask, names.v[i]))
			rc = look_in_place(f, names.v[i], place, e);
	rc = rc < 0 ? err_wrap(e, "assets '%s'", ask->given) : say_refused(f, ask, e);
	f->dir = NULL;
	place_free(place);
	return rc;
}

/* What is hidden comes last. */
static int by_name(const void *ap, const void *bp)
{
	const struct found *a = ap, *b = bp;

	if (a->hidden != b->hidden)
		return a->hidden - b->hidden;
	return text_natural_cmp(a->name, strlen(a->name), b->name, strlen(b->name));
}

/* Takes over the files that were found. */
static int open_files(struct finder *f, struct ckpt_err *e)
{
	struct assets *a = f->a;
	autofree struct files_seen *seen = calloc(f->n, sizeof(*seen));
	autoclose int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int rc;

	a->v = calloc(f->n, sizeof(*a->v));
	a->origin = calloc(f->n, sizeof(*a->origin));
	a->paths = calloc(f->n, sizeof(*a->paths));
	a->text = calloc(f->n, sizeof(const char *));
	if (!seen || !a->v || !a->text || !a->origin || !a->paths)
		return err_nomem(e);
	if (root < 0)
		return err_sys(e, errno, "open '/'");
	rc = local_place(root, &a->root, e);
	if (rc)
		return rc;
	(void)steal_fd(&root);
	for (size_t i = 0; i < f->n; i++) {
		const struct found *x = &f->v[i];

		a->v[i] = (struct view_asset){ .name = x->name,
					       .path = x->path,
					       .size = x->seen.seen.size,
					       .mtime_ns = x->seen.seen.mtime_ns };
		a->origin[i] = x->from;
		if (x->text)
			a->v[i].size = strlen(x->text);
		a->paths[i] = (struct stored_file){ x->path + (*x->path == '/'), a->v[i].size,
						    (const uint8_t *)x->text };
		seen[i] = x->seen;
	}
	rc = files_new_seen(a->root, a->paths, seen, f->n, &a->files, e);
	if (rc)
		return rc;
	a->n_all = f->n;
	for (size_t i = 0; i < f->n; i++) {
		a->n += !f->v[i].hidden;
		f->v[i].seen.source = NULL;
	}
	return 0;
}

/* Adds a config.json, unless there is one. */
static int add_made(struct finder *f, const char *text, struct ckpt_err *e)
{
	static const char name[] = "config.json";
	struct found *v;

	for (size_t i = 0; i < f->n; i++)
		if (!strcmp(f->v[i].name, name))
			return 0;
	if (!VEC_ROOM(f->v, f->cap, f->n + 1))
		return err_nomem(e);
	v = &f->v[f->n];
	*v = (struct found){ .name = own(f->a, name),
			     .path = own(f->a, "(the keys of the GGUF)"),
			     .from = ASSET_MADE,
			     .text = own(f->a, text) };
	if (!v->name || !v->path || !v->text)
		return err_nomem(e);
	f->n++;
	return 0;
}

int assets_find(const struct assets_ask *ask, struct assets *ret, struct ckpt_err *e)
{
	struct finder f CLEANUP(finder_release) = { .a = ret };
	int rc;

	*ret = (struct assets){ 0 };
	rc = !ask->given		   ? find_usual(&f, ask, e)
	     : place_is_remote(ask->given) ? find_remote(&f, ask, e)
					   : find_all(&f, ask, e);
	if (!rc && ask->config)
		rc = add_made(&f, ask->config, e);
	if (rc || !f.n)
		return rc;
	qsort(f.v, f.n, sizeof(*f.v), by_name);
	return open_files(&f, e);
}

const char *asset_from_text(enum asset_from from)
{
	static const char *const text[] = { [ASSET_OF_CHECKPOINT] = "checkpoint",
					    [ASSET_OF_PARENT] = "parent",
					    [ASSET_GIVEN] = "assets",
					    [ASSET_MADE] = "GGUF" };

	return text[from];
}

void assets_release(struct assets *a)
{
	files_free(a->files);
	for (size_t i = 0; i < a->n_owned; i++)
		free(a->owned[i]);
	free(a->owned);
	free(a->v);
	free(a->text);
	free(a->origin);
	free(a->paths);
	place_free(a->root);
	*a = (struct assets){ 0 };
}

int assets_read(const struct assets *a, size_t i, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e)
{
	const char *text = a->text[i];

	if (!text)
		return files_read(a->files, (uint32_t)i, buf, len, off, e);
	if (!range_ok(off, len, a->v[i].size))
		return err_set(e, EIO, "'%s' has become shorter", a->v[i].path);
	memcpy(buf, text + off, len);
	return 0;
}

int assets_replace(struct assets *a, size_t i, const char *text, struct ckpt_err *e)
{
	const char *copy = own(a, text);

	if (!copy)
		return err_nomem(e);
	a->text[i] = copy;
	a->v[i].size = strlen(copy);
	return 0;
}

int assets_text(const struct assets *a, const char *name, uint64_t max, char **ret, size_t *ret_len,
		int64_t *ret_number, struct ckpt_err *e)
{
	autofree char *text = NULL;
	size_t i = 0;
	int rc;

	*ret = NULL;
	*ret_number = -1;
	while (i < a->n_all && strcmp(a->v[i].name, name) != 0)
		i++;
	if (i == a->n_all)
		return 0;
	if (a->v[i].size > max)
		return err_set(e, EFBIG, "'%s' has %llu bytes", a->v[i].path,
			       (unsigned long long)a->v[i].size);
	text = malloc(a->v[i].size + 1);
	if (!text)
		return err_nomem(e);
	rc = assets_read(a, i, text, a->v[i].size, 0, e);
	if (rc)
		return rc;
	text[a->v[i].size] = 0;
	*ret_len = a->v[i].size;
	*ret = steal_ptr(&text);
	*ret_number = (int64_t)i;
	return 0;
}
