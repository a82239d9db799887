/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that can fail (allocations, opens, reads, maps, writes, syncs, renames, threads,
 * SQLite) fails once, in turn, while opening, indexing, reading, checking, comparing, exporting,
 * resharding, saving and loading. The result must be an error with a sentence, or all the right
 * bytes; nothing is left in memory or open, nothing unfinished has a final name, and the next
 * attempt works. All calls would take minutes. So only every k-th call fails, starting from a
 * random one, which gives about FAULT_ROUNDS rounds of each job (0: every call). FAULT_JOBS is a
 * pattern that selects jobs.
 *
 * Then the power fails at every change of what is on disk (see disk.h): all, some or nothing is
 * left of what was not synced. The checkpoint must be the old one or the new one, whole, and the
 * new one once a save has said that it is done; an index is right or is built again; an export is
 * whole, or goes on to the right bytes. The next attempt works and leaves nothing behind.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/io.h"
#include "data_util.h"
#include "dir_util.h"
#include "disk.h"
#include "fault.h"
#include "gguf_made.h"
#include "opts_util.h"
#include "rng.h"
#include "save_util.h"
#include "suites.h"
#include <ckptfs/ckpt_diff.h>
#include <ckptfs/ckpt_mount.h>
#include <ckptfs/ckpt_report.h>
#include <ckptfs/ckpt_reshard.h>
#include <ckptfs/ckpt_save.h>
#include <ckptfs/ckpt_values.h>

#include "cmd/export.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <fts.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_MAX = 1 << 22 }; /* bytes of all files of a tree */

/* About how many rounds a job has. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 15, ROUNDS_FULL = 60 };
#else
enum { ROUNDS = 6, ROUNDS_FULL = 120 };
#endif

/* BLOCKS: a GGUF, dequantised. The last one also has assets, a model with gguf/. */
enum options { MEMORY, CACHED, BUILT, BESIDE, RUN, BLOCKS, CAST, RANKS, GGUF };

struct job {
	const char *name;
	int (*run)(const struct job *j, struct buf *out, struct ckpt_err *e);
	const char *source; /* below tests/data; NULL: the model that `setup` saves */
	enum options options;
	enum ckpt_format format; /* that is written */
	bool overwrite;
	bool other;	  /* compressed by threads; of export: one file */
	const char *dest; /* in `out`, what has a final name there; NULL: nothing */
};

static char out_dir[4200], index_path[4200], model_path[4200], run_path[4200], gguf_path[4200];
static struct saved saved, other; /* what is saved, and what was saved before it */
static unsigned threads = 2;	  /* of an export */

static const char *source_path(const struct job *j)
{
	static char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s", data_dir(), j->source);
	return j->source ? path : j->options == BLOCKS ? gguf_path : model_path;
}

/* ---- walking through everything ---- */

static int read_file(struct ckpt *c, ckpt_node n, uint64_t size, struct buf *out,
		     struct ckpt_err *e)
{
	struct ckpt_file *f = NULL;
	int64_t got = ckpt_file_open(c, n, &f, e);

	if (got)
		return (int)got;
	REQUIRE(ckpt_file_size(f) == size && out->len + size <= OUT_MAX);
	got = ckpt_file_read(f, out->data + out->len, size, 0, e);
	if (got >= 0)
		REQUIRE((uint64_t)got == size);
	if (got > 0)
		out->len += (size_t)got;
	ckpt_file_close(f);
	return got < 0 ? (int)got : 0;
}

static int read_below(struct ckpt *c, ckpt_node at, struct buf *out, struct ckpt_err *e);

static int read_entry(struct ckpt *c, ckpt_node n, const char *name, struct buf *out,
		      struct ckpt_err *e)
{
	char value[CKPT_NAME_MAX + 300];
	struct ckpt_stat st;
	int64_t got = ckpt_xattr(c, n, "user.ckptfs.files", value, sizeof(value), e);
	int rc;

	if (got < 0 && got != -ENODATA)
		return (int)got;
	*e = (struct ckpt_err){ 0 };
	buf_str(out, name);
	if (got > 0)
		buf_add(out, value, min_u64((uint64_t)got, sizeof(value)));
	rc = ckpt_stat(c, n, &st, e);
	if (rc)
		return rc;
	if (st.is_link) {
		got = ckpt_readlink(c, n, value, e);
		if (got > 0)
			buf_add(out, value, (size_t)got);
		return got < 0 ? (int)got : 0;
	}
	return st.is_dir ? read_below(c, n, out, e) : read_file(c, n, st.size, out, e);
}

/* Names, sizes and bytes of all files but those of .ckptfs, which say where the index is. */
static int read_below(struct ckpt *c, ckpt_node at, struct buf *out, struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	int rc = ckpt_enter(c, at, e);
	ckpt_node n;

	for (uint64_t pos = 0; !rc && !ckpt_entry(c, at, pos, name, &n); pos++)
		if (strcmp(name, ".ckptfs") != 0)
			rc = read_entry(c, n, name, out, e);
	return rc;
}

static int read_info(struct ckpt *c, struct ckpt_err *e)
{
	char *text = NULL;
	size_t n = 0;
	int rc = ckpt_info_json(c, &text, &n, e);

	if (!rc)
		REQUIRE(n && text[0] == '{');
	free(text);
	return rc;
}

static void ignore(void *arg, const struct ckpt_fault *f)
{
	(void)f;
	++*(unsigned *)arg;
}

static struct ckpt_opts options_of(const struct job *j)
{
	static char layout[4200], assets[4200], rules[4200];
	struct ckpt_opts o = { .index = j->options == CACHED || j->options == BUILT ? index_path
					: j->options == BESIDE			    ? NULL
										    : ":memory:" };

	(void)snprintf(layout, sizeof(layout), "%s/layout", dir);
	(void)snprintf(assets, sizeof(assets), "%s/assets", dir);
	(void)snprintf(rules, sizeof(rules), "%s/rules", dir);
	o.map_files = true;
	if (j->options == BLOCKS)
		o.dequantize = "bf16";
	if (j->options >= CAST) {
		o.dtype = "bf16";
		o.weights = "";
		o.rename = rules;
		o.maps = 1;
		o.shard_size = 2000;
	}
	if (j->options == RANKS)
		o.layout = layout;
	if (j->options == GGUF) {
		o.assets = assets;
		o.gguf_dtype = "q8_0";
	}
	return o;
}

static int open_source(const struct job *j, struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt_opts o = options_of(j);

	return open_typed(source_path(j), &o, ret, e);
}

/* ---- jobs ---- */

