/* SPDX-License-Identifier: Apache-2.0 */
#include "scan_util.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "format/format.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "rng.h"
#include "source/place.h"
#include "suites.h"

#include <string.h>

int scan_place(struct place *place, const char *file, const struct scan_opts *o,
	       struct catalog **ret, struct ckpt_err *e)
{
	struct name_list files = { 0 };
	struct catalog_writer *w = NULL;
	const struct format *f;
	int rc = format_detect(place, file, &f, &files, e);

	if (!rc)
		rc = catalog_writer_new(NULL, f->name, "/", &w, e);
	if (!rc)
		rc = f->scan(place, &files, o, w, e);
	if (!rc)
		rc = catalog_writer_finish(w, ret, e);
	catalog_writer_free(w);
	name_list_release(&files);
	return rc;
}

int scan_file(int dirfd, const char *file, const struct scan_opts *o, struct catalog **ret,
	      struct ckpt_err *e)
{
	struct place *place CLEANUP(place_freep) = NULL;
	int rc = try_place(dirfd, &place, e);

	return rc ? rc : scan_place(place, file, o, ret, e);
}

int scan_dir(int dirfd, const struct scan_opts *o, struct catalog **ret, struct ckpt_err *e)
{
	return scan_file(dirfd, NULL, o, ret, e);
}

void scan_expect(int dirfd, const char *want)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	autofree char *got = NULL;

	ck_assert_msg(!scan_dir(dirfd, &(struct scan_opts){ 0 }, &c, &e), "%s", e.msg);
	ck_assert_int_eq(e.code, 0);
	got = catalog_text(c);
	ck_assert_str_eq(got, want);
	catalog_close(c);
}

static void u64s(struct buf *b, const uint64_t *v, size_t n)
{
	buf_json_u64s(b, v, n);
}

char *catalog_text(struct catalog *c)
{
	struct buf b = BUF_INIT(1 << 20);
	size_t n, n_objects, k;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	const struct catalog_object *o = catalog_objects(c, &n_objects);
	const struct stored_file *s = catalog_sources(c, &k);
	const char *const *enc = catalog_encodings(c, &k);
	static const char *const state[] = { "complete", "incomplete", "overlapping" };

	buf_str(&b, "");
	for (size_t i = 0; i < n; i++) {
		autofree struct chunkmap *m = NULL;
		struct ckpt_err e = { 0 };

		REQUIRE(!catalog_load_map(c, &t[i], &m, &e));
		buf_printf(&b, "%s %s ", t[i].fqn, dtype_info(t[i].dtype)->name);
		u64s(&b, t[i].shape, t[i].n_dims);
		buf_printf(&b, " %s:", state[t[i].state]);
		for (uint32_t i2 = 0; i2 < m->count; i2++) {
			uint64_t off[64], len[64];

			chunkmap_box(m, i2, off, len);
			buf_str(&b, " ");
			u64s(&b, off, t[i].n_dims);
			buf_str(&b, "+");
			u64s(&b, len, t[i].n_dims);
			buf_printf(&b, "@%s:%llu+%llu,%s", s[m->locs[i2].file].path,
				   (unsigned long long)m->locs[i2].offset,
				   (unsigned long long)m->locs[i2].length,
				   enc[m->locs[i2].encoding]);
		}
		buf_str(&b, "; ");
	}
	for (size_t i = 0; i < n_objects; i++) {
		buf_printf(&b, "%s object: ", o[i].fqn);
		if (o[i].fault)
			buf_str(&b, "lost; ");
		else if (o[i].text)
			buf_printf(&b, "%u bytes; ", o[i].text_len);
		else
			buf_printf(&b, "%s:%llu+%llu,%s; ", s[o[i].loc.file].path,
				   (unsigned long long)o[i].loc.offset,
				   (unsigned long long)o[i].loc.length, enc[o[i].loc.encoding]);
	}
	REQUIRE(!b.err);
	return b.data;
}

void scan_flipped(int dirfd, const char *name, scan_fn *scan, unsigned many, unsigned few)
{
	struct rng r = rng_new();
	size_t n;
	autofree uint8_t *p = get_file(dirfd, name, &n);

	for (unsigned i = 0; i < rng_rounds(many, few); i++) {
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		size_t at = rng_below(&r, n);
		uint8_t bit = (uint8_t)(1 << rng_below(&r, 8));
		int rc;

		p[at] ^= bit;
		put_file(dirfd, name, p, n);
		p[at] ^= bit;
		rc = scan(&c, &e);
		REQUIRE(rc ? rc < 0 && e.code == -rc && e.msg[0] && !c : c != NULL);
		catalog_close(c);
	}
}

static void scan_failing_so(int dirfd, enum fault_kind kind, unsigned least, const char *want)
{
	unsigned failed = 0;

	FAULT_LOOP(kind)
	{
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		autofree char *text = NULL;
		int rc = scan_dir(dirfd, &(struct scan_opts){ 0 }, &c, &e);
		uint64_t calls = fault_off();

		if (rc) {
			ck_assert(fault_hit() && !c && e.code == -rc && e.msg[0]);
			ck_assert_msg(kind != FAULT_ALLOC || rc == -ENOMEM || rc == -EFBIG,
				      "call %llu: %d: %s", (unsigned long long)calls, rc, e.msg);
			ck_assert_msg(rc != -ENOMEM || strstr(e.msg, "memory") != NULL,
				      "call %llu: %s", (unsigned long long)calls, e.msg);
			failed++;
			continue;
		}
		text = catalog_text(c);
		ck_assert_msg(!strcmp(text, want), "call %llu: %s", (unsigned long long)calls,
			      text);
		catalog_close(c);
	}
	ck_assert_uint_ge(failed, least);
}

void scan_failing(int dirfd)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	autofree char *want = NULL;

	fault_sqlite();
	ck_assert_msg(!scan_dir(dirfd, &(struct scan_opts){ 0 }, &c, &e), "%s", e.msg);
	want = catalog_text(c);
	catalog_close(c);
	scan_failing_so(dirfd, FAULT_ALLOC, 10, want);
	scan_failing_so(dirfd, FAULT_READ | FAULT_OPEN, 2, want);
}
