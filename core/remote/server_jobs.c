/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/server_internal.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/list.h"
#include "base/text.h"
#include "remote/depot.h"
#include "remote/store.h"
#include "remote/writes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_JOBS = 64 }; /* that block in a store at a time; others wait for a thread */

/* A message that blocks in a store. A thread carries it out and answers it, except for WIRE_OPEN
 * and WIRE_FILE: the first thread does that once the job has ended. */
struct job {
	struct server *server;
	struct wire_head head;
	char *text[4];
	char *all; /* the whole text */
	int fd;	   /* that came with it, or -1 */
	struct store *store;
	uint32_t place;
	/* Of WIRE_FILE. */
	struct place_seen seen;
	bool again;
	struct object *object;
	int rc;
	struct ckpt_err why;
	uint32_t left; /* the place of a session that is over; UINT32_MAX: none is */
	struct job *next;
};

struct jobs {
	pthread_mutex_t lock; /* of everything below */
	pthread_cond_t work;
	struct job *first, **end, *ended;
	unsigned threads, idle, n; /* n: those that no thread has taken */
};

struct jobs *jobs_new(void)
{
	struct jobs *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->end = &q->first;
	(void)pthread_mutex_init(&q->lock, NULL);
	(void)pthread_cond_init(&q->work, NULL);
	return q;
}

/* ---- on threads of their own ---- */

/* Files of this machine: does the seal allow it? */
static int check_seal(const struct job *j, enum seal_use use, struct ckpt_err *e)
{
	int dir = store_dir(j->store);

	if (dir < 0 || seal_allows_files(&j->server->seal, dir, use, j->text[0]))
		return 0;
	/* As if it could not be read, which is no fault of a file that need not be there. */
	return err_set(e, EACCES,
		       "it is not among what was named before rights were given up "
		       "('sandbox=off' does without that)");
}

/* A listing on its way out. */
struct lister {
	struct server *server;
	uint32_t id;
	char *text;
	size_t len;
};

static void send_entries(struct lister *l, bool more)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = l->id, .n = { 0, more } };

	server_answer_from_thread(l->server, &h, l->text, l->len);
	l->len = 0;
}

static int check_size(const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	return seen->size <= WIRE_SIZE_MAX
		       ? 0
		       : err_set(e, EFBIG, "'%.100s' has %llu bytes, more than can be read", name,
				 (unsigned long long)seen->size);
}

static int add_entry(void *arg, const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	struct lister *l = arg;
	size_t n = strlen(name);
	struct wire_entry x = { .size = seen->size,
				.mtime_ns = seen->mtime_ns,
				.kind = (uint8_t)seen->kind,
				.id_len = seen->id.len,
				.name = (uint16_t)n };

	if (n > UINT16_MAX || sizeof(x) + n > WIRE_TEXT_MAX)
		return err_set(e, ENAMETOOLONG, "a name of %zu bytes", n);
	if (check_size(name, seen, e))
		return -e->code;
	memcpy(x.id, seen->id.v, sizeof(x.id));
	if (l->len + sizeof(x) + n > WIRE_TEXT_MAX)
		send_entries(l, true);
	memcpy(l->text + l->len, &x, sizeof(x));
	memcpy(l->text + l->len + sizeof(x), name, n);
	l->len += sizeof(x) + n;
	return 0;
}

static void do_list(struct job *j)
{
	struct lister l = { .server = j->server, .id = j->head.id, .text = malloc(WIRE_TEXT_MAX) };
	struct ckpt_err e = { 0 };
	int rc = l.text ? check_seal(j, SEAL_LIST, &e) : err_nomem(&e);

	if (!rc)
		rc = store_list(j->store, j->text[0], add_entry, &l, &e);
	if (rc == -ENOTSUP && !*e.msg)
		(void)err_set(&e, ENOTSUP, "the store has no listings");
	if (rc)
		server_error_from_thread(j->server, j->head.id, &e);
	else {
		if (l.len)
			send_entries(&l, true);
		send_entries(&l, false);
	}
	free(l.text);
}

