/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_path.h"

#include "base/bytes.h"
#include "base/checked.h"

#include <string.h>

const uint8_t catalog_path_unknown[1] = { 0 }, catalog_path_flat[1] = { 2 };

uint32_t catalog_path_steps(const uint8_t *path)
{
	return (uint32_t)(get_varint(&path) / 2);
}

static struct catalog_step step_of(const char *text, uint32_t len, bool is_position)
{
	struct catalog_step s = { .text = text, .len = len, .is_position = is_position };

	if (is_position)
		(void)catalog_path_position(text, len, &s.position);
	return s;
}

struct catalog_steps catalog_path_begin(const uint8_t *path, const char *fqn, uint32_t fqn_len)
{
	uint64_t head = get_varint(&path);

	return (struct catalog_steps){ .path = path,
				       .fqn = fqn,
				       .fqn_len = fqn_len,
				       .left = (uint32_t)(head / 2),
				       .last_is_position = head & 1 };
}

bool catalog_path_next(struct catalog_steps *i, struct catalog_step *ret)
{
	uint64_t step;
	uint32_t len;

	if (!i->left)
		return false;
	if (!--i->left) {
		*ret = step_of(i->fqn, i->fqn_len, i->last_is_position);
		return true;
	}
	step = get_varint(&i->path);
	len = (uint32_t)(step / 2);
	*ret = step_of(i->fqn, len, step & 1);
	i->fqn += len + 1;
	i->fqn_len -= len + 1;
	return true;
}

uint32_t catalog_path_top(const uint8_t *path, uint32_t fqn_len)
{
	uint64_t steps = get_varint(&path) / 2;

	return steps > 1 ? (uint32_t)(get_varint(&path) / 2) : steps ? fqn_len : 0;
}

size_t catalog_path_size(const uint8_t *path)
{
	const uint8_t *p = path;

	for (uint64_t left = get_varint(&p) / 2; left > 1; left--)
		(void)get_varint(&p);
	return (size_t)(p - path);
}

bool catalog_path_equal(const uint8_t *a, const uint8_t *b)
{
	size_t n = catalog_path_size(a);

	return n == catalog_path_size(b) && !memcmp(a, b, n);
}

/* ---- making ---- */

bool catalog_path_position(const char *text, size_t len, uint64_t *ret)
{
	uint64_t v = 0;

	if (!len || (len > 1 && *text == '0'))
		return false;
	for (size_t i = 0; i < len; i++)
		if (text[i] < '0' || text[i] > '9' || ckd_mul(&v, v, 10) ||
		    ckd_add(&v, v, (uint64_t)(text[i] - '0')))
			return false;
	*ret = v;
	return true;
}

size_t catalog_path_put_head(uint8_t *to, size_t steps, bool last_is_position)
{
	return put_varint(to, 2 * (uint64_t)steps + last_is_position);
}

size_t catalog_path_put_step(uint8_t *to, size_t len, bool is_position)
{
	return put_varint(to, 2 * (uint64_t)len + is_position);
}

void catalog_path_end_in_key(uint8_t *path)
{
	*path &= 0xfe;
}

/* ---- reading ---- */

/* Checks the step of len bytes at fqn, of which `left` bytes remain. */
static bool step_ok(const char *fqn, uint64_t left, uint64_t len, bool last, bool is_position)
{
	uint64_t position;

	if (last ? len != left : len >= left || fqn[len] != '.')
		return false;
	return !is_position || catalog_path_position(fqn, len, &position);
}

const uint8_t *catalog_path_read(struct cursor *d, const char *fqn, uint32_t fqn_len)
{
	const uint8_t *path = d->p;
	uint64_t head = cursor_varint(d), steps = head / 2, left = fqn_len;

	d->bad |= head == 1 || steps > (uint64_t)fqn_len + 1 || (head && !fqn);
	for (uint64_t i = 1; i < steps && !d->bad; i++) {
		uint64_t step = cursor_varint(d), len = step / 2;

		if (!step_ok(fqn, left, len, false, step & 1)) {
			d->bad = true;
			break;
		}
		fqn += len + 1;
		left -= len + 1;
	}
	if (!d->bad && steps)
		d->bad = !step_ok(fqn, left, left, true, head & 1);
	return d->bad ? catalog_path_unknown : path;
}
