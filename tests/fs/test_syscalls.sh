#!/bin/bash
# The results of system calls, from the table of syscalls.h, on mounts and on a copy of one in a file system of the
# kernel's own.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

USER_ID=65534

# Makes the checkpoint c, and other files that the program syscalls needs.
prepare() {
  make_dcp c t 601x701 2x3
  mkdir elsewhere
  mv c.t.bin elsewhere/t
  printf 'mesh r=2\nt r:0\n' >mesh
  chmod 755 "$SCRATCH" . # for the user
  chmod 777 elsewhere
}

# syscalls ROOT [ours]: checks the table; as root, also as a user who owns nothing.
syscalls() {
  local program=$T/elsewhere/program
  cp "$(dirname "$CKPTFS")/tests/syscalls" "$program"
  "$program" "$1" "$T/elsewhere" "${@:2}"
  rm -f elsewhere/copy
  ((EUID)) || as_user "$program" "$1" "$T/elsewhere" "${@:2}"
}

cases_system_calls_are_answered_as_on_a_read_only_disk() { printf '%s\n' auto direct cached; }
test_system_calls_are_answered_as_on_a_read_only_disk() {
  prepare
  mount_at m c -o "layout=mesh,io=$1$( ((EUID)) || echo ,allow_other)"
  syscalls m ours
}

# In a run the kernel asks for names and attributes again after a second. A checkpoint's directory is the table's root.
test_system_calls_in_a_run() {
  [[ $EUID == 0 ]] || skip "not root"
  prepare
  mkdir run r
  mv c run/step-1
  aged run
  mount_at m run -o layout=mesh,allow_other
  mount --bind m/step-1 r
  syscalls r ours
}

# Otherwise the table would only say what our file system happens to do.
cases_the_table_is_right_for() { printf '%s\n' tmpfs ext4; }
test_the_table_is_right_for() {
  [[ $EUID == 0 ]] || skip "not root"
  prepare
  mount_at m c -o layout=mesh
  mkdir disk
  case $1 in
    tmpfs) mount -t tmpfs -o mode=555 reference disk ;;
    ext4)
      truncate -s 32M image
      PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q image
      mount -o loop image disk 2>err || skip "no loop devices: $(cat err)"
      ;;
  esac
  cp -a m/. disk/
  mount -o remount,ro disk
  syscalls disk
}

# Modes are checked, and only the user who has mounted has access unless others are allowed.
test_nobody_else_may_look() {
  [[ $EUID == 0 ]] || skip "not root"
  prepare
  mount_at m c
  [[ ! -x m/tensors/t && -r m/tensors/t && -x m/tensors ]]
  is "" "$(find m -type f -executable)"
  if as_user cat m/tensors/t 2>err; then fail "another user may read"; fi
  grep -q 'Permission denied' err
  if as_user ls m 2>err; then fail "another user may list"; fi
  grep -q 'Permission denied' err
  umount m
  ckptfs mount c m -o allow_other
  as_user cmp m/tensors/t elsewhere/t
  if as_user test -x m/tensors/t; then fail "a user may execute"; fi
}
as_user() { LC_ALL=C setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups "$@"; }

run_suite "$@"
