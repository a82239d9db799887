/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the files of a checkpoint.
 *
 *	{model,optim,extra_state}_world_size_W_rank_R.pt
 *	                        verl (verl/utils/checkpoint/fsdp_checkpoint_manager.py), EasyR1,
 *	                        SkyRL; fsdp_config.json beside them has "world_size"
 *	pytorch_model_fsdp[_I]_rankR.bin
 *	                        accelerate (src/accelerate/utils/fsdp_utils.py, save_fsdp_model
 *	                        with LOCAL_STATE_DICT); I is a model's number, 0 is left out
 *	NAME.rank_R.pth         DINOv2 (dinov2/fsdp/__init__.py); last_checkpoint.rank_R has the
 *	                        name of the newest file of rank R
 *
 * verl puts them into global_step_N/actor and .../critic, SkyRL into .../policy: in a directory
 * with those, the policy is used.
 */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/fsdp/fsdp.h"
#include "format/small_file.h"
#include "source/place.h"
#include "source/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config_name[] = "fsdp_config.json";
static const char last_name[] = "last_checkpoint.rank_0";
static const char *const inner_dirs[] = { "", "actor/", "policy/", "critic/" };

enum { MAX_DIGITS = 7, MAX_FILES = 1 << 20, MAX_JSON = 1 << 20, MAX_LAST = 255 };

/* ---- names ---- */

static bool parse_verl(const char *s, struct fsdp_file *f)
{
	static const char *const words[] = { "model", "optim", "extra_state" };

	f->kind = FSDP_OTHER;
	for (int i = 0; i < FSDP_OTHER && f->kind == FSDP_OTHER; i++)
		if (text_take(&s, words[i]))
			f->kind = (enum fsdp_kind)i;
	return f->kind != FSDP_OTHER && text_take(&s, "_world_size_") &&
	       text_take_number(&s, MAX_DIGITS, &f->world) && f->world && text_take(&s, "_rank_") &&
	       text_take_number(&s, MAX_DIGITS, &f->rank) && !strcmp(s, ".pt");
}

static bool parse_accelerate(const char *s, struct fsdp_file *f)
{
	const char *from = s;
	uint32_t index;

	if (!text_take(&s, "pytorch_model_fsdp_"))
		return false;
	if (text_take_number(&s, MAX_DIGITS, &index) && !text_take(&s, "_"))
		return false;
	f->stem = (size_t)(s - from);
	f->kind = FSDP_MODEL;
	return text_take(&s, "rank") && text_take_number(&s, MAX_DIGITS, &f->rank) &&
	       !strcmp(s, ".bin");
}

static bool parse_dinov2(const char *s, struct fsdp_file *f)
{
	static const char word[] = ".rank_";
	const char *dot = strstr(s, word);

	if (!dot || dot == s)
		return false;
	f->stem = (size_t)(dot - s);
	f->kind = FSDP_MODEL;
	s = dot + strlen(word);
	return text_take_number(&s, MAX_DIGITS, &f->rank) && !strcmp(s, ".pth");
}

enum fsdp_kind fsdp_file_parse(const char *path, struct fsdp_file *ret)
{
	static bool (*const parsers[])(const char *s, struct fsdp_file *f) = { parse_verl,
									       parse_accelerate,
									       parse_dinov2 };
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;

	for (size_t i = 0; i < sizeof(parsers) / sizeof(*parsers); i++) {
		*ret = (struct fsdp_file){ .path = path, .base = base };
		if (parsers[i](base, ret))
			return ret->kind;
	}
	*ret = (struct fsdp_file){ .path = path, .base = base, .kind = FSDP_OTHER };
	return FSDP_OTHER;
}

/* ---- choosing a checkpoint ---- */

/* The contents of a directory. */
struct listing {
	struct name_list names; /* owns the strings */
	struct fsdp_file *v;
	size_t n, cap;
	bool last;
};

