# shellcheck shell=bash
# lib.sh - shared by the suites on real mounts; sourced by every test_*.sh.
#
# A suite is a file of functions test_WHAT_IS_TRUE; the last line calls `run_suite "$@"`. If there is a function
# cases_WHAT_IS_TRUE, the test runs once for each line that it prints, with the words as arguments. Every test runs in a
# shell of its own (errexit, nounset, a time limit) in an empty directory $T; afterwards whatever it left mounted below
# $T is unmounted. By hand:
#
#   CKPTFS=build/release/ckptfs tests/fs/test_tree.sh              # all
#   CKPTFS=build/release/ckptfs tests/fs/test_tree.sh names        # those whose name contains it
#
# `make check` takes a sample, different in each run (TEST_SEED): one case of every other test, one in eight of the tests
# that the suite lists in $long, and all of $always, which compare the manual with the program; `make check-asan` takes
# two cases, and one in two. Everything runs in `make check-full`, and when tests are named.
#
# A test fails if any command fails, or by `fail WHY`; it calls `skip WHY` if the kernel or the user's rights do not
# allow it. `browser=yes` in a suite gives its tests a Chromium (browser.py), `servers="web s3"` real servers
# (../net/servers.sh). A missing program is no reason to skip, because scripts/setup.sh installs all of them.

