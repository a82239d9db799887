#!/bin/bash
# How to learn without syslog why a read has failed: .ckptfs/log, -o log, the stats command.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="the_last_thousand_lines_are_kept"

# harmless FILE...: nothing on which a terminal acts: C0 except newline, DEL, C1, marks that change the text's direction
harmless() {
  ! LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]' "$@" ||
    fail "$(LC_ALL=C cat -v "$@")"
}

# damaged_mount C M [OPTION...]: a mount of which a data file is then truncated
damaged_mount() {
  copy_of plain "$1"
  mount_at "$2" "$1" -o index=:memory: "${@:3}"
  truncate -s 10 "$1/__0_0.distcp"
}
sentences() { sed 's/^[^ ]* //; s/ ([0-9]* times)$//' "$@"; }
written() { [[ -s $1 ]]; }

test_an_error_has_a_reason() {
  damaged_mount c m -o log=log
  is "" "$(cat m/.ckptfs/log)"
  is "" "$(cat log)"
  try_eio cat m/tensors/model.norm
  grep -qE "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:]{8}Z open '/tensors/model.norm': .*'__0_0.distcp'" m/.ckptfs/log ||
    fail "$(cat m/.ckptfs/log)"
  is 1 "$(wc -l <m/.ckptfs/log)"
  wait_until written log
  is "$(sentences m/.ckptfs/log)" "$(sentences log)"
  ckptfs stats m >table
  is "  $(cat m/.ckptfs/log)" "$(sed -n '/^log$/,$ { /^log$/d; p }' table)"
  ckptfs stats --json m >json
  python3 -c 'import json
assert json.load(open("json"))["log"] == open("m/.ckptfs/log").read().splitlines()'
  is "$(cat m/.ckptfs/log)" "$(tail -n 1 m/.ckptfs/log)"
}

test_what_fails_again_is_counted() {
  local i
  damaged_mount c m
  for i in 1 2 3; do try_eio cat m/tensors/model.norm; done
  try_eio cat m/objects/lr
  try_eio cat m/tensors/model.norm
  grep -q "'/objects/lr'" m/.ckptfs/log
  # Each file has one line, and another after half a minute; their counts must add up to all failures.
  cat m/.ckptfs/log >log
  is 4 "$(awk "/'\/tensors\/model.norm'/ { n += match(\$0, / \\([0-9]+ times\\)\$/) ? substr(\$0, RSTART + 2) : 1 }
    END { print n }" log)"
}

make_many() { make_dcp --many 1200 ckpt; }
test_the_last_thousand_lines_are_kept() {
  local c
  cp -r "$(once many make_many)/ckpt" c
  mount_at m c -o index=:memory:
  truncate -s 10 c/*.distcp
  # shellcheck disable=SC2010 # in the order of the directory
  ls -f m/tensors | grep -v '^\.' >names
  while read -r name; do ! cat "m/tensors/$name" 2>/dev/null || fail "$name is there"; done <names
  is 1000 "$(wc -l <m/.ckptfs/log)"
  is "$(tail -n 1000 names)" "$(sed "s/.*'\/tensors\/\([^']*\)'.*/\1/; s/.*tensor '\([^']*\)'.*/\1/" m/.ckptfs/log)"
  ckptfs stats m >table
  is 10 "$(sed -n '/^log$/,$p' table | grep -c '^  20')"
}

test_it_is_opened_but_not_listed() {
  need_fixture plain
  mount_at m "$(fixture plain)/ckpt"
  is info.json "$(entries m/.ckptfs)"
  is "regular file 444 0" "$(stat -c '%F %a %s' m/.ckptfs/log | sed 's/empty //')"
  if : 2>/dev/null >m/.ckptfs/log; then fail "it was written to"; fi
  refused 'no such file' ckptfs cat "$(fixture plain)/ckpt" .ckptfs/log
}

test_a_run_has_one_as_well() {
  mkdir run
  copy_of plain run/step-1
  copy_of plain run/step-2
  aged run
  mount_at m run -o index=:memory:,log=log
  cat m/step-2/tensors/model.norm >/dev/null
  truncate -s 10 run/step-2/__0_0.distcp
  touch -d '1 hour ago' run/step-2/__0_0.distcp
  try_eio cat m/step-2/objects/lr
  grep -q "'/step-2/objects/lr'" m/.ckptfs/log || fail "$(cat m/.ckptfs/log)"
  wait_until written log
}

