/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What commands print and what they refuse, without a mount. The suites tests/fs/test_*.sh run the
 * program itself, and compare bytes.
 */
#include "base/checked.h"
#include "fs/program_util.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
	const char *line;
	int status;
	/* Parts of what is printed, in this order, separated by '|'; NULL: nothing is printed. */
	const char *out, *err;
};

static void setup(void)
{
	program_setup();
	program_model("run/step-1/model.safetensors", 1);
	program_model("run/step-2/model.safetensors", 2);
}

static void must_hold(const char *line, const char *said, const char *parts, const char *where)
{
	const char *at = said;

	if (!parts) {
		ck_assert_msg(!*said, "%.300s: on %s: %.1000s", line, where, said);
		return;
	}
	for (const char *s = parts; *s;) {
		size_t len = strcspn(s, "|");
		char part[600];

		(void)snprintf(part, sizeof(part), "%.*s", (int)len, s);
		at = strstr(at, part);
		ck_assert_msg(at, "%.300s: '%s' is not on %s: %.1000s", line, part, where, said);
		at += strlen(part);
		s += len + (s[len] == '|');
	}
}

static void must_be(const struct row *row)
{
	struct ran r = program_ran(row->line);

	ck_assert_msg(r.status == row->status, "%.300s: status %d: %.500s%.500s", row->line,
		      r.status, r.out, r.err);
	must_hold(row->line, r.out, row->out, "stdout");
	must_hold(row->line, r.err, row->err, "stderr");
	program_release(&r);
}

/* ---- options ---- */

static const struct row options[] = {
	{ "ls --depth=x --tree @plain", 2, NULL,
	  "option 'depth': 'x' is not a whole number from 1 to 4294967295 (try 'ckptfs help ls')" },
	{ "ls --depth=-1 --tree @plain", 2, NULL, "'-1' is not a whole number" },
	{ "ls --depth=3x --tree @plain", 2, NULL, "'3x' is not a whole number" },
	{ "ls --depth=4294967296 --tree @plain", 2, NULL, "'4294967296' is not a whole number" },
	{ "ls --depth=99999999999999999999 --tree @plain", 2, NULL, "is not a whole number" },
	{ "ls --depth=:1 --tree @plain", 2, NULL, "':1' is not a whole number" },
	{ "ls --depth=0 --tree @plain", 2, NULL, "option 'depth': must be at least 1" },
	{ "ls --tree=1 @plain", 2, NULL, "option 'tree' takes no value" },
	{ "ls --sort= @plain", 2, NULL, "option 'sort' needs a value" },
	{ "ls --sort", 2, NULL, "option 'sort' needs a value" },
	{ "ls --sort=foo @plain", 2, NULL, "option 'sort': 'foo' is not one of name, size, dtype" },
	{ "ls --sort=siz @plain", 2, NULL, "'siz' is not one of" },
	{ "ls --sort=sizes @plain", 2, NULL, "'sizes' is not one of" },
	{ "ls -o", 2, NULL, "option '-o' needs a list of options" },
	{ "ls -o '' @plain step", 0, "step\n", NULL },
	{ "ls -o , @plain step", 0, "step\n", NULL },
	{ "ls -oinclude=step @plain", 0, "step\n", NULL },
	{ "ls -l -o=dtype=bf16 @plain", 2, NULL,
	  "option '-o' takes no '=' before its list: write '-o dtype=bf16' (try" },
	{ "ls -o =include=step @plain", 2, NULL,
	  "option '=include=step' has no name before the '=' (try" },
	{ "ls -o include=step,= @plain", 2, NULL, "option '=' has no name" },
	{ "ls -o json @plain", 2, NULL,
	  "option 'json' is not one of those that -o takes: write '--json' (try" },
	{ "ls -o sort=size @plain", 2, NULL, "that -o takes: write '--sort=size'" },
	{ "ls -o jsn @plain", 2, NULL, "unknown option 'jsn': did you mean '--json'?" },
	{ "ls -o dtpe=bf16 @plain", 2, NULL, "unknown option 'dtpe': did you mean 'dtype'?" },
	{ "mount -o foreground @plain %/m", 2, NULL, "that -o takes: write '--foreground'" },
	{ "ls --retry=x @plain", 2, NULL, "option 'retry': 'x' is not a number of seconds" },
	{ "ls -o index @plain", 2, NULL, "option 'index' needs a value" },
	{ "ls -o index= @plain", 2, NULL, "option 'index' needs a value" },
	{ "ls -o include=a\\,b,c @plain", 2, NULL,
	  "unknown option 'c'; a comma inside a value is written '\\,' (try" },
	{ "ls -o ignore_ctime,c @plain", 2, NULL, "unknown option 'c' (try" },
	{ "ls -o include=a,indx=b @plain", 2, NULL, "'indx': did you mean 'index'? (try" },
	{ "ls -o include=model.norm\\,step @plain", 1, NULL,
	  "option 'include': 'model.norm,step' matches no FQN" },
	{ "ls -o include=model.norm\\\\,include=step @plain", 0, "step",
	  "'model.norm\\' matches no FQN" },
	{ "ls -o include=model.n\\orm @plain", 0, "model.norm", NULL },
	{ "ls -o include=step\\ @plain", 1, NULL, "matches no FQN" },
	{ "ls --include=model.norm --include=step @plain", 0, "model.norm\nstep\n", NULL },
	{ "ls --include model.norm @plain", 0, "model.norm\n", NULL },
	{ "ls --ignore-ctime @plain step", 0, "step\n", NULL },
	{ "ls -o ignore-ctime,include=step @plain", 0, "step\n", NULL },
	{ "ls --ignore_ctime=1 @plain", 2, NULL, "option 'ignore_ctime' takes no value" },
	{ "ls -o allow_missing=1 @plain", 2, NULL,
	  "option 'allow_missing' has no effect on this command" },
	{ "ls --threads=3 @plain", 2, NULL, "unknown option '--threads'" },
	{ "ls --dtpe=bf16 @plain", 2, NULL, "unknown option '--dtpe': did you mean '--dtype'?" },
	{ "ls -o noatime @plain", 2, NULL, "unknown option 'noatime'" },
	{ "ls -o x-foo @plain", 2, NULL, "unknown option 'x-foo'" },
	{ "ls -lqx @plain", 2, NULL, "unknown option '-x'" },
	{ "ls -lo include=step @plain", 2, NULL, "unknown option '-o'" },
	{ "ls @plain -l --color=maybe", 2, NULL,
	  "option 'color': 'maybe' is not one of auto, always, never" },
	{ "ls -- -x", 2, NULL, "open '-x': No such file or directory" },
	{ "ls %/-", 2, NULL, "No such file or directory" },
	{ "ls ''", 2, NULL, "ckptfs: " },
	{ "check --max-abs=0 @plain", 2, NULL,
	  "option 'max_abs': '0' is not a number greater than 0" },
	{ "check --max-abs=-1 @plain", 2, NULL, "is not a number greater than 0" },
	{ "check --max-abs=1x @plain", 2, NULL, "is not a number greater than 0" },
	{ "check --max-abs=inf @plain", 2, NULL, "is not a number greater than 0" },
	{ "check --max-abs=nan @plain", 2, NULL, "is not a number greater than 0" },
	{ "check --allow-nan @plain", 2, NULL, "check: usage: ckptfs check CKPT (try" },
	{ "reshard --zstd=0 @plain %/q", 2, NULL, "option 'zstd': must be at least 1" },
	{ "reshard --zstd=x @plain %/q", 2, NULL,
	  "option 'zstd': 'x' is not a whole number from 1" },
	{ "reshard --ranks=0 @plain %/q", 2, NULL, "option 'ranks': must be at least 1" },
	{ "report @plain x.html", 2, NULL, "report: unexpected argument 'x.html'" },
	{ "report -o %/x.html @plain", 0, NULL, "/x.html: |KiB" },
	{ "mount @plain %/m -o uid=-1", 2, NULL,
	  "option 'uid': '-1' is not a whole number from 0" },
	{ "mount @plain %/m -o threads=0", 2, NULL, "option 'threads': must be at least 1" },
	{ "mount @plain %/m -o io=fast", 2, NULL,
	  "option 'io': 'fast' is not one of auto, direct, cached" },
	{ "mount @plain %/m -o sandbox=maybe", 2, NULL, "option 'sandbox': 'maybe'" },
	{ "mount @plain %/m --noatime", 2, NULL, "unknown option '--noatime'" },
	{ "mount @plain %/m --x-foo", 2, NULL, "unknown option '--x-foo'" },
	{ "mount @plain %/m -o ro,rw,noatime,x-foo,X-bar=1,comment,nofial", 2, NULL,
	  "unknown option 'nofial'" },
	{ "mount @plain %/none -o ro,x-foo,X-bar=1,noauto,_netdev", 2, NULL,
	  "mount point '|/none': No such file or directory" },
	{ "mount @plain", 2, NULL,
	  "mount: usage: ckptfs mount CKPT MNT (try 'ckptfs help mount')" },
	{ "mount @plain %/run/step-1/model.safetensors", 2, NULL, "model.safetensors" },
	{ "mount -f @empty_metadata %", 2, NULL, "'.metadata' is empty" },
	{ "mount -f @empty_metadata %/run", 2, NULL,
	  "/run' is a checkpoint and '|' is not: the checkpoint comes first, as in 'ckptfs "
	  "mount " },
};

