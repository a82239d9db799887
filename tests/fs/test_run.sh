#!/bin/bash
# Runs: directories in which checkpoints come and go.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="nothing_wrong_is_ever_read_while_others_save new_ones_appear_and_removed_ones_vanish \
  many_checkpoints_cost_nothing_until_they_are_entered a_checkpoint_of_a_run_has_three_names an_empty_run_fills_up"

# template N: checkpoints with the same names, shapes and sizes but different contents; each is made once
template() {
  local dir=$SCRATCH/run-templates/$1
  if [[ ! -e $dir.done ]]; then
    mkdir -p "$SCRATCH/run-templates"
    head -c $((512 * 300 * 4)) /dev/urandom >"$dir.w.bin"
    head -c $((40 * 7 * 4)) /dev/urandom >"$dir.v.bin"
    make_dcp "$dir" w 512x300 "2x2:$dir.w.bin" v 40x7 "3x1:$dir.v.bin" >&2
    touch "$dir.done"
  fi
  echo "$dir"
}
# saved TEMPLATE NAME: saves a checkpoint as frameworks do it, the data first
saved() {
  save_data "$@"
  save_metadata "$@"
}
save_data() {
  mkdir -p "run/$2"
  cp "$(template "$1")"/*.distcp "run/$2"
}
save_metadata() {
  cp "$(template "$1")/.metadata" "run/$2/.metadata.tmp"
  mv "run/$2/.metadata.tmp" "run/$2/.metadata"
}
holds() { cmp "m/$2/tensors/w" "$(template "$1").w.bin"; }
latest_is() { [[ $(readlink m/latest) == "$1" ]]; }
shows() { [[ $(entries m | tr ' ' '\n' | sorted) == "$1" ]]; }

test_checkpoints_are_directories() {
  saved 1 step-1
  saved 2 step-20
  saved 3 step-3
  mkdir run/logs
  cp -r run/step-3 run/step-30
  rm run/step-30/.metadata
  mount_at m run
  shows ".ckptfs latest step-1 step-20 step-3" || fail "$(entries m)"
  is step-20 "$(readlink m/latest)"
  holds 1 step-1
  holds 2 step-20
  holds 3 step-3
  holds 2 latest
  is "$(ckptfs info run --json | tr -d '\n')" "$(tr -d '\n' <m/.ckptfs/info.json)"
  ckptfs cat run/step-3 hf/model.safetensors | cmp - m/step-3/hf/model.safetensors
  is "float32" "$(getfattr --only-values -n user.ckptfs.dtype m/step-1/tensors/w)"
  [[ ! -e m/step-30 && ! -e m/logs ]]
  find m -type f -exec cat {} + >/dev/null
  is $((4 * 8 + 1)) "$(find -L m -type f | wc -l)"
}

test_new_ones_appear_and_removed_ones_vanish() {
  saved 1 step-1
  mount_at m run
  holds 1 step-1
  [[ ! -e m/step-2 ]]
  save_data 2 step-2
  sleep 1.2
  [[ ! -e m/step-2 ]]
  save_metadata 2 step-2
  wait_until test -e m/step-2
  holds 2 step-2
  wait_until latest_is step-2 || is step-2 "$(readlink m/latest)"
  wait_until shows ".ckptfs latest step-1 step-2"
  rm -r run/step-1
  wait_until shows ".ckptfs latest step-2"
  wait_until test ! -e m/step-1
  mv run/step-2 run/step-7
  wait_until shows ".ckptfs latest step-7"
  holds 2 step-7
  is step-7 "$(readlink m/latest)"
}

# removed DIR: removes a checkpoint of which the mount or its readers may have files open
removed() { rm -r "$1" 2>err || { keeps_names && mv "$1" gone; } || fail "$(cat err)"; }

# The daemon closes files that nobody uses, even if nobody looks at the mount.
test_a_removed_checkpoint_gives_its_space_back() {
  local pid
  saved 1 step-1
  saved 2 step-2
  mount_at m run
  pid=$(daemon_of m)
  holds 1 step-1
  wait_until lets_go "$pid"
  rm -r run/step-1
  holds 2 step-2
}
lets_go() {
  local f
  for f in "/proc/$1/fd"/*; do
    [[ $(readlink "$f") != *.distcp* ]] || return 1
  done
}

test_what_is_saved_again_has_its_new_content() {
  local before
  saved 1 step-1
  mount_at m run
  holds 1 step-1
  before=$(stat -c %i m/step-1/tensors/w)
  exec 5<m/step-1/tensors/w
  sleep 0.1
  removed run/step-1
  saved 2 step-1
  wait_until holds 2 step-1 2>/dev/null || fail "the old content is still there"
  [[ $(stat -c %i m/step-1/tensors/w) != "$before" ]]
  # A descriptor of the old file gives the old bytes, or an error.
  cmp - "$(template 1).w.bin" <&5 2>err || grep -q 'Input/output error' err || fail "$(cat err)"
  exec 5<&-
}

test_options_hold_for_each_checkpoint() {
  saved 1 step-1
  saved 2 step-2
  echo '{"model_type": "x"}' >config.json
  mkdir assets
  mv config.json assets
  mount_at m run -o dtype=bf16,include=w,assets=assets
  is "w" "$(entries m/step-1/tensors)"
  is 307200 "$(stat -c %s m/step-2/tensors/w)"
  cmp assets/config.json m/step-2/hf/config.json
  refused "option 'dtype'" ckptfs mount run assets -o dtype=bf15
  refused 'it is in the run' ckptfs mount run run/step-1
  mkdir run/mnt
  refused 'it is in the run' ckptfs mount run run/mnt
  refused "option 'index'" ckptfs mount run assets -o index="$T/x"
}

test_commands_know_runs() {
  local words='it is a run with 2 checkpoints; name one, as in .*/run/step-2'
  saved 1 step-1
  saved 2 step-2
  cp -r run/step-1 run/step-3
  rm run/step-3/.metadata
  is "step-1 step-2" "$(ckptfs ls run | xargs)"
  is "step-2" "$(ckptfs ls run '*2')"
  status_of 1 ckptfs ls run nothing
  is "incomplete step-3" "$(ckptfs ls -l run '*3' | cut -d'(' -f1 | xargs)"
  is "complete step-2 (latest)" "$(ckptfs ls -l run '*2' | xargs)"
  is "v w" "$(ckptfs ls run/step-1 | xargs)"
  ckptfs ls --json run | "$PYTHON" -c 'import json, sys; assert len(json.load(sys.stdin)) == 3'
  ckptfs info run | grep -x 'latest      step-2' >/dev/null
  ckptfs info run | grep '^  step-3: .metadata is missing' >/dev/null
  ckptfs cat run step-1/tensors/w step-2/tensors/v >out
  cat "$(template 1).w.bin" "$(template 2).v.bin" | cmp - out
  ckptfs cat run latest/tensors/w | cmp - "$(template 2).w.bin"
  ckptfs export run latest/tensors t
  cmp t/w "$(template 2).w.bin"
  refused 'has to begin with one of its checkpoints' ckptfs export run . t2
  refused "'step-3' is not complete" ckptfs cat run step-3/tensors/w
  refused "$words" ckptfs check run
  refused "$words" ckptfs diff run run/step-1
  refused "$words" ckptfs index run
  refused "$words" ckptfs info run w
  refused "$words" ckptfs cat --fqn run w
  ckptfs diff run/step-1 run/step-1
}

