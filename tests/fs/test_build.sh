#!/bin/bash
# The Makefile, with fake tools that only create their output files: what is built, with which tools, and when again.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="what_has_not_changed_is_not_built_again a_cross_build_runs_its_own_tools_only \
  a_library_alone_needs_no_fuse mpi_changes_one_object_of_the_library"

# Puts the sources into ./src, and into ./bin all programs that a build may run: for a cross build, tools with a prefix.
# Each call of a tool writes a line to ./log.
prepare() {
  local tool top
  top=$(realpath "$HERE/../..")
  mkdir src bin
  cp -r "$top/Makefile" "$top/core" "$top/fs" "$top/scripts" src
  mkdir -p src/tests/core src/tests/fs
  for tool in make sh bash echo mkdir cmp ln rm cat expr nproc dirname sed python3 find install chmod; do
    ln -s "$(type -P "$tool")" "bin/$tool"
  done
    cat >bin/x-tool <<'END'
#!/bin/bash
echo "${0##*/} $*" >>"$LOG"
case $0 in
  *pkg-config)
    [[ $1 != --exists || " ${MISSING:-} " != *" $2 "* ]]
    exit
    ;;
  *ar) out=$2 ;;
esac
while (($#)); do
  [[ $1 != -o ]] || out=$2
  shift
done
[[ -z ${out:-} ]] || : >"$out"
END
  chmod +x bin/x-tool
  for tool in gcc ar ld objcopy pkg-config; do ln -s x-tool "bin/x-$tool"; done
  for tool in apt-get dpkg-query gcc cc ar ld objcopy pkg-config; do
    # shellcheck disable=SC2016 # the tool's own variable
    printf '#!/bin/bash\necho "%s $*" >>"$LOG"; exit 1\n' "host-$tool" >"bin/$tool"
    chmod +x "bin/$tool"
  done
}
# build [VARIABLE=VALUE]... [TARGET]...: ./log then has its calls of tools
build() {
  : >log
  env -i LOG="$T/log" MISSING="${MISSING:-}" PATH="$T/bin" make -C src CROSS_COMPILE=x- "$@" >out 2>err
}
called() { grep -c "^$1 " log || true; }

test_a_cross_build_runs_its_own_tools_only() {
  prepare
  build || fail "$(cat err)"
  ! grep '^host-' log || fail "a tool of the host"
  is "$(find src/core src/fs -name '*.c' | wc -l)" "$(grep -c '^x-gcc .* -c ' log)"
  [[ -e src/build/release/ckptfs && -e src/build/release/libckpt.a ]]
}

test_a_library_alone_needs_no_fuse() {
  prepare
  MISSING="fuse3 libseccomp libcurl expat" build LIB_ONLY=1 || fail "$(cat err)"
  [[ ! -e src/build/release/ckptfs && -e src/build/release/libckpt.a ]]
  ! grep -E 'fuse|seccomp| fs/' log || fail "FUSE"
  MISSING="fuse3 libseccomp libcurl expat" build LIB_ONLY=1 DESTDIR="$T/dest" LDCONFIG=: PYDIR=/py install || fail "$(cat err)"
  [[ -e dest/usr/local/include/ckptfs/ckpt.h && ! -e dest/usr/local/bin ]]
}

test_what_is_missing_is_named_and_not_installed() {
  prepare
  ! MISSING="libzstd fuse3" build || fail "built"
  grep -q 'not found by x-pkg-config: fuse3 libzstd' err || fail "$(cat err)"
  ! grep -E '^host-|^x-gcc' log || fail "ran something"
  ! build PKG_CONFIG=nowhere || fail "built"
  grep -q 'not found by nowhere: nowhere' err || fail "$(cat err)"
  build help || fail "$(cat err)"
}

# Debian 11 has such libraries.
test_libraries_that_pkg_config_does_not_list_are_linked_by_name() {
  prepare
  MISSING="blosc libdeflate" build lib || fail "$(cat err)"
  grep -q -e ' -lblosc -ldeflate -lm$' log || fail "not linked"
}

test_what_has_not_changed_is_not_built_again() {
  prepare
  build || fail "$(cat err)"
  build || fail "$(cat err)"
  is 0 "$(called x-gcc)"
  is 0 "$(called x-ar)"
  rm src/core/base/progress.c src/fs/mount/live.c
  build || fail "$(cat err)"
  is 2 "$(called x-ar)" # libcore.a and libckpt.a
  is "$([[ -e src/build/release/ckptfs-fetch ]] && echo 3 || echo 2)" "$(called x-gcc)" # libckpt.so and the programs
  ! grep progress log || fail "still there"
  build CFLAGS=-g3 || fail "$(cat err)"
  is "$(find src/core src/fs -name '*.c' | wc -l)" "$(grep -c '^x-gcc .* -c ' log)"
}

test_mpi_changes_one_object_of_the_library() {
  prepare
  build || fail "$(cat err)"
  cp -a src/build/release src/build/mpi
  build MPI=1 BUILD=build/mpi || fail "$(cat err)"
  is 1 "$(grep -c '^x-gcc .* -c ' log)"
  grep -q '^x-gcc .*-DCKPTFS_MPI .*/comm_mpi\.c$' log
}

test_the_benchmark_lists_its_cases() {
  python3 "$HERE/../../scripts/bench.py" --list >list || fail "no list"
  grep -q '^quantise: q4_k_m' list
}

# It also waits for the lock on apt's package lists, for which apt-get itself does not wait.
test_setup_waits_for_apt() {
  local tool
  mkdir bin
  for tool in sh mktemp tail grep rm cat; do ln -s "$(command -v "$tool")" bin; done
  printf '#!/bin/sh\nexit 1\n' >bin/dpkg-query
  printf '#!/bin/sh\necho 0\n' >bin/id
  # shellcheck disable=SC2016 # its own variable
  printf '#!/bin/sh\necho slept >>"$LOG"\n' >bin/sleep
  cat >bin/apt-get <<'END'
#!/bin/sh
echo "$*" >>"$LOG"
case $* in *update*) ;; *) exit 0 ;; esac
[ ! -e "$LOCK" ] || { echo "E: ${WHY-Could not get lock /var/lib/apt/lists/lock.}"; rm "$LOCK"; exit 100; }
END
  chmod +x bin/*
  setup() { env -i PATH="$T/bin" LOG="$T/log" LOCK="$T/lock" "$@" "$HERE/../../scripts/setup.sh" build; }
  touch lock
  setup
  is "update -qq slept update -qq" "$(head -n 3 log | xargs)"
  sed -n 4p log | grep -- '-o DPkg::Lock::Timeout=.* install .*gcc' >/dev/null
  : >log
  touch lock
  ! setup WHY="No space left" >out || fail "worked"
  grep -q "No space left" out
  is 1 "$(wc -l <log)"
}

run_suite "$@"
