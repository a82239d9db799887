#!/bin/bash
# If a file of the mount has exactly the bytes of a real file, the kernel reads that by itself, if it can (Linux 6.9,
# CAP_SYS_ADMIN, no stacked file system below). If it cannot, all of this holds except the counts of such opens.
# shellcheck source=tests/fs/lib.sh
. "${0%/*}/lib.sh"
long="bytes_are_the_same_by_every_way the_kernel_is_told_to_let_go io_uring_or_one_line_why_not \
  many_open_and_map_it_at_once what_is_put_together_is_read_here a_thousand_files_are_open_at_once \
  in_a_run_it_is_read_here over_a_stacked_file_system_it_is_read_here without_the_privilege_it_is_read_here"

# A model in a safetensors file exactly as hf/ shows it, with a tokenizer beside it; made once.
model() {
  local dir=$SCRATCH/whole
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    mkdir -p "$dir/assets"
    ckptfs reshard -q "$(big)/ckpt" "$dir/ckpt" --format safetensors >&2
    head -c 2500001 "$dir/ckpt/model.safetensors" >"$dir/assets/tokenizer.json"
    echo '{}' >"$dir/assets/config.json"
    aged "$dir"
    touch "$dir/done"
  fi
  echo "$dir"
}
copy() { cp -a "$(model)" "$1"; }

# Whether passthrough should work on this machine.
possible() {
  local major minor
  IFS=.- read -r major minor _ < <(uname -r)
  ((major > 6 || (major == 6 && minor >= 9))) && ((!$(id -u))) && [[ $(stat -f -c %T "$SCRATCH") != overlayfs ]]
}

# opens MNT: how many opens were passed to the kernel; reads MNT: how many READ requests there were.
stat_of() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1] + "/.ckptfs/stats.json")); print(eval("d" + sys.argv[2]))' "$@"; }
opens() { stat_of "$1" '["passthrough_opens"]'; }
reads() { stat_of "$1" '["requests"]["read"]'; }

