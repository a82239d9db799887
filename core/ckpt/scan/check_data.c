/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items are read in file order, and the CRCs in them are verified, as are the hashes of files that
 * are recorded beside the checkpoint.
 *
 * An item of DCP is an archive with CRCs. A file of torch.save is one archive, and the items are
 * parts of its members: these are read instead, each as a whole.
 */
#include "ckpt/scan/check_data.h"

#include "base/blob.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/integrity.h"
#include "ckpt/scan/archive_crcs.h"
#include "ckpt/scan/pipeline.h"
#include "index/catalog_query.h"
#include "parse/zip.h"
#include "read/fetch.h"
#include "source/files.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct fault {
	const char *fqn; /* NULL: of a file */
	size_t fqn_len;
	char *what;
};

/* What was found in a file. */
struct found {
	uint64_t bytes, crcs, hashes;
	struct fault *faults;
	size_t n, cap;
	bool nomem;
};

/* A file to read: a data file of the checkpoint with its items, or one whose hash is recorded. */
struct part {
	struct pipeline_item item;
	uint32_t number;
	struct check_item *items;
	size_t n;
	const char *hashed; /* name of a file, or NULL: a data file */
	struct jval hash;
};

/* The whole job. */
struct reading {
	struct check_data *d;
	char *dir; /* of integrity.json */
	struct integrity integrity;
	/* what the next part is */
	uint32_t next_file;
	size_t next_item;
	struct jiter next_hash;
	bool nomem;
	/* bytes, for the progress; under the lock */
	pthread_mutex_t lock;
	uint64_t done, total;
};

/* One thread. */
struct reader {
	struct reading *of;
	const struct engine *eng;
	struct found *found;	       /* in the present file */
	uint64_t done, total;	       /* bytes: what this thread has read, and adds to the total */
	uint64_t told, told_total;     /* of these */
	uint64_t read_to, archives_to; /* in the present file: what has been read, up to here */
	uint8_t *buf;
};

static void add_fault(struct reader *r, const char *fqn, size_t len, const char *what)
{
	struct found *f = r->found;
	char *copy = strdup(what);

	if (!copy || !VEC_ROOM(f->faults, f->cap, f->n + 1)) {
		free(copy);
		f->nomem = true;
		return;
	}
	f->faults[f->n++] = (struct fault){ fqn, len, copy };
}

static void tell_progress(struct reader *r)
{
	struct reading *x = r->of;

	if (!x->d->progress)
		return;
	SCOPED_LOCK(&x->lock);
	x->done += r->done - r->told;
	x->total += r->total - r->told_total; /* may be negative: unsigned numbers wrap around */
	r->told = r->done;
	r->told_total = r->total;
	x->d->progress(x->d->arg, x->done, x->total);
}

static void add_read(void *arg, uint64_t bytes)
{
	struct reader *r = arg;

	r->found->bytes += bytes;
	r->done += bytes;
	tell_progress(r);
}

/* ---- items ---- */

struct crc_run {
	struct reader *r;
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
	x->r->found->crcs += !rc && m->crc;
	return rc;
}

/*
 * Reads the whole item, as an archive if it is one, so that its CRCs are checked. *ret_size: bytes
 * that it decodes to, if that may be too little. What overlaps, such as views of one storage, is
 * read once; archives never do, and each would have to be read.
 */
static int check_data(struct reader *r, const struct check_item *d, uint64_t *ret_size,
		      struct ckpt_err *e)
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
	const struct check_item *a = ap, *b = bp;

	if (a->loc.file != b->loc.file)
		return a->loc.file < b->loc.file ? -1 : 1;
	if (a->loc.offset != b->loc.offset)
		return a->loc.offset < b->loc.offset ? -1 : 1;
	if (a->loc.length != b->loc.length)
		return a->loc.length < b->loc.length ? -1 : 1;
	return a->loc.encoding < b->loc.encoding ? -1 : a->loc.encoding > b->loc.encoding;
}

/* Is it the item before it, too? */
static bool is_again(const struct reader *r, const struct check_item *d)
{
	return d > r->of->d->items && !by_place(d - 1, d);
}

static void report_item(struct reader *r, const struct check_item *d, struct ckpt_err *why)
{
	const struct catalog_tensor *t = &catalog_tensors(r->eng->catalog, NULL)[d->owner];
	const struct catalog_object *o = &catalog_objects(r->eng->catalog, NULL)[d->owner];

	(void)err_wrap(why, "item at %llu of '%s'", (unsigned long long)d->loc.offset,
		       catalog_sources(r->eng->catalog, NULL)[d->loc.file].path);
	if (d->object)
		add_fault(r, o->fqn, o->fqn_len, why->msg);
	else
		add_fault(r, t->fqn, t->fqn_len, why->msg);
}

