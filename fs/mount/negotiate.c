/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/negotiate.h"

#include <stdio.h>

/* ---- flags ---- */

#ifdef FUSE_CAP_PASSTHROUGH

int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata))
{
	(void)session;
	(void)get;
	return 0;
}

void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn)
{
	n->allow_mmap = conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
	n->passthrough = n->passthrough && conn->capable & FUSE_CAP_PASSTHROUGH;
	conn->want |= (n->allow_mmap ? FUSE_CAP_DIRECT_IO_ALLOW_MMAP : 0u) |
		      (n->passthrough ? FUSE_CAP_PASSTHROUGH : 0u);
	conn->max_backing_stack_depth = FUSE_BACKING_STACKED_UNDER;
}

#elif FUSE_VERSION < FUSE_MAKE_VERSION(3, 13) /* which can neither ask for them nor be helped */

int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata))
{
	(void)session;
	(void)get;
	return 0;
}

void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn)
{
	(void)conn;
	n->allow_mmap = n->passthrough = false;
}

#else

#include <linux/fuse.h>

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bits 36 and 37 of the flags, whose upper half is flags2; the word after that is max_stack_depth.
 */
#define ALLOW_MMAP	((uint32_t)1 << (36 - 32))
#define PASSTHROUGH	((uint32_t)1 << (37 - 32))
#define STACK_DEPTH_POS (offsetof(struct fuse_init_out, flags2) + sizeof(uint32_t))

static struct negotiation *(*negotiation_of)(void *userdata);

static ssize_t read_request(int fd, void *buf, size_t cap, void *userdata)
{
	struct negotiation *n = negotiation_of(userdata);
	const struct fuse_in_header *head = buf;
	const struct fuse_init_in *in = (const void *)(head + 1);
	ssize_t got = read(fd, buf, cap);

	if (got >= (ssize_t)(sizeof(*head) + sizeof(*in)) && head->opcode == FUSE_INIT) {
		n->unique = head->unique;
		n->flags2 = in->flags & FUSE_INIT_EXT ? in->flags2 & (ALLOW_MMAP | PASSTHROUGH) : 0;
	}
	return got;
}

static ssize_t write_init(int fd, const struct iovec *iov, const struct negotiation *n)
{
	static const uint32_t stack_depth = 1; /* backing files are not on a stacked file system */
	struct fuse_init_out out;
	struct iovec both[2] = { iov[0], { &out, sizeof(out) } };

	memcpy(&out, iov[1].iov_base, sizeof(out));
	out.flags |= FUSE_INIT_EXT;
	out.flags2 |= n->flags2;
	if (n->flags2 & PASSTHROUGH)
		memcpy((char *)&out + STACK_DEPTH_POS, &stack_depth, sizeof(stack_depth));
	return writev(fd, both, 2);
}

static ssize_t write_reply(int fd, struct iovec *iov, int count, void *userdata)
{
	struct negotiation *n = negotiation_of(userdata);
	const struct fuse_out_header *head = iov[0].iov_base;

	if (n->unique && head->unique == n->unique) {
		n->unique = 0;
		if (n->flags2 && !head->error && count == 2 &&
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
	(void)conn;
	if (!n->passthrough)
		n->flags2 &= ~PASSTHROUGH;
	n->passthrough = n->flags2 & PASSTHROUGH;
	n->allow_mmap = n->flags2 & ALLOW_MMAP;
}

#endif

/* ---- io_uring ---- */

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18) && __has_include(<liburing.h>)

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_uint restricted;

/* Allows what libfuse's queues need during their lifetime. The first restriction permanently
 * forbids everything else (io_uring_register(2), IORING_REGISTER_RESTRICTIONS). */
static int restrict_ring(int fd)
{
	static const struct io_uring_restriction allowed[] = {
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_URING_CMD },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_POLL_ADD }, /* the end */
		{ .opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_FIXED_FILE },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_FILES },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP,
		  .register_op = IORING_REGISTER_ENABLE_RINGS },
	};

	if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_RESTRICTIONS, allowed,
		    ARRAY_LEN(allowed)) ||
	    syscall(SYS_io_uring_register, fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0))
		return -errno;
	return 0;
}

/* Replaces liburing's function, with which libfuse creates its queues: libfuse has no option to
 * restrict them, and only a queue that has not been started can be restricted. */
__attribute__((visibility("default"))) int io_uring_queue_init_params(unsigned entries,
								      struct io_uring *ring,
								      struct io_uring_params *p)
{
	int (*init)(unsigned, struct io_uring *, struct io_uring_params *);
	void (*undo)(struct io_uring *);
	int rc;

	*(void **)&init = dlsym(RTLD_NEXT, "io_uring_queue_init_params");
	*(void **)&undo = dlsym(RTLD_NEXT, "io_uring_queue_exit");
	if (!init || !undo)
		return -ENOSYS;
	p->flags |= IORING_SETUP_R_DISABLED;
	rc = init(entries, ring, p);
	if (rc)
		return rc;
	rc = restrict_ring(ring->ring_fd);
	if (rc)
		undo(ring);
	else
		restricted++;
	return rc;
}

int negotiate_queues(void)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(AT_FDCWD, "/proc/self/fd", 0);
	const struct dirent *entry;
	struct ckpt_err ignored;
	unsigned n = 0;

	if (!d)
		return -errno;
	while (io_next_entry(d, &entry, &ignored) > 0) {
		char to[32] = "";

		if (readlinkat(dirfd(d), entry->d_name, to, sizeof(to) - 1) > 0)
			n += !strcmp(to, "anon_inode:[io_uring]");
	}
	return n > restricted ? -EPERM : (int)n;
}

bool negotiate_has_uring(void)
{
	return true;
}

const char *negotiate_no_uring(void)
{
	FILE *f = fopen("/sys/module/fuse/parameters/enable_uring", "re");
	int c = f ? fgetc(f) : 'N';

	if (f)
		(void)fclose(f);
	return c == 'Y' ? NULL
	       : f	? "it is turned off in the kernel; to turn it on, write Y to "
			  "/sys/module/fuse/parameters/enable_uring"
			: "the kernel does not support it; that takes Linux 6.14";
}

char *negotiate_payload(fuse_req_t req)
{
	char *payload;
	size_t size;

	return fuse_req_get_payload(req, &payload, &size, NULL) ? NULL : payload;
}

#else

bool negotiate_has_uring(void)
{
	return false;
}

const char *negotiate_no_uring(void)
{
	return "the libfuse that this program was built with does not support it; that takes 3.18 "
	       "and liburing's headers";
}

int negotiate_queues(void)
{
	return 0;
}

char *negotiate_payload(fuse_req_t req)
{
	(void)req;
	return NULL;
}

#endif
