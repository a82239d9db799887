#!/bin/bash
# tests/torch/kinds.sh
#
# Reads files of torch.save that real PyTorch has just written (save_kinds.py), with all kinds of values
# other than plain tensors, and compares them with what torch itself loads. Must be root, for the chroot
# that PyTorch lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh

compare_cases save_kinds.py
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
