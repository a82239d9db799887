/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/zarr_metadata.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES ((size_t)4 << 20)

static int bad(struct ckpt_err *e, const char *what)
{
	return err_set(e, ERR_CORRUPT, "%s", what);
}

/* Notes the first thing that is not supported; returns 0. */
__attribute__((format(printf, 2, 3))) static int lacks(struct zarr_array *a, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (!*a->unsupported)
		(void)vsnprintf(a->unsupported, sizeof(a->unsupported), fmt, ap);
	va_end(ap);
	return 0;
}

/* A short string of the metadata for a message; not a string: its type. */
static const char *shown(struct jval v, char out[static 64])
{
	const char *s = jval_str(v);

	return s ? text_show(s, jval_len(v), out, 64) : "(not a name)";
}

/* ---- data types ---- */

bool zarr_has(enum ckpt_dtype t)
{
	switch (t) {
	case CKPT_DTYPE_NONE:
	case CKPT_DTYPE_C32:
	case CKPT_DTYPE_BC32:
	case CKPT_DTYPE_F4_E2M1FN_X2:
	case CKPT_DTYPE_QI8:
	case CKPT_DTYPE_QU8:
	case CKPT_DTYPE_QI32:
	case CKPT_DTYPE_QU4X2:
	case CKPT_DTYPE_QU2X4:
	case CKPT_DTYPE_BITS8:
	case CKPT_DTYPE_BITS16:
	case CKPT_DTYPE_BITS1X8:
	case CKPT_DTYPE_BITS2X4:
	case CKPT_DTYPE_BITS4X2:
		return false;
	default:
		return true;
	}
}

static enum ckpt_dtype by_name(const char *name, size_t len)
{
	enum ckpt_dtype t = ckpt_dtype_by_name(name, len);

	return zarr_has(t) ? t : CKPT_DTYPE_NONE;
}

/* "<f4", "|b1", or a name that NumPy lacks: "bfloat16". */
static enum ckpt_dtype by_descr(const char *name, size_t len, bool *ret_swap)
{
	*ret_swap = false;
	if (!len || !strchr("<>|", *name))
		return by_name(name, len);
	*ret_swap = *name == '>';
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++) {
		const struct dtype_info *i = dtype_info(t);

		if (i->npy[1] != 'V' && bytes_are(name + 1, len - 1, i->npy + 1))
			return *name == '|' && i->size > 1 ? CKPT_DTYPE_NONE : t;
	}
	return CKPT_DTYPE_NONE;
}

/* ---- fill values ---- */

/* Small floats: bits of exponent and mantissa, and the bias; the patterns of the greatest number,
 * infinity and NaN, 0 if there is none. codec/values.h says what they are. */
struct small {
	uint8_t exp, man, bias;
	uint16_t greatest, infinity, nan;
};

static const struct small smalls[CKPT_DTYPE_COUNT] = {
	[CKPT_DTYPE_F16] = { 5, 10, 15, 0x7bff, 0x7c00, 0x7e00 },
	[CKPT_DTYPE_BF16] = { 8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0 },
	[CKPT_DTYPE_F8_E4M3FN] = { 4, 3, 7, 0x7e, 0, 0x7f },
	[CKPT_DTYPE_F8_E4M3FNUZ] = { 4, 3, 8, 0x7f, 0, 0x80 },
	[CKPT_DTYPE_F8_E5M2] = { 5, 2, 15, 0x7b, 0x7c, 0x7e },
	[CKPT_DTYPE_F8_E5M2FNUZ] = { 5, 2, 16, 0x7f, 0, 0x80 },
	[CKPT_DTYPE_F8_E3M4] = { 3, 4, 3, 0x6f, 0x70, 0x78 },
	[CKPT_DTYPE_F8_E4M3B11FNUZ] = { 4, 3, 11, 0x7f, 0, 0x80 },
	[CKPT_DTYPE_F4_E2M1FN] = { 2, 1, 1, 7, 0, 0 },
};

