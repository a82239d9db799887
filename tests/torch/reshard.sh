#!/bin/bash
# tests/torch/reshard.sh [SEED] [ROUNDS]
#
# Reshards random checkpoints that real PyTorch has just written, and has PyTorch and safetensors load
# the results; see reshard_jobs.py and load_reshard.py. SEED (random when not given, always
# printed) decides everything; ROUNDS runs use SEED, SEED+1, and so on. Must be root, for the chroot
# that PyTorch lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
rounds=${2:-1}
mnt=$tmp/mnt
mkdir "$mnt"

# mounted NAME CKPT EXPECTED: a mount of it must show what torch has put into its source.
mounted() {
  if try "$1: mount" "$ckptfs" mount "$2" "$mnt"; then
    counted "$1" timeout 300 python3 tests/torch/compare.py "$mnt" "$3"
    unmount "$1" "$mnt"
  else
    detach_all
  fi
  try "$1: check --data" "$ckptfs" check --data "$2" || true
}

# round SEED: save, reshard, check mounts of the results, load.
round() {
  local dir=$tmp/round case name
  mkdir "$dir"
  if ! in_chroot python3 /mnt/tests/save_random.py "$1" /mnt/out/round >"$tmp/saved" 2>&1; then
    fail "save_random.py $1"
    tail -n 40 "$tmp/saved" | sed 's/^/  /'
    return
  fi
  cat "$tmp/saved"
  counted "seed $1: reshard" python3 tests/torch/reshard_jobs.py "$1" "$dir" "$ckptfs"
  for case in "$dir"/case*; do
    for name in rows mesh; do
      mounted "seed $1: ${case##*/}/$name" "$case/$name" "$case/expected.json"
    done
  done
  counted "seed $1: load" in_chroot python3 /mnt/tests/load_reshard.py "$1" /mnt/out/round
  rm -rf "$dir" "$tmp/cache"
}

echo "seed $seed, $rounds round(s)"
for ((i = 0; i < rounds; i++)); do round $((seed + i)); done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
