/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include <ckptfs/ckpt.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind {
	FLAG,	/* bool */
	TEXT,	/* const char *; one of the words in .value, if that has a '|' */
	NUMBER, /* uint64_t */
	COUNT,	/* NUMBER that is not 0 */
	LEVEL,	/* COUNT whose value may be omitted: default_of */
	REAL,	/* double above 0 */
	LIST,	/* const char **, NULL-terminated; repeatable */
	OPEN,	/* for ckpt_open, with a value */
	OPEN_FLAG,
};

struct word {
	const char *name; /* with underscores; "" for an option that is only a letter */
	char letter;
	enum kind kind;
	unsigned group;
	size_t at;
	const char *value; /* what --help calls it */
	const char *help;  /* NULL: not shown */
};

#define AT(field) offsetof(struct options, field)

static const struct word words[] = {
	{ "threads", 0, COUNT, WORDS_MOUNT, AT(threads), "N",
	  "worker threads (default four per CPU, 16 to 32)" },
	{ "io", 0, TEXT, WORDS_MOUNT, AT(io), "auto|direct|cached", "how files are read" },
	{ "io_uring", 0, FLAG, WORDS_MOUNT, AT(io_uring), NULL,
	  "receive requests over io_uring, if libfuse and kernel support it" },
	{ "sandbox", 0, TEXT, WORDS_MOUNT, AT(sandbox), "auto|on|off",
	  "give up rights after mounting; on: fail if a part is missing" },
	{ "sandbox", 0, TEXT, WORDS_CONFINED, AT(sandbox), "auto|on|off",
	  "give up rights before reading; on: fail if a part is missing" },
	{ "allow_other", 0, FLAG, WORDS_MOUNT, AT(allow_other), NULL, "let other users read" },
	{ "allow_root", 0, FLAG, WORDS_MOUNT, AT(allow_root), NULL, "let root read" },
	{ "auto_unmount", 0, FLAG, WORDS_MOUNT, AT(auto_unmount), NULL,
	  "unmount also if the daemon is killed or crashes" },
	{ "fsname", 0, TEXT, WORDS_MOUNT, AT(fsname), "NAME",
	  "first column of mount(8) (default CKPT)" },
	{ "subtype", 0, TEXT, WORDS_MOUNT, AT(subtype), "NAME",
	  "type after \"fuse.\" (default ckptfs)" },
	{ "uid", 0, NUMBER, WORDS_MOUNT, AT(uid), "N",
	  "owner of all files (default: the mounting user)" },
	{ "gid", 0, NUMBER, WORDS_MOUNT, AT(gid), "N",
	  "group of all files (default: the mounting user's)" },
	{ "nosuid", 0, FLAG, WORDS_MOUNT, AT(nosuid), NULL, NULL },
	{ "nodev", 0, FLAG, WORDS_MOUNT, AT(nodev), NULL, NULL },
	{ "noexec", 0, FLAG, WORDS_MOUNT, AT(noexec), NULL, NULL },
	{ "context", 0, TEXT, WORDS_MOUNT, AT(context), NULL, NULL },
	{ "log", 0, TEXT, WORDS_MOUNT, AT(log), "FILE", "also add messages to this file" },
	{ "foreground", 'f', FLAG, WORDS_MOUNT, AT(foreground), NULL, "stay in the foreground" },
	{ "debug", 'd', FLAG, WORDS_MOUNT, AT(debug), NULL, "log every request; implies -f" },
	{ "verbose", 'v', FLAG, WORDS_MOUNT, AT(verbose), NULL, "log more" },
	{ "long", 'l', FLAG, WORDS_LS, AT(long_list), NULL,
	  "also show dtype, shape, bytes and chunks" },
	{ "human_readable", 'h', FLAG, WORDS_LS, AT(human), NULL,
	  "the same, with sizes such as 1.5 GiB" },
	{ "sort", 0, TEXT, WORDS_LS, AT(sort), "name|size|dtype",
	  "sort by name (default), by size (largest first) or by dtype" },
	{ "tree", 0, FLAG, WORDS_LS, AT(tree), NULL,
	  "show the names as a tree, in which equal layers are folded" },
	{ "depth", 0, COUNT, WORDS_LS, AT(depth), "N", "show N levels of --tree" },
	{ "color", 0, TEXT, WORDS_COLOR, AT(color), "auto|always|never",
	  "when to use colour (default auto: on a terminal)" },
	{ "fqn", 0, FLAG, WORDS_CAT, AT(fqn), NULL, "PATH is the raw FQN of a tensor or object" },
	{ "data", 0, FLAG, WORDS_CHECK, AT(data), NULL, "read every item and verify its CRCs" },
	{ "verbose", 'v', FLAG, WORDS_CHECK, AT(verbose), NULL,
	  "a line for every fault and warning" },
	{ "values", 0, FLAG, WORDS_CHECK, AT(values), NULL,
	  "read every tensor; report NaN, infinities, tensors all zero or equal" },
	{ "allow_nan", 0, LIST, WORDS_CHECK, AT(allow_nan), "GLOB",
	  "tensors that may hold NaN; repeatable, implies --values" },
	{ "allow_inf", 0, LIST, WORDS_CHECK, AT(allow_inf), "GLOB",
	  "tensors that may hold infinities" },
	{ "allow_zero", 0, LIST, WORDS_CHECK, AT(allow_zero), "GLOB",
	  "tensors whose elements may all be zero" },
	{ "allow_constant", 0, LIST, WORDS_CHECK, AT(allow_constant), "GLOB",
	  "tensors whose elements may all be equal" },
	{ "max_abs", 0, REAL, WORDS_CHECK, AT(max_abs), "N",
	  "largest magnitude of a finite element; implies --values" },
	{ "rebuild", 0, FLAG, WORDS_INDEX, AT(rebuild), NULL, "build it even if it is up to date" },
	{ "print", 0, FLAG, WORDS_INDEX, AT(print), NULL, "print its path and nothing else" },
	{ "model", 0, FLAG, WORDS_DIFF, AT(model), NULL,
	  "compare only the models, under their names in hf/" },
	{ "values", 0, FLAG, WORDS_DIFF, AT(values), NULL,
	  "compare all elements: how many changed, and by how much" },
	{ "model", 0, FLAG, WORDS_STAT | WORDS_SUM, AT(model), NULL,
	  "only the model's tensors, under their names in hf/" },
	{ "report", 0, TEXT, WORDS_DIFF, AT(output), "FILE",
	  "write an HTML page of the differences; implies --values" },
	{ "by", 0, TEXT, WORDS_STAT, AT(by), "tensor|layer|role|rank",
	  "what each row covers (default tensor)" },
	{ "sort", 0, TEXT, WORDS_STAT, AT(sort), "elements|min|max|mean|std|norm|zero|nan|inf",
	  "sort rows by this column, largest first" },
	{ "hist", 0, LEVEL, WORDS_STAT, AT(hist), "N",
	  "print histograms of at most N bins (default 32)" },
	{ "resume", 0, TEXT, WORDS_STAT, AT(resume), "FILE",
	  "keep the results in FILE, to resume after an interruption" },
	{ "plot", 0, TEXT, WORDS_STAT, AT(plot), "auto|always|never",
	  "when to draw plots (default auto: on a terminal)" },
	{ "check", 0, TEXT, WORDS_SUM, AT(check), "FILE",
	  "compare with a list that was printed earlier" },
	{ "xxh", 0, FLAG, WORDS_SUM, AT(xxh), NULL, "use 128-bit XXH3 instead of SHA-256: faster" },
	{ "bits", 0, FLAG, WORDS_HEAD, AT(bits), NULL, "print elements in hexadecimal" },
	{ "stat", 0, FLAG, WORDS_REPORT, AT(stat), NULL,
	  "read all elements, and show statistics of them" },
	{ "output", 0, TEXT, WORDS_REPORT, AT(output), "FILE",
	  "file to write (default report.html; -: standard output)" },
	{ "csv", 0, FLAG, WORDS_STAT, AT(csv), NULL, "write comma-separated values" },
	{ "jobs", 0, COUNT, WORDS_CHECK | WORDS_DIFF | WORDS_STAT | WORDS_SUM | WORDS_REPORT,
	  AT(jobs), "N", "worker threads (default one per CPU, but at most 4)" },
	{ "jobs", 0, COUNT, WORDS_EXPORT, AT(jobs), "N",
	  "copy N units of 8 MiB at the same time (default 8)" },
	{ "jobs", 0, COUNT, WORDS_RESHARD, AT(jobs), "N",
	  "how many ranks write at the same time (default one per CPU)" },
	{ "jobs", 0, COUNT, WORDS_WARM, AT(jobs), "N",
	  "threads (default 4, or 16 for an object store)" },
	{ "ranks", 0, COUNT, WORDS_RESHARD, AT(ranks), "N",
	  "number of ranks (default: that of --layout, or of SRC)" },
	{ "format", 0, TEXT, WORDS_RESHARD, AT(format),
	  "dcp|hyperparallel|safetensors|megatron|zarr", "format to write (default dcp)" },
	{ "model", 0, FLAG, WORDS_RESHARD, AT(model), NULL,
	  "write only the model, under its names in hf/" },
	{ "zstd", 0, LEVEL, WORDS_RESHARD, AT(zstd), "LEVEL",
	  "dcp: compress every item, level 1 to 22 (default 3)" },
	{ "threads", 0, COUNT, WORDS_RESHARD, AT(threads), "N",
	  "dcp, megatron: files per rank, each with its own thread (default 1)" },
	{ "file_per_item", 0, FLAG, WORDS_RESHARD, AT(file_per_item), NULL,
	  "dcp, megatron: a file for each item" },
	{ "save_to_lowest_rank", 0, FLAG, WORDS_RESHARD, AT(save_to_lowest_rank), NULL,
	  "let the lowest rank that holds a part write it, not the least loaded" },
	{ "overwrite", 0, FLAG, WORDS_RESHARD, AT(overwrite), NULL,
	  "replace the checkpoint at DST when the new one is complete" },
	{ "json", 0, FLAG, WORDS_JSON, AT(json), NULL, "write JSON, for programs" },
	{ "quiet", 'q', FLAG, WORDS_QUIET, AT(quiet), NULL,
	  "draw no progress bar, and print less" },
	{ "help", 'h', FLAG, WORDS_ANY, AT(help), NULL, "this text" },
};

