/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire - what ckptfs-fetch and the process that started it say to each other.
 *
 * ckptfs-fetch is two processes: one that only supervises, and the fetcher, which does the work. The
 * supervisor starts the fetcher, and starts a new one whenever it dies. For each fetcher it makes a
 * pair of sockets, gives one of them to the fetcher, and sends the other in a WIRE_FETCHER message
 * over the descriptor that it was started with. All other messages go over that pair. A new fetcher
 * knows nothing of what was said to its predecessor.
 *
 * Messages go over a pair of SOCK_SEQPACKET sockets: a struct wire_head, then head.text bytes of
 * text. The numbers in n[], by kind, are listed below. Each side checks every number of the other:
 * neither trusts it. Bytes of objects never go over the socket. They are in segments: files, or
 * memory (memfd_create), of which the fetcher passes a descriptor for reading, once.
 *
 * An object is divided into blocks of WIRE_BLOCK bytes and into segments of a whole number of
 * blocks. Its map, of which a descriptor is passed too, tells which blocks are in which segment:
 *
 *	0		struct map_head
 *	MAP_HEAD	uint32_t generation of each segment, rounded up to 8 bytes; MAP_MADE is set
 *			once the file of this generation has been made
 *	...		struct map_block of each block
 *
 * A segment that is evicted gets the next generation, and another file. A block is in the segment
 * of generation g if its word is map_word(g, MAP_THERE), and it stays in that file for as long as
 * anyone has it open: nothing is ever written over, cut off or punched out. A reader that has
 * loaded that word (acquire; the fetcher stores it, release, after the bytes) may read the block
 * from its file of generation g. Any other word means: ask the fetcher.
 *
 * Threads: a message is sent by one sendmsg, so any thread may send; one receives.
 */
#ifndef SOURCE_WIRE_H
#define SOURCE_WIRE_H

#include "base/checked.h"
#include "source/place.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	WIRE_VERSION = 8,
	WIRE_FD = 3, /* the end of the pair that is theirs */
	WIRE_BLOCK = 64 << 10,
	WIRE_TEXT_MAX = 60 << 10, /* bytes of text in a message; below the default of a socket */
	WIRE_READ_MAX = 8 << 20,  /* bytes that one WIRE_READ may ask for */
	WIRE_FILES_MAX = 1 << 20, /* files and places open at a time */
	WIRE_PART_MAX = 1 << 30,  /* bytes of a WIRE_PART */
};

/* S3 allows objects of 5 TiB, others of more. */
#define WIRE_SIZE_MAX ((uint64_t)64 << 40)

enum wire_kind {
	/* To the fetcher. Those with an id get a WIRE_ANSWER with the same id. */
	WIRE_HELLO =
		1,   /* n: version, cache_size, bytes of memory, retry_ms; text: cache_dir. Answer
			   with the descriptor of a struct wire_counts, for reading, or with none */
	WIRE_OPEN,   /* n: anonymous; text: address, endpoint, region, profile; for file:// with a
			   descriptor of the directory, open for reading: what the other side may
			   not read is not read for it; see also WIRE_SEAL. Answer n: place; text:
			   the canonical address, the endpoint ("" if the address tells all) */
	WIRE_CLOSE,  /* n: place; no answer */
	WIRE_LOOK,   /* n: place; text: path. Answer n: is it there; seen */
	WIRE_LIST,   /* n: place; text: path. Answers with n[1] = 1 and entries as text, then one
			   with n[1] = 0 */
	WIRE_FILE,   /* n: place; seen; text: path. Answer n: file, bytes of a segment, is it in
			   memory; with the map's descriptor */
	WIRE_FORGET, /* n: file; no answer */
	WIRE_READ,   /* n: file, off, len, again: send the segments although they were sent. Answer
			   when all of it is in segments that were sent */
	WIRE_WANT,   /* n: file, off, len: will be read; in order of need; no answer */
	WIRE_TOUCH,  /* n: file, segment: it is in use; no answer */
	WIRE_PING,   /* Answer: nothing */
	/* Writing, see upload.h. */
	WIRE_BEGIN,  /* n: place, are objects that exist an error. Answer n: session */
	WIRE_PART,   /* n: session, file, part, bytes, is it the last; text: path; with a descriptor
			that they are read from. Answer when they are stored */
	WIRE_NAME,   /* n: session, enum uploads_names; text: paths */
	WIRE_COMMIT, /* n: session, all of whose messages have been answered. It is finished even
			if the other side goes meanwhile */
	WIRE_END, /* n: session, may it be answered before all is undone. Answer text: what is left */
	/* From the fetcher. */
	WIRE_ANSWER, /* n[0]: errno, or 0; then see above, from n[1]. text of an error: its sentence */
	WIRE_SEGMENT, /* n: file, segment, generation; with the segment's descriptor */
	WIRE_DROP,    /* n: file, segment, generation: close it, as soon as it is not in use */
	WIRE_MAP,     /* as the answer to WIRE_FILE, without error: other segments from now on */
	/* Of the process that starts fetchers. */
	WIRE_FETCHER, /* from it: this one runs from now on; with its socket */
	WIRE_END_IT,  /* to it: the fetcher does not answer, end it */
	/* To both, before the other side gives up its rights; see seal.h. */
	WIRE_SEAL, /* n[1] = 0: what may be opened later, n and text as of WIRE_OPEN, but with
		      wire_authority() in place of the address. n[1] = 1: that was all; from
		      n[2] on, and text: n from n[1] on, and text, of WIRE_HELLO. n[1] = 2: a
		      directory of file://, n[2] and n[3]: its device and inode; text: the names of
		      what may be read in it, or "": all that is beneath it. No answer */
	WIRE_KINDS,
};

