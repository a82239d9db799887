/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"

#include "base/cleanup.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "suites.h"

#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- archives ---- */

static void add_le(struct buf *b, uint64_t v, size_t width)
{
	for (size_t i = 0; i < width; i++) {
		uint8_t byte = (uint8_t)(v >> (8 * i));

		buf_add(b, &byte, 1);
	}
}

static void put_u16s(struct buf *b, size_t n, const uint16_t *v)
{
	for (size_t i = 0; i < n; i++)
		add_le(b, v[i], 2);
}

/* The FB field pads so that the data begins at a multiple of the alignment, counted from the item's
 * start. */
static void put_padding(struct buf *b, size_t alignment, size_t name_len)
{
	size_t at = b->len + 2 + name_len + 4, pad = (alignment - at % alignment) % alignment;

	add_le(b, 4 + pad, 2);
}

static void put_extra(struct buf *b, size_t alignment)
{
	size_t pad;

	buf_str(b, "FB");
	pad = (alignment - (b->len + 2) % alignment) % alignment;
	add_le(b, pad, 2);
	while (pad--)
		buf_str(b, "Z");
}

void archive_add(struct archive *a, const char *name, const void *p, size_t n)
{
	const char *prefix = a->style.prefix ? a->style.prefix : "archive";
	size_t alignment = a->style.alignment ? a->style.alignment : 64, len;
	bool streamed = n && !a->style.seekable; /* records without bytes have no descriptor */
	uint32_t crc = a->style.no_crc ? 0 : libdeflate_crc32(0, p, n);
	struct buf *b = &a->b;

	if (!b->max)
		*b = (struct buf)BUF_INIT((size_t)1 << 30);
	REQUIRE(a->n < ARCHIVE_MAX);
	(void)snprintf(a->members[a->n].name, sizeof(a->members[0].name), "%s/%s", prefix, name);
	len = strlen(a->members[a->n].name);
	a->members[a->n].header = b->len;
	a->members[a->n].size = n;
	a->members[a->n].crc = crc;
	add_le(b, 0x04034b50, 4);
	put_u16s(b, 5, (const uint16_t[]){ 0, streamed ? 0x0808 : 0x0800, 0, 0, 0 });
	add_le(b, streamed ? 0 : crc, 4);
	add_le(b, streamed ? 0 : n, 4);
	add_le(b, streamed ? 0 : n, 4);
	add_le(b, len, 2);
	put_padding(b, alignment, len);
	buf_add(b, a->members[a->n].name, len);
	put_extra(b, alignment);
	a->members[a->n].data = b->len;
	buf_add(b, p, n);
	if (streamed) {
		add_le(b, 0x08074b50, 4);
		add_le(b, crc, 4);
		add_le(b, n, a->style.wide ? 8 : 4);
		add_le(b, n, a->style.wide ? 8 : 4);
	}
	a->n++;
	REQUIRE(b->err == 0);
}

static void put_member(struct archive *a, size_t i)
{
	size_t len = strlen(a->members[i].name);
	bool wide = a->style.zip64;
	struct buf *b = &a->b;

	add_le(b, 0x02014b50, 4);
	put_u16s(b, 6, (const uint16_t[]){ 0, 0, a->members[i].size ? 0x0808 : 0x0800, 0, 0, 0 });
	add_le(b, a->members[i].crc, 4);
	add_le(b, wide ? UINT32_MAX : a->members[i].size, 4);
	add_le(b, wide ? UINT32_MAX : a->members[i].size, 4);
	add_le(b, len, 2);
	add_le(b, wide ? 4 + 3 + 4 + 24 : 0, 2);
	put_u16s(b, 5, (const uint16_t[]){ 0, 0, 0, 0, 0 });
	add_le(b, wide ? UINT32_MAX : a->members[i].header, 4);
	buf_add(b, a->members[i].name, len);
	if (!wide)
		return;
	buf_add(b, "xx\3\0yyy", 7); /* somebody else's field in front */
	put_u16s(b, 2, (const uint16_t[]){ 1, 24 });
	add_le(b, a->members[i].size, 8);
	add_le(b, a->members[i].size, 8);
	add_le(b, a->members[i].header, 8);
}

