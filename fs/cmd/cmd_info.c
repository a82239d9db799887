/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/faults.h"
#include "cmd/info_model.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX_BYTES = 64 << 20, FAULTS_SHOWN = 5, ASSETS_SHOWN = 20, VALUE_SHOWN = 2000 };

static const char indent[] = "  ";

static void add_bytes(struct buf *b, uint64_t n)
{
	char size[16], digits[32];

	buf_str(b, text_size(n, size));
	if (n >= 1024)
		buf_printf(b, " (%s bytes)", text_digits(n, digits));
}

static void add_number(struct buf *b, const char *before, uint64_t n)
{
	char digits[32];

	buf_printf(b, "%s%s", before, text_digits(n, digits));
}

/* Why tensors and objects cannot be opened. */
static void add_faults(struct buf *b, const struct ckpt *c, const struct ckpt_totals *t)
{
	struct faults f CLEANUP(faults_release) = { 0 };

	for (uint64_t i = 0; i < t->tensors; i++) {
		struct ckpt_tensor x;

		ckpt_tensor(c, i, &x);
		if (x.fault)
			faults_add(&f, indent, x.fqn, x.fqn_len, x.fault);
	}
	for (uint64_t i = 0; i < t->objects; i++) {
		struct ckpt_object x;

		ckpt_object(c, i, &x);
		if (x.fault)
			faults_add(&f, indent, x.fqn, x.fqn_len, x.fault);
	}
	faults_show(&f, FAULTS_SHOWN, b);
}

static void add_model(struct buf *b, const struct ckpt *c, const struct ckpt_totals *t, bool color)
{
	uint64_t parameters = ckpt_parameters(c);
	char text[16], digits[32];

	if (!t->has_model) {
		buf_str(b, "\nmodel       none: two of its tensors would have the same name");
		return;
	}
	buf_printf(b, "\nmodel       %s%s parameter%s%s", cmd_style(color, STYLE_STRONG),
		   text_count(parameters, text), text_s(parameters), cmd_style(color, STYLE_PLAIN));
	if (parameters >= 1000000)
		buf_printf(b, " (%s)", text_digits(parameters, digits));
	add_number(b, ", ", t->model_tensors);
	buf_printf(b, " tensor%s, ", text_s(t->model_tensors));
	add_bytes(b, t->model_bytes);
	if (t->model_prefix_len) {
		buf_str(b, ", under '");
		cmd_add_fqn(b, t->model_prefix, t->model_prefix_len);
		buf_str(b, "'");
	}
}

static void add_assets(struct buf *b, const struct ckpt *c)
{
	const char *refused;
	struct ckpt_asset a;
	uint64_t n = 0;

	for (; ckpt_asset(c, n, &a); n++) {
		if (n >= ASSETS_SHOWN)
			continue;
		buf_str(b, n ? "\n            " : "\nassets      ");
		cmd_add_fqn(b, a.name, strlen(a.name));
		if (!strcmp(a.from, "GGUF")) {
			buf_str(b, " made from the keys of the GGUF");
			continue;
		}
		buf_str(b, !strcmp(a.from, "checkpoint") ? " in the checkpoint's directory: "
			   : !strcmp(a.from, "parent")	 ? " in the directory above: "
							 : " of assets=: ");
		cmd_add_fqn(b, a.path, strlen(a.path));
	}
	if (n > ASSETS_SHOWN)
		buf_printf(b, "\n            and %" PRIu64 " more", n - ASSETS_SHOWN);
	for (uint64_t i = 0; (refused = ckpt_asset_refused(c, i)); i++) {
		buf_str(b, "\nno asset    ");
		cmd_add_fqn(b, refused, strlen(refused));
	}
}

struct verdicts {
	struct buf *b;
	size_t n;
};

static int add_verdict(void *arg, const struct ckpt_verdict *x)
{
	struct verdicts *v = arg;

	buf_printf(v->b, "%s%s/: ", v->n++ ? "\n            " : "\nserves      ", x->face);
	cmd_add_fqn(v->b, x->text, strlen(x->text));
	return 0;
}

/* "yes", or "no: why" */
static void add_complete(struct buf *b, const char *fault, bool color)
{
	buf_printf(b, "%s%s%s%s%s", cmd_style(color, fault ? STYLE_BAD : STYLE_GOOD),
		   fault ? "no" : "yes", cmd_style(color, STYLE_PLAIN), fault ? ": " : "",
		   fault ? fault : "");
}

