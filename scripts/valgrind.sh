#!/bin/bash
# valgrind.sh PROGRAM [SUITE...] - the unit suites of PROGRAM under memcheck: bytes used before they
# are set (which no sanitizer of ours sees), and leaks. A test that has some fails, and is named.
#
# Not those that inject faults, one run for each: they would take an hour, and AddressSanitizer has them. Nor staging,
# which is traced and killed before each of its system calls: valgrind makes many more of its own; nor pagemap, which
# reads where it must not.
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
# It does not know openat2; the program does without.
cat "$logs"/* | grep -vE '^--[0-9]+-- ' || true
exit $status
