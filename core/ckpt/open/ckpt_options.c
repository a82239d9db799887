/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/open/ckpt_options.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/nearest.h"
#include "base/sized.h"
#include "base/text.h"
#include "ckpt/model/model_recipe.h"
#include "model/dtype.h"
#include "source/place.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum who { TREE, HOW, PROGRAM };

static const struct ckpt_option options[] = {
#define OPTION(form_, name_, who, value_, help_) \
	{ .name = #name_, \
	  .form = CKPT_OPTION_##form_, \
	  .value = (value_), \
	  .help = (help_), \
	  .tree = (who) == TREE, \
	  .program = (who) == PROGRAM },
	CKPT_OPTIONS(OPTION)
#undef OPTION
};

/* Offsets of the fields in struct ckpt_opts. */
static const size_t places[] = {
#define PLACE(form, name, who, value, help) offsetof(struct ckpt_opts, name),
	CKPT_OPTIONS(PLACE)
#undef PLACE
};

const struct ckpt_option *ckpt_option(size_t i)
{
	return i < ARRAY_LEN(options) ? &options[i] : NULL;
}

void *ckpt_opts_at(struct ckpt_opts *o, const struct ckpt_option *x)
{
	return (char *)o + places[x - options];
}

static const struct ckpt_option *find(const char *word, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		if (!strncmp(options[i].name, word, len) && !options[i].name[len])
			return &options[i];
	return NULL;
}

/* Appends a string to a list of at most `cap`. */
static int add(const char ***list, size_t cap, const char *value, struct arena *a)
{
	size_t n = 0;

	if (!*list)
		*list = arena_array(a, cap + 1, sizeof(**list));
	if (!*list)
		return -ENOMEM;
	while ((*list)[n])
		n++;
	(*list)[n] = value;
	return 0;
}

/* n: number of option strings. */
static int set(struct ckpt_opts *o, const struct ckpt_option *x, const char *value, size_t n,
	       struct arena *a, struct ckpt_err *e)
{
	void *at = ckpt_opts_at(o, x);

	if (x->form == CKPT_OPTION_FLAG && value)
		return err_set(e, EINVAL, "option '%s' takes no value", x->name);
	if (x->form != CKPT_OPTION_FLAG && !value)
		return err_set(e, EINVAL, "option '%s' needs a value", x->name);
	switch (x->form) {
	case CKPT_OPTION_FLAG:
		*(bool *)at = true;
		return 0;
	case CKPT_OPTION_SIZE:
		if (!text_parse_size(value, at))
			return err_set(e, EINVAL, "option '%s': '%s' is not a %s", x->name, value,
				       strcmp(x->value, "SIZE") ? "number of seconds" : "size");
		if (!*(const uint64_t *)at) /* 0 would mean "not set" */
			return err_set(e, EINVAL, "option '%s': must be at least 1", x->name);
		return 0;
	case CKPT_OPTION_LIST:
		return add(at, n, value, a) ? err_nomem(e) : 0;
	default:
		*(const char **)at = value;
		return 0;
	}
}

static int unknown(const char *word, size_t len, struct ckpt_err *e)
{
	struct nearest near = NEAREST_INIT(word, len);
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++)
		if (!x->program)
			nearest_try(&near, x->name, strlen(x->name), i);
	return near.n ? err_set(e, EINVAL, "unknown option '%.*s': did you mean '%s'?", (int)len,
				word, ckpt_option(near.best[0].id)->name)
		      : err_set(e, EINVAL, "unknown option '%.*s'", (int)len, word);
}

int ckpt_opts_parse(const char *const words[], const struct ckpt_hooks *given, size_t size,
		    struct arena *a, struct ckpt_opts *ret, struct ckpt_err *e)
{
	struct ckpt_hooks hooks = { 0 };
	size_t n = 0;
	int rc = given ? SIZED_TAKE(hooks, given, size, "ckpt_hooks", e) : 0;

	*ret = (struct ckpt_opts){ .warn = hooks.warn,
				   .warn_arg = hooks.warn_arg,
				   .progress = hooks.progress,
				   .progress_arg = hooks.progress_arg };
	while (words && words[n])
		n++;
	for (size_t i = 0; !rc && i < n; i++) {
		size_t len = strcspn(words[i], "=");
		const struct ckpt_option *x = find(words[i], len);
		const char *copy = arena_dup(a, words[i], strlen(words[i]));

		if (!copy)
			return err_nomem(e);
		rc = x ? set(ret, x, copy[len] ? copy + len + 1 : NULL, n, a, e)
		       : unknown(words[i], len, e);
	}
	return rc;
}

