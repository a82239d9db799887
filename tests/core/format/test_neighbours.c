/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "fault.h"
#include "format/format.h"
#include "format/part_names.h"
#include "source/place.h"
#include "suites.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Empty files, separated by spaces; a name that ends in a slash is a directory. */
static void put_files(const char *names)
{
	autofree char *copy = strdup(names);
	char *save;

	for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
		for (char *slash = strchr(s, '/'); slash; slash = strchr(slash + 1, '/')) {
			*slash = 0;
			(void)mkdirat(dir_fd, s, 0700);
			*slash = '/';
		}
		if (s[strlen(s) - 1] != '/')
			put_file(dir_fd, s, "", 0);
	}
}

static void expect_refused(const char *file, int code, const char *msg)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	struct name_list l = { 0 };
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(format_detect(place, file, &f, &l, &e), -code);
	ck_assert_msg(strstr(e.msg, msg), "%s", e.msg);
	ck_assert_uint_lt(strlen(e.msg), sizeof(e.msg) - 1); /* nothing was cut off */
	name_list_release(&l);
}

static const struct {
	const char *files;
	int code;
	const char *msg;
} directories[] = {
	{ "model_rank0.pt model_rank1.pt", ENOTSUP,
	  "that each rank of an FSDP run wrote for itself" },
	{ "model_rank_0.bin", ENOTSUP, "that each rank of an FSDP run wrote for itself" },
	{ "mp_rank_00/distrib_optim.pt mp_rank_01/distrib_optim.pt", ENOENT,
	  "a directory of Megatron's model-parallel ranks ('mp_rank_00' is in it); none of them "
	  "holds the model" },
	{ "latest_checkpointed_iteration.txt iter_0000010/mp_rank_00/distrib_optim.pt", ENOENT,
	  "not a checkpoint; 'iter_0000010' in it is a directory of Megatron's model-parallel" },
	{ "array_metadatas/process_0", ENOENT,
	  "it is a part of a JAX checkpoint of Orbax or OCDBT ('array_metadatas' is in it); name "
	  "the directory of the checkpoint" },
	{ "9.orbax-checkpoint-tmp-123/", ENOENT,
	  "it is an Orbax save that has not finished ('9.orbax-checkpoint-tmp-123' is in it); " },
	{ "tp_rank_00_pp_rank_000/x.ckpt", ENOENT, "or model_weights.ckpt for NeMo" },
	{ "x.nemo", ENOENT,
	  "it is the directory of a NeMo archive ('x.nemo' is in it); name the archive" },
	{ "checkpoint model.ckpt-7.index model.ckpt-7.data-00000-of-00001", ENOTSUP,
	  "a TensorFlow checkpoint ('model.ckpt-7.data-00000-of-00001' is in it)" },
	{ "saved_model.pb variables/variables.index", ENOTSUP, "a TensorFlow checkpoint" },
	{ "config.json flax_model.msgpack", ENOENT,
	  "'flax_model.msgpack': it is empty; save or download it again" },
	{ "checkpoint_100", ENOENT, "named like a Flax checkpoint (msgpack), but does not begin" },
	{ "model.keras", ENOTSUP, "a Keras model" },
	{ "model.onnx", ENOTSUP, "an ONNX model" },
	{ "model_state.pdparams", ENOTSUP, "a PaddlePaddle checkpoint" },
	{ "0_0.distcp 1_0.distcp", ENOTSUP, "a PaddlePaddle checkpoint ('0_0.distcp' is in it)" },
	{ "config.json rank0.engine", ENOTSUP, "a compiled TensorRT engine" },
	{ "model.safetensors.incomplete", ENOENT, "a download or save that has not finished" },
	{ "last.ckpt epoch=1-step=9.ckpt", ENOENT,
	  "it is a directory of files that Lightning or torch.save wrote ('epoch=1-step=9.ckpt' is "
	  "in it); name one of the files" },
	{ "a.pth b.pt", ENOENT, "a directory of files that torch.save wrote ('a.pth' is in it); " },
	{ "a.pt pytorch_model.bin tf_model.h5", ENOENT,
	  "'pytorch_model.bin': it is empty; save or download it again" },
	{ "consolidated.00.pth consolidated.01.pth params.json", ENOTSUP,
	  "it is a model of Meta's, cut into slices for several GPUs ('consolidated.01.pth' is in "
	  "it), which ckptfs does not join; convert it with convert_llama_weights_to_hf.py" },
	{ "consolidated.00.pth params.json", ENOENT, "name one of the files" },
	{ "m-00001-of-00002.pt m-00002-of-00002.pt", ENOTSUP,
	  "it is the parts of a model that torch.save wrote ('m-00001-of-00002.pt' is in it), "
	  "which "
	  "ckptfs does not join; load it with the program" },
	{ "ep1-rank0.pt ep1-rank1.pt", ENOTSUP,
	  "it is a set of files that the ranks of a run wrote, each for itself ('ep1-rank1.pt' is "
	  "in it), " },
	{ "lora-rank-8.pt lora-rank-16.pt", ENOENT, "name one of the files" },
	{ "models--a--b/snapshots/x", ENOENT,
	  "it is a cache of the Hugging Face Hub ('models--a--b' is in it); " },
	{ "model.tar.gz", ENOENT, "it is an archive ('model.tar.gz' is in it); unpack it" },
	{ "config.json tokenizer.json", ENOENT, "a model's configuration without its weights" },
	/* A name counts only if it is that of a file, or of a directory, as it should be. */
	{ "mp_rank_00 last.ckpt/ checkpoint_3/", ENOENT, "not a checkpoint: found " },
	/* What the directory is itself comes before what a directory in it is. */
	{ "a/array_metadatas/x b.onnx", ENOTSUP, "it is an ONNX model" },
};

