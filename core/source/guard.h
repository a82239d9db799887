/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard - reading mapped files that may become shorter meanwhile. For core/source and core/read.
 *
 * A page behind a file's end is SIGBUS when it is touched. Inside guard_run it only ends the
 * function; elsewhere the signal goes to the handler from before guard_install.
 *
 * Threads: any.
 */
#ifndef SOURCE_GUARD_H
#define SOURCE_GUARD_H

#include <stdbool.h>

/* Take the signal, once in a process. */
void guard_install(void);

/* Call fn(arg), which touches memory and nothing else: it may be left anywhere. false: it was. */
bool guard_run(void (*fn)(void *arg), void *arg);

#endif
