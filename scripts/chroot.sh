#!/bin/bash
# chroot.sh make [DIR]                    build a Debian forky chroot in DIR, with PyTorch, programs
#                                         that read its models, and Ceph
# chroot.sh run [DIR] [--bind SRC:DST]... -- COMMAND [ARG...]
#
# The tests compare ckptfs with the real frameworks. Debian 12 has no usable PyTorch, Debian
# forky does; so it runs in a chroot. "make" may be repeated: finished parts are kept, so DIR
# can be cached between runs. "run" executes COMMAND inside, in a separate mount namespace,
# with each SRC (which may be a live FUSE mount) visible at DST; its exit status is COMMAND's
# and nothing stays mounted afterwards.
#
# DIR defaults to $CKPTFS_CHROOT, or /var/cache/ckptfs/forky. Must be root.
# The mirror is the one that this machine's apt uses.
set -euo pipefail

SUITE=forky
PACKAGES="python3-torch python3-numpy python3-zstandard python3-safetensors python3-transformers
  llama.cpp-tools python3-gguf python3-zarr python3-ml-dtypes python3-compressed-tensors python3-pip-whl
  ceph-mon ceph-osd radosgw ceph-common"
STAMP=var/lib/ckptfs-ready # inside the chroot: the packages installed last

die() { echo "chroot.sh: $*" >&2; exit 1; }

mirror() {
  # shellcheck disable=SC2016 # apt's own variables
  apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -F'|' '$1 == "Debian" && $2 !~ /security/ { sub("/$", "", $2); print $2; exit }'
}

make_chroot() {
  local dir=$1 m f
  [ "$(cat "$dir/$STAMP" 2>/dev/null)" = "$PACKAGES" ] && return 0
  command -v debootstrap >/dev/null || apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends debootstrap
  m=$(mirror)
  [ -n "$m" ] || die "no Debian mirror in apt's lists; run apt-get update first"
  mkdir -p "$dir"
  if [ ! -x "$dir/usr/bin/apt-get" ] || [ -d "$dir/debootstrap" ]; then
    [ -e "/usr/share/debootstrap/scripts/$SUITE" ] ||
      ln -s sid "/usr/share/debootstrap/scripts/$SUITE"
    debootstrap --variant=minbase "$SUITE" "$dir" "$m"
  fi
  # The chroot needs the same settings as the machine to reach the mirror.
  for f in /etc/apt/apt.conf.d/*; do
    if grep -qs 'Acquire::' "$f"; then cp "$f" "$dir/etc/apt/apt.conf.d/"; fi
  done
  for f in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$f" ]; then
      mkdir -p "$dir${f%/*}"
      cp -L "$f" "$dir$f" || true
    fi
  done
  printf '#!/bin/sh\nexit 101\n' >"$dir/usr/sbin/policy-rc.d" # no service starts in there
  chmod +x "$dir/usr/sbin/policy-rc.d"
  printf 'path-exclude=/usr/share/%s/*\n' man doc locale >"$dir/etc/dpkg/dpkg.cfg.d/90lean"
  echo force-unsafe-io >"$dir/etc/dpkg/dpkg.cfg.d/91quick" # synced below, once
  cat >"$dir/etc/apt/apt.conf.d/91lean" <<-CONF
	APT::Install-Recommends "false";
	Acquire::Languages "none";
	Dpkg::Use-Pty "false";
	CONF
  echo "deb $m $SUITE main" >"$dir/etc/apt/sources.list"
  run_in "$dir" -- apt-get -qq update
  # shellcheck disable=SC2086 # a list of words
  run_in "$dir" -- env DEBIAN_FRONTEND=noninteractive apt-get -y -qq install $PACKAGES </dev/null
  run_in "$dir" -- apt-get -qq clean
  sync -f "$dir"
  mkdir -p "$dir/${STAMP%/*}"
  echo "$PACKAGES" >"$dir/$STAMP"
}

run_in() {
  local dir=$1
  shift
  local binds=()
  while [ "${1:-}" = --bind ]; do
    binds+=("$2")
    shift 2
  done
  [ "${1:-}" = -- ] && shift
  # For gloo: one interface, no libuv (Debian builds torch without it), one thread per rank.
  # shellcheck disable=SC2016 # expanded by the inner shell
  CHROOT_DIR=$(realpath "$dir") CHROOT_BINDS=${binds[*]:-} \
    unshare --mount --propagation private bash -c '
      set -e
      for d in proc dev sys; do mount --rbind "/$d" "$CHROOT_DIR/$d"; done
      for b in $CHROOT_BINDS; do
        mkdir -p "$CHROOT_DIR${b#*:}"
        mount --rbind "${b%%:*}" "$CHROOT_DIR${b#*:}"
      done
      exec chroot "$CHROOT_DIR" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo USE_LIBUV=0 \
        PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1 "$@"
    ' _ "$@"
}

[ "$(id -u)" = 0 ] || die "must be root"
command=${1:-}
shift || true
dir=${CKPTFS_CHROOT:-/var/cache/ckptfs/forky}
case ${1:-} in
  '' | --*) ;;
  *)
    dir=$1
    shift
    ;;
esac
case $command in
  make) make_chroot "$dir" ;;
  run) run_in "$dir" "$@" ;;
  *) die "usage: chroot.sh make [DIR] | chroot.sh run [DIR] [--bind SRC:DST]... -- COMMAND..." ;;
esac