START_LOOP_TEST(directories_are_recognised_by_the_names_in_them,
		(int)(sizeof(directories) / sizeof(*directories)))
{
	put_files(directories[_i].files);
	expect_refused(NULL, directories[_i].code, directories[_i].msg);
}
END_TEST

static const struct {
	const char *name, *head;
	size_t len;
	int code;
	const char *msg;
} files[] = {
	{ "x.nemo", "\1", 1, ENOENT,
	  "'x.nemo' is a NeMo archive that is compressed or damaged; unpack it with 'tar -xf'" },
	{ "manifest.ocdbt", "\x0c\xdb\x3a\x2a", 4, ENOENT,
	  "'manifest.ocdbt' is a part of a JAX checkpoint" },
	{ "m", "\x89HDF\r\n\x1a\n", 8, ENOTSUP, "'m' is a Keras model" },
	{ "flax_model.msgpack", "\x01", 1, ENOENT, "is named like a Flax checkpoint (msgpack)" },
	{ "checkpoint_100", "\x01", 1, ENOENT, "is named like a Flax checkpoint (msgpack)" },
	{ "a.data-00000-of-00001", "", 0, ENOTSUP, "is a TensorFlow checkpoint" },
	{ "model.onnx", "\b", 1, ENOTSUP, "is an ONNX model" },
	{ "w.npy", "\x93NUMPY\1\0", 8, ENOTSUP, "'w.npy' is a single NumPy array, which ckptfs" },
	{ "model.pt", "<!DOCTYPE html>", 15, ENOENT, "is a web page, which a server sent" },
	{ "model", "\xef\xbb\xbf\r\n <HTML><head>", 17, ENOENT,
	  "'model': it is a web page, which a server sent because it refused to send the file; "
	  "sign "
	  "in and download it again" },
	{ "pytorch_model.bin", "", 0, ENOENT,
	  "'pytorch_model.bin': it is empty; save or download it again" },
	{ "m.ckpt", "\0\0\0", 3, ENOENT,
	  "'m.ckpt': it begins with 3 zeros, as after a download or copy that was not "
	  "completed; " },
	{ "m.bin", "{\"error\":\"No access\"}\r\n", 23, ENOENT,
	  "'m.bin': it is a text, as servers send instead of a file: '{\"error\":\"No access\"}'; "
	  "download it again" },
	{ "m.bin", "Zug\1nglich", 10, ENOENT, "not a checkpoint: 'm.bin' is not a file of" },
	{ "m", "Entry not found", 15, ENOENT, "not a checkpoint: 'm' is not a file of" },
	{ "m", "", 0, ENOENT, "not a checkpoint: 'm' is not a file of" },
	{ "a", "\x1f\x8b\b", 3, ENOENT, "'a' is an archive; unpack it" },
	{ "b", "\x28\xb5\x2f\xfd", 4, ENOENT, "'b' is an archive" },
	{ "c", "GGU", 3, ENOENT,
	  "not a checkpoint: 'c' is not a file of safetensors, torch.save, GGUF, Flax or NeMo" },
};

