/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "dir_util.h"
#include "fault.h"
#include "format/format.h"
#include "format/torch/torchsave.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "parse/zip.h"
#include "path_util.h"
#include "pickle_util.h"
#include "rng.h"
#include "saved_util.h"
#include "scan_util.h"
#include "source/place.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pickles ---- */

/* A tensor of one dimension over a storage. */
static const struct special {
	const char *name, *function, *cls, *key;
	int64_t count, offset, size, stride;
	bool neg;
	int64_t window; /* + 1: the storage begins 2 elements into its root */
} specials[] = {
	{ "T", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 0, 4, 1, false, 0 },
	{ "Tslice", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 1, 2, 2, false, 0 },
	{ "Tempty", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 9, 0, 1, false, 0 },
	{ "Tneg", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 0, 1, 7, true, 0 },
	{ "Told", "_rebuild_tensor", "FloatStorage", "0", 4, 0, 4, 1, false, 0 },
	{ "Tv3", "_rebuild_tensor_v3", "UntypedStorage", "1", 6, 1, 2, 1, false, 0 },
	{ "Tbytes", "_rebuild_tensor_v2", "ByteStorage", "1", 6, 0, 6, 1, false, 0 },
	{ "Twindow", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 1, 1, 1, false, 1 + 1 },
	{ "Twide", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 1, 1, 1, false, 1 + 3 },
	{ "Tbeyond", "_rebuild_tensor_v2", "FloatStorage", "0", 4, 1, 4, 1, false, 0 },
	{ "Tlong", "_rebuild_tensor_v2", "FloatStorage", "0", 5, 0, 5, 1, false, 0 },
	{ "Tlost", "_rebuild_tensor_v2", "FloatStorage", "9", 4, 0, 4, 1, false, 0 },
	{ "Todd", "_rebuild_tensor_v2", "OddStorage", "0", 4, 0, 4, 1, false, 0 },
	{ "Tint", "_rebuild_tensor_v2", "LongStorage", "0", 2, 0, 2, 1, false, 0 },
	{ "Tq", "_rebuild_qtensor", "QInt8Storage", "0", 4, 0, 4, 1, false, 0 },
	{ "Tq4", "_rebuild_qtensor", "QUInt4x2Storage", "1", 6, 0, 12, 1, false, 0 },
	{ "Tq2", "_rebuild_qtensor", "QUInt2x4Storage", "1", 6, 0, 4, 1, false, 0 },
	{ "Tsparse", "_rebuild_sparse_tensor", "FloatStorage", "0", 4, 0, 4, 1, false, 0 },
	{ "Tnumbers", "_rebuild_tensor_v2", "LongStorage", "2", 8, 0, 8, 1, false, 0 },
	{ "Tnegative", "_rebuild_tensor_v2", "FloatStorage", "0", 4, -1, 4, 1, false, 0 },
};

static void put_storage(struct emit *m, const struct special *x)
{
	emit_op(m, '(');
	emit_str(m, "storage");
	emit_global(m, "torch", x->cls);
	emit_str(m, x->key);
	emit_str(m, "cpu");
	emit_int(m, x->count);
	if (x->window) {
		emit_str(m, "view");
		emit_int(m, x->window - 1);
		emit_int(m, 2);
		emit_op(m, 0x87);
	}
	emit_bytes(m, "tQ", 2);
}

static void put_tensor(struct emit *m, const struct special *x)
{
	emit_global(m, "torch._utils", x->function);
	emit_op(m, '(');
	put_storage(m, x);
	emit_int(m, x->offset);
	emit_int(m, x->size);
	emit_op(m, 0x85);
	emit_int(m, x->stride);
	emit_op(m, 0x85);
	emit_op(m, 0x89);
	emit_global(m, "collections", "OrderedDict");
	emit_bytes(m, ")R", 2);
	if (strstr(x->function, "v3"))
		emit_global(m, "torch", "uint16");
	if (x->neg) {
		emit_op(m, '}');
		emit_str(m, "neg");
		emit_bytes(m, "\x88s", 2);
	}
	emit_bytes(m, "tR", 2);
}

static void put_word(struct emit *m, const char *word)
{
	if (*word == '#') {
		emit_int(m, strtoll(word + 1, NULL, 10));
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(specials); i++)
		if (!strcmp(specials[i].name, word)) {
			put_tensor(m, &specials[i]);
			return;
		}
	if (*word == ':') { /* the storage alone */
		for (size_t i = 0; i < ARRAY_LEN(specials); i++)
			if (!strcmp(specials[i].name, word + 1))
				put_storage(m, &specials[i]);
		return;
	}
	emit_str(m, word);
}

/* A pickle of protocol 2 from opcodes, in which <T> stands for a tensor, <:T> for its storage, <#5>
 * for a number and <a> for a string. STOP is added. */
static void put_pickle(struct buf *b, const char *text)
{
	struct emit m = EMIT_INIT(2, false);

	emit_proto(&m);
	for (; *text; text++) {
		char word[1000] = "";

		if (*text != '<') {
			emit_op(&m, (uint8_t)*text);
			continue;
		}
		text++;
		(void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(text, ">"), text);
		text += strcspn(text, ">");
		put_word(&m, word);
	}
	emit_op(&m, '.');
	REQUIRE(!m.b.err);
	buf_add(b, m.b.data, m.b.len);
	buf_release(&m.b);
}

/* ---- files ---- */

static const float floats[4] = { 0, 1, 2, 3 };

static void put_zip(const char *name, const char *text, const char *order)
{
	struct archive a = { .style = { 0 } };
	struct buf pkl = BUF_INIT(1 << 22);

	put_pickle(&pkl, text);
	archive_add(&a, "data.pkl", pkl.data, pkl.len);
	if (order)
		archive_add(&a, "byteorder", order, strlen(order));
	archive_add(&a, "data/0", floats, sizeof(floats));
	archive_add(&a, "data/1", "abcdef", 6);
	archive_add(&a, "version", "3\n", 2);
	archive_end(&a);
	put_file(dir_fd, name, a.b.data, a.b.len);
	archive_release(&a);
	buf_release(&pkl);
}

static void legacy_head(struct buf *b, const char *version)
{
	buf_add(b, "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
	put_pickle(b, version);
	put_pickle(b, "}(<protocol_version><#1001><little_endian>\x88u");
}

static void put_count(struct buf *b, uint64_t n)
{
	uint8_t le[8];

	(void)put_le(le, n, 8);
	buf_add(b, le, 8);
}

/* keys: the pickle of the list of storages. The storages that it names follow, without the last
 * `cut` bytes. */
static void put_legacy(const char *name, const char *text, const char *keys, size_t cut)
{
	struct buf b = BUF_INIT(1 << 20);

	legacy_head(&b, "<#1001>");
	put_pickle(&b, text);
	put_pickle(&b, keys);
	for (const char *s = keys; (s = strchr(s, '<')); s++) {
		put_count(&b, s[1] == '0' ? 4 : 6);
		if (s[1] == '0')
			buf_add(&b, floats, sizeof(floats));
		else
			buf_add(&b, "abcdef", 6);
	}
	put_file(dir_fd, name, b.data, b.len - cut);
	buf_release(&b);
}

/* ---- scanning ---- */

/* file: NULL stands for the directory */
static int scan(const char *file, struct catalog **ret, struct ckpt_err *e)
{
	struct place *place CLEANUP(place_freep) = NULL;
	const struct scan_opts opts = { 0 };
	struct catalog_writer *w = NULL;
	struct name_list files CLEANUP(name_list_release) = { 0 };
	int rc = try_place(dir_fd, &place, e);

	if (rc)
		return rc;
	rc = format_torchsave.probe(place, file, &files, e);

	if (!rc)
		return err_set(e, ENOENT, "it is none");
	rc = rc < 0 ? rc : catalog_writer_new(NULL, "torch.save", "/", &w, e);
	if (!rc)
		rc = format_torchsave.scan(place, &files, &opts, w, e);
	if (!rc)
		rc = catalog_writer_finish(w, ret, e);
	catalog_writer_free(w);
	return rc;
}

/* The first eight bytes that the file has at the item's place. */
static void show_loc(struct buf *b, struct catalog *c, const struct chunk_loc *l)
{
	size_t n, size;
	autofree uint8_t *bytes = get_file(dir_fd, catalog_sources(c, &n)[l->file].path, &size);
	const char *encoding = catalog_encodings(c, &n)[l->encoding];

	buf_printf(b, " %llu %s ", (unsigned long long)l->length, encoding);
	REQUIRE(range_ok(l->offset, l->length, size));
	for (uint64_t i = 0; i < min_u64(l->length, 4); i++)
		buf_printf(b, "%02x", bytes[l->offset + i]);
}

static void show(struct buf *b, struct catalog *c)
{
	struct ckpt_err e = { 0 };
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	const struct catalog_object *o;

	for (size_t i = 0; i < n; i++) {
		autofree struct chunkmap *m = NULL;

		buf_printf(b, "%s/%u %s ", t[i].fqn, t[i].top, dtype_info(t[i].dtype)->name);
		buf_json_u64s(b, t[i].shape, t[i].n_dims);
		REQUIRE(t[i].state == TENSOR_COMPLETE && !catalog_load_map(c, &t[i], &m, &e));
		for (uint32_t k = 0; k < m->count; k++)
			show_loc(b, c, &m->locs[k]);
		buf_str(b, "\n");
	}
	o = catalog_objects(c, &n);
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%s/%u %s%s", o[i].fqn, o[i].top, o[i].fault ? o[i].fault : o[i].text,
			   o[i].fault ? "\n" : "");
	REQUIRE(!b->err);
}

static void expect(const char *file, const char *want)
{
	struct buf b = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!scan(file, &c, &e), "%s", e.msg);
	buf_str(&b, "");
	show(&b, c);
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
	catalog_close(c);
}

static void expect_error(const char *file, int code, const char *want)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(scan(file, &c, &e), -code);
	ck_assert_str_eq(e.msg, want);
	ck_assert_ptr_null(c);
}

/* ---- what is read ---- */

#define TOO_OFTEN "it has the same values too often: not all of them are listed"
#define QUANTISED "ctorch._utils\n_rebuild_qtensor\n(<:Tq><#0><#4>\x85<#1>\x85"
#define SPARSE	  "ctorch._utils\n_rebuild_sparse_tensor\nctorch.serialization\n_get_layout\n"
#define WRAPPER(name) \
	"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n" \
	"cm\n" name "\n(cm\n" name "\nctorch\nbfloat16\n<#4>\x85<#1>\x85<#0>NN\x89t"
#define MODULE "cm\nNet\n)\x81}(<_parameters>}"

