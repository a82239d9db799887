/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check: every tensor is covered exactly once, every file is long enough, and every item holds what
 * the metadata says. With data, check_data.c reads every item.
 */
#include <ckptfs/ckpt.h>

#include "base/err.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/scan/check_data.h"
#include "index/catalog_query.h"
#include "model/chunkmap.h"
#include "read/derived.h"
#include "read/fetch.h"
#include "tree/view.h"

#include <stdlib.h>
#include <string.h>

struct run {
	struct engine *eng;
	struct ckpt_check *k;
	struct check_item *items; /* to be read */
	size_t n, cap;
};

static void report(struct ckpt_check *k, const char *fqn, size_t len, const char *what,
		   bool warning)
{
	struct ckpt_fault f = { fqn, len, what, warning, NULL };

	k->faults += !warning;
	k->fault(k->arg, &f);
}

static int add_item(struct run *r, const struct chunk_loc *loc, uint64_t needs, size_t owner,
		    bool object, struct ckpt_err *e)
{
	if (!VEC_ROOM(r->items, r->cap, r->n + 1))
		return err_nomem(e);
	r->items[r->n++] = (struct check_item){ *loc, needs, (uint32_t)owner, object, false };
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
			rc = add_item(r, &otensor_locs(items)[k], otensor_needs(items, k), number,
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
	return r->k->data && !o->text ? add_item(r, &o->loc, 0, number, true, e) : 0;
}

/* ---- data ---- */

static void report_read(void *arg, const char *fqn, size_t len, const char *what)
{
	struct run *r = arg;

	report(r->k, fqn, len, what, false);
}

static void report_progress(void *arg, uint64_t done, uint64_t total)
{
	const struct run *r = arg;

	r->k->progress(r->k->arg, done, total);
}

static int read_data(struct run *r, struct ckpt_err *e)
{
	struct check_data d = {
		.eng = r->eng,
		.items = r->items,
		.n = r->n,
		.jobs = r->k->jobs,
		.fault = report_read,
		.progress = r->k->progress ? report_progress : NULL,
		.arg = r,
	};
	int rc = check_data_run(&d, e);

	r->k->bytes = d.bytes;
	r->k->crcs = d.crcs;
	r->k->hashes = d.hashes;
	return rc;
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
	check_files(&r);
	check_notes(&r);
	for (size_t i = 0; !rc && i < view_tensors(r.eng->view); i++) {
		view_tensor(r.eng->view, i, &t);
		rc = check_tensor(&r, t.sources[0], e);
	}
	for (size_t i = 0; !rc && i < view_objects(r.eng->view); i++)
		rc = check_object(&r, view_object(r.eng->view, i, &fqn, &len), e);
	if (!rc && k->data)
		rc = read_data(&r, e);
	free(r.items);
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
