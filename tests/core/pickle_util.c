/* SPDX-License-Identifier: Apache-2.0 */
#include "pickle_util.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "parse/pickle_lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

int64_t feed_read(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	const struct feed *f = arg;
	size_t n;

	(void)e;
	if (off >= f->n)
		return 0;
	n = f->n - off;
	n = n < f->step ? n : f->step;
	n = n < cap ? n : cap;
	memcpy(buf, f->bytes + off, n);
	return (int64_t)n;
}

int load_bytes(const void *bytes, size_t n, size_t step, const struct pickle_opts *opts,
	       struct pickle **ret, struct ckpt_err *e)
{
	uint8_t *copy = malloc(n ? n : 1);
	struct feed f = { .bytes = copy, .n = n, .step = step };
	struct pickle_input in = { .mem = copy, .mem_len = n };
	int rc;

	if (!copy)
		return -ENOMEM;
	if (n)
		memcpy(copy, bytes, n);
	if (step)
		in = (struct pickle_input){ .read = feed_read, .arg = &f };
	rc = pickle_load(&in, opts, ret, e);
	free(copy);
	return rc;
}

/* ---- values as text ---- */

static void print_str(struct buf *b, const struct pk_str *s)
{
	buf_str(b, "'");
	for (uint32_t i = 0; i < s->len; i++)
		if (s->data[i] >= ' ' && s->data[i] <= '~')
			buf_add(b, &s->data[i], 1);
		else
			buf_printf(b, "\\x%02x", (unsigned char)s->data[i]);
	buf_str(b, "'");
}

static void print(struct buf *b, const struct pk_value *v, unsigned depth);

static void print_values(struct buf *b, const struct pk_value *v, size_t n, unsigned depth)
{
	for (size_t i = 0; i < n; i++) {
		if (i)
			buf_str(b, ", ");
		print(b, &v[i], depth);
	}
}

static void print_object(struct buf *b, const struct pk_value *v, unsigned depth)
{
	const struct pk_value *f = v->n->v;

	print(b, &f[PK_CALLEE], depth);
	buf_str(b, "(");
	if (f[PK_ARGS].type == PK_TUPLE && f[PK_ARGS].n) {
		print_values(b, f[PK_ARGS].n->v, pk_len(&f[PK_ARGS]), depth);
	} else if (f[PK_ARGS].type != PK_TUPLE) {
		buf_str(b, "*");
		print(b, &f[PK_ARGS], depth);
	}
	buf_str(b, ")");
	if (f[PK_STATE].type != PK_NONE) {
		buf_str(b, "!");
		print(b, &f[PK_STATE], depth);
	}
	if (f[PK_ITEMS].type != PK_NONE) {
		buf_str(b, "+");
		print(b, &f[PK_ITEMS], depth);
	}
}

/* All bytes in hex, the highest first. */
static void print_long(struct buf *b, const struct pk_str *s)
{
	buf_str(b, "0x");
	for (size_t i = s->len; i-- > 0;)
		buf_printf(b, "%02x", (uint8_t)s->data[i]);
}

static void print_node(struct buf *b, const struct pk_value *v, unsigned depth)
{
	const struct pk_value *items = v->n ? v->n->v : NULL;

	switch (v->type) {
	case PK_TUPLE:
		buf_str(b, "(");
		print_values(b, items, pk_len(v), depth);
		buf_str(b, pk_len(v) == 1 ? ",)" : ")");
		break;
	case PK_LIST:
		buf_str(b, "[");
		print_values(b, items, pk_len(v), depth);
		buf_str(b, "]");
		break;
	case PK_DICT:
		buf_str(b, "{");
		for (size_t i = 0; i < pk_len(v); i++) {
			buf_str(b, i ? ", " : "");
			print(b, &items[2 * i], depth);
			buf_str(b, ": ");
			print(b, &items[2 * i + 1], depth);
		}
		buf_str(b, "}");
		break;
	case PK_OBJECT:
		print_object(b, v, depth);
		break;
	case PK_PERSID:
		buf_str(b, "&");
		print(b, items, depth);
		break;
	default:
		buf_str(b, "<");
		for (size_t i = 0; i < pk_len(v); i++)
			buf_printf(b, "%02x", pickle_record(v)[i]);
		buf_str(b, ">");
		break;
	}
}

