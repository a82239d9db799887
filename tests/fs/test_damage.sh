#!/bin/bash
# Data files that change under a mount: never wrong bytes, and the daemon lives.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="readers_while_a_file populate_of_a_truncated_file_stays_cheap links_and_renamed_directories \
  truncated_by_one_byte overwritten_and_given_its_old_time map_of_a_truncated_file_kills_the_reader_only \
  deleted_before_open"

# w is in __w_0 and __w_1, v in __v_0 to __v_2.
still_serves() {
  cmp m/tensors/w "$(big)/w.bin"
  [[ -n $(daemon_of m) ]]
}

test_truncated_before_open() {
  big_copy c
  mount_at m c
  truncate -s 1000 c/__v_1.distcp
  try_eio cat m/tensors/v
  try_eio cat m/npy/v.npy
  still_serves
}

test_truncated_after_open() {
  big_copy c
  mount_at m c
  exec 5<m/tensors/v
  truncate -s 1000 c/__v_1.distcp
  try_eio dd bs=1M of=/dev/null status=none <&5
  exec 5<&-
  still_serves
}

test_truncated_by_one_byte() {
  big_copy c
  mount_at m c
  truncate -s -1 c/__v_2.distcp
  try_eio cat m/tensors/v
  still_serves
}

test_deleted_before_open() {
  big_copy c
  mount_at m c
  rm c/__v_0.distcp
  # The daemon may still have the file open and its bytes, but must not return others.
  cmp m/tensors/v "$(big)/v.bin" 2>err || grep -q 'Input/output error' err || fail "$(cat err)"
  still_serves
}

test_overwritten_in_place() {
  big_copy c
  mount_at m c
  exec 5<m/tensors/v
  dd if=/dev/zero of=c/__v_1.distcp bs=4096 count=250 conv=notrunc status=none
  try_eio dd bs=1M of=/dev/null status=none <&5
  try_eio cat m/tensors/v
  exec 5<&-
  still_serves
}

# overwrite_in_secret FILE OFFSET: changes a byte and then restores the file's mtime
overwrite_in_secret() {
  touch -r "$1" stamp
  printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
  touch -r stamp "$1"
}

# A program that maps the file would die of SIGBUS instead.
cases_a_change_makes_open_fail() { printf '%s\n' tensors/v npy/v.npy safetensors/model.safetensors; }
test_a_change_makes_open_fail() {
  big_copy c
  mount_at m c
  cmp m/tensors/v "$(big)/v.bin"
  cat "m/$1" >before
  dd if="m/$1" count=0 status=none
  touch c/__v_1.distcp
  try_eio dd if="m/$1" count=0 status=none
  try_eio dd if="m/$1" count=0 status=none
  dd if=m/tensors/w count=0 status=none
  still_serves
}

test_files_that_may_not_be_read() {
  [[ $EUID == 0 ]] || skip "not root"
  big_copy c
  chmod 755 "$SCRATCH" "$T"
  chmod 0 c/__v_1.distcp
  local user=(setpriv --reuid=65534 --regid=65534 --clear-groups "$CKPTFS")
  status_of 0 "${user[@]}" info --index=:memory: c
  grep -q '^complete *no: 1 cannot be opened' out || fail "$(cat out)"
  grep -q "^  v: data file '__v_1.distcp': Permission denied" out || fail "$(cat out)"
  refused "data file '__v_1.distcp': Permission denied$" "${user[@]}" cat --index=:memory: c tensors/v
  "${user[@]}" cat --index=:memory: c tensors/w | cmp - "$(big)/w.bin"
}

cases_overwritten_and_given_its_old_time() { printf '%s\n' io=auto io=direct io=cached; }
test_overwritten_and_given_its_old_time() {
  local f=c/__w_1.distcp
  big_copy c
  mount_at m c -o "$1"
  cmp <(head -c 100000 m/tensors/w) <(head -c 100000 "$(big)/w.bin")
  sleep 0.05
  overwrite_in_secret $f 100000
  is "$(stat -c '%y' stamp)" "$(stat -c '%y' $f)"
  try_eio cat m/tensors/w # notices the change, and the kernel's cached pages are dropped
  try_eio cat m/tensors/w
  cmp m/tensors/v "$(big)/v.bin"
  umount m
  ckptfs mount c m -o "$1" # a new mount takes the file as it is
  ! cmp -s m/tensors/w "$(big)/w.bin" || fail "the old bytes"
}