START_LOOP_TEST(files_are_recognised_by_their_names_and_beginnings,
		(int)(sizeof(files) / sizeof(*files)))
{
	put_file(dir_fd, files[_i].name, files[_i].head, files[_i].len);
	expect_refused(files[_i].name, files[_i].code, files[_i].msg);
}
END_TEST

/* What has been cloned without Git LFS is reported if it could be read once it is there. */
START_TEST(pointers_of_git_lfs_are_named)
{
	static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
				      "oid sha256:0123456789abcdef0123456789abcdef"
				      "0123456789abcdef0123456789abcdef\nsize 99\n";

	put_file(dir_fd, "model.onnx", pointer, sizeof(pointer) - 1);
	expect_refused(NULL, ENOTSUP, "it is an ONNX model");
	put_file(dir_fd, "flax_model.msgpack", pointer, sizeof(pointer) - 1);
	expect_refused(NULL, EREMOTE, "open 'flax_model.msgpack': it is a Git LFS pointer; ");
}
END_TEST

START_TEST(a_tar_file_is_known_by_its_middle)
{
	char head[512] = "";

	memcpy(head + 257, "ustar", 5);
	put_file(dir_fd, "x", head, sizeof(head));
	expect_refused("x", ENOENT, "'x' is an archive");
}
END_TEST

START_TEST(a_file_of_a_checkpoint_leads_to_the_checkpoint)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	dcp_end(&d, ".metadata");
	put_files("__0_0.distcp config.json");
	expect_refused(".metadata", ENOENT,
		       "'.metadata' is not a checkpoint, but the directory that it is in is one "
		       "(dcp): name that");
	expect_refused("config.json", ENOENT,
		       "'config.json' is not a checkpoint, but the directory that it is in ");
	/* It consists of items as torch.save writes them, but is not such a file itself. */
	put_file(dir_fd, "__0_0.distcp", "PK\3\4", 4);
	expect_refused("__0_0.distcp", ENOENT,
		       "'__0_0.distcp' is not a checkpoint, but the directory ");
}
END_TEST

START_TEST(a_file_of_another_program_is_told_by_its_directory)
{
	put_files("latest 7/variables.h5 8/variables.h5");
	expect_refused(
		"latest", ENOTSUP,
		"'latest' is not a checkpoint; about its directory: not a checkpoint; '7' in it is "
		"a Keras model");
}
END_TEST

START_TEST(names_of_any_bytes_do_no_harm)
{
	put_files("\x1b[31m.onnx");
	expect_refused(NULL, ENOTSUP, "('%1B[31m.onnx' is in it)");
}
END_TEST

START_TEST(long_names_fit)
{
	char name[256];

	memset(name, 'x', sizeof(name));
	(void)strcpy(name + sizeof(name) - 1 - strlen("_rank0.pt"), "_rank0.pt");
	put_file(dir_fd, name, "", 0);
	expect_refused(NULL, ENOTSUP, "wrote for itself ('xxxx");
}
END_TEST

static bool is_below(const char *const *names, size_t n)
{
	struct name_list l = { 0 };
	struct ckpt_err e = { 0 };
	bool below;

	for (size_t i = 0; i < n; i++)
		REQUIRE(!name_list_add(&l, names[i], &e));
	below = format_is_below(&l);
	name_list_release(&l);
	return below;
}

START_TEST(one_file_may_say_in_which_directory_a_checkpoint_is)
{
	static const char *const names[] = { "a/x", "latest", "a/y", "b" };

	ck_assert(is_below(names, 1));
	ck_assert(is_below(names, 2));
	ck_assert(is_below(names, 3));
	ck_assert(!is_below(names, 4)); /* two files are here */
	ck_assert(!is_below(names + 1, 1));
	ck_assert(!is_below(names, 0));
}
END_TEST

