#!/bin/bash
# Starting, refusing, stopping.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="directories_that_come_and_go_are_no_run mounts_that_come_and_go_elsewhere two_mounts_share_the_index \
  memory_stays_small"

test_mount_returns_when_usable() {
  mount_at m "$(big)/ckpt"
  is_mounted m
  cmp -n 100 m/tensors/v "$(big)/v.bin"
}

test_mount_holds_no_pipe_and_says_nothing_when_asked() {
  local said
  mkdir m
  said=$(timeout 200 "$CKPTFS" mount "$(big)/ckpt" m 2>&1)
  is 4 "$(grep -c '^ckptfs: [a-z]*/: ' <<<"$said")"
  ckptfs umount m
  said=$(timeout 200 "$CKPTFS" mount -q "$(big)/ckpt" m 2>&1)
  [[ -z $said ]] || fail "$said"
}

test_mount_with_standard_files_closed() {
  local way
  mkdir m
  for way in '<&-' '>&-' '2>&-' '<&- >&-' '<&- >&- 2>&-'; do
    bash -c "\"$CKPTFS\" mount \"$(big)/ckpt\" m $way"
    cmp m/tensors/v "$(big)/v.bin"
    ckptfs umount m
  done
}

test_source_is_the_checkpoint() {
  mount_at m "$(big)/ckpt"
  [[ $(findmnt -no SOURCE,FSTYPE m | xargs) == "$(big)/ckpt fuse.ckptfs" ]] || fail "$(findmnt m)"
  [[ $(findmnt -no OPTIONS m) == *ro* ]]
}

test_names_with_commas_and_spaces() {
  cp -r "$(big)/ckpt" 'a, b\c'
  mount_at 'm, n' 'a, b\c'
  cmp -n 100 'm, n/tensors/v' "$(big)/v.bin"
  grep -qF ' fuse.ckptfs '"$(printf '%s' "$T/a, b\\c" | sed 's/\\/\\134/g; s/ /\\040/g')"' ' /proc/self/mountinfo ||
    fail "$(grep ckptfs /proc/self/mountinfo)"
  ckptfs umount 'm, n'
  unmounted 'm, n'
}

test_relative_paths() {
  mkdir m sub
  cp -r "$(big)/ckpt" c
  (cd sub && ckptfs mount ../c ../m -o index=../x.idx)
  cmp -n 100 m/tensors/v "$(big)/v.bin"
  [[ -e x.idx ]]
}

test_symbolic_links_are_followed() {
  mkdir m
  ln -s m link
  ln -s "$(big)/ckpt" c
  ckptfs mount c link
  is_mounted m
  ckptfs umount link
  unmounted m
}

test_options_of_fstab_are_accepted() {
  mount_at m "$(big)/ckpt" -o rw,defaults,auto,noauto,user,users,nofail,_netdev,noatime,relatime,atime \
    -o nodiratime,suid,dev,exec,async,x-systemd.automount,x-foo=bar,comment=abc,uid=12,gid=34,ro
  [[ $(stat -c %u:%g m/tensors/v) == 12:34 ]]
  LC_ALL=C touch m/tensors/v 2>err || true
  grep -q 'Read-only file system' err
}

test_options_of_mount_fuse_are_accepted() {
  mount_at m "$(big)/ckpt" -o default_permissions,nosuid,nodev,noexec,subtype=ckptfs,threads=3,cache=1MiB \
    -o 'fsname=x\,y'
  [[ $(findmnt -no SOURCE,OPTIONS m) == "x,y "*noexec* ]] || fail "$(findmnt m)"
}

# Options of mount, and words of the message about each.
cases_unknown_options_are_errors() {
  printf '%s\n' "-o frob unknown.option.'frob'" "-o ro,frob=1,threads=2 unknown.option.'frob'" \
    "-o gguf_kind=f16 unknown.option.'gguf_kind'" \
    "--frob=1 unknown.option.'--frob'" "-x unknown.option.'-x'" "-o hard_remove unknown" \
    "-o threads=many not.a.whole.number" "-o threads needs.a.value" "-o cache=12Q not.a.size" \
    "-o allow_missing=1 takes.no.value" "-o needs.a.list"
}
test_unknown_options_are_errors() {
  local words=${*: -1}
  mkdir m
  refused "$words" ckptfs mount "$(big)/ckpt" m "${@:1:$#-1}"
  unmounted m
}

