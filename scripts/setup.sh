#!/bin/sh
# setup.sh build|test|deb|wheel|ci - install the Debian packages that are needed to build, to test, to make packages, or
# for all that .ci/run does.
# setup.sh names - print the names of the packages that a build needs.
#
# MPI=1 in the environment: include the packages for a build with MPI. CHECK_FULL=1: those for a full run of the tests.
# Installs missing packages with apt if permitted, otherwise prints the command that installs them.
# Silent and quick if nothing is missing. Does nothing without dpkg: `make` then names missing dependencies.
set -u

# libfuse3-dev, fuse3: the mount; fusermount3 lets users mount without root. libsqlite3-dev: the chunk index.
# libzstd-dev: stream.zstd items, chunks of zarr. zlib1g-dev: chunks in gzip or zlib, which libdeflate cannot decode piece by
# piece. libblosc-dev: chunks in Blosc. libxxhash-dev: hashes over the index and over metadata. libdeflate-dev: CRC-32 of torch's
# archives. nettle-dev: SHA-256 of Megatron-core's integrity.json. libseccomp-dev: the sandbox of a mount.
# libcurl4-openssl-dev: connections to object stores, TLS, proxies. libexpat1-dev: the XML of their answers. Only ckptfs-fetch links these two.
packages="gcc make pkg-config libfuse3-dev fuse3 libsqlite3-dev libzstd-dev zlib1g-dev libblosc-dev libxxhash-dev libdeflate-dev nettle-dev libseccomp-dev \
  libcurl4-openssl-dev libexpat1-dev"
# Real servers for the suites that only a full run has (tests/net/servers.sh).
servers="curl openssl nginx-light memcached swift-proxy swift-account swift-container swift-object"
tests="liblz4-dev libsnappy-dev python3-venv check libjansson-dev attr \
  rsync sqlite3 python3 python3-numpy bash-completion zsh fish g++ jq mandoc procps e2fsprogs chromium ${CHECK_FULL:+$servers}"
makers="build-essential debhelper dpkg-dev xz-utils ${LINTIAN:+lintian}"
case ${1:-build} in
  test) packages="$packages $tests" ;;
  # A static link needs the codecs of libblosc.a, too; libblosc.so finds its own.
  wheel) packages="$packages liblz4-dev libsnappy-dev g++ python3" ;;
  deb) packages="$packages $makers" ;;
  ci) packages="$packages $tests $makers clang libclang-rt-14-dev clang-format cppcheck shellcheck pyflakes3 nodejs git debootstrap \
    meson ninja-build liburing-dev libnuma-dev" ;;
esac
[ -z "${MPI:-}" ] || packages="$packages libopenmpi-dev openmpi-bin"
[ "${1:-}" != names ] || { echo "$packages"; exit 0; }
command -v dpkg-query >/dev/null 2>&1 || exit 0

missing=
for p in $packages; do
  case $p in # another compiler or make will do
    gcc) command -v "${CC:-cc}" >/dev/null 2>&1 && continue ;;
    make) command -v make >/dev/null 2>&1 && continue ;;
    pkg-config) command -v pkg-config >/dev/null 2>&1 && continue ;;
    python3) command -v python3 >/dev/null 2>&1 && continue ;;
  esac
  dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -x installed >/dev/null ||
    missing="$missing $p"
done
[ -z "$missing" ] && exit 0

# apt-get does not wait for the lock on the package lists, which a new machine may be holding to fetch them by itself.
update() {
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    LC_ALL=C apt-get update -qq >"$log.lists" 2>&1 && rm "$log.lists" && return
    cat "$log.lists"
    grep -q 'Could not get lock' "$log.lists" || break
    sleep 30
  done
  rm -f "$log.lists"
  return 1
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing:$missing"
  log=$(mktemp)
  # shellcheck disable=SC2086 # a list of words
  { update &&
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends $missing; } \
    >"$log" 2>&1 && rm -f "$log" && exit 0
  tail -n 5 "$log"
  rm -f "$log"
fi
echo "missing packages; please run: sudo apt-get install$missing"
exit 1
