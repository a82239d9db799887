#!/bin/bash
# check.sh BUILDDIR [WORD] - run the tests in BUILDDIR, $JOBS suites at a time.
#
# There are three kinds: the corpora of the fuzz targets, the unit suites of BUILDDIR/tests/unit, and the suites on
# real mounts (tests/fs/test_*.sh) with BUILDDIR/ckptfs. $UNIT and $MOUNTS name those to run (default: all; or `none`);
# WORD limits the run to mount suites whose file name contains it. CHECK_FULL=1 also runs the long loops of fault and
# property tests, and uses the disk. Otherwise root's files are kept in memory, if there is enough and $TMPDIR is not
# set (those of `faults` always are).
# RETRY=1: run a failed suite once more, alone; tests that pass then are UNSTEADY, not failures (tests/README.md).
# Prints each test with its result and, at the end, "N passed, N failed". Without /dev/fuse the mount suites
# are skipped; with CI=true a skip is a failure. Mounts and files are removed afterwards.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

build=${1:?directory of the build}
word=${2:-}
jobs=${JOBS:-$((2 * $(nproc)))} # more than CPUs, because many tests spend their time waiting
scratch=$(mktemp -d) || exit 2
chmod 711 "$scratch" # some tests run as another user

free=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
memory=$scratch${CHECK_FULL:+/memory}
mkdir -p "$memory"
if [[ -z ${TMPDIR:-} && $EUID == 0 ]] && ((free > 8 << 20)); then
  mount -t tmpfs -o size=4g,mode=711 ckptfs-check "$memory" 2>/dev/null
fi

mkdir -p "$scratch"/{log,memory}
export build scratch

clean_up() {
  [[ -z ${python_server:-} ]] || kill -9 "$python_server"
  if [[ -n ${browser:-} ]]; then # it writes to its directory until it ends
    kill "$browser"
    for ((i = 0; i < 100; i++)); do
      [[ -e /proc/$browser/exe ]] || break
      sleep 0.05
    done
  fi
  awk -v d="$scratch/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | tac |
    while read -r m; do
      m=$(printf '%b' "$m") # a space is written as \040
      umount -l "$m" 2>/dev/null || fusermount3 -uz "$m"
    done
  ! mountpoint -q "$scratch" || umount -l "$scratch"
  chmod -R u+w "$scratch" 2>/dev/null
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# A daemon has no stderr, so sanitizers write their reports to files.
for tool in ASAN UBSAN TSAN; do
  options=${tool}_OPTIONS
  export "$options=${!options:+${!options}:}log_path=$scratch/${tool,,}"
done
UBSAN_OPTIONS+=:print_stacktrace=1
export CK_VERBOSITY=${CK_VERBOSITY:-verbose}
export CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-8} # suites share the CPUs
export TEST_SEED=${TEST_SEED:-$(date +%s%N)}
echo "TEST_SEED=$TEST_SEED"
# libfuse frees the mount point's name only when it unmounts, which the daemon leaves to another
# process (fs/mount/unmounter.h).
echo leak:fuse_session_mount >"$scratch/suppressions"
export LSAN_OPTIONS=${LSAN_OPTIONS:+$LSAN_OPTIONS:}suppressions=$scratch/suppressions:print_suppressions=0

# Found once, not by each suite; see tests/fs/lib.sh.
PYTHON=${PYTHON:-$(python3 -c 'import sys; print(sys.executable)')}
export PYTHON

# One Python for all suites; see tests/fs/quick_python.c. They work without it, too.
if [[ -x $build/tests/quick_python && ${MOUNTS:-} != none ]]; then
  QUICK_PYTHON=$(realpath "$build/tests/quick_python")
  PYTHON_CONTEXT=$("$QUICK_PYTHON" --context)
  PYTHON_SERVER=$scratch/python
  export QUICK_PYTHON PYTHON_CONTEXT PYTHON_SERVER
  setpriv --pdeathsig SIGKILL "$PYTHON" -S -E tests/fs/python_server.py "$PYTHON_SERVER" </dev/null >/dev/null &
  python_server=$!
  disown "$python_server" # so that bash does not report its end