test_missing_mount_point() {
  refused "mount point 'nowhere': no such file" ckptfs mount "$(big)/ckpt" nowhere
}

test_mount_point_that_is_a_file() {
  touch file
  refused "mount point 'file': not a directory" ckptfs mount "$(big)/ckpt" file
}

test_missing_checkpoint() {
  mkdir m
  refused "'nowhere': no such file" ckptfs mount nowhere m
}

test_directory_that_is_no_checkpoint() {
  mkdir m dir
  refused . ckptfs mount dir m
  refused . ckptfs ls dir
  refused . ckptfs check dir
}

# Directories that disappear while they are examined, as in /proc, are not even incomplete checkpoints.
test_directories_that_come_and_go_are_no_run() {
  local i come_and_go
  mkdir m
  while [[ ! -e stop ]]; do /bin/true; done &
  come_and_go=$!
  for i in {1..20}; do refused . ckptfs mount /proc m; done
  touch stop
  wait $come_and_go
}

test_mount_point_that_hides_the_checkpoint() {
  mkdir -p a/b
  cp -r "$(big)/ckpt" a/b/c
  refused 'would hide' ckptfs mount a/b/c a/b/c
  refused 'would hide' ckptfs mount a/b/c a
  ckptfs mount a/b/c a/b/../b/c/.. 2>/dev/null && fail "worked"
  mkdir a/b/c/inside # odd, but it hides nothing
  ckptfs mount a/b/c a/b/c/inside
  cmp -n 100 a/b/c/inside/tensors/v "$(big)/v.bin"
}

cases_mount_point_that_hides_what_an_option_names() {
  printf '%s\n' assets=m/a assets=link rename=m/rules lora=m/a:0.5 overlay=m/ck average=m/ck:0.5,.:0.5 \
    index=m/new.sqlite cache_dir=m/new
}
test_mount_point_that_hides_what_an_option_names() {
  mkdir -p m/a run
  cp -r "$(zoo)" m/ck
  cp -r "$(zoo)" run/step-1
  ckptfs cat "$(zoo)" hf/model.safetensors >m/a/adapter_model.safetensors
  : >m/a/adapter_config.json
  : >m/rules
  ln -s m/a link
  aged run m
  local why="which option '${1%%=*}' names"
  [[ $1 != average=* ]] || why="which the checkpoint needs"
  refused "a mount there would hide '.*', $why" timeout 20 "$CKPTFS" mount run/step-1 m -o "$1"
  ! is_mounted m || fail "mounted"
  [[ $1 != assets=* && $1 != overlay=* ]] ||
    refused "a mount there would hide '.*', $why" timeout 20 "$CKPTFS" mount run m -o "$1"
}

test_usage_errors() {
  refused "usage: ckptfs mount CKPT MNT" ckptfs mount
  refused "usage: ckptfs mount CKPT MNT" ckptfs mount "$(big)/ckpt"
  refused "unexpected argument 'x'" ckptfs mount "$(big)/ckpt" m x
  refused "usage: ckptfs umount MNT" ckptfs umount
}

test_umount_refuses_what_is_not_ours() {
  mkdir dir
  refused "^ckptfs: umount: 'dir': not a mount of ckptfs$" ckptfs umount dir
  refused 'not a mount of ckptfs' ckptfs umount /proc
  refused 'no such file' ckptfs umount nowhere
}

