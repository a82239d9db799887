/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch Distributed Checkpoint (torch.distributed.checkpoint), torch 1.13 to 2.14; for torch 1.12
 * see dcp_ancient.c.
 *
 *	CKPT/.metadata           one pickle: which chunks exist, which bytes hold each
 *	CKPT/__{rank}_{n}.distcp items packed end to end; the names carry no meaning
 *	CKPT/__{rank}.metadata   instead of .metadata: rank-local saves (use_collectives=False)
 *
 * .metadata is written last and renamed into place, so without it a save was interrupted
 * (torch/distributed/checkpoint/filesystem.py, _FileSystemWriter.finish).
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/dcp/dcp_records.h"
#include "format/format.h"
#include "format/metafile.h"
#include "parse/pickle.h"
#include "source/place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* N of "__N.metadata", in whatever directory, or -1. */
static long rank_of(const char *name)
{
	const char *slash = strrchr(name, '/');
	char *end;
	long r;

	name = slash ? slash + 1 : name;
	if (strncmp(name, "__", 2) != 0 || name[2] < '0' || name[2] > '9')
		return -1;
	errno = 0;
	r = strtol(name + 2, &end, 10);
	return !errno && r < INT32_MAX && !strcmp(end, ".metadata") ? r : -1;
}

struct listing {
	struct name_list *files;
	bool interrupted; /* data files exist */
	/* Of ranks; filesystem.py names data files after the rank that has written them. */
	struct name_list data;
};

static void listing_release(struct listing *l)
{
	name_list_release(&l->data);
}

/* The rank in "__R_N.distcp", or -1. */
static long data_rank_of(const char *name)
{
	const char *s = name;
	uint32_t rank, n;

	return text_take(&s, "__") && text_take_number(&s, 9, &rank) && text_take(&s, "_") &&
			       text_take_number(&s, 9, &n) && !strcmp(s, ".distcp")
		       ? (long)rank
		       : -1;
}

/* PaddlePaddle's R_N.distcp, beside N.metadata, are no data files of ours. */
static bool is_data(const char *name)
{
	return text_glob("*?.distcp", name, strlen(name)) &&
	       !text_glob("[0-9]*_[0-9]*.distcp", name, strlen(name));
}

static int add_rank(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct listing *l = arg;

	(void)kind;
	l->interrupted |= !strcmp(name, ".metadata.tmp") || is_data(name);
	if (data_rank_of(name) >= 0)
		return name_list_add(&l->data, name, e);
	return rank_of(name) >= 0 ? name_list_add(l->files, name, e) : 0;
}

