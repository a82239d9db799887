#!/bin/bash
# What the daemon can no longer do (fs/mount/sandbox.h). The other suites show that everything works in the sandbox,
# because it is on by default.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="files_elsewhere_are_out_of_reach"

# A build with sanitizers has no sandbox, and says so.
need_sandbox() {
  case ${VARIANT:-release} in asan | tsan) ;; *) return 0 ;; esac
  mkdir none
  refused "sanitizers" ckptfs mount "$(big)/ckpt" none -o sandbox=on
  exit 0
}

# threads_say PID KEY: the values, each once, that the threads of a process have for a key of /proc/PID/status
threads_say() { awk -v key="$2:" '$1 == key { print $2 }' "/proc/$1"/task/*/status | sort -u | xargs; }

need_landlock() { has_landlock 1 || skip "this kernel has no Landlock"; }

# On some hypervisors int $0x80 is a fault; then there is nothing to forbid.
has_int80() {
  # shellcheck disable=SC2016 # $ of the assembler
  "$PYTHON" -c 'import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))  # mov $getpid, %eax; int $0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()' 2>/dev/null
}

criminal() {
  [[ -e $SCRATCH/crime.so ]] ||
    ${CC:-cc} -D_GNU_SOURCE -O1 -shared -fPIC -I"$HERE/../../core" -o "$SCRATCH/crime.so" "$HERE/crime.c" -ldl
}

# serve_criminal CRIME FILE [options]: a daemon in the foreground, with crime.c preloaded. $world: missing system calls;
# $ckpt: what is mounted.
serve_criminal() {
  local crime=$1 file=$2
  shift 2
  criminal
  mkdir -p m
  LD_PRELOAD=$SCRATCH/crime.so CRIME=$crime CRIME_FILE=$file ${world:+"${CKPTFS%/*}/tests/without" "$world"} \
    "$CKPTFS" mount "${ckpt:-$(big)/ckpt}" m -f "$@" 2>said &
  pid=$!
  wait_until mounted_or_gone
  # It serves, so from here on it is in the sandbox.
  if [[ ${ckpt:-} ]]; then [[ -e m/.ckptfs/info.json ]]; else cmp -n 100 m/tensors/v "$(big)/v.bin"; fi
}
mounted_or_gone() { is_mounted m || gone "$pid"; }
# What the crime's thread reports in its name, which threads that it starts inherit. Other threads may end meanwhile.
told() { { cat "/proc/$pid"/task/*/comm 2>/dev/null || :; } | grep '^errno' | sort -u; }
done_or_dead() { told >/dev/null || gone "$pid"; }
commit_it() {
  kill -USR2 "$pid"
  wait_until done_or_dead
}
end_it() {
  kill -TERM "$pid"
  wait "$pid"
  unmounted m
}

cases_forbidden_calls_kill() { forbidden_calls; }
forbidden_calls() {
  printf '%s\n' execve fork mmap_exec mprotect_exec socket_inet socket_unix_stream ptrace \
    process_vm_readv kill tgkill_other mount umount unshare setns chroot chmod setuid bpf io_uring \
    open_by_handle_at symlinkat ioctl_tty prctl setrlimit_other clone_net setsig_self async \
    socket_unix_dgram socketpair socket_netlink connect_bad sendto_bad sendmsg_bad sendmmsg recvmsg \
    setsockopt notify tkill_other sigqueue tgsigqueue timer_create pidfd_open pidfd_getfd \
    pidfd_send_signal process_vm_writev process_madvise kcmp execveat memfd_create memfd_secret \
    pkey_mprotect shmget remap_file_pages userfaultfd personality keyctl add_key perf_event_open \
    fanotify_init inotify_init1 quotactl open_tree move_mount fsopen mount_setattr pivot_root \
    init_module kexec_load syslog sethostname clock_settime capset seccomp landlock linkat mknodat \
    truncate setxattr fchownat name_to_handle_at ioctl_fuse_clone ioctl_fioasync io_uring_enter \
    io_uring_register io_submit
  if [[ $(uname -m) == x86_64 ]]; then
    echo x32
    if has_int80 2>/dev/null; then echo int80; fi
  fi
}
test_forbidden_calls_kill() {
  local rc=0
  need_sandbox
  # Without a sandbox the call is made, whatever its result; so it is not the call itself that kills.
  serve_criminal "$1" "" -o sandbox=off
  commit_it
  told >/dev/null
  end_it
  serve_criminal "$1" "" -o "$(strictest)"
  commit_it
  wait "$pid" || rc=$?
  is 159 $rc # 128 + SIGSYS
}

# ---- signals and messages to others ----

