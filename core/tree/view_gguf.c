/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf/model.gguf: the model as llama.cpp reads it; or, with a size limit for files,
 * gguf/model-00001-of-00003.gguf ...
 *
 * Whether this directory exists depends on the contents of config.json and tokenizer.json, which
 * are megabytes: they are read when the directory is first looked up. All file heads are built at
 * that time and kept; they contain a copy of the tokenizer's tokens. Nothing else of the tokenizer
 * is kept.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "file/hf_index.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_mix.h"
#include "gguf/gguf_tokens.h"
#include "gguf/gguf_write.h"
#include "tensor/vtensor.h"
#include "tree/gguf_place.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JSON      ((uint64_t)16 << 20)  /* bytes of config.json and similar files */
#define MAX_TOKENIZER ((uint64_t)100000000) /* the largest known ones have 35 MB */
#define MAX_FILES     9999 /* llama.cpp counts them in 16 bits; their names have 5 digits */

/* Computed once. */
struct gguf {
	struct gguf_config config;
	struct gguf_tensors tensors;
	uint32_t n_files;
	uint32_t *by_file; /* tensors of file f: by_file[at[f] .. at[f+1]) */
	size_t *at;
	struct buf *heads;
	const struct gguf_mix *mix;
	uint64_t blocks; /* bytes of tensors that are blocks */
};

struct gguf_lazy {
	pthread_mutex_t lock;
	pthread_cond_t idle;
	enum { NOT_YET, BUSY, DONE } state;
	struct gguf *gguf; /* if DONE: the result, or NULL and the reason: */
	struct ckpt_err missing;
	_Atomic uint64_t blocks; /* the result's; read without the lock, as all counters are */
};

static void gguf_free(struct gguf *g)
{
	if (!g)
		return;
	for (uint32_t i = 0; g->heads && i < g->n_files; i++)
		buf_release(&g->heads[i]);
	free(g->heads);
	free(g->by_file);
	free(g->at);
	gguf_tensors_release(&g->tensors);
	gguf_config_release(&g->config);
	free(g);
}

/* ---- reading assets ---- */

static int read_needed(const struct view *v, const char *name, uint64_t max, struct asset_text *ret,
		       struct ckpt_err *e)
{
	int rc = view_read_asset(v, name, max, ret, e);

	return !rc && !ret->s
		       ? err_set(e, ENOENT, "no %s beside the checkpoint or in assets=", name)
		       : rc;
}

static struct gguf_file file_of(const struct asset_text *t)
{
	return (struct gguf_file){ t->s, t->len };
}

static int put_tokens(const struct view *v, const struct gguf_config *c, struct gguf_keys *k,
		      struct ckpt_err *e)
{
	CLEANUP(asset_text_release) struct asset_text tokenizer = { 0 };
	CLEANUP(asset_text_release) struct asset_text config = { 0 };
	CLEANUP(asset_text_release) struct asset_text jinja = { 0 };
	CLEANUP(asset_text_release) struct asset_text template = { 0 };
	struct gguf_token_files f;
	int rc = read_needed(v, "tokenizer.json", MAX_TOKENIZER, &tokenizer, e);

	if (!rc)
		rc = view_read_asset(v, "tokenizer_config.json", MAX_JSON, &config, e);
	if (!rc)
		rc = view_read_asset(v, "chat_template.jinja", MAX_JSON, &jinja, e);
	if (!rc)
		rc = view_read_asset(v, "chat_template.json", MAX_JSON, &template, e);
	if (rc)
		return rc;
	f = (struct gguf_token_files){ tokenizer.s, tokenizer.len, file_of(&config),
				       file_of(&jinja), file_of(&template) };
	return gguf_tokens_put(&f, c, k, e);
}