fi

# Suites that take long start first.
slow="faults remote remote_write report live_faults net depot average derived view diff_report mount sandbox python \
  reshard completion log commands hf library export damage gguf run verdict passthrough check stat stats save_run staging \
  blockcache comm helpers security reads ranks catalog torchsave ckpt_fault memory"

# wanted NAMES NAME: whether a list of names contains this one; an empty list contains all
wanted() { [[ -z $1 || " $1 " == *" $2 "* ]]; }

list_jobs() {
  local name f
  if [[ -z $word && -x $build/tests/unit ]]; then
    while read -r name; do
      wanted "${UNIT:-}" "$name" && echo "unit $name"
    done < <(sed -nE 's/^\tX\(([a-z0-9_]+)\).*/\1/p' tests/suites.h)
    for f in "$build"/fuzz/fuzz_*; do
      [[ -z ${UNIT:-} && -x $f ]] && echo "corpus ${f##*/fuzz_}"
    done
  fi
  [[ -c /dev/fuse && ${MOUNTS:-} != none ]] || return 0
  for f in tests/fs/test_*"$word"*.sh; do
    name=$(basename "$f" .sh)
    wanted "${MOUNTS:-}" "${name#test_}" && echo "mounts ${name#test_}"
  done
}

# count_apart SUITE: in the coverage build, programs count in files of this suite alone, to which all users may write.
count_apart() {
  export LLVM_PROFILE_FILE=$PROFILE/$1-%m%c.profraw
  (umask 0; "$build/ckptfs" --version; "$build/ckptfs-fetch" --version; "$build/tests/unit" none) >/dev/null 2>&1
}
export -f count_apart

# Prints the output of a suite in one piece when it has ended.
run_job() {
  local kind=$1 name=$2 log=$scratch/log/$1-$2 rc=0 bad cpu start=$EPOCHSECONDS
  [[ -z ${PROFILE:-} ]] || count_apart "$kind-$name"
  case $kind in
    unit)
      # Not pagemap: in a tmpfs a hole has no pages, even after it has been read.
      [[ $name == pagemap ]] || export TMPDIR=$scratch
      # faults records by itself what is synced; a disk would only make it wait, many thousand times.
      [[ $name != faults ]] || TMPDIR=$scratch/memory
      "$build/tests/unit" "$name" >"$log" 2>&1 || rc=$?
      ;;
    corpus) "$build/fuzz/fuzz_$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || rc=$? ;;
    mounts)
      CKPTFS=$build/ckptfs SCRATCH=$scratch VARIANT=$(basename "$build") "tests/fs/test_$name.sh" >"$log" 2>&1 || rc=$?
      ;;
  esac
  # A suite that dies may not have reported a failure.
  bad=$(sed -nE 's/^[0-9]+%: Checks: [0-9]+, Failures: ([0-9]+), Errors: ([0-9]+)$/\1+\2/p' "$log")
  if ((rc && !(${bad:-0}))) && ! grep -q '^FAILED ' "$log"; then
    echo "FAILED  $kind $name: exit status $rc" >>"$log"
  fi
  times >"$log.cpu"
  cpu=$(awk 'NR == 2 { gsub("[ms]", " "); $0 = $0; printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$log.cpu")
  rm "$log.cpu"
  echo "time: $kind $name: $((EPOCHSECONDS - start)) s, $cpu s of CPU without daemons" >>"$log" # for `slow` above
  flock "$scratch/log" cat "$log"
}
export -f run_job

list_jobs | awk -v slow="$slow" '
  BEGIN { n = split(slow, s); for (i = 1; i <= n; i++) at[s[i]] = i }
  { print ($2 in at ? at[$2] : n + 1), $0 }' | sort -s -n -k 1,1 | cut -d ' ' -f 2- >"$scratch/jobs"

