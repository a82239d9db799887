/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is FQNs, one per line. They are turned into file names and back, and put into a list
 * where each must be found by its name and by its file name. The input is also looked up as a file
 * name.
 *
 * Fuzzes: tensor/name
 */
#include "base/err.h"
#include "tensor/namelist.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
	if (!ok)
		abort();
}

static void stored(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct namelist *t = arg;

	(void)index;
	*ret = t->v[0].fqn;
	*ret_len = t->v[0].len;
}

static void check_name(const char *fqn, size_t len, const char *suffix)
{
	char name[NAME_CAP], *back = malloc(len + NAME_CAP);
	uint64_t hash;
	size_t n, m = strlen(suffix), n_back;
	bool cut;

	require(back);
	n = name_encode(fqn, len, suffix, name, &cut);
	require(n == strlen(name) && n < NAME_CAP && n > m && !strchr(name, '/'));
	require(strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
	require(!strcmp(name + n - m, suffix) && name_fits(fqn, len, m) == !cut);
	for (size_t i = 0; i < n; i++)
		require((unsigned char)name[i] >= 0x20 && name[i] != 0x7f);
	if (cut)
		require(name_is_cut(name, n - m, &hash) && hash == name_hash(fqn, len));
	else
		require(name_decode(name, n - m, back, &n_back) && n_back == len &&
			!memcmp(back, fqn, len));
	free(back);
}

static int check_list(struct namelist *t)
{
	char name[NAME_CAP];
	struct ckpt_err e = { 0 };
	int rc = namelist_finish(t, stored, t, &e);

	require(rc ? rc < 0 && e.code == -rc && *e.msg : !e.code);
	for (size_t i = 0; !rc && i < t->n; i++) {
		require(namelist_find(t, t->v[i].fqn, t->v[i].len) == (int64_t)i);
		(void)namelist_file(t, i, ".npy", name);
		require(namelist_lookup(t, name, ".npy") == (int64_t)i);
	}
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *s = (const char *)data, *end = s + size;
	char *asked = malloc(size + 1), again[NAME_CAP];
	struct namelist t = { 0 };
	struct ckpt_err e = { 0 };
	int64_t at;

	require(asked);
	memcpy(asked, s, size);
	asked[size] = 0;
	for (uint32_t i = 0; s < end; i++) {
		const char *eol = memchr(s, '\n', (size_t)(end - s));
		size_t len = (size_t)((eol ? eol : end) - s);

		check_name(s, len, i % 2 ? ".npy" : "");
		require(!namelist_add(&t, s, len, i, &e));
		s += len + 1;
	}
	at = !check_list(&t) && strlen(asked) == size ? namelist_lookup(&t, asked, "") : -1;
	if (at >= 0) { /* only under exactly the name that it would get */
		(void)namelist_file(&t, (size_t)at, "", again);
		require(!strcmp(again, asked));
	}
	namelist_release(&t);
	free(asked);
	return 0;
}