static bool small_bits(const struct small *s, double v, uint64_t *ret)
{
	uint64_t sign = signbit(v) ? (uint64_t)1 << (s->exp + s->man) : 0;
	bool unsigned_zero = s->nan == 1u << (s->exp + s->man);
	int power;

	if (!isfinite(v)) {
		*ret = isnan(v) ? s->nan : s->infinity | sign;
		return isnan(v) ? s->nan : s->infinity;
	}
	/* A number of quanta, whose highest bit, if it is normal, adds one to the exponent. */
	power = v != 0 ? ilogb(v) : -2000;
	power = power < 1 - s->bias ? 1 - s->bias : power;
	if (power >= 1 << s->exp)
		return false;
	*ret = ((uint64_t)(power + s->bias - 1) << s->man) +
	       (uint64_t)rint(ldexp(fabs(v), s->man - power));
	if (*ret > s->greatest)
		return false;
	*ret |= *ret || !unsigned_zero ? sign : 0;
	return true;
}

static bool power_bits(double v, uint64_t *ret)
{
	int power;

	*ret = 255;
	if (isnan(v))
		return true;
	if (v <= 0 || isinf(v) || frexp(v, &power) != 0.5 || power < -126 || power > 128)
		return false;
	*ret = (uint64_t)(power + 126);
	return true;
}

static bool integer_bits(enum ckpt_dtype t, double v, uint64_t *ret)
{
	const struct dtype_info *i = dtype_info(t);
	bool is_signed = *i->name == 'i';
	int bits = t == CKPT_DTYPE_I4 ? 4 : t == CKPT_DTYPE_I2 ? 2 : 8 * i->size;
	double end = ldexp(1, bits - is_signed);

	if (v != trunc(v) || v >= end || v < (is_signed ? -end : 0))
		return false;
	*ret = v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
	return true;
}

bool zarr_element(enum ckpt_dtype t, double v, uint8_t *ret)
{
	const struct dtype_info *i = dtype_info(t);
	uint64_t bits = 0;
	float f;

	if (t == CKPT_DTYPE_F64 || t == CKPT_DTYPE_C128) {
		memcpy(&bits, &v, sizeof(v));
	} else if (t == CKPT_DTYPE_F32 || t == CKPT_DTYPE_C64) {
		f = (float)v;
		if (isinf(f) && !isinf(v))
			return false;
		memcpy(&bits, &f, sizeof(f));
	} else if (t == CKPT_DTYPE_F8_E8M0FNU) {
		if (!power_bits(v, &bits))
			return false;
	} else if (t == CKPT_DTYPE_BOOL) {
		bits = v != 0;
		if (v != 0 && v != 1)
			return false;
	} else if (smalls[t].exp ? !small_bits(&smalls[t], v, &bits) : !integer_bits(t, v, &bits)) {
		return false;
	}
	(void)put_le(ret, bits, i->unit);
	return true;
}

/* "0x7fc0": the number's bits. */
static bool hex_bits(const char *s, size_t unit, uint64_t *ret)
{
	char *end;

	if (strncmp(s, "0x", 2) != 0 || strlen(s) != 2 + 2 * unit ||
	    strspn(s + 2, "0123456789abcdefABCDEF") != 2 * unit)
		return false;
	*ret = strtoull(s + 2, &end, 16);
	return true;
}

/* One number, or one part of a complex one. */
static bool fill_number(enum ckpt_dtype t, struct jval v, uint8_t *ret)
{
	static const struct {
		const char *name;
		double value;
	} names[] = { { "NaN", (double)NAN },
		      { "Infinity", (double)INFINITY },
		      { "-Infinity", -(double)INFINITY } };
	const struct dtype_info *i = dtype_info(t);
	const char *s = jval_str(v);
	uint64_t bits;
	double x;

	if (s && hex_bits(s, i->unit, &bits)) {
		(void)put_le(ret, bits, i->unit);
		return !i->is_integer && t != CKPT_DTYPE_BOOL;
	}
	for (size_t k = 0; s && k < ARRAY_LEN(names); k++)
		if (jval_is_str(v, names[k].name))
			return zarr_element(t, names[k].value, ret);
	if (jval_is_bool(v))
		return t == CKPT_DTYPE_BOOL && zarr_element(t, jval_is(v, J_TRUE), ret);
	if (i->is_integer && i->size == 8 &&
	    (jval_u64(v, &bits) || jval_int(v, (int64_t *)&bits))) {
		(void)put_le(ret, bits, 8);
		return *i->name == 'u' ? jval_u64(v, &bits) : jval_is(v, J_INT);
	}
	return jval_number(v, &x) && zarr_element(t, x, ret);
}

