#!/bin/bash
# demo.sh - mount a real checkpoint, look around, extract tensors, compare them with torch's.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD

data=tests/data/mp4_fsdp2_adamw # FSDP2 + AdamW on 4 ranks, written by torch 2.14
ckptfs=build/release/ckptfs
sums=$PWD/$data/SHA256SUMS # of every tensor, as torch loads it
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt"
export XDG_CACHE_HOME=$work/cache
trap 'cd "$top"; $ckptfs umount "$mnt" 2>/dev/null || true; rm -rf "$work"' EXIT

bold=$(tput bold 2>/dev/null || true) plain=$(tput sgr0 2>/dev/null || true)
[ -t 1 ] || bold='' plain=''
run() {
  echo "${bold}\$ $1${plain}"
  bash -c "$1"
  echo
}

if [ ! -e /dev/fuse ]; then
  echo "no /dev/fuse here, so no mount; 'ckptfs cat' needs none:"
  run "$ckptfs ls -l $data/ckpt 'model.*'"
  exit 0
fi

run "ls $data/ckpt"
run "$ckptfs mount $data/ckpt $mnt"
cd "$work"
run "ls mnt mnt/tensors | head -n 16"
command -v getfattr >/dev/null && run "getfattr -d mnt/tensors/model.output.weight"
run "cat mnt/tensors/model.output.weight | od -A d -t f4 -N 32"
run "dd if=mnt/tensors/model.output.weight bs=24 skip=3 count=1 status=none | od -A d -t f4"
run "cd mnt/tensors && sha256sum -c $sums | tail -n 3 # the sums are torch's own"
run "ls -l mnt/hf; head -c 200 mnt/hf/model.safetensors | tail -c +9; echo ... # for a model server"
n=$(cd mnt/tensors && sha256sum -c --quiet "$sums" && wc -l <"$sums")
cd - >/dev/null
echo "$n of $n tensors are byte for byte what torch loads"
echo
run "$ckptfs umount $mnt"
echo "done: no bytes were converted, and nothing was written but the index."
