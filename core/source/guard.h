/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard - reads mapped files that may be truncated meanwhile. For core/source and core/read.
 *
 * Touching a page beyond a file's end raises SIGBUS. Inside guard_run this only ends the function;
 * elsewhere the signal goes to the previously installed handler.
 *
 * Threads: any.
 */
#ifndef SOURCE_GUARD_H
#define SOURCE_GUARD_H

#include <stdbool.h>

/* Installs the handler, once per process. */
void guard_install(void);

/* Calls fn(arg), which may only access memory, because it can be left at any point. false: it
 * was. */
bool guard_run(void (*fn)(void *arg), void *arg);

#endif
