/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt_save and ckpt_load as a program uses them: real files, ranks that are threads. */
#include "suites.h"

#include "base/err.h"
#include "model/box.h"
#include "model/dtype.h"
#include "save_util.h"
#include <ckptfs/ckpt_save.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/ckptfs-save-XXXXXX", dest[64];

static void set_up(void)
{
	(void)memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
	ck_assert_ptr_nonnull(mkdtemp(dir));
	(void)snprintf(dest, sizeof(dest), "%s/ckpt", dir);
	ck_assert(!setenv("XDG_CACHE_HOME", dir, 1));
}

static void tear_down(void)
{
	char command[128];

	(void)snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	ck_assert_int_eq(system(command), 0); /* NOLINT(cert-env33-c): our own directory */
}

struct job {
	struct saved *s;
	struct ckpt_save_opts opts;
	struct ckpt_save_planner planners[SAVED_RANKS];
	struct ckpt_storage_writer writers[SAVED_RANKS];
	bool keep;	/* planners and writers, from save to save */
	size_t failing; /* the rank that has no data for its first entry; SIZE_MAX: none */
};

static int save_rank(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct job *j = arg;
	struct ckpt_save_opts opts = j->opts;
	struct ckpt_state_dict dict = j->s->dict[c->rank];
	struct ckpt_state_entry *entries = calloc(dict.count + 1, sizeof(*entries));
	struct ckpt_local_tensor none;
	struct ckpt_shard lost;
	int rc;

	ck_assert_ptr_nonnull(entries);
	memcpy(entries, dict.entries, dict.count * sizeof(*entries));
	dict.entries = entries;
	for (size_t i = 0; i < dict.count && c->rank == j->failing; i++)
		if (entries[i].tensor && entries[i].tensor->kind == CKPT_LOCAL_BOX) {
			none = *entries[i].tensor;
			lost = none.shards[0];
			lost.data = NULL;
			none.shards = &lost;
			entries[i].tensor = &none;
			break;
		}
	if (j->keep) {
		opts.planner = &j->planners[c->rank];
		opts.writer = &j->writers[c->rank];
		opts.cache_plans = true;
	}
	rc = ckpt_save(c, dest, &dict, &opts, e);
	free(entries);
	return rc;
}

/* Every tensor again, whole on each rank, or cut differently from how it was saved. */
static int load_rank(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	const struct job *j = arg;
	struct ckpt_local_tensor t[SAVED_ENTRIES];
	struct ckpt_shard shards[SAVED_ENTRIES];
	struct ckpt_state_entry entries[SAVED_ENTRIES];
	uint64_t off[SAVED_ENTRIES][SAVED_DIMS], len[SAVED_ENTRIES][SAVED_DIMS];
	struct ckpt_state_dict dict = { entries, 0 };
	const struct ckpt_load_opts opts = { 0 };
	int rc;

	for (size_t i = 0; i < j->s->n; i++) {
		const struct saved_entry *x = &j->s->entries[i];
		size_t n = dict.count, d = x->n_dims ? x->n_dims - 1u : 0, bytes = x->len + 1;

		if (!x->is_tensor)
			continue;
		memset(off[n], 0, sizeof(off[n]));
		memcpy(len[n], x->shape, sizeof(len[n]));
		if (x->n_dims) { /* the last dimension is cut in two, for two ranks */
			off[n][d] = c->rank * (x->shape[d] / 2);
			len[n][d] = c->rank ? x->shape[d] - x->shape[d] / 2 : x->shape[d] / 2;
		}
		shards[n] = (struct ckpt_shard){ off[n], len[n], calloc(1, bytes) };
		ck_assert_ptr_nonnull(shards[n].data);
		t[n] = (struct ckpt_local_tensor){ .kind = CKPT_LOCAL_SHARDS,
						   .n_dims = x->n_dims,
						   .props = { .dtype = x->dtype },
						   .shape = x->shape,
						   .shards = &shards[n],
						   .n_shards = 1 };
		entries[n] = (struct ckpt_state_entry){ .fqn = x->fqn,
							.fqn_len = (uint32_t)strlen(x->fqn),
							.tensor = &t[n] };
		dict.count++;
	}
	rc = ckpt_load(c, dest, &dict, &opts, e);
	for (size_t n = 0, i = 0; i < j->s->n; i++) {
		const struct saved_entry *x = &j->s->entries[i];
		size_t size = dtype_info(x->dtype)->size, row, at = 0, all;
		uint64_t rows = 1;

		if (!x->is_tensor)
			continue;
		all = x->n_dims ? x->shape[x->n_dims - 1] * size : size;
		row = x->n_dims ? len[n][x->n_dims - 1] * size : size;
		for (size_t d = 0; d + 1 < x->n_dims; d++)
			rows *= x->shape[d];
		for (uint64_t r = 0; !rc && r < rows; r++, at += row)
			REQUIRE(!row ||
				!memcmp((char *)shards[n].data + at,
					x->data + r * all +
						(x->n_dims ? off[n][x->n_dims - 1] * size : 0),
					row));
		free(shards[n++].data);
	}
	return rc;
}

