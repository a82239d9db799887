#!/bin/bash
# libfuse.sh make [DIR]    build the libfuse of Debian forky, with io_uring, in DIR
# libfuse.sh check [DIR]   build this program with it, and run suites on real mounts
#
# Debian 12 has libfuse 3.14, which a build uses by default. Newer versions support kernel passthrough and
# io_uring; forky's package is built without the latter, so libfuse is built from source.
# "check" enables FUSE over io_uring in the kernel, if supported, and disables it afterwards. $MOUNTS names the suites.
#
# DIR defaults to /var/cache/ckptfs/libfuse. Must be root; the chroot of chroot.sh fetches the source.
set -euo pipefail
cd "$(dirname "$0")/.."

MOUNTS=${MOUNTS:-passthrough reads sandbox stats}
PARAMETER=/sys/module/fuse/parameters/enable_uring

die() { echo "libfuse.sh: $*" >&2; exit 1; }

make_libfuse() {
  local dir=$1 tmp
  [ -e "$dir/lib/pkgconfig/fuse3.pc" ] && return
  apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends meson ninja-build liburing-dev libnuma-dev >/dev/null
  scripts/chroot.sh make
  tmp=$(mktemp -d)
  # shellcheck disable=SC2016 # expanded inside
  scripts/chroot.sh run --bind "$tmp:/mnt/libfuse" -- sh -euc '
    sed "s/^deb /deb-src /" /etc/apt/sources.list >/mnt/libfuse/src.list
    set -- -o Dir::Etc::SourceList=/mnt/libfuse/src.list -o Dir::State::Lists=/mnt/libfuse/lists \
      -o APT::Sandbox::User=root
    mkdir -p /mnt/libfuse/lists/partial
    cd /mnt/libfuse
    apt-get "$@" -qq update
    apt-get "$@" -qq source --download-only fuse3'
  mkdir "$tmp/src"
  tar -xf "$(find "$tmp" -name 'fuse3_*.orig.tar.*z')" -C "$tmp/src" --strip-components=1
  meson setup "$tmp/build" "$tmp/src" --prefix="$dir" --libdir=lib --buildtype=debugoptimized \
    -Dexamples=false -Dtests=false -Dutils=false -Denable-io-uring=true >"$tmp/log" ||
    { tail -n 20 "$tmp/log"; exit 1; }
  ninja -C "$tmp/build" install >"$tmp/log" || { tail -n 20 "$tmp/log"; exit 1; }
  rm -rf "$tmp"
}

check() {
  local dir=$1 was
  PKG_CONFIG_PATH=$dir/lib/pkgconfig make -j2 WERROR=1 BUILD=build/libfuse \
    LDFLAGS="-Wl,-rpath,$dir/lib" build/libfuse/{ckptfs,ckptfs-fetch,tests/without,tests/dir-fetch}
  was=$(cat "$PARAMETER" 2>/dev/null || echo none)
  if [ "$was" = N ]; then
    trap 'echo N >$PARAMETER' EXIT
    echo Y >"$PARAMETER"
  fi
  UNIT=none MOUNTS=$MOUNTS scripts/check.sh build/libfuse
}

[ "$(id -u)" = 0 ] || die "must be root"
dir=$(realpath -m "${2:-/var/cache/ckptfs/libfuse}")
case ${1:-} in
  make) make_libfuse "$dir" ;;
  check)
    make_libfuse "$dir"
    check "$dir"
    ;;
  *) die "usage: libfuse.sh make|check [DIR]" ;;
esac
