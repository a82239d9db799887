#!/bin/bash
# NeMo archives: members of a tar file are read in place.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# pack DIR [OPTION...]: DIR.nemo, as tarfile.add(".") names its members
pack() { tar -C "$1" -cf "$1.nemo" "${@:2}" .; }

# A directory and an archive of it must be shown alike.
same() {
  mount_at m "$1"
  mount_at n "$1.nemo"
  diff -r m/tensors n/tensors
  diff -r m/objects n/objects
  ckptfs check --data "$1.nemo"
  ckptfs umount m
  ckptfs umount n
}

test_distributed_weights() {
  local f
  for f in mcore_manual mcore_zarr; do
    mkdir $f
    echo 'name: x' >$f/model_config.yaml
    copy_of $f $f/model_weights
    pack $f
    same $f
  done
}

test_weights_of_each_rank() {
  copy_of mranks_virtual c
  for d in c/mp_rank_*; do touch "$d/distrib_optim.pt"; done
  pack c --format=gnu
  same c
}

test_weights_in_one_file() {
  need_fixture torchsave_zip
  mkdir c
  cp "$(fixture torchsave_zip)/ckpt/model.pt" c/model_weights.ckpt
  echo 'name: x' >c/model_config.yaml
  pack c --format=pax
  same c
  ckptfs ls "$(fixture torchsave_zip)/ckpt/model.pt" >a
  ckptfs ls c.nemo | cmp - a
}

test_a_configuration_beside_the_weights() {
  mkdir c
  copy_of mcore_manual c/model_weights
  echo '{"model_type": "llama"}' >c/config.json
  pack c
  mount_at m c.nemo
  cmp c/config.json m/hf/config.json
}

test_an_archive_that_changes_gives_no_other_bytes() {
  mkdir c
  copy_of mcore_manual c/model_weights
  pack c
  mount_at m c.nemo
  cat m/tensors/* >before
  truncate -s -20K c.nemo
  ! cat m/tensors/* >after 2>/dev/null || cmp before after
}

test_what_cannot_be_read_is_said() {
  copy_of mranks_moe c
  pack c
  gzip -c c.nemo >z.nemo
  ! ckptfs ls z.nemo 2>says || return 1
  grep -q "'z.nemo' is a NeMo archive that is compressed or damaged; unpack it" says
  head -c 20000 c.nemo >short.nemo
  ! ckptfs ls short.nemo 2>says || return 1
  grep -q "read 'short.nemo': the archive has 20000 bytes, .* it is not complete" says
  mkdir e
  pack e
  ! ckptfs ls e.nemo 2>says || return 1
  grep -q "not a checkpoint: nothing is in it" says
}

run_suite "$@"