test_umount_by_address() {
  mount_at m "$(zoo)" -o fsname=s3://bucket/run
  mount_at n "$(zoo)" -o fsname=s3://bucket/run
  mount_at o "$(zoo)" -o fsname=s3://bucket/run/step-1/
  refused "'s3://bucket/run/' is mounted on '$PWD/m' and '$PWD/n': name one of them" ckptfs umount s3://bucket/run/
  ckptfs umount m
  ckptfs umount s3://bucket/run/
  ! is_mounted n || fail "still mounted"
  is_mounted o
  refused "nothing is mounted from this address" ckptfs umount s3://bucket/run
  ckptfs umount s3://bucket/run/step-1
  ! is_mounted o || fail "still mounted"
  mount_at m "$(zoo)" -o fsname='https://host/run?key=secret'
  mount_at n "$(zoo)" -o fsname='https://host/run?key=secret'
  refused "'https://host/run' is mounted on '$PWD/m' and '$PWD/n': name one of them" ckptfs umount 'https://host/run?key=secret'
  ckptfs umount m
  ckptfs umount 'https://host/run?key=secret'
}

test_umount_ends_the_daemon() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  [[ -n $pid ]]
  ckptfs umount m
  unmounted m
  wait_until gone "$pid"
}

test_fusermount_unmounts() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  fusermount3 -u m
  wait_until gone "$pid"
}

test_umount_of_a_busy_mount_says_so() {
  mount_at m "$(big)/ckpt"
  exec 5<m/tensors/v
  refused "in use; 'umount -l' detaches it now" ckptfs umount m
  is_mounted m
  exec 5<&-
  ckptfs umount m
  unmounted m
}

test_lazy_unmount_serves_open_files_to_the_end() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  exec 5<m/tensors/v
  fusermount3 -uz m
  unmounted m
  cmp /dev/fd/5 "$(big)/v.bin" || cmp <(cat <&5) "$(big)/v.bin"
  exec 5<&-
  wait_until gone "$pid"
}

cases_signal_leaves_no_mount() { printf '%s\n' TERM INT HUP; }
test_signal_leaves_no_mount() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  kill -s "$1" "$pid"
  wait_until gone "$pid"
  unmounted m
}

test_sigterm_with_open_file_leaves_no_mount() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  exec 5<m/tensors/v
  dd of=/dev/null bs=4k count=1 status=none <&5
  kill "$pid"
  wait_until gone "$pid"
  unmounted m
  exec 5<&-
}

test_foreground_ends_with_status_0() {
  local pid
  mkdir m
  "$CKPTFS" mount -fq "$(big)/ckpt" m >out 2>err &
  pid=$!
  wait_until is_mounted m
  cmp -n 100 m/tensors/v "$(big)/v.bin"
  kill "$pid"
  wait "$pid" || fail "status $?"
  [[ ! -s out && ! -s err ]] || fail "$(cat out err)"
  unmounted m
}

test_debug_logs_requests() {
  local pid
  mkdir m
  "$CKPTFS" mount -d "$(big)/ckpt" m >out 2>err &
  pid=$!
  wait_until is_mounted m
  ls m/tensors >/dev/null
  ckptfs umount m
  wait "$pid"
  grep -q READDIR err || fail "$(head -5 err)"
}

test_dead_mount_is_recognised() {
  local pid
  mount_at m "$(big)/ckpt"
  pid=$(daemon_of m)
  kill -9 "$pid"
  wait_until gone "$pid"
  refused 'dead mount' ckptfs mount "$(big)/ckpt" m
  ckptfs umount m
  unmounted m
}