# The kernel sends SIGIO, or another signal, to the owner of a pipe, which could be set to any process. SIGIO kills
# processes that do not expect it.
cases_signals_to_others() { printf '%s\n' setown setown_group setown_ex setsig; }
test_signals_to_others() {
  local victim rc=0
  need_sandbox
  need_landlock
  setsid sleep 10000 &
  victim=$!
  wait_until leads_a_group "$victim"
  serve_criminal "$1" "$victim" -o sandbox=off
  commit_it
  wait_until gone "$victim"
  end_it
  setsid sleep 10000 &
  victim=$!
  wait_until leads_a_group "$victim"
  serve_criminal "$1" "$victim" -o sandbox=on
  commit_it
  if [[ $1 == setown_ex ]]; then # seccomp cannot see its argument, so it gets EPERM
    is "errno 1" "$(told)"
    end_it
  else
    wait "$pid" || rc=$?
    is 159 $rc
  fi
  kill -0 "$victim"
  kill -9 "$victim"
}
leads_a_group() { [[ $(ps -o pgid= -p "$1" | xargs) == "$1" && $(<"/proc/$1/comm") == sleep ]]; }

# listen_at PATH FILE: writes the datagrams that come to a socket into a file, one per line
listen_at() {
  "$PYTHON" -S -E -c 'import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
with open(sys.argv[2], "w") as f:
    while True:
        f.write(repr(s.recv(2000)) + "\n")
        f.flush()' "$@" &
  listener=$!
  wait_until test -S "$1" -a -e "$2"
}

cases_messages_to_others() { printf '%s\n' connect sendto sendmsg; }
test_messages_to_others() {
  local rc=0
  need_sandbox
  listen_at "$T/s" heard
  serve_criminal "$1" "$T/s" -o sandbox=off
  commit_it
  wait_until grep -q evil heard
  end_it
  serve_criminal "$1" "$T/s" -o "$(strictest)"
  commit_it
  wait "$pid" || rc=$?
  is 159 $rc
  is 1 "$(grep -c evil heard)"
  kill "$listener"
}

# ---- io_uring ----

# Whether io_uring is in use or not, no queue can be made, and libfuse's queues take nothing but its requests.
# ENODEV is 19: there is no queue.
test_io_uring_is_for_requests_only() {
  local rc=0 wanted="errno 19"
  need_sandbox
  need_landlock
  serve_criminal uring_socket "" -o sandbox=on,io_uring
  # EACCES is 13: the queue is restricted.
  if [[ $(number_of m io_uring) == True ]]; then wanted="errno 13"; fi
  commit_it
  is "$wanted" "$(told)"
  end_it
  for crime in io_uring io_uring_register; do
    rc=0
    serve_criminal "$crime" "" -o sandbox=on,io_uring
    commit_it
    wait "$pid" || rc=$?
    is 159 $rc
    umount -l m
  done
  # For comparison, a queue without restrictions can make a socket.
  serve_criminal uring_socket "of its own" -o sandbox=off
  commit_it
  is "errno 0" "$(told)"
  end_it
}

# System calls that are newer than the filter get ENOSYS (38), as if the kernel did not have them.
test_later_calls_are_unknown() {
  need_sandbox
  serve_criminal later_call "" -o "$(strictest)"
  commit_it
  is "errno 38" "$(told)"
  end_it
}

test_all_threads_are_in_it() {
  need_sandbox
  need_landlock
  mount_at m "$(big)/ckpt" -o sandbox=on,threads=8,io=direct
  for ((i = 0; i < 8; i++)); do
    cat m/tensors/w >/dev/null &
  done
  wait
  pid=$(daemon_of m)
  (($(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l) > 2))
  is 1 "$(threads_say "$pid" NoNewPrivs)"
  is 2 "$(threads_say "$pid" Seccomp)"
}

# CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_LEASE.
test_root_keeps_three_capabilities() {
  need_sandbox
  [[ $EUID == 0 ]] || skip "not root"
  mount_at m "$(big)/ckpt" -o io=direct
  pid=$(daemon_of m)
  is 000000001000000c "$(threads_say "$pid" CapEff)"
  is 000000001000000c "$(threads_say "$pid" CapPrm)"
  is 0000000000000000 "$(threads_say "$pid" CapInh)"
  is 0000000000000000 "$(threads_say "$pid" CapBnd)"
  is 0000000000000000 "$(threads_say "$pid" CapAmb)"
  # With io=auto also CAP_SYS_ADMIN, which passthrough needs.
  mount_at auto "$(big)/ckpt"
  is 000000001020000c "$(threads_say "$(daemon_of auto)" CapEff)"
}

