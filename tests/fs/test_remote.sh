#!/bin/bash
# Checkpoints in object stores: servers of S3, https and the Hub's kind, and a proxy with faults. Only in full runs.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2034 # for lib.sh
servers="web s3"
# shellcheck disable=SC2034 # for servers.sh
hub="org/plain=plain org/fsw_safetensors=fsw_safetensors"
# shellcheck source=../net/servers.sh
. "$HERE/../net/servers.sh"

# put KIND DIR NAME: uploads a checkpoint; its address is in $address
put() {
  case $1 in
    s3) publish_s3 "bucket/$3" "$2" && address=s3://bucket/$3 ;;
    web) mkdir -p "$WEBDIR/$3" && cp -r "$2/." "$WEBDIR/$3" && address=$web/$3/ ;;
    hf) address=hf://org/$3 ;; # servers.sh has published it already
  esac
}

# ---- bytes ----

# Whether to test the other servers, too; beside Ceph they would only repeat what is tested beside Swift.
has_others() { [[ $S3_SERVER == swift ]]; }

cases_every_byte_is_the_local_one() {
  printf 's3 %s\n' plain zstd fsw_safetensors torchsave_sharded mcore_gpt_dense mcore_zarr ds_z2_bf16_w2_rr \
    fsdp_sharded many_items orbax/data_files
  ! has_others || printf '%s\n' 'web plain' 'web fsw_safetensors' 'hf plain' 'hf fsw_safetensors'
}
test_every_byte_is_the_local_one() {
  local ckpt=$DATA/$2/ckpt
  [[ -d $ckpt ]] || ckpt=$DATA/$2
  reach
  put "$1" "$ckpt" "${2//\//.}"
  mount_at l "$ckpt"
  mount_at r "$address"
  same_tree l r
  ckptfs umount r
  ckptfs umount l
  wait_until no_fetchers
}

# The address of a store that does not answer is in the message, and only once.
test_an_address_is_named_once() {
  local at=s3://bucket/nowhere
  if ckptfs info $at -o endpoint=http://127.0.0.1:1,anonymous,retry=1 2>err; then fail "opened"; fi
  [[ $(grep -o "$at" err | wc -l) == 1 ]] || fail "$(cat err)"
}

# A confined command opens what its line names, however that is written.
test_confined_commands_open_what_is_named() {
  local host f
  reach
  put s3 "$(zoo)" of-run/step-1
  publish_s3 root "$(zoo)"
  ckptfs info --"$(strictest)" s3://bucket/of-run step-1 model.n -o retry=5,cache_dir=none | grep -x 'dtype  *int32'
  ckptfs sum --"$(strictest)" "$(zoo)" -o average=s3://root:1 >averaged
  ckptfs sum "$(zoo)" -o "average=$(zoo):1" | cmp - averaged
  put web "$(fixture hf_dtypes)/ckpt" names
  host=${web/127.0.0.1/127.1}
  [[ $host != "$web" ]]
  for f in "$WEBDIR"/names/*.safetensors; do :; done
  ckptfs ls --"$(strictest)" "$host/names/${f##*/}" | cmp - <(ckptfs ls "$f")
}

test_commands_take_addresses() {
  local ckpt f
  reach
  ckpt=$(zoo)
  put s3 "$ckpt" zoo
  f=tensors/model.layers.0.q.weight
  ckptfs ls "$ckpt" >a
  ckptfs ls "$address" >b
  cmp a b
  ckptfs cat "$ckpt" $f | cmp - <(ckptfs cat "$address" $f)
  ckptfs sum "$ckpt" >a
  ckptfs sum "$address" >b
  cmp a b
  ckptfs sum "gs://${address#s3://}" -o endpoint="$AWS_ENDPOINT_URL" >b
  cmp a b
  ckptfs diff -q "$ckpt" "$address"
  ckptfs check "$address" --data
  ckptfs info "$address" --json | jq -e --arg a "$address" '.checkpoint == $a' >/dev/null
  ckptfs export -q "$ckpt" hf l
  ckptfs export -q "$address" hf r
  same_tree l r
  ckptfs stat "$address" >/dev/null
  ckptfs report "$address" -o page.html
  ckptfs reshard "$address" resharded --format=safetensors
  ckptfs diff -q "$ckpt" resharded
  wait_until no_fetchers
}

