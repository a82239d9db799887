/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save's ways of storing a pickle and storages in a file.
 *
 * A ZIP archive of stored members, torch 1.6 and later:
 *
 *	NAME/data.pkl     the pickle; a storage is a persistent id that names its key
 *	NAME/byteorder    "little" or "big"; absent before torch 2.1: little
 *	NAME/data/KEY     a storage's bytes
 *
 * With NAME/constants.pkl it is a TorchScript program, of torch.jit.save: the pickle is the module,
 * and there is also code, which is not looked at.
 *
 * A stream before that, and with _use_new_zipfile_serialization=False (torch/serialization.py,
 * _legacy_save):
 *
 *	pickle            0x1950a86a20f9469cfc6c
 *	pickle            1001, the protocol version
 *	pickle            dict: sizes of C's types, and whether the machine was little-endian
 *	pickle            what was saved
 *	pickle            list of keys
 *	per key           number of elements, 64 bits, and the elements
 *
 * A tar file in torch 0.1.0 to 0.1.9: see torchsave_tar.h.
 *
 * In the stream numbers are little-endian whatever the dict says: torch swaps when writing
 * (torch/csrc/serialization.cpp, THPStorage_writeFileRaw), and ignores the dict when reading.
 */
#include "format/torch/torchsave.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/vec.h"
#include "format/torch/torchsave_tar.h"
#include "format/torch/torchsave_walk.h"
#include "format/torch_tensor.h"
#include "model/dtype.h"
#include "parse/zip.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PICKLE ((size_t)1 << 30) /* bytes of memory for the saved value */
#define MAX_SMALL  ((size_t)1 << 20) /* for the other pickles of the stream */

static const uint8_t legacy_magic[] = {
	0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19
};

static const char legacy_text[] = "L119547037146038801333356L\n."; /* protocols 0 and 1 */

/* ---- which way ---- */

/* "NAME/data/0" -> "data/0" */
static const char *inner_name(const struct zip_member *m, size_t *ret_len)
{
	const char *slash = memchr(m->name, '/', m->name_len);

	*ret_len = slash ? m->name_len - (size_t)(slash + 1 - m->name) : 0;
	return slash ? slash + 1 : m->name;
}

static bool is_member(const struct zip_member *m, const char *want)
{
	size_t len;
	const char *name = inner_name(m, &len);

	return bytes_are(name, len, want);
}

/* torch.load, too, recognises a program by constants.pkl (torch/serialization.py). */
static int look_at_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	enum torchsave_kind *kind = arg;

	(void)e;
	if (is_member(m, "constants.pkl"))
		*kind = TORCHSAVE_SCRIPT;
	else if (is_member(m, "data.pkl") && *kind == TORCHSAVE_NONE)
		*kind = TORCHSAVE_ZIP;
	return 0;
}

static int look_at_tar(const struct blob *file, enum torchsave_kind *ret, struct ckpt_err *e)
{
	struct tar_members m;
	int rc = tar_members_find(file, &m, e);

	if (!rc && tar_members_complete(&m))
		*ret = TORCHSAVE_TAR;
	return rc;
}

int torchsave_kind(const struct blob *file, enum torchsave_kind *ret, struct ckpt_err *e)
{
	enum { MAGIC_WITHIN = 32 }; /* it follows PROTO, FRAME and LONG1 at most */
	char head[512 + 1] = "";
	int64_t n = file->read(file->arg, 0, head, sizeof(head) - 1, e);

	if (n < 0)
		return (int)n;
	*ret = TORCHSAVE_NONE;
	if (zip_magic(head, (size_t)n))
		return zip_list(file, look_at_member, ret, e);
	if ((uint8_t)head[0] == 0x80 &&
	    memmem(head, min_u64((uint64_t)n, MAGIC_WITHIN), legacy_magic, sizeof(legacy_magic)))
		*ret = TORCHSAVE_LEGACY;
	else if (!strncmp(head, legacy_text, strlen(legacy_text)))
		*ret = TORCHSAVE_LEGACY;
	else if (n == 512 && !memcmp(head + 257, "ustar", 5))
		return look_at_tar(file, ret, e);
	return 0;
}

