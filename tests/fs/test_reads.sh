#!/bin/bash
# The ways in which programs read files.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="sparse_tar_round_trip parallel_readers cmp_of_large_tensors many_files_in_parallel direct_files_can_be_mapped \
  cp_copies_a_tree"

test_cmp_of_large_tensors() {
  mount_at m "$(big)/ckpt"
  cmp m/tensors/w "$(big)/w.bin"
  cmp m/tensors/v "$(big)/v.bin"
  [[ $(sha256sum <m/tensors/w) == "$(sha256sum <"$(big)/w.bin")" ]]
}

test_dd_at_odd_offsets_and_sizes() {
  local skip count bs
  mount_at m "$(big)/ckpt"
  while read -r bs skip count; do
    dd if=m/tensors/v bs="$bs" skip="$skip" count="$count" of=a status=none
    dd if="$(big)/v.bin" bs="$bs" skip="$skip" count="$count" of=b status=none
    cmp a b || fail "bs=$bs skip=$skip count=$count"
  done <<'END'
1 0 1
1 4095 2
3 1000 77
7 123457 3
511 9 5
513 1 4
4096 1 1
4095 3 300
4097 5 200
65537 2 3
1000003 1 2
3179484 0 2
3179483 0 2
3179485 0 1
1048577 3 9
5000000 0 1
5000000 1 1
END
}

test_reads_at_and_beyond_the_end() {
  mount_at m "$(big)/ckpt"
  python3 - m/tensors/v "$(big)/v.bin" <<'END'
import os, sys
want = open(sys.argv[2], "rb").read()
fd = os.open(sys.argv[1], os.O_RDONLY)
size = len(want)
assert os.fstat(fd).st_size == size
for off in (size - 1, size - 4096, size - 5000, size, size + 1, size + 4096, size + (1 << 40)):
    got = os.pread(fd, 100000, off)
    assert got == want[off : off + 100000], off
END
}

cases_random_reads() { printf '%s\n' buffered direct; }
test_random_reads() {
  mount_at m "$(big)/ckpt"
  python3 - "$1" m/tensors/v "$(big)/v.bin" <<'END'
import mmap, os, random, sys
seed = random.randrange(1 << 32)
print("seed", seed)
rnd = random.Random(seed)
want = open(sys.argv[3], "rb").read()
fd = os.open(sys.argv[2], os.O_RDONLY | (os.O_DIRECT if sys.argv[1] == "direct" else 0))
buf = mmap.mmap(-1, 4 << 20)
for _ in range(300):
    off = rnd.randrange(len(want) + 10)
    n = int(2 ** rnd.uniform(0, 22))
    if sys.argv[1] == "direct":
        off, n = off & ~511, (n + 511) & ~511
    got = os.preadv(fd, [memoryview(buf)[:n]], off)
    assert buf[:got] == want[off : off + n], (off, n, got)
END
}

test_parallel_readers() {
  local i pids=()
  mount_at m "$(big)/ckpt"
  for i in 1 2 3 4 5 6 7 8; do
    case $((i % 4)) in
      0) cmp m/tensors/w "$(big)/w.bin" & ;;
      1) cmp m/tensors/v "$(big)/v.bin" & ;;
      2) dd if=m/tensors/w bs=1M iflag=direct status=none | cmp - "$(big)/w.bin" & ;;
      3) tail -c +16000001 m/tensors/w | cmp - <(tail -c +16000001 "$(big)/w.bin") & ;;
    esac
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i"; done
}

test_many_files_in_parallel() {
  need_fixture many_items
  mount_at m "$(fixture many_items)/ckpt"
  (cd m/tensors && find . -type f -print0 | xargs -0 -n 16 -P 8 sha256sum) |
    sed -E 's|^([0-9a-f]+)  \./(.*)$|\2 \1|' | sort >got
  expect complete many_items | sort >want
  cmp got want
}

