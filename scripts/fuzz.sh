#!/bin/bash
# fuzz.sh SECONDS TARGET... - run libFuzzer on each target, with ASan and UBSan, starting from its corpus and from what
# earlier runs have found, and write what it did to tests/fuzz/RECORD.tsv. New inputs go to build/corpus, reduced to those
# that reach something no other does, and from there to tests/fuzz/grown. An input that crashes, leaks, or takes 60 s or
# 4 GiB is kept in build/corpus, too, and makes the script fail. Needs clang.
#
# fuzz.sh check - names the targets that have not run, those whose code has changed since they did, and those that have
# run for less than an hour of CPU. None of these is a failure, because running takes hours, and a change of the code
# must not wait for that; it fails only if a line of the record is malformed or names no target.
# fuzz.sh changed - names the targets whose code has changed since they ran, those first that have run least.
# fuzz.sh brief BUILDDIR SECONDS MOST - runs the first MOST of these as built in BUILDDIR, without clang and without
# guidance by coverage, for when building everything for libFuzzer would take longer than the runs. The hash of the code
# is the seed: changed code is tried with other inputs, and the same code with the same ones.
#
# The code of a target is its source, the headers of core that this includes (except base and model), and the files
# beside those whose names begin like theirs (parse/zip.h: core/parse/zip*.[ch]). If the target's first comment has a
# list after "Fuzzes:", that list takes the place of the headers; "/" at the end of a name means a folder. The record
# has a hash of the code, without comments and blanks; CPU seconds and inputs are added up until it changes.
set -euo pipefail
cd "$(dirname "$0")/.."
record=tests/fuzz/RECORD.tsv
export grown=tests/fuzz/grown
enough=3600 # CPU seconds on the same code
columns='target\tdate\tcode\tcpu_seconds\tinputs\tedges\tfeatures\tcorpus\tseeds'

targets() {
  local f
  for f in tests/fuzz/fuzz_*.c; do basename "${f#tests/fuzz/fuzz_}" .c; done
}

# sources NAME - the files of the target's code, sorted
sources() {
  local file=tests/fuzz/fuzz_$1.c words word
  words=$(sed -nE '/Fuzzes:/,/\*\//{s/.*Fuzzes://; s|\*/.*||; s/^ \*//; p}' "$file")
  [[ -n $words ]] || words=$(sed -nE 's|^#include "([a-z_0-9]+/[a-z_0-9/]+)\.h".*|\1|p' "$file" | grep -vE '^(base|model|core)/')
  {
    echo "$file"
    for word in $words; do
      if [[ $word == */ ]]; then find "core/$word" -name '*.[ch]'; else compgen -G "core/$word*.[ch]"; fi || true
    done
  } | sort -u
}

