#!/bin/bash
# tests/torch/dequant.sh [SEED]
#
# Quantised checkpoints of random codes, with -o dequantize=bf16, fp16 and fp32: every weight must have the bits that
# torch, transformers or compressed-tensors compute (dequant.py); for GGUF files, libggml (dequant_gguf.py); for tensor
# subclasses, the formulas of torchao and Transformer Engine (dequant_subclasses.py). Tensors are read in one piece, and
# hf/ is read through a mount. SEED (random when empty) decides. Must be root, for the chroot (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed $seed"

mkdir "$tmp/made" "$tmp/got" "$tmp/mnt"
if ! in_chroot python3 /mnt/tests/dequant.py make "$seed" /mnt/out/made >"$tmp/log" 2>&1; then
  fail "dequant.py make"
  tail -n 20 "$tmp/log" | sed 's/^/  /'
fi
if ! in_chroot python3 /mnt/tests/dequant_gguf.py "$seed" /mnt/out/made >"$tmp/log" 2>&1; then
  fail "dequant_gguf.py"
  tail -n 20 "$tmp/log" | sed 's/^/  /'
fi
if ! in_chroot python3 /mnt/tests/dequant_subclasses.py "$seed" /mnt/out/made >"$tmp/log" 2>&1; then
  fail "dequant_subclasses.py"
  tail -n 20 "$tmp/log" | sed 's/^/  /'
fi
for case in "$tmp"/made/*; do
  name=${case##*/}
  for dtype in bf16 fp16 fp32; do
    mkdir -p "$tmp/got/$name/$dtype"
    try "$name: mount" "$ckptfs" mount "$case/ckpt" "$tmp/mnt" -o dequantize="$dtype" || continue
    try "$name: tensors" cp -r "$tmp/mnt/tensors/." "$tmp/got/$name/$dtype/" || true
    if [ -e "$case/ckpt/config.json" ]; then
      # shellcheck disable=SC2016 # expanded by the inner shell
      try "$name: config.json" sh -c '! grep quantization_config "$1/hf/config.json"' sh "$tmp/mnt" || true
      try "$name: config.json is JSON" python3 -m json.tool "$tmp/mnt/hf/config.json" || true
    fi
    unmount "$name" "$tmp/mnt"
  done
  try "$name: check --data" "$ckptfs" check --data "$case/ckpt" || true
done
counted "dequant.py check" in_chroot python3 /mnt/tests/dequant.py check /mnt/out/made /mnt/out/got

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
