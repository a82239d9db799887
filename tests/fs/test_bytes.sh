#!/bin/bash
# Every readable fixture, byte for byte, through every way of reading it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

readable() { expect fixtures dcp dcp-ranklocal hf hyperparallel megatron megatron-zarr; }
flags_for() { [[ -z $(expect incomplete "$1") ]] || echo "-oallow_missing"; }

cases_mount_shows_torch_s_bytes() { readable; }
test_mount_shows_torch_s_bytes() {
  # shellcheck disable=SC2046 # no word or one
  mount_at m "$(fixture "$1")/ckpt" $(flags_for "$1")
  expect tree "$1" m
}

cases_cat_writes_torch_s_bytes() { readable; }
test_cat_writes_torch_s_bytes() {
  expect paths "$1" >all
  xargs -0 "$CKPTFS" cat "$(fixture "$1")/ckpt" <all | expect paths-stream "$1"
}

cases_cat_fqn_writes_torch_s_bytes() { readable; }
test_cat_fqn_writes_torch_s_bytes() {
  expect fqns "$1" >all
  xargs -0 "$CKPTFS" cat --fqn "$(fixture "$1")/ckpt" -- <all | expect fqns-stream "$1"
}

cases_ls_names_everything() { readable; }
test_ls_names_everything() {
  ckptfs ls --json "$(fixture "$1")/ckpt" | expect ls "$1"
}

cases_check_agrees() { readable; }
test_check_agrees() {
  local faulty
  faulty=$(expect incomplete "$1" | wc -l)
  status_of "$((faulty > 0))" ckptfs check --data "$(fixture "$1")/ckpt"
  [[ $(grep -c '^fault: ' out) -ge $faulty ]] || fail "$(cat out)"
}

run_suite "$@"