# Directories ./bf16 and ./fp8
make_model() {
  mkdir hf
  # shellcheck disable=SC2046 # words
  python3 "$HERE/dequant.py" "$SEED" fp8 bf16 $(python3 "$HERE/gguf.py" model llama hf | cut -d ' ' -f 1,2)
}

cases_what_is_computed_is_the_same() {
  printf '%s\n' 'run/fp8 hf/ dequantize=bf16' 'run/fp8 gguf/ dequantize=bf16,gguf_dtype=q4_k_m' \
    'run/bf16 hf/ quantize=fp8_dynamic' 'run hf/ average=bf16:0.5,other:0.5'
}
test_what_is_computed_is_the_same() {
  make_model
  mkdir run
  mv bf16 fp8 run
  cp -r run/bf16 run/other
  reach
  put s3 run run
  ckptfs export -q "$1" "$2" l -o "$3"
  ckptfs export -q "s3://bucket/$1" "$2" r -o "$3"
  diff -r l r
  wait_until no_fetchers
}

# A patch may have a manifest beside it. This one has none, but the server does not answer 404.
test_a_patch_may_be_at_an_address() {
  python3 "$HERE/merge.py" step base 1
  python3 "$HERE/merge.py" step next 2
  python3 "$HERE/merge.py" patch patch base next
  reach
  put web patch patch
  ckptfs export -q base hf got -o "overlay=${address}trl.safetensors"
  ckptfs export -q next hf want
  diff -r got want
  wait_until no_fetchers
}

# ckptfs-fetch must work without close_range, which came with Linux 5.9.
test_an_old_kernel_fetches() {
  case ${VARIANT:-release} in asan | tsan) exit 0 ;; esac # a sanitizer needs calls of its own
  reach
  put web "$(big)/ckpt" big
  "${CKPTFS%/*}/tests/without" 436+ "$CKPTFS" cat "$address" tensors/v | cmp - "$(big)/v.bin"
  wait_until no_fetchers
}

test_python_takes_addresses() {
  reach
  put s3 "$(fixture plain)/ckpt" python
  /usr/bin/python3 - "$address" "$(fixture plain)/ckpt" "$HERE/../../scripts/python" "${CKPTFS%/*}" <<'X'
import os, sys, glob
sys.path.insert(0, sys.argv[3])
os.environ["CKPTFS_LIBRARY"] = glob.glob(sys.argv[4] + "/libckpt.so*")[0]
os.environ["CKPTFS_FETCH"] = sys.argv[4] + "/ckptfs-fetch"
import ckptfs
with ckptfs.open(sys.argv[1], dtype="fp32") as a, ckptfs.open(sys.argv[2], dtype="fp32") as b:
    assert list(a) == list(b) and len(list(a))
    for name in b:
        assert a[name][...].tobytes() == b[name][...].tobytes(), name
X
}

test_assets_may_be_elsewhere() {
  reach
  mkdir config
  echo '{"model_type": "x"}' >config/config.json
  put web config config
  ckptfs cat "$(zoo)" hf/config.json -o assets="$address" | cmp - config/config.json
  put s3 config config
  ckptfs cat "$(zoo)" hf/config.json -o assets="$address" | cmp - config/config.json
}

# Several processes map and read at random before anything has been fetched.
test_random_reads_are_right() {
  reach
  put s3 "$(big)/ckpt" big
  mount_at m "$address"
  read_at_random m "$(big)/ckpt"
}

# ---- the cache ----

