/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program_util - command lines of ckptfs, run in the process of the test.
 *
 *	struct ran r = program_ran("ls -l @plain");
 *	... r.status, r.out, r.err ...
 *
 * Words are separated by blanks; '' is an empty one. In a word, @NAME stands for the checkpoint of
 * the fixture NAME, % for the directory of the test (dir_util.h), and ~ for a blank. What the
 * command prints goes to files and is read from there.
 *
 * Nothing is freed but by program_release(): tests are processes.
 *
 * Threads: one.
 */
#ifndef TESTS_PROGRAM_UTIL_H
#define TESTS_PROGRAM_UTIL_H

#include "fault.h"

#include <stdint.h>

struct ran {
	int status;
	char *out, *err; /* what it printed */
};

/* In its own name: "ckptfs". */
struct ran program_ran(const char *line);
/* In the name that is its first word. */
struct ran program_ran_as(const char *line);
/* The words alone behind "ckptfs", NULL-terminated. */
char **program_words(const char *line, int *ret_n);
void program_free_words(char **words);
struct ran program_ran_words(int argc, char *const *argv);
/* The same while call number n of this kind fails; see fault_hit(). */
struct ran program_failed_words(int argc, char *const *argv, enum fault_kind kind, uint64_t n);
void program_release(struct ran *r);
/* Where @ and % lead: before the first call. */
void program_setup(void);
const char *program_dir(void);
int program_dirfd(void);
/* A file in the directory of the test. */
void program_put(const char *name, const char *text);
/* A file of safetensors there: model.layers.{0,1}.w, model.norm, model.ids; the seed is in all
 * numbers. */
void program_model(const char *name, unsigned seed);

#endif
