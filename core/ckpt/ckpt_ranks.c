/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks wrote a checkpoint, according to the names of its data files. */
#include "base/cleanup.h"
#include "ckpt/ckpt_internal.h"
#include "source/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * N of "__N_0.distcp" (PyTorch, Megatron-core), "_rankN_.safetensors", "FQN_rankN.bytes"
 * (HyperParallel), "shard-0000N-model-00001-of-00001.safetensors" (PyTorch); -1: it names no rank.
 */
long ckpt_rank_of(const char *path)
{
	const char *name = strrchr(path, '/'), *rank;
	int end = 0;
	unsigned n;

	name = name ? name + 1 : path;
	if (sscanf(name, "__%9u_%*9u.distcp%n", &n, &end) == 1 && end && !name[end])
		return n;
	if (sscanf(name, "shard-%9u-model-%n", &n, &end) == 1 && end)
		return n;
	rank = strstr(name, "_rank");
	for (const char *next = rank; next; next = strstr(next + 1, "_rank"))
		rank = next;
	end = 0;
	if (rank && sscanf(rank, "_rank%9u_.%n", &n, &end) == 1 && end)
		return n;
	end = 0;
	return rank && sscanf(rank, "_rank%9u.bytes%n", &n, &end) == 1 && end ? (long)n : -1;
}

static int by_number(const void *ap, const void *bp)
{
	const long *a = ap, *b = bp;

	return *a < *b ? -1 : *a > *b;
}

int ckpt_ranks_of(const struct stored_file *files, size_t n, uint64_t *ret)
{
	autofree long *ranks = calloc(n + 1, sizeof(*ranks));
	size_t named = 0;

	*ret = 0;
	if (!ranks)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (!files[i].bytes)
			ranks[named++] = ckpt_rank_of(files[i].path);
	if (named)
		qsort(ranks, named, sizeof(*ranks), by_number);
	/* If one file is named differently, interpreting the other names would be a guess. */
	if (named && ranks[0] < 0)
		return 0;
	for (size_t i = 0; i < named; i++)
		*ret += !i || ranks[i] != ranks[i - 1];
	return 0;
}
