/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/cpus.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/reshard/reshard_internal.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "model/box.h"
#include "source/files.h"
#include "store/megatron_form.h"
#include "store/writer_safetensors.h"
#include "tree/view.h"

#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reshard_asset {
	const struct assets *of;
	size_t number;
};

static void warn(const struct resharding *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void warn(const struct resharding *s, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (s->r->warn)
		s->r->warn(s->r->warn_arg, text);
}

/* ---- what is written ---- */

int reshard_compare(const char *fqn, size_t len, bool is_tensor, const struct reshard_entry *t)
{
	size_t n = len < t->fqn_len ? len : t->fqn_len;
	int c = is_tensor - t->is_tensor;

	if (!c && n)
		c = memcmp(fqn, t->fqn, n);
	return c ? c : len < t->fqn_len ? -1 : len > t->fqn_len;
}

static int compare_entries(const void *ap, const void *bp)
{
	const struct reshard_entry *const *a = ap, *const *b = bp;

	return reshard_compare((*a)->fqn, (*a)->fqn_len, (*a)->is_tensor, *b);
}

/* The keys that lead to the entry in a nested state dict. */
static bool add_path(struct resharding *s, struct reshard_entry *t)
{
	size_t (*ask)(const struct ckpt *, uint64_t, struct ckpt_step *, size_t) =
		t->is_tensor ? ckpt_tensor_path : ckpt_object_path;
	size_t n = ask(s->c, t->number, NULL, 0);
	autofree struct ckpt_step *steps = calloc(n + 1, sizeof(*steps));
	struct ckpt_path_step *path = arena_array(&s->a, n, sizeof(*path));

	if (!steps || !path)
		return false;
	(void)ask(s->c, t->number, steps, n);
	for (size_t i = 0; i < n; i++)
		path[i] =
			(struct ckpt_path_step){ .key = steps[i].is_position ? NULL : steps[i].text,
						 .key_len = (uint32_t)steps[i].len,
						 .position = steps[i].position };
	t->path = n ? path : NULL;
	t->n_steps = (uint32_t)n;
	s->has_paths |= n != 0;
	return true;
}

static void add_tensor(struct resharding *s, size_t i)
{
	struct tensor_info t;
	const char *fault;

	if (s->r->model)
		view_model_tensor(s->c->engine->view, i, &t);
	else
		view_tensor(s->c->engine->view, i, &t);
	fault = ckpt_fault_of(s->c->engine, &t);
	if (fault) {
		warn(s, "'%s' is left out: %s", FQN_TEXT(t.fqn, t.fqn_len), fault);
		return;
	}
	s->entries[s->n++] = (struct reshard_entry){ .fqn = t.fqn,
						     .fqn_len = (uint32_t)t.fqn_len,
						     .number = (uint32_t)i,
						     .is_tensor = true,
						     .dtype = (uint8_t)t.dtype,
						     .n_dims = (uint8_t)t.n_dims,
						     .shape = t.shape };
	if (t.stored) {
		s->entries[s->n - 1].n_logical = t.stored->n_logical;
		s->entries[s->n - 1].logical = t.stored->logical;
	}
	s->total += t.bytes;
	s->r->tensors++;
}

/*
 * Gives an object the name and the form that Megatron-core looks for: those of its own keep theirs,
 * all others become objects of a single part. 1: its name cannot be made into one; or -ENOMEM.
 */
static int to_megatron(struct resharding *s, struct reshard_entry *t, struct ckpt_err *e)
{
	/* Parts in files of their own are not in lists. */
	bool bare = !strcmp(s->c->totals.format, "megatron-zarr");
	const size_t tail = strlen(MEGATRON_WHOLE_PART);
	char *name;

	t->to = OBJECT_TORCH;
	if (bytes_are(t->fqn, t->fqn_len, MEGATRON_COMMON_NAME))
		return 0;
	if (megatron_is_part(t->fqn, t->fqn_len)) {
		t->to = bare ? OBJECT_LISTED : OBJECT_TORCH;
		return 0;
	}
	if (memchr(t->fqn, '/', t->fqn_len))
		return 1;
	name = arena_alloc(&s->a, t->fqn_len + tail);
	if (!name)
		return err_nomem(e);
	memcpy(name, t->fqn, t->fqn_len);
	memcpy(name + t->fqn_len, MEGATRON_WHOLE_PART, tail);
	t->fqn = name;
	t->fqn_len += (uint32_t)tail;
	t->to = OBJECT_LISTED;
	return 0;
}

static int add_object(struct resharding *s, size_t i, struct ckpt_err *e)
{
	struct reshard_entry *t = &s->entries[s->n];
	struct ckpt_object o;
	int rc = 0;

	ckpt_object(s->c, i, &o);
	if (format_is_note(o.fqn, o.fqn_len) && !*o.path) /* about this checkpoint's files */
		return 0;
	if (o.fault) {
		warn(s, "'%s' is left out: %s", FQN_TEXT(o.fqn, o.fqn_len), o.fault);
		return 0;
	}
	*t = (struct reshard_entry){ .fqn = o.fqn,
				     .fqn_len = (uint32_t)o.fqn_len,
				     .number = (uint32_t)i,
				     .form = (uint8_t)ckpt_object_form(s->c->engine, &o),
				     .to = s->r->format == CKPT_DCP ? OBJECT_TORCH
								    : OBJECT_PICKLE };
	if (s->r->format == CKPT_MEGATRON)
		rc = to_megatron(s, t, e);
	if (rc > 0)
		warn(s, "'%s' is left out: names of Megatron-core's objects have no '/'",
		     FQN_TEXT(o.fqn, o.fqn_len));
	if (rc)
		return rc < 0 ? rc : 0;
	s->n++;
	s->total += o.length;
	s->r->objects++;
	return 0;
}

static int list_objects(struct resharding *s, size_t n, struct ckpt_err *e)
{
	int rc = 0;

	if (n && reshard_takes_whole(s->r)) {
		warn(s, "%zu object%s left out: %s hold only tensors", n, n == 1 ? " is" : "s are",
		     s->r->format == CKPT_ZARR ? "zarr arrays" : "safetensors files");
		return 0;
	}
	for (size_t i = 0; !rc && i < n; i++)
		rc = add_object(s, i, e);
	return rc;
}

/* {"a.b": tensor, "a": {"b": 7}} has both, but formats with objects have one entry for a name. */
static int refuse_same_names(const struct resharding *s, struct ckpt_err *e)
{
	for (size_t i = s->n_tensors; i < s->n; i++) {
		const struct reshard_entry *t = &s->entries[i];

		if (reshard_find(s, t->fqn, t->fqn_len, true))
			return err_set(e, EINVAL,
				       "'%s' is the name of a tensor and of an object, of which "
				       "only one can be written: the option exclude leaves out "
				       "both, the formats safetensors and zarr leave out objects",
				       FQN_TEXT(t->fqn, t->fqn_len));
	}
	return 0;
}

/* No type of a GGUF but quantised blocks is shown as uint8. */
static void warn_of_blocks(const struct resharding *s)
{
	size_t n = 0;

	if (strcmp(s->c->totals.format, "gguf") != 0)
		return;
	for (size_t i = 0; i < s->n_tensors; i++)
		n += s->entries[i].dtype == CKPT_DTYPE_U8;
	if (n)
		warn(s,
		     "%zu tensor%s written as %s quantised blocks of uint8, which only GGUF "
		     "readers understand: dequantize=bf16, fp16 or fp32 writes the values",
		     n, n == 1 ? " is" : "s are", n == 1 ? "its" : "their");
}

static int list_entries(struct resharding *s, struct ckpt_err *e)
{
	size_t tensors = s->r->model ? s->c->totals.model_tensors : s->c->totals.tensors;
	size_t objects = s->r->model ? 0 : s->c->totals.objects;

	if (!ckpt_engine(s->c, e))
		return -EISDIR;
	s->entries = arena_array(&s->a, tensors + objects, sizeof(*s->entries));
	s->by_name = arena_array(&s->a, tensors + objects, sizeof(*s->by_name));
	if (!s->entries || !s->by_name)
		return err_set(e, ENOMEM, "%zu tensors: out of memory", tensors);
	for (size_t i = 0; i < tensors; i++)
		add_tensor(s, i);
	s->n_tensors = s->n;
	warn_of_blocks(s);
	if (list_objects(s, objects, e))
		return -e->code;
	for (size_t i = 0; i < s->n; i++) {
		s->by_name[i] = &s->entries[i];
		if (!s->r->model && !add_path(s, &s->entries[i]))
			return err_set(e, ENOMEM, "%zu names: out of memory", s->n);
	}
	qsort(s->by_name, s->n, sizeof(*s->by_name), compare_entries);
	return refuse_same_names(s, e);
}

/* A checkpoint must not be replaced by nothing. */
static int refuse_nothing(const struct resharding *s, struct ckpt_err *e)
{
	if (s->n)
		return 0;
	return err_set(e, ENOENT, "there is nothing to write: %s",
		       s->r->model		   ? "no tensor of a model is left"
		       : reshard_takes_whole(s->r) ? "no tensor is left"
						   : "no tensor and no object is left");
}

/* ---- files beside the model ---- */

static int read_asset(void *arg, uint64_t off, void *to, size_t len, struct ckpt_err *e)
{
	const struct reshard_asset *a = arg;
	int rc = assets_read(a->of, a->number, to, len, off, e);

	/* These are read last, and may have to be removed then: see reshard_gate. */
	if (a->of->files && off + len == a->of->v[a->number].size)
		files_trim(a->of->files, 0);
	return rc;
}

/*
 * A model written on its own gets the same files beside it as in hf/: config.json, the tokenizer.
 */
static int list_assets(struct resharding *s, struct ckpt_err *e)
{
	const struct assets *of;
	struct reshard_asset *a;

	if (!s->r->model || s->r->format != CKPT_SAFETENSORS || !s->c->engine)
		return 0; /* a run has no engine, and is refused with its tensors */
	of = &s->c->engine->assets;
	if (!of->n)
		return 0;
	a = arena_array(&s->a, of->n, sizeof(*a));
	s->added = arena_array(&s->a, of->n, sizeof(*s->added));
	if (!a || !s->added)
		return err_nomem(e);
	for (size_t i = 0; i < of->n; i++) {
		a[i] = (struct reshard_asset){ of, i };
		s->added[i] = (struct writer_safetensors_file){
			of->v[i].name, { .read = read_asset, .arg = &a[i], .len = of->v[i].size }
		};
	}
	s->n_added = of->n;
	return 0;
}

/* ---- the ranks ---- */

static int bind_layout(struct resharding *s, struct ckpt_err *e)
{
	struct layout_tensor *list = calloc(s->n_tensors + 1, sizeof(*list));
	char text[384];
	int rc;

	if (!list)
		return err_set(e, ENOMEM, "%zu tensors: out of memory", s->n_tensors);
	for (size_t i = 0; i < s->n_tensors; i++)
		list[i] = (struct layout_tensor){ .fqn = s->entries[i].fqn,
						  .fqn_len = s->entries[i].fqn_len,
						  .n_dims = s->entries[i].n_dims,
						  .shape = s->entries[i].shape };
	rc = layout_read(s->r->layout, &s->layout, e);
	if (!rc)
		rc = layout_bind(s->layout, list, s->n_tensors, e);
	free(list);
	for (size_t i = 0; !rc && i < 3 && layout_unused(s->layout, i, text, sizeof(text)); i++)
		warn(s, "%s", text);
	return rc;
}

/* All ranks of a layout are written, so they must be numbered without gaps. */
static int check_ranks(const struct resharding *s, struct ckpt_err *e)
{
	size_t n = layout_ranks(s->layout);

	for (size_t i = 0; i < n; i++)
		if (layout_rank(s->layout, i) != i)
			return err_set(e, EINVAL, "layout '%s': there is no rank %zu of 0 to %ju",
				       s->r->layout, i, (uintmax_t)layout_rank(s->layout, n - 1));
	if (s->r->ranks && s->r->ranks != n)
		return err_set(e, EINVAL, "layout '%s' is for %zu ranks, not %ju", s->r->layout, n,
			       (uintmax_t)s->r->ranks);
	return 0;
}

/*
 * The number of ranks that wrote the source, if its file names tell; a model stored as whole
 * tensors belongs to no rank.
 */
static uint64_t ranks_of_source(const struct resharding *s)
{
	uint64_t n = reshard_takes_whole(s->r) ? 1 : s->c->totals.ranks;

	return max_u64(1, min_u64(n, CKPT_RESHARD_MAX_RANKS));
}

static int count_ranks(struct resharding *s, struct ckpt_err *e)
{
	struct ckpt_reshard *r = s->r;
	int rc = 0;

	if (r->layout && r->format == CKPT_ZARR)
		return err_set(e, EINVAL,
			       "layout '%s': zarr arrays are written as a whole, without a layout",
			       r->layout);
	if (r->layout) {
		rc = bind_layout(s, e);
		if (!rc)
			rc = check_ranks(s, e);
	}
	if (rc)
		return rc;
	if (!r->ranks)
		r->ranks = s->layout ? layout_ranks(s->layout)
			   : r->comm ? r->comm->size
				     : ranks_of_source(s);
	if (r->ranks > CKPT_RESHARD_MAX_RANKS)
		return err_set(e, EINVAL, "%ju ranks are too many: at most %u are possible",
			       (uintmax_t)r->ranks, CKPT_RESHARD_MAX_RANKS);
	if (r->comm && r->comm->size != r->ranks)
		return err_set(e, EINVAL,
			       "%ju ranks cannot be written by %zu processes: start one process "
			       "for each rank",
			       (uintmax_t)r->ranks, r->comm->size);
	s->ranks = r->ranks;
	return 0;
}

/* Every element of a tensor must belong to some rank of the layout, or it would not be written. */
static int check_cover(const struct resharding *s, size_t i, uint64_t *boxes, uint64_t *work,
		       struct ckpt_err *e)
{
	const struct reshard_entry *t = &s->entries[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], volume;
	size_t pair[2], n = 0;
	enum boxes_verdict verdict;

	for (size_t rank = 0; rank < s->ranks; rank++) {
		uint64_t *row = boxes + n * 2 * t->n_dims;

		if (!layout_box(s->layout, rank, i, row, row + t->n_dims))
			continue;
		(void)box_volume(t->n_dims, row + t->n_dims, &volume);
		n += volume != 0;
	}
	(void)box_volume(t->n_dims, t->shape, &volume);
	if (!volume)
		return 0;
	verdict = boxes_cover(t->n_dims, t->shape, boxes, n, work, off, len, pair);
	if (verdict == BOXES_UNKNOWN)
		return err_set(
			e, EFBIG,
			"layout '%s': the ranks' parts of '%s' are too irregular to prove that "
			"nothing is left out: that may take %llu comparisons for all tensors",
			s->r->layout, FQN_TEXT(t->fqn, t->fqn_len),
			(unsigned long long)BOXES_MAX_WORK);
	if (verdict != BOXES_HOLE)
		return 0;
	return err_set(e, EINVAL, "layout '%s': no rank has %s of '%s' at %s", s->r->layout,
		       SIZE_TEXT(len, t->n_dims), FQN_TEXT(t->fqn, t->fqn_len),
		       SIZE_TEXT(off, t->n_dims));
}

static int check_layout(const struct resharding *s, struct ckpt_err *e)
{
	autofree uint64_t *boxes = NULL;
	uint64_t work = BOXES_MAX_WORK;
	int rc = 0;

	if (!s->layout || layout_holds_all(s->layout))
		return 0;
	boxes = calloc(s->ranks, 2 * CKPT_MAX_DIMS * sizeof(*boxes));
	if (!boxes)
		return err_set(e, ENOMEM, "%zu ranks: out of memory", s->ranks);
	for (size_t i = 0; !rc && i < s->n_tensors; i++)
		rc = check_cover(s, i, boxes, &work, e);
	return rc;
}

/* ---- writing ---- */

struct writing {
	struct resharding *s;
	sem_t turns;
};

static void wrote(void *arg, uint64_t bytes)
{
	struct resharding *s = arg;
	uint64_t done = atomic_fetch_add(&s->written, bytes) + bytes;

	if (s->r->progress)
		s->r->progress(s->r->progress_arg, done, s->total);
}

/* The format's own writer. On success the caller frees *ret. */
static int open_writer(const struct resharding *s, struct ckpt_save_opts *opts,
		       struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	int rc;

	opts->format = s->r->format;
	rc = ckpt_save_writer(opts, ret, e);
	if (rc || opts->format != CKPT_SAFETENSORS)
		return rc;
	rc = writer_safetensors_add(ret, s->added, s->n_added, e);
	if (rc)
		ckpt_storage_writer_free(ret);
	return rc;
}

/* What else the writer needs if it writes to an object store. */
static struct ckpt_save_opts save_opts(const struct resharding *s)
{
	struct ckpt_save_opts opts = *s->r->save;

	opts.format = s->r->format;
	opts.stop = s->r->stop;
	opts.stop_arg = s->r->stop_arg;
	opts.warn = s->r->warn;
	opts.warn_arg = s->r->warn_arg;
	return opts;
}

/* The planner and writer of one rank, each wrapped in ours. */
static int make_parts(struct writing *w, struct ckpt_save_planner *planner,
		      struct ckpt_storage_writer *writer, struct ckpt_err *e)
{
	struct ckpt_save_opts opts = save_opts(w->s);
	struct ckpt_save_planner plain_planner = { 0 };
	struct ckpt_storage_writer plain_writer = { 0 };
	int rc;

	opts.progress = wrote;
	opts.progress_arg = w->s;
	rc = ckpt_save_planner(opts.format, &plain_planner, e);
	if (!rc)
		rc = reshard_planner(w->s, &plain_planner, planner, e);
	if (!rc)
		rc = open_writer(w->s, &opts, &plain_writer, e);
	return rc ? rc : reshard_gate(w->s->c, &w->turns, &plain_writer, writer, e);
}

static int write_rank(void *arg, struct ckpt_comm *comm, struct ckpt_err *e)
{
	struct writing *w = arg;
	struct arena a CLEANUP(arena_release) = ARENA_INIT(SIZE_MAX);
	struct ckpt_save_planner planner CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_storage_writer writer CLEANUP(ckpt_storage_writer_free) = { 0 };
	struct ckpt_save_opts opts = *w->s->r->save;
	struct ckpt_state_dict dict;
	int rc = make_parts(w, &planner, &writer, e);

	if (!rc)
		rc = reshard_dict(w->s, comm->rank, &a, &dict, e);
	rc = ckpt_comm_agree(comm, rc, e);
	if (rc)
		return rc;
	opts.format = w->s->r->format;
	opts.no_paths = !w->s->has_paths; /* as in the source, which has no paths */
	opts.planner = &planner;
	opts.writer = &writer;
	return ckpt_save(comm, w->s->dest, &dict, &opts, e);
}

/* Checks first whether the destination can be written at all. */
static int check_dest(const struct resharding *s, struct ckpt_err *e)
{
	struct ckpt_storage_writer writer CLEANUP(ckpt_storage_writer_free) = { 0 };
	struct ckpt_save_opts opts = save_opts(s);
	char shown[200];
	int rc = 0;

	if (s->r->comm && s->r->comm->size > 1 && text_is_address(s->dest))
		rc = err_set(
			e, ENOTSUP,
			"'%s': ranks that are processes of their own cannot write to an object "
			"store together: start one process",
			text_show_address(s->dest, shown, sizeof(shown)));
	if (!rc)
		rc = open_writer(s, &opts, &writer, e);
	return rc ? rc : ckpt_storage_writer_validate_checkpoint_id(&writer, s->dest, e);
}

static int write_all(struct resharding *s, struct ckpt_err *e)
{
	unsigned jobs = s->r->jobs ? s->r->jobs : cpus_usable();
	struct writing w = { .s = s };
	int rc;

	/* More turns than ranks are of no use, and sem_init refuses a very large number. */
	(void)sem_init(&w.turns, 0, (unsigned)min_u64(jobs, s->ranks));
	rc = s->r->comm ? write_rank(&w, s->r->comm, e)
			: ckpt_comm_run_threads(s->ranks, write_rank, &w, e);
	(void)sem_destroy(&w.turns);
	return rc;
}

/* ---- entry point ---- */

static int reshard(struct ckpt *c, const char *dest, struct ckpt_reshard *r, struct ckpt_err *e)
{
	struct resharding s = { .c = c, .r = r, .dest = dest, .a = ARENA_INIT(SIZE_MAX) };
	int rc;

	r->tensors = r->objects = r->bytes = 0;
	rc = list_assets(&s, e);
	if (!rc)
		rc = check_dest(&s, e);
	if (!rc)
		rc = list_entries(&s, e);
	if (!rc)
		rc = refuse_nothing(&s, e);
	if (!rc)
		rc = count_ranks(&s, e);
	if (!rc)
		rc = check_layout(&s, e);
	if (!rc)
		rc = write_all(&s, e);
	r->bytes = s.written;
	layout_free(s.layout);
	arena_release(&s.a);
	return rc;
}

int ckpt_reshard_sized(struct ckpt *c, const char *dest, struct ckpt_reshard *r, size_t size,
		       size_t save_size, struct ckpt_err *e)
{
	struct ckpt_save_opts save = { 0 };
	struct ckpt_reshard ours;
	int rc = SIZED_TAKE(ours, r, size, "ckpt_reshard", e);

	if (!rc && ours.save)
		rc = SIZED_TAKE(save, ours.save, save_size, "ckpt_save_opts", e);
	if (rc)
		return rc;
	ours.save = &save;
	rc = reshard(c, dest, &ours, e);
	ours.save = r->save;
	SIZED_GIVE(r, size, ours);
	return rc;
}
