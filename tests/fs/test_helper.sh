#!/bin/bash
# The program, called as mount(8) and mount.fuse3(8) call it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

helper() { ln -sf "$CKPTFS" "$1"; }

cases_mount_helper_mounts() { printf '%s\n' mount.ckptfs mount.fuse.ckptfs; }
test_mount_helper_mounts() {
  helper "$1"
  mkdir m
  "./$1" "$(big)/ckpt" m -n -v -t fuse.ckptfs -o ro,noatime,allow_missing,threads=2
  cmp -n 100 m/tensors/v "$(big)/v.bin"
}

test_options_may_come_first_or_not_at_all() {
  helper mount.ckptfs
  mkdir m
  ./mount.ckptfs "$(big)/ckpt" m
  ckptfs umount m
  ./mount.ckptfs "$(big)/ckpt" m -o rw -o noatime
  [[ $(findmnt -no OPTIONS m) == *ro* ]]
}

test_fake_does_not_mount() {
  helper mount.ckptfs
  mkdir m
  ./mount.ckptfs "$(big)/ckpt" m -f -o ro
  unmounted m
}

test_sloppy_ignores_unknown_words() {
  helper mount.ckptfs
  mkdir m
  refused "unknown option 'frob'" ./mount.ckptfs "$(big)/ckpt" m -o frob
  refused "option 'remount': options cannot be changed" ./mount.ckptfs "$(big)/ckpt" m -o remount,ro
  ./mount.ckptfs "$(big)/ckpt" m -o frob -s
  is_mounted m
}

test_helper_usage_errors() {
  helper mount.ckptfs
  mkdir m
  refused usage ./mount.ckptfs
  refused usage ./mount.ckptfs "$(big)/ckpt"
  refused "unknown option '-y'" ./mount.ckptfs "$(big)/ckpt" m -y
  refused "unexpected argument 'z'" ./mount.ckptfs "$(big)/ckpt" m z
  refused "no such file" ./mount.ckptfs "$(big)/ckpt" nowhere -o ro
}

test_called_with_two_names_it_mounts() {
  mkdir m
  "$CKPTFS" "$(big)/ckpt" m -o rw,noatime,nosuid,nodev
  cmp -n 100 m/tensors/v "$(big)/v.bin"
}

in_namespace() {
  [[ $EUID == 0 ]] || skip "not root"
  unshare -m true 2>/dev/null || skip "no mount namespaces"
  # shellcheck disable=SC2016 # the inner shell's
  unshare -m bash -euc "$1" "$CKPTFS" "$(big)"
}

# mount(8) looks for helpers only in /sbin; in a mount namespace of our own we can put one there.
test_mount_8_calls_us() {
  mkdir m
  # shellcheck disable=SC2016
  in_namespace 'mount --bind "$0" "$(readlink -f /sbin/mount.fuse)"
    mount -t fuse.ckptfs -o noatime,nofail,allow_missing "$1/ckpt" m
    cmp m/tensors/v "$1/v.bin"
    if mount -t fuse.ckptfs -o frob "$1/ckpt" m 2>err; then exit 1; fi
    grep -q "unknown option" err
    umount m'
}

test_mount_fuse3_calls_us() {
  mkdir m
  # shellcheck disable=SC2016
  in_namespace 'mount -t tmpfs none /usr/local/bin
    ln -s "$0" /usr/local/bin/ckptfs
    mount.fuse3 "ckptfs#$1/ckpt" m -o noatime
    /usr/bin/cmp m/tensors/v "$1/v.bin"
    umount m
    mount -t fuse.ckptfs "$1/ckpt" m -o ro
    /usr/bin/cmp m/tensors/v "$1/v.bin"
    umount m'
}

test_fstab_line_works() {
  mkdir m
  # shellcheck disable=SC2016
  in_namespace 'mount --bind "$0" "$(readlink -f /sbin/mount.fuse)"
    echo "$1/ckpt $PWD/m fuse.ckptfs defaults,_netdev,nofail,x-systemd.automount,comment=a 0 0" >fstab
    mount --bind fstab /etc/fstab
    mount m
    cmp m/tensors/v "$1/v.bin"
    umount m'
}

test_namespace_of_another_process() {
  [[ $EUID == 0 ]] || skip "not root"
  unshare -m true 2>/dev/null || skip "no mount namespaces"
  local pid
  helper mount.ckptfs
  mkdir m
  unshare -m sleep 300 & pid=$!
  wait_until grep -qx sleep "/proc/$pid/comm" # by then it has its namespace
  ./mount.ckptfs "$(big)/ckpt" "$T/m" -N "$pid" -o ro
  unmounted m
  nsenter -t "$pid" -m cmp "$T/m/tensors/v" "$(big)/v.bin"
  nsenter -t "$pid" -m umount "$T/m"
  kill "$pid"
}

run_suite "$@"
