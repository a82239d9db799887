#!/bin/bash
# reproduce.sh [TREE] - build the last commit twice and compare: the same sources give the same bytes.
#
# Two clones in directories of different length are built one after the other, with different time zones, locales,
# umasks, home directories and numbers of jobs: the programs, both libraries, the wheel and the Debian packages. TREE is
# used instead of the first clone; `make all wheel deb` must have been run there. Prints each file with its
# SHA-256; exit status 1 if any differs. DEBFULLNAME and DEBEMAIL as for deb.sh; CC as for make.
set -euo pipefail
top=$(realpath "${0%/*}/..")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export DEBEMAIL=${DEBEMAIL:-ckptfs@$(hostname).local} # deb.sh's own

# build DIR JOBS UMASK [VARIABLE=VALUE]...
build() {
  local dir=$1 jobs=$2 umask=$3
  shift 3
  git clone -q "$top" "$dir"
  mkdir "$dir.home"
  (
    umask "$umask"
    cd "$dir"
    env -u MAKEFLAGS -u MAKELEVEL -u LINTIAN HOME="$dir.home" "$@" \
      make -j"$jobs" ${CC:+"CC=$CC"} all wheel deb >"$dir.log" 2>&1
  ) || {
    tail -n 20 "$dir.log" >&2
    exit 1
  }
}

# The files that are installed or distributed.
products() { (cd "$1/build" && ls release/{ckptfs,ckptfs-fetch,libckpt.a,libckpt.so.*} ./*.whl ./*.deb); }

first=${1:-$tmp/a}
second=$tmp/another/directory/of/a/longer/name
[[ -n ${1:-} ]] || build "$first" 2 022 TZ=UTC LC_ALL=C
build "$second" 3 027 TZ=Asia/Kathmandu LC_ALL=C.UTF-8

bad=0
is=$(products "$first") also=$(products "$second")
[[ $is == "$also" ]] || { printf 'one build made\n%s\nand the other\n%s\n' "$is" "$also"; exit 1; }
while read -r file; do
  if cmp "$first/build/$file" "$second/build/$file"; then
    (cd "$second/build" && sha256sum "$file")
  else
    bad=1
  fi
done <<<"$is"
((bad)) || echo "reproduce: $(wc -l <<<"$is") files, the same twice"
exit "$bad"
