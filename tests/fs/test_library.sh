#!/bin/bash
# libckpt as it is installed: what it exports, and programs that use it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="its_headers_need_nothing_else its_headers_name_nothing_that_is_not_prefixed \
  uninstall_leaves_nothing"
always="the_library_exports_what_its_headers_declare_and_nothing_else its_manual_names_each_function_that_reads \
  its_manual_names_each_option_for_programs"

TOP=$(realpath "$HERE/../..")
BUILD=$(dirname "$CKPTFS")
read -ra CC <<<"${CC:-cc}"
NOT_BUILT=(-o all -o lib -o program -o "$BUILD/ckptfs-fetch")

# Installs the build that is tested below $SCRATCH/root, once, and points to it with $ROOT.
root() {
  local dir=$SCRATCH/root
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    # Installs the existing files and builds nothing.
    make -s -C "$TOP" "${NOT_BUILT[@]}" install VARIANT="$VARIANT" BUILD="$BUILD" PREFIX="$dir/usr" \
      HELPERDIR="$dir/sbin" LDCONFIG=: >&2
    touch "$dir/done"
  fi
  export PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig LD_LIBRARY_PATH=$dir/usr/lib
  ROOT=$dir/usr
}

# Programs that use a library with sanitizers need these flags, too.
sanitizer() {
  case $VARIANT in asan) echo -fsanitize=address,undefined ;; tsan) echo -fsanitize=thread ;; esac
}

exported() { nm -D --defined-only "$1" | awk '{ print $3 }' | grep -vE '^(_init|_fini|__bss_start|_edata|_end)$'; }

# foreign_names DIR: names in its headers that programs see and that lack our prefix: macros except include guards,
# tags, enum constants, and what is declared outside of structures, parameters and function bodies.
foreign_names() {
  printf '#include "%s"\n' "$1"/*.h >all.h
  grep -h '^#include <' "$1"/*.h | sort -u >system.h
  macros all.h >seen
  macros system.h | comm -23 seen - | grep -vE '^[A-Z]+_CKPT(_[A-Z]+)?_H$' >names
  "${CC[@]}" -E all.h | awk -v dir="\"$1/" '
    /^# [0-9]+ "/ { ours = index($3, dir) == 1; next }
    ours { gsub(/"[^"]*"/, ""); print }' | grep -oE '[A-Za-z_][A-Za-z_0-9]*|[{}();]' | awk '
    $1 == "(" { parens++ }
    $1 == ")" { parens--; is_enum = 0 }
    $1 == "{" { enums[++depth] = is_enum; is_enum = 0 }
    $1 == "}" { depth-- }
    $1 == ";" { is_enum = 0 }
    $1 ~ /^(enum|struct|union)$/ { is_enum = $1 == "enum"; tag = 1; next }
    /^[A-Za-z_]/ && (tag || !parens && (!depth || enums[depth])) { print }
    { tag = 0 }' >>names
  sort -u names | grep -vE '^(ckpt_|CKPT_)|^ckpt$|^(const|extern|inline|static|typedef|void|char|int|_Bool|__attribute__|(u?int[0-9]+|size)_t|iovec)$' || :
}
macros() { "${CC[@]}" -E -dM "$1" | awk '{ sub(/\(.*/, "", $2); print $2 }' | sort; }

test_its_headers_name_nothing_that_is_not_prefixed() {
  root
  is "" "$(foreign_names "$ROOT/include/ckptfs")"
  is "4" "$(grep -cxE 'CKPT_API|CKPT_DTYPE_BF16|ckpt_save|ckpt_take_bytes_fn' < <(sort -u names))"
  mkdir headers
  cat >headers/ckpt_bad.h <<'.'
#ifndef API_CKPT_BAD_H
#define API_CKPT_BAD_H
#include <stdint.h>
#define LIMIT(n) (n)
enum ckpt_kind { CKPT_ONE = 1, TWO };
enum colour { CKPT_RED };
struct ckpt_box { struct shape *shape; union { int a, b; } u; enum { INNER } kind; };
typedef int visit_fn(void *arg, struct ckpt_box *b);
static inline int twice(int n) { int sum = n + n; return sum; }
extern const uint64_t numbers[CKPT_ONE];
#endif
.
  is "INNER LIMIT TWO colour numbers shape twice visit_fn" "$(foreign_names "$PWD/headers" | tr '\n' ' ' | sed 's/ $//')"
}

