/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpus - the number of CPUs that this process may use, which containers and taskset(1) restrict.
 *
 * Threads: no state.
 */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

#include <sched.h>
#include <unistd.h>

/* At least 1. */
static inline unsigned cpus_usable(void)
{
	cpu_set_t set;
	long all;

	if (!sched_getaffinity(0, sizeof(set), &set))
		return (unsigned)CPU_COUNT(&set);
	all = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than fit the set */
	return all > 0 ? (unsigned)all : 1;
}

#endif
