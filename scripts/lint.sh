#!/bin/bash
# lint.sh - what a compiler does not say: format, cppcheck, shellcheck, pyflakes, the man page; in seconds.
# analyze.sh has what takes minutes.
# A tool that is not installed is named and skipped; with CI=true that is a failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
bad=0

have() {
  command -v "$1" >/dev/null && return 0
  echo "lint: $1 is not installed, skipped"
  [ "${CI:-}" = true ] && bad=1
  return 1
}
step() {
  local name=$1
  shift
  "$@" || { echo "lint: $name failed"; bad=1; }
}

mapfile -t c < <(git ls-files '*.c' '*.h')
mapfile -t sh < <(git ls-files '*.sh' '*.bash' .ci/run)
have clang-format && step clang-format clang-format --dry-run -Werror "${c[@]}"
have cppcheck && step cppcheck cppcheck --quiet --error-exitcode=1 --inline-suppr -j 2 \
  --enable=warning,performance,portability --suppress=missingIncludeSystem \
  --suppress=nullPointerOutOfMemory --suppress=checkersReport -DCKPTFS_VERSION='"x"' \
  -D_GNU_SOURCE -Icore core fs
have shellcheck && step shellcheck shellcheck -x -P SCRIPTDIR "${sh[@]}"
mapfile -t py < <(git ls-files '*.py')
have pyflakes3 && step pyflakes pyflakes3 "${py[@]}"
have mandoc && step mandoc mandoc -T lint -W warning fs/ckptfs.1 core/api/ckpt.3
exit $bad