static int see_tree(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_totals n;
	unsigned faults = 0;
	struct ckpt_check k = { .data = true, .fault = ignore, .arg = &faults };
	struct ckpt *c = NULL;
	int rc = open_source(j, &c, e);

	REQUIRE(!rc == (c != NULL));
	if (!rc) {
		ckpt_totals(c, &n);
		buf_u64(out, n.mtime_ns);
		rc = read_below(c, CKPT_ROOT, out, e);
	}
	/* If gguf/ cannot be made, it is missing, and info.json says why. */
	if (!rc && j->options == GGUF && !memmem(out->data, out->len, "gguf", 4))
		rc = err_set(e, EIO, "there is no gguf/");
	if (!rc)
		rc = read_info(c, e);
	if (!rc)
		rc = ckpt_check(c, &k, e);
	/* A fault that was reported is a valid answer, too: no byte was wrong. */
	REQUIRE(rc || faults >= k.faults);
	ckpt_close(c);
	return rc;
}

static int note(void *arg, const struct ckpt_diff_item *i)
{
	struct buf *b = arg;

	REQUIRE((i->result == CKPT_DIFF_FAILED) == (i->fault != NULL));
	buf_add(b, i->fqn, i->fqn_len);
	if (i->result == CKPT_DIFF_FAILED)
		return -EIO; /* the sentence is in the item */
	buf_u64(b, (uint64_t)i->result);
	return 0;
}

static int compare(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_diff d = { .values = true, .each = note, .arg = out, .jobs = 2 };
	struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	struct ckpt *a = NULL, *b = NULL;
	int rc = open_source(j, &a, e);

	if (!rc)
		rc = open_typed(model_path, &o, &b, e);
	if (!rc)
		rc = ckpt_diff(a, b, &d, e);
	if (rc == -EIO && !e->code)
		(void)err_set(e, EIO, "a tensor cannot be compared");
	ckpt_close(a);
	ckpt_close(b);
	return rc;
}

static int note_values(void *arg, const struct ckpt_values_item *i)
{
	struct buf *b = arg;

	buf_add(b, i->fqn, i->fqn_len);
	if (i->fault)
		return -EIO; /* the sentence is in the item */
	buf_add(b, &i->values.elements, sizeof(i->values) - offsetof(struct ckpt_values, elements));
	if (i->linear)
		buf_add(b, i->linear->counts, i->linear->n * sizeof(*i->linear->counts));
	return 0;
}

static int scan(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_values_scan s = {
		.by = j->other ? CKPT_VALUES_RANK : CKPT_VALUES_LAYER,
		.each = note_values,
		.arg = out,
		.jobs = 2,
		.bins = 16,
	};
	struct ckpt *c = NULL;
	int rc = open_source(j, &c, e);

	if (!rc)
		rc = ckpt_values_scan(c, &s, e);
	if (rc == -EIO && !e->code)
		(void)err_set(e, EIO, "a tensor cannot be read");
	ckpt_close(c);
	return rc;
}

struct follow {
	struct ckpt *run;
	struct buf *out;
};

static int note_row(void *arg, const struct ckpt_series_item *i)
{
	struct buf *b = ((struct follow *)arg)->out;

	buf_add(b, i->fqn, i->fqn_len);
	buf_str(b, i->checkpoint);
	if (i->fault)
		return -EIO; /* the sentence is in the row */
	buf_add(b, &i->values.elements, sizeof(i->values) - offsetof(struct ckpt_values, elements));
	buf_u64(b, i->compared);
	buf_u64(b, i->changed);
	buf_add(b, &i->relative, sizeof(i->relative));
	return 0;
}

static int open_step(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e)
{
	static const char *const words[] = { "index=:memory:", NULL };
	const char *rest;

	return ckpt_run_open(((struct follow *)arg)->run, checkpoint, words, NULL, ret, &rest, e);
}

static int follow(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct follow f = { NULL, out };
	struct ckpt_series s = { .globs = (const char *const[]){ "model.layers.*", NULL },
				 .open = open_step,
				 .each = note_row,
				 .arg = &f,
				 .jobs = 2 };
	struct ckpt_opts o = { .index = ":memory:", .runs = true };
	int rc = open_typed(run_path, &o, &f.run, e);

	(void)j;
	if (!rc)
		rc = ckpt_series(f.run, &s, e);
	/* A checkpoint that cannot be looked at counts as incomplete, and is left out. */
	if (!rc && s.checkpoints != 2)
		rc = -EIO;
	if (rc == -EIO && !e->code)
		(void)err_set(e, EIO, "a checkpoint cannot be read");
	ckpt_close(f.run);
	return rc;
}

/* Pages tell when they were made, so their bytes are not compared. */
static int show(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_report r = { .path = "a", .stat = true, .jobs = 2 };
	struct ckpt *c = NULL;
	char *page = NULL;
	size_t len;
	int rc = open_source(j, &c, e);

	if (!rc)
		rc = ckpt_report(c, &r, &page, &len, e);
	buf_str(out, "made");
	free(page);
	ckpt_close(c);
	return rc;
}

static int show_diff(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_diff_report r = { .path_a = "a", .path_b = "b", .jobs = 2 };
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt *a = NULL, *b = NULL;
	char *page = NULL;
	size_t len;
	int rc = open_source(j, &a, e);

	if (!rc)
		rc = open_typed(model_path, &o, &b, e);
	if (!rc)
		rc = ckpt_diff_report(a, b, &r, &page, &len, e);
	buf_str(out, "made");
	free(page);
	ckpt_close(a);
	ckpt_close(b);
	return rc;
}

static int export(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	char dest[4300];
	struct export_job x = {
		.dest = dest, .request = "r", .request_len = 1, .threads = threads, .quiet = true
	};
	ckpt_node n = CKPT_ROOT;
	int rc = open_source(j, &x.c, e);

	(void)out;
	(void)snprintf(dest, sizeof(dest), "%s/%s", out_dir, j->dest);
	if (!rc && j->other)
		rc = ckpt_walk(x.c, "npy/model.norm.weight.npy", &n, e);
	if (!rc)
		rc = ckpt_stat(x.c, n, &x.what, e);
	if (!rc)
		rc = export_run(&x, e);
	ckpt_close(x.c);
	return rc;
}

static int reshard(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_save_opts save = { .overwrite = j->overwrite,
				       .zstd = j->other ? 3 : 0,
				       .threads = j->other ? 2 : 0 };
	struct ckpt_reshard r = { .format = j->format, .ranks = 2, .jobs = 2, .save = &save };
	char dest[4300];
	struct ckpt *c = NULL;
	int rc = open_source(j, &c, e);

	(void)out;
	(void)snprintf(dest, sizeof(dest), "%s/%s", out_dir, j->dest);
	if (!rc)
		rc = ckpt_reshard(c, dest, &r, e);
	ckpt_close(c);
	return rc;
}

