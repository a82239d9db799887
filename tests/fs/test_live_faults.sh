#!/bin/bash
# Storage, index and daemon fail while readers run. Damage to data files is in test_damage.sh.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="hanging_reads_keep_nobody_else_waiting index_of_a_live_mount disk_of_the_index_is_full \
  inode_numbers_that_do_not_last a_handled_signal_is_eintr_only_when_a_read_hangs lazy_unmount_under_readers \
  replaced_with_the_same_size_and_time_without_inode_numbers a_run_without_inode_numbers"

BADFS=$(dirname "$CKPTFS")/tests/badfs

# start_reader FILE NAME [FROM TO]: a reader that runs until the file `stop` exists and reports to NAME.found
start_reader() {
  "$PYTHON" -S -E "$HERE/live_reader.py" "$1" "$(big)/$(basename "$1").bin" stop "${@:3}" >"$2.found" 2>&1 &
  READERS+=($!)
  wait_until test -e "ready.$!" || fail "$2: $(cat "$2.found")"
}
READERS=()
stop_readers() {
  local pid
  touch stop
  for pid in "${READERS[@]}"; do wait "$pid" || fail "$(cat ./*.found)"; done
  rm stop
  READERS=()
}
# found NAME PATTERN: the reader's report must match
found() { grep -qE -- "$2" "$1.found" || fail "$1 found: $(cat "$1.found")"; }

# mount_logged CKPT MNT [options]: starts a daemon whose messages go to ./log
mount_logged() {
  mkdir -p "$2"
  (trap - INT && exec "$CKPTFS" mount -fq "$@") 2>log & # by default a background job ignores SIGINT
  DAEMON=$!
  wait_until is_mounted "$2"
}
ends() { wait_until gone "$DAEMON" && wait "$DAEMON"; }

cold() { # FILE: drops its pages from every cache
  dd of="$1" oflag=nocache conv=notrunc,fdatasync count=0 status=none 2>/dev/null || true
  "$PYTHON" -S -E -c 'import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)' "$1"
}

# The big checkpoint in c, seen through badfs as b, mounted as m; w and v have been opened once.
on_bad_storage() {
  mkdir b orders m
  big_copy c
  # No leak detection, because libfuse does not free all that it parses.
  ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 "$BADFS" c orders b -o max_threads=600
  mount_logged b m "$@"
  cmp -n 100 m/tensors/w "$(big)/w.bin"
  cmp -n 100 m/tensors/v "$(big)/v.bin"
}

# through_fuse DIR SEEN [OPTION...]: a directory seen through badfs as SEEN, without caching of names and attributes
through_fuse() {
  mkdir -p "$2" orders
  ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 "$BADFS" "$1" orders "$2" -o entry_timeout=0,attr_timeout=0 "${@:3}"
}
# forget FILE...: badfs forgets these files below b, which nobody may have open, so that they get new inode numbers
forget() {
  local f
  for f; do
    mkdir -p "orders/$(dirname "$f")"
    # libfuse keeps the number until the kernel says that it has forgotten the file.
    wait_until has_another_number "$f" "$(stat -c %i "b/$f")" || fail "$f still has its number"
  done
}
has_another_number() { # FILE THAN
  touch "orders/$1.gone"
  [[ ! -e b/$1 ]] || fail "$1 is not gone"
  rm "orders/$1.gone"
  [[ $(stat -c %i "b/$1") != "$2" ]]
}

# hold FIRST LAST: makes reads of these tensors' files wait; waiting: the number of files whose readers wait
hold() {
  local i
  for ((i = $1; i <= $2; i++)); do touch "orders/__t$i"_0.distcp.hang; done
}
waiting() { find orders -name '*.hangs' | wc -l; }
are_waiting() { (($(waiting) >= $1)); }