START_FEW_TEST(options_are_read, ARRAY_LEN(options), ARRAY_LEN(options))
{
	must_be(&options[_i]);
}
END_TEST

/* ---- ls, info ---- */

static const struct row looks[] = {
	{ "ls -l @plain", 0,
	  "object    -      1261  1  betas\n|bfloat16  [3,3]    18  1  model.layers.0.w\n|int64    "
	  " []        8  1  step\n",
	  NULL },
	{ "ls -h @plain", 0,
	  "object    -      1.2 KiB  1  betas\n|float32   [7,5]    140 B  1  model.tok.weight\n",
	  NULL },
	{ "ls -l @mcore_flat", 0,
	  "object   -           1319   1  common.pt\n|float32  [4,1,10]     160   8  "
	  "optimizer.state.exp_avg.decoder.layers.input_layernorm.weight  (logical [4,10])\n",
	  NULL },
	{ "ls --json @mcore_flat", 0,
	  "{\"fqn\": \"common.pt\", \"type\": \"object\", \"dtype\": null, \"shape\": null, "
	  "\"bytes\": 1319|\"shape\": [4,1,10], \"logical\": [4,10], \"bytes\": 160, \"chunks\": "
	  "8, \"fault\": null}",
	  NULL },
	{ "ls --json @truncated_data model.norm", 0,
	  "\"fault\": \"data file '__0_0.distcp' has 11318 bytes, items in it reach up to 14318\"",
	  NULL },
	{ "ls -l @truncated_data model.norm", 0, "model.norm|11318", NULL },
	{ "ls --tree @plain", 0,
	  "1261   -  -  betas  object\n| 196  58  4  model\n  36  18  2    layers.{0,1}.w x2  "
	  "bfloat16 [3,3]\n|   8   1  1  step  int64 []\n",
	  NULL },
	{ "ls --tree --depth=1 @plain model.*", 0, "196  58  4  model\n", NULL },
	{ "ls --tree -h @many_items", 0,
	  "3.3 KiB  1,680  420  layers.{0..419}.attention.wq.weight x420  bfloat16 [2,2]\n", NULL },
	{ "ls --tree --sort=size @dtypes complex*", 0,
	  "240  15  1  complex128  |120  15  1  complex64  |60  15  1  complex32  |16   1  2  "
	  "complex128\n",
	  NULL },
	{ "ls --sort=dtype -l @dtypes", 0,
	  "bfloat16          [3,5]   30  1  bfloat16\n|bool              []       1  1  "
	  "bool.scalar\n|complex128 |uint8 ",
	  NULL },
	{ "ls --sort=size @plain", 0,
	  "betas\nempty_list\nlr\nname\ntuple\nmodel.tok.weight\nmodel.norm\n", NULL },
	{ "ls --sort=size --json @plain model.*", 0, "model.tok.weight|model.norm|model.layers.0.w",
	  NULL },
	{ "ls --sort=name @plain model.*", 0,
	  "model.layers.0.w\nmodel.layers.1.w\nmodel.norm\nmodel.tok.weight\n", NULL },
	{ "ls --color=always --tree @plain", 0, "\033[", NULL },
	{ "ls @bytes_items", 0, "\n", NULL },
	{ "ls --tree @weird_fqns", 0, "%", NULL },
	{ "ls --json --tree @plain", 2, NULL, "option 'tree' is for text, not for --json" },
	{ "ls --json -l @plain", 2, NULL, "option 'long' is for text, not for --json" },
	{ "ls --json -h @plain", 2, NULL, "option 'human_readable' is for text, not for --json" },
	{ "ls --json --color=always @plain", 2, NULL,
	  "option 'color' is for text, not for --json" },
	{ "ls --depth=3 @plain", 2, NULL, "option 'depth' is for --tree" },
	{ "ls @plain nothing*", 1, NULL, "ls: nothing matches 'nothing*'" },
	{ "ls @plain model.nor", 1, NULL, "nothing matches 'model.nor'|did you mean 'model.norm'" },
	{ "ls --json @plain nothing*", 1, "[]", "nothing matches" },
	{ "ls @plain nothing other step", 0, "step\n", NULL },
	{ "ls --include=nothing @plain", 1, NULL,
	  "'nothing' matches no FQN\n|ckptfs: ls: nothing is left by include\n" },
	{ "ls --tree --exclude=* @plain", 1, NULL, "ckptfs: ls: nothing is left" },
	{ "ls --json --exclude=* @plain", 1, "[]", "ckptfs: ls: nothing is left" },
	{ "ls %/none", 2, NULL, "/none': No such file or directory" },
	{ "ls % run", 2, NULL, "not a checkpoint" },
	{ "ls %/run/step-1/model.safetensors", 0,
	  "model.ids\nmodel.layers.0.w\nmodel.layers.1.w\nmodel.norm\n", NULL },
	{ "ls %/run", 0, "step-1\nstep-2\n", NULL },
	{ "ls -l %/run", 0, "complete    step-1\ncomplete    step-2  (latest)\n", NULL },
	{ "ls --json %/run", 0,
	  "[\n  {\"name\": \"step-1\", \"complete\": true, \"latest\": false, \"fault\": null},\n  "
	  "{\"name\": \"step-2\", \"complete\": true, \"latest\": true, \"fault\": null}\n]\n",
	  NULL },
	{ "ls --sort=size %/run", 2, NULL,
	  "option 'sort' is for the tensors of a checkpoint, and '|/run' is a run of checkpoints: "
	  "take one of them" },
	{ "ls --tree %/run", 2, NULL, "option 'tree' is for the tensors" },
	{ "ls --tree --depth=2 %/run", 2, NULL, "option 'tree' is for the tensors" },
	{ "ls -h %/run", 0, "complete    step-1\ncomplete    step-2  (latest)\n", NULL },
	{ "ls --color=always %/run", 0, "step-1\nstep-2\n", NULL },
	{ "ls %/run step-1", 0, "model.ids\n", NULL },
	{ "ls %/run latest model.norm", 0, "model.norm\n", NULL },
	{ "ls %/run nosuch", 1, NULL, "ls: nothing matches 'nosuch'\n" },
	{ "ls %/run step-3", 1, NULL,
	  "nothing matches 'step-3'; did you mean 'step-1' or 'step-2'?\n" },
	{ "ls %/run step-1/model.safetensors", 1, NULL, "nothing matches" },
	{ "ls %/run ''", 1, NULL, "nothing matches ''" },
	{ "info %/run", 0, "run         |/run\ncomplete    2\nlatest      step-2\nincomplete  0\n",
	  NULL },
	{ "info --json %/run", 0,
	  "\"run\": |{\"name\": \"step-1\", \"complete\": true, \"mtime_ns\": |\"latest\": "
	  "\"step-2\"",
	  NULL },
	{ "info --color=always %/run", 0, "latest      \033[1mstep-2\033[0m\n", NULL },
	{ "info --json --color=always %/run", 2, NULL,
	  "option 'color' is for text, not for --json" },
	{ "info --json --color=always @plain", 2, NULL,
	  "option 'color' is for text, not for --json" },
	{ "ls --include=model.layer.0.* --exclude=* @plain", 1, NULL,
	  "'model.layer.0.*' matches no FQN; did you mean 'model.layers.0.w'?\n|ckptfs: ls: "
	  "nothing is left by include and exclude\n" },
	{ "info --exclude=* --include=model.* @plain", 2, NULL,
	  "info: include and exclude leave nothing of the checkpoint\n" },
	{ "info --exclude=* @plain", 2, NULL, "info: exclude leaves nothing of the checkpoint\n" },
	{ "info @plain", 0,
	  "model       58 parameters, 4 tensors, 196 B, under 'model.'\ndtypes      float32 "
	  "40, bfloat16 18\nformat      dcp\ntensors     5, 204 B\nobjects     5\n|pt/: "
	  "complete: 4 tensors\n|complete    yes\n",
	  NULL },
	{ "info --json @plain", 0,
	  "\"format\": \"dcp\"|\"tensor_bytes\": 204|\"complete\": true|\"prefix\": "
	  "\"model.\"|\"parameters\": 58,|\"dtypes\": {\"float32\": 40, \"bfloat16\": "
	  "18},|\"family\": null,",
	  NULL },
	{ "info @plain -o index=:memory:", 0, "index       :memory: (built just now)\n", NULL },
	{ "info @mp4_stale", 0, " 24 parameters, 1 tensor, 96 B\n", NULL },
	{ "info @hole", 0,
	  "pt/: not complete: 3 of 13 tensors left out|complete    no: 3 cannot be opened\n  s0s0: "
	  "no chunk holds the elements at [0,0] of size [2,3]; similarly s0s1, uneven_s0s1\n",
	  NULL },
	{ "info --color=always @truncated_data", 0,
	  "complete    \033[31mno\033[0m: 10 cannot be opened\n  model.layers.0.w, "
	  "model.layers.1.w, model.norm and 7 more: data file",
	  NULL },
	{ "info @empty_metadata", 2, NULL, "'.metadata' is empty" },
	{ "info @plain nosuch", 2, NULL, "info: 'nosuch': no tensor or object of that name" },
	{ "info @plain model.nor", 2, NULL, "; did you mean 'model.norm'?" },
	{ "info @plain model.norm", 0,
	  "tensor    model.norm\ndtype     float32\nshape     [5]\nbytes     20 B\ncomplete  "
	  "yes\nchunks    1 in 1 file\n  [0] + [5]  __0_0.distcp at 11164, 1577 bytes, dcp\n",
	  NULL },
	{ "info --color=always @truncated_data model.norm", 0, "complete  |no", NULL },
	{ "info --json @truncated_data model.norm", 0, "\"fault\": \"data file", NULL },
	{ "info --json @plain model.norm", 0,
	  "\"chunks\": [\n    {\"offsets\": [0], \"sizes\": [5], \"file\": \"__0_0.distcp\", "
	  "\"offset\": 11164, \"length\": 1577, \"encoding\": \"dcp\"}\n",
	  NULL },
	{ "info @plain betas", 0,
	  "object    betas\ncomplete  yes\nstored    __0_0.distcp at 2522, 1261 bytes, dcp\nvalue  "
	  "   [0.9, 0.95]\n",
	  NULL },
	{ "info --json @plain betas", 0,
	  "\"type\": \"object\"|\"fault\": null,\n  \"value\": [0.9, 0.95]\n}\n", NULL },
	{ "info @truncated_data betas", 0, "complete  no", NULL },
	{ "info --json @truncated_data betas", 0, "\"fault\": \"data file", NULL },
	{ "info %/run step-1 model.norm", 0, "dtype     bfloat16\n", NULL },
	{ "info %/run step-9", 2, NULL,
	  "ckptfs: run '|/run' has no checkpoint 'step-9'; did you mean 'step-1' or 'step-2'?\n" },
	{ "info %/run model.norm", 2, NULL,
	  "it is a run with 2 checkpoints; name one, as in '|step-2'; none of them is "
	  "'model.norm'\n" },
	{ "info @plain step step", 2, NULL, "unexpected argument 'step'" },
};

