/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle - a Python pickle machine that only builds data.
 *
 * Reads protocols 0 to 5, as Python 2 and 3 write them. Nothing is ever imported or called:
 * a global stays the pair of names it was written as, REDUCE and NEWOBJ make an object that records
 * callee and arguments, BUILD attaches a state to it. There are two passes. The first only lexes:
 * it learns which memo entries a GET will request (about one in ten thousand in torch's .metadata)
 * and finds the end. The second builds, with reference counts, so that what a hook has consumed is
 * freed at once, and memory grows with what is kept, not with what is read.
 *
 * Two callables are interpreted because their results are plain data: torch.Size(t) becomes the
 * tuple t, and collections.OrderedDict(), with or without a list of pairs, becomes a dict. A set
 * becomes an object of builtins.set, with its elements as the argument (a list) up to protocol 3,
 * and as items from protocol 4 on.
 *
 * Sources: CPython Lib/pickletools.py (opcodes); formats: torch's .metadata and torch.save's
 * data.pkl.
 *
 * Threads: a struct pickle belongs to one thread at a time.
 */
#ifndef PARSE_PICKLE_H
#define PARSE_PICKLE_H

#include "base/bytes.h"
#include "parse/pickle_strings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ckpt_err;
struct pickle;

enum pk_type {
	PK_NONE,
	PK_BOOL,   /* .i */
	PK_INT,	   /* .i */
	PK_LONG,   /* .s: an integer of 9 to 255 bytes, two's complement, little-endian; longer ones
		    * become PK_OPAQUE */
	PK_FLOAT,  /* .f */
	PK_STR,	   /* .s, UTF-8 with lone surrogates allowed, not validated */
	PK_BYTES,  /* .s */
	PK_GLOBAL, /* .g */
	PK_OPAQUE, /* something whose contents were not kept */
	PK_TUPLE,  /* .n; this and all below are reference-counted nodes */
	PK_LIST,   /* .n */
	PK_DICT,   /* .n: len pairs, v[2*i] key, v[2*i+1] value; the last duplicate counts */
	PK_OBJECT, /* .n: v[PK_CALLEE], v[PK_ARGS], v[PK_STATE], v[PK_ITEMS] */
	PK_PERSID, /* .n: v[0] the persistent id */
	PK_RECORD, /* .n: bytes that a hook put in place of an object, see pickle_to_record */
};

/* PK_ITEMS: the items of a dict or list subclass, as a dict or list; None if there are none. */
enum { PK_CALLEE, PK_ARGS, PK_STATE, PK_ITEMS, PK_OBJECT_FIELDS };

struct pk_global {
	const struct pk_str *module, *name;
	int cls; /* as set by pickle_hooks.classify, else 0 */
};

struct pk_node;

struct pk_value {
	enum pk_type type;
	union {
		int64_t i;
		double f;
		const struct pk_str *s;
		const struct pk_global *g;
		struct pk_node *n;
	};
};

struct pk_node {
	uint32_t refs;
	uint32_t len;		     /* elements, pairs, or bytes of a record */
	uint32_t cap;		     /* capacity of v, in values */
	uint16_t own_class, v_class; /* size classes by which this node and v are freed */
	struct pk_value *v;
	struct pk_value own[]; /* where v points for tuples and objects */
};

/* Hooks return 0, or a negative errno with *e set to stop. */
struct pickle_hooks {
	/* Assigns a global a class number > 0; 0 for globals of no interest. */
	int (*classify)(void *arg, const char *module, const char *name);
	/* Called after BUILD has attached a state to an object of a class > 0. */
	int (*built)(void *arg, struct pickle *p, struct pk_value *obj, struct ckpt_err *e);
	/*
	 * Called when a pair is about to enter the dict that becomes attribute `attr` of the
	 * pickle's outermost object (of class root_class). *consumed = true drops the pair instead.
	 * A dict inside an attribute may look like one until it is complete: if pairs were taken
	 * from such a dict, the load fails with ERR_UNSUPPORTED.
	 */
	int (*attr_item)(void *arg, int root_class, const struct pk_str *attr,
			 const struct pk_value *key, const struct pk_value *value, bool *consumed,
			 struct ckpt_err *e);
};

struct pickle_input {
	/* Up to cap bytes at off; 0 bytes is the end. Returns the count or a negative errno. */
	int64_t (*read)(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e);
	void *arg;
	const void *mem; /* or, instead of read: bytes in memory */
	size_t mem_len;
};

struct pickle_opts {
	const struct pickle_hooks *hooks; /* may be NULL */
	/* Called for every persistent id, if not NULL; returns as a hook does. */
	int (*persid)(void *arg, const struct pk_value *id, struct ckpt_err *e);
	void *arg;
	struct pk_strings *strings; /* shared interner, or NULL for one of its own */
	size_t max_bytes;	    /* ceiling of live memory, not counting strings */
	bool drop_unknown;	    /* objects of class 0 become PK_OPAQUE at once */
	/* Strings and bytes of more than 1 MiB are kept up to 64 MiB, if `strings` has room; what
	 * is longer becomes PK_OPAQUE. Otherwise such strings are refused, and bytes PK_OPAQUE. */
	bool keep_long;
	/*
	 * Stop at the outermost object's attribute with this name: it and all that follow are not
	 * read, and memo entries used only there are not kept. ECANCELED if the first string equal
	 * to it turns out not to be an attribute name; then load again without `until`. Also load
	 * again if something is missing afterwards: a string that is the only key of an attribute's
	 * dict looks like a name.
	 */
	const char *until; /* may be NULL */
};

/* ENODATA: the input ends before STOP (supply more); ERR_CORRUPT; EFBIG; ENOMEM. */
int pickle_load(const struct pickle_input *in, const struct pickle_opts *opts, struct pickle **ret,
		struct ckpt_err *e);
void pickle_free(struct pickle *p);
struct pk_value pickle_root(const struct pickle *p);
uint64_t pickle_end(const struct pickle *p); /* bytes read, including STOP if it was reached */

/*
 * The module of the class of the pickle's outermost object, found from its first bytes alone:
 * *ret_len bytes inside them. NULL if they do not tell, or the value is not an object.
 */
const char *pickle_first_module(const void *bytes, size_t len, size_t *ret_len);

/*
 * For hooks.built: replaces the object by `len` bytes, dropping class, arguments and state;
 * pickle_record returns them. Returns 1, and leaves the object alone, if something else refers to
 * it.
 */
int pickle_to_record(struct pickle *p, struct pk_value *obj, const void *bytes, size_t len,
		     struct ckpt_err *e);
static inline const uint8_t *pickle_record(const struct pk_value *v)
{
	return (const uint8_t *)v->n->own;
}

/* Inspecting values; all results are borrowed from the pickle. */
bool pk_is(const struct pk_value *v, const char *module_or_null, const char *name); /* a global? */
const struct pk_value *pk_get_n(const struct pk_value *dict, const char *key, size_t len);
const struct pk_value *pk_attr_n(const struct pk_value *obj, const char *name, size_t len);
/* NULL if absent */
static inline const struct pk_value *pk_get(const struct pk_value *dict, const char *key)
{
	return pk_get_n(dict, key, strlen(key));
}
/* Attribute of an object whose state is a dict (or a tuple that begins with one). */
static inline const struct pk_value *pk_attr(const struct pk_value *obj, const char *name)
{
	return pk_attr_n(obj, name, strlen(name));
}
/* Value of a dict or attribute of an object. */
static inline const struct pk_value *pk_field(const struct pk_value *v, const char *name)
{
	return v && v->type == PK_DICT ? pk_get(v, name) : pk_attr(v, name);
}
static inline bool pk_is_text(const struct pk_value *v, const char *text)
{
	return v->type == PK_STR && pk_str_is(v->s, text);
}
/* A tuple or list of at most max non-negative integers; v may be NULL. */
bool pk_numbers(const struct pk_value *v, uint64_t *ret, size_t max, size_t *ret_n);
static inline size_t pk_len(const struct pk_value *v)
{
	return v->type >= PK_TUPLE && v->n ? v->n->len : 0;
}
/* 0 if it is of another type, or NULL. */
static inline size_t pk_list_len(const struct pk_value *list_or_tuple)
{
	const struct pk_value *v = list_or_tuple;

	return v && (v->type == PK_LIST || v->type == PK_TUPLE) ? pk_len(v) : 0;
}
static inline size_t pk_dict_len(const struct pk_value *v)
{
	return v && v->type == PK_DICT ? pk_len(v) : 0;
}

#endif
