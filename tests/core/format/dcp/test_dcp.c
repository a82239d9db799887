/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "format/format.h"
#include "index/catalog_query.h"
#include "parse/pickle_lex.h"
#include "path_util.h"
#include "rng.h"
#include "scan_util.h"
#include "source/place.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- which files ---- */

static const struct {
	const char *files; /* files to create, separated by spaces */
	const char *found; /* or: */
	const char *msg;
} directories[] = {
	{ ".metadata", ".metadata ", NULL },
	{ ".metadata __0.metadata .metadata.tmp x.distcp", ".metadata ", NULL },
	{ "__0.metadata", "__0.metadata ", NULL },
	{ "__10.metadata __9.metadata __9_0.distcp __10_17.distcp __2.metadata.tmp __x_0.distcp "
	  "__7_0.distcp2 __7_x.distcp __7.distcp",
	  "__9.metadata __10.metadata ", NULL },
	{ "__10.metadata __9.metadata __9_0.distcp __0_0.distcp", NULL,
	  "'__0.metadata' is missing, though '__0_0.distcp' is there: the save was interrupted, or "
	  "that file is of an older one" },
	{ "__0.metadata __-1.metadata __x.metadata __1.metadata2 _2.metadata __3metadata "
	  "__99999999999.metadata",
	  "__0.metadata ", NULL },
	{ "", NULL, "not a checkpoint: nothing is in it" },
	{ "b.10 b.9 a c __.metadata", NULL,
	  "not a checkpoint: found '__.metadata', 'a', 'b.9', ...; PyTorch DCP has " },
	{ "__0_0.distcp", NULL,
	  ".metadata is missing although data files are there: the save was interrupted" },
	{ ".metadata.tmp", NULL,
	  ".metadata is missing although data files are there: the save was interrupted" },
};

START_LOOP_TEST(a_checkpoint_is_known_by_its_metadata_files, ARRAY_LEN(directories))
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	autofree char *files = strdup(directories[_i].files);
	struct name_list l = { 0 };
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };
	char found[200] = "", *save;
	int rc;

	for (char *s = strtok_r(files, " ", &save); s; s = strtok_r(NULL, " ", &save))
		put_file(dir_fd, s, "", 0);
	rc = format_detect(place, NULL, &f, &l, &e);
	ck_assert_int_eq(rc, directories[_i].msg ? -ENOENT : 0);
	/* The message goes on with how to recognise the other formats. */
	if (directories[_i].msg)
		ck_assert_mem_eq(e.msg, directories[_i].msg, strlen(directories[_i].msg));
	for (size_t i = 0; i < l.n; i++)
		(void)snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s ", l.v[i]);
	ck_assert_str_eq(found, directories[_i].found ? directories[_i].found : "");
	if (!rc)
		ck_assert_str_eq(f->name, "dcp");
	name_list_release(&l);
}
END_TEST

START_TEST(two_metadata_files_of_one_rank_are_refused)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	struct name_list l = { 0 };
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };

	put_file(dir_fd, "__0.metadata", "", 0);
	put_file(dir_fd, "__1.metadata", "", 0);
	put_file(dir_fd, "__00.metadata", "", 0);
	ck_assert_int_eq(format_detect(place, NULL, &f, &l, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "two metadata files are of rank 0: one is from another checkpoint");
	ck_assert_uint_eq(l.n, 0);
}
END_TEST

/* ---- scanning ---- */

static int scan_with(const struct scan_opts *o, struct catalog **ret, struct ckpt_err *e)
{
	return scan_dir(dir_fd, o, ret, e);
}

static int scan(struct catalog **ret, struct ckpt_err *e)
{
	return scan_with(&(struct scan_opts){ 0 }, ret, e);
}

static void expect(const char *want)
{
	scan_expect(dir_fd, want);
}

#define U(...) \
	(const uint64_t[]) \
	{ \
		__VA_ARGS__ \
	}

START_TEST(tensors_and_objects_are_joined_with_their_items)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "float32", 2, U(4, 2), 2, U(0, 0, 2, 2, 2, 0, 2, 2));
	dcp_object(&d, "step", 4);
	dcp_tensor(&d, "n", 1, "int64", 0, U(0), 1, U(0));
	dcp_stored(&d, "step", 4, DCP_NO_OFFSET, NULL, "a", 0, 10, 0);
	dcp_stored(&d, "w", 1, 2, U(2, 0), "b/c", 30, 40, 1);
	dcp_stored(&d, "w", 1, 2, U(0, 0), "a", 10, 20, 0);
	dcp_stored(&d, "n", 1, 0, U(0), "a", INT64_MAX - 5, 5, 2);
	dcp_end(&d, ".metadata");
	expect("n int64 [] complete: "
	       "[]+[]@a:9223372036854775802+5,dcp+stream.zstd/1+stream.zstd/1; "
	       "w float32 [4,2] complete: [0,0]+[2,2]@a:10+20,dcp "
	       "[2,0]+[2,2]@b/c:30+40,dcp+stream.zstd/1; "
	       "step object: a:0+10,dcp; ");
}
END_TEST

START_TEST(a_number_is_not_an_object)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "n", 1, "int64", 0, U(0), 1, U(0));
	dcp_object(&d, "o", 1);
	dcp_stored(&d, "n", 1, DCP_NO_OFFSET, NULL, "a", 0, 10, 0); /* no offset at all */
	dcp_stored(&d, "o", 1, 0, U(0), "a", 0, 10, 0);		    /* the offset () */
	dcp_end(&d, ".metadata");
	expect("n int64 [] incomplete:; o object: lost; ");
}
END_TEST

START_TEST(of_two_entries_for_one_place_the_later_counts)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(2), 1, U(0, 1)); /* the later of two keys counts */
	dcp_object(&d, "o", 1);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(4), 1, U(0, 4));
	dcp_stored(&d, "w", 1, 1, U(0), "a", 0, 10, 0);
	dcp_stored(&d, "o", 1, DCP_NO_OFFSET, NULL, "a", 0, 10, 0);
	dcp_stored(&d, "w", 1, 1, U(0), "b", 5, 11, 0);
	dcp_stored(&d, "o", 1, DCP_NO_OFFSET, NULL, "b", 6, 12, 0);
	dcp_end(&d, ".metadata");
	expect("w uint8 [4] complete: [0]+[4]@b:5+11,dcp; o object: b:6+12,dcp; ");
}
END_TEST

/* With use_orig_params=True, 'n.weight' is a piece that one rank had; the metadata calls it a
 * tensor. */
START_TEST(pieces_of_flat_parameters_are_told)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "n._flat_param", 13, "uint8", 1, U(4), 2, U(0, 2, 2, 2));
	dcp_stored(&d, "n._flat_param", 13, 1, U(0), "a", 0, 10, 0);
	dcp_stored(&d, "n._flat_param", 13, 1, U(2), "b", 0, 10, 0);
	dcp_tensor(&d, "n.weight", 8, "uint8", 1, U(2), 1, U(0, 2));
	dcp_stored(&d, "n.weight", 8, 1, U(0), "a", 10, 10, 0);
	dcp_end(&d, ".metadata");
	expect("n._flat_param uint8 [4] complete: [0]+[2]@a:0+10,dcp [2]+[2]@b:0+10,dcp; "
	       "n.weight uint8 [2] complete: [0]+[2]@a:10+10,dcp; not_shown object: 268 bytes; ");
}
END_TEST

/* torch 2.0 gave empty shards the offset of real ones. */
START_TEST(empty_chunks_claim_nothing)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(4), 4, U(0, 0, 0, 4, 4, 0, 0, 0));
	dcp_stored(&d, "w", 1, 1, U(0), "a", 0, 10, 0);
	dcp_end(&d, ".metadata");
	expect("w uint8 [4] complete: [0]+[4]@a:0+10,dcp; ");
}
END_TEST