/* name: the file that is looked at; NULL: the directory. `beside` is another file in it. */
static const struct {
	const char *name, *put, *bytes;
	size_t len;
	const char *beside;
} looked_at[] = {
	{ "m", "m", "\2\0\0\0\0\0\0\0{}", 10, NULL },
	{ "m", "m", "GGUF\3\0\0\0", 8, NULL },
	{ "checkpoint", "checkpoint", "\x81\xa1w\xc0", 4, NULL },
	{ NULL, "flax_model.msgpack", "\x81\xa1w\xc0", 4, NULL },
	{ NULL, "a.msgpack", "\x81\xa1w\xc0", 4, NULL },
	{ "m", "m", "\x89HDF\r\n\x1a\n", 8, NULL }, /* is refused */
	{ NULL, "w/.zarray", "{}", 2, NULL },
	{ NULL, "item/w/.zarray", "{}", 2, "item/_METADATA" },
	{ NULL, "step/mp_rank_00_model_states.pt", "", 0, NULL },
};

/* When calls fail, it is not taken for another format, or for something else that is refused. */
static void look_while_calls_fail(int i, enum fault_kind kind)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	const struct format *want = NULL;
	struct name_list l = { 0 };
	struct ckpt_err refused = { 0 };
	int rc = format_detect(place, looked_at[i].name, &want, &l, &refused);

	name_list_release(&l);
	ck_assert_msg(rc ? rc == -ENOTSUP : want != NULL, "%s", refused.msg);
	FAULT_LOOP(kind)
	{
		const struct format *f = NULL;
		struct ckpt_err e = { 0 };
		int got = format_detect(place, looked_at[i].name, &f, &l, &e);

		(void)fault_off();
		name_list_release(&l);
		if (got && err_is_external(got))
			ck_assert_msg(fault_hit() && e.code == -got && *e.msg, "%s", e.msg);
		else
			ck_assert_msg(got == rc && (rc ? !strcmp(e.msg, refused.msg) : f == want),
				      "%s: %s: %d: %s", looked_at[i].put, fault_name(), got, e.msg);
	}
}

START_LOOP_TEST(a_failing_look_is_an_error, (int)(sizeof(looked_at) / sizeof(*looked_at)))
{
	put_files(looked_at[_i].put); /* with its directories */
	if (looked_at[_i].beside)
		put_files(looked_at[_i].beside);
	put_file(dir_fd, looked_at[_i].put, looked_at[_i].bytes, looked_at[_i].len);
	look_while_calls_fail(_i, FAULT_ALLOC);
	look_while_calls_fail(_i, FAULT_READ | FAULT_OPEN | FAULT_STAT);
}
END_TEST

static const struct {
	const char *a, *b;
	bool of_ranks;
} named[] = {
	{ "consolidated.00.pth", "consolidated.07.pth", true },
	{ "consolidated.1.pth", "consolidated.0.pth", true },
	{ "rank0.safetensors", "rank12.safetensors", true },
	{ "model-rank-0-part-1.safetensors", "model-rank-3-part-1.safetensors", true },
	{ "model-rank-0-part-0.safetensors", "model-rank-0-part-1.safetensors", false },
	{ "model-rank-0-part-0.safetensors", "model-rank-1-part-1.safetensors", false },
	{ "a_rank_0.pt", "b_rank_1.pt", false },
	{ "a_rank_8.pt", "a_rank_16.pt", false },
	{ "rank1-rank0.pt", "rank1-rank1.pt", true },
	{ "rank0-rank1234567890.pt", "rank1-rank1234567890.pt", true },
	{ "rank_0.pt", "rank-1.pt", false },
	{ "my.consolidated.00.pth", "my.consolidated.01.pth", false },
	{ "rank.pt", "rank1.pt", false },
	{ "rank", "rank", false },
	{ "", "", false },
};

START_LOOP_TEST(files_of_ranks_are_known_by_their_names, (int)(sizeof(named) / sizeof(*named)))
{
	ck_assert(part_is_of_ranks(named[_i].a, named[_i].b) == named[_i].of_ranks);
	ck_assert(part_is_of_ranks(named[_i].b, named[_i].a) == named[_i].of_ranks);
}
END_TEST

SUITE(neighbours, .setup = dir_setup, .teardown = dir_teardown)
