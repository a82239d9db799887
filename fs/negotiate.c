/* SPDX-License-Identifier: Apache-2.0 */
#include "negotiate.h"

#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP

int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata))
{
	(void)session;
	(void)get;
	return 0;
}

void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn)
{
	n->offered = n->granted = conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
	conn->want |= conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
}

#else

#include <linux/fuse.h>

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bit 36 of the flags, whose upper half is flags2. */
#define ALLOW_MMAP ((uint32_t)1 << (36 - 32))

static struct negotiation *(*negotiation_of)(void *userdata);

static ssize_t read_request(int fd, void *buf, size_t cap, void *userdata)
{
	struct negotiation *n = negotiation_of(userdata);
	const struct fuse_in_header *head = buf;
	const struct fuse_init_in *in = (const void *)(head + 1);
	ssize_t got = read(fd, buf, cap);

	if (got >= (ssize_t)(sizeof(*head) + sizeof(*in)) && head->opcode == FUSE_INIT) {
		n->unique = head->unique;
		n->offered = in->flags & FUSE_INIT_EXT && in->flags2 & ALLOW_MMAP;
	}
	return got;
}

static ssize_t write_init(int fd, const struct iovec *iov, struct negotiation *n)
{
	struct fuse_init_out out;
	struct iovec both[2] = { iov[0], { &out, sizeof(out) } };
	ssize_t rc;

	memcpy(&out, iov[1].iov_base, sizeof(out));
	out.flags |= FUSE_INIT_EXT;
	out.flags2 |= ALLOW_MMAP;
	rc = writev(fd, both, 2);
	n->granted = rc >= 0;
	return rc;
}

static ssize_t write_reply(int fd, struct iovec *iov, int count, void *userdata)
{
	struct negotiation *n = negotiation_of(userdata);
	const struct fuse_out_header *head = iov[0].iov_base;

	if (n->unique && head->unique == n->unique) {
		n->unique = 0;
		if (n->offered && !head->error && count == 2 &&
		    iov[1].iov_len == sizeof(struct fuse_init_out))
			return write_init(fd, iov, n);
	}
	return writev(fd, iov, count);
}

int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata))
{
	static const struct fuse_custom_io io = { .writev = write_reply, .read = read_request };

	negotiation_of = get;
	return fuse_session_custom_io(session, &io, fuse_session_fd(session));
}

void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn)
{
	(void)n;
	(void)conn;
}

#endif