START_TEST(what_is_listed_but_not_stored_is_incomplete)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(4), 2, U(0, 2, 2, 2));
	dcp_object(&d, "o", 1);
	dcp_stored(&d, "w", 1, 1, U(0), "a", 0, 10, 0);
	dcp_stored(&d, "other", 5, 1, U(2), "a", 0, 10, 0); /* no tensor has it */
	dcp_end(&d, ".metadata");
	expect("w uint8 [4] incomplete: [0]+[2]@a:0+10,dcp; o object: lost; ");
}
END_TEST

/* Scale and zero point are in the item: 0.1 and 10. */
START_LOOP_TEST(quantised_tensors_have_their_quantisers_beside_them, 7)
{
	static const char item[] = "q qint8 [4] complete: [0]+[4]@a:7+%zu,dcp%s; ";
	const int64_t size[] = { 4 };
	const struct saved q = { .how = REBUILD_Q,
				 .dtype = CKPT_DTYPE_QI8,
				 .n_dims = 1,
				 .size = size,
				 .storage = "abcd",
				 .storage_bytes = 4 };
	struct buf b = BUF_INIT(0), file = BUF_INIT(1 << 16);
	const char *more = "";
	char want[300];
	struct dcp d;

	(void)saved_item(&b, &q);
	buf_str(&file, "before ");
	buf_add(&file, b.data, _i == 4 ? 40 : b.len);
	put_file(dir_fd, "a", file.data, file.len);
	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "q", 1, "qint8", 1, U(4), 1, U(0, 4));
	if (_i == 1 || _i == 2) /* the names are taken */
		dcp_object(&d, _i == 1 ? "q.scale" : "q.axis", _i == 1 ? 7 : 6);
	dcp_stored(&d, "q", 1, 1, U(0), _i == 6 ? "absent" : "a", 7, (int64_t)b.len, _i == 3);
	dcp_end(&d, ".metadata");
	if (_i == 5)
		put_file(dir_fd, "a", "not what it was", 15);
	(void)snprintf(want, sizeof(want), item, b.len, _i == 3 ? "+stream.zstd/1" : "");
	if (!_i)
		more = "q.scale object: 4 bytes; q.zero_point object: 3 bytes; ";
	else if (_i < 3)
		more = _i == 1 ? "q.scale object: lost; " : "q.axis object: lost; ";
	if (_i == 6)
		(void)snprintf(want, sizeof(want),
			       "q qint8 [4] complete: [0]+[4]@absent:7+%zu,dcp; ", b.len);
	(void)snprintf(want + strlen(want), sizeof(want) - strlen(want), "%s", more);
	expect(want);
	buf_release(&b);
	buf_release(&file);
}
END_TEST

START_TEST(an_empty_checkpoint_is_one)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_end(&d, ".metadata");
	expect("");
}
END_TEST

static void put_rank(int rank, const char *dtype, uint64_t rows, uint64_t from, uint64_t count)
{
	char name[32], file[32];
	struct dcp d;

	(void)snprintf(name, sizeof(name), "__%d.metadata", rank);
	(void)snprintf(file, sizeof(file), "f%d", rank);
	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, dtype, 1, &rows, 1, U(from, count));
	dcp_stored(&d, "w", 1, 1, &from, file, 0, 10, 0);
	dcp_object(&d, "o", 1);
	dcp_stored(&d, "o", 1, DCP_NO_OFFSET, NULL, file, 10, 10, 0);
	if (rank == 2) {
		dcp_tensor(&d, "own", 3, "bool", 0, U(0), 1, U(0));
		dcp_stored(&d, "own", 3, 0, U(0), file, 20, 10, 0);
		dcp_object(&d, "mine", 4);
		dcp_stored(&d, "mine", 4, DCP_NO_OFFSET, NULL, file, 30, 10, 0);
	}
	dcp_end(&d, name);
}

START_TEST(rank_files_that_agree_are_one_tensor)
{
	put_rank(0, "uint8", 6, 0, 2);
	put_rank(10, "uint8", 6, 4, 2);
	put_rank(2, "uint8", 6, 2, 2);
	expect("own bool [] complete: []+[]@f2:20+10,dcp; "
	       "w uint8 [6] complete: [0]+[2]@f0:0+10,dcp [2]+[2]@f2:0+10,dcp "
	       "[4]+[2]@f10:0+10,dcp; "
	       "mine object: f2:30+10,dcp; "
	       "o@rank0 object: f0:10+10,dcp; o@rank2 object: f2:10+10,dcp; o@rank10 object: "
	       "f10:10+10,dcp; ");
}
END_TEST

/* Files of an earlier save by more ranks may be left; their parts are smaller, and there are no
 * holes. */
START_TEST(rank_files_of_two_saves_are_told)
{
	put_rank(0, "uint8", 6, 0, 3);
	put_rank(1, "uint8", 6, 3, 3);
	put_rank(3, "uint8", 6, 4, 1);
	expect("w uint8 [6] incomplete: [0]+[3]@f0:0+10,dcp [3]+[3]@f1:0+10,dcp "
	       "[4]+[1]@f3:0+10,dcp; o@rank0 object: f0:10+10,dcp; o@rank1 object: f1:10+10,dcp; "
	       "o@rank3 object: f3:10+10,dcp; ");
}
END_TEST

START_LOOP_TEST(rank_files_that_disagree_stay_apart, 2)
{
	put_rank(0, "uint8", 4, 0, 4);
	put_rank(1, _i ? "int8" : "uint8", _i ? 4 : 5, 0, _i ? 4 : 5);
	expect(_i ? "w@rank0 uint8 [4] complete: [0]+[4]@f0:0+10,dcp; w@rank1 int8 [4] complete: "
		    "[0]+[4]@f1:0+10,dcp; o@rank0 object: f0:10+10,dcp; o@rank1 object: "
		    "f1:10+10,dcp; "
		  : "w@rank0 uint8 [4] complete: [0]+[4]@f0:0+10,dcp; w@rank1 uint8 [5] complete: "
		    "[0]+[5]@f1:0+10,dcp; o@rank0 object: f0:10+10,dcp; o@rank1 object: "
		    "f1:10+10,dcp; ");
}
END_TEST

START_TEST(replicas_of_several_ranks_count_once_the_first)
{
	put_rank(0, "uint8", 4, 0, 4);
	put_rank(1, "uint8", 4, 0, 4);
	expect("w uint8 [4] complete: [0]+[4]@f0:0+10,dcp; o@rank0 object: f0:10+10,dcp; "
	       "o@rank1 object: f1:10+10,dcp; ");
}
END_TEST

/* The rank has saved the whole of a tensor of its own, compressed `layers` times. */
static void put_own_by(int rank, const char *text, unsigned layers, int64_t step)
{
	const char prefix[] = { '_', '_', (char)('0' + rank), '_', 0 };
	uint64_t bytes = strlen(text), size = (bytes - 1) / (uint64_t)step + 1, zero = 0;
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = (const int64_t[]){ (int64_t)size },
			   .stride = (const int64_t[]){ step },
			   .storage = text,
			   .storage_bytes = bytes };
	struct buf b = BUF_INIT(0);
	struct chunk_loc l;
	char name[40];
	struct dcp d;

	dcp_begin(&d, dir_fd);
	d.prefix = prefix;
	(void)saved_item(&b, &t);
	l = dcp_item(&d, 0, b.data, b.len, layers);
	(void)snprintf(name, sizeof(name), "%s0.distcp", prefix);
	dcp_tensor(&d, "w", 1, "uint8", 1, &size, 1, (uint64_t[]){ 0, size });
	dcp_stored(&d, "w", 1, 1, &zero, name, (int64_t)l.offset, (int64_t)l.length, layers);
	buf_release(&b);
	(void)snprintf(name, sizeof(name), "__%d.metadata", rank);
	dcp_end(&d, name);
}

static void put_own(int rank, const char *text, unsigned layers)
{
	put_own_by(rank, text, layers, 1);
}

