/* SPDX-License-Identifier: Apache-2.0 */
#include "format/neighbours.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/format.h"
#include "format/small_file.h"
#include "parse/msgpack.h"
#include "source/source.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
	MAX_NAMES = 100000, /* of a directory */
	MAX_DIRS = 16,	    /* directories in it that are looked into, the first in natural order */
	MAX_FLAX = 16,	    /* files that are read to find one that is not Flax's, likewise */
	NAME_CAP = 256,
	MAGIC_CAP = 512,
	SHOWN = 60, /* bytes of a name in a message */
};

/* Formats that are known and not read. */
static const char unread[] = ", which ckptfs does not read yet";
static const char in_flax[] =
	"a directory with a file that is named like a Flax checkpoint (msgpack), but does not "
	"begin like one";
static const char in_torch[] =
	"a directory with a file that is named like a model of torch.save, but does not begin like "
	"one";

struct neighbour {
	const char *what, *unread, *todo;
};

#define MEGATRON_RANKS \
	{ \
		"a directory of Megatron's model-parallel ranks", "", \
			"none of them holds the model: model_optim_rng.pt, or model_weights.ckpt " \
			"for NeMo" \
	}
#define FSDP_RANKS \
	{ \
		"the files that each rank of an FSDP run wrote for itself", unread, \
			"save with torch.distributed.checkpoint (SHARDED_STATE_DICT), or join " \
			"the files where the model was trained" \
	}
#define RANKS \
	{ \
		"a set of files that the ranks of a run wrote, each for itself", \
			", which ckptfs does not join", \
			"join them where the model was trained, or name one to read that alone" \
	}
#define META_RANKS \
	{ \
		"a model of Meta's, cut into slices for several GPUs", \
			", which ckptfs does not join", \
			"convert it with convert_llama_weights_to_hf.py of transformers" \
	}
#define PARTS \
	{ \
		"the parts of a model that torch.save wrote", ", which ckptfs does not join", \
			"load it with the program that saved it and save it with safetensors, or " \
			"name one part to read that alone" \
	}
#define ORBAX \
	{ \
		"a part of a JAX checkpoint of Orbax or OCDBT", "", \
			"name the directory of the checkpoint: manifest.ocdbt, _METADATA or a " \
			"directory for each array is in it, or in its items" \
	}
#define ORBAX_UNFINISHED \
	{ \
		"an Orbax save that has not finished", "", \
			"use another step, or wait until it has its final name" \
	}
#define ZARR \
	{ \
		"a directory of zarr arrays", "", "name that directory" \
	}
#define NEMO \
	{ \
		"a NeMo archive that is compressed or damaged", "", \
			"unpack it with 'tar -xf' and open the directory" \
	}
#define TENSORFLOW \
	{ \
		"a TensorFlow checkpoint", unread, \
			"load it with TensorFlow and write its variables with " \
			"safetensors.tensorflow.save_file" \
	}
#define FLAX \
	{ \
		"named like a Flax checkpoint (msgpack), but does not begin like one", "", \
			"save or download it again" \
	}
#define IN_FLAX \
	{ \
		in_flax, "", "save or download it again" \
	}
#define KERAS \
	{ \
		"a Keras model (HDF5)", unread, \
			"load it with Keras and write its weights with " \
			"safetensors.numpy.save_file" \
	}
#define ONNX \
	{ \
		"an ONNX model", unread, "open the checkpoint that it was exported from" \
	}
#define ENGINE \
	{ \
		"a compiled TensorRT engine", unread, "open the checkpoint that it was built from" \
	}
#define PADDLE \
	{ \
		"a PaddlePaddle checkpoint", unread, \
			"load it with Paddle and write it with safetensors.paddle.save_file" \
	}
#define ARCHIVE \
	{ \
		"an archive", "", "unpack it, and open the checkpoint that is in it" \
	}
