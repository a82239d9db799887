/* SPDX-License-Identifier: Apache-2.0 */
/* Items that we write, compared byte by byte with those that torch wrote. */
#include "archive_util.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "format/torch_tensor.h"
#include "parse/zip.h"
#include "pickle_util.h"
#include "store/torch_item.h"
#include "suites.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_data(const char *name)
{
	const char *s = getenv("TEST_DATA");
	char path[4096];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", s && *s ? s : "tests/data", name);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s", path);
	return fd;
}

static struct pickle *load(const void *p, size_t n)
{
	struct pickle_opts opts = { .max_bytes = 1 << 28 };
	struct pickle *ret;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(p, n, 0, &opts, &ret, &e), "%s", e.msg);
	return ret;
}

/* ---- torch's own ---- */

/* Writes a row-major tensor's item again; data: its bytes. */
static void rewrite(struct buf *ret, enum ckpt_dtype dtype, size_t n_dims, const uint64_t *shape,
		    const void *data)
{
	struct torch_item t;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!torch_item_begin(&t, dtype, n_dims, shape, ret, &e), "%s", e.msg);
	buf_add(ret, data, t.data_len);
	ck_assert_msg(!torch_item_end(&t, t.data_len ? libdeflate_crc32(0, data, t.data_len) : 0,
				      ret, &e),
		      "%s", e.msg);
	ck_assert_uint_eq(t.at, ret->len);
}

/* Is the view all of its storage, row by row, as the planner's chunks are? */
static bool is_plain(const struct torch_tensor *t)
{
	uint64_t step = 1;

	for (size_t d = t->n_dims; d-- > 0;) {
		if (t->stride[d] != step)
			return false;
		step *= t->size[d] ? t->size[d] : 1;
	}
	return !t->offset && !t->conj && !t->neg;
}

struct place {
	uint64_t pickle, pickle_len, data;
	const struct blob *b;
};

static int find(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct place *p = arg;

	if (m->name_len == 16 && !memcmp(m->name, "archive/data.pkl", 16)) {
		p->pickle_len = m->size;
		return zip_member_data(p->b, m, &p->pickle, e);
	}
	if (m->name_len == 14 && !memcmp(m->name, "archive/data/0", 14))
		return zip_member_data(p->b, m, &p->data, e);
	return 0;
}

/* Returns 1 for an object, 2 for a tensor, 0 for an item of another form. */
static int check_item(const uint8_t *item, size_t n)
{
	struct buf ours = BUF_INIT(1 << 26);
	struct mem m;
	struct blob b;
	struct place p = { .b = &b };
	struct torch_tensor t = { 0 };
	struct ckpt_err e = { 0 };
	struct pickle *k;
	struct pk_value v;
	const void *pkl;
	size_t pkl_len;
	int ret = 1;

	mem_init(&m, item, n);
	b = mem_blob(&m, true);
	ck_assert_msg(!zip_each(&b, find, &p, &e), "%s", e.msg);
	if (!p.data) {
		ck_assert_int_eq(torch_item_unwrap(item, n, &pkl, &pkl_len, &e), 1);
		ck_assert_int_eq(torch_item_is(item, n, &e), 1);
		ck_assert_uint_eq((uint64_t)((const uint8_t *)pkl - item), p.pickle);
		ck_assert_uint_eq(pkl_len, p.pickle_len);
		ck_assert_int_eq(torch_item_wrap(pkl, pkl_len, &ours, &e), 0);
	} else {
		ck_assert_int_eq(torch_item_unwrap(item, n, &pkl, &pkl_len, &e), 0);
		ck_assert_int_eq(torch_item_is(item, n, &e), 1);
		k = load(item + p.pickle, p.pickle_len);
		v = pickle_root(k);
		ret = !torch_tensor_read(&v, &t, &e) && is_plain(&t) ? 2 : 0;
		pickle_free(k);
		if (ret)
			rewrite(&ours, t.dtype, t.n_dims, t.size, item + p.data);
	}
	if (ret) {
		ck_assert_uint_eq(ours.len, n);
		ck_assert(!memcmp(ours.data, item, n));
	}
	mem_release(&m);
	buf_release(&ours);
	return ret;
}

