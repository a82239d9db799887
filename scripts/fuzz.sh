#!/bin/bash
# fuzz.sh SECONDS TARGET... - run libFuzzer on each target, with ASan and UBSan, starting from its
# corpus. New inputs go to build/corpus; a crash is also kept there and makes the script fail. Needs clang.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
flags=(-std=gnu17 -g -O1 -D_GNU_SOURCE -DCKPTFS_VERSION='"fuzz"' -Icore -Icore/include -Itests -Itests/core -pthread
  '-fsanitize=fuzzer,address,undefined' -fno-sanitize-recover=all -Wno-gnu)
read -ra libs < <(pkg-config --libs sqlite3 libzstd zlib blosc libxxhash libdeflate nettle jansson)
mkdir -p build/corpus
make VARIANT=fuzz CC="${CC:-clang}" build/fuzz/libcore.a
for target in "$@"; do
  name=${target#fuzz_}
  mkdir -p "build/corpus/$name"
  clang "${flags[@]}" -o "build/fuzz/$target" "tests/fuzz/$target.c" build/fuzz/libcore.a \
    "${libs[@]}" -lm
  echo "== $target, $seconds s"
  "build/fuzz/$target" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=4096 \
    -artifact_prefix="build/corpus/$name-" "build/corpus/$name" "tests/fuzz/corpus/$name" 2>&1 |
    grep -vE 'NEW|REDUCE|pulse' | tail -n 12
done