static int print_checkpoint(struct ckpt *c, const char *path, bool color, struct buf *b)
{
	struct verdicts verdicts = { b, 0 };
	struct ckpt_err e = { 0 };
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	buf_str(b, "checkpoint  ");
	cmd_add_fqn(b, path, strlen(path));
	add_model(b, c, &t, color);
	info_add_dtypes(b, c, &t);
	info_add_family(b, c);
	buf_printf(b, "\nformat      %s", t.format);
	add_number(b, "\ntensors     ", t.tensors);
	buf_str(b, ", ");
	add_bytes(b, t.tensor_bytes);
	add_number(b, "\nobjects     ", t.objects);
	add_number(b, "\nchunks      ", t.chunks);
	add_number(b, "\nfiles       ", t.files);
	buf_str(b, ", ");
	add_bytes(b, t.stored_bytes);
	if (t.ranks) {
		add_number(b, ", written by ", t.ranks);
		buf_printf(b, " rank%s", text_s(t.ranks));
	}
	add_assets(b, c);
	if (ckpt_verdicts(c, false, add_verdict, &verdicts, &e))
		return cmd_fail(&e);
	buf_printf(b, "\nindex       %s%s\ncomplete    ", t.index,
		   t.index_built ? " (built just now)" : "");
	if (!t.incomplete) {
		add_complete(b, t.missing ? "not everything is there" : NULL, color);
		buf_str(b, "\n");
	} else {
		buf_printf(b, "%sno%s", cmd_style(color, STYLE_BAD), cmd_style(color, STYLE_PLAIN));
		add_number(b, ": ", t.incomplete);
		buf_str(b, " cannot be opened\n");
		add_faults(b, c, &t);
	}
	if (t.missing)
		buf_printf(b, "%s%s\n", indent, t.missing);
	if (t.not_shown)
		buf_printf(b, "not shown   %s\n", t.not_shown);
	return cmd_print(b);
}

static int print_checkpoint_json(struct ckpt *c)
{
	autofree char *json = NULL;
	struct ckpt_err e = { 0 };
	size_t len;

	if (ckpt_info_json(c, &json, &len, &e))
		return cmd_fail(&e);
	cmd_write(json, len);
	if (len && json[len - 1] != '\n')
		(void)putchar('\n');
	return 0;
}

/* ---- one tensor ---- */

struct chunks {
	struct buf *b;
	struct json_out *json; /* or NULL */
	size_t n_dims;
};

static int add_chunk(void *arg, const struct ckpt_chunk *k)
{
	struct chunks *cs = arg;
	struct buf *b = cs->b;

	buf_str(b, "  ");
	buf_json_u64s(b, k->off, cs->n_dims);
	buf_str(b, " + ");
	buf_json_u64s(b, k->len, cs->n_dims);
	buf_str(b, "  ");
	cmd_add_fqn(b, k->path, strlen(k->path));
	buf_printf(b, " at %" PRIu64 ", %" PRIu64 " bytes, %s\n", k->offset, k->length,
		   k->encoding);
	return cmd_print(b);
}

static int add_chunk_json(void *arg, const struct ckpt_chunk *k)
{
	struct chunks *cs = arg;

	json_open_line(cs->json, NULL, '{');
	json_u64s(cs->json, "offsets", k->off, cs->n_dims);
	json_u64s(cs->json, "sizes", k->len, cs->n_dims);
	json_str(cs->json, "file", k->path);
	json_u64(cs->json, "offset", k->offset);
	json_u64(cs->json, "length", k->length);
	json_str(cs->json, "encoding", k->encoding);
	json_close(cs->json);
	return cmd_print(cs->b);
}

static void add_tensor(struct buf *b, const struct ckpt_tensor *t, bool color)
{
	buf_str(b, "tensor    ");
	cmd_add_fqn(b, t->fqn, t->fqn_len);
	buf_printf(b, "\ndtype     %s\nshape     ", t->dtype);
	buf_json_u64s(b, t->shape, t->n_dims);
	buf_str(b, "\nbytes     ");
	add_bytes(b, t->bytes);
	buf_str(b, "\ncomplete  ");
	add_complete(b, t->fault, color);
	add_number(b, "\nchunks    ", t->chunks);
	if (t->chunks && !t->files) {
		buf_str(b, " in the index\n");
	} else {
		add_number(b, " in ", t->files);
		buf_printf(b, " file%s\n", text_s(t->files));
	}
}