#define UNFINISHED \
	{ \
		"a download or save that has not finished", "", "let it finish, or start it again" \
	}

/* What a directory is by one of the names in it. What comes first counts. */
static const struct {
	const char *glob;
	enum place_kind kind; /* PLACE_UNKNOWN: any */
	struct neighbour is;
} entries[] = {
	{ "mp_rank_[0-9]*", PLACE_DIR, MEGATRON_RANKS },
	{ "{_CHECKPOINT_METADATA,_METADATA,manifest.ocdbt}", PLACE_UNKNOWN, ORBAX },
	{ "{ocdbt.process_*,array_metadatas,orbax.checkpoint}", PLACE_UNKNOWN, ORBAX },
	{ "{zarr.json,.zarray,.zgroup,.zmetadata}", PLACE_UNKNOWN, ZARR },
	{ "tp_rank_[0-9]*_pp_rank_[0-9]*", PLACE_DIR, MEGATRON_RANKS },
	{ "*.nemo", PLACE_UNKNOWN, { "the directory of a NeMo archive", "", "name the archive" } },
	{ "{saved_model.pb,*.data-[0-9]*-of-[0-9]*}", PLACE_UNKNOWN, TENSORFLOW },
	{ "*.msgpack", PLACE_UNKNOWN, IN_FLAX },
	{ "checkpoint_[0-9]*", PLACE_FILE, IN_FLAX },
	{ "{pytorch_model.bin,model_weights.ckpt}",
	  PLACE_FILE,
	  { in_torch, "", "save or download it again" } },
	{ "{*.h5,*.hdf5,*.keras}", PLACE_UNKNOWN, KERAS },
	{ "*.onnx", PLACE_UNKNOWN, ONNX },
	{ "{*.pdparams,[0-9]*_[0-9]*.distcp}", PLACE_UNKNOWN, PADDLE },
	{ "rank[0-9]*.engine", PLACE_UNKNOWN, ENGINE },
	{ "*_rank{,_}[0-9]*.{pt,pth,bin}", PLACE_UNKNOWN, FSDP_RANKS },
	{ "{,*[-_.]}rank{,_,-,.}{,0,00,000,0000}1{,[-_.]*}.{pt,pth,bin,ckpt}", PLACE_FILE, RANKS },
	{ "consolidated.{0[1-9],[1-9][0-9]}.pth", PLACE_FILE, META_RANKS },
	{ "*-[0-9]*-of-[0-9]*.{pt,pth,bin,ckpt}", PLACE_FILE, PARTS },
	{ "*.orbax-checkpoint-tmp*", PLACE_UNKNOWN, ORBAX_UNFINISHED },
	{ "*.incomplete", PLACE_UNKNOWN, UNFINISHED },
	{ "*.ckpt",
	  PLACE_FILE,
	  { "a directory of files that Lightning or torch.save wrote", "",
	    "name one of the files" } },
	{ "*.{pt,pth,bin}",
	  PLACE_FILE,
	  { "a directory of files that torch.save wrote", "", "name one of the files" } },
	{ "models--*",
	  PLACE_DIR,
	  { "a cache of the Hugging Face Hub", "", "name one of the directories in it" } },
	{ "*.{tar,tar.gz,tgz,tar.zst,zip}", PLACE_FILE, ARCHIVE },
	{ "config.json",
	  PLACE_UNKNOWN,
	  { "a model's configuration without its weights", "",
	    "copy or download the weights beside it (*.safetensors, or pytorch_model.bin)" } },
};

