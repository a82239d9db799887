#!/bin/bash
# Checkpoints are written to an object store: a real server for S3, and a proxy with faults. Full runs only.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2034 # for lib.sh
servers=s3
# shellcheck source=../net/servers.sh
. "$HERE/../net/servers.sh"

# objects PREFIX: keys and sizes. uploads PREFIX: unfinished uploads.
objects() { python3 "$NET/publish.py" objects "$S3" "bucket/$1"; }
uploads() { python3 "$NET/publish.py" uploads "$S3" "bucket/$1"; }
nothing_is_at() {
  local all
  all=$(objects "$1" && uploads "$1") && [[ -z $all ]]
}
# same_bytes DIR PREFIX: the store has the same files with the same bytes, read through the server's own interface
same_bytes() {
  (cd "$1" && find . -type f -printf '%P %s\n') | sort >files
  objects "$2/" | sed "s,^$2/,," | sort >keys
  cmp files keys || fail "$(diff files keys)"
  # With fail, because where `written` is called errexit does not work.
  ckptfs_get "$2" got || fail "cannot get $2"
  diff -r "$1" got || fail "other bytes: $2"
}
# same_objects DIR PREFIX: the same, and no unfinished upload is left
same_objects() {
  same_bytes "$@"
  [[ -z $(uploads "$2") ]] || fail "left: $(uploads "$2")"
}
ckptfs_get() { rm -rf "$2" && python3 "$NET/publish.py" get "$S3" "bucket/$1" "$2"; }


six_requests() { (($(counted S3_PROXY requests) >= 6)); }
# ended SIGNAL COMMAND...: appends an address to a command that writes there, and sends the signal during the upload
ended() {
  local signal=$1 to=ended/$2-$1 pid began
  shift
  reach proxy
  publish_s3 bucket
  ask S3_PROXY latency_ms=300 fault=stall from=6 times=100000 after=0 >/dev/null
  env --default-signal=INT "$CKPTFS" "$@" "s3://bucket/$to" >out 2>err & # else a background job ignores SIGINT
  pid=$!
  wait_until six_requests
  ask S3_PROXY fault= latency_ms=0 from=0 >/dev/null
  began=$(date +%s%N)
  kill -"$signal" $pid
  wait $pid || :
  # It must not wait for the server, which would take 30 s; on a busy machine it may take a while.
  (($(date +%s%N) - began < 10000000000)) || fail "it took $((($(date +%s%N) - began) / 1000000)) ms"
  wait_until no_fetchers
  # A slow server may still be carrying out the request.
  (wait_until nothing_is_at "$to") || fail "left: $(objects "$to") $(uploads "$to"); said: $(cat err)"
}

# ---- bytes ----

cases_every_format_is_written() {
  printf '%s\n' dcp hyperparallel safetensors megatron zarr 'dcp --zstd=3' 'dcp --file-per-item' \
    'dcp --ranks=3 --threads=2' 'safetensors -o shard_size=9MiB' 'zarr -o shard_size=5MiB'
}
test_every_format_is_written() {
  local format=$1 src
  local to=formats/$format$#/x
  shift
  reach
  publish_s3 bucket
  for src in "$(zoo)" "$(big)/ckpt"; do
    rm -rf here
    ckptfs reshard -q --format="$format" "$@" "$src" here
    ckptfs reshard -q --format="$format" "$@" "$src" "s3://bucket/$to"
    same_objects here "$to"
    ckptfs reshard -q --overwrite --format="$format" "$@" "$src" "s3://bucket/$to"
    same_objects here "$to"
    python3 "$NET/publish.py" remove "$S3" "bucket/$to"
  done
  wait_until no_fetchers
}

cases_every_export_is_written() {
  printf '%s\n' hf tensors hf/model.safetensors tensors/w
}
test_every_export_is_written() {
  local to=exports/${1//[.\/]/_} from
  reach
  publish_s3 bucket
  python3 "$NET/publish.py" remove "$S3" "bucket/$to"
  from=$(big)/ckpt
  if [[ $1 == */* ]]; then
    mkdir here
    ckptfs export -q "$from" "$1" here/x
    ckptfs export -q "$from" "$1" "s3://bucket/$to/x"
  else
    ckptfs export -q "$from" "$1" here 2>err
    ckptfs export -q "$from" "$1" "s3://bucket/$to" 2>err
  fi
  same_objects here "$to"
  refused 'exists already' ckptfs export -q "$from" "$1" "s3://bucket/$to$([[ $1 != */* ]] || echo /x)"
  wait_until no_fetchers
}

test_an_export_is_read_back() {
  reach
  publish_s3 bucket
  ckptfs export -q "$(zoo)" hf s3://bucket/model/of/zoo
  ckptfs reshard -q --model --format=safetensors "$(zoo)" here
  ckptfs diff -q here s3://bucket/model/of/zoo
}

cases_an_interrupted_export_leaves_nothing() {
  printf '%s\n' INT KILL
}
test_an_interrupted_export_leaves_nothing() { ended "$1" export -q "$(big)/ckpt" hf; }

# ---- refused and replaced checkpoints ----

