/* SPDX-License-Identifier: Apache-2.0 */
#include "store/megatron_form.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "parse/pickle_write.h"
#include "store/torch_item.h"

#include <string.h>

const char megatron_json[] =
	"{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
	"\"common_backend\": \"torch\", \"common_backend_version\": 1}";

/* "0.12": numbers with dots between them. Returns its end, or NULL. */
static const char *skip_numbers(const char *p, const char *end)
{
	for (;; p++) {
		const char *digits = p;

		while (p < end && *p >= '0' && *p <= '9')
			p++;
		if (p == digits)
			return NULL;
		if (p == end || *p != '.')
			return p;
	}
}

bool megatron_is_part(const char *fqn, size_t len)
{
	static const char word[] = "/shard_";
	const char *slash = memchr(fqn, '/', len), *end = fqn + len, *p;

	if (!slash || !bytes_begin(slash, (size_t)(end - slash), word))
		return false;
	p = skip_numbers(slash + strlen(word), end);
	return p && p < end && *p == '_' && skip_numbers(p + 1, end) == end;
}

int megatron_put_common(struct buf *ret, struct ckpt_err *e)
{
	static const char three[] = {
		OP_BINFLOAT, 0x40, 0x08, 0, 0, 0, 0, 0, 0
	}; /* BINFLOAT 3.0 */
	CLEANUP(buf_release) struct buf pickle = BUF_INIT(256);
	struct pickle_writer w;
	int rc;

	pw_begin(&w, &pickle, 2, false);
	pw_op(&w, OP_EMPTY_DICT);
	pw_op(&w, OP_MARK);
	pw_str(&w, "checkpoint_version", strlen("checkpoint_version"));
	buf_add(&pickle, three, sizeof(three));
	pw_str(&w, "iteration", strlen("iteration"));
	pw_int(&w, 0);
	pw_op(&w, OP_SETITEMS);
	rc = pw_end(&w);
	return rc ? err_sys(e, -rc, MEGATRON_COMMON_NAME)
		  : torch_item_wrap(pickle.data, pickle.len, ret, e);
}
