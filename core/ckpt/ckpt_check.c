/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check: every tensor is covered exactly once, every file is long enough, and every item holds what
 * the metadata says. With data: every item is read in file order and its CRCs are verified, as are
 * the file hashes that are recorded beside the checkpoint.
 *
 * An item of DCP is an archive with CRCs. A file of torch.save is one archive, and the items are
 * parts of its members: these are read instead, each as a whole.
 */
#include <ckptfs/ckpt.h>

#include "base/blob.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "ckpt/archive_crcs.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/integrity.h"
#include "index/catalog_query.h"
#include "model/chunkmap.h"
#include "parse/zip.h"
#include "read/derived.h"
#include "read/fetch.h"
#include "source/files.h"
#include "tree/view.h"

#include <stdlib.h>
#include <string.h>

/* An item to read, and its owner. */
struct todo {
	struct chunk_loc loc;
	uint64_t needs; /* decoded bytes, at least */
	uint32_t owner; /* catalog number of a tensor or object */
	bool object;
	bool in_member; /* of the file's archive: it is not to be read by itself */
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
	r->todo[r->n++] = (struct todo){ *loc, needs, (uint32_t)owner, object, false };
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
	const struct crc_reader reader = { x->r->buf, BLOCK_SIZE, NULL, NULL };
	uint32_t crc;
	uint64_t data;
	int rc = zip_member_data(x->b, m, &data, e);

	if (!rc)
		rc = crc_read(x->b, data, m->size, &reader, &crc, e);
	if (!rc)
		rc = crc_compare(m->name, m->name_len, crc, m->crc, e);
	x->r->k->crcs += !rc && m->crc;
	return rc;
}

/*
 * Reads the whole item, as an archive if it is one, so that its CRCs are checked. *ret_size: bytes
 * that it decodes to, if that may be too little. What overlaps, such as views of one storage, is
 * read once; archives never do, and each would have to be read.
 */
