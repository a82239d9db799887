#!/bin/bash
# deb.sh VERSION - build Debian packages of this version for the running Debian release: build/*.deb.
#
# Made from the last commit, like `make dist`. DEBFULLNAME and DEBEMAIL, if set, are the packager's name and
# address. LINTIAN=1: fail if lintian finds an error.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
name=ckptfs-$version
work=build/deb/$name
log=build/deb/log

scripts/setup.sh deb
rm -rf build/deb
mkdir -p build/deb
scripts/dist.sh "$version" >/dev/null
tar -xf "build/$name.tar.xz" -C build/deb
cp "build/$name.tar.xz" "build/deb/ckptfs_$version.orig.tar.xz"
cp -r scripts/debian "$work/debian"
so=$(sed -E 's/^(0\.[0-9]+|[0-9]+).*/\1/' <<<"$version") # as in the Makefile
mv "$work/debian/libckpt.install" "$work/debian/libckpt$so.install"
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
sed -i -e "s|@VERSION@|$version|g" -e "s|@SOVERSION@|$so|g" -e "s|@DATE@|$date|g" \
  -e "s|@MAINTAINER@|${DEBFULLNAME:-ckptfs} <${DEBEMAIL:-ckptfs@$(hostname).local}>|g" \
  "$work"/debian/{control,changelog}
if ! (cd "$work" && dpkg-buildpackage -b -us -uc) >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  exit 1
fi
if [ -n "${LINTIAN:-}" ]; then
  lintian --allow-root --fail-on error build/deb/*.changes
fi
rm -f build/*.deb
mv build/deb/*.deb build/
ls build/*.deb
