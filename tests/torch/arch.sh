#!/bin/bash
# tests/torch/arch.sh [SEED]
#
# Tests the verdict on hf/ (ckptfs-info(1)) for models of every known family, whole and with a tensor missing,
# renamed, reshaped or added: it must say what transformers itself says when it loads them. SEED (random when
# not given, always printed) decides which tensor. Must be root, for the chroot that transformers
# lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}

echo "seed $seed"
if ! in_chroot python3 /mnt/tests/arch_models.py "$seed" /mnt/out/models >"$tmp/made" 2>&1; then
  fail "arch_models.py $seed"
  tail -n 40 "$tmp/made" | sed 's/^/  /'
else
  while IFS=$'\t' read -r name verdict; do
    said=$("$ckptfs" info "$tmp/models/$name" -o index=:memory: | sed -n 's|^serves  *hf/: ||p')
    # shellcheck disable=SC2053 # a pattern
    if [[ $said == $verdict ]]; then pass; else fail "$name: '$said' instead of '$verdict'"; fi
  done <"$tmp/models/expected"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
