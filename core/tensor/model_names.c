/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/model_names.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "tensor/namelist.h"

#include <stdbool.h>
#include <string.h>

/*
 * Keys that a model may be below, in the order in which they are tried. Most may have anything
 * beside them; those that are `alone`, only training state and what is below `state`.
 */
static const struct {
	const char *key, *state;
	bool alone;
} model_keys[] = {
	{ "model", NULL, false },
	{ "state_dict", NULL, false },	     /* Lightning */
	{ "model_state_dict", NULL, false }, /* torch's tutorials */
	{ "state.model", "state", true },    /* Composer */
	{ "params", NULL, true },	     /* Flax, MaxText */
	{ "target", "state", true },	     /* T5X */
	{ "optimizer.target", NULL, true },  /* T5X, in msgpack */
};

static const char *const training_keys[] = { "optim",
					     "optimizer",
					     "optimizers",
					     "lr_scheduler",
					     "lr_schedulers",
					     "dataloader",
					     "train_state",
					     "opt_state",
					     "opt_states",
					     "optimizer_state",
					     "optimizer_states",
					     "optimizer_state_dict",
					     "last_optimizer_state",
					     "rng" };

static const char *const wrappers[] = { "module.", "_orig_mod.", "_fsdp_wrapped_module.",
					"_checkpoint_wrapped_module." };

/* Selects tensors: those below a key, all except training state, or all. */
struct choice {
	const char *key; /* NULL: no key */
	size_t key_len;
	bool top_only; /* the key must be the top-level one */
	bool all;
};

static bool below(const struct model_in *t, const char *key, size_t key_len)
{
	return t->len > key_len && t->fqn[key_len] == '.' && !memcmp(t->fqn, key, key_len);
}

static bool is_training_state(const struct model_in *t)
{
	const char *dot = t->len ? memchr(t->fqn, '.', t->len) : NULL;
	size_t len = dot ? (size_t)(dot - t->fqn) : t->len;

	for (size_t i = 0; i < ARRAY_LEN(training_keys); i++)
		if (bytes_are(t->fqn, len, training_keys[i]))
			return true;
	return false;
}

static bool chosen(const struct choice *c, const struct model_in *t)
{
	if (c->key)
		return below(t, c->key, c->key_len) && (!c->top_only || t->top == c->key_len);
	return c->all || !is_training_state(t);
}

static bool top_known(const struct model_in *t)
{
	return !t->len || (t->top && t->top <= t->len);
}

/* Does this tensor, next to "KEY.x", indicate that KEY is only part of a name? */
static bool speaks_against_key(const struct model_in *t, const char *key, const char *state)
{
	return !below(t, key, strlen(key)) && !is_training_state(t) &&
	       !(state && below(t, state, strlen(state))) && t->len && memchr(t->fqn, '.', t->len);
}

/* Is the model below this key? */
static bool choose_key(const struct model_in *in, size_t n, size_t i, struct choice *c)
{
	bool one = !strchr(model_keys[i].key, '.');
	size_t n_against = 0, n_below = 0;

	*c = (struct choice){ .key = model_keys[i].key,
			      .key_len = strlen(model_keys[i].key),
			      .top_only = one };
	for (size_t k = 0; k < n; k++) {
		c->top_only &= top_known(&in[k]);
		n_against += speaks_against_key(&in[k], c->key, model_keys[i].state);
	}
	for (size_t k = 0; k < n; k++)
		n_below += chosen(c, &in[k]);
	return n_below && !((model_keys[i].alone || !c->top_only) && n_against);
}

static struct choice choose(const struct model_in *in, size_t n)
{
	struct choice c;

	for (size_t i = 0; i < ARRAY_LEN(model_keys); i++)
		if (choose_key(in, n, i, &c))
			return c;
	return (struct choice){ 0 };
}

/* Writes the name without wrappers to out, which is emptied first. */
static void unwrap(const char *name, size_t len, struct buf *out)
{
	const char *s = name, *end = name + len;

	out->len = 0;
	while (s < end) {
		const char *dot = memchr(s, '.', (size_t)(end - s)), *next = dot ? dot + 1 : end;
		bool wrapper = false;

		for (size_t i = 0; i < ARRAY_LEN(wrappers) && !wrapper; i++)
			wrapper = strlen(wrappers[i]) == (size_t)(next - s) &&
				  !memcmp(wrappers[i], s, (size_t)(next - s));
		if (!wrapper)
			buf_add(out, s, (size_t)(next - s));
		s = next;
	}
}

static int add_names(const struct model_in *in, size_t n, const struct choice *c,
		     struct namelist *t, struct ckpt_err *e)
{
	size_t prefix = c->key ? c->key_len + 1 : 0;
	struct buf bare = BUF_INIT(UINT32_MAX);
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		const char *name = in[i].fqn + prefix;

		if (!chosen(c, &in[i]))
			continue;
		unwrap(name, in[i].len - prefix, &bare);
		if (bare.len != in[i].len - prefix)
			name = namelist_copy(t, bare.data, bare.len);
		if (bare.err || !name)
			rc = err_nomem(e);
		else
			rc = namelist_add(t, name, bare.len, (uint32_t)i, e);
	}
	buf_release(&bare);
	return rc;
}

static void stored_name(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct model_in *in = arg;

	*ret = in[index].fqn;
	*ret_len = in[index].len;
}

int model_names(const struct model_in *in, size_t n, const char *weights, struct namelist *ret,
		size_t *ret_prefix, struct ckpt_err *e)
{
	struct namelist t = { 0 };
	struct choice c = { .all = true };
	int rc;

	if (!weights) {
		c = choose(in, n);
	} else if (*weights) {
		size_t len = strlen(weights);

		c.key = weights;
		c.key_len = len - (weights[len - 1] == '.');
	}
	rc = add_names(in, n, &c, &t, e);
	if (!rc && !t.n && c.key)
		rc = err_set(e, EINVAL, "option 'weights': no tensor's name begins with '%.*s.'",
			     (int)c.key_len, c.key);
	if (!rc)
		rc = namelist_finish(&t, stored_name, in, e);
	if (rc) {
		namelist_release(&t);
		return rc;
	}
	*ret = t;
	if (ret_prefix)
		*ret_prefix = c.key ? c.key_len + 1 : 0;
	return 0;
}