static uint64_t number(const struct pk_value *v, const char *name)
{
	const struct pk_value *x = pk_attr(v, name);

	REQUIRE(x && x->type == PK_INT && x->i >= 0);
	return (uint64_t)x->i;
}

/* How many items of each kind, at least. */
static const struct {
	const char *name;
	int objects, tensors;
} cases[] = {
	{ "plain", 5, 5 },
	{ "dtypes", 0, 15 },
	{ "shapes", 0, 10 },
	{ "special_floats", 0, 1 },
	{ "bytes_items", 10, 0 },
	{ "many_items", 0, 10 },
	{ "mp4_dtensor", 0, 10 },
	{ "mp4_mesh2d", 0, 4 },
	{ "mp4_fsdp2_adamw", 1, 10 },
	{ "mp4_checkpointable", 0, 4 },
};

START_LOOP_TEST(items_are_torchs_byte_by_byte, ARRAY_LEN(cases))
{
	char path[256];
	autoclose int dir = -1;
	struct pk_value root;
	const struct pk_value *stored;
	struct pickle *k;
	int count[3] = { 0 };
	size_t n;
	uint8_t *p;

	(void)snprintf(path, sizeof(path), "%s/ckpt", cases[_i].name);
	dir = open_data(path);
	p = get_file(dir, ".metadata", &n);
	k = load(p, n);
	free(p);
	root = pickle_root(k);
	stored = pk_attr(&root, "storage_data");
	ck_assert(stored && pk_len(stored));
	for (size_t i = 0; i < pk_len(stored); i++) {
		const struct pk_value *v = &stored->n->v[2 * i + 1];
		uint64_t off = number(v, "offset"), len = number(v, "length");

		p = get_file(dir, pk_attr(v, "relative_path")->s->data, &n);
		REQUIRE(range_ok(off, len, n));
		count[check_item(p + off, len)]++;
		free(p);
	}
	pickle_free(k);
	ck_assert_int_ge(count[1], cases[_i].objects);
	ck_assert_int_ge(count[2], cases[_i].tensors);
}
END_TEST

/*
 * zeros_N.bin: what torch 2.14 writes before and after the data of torch.zeros(N,
 * dtype=torch.uint8), including the CRC-32 of that many zeros.
 */
static const struct {
	uint64_t n;
	const char *name;
} large[] = {
	{ UINT32_MAX - 1, "zeros_4294967294.bin" },
	{ UINT32_MAX, "zeros_4294967295.bin" },
	{ UINT64_C(0x10000000a), "zeros_4294967306.bin" },
};

START_LOOP_TEST(from_4_gib_on_numbers_have_64_bits, ARRAY_LEN(large))
{
	autoclose int dir = open_data("torch_item");
	struct buf ours = BUF_INIT(1 << 16);
	struct torch_item t;
	struct ckpt_err e = { 0 };
	size_t n;
	uint8_t *want = get_file(dir, large[_i].name, &n);

	ck_assert_int_eq(torch_item_begin(&t, CKPT_DTYPE_U8, 1, &large[_i].n, &ours, &e), 0);
	ck_assert_uint_eq(t.data_len, large[_i].n);
	ck_assert_uint_lt(ours.len + 8, n);
	ck_assert_int_eq(torch_item_end(&t, load_le32(want + ours.len + 4), &ours, &e), 0);
	ck_assert_uint_eq(ours.len, n);
	ck_assert_mem_eq(ours.data, want, n);
	ck_assert_uint_eq(t.at, n + large[_i].n);
	free(want);
	buf_release(&ours);
}
END_TEST

/* ---- objects ---- */