/* What a file is by its name or by what it begins with. */
static const struct {
	const char *glob, *magic;
	size_t at, len; /* of magic */
	struct neighbour is;
} contents[] = {
	{ "*.nemo", .is = NEMO },
	{ .magic = "\x0c\xdb\x3a\x2a", .len = 4, .is = ORBAX },
	{ .magic = "\x89HDF\r\n\x1a\n", .len = 8, .is = KERAS },
	{ "{*.h5,*.hdf5,*.keras}", .is = KERAS },
	{ "{*.msgpack,checkpoint_[0-9]*}", .is = FLAX },
	{ "{saved_model.pb,*.data-[0-9]*-of-[0-9]*}", .is = TENSORFLOW },
	{ "*.onnx", .is = ONNX },
	{ "*.pdparams", .is = PADDLE },
	{ "rank[0-9]*.engine", .is = ENGINE },
	{ "*.incomplete", .is = UNFINISHED },
	{ .magic = "\x93NUMPY",
	  .len = 6,
	  .is = { "a single NumPy array", unread, "load it with numpy.load" } },
	{ .magic = "ustar", .at = 257, .len = 5, .is = ARCHIVE },
	{ .magic = "\x1f\x8b", .len = 2, .is = ARCHIVE },
	{ .magic = "PK\3\4", .len = 4, .is = ARCHIVE },
	{ .magic = "\x28\xb5\x2f\xfd", .len = 4, .is = ARCHIVE },
};

static int code_of(const struct neighbour *n)
{
	return *n->unread ? ERR_UNSUPPORTED : ENOENT;
}

/* ---- failed downloads ---- */

/* Without control characters, which all binary formats have in their first bytes. */
static bool is_text(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (((uint8_t)s[i] < ' ' && !strchr("\t\n\f\r", s[i])) || !s[i] || s[i] == 0x7f)
			return false;
	return true;
}

static bool is_zeros(const char *s, size_t n)
{
	return n && !s[0] && !memcmp(s, s + 1, n - 1);
}

static bool is_web_page(const char *s, size_t n)
{
	size_t at = strspn(s, "\xef\xbb\xbf \t\r\n");

	return at < n && (!strncasecmp(s + at, "<!DOCTYPE", 9) || !strncasecmp(s + at, "<html", 5));
}

/* Is a file that begins with these n bytes, and here a NUL, what a failed download leaves? A
 * negative errno, or 0. Files of other names, such as "latest", may be texts, or empty. */
static int check_download(const char *name, const char *head, size_t n, uint64_t size,
			  struct ckpt_err *e)
{
	static const char binary[] = "*.{safetensors,gguf,bin,pt,pth,ckpt,msgpack,nemo,h5}";
	char line[80];

	if (is_web_page(head, n))
		return err_set(e, ENOENT,
			       "it is a web page, which a server sent because it refused to send "
			       "the file; sign in and download it again");
	if (!text_glob(binary, name, strlen(name)))
		return 0;
	if (!size)
		return err_set(e, ENOENT, "it is empty; save or download it again");
	if (is_zeros(head, n))
		return err_set(e, ENOENT,
			       "it begins with %zu zeros, as after a download or copy that was not "
			       "completed; download or copy it again",
			       n);
	if (n && is_text(head, n))
		return err_set(e, ENOENT,
			       "it is a text, as servers send instead of a file: '%s'; download it "
			       "again",
			       text_show(head, strcspn(head, "\r\n"), line, sizeof(line)));
	return 0;
}

static int check_source(struct source *s, const char *name, struct ckpt_err *e)
{
	char head[MAGIC_CAP + 1] = "";
	struct ckpt_err ignored;
	int64_t n = source_read(s, head, MAGIC_CAP, 0, &ignored);

	return n < 0 ? 0 : check_download(name, head, (size_t)n, s->seen.size, e);
}

int neighbour_explain(struct source *s, const char *name, int rc, struct ckpt_err *e)
{
	struct ckpt_err why;

	return rc == -ERR_CORRUPT && check_source(s, name, &why) ? err_set(e, -rc, "%s", why.msg)
								 : rc;
}

/* ---- directories ---- */

/* What the names of a directory say: which row of entries, and by which of its names. */
struct look {
	struct place *place;
	const char *dir; /* in it */
	size_t n, row;	 /* ARRAY_LEN(entries): none yet */
	char name[NAME_CAP];
	struct name_list *dirs; /* or NULL: they are not asked for */
};

