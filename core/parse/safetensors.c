/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/safetensors.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

#define ZSTD_MAGIC 0xfd2fb528u /* RFC 8878, section 3.1.1 */

static const char metadata_key[] = "__metadata__";

struct st_header {
	uint64_t data, end;
	char *text;	  /* contains the names */
	struct jdoc meta; /* of __metadata__ */
	struct st_tensor *tensors;
	uint64_t *shapes;
	size_t n;
};

void st_free(struct st_header *h)
{
	if (!h)
		return;
	jdoc_release(&h->meta);
	free(h->text);
	free(h->tensors);
	free(h->shapes);
	free(h);
}

CLEANUP_POINTER(st_freep, struct st_header, st_free)

uint64_t st_data(const struct st_header *h)
{
	return h->data;
}

uint64_t st_end(const struct st_header *h)
{
	return h->end;
}

size_t st_count(const struct st_header *h)
{
	return h->n;
}

const struct st_tensor *st_tensor(const struct st_header *h, size_t i)
{
	return &h->tensors[i];
}

const char *st_metadata(const struct st_header *h, const char *key)
{
	return jval_str(jval_get(jdoc_root(&h->meta), key));
}

static int by_name(const void *ap, const void *bp)
{
	const struct st_tensor *a = ap, *b = bp;

	return strcmp(a->name, b->name);
}

static int by_begin(const void *ap, const void *bp)
{
	const struct st_tensor *a = ap, *b = bp;

	if (a->begin != b->begin)
		return a->begin < b->begin ? -1 : 1;
	return a->end < b->end ? -1 : a->end > b->end;
}

static int bad(struct ckpt_err *e, const char *name, const char *what)
{
	return err_set(e, ERR_CORRUPT, "safetensors header: '%.200s': %s", name, what);
}

/* One entry of the header; writes the shape to *shapes and advances it. */
static int read_tensor(const char *name, struct jval v, struct st_tensor *t, uint64_t **shapes,
		       struct ckpt_err *e)
{
	const char *dtype = jval_str(jval_get(v, "dtype"));
	uint64_t range[2], bytes;
	size_t two;