/* The tensors that are shown, and nothing else. */
static void expect_shown(const char *want)
{
	const struct catalog_tensor *t;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	char got[200] = "";
	size_t n;

	ck_assert_msg(!scan(&c, &e), "%s", e.msg);
	t = catalog_tensors(c, &n);
	for (size_t i = 0; i < n; i++)
		(void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s ", t[i].fqn);
	(void)catalog_objects(c, &n);
	ck_assert_uint_eq(n, 0);
	ck_assert_str_eq(got, want);
	catalog_close(c);
}

/* Tensors that are not sharded are each rank's own; until 0.5.1 only one rank's was shown. */
START_TEST(whole_tensors_of_other_values_stay_apart)
{
	put_own(0, "abc", 0);
	put_own(1, "abc", 0);
	expect_shown("w ");
	put_own(2, "abd", 0);
	expect_shown("w@rank0 w@rank1 w@rank2 ");
	scan_failing(dir_fd);
	put_own(2, "abc", 1); /* it is not decompressed to compare it */
	expect_shown("w ");
	put_own(1, "abc", 1); /* but two compressed ones are compared as stored */
	expect_shown("w ");
	put_own(0, "abd", 1);
	expect_shown("w@rank0 w@rank1 w@rank2 ");
	scan_failing(dir_fd);
	put_own(0, "abcd", 1); /* they are of other shapes anyway */
	expect_shown("w@rank0 w@rank1 w@rank2 ");
	put_own(0, "abc", 1);
	put_own(1, "abd", 1);
	put_file(dir_fd, "__1_0.distcp", "damaged", 7); /* reading it reports the damage */
	expect_shown("w ");
	put_own(0, "abc", 0);
	put_own(1, "abc", 0);
	put_own_by(2, "a.b.c", 0, 2); /* nor are elements collected to compare them */
	expect_shown("w ");
	put_own(1, "abd", 0); /* the other two are enough */
	expect_shown("w@rank0 w@rank1 w@rank2 ");
	put_own_by(0, "a.b.c", 0, 2); /* whichever rank that is */
	put_own(2, "abc", 0);
	expect_shown("w@rank0 w@rank1 w@rank2 ");
	put_own(0, "abc", 0);
	put_own_by(2, "a.b.c", 0, 2);
	put_own(1, "abc", 0);
	REQUIRE(!unlinkat(dir_fd, "__2_0.distcp", 0));
	put_file(dir_fd, "__1_0.distcp", "damaged", 7);
	expect_shown("w "); /* reading says so */
	put_own(2, "xyz", 0);
	REQUIRE(!unlinkat(dir_fd, "__0_0.distcp", 0));
	expect_shown("w ");
}
END_TEST

/* Both chunks begin at 0; rank 1 has two entries for its own, rank 0 has none. */
START_TEST(a_ranks_chunk_is_its_own_items_only)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(4), 1, U(0, 4));
	dcp_end(&d, "__0.metadata");
	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(4), 1, U(0, 2));
	dcp_stored(&d, "w", 1, 1, U(0), "a", 0, 10, 0);
	dcp_stored(&d, "w", 1, 1, U(0), "b", 0, 10, 0);
	dcp_end(&d, "__1.metadata");
	expect("w uint8 [4] incomplete: [0]+[2]@b:0+10,dcp; ");
}
END_TEST

/* ---- paths ---- */

/* The paths, as "model.w model|w; o ?; ". */
static void expect_paths(const char *want)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(1 << 20);
	const struct catalog_tensor *t;
	const struct catalog_object *o;
	size_t n;

	ck_assert_msg(!scan(&c, &e), "%s", e.msg);
	buf_str(&b, "");
	t = catalog_tensors(c, &n);
	for (size_t i = 0; i < n; i++) {
		buf_printf(&b, "%s ", t[i].fqn);
		show_path(&b, t[i].path, t[i].fqn, t[i].fqn_len);
		buf_str(&b, "; ");
	}
	o = catalog_objects(c, &n);
	for (size_t i = 0; i < n; i++) {
		buf_printf(&b, "%s ", o[i].fqn);
		show_path(&b, o[i].path, o[i].fqn, o[i].fqn_len);
		buf_str(&b, "; ");
	}
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
	catalog_close(c);
}

#define KEYS(...) \
	ARRAY_LEN(((const char *const[]){ __VA_ARGS__ })), (const char *const[]) \
	{ \
		__VA_ARGS__ \
	}
#define BYTES(s) s, sizeof(s) - 1

static void scalar(struct dcp *d, const char *fqn)
{
	dcp_tensor(d, fqn, strlen(fqn), "uint8", 0, U(0), 1, U(0));
}

START_LOOP_TEST(what_leads_to_a_value_is_its_path, 2)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	d.planner_first = _i;
	scalar(&d, "model.a.b");
	scalar(&d, "model.c.d");
	scalar(&d, "my.model.e");
	scalar(&d, "not.planned");
	scalar(&d, ".f");
	dcp_object(&d, BYTES("model.step"));
	dcp_object(&d, BYTES("step"));
	dcp_path(&d, BYTES("step"), KEYS("step"));
	dcp_path(&d, BYTES("model.step"), KEYS("model", "step"));
	dcp_path(&d, BYTES("model.a.b"), KEYS("model", "a.b"));
	dcp_path(&d, BYTES("model.c.d"), KEYS("model.c.d")); /* of a flat state dict */
	dcp_path(&d, BYTES("my.model.e"), KEYS("my.model", "e"));
	dcp_path(&d, BYTES("of.nobody"), KEYS("of", "nobody"));
	dcp_path(&d, BYTES(".f"), KEYS("", "f"));
	dcp_end(&d, ".metadata");
	expect_paths(".f |f; model.a.b model|a.b; model.c.d model.c.d; my.model.e my.model|e; "
		     "not.planned ?; model.step model|step; step step; ");
}
END_TEST

/* Half of what Megatron-core writes. That would not even be a pickle, so it cannot have
 * been read. */
START_TEST(what_the_ranks_planned_is_not_read)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	scalar(&d, "w");
	dcp_object(&d, BYTES("o"));
	dcp_path(&d, BYTES("w"), KEYS("w"));
	emit_str(&d.more, "all_local_plans");
	emit_bytes(&d.more, BYTES("\xff\xfe\xfd"));
	dcp_end(&d, ".metadata");
	expect_paths("w w; o ?; ");
}
END_TEST

/* The first string that looks like the attribute is not it, so everything is loaded. */
START_LOOP_TEST(a_key_may_be_called_as_the_plans_are, 16)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	d.planner_first = _i % 2;
	if (_i & 2)
		scalar(&d, "w");
	dcp_object(&d, BYTES("all_local_plans"));
	if (_i & 4)
		scalar(&d, "all_local_plans");
	dcp_path(&d, BYTES("all_local_plans"), KEYS("all_local_plans"));
	if (_i & 8) {
		emit_str(&d.more, "all_local_plans");
		emit_op(&d.more, OP_EMPTY_LIST);
	}
	dcp_end(&d, ".metadata");
	expect_paths(_i & 4   ? _i & 2 ? "all_local_plans all_local_plans; w ?; "
				       : "all_local_plans all_local_plans; "
		     : _i & 2 ? "w ?; all_local_plans all_local_plans; "
			      : "all_local_plans all_local_plans; ");
}
END_TEST