START_TEST(a_pickle_goes_in_and_comes_out)
{
	static const struct {
		const char *p;
		size_t n;
	} pickles[] = { { "\x80\x02N.", 4 },
			{ "\x80\x04\x95\x03\0\0\0\0\0\0\0M\x2c\x01.", 15 },
			{ "", 0 } };
	struct buf b = BUF_INIT(1 << 20);
	const void *back;
	struct ckpt_err e = { 0 };
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(pickles); i++) {
		b.len = 0;
		buf_str(&b, "before");
		ck_assert_int_eq(torch_item_wrap(pickles[i].p, pickles[i].n, &b, &e), 0);
		ck_assert_int_eq(torch_item_unwrap(b.data + 6, b.len - 6, &back, &n, &e), 1);
		ck_assert_uint_eq(n, pickles[i].n);
		ck_assert(!memcmp(back, pickles[i].p, n));
	}
	buf_release(&b);
}
END_TEST

START_TEST(what_is_no_such_archive_stays_wrapped)
{
	struct archive a = { 0 };
	const void *back = NULL;
	struct buf b = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };
	size_t n = 7;

	ck_assert_int_eq(torch_item_unwrap("", 0, &back, &n, &e), 0);
	ck_assert_int_eq(torch_item_unwrap("\x80\x02N.", 4, &back, &n, &e), 0);
	ck_assert_int_eq(torch_item_unwrap("PK\3\4", 4, &back, &n, &e), 0);
	archive_add(&a, "version", "3\n", 2);
	archive_end(&a);
	ck_assert_int_eq(torch_item_unwrap(a.b.data, a.b.len, &back, &n, &e), 0);
	archive_release(&a);
	ck_assert_int_eq(torch_item_wrap("\x80\x02N.", 4, &b, &e), 0);
	for (size_t cut = 0; cut < b.len; cut++) {
		struct mem m;

		mem_init(&m, b.data, cut);
		ck_assert_int_eq(torch_item_unwrap(m.p, cut, &back, &n, &e), 0);
		ck_assert_int_eq(torch_item_is(m.p, cut, &e), 0);
		mem_release(&m);
	}
	ck_assert(!back && n == 7);
	buf_release(&b);
}
END_TEST

/* ---- what cannot be ---- */

START_TEST(quantised_and_impossible_tensors_are_refused)
{
	static const uint64_t huge[] = { (uint64_t)1 << 40, (uint64_t)1 << 40 };
	struct buf b = BUF_INIT(1 << 20);
	struct torch_item t;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(torch_item_begin(&t, CKPT_DTYPE_QI8, 1, huge, &b, &e), -ERR_UNSUPPORTED);
	ck_assert_str_eq(e.msg, "a torch.save archive cannot hold qint8");
	ck_assert_int_eq(torch_item_begin(&t, CKPT_DTYPE_F32, 2, huge, &b, &e), -EOVERFLOW);
	ck_assert_int_eq(torch_item_begin(&t, CKPT_DTYPE_F32, 65, huge, &b, &e), -EINVAL);
	ck_assert_uint_eq(b.len, 0);
	b.max = 100;
	ck_assert_int_eq(torch_item_begin(&t, CKPT_DTYPE_F32, 1, huge, &b, &e), -EFBIG);
	buf_release(&b);
}
END_TEST

START_TEST(memory_that_is_refused_is_an_error)
{
	static const uint64_t shape[] = { 3, 5 };

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct buf b = BUF_INIT(1 << 20);
		struct torch_item t;
		struct ckpt_err e = { 0 };
		int rc = torch_item_begin(&t, CKPT_DTYPE_F8_E5M2, 2, shape, &b, &e);

		if (!rc)
			rc = torch_item_end(&t, 0, &b, &e);
		fault_off();
		REQUIRE(rc == (fault_hit() ? -ENOMEM : 0) && e.code == -rc);
		buf_release(&b);
	}
}
END_TEST

SUITE(torch_item)