/*
 * Options that fstab and mount(8) pass to every file system. The tree is read-only, has no
 * programs, devices or access times, and its modes are enforced, so each of these already applies
 * or cannot.
 */
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

/* Only in the -o lists of a mount: "--noatime" is not an option. */
static bool is_junk(unsigned groups, const char *s, size_t len)
{
	if (!(groups & WORDS_MOUNT))
		return false;
	if (!strncmp(s, "x-", 2) || !strncmp(s, "X-", 2)) /* comments of fstab(5) */
		return true;
	for (size_t i = 0; i < ARRAY_LEN(junk); i++)
		if (same(junk[i], s, len))
			return true;
	return false;
}

/* Words that -o understands; the rest are switches of a command. */
static bool in_list(const struct word *w)
{
	return w->group & (WORDS_OPEN | WORDS_MOUNT) && !w->letter;
}

static const struct open_group {
	const char *name;
	unsigned group;
	const char *reshard; /* its help there, where there is no tree; NULL: the library's */
} open_groups[] = {
	{ "index", WORDS_STORE, NULL },
	{ "ignore_ctime", WORDS_STORE, NULL },
	{ "endpoint", WORDS_STORE, NULL },
	{ "region", WORDS_STORE, NULL },
	{ "profile", WORDS_STORE, NULL },
	{ "anonymous", WORDS_STORE, NULL },
	{ "cache_dir", WORDS_STORE, NULL },
	{ "cache_size", WORDS_STORE, NULL },
	{ "retry", WORDS_STORE, NULL },
	{ "include", WORDS_NAMES, NULL },
	{ "exclude", WORDS_NAMES, NULL },
	{ "rename", WORDS_NAMES, NULL },
	{ "dtype", WORDS_DTYPE, NULL },
	{ "dequantize", WORDS_DTYPE, NULL },
	{ "average", WORDS_DTYPE, NULL },
	{ "overlay", WORDS_DTYPE, NULL },
	{ "lora", WORDS_DTYPE, NULL },
	{ "weights", WORDS_MODEL, NULL },
	{ "recipe", WORDS_MODEL, NULL },
	{ "assets", WORDS_MODEL, "directory with config.json, the tokenizer, ..." },
	{ "master", WORDS_MODEL, NULL },
	{ "experts", WORDS_MODEL, NULL },
	{ "shard_size", WORDS_FILES,
	  "maximum tensor bytes per file (default 5GB), or per chunk of zarr (256MiB)" },
	{ "layout", WORDS_FILES, "distribute the tensors over the ranks as FILE says" },
	{ "gguf_dtype", WORDS_QUANTISE, NULL },
	{ "quantize", WORDS_QUANTISE, NULL },
	{ "cache", WORDS_CACHE, NULL },
	{ "allow_missing", WORDS_MISSING, "leave out what cannot be read" },
};

