/* SPDX-License-Identifier: Apache-2.0 */
/* Objects' values as JSON text: generated on request; only the size is kept. */
#include <ckptfs/ckpt.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "index/catalog_query.h"
#include "read/fetch.h"
#include "store/object_json.h"
#include "tree/view.h"

#include <stdlib.h>

static enum object_form form_of(const struct engine *eng, const struct catalog_object *o)
{
	const struct ckpt_object x = { .encoding = o->text ? "text" : "" };

	return ckpt_object_form(eng, &x);
}

static int make(struct engine *eng, size_t i, struct buf *ret, struct ckpt_err *e)
{
	const struct catalog_object *o;
	autofree void *data = NULL;
	uint64_t size;
	int64_t got;
	int rc = ckpt_object_size(eng, i, &size, e);

	if (rc)
		return rc;
	o = &catalog_objects(eng->catalog, NULL)[i];
	if (size > OBJECT_JSON_MAX) {
		object_json_too_long(size, ret);
		return 0;
	}
	data = malloc(size + 1);
	if (!data)
		return err_nomem(e);
	got = object_read(eng->fetch, o, data, size, 0, e);
	if (got < 0)
		return (int)got;
	if ((uint64_t)got != size)
		return err_set(e, EIO, "the object became shorter");
	return object_json(form_of(eng, o), data, size, ret, e);
}

/* The text must still have the size that was reported, else it is an error. */
static int keep_size(struct engine *eng, size_t i, uint64_t size, struct ckpt_err *e)
{
	uint64_t known = CKPT_SIZE_UNKNOWN;

	if (atomic_compare_exchange_strong(&eng->json_size[i], &known, size) || known == size)
		return 0;
	return known == CKPT_SIZE_FAILED
		       ? err_set(e, EIO, "it could not be read when its size was requested")
		       : err_set(e, EIO, "the object has changed");
}

int engine_object_json(struct engine *eng, size_t i, struct buf *ret, struct ckpt_err *e)
{
	uint64_t known = CKPT_SIZE_UNKNOWN;
	size_t before = ret->len;
	int rc;

	while (sem_wait(&eng->json_turn))
		; /* retry after EINTR */
	rc = make(eng, i, ret, e);
	(void)sem_post(&eng->json_turn);
	if (!rc)
		rc = buf_check(ret, e, "an object's value is too large");
	if (rc && rc != -ENOMEM)
		(void)atomic_compare_exchange_strong(&eng->json_size[i], &known, CKPT_SIZE_FAILED);
	return rc ? rc : keep_size(eng, i, ret->len - before, e);
}

int engine_object_json_size(struct engine *eng, size_t i, uint64_t *ret, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(VFILE_MAX_TEXT);
	int rc;

	*ret = catalog_objects(eng->catalog, NULL)[i].text_len;
	if (catalog_objects(eng->catalog, NULL)[i].text)
		return 0;
	*ret = eng->json_size[i];
	if (*ret < CKPT_SIZE_FAILED)
		return 0;
	rc = engine_object_json(eng, i, &text, e);
	*ret = text.len;
	return rc;
}

int ckpt_object_json(struct ckpt *c, uint64_t i, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct buf text = BUF_INIT(VFILE_MAX_TEXT);
	const char *fqn;
	size_t len, number;
	int rc;

	if (!c->engine)
		return err_set(e, EINVAL, "it is a run, which has no objects of its own");
	if (i >= c->totals.objects)
		return err_set(e, EINVAL, "object %llu does not exist: the checkpoint has %llu",
			       (unsigned long long)i, (unsigned long long)c->totals.objects);
	number = view_object(c->engine->view, i, &fqn, &len);
	rc = ckpt_object_readable(c->engine, fqn, len, number, e);
	if (!rc)
		rc = engine_object_json(c->engine, number, &text, e);
	if (rc) {
		buf_release(&text);
		return rc;
	}
	*ret = text.data;
	*ret_len = text.len;
	return 0;
}
