/* SPDX-License-Identifier: Apache-2.0 */
#include "blob_util.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "source/place.h"
#include "suites.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zstd.h>

int new_dir(char out[static 4096])
{
	const char *tmp = getenv("TMPDIR");
	int fd;

	(void)snprintf(out, 4096, "%s/t-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	REQUIRE(mkdtemp(out));
	fd = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	return fd;
}

void put_file(int dirfd, const char *name, const void *p, size_t n)
{
	autoclose int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	REQUIRE(fd >= 0);
	REQUIRE(io_write(fd, p, n) == 0);
}

uint8_t *get_file(int dirfd, const char *name, size_t *ret_n)
{
	autoclose int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint8_t *p;

	REQUIRE(fd >= 0 && !fstat(fd, &st));
	p = malloc((size_t)st.st_size + 1);
	REQUIRE(p);
	REQUIRE(io_pread(fd, p, (size_t)st.st_size, 0) == 0);
	p[st.st_size] = 0;
	*ret_n = (size_t)st.st_size;
	return p;
}

struct place *place_of(int dirfd)
{
	struct place *p;
	struct ckpt_err e;

	REQUIRE(!try_place(dirfd, &p, &e));
	return p;
}

void place_freep(struct place **p)
{
	place_free(*p);
}

int try_place(int dirfd, struct place **ret, struct ckpt_err *e)
{
	autoclose int fd = fcntl(dirfd, F_DUPFD_CLOEXEC, 0);
	int rc = fd < 0 ? err_sys(e, errno, "duplicate a descriptor") : local_place(fd, ret, e);

	if (!rc)
		(void)steal_fd(&fd);
	return rc;
}

bool has_openat2(void)
{
	return syscall(SYS_openat2, AT_FDCWD, ".", NULL, 0) >= 0 || errno != ENOSYS;
}

void random_bytes(struct rng *r, void *p, size_t n)
{
	uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		b[i] = (uint8_t)rng_u64(r);
}

/* ---- blobs ---- */

void mem_init(struct mem *m, const void *p, size_t n)
{
	*m = (struct mem){ .p = malloc(n ? n : 1), .n = n };
	REQUIRE(m->p);
	if (n)
		memcpy(m->p, p, n);
}

void mem_release(struct mem *m)
{
	free(m->p);
}

static int64_t mem_read(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	struct mem *m = arg;
	size_t n;

	if (++m->reads == m->fail)
		return err_set(e, EIO, "read of the test's own that fails");
	if (off >= m->n)
		return 0;
	n = m->n - (size_t)off < len ? m->n - (size_t)off : len;
	memcpy(buf, m->p + off, n);
	return (int64_t)n;
}

struct blob mem_blob(struct mem *m, bool size_known)
{
	return (struct blob){ mem_read, m, size_known ? m->n : BLOB_SIZE_UNKNOWN };
}

/* ---- zstd ---- */

uint8_t *zstd_pack(const void *p, size_t n, size_t frame, size_t *ret_n)
{
	size_t frames = frame ? (n + frame - 1) / frame : 1, cap, at = 0;
	ZSTD_CCtx *c = ZSTD_createCCtx();
	uint8_t *out;

	frames = frames ? frames : 1;
	frame = frame ? frame : n;
	cap = frames * ZSTD_compressBound(frame);
	out = malloc(cap);
	REQUIRE(c && out);
	(void)ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
	for (size_t i = 0; i < frames; i++) {
		size_t from = i * frame, len = n - from < frame ? n - from : frame, rc;

		rc = ZSTD_compress2(c, out + at, cap - at, (const char *)p + from, len);
		REQUIRE(!ZSTD_isError(rc));
		at += rc;
	}
	(void)ZSTD_freeCCtx(c);
	*ret_n = at;
	return out;
}