static const struct open_group *open_group(const char *name)
{
	static const struct open_group all = { .group = WORDS_OPEN };

	for (size_t i = 0; i < ARRAY_LEN(open_groups); i++)
		if (!strcmp(open_groups[i].name, name))
			return &open_groups[i];
	return &all;
}

/* The library's option i, as a command of these groups has it. False: it does not offer it. */
static bool open_word(unsigned groups, size_t i, struct word *ret)
{
	const struct ckpt_option *x = ckpt_option(i);
	const struct open_group *g = open_group(x->name);

	if (x->program || !(g->group & groups))
		return false;
	*ret = (struct word){ .name = x->name,
			      .kind = x->form == CKPT_OPTION_FLAG ? OPEN_FLAG : OPEN,
			      .group = g->group,
			      .at = i,
			      .value = x->value,
			      .help = groups & WORDS_RESHARD && g->reshard ? g->reshard : x->help };
	return true;
}

static bool find_word(unsigned groups, const char *s, size_t len, struct word *ret)
{
	for (size_t i = 0; ckpt_option(i); i++)
		if (open_word(groups, i, ret) && same(ret->name, s, len))
			return true;
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (words[i].group & groups && same(words[i].name, s, len)) {
			*ret = words[i];
			return true;
		}
	return false;
}