static int put_sampling(const struct view *v, struct gguf_keys *k, struct ckpt_err *e)
{
	CLEANUP(asset_text_release) struct asset_text t = { 0 };
	int rc = view_read_asset(v, "generation_config.json", MAX_JSON, &t, e);

	return rc || !t.s ? rc : gguf_sampling_put(t.s, t.len, k, e);
}

/* ---- distribution over files ---- */

/* The type of the model's matrices. */
static int plain_type(const struct view *v, enum ggml_type *ret, struct ckpt_err *e)
{
	uint64_t shape[CKPT_MAX_DIMS];
	struct tensor_info m;
	uint64_t most = 0;
	enum ckpt_dtype t = CKPT_DTYPE_NONE;

	for (size_t i = 0; i < v->model.names.n; i++) { /* take the type of the largest tensor */
		(void)view_info(v, OF_MODEL, i, &m, shape);
		if (m.bytes > most && cast_possible(m.dtype, CKPT_DTYPE_F32)) {
			most = m.bytes;
			t = m.dtype;
		}
	}
	*ret = t == CKPT_DTYPE_BF16 ? GGML_BF16 : t == CKPT_DTYPE_F16 ? GGML_F16 : GGML_F32;
	return t == CKPT_DTYPE_NONE
		       ? err_set(e, ERR_UNSUPPORTED, "the model has no floating-point tensors")
		       : 0;
}

/* Assigns tensors in order until a file would exceed the requested size. */
static int divide(const struct view *v, struct gguf *g, struct ckpt_err *e)
{
	size_t n = g->tensors.n;
	autofree struct tensor_info *m = calloc(n + 1, sizeof(*m));
	autofree uint32_t *file = calloc(n + 1, sizeof(*file));

	g->by_file = calloc(n + 1, sizeof(*g->by_file));
	if (!m || !file || !g->by_file)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++)
		m[i].bytes = g->tensors.t[i].bytes;
	g->n_files = v->o.gguf_size ? hf_split(m, n, v->o.gguf_size, file) : 1;
	if (g->n_files > MAX_FILES) {
		uint32_t count = g->n_files;

		g->n_files = 0;
		return err_set(e, EFBIG,
			       "shard_size makes %u files, but llama.cpp takes at most %d", count,
			       MAX_FILES);
	}
	g->at = calloc(g->n_files + 2ul, sizeof(*g->at));
	g->heads = calloc(g->n_files, sizeof(*g->heads));
	if (!g->at || !g->heads)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++)
		g->at[file[i] + 2]++;
	for (uint32_t f = 2; f < g->n_files + 2; f++)
		g->at[f] += g->at[f - 1];
	for (uint32_t i = 0; i < n; i++)
		g->by_file[g->at[file[i] + 1]++] = i;
	return 0;
}

static void put_general(const struct gguf *g, struct gguf_keys *k)
{
	gguf_str(k, "general.architecture", k->arch, strlen(k->arch));
	gguf_str(k, "general.type", "model", 5);
	gguf_u32(k, "general.file_type", g->mix->file_type);
	gguf_u32(k, "general.quantization_version", 2); /* GGML_QNT_VERSION */
}

/* The first file has all keys; the others only have those that identify the part. */
static int make_head(const struct view *v, struct gguf *g, uint32_t file, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf made = BUF_INIT(GGUF_MAX_HEADER);
	struct gguf_keys k = GGUF_KEYS_INIT(g->config.arch);
	size_t from = g->at[file], n = g->at[file + 1] - from;
	autofree struct gguf_tensor *t = calloc(n + 1, sizeof(*t));
	int rc = t ? 0 : err_nomem(e);

	for (size_t i = 0; t && i < n; i++)
		t[i] = g->tensors.t[g->by_file[from + i]];
	if (g->n_files > 1) {
		gguf_u16(&k, "split.no", (uint16_t)file);
		gguf_u16(&k, "split.count", (uint16_t)g->n_files);
		gguf_i32(&k, "split.tensors.count", (int32_t)g->tensors.n);
	}
	if (!rc && !file) {
		put_general(g, &k);
		gguf_config_put(&g->config, &k);
		rc = put_sampling(v, &k, e);
		if (!rc)
			rc = put_tokens(v, &g->config, &k, e);
	}
	if (!rc)
		rc = gguf_header(&k, t, n, &made, e);
	buf_release(&k.text);
	if (rc)
		return rc;
	/* Copy it to a buffer of its exact size, because it is kept. */
	g->heads[file] = (struct buf)BUF_INIT(made.len);
	buf_add(&g->heads[file], made.data, made.len);
	return g->heads[file].err ? err_nomem(e) : 0;
}

