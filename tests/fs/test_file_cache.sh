#!/bin/bash
# file://: files of this machine, with a cache of their bytes on another disk.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

cases_every_byte_is_the_local_one() {
  printf '%s\n' plain zstd fsw_safetensors torchsave_sharded mcore_gpt_dense mcore_zarr ds_z2_bf16_w2_rr fsdp_sharded \
    orbax/data_files
}
test_every_byte_is_the_local_one() {
  local ckpt=$DATA/$1/ckpt
  [[ -d $ckpt ]] || ckpt=$DATA/$1
  mount_at l "$ckpt"
  mount_at r "file://$ckpt"
  same_tree l r
  ckptfs umount "file://$ckpt"
  mount_at r "file://$ckpt"
  same_tree l r
  jq -e '.network | .bytes == 0 and .cache_hits > 0' r/.ckptfs/stats.json
}

test_a_file_and_a_run() {
  mkdir -p run one
  cp -r "$(zoo)" run/step-1
  cp "$(fixture hf_dtypes)"/ckpt/*.safetensors one/file
  ckptfs sum one/file >a
  ckptfs sum "file://$PWD/one/file" >b
  cmp a b
  cp -r "$(zoo)" run/step-2
  find run -type f -exec touch -d 2020-01-01 {} + # a new checkpoint might still be being written
  ckptfs ls run >a
  ckptfs ls "file://$PWD/run" >b
  cmp a b
  ckptfs sum "file://$PWD/run/step-1" >a
  ckptfs sum "file://$PWD/run/latest" >b
  cmp a b
}

# A link to a file outside the checkpoint is not followed.
test_nothing_outside_is_read() {
  cp -r "$(zoo)" ck
  local f
  f=$(basename "$(find ck -name '*.distcp' | head -n 1)")
  mv "ck/$f" outside
  ln -s ../outside "ck/$f"
  ! ckptfs check --data "file://$PWD/ck" >out 2>&1 || fail "$(cat out)"
  grep -F "$f" out | grep -F 'a link leads out' || fail "$(cat out)"
}

test_links_of_a_cached_snapshot_lead_out() {
  local repo=models--org--name
  mkdir -p $repo/{blobs,refs,snapshots/1}
  cp -r "$(fixture hf_dtypes)"/ckpt/. $repo/blobs
  for f in "$repo"/blobs/*; do ln -s "../../blobs/${f##*/}" "$repo/snapshots/1/${f##*/}"; done
  ckptfs sum "$repo/snapshots/1"
  refused 'a link leads out' ckptfs sum "file://$PWD/$repo/snapshots/1"
}

# Files get other bytes of the same length: reads return the old bytes or EIO with a reason, never the new bytes.
test_a_changed_file_is_an_error() {
  cp -r "$(big)/ckpt" ck
  mount_at m "file://$PWD/ck"
  head -c 65536 m/tensors/w >before
  for f in ck/*.distcp; do
    head -c "$(stat -c %s "$f")" /dev/urandom >other
    cat other >"$f"
  done
  try_eio cat m/tensors/v
  head -c 65536 m/tensors/w >after 2>/dev/null || :
  cmp -n "$(stat -c %s after)" before after
  grep changed m/.ckptfs/log || fail "$(cat m/.ckptfs/log)"
  ckptfs sum "file://$PWD/ck" >a 2>&1 || :
  ckptfs sum ck >b 2>&1 || :
  cmp a b
}

test_a_removed_file_is_an_error() {
  cp -r "$(big)/ckpt" ck
  mount_at m "file://$PWD/ck"
  rm ck/*.distcp
  try_eio cat m/tensors/v
  grep -E 'changed|removed' m/.ckptfs/log || fail "$(cat m/.ckptfs/log)"
}

test_random_reads_are_right() {
  mount_at m "file://$(big)/ckpt" -o cache_dir=none
  read_at_random m "$(big)/ckpt"
}

test_a_path_is_not_kept_and_that_is_said() {
  ckptfs sum "$(zoo)" -o cache_dir="$PWD/kept" >/dev/null 2>err
  grep -F 'open file://PATH' err
  ckptfs sum "file://$(zoo)" -o cache_dir="$PWD/kept" >/dev/null 2>err
  [[ ! -s err && -n $(ls kept) ]]
}

test_warm_says_what_it_cannot_keep() {
  local at
  at=file://$(big)/ckpt
  ckptfs warm -q "$at" -o "cache_dir=$PWD/kept" >out 2>err
  [[ ! -s err ]] || fail "$(cat err)"
  ckptfs warm -q "$at" -o "cache_dir=$PWD/small,cache_size=16M" >out 2>err
  grep -F 'there are 35.0 MiB to fetch, but the cache keeps only 16.0 MiB' err || fail "$(cat err)"
  refused "with 'cache_dir=none' nothing that is fetched is kept" ckptfs warm "$at" -o cache_dir=none
}

# Segments of the cache would be larger than a file may be; memory takes their place.
test_a_limit_on_the_size_of_files_kills_nobody() {
  local at
  at=file://$(big)/ckpt
  ckptfs sum "$(big)/ckpt" >a
  (
    ulimit -f 10240
    ckptfs sum "$at" -o "cache_dir=$PWD/kept" >b
    ckptfs warm -q "$at" -o "cache_dir=$PWD/kept" >out 2>err
  )
  cmp a b
  grep -F 'not all of it is kept' err || fail "$(cat err)"
}

# The fetcher has the same limit, and every open file costs it more than one descriptor.
cases_more_files_than_descriptors() { printf '%s\n' kept none; }
test_more_files_than_descriptors() {
  mkdir many
  for ((i = 0; i < 200; i++)); do
    printf '\100\0\0\0\0\0\0\0%-64s%04d' "{\"t$i\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}" "$i" \
      >"many/$i.safetensors"
  done
  ckptfs sum many >a
  (
    ulimit -n 100
    ckptfs sum "file://$PWD/many" -o "cache_dir=${1/#kept/$PWD/kept}" >b
  )
  cmp a b
}

test_what_is_refused_says_why() {
  refused 'three slashes' ckptfs ls file://zoo
  refused 'No such file' ckptfs ls "file://$PWD/absent"
  refused 'file:// is for reading' ckptfs reshard "$(zoo)" "file://$PWD/copy"
  [[ ! -e copy ]]
}

run_suite "$@"