static enum place_kind kind_of(const struct look *l, const char *name)
{
	char path[2 * NAME_CAP];
	struct place_seen seen;
	struct ckpt_err ignored;

	if (snprintf(path, sizeof(path), "%s/%s", l->dir, name) >= (int)sizeof(path) ||
	    place_look_at(l->place, path, &seen, &ignored) <= 0)
		return PLACE_OTHER;
	return seen.kind;
}

/* Chooses the first of a row's names in natural order, so that the message does not depend on the
 * order in which a directory happens to be listed. */
static void match(struct look *l, const char *name, enum place_kind kind)
{
	for (size_t i = 0; i <= l->row && i < ARRAY_LEN(entries); i++) {
		if ((entries[i].kind != PLACE_UNKNOWN && entries[i].kind != kind) ||
		    !text_glob(entries[i].glob, name, strlen(name)))
			continue;
		if (i == l->row &&
		    text_natural_cmp(l->name, strlen(l->name), name, strlen(name)) <= 0)
			return;
		l->row = i;
		(void)snprintf(l->name, sizeof(l->name), "%s", name);
		return;
	}
}

static int look_at(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct look *l = arg;

	if (l->n++ == MAX_NAMES)
		return 1;
	if (strlen(name) >= NAME_CAP)
		return 0;
	if (kind == PLACE_UNKNOWN)
		kind = kind_of(l, name);
	match(l, name, kind);
	return l->dirs && kind == PLACE_DIR && *name != '.' ? name_list_add(l->dirs, name, e) : 0;
}

static int look_in(struct place *place, const char *dir, struct name_list *dirs, struct look *ret,
		   struct ckpt_err *e)
{
	int rc;

	*ret = (struct look){ .place = place, .dir = dir, .row = ARRAY_LEN(entries), .dirs = dirs };
	rc = place_list(place, dir, look_at, ret, e);
	return rc < 0 ? rc : 0;
}

/*
 * A file that would be a checkpoint is a pointer of Git LFS, or what a failed download leaves, or
 * cannot be opened: a negative errno, with the sentence that says so. For formats that are not read
 * it does not matter.
 */
static int not_opened(struct place *place, const struct neighbour *is, const char *file,
		      struct ckpt_err *e)
{
	struct source *s CLEANUP(source_freep) = NULL;
	int rc = *is->unread ? 0 : place_file(place, file, &s, e);

	if (s && (is->what == in_flax || is->what == in_torch) && check_source(s, file, e))
		return err_wrap(e, "'%s'", FQN_TEXT(file, strlen(file)));
	return rc == -EREMOTE || rc == -EACCES || rc == -EIO ? rc : 0;
}

static int add_flax(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)kind;
	return text_glob("{*.msgpack,checkpoint_[0-9]*}", name, strlen(name))
		       ? name_list_add(arg, name, e)
		       : 0;
}

/* Other files may be Flax's: the message must name one that is not, or cannot be opened. */
static void name_other_than_flax(struct place *place, struct look *l)
{
	struct name_list files CLEANUP(name_list_release) = { 0 };
	struct ckpt_err ignored;

	if (place_list(place, ".", add_flax, &files, &ignored) < 0)
		return;
	name_list_sort(&files);
	for (size_t i = 0; i < files.n && i < MAX_FLAX; i++) {
		struct source *s CLEANUP(source_freep) = NULL;
		int rc = place_file(place, files.v[i], &s, &ignored);
		char head[MAGIC_CAP];
		int64_t n = rc ? 0 : source_read(s, head, sizeof(head), 0, &ignored);

		if (rc == -ERR_CORRUPT || (n > 0 && msgpack_begins(head, (size_t)n)))
			continue; /* a directory, for example; or a checkpoint */
		(void)snprintf(l->name, sizeof(l->name), "%s", files.v[i]);
		return;
	}
}

