/* SPDX-License-Identifier: Apache-2.0 */
#include "format/format.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/neighbours.h"
#include "format/part_names.h"
#include "index/catalog_build.h"
#include "source/place.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which they are tried: the more specific come first. */
static const struct format *const formats[] = {
	&format_megatron,	&format_megatron_zarr, &format_hyperparallel, &format_dcp,
	&format_safetensors,	&format_torchsave,     &format_deepspeed,     &format_fsdp,
	&format_megatron_ranks, &format_orbax,	       &format_gguf
};

/* How the formats above are recognised, for the error message about an unknown one. */
static const char known_directories[] =
	"PyTorch DCP has .metadata or __N.metadata, Megatron metadata.json or mp_rank_NN/, "
	"HyperParallel .rankN_metadata, torch pytorch_model.bin, DeepSpeed *_model_states.pt, "
	"FSDP *_world_size_W_rank_R.pt, Orbax *.ocdbt, others *.safetensors or *.gguf";
static const char known_files[] = "not a file of safetensors, torch.save, GGUF, Flax or NeMo";

int name_list_add(struct name_list *l, const char *name, struct ckpt_err *e)
{
	char *copy = VEC_ROOM(l->v, l->cap, l->n + 1) ? strdup(name) : NULL;

	if (!copy)
		return err_nomem(e);
	l->v[l->n++] = copy;
	return 0;
}

static int by_name(const void *ap, const void *bp)
{
	const char *a = *(char *const *)ap, *b = *(char *const *)bp;

	return text_natural_cmp(a, strlen(a), b, strlen(b));
}

void name_list_sort(struct name_list *l)
{
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_name);
}

bool name_list_has(const struct name_list *l, const char *name)
{
	return l->n && bsearch(&name, l->v, l->n, sizeof(*l->v), by_name);
}

void name_list_release(struct name_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct name_list){ 0 };
}

enum { LOOK_AT = 1000, SHOW = 3 }; /* file names: how many to read, how many to show */

static int add_some(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct name_list *l = arg;

	(void)kind;
	return l->n == LOOK_AT ? 1 : name_list_add(l, name, e);
}

/* The first names of a directory, in natural order: "'a', 'b', 'c', ...", or "". */
static int name_some(struct place *place, char *out, size_t cap, struct ckpt_err *e)
{
	struct name_list l CLEANUP(name_list_release) = { 0 };
	int rc = place_list(place, ".", add_some, &l, e);
	size_t at = 0;

	if (rc < 0)
		return rc;
	name_list_sort(&l);
	*out = 0;
	for (size_t i = 0; i < l.n && i <= SHOW; i++)
		at += (size_t)snprintf(out + at, cap - at, i == SHOW ? "%s..." : "%s'%.40s'",
				       at ? ", " : "", l.v[i]);
	return 0;
}

/* No format recognised it: report what it is, or what is there and what would have been
 * recognised. */
static int unknown(struct place *place, const char *file, struct ckpt_err *e)
{
	char found[200];

	if (neighbour_of(place, file, e))
		return -e->code;
	if (file)
		return err_set(e, ENOENT, "not a checkpoint: '%.100s' is %s", file, known_files);
	if (name_some(place, found, sizeof(found), e))
		return -e->code;
	if (!*found)
		return err_set(e, ENOENT, "not a checkpoint: nothing is in it");
	return err_set(e, ENOENT, "not a checkpoint: found %s; %s", found, known_directories);
}

/* DCP's data files consist of what torch.save writes, so they may begin as its files do. */
static bool is_items(const char *file)
{
	return file && text_glob("*.distcp", file, strlen(file));
}

static int probe(struct place *place, const char *file, const struct format **ret,
		 struct name_list *files, struct ckpt_err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		const struct format *f = formats[i];
		int rc = 0;

		if (f->probe)
			rc = f->probe(place, file, files, e);
		else if (!file)
			rc = f->probe_dir(place, files, e);
		if (rc > 0 && f->probe_dir)
			name_list_sort(files);
		if (rc)
			*ret = f;
		if (rc)
			return rc;
		name_list_release(files);
	}
	return 0;
}

