#!/bin/bash
# The author of the checkpoint, or of a file that an option names, is malicious (hostile.py).
# tests/README.md says which test stands for which attack.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="bombs_do_not_go_off bombs_leave_a_mount_alone paths_stay_inside_while_they_change"

hostile() { python3 "$HERE/hostile.py" "$@"; }

# bounded MIB COMMAND...: limits its address space, and its CPU time to far more than linear work would take.
bounded() {
  local mib=$1
  shift
  (
    ulimit -t 20
    [[ ${VARIANT:-release} != release ]] || ulimit -v $((mib << 10))
    exec "$@"
  )
}

# Each case: KIND, N, MiB, exit status of `info`, a word of its output.
cases_metadata_is_answered_within_bounds() {
  local scale=1
  [[ ${VARIANT:-release} == release ]] || scale=10
  cat <<END
crossing_chunks $((10000 / scale)) 200 0 cannot.be.opened
same_chunk $((10000000 / scale)) 2000 0 is.missing
shared_chunks 200000 1000 2 more.than.512.MiB
doubling $((1000000 / scale)) 200 0 stored.nowhere
deep $((2000000 / scale)) 1000 0 stored.nowhere
deep_marks $((2000000 / scale)) 1000 2 STOP.without.a.value
far_memo 4294967295 100 0 .
text_that_is_not_there 4294967299 100 2 ends.too.early
text_that_is_not_there 9223372036854775807 100 2 ends.too.early
text_that_is_not_there 18446744073709551615 100 2 .
huge_int 2147483647 100 2 .
digits $((10000000 / scale)) 100 2 line.at.byte.3.is.longer
huge_shape 2 100 2 larger.than.2.63
huge_shape 64 100 2 larger.than.2.63
huge_shape 65 100 2 at.most.64
far_item 4611686018427387904 100 2 below.2.63
far_item 2305843009213693952 100 0 items.in.it.reach
colliding_names 1000 100 2 is.not.UTF-8
same_wrapper $((5000 / scale)) 400 0 ^tensors
shared_attributes $((200000 / scale)) 400 0 complete.*yes
orbax_strings $((200000 / scale)) 700 0 complete.*yes
END
  full_only <<END
colliding_paths $((150000 / scale)) 250 0 is.missing
overlapping_chunks $((20000 / scale)) 200 0 cannot.be.opened
rows_beside_columns $((20 / scale)) 400 0 may.take.268435456.comparisons.for.that.in.all
empty_chunks $((10000000 / scale)) 2000 0 complete.*yes
memo $((2000000 / scale)) 200 0 stored.nowhere
zarr_files $((60000 / scale)) 200 0 complete.*yes
huge_int $((50000000 / scale)) 100 0 stored.nowhere
END
}
test_metadata_is_answered_within_bounds() {
  local kind=$1 n=$2 mib=$3 wanted=$4 word=$5 rc=0
  case $kind-$n in
    huge_int-2147483647) # the pickle lacks its bytes
      hostile huge_int 8 c
      python3 -c 'import sys
s = open(sys.argv[1], "rb").read()
open(sys.argv[1], "wb").write(s.replace(b"\x8b\x08\0\0\0", b"\x8b\xff\xff\xff\x7f"))' c/.metadata
      ;;
    *) hostile "$kind" "$n" c ;;
  esac
  bounded "$mib" "$CKPTFS" info --index=:memory: c >out 2>&1 || rc=$?
  is "$wanted" "$rc"
  LC_ALL=C grep -qE -- "$word" out || fail "$(head -c 1000 out)"
}

# ---- items ----

