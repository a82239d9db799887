#!/bin/bash
# soak_faults.sh BUILDDIR - readers of all views, computed ones, a run and a store, while faults come at random.
#
# Every file of four mounts is compared with an export that was made before. SOAK_READERS (16) processes read in all
# ways for SOAK_SECONDS (60); they may get errors, but no wrong byte. Meanwhile these faults follow each other
# (SOAK_SEED decides which):
#
#   eio, hang    the file system below answers EIO, or does not answer
#   stop         that file system, a daemon, or its ckptfs-fetch is stopped by SIGSTOP for up to two seconds
#   network      connections are reset, stall, end early, or get 503
#   full         the disk with the store's cache is full
#   truncate     once, after half of the time: the data files of one checkpoint of the run are truncated
#
# All daemons and readers share a control group of 256 MiB, if one can be made. When all faults have ended, every byte
# of every file that was not truncated must be there again. Memory and descriptors are judged as in soak.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(realpath "${1:?directory of the build}")
seconds=${SOAK_SECONDS:-60} readers=${SOAK_READERS:-16} RANDOM=${SOAK_SEED:=$((RANDOM))}
HERE=$PWD/tests/fs
export CKPTFS=$build/ckptfs CKPTFS_FETCH=$build/ckptfs-fetch SCRATCH
SCRATCH=$(mktemp -d)
T=$SCRATCH SUITE=soak
export T XDG_CACHE_HOME=$T/cache
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"
# shellcheck source-path=SCRIPTDIR source=../net/servers.sh
. "$HERE/../net/servers.sh"
# The servers' Hub needs at least one repository.
servers=web hub="a/b=align4096" names=(faces views run store) daemons=() jobs=() below=() group=

clean_up() {
  set +e
  kill -CONT "${daemons[@]}" "${below[@]}" 2>/dev/null
  kill "${daemons[@]}" "${jobs[@]}" ${sampler:+"$sampler"} 2>/dev/null
  unmount_below "$T"
  [[ -z ${server_pids:-} ]] || end_servers
  [[ -z $group ]] || wait_until rmdir "$group" 2>/dev/null
  rm -rf "$T"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

fail() {
  echo "FAILED  soak_faults: $* (SOAK_SEED=$SOAK_SEED)"
  exit 1
}

# ---- checkpoints, and what readers are to find ----

cd "$T"
start_servers
mkdir hf orders run b1 b2 small
model=$(python3 "$HERE/gguf.py" model llama hf)
# shellcheck disable=SC2086 # words
make_dcp --flat c $model optim.a 2048x1536 4x2 optim.b 1023x777 3x2 optim.half 900x1000:bfloat16 2x1 optim.step -:int64 -
rm -rf data c.*.bin
# shellcheck disable=SC2086 # words
ckptfs reshard -q c d --ranks 2
ckptfs reshard -q c run/step-1 --format safetensors
cp -r c run/step-2
cp -r c "$WEBDIR/c"
aged "$T"
printf 'mesh tp=2\n*.weight tp:0\n* replicate\n' >layout

views=(-o "average=$T/b1:0.5,$T/b2:0.5,assets=$T/hf,dtype=bf16,gguf_dtype=q4_k_m")
faces=(-o "assets=$T/hf,layout=$T/layout")
address=$WEB_PROXY/c/
export_all() { # SOURCE TO [options]
  ckptfs export -q "$1" . "$2" "${@:3}"
}
mkdir exports
export_all c exports/faces "${faces[@]}"
export_all c exports/views -o "average=$T/c:0.5,$T/d:0.5,assets=$T/hf,dtype=bf16,gguf_dtype=q4_k_m"
for step in step-1 step-2; do
  mkdir -p exports/run
  export_all "run/$step" "exports/run/$step" -o "assets=$T/hf"
done
export_all c exports/store -o "assets=$T/hf"
rm -rf exports/*/.ckptfs exports/run/*/.ckptfs # each mount has its own

# ---- mounts ----

if group=$(mkdir "/sys/fs/cgroup/ckptfs-soak-$$" 2>/dev/null && echo "/sys/fs/cgroup/ckptfs-soak-$$") &&
  echo $((256 << 20)) 2>/dev/null >"$group/memory.max"; then
  echo "soak_faults: a control group of 256 MiB"
else
  [[ -z $group ]] || rmdir "$group"
  group=
  echo "soak_faults: no control group"
fi
limited() { # COMMAND...
  if [[ -n $group ]]; then echo "$BASHPID" >"$group/cgroup.procs"; fi
  exec "$@"
}
for b in b1 b2; do
  "$build/tests/badfs" "$T/$([[ $b == b1 ]] && echo c || echo d)" "$T/orders" "$T/$b" -f 2>/dev/null &
  below+=($!)
  wait_until is_mounted "$b"
done
mount -t tmpfs -o size=24m,mode=700 tmpfs small
# Found by its executable: its name in the list of processes is not its path.
has_fetcher() {
  local p
  for p in /proc/[0-9]*; do
    # ckptfs-fetch has two processes; this is the one that the other has started.
    if [[ $p/exe -ef $CKPTFS_FETCH && /proc/$(sed 's/.*) . \([0-9]*\) .*/\1/' "$p/stat")/exe -ef $CKPTFS_FETCH ]] &&
      has_word "$p/environ" "T=$T"; then fetch=${p#/proc/}; fi
  done
  [[ -n ${fetch:-} ]]
}
serve() { # NAME SOURCE [options]
  mkdir -p "m/$1"
  limited "$CKPTFS" mount -fq "$2" "m/$1" "${@:3}" 2>"$1.log" &
  daemons+=($!)
  wait_until is_mounted "m/$1"
}
serve faces b1 "${faces[@]}"
serve views b1 "${views[@]}"
serve run run -o "assets=$T/hf"
serve store "$address" -o "assets=$T/hf,cache_dir=$T/small,cache_size=16MiB,retry=4"
wait_until has_fetcher || fail "no ckptfs-fetch"

sample() { # kB, descriptors of a daemon
  echo "$(awk '/^RssAnon/ { print $2 }' "/proc/$1/status") $(find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l)"
}
median() { # FILE COLUMN QUARTER, as in soak.sh
  awk -v c="$2" -v q="$3" '{ v[NR] = $c } END {
    for (i = int(NR * (q - 1) / 4) + 1; i <= NR * q / 4; i++) print v[i] }' "$1" | sort -n |
    awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] + 0 }'
}