enum { WIRE_NUMBERS = 5 };

/* Numbers since the fetcher began, which it writes into memory that the other side has mapped. */
struct wire_counts {
	struct {
		_Atomic uint64_t requests, bytes, retries, hedges;
		/* As measured on the last requests; 0: not known yet. */
		_Atomic uint64_t latency_us, connection_bps, total_bps;
		_Atomic uint64_t window; /* bytes that may be on their way */
		_Atomic uint64_t kept;	 /* bytes that the cache directory keeps at most */
	} v;
	/* Why there is no cache although there should be one; true once it is there, and then it
	 * stays. */
	_Atomic bool noted;
	char note[512];
};

struct wire_head {
	uint32_t kind, id;
	uint64_t n[WIRE_NUMBERS];
	struct {
		uint64_t size, mtime_ns;
		uint8_t kind, id_len, id[63], pad[7];
	} seen;
	uint32_t text; /* bytes that follow */
	uint32_t pad;
};

/* What a receiver has room for. */
struct wire_msg {
	struct wire_head head;
	char text[WIRE_TEXT_MAX + 1]; /* always followed by a NUL */
	int fd; /* -1: none; -EMFILE: there was no room for it; whoever takes it sets -1 */
};

static inline void wire_put_seen(struct wire_head *h, const struct place_seen *s)
{
	h->seen.size = s->size;
	h->seen.mtime_ns = s->mtime_ns;
	h->seen.kind = (uint8_t)s->kind;
	h->seen.id_len = s->id.len;
	memcpy(h->seen.id, s->id.v, sizeof(h->seen.id));
}

/* False: not one that anybody should have sent. */
static inline bool wire_get_seen(const struct wire_head *h, struct place_seen *ret)
{
	if (h->seen.id_len > sizeof(ret->id.v) || h->seen.kind > PLACE_OTHER ||
	    h->seen.size > WIRE_SIZE_MAX)
		return false;
	*ret = (struct place_seen){ .kind = h->seen.kind,
				    .size = h->seen.size,
				    .mtime_ns = h->seen.mtime_ns,
				    .id.len = h->seen.id_len };
	memcpy(ret->id.v, h->seen.id, h->seen.id_len);
	return true;
}

/* Sends a message, with a descriptor if fd >= 0; 0 or -errno. Waits until there is room for it,
 * unless flags have MSG_DONTWAIT: then EAGAIN. */
