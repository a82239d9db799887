/* SPDX-License-Identifier: Apache-2.0 */
/*
 * syscalls - a table of system calls and of what they must answer on a read-only filesystem.
 *
 *	syscalls ROOT ELSEWHERE [ours]
 *
 * ROOT is a mount of a checkpoint, or another read-only filesystem that holds a copy of it: the
 * answers are the same, but for the rows OURS, which are asked with the word "ours" only. The copy
 * shows that the table is right. In ROOT lie
 *
 *	A_FILE	more than a mebibyte, no multiple of a page; has user.* attributes
 *	A_DIR	a directory
 *	A_LINK	a link to a file
 *
 * ELSEWHERE is a directory of another filesystem that may be written to, with a copy of A_FILE,
 * called t. Prints the rows that failed, then how many there were. Exit status 1 if one failed.
 *
 * A row is a call and its answer: a value, or -errno. EACH asks the same of every kind of path.
 */
#ifndef TESTS_FS_SYSCALLS_H
#define TESTS_FS_SYSCALLS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* Not in the headers of Debian 11. */
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define A_FILE	"tensors/t"
#define A_DIR	"objects"
#define A_LINK	"ranks/model-rank-0-part-0.safetensors"
#define AN_ATTR "user.ckptfs.dtype"

/* What a path leads to. */
enum target { T_FILE, T_DIR, T_LINK, T_NOTHING, T_BELOW, T_SLASH, T_ROOT, N_TARGETS };
extern const char *const targets[N_TARGETS];

extern struct tree {
	const char *elsewhere;
	bool ours, root; /* are we root? */
	int64_t size;	 /* of A_FILE */
	size_t page;
	char *plain;	     /* its bytes */
	char *room;	     /* page-aligned, for as many bytes and a page */
	void *volatile wild; /* a pointer that leads nowhere */
} tree;

void row(int line, const char *file, const char *what, const char *path, int64_t want, int64_t got);

static inline int64_t answer_of(int64_t returned)
{
	return returned == -1 ? -errno : returned;
}

#define IS(want, call) row(__LINE__, __FILE__, #call, NULL, want, (errno = 0, answer_of(call)))
/* What other filesystems answer in another way, or each in its own. */
#define OURS(want, call) \
	do { \
		if (tree.ours) \
			IS(want, call); \
	} while (0)
/* The call on p; an errno, or 0, for each target in turn. */
#define EACH(call, ...) \
	for (int k = 0; k < N_TARGETS; k++) { \
		static const int want[] = { __VA_ARGS__ }; \
		const char *p = targets[k]; \
		_Static_assert(sizeof(want) / sizeof(*want) == N_TARGETS, "an answer for each"); \
		row(__LINE__, __FILE__, #call, p, -want[k], (errno = 0, answer_of(call))); \
	}

/* 0 or -1, where a call returns something else when it works. */
int fine(int64_t returned);
/* Open and close again. */
int opens(const char *path, int flags);
/* Ends the program if it cannot. */
int must_open(const char *path, int flags);
/* `got`, unless these many bytes of tree.room are not those of A_FILE at off. */
int64_t right(int64_t got, int64_t off);

void check_changes(void);
void check_names(void);
void check_bytes(void);
void check_control(void);

#endif
