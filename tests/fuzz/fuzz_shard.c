/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a shard in any encoding: whatever is in its index, opening the tensor and reading it
 * gives bytes or an error with a sentence.
 *
 *	dimensions, three sizes of the tensor, size of its chunks, flags: 1 the CRC of the first
 *	index is made right; the encoding's name, NUL; the shard
 *
 * Fuzzes: format/shard read/fetch_shards
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "format/shard.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "source/place.h"
#include "tensor/vtensor.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DIMS = 3, MAX_SIZE = 6, HEAD = 6 };

static void require(bool ok)
{
	if (!ok)
		abort();
}

static bool failed(int rc, struct ckpt_err *e)
{
	require(!rc || (rc < 0 && e->code == -rc && *e->msg));
	return rc;
}

/* Whatever chunk is asked for, its number must be inside the index. */
static void check_layout(const char *name, uint8_t *shard, size_t size, bool mend)
{
	uint64_t off[CKPT_MAX_DIMS];
	struct shard_layout l;

	if (!shard_take(&name, &l))
		return;
	for (uint64_t i = 0; i < 4; i++) {
		for (size_t d = 0; d < CKPT_MAX_DIMS; d++)
			off[d] = i < 3 ? i * 0x9e3779b97f4a7c15u : UINT64_MAX;
		require(shard_number(&l, off) < l.chunks);
	}
	if (mend && l.crc && shard_index_size(&l) <= size) {
		uint8_t *index = l.at_start ? shard : shard + size - shard_index_size(&l);
		size_t n = shard_index_size(&l) - 4;

		(void)put_le(index + n, crc32c(0, index, n), 4);
	}
}

static int make_catalog(const uint8_t *head, const char *name, const uint8_t *shard, size_t size,
			struct catalog **ret, struct ckpt_err *e)
{
	static uint64_t boxes[MAX_SIZE * MAX_SIZE * MAX_SIZE][2 * DIMS];
	static struct chunk_loc locs[MAX_SIZE * MAX_SIZE * MAX_SIZE];
	uint64_t shape[DIMS], chunk = 1 + head[4] % 3, row[2 * DIMS];
	struct tensor_chunks t = { .fqn = "w",
				   .fqn_len = 1,
				   .dtype = CKPT_DTYPE_U16,
				   .n_dims = head[0] % (DIMS + 1),
				   .shape = shape,
				   .boxes = boxes[0],
				   .locs = locs };
	struct catalog_writer *w = NULL;
	uint64_t at[DIMS] = { 0 };
	struct chunk_loc loc;
	bool more = true;
	int rc = catalog_writer_new(NULL, "fuzz", "/", &w, e);

	if (!rc)
		rc = catalog_add_inline(w, shard, size, &loc, e);
	if (!rc)
		rc = catalog_add_encoding(w, name, &loc.encoding, e);
	for (size_t d = 0; d < t.n_dims; d++)
		shape[d] = 1 + head[1 + d] % MAX_SIZE;
	for (; more; t.count++) {
		for (size_t d = 0; d < t.n_dims; d++) {
			row[d] = at[d];
			row[t.n_dims + d] = chunk < shape[d] - at[d] ? chunk : shape[d] - at[d];
		}
		memcpy((uint64_t *)(void *)boxes + t.count * 2 * t.n_dims, row,
		       2 * t.n_dims * sizeof(*row));
		locs[t.count] = loc;
		more = false;
		for (size_t d = t.n_dims; !more && d-- > 0;) {
			at[d] += chunk;
			more = at[d] < shape[d];
			at[d] = more ? at[d] : 0;
		}
	}
	if (!rc)
		rc = catalog_add_tensor(w, &t, e);
	if (!rc)
		rc = catalog_writer_finish(w, ret, e);
	catalog_writer_free(w);
	return rc;
}

static void read_all(struct catalog *c, struct place *place)
{
	const struct fetch_opts o = { .cache_bytes = 1 << 20, .map_bytes = 1 << 20 };
	const struct catalog_tensor *t = catalog_tensors(c, NULL);
	uint8_t out[2 * MAX_SIZE * MAX_SIZE * MAX_SIZE];
	struct tensor_reader *r = NULL;
	struct files *files = NULL;
	struct fetch *fetch = NULL;
	struct vtensor *v = NULL;
	struct ckpt_err e = { 0 };
	size_t n;
	const struct stored_file *s = catalog_sources(c, &n);

	require(!files_new(place, s, n, &files, &e));
	require(!fetch_new(c, files, &o, &fetch, &e));
	require(!vtensor_whole(t, 0, t->dtype, &v, &e));
	if (!failed(tensor_open(fetch, v, &r, &e), &e))
		(void)failed(tensor_read(fetch, r, out, (size_t)t->bytes, 0, NULL, &e), &e);
	tensor_close(fetch, r);
	fetch_free(fetch);
	files_free(files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct place *place;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	const uint8_t *end;
	uint8_t *shard;
	size_t n;

	if (!place)
		require(!local_place(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), &place, &e));
	end = size > HEAD ? memchr(data + HEAD, 0, size - HEAD) : NULL;
	if (!end)
		return 0;
	n = (size_t)(data + size - end) - 1;
	shard = malloc(n + 1);
	require(shard);
	memcpy(shard, end + 1, n);
	check_layout((const char *)data + HEAD, shard, n, data[5] & 1);
	if (!failed(make_catalog(data, (const char *)data + HEAD, shard, n, &c, &e), &e))
		read_all(c, place);
	catalog_close(c);
	free(shard);
	return 0;
}