static int check_data(struct run *r, const struct todo *d, uint64_t *ret_size, struct ckpt_err *e)
{
	const struct chunk_loc *loc = &d->loc;
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
	if (zip_magic(magic, (size_t)n) && (d->object || !fetch_is_elements(r->eng->fetch, loc))) {
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
static bool is_again(const struct run *r, const struct todo *d)
{
	return d > r->todo && !by_place(d - 1, d);
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

static void add_read(void *arg, uint64_t bytes)
{
	struct run *r = arg;

	r->k->bytes += bytes;
	r->done += bytes;
	tell_progress(r);
}

/* The items of one file, of which those in members of the archive have been read, if it is one. */
static void check_items(struct run *r, struct todo *d, size_t n, const struct archive_crcs *a)
{
	struct ckpt_err found = { 0 }; /* in the present item */
	uint64_t size = UINT64_MAX;

	r->read_to = r->archives_to = 0;
	for (size_t i = 0; i < n; i++, d++) {
		bool again = is_again(r, d);
		struct crc_member *m = d->in_member ? archive_crcs_at(a, d->loc.offset) : NULL;
		uint64_t before = r->done;
		struct ckpt_err why;

		if (m && !archive_crcs_covers(m, d->loc.offset, d->loc.length)) {
			m = NULL;
			r->total += again ? 0 : d->loc.length;
		}
		if (!again) {
			found.code = 0;
			size = UINT64_MAX;
			(void)(m ? archive_crcs_compare(m, &found)
				 : check_data(r, d, &size, &found));
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
		if (m)
			m->told |= why.code;
		tell_progress(r);
	}
}

/* ---- archives of torch.save ---- */

/* A file of the checkpoint. */
struct file_run {
	struct run *r;
	uint32_t number;
	const char *path;
	struct blob blob;
};

static int64_t read_file(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct file_run *f = arg;
	uint64_t left = f->blob.size - min_u64(off, f->blob.size);
	size_t n = (size_t)min_u64(left, len);
	int rc = n ? files_read(f->r->eng->files, f->number, buf, n, off, e) : 0;

	return rc ? rc : (int64_t)n;
}

static void report_file(const struct file_run *f, struct ckpt_err *why)
{
	(void)err_wrap(why, "'%s'", f->path);
	report(f->r->k, NULL, 0, why->msg, false);
}

/* Other formats have no such files, but may have elements that look like one. */
static bool has_archives(const struct engine *eng)
{
	const struct format *const all[] = { &format_torchsave, &format_deepspeed, &format_fsdp,
					     &format_megatron_ranks };

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (eng->format == all[i])
			return true;
	return false;
}

static bool is_everything_shown(const struct engine *eng)
{
	for (const char *const *o = eng->c->options; o && *o; o++)
		if (!strncmp(*o, "include=", 8) || !strncmp(*o, "exclude=", 8))
			return false;
	return true;
}

/* Decides which members are read: if something is excluded, no storages that have only that. */
static void plan_members(struct run *r, struct todo *d, size_t n, struct archive_crcs *a)
{
	bool all = is_everything_shown(r->eng);

	for (size_t i = 0; i < n; i++) {
		struct crc_member *m = archive_crcs_at(a, d[i].loc.offset);

		if (!m || m->packed || !fetch_is_elements(r->eng->fetch, &d[i].loc))
			continue;
		d[i].in_member = m->wanted = true;
		r->total -= is_again(r, &d[i]) ? 0 : d[i].loc.length;
	}
	for (size_t i = 0; i < a->n; i++) {
		struct crc_member *m = &a->v[i];

		m->wanted = !m->packed && (m->wanted || all || !m->is_storage);
		r->total += m->wanted ? m->size : 0;
	}
}

static void read_members(const struct file_run *f, struct archive_crcs *a)
{
	struct run *r = f->r;
	const struct crc_reader reader = { r->buf, BLOCK_SIZE, add_read, r };

	for (size_t i = 0; i < a->n; i++) {
		struct crc_member *m = &a->v[i];
		uint64_t before = r->done;
		struct ckpt_err why;

		if (!m->wanted)
			continue;
		if (!archive_crcs_verify(m, &f->blob, &reader, &why)) {
			r->k->crcs += m->crc != 0;
		} else if (!m->data) { /* what is in it is read by itself */
			report_file(f, &why);
			r->total -= m->size - (r->done - before);
		}
	}
}

/* Faults in members without an item that could have been blamed. */
static void report_others(const struct file_run *f, const struct archive_crcs *a)
{
	for (size_t i = 0; i < a->n; i++) {
		struct ckpt_err why;

		if (a->v[i].data && !a->v[i].told && archive_crcs_compare(&a->v[i], &why))
			report_file(f, &why);
	}
}

/* File `number`, which has items d[0..n). */
static void check_file(struct run *r, uint32_t number, struct todo *d, size_t n)
{
	const struct stored_file *s = &catalog_sources(r->eng->catalog, NULL)[number];
	struct file_run f = { r, number, s->path, { read_file, &f, 0 } };
	struct archive_crcs a = { 0 };
	struct ckpt_err why;

	if (has_archives(r->eng) && !s->bytes && (n || is_everything_shown(r->eng)) &&
	    !(r->eng->file_fault && r->eng->file_fault[number])) {
		int rc;

		f.blob.size = files_size(r->eng->files, number);
		rc = archive_crcs_open(&a, &f.blob, &why);
		if (rc < 0)
			report_file(&f, &why);
		if (rc)
			archive_crcs_close(&a);
	}
	plan_members(r, d, n, &a);
	read_members(&f, &a);
	check_items(r, d, n, &a);
	report_others(&f, &a);
	archive_crcs_close(&a);
}

static void check_all_data(struct run *r)
{
	size_t n_files, at = 0;

	(void)catalog_sources(r->eng->catalog, &n_files);
	if (r->n)
		qsort(r->todo, r->n, sizeof(*r->todo), by_place);
	for (size_t i = 0; i < r->n; i++)
		r->total += is_again(r, &r->todo[i]) ? 0 : r->todo[i].loc.length;
	for (uint32_t f = 0; f < n_files; f++) {
		size_t first = at;

		while (at < r->n && r->todo[at].loc.file == f)
			at++;
		check_file(r, f, r->todo ? r->todo + first : NULL, at - first);
	}
}

/* ---- hashes of files ---- */

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