static int save_rank(void *arg, struct ckpt_comm *comm, struct ckpt_err *e)
{
	const struct job *j = arg;
	struct ckpt_save_opts o = { .format = j->format, .overwrite = j->overwrite };
	char dest[4300];

	(void)snprintf(dest, sizeof(dest), "%s/%s", out_dir, j->dest);
	return ckpt_save(comm, dest, &saved.dict[comm->rank], &o, e);
}

static int save(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct job copy = *j;

	(void)out;
	return ckpt_comm_run_threads(saved.ranks, save_rank, &copy, e);
}

/* Loads into tensors of the shapes that were saved; rank 0 has all of each. */
static int load(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	static uint64_t off[SAVED_DIMS];
	struct ckpt_state_entry entries[SAVED_ENTRIES];
	struct ckpt_local_tensor t[SAVED_ENTRIES];
	struct ckpt_shard shards[SAVED_ENTRIES];
	struct ckpt_state_dict dict = { entries, saved.n };
	struct ckpt_opts open = options_of(j);
	const struct ckpt_load_opts o = { .open = words_of(&open) };
	struct ckpt_comm comm = ckpt_comm_self();
	int rc;

	for (size_t i = 0; i < saved.n; i++) {
		struct saved_entry *x = &saved.entries[i];

		shards[i] = (struct ckpt_shard){ off, x->shape, out->data + out->len };
		out->len += x->len;
		t[i] = saved.entries[i].of[0];
		t[i].shards = &shards[i];
		t[i].n_shards = 1;
		t[i].kind = CKPT_LOCAL_WHOLE;
		entries[i] = (struct ckpt_state_entry){ .fqn = x->fqn,
							.fqn_len = (uint32_t)strlen(x->fqn),
							.tensor = &t[i] };
	}
	REQUIRE(out->len <= OUT_MAX);
	rc = ckpt_load(&comm, model_path, &dict, &o, e);
	if (!rc)
		for (size_t i = 0; i < saved.n; i++)
			REQUIRE(!memcmp(shards[i].data, saved.entries[i].data,
					saved.entries[i].len));
	return rc;
}

static int note_checkpoint(void *arg, const struct ckpt_run_entry *x)
{
	struct buf *b = arg;

	bool whole = strcmp(x->name, "step-3") != 0;

	REQUIRE(x->complete == !x->fault);
	buf_str(b, x->name);
	buf_str(b, x->latest ? ", latest\n" : "\n");
	return whole && x->fault ? -EIO : 0; /* the sentence is in the entry */
}

/* Lists the checkpoints of a run, then opens each of them. */
static int list(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_opts o = { .index = ":memory:", .runs = true };
	struct ckpt *c = NULL;
	int rc = open_typed(run_path, &o, &c, e);

	(void)j;
	if (!rc)
		rc = ckpt_run_each(c, note_checkpoint, out, e);
	if (!rc)
		rc = ckpt_run_look(c, NULL, NULL, e);
	if (!rc)
		rc = ckpt_run_each(c, note_checkpoint, out, e);
	if (rc == -EIO && !e->code)
		(void)err_set(e, EIO, "a checkpoint cannot be used");
	ckpt_close(c);
	return rc;
}

static const struct job jobs[] = {
	{ "a tree", see_tree, "plain/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of compressed items", see_tree, "mp4_zstd/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of safetensors", see_tree, "mp4_hf_sharded/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of torch.save, zip", see_tree, "torchsave_zip/ckpt/model.pt", MEMORY, 0, 0, 0,
	  NULL },
	{ "a tree of torch.save, stream", see_tree, "torchsave_legacy/ckpt/model.pt", MEMORY, 0, 0,
	  0, NULL },
	{ "a tree of torch.save, tar", see_tree, "torchsave_tar/ckpt/model.pt", MEMORY, 0, 0, 0,
	  NULL },
	{ "a tree of torch.save, made of others", see_tree, "torchsave_parts/ckpt/model.pt", MEMORY,
	  0, 0, 0, NULL },
	{ "a tree of DCP, made of others", see_tree, "dcp_wrapped/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of DCP, cut", see_tree, "dcp_cut/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of torch 1.12", see_tree, "old_112/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of HyperParallel", see_tree, "hp_a_collective/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of Megatron", see_tree, "mcore_flat/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of DeepSpeed", see_tree, "ds_z2_fp32_w4_tiny/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of Megatron's ranks", see_tree, "mranks_moe/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of FSDP", see_tree, "fsdp_tp/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of slices", see_tree, "ds_tp2_z3_fp32_w4/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of zarr", see_tree, "mcore_zarr/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of Orbax", see_tree, "orbax/v2_two_processes/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of codecs", see_tree, "orbax/v3_codecs/ckpt.nemo", MEMORY, 0, 0, 0, NULL },
	{ "a tree of msgpack", see_tree, "orbax/msgpack_aggregate/ckpt", MEMORY, 0, 0, 0, NULL },
	{ "a tree of casts", see_tree, NULL, CAST, 0, 0, 0, NULL },
	{ "a tree of ranks", see_tree, NULL, RANKS, 0, 0, 0, NULL },
	{ "a tree with GGUF", see_tree, NULL, GGUF, 0, 0, 0, NULL },
	{ "a tree of a GGUF file", see_tree, NULL, BLOCKS, 0, 0, 0, NULL },
	{ "an index to be built", see_tree, "plain/ckpt", BUILT, 0, 0, 0, "index" },
	{ "an index that is there", see_tree, "plain/ckpt", CACHED, 0, 0, 0, "index" },
	{ "an index in the cache", see_tree, "plain/ckpt", BESIDE, 0, 0, 0, "ckptfs" },
	{ "a run", list, NULL, RUN, 0, 0, 0, NULL },
	{ "diff", compare, NULL, CAST, 0, 0, 0, NULL },
	{ "stat", scan, NULL, CAST, 0, 0, 0, NULL },
	{ "stat by rank", scan, "hp_a_collective/ckpt", MEMORY, 0, 0, true, NULL },
	{ "stat of a run", follow, NULL, RUN, 0, 0, 0, NULL },
	{ "report", show, NULL, CAST, 0, 0, 0, NULL },
	{ "diff --report", show_diff, NULL, CAST, 0, 0, 0, NULL },
	{ "export", export, NULL, RANKS, 0, 0, 0, "dest" },
	{ "export of a file", export, NULL, MEMORY, 0, 0, true, "dest" },
	{ "reshard to DCP", reshard, "plain/ckpt", MEMORY, CKPT_DCP, 0, 0, "dest" },
	{ "reshard to DCP, compressed", reshard, NULL, MEMORY, CKPT_DCP, true, true, "dest" },
	{ "reshard to HyperParallel", reshard, "plain/ckpt", MEMORY, CKPT_HYPERPARALLEL, 0, 0,
	  "dest" },
	{ "reshard to safetensors", reshard, NULL, CAST, CKPT_SAFETENSORS, 0, 0, "dest" },
	{ "reshard to Megatron", reshard, "bytes_items/ckpt", MEMORY, CKPT_MEGATRON, 0, 0, "dest" },
	{ "reshard to zarr", reshard, NULL, CAST, CKPT_ZARR, 0, 0, "dest" },
	{ "save as DCP", save, NULL, MEMORY, CKPT_DCP, 0, 0, "dest" },
	{ "save over DCP", save, NULL, MEMORY, CKPT_DCP, true, 0, "dest" },
	{ "save as HyperParallel", save, NULL, MEMORY, CKPT_HYPERPARALLEL, true, 0, "dest" },
	{ "save as safetensors", save, NULL, MEMORY, CKPT_SAFETENSORS, 0, 0, "dest" },
	{ "load", load, NULL, MEMORY, 0, 0, 0, NULL },
};