static void listing_release(struct listing *l)
{
	name_list_release(&l->names);
	free(l->v);
}

static int add_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct listing *l = arg;
	struct fsdp_file f;

	l->last |= !strcmp(name, last_name);
	if (kind == PLACE_DIR || fsdp_file_parse(name, &f) == FSDP_OTHER)
		return 0;
	if (l->names.n == MAX_FILES)
		return err_set(e, EFBIG, "the checkpoint has more than %d files", MAX_FILES);
	if (!VEC_ROOM(l->v, l->cap, l->n + 1))
		return err_nomem(e);
	if (name_list_add(&l->names, name, e))
		return -e->code;
	(void)fsdp_file_parse(l->names.v[l->names.n - 1], &f);
	l->v[l->n++] = f;
	return 0;
}

static int by_rank(const void *ap, const void *bp)
{
	const struct fsdp_file *a = ap, *b = bp;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return a->rank != b->rank ? (a->rank > b->rank) - (a->rank < b->rank)
				  : strcmp(a->base, b->base);
}

static bool same_save(const struct fsdp_file *a, const struct fsdp_file *b)
{
	return a->world == b->world && a->stem == b->stem &&
	       (a->world || !strncmp(a->base, b->base, a->stem));
}

static int read_world(struct place *place, const char *dir, uint32_t *ret, struct ckpt_err *e)
{
	struct jdoc j CLEANUP(jdoc_release) = { 0 };
	struct place_seen seen;
	char path[PATH_MAX];
	int64_t n;
	int rc;

	(void)snprintf(path, sizeof(path), "%s%s", dir, config_name);
	rc = place_look(place, path, &seen, e);
	if (rc > 0 && small_file_json(place, path, MAX_JSON, &j, e))
		return -e->code;
	if (rc > 0 && jval_int(jval_get(jdoc_root(&j), "world_size"), &n) && n > 0 &&
	    n <= UINT32_MAX)
		*ret = (uint32_t)n;
	return rc;
}

static int read_last(struct place *place, const char *dir, char name[static MAX_LAST + 1],
		     struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	char path[PATH_MAX];
	int64_t n;
	int rc;

	(void)snprintf(path, sizeof(path), "%s%s", dir, last_name);
	rc = place_file(place, path, &file, e);
	if (rc)
		return rc;
	n = source_read(file, name, MAX_LAST, 0, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", path);
	name[n] = 0;
	name[strcspn(name, "\r\n")] = 0;
	return 0;
}

/*
 * For saves that share a directory: a file of the newest one. *ret_why is the reason for the
 * choice.
 */
static int choose(struct place *place, const char *dir, const struct listing *l,
		  struct fsdp_file *ret, const char **ret_why, struct ckpt_err *e)
{
	const struct fsdp_file *first = NULL, *other = NULL, *named = NULL;
	char last[MAX_LAST + 1] = "";
	uint32_t world = 0;

	for (size_t i = 0; i < l->n; i++) {
		if (l->v[i].kind != FSDP_MODEL)
			continue;
		if (!first)
			first = &l->v[i];
		else if (!same_save(first, &l->v[i]))
			other = &l->v[i];
	}
	if (other && first->world && read_world(place, dir, &world, e) < 0)
		return -e->code;
	if (other && l->last && read_last(place, dir, last, e))
		return -e->code;
	for (size_t i = 0; other && i < l->n; i++)
		if (l->v[i].kind == FSDP_MODEL &&
		    (l->v[i].world ? l->v[i].world == world : !strcmp(l->v[i].base, last)))
			named = &l->v[i];
	if (other && !named)
		return err_set(e, ERR_CORRUPT,
			       "'%.100s' and '%.100s' are from two different saves, and it is not "
			       "clear which one to open: move the files of one elsewhere",
			       first->base, other->base);
	if (!first)
		return err_set(e, ENOENT,
			       "'model_world_size_%u_rank_0.pt' is missing beside '%.100s'",
			       l->v[0].world, l->v[0].base);
	*ret = other ? *named : *first;
	if (other)
		*ret_why = named->world ? config_name : last_name;
	return 0;
}

static int add_path(struct name_list *l, const char *dir, const char *name, struct ckpt_err *e)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s%s", dir, name) >= (int)sizeof(path))
		return err_set(e, ENAMETOOLONG, "'%s%.100s...' is too long a name", dir, name);
	return name_list_add(l, path, e);
}