# As a training job does: hard-link the best checkpoint, rename it, remove the links.
cases_links_and_renamed_directories() { printf '%s\n' io=auto io=direct io=cached; }
test_links_and_renamed_directories() {
  mkdir run
  big_copy run/step-1
  mount_at m run/step-1 -o "$1"
  mount_at r run -o "$1"
  exec 5<m/tensors/w 6<r/step-1/tensors/w
  cmp <(head -c 1000000 <&5) <(head -c 1000000 "$(big)/w.bin")
  cmp <(head -c 1000000 <&6) <(head -c 1000000 "$(big)/w.bin")
  sleep 0.05
  cp -al run/step-1 run/best
  cmp m/tensors/w "$(big)/w.bin"
  cmp m/tensors/v "$(big)/v.bin"
  cmp <(cat <&6) <(tail -c +1000001 "$(big)/w.bin")
  mv run/step-1 run/step-2
  sleep 0.05
  rm -r run/best
  cmp <(cat <&5) <(tail -c +1000001 "$(big)/w.bin")
  cmp m/tensors/w "$(big)/w.bin"
  wait_until test -e r/step-2/tensors/w
  cmp r/step-2/tensors/w "$(big)/w.bin"
}

test_owner_and_mode_count_as_changes_unless_ctime_is_ignored() {
  local before
  big_copy c
  before=$(stat -c %z c/.metadata)
  chmod 600 c/.metadata
  [[ $(stat -c %z c/.metadata) != "$before" ]] || skip "no ctime here" # sshfs shows mtime in its place
  mount_at m c
  mount_at i c -o ignore_ctime
  sleep 0.05
  chmod 600 c/__w_1.distcp
  cmp i/tensors/w "$(big)/w.bin"
  try_eio cat m/tensors/w
  cmp m/tensors/v "$(big)/v.bin"
}

test_replaced_by_rename() {
  big_copy c
  mount_at m c
  head -c "$(stat -c %s c/__v_1.distcp)" /dev/zero >new
  mv new c/__v_1.distcp
  cmp m/tensors/v "$(big)/v.bin" 2>err || grep -q 'Input/output error' err || fail "$(cat err)"
  still_serves
}

test_replaced_by_a_link_to_the_outside() {
  big_copy c
  cp c/__v_1.distcp outside
  mount_at m c
  ln -sf "$T/outside" c/__v_1.distcp
  cmp m/tensors/v "$(big)/v.bin" 2>err || grep -q 'Input/output error' err || fail "$(cat err)"
  ckptfs umount m
  refused . ckptfs mount c m
}

test_unreadable_directory() {
  big_copy c
  mount_at m c
  mv c d
  cat m/tensors/v >/dev/null 2>&1 || true
  mv d c
  still_serves
}

test_whole_checkpoint_deleted() {
  big_copy c
  mount_at m c
  rm -r c
  cmp m/tensors/v "$(big)/v.bin" 2>err || grep -q 'Input/output error' err || fail "$(cat err)"
  [[ -n $(daemon_of m) ]]
  ls m/tensors >/dev/null
}

# A tensor of 32 MiB whose halves are in two files, each in one piece; made once.
rows() {
  local dir=$SCRATCH/rows
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    mkdir "$dir"
    make_dcp "$dir/ckpt" w 2048x4096 2x1 v 1023x777 3x2 >&2
    mv "$dir/ckpt.w.bin" "$dir/w.bin"
    mv "$dir/ckpt.v.bin" "$dir/v.bin"
    touch "$dir/done"
  fi
  echo "$dir"
}

# Readers run while a data file disappears: each block they read is right or an I/O error, and only readers of a mapping
# may be killed.
cases_readers_while_a_file() {
  local how
  for how in truncated overwritten saved_again replaced deleted; do
    printf '%s\n' "$how direct big" "$how cached rows"
    printf '%s\n' "$how direct rows" "$how cached big" | full_only
  done
}
test_readers_while_a_file() {
  local pids=() pid i file dir seconds=0.2
  file=c/__w_1.distcp
  ! is_full || seconds=1
  dir=$("$3")
  old_copy "$dir/ckpt" c
  mount_at m c -o "io=$2"
  exec 6<m/tensors/w
  for i in 1 2 3 4; do
    python3 - "$i" m/tensors/w "$dir/w.bin" go $seconds <<'END' &
import os, random, sys, time
rnd = random.Random(int(sys.argv[1]))
want = open(sys.argv[3], "rb").read()
fd = os.open(sys.argv[2], os.O_RDONLY)
errors = reads = 0
end = None
while end is None or time.monotonic() < end:
    if end is None and os.path.exists(sys.argv[4]):
        end = time.monotonic() + float(sys.argv[5])
    # The tensor's second half, which is in the file that disappears.
    n = rnd.choice((4096, 100000, 1 << 20, 5 << 20))
    off = rnd.randrange(len(want) // 2, len(want))
    if rnd.random() < 0.2:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        got = os.pread(fd, n, off)
    except OSError as e:
        assert e.errno == 5, e
        errors += 1
        continue
    reads += 1
    open(f"ready.{sys.argv[1]}", "w").close()
    assert got and got == want[off : off + len(got)], (off, n, len(got))
print("reads", reads, "errors", errors)
assert reads
END
    pids+=($!)
  done
  wait_until test -e ready.1 -a -e ready.2 -a -e ready.3 -a -e ready.4
  case $1 in
    truncated) dd if=/dev/null of=$file bs=1 seek=5000000 status=none ;;
    overwritten) dd if=/dev/zero of=$file bs=1M count=16 conv=notrunc status=none ;;
    saved_again) cat "$dir/ckpt/__w_0.distcp" >$file ;;
    replaced)
      head -c "$(stat -c %s $file)" /dev/zero >new
      mv new $file
      ;;
    deleted) rm $file ;;
  esac
  touch go
  for pid in "${pids[@]}"; do wait "$pid"; done
  # The intact half can still be read where the file is open.
  cmp -n 16777216 - "$dir/w.bin" <&6
  exec 6<&-
  cmp m/tensors/v "$dir/v.bin"
  [[ -n $(daemon_of m) ]]
  case $1 in truncated | overwritten | saved_again) try_eio tail -c 1M m/tensors/w ;; esac
}

