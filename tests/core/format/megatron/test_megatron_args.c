/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "format/megatron/megatron_args.h"
#include "pickle_util.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

/* {"iteration": 5, "args": Namespace(...)}, in a list or not. */
static void put_state(struct emit *m, bool in_list, bool with_args)
{
	emit_proto(m);
	if (in_list)
		emit_op(m, ']');
	emit_op(m, '}');
	emit_op(m, '(');
	emit_str(m, "iteration");
	emit_int(m, 5);
	emit_str(m, "args");
	if (with_args) {
		emit_object(m, "argparse", "Namespace");
		emit_attrs(m);
		emit_str(m, "num_layers");
		emit_int(m, 32);
		emit_str(m, "yes");
		emit_op(m, 0x88);
		emit_str(m, "no");
		emit_op(m, 0x89);
		emit_str(m, "num_experts");
		emit_op(m, 'N');
		emit_str(m, "below");
		emit_int(m, -1);
		emit_str(m, "path");
		emit_str(m, "/checkpoints");
		emit_str(m, "position");
		emit_object(m, "megatron.core.transformer.enums", "AttnMaskType");
		emit_attrs_end(m);
	} else {
		emit_op(m, 'N');
	}
	emit_op(m, 'u');
	if (in_list)
		emit_op(m, 'a');
	emit_op(m, '.');
}

/* As an archive, or as pickles one after the other. */
static struct buf container(const struct emit *m, bool legacy)
{
	struct archive a = { .style.prefix = "common" };
	struct emit head = EMIT_INIT(2, true);

	if (!legacy) {
		archive_add(&a, "data.pkl", m->b.data, m->b.len);
		archive_add(&a, "version", "3\n", 2);
		archive_end(&a);
		return a.b;
	}
	emit_proto(&head);
	emit_bytes(&head, "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 13); /* magic */
	emit_proto(&head);
	emit_int(&head, 1001);
	emit_op(&head, '.');
	emit_proto(&head);
	emit_bytes(&head, "}.", 2);
	buf_add(&head.b, m->b.data, m->b.len);
	emit_bytes(&head, "\x80\x02].", 4); /* keys of storages */
	return head.b;
}

static int read_bytes(const void *p, size_t n, struct megatron_args **ret, struct ckpt_err *e)
{
	struct mem m;
	struct blob b;
	int rc;

	mem_init(&m, p, n);
	b = mem_blob(&m, true);
	rc = megatron_args_read(&b, ret, e);
	mem_release(&m);
	return rc;
}

START_LOOP_TEST(numbers_of_the_args_are_found_in_every_container, 4)
{
	struct emit m = EMIT_INIT(2, true);
	struct megatron_args *a = NULL;
	struct ckpt_err e = { 0 };
	struct buf b;
	uint64_t n = 7;

	put_state(&m, _i & 1, true);
	b = container(&m, _i & 2);
	ck_assert_msg(!read_bytes(b.data, b.len, &a, &e), "%s", e.msg);
	ck_assert_ptr_nonnull(a);
	ck_assert_int_eq(megatron_args_number(a, "num_layers", &n, &e), 0);
	ck_assert_uint_eq(n, 32);
	ck_assert_int_eq(megatron_args_number(a, "yes", &n, &e), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(megatron_args_number(a, "no", &n, &e), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(megatron_args_number(a, "num_experts", &n, &e), 1);
	ck_assert_int_eq(megatron_args_number(a, "iteration", &n, &e), 1);
	ck_assert(!e.code && !n);
	ck_assert_int_eq(megatron_args_number(a, "below", &n, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "the checkpoint's args: 'below' is not a whole number");
	ck_assert_int_eq(megatron_args_number(a, "path", &n, &e), -EINVAL);
	ck_assert_int_eq(megatron_args_number(a, "position", &n, &e), -EINVAL);
	megatron_args_free(a);
	buf_release(&b);
	buf_release(&m.b);
}
END_TEST

START_LOOP_TEST(common_state_may_have_no_args, 8)
{
	static const char *const others[] = { "]", "](K\001K\002e", "K\x01", "}" };
	struct emit m = EMIT_INIT(2, true);
	struct megatron_args *a = NULL;
	struct ckpt_err e = { 0 };
	struct buf b;

	if (_i < (int)ARRAY_LEN(others)) {
		emit_proto(&m);
		emit_bytes(&m, others[_i], strlen(others[_i]));
		emit_op(&m, '.');
	} else {
		put_state(&m, _i & 1, false);
	}
	b = container(&m, _i & 2);
	ck_assert_msg(!read_bytes(b.data, b.len, &a, &e), "%s", e.msg);
	ck_assert_ptr_null(a);
	buf_release(&b);
	buf_release(&m.b);
}
END_TEST

START_TEST(what_torch_does_not_write_is_refused)
{
	struct emit m = EMIT_INIT(2, true);
	struct archive a = { 0 };
	struct megatron_args *args = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(read_bytes("", 0, &args, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "its pickle ends early");
	ck_assert_int_eq(read_bytes("no pickle", 9, &args, &e), -EBADMSG);
	archive_add(&a, "data/0", "x", 1);
	archive_add(&a, "sub/data.pkl", "x", 1);
	archive_end(&a);
	ck_assert_int_eq(read_bytes(a.b.data, a.b.len, &args, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "its archive has no data.pkl");
	ck_assert_ptr_null(args);
	archive_release(&a);
	buf_release(&m.b);
}
END_TEST

/* Wherever the state is cut off, there are args or a sentence, and no byte beyond the end
 * is read. */
START_LOOP_TEST(what_is_cut_short_is_refused, 2)
{
	struct emit m = EMIT_INIT(2, true);
	struct buf b;

	put_state(&m, false, true);
	b = container(&m, _i);
	for (size_t n = 0; n < b.len; n++) {
		struct megatron_args *a = NULL;
		struct ckpt_err e = { 0 };
		int rc = read_bytes(b.data, n, &a, &e);

		/* After the pickle, a legacy file has only storages. */
		ck_assert(rc ? rc == -e.code && !a : _i && a && n + 4 >= b.len);
		megatron_args_free(a);
	}
	buf_release(&b);
	buf_release(&m.b);
}
END_TEST

START_TEST(without_memory_it_says_so)
{
	struct emit m = EMIT_INIT(2, true);
	struct buf b;
	struct mem mem;
	struct blob blob;

	put_state(&m, true, true);
	b = container(&m, false);
	mem_init(&mem, b.data, b.len);
	blob = mem_blob(&mem, true);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct megatron_args *a = NULL;
		struct ckpt_err e = { 0 };
		int rc = megatron_args_read(&blob, &a, &e);

		(void)fault_off();
		ck_assert(fault_hit() ? rc < 0 && e.code == -rc && !a : !rc && a);
		megatron_args_free(a);
	}
	mem_release(&mem);
	buf_release(&b);
	buf_release(&m.b);
}
END_TEST

SUITE(megatron_args)
