/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real checkpoint of tests/data is edited; then it is opened, listed and read, and opened again
 * and read in other pieces. All of it is read, or, if the pieces are small, as much as MAX_PIECES
 * of them hold. Whatever the edits have done, what can be read must be the same both times, and
 * tensors of plain safetensors must be the very bytes of the file.
 *
 * The input: which checkpoint, which options, then edits. Each has a kind, a file, a place and what
 * the kind needs.
 *
 * Fuzzes: format/ read/ source/files source/item_source tree/view
 */
#include "base/bytes.h"
#include "base/err.h"
#include <ckptfs/ckpt.h>

#include <stdlib.h>
#include <string.h>

#include "scratch.h"

enum { MAX_FILES = 14, MAX_FILE = 64 << 10, MAX_EDITS = 24, MAX_READ = 1 << 18, MAX_PIECES = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const fixtures[] = {
	"proto2/ckpt",
	"nocrc/ckpt",
	"mp4_hf_sharded/ckpt",
	"hp_b_collective/ckpt",
	"torchsave_zip/ckpt",
	"torchsave_legacy/ckpt",
	"mcore_like/ckpt",
	"mcore_zarr/ckpt",
	"mp4_zstd/ckpt",
	"fsw_safetensors/ckpt",
	"hp_a_collective/ckpt",
	"ds_z2_fp32_w4_tiny/ckpt",
	"ds_z3_fp16_w3_ties/ckpt",
	"ds_tp2_z3_fp32_w4/ckpt",
	"ds_pp2_z1_bf16_w4/ckpt",
	"mranks_moe/ckpt",
	"mranks_version_0/ckpt",
	"torchsave_tar/ckpt",
	"torchsave_parts/ckpt",
	"dcp_wrapped/ckpt",
	"orbax/names/ckpt",
	"orbax/uncompressed_nodes/ckpt",
	"orbax/v3_sharded/ckpt",
	"orbax/msgpack_aggregate/ckpt",
	"dcp_cut/ckpt",
};
enum { N_FIXTURES = sizeof(fixtures) / sizeof(fixtures[0]) };

struct file {
	char name[200];
	uint8_t *data;
	size_t len;
	bool gone;
	const char *link; /* in place of a file */
};

struct files {
	struct file v[MAX_FILES];
	size_t n;
};

static struct files originals[N_FIXTURES];

/* ---- the checkpoint ---- */

static struct files *loading;
static size_t loading_prefix;

static int load_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	struct file *f = &loading->v[loading->n];
	FILE *in;

	(void)at;
	if (type != FTW_F || st->st_size > MAX_FILE || loading->n == MAX_FILES)
		return 0;
	(void)snprintf(f->name, sizeof(f->name), "%s", path + loading_prefix);
	f->len = (size_t)st->st_size;
	f->data = malloc(f->len + 1);
	in = fopen(path, "rb");
	require(f->data && in && fread(f->data, 1, f->len, in) == f->len);
	(void)fclose(in);
	loading->n++;
	return 0;
}

static const struct files *load(size_t i)
{
	const char *top = getenv("TEST_DATA");
	char path[4200];

	loading = &originals[i];
	if (!loading->n) {
		(void)snprintf(path, sizeof(path), "%s/%s", top ? top : "tests/data", fixtures[i]);
		loading_prefix = strlen(path) + 1;
		require(!nftw(path, load_one, 16, FTW_PHYS) && loading->n);
	}
	return loading;
}

static void copy(const struct files *from, struct files *to)
{
	*to = *from;
	for (size_t i = 0; i < to->n; i++) {
		to->v[i].data = malloc(MAX_FILE * 2);
		require(to->v[i].data);
		memcpy(to->v[i].data, from->v[i].data, from->v[i].len);
	}
}

static void release(struct files *f)
{
	for (size_t i = 0; i < f->n; i++)
		free(f->v[i].data);
}

static void write_out(const struct files *f)
{
	char path[400];

	scratch_empty();
	for (size_t i = 0; i < f->n; i++) {
		if (f->v[i].gone)
			continue;
		scratch_put(f->v[i].name, f->v[i].data, f->v[i].link ? 0 : f->v[i].len);
		if (!f->v[i].link)
			continue;
		(void)snprintf(path, sizeof(path), "%s/%s", scratch, f->v[i].name);
		(void)unlink(path);
		if (symlink(f->v[i].link, path)) {
			perror(path);
			abort();
		}
	}
}

/* ---- edits ---- */

enum kind {
	SET_BYTE,
	SET_NUMBER, /* 1 to 8 bytes, little-endian */
	SET_DIGITS, /* the next decimal number in the text; what follows it may move */
	TRUNCATE,
	INSERT,
	DELETE,
	REPEAT, /* repeat a part right after itself */
	FROM_OTHER,
	SWAP,
	REMOVE,
	LINK,
	N_KINDS
};

