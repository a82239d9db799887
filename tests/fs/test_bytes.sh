#!/bin/bash
# Every readable fixture, byte for byte, through every way of reading it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

readable() { expect fixtures dcp dcp-ranklocal; }
flags_for() { [[ -z $(expect incomplete "$1") ]] || echo "-oallow_missing"; }

cases_mount_shows_torch_s_bytes() { readable; }
test_mount_shows_torch_s_bytes() {
  # shellcheck disable=SC2046 # no word or one
  mount_at m "$(fixture "$1")/ckpt" $(flags_for "$1")
  expect tree "$1" m
}

cases_cat_writes_torch_s_bytes() { readable; }
test_cat_writes_torch_s_bytes() {
  local tensors objects
  expect paths "$1" >all
  grep -z '^tensors/' all >tensor_paths || true
  grep -z '^objects/' all >object_paths || true
  { read -r tensors && read -r objects; } < <(expect content "$1")
  if [[ -s tensor_paths ]]; then
    [[ $(xargs -0 "$CKPTFS" cat "$(fixture "$1")/ckpt" <tensor_paths | sha256sum) == "$tensors  -" ]] ||
      fail "tensors differ"
  fi
  if [[ -s object_paths ]]; then
    [[ $(xargs -0 "$CKPTFS" cat "$(fixture "$1")/ckpt" <object_paths | wc -c) == "$objects" ]] ||
      fail "objects differ"
  fi
}

cases_cat_fqn_writes_torch_s_bytes() { readable; }
test_cat_fqn_writes_torch_s_bytes() {
  expect fqns "$1" >all
  [[ $(xargs -0 "$CKPTFS" cat --fqn "$(fixture "$1")/ckpt" -- <all | sha256sum) == \
    "$(expect fqn-content "$1")  -" ]] || fail "tensors differ"
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
