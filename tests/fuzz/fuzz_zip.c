/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an archive: local headers at every offset, the central directory, the members that
 * it names. What is found must lie inside.
 */
#include "base/err.h"
#include "bytes.h"
#include "mutate.h"
#include "parse/zip.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_zip, mend_zip)

static int each(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	const struct blob *b = arg;
	uint64_t at = UINT64_MAX;
	unsigned sum = 0;
	struct ckpt_err why;

	(void)e;
	for (size_t i = 0; i < m->name_len; i++)
		sum += (unsigned char)m->name[i];
	if (!zip_member_data(b, m, &at, &why) && (at > b->size || m->size > b->size - at))
		abort();
	return sum == UINT32_MAX ? 55 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = { data, size };
	struct blob blob = { read_bytes, &b, size };
	struct ckpt_err e = { 0 };
	int rc;

	if (!size)
		return 0;
	for (size_t at = 0; at < size && at < 4096; at++) {
		struct zip_local l;

		e = (struct ckpt_err){ 0 };
		rc = zip_read_local(data + at, size - at, &l, &e);
		if (rc ? e.code != -rc || !e.msg[0]
		       : l.data > size - at || l.name + l.name_len > (const char *)data + size)
			abort();
		(void)zip_descriptor(data + at, size - at, at);
	}
	e = (struct ckpt_err){ 0 };
	rc = zip_each(&blob, each, &blob, &e);
	if (rc ? e.code != -rc || !e.msg[0] : e.code)
		abort();
	return 0;
}