/* "DIR[:SCALE]": what follows DIR, or "". */
static const char *behind_dir(const char *value)
{
	const char *colon = strrchr(value, ':');

	return colon && !strchr(colon, '/') ? colon : value + strlen(value);
}

char *ckpt_opts_absolute(const struct ckpt_option *x, const char *value)
{
	bool scaled = !strcmp(x->name, "lora"), is_path = scaled || !strcmp(x->name, "overlay");
	autofree char *name = NULL, *path = NULL;
	const char *rest = "";

	errno = 0;
	if (x->form == CKPT_OPTION_FILE)
		is_path = strcmp(x->name, "recipe") != 0 || model_recipe_is_file(value);
	if (!is_path || place_is_remote(value))
		return NULL;
	path = local_real_name(value);
	if (!path && scaled) {
		rest = behind_dir(value);
		name = strndup(value, (size_t)(rest - value));
		path = name ? local_real_name(name) : NULL;
	}
	if (!path)
		return NULL;
	return text_format("%s%s", path, rest);
}

/* n: how many words there are so far. */
static int add_word(const char ***words, size_t *n, const struct ckpt_option *x, const char *value,
		    struct arena *a)
{
	autofree char *path = *value == '/' ? NULL : ckpt_opts_absolute(x, value);
	autofree char *word = NULL;

	word = text_format("%s=%s", x->name, path ? path : value);
	if (!word)
		return -ENOMEM;
	(*words)[(*n)++] = arena_dup(a, word, strlen(word));
	return (*words)[*n - 1] ? 0 : -ENOMEM;
}

int ckpt_opts_words(struct ckpt_opts *o, struct arena *a, const char *const **ret,
		    struct ckpt_err *e)
{
	size_t most = ARRAY_LEN(options) + 1, n = 0;
	const char **words;
	int rc = 0;

	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		const char *const *list = NULL;

		if (options[i].form == CKPT_OPTION_LIST)
			list = *(const char *const *const *)ckpt_opts_at(o, &options[i]);
		for (; list && *list; list++)
			most++;
	}
	words = arena_array(a, most, sizeof(*words));
	if (!words)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < ARRAY_LEN(options); i++) {
		const struct ckpt_option *x = &options[i];
		const void *at = ckpt_opts_at(o, x);
		char size[24];

		if (!x->tree || x->form == CKPT_OPTION_FLAG)
			continue;
		if (x->form == CKPT_OPTION_SIZE) {
			(void)snprintf(size, sizeof(size), "%" PRIu64, *(const uint64_t *)at);
			rc = *(const uint64_t *)at ? add_word(&words, &n, x, size, a) : 0;
		} else if (x->form != CKPT_OPTION_LIST) {
			const char *value = *(const char *const *)at;

			rc = value ? add_word(&words, &n, x, value, a) : 0;
		} else {
			const char *const *list = *(const char *const *const *)at;

			for (; !rc && list && *list; list++)
				rc = add_word(&words, &n, x, *list, a);
		}
	}
	*ret = words;
	return rc ? err_nomem(e) : 0;
}

struct place_options ckpt_opts_place(const struct ckpt_opts *o)
{
	return (struct place_options){ .endpoint = o->endpoint,
				       .region = o->region,
				       .profile = o->profile,
				       .anonymous = o->anonymous,
				       .cache_dir = o->cache_dir,
				       .cache_size = o->cache_size,
				       .memory = o->cache,
				       .retry_s = o->retry };
}

int ckpt_opts_choose(const char *name, const char *word, const struct ckpt_choice *of, size_t n,
		     int *ret, struct ckpt_err *e)
{
	char known[120] = "";
	size_t len = 0;

	for (size_t i = 0; word && i < n; i++)
		if (!strcmp(word, of[i].word)) {
			*ret = of[i].value;
			return 0;
		}
	for (size_t i = 0; i < n && len < sizeof(known); i++)
		if (!of[i].alias)
			len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s",
						i ? ", " : "", of[i].word);
	return word ? err_set(e, EINVAL, "option '%s': '%s' is not one of %s", name, word, known)
		    : 0;
}

int ckpt_opts_dtype(const char *name, const char *word, int *ret, struct ckpt_err *e)
{
	static const struct ckpt_choice dtypes[] = {
		{ "bf16", CKPT_DTYPE_BF16, false },  { "fp16", CKPT_DTYPE_F16, false },
		{ "fp32", CKPT_DTYPE_F32, false },   { "bfloat16", CKPT_DTYPE_BF16, true },
		{ "float16", CKPT_DTYPE_F16, true }, { "float32", CKPT_DTYPE_F32, true },
	};

	return ckpt_opts_choose(name, word, dtypes, ARRAY_LEN(dtypes), ret, e);
}
