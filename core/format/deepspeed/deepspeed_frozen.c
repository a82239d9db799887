/* SPDX-License-Identifier: Apache-2.0 */
/* Frozen parameters: no optimizer has them, so the model states have their elements. */
#include "base/checked.h"
#include "format/deepspeed/deepspeed_states.h"

#include <string.h>

/* dict[key], which is probably pair number `at`. */
static int lookup(struct ds_open *o, const struct pk_value *dict, const struct pk_str *key,
		  size_t at, const struct pk_value **ret, struct ckpt_err *e)
{
	size_t n = pk_dict_len(dict);

	*ret = NULL;
	if (at < n) {
		const struct pk_value *k = &dict->n->v[2 * at];

		if (k->type == PK_STR && k->s->len == key->len &&
		    !memcmp(k->s->data, key->data, key->len)) {
			*ret = k + 1;
			return 0;
		}
	}
	if (torch_file_spend(&o->file, n, e))
		return -e->code;
	*ret = n ? pk_get_n(dict, key->data, key->len) : NULL;
	return 0;
}

int ds_read_frozen_names(struct ds_rank *x, struct ds_open *o, size_t files, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "frozen_param_shapes");
	uint64_t n;
	int rc = v ? ds_read_group(x, o, v, &x->frozen, e) : 0;

	if (rc || !v)
		return rc;
	if (ckd_mul(&n, (uint64_t)x->frozen.n, (uint64_t)files))
		return err_nomem(e);
	x->fragments = arena_array(&x->d->arena, n + 1, sizeof(*x->fragments));
	x->frozen_dtype = arena_array(&x->d->arena, x->frozen.n + 1, sizeof(*x->frozen_dtype));
	x->frozen_samples = arena_array(&x->d->arena, files + 1, sizeof(*x->frozen_samples));
	return x->fragments && x->frozen_dtype && x->frozen_samples
		       ? ds_mark_group(x, &x->frozen, true, e)
		       : err_nomem(e);
}

/*
 * Reads frozen parameters. ZeRO 3: every file has a part of each; otherwise they are whole, and
 * `module` may have them as well.
 */
int ds_read_frozen(struct ds_rank *x, struct ds_open *o, size_t file, size_t files,
		   struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "frozen_param_fragments"), *found;
	int rc = 0;

	for (size_t i = 0; !rc && i < x->frozen.n; i++) {
		const struct ds_param *p = &x->frozen.params[i];
		struct ds_tensor t = { .name = p->name, .stage = x->stage, .t = x->t };
		struct ds_piece *piece = &x->fragments[i * files + file];
		enum ckpt_dtype dtype;

		rc = lookup(o, v, p->name, i, &found, e);
		if (rc || !found)
			continue;
		if (!x->sharded) {
			rc = ds_tensor_of(x->d, o, found, &t, e);
			if (!rc)
				rc = ds_add(x->d, &t, e);
			continue;
		}
		rc = ds_flat_of(x->d, o, found, p->name->data, piece, &dtype, e);
		if (!rc && files > 1)
			rc = ds_sample(o, piece, dtype, &x->frozen_samples[file], e);
		if (!file)
			x->frozen_dtype[i] = dtype;
		else if (!rc && dtype != x->frozen_dtype[i])
			piece->numel = 0; /* reported later, as if it were missing */
	}
	return rc;
}

/* Joins ZeRO 3's frozen parameters from the parts in all files. */
int ds_add_frozen(struct ds_rank *x, struct ckpt_err *e)
{
	size_t files, same[2];
	const struct ds_file *f = ds_files_of(x->d, DS_MODEL, x->mp, &files);
	int rc = x->frozen.n ? ds_find_copy(x->frozen_samples, files, same, e) : 0;

	if (rc > 0)
		return ds_refuse(x->d,
				 "'%.120s' and '%.120s' hold the same parts of frozen parameters: "
				 "one of them has another rank's file in its place; restore it",
				 f[same[0]].path, f[same[1]].path);
	for (size_t i = 0; !rc && x->sharded && i < x->frozen.n; i++) {
		const struct ds_param *p = &x->frozen.params[i];
		const struct ds_piece *piece = &x->fragments[i * files];
		uint64_t each = p->numel / files + (p->numel % files != 0);
		struct ds_column *c = arena_array(&x->d->arena, 1, sizeof(*c));
		struct ds_tensor t = { .name = p->name,
				       .shape = p->shape,
				       .n_dims = p->n_dims,
				       .numel = p->numel,
				       .dtype = x->frozen_dtype[i],
				       .column = c,
				       .stage = x->stage,
				       .t = x->t };
		bool whole = true;

		if (!c)
			return err_nomem(e);
		*c = (struct ds_column){
			.dtype = t.dtype, .by_parameter = true, .n = (uint32_t)files, .piece = piece
		};
		for (size_t r = 0; r < files; r++) /* the last ones are padded */
			whole &= piece[r].numel == each;
		if (!whole)
			rc = ds_miss(x->d, "parts of frozen parameter '%.100s' are missing",
				     p->name->data);
		else if (t.dtype != CKPT_DTYPE_NONE)
			rc = ds_add(x->d, &t, e);
	}
	return rc;
}