static void replace(struct file *f, size_t at, size_t old, const void *p, size_t n)
{
	if (at > f->len || old > f->len - at || f->len - old + n > MAX_FILE)
		return;
	memmove(f->data + at + n, f->data + at + old, f->len - at - old);
	if (n)
		memmove(f->data + at, p, n);
	f->len += n - old;
}

static void set_digits(struct file *f, size_t at, uint64_t v)
{
	char text[24];
	size_t n = 0;

	while (at < f->len && (f->data[at] < '0' || f->data[at] > '9'))
		at++;
	while (at + n < f->len && f->data[at + n] >= '0' && f->data[at + n] <= '9')
		n++;
	replace(f, at, n, text, (size_t)snprintf(text, sizeof(text), "%ju", (uintmax_t)v));
}

static uint8_t byte(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 1);

	return p ? *p : 0;
}

static void edit(struct files *all, struct cursor *c)
{
	static const char *const links[] = { "..", "/dev/null", ".", "absent", "/etc/hostname" };
	enum kind kind = (enum kind)(byte(c) % N_KINDS);
	struct file *f = &all->v[byte(c) % all->n], *other, t;
	size_t at = cursor_le16(c) % (f->len + 1), n = byte(c), k;
	uint8_t bytes[8], from[256];
	uint64_t v = 0;

	if (kind == SET_NUMBER || kind == SET_DIGITS) {
		k = 1 + n % 8;
		for (size_t i = 0; i < k; i++)
			v |= (uint64_t)byte(c) << 8 * i;
		if (kind == SET_DIGITS) {
			set_digits(f, at, v);
			return;
		}
		(void)put_le(bytes, v, 8);
		k = k < f->len - at ? k : f->len - at;
		memcpy(f->data + at, bytes, k);
		return;
	}
	other = &all->v[n % all->n];
	k = n < f->len - at ? n : f->len - at;
	switch (kind) {
	case SET_BYTE:
		if (at < f->len)
			f->data[at] = (uint8_t)n;
		break;
	case TRUNCATE:
		f->len = at;
		break;
	case INSERT:
		memset(from, byte(c), sizeof(from));
		replace(f, at, 0, from, n);
		break;
	case DELETE:
		replace(f, at, k, NULL, 0);
		break;
	case REPEAT:
		memcpy(from, f->data + at, k);
		replace(f, at + k, 0, from, k);
		break;
	case FROM_OTHER:
		if (other != f && at < other->len)
			replace(f, at, 0, other->data + at,
				other->len - at < 64 ? other->len - at : 64);
		break;
	case SWAP:
		t = *f;
		f->data = other->data;
		f->len = other->len;
		other->data = t.data;
		other->len = t.len;
		break;
	case REMOVE:
		f->gone = true;
		break;
	default:
		f->link = links[n % (sizeof(links) / sizeof(links[0]))];
	}
}

/* ---- reading ---- */

struct seen {
	uint64_t hash, left; /* bytes that may still be read */
};

static void add(struct seen *s, const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s->hash = (s->hash ^ ((const uint8_t *)p)[i]) * 1099511628211u;
}

static void check_error(int rc, const struct ckpt_err *e)
{
	require(rc < 0 && e->code == -rc && *e->msg);
}

static void see_file(struct ckpt *c, ckpt_node n, uint64_t size, size_t piece, struct seen *s)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	int rc = ckpt_file_open(c, n, &f, &e);
	uint64_t want = size < s->left ? size : s->left, hash;
	uint8_t *buf;
	int64_t got = 0;

	if (rc) {
		check_error(rc, &e);
		add(s, &e.code, sizeof(e.code));
		return;
	}
	require(ckpt_file_size(f) == size);
	s->left -= want;
	hash = s->hash;
	buf = malloc(piece);
	require(buf);
	for (uint64_t at = 0; at < want; at += (uint64_t)got) {
		uint64_t rest = want - at;

		got = ckpt_file_read(f, buf, rest < piece ? rest : piece, at, &e);
		if (got < 0) {
			check_error((int)got, &e);
			break;
		}
		require(got == (int64_t)(rest < piece ? rest : piece));
		add(s, buf, (size_t)got);
	}
	if (got < 0) { /* the place of a failure depends on the pieces */
		s->hash = hash;
		add(s, &got, sizeof(got));
	}
	free(buf);
	ckpt_file_close(f);
}

static void see_below(struct ckpt *c, ckpt_node dir, size_t piece, unsigned depth, struct seen *s)
{
	char name[CKPT_NAME_MAX + 1], target[CKPT_NAME_MAX + 1];
	struct ckpt_stat st;
	ckpt_node n, again;

	require(depth < 8);
	for (uint64_t pos = 0; pos < 300 && !ckpt_entry(c, dir, pos, name, &n); pos++) {
		struct ckpt_err e = { 0 };
		int rc = ckpt_stat(c, n, &st, &e);

		if (!strcmp(name, ".ckptfs"))
			continue;
		require(!ckpt_lookup(c, dir, name, &again) && again == n);
		require(*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
			!strchr(name, '/'));
		add(s, name, strlen(name));
		if (rc)
			check_error(rc, &e);
		else if (st.is_dir)
			see_below(c, n, piece, depth + 1, s);
		else if (st.is_link)
			require(ckpt_readlink(c, n, target, &e) >= 0);
		else
			see_file(c, n, st.size, piece, s);
	}
}

