/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the files of a checkpoint.
 *
 *	DIR/latest              the name of a tag
 *	DIR/TAG/..._states.pt   a checkpoint; D, the number of a data-parallel rank, is not padded
 *	DIR/TAG/zero/FQN/       fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt: a Universal checkpoint
 *	DIR/TAG/zero/optimizer_state.pt	options of the optimizer of a Universal checkpoint
 *
 * Both DIR and DIR/TAG are accepted. Without `latest`, DIR is accepted if exactly one of its
 * directories is a checkpoint.
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/deepspeed/deepspeed.h"
#include "source/place.h"
#include "source/source.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char latest_name[] = "latest";
static const char universal_dir[] = "zero/";
static const char options_name[] = "optimizer_state.pt";

enum {
	MAX_DIGITS = 8, /* of a rank */
	MAX_FILES = 1000000,
	MAX_DIRS = 1000, /* directories examined if there is no `latest` */
	MAX_TAG = 255,	 /* bytes */
};

/* ---- names ---- */

static bool parse_model(const char *s, struct ds_file *f)
{
	f->sharded = text_take(&s, "zero_pp_rank_");
	if (f->sharded && !(text_take_number(&s, MAX_DIGITS, &f->rank) && text_take(&s, "_")))
		return false;
	return text_take(&s, "mp_rank_") && text_take_number(&s, MAX_DIGITS, &f->mp) &&
	       !strcmp(s, "_model_states.pt");
}

static bool parse_layer(const char *s, struct ds_file *f)
{
	if (!text_take(&s, "layer_") || !text_take_number(&s, MAX_DIGITS, &f->layer))
		return false;
	if (!strcmp(s, "-model_states.pt"))
		return true;
	return text_take(&s, "-model_") && text_take_number(&s, MAX_DIGITS, &f->mp) &&
	       !strcmp(s, "-model_states.pt");
}

static bool parse_expert(const char *s, struct ds_file *f)
{
	(void)(text_take(&s, "layer_") && text_take_number(&s, MAX_DIGITS, &f->layer) &&
	       text_take(&s, "_"));
	return text_take(&s, "expert_") && text_take_number(&s, MAX_DIGITS, &f->rank) &&
	       text_take(&s, "_mp_rank_") && text_take_number(&s, MAX_DIGITS, &f->mp) &&
	       !strcmp(s, "_model_states.pt");
}

static bool parse_optim(const char *s, struct ds_file *f)
{
	f->prefix = text_take(&s, "bf16_") ? DS_BF16 : text_take(&s, "fp16_") ? DS_FP16 : DS_PLAIN;
	return text_take(&s, "zero_pp_rank_") && text_take_number(&s, MAX_DIGITS, &f->rank) &&
	       text_take(&s, "_mp_rank_") && text_take_number(&s, MAX_DIGITS, &f->mp) &&
	       !strcmp(s, "_optim_states.pt");
}

static bool parse_expp(const char *s, struct ds_file *f)
{
	return text_take(&s, "expp_rank_") && text_take_number(&s, MAX_DIGITS, &f->rank) &&
	       text_take(&s, "_mp_rank_") && text_take_number(&s, MAX_DIGITS, &f->mp) &&
	       !strcmp(s, "_optim_states.pt");
}

/* [TAG/]zero/FQN/KEY.pt */
static bool parse_universal(const char *path, struct ds_file *f)
{
	const char *base = strrchr(path, '/'), *fqn = base, *s = path;
	size_t n = base ? strlen(base) : 0;

	if (n < sizeof("/x.pt") - 1 || strcmp(base + n - 3, ".pt") != 0)
		return false;
	while (fqn > path && fqn[-1] != '/')
		fqn--;
	if (strncmp(path, universal_dir, strlen(universal_dir)) != 0)
		s = strchr(path, '/') + 1;
	if (!text_take(&s, universal_dir) || s != fqn)
		return false;
	f->fqn = fqn;
	f->fqn_len = (size_t)(base - fqn);
	return true;
}

/* [TAG/]zero/optimizer_state.pt */
static bool is_options(const char *path, const char *base)
{
	size_t dir = (size_t)(base - path), n = strlen(universal_dir);

	return !strcmp(base, options_name) && dir >= n && !memcmp(base - n, universal_dir, n) &&
	       (dir == n || base[-1 - (ptrdiff_t)n] == '/');
}

