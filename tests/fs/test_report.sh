#!/bin/bash
# The page that `report` writes, in Chromium. Pictures of it stay in shots/ beside the program.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
browser=yes
long="many_alike a_hundred_thousand_tensors a_run a_long_run tensors_through_a_run axes_of_charts a_page_is_small \
  hostile_names repeated_layers what_a_recipe_makes values_are_those_of_stat what_is_incomplete \
  a_run_without_a_complete_checkpoint chunks_are_those_of_info"

SHOTS=${SHOTS-$(shots "$@")}
export SHOTS

# look WHAT ARGUMENT...: a function of report.py
look() {
  python3 "$HERE/report.py" "$CKPTFS" "$SHOTS" "$@"
}

test_a_checkpoint() {
  ckptfs report --quiet --stat "$(zoo)"
  look checkpoint report.html "$(zoo)"
}

# The page shows every chunk of every tensor, as `info` lists them.
cases_chunks_are_those_of_info() {
  printf '%s\n' mp4_mesh2d mp4_fsdp2_adamw mcore_gpt_moe shapes hp_a_collective ds_z1_fp32_w2 mp4_hf_sharded hole
}
test_chunks_are_those_of_info() {
  [[ -d $DATA/$1/ckpt ]] || skip "no fixture $1"
  ckptfs report -q --output=page.html "$DATA/$1/ckpt"
  look chunks page.html "$DATA/$1/ckpt"
}

test_values_are_those_of_stat() {
  ckptfs report -q --stat "$(zoo)"
  look values report.html "$(zoo)"
}

test_hostile_names() { look hostile; }

# Equal layers share a row; each can be chosen, and open rows stay open.
test_repeated_layers() { look layers; }

test_what_a_recipe_makes() {
  [[ -d $DATA/mcore_gpt_dense/ckpt ]] || skip "no fixture mcore_gpt_dense"
  mkdir config
  python3 -c 'import json, sys
json.dump(json.load(open(sys.argv[1]))["arch"] | {"model_type": "qwen3"}, sys.stdout)' \
    "$DATA/mcore_gpt_dense/expected_hf.json" >config/config.json
  ckptfs report -q -o recipe=megatron,assets=config "$DATA/mcore_gpt_dense/ckpt"
  look recipe report.html
}

make_many() { make_dcp --many 100000 ckpt; }
test_a_hundred_thousand_tensors() {
  local dir
  dir=$(once many100k make_many)/ckpt
  ckptfs report -q "$dir"
  (($(wc -c <report.html) <= 150 * 100000 + 102400))
  look many report.html
}

# Even if names, shapes and cuts have nothing in common.
test_a_page_is_small() {
  look random random.safetensors 20000
  ckptfs report -q --stat random.safetensors
  (($(wc -c <report.html) <= 150 * 20000 + 102400)) || fail "$(wc -c <report.html) bytes"
  look opens report.html
}

# More equal tensors than a function takes arguments, more chunks than a table shows at once.
test_many_alike() { look alike; }

test_a_run() {
  mkdir run
  cp -r "$(zoo)" run/step-1
  cp -r "$(zoo)" run/step-2
  cp -r "$(zoo)" run/step-10
  rm run/step-2/.metadata
  aged run
  ckptfs report -q --stat run
  look run report.html
  ckptfs report -q run step-1
  look opens report.html
}

# The page shows the history of every tensor of the latest checkpoint.
test_tensors_through_a_run() {
  python3 -c 'import struct
for i, v in enumerate([(1, 2, 2), (1, 2, 4), (1, float("nan"), 4), (0, 0, 0), (0, 1e-30, float("inf"))]):
    open(f"v{i}", "wb").write(struct.pack("<3f", *v))'
  mkdir run
  make_dcp run/step-9 w 3 1:v0 gone 3 1:v0 x.0 2x3 1x1
  make_dcp run/step-10 w 3 3:v1 x.0 2x3 1x1
  make_dcp run/step-11 w 3 1:v2
  make_dcp run/step-12 w 3x1 1x1:v2 x.0 2x3 1x1
  make_dcp run/step-13 w 3x1 1x1:v3 x.0 2x3 1x1 late 3 1:v0
  make_dcp run/step-14 w 3x1 1x1:v4 x.0 2x3 1x1 late 3 1:v1
  aged run
  ckptfs report -q --stat run
  look the_series report.html run
}