# However many tensors have an item, it is read once.
test_an_item_is_read_once() {
  local n
  for n in 1 100; do
    hostile same_item $n c$n
    bounded 100 "$CKPTFS" check --data --json --index=:memory: c$n >out$n
  done
  is "1 100" "$(jq .tensors out1) $(jq .tensors out100)"
  is "$(jq -c '[.bytes, .crcs, .faults]' out1)" "$(jq -c '[.bytes, .crcs, .faults]' out100)"
  hostile views 1000 v
  bounded 100 "$CKPTFS" check --data --json --index=:memory: v/x.pt >out
  is "1000 3 $(python3 -c 'import sys, zipfile
print(sum(i.file_size for i in zipfile.ZipFile(sys.argv[1]).infolist()))' v/x.pt)" \
    "$(jq -r '"\(.tensors) \(.crcs) \(.bytes)"' out)"
  hostile archive_in_archive 0 a
  status_of 1 bounded 100 "$CKPTFS" check --data -v --index=:memory: a
  grep -q "overlaps another archive" out || fail "$(cat out)"
  # 100,000 members of the same ten million bytes
  hostile members_in_members 100000 o
  status_of 1 bounded 200 "$CKPTFS" check --data -v --index=:memory: o/x.pt
  grep -q "^fault: 'x.pt': records 'archive/data/.*' overlap, so no CRCs are verified$" out || fail "$(cat out)"
  is 1 "$(grep -c ^fault out)"
}

test_patterns_of_an_adapter_are_counted() {
  local n=4000
  [[ ${VARIANT:-release} == release ]] || n=100
  hostile lora_patterns $n c
  is $n "$(bounded 400 "$CKPTFS" ls --index=:memory: -o lora=c/adapter c/base | wc -l)"
}

test_bombs_do_not_go_off() {
  hostile zstd_bomb 5000000000 z
  hostile zstd_window 31 w
  hostile zip_bomb 100000000 d
  hostile long_directory 10000 l
  # 160 KB that decode to five GB are refused as an object; they are decoded piece by piece, in little memory.
  [[ ${VARIANT:-release} != release ]] || ! turn 4 || # slow with sanitizers, which check every byte of four GiB
    refused "decodes to more than 4 GiB" bounded 400 "$CKPTFS" cat --index=:memory: z objects/o
  refused "too much memory" bounded 200 "$CKPTFS" cat --index=:memory: w objects/o
  refused "compressed" bounded 200 "$CKPTFS" cat --index=:memory: d tensors/w
  refused "directory of the item's archive has" bounded 200 "$CKPTFS" cat --index=:memory: l tensors/w
}

test_bombs_leave_a_mount_alone() {
  mkdir run
  hostile zstd_window 31 run/a
  hostile zip_bomb 100000000 run/b
  aged run
  big_copy run/c
  mount_at m run
  try_eio cat m/a/objects/o
  try_eio cat m/b/tensors/w
  cmp m/c/tensors/v "$(big)/v.bin"
}

# ---- paths ----

test_paths_stay_inside() {
  echo 'a secret' >secret
  hostile absolute_path 0 a
  refused "absolute path" ckptfs info a
  hostile parent_path 0 p
  mkdir p/a
  refused "an element of it is empty" ckptfs info p
  hostile link_path 0 l
  ln -s ../secret l/link
  status_of 0 ckptfs info l
  grep -q "not a regular file of the checkpoint\|Too many levels\|Invalid cross-device" out || fail "$(cat out)"
  refused . ckptfs cat l tensors/w
}

# A directory of the checkpoint is replaced all the time by a link to another one, with a file of the same name and
# size, and back: reads give the right bytes or an error, never those of the other file.
test_paths_stay_inside_while_they_change() {
  local i n=40
  [[ ${VARIANT:-release} == release ]] || n=10 # starting takes longer
  make_dcp c w 64x64 1x1
  mkdir c/sub outside
  mv c/__w_0.distcp c/sub/f
  python3 - <<'END'
s = open("c/.metadata", "rb").read()
old, new = b"__w_0.distcp", b"sub/////////f"[:3] + b"/" + b"f"
i = s.index(old)
assert s[i - 2] == 0x8c and s[i - 1] == len(old)  # SHORT_BINUNICODE, in a frame
frame = s.index(b"\x95") + 1
size = int.from_bytes(s[frame : frame + 8], "little") - len(old) + len(new)
s = s[:frame] + size.to_bytes(8, "little") + s[frame + 8 : i - 1] + bytes([len(new)]) + new + s[i + len(old) :]
open("c/.metadata", "wb").write(s)
f = open("c/sub/f", "rb").read()
data = open("c.w.bin", "rb").read()
assert data in f
open("outside/f", "wb").write(f.replace(data, b"\x53" * len(data)))
END
  touch -r c/sub/f outside/f
  ckptfs cat c tensors/w | cmp - c.w.bin
  python3 -c 'import os
while not os.path.exists("stop"):
    os.rename("c/sub", "c/away")
    os.symlink("../outside", "c/sub")
    os.remove("c/sub")
    os.rename("c/away", "c/sub")' &
  for ((i = 0; i < n; i++)); do
    ckptfs cat c tensors/w >got 2>said || continue
    cmp got c.w.bin
  done
  touch stop
  wait
  ckptfs cat c tensors/w | cmp - c.w.bin
}

