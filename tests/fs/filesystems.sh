#!/bin/bash
# filesystems.sh BUILDDIR [FILESYSTEM...] - run suites on real mounts, with all their checkpoints on each file system:
#
# ext4, xfs, btrfs on loop devices; tmpfs; overlayfs, sshfs (its server is its child: no network) and bindfs, each over
# ext4; squashfs, from which fixtures and the checkpoints of lib.sh are read; nfs4.2, nfs3, exported by this machine's
# kernel to itself, if it can. $MOUNTS names the suites. Must be root. Prints one line for each file system, and FAILED
# and skipped tests; status 1 if any failed. If this kernel has no NFS, scripts/vm.sh runs this in a virtual machine.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
build=$(realpath "${1:?directory of the build}")
shift
all=(ext4 xfs btrfs tmpfs overlayfs sshfs bindfs squashfs nfs4.2 nfs3)
(($#)) || set -- "${all[@]}"
export MOUNTS=${MOUNTS:-bytes reads damage index export run reshard passthrough warm diff hf file_cache}
[[ $EUID == 0 ]] || { echo "filesystems.sh: must be root" >&2; exit 2; }
[[ -n ${NO_SETUP:-} ]] || apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends xfsprogs btrfs-progs \
  squashfs-tools openssh-sftp-server sshfs bindfs nfs-kernel-server nfs-common rpcbind >/dev/null 2>&1 ||
  echo "filesystems.sh: not all packages could be installed" >&2

base=$(mktemp -d)
chmod 711 "$base"
at=$base/at
trap 'down; rm -rf --one-file-system "$base"' EXIT
trap 'exit 130' INT TERM HUP

# loop TYPE DIR [mkfs options]: mounts a new file system in a sparse file of 6 GiB
loop() {
  truncate -s 6G "$base/image" && "mkfs.$1" -q "${@:3}" "$base/image" >/dev/null && mkdir -p "$2" && mount -o loop "$base/image" "$2"
}
under() { loop ext4 "$base/under" && mkdir -m 711 "$base/under/d"; }
nfs() { # VERSION
  under && mkdir -p /proc/fs/nfsd && { mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd; } &&
    { echo 2 >/proc/fs/nfsd/nfsv4gracetime; :; } && { pgrep -x rpcbind >/dev/null || rpcbind; } &&
    exportfs -o rw,no_root_squash,fsid=0,insecure "127.0.0.1:$base/under/d" && { [[ $(</proc/fs/nfsd/threads) != 0 ]] || rpc.nfsd -N 4.0 2; } &&
    { pgrep -x rpc.mountd >/dev/null || rpc.mountd; } &&
    case $1 in
      3) mount -t nfs -o vers=3,nolock "127.0.0.1:$base/under/d" "$at" ;;
      *) mount -t nfs -o "vers=$1" 127.0.0.1:/ "$at" ;;
    esac
}
up() {
  mkdir -p "$at"
  case $1 in
    ext4) loop ext4 "$at" ;;
    xfs) loop xfs "$at" ;;
    btrfs) loop btrfs "$at" ;;
    tmpfs) mount -t tmpfs -o size=6g tmpfs "$at" ;;
    overlayfs) under && mkdir "$base"/under/{up,work} && mount -t overlay -o "lowerdir=$base/under/d,upperdir=$base/under/up,workdir=$base/under/work" overlay "$at" ;;
    sshfs)
      printf '#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n' >"$base/ssh"
      chmod +x "$base/ssh"
      local links= # an option of later versions, which else refuse links with ".."
      ! sshfs --help 2>&1 | grep no_contain_symlinks >/dev/null || links=,no_contain_symlinks
      under && sshfs -o "ssh_command=$base/ssh,allow_other,default_permissions$links" "x:$base/under/d" "$at"
      ;;
    bindfs) under && bindfs "$base/under/d" "$at" ;;
    squashfs)
      # shellcheck disable=SC2016 # expanded inside
      CKPTFS=$build/ckptfs SCRATCH=$base/made bash -c 'mkdir "$SCRATCH" && . tests/fs/lib.sh && big && zoo' &&
        mksquashfs tests/data "$base/made" "$base/image" -quiet -no-progress >/dev/null && rm -r "$base/made" &&
        mount -o loop "$base/image" "$at"
      ;;
    nfs*) nfs "${1#nfs}" ;;
    *) echo "filesystems.sh: unknown: $1" >&2; exit 2 ;;
  esac
}
down() {
  local m
  exportfs -u "127.0.0.1:$base/under/d" 2>/dev/null
  for m in "$at" "$base/under"; do
    while mountpoint -q "$m"; do umount "$m" 2>/dev/null || umount -l "$m" || break; done
  done
  rm -f "$base/image"
}

bad=0
for kind; do
  if ! up "$kind" >"$base/log" 2>&1; then
    echo "$kind: cannot be had here: $(tail -n 1 "$base/log")"
    down
    continue
  fi
  chmod 711 "$at" 2>/dev/null
  if [[ $kind == squashfs ]]; then
    DATA=$at/data MADE=$at/made UNIT=none scripts/check.sh "$build" >"$base/log" 2>&1
  else
    TMPDIR=$at UNIT=none scripts/check.sh "$build" >"$base/log" 2>&1
  fi || bad=1
  echo "$kind, Linux $(uname -r): $(tail -n 1 "$base/log")"
  awk '/^(FAILED|skipped)/ { shown = 1 } !/^(FAILED|skipped| )/ { shown = 0 } shown { print "    " $0 }' "$base/log"
  down
done
exit $bad
