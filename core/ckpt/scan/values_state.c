/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/scan/values_state.h"

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "codec/hist.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[16] = "ckptfs stat 1\n";

struct header {
	char magic[sizeof(magic)];
	struct digest id;
};

/* A record; the n counts of its histogram follow. */
struct record {
	struct digest hash; /* covers everything after it */
	uint64_t number;
	uint64_t n;
	bool any;
	struct tally tally;
};

enum { COUNT_BITS = 48 }; /* the count's bits in a number whose upper bits are the key */

static struct digest hash_of(const struct record *r, const uint64_t *hist)
{
	struct digest d = { 0 };

	digest_add(&d, (const char *)r + sizeof(r->hash), sizeof(*r) - sizeof(r->hash));
	digest_add(&d, hist, r->n * sizeof(*hist));
	return d;
}

/* Reads the record at s->at, and its counts into s->hist. 1: there is no complete one. */
static int read_record(struct values_state *s, struct record *ret)
{
	struct digest hash;

	if (io_pread(s->fd, ret, sizeof(*ret), s->at) || ret->n > HIST_KEYS ||
	    io_pread(s->fd, s->hist, ret->n * sizeof(*s->hist), s->at + sizeof(*ret)))
		return 1;
	hash = hash_of(ret, s->hist);
	if (memcmp(&hash, &ret->hash, sizeof(hash)) != 0)
		return 1;
	s->at += sizeof(*ret) + ret->n * sizeof(*s->hist);
	return 0;
}

static int open_file(const char *path, int *ret, struct ckpt_err *e)
{
	autoclose int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
	struct stat st;
	int rc;

	if (fd < 0)
		return err_sys(e, errno, "create '%s'", path);
	if (fstat(fd, &st))
		return err_sys(e, errno, "stat '%s'", path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, EEXIST, "'%s' is not a regular file", path);
	rc = io_lock(fd); /* if there are no locks, it is used without */
	if (rc < 0)
		return rc == -EWOULDBLOCK ? err_set(e, EBUSY, "another process uses '%s'", path)
					  : err_sys(e, -rc, "lock '%s'", path);
	*ret = steal_fd(&fd);
	return 0;
}

static int read_file(struct values_state *s, const struct digest *id, struct ckpt_err *e)
{
	struct header wanted = { .id = *id }, found = { 0 };
	struct record r;
	int64_t n = io_pread_some(s->fd, &found, sizeof(found), 0);

	memcpy(wanted.magic, magic, sizeof(magic));
	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", s->path);
	s->at = sizeof(wanted);
	if (!n) {
		int rc = io_pwrite(s->fd, &wanted, sizeof(wanted), 0);

		s->end = s->at;
		return rc ? err_sys(e, -rc, "write '%s'", s->path) : 0;
	}
	if (memcmp(found.magic, magic, sizeof(magic)) != 0)
		return err_set(e, EEXIST,
			       "'%s' was not written by an interrupted stat: name another file",
			       s->path);
	if (memcmp(&found, &wanted, sizeof(wanted)) != 0)
		return err_set(e, EEXIST,
			       "'%s' belongs to another checkpoint, other options or another "
			       "version: remove it to start over",
			       s->path);
	while (!read_record(s, &r) && r.number == s->known)
		s->known++;
	return 0;
}

int values_state_open(struct values_state *s, const char *path, const struct digest *id,
		      struct ckpt_err *e)
{
	int rc;

	*s = (struct values_state){ .path = path, .fd = -1 };
	s->hist = calloc(HIST_KEYS, sizeof(*s->hist));
	rc = s->hist ? open_file(path, &s->fd, e) : err_nomem(e);
	if (!rc)
		rc = read_file(s, id, e);
	if (rc) {
		values_state_close(s, false);
		return rc;
	}
	s->end = s->at;
	s->at = sizeof(struct header);
	return 0;
}

int values_state_next(struct values_state *s, bool *ret_any, struct tally *ret, struct hist *to,
		      struct ckpt_err *e)
{
	struct record r;

	if (read_record(s, &r))
		return err_set(e, EIO, "'%s' has changed while it was read", s->path);
	*ret_any = r.any;
	*ret = r.tally;
	if (to)
		for (uint64_t i = 0; i < r.n; i++)
			hist_add_key(to, (unsigned)(s->hist[i] >> COUNT_BITS),
				     s->hist[i] & ((UINT64_C(1) << COUNT_BITS) - 1));
	return 0;
}

int values_state_add(struct values_state *s, bool any, const struct tally *tally,
		     const struct hist *hist, struct ckpt_err *e)
{
	struct record r;
	size_t bytes;
	int rc;

	memset(&r, 0, sizeof(r)); /* the hash also covers padding */
	r.number = s->known;
	r.any = any;
	memcpy(&r.tally, tally, sizeof(r.tally));
	for (unsigned key = hist ? hist->first : 1; key <= (hist ? hist->last : 0); key++)
		if (hist->counts[key])
			s->hist[r.n++] = (uint64_t)key << COUNT_BITS | hist->counts[key];
	r.hash = hash_of(&r, s->hist);
	bytes = r.n * sizeof(*s->hist);
	rc = io_pwrite(s->fd, &r, sizeof(r), s->end);
	if (!rc)
		rc = io_pwrite(s->fd, s->hist, bytes, s->end + sizeof(r));
	if (rc)
		return err_sys(e, -rc, "write '%s'", s->path);
	s->end += sizeof(r) + bytes;
	s->known++;
	return 0;
}

void values_state_close(struct values_state *s, bool complete)
{
	if (complete && s->fd >= 0)
		(void)unlink(s->path);
	if (s->fd >= 0)
		(void)close(s->fd);
	free(s->hist);
	*s = (struct values_state){ .fd = -1 };
}