# Whoever waits to write to a FIFO would go on when the program opens it.
test_no_fifo_beside_a_checkpoint_is_opened() {
  local writer
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir -m 1777 s
  cp -r "$(zoo)" s/ckpt
  mkfifo s/config.json
  chown 65534 s/config.json
  (exec 8>s/config.json && : >woken) &
  writer=$!
  wait_until grep -q 'State:.*sleeping' /proc/$writer/status
  ckptfs info s/ckpt >/dev/null
  sleep 0.5
  [[ ! -e woken ]] || fail "it was opened"
  kill $writer
}

# The latest checkpoint of a run is one of its own or none.
cases_latest_stays_inside() { printf '%s\n' /etc ../outside step-1/../../outside . ''; }
test_latest_stays_inside() {
  mkdir run outside
  big_copy run/step-1
  big_copy outside/step-9
  printf '%s' "${1:-}" >run/latest
  mount_at m run
  is step-1 "$(readlink m/latest)"
  ckptfs umount m
  rm run/latest
  [[ -z ${1:-} ]] || ln -s "$1" run/latest
  ckptfs mount run m
  is step-1 "$(readlink m/latest)"
}

# ---- names ----

# harmless FILE...: nothing on which a terminal acts: C0 except newline, DEL, C1, marks that change the text's direction
harmless() {
  if LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]' "$@"; then
    fail "$(LC_ALL=C cat -v "$@")"
  fi
}

test_names_do_nothing_to_a_terminal() {
  local c name
  hostile escapes 0 c
  for c in ls 'ls -l' info check 'ls --json' 'info --json' 'check --json'; do
    # shellcheck disable=SC2086 # words
    ckptfs $c c >out 2>err || true
    harmless out err
    [[ -s out ]]
  done
  for name in $'\e[2J\e]0;owned\a' $'\xc2\x9b31m' $'\u202egnp.exe' $'a\nb\rc' $'\x9b'; do
    ckptfs info c "$name" >out 2>err || true
    harmless out err
    refused . ckptfs cat c "objects/$name"
    harmless err
    ckptfs diff c "$(big)/ckpt" >out 2>err || true
    harmless out err
    refused . ckptfs info "$name"
    harmless err
  done
}

