#!/bin/bash
# lint.sh - checks beyond the compiler's: format, cppcheck, shellcheck, pyflakes, the manual. Takes seconds;
# analyze.sh runs the checks that take minutes.
# A tool that is not installed is reported and skipped; with CI=true this is a failure.
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
# memleak is off: it does not understand cleanup attributes; AddressSanitizer finds leaks.
have cppcheck && step cppcheck cppcheck --quiet --error-exitcode=1 --inline-suppr -j 2 \
  --enable=warning,performance,portability --suppress=missingIncludeSystem \
  --suppress=nullPointerOutOfMemory --suppress=checkersReport --suppress=memleak -DCKPTFS_VERSION='"x"' \
  -D_GNU_SOURCE -Icore -Icore/include -Ifs core fs
have shellcheck && step shellcheck shellcheck -x -P SCRIPTDIR "${sh[@]}"
mapfile -t py < <(git ls-files '*.py')
have pyflakes3 && step pyflakes pyflakes3 "${py[@]}"
mapfile -t js < <(git ls-files '*.js')
# shellcheck disable=SC2317 # step calls it
lint_js() {
  local f bad=0
  for f in "${js[@]}"; do node --check "$f" || bad=1; done
  return "$bad"
}
have node && step node lint_js
# Other packages' pages need not be installed. Mandoc writes to both streams; if they were merged,
# their lines would be mixed.
# shellcheck disable=SC2317 # step calls it
lint_manual() {
  [ -z "$({
    mandoc -T lint fs/man/*.[1-9] core/include/ckpt.3 2>&1 >&3 | grep -v 'outdated mandoc\.db'
  } 3>&1 | grep -v 'referenced manual not found' | tee /dev/stderr)" ]
}
have mandoc && step mandoc lint_manual
exit $bad