/* The word of these groups that was probably meant. False: none. */
static bool meant(unsigned groups, const char *s, size_t len, struct word *ret)
{
	const char *names[256];
	size_t n = 0, at;

	for (size_t i = 0; ckpt_option(i) && n < ARRAY_LEN(names); i++)
		if (open_word(groups, i, ret))
			names[n++] = ret->name;
	for (size_t i = 0; i < ARRAY_LEN(words) && n < ARRAY_LEN(names); i++)
		if (words[i].group & groups)
			names[n++] = words[i].name;
	at = ckpt_nearest(s, len, names, n);
	return at < n && find_word(groups, names[at], strlen(names[at]), ret);
}

/* Refuses a word that find_word did not find, or, without dashes, one that -o does not take. hint:
 * ends the sentence if no option looks like the word. */
static int refuse(unsigned groups, const char *dashes, const char *s, size_t len, const char *hint,
		  struct ckpt_err *e)
{
	char name[OPTIONS_NAME_MAX + 1];
	struct word w;

	if (!*dashes && find_word(groups, s, len, &w))
		return err_set(e, EINVAL,
			       "option '%s' is not one of those that -o takes: write '--%s'",
			       w.name, s);
	if (groups & WORDS_OPEN && find_word(WORDS_OPEN, s, len, &w))
		return err_set(e, EINVAL, "option '%s%s' has no effect on this command", dashes,
			       options_spell(w.name, *dashes ? '-' : '_', name));
	if (meant(groups, s, len, &w)) {
		const char *front = in_list(&w) ? dashes : "--";

		return err_set(e, EINVAL, "unknown option '%s%.*s': did you mean '%s%s'?", dashes,
			       (int)len, s, front, options_spell(w.name, *front ? '-' : '_', name));
	}
	if (same("remount", s, len))
		return err_set(
			e, EINVAL,
			"option 'remount': options cannot be changed; unmount, and mount again");
	return err_set(e, EINVAL, "unknown option '%s%.*s'%s", dashes, (int)len, s, hint);
}