enum ds_kind ds_file_parse(const char *path, struct ds_file *ret)
{
	static bool (*const parsers[])(const char *s, struct ds_file *f) = {
		[DS_MODEL] = parse_model, [DS_LAYER] = parse_layer, [DS_EXPERT] = parse_expert,
		[DS_OPTIM] = parse_optim, [DS_EXPP] = parse_expp,
	};
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	enum ds_kind kind = DS_NONE;

	*ret = (struct ds_file){ .path = path, .base = base };
	if (parse_universal(path, ret))
		kind = DS_UNIVERSAL;
	else if (is_options(path, base))
		kind = DS_OPTIONS;
	else if (!strcmp(path, latest_name))
		kind = DS_LATEST;
	for (size_t i = 0; kind == DS_NONE && i <= DS_EXPP; i++) {
		*ret = (struct ds_file){ .path = path, .base = base };
		if (parsers[i](base, ret))
			kind = (enum ds_kind)i;
	}
	ret->kind = kind;
	return kind;
}

/* ---- directories ---- */

struct listing {
	struct name_list *files;
	const char *prefix; /* "" or "TAG/" */
	size_t n[DS_NONE];
	bool zero; /* a directory or file named "zero" exists */
};

static int add_path(struct name_list *l, const char *dir, const char *name, struct ckpt_err *e)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s%s", dir, name) >= (int)sizeof(path))
		return err_set(e, ENAMETOOLONG, "'%.100s%.100s...' is too long a name", dir, name);
	if (l->n == MAX_FILES)
		return err_set(e, EFBIG, "the checkpoint has more than %d files", MAX_FILES);
	return name_list_add(l, path, e);
}

static int add_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct listing *l = arg;
	struct ds_file f;
	enum ds_kind what;

	if (kind != PLACE_FILE)
		l->zero |= !strcmp(name, "zero");
	if (kind == PLACE_DIR)
		return 0;
	what = ds_file_parse(name, &f);
	if (what >= DS_UNIVERSAL)
		return 0;
	l->n[what]++;
	return add_path(l->files, l->prefix, name, e);
}

/* Collects the files of zero/FQN/, and zero/optimizer_state.pt. */
struct zero_listing {
	struct name_list *dirs, *files;
	const char *dir; /* with a slash at its end */
};

static int add_zero_dir(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct zero_listing *z = arg;

	if (kind != PLACE_DIR && !strcmp(name, options_name))
		return add_path(z->files, z->dir, name, e);
	return kind == PLACE_DIR || kind == PLACE_UNKNOWN ? add_path(z->dirs, "", name, e) : 0;
}

static int add_zero_file(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct zero_listing *z = arg;
	size_t n = strlen(name);

	if (kind == PLACE_DIR || n <= 3 || strcmp(name + n - 3, ".pt") != 0)
		return 0;
	return add_path(z->files, z->dir, name, e);
}

static int list_zero(struct place *place, const char *prefix, struct name_list *files,
		     struct ckpt_err *e)
{
	struct name_list dirs CLEANUP(name_list_release) = { 0 };
	char dir[PATH_MAX], root[PATH_MAX + 1];
	struct zero_listing z = { .dirs = &dirs, .files = files, .dir = root };
	int rc;

	(void)snprintf(dir, sizeof(dir), "%szero", prefix);
	(void)snprintf(root, sizeof(root), "%s/", dir);
	rc = place_list(place, dir, add_zero_dir, &z, e);
	rc = rc == -ENOTDIR ? 0 : rc;
	for (size_t i = 0; !rc && i < dirs.n; i++) {
		char within[PATH_MAX + 1];

		if (snprintf(dir, sizeof(dir), "%szero/%s", prefix, dirs.v[i]) >= (int)sizeof(dir))
			return err_set(e, ENAMETOOLONG, "'%szero/%.100s...' is too long a name",
				       prefix, dirs.v[i]);
		(void)snprintf(within, sizeof(within), "%s/", dir);
		z.dir = within;
		rc = place_list(place, dir, add_zero_file, &z, e);
		rc = rc == -ENOTDIR ? 0 : rc;
	}
	return rc;
}

/* Is the directory with this prefix ("" or "TAG/") a checkpoint? */
static int look_into(struct place *place, const char *prefix, struct name_list *files,
		     struct ckpt_err *e)
{
	struct listing l = { .files = files, .prefix = prefix };
	size_t len = strlen(prefix);
	char dir[PATH_MAX] = ".";
	int rc;

