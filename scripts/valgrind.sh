#!/bin/bash
# valgrind.sh PROGRAM [SUITE...] - run the unit suites of PROGRAM under memcheck, which finds leaks and uses
# of uninitialised bytes (which the sanitizers do not detect). Tests with findings fail and are named.
#
# Excluded are suites that inject faults, because one run per fault would take an hour, and they run under
# AddressSanitizer; staging, which is killed before each of its system calls, because valgrind makes many more of its
# own; and pagemap, which reads invalid addresses on purpose.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
shift
command -v valgrind >/dev/null || { echo "valgrind.sh: valgrind is not installed"; exit 2; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

if (($#)); then
  suites=("$@")
else
  mapfile -t suites < <(sed -nE 's/^\tX\(([a-z0-9_]+)\).*/\1/p' tests/suites.h | grep -vE '_?fault|_hostile|^(pagemap|pickle_mutation|staging)$')
fi
status=0
CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-100} valgrind --quiet --max-threads=4200 --error-exitcode=9 --leak-check=full \
  --show-leak-kinds=definite --errors-for-leak-kinds=definite --log-file="$logs/%p" "$program" "${suites[@]}" || status=$?
# Valgrind does not support openat2; the program works without it.
cat "$logs"/* | grep -vE '^--[0-9]+-- ' || true
exit $status
