#!/bin/bash
# tests/torch/zarr.sh [SEED] [N]
#
# zarr-python writes N (60) random arrays, of versions 2 and 3, with all codecs, shards in shards, transposes and absent
# chunks; each must be read with the same bytes. Elements of small types must have the values that they have in
# ml_dtypes. Then `reshard` writes them as zarr, which zarr-python reads, and as DCP, which torch loads. SEED (random
# when empty) decides. Must be root, for the chroot (scripts/chroot.sh).
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh
seed=${1:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
n=${2:-60}
echo "seed $seed"

mkdir "$tmp/made" "$tmp/got"
if ! in_chroot python3 /mnt/tests/zarr_check.py make "$seed" "$n" /mnt/out/made >"$tmp/log" 2>&1; then
  fail "zarr_check.py make"
  tail -n 20 "$tmp/log" | sed 's/^/  /'
fi
for f in "$tmp"/made/expected/*; do
  name=${f##*/}
  # shellcheck disable=SC2016 # expanded by the inner shell
  try "$name: cat" sh -c '"$1" cat "$2" "tensors/$3" >"$4" && cmp "$4" "$5"' sh \
    "$ckptfs" "$tmp/made/ckpt" "$name" "$tmp/got/$name" "$f" || cat "$tmp/made/ckpt/$name/".z* "$tmp/made/ckpt/$name/z"* 2>/dev/null || true
done
for d in "$tmp"/made/types/*; do
  name=${d##*/}
  # shellcheck disable=SC2016 # expanded by the inner shell
  try "$name: head" sh -c '"$1" head --json "$2" "$3" >"$4"' sh "$ckptfs" "$tmp/made/types" "$name" "$tmp/made/types.$name" || true
done
counted "ml_dtypes" in_chroot python3 /mnt/tests/zarr_check.py types /mnt/out/made
for size in 1 1000 1G; do
  try "reshard" "$ckptfs" reshard -q --format=zarr --shard-size="$size" "$tmp/made/ckpt" "$tmp/out-$size" || continue
  counted "zarr-python, chunks of $size" in_chroot python3 /mnt/tests/zarr_check.py read "/mnt/out/out-$size" \
    /mnt/out/made/expected
done

# Torch lacks these types.
lacks=$(grep -lE '"(int[24]|float4_e2m1fn|float8_e3m4|float8_e4m3b11fnuz)"' "$tmp"/made/ckpt/*/{.zarray,zarr.json} 2>/dev/null |
  sed 's|/[^/]*$||; s|.*/||' | paste -sd, || true)
if try "reshard to DCP" "$ckptfs" reshard -q --format=dcp "--exclude={$lacks,none}" "$tmp/made/ckpt" "$tmp/dcp"; then
  counted "torch" in_chroot python3 /mnt/tests/zarr_check.py dcp /mnt/out/dcp /mnt/out/made/expected
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
