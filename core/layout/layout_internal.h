/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_internal - a layout in memory, shared by its parsers.
 *
 * A rank's entry for a parameter takes 12 bytes; what many entries share (specs, FQNs) is interned.
 * Private to core/layout.
 */
#ifndef LAYOUT_LAYOUT_INTERNAL_H
#define LAYOUT_LAYOUT_INTERNAL_H

#include "base/digest.h"
#include "layout/layout.h"
#include "model/box.h"
#include "model/mesh.h"
#include "parse/pickle_strings.h"

#define LAYOUT_NONE UINT32_MAX
/* Bytes of interned parameters, and of specs, with the tables that find them: a million names. */
#define LAYOUT_MAX_INTERNED ((size_t)192 << 20)
#define LAYOUT_MAX_ENTRIES  ((size_t)1 << 24) /* over all ranks */
#define LAYOUT_MAX_RULES    ((size_t)1 << 20)

/* EFBIG: the limit is reached; or ENOMEM. */
int layout_intern(struct pk_strings *t, const void *bytes, size_t len, uint32_t *ret,
		  struct ckpt_err *e);
/* Passes on a result of layout_intern or layout_add_spec; adds the file to the message of EFBIG. */
int layout_in_file(int rc, struct ckpt_err *e, const char *file);
/* LAYOUT_NONE if it does not exist. */
uint32_t layout_find(const struct pk_strings *t, const void *bytes, size_t len);

/* The placement of a tensor on a mesh. layout_add_spec packs and interns it. */
struct layout_spec {
	uint64_t mesh[CKPT_MESH_MAX_AXES];
	uint64_t shape[CKPT_MAX_DIMS]; /* as declared */
	struct ckpt_placement placements[CKPT_MESH_MAX_AXES];
	uint8_t n_axes, n;
	uint8_t n_dims; /* as declared by shape or tensor_map */
	bool has_shape; /* shape is declared */
	bool has_map;	/* n_dims is declared: there is a tensor_map */
};
int layout_add_spec(struct layout *l, const struct layout_spec *s, uint32_t *ret,
		    struct ckpt_err *e);

struct layout_packed {
	uint8_t n_axes, n, n_dims;
	bool has_shape, has_map;
	uint8_t unused[3];
	uint64_t numbers[]; /* the mesh, the shape if declared, then the placements */
};
const struct layout_packed *layout_packed(const struct layout *l, uint32_t spec);
struct ckpt_sharding layout_sharding(const struct layout_packed *p);

/*
 * One bit for two adjacent bytes. A name that lacks a bit of a glob cannot match it, and most names
 * that do not match lack one: so binding a hundred thousand tensors to a hundred rules tests few
 * globs.
 */
static inline uint64_t layout_pair(char a, char b)
{
	uint32_t v = (uint32_t)(uint8_t)a << 8 | (uint8_t)b;

	return (uint64_t)1 << (v * 0x9e3779b1u >> 26);
}

struct layout_rule {
	const char *glob;
	uint32_t line, spec;
	uint64_t pairs; /* layout_pair of the pairs that a name must contain */
};

struct layout_entry {
	uint32_t param, spec; /* interned */
	uint32_t pos;	      /* position of the rank in the mesh */
};

struct layout_rank {
	uint32_t number, file;
	uint32_t first, n; /* entries, sorted by param */
};

struct layout {
	char *name; /* for messages */
	struct digest digest;
	struct pk_strings *specs;

	bool is_text;
	char *text; /* contains the globs */
	struct layout_rule *rules;
	size_t n_rules, rules_cap;
	uint64_t mesh_ranks;

	struct pk_strings *files, *params;
	struct layout_rank *ranks; /* by number */
	size_t n_ranks, ranks_cap;
	struct layout_entry *entries;
	size_t n_entries, entries_cap;

	/* results of layout_bind */
	uint32_t *of_tensor; /* a rule or a param, or LAYOUT_NONE */
	uint32_t *tensor_of; /* by param: the tensor, or LAYOUT_NONE */
	uint64_t *shapes;
	size_t *shape_at; /* in shapes, one more than tensors */
	uint32_t *unused; /* rules or params */
	size_t n_unused;
};

struct layout *layout_new(const char *name); /* NULL: out of memory */
int layout_add_text(struct layout *l, const char *text, size_t len, struct ckpt_err *e);
/* May be called for several files; then call layout_done. text is modified, including text[len]. */
int layout_add_json(struct layout *l, char *text, size_t len, const char *file, struct ckpt_err *e);
int layout_done(struct layout *l, struct ckpt_err *e);
void layout_unbind(struct layout *l);
const char *layout_file(const struct layout *l, const struct layout_rank *r);

/* Only decimal digits are accepted; a number above max becomes max + 1. */
bool layout_number(const char *s, uint64_t max, uint64_t *ret);

#endif
