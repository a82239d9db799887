/* SPDX-License-Identifier: Apache-2.0 */
#include "page/page.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <libdeflate.h>
#include <nettle/base64.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>

/* The Makefile records that this file depends on them. Consecutive files form one script. */
#define FILE_OF(name) ".incbin \"core/page/" name "\"\n"
#define INCLUDE(symbol, files) \
	__asm__(".pushsection .rodata\n" \
		"page_" #symbol ": " files ".byte 0\n" \
		".popsection\n"); \
	extern const char page_##symbol[]
#define TOOLS \
	FILE_OF("data.js") \
	FILE_OF("text.js") FILE_OF("names.js") FILE_OF("list.js") FILE_OF("treemap.js")

INCLUDE(html, FILE_OF("page.html"));
INCLUDE(style, FILE_OF("page.css"));
INCLUDE(script, TOOLS FILE_OF("chunks.js") FILE_OF("detail.js") FILE_OF("main.js"));
INCLUDE(live_style, FILE_OF("page.css") FILE_OF("heat.css"));
INCLUDE(diff_style, FILE_OF("page.css") FILE_OF("diff.css"));
INCLUDE(diff_script, TOOLS FILE_OF("detail.js") FILE_OF("diff.js") FILE_OF("main.js"));

INCLUDE(heat, FILE_OF("heat.js"));

/* Fast enough for hundreds of MiB; 12, the best level, saves 5 % and takes ten times as long. */
enum { LEVEL = 7 };

void page_add_uint(struct buf *b, uint64_t v)
{
	unsigned char bytes[10];
	size_t n = 0;

	for (; v >= 0x80; v >>= 7)
		bytes[n++] = (unsigned char)(v | 0x80);
	bytes[n++] = (unsigned char)v;
	buf_add(b, bytes, n);
}

void page_add_int(struct buf *b, int64_t v)
{
	page_add_uint(b, v < 0 ? ~((uint64_t)v << 1) : (uint64_t)v << 1);
}

void page_add_floats(struct buf *b, const void *first, size_t n, size_t stride)
{
	unsigned char *at = buf_room(b, n * sizeof(float));

	if (!at)
		return;
	for (size_t i = 0; i < n; i++) {
		unsigned char bytes[sizeof(float)];

		memcpy(bytes, (const char *)first + i * stride, sizeof(bytes));
		for (size_t k = 0; k < sizeof(bytes); k++)
			at[k * n + i] = bytes[k];
	}
	b->len += n * sizeof(float);
}

static const char *style_of(const struct page *p)
{
	return p->diff ? page_diff_style : p->live ? page_live_style : page_style;
}

static const char *script_of(const struct page *p)
{
	return p->diff ? page_diff_script : page_script;
}

static int check(const struct buf *b, struct ckpt_err *e)
{
	return b->err ? err_sys(e, b->err, "page") : 0;
}

/* Text of an element or an attribute. */
static void add_escaped(struct buf *b, const char *s)
{
	const char *end = s + strlen(s);

	while (s < end) {
		const char *at = s;
		uint32_t c = text_next(&s, end);

		if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\'')
			buf_printf(b, "&#%u;", (unsigned)c);
		else if (text_unfit(at, end) || (c >= 0xD800 && c <= 0xDFFF) || c == 0xFFFD)
			buf_str(b, "\xEF\xBF\xBD");
		else
			buf_add(b, at, (size_t)(s - at));
	}
}

/* 'sha256-...', as a content security policy names what it allows. */
static void add_hash(struct buf *b, const char *s)
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	char text[BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE)];
	struct sha256_ctx h;

	sha256_init(&h);
	sha256_update(&h, strlen(s), (const uint8_t *)s);
	sha256_digest(&h, sizeof(digest), digest);
	base64_encode_raw(text, sizeof(digest), digest);
	buf_str(b, "'sha256-");
	buf_add(b, text, sizeof(text));
	buf_str(b, "'");
}

/* Adds the template up to @NAME@, without it, and returns the length of the name. 0: the template
 * has ended. */