START_FEW_TEST(looks_are_right, ARRAY_LEN(looks), ARRAY_LEN(looks))
{
	must_be(&looks[_i]);
}
END_TEST

/* ---- stat, head, check ---- */

static const struct row numbers[] = {
	{ "stat @plain model.norm", 0,
	  "tensor\nfloat32               5     -1.60528      2.23987     0.583003      1.27342     "
	  " 3.13168          0      0      0  model.norm\n",
	  NULL },
	{ "stat --by=layer @plain", 0,
	  "layer\n1                     9     -1.20312 |  model.layers.0\n|  step\n5               "
	  "     59 |  all\n",
	  NULL },
	{ "stat --by=role @plain", 0,
	  "2                    18      -1.4375      1.04688   -0.0654161     0.748247      "
	  "3.18665          0      0      0  model.layers.*.w\n",
	  NULL },
	{ "stat --by=rank @plain", 0, "chunks |  rank 0\n|  all\n", NULL },
	{ "stat --by=rank --sort=elements @mp4_fsdp2_adamw", 0, "rank 0|all\n", NULL },
	{ "stat --by=role --json @plain", 0, "model.layers.*.w|\"all\": {\"tensors\": 5", NULL },
	{ "stat --sort=norm @plain", 0,
	  "  step\n|  model.tok.weight\n|  model.norm\n|  model.layers.1.w\n|  model.layers.0.w\n",
	  NULL },
	{ "stat --sort=min --csv @dtypes complex*", 0,
	  "\"complex32.empty\",complex32,1,0,0,0,0,0,0,,,,,,,|\"complex64\",complex64,1,120,15,0,0,"
	  "0,0,,,-0.030869945387045541,-0.071594159801801047,",
	  NULL },
	/* What is too wide does not move what is far behind it. */
	{ "stat @dtypes complex64", 0,
	  "complex64            15            -            - -0.0308699-0.0715942j 1.42815  "
	  "5.53943 "
	  "         0      0      0  complex64\n",
	  NULL },
	{ "stat @dtypes int64.scalar float8_e4m3fnuz", 0,
	  "dtype          elements          min          max         mean          std         "
	  "norm "
	  "     zeros    NaN    Inf  tensor\nfloat8_e4m3fnuz      15          -24          104 "
	  "      5.0748       27.106      106.805          0      0      0  float8_e4m3fnuz\n"
	  "int64                 1 2296501442707757766 2296501442707757766 2.2965e+18 0  "
	  "2.2965e+18 "
	  "         0      0      0  int64.scalar\n",
	  NULL },
	{ "stat @dtypes float4*", 0, "float4_e2m1fn_x2|its bytes are not numbers by themselves",
	  NULL },
	{ "stat --csv @dtypes float4*", 0, "\"float4_e2m1fn_x2\",float4_e2m1fn_x2,1,15,,,,,,,,,,,,",
	  NULL },
	{ "stat --json @dtypes float4*", 0, "float4_e2m1fn_x2", NULL },
	{ "stat --sort=norm --plot=always --hist=3 @dtypes *int*", 0, "linear\n", NULL },
	{ "stat --hist=3 --plot=always --by=role @plain", 0, "linear\n|powers of two\n", NULL },
	{ "stat --hist=4 @plain model.norm", 0,
	  "  linear\n              -2               1\n               0               3\n          "
	  "     2               1\n               4\n  powers of two\n              -2             "
	  "  4\n               2               1\n               4\n",
	  NULL },
	{ "stat --hist=4 --json @plain model.norm", 0, "\"fqn\": \"model.norm\"", NULL },
	{ "stat --sort=norm --hist=4 @plain", 0,
	  "  step\n  linear\n|  model.tok.weight\n  linear\n", NULL },
	{ "stat --plot=always @plain", 0, "min to max        tensor\n|\u2588", NULL },
	{ "stat --plot=always --sort=norm @plain", 0, "\u2588", NULL },
	{ "stat --plot=always --sort=norm --by=layer @truncated_data", 2,
	  "0            -            -", "5 of 5 tensors cannot be read" },
	{ "stat --hist=2 @plain", 2, NULL, "histograms of 2 bins: they can have 3 to 256" },
	{ "stat --csv --json @plain", 2, NULL, "options 'csv' and 'json' cannot be combined" },
	{ "stat --by=rank --model @plain", 2, NULL,
	  "ckptfs: option 'by': ranks are for stored tensors, not for those of the model\n" },
	{ "stat --by=rank %/run/step-1", 2, NULL,
	  "ckptfs: option 'by': the names of the data files do not tell which rank wrote them\n" },
	{ "stat --by=x @plain", 2, NULL,
	  "option 'by': 'x' is not one of tensor, layer, role, rank" },
	{ "stat @plain nothing*", 2, NULL, "stat: no tensor matches 'nothing*'\n" },
	{ "stat --exclude=* @plain", 2, NULL, "stat: no tensor is left by exclude\n" },
	{ "stat @plain model.nor", 2, NULL,
	  "no tensor matches 'model.nor'; did you mean 'model.norm'?" },
	{ "stat @plain nothing* other*", 2, NULL, "no tensor matches 'nothing*' or another glob" },
	{ "stat @hole s*", 2, "float32   unreadable: no chunk holds|  s0s0\n|  all\n",
	  "stat: 2 of |tensors cannot be read" },
	{ "stat --sort=norm --hist @hole s*", 2, "  s0s0\n", "stat: 2 of |tensors cannot be read" },
	{ "stat --csv @truncated_data", 2, "\"model.norm\",float32,1,20,,,,,,,,,,,,\"data file",
	  "stat: 5 of 5 tensors cannot be read" },
	{ "stat --json @truncated_data", 2,
	  "\"fault\": \"data file '__0_0.distcp' has|\"unreadable\": 5, |\"min\": null", "5 of 5" },
	{ "stat --model @plain", 0, "  layers.0.w\n|  tok.weight\n4                    58 ", NULL },
	{ "stat --resume=%/none/r @plain", 2, NULL,
	  "create '|/none/r': No such file or directory" },
	{ "stat %/run", 0,
	  "tensor\nstep-1                          5      7.07107            7      0      0       "
	  "     -            -  model.ids\nstep-2                    5.14782      7.28011          "
	  "  7      0      0          0.5     0.141421  model.ids\n",
	  NULL },
	{ "stat --json %/run model.norm", 0,
	  "\"rows\": [\n    {\"fqn\": \"model.norm\", \"checkpoint\": \"step-1\", \"fault\": null, "
	  "\"dtype\": \"bfloat16\", \"shape\": [4]|\"changed\": 3, \"changed_share\": 0.75",
	  NULL },
	{ "stat --csv %/run model.norm", 0,
	  "name,checkpoint,dtype,|\"model.norm\",\"step-2\",bfloat16,4,0,0,0,1.0235865826531236,2."
	  "0471731653062473,1.046875,3,0.75,0.01444601524737678,",
	  NULL },
	{ "stat --csv --json %/run", 2, NULL, "options 'csv' and 'json' cannot be combined" },
	{ "stat --by=layer %/run", 2, NULL,
	  "option 'by' is for a checkpoint, not for a run: name one of its checkpoints, or "
	  "'latest'" },
	{ "stat --sort=norm %/run", 2, NULL, "option 'sort' is for a checkpoint, not for a run" },
	{ "stat --hist %/run", 2, NULL, "option 'hist' is for a checkpoint, not for a run" },
	{ "stat --resume=%/x %/run", 2, NULL,
	  "option 'resume' is for a checkpoint, not for a run" },
	{ "stat --plot=always %/run", 2, NULL, "option 'plot' is for a checkpoint, not for a run" },
	{ "stat --plot=never %/run model.norm", 0, "model.norm", NULL },
	{ "stat %/run nothing*", 2, NULL, "no tensor of the run's checkpoints matches" },
	{ "stat %/run step-1", 0, "  model.ids\n|  all\n", NULL },
	{ "head @plain model.norm", 0,
	  "[-1.6052763   0.23248571  2.23987     0.8472938   1.2006443 ]\n", NULL },
	{ "head @plain model.tok.weight 1:2", 0,
	  "[[-0.6091889  -0.97977227 -1.6090963  -0.7121446   0.303722  ]]\n", NULL },
	{ "head @plain model.tok.weight [1:2,3]", 0, "[-0.7121446]\n", NULL },
	{ "head @plain model.tok.weight [1,~3]", 0, "-0.7121446\n", NULL },
	{ "head @plain model.tok.weight 1,...", 0, "[-0.6091889 ", NULL },
	{ "head @plain model.tok.weight ...,3", 0, "-0.7121446 ", NULL },
	{ "head -- @plain model.tok.weight -1", 0,
	  "[ 1.5747981  -0.6298472   2.4069781   0.27856624  0.24675292]\n", NULL },
	{ "head @plain model.tok.weight ...,...", 2, NULL,
	  "slice '...,...': expected something like" },
	{ "head @plain model.tok.weight 1,2,3", 2, NULL,
	  "slice '1,2,3' has more parts than the tensor has dimensions (2)" },
	{ "head @plain model.tok.weight ...,1,2,3", 2, NULL, "found '...,1,2,3'" },
	{ "head @plain model.tok.weight 7", 2, NULL, "7" },
	{ "head @plain model.tok.weight [1", 2, NULL,
	  "slice '[1': expected something like|found its end" },
	{ "head @plain model.tok.weight [1}", 2, NULL, "found '}'" },
	{ "head @plain model.tok.weight [1]x", 2, NULL, "found 'x'" },
	{ "head @plain model.tok.weight 1;", 2, NULL, "found ';'" },
	{ "head @plain model.tok.weight 1:x", 2, NULL, "found 'x'" },
	{ "head @plain model.tok.weight ::0", 2, NULL, "0" },
	{ "head @plain model.tok.weight ''", 2, NULL, "found its end" },
	{ "head @plain model.tok.weight +1", 2, NULL, "found '+1'" },
	{ "head @plain model.tok.weight 99999999999999999999999", 2, NULL,
	  "found '99999999999999999999999'" },
	{ "head --json @plain model.norm", 0,
	  "[-1.6052763,0.23248571,2.23987,0.8472938,1.2006443]\n", NULL },
	{ "head --bits @plain model.norm", 0,
	  "[0xbfcd79b2 0x3e6e10bc 0x400f5a08 0x3f58e83f 0x3f99aeb6]\n", NULL },
	{ "head --bits --json @plain model.norm", 2, NULL,
	  "options 'bits' and 'json' cannot be combined" },
	{ "head @plain model.nor", 2, NULL,
	  "head: 'model.nor': no tensor or object of that name; did you mean 'model.norm'?" },
	{ "head @plain betas", 2, NULL,
	  "head: 'betas' is an object, not a tensor; 'ckptfs info' prints its value" },
	{ "head @dtypes float4_e2m1fn_x2", 2, NULL,
	  "the bytes of float4_e2m1fn_x2 are not numbers by themselves; they can be shown as "
	  "bits" },
	{ "head @plain step", 0, "1234\n", NULL },
	{ "head @plain step 0", 2, NULL,
	  "slice '0' has more parts than the tensor has dimensions (0)" },
	{ "head @dtypes int64.empty", 0, "[]\n", NULL },
	{ "head @truncated_data model.norm", 2, NULL,
	  "head: tensor 'model.norm' cannot be read: data file '__0_0.distcp' has 11318 bytes" },
	{ "head @missing_data_file b 0,:2", 0, "[0.83015674 0.7576485 ]\n", NULL },
	{ "head %/run latest model.norm", 0, "[1.       1.015625 1.03125  1.046875]\n", NULL },
	{ "check %/run/step-1", 0, "ok: 4 tensors, 0 objects, 4 items", NULL },
	{ "check --data %/run/step-1", 0, "ok: 4 tensors|4 items", NULL },
	{ "check --values %/run/step-1", 0, "values of 4 tensors examined, 0 faults", NULL },
	{ "check --max-abs=2 %/run/step-1", 1,
	  "fault: model.ids: the largest magnitude is 7, above the limit of 2; similarly "
	  "model.layers.0.w, model.layers.1.w\nFAULTY: 4 tensors|3 faults of 1 kind, 0 warnings "
	  "(-v shows each)\n",
	  NULL },
	{ "check -v --max-abs=2 %/run/step-1", 1,
	  "fault: model.ids: the largest|fault: model.layers.0.w: the largest|FAULTY", NULL },
	{ "check --json --max-abs=2 %/run/step-1", 1,
	  "{\n  \"checkpoint\": \"|/run/step-1\",\n  \"faults\": [\n|\"fqn\": \"model.ids\", "
	  "\"warning\": false|\"fault_count\": 3",
	  NULL },
	{ "check --allow-inf=* --allow-nan=* --allow-zero=* --allow-constant=* @special_floats", 0,
	  "ok: 5 tensors", NULL },
	{ "check --allow-inf=float* --allow-nan=* --allow-zero=* @special_floats", 1,
	  "fault: bfloat16: infinity in 3 of 7 elements, first at [2]\n", NULL },
	{ "check --allow-zero=* --allow-inf=* @special_floats", 1, "NaN", NULL },
	{ "check @hole", 1, "fault: s0s0: |; similarly s0s1, uneven_s0s1\nFAULTY", NULL },
	{ "check @missing_data_file", 1,
	  "fault: a, c and the file itself: data file '__1_0.distcp' is missing\nFAULTY|, 3 "
	  "faults of 1 kind",
	  NULL },
	{ "check @truncated_data", 1,
	  "fault: |, 7 more and the file itself: data file '__0_0.distcp' has 11318 bytes, items "
	  "in it reach up to 14318|FAULTY",
	  NULL },
	{ "check --values @truncated_data", 1, "items in it reach up to 14318|FAULTY", NULL },
	{ "check %/run", 2, NULL, "it is a run with 2 checkpoints; name one, as in '" },
	{ "check %/run step-2", 0, "ok: 4 tensors", NULL },
};

