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
export LC_ALL=C # names are bytes
ckptfs=$(realpath "${CKPTFS:-build/release/ckptfs}")
seed=${1:-$RANDOM}
rounds=${2:-1}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptfs-torch.XXXXXX")
mnt=$tmp/mnt
export XDG_CACHE_HOME=$tmp/cache # chunk indexes
passed=0
failed=0

detach() {
  if mountpoint -q "$mnt"; then
    fusermount3 -u "$mnt" 2>/dev/null || umount -l "$mnt"
  fi
}

cleanup() {
  local status=$?
  detach || true
  rm -rf --one-file-system "$tmp"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

pass() { passed=$((passed + 1)); }

fail() {
  failed=$((failed + 1))
  echo "FAIL: $*"
}

# try WHAT COMMAND...: one check; the output is shown when it fails.
try() {
  local what=$1
  shift
  if timeout 300 "$@" >"$tmp/out" 2>&1; then
    pass
  else
    fail "$what: exit status $?"
    sed 's/^/  /' "$tmp/out"
    return 1
  fi
}

# compare_case NAME CKPT EXPECTED: the mount, then the commands that need none.
compare_case() {
  local name=$1 ckpt=$2 expected=$3 count line path sum
  if try "$name: mount" "$ckptfs" mount "$ckpt" "$mnt"; then
    timeout 300 python3 tests/torch/compare.py "$mnt" "$expected" >"$tmp/diff" 2>&1 || true
    count=$(tail -n 1 "$tmp/diff")
    if [[ $count =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
      passed=$((passed + BASH_REMATCH[1]))
      failed=$((failed + BASH_REMATCH[2]))
      if [ "${BASH_REMATCH[2]}" != 0 ]; then
        echo "FAIL: $name:"
        head -n 20 "$tmp/diff" | sed 's/^/  /'
      fi
    else
      fail "$name: compare.py stopped"
      sed 's/^/  /' "$tmp/diff"
    fi
    try "$name: umount" "$ckptfs" umount "$mnt" || true
    if mountpoint -q "$mnt"; then
      fail "$name: still mounted after umount"
      detach
    fi
  else
    detach
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

# Stored checkpoints that must be read without options: whole, and with one index.
is_simple() {
  python3 - "$1" <<'PYTHON'
import json, sys
e = json.load(open(sys.argv[1]))
sys.exit(e.get("format", "dcp") != "dcp" or "per_metadata" in e or any(
    t.get("complete") is False or "unsupported" in t for t in e["tensors"].values()))
PYTHON
}

[ "$(id -u)" = 0 ] || { echo "run.sh: must be root" >&2; exit 2; }
[ -x "$ckptfs" ] || { echo "run.sh: no program $ckptfs; run make first" >&2; exit 2; }
scripts/chroot.sh make
mkdir "$mnt"

echo "seed $seed, $rounds round(s)"
for ((round = 0; round < rounds; round++)); do
  mkdir "$tmp/round"
  if ! scripts/chroot.sh run --bind "$PWD/tests/torch:/mnt/tests" --bind "$tmp/round:/mnt/out" -- \
    python3 /mnt/tests/save_random.py "$((seed + round))" /mnt/out >"$tmp/saved" 2>&1; then
    fail "save_random.py $((seed + round))"
    tail -n 40 "$tmp/saved" | sed 's/^/  /'
  else
    cat "$tmp/saved"
    for dir in "$tmp"/round/case*; do
      compare_case "seed $((seed + round)) ${dir##*/}" "$dir/ckpt" "$dir/expected.json"
    done
  fi
  rm -rf "$tmp/round" "$tmp/cache"
done

for expected in tests/data/*/expected.json; do
  if [ -e "$expected" ] && is_simple "$expected"; then
    dir=${expected%/*}
    ckpt=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get("ckpt", "ckpt"))' \
      "$expected")
    compare_case "${dir##*/}" "$dir/$ckpt" "$expected"
  fi
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