test_what_is_there_is_not_lost() {
  local to=s3://bucket/there
  reach
  publish_s3 bucket/there "$(fixture plain)/ckpt"
  objects there/ >before
  refused 'already exists and is not empty: use the option overwrite' ckptfs reshard "$(zoo)" $to
  echo hello >notes
  publish_s3 bucket/there notes
  refused "holds 'notes', which is not part of a checkpoint and would be lost" ckptfs reshard --overwrite "$(zoo)" $to
  refused "would be lost" ckptfs reshard --overwrite "$(zoo)" s3://bucket
  python3 "$NET/publish.py" remove "$S3" bucket/there
  publish_s3 bucket/there "$(fixture plain)/ckpt"
  cmp before <(objects there/)
  # Whatever its format, all of the old checkpoint is gone, and all of the new one is there.
  local format
  for format in zarr dcp safetensors; do
    ckptfs reshard -q --overwrite --format=$format "$(zoo)" $to
    rm -rf here
    ckptfs reshard -q --format=$format "$(zoo)" here
    same_objects here there
  done
}

test_other_addresses_are_refused() {
  reach
  publish_s3 bucket
  refused 's3:// and gs:// only' ckptfs reshard "$(zoo)" http://127.0.0.1:1/x
  refused 's3:// and gs:// only' ckptfs reshard "$(zoo)" hf://org/name
  refused 'NoSuchBucket' ckptfs reshard "$(zoo)" s3://no-such-bucket/x
  AWS_SECRET_ACCESS_KEY=wrong refused '403' ckptfs reshard "$(zoo)" s3://bucket/denied
  ! grep -E 'wrong|testing' err || fail "a secret: $(cat err)"
  refused "endpoint" ckptfs reshard "$(zoo)" s3://bucket/x -o endpoint=ftp://x
  nothing_is_at denied
}

# Both the source and the destination are addresses.
test_from_store_to_store() {
  reach
  publish_s3 bucket/from "$(big)/ckpt"
  ckptfs reshard -q --ranks=2 s3://bucket/from s3://bucket/to
  ckptfs reshard -q --ranks=2 "$(big)/ckpt" here
  same_objects here to
  ckptfs diff -q s3://bucket/from s3://bucket/to
}

# ---- faults ----

# 17 MB in one tensor: a file of three parts, and .metadata.
three_parts() {
  make_dcp src w 1024x4200 1x1
  ckptfs reshard -q src right
}

# written KIND FROM TIMES AFTER RETRY passing|either|lasting: with that fault, a reshard leaves the whole checkpoint or
# nothing that counts as one, and says what it could not remove. If answers are lost, it may have left all without
# knowing it. With RETRY=1, answers of a busy server count as lost, too.
written() {
  local rc=0 to=t/$6/$1/$2
  ask S3_PROXY fault="$1" from="$2" times="$3" after="$4" >/dev/null
  timeout 250 "$CKPTFS" reshard -q src "s3://bucket/$to" -o retry="$5" >out 2>err </dev/null || rc=$?
  ask S3_PROXY fault= from=0 >asked
  wait_until no_fetchers || fail "$*: ckptfs-fetch has not ended"
  case $rc in
    0) same_objects right "$to" ;;
    2)
      if objects "$to/" | grep -F .metadata; then
        [[ $1 == lost ]] || grep -F "may be complete and visible" err >/dev/null || fail "$*: a checkpoint: $(cat err)"
        same_bytes right "$to"
      fi
      nothing_is_at "$to/" ||
        grep -E "may be complete and visible|upload.* could not be removed|may still carry (it|them) out" err >/dev/null ||
        fail "$*: left: $(objects "$to/") $(uploads "$to/") $(cat err)"
      grep '^ckptfs: reshard: ' err || fail "$*: $(cat err)"
      ;;
    *) fail "$*: status $rc: $(cat err)" ;;
  esac
  [[ $6 != passing || $rc == 0 ]] || fail "$*: $(cat err)"
  [[ $6 != passing || -z $(uploads "$to/") ]] || fail "$*: left: $(uploads "$to/")"
  grep -qE ' faults=[1-9]' asked || return 1 # there were fewer requests
}

cases_faults_that_pass_while_writing() {
  printf '%s\n' 'upload 300000' 'close 0' 'lost 0' 'short 20' '503 0' '500 0' 'flip 0' 'reset 0' 'stall 0' 'error 0' 'etag 0'
}
test_faults_that_pass_while_writing() {
  local n=$first most=40
  reach proxy
  publish_s3 bucket
  three_parts
  [[ $1 != stall ]] || most=3 # each takes 10 s, and the end of an upload 60 s
  for (( ; n <= most; n += every)); do
    # "error" is an answer to the end of an upload only, after which the save may fail.
    written "$1" $n 1 "$2" 60 "$([[ $1 == error ]] && echo either || echo passing)" || break
  done
  ((n > 4)) || [[ $1 == stall ]] || fail "only $n requests"
}

cases_faults_that_last_while_writing() {
  printf '%s\n' upload 503 lost 403 412 junk close
}
test_faults_that_last_while_writing() {
  local n
  reach proxy
  publish_s3 bucket
  three_parts
  for ((n = first; n <= 12; n += every)); do
    written "$1" $n 100000 0 1 lasting || break
  done
}

# ---- signals ----

cases_an_interrupted_reshard_leaves_nothing() {
  printf '%s\n' INT TERM KILL
}
test_an_interrupted_reshard_leaves_nothing() { ended "$1" reshard -q "$(big)/ckpt"; }

[[ -n ${CHECK_FULL:-}${1:-} ]] || exit 0
[[ $EUID == 0 ]] || exit 0 # Swift's files need root
run_suite "$@"