START_FEW_TEST(numbers_are_right, ARRAY_LEN(numbers), ARRAY_LEN(numbers))
{
	must_be(&numbers[_i]);
}
END_TEST

/* ---- sum, diff, cat, index, report, export, warm, reshard ---- */

static const struct row others[] = {
	{ "sum @plain model.norm", 0,
	  "# ckptfs sum sha256\nba517dd5af92fdfea295cd437a5a87be00205fcf2f0e83bd40abab8af0c82c22  "
	  "float32 [5]  model.norm\n",
	  NULL },
	{ "sum %/run step-9", 2, NULL, "has no checkpoint 'step-9'; did you mean 'step-1' or" },
	{ "head %/run step-1", 2, NULL, "2 checkpoints; name one, as in '|step-2'\n" },
	{ "sum %/run model.*", 2, NULL, "it is a run with 2 checkpoints; name one, as in '" },
	{ "head %/run step-9", 2, NULL, "has no checkpoint 'step-9'; did you mean 'step-1' or" },
	{ "head %/run step-9 model.norm", 2, NULL, "has no checkpoint 'step-9'; did you mean " },
	{ "sum --xxh @plain model.norm", 0,
	  "# ckptfs sum xxh3\n3c989177a8a644ccb468e3f4e9b7bff6  float32 [5]  model.norm\n", NULL },
	{ "sum @plain nothing*", 2, NULL, "sum: no tensor matches 'nothing*'" },
	{ "sum --exclude=* @plain", 2, NULL, "sum: no tensor is left by exclude\n" },
	{ "sum --model @plain norm", 0,
	  "ba517dd5af92fdfea295cd437a5a87be00205fcf2f0e83bd40abab8af0c82c22  float32 [5]  norm\n",
	  NULL },
	{ "sum @hole", 2, "# ckptfs sum sha256\n|  float32 [3,3]  rr\n",
	  "sum: tensor 's0s0': no chunk holds |sum: 3 of 13 tensors cannot be read" },
	{ "sum --check=%/none @plain", 2, NULL, "read '|/none': No such file or directory" },
	{ "sum --check=%/run/step-1/model.safetensors @plain", 2, NULL,
	  "does not begin like a list that 'ckptfs sum' has printed" },
	{ "diff @plain @plain", 0, "10 equal, 0 differ, 0 only in A, 0 only in B\n", NULL },
	{ "diff --model @plain @plain", 0, "4 equal, 0 differ", NULL },
	{ "diff @plain @plain nothing", 2, "0 equal",
	  "diff: no FQN on either side matches 'nothing'" },
	{ "diff --exclude=* @plain @plain", 2, "0 equal",
	  "diff: no FQN on either side is left by exclude\n" },
	{ "diff %/run step-1 step-2", 1,
	  "differs     model.ids         int64 [2]  first at [0]\n|0 equal, 4 differ, 0 only in A, "
	  "0 only in B\n",
	  NULL },
	{ "diff %/run step-1 latest model.norm", 1, "differs     model.norm|0 equal, 1 differ",
	  NULL },
	{ "diff --json %/run/step-1 %/run/step-2", 1,
	  "{\"fqn\": \"model.ids\", \"result\": \"differs\", \"a\": {\"type\": \"tensor\", "
	  "\"dtype\": \"int64\"|\"first\": 0}|\"summary\": {\"equal\": 0, \"only_a\": 0, "
	  "\"only_b\": 0, \"kind\": 0, \"shape\": 0, \"dtype\": 0, \"differs\": 4, \"unreadable\": "
	  "0}",
	  NULL },
	{ "diff --values %/run/step-1 %/run/step-2", 1,
	  "differs     model.ids         int64 [2]  1 of 2 elements (50 %), max 1, mean 0.5, first "
	  "at [0]\n|5 of 6 elements (83.3 %), max 5, mean 2.5, first at [0,1]\n",
	  NULL },
	{ "diff --values --json %/run/step-1 %/run/step-2", 1,
	  "\"values\": {\"elements\": 2, \"changed\": 1, \"nan_a\": 0, \"nan_b\": 0, \"infinite\": "
	  "0, \"finite\": 2, ",
	  NULL },
	{ "diff %/run/step-1 @plain", 1,
	  "only in B   betas             object\n|only in A   model.ids         int64 [2]\n|shape  "
	  "     model.layers.0.w  float32 [2,3] |bfloat16 [3,3]\n",
	  NULL },
	{ "diff --json @plain %/run/step-1", 1, "\"result\": \"only_a\"|\"result\": \"shape\"",
	  NULL },
	{ "diff --values --json @hole @hole", 2, "\"result\": \"unreadable\"|\"fault_in\": \"a\"",
	  "diff: 3 of 13 names cannot be compared" },
	{ "diff @hole @hole", 2,
	  "unreadable  s0s0            float32 [8,3]  in A: no chunk holds|3 unreadable\n",
	  "diff: 3 of 13 names cannot be compared" },
	{ "diff --report=%/none/x.html -q %/run/step-1 %/run/step-2", 2, NULL,
	  "write '|/none/x.html': No such file or directory" },
	{ "diff --report=%/x.html -q %/run/step-1 %/run/step-2", 1, "0 equal, 4 differ", NULL },
	{ "diff %/run %/run", 2, NULL, "it is a run with 2 checkpoints; name one, as in '" },
	{ "diff %/run/step-1 %/none", 2, NULL, "/none': No such file or directory" },
	{ "diff --weights=optim @plain @plain", 2, NULL, "option 'weights' is for --model" },
	{ "cat @plain nosuch", 2, NULL, "cat: 'nosuch': there is no such file in the tree" },
	{ "cat @plain tensors", 2, NULL, "cat: 'tensors' is a directory" },
	{ "cat @plain ''", 2, NULL, "cat: PATH is empty: name a file of the tree\n" },
	{ "cat --fqn @plain nosuch", 2, NULL, "cat: 'nosuch': no tensor or object of that name" },
	{ "cat --fqn @plain model.nor", 2, NULL, "did you mean 'model.norm'?" },
	{ "cat @plain objects/betas.json nosuch objects/betas.json", 2, "[0.9, 0.95]\n",
	  "cat: 'nosuch': there is no such file in the tree" },
	{ "cat @plain objects/betas.json", 0, "[0.9,|0.95]", NULL },
	{ "cat %/run nosuch/tensors", 2, NULL,
	  "cat: 'nosuch/tensors': there is no such file in the tree" },
	{ "cat @plain", 2, NULL, "cat: usage: ckptfs cat CKPT PATH... (try" },
	{ "index -o index=:memory: @plain", 0, ":memory:: built, 5 tensors, 5 chunks\n", NULL },
	{ "index --print @plain", 0, "/cache/ckptfs/index/ckpt-|.sqlite\n", NULL },
	{ "index @plain", 0, ".sqlite: built, 5 tensors, 5 chunks\n", NULL },
	{ "index %/run", 2, NULL, "it is a run with 2 checkpoints" },
	{ "index -o index=%/none/x @plain", 2, NULL,
	  "write the chunk index '|/none/x': No such file or directory" },
	{ "report @plain --output=%/none/x", 2, NULL,
	  "write '|/none/x': No such file or directory" },
	{ "report @plain --output=%/run", 2, NULL, "/run': a directory; name a file" },
	{ "report --output=%/y.html @plain", 0, NULL, "/y.html: |KiB\n" },
	{ "report -q --output=%/y.html @hole", 0, NULL, NULL },
	{ "report --output=%/y.html --exclude=* @plain", 2, NULL,
	  "report: exclude leaves nothing of the checkpoint\n" },
	{ "report --output=%/y.html --exclude=* %/run", 2, NULL,
	  "report: exclude leaves nothing of the checkpoint\n" },
	{ "report --output=- @plain", 0, "<!DOCTYPE html>|ckptfs report</title>|</html>", NULL },
	{ "export @plain", 2, NULL, "export: usage: ckptfs export CKPT PATH DEST (try" },
	{ "export -q @plain tensors %/t1", 0, NULL, NULL },
	{ "export @plain tensors/model.norm %/none/n", 2, NULL,
	  "export: directory '|/none': No such file or directory" },
	{ "export -q @plain nosuch %/t2", 2, NULL,
	  "export: 'nosuch': there is no such file in the tree" },
	{ "export @plain hf %/hf", 0, NULL, "export: hf/: not loadable: no config.json" },
	{ "export @plain gguf %/gguf", 2, NULL,
	  "'gguf': there is no such file in the tree: no config.json beside" },
	{ "export -q --fqn @plain model.norm %/n", 0, NULL, NULL },
	{ "export -q @plain tensors/model.norm %/run", 2, NULL,
	  "/run' exists already: name another DEST\n" },
	{ "export -q @plain tensors/model.norm -", 2, NULL,
	  "export: '-': 'ckptfs cat' writes to standard output; a file of that name is './-'" },
	{ "export -q @truncated_data tensors %/t3", 2, NULL,
	  "reach up to 14318; with the option allow_missing, the rest can be read\n" },
	{ "export -q @hole tensors %/t3", 2, NULL,
	  "are incomplete); with the option allow_missing, the rest can be read\n" },
	{ "export -q @plain hf %/t3 --recipe=nosuch", 2, NULL,
	  "option 'recipe': 'nosuch' is neither a file nor a recipe that 'ckptfs help recipes' "
	  "lists\n" },
	{ "export -q @plain hf %/t3 --recipe=megatron-lama", 2, NULL,
	  " lists; did you mean 'megatron-llama'?\n" },
	{ "export -q --jobs=1 @plain npy %/npy", 0, NULL, NULL },
	{ "export -q @plain '' %/all", 2, NULL, "export: PATH is empty; '.' is the whole tree\n" },
	{ "export -q %/run '' %/all", 2, NULL, "export: PATH is empty" },
	{ "export -q @plain . %/all", 0, NULL, NULL },
	{ "export -q %/run step-1/tensors %/from-run", 0, NULL, NULL },
	{ "warm %/none", 2, NULL, "not a checkpoint: found '" },
	{ "warm @plain nosuch", 2, NULL, "nosuch" },
	{ "warm @plain tensors/model.norm", 2, NULL,
	  "warm: 'tensors/model.norm': No such file or directory" },
	{ "warm --jobs=1 %/run/step-1", 0, "warm: 352 B of 1 source file: ", NULL },
	{ "warm %/run step-1", 0, "warm: 352 B of 1 source file: ", NULL },
	{ "warm %/run", 0, "warm: 704 B of 2 source files: ", NULL },
	{ "warm %/run/step-1 --include=model.norm", 0, "warm: 8 B of 1 source file: ", NULL },
	{ "warm @plain --include=nosuch", 2, NULL,
	  "warm: include leaves nothing of the checkpoint\n" },
	{ "warm %/run --exclude=*.w", 0, "warm: 48 B of 2 source files: ", NULL },
	{ "warm @truncated_data", 0, "warm: 11.1 KiB of 1 source file: ", NULL },
	{ "reshard @plain %/none/q", 2, NULL, "/none" },
	{ "reshard -q @plain %/run/step-1", 2, NULL,
	  "already exists and is not empty: use the option overwrite to replace it" },
	{ "reshard -q --format=safetensors @plain %/st", 0, NULL,
	  "warning: 5 objects are left out: safetensors files hold only tensors" },
	{ "reshard --format=safetensors --model @plain %/model", 0, "/model: 4 tensors",
	  "ckptfs: reshard: hf/: not loadable: no config.json beside" },
	{ "reshard -q --format=megatron --ranks=2 @plain %/mg", 0, NULL, NULL },
	{ "reshard -q --format=zarr %/run/step-1 %/za", 0, NULL, NULL },
	{ "reshard -q --zstd --threads=2 @plain %/dcp", 0, NULL, NULL },
	{ "reshard -q --zstd --format=safetensors @plain %/st", 2, NULL, "zstd" },
	{ "reshard -q --file-per-item --overwrite %/run/step-1 %/run/step-2", 0, NULL, NULL },
	{ "reshard -q --model --include=optim* @mp4_fsdp2_adamw %/none-left", 2, NULL,
	  "reshard: there is nothing to write: no tensor of a model is left\n" },
	{ "reshard -q --format=zarr --include=betas @plain %/none-left", 2, NULL,
	  "reshard: there is nothing to write: no tensor is left\n" },
	{ "stats %", 2, NULL, "not a mount" },
	{ "stats %/none", 2, NULL, "/none" },
	{ "umount %", 2, NULL, "ckptfs: " },
	{ "umount %/none", 2, NULL, "/none" },
};

