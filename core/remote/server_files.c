/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/server_internal.h"

#include "base/list.h"
#include "base/vec.h"
#include "remote/depot.h"
#include "remote/store.h"

#include <fcntl.h>
#include <stdlib.h>

struct place_row {
	struct store *store;
	unsigned users; /* files, jobs, sessions, and the other side; 0: free */
	bool closed;	/* by the other side */
};

struct places {
	struct place_row *rows; /* by number */
	size_t n_rows, cap_rows;
	struct file **files; /* by number; NULL: free */
	size_t n_files, cap_files;
};

struct places *places_new(void)
{
	return calloc(1, sizeof(struct places));
}

/* ---- places ---- */

static struct place_row *open_row(const struct server *s, uint64_t number)
{
	const struct places *p = s->places;
	struct place_row *r = number < p->n_rows ? &p->rows[number] : NULL;

	return r && r->users && !r->closed ? r : NULL;
}

struct store *server_place(const struct server *s, uint64_t number)
{
	const struct place_row *r = open_row(s, number);

	return r ? r->store : NULL;
}

void server_place_enter(struct server *s, uint32_t number)
{
	s->places->rows[number].users++;
}

void server_place_leave(struct server *s, uint32_t number)
{
	struct place_row *r = &s->places->rows[number];

	if (--r->users)
		return;
	jobs_close(s, r->store);
	*r = (struct place_row){ 0 };
}

void server_place_close(struct server *s, uint64_t number)
{
	struct place_row *r = open_row(s, number);

	if (!r)
		return;
	r->closed = true;
	server_place_leave(s, (uint32_t)number);
}

void server_place_add(struct server *s, uint32_t id, struct store *store)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = id };
	const char *address = store_address(store), *origin = store_origin(store);
	size_t n = strlen(address) + 1, len = n + strlen(origin) + 1, i = 0;
	struct places *p = s->places;
	char text[WIRE_TEXT_MAX];

	while (i < p->n_rows && p->rows[i].users)
		i++;
	if (len > sizeof(text) || i >= WIRE_FILES_MAX || !VEC_ROOM(p->rows, p->cap_rows, i + 1)) {
		struct ckpt_err e;

		(void)err_set(&e, ENOMEM, "open '%.100s': too many places, or too long an address",
			      address);
		store_free(store);
		server_answer(s, id, &e);
		return;
	}
	if (i == p->n_rows)
		p->n_rows++;
	p->rows[i] = (struct place_row){ .store = store, .users = 1 };
	h.n[1] = i;
	memcpy(text, address, n);
	memcpy(text + n, origin, len - n);
	server_send(s, &h, text, len, -1);
}

/* ---- files ---- */

struct file *server_file(const struct server *s, uint64_t number)
{
	const struct places *p = s->places;
	struct file *f = number < p->n_files ? p->files[number] : NULL;

	return f && !f->forgotten ? f : NULL;
}

struct store *server_file_store(const struct server *s, const struct file *f)
{
	return s->places->rows[f->place].store;
}

void server_file_free(struct server *s, struct file *f)
{
	object_close(f->object);
	s->places->files[f->number] = NULL;
	server_place_leave(s, f->place);
	free(f->sent);
	free(f->path);
	free(f);
}

/* Tells the other side where the blocks are from now on. id: of the request, or 0. */
static int send_map(struct server *s, struct file *f, uint32_t id, struct ckpt_err *e)
{
	const struct map_view *v = object_view(f->object);
	uint32_t *sent = calloc((size_t)v->n_segments + 1, sizeof(*sent));
	struct wire_head h = { .kind = id ? WIRE_ANSWER : WIRE_MAP, .id = id };

	if (!sent)
		return err_nomem(e);
	free(f->sent);
	f->sent = sent;
	f->sent_n = v->n_segments;
	h.n[1] = f->number;
	h.n[2] = v->segment;
	h.n[3] = object_in_memory(f->object);
	server_send(s, &h, NULL, 0, object_take_map(f->object));
	return 0;
}