test_auto_unmount() {
  local reader
  mkdir m
  for _ in {1..5}; do
    ckptfs mount "$(big)/ckpt" m -o auto_unmount
    # A request that is under way when the daemon dies fails in another way than later ones.
    while cat m/tensors/*; do :; done >/dev/null 2>&1 & reader=$!
    kill -9 "$(daemon_of m)"
    wait_until unmounted m
    wait $reader || : # it ends at the first error
  done
  ckptfs mount "$(big)/ckpt" m -o auto_unmount
  ckptfs umount m
  unmounted m
}

test_unmounted_before_it_is_served() {
  local daemon pid rc=0
  [[ $EUID == 0 ]] || skip "not root"
  mkdir m
  ckptfs index -q "$(big)/ckpt" # so that no other process makes it, which has as much to say
  # Stops it between mounting and serving, when it writes to its unmounter what that has to know of the mount.
  halted "300 500 1 19" mount -q "$(big)/ckpt" m 2>err &
  pid=$!
  wait_until is_mounted m
  daemon=$(xargs <"/proc/$pid/task/$pid/children")
  wait_until is_stopped "$daemon"
  umount m
  kill -CONT "$daemon"
  wait "$pid" || rc=$?
  is 2 $rc
  is "ckptfs: mount '$T/m': unmounted before it could be used" "$(<err)"
}

# Where times are whole seconds, an index made in the second of its files is not trusted.
test_files_of_this_second_are_mounted() {
  local seconds
  cp -rL "$DATA/hf_rank0/ckpt" c
  for seconds in 0 +1 +86400; do
    touch -d "$(date -d "$seconds seconds" '+%F %T')" c/*
    mount_at m c
    cmp m/tensors/model.embed.weight <(ckptfs cat "$DATA/hf_rank0/ckpt" tensors/model.embed.weight)
    ckptfs umount m
  done
}

test_two_mounts_share_the_index() {
  local a b
  mkdir m n
  ckptfs mount "$(big)/ckpt" m & a=$!
  ckptfs mount "$(big)/ckpt" n & b=$!
  wait $a
  wait $b
  cmp m/tensors/v n/tensors/v
  ckptfs umount m
  cmp n/tensors/w "$(big)/w.bin"
  ckptfs index --print "$(big)/ckpt" >path
  [[ -s $(cat path) ]]
  ckptfs index "$(big)/ckpt" | grep 'up to date' >/dev/null
}

# Who owns a directory above the mount point may put a link in its place while the checkpoint is opened.
test_root_is_not_led_to_another_mount_point() {
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir -p theirs/a/m ours/m
  echo here >ours/m/file
  mkfifo rules
  ckptfs mount "$(zoo)" theirs/a/m -o rename=rules 2>err &
  exec 9>rules # waits until the program reads it, and so has looked at the mount point
  mv theirs/a theirs/b
  ln -s ../ours theirs/a
  echo '# no rules' >&9
  exec 9>&-
  wait $! && fail "mounted"
  grep -q "was moved while it was mounted" err || fail "$(cat err)"
  is here "$(cat ours/m/file)"
  ckptfs umount -q theirs/b/m || umount -l theirs/b/m
}

# While it mounts, another mount of the same checkpoint is removed, and the kernel reuses its numbers for the new one.
test_the_numbers_of_another_mount_come_again() {
  local pid
  [[ $EUID == 0 ]] || skip "not root"
  mount_at other "$(big)/ckpt"
  pid=$(daemon_of other)
  grep -q ^fuse_connection "/proc/$pid"/fdinfo/* || return 0 # the kernel does not tell which mount is whose
  ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o late.so -x c - -ldl <<'END'
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>
typedef int call(const char *, const char *, const char *, unsigned long, const void *);
int mount(const char *what, const char *at, const char *type, unsigned long flags, const void *data)
{
	(void)umount(getenv("OTHER"));
	usleep(300000);
	return ((call *)dlsym(RTLD_NEXT, "mount"))(what, at, type, flags, data);
}
END
  grep " $PWD/other " /proc/self/mountinfo
  mkdir m
  OTHER=$PWD/other ASAN_OPTIONS=verify_asan_link_order=0:${ASAN_OPTIONS:-} LD_PRELOAD=$T/late.so "$CKPTFS" mount "$(big)/ckpt" m
  unmounted other
  grep " $PWD/m " /proc/self/mountinfo
  cmp -n 100 m/tensors/v "$(big)/v.bin"
  ckptfs umount m
}

# The kernel reuses the number of a removed mount for the next one, here just after the mounts have been listed.
test_mounts_that_come_and_go_elsewhere() {
  local i others
  [[ $EUID == 0 ]] || skip "not root"
  mkdir m a
  ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o slow.so -x c - -ldl <<'END'
#include <dlfcn.h>
#include <sys/mount.h>
#include <unistd.h>
typedef int call(const char *, const char *, const char *, unsigned long, const void *);
int mount(const char *what, const char *at, const char *type, unsigned long flags, const void *data)
{
	usleep(20000);
	return ((call *)dlsym(RTLD_NEXT, "mount"))(what, at, type, flags, data);
}
END
  while [[ ! -e stop ]]; do
    mount -t tmpfs none a
    umount a
  done &
  others=$!
  trap 'touch stop' EXIT # even after a failure
  for i in {1..20}; do
    ASAN_OPTIONS=verify_asan_link_order=0:${ASAN_OPTIONS:-} LD_PRELOAD=$T/slow.so "$CKPTFS" mount "$(big)/ckpt" m
    ckptfs umount m
  done
  touch stop
  wait $others
}

# The kernel then releases the file at once.
test_a_reader_is_killed_before_its_thread_has_begun() {
  local daemon reader
  mkdir m
  ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o late.so -x c - -ldl <<'END'
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
typedef void *call(void *);
void *fuse_req_userdata(void *request)
{
	if (!unlink(getenv("LATE")))
		sleep(3);
	return ((call *)dlsym(RTLD_NEXT, "fuse_req_userdata"))(request);
}
END
  LATE=$T/late MALLOC_PERTURB_=165 ASAN_OPTIONS=verify_asan_link_order=0:${ASAN_OPTIONS:-} LD_PRELOAD=$T/late.so \
    "$CKPTFS" mount -f "$(big)/ckpt" m -o sandbox=off 2>log &
  daemon=$!
  wait_until is_mounted m || fail "$(cat log)"
  exec 5<m/tensors/v
  touch late
  dd bs=1M count=1 of=/dev/null status=none <&5 &
  reader=$!
  exec 5<&-
  wait_until eval '[[ ! -e late ]]'
  kill -9 $reader
  sleep 4
  cmp -n 100 m/tensors/w "$(big)/w.bin" || fail "$(cat log)"
  kill -0 $daemon
  ckptfs umount m
  wait $daemon || fail "$(cat log)"
}

test_a_live_mount_is_not_mounted_over() {
  local words
  need_fixture plain
  mount_at m "$(big)/ckpt" -o fsname=other
  words="mount point '$PWD/m': '.*/big/ckpt' is mounted there already; 'ckptfs umount $PWD/m' unmounts it$"
  refused "$words" ckptfs mount "$(fixture plain)/ckpt" m
  ln -s m link
  refused "$words" ckptfs mount "$(big)/ckpt" link
  [[ -e m/tensors/w ]]
  ckptfs umount m
  if is_mounted m; then fail "it is still mounted"; fi
  ckptfs mount "$(fixture plain)/ckpt" m
  [[ -e m/tensors/step ]]
}

