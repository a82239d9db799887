/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/model/model_recipe.h"

#include "base/blob.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/assets.h"
#include "format/megatron/megatron_args.h"
#include "index/catalog_query.h"
#include "read/fetch.h"

#include <string.h>

/* ---- config.json ---- */

static int read_config(const struct engine *eng, struct model_recipe *r, struct ckpt_err *e)
{
	autofree char *text = NULL;
	struct ckpt_err why;
	int64_t number;
	size_t size;
	int rc = assets_text(&eng->assets, "config.json", ASSETS_MAX_CONFIG, &text, &size, &number,
			     e);

	if (rc || !text)
		return rc;
	if (jdoc_parse(&r->config, text, size, 0, &why))
		return err_set(e, why.code == ERR_CORRUPT ? EINVAL : why.code,
			       "'%.200s', line %zu: %s", eng->assets.v[number].path, r->config.line,
			       why.msg);
	r->config.owned = steal_ptr(&text);
	if (!jval_is(jdoc_root(&r->config), J_OBJECT))
		return err_set(e, EINVAL, "'%.200s', line 1: it is not an object",
			       eng->assets.v[number].path);
	r->facts.has[RECIPE_CONFIG] = true;
	return 0;
}

/* The value of "key" or "key.key.key". */
static struct jval config_value(struct jval v, const char *key)
{
	char one[100];

	for (const char *dot; (dot = strchr(key, '.')); key = dot + 1) {
		if ((size_t)(dot - key) >= sizeof(one))
			return jval_get(v, key); /* no such key */
		memcpy(one, key, (size_t)(dot - key));
		one[dot - key] = 0;
		v = jval_get(v, one);
	}
	return jval_get(v, key);
}

static int config_number(struct jval config, const char *key, uint64_t *ret, struct ckpt_err *e)
{
	struct jval v = config_value(config, key);
	int64_t n;

	if (jval_is_null(v))
		return 1;
	if (jval_is_bool(v))
		*ret = jval_is(v, J_TRUE);
	else if (jval_int(v, &n) && n >= 0)
		*ret = (uint64_t)n;
	else
		return err_set(e, EINVAL, "config.json: '%.60s' is not a whole number", key);
	return 0;
}

/* ---- arguments of Megatron ---- */

struct object {
	struct fetch *fetch;
	const struct catalog_object *object;
};

static int64_t read_object(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct object *o = arg;

	return object_read(o->fetch, o->object, buf, len, off, e);
}

static int args_of_object(struct engine *eng, size_t number, struct model_recipe *r,
			  struct ckpt_err *e)
{
	const char *fault = ckpt_object_fault(eng, number);
	struct object o = { eng->fetch, &catalog_objects(eng->catalog, NULL)[number] };
	struct blob b = { read_object, &o, 0 };
	int rc;

	if (fault)
		return err_set(e, EIO, "%s", fault);
	rc = object_size(eng->fetch, o.object, &b.size, e);
	return rc ? rc : megatron_args_read(&b, &r->args, e);
}

static int read_args(struct engine *eng, struct model_recipe *r, struct ckpt_err *e)
{
	const char *name = MEGATRON_COMMON_FILE; /* Megatron looks for this one first */
	int64_t i = catalog_find_object(eng->catalog, name, strlen(name));
	int rc;

	if (i < 0) {
		name = MEGATRON_COMMON_OBJECT;
		i = catalog_find_object(eng->catalog, name, strlen(name));
	}
	rc = i < 0 ? 0 : args_of_object(eng, (size_t)i, r, e);
	r->facts.has[RECIPE_ARGS] = r->args;
	return rc ? err_wrap(e, "the args in '%s'", name) : 0;
}

/* ---- the recipe ---- */

static int number(void *arg, enum recipe_from from, const char *key, uint64_t *ret,
		  struct ckpt_err *e)
{
	const struct model_recipe *r = arg;

	if (!r->facts.has[from])
		return 1;
	return from == RECIPE_ARGS ? megatron_args_number(r->args, key, ret, e)
				   : config_number(jdoc_root(&r->config), key, ret, e);
}