START_FEW_TEST(others_do_what_they_say, ARRAY_LEN(others), ARRAY_LEN(others))
{
	must_be(&others[_i]);
}
END_TEST

/* ---- the program ---- */

static const struct row calls[] = {
	{ "", 2, NULL, "no command given (try 'ckptfs help')" },
	{ "--version", 0, "ckptfs |(libfuse ", NULL },
	{ "-V", 0, "ckptfs ", NULL },
	{ "help", 0, "usage: ckptfs COMMAND|  mount CKPT MNT |  help [COMMAND] ", NULL },
	{ "--help", 0, "usage: ckptfs COMMAND", NULL },
	{ "-h", 0, "usage: ckptfs COMMAND", NULL },
	{ "help help", 0, "usage: ckptfs COMMAND", NULL },
	{ "help --help", 0, "usage: ckptfs COMMAND", NULL },
	{ "help -x", 2, NULL, "unexpected argument '-x' (try 'ckptfs help')" },
	{ "help ls cat", 2, NULL, "unexpected argument 'cat' (try 'ckptfs help')" },
	{ "help help ls", 2, NULL, "unexpected argument 'ls'" },
	{ "help recipes torchtitan x", 2, NULL, "unexpected argument 'x'" },
	{ "--help ls", 0, "usage: ckptfs ls", NULL },
	{ "--version extra", 2, NULL, "unexpected argument 'extra' (try 'ckptfs help')" },
	{ "help ls", 0, "usage: ckptfs ls [OPTIONS] CKPT|The manual is ckptfs-ls(1).\n", NULL },
	{ "ls -h", 0, "usage: ckptfs ls [OPTIONS] CKPT", NULL },
	{ "ls --help @plain", 0, "usage: ckptfs ls", NULL },
	{ "mount --help", 0, "\nOptions up to --log can also be given as -o OPTION,OPTION=VALUE.\n",
	  NULL },
	{ "help info", 0, "\nOptions up to --retry can also be given as -o ", NULL },
	{ "help reshard", 0,
	  " directory with config.json|, or per chunk of zarr| distribute the tensors| leave out "
	  "what cannot be read\n|\nOptions up to --cache can also be given as -o ",
	  NULL },
	{ "help export", 0, " show the files of DIR|--layout=FILE          show in ranks/ ", NULL },
	{ "help frob", 2, NULL, "unknown command 'frob' (try 'ckptfs help')" },
	{ "frob", 2, NULL, "unknown command 'frob' (try 'ckptfs help')" },
	{ "lss", 2, NULL, "unknown command 'lss': did you mean 'ls'?" },
	{ "--frob", 2, NULL, "unknown option '--frob' (try 'ckptfs help')" },
	{ "help recipes", 0, "  megatron-llama ", NULL },
	{ "help recipes nosuch", 2, NULL, "unknown recipe 'nosuch' (try 'ckptfs help recipes')" },
	{ "help recipes torchtitan", 0, "torchtitan is the recipe", NULL },
	{ "% %/none -o ro", 2, NULL, "ckptfs: " },
	{ "%/none %/m -o ro", 2, NULL, "/none': No such file or directory\n" },
	{ "%/run/step-1/model.safetensors %/none -o ro", 2, NULL,
	  "mount point '|/none': No such file or directory\n" },
	{ "--x=/y %/m", 2, NULL, "unknown option '--x=/y'" },
	{ "ls", 2, NULL, "ls: usage: ckptfs ls CKPT [GLOB...] (try 'ckptfs help ls')" },
	{ "sum @plain --frob", 2, NULL, "unknown option '--frob' (try 'ckptfs help sum')" },
};

