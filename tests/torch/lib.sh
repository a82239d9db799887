# shellcheck shell=bash
# lib.sh - shared by the scripts here; sourced from the repository's root.
#
# $ckptfs is the program, $tmp a directory that contains all mounts and is removed at the end.
# Checks are counted in $passed and $failed.

export LC_ALL=C # names are bytes
ckptfs=$(realpath "${CKPTFS:-build/release/ckptfs}")
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptfs-torch.XXXXXX")
export XDG_CACHE_HOME=$tmp/cache # chunk indexes
passed=0
failed=0

# detach_all: unmounts whatever is still mounted in $tmp.
detach_all() {
  local m
  awk -v d="$tmp/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | while read -r m; do
    fusermount3 -u "$m" 2>/dev/null || umount -l "$m"
  done
}

cleanup() {
  local status=$?
  detach_all || true
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

# try WHAT COMMAND...: one check; the output is shown if it fails.
try() {
  local what=$1
  shift
  if timeout 300 "$@" >"$tmp/out" 2>&1; then
    pass
  else
    fail "$what: exit status $?"
    head -n 40 "$tmp/out" | sed 's/^/  /'
    return 1
  fi
}

# unmount NAME DIR: one check.
unmount() {
  try "$1: umount" "$ckptfs" umount "$2" || true
  if mountpoint -q "$2"; then
    fail "$1: still mounted after umount"
    fusermount3 -u "$2" 2>/dev/null || umount -l "$2"
  fi
}

# counted NAME COMMAND...: adds the numbers of its last line, "N passed, M failed", to the counts.
counted() {
  local name=$1
  shift
  "$@" >"$tmp/counted" 2>&1 || true
  if [[ $(tail -n 1 "$tmp/counted") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    [ "${BASH_REMATCH[2]}" = 0 ] && return 0
    echo "FAIL: $name:"
    head -n 20 "$tmp/counted" | sed 's/^/  /'
  else
    fail "$name: stopped"
    tail -n 40 "$tmp/counted" | sed 's/^/  /'
  fi
}

# in_chroot COMMAND...: runs it in the chroot with PyTorch, with this directory at /mnt/tests and $tmp at /mnt/out.
in_chroot() {
  timeout 900 scripts/chroot.sh run --bind "$PWD/tests/torch:/mnt/tests" --bind "$tmp:/mnt/out" -- "$@"
}

# with_package SCRIPT ARG...: runs it in the chroot, with the Python package, this build's library and tests/data at
# /mnt/data, and counts its checks.
with_package() {
  mkdir -p "$tmp/lib"
  cp "$(dirname "$ckptfs")"/libckpt.so.* "$tmp/lib/"
  counted "$1" timeout 900 scripts/chroot.sh run --bind "$PWD/tests/torch:/mnt/tests" \
    --bind "$PWD/tests/data:/mnt/data" --bind "$PWD/scripts/python:/mnt/scripts" --bind "$tmp:/mnt/out" -- \
    env LD_LIBRARY_PATH=/mnt/out/lib PYTHONPATH=/mnt/scripts XDG_CACHE_HOME=/mnt/out/cache \
    python3 "/mnt/tests/$1" "${@:2}"
}

# compare_cases SCRIPT: mounts and compares the cases that it saves, each in a directory CASE/.
compare_cases() {
  local script=$1 case name mnt=$tmp/mnt
  mkdir "$mnt"
  if ! in_chroot python3 "/mnt/tests/$script" /mnt/out/saved >"$tmp/log" 2>&1; then
    fail "$script"
    tail -n 40 "$tmp/log" | sed 's/^/  /'
  fi
  for case in "$tmp"/saved/*; do
    name=${case##*/}
    if try "$name: mount" "$ckptfs" mount "$case/ckpt" "$mnt"; then
      counted "$name" timeout 300 python3 tests/torch/compare.py "$mnt" "$case/expected.json"
      unmount "$name" "$mnt"
    else
      detach_all
    fi
    try "$name: check --data" "$ckptfs" check --data "$case/ckpt" || true
  done
}

[ "$(id -u)" = 0 ] || { echo "${0##*/}: must be root" >&2; exit 2; }
[ -x "$ckptfs" ] || { echo "${0##*/}: no program $ckptfs; run make first" >&2; exit 2; }
scripts/chroot.sh make
