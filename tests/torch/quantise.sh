#!/bin/bash
# tests/torch/quantise.sh [SEED]
#
# quantize=: hf/ must have the codes and scales that compressed-tensors and transformers compute from the same random
# weights, and transformers must open it (quantise.py). SEED (random when empty) decides. Must be root, for the chroot
# (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed $seed"

mkdir "$tmp/made" "$tmp/got" "$tmp/mnt"
if ! in_chroot python3 /mnt/tests/quantise.py make "$seed" /mnt/out/made >"$tmp/log" 2>&1; then
  fail "quantise.py make"
  tail -n 20 "$tmp/log" | sed 's/^/  /'
fi
for case in "$tmp"/made/*; do
  name=${case##*/}
  for kind in fp8_dynamic fp8_block; do
    mkdir -p "$tmp/got/$name/$kind"
    try "$name: mount" "$ckptfs" mount "$case/ckpt" "$tmp/mnt" -o quantize="$kind" || continue
    try "$name: hf" cp -r "$tmp/mnt/hf/." "$tmp/got/$name/$kind/" || true
    unmount "$name" "$tmp/mnt"
  done
done
counted "quantise.py check" in_chroot python3 /mnt/tests/quantise.py check /mnt/out/made /mnt/out/got
counted "quantise.py load" in_chroot python3 /mnt/tests/quantise.py load /mnt/out/made /mnt/out/got

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