static const struct {
	const char *pickle, *want;
} states[] = {
	{ "}(<model>}(<w><T><l>](<T><T>\x85"
	  "eu<epoch><#3><opt>}(<groups>]}<lr>G?\xe0      sa<state>}(<#0><T><#1>}uuu",
	  "model.l.0/5 float32 [4] 16 raw 00000000\n"
	  "model.l.1.0/5 float32 [4] 16 raw 00000000\n"
	  "model.w/5 float32 [4] 16 raw 00000000\n"
	  "opt.state.0/3 float32 [4] 16 raw 00000000\n"
	  "epoch/5 3\n"
	  "opt.groups/3 [{\"lr\": 0.503921568627451}]\n"
	  "opt.state.1/3 {}\n" },
	/* dots may be in the key, or stand between the keys of a path */
	{ "}(<a.b.c><T><a>}<d><T>su",
	  "a.b.c/5 float32 [4] 16 raw 00000000\na.d/1 float32 [4] 16 raw 00000000\n" },
	{ "}<><T>s", "/0 float32 [4] 16 raw 00000000\n" },
	{ "}<>}<w><T>ss", ".w/0 float32 [4] 16 raw 00000000\n" },
	{ "}(<#7>K\5\x86<T>\x88N<n>}u",
	  "[7, 5]/6 float32 [4] 16 raw 00000000\nn/1 {}\ntrue/4 null\n" },
	/* no state dict */
	{ "<T>", "/0 float32 [4] 16 raw 00000000\n" },
	{ "<#5>", "/0 5\n" },
	{ "}", "" },
	{ "](<T>Ne", "0/1 float32 [4] 16 raw 00000000\n1/1 null\n" },
	/* views, and tensors that are written in other ways */
	{ "](<Tslice><Tempty><Tneg><Told><Tv3><Tbytes>e",
	  "0/1 float32 [2] 12 raw:strides=2 0000803f\n"
	  "1/1 float32 [0]\n"
	  "2/1 float32 [1] 4 raw:neg 00000000\n"
	  "3/1 float32 [4] 16 raw 00000000\n"
	  "4/1 uint16 [2] 4 raw 63646566\n"
	  "5/1 uint8 [6] 6 raw 61626364\n" },
	{ "]ctorch._utils\n_rebuild_parameter\n(<T>\x88NtRa", "0/1 float32 [4] 16 raw 00000000\n" },
	/* objects that have tensors in them: attributes, slots, items, arguments */
	{ "}<o>cm\nC\n<T><#1>\x86\x81}<a><T>sb<k><T>ss", "o.0/1 float32 [4] 16 raw 00000000\n"
							 "o.a/1 float32 [4] 16 raw 00000000\n"
							 "o.k/1 float32 [4] 16 raw 00000000\n"
							 "o.1/1 1\n" },
	{ "}<o>cm\nC\n)\x81N}<s><T>s\x86"
	  "b<#9>as",
	  "o.s/1 float32 [4] 16 raw 00000000\no.0/1 9\n" },
	{ "ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R<a><T>s",
	  "a/1 float32 [4] 16 raw 00000000\n" },
	{ "ccollections\nOrderedDict\n](](<a><T>e](<b><#1>ee\x85R",
	  "a/1 float32 [4] 16 raw 00000000\nb/1 1\n" }, /* Python 2 */
	{ "ccollections\nOrderedDict\n)R(<a><T>u}<_metadata>}sb",
	  "a/1 float32 [4] 16 raw 00000000\n" },
	/* a tensor that cannot be shown does not hide the rest */
	{ "](ctorch._utils\n_rebuild_parameter\n(<Tq>\x88NtR<T>e",
	  "0/1 qint8 [4] 4 raw 00000000\n1/1 float32 [4] 16 raw 00000000\n"
	  "0/1 a quantised tensor without its quantiser\n" },
	{ "}(<q><Tq><s><Tsparse><st><:T><t><T>"
	  "<d>ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n"
	  "ctorch.distributed.tensor\nDTensor\n)}tR<o><Todd>u",
	  "q/1 qint8 [4] 4 raw 00000000\n"
	  "t/1 float32 [4] 16 raw 00000000\n"
	  "d/1 a DTensor is not a dense tensor\n"
	  "o/1 data.pkl: storage class 'OddStorage'\n"
	  "q/1 a quantised tensor without its quantiser\n"
	  "s/1 a sparse tensor that is not written as torch writes it\n"
	  "st/2 a storage that is not a tensor's\n" },
	{ "](<Tq4><Tq2><T>e", /* their sizes and strides do not count bytes */
	  "2/1 float32 [4] 16 raw 00000000\n"
	  "0/1 data.pkl: quint4x2, which has several elements in a byte\n"
	  "1/1 data.pkl: quint2x4, which has several elements in a byte\n" },
	/* quantised: numbers, or tensors and the axis; what a quantiser lacks is said */
	{ "}<q>" QUANTISED "(ctorch\nper_tensor_affine\nG?\xe0      <#10>t\x89NtRs",
	  "q/1 qint8 [4] 4 raw 00000000\nq.scale/7 0.503921568627451\nq.zero_point/12 10\n" },
	{ "}<a>](" QUANTISED "(ctorch\nper_channel_affine\n<T><Tv3><#0>t\x89NtRes",
	  "a.0/1 qint8 [4] 4 raw 00000000\n"
	  "a.0.scale/0 float32 [4] 16 raw 00000000\n"
	  "a.0.zero_point/0 uint16 [2] 4 raw 63646566\n"
	  "a.0.axis/0 0\n" },
	{ QUANTISED "(ctorch\nper_tensor_affine\nNNt\x89NtR",
	  "/0 qint8 [4] 4 raw 00000000\nscale/5 null\nzero_point/10 null\n" },
	{ "](" QUANTISED "N\x89NtR" QUANTISED "(N<#1><#2>t\x89NtRe",
	  "0/1 qint8 [4] 4 raw 00000000\n1/1 qint8 [4] 4 raw 00000000\n"
	  "0/1 a quantised tensor without its quantiser\n"
	  "1/1 a quantised tensor without its quantiser\n" },
	/* sparse: as Python writes it, and TorchScript */
	{ "}(<c>" SPARSE "<torch.sparse_coo>\x85R(<T><Tv3>(<#3><#5>t\x88t\x86R"
	  "<r>" SPARSE "<torch.sparse_bsr>\x85R(<T><T><Tv3>(<#3>tt\x86R"
	  "<s>ctorch._utils\n_rebuild_sparse_tensor\n(<#1>(<#2><#2>t\x89<Tv3><T>)tRu",
	  "c.indices/9 float32 [4] 16 raw 00000000\n"
	  "c.values/8 uint16 [2] 4 raw 63646566\n"
	  "r.col_indices/13 float32 [4] 16 raw 00000000\n"
	  "r.crow_indices/14 float32 [4] 16 raw 00000000\n"
	  "r.values/8 uint16 [2] 4 raw 63646566\n"
	  "s.indices/9 uint16 [2] 4 raw 63646566\n"
	  "s.values/8 float32 [4] 16 raw 00000000\n"
	  "c/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", "
	  "\"shape\": [3, 5], \"coalesced\": true}\n"
	  "r/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_bsr\", "
	  "\"shape\": [3]}\n"
	  "s/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", "
	  "\"shape\": [2, 2]}\n" },
	{ "](" SPARSE "<torch.sparse_coo>\x85R(<T>N(<#3><#5>t\x88t\x86R" SPARSE
	  "<torch.sparse_coo>\x85R(<T><T>N\x88t\x86R" SPARSE
	  "<torch.sparse_dia>\x85R(<T><T>(<#3><#5>t\x88t\x86R"
	  "ctorch._utils\n_rebuild_sparse_tensor\nNR"
	  "ctorch._utils\n_rebuild_sparse_tensor\n(<#1>)tRe",
	  "0/1 a sparse tensor without its indices or values\n"
	  "1/1 a sparse tensor that is not written as torch writes it\n"
	  "2/1 a sparse tensor that is not written as torch writes it\n"
	  "3/1 a sparse tensor that is not written as torch writes it\n"
	  "4/1 a sparse tensor that is not written as torch writes it\n" },
	/* subclasses: attributes with tensors, in either of their two dicts, and one inside
	 * another */
	{ "}<w>" WRAPPER("C") "}(<qdata><T><scale>" WRAPPER("D") "N}<t><T>s\x86tR<n><#3>utRs",
	  "w.qdata/7 float32 [4] 16 raw 00000000\n"
	  "w.scale.t/9 float32 [4] 16 raw 00000000\n"
	  "w/1 {\"__class__\": \"m.C\", \"dtype\": \"bfloat16\", \"shape\": [4], \"n\": 3}\n"
	  "w.scale/7 {\"__class__\": \"m.D\", \"dtype\": \"bfloat16\", \"shape\": [4]}\n" },
	{ "}<w>" WRAPPER("C") "}<n><#3>stRs", "w/1 a C is not a dense tensor\n" },
	{ "](" WRAPPER("C") "NtR" WRAPPER("C") "<#5>tRe",
	  "0/1 a C is not a dense tensor\n1/1 a C is not a dense tensor\n" },
	/* a DTensor that is all on this rank, and one of which this rank has a part */
	{ "}(<d>" WRAPPER(
		  "DTensor") "N}(<_local_tensor><T><_spec>}<mesh><T>su\x86tR"
			     "<e>" WRAPPER(
				     "DTensor") "N}(<_local_tensor><Tv3><_spec>}<mesh><T>su\x86tRu",
	  "d/1 float32 [4] 16 raw 00000000\n"
	  "e._local_tensor/15 uint16 [2] 4 raw 63646566\n"
	  "e/1 {\"__class__\": \"m.DTensor\", \"dtype\": \"bfloat16\", \"shape\": [4]}\n" },
	/* attributes of a parameter; if its data is also an attribute, there is only one tensor */
	{ "}<p>ctorch._utils\n_rebuild_parameter_with_state\n(<T>q\1\x88N}(<data>h\1<grad><T><k><#"
	  "1>utRs",
	  "p/1 float32 [4] 16 raw 00000000\np.grad/6 float32 [4] 16 raw 00000000\n" },
	{ "](ctorch.nn.parameter\nParameter\n<T>\x85R"
	  "ctorch.autograd.variable\nVariable\n(<T>tR\x89\x89N\x87"
	  "bctorch.nn.parameter\nParameter\nN\x85Rctorch.nn.parameter\nParameter\n)Re",
	  "0/1 float32 [4] 16 raw 00000000\n1/1 float32 [4] 16 raw 00000000\n"
	  "2/1 data.pkl: 'Parameter' is not a dense tensor\n"
	  "3/1 data.pkl: 'Parameter' is not a dense tensor\n" },
	/* modules: what state_dict() would return */
	{ MODULE "<w><T>s<_buffers>}(<r><T><np><T><o>Nu"
		 "<_non_persistent_buffers_set>c__builtin__\nset\n](<np>e\x85R"
		 "<_modules>}(<#0>cm\nLinear\n)\x81}(<_parameters>}(<weight><T><bias>Nu<_buffers>}"
		 "<_modules>}<in_features><#4>ub<#1>cm\nReLU\n)\x81}(<_parameters>}<_buffers>}"
		 "<_modules>}ub<none>Nu<plain><T>ub",
	  "0.weight/1 float32 [4] 16 raw 00000000\n"
	  "r/1 float32 [4] 16 raw 00000000\n"
	  "w/1 float32 [4] 16 raw 00000000\n" },
	{ "}<m>" MODULE "<w><T>s<_buffers>}<_modules>}ubs", "m.w/1 float32 [4] 16 raw 00000000\n" },
	/* if two items have the same key, the last counts */
	{ "}(<w><T><w><Tv3><#1><T><#0>N<#1><#7>u",
	  "w/1 uint16 [2] 4 raw 63646566\n0/1 null\n1/1 7\n" },
	{ "}(\x88<T>N<T><#7>K\5\x86<T>G?\xe0      <T>]<T><#1><Tv3>N<#2><#7>K\5\x86<#4>G?\xe0      "
	  "N]<#3>u",
	  "1/1 uint16 [2] 4 raw 63646566\n[]/2 float32 [4] 16 raw 00000000\n"
	  "0.503921568627451/17 null\n[7, 5]/6 4\n[]/2 3\nnull/4 2\n" },
	{ MODULE "(<w><T><w><Tv3>u<_buffers>}(<b><T><b>Nu<_modules>}ub",
	  "w/1 uint16 [2] 4 raw 63646566\n" },
	/* two of one name */
	{ "}(<a>}<b><T>s<a.b><Tv3><a.b@2><Tbytes>u", "a.b/1 float32 [4] 16 raw 00000000\n"
						     "a.b@2/5 uint16 [2] 4 raw 63646566\n"
						     "a.b@2@2/7 uint8 [6] 6 raw 61626364\n" },
	{ "}(<#1>](<T><T>e<1>](<Tv3><#7>e<1.1><#8>u", "1.0/1 float32 [4] 16 raw 00000000\n"
						      "1.0@2/0 uint16 [2] 4 raw 63646566\n"
						      "1.1/1 float32 [4] 16 raw 00000000\n"
						      "1.1/1 7\n"
						      "1.1@2/5 8\n" },
};

START_LOOP_TEST(what_was_saved_becomes_tensors_and_objects, (int)ARRAY_LEN(states))
{
	put_zip("f.pt", states[_i].pickle, NULL);
	expect("f.pt", states[_i].want);
}
END_TEST

/* Many values have one name, and as many of the names that they could get are in use. */
START_LONG_TEST(names_in_use_are_not_tried_again_for_each_value)
{
	enum { N = 40000 };
	struct buf text = BUF_INIT(1 << 22);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	buf_str(&text, "}(");
	for (unsigned i = 2; i < N + 2; i++)
		buf_printf(&text, "<{\"__class__\": \"builtins.float\", \"value\": \"nan\"}@%u>N",
			   i);
	for (unsigned i = 0; i < N; i++)
		buf_str(&text, "G\x7f\xf8      N"); /* NaN, which is not equal to itself */
	buf_str(&text, "u");
	put_zip("f.pt", text.data, NULL);
	buf_release(&text);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	(void)catalog_objects(c, &n);
	ck_assert_uint_eq(n, 2 * N);
	catalog_close(c);
}
END_TEST

/* One DTensor under many names, with many attributes to be searched for its tensor. */
START_TEST(a_search_of_shared_attributes_is_counted)
{
	struct buf text = BUF_INIT(1 << 22);
	const struct catalog_object *o;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n, tensors;

	buf_str(&text, "}(<w>" WRAPPER("DTensor") "}(<_local_tensor><T>");
	for (unsigned i = 0; i < 20000; i++)
		buf_str(&text, "NN");
	buf_str(&text, "utRq\1");
	for (unsigned i = 0; i < 2000; i++)
		buf_printf(&text, "<%u>h\1", i);
	buf_str(&text, "u");
	put_zip("f.pt", text.data, NULL);
	buf_release(&text);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	(void)catalog_tensors(c, &tensors);
	o = catalog_objects(c, &n);
	ck_assert_uint_gt(tensors, 100);
	ck_assert_uint_eq(tensors + n, 2001);
	for (size_t i = 0; i < n; i++)
		ck_assert_str_eq(o[i].fault, TOO_OFTEN);
	catalog_close(c);
}
END_TEST

/* One text of 6 MB under many names: after the first it is not made any more. */
START_LONG_TEST(a_text_is_not_made_again_when_there_are_too_many)
{
	struct buf text = BUF_INIT(1 << 22);
	const struct catalog_object *o;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	buf_str(&text, "}(<w>](<");
	for (unsigned i = 0; i < 999; i++)
		buf_str(&text, "\1");
	buf_str(&text, ">q\1");
	for (unsigned i = 0; i < 1000; i++)
		buf_str(&text, "h\1");
	buf_str(&text, "eq\2");
	for (unsigned i = 10; i < 40; i++)
		buf_printf(&text, "<%u>h\2", i);
	buf_str(&text, "<z><#1>u");
	put_zip("f.pt", text.data, NULL);
	buf_release(&text);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	o = catalog_objects(c, &n);
	ck_assert_uint_eq(n, 32);
	ck_assert_ptr_null(o[0].fault);
	ck_assert_str_eq(o[n - 3].fault, "the objects' texts are more than 64 MiB");
	catalog_close(c);
}
END_TEST

/* ---- nested tensors: parts of <T>, as the numbers say ---- */

#define NUMBERS(at, sizes, strides) \
	"ctorch._utils\n_rebuild_tensor_v2\n(<:Tnumbers><#" #at ">(" sizes "t(" strides "t\x89NtR"
#define TABLE(at)   NUMBERS(at, "<#2><#1>", "<#1><#1>")
#define LIST(at, n) NUMBERS(at, "<#" #n ">", "<#1>")
#define NESTED	    "}<n>ctorch._utils\n_rebuild_nested_tensor\n(<T>"
#define JAGGED \
	"}<n>ctorch._tensor\n_rebuild_from_type_v2\n(ctorch.nested._internal.nested_tensor\n" \
	"_rebuild_njt\ncm\nNT\n}(<values><T><offsets>"
#define BAD    "'n': a nested tensor that is not divided as torch divides it"
#define BEYOND "'n': its view reaches outside its storage of 16 bytes"

static const struct {
	const char *pickle;
	int64_t numbers[8];
	const char *want, *error;
} nested[] = {
	/* sizes, strides, offsets: tensors, or a list */
	{ NESTED TABLE(0) TABLE(2) LIST(4, 2) "tRs",
	  { 1, 2, 1, 2, 3, 1 },
	  "n.0/3 float32 [1] 4 raw 00004040\nn.1/3 float32 [2] 12 raw:strides=2 0000803f\n"
	  "n/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n",
	  NULL },
	{ NESTED TABLE(0) TABLE(2) "](<#0><#2>etRs",
	  { 4, 0, 1, 1 },
	  "n.0/3 float32 [4] 16 raw 00000000\nn.1/3 float32 [0]\n"
	  "n/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n",
	  NULL },
	{ NESTED LIST(0, 0) LIST(0, 0) LIST(0, 0) "tRs",
	  { 0 },
	  "n/1 {\"__class__\": \"torch.Tensor\", \"nested\": 0}\n",
	  NULL },
	{ NESTED TABLE(0) TABLE(2) LIST(4, 2) "tRs", { 1, 2, 1, 2, 3, 2 }, NULL, BEYOND },
	{ NESTED TABLE(0) TABLE(2) LIST(4, 2) "tRs", { 1, -1, 1, 1, 0, 0 }, NULL, BAD },
	{ NESTED TABLE(0) TABLE(2) LIST(4, 2) "tRs", { 1, INT64_MAX, 1, INT64_MAX }, NULL, BEYOND },
	{ NESTED TABLE(0) TABLE(2) LIST(4, 3) "tRs", { 1, 1, 1, 1 }, NULL, BAD },
	{ NESTED TABLE(0) LIST(2, 1) LIST(4, 2) "tRs", { 1, 1, 1, 1 }, NULL, BAD },
	{ NESTED TABLE(0) TABLE(2) TABLE(4) "tRs", { 1, 1, 1, 1 }, NULL, BAD },
	{ NESTED TABLE(0) TABLE(2) "](<#0><#-1>etRs", { 1, 1, 1, 1 }, NULL, BAD },
	{ NESTED TABLE(0) TABLE(2) "](<#0><x>etRs", { 1, 1, 1, 1 }, NULL, BAD },
	{ NESTED TABLE(0) TABLE(2) "NtRs", { 1 }, NULL, "'n': data.pkl does not hold a tensor" },
	{ NESTED TABLE(0) TABLE(2) "<T>tRs", { 1 }, NULL, BAD },
	{ NESTED TABLE(7) TABLE(2) LIST(4, 2) "tRs",
	  { 1 },
	  NULL,
	  "'n': its view reaches outside its storage of 64 bytes" },
	{ NESTED NUMBERS(0, "<#1048577><#1>", "<#0><#0>") TABLE(2) LIST(4, 2) "tRs",
	  { 1 },
	  NULL,
	  BAD },
	{ NESTED "tRs", { 1 }, NULL, BAD },
	/* from one offset to the next, or as long as the lengths say */
	{ JAGGED LIST(0, 3) "<lengths>Nu\x85NtRs",
	  { 0, 1, 4 },
	  "n.0/3 float32 [1] 4 raw 00000000\nn.1/3 float32 [3] 12 raw 0000803f\n"
	  "n/1 {\"__class__\": \"m.NT\", \"nested\": 2}\n",
	  NULL },
	{ JAGGED LIST(0, 2) "<lengths>" LIST(3, 2) "<_ragged_idx><#1>u\x85NtRs",
	  { 0, 2, 9, 1, 2 },
	  "n.0/3 float32 [1] 4 raw 00000000\nn.1/3 float32 [2] 8 raw 00000040\n"
	  "n/1 {\"__class__\": \"m.NT\", \"nested\": 2}\n",
	  NULL },
	{ JAGGED LIST(0, 3) "u\x85NtRs", { 0, 1, 5 }, NULL, BAD },
	{ JAGGED LIST(0, 3) "u\x85NtRs", { 2, 1, 4 }, NULL, BAD },
	{ JAGGED LIST(0, 0) "u\x85NtRs", { 0 }, NULL, BAD },
	{ JAGGED LIST(0, 2) "<lengths>" LIST(3, 3) "u\x85NtRs", { 0 }, NULL, BAD },
	{ JAGGED LIST(0, 3) "<_ragged_idx><#2>u\x85NtRs", { 0, 1, 2 }, NULL, BAD },
	{ JAGGED LIST(0, 3) "<_ragged_idx><#0>u\x85NtRs", { 0, 1, 2 }, NULL, BAD },
	{ JAGGED LIST(0, 3) "<_ragged_idx><#9223372036854775807>u\x85NtRs", { 0 }, NULL, BAD },
};

