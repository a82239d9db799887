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
mkdir -p build/cppcheck # remembers results, so that only changed files are checked again
# memleak is off because it does not understand cleanup attributes; AddressSanitizer finds leaks. ctuuninitvar is off
# because what err_set fills need not be initialised.
have cppcheck && step cppcheck cppcheck --cppcheck-build-dir=build/cppcheck --quiet --error-exitcode=1 \
  --inline-suppr -j "$(nproc)" \
  --enable=warning,performance,portability --suppress=missingIncludeSystem \
  --suppress=nullPointerOutOfMemory --suppress=checkersReport --suppress=memleak --suppress=ctuuninitvar -DCKPTFS_VERSION='"x"' \
  -D_GNU_SOURCE -Icore -Icore/include -Ifs core fs
# shellcheck disable=SC2317 # step calls it
lint_sh() { printf '%s\0' "${sh[@]}" | xargs -0 -n 8 -P "$(nproc)" shellcheck -x -P SCRIPTDIR; }
have shellcheck && step shellcheck lint_sh
# Such a grep ends at the first match, and with pipefail the command before it may then fail with SIGPIPE. With
# ">/dev/null" in place of -q it reads all.
# shellcheck disable=SC2317 # step calls it
lint_pipes() { ! grep -nE '[^|][|] *grep -[a-zA-Z]*q' "${sh[@]}"; }
step "no pipe into grep -q" lint_pipes
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
step "the record of the fuzz targets" scripts/fuzz.sh check
exit $bad
