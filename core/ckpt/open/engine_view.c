/* SPDX-License-Identifier: Apache-2.0 */
/* Creates an engine's view, with the names, layout, recipe and assets that the options request. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/computed/dequantise_gguf.h"
#include "ckpt/computed/peek.h"
#include "gguf/gguf_mix.h"
#include "layout/layout.h"
#include "read/fetch.h"
#include "source/files.h"
#include "source/place.h"
#include "tensor/rename.h"
#include "tree/view.h"

#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_SHARD ((uint64_t)5000000000) /* the default "5GB" of save_pretrained */
#define MAX_RULES     ((size_t)4 << 20)	     /* bytes of a renaming rules file */

static const char *fault_of(void *arg, bool object, size_t number)
{
	return object ? ckpt_object_fault(arg, number) : ckpt_tensor_fault(arg, number);
}

static int size_of_object(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	return ckpt_object_size(arg, number, ret, e);
}

static int json_of_object(void *arg, size_t number, struct buf *ret, struct ckpt_err *e)
{
	return engine_object_json(arg, number, ret, e);
}

static int json_size_of_object(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e)
{
	return engine_object_json_size(arg, number, ret, e);
}

static int read_asset(void *arg, size_t i, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	const struct engine *eng = arg;

	return assets_read(&eng->assets, i, buf, len, off, e);
}

/* Made at the first read: it describes gguf/, which takes time to prepare. */
static int info(void *arg, const char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct engine *eng = arg;
	struct buf *made = eng->info, *before = NULL;
	int rc;

	if (!made) {
		made = calloc(1, sizeof(*made));
		if (!made)
			return err_nomem(e);
		rc = ckpt_info_json(eng->c, &made->data, &made->len, e);
		if (rc) {
			free(made);
			return rc;
		}
		if (!atomic_compare_exchange_strong(&eng->info, &before, made)) {
			buf_release(made);
			free(made);
			made = before;
		}
	}
	*ret = made->data;
	*ret_len = made->len;
	return 0;
}

static int read_rename(struct engine *eng, const char *path, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(MAX_RULES);
	int rc = io_read_file(path, &b, e);

	digest_add(&eng->renaming, b.data, b.len);
	if (!rc)
		rc = rename_parse(b.data, b.len, path, &eng->rename, e);
	buf_release(&b);
	return rc ? err_wrap(e, "option 'rename'") : 0;
}

/* A rule that matches nothing is usually a typo. */
static void warn_unused(const struct engine *eng, const struct ckpt_opts *o)
{
	struct rename_rule rule = { 0 };
	char what[384];

	if (!o->warn)
		return;
	while (eng->rename && rename_unmatched(eng->rename, rule.line, &rule)) {
		(void)snprintf(what, sizeof(what), "%.200s:%u: '%.100s' matches no FQN", rule.file,
			       rule.line, rule.text);
		o->warn(o->warn_arg, what);
	}
	for (size_t i = 0; eng->layout && layout_unused(eng->layout, i, what, sizeof(what)); i++)
		o->warn(o->warn_arg, what);
}

static int choose(const struct ckpt_opts *o, struct view_opts *ret, struct ckpt_err *e)
{
	static const struct ckpt_choice experts[] = {
		{ "fused", EXPERTS_FUSED, false },
		{ "split", EXPERTS_SPLIT, false },
		{ "stored", EXPERTS_STORED, false },
	};
	static const struct ckpt_choice answers[] = { { "yes", 1, false }, { "no", 0, false } };
	struct ckpt_choice gguf[GGUF_N_MIXES];
	int dtype = 0, mix = -1, how = EXPERTS_AUTO, masters = 0;
	int rc = ckpt_opts_dtype("dtype", o->dtype, &dtype, e);

	for (int i = 0; i < GGUF_N_MIXES; i++) {
		gguf[i] = (struct ckpt_choice){ gguf_mixes[i].name, i, false };
		if (o->gguf_dtype && !strcasecmp(o->gguf_dtype, gguf[i].word))
			mix = i; /* llama-quantize prints them in capitals */
	}
	if (!rc && mix < 0)
		rc = ckpt_opts_choose("gguf_dtype", o->gguf_dtype, gguf, GGUF_N_MIXES, &mix, e);
	if (!rc)
		rc = ckpt_opts_choose("experts", o->experts, experts, ARRAY_LEN(experts), &how, e);
	if (!rc)
		rc = ckpt_opts_choose("master", o->master, answers, ARRAY_LEN(answers), &masters,
				      e);
	ret->masters = masters;
	ret->dtype = (enum ckpt_dtype)dtype;
	ret->gguf_mix = mix < 0 ? NULL : &gguf_mixes[mix];
	ret->experts = (enum view_experts)how;
	return rc;
}

