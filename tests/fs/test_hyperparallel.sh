#!/bin/bash
# HyperParallel checkpoints: random ones of every generation, and containers that change or disappear.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# make_hp SEED GENERATION HOW: makes the checkpoint c, and puts its expected contents below want/
make_hp() { python3 "$HERE/make_hp.py" c want "$@"; }

same_as_wanted() {
  local kind
  rm -rf got
  for kind in tensors objects; do
    mkdir -p "got/$kind"
    [[ -z $(ls "want/$kind") ]] || ckptfs export -q c "$kind" "got/$kind/all"
    [[ ! -d got/$kind/all ]] || mv got/"$kind"/all/* "got/$kind/"
    rm -rf "got/$kind/all"
  done
  diff -r -x "*.json" -x not_shown want got # without *.json, made from the objects, and replicas that are not shown
}

cases_random_checkpoints_read_as_written() {
  local seed generation how
  for seed in 1 2 3; do
    for generation in A B C; do
      for how in collective nodedup ranklocal; do
        echo "$seed $generation $how"
      done
    done
  done
}
test_random_checkpoints_read_as_written() {
  make_hp "$@"
  ckptfs check --data c
  same_as_wanted
}

# The index says where in a container a tensor is, so a new container needs a new index.
test_a_container_written_anew_is_looked_into_again() {
  make_hp 2 B nodedup
  same_as_wanted
  python3 - c/_rank*_.safetensors <<'PY'
import json, struct, sys
for name in sys.argv[1:]:
    with open(name, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    text = data[8 : 8 + n] + b" " * 64
    with open(name, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data[8 + n :])
PY
  same_as_wanted
}

test_a_container_that_comes_late_is_noticed() {
  make_hp 3 B collective
  mkdir away
  mv c/_rank0_.safetensors away
  mkdir m
  refused "data file '_rank0_.safetensors' is missing" "$CKPTFS" mount c m
  status_of 1 ckptfs check c
  grep -qE "^fault: (.*: )?data file '_rank0_.safetensors' is missing$" out
  mv away/_rank0_.safetensors c
  same_as_wanted
}

test_a_mount_shows_them() {
  make_hp 2 A ranklocal
  mount_at m c
  diff -r want/tensors m/tensors
}

run_suite "$@"