: "${CKPTFS:?path of the program to test}"
[[ $CKPTFS == /* && ! -L $CKPTFS ]] || CKPTFS=$(realpath "$CKPTFS")
HERE=${BASH_SOURCE[0]%/*} # not dirname: this file is sourced a thousand times
[[ $HERE == /* ]] || HERE=$PWD/$HERE
SUITE=${0##*/}
SUITE=${SUITE%.sh}
DATA=${DATA:-$(realpath "$HERE/../data")}
[[ $DATA == /* ]] || DATA=$(realpath "$DATA")
SCRATCH=${SCRATCH:-}
LIMIT=${LIMIT:-300} # seconds after which a test counts as hanging; a busy machine is slow
export CKPTFS DATA LIMIT

# Python is started often: so this is the interpreter itself, not a wrapper that looks for it, and it runs without site
# packages. `make check` uses one that has already started (quick_python.c).
PYTHON=${PYTHON:-$(python3 -c 'import sys; print(sys.executable)')}
export PYTHON

ckptfs() { "$CKPTFS" "$@"; }
python3() { if [[ -n ${PYTHON_SERVER:-} ]]; then "$QUICK_PYTHON" "$@"; else "$PYTHON" -S -E "$@"; fi; }
expect() { python3 "$HERE/expect.py" "$@"; }
readers() { python3 "$HERE/readers.py" "$@"; }
make_dcp() { python3 "$HERE/make_dcp.py" "$@"; }

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

skip() {
  echo "$*" >"$T.skip"
  exit 77
}

# fixture NAME: its directory; fails if this checkout does not have it
fixture() {
  [[ -e $DATA/$1/expected.json ]] || return 1
  echo "$DATA/$1"
}
# The names of all, damaged ones too.
every_fixture() { (cd "$DATA" && ls -d -- */ckpt) | sed 's|/ckpt$||'; }
need_fixture() { fixture "$1" >/dev/null || skip "no fixture $1"; }

# copy_of NAME TO: a copy of a fixture's checkpoint, which may be changed
copy_of() {
  need_fixture "$1"
  cp -r "$(fixture "$1")/ckpt" "$2"
  chmod -R u+w "$2"
}

# once NAME COMMAND...: a directory that the first test that needs it fills by running the command there. Suites run at
# the same time, hence the lock. $MADE may have such directories already, on a read-only file system.
once() {
  local dir=$SCRATCH/$1
  [[ ! -e ${MADE:-}/$1/.made ]] || dir=$MADE/$1
  shift
  if [[ ! -e $dir/.made ]]; then
    (
      flock 9
      [[ -e $dir/.made ]] && exit
      rm -rf "$dir"
      mkdir -p "$dir"
      cd "$dir" && "$@" >&2 && : >.made
    ) 9>"$dir.lock"
  fi
  echo "$dir"
}

make_halt() { ${CC:-cc} -O1 -shared -fPIC -o halt.so "$HERE/halt.c"; }
# halted "MIN MAX N SIGNAL" ARG...: ckptfs, which sends itself a signal just before a write, see halt.c
halted() {
  local how=$1
  shift
  ASAN_OPTIONS=verify_asan_link_order=0:${ASAN_OPTIONS:-} HALT=$how LD_PRELOAD=$(once halt make_halt)/halt.so \
    exec "$CKPTFS" "$@"
}
is_stopped() { [[ $(sed 's/.*) //' "/proc/$1/stat") == [tT]* ]]; }

# A checkpoint of 32 MiB + 3 MiB, made once: w is cut 2x4, v 3x2 into uneven parts; w.bin, v.bin hold their bytes.
make_big() {
  make_dcp ckpt w 2048x4096 2x4 v 1023x777 3x2
  mv ckpt.w.bin w.bin
  mv ckpt.v.bin v.bin
}
big() { once big make_big; }
# Makes files older than now, so that every change shows, and equally old: in a run, data that is newer than the
# metadata (as after `cp -r`, which copies in directory order) may be a save in progress.
aged() { find "$@" -type f -exec touch -d '1 hour ago' {} +; }
# old_copy CKPT TO
old_copy() {
  cp -r "$1" "$2"
  aged "$2"
}
big_copy() { old_copy "$(big)/ckpt" "$1"; }

# A model with tensors of many kinds, and its training state, made once.
make_zoo() {
  make_dcp --nested ckpt model.layers.0.q.weight 13x24 2x3 model.layers.0.norm 24:bfloat16 2 \
    model.layers.2.half 55x7:float16 1x2 model.layers.10.wide 9x3x5:float64 3x1x2 \
    model.layers.10.mask 4x4:bool 1x1 model.scale - - model.empty 0x4 1x1 model.ids 11:int64 3 \
    model.bytes 17:uint8 4 model.n 3x2:int32 1x2 model.lm_head.weight 64x16 4x1 \
    optim.state.exp_avg 13x24 2x1 optim.step -:int64 - lr_scheduler.x 3:float64 1
}
zoo() { echo "$(once zoo make_zoo)/ckpt"; }
# shellcheck disable=SC2034 # for suites
ZOO="bytes empty ids layers.0.norm layers.0.q.weight layers.10.mask layers.10.wide layers.2.half lm_head.weight n scale"

# Loops over every place where something may fail begin at $first and step by $every (3 if MOST_CASES limits tests).
[[ -n ${MOST_CASES:-} ]] && every=3 || every=1

# On NFS and with libfuse, removing an open file only renames it, so its directory cannot be removed.
keeps_names() {
  mkdir kept
  exec 9>kept/file
  rm kept/file
  ! rmdir kept 2>/dev/null || { exec 9>&-; return 1; }
  exec 9>&-
}

# Whether this is a full run, as by `make check-full`. `make check` takes a sample.
is_full() { [[ -n ${CHECK_FULL:-} ]]; }
# Passes the cases on stdin on in full runs only.
full_only() { if is_full; then cat; else cat >/dev/null; fi; }
# turn N: whether something slow is to be done: always in full runs, otherwise in one run out of N
turn() { is_full || ((SEED % $1 == 0)); }
SEED=$((${TEST_SEED:-$RANDOM} / 1000 % 9973))        # decides which cases a short run takes
# shellcheck disable=SC2034 # for suites
first=$((1 + SEED % every))
TURN=$((${TEST_SEED:-$RANDOM} / 1000 / 9973 % 9949)) # and which tests; independent of SEED, so each meets all cases

# is WANTED FOUND
is() { [[ $1 == "$2" ]] || fail "'$2' instead of '$1'"; }

sorted() { LC_ALL=C sort | xargs; }

# entries DIR...: the names in directories, in the order in which they are listed, on one line
entries() { find "$@" -mindepth 1 -maxdepth 1 -printf '%f\n' | xargs; }

# status_of WANTED COMMAND...: fails unless it exits with that status; stdout is in $T/out, stderr in $T/err
status_of() {
  local wanted=$1 rc=0
  shift
  "$@" >"$T/out" 2>"$T/err" </dev/null || rc=$?
  ((rc == wanted)) || fail "exit status $rc instead of $wanted: $* ($(cat "$T/err"))"
}

# refused WORDS COMMAND...: it must exit with 2 and print nothing but one line of ours with these words, on stderr
refused() {
  local words=$1 lines
  shift
  status_of 2 "$@"
  [[ ! -s $T/out ]] || fail "output on stdout: $*"
  mapfile lines <"$T/err" # done in bash, because starting a program for each of hundreds of errors would be slow
  [[ ${#lines[@]} == 1 && ${lines[0]} == *$'\n' ]] || fail "not one line: ${lines[*]}"
  [[ ${lines[0]} == 'ckptfs: '* ]] || fail "not our line: ${lines[0]}"
  shopt -s nocasematch
  [[ ${lines[0]%$'\n'} =~ $words ]] || fail "'$words' is not in: ${lines[0]}"
  shopt -u nocasematch
}

# on_terminal COMMAND...: runs it on a terminal; output in ./out, status in ./rc
on_terminal() {
  "$PYTHON" - "$@" >/dev/null <<'END'
import os, pty, sys
out = b""
def take(fd):
    global out
    data = os.read(fd, 65536)
    out += data
    return data
status = pty.spawn(sys.argv[1:], take, lambda fd: b"")
open("out", "wb").write(out.replace(b"\r\n", b"\n"))
open("rc", "w").write(str(os.waitstatus_to_exitcode(status)))
END
}

# try_eio COMMAND...: it must fail, with an input/output error.
try_eio() {
  if LC_ALL=C "$@" >/dev/null 2>"$T/err"; then
    fail "worked: $*"
  fi
  grep -q 'Input/output error' "$T/err" || fail "$*: $(cat "$T/err")"
}

# has_landlock VERSION
has_landlock() {
  python3 -c 'import ctypes, sys
sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < int(sys.argv[1]))' "$1"
}
# strictest: the option for a sandbox with all that this kernel has
strictest() { if has_landlock 1; then echo sandbox=on; else echo sandbox=auto; fi; }

is_mounted() { awk -v m="$(realpath -m "$1")" '$5 == m { found = 1 } END { exit !found }' /proc/self/mountinfo; }

# mount_at DIR CKPT [options]: makes DIR and mounts there
mount_at() {
  local dir=$1 ckpt=$2
  shift 2
  mkdir -p "$dir"
  ckptfs mount "$ckpt" "$dir" "$@"
}

same_tree() { diff -r -x .ckptfs "$@"; } # compares two mounts
# read_at_random MOUNT CKPT: four processes read and map every file at random; the bytes must be what cat prints.
read_at_random() {
  local path n=0 pairs=()
  mkdir plain
  while read -r -d '' path; do
    n=$((n + 1))
    ckptfs cat "$2" "$path" >"plain/$n"
    pairs+=("$1/$path" "plain/$n")
  done < <(cd "$1" && find . -path ./.ckptfs -prune -o -type f -printf '%P\0')
  "${CKPTFS%/*}/tests/random_reads" "$RANDOM" 100 4 "${pairs[@]}"
}

# number_of MOUNT NAME: a number from its statistics, whatever group it is in
number_of() {
  python3 -c 'import json, sys
def find(o, k):
    for key, v in o.items():
        if key == k: return v
        if isinstance(v, dict) and (r := find(v, k)) is not None: return r
print(find(json.load(open(sys.argv[1] + "/.ckptfs/stats.json")), sys.argv[2]))' "$@"
}

# as_user_and_root [ARGUMENTS] <SCRIPT: runs a script as root, with some of our functions; commands that begin with $as
# run as an unprivileged user. In the script's mount namespace /dev/fuse is open to all, even if it is otherwise root's.
# The big checkpoint is c; m and cache belong to the user.
as_user_and_root() {
  [[ $EUID == 0 ]] || skip "not root"
  unshare -m true 2>/dev/null || skip "no mount namespaces"
  mkdir m cache
  cp -r "$(big)/ckpt" c
  chmod 755 "$SCRATCH" "$T"
  chown 65534:65534 m cache
  mknod -m 666 fuse c 10 229
  {
    declare -f wait_until messages gone is_mounted unmounted daemon_of has_word
    echo 'mount --bind fuse /dev/fuse'
    echo "as='setpriv --reuid=65534 --regid=65534 --clear-groups env XDG_CACHE_HOME=$T/cache'"
    cat
  } >steps
  unshare -m bash -eux steps "$@"
}

# daemon_of DIR: the PID of the daemon that serves this test's mount on DIR, written as on its command line. The daemon
# has /dev/fuse open; a child that it has just forked has it, too, for a moment, so of parent and child only the parent
# counts. Most processes belong to others, and no program is started to find that out.
daemon_of() {
  local p parent fds
  local -A held=()
  for p in /proc/[0-9]*; do
    if [[ $p/exe -ef $CKPTFS ]] && has_word "$p/cmdline" "$1" && has_word "$p/environ" "T=$T"; then
      fds=$(readlink "$p"/fd/* 2>/dev/null) || :
      if [[ $'\n'$fds$'\n' == *$'\n/dev/fuse\n'* ]]; then
        held[${p#/proc/}]=$(sed -n 's/^PPid:\t//p' "$p/status" 2>/dev/null)
      fi
    fi
  done
  for p in "${!held[@]}"; do
    parent=${held[$p]}
    if [[ -n $parent && -z ${held[$parent]:-} ]]; then
      echo "$p"
    fi
  done | sort -n | tail -1
}
has_word() { tr '\0' '\n' <"$1" 2>/dev/null | grep -xF -- "$2" >/dev/null; }

# wait_until COMMAND...: repeats it until it succeeds, for at most a minute, or three if each try takes long
wait_until() {
  local i until=$((SECONDS + 180))
  for ((i = 0; i < 1200 && SECONDS < until; i++)); do
    "$@" && return
    sleep 0.05
  done
  return 1
}
# try_rounds COMMAND...: whether it succeeds in one of ten rounds; it gets the round's number as its last argument. The
# kernel may reclaim clean pages at any time, and does so if memory is short.
try_rounds() {
  local i
  for i in {0..9}; do
    ! "$@" "$i" || return 0
  done
  return 1
}
# messages: what the daemon whose standard error is the file log has said, except that the kernel has no Landlock
messages() { sed "/: a part of the sandbox is missing: this kernel has no Landlock$/d" log; }
gone() { [[ ! -e /proc/$1/exe ]]; } # true for a zombie as well
unmounted() { ! is_mounted "$1"; }

# Unmount whatever is below a directory.
unmount_below() {
  local m all
  # Read at once: line by line, bash would seek back after each, and the list may have changed by then.
  read -r -d '' all </proc/self/mountinfo || true
  [[ $all == *" $1/"* ]] || return 0 # the usual case
  awk -v d="$1/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | tac |
    while read -r m; do
      m=$(printf '%b' "$m") # a space is written as \040
      umount -l "$m" 2>/dev/null || fusermount3 -uz "$m" 2>/dev/null || true
    done
}

# Starts one Chromium for all tests of a suite with `browser=yes`, because that takes most of a second. It ends with the
# suite's shell, however that ends. check.sh starts one for all suites.
start_browser() {
  [[ -z ${BROWSER:-} ]] || return 0
  export BROWSER=$SCRATCH/$SUITE.browser
  setpriv --pdeathsig SIGKILL "$PYTHON" -S -E "$HERE/browser.py" "$BROWSER" </dev/null >/dev/null 2>&1 3<&- &
  browser_pid=$!
}
# shots "$@": the directory for pictures of pages; in a sample (no full run, no test named) none are taken
shots() {
  [[ -n ${CHECK_FULL:-}${1:-} ]] || return 0
  mkdir -p "${CKPTFS%/*}/shots"
  echo "${CKPTFS%/*}/shots"
}
end_browser() {
  [[ -n ${browser_pid:-} ]] || return 0
  printf '{"id":1,"method":"Browser.close"}\0' 1<>"$BROWSER/to"
  wait_until gone "$browser_pid" || kill -9 "$browser_pid"
  wait "$browser_pid"
  wait_until rm -rf "$BROWSER" 2>/dev/null # its children may still write there
}

report() { # result, name, why
  printf '%-7s %s: %s%s\n' "$1" "$SUITE" "$2" "${3:+ ($3)}"
}

run_one() {
  local name=$1 title=${1#test_} rc=0
  shift
  title="${title//_/ }${1:+ [$*]}"
  T=$SCRATCH/$SUITE.t
  export T XDG_CACHE_HOME=$T.cache
  rm -rf "$T" "$T.skip" "$T.cache"
  mkdir "$T"
  timeout -k 5 "$LIMIT" bash "$0" --inside "$name" "$@" >"$T.log" 2>&1 </dev/null 3<&- || rc=$?
  unmount_below "$T"
  case $rc in
    0) report ok "$title" ;;
    77)
      report skipped "$title" "$(cat "$T.skip" 2>/dev/null)"
      ;;
    *)
      report FAILED "$title" "$( ((rc == 124 || rc == 137)) && echo "longer than $LIMIT s")"
      sed 's/^/        /' "$T.log" | tail -n 30
      ;;
  esac
}

run_suite() {
  local name most=1000 others=1 long_ones=1 n=0 n_long=0 step i cases=()
  if [[ ${1:-} == --inside ]]; then
    set -eEuo pipefail
    trap 'echo "line $LINENO: $BASH_COMMAND" >&2' ERR
    cd "$T"
    shift
    "$@"
    exit
  fi
  if [[ -z $SCRATCH ]]; then
    SCRATCH=$(realpath "$(mktemp -d)")
    # shellcheck disable=SC2064 # expanded now, on purpose
    trap "unmount_below '$SCRATCH'; rm -rf '$SCRATCH'" EXIT
  fi
  SCRATCH=$(realpath "$SCRATCH")
  export SCRATCH
  # Takes a sample unless a test is named. Sanitizers take the tests that a full run with MOST_CASES leaves out.
  if [[ -n ${1:-} ]]; then
    :
  elif [[ -n ${CHECK_FULL:-} ]]; then
    [[ -z ${MOST_CASES:-} ]] || most=$MOST_CASES others=${ONE_IN:-2} long_ones=${ONE_IN:-2}
  elif [[ ${VARIANT:-release} == release ]]; then
    most=1 others=2 long_ones=8
  else
    most=2 others=${ONE_IN:-2} long_ones=${ONE_IN:-2} n=1 n_long=1
  fi
  [[ -z ${browser:-} ]] || start_browser
  [[ -z ${servers:-} ]] || start_servers
  while read -r -u 3 name; do
    [[ $name == *"${1:-}"* ]] || continue
    if [[ " ${always:-} " == *" ${name#test_} "* ]]; then
      :
    elif [[ " ${long:-} " == *" ${name#test_} "* ]]; then
      (((TURN + n_long++) % long_ones == 0)) || continue
    else
      (((TURN + n++) % others == 0)) || continue
    fi
    if declare -F "cases_${name#test_}" >/dev/null; then
      mapfile -t cases < <("cases_${name#test_}")
      step=$(((${#cases[@]} + most - 1) / most))
      for ((i = step ? SEED % step : 0; i < ${#cases[@]}; i += step)); do
        # shellcheck disable=SC2086 # words
        run_one "$name" ${cases[i]}
      done
    else
      run_one "$name"
    fi
  done 3< <(grep -oE '^test_[a-z0-9_]+' "$0")
  [[ -z ${browser:-} ]] || end_browser
  [[ -z ${servers:-} ]] || end_servers
}
