/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/crew.h"
#include "index/catalog_found.h"
#include "read/fetch_internal.h"
#include "tensor/vtensor.h"

/* Items are scattered: on storage with latency, throughput depends on the number of requests in
 * flight. */
enum {
	MAX_LOOKERS = 64,
	TENSORS_OF_ALL = 256 /* with this many tensors, use all threads */
};

struct look {
	struct fetch *f;
	vtensor_make_fn *make;
	void *arg;
	size_t n;
	_Atomic size_t next;
	pthread_mutex_t lock;
	struct ckpt_err *e; /* the first failure */
	atomic_bool failed;
	bool changed; /* some file has: those of tensors that have been looked at, too, perhaps */
};

static int look_at(struct look *l, size_t i, struct ckpt_err *e)
{
	autofree struct vtensor *v = NULL;
	int rc = l->make(l->arg, i, &v, e);

	for (uint32_t k = 0; !rc && k < v->n_pieces; k++) {
		uint32_t number = v->pieces[k].source;
		struct otensor *t = NULL;

		if (l->f->looked[number] && !l->changed)
			continue;
		rc = otensor_open(l->f, number, &t, e);
		otensor_close(l->f, t);
	}
	return rc;
}

static void *look(void *arg)
{
	struct look *l = arg;
	size_t i;

	while (!l->failed && (i = l->next++) < l->n) {
		struct ckpt_err e = { 0 };

		if (!look_at(l, i, &e))
			continue;
		SCOPED_LOCK(&l->lock);
		if (!l->failed)
			*l->e = e;
		l->failed = true;
	}
	return NULL;
}

int fetch_look(struct fetch *f, size_t n, vtensor_make_fn *make, void *arg, struct ckpt_err *e)
{
	struct look l = { .f = f, .make = make, .arg = arg, .n = n, .e = e };
	size_t at_once = min_u64(max_u64(files_at_once(f->store.files), 1), MAX_LOOKERS);

	files_look_at_open(f->store.files);
	l.changed = files_changed(f->store.files);
	(void)pthread_mutex_init(&l.lock, NULL);
	crew_run(1 + min_u64(at_once, n * at_once / TENSORS_OF_ALL), look, &l);
	(void)pthread_mutex_destroy(&l.lock);
	if (l.failed)
		return -e->code;
	catalog_found_keep(f->found);
	return 0;
}
