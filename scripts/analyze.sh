#!/bin/bash
# analyze.sh [FILE...] - clang-tidy on every C file of the program, or on those; .clang-tidy says
# which checks, and why not others. Minutes: not a part of lint.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "analyze: clang-tidy is not installed"; exit 2; }

# One process for each file: in one process the analyser mixes up the va_lists of several.
tidy() {
  local file=$1 shim=(-include scripts/analyze.h) include
  [[ $file != core/base/err.c ]] || shim=()
  read -ra include < <(pkg-config --cflags fuse3 sqlite3 libzstd jansson libxxhash libdeflate nettle |
    sed 's/-I/-isystem /g')
  clang-tidy --quiet "$file" -- -std=gnu17 -D_GNU_SOURCE '-DCKPTFS_VERSION="x"' -DFUSE_USE_VERSION=314 \
    -Icore "${include[@]}" "${shim[@]}" 2> >(grep -vE 'warnings? generated|^Suppressed|^Use -header' >&2)
}
export -f tidy

if (($#)); then files=("$@"); else mapfile -t files < <(git ls-files 'core/*.c' 'fs/*.c' ':!core/comm/comm_mpi.c'); fi
# shellcheck disable=SC2016 # the inner shell's
printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -c 'tidy "$1"' tidy
echo "analyze: ${#files[@]} files"
