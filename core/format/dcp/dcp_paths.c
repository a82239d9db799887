/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_data: {fqn: (key, ...)}, the keys, and list positions as numbers, that lead to each value
 * in the state dict. The FQN is all of them joined with '.', and keys may contain dots.
 *
 * Other planners keep other things here, so anything is accepted: at worst a path is unknown.
 */
#include "base/bytes.h"
#include "base/err.h"
#include "format/dcp/dcp_records.h"
#include "index/catalog_path.h"

#include <stdio.h>
#include <string.h>

/* A pickle may refer to the same long name many times. */
#define MAX_PLANNED ((size_t)256 << 20)

/* One step of a tuple; its text may be in `digits`. False: not a step of a state dict. */
static bool step_of(const struct pk_value *v, char digits[static 24], struct catalog_step *ret)
{
	*ret = (struct catalog_step){ .is_position = v->type == PK_INT };
	if (v->type == PK_STR) {
		ret->text = v->s->data;
		ret->len = v->s->len;
		return true;
	}
	if (v->type != PK_INT || v->i < 0)
		return false;
	ret->text = digits;
	ret->len = (uint32_t)snprintf(digits, 24, "%lld", (long long)v->i);
	return true;
}

static bool joins_to(const struct pk_value *path, const struct pk_str *fqn)
{
	size_t n = pk_len(path), at = 0;
	struct catalog_step s;
	char digits[24];

	if (path->type != PK_TUPLE || !n)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (i && (at >= fqn->len || fqn->data[at++] != '.'))
			return false;
		if (!step_of(&path->n->own[i], digits, &s) || s.len > fqn->len - at ||
		    memcmp(s.text, fqn->data + at, s.len) != 0)
			return false;
		at += s.len;
	}
	return at == fqn->len;
}

/* Encodes a path that joins_to has accepted. */
static size_t put_path(uint8_t *to, const struct pk_value *path)
{
	const struct pk_value *v = path->n->own;
	size_t n = pk_len(path), len = catalog_path_put_head(to, n, v[n - 1].type == PK_INT);
	struct catalog_step s;
	char digits[24];

	for (size_t i = 0; i + 1 < n; i++) {
		(void)step_of(&v[i], digits, &s);
		len += catalog_path_put_step(to + len, s.len, s.is_position);
	}
	return len;
}

int dcp_paths_add(struct dcp_records *r, const struct pk_value *key, const struct pk_value *value,
		  struct ckpt_err *e)
{
	struct byte_store *s = &r->planned;
	size_t n = pk_len(value);
	bool known;
	uint8_t *to;

	if (key->type != PK_STR)
		return 0;
	known = joins_to(value, key->s);
	to = byte_store_room(s, ((known ? n : 0) + 2) * CATALOG_PATH_NUMBER, e);
	if (!to)
		return -e->code;
	to += put_varint(to, key->s->id);
	to += known ? put_path(to, value) : catalog_path_put_head(to, 0, false);
	s->len = (size_t)(to - s->data);
	return s->len > MAX_PLANNED
		       ? err_set(e, EFBIG, "planner_data's paths take more than %zu MiB",
				 MAX_PLANNED >> 20)
		       : 0;
}

/* Keeps it in r->paths, unless the same FQN's entry of another file has stored it there. */
static int keep(struct dcp_records *r, const uint8_t *path, struct dcp_entry *entry,
		struct ckpt_err *e)
{
	size_t n = catalog_path_size(path);
	struct byte_store *s = &r->paths;
	uint8_t *to;

	entry->path_at = DCP_PATH_UNKNOWN;
	if (!catalog_path_steps(path))
		return 0;
	if (n == 1 && *path == *catalog_path_flat) {
		entry->path_at = DCP_PATH_FLAT;
		return 0;
	}
	if (entry->next != DCP_NO_TENSOR) {
		const struct dcp_entry *other = &r->entries[entry->next];

		if (catalog_path_equal(path, dcp_entry_path(r, other))) {
			entry->path_at = other->path_at;
			return 0;
		}
	}
	to = byte_store_room(s, n, e);
	if (!to)
		return -e->code;
	memcpy(to, path, n);
	entry->path_at = s->len + 1;
	s->len += n;
	return 0;
}

int dcp_paths_apply(struct dcp_records *r, uint32_t rank, uint32_t first, struct ckpt_err *e)
{
	const uint8_t *p = r->planned.data;
	int rc = 0;

	while (p && p < r->planned.data + r->planned.len) { /* NULL: there never were any */
		uint32_t i = dcp_records_entry(r, (uint32_t)get_varint(&p));

		if (i != DCP_NO_TENSOR &&
		    r->entries[i].rank == rank) /* the last of several with one name counts */
			r->entries[i].path_at = (size_t)(p - r->planned.data);
		p += catalog_path_size(p);
	}
	for (uint32_t i = first; !rc && i < r->n_entries; i++)
		if (r->entries[i].path_at)
			rc = keep(r, r->planned.data + r->entries[i].path_at, &r->entries[i], e);
	return rc;
}

void dcp_paths_flat(struct dcp_records *r, uint32_t first)
{
	for (uint32_t i = first; i < r->n_entries; i++)
		r->entries[i].path_at = DCP_PATH_FLAT;
}

const uint8_t *dcp_entry_path(const struct dcp_records *r, const struct dcp_entry *entry)
{
	if (entry->path_at == DCP_PATH_FLAT)
		return catalog_path_flat;
	return entry->path_at ? r->paths.data + entry->path_at - 1 : catalog_path_unknown;
}
