/* SPDX-License-Identifier: Apache-2.0 */
/*
 * integrity - hashes of a checkpoint's files that lie beside them.
 *
 * Megatron-core's integrity.json: {"algorithm": "sha256", "files": {"common.pt": "0123...", ...}},
 * over every file in its directory but itself.
 *
 *	rc = integrity_open(place, "", &in, &e);
 *	for (struct jiter i = jiter(jdoc_root(&in.files)); jiter_next(&i);)
 *		rc = integrity_verify(&in, i.key, i.v, &work, &e);
 *	integrity_close(&in);
 *
 * Private to core/ckpt. Threads: one at a time.
 */
#ifndef CKPT_INTEGRITY_H
#define CKPT_INTEGRITY_H

#include "base/json.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct place;

struct integrity {
	struct place *place;
	const char *dir;   /* where in it, "" or with a slash at its end; borrowed */
	struct jdoc files; /* an object; or no value: there is no integrity.json */
	uint64_t bytes;	   /* of all files that are there */
};

/* 0 also when there is none; ERR_CORRUPT and ERR_UNSUPPORTED when nothing can be verified by it. */
int integrity_open(struct place *place, const char *dir, struct integrity *ret, struct ckpt_err *e);
void integrity_close(struct integrity *in);

struct integrity_work {
	uint8_t *buf;
	size_t cap;
	void (*progress)(void *arg, uint64_t bytes); /* that were read */
	void *arg;
};
/* Read a file and compare. ERR_CORRUPT: it has other bytes; or why it cannot be read. */
int integrity_verify(const struct integrity *in, const char *name, struct jval hash,
		     const struct integrity_work *work, struct ckpt_err *e);

#endif
