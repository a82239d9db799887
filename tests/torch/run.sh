#!/bin/bash
# tests/torch/run.sh [SEED] [ROUNDS]
#
# Mounts checkpoints that real PyTorch has just written and compares every byte with what PyTorch
# loads. SEED (random when not given, always printed) decides everything about the checkpoints;
# ROUNDS runs use SEED, SEED+1, and so on. Then the stored checkpoints of tests/data are compared
# in the same way. Must be root, for the chroot that PyTorch lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$RANDOM}
rounds=${2:-1}
mnt=$tmp/mnt

# compare_case NAME CKPT EXPECTED: checks the mount, and then commands that need no mount.
compare_case() {
  local name=$1 ckpt=$2 expected=$3 line path sum
  if try "$name: mount" "$ckptfs" mount "$ckpt" "$mnt"; then
    counted "$name" timeout 300 python3 tests/torch/compare.py "$mnt" "$expected"
    unmount "$name" "$mnt"
  else
    detach_all
  fi
  try "$name: check --data" "$ckptfs" check --data "$ckpt" || true
  python3 tests/torch/compare.py --paths "$expected" >"$tmp/paths"
  shuf -n 5 --random-source=<(yes "$seed") "$tmp/paths" >"$tmp/some"
  while IFS= read -r line; do
    path=${line#* }
    sum=$(timeout 300 "$ckptfs" cat "$ckpt" "$path" 2>"$tmp/out" | sha256sum) || true
    if [ "${sum%% *}" = "${line%% *}" ]; then
      pass
    else
      fail "$name: cat $path: $(cat "$tmp/out")"
    fi
  done <"$tmp/some"
}

# is_simple EXPECTED: whether the checkpoint is complete, has one index, and needs no options.
is_simple() {
  python3 - "$1" <<'PYTHON'
import json, sys
e = json.load(open(sys.argv[1]))
sys.exit(e.get("format", "dcp") not in ("dcp", "torch.save") or "per_metadata" in e or any(
    t.get("complete") is False or "unsupported" in t for t in e["tensors"].values()))
PYTHON
}

# ckpt_of EXPECTED: the path of its checkpoint, relative to it.
ckpt_of() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get("ckpt", "ckpt"))' "$1"
}

mkdir "$mnt"

echo "seed $seed, $rounds round(s)"
for ((round = 0; round < rounds; round++)); do
  for script in save_random.py save_files.py; do
    mkdir "$tmp/round"
    if ! in_chroot python3 "/mnt/tests/$script" "$((seed + round))" /mnt/out/round \
      >"$tmp/saved" 2>&1; then
      fail "$script $((seed + round))"
      tail -n 40 "$tmp/saved" | sed 's/^/  /'
    else
      cat "$tmp/saved"
      for dir in "$tmp"/round/case*; do
        compare_case "$script $((seed + round)) ${dir##*/}" \
          "$dir/$(ckpt_of "$dir/expected.json")" "$dir/expected.json"
      done
    fi
    rm -rf "$tmp/round" "$tmp/cache"
  done
done

for expected in tests/data/*/expected.json; do
  if [ -e "$expected" ] && is_simple "$expected"; then
    dir=${expected%/*}
    compare_case "${dir##*/}" "$dir/$(ckpt_of "$expected")" "$expected"
  fi
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
