/* SPDX-License-Identifier: Apache-2.0 */
#include "store/writer_safetensors.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "file/hf_index.h"
#include "file/st_write.h"
#include "store/staging.h"
#include "store/writer_base.h"
#include <ckptfs/ckpt_plan.h>

#include <stdlib.h>

#define DEFAULT_SHARD ((uint64_t)5000000000) /* as save_pretrained's "5GB" */
#define INDEX_CEILING ((size_t)4 << 30)	     /* bytes */
#define KEPT_CEILING  ((size_t)16 << 30)
#define NOTE_CEILING  ((size_t)ST_MAX_HEADER)

struct st_writer {
	struct writer_base b; /* must be first, for writer_new */
	uint64_t shard_size;
	struct buf index; /* the coordinator's; empty: no index */
	/* The plans that the coordinator saw last, for ranks that do not send them again. */
	struct arena kept_arena;
	struct ckpt_save_plan *kept;
	size_t n_kept;
	const struct writer_safetensors_file *added;
	size_t n_added;
	const char **over; /* their names; NULL: nothing is replaced, or no files are added */
};

/* ---- distributing items over files ---- */

/* The message from the coordinator to each rank. */
struct form {
	bool whole;	/* a Hugging Face model, else torch's distributed form */
	uint32_t first; /* number of the rank's first file of whole tensors */
	uint32_t count; /* number of files: all of them, or the maximum of a rank */
	uint64_t items; /* digest of the rank's plan as the coordinator saw it */
};
enum { FORM_BYTES = 17 };

/* Items in the order of their names and offsets, each with the number of its file on this rank. */
struct sorted {
	const struct ckpt_write_item **items;
	struct tensor_info *m;
	uint32_t *file;
	size_t n;
	uint32_t n_files;
};

static bool is_empty(size_t n, const uint64_t *len)
{
	for (size_t d = 0; d < n; d++)
		if (!len[d])
			return true;
	return false;
}

/* Has it no element of a non-empty tensor? */
static bool says_nothing(const struct ckpt_write_item *w)
{
	return is_empty(w->index.n_dims, w->chunk.len) && !is_empty(w->index.n_dims, w->size);
}

static bool is_whole(const struct ckpt_write_item *w)
{
	size_t n = w->index.n_dims;

	for (size_t d = 0; d < n; d++)
		if (w->chunk.off[d] || w->chunk.len[d] != w->size[d])
			return false;
	return true;
}

static int cmp_fqn(const struct ckpt_write_item *a, const struct ckpt_write_item *b)
{
	return text_natural_cmp(a->index.fqn, a->index.fqn_len, b->index.fqn, b->index.fqn_len);
}

static int cmp_item(const void *ap, const void *bp)
{
	const struct ckpt_write_item *a = *(const struct ckpt_write_item *const *)ap;
	const struct ckpt_write_item *b = *(const struct ckpt_write_item *const *)bp;
	int c = cmp_fqn(a, b);

	if (!c)
		c = (a->index.n_dims > b->index.n_dims) - (a->index.n_dims < b->index.n_dims);
	for (size_t d = 0; d < a->index.n_dims && !c; d++)
		c = (a->chunk.off[d] > b->chunk.off[d]) - (a->chunk.off[d] < b->chunk.off[d]);
	return c;
}

/* The items of all plans in order; all must be tensors. */
static int sort_items(struct writer_base *b, const struct ckpt_save_plan *plans, size_t n,
		      struct sorted *ret, struct ckpt_err *e)
{
	struct sorted s = { 0 };
	size_t most = 0;
	int rc = 0;

