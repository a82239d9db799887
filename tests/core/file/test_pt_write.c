/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "file/pt_write.h"
#include "parse/pickle.h"
#include "parse/zip.h"
#include "pickle_util.h"
#include "suites.h"
#include "vfile_util.h"

#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIMS(...) ((const uint64_t[]){ __VA_ARGS__ })
#define GIB	  ((uint64_t)1 << 30)

/* ---- reading ---- */

struct found {
	char name[64];
	struct zip_member m;
	uint64_t data;
};

struct listing {
	struct blob b;
	struct found *v; /* in the directory's order */
	size_t n;
};

static int note_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct listing *l = arg;
	struct found *f;

	if (!(l->n & (l->n - 1)))
		l->v = realloc(l->v, (l->n ? l->n * 2 : 1) * sizeof(*l->v));
	REQUIRE(l->v && m->name_len < sizeof(f->name));
	f = &l->v[l->n++];
	f->m = *m;
	memcpy(f->name, m->name, m->name_len);
	f->name[m->name_len] = 0;
	return zip_member_data(&l->b, m, &f->data, e);
}

static struct listing list(const struct vfile *f)
{
	struct listing l = { .b = vfile_blob(f) };
	struct ckpt_err e = { 0 };

	ck_assert_msg(!zip_each(&l.b, note_member, &l, &e), "%s", e.msg);
	return l;
}

/* Checks which record is which: they come in the order of the file. */
static void check_names(const struct listing *l, size_t n)
{
	char want[64];

	REQUIRE(l->n == n + 3);
	REQUIRE(!strcmp(l->v[0].name, "model/data.pkl"));
	REQUIRE(!strcmp(l->v[1].name, "model/byteorder"));
	REQUIRE(!strcmp(l->v[n + 2].name, "model/version"));
	for (size_t i = 0; i < n; i++) {
		(void)snprintf(want, sizeof(want), "model/data/%zu", i);
		REQUIRE(!strcmp(l->v[i + 2].name, want));
	}
}

static void read_all(const struct listing *l, const struct found *f, uint8_t *ret)
{
	REQUIRE(l->b.read(l->b.arg, f->data, ret, f->m.size, NULL) == (int64_t)f->m.size);
}

static struct pickle *read_pickle(const struct listing *l)
{
	struct pickle_opts opts = { .max_bytes = 1 << 28 };
	size_t n = l->v[0].m.size;
	uint8_t *p = malloc(n + 1);
	struct pickle *pk;
	struct ckpt_err e = { 0 };

	REQUIRE(p);
	read_all(l, &l->v[0], p);
	ck_assert_msg(!load_bytes(p, n, 0, &opts, &pk, &e), "%s", e.msg);
	REQUIRE(pickle_end(pk) == n);
	free(p);
	return pk;
}

/* ---- tests ---- */

START_TEST(the_pickle_is_torchs)
{
	const struct tensor_info m[] = {
		member_of("a.weight", CKPT_DTYPE_BF16, 2, DIMS(300, 70000), 1),
		member_of("fp8", CKPT_DTYPE_F8_E4M3FN, 3, DIMS(2, 3, 4), 2),
		member_of("\xc3\xa9", CKPT_DTYPE_F64, 0, NULL, 3),
		member_of("none", CKPT_DTYPE_I64, 3, DIMS(2, 0, 4), 4),
		member_of("wide", CKPT_DTYPE_U32, 1, DIMS(5), 5),
	};
	static const char want[] =
		"{'a.weight': torch._utils._rebuild_tensor_v2("
		"&('storage', torch.BFloat16Storage, '0', 'cpu', 21000000), 0, (300, 70000), "
		"(70000, 1), False, {}), "
		"'fp8': torch._utils._rebuild_tensor_v3("
		"&('storage', torch.storage.UntypedStorage, '1', 'cpu', 24), 0, (2, 3, 4), "
		"(12, 4, 1), False, {}, torch.float8_e4m3fn), "
		"'\\xc3\\xa9': torch._utils._rebuild_tensor_v2("
		"&('storage', torch.DoubleStorage, '2', 'cpu', 1), 0, (), (), False, {}), "
		"'none': torch._utils._rebuild_tensor_v2("
		"&('storage', torch.LongStorage, '3', 'cpu', 0), 0, (2, 0, 4), (4, 4, 1), False, "
		"{}), "
		"'wide': torch._utils._rebuild_tensor_v3("
		"&('storage', torch.storage.UntypedStorage, '4', 'cpu', 20), 0, (5,), (1,), False, "
		"{}, "
		"torch.uint32)}";
	struct buf got = BUF_INIT(1 << 20);
	struct vfile f;
	struct ckpt_err e = { 0 };
	struct listing l;
	struct pickle *pk;
	struct pk_value root;

	ck_assert_int_eq(pt_layout(m, ARRAY_LEN(m), &f, &e), 0);
	ck_assert_int_eq(e.code, 0);
	l = list(&f);
	pk = read_pickle(&l);
	root = pickle_root(pk);
	print_value(&got, &root);
	ck_assert_str_eq(got.data, want);
	buf_release(&got);
	pickle_free(pk);
	free(l.v);
	vfile_release(&f);
}
END_TEST

