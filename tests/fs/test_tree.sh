#!/bin/bash
# Names, attributes and listings.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

test_root_has_the_documented_directories() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  [[ $(cd m && find . -mindepth 1 -maxdepth 1 -printf '%f/%y\n' | sort | xargs) == \
    ".ckptfs/d hf/d npy/d objects/d pt/d safetensors/d tensors/d" ]] || fail "$(ls -A m)"
  python3 -m json.tool m/.ckptfs/info.json >/dev/null
}

test_absent_names_are_absent_twice() {
  local i
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  for i in 1 2; do
    [[ ! -e m/absent && ! -e m/tensors/absent && ! -e m/tensors/absent/below ]]
    [[ ! -e m/npy/model.norm && ! -e m/tensors/model.norm.npy && ! -e m/tensors/MODEL.NORM ]]
    [[ ! -e m/tensors/step/below ]]
    LC_ALL=C cat m/tensors/absent 2>err || true
    grep -q 'No such file' err || fail "attempt $i: $(cat err)"
    LC_ALL=C cat m/tensors/step/below 2>err || true
    grep -q 'Not a directory' err || fail "attempt $i: $(cat err)"
  done
}

test_long_name_is_refused() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  LC_ALL=C stat "m/tensors/$(printf 'x%.0s' {1..256})" 2>err || true
  grep -q 'File name too long' err
  [[ ! -e m/tensors/$(printf 'x%.0s' {1..255}) ]]
}

test_directories_list_in_natural_order() {
  need_fixture many_items
  mount_at m "$(fixture many_items)/ckpt"
  python3 - m/tensors <<'END'
import os, re, sys
names = os.listdir(sys.argv[1])
key = lambda s: [(0, int(p)) if p.isdigit() else (1, p) for p in re.findall(r"\d+|\D", s)]
assert names == sorted(names, key=key), names[:20]
assert len(names) == len(set(names)) == 420, len(names)
END
}

test_listing_can_be_resumed_anywhere() {
  need_fixture many_items
  mount_at m "$(fixture many_items)/ckpt"
  python3 - m/tensors <<'END'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)

def page(size):
    """(d_off, name) of one getdents64."""
    buf = ctypes.create_string_buffer(size)
    n = libc.syscall(217, fd, buf, size)
    assert n >= 0, ctypes.get_errno()
    out, at = [], 0
    while at < n:
        reclen = int.from_bytes(buf.raw[at + 16 : at + 18], "little")
        off = int.from_bytes(buf.raw[at + 8 : at + 16], "little")
        out.append((off, buf.raw[at + 19 : at + reclen].split(b"\0")[0]))
        at += reclen
    return out

def rest(size):
    out = []
    while got := page(size):
        out += got
    return out

if os.uname().machine != "x86_64":
    sys.exit(0)
whole = rest(1 << 16)
assert whole[0][1] == b"." and whole[1][1] == b"..", whole[:2]
assert len({n for _, n in whole}) == len(whole) == 422
os.lseek(fd, 0, os.SEEK_SET)
assert rest(300) == whole
for i in (0, 1, 2, 5, 200, len(whole) - 1):
    os.lseek(fd, whole[i][0], os.SEEK_SET)
    assert rest(4096) == whole[i + 1 :], i
END
}

test_stat_fields() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  python3 - m "$(fixture plain)/ckpt/.metadata" <<'END'
import os, stat, sys
m, meta = sys.argv[1:]
mtime = os.stat(meta).st_mtime_ns
for root, dirs, files in os.walk(m):
    for n in [*dirs, *files, "."]:
        st = os.stat(os.path.join(root, n))
        where = os.path.join(root, n)
        assert st.st_mtime_ns == st.st_ctime_ns == st.st_atime_ns == mtime, where
        assert st.st_blksize == 1 << 20, where
        assert st.st_blocks == -(-st.st_size // 512), where
        assert (st.st_uid, st.st_gid) == (os.getuid(), os.getgid()), where
        if n in files:
            assert stat.S_ISREG(st.st_mode) and stat.S_IMODE(st.st_mode) == 0o444, where
            assert st.st_nlink == 1, where
        else:
            assert stat.S_ISDIR(st.st_mode) and stat.S_IMODE(st.st_mode) == 0o555, where
            subdirs = sum(e.is_dir() for e in os.scandir(where))
            assert st.st_nlink == 2 + subdirs, (where, st.st_nlink)
END
}