test_a_checkpoint_of_a_run_has_three_names() {
  local as
  saved 1 step-1
  saved 2 step-2
  mkdir m
  for as in run/step-2 "run step-2" run/latest "run latest"; do
    # shellcheck disable=SC2086 # one word or two
    {
      is "v w" "$(ckptfs ls $as | xargs)"
      status_of 0 ckptfs info $as
      grep -qx 'format      dcp' out || fail "$(cat out)"
      ckptfs cat $as tensors/w | cmp - "$(template 2).w.bin"
      ckptfs check $as >out
      ckptfs diff $as run step-2 >out
      status_of 1 ckptfs diff run step-1 $as
      ckptfs index $as >out
      ckptfs warm $as >out
      rm -rf o r
      ckptfs export $as tensors o
      cmp o/w "$(template 2).w.bin"
      ckptfs reshard -q $as r
      ckptfs mount $as m
      cmp m/tensors/w "$(template 2).w.bin"
      ckptfs umount m
    }
  done
  status_of 1 ckptfs diff run step-1 step-2
  ckptfs diff run step-2 latest
  refused "there is no such file or checkpoint; did you mean 'step-2'" ckptfs info run/step-22
  refused "did you mean 'step-1' or 'step-2'" ckptfs cat run step-3/tensors/w
  # The name of a checkpoint of the run is also a path here.
  mkdir step-1
  ckptfs mount run step-1
  is ".ckptfs latest step-1 step-2" "$(entries step-1)"
  ckptfs umount step-1
}