# Like a program that mounts for others: it opens /dev/fuse and mounts, and ckptfs serves that descriptor.
serve_given() {
  python3 - "$@" <<'END'
import ctypes, os, subprocess, sys
ckpt, directory, *options = sys.argv[1:]
fd = os.open("/dev/fuse", os.O_RDWR)
open("fd", "w").write(str(fd))
libc = ctypes.CDLL(None, use_errno=True)
data = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
RDONLY_NOSUID_NODEV = 7
if libc.mount(b"given", directory.encode(), os.environ.get("TYPE", "fuse.ckptfs").encode(), RDONLY_NOSUID_NODEV, data.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
sys.exit(subprocess.call([os.environ["CKPTFS"], "mount", ckpt, f"/dev/fd/{fd}", *options], pass_fds=[fd]))
END
}

# From reads and writes of /dev/fuse ThreadSanitizer learns that the kernel orders what threads do with a request. It
# does not see that for a descriptor that was opened elsewhere, and would report races that do not exist.
orders_descriptors() { [[ ${VARIANT:-release} != tsan ]]; }

test_a_descriptor_that_is_mounted_is_served() {
  local pid
  [[ $EUID == 0 ]] || skip "not root"
  orders_descriptors || return 0
  mkdir m
  serve_given "$(big)/ckpt" m -o nosuid,nodev,fsname=x,sandbox=auto
  is given "$(findmnt -no SOURCE m)"
  cmp m/tensors/v "$(big)/v.bin"
  ckptfs stats m >out
  [[ -s out ]]
  umount m
  TYPE=fuse serve_given "$(big)/ckpt" m
  is fuse "$(findmnt -no FSTYPE m)"
  ckptfs stats m >out
  [[ -s out ]]
  umount m
  # No other process keeps the descriptor, so the mount is dead when the daemon is gone.
  serve_given "$(big)/ckpt" m
  pid=$(daemon_of "/dev/fd/$(cat fd)")
  kill -9 "$pid"
  wait_until gone "$pid"
  if cat m/tensors/v >/dev/null 2>&1; then fail "it is not dead"; fi
  umount m
  mkdir run
  big_copy run/step-1
  serve_given "$PWD/run" m
  cmp m/step-1/tensors/v "$(big)/v.bin"
  umount m
}

test_mount_fuse_may_drop_its_privileges() {
  [[ $EUID == 0 ]] || skip "not root"
  orders_descriptors || return 0
  mkdir m bin
  ln -s "$CKPTFS" bin/ckptfs
  PATH=$PWD/bin:$PATH mount.fuse3 "ckptfs#$(big)/ckpt" m -o drop_privileges,allow_other
  cmp m/tensors/v "$(big)/v.bin"
  umount m
}

test_descriptors_that_cannot_be_served() {
  refused "mount point '/dev/fd/99': Bad file descriptor" ckptfs mount "$(big)/ckpt" /dev/fd/99
  refused "mount point '/dev/fd/1': not an open descriptor of /dev/fuse with the number 3 or above" ckptfs mount "$(big)/ckpt" /dev/fd/1
  refused "mount point '/dev/fd/7': not an open descriptor of /dev/fuse" ckptfs mount "$(big)/ckpt" /dev/fd/7 7</dev/null
  # An open /dev/fuse that is not mounted.
  refused "serve '/dev/fd/7': " ckptfs mount -q "$(big)/ckpt" /dev/fd/7 7<>/dev/fuse
}

make_fail_call() { ${CC:-cc} -D_GNU_SOURCE -O1 -shared -fPIC -o fail_call.so "$HERE/fail_call.c"; }

# mount_failing N: a mount whose Nth call for memory, a descriptor, a process or a thread fails (fail_call.c).
mount_failing() {
  FAIL=$1 FAILED=$T/failed LD_PRELOAD=$(once fail_call make_fail_call)/fail_call.so exec "$CKPTFS" mount c m
}

# started_not N: nothing is mounted, and one line says why. If it says that a mount is left behind, because it cannot be
# told from others, that is unmounted here.
started_not() {
  local lines
  mapfile lines < <(grep -v -e '^ckptfs: warning: ' -e '^ckptfs: [a-z]*/: ' err)
  [[ ${#lines[@]} == 1 && ${lines[0]} == 'ckptfs: '* && ${lines[0]} != *'ended early'* ]] || fail "call $1: ${lines[*]}"
  if [[ ${lines[0]} == *' is left behind, '* ]]; then
    ckptfs umount m
  fi
  ! is_mounted m || fail "call $1: mounted after all: ${lines[0]}"
}

# started N: the mount works. A later request may meet the failure, but a second attempt does not.
started() {
  cmp -s want m/tensors/w || cmp want m/tensors/w || fail "call $1"
  cat m/.ckptfs/stats.json >/dev/null || cat m/.ckptfs/stats.json >/dev/null || fail "call $1"
  ckptfs umount m
}

test_any_call_that_fails_while_it_starts_is_one_line() {
  local n step=1 rc started=0 refused=0 daemon
  case ${VARIANT:-release} in asan | tsan) return 0 ;; esac # they have their own malloc
  is_full || step=23 # any of the first 150 failures keeps it from starting
  mkdir m
  make_dcp c w 64x64 2x2
  mv c.w.bin want
  ckptfs mount c m # writes the index
  ckptfs umount m
  for ((n = 1 + SEED % step; n < 240; n += step)); do
    rm -f failed
    rc=0
    (mount_failing "$n") >out 2>err || rc=$?
    case $rc in
      0) started "$n" && started=$((started + 1)) ;;
      2)
        daemon=$(daemon_of m)
        [[ -z $daemon ]] || wait_until gone "$daemon" || fail "call $n: a daemon is left"
        started_not "$n" && refused=$((refused + 1))
        ;;
      *) fail "call $n: exit status $rc: $(cat err)" ;;
    esac
  done
  ((started && refused)) || fail "$started started, $refused did not"
}

