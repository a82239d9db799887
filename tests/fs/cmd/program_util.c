/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/program_util.h"

#include "base/buf.h"
#include "blob_util.h"
#include "data_util.h"
#include "suites.h"

#include "cmd/program.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[4096];
static int dir_fd = -1;

void program_setup(void)
{
	char path[4200];

	dir_fd = new_dir(dir);
	(void)snprintf(path, sizeof(path), "%s/cache", dir);
	REQUIRE(!setenv("XDG_CACHE_HOME", path, 1));
	REQUIRE(!unsetenv("COLORTERM") && !setenv("TERM", "dumb", 1));
}

const char *program_dir(void)
{
	return dir;
}

int program_dirfd(void)
{
	return dir_fd;
}

void program_put(const char *name, const char *text)
{
	put_file(dir_fd, name, text, strlen(text));
}

static void add_u64(struct buf *b, uint64_t v)
{
	buf_add(b, &(uint64_t){ htole64(v) }, 8);
}

void program_model(const char *name, unsigned seed)
{
	static const char header[] =
		"{\"model.layers.0.w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
		"\"model.layers.1.w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,48]},"
		"\"model.ids\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[48,64]},"
		"\"model.norm\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[64,72]}}";
	struct buf b = BUF_INIT(1 << 16);
	char path[256] = "";

	for (const char *s = strchr(name, '/'); s; s = strchr(s + 1, '/')) {
		(void)snprintf(path, sizeof(path), "%.*s", (int)(s - name), name);
		(void)mkdirat(dir_fd, path, 0777);
	}
	add_u64(&b, strlen(header));
	buf_str(&b, header);
	for (unsigned i = 0; i < 12; i++)
		buf_add(&b, &(float){ (float)(i * seed) - 3 }, 4);
	add_u64(&b, seed);
	add_u64(&b, 7);
	for (unsigned i = 0; i < 4; i++)
		buf_add(&b, &(uint16_t){ (uint16_t)(0x3f80 + i * seed) }, 2);
	REQUIRE(!b.err);
	put_file(dir_fd, name, b.data, b.len);
	buf_release(&b);
}

static char *expanded(const char *word, size_t len)
{
	struct buf b = BUF_INIT(1 << 20);

	for (size_t i = 0; i < len; i++)
		if (word[i] == '%') {
			buf_str(&b, dir);
		} else if (word[i] == '~') {
			buf_str(&b, " ");
		} else if (word[i] == '@') {
			size_t n = strspn(word + i + 1, "abcdefghijklmnopqrstuvwxyz_0123456789");

			buf_printf(&b, "%s/%.*s/ckpt", data_dir(), (int)n, word + i + 1);
			i += n;
		} else {
			buf_add(&b, word + i, 1);
		}
	buf_add(&b, "", 1);
	REQUIRE(!b.err);
	return b.data;
}

char **program_words(const char *line, int *ret_n)
{
	char **words = calloc(strlen(line) + 3, sizeof(*words));
	int n = 0;

	REQUIRE(words);
	words[n++] = strdup("ckptfs");
	for (const char *s = line; *s;) {
		size_t len = strcspn(s, " ");

		words[n++] = len == 2 && !strncmp(s, "''", 2) ? strdup("") : expanded(s, len);
		s += len + strspn(s + len, " ");
	}
	*ret_n = n;
	return words;
}

void program_free_words(char **words)
{
	for (char **w = words; *w; w++)
		free(*w);
	free(words);
}

static void catch (int fd, const char *name, int *ret_before)
{
	int file = openat(dir_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	*ret_before = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	REQUIRE(file >= 0 && *ret_before >= 0 && dup2(file, fd) == fd);
	(void)close(file);
}

static char *caught(int fd, const char *name, int before)
{
	size_t n;

	REQUIRE(dup2(before, fd) == fd && !close(before));
	return (char *)get_file(dir_fd, name, &n);
}

static struct ran run(int argc, char *const *argv, enum fault_kind kind, uint64_t n)
{
	struct ran r;
	int out, err;

	(void)fflush(stdout);
	catch (STDOUT_FILENO, ".stdout", &out);
	catch (STDERR_FILENO, ".stderr", &err);
	if (kind)
		fault_on(kind, n, 1);
	r.status = program_run(argc, argv, false);
	(void)fault_off();
	(void)fflush(stdout);
	clearerr(stdout);
	r.out = caught(STDOUT_FILENO, ".stdout", out);
	r.err = caught(STDERR_FILENO, ".stderr", err);
	return r;
}

struct ran program_ran_words(int argc, char *const *argv)
{
	return run(argc, argv, 0, 0);
}

struct ran program_failed_words(int argc, char *const *argv, enum fault_kind kind, uint64_t n)
{
	return run(argc, argv, kind, n);
}

void program_release(struct ran *r)
{
	free(r->out);
	free(r->err);
	*r = (struct ran){ 0 };
}

struct ran program_ran_as(const char *line)
{
	int n;
	char **words = program_words(line, &n);
	struct ran r = program_ran_words(n - 1, words + 1);

	program_free_words(words);
	return r;
}

struct ran program_ran(const char *line)
{
	int n;
	char **words = program_words(line, &n);
	struct ran r = program_ran_words(n, words);

	program_free_words(words);
	return r;
}
