/* SPDX-License-Identifier: Apache-2.0 */
#include "disk.h"

#include "rng.h"
#include "suites.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { ROOT = 0, NODES = 4096, CHANGES = 1 << 16, BLOCK = 4096, HEADER = 512 };
static const size_t never = SIZE_MAX;

/* What is known of an inode while the recording lasts; later its number may be another's. */
struct node {
	ino_t inode; /* 0: it has no name any more */
	mode_t type; /* S_IFREG, S_IFDIR, S_IFLNK */
	char *target;
};

struct entry {
	unsigned dir, node;
	char *name;
};

struct content {
	uint8_t *data;
	size_t len;
};

/* Names and bytes at one moment. */
struct tree {
	struct entry entries[NODES];
	size_t n;
	unsigned n_files; /* files from this one on have no bytes */
	struct content files[NODES];
};

enum kind { MAKE, WRITE, RESIZE, RENAME, EXCHANGE, REMOVE, SYNC };

struct change {
	enum kind kind;
	unsigned node;	 /* what is made, written, moved, removed, synced */
	unsigned dir;	 /* where its name is */
	unsigned to_dir; /* where it goes */
	unsigned other;	 /* what has that name already; NODES: nothing */
	char *name, *to;
	uint8_t *data;
	size_t off, len; /* RESIZE: len */
	size_t sure;	 /* the first later fsync that covers it, or never */
};

static char root[4096];
static dev_t device;
static bool recording;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node nodes[NODES];
static unsigned n_nodes;
static struct change changes[CHANGES];
static size_t n_changes;
/* The tree at the beginning; now, while recording, without bytes; after a crash; at the end. */
static struct tree first, now, crashed, last;

static void *copied(const void *p, size_t n)
{
	char *q = malloc(n + 1);

	REQUIRE(q);
	memcpy(q, p, n);
	q[n] = 0;
	return q;
}

/* ---- trees ---- */

static struct entry *find(struct tree *t, unsigned dir, const char *name)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->entries[i].dir == dir && !strcmp(t->entries[i].name, name))
			return &t->entries[i];
	return NULL;
}

static unsigned node_at(struct tree *t, unsigned dir, const char *name)
{
	const struct entry *x = find(t, dir, name);

	return x ? x->node : NODES;
}

static void add(struct tree *t, unsigned dir, const char *name, unsigned node)
{
	REQUIRE(t->n < NODES);
	t->entries[t->n++] = (struct entry){ dir, node, copied(name, strlen(name)) };
}

static void drop(struct tree *t, struct entry *x)
{
	free(x->name);
	*x = t->entries[--t->n];
}

static void clear(struct tree *t)
{
	while (t->n)
		drop(t, &t->entries[t->n - 1]);
	for (unsigned i = 0; i < t->n_files; i++) {
		free(t->files[i].data);
		t->files[i] = (struct content){ NULL, 0 };
	}
	t->n_files = 0;
}

static void resize(struct content *f, size_t len)
{
	if (len > f->len) {
		f->data = realloc(f->data, len);
		REQUIRE(f->data);
		memset(f->data + f->len, 0, len - f->len);
	}
	f->len = len;
}

static void copy(struct tree *to, const struct tree *from)
{
	clear(to);
	to->n_files = n_nodes;
	for (size_t i = 0; i < from->n; i++)
		add(to, from->entries[i].dir, from->entries[i].name, from->entries[i].node);
	for (unsigned i = 0; i < n_nodes; i++)
		if (from->files[i].len)
			to->files[i] =
				(struct content){ copied(from->files[i].data, from->files[i].len),
						  from->files[i].len };
}

/* Is node `x` the directory `dir`, or below it? */
static bool is_below(const struct tree *t, unsigned x, unsigned dir)
{
	if (x == dir)
		return true;
	for (size_t i = 0; i < t->n; i++)
		if (t->entries[i].node == x)
			return is_below(t, t->entries[i].dir, dir);
	return false;
}

static const char *name_of(const struct tree *t, unsigned node)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->entries[i].node == node)
			return t->entries[i].name;
	return "?";
}

