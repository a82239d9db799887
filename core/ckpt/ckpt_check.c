/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check: every tensor is covered exactly once, every file is long enough, and every item holds what
 * the metadata says. With data: every item is read in file order and its CRCs are verified, as are
 * the file hashes that are recorded beside the checkpoint.
 */
#include <ckptfs/ckpt.h>

#include "base/blob.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/integrity.h"
#include "index/catalog_query.h"
#include "model/chunkmap.h"
#include "parse/zip.h"
#include "read/derived.h"
#include "read/fetch.h"
#include "tree/view.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

/* An item to read, and its owner. */
struct todo {
	struct chunk_loc loc;
	uint64_t needs; /* decoded bytes, at least */
	uint32_t owner; /* catalog number of a tensor or object */
	bool object;
};

struct run {
	struct engine *eng;
	struct ckpt_check *k;
	struct todo *todo;
	size_t n, cap;
	uint64_t done, total; /* bytes, for the progress */
	uint8_t *buf;
	uint64_t read_to, archives_to; /* in the present file: what has been read, up to here */
};

static void report(struct ckpt_check *k, const char *fqn, size_t len, const char *what,
		   bool warning)
{
	struct ckpt_fault f = { fqn, len, what, warning, NULL };

	k->faults += !warning;
	k->fault(k->arg, &f);
}

static int add_todo(struct run *r, const struct chunk_loc *loc, uint64_t needs, size_t owner,
		    bool object, struct ckpt_err *e)
{
	if (!VEC_ROOM(r->todo, r->cap, r->n + 1))
		return err_nomem(e);
	r->todo[r->n++] = (struct todo){ *loc, needs, (uint32_t)owner, object };
	return 0;
}

/* ---- files ---- */

static void check_files(struct run *r)
{
	size_t n;
	const struct stored_file *s = catalog_sources(r->eng->catalog, &n);
	struct place_seen seen;
	struct ckpt_err e;

	for (size_t i = 0; i < n; i++) {
		if (s[i].bytes)
			continue;
		if (r->eng->file_fault && r->eng->file_fault[i]) {
			report(r->k, NULL, 0, r->eng->file_fault[i], false);
			continue;
		}
		/*
		 * A finished save writes its metadata last. Copies that do not preserve times
		 * trigger this too.
		 */
		if (place_look(r->eng->c->place, s[i].path, &seen, &e) > 0 &&
		    seen.mtime_ns > r->eng->metadata_ns) {
			(void)err_set(
				&e, EIO,
				"data file '%s' is newer than the metadata: overwritten by an "
				"unfinished save, or copied without its times",
				s[i].path);
			report(r->k, NULL, 0, e.msg, true);
		}
	}
}

/* What the format said when the checkpoint was opened. */
static void check_notes(struct run *r)
{
	const struct engine *eng = r->eng;
	char what[512];

	if (eng->missing) {
		(void)snprintf(what, sizeof(what), "not everything is there: %s", eng->missing);
		report(r->k, NULL, 0, what, false);
	}
	if (eng->not_shown) {
		(void)snprintf(what, sizeof(what), "not everything is shown: %s", eng->not_shown);
		report(r->k, NULL, 0, what, true);
	}
}

/* ---- tensors and objects ---- */

/* number: catalog number */
static int check_tensor(struct run *r, size_t number, struct ckpt_err *e)
{
	struct engine *eng = r->eng;
	const struct catalog_tensor *t = &catalog_tensors(eng->catalog, NULL)[number];
	const char *fault = ckpt_tensor_fault(eng, number);
	const struct chunkmap *m;
	struct otensor *items, *map;
	const struct derived *d = fetch_derived(eng->fetch, number);
	struct ckpt_err why;
	int rc = 0;

	if (fault) {
		report(r->k, t->fqn, t->fqn_len, fault, false);
		return 0;
	}
	for (size_t i = 0; !rc && d && i < d->n_inputs; i++)
		rc = d->inputs[i].fetch ? 0 : check_tensor(r, d->inputs[i].tensor, e);
	if (rc || d)
		return rc;
	if (t->state == TENSOR_OVERLAPPING)
		report(r->k, t->fqn, t->fqn_len, t->fault ? t->fault : "its chunks overlap", false);
	if (otensor_open(eng->fetch, number, &items, &why)) {
		ckpt_drop_name(t->fqn, t->fqn_len, &why);
		report(r->k, t->fqn, t->fqn_len, why.msg, false);
		return 0;
	}
	rc = otensor_map(eng->fetch, number, &map, &m, e);
	if (!rc) {
		r->k->items += m->count;
		for (uint32_t k = 0; !rc && r->k->data && k < m->count; k++)
			rc = add_todo(r, &otensor_locs(items)[k], otensor_needs(items, k), number,
				      false, e);
		otensor_close(eng->fetch, map);
	}
	otensor_close(eng->fetch, items);
	return rc;
}