	for (size_t r = 0; r < n; r++)
		most += plans[r].n_items;
	s.items = writer_array(b, most, sizeof(*s.items), e);
	s.m = s.items ? writer_array(b, most, sizeof(*s.m), e) : NULL;
	s.file = s.m ? writer_array(b, most, sizeof(*s.file), e) : NULL;
	if (!s.file)
		return -ENOMEM;
	for (size_t r = 0; r < n; r++)
		for (size_t i = 0; i < plans[r].n_items; i++)
			if (!says_nothing(&plans[r].items[i]))
				s.items[s.n++] = &plans[r].items[i];
	qsort(s.items, s.n, sizeof(*s.items), cmp_item);
	for (size_t i = 0; i < s.n && !rc; i++)
		rc = st_item_member(s.items[i], &s.m[i], e);
	if (!rc)
		*ret = s;
	return rc;
}

/* A file holds a name once, so the second part of a tensor goes to a second file. */
static uint32_t spread(const struct sorted *s)
{
	uint32_t most = 0;

	for (size_t i = 0; i < s->n; i++) {
		bool again = i && !cmp_fqn(s->items[i - 1], s->items[i]);

		s->file[i] = again ? s->file[i - 1] + 1 : 0;
		if (s->file[i] >= most)
			most = s->file[i] + 1;
	}
	return most;
}

static int sort_plan(struct st_writer *w, const struct ckpt_save_plan *plan, bool whole,
		     struct sorted *ret, struct ckpt_err *e)
{
	int rc = sort_items(&w->b, plan, 1, ret, e);

	if (!rc)
		ret->n_files =
			whole ? hf_split(ret->m, ret->n, w->shard_size, ret->file) : spread(ret);
	return rc;
}

/* ---- plans ---- */

static int prepare_local_plan(void *self, const struct ckpt_save_plan *plan,
			      struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	struct tensor_info m;
	int rc = 0;

	(void)self;
	for (size_t i = 0; i < plan->n_items && !rc; i++)
		rc = st_item_member(&plan->items[i], &m, e);
	if (!rc)
		*ret = *plan;
	return rc;
}

static int check_twice(const struct sorted *s, struct ckpt_err *e)
{
	char shown[128];

	for (size_t i = 1; i < s->n; i++)
		if (!cmp_item(&s->items[i - 1], &s->items[i]))
			return err_set(
				e, EINVAL,
				"'%s': one chunk is in the plans twice, and safetensors files "
				"cannot hold copies",
				text_show(s->m[i].fqn, s->m[i].fqn_len, shown, sizeof(shown)));
	return 0;
}

static void forget_kept(struct st_writer *w)
{
	arena_release(&w->kept_arena);
	w->kept = NULL;
	w->n_kept = 0;
}

/* All parts, including those that were not sent again. */
static int complete(struct st_writer *w, const struct ckpt_save_plan *parts, size_t n,
		    struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	for (size_t r = 0; r < n; r++) {
		if (parts[r].unchanged && r >= w->n_kept)
			return err_set(e, EINVAL,
				       "the plan of rank %zu is marked unchanged, but none was "
				       "kept",
				       r);
		ret[r] = parts[r].unchanged ? w->kept[r] : parts[r];
	}
	return 0;
}

static int keep(struct st_writer *w, const struct ckpt_save_plan *full, size_t n,
		struct ckpt_err *e)
{
	struct arena a = ARENA_INIT(KEPT_CEILING);
	struct ckpt_save_plan *v = arena_array(&a, n, sizeof(*v));
	int rc = v ? 0 : err_nomem(e);

	for (size_t r = 0; r < n && !rc; r++)
		rc = save_plan_copy(&full[r], &a, &v[r], e);
	if (rc) {
		arena_release(&a);
		return rc;
	}
	forget_kept(w);
	w->kept_arena = a;
	w->kept = v;
	w->n_kept = n;
	return 0;
}

/* A number that plans with other items are unlikely to share. */
static uint64_t digest(const struct sorted *s)
{
	uint64_t h = s->n;

	for (size_t i = 0; i < s->n; i++)
		h = h * 0x9e3779b97f4a7c15 + meta_index_hash(&s->items[i]->index);
	return h;
}