/* Returns false if it cannot be done because another change that it relies on is lost. */
static bool apply_name(struct tree *t, const struct change *c)
{
	struct entry *from = find(t, c->dir, c->name),
		     *to = c->to ? find(t, c->to_dir, c->to) : NULL;

	if (c->kind == MAKE) {
		if (from)
			return false;
		add(t, c->dir, c->name, c->node);
		return true;
	}
	if (!from || from->node != c->node || (c->to && (to ? to->node : NODES) != c->other))
		return false;
	if (c->kind == EXCHANGE) {
		to->node = c->node;
		from->node = c->other;
		return true;
	}
	drop(t, from);
	if (c->kind == RENAME) {
		to = find(t, c->to_dir, c->to);
		if (to)
			drop(t, to);
		add(t, c->to_dir, c->to, c->node);
	}
	return true;
}

static bool is_data(const struct change *c)
{
	return c->kind == WRITE || c->kind == RESIZE;
}

static void seen_clear(void);

/* ---- recording ---- */

static unsigned node_of_stat(const struct stat *st)
{
	for (unsigned i = 0; i < n_nodes; i++)
		if (nodes[i].inode == st->st_ino && st->st_dev == device)
			return i;
	return NODES;
}

static unsigned node_of_fd(int fd)
{
	struct stat st;

	REQUIRE(!fstat(fd, &st));
	return node_of_stat(&st);
}

/* Finds the directory of a path, and its last element. Returns NODES if that directory is not
 * recorded. */
static unsigned parent_of(int dirfd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char dir[4096];
	struct stat st;

	*ret_name = slash ? slash + 1 : path;
	(void)snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		       slash ? path : ".");
	return fstatat(dirfd, dir, &st, 0) ? NODES : node_of_stat(&st);
}

static unsigned new_node(int dirfd, const char *path)
{
	char target[4096] = "";
	struct stat st;

	REQUIRE(!fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) && n_nodes < NODES);
	if (S_ISLNK(st.st_mode))
		REQUIRE(readlinkat(dirfd, path, target, sizeof(target) - 1) > 0);
	nodes[n_nodes] =
		(struct node){ st.st_ino, st.st_mode & S_IFMT,
			       S_ISLNK(st.st_mode) ? copied(target, strlen(target)) : NULL };
	return n_nodes++;
}

static struct change *note(enum kind kind, unsigned node)
{
	struct change *c = &changes[n_changes++];

	REQUIRE(n_changes < CHANGES);
	*c = (struct change){ .kind = kind, .node = node, .other = NODES, .sure = never };
	return c;
}

static void note_name(struct change *c, unsigned dir, const char *name)
{
	c->dir = dir;
	c->name = copied(name, strlen(name));
}

bool disk_begin(void)
{
	if (!recording)
		return false;
	REQUIRE(!pthread_mutex_lock(&lock));
	return true;
}

void disk_end(void)
{
	REQUIRE(!pthread_mutex_unlock(&lock));
}

void disk_made(int dirfd, const char *path)
{
	const char *name;
	unsigned dir = parent_of(dirfd, path, &name);
	struct change *c;

	if (dir == NODES || find(&now, dir, name))
		return;
	c = note(MAKE, new_node(dirfd, path));
	note_name(c, dir, name);
	REQUIRE(apply_name(&now, c));
}

void disk_wrote(int fd, const void *p, ssize_t n, off_t off)
{
	unsigned node = node_of_fd(fd);
	struct change *c;

	if (node == NODES)
		return;
	c = note(WRITE, node);
	c->off = (size_t)(off < 0 ? lseek(fd, 0, SEEK_CUR) - n : off);
	c->len = (size_t)n;
	c->data = copied(p, c->len);
}

void disk_resized(int fd)
{
	unsigned node = node_of_fd(fd);
	struct stat st;

	if (node == NODES)
		return;
	REQUIRE(!fstat(fd, &st));
	note(RESIZE, node)->len = (size_t)st.st_size;
}

/* Marks as certain the changes that an fsync of node `node` at change `at` covers. */
static void make_sure(size_t at, unsigned node)
{
	for (size_t i = 0; i < at; i++) {
		struct change *c = &changes[i];

		if (c->sure == never && c->kind != SYNC &&
		    (is_data(c) ? c->node == node : c->dir == node || (c->to && c->to_dir == node)))
			c->sure = at;
	}
}

