/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper - the call form of mount(8), for which a link to the program is named mount.ckptfs or
 * mount.fuse.ckptfs:
 *
 *	SRC DIR [-sfnv] [-N namespace] [-t type] [-o options]
 *
 * -s: unknown words of -o are ignored; -f: everything but the mount; -n: accepted, there is no
 * /etc/mtab; -N: the namespace to mount in, a path or a process.
 *
 * Threads: one.
 */
#ifndef FS_CMD_HELPER_H
#define FS_CMD_HELPER_H

/* The arguments after the program's name; returns an exit status. */
int helper_main(int argc, char *const *argv);

#endif