static int parse_fill(struct jval v, struct zarr_array *a, struct ckpt_err *e)
{
	const struct dtype_info *i = dtype_info(a->dtype);
	char text[64];
	bool ok;

	if (a->dtype == CKPT_DTYPE_NONE || jval_is_null(v)) /* null: zeros */
		return 0;
	if (i->size == i->unit)
		ok = fill_number(a->dtype, v, a->fill);
	else if (jval_is(v, J_ARRAY))
		ok = jval_size(v) == 2 && fill_number(a->dtype, jval_at(v, 0), a->fill) &&
		     fill_number(a->dtype, jval_at(v, 1), a->fill + i->unit);
	else /* version 2 of some writers: the real part */
		ok = fill_number(a->dtype, v, a->fill);
	if (ok)
		return 0;
	if (jval_str(v))
		return err_set(e, ERR_CORRUPT, "its fill_value '%s' is not a value of %s",
			       shown(v, text), i->name);
	return err_set(e, ERR_CORRUPT, "its fill_value is not a value of %s", i->name);
}

/* ---- parts of both versions ---- */

static int parse_shape(struct jval j, const char *chunks_are, struct jval chunks,
		       struct zarr_array *a, struct ckpt_err *e)
{
	uint64_t *chunk = a->level[0].chunk;
	size_t n;

	if (!jval_u64s(jval_get(j, "shape"), a->shape, CKPT_MAX_DIMS, &a->n_dims))
		return bad(e, "its shape is not a list of at most 64 numbers");
	if (!jval_u64s(chunks, chunk, CKPT_MAX_DIMS, &n) || n != a->n_dims)
		return err_set(e, ERR_CORRUPT, "its %s not a list of as many numbers as its shape",
			       chunks_are);
	for (size_t d = 0; d < n; d++)
		if (!chunk[d])
			return bad(e, "its chunks have no elements");
	return 0;
}

static int check_size(const struct zarr_array *a, struct ckpt_err *e)
{
	uint64_t bytes = a->dtype == CKPT_DTYPE_NONE ? 1 : dtype_info(a->dtype)->size;

	for (size_t d = 0; d < a->n_dims; d++)
		if (ckd_mul(&bytes, bytes, a->level[0].chunk[d]) || bytes > INT64_MAX)
			return bad(e, "its chunks have more than 2^63 bytes");
	return 0;
}

static int parse_separator(struct jval v, struct zarr_array *a, struct ckpt_err *e)
{
	if (!v.d)
		return 0;
	if (!jval_is_str(v, ".") && !jval_is_str(v, "/"))
		return bad(e, "the separator of its keys is neither '.' nor '/'");
	a->separator = *jval_str(v);
	return 0;
}

/* Adds a codec of bytes; 0 and unsupported if it is not known. */
static int add_codec(struct zarr_array *a, struct zarr_level *l, struct jval name, bool v3)
{
	static const char *const known[] = { "zstd", "gzip", "blosc", "zlib", "crc32c" };
	const char *s = jval_str(name);
	char text[64];

	/* zarr-python gives version 3 the codecs of version 2 under such names. */
	if (s && v3 && !strncmp(s, "numcodecs.", 10) && strcmp(s + 10, "crc32c") != 0)
		s += 10;
	else if (s && v3 && !strcmp(s, "zlib"))
		s = NULL;
	for (size_t i = 0; s && i < ARRAY_LEN(known); i++) {
		if (strlen(s) != jval_len(name) - (size_t)(s - jval_str(name)) ||
		    strcmp(s, known[i]) != 0 || (!v3 && !strcmp(s, "crc32c")))
			continue;
		if (l->n_codecs == ZARR_MAX_CODECS)
			return lacks(a, "more than %d codecs", ZARR_MAX_CODECS);
		l->codec[l->n_codecs++] = known[i];
		return 0;
	}
	return lacks(a, "the codec '%s'", shown(name, text));
}

/* ---- version 2 ---- */