test_names_do_nothing_to_a_terminal() {
  local f
  copy_of plain c
  printf '%s\n' $'s/^model\\.norm$/\e[2J\xc2\x9b31m\u202eexe/' >rules
  mount_at m c -o index=:memory:,log=log,rename="$PWD/rules"
  truncate -s 10 c/__0_0.distcp
  for f in m/tensors/*; do try_eio cat "$f"; done
  cat m/.ckptfs/log >a
  [[ -s a ]] || fail "nothing was logged"
  wait_until written log
  ckptfs stats m >b
  harmless a b log
}

test_the_file_is_added_to() {
  damaged_mount c m -o log=log
  is 600 "$(stat -c %a log)"
  try_eio cat m/objects/lr
  wait_until written log
  ckptfs umount m
  cp log before
  mount_at m c -o allow_missing,log="$PWD/log"
  ckptfs umount m
  cmp before <(head -c "$(wc -c <before)" log)
}

test_only_a_file_of_ones_own_is_written_to() {
  local c
  need_fixture plain
  c=$(fixture plain)/ckpt
  mkdir m dir
  echo mine >target
  ln -s "$PWD/target" link
  ln -s absent dangling
  echo two >one
  ln one two
  mkfifo pipe
  refused "option 'log': 'link' is a symbolic link: name the file itself" ckptfs mount "$c" m -o log=link
  refused "is a symbolic link" ckptfs mount "$c" m -o log=dangling
  refused "option 'log': 'one' has several names: name a new file" ckptfs mount "$c" m -o log=one
  refused "option 'log': 'dir'" ckptfs mount "$c" m -o log=dir
  refused "option 'log': '/dev/null' is not a regular file" ckptfs mount "$c" m -o log=/dev/null
  refused "option 'log'" ckptfs mount "$c" m -o log=pipe
  refused "option 'log': 'no/where': No such file" ckptfs mount "$c" m -o log=no/where
  [[ ! -e absent ]]
  is mine "$(cat target)"
  if ((EUID == 0)); then
    echo theirs >other
    chown 1234 other
    refused "option 'log': 'other' belongs to another user: name a new file" ckptfs mount "$c" m -o log=other
  fi
}

# Files are limited to 1 KiB, which is like a full disk but also sends a signal.
test_a_full_disk_stops_nothing() {
  copy_of plain c
  mkdir m
  (
    ulimit -f 1
    exec "$CKPTFS" mount c m -o index=:memory:,log=log
  )
  truncate -s 10 c/__0_0.distcp
  for f in m/tensors/* m/objects/*; do ! cat "$f" >/dev/null 2>&1 || fail "$f is there"; done
  (($(wc -l <m/.ckptfs/log) > 8)) || fail "$(cat m/.ckptfs/log)"
  ls m/tensors >/dev/null
  (($(wc -c <log) <= 1024))
}

test_in_the_foreground_too() {
  local pid
  copy_of plain c
  mkdir m
  "$CKPTFS" mount -f c m -o index=:memory:,log=log 2>messages &
  pid=$!
  wait_until is_mounted m
  truncate -s 10 c/__0_0.distcp
  try_eio cat m/objects/lr
  wait_until written log
  is "$(sentences m/.ckptfs/log)" "$(sentences log)"
  is "ckptfs: $(sentences m/.ckptfs/log)" "$(tail -n 1 messages)"
  kill "$pid"
  wait "$pid" || true
}

# What a daemon that has been taken over can write is one line each, and harmless.
test_no_line_is_forged() {
  local pid rc=0
  copy_of plain c
  mkdir m
  "$CKPTFS" mount -f c m -o index=:memory:,log=log,sandbox=off 2>/dev/null &
  pid=$!
  wait_until is_mounted m
  python3 - "$pid" <<'END' || rc=$?
import ctypes, errno, os, sys, time
pid = int(sys.argv[1])
until = time.monotonic() + 60
found = []
while len(found) != 1:  # while it starts it may have others
    if time.monotonic() > until:
        sys.exit(f"sockets: {found}")
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
                found.append(int(fd))
        except FileNotFoundError:
            pass
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(438, os.pidfd_open(pid), found[0], 0)
if fd < 0:
    sys.exit(77 if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else os.strerror(ctypes.get_errno()))
os.write(fd, b"\0one\n2026-01-01T00:00:00Z two\033[2J\0three" + b"\xff" * 900)
END
  ((rc != 77)) || skip "pidfd_getfd is not allowed here"
  is 0 $rc
  wait_until written log
  kill "$pid"
  wait "$pid" || true
  is 1 "$(wc -l <log)"
  harmless log
}

run_suite "$@"