/* Pickled values of planner_data["model.ab.w"]. */
static const struct {
	const char *bytes;
	size_t n;
	const char *path;
} paths[] = {
	{ BYTES("\x8c\5model\x8c\4ab.w\x86"), "model|ab.w" },
	{ BYTES("\x8c\5model\x8c\2abK\0\x87"), "?" }, /* a list's position */
	{ BYTES("(\x8c\5modelNNNt"), "?" },
	{ BYTES("\x8c\10model.ab\x8c\1w\x86"), "model.ab|w" },
	{ BYTES("\x8c\12model.ab.w\x85"), "model.ab.w" },
	{ BYTES("\x8c\12model.ab.w\x85q\0"), "model.ab.w" },
	{ BYTES("\x8c\4mode\x85"), "?" },
	{ BYTES("\x8c\6model.\x85"), "?" },
	{ BYTES("\x8c\11model.ab.\x85"), "?" },
	{ BYTES("\x8c\13model.ab.ww\x85"), "?" },
	{ BYTES("\x8c\14model.ab.w.x\x85"), "?" },
	{ BYTES("\x8c\5Model\x85"), "?" },
	{ BYTES("\x8c\2ab\x85"), "?" },
	{ BYTES("\x8c\5mod\0l\x85"), "?" },
	{ BYTES("\x8c\6model\0\x85"), "?" },
	{ BYTES("\x8c\0\x85"), "?" },
	{ BYTES("K\0\x8c\5model\x86"), "?" },
	{ BYTES("N\x85"), "?" },
	{ BYTES("\x88\x85"), "?" },
	{ BYTES("C\5model\x85"), "?" },	       /* bytes */
	{ BYTES("\x8c\5model\x85\x85"), "?" }, /* (("model",),) */
	{ BYTES(")"), "?" },
	{ BYTES("]\x8c\5modela"), "?" }, /* a list */
	{ BYTES("}\x8c\5modelNs"), "?" },
	{ BYTES("\x8c\5model"), "?" },
	{ BYTES("K\5"), "?" },
	{ BYTES("N"), "?" },
	{ BYTES("ctorch\nfloat32\n"), "?" },
	{ BYTES("ctorch.distributed.checkpoint.metadata\nMetadataIndex\n)\x81"), "?" },
	{ BYTES("cos\nsystem\n)R"), "?" },
};

START_LOOP_TEST(only_what_joins_to_the_name_is_a_path, ARRAY_LEN(paths))
{
	char want[64];
	struct dcp d;

	dcp_begin(&d, dir_fd);
	scalar(&d, "model.ab.w");
	scalar(&d, "next.w");
	emit_str(&d.planner, "model.ab.w");
	emit_bytes(&d.planner, paths[_i].bytes, paths[_i].n);
	dcp_path(&d, BYTES("next.w"), KEYS("next", "w"));
	dcp_end(&d, ".metadata");
	(void)snprintf(want, sizeof(want), "model.ab.w %s; next.w next|w; ", paths[_i].path);
	expect_paths(want);
}
END_TEST

/* Keys of "a.7.b", and the path that they are. */
static const struct {
	const char *bytes;
	size_t n;
	const char *path;
} numbered[] = {
	{ BYTES("\x8c\1aK\7\x8c\1b\x87"), "a|#7|b" },
	{ BYTES("\x8c\1a\x8c\0017\x8c\1b\x87"), "a|7|b" },
	{ BYTES("\x8c\1a\x8c\0037.b\x86"), "a|7.b" },
	{ BYTES("\x8c\3a.7\x8c\1b\x86"), "a.7|b" },
	{ BYTES("\x8c\1a\x8a\1\7\x8c\1b\x87"), "a|#7|b" },
	{ BYTES("\x8c\1aK\10\x8c\1b\x87"), "?" },
	{ BYTES("\x8c\1a\x8a\1\xf9\x8c\1b\x87"), "?" },		   /* -7 */
	{ BYTES("\x8c\1aG\x40\x1c\0\0\0\0\0\0\x8c\1b\x87"), "?" }, /* 7.0 */
	{ BYTES("\x8c\1aK\7\x86"), "?" },
};

START_LOOP_TEST(numbers_are_positions_in_lists, ARRAY_LEN(numbered))
{
	char want[64];
	struct dcp d;

	dcp_begin(&d, dir_fd);
	scalar(&d, "a.7.b");
	dcp_object(&d, BYTES("a.18446744073709551615"));
	emit_str(&d.planner, "a.7.b");
	emit_bytes(&d.planner, numbered[_i].bytes, numbered[_i].n);
	dcp_end(&d, ".metadata");
	(void)snprintf(want, sizeof(want), "a.7.b %s; a.18446744073709551615 ?; ",
		       numbered[_i].path);
	expect_paths(want);
}
END_TEST

/* Pickled values of planner_data. */
static const struct {
	const char *bytes;
	size_t n;
	const char *path; /* of "model.ab.w" */
} planners[] = {
	{ BYTES("N"), "?" },
	{ BYTES("K\5"), "?" },
	{ BYTES("\x8c\5model"), "?" },
	{ BYTES("]"), "?" },
	{ BYTES("](\x8c\12model.ab.w\x8c\12model.ab.w\x85"
		"e"),
	  "?" },
	{ BYTES("\x8c\12model.ab.w\x8c\5model\x86"), "?" },
	{ BYTES("ctorch\nfloat32\n"), "?" },
	{ BYTES("cos\nsystem\n)R"), "?" },
	{ BYTES("ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}\x8c\14planner_data}sb"),
	  "?" },
	{ BYTES("}"), "?" },
	{ BYTES("}K\1K\2s"), "?" },
	{ BYTES("}(NNK\1\x8c\12model.ab.w\x85)]u"), "?" },
	{ BYTES("}\x8c\12model.ab.w\x8c\12model.ab.w\x85s"), "model.ab.w" },
	{ BYTES("ccollections\nOrderedDict\n)R\x8c\12model.ab.w\x8c\12model.ab.w\x85s"),
	  "model.ab.w" },
	/* fetched from the memo, not made in its place */
	{ BYTES("N}\x8c\12model.ab.w\x8c\12model.ab.w\x85sq\0"
		"00h\0"),
	  "model.ab.w" },
	/* of a key that comes twice, the later counts */
	{ BYTES("}(\x8c\12model.ab.w\x8c\12model.ab.w\x85\x8c\12model.ab.wNu"), "?" },
	{ BYTES("}(\x8c\12model.ab.wN\x8c\12model.ab.w\x8c\12model.ab.w\x85u"), "model.ab.w" },
	/* and so it is with an attribute that comes twice */
	{ BYTES("}\x8c\12model.ab.w\x8c\12model.ab.w\x85s\x8c\14planner_dataN"), "?" },
};

START_LOOP_TEST(whatever_a_planner_keeps_is_no_error, 2 * ARRAY_LEN(planners))
{
	char want[64];
	struct dcp d;

	dcp_begin(&d, dir_fd);
	d.planner_is = PLANNER_VALUE;
	d.planner_first = _i % 2;
	scalar(&d, "model.ab.w");
	emit_bytes(&d.planner, planners[_i / 2].bytes, planners[_i / 2].n);
	dcp_end(&d, ".metadata");
	(void)snprintf(want, sizeof(want), "model.ab.w %s; ", planners[_i / 2].path);
	expect_paths(want);
}
END_TEST

START_TEST(without_planner_data_nothing_is_known)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	d.planner_is = PLANNER_ABSENT;
	scalar(&d, "model.w");
	dcp_object(&d, BYTES("model.o"));
	dcp_end(&d, ".metadata");
	expect_paths("model.w ?; model.o ?; ");
}
END_TEST

/* As pickle writes it when many values share a path: the tuple, a key, or both come from
 * the memo. */
START_TEST(paths_may_share_what_they_are_made_of)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (int i = 0; i < 4; i++)
		scalar(&d, (const char *const[]){ "m.a", "m.b", "m.c", "m" }[i]);
	emit_bytes(&d.planner, BYTES("\x8c\3m.a\x8c\1mq\0\x8c\1a\x86q\1"));
	emit_bytes(&d.planner, BYTES("\x8c\3m.bh\1"));
	emit_bytes(&d.planner, BYTES("\x8c\3m.ch\0\x8c\1c\x86"));
	emit_bytes(&d.planner, BYTES("h\0h\0\x85"));
	dcp_end(&d, ".metadata");
	expect_paths("m m; m.a m|a; m.b ?; m.c m|c; ");
}
END_TEST