static void print(struct buf *b, const struct pk_value *v, unsigned depth)
{
	if (depth > 40 || b->err) {
		buf_str(b, "...");
		return;
	}
	switch (v->type) {
	case PK_NONE:
		buf_str(b, "None");
		break;
	case PK_BOOL:
		buf_str(b, v->i ? "True" : "False");
		break;
	case PK_INT:
		buf_printf(b, "%lld", (long long)v->i);
		break;
	case PK_LONG:
		print_long(b, v->s);
		break;
	case PK_FLOAT:
		buf_printf(b, "%.17g", v->f);
		break;
	case PK_BYTES:
		buf_str(b, "b");
		print_str(b, v->s);
		break;
	case PK_STR:
		print_str(b, v->s);
		break;
	case PK_GLOBAL:
		buf_printf(b, "%s.%s", v->g->module->data, v->g->name->data);
		break;
	case PK_OPAQUE:
		buf_str(b, "?");
		break;
	default:
		print_node(b, v, depth + 1);
		break;
	}
}

void print_value(struct buf *b, const struct pk_value *v)
{
	print(b, v, 0);
}

/* ---- writing ---- */

void emit_bytes(struct emit *m, const void *p, size_t n)
{
	buf_add(&m->b, p, n);
}

void emit_op(struct emit *m, uint8_t op)
{
	emit_bytes(m, &op, 1);
}

void emit_ops(struct emit *m, uint8_t op, size_t times)
{
	while (times--)
		emit_op(m, op);
}

static void emit_le(struct emit *m, uint64_t v, size_t width)
{
	for (size_t i = 0; i < width; i++)
		emit_op(m, (uint8_t)(v >> (8 * i)));
}

void emit_proto(struct emit *m)
{
	emit_op(m, OP_PROTO);
	emit_op(m, (uint8_t)m->protocol);
}

void emit_put(struct emit *m)
{
	uint32_t id = m->n_puts++;

	if (m->protocol >= 4) {
		emit_op(m, OP_MEMOIZE);
	} else if (id < 256) {
		emit_op(m, OP_BINPUT);
		emit_op(m, (uint8_t)id);
	} else {
		emit_op(m, OP_LONG_BINPUT);
		emit_le(m, id, 4);
	}
}

static void emit_memo(struct emit *m)
{
	if (m->memoize)
		emit_put(m);
}

void emit_get(struct emit *m, uint32_t id)
{
	emit_op(m, id < 256 ? OP_BINGET : OP_LONG_BINGET);
	emit_le(m, id, id < 256 ? 1 : 4);
}

void emit_int(struct emit *m, int64_t v)
{
	if (v >= 0 && v < 256) {
		emit_op(m, OP_BININT1);
		emit_le(m, (uint64_t)v, 1);
	} else if (v >= 0 && v < 65536) {
		emit_op(m, OP_BININT2);
		emit_le(m, (uint64_t)v, 2);
	} else if (v >= INT32_MIN && v <= INT32_MAX) {
		emit_op(m, OP_BININT);
		emit_le(m, (uint64_t)v, 4);
	} else {
		emit_op(m, OP_LONG1);
		emit_op(m, 8);
		emit_le(m, (uint64_t)v, 8);
	}
}

void emit_str(struct emit *m, const char *s)
{
	size_t n = strlen(s);
	bool is_short = m->protocol >= 4 && n < 256;

	emit_op(m, is_short ? OP_SHORT_BINUNICODE : OP_BINUNICODE);
	emit_le(m, n, is_short ? 1 : 4);
	emit_bytes(m, s, n);
	emit_memo(m);
}

