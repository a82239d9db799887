#!/bin/bash
# dist.sh VERSION - pack the sources of the last commit into build/ckptfs-VERSION.tar.xz. The same
# commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
name=ckptfs-$1

mkdir -p build
if git rev-parse --git-dir >/dev/null 2>&1; then
  git diff --quiet HEAD || echo "dist: uncommitted changes are not included" >&2
  git archive --format=tar --prefix="$name/" HEAD
else # an unpacked source archive
  tar -c --exclude=./build --sort=name --owner=0 --group=0 --numeric-owner \
    --transform="s|^\.|$name|" .
fi | xz -6 >"build/$name.tar.xz"
echo "build/$name.tar.xz"