static void add_tensor_json(struct json_out *j, const struct ckpt_tensor *t)
{
	json_open(j, NULL, '{');
	json_str_n(j, "fqn", t->fqn, t->fqn_len);
	json_str(j, "type", "tensor");
	json_str(j, "dtype", t->dtype);
	json_u64s(j, "shape", t->shape, t->n_dims);
	json_u64(j, "bytes", t->bytes);
	json_u64(j, "files", t->files);
	json_str(j, "fault", t->fault);
	json_open(j, "chunks", '[');
}

static int print_tensor(struct ckpt *c, uint64_t i, const struct options *o, struct buf *b)
{
	struct json_out j = { .to = b };
	struct chunks cs = { .b = b, .json = &j };
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	int rc;

	ckpt_tensor(c, i, &t);
	if (ckpt_tensor_files(c, i, &t.files, &e))
		return cmd_fail(&e);
	cs.n_dims = t.n_dims;
	if (o->json)
		add_tensor_json(&j, &t);
	else
		add_tensor(b, &t, cmd_color(o));
	rc = ckpt_tensor_chunks(c, i, o->json ? add_chunk_json : add_chunk, &cs, &e);
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	while (j.depth)
		json_close(&j);
	return cmd_print(b);
}

/* The value's text without its newline, and as much of it as is shown. */
struct value {
	const char *text;
	size_t len, shown;
};

static void add_object_json(struct buf *b, const struct ckpt_object *o, const struct value *v)
{
	struct json_out j = { .to = b };

	json_open(&j, NULL, '{');
	json_str_n(&j, "fqn", o->fqn, o->fqn_len);
	json_str(&j, "type", "object");
	json_str(&j, "file", o->path);
	json_u64(&j, "offset", o->offset);
	json_u64(&j, "length", o->length);
	json_str(&j, "encoding", o->encoding);
	json_str(&j, "fault", o->fault);
	json_raw_n(&j, "value", v->text, v->len);
	json_close(&j);
}

/* Where the tree has the whole value of object i; "" if its name was cut. */
static void name_value(struct ckpt *c, uint64_t i, char ret[static CKPT_NAME_MAX + 1])
{
	ckpt_node node = ckpt_object_node(c, i), found;
	size_t len;

	if (ckpt_name(c, node, ret))
		*ret = 0;
	len = strlen(ret);
	if (len + strlen(".json") > CKPT_NAME_MAX) {
		*ret = 0;
		return;
	}
	memcpy(ret + len, ".json", sizeof(".json"));
	if (ckpt_lookup(c, ckpt_parent(c, node), ret, &found))
		*ret = 0;
}

/* whole: the name of the file with the whole value. */
static void add_object(struct buf *b, const struct ckpt_object *o, const struct value *v,
		       const char *whole, bool color)
{
	buf_str(b, "object    ");
	cmd_add_fqn(b, o->fqn, o->fqn_len);
	buf_str(b, "\ncomplete  ");
	add_complete(b, o->fault, color);
	if (o->fault && !*o->path) { /* only its name is known */
		buf_str(b, "\n");
		return;
	}
	buf_str(b, "\nstored    ");
	if (*o->path) {
		cmd_add_fqn(b, o->path, strlen(o->path));
		buf_printf(b, " at %" PRIu64, o->offset);
	} else {
		buf_str(b, "in the index");
	}
	buf_printf(b, ", %" PRIu64 " bytes, %s\n", o->length, o->encoding);
	if (o->fault)
		return;
	buf_str(b, "value     ");
	buf_add(b, v->text, v->shown);
	if (v->shown < v->len) {
		buf_printf(b, "...\n          (%zu bytes in all", v->len);
		if (*whole) {
			buf_str(b, ", as 'ckptfs cat CKPT objects/");
			cmd_add_fqn(b, whole, strlen(whole));
			buf_str(b, "' writes them");
		}
		buf_str(b, ")");
	}
	buf_str(b, "\n");
}

static int print_object(struct ckpt *c, uint64_t i, const struct options *o, struct buf *b)
{
	struct value v = { .text = "null", .len = strlen("null") };
	autofree char *text = NULL;
	char whole[CKPT_NAME_MAX + 1];
	struct ckpt_object x;
	struct ckpt_err e = { 0 };

	ckpt_object(c, i, &x);
	if (!x.fault && ckpt_object_json(c, i, &text, &v.len, &e))
		return cmd_fail(&e);
	if (text) {
		v.text = text;
		v.len -= v.len && text[v.len - 1] == '\n';
	}
	v.shown = v.len < VALUE_SHOWN ? v.len : VALUE_SHOWN;
	if (o->json) {
		add_object_json(b, &x, &v);
	} else {
		name_value(c, i, whole);
		add_object(b, &x, &v, whole, cmd_color(o));
	}
	return cmd_print(b);
}