void disk_synced(int fd)
{
	unsigned node = node_of_fd(fd);

	if (node == NODES)
		return;
	make_sure(n_changes, node);
	(void)note(SYNC, node);
}

int disk_synced_by(size_t i)
{
	return i < n_changes && changes[i].kind == SYNC ? (int)changes[i].node : -1;
}

bool disk_forget(int node)
{
	bool matters = node < 0;

	for (size_t i = 0; i < n_changes; i++) {
		const struct change *c = &changes[i],
				    *by = c->sure < n_changes ? &changes[c->sure] : NULL;

		matters |= by && (int)by->node == node;
	}
	for (size_t i = 0; i < n_changes; i++)
		changes[i].sure = never;
	for (size_t i = 0; i < n_changes; i++)
		if (changes[i].kind == SYNC && (int)changes[i].node != node)
			make_sure(i, changes[i].node);
	seen_clear();
	return matters;
}

void disk_renamed(int from_fd, const char *from, int to_fd, const char *to, bool exchange)
{
	const char *name, *to_name;
	unsigned dir = parent_of(from_fd, from, &name), to_dir = parent_of(to_fd, to, &to_name);
	struct change *c;

	REQUIRE((dir == NODES) == (to_dir == NODES));
	if (dir == NODES)
		return;
	c = note(exchange ? EXCHANGE : RENAME, node_at(&now, dir, name));
	note_name(c, dir, name);
	c->to_dir = to_dir;
	c->to = copied(to_name, strlen(to_name));
	c->other = node_at(&now, to_dir, to_name);
	if (c->other < NODES && !exchange)
		nodes[c->other].inode = 0;
	REQUIRE(apply_name(&now, c));
}

void disk_removed(int dirfd, const char *path)
{
	const char *name;
	unsigned dir = parent_of(dirfd, path, &name);
	struct change *c;

	if (dir == NODES)
		return;
	c = note(REMOVE, node_at(&now, dir, name));
	note_name(c, dir, name);
	nodes[c->node].inode = 0;
	REQUIRE(apply_name(&now, c));
}

void disk_opened(int dirfd, const char *path, int flags, int fd)
{
	if (flags & O_CREAT)
		disk_made(dirfd, path);
	if (flags & O_TRUNC)
		disk_resized(fd);
}

static void read_in(struct content *f, const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	REQUIRE(fd >= 0 && !fstat(fd, &st));
	resize(f, (size_t)st.st_size);
	for (size_t at = 0; at < f->len;) {
		ssize_t n = pread(fd, f->data + at, f->len - at, (off_t)at);

		REQUIRE(n > 0);
		at += (size_t)n;
	}
	(void)close(fd);
}

static int see(const char *path, const struct stat *st, int type, struct FTW *at)
{
	const char *name;
	unsigned dir;

	(void)type;
	if (!at->level)
		return 0;
	dir = parent_of(AT_FDCWD, path, &name);
	REQUIRE(dir < NODES);
	add(&first, dir, name, new_node(AT_FDCWD, path));
	if (S_ISREG(st->st_mode))
		read_in(&first.files[n_nodes - 1], path);
	return 0;
}

void disk_record(const char *path)
{
	struct stat st;

	for (size_t i = 0; i < n_changes; i++) {
		free(changes[i].name);
		free(changes[i].to);
		free(changes[i].data);
	}
	for (unsigned i = 0; i < n_nodes; i++)
		free(nodes[i].target);
	n_changes = n_nodes = 0;
	seen_clear();
	clear(&first);
	REQUIRE(snprintf(root, sizeof(root), "%s", path) < (int)sizeof(root) && !stat(root, &st));
	device = st.st_dev;
	REQUIRE(new_node(AT_FDCWD, root) == ROOT);
	REQUIRE(!nftw(root, see, 16, FTW_PHYS));
	first.n_files = n_nodes;
	copy(&now, &first);
	recording = true;
}

size_t disk_stop(void)
{
	recording = false;
	return n_changes;
}

const char *disk_change(size_t i)
{
	static const char *const words[] = { "make",	 "write to", "resize", "rename",
					     "exchange", "remove",   "sync" };
	static char text[600];
	const struct change *c = &changes[i];

	if (i >= n_changes)
		return "the end";
	if (c->name)
		(void)snprintf(text, sizeof(text), "%s '%s'%s%s", words[c->kind], c->name,
			       c->to ? " to " : "", c->to ? c->to : "");
	else
		(void)snprintf(text, sizeof(text), "%s node %u, %zu bytes at %zu", words[c->kind],
			       c->node, c->len, c->off);
	return text;
}

