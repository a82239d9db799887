/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"
#include "tensor/model_names.h"
#include "tensor/namelist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 8 };

/* '|' ends the top-level key, if that is known. Names are in natural order. */
static const struct row {
	const char *in[MAX];
	const char *weights;
	size_t prefix;
	const char *want[MAX];
} rows[] = {
	/* Top-level keys are known. */
	{ { "model|.a.w", "model|.b", "optim|.a.w", "step|" }, NULL, 6, { "a.w", "b" } },
	{ { "model|.a", "ema|.a", "lm_head|.w" }, NULL, 6, { "a" } },
	{ { "model.a.w|", "model.b.w|", "lm_head.w|" },
	  NULL,
	  0,
	  { "lm_head.w", "model.a.w", "model.b.w" } },
	{ { "model.a.w|", "optim.a.w|" }, NULL, 0, { "model.a.w" } },
	{ { "net|.a", "optimizer|.a", "step|" }, NULL, 0, { "net.a", "step" } },
	{ { "model|", "x|" }, NULL, 0, { "model", "x" } },
	{ { "model|", "model|.a" }, NULL, 6, { "a" } },
	{ { "models|.a", "model_ema|.a" }, NULL, 0, { "model_ema.a", "models.a" } },
	{ { "model|.a", "" }, NULL, 6, { "a" } },
	{ { "a|", "" }, NULL, 0, { "", "a" } },
	/* Lightning, torch's tutorials, and Composer, whose key is below another. */
	{ { "state_dict|.a.w", "optimizer_states|.0.state.0.exp_avg", "loops|.x.y", "epoch|" },
	  NULL,
	  11,
	  { "a.w" } },
	{ { "model_state_dict|.a", "ema|.a", "loss|" }, NULL, 17, { "a" } },
	{ { "state|.model.a", "state|.optimizers.Adam.state.a", "rng|.0.cuda" },
	  NULL,
	  12,
	  { "a" } },
	{ { "state|.model.a", "net|.a" }, NULL, 0, { "net.a", "state.model.a" } },
	{ { "model|.a", "state_dict|.a" }, NULL, 6, { "a" } },
	{ { "state_dict.a.w", "lm_head.w" }, NULL, 0, { "lm_head.w", "state_dict.a.w" } },
	{ { "net|.a", "optimizer_state_dict|.a", "lr_schedulers|.0.a" }, NULL, 0, { "net.a" } },
	/* They are not. */
	{ { "model.a.w", "model.b.w", "optim.a.w" }, NULL, 6, { "a.w", "b.w" } },
	{ { "model.a.w", "optim.a.w", "step", "epoch" }, NULL, 6, { "a.w" } },
	{ { "model.a.w", "lm_head.w" }, NULL, 0, { "lm_head.w", "model.a.w" } },
	{ { "model.a.w", "lm_head.w", "optim.x", "step" },
	  NULL,
	  0,
	  { "lm_head.w", "model.a.w", "step" } },
	{ { "a.w", "b" }, NULL, 0, { "a.w", "b" } },
	{ { "model", "a.w" }, NULL, 0, { "a.w", "model" } },
	{ { "modelx.a", "model" }, NULL, 0, { "model", "modelx.a" } },
	{ { "model|.a.w", "lm_head.w" }, NULL, 0, { "lm_head.w", "model.a.w" } },
	{ { "model.a.w|", "b" }, NULL, 6, { "a.w" } },
	/* JAX's: Flax and MaxText, also below the items of Orbax; but not if only a part is
	 * that. */
	{ { "params|.params.a.w", "opt_state|.0.mu.w", "step|" }, NULL, 7, { "params.a.w" } },
	{ { "params.a", "opt_state.0.mu.a", "step" }, NULL, 7, { "a" } },
	{ { "params|.a", "train_state|.params.a" }, NULL, 7, { "a" } },
	{ { "params|.a" }, NULL, 7, { "a" } },
	{ { "params|.a", "batch_stats|.a", "opt_state|.a" },
	  NULL,
	  0,
	  { "batch_stats.a", "params.a" } },
	{ { "params|.a", "model|.a" }, NULL, 6, { "a" } },
	{ { "params|", "x|" }, NULL, 0, { "params", "x" } },
	/* T5X: its names are flat, or come from msgpack. */
	{ { "target.a.w", "state.param_states.a.w", "state.step" }, NULL, 7, { "a.w" } },
	{ { "target.a", "policy.a" }, NULL, 0, { "policy.a", "target.a" } },
	{ { "state.a", "params.b" }, NULL, 0, { "params.b", "state.a" } },
	{ { "optimizer|.target.a", "optimizer|.state.step" }, NULL, 17, { "a" } },
	{ { "optimizer|.target.a", "net|.a" }, NULL, 0, { "net.a" } },
	/* Training state. */
	{ { "optim", "optimizer.a", "optimizers.a", "lr_scheduler.a", "dataloader.a",
	    "train_state.a", "w" },
	  NULL,
	  0,
	  { "w" } },
	{ { "optim|.a", "train_state|" }, NULL, 0, { NULL } },
	{ { "optim_x.a", "opt.optim.a", "Optim.a" },
	  NULL,
	  0,
	  { "Optim.a", "opt.optim.a", "optim_x.a" } },
	{ { NULL }, NULL, 0, { NULL } },
	/* weights= */
	{ { "ema|.a", "model|.a", "ema|" }, "ema", 4, { "a" } },
	{ { "ema|.a", "model|.a", "emax|.a" }, "ema.", 4, { "a" } },
	{ { "a.b.c.d", "a.b.e", "a.bc.d", "a.b" }, "a.b", 4, { "c.d", "e" } },
	{ { "optim.state.w", "model.w" }, "optim.state", 12, { "w" } },
	{ { "a..b", "a.c" }, "a..", 3, { "b" } },
	{ { ".a", "b" }, ".", 1, { "a" } },
	{ { "model|.a", "optim|.a" }, "", 0, { "model.a", "optim.a" } },
	{ { "module.model.a", "module.model.b" }, "module.model", 13, { "a", "b" } },
	/* Wrappers. */
	{ { "model|._orig_mod.a.w", "model|.b._checkpoint_wrapped_module.w" },
	  NULL,
	  6,
	  { "a.w", "b.w" } },
	{ { "module._orig_mod.a",
	    "_fsdp_wrapped_module.b._fsdp_wrapped_module._orig_mod.c.module.d" },
	  NULL,
	  0,
	  { "a", "b.c.d" } },
	{ { "a.module", "module", "b._orig_mod" },
	  NULL,
	  0,
	  { "a.module", "b._orig_mod", "module" } },
	{ { "xmodule.a", "modulex.b", "a.my_orig_mod.c", "module..d" },
	  NULL,
	  0,
	  { ".d", "a.my_orig_mod.c", "modulex.b", "xmodule.a" } },
	{ { "module.layers.2", "layers.10" }, NULL, 0, { "layers.2", "layers.10" } },
};

