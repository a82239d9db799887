/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/json_out.h"
#include "suites.h"

START_TEST(members_stand_on_lines_or_in_one)
{
	static const char want[] = "{\n"
				   "  \"tensors\": 12,\n"
				   "  \"faults\": [\n"
				   "    {\"tensor\": \"a\\\"b\", \"at\": {\"box\": [0,3]}, \"no\": "
				   "[], \"fault\": null},\n"
				   "    {}\n"
				   "  ],\n"
				   "  \"none\": [],\n"
				   "  \"whole\": true,\n"
				   "  \"seconds\": 1.250\n"
				   "}\n";
	const uint64_t box[] = { 0, 3 };
	struct buf b = BUF_INIT(1 << 20);
	struct json_out j = { .to = &b };

	json_open(&j, NULL, '{');
	json_u64(&j, "tensors", 12);
	json_open(&j, "faults", '[');
	json_open_line(&j, NULL, '{');
	json_str(&j, "tensor", "a\"b");
	json_open(&j, "at", '{'); /* within a line all is */
	json_u64s(&j, "box", box, 2);
	json_close(&j);
	json_open_line(&j, "no", '[');
	json_close(&j);
	json_str(&j, "fault", NULL);
	json_close(&j);
	json_open(&j, NULL, '{');
	json_close(&j);
	json_close(&j);
	json_open(&j, "none", '[');
	json_close(&j);
	json_bool(&j, "whole", true);
	json_raw(&j, "seconds", "%.3f", 1.25);
	json_close(&j);
	ck_assert_int_eq(b.err, 0);
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
}
END_TEST

START_TEST(the_buffer_may_be_emptied_in_between)
{
	struct buf b = BUF_INIT(1 << 20);
	struct json_out j = { .to = &b };

	json_open(&j, NULL, '[');
	ck_assert_str_eq(b.data, "[");
	for (uint64_t i = 0; i < 3; i++) {
		b.len = 0;
		json_u64(&j, NULL, i);
		ck_assert_str_eq(b.data, i == 0 ? "\n  0" : i == 1 ? ",\n  1" : ",\n  2");
	}
	b.len = 0;
	json_close(&j);
	ck_assert_str_eq(b.data, "\n]\n");
	buf_release(&b);
}
END_TEST

SUITE(json_out)