int engine_read_options(struct engine *eng, const struct ckpt_opts *o, struct view_opts *ret,
			struct ckpt_err *e)
{
	int rc = choose(o, ret, e);

	if (!rc && o->rename)
		rc = read_rename(eng, o->rename, e);
	if (!rc && o->layout) {
		rc = layout_read(o->layout, &eng->layout, e);
		if (rc)
			rc = err_wrap(e, "option 'layout'");
	}
	return rc;
}

/* What the keys of a GGUF say about the model. */
static int read_gguf(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	autofree const struct ggml_info **types = NULL;
	struct peeking peeking = { .eng = eng };
	const struct peek peek = { peek_engine, &peeking };
	enum ckpt_dtype dtype = CKPT_DTYPE_NONE;
	size_t blocks;
	int rc = gguf_types(eng->catalog, &types, &blocks, e), asked = CKPT_DTYPE_NONE;

	if (!rc)
		rc = ckpt_opts_dtype("dequantize", o->dequantize, &asked, e);
	if (rc)
		return rc;
	dtype = blocks ? (enum ckpt_dtype)asked : gguf_elements(eng->catalog, types);
	rc = gguf_model_read(eng->catalog, dtype ? dtype_info(dtype)->name : NULL, &peek,
			     &eng->gguf, e);
	fetch_free(peeking.fetch);
	return rc;
}

int engine_find_assets(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	const struct place_options how = ckpt_opts_place(o);
	int rc = eng->format == &format_gguf ? read_gguf(eng, o, e) : 0;

	if (!rc)
		rc = assets_find(&(struct assets_ask){ .given = o->assets,
						       .how = &how,
						       .place = eng->c->place,
						       .path = eng->c->dir,
						       .dequantised = o->dequantize,
						       .config = eng->gguf.config.data,
						       .warn = o->warn,
						       .warn_arg = o->warn_arg },
				 &eng->assets, e);

	if (!rc && o->ignore_ctime && eng->assets.files)
		files_ignore_ctime(eng->assets.files);
	return rc;
}

/*
 * A GGUF's tensors under the names of Hugging Face. If they are not those of its architecture they
 * keep their own, and the verdict on hf/ tells which are missing.
 */
static int show_gguf(struct engine *eng, const struct ckpt_opts *o, struct view_opts *view,
		     struct ckpt_err *e)
{
	struct ckpt_err why;
	int rc = recipe_parse(eng->gguf.recipe.data, eng->gguf.recipe.len, "GGUF",
			      &eng->recipe.recipe, e);

	if (rc)
		return rc;
	view->recipe = eng->recipe.recipe;
	view->facts = &eng->recipe.facts;
	rc = view_new(eng->catalog, view, &eng->view, &why);
	if (rc && rc != -ENOMEM) {
		recipe_free(eng->recipe.recipe);
		eng->recipe.recipe = NULL;
		view->recipe = NULL;
		rc = view_new(eng->catalog, view, &eng->view, &why);
	}
	if (rc)
		*e = why;
	else
		warn_unused(eng, o);
	return rc;
}

int engine_show(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct view_opts view = { .include = o->include,
				  .exclude = o->exclude,
				  .weights = o->weights,
				  .shard_size = o->shard_size ? o->shard_size : DEFAULT_SHARD,
				  .gguf_size = o->shard_size,
				  .fault = fault_of,
				  .read_asset = read_asset,
				  .info = info,
				  .page = engine_page,
				  .tile = engine_tile,
				  .tile_size = engine_tile_size,
				  .object_size = size_of_object,
				  .object_json = json_of_object,
				  .object_json_size = json_size_of_object,
				  .arg = eng,
				  .warn = o->warn,
				  .warn_arg = o->warn_arg };
	int rc = engine_read_options(eng, o, &view, e);

	if (rc)
		return rc;
	view.quantised = eng->quantised;
	view.rename = eng->rename;
	view.layout = eng->layout;
	view.assets = eng->assets.v;
	view.n_assets = eng->assets.n;
	if (o->recipe) {
		rc = model_recipe_open(eng, o->recipe, &eng->recipe, e);
		if (rc)
			return rc;
		view.recipe = eng->recipe.recipe;
		view.backwards = o->backwards;
		view.facts = &eng->recipe.facts;
	}
	if (!o->recipe && !o->weights && eng->gguf.recipe.len)
		return show_gguf(eng, o, &view, e);
	rc = view_new(eng->catalog, &view, &eng->view, e);
	if (!rc)
		warn_unused(eng, o);
	return rc;
}
