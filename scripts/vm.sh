#!/bin/bash
# vm.sh BUILDDIR [SUITE...] - run suites on real mounts (default: chosen ones) with another kernel.
#
# $KERNEL is `uml` (the default): Debian's package user-mode-linux, Linux as a process; Debian 12 has version 6.1. It
# needs no KVM, boots in two seconds and computes as fast as this machine, but starts programs several times as slowly;
# it has neither Landlock nor more than one CPU. Or $KERNEL names a package such as linux-image-amd64 or
# linux-image-6.1.0-56-amd64, which runs in QEMU: with KVM where that boots, else 10 to 20 times slower.
#
# The tests and the programs of BUILDDIR are copied into memory; what they write stays there. Prints the log of check.sh
# and then one line. Status 0: the tests passed, or the machine cannot be started here, which the line then says. Must
# be root. $VM_SECONDS limits the time (300), $VM_MEMORY the memory. $FILESYSTEMS names file systems that
# tests/fs/filesystems.sh knows, such as `nfs3 nfs4.2`: its suites, or those named, are then run on these.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PATH=$PATH:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive
build=$(realpath "${1:?directory of the build}")
shift
suites=${*:-$([[ -n ${FILESYSTEMS:-} ]] || echo bytes)}
run="scripts/check.sh build/release"
[[ -z ${FILESYSTEMS:-} ]] || run="NO_SETUP=1 tests/fs/filesystems.sh build/release $FILESYSTEMS"
kernel=${KERNEL:-uml} seconds=${VM_SECONDS:-300} memory=${VM_MEMORY:-3G}
[[ $EUID == 0 ]] || { echo "vm.sh: must be root" >&2; exit 2; }

dir=$(mktemp -d)
trap 'rm -rf --one-file-system "$dir"' EXIT
trap 'exit 130' INT TERM HUP
none() {
  echo "vm.sh: skipped: $*"
  exit 0
}

packages="busybox-static kmod" image=$kernel
if [[ $kernel == uml ]]; then image=user-mode-linux; else packages+=" qemu-system-x86 cpio"; fi
# shellcheck disable=SC2086 # a list
apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends $packages >"$dir/log" 2>&1 ||
  none "these packages cannot be installed: $packages: $(tail -n 1 "$dir/log")"
# The kernel's package is unpacked, not installed. A metapackage depends on the package that has the files.
[[ $image == linux-image-[0-9]* || $kernel == uml ]] ||
  image=$(apt-cache depends "$image" 2>/dev/null | grep -o -m 1 'linux-image-[0-9][^ ]*')
(cd "$dir" && chmod 755 . && apt-get download "$image" && dpkg -x "$image"_*.deb kernel) >"$dir/log" 2>&1 ||
  none "the package of the kernel cannot be had: $image: $(tail -n 1 "$dir/log")"
modules=$(echo "$dir"/kernel/lib/modules/* "$dir"/kernel/usr/lib/uml/modules/* "$dir"/kernel/usr/lib/modules/* | tr ' ' '\n' | grep -v '\*' | head -n 1)
version=${modules##*/}

# The machine sees the files of this one, read-only, under an overlay in memory; the tree is in a tmpfs.
mkdir -p "$dir/root"/{bin,mod,proc,sys,dev,lower,up,new}
cp "$(command -v busybox)" "$dir/root/bin/"
mkdir -p "$dir/base/lib/modules"
ln -s "$modules" "$dir/base/lib/modules/$version"
depmod -b "$dir/base" "$version" 2>/dev/null
for m in virtio_pci 9pnet_virtio 9p fuse overlay loop ext4 xfs btrfs squashfs nfsd nfsv3 nfsv4; do
  modprobe -d "$dir/base" -S "$version" --show-depends "$m" 2>/dev/null | awk '/^insmod/ { print $2 }'
done | awk '!seen[$0]++' | while read -r ko; do
  cp "$ko" "$dir/root/mod/"
  basename "$ko"