START_LOOP_TEST(nested_tensors_are_their_components, (int)ARRAY_LEN(nested))
{
	struct archive a = { .style = { 0 } };
	struct buf pkl = BUF_INIT(1 << 20);
	char error[200];

	put_pickle(&pkl, nested[_i].pickle);
	archive_add(&a, "data.pkl", pkl.data, pkl.len);
	archive_add(&a, "data/0", floats, sizeof(floats));
	archive_add(&a, "data/2", nested[_i].numbers, sizeof(nested[_i].numbers));
	archive_end(&a);
	put_file(dir_fd, "f.pt", a.b.data, a.b.len);
	archive_release(&a);
	buf_release(&pkl);
	if (nested[_i].want) {
		expect("f.pt", nested[_i].want);
		return;
	}
	(void)snprintf(error, sizeof(error), "read 'f.pt': %s", nested[_i].error);
	expect_error("f.pt", ERR_CORRUPT, error);
}
END_TEST

START_TEST(nested_tensors_of_an_unknown_form_are_listed)
{
	put_zip("f.pt",
		"}<n>ctorch._tensor\n_rebuild_from_type_v2\n(ctorch.nested\n_rebuild_njt\n"
		"cm\nNT\n}\x85NtRs",
		NULL);
	expect("f.pt", "n/1 a NT is not a dense tensor\n");
}
END_TEST

START_TEST(positions_in_lists_and_tuples_are_told_from_keys)
{
	struct buf b = BUF_INIT(1 << 16);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	const struct catalog_tensor *t;
	const struct catalog_object *o;
	size_t n;

	put_zip("f.pt", states[0].pickle, NULL);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	t = catalog_tensors(c, &n);
	for (size_t i = 0; i < n; i++) {
		show_path(&b, t[i].path, t[i].fqn, t[i].fqn_len);
		buf_str(&b, " ");
	}
	o = catalog_objects(c, &n);
	for (size_t i = 0; i < n; i++) {
		show_path(&b, o[i].path, o[i].fqn, o[i].fqn_len);
		buf_str(&b, " ");
	}
	ck_assert_str_eq(b.data, "model|l|#0 model|l|#1|#0 model|w opt|state|0 epoch opt|groups "
				 "opt|state|1 ");
	buf_release(&b);
	catalog_close(c);
}
END_TEST

START_LOOP_TEST(a_stream_is_read_like_an_archive, (int)ARRAY_LEN(states))
{
	const char *text = states[_i].pickle;
	const char *keys = strstr(text, "<Tv3>") ? "](<1><0>e"
			   : strstr(text, "<T>") ? "]<0>a"
						 : "]";

	if (strstr(text, "<Tq>") || strstr(text, "<:Tq>"))
		return; /* needs the element size of every storage */
	put_legacy("f.pt", text, keys, 0);
	expect("f.pt", states[_i].want);
}
END_TEST

START_LOOP_TEST(a_read_that_fails_is_not_damage, 2)
{
	if (_i)
		put_legacy("f.pt", "](<T><T>e", "]<0>a", 0);
	else
		put_zip("f.pt", "](<T><T>e", "little");
	FAULT_LOOP(FAULT_READ)
	{
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		int rc = scan("f.pt", &c, &e);

		(void)fault_off();
		ck_assert_msg(rc == (fault_hit() ? -EIO : 0), "%s", e.msg);
		catalog_close(c);
	}
}
END_TEST

/*
 * A file of torch 0.4 under Python 2.7, opcode by opcode as its cPickle writes protocol 2: a memo
 * that begins with 1, byte strings, an OrderedDict that is called with its pairs, a 64-bit number
 * as text (the parameters of an optimizer are id()s), and an instance of an old-style class.
 */
static const char python2[] =
	"\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
	"\x80\2M\xe9\3."
	"\x80\2}q\1(U\x10protocol_versionq\2M\xe9\3U\x0dlittle_endianq\3\x88U\x0atype_sizesq\4}"
	"q\5(U\5shortq\6K\2U\3intq\7K\4U\4longq\x08K\4uu."
	"\x80\2}q\1(U\5stateq\2ccollections\nOrderedDict\nq\3]q\4(]q\5(U\1wq\6"
	"ctorch._utils\n_rebuild_tensor_v2\nq\7((U\7storageq\x08"
	"ctorch\nFloatStorage\nq\x09U\x0f"
	"943294847201126q\x0aU\3cpuq\x0bK\4Ntq\x0cQ"
	"K\0K\4\x85q\x0dK\1\x85q\x0e\x89h\3]q\x0f\x85q\x10Rq\x11tq\x12Rq\x13"
	"e]q\x14(U\1bq\x15h\7(h\x0cQK\1K\2\x85q\x16K\2\x85q\x17\x89h\3]q\x18\x85q\x19Rq\x1atq\x1b"
	"Rq\x1c"
	"ee\x85q\x1dRq\x1e}q\x1fU\x09_metadataq h\3]q!\x85q\"Rq#sb"
	"U\5epochq$K\3U\6paramsq%]q&I140735678901234\naU\4argsq'(c__main__\nArgs\nq(oq)}q*U\2lrq+G?"
	"\xe0\0\0\0\0\0\0sbu."
	"\x80\2]q\1U\x0f"
	"943294847201126q\2a."
	"\4\0\0\0\0\0\0\0";

START_TEST(a_stream_that_python_2_has_written_is_read)
{
	struct buf b = BUF_INIT(1 << 16);

	buf_add(&b, python2, sizeof(python2) - 1);
	buf_add(&b, floats, sizeof(floats));
	put_file(dir_fd, "f.pth", b.data, b.len);
	expect("f.pth", "state.b/5 float32 [2] 12 raw:strides=2 0000803f\n"
			"state.w/5 float32 [4] 16 raw 00000000\n"
			"args/4 {\"__class__\": \"__main__.Args\", \"lr\": 0.5}\n"
			"epoch/5 3\n"
			"params/6 [140735678901234]\n");
	buf_release(&b);
}
END_TEST

START_TEST(storages_that_are_parts_of_others_begin_where_they_begin)
{
	put_legacy("f.pt", "](<Twindow><T>e", "]<0>a", 0);
	expect("f.pt", "0/1 float32 [1] 4 raw 00000040\n1/1 float32 [4] 16 raw 00000000\n");
}
END_TEST

START_TEST(classes_that_a_stream_quotes_the_source_of_are_nothing_to_read)
{
	put_legacy("f.pt", "](<T>(<module>cm\nC\n<f.py><class C>tQ)\x81}<w><T>sbe", "]<0>a", 0);
	expect("f.pt", "0/1 float32 [4] 16 raw 00000000\n1.w/1 float32 [4] 16 raw 00000000\n");
}
END_TEST

START_TEST(bytes_are_swapped_where_byteorder_says_so)
{
	put_zip("f.pt", "](<T><Tslice><Tv3><Tbytes>e", "big");
	expect("f.pt", "0/1 float32 [4] 16 raw:be 00000000\n"
		       "1/1 float32 [2] 12 raw:strides=2:be 0000803f\n"
		       "2/1 uint16 [2] 4 raw 63646566\n" /* torch does not, either */
		       "3/1 uint8 [6] 6 raw 61626364\n");
	put_zip("f.pt", "<T>", "little");
	expect("f.pt", "/0 float32 [4] 16 raw 00000000\n");
}
END_TEST

/* "name": a value whose text has about 2^n times 904 bytes */
static void put_long(struct buf *b, const char *name, int n)
{
	buf_printf(b, "<%s><%0900d>", name, 0);
	while (n--)
		buf_str(b, "2\x86");
}

START_TEST(texts_that_have_no_room_are_listed)
{
	static const char *const faults[] = { NULL, "the objects' texts are more than 64 MiB",
					      "the objects' texts are more than 64 MiB" };
	struct buf b = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	const struct catalog_object *o;
	size_t n;

	if (!rng_turn(0, 4)) /* a second */
		return;
	buf_str(&b, "}(");
	put_long(&b, "a", 16);
	put_long(&b, "b", 16);
	put_long(&b, "c", 17);
	buf_str(&b, "<t><T>u");
	put_zip("f.pt", b.data, NULL);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	o = catalog_objects(c, &n);
	ck_assert_uint_eq(n, 3);
	ck_assert(o[0].text && o[0].text_len > 904 << 16 && !o[0].fault);
	for (size_t i = 1; i < n; i++)
		ck_assert_str_eq(o[i].fault, faults[i]);
	(void)catalog_tensors(c, &n);
	ck_assert_uint_eq(n, 1);
	catalog_close(c);
	buf_release(&b);
}
END_TEST

/* ---- what is refused ---- */

static const struct {
	const char *pickle, *order;
	int code;
	const char *msg;
} refused[] = {
	{ "}<w><Tbeyond>s", NULL, ERR_CORRUPT,
	  "read 'f.pt': 'w': its view reaches outside its storage of 16 bytes" },
	{ "}<w><Tlong>s", NULL, ERR_CORRUPT,
	  "read 'f.pt': 'w': storage '0' has 16 bytes, but the pickle says 20" },
	{ "}<w><Tlost>s", NULL, ERR_CORRUPT, "read 'f.pt': 'w': the file has no storage '9'" },
	{ "}<w><Twide>s", NULL, ERR_CORRUPT,
	  "read 'f.pt': 'w': data.pkl: a storage is not part of its root" },
	{ "}<w><Tnegative>s", NULL, ERR_CORRUPT,
	  "read 'f.pt': 'w': data.pkl: offset, size and stride do not fit together" },
	{ "<T>", "middle", ERR_CORRUPT, "read 'f.pt': byteorder is 'middle'" },
	{ "<T>", "", ERR_CORRUPT, "read 'f.pt': byteorder is ''" },
	{ "0", NULL, ERR_CORRUPT, "read 'f.pt': pickle: stack underflow at byte 3" },
	{ "]q\1(<T>h\2e", NULL, ERR_CORRUPT,
	  "read 'f.pt': pickle: memo entry 2, requested at byte 130, was never stored" },
	{ "}(<a>}<b><#1>s<a.b><#1><t><T>u", NULL, 0, NULL }, /* a tensor and an object may */
	{ "}(<a>](<#1>e<a.0><#1><b><T>u", NULL, 0, NULL },   /* the list is one object */
	{ "}<w\xff><T>s", NULL, ERR_CORRUPT, "read 'f.pt': 'w%FF': FQN 'w?' is not UTF-8" },
};

START_LOOP_TEST(what_contradicts_itself_is_refused, (int)ARRAY_LEN(refused))
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	put_zip("f.pt", refused[_i].pickle, refused[_i].order);
	if (refused[_i].msg) {
		expect_error("f.pt", refused[_i].code, refused[_i].msg);
		return;
	}
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	catalog_close(c);
}
END_TEST

/* ---- forms that torch has written, and others ---- */

#define DTENSOR \
	"torch._tensor._rebuild_from_type_v2(torch._utils._rebuild_wrapper_subclass, " \
	"torch.D.DTensor, "
#define QINT8 \
	"torch._utils._rebuild_qtensor(&('storage', torch.QInt8Storage, '0', 'cpu', 8), 0, (4,), " \
	"(1,), "
#define V2	    "torch._utils._rebuild_tensor_v2(&('storage', torch.FloatStorage, '0', 'cpu', 40), "
#define TENSOR	    "torch._utils._rebuild_tensor_v2("
#define COO	    "torch.serialization._get_layout('torch.sparse_coo')"
#define SPARSE_CALL "torch._utils._rebuild_sparse_tensor("
#define NESTED_CALL "torch._utils._rebuild_nested_tensor("
#define JAGGED_CALL "torch.nested._rebuild_njt("
#define COPIED	    "torch._utils._rebuild_device_tensor_from_cpu_tensor("
#define NUMPY_ARRAY \
	"data.pkl: its elements are a NumPy array in the pickle, as torch before 2.6 saves those " \
	"of " \
	"XLA and other devices; save tensor.cpu() instead"
#define PARAMETER  "torch._utils._rebuild_parameter("
#define FLOAT8	   "transformer_engine._make_float8_tensor_in_reduce_ex("
#define FROM_TYPE  "torch._tensor._rebuild_from_type_v2("
#define WRAPPER_FN "torch._utils._rebuild_wrapper_subclass"
#define CAST(dtype_and_size, state) \
	FROM_TYPE WRAPPER_FN \
		", torchao.T.WeightWithDynamicFloat8CastTensor, (5, torch." dtype_and_size \
		"), " state ")"
#define FLOATS "&('storage', torch.FloatStorage, '0', 'cpu', 40)"