/* ---- a crash ---- */

struct crash {
	enum disk_keep keep;
	size_t n, cut;
	struct rng rng;
	/* What becomes of each change that is not certain, in order; NULL: draw it. */
	const uint8_t *chosen;
};

enum choice { LOST, THERE, ZEROS }; /* ZEROS: the file is longer, but the new bytes are zeros */

static enum choice choose(struct crash *x, size_t i)
{
	if (x->chosen) {
		x->chosen++;
		return (enum choice)x->chosen[-1];
	}
	switch (x->keep) {
	case DISK_ALL:
		return THERE;
	case DISK_NONE:
		return LOST;
	case DISK_FIRST:
		return i < x->cut ? THERE : LOST;
	default:
		return rng_chance(&x->rng, 50) ? THERE : LOST;
	}
}

/* The length of the block that begins `at` bytes into the change. */
static size_t block_of(const struct change *c, size_t at)
{
	size_t n = BLOCK - (c->off + at) % BLOCK;

	return n < c->len - at ? n : c->len - at;
}

static void apply_data(struct crash *x, struct tree *t, size_t i, bool sure)
{
	const struct change *c = &changes[i];
	struct content *f = &t->files[c->node];

	if (c->kind == RESIZE) {
		if (sure || choose(x, i) == THERE)
			resize(f, c->len);
		return;
	}
	for (size_t at = 0, n; at < c->len; at += n) {
		enum choice choice = sure ? THERE : choose(x, i);
		size_t end;

		n = block_of(c, at);
		end = c->off + at + n;
		if (choice != LOST && end > f->len)
			resize(f, end);
		if (choice == THERE)
			memcpy(f->data + c->off + at, c->data + at, n);
	}
}

/* Makes *t what is left of the first x->n changes. */
static void leave(struct crash *x, struct tree *t)
{
	copy(t, &first);
	for (size_t i = 0; i < x->n; i++) {
		const struct change *c = &changes[i];
		bool sure = c->sure < x->n && !(x->keep == DISK_LIES && is_data(c));

		if (c->kind == SYNC)
			continue;
		if (is_data(c))
			apply_data(x, t, i, sure);
		else if (sure || choose(x, i) == THERE)
			REQUIRE(apply_name(t, c) || !sure);
	}
}

static void put_entry(int at, const struct entry *x)
{
	const struct content *f = &crashed.files[x->node];
	int fd;

	if (S_ISLNK(nodes[x->node].type)) {
		REQUIRE(!symlinkat(nodes[x->node].target, at, x->name));
		return;
	}
	fd = openat(at, x->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	REQUIRE(fd >= 0 && (!f->len || write(fd, f->data, f->len) == (ssize_t)f->len));
	(void)close(fd);
}

static void put_dir(unsigned dir, int at)
{
	for (size_t i = 0; i < crashed.n; i++) {
		const struct entry *x = &crashed.entries[i];
		int fd;

		if (x->dir != dir)
			continue;
		if (!S_ISDIR(nodes[x->node].type)) {
			put_entry(at, x);
			continue;
		}
		REQUIRE(!mkdirat(at, x->name, 0755));
		fd = openat(at, x->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		REQUIRE(fd >= 0);
		put_dir(x->node, fd);
		(void)close(fd);
	}
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	return at->level ? remove(path) : 0;
}

void disk_put(void)
{
	int fd;

	REQUIRE(!nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS));
	fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	put_dir(ROOT, fd);
	(void)close(fd);
}

void disk_crash(size_t n, enum disk_keep keep, uint64_t seed)
{
	struct crash x = { keep, n, 0, { seed }, NULL };

	REQUIRE(n <= n_changes && !recording);
	x.cut = rng_below(&x.rng, n + 1);
	leave(&x, &crashed);
	disk_put();
}

/* ---- all states ---- */

static uint64_t *seen; /* hashes; 0: free */
static size_t n_seen, seen_room;

static void seen_clear(void)
{
	free(seen);
	seen = NULL;
	n_seen = seen_room = 0;
}

static bool seen_put(uint64_t hash)
{
	size_t i = hash % seen_room;

	for (; seen[i]; i = (i + 1) % seen_room)
		if (seen[i] == hash)
			return false;
	seen[i] = hash;
	n_seen++;
	return true;
}

/* Is it new? */
static bool seen_add(uint64_t hash)
{
	hash += !hash;
	if (2 * n_seen >= seen_room) {
		uint64_t *old = seen;
		size_t room = seen_room;

		seen_room = room ? 2 * room : 1024;
		seen = calloc(seen_room, sizeof(*seen));
		REQUIRE(seen);
		n_seen = 0;
		for (size_t i = 0; i < room; i++)
			if (old[i])
				(void)seen_put(old[i]);
		free(old);
	}
	return seen_put(hash);
}

/* A hash of everything that has a name; the order does not matter. */
static uint64_t hash_of(const struct tree *t)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < t->n; i++) {
		const struct entry *x = &t->entries[i];
		const struct content *f = &t->files[x->node];
		uint64_t h = XXH3_64bits_withSeed(x->name, strlen(x->name), x->dir);

		if (!is_below(t, x->dir, ROOT))
			continue;
		if (nodes[x->node].type == S_IFDIR)
			h += x->node; /* its entries refer to it by this number */
		else
			h = XXH3_64bits_withSeed(f->data ? f->data : (const void *)"", f->len, h);
		sum += XXH3_64bits(&h, sizeof(h));
	}
	return sum;
}