done >"$dir/root/order"
cat >"$dir/root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
exec </dev/console >/dev/console 2>&1
while read -r m; do insmod "/mod/$m"; done </order
mount -t tmpfs -o size=90% t /up; mkdir /up/u /up/w
mount -t hostfs h /lower -o / 2>/dev/null || mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /lower
mount -t overlay -o lowerdir=/lower,upperdir=/up/u,workdir=/up/w o /new
mount -t proc p /new/proc; mount -t sysfs s /new/sys; mount -t securityfs s /new/sys/kernel/security; mount -t cgroup2 c /new/sys/fs/cgroup
mount -t devtmpfs d /new/dev; [ -e /new/dev/fd ] || ln -s /proc/self/fd /new/dev/fd
mkdir -p /new/dev/shm /new/dev/pts; mount -t tmpfs t /new/dev/shm; mount -t devpts d /new/dev/pts
mount -t tmpfs -o size=90%,mode=755 t /new/run; mount -t tmpfs -o size=90%,mode=1777 t /new/tmp
ifconfig lo 127.0.0.1 up
echo "machine is up"
cp -r /lower/TREE /new/run/tree
chroot /new /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
  TEST_SEED=SEED CHECK_FULL=ALL MOUNTS="SUITES" UNIT=none LIMIT=900 JOBS=2 RETRY=RETRIES /bin/bash -c 'cd /run/tree && TMPDIR=/tmp RUN'
echo "machine ends with status $?"
poweroff -f
END
mkdir -p "$dir/tree/build/release"
cp -r scripts tests "$dir/tree/"
(cd "$build" && find . \( -name '*.o' -o -name '*.a' -o -path ./fuzz \) -prune -o -type f -print0 | tar -cf - --null -T -) | tar -xf - -C "$dir/tree/build/release"
sed -i "s|TREE|${dir#/}/tree|; s|SUITES|$suites|; s|RUN|$run|; s|ALL|${CHECK_FULL-1}|; s|RETRIES|${RETRY:-}|; s|SEED|${TEST_SEED:-$(date +%s%N)}|" "$dir/root/init"
chmod +x "$dir/root/init"

start() { # SECONDS uml|kvm|tcg: starts the machine, for at most so long; its console goes to a file
  local qemu=(-m "$memory" -smp 2 -nographic -no-reboot -bios qboot.rom -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
    -kernel "$(echo "$dir"/kernel/boot/vmlinuz-*)" -initrd "$dir/initrd" -append "console=ttyS0 quiet panic=-1 mitigations=off")
  case $2 in
    uml) set -- "$1" "$dir/kernel/usr/bin/linux.uml" "mem=$memory" "uml_dir=$dir/uml" root=/dev/root rootfstype=hostfs \
      "rootflags=$dir/root" rw init=/init con=null con0=null,fd:1 quiet ;;
    kvm) set -- "$1" qemu-system-x86_64 -accel kvm -cpu host "${qemu[@]}" ;;
    tcg) set -- "$1" qemu-system-x86_64 -accel tcg,thread=multi -cpu max "${qemu[@]}" ;;
  esac
  timeout -k 5 "$@" </dev/null >"$dir/console" 2>&1 &
  machine=$!
}
up() { # SECONDS: waits until it is up or has ended; fails if it is neither by then
  local i
  for ((i = 0; i < 10 * $1; i++)); do
    grep -aqs '^machine is up' "$dir/console" && return
    kill -0 "$machine" 2>/dev/null || return
    sleep 0.1
  done
  false
}
[[ $kernel == uml ]] || (cd "$dir/root" && find . | cpio -o -H newc 2>/dev/null | gzip -1 >../initrd)
for how in $([[ $kernel == uml ]] && echo uml || echo kvm tcg); do
  [[ $how != kvm || -w /dev/kvm ]] || continue
  start "$seconds" "$how"
  if up 60 && grep -aq '^machine is up' "$dir/console"; then break; fi
  kill "$machine" 2>/dev/null
  wait "$machine" 2>/dev/null
  machine=
done
[[ -n ${machine:-} ]] || none "Linux $version does not start here: $(tr -d '\r' <"$dir/console" | tail -n 1)"
wait "$machine"
rc=$?
tr -d '\r' <"$dir/console" | sed -n '/^machine is up/,/^machine ends/p'
status=$(tr -d '\r' <"$dir/console" | sed -n 's/^machine ends with status //p')
if [[ -z $status ]]; then
  # That the machine is slow is not a failure of the program; tests that have failed so far are.
  grep -a '^FAILED' "$dir/console" && exit 1
  none "Linux $version ($how) has not ended in $seconds s (status $rc)"
fi
echo "Linux $version ($how): $(tr -d '\r' <"$dir/console" | grep -a ' passed, ' | tail -n 1)"
exit "$status"