/* The value of 'w', and what is shown beside 'a'. */
static const struct {
	const char *text, *want;
} forms[] = {
	{ SPARSE_CALL COO ", (I[0,1](1,2), t0+0(2), (3,)))",
	  "w.indices/9 int64 [1,2] 16 raw 00000000\n"
	  "w.values/8 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", \"shape\": "
	  "[3]}\n" },
	{ SPARSE_CALL COO ", (I[0,1](1,2), t0+0(2), (3,), 5))",
	  "w.indices/9 int64 [1,2] 16 raw 00000000\n"
	  "w.values/8 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", \"shape\": "
	  "[3]}\n" },
	{ SPARSE_CALL COO ", 5)", "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL COO ", (I[0,1](1,2), t0+0(2)))",
	  "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL "5, (I[0,1](1,2), t0+0(2), (3,)))",
	  "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL
	  "torch.serialization._get_layout('torch.sparse_coo', 1), (I[0,1](1,2), t0+0(2), (3,)))",
	  "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL "torch.serialization._get_layout(), (I[0,1](1,2), t0+0(2), (3,)))",
	  "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL "'x', (I[0,1](1,2), t0+0(2), (3,)))",
	  "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL "1, (3,), F, I[0,1](1,2), t0+0(2), N)",
	  "w.indices/9 int64 [1,2] 16 raw 00000000\n"
	  "w.values/8 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", \"shape\": "
	  "[3]}\n" },
	{ SPARSE_CALL "7, (3,), F, I[0,1](1,2), t0+0(2), N)",
	  "w/1 a sparse tensor that is not written as torch writes it\n" },
	{ SPARSE_CALL "2, (3,), F, I[0,1](2), I[0,1](2), t0+0(2), N)",
	  "w.col_indices/13 int64 [2] 16 raw 00000000\n"
	  "w.crow_indices/14 int64 [2] 16 raw 00000000\n"
	  "w.values/8 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_csr\", \"shape\": "
	  "[3]}\n" },
	{ "torch._utils._rebuild_sparse_csr_tensor(torch.serialization._get_layout('torch.sparse_"
	  "csr'), (I[0,1,2](3), I[0,1](2), t0+0(2), (2,2)))",
	  "w.col_indices/13 int64 [2] 16 raw 00000000\n"
	  "w.crow_indices/14 int64 [3] 24 raw 00000000\n"
	  "w.values/8 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_csr\", \"shape\": [2, "
	  "2]}\n" },
	{ QINT8 "(torch.per_tensor_affine, 0.5, 10), F, N)", "w/1 qint8 [4] 4 raw 00000000\n"
							     "w.scale/7 0.5\n"
							     "w.zero_point/12 10\n" },
	{ QINT8 "(torch.per_tensor_affine, 0.5), F, N)",
	  "w/1 qint8 [4] 4 raw 00000000\n"
	  "w/1 a quantised tensor without its quantiser\n" },
	{ QINT8 "5, F, N)", "w/1 qint8 [4] 4 raw 00000000\n"
			    "w/1 a quantised tensor without its quantiser\n" },
	{ QINT8 "('x', 0.5, 10), F, N)", "w/1 qint8 [4] 4 raw 00000000\n"
					 "w/1 a quantised tensor without its quantiser\n" },
	{ "torch._utils._rebuild_qtensor(&('storage', torch.QInt8Storage, '0', 'cpu', 8), 0, (4,), "
	  "(1,))",
	  "w/1 qint8 [4] 4 raw 00000000\n"
	  "w/1 a quantised tensor without its quantiser\n" },
	{ QINT8 "(torch.per_channel_affine, t0+4(2), I[0,1](2), 0), F, N)",
	  "w/1 qint8 [4] 4 raw 00000000\n"
	  "w.scale/7 float32 [2] 8 raw 00008040\n"
	  "w.zero_point/12 int64 [2] 16 raw 00000000\n"
	  "w.axis/6 0\n" },
	{ DTENSOR
	  "(torch.D.DTensor, torch.float32, (2,)), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ DTENSOR
	  "(torch.D.DTensor, torch.float32, (3,)), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w._local_tensor/15 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.D.DTensor\", \"dtype\": \"float32\", \"shape\": [3]}\n" },
	{ DTENSOR
	  "(torch.D.DTensor, torch.float32, (1,2)), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w._local_tensor/15 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.D.DTensor\", \"dtype\": \"float32\", \"shape\": [1, 2]}\n" },
	{ DTENSOR
	  "(torch.D.DTensor, torch.float32, 5), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w._local_tensor/15 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.D.DTensor\", \"dtype\": \"float32\"}\n" },
	{ DTENSOR "(torch.D.DTensor, 5, (3,)), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w._local_tensor/15 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.D.DTensor\", \"shape\": [3]}\n" },
	{ DTENSOR "(torch.D.DTensor,), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w._local_tensor/15 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.D.DTensor\"}\n" },
	{ DTENSOR "5, {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "w._local_tensor/15 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.D.DTensor\"}\n" },
	{ DTENSOR "(torch.D.DTensor, torch.float32, (2,)), ({'_local_tensor': t0+0(2), '_spec': "
		  "I[0](1)},))",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ DTENSOR "(torch.D.DTensor, torch.float32, (2,)), (N, {'_local_tensor': t0+0(2), '_spec': "
		  "I[0](1)}))",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ DTENSOR "(torch.D.DTensor, torch.float32, (2,)), {'_local_tensor': 5})",
	  "w/1 a DTensor is not a dense tensor\n" },
	{ FROM_TYPE WRAPPER_FN ", torch.T.X, (torch.T.X, torch.float32, (2,)), {'a': t0+0(2), 'b': "
			       "5, 6: t0+1(1), 'c': E, 'd': 1.5})",
	  "w.a/3 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.T.X\", \"dtype\": \"float32\", \"shape\": [2], \"b\": 5, "
	  "\"c\": {\"__class__\": \"posix.system\", \"__args__\": [\"false\"]}, \"d\": 1.5}\n" },
	/* classes that only change how a weight is multiplied */
	{ CAST("float32, (2,)", "{'_tensor': t0+3(2), '_precomputed_scale': t0+1(1)}"),
	  "w/1 float32 [2] 8 raw 00004040\n" },
	{ CAST("float32, (2,)", "({'_tensor': t0+3(2)}, N)"), "w/1 float32 [2] 8 raw 00004040\n" },
	{ PARAMETER CAST("float32, (2,)", "{'_tensor': t0+3(2)}") ", T, N)",
	  "w/1 float32 [2] 8 raw 00004040\n" },
	{ FROM_TYPE WRAPPER_FN ", torchao.T.MXFP8TrainingWeightWrapperTensor, (5, torch.float32, "
			       "(1,2)), {'_data': t0+3(1,2), 'config': 5})",
	  "w/1 float32 [1,2] 8 raw 00004040\n" },
	{ CAST("bfloat16, (2,)", "{'_tensor': t0+0(2)}"),
	  "w._tensor/9 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torchao.T.WeightWithDynamicFloat8CastTensor\", \"dtype\": "
	  "\"bfloat16\", \"shape\": [2]}\n" },
	{ CAST("float32, (3,)", "{'_tensor': t0+0(2)}"),
	  "w._tensor/9 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torchao.T.WeightWithDynamicFloat8CastTensor\", \"dtype\": "
	  "\"float32\", \"shape\": [3]}\n" },
	{ CAST("float32, (2,)", "{'_data': t0+0(2)}"),
	  "w._data/7 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torchao.T.WeightWithDynamicFloat8CastTensor\", \"dtype\": "
	  "\"float32\", \"shape\": [2]}\n" },
	{ CAST("float32, (2,)", "{'_tensor': " CAST("float32, (2,)", "{'_tensor': t0+3(2)}") "}"),
	  "w._tensor/9 float32 [2] 8 raw 00004040\n"
	  "w/1 {\"__class__\": \"torchao.T.WeightWithDynamicFloat8CastTensor\", \"dtype\": "
	  "\"float32\", \"shape\": [2]}\n" },
	{ FROM_TYPE WRAPPER_FN ", 5, (torch.T.X, torch.float32, (2,)), {'a': t0+0(2)})",
	  "w.a/3 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"dtype\": \"float32\", \"shape\": [2]}\n" },
	{ FROM_TYPE "torch._utils._rebuild_tensor_v2, torch.T.X, (" FLOATS
		    ", 0, (2,), (1,), F, N), {'extra': t0+5(1), 'n': 5})",
	  "w/1 float32 [2] 8 raw 00000000\n"
	  "w.extra/7 float32 [1] 4 raw 0000a040\n" },
	{ PARAMETER V2 "0, (2,), (1,), F, N), T, N)", "w/1 float32 [2] 8 raw 00000000\n" },
	{ PARAMETER "5, T, N)", "w/1 data.pkl: '_rebuild_parameter' is not a dense tensor\n" },
	{ PARAMETER "#7=t0+0(2), T, N, {'self': #7, 'other': t0+3(1)})",
	  "w/1 float32 [2] 8 raw 00000000\n"
	  "w.other/7 float32 [1] 4 raw 00004040\n" },
	{ PARAMETER FLOATS ", T, N)", "w/1 a parameter without a tensor\n" },
	{ COPIED "t0+0(2), torch.float32, 'xla:0', F)", "w/1 float32 [2] 8 raw 00000000\n" },
	{ PARAMETER COPIED "h0+0(2), torch.float16, 'hpu', F), T, N)",
	  "w/1 float16 [2] 4 raw 00000000\n" },
	{ COPIED "t0+0(2), torch.bfloat16, 'xla:0', F)",
	  "w/1 data.pkl: float32, which torch.load converts to another dtype\n" },
	{ COPIED "t0+0(2), 5, 'xla:0', F)",
	  "w/1 data.pkl: float32, which torch.load converts to another dtype\n" },
	{ COPIED "5, torch.float32, 'xla:0', F)",
	  "w/1 data.pkl: '_rebuild_device_tensor_from_cpu_tensor' is not a dense tensor\n" },
	{ "torch._utils._rebuild_device_tensor_from_numpy(5, torch.float32, 'mtia:0', F)",
	  "w/1 " NUMPY_ARRAY "\n" },
	{ "torch._utils._rebuild_xla_tensor(5, torch.float32, 'xla:1', F)",
	  "w/1 " NUMPY_ARRAY "\n" },
	{ "torch._utils._rebuild_parameter_with_state(t0+0(2), T, N, {'k': t0+3(1)})",
	  "w/1 float32 [2] 8 raw 00000000\n"
	  "w.k/3 float32 [1] 4 raw 00004040\n" },
	{ "torch._utils._rebuild_from_type(torch._utils._rebuild_tensor_v2, torch.T.X, (" FLOATS
	  ", 0, (2,), (1,), F, N))",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), I[0,2](2))",
	  "w.0/3 float32 [2] 8 raw 00000000\n"
	  "w.1/3 float32 [1] 4 raw 00000040\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ NESTED_CALL "t0+0(3), J[2,1](2,1), J[1,1](2,1), [0, 2])",
	  "w.0/3 float32 [2] 8 raw 00000000\n"
	  "w.1/3 float32 [1] 4 raw 00000040\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), (0, 2))",
	  "w.0/3 float32 [2] 8 raw 00000000\n"
	  "w.1/3 float32 [1] 4 raw 00000040\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0,1,3](3)})",
	  "w.0/3 float32 [1] 4 raw 00000000\n"
	  "w.1/3 float32 [2] 8 raw 0000803f\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ JAGGED_CALL
	  "{'values': t0+0(3), 'offsets': I[0,1,3](3), 'lengths': N, '_ragged_idx': 1})",
	  "w.0/3 float32 [1] 4 raw 00000000\n"
	  "w.1/3 float32 [2] 8 raw 0000803f\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ JAGGED_CALL "{'values': t0+0(2,3), 'offsets': I[0,1,3](3), '_ragged_idx': 2})",
	  "w.0/3 float32 [2,1] 16 raw:strides=3,0 00000000\n"
	  "w.1/3 float32 [2,2] 20 raw:strides=3,1 0000803f\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ JAGGED_CALL "{'values': t0+0(6), 'offsets': I[0,2](2), 'lengths': I[1,2](2)})",
	  "w.0/3 float32 [1] 4 raw 00000000\n"
	  "w.1/3 float32 [2] 8 raw 00000040\n"
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ JAGGED_CALL "{'values': t0+0(3)})", "w/1 a nested tensor of an unknown torch version\n" },
	{ JAGGED_CALL "{'offsets': I[0](1)})",
	  "w/1 a nested tensor of an unknown torch version\n" },
	{ JAGGED_CALL "{})", "w/1 a nested tensor of an unknown torch version\n" },
	{ JAGGED_CALL ")", "w/1 a nested tensor of an unknown torch version\n" },
	{ JAGGED_CALL "5)", "w/1 a nested tensor of an unknown torch version\n" },
	{ JAGGED_CALL "{'values': " SPARSE_CALL "5), 'offsets': I[0](1)})",
	  "w/1 data.pkl: '_rebuild_sparse_tensor' is not a dense tensor\n" },
	{ JAGGED_CALL "{'values': t0+0(0), 'offsets': I[0](1)})",
	  "w/1 {\"__class__\": \"torch.Tensor\", \"nested\": 0}\n" },
	{ FLOAT8 "t0+0(2), 7, t0+2(1), torch.bfloat16, (2,), t0+3(2), t0+5(2))",
	  "w._data/7 float32 [2] 8 raw 00000000\n"
	  "w._scale_inv/12 float32 [1] 4 raw 00000040\n"
	  "w._transpose/12 float32 [2] 8 raw 00004040\n"
	  "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\", \"dtype\": \"bfloat16\", "
	  "\"shape\": [2], \"fp8_dtype\": \"float8_e4m3fn\"}\n" },
	{ FLOAT8 "5)", "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\"}\n" },
	{ FLOAT8 ")", "w/1 a tensor of Transformer Engine without its parts\n" },
	{ "builtins.getattr(transformer_engine.Float8Tensor, '_make_in_reduce_ex')",
	  "w/1 {\"__class__\": \"builtins.getattr\", \"__args__\": [{\"__global__\": "
	  "\"transformer_engine.Float8Tensor\"}, \"_make_in_reduce_ex\"]}\n" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', 40, N), 0, (2,), (1,), F, N)",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 2, 4)), 0, (2,), (1,), F, N)",
	  "w/1 float32 [2] 8 raw 00000040\n" },
	{ TENSOR "&('storage', torch.StrangeStorage, '0', 'cpu', 40), 0, (2,), (1,), F, N)",
	  "w/1 data.pkl: storage class 'StrangeStorage'\n" },
	{ V2 "0, (2,), (1,), F, N, {'conj': F, 'neg': T})",
	  "w/1 float32 [2] 8 raw:neg 00000000\n" },
	{ V2 "0, (2,), (1,), F, N, {'conj': T, 'neg': 5})", "w/1 float32 [2] 8 raw 00000000\n" },
	{ V2 "0, (2,), (1,), F, N, 5)", "w/1 float32 [2] 8 raw 00000000\n" },
	{ PARAMETER FLOAT8 "t0+0(2), 7, t0+2(1), torch.bfloat16, (2,), t0+3(2), t0+5(2)), T, N)",
	  "w._data/7 float32 [2] 8 raw 00000000\n"
	  "w._scale_inv/12 float32 [1] 4 raw 00000040\n"
	  "w._transpose/12 float32 [2] 8 raw 00004040\n"
	  "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\", \"dtype\": \"bfloat16\", "
	  "\"shape\": [2], \"fp8_dtype\": \"float8_e4m3fn\"}\n" },
	{ PARAMETER FLOAT8 "5), T, N)",
	  "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\"}\n" },
	{ PARAMETER FLOAT8 "), T, N)", "w/1 a tensor of Transformer Engine without its parts\n" },
	{ PARAMETER FLOAT8 "t0+0(2)), T, N)",
	  "w._data/7 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\"}\n" },
	{ PARAMETER "builtins.getattr(te.Float8Tensor, '_make_in_reduce_ex'), T, N)",
	  "w/1 data.pkl: 'getattr' is not a dense tensor\n" },
	{ PARAMETER "m.f(5), T, N)", "w/1 data.pkl: 'f' is not a dense tensor\n" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40)\", 0, (2,), (1,), F, N)",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, None)\", 0, (2,), "
		 "(1,), F, N)",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ TENSOR "&\"('storage', <class 'FloatStorage'>, '0', 'cpu', 40L)\", 0, (2,), (1,), F, N)",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2, 4))\", 0, "
		 "(2,), (1,), F, N)",
	  "w/1 float32 [2] 8 raw 00000040\n" },
	{ PARAMETER "builtins.getattr(te.Float8Tensor, '_make_in_reduce_ex')(t0+0(2), 7), T, N)",
	  "w._data/7 float32 [2] 8 raw 00000000\n"
	  "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\", \"fp8_dtype\": "
	  "\"float8_e5m2\"}\n" },
	{ PARAMETER "builtins.getattr(te.Float8Tensor, '_make_in_reduce_ex')(5), T, N)",
	  "w/1 {\"__class__\": \"transformer_engine.Float8Tensor\"}\n" },
	{ PARAMETER "builtins.getattr(5, '_make_in_reduce_ex')(t0+0(2)), T, N)",
	  "w/1 data.pkl: '?' is not a dense tensor\n" },
	{ PARAMETER "builtins.getattr(te.Float8Tensor, 'x')(t0+0(2)), T, N)",
	  "w/1 data.pkl: '?' is not a dense tensor\n" },
	{ PARAMETER "builtins.getattr(te.Float8Tensor)(t0+0(2)), T, N)",
	  "w/1 data.pkl: '?' is not a dense tensor\n" },
	{ PARAMETER "m.f(te.Float8Tensor, '_make_in_reduce_ex')(t0+0(2)), T, N)",
	  "w/1 data.pkl: '?' is not a dense tensor\n" },
	{ V2 "0, (2,), (1,), F, N, {'conj': 5, 'neg': F})", "w/1 float32 [2] 8 raw 00000000\n" },
	{ V2 "0, (2,), (1,), F, N, {'conj': F})", "w/1 float32 [2] 8 raw 00000000\n" },
	{ FROM_TYPE "torch._utils._rebuild_tensor_v2, 5, (" FLOATS ", 0, (2,), (1,), F, N))",
	  "w/1 float32 [2] 8 raw 00000000\n" },
	{ FROM_TYPE
	  "torch._tensor._rebuild_from_type_v2, torch.T.Y, (" WRAPPER_FN
	  ", torch.T.X, (torch.T.X, torch.float32, (2,)), {'a': t0+0(2)}), {'b': t0+1(1)})",
	  "w.a/3 float32 [2] 8 raw 00000000\n"
	  "w.b/3 float32 [1] 4 raw 0000803f\n"
	  "w/1 {\"__class__\": \"torch.T.Y\", \"dtype\": \"float32\", \"shape\": [2]}\n" },
};