static void do_look(struct job *j)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = j->head.id };
	struct place_seen seen = { 0 };
	struct ckpt_err e = { 0 };
	bool itself = !strcmp(j->text[0], ".");
	/* Names, sizes and times of what may not be read are nobody's business, either. */
	int rc = check_seal(j, itself ? SEAL_OPEN : SEAL_READ, &e);

	if (!rc)
		rc = store_look(j->store, j->text[0], &seen, &e);
	if (rc > 0 && check_size(j->text[0], &seen, &e))
		rc = -e.code;
	if (rc < 0) {
		server_error_from_thread(j->server, j->head.id, &e);
		return;
	}
	h.n[1] = rc > 0;
	wire_put_seen(&h, &seen);
	server_answer_from_thread(j->server, &h, NULL, 0);
}

static const char *or_null(const char *s)
{
	return *s ? s : NULL;
}

/* The store becomes one of the places when the first thread sees the ended job. */
static void do_open(struct job *j)
{
	const struct store_options o = { .endpoint = or_null(j->text[1]),
					 .region = or_null(j->text[2]),
					 .profile = or_null(j->text[3]),
					 .anonymous = j->head.n[0] != 0,
					 .dir = j->fd };
	struct ckpt_err e = { 0 };
	int rc = store_open(j->server->net, j->text[0], &o, &j->store, &e);

	if (!rc && check_seal(j, SEAL_OPEN, &e))
		store_free(j->store);
	else if (!rc)
		return;
	j->store = NULL;
	server_error_from_thread(j->server, j->head.id, &e);
}

/* The object becomes a file when the first thread sees the ended job. */
static void do_file(struct job *j)
{
	const char *origin = store_origin(j->store);
	autofree char *address = NULL;

	j->rc = check_seal(j, SEAL_READ, &j->why);
	if (j->rc)
		return;
	/* What one endpoint serves must not be taken for what another has under that name. No
	 * address contains a newline. */
	address = text_format("%s%s%s", store_address(j->store), *origin ? "\n" : "", origin);
	if (!address) {
		j->rc = err_nomem(&j->why);
		return;
	}
	j->rc = depot_prepare(j->server->depot, address, j->text[0], &j->seen, &j->object, &j->why);
}

static void do_write(struct job *j)
{
	const struct write_call c = { j->head, j->all, j->fd, j->store, j->place };
	struct wire_head h = { .kind = WIRE_ANSWER, .id = j->head.id };
	struct buf text CLEANUP(buf_release) = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	struct session *late = NULL;

	if (writes_call(j->server->writes, &c, &h, &text, &j->left, &late, &e))
		server_error_from_thread(j->server, j->head.id, &e);
	else
		server_answer_from_thread(j->server, &h, text.data, text.len ? text.len + 1 : 0);
	if (late) /* it uses its place until then */
		j->left = writes_wait(late);
}

static bool is_write(const struct wire_head *h)
{
	return h->kind >= WIRE_BEGIN && h->kind <= WIRE_END;
}

static void *work(void *arg)
{
	struct server *s = arg;
	struct jobs *q = s->jobs;

	for (;;) {
		struct job *j;

		{
			SCOPED_LOCK(&q->lock);
			q->idle++;
			while (!q->first)
				(void)pthread_cond_wait(&q->work, &q->lock);
			q->idle--;
			j = q->first;
			q->n--;
			q->first = j->next;
			if (!q->first)
				q->end = &q->first;
		}
		if (j->head.kind == WIRE_OPEN)
			do_open(j);
		else if (j->head.kind == WIRE_CLOSE)
			store_free(j->store); /* waits for a renewal of its credentials */
		else if (j->head.kind == WIRE_FILE)
			do_file(j);
		else if (j->head.kind == WIRE_LOOK)
			do_look(j);
		else if (is_write(&j->head))
			do_write(j);
		else
			do_list(j);
		{
			SCOPED_LOCK(&q->lock);
			j->next = q->ended;
			q->ended = j;
		}
		server_wake(s);
	}
	return NULL;
}