void emit_global(struct emit *m, const char *module, const char *name)
{
	if (m->protocol >= 4) {
		emit_str(m, module);
		emit_str(m, name);
		emit_op(m, OP_STACK_GLOBAL);
	} else {
		emit_op(m, OP_GLOBAL);
		buf_printf(&m->b, "%s\n%s\n", module, name);
	}
	emit_memo(m);
}

void emit_object(struct emit *m, const char *module, const char *name)
{
	emit_global(m, module, name);
	emit_op(m, OP_EMPTY_TUPLE);
	emit_op(m, OP_NEWOBJ);
	emit_memo(m);
}

void emit_attrs(struct emit *m)
{
	emit_op(m, OP_EMPTY_DICT);
	emit_memo(m);
	emit_op(m, OP_MARK);
}

void emit_attrs_end(struct emit *m)
{
	emit_op(m, OP_SETITEMS);
	emit_op(m, OP_BUILD);
}

void emit_size(struct emit *m, size_t n, const uint64_t *v)
{
	emit_global(m, "torch", "Size");
	if (!n || n > 3)
		emit_op(m, n ? OP_MARK : OP_EMPTY_TUPLE);
	for (size_t i = 0; i < n; i++)
		emit_int(m, (int64_t)v[i]);
	if (n)
		emit_op(m, n > 3 ? OP_TUPLE : (uint8_t)(OP_TUPLE1 + n - 1));
	if (n)
		emit_memo(m);
	emit_op(m, OP_TUPLE1);
	emit_memo(m);
	emit_op(m, OP_REDUCE);
	emit_memo(m);
}

static const char metadata_module[] = "torch.distributed.checkpoint.metadata";

static void emit_chunk(struct emit *m, uint64_t i)
{
	emit_object(m, metadata_module, "ChunkStorageMetadata");
	emit_attrs(m);
	emit_str(m, "offsets");
	emit_size(m, 2, (const uint64_t[]){ 64 * i, 0 });
	emit_str(m, "sizes");
	emit_size(m, 2, (const uint64_t[]){ 64, 4096 });
	emit_attrs_end(m);
}

static void emit_tensor(struct emit *m, unsigned chunks)
{
	emit_object(m, metadata_module, "TensorStorageMetadata");
	emit_attrs(m);
	emit_str(m, "properties");
	emit_object(m, metadata_module, "TensorProperties");
	emit_op(m, OP_MARK);
	emit_global(m, "torch", "float32");
	emit_op(m, OP_NEWFALSE);
	emit_op(m, OP_TUPLE);
	emit_memo(m);
	emit_op(m, OP_BUILD);
	emit_str(m, "size");
	emit_size(m, 2, (const uint64_t[]){ (uint64_t)64 * chunks, 4096 });
	emit_str(m, "chunks");
	emit_op(m, OP_EMPTY_LIST);
	emit_memo(m);
	emit_op(m, OP_MARK);
	for (unsigned i = 0; i < chunks; i++)
		emit_chunk(m, i);
	emit_op(m, OP_APPENDS);
	emit_attrs_end(m);
}

