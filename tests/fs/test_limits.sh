#!/bin/bash
# With too little memory, or too few descriptors or threads, reads are slower or fail cleanly; the daemon never dies and
# no byte is wrong. When there is enough again, all is as before.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="memory_of_a_group memory_of_its_own few_descriptors"

SOAK=$(dirname "$CKPTFS")/tests/soak
N=2000   # tensors; every thousandth is a megabyte
MANY=150 # tensors, each in a file of its own

# plain and compressed, cut by columns over 4 files, made once
limited() {
  local dir=$SCRATCH/limited
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    mkdir "$dir"
    "$SOAK" make "$dir/st" $N
    printf 'mesh tp=4\nb.* tp:1\n* replicate\n' >"$dir/layout"
    ckptfs reshard -q "$dir/st" "$dir/plain" --layout "$dir/layout" >&2
    ckptfs reshard -q "$dir/st" "$dir/zstd" --zstd --layout "$dir/layout" >&2
    "$SOAK" make "$dir/few" $MANY
    ckptfs reshard -q "$dir/few" "$dir/files" --file-per-item >&2
    touch "$dir/done"
  fi
  echo "$dir"
}

# mount_limited CKPT COMMAND...: runs "COMMAND... ckptfs mount"
mount_limited() {
  local ckpt
  ckpt=$(limited)/$1
  mkdir -p m
  "${@:2}" "$CKPTFS" mount -f "$ckpt" m -o cache=4MiB 2>log &
  DAEMON=$!
  wait_until is_mounted m || fail "$(cat log)"
}

# use TENSORS: many readers for a while, which may get errors but no wrong bytes
use() {
  local seconds=1
  ! is_full || seconds=2
  setsid -w "$SOAK" read "$1" m 24 $seconds may-fail >counts || fail "a reader: $(cat counts)"
  kill -0 "$DAEMON" || fail "the daemon is dead: $(cat log)"
}
# use_again TENSORS: with the limit gone, readers of the same mount get no errors; then it is unmounted
use_again() {
  setsid -w "$SOAK" read "$1" m 2 1 >counts || fail "a reader, afterwards: $(cat counts log)"
  ckptfs umount m
  wait_until gone "$DAEMON"
  wait "$DAEMON"
}

# The limit includes the stacks that threads may use, so few threads fit.
cases_memory_of_its_own() {
  printf '%s\n' 'zstd 64' 'plain 24'
  printf '%s\n' 'plain 64' 'zstd 24' | full_only
}
test_memory_of_its_own() {
  [[ ${VARIANT:-release} == release ]] || return 0 # sanitizers need more
  mount_limited "$1" prlimit --data=$(($2 << 20)):unlimited
  use $N
  prlimit --pid "$DAEMON" --data=unlimited:unlimited
  use_again $N
}

# Makes a control group of 64 MiB and prints its path.
new_group() {
  local top=/sys/fs/cgroup
  if [[ -d $top/memory ]]; then top=$top/memory; fi
  mkdir "$top/ckptfs-$$" 2>/dev/null || return 1
  echo $((64 << 20)) 2>/dev/null >"$top/ckptfs-$$/memory.limit_in_bytes" ||
    echo $((64 << 20)) 2>/dev/null >"$top/ckptfs-$$/memory.max" ||
    { rmdir "$top/ckptfs-$$" && return 1; }
  echo "$top/ckptfs-$$"
}
# There are no cases if we cannot make a group.
cases_memory_of_a_group() {
  local group
  if group=$(new_group); then
    rmdir "$group"
    printf '%s\n' plain zstd
  fi
}
test_memory_of_a_group() {
  local group
  [[ ${VARIANT:-release} == release ]] || return 0
  group=$(new_group)
  # shellcheck disable=SC2016 # the inner shell's
  mount_limited "$1" bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group"
  use $N
  use_again $N
  wait_until rmdir "$group" 2>/dev/null # the daemon's helpers end a little later
}

# Each item has a file of its own, and there are descriptors for fewer than a quarter of them.
test_few_descriptors() {
  # shellcheck disable=SC2016 # the inner shell's
  mount_limited files bash -c 'ulimit -n 32 && exec "$@"' x
  use $MANY
  use_again $MANY
}

# One clear line, wherever they end.
test_mount_with_too_few_descriptors() {
  local ckpt n rc refused=0
  [[ ${VARIANT:-release} == release ]] || return 0
  ckpt=$(zoo)
  mkdir m
  for ((n = 5; n < 40; n++)); do
    rc=0
    (ulimit -n $n && exec "$CKPTFS" mount -q "$ckpt" m) 2>err || rc=$?
    if [[ $rc == 0 ]]; then
      cmp m/tensors/model.n "$ckpt.model.n.bin"
      ckptfs umount m
      break
    fi
    is 2 $rc
    [[ $(wc -l <err) == 1 && $(cat err) == *': Too many open files' ]] || fail "$n: $(cat err)"
    ! is_mounted m || fail "$n: still mounted"
    refused=$((refused + 1))
  done
  ((n < 40 && refused > 2)) || fail "$refused refused"
}

# A mount that cannot be used is an error, and is gone.
test_mount_with_too_little_memory() {
  local ckpt kib rc served=0 refused=0
  [[ ${VARIANT:-release} == release ]] || return 0
  ckpt=$(limited)/plain
  mkdir m
  for ((kib = 11000; kib < 40000; kib += every * 500)); do
    rc=0
    (ulimit -v $kib && exec "$CKPTFS" mount -q "$ckpt" m) 2>err || rc=$?
    case $rc in
      0)
        timeout 60 ls m >/dev/null 2>err || grep -q 'Cannot allocate memory' err ||
          fail "$kib KiB: it is mounted, but cannot be used: $(cat err)"
        ckptfs umount m
        ! [[ -s err ]] || continue
        served=$((served + 1))
        ((served < 3)) || break
        ;;
      2)
        ! is_mounted m || fail "$kib KiB: still mounted: $(cat err)"
        [[ -s err ]] || fail "$kib KiB: no reason"
        refused=$((refused + 1))
        ;;
      *) ((kib < 16000)) || fail "$kib KiB: exit status $rc: $(cat err)" ;; # not even libraries can be loaded
    esac
  done
  ((served > 0 && refused > 0)) || fail "mounted $served times, refused $refused times"
}

run_suite "$@"