# With these capabilities, the bytes of other users' files come out of the page cache without a copy.
test_files_of_others_are_read_by_root() {
  need_sandbox
  need_landlock
  [[ $EUID == 0 ]] || skip "not root"
  big_copy c
  chown -R 65534:65534 c
  chmod 400 c/* c/.metadata
  chmod 500 c
  cat c/*.distcp >/dev/null
  mount_at m c -o sandbox=on
  cmp m/tensors/w "$(big)/w.bin"
  (($(number_of m mapped_bytes) > 0)) || fail "nothing was mapped"
}

# In the sandbox these get EACCES (13).
test_files_elsewhere_are_out_of_reach() {
  local crime file
  need_sandbox
  need_landlock
  echo secret >secret
  while read -r crime file; do
    [[ -n $crime ]] || continue
    serve_criminal "$crime" "$file" -o sandbox=on
    commit_it
    is "errno 13" "$(told)"
    end_it
    [[ $(cat secret) == secret && ! -e made ]]
  done <<END
read_file $T/secret
write_file $T/secret
truncate_file $T/secret
remove_file $T/secret
make_file $T/made
read_file /etc/passwd
make_file $(big)/ckpt/made
remove_file $(big)/ckpt/.metadata
write_file $(big)/ckpt/.metadata
$(has_landlock 3 && echo "truncate_file $(big)/ckpt/.metadata")
END
  [[ -s $(big)/ckpt/.metadata && ! -e $(big)/ckpt/made ]]
  # Files of the checkpoint can be read.
  serve_criminal read_file "$(big)/ckpt/.metadata" -o sandbox=on
  commit_it
  is "errno 0" "$(told)"
  end_it
}

# It writes chunk indexes, but not what all commands of the user take for the bytes of object stores.
test_the_cache_of_objects_is_out_of_reach_of_a_run() {
  local crime ckpt=$PWD/run cache=$XDG_CACHE_HOME/ckptfs
  need_sandbox
  need_landlock
  mkdir run
  big_copy run/step-1
  mkdir -p "$cache/objects"
  echo bytes >"$cache/objects/x"
  for crime in read_file write_file remove_file; do
    serve_criminal $crime "$cache/objects/x" -o sandbox=on
    cmp -n 100 m/step-1/tensors/v "$(big)/v.bin"
    commit_it
    is "errno 13" "$(told)"
    end_it
  done
  is bytes "$(cat "$cache/objects/x")"
  ls "$cache"/index/step-1-*.sqlite
}

# ckptfs-fetch has all rights of the user, and the daemon sends it descriptors of the directories to read.
cases_files_beside_the_checkpoint_are_not_fetched() { printf '%s\n' file run; }
# From then on a thread of the daemon receives what ckptfs-fetch sends.
read_tensors() { find m -path '*/tensors/*' -type f -exec cat {} + >/dev/null; }
test_files_beside_the_checkpoint_are_not_fetched() {
  local ckpt=file://$T/ck/model.safetensors opts=sandbox=on
  need_sandbox
  need_landlock
  mkdir -p ck run/step-1
  cp "$(fixture hf_dtypes)"/ckpt/*.safetensors ck/model.safetensors
  cp ck/model.safetensors run/step-1
  aged run
  echo secret >ck/secret
  if [[ $1 == run ]]; then
    opts+=,overlay=$ckpt # is opened with each step
    ckpt=$T/run
  fi
  serve_criminal fetch "$T/ck/secret" -o "$opts"
  read_tensors
  commit_it
  is "errno 13" "$(told)"
  end_it
  serve_criminal fetch "$T/ck/model.safetensors" -o "$opts"
  read_tensors
  commit_it
  is "errno 0" "$(told)"
  end_it
}

# They are opened with each step, when the sandbox has closed.
cases_run_fetches_the_files_of_its_options() {
  printf '%s\n' overlay=o,v/x.safetensors overlay=parts/model.safetensors.index.json assets=assets
}
test_run_fetches_the_files_of_its_options() {
  need_sandbox
  mkdir -p run o,v assets
  ckptfs reshard -q "$(fixture mp4_hf_sharded)/ckpt" parts --format=safetensors --shard-size=300B
  cp -r parts run/step-1
  ckptfs export -q parts safetensors/model.safetensors o,v/x.safetensors
  echo '{}' >assets/config.json
  aged run parts o,v
  mount_at m run --"${1%%=*}=file://$T/${1#*=}" -o sandbox=on
  cmp m/step-1/safetensors/model.safetensors o,v/x.safetensors
}

# ---- kernels that lack half of it ----

cases_forbidden_calls_kill_without_landlock() {
  printf '%s\n' execve socket_inet kill mount mmap_exec open_by_handle_at setsig_self
  forbidden_calls | full_only
}
test_forbidden_calls_kill_without_landlock() {
  local rc=0 world=landlock_create_ruleset
  need_sandbox
  serve_criminal "$1" ""
  commit_it
  wait "$pid" || rc=$?
  is 159 $rc
}

test_files_elsewhere_are_out_of_reach_without_seccomp() {
  local crime world=seccomp
  need_sandbox
  need_landlock
  echo secret >secret
  for crime in read_file write_file; do
    serve_criminal "$crime" "$T/secret"
    commit_it
    is "errno 13" "$(told)"
    is 1 "$(threads_say "$pid" NoNewPrivs)"
    end_it
  done
  is secret "$(cat secret)"
}

test_sandbox_can_be_off() {
  mount_at m "$(big)/ckpt" -o sandbox=off
  pid=$(daemon_of m)
  is 0 "$(threads_say "$pid" NoNewPrivs)"
  is 0 "$(threads_say "$pid" Seccomp)"
  mkdir n
  refused "option 'sandbox': 'maybe'" ckptfs mount "$(big)/ckpt" n -o sandbox=maybe
}

# ---- files that are opened late ----

test_run_of_a_new_user_gets_its_indexes() {
  mkdir run
  big_copy run/step-1
  [[ ! -e $XDG_CACHE_HOME ]]
  mount_at m run
  cmp -n 1000 m/step-1/tensors/v "$(big)/v.bin"
  ls "$XDG_CACHE_HOME"/ckptfs/index/step-1-*.sqlite
}

test_run_reads_the_files_of_its_options() {
  mkdir run elsewhere assets
  big_copy run/step-1
  echo 's/^w$/model.w/' >rules
  printf 'mesh tp=2\n* tp:0\n' >tp.txt
  echo '{"a": 1}' >elsewhere/blob
  ln -s ../elsewhere/blob assets/config.json
  mount_at m run -o rename=rules,layout=tp.txt,assets=assets
  cmp m/step-1/tensors/model.w "$(big)/w.bin"
  cmp m/step-1/hf/config.json elsewhere/blob
  ls m/step-1/ranks/00001/tensors/w
}

test_assets_outside_are_read() {
  mkdir elsewhere assets up
  echo '{"a": 1}' >elsewhere/blob
  echo '{"b": 2}' >up/config.json
  ln -s ../elsewhere/blob assets/config.json
  cp -r "$(big)/ckpt" up/c
  mount_at m up/c -o assets=assets
  cmp m/hf/config.json elsewhere/blob
  ckptfs umount m
  ckptfs mount up/c m
  cmp m/hf/config.json up/config.json
}

test_single_file_is_served() {
  local file name
  need_fixture torchsave_zip
  file=$(fixture torchsave_zip)/ckpt/model.pt
  mount_at m "$file"
  for name in m/tensors/*; do
    ckptfs cat "$file" "${name#m/}" | cmp - "$name"
  done
}

# ---- the end ----

# umounter_of PID: waits for the daemon's unmounter and prints its PID. It takes its name when it has prepared itself.
umounter_of() { wait_until pgrep -P "$1" -x ckptfs-umount; }

test_helper_goes_with_the_daemon() {
  local helper
  need_sandbox
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  helper=$(umounter_of "$pid")
  is "0 1 2" "$(entries "/proc/$helper/fd" | tr ' ' '\n' | sort -n | xargs)"
  kill -TERM "$helper" # as systemd does it, to all at once
  kill -TERM "$pid"
  wait_until gone "$pid"
  wait_until gone "$helper"
  unmounted m
  # A daemon that is killed leaves a dead mount, and no helper.
  ckptfs mount "$(big)/ckpt" m
  pid=$(daemon_of m)
  helper=$(umounter_of "$pid")
  kill -9 "$pid"
  wait_until gone "$helper"
  is_mounted m
  ckptfs umount m
}

# If somebody has unmounted it and mounted something else in its place, that stays mounted.
test_nothing_else_is_unmounted() {
  need_sandbox
  [[ $EUID == 0 ]] || skip "not root"
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  exec 4<m/tensors/v # keeps the daemon alive
  umount -l m
  mount -t tmpfs none m
  exec 4<&-
  wait_until gone "$pid"
  is tmpfs "$(findmnt -no FSTYPE m)"
  umount m
}

# The directory above the mount is moved, and a link in its place leads to another mount, which must stay.
cases_only_its_own_mount_is_unmounted() {
  if [[ ${VARIANT:-release} == release ]]; then echo on; fi
  echo off
}
test_only_its_own_mount_is_unmounted() {
  [[ $1 != on ]] || need_landlock
  [[ $EUID == 0 ]] || skip "not root"
  mkdir -p a/m b/m
  mount -t tmpfs none b/m
  ckptfs mount "$(big)/ckpt" a/m -o sandbox="$1"
  pid=$(daemon_of a/m)
  mv a c
  ln -s b a
  kill -TERM "$pid"
  wait_until gone "$pid"
  is tmpfs "$(findmnt -no FSTYPE b/m)"
  unmounted c/m
  # Something is mounted over it: both stay. When that has been unmounted, ours goes.
  rm a
  ckptfs mount "$(big)/ckpt" c/m -o sandbox="$1"
  pid=$(daemon_of c/m)
  mount -t tmpfs none c/m
  kill -TERM "$pid"
  wait_until gone "$pid"
  is tmpfs "$(findmnt -no FSTYPE c/m | tail -1)"
  umount c/m
  is_mounted c/m
  ckptfs umount c/m
  umount b/m
}

test_unprivileged_daemon_unmounts_its_own_mount() {
  as_user_and_root <<'END'
    mkdir -p u/a/m u/b/m
    chown -R 65534:65534 u
    $as "$CKPTFS" mount c u/a/m
    one=$(daemon_of u/a/m)
    $as "$CKPTFS" mount c u/b/m
    $as mv u/a u/c
    $as ln -s b u/a
    kill "$one"
    wait_until gone "$one"
    is_mounted u/b/m
    unmounted u/c/m
    $as "$CKPTFS" umount u/a/m
END
}

# ---- the log ----

# Also after syslogd has been restarted and has a new socket. A syslogd that hangs does not stop the daemon.
test_messages_reach_syslog() {
  [[ $EUID == 0 ]] || skip "not root"
  unshare -m true 2>/dev/null || skip "no mount namespaces"
  mkdir dev m
  big_copy c
  mknod dev/null c 1 3
  mknod dev/urandom c 1 9
  mknod dev/fuse c 10 229
  {
    declare -f listen_at wait_until daemon_of has_word gone
    cat <<'END'
    mount --bind dev /dev
    listen_at /dev/log heard
    "$CKPTFS" mount c m
    pid=$(daemon_of m)
    truncate -s 0 c/*.distcp
    ! cat m/tensors/w >/dev/null
    wait_until grep "ckptfs\\[$pid\\]: $PWD/m: .*tensors/w" heard
    kill "$listener"
    rm /dev/log
    listen_at /dev/log again
    ! cat m/tensors/v >/dev/null
    wait_until grep "ckptfs\\[$pid\\]: .*tensors/v" again
    # If syslogd does not read, messages that it cannot take are lost, and nobody waits for it.
    kill -STOP "$listener"
    for ((i = 0; i < 2000; i++)); do [[ ! -e m/tensors/none$i ]]; done
    ls m/tensors
    kill "$pid"
    wait_until gone "$pid"
    kill -9 "$listener"
END
  } >steps
  unshare -m bash -eux steps
}

test_without_its_helper_the_daemon_ends() {
  need_sandbox
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  kill -9 "$(umounter_of "$pid")"
  kill -TERM "$pid"
  wait_until gone "$pid"
  ckptfs umount m
}

# The daemon has no capability, and has given up running setuid programs such as fusermount3.
test_unprivileged_daemon_unmounts_at_sigterm() {
  need_sandbox
  need_landlock
  as_user_and_root "$(big)/v.bin" <<'END'
    $as "$CKPTFS" mount c m -o sandbox=on
    pid=$(daemon_of m)
    grep -x $'NoNewPrivs:\t1' "/proc/$pid/status"
    grep -x $'Seccomp:\t2' "/proc/$pid/status"
    $as cmp -n 1000 m/tensors/v "$1"
    kill "$pid"
    wait_until gone "$pid"
    unmounted m
END
}

# ---- other users ----

test_other_users_may_look_only_when_asked() {
  [[ $EUID == 0 ]] || skip "not root"
  local as="setpriv --reuid=65534 --regid=65534 --clear-groups"
  cp -r "$(big)/ckpt" c
  chmod 755 "$SCRATCH" "$T"
  mount_at m c
  if $as ls m >/dev/null 2>&1; then fail "listed"; fi
  if $as cat m/tensors/v >/dev/null 2>&1; then fail "read"; fi
  ckptfs umount m
  ckptfs mount c m -o allow_other
  $as cmp -n 1000 m/tensors/v "$(big)/v.bin"
  if $as test -w m/tensors/v; then fail "writable"; fi
}

# ---- commands ----

# told_by CRIME FILE COMMAND...: what a command reports that does this when it opens or makes the index, or "killed"
told_by() {
  local crime=$1 file=$2 said rc=0
  shift 2
  criminal
  said=$(LD_PRELOAD=$SCRATCH/crime.so CRIME=$crime CRIME_FILE=$file CRIME_WHEN_OPENING="${when:-any}" \
    ${world:+"${CKPTFS%/*}/tests/without" "$world"} "$CKPTFS" "$@" 2>&1 >/dev/null) || rc=$?
  ((rc <= 128)) || said=killed
  grep -E '^(errno|killed)' <<<"$said" || fail "$crime: $rc: $said"
}

# A call that nothing in the process needs fails with ENOSYS (38).
test_a_command_makes_no_other_calls() {
  local crime said
  need_sandbox
  need_landlock
  for crime in $(forbidden_calls); do
    rm -rf "$XDG_CACHE_HOME/ckptfs"
    said=$(told_by "$crime" "" ls --sandbox=on "$(zoo)")
    [[ $said =~ ^(errno\ 38|killed)$ ]] || fail "$crime: $said"
  done
  is "errno 2" "$(told_by execve "" ls --sandbox=off "$(zoo)")"
  rm -rf "$XDG_CACHE_HOME/ckptfs"
  is "errno 38" "$(told_by execve "" __complete ls "$(zoo)" m)" # the Tab key
}

# Neither does one that has started ckptfs-fetch before; over sockets that it has, it can send and receive.
test_a_command_that_fetches_makes_no_other_calls() {
  local crime said
  need_sandbox
  need_landlock
  for crime in $(forbidden_calls | grep -vx 'recvmsg\|sendmsg_bad'); do
    rm -rf "$XDG_CACHE_HOME/ckptfs"
    said=$(told_by "$crime" "" ls --sandbox=on "file://$(zoo)")
    [[ $said =~ ^(errno\ 38|killed)$ ]] || fail "$crime: $said"
  done
  is "errno 2" "$(told_by execve "" ls --sandbox=off "file://$(zoo)")"
}

# A command whose checkpoints are all in object stores reads nothing else of its user's files: their owner could get
# them as names that are asked for. The same for the process that makes the index for a mount.
test_a_command_that_fetches_reads_no_other_files() {
  local crime file wanted average
  need_sandbox
  need_landlock
  export CKPTFS_FETCH=${CKPTFS%/*}/tests/dir-fetch DIR_STORE=$T/store
  mkdir -p store/b m dir
  cp -r "$(zoo)" store/b/zoo
  echo secret >secret
  echo 's/^model\./m./' >rules
  is "errno 13" "$(told_by read_file "$T/secret" ls --sandbox=on s3://b/zoo)"
  is "errno 0" "$(told_by read_file "$T/rules" ls --sandbox=on s3://b/zoo -o rename=rules,index=x.sqlite)"
  is "errno 0" "$(told_by read_file "$T/secret" ls --sandbox=on s3://b/zoo -o "overlay=$(zoo),index=y.sqlite")"
  mkdir store/b/run
  old_copy "$(zoo)" store/b/run/step-1
  old_copy "$(zoo)" store/b/run/step-2
  for average in s3://b/run/step-1,s3://b/zoo step-1:2,step-2:1; do
    is "errno 13" "$(told_by read_file "$T/secret" ls --sandbox=on s3://b/run --average="$average")"
  done
  is "errno 0" "$(told_by read_file "$T/secret" ls --sandbox=on s3://b/run --average="step-1,$(zoo)")"
  rm -rf "$XDG_CACHE_HOME/ckptfs"
  is "errno 13" "$(when=confined told_by read_file "$T/secret" mount -q s3://b/zoo m -o sandbox=on)"
  cmp m/tensors/model.n <(ckptfs cat "$(zoo)" tensors/model.n)
  ckptfs umount m
  # What they need is there.
  ckptfs sum --sandbox=on s3://b/zoo >sums
  cmp sums <(ckptfs sum "$(zoo)")
  ckptfs sum --sandbox=on --check=sums s3://b/zoo
  ckptfs export -q --sandbox=on s3://b/zoo npy dir/npy
  cmp dir/npy/model.n.npy <(ckptfs cat "$(zoo)" npy/model.n.npy)
  ckptfs reshard -q --sandbox=on s3://b/zoo dir/two
  ckptfs diff "$(zoo)" dir/two
  ckptfs report -q --sandbox=on --output=page.html s3://b/zoo
  ckptfs stat --sandbox=on --resume=state s3://b/zoo >stats
  cmp stats <(ckptfs stat "$(zoo)")
  ckptfs warm --sandbox=on s3://b/zoo
  unset CKPTFS_FETCH DIR_STORE
}

# What file:// names may be a run, whose checkpoints are opened by their own names, or end in a name of the tree.
test_what_file_addresses_lead_to_is_read() {
  local run
  need_sandbox
  need_landlock
  mkdir -p run m
  old_copy "$(zoo)" run/step-1
  old_copy "$(zoo)" run/step-2
  run=file://$T/run
  ckptfs cat "$(zoo)" tensors/model.n >n
  ckptfs cat --sandbox=on "$run/latest" tensors/model.n | cmp - n
  ckptfs cat --sandbox=on "$run" step-1/tensors/model.n | cmp - n
  ckptfs cat --sandbox=on "$run" tensors/model.n -o average=last:2 | cmp - n
  ckptfs cat --sandbox=on "$(zoo)" tensors/model.n -o "overlay=$run/latest" | cmp - n
  ckptfs info --sandbox=on "$run" step-1 model.n -o retry=5 | grep -x 'dtype  *int32'
  ckptfs warm --sandbox=on "file://$(zoo)/tensors/model.n"
  ckptfs warm --sandbox=on "$run/latest/tensors"
  refused 'there is no such file in the tree' ckptfs warm --sandbox=on "file://$(zoo)/tensors/nothing"
  for source in "$run/latest" "$run -o average=last:2" "$(zoo) -o overlay=$run/latest"; do
    rm -rf "$XDG_CACHE_HOME/ckptfs"
    # shellcheck disable=SC2086 # options
    ckptfs mount -q -o sandbox=on $source m
    cmp m/tensors/model.n n
    ckptfs umount m
  done
  is tensors/model.n "$(ckptfs __complete cat "$run/step-1" tensors/model.n)"
  rm -rf "$XDG_CACHE_HOME/ckptfs"
  is "errno 38" "$(told_by execve "" __complete cat "$run/step-1" tensors/model.n)"
}

# It reads what its user can read, and writes only where it has to.
test_a_command_writes_only_what_it_has_to() {
  local crime file wanted
  need_sandbox
  need_landlock
  echo secret >secret
  while read -r wanted crime file; do
    [[ -n $crime ]] || continue
    is "errno $wanted" "$(told_by "$crime" "$file" ls --sandbox=on "$(zoo)")"
  done <<END
13 write_file $T/secret
13 remove_file $T/secret
13 make_file $T/made
13 make_file $(zoo)/made
13 remove_file $(zoo)/.metadata
0 read_file $T/secret
$(has_landlock 3 && echo "13 truncate_file $T/secret")
END
  [[ $(cat secret) == secret && ! -e made && -e $(zoo)/.metadata ]]
  is "errno 0" "$(told_by make_file "$T/made" ls --sandbox=off "$(zoo)")"
  # Nor does a command that writes a page change modes, or a checkpoint with a link in the index's place become writable.
  is "errno 1" "$(told_by fchmod "$T/secret" report -q --output=page.html --sandbox=on "$(zoo)")"
  is "errno 0" "$(told_by fchmod "$T/secret" report -q --output=page.html --sandbox=off "$(zoo)")"
  big_copy linked
  ln -s /etc/passwd linked/.ckptfs-index.sqlite
  is "errno 13" "$(told_by make_file "$T/linked/made" info --sandbox=on linked)"
  # An older Landlock does not know O_TRUNC; the filter refuses it then.
  is "errno 38" "$(world=landlock_create_ruleset told_by truncate_file "$T/secret" ls "$(zoo)")"
  mkdir -p out i
  ckptfs info --sandbox=on -o index=i/x.sqlite "$(zoo)" | grep '^index .*(built just now)'
  ckptfs report --sandbox=on --output=out/page.html "$(zoo)"
  (cd out && ckptfs report --sandbox=on "$(zoo)")
  ckptfs report --sandbox=on --output=/dev/stdout "$(zoo)" >out/third.html
  is 3 "$(grep -l '</html>' out/page.html out/report.html out/third.html | wc -l)"
  is 644 "$(umask 022; rm out/page.html; ckptfs report --sandbox=on --output=out/page.html "$(zoo)"; stat -c %a out/page.html)"
  ckptfs diff --sandbox=on --report=out/diff.html "$(zoo)" "$(zoo)"
  ckptfs stat --sandbox=on --resume=out/state "$(zoo)" >stats
  cmp stats <(ckptfs stat --sandbox=off "$(zoo)")
}

# One that writes has the directory in which it writes, too.
cases_a_command_writes_where_its_user_says() {
  printf '%s\n' "export $(zoo) tensors" "reshard $(zoo)" "export file://$(zoo) npy"
}
test_a_command_writes_where_its_user_says() {
  local crime file wanted
  need_sandbox
  need_landlock
  mkdir -p dir
  echo secret >secret
  while read -r wanted crime file; do
    rm -rf dir/*
    is "errno $wanted" "$(told_by "$crime" "$file" "$@" -q --sandbox=on dir/new)"
    [[ -d dir/new ]]
  done <<END
13 write_file $T/secret
13 make_file $T/made
13 remove_file $(zoo)/.metadata
38 execve -
38 socket_inet -
38 fork -
0 make_file $T/dir/made
END
  [[ $(cat secret) == secret && ! -e made && -e dir/made ]]
  is "errno 2" "$(told_by execve "" "$@" -q --sandbox=off dir/other)"
  refused "option 'sandbox': there is none for writing to an object store" ckptfs "$@" --sandbox=on s3://bucket/new
}

# All that they write are files, directories, links and times there.
test_commands_write_what_they_write_without_a_sandbox() {
  local opts
  need_sandbox
  need_landlock
  mkdir -p dir plain
  ln -s dir link
  ckptfs export -q --sandbox=on "$(zoo)" . link/tree/
  ckptfs export -q --sandbox=off "$(zoo)" . plain/tree
  diff -r --no-dereference dir/tree plain/tree
  cmp <(times dir/tree) <(times plain/tree)
  (cd dir && ckptfs export -q --sandbox=on "$(zoo)" tensors/model.n one)
  cmp dir/one dir/tree/tensors/model.n
  for opts in --format=safetensors "--ranks=2 --overwrite" --overwrite; do
    # shellcheck disable=SC2086 # options
    ckptfs reshard -q --sandbox=on $opts "$(big)/ckpt" dir/two
    ckptfs diff "$(big)/ckpt" dir/two
  done
  PMI_SIZE=1 refused "there is none under mpirun" ckptfs reshard --sandbox=on "$(zoo)" dir/three
  [[ -z $(find dir -name '*.partial*') ]]
}
times() { (cd "$1" && find . -printf '%P %T@\n' | sort); }

# `warm` takes checkpoints, what is in them, and files of mounts, whose checkpoints may be anywhere.
test_warm_is_confined() {
  need_sandbox
  need_landlock
  is "errno 38" "$(told_by execve "" warm -q --sandbox=on "$(zoo)" "file://$(zoo)/npy")"
  mount_at m "$(big)/ckpt"
  refused "there is none for files of a mount" ckptfs warm --sandbox=on "$(zoo)" m/tensors
  ckptfs warm "$(zoo)" m/tensors
}

# A mount makes the index in a process of its own, which has given up its rights before.
test_a_mount_reads_an_index_that_another_process_made() {
  local crime file wanted
  need_sandbox
  need_landlock
  mkdir -p m
  echo secret >secret
  while read -r wanted crime file; do
    [[ -n $crime ]] || continue
    rm -rf "$XDG_CACHE_HOME/ckptfs"
    is "errno $wanted" "$(when=confined told_by "$crime" "$file" mount -q "$(zoo)" m -o sandbox=on)"
    ckptfs umount m
  done <<END
13 write_file $T/secret
13 make_file $T/made
13 remove_file $(zoo)/.metadata
38 execve
38 socket_inet
38 fork
9 use_pipes
END
  [[ $(cat secret) == secret && ! -e made && -e $(zoo)/.metadata ]]
  for crime in execve socket_inet; do
    rm -rf "$XDG_CACHE_HOME/ckptfs"
    is "errno 38" "$(when=confined told_by "$crime" "" mount -q "file://$(zoo)" m -o sandbox=on)"
    ckptfs umount m
  done
  # There is an index now, so it is not made: the daemon itself opens it, before it enters the sandbox.
  is "errno 2" "$(told_by execve "" mount -q "file://$(zoo)" m -o sandbox=on)"
  ckptfs umount m
  # That process also makes an index anew that turns out to be damaged.
  big_copy less
  rm "$(find less -name '*.distcp' | sort | head -n 1)"
  rm -rf "$XDG_CACHE_HOME/ckptfs"
  ckptfs info less >/dev/null
  "$PYTHON" -c 'import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db: db.execute("update chunkmap set chunks = chunks || x'"'00'"'")' \
    "$XDG_CACHE_HOME"/ckptfs/index/*.sqlite
  is "errno 38" "$(when=confined told_by execve "" mount -q less m -o sandbox=on,allow_missing)"
  ckptfs umount m
  # Checkpoints that options name have indexes of their own, wherever that of the first one is.
  big_copy over
  ckptfs mount -q "$(big)/ckpt" m -o "sandbox=on,index=$T/own.sqlite,overlay=over"
  ckptfs umount m
  [[ -s own.sqlite ]]
  # Without a place for the index, the daemon makes it itself; so it does if there is to be no sandbox.
  for opts in index=:memory: sandbox=off; do
    rm -rf "$XDG_CACHE_HOME/ckptfs"
    is "errno 2" "$(told_by execve "" mount -q "$(zoo)" m -o "$opts")"
    ckptfs umount m
  done
}

# The daemon does not parse what it could not keep: whoever wrote the checkpoint could make its index large.
test_an_index_without_room_mounts_nothing() {
  need_sandbox
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir c m small
  "$PYTHON" -c 'import json, struct, sys
h = json.dumps({f"layer.{i}.weight": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(30000)})
sys.stdout.buffer.write(struct.pack("<Q", len(h)) + h.encode() + bytes(30000))' >c/model.safetensors
  mount -t tmpfs -o size=1500k tmpfs small
  XDG_CACHE_HOME=$PWD/small refused "c': its chunk index cannot be kept: .*; 'index=:memory:' does without$" \
    ckptfs mount c m
  XDG_CACHE_HOME=$PWD/small ckptfs mount -q c m -o index=:memory:
  is 30000 "$(find m/tensors -type f | wc -l)"
  ckptfs umount m
}

# What ends that process ends the mount command, which says so.
test_a_parser_that_crashes_mounts_nothing() {
  need_sandbox
  mkdir -p m
  criminal
  export CRIME=crash CRIME_FILE='' CRIME_WHEN_OPENING=confined
  LD_PRELOAD=$SCRATCH/crime.so refused 'the process that was to read its metadata ended with signal 11' \
    ckptfs mount "$(zoo)" m
  is_mounted m && fail "mounted"
  unset CRIME CRIME_FILE CRIME_WHEN_OPENING
  # What it says when it fails is what the command says.
  mkdir bad
  echo x >bad/.metadata
  refused "bad': read '.metadata': pickle: unknown opcode" ckptfs mount bad m
}

test_a_command_insists_on_its_sandbox() {
  local world
  need_sandbox
  refused "'maybe' is not one of auto, on, off" ckptfs ls --sandbox=maybe "$(zoo)"
  for world in seccomp landlock_create_ruleset; do
    refused "option 'sandbox': .*(seccomp|Landlock)" "${CKPTFS%/*}/tests/without" $world "$CKPTFS" ls --sandbox=on "$(zoo)"
    "${CKPTFS%/*}/tests/without" $world "$CKPTFS" ls "$(zoo)" >names
    cmp names <(ckptfs ls "$(zoo)")
  done
}

run_suite "$@"