/* The items of one file, of which those in members of the archive have been read, if it is one. */
static void check_items(struct reader *r, struct check_item *d, size_t n,
			const struct archive_crcs *a)
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
			r->found->bytes += r->done - before;
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
	struct reader *r;
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
	add_fault(f->r, NULL, 0, why->msg);
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
static void plan_members(struct reader *r, struct check_item *d, size_t n, struct archive_crcs *a)
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
	struct reader *r = f->r;
	const struct crc_reader reader = { r->buf, BLOCK_SIZE, add_read, r };

	for (size_t i = 0; i < a->n; i++) {
		struct crc_member *m = &a->v[i];
		uint64_t before = r->done;
		struct ckpt_err why;

		if (!m->wanted)
			continue;
		if (!archive_crcs_verify(m, &f->blob, &reader, &why)) {
			r->found->crcs += m->crc != 0;
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
static void check_file(struct reader *r, uint32_t number, struct check_item *d, size_t n)
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

/* ---- parts ---- */

static bool next_part(void *arg, void *item, uint64_t *ret_blocks)
{
	struct reading *x = arg;
	struct part *p = item;
	size_t n_files;

	*ret_blocks = 1;
	(void)catalog_sources(x->d->eng->catalog, &n_files);
	if (x->next_file == n_files) {
		if (!jiter_next(&x->next_hash))
			return false;
		p->hashed = x->next_hash.key;
		p->hash = x->next_hash.v;
		return true;
	}
	p->number = x->next_file++;
	p->items = x->d->items ? x->d->items + x->next_item : NULL;
	while (x->next_item < x->d->n && x->d->items[x->next_item].loc.file == p->number) {
		x->next_item++;
		p->n++;
	}
	return true;
}

static void read_hashed(struct reader *r, const struct part *p)
{
	const struct integrity_work work = { r->buf, BLOCK_SIZE, add_read, r };
	struct ckpt_err why;

	if (integrity_verify(&r->of->integrity, p->hashed, p->hash, &work, &why))
		add_fault(r, NULL, 0, why.msg);
	else
		r->found->hashes++;
}

static void read_part(void *arg, void *worker, void *item, uint64_t block, void *result)
{
	struct reader *r = worker;
	const struct part *p = item;

	(void)arg;
	(void)block;
	r->found = result;
	if (p->hashed)
		read_hashed(r, p);
	else
		check_file(r, p->number, p->items, p->n);
}

static int merge_found(void *arg, void *item, const void *result)
{
	struct reading *x = arg;
	const struct found *f = result;

	(void)item;
	x->d->bytes += f->bytes;
	x->d->crcs += f->crcs;
	x->d->hashes += f->hashes;
	x->nomem |= f->nomem;
	for (size_t i = 0; i < f->n; i++) {
		x->d->fault(x->d->arg, f->faults[i].fqn, f->faults[i].fqn_len, f->faults[i].what);
		free(f->faults[i].what);
	}
	free(f->faults);
	return 0;
}

static int end_part(void *arg, void *item)
{
	(void)arg;
	(void)item;
	return 0;
}

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	struct reader *r = worker;

	r->of = arg;
	r->eng = r->of->d->eng;
	r->buf = malloc(BLOCK_SIZE);
	return r->buf ? 0 : err_nomem(e);
}

static void teardown(void *arg, void *worker)
{
	struct reader *r = worker;

	(void)arg;
	free(r->buf);
}

/* The integrity.json that Megatron-core may have written beside its metadata. */
static int open_integrity(struct reading *x, struct ckpt_err *e)
{
	const struct engine *eng = x->d->eng;
	const char *first = eng->metadata.v[0], *slash = strrchr(first, '/');
	struct ckpt_err why;

	x->dir = strndup(first, slash ? (size_t)(slash + 1 - first) : 0);
	if (!x->dir)
		return err_nomem(e);
	if (!strncmp(eng->format->name, "megatron", 8) &&
	    integrity_open(eng->c->place, x->dir, &x->integrity, &why))
		x->d->fault(x->d->arg, NULL, 0, why.msg);
	return 0;
}

int check_data_run(struct check_data *d, struct ckpt_err *e)
{
	struct reading x = { .d = d, .lock = PTHREAD_MUTEX_INITIALIZER };
	const struct pipeline p = {
		.item_size = sizeof(struct part),
		.result_size = sizeof(struct found),
		.worker_size = sizeof(struct reader),
		.jobs = d->jobs,
		.arg = &x,
		.next = next_part,
		.merge = merge_found,
		.finish = end_part,
		.setup = setup,
		.teardown = teardown,
		.work = read_part,
	};
	int rc;

	d->bytes = d->crcs = d->hashes = 0;
	if (d->n)
		qsort(d->items, d->n, sizeof(*d->items), by_place);
	for (size_t i = 0; i < d->n; i++)
		x.total +=
			i && !by_place(&d->items[i - 1], &d->items[i]) ? 0 : d->items[i].loc.length;
	rc = open_integrity(&x, e);
	x.total += x.integrity.bytes;
	x.next_hash = jiter(jdoc_root(&x.integrity.files));
	if (!rc)
		rc = pipeline_run(&p, e);
	if (!rc && x.nomem)
		rc = err_nomem(e);
	integrity_close(&x.integrity);
	free(x.dir);
	return rc;
}