const char *options_spell(const char *name, char between, char ret[OPTIONS_NAME_MAX + 1])
{
	size_t n = 0;

	for (; n < OPTIONS_NAME_MAX && name[n]; n++)
		ret[n] = name[n] == '_' ? between : name[n];
	ret[n] = 0;
	return ret;
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

/* Gives ownership of s to o. NULL: out of memory. */
static char *own(struct options *o, char *s, struct ckpt_err *e)
{
	char **grown = s ? realloc(o->owned, (o->n_owned + 1) * sizeof(*grown)) : NULL;

	if (grown)
		o->owned = grown;
	if (!grown) {
		free(s);
		(void)err_sys(e, ENOMEM, "options");
		return NULL;
	}
	o->owned[o->n_owned++] = s;
	return s;
}

/* The value of a ckpt_open option, if it has this name. */
static const char *value_of(const char *word, const char *name)
{
	size_t len = strlen(name);

	if (strncmp(word, name, len) != 0 || (word[len] && word[len] != '='))
		return NULL;
	return word + len + (word[len] == '=');
}

const char *options_get(const struct options *o, const char *name)
{
	const char *found = NULL;

	for (size_t i = 0; o->open && o->open[i]; i++) {
		const char *value = value_of(o->open[i], name);

		found = value ? value : found;
	}
	return found;
}

int options_put(struct options *o, const char *name, const char *value, struct ckpt_err *e)
{
	size_t n = 0;
	char *word;

	word = text_format(value ? "%s=%s" : "%s", name, value);
	if (!own(o, word, e))
		return -ENOMEM;
	while (o->open && o->open[n])
		n++;
	return push(&o->open, n, word, e);
}

static int check_size(const struct word *w, const char *value, struct ckpt_err *e)
{
	const struct ckpt_option *x = ckpt_option(w->at);
	uint64_t size;

	if (x->form != CKPT_OPTION_SIZE)
		return 0;
	if (!text_parse_size(value, &size))
		return err_set(e, EINVAL, "option '%s': '%s' is not a %s", w->name, value,
			       strcmp(x->value, "SIZE") ? "number of seconds" : "size");
	return size ? 0 : err_set(e, EINVAL, "option '%s': must be at least 1", w->name);
}

static int set_number(const struct word *w, const char *value, uint64_t *ret, struct ckpt_err *e)
{
	char *end;

	errno = 0;
	*ret = strtoull(value, &end, 10);
	if (*value < '0' || *value > '9' || *end || errno || *ret > UINT32_MAX)
		return err_set(e, EINVAL, "option '%s': '%s' is not a whole number from %d to %ju",
			       w->name, value, w->kind != NUMBER, (uintmax_t)UINT32_MAX);
	if (!*ret && w->kind != NUMBER) /* the library takes 0 as the default */
		return err_set(e, EINVAL, "option '%s': must be at least 1", w->name);
	return 0;
}

static int set_real(const struct word *w, const char *value, double *ret, struct ckpt_err *e)
{
	char *end;

	*ret = strtod(value, &end);
	if (*end || !isfinite(*ret) || *ret <= 0)
		return err_set(e, EINVAL, "option '%s': '%s' is not a number greater than 0",
			       w->name, value);
	return 0;
}

static int add_to_list(const char ***list, const char *value, struct ckpt_err *e)
{
	size_t n = 0;

	while (*list && (*list)[n])
		n++;
	return push(list, n, value, e);
}

/* "a|b|c" */
static int check_choice(const struct word *w, const char *value, struct ckpt_err *e)
{
	char known[120];
	size_t n = 0;

	if (!w->value || !strchr(w->value, '|'))
		return 0;
	for (const char *at = w->value; *at; at += strspn(at, "|")) {
		size_t len = strcspn(at, "|");

		if (strlen(value) == len && !memcmp(at, value, len))
			return 0;
		n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%.*s", n ? ", " : "",
				      (int)len, at);
		at += len;
	}
	return err_set(e, EINVAL, "option '%s': '%s' is not one of %s", w->name, value, known);
}

