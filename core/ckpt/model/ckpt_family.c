/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/open/assets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = CKPT_FAMILY_MAX / 2 - 2 };

CLEANUP_POINTER(close_file, struct ckpt_file, ckpt_file_close)

/* Reads config.json as hf/ shows it. False: there is none, or it cannot be read. */
static bool read_config(struct ckpt *c, char **text, struct jdoc *d)
{
	struct ckpt_file *f CLEANUP(close_file) = NULL;
	struct ckpt_err ignored = { 0 };
	uint64_t size;

	if (ckpt_file_open_path(c, "hf/config.json", &f, &ignored))
		return false;
	size = ckpt_file_size(f);
	if (size > ASSETS_MAX_CONFIG)
		return false;
	*text = malloc(size + 1); /* and a byte for jdoc_parse */
	return *text && ckpt_file_read(f, *text, size, 0, &ignored) == (int64_t)size &&
	       !jdoc_parse(d, *text, size, JDOC_BIG, &ignored);
}

static const char *shown(const char *s, char out[static MAX_WORD])
{
	return text_show(s, strlen(s), out, MAX_WORD);
}

size_t ckpt_family(struct ckpt *c, char *buf, size_t cap)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	char words[2][MAX_WORD], all[CKPT_FAMILY_MAX];
	autofree char *text = NULL;
	const char *type, *class;
	size_t len;

	if (cap)
		*buf = 0;
	if (!read_config(c, &text, &d))
		return 0;
	type = jval_str(jval_get(jdoc_root(&d), "model_type"));
	class = jval_str(jval_at(jval_get(jdoc_root(&d), "architectures"), 0));
	if (type && class)
		(void)snprintf(all, sizeof(all), "%s (%s)", shown(type, words[0]),
			       shown(class, words[1]));
	else if (type || class)
		(void)stpcpy(all, shown(type ? type : class, words[0]));
	else
		return 0;
	len = strlen(all);
	if (cap)
		(void)snprintf(buf, cap, "%s", all);
	return len;
}