static const enum ckpt_format formats[] = { CKPT_DCP, CKPT_HYPERPARALLEL, CKPT_SAFETENSORS };

static void save(struct job *j, struct ckpt_err *e, int want)
{
	ck_assert_msg(ckpt_comm_run_threads(j->s->ranks, save_rank, j, e) == want, "%s", e->msg);
}

START_LOOP_TEST(what_is_saved_is_there_and_is_loaded_by_others, 12)
{
	enum ckpt_format format = formats[_i % 3];
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct saved s = { 0 };
	struct job j = { .s = &s, .opts = { .format = format }, .failing = SIZE_MAX };
	struct ckpt_err e = { 0 };

	j.opts.threads = format == CKPT_DCP ? (unsigned)_i % 4 : 0;
	j.opts.zstd = format == CKPT_DCP && _i % 2 ? 1 : 0;
	saved_random(&r, &s, _i % 2 == 0, format != CKPT_SAFETENSORS);
	save(&j, &e, 0);
	saved_check(&s, dest);
	ck_assert_msg(!ckpt_comm_run_threads(2, load_rank, &j, &e), "%s", e.msg);
}
END_TEST

START_LOOP_TEST(kept_planners_save_again_and_again, 3)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct saved s = { 0 };
	struct job j = { .s = &s,
			 .opts = { .format = formats[_i % 3], .overwrite = true },
			 .keep = true,
			 .failing = SIZE_MAX };
	uint64_t first = 0;
	struct ckpt_err e = { 0 };

	saved_random(&r, &s, true, j.opts.format != CKPT_SAFETENSORS);
	for (size_t i = 0; i < s.ranks; i++) {
		ck_assert(!ckpt_save_planner(j.opts.format, &j.planners[i], &e));
		ck_assert(!ckpt_save_writer(&j.opts, &j.writers[i], &e));
	}
	for (int round = 0; round < 3; round++) {
		save(&j, &e, 0);
		if (!round)
			first = dir_digest(dest);
		ck_assert_uint_eq(dir_digest(dest), first);
	}
	saved_check(&s, dest);
	for (size_t i = 0; i < s.ranks; i++) {
		ckpt_save_planner_free(&j.planners[i]);
		ckpt_storage_writer_free(&j.writers[i]);
	}
}
END_TEST

START_LOOP_TEST(a_rank_that_fails_leaves_the_old_checkpoint, 3)
{
	const uint64_t shape[] = { 12, 5 };
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct saved s = { .ranks = 3 };
	struct job j = { .s = &s,
			 .opts = { .format = formats[_i], .overwrite = true },
			 .failing = SIZE_MAX };
	uint64_t before;
	struct ckpt_err e = { 0 };

	saved_add(&r, &s, "w", "tensors/w", SAVED_MESH, CKPT_DTYPE_F32, 2, shape);
	saved_dicts(&s);
	save(&j, &e, 0);
	before = dir_digest(dest);
	j.failing = 1;
	save(&j, &e, -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "rank 1: "));
	ck_assert_ptr_nonnull(strstr(e.msg, "'w': no data"));
	ck_assert_uint_eq(dir_digest(dest), before);
	saved_check(&s, dest);
	j.opts.overwrite = false;
	j.failing = SIZE_MAX;
	save(&j, &e, -EEXIST);
	ck_assert_uint_eq(dir_digest(dest), before);
}
END_TEST

