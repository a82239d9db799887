#!/bin/bash
# Saving from a program: the example of the manual, compiled and run.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

TOP=$(realpath "$HERE/../..")

# The program in the manual page, and the way to build it that is written below it.
example() {
  command -v mandoc >/dev/null || skip "no mandoc"
  mandoc -T utf8 -O width=200 "$TOP/fs/ckptfs.1" | sed 's/.\x08//g' >page
  sed -n '/\/\* save.c - /,/In the sources/p' page | sed '$d' >save.c
  sed -n '/cc -std=gnu17/,/-lm$/p' page | sed 's/^ *\$ //' >how
  [[ -s save.c && $(grep -c . save.c) -le 60 && -s how ]]
}

# Variants of the sanitizers need their flags, and their library.
build() {
  local flags=-O2
  case $VARIANT in asan) flags=-fsanitize=address,undefined ;; tsan) flags=-fsanitize=thread ;; esac
  sed -i "s|build/release/libcore.a|$(dirname "$CKPTFS")/libcore.a|; s|-Icore|-I$TOP/core $flags|; s|-o save save.c|-o $T/save $T/save.c|" how
  bash -e how
}

test_the_example_of_the_manual_saves_and_loads() {
  example
  build
  status_of 0 ./save matrix
  is "w[7][5] = 47" "$(cat out)"
  is "__0_0.distcp __1_0.distcp __2_0.distcp __3_0.distcp" "$(cd matrix && echo __*)"
  is "float32 [8,6] 192" "$(ckptfs ls -l matrix | awk '{ print $1, $2, $3 }')"
  is "47 0" "$(ckptfs cat matrix tensors/w | od -A n -t f4 -w4 | awk '{ s += $1 == NR - 1 } END { print NR - 1, NR - s }')"
  cp -r matrix first
  status_of 0 ./save matrix # over the old one
  diff -r matrix first
}

test_the_example_says_what_is_wrong() {
  example
  build
  mkdir full
  echo x >full/notes
  status_of 1 ./save full
  grep -q "^save: .*'notes'" err || fail "$(cat err)"
  is notes "$(ls full)"
  status_of 1 ./save no/matrix
  grep -q "^save: rank 0: .*no" err || fail "$(cat err)"
}

run_suite "$@"
