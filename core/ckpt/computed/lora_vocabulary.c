/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/lora_vocabulary.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "ckpt/ckpt_internal.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "tensor/vtensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COMPARED ((uint64_t)16 << 30)
enum { PIECE = 1 << 20 };

bool lora_is_output(const char *name, size_t len)
{
	static const char end[] = "lm_head.weight";
	size_t n = strlen(end);

	return len >= n && !memcmp(name + len - n, end, n) &&
	       (len == n || name[len - n - 1] == '.');
}

/* ---- comparing ---- */

static int open_tensor(const struct engine *eng, uint32_t i, struct tensor_reader **ret,
		       uint64_t *ret_bytes, struct ckpt_err *e)
{
	const struct catalog_tensor *t = &catalog_tensors(eng->catalog, NULL)[i];
	struct vtensor *v;
	int rc = vtensor_whole(t, i, (enum ckpt_dtype)t->dtype, &v, e);

	if (rc)
		return rc;
	*ret_bytes = v->bytes;
	return tensor_open(eng->fetch, v, ret, e);
}

static int same_bytes(const struct engine *eng, struct tensor_reader *const r[2], uint64_t bytes,
		      bool *ret, struct ckpt_err *e)
{
	autofree uint8_t *buf = malloc(2 * PIECE);
	uint64_t at = 0;

	if (!buf)
		return err_nomem(e);
	for (*ret = true; *ret && at < bytes; at += PIECE) {
		size_t n = min_u64(bytes - at, PIECE);

		for (int i = 0; i < 2; i++)
			if (tensor_read(eng->fetch, r[i], buf + i * PIECE, n, at, NULL, e))
				return -e->code;
		*ret = !memcmp(buf, buf + PIECE, n);
	}
	return 0;
}

int lora_same_tensor(const struct engine *other, uint32_t i, uint32_t k, bool *ret,
		     struct ckpt_err *e)
{
	struct tensor_reader *r[2] = { NULL };
	uint64_t bytes = 0;
	int rc = open_tensor(other, i, &r[0], &bytes, e);

	*ret = false;
	if (!rc)
		rc = open_tensor(other, k, &r[1], &bytes, e);
	if (!rc && bytes <= MAX_COMPARED)
		rc = same_bytes(other, r, bytes, ret, e);
	tensor_close(other->fetch, r[0]);
	tensor_close(other->fetch, r[1]);
	return rc;
}

/* ---- config.json ---- */

/* within: the member of the text that is an object with vocab_size; NULL: the text itself. */
static int edit_config(struct engine *eng, const char *within, uint64_t before, uint64_t after,
		       struct ckpt_err *e)
{
	struct jdoc config CLEANUP(jdoc_release) = { 0 };
	struct buf edited CLEANUP(buf_release) = BUF_INIT(2 * ASSETS_MAX_CONFIG);
	autofree char *text = NULL;
	const char *digits, *behind;
	struct ckpt_err why;
	struct jval in;
	size_t len, n;
	int64_t number;
	uint64_t said;
	int rc = assets_text(&eng->assets, "config.json", ASSETS_MAX_CONFIG, &text, &len, &number,
			     e);

	if (rc || !text)
		return rc;
	if (jdoc_parse_copy(&config, text, len, JDOC_BIG | JDOC_PYTHON, &why))
		return why.code == ENOMEM ? err_nomem(e) : 0; /* who needs it will say so */
	in = within ? jval_get(jdoc_root(&config), within) : jdoc_root(&config);
	in = jval_get(in, "vocab_size");
	if (!jval_u64(in, &said) || said != before)
		return 0;
	digits = text + (jval_digits(in, &n) - config.text);
	behind = digits + n;
	buf_add(&edited, text, (size_t)(digits - text));
	buf_printf(&edited, "%" PRIu64, after);
	buf_add(&edited, behind, (size_t)(text + len - behind));
	buf_add(&edited, "", 1);
	return edited.err ? err_nomem(e)
			  : assets_replace(&eng->assets, (size_t)number, edited.data, e);
}

int lora_resize(struct engine *eng, uint64_t before, uint64_t after, struct ckpt_err *e)
{
	int rc = edit_config(eng, NULL, before, after, e);

	/* That of a model that also sees has an object for the part that reads. */
	return rc ? rc : edit_config(eng, "text_config", before, after, e);
}
