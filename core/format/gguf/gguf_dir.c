/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF, llama.cpp's format: a file with everything, or
 *
 *	X-00001-of-00003.gguf ...    parts: all have tensors, the first has the keys
 *
 * Parts say in split.no, split.count and split.tensors.count what they are, and llama.cpp finds
 * them by their names. Any of them stands for the model. Every key is an object, in JSON. Only
 * heads are read.
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/format.h"
#include "format/gguf/gguf_json.h"
#include "format/gguf/gguf_types.h"
#include "format/neighbours.h"
#include "format/part_names.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "parse/gguf.h"
#include "source/source.h"

#include <stdio.h>
#include <string.h>

static const char suffix[] = ".gguf";

enum { MAX_PARTS = 9999, NAME_CAP = 300, PART_LEN = 15 /* -00001-of-00003 */ };

static bool is_named_so(const char *name)
{
	return *name != '.' && !strchr(name, '/') && strlen(name) < NAME_CAP - 1 &&
	       bytes_end(name, strlen(name), suffix) && strlen(name) > strlen(suffix);
}

/* ---- parts ---- */

static bool part_of(const char *name, struct part *ret)
{
	return part_parse(name, suffix, ret) && ret->stem && ret->width == 5 &&
	       strlen(name) == ret->stem + PART_LEN + strlen(suffix) && ret->number &&
	       ret->count <= MAX_PARTS;
}

static void part_name(const struct part *p, uint32_t number, char out[NAME_CAP])
{
	(void)snprintf(out, NAME_CAP, "%.*s-%05u-of-%05u%s", (int)p->stem, p->name, number,
		       p->count, suffix);
}

/* The files of the model that this file belongs to, all of which must be there. */
static int list_parts(struct place *place, const char *name, struct name_list *files,
		      struct ckpt_err *e)
{
	struct place_seen seen;
	char other[NAME_CAP];
	struct part p;
	int rc = 0;

	if (!part_of(name, &p))
		return name_list_add(files, name, e);
	for (uint32_t i = 1; !rc && i <= p.count; i++) {
		part_name(&p, i, other);
		rc = place_look(place, other, &seen, e);
		if (!rc)
			return err_set(e, ENOENT, "'%.200s' is missing: the model is in %u files",
				       other, p.count);
		if (rc > 0)
			rc = name_list_add(files, other, e);
	}
	return rc;
}

/* ---- recognising ---- */

/* 1, 0 or an error. */
static int begins_so(struct place *place, const char *file, struct ckpt_err *e)
{
	uint8_t head[8];
	struct place_seen seen;
	int64_t n = small_file_begin(place, file, head, sizeof(head), &seen, e);

	return n < 0 ? (int)n : n == sizeof(head) && gguf_is(head, sizeof(head));
}

static int add_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)kind;
	return is_named_so(name) ? name_list_add(arg, name, e) : 0;
}

/* Are both parts of one model? */
static bool of_one(const char *a, const char *b)
{
	struct part x, y;

	return part_of(a, &x) && part_of(b, &y) && x.count == y.count && part_is_beside(&x, &y);
}

static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct name_list all CLEANUP(name_list_release) = { 0 };
	int rc = !file || is_named_so(file) ? 1 : begins_so(place, file, e);

	if (rc <= 0)
		return rc;
	if (!file) {
		rc = place_list(place, ".", add_file, &all, e);
		name_list_sort(&all);
		if (rc || !all.n)
			return rc;
		for (size_t i = 1; i < all.n; i++)
			if (!of_one(all.v[0], all.v[i]))
				return err_set(e, ENOTUNIQ,
					       "'%.100s' and '%.100s' are two models: name one of "
					       "them instead of the directory",
					       all.v[0], all.v[i]);
		file = all.v[0];
	}
	rc = list_parts(place, file, files, e);
	return rc ? rc : 1;
}

/* ---- reading ---- */

CLEANUP_POINTER(free_head, struct gguf_head, gguf_free)

struct scan {
	struct place *place;
	const struct scan_opts *opts;
	struct catalog_writer *w;
	const struct name_list *files;
	uint32_t encoding;
	uint64_t tensors;  /* so far */
	uint64_t expected; /* split.tensors.count of the first part */
	struct buf types;  /* the object GGUF_TYPES */
};

/* llama-quantize writes no outer dimensions of 1, and the converter does; to ggml they are the
 * same. This gate is a matrix with one row in all models. */
static bool is_row(const struct gguf_item *t)
{
	return t->n_dims == 1 && bytes_end(t->name, t->len, ".ffn_gate_inp_shexp.weight");
}

static int add_item(struct scan *s, const struct gguf_head *h, uint32_t file,
		    const struct gguf_item *t, struct ckpt_err *e)
{
	enum ckpt_dtype dtype = (enum ckpt_dtype)t->type->dtype;
	uint64_t box[2 * GGUF_READ_DIMS] = { 0 }, shape[GGUF_READ_DIMS];
	struct chunk_loc loc = { .offset = h->data + t->begin,
				 .length = t->bytes,
				 .file = file,
				 .encoding = s->encoding };
	struct tensor_chunks c = { .fqn = t->name,
				   .fqn_len = t->len,
				   .dtype = dtype,
				   .n_dims = t->n_dims + is_row(t),
				   .shape = shape,
				   .count = 1,
				   .boxes = box,
				   .locs = &loc };

	shape[0] = 1;
	memcpy(shape + is_row(t), t->shape, t->n_dims * sizeof(*shape));
	if (dtype == CKPT_DTYPE_NONE) {
		c.dtype = CKPT_DTYPE_U8; /* a block has several elements, so there are dimensions */
		shape[c.n_dims - 1] = shape[c.n_dims - 1] / t->type->elements * t->type->bytes;
	}
	memcpy(box + c.n_dims, shape, c.n_dims * sizeof(*shape));
	buf_str(&s->types, s->tensors++ ? ",\n  " : "{\n  ");
	buf_json_str(&s->types, t->name, t->len);
	buf_printf(&s->types, ": \"%s\"", t->type->name);
	return catalog_add_tensor(s->w, &c, e);
}

