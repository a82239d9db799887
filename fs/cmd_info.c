/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd.h"
#include "options.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX_BYTES = 64 << 20, FAULTS_SHOWN = 5 };

static void add_bytes(struct buf *b, uint64_t n)
{
	char size[16];

	if (n < 1024)
		buf_printf(b, "%" PRIu64 " bytes", n);
	else
		buf_printf(b, "%s (%" PRIu64 " bytes)", text_size(n, size), n);
}

static void add_fault(struct buf *b, const char *fqn, size_t len, const char *fault)
{
	buf_str(b, "  ");
	cmd_add_fqn(b, fqn, len);
	buf_printf(b, ": %s\n", fault);
}

/* The first tensors and objects that cannot be opened. */
static void add_faults(struct buf *b, const struct ckpt *c, const struct ckpt_totals *t)
{
	uint64_t shown = 0;

	for (uint64_t i = 0; i < t->tensors && shown < FAULTS_SHOWN; i++) {
		struct ckpt_tensor x;

		ckpt_tensor(c, i, &x);
		if (x.fault && shown++ < FAULTS_SHOWN)
			add_fault(b, x.fqn, x.fqn_len, x.fault);
	}
	for (uint64_t i = 0; i < t->objects && shown < FAULTS_SHOWN; i++) {
		struct ckpt_object x;

		ckpt_object(c, i, &x);
		if (x.fault && shown++ < FAULTS_SHOWN)
			add_fault(b, x.fqn, x.fqn_len, x.fault);
	}
	if (shown < t->incomplete)
		buf_printf(b, "  and %" PRIu64 " more\n", t->incomplete - shown);
}

static void add_model(struct buf *b, const struct ckpt_totals *t)
{
	if (!t->has_model) {
		buf_str(b, "\nmodel       none: its tensors' names would not differ");
		return;
	}
	buf_printf(b, "\nmodel       %" PRIu64 " tensors, ", t->model_tensors);
	add_bytes(b, t->model_bytes);
	if (t->model_prefix_len) {
		buf_str(b, ", under '");
		cmd_add_fqn(b, t->model_prefix, t->model_prefix_len);
		buf_str(b, "'");
	}
}

static int print_checkpoint(struct ckpt *c, const char *path, struct buf *b)
{
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	buf_str(b, "checkpoint  ");
	cmd_add_fqn(b, path, strlen(path));
	buf_printf(b, "\nformat      %s\ntensors     %" PRIu64 ", ", t.format, t.tensors);
	add_bytes(b, t.tensor_bytes);
	buf_printf(b,
		   "\nobjects     %" PRIu64 "\nchunks      %" PRIu64 "\nfiles       %" PRIu64 ", ",
		   t.objects, t.chunks, t.files);
	add_bytes(b, t.stored_bytes);
	add_model(b, &t);
	buf_printf(b, "\nindex       %s%s\ncomplete    ", t.index,
		   t.index_built ? " (built just now)" : "");
	if (!t.incomplete) {
		buf_str(b, "yes\n");
	} else {
		buf_printf(b, "no: %" PRIu64 " cannot be opened\n", t.incomplete);
		add_faults(b, c, &t);
	}
	return cmd_print(b);
}

static int print_checkpoint_json(struct ckpt *c)
{
	autofree char *json = NULL;
	struct ckpt_err e = { 0 };
	size_t len;

	if (ckpt_info_json(c, &json, &len, &e))
		return cmd_fail(&e);
	(void)fwrite(json, 1, len, stdout);
	if (len && json[len - 1] != '\n')
		(void)putchar('\n');
	return 0;
}

/* ---- one tensor ---- */

struct chunks {
	struct buf *b;
	size_t n_dims;
	bool json, any;
};

