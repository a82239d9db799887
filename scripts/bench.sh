#!/bin/bash
# bench.sh - what ckptfs costs, next to what a user would use instead. See bench.py for the cases.
#
# Needs root and the chroot with PyTorch (scripts/chroot.sh makes it) for generating .metadata files
# and for Python's pickle.load of them. Data goes to $BENCH_DIR (default build/bench, 0.4 GB) and
# is kept. Results: a table on stdout, build/bench/results.json.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${BENCH_DIR:-build/bench}
mkdir -p "$dir"
dir=$(realpath "$dir")
make --no-print-directory build/release/bench_plan >/dev/null

if [ "$(id -u)" != 0 ]; then
  echo "bench.sh: not root, so no chroot with PyTorch: only the cases without it" >&2
else
  scripts/chroot.sh make >&2
  while read -r name tensors chunks; do
    [ -e "$dir/$name/.metadata" ] && continue
    scripts/chroot.sh run --bind "$PWD/scripts:/mnt/scripts" --bind "$dir:/mnt/bench" -- \
      python3 /mnt/scripts/bench_metadata.py gen "$tensors" "$chunks" "/mnt/bench/$name.tmp" >&2
    mv "$dir/$name.tmp" "$dir/$name"
  done <<-CASES
	0.4M 3000 128
	1.3M 20000 64
	CASES
fi
exec python3 scripts/bench.py "$dir"