/* ---- on the first thread ---- */

static void job_free(struct job *j)
{
	for (size_t i = 0; i < ARRAY_LEN(j->text); i++)
		free(j->text[i]);
	if (j->fd >= 0)
		(void)close(j->fd);
	free(j->all);
	free(j);
}

static void queue_job(struct server *s, struct job *j)
{
	struct jobs *q = s->jobs;
	bool thread = false;
	pthread_t t;

	j->next = NULL;
	{
		SCOPED_LOCK(&q->lock);
		*q->end = j;
		q->end = &j->next;
		/* An idle thread that was woken for another job is still counted. */
		if (++q->n > q->idle && q->threads < MAX_JOBS) {
			q->threads++;
			thread = true;
		}
		(void)pthread_cond_signal(&q->work);
	}
	if (thread && pthread_create(&t, NULL, work, s)) {
		SCOPED_LOCK(&q->lock);
		if (!--q->threads)
			_exit(1); /* nobody would ever answer */
	} else if (thread)
		(void)pthread_detach(t);
}

static struct job *job_new(void)
{
	struct job *j = calloc(1, sizeof(*j));

	if (j) {
		j->left = UINT32_MAX;
		j->fd = -1;
	}
	return j;
}

bool jobs_start(struct server *s, struct wire_msg *m, struct store *store, uint32_t place,
		const struct place_seen *seen)
{
	struct job *j = job_new();
	bool enough = j != NULL;

	if (j) {
		j->fd = m->fd;
		m->fd = -1;
		j->all = malloc((size_t)m->head.text + 1);
		enough = j->all != NULL;
	}
	if (enough)
		memcpy(j->all, m->text, (size_t)m->head.text + 1);
	for (unsigned i = 0; enough && i < ARRAY_LEN(j->text); i++) {
		j->text[i] = strdup(wire_string(m, i));
		enough = j->text[i] != NULL;
	}
	if (!enough) {
		struct ckpt_err e;

		(void)err_nomem(&e);
		if (j)
			job_free(j);
		server_answer(s, m->head.id, &e);
		return false;
	}
	j->server = s;
	j->head = m->head;
	j->store = store;
	j->place = place;
	if (seen)
		j->seen = *seen;
	if (store)
		server_place_enter(s, place);
	queue_job(s, j);
	return true;
}

void jobs_close(struct server *s, struct store *store)
{
	struct job *j = job_new();

	if (!j) /* out of memory: it stays */
		return;
	j->server = s;
	j->head.kind = WIRE_CLOSE;
	j->store = store;
	queue_job(s, j);
}

/* False: the job is tried again. */
static bool add_file(struct server *s, struct job *j)
{
	if ((j->rc == -EMFILE || j->rc == -ENFILE) && !j->again && depot_spare(s->depot)) {
		j->again = true;
		queue_job(s, j);
		return false;
	}
	if (j->rc)
		server_answer(s, j->head.id, &j->why);
	else
		server_file_add(s, j->head.id, j->place, j->text[0], &j->seen, j->object);
	return true;
}

void jobs_take_ended(struct server *s)
{
	struct job *ended;

	{
		SCOPED_LOCK(&s->jobs->lock);
		ended = s->jobs->ended;
		s->jobs->ended = NULL;
	}
	while (ended) {
		struct job *j = ended;

		ended = j->next;
		if (j->left != UINT32_MAX)
			server_place_leave(s, j->left);
		if (j->head.kind == WIRE_FILE && !add_file(s, j))
			continue;
		if (j->head.kind == WIRE_OPEN && j->store)
			server_place_add(s, j->head.id, j->store);
		else if (j->head.kind != WIRE_OPEN && j->head.kind != WIRE_CLOSE && j->store)
			server_place_leave(s, j->place);
		job_free(j);
	}
}