test_a_second_mount_fetches_no_data() {
  reach proxy
  put s3 "$(big)/ckpt" again
  ckptfs warm -q "$address"
  (($(counted S3_PROXY bytes) > 35000000))
  ask S3_PROXY from=0 >/dev/null
  mount_at m "$address"
  cmp m/tensors/w "$(big)/w.bin"
  cmp m/tensors/v "$(big)/v.bin"
  (($(counted S3_PROXY bytes) < 20000)) || fail "$(ask S3_PROXY)"
  # The statistics show it.
  jq -e '.network | .bytes < 20000 and .cache_hits > 0 and .cache_misses == 0 and .cache_size > 0 and .cache_note == null' m/.ckptfs/stats.json
  ckptfs umount m
  rm -r "$XDG_CACHE_HOME"
  mount_at m "$address"
  cmp m/tensors/w "$(big)/w.bin"
  wait_until jq -e '.network | .bytes > 18000000 and .requests > 3 and .latency_us > 0' m/.ckptfs/stats.json
}

# ls_takes N: whether `ls` needs at most so many requests; it sends another for one that takes a second
ls_takes() {
  ask S3_PROXY from=0 >/dev/null
  ckptfs ls "$address" >/dev/null && (($(counted S3_PROXY requests) <= $1))
}
# The first time, a listing and the metadata are fetched; later, only a listing.
test_an_index_takes_two_requests() {
  reach proxy
  put s3 "$(big)/ckpt" few
  ls_takes 3 || fail "$(ask S3_PROXY)"
  try_rounds ls_takes 1 || fail "$(ask S3_PROXY)"
}

test_without_a_cache_nothing_is_kept() {
  reach
  put s3 "$(zoo)" zoo
  ckptfs sum "$address" -o cache_dir=none,index=:memory: >/dev/null
  [[ ! -e $XDG_CACHE_HOME/ckptfs/objects ]]
}

test_a_cache_that_others_may_write_is_not_used() {
  reach
  put s3 "$(zoo)" zoo
  mkdir -m 777 open
  ckptfs sum "$address" -o cache_dir=open >/dev/null
  [[ -z $(ls -A open) ]]
  ckptfs info "$address" -o cache_dir=open >/dev/null 2>err
  grep -F "can be written to by others" err
}

test_a_cache_removes_only_what_is_its_own() {
  reach
  put s3 "$(big)/ckpt" evicted
  mkdir -m 700 mixed
  mkdir -p mixed/model/llama mixed/ab/cd
  for f in model/llama/model-00001-of-00002.safetensors ab/cd/0000-1 ab/notes-1; do
    head -c 2M /dev/zero >"mixed/$f"
    touch -d 2020-01-01 "mixed/$f"
  done
  ckptfs sum "$address" -o cache_dir=mixed,cache_size=1MiB >/dev/null
  [[ -e mixed/model/llama/model-00001-of-00002.safetensors && -e mixed/ab/cd/0000-1 && -e mixed/ab/notes-1 ]]
}

# ---- changes and faults ----