static int parse_v2(struct jval j, struct zarr_array *a, struct ckpt_err *e)
{
	struct zarr_level *l = &a->level[0];
	struct jval dtype = jval_get(j, "dtype"), order = jval_get(j, "order");
	struct jval compressor = jval_get(j, "compressor"), filters = jval_get(j, "filters");
	int64_t format;
	char text[64];
	int rc;

	if (!jval_int(jval_get(j, "zarr_format"), &format) || format != 2)
		return bad(e, "its zarr_format is not 2");
	rc = parse_shape(j, "chunks are", jval_get(j, "chunks"), a, e);
	if (rc)
		return rc;
	a->n_levels = 1;
	if (jval_str(dtype))
		a->dtype = by_descr(jval_str(dtype), jval_len(dtype), &l->swap);
	else if (!jval_is(dtype, J_ARRAY))
		return bad(e, "its dtype is neither a string nor a list");
	if (jval_str(dtype) && a->dtype == CKPT_DTYPE_NONE)
		(void)lacks(a, "the dtype '%s'", shown(dtype, text));
	else if (a->dtype == CKPT_DTYPE_NONE)
		(void)lacks(a, "a dtype of several fields");
	if (!jval_is_str(order, "C") && !jval_is_str(order, "F"))
		return bad(e, "its order is neither C nor F");
	for (size_t d = 0; d < a->n_dims; d++)
		l->axis[d] = (uint8_t)(*jval_str(order) == 'F' ? a->n_dims - 1 - d : d);
	if (!jval_is_null(filters) && (!jval_is(filters, J_ARRAY) || jval_size(filters)))
		(void)lacks(a, "filters");
	if (!jval_is_null(compressor))
		(void)add_codec(a, l, jval_get(compressor, "id"), false);
	a->separator = '.';
	rc = parse_separator(jval_given(jval_get(j, "dimension_separator")), a, e);
	if (!rc)
		rc = check_size(a, e);
	return rc ? rc : parse_fill(jval_get(j, "fill_value"), a, e);
}

/* ---- version 3 ---- */

/* An extension is a name, or an object with a name and a configuration. */
static struct jval name_of(struct jval v)
{
	return jval_is(v, J_OBJECT) ? jval_get(v, "name") : v;
}

static struct jval part_of(struct jval v, const char *key)
{
	return jval_get(jval_get(v, "configuration"), key);
}

static int parse_endian(struct jval codec, bool *ret, struct ckpt_err *e)
{
	struct jval endian = jval_given(part_of(codec, "endian"));

	if (endian.d && !jval_is_str(endian, "little") && !jval_is_str(endian, "big"))
		return bad(e, "a codec's endian is neither little nor big");
	*ret = jval_is_str(endian, "big");
	return 0;
}

/* Encoded axis i is the axis order[i] of what the codec is given. */
static int parse_transpose(struct jval codec, struct zarr_array *a, struct zarr_level *l,
			   struct ckpt_err *e)
{
	struct jval order = part_of(codec, "order");
	uint64_t o[CKPT_MAX_DIMS], seen = 0;
	uint8_t axis[CKPT_MAX_DIMS] = { 0 };
	size_t n = a->n_dims;

	if (jval_is_str(order, "C") || jval_is_str(order, "F")) { /* early drafts */
		for (size_t d = 0; d < a->n_dims; d++)
			o[d] = *jval_str(order) == 'F' ? a->n_dims - 1 - d : d;
	} else if (!jval_u64s(order, o, CKPT_MAX_DIMS, &n) || n != a->n_dims) {
		return bad(e, "the order of its transpose is not a list of all axes");
	}
	for (size_t d = 0; d < n; d++) {
		if (o[d] >= n || seen & (uint64_t)1 << o[d])
			return bad(e, "the order of its transpose is not a permutation");
		seen |= (uint64_t)1 << o[d];
		axis[d] = l->axis[o[d]];
	}
	memcpy(l->axis, axis, n);
	return 0;
}

/* The codecs of a shard's index: bytes, then at most a CRC. */
static int parse_index_codecs(struct jval codecs, struct zarr_array *a, struct zarr_level *l,
			      struct ckpt_err *e)
{
	struct jval first = jval_at(codecs, 0), second = jval_at(codecs, 1);

	if (!jval_is_str(name_of(first), "bytes") || jval_size(codecs) > 2 ||
	    (second.d && !jval_is_str(name_of(second), "crc32c")))
		return lacks(a, "the codecs of its shards' index");
	l->index_crc = second.d;
	return parse_endian(first, &l->swap, e);
}

/* The chunks in a shard become the next level; *ret_inner are their codecs. */
static int parse_sharding(struct jval codec, struct zarr_array *a, struct jval *ret_inner,
			  struct ckpt_err *e)
{
	struct zarr_level *l = &a->level[a->n_levels - 1], *inner = l + 1;
	struct jval location = jval_given(part_of(codec, "index_location"));
	uint64_t chunk[CKPT_MAX_DIMS];
	size_t n;