static inline int wire_send_how(int sock, struct wire_head *h, const void *text, size_t len, int fd,
				int flags)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec v[] = { { .iov_base = h, .iov_len = sizeof(*h) },
			     { .iov_base = (void *)(uintptr_t)text, .iov_len = len } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = len ? 2 : 1 };
	ssize_t n;

	if (len > WIRE_TEXT_MAX)
		return -EMSGSIZE;
	h->text = (uint32_t)len;
	if (fd >= 0) {
		struct cmsghdr *c = &control.align;

		m.msg_control = &control;
		m.msg_controllen = sizeof(control);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do
		n = sendmsg(sock, &m, MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static inline int wire_send(int sock, struct wire_head *h, const void *text, size_t len, int fd)
{
	return wire_send_how(sock, h, text, len, fd, 0);
}

/*
 * Receives a message: 1; 0 if the other side is gone; -EPROTO: it is not one of ours; -EMFILE: a
 * descriptor came with it for which this process has no room (the rest of the message is there); or
 * another -errno.
 */
static inline int wire_receive(int sock, struct wire_msg *m)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec v[] = { { .iov_base = &m->head, .iov_len = sizeof(m->head) },
			     { .iov_base = m->text, .iov_len = WIRE_TEXT_MAX } };
	/* Room for one descriptor: a second would fit where the first is padded, and stay open. */
	struct msghdr h = { .msg_iov = v,
			    .msg_iovlen = 2,
			    .msg_control = &control,
			    .msg_controllen = CMSG_LEN(sizeof(int)) };
	const struct cmsghdr *c;
	ssize_t n;

	m->fd = -1;
	do
		n = recvmsg(sock, &h, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n && errno != ECONNRESET ? -errno : 0;
	c = CMSG_FIRSTHDR(&h);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&m->fd, CMSG_DATA(c), sizeof(m->fd));
	if ((h.msg_flags & MSG_TRUNC) || (size_t)n < sizeof(m->head) ||
	    m->head.text != (size_t)n - sizeof(m->head) || !m->head.kind ||
	    m->head.kind >= WIRE_KINDS) {
		if (m->fd >= 0)
			(void)close(m->fd);
		m->fd = -1;
		return -EPROTO;
	}
	m->text[m->head.text] = 0;
	if (!(h.msg_flags & MSG_CTRUNC))
		return 1;
	if (m->fd < 0)
		m->fd = -EMFILE;
	return -EMFILE;
}

/* The i-th of the strings in a text, each followed by a NUL; "" if there are fewer. */
static inline const char *wire_string(const struct wire_msg *m, unsigned i)
{
	const char *p = m->text, *end = m->text + m->head.text;

	for (; i && p < end; i--)
		p += strlen(p) + 1;
	return p < end ? p : "";
}

/* The bytes of an address that say whose it is: SCHEME://HOST or SCHEME://BUCKET, and
 * hf://ORG/NAME. */
static inline size_t wire_authority(const char *address)
{
	const char *p = strstr(address, "://");

	if (!p)
		return strlen(address);
	p += 3;
	/* A colon in what is not a host begins the scale of lora= or the weight of average=. */
	p += strcspn(p, strncasecmp(address, "http", 4) ? "/:" : "/");
	if (!strncasecmp(address, "hf:", 3) && *p == '/')
		p += 1 + strcspn(p + 1, "/@:"); /* a revision */
	return (size_t)(p - address);
}

/* ---- entries of a listing, one after another in a text ---- */

struct wire_entry {
	uint64_t size, mtime_ns;
	uint8_t kind, id_len;
	uint16_t name; /* bytes of the name that follows, without a NUL */
	uint8_t id[63], pad;
};

/* ---- maps ---- */

enum { MAP_HEAD = 4096, MAP_VERSION = 1 };
#define MAP_MADE ((uint32_t)1 << 31) /* generations have 30 bits */
enum map_state { MAP_MISSING, MAP_THERE, MAP_UNCHECKED };

struct map_head {
	char magic[8]; /* "ckptmap" */
	uint32_t version, block;
	uint64_t size, segment; /* bytes of the object and of a segment */
	char boot[48];		/* that its blocks were written in, or checked */
};

struct map_block {
	uint64_t hash; /* XXH3-64 of the block */
	_Atomic uint32_t word;
	uint32_t pad;
};

struct map_view {
	uint64_t size, segment; /* bytes */
	uint64_t n_blocks, n_segments;
	uint64_t bytes; /* of the map */
};

static inline uint32_t map_word(uint32_t generation, enum map_state state)
{
	return generation << 2 | (uint32_t)state;
}

/* The layout for an object of that size, at most WIRE_SIZE_MAX. False: such segments are not
 * possible. */
static inline bool map_layout(uint64_t size, uint64_t segment, struct map_view *ret)
{
	uint64_t blocks = (size + WIRE_BLOCK - 1) / WIRE_BLOCK, segments;

	if (size > WIRE_SIZE_MAX || !segment || segment % WIRE_BLOCK || segment > WIRE_SIZE_MAX)
		return false;
	segments = (size + segment - 1) / segment;
	if (segments > UINT32_MAX)
		return false;
	*ret = (struct map_view){ size, segment, blocks, segments,
				  MAP_HEAD + (segments * 4 + 7) / 8 * 8 +
					  blocks * sizeof(struct map_block) };
	return true;
}

static inline _Atomic uint32_t *map_generation(void *map, uint64_t segment)
{
	return (_Atomic uint32_t *)(void *)((char *)map + MAP_HEAD) + segment;
}

static inline struct map_block *map_block(void *map, const struct map_view *v, uint64_t block)
{
	return (struct map_block *)(void *)((char *)map + MAP_HEAD +
					    (v->n_segments * 4 + 7) / 8 * 8) +
	       block;
}

static inline uint64_t map_segment_size(const struct map_view *v, uint64_t segment)
{
	return min_u64(v->segment, v->size - segment * v->segment);
}

static inline uint64_t map_block_size(const struct map_view *v, uint64_t block)
{
	return min_u64(WIRE_BLOCK, v->size - block * WIRE_BLOCK);
}

#endif
