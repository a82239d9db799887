#!/bin/bash
# demo.sh - mount a real checkpoint, look around, take tensors out, compare them with torch's.
set -euo pipefail
cd "$(dirname "$0")/.."

data=tests/data/mp4_fsdp2_adamw # FSDP2 + AdamW on 4 ranks, written by torch 2.14
ckptfs=build/release/ckptfs
work=$(mktemp -d)
mnt=$work/mnt
mkdir "$mnt"
export XDG_CACHE_HOME=$work/cache
trap '$ckptfs umount "$mnt" 2>/dev/null || true; rm -rf "$work"' EXIT

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
run "getfattr -n user.ckptfs.shape -n user.ckptfs.dtype mnt/tensors/model.output.weight 2>/dev/null || true"
run "cat mnt/tensors/model.output.weight | od -A d -t f4 -N 32"
run "dd if=mnt/tensors/model.output.weight bs=24 skip=3 count=1 status=none | od -A d -t f4"
cd - >/dev/null

echo "${bold}sha256 of every tensor against torch's own:${plain}"
python3 - "$mnt" "$data/expected.json" <<'PY'
import hashlib, json, pathlib, sys
mnt, expected = pathlib.Path(sys.argv[1]), json.load(open(sys.argv[2]))["tensors"]
bad = [f for f, t in expected.items()
       if hashlib.sha256((mnt / "tensors" / f).read_bytes()).hexdigest() != t["sha256"]]
print(f"{len(expected) - len(bad)} of {len(expected)} equal")
sys.exit(bool(bad))
PY
echo
run "$ckptfs umount $mnt"
echo "done: no byte was converted, nothing was written."