START_FEW_TEST(calls_are_understood, ARRAY_LEN(calls), ARRAY_LEN(calls))
{
	must_be(&calls[_i]);
}
END_TEST

static const struct row helper_calls[] = {
	{ "mount.ckptfs", 2, NULL, "usage: mount.ckptfs CKPT DIR" },
	{ "mount.ckptfs -h", 0, "usage: mount.ckptfs CKPT DIR", NULL },
	{ "mount.ckptfs --help", 0, "usage: mount.ckptfs CKPT DIR", NULL },
	{ "mount.ckptfs -V", 0, "ckptfs |(libfuse ", NULL },
	{ "mount.ckptfs @plain", 2, NULL, "usage: mount.ckptfs CKPT DIR" },
	{ "mount.ckptfs -s @plain", 2, NULL, "usage: mount.ckptfs CKPT DIR" },
	{ "mount.ckptfs @plain -s", 2, NULL, "usage: mount.ckptfs CKPT DIR" },
	{ "/sbin/mount.fuse.ckptfs @plain %/m -x", 2, NULL,
	  "unknown option '-x' or nothing after it" },
	{ "mount.ckptfs @plain %/m -o", 2, NULL, "unknown option '-o' or nothing after it" },
	{ "mount.ckptfs @plain %/m x", 2, NULL, "unexpected argument 'x'" },
	{ "mount.ckptfs @plain %/m -n x", 2, NULL, "unexpected argument 'x'" },
	{ "mount.ckptfs @plain %/m -o frob", 2, NULL, "unknown option 'frob'" },
	{ "mount.ckptfs @plain %/m -f -o frob", 2, NULL, "unknown option 'frob'" },
	{ "mount.ckptfs @plain %/m -f -o frob -s", 0, NULL, NULL },
	{ "mount.ckptfs @plain %/m -fnv -o ro", 0, NULL, NULL },
	{ "mount.ckptfs %/run/latest %/m -f", 0, NULL, NULL },
	{ "mount.ckptfs %/none %/m -f", 2, NULL, "open '|/none': No such file or directory" },
	{ "mount.ckptfs @plain %/none -t fuse.ckptfs -o ro", 2, NULL, "/none" },
	{ "mount.ckptfs @plain %/m -N %/none", 2, NULL,
	  "enter mount namespace '|/none': No such file or directory" },
	{ "mount.ckptfs @plain %/m -N %/run", 2, NULL,
	  "enter mount namespace '|/run': Invalid argument" },
	{ "mount.ckptfs @plain %/m -N 4194305", 2, NULL,
	  "enter mount namespace '/proc/4194305/ns/mnt': No such file or directory" },
};

