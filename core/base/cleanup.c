/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"

#include <assert.h>

#ifdef CHECK_LOCKS
static _Thread_local unsigned inner, outer;

void lock_note_take(bool is_outer)
{
	assert(!inner && (!is_outer || !outer)); /* see core/README.md */
	*(is_outer ? &outer : &inner) += 1;
}

void lock_note_give(bool is_outer)
{
	unsigned *held = is_outer ? &outer : &inner;

	assert(*held == 1);
	*held = 0;
}
#endif
