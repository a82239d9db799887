/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng - random numbers for property tests, from the seed that the runner prints (TEST_SEED).
 *
 *	struct rng r = rng_new();
 *	uint64_t n = 1 + rng_below(&r, 5);    // 1..5
 *
 * `make check` is a short run: it draws fewer numbers, and does only a part of what takes long, a
 * different one with each seed. `make check-full` does all of it, and builds with sanitizers do
 * most.
 */
#ifndef TESTS_RNG_H
#define TESTS_RNG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct rng {
	uint64_t state;
};

static inline struct rng rng_new(void)
{
	const char *seed = getenv("TEST_SEED");

	return (struct rng){ seed ? strtoull(seed, NULL, 10) : 1 };
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t rng_u64(struct rng *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* 0 <= result < n, n > 0 */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
	return rng_u64(r) % n;
}

/* Is everything to run? */
static inline bool rng_full(void)
{
	const char *full = getenv("CHECK_FULL");

	return full && *full;
}

/* $MOST_CASES, which bounds loops; 0 if it is not set or empty. */
static inline int rng_most(void)
{
	const char *most = getenv("MOST_CASES");

	return most ? atoi(most) : 0;
}

/* Is this a long run? Those under sanitizers are, unless MOST_CASES bounds them. */
static inline bool rng_long(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return rng_full() || !rng_most();
#else
	return rng_full();
#endif
}

/* How often. */
static inline unsigned rng_rounds(unsigned many, unsigned few)
{
	return rng_long() ? many : few;
}

/* Is it the turn of number i? In a short run, one number in `of` gets its turn. */
static inline bool rng_turn(uint64_t i, uint64_t of)
{
	struct rng r = rng_new();

	return rng_full() || (rng_u64(&r) % of + i) % of == 0;
}

/* The same, but sanitizers see all of them. */
static inline bool rng_sample(uint64_t i, uint64_t of)
{
	return rng_long() || rng_turn(i, of);
}

static inline bool rng_chance(struct rng *r, unsigned percent)
{
	return rng_below(r, 100) < percent;
}

/* Any float32: also subnormals, infinities and NaNs. */
static inline float rng_float_bits(struct rng *r)
{
	uint32_t bits = (uint32_t)rng_u64(r);
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

#endif
