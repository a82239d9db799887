/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a DeepSpeed run's ranks (ZeRO 1 to 3, pipelines, experts), opened, listed and read,
 * twice (twice.h).
 *
 * The input is files: of what kind (kinds[], below), two numbers of the name, the length, the
 * contents. Files are streams of torch.save from before archives, which no checksum protects.
 *
 * Fuzzes: format/deepspeed/ format/torch_tensor
 */
#include "base/bytes.h"

#include "mutate.h"
#include "twice.h"

enum { MAX_FILES = 32 };

FRAMES_MUTATOR(0, 3, parts_of_pickle)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void name_file(const uint8_t *how, char ret[static 100])
{
	unsigned a = how[1], b = how[2];

	switch (how[0] % 8) {
	case 0:
		(void)snprintf(ret, 100, "step/mp_rank_%02u_model_states.pt", b);
		break;
	case 1:
		(void)snprintf(ret, 100, "step/zero_pp_rank_%u_mp_rank_%02u_optim_states.pt", a, b);
		break;
	case 2:
		(void)snprintf(ret, 100, "step/bf16_zero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
			       a, b);
		break;
	case 3:
		(void)snprintf(ret, 100, "step/zero_pp_rank_%u_mp_rank_%02u_model_states.pt", a, b);
		break;
	case 4:
		(void)snprintf(ret, 100, "step/layer_%02u-model_states.pt", a);
		break;
	case 5:
		(void)snprintf(ret, 100, "step/layer_%02u-model_%02u-model_states.pt", a, b);
		break;
	case 6:
		(void)snprintf(ret, 100, "step/layer_%u_expert_%u_mp_rank_00_model_states.pt", a,
			       b);
		break;
	default:
		(void)snprintf(ret, 100, "step/expp_rank_%u_mp_rank_%02u_optim_states.pt", a, b);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cursor c = cursor_of(data, size);
	const uint8_t *how, *p;
	char name[100];

	scratch_make();
	scratch_empty();
	scratch_put("latest", (const uint8_t *)"step", 4);
	for (int i = 0; i < MAX_FILES && (how = cursor_take(&c, 3)); i++) {
		size_t n = cursor_le16(&c), left = (size_t)(c.end - c.p);

		n = n < left ? n : left;
		p = cursor_take(&c, n);
		name_file(how, name);
		scratch_put(name, p, n);
	}
	look_twice();
	return 0;
}
