/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_sum.h>

#include "base/digest.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/scan/pipeline.h"
#include "ckpt/scan/tensor_scan.h"

#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <string.h>

_Static_assert(CKPT_SUM_MAX_JOBS == PIPELINE_MAX_JOBS, "one bound");
_Static_assert(CKPT_SUM_HEX == BASE16_ENCODE_LENGTH(SHA256_DIGEST_SIZE) + 1,
	       "room for the longest");

/* State of the tensor that a worker is hashing. */
struct hash {
	struct sha256_ctx sha;
	XXH3_state_t *xxh;
};

struct sum {
	char hex[CKPT_SUM_HEX];
};

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	const struct ckpt_sum *s = arg;
	struct hash *h = worker;

	if (s->kind != CKPT_SUM_XXH)
		return 0;
	h->xxh = XXH3_createState();
	return h->xxh ? 0 : err_nomem(e);
}

static void teardown(void *arg, void *worker)
{
	struct hash *h = worker;

	(void)arg;
	(void)XXH3_freeState(h->xxh);
}

static void begin(const struct ckpt_sum *s, struct hash *h)
{
	if (s->kind == CKPT_SUM_XXH)
		(void)XXH3_128bits_reset(h->xxh);
	else
		sha256_init(&h->sha);
}

static void end(const struct ckpt_sum *s, struct hash *h, struct sum *ret)
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct digest x;

	if (s->kind == CKPT_SUM_XXH) {
		x = digest_of(XXH3_128bits_digest(h->xxh));
		digest_hex(&x, ret->hex);
		return;
	}
	sha256_digest(&h->sha, sizeof(digest), digest);
	base16_encode_update(ret->hex, sizeof(digest), digest);
	ret->hex[sizeof(ret->hex) - 1] = 0;
}

static void block(void *arg, void *worker, const struct tensor_info *t, const void *bytes, size_t n,
		  uint64_t from, void *result)
{
	const struct ckpt_sum *s = arg;
	struct hash *h = worker;
	size_t size = dtype_info(t->dtype)->size;

	if (!from)
		begin(s, h);
	if (s->kind == CKPT_SUM_XXH)
		(void)XXH3_128bits_update(h->xxh, bytes, n * size);
	else
		sha256_update(&h->sha, n * size, bytes);
	if ((from + n) * size == t->bytes)
		end(s, h, result);
}

static void merge(void *arg, void *state, const void *result)
{
	(void)arg;
	memcpy(state, result, sizeof(struct sum));
}

static int finish(void *arg, const struct tensor_info *t, bool read, const char *fault,
		  const void *state)
{
	const struct ckpt_sum *s = arg;
	const struct sum *sum = state;

	(void)read;
	return s->each(s->arg, &(struct ckpt_sum_item){ .fqn = t->fqn,
							.fqn_len = t->fqn_len,
							.dtype = dtype_info(t->dtype)->name,
							.n_dims = t->n_dims,
							.shape = t->shape,
							.bytes = t->bytes,
							.fault = fault,
							.hex = fault ? "" : sum->hex });
}

int ckpt_sum_sized(struct ckpt *c, struct ckpt_sum *s, size_t size, struct ckpt_err *e)
{
	struct ckpt_sum ours;
	struct tensor_scan tensors = { .c = c,
				       .in_order = true,
				       .cmd = "sum",
				       .arg = &ours,
				       .worker_size = sizeof(struct hash),
				       .setup = setup,
				       .teardown = teardown,
				       .result_size = sizeof(struct sum),
				       .block = block,
				       .state_size = sizeof(struct sum),
				       .merge = merge,
				       .finish = finish };
	int rc = SIZED_TAKE(ours, s, size, "ckpt_sum", e);

	if (rc)
		return rc;
	if ((unsigned)ours.kind > CKPT_SUM_XXH)
		return err_set(e, EINVAL, "unknown kind of hash %d", (int)ours.kind);
	tensors.globs = ours.globs;
	tensors.model = ours.model;
	tensors.jobs = ours.jobs;
	tensors.progress = ours.progress;
	tensors.progress_arg = ours.arg;
	rc = tensor_scan_run(&tensors, e);
	ours.tensors = tensors.tensors;
	ours.failed = tensors.failed;
	ours.bytes = tensors.bytes;
	SIZED_GIVE(s, size, ours);
	return rc;
}
