/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of tensors, read into memory of all layouts and compared element by element with the whole
 * tensor. */
#include "base/cleanup.h"
#include "fixture_util.h"

static const struct ckpt_opts options[] = { { .runs = false }, { .dtype = "fp32" } };

/* A slice, and memory for it: its first element goes to place `first` of `room`. */
struct request {
	uint64_t start[CKPT_MAX_DIMS], stop[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS],
		count[CKPT_MAX_DIMS];
	int64_t stride[CKPT_MAX_DIMS];
	uint64_t volume, room, first;
	size_t n, size;
};

static void random_request(struct rng *r, const struct ckpt_tensor *t, struct request *q)
{
	q->n = t->n_dims;
	q->size = t->element;
	q->volume = 1;
	random_box(r, q->n, t->shape, q->start, q->stop);
	for (size_t d = 0; d < q->n; d++) {
		uint64_t len = q->stop[d];

		q->stop[d] += q->start[d];
		q->step[d] = rng_chance(r, 50)	? 1
			     : rng_chance(r, 5) ? UINT64_MAX - rng_below(r, 3)
						: 1 + rng_below(r, len + 2);
		q->count[d] = len ? (len - 1) / q->step[d] + 1 : 0;
		q->volume *= q->count[d];
	}
}

/* Dimensions in any order, with gaps after some, some of them backwards. */
static void random_strides(struct rng *r, struct request *q)
{
	size_t order[CKPT_MAX_DIMS];
	uint64_t stride = q->size;

	q->first = 0;
	for (size_t d = 0; d < q->n; d++)
		order[d] = d;
	for (size_t d = q->n; d > 1 && rng_chance(r, 60); d--) {
		size_t other = rng_below(r, d), kept = order[d - 1];

		order[d - 1] = order[other];
		order[other] = kept;
	}
	for (size_t k = q->n; k-- > 0;) {
		size_t d = order[k];

		if (rng_chance(r, 30))
			stride += rng_chance(r, 50) ? q->size : 1 + rng_below(r, 9);
		q->stride[d] = (int64_t)stride;
		if (q->count[d] && rng_chance(r, 30)) {
			q->stride[d] = -q->stride[d];
			q->first += (q->count[d] - 1) * stride;
		}
		stride *= q->count[d] ? q->count[d] : 1;
	}
	q->room = stride + q->size;
}

/* Where element number i of the request is in the whole tensor, and where it goes. */
static void locate(const struct request *q, const uint64_t *shape, uint64_t i, uint64_t *ret_from,
		   int64_t *ret_to)
{
	uint64_t stride = 1;

	*ret_from = 0;
	*ret_to = (int64_t)q->first;
	for (size_t d = q->n; d-- > 0; stride *= shape[d]) {
		uint64_t x = i % q->count[d];

		*ret_from += (q->start[d] + x * q->step[d]) * stride;
		*ret_to += (int64_t)x * q->stride[d];
		i /= q->count[d];
	}
}

typedef int slice_read_fn(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
			  struct ckpt_err *e);

static void check_slice(struct ckpt *c, uint64_t i, const struct ckpt_tensor *t,
			slice_read_fn *read, const uint8_t *whole, struct rng *r)
{
	struct request q;
	struct ckpt_err e = { 0 };
	autofree uint8_t *want = NULL, *got = NULL;

	random_request(r, t, &q);
	random_strides(r, &q);
	want = malloc(q.room);
	got = malloc(q.room);
	REQUIRE(want && got);
	memset(want, 0xa5, q.room);
	memset(got, 0xa5, q.room);
	for (uint64_t k = 0; k < q.volume; k++) {
		uint64_t from;
		int64_t to;

		locate(&q, t->shape, k, &from, &to);
		memcpy(want + to, whole + from * q.size, q.size);
	}
	ck_assert_msg(!read(c, i, &(struct ckpt_slice){ q.start, q.stop, q.step, q.stride },
			    got + q.first, &e),
		      "%s", e.msg);
	REQUIRE(!memcmp(got, want, q.room));
}