# all_ways FILE WANTED [private]: reads a file in every way and compares the bytes
all_ways() {
  python3 - "$@" <<'END'
import mmap, os, random, sys, threading
want = open(sys.argv[2], "rb").read()
n = len(want)
with open(sys.argv[1], "rb", buffering=0) as f:
    fd = f.fileno()
    assert os.fstat(fd).st_size == n
    assert f.readall() == want
    assert os.pread(fd, 100, n) == b"" and os.pread(fd, 100, n - 7) == want[-7:]
    for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
        if flags == mmap.MAP_SHARED and sys.argv[3:] == ["private"]:
            continue
        with mmap.mmap(fd, n, flags=flags, prot=mmap.PROT_READ) as m:
            assert m[:] == want
    def some(seed):
        r = random.Random(seed)
        for _ in range(200):
            off = r.randrange(n)
            length = r.choice((1, 4096, 70000))
            assert os.pread(fd, length, off) == want[off : off + length], (off, length)
    threads = [threading.Thread(target=some, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    out, at = os.open("sent", os.O_RDWR | os.O_CREAT | os.O_TRUNC), 0
    while at < n:
        at += os.sendfile(out, fd, at, n - at)
    assert os.pread(out, n, 0) == want
    os.close(out)
direct = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
buf = mmap.mmap(-1, 1 << 20)
for off in range(0, n, 1 << 20):
    got = os.preadv(direct, [buf], off)
    assert buf[:got] == want[off : off + (1 << 20)], off
END
}

test_bytes_are_the_same_by_every_way() {
  local d f
  d=$(model)
  mount_at m "$d/ckpt" -o assets="$d/assets"
  mount_at c "$d/ckpt" -o assets="$d/assets",io=cached
  for f in model.safetensors tokenizer.json; do
    all_ways m/hf/$f c/hf/$f
    cmp m/hf/$f <(ckptfs cat --assets="$d/assets" "$d/ckpt" hf/$f)
    is "$(stat -c '%s %b %B %o %i %A %Y' c/hf/$f)" "$(stat -c '%s %b %B %o %i %A %Y' m/hf/$f)"
  done
  cmp m/hf/config.json "$d/assets/config.json" # small, so it is served like any other file
  is 0 "$(opens c)"
  if possible; then
    is True "$(stat_of m '["negotiated"]["passthrough"]')"
    is 6 "$(opens m)" # two files, opened three times each
    is 1 "$(reads m)"
  fi
}

test_what_is_put_together_is_read_here() {
  local d
  copy d
  # Another header of the same length.
  sed -i '1s/"format":"pt"/"format":"xx"/' d/ckpt/model.safetensors
  mount_at m d/ckpt
  mount_at c "$(model)/ckpt" -o io=cached
  cmp m/hf/model.safetensors c/hf/model.safetensors
  cmp m/tensors/w "$(big)/w.bin"
  is 0 "$(opens m)"
  ! cmp -s m/hf/model.safetensors d/ckpt/model.safetensors || fail "the other header"
}

cases_it_is_turned_off_by() { printf '%s\n' io=direct io=cached dtype=bf16; }
test_it_is_turned_off_by() {
  mount_at m "$(model)/ckpt" -o "$1"
  if [[ $1 == dtype* ]]; then
    cmp m/hf/model.safetensors <(ckptfs cat "--$1" "$(model)/ckpt" hf/model.safetensors)
  else
    cmp m/hf/model.safetensors "$(model)/ckpt/model.safetensors"
  fi
  is 0 "$(opens m)"
}

# Readers come and go while their mappings stay; no open may be refused because of how others read the file.
test_many_open_and_map_it_at_once() {
  local d
  d=$(model)
  mount_at m "$d/ckpt" -o assets="$d/assets"
  python3 - m/hf <<'END'
import mmap, os, random, sys
names = [f"{sys.argv[1]}/{n}" for n in ("model.safetensors", "tokenizer.json", "config.json")]
pids = []
for k in range(8):
    pid = os.fork()
    if not pid:
        r, maps = random.Random(k), []
        for _ in range(250):
            with open(r.choice(names), "rb") as f:
                if r.random() < 0.5:
                    f.seek(-2, 2)
                    f.read()
                maps.append(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ, flags=r.choice((1, 2))))
                assert len(maps[-1][:2]) == 2
            if len(maps) > 5:
                maps.pop(r.randrange(6)).close()
        os._exit(0)
    pids.append(pid)
assert not any(os.waitpid(p, 0)[1] for p in pids)
END
  is 0 "$(stat_of m '["errors"]' | tr -cd 0-9 | wc -c)"
  if possible; then (($(opens m) > 1000)) || fail "opens: $(opens m)"; fi
}

# The daemon needs no descriptor for a file that the kernel reads.
test_a_thousand_files_are_open_at_once() {
  cp -r "$(model)/ckpt" ckpt
  mkdir assets
  python3 -c 'for i in range(1, 1001):
    with open(f"assets/vocab{i}.txt", "w") as f:
        f.truncate(1 << 20)
        f.seek(1 << 20)
        print(i, file=f)'
  (ulimit -n 300 && mount_at m ckpt -o assets=assets)
  ulimit -n 4096
  python3 - m/hf <<'END'
import os, sys
fds = [os.open(f"{sys.argv[1]}/vocab{i}.txt", os.O_RDONLY) for i in range(1, 1001)]
for i, fd in enumerate(fds, 1):
    assert os.pread(fd, 20, 1 << 20) == b"%d\n" % i
END
}

# backing 1|2: how many files the kernel was told to keep (1) or to release (2)
backing() { od -An -v -t u8 -w8 count | sed -n "$1p" | tr -d ' '; }
all_let_go() { [[ $(backing 1) == "$(backing 2)" ]]; }

# The kernel keeps a file until it is told to release it, or until the mount ends.
test_the_kernel_is_told_to_let_go() {
  local d i
  possible || skip "the kernel does not read by itself"
  d=$(model)
  ${CC:-cc} -shared -fPIC -o count.so "$HERE/backing_count.c" -ldl
  head -c 16 /dev/zero >count
  mkdir m
  ASAN_OPTIONS=verify_asan_link_order=0 BACKING_COUNT=$T/count LD_PRELOAD=$T/count.so \
    "$CKPTFS" mount "$d/ckpt" m -o assets="$d/assets"
  is "0 0" "$(backing 1) $(backing 2)"
  exec 5<m/hf/model.safetensors 6<m/hf/model.safetensors 7<m/hf/tokenizer.json
  is "2 0" "$(backing 1) $(backing 2)" # one for each file, however many have it open
  exec 5<&-
  cmp m/hf/model.safetensors "$d/ckpt/model.safetensors"
  is 2 "$(backing 1)"
  exec 6<&- 7<&-
  wait_until all_let_go || fail "kept: $(backing 1) given, $(backing 2) taken back"
  # Of opens at the same time, one may register the file in vain; that must be released, too.
  for i in {1..6}; do
    (for _ in {1..30}; do head -c 1 m/hf/model.safetensors >/dev/null; done) &
  done
  for i in $(jobs -p); do wait "$i"; done
  wait_until all_let_go || fail "kept: $(backing 1) given, $(backing 2) taken back"
  (($(backing 1) > 2)) || fail "never given again"
}

# ---- the real file changes ----

closed() { [[ $(stat_of m '["open_files"]') == 0 ]]; }

mount_loud() { # CKPT m [options]: its stderr goes to ./log
  mkdir m
  ckptfs mount "$@" -f 2>log &
  wait_until is_mounted m
  wait_until test -e m/hf
}

test_a_file_that_is_replaced_stays_for_who_has_it() {
  copy d
  mount_loud d/ckpt m
  exec 5<m/hf/model.safetensors
  cp d/ckpt/model.safetensors new
  printf x | dd of=new bs=1 seek=20000000 conv=notrunc status=none
  mv new d/ckpt/model.safetensors
  head -c 1000 <&5 >/dev/null
  # If the replaced file only has a new name now, its ctime has changed, which counts as a change.
  if keeps_names; then return; fi
  if possible; then cmp m/hf/model.safetensors "$(model)/ckpt/model.safetensors"; fi
  exec 5<&-
  wait_until closed
  # The daemon may still have the old file open; then it has the old bytes.
  if cat m/hf/model.safetensors >got 2>/dev/null; then cmp got "$(model)/ckpt/model.safetensors"; fi
  ckptfs umount m
  wait
  ! grep 'was written to' log || fail "nobody wrote to what it had"
}

# Readers that have the file open see the new bytes, as they would without ckptfs; but it can no longer be opened, and
# the log says so.
cases_a_file_that_is_written_to_is_told() {
  printf '%s\n' "write once.closed" "write while.open" "secret once.closed" "secret while.open" \
    "truncate once.closed" "truncate while.open"
}
test_a_file_that_is_written_to_is_told() {
  possible || skip "the kernel does not read by itself"
  copy d
  mount_loud d/ckpt m
  exec 5<m/hf/model.safetensors
  head -c 10 <&5 >/dev/null
  if [[ $1 != truncate ]]; then
    touch -r d/ckpt/model.safetensors stamp
    printf x | dd of=d/ckpt/model.safetensors bs=1 seek=20000000 conv=notrunc status=none
    if [[ $1 == secret ]]; then touch -r stamp d/ckpt/model.safetensors; fi
  else
    truncate -s 20000000 d/ckpt/model.safetensors
  fi
  cmp <(tail -c +11 d/ckpt/model.safetensors) - <&5
  if [[ $2 == while.open ]]; then
    try_eio cat m/hf/model.safetensors
    grep -q "open '/hf/model.safetensors': 'model.safetensors' was changed after the checkpoint was opened" log
    exec 5<&-
    wait_until closed
  else
    ! grep 'was written to' log || fail "too early"
    exec 5<&-
    wait_until grep -q "reads of '/hf/model.safetensors': 'model.safetensors' was written to" log
  fi
  try_eio cat m/hf/model.safetensors
  cat m/.ckptfs/info.json >/dev/null
  ckptfs umount m
}

# ---- where it cannot be ----

test_without_the_privilege_it_is_read_here() {
  local d
  d=$(model)
  unshare -rm true 2>/dev/null || skip "no user namespaces"
  mkdir m
  # Inside, the user seems to be root.
  # shellcheck disable=SC2016 # expanded inside
  unshare -rm bash -euc '
    "$CKPTFS" mount "$1/ckpt" m
    cmp m/hf/model.safetensors "$1/ckpt/model.safetensors"
    cp m/.ckptfs/stats.json .
    umount m' _ "$d"
  python3 -c '
import json
s = json.load(open("stats.json"))
assert not s["passthrough_opens"] and not s["negotiated"]["passthrough"] and s["requests"]["read"], s'
}

test_over_a_stacked_file_system_it_is_read_here() {
  local d
  d=$(model)
  mkdir up work lower over
  cp -r "$d/ckpt" lower/
  mount -t overlay overlay -o lowerdir=lower,upperdir=up,workdir=work over 2>/dev/null ||
    skip "no overlayfs"
  mount_at m over/ckpt
  cmp m/hf/model.safetensors "$d/ckpt/model.safetensors"
  is 0 "$(opens m)"
}

# Not in a run, because its checkpoints are written to all the time.
test_in_a_run_it_is_read_here() {
  mkdir run
  old_copy "$(model)/ckpt" run/step-1
  mount_at m run
  cmp m/step-1/hf/model.safetensors run/step-1/model.safetensors
  is 0 "$(opens m)"
  old_copy run/step-1 run/step-2
  wait_until test -e m/step-2/hf/model.safetensors
  cmp m/latest/hf/model.safetensors run/step-2/model.safetensors
  is 0 "$(opens m)"
}

# ---- io_uring ----

# The bytes are the same with io_uring, or without it, after one line that says why.
test_io_uring_or_one_line_why_not() {
  local d=d f major minor private=
  copy d
  mkdir m
  ckptfs mount -q "$d/ckpt" m -o assets="$d/assets",io=direct,io_uring 2>err
  IFS=.- read -r major minor _ < <(uname -r) # before 6.6, files opened for direct I/O have only private mappings
  ((major > 6 || (major == 6 && minor >= 6))) || private=private
  for f in model.safetensors tokenizer.json; do
    # shellcheck disable=SC2086 # a word or none
    all_ways m/hf/$f <(ckptfs cat --assets="$d/assets" "$d/ckpt" hf/$f) $private
  done
  ls -lR m >/dev/null
  if [[ -s err ]]; then
    is False "$(stat_of m '["negotiated"]["io_uring"]')"
    is 1 "$(wc -l <err)"
    grep -q '^ckptfs: warning: using /dev/fuse instead of io_uring: ' err
  else # libfuse was built with io_uring, see scripts/libfuse.sh
    is Y "$(cat /sys/module/fuse/parameters/enable_uring)"
    is True "$(stat_of m '["negotiated"]["io_uring"]')"
  fi
  # If data that is mapped disappears, that is an error, and the daemon survives.
  python3 -c 'import os; os.truncate("d/ckpt/model.safetensors", 20000000)'
  try_eio cat m/hf/model.safetensors
  cmp m/hf/tokenizer.json d/assets/tokenizer.json
}

run_suite "$@"