struct input {
	struct model_in t[MAX];
	size_t n;
	char text[MAX][128];
};

static void read_row(const struct row *row, struct input *in)
{
	for (in->n = 0; in->n < MAX && row->in[in->n]; in->n++) {
		const char *s = row->in[in->n], *bar = strchr(s, '|');
		struct model_in *t = &in->t[in->n];
		size_t key = bar ? (size_t)(bar - s) : 0;
		char *to = in->text[in->n];

		(void)stpcpy(to, s);
		if (bar)
			memmove(to + key, to + key + 1, strlen(to + key));
		*t = (struct model_in){ to, strlen(to), (uint32_t)key };
	}
}

START_LOOP_TEST(the_model_is_found_and_called_as_it_calls_itself, ARRAY_LEN(rows))
{
	const struct row *row = &rows[_i];
	struct input in;
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };
	size_t prefix = 99, n = 0;

	read_row(row, &in);
	ck_assert_msg(!model_names(in.t, in.n, row->weights, &t, &prefix, &e), "%s", e.msg);
	for (; n < MAX && row->want[n]; n++) {
		ck_assert_uint_lt(n, t.n);
		ck_assert_uint_eq(t.v[n].len, strlen(row->want[n]));
		ck_assert_mem_eq(t.v[n].fqn, row->want[n], t.v[n].len);
		ck_assert_uint_lt(t.v[n].index, in.n);
	}
	ck_assert_uint_eq(t.n, n);
	ck_assert_uint_eq(prefix, row->prefix);
	namelist_release(&t);
}
END_TEST

