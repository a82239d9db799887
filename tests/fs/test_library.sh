#!/bin/bash
# libckpt as it is installed: what it exports, and programs that are compiled with it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

TOP=$(realpath "$HERE/../..")
BUILD=$(dirname "$CKPTFS")
read -ra CC <<<"${CC:-cc}"

# Everything below $SCRATCH/root, made once, of the build that is tested.
root() {
  local dir=$SCRATCH/root
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    # What is there is installed, nothing is built.
    make -s -C "$TOP" -o all install VARIANT="$VARIANT" BUILD="$BUILD" PREFIX="$dir/usr" \
      HELPERDIR="$dir/sbin" LDCONFIG=: >&2
    touch "$dir/done"
  fi
  export PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig LD_LIBRARY_PATH=$dir/usr/lib
  ROOT=$dir/usr
}

# Variants of the sanitizers need their flags, and their library.
sanitizer() {
  case $VARIANT in asan) echo -fsanitize=address,undefined ;; tsan) echo -fsanitize=thread ;; esac
}

exported() { nm -D --defined-only "$1" | awk '{ print $3 }' | grep -vE '^(_init|_fini|__bss_start|_edata|_end)$'; }

# What the headers declare as CKPT_API.
declared() {
  "${CC[@]}" -E -P -I"$TOP/core" -x c - | tr '\n' ' ' | tr '@' '\n' |
    sed -nE '1d; s/^ *@?[^(;]*[ *](\w+)\(.*/\1/p'
}

test_the_library_exports_what_its_headers_declare_and_nothing_else() {
  local h
  root
  for h in "$TOP"/core/*/*.h; do
    if grep -q CKPT_API "$h"; then printf '#include "%s"\n' "$h"; fi
  done >includes
  sed '1i #include "base/ckpt_base.h"\n#undef CKPT_API\n#define CKPT_API @' includes >all.h
  declared <all.h | sort -u >wanted
  exported "$ROOT/lib/libckpt.so" | sort -u >found
  (($(wc -l <wanted) > 50)) || fail "$(wc -l <wanted) functions"
  diff wanted found
  if grep -v '^ckpt_' found; then fail "names that are not ours"; fi
  # The static one has no more to offer.
  nm -g --defined-only "$ROOT/lib/libckpt.a" | awk 'NF == 3 { print $3 }' | sort -u >static
  diff wanted static
}

test_it_has_a_versioned_name() {
  local so version
  root
  version=$(ckptfs --version | awk '{ print $2 }')
  so=$(readelf -d "$ROOT/lib/libckpt.so" | sed -nE 's/.*SONAME.*\[(.*)\]/\1/p')
  is "libckpt.so.${version%.*}" "$so"
  is "libckpt.so.$version" "$(readlink "$ROOT/lib/$so")"
  is "$so" "$(readlink "$ROOT/lib/libckpt.so")"
  is "$version" "$(pkg-config --modversion ckpt)"
  is "__version__ = \"$version\"" "$(grep ^__version__ "$ROOT"/lib/python3*/dist-packages/ckptfs.py)"
}

# Each on its own, in C of three standards and in C++, without a warning.
test_its_headers_need_nothing_else() {
  local h std
  root
  for h in "$ROOT"/include/ckptfs/*.h; do
    echo "#include <ckptfs/${h##*/}>" >one.c
    for std in c99 c11 gnu17; do
      "${CC[@]}" -std=$std -D_DEFAULT_SOURCE -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$ROOT/include" one.c
    done
    if command -v g++ >/dev/null; then
      cp one.c one.cc
      g++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$ROOT/include" one.cc
    fi
  done
  is "$ROOT/include/ckptfs/ckpt.h" "$(grep -l 'ckpt_open(' "$ROOT"/include/ckptfs/*.h)"
}

# The program of the manual, and the way to build it that is written below it.
example() {
  command -v mandoc >/dev/null || skip "no mandoc"
  mandoc -T utf8 -O width=200 "$ROOT/share/man/man3/ckpt.3" | sed 's/.\x08//g' >page
  sed -n '/\/\* column.c - /,/\$ cc /p' page | sed '$d' >column.c
  sed -n '/\$ cc -o column/p' page | sed "s/^ *\\$ cc/${CC[*]}/" >how
  [[ -s column.c && -s how ]]
}

check_example() {
  status_of 0 "$1" "$(zoo)" model.layers.0.q.weight
  ckptfs cat "$(zoo)" tensors/model.layers.0.q.weight | od -A n -t f4 -v -w96 |
    awk 'NR % 2 { printf "%g\n", $1 }' >want
  echo "$(ckptfs cat "$(zoo)" safetensors/model.safetensors --dtype=fp32 | wc -c) bytes" >>want
  diff want out
  is 8 "$(wc -l <want)"
  status_of 1 "$1" "$(zoo)" nothing
  is "column: no matrix 'nothing'" "$(cat err)"
  status_of 1 "$1" "$T/no" x
  grep -q "^column: open '$T/no': " err
}

test_the_example_of_the_manual_reads() {
  root
  example
  sed -i "s|-o column|$(sanitizer) &|" how
  bash -e how
  check_example ./column
}

test_the_example_reads_linked_statically() {
  root
  example
  # shellcheck disable=SC2046 # words
  "${CC[@]}" $(sanitizer) -o column column.c "$ROOT/lib/libckpt.a" \
    $(pkg-config --static --libs ckpt | sed 's/-lckpt//') -I"$ROOT/include"
  unset LD_LIBRARY_PATH
  check_example ./column
}

test_a_program_in_cplusplus_links() {
  command -v g++ >/dev/null || skip "no g++"
  root
  printf '%s\n' '#include <ckptfs/ckpt.h>' '#include <cstdio>' \
    'int main() { std::puts(ckpt_version()); }' >v.cc
  # shellcheck disable=SC2046 # words
  g++ $(sanitizer) -o v v.cc $(pkg-config --cflags --libs ckpt)
  is "$(ckptfs --version | awk '{ print $2 }')" "$(./v)"
}

test_uninstall_leaves_nothing() {
  root
  cp -a "$(dirname "$ROOT")" "$T/root"
  rm "$T/root/done"
  make -s -C "$TOP" -o all uninstall VARIANT="$VARIANT" BUILD="$BUILD" PREFIX="$T/root/usr" HELPERDIR="$T/root/sbin"
  is "" "$(find "$T/root" ! -type d)"
}

run_suite "$@"