# Warnings about tensors that cannot be shown contain names and classes.
test_warnings_do_nothing_to_a_terminal() {
  local command
  copy_of dcp_cut c
  LC_ALL=C sed -i $'s/OptimState8bit/OptimS\e[31mbit/g' c/*.distcp
  for command in "info c" "check c" "reshard -q c d"; do
    # shellcheck disable=SC2086 # words
    ckptfs $command >out 2>err
    grep "is cut into parts of class OptimS" err >/dev/null || fail "$(cat err)"
    harmless out err
  done
  ckptfs cat c objects/not_shown >out
  harmless out
}

# Messages contain names of encodings, which come from the metadata, and of checkpoints, which come from the disk.
test_encodings_and_checkpoints_do_nothing_to_a_terminal() {
  local name
  copy_of zstd c
  LC_ALL=C sed -i $'s/zstd/z\e[m/g' c/.metadata
  for name in str bf; do
    ckptfs info c "$name" >out 2>err || true
    harmless out err
  done
  grep -q 'dcp+stream.z' out
  mkdir run
  copy_of mp4_fsdp2_adamw run/a
  copy_of mp4_fsdp2_adamw run/b$'\e[31m'
  for name in ls 'ls -l' info stat; do
    # shellcheck disable=SC2086 # words
    ckptfs $name run >out
    harmless out
  done
  grep -q '^b%1B' out
}

test_names_are_the_same_in_json() {
  hostile escapes 0 c
  ckptfs ls --json c >ls.json
  ckptfs info --json c >info.json
  python3 - <<'END'
import json
json.load(open("info.json"))
names = {t["fqn"] for t in json.load(open("ls.json"))}
assert {"\x1b[2J\x1b]0;owned\x07", "\x9b31m", "a\nb\rc", '"}], "x": [{"', "\\u0000\\", "..", ""} <= names, names
END
}

# A name must not act as a path, neither in the mount nor in an export.
test_names_are_no_paths() {
  hostile escapes 0 c
  mount_at m c
  is 15 "$(find m/tensors -type f | wc -l)"
  harmless <(find m/tensors -type f -name '[!%]*' -printf '%f\n' | grep -v $'\xc2\x9b\|\xe2')
  mkdir -p a/b
  ckptfs export c tensors a/b/out
  is 15 "$(find a -type f | wc -l)"
  is "b" "$(entries a)"
  is "out" "$(entries a/b)"
}

# ---- files that options name ----

test_option_files_are_bounded() {
  local f
  cp -r "$(big)/ckpt" c
  echo 's/((((a{255}){255}){255}){255})/x/' >too_large
  refused "too large" bounded 300 "$CKPTFS" ls c --rename=too_large
  echo 's/(((((a*)*)*)*)*)b/x/' >stars
  bounded 300 "$CKPTFS" ls c --rename=stars >out 2>&1
  printf 'mesh dp=4294967296 tp=4294967295\n* dp:0\n' >mesh
  refused "more than" bounded 300 "$CKPTFS" info c --layout=mesh
  printf 'mesh dp=1000000\n* dp:0\n' >large
  bounded 300 "$CKPTFS" cat c ranks/00001/tensors/w --layout=large >out
  # Two million names of 4000 bytes; parameters that refer to parameters, 40,000 deep.
  { echo 'for i in 2000000' && printf 'a%.0s' {1..4000} && printf '{i} = w []\nend\n'; } >names
  refused "made of a tensor|512 MiB|needs 'w'" bounded 300 "$CKPTFS" info c --recipe=names
  { echo 'param p0 = 1' && seq -f 'param p%.0f = p0' 40000 && echo 'refuse p40000 no'; } >params
  refused "more than 1000 params" bounded 300 "$CKPTFS" info c --recipe=params
  for f in /dev/zero /dev/null; do
    bounded 300 "$CKPTFS" ls c --rename=$f >out 2>&1 || true
    bounded 300 "$CKPTFS" info c --layout=$f >out 2>&1 || true
    bounded 300 "$CKPTFS" info c --recipe=$f >out 2>&1 || true
  done
}

# ---- other local users ----

test_cache_of_somebody_else_is_not_used() {
  [[ $EUID == 0 ]] || skip "not root"
  mkdir -p "$XDG_CACHE_HOME/ckptfs"
  chown 65534:65534 "$XDG_CACHE_HOME/ckptfs"
  refused "index: it cannot be kept" ckptfs index --print "$(big)/ckpt"
  mount_at m "$(big)/ckpt"
  cmp -n 100 m/tensors/v "$(big)/v.bin"
  is "" "$(entries "$XDG_CACHE_HOME/ckptfs")"
}

# If others may write to the checkpoint's directory, a stale index is rebuilt in the cache, not through a link that they
# have put there, and without waiting for a lock that they hold.
test_links_and_locks_of_others_beside_a_checkpoint_do_nothing() {
  cp -r "$(big)/ckpt" c
  ckptfs index c --index=c/.ckptfs-index.sqlite >/dev/null
  touch c/.metadata
  printf '\n' >>c/.metadata # stale
  echo precious >victim
  ln -s ../victim c/.ckptfs-index.sqlite.tmp
  : >c/.ckptfs-index.sqlite.lock
  exec 5<c/.ckptfs-index.sqlite.lock
  flock 5
  chmod 777 c
  timeout 200 "$CKPTFS" index c >/dev/null
  [[ $(ckptfs index --print c) == "$XDG_CACHE_HOME"/* ]]
  is precious "$(cat victim)"
}

# A server on the public network redirects to this machine, to a private network, to where credentials are.
test_redirects_lead_into_no_private_network() {
  unshare -mn true 2>/dev/null || skip "no network namespaces"
  cp "$(fixture hf_dtypes)"/ckpt/*.safetensors model.safetensors
  env -u http_proxy -u all_proxy -u ALL_PROXY -u NO_PROXY unshare -mn "$PYTHON" "$HERE/redirects.py" "$CKPTFS" model.safetensors
}

run_suite "$@"