static const struct {
	const char *text, *want;
} keys_and_objects[] = {
	{ "{1: 2, T: 3, 1.0: 4, 'a': t0+0(1)}", "a/1 float32 [1] 4 raw 00000000\n"
						"1.0/3 4\n" },
	{ "{1.5: 2, 1.5: 3, 'a': t0+0(1)}", "a/1 float32 [1] 4 raw 00000000\n"
					    "1.5/3 3\n" },
	{ "{(1, 'x'): 2, (1, 'x'): 3, (): 4, 'a': t0+0(1)}", "a/1 float32 [1] 4 raw 00000000\n"
							     "[1, \"x\"]/8 3\n"
							     "[]/2 4\n" },
	{ "{N: 1, N: 2, torch.float32: 3, torch.float32: 4, 'a': t0+0(1)}",
	  "a/1 float32 [1] 4 raw 00000000\n"
	  "null/4 2\n"
	  "{\"__global__\": \"torch.float32\"}/31 4\n" },
	{ "{(E, 1): 2, (E, 1): 3, 'a': t0+0(1)}",
	  "a/1 float32 [1] 4 raw 00000000\n"
	  "[{\"__class__\": \"posix.system\", \"__args__\": [\"false\"]}, 1]/57 2\n"
	  "[{\"__class__\": \"posix.system\", \"__args__\": [\"false\"]}, 1]@2/59 3\n" },
	{ "{2: 1, 1: 2, 2: 3, 'a': t0+0(1), 'a': t0+1(1)}", "a/1 float32 [1] 4 raw 0000803f\n"
							    "1/1 2\n"
							    "2/1 3\n" },
	{ "{10000000000000000000.5: 1, 10000000000000000000.5: 2, 'a': t0+0(1)}",
	  "a/1 float32 [1] 4 raw 00000000\n"
	  "1e+19/5 2\n" },
	{ "{-1.0: 1, -1: 2, 'a': t0+0(1)}", "a/1 float32 [1] 4 raw 00000000\n"
					    "-1/2 2\n" },
	{ "{'m': m.Net()!{'_parameters': {'w': t0+0(2), 'n': N, 'w': t0+1(2)}, '_buffers': {'b': "
	  "t0+3(1), 'c': t0+4(1), 5: t0+5(1)}, '_modules': {}, '_non_persistent_buffers_set': "
	  "builtins.set(['b', 5])}}",
	  "m.5/1 float32 [1] 4 raw 0000a040\n"
	  "m.c/1 float32 [1] 4 raw 00008040\n"
	  "m.w/1 float32 [2] 8 raw 0000803f\n" },
	{ "{'m': m.Net()!{'_parameters': {'w': t0+0(2)}, '_buffers': {'b': t0+3(1)}, '_modules': "
	  "{}, '_non_persistent_buffers_set': builtins.set(5)}}",
	  "m.b/1 float32 [1] 4 raw 00004040\n"
	  "m.w/1 float32 [2] 8 raw 00000000\n" },
	{ "{'m': m.Net()!{'_parameters': {'w': t0+0(2)}, '_buffers': {'b': t0+3(1)}, '_modules': "
	  "{}, '_non_persistent_buffers_set': builtins.set(('b', 'c', 'd'))}}",
	  "m.b/1 float32 [1] 4 raw 00004040\n"
	  "m.w/1 float32 [2] 8 raw 00000000\n" },
	{ "{'m': m.Net()!{'_parameters': {'w': t0+0(2)}, '_buffers': {'b': t0+3(1)}, '_modules': "
	  "{}, '_non_persistent_buffers_set': builtins.set()}}",
	  "m.b/1 float32 [1] 4 raw 00004040\n"
	  "m.w/1 float32 [2] 8 raw 00000000\n" },
	{ "{'m': m.Net()!{'_parameters': {'w': t0+0(2)}, '_buffers': 5, '_modules': {}}}",
	  "m._parameters.w/1 float32 [2] 8 raw 00000000\n"
	  "m._buffers/1 5\n"
	  "m._modules/1 {}\n" },
	{ "{'m': m.Net()!{'_parameters': {'w': t0+0(2)}, '_buffers': {}, '_modules': 5}}",
	  "m._parameters.w/1 float32 [2] 8 raw 00000000\n"
	  "m._buffers/1 {}\n"
	  "m._modules/1 5\n" },
	{ "{'m': m.Net(t0+0(1))!({'a': t0+1(1)}, {'b': t0+2(1)})}",
	  "m.0/1 float32 [1] 4 raw 00000000\n"
	  "m.a/1 float32 [1] 4 raw 0000803f\n"
	  "m.b/1 float32 [1] 4 raw 00000040\n" },
	{ "{'m': m.Net()!({'a': t0+1(1)}, 5)}", "m.0.a/1 float32 [1] 4 raw 0000803f\n"
						"m.1/1 5\n" },
	{ "{'m': m.Net()!({'a': t0+1(1)},)}", "m.0.a/1 float32 [1] 4 raw 0000803f\n" },
	{ "{'m': m.Net()!()}", "m/1 {\"__class__\": \"m.Net\", \"__state__\": []}\n" },
	{ "{'m': collections.defaultdict(m.Net, {'a': t0+0(1)})!{'b': t0+1(1)}}",
	  "m.b/1 float32 [1] 4 raw 0000803f\n" },
	{ "{'m': torch.jit._pickle.build_tensorlist([t0+0(1), t0+1(1)])}",
	  "m.0/1 float32 [1] 4 raw 00000000\n"
	  "m.1/1 float32 [1] 4 raw 0000803f\n" },
	{ "{'m': torch.jit._pickle.restore_type_tag()}",
	  "m/1 {\"__class__\": \"torch.jit._pickle.restore_type_tag\"}\n" },
	{ "{(T, %00ff, N, 1.5): 1, (T, %00ff, N, 1.5): 2, 'a': t0+0(1)}",
	  "a/1 float32 [1] 4 raw 00000000\n"
	  "[true, {\"__class__\": \"builtins.bytes\", \"hex\": \"00ff\"}, null, 1.5]/65 2\n" },
	{ SPARSE_CALL COO ", (I[0,1](1,2), t0+0(2), (3,)))",
	  "indices/7 int64 [1,2] 16 raw 00000000\n"
	  "values/6 float32 [2] 8 raw 00000000\n"
	  "/0 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", \"shape\": "
	  "[3]}\n" },
	{ PARAMETER FLOAT8 "t0+0(2), 8), T, N)",
	  "_data/5 float32 [2] 8 raw 00000000\n"
	  "/0 {\"__class__\": \"transformer_engine.Float8Tensor\", \"fp8_dtype\": "
	  "\"float8_e5m2\"}\n" },
	{ DTENSOR
	  "(torch.D.DTensor, torch.float32, (2,)), {'_local_tensor': t0+0(2), '_spec': I[0](1)})",
	  "/0 float32 [2] 8 raw 00000000\n" },
	{ "> {'n': " NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), I[0,2](2))}",
	  "n.0/3 float32 [2] 8 raw:be 00000000\n"
	  "n.1/3 float32 [1] 4 raw:be 40000000\n"
	  "n/1 {\"__class__\": \"torch.Tensor\", \"nested\": 2}\n" },
	{ "t0+0(2)", "/0 float32 [2] 8 raw 00000000\n" },
	{ "[t0+0(2), " SPARSE_CALL "5)]",
	  "0/1 float32 [2] 8 raw 00000000\n"
	  "1/1 a sparse tensor that is not written as torch writes it\n" },
};

/* The value of a tensor, and what is wrong with it. */
static const struct {
	const char *text, *why;
} impossible[] = {
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), t0+0(2,1), I[1,1](2,1), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1,1,1](2,1)/(2,1), I[1,1](2,1), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[-2,1](2,1), I[1,1](2,1), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), J[-2,1](2,1), I[1,1](2,1), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), ['x', 2])",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), [0, -2])",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), I[0,2](2,1))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1](2,1), I[1](1,1), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2](1,1), I[1](1,1), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1](2), I[1,1](2), I[0,2](2))",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,1](1,2), I[1,1](1,2), [0, 2])",
	  "a nested tensor that is not divided as torch divides it" },
	{ NESTED_CALL "t0+0(3), I[2,60](2,1), I[1,1](2,1), I[0,2](2))",
	  "its view reaches outside its storage of 160 bytes" },
	{ NESTED_CALL "t0+0(3), I[2,1](9,1), I[1,1](2,1), I[0,2](2))",
	  "its view reaches outside its storage of 16 bytes" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0](0)})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0,3](2), '_ragged_idx': 'x'})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0,3](2), '_ragged_idx': 0})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0,3](2), '_ragged_idx': 2})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[2,1](2)})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0,4](2)})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0](1), 'lengths': I[1,1](2)})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[4](1), 'lengths': I[1](1)})",
	  "a nested tensor that is not divided as torch divides it" },
	{ JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0](1), 'lengths': t0+0(1)})",
	  "a nested tensor that is not divided as torch divides it" },
	{ TENSOR "&('store', torch.FloatStorage, '0', 'cpu', 40), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&(5, torch.FloatStorage, '0', 'cpu', 40), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&('storage', 5, '0', 'cpu', 40), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&('storage', torch.FloatStorage, 0, 'cpu', 40), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', '40'), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', -40), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu'), 0, (2,), (1,), F, N)",
	  "data.pkl: a tensor without a storage" },
	{ TENSOR "5, 0, (2,), (1,), F, N)", "data.pkl: a tensor without a storage" },
	{ TENSOR "&5, 0, (2,), (1,), F, N)", "data.pkl: a tensor without a storage" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', 40, 5), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 2)), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 'x', 4)), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', -2, 4)), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 2, 'x')), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 2, -4)), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 38, 4)), 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 4611686018427387904, 4)), "
		 "0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR "&('storage', torch.FloatStorage, '0', 'cpu', 40, ('k', 1, 4611686018427387904)), "
		 "0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR
	  "&('storage', torch.FloatStorage, '0', 'cpu', 4611686018427387904), 0, (2,), (1,), F, N)",
	  "data.pkl: storage of 4611686018427387904 elements" },
	{ V2 "'x', (2,), (1,), F, N)", "data.pkl: offset, size and stride do not fit together" },
	{ V2 "-1, (2,), (1,), F, N)", "data.pkl: offset, size and stride do not fit together" },
	{ V2 "0, 5, (1,), F, N)", "data.pkl: offset, size and stride do not fit together" },
	{ V2 "0, (2,), 5, F, N)", "data.pkl: offset, size and stride do not fit together" },
	{ V2 "0, (2,), (1,1), F, N)", "data.pkl: offset, size and stride do not fit together" },
	{ V2 "0)", "data.pkl: a tensor with 2 arguments" },
	{ TENSOR ")", "data.pkl: a tensor with 0 arguments" },
	{ V2 "0, (2,), (4611686018427387904,), F, N)",
	  "its view reaches outside its storage of 160 bytes" },
	{ V2 "9223372036854775807, (2,), (9223372036854775807,), F, N)",
	  "its view reaches outside its storage of 160 bytes" },
	{ V2 "0, (9223372036854775807,), (9223372036854775807,), F, N)",
	  "its view reaches outside its storage of 160 bytes" },
	{ TENSOR "&('storage', torch.FloatStorage, '9', 'cpu', 40), 0, (2,), (1,), F, N)",
	  "the file has no storage '9'" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2, 4)\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', x, 4))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2, 40))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not part of its root" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k, 2, 40))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40 x)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', )\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu' 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', cpu', 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu, 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0, cpu, 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, 0, 'cpu', 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage>, 0, cpu, 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', torch.FloatStorage, '0', 'cpu', 40)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', "
		 "99999999999999999999)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 9223372036854775808)\", "
		 "0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40x)\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR
	  "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40\", 0, (2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k' 2, 4))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2 4))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2, x))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
	{ TENSOR "&\"('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 40, ('k', 2, 4x))\", 0, "
		 "(2,), (1,), F, N)",
	  "data.pkl: a storage is not written as torch writes it" },
};

START_TEST(tensors_of_all_forms_are_read_or_listed)
{
	char *text, *want;

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		REQUIRE(asprintf(&text, "{'w': %s, 'a': t0+9(1)}", forms[i].text) > 0);
		REQUIRE(asprintf(&want, "a/1 float32 [1] 4 raw 00001041\n%s", forms[i].want) > 0);
		saved_put(dir_fd, "x.pt", text, 0);
		expect("x.pt", want);
		free(text);
		free(want);
	}
}
END_TEST

START_TEST(keys_of_dicts_and_attributes_of_objects_are_names)
{
	for (size_t i = 0; i < ARRAY_LEN(keys_and_objects); i++) {
		saved_put(dir_fd, "x.pt", keys_and_objects[i].text, 0);
		expect("x.pt", keys_and_objects[i].want);
	}
}
END_TEST

START_TEST(impossible_tensors_are_refused)
{
	char *text, want[400];

	for (size_t i = 0; i < ARRAY_LEN(impossible); i++) {
		REQUIRE(asprintf(&text, "{'w': %s, 'a': t0+9(1)}", impossible[i].text) > 0);
		(void)snprintf(want, sizeof(want), "read 'x.pt': 'w': %s", impossible[i].why);
		saved_put(dir_fd, "x.pt", text, 0);
		expect_error("x.pt", ERR_CORRUPT, want);
		free(text);
	}
}
END_TEST

/* ---- values that lead back to themselves, or that others refer to as well ---- */

#define CONFIG \
	"#1=m.Dict()!{'parent': N, 'items': {'a': m.Node()!{'parent': #1, 'value': 1}, 'b': " \
	"m.Node()!{'parent': #1, 'value': 2}}}"
#define CONFIG_TEXT \
	"{\"__class__\": \"m.Dict\", \"parent\": null, \"items\": {\"a\": {\"__class__\": " \
	"\"m.Node\", " \
	"\"parent\": {\"__cycle__\": 3}, \"value\": 1}, \"b\": {\"__class__\": \"m.Node\", " \
	"\"parent\": " \
	"{\"__cycle__\": 3}, \"value\": 2}}}\n"
#define DATA	   "#1=m.Data()!{'store': m.Store()!{'x': t0+0(2), 'parent': #1}}"
#define WITH_STATE "torch._utils._rebuild_parameter_with_state("