/* A choice that is to be made. */
struct unit {
	size_t change, at; /* at: of the block */
	uint8_t choices;
	bool data;
};

static struct unit units[CHANGES];
static uint8_t chosen[CHANGES];
static size_t n_units;

static void add_unit(size_t change, size_t at, unsigned choices)
{
	REQUIRE(n_units < CHANGES);
	units[n_units++] = (struct unit){ change, at, (uint8_t)choices, is_data(&changes[change]) };
}

/* Lists the choices in the order in which leave() asks for them. Returns the number of states, at
 * most UINT64_MAX. */
static uint64_t find_units(size_t n)
{
	uint64_t states = 1;
	size_t *len = calloc(NODES, sizeof(*len)); /* with all changes before */

	REQUIRE(len);
	n_units = 0;
	for (unsigned i = 0; i < n_nodes; i++)
		len[i] = first.files[i].len;
	for (size_t i = 0; i < n; i++) {
		const struct change *c = &changes[i];
		bool sure = c->sure < n || c->kind == SYNC;

		if (c->kind == RESIZE)
			len[c->node] = c->len;
		if (c->kind != WRITE && !sure)
			add_unit(i, 0, 2);
		for (size_t at = 0; c->kind == WRITE && at < c->len; at += block_of(c, at)) {
			size_t end = c->off + at + block_of(c, at);

			if (!sure)
				add_unit(i, at, end > len[c->node] ? 3 : 2);
			len[c->node] = end > len[c->node] ? end : len[c->node];
		}
	}
	for (size_t i = 0; i < n_units; i++)
		states = states > UINT64_MAX / 4 ? UINT64_MAX : states * units[i].choices;
	free(len);
	return states;
}

struct looking {
	size_t n;
	struct disk_how *how;
	disk_see_fn *see;
	void *arg;
};

static void look_at(const struct looking *l)
{
	struct crash x = { .keep = DISK_SOME, .n = l->n, .chosen = chosen };

	leave(&x, &crashed);
	l->how->states++;
	if (!seen_add(hash_of(&crashed)) && !l->how->again)
		return;
	l->how->different++;
	l->see(l->arg);
}

/* Goes on to the next combination of choices; false after the last. */
static bool choose_next(void)
{
	for (size_t i = 0; i < n_units; i++) {
		if (++chosen[i] < units[i].choices)
			return true;
		chosen[i] = LOST;
	}
	return false;
}

