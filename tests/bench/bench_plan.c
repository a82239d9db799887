/* SPDX-License-Identifier: Apache-2.0 */
/* Nanoseconds to plan a read: one JSON object on stdout. */
#include "core/whole_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 200000 };

static double now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* A [rows, cols] bf16 tensor cut into r x c equal chunks, contiguous in their items. */
static double measure(uint64_t rows, uint64_t cols, uint32_t r, uint32_t c, uint64_t len)
{
	uint64_t shape[2] = { rows, cols }, *boxes = calloc(4ul * r * c, sizeof(*boxes)), seed = 1;
	uint64_t *strides = calloc(2ul * r * c, sizeof(*strides)), bytes = rows * cols * 2;
	struct payload *payloads = calloc((size_t)r * c, sizeof(*payloads));
	struct plan plan = { 0 };
	struct whole w;
	struct chunkmap *m;
	double start;

	if (!boxes || !strides || !payloads)
		abort();
	for (uint32_t i = 0; i < r * c; i++) {
		boxes[4 * i] = i / c * (rows / r);
		boxes[4 * i + 1] = i % c * (cols / c);
		boxes[4 * i + 2] = rows / r;
		boxes[4 * i + 3] = cols / c;
		strides[2 * i] = cols / c * 2;
		strides[2 * i + 1] = 2;
		payloads[i] = (struct payload){ .data = 704, .stride = strides + 2ul * i };
	}
	m = chunkmap_new(2, shape, boxes, r * c);
	if (!m)
		abort();
	whole_init(&w, m, 2, payloads);
	start = now_ns();
	for (int i = 0; i < ROUNDS; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		if (plan_read(&w.v, &w.source, (seed >> 20) % (bytes - len), len, NULL, &plan))
			abort();
	}
	start = (now_ns() - start) / ROUNDS;
	plan_release(&plan);
	free(m);
	free(boxes);
	free(strides);
	free(payloads);
	return start;
}

int main(void)
{
	printf("{\"4 KiB, 64 row shards\": %.0f, \"4 KiB, 8x8 grid\": %.0f, "
	       "\"4 KiB, 64 column shards\": %.0f, \"1 MiB, 64 row shards\": %.0f, "
	       "\"1 MiB, 64 column shards\": %.0f}\n",
	       measure(8192, 8192, 64, 1, 4096), measure(8192, 8192, 8, 8, 4096),
	       measure(8192, 8192, 1, 64, 4096), measure(8192, 8192, 64, 1, 1 << 20),
	       measure(8192, 8192, 1, 64, 1 << 20));
	return 0;
}