static const struct {
	const char *text, *want;
} circles[] = {
	{ "{'cfg': " CONFIG ", 'w': t0+0(1)}",
	  "w/1 float32 [1] 4 raw 00000000\ncfg/3 " CONFIG_TEXT },
	{ CONFIG, "/0 " CONFIG_TEXT },
	{ "{'d': " DATA "}", "d.store.x/1 float32 [2] 8 raw 00000000\n" },
	{ DATA, "store.x/5 float32 [2] 8 raw 00000000\n" },
	{ "#1=[t0+0(1), #1]", "0/1 float32 [1] 4 raw 00000000\n" },
	{ "{'l': #1=[#1, t0+0(1), [#1, 5]]}", "l.1/1 float32 [1] 4 raw 00000000\n"
					      "l.2.1/1 5\n" },
	/* from each place outside */
	{ "{'a': #1={'w': t0+0(1), 'n': 5}, 'b': #1}", "a.w/1 float32 [1] 4 raw 00000000\n"
						       "b.w/1 float32 [1] 4 raw 00000000\n"
						       "a.n/1 5\n"
						       "b.n/1 5\n" },
	{ "{'a': " DATA ", 'b': #1}", "a.store.x/1 float32 [2] 8 raw 00000000\n"
				      "b.store.x/1 float32 [2] 8 raw 00000000\n" },
	/* of a and b, which know each other, and c, which knows b */
	{ "{'a': #1=m.A()!{'b': #2=m.B()!{'a': #1, 'w': t0+0(1)}, 'c': m.C()!{'b': #2, 'w': "
	  "t0+1(1)}}}",
	  "a.b.w/1 float32 [1] 4 raw 00000000\n"
	  "a.c.w/1 float32 [1] 4 raw 0000803f\n" },
	/* a tensor that knows its module, and has two names there */
	{ "{'m': #1=m.Net()!{'_parameters': {'v': #2=" WITH_STATE
	  "t0+0(1), T, N, {'of': #1}), 'w': "
	  "#2}, '_buffers': {}, '_modules': {}}}",
	  "m.v/1 float32 [1] 4 raw 00000000\n"
	  "m.w/1 float32 [1] 4 raw 00000000\n" },
	/* tensors that know each other by a dict of attributes that they share */
	{ "{'v': " WITH_STATE "t0+0(1), T, N, #1={'w': " WITH_STATE "t0+1(1), T, N, #1)})}",
	  "v/1 float32 [1] 4 raw 00000000\n"
	  "v.w/3 float32 [1] 4 raw 0000803f\n" },
	/* a tensor that is listed again, by a list of its own, while what it leads back to is
	 * open */
	{ "{'c': #1=[#2=" WITH_STATE "t0+0(1), T, N, {'x': [#1, t0+1(1)]}), #3=[#2]], 'p': #3}",
	  "c.0/1 float32 [1] 4 raw 00000000\n"
	  "c.0.x.1/0 float32 [1] 4 raw 0000803f\n"
	  "c.1.0/1 float32 [1] 4 raw 00000000\n"
	  "c.1.0.x.1/0 float32 [1] 4 raw 0000803f\n"
	  "p.0/1 float32 [1] 4 raw 00000000\n"
	  "p.0.x.1/0 float32 [1] 4 raw 0000803f\n" },
	/* objects that are the states of objects */
	{ "{'a': m.A()!m.State()!{'w': t0+0(1)}}", "a.w/1 float32 [1] 4 raw 00000000\n" },
	{ "{'a': m.A()!m.B()!m.C()!{'w': t0+0(1)}}", "a.0.w/1 float32 [1] 4 raw 00000000\n" },
	{ "{'a': #1=m.A()!#1}",
	  "a/1 {\"__class__\": \"m.A\", \"__state__\": {\"__cycle__\": 1}}\n" },
	{ "{'a': #1=m.A()!({'w': t0+0(1), 's': m.B()!#1}, {'x': #1})}",
	  "a.s.w/1 float32 [1] 4 raw 00000000\n"
	  "a.w/1 float32 [1] 4 raw 00000000\n" },
};

START_TEST(what_leads_back_to_itself_is_listed_once)
{
	for (size_t i = 0; i < ARRAY_LEN(circles); i++) {
		saved_put(dir_fd, "x.pt", circles[i].text, 0);
		expect("x.pt", circles[i].want);
	}
}
END_TEST

/* Each of 40 objects knows all others: there are 40! paths. */
START_TEST(objects_that_all_know_each_other_are_listed_once)
{
	enum { N = 40 };
	struct buf b = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	buf_str(&b, "}<all>]q\xff(");
	for (int i = 0; i < N; i++) {
		buf_str(&b, "cm\nA\n)\x81}(<all>h\xff<w><T>ub");
	}
	buf_str(&b, "es");
	put_zip("f.pt", b.data, NULL);
	buf_release(&b);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	(void)catalog_tensors(c, &n);
	ck_assert_uint_eq(n, N);
	(void)catalog_objects(c, &n);
	ck_assert_uint_eq(n, 0);
	catalog_close(c);
}
END_TEST

static size_t count_faults(const struct catalog *c, const char *fault)
{
	const struct catalog_object *o;
	size_t n, ret = 0;

	o = catalog_objects(c, &n);
	for (size_t i = 0; i < n; i++)
		ret += o[i].fault && !strcmp(o[i].fault, fault);
	return ret;
}

/* 2^60 names for one tensor: some are listed, and in place of the others what would contain them.
 * What comes afterwards is listed. */
START_TEST(what_unfolds_without_end_is_listed_in_part)
{
	struct buf b = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n, n_objects;

	buf_str(&b, "}(<a>]<T>a");
	for (int i = 0; i < 60; i++)
		buf_str(&b, "2\x86"); /* each contains the one before twice */
	buf_str(&b, "<b><T><c><#5>u");
	put_zip("f.pt", b.data, NULL);
	buf_release(&b);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	ck_assert_int_ge(catalog_find_tensor(c, "b", 1), 0);
	(void)catalog_tensors(c, &n);
	(void)catalog_objects(c, &n_objects);
	ck_assert_uint_gt(n, 100);
	ck_assert_uint_lt(n, 10000);
	ck_assert_uint_gt(n_objects, 30);
	ck_assert_uint_lt(n_objects, 70);
	ck_assert_uint_eq(count_faults(c, TOO_OFTEN), n_objects - 1);
	catalog_close(c);
}
END_TEST

/* The same without a tensor in it. */
START_LONG_TEST(an_object_that_unfolds_without_end_is_a_fault)
{
	struct buf b = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	buf_str(&b, "}(<a>N\x85");
	for (int i = 0; i < 60; i++)
		buf_str(&b, "2\x86");
	buf_str(&b, "<b><T><c><#5>u");
	put_zip("f.pt", b.data, NULL);
	buf_release(&b);
	ck_assert_msg(!scan("f.pt", &c, &e), "%s", e.msg);
	(void)catalog_objects(c, &n);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(count_faults(c, "it has the same values too often for a text"), 1);
	catalog_close(c);
}
END_TEST

/* Objects that are each other's states are no deeper than others. */
START_TEST(a_tower_of_states_is_too_deep)
{
	enum { N = 100000 };
	struct buf b = BUF_INIT(1 << 22);

	buf_str(&b, "}<a>");
	for (int i = 0; i < N; i++)
		buf_str(&b, "cm\nA\n)\x81");
	for (int i = 0; i < N - 1; i++)
		buf_str(&b, "b");
	buf_str(&b, "s");
	put_zip("f.pt", b.data, NULL);
	buf_release(&b);
	expect("f.pt", "a/1 it nests deeper than 100 levels\n");
}
END_TEST

/* A tensor under 99 and 100 lists. */
START_TEST(what_nests_too_deeply_is_a_fault)
{
	for (int depth = 99; depth <= 100; depth++) {
		struct buf b = BUF_INIT(1 << 20), want = BUF_INIT(1 << 20);

		buf_str(&b, "}(<w><T><a>");
		for (int i = 1; i < depth; i++)
			buf_str(&b, "]");
		buf_str(&b, "<T>");
		for (int i = 1; i < depth; i++)
			buf_str(&b, "a");
		buf_str(&b, "u");
		put_zip("f.pt", b.data, NULL);
		for (int i = 0; depth < 100 && i < depth; i++)
			buf_str(&want, i ? ".0" : "a");
		buf_str(&want, depth < 100 ? "/1 float32 [4] 16 raw 00000000\n" : "");
		buf_str(&want, "w/1 float32 [4] 16 raw 00000000\n");
		for (int i = 0; depth > 99 && i < depth; i++)
			buf_str(&want, i ? ".0" : "a");
		buf_str(&want, depth < 100 ? "" : "/1 it nests deeper than 100 levels\n");
		expect("f.pt", want.data);
		buf_release(&b);
		buf_release(&want);
	}
}
END_TEST

/* There may be more components than bytes in the pickle. */
START_TEST(a_nested_tensor_may_have_many_names)
{
	static const char numbers[] =
		"I[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]";
	struct buf b = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	buf_printf(&b, "{'n': #1=" NESTED_CALL "t0+0(30), %s(30,1), %s(30,1), %s(30))", numbers,
		   numbers, numbers);
	for (int i = 0; i < 200; i++)
		buf_printf(&b, ", '%d': #1", i);
	buf_str(&b, "}");
	saved_put(dir_fd, "x.pt", b.data, 0);
	buf_release(&b);
	ck_assert_msg(!scan("x.pt", &c, &e), "%s", e.msg);
	(void)catalog_tensors(c, &n);
	ck_assert_uint_eq(n, 201 * 30);
	catalog_close(c);
}
END_TEST

static const struct {
	const char *pickle, *keys;
	size_t cut;
	int code;
	const char *msg;
} refused_streams[] = {
	{ "<T>", "]<0>a", 1, ERR_CORRUPT,
	  "read 'f.pt': the file has 230 bytes and ends inside storage 1 of 1" },
	{ "<T>", "]<0>a", 17, ERR_CORRUPT,
	  "read 'f.pt': the file has 214 bytes and ends inside storage 1 of 1" },
	{ "<T>", "]<0>a", 25, ERR_CORRUPT, "read 'f.pt': the file ends inside a pickle" },
	{ "<T>", "}", 0, ERR_CORRUPT, "read 'f.pt': no list of storages after the pickle" },
	{ "<T>", "](<0><0>e", 0, ERR_CORRUPT, "read 'f.pt': the list of storages has a key twice" },
	{ "<T>", "](<0><1>e", 0, ERR_CORRUPT,
	  "read 'f.pt': the list of storages has a key that no tensor has" },
	{ "<T>", "]<#0>a", 0, ERR_CORRUPT,
	  "read 'f.pt': the list of storages has something that is not a key" },
	{ "<T>", "]", 0, ERR_CORRUPT, "read 'f.pt': '': the file has no storage '0'" },
	{ "<Todd>", "]", 0, ERR_UNSUPPORTED, "read 'f.pt': storage class 'OddStorage'" },
	{ "<#1>Q", "]", 0, ERR_CORRUPT, "read 'f.pt': data.pkl: a tensor without a storage" },
	{ "](<T><Tint>e", "]<0>a", 0, ERR_CORRUPT,
	  "read 'f.pt': storage '0' has elements of 4 and of 8 bytes" },
};

START_LOOP_TEST(a_stream_that_contradicts_itself_is_refused, (int)ARRAY_LEN(refused_streams))
{
	put_legacy("f.pt", refused_streams[_i].pickle, refused_streams[_i].keys,
		   refused_streams[_i].cut);
	expect_error("f.pt", refused_streams[_i].code, refused_streams[_i].msg);
}
END_TEST

START_TEST(a_stream_of_another_version_is_refused)
{
	struct buf b = BUF_INIT(1 << 20);

	legacy_head(&b, "<#1002>");
	put_file(dir_fd, "f.pt", b.data, b.len);
	expect_error("f.pt", ERR_UNSUPPORTED, "read 'f.pt': its protocol version is not 1001");
	buf_release(&b);
}
END_TEST

/* ---- the tar files of torch's first versions ---- */

/* A header and its data. type 'x': an extended header. */
static void put_member(struct buf *b, const char *name, char type, const void *p, size_t n)
{
	static const char zeros[512];
	char h[512] = "";
	unsigned sum = 0;

	(void)snprintf(h, 100, "%s", name);
	(void)snprintf(h + 124, 12, "%011zo", n);
	memset(h + 148, ' ', 8);
	h[156] = type;
	memcpy(h + 257, "ustar", 6);
	for (size_t i = 0; i < sizeof(h); i++)
		sum += (uint8_t)h[i];
	(void)snprintf(h + 148, 8, "%06o", sum);
	buf_add(b, h, sizeof(h));
	buf_add(b, p, n);
	buf_add(b, zeros, (512 - n % 512) % 512);
}

static void put_numbers(struct buf *b, const int64_t *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		put_count(b, (uint64_t)v[i]);
}

/* Tensor 5 on storage 7, and tensor 6 on storage 8, which is elements 1 to 3 of storage 7. */
static const struct tar {
	const char *want, *error;
	const char *tensors, *tensor, *storages, *storage,
		*windows; /* pickles, instead of the right ones */
	int64_t view[3];  /* size, stride, offset */
	uint64_t count;	  /* of elements, instead of 4 */
	uint32_t n_dims;  /* instead of 1 */
	size_t cut;	  /* bytes that are missing at the end of the storages */
	const char *saved;
} tars[] = {
#define TAR_WANT \
	"a/1 float32 [2] 12 raw:strides=2 0000803f\nb/1 float32 [3] 12 raw 0000803f\nn/1 3\n"
	{ .want = TAR_WANT, .view = { 2, 2, 1 } },
	{ .want = "a/1 float32 [4] 16 raw 00000000\nb/1 a storage that is not a tensor's\n",
	  .view = { 4, 1, 0 },
	  .saved = "}(<a>ctorch.nn.parameter\nParameter\n<5>Q\x85R<b><7>Qu" },
	{ .want = "0/1 a part of it has no text, or is longer than 64 MiB\n",
	  .view = { 1, 1, 0 },
	  .saved = "]<9>Qa" },
	{ .error = "'a': its view reaches outside its storage of 16 bytes", .view = { 3, 2, 0 } },
	{ .error = "'a': its sizes, strides or offset are negative", .view = { 2, -1, 1 } },
	{ .error = "'a': its view reaches outside its storage of 16 bytes",
	  .view = { 2, INT64_MAX, 1 } },
	{ .error = "its storages end inside storage '7'", .count = 1 << 20 },
	{ .error = "its storages end inside storage '7'", .count = UINT64_MAX },
	{ .error = "the table of tensors is not as torch writes it", .n_dims = 65 },
	{ .error = "the table of tensors is not as torch writes it", .n_dims = 20 },
	{ .error = "the table of tensors is not as torch writes it", .n_dims = UINT32_MAX },
	{ .error = "the table of tensors is not as torch writes it", .tensors = "<#3>" },
	{ .error = "the table of tensors is not as torch writes it", .tensors = "<#-1>" },
	{ .error = "the table of tensors is not as torch writes it", .tensors = "N" },
	{ .error = "the table of tensors is not as torch writes it", .tensor = "(<#5><#7>t" },
	{ .error = "the table of tensors is not as torch writes it", .tensor = "]" },
	{ .error = "the table of tensors is not as torch writes it", .tensor = "(N<#7>Nt" },
	{ .error = "the file has two tensors '6'", .tensor = "(<#6><#7>Nt" },
	{ .error = "'a': the file has no storage '9'",
	  .tensor = "(<#5><#9>Nt",
	  .view = { 1, 1, 0 } },
	{ .want = "b/1 float32 [3] 12 raw 0000803f\na/1 a part of it has no text, or is longer "
		  "than 64 MiB\nn/1 3\n",
	  .tensor = "(<#5>NNt" },
	{ .error = "the table of storages is not as torch writes it", .storages = "<x>" },
	{ .error = "the table of storages is not as torch writes it", .storage = "(<#7><cpu>Nt" },
	{ .error = "the table of storages is not as torch writes it",
	  .storage = "(<#7><cpu>ctorch\nOddStorage\nt" },
	{ .error = "the table of storages is not as torch writes it", .windows = "}" },
	{ .error = "the table of storages is not as torch writes it", .windows = "]Na" },
	{ .error = "storage '8' is not part of its root", .windows = "](<#8><#7><#2><#3>ta" },
	{ .error = "storage '8' is not part of its root", .windows = "](<#8><#9><#0><#0>ta" },
	{ .error = "storage '7' is not part of its root", .windows = "](<#7><#7><#0><#1>ta" },
	{ .error = "storage '8' is not part of its root",
	  .windows = "](<#8><#7><#0><#9223372036854775807>ta" },
	{ .error = "the table of storages is not as torch writes it",
	  .windows = "](<#8><#7><#-1><#1>ta" },
	{ .error = "'b': the file has no storage '8'", .windows = "]", .view = { 2, 2, 1 } },
#define TABLE_OF(what) "the table of " what " is not as torch writes it"
	{ .error = TABLE_OF("storages"), .windows = "](<#8><#7><#1>ta" },
	{ .error = TABLE_OF("storages"), .windows = "](<#8><#7><x><#1>ta" },
	{ .error = TABLE_OF("storages"), .windows = "](<#8><#7><#1><x>ta" },
	{ .error = TABLE_OF("storages"), .windows = "](<#8><#7><#1><#-1>ta" },
	{ .error = TABLE_OF("storages"), .windows = "](<#8>N<#1><#1>ta" },
	{ .error = TABLE_OF("storages"), .windows = "](N<#7><#1><#1>ta" },
	{ .error = "storage '8' is not part of its root",
	  .windows = "](<#8><#7><#0><#9223372036854775807>ta" },
	{ .error = "storage '8' is not part of its root",
	  .windows = "](<#8><#7><#9223372036854775807><#1>ta" },
	{ .error = TABLE_OF("storages"), .storage = "(N<cpu>ctorch\nFloatStorage\nt" },
	{ .error = TABLE_OF("storages"), .storages = "<#-1>" },
	{ .error = TABLE_OF("storages"), .storages = "<#2>" },
	{ .error = TABLE_OF("tensors"), .tensor = "(<#5>]Nt" },
	{ .error = "the file ends inside a pickle", .cut = 1 },
};

