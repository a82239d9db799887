#!/bin/bash
# Bringing files into the page cache.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

python() { PYTHONPATH=$HERE "$PYTHON" -B -S - "$@"; }

# read_all MOUNT FILE...: reads these files of a mount and prints how many requests that took
read_all() {
  python "$@" <<'END'
import sys
from stats import *
m, *files = sys.argv[1:]

def read():
    for name in files:
        open(f"{m}/{name}", "rb").read()

got = change(m, read)
assert got["requests.open"] == len(files), got
print(got.get("requests.read", 0))
END
}

# needs_no_daemon FUNCTION: whether FUNCTION MOUNT, which warms and reads, prints 0 requests. The kernel may reclaim
# clean pages at any time, so this is tried in up to ten rounds, each with a mount of its own.
needs_no_daemon() {
  local i
  for i in {0..9}; do
    "$1" "m$i" >requests
    [[ $(<requests) != 0 ]] || return 0
  done
  fail "$(<requests) requests after warm"
}

warm_a_file() {
  mount_at "$1" "$(big)/ckpt"
  ckptfs warm "$1/npy/v.npy" >out
  grep -qE '^warm: .*, 3\.0 MiB of 1 file in the mount: ' out || fail "$(cat out)"
  read_all "$1" npy/v.npy
  cmp <(tail -c 3179484 "$1/npy/v.npy") "$(big)/v.bin"
}
test_what_is_warm_is_read_without_the_daemon() { needs_no_daemon warm_a_file; }

warm_directories() {
  local files
  mount_at "$1" "$(zoo)"
  ckptfs warm "$1/npy" "$1/npy/" "$1/hf" >out
  mapfile -t files < <(cd "$1" && find npy hf -type f)
  ((${#files[@]} > 10))
  read_all "$1" "${files[@]}"
}
test_all_of_a_directory() { needs_no_daemon warm_directories; }

# sources MOUNT [options]: warms it; prints the bytes and the number of source files that were read
sources() { ckptfs warm "$@" | sed -nE 's/^warm: (.*) of ([0-9]+) source files?[,:].*/\1 \2/p'; }

test_sources_are_those_that_are_needed() {
  cd "$(big)" || exit
  is "32.0 MiB 2" "$(sources ckpt/tensors/w)"
  is "3.0 MiB 3" "$(sources ckpt/npy/v.npy)"
  is "35.0 MiB 5" "$(sources ckpt)"
  is "35.0 MiB 5" "$(sources ckpt/)"
  is "35.0 MiB 5" "$(sources ckpt/safetensors ckpt/tensors/v)"
  is "3.0 MiB 3" "$(sources ckpt/tensors --include=v)"
  is "0 B 0" "$(sources ckpt/.ckptfs)"
}

test_what_a_mount_leaves_out_is_not_read() {
  mkdir run
  big_copy run/step-1
  mount_at m "$(big)/ckpt" -o include=v
  is "3.0 MiB 3" "$(sources m)"
  is "3.0 MiB 3" "$(sources m/tensors)"
  mount_at m2 run -o exclude=w
  is "3.0 MiB 3" "$(sources m2)"
  is "3.0 MiB 3" "$(sources m2/step-1)"
  # Each mount has its own.
  mount_at m3 "$(big)/ckpt"
  is "35.0 MiB 5" "$(sources m3)"
  is "35.0 MiB 5" "$(sources m m3)"
}

test_a_rank_needs_its_part() {
  printf 'mesh dp=2\nw dp:0\n* dp:0\n' >layout
  is "16.0 MiB 1" "$(sources "$(big)/ckpt/ranks/00001/tensors/w" -o layout=layout)"
  # The mount knows where the layout is, even if `warm` runs in another directory.
  mount_at m "$(big)/ckpt" -o layout=layout
  mkdir elsewhere
  cd elsewhere
  is "16.0 MiB 1" "$(sources ../m/ranks/00001/tensors/w)"
}

test_a_whole_mount_is_its_sources() {
  mount_at m "$(big)/ckpt"
  ckptfs warm m >out
  grep -qE '^warm: 35\.0 MiB of 5 source files: ' out || fail "$(cat out)"
  python m <<'END'
import sys
from stats import *
m = sys.argv[1]
got = change(m, lambda: open(f"{m}/npy/v.npy", "rb").read())
assert got["requests.read"] > 0, got
END
}

test_runs() {
  mkdir run
  big_copy run/step-1
  old_copy "$(zoo)" run/step-2
  mount_at m run
  is "32.0 MiB 2" "$(sources m/step-1/tensors/w)"
  is "35.0 MiB 5" "$(sources m/step-1)"
  is "35.0 MiB 5" "$(sources run/step-1)"
  is "35.1 MiB" "$(sources m | sed 's/ [0-9]*$//')" # both checkpoints
  ! ckptfs warm m | grep 'in the mount' || fail "more than the data files was read"
}

# Warming must work for users of the mount who may not read the checkpoint.
warm_without_the_checkpoint() {
  big_copy c
  mount_at "$1" c
  mv c "of.$1"
  ckptfs warm "$1/npy/v.npy" >out 2>err
  grep -q 'warning: warm: read through the mount alone: ' err || fail "$(cat err)"
  grep -qE '^warm: 0 B of 0 source files, 3\.0 MiB of 1 file in the mount: ' out || fail "$(cat out)"
  read_all "$1" npy/v.npy
}
test_without_the_checkpoint_the_mount_is_read() { needs_no_daemon warm_without_the_checkpoint; }

test_one_bad_file_does_not_keep_the_others_cold() {
  big_copy c
  rm "$(find c -name '__w_0*')"
  mount_at m c -o allow_missing
  status_of 2 ckptfs warm m/npy
  grep -qE "^ckptfs: warm: .*'w'.* is missing" err || fail "$(cat err)"
  grep -qE '3\.0 MiB of 1 file in the mount' out || fail "$(cat out)"
}

test_refusals() {
  mkdir empty
  mount_at m "$(big)/ckpt"
  refused 'No such file' ckptfs warm m/tensors/absent
  refused 'no such file' ckptfs warm "$(big)/ckpt/tensors/absent"
  refused 'No such file' ckptfs warm absent/one
  refused 'checkpoint' ckptfs warm empty
  refused 'at most 64' ckptfs warm --jobs 65 m
  refused 'usage: ckptfs warm PATH' ckptfs warm
}

cases_any_number_of_jobs() { printf '%s\n' 1 2 7 64; }
test_any_number_of_jobs() {
  mount_at m "$(big)/ckpt"
  ckptfs warm --jobs "$1" m/npy >out
  grep -qE '^warm: .* 2 files in the mount' out || fail "$(cat out)"
  cmp <(tail -c 3179484 m/npy/v.npy) "$(big)/v.bin"
}

run_suite "$@"
