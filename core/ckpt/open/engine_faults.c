/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the parts of a checkpoint that cannot be read, and the reasons. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "index/catalog_query.h"
#include "model/chunkmap.h"
#include "read/derived.h"
#include "read/fetch.h"
#include "source/files.h"
#include "tensor/tensor_info.h"
#include "tree/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int engine_find_victims(struct engine *eng, struct ckpt_err *e)
{
	size_t n_tensors = catalog_all_tensors(eng->catalog), n_objects;
	const struct catalog_tensor *t = catalog_tensors(eng->catalog, NULL);
	const struct catalog_object *o = catalog_objects(eng->catalog, &n_objects);
	struct catalog *renewed = NULL;
	int rc = 0;

	free(eng->tensor_bad);
	free(eng->object_bad);
	eng->tensor_bad = calloc(n_tensors + 1, sizeof(*eng->tensor_bad));
	eng->object_bad = calloc(n_objects + 1, sizeof(*eng->object_bad));
	if (!eng->tensor_bad || !eng->object_bad)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < n_tensors; i++) {
		autofree struct chunkmap *m = NULL;

		if (t[i].row == CATALOG_COMPUTED)
			continue; /* bad if anything that it is computed from is */
		rc = engine_load_map(eng, &renewed, i, &m, e);
		for (uint32_t k = 0; !rc && k < m->count && !eng->tensor_bad[i]; k++)
			if (eng->file_fault[m->locs[k].file])
				eng->tensor_bad[i] = m->locs[k].file + 1;
	}
	catalog_close(renewed);
	for (size_t i = 0; i < n_objects; i++)
		if (!o[i].fault && !o[i].text && eng->file_fault[o[i].loc.file])
			eng->object_bad[i] = o[i].loc.file + 1;
	return rc;
}

static int refuse_bad_files(const struct engine *eng, struct ckpt_err *e)
{
	size_t n, bad = 0, first = 0;

	(void)catalog_sources(eng->catalog, &n);
	for (size_t i = n; i-- > 0;)
		if (eng->file_fault[i]) {
			bad++;
			first = i;
		}
	return bad ? err_set(e, ERR_CORRUPT, "%s%s", eng->file_fault[first],
			     bad > 1 ? " (and more files like it)" : "")
		   : 0;
}

int engine_find_faults(struct engine *eng, bool allow, struct ckpt_err *e)
{
	size_t n;
	bool bad = false;
	const struct stored_file *s = catalog_sources(eng->catalog, &n);
	struct ckpt_err why;

	eng->file_fault = calloc(n + 1, sizeof(*eng->file_fault));
	if (!eng->file_fault)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		if (!s[i].min_size ||
		    !files_fault(eng->files, (uint32_t)i, &why)) /* no data in it is used */
			continue;
		bad = true;
		eng->file_fault[i] = strdup(why.msg);
		if (!eng->file_fault[i])
			return err_nomem(e);
	}
	if (bad && allow)
		return engine_find_victims(eng, e);
	return refuse_bad_files(eng, e);
}

const char *ckpt_tensor_fault(const struct engine *eng, size_t i)
{
	const struct catalog_tensor *t = &catalog_tensors(eng->catalog, NULL)[i];
	const struct derived *d = fetch_derived(eng->fetch, i);
	const char *fault = NULL;

	for (size_t k = 0; d && !fault && k < d->n_inputs; k++)
		for (uint32_t s = 0; !fault && s < derived_n_sources(&d->inputs[k]); s++)
			fault = ckpt_tensor_fault(others_of(eng, d->inputs[k].fetch),
						  derived_source(&d->inputs[k], s));
	if (d)
		return fault;
	if (t->state == TENSOR_INCOMPLETE)
		return t->fault ? t->fault : "it is incomplete";
	return eng->tensor_bad && eng->tensor_bad[i] ? eng->file_fault[eng->tensor_bad[i] - 1]
						     : NULL;
}

const char *ckpt_object_fault(const struct engine *eng, size_t i)
{
	const struct catalog_object *o = &catalog_objects(eng->catalog, NULL)[i];

	if (o->fault)
		return o->fault;
	return eng->object_bad && eng->object_bad[i] ? eng->file_fault[eng->object_bad[i] - 1]
						     : NULL;
}

/* Is it a reason to refuse the checkpoint? What this program cannot read may be intact. */
static bool is_damage(const char *fault)
{
	return fault && strncmp(fault, CATALOG_UNSUPPORTED, strlen(CATALOG_UNSUPPORTED)) != 0;
}

uint64_t engine_damaged_objects(const struct engine *eng)
{
	uint64_t n = 0;
	const char *fqn;
	size_t len;

	if (eng->c->totals.incomplete)
		for (size_t i = 0; i < view_objects(eng->view); i++)
			n += is_damage(
				ckpt_object_fault(eng, view_object(eng->view, i, &fqn, &len)));
	return n;
}

int engine_refuse_holes(const struct engine *eng, struct ckpt_err *e)
{
	uint64_t bad = 0;
	char show[120], more[64] = "";
	struct ckpt_err first;
	struct tensor_info t;
	const char *fqn, *fault;
	size_t len;

	if (!eng->c->totals.incomplete)
		return 0;
	for (size_t i = 0; i < view_tensors(eng->view); i++) {
		view_tensor(eng->view, i, &t);
		fault = ckpt_fault_of(eng, &t);
		if (is_damage(fault) && !bad++)
			(void)err_set(&first, ERR_CORRUPT, "tensor '%s': %s",
				      text_show(t.fqn, t.fqn_len, show, sizeof(show)), fault);
	}
	for (size_t i = 0; i < view_objects(eng->view); i++) {
		fault = ckpt_object_fault(eng, view_object(eng->view, i, &fqn, &len));
		if (is_damage(fault) && !bad++)
			(void)err_set(&first, ERR_CORRUPT, "object '%s': %s",
				      text_show(fqn, len, show, sizeof(show)), fault);
	}
	if (!bad)
		return 0;
	if (bad > 1)
		(void)snprintf(more, sizeof(more), " (and %llu more %s incomplete)",
			       (unsigned long long)bad - 1, bad == 2 ? "is" : "are");
	return err_set(e, ERR_CORRUPT, "%s%s", first.msg, more);
}

int engine_is_whole(const struct engine *eng, struct ckpt_err *e)
{
	int rc = refuse_bad_files(eng, e);

	return rc ? rc : engine_refuse_holes(eng, e);
}