/* ---- what there is before and after ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	return at->level ? remove(path) : 0;
}

static void empty(const char *path)
{
	REQUIRE(!nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS));
}

/* The smallest Llama for which GGUF has blocks: hidden size 32, 2 heads, 8 tokens, one layer. */
static void make_model(struct saved *ret, uint64_t seed)
{
	static const struct {
		const char *fqn;
		uint64_t shape[2];
	} tensors[] = {
		{ "model.embed_tokens.weight", { 8, 32 } },
		{ "model.norm.weight", { 32 } },
		{ "lm_head.weight", { 8, 32 } },
		{ "model.layers.0.input_layernorm.weight", { 32 } },
		{ "model.layers.0.post_attention_layernorm.weight", { 32 } },
		{ "model.layers.0.self_attn.q_proj.weight", { 32, 32 } },
		{ "model.layers.0.self_attn.k_proj.weight", { 16, 32 } },
		{ "model.layers.0.self_attn.v_proj.weight", { 16, 32 } },
		{ "model.layers.0.self_attn.o_proj.weight", { 32, 32 } },
		{ "model.layers.0.mlp.gate_proj.weight", { 32, 32 } },
		{ "model.layers.0.mlp.up_proj.weight", { 32, 32 } },
		{ "model.layers.0.mlp.down_proj.weight", { 32, 32 } },
	};
	struct rng r = { seed };

	ret->ranks = 2;
	for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
		size_t n_dims = tensors[i].shape[1] ? 2 : 1;

		saved_add(&r, ret, tensors[i].fqn, "", i % 2 ? SAVED_MESH : SAVED_WHOLE,
			  CKPT_DTYPE_F32, n_dims, tensors[i].shape);
	}
	saved_dicts(ret);
}

static void put_texts(void)
{
	static const char config[] =
		"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":32,"
		"\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
		"\"num_key_value_heads\":1,\"max_position_embeddings\":32,\"rms_norm_eps\":1e-5}";
	static const char tokenizer[] =
		"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
		"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
		"\"merges\":[\"a b\"]}}";
	static const char layout[] = "mesh dp=1 tp=2\n*.weight tp:0\n";
	static const char rules[] = "s/never/x/\n";

	REQUIRE(!mkdirat(dir_fd, "assets", 0700));
	put_file(dir_fd, "assets/config.json", config, sizeof(config) - 1);
	put_file(dir_fd, "assets/tokenizer.json", tokenizer, sizeof(tokenizer) - 1);
	put_file(dir_fd, "layout", layout, sizeof(layout) - 1);
	put_file(dir_fd, "rules", rules, sizeof(rules) - 1);
}

/* ---- a GGUF file ---- */

/* A GPT-2 of one layer; its matrices are Q8_0. */
static const struct {
	const char *name;
	uint64_t rows, columns; /* 0: a vector, of float32 */
} gguf_tensors[] = {
	{ "token_embd.weight", 8, 32 },		{ "position_embd.weight", 4, 32 },
	{ "output_norm.weight", 0, 32 },	{ "output_norm.bias", 0, 32 },
	{ "blk.0.attn_norm.weight", 0, 32 },	{ "blk.0.attn_norm.bias", 0, 32 },
	{ "blk.0.ffn_norm.weight", 0, 32 },	{ "blk.0.ffn_norm.bias", 0, 32 },
	{ "blk.0.attn_qkv.weight", 96, 32 },	{ "blk.0.attn_qkv.bias", 0, 96 },
	{ "blk.0.attn_output.weight", 32, 32 }, { "blk.0.attn_output.bias", 0, 32 },
	{ "blk.0.ffn_up.weight", 64, 32 },	{ "blk.0.ffn_up.bias", 0, 64 },
	{ "blk.0.ffn_down.weight", 32, 64 },	{ "blk.0.ffn_down.bias", 0, 32 },
};

static void put_gguf(void)
{
	static const struct {
		const char *key;
		uint32_t value;
	} numbers[] = { { "gpt2.block_count", 1 },
			{ "gpt2.context_length", 4 },
			{ "gpt2.embedding_length", 32 },
			{ "gpt2.feed_forward_length", 64 },
			{ "gpt2.attention.head_count", 4 } };
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);
	uint64_t at = 0;

	made_head(&b, 3, ARRAY_LEN(gguf_tensors), ARRAY_LEN(numbers) + 2);
	made_text(&b, "general.architecture", "gpt2");
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
		made_u32(&b, numbers[i].key, numbers[i].value);
	made_key(&b, "gpt2.attention.layer_norm_epsilon", GGUF_F32);
	made_number(&b, 0x3727c5ac, 4);
	for (size_t i = 0; i < ARRAY_LEN(gguf_tensors); i++) {
		uint64_t rows = gguf_tensors[i].rows, columns = gguf_tensors[i].columns;

		made_tensor(&b, gguf_tensors[i].name, rows ? 2 : 1,
			    (const uint64_t[]){ columns, rows }, rows ? GGML_Q8_0 : GGML_F32, at);
		at += rows ? rows * columns / 32 * 34 : columns * 4;
		at = (at + 31) / 32 * 32;
	}
	made_padding(&b, 32);
	for (uint64_t i = 0; i < at; i++)
		made_number(&b, i % 61, 1);
	REQUIRE(!b.err);
	put_file(dir_fd, "model.gguf", b.data, b.len);
	(void)snprintf(gguf_path, sizeof(gguf_path), "%s/model.gguf", dir);
}

