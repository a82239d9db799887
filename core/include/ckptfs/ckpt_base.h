/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_base - what all headers of libckpt share: how its functions are declared, and the error
 * value they set. Headers that include this one are installed, for programs in C and C++.
 *
 * Threads: no shared state.
 */
#ifndef CKPTFS_CKPT_BASE_H
#define CKPTFS_CKPT_BASE_H

/* A function of libckpt; all others are hidden. */
#define CKPT_API __attribute__((visibility("default")))

#ifdef __cplusplus
#define CKPT_BEGIN   extern "C" {
#define CKPT_END     }
#define CKPT_ROOM(n) (n) /* C++ has no `static n` */
#else
#define CKPT_BEGIN
#define CKPT_END
#define CKPT_ROOM(n) static(n) /* array argument: at least n elements */
#endif

/*
 * Supplied by the caller: untouched on success, always set on failure. The message is one sentence
 * that says what was being done, to what, and what was found; "..." ends one that is too long.
 */
struct ckpt_err {
	int code; /* positive errno */
	char msg[384];
};

#endif
