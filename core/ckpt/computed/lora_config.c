/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/lora_config.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "read/derived/low_rank.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

enum { MAX_PATTERNS = 8192 };
#define MAX_WORK ((uint64_t)1 << 33) /* bytes of patterns that are compared with names */

/* Is it there, and neither null, false, 0 nor empty? */
static bool is_set(struct jval v)
{
	double d;

	if (jval_is_null(v) || jval_is(v, J_FALSE))
		return false;
	if (jval_number(v, &d))
		return d != 0;
	return jval_is(v, J_STRING) ? jval_len(v) > 0 : jval_is(v, J_TRUE) || jval_size(v) > 0;
}

static int refuse_kinds(struct jval c, struct ckpt_err *e)
{
	static const struct {
		const char *key, *what;
	} others[] = {
		{ "use_dora", "DoRA, which needs the norm of each column" },
		{ "use_qalora", "QALoRA" },
		{ "use_bdlora", "BD-LoRA" },
		{ "alora_invocation_tokens", "an activated LoRA, which has no merged weight" },
		{ "arrow_config", "Arrow, which chooses among adapters for each token" },
		{ "lora_bias", "biases of LoRA" },
		{ "layer_replication", "replicated layers" },
		{ "target_parameters", "parameters that are not the weight of a module" },
		{ "trainable_token_indices", "single tokens" },
		{ "megatron_config", "Megatron's layers" },
	};
	/* They begin with other matrices, but the weights stay what they are. */
	static const char *const plain[] = { "gaussian", "eva", "orthogonal" };
	struct jval type = jval_get(c, "peft_type"), init = jval_get(c, "init_lora_weights");
	bool known = !jval_is(init, J_STRING);

	if (!jval_is_str(type, "LORA"))
		return err_set(e, ERR_UNSUPPORTED,
			       "peft_type is %.60s, and only LORA can be merged here",
			       jval_str(type) ? jval_str(type) : "missing");
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (is_set(jval_get(c, others[i].key)))
			return err_set(e, ERR_UNSUPPORTED, "%s: %s cannot be merged here",
				       others[i].key, others[i].what);
	for (size_t i = 0; i < ARRAY_LEN(plain); i++)
		known |= jval_is_str(init, plain[i]);
	return known ? 0
		     : err_set(e, ERR_UNSUPPORTED,
			       "init_lora_weights is %.60s, which changes the weights that the "
			       "adapter is added to; PEFT can convert it to a plain one when it "
			       "saves",
			       jval_str(init));
}

static int is_pattern(const char *p, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (p[i] == '\\' && i + 1 < len && ispunct((unsigned char)p[i + 1]))
			i++;
		else if (!isalnum((unsigned char)p[i]) && !strchr("_-/.", p[i]) &&
			 !(p[i] == '^' && !i))
			return false;
	}
	return len > 0;
}

static int check_patterns(struct jval v, const char *key, struct ckpt_err *e)
{
	struct jiter i = jiter(v);
	double d;

	if (jval_is_null(v))
		return 0;
	if (!jval_is(v, J_OBJECT))
		return err_set(e, EINVAL, "%s is not an object", key);
	if (jval_size(v) > MAX_PATTERNS)
		return err_set(e, EFBIG, "%s has more than %d patterns", key, MAX_PATTERNS);
	while (jiter_next(&i)) {
		if (!is_pattern(i.key, i.key_len))
			return err_set(e, ERR_UNSUPPORTED,
				       "%s: '%.120s' is a regular expression of a kind that is not "
				       "supported",
				       key, FQN_TEXT(i.key, i.key_len));
		if (!jval_number(i.v, &d) || !isfinite(d))
			return err_set(e, EINVAL, "%s: '%.120s' has no number", key,
				       FQN_TEXT(i.key, i.key_len));
	}
	return 0;
}

static int check_rank(double r, const char *what, struct ckpt_err *e)
{
	if (r >= 1 && r <= LORA_MAX_RANK && r == floor(r))
		return 0;
	return err_set(e, EINVAL, "%s is %g, which is not a rank from 1 to %d", what, r,
		       LORA_MAX_RANK);
}

