/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NeMo 1 says about the number of ranks, whose files have no args: model_config.yaml, which is
 * beside the directories in an archive, and the directories' names. It writes mp_rank_TT only if
 * there are several tensor-parallel ranks, and tp_rank_TT_pp_rank_PPP only if there are several
 * stages (inject_model_parallel_rank in nemo/utils/model_utils.py).
 *
 * Of the YAML, only lines `KEY: NUMBER` of the outermost mapping are read, as OmegaConf writes
 * them.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/text.h"
#include "format/megatron_ranks/mranks.h"
#include "format/small_file.h"
#include "index/catalog_build.h"

#include <string.h>

#define MAX_CONFIG ((size_t)16 << 20) /* bytes */

/* The number of the line "KEY: NUMBER", which may have a comment; else UINT64_MAX. */
static uint64_t number_in(const char *line, const char *end, const char *key)
{
	uint32_t n;

	if (!text_take(&line, key) || !text_take(&line, ": "))
		return UINT64_MAX;
	line += strspn(line, " ");
	if (!text_take_number(&line, 9, &n) || !n)
		return UINT64_MAX;
	if (*line == ' ') {
		line += strspn(line, " ");
		if (*line == '#')
			line = end;
	}
	return line == end || (*line == '\r' && line + 1 == end) ? n : UINT64_MAX;
}

static uint64_t number_of(const char *text, const char *key)
{
	uint64_t r = UINT64_MAX;

	for (const char *line = text; *line;) {
		const char *end = line + strcspn(line, "\n");
		uint64_t n = number_in(line, end, key);

		if (n != UINT64_MAX)
			r = n;
		line = *end ? end + 1 : end;
	}
	return r;
}

int mr_read_config(struct mr *d, struct ckpt_err *e)
{
	struct small_file file CLEANUP(small_file_release) = { 0 };
	struct place_seen seen;
	struct digest hash;
	int rc = place_look(d->place, MR_CONFIG, &seen, e);

	if (rc <= 0 || seen.kind != PLACE_FILE)
		return rc < 0 ? rc : 0;
	rc = small_file_read(d->place, MR_CONFIG, MAX_CONFIG, &file, e);
	if (rc)
		return rc;
	hash = digest_of(XXH3_128bits(file.bytes, file.len));
	file.bytes[file.len] = 0;
	d->config_tp = number_of(file.bytes, "tensor_model_parallel_size");
	d->config_pp = number_of(file.bytes, "pipeline_model_parallel_size");
	return catalog_add_metadata(d->w, MR_CONFIG, &file.seen, &hash, e);
}