static int check_object(struct run *r, size_t number, struct ckpt_err *e)
{
	struct engine *eng = r->eng;
	const struct catalog_object *o = &catalog_objects(eng->catalog, NULL)[number];
	const char *fault = ckpt_object_fault(eng, number);
	struct ckpt_err why;
	uint64_t size;

	if (!fault && object_size(eng->fetch, o, &size, &why))
		fault = why.msg;
	if (fault) {
		report(r->k, o->fqn, o->fqn_len, fault, false);
		return 0;
	}
	r->k->items++;
	/* A text is part of the index, which was verified when it was opened. */
	return r->k->data && !o->text ? add_todo(r, &o->loc, 0, number, true, e) : 0;
}

/* ---- data ---- */

struct crc_run {
	struct run *r;
	const struct blob *b;
};

static int check_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct crc_run *x = arg;
	uint32_t crc = 0;
	uint64_t data, done = 0;
	int rc = zip_member_data(x->b, m, &data, e);

	if (rc)
		return rc;
	while (done < m->size) {
		size_t want = (size_t)min_u64(m->size - done, BLOCK_SIZE);
		int64_t n = x->b->read(x->b->arg, data + done, x->r->buf, want, e);

		if (n <= 0)
			return n ? (int)n : err_set(e, ERR_CORRUPT, "the item ends early");
		crc = libdeflate_crc32(crc, x->r->buf, (size_t)n);
		done += (uint64_t)n;
	}
	/*
	 * 0 means "not recorded" (torch.serialization.set_crc32_options), unless it is the actual
	 * CRC.
	 */
	if (m->crc && m->crc != crc)
		return err_set(e, ERR_CORRUPT, "record '%.*s' has CRC %08x, but %08x is recorded",
			       (int)min_u64(m->name_len, 80), m->name, crc, m->crc);
	x->r->k->crcs += m->crc != 0;
	return 0;
}

/*
 * Reads the whole item, as an archive if it is one, so that its CRCs are checked. *ret_size: bytes
 * that it decodes to, if that may be too little. What overlaps, such as views of one storage, is
 * read once; archives never do, and each would have to be read.
 */
static int check_data(struct run *r, const struct chunk_loc *loc, uint64_t *ret_size,
		      struct ckpt_err *e)
{
	struct item_source item;
	struct blob b = item_blob(&item, 0);
	struct crc_run x = { r, &b };
	uint8_t magic[4];
	uint64_t at = 0;
	int64_t n;
	int rc = fetch_item(r->eng->fetch, loc, &item, e);

	r->done += loc->length;
	if (!rc)
		rc = item_size(&item, &b.size, e);
	if (rc)
		return rc;
	if (!item_is_plain(&item))
		*ret_size = b.size;
	n = b.read(b.arg, 0, magic, sizeof(magic), e);
	if (n < 0)
		return (int)n;
	/* Tensor elements may look like an archive. */
	if (zip_magic(magic, (size_t)n) && !fetch_is_elements(r->eng->fetch, loc)) {
		if (loc->offset < r->archives_to)
			return err_set(e, ERR_CORRUPT, "it overlaps another archive");
		r->archives_to = loc->offset + loc->length;
		return zip_each(&b, check_member, &x, e);
	}
	if (item_is_plain(&item) && r->read_to > loc->offset)
		at = min_u64(r->read_to - loc->offset, b.size);
	r->total -= at;
	r->done -= at;
	for (; at < b.size; at += (uint64_t)n) {
		n = b.read(b.arg, at, r->buf, (size_t)min_u64(b.size - at, BLOCK_SIZE), e);
		if (n <= 0)
			return n ? (int)n : err_set(e, ERR_CORRUPT, "the item ends early");
	}
	if (item_is_plain(&item))
		r->read_to = max_u64(r->read_to, loc->offset + b.size);
	return 0;
}

static int by_place(const void *ap, const void *bp)
{
	const struct todo *a = ap, *b = bp;

	if (a->loc.file != b->loc.file)
		return a->loc.file < b->loc.file ? -1 : 1;
	if (a->loc.offset != b->loc.offset)
		return a->loc.offset < b->loc.offset ? -1 : 1;
	if (a->loc.length != b->loc.length)
		return a->loc.length < b->loc.length ? -1 : 1;
	return a->loc.encoding < b->loc.encoding ? -1 : a->loc.encoding > b->loc.encoding;
}

/* Is it the item before it, too? */
static bool is_again(const struct run *r, size_t i)
{
	return i && !by_place(&r->todo[i - 1], &r->todo[i]);
}