/* A path of the key, and of the rest of the name if there is any. */
static void below_key(struct dcp *d, const char *fqn, const char *key)
{
	size_t n = strlen(key);
	const char *const keys[] = { key, fqn + n + 1 };

	dcp_path(d, fqn, strlen(fqn), fqn[n] == '.' ? 2 : 1, keys);
}

static void put_keyed_rank(int rank, const char *key, uint64_t rows)
{
	char name[32];
	struct dcp d;

	(void)snprintf(name, sizeof(name), "__%d.metadata", rank);
	dcp_begin(&d, dir_fd);
	d.planner_first = rank % 2;
	dcp_tensor(&d, BYTES("a.b.w"), "uint8", 1, &rows, 1, U(0, rows));
	dcp_object(&d, BYTES("a.b.o"));
	if (key) {
		below_key(&d, "a.b.w", key);
		below_key(&d, "a.b.o", key);
	} else {
		d.planner_is = PLANNER_ABSENT;
	}
	dcp_end(&d, name);
}

static const struct {
	const char *keys[3]; /* of ranks 0 to 2, NULL: that rank does not say */
	uint64_t rows[3];
	const char *paths;
} keyed[] = {
	{ { "a", "a", "a" },
	  { 4, 4, 4 },
	  "a.b.w a|b.w; a.b.o@rank0 a|b.o@rank0; a.b.o@rank1 a|b.o@rank1; a.b.o@rank2 "
	  "a|b.o@rank2; " },
	{ { NULL, "a.b", NULL },
	  { 4, 4, 4 },
	  "a.b.w a.b|w; a.b.o@rank0 ?; a.b.o@rank1 a.b|o@rank1; a.b.o@rank2 ?; " },
	{ { "a", NULL, "a" },
	  { 4, 4, 4 },
	  "a.b.w a|b.w; a.b.o@rank0 a|b.o@rank0; a.b.o@rank1 ?; a.b.o@rank2 a|b.o@rank2; " },
	{ { "a", "a.b", "a" },
	  { 4, 4, 4 },
	  "a.b.w ?; a.b.o@rank0 a|b.o@rank0; a.b.o@rank1 a.b|o@rank1; a.b.o@rank2 a|b.o@rank2; " },
	{ { NULL, "a.b", "a" },
	  { 4, 4, 4 },
	  "a.b.w ?; a.b.o@rank0 ?; a.b.o@rank1 a.b|o@rank1; a.b.o@rank2 a|b.o@rank2; " },
	{ { NULL, NULL, NULL },
	  { 4, 4, 4 },
	  "a.b.w ?; a.b.o@rank0 ?; a.b.o@rank1 ?; a.b.o@rank2 ?; " },
	/* sizes differ; a path that was the whole FQN becomes the whole new name */
	{ { "a", NULL, "a.b.w" },
	  { 4, 5, 6 },
	  "a.b.w@rank0 a|b.w@rank0; a.b.w@rank1 ?; a.b.w@rank2 a.b.w@rank2; a.b.o@rank0 "
	  "a|b.o@rank0; a.b.o@rank1 ?; a.b.o@rank2 ?; " },
};

/* A single rank's entry has a longer name, so its last part is no longer a position. */
START_TEST(a_position_with_a_rank_behind_it_is_a_key)
{
	for (int rank = 0; rank < 2; rank++) {
		char name[32];
		struct dcp d;

		(void)snprintf(name, sizeof(name), "__%d.metadata", rank);
		dcp_begin(&d, dir_fd);
		dcp_object(&d, BYTES("l.3.5"));
		emit_str(&d.planner, "l.3.5");
		emit_bytes(&d.planner, BYTES("\x8c\1lK\3K\5\x87"));
		dcp_end(&d, name);
	}
	expect_paths("l.3.5@rank0 l|#3|5@rank0; l.3.5@rank1 l|#3|5@rank1; ");
}
END_TEST

START_LOOP_TEST(ranks_agree_on_the_path_or_it_is_not_known, ARRAY_LEN(keyed))
{
	for (int i = 0; i < 3; i++)
		put_keyed_rank(i, keyed[_i].keys[i], keyed[_i].rows[i]);
	expect_paths(keyed[_i].paths);
}
END_TEST

START_TEST(sixty_four_dimensions_of_large_numbers_fit)
{
	uint64_t shape[64], box[128];
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct dcp d;
	size_t n;

	for (size_t i = 0; i < 64; i++) {
		shape[i] = i ? INT64_MAX : 0; /* no elements */
		box[i] = box[64 + i] = i ? INT64_MAX : 0;
	}
	dcp_begin(&d, dir_fd);
	for (int i = 0; i < 20; i++) {
		char fqn[16];

		(void)snprintf(fqn, sizeof(fqn), "t%d", i);
		dcp_tensor(&d, fqn, strlen(fqn), "uint8", 64, shape, 1, box);
		dcp_stored(&d, fqn, strlen(fqn), 64, box, "a", 0, 10, 0);
	}
	dcp_end(&d, ".metadata");
	ck_assert_msg(!scan(&c, &e), "%s", e.msg);
	ck_assert_uint_eq(catalog_tensors(c, &n)[19].shape[63], INT64_MAX);
	ck_assert_uint_eq(n, 20);
	catalog_close(c);
}
END_TEST

/* ---- what cannot be ---- */

static void key(struct dcp *d, const char *s)
{
	emit_str(&d->state, s);
}

static void tensor(struct dcp *d, const char *cls)
{
	key(d, "w");
	emit_object(&d->state, "torch.distributed.checkpoint.metadata", cls);
}

/* One attribute of a TensorStorageMetadata; its value follows. */
static void attr(struct dcp *d, const char *name)
{
	emit_str(&d->state, name);
}

static void begin_tensor(struct dcp *d)
{
	tensor(d, "TensorStorageMetadata");
	emit_attrs(&d->state);
	attr(d, "properties");
	emit_object(&d->state, "torch.distributed.checkpoint.metadata", "TensorProperties");
	emit_op(&d->state, OP_MARK);
	emit_global(&d->state, "torch", "uint8");
	emit_op(&d->state, OP_TUPLE);
	emit_op(&d->state, OP_BUILD);
}

static void size_attr(struct dcp *d, int64_t rows)
{
	attr(d, "size");
	emit_op(&d->state, OP_MARK);
	emit_int(&d->state, rows);
	emit_op(&d->state, OP_TUPLE);
}

static void no_tensor(struct dcp *d)
{
	key(d, "w");
	emit_int(&d->state, 7);
}

static void no_string(struct dcp *d)
{
	emit_int(&d->state, 7);
	emit_object(&d->state, "torch.distributed.checkpoint.metadata", "BytesStorageMetadata");
}

static void no_size(struct dcp *d)
{
	begin_tensor(d);
	emit_attrs_end(&d->state);
}

static void negative_size(struct dcp *d)
{
	begin_tensor(d);
	size_attr(d, -4);
	emit_attrs_end(&d->state);
}

static void many_dims(struct dcp *d)
{
	begin_tensor(d);
	attr(d, "size");
	emit_op(&d->state, OP_MARK);
	for (int i = 0; i < 65; i++)
		emit_int(&d->state, 1);
	emit_op(&d->state, OP_TUPLE);
	emit_attrs_end(&d->state);
}

static void no_chunks(struct dcp *d)
{
	begin_tensor(d);
	size_attr(d, 4);
	emit_attrs_end(&d->state);
}

static void strange_chunk(struct dcp *d)
{
	begin_tensor(d);
	size_attr(d, 4);
	attr(d, "chunks");
	emit_op(&d->state, OP_EMPTY_LIST);
	emit_int(&d->state, 7);
	emit_op(&d->state, OP_APPEND);
	emit_attrs_end(&d->state);
}

