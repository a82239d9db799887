#!/bin/bash
# bench.sh - what ckptfs costs, next to what a user would use instead. See bench.py for the cases, and
# bench_reshard.py for one that takes minutes.
#
# Needs root and the chroot with PyTorch (scripts/chroot.sh makes it) for generating checkpoints and
# for doing with them what ckptfs does. Data goes to $BENCH_DIR (default build/bench, 3 GB and 3 more
# for a while) and is kept. Results: tables on stdout, results.json and reshard.json in there.
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
python3 scripts/bench.py "$dir"
if [ "$(id -u)" = 0 ]; then python3 scripts/bench_reshard.py "$dir"; fi
