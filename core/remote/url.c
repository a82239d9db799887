/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/url.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <ctype.h>
#include <curl/curl.h>
#include <string.h>

void url_encode(struct buf *b, const char *s, size_t n, bool slashes)
{
	static const char hex[] = "0123456789ABCDEF";

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];

		if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
		    c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && slashes))
			buf_add(b, s + i, 1);
		else
			buf_add(b, (const char[]){ '%', hex[c >> 4], hex[c & 15] }, 3);
	}
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void url_decode(struct buf *b, const char *s, size_t n, bool plus)
{
	for (size_t i = 0; i < n; i++) {
		char c = s[i];

		if (c == '%' && n - i > 2 && digit(s[i + 1]) >= 0 && digit(s[i + 2]) >= 0) {
			c = (char)(digit(s[i + 1]) << 4 | digit(s[i + 2]));
			i += 2;
		} else if (c == '+' && plus)
			c = ' ';
		buf_add(b, &c, 1);
	}
}

CLEANUP_POINTER(free_parts, CURLU, curl_url_cleanup)

static char *part(CURLU *u, CURLUPart which)
{
	char *s = NULL, *copy;

	if (curl_url_get(u, which, &s, CURLU_NO_DEFAULT_PORT))
		return NULL;
	copy = strdup(s);
	curl_free(s);
	return copy;
}

int url_parse(const char *s, struct url *ret, struct ckpt_err *e)
{
	CURLU *u CLEANUP(free_parts) = curl_url();
	autofree char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *user = NULL;
	autofree char *query = NULL, *fragment = NULL;
	struct buf b CLEANUP(buf_release) = BUF_INIT(2048);
	char shown[200];

	if (!u)
		return err_nomem(e);
	/* It would be shown in messages, and kept in the index. */
	if (text_has_user(s))
		return err_set(e, EINVAL, "a user or password in an address is not supported");
	(void)text_show_address(s, shown, sizeof(shown));
	if (curl_url_set(u, CURLUPART_URL, s, CURLU_PATH_AS_IS | CURLU_NON_SUPPORT_SCHEME))
		return err_set(e, EINVAL, "'%s' is not an address", shown);
	scheme = part(u, CURLUPART_SCHEME);
	host = part(u, CURLUPART_HOST);
	port = part(u, CURLUPART_PORT);
	path = part(u, CURLUPART_PATH);
	user = part(u, CURLUPART_USER);
	query = part(u, CURLUPART_QUERY);
	fragment = part(u, CURLUPART_FRAGMENT);
	if (!scheme || !host || !*host ||
	    (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
		return err_set(e, EINVAL, "'%s' is not an address of http or https", shown);
	if (user)
		return err_set(e, EINVAL, "a user or password in an address is not supported");
	if (query || fragment)
		return err_set(e, EINVAL, "'%s': an address with '%c' is not supported", shown,
			       query ? '?' : '#');
	for (char *c = host; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	buf_str(&b, host);
	if (port)
		buf_printf(&b, ":%s", port);
	if (b.err || !path)
		return err_nomem(e);
	*ret = (struct url){ !strcmp(scheme, "https"), steal_ptr(&b.data), steal_ptr(&path) };
	return 0;
}

void url_release(struct url *u)
{
	free(u->host);
	free(u->path);
	*u = (struct url){ 0 };
}