int format_probe(struct place *place, const char *file, const struct format **ret,
		 struct name_list *files, struct ckpt_err *e)
{
	int rc = probe(place, file, ret, files, e);

	return rc && is_items(file) && neighbour_checkpoint(place, file, e) ? -e->code : rc;
}

int format_refuse_unlisted(const char *name, struct ckpt_err *e)
{
	return err_set(
		e, ERR_UNSUPPORTED,
		"'%.200s' is there, but this server lists no directories, and the other files of "
		"this format have to be found in such a list: copy the checkpoint to a disk, or to "
		"a store that has listings",
		name);
}

/* Orbax renames the directory when everything has been written. */
bool format_is_unfinished(const char *name)
{
	return text_glob("*.orbax-checkpoint-tmp*", name, strlen(name));
}

/* At most one file is here, the one that names the directory. */
bool format_is_below(const struct name_list *files)
{
	size_t here = 0;

	for (size_t i = 0; i < files->n; i++)
		here += !strchr(files->v[i], '/');
	return here <= 1 && files->n > here;
}

int format_detect(struct place *place, const char *file, const struct format **ret,
		  struct name_list *files, struct ckpt_err *e)
{
	int rc = probe(place, file, ret, files, e);

	if (rc && is_items(file) && neighbour_checkpoint(place, file, e))
		return -e->code;
	if (!rc || (rc < 0 && is_items(file)))
		return unknown(place, file, e);
	return rc < 0 ? rc : 0;
}

int format_note(char note[static FORMAT_NOTE], const char *fmt, ...)
{
	char text[FORMAT_NOTE];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!*note) /* names may be hostile */
		(void)text_show(text, strlen(text), note, FORMAT_NOTE);
	return 0;
}

bool format_is_note(const char *fqn, size_t len)
{
	return bytes_are(fqn, len, FORMAT_NOT_SHOWN) || bytes_are(fqn, len, FORMAT_MISSING) ||
	       bytes_are(fqn, len, FORMAT_INDEX_DIFFERS);
}

int format_add_absent(const struct object_item *tensor, const char *file, bool file_is_there,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	struct object_item o = *tensor;
	char fault[300];

	(void)snprintf(fault, sizeof(fault),
		       file_is_there ? "the index places it in '%.200s', which lacks it"
				     : "a tensor of '%.255s', which is missing",
		       file);
	o.fault = fault;
	return catalog_add_object(w, &o, e);
}

int format_tell(const char *name, const char *note, struct catalog_writer *w, struct ckpt_err *e)
{
	struct object_item o = { .fqn = name,
				 .fqn_len = strlen(name),
				 .loc = { .file = CATALOG_NO_FILE } };
	struct buf text CLEANUP(buf_release) = BUF_INIT(8 * FORMAT_NOTE);

	if (!*note)
		return 0;
	buf_json_str(&text, note, strlen(note));
	buf_str(&text, "\n");
	if (text.err)
		return err_nomem(e);
	o.text = text.data;
	o.text_len = text.len;
	return catalog_add_object(w, &o, e);
}

void format_note_part(struct place *place, const char *file, char note[static FORMAT_NOTE])
{
	const char *suffix = strrchr(file, '.');
	char other[256] = "";
	struct place_seen seen;
	struct ckpt_err ignored;
	struct part_rank r;
	struct part p;

	if (suffix && part_parse(file, suffix, &p)) {
		if (p.count > 1)
			(void)format_note(note,
					  "'%.200s' is one of %u files, each with a part of the "
					  "model; the others are not shown",
					  file, p.count);
		return;
	}
	if (!part_rank_parse(file, &r) ||
	    snprintf(other, sizeof(other), "%.*s%0*u%s", (int)r.at, file, (int)r.digits, !r.number,
		     file + r.at + r.digits) >= (int)sizeof(other) ||
	    place_look(place, other, &seen, &ignored) <= 0)
		return;
	(void)format_note(
		note,
		"'%.120s' has only one rank's part of the model; those in '%.120s' and so "
		"on are not shown",
		file, other);
}