# Objects get other bytes of the same length: reads return EIO with a reason, or cached old bytes, never the new ones.
test_changed_objects_are_errors() {
  local c
  c=$(big)/ckpt
  reach
  put s3 "$c" changing
  mount_at m "$address" -o cache_dir=none
  head -c 65536 m/tensors/w >before
  mkdir other
  cp "$c"/*.distcp other
  for f in other/*; do python3 -c 'import sys
d = bytearray(open(sys.argv[1], "rb").read())
for i in range(len(d)): d[i] ^= 0xff
open(sys.argv[1], "wb").write(d)' "$f"; done
  publish_s3 bucket/changing other
  try_eio cat m/tensors/v
  head -c 65536 m/tensors/w >after 2>/dev/null || :
  cmp -n "$(stat -c %s after)" before after
  cat m/.ckptfs/log >log
  grep -E 'changed|replaced' log || fail "$(cat log)"
}

test_removed_objects_are_errors() {
  reach
  put web "$(big)/ckpt" removed
  mount_at m "$address" -o cache_dir=none
  rm "$WEBDIR"/removed/*.distcp
  try_eio cat m/tensors/v
  grep -E 'changed|removed' m/.ckptfs/log || fail "$(cat m/.ckptfs/log)"
}

# With any fault there must be right bytes or an error message; if it is "passing", right bytes.
try_fault() { # PROXY KIND FROM TIMES AFTER passing|lasting RETRY
  local rc=0
  ask "$1" fault="$2" from="$3" times="$4" after="$5" >/dev/null
  timeout 60 "$CKPTFS" sum "$address" -o cache_dir=none,index=:memory:,retry="$7" >out 2>err </dev/null || rc=$?
  ask "$1" fault= from=0 >asked
  case $rc in
    0) cmp out right || fail "$*: other bytes" ;;
    2) ! grep -v '^ckptfs: ' err || fail "$*: $(cat err)" ;;
    *) fail "$*: status $rc: $(cat err)" ;;
  esac
  [[ $6 != passing || $rc == 0 ]] || fail "$*: $(cat err)"
  # Without a fault there were fewer requests; or, after an error, the server did not answer for $7 seconds.
  grep -qE ' faults=[1-9]' asked || [[ $rc != 0 ]]
}

# sweep S3|WEB|HUB KIND: the fault at each request while a checkpoint is opened and read, and at all from the Nth on
sweep() {
  local n after how=lasting retry=2
  mkdir "$2"
  cd "$2"
  ln -s ../right right
  start_proxy "${upstream##*:}" "$1.$2"
  # shellcheck disable=SC2034 # for ask
  FAULTY=http://127.0.0.1:$proxy_port
  export AWS_ENDPOINT_URL=$FAULTY HF_ENDPOINT=$FAULTY
  [[ $1 != WEB ]] || address=$FAULTY/plain/
  case $2 in reset | close | short | 503 | 500 | 429) how=passing retry=30 ;; esac
  for ((n = first; n <= 60; n += every)); do
    [[ $2 == stall ]] && after=0 || after=$((n * 37 % 1500))
    try_fault FAULTY "$2" $n 1 $after $how $retry || break
  done
  ((n > 3)) || fail "$*: only $n requests"
  for n in 1 4; do
    try_fault FAULTY "$2" $n 100000 0 lasting 1 || break
  done
  [[ $2 != stall || $1 != S3 ]] || try_fault FAULTY stall 2 1 100 passing 30
}

cases_faults_at_every_request() {
  echo S3
  ! has_others || printf '%s\n' WEB HUB
}
test_faults_at_every_request() {
  local kind pids=() pid upstream
  proxied "$1"
  case $1 in
    S3) upstream=$S3 ;;
    WEB) upstream=$WEB ;;
    HUB) upstream=$HUB ;;
  esac
  for kind in reset close short 503 500 429 stall junk etag range whole gzip 403 404 412 416 307; do
    sweep "$1" $kind &
    pids+=("$!")
  done
  for pid in "${pids[@]}"; do
    wait "$pid"
  done
}

# proxied KIND: puts the address of a checkpoint behind a proxy into $address, and its sums into ./right
proxied() {
  local ckpt
  reach proxy
  ckpt=$(fixture plain)/ckpt
  case $1 in
    S3) put s3 "$ckpt" plain ;;
    WEB) put web "$ckpt" plain ;;
    HUB) put hf "$ckpt" plain ;;
  esac
  ckptfs sum "$ckpt" >right
}

# ---- access and secrets ----

test_what_is_refused_says_why() {
  reach
  put s3 "$(zoo)" zoo
  AWS_SECRET_ACCESS_KEY=wrong refused 'refused|denied|403|signature' ckptfs info s3://bucket/zoo -o cache_dir=none
  ! grep -E 'wrong|testing' err || fail "a secret: $(cat err)"
  refused 'bucket|not found|No such' ckptfs info s3://no-such-bucket/zoo
  refused 'No such|not found|nothing' ckptfs info s3://bucket/no-such-key
  refused 'connect' ckptfs info s3://bucket/zoo -o endpoint=http://127.0.0.1:1,retry=1
  HF_TOKEN=hf_wrong refused 'hf://org/plain' ckptfs info hf://org/plain -o cache_dir=none
  refused '' ckptfs info hf://org/nothing
  refused '' ckptfs info "$WEBS/nothing/"
  put web "$(big)/ckpt" big
  refused 'range' ckptfs cat "$WEBS/whole/big/" tensors/w -o cache_dir=none # the server ignores ranges
}

test_certificates_are_checked() {
  reach
  put web "$(fixture plain)/ckpt" plain
  ckptfs info "$address" >/dev/null
  (
    unset SSL_CERT_FILE CURL_CA_BUNDLE
    refused 'certificate|SSL|TLS' ckptfs info "$address" -o retry=1,cache_dir=none
  )
}

# Secrets are in no argument list, file, or log; and the fetcher writes no core.
test_secrets_stay_where_they_are() {
  local p d pids
  reach
  put s3 "$(zoo)" zoo
  mount_at m "$address"
  cat m/tensors/* >/dev/null
  mapfile -t pids < <(fetchers)
  is 2 ${#pids[@]} # one starts the other
  d=$(daemon_of m)
  for p in "${pids[@]}"; do
    ! tr '\0' ' ' <"/proc/$p/cmdline" | grep -F testing || fail "in its arguments"
    grep -q '^Max core file size *0 ' "/proc/$p/limits"
  done
  ! tr '\0' ' ' <"/proc/$d/cmdline" | grep -F testing || fail "in the daemon's arguments"
  ! grep -rlF testing "$XDG_CACHE_HOME" m/.ckptfs || fail "a secret is in a file"
}

# ---- processes ----

test_the_fetcher_ends_with_the_daemon() {
  local p
  reach
  put s3 "$(zoo)" zoo
  mount_at m "$address"
  [[ -n $(fetchers) ]]
  ckptfs umount m
  wait_until no_fetchers || fail "it still runs after an unmount"
  mount_at m "$address"
  [[ -n $(fetchers) ]]
  p=$(daemon_of m)
  kill -9 "$p"
  wait_until no_fetchers || fail "it still runs after the daemon's end"
  umount -l m 2>/dev/null || fusermount3 -uz m
}

test_without_its_fetcher_a_mount_has_errors() {
  reach
  put s3 "$(big)/ckpt" orphan
  mount_at m "$address" -o cache_dir=none
  fetchers | xargs kill -9
  wait_until no_fetchers
  try_eio cat m/tensors/w
  grep -F ckptfs-fetch m/.ckptfs/log
  ls m/tensors >/dev/null
  ckptfs umount m
}

# The process that fetches: its parent runs the same program.
the_fetcher() {
  local p
  for p in $(fetchers); do
    if [[ /proc/$(sed 's/.*) . \([0-9]*\) .*/\1/' "/proc/$p/stat")/exe -ef /proc/$p/exe ]]; then echo "$p"; fi
  done
}
restarts() { jq -e ".network.restarts >= $1" m/.ckptfs/stats.json >/dev/null; }