static uint64_t default_of(const struct word *w)
{
	enum { BINS = 32, ZSTD = 3 /* as torch's */ };

	return w->at == AT(hist) ? BINS : ZSTD;
}

static int set_word(struct options *o, const struct word *w, const char *value, struct ckpt_err *e)
{
	bool flag = w->kind == FLAG || w->kind == OPEN_FLAG;
	void *at = (char *)o + w->at;

	if (flag && value)
		return err_set(e, EINVAL, "option '%s' takes no value", w->name);
	if (w->kind == LEVEL && !value) {
		*(uint64_t *)at = default_of(w);
		return 0;
	}
	if (!flag && !(value && *value))
		return err_set(e, EINVAL, "option '%s' needs a value", w->name);
	switch (w->kind) {
	case FLAG:
		*(bool *)at = true;
		return 0;
	case TEXT:
		if (check_choice(w, value, e))
			return -e->code;
		*(const char **)at = value;
		return 0;
	case REAL:
		return set_real(w, value, at, e);
	case LIST:
		return add_to_list(at, value, e);
	case OPEN:
		if (check_size(w, value, e))
			return -e->code;
		return options_put(o, w->name, value, e);
	case OPEN_FLAG:
		return options_put(o, w->name, NULL, e);
	default:
		o->has_uid |= w->at == AT(uid);
		o->has_gid |= w->at == AT(gid);
		return set_number(w, value, at, e);
	}
}

/* Cuts the next word off a list, in place: "a\,b,c" gives "a,b" and leaves "c". */
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

/* Adds a word to the value of the option before it, which is a list as well: "average=a,b". */
static int add_to_value(struct options *o, const struct word *last, const char *s,
			struct ckpt_err *e)
{
	const char *value = options_get(o, last->name);
	char *both;

	both = text_format("%s,%s", value, s);
	return own(o, both, e) ? options_put(o, last->name, both, e) : -ENOMEM;
}

/* Does it belong to the list before it, such as "x-tuned:10" or "../dev"? No option has ':' or '/'
 * in its name, though in its value. */
static bool is_listed(const char *s)
{
	size_t n = strcspn(s, ":/=");

	return s[n] && s[n] != '=';
}

/* The word is taken for a flag, but may be meant as an element of the list before it. */
static int note_unclear(struct options *o, const struct word *last, const char *s,
			struct ckpt_err *e)
{
	if (!last->name)
		return 0;
	o->unclear_in = last->name;
	return add_to_list(&o->unclear, s, e);
}

/* last: the option before it whose value is a list, or one without a name; valued: an option before
 * it has a value. */
static int parse_list_word(struct options *o, unsigned groups, unsigned flags, char *s,
			   struct word *last, bool valued, struct ckpt_err *e)
{
	size_t len = strcspn(s, "=");
	struct word w;