/* Dimensions, strides and count as data.pkl has them. */
static void check_pickled(const struct pk_value *v, const struct tensor_info *m, size_t key)
{
	const struct dtype_info *d = dtype_info(m->dtype);
	const struct pk_value *args = &v->n->v[PK_ARGS], *id;
	uint64_t size[64], stride[64], step = 1;
	char digits[24];
	size_t n;

	REQUIRE(v->type == PK_OBJECT && pk_len(args) == (d->storage ? 6 : 7));
	id = &args->n->v[0];
	REQUIRE(id->type == PK_PERSID && pk_len(&id->n->v[0]) == 5);
	id = id->n->v[0].n->v;
	(void)snprintf(digits, sizeof(digits), "%zu", key);
	REQUIRE(!strcmp(id[2].s->data, digits));
	REQUIRE((uint64_t)id[4].i == m->bytes / (d->storage ? d->size : 1));
	REQUIRE(d->storage ? pk_is(&id[1], "torch", d->storage)
			   : pk_is(&id[1], "torch.storage", "UntypedStorage"));
	REQUIRE(d->storage || pk_is(&args->n->v[6], "torch", d->name));
	REQUIRE(pk_numbers(&args->n->v[2], size, 64, &n) && n == m->n_dims);
	REQUIRE(pk_numbers(&args->n->v[3], stride, 64, &n) && n == m->n_dims);
	for (size_t k = n; k-- > 0;) {
		REQUIRE(size[k] == m->shape[k] && stride[k] == step);
		step *= size[k] ? size[k] : 1;
	}
}

static void check_data(const struct listing *l, const struct found *f, const struct tensor_info *m)
{
	uint8_t *data = malloc(m->bytes + 1);

	REQUIRE(data && f->m.size == m->bytes && f->m.crc == 0 && f->data % 64 == 0);
	read_all(l, f, data);
	for (uint64_t i = 0; i < m->bytes; i++)
		REQUIRE(data[i] == fake_byte(m->id, i));
	free(data);
}

/* The header before the data agrees with the directory, and each header directly follows the data
 * of the record before it. */
static void check_local(const struct listing *l, const struct found *f)
{
	uint8_t head[ZIP_LOCAL_SIZE + 64 + 4 + 64];
	int64_t n = l->b.read(l->b.arg, f->m.header, head, sizeof(head), NULL);
	struct zip_local z;
	struct ckpt_err e = { 0 };

	REQUIRE(n > 0 && !zip_read_local(head, (size_t)n, &z, &e));
	REQUIRE(z.name_len == strlen(f->name) && !memcmp(z.name, f->name, z.name_len));
	REQUIRE(load_le16(head + 12) == (1 << 5 | 1)); /* 1 January 1980 */
	REQUIRE(!z.streamed && z.size == f->m.size && load_le32(head + 14) == f->m.crc);
	REQUIRE(f->m.header + z.data == f->data);
	REQUIRE(f == l->v || f->m.header == f[-1].data + f[-1].m.size);
}

static void check_small(const struct listing *l, const struct found *f, const char *want)
{
	uint8_t *p = malloc(f->m.size + 1);

	REQUIRE(p && f->data % 64 == 0);
	read_all(l, f, p);
	REQUIRE(f->m.crc == libdeflate_crc32(0, p, f->m.size));
	REQUIRE(!want || (f->m.size == strlen(want) && !memcmp(p, want, f->m.size)));
	free(p);
}