test_one_that_cannot_be_opened_leaves_the_rest_alone() {
  local pid i
  saved 1 step-1
  saved 2 step-2
  rm run/step-2/__v_0.distcp
  mkdir m
  "$CKPTFS" mount -f run m 2>log &
  pid=$!
  wait_until is_mounted m
  [[ -d m/step-2 ]]
  for i in 1 2 3; do
    try_eio ls m/step-2
    try_eio cat m/step-2/tensors/w
  done
  holds 1 step-1
  grep -q "data file '__v_0.distcp' is missing" m/.ckptfs/info.json
  ckptfs umount m
  wait "$pid"
  [[ $(grep -cv 'a part of the sandbox is missing' log) == 1 ]] || fail "$(cat log)"
  grep -q "^ckptfs: open '/step-2': checkpoint .*data file '__v_0.distcp' is missing" log || fail "$(cat log)"
}

# Programs that copy take .metadata first, as its name comes first.
test_latest_stays_until_a_copy_is_complete() {
  saved 1 step-1
  mount_at m run
  holds 1 latest
  mkdir run/step-2
  cp -p "$(template 2)/.metadata" run/step-2
  wait_until test -e m/step-2
  is step-1 "$(readlink m/latest)"
  holds 1 latest
  ckptfs cat run/latest tensors/w | cmp - "$(template 1).w.bin"
  ckptfs info run | grep -x 'latest      step-1' >/dev/null
  is "complete step-1 (latest)" "$(ckptfs ls -l run '*1' | xargs)"
  cp -p "$(template 2)"/*.distcp run/step-2
  wait_until latest_is step-2
  holds 2 latest
}

test_a_signal_ends_it_whatever_is_open() {
  local pid
  saved 1 step-1
  saved 2 step-2
  mount_at m run
  exec 5<m/step-1/tensors/w 6<m/step-2/hf/model.safetensors 7<m/.ckptfs/info.json
  removed run/step-2
  pid=$(daemon_of m)
  kill "$pid"
  wait_until gone "$pid"
  wait_until unmounted m
  exec 5<&- 6<&- 7<&-
}

test_an_empty_run_fills_up() {
  save_data 1 step-1
  mount_at m run
  shows ".ckptfs"
  save_metadata 1 step-1
  wait_until test -e m/step-1
  holds 1 latest
  removed run/step-1
  wait_until shows ".ckptfs"
}

test_nothing_wrong_is_ever_read_while_others_save() {
  mkdir run m
  saved 1 step-0
  mount_at m run
  local seconds=2
  ! is_full || seconds=10
  "$PYTHON" -S -E "$HERE/run_stress.py" run m "${STRESS_SECONDS:-$seconds}" "$(template 1)" "$(template 2)" \
    "$(template 3)" || fail "see above"
  [[ -n $(daemon_of m) ]]
}

test_many_checkpoints_cost_nothing_until_they_are_entered() {
  local i start end one many first
  saved 1 step-1
  first=$PWD/run/step-1
  mount_at m run
  ls -l m >/dev/null
  one=$(rss "$(daemon_of m)")
  ckptfs umount m
  python3 - "$first" <<'END'
import os, sys
first = sys.argv[1]
files = [f for f in os.listdir(first) if f == ".metadata" or f.endswith(".distcp")]
for i in range(2, 2001):
    os.mkdir(f"run/step-{i}")
    for f in files:
        os.link(f"{first}/{f}", f"run/step-{i}/{f}")
END
  start=$(date +%s%N)
  mount_at m run
  end=$(date +%s%N)
  is 2002 "$(find m -mindepth 1 -maxdepth 1 -printf '%y %s\n' | grep -c '^[dl]')"
  many=$(rss "$(daemon_of m)")
  echo "mounted in $(((end - start) / 1000000)) ms; RSS $one KiB with 1, $many KiB with 2000"
  if [[ ${VARIANT:-release} == release ]]; then
    ((many - one < 4096)) || fail "$((many - one)) KiB more"
  fi
  is step-2000 "$(readlink m/latest)"
  holds 1 step-1234
  for ((i = 1; i <= 60; i++)); do holds 1 "step-$i"; done
  if [[ ${VARIANT:-release} == release ]]; then
    (($(rss "$(daemon_of m)") - many < 65536)) || fail "$(rss "$(daemon_of m)") KiB after 60"
  fi
}
rss() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }

test_recipe_file_is_found_from_where_the_command_was_given() {
  mkdir run
  big_copy run/step-1
  echo 'v.weight = v [1023, 777]' >own.recipe
  mount_at m run -o recipe=own.recipe
  expect_v() { python3 -c 'import sys
head = int.from_bytes(open(sys.argv[1], "rb").read(8), "little")
assert open(sys.argv[1], "rb").read().endswith(open(sys.argv[2], "rb").read())' "$@"; }
  expect_v m/step-1/hf/model.safetensors "$(big)/v.bin"
}

run_suite "$@"
