/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of an FSDP run's ranks, opened, listed and read, twice (twice.h).
 *
 * The input: under what names, how many ranks, then the ranks' files, each after its length. Files
 * are streams of torch.save from before archives, which no checksum protects.
 *
 * Fuzzes: format/fsdp/ format/torch_tensor
 */
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

#include "mutate.h"
#include "twice.h"

enum { MAX_WORLD = 4 };

FRAMES_MUTATOR(2, 0, parts_of_pickle)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* How files are called: as verl's, accelerate's or DINOv2's, or verl's with the optimizer's. */
enum names { VERL, ACCELERATE, DINOV2, WITH_OPTIMIZER, N_NAMES };

static uint8_t byte(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 1);

	return p ? *p : 0;
}

static void name_file(enum names names, unsigned world, unsigned i, char ret[static 100])
{
	switch (names) {
	case ACCELERATE:
		(void)snprintf(ret, 100, "pytorch_model_fsdp_rank%u.bin", i);
		break;
	case DINOV2:
		(void)snprintf(ret, 100, "model_9.rank_%u.pth", i);
		break;
	case WITH_OPTIMIZER:
		(void)snprintf(ret, 100, "actor/%s_world_size_%u_rank_%u.pt",
			       i % 2 ? "optim" : "model", world, i / 2);
		break;
	default:
		(void)snprintf(ret, 100, "model_world_size_%u_rank_%u.pt", world, i);
	}
}

static void write_files(struct cursor *c, enum names names, unsigned world)
{
	for (unsigned i = 0; i < (names == WITH_OPTIMIZER ? 2 : 1) * world; i++) {
		size_t n = cursor_le16(c), left = (size_t)(c->end - c->p);
		const uint8_t *p = cursor_take(c, n < left ? n : left);
		char name[100];

		name_file(names, world, i, name);
		scratch_put(name, p, n < left ? n : left);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cursor c = cursor_of(data, size);
	enum names names = (enum names)(byte(&c) % N_NAMES);
	unsigned world = 1 + byte(&c) % MAX_WORLD;

	scratch_make();
	scratch_empty();
	write_files(&c, names, world);
	look_twice();
	return 0;
}