static void put_tar(const struct tar *x, const char *extended)
{
	static const char sparse_name[] = "././@PaxHeader";
	const int64_t whole[] = { 3, 1, 0 };
	struct buf b = BUF_INIT(1 << 20), part = BUF_INIT(1 << 20);

	put_member(&b, sparse_name, 'x', "28 mtime=1480000000.2500000\n", 28);
	put_member(&b, "sys_info", '0', "N.", 2);
	put_pickle(&part, x->saved ? x->saved : "}(<a><5>Q<b><6>Q<n><#3>u");
	put_member(&b, "pickle", '0', part.data, part.len);
	part.len = 0;
	put_pickle(&part, x->tensors ? x->tensors : "<#2>");
	put_pickle(&part, x->tensor ? x->tensor : "(<#5><#7>ctorch\nFloatTensor\nt");
	put_count(&part, x->n_dims ? x->n_dims : 1);
	put_numbers(&part, x->view, 3);
	put_pickle(&part, "(<#6><#8>ctorch\nFloatTensor\nt");
	put_count(&part, 1);
	put_numbers(&part, whole, 3);
	put_member(&b, "tensors", '0', part.data, part.len);
	part.len = 0;
	put_pickle(&part, x->storages ? x->storages : "<#1>");
	put_pickle(&part, x->storage ? x->storage : "(<#7><cpu>ctorch\nFloatStorage\nt");
	put_count(&part, x->count ? x->count : 4);
	buf_add(&part, floats, sizeof(floats));
	put_pickle(&part, x->windows ? x->windows : "](<#8><#7><#1><#3>ta");
	if (extended)
		put_member(&b, sparse_name, 'x', extended, strlen(extended));
	put_member(&b, "storages", '0', part.data, part.len - x->cut);
	put_file(dir_fd, "f.pt", b.data, b.len);
	buf_release(&b);
	buf_release(&part);
}

START_LOOP_TEST(tar_files_are_read, (int)ARRAY_LEN(tars))
{
	char error[200];

	put_tar(&tars[_i], NULL);
	if (tars[_i].want) {
		expect("f.pt", tars[_i].want);
		return;
	}
	(void)snprintf(error, sizeof(error), "read 'f.pt': %s", tars[_i].error);
	expect_error("f.pt", ERR_CORRUPT, error);
}
END_TEST

START_TEST(an_extended_header_can_have_the_size)
{
	put_tar(&tars[0], "13 size=3000\n");
	expect_error("f.pt", ENOENT, "it is none"); /* longer than the file */
	put_tar(&tars[0], "11 size=70\n");
	expect_error("f.pt", ERR_CORRUPT, "read 'f.pt': the file ends inside a pickle");
	put_tar(&tars[0], "19 comment=size=70\n");
	expect("f.pt", TAR_WANT);
}
END_TEST

START_TEST(other_tar_files_are_left_to_others)
{
	struct buf b = BUF_INIT(1 << 20);

	put_member(&b, "pickle", '0', "N.", 2);
	put_member(&b, "tensors", '0', "N.", 2);
	put_file(dir_fd, "f.pt", b.data, b.len);
	expect_error("f.pt", ENOENT, "it is none");
	put_member(&b, "storages", '5', "", 0); /* a directory */
	put_file(dir_fd, "f.pt", b.data, b.len);
	expect_error("f.pt", ENOENT, "it is none");
	put_member(&b, "storages", '0', "N.", 2);
	b.data[148]++; /* the checksum */
	put_file(dir_fd, "f.pt", b.data, b.len);
	expect_error("f.pt", ENOENT, "it is none");
	b.data[148]--;
	put_file(dir_fd, "f.pt", b.data, b.len);
	expect_error("f.pt", ERR_CORRUPT,
		     "read 'f.pt': the table of storages is not as torch writes it");
	buf_release(&b);
}
END_TEST

/* torch 2.14 of a module with one Linear(2, 1): the members, and the beginning of data.pkl. */
/* packed: the member that is marked as compressed */
static void put_script(const char *packed)
{
	static const char pickle[] =
		"c__torch__\nNet\n)\x81}(<training>\x88<w><T><l>c__torch__.torch.nn\nLinear\n)\x81}"
		"("
		"<weight><T><bias>N<training>\x88ub<k>ctorch.jit._pickle\nbuild_intlist\n](<#1>"
		"e\x85R"
		"<tt>ctorch.jit._pickle\nbuild_tensorlist\n](<T>e\x85R"
		"<d>ctorch.jit._pickle\nrestore_type_tag\n}<a><T>s<Dict[str, Tensor]>\x86Rub";
	static const char *const members[] = { "data/0", "data.pkl", "code/__torch__.py",
					       "code/__torch__.py.debug_pkl", "constants.pkl" };
	struct archive a = { .style = { .prefix = "script" } };
	struct buf pkl = BUF_INIT(1 << 20);

	put_pickle(&pkl, pickle);
	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		if (i == 1)
			archive_add(&a, members[i], pkl.data, pkl.len);
		else
			archive_add(&a, members[i], floats, sizeof(floats));
	archive_end(&a);
	for (size_t at = a.directory; at < a.b.len - strlen(packed); at++)
		if (!memcmp(a.b.data + at, packed, strlen(packed)))
			a.b.data[at - ZIP_CENTRAL_SIZE + 10] = 8;
	put_file(dir_fd, "f.pt", a.b.data, a.b.len);
	archive_release(&a);
	buf_release(&pkl);
}

START_TEST(a_torchscript_program_has_its_tensors)
{
	put_script("script/code/"); /* as torch does */
	expect("f.pt", "d.a/1 float32 [4] 16 raw 00000000\n"
		       "l.weight/1 float32 [4] 16 raw 00000000\n"
		       "tt.0/2 float32 [4] 16 raw 00000000\n"
		       "w/1 float32 [4] 16 raw 00000000\n");
	put_script("script/data.pkl");
	expect_error("f.pt", ERR_UNSUPPORTED,
		     "read 'f.pt': zip member 'script/data.pkl' is compressed or encrypted");
	put_script("script/data/");
	expect_error("f.pt", ERR_UNSUPPORTED,
		     "read 'f.pt': zip member 'script/data/0' is compressed or encrypted");
}
END_TEST

/* torch.save(..., pickle_protocol=0, _use_new_zipfile_serialization=False) */
#define TEXT_HEAD "L119547037146038801333356L\n.I1001\n.(dp0\nVprotocol_version\np1\nI1001\ns."
#define TEXT_TENSOR(id) \
	"(dp0\nVa\np1\nctorch._utils\n_rebuild_tensor_v2\np2\n(P" id \
	"\nI1\n(I2\ntp3\n(I2\ntp4\nI00\n" \
	"ccollections\nOrderedDict\np5\n(tRp6\ntp7\nRp8\nsVn\np9\nF1.5\nsVl\n(" \
	"lp10\nL36893488147419103232L\n" \
	"ag1\nas."
#define TEXT_KEYS "(lp0\nV7\np1\na.\4\0\0\0\0\0\0\0"

static const struct {
	const char *tensor, *want; /* NULL: torch would not write it like this */
	size_t len;
} texts[] = {
#define TEXT(id, want) \
	{ \
		TEXT_TENSOR(id), want, sizeof(TEXT_TENSOR(id)) - 1 \
	}
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', 4, None)",
	     "a/1 float32 [2] 12 raw:strides=2 0000803f\nl/1 [36893488147419103232, \"a\"]\nn/1 "
	     "1.5\n"),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cuda:0', 4L)",
	     "a/1 float32 [2] 12 raw:strides=2 0000803f\nl/1 [36893488147419103232, \"a\"]\nn/1 "
	     "1.5\n"),
	TEXT("('storage', <class 'torch.HalfStorage'>, '7', 'cpu', 4, ('7', 0, 4))",
	     "a/1 float16 [2] 6 raw:strides=2 00000000\nl/1 [36893488147419103232, \"a\"]\nn/1 "
	     "1.5\n"),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', 4, ('7', 1, 3)", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', 4", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', 4, None) ", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', -4, None)", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', 9223372036854775808)", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', 99999999999999999999)", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7', 'cpu', )", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, 7, 'cpu', 4)", NULL),
	TEXT("('storage', 'torch.FloatStorage', '7', 'cpu', 4)", NULL),
	TEXT("('storage', <class 'torch.FloatStorage", NULL),
	TEXT("('storage', ", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, '7\0', 'cpu', 4)", NULL),
	TEXT("('storage', <class 'torch.FloatStorage'>, "
	     "'7777777777777777777777777777777777777777777777777777777777777777', 'cpu', 4)",
	     NULL),
#undef TEXT
};

START_LOOP_TEST(the_text_protocols_are_read, (int)ARRAY_LEN(texts))
{
	struct buf b = BUF_INIT(1 << 20);

	buf_str(&b, TEXT_HEAD);
	buf_add(&b, texts[_i].tensor, texts[_i].len);
	buf_add(&b, TEXT_KEYS, sizeof(TEXT_KEYS) - 1);
	buf_add(&b, floats, sizeof(floats));
	put_file(dir_fd, "f.pt", b.data, b.len);
	buf_release(&b);
	if (texts[_i].want)
		expect("f.pt", texts[_i].want);
	else
		expect_error("f.pt", ERR_CORRUPT,
			     "read 'f.pt': data.pkl: a storage is not written as torch writes it");
}
END_TEST

START_TEST(less_of_the_text_protocols_may_be_anything)
{
	for (size_t n = 0; n < 28; n++) {
		put_file(dir_fd, "f.pt", TEXT_HEAD, n);
		expect_error("f.pt", ENOENT, "it is none");
	}
	put_zip("f.pt", "(dp0\n<a>I7\ns", NULL);
	expect("f.pt", "a/1 7\n");
}
END_TEST

START_TEST(archives_that_are_not_whole_are_refused)
{
	struct archive a = { .style = { 0 } };
	size_t n;
	autofree uint8_t *bytes = NULL;

	put_zip("f.pt", "<T>", NULL);
	bytes = get_file(dir_fd, "f.pt", &n);
	put_file(dir_fd, "f.pt", bytes, n - 1);
	expect_error("f.pt", ERR_CORRUPT,
		     "'f.pt': zip: the archive has no end record in its last 22 bytes; it may have "
		     "been cut off");
	archive_add(&a, "data.pkl", "N.", 2);
	archive_add(&a, "data/0", "ab", 2);
	archive_add(&a, "data/0", "cd", 2);
	archive_end(&a);
	put_file(dir_fd, "f.pt", a.b.data, a.b.len);
	expect_error("f.pt", ERR_CORRUPT, "read 'f.pt': the archive has two storages '0'");
	archive_release(&a);
	a = (struct archive){ .style = { 0 } };
	archive_add(&a, "data.pk", "N.", 2);
	archive_end(&a);
	put_file(dir_fd, "f.pt", a.b.data, a.b.len);
	expect_error("f.pt", ENOENT, "it is none"); /* another program's archive */
	archive_release(&a);
	a = (struct archive){ .style = { 0 } };
	archive_add(&a, "data.pkl", "]", 1);
	archive_end(&a);
	put_file(dir_fd, "f.pt", a.b.data, a.b.len);
	expect_error("f.pt", ERR_CORRUPT, "read 'f.pt': the file ends inside a pickle");
	archive_release(&a);
}
END_TEST

START_TEST(what_is_something_else_is_left_to_others)
{
	put_file(dir_fd, "f", "", 0);
	expect_error("f", ENOENT, "it is none");
	put_file(dir_fd, "f", "\x80\2N.", 4); /* any pickle */
	expect_error("f", ENOENT, "it is none");
	expect_error(NULL, ENOENT, "it is none");
	expect_error("absent", ENOENT, "open 'absent': No such file or directory");
	put_file(dir_fd, "pytorch_model.bin", "abc", 3);
	expect_error(NULL, ENOENT, "it is none");
}
END_TEST

/* ---- directories ---- */

static void put_index(const char *text)
{
	put_file(dir_fd, "pytorch_model.bin.index.json", text, strlen(text));
}

START_TEST(a_directory_has_one_model_or_an_index_of_its_parts)
{
	put_zip("pytorch_model.bin", "}<w><T>s", NULL);
	expect(NULL, "w/1 float32 [4] 16 raw 00000000\n");
	put_zip("pytorch_model-2.bin", "}<b.w><Tbytes>s", NULL);
	put_zip("pytorch_model-10.bin", "}(<a><T><more><#1>u", NULL);
	put_index("{\"metadata\": {}, \"weight_map\": {\"a\": \"pytorch_model-10.bin\","
		  " \"b.w\": \"pytorch_model-2.bin\"}}");
	expect_error(
		NULL, ENOTUNIQ,
		"'pytorch_model.bin' and 'pytorch_model.bin.index.json', which does not name it, "
		"are two models: name 'pytorch_model.bin' instead of the directory, or remove one "
		"of them");
	expect("pytorch_model.bin", "w/1 float32 [4] 16 raw 00000000\n");
	ck_assert_int_eq(unlinkat(dir_fd, "pytorch_model.bin", 0), 0);
	expect(NULL, "a/1 float32 [4] 16 raw 00000000\nb.w/3 uint8 [6] 6 raw 61626364\nmore/4 1\n");
	/* Saved again in one file, by a library that leaves the index. */
	put_zip("pytorch_model.bin", "}<w><T>s", NULL);
	ck_assert_int_eq(unlinkat(dir_fd, "pytorch_model-2.bin", 0), 0);
	ck_assert_int_eq(unlinkat(dir_fd, "pytorch_model-10.bin", 0), 0);
	expect(NULL, "w/1 float32 [4] 16 raw 00000000\n");
	put_index("{\"weight_map\": {\"w\": \"pytorch_model.bin\"}}");
	expect(NULL, "w/1 float32 [4] 16 raw 00000000\n");
}
END_TEST

/* Tensors that are shown as what they are made of, or not at all, are there. */
START_TEST(what_the_index_names_need_not_be_dense)
{
	put_zip("m.bin",
		"}(<a><T><c>" SPARSE
		"<torch.sparse_coo>\x85R(<T><Tv3>(<#3><#5>t\x88t\x86R<s><Tsparse>u",
		NULL);
	put_index("{\"weight_map\": {\"a\": \"m.bin\", \"c\": \"m.bin\", \"s\": \"m.bin\"}}");
	expect(NULL, "a/1 float32 [4] 16 raw 00000000\n"
		     "c.indices/9 float32 [4] 16 raw 00000000\n"
		     "c.values/8 uint16 [2] 4 raw 63646566\n"
		     "c/1 {\"__class__\": \"torch.Tensor\", \"layout\": \"torch.sparse_coo\", "
		     "\"shape\": [3, 5], \"coalesced\": true}\n"
		     "s/1 a sparse tensor that is not written as torch writes it\n");
}
END_TEST

