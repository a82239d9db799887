#!/bin/bash
# tests/torch/merge.sh [SEED]
#
# Runs are averaged and LoRA adapters merged while they are read: every tensor must have the bits that torch computes
# (merge.py). SEED (random when empty) decides. Must be root, for the chroot (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed $seed"

mkdir "$tmp/made" "$tmp/got" "$tmp/mnt"
if ! in_chroot python3 /mnt/tests/merge.py make "$seed" /mnt/out/made >"$tmp/log" 2>&1; then
  fail "merge.py make"
fi
tail -n 40 "$tmp/log" | sed 's/^/  /'
for case in "$tmp"/made/*; do
  name=${case##*/}
  { read -r where && read -r words; } <"$case/options"
  try "$name: mount" "$ckptfs" mount "$case/$where" "$tmp/mnt" -o "${words//@/$case}" || continue
  try "$name: tensors" cp -r "$tmp/mnt/tensors/." "$tmp/got/$name/" || true
  [[ ! -e $case/model ]] || try "$name: hf" cp -r "$tmp/mnt/hf" "$tmp/got/$name.hf" || true
  unmount "$name" "$tmp/mnt"
done
counted "merge.py check" in_chroot python3 /mnt/tests/merge.py check /mnt/out/made /mnt/out/got

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