/* A text that is too large is listed without it. */
static int add_text(struct scan *s, const char *name, size_t len, struct buf *text,
		    struct ckpt_err *e)
{
	struct object_item o = { .fqn = name,
				 .fqn_len = len,
				 .loc = { .file = CATALOG_NO_FILE },
				 .text = text->data,
				 .text_len = text->len };
	struct ckpt_err why;
	int rc = text->err == EFBIG ? -EFBIG : text->err ? err_nomem(&why) : 0;

	if (!rc)
		rc = catalog_add_object(s->w, &o, &why);
	if (rc == -EFBIG) {
		o.text = NULL;
		o.text_len = 0;
		o.fault = "its text is too large";
		return catalog_add_object(s->w, &o, e);
	}
	if (rc)
		*e = why;
	return rc;
}

static int add_keys(struct scan *s, const struct gguf_head *h, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(CATALOG_MAX_TEXT);
	int rc = 0;

	for (size_t i = 0; !rc && i < h->n_keys; i++) {
		const struct gguf_key *k = &h->keys[i];

		if (bytes_are(k->name, k->len, GGUF_TYPES))
			return err_set(e, ERR_UNSUPPORTED,
				       "it has a key '" GGUF_TYPES "', a name used here");
		buf_restart(&text);
		text.len = 0;
		gguf_json_value(&k->value, &text);
		buf_str(&text, "\n");
		rc = add_text(s, k->name, k->len, &text, e);
	}
	return rc;
}

/* Does the file say that it is the part that its name says it is? */
static int check_part(struct scan *s, const struct gguf_head *h, size_t i, struct ckpt_err *e)
{
	uint64_t number = 0, count = 1;

	(void)gguf_number(gguf_find(h, "split.no"), &number);
	(void)gguf_number(gguf_find(h, "split.count"), &count);
	if (!i)
		(void)gguf_number(gguf_find(h, "split.tensors.count"), &s->expected);
	if (!count && !number)
		count = 1;
	if (count == s->files->n && number == i)
		return 0;
	if (s->files->n == 1)
		return err_set(e, ERR_CORRUPT,
			       "it is part %llu of %llu of a model (split.no, split.count), whose "
			       "files must be named X-00001-of-%05llu.gguf and so on",
			       (unsigned long long)number + 1, (unsigned long long)count,
			       (unsigned long long)count);
	return err_set(e, ERR_CORRUPT, "it is part %llu of %llu (split.no, split.count)",
		       (unsigned long long)number + 1, (unsigned long long)count);
}

static int scan_head(struct scan *s, const char *name, size_t i, struct ckpt_err *e)
{
	CLEANUP(free_head) struct gguf_head *h = NULL;
	struct source *file CLEANUP(source_freep) = NULL;
	uint32_t number;
	struct blob b;
	int rc = place_file(s->place, name, &file, e);

	if (!rc)
		rc = catalog_add_metadata(s->w, name, &file->seen, NULL, e);
	if (rc)
		return rc;
	b = source_blob(file);
	rc = neighbour_explain(file, name, gguf_read(&b, &h, e), e);
	if (!rc)
		rc = check_part(s, h, i, e);
	if (!rc)
		rc = catalog_add_source(s->w, name, strlen(name), &number, e);
	if (!rc && !i)
		rc = add_keys(s, h, e);
	for (size_t k = 0; !rc && k < h->n_items; k++)
		rc = add_item(s, h, number, &h->items[k], e);
	return rc ? err_wrap(e, "read '%.200s'", name) : 0;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct scan s = { .place = place,
			  .opts = opts,
			  .w = w,
			  .files = files,
			  .expected = UINT64_MAX,
			  .types = BUF_INIT(CATALOG_MAX_TEXT) };
	int rc = catalog_add_encoding(w, "raw", &s.encoding, e);

	for (size_t i = 0; !rc && i < files->n; i++) {
		rc = scan_head(&s, files->v[i], i, e);
		if (opts->progress)
			opts->progress(opts->progress_arg, i + 1, files->n);
	}
	if (!rc && files->n > 1 && s.expected != UINT64_MAX && s.expected != s.tensors)
		rc = err_set(e, ERR_CORRUPT,
			     "'%.200s' says that the model has %llu tensors (split.tensors.count), "
			     "but its files have %llu",
			     files->v[0], (unsigned long long)s.expected,
			     (unsigned long long)s.tensors);
	buf_str(&s.types, s.tensors ? "\n}\n" : "{}\n");
	if (!rc)
		rc = add_text(&s, GGUF_TYPES, strlen(GGUF_TYPES), &s.types, e);
	buf_release(&s.types);
	return rc;
}

const struct format format_gguf = { .name = "gguf", .probe = probe, .scan = scan };
