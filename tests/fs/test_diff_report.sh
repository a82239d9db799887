#!/bin/bash
# The page that `diff --report` writes, in Chromium. Pictures of it stay in shots/ beside the program.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
browser=yes
long="numbers_are_those_of_numpy layers extreme_numbers hostile_names equal_checkpoints \
  objects_and_what_cannot_be_read a_hundred_thousand_tensors"

SHOTS=${SHOTS-$(shots "$@")}
export SHOTS

# look WHAT ARGUMENT...: a function of diff_report.py
look() {
  PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$HERE/diff_report.py" "$CKPTFS" "$SHOTS" "$@"
}

# Checkpoints a/ and b/, with different tensors of the same names.
two() {
  printf '%012d' 1 >v
  make_dcp a model.w 3 1 optim.x 5 1
  make_dcp b model.w 3 1:v optim.x 5 1
}

test_numbers_are_those_of_numpy() { look numbers "${TEST_SEED:-$RANDOM}"; }
test_layers() { look layers; }
test_extreme_numbers() { look extremes; }
test_hostile_names() { look hostile; }

test_equal_checkpoints() {
  ckptfs diff -q --report=page.html "$(zoo)" "$(zoo)" >out
  is 0 $?
  look equal page.html
}

test_objects_and_what_cannot_be_read() {
  local at
  copy_of plain changed
  at=$(grep -obUaF run-a changed/__0_0.distcp) # the string in object `name`
  printf Z | dd of=changed/__0_0.distcp bs=1 seek="${at%%:*}" conv=notrunc status=none
  status_of 1 ckptfs diff -q --report=page.html "$DATA/plain/ckpt" changed
  look objects page.html
  copy_of mp4_mesh2d short
  rm short/__1_0.distcp
  status_of 2 ckptfs diff -q --report=page.html "$DATA/mp4_mesh2d/ckpt" short
  look unreadable page.html
}

test_the_model() {
  ckptfs reshard -q "$(zoo)" small --dtype=bf16 --exclude='optim.*'
  status_of 0 ckptfs diff -q --model --dtype=bf16 --report=page.html "$(zoo)" small
  look model page.html
}

make_many_a() { make_dcp --many 100000 ckpt; }
test_a_hundred_thousand_tensors() {
  local dir
  dir=$(once many100k make_many_a)/ckpt
  status_of 0 ckptfs diff -q --report=page.html "$dir" "$dir"
  (($(wc -c <page.html) <= 150 * 100000 + 204800))
  look many page.html
}

test_where_it_is_written() {
  two
  status_of 1 ckptfs diff --report=page.html a b
  is '1 equal, 1 differ, 0 only in A, 0 only in B' "$(cat out)"
  grep -qE '^page.html: [0-9.]+ KiB$' err
  status_of 1 ckptfs diff -q -o other.html a b
  [[ ! -s err ]]
  is "$(wc -l <page.html)" "$(wc -l <other.html)"
  status_of 1 ckptfs diff -q --report=- a b
  is "$(wc -l <page.html)" "$(wc -l <out)"
  status_of 1 ckptfs diff -q --report=page.html --json a b
  python3 -c 'import json
assert len(json.load(open("out"))["tensors"]) == 1'
  refused "options 'json' and 'report=-' both write to standard output" ckptfs diff --report=- --json a b
  mkdir dir
  refused "'dir': a directory" ckptfs diff --report=dir a b
  refused "'absent/page.html'.*No such file" ckptfs diff --report=absent/page.html a b
  ckptfs sum -q a >list
  refused 'leave out --values, --json and --report' ckptfs diff --report=page.html a list
  refused "option 'report' needs a value" ckptfs diff a b --report
  on_terminal "$CKPTFS" diff --report=- a b
  is 2 "$(cat rc)"
  grep -q 'not for a terminal' out
}

run_suite "$@"