# Storage with latency gets many requests at a time: first for the heads of all tensors, then for what a sequential
# reader will need. On a disk, two threads would read the heads, and one file would be read after the other.
test_storage_of_a_network_is_asked_for_much_at_a_time() {
  local i names=() pid
  mkdir m
  for ((i = 100; i < 180; i++)); do names+=("t$i" 256x256 1x1); done
  make_dcp c "${names[@]}"
  through_fuse c b -o max_threads=600
  mount_logged b m
  hold 100 179
  head -c 4096 m/hf/model.safetensors >first &
  pid=$!
  wait_until are_waiting 16
  rm orders/*.hang
  wait $pid
  rm -f orders/*
  hold 140 179
  cat m/hf/model.safetensors >model &
  pid=$!
  wait_until are_waiting 8 # 2 MiB; more if the kernel has asked for the next part already
  rm orders/*.hang
  wait $pid
  cmp model <(ckptfs cat c hf/model.safetensors)
}

# ---- storage ----

# sshfs and others do not keep inode numbers. A new number must neither rebuild the index nor make a data file count as
# changed.
test_inode_numbers_that_do_not_last() {
  mkdir st m c
  mount_at m "$(zoo)"
  cp m/safetensors/*.safetensors st
  ckptfs umount m
  big_copy c/dcp
  mv st c
  through_fuse c b
  ckptfs info b/st | grep '^index .* (built just now)'
  forget st/model.safetensors
  ckptfs info b/st >out
  if grep 'built just now' out; then fail "built again"; fi
  mount_logged b/dcp m
  forget dcp/__{v,w}_{0,1}.distcp
  cmp m/tensors/w "$(big)/w.bin"
  cmp m/tensors/v "$(big)/v.bin"
  is "" "$(messages)"
}

# A failed listing or lookup is logged as well, with the path.
test_a_directory_that_cannot_be_listed_is_logged() {
  mkdir m run
  cp -r "$(zoo)" run/step-1
  aged run
  through_fuse run b
  mount_logged b m
  ls m >/dev/null
  touch orders/..eio
  wait_until bash -c '! LC_ALL=C ls m >/dev/null 2>err'
  grep -q 'Input/output error' err
  wait_until test -s log
  is "ckptfs: look into '/': list '$T/b': Input/output error" "$(messages)"
  rm orders/..eio
  wait_until ls m >/dev/null 2>&1
}

# If inode numbers say nothing, ctime shows the change.
test_replaced_with_the_same_size_and_time_without_inode_numbers() {
  mkdir m
  big_copy c
  through_fuse c b
  mount_logged b m
  forget __w_1.distcp
  tr '\0-\377' '\1-\377\0' <c/__w_1.distcp >other
  touch -r c/__w_1.distcp other
  mv other c/__w_1.distcp
  try_eio cat m/tensors/w
  cmp m/tensors/v "$(big)/v.bin"
  grep -q "__w_1.distcp' was changed after the checkpoint was opened" log || fail "$(cat log)"
}

test_a_run_without_inode_numbers() {
  local before
  mkdir c m
  old_copy "$(zoo)" c/step-1
  old_copy "$(zoo)" c/step-2
  through_fuse c b
  mount_logged b m
  before=$(stat -c %i m/step-1/tensors/model.ids)
  forget step-1/.metadata step-2/.metadata
  sleep 1.2 # the mount looks for changes once a second
  [[ $(stat -c %i m/step-1/tensors/model.ids) == "$before" ]] || fail "another checkpoint"
  cmp m/step-1/tensors/model.ids m/step-2/tensors/model.ids
}

cases_input_output_errors() { printf '%s\n' direct cached; }
test_input_output_errors() {
  on_bad_storage -o io="$1"
  start_reader m/tensors/v other
  touch orders/__w_1.distcp.eio
  cold b/__w_1.distcp
  try_eio dd if=m/tensors/w bs=1M skip=17 of=/dev/null
  cmp -n 16777216 m/tensors/w "$(big)/w.bin"
  # When the storage works again, so does the file.
  rm orders/__w_1.distcp.eio
  cmp m/tensors/w "$(big)/w.bin"
  stop_readers
  found other '^right=[0-9]+$'
  [[ $(messages | wc -l) == 1 ]] || fail "$(cat log)"
  grep -qE "^ckptfs: read '/tensors/w' \[[0-9]+, [0-9]+\): .*__w_1\.distcp.*: [Ii]nput/output error" log || fail "$(cat log)"
}

# order_hang: from now on, reads of the second half of w hang; does_hang: whether one does
order_hang() {
  touch orders/__w_1.distcp.hang
  cold b/__w_1.distcp
}
does_hang() { [[ -e orders/__w_1.distcp.hangs ]]; }
# hang N: starts N such reads of 4 KiB, each at another place
hang() {
  local i
  order_hang
  for ((i = 0; i < $1; i++)); do
    dd if=m/tensors/w of="got.$i" bs=4096 skip=$((4096 + i * 64)) count=1 iflag=direct status=none &
    HANGING+=($!)
  done
  for i in "${HANGING[@]}"; do wait_until has_opened "$i"; done
  wait_until does_hang
}
has_opened() { [[ /proc/$1/fd/0 -ef m/tensors/w ]]; }
HANGING=()
threads() { awk '/^Threads/ { print $2 }' "/proc/$DAEMON/status"; }
many_threads() { (($(threads) > 40)); }
few_threads() { (($(threads) <= 8)); }

test_check_counts_only_the_bytes_that_it_read() {
  local f
  big_copy c
  through_fuse c b
  # The index then has the positions of the elements, and only the data remains to be read.
  ckptfs check --data --index=x b >out
  grep -q ' [1-9][0-9]* bytes read, ' out || fail "$(cat out)"
  for f in b/__v_*; do
    touch "orders/${f#b/}.eio"
    cold "$f"
  done
  ckptfs check --data --json --include=v --index=x b >out && fail "no fault"
  grep -q 'Input/output error' out || fail "$(cat out)"
  grep -qx '  "bytes": 0,' out || fail "$(cat out)"
}

# More requests than threads hang, but other requests do not wait for them.
test_hanging_reads_keep_nobody_else_waiting() {
  local i
  on_bad_storage -o threads=4
  start_reader m/tensors/v other
  hang 40
  wait_until many_threads
  cmp m/tensors/v "$(big)/v.bin"
  cmp -n 16777216 m/tensors/w "$(big)/w.bin"
  [[ $(entries m/tensors | xargs -n 1 | sorted) == "v w" ]]
  wait_until grep -q "^ckptfs: read '/tensors/w': has been waiting for its data files for 10 seconds" log
  rm orders/__w_1.distcp.hang
  for i in "${!HANGING[@]}"; do
    wait "${HANGING[i]}"
    cmp "got.$i" <(dd if="$(big)/w.bin" bs=4096 skip=$((4096 + i * 64)) count=1 status=none)
  done
  stop_readers
  found other '^right=[0-9]+$'
  # The additional threads end.
  wait_until few_threads
  [[ $(messages | wc -l) == 1 ]] || fail "$(cat log)"
}

cases_hanging_reader_can_be_interrupted() { printf '%s %s\n' direct KILL direct INT cached TERM; }
test_hanging_reader_can_be_interrupted() {
  local pid
  on_bad_storage -o threads=2,io="$1"
  order_hang
  (trap - INT TERM; exec cat m/tensors/w) >/dev/null &
  pid=$!
  wait_until does_hang
  kill -s "$2" $pid
  wait_until gone $pid || fail "$(cat /proc/$pid/stack)"
  cmp m/tensors/v "$(big)/v.bin"
  rm orders/__w_1.distcp.hang
  cmp m/tensors/w "$(big)/w.bin"
}

# A signal that the program handles ends a read only if it hangs, not if it just takes a moment.
test_a_handled_signal_is_eintr_only_when_a_read_hangs() {
  on_bad_storage -o io=direct
  "$PYTHON" -S -E - m/tensors/w orders/__w_1.distcp.hang b/__w_1.distcp <<'END'
import ctypes, os, signal, sys, time
path, order, source = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(1 << 20)
fd = os.open(path, os.O_RDONLY)
def pread(n, off):  # os.pread() would try again after EINTR
    got = libc.pread(fd, buf, ctypes.c_size_t(n), ctypes.c_long(off))
    return got if got >= 0 else -ctypes.get_errno()
ticks = 0
def tick(*_):
    global ticks
    ticks += 1
signal.signal(signal.SIGALRM, tick)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while ticks < 200:
    for off in range(0, 1 << 25, 1 << 20):
        start = time.monotonic()
        got = pread(1 << 20, off)
        assert got == 1 << 20 or time.monotonic() - start >= 0.9, got
signal.setitimer(signal.ITIMER_REAL, 0)
open(order, "w").close()
f = os.open(source, os.O_RDONLY)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)  # repeated, so that one comes while the read waits
start = time.monotonic()
got = pread(1 << 20, 20 << 20)
took = time.monotonic() - start
signal.setitimer(signal.ITIMER_REAL, 0)
assert got == -4, got
assert took >= 0.9, took  # it was not cut short at once
os.unlink(order)
assert pread(1 << 20, 20 << 20) == 1 << 20
END
}

cases_end_while_a_read_hangs() { printf '%s\n' TERM KILL lazy force; }
test_end_while_a_read_hangs() {
  local pid rc=0
  on_bad_storage -o threads=2
  hang 5
  cat m/npy/w.npy >/dev/null 2>&1 & # reads ahead
  HANGING+=($!)
  if ckptfs umount m 2>err; then fail "unmounted"; fi
  grep -qE 'busy|in use' err
  case $1 in
    lazy) umount -l m && kill -9 "${HANGING[@]}" ;;
    force) umount -f m 2>/dev/null || true ;;
    *) kill -s "$1" "$DAEMON" ;;
  esac
  for pid in "${HANGING[@]}"; do wait_until gone "$pid" || fail "a reader hangs: $(cat "/proc/$pid/stack")"; done
  wait_until gone "$DAEMON" || fail "the daemon hangs"
  wait "$DAEMON" || rc=$?
  case $1 in
    KILL)
      ((rc == 137))
      ckptfs umount m
      ;;
    force) umount m 2>/dev/null || true ;;
    *) ((rc == 0)) || fail "status $rc: $(cat log)" ;;
  esac
  unmounted m
  [[ $1 == KILL ]] || grep -qE "unmounted '.*' while [0-9]+ request(s wait for their| waits for its) data files" log || fail "$(cat log)"
  rm orders/__w_1.distcp.hang
  ckptfs mount b m
  cmp m/tensors/w "$(big)/w.bin"
}

test_a_file_that_became_unreadable() {
  as_user_and_root "$(big)/v.bin" "$(big)/w.bin" <<'END'
    $as "$CKPTFS" mount -fq c m -o ignore_ctime 2>log &
    daemon=$!
    wait_until $as mountpoint -q m
    $as cmp m/tensors/v "$1"
    chmod 0 c/__w_1.distcp
    if $as cat m/tensors/w >/dev/null 2>err; then exit 1; fi
    grep -q 'Input/output error' err
    $as cmp m/tensors/v "$1"
    chmod 644 c/__w_1.distcp
    $as cmp m/tensors/w "$2"
    $as "$CKPTFS" umount m
    wait $daemon
    [[ $(messages | wc -l) == 1 ]]
    grep -qE "^ckptfs: open '/tensors/w': .*__w_1.distcp.*: [Pp]ermission denied" log
END
}

# A reader that has seen a change sees no old bytes afterwards: the next open discards the kernel's cache.
test_no_old_bytes_after_a_change_was_seen() {
  big_copy c
  mount_at m c -o io=cached
  cmp m/tensors/v "$(big)/v.bin" # all of it is cached now
  dd if=/dev/zero of=c/__v_1.distcp bs=4096 count=250 conv=notrunc status=none
  # The daemon notices the change when another file is read.
  try_eio cat m/npy/v.npy
  try_eio cat m/tensors/v
  cmp m/tensors/w "$(big)/w.bin"
}

test_the_directory_is_renamed() {
  big_copy c
  mount_at m c
  start_reader m/tensors/w w
  mv c d
  # A new directory under the old name is not used, even for files that have not been opened yet.
  mkdir c
  cmp m/tensors/v "$(big)/v.bin"
  stop_readers
  found w '^right=[0-9]+$'
}

# ---- the index ----

# A checkpoint of many different tensors, made once; most are first opened after the index has changed.
many() {
  local dir=$SCRATCH/live-many args=() i
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    mkdir "$dir"
    for i in {100..299}; do args+=("t$i" "64x4" 1x1); done
    make_dcp "$dir/ckpt" "${args[@]}" >&2
    touch "$dir/done"
  fi
  echo "$dir"
}
compare_many() { # MNT FIRST LAST
  local i
  for ((i = $2; i <= $3; i++)); do cmp "$1/tensors/t$i" "$(many)/ckpt.t$i.bin"; done
}

cases_index_of_a_live_mount() { printf '%s\n' deleted overwritten truncated replaced zeroed; }
test_index_of_a_live_mount() {
  local size
  mount_logged "$(many)/ckpt" m -o "index=$T/index"
  compare_many m 100 110
  size=$(stat -c %s index)
  case $1 in
    deleted) rm index ;;
    overwritten) dd if=/dev/urandom of=index bs="$size" count=1 conv=notrunc iflag=fullblock status=none ;;
    truncated) truncate -s 5000 index ;;
    zeroed) dd if=/dev/zero of=index bs="$size" count=1 conv=notrunc status=none ;;
    replaced)
      ckptfs index "$(big)/ckpt" --index="$T/other"
      mv other index
      ;;
  esac
  compare_many m 105 299
  [[ $(find m/tensors -type f | wc -l) == 200 ]]
  ckptfs umount m
  ends
  # The next mount rebuilds the index, unless the file no longer looks like one.
  if [[ $1 == overwritten || $1 == zeroed ]]; then
    refused "'.*/index' is there, and is not a chunk index: .* remove it" ckptfs mount "$(many)/ckpt" m -o "index=$T/index"
    rm index
  fi
  ckptfs mount "$(many)/ckpt" m -o "index=$T/index"
  compare_many m 100 110
}