START_FEW_TEST(calls_by_mount_are_understood, ARRAY_LEN(helper_calls), ARRAY_LEN(helper_calls))
{
	const struct row *row = &helper_calls[_i];
	struct ran r = program_ran_as(row->line);

	ck_assert_msg(r.status == row->status, "%s: status %d: %.500s%.500s", row->line, r.status,
		      r.out, r.err);
	must_hold(row->line, r.out, row->out, "stdout");
	must_hold(row->line, r.err, row->err, "stderr");
	program_release(&r);
}
END_TEST

/* ---- completion: lines as the shells ask for them ---- */

static const struct row completions[] = {
	{ "__complete", 0, NULL, NULL },
	{ "__complete ''", 0, "mount|umount|ls|help", NULL },
	{ "__complete help", 0, "help", NULL },
	{ "__complete help w", 0, "warm", NULL },
	{ "__complete help recipes", 0, "recipes", NULL },
	{ "__complete help recipes mega", 0, "megatron-llama", NULL },
	{ "__complete help nosuch mega", 0, NULL, NULL },
	{ "__complete help recipes mega x", 0, NULL, NULL },
	{ "__complete frob @plain", 0, NULL, NULL },
	{ "__complete ls --so", 0, "--sort=", NULL },
	{ "__complete ls --sort=", 0, "name|size|dtype", NULL },
	{ "__complete ls --sort=s", 0, "size", NULL },
	{ "__complete ls --sort s", 0, "size", NULL },
	{ "__complete ls -", 0, "--long|--json", NULL },
	{ "__complete ls --ignore", 0, "--ignore-ctime", NULL },
	{ "__complete ls --ignore_", 0, "--ignore_ctime", NULL },
	{ "__complete ls -o inc", 0, "include=", NULL },
	{ "__complete ls -o ignore_ctime,inc", 0, "ignore_ctime,include=", NULL },
	{ "__complete ls -o include=a\\,b,ind", 0, "index=", NULL },
	{ "__complete mount -o io=", 0, "auto|direct|cached", NULL },
	{ "__complete mount -o recipe=mega", 0, "megatron", NULL },
	{ "__complete ls @plain mod", 0,
	  "model.layers.0.w\nmodel.layers.1.w\nmodel.norm\nmodel.tok.weight", NULL },
	{ "__complete ls -o dtype=bf16 @plain model.n", 0, "model.norm", NULL },
	{ "__complete ls --sort size @plain model.n", 0, "model.norm", NULL },
	{ "__complete ls -- @plain model.n", 0, "model.norm", NULL },
	{ "__complete ls @plain '' model.n", 0, "model.norm", NULL },
	{ "__complete info @plain be", 0, "betas", NULL },
	{ "__complete cat @plain t", 0, "tensors/", NULL },
	{ "__complete cat @plain tensors/model.n", 0, "tensors/model.norm", NULL },
	{ "__complete cat @plain nosuch/model.n", 0, NULL, NULL },
	{ "__complete cat @plain tensors/step/x", 0, NULL, NULL },
	{ "__complete cat %/none tensors/", 0, NULL, NULL },
	{ "__complete cat --fqn @plain model.n", 0, "model.norm", NULL },
	{ "__complete head @plain model.n", 0, "model.norm", NULL },
	{ "__complete ls %/none mod", 0, NULL, NULL },
	{ "__complete ls @empty_metadata mod", 0, NULL, NULL },
	{ "__complete umount /", 0, "", NULL },
};

START_FEW_TEST(words_are_completed, ARRAY_LEN(completions), ARRAY_LEN(completions))
{
	must_be(&completions[_i]);
}
END_TEST

SUITE(commands, .setup = setup, .seconds = 60)
