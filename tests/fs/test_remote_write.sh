#!/bin/bash
# Checkpoints written to an object store: a real server of S3, and a proxy with faults. In full runs only.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2034 # for lib.sh
servers=s3
# shellcheck source=../net/servers.sh
. "$HERE/../net/servers.sh"

# objects PREFIX: keys and sizes. uploads PREFIX: what is left of uploads.
objects() { python3 "$NET/publish.py" objects "$S3" "bucket/$1"; }
uploads() { python3 "$NET/publish.py" uploads "$S3" "bucket/$1"; }
nothing_is_at() { [[ -z $(objects "$1")$(uploads "$1") ]]; }
# same_objects DIR PREFIX: the same files, and the same bytes of each, by the server's own interface
same_objects() {
  (cd "$1" && find . -type f -printf '%P %s\n') | sort >files
  objects "$2/" | sed "s,^$2/,," | sort >keys
  cmp files keys || fail "$(diff files keys)"
  ckptfs_get "$2" got
  diff -r "$1" got
  [[ -z $(uploads "$2") ]] || fail "left: $(uploads "$2")"
}
ckptfs_get() { rm -rf "$2" && python3 "$NET/publish.py" get "$S3" "bucket/$1" "$2"; }


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

[[ -n ${CHECK_FULL:-}${1:-} ]] || exit 0
[[ $EUID == 0 ]] || exit 0 # Swift's files need root
run_suite "$@"