static size_t add_until_mark(struct page *p, const char **ret)
{
	const char *at = p->rest, *end;

	while ((at = strchr(at, '@'))) {
		end = ++at;
		while (*end >= 'A' && *end <= 'Z')
			end++;
		if (end == at || *end != '@')
			continue;
		buf_add(&p->out, p->rest, (size_t)(at - 1 - p->rest));
		p->rest = end + 1;
		*ret = at;
		return (size_t)(end - at);
	}
	buf_str(&p->out, p->rest);
	p->rest += strlen(p->rest);
	return 0;
}

static bool is(const char *name, size_t len, const char *wanted)
{
	return len == strlen(wanted) && !memcmp(name, wanted, len);
}

/* A page in a mount may load its own files: */
static void add_live_policy(struct buf *b)
{
	buf_str(b, " ");
	add_hash(b, page_heat);
	/* For a page opened as file://, 'self' does not match any file. */
	buf_str(b, " 'self' file:; img-src 'self' file:");
}

int page_begin(struct page *p, const char *title, struct ckpt_err *e)
{
	const char *name;
	size_t len;

	p->rest = page_html;
	while ((len = add_until_mark(p, &name)) && !is(name, len, "DATA")) {
		if (is(name, len, "TITLE"))
			add_escaped(&p->out, title);
		else if (is(name, len, "STYLEHASH"))
			add_hash(&p->out, style_of(p));
		else if (is(name, len, "SCRIPTHASH"))
			add_hash(&p->out, script_of(p));
		else if (is(name, len, "LIVE") && p->live)
			add_live_policy(&p->out);
		else if (is(name, len, "STYLE"))
			buf_str(&p->out, style_of(p));
	}
	if (p->live) {
		buf_str(&p->out, "<script>");
		buf_str(&p->out, page_heat);
		buf_str(&p->out, "</script>\n<script src=\"data.js\"></script>\n");
	}
	return check(&p->out, e);
}

CLEANUP_POINTER(free_compressor, struct libdeflate_compressor, libdeflate_free_compressor)

/* The caller frees *ret. 0: out of memory. */
static size_t compress(const struct buf *data, uint8_t **ret)
{
	struct libdeflate_compressor *c CLEANUP(free_compressor) =
		libdeflate_alloc_compressor(LEVEL);
	size_t bound = c ? libdeflate_deflate_compress_bound(c, data->len) : 0;

	*ret = c ? malloc(bound) : NULL;
	return *ret ? libdeflate_deflate_compress(c, data->len ? data->data : "", data->len, *ret,
						  bound)
		    : 0;
}

size_t page_section_size(const struct buf *data)
{
	autofree uint8_t *packed = NULL;
	size_t n = compress(data, &packed);

	return n ? BASE64_ENCODE_RAW_LENGTH(n) : 0;
}

int page_section(struct page *p, const char *id, const struct buf *data, struct ckpt_err *e)
{
	autofree uint8_t *packed = NULL;
	size_t n, text;
	char *at;

	if (check(data, e))
		return -e->code;
	n = compress(data, &packed);
	if (!n)
		return err_nomem(e);
	text = BASE64_ENCODE_RAW_LENGTH(n);
	buf_printf(&p->out,
		   p->data ? "%s:\"" : "<script type=\"application/octet-stream\" id=\"data-%s\">",
		   id);
	at = buf_room(&p->out, text);
	if (at) {
		base64_encode_raw(at, n, packed);
		p->out.len += text;
	}
	buf_str(&p->out, p->data ? "\",\n" : "</script>\n");
	return check(&p->out, e);
}

size_t page_size(const struct page *p)
{
	return p->out.len + strlen(p->rest) + strlen(script_of(p));
}

int page_end(struct page *p, struct ckpt_err *e)
{
	const char *name;
	size_t len;

	while ((len = add_until_mark(p, &name)))
		if (is(name, len, "SCRIPT"))
			buf_str(&p->out, script_of(p));
	return check(&p->out, e);
}

void page_release(struct page *p)
{
	buf_release(&p->out);
}