/* ---- storages ---- */

int torchsave_storage_of(struct torchsave *t, const struct pk_str *key,
			 struct torchsave_storage **ret, struct ckpt_err *e)
{
	if (!key) /* of pk_intern */
		return errno == EFBIG ? err_set(e, EFBIG, "too many storages") : err_nomem(e);
	if (!VEC_ROOM_ZEROED(t->storages, t->n_storages, key->id + (size_t)1))
		return err_nomem(e);
	*ret = &t->storages[key->id];
	return 0;
}

int torchsave_find(struct torchsave *t, const struct torch_tensor *tensor, uint64_t *ret,
		   struct ckpt_err *e)
{
	const struct pk_str *key = pk_intern(t->strings, tensor->key, strlen(tensor->key));
	struct torchsave_storage *s;
	uint64_t end;
	int rc = torchsave_storage_of(t, key, &s, e);

	if (rc)
		return rc;
	if (s->state == STORAGE_NONE)
		return err_set(e, ERR_CORRUPT, "the file has no storage '%s'", tensor->key);
	if (s->state == STORAGE_MEMBER) {
		const struct zip_member m = { .header = s->at, .size = s->bytes };

		rc = zip_member_data(t->file, &m, &s->at, e);
		if (rc)
			return rc;
		s->state = STORAGE_FOUND;
	}
	if (ckd_add(&end, tensor->storage_first, tensor->storage_bytes) || end > s->bytes)
		return err_set(e, ERR_CORRUPT,
			       "storage '%s' has %llu bytes, but the pickle says %llu", tensor->key,
			       (unsigned long long)s->bytes, (unsigned long long)end);
	*ret = s->at + tensor->storage_first;
	return 0;
}

/* ---- a pickle somewhere in the file ---- */

struct part {
	const struct blob *file;
	uint64_t at, len;
};

static int64_t read_part(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	const struct part *p = arg;
	size_t n = (size_t)min_u64(cap, off < p->len ? p->len - off : 0);

	return n ? p->file->read(p->file->arg, p->at + off, buf, n, e) : 0;
}

static int load(struct torchsave *t, struct part *part, const struct pickle_opts *opts,
		struct pickle **ret, struct ckpt_err *e)
{
	struct pickle_input in = { .read = read_part, .arg = part };
	struct pickle_opts o = *opts;
	int rc;

	o.strings = t->strings;
	o.keep_long = true;
	o.arg = t;
	rc = pickle_load(&in, &o, ret, e);
	/* All input is there, so the pickle is truncated. */
	return rc == -ENODATA ? err_set(e, ERR_CORRUPT, "the file ends inside a pickle") : rc;
}

/* ---- ZIP ---- */

struct members {
	struct torchsave *t;
	struct zip_member pickle, order;
	bool have_order;
};

static void add_sum(struct torchsave *t, const struct zip_member *m)
{
	const uint64_t v[] = { m->header, m->size, m->crc };

	digest_add(&t->sums, v, sizeof(v));
	t->has_sums &= m->crc || !m->size;
}

static int each_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct members *x = arg;
	struct torchsave_storage *s;
	size_t len;
	const char *name = inner_name(m, &len);
	bool is_data = len >= 5 && !memcmp(name, "data/", 5);
	int rc;

	add_sum(x->t, m);
	if (m->packed && (is_data || is_member(m, "data.pkl") || is_member(m, "byteorder")))
		return err_set(e, ERR_UNSUPPORTED, "zip member '%.*s' is compressed or encrypted",
			       (int)min_u64(m->name_len, 60), m->name);
	if (is_member(m, "data.pkl"))
		x->pickle = *m;
	if (is_member(m, "byteorder")) {
		x->order = *m;
		x->have_order = true;
	}
	if (!is_data)
		return 0;
	rc = torchsave_storage_of(x->t, pk_intern(x->t->strings, name + 5, len - 5), &s, e);
	if (rc)
		return rc;
	if (s->state != STORAGE_NONE)
		return err_set(e, ERR_CORRUPT, "the archive has two storages '%.*s'",
			       (int)min_u64(len - 5, 60), name + 5);
	*s = (struct torchsave_storage){ .at = m->header,
					 .bytes = m->size,
					 .state = STORAGE_MEMBER };
	return 0;
}