test_one_thread_is_enough() {
  mount_at m "$(big)/ckpt" -o threads=1
  cmp m/tensors/v "$(big)/v.bin" & cmp m/tensors/w "$(big)/w.bin"
  wait $!
}

test_memory_stays_small() {
  local pid rss
  mount_at m "$(big)/ckpt"
  cat m/tensors/* m/npy/* >/dev/null
  pid=$(daemon_of m)
  [[ ${VARIANT:-release} == release ]] || return 0 # sanitizers use more
  rss=$(awk '/^RssAnon/ { print $2 }' "/proc/$pid/status")
  ((rss < 32768)) || fail "RssAnon $rss KiB"
}

test_unprivileged_user() {
  as_user_and_root "$(big)/v.bin" <<'END'
    if $as "$CKPTFS" mount c m -o allow_other 2>err; then exit 1; fi
    grep -q "^ckptfs: .*option allow_other only allowed if" err
    $as "$CKPTFS" mount c m -o 'fsname=a\,b'
    $as cmp -n 1000 m/tensors/v "$1"
    [[ $($as stat -c %u m/tensors/v) == 65534 && $($as findmnt -no SOURCE m) == a,b ]]
    # Nobody else may look, not even root.
    if cat m/tensors/v >/dev/null 2>&1; then exit 1; fi
    if umount m/tensors 2>/dev/null; then exit 1; fi
    $as "$CKPTFS" umount m
    "$CKPTFS" mount -q c m -o allow_other
    if $as "$CKPTFS" umount m 2>err; then exit 1; fi
    grep -q "^ckptfs: umount: '.*': mounted by another user: only that user or root can unmount it$" err
    "$CKPTFS" umount m
    $as "$CKPTFS" mount -q c m -o auto_unmount
    kill -9 "$(daemon_of m)"
    wait_until unmounted m
END
}

# Without privileges or fusermount3, whoever may open /dev/fuse can mount in a user namespace; the mount ends with it.
test_a_user_namespace_mounts_for_itself() {
  unshare -Urmpf --mount-proc true 2>/dev/null || skip "no user namespaces"
  as_user_and_root "$(big)/v.bin" <<'END'
    $as unshare -Urmpf --mount-proc sh -euc '"$1" mount -q c m; cmp m/tensors/v "$2"
      [ "$(findmnt -no FSTYPE m)" = fuse.ckptfs ]; "$1" umount m; "$1" mount -q c m' . "$CKPTFS" "$1"
    [[ -z $(ls m) ]]
END
}

test_without_fuse_there_is_one_line() {
  local steps
  [[ $EUID == 0 ]] || skip "not root"
  mkdir m empty
  unshare -m true 2>/dev/null || skip "no mount namespaces"
  for steps in 'mount --bind /dev/null /dev/fuse' 'mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3' \
    'mknod -m 600 fuse c 10 229; mount --bind fuse /dev/fuse; PATH=/nowhere; as="/usr/bin/setpriv --reuid=65534 --clear-groups --inh-caps=-all"'; do
    cp -r "$(big)/ckpt" c
    chmod 755 . "$SCRATCH"
    chmod 777 m
    # shellcheck disable=SC2016 # the inner shell's
    refused "^ckptfs: mount '.*; without FUSE, 'ckptfs cat', 'ckptfs export' and the Python module 'ckptfs' read the same files$" \
      unshare -m bash -c "$steps; \$as"' "$0" mount c m --index=:memory:' "$CKPTFS"
    rm -r c
  done
}

run_suite "$@"
