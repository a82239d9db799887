#!/bin/bash
# tests/torch/fsdp.sh
#
# Reads per-rank FSDP checkpoints that real PyTorch has just written on four ranks (fsdp.py), and
# compares every tensor with what torch itself puts together. Must be root, for the chroot that PyTorch
# lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh

compare_cases fsdp.py
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