static int read_order(struct torchsave *t, const struct zip_member *m, struct ckpt_err *e)
{
	char order[8] = "";
	uint64_t at;
	int rc = zip_member_data(t->file, m, &at, e);
	int64_t n;

	if (rc)
		return rc;
	n = t->file->read(t->file->arg, at, order, (size_t)min_u64(m->size, sizeof(order) - 1), e);
	if (n < 0)
		return (int)n;
	t->big_endian = !strcmp(order, "big");
	if (!t->big_endian && strcmp(order, "little") != 0)
		return err_set(e, ERR_CORRUPT, "byteorder is '%s'", order);
	return 0;
}

/* In a TorchScript program, code may be compressed, not data. */
static int open_zip(struct torchsave *t, bool script, struct ckpt_err *e)
{
	const struct pickle_opts opts = { .max_bytes = MAX_PICKLE };
	struct members x = { .t = t };
	struct part part = { .file = t->file };
	int rc;

	t->has_sums = true;
	rc = (script ? zip_list : zip_each)(t->file, each_member, &x, e);

	if (!rc)
		rc = zip_member_data(t->file, &x.pickle, &part.at, e);
	part.len = x.pickle.size;
	if (!rc && x.have_order)
		rc = read_order(t, &x.order, e);
	return rc ? rc : load(t, &part, &opts, &t->pickle, e);
}

/* ---- the legacy stream ---- */

/* ('module', class, file, source) represents the class of a torch.nn.Module. */
static bool is_class_id(const struct pk_value *id)
{
	if (id->type == PK_STR)
		return bytes_begin(id->s->data, id->s->len, "('module', ");
	return id->type == PK_TUPLE && pk_len(id) && pk_is_text(&id->n->own[0], "module");
}

/* Records the element size of a storage, which is not stored anywhere else. */
static int note_storage(void *arg, const struct pk_value *id, struct ckpt_err *e)
{
	struct torchsave *t = arg;
	struct torch_storage_id x;
	struct torchsave_storage *s;
	enum ckpt_dtype dtype;
	uint8_t element = 1;
	int rc;

	if (is_class_id(id))
		return 0;
	rc = torch_storage_id_read(id, &x, e);
	if (rc)
		return rc;
	dtype = dtype_by_storage(x.class);
	if (dtype != CKPT_DTYPE_NONE)
		element = dtype_info(dtype)->size;
	else if (strcmp(x.class, "UntypedStorage") != 0)
		return err_set(e, ERR_UNSUPPORTED, "storage class '%.60s'", x.class);
	rc = torchsave_storage_of(t, pk_intern(t->strings, x.key, strlen(x.key)), &s, e);
	if (rc)
		return rc;
	if (s->element && s->element != element)
		return err_set(e, ERR_CORRUPT, "storage '%.60s' has elements of %d and of %d bytes",
			       x.key, s->element, element);
	s->element = element;
	return 0;
}

