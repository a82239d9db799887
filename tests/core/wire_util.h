/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_util - a message of wire.h and the answer to it.
 *
 *	struct wire_head h = { .kind = WIRE_OPEN };
 *	ck_assert_uint_eq(wire_ask(sock, &h, "s3://b", 7, -1, text).n[0], 0);
 */
#ifndef TESTS_WIRE_UTIL_H
#define TESTS_WIRE_UTIL_H

#include "source/wire.h"
#include "suites.h"

#include <stdio.h>

/* Sends the message and waits for its answer, whose text goes to *ret_text; other messages are
 * dropped. This allocates nothing, so that other allocations can be made to fail meanwhile. */
static inline struct wire_head wire_ask(int sock, const struct wire_head *h, const void *text,
					size_t len, int fd, char ret_text[static 512])
{
	struct wire_head copy = *h;
	struct wire_msg m;

	copy.id = 77;
	REQUIRE(!wire_send(sock, &copy, text, len, fd));
	do {
		REQUIRE(wire_receive(sock, &m) == 1);
		if (m.fd >= 0)
			(void)close(m.fd);
	} while (m.head.kind != WIRE_ANSWER || m.head.id != 77);
	(void)snprintf(ret_text, 512, "%.500s", m.text);
	return m.head;
}

#endif