void archive_end(struct archive *a)
{
	struct buf *b = &a->b;
	uint64_t size, end64;

	a->directory = b->len;
	for (size_t i = 0; i < a->n; i++)
		put_member(a, i);
	size = b->len - a->directory;
	end64 = b->len;
	if (!a->style.no_end64) {
		add_le(b, 0x06064b50, 4);
		add_le(b, 44, 8);
		put_u16s(b, 2, (const uint16_t[]){ 45, 45 });
		add_le(b, 0, 8); /* disks */
		add_le(b, a->n, 8);
		add_le(b, a->n, 8);
		add_le(b, size, 8);
		add_le(b, a->directory, 8);
		add_le(b, 0x07064b50, 4);
		add_le(b, 0, 4);
		add_le(b, end64, 8);
		add_le(b, 1, 4);
	}
	add_le(b, 0x06054b50, 4);
	add_le(b, 0, 4);
	add_le(b, a->n, 2);
	add_le(b, a->n, 2);
	add_le(b, size, 4);
	add_le(b, a->style.zip64 && !a->style.no_end64 ? UINT32_MAX : a->directory, 4);
	add_le(b, 0, 2);
	REQUIRE(b->err == 0);
}

void archive_release(struct archive *a)
{
	buf_release(&a->b);
}

/* ---- data.pkl ---- */

enum rebuild saved_way(enum ckpt_dtype t)
{
	return dtype_info(t)->storage ? REBUILD_V2 : REBUILD_V3;
}

static void emit_ints(struct emit *m, size_t n, const int64_t *v)
{
	emit_op(m, OP_MARK);
	for (size_t i = 0; i < n; i++)
		emit_int(m, v[i]);
	emit_op(m, OP_TUPLE);
}

static void emit_storage(struct emit *m, const struct saved *t, bool untyped)
{
	const struct dtype_info *d = dtype_info(t->dtype);
	int64_t count = (int64_t)(untyped ? t->storage_bytes : t->storage_bytes / d->size);
	const char *cls = untyped ? "UntypedStorage" : d->storage;

	emit_op(m, OP_MARK);
	emit_str(m, "storage");
	emit_global(m, untyped ? "torch.storage" : "torch",
		    t->storage_class ? t->storage_class : cls);
	emit_str(m, t->key ? t->key : "0");
	emit_str(m, "cpu");
	emit_int(m, t->claimed ? t->claimed - 1 : count);
	emit_op(m, OP_TUPLE);
	emit_op(m, OP_BINPERSID);
}

static void emit_hooks(struct emit *m, const struct saved *t)
{
	char *s;

	if (!t->hooks_bytes) {
		emit_global(m, "collections", "OrderedDict");
		emit_op(m, OP_EMPTY_TUPLE);
		emit_op(m, OP_REDUCE);
		return;
	}
	emit_op(m, OP_MARK);
	for (size_t left = t->hooks_bytes; left;) {
		size_t n = left < 60000 ? left : 60000;

		s = malloc(n + 1);
		REQUIRE(s);
		memset(s, 'h', n);
		s[n] = 0;
		emit_str(m, s);
		free(s);
		left -= n;
	}
	emit_op(m, OP_TUPLE);
}

static void emit_bits(struct emit *m, const struct saved *t)
{
	if (!t->conj && !t->neg)
		return;
	emit_op(m, OP_EMPTY_DICT);
	emit_op(m, OP_MARK);
	if (t->conj) {
		emit_str(m, "conj");
		emit_op(m, OP_NEWTRUE);
	}
	if (t->neg) {
		emit_str(m, "neg");
		emit_op(m, OP_NEWTRUE);
	}
	emit_op(m, OP_SETITEMS);
}

/* (storage, offset, size, stride ... */
static void emit_view(struct emit *m, const struct saved *t, bool untyped)
{
	int64_t rows[64], step = 1;
	const int64_t *stride = t->stride;

	for (size_t d = t->n_dims; d-- > 0 && !stride;) {
		rows[d] = step;
		step *= t->size[d];
	}
	emit_op(m, OP_MARK);
	emit_storage(m, t, untyped);
	emit_int(m, t->offset);
	emit_ints(m, t->n_dims, t->size);
	emit_ints(m, t->n_strides ? t->n_strides - 1 : t->n_dims, stride ? stride : rows);
}

static void emit_v2(struct emit *m, const struct saved *t)
{
	emit_global(m, "torch._utils", t->function ? t->function : "_rebuild_tensor_v2");
	emit_view(m, t, false);
	emit_op(m, OP_NEWFALSE);
	emit_hooks(m, t);
	emit_bits(m, t);
	emit_op(m, OP_TUPLE);
}

static void emit_v3(struct emit *m, const struct saved *t)
{
	emit_global(m, "torch._utils", t->function ? t->function : "_rebuild_tensor_v3");
	emit_view(m, t, true);
	emit_op(m, OP_NEWFALSE);
	emit_hooks(m, t);
	emit_global(m, "torch", dtype_info(t->dtype)->name);
	emit_bits(m, t);
	emit_op(m, OP_TUPLE);
}