# The functions that the headers declare as CKPT_API.
declared() {
  "${CC[@]}" -E -P -I"$TOP/core/include" -x c - | tr '\n' ' ' | tr '@' '\n' |
    sed -nE '1d; s/^ *@?[^(;]*[ *](\w+)\(.*/\1/p'
}

test_the_library_exports_what_its_headers_declare_and_nothing_else() {
  local h
  root
  for h in "$TOP"/core/include/ckptfs/*.h; do
    if grep -q CKPT_API "$h"; then printf '#include "%s"\n' "$h"; fi
  done >includes
  sed '1i #include <ckptfs/ckpt_base.h>\n#undef CKPT_API\n#define CKPT_API @' includes >all.h
  declared <all.h | sort -u >wanted
  exported "$ROOT/lib/libckpt.so" | sort -u >found
  (($(wc -l <wanted) > 50)) || fail "$(wc -l <wanted) functions"
  diff wanted found
  if grep -v '^ckpt_' found; then fail "names that are not ours"; fi
  # The static library exports the same.
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
  is "__version__ = \"$version\"" "$(grep ^__version__ "$ROOT"/lib/python3*/dist-packages/ckptfs/_libckpt.py)"
}

# Each header compiles on its own, in three standards of C and in C++, without a warning.
test_its_headers_need_nothing_else() {
  local h std
  root
  for h in "$ROOT"/include/ckptfs/*.h; do
    echo "#include <ckptfs/${h##*/}>" >one.c
    for std in c99 c11 gnu17; do
      "${CC[@]}" -std=$std -D_DEFAULT_SOURCE -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$ROOT/include" one.c
    done
    cp one.c one.cc
    g++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$ROOT/include" one.cc
  done
  is "$ROOT/include/ckptfs/ckpt.h" "$(grep -l 'ckpt_open(' "$ROOT"/include/ckptfs/*.h)"
}

test_its_manual_names_each_function_that_reads() {
  local name
  root
  # As a compiler sees it: without comments.
  printf '#include <ckptfs/ckpt%s.h>\n' "" _mount |
    "${CC[@]}" -E -P -I"$ROOT/include" -x c - |
    grep -oE '\bckpt_[a-z_]+ *\(' | tr -d ' (' | grep -v '_sized$' | sort -u >functions
  (($(wc -l <functions) > 50))
  mandoc -T utf8 "$ROOT/share/man/man3/ckpt.3" | sed 's/.\x08//g' >page
  while read -r name; do
    grep -q "\b$name(" page || fail "$name is not in ckpt(3)"
  done <functions
}

test_the_manual_is_installed() {
  local page
  root
  for page in "$TOP"/fs/man/*; do
    cmp "$page" "$ROOT/share/man/man${page##*.}/${page##*/}"
  done
}

# test_commands.sh checks the options of the commands, which are in ckptfs(1).
test_its_manual_names_each_option_for_programs() {
  local name
  root
  cat >options.c <<'.'
#include <ckptfs/ckpt.h>
#include <stdio.h>
int main(void)
{
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++)
		if (x->program)
			puts(x->name);
	return 0;
}
.
  # shellcheck disable=SC2046 # words
  "${CC[@]}" $(sanitizer) -o options options.c $(pkg-config --cflags --libs ckpt)
  ./options >names
  (($(wc -l <names) > 3))
  while read -r name; do
    grep -qE "^\.It Cm $name( |$)" "$ROOT/share/man/man3/ckpt.3" || fail "$name is not in ckpt(3)"
    grep -qE "^ \*	${name}[	=]" "$ROOT/include/ckptfs/ckpt.h" || fail "$name is not in ckpt.h"
  done <names
}

# example NAME: extracts NAME.c from the manual, and into `how` the commands below it that build it
example() {
  mandoc -T utf8 -O width=200 "$ROOT/share/man/man3/ckpt.3" | sed 's/.\x08//g' >page
  sed -n "/\/\* $1.c - /,/\\$ cc /p" page | sed '$d' >"$1.c"
  sed -n "/\\$ cc -o $1/p" page | sed "s/^ *\\$ cc/${CC[*]}/; s|-o $1|$(sanitizer) &|" >how
  [[ -s $1.c && $(grep -c . "$1.c") -le 60 && -s how ]]
}

# build_static NAME: builds it from NAME.c and the static library
build_static() {
  # shellcheck disable=SC2046 # words
  "${CC[@]}" $(sanitizer) -o "$1" "$1.c" $(pkg-config --cflags ckpt) "$ROOT/lib/libckpt.a" \
    $(pkg-config --static --libs ckpt | sed 's/-lckpt//')
  unset LD_LIBRARY_PATH
}