test_disk_of_the_index_is_full() {
  [[ $EUID == 0 ]] || skip "not root"
  mkdir m full
  mount -t tmpfs -o size=64k tmpfs full
  dd if=/dev/zero of=full/fill bs=4096 status=none 2>/dev/null || true
  # If the cache's disk is full, the index is kept in memory.
  XDG_CACHE_HOME=$T/full mount_logged "$(many)/ckpt" m
  compare_many m 100 120
  ckptfs umount m
  ends
  # With index=FILE it is an error, and nothing is left of the file.
  refused "chunk index '.*/full/index\.tmp': .*disk is full" ckptfs mount "$(many)/ckpt" m -o "index=$T/full/index"
  [[ $(find full -type f) == full/fill ]] || fail "$(find full)"
  # The index of a live mount is damaged when there is no room for another.
  rm full/fill
  mount -o remount,size=4m full
  mount_logged "$(many)/ckpt" m -o "index=$T/full/index"
  dd if=/dev/zero of=full/fill bs=4096 status=none 2>/dev/null || true
  dd if=/dev/urandom of=full/index bs=16384 seek=1 count=8 conv=notrunc status=none
  compare_many m 100 299
  ckptfs umount m
  ends
}

# ---- the daemon ----

cases_daemon_ends_under_readers() { printf '%s\n' TERM INT HUP KILL; }
test_daemon_ends_under_readers() {
  local rc=0
  mount_logged "$(big)/ckpt" m
  start_reader m/tensors/w w
  start_reader m/tensors/v v
  kill -s "$1" "$DAEMON"
  wait_until gone "$DAEMON"
  wait "$DAEMON" || rc=$?
  wait_until test -e "failed.${READERS[0]}"
  stop_readers
  found w '(ENOTCONN|ECONNABORTED)=[0-9]+'
  found v '^([A-Z]+=[0-9]+ )*right=[0-9]+$'
  if [[ $1 == KILL ]]; then
    ((rc == 137))
    if ls m 2>err; then fail "a dead mount is listed"; fi
    refused 'dead mount' ckptfs mount "$(big)/ckpt" m
    ckptfs umount m
  else
    ((rc == 0)) || fail "status $rc"
  fi
  unmounted m
  is "" "$(messages)"
  ckptfs mount "$(big)/ckpt" m
  cmp m/tensors/w "$(big)/w.bin"
}

test_lazy_unmount_under_readers() {
  mount_logged "$(big)/ckpt" m
  start_reader m/tensors/w w
  start_reader m/tensors/v v
  umount -l m 2>/dev/null || fusermount3 -uz m
  unmounted m
  sleep 0.2
  kill -0 "$DAEMON"
  stop_readers
  found w '^right=[0-9]+$'
  found v '^right=[0-9]+$'
  ends
  is "" "$(messages)"
}

run_suite "$@"