static int tell(struct st_writer *w, struct ckpt_save_plan *part, const struct form *form,
		struct ckpt_err *e)
{
	uint8_t *p = writer_array(&w->b, FORM_BYTES, 1, e);

	if (!p)
		return -ENOMEM;
	part->storage = p;
	part->storage_len = FORM_BYTES;
	*p = form->whole;
	(void)put_le(put_le(put_le(p + 1, form->first, 4), form->count, 4), form->items, 8);
	return 0;
}

static int understand(const struct ckpt_save_plan *plan, struct form *ret, struct ckpt_err *e)
{
	const uint8_t *p = plan->storage;

	if (plan->storage_len != FORM_BYTES)
		return err_set(e, EINVAL, "the plan lacks the data of the coordinator's writer");
	*ret = (struct form){ *p != 0, load_le32(p + 1), load_le32(p + 5), load_le64(p + 9) };
	return 0;
}

struct all_files {
	struct sorted *of; /* one per rank */
	size_t n, n_items;
	uint32_t count;
};

/* Lists every rank's files of whole tensors, with their global numbers, in the index. */
static int make_index(struct st_writer *w, const struct all_files *all, struct ckpt_err *e)
{
	struct tensor_info *m = writer_array(&w->b, all->n_items, sizeof(*m), e);
	uint32_t *file = m ? writer_array(&w->b, all->n_items, sizeof(*file), e) : NULL;
	uint32_t first = 0;
	size_t at = 0;

	if (!file)
		return -ENOMEM;
	for (size_t r = 0; r < all->n; first += all->of[r++].n_files)
		for (size_t i = 0; i < all->of[r].n; i++, at++) {
			m[at] = all->of[r].m[i];
			file[at] = first + all->of[r].file[i];
		}
	return hf_index(m, at, file, all->count, &w->index, e);
}

static int share_out(struct st_writer *w, const struct ckpt_save_plan *parts, size_t n, bool whole,
		     struct all_files *ret, struct ckpt_err *e)
{
	int rc = 0;

	ret->of = writer_array(&w->b, n, sizeof(*ret->of), e);
	ret->n = n;
	if (!ret->of)
		return -ENOMEM;
	for (size_t r = 0; r < n && !rc; r++) {
		struct sorted *s = &ret->of[r];

		rc = sort_plan(w, &parts[r], whole, s, e);
		ret->n_items += s->n;
		if (whole)
			ret->count += s->n_files;
		else if (s->n_files > ret->count)
			ret->count = s->n_files;
	}
	return rc;
}

static int decide(struct st_writer *w, const struct ckpt_save_plan *full,
		  struct ckpt_save_plan *parts, size_t n, struct ckpt_err *e)
{
	struct form form = { .whole = true };
	struct all_files all = { 0 };
	struct sorted s = { 0 };
	int rc = sort_items(&w->b, full, n, &s, e);

	if (!rc && !s.n)
		rc = err_set(e, EINVAL, "there is no tensor to save");
	if (!rc)
		rc = check_twice(&s, e);
	for (size_t i = 0; i < s.n; i++)
		form.whole &= is_whole(s.items[i]);
	if (!rc)
		rc = share_out(w, full, n, form.whole, &all, e);
	form.count = all.count;
	for (size_t r = 0; r < n && !rc; form.first += all.of[r++].n_files) {
		form.items = digest(&all.of[r]);
		rc = tell(w, &parts[r], &form, e);
	}
	if (!rc && form.whole && all.count > 1)
		rc = make_index(w, &all, e);
	return rc;
}

static int prepare_global_plan(void *self, struct ckpt_save_plan *parts, size_t n,
			       struct ckpt_err *e)
{
	struct st_writer *w = self;
	struct ckpt_save_plan *full = writer_array(&w->b, n, sizeof(*full), e);
	int rc = full ? complete(w, parts, n, full, e) : -ENOMEM;

	if (!rc)
		rc = decide(w, full, parts, n, e);
	return rc ? rc : keep(w, full, n, e);
}

