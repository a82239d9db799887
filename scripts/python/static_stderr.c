/* SPDX-License-Identifier: Apache-2.0 */
/*
 * static_stderr - stderr for the libblosc.a in a wheel's libckpt.
 *
 * Debian compiles its static libraries for programs, where a variable of the C library may be addressed as if it
 * were the program's own; the linker refuses that in a shared library. The only such variable is stderr, in
 * libblosc.a: `make wheel` renames it there to ckptfs_static_stderr.
 */
#include <stdio.h>

extern FILE *ckptfs_static_stderr;
FILE *ckptfs_static_stderr;

__attribute__((constructor)) static void set(void)
{
	ckptfs_static_stderr = stderr;
}