check_column() {
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
  example column
  bash -e how
  check_column ./column
}

test_the_example_reads_linked_statically() {
  root
  example column
  build_static column
  check_column ./column
}

check_save() {
  status_of 0 "$1" matrix
  is "w[7][5] = 47" "$(cat out)"
  is "__0_0.distcp __1_0.distcp __2_0.distcp __3_0.distcp" "$(cd matrix && echo __*)"
  is "float32 [8,6] 192" "$(ckptfs ls -l matrix | awk '{ print $1, $2, $3 }')"
  is "47 0" "$(ckptfs cat matrix tensors/w | od -A n -t f4 -w4 | awk '{ s += $1 == NR - 1 } END { print NR - 1, NR - s }')"
  cp -r matrix first
  status_of 0 "$1" matrix # replaces the old one
  diff -r matrix first
}

test_the_example_of_the_manual_saves_and_loads() {
  root
  example save
  bash -e how
  check_save ./save
}

test_the_example_saves_linked_statically() {
  root
  example save
  build_static save
  check_save ./save
}

# matrix_is DIR FILE...: the matrix can be read, and exactly these files have data
matrix_is() {
  is "float32 [8,6] 192" "$(ckptfs ls -l "$1" | awk '{ print $1, $2, $3 }')"
  is "48 0" "$(ckptfs cat "$1" tensors/w | od -A n -t f4 -v -w4 | awk '{ s += $1 == NR - 1 } END { print NR, NR - s }')"
  is "${*:2}" "$(cd "$1" && find . \( -name '*.distcp' -o -name '*.safetensors' \) -size +0 -printf '%f\n' | sort | xargs)"
}

test_the_example_of_megatron_writes_main_replicas() {
  root
  example megatron
  bash -e how
  status_of 0 ./megatron matrix
  matrix_is matrix __0_0.distcp __1_0.distcp
  status_of 1 ./megatron no/matrix
  grep -q "^megatron: rank 0: .*no" err || fail "$(cat err)"
}

test_the_example_of_hyperparallel_writes_each_box_once() {
  root
  example hyperparallel
  bash -e how
  status_of 0 ./hyperparallel matrix
  matrix_is matrix _rank0_.safetensors _rank2_.safetensors
}

test_the_example_says_what_it_cannot_save() {
  root
  example save
  bash -e how
  mkdir full
  echo x >full/notes
  status_of 1 ./save full
  grep -q "^save: .*'notes'" err || fail "$(cat err)"
  is notes "$(ls full)"
  status_of 1 ./save no/matrix
  grep -q "^save: rank 0: .*no" err || fail "$(cat err)"
}

test_a_program_in_cplusplus_links() {
  root
  cat >v.cc <<'.'
#include <ckptfs/ckpt_diff.h>
#include <ckptfs/ckpt_save.h>
#include <cstdio>
#include <cstring>

// A function of each header.
int main()
{
	ckpt_comm comm = ckpt_comm_self();
	struct ckpt_save_planner planner = {};
	ckpt_storage_writer writer = {};
	ckpt_state_dict dict = {};
	ckpt_save_opts opts = {};
	ckpt_data data = {};
	int (*volatile compare)(ckpt *, ckpt *, struct ckpt_diff *, ckpt_err *) = ckpt_diff;
	ckpt_err e;

	ckpt_data_close(&data);
	ckpt_save_planner_free(&planner);
	ckpt_storage_writer_free(&writer);
	if (!ckpt_save(&comm, "no/where", &dict, &opts, &e) || !std::strstr(e.msg, "'no/where"))
		return 1;
	if (ckpt_dtype_size(ckpt_dtype_by_name("bfloat16", 8)) != 2)
		return 1;
	std::puts(ckpt_version());
	return !compare;
}
.
  # shellcheck disable=SC2046 # words
  g++ $(sanitizer) -o v v.cc $(pkg-config --cflags --libs ckpt)
  is "$(ckptfs --version | awk '{ print $2 }')" "$(./v)"
}

test_uninstall_leaves_nothing() {
  root
  cp -a "$(dirname "$ROOT")" "$T/root"
  rm "$T/root/done"
  make -s -C "$TOP" "${NOT_BUILT[@]}" uninstall VARIANT="$VARIANT" BUILD="$BUILD" PREFIX="$T/root/usr" HELPERDIR="$T/root/sbin"
  is "" "$(find "$T/root" ! -type d)"
}

run_suite "$@"
