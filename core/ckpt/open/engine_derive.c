/* SPDX-License-Identifier: Apache-2.0 */
/* Adds the tensors to an engine's catalog that options ask to compute from the stored ones. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_without.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/computed/dequantise.h"
#include "ckpt/computed/dequantise_gguf.h"
#include "ckpt/computed/lora.h"
#include "ckpt/computed/overlay.h"
#include "ckpt/computed/peek.h"
#include "ckpt/open/assets.h"
#include "index/catalog_query.h"
#include "read/fetch.h"

#include <errno.h>

/* Removes from config.json how weights are encoded, because they are shown decoded. text: its
 * contents, which are edited in place. */
static int edit_config(struct engine *eng, int64_t number, char *text, size_t len,
		       struct ckpt_err *e)
{
	size_t before = len;

	for (size_t i = 0; i < ARRAY_LEN(dequantise_keys); i++)
		len = json_without(text, len, dequantise_keys[i]);
	return len == before ? 0 : assets_replace(&eng->assets, (size_t)number, text, e);
}

/* *text: NULL if there is none. */
static int read_json(const struct engine *eng, const char *name, char **text, size_t *len,
		     int64_t *number, struct jdoc *ret, struct ckpt_err *e)
{
	int rc = assets_text(&eng->assets, name, ASSETS_MAX_CONFIG, text, len, number, e);

	if (!rc && *text && jdoc_parse_copy(ret, *text, *len, JDOC_BIG | JDOC_PYTHON, e))
		rc = err_wrap(e, "'%.200s', line %zu", eng->assets.v[*number].path, ret->line);
	return rc;
}

/*
 * A cast or an average of scales is wrong, and not all forms of codes are known by their names: if
 * config.json says that weights are quantised, eng->quantised is the member that says so. What
 * dequantize= has decoded it no longer says, and the codes of a GGUF are in blocks with their
 * scales.
 */
static int look_for_codes(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct jdoc config CLEANUP(jdoc_release) = { 0 };
	autofree char *text = NULL;
	struct ckpt_err why;
	int64_t number;
	size_t len;
	int rc;

	if ((!o->dtype && !o->average) || eng->format == &format_gguf || eng->dequantised.n)
		return 0;
	rc = assets_text(&eng->assets, "config.json", ASSETS_MAX_CONFIG, &text, &len, &number, e);
	if (rc || !text)
		return rc;
	rc = jdoc_parse_copy(&config, text, len, JDOC_BIG | JDOC_PYTHON, &why);
	if (!rc)
		eng->quantised = dequantise_key_of(jdoc_root(&config));
	return rc == -ENOMEM ? err_nomem(e) : 0; /* other faults are those of who needs it */
}

/* Shows codes and their scales as weights, if requested. */
static int dequantise_all(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct jdoc config CLEANUP(jdoc_release) = { 0 }, gptq CLEANUP(jdoc_release) = { 0 };
	struct peeking peeking = { .eng = eng };
	const struct peek how = { peek_engine, &peeking };
	autofree char *text = NULL, *gptq_text = NULL;
	int dtype = CKPT_DTYPE_NONE;
	int64_t number = -1, gptq_number;
	size_t len, gptq_len;
	int rc = ckpt_opts_dtype("dequantize", o->dequantize, &dtype, e);

	if (rc || !o->dequantize)
		return rc;
	if (eng->format == &format_gguf) {
		rc = dequantise_gguf(eng->catalog, (enum ckpt_dtype)dtype, &eng->dequantised, e);
		if (!rc && !eng->dequantised.n && o->warn)
			o->warn(o->warn_arg,
				"option 'dequantize' does nothing: no tensor of the GGUF is stored "
				"in blocks");
		return rc;
	}
	rc = read_json(eng, "config.json", &text, &len, &number, &config, e);
	if (!rc && !dequantise_key_of(jdoc_root(&config)))
		rc = read_json(eng, ASSETS_GPTQ, &gptq_text, &gptq_len, &gptq_number, &gptq, e);
	if (!rc)
		rc = dequantise(eng->catalog, jdoc_root(&config), jdoc_root(&gptq),
				(enum ckpt_dtype)dtype, &how, &eng->dequantised, e);
	fetch_free(peeking.fetch);
	if (!rc && !eng->dequantised.n && o->warn)
		o->warn(o->warn_arg,
			"option 'dequantize' does nothing: no tensor holds codes that have scales");
	if (!rc && text && eng->dequantised.n)
		rc = edit_config(eng, number, text, len, e);
	return rc;
}

/* Makes config.json, if it says in which type weights are to be loaded, say the one that `dtype`
 * asks for: transformers and vLLM convert weights to that type. */
static int set_config_dtype(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	static const char *const keys[] = { "torch_dtype", "dtype" }; /* the latter since 4.56 */
	struct jdoc config CLEANUP(jdoc_release) = { 0 };
	struct buf edited CLEANUP(buf_release) = BUF_INIT(2 * ASSETS_MAX_CONFIG);
	autofree char *text = NULL;
	const char *key = NULL, *name, *said, *rest;
	int dtype = CKPT_DTYPE_NONE, rc = ckpt_opts_dtype("dtype", o->dtype, &dtype, e);
	struct ckpt_err why;
	int64_t number;
	size_t len;

	if (rc || !o->dtype)
		return rc;
	rc = assets_text(&eng->assets, "config.json", ASSETS_MAX_CONFIG, &text, &len, &number, e);
	if (rc || !text)
		return rc;
	if (jdoc_parse_copy(&config, text, len, JDOC_BIG | JDOC_PYTHON, &why))
		return why.code == ENOMEM ? err_nomem(e) : 0; /* as above */
	name = dtype_info((enum ckpt_dtype)dtype)->name;
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		said = jval_str(jval_get(jdoc_root(&config), keys[i]));
		if (said && strcmp(said, name) != 0)
			key = keys[i];
	}
	if (!key)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		len = json_without(text, len, keys[i]);
	rest = strchr(text, '{') + 1;
	buf_printf(&edited, "%.*s\n  \"%s\": \"%s\"%s", (int)(rest - text), text, key, name,
		   rest[strspn(rest, " \t\r\n")] == '}' ? "" : ",");
	buf_str(&edited, rest);
	buf_add(&edited, "", 1);
	return edited.err ? err_nomem(e)
			  : assets_replace(&eng->assets, (size_t)number, edited.data, e);
}

int engine_derive(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	int rc = dequantise_all(eng, o, e);

	if (!rc)
		rc = set_config_dtype(eng, o, e);
	if (!rc)
		rc = look_for_codes(eng, o, e);
	if (!rc)
		rc = computed_begin(&eng->computed, eng->dequantised.v, eng->dequantised.n, e);
	if (!rc && o->average)
		rc = average_derive(eng, o, e);
	if (!rc && o->overlay)
		rc = overlay_derive(eng, o, &eng->merging, e);
	if (!rc && o->lora)
		rc = lora_derive(eng, o, &eng->merging, e);
	return rc;
}