static int by_number(const void *a, const void *b)
{
	const long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Does each rank that has written data have its metadata, and only one? Names may have leading
 * zeros. */
static int check_ranks(const struct listing *l, struct ckpt_err *e)
{
	autofree long *ranks = calloc(l->files->n + 1, sizeof(*ranks));

	if (!ranks)
		return err_nomem(e);
	for (size_t i = 0; i < l->files->n; i++)
		ranks[i] = rank_of(l->files->v[i]);
	qsort(ranks, l->files->n, sizeof(*ranks), by_number);
	for (size_t i = 1; i < l->files->n; i++)
		if (ranks[i] == ranks[i - 1])
			return err_set(e, ERR_CORRUPT,
				       "two metadata files are of rank %ld: one is from another "
				       "checkpoint",
				       ranks[i]);
	for (size_t i = 0; i < l->data.n; i++) {
		long rank = data_rank_of(l->data.v[i]);

		if (!bsearch(&rank, ranks, l->files->n, sizeof(*ranks), by_number))
			return err_set(e, ENOENT,
				       "'__%ld.metadata' is missing, though '%.100s' is there: the "
				       "save was interrupted, or that file is of an older one",
				       rank, l->data.v[i]);
	}
	return 0;
}

static int probe(struct place *place, const char *file, struct name_list *files, struct ckpt_err *e)
{
	struct listing l CLEANUP(listing_release) = { .files = files };
	struct place_seen seen;
	int rc;

	if (file) /* the format is a directory */
		return 0;
	rc = place_look(place, ".metadata", &seen, e);
	if (rc > 0 && name_list_add(files, ".metadata", e))
		return -e->code;
	if (rc)
		return rc;
	rc = place_list(place, ".", add_rank, &l, e);
	if (rc)
		return rc;
	name_list_sort(files);
	if (files->n) {
		rc = check_ranks(&l, e);
		if (rc)
			name_list_release(files);
		return rc ? rc : 1;
	}
	if (l.interrupted)
		return err_set(e, ENOENT,
			       ".metadata is missing although data files are there: the save was "
			       "interrupted");
	return 0;
}

struct reading {
	struct dcp_records *r;
	struct catalog_writer *w;
	uint32_t rank;
};

static int parse(void *arg, const struct pickle_input *in, struct ckpt_err *e)
{
	struct reading *x = arg;

	return dcp_read_metadata(x->r, x->rank, in, x->w, e);
}

int dcp_read_metafiles(struct dcp_records *r, struct place *place, const struct dcp_metafile *v,
		       size_t n, const struct scan_opts *opts, struct catalog_writer *w,
		       struct ckpt_err *e)
{
	struct metafiles m;
	int rc = metafiles_init(&m, place, opts, e);

	for (size_t i = 0; !rc && i < n; i++)
		metafiles_expect(&m, v[i].name);
	for (size_t i = 0; !rc && i < n; i++) {
		struct reading x = { r, w, v[i].rank };

		rc = metafiles_read(&m, v[i].name, parse, &x, w, e);
	}
	metafiles_release(&m);
	return rc;
}

struct scanning {
	struct dcp_looks looks;
	struct catalog_writer *w;
};

static int quantised(void *arg, const struct dcp_records *r, const struct dcp_inside *q,
		     struct ckpt_err *e)
{
	struct scanning *x = arg;

	return dcp_report_quantiser(&x->looks, r, q, x->w, e);
}

static int wrapped(void *arg, const struct dcp_records *r, const struct dcp_inside *q,
		   struct ckpt_err *e)
{
	struct scanning *x = arg;

	return dcp_report_wrapped(&x->looks, r, q, x->w, e);
}

static int cut(void *arg, const struct dcp_cut *of, char not_shown[static FORMAT_NOTE],
	       struct ckpt_err *e)
{
	struct scanning *x = arg;

	return dcp_report_cut(&x->looks, of, not_shown, x->w, e);
}

static int sample(void *arg, const struct dcp_inside *q, struct digest *ret, struct ckpt_err *e)
{
	struct scanning *x = arg;

	return dcp_sample(&x->looks, q, x->w, ret, e);
}

int dcp_scan(struct place *place, char *const *names, size_t n, const struct scan_opts *opts,
	     struct catalog_writer *w, struct ckpt_err *e)
{
	const char *slash = strrchr(names[0], '/');
	struct scanning scanning = { { place, 0 }, w };
	const struct dcp_join_opts join = { .quantised = quantised,
					    .wrapped = wrapped,
					    .cut = cut,
					    .sample = sample,
					    .arg = &scanning,
					    .many = n > 1 || rank_of(names[0]) >= 0,
					    .dir = names[0],
					    .dir_len = slash ? (size_t)(slash + 1 - names[0]) : 0 };
	autofree struct dcp_metafile *v = calloc(n + 1, sizeof(*v));
	struct dcp_records r;
	struct ckpt_err why = { 0 };
	int rc;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		long rank = rank_of(names[i]);

		v[i] = (struct dcp_metafile){ names[i], rank < 0 ? 0 : (uint32_t)rank };
	}
	rc = dcp_records_init(&r, &why);
	if (!rc)
		rc = dcp_read_metafiles(&r, place, v, n, opts, w, &why);
	scanning.looks.left = DCP_LOOKS_FIRST + DCP_LOOKS_EACH * r.n_storage;
	if (!rc)
		rc = dcp_join(&r, &join, w, &why);
	if (rc && r.ancient && n == 1)
		rc = dcp_scan_ancient(place, names[0], join.dir_len, opts, w, e);
	else if (rc)
		*e = why;
	dcp_records_release(&r);
	return rc;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	return dcp_scan(place, files->v, files->n, opts, w, e);
}

const struct format format_dcp = { .name = "dcp", .probe = probe, .scan = scan };
