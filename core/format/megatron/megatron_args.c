/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save's two containers. Since torch 1.6 a ZIP archive with a record NAME/data.pkl. Before,
 * and with _use_new_zipfile_serialization=False, several pickles in sequence: the magic number, the
 * protocol version, a dict about the system, then the value (torch/serialization.py, _legacy_save).
 */
#include "format/megatron/megatron_args.h"

#include "base/blob.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "parse/pickle.h"
#include "parse/zip.h"

#include <stdlib.h>

#define MAX_PKL	    ((size_t)256 << 20) /* bytes; without tensors it is a few hundred KiB */
#define MAX_MEMORY  ((size_t)256 << 20) /* bytes of memory for its contents */
#define LEGACY_HEAD 3			/* pickles before the value */

struct megatron_args {
	struct pickle *pickle;
	struct pk_value args;
};

/* ---- the container ---- */

static int each_record(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	static const char pkl[] = "/data.pkl";
	size_t n = sizeof(pkl) - 1;
	struct zip_member *found = arg;

	(void)e;
	if (m->name_len > n && !memcmp(m->name + m->name_len - n, pkl, n) &&
	    !memchr(m->name, '/', m->name_len - n))
		*found = (struct zip_member){ .header = m->header, .size = m->size, .name_len = 1 };
	return 0;
}

/* A range of a blob, as input for the pickle machine. */
struct stretch {
	const struct blob *blob;
	uint64_t at, size;
};

static int64_t read_stretch(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	const struct stretch *s = arg;

	if (off >= s->size)
		return 0;
	if (cap > s->size - off)
		cap = (size_t)(s->size - off);
	return s->blob->read(s->blob->arg, s->at + off, buf, cap, e);
}

static int load(const struct stretch *s, struct pickle **ret, struct ckpt_err *e)
{
	struct pickle_input in = { .read = read_stretch, .arg = (void *)(uintptr_t)s };
	struct pickle_opts opts = { .max_bytes = MAX_MEMORY };
	int rc = pickle_load(&in, &opts, ret, e);

	return rc == -ENODATA ? err_set(e, ERR_CORRUPT, "its pickle ends early") : rc;
}

static int load_zip(const struct blob *b, struct pickle **ret, struct ckpt_err *e)
{
	struct stretch s = { .blob = b };
	struct zip_member m = { 0 };
	int rc = zip_each(b, each_record, &m, e);

	if (rc)
		return rc;
	if (!m.name_len)
		return err_set(e, ERR_CORRUPT, "its archive has no data.pkl");
	if (m.size > MAX_PKL)
		return err_set(e, EFBIG, "its data.pkl has %llu bytes", (unsigned long long)m.size);
	rc = zip_member_data(b, &m, &s.at, e);
	s.size = m.size;
	return rc ? rc : load(&s, ret, e);
}

static int load_legacy(const struct blob *b, struct pickle **ret, struct ckpt_err *e)
{
	struct stretch s = { .blob = b, .size = b->size };

	for (int i = 0; i < LEGACY_HEAD; i++) {
		struct pickle *p;
		uint64_t used;
		int rc = load(&s, &p, e);

		if (rc)
			return rc;
		used = pickle_end(p);
		pickle_free(p);
		s.at += used;
		s.size -= used;
	}
	return load(&s, ret, e);
}

/* ---- the value ---- */

static bool find_args(const struct pickle *p, struct pk_value *ret)
{
	struct pk_value root = pickle_root(p);
	const struct pk_value *args;

	if (root.type == PK_LIST && pk_len(&root) == 1)
		root = root.n->v[0];
	args = pk_get(&root, "args");
	if (!args || args->type == PK_NONE)
		return false;
	*ret = *args;
	return true;
}

int megatron_args_read(const struct blob *b, struct megatron_args **ret, struct ckpt_err *e)
{
	struct megatron_args *a;
	struct pickle *p;
	uint8_t head[4];
	int64_t n = b->read(b->arg, 0, head, sizeof(head), e);
	int rc;

	if (n < 0)
		return (int)n;
	rc = zip_magic(head, (size_t)n) ? load_zip(b, &p, e) : load_legacy(b, &p, e);
	if (rc)
		return rc;
	a = calloc(1, sizeof(*a));
	if (a && find_args(p, &a->args)) {
		a->pickle = p;
	} else {
		rc = a ? 0 : err_nomem(e);
		free(a);
		a = NULL;
		pickle_free(p);
	}
	if (!rc)
		*ret = a;
	return rc;
}

void megatron_args_free(struct megatron_args *a)
{
	if (!a)
		return;
	pickle_free(a->pickle);
	free(a);
}

int megatron_args_number(const struct megatron_args *a, const char *name, uint64_t *ret,
			 struct ckpt_err *e)
{
	const struct pk_value *v = pk_field(&a->args, name);

	if (!v || v->type == PK_NONE)
		return 1;
	if ((v->type != PK_INT && v->type != PK_BOOL) || v->i < 0)
		return err_set(e, EINVAL, "the checkpoint's args: '%.60s' is not a whole number",
			       name);
	*ret = (uint64_t)v->i;
	return 0;
}
