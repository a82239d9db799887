/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/reach.h"

#include "base/checked.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct prefix {
	uint8_t v[16];
	unsigned bits;
	enum reach reach;
};

static bool begins(const uint8_t *a, const struct prefix *p)
{
	unsigned whole = p->bits / 8, rest = p->bits % 8;

	return !memcmp(a, p->v, whole) && !(rest && (a[whole] ^ p->v[whole]) >> (8 - rest));
}

/* IANA's registries of special-purpose addresses. */
static enum reach reach_of_4(const uint8_t *a)
{
	static const struct prefix all[] = {
		{ { 0 }, 8, REACH_NEVER },	    { { 10 }, 8, REACH_INSIDE },
		{ { 100, 64 }, 10, REACH_INSIDE },  { { 127 }, 8, REACH_INSIDE },
		{ { 169, 254 }, 16, REACH_NEVER },  { { 172, 16 }, 12, REACH_INSIDE },
		{ { 192, 168 }, 16, REACH_INSIDE }, { { 224 }, 3, REACH_NEVER },
	};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (begins(a, &all[i]))
			return all[i].reach;
	return REACH_PUBLIC;
}

static enum reach reach_of_6(const uint8_t *a)
{
	/* Addresses of IPv4 are in others after a prefix: ::ffff:1.2.3.4, NAT64, 6to4. */
	static const struct prefix mapped[] = {
		{ { [10] = 0xff, 0xff }, 96, 0 },
		{ { 0, 0x64, 0xff, 0x9b }, 96, 0 },
		{ { 0x20, 0x02 }, 16, 0 },
	};
	static const struct prefix all[] = {
		{ { [15] = 1 }, 128, REACH_INSIDE },
		{ { 0 }, 96, REACH_NEVER },
		{ { 0, 0x64, 0xff, 0x9b, 0, 1 }, 48, REACH_INSIDE },
		{ { 0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, 0x54 }, 128, REACH_NEVER }, /* of AWS */
		{ { 0xfd, 0x20, 0x00, 0xce, [14] = 0x02, 0x54 }, 128, REACH_NEVER }, /* of Google */
		{ { 0xfc }, 7, REACH_INSIDE },
		{ { 0xfe, 0x80 }, 10, REACH_NEVER },
		{ { 0xfe, 0xc0 }, 10, REACH_INSIDE },
		{ { 0xff }, 8, REACH_NEVER },
	};

	for (size_t i = 0; i < ARRAY_LEN(mapped); i++)
		if (begins(a, &mapped[i]))
			return reach_of_4(a + mapped[i].bits / 8);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (begins(a, &all[i]))
			return all[i].reach;
	return REACH_PUBLIC;
}

enum reach reach_of(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return reach_of_4(
			(const uint8_t *)&((const struct sockaddr_in *)(const void *)a)->sin_addr);
	if (a->sa_family == AF_INET6)
		return reach_of_6((const uint8_t *)&((const struct sockaddr_in6 *)(const void *)a)
					  ->sin6_addr);
	return REACH_NEVER;
}

enum reach reach_of_host(const char *host)
{
	static const char local[] = "localhost";
	const char *from = host + (*host == '[');
	char text[256];
	struct in6_addr six;
	struct in_addr four;
	size_t n = strcspn(from, "]%"); /* an interface is no part of the address */

	(void)snprintf(text, sizeof(text), "%.*s", (int)n, from);
	if (inet_pton(AF_INET6, text, &six) == 1)
		return reach_of_6(six.s6_addr);
	n = strlen(text);
	if (n && text[n - 1] == '.')
		text[--n] = 0;
	if (inet_aton(text, &four)) /* also of forms such as 0x7f.1, which getaddrinfo knows, too */
		return reach_of_4((const uint8_t *)&four);
	n = n < sizeof(local) - 1 ? 0 : n - (sizeof(local) - 1);
	return !strcasecmp(text + n, local) && (!n || text[n - 1] == '.') ? REACH_INSIDE
									  : REACH_PUBLIC;
}

/* ---- lists of hosts ---- */

/* How many bits the address has that the text is; 0: it is none. */
static unsigned parse_address(const char *text, uint8_t *ret)
{
	return inet_pton(AF_INET, text, ret) == 1    ? 32
	       : inet_pton(AF_INET6, text, ret) == 1 ? 128
						     : 0;
}

/* entry: ADDRESS or ADDRESS/BITS. */
static bool has_address(const char *entry, const uint8_t *a, unsigned width)
{
	struct prefix p = { .bits = width };
	char text[64];
	size_t n = strcspn(entry, "/");
	int len = 0;

	(void)snprintf(text, sizeof(text), "%.*s", (int)n, entry);
	if (n >= sizeof(text) || parse_address(text, p.v) != width ||
	    (entry[n] &&
	     (sscanf(entry + n, "/%3u%n", &p.bits, &len) != 1 || entry[n + (size_t)len])))
		return false;
	return p.bits <= width && begins(a, &p);
}

/* entry: NAME, perhaps with a dot before or after it. */
static bool has_name(const char *entry, const char *name)
{
	size_t n = strlen(name), len;

	entry += *entry == '.';
	len = strlen(entry);
	len -= len && entry[len - 1] == '.';
	n -= n && name[n - 1] == '.';
	return len && len <= n && !strncasecmp(name + n - len, entry, len) &&
	       (len == n || name[n - len - 1] == '.');
}

bool reach_is_listed(const char *host, const char *list)
{
	static const char between[] = ", \t";
	const char *from = host + (*host == '[');
	char name[256], entry[256];
	uint8_t a[16];
	unsigned width;
	size_t n;

	(void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(from, "]%"), from);
	width = parse_address(name, a);
	for (const char *p = list; *(p += strspn(p, between)); p += n) {
		n = strcspn(p, between);
		(void)snprintf(entry, sizeof(entry), "%.*s", (int)n, p);
		if (n < sizeof(entry) &&
		    (width ? has_address(entry, a, width) : has_name(entry, name)))
			return true;
	}
	return !strcmp(list, "*");
}