START_TEST(whatever_goes_in_comes_out)
{
	struct rng r = rng_new();

	for (int round = 0; round < 100; round++) {
		struct members l = members_random(&r, rng_below(&r, 60), pt_holds);
		struct ckpt_err e = { 0 };
		struct listing z;
		struct pickle *pk;
		struct pk_value root;
		struct vfile f;

		REQUIRE(!pt_layout(l.m, l.n, &f, &e));
		z = list(&f);
		check_names(&z, l.n);
		check_small(&z, &z.v[0], NULL);
		check_small(&z, &z.v[1], "little");
		check_small(&z, &z.v[l.n + 2], "3\n");
		pk = read_pickle(&z);
		root = pickle_root(pk);
		REQUIRE(root.type == PK_DICT && pk_len(&root) == l.n);
		for (size_t i = 0; i < z.n; i++)
			check_local(&z, &z.v[i]);
		for (size_t i = 0; i < l.n; i++) {
			const struct pk_value *v = pk_get_n(&root, l.m[i].fqn, l.m[i].fqn_len);

			REQUIRE(v && v == &root.n->v[2 * i + 1]);
			check_pickled(v, &l.m[i], i);
			check_data(&z, &z.v[i + 2], &l.m[i]);
		}
		pickle_free(pk);
		free(z.v);
		vfile_release(&f);
		members_free(&l);
	}
}
END_TEST

/* The directory entry of member i, found again in the file's literals. */
static const uint8_t *central(const struct vfile *f, const char *name)
{
	const char *p = f->text.data, *end = p + f->text.len;

	for (; end - p > ZIP_CENTRAL_SIZE; p++)
		if (load_le32(p) == ZIP_SIG_CENTRAL &&
		    !memcmp(p + ZIP_CENTRAL_SIZE, name, strlen(name)))
			return (const uint8_t *)p;
	return NULL;
}

/* The last 22 bytes, for old readers: right as far as their numbers reach. */
static void check_end(const struct vfile *f, const struct listing *l)
{
	const struct found *last = &l->v[l->n - 1];
	const char *end = f->text.data + f->text.len - ZIP_END_SIZE;
	uint64_t directory = last->data + last->m.size;

	ck_assert_uint_eq(load_le32(end), ZIP_SIG_END);
	ck_assert_uint_eq(load_le16(end + 8), min_u64(l->n, UINT16_MAX));
	ck_assert_uint_eq(load_le16(end + 10), min_u64(l->n, UINT16_MAX));
	ck_assert_uint_eq(load_le32(end + 12),
			  f->size - directory - ZIP_END64_SIZE - ZIP_LOCATOR64_SIZE - ZIP_END_SIZE);
	ck_assert_uint_eq(load_le32(end + 16), min_u64(directory, UINT32_MAX));
}

START_TEST(sizes_and_offsets_beyond_32_bits_are_in_zip64_fields)
{
	static const struct {
		uint64_t size;
		size_t local, central; /* bytes of the zip64 fields */
	} want[] = {
		{ 3 * GIB, 0, 0 },     { 0xfffffffe - 3 * GIB, 0, 0 }, { 5 * GIB, 20, 28 },
		{ 0xfffffffe, 0, 12 }, { 0xffffffff, 20, 28 },	       { 7, 0, 12 },
		{ 0, 0, 12 },
	};
	struct tensor_info m[ARRAY_LEN(want)];
	uint64_t shape[ARRAY_LEN(want)];
	struct vfile f;
	struct ckpt_err e = { 0 };
	struct listing l;

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		shape[i] = want[i].size;
		m[i] = member_of("t", CKPT_DTYPE_U8, 1, &shape[i], i);
	}
	ck_assert_int_eq(pt_layout(m, ARRAY_LEN(m), &f, &e), 0);
	l = list(&f);
	check_names(&l, ARRAY_LEN(m));
	check_end(&f, &l);
	for (size_t i = 0; i < ARRAY_LEN(m); i++) {
		const struct found *t = &l.v[i + 2];
		const uint8_t *c = central(&f, t->name);
		uint8_t head[ZIP_LOCAL_SIZE + 64];
		const uint8_t *extra = head + ZIP_LOCAL_SIZE + strlen(t->name);

		ck_assert_uint_eq(t->m.size, want[i].size);
		ck_assert_uint_eq(t->data % 64, 0);
		ck_assert_uint_eq(t->m.header, t[-1].data + t[-1].m.size);
		ck_assert_ptr_nonnull(c);
		ck_assert_uint_eq(load_le16(c + 30), want[i].central);
		(void)l.b.read(l.b.arg, t->m.header, head, sizeof(head), NULL);
		ck_assert_uint_eq(load_le16(head + 28),
				  t->data - t->m.header - ZIP_LOCAL_SIZE - strlen(t->name));
		ck_assert_uint_ge(load_le16(head + 28), want[i].local + 4);
		ck_assert_uint_lt(load_le16(head + 28), want[i].local + 4 + 64);
		ck_assert_int_eq(load_le16(extra), want[i].local ? ZIP_TAG_ZIP64 : 'F' | 'B' << 8);
		ck_assert_uint_eq(load_le32(head + 18), min_u64(want[i].size, UINT32_MAX));
		ck_assert_uint_eq(load_le32(head + 22), min_u64(want[i].size, UINT32_MAX));
		if (want[i].local) {
			ck_assert_uint_eq(load_le64(extra + 4), want[i].size);
			ck_assert_uint_eq(load_le64(extra + 12), want[i].size);
		}
	}
	free(l.v);
	vfile_release(&f);
}
END_TEST