test_entry_types_and_numbers_agree_with_stat() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  python3 - m <<'END'
import os, sys
seen = {}
for root, dirs, files in os.walk(sys.argv[1]):
    for e in os.scandir(root):
        st = os.stat(e.path)
        assert e.inode() == st.st_ino, e.path
        assert e.is_dir(follow_symlinks=False) == os.path.isdir(e.path)
        assert st.st_ino not in seen, (e.path, seen[st.st_ino])
        seen[st.st_ino] = e.path
END
}

test_inode_numbers_are_the_same_at_every_mount() {
  local f
  for f in plain weird_fqns mp4_ranklocal; do
    fixture $f >/dev/null || continue
    mount_at $f.1 "$(fixture $f)/ckpt"
    (cd $f.1 && find . -printf '%i %p\0' | sort -z) >$f.a
    ckptfs umount $f.1
    mount_at $f.2 "$(fixture $f)/ckpt" -o index=:memory:
    (cd $f.2 && find . -printf '%i %p\0' | sort -z) >$f.b
    cmp $f.a $f.b
  done
}

test_include_and_exclude_choose_names_not_numbers() {
  need_fixture plain
  mount_at all "$(fixture plain)/ckpt"
  mount_at some "$(fixture plain)/ckpt" -o 'include=model.*,exclude=*norm*'
  [[ $(cd some/tensors && echo ./*) == "./model.layers.0.w ./model.layers.1.w ./model.tok.weight" ]] ||
    fail "$(ls some/tensors)"
  [[ -z $(ls some/objects) ]]
  cmp some/tensors/model.tok.weight all/tensors/model.tok.weight
  ckptfs umount some
  mount_at some "$(fixture plain)/ckpt" --include model.norm --include=step
  [[ $(cd some/tensors && echo ./*) == "./model.norm ./step" ]] || fail "$(ls some/tensors)"
}

test_weird_names_say_their_fqn() {
  need_fixture weird_fqns
  mount_at m "$(fixture weird_fqns)/ckpt"
  python3 - m/tensors "$(fixture weird_fqns)/expected.json" <<'END'
import json, os, sys
want = {f.encode("utf-8", "surrogatepass") for f in json.load(open(sys.argv[2]))["tensors"]}
d = os.fsencode(sys.argv[1])
got = [os.getxattr(os.path.join(d, n), "user.ckptfs.fqn") for n in os.listdir(d)]
assert sorted(got) == sorted(want)
END
}

test_extended_attributes() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  local f=m/tensors/model.tok.weight
  [[ $(getfattr --only-values -n user.ckptfs.fqn $f) == model.tok.weight ]]
  [[ $(getfattr --only-values -n user.ckptfs.dtype $f) == float32 ]]
  [[ $(getfattr --only-values -n user.ckptfs.shape $f) == "[7,5]" ]]
  [[ $(getfattr --only-values -n user.ckptfs.chunks $f) == 1 ]]
  [[ $(getfattr --only-values -n user.ckptfs.files $f) == 1 ]]
  [[ $(getfattr --absolute-names -d $f | grep -c ckptfs) == 5 ]]
  LC_ALL=C getfattr -n user.other $f 2>err || true
  grep -q 'No such attribute' err
  python3 - $f <<'END'
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
buf = ctypes.create_string_buffer(4)
path = sys.argv[1].encode()
assert libc.getxattr(path, b"user.ckptfs.fqn", buf, 4) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.getxattr(path, b"user.ckptfs.fqn", None, 0) == len("model.tok.weight")
assert libc.listxattr(path, buf, 4) == -1 and ctypes.get_errno() == errno.ERANGE
assert sorted(os.listxattr(path)) == sorted(
    "user.ckptfs." + n for n in ("fqn", "dtype", "shape", "chunks", "files"))
END
  [[ -z $(getfattr -d m) ]]
  # Labels and ACLs: `ls -l` must not cause a request for each file.
  LC_ALL=C getfattr -n security.selinux $f 2>err || true
  grep -q 'Operation not supported' err
}

test_statfs() {
  mount_at m "$(big)/ckpt"
  local bytes=$((2048 * 4096 * 4 + 1023 * 777 * 4))
  [[ $(stat -f -c '%l %a %f' m) == "255 0 0" ]] || fail "$(stat -f m)"
  [[ $(stat -f -c '%b' m) == $(((bytes + 4095) / 4096)) ]] || fail "$(stat -f m)"
  [[ $(df --output=used -B1 m | tail -1) -ge $bytes ]]
}

# Every call that would write fails with the right errno.
test_nothing_can_be_written() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  cp "$(fixture plain)/ckpt/.metadata" here
  python3 - m <<'END'
import errno, os, sys
m = sys.argv[1]
f, d = f"{m}/tensors/step", f"{m}/tensors"
calls = {
    "create": lambda: os.open(f"{d}/new", os.O_CREAT | os.O_WRONLY),
    "create in the root": lambda: os.open(f"{m}/new", os.O_CREAT | os.O_WRONLY),
    "write": lambda: os.open(f, os.O_WRONLY),
    "read and write": lambda: os.open(f, os.O_RDWR),
    "append": lambda: os.open(f, os.O_WRONLY | os.O_APPEND),
    "truncate at open": lambda: os.open(f, os.O_WRONLY | os.O_TRUNC),
    "truncate for reading": lambda: os.open(f, os.O_RDONLY | os.O_TRUNC),
    "temporary": lambda: os.open(d, os.O_TMPFILE | os.O_RDWR),
    "truncate": lambda: os.truncate(f, 0),
    "unlink": lambda: os.unlink(f),
    "mkdir": lambda: os.mkdir(f"{d}/new"),
    "rmdir": lambda: os.rmdir(d),
    "rename": lambda: os.rename(f, f"{d}/new"),
    "link": lambda: os.link(f, f"{d}/new"),
    "symlink": lambda: os.symlink("x", f"{d}/new"),
    "mkfifo": lambda: os.mkfifo(f"{d}/new"),
    "chmod": lambda: os.chmod(f, 0o644),
    "chown": lambda: os.chown(f, 0, 0),
    "utime": lambda: os.utime(f),
    "setxattr": lambda: os.setxattr(f, "user.x", b"1"),
    "removexattr": lambda: os.removexattr(f, "user.ckptfs.fqn"),
}
for name, call in calls.items():
    try:
        call()
        sys.exit(f"{name}: worked")
    except OSError as e:
        assert e.errno == errno.EROFS, f"{name}: {e}"
assert not os.access(f, os.W_OK) and os.access(f, os.R_OK)
END
}

test_file_handles_work() {
  mount_at m "$(big)/ckpt"
  python3 - m/tensors/v "$(big)/v.bin" <<'END'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
h, mount_id = Handle(128), ctypes.c_int()
assert libc.name_to_handle_at(-100, sys.argv[1].encode(), ctypes.byref(h), ctypes.byref(mount_id), 0) == 0
if os.getuid() == 0:
    at = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
    fd = libc.open_by_handle_at(at, ctypes.byref(h), os.O_RDONLY)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    assert os.pread(fd, 100, 1000) == open(sys.argv[2], "rb").read()[1000:1100]
END
}

# Another mount at the same place may have given the number to another file.
test_file_handles_of_an_earlier_mount_are_stale() {
  local step
  [[ $EUID == 0 ]] || skip "not root"
  for step in keep "open 0" "open 116"; do
    [[ $step == "open 0" ]] || mount_at m "$(big)/ckpt"
    # shellcheck disable=SC2086 # words
    python3 - m/tensors/v handle $step <<'END'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
path, file, what, *error = sys.argv[1:]
h, mount_id = Handle(128), ctypes.c_int()
if what == "keep":
    assert libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount_id), 0) == 0
    open(file, "wb").write(h)
else:
    open(file, "rb").readinto(h)
    at = os.open(os.path.dirname(path), os.O_RDONLY)
    fd = libc.open_by_handle_at(at, ctypes.byref(h), os.O_RDONLY)
    assert (fd < 0 and ctypes.get_errno()) == int(error[0]), (fd, os.strerror(ctypes.get_errno()))
END
    [[ $step == keep ]] || ckptfs umount m
  done
}

run_suite "$@"