static void look_at_some(const struct looking *l)
{
	struct rng rng = { l->how->seed };
	uint64_t end = l->how->states + l->how->most;
	size_t step = l->how->brief ? 1 + 7 * n_units / l->how->most : 1;

	for (size_t cut = rng_below(&rng, step); cut <= n_units; cut += step)
		for (int data = 0; data < 3; data++) { /* bytes: none, all, up to the cut */
			for (size_t i = 0; i < n_units; i++)
				chosen[i] = units[i].data && data < 2 ? data : i < cut;
			look_at(l);
		}
	for (size_t i = rng_below(&rng, step); i < n_units; i += step)
		for (uint8_t rest = LOST; rest <= THERE; rest++)
			for (uint8_t k = LOST; k < units[i].choices; k++) {
				memset(chosen, rest, n_units);
				chosen[i] = k;
				look_at(l);
			}
	while (l->how->states < end) {
		for (size_t i = 0; i < n_units; i++)
			chosen[i] = (uint8_t)rng_below(&rng, units[i].choices);
		look_at(l);
	}
}

void disk_states(size_t n, struct disk_how *how, disk_see_fn *see_, void *arg)
{
	const struct looking l = { n, how, see_, arg };
	struct crash all = { .keep = DISK_ALL, .n = n_changes };

	REQUIRE(n <= n_changes && !recording);
	leave(&all, &last);
	if (find_units(n) > how->most) {
		how->part++;
		look_at_some(&l);
		return;
	}
	how->whole++;
	memset(chosen, LOST, n_units);
	do
		look_at(&l);
	while (choose_next());
}

/* Are two names the same, with all that is below them? */
static bool is_same(const struct tree *a, unsigned x, const struct tree *b, unsigned y)
{
	const struct content *f = &a->files[x], *g = &b->files[y];
	size_t n = 0;

	if (nodes[x].type != nodes[y].type)
		return false;
	if (nodes[x].type == S_IFLNK)
		return !strcmp(nodes[x].target, nodes[y].target);
	if (nodes[x].type == S_IFREG)
		return f->len == g->len && (!f->len || !memcmp(f->data, g->data, f->len));
	for (size_t i = 0; i < b->n; i++)
		n += b->entries[i].dir == y;
	for (size_t i = 0; i < a->n; i++) {
		const struct entry *e = &a->entries[i];
		unsigned other;

		if (e->dir != x)
			continue;
		other = node_at((struct tree *)(uintptr_t)b, y, e->name);
		if (other == NODES || !n-- || !is_same(a, e->node, b, other))
			return false;
	}
	return !n;
}

bool disk_is_old(const char *name, const char *before)
{
	unsigned x = node_at(&crashed, ROOT, name), y = node_at(&first, ROOT, before);

	return x < NODES && y < NODES && is_same(&crashed, x, &first, y);
}

enum disk_what disk_what(const char *name)
{
	unsigned x = node_at(&crashed, ROOT, name), y = node_at(&last, ROOT, name);

	if (x == NODES)
		return DISK_ABSENT;
	if (y < NODES && is_same(&crashed, x, &last, y))
		return DISK_NEW;
	return disk_is_old(name, name) ? DISK_OLD : DISK_OTHER;
}

/* ---- the laws ---- */

static char broken[1400];

/* Was change j not on disk for certain when change i was made? */
static bool pending(size_t j, size_t i)
{
	return changes[j].kind != SYNC && changes[j].sure > i;
}

/* A change of bytes (or of names) at or below `top` that is pending, or never if all is on disk. */
static size_t pending_below(unsigned top, size_t i, bool names)
{
	for (size_t j = 0; j < i; j++) {
		const struct change *c = &changes[j];

		if (pending(j, i) && (is_data(c) || names) &&
		    is_below(&now, is_data(c) ? c->node : c->dir, top))
			return j;
	}
	return never;
}

/* A pending change that gives or takes this name in directory `dir`, or never. */
static size_t pending_name(unsigned dir, const char *name, size_t i)
{
	for (size_t j = 0; j < i; j++) {
		const struct change *c = &changes[j];

		if (pending(j, i) && !is_data(c) && c->dir == dir &&
		    (!strcmp(c->name, name) || (c->to && !strcmp(c->to, name))))
			return j;
	}
	return never;
}

static void broke(size_t j, size_t i, const char *why)
{
	char before[600];

	(void)snprintf(before, sizeof(before), "%s", disk_change(j));
	(void)snprintf(broken, sizeof(broken),
		       "%s: change %zu (%s) is not on disk at change %zu (%s)", why, j, before, i,
		       disk_change(i));
}