START_TEST(offsets_around_32_bits_are_where_they_are)
{
	/* The second tensor's header stands at every offset from 40 below to 40 above 2^32. */
	uint64_t base, shape[1] = { 2 * GIB };
	struct tensor_info m[2] = { member_of("a", CKPT_DTYPE_U8, 1, shape, 1),
				    member_of("b", CKPT_DTYPE_U8, 1, DIMS(9), 2) };
	struct vfile f;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(pt_layout(m, 2, &f, &e), 0);
	base = f.seg[1].off;
	vfile_release(&f);
	for (uint64_t at = ((uint64_t)1 << 32) - 40; at < ((uint64_t)1 << 32) + 40; at++) {
		struct listing l;

		shape[0] = at - base;
		m[0] = member_of("a", CKPT_DTYPE_U8, 1, shape, 1);
		ck_assert_int_eq(pt_layout(m, 2, &f, &e), 0);
		l = list(&f);
		ck_assert_uint_eq(l.v[2].data, base);
		ck_assert_uint_eq(l.v[3].m.header, at);
		ck_assert_uint_eq(load_le16(central(&f, l.v[3].name) + 30),
				  at >= UINT32_MAX ? 12 : 0);
		check_data(&l, &l.v[3], &m[1]);
		free(l.v);
		vfile_release(&f);
	}
}
END_TEST

START_LONG_TEST(archives_may_have_more_than_65535_records)
{
	enum { N = 70000 };
	static const uint64_t shape[] = { 3 };
	struct tensor_info *m = calloc(N, sizeof(*m));
	char(*names)[16] = calloc(N, sizeof(*names));
	struct vfile f;
	struct ckpt_err e = { 0 };
	struct listing l;
	struct pickle *pk;
	struct pk_value root;

	ck_assert(m && names);
	for (size_t i = 0; i < N; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "t%zu", i);
		m[i] = member_of(names[i], CKPT_DTYPE_BF16, 1, shape, i);
	}
	ck_assert_int_eq(pt_layout(m, N, &f, &e), 0);
	l = list(&f);
	check_names(&l, N);
	check_end(&f, &l);
	for (size_t i = 0; i < N; i++)
		check_data(&l, &l.v[i + 2], &m[i]);
	pk = read_pickle(&l);
	root = pickle_root(pk);
	ck_assert_uint_eq(pk_len(&root), N);
	check_pickled(&root.n->v[2 * (N - 1) + 1], &m[N - 1], N - 1);
	pickle_free(pk);
	free(l.v);
	free(m);
	free(names);
	vfile_release(&f);
}
END_TEST

START_TEST(numbers_of_every_length_are_pickled)
{
	for (unsigned i = 0; i < 63 * 3; i++) {
		uint64_t shape[2] = { ((uint64_t)1 << i / 3) + i % 3 - 1, 0 };
		struct tensor_info m = member_of("t", CKPT_DTYPE_U8, 2, shape, 1);
		struct vfile f;
		struct ckpt_err e = { 0 };
		struct listing l;
		struct pickle *pk;
		struct pk_value root;

		REQUIRE(!pt_layout(&m, 1, &f, &e));
		l = list(&f);
		pk = read_pickle(&l);
		root = pickle_root(pk);
		check_pickled(&root.n->v[1], &m, 0);
		pickle_free(pk);
		free(l.v);
		vfile_release(&f);
	}
}
END_TEST

