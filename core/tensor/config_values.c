/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/config_values.h"

#include "base/err.h"

#include <math.h>

struct jval config_get(const struct config_in *r, const char *key)
{
	return jval_given(jval_get(r->from, key));
}

static const char *below(const struct config_in *r)
{
	return r->below ? r->below : "";
}

/* Where the error goes; NULL if there is one already, since the first one counts. */
static struct config_in *error_of(struct config_in *r)
{
	while (r->whole)
		r = r->whole;
	return r->rc ? NULL : r;
}

void config_wrong(struct config_in *r, const char *key, const char *what)
{
	struct config_in *to = error_of(r);

	if (to)
		to->rc = err_set(to->e, EINVAL, "config.json: '%s%s' %s", below(r), key, what);
}

struct jval config_object(struct config_in *r, const char *key)
{
	struct jval v = config_get(r, key);

	if (!v.d || jval_is(v, J_OBJECT))
		return v;
	config_wrong(r, key, "is not an object");
	return (struct jval){ 0 };
}

void config_must_have(struct config_in *r, const char *key)
{
	struct config_in *to = error_of(r);

	if (to && !config_get(r, key).d)
		to->rc = err_set(to->e, EINVAL, "config.json has no '%s%s'", below(r), key);
}

void config_unsupported(struct config_in *r, const char *what)
{
	struct config_in *to = error_of(r);

	if (to)
		to->rc = err_set(to->e, ERR_UNSUPPORTED, "config.json: not supported: %s", what);
}

void config_must(struct config_in *r, bool ok, const char *what)
{
	if (!ok)
		config_unsupported(r, what);
}

uint64_t config_count_or(struct config_in *r, const char *key, uint64_t otherwise)
{
	struct jval v = config_get(r, key);
	int64_t n;

	if (!v.d)
		return otherwise;
	if (!jval_int(v, &n) || n <= 0 || n > INT32_MAX) {
		config_wrong(r, key, "is not a number from 1 to 2147483647");
		return 1;
	}
	return (uint64_t)n;
}

uint64_t config_count(struct config_in *r, const char *key)
{
	uint64_t v = config_count_or(r, key, 0);

	if (!v)
		config_must_have(r, key);
	return v ? v : 1;
}

uint64_t config_whole(struct config_in *r, const char *key)
{
	int64_t n;

	if (jval_int(config_get(r, key), &n) && !n)
		return 0;
	return config_count(r, key);
}

bool config_is_float(struct jval v, double *ret)
{
	return jval_number(v, ret) && isfinite((float)*ret);
}

double config_number_or(struct config_in *r, const char *key, double otherwise)
{
	struct jval v = config_get(r, key);
	double x;

	if (!v.d)
		return otherwise;
	if (!config_is_float(v, &x) || !((float)x > 0)) {
		config_wrong(r, key, "is not a number greater than 0 that fits a float32");
		return 1;
	}
	return x;
}

double config_number(struct config_in *r, const char *key)
{
	double v = config_number_or(r, key, 0);

	if (v == 0)
		config_must_have(r, key);
	return v;
}

bool config_flag(struct config_in *r, const char *key, bool otherwise)
{
	struct jval v = config_get(r, key);

	if (v.d && !jval_is_bool(v))
		config_wrong(r, key, "is neither true nor false");
	return v.d ? jval_is(v, J_TRUE) : otherwise;
}

const char *config_text(struct config_in *r, const char *key, const char *otherwise)
{
	struct jval v = config_get(r, key);

	if (v.d && !jval_is(v, J_STRING)) {
		config_wrong(r, key, "is not a string");
		return otherwise;
	}
	return v.d ? jval_str(v) : otherwise;
}