cases_python_maps_it() { printf '%s\n' MAP_SHARED MAP_PRIVATE; }
test_python_maps_it() {
  mount_at m "$(big)/ckpt"
  python3 - "$1" m/tensors/v "$(big)/v.bin" m/npy/v.npy <<'END'
import mmap, os, sys
want = open(sys.argv[3], "rb").read()
flags = getattr(mmap, sys.argv[1])
with open(sys.argv[2], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
assert len(m) == len(want)
assert m[1234567] == want[1234567] and m[-1:] == want[-1:]
m.madvise(mmap.MADV_SEQUENTIAL)
assert m[:] == want
with open(sys.argv[4], "rb") as f:
    n = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
assert n[-len(want):] == want
if sys.argv[1] == "MAP_PRIVATE":  # copy on write
    with open(sys.argv[2], "rb") as f:
        w = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    w[5] = w[5] ^ 255
    assert m[:] == want
END
}

test_map_populate_works() {
  mount_at m "$(big)/ckpt"
  python3 - m/tensors/w "$(big)/w.bin" <<'END'
import mmap, sys
MAP_POPULATE = 0x8000
with open(sys.argv[1], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED | MAP_POPULATE, prot=mmap.PROT_READ)
assert m[:] == open(sys.argv[2], "rb").read()
END
}

test_o_direct_dd() {
  local bs
  mount_at m "$(big)/ckpt"
  for bs in 4k 64k 1M 4M 3k; do
    dd if=m/tensors/v bs=$bs iflag=direct status=none | cmp - "$(big)/v.bin"
  done
}

test_cp_copies_a_tree() {
  mount_at m "$(big)/ckpt"
  cp -r m copy
  cmp copy/tensors/w "$(big)/w.bin"
  cmp copy/tensors/v "$(big)/v.bin"
  diff -r m copy
}

test_sparse_tar_round_trip() {
  mount_at m "$(big)/ckpt"
  mkdir x
  tar -S -cf - -C m . | tar -xf - -C x
  diff -r m x
  cmp x/tensors/w "$(big)/w.bin"
}

test_sendfile_and_copy_file_range() {
  mount_at m "$(big)/ckpt"
  python3 - m/tensors/v "$(big)/v.bin" <<'END'
import os, shutil, sys
want = open(sys.argv[2], "rb").read()
src = os.open(sys.argv[1], os.O_RDONLY)
dst = os.open("out", os.O_RDWR | os.O_CREAT)
done = 0
while True:
    n = os.sendfile(dst, src, done, 1 << 20)
    if not n:
        break
    done += n
assert open("out", "rb").read() == want
shutil.copyfile(sys.argv[1], "out2")
assert open("out2", "rb").read() == want
assert os.lseek(src, 100, os.SEEK_DATA) == 100
assert os.lseek(src, 100, os.SEEK_HOLE) == len(want)
END
}

test_second_read_comes_from_the_page_cache() { try_rounds reads_twice || fail "read again"; }
reads_twice() {
  local before m=m$1
  mount_at "$m" "$(big)/ckpt" -o io=cached
  before=$(number_of "$m" read)
  cat "$m/tensors/v" >/dev/null
  (($(number_of "$m" read) > before)) || fail "no reads"
  before=$(number_of "$m" read)
  cmp "$m/tensors/v" "$(big)/v.bin" || fail "wrong bytes" # pages are kept when a file is opened again
  [[ $(number_of "$m" read) == "$before" ]]
}

# For files in an overlay, the cached pages belong to the files below.
test_pages_of_an_overlay_are_mapped() {
  mkdir up work over
  mount -t overlay overlay -o "lowerdir=$(big),upperdir=up,workdir=work" over 2>/dev/null || skip "no overlayfs"
  try_rounds maps_all || fail "not all is mapped"
  printf X | dd of=over/ckpt/__w_1.distcp bs=1 seek=4097 conv=notrunc status=none # copied up, then changed
  try_eio dd if=m/tensors/w iflag=direct bs=1M of=/dev/null # on Linux before 6.6 the mount's own pages hold the old bytes
  cmp m/tensors/v "$(big)/v.bin"
}
maps_all() {
  ! is_mounted m || ckptfs umount m
  mount_at m over/ckpt
  cat over/ckpt/*.distcp >/dev/null
  cmp m/tensors/w "$(big)/w.bin" || fail "other bytes"
  cmp m/tensors/v "$(big)/v.bin" || fail "other bytes"
  (($(number_of m mapped_bytes) >= 32 << 20))
}

test_locks_work() {
  mount_at m "$(big)/ckpt"
  flock -s m/tensors/v true
  python3 - m/tensors/v <<'END'
import fcntl, sys
f = open(sys.argv[1], "rb")
fcntl.lockf(f, fcntl.LOCK_SH)
fcntl.lockf(f, fcntl.LOCK_UN)
END
}

# Direct I/O and mappings of the same file.
cases_direct_files_can_be_mapped() { printf '%s\n' auto direct cached; }
test_direct_files_can_be_mapped() {
  mount_at m "$(big)/ckpt" -o "io=$1"
  python3 - m/tensors/w "$(big)/w.bin" <<'END'
import mmap, sys
want = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "rb") as f:
    try:
        m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except OSError as e:
        assert e.errno == 19, e  # ENODEV: an older kernel
        sys.exit()
    assert f.read(1 << 20) == want[: 1 << 20]
    assert m[:] == want
    f.seek(0)
    assert f.read() == want
    n = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert n[5000000:] == want[5000000:] and m[:] == want
END
}

# After as many small reads as the file has pieces, it is opened with caching the next time.
test_small_reads_are_cached_the_next_time() {
  local major minor
  try_rounds reads_small || fail "nothing is cached"
  IFS=.- read -r major minor _ < <(uname -r)
  ((major > 6 || major == 6 && minor >= 6)) || return 0 # older: all files are cached, else they could not be mapped
  dd if=m0/tensors/v bs=1M of=/dev/null status=none
  [[ $(cached m0/tensors/v) == 0 ]] || fail "$(cached m0/tensors/v) pages"
}
reads_small() {
  mount_at "m$1" "$(big)/ckpt"
  dd if="m$1/tensors/w" bs=4k count=100 of=/dev/null status=none
  dd if="m$1/tensors/w" bs=4k count=100 of=/dev/null status=none
  [[ $(cached "m$1/tensors/w") -ge 100 ]]
}
# cached FILE: how many of its pages are in the kernel's cache
cached() {
  python3 - "$1" <<'END'
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDONLY)
n = os.fstat(fd).st_size
libc.mmap.restype = ctypes.c_void_p
p = libc.mmap(None, ctypes.c_size_t(n), mmap.PROT_READ, mmap.MAP_PRIVATE, fd, ctypes.c_long(0))
v = (ctypes.c_ubyte * (-(-n // mmap.PAGESIZE)))()
assert libc.mincore(ctypes.c_void_p(p), ctypes.c_size_t(n), v) == 0
print(sum(x & 1 for x in v))
END
}

run_suite "$@"