static int read_config(const struct view *v, struct gguf_config *ret, struct ckpt_err *e)
{
	CLEANUP(asset_text_release) struct asset_text config = { 0 };
	int rc;

	if (!v->has_model)
		return err_set(e, ENOENT, "there is no model");
	rc = read_needed(v, "config.json", MAX_JSON, &config, e);
	return rc ? rc : gguf_config_read(config.s, config.len, ret, e);
}

int view_gguf_tensors(const struct view *v, struct gguf_config *ret_config,
		      struct gguf_tensors *ret, struct ckpt_err *e)
{
	int rc = read_config(v, ret_config, e);

	return rc ? rc : gguf_place(v, ret_config, gguf_mix_of(GGML_F32), GGML_F32, ret, e);
}

static int make(const struct view *v, struct gguf *g, struct ckpt_err *e)
{
	enum ggml_type plain;
	int rc = read_config(v, &g->config, e);

	if (!rc)
		rc = plain_type(v, &plain, e);
	if (!rc) {
		g->mix = v->o.gguf_mix ? v->o.gguf_mix : gguf_mix_of(plain);
		rc = gguf_place(v, &g->config, g->mix, plain, &g->tensors, e);
	}
	for (size_t i = 0; !rc && i < g->tensors.n; i++) {
		const struct vtensor *t = g->tensors.v[i];

		g->blocks += t && t->blocks ? t->bytes : 0;
	}
	if (!rc)
		rc = divide(v, g, e);
	for (uint32_t f = 0; !rc && f < g->n_files; f++)
		rc = make_head(v, g, f, e);
	return rc;
}

/* ---- lazy preparation ---- */

void view_gguf_release(struct view *v)
{
	struct gguf_lazy *l = v->gguf;

	if (!l)
		return;
	gguf_free(l->gguf);
	(void)pthread_mutex_destroy(&l->lock);
	(void)pthread_cond_destroy(&l->idle);
	free(l);
}

/*
 * A parsed tokenizer takes a hundred megabytes in a million parts, which malloc would not return.
 */
static void trim(void)
{
#ifdef __GLIBC__
	(void)malloc_trim(0);
#endif
}

/* Must the caller prepare it? */
static bool begin(struct gguf_lazy *l)
{
	SCOPED_LOCK(&l->lock);
	while (l->state == BUSY)
		(void)pthread_cond_wait(&l->idle, &l->lock);
	if (l->state == DONE)
		return false;
	l->state = BUSY;
	return true;
}

/* Lack of memory or descriptors may be temporary, and a disk may answer the next time. */
static bool is_passing(int rc)
{
	return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE || rc == -EIO;
}

/* NULL: there is no gguf/ */
static const struct gguf *find(const struct view *v)
{
	struct gguf_lazy *l = v->gguf;
	struct gguf *g;
	int rc;

	if (!begin(l))
		return l->gguf;
	g = calloc(1, sizeof(*g));
	rc = g ? make(v, g, &l->missing) : err_set(&l->missing, ENOMEM, "out of memory");
	if (rc) {
		gguf_free(g);
		g = NULL;
	}
	trim();
	SCOPED_LOCK(&l->lock);
	l->gguf = g;
	l->blocks = g ? g->blocks : 0;
	l->state = is_passing(rc) ? NOT_YET : DONE;
	(void)pthread_cond_broadcast(&l->idle);
	return g;
}