static void setup(void)
{
	static const struct job model = { .format = CKPT_DCP, .dest = "../model" };
	struct ckpt_err e = { 0 };

	dir_setup();
	(void)snprintf(out_dir, sizeof(out_dir), "%s/out", dir);
	(void)snprintf(index_path, sizeof(index_path), "%s/out/index", dir);
	(void)snprintf(model_path, sizeof(model_path), "%s/model", dir);
	(void)snprintf(run_path, sizeof(run_path), "%s/run", dir);
	REQUIRE(!mkdirat(dir_fd, "out", 0700) && !setenv("XDG_CACHE_HOME", out_dir, 1));
	fault_sqlite();
	make_model(&saved, 7);
	make_model(&other, 8);
	put_texts();
	put_gguf();
	ck_assert_msg(!save(&model, NULL, &e), "%s", e.msg);
}

/* Two checkpoints, and one without data. */
static void make_run(void)
{
	static const struct job first = { .format = CKPT_DCP, .dest = "../run/step-1" },
				second = { .format = CKPT_DCP, .dest = "../run/step-2" };
	struct ckpt_err e = { 0 };

	REQUIRE(!mkdirat(dir_fd, "run", 0700) && !mkdirat(dir_fd, "run/step-3", 0700));
	put_file(dir_fd, "run/step-3/__0_0.distcp", "", 0);
	ck_assert_msg(!save(&first, NULL, &e) && !save(&second, NULL, &e), "%s", e.msg);
}

/* Restores the state before the first attempt. */
static void prepare(const struct job *j)
{
	char dest[4300];
	struct buf out = BUF_INIT(OUT_MAX);
	struct ckpt_err e = { 0 };

	if (j->options == CACHED)
		return;
	if (j->options == RUN && access(run_path, F_OK))
		make_run();
	empty(out_dir);
	if (!j->overwrite)
		return;
	(void)snprintf(dest, sizeof(dest), "%s/%s", out_dir, j->dest);
	ck_assert_msg(!j->run(j, &out, &e), "%s", e.msg);
}

/* Is there anything in `out` besides the final name? */
static bool other_names(const struct job *j)
{
	DIR *d = opendir(out_dir);
	bool found = false;

	REQUIRE(d);
	for (const struct dirent *x; (x = readdir(d));)
		found |= strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 &&
			 (!j->dest || strcmp(x->d_name, j->dest) != 0);
	(void)closedir(d);
	return found;
}

static bool is_there(const struct job *j)
{
	char dest[4300];

	(void)snprintf(dest, sizeof(dest), "%s/%s", out_dir, j->dest);
	return j->dest && !access(dest, F_OK);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Paths and bytes of all files below, in order. */
static void read_files(const char *path, struct buf *out)
{
	char *const paths[] = { (char[4300]){ 0 }, NULL };
	struct ckpt_err e = { 0 };
	FTS *tree;

	(void)snprintf(paths[0], 4300, "%s", path);
	tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
	REQUIRE(tree);
	out->len = 0;
	for (const FTSENT *x; (x = fts_read(tree));) {
		if (x->fts_info == FTS_DP)
			continue;
		buf_str(out, x->fts_path);
		if (x->fts_info == FTS_F)
			REQUIRE(!io_read_file(x->fts_path, out, &e));
	}
	(void)fts_close(tree);
}

/* What was written, in a form that can be compared: the tree of the checkpoint, or the files. */
static int look(const struct job *j, struct buf *out, struct ckpt_err *e)
{
	char dest[4300];
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt *c = NULL;
	int rc;

	(void)snprintf(dest, sizeof(dest), "%s/%s", out_dir, j->dest);
	out->len = 0;
	if (j->run == export) {
		read_files(dest, out);
		return 0;
	}
	rc = open_typed(dest, &o, &c, e);
	if (!rc)
		rc = read_below(c, CKPT_ROOT, out, e);
	ckpt_close(c);
	return rc;
}

static void must_look(const struct job *j, struct buf *out)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!look(j, out, &e), "%s", e.msg);
}

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	REQUIRE(d);
	while (readdir(d))
		n++;
	(void)closedir(d);
	return n;
}

static bool writes(const struct job *j)
{
	return j->run == export || j->run == reshard || j->run == save;
}

static void same(const struct job *j, const struct buf *got, const struct buf *want, uint64_t n,
		 const char *call)
{
	if (got->len != want->len || memcmp(got->data, want->data, want->len) != 0)
		ck_abort_msg("%s, call %ju (%s): other bytes", j->name, (uintmax_t)n, call);
}

/* ---- rounds ---- */

struct rounds {
	const struct job *j;
	struct buf want, got;
	uint64_t faults, errors;
};

/* No error may be without a sentence, which is one line. */
static void check_error(const struct rounds *r, int rc, const struct ckpt_err *e, uint64_t n,
			const char *call)
{
	bool good = rc ? rc < 0 && e->code == -rc && e->msg[0] && !strchr(e->msg, '\n') : !e->code;

	if (!good)
		ck_abort_msg("%s, call %ju (%s): %d, '%s'", r->j->name, (uintmax_t)n, call, rc,
			     e->msg);
}

/* Runs the job again without faults: everything is there, and nothing else. */
static void again(struct rounds *r, uint64_t n, const char *call)
{
	const struct job *j = r->j;
	struct ckpt_err e = { 0 };
	int rc;

	r->got.len = 0;
	rc = j->run(j, &r->got, &e);
	if (rc)
		ck_abort_msg("%s, after call %ju (%s): %s", j->name, (uintmax_t)n, call, e.msg);
	if (writes(j))
		must_look(j, &r->got);
	same(j, &r->got, &r->want, n, call);
	/* If removing a name failed, the name stays. */
	if (other_names(j) && strncmp(call, "unlink", 6) != 0)
		ck_abort_msg("%s, after call %ju (%s): something is left behind", j->name,
			     (uintmax_t)n, call);
}

/* Returns false after the last round. */
static bool one_round(struct rounds *r, uint64_t n)
{
	const struct job *j = r->j;
	unsigned files = open_files();
	int64_t live = fault_live();
	struct ckpt_err e = { 0 };
	const char *call;
	bool finished;
	int rc;

	prepare(j);
	r->got.len = 0;
	fault_on(FAULT_ANY, n, 1);
	rc = j->run(j, &r->got, &e);
	(void)fault_off();
	call = fault_name();
	check_error(r, rc, &e, n, call);
	if (fault_live() != live || open_files() != files)
		ck_abort_msg("%s, call %ju (%s): %jd bytes, %d files are left", j->name,
			     (uintmax_t)n, call, (intmax_t)(fault_live() - live),
			     (int)open_files() - (int)files);
	if (!rc && !writes(j))
		same(j, &r->got, &r->want, n, call);
	finished = writes(j) && is_there(j);
	REQUIRE(rc || !writes(j) || finished);
	if (finished) { /* whatever it says */
		must_look(j, &r->got);
		same(j, &r->got, &r->want, n, call);
	}
	if (!fault_hit())
		return false;
	r->faults++;
	r->errors += rc != 0;
	if ((j->dest || n % 16 == 0) && (!finished || j->overwrite))
		again(r, n, call);
	return true;
}