/*
 * Every rank must have a file, or part of the model would be missing. If the names do not tell the
 * number of ranks, the files' contents do.
 */
static int check_ranks(const struct fsdp_file *v, size_t n, struct ckpt_err *e)
{
	uint32_t found = 0, missing = UINT32_MAX;

	for (size_t i = 1; i < n; i++)
		if (v[i].kind == v[i - 1].kind && v[i].rank == v[i - 1].rank)
			return err_set(e, ERR_CORRUPT,
				       "'%.100s' and '%.100s' are of the same rank: one is from "
				       "another checkpoint",
				       v[i - 1].base, v[i].base);
	for (size_t i = 0; i < n && v[i].kind == FSDP_MODEL; i++, found++)
		if (v[i].rank != found && missing == UINT32_MAX)
			missing = found;
	if (v->world && found < v->world && missing == UINT32_MAX)
		missing = found;
	if (v->world && v[found - 1].rank >= v->world)
		return err_set(e, ERR_CORRUPT,
			       "'%.150s' is of a rank beyond the %u ranks of the save",
			       v[found - 1].base, v->world);
	if (missing == UINT32_MAX)
		return 0;
	if (v->world)
		return err_set(e, ENOENT,
			       "'model_world_size_%u_rank_%u.pt' is missing: the files of %u of %u "
			       "ranks are there",
			       v->world, missing, found, v->world);
	return err_set(e, ENOENT, "the file of rank %u is missing beside '%.150s'", missing,
		       v->base);
}

static int look_into(struct place *place, const char *dir, struct name_list *files,
		     struct ckpt_err *e)
{
	struct listing l CLEANUP(listing_release) = { 0 };
	const char *why = NULL;
	struct fsdp_file of = { 0 };
	char path[64] = ".";
	size_t n = 0;
	int rc;

	if (*dir)
		(void)snprintf(path, sizeof(path), "%.*s", (int)strlen(dir) - 1, dir);
	rc = place_list(place, path, add_file, &l, e);
	if (rc || !l.n)
		return *dir && (rc == -ENOENT || rc == -ENOTDIR) ? 0 : rc;
	rc = choose(place, dir, &l, &of, &why, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < l.n; i++) /* skip files of older saves */
		if (same_save(&of, &l.v[i]))
			l.v[n++] = l.v[i];
	qsort(l.v, n, sizeof(*l.v), by_rank);
	rc = check_ranks(l.v, n, e);
	for (size_t i = 0; !rc && i < n; i++)
		rc = add_path(files, dir, l.v[i].base, e);
	if (!rc && why)
		rc = add_path(files, dir, why, e);
	return rc ? rc : 1;
}

static int is_dir(struct place *place, const char *dir, struct ckpt_err *e)
{
	struct place_seen seen;
	char path[64];
	int rc;

	(void)snprintf(path, sizeof(path), "%.*s", (int)strlen(dir) - 1, dir);
	rc = place_look_at(place, path, &seen, e); /* does not follow links */
	return rc > 0 ? seen.kind == PLACE_DIR : rc;
}

int fsdp_probe(struct place *place, struct name_list *files, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof(inner_dirs) / sizeof(*inner_dirs); i++) {
		rc = *inner_dirs[i] ? is_dir(place, inner_dirs[i], e) : 1;
		if (rc > 0)
			rc = look_into(place, inner_dirs[i], files, e);
	}
	return rc;
}