/* One rank, step by step, up to what the writer says that it has written. */
static int write_step_by_step(struct ckpt_storage_writer *w, struct ckpt_save_planner *p,
			      const struct ckpt_state_dict *dict, struct ckpt_write_results *ret,
			      struct ckpt_err *e)
{
	const struct ckpt_storage_ranks alone = { 0, 1 };
	const struct ckpt_save_planning opt = { .is_coordinator = true };
	struct ckpt_save_plan mine, part, plan;
	struct ckpt_metadata md;

	ck_assert(!ckpt_storage_writer_reset(w, dest, e) &&
		  !ckpt_storage_writer_set_up(w, &alone, e) &&
		  !ckpt_save_planner_configure(p, dict, &opt, e) &&
		  !ckpt_save_planner_local_plan(p, &mine, e) &&
		  !ckpt_storage_writer_prepare_local_plan(w, &mine, &mine, e) &&
		  !ckpt_save_planner_global_plan(p, &mine, 1, &part, &md, e) &&
		  !ckpt_storage_writer_prepare_global_plan(w, &part, 1, e) &&
		  !ckpt_save_planner_finish(p, &part, &plan, e));
	return ckpt_storage_writer_write_data(w, &plan, p, ret, e);
}

START_TEST(results_and_errors_of_zarr_have_the_whole_name)
{
	const struct ckpt_save_opts opts = { .format = CKPT_ZARR };
	const uint64_t zero[] = { 0 }, two[] = { 2 };
	float data[] = { 1, 2 };
	struct ckpt_shard shard = { zero, two, data };
	const struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_WHOLE,
					     .n_dims = 1,
					     .shape = two,
					     .props = { .dtype = CKPT_DTYPE_F32 },
					     .shards = &shard,
					     .n_shards = 1 };
	char name[121] = "";
	const struct ckpt_state_entry entry = { .fqn = name, .fqn_len = 120, .tensor = &t };
	const struct ckpt_state_dict dict = { &entry, 1 };
	struct ckpt_storage_writer w = { 0 };
	struct ckpt_save_planner p = { 0 };
	struct ckpt_write_results results = { 0 };
	struct ckpt_err e = { 0 };

	memset(name, 'n', 120);
	ck_assert(!ckpt_save_writer(&opts, &w, &e) && !ckpt_save_planner(CKPT_ZARR, &p, &e));
	ck_assert_msg(!write_step_by_step(&w, &p, &dict, &results, &e), "%s", e.msg);
	ck_assert_uint_eq(results.n, 1);
	ck_assert_str_eq(results.v[0].info.path, name);
	ck_assert_uint_eq(results.v[0].info.length, sizeof(data));
	shard.data = NULL;
	ck_assert_int_eq(write_step_by_step(&w, &p, &dict, &results, &e), -EINVAL);
	ck_assert_msg(!strncmp(e.msg, "'nnnn", 5), "%s", e.msg);
	ckpt_save_planner_free(&p);
	ckpt_storage_writer_free(&w);
}
END_TEST

/* It could not be opened afterwards. */
START_TEST(a_name_that_zarr_cannot_have_is_refused)
{
	const uint64_t zero[] = { 0 }, two[] = { 2 };
	float data[] = { 1, 2 };
	const struct ckpt_shard shard = { zero, two, data };
	const struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_WHOLE,
					     .n_dims = 1,
					     .shape = two,
					     .props = { .dtype = CKPT_DTYPE_F32 },
					     .shards = &shard,
					     .n_shards = 1 };
	const struct ckpt_state_entry entry = { .fqn = "w\xff", .fqn_len = 2, .tensor = &t };
	const struct ckpt_state_dict dict = { &entry, 1 };
	const struct ckpt_save_opts opts = { .format = CKPT_ZARR };
	struct ckpt_comm alone = ckpt_comm_self();
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_save(&alone, dest, &dict, &opts, &e), -ENOTSUP);
	ck_assert_str_eq(e.msg, "'w%FF': zarr requires names in UTF-8: rename it");
	ck_assert_int_ne(access(dest, F_OK), 0);
}
END_TEST

SUITE(ckpt_save, .setup = set_up, .teardown = tear_down, .seconds = 60)