	if (!jval_u64s(part_of(codec, "chunk_shape"), chunk, CKPT_MAX_DIMS, &n) || n != a->n_dims)
		return bad(e, "the chunk_shape of its shards is not a list of as many numbers as "
			      "its shape");
	if (location.d && !jval_is_str(location, "start") && !jval_is_str(location, "end"))
		return bad(e, "the index_location of its shards is neither start nor end");
	l->index_first = jval_is_str(location, "start");
	if (a->n_levels == ZARR_MAX_LEVELS) {
		*ret_inner = (struct jval){ 0 };
		return lacks(a, "shards in shards, %d deep", ZARR_MAX_LEVELS);
	}
	*inner = (struct zarr_level){ 0 };
	for (size_t i = 0; i < n; i++) { /* the codec is given the encoded axes */
		size_t d = l->axis[i];

		if (!chunk[i] || l->chunk[d] % chunk[i])
			return bad(e, "the chunk_shape of its shards does not divide them");
		inner->chunk[d] = chunk[i];
		inner->axis[i] = l->axis[i];
	}
	a->n_levels++;
	*ret_inner = part_of(codec, "codecs");
	if (!jval_is(*ret_inner, J_ARRAY))
		return bad(e, "its shards have no list of codecs");
	return parse_index_codecs(part_of(codec, "index_codecs"), a, l, e);
}

/* A chain of one level: array to array, array to bytes, bytes to bytes. */
static int parse_chain(struct jval codecs, struct zarr_array *a, struct jval *ret_inner,
		       struct ckpt_err *e)
{
	struct zarr_level *l = &a->level[a->n_levels - 1];
	struct jiter i = jiter(codecs);
	bool is_bytes = false, is_shard = false;
	char text[64];
	int rc = 0;

	if (!jval_is(codecs, J_ARRAY))
		return bad(e, "its codecs are not a list");
	while (!rc && jiter_next(&i)) {
		struct jval name = name_of(i.v);

		if (is_shard) {
			rc = lacks(a, "shards with the codec '%s'", shown(name, text));
		} else if (is_bytes) {
			rc = add_codec(a, l, name, true);
		} else if (jval_is_str(name, "transpose")) {
			rc = parse_transpose(i.v, a, l, e);
		} else if (jval_is_str(name, "bytes")) {
			is_bytes = true;
			rc = parse_endian(i.v, &l->swap, e);
		} else if (jval_is_str(name, "sharding_indexed")) {
			is_shard = true;
			rc = parse_sharding(i.v, a, ret_inner, e);
		} else {
			return lacks(a, "the codec '%s'", shown(name, text));
		}
	}
	if (!rc && !is_bytes && !is_shard)
		return bad(e, "none of its codecs turns elements into bytes");
	return rc;
}

static int parse_grid(struct jval j, struct zarr_array *a, struct ckpt_err *e)
{
	struct jval grid = jval_get(j, "chunk_grid"), chunk = part_of(grid, "chunk_shape");
	char text[64];
	uint64_t ignored[1];
	size_t n;

	if (jval_is_str(name_of(grid), "regular"))
		return parse_shape(j, "chunk_shape is", chunk, a, e);
	if (!jval_u64s(jval_get(j, "shape"), a->shape, CKPT_MAX_DIMS, &a->n_dims) ||
	    !jval_str(name_of(grid)) || jval_u64s(name_of(grid), ignored, 1, &n))
		return bad(e, "it has no shape or no chunk_grid");
	for (size_t d = 0; d < a->n_dims; d++)
		a->level[0].chunk[d] = 1;
	return lacks(a, "the chunk grid '%s'", shown(name_of(grid), text));
}

static int parse_keys(struct jval j, struct zarr_array *a, struct ckpt_err *e)
{
	struct jval v = jval_get(j, "chunk_key_encoding"), name = name_of(v);
	char text[64];

	a->key_c = jval_is_str(name, "default");
	a->separator = a->key_c ? '/' : '.';
	if (!a->key_c && !jval_is_str(name, "v2"))
		return lacks(a, "the chunk key encoding '%s'", shown(name, text));
	return parse_separator(jval_given(part_of(v, "separator")), a, e);
}