/* A tied weight may be in two files; that of the index counts. */
START_TEST(of_two_tensors_the_one_that_the_index_names_counts)
{
	static const char map[] = "{\"weight_map\": {\"a\": \"%s.bin\", \"x\": \"n.bin\"}}";
	char text[100];

	put_zip("m.bin", "}<a><Tv3>s", NULL);
	put_zip("n.bin", "}(<a><T><x><Tbytes>u", NULL);
	(void)snprintf(text, sizeof(text), map, "n");
	put_index(text);
	expect(NULL, "a/1 float32 [4] 16 raw 00000000\nx/1 uint8 [6] 6 raw 61626364\n");
	(void)snprintf(text, sizeof(text), map, "m");
	put_index(text);
	expect(NULL, "a/1 uint16 [2] 4 raw 63646566\nx/1 uint8 [6] 6 raw 61626364\n");
}
END_TEST

#define INDEX  "'pytorch_model.bin.index.json'"
#define NO_MAP "no weight_map that names a tensor"

#define FLOAT4(name, top) name "/" top " float32 [4] 16 raw 00000000\n"
#define DIFFERS(text)	  "index_differs/0 \"'pytorch_model.bin.index.json' " text "\"\n"

/* The files count, as in Hugging Face's libraries, if their index is wrong. */
START_TEST(an_index_that_is_wrong_is_followed_as_far_as_possible)
{
	static const struct {
		const char *map, *want;
	} rows[] = {
		{ "\"a\": \"m.bin\", \"y\": \"m.bin\", \"b\": \"m.bin\"",
		  FLOAT4("a", "1")
			  FLOAT4("y", "1") "b/1 the index places it in 'm.bin', which lacks "
					   "it\no/1 1\n" },
		/* An object is there, too. */
		{ "\"a\": \"m.bin\", \"y\": \"m.bin\", \"o\": \"m.bin\"",
		  FLOAT4("a", "1") FLOAT4("y", "1") "o/1 1\n" },
		{ "\"a\": \"m.bin\", \"y\": \"m.bin\", \"c\": \"gone.bin\"",
		  FLOAT4("a", "1") FLOAT4("y", "1") "c/1 a tensor of 'gone.bin', which is missing\n"
						    "o/1 1\n" },
		{ "\"y\": \"m.bin\"", FLOAT4("a", "1") FLOAT4("y", "1")
					      DIFFERS("does not name 'a' of 'm.bin'") "o/1 1\n" },
		{ "\"a\": \"m.bin\", \"y\": \"n.bin\"",
		  FLOAT4("a", "1") FLOAT4("x", "1") FLOAT4("y", "1")
			  DIFFERS("does not name 'x' of 'n.bin', and places 'y' of 'm.bin' in "
				  "another file") "o/1 1\n" },
		/* and n is missing */
		{ "\"a\": \"gone.bin\", \"o\": \"gone.bin\", \"y\": \"m.bin\"",
		  FLOAT4("a", "1") FLOAT4("y", "1") DIFFERS(
			  "places 'a' of 'm.bin' and 1 more tensor in another file") "o/1 "
										     "1\n" },
	};

	put_zip("m.bin", "}(<a><T><o><#1><y><T>u", NULL);
	put_zip("n.bin", "}(<a><T><x><T>u", NULL);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[300];

		(void)snprintf(text, sizeof(text), "{\"weight_map\": {%s}}", rows[i].map);
		put_index(text);
		expect(NULL, rows[i].want);
	}
}
END_TEST

/* What a tensor is made of is not looked for in the index. */
START_TEST(a_tensor_of_others_may_be_in_another_file)
{
	put_zip("m.bin",
		"}(<a><T><c>" SPARSE "<torch.sparse_coo>\x85R(<T><Tv3>(<#3><#5>t\x88t\x86Ru", NULL);
	put_zip("n.bin", "}<b><T>s", NULL);
	put_index("{\"weight_map\": {\"a\": \"m.bin\", \"c\": \"n.bin\", \"b\": \"n.bin\"}}");
	expect(NULL, FLOAT4("a", "1")
			     FLOAT4("b", "1") "c.indices/9 float32 [4] 16 raw 00000000\n"
					      "c.values/8 uint16 [2] 4 raw 63646566\n"
					      "c/1 {\"__class__\": \"torch.Tensor\", \"layout\": "
					      "\"torch.sparse_coo\", "
					      "\"shape\": [3, 5], \"coalesced\": true}\n" DIFFERS(
						      "places 'c' of 'm.bin' in another file"));
}
END_TEST

/* However many tensors are elsewhere, no file is read more than twice. */
START_TEST(an_index_that_is_wrong_everywhere_is_no_burden)
{
	struct buf index CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct buf state CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	size_t n, n_objects;

	buf_str(&state, "}(");
	buf_str(&index, "{\"weight_map\": {\"w\": \"n.bin\", \"x\": \"m.bin\"");
	for (unsigned i = 0; i < 5000; i++) {
		buf_printf(&state, "<%u><T>", i);
		buf_printf(&index, ", \"%u\": \"n.bin\", \"x%u\": \"%u.bin\"", i, i, i);
	}
	buf_str(&state, "u");
	buf_str(&index, "}}");
	REQUIRE(!state.err && !index.err);
	put_zip("m.bin", state.data, NULL);
	put_zip("n.bin", "}<w><T>s", NULL);
	put_index(index.data);
	ck_assert_msg(!scan(NULL, &c, &e), "%s", e.msg);
	(void)catalog_tensors(c, &n);
	(void)catalog_objects(c, &n_objects);
	ck_assert_uint_eq(n, 5001);
	ck_assert_uint_eq(n_objects, 5002); /* x, x0 and so on, and what differs */
	catalog_close(c);
}
END_TEST

START_TEST(what_the_index_says_must_make_sense)
{
	static const struct {
		const char *text;
		int code;
		const char *msg;
	} rows[] = {
		{ "{", ERR_CORRUPT,
		  "read " INDEX ": not JSON: string or '}' expected near end of file, in line 1" },
		{ "[]", ERR_CORRUPT, "read " INDEX ": " NO_MAP },
		{ "{\"weight_map\": {}}", ERR_CORRUPT, "read " INDEX ": " NO_MAP },
		{ "{\"weight_map\": {\"a\": 1}}", ERR_CORRUPT,
		  "read " INDEX ": weight_map: 'a': not a file name" },
		{ "{\"weight_map\": {\"a\": \"gone.bin\"}}", ENOENT,
		  "'gone.bin', which " INDEX " names, is missing" },
		{ "{\"weight_map\": {\"a\": \"gone.bin\", \"b\": \"lost.bin\"}}", ENOENT,
		  "'gone.bin', which " INDEX " names, is missing, and so are all others" },
		{ "{\"weight_map\": {\"x\": \"n.bin\", \"y\": \"m.bin\"}}", ERR_CORRUPT,
		  "two tensors are called 'a'" },
		{ "{\"weight_map\": {\"x\": \"n.bin\", \"y\": \"m.bin\", \"a\": \"gone.bin\"}}",
		  ERR_CORRUPT,
		  "'gone.bin' has no tensor 'a', which " INDEX " names, but several other files "
		  "have it: correct the index" },
		{ "{\"weight_map\": {\"a\": \"../m.bin\"}}", EINVAL, NULL },
	};

	put_zip("m.bin", "}(<a><T><o><#1><y><T>u", NULL);
	put_zip("n.bin", "}(<a><T><x><T>u", NULL);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };

		put_index(rows[i].text);
		if (!rows[i].msg) {
			ck_assert_int_lt(scan(NULL, &c, &e), 0);
			ck_assert_msg(strstr(e.msg, "../m.bin") != NULL, "%s", e.msg);
			continue;
		}
		expect_error(NULL, rows[i].code, rows[i].msg);
	}
}
END_TEST

START_TEST(parts_without_an_index_are_one_model)
{
	put_zip("pytorch_model-00002-of-00003.bin", "}<b><T>s", NULL);
	put_zip("pytorch_model-00001-of-00003.bin", "}<a><T>s", NULL);
	put_zip("other-00001-of-00003.bin", "}<x><T>s", NULL);
	put_zip("my-pytorch_model-00001-of-00003.bin", "}<x><T>s", NULL);
	expect_error(NULL, ENOENT,
		     "'pytorch_model-00003-of-00003.bin' is missing: the model is in 3 files; add "
		     "the file, or name one of the others instead of the directory to read that "
		     "alone");
	put_zip("pytorch_model-00003-of-00003.bin", "}<c><T>s", NULL);
	expect(NULL, FLOAT4("a", "1") FLOAT4("b", "1") FLOAT4("c", "1"));
	put_zip("pytorch_model-00003-of-00003.bin", "}<a><T>s", NULL);
	expect_error(NULL, ERR_CORRUPT, "two tensors are called 'a'");
	put_file(dir_fd, "pytorch_model-00003-of-00003.bin", "", 0);
	expect_error(NULL, ERR_CORRUPT,
		     "read 'pytorch_model-00003-of-00003.bin': it is empty; save or download it "
		     "again");
	put_zip("pytorch_model-00001-of-00001.bin", "}<a><T>s", NULL);
	expect_error(
		NULL, ENOTUNIQ,
		"'pytorch_model-00001-of-00001.bin' and 'pytorch_model-00001-of-00003.bin' are "
		"of two saves: move the files of one of them out of the directory");
}
END_TEST

START_TEST(a_pointer_of_git_lfs_is_said_to_be_one)
{
	static const char pointer[] =
		"version https://git-lfs.github.com/spec/v1\n"
		"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
		"size 12345\n";
	static const char *const names[] = { "f.pt", "pytorch_model.bin", "m.bin",
					     "pytorch_model.bin.index.json" };

	put_index("{\"weight_map\": {\"a\": \"m.bin\"}}");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char want[200];

		if (i == 1)
			ck_assert_int_eq(unlinkat(dir_fd, "pytorch_model.bin.index.json", 0), 0);
		if (i == 2) {
			ck_assert_int_eq(unlinkat(dir_fd, names[1], 0), 0);
			put_index("{\"weight_map\": {\"a\": \"m.bin\"}}");
		}
		put_file(dir_fd, names[i], pointer, sizeof(pointer) - 1);
		(void)snprintf(want, sizeof(want),
			       "open '%s': it is a Git LFS pointer; the file itself has not "
			       "been fetched: run 'git lfs pull'",
			       names[i]);
		expect_error(i ? NULL : names[i], EREMOTE, want);
	}
}
END_TEST

/* ---- values beside a name that the checkpoint already has ---- */

static void put_steps(struct buf *fqn, uint8_t *path, size_t n)
{
	size_t at = catalog_path_put_head(path, n, false);

	for (size_t i = 0; i < n; i++)
		buf_str(fqn, i ? ".k" : "k");
	for (size_t i = 0; i + 1 < n; i++)
		at += catalog_path_put_step(path + at, 1, false);
}

static uint32_t steps_beside(const struct blob *file, const char *fqn, const uint8_t *path)
{
	struct torchsave t = { 0 };
	struct ckpt_err e = { 0 };
	struct catalog_writer *w;
	struct catalog *c = NULL;
	const struct catalog_object *o;
	uint32_t steps;
	size_t n;

	ck_assert_msg(!torchsave_open(&t, file, &e), "%s", e.msg);
	REQUIRE(!catalog_writer_new(NULL, "dcp", "/", &w, &e));
	ck_assert_msg(!torchsave_report_quantiser(&t, "f", 0, fqn, strlen(fqn), path, w, &e), "%s",
		      e.msg);
	ck_assert_msg(!catalog_writer_finish(w, &c, &e), "%s", e.msg);
	o = catalog_objects(c, &n);
	ck_assert_uint_eq(n, 2);
	ck_assert_int_eq(strncmp(o[0].fqn, fqn, strlen(fqn)), 0);
	ck_assert_str_eq(o[0].fqn + strlen(fqn), ".scale");
	steps = catalog_path_steps(o[0].path);
	catalog_writer_free(w);
	catalog_close(c);
	torchsave_release(&t);
	return steps;
}

/* Its path is the tensor's, with a longer last key. A path that is unknown, or too deep to be kept,
 * stays unknown. */
START_TEST(a_value_beside_a_name_has_its_place)
{
	struct mem file;
	struct blob blob;
	uint8_t path[200];
	size_t size;
	autofree uint8_t *bytes = NULL;

	put_zip("f", QUANTISED "(ctorch\nper_tensor_affine\nG?\xe0      <#10>t\x89NtR", NULL);
	bytes = get_file(dir_fd, "f", &size);
	mem_init(&file, bytes, size);
	blob = mem_blob(&file, true);
	ck_assert_uint_eq(steps_beside(&blob, "a.b", catalog_path_unknown), 0);
	ck_assert_uint_eq(steps_beside(&blob, "a.b", catalog_path_flat), 1);
	for (size_t n = 1; n <= 102; n++) {
		struct buf fqn = BUF_INIT(1000);

		put_steps(&fqn, path, n);
		ck_assert_uint_eq(steps_beside(&blob, fqn.data, path), n <= 100 ? n : 0);
		buf_release(&fqn);
	}
	mem_release(&file);
}
END_TEST

/* ---- faults ---- */

START_TEST(without_memory_or_a_disk_there_is_a_clean_error)
{
	put_zip("pytorch_model-1.bin", "}(<a><T><b>}<c><Tslice>s<d><#1>u", "little");
	put_legacy("pytorch_model-2.bin", "}(<e><T><f><Tv3>u", "](<0><1>e", 0);
	put_index("{\"weight_map\": {\"a\": \"pytorch_model-1.bin\", \"e\": "
		  "\"pytorch_model-2.bin\", \"b.c\": \"pytorch_model-2.bin\", \"x\": "
		  "\"pytorch_model-3.bin\"}}");
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_or_a_disk_all_forms_are_clean_errors)
{
	saved_put(dir_fd, "pytorch_model.bin",
		  "{'sparse': " SPARSE_CALL COO ", (I[0,1](1,2), t0+0(2), (3,))),"
		  " 'q': " QINT8 "(torch.per_channel_affine, t0+4(2), I[0,1](2), 0), F, N),"
		  " 'sub': " FROM_TYPE WRAPPER_FN
		  ", torch.T.X, (torch.T.X, torch.float32, (2,)), {'a': t0+0(2), 'b': 5}),"
		  " 'nest': " NESTED_CALL "t0+0(3), I[2,1](2,1), I[1,1](2,1), I[0,2](2)),"
		  " 'jag': " JAGGED_CALL "{'values': t0+0(3), 'offsets': I[0,1,3](3)}),"
		  " 'te': " PARAMETER FLOAT8 "t0+0(2), torch.float8_e4m3fn, t0+2(1)), T, N),"
		  " 'm': m.Net()!{'_parameters': {'w': t0+0(2), 'w': t0+1(2)}, '_buffers': {'b': "
		  "t0+3(1)},"
		  " '_modules': {}, '_non_persistent_buffers_set': builtins.set(['b'])},"
		  " (1, 'x'): 2, (1, 'x'): 3, 1.5: [1, {2: t0+0(1)}], 'o': {'p': 'text'},"
		  " 'd': " DATA ", 'again': #1}",
		  0);
	scan_failing(dir_fd);
	REQUIRE(!unlinkat(dir_fd, "pytorch_model.bin", 0));
	put_tar(&tars[0], NULL);
	REQUIRE(!renameat(dir_fd, "f.pt", dir_fd, "pytorch_model.bin"));
	scan_failing(dir_fd);
}
END_TEST

SUITE(torchsave, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