static void flat_chunk(struct dcp *d)
{
	begin_tensor(d);
	size_attr(d, 4);
	attr(d, "chunks");
	emit_op(&d->state, OP_EMPTY_LIST);
	emit_object(&d->state, "torch.distributed.checkpoint.metadata", "ChunkStorageMetadata");
	emit_attrs(&d->state);
	emit_str(&d->state, "offsets");
	emit_size(&d->state, 2, U(0, 0));
	emit_str(&d->state, "sizes");
	emit_size(&d->state, 2, U(2, 2));
	emit_attrs_end(&d->state);
	emit_op(&d->state, OP_APPEND);
	emit_attrs_end(&d->state);
}

static void half_chunk(struct dcp *d)
{
	begin_tensor(d);
	size_attr(d, 4);
	attr(d, "chunks");
	emit_op(&d->state, OP_EMPTY_LIST);
	emit_object(&d->state, "torch.distributed.checkpoint.metadata", "ChunkStorageMetadata");
	emit_attrs(&d->state);
	emit_str(&d->state, "offsets");
	emit_size(&d->state, 1, U(0));
	emit_attrs_end(&d->state);
	emit_op(&d->state, OP_APPEND);
	emit_attrs_end(&d->state);
}

static void unknown_dtype(struct dcp *d)
{
	dcp_tensor(d, "w", 1, "float7", 1, U(4), 1, U(0, 4));
}

static void outside(struct dcp *d)
{
	dcp_tensor(d, "w", 1, "uint8", 1, U(4), 1, U(2, 3));
}

static void huge(struct dcp *d)
{
	dcp_tensor(d, "w", 1, "float64", 2, U((uint64_t)1 << 60, 4), 0, NULL);
}

static void storage_of_nothing(struct dcp *d)
{
	emit_int(&d->storage, 1);
	emit_int(&d->storage, 2);
}

static void absolute(struct dcp *d)
{
	dcp_tensor(d, "w", 1, "uint8", 1, U(4), 1, U(0, 4));
	dcp_stored(d, "w", 1, 1, U(0), "/etc/passwd", 0, 10, 0);
}

static void traversal(struct dcp *d)
{
	dcp_object(d, "o", 1);
	dcp_stored(d, "o", 1, DCP_NO_OFFSET, NULL, "a/../../b", 0, 10, 0);
}

static void negative_offset(struct dcp *d)
{
	dcp_stored(d, "w", 1, 1, U(0), "a", -1, 10, 0);
}

static void negative_length(struct dcp *d)
{
	dcp_stored(d, "w", 1, 1, U(0), "a", 1, -10, 0);
}

static void far_end(struct dcp *d)
{
	dcp_stored(d, "w", 1, 1, U(0), "a", INT64_MAX, 1, 0);
}