# Readers get every byte although it is killed while they read, and a sandboxed mount survives that, too.
test_a_killed_fetcher_is_started_again() {
  local p i n=0 pid
  reach proxy
  put s3 "$(big)/ckpt" killed
  mount_at m "$address" -o cache_dir=none
  ask S3_PROXY latency_ms=5 all_bps=100000000 >/dev/null
  (cmp m/tensors/w "$(big)/w.bin" && cmp m/tensors/v "$(big)/v.bin") &
  pid=$!
  for ((i = 0; i < 5; i++)); do
    p=$(the_fetcher)
    [[ -z $p ]] || { kill -9 "$p" && n=$((n + 1)) && wait_until restarts $n; }
    sleep 0.2
  done
  wait $pid || fail "another byte, or none"
  ((n > 0))
  p=$(the_fetcher)
  kill -9 "$p"
  wait_until restarts $((n + 1))
  cat m/tensors/* >/dev/null
  ckptfs umount m
  wait_until no_fetchers
}

# After that, files come from the same commit as before.
test_after_a_kill_a_repository_is_the_same() {
  reach
  mount_at m hf://org/plain -o cache_dir=none
  mount_at l "$(fixture plain)/ckpt"
  kill -9 "$(the_fetcher)"
  same_tree l m
  restarts 1
}

test_the_daemon_is_confined() {
  local d
  reach
  put s3 "$(zoo)" zoo
  mount_at m "$address" -o "$(strictest)"
  d=$(daemon_of m)
  is 2 "$(sed -n 's/^Seccomp:\t//p' "/proc/$d/status" | sort -u)"
  is 2 "$(sed -s -n 's/^Seccomp:\t//p' "/proc/$d/task"/*/status | sort -u)"
  is 1 "$(sed -s -n 's/^NoNewPrivs:\t//p' "/proc/$d/task"/*/status | sort -u)"
  [[ -z $(grep -l libcurl "/proc/$d/maps" || :) ]]
  cat m/tensors/* >/dev/null
}

# A hub that no option has named; it writes all requests to `caught`.
set_trap() { # the port is in $port
  python3 -c 'import os, socket
s = socket.create_server(("127.0.0.1", 0))
open("port.new", "w").write(str(s.getsockname()[1]))
os.rename("port.new", "port")
while True:
    c = s.accept()[0]
    open("caught", "ab").write(c.recv(65536))
    c.close()' &
  trapper=$!
  wait_until test -e port
  port=$(<port)
}
smuggled() { grep -qsx "smuggled $2" "/proc/$1"/task/*/comm; }

