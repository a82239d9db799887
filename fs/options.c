/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind {
	FLAG,	/* bool */
	TEXT,	/* const char * */
	LIST,	/* const char **, grows */
	SIZE,	/* uint64_t, "256MiB" */
	NUMBER, /* uint64_t */
	COUNT,	/* NUMBER that is not 0 */
	LEVEL,	/* COUNT that may be left out: DEFAULT_LEVEL */
};

enum { DEFAULT_LEVEL = 3 }; /* of zstd, as torch's */

struct word {
	const char *name; /* with underscores; "" for one that is only a letter */
	char letter;
	enum kind kind;
	unsigned group;
	size_t at;
	const char *value; /* what --help calls it */
	const char *help;  /* NULL: not shown */
};

#define AT(field) offsetof(struct options, field)

static const struct word words[] = {
	{ "include", 0, LIST, WORDS_OPEN, AT(include), "GLOB", "only FQNs that match; repeatable" },
	{ "exclude", 0, LIST, WORDS_OPEN, AT(exclude), "GLOB", "no FQNs that match; repeatable" },
	{ "rename", 0, TEXT, WORDS_OPEN, AT(rename), "FILE",
	  "rules for FQNs, one s/REGEX/REPLACEMENT/ per line" },
	{ "weights", 0, TEXT, WORDS_OPEN, AT(weights), "PREFIX",
	  "the FQNs that are the model of hf/, pt/, ranks/" },
	{ "dtype", 0, TEXT, WORDS_OPEN, AT(dtype), "TYPE",
	  "cast floating-point tensors to bf16, fp16 or fp32" },
	{ "assets", 0, TEXT, WORDS_OPEN, AT(assets), "DIR",
	  "show the files of DIR (config.json, ...) in hf/" },
	{ "shard_size", 0, SIZE, WORDS_OPEN, AT(shard_size), "SIZE",
	  "bytes of tensors in a file of hf/ (5GB) and gguf/" },
	{ "layout", 0, TEXT, WORDS_OPEN, AT(layout), "FILE",
	  "show in ranks/ what each rank of a mesh holds" },
	{ "recipe", 0, TEXT, WORDS_OPEN, AT(recipe), "NAME",
	  "make the model by a recipe: see 'help recipes'" },
	{ "experts", 0, TEXT, WORDS_OPEN, AT(experts), "HOW",
	  "experts of the model: fused in one tensor, split, or stored" },
	{ "gguf_dtype", 0, TEXT, WORDS_OPEN, AT(gguf_dtype), "TYPE",
	  "matrices of gguf/ as f32, f16, bf16 or q8_0 (the model's)" },
	{ "index", 0, TEXT, WORDS_OPEN | WORDS_HOW, AT(index), "PATH",
	  "where the chunk index is kept; :memory: keeps none" },
	{ "allow_missing", 0, FLAG, WORDS_OPEN, AT(allow_missing), NULL,
	  "accept incomplete tensors; opening one is an I/O error" },
	{ "cache", 0, SIZE, WORDS_OPEN | WORDS_HOW, AT(cache), "SIZE",
	  "bound on decoded blocks in memory (256MiB)" },
	{ "threads", 0, COUNT, WORDS_MOUNT, AT(threads), "N",
	  "worker threads (four per CPU, 16 to 32)" },
	{ "io", 0, TEXT, WORDS_MOUNT, AT(io), "MODE",
	  "how files are read: auto, direct or cached" },
	{ "io_uring", 0, FLAG, WORDS_MOUNT, AT(io_uring), NULL,
	  "requests over io_uring, where libfuse and kernel have it" },
	{ "sandbox", 0, TEXT, WORDS_MOUNT, AT(sandbox), "MODE",
	  "what the daemon gives up: auto, on (or no mount) or off" },
	{ "allow_other", 0, FLAG, WORDS_MOUNT, AT(allow_other), NULL, "other users may read" },
	{ "allow_root", 0, FLAG, WORDS_MOUNT, AT(allow_root), NULL, "root may read" },
	{ "auto_unmount", 0, FLAG, WORDS_MOUNT, AT(auto_unmount), NULL,
	  "unmount when the daemon is killed" },
	{ "fsname", 0, TEXT, WORDS_MOUNT, AT(fsname), "NAME", "first column of mount(8) (CKPT)" },
	{ "subtype", 0, TEXT, WORDS_MOUNT, AT(subtype), "NAME", "type after \"fuse.\" (ckptfs)" },
	{ "uid", 0, NUMBER, WORDS_MOUNT, AT(uid), "N", "owner of all files (who mounts)" },
	{ "gid", 0, NUMBER, WORDS_MOUNT, AT(gid), "N", "group of all files (who mounts)" },
	{ "nosuid", 0, FLAG, WORDS_MOUNT, AT(nosuid), NULL, NULL },
	{ "nodev", 0, FLAG, WORDS_MOUNT, AT(nodev), NULL, NULL },
	{ "noexec", 0, FLAG, WORDS_MOUNT, AT(noexec), NULL, NULL },
	{ "context", 0, TEXT, WORDS_MOUNT, AT(context), NULL, NULL },
	{ "foreground", 'f', FLAG, WORDS_MOUNT, AT(foreground), NULL, "stay in the foreground" },
	{ "debug", 'd', FLAG, WORDS_MOUNT, AT(debug), NULL, "log every request; implies -f" },
	{ "verbose", 'v', FLAG, WORDS_MOUNT, AT(verbose), NULL, "log more" },
	{ "long", 'l', FLAG, WORDS_LS, AT(long_list), NULL,
	  "dtype, shape, bytes and chunks as well" },
	{ "fqn", 0, FLAG, WORDS_CAT, AT(fqn), NULL, "PATH is the raw FQN of a tensor or object" },
	{ "data", 0, FLAG, WORDS_CHECK, AT(data), NULL, "read every item and verify its CRCs" },
	{ "rebuild", 0, FLAG, WORDS_INDEX, AT(rebuild), NULL, "build it even when it is fresh" },
	{ "print", 0, FLAG, WORDS_INDEX, AT(print), NULL, "print its path and nothing else" },
	{ "model", 0, FLAG, WORDS_DIFF, AT(model), NULL,
	  "compare the models alone, under the names they have in hf/" },
	{ "values", 0, FLAG, WORDS_DIFF, AT(values), NULL,
	  "compare all elements: how many changed, and how much" },
	{ "jobs", 0, COUNT, WORDS_JOBS, AT(jobs), "N",
	  "worker threads (one per CPU, up to a few)" },
	{ "ranks", 0, COUNT, WORDS_RESHARD, AT(ranks), "N",
	  "how many ranks it is written for (those of --layout, else 1)" },
	{ "format", 0, TEXT, WORDS_RESHARD, AT(format), "FORMAT",
	  "dcp, hyperparallel or safetensors (dcp)" },
	{ "model", 0, FLAG, WORDS_RESHARD, AT(model), NULL,
	  "the model alone, under the names it has in hf/" },
	{ "zstd", 0, LEVEL, WORDS_RESHARD, AT(zstd), "LEVEL",
	  "dcp: compress every item, 1 to 22 (3)" },
	{ "threads", 0, COUNT, WORDS_RESHARD, AT(threads), "N",
	  "dcp: files of each rank, each with a thread of its own (1)" },
	{ "file_per_item", 0, FLAG, WORDS_RESHARD, AT(file_per_item), NULL,
	  "dcp: a file for every item" },
	{ "save_to_lowest_rank", 0, FLAG, WORDS_RESHARD, AT(save_to_lowest_rank), NULL,
	  "what several ranks have is the lowest's, not the least loaded's" },
	{ "overwrite", 0, FLAG, WORDS_RESHARD, AT(overwrite), NULL,
	  "replace the checkpoint at DST when the new one is complete" },
	{ "json", 0, FLAG, WORDS_JSON, AT(json), NULL, "JSON for programs" },
	{ "quiet", 'q', FLAG, WORDS_ANY, AT(quiet), NULL, "no progress bar" },
	{ "help", 'h', FLAG, WORDS_ANY, AT(help), NULL, "this text" },
};

