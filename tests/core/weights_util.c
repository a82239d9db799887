/* SPDX-License-Identifier: Apache-2.0 */
#include "weights_util.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "suites.h"
#include <ckptfs/ckpt_mount.h>

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

uint64_t weights_elements(const struct weights_tensor *t)
{
	uint64_t n = 1;

	for (size_t d = 0; d < t->n_dims; d++)
		n *= t->shape[d];
	return n;
}

static int sub_dir(int dirfd, const char *sub)
{
	int fd;

	(void)mkdirat(dirfd, sub, 0777);
	fd = openat(dirfd, sub, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	return fd;
}

void weights_put_as(int dirfd, const char *sub, const char *name, const struct weights_tensor *t,
		    size_t n)
{
	autoclose int fd = sub_dir(dirfd, sub);
	struct buf head = BUF_INIT(1 << 20), b = BUF_INIT(1 << 28);
	uint64_t at = 0;

	buf_str(&head, "{");
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = weights_elements(&t[i]) * dtype_info(t[i].dtype)->size;

		buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t[i].name,
			   dtype_info(t[i].dtype)->safetensors);
		for (size_t d = 0; d < t[i].n_dims; d++)
			buf_printf(&head, "%s%llu", d ? "," : "",
				   (unsigned long long)t[i].shape[d]);
		buf_printf(&head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			   (unsigned long long)(at + bytes));
		at += bytes;
	}
	buf_str(&head, "}");
	for (unsigned i = 0; i < 8; i++)
		buf_add(&b, &(const uint8_t){ (uint8_t)((uint64_t)head.len >> 8 * i) }, 1);
	buf_add(&b, head.data, head.len);
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = weights_elements(&t[i]) * dtype_info(t[i].dtype)->size;

		if (t[i].bytes)
			buf_add(&b, t[i].bytes, bytes);
		for (uint64_t k = 0; !t[i].bytes && k < bytes; k++)
			buf_add(&b, "", 1);
	}
	REQUIRE(!head.err && !b.err);
	put_file(fd, name, b.data, b.len);
	buf_release(&head);
	buf_release(&b);
}

void weights_put(int dirfd, const char *sub, const struct weights_tensor *t, size_t n)
{
	weights_put_as(dirfd, sub, "model.safetensors", t, n);
}

void weights_put_text(int dirfd, const char *sub, const char *name, const char *text)
{
	autoclose int fd = sub_dir(dirfd, sub);

	put_file(fd, name, text, strlen(text));
}

int weights_read(struct ckpt *c, const char *fqn, void *to, size_t len, uint64_t off,
		 struct ckpt_err *e)
{
	int64_t at = ckpt_tensor_find(c, fqn, strlen(fqn)), got;
	struct ckpt_file *f;
	int rc;

	REQUIRE(at >= 0);
	rc = ckpt_file_open(c, ckpt_tensor_node(c, (uint64_t)at), &f, e);
	if (rc)
		return rc;
	got = ckpt_file_read(f, to, len, off, e);
	ckpt_file_close(f);
	if (got >= 0)
		REQUIRE((uint64_t)got == len);
	return got < 0 ? (int)got : 0;
}
