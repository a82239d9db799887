/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/coding.h"

#include "base/checked.h"
#include "base/text.h"

#include <string.h>

static const struct {
	const char *name;
	enum codec codec;
	bool versioned; /* only the version's first number matters to torch */
} codecs[] = {
	{ "stream.zstd/1", CODEC_ZSTD, true }, { "zstd", CODEC_ZSTD, false },
	{ "gzip", CODEC_GZIP, false },	       { "zlib", CODEC_ZLIB, false },
	{ "blosc", CODEC_BLOSC, false },       { "crc32c", CODEC_CRC32C, false },
};

static enum codec take(const char **names)
{
	for (size_t i = 0; i < ARRAY_LEN(codecs); i++) {
		const char *p = *names;

		if (!text_take(&p, codecs[i].name))
			continue;
		if (codecs[i].versioned && *p == '.')
			p += strcspn(p, "+");
		if (*p && *p != '+')
			continue;
		*names = p;
		return codecs[i].codec;
	}
	return CODEC_NONE;
}

bool coding_parse(const char *names, uint32_t *ret)
{
	*ret = 0;
	for (int n = 0; *names; n++) {
		enum codec c = n < CODING_MAX && text_take(&names, "+") ? take(&names) : CODEC_NONE;

		if (!c)
			return false;
		*ret = *ret << 4 | c;
	}
	return true;
}