/* How many rounds: as many as the user says, or many in a full run. */
static uint64_t rounds_of(uint64_t few)
{
	const char *rounds = getenv("FAULT_ROUNDS");

	return rounds ? strtoull(rounds, NULL, 10) : CHECK_FULL() ? ROUNDS_FULL : few;
}

START_FEW_TEST(nothing_that_fails_does_harm, ARRAY_LEN(jobs), ARRAY_LEN(jobs))
{
	const struct job *j = &jobs[_i];
	const char *only = getenv("FAULT_JOBS");
	struct rounds r = { j, BUF_INIT(OUT_MAX), BUF_INIT(OUT_MAX), 0, 0 };
	struct rng rng = rng_new();
	uint64_t calls, rounds, step, n;
	struct ckpt_err e = { 0 };

	if (only && fnmatch(only, j->name, 0) != 0)
		return;
	REQUIRE(buf_room(&r.want, OUT_MAX) && buf_room(&r.got, OUT_MAX)); /* once and for all */
	prepare(j);
	ck_assert_msg(!j->run(j, &r.want, &e), "%s", e.msg); /* makes what is kept for ever */
	prepare(j);
	r.want.len = 0;
	fault_on(FAULT_ANY, 0, 0);
	ck_assert_msg(!j->run(j, &r.want, &e), "%s", e.msg);
	calls = fault_off();
	if (writes(j))
		must_look(j, &r.want);
	ck_assert_uint_gt(r.want.len, 0);
	rounds = rounds_of(ROUNDS);
	step = rounds ? (calls + rounds - 1) / rounds : 1;
	n = 1 + rng_below(&rng, step);
	while (one_round(&r, n))
		n += step;
	printf("faults: %s: %ju calls, every %ju. fails: %ju, of which %ju are errors\n", j->name,
	       (uintmax_t)calls, (uintmax_t)step, (uintmax_t)r.faults, (uintmax_t)r.errors);
	(void)fflush(stdout);
	/* The program may cope with some failures; if there are few, with all of them. */
	if (r.faults >= 50)
		ck_assert_uint_gt(r.errors, r.faults / 8);
	buf_release(&r.want);
	buf_release(&r.got);
}
END_TEST

/* ---- power failures ---- */

enum start {
	NOTHING, /* at the destination */
	OLD,	 /* another checkpoint */
	LEFT,	 /* what a crash has left, and where it can be the old one */
};

static const struct power {
	struct job job;
	enum start start;
	bool no_exchange; /* of two directories, as on NFS */
} powers[] = {
	{ { "save as DCP", save, NULL, MEMORY, CKPT_DCP, true, 0, "dest" }, NOTHING, false },
	{ { "save as DCP", save, NULL, MEMORY, CKPT_DCP, true, 0, "dest" }, OLD, false },
	{ { "save as DCP", save, NULL, MEMORY, CKPT_DCP, true, 0, "dest" }, LEFT, false },
	{ { "save as DCP", save, NULL, MEMORY, CKPT_DCP, true, 0, "dest" }, OLD, true },
	{ { "save as DCP", save, NULL, MEMORY, CKPT_DCP, true, 0, "dest" }, LEFT, true },
	{ { "save as HyperParallel", save, NULL, MEMORY, CKPT_HYPERPARALLEL, true, 0, "dest" },
	  OLD,
	  false },
	{ { "save as safetensors", save, NULL, MEMORY, CKPT_SAFETENSORS, true, 0, "dest" },
	  OLD,
	  false },
	{ { "reshard to DCP, compressed", reshard, NULL, MEMORY, CKPT_DCP, true, true, "dest" },
	  OLD,
	  false },
	{ { "reshard to HyperParallel", reshard, "plain/ckpt", MEMORY, CKPT_HYPERPARALLEL, true, 0,
	    "dest" },
	  OLD,
	  true },
	{ { "reshard to safetensors", reshard, NULL, CAST, CKPT_SAFETENSORS, true, 0, "dest" },
	  NOTHING,
	  false },
	{ { "reshard to safetensors", reshard, NULL, CAST, CKPT_SAFETENSORS, true, 0, "dest" },
	  OLD,
	  false },
	{ { "reshard to Megatron", reshard, "bytes_items/ckpt", MEMORY, CKPT_MEGATRON, true, 0,
	    "dest" },
	  NOTHING,
	  false },
	{ { "reshard to Megatron", reshard, "bytes_items/ckpt", MEMORY, CKPT_MEGATRON, true, 0,
	    "dest" },
	  LEFT,
	  true },
	{ { "reshard to zarr", reshard, NULL, CAST, CKPT_ZARR, true, 0, "dest" }, NOTHING, false },
	{ { "reshard to zarr", reshard, NULL, CAST, CKPT_ZARR, true, 0, "dest" }, OLD, false },
	{ { "reshard to zarr", reshard, NULL, CAST, CKPT_ZARR, true, 0, "dest" }, LEFT, false },
	{ { "export", export, NULL, RANKS, 0, 0, 0, "dest" }, NOTHING, false },
	{ { "export", export, NULL, RANKS, 0, 0, 0, "dest" }, LEFT, false },
	{ { "export of a file", export, NULL, MEMORY, 0, 0, true, "dest" }, NOTHING, false },
	{ { "export of a file", export, NULL, MEMORY, 0, 0, true, "dest" }, LEFT, false },
	{ { "an index", see_tree, "plain/ckpt", BUILT, 0, 0, 0, NULL }, NOTHING, false },
	{ { "an index in the cache", see_tree, "plain/ckpt", BESIDE, 0, 0, 0, NULL }, LEFT, false },
};

struct outage {
	const struct power *p;
	const struct job *j;
	struct buf old, want, got;
	size_t n, changes; /* this change, all of them */
	enum disk_keep keep;
	uint64_t seed;
};

static void __attribute__((noreturn, format(printf, 2, 3)))
broken(const struct outage *o, const char *fmt, ...)
{
	static const char *const keeps[] = { "all", "nothing", "the first", "some", "lies" };
	char why[600];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	ck_abort_msg(
		"%s (%d%s), the power goes before change %zu of %zu (%s), left is %s (%ju): %s",
		o->j->name, (int)o->p->start, o->p->no_exchange ? ", no exchange" : "", o->n,
		o->changes, disk_change(o->n), keeps[o->keep], (uintmax_t)o->seed, why);
}

static void must_run(const struct job *j)
{
	struct buf out = BUF_INIT(OUT_MAX);
	struct ckpt_err e = { 0 };

	REQUIRE(buf_room(&out, OUT_MAX));
	ck_assert_msg(!j->run(j, &out, &e), "%s", e.msg);
	buf_release(&out);
}

