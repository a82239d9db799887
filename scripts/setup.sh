#!/bin/sh
# setup.sh build|test|deb - make sure the Debian packages are there.
#
# MPI=1 in the environment: for a build with MPI.
# Installs what is missing through apt when it may, otherwise prints the one line that does.
# Silent and quick when nothing is missing.
set -u

packages="gcc make pkg-config libfuse3-dev fuse3 libsqlite3-dev libzstd-dev libjansson-dev libxxhash-dev libdeflate-dev nettle-dev libseccomp-dev"
case ${1:-build} in
  test) packages="$packages check attr rsync sqlite3 python3 python3-numpy bash-completion g++" ;;
  deb) packages="$packages debhelper dpkg-dev xz-utils ${LINTIAN:+lintian}" ;;
esac
[ -z "${MPI:-}" ] || packages="$packages libopenmpi-dev openmpi-bin"

missing=
for p in $packages; do
  case $p in # a compiler or make of another kind is as good
    gcc) command -v "${CC:-cc}" >/dev/null 2>&1 && continue ;;
    make) command -v make >/dev/null 2>&1 && continue ;;
    pkg-config) command -v pkg-config >/dev/null 2>&1 && continue ;;
    python3) command -v python3 >/dev/null 2>&1 && continue ;;
  esac
  dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed ||
    missing="$missing $p"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing:$missing"
  log=$(mktemp)
  # shellcheck disable=SC2086 # a list of words
  { apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
    >"$log" 2>&1 && rm -f "$log" && exit 0
  tail -n 5 "$log"
  rm -f "$log"
fi
echo "missing packages; please run: sudo apt-get install$missing"
exit 1
