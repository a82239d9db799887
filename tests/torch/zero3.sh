#!/bin/bash
# tests/torch/zero3.sh [SEED]
#
# ZeRO-3 checkpoints of random Hugging Face models, with tied and frozen parameters (zero3.py): transformers loads
# hf/ of their mounts with no key missing or unexpected, and equal logits. SEED (random when not given, always
# printed) decides everything. Must be root, for the chroot that transformers lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
names=()

echo "seed $seed"
if ! in_chroot python3 /mnt/tests/zero3.py make "$seed" /mnt/out/models >"$tmp/made" 2>&1; then
  fail "zero3.py make $seed"
  tail -n 40 "$tmp/made" | sed 's/^/  /'
else
  for dir in "$tmp"/models/*; do
    names+=("${dir##*/}")
    mkdir -p "$tmp/mnt/${dir##*/}"
    try "${dir##*/}: mount" "$ckptfs" mount "$dir/ckpt" "$tmp/mnt/${dir##*/}" -o "assets=$dir/hf,strict" || true
  done
  counted "transformers" in_chroot python3 /mnt/tests/zero3.py check /mnt/out/models /mnt/out/mnt
fi
for name in "${names[@]}"; do unmount "$name" "$tmp/mnt/$name"; done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