static void emit_stored(struct emit *m, const char *fqn, unsigned chunk)
{
	emit_object(m, metadata_module, "MetadataIndex");
	emit_attrs(m);
	emit_str(m, "fqn");
	emit_str(m, fqn);
	emit_str(m, "offset");
	emit_size(m, 2, (const uint64_t[]){ (uint64_t)64 * chunk, 0 });
	emit_str(m, "index");
	emit_int(m, chunk);
	emit_attrs_end(m);
	emit_object(m, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	emit_attrs(m);
	emit_str(m, "relative_path");
	emit_str(m, "__0_0.distcp");
	emit_str(m, "offset");
	emit_int(m, (int64_t)chunk << 32);
	emit_str(m, "length");
	emit_int(m, 1 << 20);
	emit_attrs_end(m);
}

/* Begin another batch of pairs where `i` pairs have been written. */
static void emit_batch(struct emit *m, size_t i)
{
	if (i && i % 1000 == 0)
		emit_op(m, OP_SETITEMS);
	if (i % 1000 == 0)
		emit_op(m, OP_MARK);
}

void emit_metadata(struct emit *m, unsigned tensors, unsigned chunks)
{
	char fqn[32];

	emit_proto(m);
	emit_object(m, metadata_module, "Metadata");
	emit_attrs(m);
	for (size_t attr = 0; attr < 3; attr++) {
		static const char *const names[] = { "state_dict_metadata", "planner_data",
						     "storage_data" };
		unsigned per_tensor = attr == 2 ? chunks : 1, pairs = tensors * per_tensor;

		emit_str(m, names[attr]);
		emit_op(m, OP_EMPTY_DICT);
		emit_memo(m);
		for (unsigned i = 0; i < pairs; i++) {
			emit_batch(m, i);
			(void)snprintf(fqn, sizeof(fqn), "t%u", i / per_tensor);
			if (attr < 2)
				emit_str(m, fqn);
			if (attr == 0)
				emit_tensor(m, chunks);
			else if (attr == 1)
				emit_op(m, OP_EMPTY_TUPLE);
			else
				emit_stored(m, fqn, i % per_tensor);
		}
		if (pairs)
			emit_op(m, OP_SETITEMS);
	}
	emit_attrs_end(m);
	emit_op(m, OP_STOP);
}

/* ---- hooks ---- */

static int classify(void *arg, const char *module, const char *name)
{
	static const char *const names[] = {
		[CLS_METADATA] = "Metadata",	       [CLS_TENSOR] = "TensorStorageMetadata",
		[CLS_BYTES] = "BytesStorageMetadata",  [CLS_CHUNK] = "ChunkStorageMetadata",
		[CLS_INDEX] = "MetadataIndex",	       [CLS_STORAGE] = "_StorageInfo",
		[CLS_PROPERTIES] = "TensorProperties",
	};

	(void)arg;
	(void)module;
	for (int i = 1; i < (int)ARRAY_LEN(names); i++)
		if (!strcmp(name, names[i]))
			return i;
	return 0;
}

/* A chunk becomes a record of varints. */
static int built(void *arg, struct pickle *p, struct pk_value *obj, struct ckpt_err *e)
{
	struct dcp_count *c = arg;
	const struct pk_value *box[2];
	uint8_t b[2 * 64 * 10];
	size_t n = 0;
	int rc;

	if (obj->n->own[PK_CALLEE].g->cls != CLS_CHUNK)
		return 0;
	box[0] = pk_attr(obj, "offsets");
	box[1] = pk_attr(obj, "sizes");
	for (int i = 0; i < 2; i++) {
		if (!box[i] || box[i]->type != PK_TUPLE)
			return 0;
		for (size_t d = 0; d < pk_len(box[i]) && d < 64; d++)
			n += put_varint(b + n, (uint64_t)box[i]->n->own[d].i);
	}
	rc = pickle_to_record(p, obj, b, n, e);
	c->chunks += !rc;
	c->shared += rc > 0;
	return rc < 0 ? rc : 0;
}

static int attr_item(void *arg, int root_class, const struct pk_str *attr,
		     const struct pk_value *key, const struct pk_value *value, bool *consumed,
		     struct ckpt_err *e)
{
	struct dcp_count *c = arg;

	(void)key;
	(void)value;
	(void)e;
	if (root_class != CLS_METADATA)
		return 0;
	*consumed = true;
	if (!strcmp(attr->data, "state_dict_metadata"))
		c->tensors++;
	else if (!strcmp(attr->data, "storage_data"))
		c->stored++;
	else if (!strcmp(attr->data, "planner_data"))
		c->planned++;
	else
		*consumed = false;
	return 0;
}

const struct pickle_hooks dcp_hooks = { classify, built, attr_item };
