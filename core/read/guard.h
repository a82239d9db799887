/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard - reading mapped files that may become shorter meanwhile. Private to core/read.
 *
 * A page behind a file's end is SIGBUS for whoever touches it. Inside guard_run it only ends the
 * function; elsewhere the signal goes to whoever had it before guard_install.
 *
 * Threads: any.
 */
#ifndef READ_GUARD_H
#define READ_GUARD_H

#include <stdbool.h>

/* Take the signal, once in a process. */
void guard_install(void);

/* Call fn(arg), which touches memory and nothing else: it may be left anywhere. false: it was. */
bool guard_run(void (*fn)(void *arg), void *arg);

#endif