/* What fstab and mount(8) say to every file system. A tree that is read-only, without programs,
 * devices and access times, whose modes are looked at, does all of it already or cannot. */
static const char *const junk[] = {
	"ro",	       "rw",
	"defaults",    "auto",
	"noauto",      "user",
	"nouser",      "users",
	"owner",       "group",
	"nofail",      "_netdev",
	"atime",       "noatime",
	"relatime",    "norelatime",
	"strictatime", "nostrictatime",
	"lazytime",    "nolazytime",
	"diratime",    "nodiratime",
	"suid",	       "dev",
	"exec",	       "async",
	"sync",	       "dirsync",
	"comment",     "silent",
	"loud",	       "default_permissions",
};

/* len bytes of s, in which '-' counts as '_'. */
static bool same(const char *name, const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!name[i] || name[i] != (s[i] == '-' ? '_' : s[i]))
			return false;
	return !name[len];
}

static bool is_junk(unsigned groups, const char *s, size_t len)
{
	if (!strncmp(s, "x-", 2) || !strncmp(s, "X-", 2)) /* comments of fstab(5) */
		return true;
	for (size_t i = 0; i < ARRAY_LEN(junk); i++)
		if (groups & WORDS_MOUNT && same(junk[i], s, len))
			return true;
	return false;
}