/* ---- data ---- */

/* The positions of the parts in a file, as JSON. */
static int sharding_info(const struct st_items *t, struct buf *ret, struct ckpt_err *e)
{
	buf_str(ret, "{");
	for (size_t i = 0; i < t->n; i++) {
		const struct ckpt_write_item *w = t->items[i];

		buf_str(ret, i ? ", " : "");
		buf_json_str(ret, w->index.fqn, w->index.fqn_len);
		buf_str(ret, ": {\"saved_offsets\": ");
		buf_json_u64s(ret, w->chunk.off, w->index.n_dims);
		buf_str(ret, "}");
	}
	buf_str(ret, "}");
	return buf_check(ret, e, "the names and places of %zu tensors do not fit in a header",
			 t->n);
}

static int put_parts(struct st_writer *w, const char *path, struct st_items *t,
		     struct ckpt_save_planner *p, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf info = BUF_INIT(NOTE_CEILING);
	struct st_note notes[] = { { "DCP_SHARDING_INFO", NULL, 0 }, { "DCP_VERSION", "1.0", 3 } };
	int rc;

	if (sharding_info(t, &info, e))
		return err_wrap(e, "'%s'", path);
	notes[0].value = info.data;
	notes[0].len = info.len;
	t->notes = notes;
	t->n_notes = 2;
	rc = writer_put_tensors(&w->b, path, t, p, e);
	t->notes = NULL; /* notes is a local array */
	t->n_notes = 0;
	return rc;
}

static int put_file(struct st_writer *w, const struct form *form, uint32_t file, struct st_items *t,
		    struct ckpt_save_planner *p, struct ckpt_err *e)
{
	char name[HF_NAME_CAP], *path;
	int rc;

	hf_file_name(form->whole ? form->first + file : file, form->count, name);
	path = form->whole ? writer_printf(&w->b, e, "%s", name)
			   : writer_printf(&w->b, e, "shard-%05zu-model-%05u-of-%05u.safetensors",
					   w->b.ranks.rank + 1, file + 1, form->count);
	if (!path)
		return -ENOMEM;
	rc = form->whole ? writer_put_tensors(&w->b, path, t, p, e) : put_parts(w, path, t, p, e);
	for (size_t i = 0; i < t->n && !rc; i++)
		writer_add_result(
			&w->b, t->items[i],
			&(struct ckpt_storage_info){ .path = path,
						     .length = t->m[i].bytes,
						     .tensor_key = t->m[i].fqn,
						     .tensor_key_len = (uint32_t)t->m[i].fqn_len });
	return rc;
}

/* Sorts the items by file, keeping their order: start[f] is the first of file f. */
static int by_file(struct st_writer *w, struct sorted *s, size_t *start, struct ckpt_err *e)
{
	const struct ckpt_write_item **items = writer_array(&w->b, s->n, sizeof(*items), e);
	struct tensor_info *m = items ? writer_array(&w->b, s->n, sizeof(*m), e) : NULL;

	if (!m)
		return -ENOMEM;
	for (size_t i = 0; i < s->n; i++)
		start[s->file[i] + 2]++;
	for (size_t f = 2; f < (size_t)s->n_files + 2; f++)
		start[f] += start[f - 1];
	for (size_t i = 0; i < s->n; i++) {
		size_t at = start[s->file[i] + 1]++;

		items[at] = s->items[i];
		m[at] = s->m[i];
	}
	s->items = items;
	s->m = m;
	return 0;
}

static int write_data(void *self, const struct ckpt_save_plan *plan,
		      struct ckpt_save_planner *planner, struct ckpt_write_results *ret,
		      struct ckpt_err *e)
{
	struct st_writer *w = self;
	autofree size_t *start = NULL;
	struct sorted s = { 0 };
	struct form form = { 0 };
	int rc = understand(plan, &form, e);