test_map_of_a_truncated_file_kills_the_reader_only() {
  local rc=0
  big_copy c
  mount_at m c
  truncate -s 1000 c/__v_1.distcp
  python3 - m/tensors/v <<'END' || rc=$?
import sys
open(sys.argv[1], "rb")
END
  ((rc == 1)) || fail "status $rc: open must fail, so that no mapping can"
  still_serves
}

test_populate_of_a_truncated_file_stays_cheap() {
  local pid daemon start before after
  big_copy c
  mount_at m c
  daemon=$(daemon_of m)
  # The kernel repeats the failing read until the reader is killed.
  setpriv --pdeathsig=KILL "$PYTHON" - m/tensors/v c/__v_1.distcp <<'END' &
import mmap, os, sys, time
f = open(sys.argv[1], "rb")
os.truncate(sys.argv[2], 1000)
try:
    mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED | 0x8000, prot=mmap.PROT_READ)
except OSError:
    pass
time.sleep(600)
END
  pid=$!
  wait_until asks_again
  before=$(cpu "$daemon")
  start=${EPOCHREALTIME/./}
  sleep 1
  after=$(cpu "$daemon")
  kill -9 $pid
  wait $pid || true
  # Ticks are hundredths of a second: at most 30 % of a CPU may be used.
  (((after - before) * 1000000 < 30 * (${EPOCHREALTIME/./} - start))) || fail "$((after - before)) ticks of CPU"
  still_serves
}
asks_again() { [[ $(number_of m EIO) == [1-9]* ]]; }
cpu() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

test_failures_are_logged_once_with_path_and_range() {
  local pid i
  big_copy c
  mkdir m
  "$CKPTFS" mount -fq c m 2>log &
  pid=$!
  wait_until is_mounted m
  exec 5<m/tensors/v
  truncate -s 1000 c/__v_1.distcp
  for i in 1 2 3; do dd bs=64k of=/dev/null status=none <&5 2>/dev/null || echo "attempt $i"; done
  exec 5<&-
  for i in 4 5 6 7 8; do cat m/tensors/v >/dev/null 2>&1 || echo "attempt $i"; done
  ckptfs umount m
  wait "$pid"
  [[ $(grep -vc 'a part of the sandbox is missing' log) == 1 ]] || fail "$(cat log)"
  grep -qE "^ckptfs: (read|open) '/tensors/v'( \[[0-9]+, [0-9]+\))?: .*__v_1\.distcp" log || fail "$(cat log)"
}

test_index_is_rebuilt_after_a_new_save() {
  need_fixture plain
  local old
  copy_of plain c
  ckptfs ls c >before
  old=$(ckptfs index --print c)
  rm -r c
  copy_of many_items c
  ckptfs ls c >after
  [[ $(wc -l <after) -ge 420 ]] || fail "$(wc -l <after) names"
  [[ $(ckptfs index --print c) == "$old" ]]
}

cases_damaged_index_is_rebuilt() { printf '%s\n' zero truncate flip; }
test_damaged_index_is_rebuilt() {
  local index offset
  index=$T/index
  ckptfs index "$(big)/ckpt" --index="$index" >/dev/null
  [[ -s $index ]]
  case $1 in
    zero) : >"$index" ;;
    truncate) truncate -s 5000 "$index" ;;
    flip)
      for offset in 20 100 1000 4096 5000 9000 13000; do
        printf '\377' | dd of="$index" bs=1 seek=$offset conv=notrunc status=none
        ckptfs cat "$(big)/ckpt" tensors/v --index="$index" | cmp - "$(big)/v.bin"
      done
      return
      ;;
  esac
  ckptfs cat "$(big)/ckpt" tensors/v --index="$index" | cmp - "$(big)/v.bin"
}

test_a_file_that_is_no_index_stays() {
  echo 'SQLite format 3, but not really' >index
  cp index before
  status_of 2 ckptfs cat "$(big)/ckpt" tensors/v --index=index
  grep -q "/index' is there, and is not a chunk index: name another file for the index, or remove it$" err
  cmp index before
}

run_suite "$@"