	if (!dtype)
		return bad(e, name, "no dtype");
	t->name = name;
	t->dtype_name = dtype;
	t->dtype = dtype_by_safetensors(dtype);
	if (!jval_u64s(jval_get(v, "shape"), *shapes, CKPT_MAX_DIMS, &t->n_dims))
		return bad(e, name, "its shape is not a list of at most 64 numbers");
	if (!jval_u64s(jval_get(v, "data_offsets"), range, 2, &two) || two != 2 ||
	    range[0] > range[1])
		return bad(e, name, "its data_offsets are not two numbers in order");
	t->shape = *shapes;
	*shapes += t->n_dims;
	t->begin = range[0];
	t->end = range[1];
	if (t->dtype == CKPT_DTYPE_NONE) /* unknown dtype: the other tensors can be read */
		return 0;
	if (!box_volume(t->n_dims, t->shape, &bytes) ||
	    ckd_mul(&bytes, bytes, dtype_info(t->dtype)->size))
		return bad(e, name, "its shape is too large");
	if (t->dtype == CKPT_DTYPE_F4_E2M1FN_X2) {
		if (bytes % 2)
			return bad(e, name, "its 4-bit values do not fill whole bytes");
		bytes /= 2;
	}
	if (bytes != t->end - t->begin)
		return bad(e, name, "shape and data_offsets disagree");
	return 0;
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static int check_layout(struct st_header *h, uint64_t limit, struct ckpt_err *e)
{
	uint64_t at = 0;

	if (h->n)
		qsort(h->tensors, h->n, sizeof(*h->tensors), by_begin);
	for (size_t i = 0; i < h->n; i++) {
		if (h->tensors[i].begin != at)
			return bad(e, h->tensors[i].name, "a hole or an overlap before its data");
		at = h->tensors[i].end;
	}
	if (at > limit)
		return err_set(e, ERR_CORRUPT,
			       "safetensors header: the data has %llu bytes, but the file has %llu",
			       (unsigned long long)at, (unsigned long long)limit);
	h->end = h->data + at;
	if (h->n)
		qsort(h->tensors, h->n, sizeof(*h->tensors), by_name);
	return 0;
}

/* Only strings are allowed, as safetensors demands; null is the same as nothing. */
static int check_metadata(struct jval v, struct ckpt_err *e)
{
	struct jiter i = jiter(v);

	if (!jval_is(v, J_OBJECT) && !jval_is(v, J_NULL))
		return bad(e, metadata_key, "not an object");
	while (jiter_next(&i))
		if (!jval_is(i.v, J_STRING))
			return err_set(e, ERR_CORRUPT,
				       "safetensors header: '%s': '%.200s' is not a string",
				       metadata_key, i.key);
	return 0;
}

static int read_entries(struct st_header *h, struct ckpt_err *e)
{
	struct jval meta = { 0 }, root = jdoc_root(&h->meta);
	size_t n_shapes = 0;
	uint64_t *shapes;
	int rc = 0;

	for (struct jiter i = jiter(root); jiter_next(&i); h->n++)
		n_shapes += min_u64(jval_size(jval_get(i.v, "shape")), CKPT_MAX_DIMS);
	h->tensors = calloc(h->n + 1, sizeof(*h->tensors));
	h->shapes = shapes = calloc(n_shapes + CKPT_MAX_DIMS, sizeof(*h->shapes));
	h->n = 0;
	if (!h->tensors || !h->shapes)
		return err_nomem(e);
	for (struct jiter i = jiter(root); !rc && jiter_next(&i);) {
		if (strcmp(i.key, metadata_key) != 0) {
			rc = read_tensor(i.key, i.v, &h->tensors[h->n++], &shapes, e);
		} else {
			rc = check_metadata(i.v, e);
			meta = i.v;
		}
	}
	jdoc_keep(&h->meta, meta);
	return rc;
}

static int parse(struct st_header *h, size_t len, struct ckpt_err *e)
{
	if (!jdoc_parse(&h->meta, h->text, len, 0, e) && jval_is(jdoc_root(&h->meta), J_OBJECT))
		return 0;
	if (h->meta.n)
		(void)err_set(e, ERR_CORRUPT, "something else");
	return e->code == ERR_CORRUPT ? err_wrap(e, "safetensors header is not a JSON object")
				      : err_wrap(e, "safetensors header");
}

int st_read(const struct blob *b, struct st_header **ret, struct ckpt_err *e)
{
	CLEANUP(st_freep) struct st_header *h = calloc(1, sizeof(*h));
	uint8_t len8[8];
	uint64_t len;
	int64_t n;
	int rc;

	if (!h)
		return err_nomem(e);
	n = b->read(b->arg, 0, len8, sizeof(len8), e);
	if (n < 0)
		return (int)n;
	len = n == sizeof(len8) ? load_le64(len8) : 0;
	if ((uint32_t)len == ZSTD_MAGIC)
		return err_set(e, ERR_CORRUPT,
			       "no safetensors header: the file is compressed with zstd; "
			       "decompress it first");
	if (!len || len > ST_MAX_HEADER || !range_ok(8, len, b->size))
		return err_set(e, ERR_CORRUPT, "no safetensors header: its length would be %llu",
			       (unsigned long long)len);
	h->text = malloc(len + 1);
	if (!h->text)
		return err_nomem(e);
	n = b->read(b->arg, 8, h->text, len, e);
	if (n < 0)
		return (int)n;
	if ((uint64_t)n != len)
		return err_set(e, ERR_CORRUPT, "safetensors header ends early");
	h->data = 8 + len;
	rc = parse(h, len, e);
	if (!rc)
		rc = read_entries(h, e);
	if (rc)
		return rc;
	if (check_layout(h, b->size == BLOB_SIZE_UNKNOWN ? UINT64_MAX : b->size - h->data, e))
		return -e->code;
	*ret = steal_ptr(&h);
	return 0;
}

const struct st_tensor *st_find(const struct st_header *h, const char *name, size_t len)
{
	struct st_tensor key = { .name = name };

	if (strlen(name) != len || !h->n)
		return NULL;
	return bsearch(&key, h->tensors, h->n, sizeof(*h->tensors), by_name);
}