/* Swaps the model with the one that has other numbers; a second call swaps them back. */
static void other_saved(void)
{
	struct saved x = saved;

	saved = other;
	other = x;
	saved_dicts(&saved);
}

/* Puts another checkpoint of the same format there, and notes what it looks like. */
static void put_old(struct outage *o)
{
	struct job old = *o->j;

	if (old.run == save)
		other_saved();
	else
		old.source = old.source ? NULL : "plain/ckpt";
	must_run(&old);
	must_look(o->j, &o->old);
	if (old.run == save)
		other_saved();
}

static void put_start(struct outage *o)
{
	size_t n;

	empty(out_dir);
	if (o->p->start != NOTHING && o->j->overwrite)
		put_old(o);
	if (o->p->start != LEFT)
		return;
	disk_record(out_dir);
	must_run(o->j);
	n = disk_stop();
	disk_crash(n - n / 3, DISK_ALL, 1);
}

/* The checkpoint, if there is one, is the old one or the new one, whole. */
static bool whole(struct outage *o)
{
	struct ckpt_err e = { 0 };
	bool is_new, is_old;

	if (!is_there(o->j)) {
		char kept[4300];

		if (o->n == o->changes)
			broken(o, "it was done, and nothing is there");
		(void)snprintf(kept, sizeof(kept), "%s/dest.partial.old", out_dir);
		if (o->old.len && (!o->p->no_exchange || access(kept, F_OK)))
			broken(o, "the old one is gone");
		return false;
	}
	if (look(o->j, &o->got, &e))
		broken(o, "%s", e.msg);
	is_new = o->got.len == o->want.len && !memcmp(o->got.data, o->want.data, o->got.len);
	is_old = o->old.len && o->got.len == o->old.len &&
		 !memcmp(o->got.data, o->old.data, o->got.len);
	if (!is_new && !is_old)
		broken(o, "other bytes");
	if (!is_new && o->n == o->changes)
		broken(o, "it was done, and the old one is there");
	return is_new;
}

/* The same again, while nothing is lost any more. */
static void recovers(struct outage *o)
{
	const struct job *j = o->j;
	struct ckpt_err e = { 0 };
	int rc;

	o->got.len = 0;
	rc = j->run(j, &o->got, &e);
	/* If the disk lied, an index may be left with nothing but its name; such a file is not
	 * replaced. */
	if (rc == -EEXIST && o->keep == DISK_LIES && strstr(e.msg, "is not a chunk index")) {
		empty(out_dir);
		e = (struct ckpt_err){ 0 };
		rc = j->run(j, &o->got, &e);
	}
	if (rc)
		broken(o, "the next attempt: %s", e.msg);
	if (writes(j) && look(j, &o->got, &e))
		broken(o, "after the next attempt: %s", e.msg);
	if (o->got.len != o->want.len || memcmp(o->got.data, o->want.data, o->want.len) != 0)
		broken(o, "other bytes after the next attempt");
	if (writes(j) && other_names(j))
		broken(o, "something is left after the next attempt");
}

static void one_outage(struct outage *o)
{
	bool done;

	disk_crash(o->n, o->keep, o->seed);
	done = writes(o->j) && whole(o);
	if (!done || o->j->overwrite)
		recovers(o);
}

/* If nothing is lost, the directory is as the calls left it: disk.c missed none of them. */
static void all_is_seen(struct outage *o)
{
	struct buf there = BUF_INIT(OUT_MAX);

	REQUIRE(buf_room(&there, OUT_MAX));
	read_files(out_dir, &there);
	o->keep = DISK_ALL;
	disk_crash(o->changes, DISK_ALL, 0);
	read_files(out_dir, &o->got);
	if (o->got.len != there.len || memcmp(o->got.data, there.data, there.len) != 0)
		broken(o, "disk.c has not seen every call");
	buf_release(&there);
}

START_FEW_TEST(what_was_not_synced_may_be_lost, ARRAY_LEN(powers), ARRAY_LEN(powers))
{
	static const enum disk_keep keeps[] = { DISK_ALL,  DISK_NONE, DISK_FIRST, DISK_SOME,
						DISK_SOME, DISK_SOME, DISK_LIES };
	const struct power *p = &powers[_i];
	const char *only = getenv("FAULT_JOBS"), *law;
	struct outage o = {
		p,	  &p->job, BUF_INIT(OUT_MAX), BUF_INIT(OUT_MAX), BUF_INIT(OUT_MAX), 0, 0,
		DISK_ALL, 0
	};
	uint64_t want = rounds_of(ROUNDS / 2), done = 0;
	bool is_index = !writes(&p->job); /* a torn one must be noticed */
	struct rng rng = rng_new();
	size_t step;

	if (only ? fnmatch(only, o.j->name, 0) != 0 : !rng_sample((uint64_t)_i, 4))
		return;
	threads = 1; /* a unit is recorded when all that was written is on disk */
	if (p->no_exchange)
		fault_no_exchange();
	REQUIRE(buf_room(&o.old, OUT_MAX) && buf_room(&o.want, OUT_MAX) &&
		buf_room(&o.got, OUT_MAX));
	put_start(&o);
	disk_record(out_dir);
	must_run(o.j);
	o.n = o.changes = disk_stop();
	law = disk_law(writes(o.j) ? o.j->dest : NULL);
	ck_assert_msg(!law, "%s (%d%s): %s", o.j->name, (int)p->start,
		      p->no_exchange ? ", no exchange" : "", law);
	all_is_seen(&o);
	if (writes(o.j)) {
		must_look(o.j, &o.want);
		REQUIRE(o.want.len && (o.want.len != o.old.len ||
				       memcmp(o.want.data, o.old.data, o.want.len) != 0));
	} else {
		struct ckpt_err e = { 0 };

		ck_assert_msg(!o.j->run(o.j, &o.want, &e), "%s", e.msg);
	}
	step = want ? (o.changes + want - 1) / want : 1;
	for (o.n = o.changes; done <= o.changes / step; done++) {
		for (size_t k = 0; k < ARRAY_LEN(keeps) - !is_index; k++) {
			o.keep = keeps[k];
			o.seed = rng_u64(&rng);
			one_outage(&o);
		}
		o.n = min_u64(done * step + rng_below(&rng, step), o.changes);
	}
	printf("power: %s: %zu changes, every %zu.\n", o.j->name, o.changes, step);
	(void)fflush(stdout);
	buf_release(&o.old);
	buf_release(&o.want);
	buf_release(&o.got);
}
END_TEST

/* ---- in any order ---- */

