#!/bin/bash
# Older kernels and containers: calls that a kernel may lack get ENOSYS (without.c); a user namespace without root
# outside; the first process of a pid namespace. Everything is served, and messages say what is missing.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

without() { "${CKPTFS%/*}/tests/without" "$@"; }
# A build with a sanitizer needs some of these calls, and has no sandbox.
need_release() {
  case ${VARIANT:-release} in asan | tsan) exit 0 ;; esac
}

# The calls that are missing, and the part of the sandbox that is then missing. NUMBER+ means all calls from that number
# on, as in a kernel: 424+ Linux 5.0, 436+ 5.4, 441+ 5.10, 451+ 6.1.
cases_what_a_kernel_lacks() {
  printf '%s\n' '424+ Landlock' '436+ Landlock' '441+ Landlock' '451+ none' 'landlock_create_ruleset Landlock' \
    'openat2 none' 'seccomp seccomp' 'statx none' 'memfd_create none' 'renameat2 none' 'copy_file_range none' \
    'getrandom none' 'openat2,landlock_create_ruleset,seccomp,statx,cachestat Landlock'
}
test_what_a_kernel_lacks() {
  local calls=$1 missing=$2 first=$2
  need_release
  mkdir run n
  big_copy run/step-1
  old_copy "$(zoo)" run/step-2
  mkdir m
  without "$calls" "$CKPTFS" mount -q run m -o log="$T/log"
  cmp m/step-1/tensors/w "$(big)/w.bin"
  cmp m/step-1/tensors/v "$(big)/v.bin"
  is "$ZOO" "$(entries m/step-2/tensors | tr ' ' '\n' | sed -n 's/^model\.//p' | sorted)"
  # A changed data file is an error here, too. Before Linux 6.6 tensors/w may be in the kernel's cache until the daemon
  # notices the change.
  truncate -s 100 run/step-1/*.distcp
  try_eio cat m/step-1/npy/w.npy
  try_eio cat m/step-1/tensors/w
  ckptfs umount m
  # If the real kernel has no Landlock, that is missing as well, and is named first.
  if ! has_landlock 1; then
    first=Landlock
    if [[ $missing == none ]]; then missing=Landlock; fi
  fi
  if [[ $missing == none ]]; then
    [[ ! -s log ]] || ! grep sandbox log || fail "missing"
    without "$calls" "$CKPTFS" mount -q "$(zoo)" n -o sandbox=on
    ckptfs umount n
  else
    grep "a part of the sandbox is missing: .*$missing" log
    refused "sandbox: .*$first" without "$calls" "$CKPTFS" mount -q "$(zoo)" n -o sandbox=on
  fi
  # Commands, some of which write.
  without "$calls" "$CKPTFS" cat "$(big)/ckpt" tensors/v | cmp - "$(big)/v.bin"
  without "$calls" "$CKPTFS" check -q "$(big)/ckpt"
  without "$calls" "$CKPTFS" export -q "$(big)/ckpt" tensors files
  cmp files/w "$(big)/w.bin"
  without "$calls" "$CKPTFS" reshard -q "$(big)/ckpt" two --ranks 2
  without "$calls" "$CKPTFS" reshard -q --overwrite "$(big)/ckpt" two --ranks 3
  ckptfs cat two tensors/w | cmp - "$(big)/w.bin"
}

# Links inside the checkpoint are followed only if the kernel can make sure that they stay inside.
test_links_without_openat2() {
  local file
  need_release
  big_copy c
  mkdir c/real
  for file in c/*.distcp; do
    mv "$file" c/real/
    ln -s "real/${file#c/}" "$file"
  done
  ckptfs cat c tensors/w | cmp - "$(big)/w.bin"
  refused 'not a regular file of the checkpoint' without openat2 "$CKPTFS" cat --index=:memory: c tensors/w
}

# Root inside the namespace has no privileges outside; it mounts by mount(2), not by fusermount3.
test_root_of_a_user_namespace() {
  unshare -rm true 2>/dev/null || skip "no user namespaces"
  as_user_and_root "$(big)" <<'END'
  # shellcheck disable=SC2016 # expanded inside
  $as unshare -rm bash -euxc '
    "$CKPTFS" mount -q c m -o sandbox=auto --index=:memory:
    cmp m/tensors/w "$1/w.bin"
    [[ $(stat -c %u m/tensors/w) == 0 ]]
    "$CKPTFS" umount m
    ! mountpoint m' _ "$1"
END
}

# Like a container's main program, it must reap all children itself, and gets only signals that it handles.
test_first_process_of_a_pid_namespace() {
  local pid rc=0
  unshare -pfm --mount-proc true 2>/dev/null || skip "no pid namespaces"
  mkdir m
  # shellcheck disable=SC2016 # expanded inside
  unshare -pfm --mount-proc bash -c 'exec "$CKPTFS" mount -q "$1" m -f' _ "$(big)/ckpt" &
  wait_until first_process $!
  pid=$(first_process $!)
  wait_until is_there "/proc/$pid/root$T/m/tensors/w"
  is 1 "$(awk '/^NSpid:/ { print $NF }' "/proc/$pid/status")"
  cmp "/proc/$pid/root$T/m/tensors/w" "$(big)/w.bin"
  kill -TERM "$pid"
  wait $! || rc=$?
  is 0 $rc
}
first_process() {
  local p
  p=$(<"/proc/$1/task/$1/children") || return 1
  [[ -n $p && /proc/${p%% *}/exe -ef $CKPTFS ]] && echo "${p%% *}"
}
is_there() { [[ -e $1 ]]; }

run_suite "$@"