/* The storages follow the list of their keys, in its order. */
static int find_legacy(struct torchsave *t, const struct pk_value *keys, uint64_t at,
		       struct ckpt_err *e)
{
	for (size_t i = 0; i < pk_len(keys); i++) {
		const struct pk_value *key = &keys->n->v[i];
		struct torchsave_storage *s = NULL;
		uint64_t count, bytes;
		uint8_t head[8];
		int64_t n;
		int rc = key->type == PK_STR ? torchsave_storage_of(t, key->s, &s, e) : 0;

		if (rc)
			return rc;
		if (!s || !s->element || s->state != STORAGE_NONE)
			return err_set(e, ERR_CORRUPT, "the list of storages has %s",
				       !s	    ? "something that is not a key"
				       : s->element ? "a key twice"
						    : "a key that no tensor has");
		n = t->file->read(t->file->arg, at, head, sizeof(head), e);
		if (n < 0)
			return (int)n;
		count = load_le64(head);
		if (n < (int64_t)sizeof(head) || ckd_mul(&bytes, count, s->element) ||
		    !range_ok(at + sizeof(head), bytes, t->file->size))
			return err_set(e, ERR_CORRUPT,
				       "the file has %llu bytes and ends inside storage %zu of %zu",
				       (unsigned long long)t->file->size, i + 1, pk_len(keys));
		s->at = at + sizeof(head);
		s->bytes = bytes;
		s->state = STORAGE_FOUND;
		at = s->at + bytes;
	}
	return 0;
}

static int open_legacy(struct torchsave *t, struct ckpt_err *e)
{
	const struct pickle_opts small = { .max_bytes = MAX_SMALL };
	const struct pickle_opts all = { .max_bytes = MAX_PICKLE, .persid = note_storage };
	const struct pickle_opts list = { .max_bytes = MAX_PICKLE };
	struct part part = { t->file, 0, t->file->size };
	struct pickle *p = NULL;
	struct pk_value v;
	int rc = 0;

	for (int i = 0; !rc && i < 5; i++) {
		pickle_free(p);
		p = NULL;
		rc = load(t, &part, i < 3 ? &small : i == 3 ? &all : &list, &p, e);
		if (rc)
			break;
		part.at += pickle_end(p);
		part.len -= pickle_end(p);
		v = pickle_root(p);
		if (i == 1 && (v.type != PK_INT || v.i != 1001))
			rc = err_set(e, ERR_UNSUPPORTED, "its protocol version is not 1001");
		if (i == 3) {
			t->pickle = p;
			p = NULL;
		}
		if (i == 4 && v.type != PK_LIST)
			rc = err_set(e, ERR_CORRUPT, "no list of storages after the pickle");
		else if (i == 4)
			rc = find_legacy(t, &v, part.at, e);
	}
	pickle_free(p);
	return rc;
}

/* ---- tar ---- */

int torchsave_load(struct torchsave *t, uint64_t at, uint64_t len, struct pickle **ret,
		   struct ckpt_err *e)
{
	const struct pickle_opts opts = { .max_bytes = MAX_PICKLE };
	struct part part = { t->file, at, len };

	return load(t, &part, &opts, ret, e);
}

static int open_tar(struct torchsave *t, struct ckpt_err *e)
{
	struct tar_members m;
	int rc = tar_members_find(t->file, &m, e);

	if (!rc)
		rc = torchsave_tar_open(t, &m, e);
	return rc ? rc : torchsave_load(t, m.m[TAR_PICKLE].at, m.m[TAR_PICKLE].len, &t->pickle, e);
}

/* ---- all ---- */

int torchsave_open(struct torchsave *t, const struct blob *file, struct ckpt_err *e)
{
	enum torchsave_kind kind;
	int rc = torchsave_kind(file, &kind, e);

	*t = (struct torchsave){ .file = file, .strings = pk_strings_new(MAX_PICKLE) };
	if (!rc && !t->strings)
		rc = err_nomem(e);
	if (rc)
		return rc;
	switch (kind) {
	case TORCHSAVE_ZIP:
	case TORCHSAVE_SCRIPT:
		return open_zip(t, kind == TORCHSAVE_SCRIPT, e);
	case TORCHSAVE_LEGACY:
		return open_legacy(t, e);
	case TORCHSAVE_TAR:
		return open_tar(t, e);
	default:
		return err_set(e, ERR_CORRUPT, "it was not written by torch.save");
	}
}

void torchsave_release(struct torchsave *t)
{
	pickle_free(t->pickle);
	pk_strings_free(t->strings);
	free(t->storages);
	free(t->named);
	free(t->seen);
	walk_shared_free(t->shared);
	torchsave_tar_free(t->tar);
	*t = (struct torchsave){ 0 };
}
