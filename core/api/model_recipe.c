/* SPDX-License-Identifier: Apache-2.0 */
#include "api/model_recipe.h"

#include "api/ckpt_internal.h"
#include "base/blob.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_query.h"
#include "format/megatron_args.h"
#include "parse/json_text.h"
#include "read/fetch.h"
#include "view/view.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG ((uint64_t)16 << 20) /* bytes of config.json */

/* ---- config.json ---- */

static int read_config(const struct ckpt *c, struct model_recipe *r, struct ckpt_err *e)
{
	autofree char *text = NULL;
	json_error_t why;
	uint64_t size;
	size_t i = 0;
	int rc;

	while (i < c->assets.n && strcmp(c->assets.v[i].name, "config.json") != 0)
		i++;
	if (i == c->assets.n)
		return 0;
	size = c->assets.v[i].size;
	if (size > MAX_CONFIG)
		return err_set(e, EFBIG, "'%s' has %llu bytes", c->assets.v[i].path,
			       (unsigned long long)size);
	text = malloc(size + 1);
	if (!text)
		return err_set(e, ENOMEM, "out of memory");
	rc = assets_read(&c->assets, i, text, size, 0, e);
	if (rc)
		return rc;
	r->config = json_text_load(text, size, JSON_REJECT_DUPLICATES, &why);
	if (!r->config)
		return err_set(e, json_text_code(&why, EINVAL), "'%.200s', line %d: %s",
			       c->assets.v[i].path, why.line, why.text);
	if (!json_is_object((const json_t *)r->config))
		return err_set(e, EINVAL, "'%.200s', line 1: it is no object", c->assets.v[i].path);
	r->facts.has[RECIPE_CONFIG] = true;
	return 0;
}

static int config_number(const json_t *config, const char *key, uint64_t *ret, struct ckpt_err *e)
{
	const json_t *v = json_object_get(config, key);

	if (!v || json_is_null(v))
		return 1;
	if (json_is_boolean(v))
		*ret = json_is_true(v);
	else if (json_is_integer(v) && json_integer_value(v) >= 0)
		*ret = (uint64_t)json_integer_value(v);
	else
		return err_set(e, EINVAL, "config.json: '%.60s' is no whole number", key);
	return 0;
}

/* ---- args ---- */

struct object {
	struct fetch *fetch;
	const struct catalog_object *object;
};

static int64_t read_object(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct object *o = arg;

	return object_read(o->fetch, o->object, buf, len, off, e);
}

static int args_of_object(struct ckpt *c, size_t number, struct model_recipe *r, struct ckpt_err *e)
{
	const char *fault = ckpt_object_fault(c, number);
	size_t n;
	struct object o = { c->fetch, &catalog_objects(c->catalog, &n)[number] };
	struct blob b = { read_object, &o, 0 };
	int rc;

	if (fault)
		return err_set(e, EIO, "%s", fault);
	rc = object_size(c->fetch, o.object, &b.size, e);
	return rc ? rc : megatron_args_read(&b, &r->args, e);
}

/* Number of the object, or -1. */
static int64_t find_object(const struct ckpt *c, const char *name)
{
	size_t n, len = strlen(name);
	const struct catalog_object *o = catalog_objects(c->catalog, &n);

	for (size_t i = 0; i < n; i++)
		if (o[i].fqn_len == len && !memcmp(o[i].fqn, name, len))
			return (int64_t)i;
	return -1;
}

static int read_args(struct ckpt *c, struct model_recipe *r, struct ckpt_err *e)
{
	const char *name = MEGATRON_COMMON_FILE; /* Megatron looks for it first */
	int64_t i = find_object(c, name);
	int rc;

	if (i < 0) {
		name = MEGATRON_COMMON_OBJECT;
		i = find_object(c, name);
	}
	rc = i < 0 ? 0 : args_of_object(c, (size_t)i, r, e);
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
				   : config_number(r->config, key, ret, e);
}

/* "megatron": what config.json calls the model; the args know whether it has experts, not whose. */
static int choose(const struct model_recipe *r, const struct recipe_builtin **ret,
		  struct ckpt_err *e)
{
	const char *type = json_string_value(json_object_get(r->config, "model_type"));
	uint64_t experts = 0;

	*ret = NULL;
	if (type) {
		*ret = recipe_builtin_for(type);
		return *ret ? 0
			    : err_set(e, EINVAL, "'megatron' has none for model_type '%.60s'",
				      type);
	}
	if (r->args && megatron_args_number(r->args, "num_experts", &experts, e) >= 0 && !experts)
		*ret = recipe_builtin_for("llama");
	return *ret ? 0
		    : err_set(e, EINVAL,
			      "'megatron' needs a config.json with a model_type, beside the "
			      "checkpoint or in assets=; or name the recipe, as 'ckptfs help "
			      "recipes' lists them");
}

static int parse_file(const char *path, struct model_recipe *r, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(RECIPE_MAX_FILE);
	int rc = io_read_file(path, &b, e);

	if (!rc)
		rc = recipe_parse(b.data ? b.data : "", b.len, path, &r->recipe, e);
	buf_release(&b);
	return rc;
}

bool model_recipe_is_file(const char *name)
{
	return !recipe_builtin_named(name) && strcmp(name, "megatron") != 0;
}

static int open_recipe(struct ckpt *c, const char *name, struct model_recipe *r, struct ckpt_err *e)
{
	const struct recipe_builtin *b = recipe_builtin_named(name);
	int rc = read_config(c, r, e);

	if (!rc)
		rc = read_args(c, r, e);
	if (!rc && !strcmp(name, "megatron"))
		rc = choose(r, &b, e);
	if (rc)
		return rc;
	return b ? recipe_parse(b->text, (size_t)(b->end - b->text), b->name, &r->recipe, e)
		 : parse_file(name, r, e);
}

int model_recipe_open(struct ckpt *c, const char *name, struct model_recipe *ret,
		      struct ckpt_err *e)
{
	int rc;

	*ret = (struct model_recipe){ .facts = { .number = number, .arg = ret } };
	rc = open_recipe(c, name, ret, e);
	return rc ? err_wrap(e, "option 'recipe'") : 0;
}

void model_recipe_release(struct model_recipe *r)
{
	json_decref(r->config);
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
