/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/cleanup.h"
#include "base/err.h"
#include <ckptfs/ckpt_tensor.h>
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIMS = CKPT_MAX_DIMS };

struct slice {
	uint64_t start[MAX_DIMS], stop[MAX_DIMS], step[MAX_DIMS];
	bool drop[MAX_DIMS];
};

static void skip_blanks(const char **s)
{
	*s += strspn(*s, " ");
}

/* Parses a number, if there is one; a negative one counts from the end, as in Python. */
static bool take_number(const char **s, int64_t *ret)
{
	char *end;

	skip_blanks(s);
	errno = 0;
	*ret = strtoll(*s, &end, 10);
	if (end == *s || errno || strchr(" +", **s))
		return false;
	*s = end;
	skip_blanks(s);
	return true;
}

static uint64_t clamp(int64_t i, uint64_t n)
{
	if (i < 0)
		return (uint64_t) - (i + 1) + 1 > n ? 0 : n - (uint64_t)-i;
	return (uint64_t)i > n ? n : (uint64_t)i;
}

static int bad_slice(const char *all, const char *at, struct ckpt_err *e)
{
	return err_set(e, EINVAL,
		       "slice '%s': expected something like '[0:4, ::128, 3]', found %s%.40s%s",
		       all, *at ? "'" : "", *at ? at : "its end", *at ? "'" : "");
}

/* Parses the part for one dimension of n elements: "3", "1:4", "::2", ":". */
static int take_part(const char *all, const char **s, uint64_t n, struct slice *ret, size_t k,
		     struct ckpt_err *e)
{
	int64_t number;
	bool any = take_number(s, &number);

	if (any && **s != ':') {
		if (number < 0 ? (uint64_t) - (number + 1) >= n : (uint64_t)number >= n)
			return err_set(e, EINVAL,
				       "slice '%s': %lld is outside dimension %zu, which has %llu",
				       all, (long long)number, k, (unsigned long long)n);
		ret->start[k] = clamp(number, n);
		ret->stop[k] = ret->start[k] + 1;
		ret->drop[k] = true;
		return 0;
	}
	if (any)
		ret->start[k] = clamp(number, n);
	if (**s != ':')
		return bad_slice(all, *s, e);
	(*s)++;
	if (take_number(s, &number))
		ret->stop[k] = clamp(number, n);
	if (**s == ':') {
		(*s)++;
		if (take_number(s, &number)) {
			if (number < 1)
				return err_set(e, EINVAL,
					       "slice '%s': a step must be at least 1, found %lld",
					       all, (long long)number);
			ret->step[k] = (uint64_t)number;
		}
	}
	if (ret->stop[k] < ret->start[k])
		ret->stop[k] = ret->start[k];
	return 0;
}

static size_t count_parts(const char *s)
{
	size_t n = 1;

	for (; *s; s++)
		n += *s == ',';
	return n;
}

/* text: a slice as in Python, with or without brackets; NULL: the whole tensor. */
static int parse_slice(const char *text, const struct ckpt_tensor *t, struct slice *ret,
		       struct ckpt_err *e)
{
	const char *s = text;
	bool bracket, dots = false;
	size_t k = 0;

	for (size_t i = 0; i < t->n_dims; i++) {
		ret->stop[i] = t->shape[i];
		ret->step[i] = 1;
	}
	if (!text)
		return 0;
	skip_blanks(&s);
	bracket = *s == '[';
	s += bracket;
	for (;; s++) {
		int rc;

		skip_blanks(&s);
		if (!strncmp(s, "...", 3)) {		  /* stands for all other dimensions */
			size_t more = count_parts(s) - 1; /* after the dots */

			if (dots || k + more > t->n_dims)
				return bad_slice(text, s, e);
			dots = true;
			k = t->n_dims - more;
			s += 3;
			skip_blanks(&s);
		} else {
			if (k == t->n_dims)
				return err_set(e, EINVAL,
					       "slice '%s' has more parts than the tensor has "
					       "dimensions (%zu)",
					       text, t->n_dims);
			rc = take_part(text, &s, t->shape[k], ret, k, e);
			if (rc)
				return rc;
			k++;
		}
		if (*s != ',')
			break;
	}
	if (bracket && *s++ != ']')
		return bad_slice(text, s - 1, e);
	skip_blanks(&s);
	return *s ? bad_slice(text, s, e) : 0;
}

static int head_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct ckpt_text what = { .form = o->json   ? CKPT_TEXT_JSON
					  : o->bits ? CKPT_TEXT_BITS
						    : CKPT_TEXT_NUMPY };
	const char *name = o->args[1];
	autofree char *text = NULL;
	struct ckpt_err e = { 0 };
	struct cmd_named named;
	struct slice s = { 0 };
	struct ckpt_tensor t;
	size_t len;
	int64_t i;

	if (o->json && o->bits) {
		(void)err_set(&e, EINVAL, "options 'bits' and 'json' cannot be combined");
		return cmd_fail(&e);
	}
	if (cmd_open(o->args[0], o, &(struct cmd_how){ CMD_WORDS("allow_missing"), NULL }, &c, &e))
		return cmd_fail_open(o, &e);
	if (cmd_look_up(c, name, &named, &e)) {
		(void)err_wrap(&e, "head");
		return cmd_fail(&e);
	}
	i = named.tensor;
	if (i < 0) {
		(void)err_set(
			&e, EINVAL,
			"head: '%s' is an object, not a tensor; 'ckptfs info' prints its value",
			name);
		return cmd_fail(&e);
	}
	ckpt_tensor(c, (uint64_t)i, &t);
	if (t.n_dims > MAX_DIMS)
		(void)err_set(&e, E2BIG, "tensor '%s' has more than %d dimensions", name, MAX_DIMS);
	else if (!parse_slice(o->args[2], &t, &s, &e)) {
		what.start = s.start;
		what.stop = s.stop;
		what.step = s.step;
		what.drop = s.drop;
		(void)ckpt_text(c, (uint64_t)i, &what, &text, &len, &e);
	}
	if (e.code) {
		(void)err_wrap(&e, "head");
		return cmd_fail(&e);
	}
	cmd_write(text, len);
	(void)putchar('\n');
	return cmd_finish(STATUS_DONE);
}

const struct command command_head = {
	.name = "head",
	.usage = "CKPT FQN [SLICE]",
	.complete = "fn",
	.summary = "Print elements of a tensor, as NumPy prints them",
	.examples = "  $ ckptfs head run/step-1000 model.norm.weight '[:4]'\n",
	.details = "SLICE is written as in Python: '[0:4, ::128]'. Reads no elements but those "
		   "that it prints.\n",
	.words = WORDS_TENSORS | WORDS_CACHE | WORDS_QUIET | WORDS_CONFINED | WORDS_HEAD |
		 WORDS_JSON,
	.min_args = 2,
	.max_args = 3,
	.checkpoints = 1,
	.run = head_run,
};