/* ---- what the bytes must be ---- */

static const struct file *find(const struct files *all, const char *name)
{
	for (size_t i = 0; i < all->n; i++)
		if (!strcmp(all->v[i].name, name) && !all->v[i].gone && !all->v[i].link)
			return &all->v[i];
	return NULL;
}

struct oracle {
	const struct files *all;
	const struct ckpt_tensor *t;
	uint8_t *bytes;
	uint64_t size; /* of an element */
	bool known;
};

/* Element by element, in the order of the box. */
static int place(void *arg, const struct ckpt_chunk *chunk)
{
	struct oracle *o = arg;
	const struct file *f = find(o->all, chunk->path);
	uint64_t idx[64] = { 0 }, volume = 1;

	o->known &= f && !strcmp(chunk->encoding, "raw") && o->t->n_dims <= 64;
	if (!o->known)
		return 0;
	for (size_t d = 0; d < o->t->n_dims; d++)
		volume *= chunk->len[d];
	require(chunk->offset <= f->len && volume * o->size <= f->len - chunk->offset);
	for (uint64_t i = 0; i < volume; i++) {
		uint64_t at = 0, left = i;

		for (size_t d = o->t->n_dims; d-- > 0; left /= chunk->len[d])
			idx[d] = chunk->off[d] + left % chunk->len[d];
		for (size_t d = 0; d < o->t->n_dims; d++)
			at = at * o->t->shape[d] + idx[d];
		require((at + 1) * o->size <= o->t->bytes);
		memcpy(o->bytes + at * o->size, f->data + chunk->offset + i * o->size, o->size);
	}
	return 0;
}

static void check_tensor(struct ckpt *c, uint64_t i, const struct files *all)
{
	struct ckpt_tensor t;
	struct ckpt_file *f = NULL;
	struct oracle o = { .all = all, .t = &t, .known = true };
	struct ckpt_err e = { 0 };
	uint64_t volume = 1;
	uint8_t *got;

	ckpt_tensor(c, i, &t);
	for (size_t d = 0; d < t.n_dims; d++)
		volume *= t.shape[d];
	if (!volume || t.bytes > MAX_READ || t.bytes % volume ||
	    ckpt_file_open(c, ckpt_tensor_node(c, i), &f, &e))
		return;
	o.size = t.bytes / volume;
	o.bytes = calloc(1, t.bytes + 1);
	got = malloc(t.bytes + 1);
	require(o.bytes && got);
	if (!ckpt_tensor_chunks(c, i, place, &o, &e) && o.known &&
	    ckpt_file_read(f, got, t.bytes, 0, &e) >= 0)
		require(!memcmp(got, o.bytes, t.bytes));
	free(got);
	free(o.bytes);
	ckpt_file_close(f);
}

static void see(const char *const *opts, bool cast, size_t piece, uint64_t most,
		const struct files *all, struct seen *s)
{
	struct ckpt_totals n;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	int rc = ckpt_open(scratch, opts, NULL, &c, &e);

	*s = (struct seen){ .hash = 14695981039346656037u, .left = most };
	if (rc) {
		check_error(rc, &e);
		add(s, e.msg, strlen(e.msg));
		return;
	}
	see_below(c, CKPT_ROOT, piece, 0, s);
	ckpt_totals(c, &n);
	for (uint64_t i = 0; i < n.tensors && i < 100 && !cast; i++)
		check_tensor(c, i, all);
	ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cursor c = cursor_of(data, size);
	uint8_t which = byte(&c), options = byte(&c);
	const char *o[6] = { "index=:memory:" };
	size_t n = 1;
	bool cast = options & 2;
	size_t piece = 1 + options * 7u;
	uint64_t most = piece < MAX_READ / MAX_PIECES ? piece * MAX_PIECES : MAX_READ;
	struct files all;
	struct seen a, b;

	if (options & 1)
		o[n++] = "allow_missing";
	if (cast)
		o[n++] = "dtype=bf16";
	if (options & 4)
		o[n++] = "weights=";
	if (options & 8)
		o[n++] = "map_files";
	scratch_make();
	copy(load(which % N_FIXTURES), &all);
	for (int i = 0; i < MAX_EDITS && c.p < c.end && !c.bad; i++)
		edit(&all, &c);
	write_out(&all);
	see(o, cast, MAX_READ, most, &all, &a);
	see(o, cast, piece, most, &all, &b);
	require(a.hash == b.hash);
	release(&all);
	return 0;
}