void emit_saved(struct emit *m, const struct saved *t)
{
	switch (t->how) {
	case REBUILD_V3:
		emit_v3(m, t);
		break;
	case REBUILD_OLD:
		emit_global(m, "torch._utils", "_rebuild_tensor");
		emit_view(m, t, false);
		emit_op(m, OP_TUPLE);
		break;
	case REBUILD_Q:
		emit_global(m, "torch._utils", "_rebuild_qtensor");
		emit_view(m, t, false);
		emit_op(m, OP_MARK);
		emit_global(m, "torch", "per_tensor_affine");
		emit_bytes(m, "G?\xb9\x99\x99\x99\x99\x99\x9a", 9); /* 0.1 */
		emit_int(m, 10);
		emit_op(m, OP_TUPLE);
		emit_op(m, OP_NEWFALSE);
		emit_hooks(m, t);
		emit_op(m, OP_TUPLE);
		break;
	case REBUILD_PARAMETER:
	case REBUILD_PARAMETER_STATE:
		emit_global(m, "torch._utils",
			    t->how == REBUILD_PARAMETER ? "_rebuild_parameter"
							: "_rebuild_parameter_with_state");
		emit_op(m, OP_MARK);
		if (t->how == REBUILD_PARAMETER)
			emit_v2(m, t);
		else
			emit_v3(m, t);
		emit_op(m, OP_REDUCE);
		emit_op(m, OP_NEWTRUE);
		emit_hooks(m, t);
		if (t->how == REBUILD_PARAMETER_STATE)
			emit_op(m, OP_EMPTY_DICT);
		emit_op(m, OP_TUPLE);
		break;
	case REBUILD_SUBCLASS:
		emit_global(m, "torch._tensor", "_rebuild_from_type_v2");
		emit_op(m, OP_MARK);
		/* an object of function, type, arguments and state; emit_v2 would close the
		 * arguments */
		emit_global(m, "torch._utils", "_rebuild_tensor_v2");
		emit_global(m, "my.module", "Subclass");
		emit_view(m, t, false);
		emit_op(m, OP_NEWFALSE);
		emit_hooks(m, t);
		emit_bits(m, t);
		emit_op(m, OP_TUPLE);
		emit_op(m, OP_EMPTY_DICT);
		emit_op(m, OP_TUPLE);
		break;
	default:
		emit_v2(m, t);
	}
	emit_op(m, OP_REDUCE);
}

void saved_pickle(struct buf *b, const struct saved *t)
{
	struct emit m = EMIT_INIT(2, true);

	emit_proto(&m);
	emit_saved(&m, t);
	emit_op(&m, OP_STOP);
	REQUIRE(m.b.err == 0);
	buf_add(b, m.b.data, m.b.len);
	buf_release(&m.b);
}

/* ---- items ---- */

static uint64_t add_storage(struct archive *a, const struct saved *t)
{
	char name[100];

	(void)snprintf(name, sizeof(name), "data/%s", t->key ? t->key : "0");
	archive_add(a, name, t->storage, t->storage_bytes);
	return a->members[a->n - 1].data;
}

static void add_order(struct archive *a, const struct saved *t)
{
	archive_add(a, "byteorder", t->big ? "big" : "little", t->big ? 3 : 6);
}

uint64_t saved_item(struct buf *b, const struct saved *t)
{
	static const char id[] = "0123456789012345678901234567890123456789";
	struct archive a = { .style = t->style };
	struct buf pkl = BUF_INIT((size_t)1 << 30);
	uint64_t data = 0;

	if (t->pkl)
		buf_add(&pkl, t->pkl, t->pkl_bytes);
	else
		saved_pickle(&pkl, t);
	if (t->order == ORDER_DATA_FIRST || t->order == ORDER_REVERSED)
		data = add_storage(&a, t);
	if (t->order == ORDER_REVERSED)
		add_order(&a, t);
	archive_add(&a, "data.pkl", pkl.data, pkl.len);
	if (t->order == ORDER_NOW || t->order == ORDER_LATE) {
		archive_add(&a, ".format_version", "1", 1);
		archive_add(&a, ".storage_alignment", "64", 2);
	}
	if (t->order == ORDER_NOW || t->order == ORDER_26 || t->order == ORDER_DATA_FIRST)
		add_order(&a, t);
	if (t->order != ORDER_DATA_FIRST && t->order != ORDER_REVERSED)
		data = add_storage(&a, t);
	if (t->order == ORDER_LATE)
		add_order(&a, t);
	archive_add(&a, "version", "3\n", 2);
	if (t->order != ORDER_20)
		archive_add(&a, ".data/serialization_id", id, 40);
	archive_end(&a);
	buf_release(b);
	*b = a.b;
	buf_release(&pkl);
	return data;
}
