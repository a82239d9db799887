/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/others.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "source/files.h"

#include <stdlib.h>
#include <string.h>

#define MIN_CACHE ((uint64_t)4 << 20)
#define MIN_MAPS  ((uint64_t)1 << 20)

int others_open(struct engine *eng, const char *path, const struct ckpt_opts *o, size_t share,
		struct engine **ret, struct ckpt_err *e)
{
	struct ckpt_opts plain = { .ignore_ctime = o->ignore_ctime,
				   .allow_missing = o->allow_missing,
				   .allow_holes = o->allow_holes,
				   .dequantize = o->dequantize,
				   .need_index = o->need_index,
				   .endpoint = o->endpoint,
				   .region = o->region,
				   .profile = o->profile,
				   .anonymous = o->anonymous,
				   .cache_dir = o->cache_dir,
				   .cache_size = o->cache_size,
				   .cache = o->cache, /* so that one ckptfs-fetch reads all */
				   .retry = o->retry,
				   .map_files = o->map_files };
	struct others *x = &eng->others;
	int rc;

	/* A path names one index, that of the first checkpoint. */
	if (o->index && !strcmp(o->index, ":memory:"))
		plain.index = o->index;
	plain.share = max_u64((o->cache ? o->cache : ENGINE_CACHE) / max_u64(share, 1), MIN_CACHE);
	plain.maps = max_u64((o->maps ? o->maps : ENGINE_MAPS) / max_u64(share, 1), MIN_MAPS);
	if (!VEC_ROOM_WITHIN(x->v, x->cap, x->n + 1, OTHERS_MAX))
		return x->n == OTHERS_MAX
			       ? err_set(e, EINVAL, "options name more than %d checkpoints",
					 OTHERS_MAX)
			       : err_nomem(e);
	rc = ckpt_open_with(path, &plain, &x->v[x->n], e);
	if (rc)
		return rc;
	*ret = x->v[x->n++]->engine;
	return 0;
}

void others_close(struct others *o)
{
	for (size_t i = 0; i < o->n; i++)
		ckpt_close(o->v[i]);
	free(o->v);
	*o = (struct others){ 0 };
}

const struct engine *others_of(const struct engine *eng, const struct fetch *f)
{
	for (size_t i = 0; f && i < eng->others.n; i++)
		if (eng->others.v[i]->engine->fetch == f)
			return eng->others.v[i]->engine;
	return eng;
}

bool others_changed(const struct engine *eng)
{
	for (size_t i = 0; i < eng->others.n; i++)
		if (files_changed(eng->others.v[i]->engine->files))
			return true;
	return false;
}

void others_digest(const struct engine *eng, struct digest *d)
{
	for (size_t i = 0; i < eng->others.n; i++) {
		const struct engine *one = eng->others.v[i]->engine;

		digest_add(d, one->identity, strlen(one->identity));
		files_digest(one->files, d);
	}
}

void others_count(const struct engine *eng, struct ckpt_counters *to)
{
	for (size_t i = 0; i < eng->others.n; i++)
		ckpt_counters_add(to, eng->others.v[i]);
}

uint64_t others_mtime(const struct engine *eng)
{
	uint64_t newest = 0;

	for (size_t i = 0; i < eng->others.n; i++)
		newest = max_u64(newest, eng->others.v[i]->engine->mtime_ns);
	return newest;
}