/* The same without strides, and for the whole tensor. */
static void check_dense(struct ckpt *c, uint64_t i, const struct ckpt_tensor *t,
			slice_read_fn *read, const uint8_t *whole, struct rng *r)
{
	struct request q;
	struct ckpt_err e = { 0 };
	autofree uint8_t *got = malloc(t->bytes + 1);
	int64_t to;

	REQUIRE(got && !read(c, i, &(struct ckpt_slice){ 0 }, got, &e));
	REQUIRE(!memcmp(got, whole, t->bytes));
	random_request(r, t, &q);
	memset(q.stride, 0, sizeof(q.stride));
	REQUIRE(!read(c, i, &(struct ckpt_slice){ q.start, q.stop, q.step, NULL }, got, &e));
	for (uint64_t k = 0; k < q.volume; k++) {
		uint64_t from;

		locate(&q, t->shape, k, &from, &to);
		REQUIRE(!memcmp(got + k * q.size, whole + from * q.size, q.size));
	}
}

static void check_refusals(struct ckpt *c, uint64_t i, const struct ckpt_tensor *t,
			   slice_read_fn *read, struct rng *r)
{
	uint64_t start[CKPT_MAX_DIMS] = { 0 }, stop[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS];
	struct ckpt_err e = { 0 };
	size_t d;

	if (!t->n_dims)
		return;
	d = rng_below(r, t->n_dims);
	for (size_t k = 0; k < t->n_dims; k++) {
		stop[k] = t->shape[k];
		step[k] = 1;
	}
	switch (rng_below(r, 3)) {
	case 0:
		step[d] = 0;
		break;
	case 1:
		stop[d]++;
		break;
	default:
		start[d] = stop[d] + 1;
	}
	REQUIRE(read(c, i, &(struct ckpt_slice){ start, stop, step, NULL }, NULL, &e) == -EINVAL);
	REQUIRE(strstr(e.msg, "are outside dimension"));
}

static void check_tensor(struct ckpt *c, uint64_t i, const struct ckpt_tensor *t,
			 slice_read_fn *read, const uint8_t *whole, struct rng *r)
{
	check_dense(c, i, t, read, whole, r);
	for (int k = 0; k < 8; k++)
		check_slice(c, i, t, read, whole, r);
	check_refusals(c, i, t, read, r);
}

START_LOOP_TEST(a_slice_holds_what_the_whole_has_there, fixture_count() * 2)
{
	struct rng r = rng_new();
	struct ckpt_totals totals;
	struct ckpt_err e = { 0 };
	char path[4400];
	struct ckpt *c = fixture_open(_i / 2, &options[_i % 2], path);

	if (!c)
		return;
	ckpt_totals(c, &totals);
	for (uint64_t i = 0; i < totals.tensors + ckpt_model_tensors(c); i++) {
		bool model = i >= totals.tensors;
		uint64_t at = model ? i - totals.tensors : i;
		autofree uint8_t *whole = NULL;
		struct ckpt_tensor t;
		struct ckpt_file *f;

		(model ? ckpt_model_tensor : ckpt_tensor)(c, at, &t);
		REQUIRE((model ? ckpt_model_find : ckpt_tensor_find)(c, t.fqn, t.fqn_len) ==
			(int64_t)at);
		if (t.fault)
			continue;
		ck_assert_msg(!(model ? ckpt_model_open(c, at, &f, &e)
				      : ckpt_file_open(c, ckpt_tensor_node(c, at), &f, &e)),
			      "%s", e.msg);
		whole = fixture_read(f);
		check_tensor(c, at, &t, model ? ckpt_model_slice_read : ckpt_slice_read, whole, &r);
	}
	ckpt_close(c);
}
END_TEST

START_TEST(a_tensor_that_cannot_be_read_says_why)
{
	const struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	struct ckpt *c;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	char path[4400];
	uint64_t i = 0;

	(void)snprintf(path, sizeof(path), "%s/hole/ckpt", data_dir());
	ck_assert_msg(!open_typed(path, &o, &c, &e), "%s", e.msg);
	do
		ckpt_tensor(c, i++, &t);
	while (!t.fault);
	ck_assert_int_eq(ckpt_slice_read(c, i - 1, &(struct ckpt_slice){ 0 }, NULL, &e), -EIO);
	ck_assert_ptr_nonnull(strstr(e.msg, t.fault));
	ck_assert_int_eq(ckpt_model_find(c, "no such", 7), -1);
	ckpt_close(c);
}
END_TEST

SUITE(ckpt_slice, .seconds = 60)
