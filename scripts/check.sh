#!/bin/bash
# check.sh BUILDDIR [WORD] - the unit suites of BUILDDIR/tests/unit ($UNIT names them, when not
# all; or none), then every suite on real mounts with BUILDDIR/ckptfs ($MOUNTS, in the same way);
# with WORD only the suites whose file name contains it. Prints each test with its result and, at the end, "N passed, N failed". Without
# /dev/fuse the mounts are skipped, which is a failure when CI=true. Whatever was mounted or written
# is gone afterwards.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

build=${1:?directory of the build}
word=${2:-}
scratch=$(mktemp -d) || exit 2
log=$scratch/log

clean_up() {
  awk -v d="$scratch/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | tac |
    while read -r m; do
      m=$(printf '%b' "$m") # \040
      umount -l "$m" 2>/dev/null || fusermount3 -uz "$m"
    done
  chmod -R u+w "$scratch" 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# A daemon has no stderr; what a sanitizer has to say goes to files.
for tool in ASAN UBSAN TSAN; do
  options=${tool}_OPTIONS
  export "$options=${!options:+${!options}:}log_path=$scratch/${tool,,}"
done
UBSAN_OPTIONS+=:print_stacktrace=1

if [[ -x $build/tests/unit && -z $word && ${UNIT:-} != none ]]; then
  # Check's own summary: "98%: Checks: 55, Failures: 1, Errors: 0"
  # shellcheck disable=SC2086 # a list of suites, all when empty
  CK_VERBOSITY=${CK_VERBOSITY:-verbose} "$build/tests/unit" ${UNIT:-} >"$log.unit" 2>&1
  unit=$?
  cat "$log.unit"
  read -r unit_all unit_failed < <(sed -nE \
    's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+)$/\1 \2 \3/p' "$log.unit" |
    awk '{ n += $1; bad += $2 + $3 } END { print n + 0, bad + 0 }')
  # It may have died without a word about failures.
  if ((unit && !unit_failed)); then unit_failed=1; fi
else
  unit_all=0 unit_failed=0
fi

if [[ ! -c /dev/fuse ]]; then
  for suite in tests/fs/test_*.sh; do
    printf '%-7s %s (no /dev/fuse)\n' skipped "$(basename "$suite" .sh)"
  done | tee "$log"
else
  for suite in tests/fs/test_*"$word"*.sh; do
    name=$(basename "$suite" .sh)
    [[ -z ${MOUNTS:-} || " $MOUNTS " == *" ${name#test_} "* ]] || continue
    CKPTFS=$build/ckptfs SCRATCH=$scratch VARIANT=$(basename "$build") "$suite"
  done | tee "$log"
fi

# Daemons whose mounts are gone must be gone too.
left_over() {
  local p
  for p in /proc/[0-9]*; do
    if [[ $(readlink "$p/exe" 2>/dev/null) == "$(realpath "$build/ckptfs")" ]] &&
      tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -xF "SCRATCH=$scratch" >/dev/null; then
      echo "${p#/proc/}"
    fi
  done
}
for ((i = 0; i < 50; i++)); do
  running=$(left_over)
  [[ -n $running ]] || break
  sleep 0.1
done
count() { grep -cE "^$1 " "$log"; }
passed=$((unit_all - unit_failed + $(count ok)))
failed=$((unit_failed + $(count FAILED)))
skipped=$(count skipped)
[[ ${CI:-} == true ]] && failed=$((failed + skipped))
# That a thread ended while LeakSanitizer stopped all of them is nobody's fault, and it goes on.
for report in "$scratch"/{asan,ubsan,tsan}.*; do
  grep -sqv 'Unable to get registers from thread' "$report" || continue
  failed=$((failed + 1))
  echo "FAILED  sanitizer:"
  head -n 40 "$report"
done
if [[ -n $running ]]; then
  failed=$((failed + 1))
  echo "FAILED  daemons that do not end: ${running//$'\n'/ }"
  # shellcheck disable=SC2086 # a list
  kill -9 $running
fi
if ((skipped)); then echo "$skipped skipped"; fi
echo "$passed passed, $failed failed"
((!failed && passed))