/* A whole entry, except for one thing. */
static void stored_but(struct dcp *d, const char *what)
{
	struct emit *m = &d->storage;

	emit_object(m, "torch.distributed.checkpoint.metadata", "MetadataIndex");
	emit_attrs(m);
	emit_str(m, "fqn");
	if (!strcmp(what, "fqn"))
		emit_int(m, 7);
	else
		emit_str(m, "w");
	emit_str(m, "offset");
	if (!strcmp(what, "index"))
		emit_int(m, 7);
	else
		emit_op(m, OP_NONE);
	emit_attrs_end(m);
	emit_object(m, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	emit_attrs(m);
	emit_str(m, "relative_path");
	if (!strcmp(what, "path"))
		emit_int(m, 7);
	else if (!strcmp(what, "long path"))
		emit_str(m, memset((char[4097]){ 0 }, 'a', 4096));
	else if (!strcmp(what, "NUL"))
		emit_bytes(m, "\x8c\3a\0b", 5);
	else
		emit_str(m, "a");
	emit_str(m, "offset");
	emit_int(m, 0);
	if (strcmp(what, "length") != 0) {
		emit_str(m, "length");
		emit_int(m, 10);
	}
	emit_str(m, "transform_descriptors");
	if (!strcmp(what, "transforms")) {
		emit_int(m, 7);
	} else if (*what == '+') { /* the descriptor is what follows */
		emit_op(m, OP_EMPTY_LIST);
		emit_str(m, what + 1);
		emit_op(m, OP_APPEND);
	} else if (!strcmp(what, "transform")) {
		emit_op(m, OP_EMPTY_LIST);
		emit_int(m, 7);
		emit_op(m, OP_APPEND);
	} else {
		emit_op(m, OP_NONE);
	}
	emit_attrs_end(m);
}

static void long_transform(struct dcp *d)
{
	char what[600];

	memset(what, 'x', sizeof(what) - 1);
	what[0] = '+';
	what[sizeof(what) - 1] = 0;
	stored_but(d, what);
}

static const struct {
	void (*put)(struct dcp *d);
	const char *but; /* what stored_but leaves out, if put is NULL */
	int code;
	const char *msg; /* what follows "read '.metadata': "; after '!', all of it */
} impossible[] = {
	{ NULL, "", 0, NULL },
	{ no_tensor, NULL, EBADMSG, "'w': neither a tensor nor a bytes item" },
	{ no_string, NULL, EBADMSG, "state_dict_metadata has a key that is not a string" },
	{ no_size, NULL, EBADMSG, "'w': its size is not a list of at most 64 numbers" },
	{ negative_size, NULL, EBADMSG, "'w': its size is not a list of at most 64 numbers" },
	{ many_dims, NULL, EBADMSG, "'w': its size is not a list of at most 64 numbers" },
	{ no_chunks, NULL, EBADMSG, "'w': its chunks are not a list" },
	{ strange_chunk, NULL, EBADMSG,
	  "'w': a chunk's offsets and sizes are not lists of numbers" },
	{ half_chunk, NULL, EBADMSG, "'w': a chunk's offsets and sizes are not lists of numbers" },
	{ flat_chunk, NULL, EBADMSG, "'w': 1 dimensions, but a chunk has 2" },
	{ unknown_dtype, NULL, ENOTSUP, "'w': dtype 'float7' is not known" },
	{ outside, NULL, EBADMSG,
	  "!tensor 'w': chunk at [2] of size [3] lies outside its shape [4]" },
	{ huge, NULL, EBADMSG, "!tensor 'w' is larger than 2^63 bytes" },
	{ storage_of_nothing, NULL, EBADMSG,
	  "storage_data has an entry that is not MetadataIndex: _StorageInfo" },
	{ NULL, "fqn", EBADMSG,
	  "storage_data has an entry that is not MetadataIndex: _StorageInfo" },
	{ NULL, "index", EBADMSG, "'w': its item's index is not a list of numbers" },
	{ NULL, "path", EBADMSG, "'w': its relative_path is not a string" },
	{ NULL, "NUL", EBADMSG, "'w': its relative_path has a NUL in it" },
	{ NULL, "long path", EBADMSG, "'w': its relative_path is too long" },
	{ NULL, "length", EBADMSG, "'w': its item's offset and length are not numbers below 2^63" },
	{ negative_offset, NULL, EBADMSG,
	  "'w': its item's offset and length are not numbers below 2^63" },
	{ negative_length, NULL, EBADMSG,
	  "'w': its item's offset and length are not numbers below 2^63" },
	{ far_end, NULL, EBADMSG, "'w': its item's offset and length are not numbers below 2^63" },
	{ NULL, "transforms", EBADMSG, "'w': its transform descriptors are not a list" },
	{ NULL, "transform", EBADMSG, "'w': a transform descriptor is not a string" },
	{ NULL, "+stream.zstd/1+stream.zstd/1", EBADMSG,
	  "'w': its transform descriptors are too long" },
	{ long_transform, NULL, EBADMSG, "'w': its transform descriptors are too long" },
	{ NULL, "+stream.future/7", 0, NULL },
	{ absolute, NULL, EBADMSG, "!'w': file name '/etc/passwd' refused: absolute path" },
	{ traversal, NULL, EBADMSG,
	  "!'o': file name 'a/../../b' refused: an element of it is empty, '.' or '..'" },
};

/* ---- torch 1.12 ---- */

#define OBJ(name, attrs)   "(itorch.distributed.x\n" name "\n(d" attrs "b"
#define ATTR(name, value)  "S'" name "'\n" value "s"
#define KEY(name)	   ATTR("storage_key", "S'" name "'\n")
#define SIZES(a, b)	   "(I" #a "\nI" #b "\nt"
#define SLOTS(name, attrs) "(itorch.distributed.x\n" name "\n(N(d" attrs "tb"
#define SHARD(off, len, key) \
	OBJ("ShardStorageMetadata", \
	    ATTR("shard_metadata", \
		 SLOTS("ShardMetadata", ATTR("shard_offsets", off) ATTR("shard_sizes", len))) \
		    KEY(key)) \
	"a"
#define PROPERTIES "(itorch.distributed.x\nTensorProperties\n(ctorch\nfloat32\nI0\ntb"
#define SHARDED(size, properties, shards) \
	ATTR("w", OBJ("ShardedTensorStorageMetadata", \
		      ATTR("tensor_metadata", \
			   OBJ("ShardedTensorMetadata", \
			       ATTR("size", size) ATTR("tensor_properties", properties))) \
			      ATTR("storage_metadata", "(l" shards)))
#define NOT_SO "'w' is not described as torch 1.12 describes it"

static const struct {
	const char *entries, *want;
	const char *msg; /* what follows "read '.metadata': "; after '!', all of it */
} ancients[] = {
	{ SHARDED(SIZES(4, 2), PROPERTIES,
		  SHARD(SIZES(2, 0), SIZES(2, 2), "b") SHARD(SIZES(0, 0), SIZES(2, 2), "a")),
	  "w float32 [4,2] complete: [0,0]+[2,2]@a:0+10,dcp [2,0]+[2,2]@b:0+20,dcp; ", NULL },
	{ SHARDED(SIZES(4, 2), PROPERTIES,
		  SHARD(SIZES(0, 0), SIZES(2, 2), "a") SHARD(SIZES(2, 0), SIZES(2, 2), "absent")),
	  "w float32 [4,2] incomplete: [0,0]+[2,2]@a:0+10,dcp; ", NULL },
	{ SHARDED("(t", PROPERTIES, SHARD("(t", "(t", "a")),
	  "w float32 [] complete: []+[]@a:0+10,dcp; ", NULL },
	{ ATTR("t", OBJ("TensorStorageMetadata", KEY("t.pt") ATTR("size", "(I3\nt"))),
	  "t int8 [3] complete: [0]+[3]@t.pt:768+3,raw; ", NULL },
	{ ATTR("o", OBJ("BytesStorageMetadata", KEY("a") ATTR("length", "I10\n")))
		  ATTR("p", OBJ("TensorStorageMetadata", KEY("absent"))),
	  "o object: a:0+10,dcp; p object: lost; ", NULL },
	{ ATTR("w", OBJ("TensorStorageMetadata", KEY("a"))), NULL,
	  "read 'a': it was not written by torch.save" },
	{ ATTR("w", OBJ("TensorStorageMetadata", KEY("../t.pt"))), NULL,
	  "'w': file name '../t.pt' refused: an element of it is empty, '.' or '..'" },
	{ SHARDED(SIZES(4, 2), PROPERTIES, SHARD(SIZES(0, 0), SIZES(2, 2), "/etc/passwd")), NULL,
	  "'w': file name '/etc/passwd' refused: absolute path" },
	{ SHARDED(SIZES(4, 2), PROPERTIES, SHARD(SIZES(3, 0), SIZES(2, 2), "a")), NULL,
	  "tensor 'w': chunk at [3,0] of size [2,2] lies outside its shape [4,2]" },
	{ SHARDED(SIZES(4, -2), PROPERTIES, ""), NULL, NOT_SO },
	{ SHARDED(SIZES(4, 2), "N", ""), NULL, NOT_SO },
	{ SHARDED(SIZES(4, 2), PROPERTIES, SHARD("(I0\nt", SIZES(2, 2), "a")), NULL, NOT_SO },
	{ SHARDED(SIZES(4, 2), PROPERTIES, SHARD(SIZES(0, 0), "N", "a")), NULL, NOT_SO },
	{ SHARDED(SIZES(4, 2), PROPERTIES, "Na"), NULL, NOT_SO },
	{ ATTR("w", OBJ("ShardedTensorStorageMetadata", "")), NULL, NOT_SO },
	{ ATTR("w", OBJ("TensorStorageMetadata", ATTR("storage_key", "I5\n"))), NULL, NOT_SO },
	{ ATTR("x", OBJ("TensorStorageMetadata", KEY("t.pt"))) ATTR("w", "I5\n"), NULL, NOT_SO },
	/* As attributes of an object, in which other versions keep ShardMetadata. */
	{ SHARDED("(I2\nt", PROPERTIES,
		  OBJ("ShardStorageMetadata",
		      ATTR("shard_metadata",
			   OBJ("ShardMetadata", ATTR("shard_offsets", "(I0\nt") ATTR(
							"shard_sizes", "(I2\nt"))) KEY("a")) "a"),
	  "w float32 [2] complete: [0]+[2]@a:0+10,dcp; ", NULL },
	{ SHARDED("(I2\nt", OBJ("TensorProperties", ATTR("dtype", "ctorch\nfloat32\n")),
		  SHARD("(I0\nt", "(I2\nt", "a")),
	  "w float32 [2] complete: [0]+[2]@a:0+10,dcp; ", NULL },
	{ SHARDED("(I2\nt", OBJ("TensorProperties", ATTR("dtype", "I5\n")), ""), NULL, NOT_SO },
	{ SHARDED("(I2\nt", OBJ("TensorProperties", ""), ""), NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES, OBJ("ShardStorageMetadata", KEY("a")) "a"), NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES,
		  OBJ("ShardStorageMetadata", ATTR("shard_metadata", "I5\n") KEY("a")) "a"),
	  NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES,
		  OBJ("ShardStorageMetadata",
		      ATTR("shard_metadata", "(itorch.distributed.x\nShardMetadata\n(I1\ntb")
			      KEY("a")) "a"),
	  NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES, SHARD("(I0\nt", "(I2\nI2\nt", "a")), NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES, SHARD("(t", "(I2\nt", "a")), NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES, SHARD("(I0\nt", "(t", "a")), NULL, NOT_SO },
	{ SHARDED("(I2\nt", PROPERTIES, OBJ("ShardStorageMetadata", KEY("../a")) "a"), NULL,
	  "'w': file name '../a' refused: an element of it is empty, '.' or '..'" },
	{ ATTR("w", OBJ("BytesStorageMetadata", "")), NULL, "Metadata has no storage_data" },
	{ ATTR("w", OBJ("BytesStorageMetadata", KEY("../a"))), NULL,
	  "'w': file name '../a' refused: an element of it is empty, '.' or '..'" },
	{ ATTR("x", OBJ("TensorStorageMetadata", KEY("t.pt"))) "I5\nI6\ns", NULL,
	  "state_dict_metadata has a key that is not a string" },
};

START_LOOP_TEST(what_torch_1_12_wrote_is_read, ARRAY_LEN(ancients))
{
	const int64_t size[] = { 3 };
	const struct saved t = { .how = REBUILD_PARAMETER,
				 .dtype = CKPT_DTYPE_I8,
				 .n_dims = 1,
				 .size = size,
				 .storage = "abc",
				 .storage_bytes = 3 };
	struct buf b = BUF_INIT(0), pkl = BUF_INIT(1 << 16);
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	char want[300];

	(void)saved_item(&b, &t);
	put_file(dir_fd, "t.pt", b.data, b.len);
	put_file(dir_fd, "a", "0123456789", 10);
	put_file(dir_fd, "b", "01234567890123456789", 20);
	buf_printf(&pkl, OBJ("Metadata", ATTR("state_dict_metadata", "(d%s")) ".",
		   ancients[_i].entries);
	put_file(dir_fd, ".metadata", pkl.data, pkl.len);
	buf_release(&b);
	buf_release(&pkl);
	if (ancients[_i].want) {
		expect(ancients[_i].want);
		return;
	}
	(void)snprintf(want, sizeof(want), "read '.metadata': %s", ancients[_i].msg);
	ck_assert_int_lt(scan(&c, &e), 0);
	ck_assert_str_eq(e.msg, want);
}
END_TEST