static int directory(struct place *place, struct ckpt_err *e)
{
	struct name_list dirs CLEANUP(name_list_release) = { 0 };
	struct ckpt_err why;
	struct look l;

	if (look_in(place, ".", &dirs, &l, e))
		return -e->code;
	if (l.row < ARRAY_LEN(entries)) {
		const struct neighbour *is = &entries[l.row].is;

		if (is->what == in_flax)
			name_other_than_flax(place, &l);
		if (not_opened(place, is, l.name, e))
			return -e->code;
		return err_set(e, code_of(is), "it is %s ('%s' is in it)%s; %s", is->what,
			       FQN_TEXT(l.name, strlen(l.name)), is->unread, is->todo);
	}
	name_list_sort(&dirs);
	for (size_t i = 0; i < dirs.n && i < MAX_DIRS; i++) {
		if (look_in(place, dirs.v[i], NULL, &l, &why)) {
			if (err_if_external(-why.code, &why, e))
				return -e->code;
			continue;
		}
		if (l.row >= ARRAY_LEN(entries))
			continue;
		return err_set(e, code_of(&entries[l.row].is),
			       "not a checkpoint; '%s' in it is %s%s; %s",
			       FQN_TEXT(dirs.v[i], strlen(dirs.v[i])), entries[l.row].is.what,
			       entries[l.row].is.unread, entries[l.row].is.todo);
	}
	return 0;
}

/* ---- files ---- */

static int contents_of(struct place *place, const char *file, const struct neighbour **ret,
		       struct ckpt_err *e)
{
	struct place_seen seen = { .size = UINT64_MAX }; /* until it has been opened */
	char head[MAGIC_CAP + 1] = "";
	int64_t n = small_file_begin(place, file, head, MAGIC_CAP, &seen, e);

	*ret = NULL;
	if (n >= 0 && check_download(file, head, (size_t)n, seen.size, e))
		return err_wrap(e, "'%s'", FQN_TEXT(file, strlen(file)));
	for (size_t i = 0; i < ARRAY_LEN(contents); i++)
		if (contents[i].glob ? text_glob(contents[i].glob, file, strlen(file))
				     : n >= (int64_t)(contents[i].at + contents[i].len) &&
					       !memcmp(head + contents[i].at, contents[i].magic,
						       contents[i].len)) {
			*ret = &contents[i].is;
			break;
		}
	return n < 0 ? (int)n : 0;
}

int neighbour_checkpoint(struct place *place, const char *file, struct ckpt_err *e)
{
	struct name_list files CLEANUP(name_list_release) = { 0 };
	const struct format *format;
	struct ckpt_err why;
	int rc = format_probe(place, NULL, &format, &files, &why);

	if (rc <= 0)
		return err_if_external(rc, &why, e);
	return err_set(e, ENOENT,
		       "'%s' is not a checkpoint, but the directory that it is in is one (%s): "
		       "name that",
		       FQN_TEXT(file, strlen(file)), format->name);
}

int neighbour_of(struct place *place, const char *file, struct ckpt_err *e)
{
	const struct neighbour *is;
	struct ckpt_err of_dir;

	if (!file)
		return directory(place, e);
	if (contents_of(place, file, &is, e))
		return -e->code;
	if (is)
		return err_set(e, code_of(is), "'%s' is %s%s; %s", FQN_TEXT(file, strlen(file)),
			       is->what, is->unread, is->todo);
	if (neighbour_checkpoint(place, file, e))
		return -e->code;
	if (!directory(place, &of_dir) || of_dir.code == ENOENT)
		return 0;
	if (err_if_external(-of_dir.code, &of_dir, e))
		return -e->code;
	return err_set(e, of_dir.code, "'%s' is not a checkpoint; about its directory: %.280s",
		       FQN_TEXT(file, strlen(file)), of_dir.msg);
}