START_TEST(an_empty_tensor_may_have_any_other_sizes)
{
	const struct tensor_info m =
		member_of("t", CKPT_DTYPE_F32, 4, DIMS(0, INT64_MAX, INT64_MAX, INT64_MAX), 1);
	struct vfile f;
	struct ckpt_err e = { 0 };
	struct listing l;
	struct pickle *pk;
	struct pk_value root;
	uint64_t stride[4];
	size_t n;

	ck_assert_int_eq(pt_layout(&m, 1, &f, &e), 0);
	l = list(&f);
	pk = read_pickle(&l);
	root = pickle_root(pk);
	ck_assert(pk_numbers(&root.n->v[1].n->v[PK_ARGS].n->v[3], stride, 4, &n));
	ck_assert_uint_eq(stride[0], INT64_MAX);
	ck_assert_uint_eq(stride[1], INT64_MAX);
	ck_assert_uint_eq(stride[2], INT64_MAX);
	ck_assert_uint_eq(stride[3], 1);
	pickle_free(pk);
	free(l.v);
	vfile_release(&f);
}
END_TEST

START_TEST(every_dtype_but_the_quantised_and_those_torch_lacks_is_held)
{
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE; t < CKPT_DTYPE_COUNT; t++) {
		struct tensor_info m = member_of("t", t, 1, DIMS(6), 1);
		struct vfile f = VFILE_INIT;
		struct ckpt_err e = { 0 };
		bool quantised = !strncmp(dtype_info(t)->name, "q", 1);
		bool jax = t >= CKPT_DTYPE_F8_E3M4;

		ck_assert_int_eq(pt_holds(t), t != CKPT_DTYPE_NONE && !quantised && !jax);
		ck_assert_int_eq(pt_layout(&m, 1, &f, &e), pt_holds(t) ? 0 : -ENOTSUP);
		vfile_release(&f);
	}
	ck_assert(!pt_holds(CKPT_DTYPE_QU8) && !pt_holds(CKPT_DTYPE_COUNT));
}
END_TEST

START_LOOP_TEST(what_cannot_be_held_is_named, 5)
{
	static const struct {
		const char *name;
		enum ckpt_dtype dtype;
		const char *msg; /* NULL: it can */
	} names[] = {
		{ "q", CKPT_DTYPE_QU8, "'q': a .pt file cannot hold quint8" },
		{ "a\xff", CKPT_DTYPE_F32,
		  "'a%FF': torch.load requires names in UTF-8, but this name is not in UTF-8" },
		{ "\xc3", CKPT_DTYPE_F32,
		  "'%C3': torch.load requires names in UTF-8, but this name is not in UTF-8" },
		/* lone surrogates: Python's own */
		{ "a\xed\xa0\x80", CKPT_DTYPE_F32, NULL },
		{ "", CKPT_DTYPE_F32, NULL },
	};
	const struct tensor_info m[] = { member_of("fine", CKPT_DTYPE_F32, 0, NULL, 1),
					 member_of(names[_i].name, names[_i].dtype, 0, NULL, 1) };
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };
	int rc = names[_i].msg ? -ENOTSUP : 0;

	ck_assert_int_eq(pt_check(&m[1], &e), rc);
	ck_assert_str_eq(e.msg, names[_i].msg ? names[_i].msg : "");
	e = (struct ckpt_err){ 0 };
	ck_assert_int_eq(pt_layout(m, 2, &f, &e), rc);
	ck_assert_int_eq(f.n != 0, !rc);
	vfile_release(&f);
}
END_TEST

START_TEST(more_bytes_than_a_file_has_are_refused)
{
	struct tensor_info m[2] = { member_of("a", CKPT_DTYPE_U8, 0, NULL, 1),
				    member_of("b", CKPT_DTYPE_U8, 0, NULL, 2) };
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	m[0].bytes = (uint64_t)INT64_MAX - 700;
	ck_assert_int_eq(pt_layout(m, 2, &f, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "the file would be too large");
	ck_assert_uint_eq(f.n, 0);
}
END_TEST

START_TEST(lack_of_memory_is_a_clean_error)
{
	layout_without_memory(pt_layout, pt_holds, 5);
}
END_TEST

SUITE(pt_write, .seconds = 60)
