/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/xml.h"

#include "base/buf.h"
#include "base/err.h"

#include <expat.h>
#include <limits.h>
#include <string.h>

enum { DEPTH_MAX = 16, TEXT_MAX = 16 << 10, PATH_BYTES = 1024 };

struct state {
	XML_Parser parser;
	xml_fn *fn;
	void *arg;
	struct buf path, text;
	size_t ends[DEPTH_MAX]; /* of path, before each element */
	unsigned depth;
	int rc;
	struct ckpt_err *e;
};

static void stop(struct state *s, int rc)
{
	if (!s->rc)
		s->rc = rc;
	(void)XML_StopParser(s->parser, XML_FALSE);
}

static void cut(struct buf *b, size_t len)
{
	b->len = len;
	if (b->data)
		b->data[len] = 0;
}

static void on_start(void *arg, const XML_Char *name, const XML_Char **attributes)
{
	struct state *s = arg;
	const char *colon = strrchr(name, ':');

	(void)attributes;
	if (s->rc)
		return;
	if (s->depth == DEPTH_MAX) {
		stop(s, err_set(s->e, EIO, "XML of more than %d levels refused", DEPTH_MAX));
		return;
	}
	s->ends[s->depth++] = s->path.len;
	if (s->path.len)
		buf_str(&s->path, "/");
	buf_str(&s->path, colon ? colon + 1 : name);
	cut(&s->text, 0);
	if (s->path.err)
		stop(s, s->path.err == ENOMEM ? err_nomem(s->e)
					      : err_set(s->e, EIO, "XML with long names refused"));
}

static void on_end(void *arg, const XML_Char *name)
{
	struct state *s = arg;

	(void)name;
	if (s->rc)
		return;
	if (s->text.err) {
		stop(s, s->text.err == ENOMEM
				? err_nomem(s->e)
				: err_set(s->e, EIO, "XML with a text of more than %d KiB refused",
					  TEXT_MAX >> 10));
		return;
	}
	{
		int rc = s->fn(s->arg, s->path.data, s->text.data ? s->text.data : "", s->text.len,
			       s->e);

		if (rc)
			stop(s, rc);
	}
	cut(&s->path, s->ends[--s->depth]);
	cut(&s->text, 0);
}

static void on_text(void *arg, const XML_Char *p, int n)
{
	struct state *s = arg;

	buf_add(&s->text, p, (size_t)n);
}

static void on_doctype(void *arg, const XML_Char *name, const XML_Char *sysid,
		       const XML_Char *pubid, int has_internal)
{
	struct state *s = arg;

	(void)name;
	(void)sysid;
	(void)pubid;
	(void)has_internal;
	stop(s, err_set(s->e, EIO, "XML with a document type, which is refused"));
}

int xml_parse(const char *p, size_t len, xml_fn *fn, void *arg, struct ckpt_err *e)
{
	struct state s = { .fn = fn,
			   .arg = arg,
			   .path = BUF_INIT(PATH_BYTES),
			   .text = BUF_INIT(TEXT_MAX),
			   .e = e };

	s.parser = XML_ParserCreate(NULL);
	if (!s.parser)
		return err_nomem(e);
	XML_SetUserData(s.parser, &s);
	XML_SetElementHandler(s.parser, on_start, on_end);
	XML_SetCharacterDataHandler(s.parser, on_text);
	XML_SetStartDoctypeDeclHandler(s.parser, on_doctype);
	if (len > INT_MAX)
		s.rc = err_set(e, EIO, "XML of %zu bytes refused", len);
	else if (XML_Parse(s.parser, p, (int)len, 1) != XML_STATUS_OK && !s.rc)
		s.rc = XML_GetErrorCode(s.parser) == XML_ERROR_NO_MEMORY
			       ? err_nomem(e)
			       : err_set(e, EIO, "not the XML that was expected: %s, line %lu",
					 XML_ErrorString(XML_GetErrorCode(s.parser)),
					 (unsigned long)XML_GetCurrentLineNumber(s.parser));
	XML_ParserFree(s.parser);
	buf_release(&s.path);
	buf_release(&s.text);
	return s.rc;
}
