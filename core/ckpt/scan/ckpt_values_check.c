/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_values.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sized.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_SENTENCE = 1 << 12 }; /* room for CKPT_MAX_DIMS numbers */

struct check {
	struct ckpt_values_check *k;
	uint64_t glob_steps;
	struct buf what; /* the sentence for the next fault */
};

static void report(struct check *r, const struct ckpt_values_item *i, const char *rule)
{
	struct ckpt_fault f = { i->fqn, i->fqn_len, r->what.data, false, rule };

	if (r->what.err)
		return;
	r->k->faults++;
	r->k->fault(r->k->arg, &f);
	r->what.len = 0;
}

static bool allowed(struct check *r, const char *const *globs, const struct ckpt_values_item *i)
{
	return globs && *globs && text_glob_any(globs, i->fqn, i->fqn_len, &r->glob_steps);
}

/* " in 3 of 12 elements, first at [0, 5]" */
static void add_where(struct buf *b, const struct ckpt_values_item *i, uint64_t n, uint64_t first)
{
	uint64_t stride = i->values.elements;

	buf_printf(b, " in %" PRIu64 " of %" PRIu64 " elements", n, i->values.elements);
	for (size_t d = 0; d < i->n_dims; d++) {
		stride /= i->shape[d]; /* not 0, because there are elements */
		buf_printf(b, "%s%" PRIu64, d ? ", " : ", first at [", first / stride);
		first %= stride;
	}
	buf_str(b, i->n_dims ? "]" : "");
}

static void check_special(struct check *r, const struct ckpt_values_item *i)
{
	const struct ckpt_values *v = &i->values;

	if (v->nan && !allowed(r, r->k->allow_nan, i)) {
		buf_str(&r->what, "NaN");
		add_where(&r->what, i, v->nan, v->first_nan);
		report(r, i, "nan");
	}
	if (v->infinite && !allowed(r, r->k->allow_inf, i)) {
		buf_str(&r->what, "infinity");
		add_where(&r->what, i, v->infinite, v->first_infinite);
		report(r, i, "inf");
	}
}

static void check_size(struct check *r, const struct ckpt_values_item *i)
{
	const struct ckpt_values *v = &i->values;
	double largest = fmax(fabs(v->min), fabs(v->max));

	if (!(r->k->max_abs > 0) || !v->finite || v->is_complex || largest <= r->k->max_abs)
		return;
	buf_printf(&r->what, "the largest magnitude is %.9g, above the limit of %.9g", largest,
		   r->k->max_abs);
	report(r, i, "max_abs");
}

/* Integers may be flags, positions or zero points. */
static bool is_floating(const struct ckpt_values_item *i)
{
	return !strncmp(i->dtype, "float", 5) || !strncmp(i->dtype, "bfloat", 6) ||
	       i->values.is_complex;
}

static void check_constant(struct check *r, const struct ckpt_values_item *i)
{
	const struct ckpt_values *v = &i->values;

	if (v->finite != v->elements || v->elements < 2 || i->n_dims < 2 || !is_floating(i))
		return;
	if (v->zero == v->elements) {
		if (allowed(r, r->k->allow_zero, i))
			return;
		buf_printf(&r->what, "all %" PRIu64 " elements are zero", v->elements);
		report(r, i, "zero");
		return;
	}
	if ((v->is_complex ? v->std != 0 : v->min != v->max) || allowed(r, r->k->allow_constant, i))
		return;
	buf_printf(&r->what, "all %" PRIu64 " elements are %.9g", v->elements, v->mean[0]);
	if (v->is_complex)
		buf_printf(&r->what, "%+.9gj", v->mean[1]);
	report(r, i, "constant");
}

static int look(void *arg, const struct ckpt_values_item *i)
{
	struct check *r = arg;

	if (i->fault) {
		buf_printf(&r->what, "its values cannot be read: %s", i->fault);
		report(r, i, "unreadable");
	} else {
		r->k->tensors++;
		r->k->bytes += i->bytes;
	}
	if (!i->fault && i->values.known) {
		check_special(r, i);
		check_size(r, i);
		check_constant(r, i);
	}
	return r->what.err ? -r->what.err : 0;
}

static void progress(void *arg, uint64_t done, uint64_t total)
{
	const struct check *r = arg;

	if (r->k->progress)
		r->k->progress(r->k->arg, done, total);
}

static int check(struct ckpt *c, struct ckpt_values_check *k, struct ckpt_err *e)
{
	struct check r = { .k = k, .glob_steps = TEXT_GLOB_STEPS, .what = BUF_INIT(MAX_SENTENCE) };
	struct ckpt_values_scan s = {
		.globs = k->globs, .jobs = k->jobs, .each = look, .progress = progress, .arg = &r
	};
	int rc;

	k->faults = k->tensors = k->bytes = 0;
	rc = ckpt_values_scan(c, &s, e);
	if (r.what.err)
		rc = err_nomem(e);
	buf_release(&r.what);
	return rc ? rc : text_glob_check(r.glob_steps, "the allow options", e);
}

int ckpt_values_check_sized(struct ckpt *c, struct ckpt_values_check *k, size_t size,
			    struct ckpt_err *e)
{
	struct ckpt_values_check ours;
	int rc = SIZED_TAKE(ours, k, size, "ckpt_values_check", e);

	if (rc)
		return rc;
	if (!(ours.max_abs >= 0)) /* NaN, too: no element would ever exceed it */
		return err_set(e, EINVAL, "max_abs is %g: a limit is a number above 0",
			       ours.max_abs);
	rc = check(c, &ours, e);
	SIZED_GIVE(k, size, ours);
	return rc;
}
