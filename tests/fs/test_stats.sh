#!/bin/bash
# What a mount says about itself: .ckptfs/stats.json and the stats command.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

python() { PYTHONPATH=$HERE "$PYTHON" -B -S - "$@"; }

# w is cut into columns, so that each block of 4096 bytes is one contiguous piece of one item.
test_known_reads_are_counted_exactly() {
  mount_at m "$(big)/ckpt"
  python m "$(big)/w.bin" <<'END'
import os, sys
from stats import *
m, whole = sys.argv[1:]
want = open(whole, "rb").read()
fd = direct(f"{m}/tensors/w")

def read_some():
    for block in range(100, 110):
        assert pread(fd, 4096, block * 4096) == want[block * 4096 : block * 4096 + 4096]

got = change(m, read_some)
assert got == {
    "requests.read": 10,
    "served_bytes": 40960,
    "read_latency": 10,
    "copies.moves": 10,
    "copies.bytes": 40960,
    "source.reads": 10,
    "source.bytes": 40960,
}, got
# A long read may come out of the page cache or not, because the cache may lose pages at any time.
fd = direct(f"{m}/tensors/w")
def read_more():
    assert pread(fd, 1 << 20, 1 << 20) == want[1 << 20 : 2 << 20]
got = change(m, read_more)
assert got["served_bytes"] == 1 << 20, got
assert got.get("source.bytes", 0) + got.get("source.mapped_bytes", 0) >= 1 << 20, got
# At the end of the file a read returns the bytes that are left.
size = os.fstat(fd).st_size
v = direct(f"{m}/tensors/v")
end = os.fstat(v).st_size
got = change(m, lambda: pread(v, 4096, end // 4096 * 4096))
assert got["requests.read"] == 1 and got["served_bytes"] == end % 4096, got
END
}

test_looking_changes_nothing() {
  mount_at m "$(big)/ckpt"
  python m <<'END'
import os, sys
from stats import *
m = sys.argv[1]
f = f"{m}/.ckptfs/stats.json"
stats(m)  # once before, so that looking up the path is not counted

def look():
    for _ in range(20):
        stats(m)
        os.stat(f)
        os.listxattr(f)

got = change(m, look)
assert set(got) <= {"requests.listxattr"}, got
END
}

test_opens_and_closes() {
  mount_at m "$(big)/ckpt"
  python m <<'END'
import os, sys
from stats import *
m = sys.argv[1]
fds = []
got = change(m, lambda: fds.extend(os.open(f"{m}/tensors/v", os.O_RDONLY) for _ in range(5)))
assert got["requests.open"] == 5 and got["open_files"] == 5 and "requests.release" not in got, got
got = change(m, lambda: [os.close(fd) for fd in fds], release=5)
assert got == {"requests.release": 5, "open_files": -5}, got
assert stats(m)["open_files"] == 0
got = change(m, lambda: os.listdir(f"{m}/tensors"), releasedir=1)
assert got["requests.opendir"] == got["requests.releasedir"] == 1, got
for kind in ("lookup", "statfs", "getxattr"):
    act = {
        "lookup": lambda: os.path.exists(f"{m}/tensors/absent"),
        "statfs": lambda: os.statvfs(m),
        "getxattr": lambda: os.getxattr(f"{m}/tensors/v", "user.ckptfs.dtype"),
    }[kind]
    got = change(m, act)
    assert got == {f"requests.{kind}": 1}, (kind, got)
END
}

test_errors_are_counted_by_name() {
  big_copy c
  mount_at m c
  python m c <<'END'
import errno, os, sys
from stats import *
m, c = sys.argv[1:]
fd = direct(f"{m}/tensors/w")
for name in os.listdir(c):
    if name.endswith(".distcp"):
        os.truncate(f"{c}/{name}", 100)

def spoiled():
    for block in range(3):
        try:
            pread(fd, 4096, block * 4096)
            raise AssertionError("no error")
        except OSError as e:
            assert e.errno == errno.EIO, e

got = change(m, spoiled)
assert got["errors.EIO"] == got["source.faults"] == got["requests.read"] == 3, got
assert "served_bytes" not in got and "copies.moves" not in got, got
try:
    os.getxattr(f"{m}/tensors/w", "user.absent")
except OSError:
    pass
assert stats(m)["errors"]["ENODATA"] == 1
END
}

test_nothing_is_lost_when_many_read() {
  mount_at m "$(big)/ckpt"
  python m <<'END'
import sys, threading
from stats import *
m = sys.argv[1]

def reader(seed):
    fd = direct(f"{m}/tensors/w")
    for i in range(250):
        pread(fd, 4096, (seed * 131 + i * 17) % 2048 * 4096)
    os.close(fd)

def all_readers():
    threads = [threading.Thread(target=reader, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for _ in range(20):
        stats(m)  # meanwhile
    for t in threads:
        t.join()

got = change(m, all_readers, release=8)
assert got["requests.read"] == got["read_latency"] == got["copies.moves"] == 2000, got
assert got["served_bytes"] == 2000 * 4096, got
assert got["requests.open"] == got["requests.release"] == 8 and "open_files" not in got, got
END
}

test_decoded_blocks() {
  need_fixture mp4_zstd
  mount_at m "$(fixture mp4_zstd)/ckpt"
  cat m/tensors/* >/dev/null
  python m <<'END'
import os, sys
from stats import *
m = sys.argv[1]
cache = stats(m)["block_cache"]
assert 0 < cache["misses"] and 0 < cache["bytes"] <= cache["max_bytes"], cache
name = max(os.listdir(f"{m}/tensors"), key=lambda n: os.stat(f"{m}/tensors/{n}").st_size)
fd = direct(f"{m}/tensors/{name}")
got = change(m, lambda: pread(fd, 4096, 0))
assert got["block_cache.hits"] > 0 and "block_cache.misses" not in got, got
END
}

# In all the ways in which files of /proc are read.
test_the_file_is_read_in_any_way() {
  mount_at m "$(big)/ckpt"
  local f=m/.ckptfs/stats.json
  is "0 0 regular empty file" "$(LC_ALL=C stat -c '%s %b %F' $f)"
  cat $f | python3 -m json.tool >/dev/null
  dd if=$f bs=7 status=none | python3 -m json.tool >/dev/null
  cp $f copy
  python3 -m json.tool copy >/dev/null
  (($(wc -c <$f) > 1000))
  is "}" "$(tail -n 1 $f)"
  grep -q '"served_bytes"' $f
  is "$(big)/ckpt" "$(jq -r .checkpoint $f)"
  python m <<'END'
import json, mmap, os, sys
f = f"{sys.argv[1]}/.ckptfs/stats.json"
fd = os.open(f, os.O_RDONLY)
a = os.read(fd, 10) + os.read(fd, 1 << 20)
assert os.read(fd, 10) == b""
assert os.pread(fd, 1 << 20, 10) == a[10:], "it stands still"
one = json.loads(a)
os.open(f"{sys.argv[1]}/tensors/v", os.O_RDONLY)
os.lseek(fd, 0, os.SEEK_SET)
two = json.loads(os.read(fd, 1 << 20))
assert two["open_files"] == one["open_files"] + 1, "it is made again"
assert two["uptime_seconds"] >= one["uptime_seconds"]
assert os.pread(fd, 10, 1 << 30) == b""
try:
    os.open(f, os.O_RDWR)
    raise AssertionError("open for writing")
except OSError:
    pass
END
}

test_whole_trees_are_copied_and_compared_without_it() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  is info.json "$(entries m/.ckptfs)"
  [[ -e m/.ckptfs/stats.json && ! -e m/stats.json && ! -e m/tensors/stats.json ]]
  cp -r m copy
  diff -r m copy
  tar -C m -cf all.tar .
  tar -C m -df all.tar
  if type rsync >/dev/null 2>&1; then
    rsync -a m/ synced
    is "" "$(rsync -ain --checksum m/ synced)"
  fi
  ckptfs export "$(fixture plain)/ckpt" . exported
  diff -r m exported
  refused 'no such file' ckptfs cat "$(fixture plain)/ckpt" .ckptfs/stats.json
}

test_what_is_negotiated() {
  local pid
  mount_at m "$(big)/ckpt" -o threads=3
  pid=$(daemon_of m)
  python m "$pid" <<'END'
import sys
from stats import *
s = stats(sys.argv[1])
n = s["negotiated"]
assert n["max_pages"] * 4096 >= n["max_read"] >= 131072 and n["max_write"] >= 4096, n
assert n["protocol"].startswith("7.") and n["max_readahead"] > 0, n
assert s["threads"]["workers_max"] == 3 and s["threads"]["running"] >= 1
status = dict(l.split(":", 1) for l in open(f"/proc/{sys.argv[2]}/status"))
rss = int(status["VmRSS"].split()[0]) << 10
assert abs(s["memory"]["rss_bytes"] - rss) < 8 << 20, (s["memory"], rss)
dev = os.stat(sys.argv[1]).st_dev
bdi = f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb"
if os.path.exists(bdi):
    assert n["read_ahead_kb"] == int(open(bdi).read()), n
END
}

test_a_run_counts_what_is_closed_as_well() {
  local i
  need_fixture plain
  mkdir run
  for i in {1..20}; do copy_of plain "run/step-$i"; done
  aged run
  mount_at m run
  python m <<'END'
import os, sys
from stats import *
m = sys.argv[1]
last = 0
served = 0
for i in range(1, 21):
    for name in os.listdir(f"{m}/step-{i}/tensors"):
        data = open(f"{m}/step-{i}/tensors/{name}", "rb").read()
        served += len(data)
        now = stats(m)["copies"]["bytes"]
        assert now == last + len(data), (i, name, now, last, len(data))
        last = now
assert stats(m)["served_bytes"] == served > 0
END
}

test_a_signal_ends_it_while_it_is_open() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  exec 5<m/.ckptfs/stats.json
  head -c 10 <&5 >/dev/null
  kill "$pid"
  wait_until gone "$pid"
  wait_until unmounted m
  exec 5<&-
}

test_the_command() {
  local pid table
  mount_at m "$(big)/ckpt" -o exclude=x,threads=2
  cat m/tensors/v >/dev/null
  table=$(ckptfs stats m)
  grep -qE '^served bytes +3179484 +3\.0 MiB$' <<<"$table" || fail "$table"
  grep -qE '^options +--exclude=x$' <<<"$table"
  grep -qE '^  read +[1-9]' <<<"$table"
  grep -qE '^  below [0-9]+ us +[0-9]+ +#' <<<"$table"
  ! grep -q ' $' <<<"$(grep -v below <<<"$table")" || fail "blanks at ends: $table"
  ckptfs stats --json m >a
  is 3179484 "$(python3 -c 'import json, sys; print(json.load(open("a"))["served_bytes"])')"
  ln -s m link
  ckptfs stats link >/dev/null
  refused 'not a mount of ckptfs' ckptfs stats .
  refused 'not a mount of ckptfs' ckptfs stats m/tensors
  mkdir run
  old_copy "$(big)/ckpt" run/step-1
  mount_at n run # has no identity and no index
  ckptfs stats n >table
  is 2 "$(grep -cE '^(identity|index) +none$' table)"
  refused 'No such file' ckptfs stats absent
  refused 'usage: ckptfs stats MNT' ckptfs stats
  pid=$(daemon_of m)
  kill -9 "$pid"
  wait_until gone "$pid"
  refused 'dead mount' ckptfs stats m
}

test_the_daemon_dies_while_it_is_asked() {
  local pid asked
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  kill -STOP "$pid"
  (refused 'dead mount' ckptfs stats m) &
  asked=$!
  sleep 0.5 # by now it usually waits for an answer; otherwise it finds a dead mount, which works as well
  kill -9 "$pid"
  wait "$asked"
}

run_suite "$@"