	if (len > sizeof(dir))
		return 0;
	if (len)
		(void)snprintf(dir, sizeof(dir), "%.*s", (int)len - 1, prefix);
	rc = place_list(place, dir, add_file, &l, e);
	if (rc)
		return rc;
	if (!l.n[DS_MODEL]) {
		if (l.n[DS_OPTIM] || l.n[DS_LAYER])
			return err_set(e, ENOENT,
				       "DeepSpeed's '%smp_rank_00_model_states.pt' is missing: it "
				       "says what the other files hold",
				       prefix);
		return 0;
	}
	rc = l.zero ? list_zero(place, prefix, files, e) : 0;
	return rc ? rc : 1;
}

struct search {
	struct place *place;
	struct name_list dirs;
};

static int add_dir(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct search *s = arg;

	if ((kind != PLACE_DIR && kind != PLACE_UNKNOWN) || *name == '.')
		return 0;
	return s->dirs.n == MAX_DIRS ? 1 : name_list_add(&s->dirs, name, e);
}

/* Without `latest`: the only directory that is a checkpoint. */
static int look_for_one(struct place *place, struct name_list *files, struct ckpt_err *e)
{
	struct search s = { .place = place };
	size_t found = 0;
	int rc = place_list(place, ".", add_dir, &s, e);

	for (size_t i = 0; rc >= 0 && i < s.dirs.n && found < 2; i++) {
		struct name_list here CLEANUP(name_list_release) = { 0 };
		struct ckpt_err why = { 0 };
		char prefix[PATH_MAX];

		if (snprintf(prefix, sizeof(prefix), "%s/", s.dirs.v[i]) >= (int)sizeof(prefix))
			continue;
		rc = look_into(place, prefix, &here, &why);
		if (rc > 0 && !found++) {
			struct name_list other = *files;

			*files = here;
			here = other;
		}
		rc = err_if_external(rc, &why, e);
	}
	name_list_release(&s.dirs);
	if (rc < 0 || found == 1)
		return rc < 0 ? rc : 1;
	name_list_release(files);
	return 0;
}

/* The contents of `latest`, without surrounding white space. 0: there is no such file. */
static int read_latest(struct place *place, char tag[static MAX_TAG + 1], struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	char text[MAX_TAG + 1];
	struct place_seen seen;
	int rc = place_look(place, latest_name, &seen, e);
	int64_t n;

	if (rc <= 0 || seen.kind != PLACE_FILE)
		return rc < 0 ? rc : 0;
	rc = place_file(place, latest_name, &file, e);
	if (rc)
		return rc;
	n = source_read(file, text, MAX_TAG, 0, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", latest_name);
	text[n] = 0;
	for (n = (int64_t)strlen(text); n && strchr(" \t\r\n", text[n - 1]); n--)
		text[n - 1] = 0;
	(void)snprintf(tag, MAX_TAG + 1, "%s", text + strspn(text, " \t\r\n"));
	return 1;
}

static bool is_a_name(const char *tag)
{
	return *tag && !strchr(tag, '/') && strcmp(tag, ".") != 0 && strcmp(tag, "..") != 0;
}

int ds_probe(struct place *place, struct name_list *files, struct ckpt_err *e)
{
	char tag[MAX_TAG + 1], prefix[MAX_TAG + 3];
	struct place_seen seen;
	int rc = look_into(place, "", files, e);

	if (rc)
		return rc;
	rc = read_latest(place, tag, e);
	if (rc < 0)
		return rc;
	if (!rc)
		return look_for_one(place, files, e);
	if (!is_a_name(tag)) {
		struct search s = { .place = place };

		/*
		 * With directories beside it, `latest` may belong to a run, whose trainer uses it
		 * for something else.
		 */
		rc = place_list(place, ".", add_dir, &s, e);
		if (rc >= 0 && !s.dirs.n)
			rc = err_set(
				e, ERR_CORRUPT,
				"'%s' names '%.100s', which is not a directory beside it: name "
				"the checkpoint's own directory",
				latest_name, tag);
		name_list_release(&s.dirs);
		return rc < 0 ? rc : 0;
	}
	rc = place_look(place, tag, &seen, e);
	if (rc <= 0 || seen.kind != PLACE_DIR)
		return rc < 0 && rc != -ENOENT ? rc : 0;
	(void)snprintf(prefix, sizeof(prefix), "%s/", tag);
	rc = look_into(place, prefix, files, e);
	return rc > 0 && name_list_add(files, latest_name, e) ? -e->code : rc;
}