	if (!rc)
		rc = sort_plan(w, plan, form.whole, &s, e);
	if (!rc && digest(&s) != form.items)
		rc = err_set(e, EINVAL, "the plan is not the one that the coordinator distributed");
	if (!rc)
		rc = writer_begin_data(&w->b, s.n, e);
	if (rc)
		return rc;
	start = calloc((size_t)s.n_files + 2, sizeof(*start));
	if (!start)
		return err_nomem(e);
	rc = by_file(w, &s, start, e);
	for (uint32_t f = 0; f < s.n_files && !rc; f++) {
		struct st_items t = { .m = s.m + start[f],
				      .items = s.items + start[f],
				      .n = start[f + 1] - start[f] };

		rc = put_file(w, &form, f, &t, planner, e);
	}
	return rc ? rc : writer_end_data(&w->b, ret, e);
}

static int put_added(struct st_writer *w, struct ckpt_err *e)
{
	const struct outfile_opts opts = { .buffer = w->b.out.buffer };
	int rc = 0;

	for (size_t i = 0; i < w->n_added && !rc; i++) {
		CLEANUP(outfile_release) struct outfile f = OUTFILE_INIT;

		rc = outfile_open(&f, w->b.staging, w->added[i].name, &opts, e);
		if (!rc)
			rc = outfile_source(&f, &w->added[i].data, e);
		if (!rc)
			rc = outfile_finish(&f, e);
	}
	return rc || !w->n_added ? rc : staging_sync(w->b.staging, e);
}

static int finish(void *self, const struct ckpt_metadata *md, const struct ckpt_write_results *all,
		  size_t n, struct ckpt_err *e)
{
	struct st_writer *w = self;
	int rc = put_added(w, e);

	(void)md; /* the files are self-contained */
	(void)all;
	(void)n;
	if (!rc && w->index.len)
		rc = staging_put(w->b.staging, HF_INDEX_NAME, w->index.data, w->index.len, e);
	return rc ? rc : writer_commit(&w->b, e);
}

/* ---- the writer ---- */

static void forget_index(struct st_writer *w)
{
	buf_release(&w->index);
	w->index = (struct buf)BUF_INIT(INDEX_CEILING);
}

static int reset(void *self, const char *id, struct ckpt_err *e)
{
	struct st_writer *w = self;

	forget_index(w);
	return writer_reset(w, id, e);
}

static void free_writer(void *self)
{
	struct st_writer *w = self;
	const char **over = w->over; /* staging_end is in writer_free */

	forget_index(w);
	forget_kept(w);
	writer_free(w);
	free(over);
}

static const struct ckpt_storage_writer_ops ops = {
	.validate_checkpoint_id = writer_validate,
	.reset = reset,
	.set_up = writer_set_up,
	.prepare_local_plan = prepare_local_plan,
	.prepare_global_plan = prepare_global_plan,
	.write_data = write_data,
	.finish = finish,
	.free = free_writer,
};

int writer_safetensors_new(const struct writer_safetensors_opts *opts,
			   struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	const struct outfile_opts out = { opts->buffer, opts->progress, opts->arg };
	struct st_writer *w =
		writer_new(sizeof(struct st_writer), opts->overwrite, &out, &ops, ret, e);

	if (!w)
		return -ENOMEM;
	w->shard_size = opts->shard_size ? opts->shard_size : DEFAULT_SHARD;
	forget_index(w);
	return 0;
}

int writer_safetensors_add(struct ckpt_storage_writer *writer,
			   const struct writer_safetensors_file *v, size_t n, struct ckpt_err *e)
{
	struct st_writer *w = writer->self;
	const char **over = w->b.over ? calloc(n + 1, sizeof(*over)) : NULL;

	if (w->b.over && !over)
		return err_nomem(e);
	for (size_t i = 0; over && i < n; i++)
		over[i] = v[i].name;
	if (over)
		w->b.over = over;
	free(w->over);
	w->over = over;
	w->added = v;
	w->n_added = n;
	return 0;
}
