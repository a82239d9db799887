/* SPDX-License-Identifier: Apache-2.0 */
/*
 * integrity - hashes of a checkpoint's files that lie beside them.
 *
 * Megatron-core's integrity.json: {"algorithm": "sha256", "files": {"common.pt": "0123...", ...}},
 * over every file in its directory but itself.
 *
 *	rc = integrity_open(dirfd, "", &in, &e);
 *	json_object_foreach (in.files, name, hash)
 *		rc = integrity_verify(&in, name, hash, &work, &e);
 *	integrity_close(&in);
 *
 * Private to core/api. Threads: one at a time.
 */
#ifndef API_INTEGRITY_H
#define API_INTEGRITY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct integrity {
	int dirfd;
	const char *dir; /* where in it, "" or with a slash at its end; borrowed */
	json_t *files;	 /* NULL: there is no integrity.json */
	uint64_t bytes;	 /* of all files that are there */
};

/* 0 also when there is none; ERR_CORRUPT and ERR_UNSUPPORTED when nothing can be verified by it. */
int integrity_open(int dirfd, const char *dir, struct integrity *ret, struct ckpt_err *e);
void integrity_close(struct integrity *in);

struct integrity_work {
	uint8_t *buf;
	size_t cap;
	void (*progress)(void *arg, uint64_t bytes); /* that were read */
	void *arg;
};
/* Read a file and compare. ERR_CORRUPT: it has other bytes; or why it cannot be read. */
int integrity_verify(const struct integrity *in, const char *name, const json_t *hash,
		     const struct integrity_work *work, struct ckpt_err *e);

#endif
