/* SPDX-License-Identifier: Apache-2.0 */
/*
 * integrity - hashes of a checkpoint's files that are stored beside them.
 *
 * Megatron-core's integrity.json: {"algorithm": "sha256", "files": {"common.pt": "0123...", ...}},
 * for every file in its directory except itself.
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
	const char *dir;   /* directory within place, "" or ending in a slash; borrowed */
	struct jdoc files; /* an object; without a value: there is no integrity.json */
	uint64_t bytes;	   /* total size of the files that exist */
};

/*
 * Returns 0 also if there is no integrity.json; ERR_CORRUPT or ERR_UNSUPPORTED if it is unusable.
 */
int integrity_open(struct place *place, const char *dir, struct integrity *ret, struct ckpt_err *e);
void integrity_close(struct integrity *in);

struct integrity_work {
	uint8_t *buf;
	size_t cap;
	void (*progress)(void *arg, uint64_t bytes); /* called with the number of bytes read */
	void *arg;
};
/* Reads a file and compares its hash. ERR_CORRUPT: it differs; other errors: it cannot be read. */
int integrity_verify(const struct integrity *in, const char *name, struct jval hash,
		     const struct integrity_work *work, struct ckpt_err *e);

#endif
