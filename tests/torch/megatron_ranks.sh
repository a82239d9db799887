#!/bin/bash
# tests/torch/megatron_ranks.sh [SEEDS]
#
# Reads checkpoints of Megatron-LM's format `torch` that real PyTorch has just written from random models
# (megatron_ranks.py), and compares every tensor with the model. Must be root, for the chroot that PyTorch
# lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
mnt=$tmp/mnt
mkdir "$mnt"

if ! in_chroot python3 /mnt/tests/megatron_ranks.py /mnt/out/saved "${1:-6}" >"$tmp/log" 2>&1; then
  fail "megatron_ranks.py"
  tail -n 40 "$tmp/log" | sed 's/^/  /'
fi
for case in "$tmp"/saved/*; do
  name=${case##*/}
  if try "$name: mount" "$ckptfs" mount "$case/ckpt" "$mnt"; then
    counted "$name" timeout 300 python3 tests/torch/compare.py "$mnt" "$case/expected.json" || true
    unmount "$name" "$mnt"
  else
    detach_all
  fi
  try "$name: check --data" "$ckptfs" check --data "$case/ckpt" || true
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
