/* SPDX-License-Identifier: Apache-2.0 */
#include "file/hf_index.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "tensor/tensor_info.h"

#include <stdio.h>
#include <stdlib.h>

#define OPEN UINT32_MAX /* goes into the file being filled, not numbered yet */

static void close_file(uint32_t *shard, size_t from, size_t to, uint32_t number)
{
	for (size_t i = from; i < to; i++)
		if (shard[i] == OPEN)
			shard[i] = number;
}

uint32_t hf_split(const struct tensor_info *m, size_t n, uint64_t limit, uint32_t *shard)
{
	uint64_t filled = 0; /* bytes in the file being filled */
	size_t first = 0;    /* index of its first tensor, or less */
	uint32_t count = 0;
	bool open = false;

	for (size_t i = 0; i < n; i++) {
		if (m[i].bytes > limit) {
			shard[i] = count++;
			continue;
		}
		if (m[i].bytes > limit - filled) {
			close_file(shard, first, i, count++);
			first = i;
			filled = 0;
		}
		shard[i] = OPEN;
		filled += m[i].bytes;
		open = true;
	}
	if (open)
		close_file(shard, first, n, count++);
	return count;
}

void hf_file_name(uint32_t i, uint32_t count, char out[static HF_NAME_CAP])
{
	if (count == 1)
		(void)snprintf(out, HF_NAME_CAP, "model.safetensors");
	else
		(void)snprintf(out, HF_NAME_CAP, "model-%05u-of-%05u.safetensors", i + 1, count);
}

/* Python sorts strings by code points, which is also the order of their UTF-8. */
static int by_name(const void *ap, const void *bp)
{
	const struct tensor_info *a = *(const struct tensor_info *const *)ap;
	const struct tensor_info *b = *(const struct tensor_info *const *)bp;

	return bytes_compare(a->fqn, a->fqn_len, b->fqn, b->fqn_len);
}

static int put_metadata(struct buf *b, const struct tensor_info *m, size_t n, struct ckpt_err *e)
{
	uint64_t elements = 0, bytes = 0;

	for (size_t i = 0; i < n; i++) {
		elements += m[i].bytes / dtype_info(m[i].dtype)->size;
		if (ckd_add(&bytes, bytes, m[i].bytes))
			return err_set(e, EFBIG, "the tensors have more than 2^64 bytes in all");
	}
	buf_str(b, "{\n  \"metadata\": {\n    \"total_parameters\": ");
	buf_u64(b, elements);
	buf_str(b, ",\n    \"total_size\": ");
	buf_u64(b, bytes);
	buf_str(b, "\n  },\n  \"weight_map\": {");
	return 0;
}

int hf_index(const struct tensor_info *m, size_t n, const uint32_t *shard, uint32_t count,
	     struct buf *ret, struct ckpt_err *e)
{
	autofree const struct tensor_info **sorted = calloc(n + 1, sizeof(*sorted));
	int rc;

	if (!sorted)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++)
		sorted[i] = &m[i];
	qsort(sorted, n, sizeof(*sorted), by_name);
	rc = put_metadata(ret, m, n, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		char file[HF_NAME_CAP];

		hf_file_name(shard[sorted[i] - m], count, file);
		buf_str(ret, i ? ",\n    " : "\n    ");
		buf_json_str(ret, sorted[i]->fqn, sorted[i]->fqn_len);
		buf_str(ret, ": \"");
		buf_str(ret, file);
		buf_str(ret, "\"");
	}
	buf_str(ret, "\n  }\n}\n");
	return buf_check(ret, e, "the index of %zu tensors is too large", n);
}