	if (!*s)
		return 0;
	if (last->name && is_listed(s))
		return add_to_value(o, last, s, e);
	if (is_junk(groups, s, len))
		return note_unclear(o, last, s, e);
	if (find_word(groups, s, len, &w) && in_list(&w)) {
		bool is_list = s[len] && w.kind == OPEN && w.value && strstr(w.value, ",...");

		if (!s[len] && note_unclear(o, last, s, e))
			return -e->code;
		*last = is_list ? w : (struct word){ 0 };
		return set_word(o, &w, s[len] ? s + len + 1 : NULL, e);
	}
	if (last->name)
		return add_to_value(o, last, s, e);
	if (flags & OPTIONS_SLOPPY)
		return 0;
	return len ? refuse(groups, "", s, len,
			    valued ? "; a comma inside a value is written '\\,'" : "", e)
		   : err_set(e, EINVAL, "option '%s' has no name before the '='", s);
}

int options_parse_list(struct options *o, unsigned groups, unsigned flags, const char *list,
		       struct ckpt_err *e)
{
	char *rest = own(o, strdup(list), e);
	struct word last = { 0 };
	bool valued = false;

	if (!rest)
		return -ENOMEM;
	while (*rest) {
		char *s = next_of_list(&rest);
		int rc = parse_list_word(o, groups, flags, s, &last, valued, e);

		if (rc)
			return rc;
		valued |= strchr(s, '=') != NULL;
	}
	return 0;
}

/* "--word", "--word=value", "--word value": how many arguments were used, or -errno. */
static int parse_long(struct options *o, unsigned groups, const char *s, const char *next,
		      struct ckpt_err *e)
{
	size_t len = strcspn(s, "=");
	const char *value = s[len] ? s + len + 1 : NULL;
	struct word w;
	int rc, used = 1;

	if (!len || !find_word(groups, s, len, &w))
		return refuse(groups, "--", s, len, "", e);
	if (!value && next && w.kind != FLAG && w.kind != OPEN_FLAG && w.kind != LEVEL) {
		value = next;
		used = 2;
	}
	rc = set_word(o, &w, value, e);
	return rc ? rc : used;
}

int options_parse_word(struct options *o, unsigned groups, const char *s, struct ckpt_err *e)
{
	int used = strncmp(s, "--", 2) != 0 ? err_set(e, EINVAL, "unknown option '%s'", s)
					    : parse_long(o, groups, s + 2, NULL, e);

	return used < 0 ? used : 0;
}

/* The first option with the letter wins: -h is --help unless the command defines its own -h. */
static const struct word *find_letter(unsigned groups, char letter)
{
	for (size_t i = 0; letter && i < ARRAY_LEN(words); i++)
		if (words[i].letter == letter && words[i].group & groups)
			return &words[i];
	return NULL;
}

static int parse_letters(struct options *o, unsigned groups, const char *s, struct ckpt_err *e)
{
	for (; *s; s++) {
		const struct word *w = find_letter(groups, *s);

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
	const char *list = *s ? s : next;
	size_t len = list ? strlen(list) : 0;
	int rc;

	if (!list)
		return err_set(e, EINVAL, "option '-o' needs a list of options");
	if (*s == '=')
		return err_set(e, EINVAL, "option '-o' takes no '=' before its list: write '-o %s'",
			       s + 1);
	/* Accepts "-o FILE" for the output file, as in other programs: no list of options looks
	 * like that. */
	if (groups & (WORDS_REPORT | WORDS_DIFF) && len > 5 && !strchr(list, '=') &&
	    !strcmp(list + len - 5, ".html")) {
		o->output = list;
		return *s ? 1 : 2;
	}
	rc = options_parse_list(o, groups, flags, list, e);
	return rc ? rc : *s ? 1 : 2;
}

int options_set_arg(struct options *o, size_t i, const char *path, bool two, struct ckpt_err *e)
{
	char *copy = own(o, strdup(path), e);

	if (!copy)
		return -ENOMEM;
	o->args[i] = copy;
	if (two) {
		memmove(&o->args[i + 1], &o->args[i + 2], (o->n_args - i - 1) * sizeof(*o->args));
		o->n_args--;
	}
	return 0;
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

		/* "-1" is a slice. */
		if (ended || s[0] != '-' || !s[1] ||
		    (groups & WORDS_HEAD && strchr("0123456789", s[1])))
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
	free(o->open);
	free(o->unclear);
	free(o->allow_nan);
	free(o->allow_inf);
	free(o->allow_zero);
	free(o->allow_constant);
	*o = (struct options){ 0 };
}

static void add_value(struct buf *b, const struct ckpt_option *x, const char *value,
		      options_value_fn *instead)
{
	uint64_t size;

	if (instead)
		value = instead(x, value);
	if (x->form == CKPT_OPTION_SIZE && text_parse_size(value, &size)) /* "1K" is "1024" */
		buf_printf(b, "%s=%llu", x->name, (unsigned long long)size);
	else
		buf_printf(b, "%s=%s", x->name, value);
	buf_add(b, "", 1);
}

void options_add_shape(const struct options *o, options_value_fn *instead, struct buf *b)
{
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++) {
		const char *last = x->tree && !x->program ? options_get(o, x->name) : NULL;

		if (last && x->form != CKPT_OPTION_LIST)
			add_value(b, x, last, instead);
		for (size_t k = 0; last && x->form == CKPT_OPTION_LIST && o->open[k]; k++) {
			const char *value = value_of(o->open[k], x->name);

			if (value)
				add_value(b, x, value, instead);
		}
	}
}