static const struct {
	const char *in[MAX];
	const char *weights;
	int code;
	const char *says;
} refused[] = {
	{ { "model|.a" }, "ema", EINVAL, "option 'weights': no tensor's name begins with 'ema.'" },
	{ { "model|.a" },
	  "model.a",
	  EINVAL,
	  "option 'weights': no tensor's name begins with 'model.a.'" },
	{ { "model|.a" }, "mod.", EINVAL, "option 'weights': no tensor's name begins with 'mod.'" },
	{ { "a" }, ".", EINVAL, "option 'weights': no tensor's name begins with '.'" },
	{ { NULL }, "x", EINVAL, "option 'weights': no tensor's name begins with 'x.'" },
	{ { "model|.module.a", "model|.b", "model|.a" }, NULL, EEXIST, "would both be called 'a'" },
};

START_LOOP_TEST(what_cannot_be_named_is_refused, ARRAY_LEN(refused))
{
	struct row row = { .weights = refused[_i].weights };
	struct input in;
	struct namelist t = { .n = 42 };
	struct ckpt_err e = { 0 };
	size_t prefix = 99;

	memcpy(row.in, refused[_i].in, sizeof(row.in));
	read_row(&row, &in);
	ck_assert_int_eq(model_names(in.t, in.n, row.weights, &t, &prefix, &e), -refused[_i].code);
	ck_assert_int_eq(e.code, refused[_i].code);
	ck_assert_msg(strstr(e.msg, refused[_i].says), "%s", e.msg);
	if (e.code == EEXIST) {
		ck_assert_ptr_nonnull(strstr(e.msg, "'model.a'"));
		ck_assert_ptr_nonnull(strstr(e.msg, "'model.module.a'"));
	}
	ck_assert_uint_eq(t.n, 42);
	ck_assert_uint_eq(prefix, 99);
}
END_TEST

/* Leaves out wrappers: every element that is one, except the last. */
static size_t naive_unwrap(const char *s, size_t len, char *out)
{
	static const char *const wrappers[] = { "module", "_orig_mod", "_fsdp_wrapped_module",
						"_checkpoint_wrapped_module" };
	size_t n = 0, from = 0;

	for (size_t i = 0; i <= len; i++) {
		bool wrapper = false;

		if (i < len && s[i] != '.')
			continue;
		for (size_t k = 0; k < ARRAY_LEN(wrappers); k++)
			wrapper |= i < len && i - from == strlen(wrappers[k]) &&
				   !memcmp(s + from, wrappers[k], i - from);
		for (; from < i + (i < len); from++)
			if (!wrapper)
				out[n++] = s[from];
	}
	return n;
}

START_TEST(wrappers_go_wherever_they_are_an_element)
{
	static const char *const elements[] = { "a",	   "module",   "_orig_mod",
						"module2", "",	       "_fsdp_wrapped_module",
						"layers",  "_orig_mo", "_checkpoint_wrapped_module",
						"\xff" };
	struct rng r = rng_new();

	for (int i = 0; i < 20000; i++) {
		char fqn[256] = "", want[256];
		struct model_in in = { .fqn = fqn };
		struct namelist t = { 0 };
		struct ckpt_err e = { 0 };
		char *p = fqn;
		size_t n;

		for (uint64_t k = 1 + rng_below(&r, 6); k; k--) {
			p = stpcpy(p, elements[rng_below(&r, ARRAY_LEN(elements))]);
			if (k > 1)
				p = stpcpy(p, ".");
		}
		in.len = (size_t)(p - fqn);
		n = naive_unwrap(fqn, in.len, want);
		REQUIRE(!model_names(&in, 1, "", &t, NULL, &e));
		REQUIRE(t.n == 1 && t.v[0].len == n && !memcmp(t.v[0].fqn, want, n));
		namelist_release(&t);
	}
}
END_TEST

START_TEST(no_memory_is_an_error)
{
	char text[200][40];
	struct model_in in[200];
	int64_t before = fault_live();

	for (size_t i = 0; i < ARRAY_LEN(in); i++) {
		int n = snprintf(text[i], sizeof(text[i]), "model.module.layers.%zu", 500 - i);

		in[i] = (struct model_in){ text[i], (size_t)n, 5 };
	}
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct namelist t = { 0 };
		struct ckpt_err e = { 0 };
		int rc = model_names(in, ARRAY_LEN(in), NULL, &t, NULL, &e);

		namelist_release(&t);
		fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		ck_assert_int_eq(fault_live(), before);
	}
}
END_TEST

SUITE(model_names, .seconds = 30)