# Without a sandbox the same request succeeds, which shows that it is the seal that refuses it.
cases_a_daemon_that_is_taken_over_sends_the_token_nowhere() {
  printf '%s\n' on off
}
test_a_daemon_that_is_taken_over_sends_the_token_nowhere() {
  local d
  reach
  put s3 "$(big)/ckpt" taken
  set_trap
  ${CC:-cc} -D_GNU_SOURCE -O1 -shared -fPIC -I"$HERE/../../core" -I"$HERE/../../core/include" -o smuggle.so "$HERE/smuggle.c"
  mkdir m
  # The token is in the environment of ckptfs-fetch.
  LD_PRELOAD=$PWD/smuggle.so SMUGGLE=http://127.0.0.1:$port ckptfs mount "$address" m -o "cache_dir=none,sandbox=$1"
  d=$(daemon_of m)
  kill -USR2 "$d"
  wait_until smuggled "$d" 1
  cmp m/tensors/w "$(big)/w.bin" # the mount still works after that message
  if [[ $1 == off ]]; then
    wait_until test -e caught
    grep -a 'Bearer hf_test' caught
  else
    # The next fetcher does not send it either.
    kill -9 "$(the_fetcher)"
    wait_until restarts 1
    kill -USR2 "$d"
    wait_until smuggled "$d" 2
    cmp m/tensors/v "$(big)/v.bin"
    [[ ! -e caught ]] || fail "$(cat caught)"
  fi
  ckptfs umount m
  wait_until no_fetchers
  kill $trapper
}

cases_a_command_that_is_taken_over_sends_the_token_nowhere() {
  printf '%s\n' auto off
}
test_a_command_that_is_taken_over_sends_the_token_nowhere() {
  reach
  put s3 "$(zoo)" taken
  set_trap
  ${CC:-cc} -D_GNU_SOURCE -O1 -shared -fPIC -I"$HERE/../../core" -I"$HERE/../../core/include" -o smuggle.so "$HERE/smuggle.c"
  LD_PRELOAD=$PWD/smuggle.so SMUGGLE=http://127.0.0.1:$port SMUGGLE_EARLY=1 ckptfs sum "$address" -o cache_dir=none --sandbox="$1" >sums
  cmp sums <(ckptfs sum "$(zoo)")
  if [[ $1 == off ]]; then
    wait_until test -e caught
    grep -a 'Bearer hf_test' caught
  else
    wait_until no_fetchers
    [[ ! -e caught ]] || fail "$(cat caught)"
  fi
  kill $trapper
}