# code NAME - the hash of its code
# shellcheck disable=SC2016 # Perl's variables
bare='s{("(?:\\.|[^"\\])*"|\x27(?:\\.|[^\x27\\])*\x27)|/\*.*?\*/|//[^\n]*}{$1 // ""}gse; s/\s+//g'
code() {
  local list
  mapfile -t list < <(sources "$1")
  [[ ${#list[@]} -gt 1 ]] || { echo "fuzz.sh: fuzz_$1.c names no code that it fuzzes" >&2; exit 1; }
  cat "${list[@]}" | perl -0777 -pe "$bare" | sha256sum | cut -c 1-12
}

# recorded NAME COLUMN - that column of the target's line; nothing if it has no line
recorded() {
  [[ ! -e $record ]] || awk -F'\t' -v n="$1" -v c="$2" '$1 == n { print $c }' "$record"
}

changed() {
  local name cpu
  for name in $(targets); do
    [[ $(recorded "$name" 3) == "$(code "$name")" ]] && continue
    cpu=$(recorded "$name" 4)
    echo "${cpu:-0} $name"
  done | sort -n | cut -d ' ' -f 2
}

check() {
  local name cpu bad=0 never=() old=() few=()
  for name in $(targets); do
    cpu=$(recorded "$name" 4)
    if [[ -z $cpu ]]; then
      never+=("$name")
    elif [[ ! $cpu =~ ^[0-9]+$ ]]; then
      echo "fuzz.sh: the line of '$name' in $record has no CPU seconds" >&2
      bad=1
    elif [[ $(recorded "$name" 3) != "$(code "$name")" ]]; then
      old+=("$name")
    elif ((cpu < enough)); then
      few+=("$name:${cpu}s")
    fi
  done
  while read -r name; do
    [[ -e tests/fuzz/fuzz_$name.c ]] || { echo "fuzz.sh: $record has '$name', which is no target" >&2; bad=1; }
  done < <(tail -n +2 "$record" | cut -f 1)
  [[ ${#never[@]} = 0 ]] || echo "fuzz: not recorded: ${never[*]}"
  [[ ${#old[@]} = 0 ]] || echo "fuzz: changed since they ran: ${old[*]}"
  [[ ${#few[@]} = 0 ]] || echo "fuzz: less than $enough s of CPU: ${few[*]}"
  return $bad
}

# unpack NAME DIR - what earlier runs have found
unpack() {
  mkdir -p "$2"
  [[ ! -e $grown/$1.tar.xz ]] || tar -xJf "$grown/$1.tar.xz" -C "$2"
}

# pack NAME - for the next runs; the same inputs make the same archive
pack() {
  mkdir -p "$grown"
  (cd "build/corpus/$1" && find . -type f -printf '%f\0' | LC_ALL=C sort -z |
    tar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 --null -T - -c) | xz -9e >"$grown/$1.tar.xz"
}

brief_one() { # BUILDDIR SECONDS NAME SEED
  local dir=$1/fuzz/fuzz_$3.corpus
  rm -rf "$dir"
  unpack "$3" "$dir"
  cp "tests/fuzz/corpus/$3"/* "$dir"
  TEST_SEED=$4 "$1/fuzz/fuzz_$3" -s "$2" "$dir" || { echo "fuzz: see $1/fuzz/fuzz_$3.input" >&2; return 1; }
}
export -f unpack brief_one

brief() {
  local name
  for name in $(changed | head -n "$3"); do echo "$1 $2 $name $((16#$(code "$name")))"; done |
    xargs -L 1 -P "$(nproc)" bash -c '[ $# = 0 ] || brief_one "$@"' brief
}

# note NAME CPU_SECONDS LOG - writes the target's line; adds to the old numbers unless the code has changed
note() {
  local name=$1 cpu=$2 log=$3 now inputs edges features corpus seeds
  now=$(code "$name")
  inputs=$(sed -nE 's/^stat::number_of_executed_units: *//p' "$log")
  read -r edges features < <(sed -nE 's/.* cov: ([0-9]+) ft: ([0-9]+) .*/\1 \2/p' "$log" | tail -n 1)
  corpus=$(find "build/corpus/$name" -type f | wc -l)
  seeds=$(find "tests/fuzz/corpus/$name" -type f | wc -l)
  {
    flock 9
    if [[ $(recorded "$name" 3) == "$now" ]]; then
      cpu=$((cpu + $(recorded "$name" 4)))
      inputs=$((inputs + $(recorded "$name" 5)))
    fi
    {
      echo -e "$columns"
      {
        [[ ! -e $record ]] || tail -n +2 "$record" | awk -F'\t' -v n="$name" '$1 != n'
        printf '%s\t' "$name" "$(date -u +%F)" "$now" "$cpu" "$inputs" "${edges:-0}" "${features:-0}" "$corpus"
        echo "$seeds"
      } | LC_ALL=C sort
    } >build/corpus/record
    cp build/corpus/record "$record"
  } 9>build/corpus/lock
}

# reduce NAME - drops inputs from its corpus without which the rest reach as much
reduce() {
  local name=$1 less
  less=$(mktemp -d "build/corpus/$name.XXXXXX")
  if "build/fuzz/fuzz/fuzz_$name" -merge=1 -timeout=60 -rss_limit_mb=4096 "$less" "build/corpus/$name" "tests/fuzz/corpus/$name" \
    >/dev/null 2>&1; then
    rm -rf "build/corpus/$name"
    mv "$less" "build/corpus/$name"
  else
    rm -rf "$less"
  fi
}

build() {
  make --no-print-directory VARIANT=fuzz CC="${CC:-clang}" "${@/#/build/fuzz/fuzz/}"
}

run() {
  local seconds=$1 target name log TIMEFORMAT='%U %S' used rc bad=0
  shift
  mkdir -p build/corpus
  build "$@"
  for target in "$@"; do
    name=${target#fuzz_}
    log=build/corpus/$name.log
    unpack "$name" "build/corpus/$name"
    echo "== $target, $seconds s"
    rc=0
    used=$({ time "build/fuzz/fuzz/$target" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=4096 -timeout=60 \
      -artifact_prefix="build/corpus/$name-" "build/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; } 2>&1) || rc=$?
    grep -vE 'NEW|REDUCE|pulse' "$log" | tail -n $((rc ? 60 : 10))
    ((rc)) && { bad=1; continue; } # only runs that found nothing are recorded
    reduce "$name"
    pack "$name"
    note "$name" "$(awk '{ printf "%d", $1 + $2 }' <<<"$used")" "$log"
  done
  return $bad
}

case $1 in
  check | changed | brief) "$@" ;;
  *) run "$@" ;;
esac