static const char *text(void *arg, enum recipe_from from, const char *key)
{
	const struct model_recipe *r = arg;

	return from == RECIPE_CONFIG && r->facts.has[from]
		       ? jval_str(config_value(jdoc_root(&r->config), key))
		       : NULL;
}

/* Replaces "megatron" and the like by the recipe that config.json's model_type requires. */
static int choose(const struct model_recipe *r, const struct recipe_builtin **b, struct ckpt_err *e)
{
	const char *type = jval_str(jval_get(jdoc_root(&r->config), "model_type"));
	const char *choice = (*b)->name;
	uint64_t experts = 0;

	*b = NULL;
	if (type)
		*b = recipe_builtin_for(choice, type);
	/* Without it, the arguments of Megatron only tell whether there are experts. */
	else if (r->args && megatron_args_number(r->args, "num_experts", &experts, e) >= 0 &&
		 !experts)
		*b = recipe_builtin_for(choice, "llama");
	if (*b)
		return 0;
	if (type)
		return err_set(e, EINVAL, "'%s' has no recipe for model_type '%.60s'", choice,
			       type);
	return err_set(e, EINVAL,
		       "'%s' needs a config.json with a model_type, beside the checkpoint or in "
		       "assets=; or name the recipe, as 'ckptfs help recipes' lists them",
		       choice);
}

int model_recipe_none(const char *name, struct ckpt_err *e)
{
	enum { MAX_NAMES = 64 };
	const char *names[MAX_NAMES], *summary, *text;
	size_t n = 0, at;

	while (n < MAX_NAMES && (names[n] = ckpt_recipe(n, &summary, &text)))
		n++;
	at = ckpt_nearest(name, strlen(name), names, n);
	return err_set(e, ENOENT,
		       "'%s' is neither a file nor a recipe that 'ckptfs help recipes' lists%s%s%s",
		       name, at < n ? "; did you mean '" : "", at < n ? names[at] : "",
		       at < n ? "'?" : "");
}

static int parse_file(const char *path, struct model_recipe *r, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(RECIPE_MAX_FILE);
	int rc = io_read_file(path, &b, e);

	if (rc == -ENOENT)
		rc = model_recipe_none(path, e);
	digest_add(&r->digest, b.data, b.len);
	if (!rc)
		rc = recipe_parse(b.data ? b.data : "", b.len, path, &r->recipe, e);
	buf_release(&b);
	return rc;
}

bool model_recipe_is_file(const char *name)
{
	return !recipe_builtin_named(name);
}

int model_recipe_facts(struct engine *eng, struct model_recipe *ret, struct ckpt_err *e)
{
	int rc;

	*ret = (struct model_recipe){ .facts = { .number = number, .text = text, .arg = ret } };
	rc = read_config(eng, ret, e);
	return rc ? rc : read_args(eng, ret, e);
}

static int open_recipe(struct engine *eng, const char *name, struct model_recipe *r,
		       struct ckpt_err *e)
{
	const struct recipe_builtin *b = recipe_builtin_named(name);
	int rc = model_recipe_facts(eng, r, e);

	if (!rc && b && !*b->text)
		rc = choose(r, &b, e);
	if (rc)
		return rc;
	return b ? recipe_parse(b->text, (size_t)(b->end - b->text), b->name, &r->recipe, e)
		 : parse_file(name, r, e);
}

int model_recipe_open(struct engine *eng, const char *name, struct model_recipe *ret,
		      struct ckpt_err *e)
{
	int rc = open_recipe(eng, name, ret, e);

	return rc ? err_wrap(e, "option 'recipe'") : 0;
}

void model_recipe_release(struct model_recipe *r)
{
	jdoc_release(&r->config);
	megatron_args_free(r->args);
	recipe_free(r->recipe);
	*r = (struct model_recipe){ 0 };
}

const char *ckpt_recipe(size_t i, const char **ret_summary, const char **ret_text)
{
	const struct recipe_builtin *b = recipe_builtin(i);

	if (!b)
		return NULL;
	*ret_summary = b->summary;
	*ret_text = b->text;
	return b->name;
}
