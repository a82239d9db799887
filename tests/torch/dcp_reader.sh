#!/bin/bash
# tests/torch/dcp_reader.sh [MIB]
#
# torch.distributed.checkpoint with the reader and the writer of the Python package, on four gloo ranks. What FSDP2
# saves from three meshes is loaded into each of them, with the same results as by torch's own reader; other formats are
# loaded into DTensors; what the writer saves is loaded by torch's own reader. With MIB, instead, the time and memory of
# both and of torch's own are measured for a checkpoint of that size. Must be root, for the chroot (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh

if [ -n "${1:-}" ]; then
  for script in dcp_reader.py dcp_writer.py; do
    with_package "$script" time /mnt/out "$1" >/dev/null # with "time" it prints no count of tests
    echo "${script%.py}:"
    grep '^turn ' "$tmp/counted" || true
    if [ "$(grep -c '^turn ' "$tmp/counted")" != 6 ]; then # three turns of two readers or writers
      tail -n 40 "$tmp/counted"
      exit 1
    fi
  done
  exit 0
fi
with_package dcp_reader.py check /mnt/data /mnt/out
mkdir "$tmp/written"
with_package dcp_writer.py check /mnt/out/written

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
