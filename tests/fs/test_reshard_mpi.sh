#!/bin/bash
# reshard by processes that mpirun starts. Only for programs built with MPI=1; for others this has no tests.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

if ! ldd "$CKPTFS" | grep libmpi >/dev/null; then exit 0; fi

# by_ranks N ARG...: reshard on N processes.
by_ranks() {
  local n=$1
  shift
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    timeout 250 mpirun --oversubscribe -n "$n" "$CKPTFS" reshard -q --index=:memory: "$@"
}

# failed WORDS COMMAND...: it fails, but not by the time limit, with one line of ours, and leaves nothing
failed() {
  local words=$1 rc=0
  shift
  "$@" >out 2>err </dev/null || rc=$?
  ((rc != 0 && rc != 124)) || fail "exit status $rc: $(cat err)"
  is 1 "$(grep -c '^ckptfs: ' err)"
  grep -qE -- "^ckptfs: .*$words" err || fail "'$words' is not in: $(cat err)"
  [[ -z $(find . -name '*.partial*') ]] || fail "$(find . -name '*.partial*')"
}

cases_four_processes_write_what_four_threads_write() {
  printf '%s\n' "" "--zstd --threads=2" "--file-per-item" "--format=hyperparallel" \
    "--format=safetensors --shard-size=2000" "--layout=mesh --save-to-lowest-rank" \
    "--layout=mesh --format=safetensors"
}
test_four_processes_write_what_four_threads_write() {
  local src
  src=$(zoo)
  printf 'mesh dp=2 tp=2\n*.q.weight tp:1 dp:0\n*.wide tp:-1\n' >mesh
  by_ranks 4 "$src" x "$@"
  ckptfs reshard -q --index=:memory: "$src" y --ranks=4 "$@"
  diff -r x y
  by_ranks 4 "$src" x "$@" --overwrite
  diff -r x y
}

test_as_many_processes_as_ranks() {
  failed '4 ranks cannot be written by 3 processes: start one process for each rank$' by_ranks 3 "$(zoo)" x --ranks=4
  by_ranks 3 "$(zoo)" x
  [[ -e x/__2_0.distcp && ! -e x/__3_0.distcp ]]
}

test_a_rank_that_fails_ends_all() {
  ckptfs reshard -q "$(zoo)" x
  cp -r x before
  big_copy src
  python3 - src/__w_1.distcp <<'END' # the size stays the same, so the damage is found only by reading
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(30)
    f.write(bytes(4096))
END
  failed "__w_1.distcp" by_ranks 4 src x --overwrite
  diff -r x before
  failed "nowhere" by_ranks 4 nowhere x --overwrite
  diff -r x before
}

test_a_full_disk_ends_all() {
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir small
  mount -t tmpfs -o size=20m tmpfs small
  failed "No space left on device" by_ranks 4 "$(big)/ckpt" small/x
  [[ -z $(ls -A small) ]] || fail "$(find small)"
}

# mpirun ends the others; the next save removes what they have left.
test_a_rank_that_is_killed_ends_all() {
  local rc=0 mpirun
  ckptfs reshard -q "$(zoo)" x
  cp -r x before
  by_ranks 4 "$(big)/ckpt" x --overwrite --zstd=19 >out 2>&1 &
  mpirun=$!
  wait_until test -e x.partial/__2_0.distcp
  kill -KILL "$(one_of x)"
  wait $mpirun || rc=$?
  ((rc != 0 && rc != 124)) || fail "exit status $rc: $(cat out)"
  # It is the old checkpoint; or all of the new one, if the signal came that late.
  diff -r x before || status_of 0 ckptfs diff --index=:memory: "$(big)/ckpt" x
  by_ranks 2 "$(big)/ckpt" x --overwrite
  status_of 0 ckptfs diff --index=:memory: "$(big)/ckpt" x
}

# one_of PATH: the PID of a process that writes there
one_of() {
  local p
  for p in /proc/[0-9]*; do
    if [[ $(readlink "$p/exe" 2>/dev/null) == "$CKPTFS" && $(readlink "$p/cwd") == "$T" ]] && has_word "$p/cmdline" "$1"; then
      echo "${p#/proc/}"
      return
    fi
  done
}

run_suite "$@"