# Overwrites the tensors of a checkpoint with zeros, which no zip archive begins with.
unzipped() {
  local file size
  for file in "$1"/*.distcp; do
    size=$(stat -c %s "$file")
    truncate -s 0 "$file"
    truncate -s "$size" "$file"
  done
}

# What is not read is not called finite.
test_values_that_cannot_be_read() {
  local why="cannot be read: 'ckptfs stat' says why"
  [[ -d $DATA/hole/ckpt ]] || skip "no fixture hole"
  ckptfs report -q --stat "$DATA/hole/ckpt" 2>err
  is "ckptfs: warning: report: 3 of 13 tensors $why" "$(cat err)"
  look not_read report.html 'not known' '3 of 13 tensors could not be read; 0 NaN, 0 Inf in the others'
  python3 -c 'import struct
open("good", "wb").write(struct.pack("<2f", 1, 2))
open("bad", "wb").write(struct.pack("<2f", 1, float("nan")))'
  mkdir run
  make_dcp run/step-1 w 2 1:good x 2 1:bad
  cp -r run/step-1 run/step-2
  cp -r run/step-1 run/step-3
  unzipped run/step-2
  ckptfs report -q --stat run/step-2 2>err
  is "ckptfs: warning: report: 2 of 2 tensors $why" "$(cat err)"
  look not_read report.html 'not known' '2 of 2 tensors could not be read'
  aged run
  ckptfs report -q --stat run 2>err
  is "ckptfs: warning: report: tensors of 1 checkpoint $why" "$(cat err)"
  look not_read report.html 'not finite' '1 NaN, 0 Inf' $'1,0,0 \u2013,\u2013,2 1,0,0'
  unzipped run/step-3
  aged run
  ckptfs report -q --stat run 2>err
  is "ckptfs: warning: report: tensors of 2 checkpoints $why" "$(cat err)"
}

# The largest magnitude may be that of a negative element.
test_magnitudes_of_a_run() {
  local v
  mkdir run
  for v in -9 -11; do
    python3 -c 'import struct, sys
open("v", "wb").write(struct.pack("<4f", 1, 2, int(sys.argv[1]), 3))' "$v"
    make_dcp "run/step$v" w 4 1:v
  done
  aged run
  ckptfs report -q --stat run
  look magnitudes report.html
}

# Values that hardly change, and values that do not.
test_axes_of_charts() {
  local i
  mkdir run
  for i in 0 1 2; do
    python3 -c 'import array, sys
array.array("f", [1000 + 0.4 * int(sys.argv[1]), 500, 20]).tofile(open("v" + sys.argv[1], "wb"))' "$i"
    make_dcp "run/step-$i" w 3 "1:v$i"
  done
  aged run
  ckptfs report -q --stat run
  look axes report.html
}

# To keep the page small, only every second checkpoint of a long run is shown, or fewer.
test_a_long_run() {
  look long_run 500 60
  aged long
  ckptfs report -q --stat long
  (($(wc -c <report.html) <= 150 * (500 + 60) + 102400)) || fail "$(wc -c <report.html) bytes"
  look the_series report.html long
}

test_a_run_without_a_complete_checkpoint() {
  mkdir run
  cp -r "$(zoo)" run/step-1
  rm run/step-1/.metadata
  ckptfs report -q run
  look run_of_nothing report.html
}

test_what_is_incomplete() {
  copy_of mp4_mesh2d ck
  rm ck/__1_0.distcp
  ckptfs report -q ck
  look incomplete report.html
}

test_a_file_is_replaced() {
  local long page
  echo old >page.html
  chmod 600 page.html
  ckptfs report -q -o page.html "$(zoo)"
  is 600 "$(stat -c %a page.html)"
  (($(wc -c <page.html) > 10000))
  long=$(printf 'x%.0s' {1..250}).html
  ckptfs report -q -o "$long" "$(zoo)"
  [[ -s $long ]]
  rm "$long"
  mkdir sub
  ckptfs report -q --output=sub/page.html "$(zoo)"
  is page.html "$(entries sub)"
  # A write that fails leaves the old file, and nothing else.
  page=$(cksum <page.html)
  (ulimit -f 8 && refused 'File too large' ckptfs report --output=page.html "$(zoo)")
  is "$page" "$(cksum <page.html)"
  is '' "$(find . -name '.ckptfs-*')"
  # A link stays, and its target is replaced.
  mkdir far
  echo old >far/page.html
  ln -s far/page.html link.html
  ckptfs report -q --output=link.html "$(zoo)"
  is far/page.html "$(readlink link.html)"
  (($(wc -c <far/page.html) > 10000))
  is page.html "$(entries far)"
}

test_where_it_is_written() {
  ckptfs report "$(zoo)" 2>err >out
  [[ ! -s out ]]
  grep -qE '^report.html: [0-9.]+ KiB$' err
  ckptfs report -q -o page.html "$(zoo)" 2>err
  [[ ! -s err ]]
  ckptfs report -q --output=- "$(zoo)" >other.html
  # Only the time when it was made differs.
  is "$(wc -l <page.html)" "$(wc -l <other.html)"
  rm page.html
  (umask 027 && ckptfs report -q -o page.html "$(zoo)")
  is 640 "$(stat -c %a page.html)"
  (($(wc -c <page.html) > 10000))
  is 'err other.html out page.html report.html' "$(entries . | xargs -n 1 | sorted)"
  mkdir dir
  refused "'dir': a directory" ckptfs report --output=dir "$(zoo)"
  refused "'absent/page.html'.*No such file" ckptfs report --output=absent/page.html "$(zoo)"
  on_terminal "$CKPTFS" report --output=- "$(zoo)"
  is 2 "$(cat rc)"
  grep -q 'not for a terminal' out
  refused "unknown option 'x'" ckptfs report -o x=y.html "$(zoo)"
  if [[ -w /dev/full ]]; then
    refused 'No space left' ckptfs report --output=/dev/full "$(zoo)"
  fi
}

# The script is valid JavaScript, without errors that browsers would forgive.
test_the_script_is_sound() {
  ckptfs report -q "$(zoo)"
  look script report.html
}

run_suite "$@"