static void report_item(struct run *r, const struct todo *d, struct ckpt_err *why)
{
	const struct catalog_tensor *t = &catalog_tensors(r->eng->catalog, NULL)[d->owner];
	const struct catalog_object *o = &catalog_objects(r->eng->catalog, NULL)[d->owner];

	(void)err_wrap(why, "item at %llu of '%s'", (unsigned long long)d->loc.offset,
		       catalog_sources(r->eng->catalog, NULL)[d->loc.file].path);
	if (d->object)
		report(r->k, o->fqn, o->fqn_len, why->msg, false);
	else
		report(r->k, t->fqn, t->fqn_len, why->msg, false);
}

static void tell_progress(const struct run *r)
{
	if (r->k->progress)
		r->k->progress(r->k->arg, r->done, r->total);
}

static void check_all_data(struct run *r)
{
	struct ckpt_err found = { 0 }; /* in the present item */
	uint64_t size = UINT64_MAX;

	if (r->n)
		qsort(r->todo, r->n, sizeof(*r->todo), by_place);
	for (size_t i = 0; i < r->n; i++)
		r->total += is_again(r, i) ? 0 : r->todo[i].loc.length;
	for (size_t i = 0; i < r->n; i++) {
		const struct todo *d = &r->todo[i];
		bool again = is_again(r, i);
		uint64_t before = r->done;
		struct ckpt_err why;

		if (i && d->loc.file != d[-1].loc.file)
			r->read_to = r->archives_to = 0;
		if (!again) {
			found.code = 0;
			size = UINT64_MAX;
			(void)check_data(r, &d->loc, &size, &found);
		}
		/* Bytes that are wrong were read, too. */
		if (!again && (!found.code || found.code == ERR_CORRUPT))
			r->k->bytes += r->done - before;
		why = found;
		if (size < d->needs)
			(void)err_set(&why, ERR_CORRUPT,
				      "it decodes to %llu bytes, but its tensor needs %llu",
				      (unsigned long long)size, (unsigned long long)d->needs);
		if (why.code)
			report_item(r, d, &why);
		tell_progress(r);
	}
}

/* ---- hashes of files ---- */

static void add_read(void *arg, uint64_t bytes)
{
	struct run *r = arg;

	r->k->bytes += bytes;
	r->done += bytes;
	tell_progress(r);
}

static void check_hashes(struct run *r, const struct integrity *in)
{
	const struct integrity_work work = { r->buf, BLOCK_SIZE, add_read, r };
	struct jiter i = jiter(jdoc_root(&in->files));

	while (jiter_next(&i)) {
		struct ckpt_err why;

		if (integrity_verify(in, i.key, i.v, &work, &why))
			report(r->k, NULL, 0, why.msg, false);
		else
			r->k->hashes++;
	}
}

/* The items, and the integrity.json that Megatron-core may have written beside its metadata. */
static void check_contents(struct run *r)
{
	const char *first = r->eng->metadata.v[0], *slash = strrchr(first, '/');
	autofree char *dir = strndup(first, slash ? (size_t)(slash + 1 - first) : 0);
	struct integrity in = { 0 };
	struct ckpt_err why;

	if (!dir)
		report(r->k, NULL, 0, "out of memory", false);
	else if (!strncmp(r->eng->format->name, "megatron", 8) &&
		 integrity_open(r->eng->c->place, dir, &in, &why))
		report(r->k, NULL, 0, why.msg, false);
	r->total += in.bytes;
	check_all_data(r);
	check_hashes(r, &in);
	integrity_close(&in);
}

static int check(struct ckpt *c, struct ckpt_check *k, struct ckpt_err *e)
{
	struct run r = { .eng = ckpt_engine(c, e), .k = k };
	struct tensor_info t;
	const char *fqn;
	size_t len;
	int rc = 0;

	k->faults = k->items = k->bytes = k->crcs = k->hashes = 0;
	if (!r.eng)
		return -EISDIR;
	r.buf = malloc(BLOCK_SIZE);
	if (!r.buf)
		return err_nomem(e);
	check_files(&r);
	check_notes(&r);
	for (size_t i = 0; !rc && i < view_tensors(r.eng->view); i++) {
		view_tensor(r.eng->view, i, &t);
		rc = check_tensor(&r, t.sources[0], e);
	}
	for (size_t i = 0; !rc && i < view_objects(r.eng->view); i++)
		rc = check_object(&r, view_object(r.eng->view, i, &fqn, &len), e);
	if (!rc && k->data)
		check_contents(&r);
	free(r.todo);
	free(r.buf);
	return rc;
}

int ckpt_check_sized(struct ckpt *c, struct ckpt_check *k, size_t size, struct ckpt_err *e)
{
	struct ckpt_check ours;
	int rc = SIZED_TAKE(ours, k, size, "ckpt_check", e);

	if (rc)
		return rc;
	rc = check(c, &ours, e);
	SIZED_GIVE(k, size, ours);
	return rc;
}