static bool has_asset(const struct view *v, const char *name)
{
	for (size_t i = 0; i < v->o.n_assets; i++)
		if (!strcmp(v->o.assets[i].name, name))
			return true;
	return false;
}

int view_gguf_init(struct view *v, struct ckpt_err *e)
{
	struct gguf_lazy *l = calloc(1, sizeof(*l));

	if (!l)
		return err_nomem(e);
	(void)pthread_mutex_init(&l->lock, NULL);
	(void)pthread_cond_init(&l->idle, NULL);
	v->gguf = l;
	if (v->has_model && has_asset(v, "config.json") && has_asset(v, "tokenizer.json"))
		return 0;
	(void)find(v); /* fast, because the answer is no */
	if (l->state != DONE)
		*e = l->missing;
	return l->state == DONE ? 0 : -e->code;
}

bool view_has_gguf(const struct view *v)
{
	return find(v);
}

bool view_gguf_known(const struct view *v, bool *ret)
{
	SCOPED_LOCK(&v->gguf->lock);
	*ret = v->gguf->gguf;
	return v->gguf->state == DONE;
}

bool view_gguf_is_known(const struct view *v)
{
	bool there;

	return view_gguf_known(v, &there);
}

void view_gguf(const struct view *v, struct view_gguf *ret)
{
	const struct gguf *g = find(v);

	*ret = (struct view_gguf){ .missing = g ? NULL : v->gguf->missing.msg };
	if (!g)
		return;
	ret->arch = g->config.arch;
	ret->files = g->n_files;
	ret->tensors = g->tensors.n;
	ret->dtype = g->mix->name;
}

uint64_t view_gguf_blocks(const struct view *v)
{
	return v->gguf->blocks;
}

int view_gguf_vtensor(const struct view *v, uint32_t i, struct vtensor **ret, struct ckpt_err *e)
{
	/* not NULL, because the tensor was shown */
	return vtensor_copy(find(v)->tensors.v[i], ret, e);
}

/* ---- the face ---- */

static void file_name(const struct gguf *g, uint64_t i, char name[static NAME_CAP])
{
	if (g->n_files == 1)
		(void)stpcpy(name, "model.gguf");
	else
		(void)snprintf(name, NAME_CAP, "model-%05u-of-%05u.gguf", (unsigned)i + 1,
			       g->n_files);
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	if (p.rank)
		return VIEW_NONE;
	if (p.index == SPOT_DIR)
		return VIEW_DIR;
	return p.index < find(v)->n_files ? VIEW_FILE : VIEW_NONE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	(void)p;
	return find(v)->n_files;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	file_name(find(v), p.index, out);
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	const struct gguf *g = find(v);
	uint64_t number = strtoull(name + min_u64(strlen(name), sizeof("model-") - 1), NULL, 10);
	char have[NAME_CAP];

	number -= g->n_files > 1; /* also excludes 0, which becomes too large */
	if (number >= g->n_files)
		return false;
	file_name(g, number, have);
	if (strcmp(name, have) != 0)
		return false;
	p.index = (uint32_t)number;
	*ret = p;
	return true;
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	const struct gguf *g = find(v);
	const struct buf *head = &g->heads[p.index];

	(void)e;
	vfile_lent(ret, head->data, head->len);
	for (size_t i = g->at[p.index]; i < g->at[p.index + 1]; i++) {
		uint32_t number = g->by_file[i];
		const struct gguf_tensor *t = &g->tensors.t[number];

		if (g->tensors.v[number])
			vfile_tensor(ret, view_id(OF_GGUF, number), t->bytes);
		else
			vfile_lent(ret, g->config.factors[number].v, t->bytes);
		vfile_zero(ret, gguf_padding(t->bytes));
	}
	return 0;
}

const struct face face_gguf = { "gguf", true, kind, entries, NULL, name, lookup, describe };
