/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_base - what all headers of libckpt share: how its functions are declared, and the error that
 * they set. A header that includes this one is installed, and programs in C and C++ use it.
 *
 * Threads: no shared state.
 */
#ifndef CKPTFS_CKPT_BASE_H
#define CKPTFS_CKPT_BASE_H

/* A function of libckpt; all else is hidden. */
#define CKPT_API __attribute__((visibility("default")))

#ifdef __cplusplus
#define CKPT_BEGIN   extern "C" {
#define CKPT_END     }
#define CKPT_ROOM(n) (n) /* C++ has no `static n` */
#else
#define CKPT_BEGIN
#define CKPT_END
#define CKPT_ROOM(n) static(n) /* of an array that is an argument: at least so many */
#endif

/*
 * Supplied by the caller: on success it is untouched, on failure always set. The message is one
 * sentence: what was being done, to which thing, what was found.
 */
struct ckpt_err {
	int code; /* positive errno */
	char msg[384];
};

#endif
