/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach - which addresses of the network are within this machine, or within the network that it is
 * in. A server may not lead us there, see http_location. Also which are to be reached without a
 * proxy.
 *
 * Private to core/remote.
 *
 * Threads: pure.
 */
#ifndef REMOTE_REACH_H
#define REMOTE_REACH_H

#include <stdbool.h>

struct sockaddr;

enum reach {
	REACH_PUBLIC,
	REACH_INSIDE, /* this machine (127.0.0.1), or a private network (10.0.0.1) */
	/* Where no store is, but the credentials of a virtual machine may be (169.254.169.254):
	 * link-local addresses and those of no single machine. */
	REACH_NEVER,
};

enum reach reach_of(const struct sockaddr *a);
/* Of a host in an URL: an address in any form, perhaps in brackets, or a name. Names are PUBLIC,
 * except localhost. */
enum reach reach_of_host(const char *host);
/* Is this host of an URL in a list such as no_proxy? As for curl, the list is "*", or consists of
 * names, addresses and networks (10.0.0.0/8), separated by commas or blanks; a name also stands for
 * all hosts that end in .NAME. */
bool reach_is_listed(const char *host, const char *list);

#endif