# ---- faults ----

# --max-time is long, because on a busy machine this may take a while.
proxy() { curl -s -o /dev/null --max-time 60 "$WEB_PROXY/.proxy?$1"; }
pause() { sleep "$((RANDOM % 2)).$((RANDOM % 10))"; }
one_of() { shift "$((RANDOM % $#))"; echo "$1"; }
fault() {
  local file what b
  case $1 in
    eio | hang)
      file=$(basename "$(one_of c/*.distcp d/*.distcp)")
      # Drop the file's pages, so that the kernel does not answer from its cache.
      for b in b1 b2; do [[ ! -e $b/$file ]] || dd if="$b/$file" iflag=nocache count=0 2>/dev/null; done
      : >"orders/$file.$1"
      pause
      rm "orders/$file.$1"
      ;;
    stop)
      what=$(one_of "${below[@]}" "${daemons[@]}" "$fetch")
      kill -STOP "$what"
      pause
      kill -CONT "$what"
      ;;
    network)
      proxy "fault=$(one_of reset stall short 503 close)&from=1&times=$((1 + RANDOM % 9))&after=$((RANDOM * 4))"
      pause
      proxy "fault=none&from=0&times=0"
      ;;
    full)
      head -c 24m /dev/zero >small/filler 2>/dev/null || :
      pause
      rm small/filler
      ;;
  esac
}

all_right() {
  local name
  for name in faces views store run/step-1; do
    timeout 300 diff -r -x .ckptfs "exports/$name" "m/$name" >difference 2>&1 || fail "$name: $(head -n 3 difference)"
  done
}

all_right # this also opens every tensor, so memory for tensors does not grow from here on
start=$SECONDS
for k in 0 1 2 3; do
  setsid "$build/tests/soak" same "$T/exports/${names[k]}" "$T/m/${names[k]}" $((readers / 4)) "$seconds" may-fail \
    >"${names[k]}.read" 2>&1 &
  jobs+=($!)
done
(while :; do
  for k in 0 1 2 3; do sample "${daemons[k]}" >>"samples.$k"; done
  sample "$fetch" >>samples.4
  sleep 1
done) &
sampler=$! cut='' counts='' file=''
while ((SECONDS - start < seconds - 2)); do
  kind=$(one_of eio hang stop network full)
  fault "$kind"
  counts+="$kind "
  if [[ -z $cut ]] && ((SECONDS - start > seconds / 2)); then
    for file in run/step-2/*.distcp; do echo cut >"$file"; done
    cut=yes counts+='truncate '
  fi
done
bad=
for job in "${jobs[@]}"; do
  for ((i = 0; i < 120; i++)); do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.5
  done
  ! kill -0 "$job" 2>/dev/null || fail "a reader hangs"
  wait "$job" || bad=yes
done
kill "$sampler"
wait "$sampler" 2>/dev/null || :
for k in 0 1 2 3; do echo "${names[k]}: $(cat "${names[k]}.read")"; done
[[ -z $bad ]] || fail "readers"
echo "faults: $(tr ' ' '\n' <<<"$counts" | sort | uniq -c | awk 'NF > 1 { printf "%s%s %s", n++ ? ", " : "", $1, $2 }')"

# ---- afterwards ----

for k in 0 1 2 3 4; do
  kill -0 "$( ((k < 4)) && echo "${daemons[k]}" || echo "$fetch")" || fail "${names[k]:-ckptfs-fetch} has ended"
  before=$(median "samples.$k" 1 2) after=$(median "samples.$k" 1 4) fds=$(median "samples.$k" 2 2) fds_after=$(median "samples.$k" 2 4)
  echo "${names[k]:-ckptfs-fetch}: RssAnon in kB, medians of quarters: $(for q in 1 2 3 4; do median "samples.$k" 1 $q; done | xargs)" \
    "descriptors: $fds $fds_after"
  ((before && after <= before + before / 10 + 4096)) || fail "memory grows: $before, $after kB"
  ((fds && fds_after <= fds + 2)) || fail "descriptors are not closed: $fds, $fds_after"
done
all_right
for name in "${names[@]}"; do ckptfs umount "m/$name"; done
wait "${daemons[@]}" || fail "a daemon ended with status $?"
wait_until gone "$fetch" || fail "ckptfs-fetch is left"
echo "ok      soak_faults: $readers readers, $((SECONDS - start)) s, SOAK_SEED=$SOAK_SEED"
