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
