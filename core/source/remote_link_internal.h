/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_link_internal - what the files that implement links share.
 *
 *	remote_link.c		which links there are, how each begins and ends, and what all of them may
 *				open once the process is confined
 *	remote_link_calls.c	calls: sends them, and waits for their answers
 *	remote_link_receive.c	the receiver: a thread of each link, which reads what is sent to it
 *	remote_fetcher.c	starts ckptfs-fetch
 *
 * Private to core/source.
 *
 * Threads: any may call, and one, the receiver, receives. Every field of a link belongs to one of
 * these groups, which are also the sections of struct link:
 *
 *	of all links	Under the mutex in remote_link.c.
 *	fixed		Set before any other thread has the link, and not changed after that.
 *	the receiver's	Used by it alone while it runs.
 *	the socket	The receiver alone changes it, under `sending`, and so reads it and sends to it
 *			without. Other threads send under `sending`, lest the fetcher be replaced
 *			while a message goes out, and compare the epoch there: what is meant for one
 *			fetcher never reaches the next. No thread waits while it holds `sending`:
 *			if the socket has no room for a call, the thread releases `sending` and tries
 *			again. If it has none for a message without an answer, the message is kept,
 *			and the next thread that sends something sends it first.
 *	shared		Under `lock`. So is every call from the moment it is in `calls`: the receiver
 *			fills in the answer, and after it has set `taken`, the caller waits until it
 *			has set `done`, too. A caller waits on its call's condition, with `lock`.
 *	atomic		Read without a mutex; `epoch` and `down` are changed under `lock`.
 *
 * link_rest is the exception: no other function is called meanwhile, so it uses links without their
 * mutexes, and sockets once it has ended the receivers.
 *
 * A thread holds at most one of these mutexes. Files have their own, so the receiver holds none
 * when it calls a file, except for rfile_hold, which takes none.
 */
#ifndef SOURCE_REMOTE_LINK_INTERNAL_H
#define SOURCE_REMOTE_LINK_INTERNAL_H

#include "source/remote_internal.h"

/* The ids of messages that are not calls. */
enum {
	PING_ID = 0xffffffff,
	HELLO_ID = 0xfffffffe,
};

#define LINK_ENDED "ckptfs-fetch, which reads object stores, has ended"

struct link {
	/* Of all links. */
	unsigned users;
	bool listed;
	LIST_LINK(struct link) link;
	/* Fixed. */
	char *cache_dir;
	struct link_key key;
	pid_t owner;
	int stop;    /* wakes the receiver to end */
	int control; /* of the process that starts fetchers */
	/* The receiver's. */
	bool deserted; /* the process that starts fetchers has ended */
	bool orphan;   /* its last user was the receiver, which frees it */
	/* The socket. */
	pthread_mutex_t sending;
	int sock;		/* of the fetcher; -1: none runs */
	struct wire_head *left; /* messages of link_tell that there was no room for */
	size_t n_left, cap_left;
	/* Shared. */
	pthread_mutex_t lock;
	pthread_cond_t change; /* of up and down */
	pthread_t receiver;    /* if `receives` */
	bool receives;
	LIST(struct call) calls;
	uint32_t last_id;
	bool up;	      /* a fetcher has answered our hello */
	struct ckpt_err why;  /* if down */
	struct rfile **files; /* of this epoch */
	size_t n_files;
	const struct wire_counts *counts; /* NULL: there are none */
	struct place_network before;	  /* of fetchers that have died */
	/* Atomic. */
	_Atomic uint64_t epoch;
	atomic_bool down;
	atomic_bool resting; /* the receiver ends, and the link goes on */
	_Atomic uint64_t heard_ns;
	_Atomic uint64_t hits, misses;
};

/* ---- links: remote_link.c ---- */

/* Call it when no thread uses the link any more. */
void link_free(struct link *l);
/* Says to a fetcher, or to the process that starts them, what this one may ask for from now on.
 * Does nothing before link_rest. */
void link_send_seal(const struct link *l, int sock);

/* ---- the receiver ---- */

/* Under the lock. */
int link_start_receiver(struct link *l, struct ckpt_err *e);
/* The link is of no use any more: its calls fail with this reason, or with that of an earlier
 * call. */
void link_go_down(struct link *l, int code, const char *why);
/* Requests and bytes, also of fetchers that have died. Under the lock. */
void link_add_counts(struct link *l, struct place_network *n);

/* ---- calls ---- */

/* NULL: there is none. Under the lock. */
struct call *link_find_call(struct link *l, uint32_t id);
/* Waits until a fetcher runs, and starts the receiver if there is none. Under the lock. */
int link_await_fetcher(struct link *l, uint64_t until_ns, struct ckpt_err *e);

/* ---- ckptfs-fetch ---- */

/* The caller frees it. */
int fetcher_find(char **ret, struct ckpt_err *e);
/* `sock` is its WIRE_FD, and remains the caller's, too. */
int fetcher_spawn(const char *program, int sock, struct ckpt_err *e);

#endif