/* STATES_FULL states at each place, until STATES_ALL have been seen in all; then STATES. */
enum { STATES = 256, STATES_FULL = 1 << 15, STATES_ALL = 1 << 17, RETRIES = 50, NODES_MAX = 512 };

struct orders {
	struct outage o;
	struct disk_how how;
	struct rng rng;
	uint64_t most;			 /* states at a place */
	uint64_t every, retries, doubts; /* states from one retry to the next; counted */
	bool only_look, bad;
};

/* Is it, byte for byte, what it was before, or what it is at the end? */
static bool is_old_or_new(const struct outage *o)
{
	bool kept = o->p->no_exchange && disk_is_old("dest.partial.old", o->j->dest);

	switch (disk_what(o->j->dest)) {
	case DISK_NEW:
		return true;
	case DISK_OLD:
		return o->old.len && o->n < o->changes;
	case DISK_ABSENT:
		return o->n < o->changes && (!o->old.len || kept);
	default:
		return false;
	}
}

/* A state that is neither old nor new is opened; so is one in `every` of the others, which is then
 * saved over as well. */
static void see_state(void *arg)
{
	struct orders *x = arg;
	struct outage *o = &x->o;
	bool sure = !writes(o->j) || is_old_or_new(o);

	x->bad |= !sure;
	if (x->only_look || (sure && (x->retries >= RETRIES || rng_below(&x->rng, x->every))))
		return;
	x->doubts += !sure;
	x->retries++;
	o->keep = DISK_SOME;
	o->seed = x->how.states;
	disk_put();
	if (!writes(o->j) || !whole(o) || o->j->overwrite)
		recovers(o);
}

/* As in what_was_not_synced_may_be_lost. */
static void record(struct outage *o)
{
	struct ckpt_err e = { 0 };

	threads = 1; /* a unit is recorded when all that was written is on disk */
	if (o->p->no_exchange)
		fault_no_exchange();
	REQUIRE(buf_room(&o->old, OUT_MAX) && buf_room(&o->want, OUT_MAX) &&
		buf_room(&o->got, OUT_MAX));
	put_start(o);
	disk_record(out_dir);
	must_run(o->j);
	o->n = o->changes = disk_stop();
	if (writes(o->j))
		must_look(o->j, &o->want);
	else
		ck_assert_msg(!o->j->run(o->j, &o->want, &e), "%s", e.msg);
}

static void release(struct outage *o)
{
	buf_release(&o->old);
	buf_release(&o->want);
	buf_release(&o->got);
}

static struct orders orders_of(const struct power *p, uint64_t states)
{
	return (struct orders){ .o = { .p = p,
				       .j = &p->job,
				       .old = BUF_INIT(OUT_MAX),
				       .want = BUF_INIT(OUT_MAX),
				       .got = BUF_INIT(OUT_MAX) },
				.most = states,
				.rng = rng_new(),
				.every = writes(&p->job) ? 100 : 10 };
}

static bool is_chosen(int i)
{
	const char *only = getenv("FAULT_JOBS");

	return only ? !fnmatch(only, powers[i].job.name, 0) : rng_turn((uint64_t)i, 8);
}

static void see_place(struct orders *x, size_t n)
{
	x->o.n = n;
	x->how.again = n == x->o.changes; /* now only the new one will do */
	x->how.seed = rng_u64(&x->rng);
	x->how.most = x->most > STATES && x->how.states < STATES_ALL ? x->most : STATES;
	/* To find a sync that is missing, it is enough that one choice differs from all others. */
	x->how.brief = !x->only_look && x->how.most == STATES;
	disk_states(n, &x->how, see_state, x);
}

static void see_all(struct orders *x, size_t from)
{
	for (size_t n = from; n <= x->o.changes; n++)
		see_place(x, n);
}

/* A power failure at each change, with all orders in which the disk may have written what was not
 * synced. */
START_FEW_TEST(in_any_order_it_is_the_old_or_the_new, ARRAY_LEN(powers), ARRAY_LEN(powers))
{
	const struct power *p = &powers[_i];
	struct orders x = orders_of(p, CHECK_FULL() ? STATES_FULL : STATES);

	if (!is_chosen(_i))
		return;
	record(&x.o);
	see_all(&x, 0);
	printf("orders: %s (%d%s): all orders at %zu of %zu places; %ju states, %ju of them "
	       "different; %ju retried, %ju because they are neither byte for byte\n",
	       p->job.name, (int)p->start, p->no_exchange ? ", no exchange" : "", x.how.whole,
	       x.how.whole + x.how.part, (uintmax_t)x.how.states, (uintmax_t)x.how.different,
	       (uintmax_t)x.retries, (uintmax_t)x.doubts);
	(void)fflush(stdout);
	release(&x.o);
}
END_TEST

/*
 * The same for a writer that never syncs one of its files or directories: the tests notice. Mostly
 * failures at the end, where little else is uncertain; all places for each of a hundred files would
 * take minutes.
 */
START_FEW_TEST(what_is_never_synced_is_found, ARRAY_LEN(powers), ARRAY_LEN(powers))
{
	const struct power *p = &powers[_i];
	struct orders x = orders_of(p, STATES);
	unsigned states = 0, laws = 0, neither = 0;
	char done[NODES_MAX] = { 0 };
	bool all = false, repeats = p->job.run == export; /* it copies again what it has lost */

	if (!is_chosen(_i) || !writes(&p->job))
		return;
	x.only_look = true;
	record(&x.o);
	for (size_t i = 0; i < x.o.changes; i++) {
		int node = disk_synced_by(i);

		REQUIRE(node < NODES_MAX);
		if (node < 0 || done[node])
			continue;
		done[node] = true;
		if (!disk_forget(node))
			continue;
		x.bad = false;
		see_place(&x, x.o.changes);
		if (!x.bad && disk_law(p->job.dest)) {
			laws++;
			continue;
		}
		if (!x.bad) {
			all = true;
			see_all(&x, i);
		}
		states += x.bad;
		neither += !x.bad;
		if (!x.bad && !repeats)
			ck_abort_msg("%s (%d%s): nothing says that change %zu (%s) is necessary",
				     p->job.name, (int)p->start,
				     p->no_exchange ? ", no exchange" : "", i, disk_change(i));
	}
	(void)disk_forget(-1);
	x.bad = false;
	see_all(&x, all ? 0 : x.o.changes);
	REQUIRE(!x.bad && states > (repeats ? 0 : 2));
	printf("never synced: %s (%d%s): %u found by states, %u by laws, %u not necessary\n",
	       p->job.name, (int)p->start, p->no_exchange ? ", no exchange" : "", states, laws,
	       neither);
	(void)fflush(stdout);
	release(&x.o);
}
END_TEST

SUITE(faults, .setup = setup, .teardown = dir_teardown, .seconds = 900)