static int new_file(struct server *s, uint32_t id, uint32_t place, const char *path,
		    const struct place_seen *seen, struct object *object, struct ckpt_err *e)
{
	struct places *p = s->places;
	struct file *f = NULL;
	size_t i = 0;

	depot_adopt(object);
	while (i < p->n_files && p->files[i])
		i++;
	if (i < WIRE_FILES_MAX && VEC_ROOM(p->files, p->cap_files, i + 1))
		f = calloc(1, sizeof(*f));
	if (f)
		f->path = strdup(path);
	if (!f || !f->path) {
		free(f);
		object_close(object);
		return err_nomem(e);
	}
	f->number = (uint32_t)i;
	f->place = place;
	f->seen = *seen;
	f->object = object;
	server_place_enter(s, place);
	p->files[i] = f;
	p->n_files = max_u64(p->n_files, i + 1);
	if (send_map(s, f, id, e)) {
		server_file_free(s, f);
		return -e->code;
	}
	return 0;
}

void server_file_add(struct server *s, uint32_t id, uint32_t place, const char *path,
		     const struct place_seen *seen, struct object *object)
{
	struct ckpt_err e;

	if (new_file(s, id, place, path, seen, object, &e))
		server_answer(s, id, &e);
}

bool server_file_leave_disk(struct server *s, struct file *f, struct ckpt_err *e)
{
	if (object_in_memory(f->object) || object_leave_disk(f->object, e))
		return false;
	/* They were those of another map, and may be fewer. */
	free(f->sent);
	f->sent = NULL;
	f->sent_n = 0;
	return !send_map(s, f, 0, e);
}

/* ---- segments ---- */

bool server_file_send(struct server *s, struct file *f, struct span span, struct ckpt_err *e)
{
	uint64_t per = object_view(f->object)->segment / WIRE_BLOCK;

	for (uint64_t b = span.first; b < span.end; b++)
		if (!object_has(f->object, b))
			return false;
	if (!f->sent && send_map(s, f, 0, e))
		return false;
	for (uint64_t i = span.first / per; i <= (span.end - 1) / per; i++) {
		struct wire_head h = { .kind = WIRE_SEGMENT };
		uint32_t generation;
		int fd, rc = object_segment(f->object, i, &generation, &fd, e);

		if (rc)
			return false;
		object_touch(f->object, i);
		if (f->sent[i] == generation)
			continue;
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0) {
			(void)err_sys(e, errno, "segment");
			return false;
		}
		f->sent[i] = generation;
		h.n[0] = f->number;
		h.n[1] = i;
		h.n[2] = generation;
		server_send(s, &h, NULL, 0, fd);
	}
	/* What was evicted since is in another generation. */
	for (uint64_t b = span.first; b < span.end; b++)
		if (!object_has(f->object, b))
			return false;
	return true;
}

void server_file_unsend(struct file *f, struct span span)
{
	uint64_t per = object_view(f->object)->segment / WIRE_BLOCK;

	for (uint64_t i = span.first / per; i <= (span.end - 1) / per && i < f->sent_n; i++)
		f->sent[i] = 0;
}

void server_drop_segment(void *arg, struct object *o, uint64_t segment, uint32_t generation)
{
	struct server *s = arg;
	const struct places *p = s->places;

	for (size_t i = 0; i < p->n_files; i++) {
		struct file *f = p->files[i];
		struct wire_head h = { .kind = WIRE_DROP };

		if (!f || f->object != o || f->forgotten || segment >= f->sent_n ||
		    f->sent[segment] != generation)
			continue;
		f->sent[segment] = 0;
		h.n[0] = f->number;
		h.n[1] = segment;
		h.n[2] = generation;
		server_send(s, &h, NULL, 0, -1);
	}
}