# One Chromium for all suites that look at pages.
if awk '$1 == "mounts" { print "tests/fs/test_" $2 ".sh" }' "$scratch/jobs" | xargs -r grep -l '^browser=yes' >/dev/null; then
  export BROWSER=$scratch/browser
  setpriv --pdeathsig SIGKILL "$PYTHON" -S -E tests/fs/browser.py "$BROWSER" </dev/null >/dev/null 2>&1 &
  browser=$!
  disown "$browser"
fi

xargs -r -a "$scratch/jobs" -P "$jobs" -n 2 bash -c 'run_job "$@"' run_job
if [[ ! -c /dev/fuse && ${MOUNTS:-} != none ]]; then
  printf 'skipped mounts (no /dev/fuse)\n' | tee "$scratch/log/mounts"
fi

# Prints RESULT NAME for each test in a suite's log.
results() {
  sed -nE -e 's/ \(longer than [0-9]+ s\)$//' -e 's/^(ok|FAILED) +/\1 /p' \
    -e 's/^[^ ]+:[0-9]+:P:([^:]+:[^:]+:[0-9]+): .*/ok \1/p' \
    -e 's/^[^ ]+:[0-9]+:[FE]:([^:]+:[^:]+:[0-9]+): .*/FAILED \1/p' "$1"
}
failures() { results "$1" | sed -n 's/^FAILED //p'; }

# Runs one suite once more; its second log counts. Tests that failed the first time must now pass.
run_again() {
  local kind=$1 name=$2 log=$scratch/log/$1-$2 first=$scratch/first test
  mv "$log" "$first"
  echo "once more: $kind $name"
  (run_job "$kind" "$name") </dev/null
  while read -r test; do
    if results "$log" | grep -xF "ok $test" >/dev/null || [[ $test == *': exit status '* && -z $(failures "$log") ]]; then
      [[ $kind == mounts ]] || test="$name: $test"
      echo "UNSTEADY  $test" >>"$scratch/unsteady"
    elif ! failures "$log" | grep -xF "$test" >/dev/null; then
      echo "FAILED  $kind $name: $test: not reached when run once more" >>"$log"
    fi
  done < <(failures "$first")
}

# A busy machine does not cause many failures at once, so in that case nothing is run again.
if [[ -n ${RETRY:-} ]]; then
  : >"$scratch/unsteady"
  for f in "$scratch"/log/{unit,mounts}-*; do
    f=${f##*/}
    failures "$scratch/log/$f" | sed "s/.*/${f/-/ }/"
  done >"$scratch/failed" 2>/dev/null
  if (($(wc -l <"$scratch/failed") <= 3)); then
    while read -r kind name; do
      run_again "$kind" "$name"
    done < <(uniq "$scratch/failed")
  fi
fi

# PIDs of daemons that still run, although their mounts are gone.
left_over() {
  local p
  for p in /proc/[0-9]*; do
    if [[ $p/exe -ef $build/ckptfs ]] &&
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

# Check's own summary: "98%: Checks: 55, Failures: 1, Errors: 0"
read -r unit_all unit_failed < <(cat /dev/null "$scratch"/log/unit-* 2>/dev/null | sed -nE \
  's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+)$/\1 \2 \3/p' |
  awk '{ n += $1; bad += $2 + $3 } END { print n + 0, bad + 0 }')
count() { cat "$scratch"/log/* 2>/dev/null | grep -cE "^$1 "; }
passed=$((unit_all - unit_failed + $(count ok)))
failed=$((unit_failed + $(count FAILED)))
skipped=$(count skipped)
[[ ${CI:-} == true ]] && failed=$((failed + skipped))
# A thread may end while LeakSanitizer is stopping all threads; it reports that and continues, so it is not a failure.
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
if ((skipped)); then echo "$skipped skipped:"; cat "$scratch"/log/* | grep '^skipped '; fi
cat "$scratch"/log/* 2>/dev/null | grep '^FAILED '
[[ -z ${RETRY:-} ]] || cat "$scratch/unsteady"
echo "$passed passed, $failed failed"
((!failed && passed))