static int add_chunk(void *arg, const struct ckpt_chunk *k)
{
	struct chunks *cs = arg;
	struct buf *b = cs->b;

	buf_str(b, cs->json ? cs->any ? ",\n{\"offsets\":" : "\n{\"offsets\":" : "  ");
	buf_json_u64s(b, k->off, cs->n_dims);
	buf_str(b, cs->json ? ",\"sizes\":" : " + ");
	buf_json_u64s(b, k->len, cs->n_dims);
	buf_str(b, cs->json ? ",\"file\":" : "  ");
	if (cs->json)
		buf_json_str(b, k->path, strlen(k->path));
	else
		cmd_add_fqn(b, k->path, strlen(k->path));
	buf_printf(b,
		   cs->json ? ",\"offset\":%" PRIu64 ",\"length\":%" PRIu64 ",\"encoding\":"
			    : " at %" PRIu64 ", %" PRIu64 " bytes, ",
		   k->offset, k->length);
	if (cs->json)
		buf_json_str(b, k->encoding, strlen(k->encoding));
	else
		buf_str(b, k->encoding);
	buf_str(b, cs->json ? "}" : "\n");
	cs->any = true;
	return cmd_print(b);
}

static void add_tensor(struct buf *b, const struct ckpt_tensor *t)
{
	buf_str(b, "tensor    ");
	cmd_add_fqn(b, t->fqn, t->fqn_len);
	buf_printf(b, "\ndtype     %s\nshape     ", t->dtype);
	buf_json_u64s(b, t->shape, t->n_dims);
	buf_str(b, "\nbytes     ");
	add_bytes(b, t->bytes);
	buf_printf(b, "\ncomplete  %s%s\nchunks    %" PRIu64 " in %" PRIu64 " file%s\n",
		   t->fault ? "no: " : "yes", t->fault ? t->fault : "", t->chunks, t->files,
		   t->files == 1 ? "" : "s");
}

static void add_fault_json(struct buf *b, const char *fault)
{
	buf_str(b, ",\"fault\":");
	if (fault)
		buf_json_str(b, fault, strlen(fault));
	else
		buf_str(b, "null");
}

static void add_tensor_json(struct buf *b, const struct ckpt_tensor *t)
{
	buf_str(b, "{\"fqn\":");
	buf_json_str(b, t->fqn, t->fqn_len);
	buf_str(b, ",\"type\":\"tensor\",\"dtype\":");
	buf_json_str(b, t->dtype, strlen(t->dtype));
	buf_str(b, ",\"shape\":");
	buf_json_u64s(b, t->shape, t->n_dims);
	buf_printf(b, ",\"bytes\":%" PRIu64 ",\"files\":%" PRIu64, t->bytes, t->files);
	add_fault_json(b, t->fault);
	buf_str(b, ",\"chunks\":[");
}

static int print_tensor(struct ckpt *c, uint64_t i, bool json, struct buf *b)
{
	struct chunks cs = { .b = b, .json = json };
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	int rc;

	ckpt_tensor(c, i, &t);
	if (ckpt_tensor_files(c, i, &t.files, &e))
		return cmd_fail(&e);
	cs.n_dims = t.n_dims;
	if (json)
		add_tensor_json(b, &t);
	else
		add_tensor(b, &t);
	rc = ckpt_tensor_chunks(c, i, add_chunk, &cs, &e);
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	if (json)
		buf_str(b, "]}\n");
	return cmd_print(b);
}

static int print_object(const struct ckpt *c, uint64_t i, bool json, struct buf *b)
{
	struct ckpt_object o;

	ckpt_object(c, i, &o);
	buf_str(b, json ? "{\"fqn\":" : "object    ");
	if (json)
		buf_json_str(b, o.fqn, o.fqn_len);
	else
		cmd_add_fqn(b, o.fqn, o.fqn_len);
	if (json) {
		buf_str(b, ",\"type\":\"object\",\"file\":");
		buf_json_str(b, o.path, strlen(o.path));
		buf_printf(b,
			   ",\"offset\":%" PRIu64 ",\"length\":%" PRIu64 ",\"encoding\":", o.offset,
			   o.length);
		buf_json_str(b, o.encoding, strlen(o.encoding));
		add_fault_json(b, o.fault);
		buf_str(b, "}\n");
	} else {
		buf_printf(b, "\ncomplete  %s%s\nstored    ", o.fault ? "no: " : "yes",
			   o.fault ? o.fault : "");
		if (!*o.path && !o.fault) {
			buf_printf(b, "in the index, %" PRIu64 " bytes, %s\n", o.length,
				   o.encoding);
			return cmd_print(b);
		}
		cmd_add_fqn(b, o.path, strlen(o.path));
		buf_printf(b, " at %" PRIu64 ", %" PRIu64 " bytes, %s\n", o.offset, o.length,
			   o.encoding);
	}
	return cmd_print(b);
}