int lora_config_read(struct lora_config *ret, const char *text, size_t len, struct ckpt_err *e)
{
	double r = 0;
	struct jval c, on;
	int rc;

	*ret = (struct lora_config){ .work = MAX_WORK };
	if (jdoc_parse_copy(&ret->doc, text, len, JDOC_BIG | JDOC_PYTHON | JDOC_DUPLICATES, e))
		return err_wrap(e, "line %zu", ret->doc.line);
	c = jdoc_root(&ret->doc);
	if (!jval_is(c, J_OBJECT))
		return err_set(e, EINVAL, "it is not an object");
	rc = refuse_kinds(c, e);
	if (rc)
		return rc;
	if (!jval_number(jval_get(c, "r"), &r))
		return err_set(e, EINVAL, "r is missing, or is not a number");
	rc = check_rank(r, "r", e);
	if (rc)
		return rc;
	ret->rank = (uint32_t)r;
	if (!jval_number(jval_get(c, "lora_alpha"), &ret->alpha) || !isfinite(ret->alpha))
		return err_set(e, EINVAL, "lora_alpha is missing, or is not a number");
	on = jval_get(c, "use_rslora");
	ret->root = jval_is(on, J_TRUE);
	if (!jval_is_null(on) && !jval_is_bool(on))
		return err_set(e, EINVAL, "use_rslora is neither true nor false");
	on = jval_get(c, "fan_in_fan_out");
	ret->turned = jval_is(on, J_TRUE);
	if (!jval_is_null(on) && !jval_is_bool(on))
		return err_set(e, EINVAL, "fan_in_fan_out is neither true nor false");
	ret->ranks = jval_get(c, "rank_pattern");
	ret->alphas = jval_get(c, "alpha_pattern");
	rc = check_patterns(ret->ranks, "rank_pattern", e);
	return rc ? rc : check_patterns(ret->alphas, "alpha_pattern", e);
}

void lora_config_release(struct lora_config *c)
{
	jdoc_release(&c->doc);
}

/* How many characters p matches, which is_pattern has accepted. */
static size_t width_of(const char *p, size_t n)
{
	size_t width = 0;

	for (size_t i = 0; i < n; i++, width++)
		i += p[i] == '\\';
	return width;
}

/* Does s, which is as long as that, match p? */
static bool matches(const char *p, size_t n, const char *s)
{
	for (size_t i = 0; i < n; i++, s++) {
		bool any = p[i] == '.';

		i += p[i] == '\\';
		if (!any && p[i] != *s)
			return false;
	}
	return true;
}

/* The value of the first pattern that matches the whole name, or its end after a dot. */
static int look_up(struct lora_config *c, struct jval patterns, const char *s, size_t len,
		   double *ret, struct ckpt_err *e)
{
	struct jiter i = jiter(patterns);

	while (jiter_next(&i)) {
		bool whole = *i.key == '^';
		const char *p = i.key + whole;
		size_t n = i.key_len - whole, width, at;
		bool fits = n <= 2 * len; /* it matches at least half as many characters */
		size_t cost = fits ? n + 1 : 1;

		if (c->work < cost)
			return err_set(e, EFBIG,
				       "rank_pattern and alpha_pattern have too many patterns for "
				       "as many modules");
		c->work -= cost;
		if (!fits)
			continue;
		width = width_of(p, n);
		at = len - width;
		if (width > len || (at && (whole || s[at - 1] != '.')) || !matches(p, n, s + at))
			continue;
		(void)jval_number(i.v, ret);
		break;
	}
	return 0;
}

int lora_config_of(struct lora_config *c, const char *module, size_t len, uint32_t *ret_rank,
		   double *ret_scale, struct ckpt_err *e)
{
	double rank = c->rank, alpha = c->alpha;
	int rc = look_up(c, c->ranks, module, len, &rank, e);

	if (!rc)
		rc = look_up(c, c->alphas, module, len, &alpha, e);
	if (!rc)
		rc = check_rank(rank, "a rank in rank_pattern", e);
	if (rc)
		return rc;
	*ret_rank = (uint32_t)rank;
	*ret_scale = alpha / (c->root ? sqrt(rank) : rank);
	return 0;
}