/* Words that -o understands; the rest are switches of a command. */
static bool in_list(const struct word *w)
{
	return w->group & (WORDS_OPEN | WORDS_MOUNT) && !w->letter;
}

static const struct word *find_word(unsigned groups, const char *s, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (words[i].group & groups && same(words[i].name, s, len))
			return &words[i];
	return NULL;
}

static int push(const char ***list, size_t n, const char *s, struct ckpt_err *e)
{
	const char **grown = realloc(*list, (n + 2) * sizeof(**list));

	if (!grown)
		return err_sys(e, ENOMEM, "options");
	grown[n] = s;
	grown[n + 1] = NULL;
	*list = grown;
	return 0;
}

static size_t list_len(const char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

static int set_number(const struct word *w, const char *value, uint64_t *ret, struct ckpt_err *e)
{
	char *end;

	errno = 0;
	*ret = strtoull(value, &end, 10);
	if (*value < '0' || *value > '9' || *end || errno || *ret > UINT32_MAX)
		return err_set(e, EINVAL, "option '%s': '%s' is not a number", w->name, value);
	if (!*ret && w->kind != NUMBER) /* to the library that is the default */
		return err_set(e, EINVAL, "option '%s': 0 is too small", w->name);
	return 0;
}

static int set_word(struct options *o, const struct word *w, const char *value, struct ckpt_err *e)
{
	void *at = (char *)o + w->at;

	if (w->kind == FLAG && value)
		return err_set(e, EINVAL, "option '%s' takes no value", w->name);
	if (w->kind == LEVEL && !value) {
		*(uint64_t *)at = DEFAULT_LEVEL;
		return 0;
	}
	if (w->kind != FLAG && !(value && *value))
		return err_set(e, EINVAL, "option '%s' needs a value", w->name);
	switch (w->kind) {
	case FLAG:
		*(bool *)at = true;
		return 0;
	case TEXT:
		*(const char **)at = value;
		return 0;
	case LIST:
		return push(at, list_len(*(const char ***)at), value, e);
	case SIZE:
		if (!text_parse_size(value, at))
			return err_set(e, EINVAL, "option '%s': '%s' is not a size", w->name,
				       value);
		if (!*(const uint64_t *)at)
			return err_set(e, EINVAL, "option '%s': 0 is too small", w->name);
		return 0;
	default:
		o->has_uid |= w->at == AT(uid);
		o->has_gid |= w->at == AT(gid);
		return set_number(w, value, at, e);
	}
}

/* Cut the next word off a list, in place: "a\,b,c" gives "a,b" and leaves "c". */
static char *next_of_list(char **list)
{
	char *start = *list, *from = start, *to = start;

	for (; *from && *from != ','; from++) {
		if (*from == '\\' && (from[1] == ',' || from[1] == '\\'))
			from++;
		*to++ = *from;
	}
	*list = *from ? from + 1 : from;
	*to = 0;
	return start;
}

static int parse_list_word(struct options *o, unsigned groups, unsigned flags, char *s,
			   struct ckpt_err *e)
{
	size_t len = strcspn(s, "=");
	const struct word *w;

	if (!len || is_junk(groups, s, len))
		return 0;
	w = find_word(groups, s, len);
	if (w && in_list(w))
		return set_word(o, w, s[len] ? s + len + 1 : NULL, e);
	if (flags & OPTIONS_SLOPPY)
		return 0;
	return err_set(e, EINVAL, "unknown option '%.*s'", (int)len, s);
}

static char *own(struct options *o, const char *s, struct ckpt_err *e)
{
	char **grown = realloc(o->owned, (o->n_owned + 1) * sizeof(*grown));
	char *copy = strdup(s);

	if (grown)
		o->owned = grown;
	if (!grown || !copy) {
		free(copy);
		(void)err_sys(e, ENOMEM, "options");
		return NULL;
	}
	o->owned[o->n_owned++] = copy;
	return copy;
}

int options_parse_list(struct options *o, unsigned groups, unsigned flags, const char *list,
		       struct ckpt_err *e)
{
	char *rest = own(o, list, e);

	if (!rest)
		return -ENOMEM;
	while (*rest) {
		int rc = parse_list_word(o, groups, flags, next_of_list(&rest), e);

		if (rc)
			return rc;
	}
	return 0;
}

/* "--word", "--word=value", "--word value": how many arguments were used, or -errno. */
static int parse_long(struct options *o, unsigned groups, const char *s, const char *next,
		      struct ckpt_err *e)
{
	size_t len = strcspn(s, "=");
	const struct word *w = find_word(groups, s, len);
	const char *value = s[len] ? s + len + 1 : NULL;
	int rc, used = 1;

	if (!w && len && is_junk(groups, s, len))
		return 1;
	if (!w || !len)
		return err_set(e, EINVAL, "unknown option '--%.*s'", (int)len, s);
	if (!value && next && w->kind != FLAG && w->kind != LEVEL) {
		value = next;
		used = 2;
	}
	rc = set_word(o, w, value, e);
	return rc ? rc : used;
}

int options_parse_word(struct options *o, unsigned groups, const char *s, struct ckpt_err *e)
{
	int used = strncmp(s, "--", 2) != 0 ? err_set(e, EINVAL, "unknown option '%s'", s)
					    : parse_long(o, groups, s + 2, NULL, e);

	return used < 0 ? used : 0;
}

static int parse_letters(struct options *o, unsigned groups, const char *s, struct ckpt_err *e)
{
	for (; *s; s++) {
		const struct word *w = NULL;

		for (size_t i = 0; i < ARRAY_LEN(words) && !w; i++)
			if (words[i].letter == *s && words[i].group & groups)
				w = &words[i];
		if (!w)
			return err_set(e, EINVAL, "unknown option '-%c'", *s);
		if (set_word(o, w, NULL, e))
			return -e->code;
	}
	return 1;
}

/* "-o list", "-olist": how many arguments were used, or -errno. */
static int parse_o(struct options *o, unsigned groups, unsigned flags, const char *s,
		   const char *next, struct ckpt_err *e)
{
	int rc;

	if (!*s && !next)
		return err_set(e, EINVAL, "option '-o' needs a list of words");
	rc = options_parse_list(o, groups, flags, *s ? s : next, e);
	return rc ? rc : *s ? 1 : 2;
}

int options_add_arg(struct options *o, const char *arg, struct ckpt_err *e)
{
	int rc = push(&o->args, o->n_args, arg, e);

	o->n_args += !rc;
	return rc;
}

int options_parse(struct options *o, unsigned groups, unsigned flags, int argc, char *const *argv,
		  struct ckpt_err *e)
{
	bool ended = false;

	for (int i = 0; i < argc;) {
		const char *s = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
		int used = 1;

		if (ended || s[0] != '-' || !s[1])
			used = options_add_arg(o, s, e) ? -ENOMEM : 1;
		else if (!strcmp(s, "--"))
			ended = true;
		else if (s[1] == '-')
			used = parse_long(o, groups, s + 2, next, e);
		else if (s[1] == 'o' && groups & WORDS_OPEN)
			used = parse_o(o, groups, flags, s + 2, next, e);
		else
			used = parse_letters(o, groups, s + 1, e);
		if (used < 0)
			return used;
		i += used;
	}
	return 0;
}

void options_release(struct options *o)
{
	for (size_t i = 0; i < o->n_owned; i++)
		free(o->owned[i]);
	free(o->owned);
	free(o->args);
	free(o->include);
	free(o->exclude);
	*o = (struct options){ 0 };
}

/* "word=value" and the NUL behind it; nothing for a word without one. */
static void add_value(struct buf *b, const struct word *w, const char *value)
{
	if (!value)
		return;
	buf_printf(b, "%s=%s", w->name, value);
	buf_add(b, "", 1);
}

void options_add_shape(const struct options *o, struct buf *b)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		const struct word *w = &words[i];
		const void *at = (const char *)o + w->at;
		char number[24];

		if (!(w->group & WORDS_OPEN) || w->group & WORDS_HOW)
			continue;
		switch (w->kind) {
		case FLAG:
			add_value(b, w, *(const bool *)at ? "" : NULL);
			break;
		case TEXT:
			add_value(b, w, *(const char *const *)at);
			break;
		case LIST:
			for (const char *const *v = *(const char *const *const *)at; v && *v; v++)
				add_value(b, w, *v);
			break;
		default:
			(void)snprintf(number, sizeof(number), "%llu",
				       (unsigned long long)*(const uint64_t *)at);
			add_value(b, w, *(const uint64_t *)at ? number : NULL);
		}
	}
}

void options_help(FILE *to, unsigned groups)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		const struct word *w = &words[i];
		char letter[] = "-x,", left[64];

		if (!w->help || !(w->group & groups))
			continue;
		letter[1] = w->letter;
		(void)snprintf(left, sizeof(left),
			       w->kind == LEVEL ? "%3s --%s[%s%s]" : "%3s --%s%s%s",
			       w->letter ? letter : "", w->name, w->value ? "=" : "",
			       w->value ? w->value : "");
		(void)fprintf(to, "  %-26s %s\n", left, w->help);
	}
}
