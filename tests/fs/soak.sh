#!/bin/bash
# soak.sh BUILDDIR - many readers for a long time: half of them on a mount of many tensors, half on compressed
# data; every byte is compared with what soak.c computes. SOAK_SECONDS (60) is the time, SOAK_READERS (64) the
# number of readers, SOAK_TENSORS (100000, or 20000 for less than five minutes) that of tensors.
#
# The daemons' memory and descriptors are sampled all the time: in the last quarter, the least memory and the median of
# descriptors must be about the medians of the second. A request that hangs for a while on a busy machine gets one more
# thread, with its memory. In the end both are unmounted, and nothing may be left.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(realpath "${1:?directory of the build}")
seconds=${SOAK_SECONDS:-60}
readers=${SOAK_READERS:-64}
tensors=${SOAK_TENSORS:-$((seconds < 300 ? 20000 : 100000))}
packed=3000
ckptfs=$build/ckptfs soak=$build/tests/soak
T=$(mktemp -d)
export XDG_CACHE_HOME=$T/cache
daemons=() jobs=()

clean_up() {
  kill "${daemons[@]}" "${jobs[@]}" 2>/dev/null || true
  umount -l "$T/m" "$T/mz" 2>/dev/null || true
  rm -rf "$T"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

fail() {
  echo "FAILED  soak: $*"
  exit 1
}

# Large tensors are cut by columns, as by tensor parallelism; small ones lie one after another.
printf 'mesh tp=4\nb.* tp:1\n* replicate\n' >"$T/layout"
"$soak" make "$T/st" "$tensors"
"$ckptfs" reshard -q "$T/st" "$T/dcp" --layout "$T/layout" >/dev/null
rm -r "$T/st"
"$soak" make "$T/st" "$packed"
"$ckptfs" reshard -q "$T/st" "$T/zstd" --zstd --layout "$T/layout" >/dev/null

mkdir "$T/m" "$T/mz"
"$ckptfs" mount -fq "$T/dcp" "$T/m" 2>"$T/log" &
daemons=($!)
"$ckptfs" mount -fq "$T/zstd" "$T/mz" -o cache=2MiB 2>"$T/logz" &
daemons+=($!)
for m in "$T/m" "$T/mz"; do
  for ((i = 0; i < 100; i++)); do
    mountpoint -q "$m" && break
    sleep 0.1
  done
done
# Open every tensor once: what the daemon keeps of a tensor it keeps from its first use on.
"$soak" open "$tensors" "$T/m"
"$soak" open "$packed" "$T/mz"

sample() { # kB, descriptors and threads of a daemon
  echo "$(awk '/^RssAnon/ { print $2 }' "/proc/$1/status") $(find "/proc/$1/fd" -mindepth 1 | wc -l)" \
    "$(awk '/^Threads/ { print $2 }' "/proc/$1/status")"
}
quarter() { # FILE COLUMN QUARTER: that part of a column of samples, sorted
  awk -v c="$2" -v q="$3" '{ v[NR] = $c } END {
    for (i = int(NR * (q - 1) / 4) + 1; i <= NR * q / 4; i++) print v[i] }' "$1" | sort -n
}
median() { quarter "$@" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] + 0 }'; }
lowest() { quarter "$@" | sed -n 1p; }
# The first, middle and last value of a column, and the largest.
course() { # FILE COLUMN
  awk -v c="$2" '{ v[NR] = $c; if ($c > max) max = $c } END {
    print v[1] ", " v[int((NR + 1) / 2)] ", " v[NR] ", at most " max + 0 }' "$1"
}

start=$SECONDS
setsid "$soak" read "$tensors" "$T/m" $((readers - readers / 2)) "$seconds" >"$T/read" 2>&1 &
jobs=($!)
setsid "$soak" read "$packed" "$T/mz" $((readers / 2)) "$seconds" >"$T/readz" 2>&1 &
jobs+=($!)
while kill -0 "${jobs[0]}" 2>/dev/null || kill -0 "${jobs[1]}" 2>/dev/null; do
  for k in 0 1; do sample "${daemons[k]}" >>"$T/samples.$k"; done
  sleep 1
done
bad=
for job in "${jobs[@]}"; do wait "$job" || bad=yes; done
echo "many tensors: $(cat "$T/read")"
echo "zstd:         $(cat "$T/readz")"
[[ -z $bad ]] || fail "readers"

mounts=("$T/m" "$T/mz")
for k in 0 1; do
  v=$T/samples.$k
  echo "daemon $k: RssAnon in kB at the start, in the middle, at the end: $(course "$v" 1)"
  echo "daemon $k: medians of its quarters: $(for q in 1 2 3 4; do median "$v" 1 $q; done | xargs)"
  echo "daemon $k: descriptors: $(course "$v" 2); threads: $(course "$v" 3)"
  echo "daemon $k: requests: $("$ckptfs" stats "${mounts[k]}" |
    awk '/^requests/ { on = 1; next } !NF { on = 0 } on && $2 { printf "%s%s %s", n++ ? ", " : "", $1, $2 }')"
done
for k in 0 1; do
  # What requests need comes and goes; what leaks stays.
  before=$(median "$T/samples.$k" 1 2) after=$(lowest "$T/samples.$k" 1 4)
  fds=$(median "$T/samples.$k" 2 2) fds_after=$(median "$T/samples.$k" 2 4)
  ((before && after <= before + before / 10 + 4096)) || fail "memory grows: $before, $after kB"
  ((fds && fds_after <= fds + 2)) || fail "descriptors are not closed: $fds, $fds_after"
done
cat "$T/log" "$T/logz"
# The logs may only say that a reader has been waiting for a data file.
! grep -qv 'has been waiting for its data files' "$T/log" "$T/logz" || fail "the log has other lines"
"$ckptfs" umount "$T/m"
"$ckptfs" umount "$T/mz"
wait "${daemons[@]}" || fail "a daemon ended with status $?"
! grep -qF "$T/" /proc/self/mountinfo || fail "a mount is left"
echo "ok      soak: $readers readers, $tensors and $packed tensors, $((SECONDS - start)) s"