START_LOOP_TEST(impossible_metadata_is_refused_with_a_sentence, ARRAY_LEN(impossible))
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	char want[300] = "";
	struct dcp d;

	dcp_begin(&d, dir_fd);
	if (impossible[_i].put)
		impossible[_i].put(&d);
	else
		stored_but(&d, impossible[_i].but);
	dcp_end(&d, ".metadata");
	ck_assert_int_eq(scan(&c, &e), -impossible[_i].code);
	ck_assert_int_eq(e.code, impossible[_i].code);
	if (impossible[_i].msg) {
		bool bare = *impossible[_i].msg == '!';

		(void)snprintf(want, sizeof(want), "%s%s",
			       bare ? "" : "read '.metadata': ", impossible[_i].msg + bare);
		ck_assert_str_eq(e.msg, want);
	}
	catalog_close(c);
}
END_TEST

static const struct {
	const char *bytes;
	size_t n;
	const char *msg;
} no_metadata[] = {
	{ BYTES(""), "'.metadata' is empty" },
	{ BYTES("N."), "read '.metadata': the pickle holds no checkpoint Metadata" },
	{ BYTES("}."), "read '.metadata': the pickle holds no checkpoint Metadata" },
	{ BYTES("ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81."),
	  "read '.metadata': the pickle holds no checkpoint Metadata" },
	{ BYTES("ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}X\x13\0\0\0state_dict_"
		"metadata}sb."),
	  "read '.metadata': Metadata has no storage_data" },
	{ BYTES("not a pickle"), NULL },
	{ BYTES("\x80\x63."), NULL },
};

START_LOOP_TEST(what_is_no_metadata_is_refused, ARRAY_LEN(no_metadata))
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	put_file(dir_fd, ".metadata", no_metadata[_i].bytes, no_metadata[_i].n);
	ck_assert_int_lt(scan(&c, &e), 0);
	if (no_metadata[_i].msg)
		ck_assert_str_eq(e.msg, no_metadata[_i].msg);
	ck_assert(e.msg[0]);
	ck_assert_ptr_null(c);
}
END_TEST

START_TEST(links_out_of_the_checkpoint_are_not_followed)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_end(&d, "inside");
	ck_assert_int_eq(symlinkat("inside", dir_fd, ".metadata"), 0);
	if (!has_openat2()) {
		(void)fprintf(stderr, "skipped: links_out_of_the_checkpoint_are_not_followed\n");
		return;
	}
	expect("");
	ck_assert_int_eq(unlinkat(dir_fd, ".metadata", 0), 0);
	ck_assert_int_eq(symlinkat("/etc/passwd", dir_fd, ".metadata"), 0);
	ck_assert_int_eq(scan(&c, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "open '.metadata': refused, a link leads out of the checkpoint");
}
END_TEST

/* ---- while it is read ---- */

static void some_metadata(const char *name)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (int i = 0; i < 50; i++) {
		char fqn[16];

		(void)snprintf(fqn, sizeof(fqn), "t%d", i);
		dcp_path(&d, fqn, strlen(fqn), 1, (const char *const[]){ fqn });
		dcp_tensor(&d, fqn, strlen(fqn), "float32", 2, U(4, 2), 2,
			   U(0, 0, 2, 2, 2, 0, 2, 2));
		dcp_stored(&d, fqn, strlen(fqn), 2, U(0, 0), "a", i, 20, 0);
		dcp_stored(&d, fqn, strlen(fqn), 2, U(2, 0), "a", i + 100, 20, 0);
	}
	dcp_end(&d, name);
}

static void change_it(void *arg, uint64_t done, uint64_t total)
{
	const int *how = arg;

	(void)done;
	(void)total;
	if (*how)
		put_file(dir_fd, ".metadata", "N.", 2);
	else
		(void)utimensat(dir_fd, ".metadata",
				(const struct timespec[]){ { 1, 0 }, { 1, 0 } }, 0);
}

START_LOOP_TEST(a_file_that_changes_while_it_is_read_is_an_error, 2)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	int how = _i;

	some_metadata(".metadata");
	ck_assert_int_eq(scan_with(&(struct scan_opts){ change_it, &how }, &c, &e),
			 _i ? -e.code : -EAGAIN);
	if (!_i)
		ck_assert_str_eq(e.msg,
				 "'.metadata' changed while it was read; is a save going on?");
	ck_assert_ptr_null(c);
}
END_TEST

struct seen {
	uint64_t last, total;
	unsigned calls;
};

static void see(void *arg, uint64_t done, uint64_t total)
{
	struct seen *s = arg;

	REQUIRE(done >= s->last && done <= total && (!s->total || total == s->total));
	s->last = done;
	s->total = total;
	s->calls++;
}

START_TEST(progress_only_grows)
{
	struct seen s = { 0 };
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct stat st;

	some_metadata("__0.metadata");
	some_metadata("__1.metadata");
	ck_assert_int_eq(scan_with(&(struct scan_opts){ see, &s }, &c, &e), 0);
	ck_assert_int_eq(fstatat(dir_fd, "__0.metadata", &st, 0), 0);
	ck_assert_uint_eq(s.total, 2 * (uint64_t)st.st_size);
	ck_assert_uint_gt(s.calls, 3);
	ck_assert_uint_gt(s.last, s.total / 2);
	catalog_close(c);
}
END_TEST

START_TEST(every_byte_of_a_metadata_file_counts_for_its_hash)
{
	char hashes[3][33];
	size_t n;
	autofree uint8_t *p = NULL;

	some_metadata(".metadata");
	p = get_file(dir_fd, ".metadata", &n);
	for (int i = 0; i < 3; i++) {
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };
		autofree uint8_t *more = calloc(1, n + 5000);
		size_t k;

		REQUIRE(more);
		memcpy(more, p, n);
		more[n + 4999] = (uint8_t)i; /* behind the pickle */
		put_file(dir_fd, ".metadata", more, n + (i ? 5000 : 0));
		ck_assert_int_eq(scan(&c, &e), 0);
		memcpy(hashes[i], catalog_metadata(c, &k)[0].hash, 33);
		ck_assert_uint_eq(catalog_metadata(c, &k)[0].size, n + (i ? 5000 : 0));
		catalog_close(c);
	}
	ck_assert_str_ne(hashes[0], hashes[1]);
	ck_assert_str_ne(hashes[1], hashes[2]);
}
END_TEST

/* ---- damage and faults ---- */

START_TEST(a_cut_file_is_refused)
{
	struct rng r = rng_new();
	size_t n;
	autofree uint8_t *p = NULL;

	some_metadata(".metadata");
	p = get_file(dir_fd, ".metadata", &n);
	for (size_t k = 0; k < n; k += 1 + rng_below(&r, n / rng_rounds(150, 30))) {
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };

		put_file(dir_fd, ".metadata", p, k);
		ck_assert_int_lt(scan(&c, &e), 0);
		ck_assert(e.code && e.msg[0]);
	}
}
END_TEST

START_TEST(flipped_bits_give_an_error_or_a_checkpoint)
{
	some_metadata(".metadata");
	scan_flipped(dir_fd, ".metadata", scan, 600, 100);
}
END_TEST

START_LOOP_TEST(failing_reads_and_allocations_come_through, 2)
{
	if (_i) {
		some_metadata(".metadata");
	} else {
		put_rank(0, "uint8", 4, 0, 4);
		put_rank(1, "int8", 4, 0, 4);
	}
	scan_failing(dir_fd);
}
END_TEST

SUITE(dcp, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