static int print_fqn(struct ckpt *c, const char *fqn, bool json, struct buf *b)
{
	int64_t i = ckpt_tensor_find(c, fqn, strlen(fqn));
	struct ckpt_err e = { 0 };

	if (i >= 0)
		return print_tensor(c, (uint64_t)i, json, b);
	i = ckpt_object_find(c, fqn, strlen(fqn));
	if (i >= 0)
		return print_object(c, (uint64_t)i, json, b);
	(void)err_set(&e, ENOENT, "info '%s': no tensor or object of that name", fqn);
	return cmd_fail(&e);
}

/* ---- a run ---- */

struct run_summary {
	uint64_t complete, incomplete;
	struct buf latest, rest; /* lines */
};

static int add_run_entry(void *arg, const struct ckpt_run_entry *x)
{
	struct run_summary *s = arg;

	*(x->complete ? &s->complete : &s->incomplete) += 1;
	if (x->latest)
		cmd_add_fqn(&s->latest, x->name, strlen(x->name));
	if (x->fault)
		add_fault(&s->rest, x->name, strlen(x->name), x->fault);
	return 0;
}

static int print_run(struct ckpt *c, const char *path, struct buf *b)
{
	struct run_summary s = { .latest = BUF_INIT(TEXT_MAX_BYTES),
				 .rest = BUF_INIT(TEXT_MAX_BYTES) };
	struct ckpt_err e = { 0 };
	int rc = ckpt_run_each(c, add_run_entry, &s, &e);

	buf_str(b, "run         ");
	cmd_add_fqn(b, path, strlen(path));
	buf_printf(b, "\ncomplete    %" PRIu64 "\nlatest      %s\nincomplete  %" PRIu64 "\n",
		   s.complete, s.latest.len ? s.latest.data : "none", s.incomplete);
	if (s.rest.len)
		buf_str(b, s.rest.data);
	buf_release(&s.latest);
	buf_release(&s.rest);
	return rc ? cmd_fail(&e) : cmd_print(b);
}

static int info_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf b CLEANUP(buf_release) = BUF_INIT(TEXT_MAX_BYTES);
	struct ckpt_err e = { 0 };
	int rc;

	/* What is incomplete is worth looking at; what lost its files is trouble. */
	if (cmd_open(o->args[0], o,
		     (struct ckpt_opts){ .allow_holes = true, .runs = o->n_args == 1 }, &c, &e))
		return cmd_fail(&e);
	if (ckpt_is_run(c) && !o->json)
		rc = print_run(c, o->args[0], &b);
	else if (o->n_args > 1)
		rc = print_fqn(c, o->args[1], o->json, &b);
	else if (o->json)
		rc = print_checkpoint_json(c);
	else
		rc = print_checkpoint(c, o->args[0], &b);
	return rc ? rc : cmd_finish(STATUS_DONE);
}

const struct command command_info = {
	.name = "info",
	.usage = "CKPT [FQN]",
	.summary = "Describe a checkpoint, a run of them, or a tensor",
	.details = "With an FQN: the tensor and all its chunks, as box of elements (offsets + "
		   "sizes), data\n"
		   "file, byte offset and length there, and encoding.\n",
	.words = WORDS_OPEN | WORDS_JSON,
	.min_args = 1,
	.max_args = 2,
	.run = info_run,
};
