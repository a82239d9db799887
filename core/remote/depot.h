/* SPDX-License-Identifier: Apache-2.0 */
/*
 * depot - blocks of objects, in a cache directory that all processes of a user share, or in memory.
 *
 *	DIR/ab/HASH/about.json, map, 0000-1, 0001-1, ...
 *
 * HASH is of the object's address, path and identity, so that another version of an object has
 * another directory. map and the segments' files (number, generation) are described in wire.h.
 *
 * Several processes use the directory at the same time:
 *   - a block is fetched by the process that has a lock on its byte of `map` (OFD locks: the kernel
 *     drops them with their process). The lock saves requests and nothing else depends on it;
 *   - to evict a segment is to increment its generation in the map and to unlink its file; whoever
 *     has it open keeps its bytes;
 *   - whoever uses an object has a shared lock on it, whoever removes it an exclusive one.
 *
 * After a kill every stored word is true, because the page cache survives. After a power failure
 * nothing is certain, and nothing is ever synced: blocks stored before the last boot count as
 * unchecked, and are fetched again unless they have the hash that the map has.
 *
 * Where no directory can be used, or none is to be used, segments are memory (memfd_create),
 * bounded in total. On a file system that several machines share, such as NFS, each machine has a
 * directory of its own in DIR.
 *
 * Private to core/remote. Threads: one, and no function makes it wait for another process, with two
 * exceptions. depot_prepare may wait, and any thread may call it. hold_write and hold_done may be
 * called from any thread, by one at a time for each hold. A thread of its own evicts.
 */
#ifndef REMOTE_DEPOT_H
#define REMOTE_DEPOT_H

#include "source/wire.h"

struct ckpt_err;
struct depot;
struct hold;
struct object;

struct depot_options {
	const char *dir; /* NULL or "": $XDG_CACHE_HOME/ckptfs/objects; "none": memory */
	uint64_t size;	 /* bound on the directory's bytes; 0: 1/10 of the free disk, <= 64 GiB */
	uint64_t memory; /* bound on memory in place of a directory; 0: 256 MiB */
};

/* A segment of an object in memory has been evicted: the callee closes its descriptor, if it has
 * one. */
typedef void depot_drop_fn(void *arg, struct object *o, uint64_t segment, uint32_t generation);

int depot_new(const struct depot_options *o, depot_drop_fn *drop, void *arg, struct depot **ret,
	      struct ckpt_err *e);
void depot_free(struct depot *d); /* after its objects are closed; NULL is fine */
/* Says why the directory that was asked for is not used; "" if it is used, or none was asked for.
 * Borrowed. */
const char *depot_note(const struct depot *d);
/* The bound on the directory's bytes; 0: there is none, all is in memory. */
uint64_t depot_size(const struct depot *d);

/*
 * Object `path` of `address`, as identified by `seen`: looks for it and its map, which other
 * processes may be about to make or remove. It can be used once it is adopted. EMFILE: too few
 * descriptors are left, or would be. Close some, by depot_spare, and try once more; then objects
 * have to be closed.
 */
int depot_prepare(struct depot *d, const char *address, const char *path,
		  const struct place_seen *seen, struct object **ret, struct ckpt_err *e);
void depot_adopt(struct object *o);
bool depot_spare(struct depot *d); /* false: there were none to close */
/* From now on, the object is in memory: its files cannot be written. Holds remain valid. */
int object_leave_disk(struct object *o, struct ckpt_err *e);
void object_close(struct object *o); /* adopted, after its holds have ended; NULL is fine */

const struct map_view *object_view(const struct object *o);
/* A descriptor of its map, for reading, which the caller closes; once for each map. */
int object_take_map(struct object *o);
bool object_in_memory(const struct object *o);

/* Is the block in the present generation of its segment? */
bool object_has(struct object *o, uint64_t block);
/* Reads up to `most` unchecked blocks among [block, end), so that object_has is true of them or
 * they are missing. Returns the first block that is still unchecked, or end. */
uint64_t object_check(struct object *o, uint64_t block, uint64_t end, uint64_t most);

/* A descriptor of the segment, for reading, and its generation; borrowed until the next call. */
int object_segment(struct object *o, uint64_t segment, uint32_t *ret_generation, int *ret_fd,
		   struct ckpt_err *e);
/* The segment is in use: others are evicted first. */
void object_touch(struct object *o, uint64_t segment);

/*
 * Blocks [block, block + n) of one segment, to be fetched by the caller; a held segment is not
 * evicted by this process. EAGAIN: another process is fetching the first of them (`alone`: do not
 * ask); EALREADY: it is there already. *ret_n may be smaller than n.
 */
int object_hold(struct object *o, uint64_t block, uint64_t n, bool alone, struct hold **ret,
		uint64_t *ret_n, struct ckpt_err *e);
/* The next bytes, in order; stores each block as it is complete. 0 or -errno. */
int hold_write(struct hold *h, const void *p, size_t n);
/* The number of complete blocks so far, from the first. */
uint64_t hold_done(const struct hold *h);
/* Are its blocks in memory? Perhaps not, even if the object's are by now. */
bool hold_in_memory(const struct hold *h);
void hold_end(struct hold *h); /* NULL is fine */

#endif