# Only ckptfs-fetch keeps secrets from the environment: a daemon that has them could send them as a name in a store.
cases_a_daemon_forgets_secrets() {
  printf '%s\n' '' -f
}
test_a_daemon_forgets_secrets() {
  local d
  reach
  put s3 "$(zoo)" zoo
  mkdir m
  https_proxy=http://me:proxy-secret@127.0.0.1:1 ckptfs mount "$address" m ${1:+"$1"} &
  wait_until is_mounted m
  d=$(daemon_of m)
  cat m/tensors/* >/dev/null
  python3 - "$d" hf_test proxy-secret "AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY" <<'X'
import sys
pid, *secrets = sys.argv[1:]
with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
    for line in maps:
        place, mode = line.split()[:2]
        if not mode.startswith("rw"):
            continue
        first, end = (int(x, 16) for x in place.split("-"))
        mem.seek(first)
        text = mem.read(end - first)
        for s in secrets:
            if s.encode() in text:
                sys.exit(f"{s} is in {line}")
X
  ckptfs umount m
  wait
}

test_a_signal_ends_a_wait() {
  reach proxy
  put s3 "$(big)/ckpt" stalled
  mount_at m "$address" -o cache_dir=none,retry=600
  ask S3_PROXY fault=stall from=1 times=100000 after=0 >/dev/null
  cat m/tensors/w >/dev/null 2>&1 &
  sleep 2
  kill -9 $!
  wait_until gone $!
  ls m/tensors >/dev/null
  calm S3_PROXY
}

test_mount_helper_takes_addresses() {
  reach
  put s3 "$(zoo)" zoo
  mkdir m
  ln -s "$CKPTFS" mount.ckptfs
  ./mount.ckptfs "$address" m -o ro,_netdev,allow_other
  is_mounted m
  grep -F "$address" /proc/self/mountinfo >/dev/null
  cat m/tensors/model.scale >/dev/null
  ckptfs umount m
}

# ---- runs ----

test_new_steps_of_a_run_appear() {
  reach
  publish_s3 bucket/run/step-1 "$(zoo)"
  mount_at m s3://bucket/run
  is step-1 "$(readlink m/latest)"
  cat m/step-1/tensors/* >/dev/null
  publish_s3 bucket/run/step-2 "$(zoo)"
  wait_until test -d m/step-2
  wait_until test "$(readlink m/latest)" == step-2 || :
  is step-2 "$(readlink m/latest)"
  same_tree m/step-1 m/step-2
  is "$(ckptfs sum s3://bucket/run/step-2)" "$(ckptfs sum s3://bucket/run/latest)"
  refused "did you mean 'step-2'" ckptfs info s3://bucket/run/step_2
}

# The patch is opened with the first step that a reader enters, and by then the daemon is confined.
test_what_options_name_for_a_run_may_be_elsewhere() {
  python3 "$HERE/merge.py" step base 1
  python3 "$HERE/merge.py" step next 2
  python3 "$HERE/merge.py" patch patch base next
  reach
  publish_s3 bucket/steps/step-1 base
  publish_s3 other/patch patch
  mount_at m s3://bucket/steps -o cache_dir=none,overlay=s3://other/patch/trl.safetensors
  ckptfs export -q next hf want
  diff -r m/step-1/hf want || fail "$(cat m/.ckptfs/log)"
}

[[ -n ${CHECK_FULL:-}${1:-} ]] || exit 0
[[ $EUID == 0 ]] || exit 0 # Swift's files need root
run_suite "$@"
