#!/bin/bash
# analyze.sh [FILE...] - clang-tidy and gcc -fanalyzer on every C file of the program, or on the given ones.
# .clang-tidy lists the checks and explains why others are off. Takes minutes, so it is not part of lint.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "analyze: clang-tidy is not installed"; exit 2; }

# One process for each file: in one process the analyser mixes up the va_lists of several.
tidy() {
  local file=$1 shim=(-include scripts/analyze.h) include
  [[ $file != core/base/err.c ]] || shim=()
  read -ra include < <(pkg-config --cflags fuse3 sqlite3 libzstd zlib blosc libxxhash libdeflate nettle libcurl expat |
    sed 's/-I/-isystem /g')
  clang-tidy --quiet "$file" -- -std=gnu17 -D_GNU_SOURCE '-DCKPTFS_VERSION="x"' -DFUSE_USE_VERSION=314 \
    -Icore -Icore/include -Ifs "${include[@]}" "${shim[@]}" 2> >(grep -vE 'warnings? generated|^Suppressed|^Use -header' >&2)
}

# gcc 12's analyser looks for double free and use after free, and misuse of files, setjmp and signals.
# These checks are off, because all of their findings were false:
#   malloc-leak             memory that a structure owns, or a cleanup function frees
#   use-of-uninitialized-value  values that a function sets if it returns 0; variables with a cleanup
#   null-dereference, null-argument, possible-null-argument  contracts of other functions, as in .clang-tidy
gcc_analyze() {
  local include
  read -ra include < <(pkg-config --cflags fuse3 libseccomp sqlite3 libzstd zlib blosc libxxhash libdeflate nettle libcurl expat |
    sed 's/-I/-isystem /g')
  "${GCC:-gcc}" -std=gnu17 -O2 -D_GNU_SOURCE '-DCKPTFS_VERSION="x"' -DFUSE_USE_VERSION=314 -Icore -Icore/include -Ifs \
    "${include[@]}" -Werror -fanalyzer -Wno-analyzer-malloc-leak -Wno-analyzer-use-of-uninitialized-value \
    -Wno-analyzer-null-dereference -Wno-analyzer-null-argument -Wno-analyzer-possible-null-argument \
    -c -o /dev/null "$1"
}
both() {
  local bad=0

  tidy "$1" || bad=1
  gcc_analyze "$1" || bad=1
  return $bad
}
export -f tidy gcc_analyze both

if (($#)); then files=("$@"); else mapfile -t files < <(git ls-files 'core/*.c' 'fs/*.c' ':!core/comm/comm_mpi.c'); fi
# shellcheck disable=SC2016 # the inner shell's
printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -c 'both "$1"' both
echo "analyze: ${#files[@]} files"