/* An extension that is not known must be marked as one that readers may ignore. */
static int check_members(struct jval j, struct zarr_array *a)
{
	static const char *const known[] = {
		"zarr_format",
		"node_type",
		"shape",
		"data_type",
		"chunk_grid",
		"chunk_key_encoding",
		"fill_value",
		"codecs",
		"attributes",
		"dimension_names",
		"storage_transformers",
		"consolidated_metadata",
	};
	struct jiter i = jiter(j);
	struct jval transformers = jval_get(j, "storage_transformers");

	if (!jval_is_null(transformers) && jval_size(transformers))
		return lacks(a, "storage transformers");
	while (jiter_next(&i)) {
		char text[64];
		bool ok = jval_is(jval_get(i.v, "must_understand"), J_FALSE);

		for (size_t k = 0; k < ARRAY_LEN(known); k++)
			ok |= bytes_are(i.key, i.key_len, known[k]);
		if (!ok)
			return lacks(a, "the extension '%s'",
				     text_show(i.key, i.key_len, text, sizeof(text)));
	}
	return 0;
}

static int parse_v3(struct jval j, struct zarr_array *a, struct ckpt_err *e)
{
	struct jval type = jval_get(j, "data_type"), name = name_of(type);
	struct jval codecs = jval_get(j, "codecs"), node = jval_get(j, "node_type");
	char text[64];
	int64_t format;
	int rc;

	if (!jval_int(jval_get(j, "zarr_format"), &format) || format != 3)
		return bad(e, "its zarr_format is not 3");
	if (jval_is_str(node, "group"))
		return 0;
	if (!jval_is_str(node, "array"))
		return bad(e, "its node_type is neither array nor group");
	(void)check_members(j, a);
	rc = parse_grid(j, a, e);
	if (rc)
		return rc;
	if (!type.d)
		return bad(e, "it has no data_type");
	if (jval_str(name) && !jval_size(jval_get(type, "configuration")))
		a->dtype = by_name(jval_str(name), jval_len(name));
	if (a->dtype == CKPT_DTYPE_NONE)
		(void)lacks(a, "the data type '%s'", shown(name, text));
	for (size_t d = 0; d < a->n_dims; d++)
		a->level[0].axis[d] = (uint8_t)d;
	a->n_levels = 1;
	while (!rc && codecs.d) {
		struct jval inner = { 0 };

		rc = parse_chain(codecs, a, &inner, e);
		codecs = inner;
	}
	if (!jval_get(j, "codecs").d)
		return bad(e, "it has no codecs");
	if (!rc)
		rc = parse_keys(j, a, e);
	if (!rc)
		rc = check_size(a, e);
	if (!rc)
		rc = parse_fill(jval_get(j, "fill_value"), a, e);
	return rc ? rc : 1;
}

int zarr_parse(const char *text, size_t len, bool v3, struct zarr_array *ret, struct ckpt_err *e)
{
	struct jdoc d = { .max = MAX_VALUES };
	struct ckpt_err why;
	int rc;

	*ret = (struct zarr_array){ 0 };
	if (len > ZARR_MAX_METADATA)
		return err_set(e, EFBIG, "it has more than %zu MiB", ZARR_MAX_METADATA >> 20);
	if (jdoc_parse_copy(&d, text, len, JDOC_BIG | JDOC_NULS, &why))
		return err_set(e, why.code, "line %zu: %s", d.line, why.msg);
	if (v3)
		rc = parse_v3(jdoc_root(&d), ret, e);
	else
		rc = parse_v2(jdoc_root(&d), ret, e);
	jdoc_release(&d);
	return rc || v3 ? rc : 1;
}

/* ---- keys ---- */

/* Digits without a zero before them. */
static bool take_number(const char **s, const char *end, uint64_t *ret)
{
	const char *from = *s;
	uint64_t n = 0;

	for (; *s < end && **s >= '0' && **s <= '9'; ++*s)
		if (ckd_mul(&n, n, 10u) || ckd_add(&n, n, (uint64_t)(**s - '0')))
			return false;
	*ret = n;
	return *s > from && (*from != '0' || *s == from + 1);
}

bool zarr_cell(const struct zarr_array *a, const char *key, size_t len, uint64_t *ret)
{
	const char *end = key + len;
	bool need = false; /* a separator before the next number */

	if (a->key_c) {
		if (key == end || *key++ != 'c')
			return false;
		need = true;
	} else if (!a->n_dims) {
		return bytes_are(key, len, "0");
	}
	for (size_t d = 0; d < a->n_dims; d++, need = true) {
		uint64_t start;

		if (need && (key == end || *key++ != a->separator))
			return false;
		if (!take_number(&key, end, &ret[d]) ||
		    ckd_mul(&start, ret[d], a->level[0].chunk[d]) || start >= a->shape[d])
			return false;
	}
	return key == end;
}
