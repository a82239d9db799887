/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server - answers the messages of the process that started ckptfs-fetch; see wire.h.
 *
 * One thread decides: it receives, keeps the files, what is wanted and what is on its way, and
 * sends. Others look, list and open (store.h blocks), and the network's thread stores the bytes it
 * gets. They hand their results to the first through a queue.
 *
 * What is fetched next:
 *   - what a reader waits for, at once, and no more than the blocks that it asked for;
 *   - then what was wanted, in the order in which it was wanted: missing blocks that adjoin, or
 *     nearly so, become a request of 1 MiB, the next that goes on from there of 2, 4 and 8 MiB; as
 *     many at a time as the network thinks worth having, and as fit in a window.
 *
 * The window begins with 16 MiB and doubles while that makes the bytes flow faster, up to 1.7 times
 * what is on the way at the speed seen (B (L + s / b)), 256 MiB and 1/8 of the machine's memory.
 *
 * Private to core/remote.
 */
#ifndef REMOTE_SERVER_H
#define REMOTE_SERVER_H

struct seal;

/* Serves until the other side is gone: 0, or a negative errno if it sends what it must not. seal:
 * what was sealed before this process began, taken over; NULL: nothing. */
int server_run(int sock, const struct seal *seal);

#endif
