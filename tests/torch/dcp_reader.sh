#!/bin/bash
# tests/torch/dcp_reader.sh [MIB]
#
# torch.distributed.checkpoint.load with the reader of the Python package, on four gloo ranks: what FSDP2 has saved from
# three meshes into the same three, as torch's own reader loads it; other formats into DTensors. With MIB, the time and
# memory of both for a checkpoint of that size instead. Must be root, for the chroot (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh

if [ -n "${1:-}" ]; then
  with_package dcp_reader.py time /mnt/out "$1" >/dev/null # it prints no count
  grep '^turn ' "$tmp/counted" || true
  if [ "$(grep -c '^turn ' "$tmp/counted")" != 6 ]; then # three turns of two readers
    tail -n 40 "$tmp/counted"
    exit 1
  fi
  exit 0
fi
with_package dcp_reader.py check /mnt/data /mnt/out

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