enum { HELP_LEFT = 26, HELP_LINE = 76 };

/* Words to choose from may take several lines. */
static void help_choices(FILE *to, const char *left)
{
	int indent = (int)(strcspn(left, "=") + 1), room = HELP_LINE, cut;

	for (; (int)strlen(left) > room; left += cut, room = HELP_LINE - indent) {
		for (cut = room; cut > 1 && left[cut - 1] != '|';)
			cut--;
		(void)fprintf(to, "%.*s\n  %*s", cut, left, indent, "");
	}
	(void)fputs(left, to);
}

static void help_word(FILE *to, const struct word *w, char of_letter)
{
	char letter[] = "-x,", left[160], name[OPTIONS_NAME_MAX + 1];

	letter[1] = of_letter;
	(void)snprintf(left, sizeof(left), w->kind == LEVEL ? "%3s --%s[%s%s]" : "%3s --%s%s%s",
		       of_letter ? letter : "", options_spell(w->name, '-', name),
		       w->value ? "=" : "", w->value ? w->value : "");
	(void)fputs("  ", to);
	help_choices(to, left);
	if (strlen(left) > HELP_LEFT)
		(void)fprintf(to, "\n  %*s ", HELP_LEFT, "");
	else
		(void)fprintf(to, "%*s ", HELP_LEFT - (int)strlen(left), "");
	(void)fprintf(to, "%s\n", w->help);
}

void options_help(FILE *to, unsigned groups)
{
	char last[OPTIONS_NAME_MAX + 1] = ""; /* of those that -o takes, which come first */
	struct word w;

	for (size_t i = 0; ckpt_option(i); i++)
		if (open_word(groups, i, &w)) {
			help_word(to, &w, 0);
			(void)options_spell(w.name, '-', last);
		}
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		const struct word *x = &words[i];

		if (!x->help || !(x->group & groups))
			continue;
		help_word(to, x, find_letter(groups, x->letter) == x ? x->letter : 0);
		if (in_list(x))
			(void)options_spell(x->name, '-', last);
	}
	if (*last)
		(void)fprintf(to,
			      "\nOptions up to --%s can also be given as -o OPTION,OPTION=VALUE.\n",
			      last);
}

bool options_word(unsigned groups, size_t i, struct option_word *ret)
{
	struct word w;
	bool found = false;

	for (size_t k = 0; !found && ckpt_option(k); k++)
		found = open_word(groups, k, &w) && !i--;
	for (size_t k = 0; !found && k < ARRAY_LEN(words); k++) {
		w = words[k];
		found = w.group & groups && w.help && !i--;
	}
	if (found)
		*ret = (struct option_word){ w.name, w.value, w.kind == LEVEL, in_list(&w) };
	return found;
}