/* The end of a name: "x.partial.lock" is a note with suffix ".lock". */
static bool has_end(const char *name, const char *end)
{
	size_t n = strlen(name), k = strlen(end);

	return n > k && !strcmp(name + n - k, end);
}

static const char *const notes[] = { ".lock", ".state" };

static size_t law_of_make(const struct change *c, size_t i)
{
	size_t bad = never;

	for (unsigned k = 0; k < 2 && bad == never && has_end(c->name, ".partial"); k++) {
		char name[600];
		unsigned node;

		(void)snprintf(name, sizeof(name), "%s%s", c->name, notes[k]);
		node = node_at(&now, c->dir, name);
		if (node == NODES)
			continue;
		bad = pending_name(c->dir, name, i);
		if (bad == never)
			bad = pending_below(node, i, false);
	}
	if (bad != never)
		broke(bad, i, "made before the note about it is on disk");
	return bad;
}

static size_t law_of_rename(const struct change *c, size_t i)
{
	size_t bad = pending_below(c->node, i, true);

	if (bad == never && c->kind == EXCHANGE)
		bad = pending_below(c->other, i, true);
	if (bad != never)
		broke(bad, i, "renamed before it is on disk");
	return bad;
}

/* Did change j take a name that was on disk from node x, or from a directory that x is in? */
static bool displaced(unsigned x, size_t j)
{
	const struct change *r = &changes[j];

	if (r->kind != RENAME && r->kind != EXCHANGE)
		return false;
	return (r->other < NODES && is_below(&now, x, r->other)) ||
	       (pending_name(r->dir, r->name, j) == never && is_below(&now, x, r->node));
}

static size_t law_of_remove(const struct change *c, size_t i)
{
	size_t bad = never;

	for (size_t j = 0; j < i && bad == never; j++)
		if (pending(j, i) && displaced(c->node, j))
			bad = j;
	if (bad != never) {
		broke(bad, i, "removed before the rename is on disk");
		return bad;
	}
	for (unsigned k = 0; k < 2 && bad == never; k++) {
		char name[600];

		if (!has_end(c->name, notes[k]))
			continue;
		(void)snprintf(name, sizeof(name), "%.*s",
			       (int)(strlen(c->name) - strlen(notes[k])), c->name);
		if (has_end(name, ".partial"))
			bad = pending_name(c->dir, name, i);
	}
	if (bad != never)
		broke(bad, i, "the note is removed before what it is about");
	return bad;
}

static size_t law_of_record(const struct change *c, size_t i)
{
	const char *name = name_of(&now, c->node);
	char about[600];
	unsigned node;
	size_t bad;

	if (c->off < HEADER || c->len != 1 || !has_end(name, ".partial.state"))
		return never;
	(void)snprintf(about, sizeof(about), "%.*s", (int)(strlen(name) - strlen(".state")), name);
	node = node_at(&now, ROOT, about);
	bad = node < NODES ? pending_below(node, i, false) : never;
	if (bad != never)
		broke(bad, i, "recorded before it is on disk");
	return bad;
}

static size_t law_of_end(const char *dest)
{
	unsigned node = node_at(&now, ROOT, dest);
	size_t bad;

	REQUIRE(node < NODES);
	bad = pending_name(ROOT, dest, n_changes);
	if (bad == never)
		bad = pending_below(node, n_changes, true);
	if (bad != never)
		broke(bad, n_changes, "said to be done");
	return bad;
}

const char *disk_law(const char *dest)
{
	size_t bad = never;

	copy(&now, &first);
	for (size_t i = 0; i < n_changes && bad == never; i++) {
		const struct change *c = &changes[i];

		switch (c->kind) {
		case MAKE:
			bad = law_of_make(c, i);
			break;
		case RENAME:
		case EXCHANGE:
			bad = law_of_rename(c, i);
			break;
		case REMOVE:
			bad = law_of_remove(c, i);
			break;
		case WRITE:
			bad = law_of_record(c, i);
			break;
		case RESIZE:
		case SYNC:
			break;
		}
		if (!is_data(c) && c->kind != SYNC)
			REQUIRE(apply_name(&now, c));
	}
	if (bad == never && dest)
		bad = law_of_end(dest);
	return bad == never ? NULL : broken;
}