static int print_fqn(struct ckpt *c, const struct options *o, struct buf *b)
{
	struct cmd_named named;
	struct ckpt_err e = { 0 };

	if (cmd_look_up(c, o->args[1], &named, &e)) {
		(void)err_wrap(&e, "info");
		return cmd_fail(&e);
	}
	return named.tensor >= 0 ? print_tensor(c, (uint64_t)named.tensor, o, b)
				 : print_object(c, (uint64_t)named.object, o, b);
}

/* ---- a run ---- */

struct run_summary {
	uint64_t complete, incomplete;
	struct buf latest;
	bool latest_lacks;
	struct faults faults;
};

static int add_run_entry(void *arg, const struct ckpt_run_entry *x)
{
	struct run_summary *s = arg;

	*(x->complete ? &s->complete : &s->incomplete) += 1;
	if (x->latest) {
		cmd_add_fqn(&s->latest, x->name, strlen(x->name));
		s->latest_lacks = !x->complete;
	}
	if (x->fault)
		faults_add(&s->faults, indent, x->name, strlen(x->name), x->fault);
	return 0;
}

static int print_run(struct ckpt *c, const char *path, bool color, struct buf *b)
{
	struct run_summary s = { .latest = BUF_INIT(TEXT_MAX_BYTES) };
	struct ckpt_err e = { 0 };
	int rc;

	rc = ckpt_run_each(c, add_run_entry, &s, &e);
	buf_str(b, "run         ");
	cmd_add_fqn(b, path, strlen(path));
	buf_printf(b, "\ncomplete    %" PRIu64 "\nlatest      %s%s%s%s\nincomplete  %" PRIu64 "\n",
		   s.complete, cmd_style(color, STYLE_STRONG),
		   s.latest.len ? s.latest.data : "none", cmd_style(color, STYLE_PLAIN),
		   s.latest_lacks ? " (incomplete)" : "", s.incomplete);
	faults_show(&s.faults, SIZE_MAX, b);
	if (s.latest.err)
		b->err = s.latest.err;
	buf_release(&s.latest);
	faults_release(&s.faults);
	return rc ? cmd_fail(&e) : cmd_print(b);
}

static int info_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf b CLEANUP(buf_release) = BUF_INIT(TEXT_MAX_BYTES);
	struct ckpt_err e = { 0 };
	int rc;

	if (o->json && o->color) {
		(void)err_set(&e, EINVAL, "option 'color' is for text, not for --json");
		return cmd_fail(&e);
	}
	if (cmd_open(o->args[0], o,
		     &(struct cmd_how){ CMD_WORDS("allow_missing", o->n_args == 1 ? "runs" : NULL),
					NULL },
		     &c, &e) ||
	    (ckpt_is_run(c) && cmd_run_look(c, o, &e)))
		return cmd_fail_open(o, &e);
	if (o->n_args == 1 && cmd_refuse_nothing(c, o, &e)) {
		(void)err_wrap(&e, "info");
		return cmd_fail(&e);
	}
	if (ckpt_is_run(c) && !o->json)
		rc = print_run(c, o->args[0], cmd_color(o), &b);
	else if (o->n_args > 1)
		rc = print_fqn(c, o, &b);
	else if (o->json)
		rc = print_checkpoint_json(c);
	else
		rc = print_checkpoint(c, o->args[0], cmd_color(o), &b);
	return rc ? rc : cmd_finish(STATUS_DONE);
}

const struct command command_info = {
	.name = "info",
	.usage = "CKPT [FQN]",
	.complete = "fn",
	.summary = "Describe a checkpoint, a run of them, or a tensor",
	.examples = "  $ ckptfs info run/step-1000\n"
		    "  $ ckptfs info run/step-1000 model.layers.0.self_attn.q_proj.weight\n"
		    "  $ ckptfs info --json run/step-1000 -o assets=hf-config\n",
	.details = "With an FQN, describes that tensor and all its chunks: box of elements "
		   "(offsets + sizes),\n"
		   "data file, byte offset and length in it, and encoding; for an object also its "
		   "value, as JSON.\n",
	.words = WORDS_TREE | WORDS_QUIET | WORDS_CONFINED | WORDS_COLOR | WORDS_JSON,
	.min_args = 1,
	.max_args = 2,
	.checkpoints = 1,
	.run = info_run,
};
